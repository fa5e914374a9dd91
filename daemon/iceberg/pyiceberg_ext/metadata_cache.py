"""The metadata files that this process wrote, kept in memory: the next commit need not read them."""

from __future__ import annotations

from gzip import BadGzipFile
from threading import Lock
from uuid import UUID

from pyiceberg.io import InputFile
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry
from pyiceberg.typedef import UTF8

from daemon.errors import ObjectMissing
from daemon.iceberg.pyiceberg_ext.records import unreadable

WRITTEN_METADATA_MAX_BYTES = 64 << 20

# About what each takes in memory: snapshots and columns were measured, the rest is taken for as much.
SNAPSHOT_BYTES, COLUMN_BYTES, METADATA_BYTES = 6000, 1200, 20_000


class WrittenMetadata:
    """The newest metadata of the tables that this process committed to last, one a table.

    A commit reads the metadata twice, and most of its time went into that where snapshots are many. Nobody changes a
    metadata object, and nobody else writes to the names that we made up: a file of theirs is what we remember of it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        # By the table's uuid, and the uuids by the file's place.
        self._by_table: dict[UUID, tuple[str, TableMetadata, int]] = {}
        self._tables: dict[str, UUID] = {}
        self._lock = Lock()

    def add(self, place: str, metadata: TableMetadata) -> None:
        with self._lock:
            self._forget(metadata.table_uuid)
            columns = metadata.last_column_id * len(metadata.schemas)
            size = METADATA_BYTES + SNAPSHOT_BYTES * len(metadata.snapshots) + COLUMN_BYTES * columns
            self._by_table[metadata.table_uuid] = place, metadata, size
            self._tables[place] = metadata.table_uuid
            self._bytes += size
            while self._bytes > self._max_bytes:
                self._forget(next(iter(self._by_table)))

    def find(self, place: str) -> TableMetadata | None:
        with self._lock:
            table = self._tables.get(place)
            return None if table is None else self._by_table[table][1]

    def _forget(self, table: UUID) -> None:
        if table in self._by_table:
            place, _, size = self._by_table.pop(table)
            del self._tables[place]
            self._bytes -= size


written_metadata = WrittenMetadata(WRITTEN_METADATA_MAX_BYTES)
_read_metadata = FromInputFile.table_metadata


def find_or_read_metadata(input_file: InputFile, encoding: str = UTF8) -> TableMetadata:
    metadata = written_metadata.find(input_file.location)
    # One that somebody removed is missed as any other.
    if metadata and input_file.exists():
        return metadata
    hint = "Restore the file, or let `dvsync resync` go back to the newest one of the table that can be read."
    try:
        return _read_metadata(input_file, encoding)
    except FileNotFoundError as error:
        what = "the metadata file that the catalog names is not there"
        raise ObjectMissing(what, path=input_file.location, hint=hint) from error
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, BadGzipFile):
            raise
        raise unreadable(f"it cannot be decoded ({type(error).__name__})", input_file.location, hint) from error


def remember_metadata() -> None:
    """From now on this process remembers the metadata that it commits, whatever catalog a table is in."""
    # All catalogs whose client reads metadata files do it by this.
    FromInputFile.table_metadata = staticmethod(find_or_read_metadata)  # type: ignore[method-assign]
    # Each change of a table ends with a deep copy of its metadata: of every snapshot ever, none of which ever changes.
    # Nor does a schema, but for what it finds out of itself when asked: while another thread asks, it cannot be copied.
    for constant in (Snapshot, SnapshotLogEntry, MetadataLogEntry, Schema):
        constant.__deepcopy__ = lambda self, memo=None: self  # type: ignore[method-assign]
