"""The marker in a snapshot's summary: which Delta version the snapshot shows. The marker defines our progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

# All keys that dvsync writes into table properties and snapshot summaries begin with this prefix.
OURS = "dvsync."
TABLE_ID = "dvsync.delta.table-id"
VERSION = "dvsync.delta.version"
TIMESTAMP_MS = "dvsync.delta.timestamp-ms"
# The dvsync that committed the snapshot: the location of its state database, and its share, such as 1/2.
WRITER = "dvsync.writer"
SHARE = "dvsync.share"
# If one snapshot shows several Delta versions at once: the first of them.
FROM_VERSION = "dvsync.delta.from-version"
OPERATION = "dvsync.delta.operation"
# A version that changes the schema but no rows makes no snapshot. Its TABLE_ID, VERSION and TIMESTAMP_MS are then table
# properties, and this key names the snapshot that was current. They are valid only while it is still the current one.
DEFINED_ON = "dvsync.delta.defined-on-snapshot"


@dataclass(frozen=True)
class Marker:
    """The Delta table and version that a snapshot shows, that version's commit time (epoch, UTC), and who committed the
    snapshot, if known; `Target.commit` writes `writer` and `share`.
    """

    delta_table_id: str
    version: int
    timestamp_ms: int
    writer: str | None = None
    share: str | None = None

    def to_summary(self, *, from_version: int | None = None, operation: str | None = None) -> dict[str, str]:
        summary = {TABLE_ID: self.delta_table_id, VERSION: str(self.version), TIMESTAMP_MS: str(self.timestamp_ms)}
        if from_version is not None and from_version != self.version:
            summary[FROM_VERSION] = str(from_version)
        if operation:
            summary[OPERATION] = operation
        return summary


def shown_by(table: Table) -> Marker | None:
    """Return the Delta version that the table shows: that of its current snapshot, or a later, schema-only version."""
    return marker_at(table, table.current_snapshot())


def marker_at(table: Table, snapshot: Snapshot | None) -> Marker | None:
    """Return the Delta version that the table showed last while this snapshot was current."""
    marker = find_marker(snapshot)
    if marker is None or snapshot is None or table.properties.get(DEFINED_ON) != str(snapshot.snapshot_id):
        return marker
    return _marker_in(table.properties)


def find_own(table: Table) -> Snapshot | None:
    """Return the newest snapshot of dvsync's on which the current one is based, or which is it."""
    return next((each for each in ancestors_of(table.current_snapshot(), table.metadata) if find_marker(each)), None)


def is_marked(table: Table) -> bool:
    """Return whether dvsync has committed to the table: it has a `dvsync.` property or a snapshot with a marker."""
    return any(key.startswith(OURS) for key in table.properties) or any(
        find_marker(snapshot) is not None for snapshot in table.metadata.snapshots
    )


def find_marker(snapshot: Snapshot | None) -> Marker | None:
    """Return the marker of a snapshot; None if dvsync did not commit it."""
    summary = snapshot.summary if snapshot else None
    return None if summary is None or summary[VERSION] is None else _marker_in(summary)


def _marker_in(values: Mapping[str, str]) -> Marker:
    version, timestamp_ms = int(values[VERSION]), int(values[TIMESTAMP_MS])
    return Marker(values[TABLE_ID], version, timestamp_ms, values.get(WRITER), values.get(SHARE))
