"""What a snapshot's summary says about the Delta version that it shows: the truth about our progress."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

# All that dvsync puts into a table's properties and snapshots begins with it.
OURS = "dvsync."
TABLE_ID = "dvsync.delta.table-id"
VERSION = "dvsync.delta.version"
TIMESTAMP_MS = "dvsync.delta.timestamp-ms"
# Which dvsync committed it, by the place of its state database.
WRITER = "dvsync.writer"
# Only where one snapshot shows several Delta versions at once: the first of them.
FROM_VERSION = "dvsync.delta.from-version"
OPERATION = "dvsync.delta.operation"
# When a version changed the schema and no rows, table properties hold its TABLE_ID, VERSION and TIMESTAMP_MS, and here
# the snapshot that was current then, for which alone they are true.
DEFINED_ON = "dvsync.delta.defined-on-snapshot"


@dataclass(frozen=True)
class Marker:
    """The Delta table and version that a snapshot shows; `timestamp_ms` is that version's commit time, epoch, UTC.

    `writer` is who committed it, where it says so; it is written by the commit itself.
    """

    delta_table_id: str
    version: int
    timestamp_ms: int
    writer: str | None = None

    def to_summary(self, *, from_version: int | None = None, operation: str | None = None) -> dict[str, str]:
        summary = {
            TABLE_ID: self.delta_table_id,
            VERSION: str(self.version),
            TIMESTAMP_MS: str(self.timestamp_ms),
        }
        if from_version is not None and from_version != self.version:
            summary[FROM_VERSION] = str(from_version)
        if operation:
            summary[OPERATION] = operation
        return summary

    def to_properties(self, snapshot_id: int | None) -> dict[str, str]:
        """The stamp of a change of the table's definition while `snapshot_id` is current."""
        return {**self.to_summary(), DEFINED_ON: str(snapshot_id)}


def shown_by(table: Table) -> Marker | None:
    """The Delta version that the table shows: its current snapshot's, or a later one that changed only the schema."""
    marker = find_marker(table.current_snapshot())
    properties = table.properties
    if marker is None or properties.get(DEFINED_ON) != str(table.metadata.current_snapshot_id):
        return marker
    return Marker(properties[TABLE_ID], int(properties[VERSION]), int(properties[TIMESTAMP_MS]), properties.get(WRITER))


def is_marked(table: Table) -> bool:
    """Whether dvsync has ever committed to the table: a property or a snapshot that is still there says so."""
    return any(key.startswith(OURS) for key in table.properties) or any(
        find_marker(snapshot) is not None for snapshot in table.metadata.snapshots
    )


def find_marker(snapshot: Snapshot | None) -> Marker | None:
    """The marker of a snapshot that dvsync committed; None for anyone else's."""
    summary = snapshot.summary if snapshot else None
    if summary is None or summary[VERSION] is None:
        return None
    return Marker(
        delta_table_id=str(summary[TABLE_ID]),
        version=int(str(summary[VERSION])),
        timestamp_ms=int(str(summary[TIMESTAMP_MS])),
        writer=summary[WRITER],
    )
