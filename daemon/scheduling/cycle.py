"""One table's cycle: look for news, sync, and decide what its outcome means for the table. Knows no timer.

`scheduler.py` runs it on a clock and `dvsync sync` runs it once. An error never leaves this module: it becomes the
table's error in the store, on the board and in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from threading import Event
from typing import Protocol

import structlog
from msgspec.structs import replace

from daemon import log as events
from daemon.clock import Clock
from daemon.config.settings import TableSettings
from daemon.errors import AccountMismatch, TargetHeld
from daemon.scheduling.failures import Failures
from daemon.status.board import Board
from daemon.status.table_status import AccountCounts, Observation
from daemon.status.timeline import RUNS_MAX
from daemon.sync.outcomes import SyncResult
from state import StateStore, StateUnavailable, SyncRun, TableError, TableRecord

# Counting a table's files reads all its rows in the state database: it may take a fiftieth of the time.
COUNT_SHARE = 50
# How often a table that cannot sync now has its source looked at for the sake of its lag alone.
LAG_LOOK_S = 30.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Follower(Protocol):
    """What a cycle needs of the main path. All of it raises SyncError kinds."""

    def has_news(self) -> bool:
        """Whether a sync would find something to do: the next commit file is there, or something is in doubt."""
        ...

    def doubt(self) -> None:
        """The next sync looks at the table whole."""
        ...

    def source_version(self) -> int | None:
        """The newest Delta version, by existence checks only; None when these cannot tell."""
        ...

    def sync(self, *, stop: Event, full: bool = False, others_wait: Callable[[], bool]) -> SyncResult:
        """One bounded cycle. Returns early, between two snapshots, once `stop` is set. `full` writes the table anew.

        While `others_wait`, it may show several versions in one snapshot.
        """
        ...


@dataclass(frozen=True)
class Verdict:
    """What came of a cycle. `delay_s` is when to come again; None leaves it to the table's poll interval."""

    delay_s: float | None = None
    result: SyncResult | None = None
    error: TableError | None = None
    paused: bool = False


def is_held(record: TableRecord) -> bool:
    """Parked or paused: only a person's word starts it again."""
    return record.paused or (record.error is not None and record.error.parked)


class TableCycle:
    """One table: its follower, and what is remembered between cycles. Used by one thread at a time."""

    def __init__(
        self,
        table: TableSettings,
        follower: Follower,
        *,
        store: StateStore,
        board: Board,
        clock: Clock,
        random: Random,
        commit_time_ms: Callable[[int], int | None],
    ) -> None:
        """`commit_time_ms` tells when a Delta version was committed; None when its commit file is not there.

        Raises StateUnavailable.
        """
        self.table = table
        self.name = table.name
        self._follower = follower
        self._store = store
        self._board = board
        self._clock = clock
        self._random = random
        self._commit_time_ms = commit_time_ms
        record = store.open_table(table.name, table.source, table.target)
        board.timeline(table.name).add_runs(reversed(store.list_runs(record.id, runs_max=RUNS_MAX)))
        self._failures = Failures(
            table.name, poll_interval_s=table.poll_interval_s, last=record.error, clock=clock, random=random
        )
        if record.error and record.error.parked:
            # A new start is a new try; until it is over, the error stays in sight.
            record = replace(record, error=replace(record.error, parked=False))
        self._record = record
        self._is_unrecorded = False
        self._has_wish = False
        self._seen = Observation()
        self._counts_due = True
        self._count_after_s = clock.monotonic_s()
        self._lag_look_after_s = clock.monotonic_s()
        self._show()

    def is_told_otherwise(self, record: TableRecord) -> bool:
        """Whether a person has said something of the table, in the store, that the cycle does not know yet."""
        mine = self._record
        if (record.source, record.target) != (mine.source, mine.target):
            return False  # Of another table, by the same name: the configuration was changed and not read again.
        answered = (is_held(mine) and not is_held(record)) or (mine.error is not None and record.error is None)
        # An error that the store does not know cannot have been answered there.
        freed = answered and not self._is_unrecorded
        return freed or (record.paused and not mine.paused) or (record.resync_wanted and not mine.resync_wanted)

    @property
    def is_paused(self) -> bool:
        return self._record.paused

    @property
    def is_followed(self) -> bool:
        """Whether the table has been synced before and waits for nobody, another dvsync included."""
        error = self._record.error
        is_elsewhere = error is not None and error.kind == TargetHeld.__name__
        return self._record.synced_version is not None and not is_held(self._record) and not is_elsewhere

    def recount(self) -> None:
        """The table's files have changed beside the cycle: count them anew with the next one. From any thread."""
        self._counts_due = True

    def read_wish(self) -> TableRecord | None:
        """The table as the store has it now, if a person has said something of it. Raises StateUnavailable."""
        record = self._store.open_table(self.name, self.table.source, self.table.target)
        return record if self.is_told_otherwise(record) else None

    def expect_wish(self) -> None:
        """A person said something of the table in the store: the next poll takes it up. From any thread."""
        self._has_wish = True

    def _take_up_wish(self) -> None:
        """Do as a person said, if the store still says so: a sync may have ended since then."""
        self._has_wish = False
        try:
            wish = self.read_wish()
        except StateUnavailable as error:
            _log.warning(events.STATE_UNREAD, reason=str(error))
            return
        if wish:
            self.take_up(wish)

    def take_up(self, record: TableRecord) -> None:
        """Do as a person said, from what the store says of the table now."""
        was_stopped, self._record = is_held(self._record) or self._record.error is not None, record
        if was_stopped and not is_held(record) and self._seen.looked_at_s is not None:
            # Nobody looked meanwhile because nobody should.
            self._seen = replace(self._seen, looked_at_s=self._clock.monotonic_s())
        if record.paused:
            _log.info(events.TABLE_PAUSED, table=self.name)
        elif was_stopped and record.error is None:
            self._failures.forget()
            # What was done to the table meanwhile shows at once, not when its log is listed next.
            self._follower.doubt()
            _log.info(events.TABLE_RESUMED, table=self.name)
        if record.resync_wanted:
            self._follower.doubt()
            _log.info(events.RESYNC_WANTED, table=self.name)
        self._show()

    def poll(self) -> Verdict | None:
        """The verdict when no sync is needed; None when there is something to sync.

        Without news this is one existence check.
        """
        if self._has_wish:
            self._take_up_wish()
        if is_held(self._record):
            if self._is_unrecorded and self._record.error is not None:
                self._record_failure(self._record.error)
            self._look_at_lag()
            return Verdict()
        try:
            has_news = self._follower.has_news()
        except Exception as error:
            return self._failed(error, self._clock.now_ms())
        if not has_news:
            self._in_step()
            return Verdict()
        return None

    def wait_for_slot(self) -> None:
        """There is news, but too many other tables sync: show how far behind this one is."""
        self._look_at_lag()

    def sync(self, stop: Event, *, full: bool = False, others_wait: Callable[[], bool] = lambda: False) -> Verdict:
        """One cycle of the follower, news or not."""
        with events.bind_cycle(self.name, f"{self._random.getrandbits(32):08x}"):
            started_ms, started_s = self._clock.now_ms(), self._clock.monotonic_s()
            self._look_at_first_unsynced()
            self._show(syncing=True)
            try:
                result = self._follower.sync(stop=stop, full=full, others_wait=others_wait)
            except Exception as error:
                return self._failed(error, started_ms)
            self._synced(result, started_ms, round((self._clock.monotonic_s() - started_s) * 1000))
            return Verdict(delay_s=0.0 if result.more else None, result=result)

    # --- outcomes ---

    def _synced(self, result: SyncResult, started_ms: int, duration_ms: int) -> None:
        progressed = result.outcome in ("advanced", "rebuilt")
        _log_result(result, duration_ms, progressed=progressed)
        self._count_accounts(checked=result.snapshots)
        if progressed:
            self._board.activity.count_sync(self.name, result)
        self._recover()
        if progressed:
            self._record_run(_run_of(self._record.id, result, started_ms, duration_ms))
        try:
            record = self._store.open_table(self.name, self.table.source, self.table.target)
            # What was said while this sync was at work; a resync once more, perhaps.
            if self.is_told_otherwise(record):
                self.take_up(record)
            elif record.resync_wanted:
                self._follower.doubt()
            self._record = record
        except StateUnavailable as error:
            _log.warning(events.STATE_UNREAD, reason=str(error))
        self._counts_due = True
        self._settle(more=result.more)

    def _in_step(self) -> None:
        """The poll found no news: the usual case, which must cost next to nothing."""
        self._recover()
        self._settle(more=False)

    def _settle(self, *, more: bool) -> None:
        self._count_if_due()
        self._seen = replace(
            self._seen,
            source_version=self._record.synced_version,
            behind_since_ms=None,
            looked_at_s=self._clock.monotonic_s(),
        )
        if more:
            self._look_at_first_unsynced()
        self._show()

    def _recover(self) -> None:
        if not self._failures.end():
            return
        self._record = replace(self._record, error=None)
        try:
            self._store.record_resumed(self._record.id)
        except StateUnavailable as error:
            _log.warning(events.STATE_UNRECORDED, table=self.name, reason=str(error))

    def _failed(self, raised: Exception, started_ms: int) -> Verdict:
        failure = self._failures.add(raised, synced_version=self._record.synced_version)
        # Recorded first: who sees the error here and not in the store knows that a person answered it there.
        self._record_failure(failure.error)
        self._record = replace(self._record, error=failure.error)
        self._board.activity.count_failure(self.name, failure.error.kind)
        if isinstance(raised, AccountMismatch):
            self._count_accounts(checked=1, mismatches=1)
        if failure.is_news:
            self._record_run(_failed_run(self._record, failure.error, started_ms, self._clock.now_ms() - started_ms))
        self._look_at_lag()
        return Verdict(delay_s=failure.delay_s, error=failure.error)

    def _record_failure(self, error: TableError) -> None:
        try:
            self._store.record_failure(self._record.id, error)
            self._is_unrecorded = False
        except StateUnavailable as unavailable:
            self._is_unrecorded = True
            _log.warning(events.STATE_UNRECORDED, table=self.name, reason=str(unavailable))

    def _record_run(self, run: SyncRun) -> None:
        self._board.timeline(self.name).add_runs([run])
        try:
            self._store.record_run(run)
        except StateUnavailable as unavailable:
            _log.warning(events.STATE_UNRECORDED, table=self.name, reason=str(unavailable))

    # --- what operators see ---

    def _count_accounts(self, *, checked: int, mismatches: int = 0) -> None:
        so_far = self._seen.accounts
        counts = AccountCounts(so_far.checked + checked, so_far.mismatches + mismatches)
        self._seen = replace(self._seen, accounts=counts)

    def _show(self, *, syncing: bool = False) -> None:
        self._seen = replace(self._seen, record=self._record, syncing=syncing)
        self._board.show(self.name, self._seen)

    def _look_at_first_unsynced(self) -> None:
        """Learn since when the table is behind. Only for the eye: what fails here fails, and is told, in the sync."""
        synced = self._record.synced_version
        if synced is None:
            return
        try:
            committed_at_ms = self._commit_time_ms(synced + 1)
        except Exception:
            return
        if committed_at_ms is not None:
            newest = max(synced + 1, self._seen.source_version or 0)
            self._seen = replace(self._seen, source_version=newest, behind_since_ms=committed_at_ms)

    def _look_at_lag(self) -> None:
        """Learn how far behind a table is that cannot sync now, every now and then."""
        if self._clock.monotonic_s() >= self._lag_look_after_s:
            self._lag_look_after_s = self._clock.monotonic_s() + LAG_LOOK_S
            try:
                self._seen = replace(self._seen, source_version=self._follower.source_version())
            except Exception as error:
                _log.debug(events.SOURCE_UNSEEN, table=self.name, reason=str(error))
            self._look_at_first_unsynced()
        self._show()

    def _count_if_due(self) -> None:
        started_s = self._clock.monotonic_s()
        if not self._counts_due or started_s < self._count_after_s:
            return
        try:
            self._seen = replace(self._seen, counts=self._store.count(self._record.id))
        except StateUnavailable:
            return  # The counts stay due.
        ended_s = self._clock.monotonic_s()
        self._counts_due = False
        self._count_after_s = ended_s + COUNT_SHARE * (ended_s - started_s)


def _log_result(result: SyncResult, duration_ms: int, *, progressed: bool) -> None:
    """The canonical line of a cycle. One that changed nothing has none at `info`, unless there is no source."""
    write = _log.info if progressed or result.outcome == "waiting" else _log.debug
    write(
        {
            "advanced": events.SYNC_ADVANCED,
            "rebuilt": events.SYNC_REBUILT,
            "waiting": events.SYNC_WAITING,
        }.get(result.outcome, events.SYNC_UNCHANGED),
        from_version=result.from_version,
        to_version=result.to_version,
        snapshot_id=result.snapshot_id,
        operation=result.operation,
        snapshots=result.snapshots,
        data_files_added=result.data_files_added,
        data_files_removed=result.data_files_removed,
        delete_files_added=result.delete_files_added,
        delete_files_removed=result.delete_files_removed,
        positions_added=result.positions_added,
        more=result.more,
        duration_ms=duration_ms,
    )


def _run_of(table_id: int, result: SyncResult, started_ms: int, duration_ms: int) -> SyncRun:
    return SyncRun(
        table_id=table_id,
        started_at_ms=started_ms,
        duration_ms=duration_ms,
        outcome=result.outcome,
        from_version=result.from_version,
        to_version=result.to_version,
        snapshot_id=result.snapshot_id,
        data_files_added=result.data_files_added,
        data_files_removed=result.data_files_removed,
        delete_files_added=result.delete_files_added,
        positions_added=result.positions_added,
    )


def _failed_run(record: TableRecord, error: TableError, started_ms: int, duration_ms: int) -> SyncRun:
    return SyncRun(
        table_id=record.id,
        started_at_ms=started_ms,
        duration_ms=duration_ms,
        outcome=error.kind,
        from_version=record.synced_version,
        to_version=error.version,
        message=error.message,
    )
