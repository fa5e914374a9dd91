"""Tasks of the polls: in one thread while they are quick, and beside each other when they are not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Event, Lock, Thread, active_count, get_ident

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
def threads() -> Iterator[PollThreads]:
    threads = PollThreads(THREADS_MAX, SystemClock())
    yield threads
    threads.shutdown()


def beat(threads: PollThreads, is_done: Callable[[], bool]) -> None:
    """Call `go_on` again and again, as the daemon does."""

    def go_on() -> bool:
        threads.go_on()
        return is_done()

    wait_until(go_on, "the tasks", WAIT_MAX_S)


def test_quick_tasks_share_a_thread(threads: PollThreads) -> None:
    """In the order in which they were submitted, and none before `go_on`. So does the next round."""
    seen: list[tuple[int, int]] = []
    for first in (0, 10, 20):
        numbers = range(first, first + 10)
        futures = [threads.submit(lambda number=number: seen.append((number, get_ident()))) for number in numbers]
        assert len(seen) == first
        threads.go_on()
        for future in futures:
            future.result(WAIT_MAX_S)
        wait_until(lambda: bool(threads._asleep), "the thread's sleep", WAIT_MAX_S)
    assert [number for number, _ in seen] == list(range(30))
    assert len({thread for _, thread in seen}) == 1


def test_an_error_is_that_of_its_task(threads: PollThreads) -> None:
    """The thread goes on."""
    failing, well = threads.submit(lambda: 1 // 0), threads.submit(lambda: 7)
    threads.go_on()
    assert well.result(WAIT_MAX_S) == 7
    with pytest.raises(ZeroDivisionError):
        failing.result(WAIT_MAX_S)


def test_tasks_that_hang_delay_no_others(threads: PollThreads) -> None:
    """Up to as many as there are threads. Beyond that, the others wait for the first thread that comes back."""
    hanging = [Event() for _ in range(THREADS_MAX)]
    stuck = [threads.submit(event.wait, WAIT_MAX_S) for event in hanging[:-1]]
    well = threads.submit(lambda: 7)
    beat(threads, well.done)
    assert not any(future.done() for future in stuck)
    stuck.append(threads.submit(hanging[-1].wait, WAIT_MAX_S))
    last = threads.submit(lambda: 8)
    for _ in range(10):
        threads.go_on()
        with pytest.raises(TimeoutError):
            last.result(poll_threads.WAIT_MAX_S / 5)
    hanging[1].set()
    beat(threads, last.done)
    for event in hanging:
        event.set()
    assert all(future.result(WAIT_MAX_S) for future in stuck)


def test_slow_tasks_run_beside_each_other(threads: PollThreads) -> None:
    """The threads see it by themselves: those of a file system over the network answer slowly, and never hang."""
    futures = [threads.submit(time.sleep, poll_threads.WAIT_MAX_S / 3) for _ in range(20)]
    begun_s = time.monotonic()
    threads.go_on()
    for future in futures:
        future.result(WAIT_MAX_S)
    one_after_the_other_s = 20 * poll_threads.WAIT_MAX_S / 3
    assert time.monotonic() - begun_s < 0.75 * one_after_the_other_s
    assert len(threads._awake) + len(threads._asleep) == THREADS_MAX


def test_a_task_that_says_so_lets_others_go_on_at_once(threads: PollThreads) -> None:
    """Without another `go_on`. Said twice, it takes the turn from nobody."""
    is_over = Event()

    def work() -> bool:
        threads.hand_over()
        threads.hand_over()
        return is_over.wait(WAIT_MAX_S)

    slow, quick = threads.submit(work), [threads.submit(get_ident) for _ in range(3)]
    threads.go_on()
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
        futures = [threads.submit(is_over.wait, WAIT_MAX_S) for _ in range(THREADS_MAX)]
        beat(threads, lambda: active_count() == before + THREADS_MAX)
        is_over.set()
        assert all(future.result(WAIT_MAX_S) for future in futures)
        wait_until(lambda: active_count() == before, "the end of the threads", WAIT_MAX_S)


def test_a_system_that_has_no_thread_to_spare(threads: PollThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks run once it has one."""

    def fail(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    future = threads.submit(lambda: 7)
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", fail)
        threads.go_on()
    threads.go_on()
    assert future.result(WAIT_MAX_S) == 7


def test_nothing_begins_after_the_shutdown(threads: PollThreads) -> None:
    """What is running ends by itself."""
    is_over = Event()
    running, waiting = threads.submit(is_over.wait, WAIT_MAX_S), threads.submit(lambda: 7)
    threads.go_on()
    wait_until(lambda: len(threads._queue) == 1, "the first task", WAIT_MAX_S)
    threads.shutdown()
    late = threads.submit(lambda: 8)
    threads.go_on()
    is_over.set()
    assert running.result(WAIT_MAX_S)
    time.sleep(0.05)
    assert not waiting.done()
    assert not late.done()


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
            futures.append(threads.submit(work, number, seconds, hands_over))
            threads.go_on()
            time.sleep(seconds / 5)
        beat(threads, lambda: all(future.done() for future in futures))
        threads.shutdown()
        assert sorted(runs) == list(range(len(tasks)))
        assert len(threads._awake) + len(threads._asleep) <= THREADS_MAX
