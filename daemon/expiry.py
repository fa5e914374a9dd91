"""Snapshot expiry: old snapshots leave the Iceberg table's metadata, and so do those that VACUUM made unreadable.

No file is removed here: those that nothing refers to any more become orphans, for `cleanup.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from msgspec.structs import replace as with_fields
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.properties import property_as_int

from daemon.cleanup import release_files
from daemon.commit import announce_files, new_intent, unchanged_outcome
from daemon.context import TableContext, find_record
from daemon.delta.vacuum import RETENTIONS_S
from daemon.iceberg.references import data_files_let_go
from daemon.iceberg.retention import RETENTION_MS, Retention, find_expired
from daemon.settings import MaintenanceSettings

# Of the data files that a snapshot let go, so many are looked for. VACUUM takes all that one version removed, or none;
# only where a snapshot shows several versions at once may it take some.
LOOKS = 100
LOOKS_AT_ONCE = 16


@dataclass(frozen=True)
class Expiry:
    """The snapshots that were expired, or would be, the oldest first; `unreadable` are those whose data files are gone.

    `held` are unreadable ones that a branch or tag keeps, with its name.
    """

    expired: tuple[int, ...] = ()
    unreadable: tuple[int, ...] = ()
    held: tuple[tuple[int, str], ...] = ()


class Expirer:
    """Expires one table's snapshots. What a snapshot let go of the one before it is read once."""

    def __init__(self, context: TableContext) -> None:
        self._context = context
        self._let_go: dict[tuple[int, int], Sequence[tuple[str, int]]] = {}

    def expire(self, *, dry_run: bool = False) -> Expiry:
        """Raises SyncError; nothing has changed then, or the next sync sees that it has."""
        context, settings = self._context, self._context.settings.maintenance
        table = context.target.find_table()
        if table is None:
            return Expiry()
        unreadable = self._find_unreadable(table)
        with context.committing:
            record = find_record(context.store.list_tables(), context.settings)
            table = context.target.find_table()
            if record is None or table is None or record.snapshot_id != table.metadata.current_snapshot_id:
                return Expiry()
            now_ms = context.clock.now_ms()
            retention = _retention(table, settings)
            found = find_expired(table.metadata, retention, now_ms=now_ms, unreadable=unreadable)
            expiry = _told(table, found, unreadable)
            if not found or dry_run:
                return expiry
            intent = new_intent(context, record, None, unchanged_outcome(record).to_version)
            context.store.record_intent(intent)
            table = context.target.expire(table, expiry.expired, partial(announce_files, context, intent))
            outcome = with_fields(unchanged_outcome(record), metadata_location=table.metadata_location)
            context.store.record_synced(intent.id, outcome, at_ms=context.clock.now_ms())
        release_files(context, record, dry_run=False)
        return expiry

    def _find_unreadable(self, table: Table) -> set[int]:
        """Snapshots of which a data file is not there any more, as far as those tell that the next snapshot let go."""
        snapshots = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
        let_go = {}
        for snapshot, following in pairwise(snapshots):
            pair = (snapshot.snapshot_id, following.snapshot_id)
            known = self._let_go.get(pair)
            let_go[pair] = _spread(data_files_let_go(table, snapshot, following)) if known is None else known
        self._let_go = let_go
        showing: dict[str, set[int]] = defaultdict(set)
        for snapshot, files in zip(snapshots, let_go.values(), strict=False):
            for path, added_in in files:
                showing[path] |= {
                    other.snapshot_id
                    for other in snapshots
                    if added_in <= (other.sequence_number or 0) <= (snapshot.sequence_number or 0)
                }
        with ThreadPoolExecutor(LOOKS_AT_ONCE, thread_name_prefix="expiry") as pool:
            exist = list(pool.map(self._context.storage.exists, showing))
        gone = [path for path, exists in zip(showing, exist, strict=True) if not exists]
        return {snapshot_id for path in gone for snapshot_id in showing[path]}


def _spread(files: Sequence[tuple[str, int]]) -> Sequence[tuple[str, int]]:
    """At most LOOKS of them, evenly spaced by name."""
    return sorted(files)[:: max(1, -(-len(files) // LOOKS))]


def _retention(table: Table, settings: MaintenanceSettings) -> Retention:
    properties: Mapping[str, str] = table.properties
    age_max_ms, count_min = (
        property_as_int(dict(properties), name, default)
        for name, default in (
            (TableProperties.MAX_SNAPSHOT_AGE_MS, TableProperties.MAX_SNAPSHOT_AGE_MS_DEFAULT),
            (TableProperties.MIN_SNAPSHOTS_TO_KEEP, TableProperties.MIN_SNAPSHOTS_TO_KEEP_DEFAULT),
        )
    )
    assert age_max_ms is not None and count_min is not None, "both have defaults"
    return Retention(
        age_max_ms=age_max_ms if settings.snapshot_age_max_s is None else round(settings.snapshot_age_max_s * 1000),
        age_cap_ms=int(properties.get(RETENTION_MS, min(RETENTIONS_S.values()) * 1000)),
        count_min=settings.snapshots_min or count_min,
        count_max=settings.snapshots_max,
    )


def _told(table: Table, found: list[Snapshot], unreadable: Container[int]) -> Expiry:
    ids = tuple(snapshot.snapshot_id for snapshot in found)
    return Expiry(
        expired=ids,
        unreadable=tuple(snapshot_id for snapshot_id in ids if snapshot_id in unreadable),
        held=tuple(
            (ref.snapshot_id, name)
            for name, ref in sorted(table.metadata.refs.items())
            if ref.snapshot_id in unreadable and ref.snapshot_id not in ids
        ),
    )
