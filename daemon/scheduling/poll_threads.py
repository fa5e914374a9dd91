"""The threads of the polls: as few as can be woken up, and as many as are needed.

Most polls take a fraction of a millisecond. To wake up a thread for each, and to keep it, costs as much again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock, Thread, local

from daemon.clock import Clock

# If a task has waited for so long, those before it are slow or hang: each waiting task gets a thread.
WAIT_MAX_S = 0.25
# A thread that was not needed for so long ends.
IDLE_MAX_S = 60.0


class _Worker:
    """A thread that runs tasks, or sleeps until `wake` is released."""

    def __init__(self) -> None:
        # Whether it has taken no task since it was woken up.
        self.is_fresh = True
        # Whether its task is expected to end at once.
        self.is_quick = True
        self.wake = Lock()
        self.wake.acquire()


class PollThreads:
    """Runs tasks one after the other in one thread while they are quick, and beside each other when they are not."""

    def __init__(self, threads_max: int, clock: Clock) -> None:
        self._threads_max = threads_max
        self._clock = clock
        # Tasks, and since when they wait.
        self._queue: deque[tuple[float, Callable[[], None]]] = deque()
        self._awake: set[_Worker] = set()
        # The last that fell asleep is woken up first: the caches of the processor may still have what it needs.
        self._asleep: list[_Worker] = []
        self._own = local()
        self._lock = Lock()

    def submit(self, tasks: Iterable[Callable[[], None]]) -> None:
        """Put tasks, which raise nothing, into the queue. To be called now and then without any: others may hang."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._queue.extend((now_s, task) for task in tasks)
            self._wake_up()

    def hand_over(self) -> None:
        """The calling task will take longer, so another thread goes on with the queue. Without effect elsewhere."""
        worker: _Worker | None = getattr(self._own, "worker", None)
        if worker is not None:
            with self._lock:
                worker.is_quick = False
                self._wake_up()

    def _wake_up(self) -> None:
        """Wake up as many threads as are needed. Under the lock."""
        if not self._queue:
            return
        if self._is_late():
            wanted = len(self._queue) - sum(worker.is_fresh for worker in self._awake)
        else:
            wanted = not any(worker.is_quick for worker in self._awake)
        # If the system has no thread to spare, the next call tries again.
        with suppress(RuntimeError):
            for _ in range(wanted):
                if self._asleep:
                    worker = self._asleep.pop()
                    worker.is_fresh = worker.is_quick = True
                    worker.wake.release()
                elif len(self._awake) < self._threads_max:
                    worker = _Worker()
                    Thread(target=self._work, args=(worker,), name="poll", daemon=True).start()
                else:
                    return
                self._awake.add(worker)

    def _is_late(self) -> bool:
        """Whether the first task of the queue, which is not empty, has waited for too long."""
        return self._clock.monotonic_s() - self._queue[0][0] > WAIT_MAX_S

    def _work(self, worker: _Worker) -> None:
        self._own.worker = worker
        while True:
            while (task := self._take_task(worker)) is not None:
                task()
            if not worker.wake.acquire(timeout=IDLE_MAX_S) and self._may_end(worker):
                return

    def _take_task(self, worker: _Worker) -> Callable[[], None] | None:
        with self._lock:
            if self._queue:
                _, task = self._queue.popleft()
                worker.is_fresh, worker.is_quick = False, True
                if self._queue and self._is_late():
                    self._wake_up()
                return task
            self._awake.remove(worker)
            self._asleep.append(worker)
            return None

    def _may_end(self, worker: _Worker) -> bool:
        with self._lock:
            if worker in self._asleep:
                self._asleep.remove(worker)
                return True
            # It has just been woken up.
            worker.wake.acquire()
            return False
