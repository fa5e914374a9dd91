"""The clock of the daemon: polls each table at its interval, and gives out the slots in which tables sync.

What a poll does and what its outcome means is in `cycle.py`. Only this module imports APScheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor as ThreadPool
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from random import uniform
from threading import Event, Lock, Thread

import structlog
from apscheduler.events import EVENT_JOB_EXECUTED, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_SUBMITTED, JobExecutionEvent
from apscheduler.executors.pool import BasePoolExecutor, ThreadPoolExecutor
from apscheduler.job import Job
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from daemon.clock import Clock
from daemon.observe import log as events
from daemon.scheduling.cycle import CycleResult, TableCycle
from daemon.scheduling.maintenance_job import MaintenanceJob
from daemon.scheduling.poll_threads import PollThreads
from daemon.scheduling.slots import Slots
from daemon.scheduling.verify_job import VerifyJob
from daemon.store.durable import is_local

CLOCK_CHECK_INTERVAL_S = 1.0
# A smaller difference between the clocks is drift.
CLOCK_JUMP_MIN_S = 2.0
# A share of an interval, so that tables which start together do not poll together for ever.
JITTER = 0.1
# Jobs that are due at nearly the same time run at the same time: to wake up for each costs more than most polls.
TICK_MAX_S = 0.2
# A store that hangs delays only its own tables, up to so many.
POLL_THREADS_MAX = 128
# Bounds of the first delay of maintenance and verification; shorter intervals have less. The syncs after a start come
# first, and a daemon that is restarted nightly still does weekly maintenance.
FIRST_BESIDE_MIN_S = 60.0
FIRST_BESIDE_MAX_S = 600.0
_MAINTENANCE = "maintenance"
_VERIFICATION = "verification"

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _Interval(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types.
    """After an interval, with jitter. APScheduler's own trigger takes more time, and wakes up for each job.

    APScheduler knows the next time of a job by the wall clock. `due_s` is that time on the monotonic clock.
    """

    def __init__(self, interval_s: float, clock: Clock, *, first_s: float = 0.0) -> None:
        self._interval_s = interval_s
        self._tick_s = min(TICK_MAX_S, 2 * JITTER * interval_s)
        self._clock = clock
        self.due_s = clock.monotonic_s() + first_s

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        now_s = now.timestamp()
        next_s = now_s + uniform(1 - JITTER, 1 + JITTER) * self._interval_s
        next_s = round(next_s / self._tick_s) * self._tick_s
        self.due_s = self._clock.monotonic_s() + next_s - now_s
        return datetime.fromtimestamp(next_s, UTC)


class _PollExecutor(BasePoolExecutor):  # type: ignore[misc]  # APScheduler has no types.
    def __init__(self, threads: PollThreads) -> None:
        super().__init__(threads)


class Scheduler:
    """Runs cycles until it is stopped, and lets tables come and go. A table never runs twice at the same time."""

    def __init__(self, clock: Clock, *, tables_at_once: int) -> None:
        self._cycles: dict[str, TableCycle] = {}
        # Set when the table leaves or the daemon stops: for the jobs beside its polls.
        self._leaving: dict[str, Event] = {}
        self._clock = clock
        self._slots = Slots(tables_at_once)
        self._stopping = Event()
        # How many jobs of each id are running.
        self._running: Counter[str] = Counter()
        self._all_done = Event()
        self._all_done.set()
        # Jobs that shall run again earlier than at their interval, in seconds from their end.
        self._wanted: dict[str, float] = {}
        self._lock = Lock()
        self._rescheduler = ThreadPool(1, thread_name_prefix="reschedule")
        self._housekeeping: dict[str, tuple[float, Callable[[], None]]] = {}
        self._threads = PollThreads(POLL_THREADS_MAX, clock)
        self._timer = BackgroundScheduler(
            timezone=UTC,
            executors={
                "default": _PollExecutor(self._threads),
                # One table after the other: what these read and write must not crowd out the syncs.
                _MAINTENANCE: ThreadPoolExecutor(1),
                _VERIFICATION: ThreadPoolExecutor(1),
            },
            # A poll that is late is still wanted, once.
            job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": None},
        )

    def every(self, job_id: str, seconds: float, work: Callable[[], None]) -> None:
        """Run `work` from `start` on, at once and then at this interval, in a thread of its own.

        To be called before `start`. `job_id` begins with a slash, which no table's name contains.
        """
        self._housekeeping[job_id] = (seconds, work)

    def start(self) -> None:
        """Poll every table now, and then at its interval."""
        for job_id, (interval_s, work) in self._housekeeping.items():
            # Not a thread of the polls: a heartbeat must not wait behind a store that hangs.
            self._timer.add_executor(ThreadPoolExecutor(1), job_id)
            self._timer.add_job(
                self._run,
                _Interval(interval_s, self._clock),
                args=(job_id, work),
                id=job_id,
                executor=job_id,
                next_run_time=datetime.now(UTC),
            )
        self._timer.add_listener(self._come_again, EVENT_JOB_EXECUTED)
        # It comes once all jobs that are due together are submitted.
        self._timer.add_listener(lambda _: self._threads.go_on(), EVENT_JOB_SUBMITTED | EVENT_JOB_MAX_INSTANCES)
        self._timer.start()
        Thread(target=self._follow_the_clock, name="clock", daemon=True).start()

    def add(self, cycle: TableCycle, maintenance: MaintenanceJob, verification: VerifyJob) -> None:
        """Poll, maintain and verify the table from now on. No table of its name may be scheduled or busy."""
        now, poll_interval_s = datetime.now(UTC), cycle.table.poll_interval_s
        with self._lock:
            self._cycles[cycle.name] = cycle
            self._leaving[cycle.name] = Event()
        self._timer.add_job(
            self._poll, _Interval(poll_interval_s, self._clock), args=(cycle,), id=cycle.name, next_run_time=now
        )
        for executor, job in ((_MAINTENANCE, maintenance), (_VERIFICATION, verification)):
            # Tables that start together must not be maintained together: that would crowd out the syncs.
            first_s = uniform(min(FIRST_BESIDE_MIN_S, job.interval_s / 10), min(FIRST_BESIDE_MAX_S, job.interval_s))
            self._timer.add_job(
                self._run_beside,
                _Interval(job.interval_s, self._clock, first_s=first_s),
                args=(job, _job_id(job.name, executor)),
                id=_job_id(job.name, executor),
                executor=executor,
                next_run_time=now + timedelta(seconds=first_s),
            )

    def remove(self, name: str) -> None:
        """Begin nothing more of the table. Its running jobs end by themselves; others are asked to stop."""
        job_ids = (name, _job_id(name, _MAINTENANCE), _job_id(name, _VERIFICATION))
        with self._lock:
            del self._cycles[name]
            self._leaving.pop(name).set()
            for job_id in job_ids:
                self._wanted.pop(job_id, None)
        for job_id in job_ids:
            with suppress(JobLookupError):
                self._timer.remove_job(job_id)
        self._call(self._slots.leave(name))

    def is_busy(self, name: str) -> bool:
        """Whether a job of the table is running that may change it, also after the table was removed.

        A verification only reads, and Spark may need hours for one.
        """
        with self._lock:
            return self._running[name] > 0 or self._running[_job_id(name, _MAINTENANCE)] > 0

    def resize(self, tables_at_once: int) -> None:
        for waiting in self._slots.resize(tables_at_once):
            self.wake(waiting)

    def stop(self, *, grace_s: float) -> bool:
        """Start no new job, tell the running ones to stop at their next step, and wait for them.

        False when one was still running after `grace_s`; to end the process then is safe, as any kill is.
        """
        with self._lock:
            self._stopping.set()
            for leaving in self._leaving.values():
                leaving.set()
        self._timer.shutdown(wait=False)
        self._rescheduler.shutdown(wait=False)
        return self._all_done.wait(grace_s)

    def wake(self, job_id: str) -> None:
        """Run the job now, or as soon as its current run has ended. A table's job has the table's name."""
        with self._lock:
            self._wanted[job_id] = 0.0
        self._reschedule(job_id, 0.0)

    def _run(self, job_id: str, work: Callable[[], None]) -> None:
        with self._at_work(job_id) as may_work:
            if may_work:
                with self._lock:
                    self._wanted.pop(job_id, None)
                work()

    def _poll(self, cycle: TableCycle) -> None:
        with self._at_work(cycle.name) as may_work:
            current = self._cycles.get(cycle.name)
            if not may_work or current is not cycle:
                # It waited for a thread while the table was removed, or set up again: the new job could not begin.
                if current:
                    self.wake(cycle.name)
                return
            with self._lock:
                self._wanted.pop(cycle.name, None)
            result = self._take_turn(cycle)
            if result.delay_s is not None:
                with self._lock:
                    self._wanted[cycle.name] = result.delay_s
            if cycle.take_due_maintenance():
                self.wake(_job_id(cycle.name, _MAINTENANCE))

    def _take_turn(self, cycle: TableCycle) -> CycleResult:
        """Poll the table, and sync it if there is news and a free slot. Without a slot the table waits to be called."""
        if not is_local(cycle.table.source):
            self._threads.hand_over()
        result = cycle.poll()
        if result is not None:
            self._call(self._slots.leave(cycle.name))
            return result
        if not self._slots.try_take(cycle.name):
            cycle.wait_for_slot()
            return CycleResult()
        try:
            self._threads.hand_over()
            return cycle.sync(self._stopping, others_wait=self._slots.are_wanted)
        finally:
            self._call(self._slots.give_back())

    def _call(self, waiting: str | None) -> None:
        """Wake the table that may have a slot now, if there is one."""
        if waiting is not None:
            self.wake(waiting)

    def _run_beside(self, job: MaintenanceJob | VerifyJob, job_id: str) -> None:
        """Run a job of a table beside its polls."""
        with self._at_work(job_id) as may_work:
            with self._lock:
                # The table may have been set up again while this job waited in the queue.
                is_current = self._cycles.get(job.name) is job.cycle
                leaving = self._leaving.get(job.name)
                if is_current:
                    self._wanted.pop(job_id, None)
            if may_work and is_current and leaving:
                job.run(leaving)

    @contextmanager
    def _at_work(self, name: str) -> Iterator[bool]:
        """`stop` waits for the end of the block. False once `stop` was called: the block must do nothing then."""
        with self._lock:
            may_work = not self._stopping.is_set()
            if may_work:
                self._running[name] += 1
                self._all_done.clear()
        try:
            yield may_work
        finally:
            with self._lock:
                if may_work:
                    self._running[name] -= 1
                if not self._running.total():
                    self._all_done.set()

    def _come_again(self, event: JobExecutionEvent) -> None:
        """A job has ended. Only from here on does APScheduler accept the same job again (`max_instances`)."""
        with self._lock:
            delay_s = self._wanted.get(event.job_id)
            if delay_s is not None and not self._stopping.is_set():
                # If the job ended very fast, this is APScheduler's own thread, which is still submitting the job and
                # would overwrite the time with the interval's. The other thread waits until that is done.
                self._rescheduler.submit(self._reschedule, event.job_id, delay_s)

    def _reschedule(self, job_id: str, delay_s: float) -> None:
        # A timer that was shut down in the meantime knows no job.
        job = None if self._stopping.is_set() else self._timer.get_job(job_id)
        if job is not None:
            job.trigger.due_s = self._clock.monotonic_s() + delay_s
            self._run_when_due(job)

    def _run_when_due(self, job: Job) -> None:
        left_s = max(0.0, job.trigger.due_s - self._clock.monotonic_s())
        with suppress(JobLookupError):
            job.modify(next_run_time=datetime.now(UTC) + timedelta(seconds=left_s))

    def _follow_the_clock(self) -> None:
        """Give every job a new time when the wall clock jumps: APScheduler would wait for the old time."""
        offset_s = self._wall_offset_s()
        while not self._stopping.wait(CLOCK_CHECK_INTERVAL_S):
            self._threads.go_on()
            jumped_s = self._wall_offset_s() - offset_s
            if abs(jumped_s) < CLOCK_JUMP_MIN_S:
                continue
            offset_s += jumped_s
            _log.warning(events.CLOCK_JUMPED, seconds=round(jumped_s))
            # Some may have run since the jump, and have a time of the new clock already.
            for job in self._timer.get_jobs():
                self._run_when_due(job)

    def _wall_offset_s(self) -> float:
        return self._clock.now_ms() / 1000 - self._clock.monotonic_s()


def _job_id(name: str, executor: str) -> str:
    return f"{name}/{executor}"
