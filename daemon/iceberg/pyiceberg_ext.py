"""The only place that touches PyIceberg's private names (pinned to 0.12.x), each with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from gzip import BadGzipFile
from threading import Lock
from typing import Any, Final, TypeVar
from uuid import UUID

from pydantic import Field, SerializeAsAny
from pyiceberg.avro.decoder import StreamingBinaryDecoder, new_decoder
from pyiceberg.avro.file import SYNC_SIZE, AvroFile, Block
from pyiceberg.avro.reader import Reader
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.io import FileIO, InputFile
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry
from pyiceberg.table.update import AddSchemaUpdate, TableRequirement, TableUpdate
from pyiceberg.typedef import UTF8, Record, StructProtocol

from daemon.durable import force_to_disk, make_folder_of
from daemon.errors import ObjectMissing, TargetUnreadable

D = TypeVar("D", bound=StructProtocol)


def stage_table(
    catalog: Catalog,
    identifier: str,
    *,
    schema: Schema,
    spec: PartitionSpec,
    location: str | None,
    properties: Mapping[str, str],
) -> Table:
    """A table that exists nowhere yet: its uuid, location and FileIO, as the catalog would have them."""
    transaction = catalog.create_table_transaction(
        identifier, schema=schema, location=location, partition_spec=spec, properties=dict(properties)
    )
    # The transaction offers no way to its staged table, and its own updates would give every field a new id.
    return transaction._table


Announce = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class _Commit:
    """The commit in work: whom to tell the names of metadata files, and which files they will lead to that this process
    has written and not forced to the disk yet.
    """

    announce: Announce
    written: Sequence[str]


_commit: ContextVar[_Commit | None] = ContextVar("commit", default=None)


def writes_metadata_files(catalog: Catalog) -> bool:
    """Whether the client of `catalog` names and writes metadata files. A REST catalog's server writes its own: which of
    them it still needs, for a branch or a tag of the whole catalog perhaps, is its business.
    """
    return isinstance(catalog, MetastoreCatalog)


def announce_metadata_files(catalog: Catalog) -> None:
    """From now on `commit_updates` tells the names of metadata files before `catalog` writes them, if it does, and
    forces them to the disk before `catalog` names them.
    """
    if not isinstance(catalog, MetastoreCatalog):
        return

    def write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        commit = _commit.get()
        if commit:
            commit.announce([metadata_path])
        make_folder_of(metadata_path)
        type(catalog)._write_metadata(metadata, io, metadata_path)
        # All at once, and their folder but once.
        force_to_disk([*(commit.written if commit else ()), metadata_path])

    # The name is made inside of the commit, and this is the first step that sees it.
    catalog._write_metadata = write_metadata  # type: ignore[method-assign]


WRITTEN_METADATA_MAX_BYTES = 64 << 20
# About what each takes in memory: snapshots and columns were measured, the rest is taken for as much.
SNAPSHOT_BYTES, COLUMN_BYTES, METADATA_BYTES = 6000, 1200, 20_000


class _WrittenMetadata:
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


_written_metadata = _WrittenMetadata(WRITTEN_METADATA_MAX_BYTES)
_read_metadata = FromInputFile.table_metadata


def _find_or_read_metadata(input_file: InputFile, encoding: str = UTF8) -> TableMetadata:
    metadata = _written_metadata.find(input_file.location)
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


# All catalogs whose client reads metadata files do it by this.
FromInputFile.table_metadata = staticmethod(_find_or_read_metadata)  # type: ignore[method-assign]

# Each change of a table ends with a deep copy of its metadata: of every snapshot ever, none of which ever changes. Nor
# does a schema, but for what it finds out of itself when asked: while another thread asks, it cannot be copied.
for _constant in (Snapshot, SnapshotLogEntry, MetadataLogEntry, Schema):
    _constant.__deepcopy__ = lambda self, memo=None: self  # type: ignore[method-assign]


class _AddSchemaUpdate(AddSchemaUpdate):
    last_column_id: int = Field(alias="last-column-id")


class _CommitTableRequest(CommitTableRequest):
    updates: tuple[SerializeAsAny[TableUpdate], ...]


def complete_rest_requests() -> None:
    """From now on clients of REST catalogs send all of what `added_schema` makes.

    Nessie 0.99 refuses `add-schema` without the field that the REST specification calls deprecated, and that Java
    clients send. PyIceberg does not have it, and writes no more of an update than it has.
    """
    # With its HTTP client it is a tenth of all that `dvsync sync` imports, and other catalogs do without.
    from pyiceberg.catalog import rest  # noqa: PLC0415

    rest.CommitTableRequest = _CommitTableRequest  # type: ignore[assignment, attr-defined]


def added_schema(schema: Schema, table: Table) -> TableUpdate:
    """Adds `schema`, in a way that every REST catalog takes."""
    return _AddSchemaUpdate(schema_=schema, last_column_id=max(schema.highest_field_id, table.metadata.last_column_id))


def commit_updates(
    table: Table,
    updates: tuple[TableUpdate, ...],
    requirements: tuple[TableRequirement, ...],
    announce: Announce,
    *,
    written: Sequence[str] = (),
) -> None:
    """One compare-and-swap at the catalog; `table` shows the new metadata afterwards.

    The files in `written` are on the disk before the catalog is asked.
    """
    if not writes_metadata_files(table.catalog):
        force_to_disk(written)
    in_work = _commit.set(_Commit(announce, written))
    try:
        # Transactions bring their own snapshot producers and retries; this is the step below them, which also applies
        # `write.metadata.delete-after-commit.enabled`.
        table._do_commit(updates=updates, requirements=requirements)
        if writes_metadata_files(table.catalog):
            _written_metadata.add(table.metadata_location, table.metadata)
    finally:
        _commit.reset(in_work)


class ResolvedAvroFile(AvroFile[D]):
    """Reads with what `resolve` makes of the file's Avro schema, and may remember: a manifest list is read faster than
    its schema.
    """

    def __init__(self, input_file: InputFile, resolve: Callable[[str], Reader]) -> None:
        super().__init__(input_file)
        self._resolve = resolve

    def records(self) -> list[D]:
        """All records of the file. Raises TargetUnreadable; what the store raises stays as it is."""
        with self.input_file.open() as stream:
            data = stream.read()
        # Whatever a decoder may stumble over in bytes that are not Avro.
        try:
            self.decoder = new_decoder(data)
            self.header = self._read_header()
            # PyIceberg's compiled decoder reads on behind the end of a file that was cut, in whatever memory is there.
            if not data.endswith(self.header.sync):
                raise ValueError("the sync bytes at its end are missing")
            self.reader = self._resolve(self.header.meta["avro.schema"])
            return list(self)
        except Exception as error:
            why = f"it cannot be decoded ({type(error).__name__}: {error})"
            raise unreadable(why, self.input_file.location) from error


ANEW = "Restore the file, or let `dvsync resync` write the newest snapshot anew from Delta's state."


def unreadable(why: str, path: str, hint: str = ANEW) -> TargetUnreadable:
    return TargetUnreadable(f"a metadata file of the Iceberg table is damaged: {why}", path=path, hint=hint)


class PreciseAvroFile(ResolvedAvroFile[D]):
    """Reads doubles as doubles: PyIceberg 0.12's compiled decoder takes them for floats. Several times slower."""

    def _read_block(self) -> int:
        # The block's decoder is made in here and nowhere else.
        if self.block and self.decoder.read(SYNC_SIZE) != self.header.sync:
            raise ValueError("the sync bytes of a block are wrong")
        records = self.decoder.read_int()
        data = self.decoder.read_bytes()
        codec = self.header.compression_codec()
        decoder = StreamingBinaryDecoder(codec.decompress(data) if codec else data)
        self.block = Block(reader=self.reader, block_records=records, block_decoder=decoder)
        return records


# Records are held in the shape of v3, the widest, which only this parameter of PyIceberg's records selects; files are
# written in the table's own version.
RECORD_VERSION: Final = 3


def data_file_record(partition: Sequence[Any], **fields: Any) -> DataFile:
    """A `data_file` of Iceberg spec, "Data File Fields", by field names; what is not given is null."""
    return DataFile.from_args(_table_format_version=RECORD_VERSION, partition=Record(*partition), **fields)


def entry_record(status: ManifestEntryStatus, data_file: DataFile, **fields: Any) -> ManifestEntry:
    """A `manifest_entry` of Iceberg spec, "Manifests"."""
    return ManifestEntry.from_args(_table_format_version=RECORD_VERSION, status=status, data_file=data_file, **fields)


def manifest_record(**fields: Any) -> ManifestFile:
    """A `manifest_file` of Iceberg spec, "Manifest Lists", by field names; what is not given is null."""
    return ManifestFile.from_args(_table_format_version=RECORD_VERSION, **fields)
