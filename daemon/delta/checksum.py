"""A version's checksum file: Delta's own totals of a table at a version. PROTOCOL.md, "Version Checksum File".

Writers need not leave one, and a wrong one stops no reader: Delta carries its numbers on into the next ones. So a
difference is a reason to compare states, never a verdict.
"""

from __future__ import annotations

import msgspec

from state.records import Long


class Totals(msgspec.Struct, frozen=True):
    """Live data files, the sum of their sizes, and how many rows deletion vectors delete: None where it is not said."""

    files: Long = msgspec.field(name="numFiles")
    size_bytes: Long = msgspec.field(name="tableSizeBytes")
    deleted_rows: Long | None = msgspec.field(name="numDeletedRecordsOpt", default=None)

    def agrees_with(self, state: Totals) -> bool:
        """Whether all that is said here is what the whole `state` has."""
        deleted_rows = state.deleted_rows if self.deleted_rows is None else self.deleted_rows
        return (self.files, self.size_bytes, deleted_rows) == (state.files, state.size_bytes, state.deleted_rows)


_decoder = msgspec.json.Decoder(Totals)


def decode_checksum(data: bytes) -> Totals | None:
    """The totals in a checksum file; None for one that cannot be read, as Delta takes it."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
