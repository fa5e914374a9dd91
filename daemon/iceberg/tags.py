"""The tags that dvsync sets on the snapshots of chosen Delta versions. Those that others set are not touched."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType

# In the summary of a snapshot: the tag that was set with it. It tells our tags from those of others.
TAG = "dvsync.tag"


@dataclass(frozen=True)
class Tag:
    """A tag, and how long it is kept. Its age is its snapshot's age, as in the Iceberg spec ("Snapshot References")."""

    name: str
    age_max_ms: int


def tag_name(version: int) -> str:
    return f"delta-v{version}"


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
