"""Decides which snapshots and which of dvsync's own tags to expire. Pure.

Iceberg spec, "Snapshot Retention Policy", capped by Delta's retention; the tags of others are not touched.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from daemon.iceberg.marker import find_marker

# Delta's own retention. Delta may have removed the data files of older snapshots.
RETENTION_MS = "dvsync.delta.retention-ms"
# In the summary of a snapshot: the tag that was set with it. It tells our tags from those of others.
TAG = "dvsync.tag"


@dataclass(frozen=True)
class Retention:
    """Which snapshots stay: the newest `count_min`, and up to `count_max` (on the main branch) that are not older than
    `age_max_ms`. A branch may have its own maximum age, but not above `age_cap_ms`.
    """

    age_max_ms: int
    age_cap_ms: int
    count_min: int
    count_max: int


def find_expired(
    metadata: TableMetadata,
    retention: Retention,
    *,
    now_ms: int,
    unreadable: Container[int] = (),
    ended: Container[str] = (),
) -> list[Snapshot]:
    """Return the snapshots to expire, the oldest first.

    A snapshot that a branch or tag points at, or that someone else committed, always stays. A branch's own
    `min-snapshots-to-keep` and `max-snapshot-age-ms` override `retention`. An `unreadable` snapshot of ours stays only
    if a branch or tag points at it. `ended` are tags that are removed together with the snapshots.
    """
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    kept = {ref.snapshot_id for name, ref in metadata.refs.items() if name not in ended}
    lines = {
        name: list(_ancestors(snapshots, ref.snapshot_id))
        for name, ref in metadata.refs.items()
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH
    }
    on_branch = {snapshot.snapshot_id for line in lines.values() for snapshot in line}
    loose = [snapshot for snapshot in snapshots.values() if snapshot.snapshot_id not in on_branch]
    # Our snapshots off every branch were on the main branch until a snapshot between was expired: count them as such.
    ours = [snapshot for snapshot in loose if find_marker(snapshot) is not None]
    lines.setdefault(MAIN_BRANCH, []).extend(sorted(ours, key=lambda each: each.sequence_number or 0, reverse=True))
    for name, line in lines.items():
        count_max = retention.count_max if name == MAIN_BRANCH else len(snapshots)
        ref = metadata.refs.get(name)
        count_min = (ref.min_snapshots_to_keep if ref else None) or retention.count_min
        age_max_ms = min((ref.max_snapshot_age_ms if ref else None) or retention.age_max_ms, retention.age_cap_ms)
        for number, snapshot in enumerate(line):
            is_young = now_ms - snapshot.timestamp_ms <= age_max_ms
            stays = number < count_min or (number < count_max and is_young)
            if stays and snapshot.snapshot_id not in unreadable:
                kept.add(snapshot.snapshot_id)
    # Keep the snapshots of others: their rows may exist nowhere else, if dvsync overwrote them or they are staged.
    kept |= {snapshot.snapshot_id for snapshot in snapshots.values() if find_marker(snapshot) is None}
    expired = [snapshot for snapshot in snapshots.values() if snapshot.snapshot_id not in kept]
    return sorted(expired, key=lambda snapshot: snapshot.timestamp_ms)


def _ancestors(snapshots: Mapping[int, Snapshot], snapshot_id: int) -> Iterator[Snapshot]:
    """Yield the snapshot and its ancestors, the newest first."""
    snapshot = snapshots.get(snapshot_id)
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else snapshots.get(parent)


@dataclass(frozen=True)
class Tag:
    """A tag, and how long it is kept. Its age is its snapshot's age, as in the Iceberg spec ("Snapshot References")."""

    name: str
    age_max_ms: int


def own_tags(metadata: TableMetadata) -> dict[str, int]:
    """Return the tags that dvsync has set and that still point at their snapshot, with the snapshot's id."""
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    return {
        name: ref.snapshot_id
        for name, ref in metadata.refs.items()
        if ref.snapshot_ref_type is SnapshotRefType.TAG
        and (summary := snapshots[ref.snapshot_id].summary) is not None
        and summary[TAG] == name
    }


def ended_tags(metadata: TableMetadata, *, now_ms: int) -> tuple[str, ...]:
    """Return dvsync's own tags whose `max-ref-age-ms` is over."""
    at_ms = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in metadata.snapshots}
    return tuple(
        name
        for name, snapshot_id in own_tags(metadata).items()
        if (age_max_ms := metadata.refs[name].max_ref_age_ms) is not None and now_ms - at_ms[snapshot_id] > age_max_ms
    )
