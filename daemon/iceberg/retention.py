"""Which snapshots a table may lose: Iceberg spec, "Snapshot Retention Policy", capped by what can be read. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

# Set from Delta's own retention: an older snapshot's data files may be gone.
RETENTION_MS = "dvsync.delta.retention-ms"


@dataclass(frozen=True)
class Retention:
    """Snapshots older than `age_max_ms`, or beyond `count_max` on the main branch, go; the newest `count_min` stay.

    A branch may ask for another age than `age_max_ms`, but for none beyond `age_cap_ms`.
    """

    age_max_ms: int
    age_cap_ms: int
    count_min: int
    count_max: int


def find_expired(
    metadata: TableMetadata, retention: Retention, *, now_ms: int, unreadable: Container[int] = ()
) -> list[Snapshot]:
    """The snapshots to expire, the oldest first. Never one that a branch or a tag points at.

    A branch's own `min-snapshots-to-keep` and `max-snapshot-age-ms` go before `retention`. An `unreadable` snapshot is
    kept by a reference only.
    """
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    kept = {ref.snapshot_id for ref in metadata.refs.values()}
    on_branch: set[int] = set()
    for name, ref in metadata.refs.items():
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH:
            count_max = retention.count_max if name == MAIN_BRANCH else len(snapshots)
            count_min = ref.min_snapshots_to_keep or retention.count_min
            age_max_ms = min(ref.max_snapshot_age_ms or retention.age_max_ms, retention.age_cap_ms)
            for number, snapshot in enumerate(_ancestors(snapshots, ref.snapshot_id)):
                on_branch.add(snapshot.snapshot_id)
                is_young = now_ms - snapshot.timestamp_ms <= age_max_ms
                stays = number < count_min or (number < count_max and is_young)
                if stays and snapshot.snapshot_id not in unreadable:
                    kept.add(snapshot.snapshot_id)
    age_max_ms = min(retention.age_max_ms, retention.age_cap_ms)
    for snapshot in snapshots.values():
        # What no branch leads to may be staged to become one.
        is_young = now_ms - snapshot.timestamp_ms <= age_max_ms and snapshot.snapshot_id not in unreadable
        if snapshot.snapshot_id not in on_branch and is_young:
            kept.add(snapshot.snapshot_id)
    expired = [snapshot for snapshot in snapshots.values() if snapshot.snapshot_id not in kept]
    return sorted(expired, key=lambda snapshot: snapshot.timestamp_ms)


def _ancestors(snapshots: Mapping[int, Snapshot], snapshot_id: int) -> Iterator[Snapshot]:
    """The snapshot and what it descends from, the newest first."""
    snapshot = snapshots.get(snapshot_id)
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else snapshots.get(parent)
