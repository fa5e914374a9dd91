"""Caches the table metadata that this process wrote or read, so that it need not be read again."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from gzip import BadGzipFile
from threading import Lock
from time import monotonic
from uuid import UUID

from pyiceberg.io import InputFile
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry
from pyiceberg.typedef import UTF8

from daemon.errors import ObjectMissing
from daemon.iceberg.pyiceberg_ext.records import unreadable
from daemon.store.durable import is_local

KNOWN_METADATA_MAX_BYTES = 64 << 20
# On an object store, where each check is a request, a file that was there is not asked for again for so long.
CHECK_INTERVAL_S = 60.0

# Estimated bytes in memory. The values for snapshots and columns were measured; METADATA_BYTES is a guess for the rest.
SNAPSHOT_BYTES, COLUMN_BYTES, METADATA_BYTES = 6000, 1200, 20_000
# What an entry needs besides its packed metadata.
PACKED_BYTES = 1000


@dataclass
class _Entry:
    """Metadata in the file at `place`, which was there at `checked_s` of the monotonic clock.

    If it is packed, it is compressed JSON.
    """

    place: str
    kept: TableMetadata | bytes
    size_bytes: int
    checked_s: float

    @property
    def metadata(self) -> TableMetadata:
        if isinstance(self.kept, bytes):
            return TableMetadataUtil.parse_raw(zlib.decompress(self.kept).decode())
        return self.kept

    def packed(self) -> _Entry:
        packed = zlib.compress(self.metadata.model_dump_json().encode(), level=1)
        return _Entry(self.place, packed, len(packed) + PACKED_BYTES, self.checked_s)

    def is_there(self, input_file: InputFile) -> bool:
        """Return whether the file still exists: if somebody removed it, the table is broken for everyone else."""
        now_s = monotonic()
        if is_local(self.place) or now_s - self.checked_s >= CHECK_INTERVAL_S:
            if not input_file.exists():
                return False
            self.checked_s = now_s
        return True


class KnownMetadata:
    """A cache of the newest metadata of each table that this process wrote or read.

    Where memory is short, the oldest entries are packed, and when all but the newest are, the oldest are dropped. A
    commit reads the metadata twice; with many snapshots that took most of its time. The cache is safe: metadata
    objects are immutable, and a metadata file's unique name is written once.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        # The entries by table uuid, those of them that are not packed, and the uuids by the path of the metadata file.
        self._by_table: dict[UUID, _Entry] = {}
        self._unpacked: dict[UUID, _Entry] = {}
        self._tables: dict[str, UUID] = {}
        self._lock = Lock()

    def add(self, place: str, metadata: TableMetadata) -> None:
        with self._lock:
            self._forget(metadata.table_uuid)
            columns = metadata.last_column_id * len(metadata.schemas)
            size = METADATA_BYTES + SNAPSHOT_BYTES * len(metadata.snapshots) + COLUMN_BYTES * columns
            entry = _Entry(place, metadata, size, monotonic())
            self._by_table[metadata.table_uuid] = self._unpacked[metadata.table_uuid] = entry
            self._tables[place] = metadata.table_uuid
            self._bytes += size
            while self._bytes > self._max_bytes:
                if len(self._unpacked) > 1:
                    self._pack(next(iter(self._unpacked)))
                else:
                    self._forget(next(iter(self._by_table)))

    def find(self, place: str) -> _Entry | None:
        with self._lock:
            table = self._tables.get(place)
            return None if table is None else self._by_table[table]

    def _pack(self, table: UUID) -> None:
        entry = self._unpacked.pop(table)
        packed = self._by_table[table] = entry.packed()
        self._bytes += packed.size_bytes - entry.size_bytes

    def _forget(self, table: UUID) -> None:
        if table in self._by_table:
            entry = self._by_table.pop(table)
            self._unpacked.pop(table, None)
            del self._tables[entry.place]
            self._bytes -= entry.size_bytes


known_metadata = KnownMetadata(KNOWN_METADATA_MAX_BYTES)
_read_metadata = FromInputFile.table_metadata


def find_or_read_metadata(input_file: InputFile, encoding: str = UTF8) -> TableMetadata:
    """Return the metadata from the cache, or read the file. Raises ObjectMissing and TargetUnreadable."""
    known = known_metadata.find(input_file.location)
    if known and known.is_there(input_file):
        return known.metadata
    hint = (
        "Restore the file and run `dvsync resume`, or run `dvsync resync`, which goes back to the newest readable "
        "metadata file of the table."
    )
    try:
        metadata = _read_metadata(input_file, encoding)
    except FileNotFoundError as error:
        what = "the metadata file that the catalog names is not there"
        raise ObjectMissing(what, path=input_file.location, hint=hint) from error
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, BadGzipFile):
            raise
        raise unreadable(f"it cannot be decoded ({type(error).__name__})", input_file.location, hint) from error
    known_metadata.add(input_file.location, metadata)
    return metadata


def remember_metadata() -> None:
    """Make this process cache the metadata that it reads and writes, for tables in any catalog. Patches PyIceberg."""
    # Every catalog client that reads metadata files calls this function.
    FromInputFile.table_metadata = staticmethod(find_or_read_metadata)  # type: ignore[method-assign]
    # Each commit deep-copies the metadata, also of every snapshot, although snapshots never change. Schemas
    # do not change either, except for cached attributes: copying fails while another thread computes one.
    for constant in (Snapshot, SnapshotLogEntry, MetadataLogEntry, Schema):
        constant.__deepcopy__ = lambda self, memo=None: self  # type: ignore[method-assign]
