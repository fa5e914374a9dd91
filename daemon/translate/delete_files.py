"""A delete file: the task to write it, what was written, and its record in Iceberg and in the state store.

It is a position-delete file in format version 2, and a Puffin file with deletion vectors in version 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.types import LongType, StringType

from daemon.iceberg.position_deletes import PositionDeleteFile
from daemon.iceberg.puffin import SUFFIX, Blob, PuffinFile
from daemon.iceberg.pyiceberg_ext.records import data_file_record
from state import DeleteFileRecord, DeletionVectorDescriptor, DvMapping

T = TypeVar("T")

# Iceberg spec, "Position Delete Files".
FILE_PATH_ID = 2147483546
POS_ID = 2147483545

# Stands for a deletion vector that a rebuild could not identify. The next sync rewrites all deletions of the file.
UNKNOWN_DV = DeletionVectorDescriptor("?", "", 0, 0)


@dataclass(frozen=True)
class DvChange:
    """A data file whose deletion vector changes from `before` to `after`. `before` is None if none is known."""

    data_file: str
    record_count: int
    before: DeletionVectorDescriptor | None
    after: DeletionVectorDescriptor
    partition: tuple[object, ...] = ()  # of its entry, if the entries of the delete file need it

    @property
    def size_bytes(self) -> int:
        """The size of the deletion vectors to read."""
        return self.after.size_in_bytes + (self.before.size_in_bytes if self.before else 0)


@dataclass(frozen=True)
class DeleteFileTask:
    """One delete file to write, named in advance; `changes` are sorted by data file."""

    output_path: str
    spec_id: int
    changes: tuple[DvChange, ...]


DeleteFile = PositionDeleteFile | PuffinFile


def is_puffin(path: str) -> bool:
    """Return whether a delete file of dvsync is a Puffin file, by its name."""
    return path.endswith(SUFFIX)


@dataclass(frozen=True)
class DeleteFileResult:
    """The result of a task. Without new positions, no file is written and `file` is None.

    `restored` are the data files of which deleted rows came back. For these, `file` holds all deletions.
    """

    file: DeleteFile | None
    restored: tuple[str, ...]


@dataclass(frozen=True)
class Rewrite:
    """A shared delete file to be written again without the data files that leave; it keeps the positions of `kept`.

    For example, `old` holds {0, 1} of data file A and {5} of B. Row 1 of A comes back, so A's entry is removed and
    added again. The new delete file holds only {5} of B. Without it, some readers would lose row 1: PyIceberg, Polars
    and DuckDB read `old` because of B, and apply its positions of A as well, whatever the sequence numbers are.
    """

    old: DeleteFileRecord
    output_path: str
    kept: frozenset[str]


def divided(items: Iterable[T], size_of: Callable[[T], int], *, size_max: int, count_max: int) -> Iterator[list[T]]:
    """Yield neighbours together: at most `count_max`, and no more than `size_max` in all unless one alone is larger."""
    part: list[T] = []
    size = 0
    for item in items:
        if part and (len(part) == count_max or size + size_of(item) > size_max):
            yield part
            part, size = [], 0
        part.append(item)
        size += size_of(item)
    if part:
        yield part


def delete_file_entries(task: DeleteFileTask, file: DeleteFile) -> list[DataFile]:
    """Make the manifest entries of a written file: one for each deletion vector in a Puffin file, else one."""
    if isinstance(file, PositionDeleteFile):
        return [delete_file_entry(file, task.spec_id, task.changes[0].partition)]
    partitions = {change.data_file: change.partition for change in task.changes}
    return [_vector_entry(file, blob, task.spec_id, partitions[blob.data_file]) for blob in file.blobs]


def _vector_entry(file: PuffinFile, blob: Blob, spec_id: int, partition: Sequence[object]) -> DataFile:
    """Iceberg spec, "Deletion Vectors": the entry says where the blob is, as the footer does.

    The bounds are for PyIceberg 0.12, which finds the data file by them and not by `referenced_data_file`. Without them
    it, and Polars, would apply every Puffin file of a partition to all of its data files.
    """
    path = {FILE_PATH_ID: to_bytes(StringType(), blob.data_file)}
    return data_file_record(
        partition,
        spec_id=spec_id,
        content=DataFileContent.POSITION_DELETES,
        file_path=file.path,
        file_format=FileFormat.PUFFIN,
        record_count=blob.cardinality,
        file_size_in_bytes=file.size_bytes,
        lower_bounds=path,
        upper_bounds=path,
        referenced_data_file=blob.data_file,
        content_offset=blob.offset,
        content_size_in_bytes=blob.size_bytes,
    )


def delete_file_entry(file: PositionDeleteFile, spec_id: int, partition: Sequence[object] = ()) -> DataFile:
    """Make the manifest entry's data file of a position-delete file. Iceberg spec, "Data File Fields".

    Bounds and counts are set only if the file serves a single data file: engines recognise such a file by the equal
    bounds of `file_path`.
    """
    single = file.data_files[0][0] if len(file.data_files) == 1 else None
    metrics: dict[str, Any] = {}
    if single:
        path = to_bytes(StringType(), single)
        metrics = {
            "value_counts": {FILE_PATH_ID: file.positions, POS_ID: file.positions},
            "null_value_counts": {FILE_PATH_ID: 0, POS_ID: 0},
            "lower_bounds": {FILE_PATH_ID: path, POS_ID: to_bytes(LongType(), file.lower_pos)},
            "upper_bounds": {FILE_PATH_ID: path, POS_ID: to_bytes(LongType(), file.upper_pos)},
        }
    return data_file_record(
        partition,
        spec_id=spec_id,
        content=DataFileContent.POSITION_DELETES,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        record_count=file.positions,
        file_size_in_bytes=file.size_bytes,
        split_offsets=list(file.split_offsets) or None,
        referenced_data_file=single,
        **metrics,
    )


def delete_file_record(task: DeleteFileTask, file: DeleteFile) -> DeleteFileRecord:
    """Make the state store's record of a written delete file. Its manifest is not known yet."""
    dv_ids = {change.data_file: change.after.unique_id for change in task.changes}
    mappings = tuple(DvMapping(data_file, dv_ids[data_file], positions) for data_file, positions in file.data_files)
    return DeleteFileRecord(file.path, file.size_bytes, file.positions, task.spec_id, "", mappings)


def rewritten_record(rewrite: Rewrite, file: PositionDeleteFile) -> DeleteFileRecord:
    """Make the state store's record of a delete file that replaces an older one. Its manifest is not known yet."""
    mappings = tuple(mapping for mapping in rewrite.old.mappings if mapping.data_file in rewrite.kept)
    return DeleteFileRecord(file.path, file.size_bytes, file.positions, rewrite.old.spec_id, "", mappings)
