"""The threads of the polls: as few as can be woken up, and as many as are needed.

Most polls take a fraction of a millisecond. To wake up a thread for each, and to keep it, costs as much again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from threading import Lock, Thread, get_ident
from typing import Any

from daemon.clock import Clock

# A task that takes longer, such as one whose disk hangs, no longer keeps the others waiting.
SLOW_S = 0.05
# A thread that was not needed for so long ends.
IDLE_MAX_S = 60.0


class _Worker:
    """A thread. It sleeps until `wake` is released."""

    def __init__(self) -> None:
        self.thread_id: int | None = None
        self.task_since_s: float | None = None
        self.wake = Lock()
        self.wake.acquire()


class PollThreads(Executor):
    """Runs tasks one after the other in one thread. If a task takes longer, another thread goes on with the others."""

    def __init__(self, threads_max: int, clock: Clock) -> None:
        self._threads_max = threads_max
        self._clock = clock
        self._queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._current: _Worker | None = None
        self._threads = 0
        # The last that fell asleep is woken up first: the caches of the processor may still have what it needs.
        self._asleep: list[_Worker] = []
        self._is_shut_down = False
        self._lock = Lock()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Put a task into the queue. `go_on` begins it."""
        future: Future[Any] = Future()
        with self._lock:
            if not self._is_shut_down:
                self._queue.append((future, partial(function, *args, **kwargs)))
        return future

    def go_on(self) -> None:
        """Begin what is in the queue, in another thread if the current task takes long. To be called now and then."""
        with self._lock:
            since_s = self._current.task_since_s if self._current else None
            if since_s is not None and self._clock.monotonic_s() - since_s > SLOW_S:
                self._current = None
            self._wake_next()

    def hand_over(self) -> None:
        """The calling task will take longer, so another thread goes on with the queue."""
        with self._lock:
            if self._current and self._current.thread_id == get_ident():
                self._current = None
                self._wake_next()

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:
        """Begin no task any more, and wait for none."""
        with self._lock:
            self._is_shut_down = True
            self._queue.clear()

    def _wake_next(self) -> None:
        if not self._queue or self._current:
            return
        if self._asleep:
            self._current = self._asleep.pop()
            self._current.wake.release()
        elif self._threads < self._threads_max:
            worker = _Worker()
            # Without a thread of the system's, the queue waits for the next call or the first thread that is free.
            with suppress(RuntimeError):
                Thread(target=self._work, args=(worker,), name="poll", daemon=True).start()
                self._threads += 1
                self._current = worker

    def _work(self, worker: _Worker) -> None:
        worker.thread_id = get_ident()
        while True:
            while (next_task := self._take_task(worker)) is not None:
                future, task = next_task
                try:
                    result = task()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            if not worker.wake.acquire(timeout=IDLE_MAX_S) and self._may_end(worker):
                return

    def _take_task(self, worker: _Worker) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Take a task, if there is one and no other thread is the current one. Without a task, `worker` may sleep."""
        with self._lock:
            if self._queue and self._current in (worker, None):
                self._current, worker.task_since_s = worker, self._clock.monotonic_s()
                return self._queue.popleft()
            if self._current is worker:
                self._current = None
            worker.task_since_s = None
            self._asleep.append(worker)
            return None

    def _may_end(self, worker: _Worker) -> bool:
        with self._lock:
            if worker not in self._asleep:
                # It has just been made the current one.
                worker.wake.acquire()
                return False
            self._asleep.remove(worker)
            self._threads -= 1
            return True
