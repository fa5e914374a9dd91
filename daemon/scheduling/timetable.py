"""What runs when: a heap on the monotonic clock, which no jump of the wall clock delays.

`scheduler.py` adds the polls of the tables, and the work of the daemon itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import ceil
from random import uniform
from threading import Condition, Event

import structlog

from daemon.clock import Clock
from daemon.observe import log as events
from daemon.scheduling.poll_threads import PollThreads

# A share of an interval, so that tables which start together do not poll together for ever.
JITTER = 0.1
# What is due at nearly the same time runs at the same time: to wake up for each poll costs more than most polls.
TICK_MAX_S = 0.2
# The longest sleep: polls that hang are looked for between two.
SLEEP_MAX_S = 1.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(eq=False)
class _Entry:
    """`work` returns after how many seconds it wants to run again; None leaves that to the interval."""

    name: str
    interval_s: float
    work: Callable[[], float | None]
    executor: Executor | None
    due_s: float
    # It was taken out of the heap, and has not ended.
    is_out: bool = False
    # It shall run again as soon as it has ended.
    is_wanted: bool = False


class Timetable:
    """Runs work at its interval: what has no executor in the threads of the polls. Nothing runs twice at a time."""

    def __init__(self, threads: PollThreads, clock: Clock) -> None:
        self.stopping = Event()
        self._threads = threads
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        # By time; an item holds only while its entry is due then, and no other one has the entry's name.
        self._heap: list[tuple[float, int, _Entry]] = []
        self._numbers = count()
        self._wakes_at_s = 0.0
        # How many pieces of work of each name are running.
        self._running: Counter[str] = Counter()
        self._changed = Condition()

    def add(
        self, name: str, interval_s: float, work: Callable[[], float | None], executor: Executor | None = None
    ) -> None:
        """Run `work` now, and then at its interval."""
        with self._changed:
            entry = self._entries[name] = _Entry(name, interval_s, work, executor, due_s=0.0)
            self._push(entry, self._clock.monotonic_s())

    def remove(self, name: str) -> None:
        """Begin no work of this name any more. If it is running, it ends by itself."""
        with self._changed:
            del self._entries[name]

    def wake(self, name: str) -> None:
        """Run the work now, or as soon as its current run has ended."""
        with self._changed:
            entry = self._entries.get(name)
            if entry:
                entry.is_wanted = True
                if not entry.is_out:
                    self._push(entry, self._clock.monotonic_s())

    def run(self) -> None:
        """Run what is due, until `stop`."""
        while not self.stopping.is_set():
            with self._changed:
                self._changed.wait(self._wakes_at_s - self._clock.monotonic_s())
                due = self._take_due()
            for entry in due:
                if entry.executor:
                    entry.executor.submit(self._run, entry)
            # Also if there is none: those that were submitted earlier may wait behind some that hang.
            self._threads.submit([partial(self._run, entry) for entry in due if not entry.executor])

    @contextmanager
    def doing(self, name: str) -> Iterator[bool]:
        """`stop` waits for the end of the block. False once `stop` was called: the block must do nothing then."""
        with self._changed:
            may_work = self._begin(name)
        try:
            yield may_work
        finally:
            if may_work:
                with self._changed:
                    self._end(name)

    def _begin(self, name: str) -> bool:
        """Under the lock, as `_end`, which follows if this is True."""
        if self.stopping.is_set():
            return False
        self._running[name] += 1
        return True

    def _end(self, name: str) -> None:
        self._running[name] -= 1
        if self.stopping.is_set():
            self._changed.notify_all()

    def is_running(self, name: str) -> bool:
        """Whether work of this name is running, also after it was removed."""
        with self._changed:
            return self._running[name] > 0

    def stop(self, *, grace_s: float) -> bool:
        """Begin nothing more, and wait for what is running. False if something still was after `grace_s`."""
        with self._changed:
            self.stopping.set()
            self._wakes_at_s = 0.0
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._running.total(), grace_s)

    def _take_due(self) -> list[_Entry]:
        due, now_s = [], self._clock.monotonic_s()
        while self._heap and self._heap[0][0] <= now_s:
            due_s, _, entry = heappop(self._heap)
            if self._entries.get(entry.name) is entry and entry.due_s == due_s and not entry.is_out:
                entry.is_out = True
                due.append(entry)
        self._wakes_at_s = min([now_s + SLEEP_MAX_S, *(due_s for due_s, _, _ in self._heap[:1])])
        return due

    def _push(self, entry: _Entry, due_s: float) -> None:
        entry.due_s = due_s
        heappush(self._heap, (due_s, next(self._numbers), entry))
        if due_s < self._wakes_at_s:
            self._wakes_at_s = due_s
            self._changed.notify_all()

    def _run(self, entry: _Entry) -> None:
        with self._changed:
            # It has waited for a thread, and may have been removed meanwhile.
            if self._entries.get(entry.name) is not entry or not self._begin(entry.name):
                return
            entry.is_wanted = False
        delay_s = None
        try:
            delay_s = entry.work()
        except BaseException as error:
            # A panic of a library in Rust is no Exception.
            _log.error(events.JOB_FAILED, job=entry.name, reason=str(error), exc_info=error)
        with self._changed:
            self._end(entry.name)
            entry.is_out = False
            due_s = now_s = self._clock.monotonic_s()
            if not entry.is_wanted and delay_s is not None:
                due_s = now_s + delay_s
            elif not entry.is_wanted:
                interval_s = uniform(1 - JITTER, 1 + JITTER) * entry.interval_s
                tick_s = min(TICK_MAX_S, 2 * JITTER * entry.interval_s)
                # What was missed while the work ran is not made up for.
                intervals = max(1, ceil((now_s - entry.due_s) / interval_s))
                due_s = round((entry.due_s + intervals * interval_s) / tick_s) * tick_s
            self._push(entry, due_s)
