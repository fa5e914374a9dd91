"""Manifests and manifest lists: Iceberg spec, "Manifests" and "Manifest Lists".

PyIceberg 0.12 writes only data manifests, and ignores the fields 142 to 145 when it reads. This module reads and writes
its record types with the newest schema of the format, so that a rewrite loses no field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial, reduce
from operator import itemgetter
from typing import cast

from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    construct_partition_summaries,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DoubleType, NestedField, StringType, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from daemon.iceberg.pyiceberg_ext.file_io import written_manifests
from daemon.iceberg.pyiceberg_ext.records import (
    RECORD_VERSION,
    AvroFormat,
    BlockAvroOutput,
    PreciseAvroFile,
    ResolvedAvroFile,
    manifest_record,
    unreadable,
    values_of,
)
from daemon.longs import add_longs
from daemon.store.durable import make_folder_of, place_to_write, put_in_place
from daemon.store.recent import Recent

# Removing one file rewrites its whole manifest, so the manifest's size bounds the cost of a small commit.
MANIFEST_ENTRIES_MAX = 1000
# Records of manifest lists as they are written, by their fields: nearly all of a list are those of the list before.
_encoded_records: Recent[bytes] = Recent(4096)
# Long lists by their paths, whose files never change: the next commit to a large table reads the list that this one
# wrote. Bounded by their records together, of 1.5 kB each.
_long_lists: Recent[Sequence[ManifestFile]] = Recent(5000, len)
LONG_LIST_MIN = 100
# Iceberg spec, "Data File Fields", 143: optional in v2, but missing in PyIceberg's v2 schema.
REFERENCED_DATA_FILE = NestedField(
    field_id=143, name="referenced_data_file", field_type=StringType(), required=False, doc="Data file of all deletes"
)
# PyIceberg's records have no names for some fields, and do not let others be set by name.
_IN_DATA_FILE = {field.name: place for place, field in enumerate(DATA_FILE_TYPE[RECORD_VERSION].fields)}
_IN_MANIFEST_FILE = {field.name: place for place, field in enumerate(MANIFEST_LIST_FILE_SCHEMAS[RECORD_VERSION].fields)}
# Fields of a record that this module made or read: 143, 142 (the `_row_id` of the file's first row), 144 and 145.
referenced_data_file: Callable[[DataFile], str | None] = itemgetter(_IN_DATA_FILE["referenced_data_file"])
first_row_id: Callable[[DataFile], int | None] = itemgetter(_IN_DATA_FILE["first_row_id"])
_content = itemgetter(_IN_DATA_FILE["content_offset"], _IN_DATA_FILE["content_size_in_bytes"])
_row_ids_of_manifest: Callable[[ManifestFile], int | None] = itemgetter(_IN_MANIFEST_FILE["first_row_id"])


def has_row_lineage(format_version: int) -> bool:
    """Iceberg spec, "Row Lineage": from format version 3 on, rows have ids."""
    return format_version > 2


def with_fields_of(former: DataFile, data_file: DataFile, *names: str) -> DataFile:
    """Give `data_file` the spec and these fields of another record, and return it."""
    for name in names:
        data_file[_IN_DATA_FILE[name]] = former[_IN_DATA_FILE[name]]
    data_file.spec_id = former.spec_id
    return data_file


def end_of_row_ids(data_file: DataFile) -> int:
    """Return the row id after those that Delta gave to the file's rows; 0 if it gave none."""
    first = first_row_id(data_file)
    return 0 if first is None else add_longs(first, data_file.record_count)


def content_span(data_file: DataFile) -> tuple[int, int] | None:
    """Return where a deletion vector is in its Puffin file: offset and size in bytes."""
    offset, size = _content(data_file)
    return None if offset is None or size is None else (offset, size)


# What an entry is known by in its snapshot: the path, or for a deletion vector those of its Puffin and data file.
EntryKey = str | tuple[str, str]


def entry_key(data_file: DataFile) -> EntryKey:
    served = referenced_data_file(data_file) if data_file.file_format is FileFormat.PUFFIN else None
    return data_file.file_path if served is None else (data_file.file_path, served)


def schema_with_sources(spec: PartitionSpec, schemas: Iterable[Schema]) -> Schema:
    """Return the first of `schemas`, the current one first, that has every column of `spec`: some may be dropped."""
    sources = {field.source_id for field in spec.fields}
    return next(schema for schema in schemas if sources <= schema.field_ids)


def _entry_schema(partition_type: StructType, version: int) -> Schema:
    data_file = data_file_with_partition(partition_type, version)  # type: ignore[arg-type]
    if data_file.fields[-1].field_id < REFERENCED_DATA_FILE.field_id:
        data_file = StructType(*data_file.fields, REFERENCED_DATA_FILE)
    return manifest_entry_schema_with_data_file(version, data_file)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ManifestHeader:
    """What all entries of a manifest have in common: Iceberg spec, "Manifests", the key-value metadata."""

    content: ManifestContent
    schema: Schema
    spec: PartitionSpec
    format_version: int = 2


def write_manifest(
    io: FileIO,
    path: str,
    header: ManifestHeader,
    entries: Sequence[ManifestEntry],
    *,
    snapshot_id: int,
    at_once: bool = False,
) -> ManifestFile:
    """Write a manifest of at least one entry; the commit sets its sequence number. `at_once` as in `place_to_write`.

    Added entries carry no sequence numbers: they inherit the snapshot's (Iceberg spec, "Sequence Number Inheritance").
    """
    content, schema, spec, format_version = header.content, header.schema, header.spec, header.format_version
    metadata = {
        "schema": schema.model_dump_json(),
        "schema-id": str(schema.schema_id),
        "partition-spec": "[" + ",".join(field.model_dump_json() for field in spec.fields) + "]",
        "partition-spec-id": str(spec.spec_id),
        "format-version": str(format_version),
        "content": "deletes" if content is ManifestContent.DELETES else "data",
    }
    place, partition_type = place_to_write(path, at_once=at_once), spec.partition_type(schema)
    avro = _entry_format(partition_type, format_version)
    with BlockAvroOutput(io.new_output(place), avro, metadata) as output:
        size_bytes = output.write_encoded([avro.encode(entry) for entry in entries])
    put_in_place(place, path)
    counts: dict[str, int] = {}
    for status in ManifestEntryStatus:
        rows = [entry.data_file.record_count for entry in entries if entry.status is status]
        counts[f"{status.name.lower()}_files_count"] = len(rows)
        counts[f"{status.name.lower()}_rows_count"] = reduce(add_longs, rows, 0)
    live = (entry.sequence_number for entry in entries if entry.status is not ManifestEntryStatus.DELETED)
    return manifest_record(
        manifest_path=path,
        manifest_length=size_bytes,
        partition_spec_id=spec.spec_id,
        content=content,
        sequence_number=None,
        min_sequence_number=min((number for number in live if number is not None), default=None),
        added_snapshot_id=snapshot_id,
        partitions=construct_partition_summaries(spec, schema, [entry.data_file.partition for entry in entries]),
        **counts,
    )


def read_entries(
    io: FileIO, manifest: ManifestFile, *, spec: PartitionSpec, schema: Schema, live: bool = True
) -> list[ManifestEntry]:
    """Return the live entries of a manifest, or the deleted ones. Null snapshot ids and sequence numbers are inherited.

    Raises TargetUnreadable, also if the manifest list has another number of entries.
    """
    doubles = any(isinstance(schema.find_type(field.source_id), DoubleType) for field in spec.fields)
    file_type: type[ResolvedAvroFile[ManifestEntry]] = PreciseAvroFile if doubles else ResolvedAvroFile
    resolve = partial(_entry_reader, spec.partition_type(schema))
    read = file_type(io.new_input(manifest.manifest_path), resolve).records()
    listed = (manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count)
    expected = sum(count or 0 for count in listed)
    # Compare the counts: the Avro reader accepts a file that was cut between two blocks.
    if None not in listed and len(read) != expected:
        why = f"it has {len(read)} entries, but the manifest list says {expected}"
        raise unreadable(why, manifest.manifest_path)
    if manifest.content is ManifestContent.DATA:
        _inherit_row_ids(read, _row_ids_of_manifest(manifest))
    entries = [entry for entry in read if (entry.status is not ManifestEntryStatus.DELETED) is live]
    for entry in entries:
        entry.data_file.spec_id = manifest.partition_spec_id
        if entry.snapshot_id is None:
            entry.snapshot_id = manifest.added_snapshot_id or 0
        if entry.sequence_number is None:
            entry.sequence_number = manifest.sequence_number
        if entry.file_sequence_number is None:
            entry.file_sequence_number = manifest.sequence_number
    return entries


def _inherit_row_ids(entries: Iterable[ManifestEntry], next_row_id: int | None) -> None:
    """Give a manifest's live data files row ids from `next_row_id` on. Iceberg spec, "First Row ID Inheritance"."""
    for entry in entries:
        if entry.status is not ManifestEntryStatus.DELETED and first_row_id(entry.data_file) is None:
            entry.data_file[_IN_DATA_FILE["first_row_id"]] = next_row_id
            if next_row_id is not None:
                next_row_id += entry.data_file.record_count


def read_manifest_list(io: FileIO, path: str) -> list[ManifestFile]:
    """Read all records of a manifest list, which must not be changed. Raises TargetUnreadable."""
    known = _long_lists.find(path)
    if known is None:
        known = ResolvedAvroFile[ManifestFile](io.new_input(path), _list_reader).records()
        _keep_list(path, known)
    return list(known)


def forget_metadata() -> None:
    """Forget what this process remembers of manifests and manifest lists: the next reads show what readers find."""
    _long_lists.clear()
    written_manifests.clear()


def _keep_list(path: str, manifests: Sequence[ManifestFile]) -> None:
    if len(manifests) >= LONG_LIST_MIN:
        _long_lists.add(path, manifests)


# Building formats and readers takes as long as writing a small manifest, so they are cached.
@lru_cache(maxsize=256)
def _entry_format(partition_type: StructType, version: int) -> AvroFormat[ManifestEntry]:
    records = _entry_schema(partition_type, RECORD_VERSION)
    return AvroFormat("manifest_entry", _entry_schema(partition_type, version), records)


@cache
def _list_format(version: int) -> AvroFormat[ManifestFile]:
    schemas = MANIFEST_LIST_FILE_SCHEMAS
    return AvroFormat("manifest_file", schemas[version], schemas[RECORD_VERSION])


@lru_cache(maxsize=256)
def _entry_reader(partition_type: StructType, avro_schema: str) -> Reader:
    return resolve_reader(
        _schema_of(avro_schema),
        _entry_schema(partition_type, RECORD_VERSION),
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )


@lru_cache(maxsize=32)
def _list_reader(avro_schema: str) -> Reader:
    return resolve_reader(
        _schema_of(avro_schema),
        MANIFEST_LIST_FILE_SCHEMAS[RECORD_VERSION],
        read_types={-1: ManifestFile, 508: PartitionFieldSummary},
        read_enums={517: ManifestContent},
    )


def _schema_of(avro_schema: str) -> Schema:
    return AvroSchemaConversion().avro_to_iceberg(json.loads(avro_schema))


def write_manifest_list(
    io: FileIO, manifests: Iterable[ManifestFile], snapshot: Snapshot, format_version: int = 2
) -> int:
    """Write the list of `snapshot`. New manifests, which have no sequence number, get the snapshot's.

    From version 3 on, data manifests without row ids get those from the snapshot's first one on. Returns the next free
    row id. The given records are not changed, so that a retry can write them with other numbers.
    """
    path, next_row_id, sequence_number = snapshot.manifest_list, snapshot.first_row_id or 0, snapshot.sequence_number
    assert sequence_number is not None, "format version 1 is not written"
    parent_snapshot_id = snapshot.parent_snapshot_id
    metadata = {
        "snapshot-id": str(snapshot.snapshot_id),
        "parent-snapshot-id": "null" if parent_snapshot_id is None else str(parent_snapshot_id),
        "sequence-number": str(sequence_number),
        "format-version": str(format_version),
    }
    gives_row_ids = has_row_lineage(format_version)
    if gives_row_ids:
        metadata["first-row-id"] = str(next_row_id)
    listed = []
    for manifest in manifests:
        given: dict[str, int] = {}
        if cast("int | None", manifest.sequence_number) is None:
            least = cast("int | None", manifest.min_sequence_number)
            least = sequence_number if least is None else min(sequence_number, least)
            given |= {"sequence_number": sequence_number, "min_sequence_number": least}
        if gives_row_ids and manifest.content is ManifestContent.DATA and _row_ids_of_manifest(manifest) is None:
            given["first_row_id"] = next_row_id
            next_row_id = add_longs(next_row_id, manifest.existing_rows_count or 0, manifest.added_rows_count or 0)
        known = zip(_IN_MANIFEST_FILE, values_of(manifest), strict=True)
        listed.append(manifest_record(**dict(known) | given) if given else manifest)
    make_folder_of(path)
    avro = _list_format(format_version)
    with BlockAvroOutput(io.new_output(path), avro, metadata) as output:
        output.write_encoded([_encoded(avro, manifest, format_version) for manifest in listed])
    _keep_list(path, listed)
    return next_row_id


def _encoded(avro: AvroFormat[ManifestFile], manifest: ManifestFile, format_version: int) -> bytes:
    summaries = tuple(tuple(values_of(each)) for each in manifest.partitions or ())
    key = (format_version, summaries, *(value for value in values_of(manifest) if not isinstance(value, list)))
    found = _encoded_records.find(key)
    if found is None:
        found = avro.encode(manifest)
        _encoded_records.add(key, found)
    return found
