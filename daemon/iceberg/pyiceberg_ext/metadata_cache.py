"""Caches the table metadata that this process wrote or read, so that it need not be read again."""

from __future__ import annotations

from dataclasses import dataclass
from gzip import BadGzipFile
from posixpath import dirname
from time import monotonic

from pyiceberg.io import InputFile
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry
from pyiceberg.typedef import UTF8

from daemon.errors import ObjectMissing
from daemon.iceberg.pyiceberg_ext.records import unreadable
from daemon.store.durable import is_local
from daemon.store.recent import Recent

KNOWN_METADATA_MAX_BYTES = 64 << 20
# On an object store, where each check is a request, a file that was there is not asked for again for so long.
CHECK_INTERVAL_S = 60.0

# Estimated bytes in memory. The values for snapshots and columns were measured; METADATA_BYTES is a guess for the rest.
SNAPSHOT_BYTES, COLUMN_BYTES, METADATA_BYTES = 6000, 1200, 20_000


@dataclass
class _Entry:
    """Metadata in the file at `place`, which was there at `checked_s` of the monotonic clock."""

    place: str
    metadata: TableMetadata
    checked_s: float

    @property
    def size_bytes(self) -> int:
        columns = self.metadata.last_column_id * len(self.metadata.schemas)
        return METADATA_BYTES + SNAPSHOT_BYTES * len(self.metadata.snapshots) + COLUMN_BYTES * columns

    def is_there(self, input_file: InputFile) -> bool:
        """Return whether the file still exists: if somebody removed it, the table is broken for everyone else."""
        now_s = monotonic()
        if is_local(self.place) or now_s - self.checked_s >= CHECK_INTERVAL_S:
            if not input_file.exists():
                return False
            self.checked_s = now_s
        return True


# The newest metadata in each folder, which is a table's own. A commit reads it twice; with many snapshots that took
# most of its time. Metadata objects are immutable.
known_metadata: Recent[_Entry] = Recent(KNOWN_METADATA_MAX_BYTES, lambda entry: entry.size_bytes)
_read_metadata = FromInputFile.table_metadata


def find_or_read_metadata(input_file: InputFile, encoding: str = UTF8) -> TableMetadata:
    """Return the metadata from the cache, or read the file. Raises ObjectMissing and TargetUnreadable."""
    known = known_metadata.find(dirname(input_file.location))
    if known and known.place == input_file.location and known.is_there(input_file):
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
    add_metadata(input_file.location, metadata)
    return metadata


def add_metadata(place: str, metadata: TableMetadata) -> None:
    known_metadata.add(dirname(place), _Entry(place, metadata, monotonic()))


def remember_metadata() -> None:
    """Make this process cache the metadata that it reads and writes, for tables in any catalog. Patches PyIceberg.

    Goes once it caches metadata files itself (no issue is known) and copies nothing that never changes:
    https://github.com/apache/iceberg-python/pull/3784 says what the copies cost, and was closed.
    """
    # Every catalog client that reads metadata files calls this function.
    FromInputFile.table_metadata = staticmethod(find_or_read_metadata)  # type: ignore[method-assign]
    # Each commit deep-copies the metadata, also of every snapshot, although snapshots never change. Schemas
    # do not change either, except for cached attributes: copying fails while another thread computes one.
    for constant in (Snapshot, SnapshotLogEntry, MetadataLogEntry, Schema):
        constant.__deepcopy__ = lambda self, memo=None: self  # type: ignore[method-assign]
