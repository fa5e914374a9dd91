"""Tasks of the polls: in one thread while they are quick, and beside each other when they are not."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Event, Lock, Thread, active_count, get_ident
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.clock import SystemClock
from daemon.scheduling import poll_threads
from daemon.scheduling.poll_threads import PollThreads
from tests.kit.examples import examples
from tests.kit.servers import wait_until

THREADS_MAX = 4
WAIT_MAX_S = 20.0


@pytest.fixture
def threads() -> PollThreads:
    return PollThreads(THREADS_MAX, SystemClock())


def submit(threads: PollThreads, *works: Callable[[], Any]) -> list[Future[Any]]:
    """The results to come of tasks that are due together."""
    futures = [Future[Any]() for _ in works]

    def run(future: Future[Any], work: Callable[[], Any]) -> None:
        future.set_result(work())

    threads.submit(map(partial, [run] * len(works), futures, works))
    return futures


def beat(threads: PollThreads, is_done: Callable[[], bool]) -> None:
    """Submit nothing, again and again, as the daemon does."""

    def go_on() -> bool:
        threads.submit([])
        return is_done()

    wait_until(go_on, "the tasks", WAIT_MAX_S)


def test_quick_tasks_share_a_thread(threads: PollThreads) -> None:
    """In the order in which they were submitted. So does the next round."""
    seen: list[tuple[int, int]] = []
    for first in (0, 10, 20):
        numbers = range(first, first + 10)
        futures = submit(threads, *(lambda number=number: seen.append((number, get_ident())) for number in numbers))
        for future in futures:
            future.result(WAIT_MAX_S)
        wait_until(lambda: bool(threads._asleep), "the thread's sleep", WAIT_MAX_S)
    assert [number for number, _ in seen] == list(range(30))
    assert len({thread for _, thread in seen}) == 1


def test_tasks_that_hang_delay_no_others(threads: PollThreads) -> None:
    """Up to as many as there are threads. Beyond that, the others wait for the first thread that comes back."""
    hanging = [Event() for _ in range(THREADS_MAX)]
    stuck = submit(threads, *(partial(event.wait, WAIT_MAX_S) for event in hanging[:-1]))
    (well,) = submit(threads, lambda: 7)
    beat(threads, well.done)
    assert not any(future.done() for future in stuck)
    stuck += submit(threads, partial(hanging[-1].wait, WAIT_MAX_S))
    (last,) = submit(threads, lambda: 8)
    for _ in range(10):
        threads.submit([])
        with pytest.raises(TimeoutError):
            last.result(poll_threads.WAIT_MAX_S / 5)
    hanging[1].set()
    beat(threads, last.done)
    for event in hanging:
        event.set()
    assert all(future.result(WAIT_MAX_S) for future in stuck)


def test_slow_tasks_run_beside_each_other(threads: PollThreads) -> None:
    """The threads see it by themselves: those of a file system over the network answer slowly, and never hang."""
    begun_s = time.monotonic()
    futures = submit(threads, *[partial(time.sleep, poll_threads.WAIT_MAX_S / 3)] * 20)
    for future in futures:
        future.result(WAIT_MAX_S)
    one_after_the_other_s = 20 * poll_threads.WAIT_MAX_S / 3
    assert time.monotonic() - begun_s < 0.75 * one_after_the_other_s
    assert len(threads._awake) + len(threads._asleep) == THREADS_MAX


def test_a_task_that_says_so_lets_others_go_on_at_once(threads: PollThreads) -> None:
    """Said twice, it takes the turn from nobody."""
    is_over = Event()

    def work() -> bool:
        threads.hand_over()
        threads.hand_over()
        return is_over.wait(WAIT_MAX_S)

    slow, *quick = submit(threads, work, *[get_ident] * 3)
    assert len({future.result(WAIT_MAX_S) for future in quick}) == 1
    assert not slow.done()
    is_over.set()
    assert slow.result(WAIT_MAX_S)


def test_threads_that_are_not_needed_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while; the next task gets a new one."""
    monkeypatch.setattr(poll_threads, "IDLE_MAX_S", 0.05)
    before, threads, is_over = active_count(), PollThreads(THREADS_MAX, SystemClock()), Event()
    for _ in range(3):
        is_over.clear()
        futures = submit(threads, *[partial(is_over.wait, WAIT_MAX_S)] * THREADS_MAX)
        beat(threads, lambda: active_count() == before + THREADS_MAX)
        is_over.set()
        assert all(future.result(WAIT_MAX_S) for future in futures)
        wait_until(lambda: active_count() == before, "the end of the threads", WAIT_MAX_S)


def test_a_system_that_has_no_thread_to_spare(threads: PollThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks run once it has one."""

    def fail(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", fail)
        (future,) = submit(threads, lambda: 7)
    threads.submit([])
    assert future.result(WAIT_MAX_S) == 7


@settings(max_examples=examples(30), deadline=None)
@given(
    tasks=st.lists(st.tuples(st.sampled_from([0.0, 0.001, 0.01]), st.booleans()), max_size=40),
    idle_max_s=st.sampled_from([0.0005, 0.002, 60.0]),
)
def test_each_task_runs_once(tasks: list[tuple[float, bool]], idle_max_s: float) -> None:
    """Whatever takes long, hands over, or falls asleep in between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(poll_threads, "IDLE_MAX_S", idle_max_s)
        patch.setattr(poll_threads, "WAIT_MAX_S", 0.002)
        threads, lock, runs = PollThreads(THREADS_MAX, SystemClock()), Lock(), list[int]()

        def work(number: int, seconds: float, hands_over: bool) -> None:
            if hands_over:
                threads.hand_over()
            time.sleep(seconds)
            with lock:
                runs.append(number)

        futures = []
        for number, (seconds, hands_over) in enumerate(tasks):
            futures += submit(threads, partial(work, number, seconds, hands_over))
            time.sleep(seconds / 5)
        beat(threads, lambda: all(future.done() for future in futures))
        assert sorted(runs) == list(range(len(tasks)))
        assert len(threads._awake) + len(threads._asleep) <= THREADS_MAX
