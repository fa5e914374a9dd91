"""A delete file: the task to write it, what was written, and its record in Iceberg and in the state store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.types import LongType, StringType

from daemon.iceberg.position_deletes import PositionDeleteFile
from daemon.iceberg.pyiceberg_ext.records import data_file_record
from state import DeleteFileRecord, DeletionVectorDescriptor, DvMapping

# Iceberg spec, "Position Delete Files".
FILE_PATH_ID = 2147483546
POS_ID = 2147483545

# Stands for a deletion vector that a rebuild could not identify. The next sync writes all deletions of the file anew.
UNKNOWN_DV = DeletionVectorDescriptor("?", "", 0, 0)


@dataclass(frozen=True)
class DvChange:
    """A data file whose deletion vector changes from `before` to `after`. `before` is None if none is known."""

    data_file: str
    record_count: int
    before: DeletionVectorDescriptor | None
    after: DeletionVectorDescriptor


@dataclass(frozen=True)
class DeleteFileTask:
    """One delete file to write, named in advance; `changes` are sorted by data file."""

    output_path: str
    spec_id: int
    partition: tuple[object, ...]
    changes: tuple[DvChange, ...]


@dataclass(frozen=True)
class DeleteFileResult:
    """The result of a task. Without new positions, no file is written and `file` is None.

    `restored` are the data files of which deleted rows came back. For these, `file` holds all deletions, not only the
    new ones.
    """

    file: PositionDeleteFile | None
    restored: tuple[str, ...]


@dataclass(frozen=True)
class Rewrite:
    """A shared delete file to be written again without the data files that leave; it keeps the positions of `kept`.

    For example, `old` holds {0, 1} of data file A and {5} of B. Row 1 of A comes back, so A's entry is removed and
    added again, while B stays. The new delete file holds only {5} of B. Without this rewrite, some readers would lose
    row 1: by the sequence numbers, `old` does not apply to the new entry of A, but PyIceberg, Polars and DuckDB read
    `old` because of B, and then apply its positions of A as well.
    """

    old: DeleteFileRecord
    output_path: str
    kept: frozenset[str]


def delete_file_entry(file: PositionDeleteFile, spec_id: int, partition: Sequence[object] = ()) -> DataFile:
    """Make the manifest entry's data file of a position-delete file. Iceberg spec, "Data File Fields".

    Bounds and counts are set only if the file serves a single data file: engines recognise such a file by the equal
    bounds of `file_path`.
    """
    single = file.data_files[0][0] if len(file.data_files) == 1 else None
    entry = data_file_record(
        partition,
        content=DataFileContent.POSITION_DELETES,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        record_count=file.positions,
        file_size_in_bytes=file.size_bytes,
        split_offsets=list(file.split_offsets) or None,
        referenced_data_file=single,
        **(_file_scoped_metrics(single, file) if single else {}),
    )
    entry.spec_id = spec_id
    return entry


def _file_scoped_metrics(data_file: str, file: PositionDeleteFile) -> dict[str, dict[int, object]]:
    path = to_bytes(StringType(), data_file)
    return {
        "value_counts": {FILE_PATH_ID: file.positions, POS_ID: file.positions},
        "null_value_counts": {FILE_PATH_ID: 0, POS_ID: 0},
        "lower_bounds": {FILE_PATH_ID: path, POS_ID: to_bytes(LongType(), file.lower_pos)},
        "upper_bounds": {FILE_PATH_ID: path, POS_ID: to_bytes(LongType(), file.upper_pos)},
    }


def delete_file_record(task: DeleteFileTask, file: PositionDeleteFile) -> DeleteFileRecord:
    """Make the state store's record of a written delete file. Its manifest is not known yet."""
    dv_ids = {change.data_file: change.after.unique_id for change in task.changes}
    mappings = tuple(DvMapping(data_file, dv_ids[data_file], positions) for data_file, positions in file.data_files)
    return DeleteFileRecord(file.path, file.size_bytes, file.positions, task.spec_id, "", mappings)


def rewritten_record(rewrite: Rewrite, file: PositionDeleteFile) -> DeleteFileRecord:
    """Make the state store's record of a delete file that replaces an older one. Its manifest is not known yet."""
    mappings = tuple(mapping for mapping in rewrite.old.mappings if mapping.data_file in rewrite.kept)
    return DeleteFileRecord(file.path, file.size_bytes, file.positions, rewrite.old.spec_id, "", mappings)
