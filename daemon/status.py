"""What operators are told of a table: the record of `status --json` and `/api/tables`, and the board that keeps them.

`table_status` is the one place that names a table's state. The board is memory only, so that a probe costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from threading import Lock

import msgspec
from msgspec.structs import replace

from daemon.activity import Activity
from daemon.clock import Clock
from daemon.secrets import scrub
from daemon.settings import TableSettings
from daemon.timeline import SAMPLE_INTERVAL_S, Sample, Timeline
from state import TableCounts, TableError, TableRecord, WrittenCount


class TableState(StrEnum):
    WAITING = "waiting"  # the source is not there yet
    SYNCING = "syncing"
    SYNCED = "synced"
    BEHIND = "behind"
    RETRYING = "retrying"
    PARKED = "parked"  # a person must act, then `dvsync resume`
    PAUSED = "paused"
    GONE = "gone"  # followed once; nothing in the configuration leads to it any more


WORST_FIRST = (
    TableState.PARKED,
    TableState.RETRYING,
    TableState.GONE,
    TableState.BEHIND,
    TableState.SYNCING,
    TableState.WAITING,
    TableState.PAUSED,
    TableState.SYNCED,
)


class ErrorStatus(msgspec.Struct, frozen=True):
    """The error that a table stands at. `since` is when the unbroken row of `consecutive` errors began."""

    kind: str
    message: str
    hint: str
    version: int | None
    since: str
    consecutive: int


class TableStatus(msgspec.Struct, frozen=True):
    """One table. Versions are Delta's; times are ISO 8601, UTC; what is not known is null.

    `lag_versions` counts the Delta versions not shown yet. `lag_seconds` is the age of the oldest of them.
    """

    name: str
    source: str
    target: str
    state: TableState
    synced_version: int | None
    source_version: int | None
    lag_versions: int | None
    lag_seconds: float | None
    snapshot_id: int | None
    metadata_location: str | None
    last_synced_at: str | None
    error: ErrorStatus | None
    live_data_files: int | None
    live_rows: int | None
    live_delete_files: int | None
    deleted_positions: int | None
    orphans_waiting: int | None
    orphan_bytes: int | None
    written_files: list[WrittenStatus] | None


class AccountCounts(msgspec.Struct, frozen=True):
    """How often a table's account was held against Delta's since the process started, and did not add up."""

    checked: int = 0
    mismatches: int = 0


class UpkeepCounts(msgspec.Struct, frozen=True):
    """What maintenance did for a table since the process started."""

    rounds: int = 0
    failures: int = 0
    compacted_delete_files: int = 0
    expired_snapshots: int = 0
    removed_files: int = 0
    removed_bytes: int = 0

    def __add__(self, other: UpkeepCounts) -> UpkeepCounts:
        return UpkeepCounts(*(getattr(self, name) + getattr(other, name) for name in UpkeepCounts.__struct_fields__))


class WrittenStatus(msgspec.Struct, frozen=True):
    """The files that dvsync wrote, of one kind and status. `size_bytes` is the sum of the known ones, `oldest_seconds`
    how long the first of them has been so."""

    kind: str
    status: str
    files: int
    size_bytes: int
    oldest_seconds: float


class Observation(msgspec.Struct, frozen=True):
    """What is known of a table at a moment. `behind_since_ms` is the time of the oldest version not synced."""

    record: TableRecord | None = None
    counts: TableCounts | None = None
    source_version: int | None = None
    behind_since_ms: int | None = None
    syncing: bool = False
    accounts: AccountCounts = AccountCounts()
    # When source and target were last seen, on the monotonic clock; None before the first look.
    looked_at_s: float | None = None


class Unready(msgspec.Struct, frozen=True):
    """Why `/readyz` says no. `table` is null when it is about all of them."""

    table: str | None
    reason: str


def gone_status(record: TableRecord, counts: TableCounts | None, now_ms: int) -> TableStatus:
    """A table that the state database knows and that the configuration leads to no more, by an entry or a pattern."""
    error = TableError(
        kind="TableGone",
        message="nothing in the configuration leads to this table any more; its Iceberg table stays as it was, and "
        "readers of it fail where Delta's files are gone",
        hint=f"Bring the Delta table or its entry back, or `dvsync forget {record.name}` once you have dropped "
        f"{record.target} or want to keep it as it is.",
        version=None,
        since_ms=record.last_synced_at_ms or now_ms,
        consecutive=1,
        parked=False,
    )
    seen = Observation(replace(record, error=error), counts)
    return replace(table_status(record, seen, now_ms), state=TableState.GONE)


def table_status(table: TableSettings | TableRecord, seen: Observation, now_ms: int) -> TableStatus:
    record, counts, error = seen.record, seen.counts, seen.record.error if seen.record else None
    synced = record.synced_version if record else None
    lag_versions = None if seen.source_version is None else seen.source_version - (-1 if synced is None else synced)
    lag_seconds = None
    if lag_versions is not None and lag_versions <= 0:
        lag_seconds = 0.0
    elif seen.behind_since_ms is not None:
        lag_seconds = max(0, now_ms - seen.behind_since_ms) / 1000
    return TableStatus(
        name=table.name,
        source=scrub(table.source),
        target=table.target,
        state=_state(seen, lag_versions),
        synced_version=synced,
        source_version=seen.source_version,
        lag_versions=lag_versions,
        lag_seconds=lag_seconds,
        snapshot_id=record.snapshot_id if record else None,
        metadata_location=record.metadata_location if record else None,
        last_synced_at=_iso(record.last_synced_at_ms) if record and record.last_synced_at_ms is not None else None,
        error=_error_status(error) if error else None,
        live_data_files=counts.live_data_files if counts else None,
        live_rows=counts.live_rows if counts else None,
        live_delete_files=counts.live_delete_files if counts else None,
        deleted_positions=counts.deleted_positions if counts else None,
        orphans_waiting=sum(each.files for each in counts.orphans) if counts else None,
        orphan_bytes=sum(each.size_bytes for each in counts.orphans) if counts else None,
        written_files=[_written_status(each, now_ms) for each in counts.written] if counts else None,
    )


def _written_status(count: WrittenCount, now_ms: int) -> WrittenStatus:
    age_s = max(0, now_ms - count.oldest_since_ms) / 1000
    return WrittenStatus(count.kind, count.status, count.files, count.size_bytes, age_s)


def _error_status(error: TableError) -> ErrorStatus:
    return ErrorStatus(
        kind=error.kind,
        message=error.message,
        hint=error.hint,
        version=error.version,
        since=_iso(error.since_ms),
        consecutive=error.consecutive,
    )


def _state(seen: Observation, lag_versions: int | None) -> TableState:
    record = seen.record
    if record and record.paused:
        return TableState.PAUSED
    if record and record.error and record.error.parked:
        return TableState.PARKED
    if seen.syncing:
        return TableState.SYNCING
    if record and record.error:
        return TableState.RETRYING
    if lag_versions is None:
        # Once synced and its source not looked at: the promise of "synced" is not given blindly.
        return TableState.WAITING if record is None or record.synced_version is None else TableState.BEHIND
    return TableState.BEHIND if lag_versions > 0 else TableState.SYNCED


def _iso(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def count_states(statuses: Sequence[TableStatus]) -> str:
    """How many tables are in which state, the worst first."""
    counts = Counter(status.state for status in statuses)
    if not statuses:
        return "no tables"
    noun = "table" if len(statuses) == 1 else "tables"
    return f"{len(statuses)} {noun}: " + ", ".join(f"{counts[state]} {state}" for state in WORST_FIRST if counts[state])


def span(seconds: float) -> str:
    """A duration for people: in days, hours or minutes, to a tenth, or in whole seconds."""
    for length_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= length_s:
            return f"{seconds / length_s:.1f} {unit}"
    return f"{seconds:.0f} s"


class Board:
    """The latest observation of each table, and the scheduler's heartbeat. Safe to use from any thread."""

    def __init__(self, tables: Sequence[TableSettings], clock: Clock, *, lag_budget_s: float) -> None:
        self._tables: dict[str, TableSettings] = {}
        self._clock = clock
        self._lag_budget_s = lag_budget_s
        self._lock = Lock()
        self._seen: dict[str, Observation] = {}
        self.activity = Activity()
        self._upkeep: dict[str, UpkeepCounts] = {}
        self._timelines: dict[str, Timeline] = {}
        self._troubles: dict[str, list[Unready]] = {}
        self._gone: list[TableStatus] = []
        for table in tables:
            self.add(table)
        self._sampled_at_s = clock.monotonic_s() - SAMPLE_INTERVAL_S
        self._beaten_at_s = clock.monotonic_s()

    def add(self, table: TableSettings) -> None:
        self.activity.expect(table.name)
        with self._lock:
            self._tables[table.name] = table
            self._seen[table.name] = Observation()
            self._upkeep[table.name] = UpkeepCounts()
            self._timelines[table.name] = Timeline()

    def remove(self, name: str) -> None:
        with self._lock:
            for places in (self._tables, self._seen, self._upkeep, self._timelines):
                del places[name]
        self.activity.forget(name)

    def arrange(self, names: Sequence[str]) -> None:
        """Show the tables in the order of `names`, where these name them."""
        places = {name: place for place, name in enumerate(names)}
        with self._lock:
            ordered = sorted(self._tables.items(), key=lambda named: places.get(named[0], len(places)))
            self._tables = dict(ordered)

    def tell(self, about: str, troubles: Sequence[Unready]) -> None:
        """What keeps the daemon as a whole from being ready, by what it is about; an empty list ends it."""
        with self._lock:
            self._troubles[about] = list(troubles)

    def show_gone(self, gone: Sequence[TableStatus]) -> None:
        """The tables that are not followed any more and were not forgotten either, beside those that are."""
        with self._lock:
            self._gone = list(gone)

    def timeline(self, name: str) -> Timeline:
        """The table's; one of its own for a table that has been removed."""
        with self._lock:
            return self._timelines.get(name) or Timeline()

    def show(self, name: str, seen: Observation) -> None:
        """A table that was removed in the meantime is not shown again."""
        with self._lock:
            if name in self._tables:
                self._seen[name] = seen

    def count_upkeep(self, name: str, counts: UpkeepCounts) -> None:
        """Add what a round of maintenance did."""
        with self._lock:
            if name in self._tables:
                self._upkeep[name] += counts

    def upkeep(self) -> dict[str, UpkeepCounts]:
        """What maintenance did for each table, by name."""
        with self._lock:
            return dict(self._upkeep)

    def beat(self) -> None:
        """The scheduler is alive. Once a minute, every table is put on its timeline."""
        self._beaten_at_s = now_s = self._clock.monotonic_s()
        if now_s - self._sampled_at_s >= SAMPLE_INTERVAL_S:
            self._sampled_at_s = now_s
            for status in self.statuses():
                sample = Sample(self._clock.now_ms(), status.lag_seconds, status.deleted_positions)
                self.timeline(status.name).add_sample(sample)

    def silent_s(self) -> float:
        """Seconds since the scheduler's last sign of life."""
        return self._clock.monotonic_s() - self._beaten_at_s

    def statuses(self) -> list[TableStatus]:
        """All tables, in the order of the configuration; those that are gone come last."""
        now_ms = self._clock.now_ms()
        followed = [table_status(table, seen, now_ms) for table, seen in self._observed()]
        with self._lock:
            return [*followed, *self._gone]

    def summary(self) -> str:
        """One line on all tables: how many in which state, the worst of them with its error, or why none."""
        statuses = self.statuses()
        line = count_states(statuses)
        if not statuses:
            with self._lock:
                return "; ".join([line, *(trouble.reason for told in self._troubles.values() for trouble in told)])
        worst = min(statuses, key=lambda status: WORST_FIRST.index(status.state))
        return f"{line}; {worst.name}: {worst.error.kind}: {worst.error.message}" if worst.error else line

    @property
    def is_standing_by(self) -> bool:
        """Whether another process holds the lease."""
        with self._lock:
            return bool(self._troubles.get("lease"))

    def accounts(self) -> dict[str, AccountCounts]:
        """The account counts of each table, by name."""
        return {table.name: seen.accounts for table, seen in self._observed()}

    def find_unready(self) -> list[Unready]:
        """Why not all is well; empty when it is. A paused table and one whose source is not there yet are no reason."""
        with self._lock:
            troubles = [trouble for told in self._troubles.values() for trouble in told]
        if not self._tables and not troubles:
            return [Unready(None, "no tables are configured")]
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        reasons = ((table.name, self._unready(table, seen, now_ms, now_s)) for table, seen in self._observed())
        return troubles + [Unready(name, reason) for name, reason in reasons if reason is not None]

    def _observed(self) -> list[tuple[TableSettings, Observation]]:
        with self._lock:
            return [(table, self._seen[name]) for name, table in self._tables.items()]

    def _unready(self, table: TableSettings, seen: Observation, now_ms: int, now_s: float) -> str | None:
        status = table_status(table, seen, now_ms)
        if status.state is TableState.PAUSED:
            return None
        if status.state is TableState.PARKED:
            return f"parked: {status.error.kind if status.error else 'unknown'}"
        if seen.looked_at_s is None:
            return f"not synced yet: {status.error.kind}" if status.error else "not looked at yet"
        # While the source does not answer nobody knows how far behind the table is.
        unseen_s = now_s - seen.looked_at_s
        is_unseen = not seen.syncing and unseen_s > table.poll_interval_s + self._lag_budget_s
        is_late = status.lag_seconds is not None and status.lag_seconds > self._lag_budget_s
        if not is_late and not is_unseen:
            return None
        late = f"behind for {status.lag_seconds or 0:.0f} s, more than the budget of {self._lag_budget_s:.0f} s"
        if status.error:
            failing = f"retrying since {status.error.since}: {status.error.kind}: {status.error.message}"
            return f"{late}; {failing}" if is_late else failing
        return late if is_late else f"its source could not be looked at for {unseen_s:.0f} s"
