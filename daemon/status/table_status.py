"""What operators see of a table: `status --json`, `/api/tables`. `table_status` alone names a table's state."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import asdict, replace

from daemon.config.settings import TableSettings
from daemon.errors import LogMissing
from daemon.masking import scrub
from daemon.texts import iso_time
from state import (
    SHARES,
    Difference,
    MirrorCount,
    Pause,
    ProofRecord,
    SyncRun,
    TableCounts,
    TableError,
    TableRecord,
    WrittenCount,
)


class SyncState(StrEnum):
    WAITING = "waiting"  # the source is not there yet
    SYNCING = "syncing"
    SYNCED = "synced"
    BEHIND = "behind"
    RETRYING = "retrying"
    PARKED = "parked"  # a person must act, then `dvsync resume`
    PAUSED = "paused"
    GONE = "gone"  # Delta's table or its entry in the configuration is no longer there, and it is not forgotten


WORST_FIRST = (
    SyncState.PARKED,
    SyncState.RETRYING,
    SyncState.GONE,
    SyncState.BEHIND,
    SyncState.SYNCING,
    SyncState.WAITING,
    SyncState.PAUSED,
    SyncState.SYNCED,
)


# A table in step whose store has not answered for so long is not known to be in step any more.
POLLS_MISSED_MAX = 2
ANSWER_MAX_S = 5.0


class ErrorStatus(msgspec.Struct, frozen=True):
    """A table's current error. `since` is when the unbroken row of `consecutive` errors began."""

    kind: str
    message: str
    hint: str
    version: int | None
    since: str
    consecutive: int


class PauseStatus(msgspec.Struct, frozen=True):
    """Who paused a table, as far as it is known, and why. `until` is null if only `dvsync resume` ends the pause."""

    since: str
    by: str
    until: str | None
    reason: str | None


class ProofStatus(msgspec.Struct, frozen=True):
    """How far a table has been verified, and what differs; see `ProofRecord`. The last part began `at`.

    `coverage` is the share of the data files, from 0 to 1, that the current pass has compared. `complete_at` is when a
    pass last compared all of them.
    """

    is_right: bool
    level: str
    at: str
    version: int
    snapshot_id: int
    files_total: int
    files: int
    coverage: float
    complete_at: str | None
    differences: dict[str, int]
    first_differences: tuple[Difference, ...]


class TableStatus(msgspec.Struct, frozen=True):
    """One table. Versions are Delta's; times are ISO 8601, UTC; what is not known is null.

    `source` is where the Delta table is, and `source_table` its name in a catalog of `sources`, if it has one.
    `lag_versions` counts the Delta versions not shown yet. `lag_seconds` is the age of the oldest of them.
    `checked_at` is when a poll or sync of the running daemon last succeeded; if that is too long ago for a table in
    step, its lag is unknown. `orphan_bytes` is the sum of the known sizes. A table that is gone has its last
    `catalog`. `format_version` is that of the Iceberg table now; after a changed setting, the next sync changes it.
    `mirrors` are counted by kind and reason; see `MirrorCount`. With `resync_wanted`, the next sync rewrites the whole
    table. `verify_error` is why the running daemon's last verification compared nothing; null if it did, or if the
    table has an `error`.
    """

    name: str
    source: str
    source_table: str | None
    catalog: str | None
    target: str
    state: SyncState
    synced_version: int | None
    source_version: int | None
    lag_versions: int | None
    lag_seconds: float | None
    snapshot_id: int | None
    metadata_location: str | None
    format_version: int | None
    checked_at: str | None
    last_synced_at: str | None
    resync_wanted: bool
    pause: PauseStatus | None
    error: ErrorStatus | None
    proof: ProofStatus | None
    verify_error: ErrorStatus | None
    live_data_files: int | None
    live_rows: int | None
    live_delete_files: int | None
    deleted_positions: int | None
    mirrors: tuple[MirrorCount, ...] | None
    orphans_waiting: int | None
    orphan_bytes: int | None
    written_files: list[WrittenStatus] | None


class RunStatus(msgspec.Struct, frozen=True):
    """One sync, or one error; see `SyncRun`. `started_at` is ISO 8601, UTC."""

    started_at: str
    duration_seconds: float
    outcome: str
    operation: str | None
    from_version: int | None
    to_version: int | None
    snapshot_id: int | None
    data_files_added: int
    data_files_removed: int
    delete_files_added: int
    positions_added: int
    message: str | None


class WrittenStatus(msgspec.Struct, frozen=True):
    """The files that dvsync wrote, of one kind and status.

    `size_bytes` is the sum of the known sizes, null if none is known. `oldest_seconds` is how long the oldest has had
    this status.
    """

    kind: str
    status: str
    files: int
    size_bytes: int | None
    oldest_seconds: float


class Observation(msgspec.Struct, frozen=True):
    """What is known of a table at a moment. `behind_since_ms` is the time of the oldest version not synced."""

    record: TableRecord | None = None
    counts: TableCounts | None = None
    source_version: int | None = None
    behind_since_ms: int | None = None
    syncing: bool = False
    # When a poll or a sync last succeeded, on the monotonic clock; None before the first.
    checked_at_s: float | None = None
    # When the table was last polled again after a pause or an error, on the same clock.
    resumed_at_s: float = 0.0
    # Why the last verification failed; None if none has failed since one ended.
    verify_error: TableError | None = None

    def silent_s(self, now_s: float) -> float | None:
        """Return how long ago a poll or sync last succeeded, or the table was resumed; None if none has succeeded."""
        return None if self.checked_at_s is None else now_s - max(self.checked_at_s, self.resumed_at_s)


# The kind of error of a table that is gone because nothing leads to it any more, so that no cycle runs for it.
NOT_FOLLOWED = "TableGone"


def gone_status(record: TableRecord, counts: TableCounts | None, now_ms: int, *, is_vanished: bool) -> TableStatus:
    """The status of a table that nothing leads to any more. `is_vanished`: a pattern would if its folder were there."""
    if is_vanished:
        message = "its folder is gone, or holds no Delta table any more"
        hint = "If the folder was moved, or its volume is not mounted, bring it back, and dvsync continues."
    else:
        message = "no entry and no pattern of the configuration has a table of this name, source and target"
        hint = "To follow it again, give it an entry with all three, or let a pattern find it."
    forget = ""
    if record.metadata_location is not None:
        message += "; its Iceberg table stays as it was, and reading it fails where Delta's files are gone"
        forget = f": it keeps the Iceberg table {record.target}, or with --drop removes it, too"
    error = TableError(
        kind=NOT_FOLLOWED,
        message=message,
        hint=f"{hint} Only if no one needs the table any more, run `dvsync forget {record.name}`{forget}.",
        version=None,
        since_ms=record.error.since_ms if record.error and has_lost_log(record) else record.last_synced_at_ms or now_ms,
        consecutive=1,
        parked=False,
    )
    seen = Observation(replace(record, error=error), counts)
    return replace(table_status(record, seen, now_ms), state=SyncState.GONE)


def table_status(
    table: TableSettings | TableRecord, seen: Observation, now_ms: int, *, now_s: float = 0.0
) -> TableStatus:
    """Return what is known of a table. `now_s` is on the monotonic clock, as `seen` has it."""
    record = seen.record or TableRecord(0, table.name, table.source, table.target)
    counts, error, pause, synced = seen.counts, record.error, record.pause_at(now_ms), record.synced_version
    entry = table.entry
    live = None if synced is None else counts
    # What the source had before its log vanished is not what it has now.
    source_version = None if has_lost_log(record) else seen.source_version
    lag_versions = None if source_version is None else source_version - (-1 if synced is None else synced)
    # While the store does not answer, nobody knows whether the table is still in step.
    silent_s = seen.silent_s(now_s)
    if lag_versions == 0 and silent_s is not None and isinstance(table, TableSettings):
        is_silent = silent_s > POLLS_MISSED_MAX * table.poll_interval_s + ANSWER_MAX_S
        if is_silent and not (seen.syncing or error or pause):
            source_version = lag_versions = None
    lag_seconds = None
    if lag_versions is not None and lag_versions <= 0:
        lag_seconds = 0.0
    elif seen.behind_since_ms is not None:
        lag_seconds = max(0, now_ms - seen.behind_since_ms) / 1000
    written = [
        WrittenStatus(each.kind, each.status, each.files, each.size_bytes, max(0, now_ms - each.oldest_since_ms) / 1000)
        for each in (counts.written if counts else ())
    ]
    return TableStatus(
        name=table.name,
        source=scrub(table.source),
        source_table=entry.full_name if entry else None,
        catalog=table.catalog,
        target=table.target,
        state=_state(record, lag_versions, now_ms, syncing=seen.syncing),
        synced_version=synced,
        source_version=source_version,
        lag_versions=lag_versions,
        lag_seconds=lag_seconds,
        snapshot_id=record.snapshot_id,
        metadata_location=record.metadata_location,
        format_version=record.format_version,
        checked_at=None if seen.checked_at_s is None else iso_time(now_ms - round((now_s - seen.checked_at_s) * 1000)),
        last_synced_at=_iso(record.last_synced_at_ms),
        resync_wanted=record.resync_wanted,
        pause=pause_status(pause) if pause else None,
        error=_error_status(error) if error else None,
        proof=_proof_status(record.proof) if record.proof else None,
        # While the table has an error, it is not verified.
        verify_error=_error_status(seen.verify_error) if seen.verify_error and not error else None,
        live_data_files=live.live_data_files if live else None,
        live_rows=live.live_rows if live else None,
        live_delete_files=live.live_delete_files if live else None,
        deleted_positions=live.deleted_positions if live else None,
        mirrors=live.mirrors if live else None,
        orphans_waiting=sum(each.files for each in counts.orphans) if counts else None,
        orphan_bytes=_known_bytes(counts.orphans) if counts else None,
        written_files=written if counts else None,
    )


def _known_bytes(counts: Sequence[WrittenCount]) -> int | None:
    """The sum of the known sizes; None if there are files and no size is known."""
    known = [count.size_bytes for count in counts if count.size_bytes is not None]
    return sum(known) if known or not counts else None


def _error_status(error: TableError) -> ErrorStatus:
    since = iso_time(error.since_ms)
    return ErrorStatus(error.kind, error.message, error.hint, error.version, since, error.consecutive)


def pause_status(pause: Pause) -> PauseStatus:
    return PauseStatus(iso_time(pause.since_ms), pause.by, _iso(pause.until_ms), pause.reason)


def _iso(at_ms: int | None) -> str | None:
    return None if at_ms is None else iso_time(at_ms)


def _proof_status(proof: ProofRecord) -> ProofStatus:
    return ProofStatus(
        is_right=not proof.differences.counts,
        level=proof.level,
        at=iso_time(proof.at_ms),
        version=proof.version,
        snapshot_id=proof.snapshot_id,
        files_total=proof.files_total,
        files=proof.files,
        coverage=proof.covered / SHARES,
        complete_at=_iso(proof.complete_at_ms),
        differences=proof.differences.counts,
        first_differences=proof.differences.first,
    )


def run_status(run: SyncRun) -> RunStatus:
    fields = asdict(run)
    del fields["table_id"]
    return RunStatus(iso_time(fields.pop("started_at_ms")), fields.pop("duration_ms") / 1000, **fields)


def _state(record: TableRecord, lag_versions: int | None, now_ms: int, *, syncing: bool) -> SyncState:
    """Return the first of these states that holds."""
    error = record.error
    states = {
        SyncState.PAUSED: record.pause_at(now_ms) is not None,
        SyncState.PARKED: error is not None and error.parked,
        SyncState.GONE: has_lost_log(record),
        SyncState.SYNCING: syncing,
        SyncState.RETRYING: error is not None,
        # While the source is unseen, nobody knows whether a table that was synced once is still in step.
        SyncState.WAITING: lag_versions is None and record.synced_version is None,
        SyncState.BEHIND: lag_versions is None or lag_versions > 0,
        SyncState.SYNCED: True,
    }
    return next(state for state, holds in states.items() if holds)


def has_lost_log(record: TableRecord) -> bool:
    """Return whether the table was synced before, and its Delta log has vanished."""
    error = record.error
    return record.synced_version is not None and error is not None and error.kind == LogMissing.__name__


def worst_first(statuses: Sequence[TableStatus]) -> list[TableStatus]:
    """What shows wrong rows comes first, then the worst states; within one, what is furthest behind."""
    return sorted(
        statuses,
        key=lambda each: (
            each.proof is None or each.proof.is_right,
            WORST_FIRST.index(each.state),
            -(each.lag_seconds or 0),
        ),
    )
