"""A version's checksum file: Delta's own totals of a table. PROTOCOL.md, "Version Checksum File".

Writers may omit it, and Delta computes each from the last one, so an error stays. A difference is a reason to compare
states, and no proof of an error in Iceberg.
"""

from __future__ import annotations

import msgspec

from state.records import Long


class Totals(msgspec.Struct, frozen=True):
    """Live data files, the sum of their sizes, and rows deleted by deletion vectors (None if it is absent)."""

    files: Long = msgspec.field(name="numFiles")
    size_bytes: Long = msgspec.field(name="tableSizeBytes")
    deleted_rows: Long | None = msgspec.field(name="numDeletedRecordsOpt", default=None)

    def more_than(self, other: Totals) -> Totals:
        """Return by how much these totals are greater. A number that is missing on a side counts as equal."""
        is_known = self.deleted_rows is not None and other.deleted_rows is not None
        deleted_rows = (self.deleted_rows or 0) - (other.deleted_rows or 0) if is_known else 0
        return Totals(self.files - other.files, self.size_bytes - other.size_bytes, deleted_rows)


NO_DIFFERENCE = Totals(0, 0, 0)
