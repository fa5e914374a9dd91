"""What is deleted in a table and in each of its files, from the state store, Delta's deletion vectors and Iceberg."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

import msgspec
from pyiceberg.table import Table

from daemon.delta.deletion_vector import find_place, read_position_sets
from daemon.delta.position_set import PositionSet, new_positions
from daemon.errors import ObjectMissing
from daemon.status.snapshots import ShownSnapshot, list_snapshots
from daemon.store.locations import normalize_location
from daemon.sync.context import TableContext
from daemon.translate.definition import shape_of
from daemon.translate.delete_files import UNKNOWN_DV
from daemon.translate.partition_values import decode_partition
from daemon.translate.schema import TableSchema
from state import (
    DeletionVectorDescriptor,
    LiveFile,
    MirrorCount,
    PartitionCount,
    ServingFile,
    TableRecord,
    VectorCount,
    WrittenCount,
)

# A strip of `FileDeletions` has at most so many parts: with an indent, it fits on 80 columns.
STRIP_MAX = 72


class FileDeletions(msgspec.Struct, frozen=True):
    """A data file. `strip` is the deleted share, 0 to 1, of equal parts; empty until its vector is known."""

    path: str
    rows: int
    deleted: int
    strip: tuple[float, ...]


class PartitionDeletions(msgspec.Struct, frozen=True):
    partition: dict[str, str | None]
    data_files: int
    rows: int
    deleted: int


class TableDeletions(msgspec.Struct, frozen=True):
    """A table's deletions. `rows` are physical rows. Lists of files and partitions are cut: the worst come first."""

    table: str
    version: int | None
    data_files: int
    rows: int
    deleted: int
    vectors: tuple[VectorCount, ...]
    files: list[FileDeletions]
    partitions: list[PartitionDeletions]
    live_delete_files: int
    delete_files: tuple[ServingFile, ...]
    orphans: tuple[WrittenCount, ...]
    mirrors: tuple[MirrorCount, ...]
    snapshots: list[ShownSnapshot]


class MirrorDetail(msgspec.Struct, frozen=True):
    """What a mirror is of, and why it is there; see `MirrorCount`."""

    data_file: str
    kind: str
    why: str | None


class ServingPart(msgspec.Struct, frozen=True):
    """A delete file that serves a data file: all its positions, and those of this data file."""

    path: str
    size_bytes: int
    positions: int
    of_this_file: int


class FileDetail(msgspec.Struct, frozen=True):
    """A live data file. `vector_path` is null if its vector is inline. `ranges` of deleted positions have both ends."""

    file: FileDeletions
    mirror: MirrorDetail | None
    partition: dict[str, str | None]
    size_bytes: int
    vector: DeletionVectorDescriptor | None
    vector_path: str | None
    delete_files: list[ServingPart]
    ranges: list[tuple[int, int]]
    has_more_ranges: bool


def inspect_table(context: TableContext, table: Table, *, rows_max: int) -> TableDeletions:
    """Describe the table's deletions; each list has at most `rows_max` rows. Raises SyncError, StateUnavailable."""
    record, schema = _synced(context), shape_of(table, context.settings).table
    counts = context.store.count(record.id)
    found = context.store.find_deletions(record.id, rows_max=rows_max)
    return TableDeletions(
        table=record.name,
        version=record.synced_version,
        data_files=counts.live_data_files,
        rows=counts.live_rows + counts.deleted_positions,
        deleted=counts.deleted_positions,
        vectors=found.vectors,
        files=[_file_deletions(file, _positions(context, file)) for file in found.files],
        partitions=[
            PartitionDeletions(_named(schema, each), each.data_files, each.rows, each.deleted_positions)
            for each in found.partitions
            if each.partition
        ],
        live_delete_files=counts.live_delete_files,
        delete_files=found.delete_files,
        orphans=counts.orphans,
        mirrors=counts.mirrors,
        snapshots=list_snapshots(table)[:rows_max],
    )


def inspect_file(context: TableContext, table: Table, path: str, *, ranges_max: int) -> FileDetail:
    """Describe one live data file, by its URI or its path below the Delta table. Raises ObjectMissing without one."""
    record = _synced(context)
    spellings = {path, f"{context.location}/{path}", normalize_location(path)}
    mirrors = [each for each in context.store.list_live_mirrors(record.id) if {each.path, each.data_file} & spellings]
    shown = spellings.union(each.path for each in mirrors)
    file = next(iter(context.store.find_live_files(record.id, shown).values()), None)
    if file is None:
        raise ObjectMissing(
            f"version {record.synced_version} of {record.name} has no such data file",
            path=path,
            hint="Give its path as `dvsync inspect` or the Delta log has it: a URI, or a path below the table.",
        )
    positions, vector = _positions(context, file), file.deletion_vector
    ranges = _first_ranges(new_positions(positions), ranges_max + 1) if positions is not None else []
    place = find_place(context.location, vector) if vector and positions is not None else None
    return FileDetail(
        file=_file_deletions(file, positions),
        mirror=next((MirrorDetail(each.data_file, each.kind, each.why) for each in mirrors), None),
        partition=_named(shape_of(table, context.settings).table, file),
        size_bytes=file.size_bytes,
        vector=vector,
        vector_path=place.path if place and place.offset is not None else None,
        delete_files=[
            ServingPart(
                path=each.path,
                size_bytes=each.size_bytes,
                positions=each.positions,
                of_this_file=sum(part.positions for part in each.mappings if part.data_file == file.path),
            )
            for each in context.store.find_delete_files(record.id, [file.path])
        ],
        ranges=ranges[:ranges_max],
        has_more_ranges=len(ranges) > ranges_max,
    )


def _synced(context: TableContext) -> TableRecord:
    record = context.find_record()
    if record is None or record.synced_version is None:
        name = context.settings.name
        hint = f"Run `dvsync sync {name}` first. With several daemons, use the state database of the table's share."
        raise ObjectMissing(f"the state database does not know what {name} shows", hint=hint)
    return record


def _positions(context: TableContext, file: LiveFile) -> PositionSet | None:
    if file.deletion_vector in (None, UNKNOWN_DV):
        return None
    (positions,) = read_position_sets(context.storage, context.location, [file.deletion_vector])
    return positions


def _file_deletions(file: LiveFile, positions: PositionSet | None) -> FileDeletions:
    return FileDeletions(
        path=file.path,
        rows=file.record_count,
        deleted=file.deletion_vector.cardinality if file.deletion_vector else 0,
        strip=() if positions is None else strip_of(new_positions(positions), file.record_count),
    )


def _named(schema: TableSchema, of: PartitionCount | LiveFile) -> dict[str, str | None]:
    """Return the values of a partition as people write them, by column."""
    values = zip(schema.specs[of.spec_id].fields, decode_partition(of.partition, schema, of.spec_id), strict=True)
    return {
        field.name: None
        if value is None
        else field.transform.to_human_string(schema.schema.find_type(field.source_id), value)
        for field, value in values
    }


def strip_of(chunks: Iterable[array[int]], rows: int) -> tuple[float, ...]:
    """Return the share of deleted rows in equal parts of a file. `chunks` are its deleted positions, ascending.

    With 4 rows in two parts, the positions 0, 1 and 2 give (1.0, 0.5).
    """
    parts = min(STRIP_MAX, rows)
    ends = [rows * number // parts for number in range(parts + 1)]
    deleted = [0] * parts
    for chunk in chunks:
        places = [bisect_left(chunk, end) for end in ends]
        deleted = [sum(counts) for counts in zip(deleted, places[1:], (-place for place in places[:-1]), strict=True)]
    return tuple(count / (end - begin) for count, begin, end in zip(deleted, ends, ends[1:], strict=False))


def _first_ranges(chunks: Iterable[array[int]], ranges_max: int) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for chunk in chunks:
        for position in chunk:
            if ranges and ranges[-1][1] == position - 1:
                ranges[-1] = (ranges[-1][0], position)
            elif len(ranges) == ranges_max:
                return ranges
            else:
                ranges.append((position, position))
    return ranges
