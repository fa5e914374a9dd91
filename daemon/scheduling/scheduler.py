"""The clock of the daemon: polls each table at its interval and keeps house. The one importer of APScheduler.

What a poll does and what its outcome means is in `cycle.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor as ThreadPool
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from threading import Event, Lock, Thread

import structlog
from apscheduler.events import EVENT_JOB_EXECUTED, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

from daemon import log as events
from daemon.clock import Clock
from daemon.scheduling.cycle import TableCycle
from daemon.scheduling.maintenance_job import TableUpkeep
from daemon.scheduling.slots import Slots
from state import StateStore, StateUnavailable

BEAT_INTERVAL_S = 5.0
# How soon a `dvsync pause`, `resume` or `resync` in another terminal is seen.
WISHES_LOOK_INTERVAL_S = 2.0
IDLE_LOOK_INTERVAL_S = 30.0
TABLES_LOOK_INTERVAL_S = 2.0
CLOCK_LOOK_INTERVAL_S = 1.0
# Clocks that are set right drift by less.
CLOCK_JUMP_MIN_S = 2.0
# A share of the poll interval: tables that start together do not poll together for ever.
JITTER = 0.1
# A thread for each table, so that a store that hangs holds up its own tables only. Idle threads cost some 50 kB each.
POLL_THREADS_MAX = 128
_HOUSEKEEPING = "housekeeping"
_MAINTENANCE = "maintenance"

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Scheduler:
    """Runs cycles until it is stopped, and lets tables come and go. A table never runs twice at the same time."""

    def __init__(
        self,
        *,
        store: StateStore,
        beat: Callable[[], None],
        look_for_tables: Callable[[], None],
        clock: Clock,
        tables_at_once: int,
        stop_if_idle: Callable[[], None],
    ) -> None:
        """`beat` and `look_for_tables` are called every few seconds for as long as the work goes on."""
        self._cycles: dict[str, TableCycle] = {}
        self._store = store
        self._look_for_tables = look_for_tables
        self._beat = beat
        self._clock = clock
        self._stop_if_idle = stop_if_idle
        self._slots = Slots(tables_at_once)
        self._stopping = Event()
        # By table, polls and rounds of maintenance that are at work.
        self._running: Counter[str] = Counter()
        self._all_done = Event()
        self._all_done.set()
        # Tables that are wanted again at a time of their own, in seconds from the end of their cycle.
        self._wanted: dict[str, float] = {}
        # Tables of which a person said something, which their own next poll takes up.
        self._told: set[str] = set()
        self._lock = Lock()
        self._rescheduler = ThreadPool(1, thread_name_prefix="reschedule")
        self._timer = BackgroundScheduler(
            timezone=UTC,
            executors={
                "default": ThreadPoolExecutor(POLL_THREADS_MAX),
                # Apart from the polls, and a thread for each: a heartbeat that waits behind a hung store says nothing.
                _HOUSEKEEPING: ThreadPoolExecutor(len(self._house_jobs())),
                # One table after the other: what maintenance reads and writes must not crowd out the syncs.
                _MAINTENANCE: ThreadPoolExecutor(1),
            },
            # A poll that is late is still wanted, once.
            job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": None},
        )

    def _house_jobs(self) -> dict[str, tuple[Callable[[], None], float]]:
        """Work by its id, with its interval in seconds. A table's name has no slash in it."""
        return {
            "/beat": (self._beat, BEAT_INTERVAL_S),
            "/wishes": (self._look_at_wishes, WISHES_LOOK_INTERVAL_S),
            "/tables": (self._look, TABLES_LOOK_INTERVAL_S),
            "/idle": (self._stop_if_idle, IDLE_LOOK_INTERVAL_S),
        }

    def start(self) -> None:
        """Poll every table now, and then at its interval."""
        now = datetime.now(UTC)
        for job_id, (work, interval_s) in self._house_jobs().items():
            trigger = IntervalTrigger(seconds=interval_s, timezone=UTC)
            self._timer.add_job(work, trigger, id=job_id, executor=_HOUSEKEEPING, next_run_time=now)
        self._timer.add_listener(self._come_again, EVENT_JOB_EXECUTED)
        self._timer.start()
        Thread(target=self._follow_the_clock, name="clock", daemon=True).start()

    def add(self, cycle: TableCycle, upkeep: TableUpkeep | None = None) -> None:
        """Poll the table from now on. Its name must be neither here nor busy."""
        now, interval_s = datetime.now(UTC), cycle.table.poll_interval_s
        with self._lock:
            self._cycles[cycle.name] = cycle
        self._timer.add_job(
            self._poll,
            IntervalTrigger(seconds=interval_s, jitter=JITTER * interval_s, timezone=UTC),
            args=(cycle,),
            id=cycle.name,
            next_run_time=now,
        )
        if upkeep is not None:
            interval_s = upkeep.interval_s
            self._timer.add_job(
                self._keep_up,
                IntervalTrigger(seconds=interval_s, jitter=JITTER * interval_s, timezone=UTC),
                args=(upkeep,),
                id=_upkeep_id(upkeep.name),
                executor=_MAINTENANCE,
                next_run_time=now + timedelta(seconds=upkeep.first_after_s),
            )

    def remove(self, name: str) -> None:
        """Begin nothing more of the table; what is at work ends by itself."""
        with self._lock:
            del self._cycles[name]
            self._told.discard(name)
            self._wanted.pop(name, None)
        for job_id in (name, _upkeep_id(name)):
            with suppress(JobLookupError):
                self._timer.remove_job(job_id)
        waiting = self._slots.leave(name)
        if waiting is not None:
            self._wake(waiting)

    def is_busy(self, name: str) -> bool:
        """Whether something of the table is at work, removed or not."""
        with self._lock:
            return self._running[name] > 0

    def resize(self, tables_at_once: int) -> None:
        for waiting in self._slots.resize(tables_at_once):
            self._wake(waiting)

    def stop(self, *, grace_s: float) -> bool:
        """Start no new cycle, tell the running ones to stop at their next step, and wait for them.

        False when one was still at work after `grace_s`; to end the process then is safe, as any kill is.
        """
        with self._lock:
            self._stopping.set()
        self._timer.shutdown(wait=False)
        self._rescheduler.shutdown(wait=False)
        return self._all_done.wait(grace_s)

    def look_now(self) -> None:
        """Have the tables looked for at once."""
        self._wake("/tables")

    def _look(self) -> None:
        with self._at_work("/tables") as may_work:
            if may_work:
                with self._lock:
                    self._wanted.pop("/tables", None)
                self._look_for_tables()

    def _poll(self, cycle: TableCycle) -> None:
        with self._at_work(cycle.name) as may_work:
            # APScheduler may have handed it to a thread before the table was removed.
            if not may_work or self._cycles.get(cycle.name) is not cycle:
                return
            with self._lock:
                self._wanted.pop(cycle.name, None)
                is_told = cycle.name in self._told
                self._told.discard(cycle.name)
            if is_told:
                cycle.take_up_wish()
            verdict = cycle.poll(self._slots, self._stopping, self._wake)
            if verdict.delay_s is not None:
                with self._lock:
                    self._wanted[cycle.name] = verdict.delay_s

    def _keep_up(self, upkeep: TableUpkeep) -> None:
        with self._at_work(upkeep.name) as may_work:
            # It may have waited in the queue while the table was set up anew.
            if may_work and self._cycles.get(upkeep.name) is upkeep.cycle:
                upkeep.run(self._stopping)

    @contextmanager
    def _at_work(self, name: str) -> Iterator[bool]:
        """While it lasts, `stop` waits; False once it has begun to."""
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

    def _wake(self, name: str) -> None:
        """Poll the table now, or as soon as the cycle that it is in has ended."""
        with self._lock:
            self._wanted[name] = 0.0
        self._reschedule(name, 0.0)

    def _come_again(self, event: JobExecutionEvent) -> None:
        """A cycle has ended. Only from here on does APScheduler accept the same job again (`max_instances`)."""
        with self._lock:
            delay_s = self._wanted.get(event.job_id)
            if delay_s is not None and not self._stopping.is_set():
                # For a job that ended very fast this is APScheduler's own thread, still submitting the job: it would
                # overwrite the time with the interval's. From another thread we wait until it is done with that.
                self._rescheduler.submit(self._reschedule, event.job_id, delay_s)

    def _reschedule(self, name: str, delay_s: float) -> None:
        if self._stopping.is_set():
            return
        # The timer may be shut down in between, and then knows no job.
        with suppress(JobLookupError):
            self._timer.modify_job(name, next_run_time=datetime.now(UTC) + timedelta(seconds=delay_s))

    def _follow_the_clock(self) -> None:
        """Move every job along when the wall clock jumps: APScheduler would sleep until it has caught up again."""
        offset_s = self._wall_offset_s()
        while not self._stopping.wait(CLOCK_LOOK_INTERVAL_S):
            jumped_s = self._wall_offset_s() - offset_s
            if abs(jumped_s) < CLOCK_JUMP_MIN_S:
                continue
            offset_s += jumped_s
            _log.warning(events.CLOCK_JUMPED, seconds=round(jumped_s))
            for job in self._timer.get_jobs():
                with suppress(JobLookupError):
                    job.modify(next_run_time=job.next_run_time + timedelta(seconds=jumped_s))

    def _wall_offset_s(self) -> float:
        return self._clock.now_ms() / 1000 - self._clock.monotonic_s()

    def _look_at_wishes(self) -> None:
        """See what people said of tables, in the store."""
        try:
            for read in self._store.list_tables():
                with self._lock:
                    cycle = self._cycles.get(read.name)
                # The table may have failed since it was read.
                if cycle is not None and cycle.is_told_otherwise(read) and cycle.read_wish():
                    with self._lock:
                        self._told.add(cycle.name)
                    self._wake(cycle.name)
        except StateUnavailable as error:
            _log.warning(events.STATE_UNREAD, reason=str(error))


def _upkeep_id(name: str) -> str:
    return f"{name}/maintenance"
