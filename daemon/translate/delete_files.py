"""A delete file: the task to write it, what was written, and its record in Iceberg and in the state store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.types import LongType, StringType

from daemon.delta.actions import DeletionVectorDescriptor
from daemon.iceberg.pyiceberg_ext.records import data_file_record
from state import DeleteFileRecord, DeletionVectorRecord

# Iceberg spec, "Position Delete Files".
FILE_PATH_ID = 2147483546
POS_ID = 2147483545

# Stands for a deletion vector that a rebuild could not identify: the next sync writes the file's deletions anew.
UNKNOWN_DV = DeletionVectorRecord("?", "?", "", 0, 0)


@dataclass(frozen=True)
class DvWork:
    """One data file whose deleted positions go from `before` to `after`."""

    data_file: str
    record_count: int
    before: DeletionVectorRecord | None
    after: DeletionVectorRecord


@dataclass(frozen=True)
class DeleteFileTask:
    """One delete file to write, named in advance; `works` are sorted by data file."""

    output_path: str
    spec_id: int
    partition: tuple[object, ...]
    works: tuple[DvWork, ...]


@dataclass(frozen=True)
class WrittenPositions:
    """What a delete file holds of one data file. `restored`: rows came back, so these are all of its deletions."""

    data_file: str
    positions: int
    restored: bool


@dataclass(frozen=True)
class DeleteFileResult:
    """What became of a task. `size_bytes` is None when there was nothing to write and no file is there."""

    path: str
    size_bytes: int | None
    positions: int
    lower_pos: int | None
    upper_pos: int | None
    split_offsets: tuple[int, ...]
    rows: tuple[WrittenPositions, ...]


def record_of(descriptor: DeletionVectorDescriptor) -> DeletionVectorRecord:
    """The descriptor as the state store keeps it."""
    return DeletionVectorRecord(
        unique_id=descriptor.unique_id,
        storage_type=descriptor.storage_type,
        path_or_inline_dv=descriptor.path_or_inline_dv,
        size_in_bytes=descriptor.size_in_bytes,
        cardinality=descriptor.cardinality,
        offset=descriptor.offset,
    )


def descriptor_of(record: DeletionVectorRecord) -> DeletionVectorDescriptor:
    """The descriptor as Delta's actions carry it."""
    return DeletionVectorDescriptor(
        storage_type=record.storage_type,
        path_or_inline_dv=record.path_or_inline_dv,
        size_in_bytes=record.size_in_bytes,
        cardinality=record.cardinality,
        offset=record.offset,
    )


@dataclass(frozen=True)
class Rewrite:
    """A delete file that serves files which leave and files which stay: `kept` of it goes into a new one.

    The sequence number keeps its positions from a file that comes back, but PyIceberg, Polars and DuckDB apply every
    position of a delete file that they read for a neighbour's sake.
    """

    old: DeleteFileRecord
    output_path: str
    kept: frozenset[str]


def delete_file_of(task: DeleteFileTask, result: DeleteFileResult) -> DataFile:
    record = delete_file_record(task.partition, result)
    record.spec_id = task.spec_id
    return record


def delete_file_record(partition: Sequence[object], result: DeleteFileResult) -> DataFile:
    """Iceberg spec, "Data File Fields", of a position-delete file.

    Bounds and counts are given for a file that serves one data file; engines take equal bounds of `file_path` for it.
    """
    served = [row.data_file for row in result.rows if row.positions]
    single = served[0] if len(served) == 1 else None
    return data_file_record(
        partition,
        content=DataFileContent.POSITION_DELETES,
        file_path=result.path,
        file_format=FileFormat.PARQUET,
        record_count=result.positions,
        file_size_in_bytes=result.size_bytes,
        split_offsets=list(result.split_offsets) or None,
        referenced_data_file=single,
        **(_file_scoped_metrics(single, result) if single else {}),
    )


def _file_scoped_metrics(data_file: str, result: DeleteFileResult) -> dict[str, dict[int, object]]:
    path = to_bytes(StringType(), data_file)
    assert result.lower_pos is not None and result.upper_pos is not None, "a written file has bounds"
    return {
        "value_counts": {FILE_PATH_ID: result.positions, POS_ID: result.positions},
        "null_value_counts": {FILE_PATH_ID: 0, POS_ID: 0},
        "lower_bounds": {FILE_PATH_ID: path, POS_ID: to_bytes(LongType(), result.lower_pos)},
        "upper_bounds": {FILE_PATH_ID: path, POS_ID: to_bytes(LongType(), result.upper_pos)},
    }
