"""One table's cycle: poll for news, sync, and decide what the outcome means for the table. Knows no timer.

`scheduler.py` runs it on a clock and `dvsync sync` runs it once. An error never leaves this module: it becomes the
table's error in the store, and through `observer.py` on the board.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from threading import Event

import structlog
from msgspec.structs import replace

from daemon.clock import Clock
from daemon.errors import ProofFailed, SyncError, TargetHeld
from daemon.observe import log as events
from daemon.observe.tracing import Span, Tracer
from daemon.scheduling.failures import Failures, logged_if_away
from daemon.scheduling.observer import Observer
from daemon.status.table_status import pause_status
from daemon.sync.follower import Follower
from daemon.sync.outcomes import SyncResult
from state import Pause, ProofRecord, TableError, TableRecord
from state.sql.tables import TableStore

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True)
class CycleResult:
    """The result of one cycle. The next one begins after `delay_s`; None leaves that to the table's poll interval."""

    delay_s: float | None = None
    result: SyncResult | None = None
    error: TableError | None = None
    pause: Pause | None = None


@dataclass(frozen=True)
class _Wait:
    """A table that failed, and that a newer Delta version may mend. Times are on the monotonic clock.

    `retry_at_s` is None for a parked table. Of the versions after `tried_version`, none has been tried yet; None if
    no version is known. They are tried from `newer_at_s` on. `has_newer` says that one of them waits for a slot.
    """

    retry_at_s: float | None
    tried_version: int | None
    newer_at_s: float
    has_newer: bool = False


def is_held(record: TableRecord) -> bool:
    """Whether the table is parked or paused: a command of a person starts it again, or the end of the pause."""
    return record.pause is not None or (record.error is not None and record.error.parked)


def _tried_again(record: TableRecord) -> TableRecord:
    """A parked table is tried again, and its error stays visible until that try has ended.

    Differences are not tried again: the syncs do not meet them.
    """
    if record.error is None or not record.error.parked or record.error.kind == ProofFailed.__name__:
        return record
    return replace(record, error=replace(record.error, parked=False))


class TableCycle:
    """One table: its follower, and what is remembered between cycles. Used by one thread at a time."""

    def __init__(
        self,
        follower: Follower,
        observer: Observer,
        *,
        store: TableStore,
        clock: Clock,
        random: Random,
        tracer: Tracer | None = None,
    ) -> None:
        """Raises StateUnavailable."""
        self.table = table = observer.table
        self.name = table.name
        self.observer = observer
        self._follower = follower
        self._store = store
        self._clock = clock
        self._random = random
        self._tracer = tracer or Tracer(clock)
        record = store.open_table(table.name, table.source, table.target)
        observer.load_past(record)
        self._failures = Failures(
            table.name, poll_interval_s=table.poll_interval_s, last=record.error, clock=clock, random=random
        )
        self._record = _tried_again(record)
        self._is_unrecorded = False
        self._wait: _Wait | None = None
        # Whether its last poll ended at once. The scheduler sets it.
        self.is_quick = True
        # Since the last round of maintenance began.
        self.snapshots_unmaintained = 0
        # Handed over from another thread: the row in the store has changed; an error beside the syncs.
        self._is_changed = False
        self._outer_error: SyncError | None = None
        observer.show(self._record)
        self._end_pause()

    def is_overruled_by(self, record: TableRecord) -> bool:
        """Whether a person has changed the table's row in the store and the cycle does not know it yet."""
        mine = self._record
        if (record.source, record.target) != (mine.source, mine.target):
            return False  # Another table of the same name: the configuration was changed and not reloaded.
        cleared = (is_held(mine) and not is_held(record)) or (mine.error is not None and record.error is None)
        # A person cannot have cleared an error that was never stored.
        freed = cleared and not self._is_unrecorded
        is_paused_again = record.pause is not None and record.pause != mine.pause
        return freed or is_paused_again or (record.resync_wanted and not mine.resync_wanted)

    @property
    def pause(self) -> Pause | None:
        """The table's pause, as far as the cycle knows it."""
        return self._record.pause

    @property
    def is_followed(self) -> bool:
        """Whether the table has been synced before, and neither a person nor another dvsync holds it up."""
        error = self._record.error
        is_elsewhere = error is not None and error.kind == TargetHeld.__name__
        return self._record.synced_version is not None and not is_held(self._record) and not is_elsewhere

    @property
    def needs_maintenance(self) -> bool:
        """Whether a round of maintenance is due before its time.

        Each commit writes the metadata of all snapshots, and keeps it in memory, until a round expires the older ones.
        """
        return self.snapshots_unmaintained >= self.table.maintenance.snapshots_max

    def notice(self, record: TableRecord) -> bool:
        """Let the next poll apply what a person has changed in the table's row. Returns whether it must come at once.

        `record` may be out of date: the table may have failed since. From any thread. Raises StateUnavailable.
        """
        is_overruled = self.is_overruled_by(record) and self.is_overruled_by(self._read())
        if is_overruled or record.proof != self._record.proof:
            self._is_changed = True
        return is_overruled

    def _read(self) -> TableRecord:
        return self._store.open_table(self.name, self.table.source, self.table.target)

    def show_proof(self, proof: ProofRecord) -> None:
        """Show a verification before the next poll, which may be a day away. From any thread."""
        self.observer.show(replace(self._record, proof=proof))
        self._is_changed = True

    def doubt(self) -> None:
        """Let the next poll check both tables, even if Delta has no new version. From any thread."""
        self._follower.doubt()

    def fail(self, error: SyncError) -> None:
        """Something beside the syncs found the table wrong: the next poll ends with this error. From any thread."""
        self._outer_error = error

    def take_up(self, record: TableRecord) -> None:
        """Apply what a person changed in `record`, the table's row as it is in the store now."""
        self._outer_error = self._wait = None
        was_stopped, self._record = is_held(self._record) or self._record.error is not None, record
        if was_stopped and not is_held(record):
            self.observer.restart_silence()
        if record.pause:
            pause = pause_status(record.pause)
            _log.info(events.TABLE_PAUSED, table=self.name, by=pause.by, until=pause.until, reason=pause.reason)
        elif was_stopped and not is_held(record):
            if record.error is None:
                self._failures.forget()
            # What was done to the table in the meantime is seen now, not when its log is listed next.
            self._follower.doubt()
            _log.info(events.TABLE_RESUMED, table=self.name)
        if record.resync_wanted:
            self._follower.doubt()
            _log.info(events.RESYNC_WANTED, table=self.name)
        self.observer.show(self._record)

    def _end_pause(self) -> None:
        """Let the table go on if its pause is over."""
        if self._record.pause is None:
            return
        now_ms = self._clock.now_ms()
        if self._record.pause != self._record.pause_at(now_ms):
            with logged_if_away(events.STATE_UNRECORDED, table=self.name):
                self._store.end_pause(self._record.id, at_ms=now_ms)
                self.take_up(_tried_again(self._read()))

    def poll(self) -> CycleResult | None:
        """Ask for news: the result when no sync is needed, None when there is something to sync.

        Without news this is one existence check.
        """
        if self._is_changed:
            # A person's change, if there still is one: a sync may have ended since it was seen.
            self._is_changed = False
            with logged_if_away(events.STATE_UNREAD, table=self.name):
                record = self._read()
                if self.is_overruled_by(record):
                    self.take_up(record)
                elif record.proof != self._record.proof:
                    self._record = replace(self._record, proof=record.proof)
                    self.observer.show(self._record)
        self._end_pause()
        # Also if the store, where who found it has recorded it, was read since: it is not logged and sent yet.
        if self._outer_error and not self.pause:
            outer_error, self._outer_error = self._outer_error, None
            return self._failed(outer_error, self._clock.now_ms())
        if self.turn_to_newer_version():
            return None
        until_retry_s = self._until_retry_s()
        if is_held(self._record) or until_retry_s > 0:
            if self._is_unrecorded and self._record.error is not None:
                self._record_failure(self._record.error)
            self.observer.show_lag(self._record)
            return CycleResult(delay_s=until_retry_s if 0 < until_retry_s < self.table.poll_interval_s else None)
        try:
            has_news = self._follower.has_news()
        except Exception as error:
            return self._failed(error, self._clock.now_ms())
        if has_news:
            return None
        # The usual case, which must cost next to nothing.
        self._recover()
        self.observer.show_in_step(self._record, more=False)
        return CycleResult()

    def turn_to_newer_version(self) -> bool:
        """Return whether a failed table has a newer Delta version; if so, the next sync compares its whole state."""
        wait = self._wait
        if wait is None or self.pause or self._clock.monotonic_s() < wait.newer_at_s:
            return False
        if wait.has_newer:
            return True
        try:
            newest = self._follower.find_newest(wait.tried_version)
        except Exception as error:
            _log.debug(events.SOURCE_UNSEEN, table=self.name, reason=str(error))
            return False
        if newest is None or wait.tried_version is None or newest <= wait.tried_version:
            self._wait = dataclasses.replace(wait, tried_version=newest)
            return False
        self._wait = dataclasses.replace(wait, tried_version=newest, has_newer=True)
        _log.info(events.TABLE_TRIED, table=self.name, version=newest)
        self._follower.compare(f"version {newest} may no longer have what stopped the table")
        return True

    def _until_retry_s(self) -> float:
        pause = self._record.pause
        if pause and pause.until_ms is not None:
            return (pause.until_ms - self._clock.now_ms()) / 1000
        retry_at_s = self._wait.retry_at_s if self._wait else None
        return 0.0 if retry_at_s is None else retry_at_s - self._clock.monotonic_s()

    def wait_for_slot(self) -> None:
        """There is news, but too many other tables sync: show how far behind this one is."""
        self.observer.show_lag(self._record)

    @contextmanager
    def work(self, name: str) -> Iterator[Span]:
        """Do a piece of work for the table: its log lines and its trace have a common id. From any thread."""
        cycle_id = f"{self._random.getrandbits(32):08x}"
        with events.bind_cycle(self.name, cycle_id), self._tracer.work(name, self.table, cycle_id) as span:
            yield span

    def sync(self, stop: Event, *, full: bool = False, others_wait: Callable[[], bool] = lambda: False) -> CycleResult:
        """One cycle of the follower, news or not."""
        with self.work("sync") as span:
            started_ms, started_s = self._clock.now_ms(), self._clock.monotonic_s()
            self.observer.show_sync_begun(self._record)
            try:
                result = self._follower.sync(stop=stop, full=full, others_wait=others_wait)
            except Exception as error:
                failed = self._failed(error, started_ms)
                if failed.error:
                    span.fail(failed.error.kind, failed.error.message)
                return failed
            if result.outcome.is_progress:
                span.report({"outcome": result.outcome, **result.figures()})
            self._synced(result, started_ms, round((self._clock.monotonic_s() - started_s) * 1000))
            return CycleResult(delay_s=0.0 if result.more else None, result=result)

    # --- outcomes ---

    def _synced(self, result: SyncResult, started_ms: int, duration_ms: int) -> None:
        self.observer.report_sync(self._record.id, result, started_ms, duration_ms)
        self.snapshots_unmaintained += result.snapshots
        self._recover(is_recorded=result.outcome.is_progress)
        with logged_if_away(events.STATE_UNREAD):
            record = self._read()
            # A person may have changed the row during this sync, and may want another resync.
            if self.is_overruled_by(record):
                self.take_up(record)
            elif record.resync_wanted:
                self._follower.doubt()
            self._record = record
        self.observer.show_in_step(self._record, more=result.more)

    def _recover(self, *, is_recorded: bool = False) -> None:
        """Forget the table's error. Its end is recorded as a run, unless the sync itself is."""
        self._wait = None
        error = self._failures.end()
        if error is None:
            return
        if not is_recorded:
            self.observer.report_recovery(self._record, error)
        self._record = replace(self._record, error=None)
        with logged_if_away(events.STATE_UNRECORDED, table=self.name):
            self._store.record_failure(self._record.id, None)

    def _failed(self, raised: Exception, started_ms: int) -> CycleResult:
        failure = self._failures.add(raised, synced_version=self._record.synced_version)
        error, delay_s = failure.error, failure.delay_s
        # Stored before it is kept in memory: if the store lacks it later, a person has cleared it.
        self._record_failure(error)
        self._record = replace(self._record, error=error)
        self.observer.report_failure(self._record, failure, started_ms)
        self.observer.show_lag(self._record)
        if failure.may_end_by_version:
            before, now_s = self._wait, self._clock.monotonic_s()
            versions = (error.version, self._record.synced_version, before.tried_version if before else None)
            # A newer version is tried at once, but not if the last one was: a table may change at every poll.
            self._wait = _Wait(
                retry_at_s=None if error.parked else now_s + delay_s,
                tried_version=max((version for version in versions if version is not None), default=None),
                newer_at_s=now_s + delay_s if before and before.has_newer else now_s,
            )
            delay_s = min(delay_s, self.table.poll_interval_s)
        else:
            self._wait = None
        return CycleResult(delay_s=None if error.parked else delay_s, error=error)

    def _record_failure(self, error: TableError) -> None:
        self._is_unrecorded = True
        with logged_if_away(events.STATE_UNRECORDED, table=self.name):
            self._store.record_failure(self._record.id, error)
            self._is_unrecorded = False
