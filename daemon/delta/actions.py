"""Delta's actions and totals, typed. PROTOCOL.md, "Actions": unknown fields and actions are ignored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, TypeVar

import msgspec

from state.records import CommitIdentity, DeletionVectorDescriptor, Int, Long

T = TypeVar("T")

# Which of the files at one path an action means, as Delta compares them: the `uri` of `AddFile` and its deletion
# vector's unique id. With the path, this is a logical file.
Identity = tuple[str | None, str | None]
LogicalFile = tuple[str, Identity]

# The protocol says a GUID. The length is limited because every snapshot's summary repeats it.
TableId = Annotated[str, msgspec.Meta(max_length=200)]

# Iceberg numbers other rows from behind the largest id on, and no reader loads a table whose next id exceeds 64 bits.
ROW_IDS_END = 1 << 62


class FileAction(msgspec.Struct, frozen=True, rename="camel"):
    """PROTOCOL.md, "Add File and Remove File".

    In the log, `path` is a URI. Its reader replaces `path` and `uri` by what `name_file` (uri.py) returns: a plain
    absolute path, by which files are opened, and the URI, by which Delta compares files.
    """

    path: str
    data_change: bool
    deletion_vector: DeletionVectorDescriptor | None = None
    uri: str | None = None

    @property
    def dv_unique_id(self) -> str | None:
        return self.deletion_vector.unique_id if self.deletion_vector else None

    @property
    def identity(self) -> Identity:
        return self.uri, self.dv_unique_id

    @property
    def logical_file(self) -> LogicalFile:
        return self.path, self.identity


class RemoveFile(FileAction, frozen=True, rename="camel"):
    """A tombstone for one logical file."""


class AddFile(FileAction, frozen=True, rename="camel", kw_only=True):
    """PROTOCOL.md, "Row Tracking": `base_row_id` is the row id of the first row."""

    partition_values: dict[str, str | None]
    size: Long
    stats: str | None = None
    base_row_id: Long | None = None

    @property
    def first_row_id(self) -> int | None:
        """The row id of the first row; None if there is none, or if it leaves too few numbers for later rows."""
        return None if self.base_row_id is None or not 0 <= self.base_row_id < ROW_IDS_END else self.base_row_id


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """PROTOCOL.md, "Change Metadata". `id` is the table's identity; `schema_string` is Spark's JSON."""

    id: TableId
    schema_string: str
    partition_columns: list[str]
    configuration: dict[str, str]
    name: str | None = None
    description: str | None = None

    @property
    def column_mapping_mode(self) -> str:
        """PROTOCOL.md, "Column Mapping": none, name or id."""
        return self.configuration.get("delta.columnMapping.mode", "none")


class Protocol(msgspec.Struct, frozen=True, rename="camel"):
    """PROTOCOL.md, "Protocol Evolution"."""

    min_reader_version: Int
    min_writer_version: Int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class Commit(msgspec.Struct, frozen=True):
    """One commit file, whole. `timestamp_ms` is the in-commit timestamp, else the file's modification time.

    `size_bytes` is the file's, 0 if dvsync made the commit by comparing states. `recent_commits` are to be remembered.
    """

    version: int
    timestamp_ms: int
    adds: tuple[AddFile, ...] = ()
    removes: tuple[RemoveFile, ...] = ()
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    operation: str | None = None
    size_bytes: int = 0
    recent_commits: tuple[CommitIdentity, ...] = ()

    @property
    def file_actions(self) -> tuple[FileAction, ...]:
        return (*self.adds, *self.removes)


class Totals(msgspec.Struct, frozen=True):
    """PROTOCOL.md, "Version Checksum File": the live data files, and the rows that deletion vectors delete.

    Writers may omit the file, and Delta computes each from the last one, so an error stays. A difference is a reason to
    compare states, and no proof of an error in Iceberg.
    """

    files: Long = msgspec.field(name="numFiles")
    size_bytes: Long = msgspec.field(name="tableSizeBytes")
    deleted_rows: Long | None = msgspec.field(name="numDeletedRecordsOpt", default=None)

    def more_than(self, other: Totals) -> Totals:
        """Return by how much these totals are greater. A number that is missing on a side counts as equal."""
        is_known = self.deleted_rows is not None and other.deleted_rows is not None
        deleted_rows = (self.deleted_rows or 0) - (other.deleted_rows or 0) if is_known else 0
        return Totals(self.files - other.files, self.size_bytes - other.size_bytes, deleted_rows)


NO_DIFFERENCE = Totals(0, 0, 0)


def find_doubled(values: Iterable[T]) -> tuple[T, int] | None:
    """Return a value that occurs more than once, with its count; None if all values differ."""
    return next(((value, count) for value, count in Counter(values).items() if count > 1), None)
