"""The only place that touches PyIceberg's private names (pinned to 0.12.x), each with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from threading import Lock
from typing import Any, Final, Self, TypeVar

from pydantic import Field, SerializeAsAny
from pyiceberg.avro.decoder import StreamingBinaryDecoder, new_decoder
from pyiceberg.avro.file import SYNC_SIZE, AvroFile, Block
from pyiceberg.avro.reader import Reader
from pyiceberg.catalog import Catalog, MetastoreCatalog, rest
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
_announce: ContextVar[Announce | None] = ContextVar("announce", default=None)


def writes_metadata_files(catalog: Catalog) -> bool:
    """Whether the client of `catalog` names and writes metadata files. A REST catalog's server writes its own: which of
    them it still needs, for a branch or a tag of the whole catalog perhaps, is its business.
    """
    return isinstance(catalog, MetastoreCatalog)


def announce_metadata_files(catalog: Catalog) -> None:
    """From now on `commit_updates` can tell the names of metadata files before `catalog` writes them, if it does."""
    if not isinstance(catalog, MetastoreCatalog):
        return

    def write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        announce = _announce.get()
        if announce:
            announce([metadata_path])
        type(catalog)._write_metadata(metadata, io, metadata_path)
        _written_metadata.add(metadata_path, metadata)

    # The name is made inside of the commit, and this is the first step that sees it.
    catalog._write_metadata = write_metadata  # type: ignore[method-assign]


# Some 6 kB each.
WRITTEN_SNAPSHOTS_MAX = 10_000


class _WrittenMetadata:
    """The newest metadata of the tables that this process committed to last, by the place of the file.

    A commit reads the metadata twice, and most of its time went into that where snapshots are many. Nobody changes a
    metadata object, and nobody else writes to the names that we made up: a file of theirs is what we remember of it.
    """

    def __init__(self, snapshots_max: int) -> None:
        self._snapshots_max = snapshots_max
        self._snapshots = 0
        self._by_place: dict[str, TableMetadata] = {}
        self._lock = Lock()

    def add(self, place: str, metadata: TableMetadata) -> None:
        with self._lock:
            if metadata.metadata_log:
                self._forget(metadata.metadata_log[-1].metadata_file)
            self._by_place[place] = metadata
            self._snapshots += len(metadata.snapshots)
            while self._snapshots > self._snapshots_max:
                self._forget(next(iter(self._by_place)))

    def find(self, place: str) -> TableMetadata | None:
        with self._lock:
            return self._by_place.get(place)

    def _forget(self, place: str) -> None:
        metadata = self._by_place.pop(place, None)
        self._snapshots -= len(metadata.snapshots) if metadata else 0


_written_metadata = _WrittenMetadata(WRITTEN_SNAPSHOTS_MAX)
_read_metadata = FromInputFile.table_metadata


def _find_or_read_metadata(input_file: InputFile, encoding: str = UTF8) -> TableMetadata:
    metadata = _written_metadata.find(input_file.location)
    # One that somebody removed is missed as any other.
    return metadata if metadata and input_file.exists() else _read_metadata(input_file, encoding)


# All catalogs whose client reads metadata files do it by this.
FromInputFile.table_metadata = staticmethod(_find_or_read_metadata)  # type: ignore[method-assign]

# Each change of a table ends with a deep copy of its metadata: of every snapshot ever, none of which ever changes.
for _constant in (Snapshot, SnapshotLogEntry, MetadataLogEntry):
    _constant.__deepcopy__ = lambda self, memo=None: self  # type: ignore[method-assign]


class _AddSchemaUpdate(AddSchemaUpdate):
    last_column_id: int = Field(alias="last-column-id")


class _CommitTableRequest(CommitTableRequest):
    updates: tuple[SerializeAsAny[TableUpdate], ...]


# Nessie 0.99 refuses `add-schema` without the field that the REST specification calls deprecated, and that Java clients
# send. PyIceberg does not have it, and writes no more of an update than it has.
rest.CommitTableRequest = _CommitTableRequest  # type: ignore[assignment, attr-defined]


def added_schema(schema: Schema, table: Table) -> TableUpdate:
    """Adds `schema`, in a way that every REST catalog takes."""
    return _AddSchemaUpdate(schema_=schema, last_column_id=max(schema.highest_field_id, table.metadata.last_column_id))


def commit_updates(
    table: Table, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...], announce: Announce
) -> None:
    """One compare-and-swap at the catalog; `table` shows the new metadata afterwards."""
    announced = _announce.set(announce)
    try:
        # Transactions bring their own snapshot producers and retries; this is the step below them, which also applies
        # `write.metadata.delete-after-commit.enabled`.
        table._do_commit(updates=updates, requirements=requirements)
    finally:
        _announce.reset(announced)


class ResolvedAvroFile(AvroFile[D]):
    """Reads with what `resolve` makes of the file's Avro schema, and may remember: a manifest list is read faster than
    its schema.
    """

    def __init__(self, input_file: InputFile, resolve: Callable[[str], Reader]) -> None:
        super().__init__(input_file)
        self._resolve = resolve

    def __enter__(self) -> Self:
        with self.input_file.open() as stream:
            self.decoder = new_decoder(stream.read())
        self.header = self._read_header()
        self.reader = self._resolve(self.header.meta.get("avro.schema", ""))
        return self


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
