"""Delta's actions, typed. Delta PROTOCOL.md, "Actions"; unknown fields and actions are ignored, as it demands.

Nothing here reads files; `log.py` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated
from urllib.parse import unquote

import msgspec

from state.records import DeletionVectorDescriptor, Int, Long

# The protocol says a GUID. The length is limited because every snapshot's summary repeats it.
TableId = Annotated[str, msgspec.Meta(max_length=200)]

# Iceberg numbers other rows from behind the largest id on, and no reader loads a table whose next id exceeds 64 bits.
ROW_IDS_END = 1 << 62


class _Action(msgspec.Struct, frozen=True, rename="camel"):
    """Struct base: frozen, camelCase in JSON."""


class AddFile(_Action, frozen=True, rename="camel"):
    """PROTOCOL.md, "Add File and Remove File", and "Row Tracking": `base_row_id` is the row id of the first row.

    The reader of the log resolves `path` (`resolve_path`); everywhere else it is plain and absolute.
    """

    path: str
    partition_values: dict[str, str | None]
    size: Long
    data_change: bool
    stats: str | None = None
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: Long | None = None

    @property
    def dv_unique_id(self) -> str | None:
        return self.deletion_vector.unique_id if self.deletion_vector else None

    @property
    def first_row_id(self) -> int | None:
        """The row id of the first row; None if there is none, or if it leaves too few numbers for later rows."""
        return None if self.base_row_id is None or not 0 <= self.base_row_id < ROW_IDS_END else self.base_row_id


class RemoveFile(_Action, frozen=True, rename="camel"):
    """A tombstone for the logical file (path, deletion vector's unique id). `path` is as in `AddFile`."""

    path: str
    data_change: bool
    deletion_vector: DeletionVectorDescriptor | None = None

    @property
    def dv_unique_id(self) -> str | None:
        return self.deletion_vector.unique_id if self.deletion_vector else None


class Metadata(_Action, frozen=True, rename="camel"):
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


class Protocol(_Action, frozen=True, rename="camel"):
    """PROTOCOL.md, "Protocol Evolution"."""

    min_reader_version: Int
    min_writer_version: Int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class Commit(msgspec.Struct, frozen=True):
    """One commit file, whole. `timestamp_ms` is the in-commit timestamp, else the file's modification time.

    `absolute_paths` are those files of the table's own folder that the log names by their absolute paths. Delta
    compares paths as they are written: the same file, named by its relative path, is another file for it.
    `size_bytes` is the file's; 0 for a commit that dvsync made by comparing states.
    """

    version: int
    timestamp_ms: int
    adds: tuple[AddFile, ...] = ()
    removes: tuple[RemoveFile, ...] = ()
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    operation: str | None = None
    absolute_paths: frozenset[str] = frozenset()
    size_bytes: int = 0

    @property
    def file_actions(self) -> tuple[AddFile | RemoveFile, ...]:
        return (*self.adds, *self.removes)


def resolve_path(table_location: str, path: str) -> str:
    """Return the plain absolute path of an action's URL-encoded `path`; a relative path begins at the table.

    PROTOCOL.md, "Add File and Remove File": paths are URIs of RFC 2396. `a%20b` names the file `a b`; Hive-style
    partition folders are escaped on disk too, so their `%` arrives here as `%25`.
    """
    decoded = unquote(path)
    if not is_absolute(path):
        return f"{table_location}/{decoded}"
    if path.startswith("/"):
        scheme, _, rest = table_location.partition("://")
        return f"file://{decoded}" if scheme == "file" else f"{scheme}://{rest.split('/', 1)[0]}{decoded}"
    return decoded if "://" in path else "file://" + decoded.removeprefix("file:")


def is_absolute(path: str) -> bool:
    """Return whether an action's `path` names its file without the table's location."""
    return "://" in path or path.startswith(("/", "file:/"))


def absolute_paths(table_location: str, paths: Iterable[str]) -> frozenset[str]:
    """Return the resolved paths of those files in the table's own folder that `paths` name absolutely."""
    resolved = (resolve_path(table_location, path) for path in paths if is_absolute(path))
    return frozenset(path for path in resolved if path.startswith(f"{table_location}/"))


def find_doubled(paths: Iterable[str]) -> tuple[str, int] | None:
    """Return a path that occurs more than once, with its count; None if all paths differ."""
    return next(((path, count) for path, count in Counter(paths).items() if count > 1), None)
