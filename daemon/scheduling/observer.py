"""What operators see of one table: its place on the board, its counters, its last syncs and the lines of its cycles."""

from __future__ import annotations

import structlog
from msgspec.structs import replace

from daemon.clock import Clock
from daemon.config.settings import TableSettings
from daemon.delta.log import DeltaLog
from daemon.errors import AccountMismatch
from daemon.observe import log as events
from daemon.scheduling.failures import Failure, logged_if_away
from daemon.status.board import RUNS_MAX, Board
from daemon.status.table_status import Observation
from daemon.sync.outcomes import SyncOutcome, SyncResult
from daemon.texts import counted
from state import StateUnavailable, SyncRun, TableError, TableRecord
from state.sql.tables import TableStore

# Counting a table's files reads all its rows in the state database, so it may take 1/50 of the time.
COUNT_SHARE = 50
# How often the source of a table that cannot sync, or is many versions behind, is asked for its newest version, for the
# table's lag alone.
LAG_INTERVAL_S = 30.0

_EVENTS = {
    SyncOutcome.ADVANCED: events.SYNC_ADVANCED,
    SyncOutcome.REBUILT: events.SYNC_REBUILT,
    SyncOutcome.WAITING: events.SYNC_WAITING,
    SyncOutcome.UNCHANGED: events.SYNC_UNCHANGED,
}

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Observer:
    """Observes one table for its cycle. It never changes what the cycle does, and only `load_past` raises."""

    def __init__(self, table: TableSettings, log: DeltaLog, *, store: TableStore, board: Board, clock: Clock) -> None:
        self.table = table
        self._name = table.name
        self._source = log
        self._store = store
        self._board = board
        self._clock = clock
        self._seen = Observation()
        self._counts_due = True
        self._count_after_s = clock.monotonic_s()
        self._lag_after_s = clock.monotonic_s()

    def load_past(self, record: TableRecord) -> None:
        """Show what earlier processes knew: the last syncs and the version that failed. Raises StateUnavailable."""
        self._board.add_runs(self._name, reversed(self._store.list_runs(record.id, runs_max=RUNS_MAX)))
        failed = record.error.version if record.error else None
        if failed is not None and (record.synced_version is None or failed > record.synced_version):
            self._seen = replace(self._seen, source_version=failed)

    def recount(self) -> None:
        """The table's files have changed: count them again when the table is in step next. From any thread."""
        self._counts_due = True

    def restart_silence(self) -> None:
        """The table is polled again after a pause: the pause does not count as a time without an answer."""
        self._seen = replace(self._seen, resumed_at_s=self._clock.monotonic_s())

    def show(self, record: TableRecord, *, syncing: bool = False) -> None:
        self._seen = replace(self._seen, record=record, syncing=syncing)
        self._board.show(self._name, self._seen)

    def show_verify_error(self, error: TableError | None) -> None:
        """Show why the last verification failed; None if none has failed since one ended. From any thread."""
        self._seen = replace(self._seen, verify_error=error)
        self._board.show(self._name, self._seen)

    def show_sync_begun(self, record: TableRecord) -> None:
        self._find_first_unsynced(record)
        self.show(record, syncing=True)

    def show_in_step(self, record: TableRecord, *, more: bool) -> None:
        """Show that the source has nothing beyond `record`, or, with `more`, that the next cycle follows at once."""
        self._count_if_due(record)
        self._seen = replace(
            self._seen,
            record=record,
            syncing=False,
            source_version=self._seen.source_version if more else record.synced_version,
            behind_since_ms=None,
            checked_at_s=self._clock.monotonic_s(),
        )
        if more:
            self._find_newest_if_due(record)
            self._find_first_unsynced(record)
        self._board.show(self._name, self._seen)

    def show_lag(self, record: TableRecord) -> None:
        """Show a table that cannot sync now, with its lag, which is measured every LAG_INTERVAL_S."""
        if self._find_newest_if_due(record):
            self._find_first_unsynced(record)
            self._count_if_due(record)
        self.show(record)

    def report_sync(self, table_id: int, result: SyncResult, started_ms: int, duration_ms: int) -> None:
        """Log and count a sync that succeeded. It is recorded as a run if it made progress."""
        # The canonical line of a cycle. One that changed nothing has none at `info`, unless there is no source.
        write = _log.debug if result.outcome is SyncOutcome.UNCHANGED else _log.info
        write(_EVENTS[result.outcome], **result.figures(), duration_ms=duration_ms)
        self._board.activity.count(self._name, accounts_checked=result.snapshots)
        if result.outcome.is_progress:
            self._board.activity.count_sync(self._name, result)
            # All that a result and a run have in common has one name.
            shared = {name: getattr(result, name) for name in SyncRun.__struct_fields__ if hasattr(result, name)}
            self._record_run(SyncRun(table_id, started_ms, duration_ms, **shared))
        self.recount()

    def report_failure(self, record: TableRecord, failure: Failure, started_ms: int) -> None:
        """Count a failure, which `Failures` has logged. It is recorded as a run unless it repeats the last one."""
        error = failure.error
        self._board.activity.count_failure(self._name, error.kind)
        if error.kind == AccountMismatch.__name__:
            self._board.activity.count(self._name, accounts_checked=1, account_mismatches=1)
        if failure.is_news:
            duration_ms = self._clock.now_ms() - started_ms
            begun = None if record.synced_version is None else record.synced_version + 1
            self._record_run(
                SyncRun(record.id, started_ms, duration_ms, error.kind, begun, error.version, message=error.message)
            )

    def report_recovery(self, record: TableRecord, error: TableError) -> None:
        """Record as a run that the table's error ended without a change."""
        now_ms, message = self._clock.now_ms(), f"{error.kind} is over, after {counted(error.consecutive, 'error')}"
        self._record_run(SyncRun(record.id, now_ms, 0, "recovered", to_version=record.synced_version, message=message))

    def _record_run(self, run: SyncRun) -> None:
        self._board.add_runs(self._name, [run])
        with logged_if_away(events.STATE_UNRECORDED, table=self._name):
            self._store.record_run(run)

    def _find_newest_if_due(self, record: TableRecord) -> bool:
        """Ask the source for its newest version. Returns whether LAG_INTERVAL_S had passed."""
        if self._clock.monotonic_s() < self._lag_after_s:
            return False
        self._lag_after_s = self._clock.monotonic_s() + LAG_INTERVAL_S
        try:
            self._seen = replace(self._seen, source_version=self._source.find_newest(record.synced_version))
        except Exception as error:
            _log.debug(events.SOURCE_UNSEEN, table=self._name, reason=str(error))
        return True

    def _find_first_unsynced(self, record: TableRecord) -> None:
        """Find out since when the table is behind. For display only: the sync meets and reports the same errors."""
        synced = record.synced_version
        if synced is None:
            return
        try:
            committed_at_ms = self._source.find_written_ms(synced + 1)
        except Exception:
            return
        if committed_at_ms is not None:
            newest = max(synced + 1, self._seen.source_version or 0)
            self._seen = replace(self._seen, source_version=newest, behind_since_ms=committed_at_ms)

    def _count_if_due(self, record: TableRecord) -> None:
        started_s = self._clock.monotonic_s()
        if not self._counts_due or started_s < self._count_after_s:
            return
        # Before it counts: what changes meanwhile is counted the next time.
        self._counts_due = False
        try:
            self._seen = replace(self._seen, counts=self._store.count(record.id))
        except StateUnavailable:
            self._counts_due = True
            return
        ended_s = self._clock.monotonic_s()
        self._count_after_s = ended_s + COUNT_SHARE * (ended_s - started_s)
