"""The daemon's schedule: polls each table at its interval, and gives out the slots in which tables sync.

What a poll does and what its outcome means is in `cycle.py`. APScheduler, which only this module imports, runs what may
take long beside the polls, and the timetable of the polls as one job.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor as ThreadPool
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from random import uniform
from threading import Event

import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

from daemon.clock import Clock
from daemon.observe import log as events
from daemon.scheduling.cycle import CycleResult, TableCycle
from daemon.scheduling.jobs import MaintenanceJob, VerifyJob
from daemon.scheduling.poll_threads import PollThreads
from daemon.scheduling.slots import Slots
from daemon.scheduling.timetable import JITTER, Timetable

CLOCK_CHECK_INTERVAL_S = 1.0
# A smaller difference between the clocks is drift.
CLOCK_JUMP_MIN_S = 2.0
# A poll that took less is expected to do so again, and others wait for it: to wake up a thread costs as much.
QUICK_S = 0.003
# A store that hangs delays only its own tables, up to so many.
POLL_THREADS_MAX = 128
# Bounds of the first delay of maintenance and verification; shorter intervals have less. The syncs after a start come
# first, and a daemon that is restarted nightly still does weekly maintenance.
FIRST_BESIDE_MIN_S = 60.0
FIRST_BESIDE_MAX_S = 600.0
_TIMETABLE = "timetable"
_MAINTENANCE = "maintenance"
_VERIFICATION = "verification"

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Scheduler:
    """Runs cycles until it is stopped, and lets tables come and go. A table never runs twice at the same time."""

    def __init__(self, clock: Clock, *, tables_at_once: int) -> None:
        self._clock = clock
        self._clocks_differ_s = self._wall_minus_monotonic_s()
        self._slots = Slots(tables_at_once)
        # By table; set when it leaves or the daemon stops, for the jobs beside its polls.
        self._leaving: dict[str, Event] = {}
        self._threads = PollThreads(POLL_THREADS_MAX, clock)
        self._timetable = Timetable(self._threads, clock)
        self._timer = BackgroundScheduler(
            timezone=UTC,
            # One table after the other: what these read and write must not crowd out the syncs.
            executors={name: ThreadPoolExecutor(1) for name in (_TIMETABLE, _MAINTENANCE, _VERIFICATION)},
            # A job that is late is still wanted, once.
            job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": None},
        )
        self._timetable.add("/clock", CLOCK_CHECK_INTERVAL_S, self._check_clock)

    def every(self, job_id: str, seconds: float, work: Callable[[], float | None]) -> None:
        """Run `work` from `start` on, at once and then at this interval, or after the time that it returns.

        It has a thread of its own: a heartbeat must not wait behind a store that hangs. `job_id` begins with a slash,
        which no table's name contains.
        """
        self._timetable.add(job_id, seconds, work, ThreadPool(1, job_id))

    def start(self) -> None:
        """Poll every table now, and then at its interval."""
        self._timer.add_job(self._timetable.run, executor=_TIMETABLE)
        self._timer.start()

    def add(self, cycle: TableCycle, maintenance: MaintenanceJob, verification: VerifyJob) -> None:
        """Poll, maintain and verify the table from now on. No table of its name may be scheduled or busy."""
        self._leaving[cycle.name] = leaving = Event()
        self._timetable.add(cycle.name, cycle.table.poll_interval_s, partial(self._poll, cycle))
        for kind, job in ((_MAINTENANCE, maintenance), (_VERIFICATION, verification)):
            # Tables that start together must not be maintained together: that would crowd out the syncs.
            first_s = uniform(min(FIRST_BESIDE_MIN_S, job.interval_s / 10), min(FIRST_BESIDE_MAX_S, job.interval_s))
            self._timer.add_job(
                self._run_beside,
                "interval",
                (job, kind, leaving),
                seconds=job.interval_s,
                jitter=JITTER * job.interval_s,
                id=_job_id(cycle.name, kind),
                executor=kind,
                next_run_time=datetime.now(UTC) + timedelta(seconds=first_s),
            )

    def remove(self, name: str) -> None:
        """Begin nothing more of the table. Its running jobs end by themselves; others are asked to stop."""
        self._leaving.pop(name).set()
        self._timetable.remove(name)
        for kind in (_MAINTENANCE, _VERIFICATION):
            # A timer that was shut down knows no job.
            with suppress(JobLookupError):
                self._timer.remove_job(_job_id(name, kind))
        self._call(self._slots.leave(name))

    def is_busy(self, name: str) -> bool:
        """Whether a job of the table is running that may change it, also after the table was removed.

        A verification only reads, and Spark may need hours for one.
        """
        return any(map(self._timetable.is_running, (name, _job_id(name, _MAINTENANCE))))

    def resize(self, tables_at_once: int) -> None:
        for waiting in self._slots.resize(tables_at_once):
            self.wake(waiting)

    def stop(self, *, grace_s: float) -> bool:
        """Start no new job, tell the running ones to stop at their next step, and wait for them.

        False when one was still running after `grace_s`; to end the process then is safe, as any kill is.
        """
        self._timetable.stopping.set()
        for leaving in list(self._leaving.values()):
            leaving.set()
        self._timer.shutdown(wait=False)
        return self._timetable.stop(grace_s=grace_s)

    def wake(self, job_id: str) -> None:
        """Run the poll of a table, or the work of `every`, now, or as soon as its current run has ended."""
        self._timetable.wake(job_id)

    def _poll(self, cycle: TableCycle) -> float | None:
        result = self._take_turn(cycle)
        if cycle.needs_maintenance:
            # If a round is running now, the next poll asks again.
            with suppress(JobLookupError):
                self._timer.modify_job(_job_id(cycle.name, _MAINTENANCE), next_run_time=datetime.now(UTC))
        return result.delay_s

    def _take_turn(self, cycle: TableCycle) -> CycleResult:
        """Poll the table, and sync it if there is news and a free slot. Without a slot the table waits to be called."""
        if not cycle.is_quick:
            self._threads.hand_over()
        began_s = self._clock.monotonic_s()
        result = cycle.poll()
        cycle.is_quick = self._clock.monotonic_s() - began_s < QUICK_S
        if result is not None:
            self._call(self._slots.leave(cycle.name))
            return result
        if not self._slots.try_take(cycle.name):
            cycle.wait_for_slot()
            return CycleResult()
        try:
            self._threads.hand_over()
            return cycle.sync(self._timetable.stopping, others_wait=self._slots.are_wanted)
        finally:
            self._call(self._slots.give_back())

    def _call(self, waiting: str | None) -> None:
        """Wake the table that may have a slot now, if there is one."""
        if waiting is not None:
            self.wake(waiting)

    def _run_beside(self, job: MaintenanceJob | VerifyJob, kind: str, leaving: Event) -> None:
        with self._timetable.doing(_job_id(job.name, kind)) as may_work:
            # The table may have left while this job waited in the queue.
            if may_work and not leaving.is_set():
                job.run(leaving)

    def _check_clock(self) -> None:
        """Give APScheduler's jobs new times when the wall clock jumps: it would wait for the old ones."""
        jumped_s = self._wall_minus_monotonic_s() - self._clocks_differ_s
        if abs(jumped_s) < CLOCK_JUMP_MIN_S:
            return
        self._clocks_differ_s += jumped_s
        _log.warning(events.CLOCK_JUMPED, seconds=round(jumped_s))
        for job in self._timer.get_jobs():
            # One that has run since the jump has a time of the new clock already.
            latest = datetime.now(UTC) + job.trigger.interval
            with suppress(JobLookupError):
                job.modify(next_run_time=min(job.next_run_time + timedelta(seconds=jumped_s), latest))

    def _wall_minus_monotonic_s(self) -> float:
        return self._clock.now_ms() / 1000 - self._clock.monotonic_s()


def _job_id(name: str, kind: str) -> str:
    return f"{name}/{kind}"
