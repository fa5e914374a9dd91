"""The kernel: DV descriptors in, position-delete files and what they hold out, as Arrow batches on both sides.

It runs as it is in the daemon's process or as the function of Spark's `mapInArrow`. It decides nothing: the names of
the files are given, and every fault is a SyncError for the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from daemon.delta.actions import DeletionVectorDescriptor
from daemon.delta.deletion_vector import read_position_sets
from daemon.delta.position_set import PositionSet, is_restored, new_positions
from daemon.durable import force_to_disk
from daemon.errors import CorruptInput
from daemon.iceberg.position_deletes import PositionDeleteFile, PositionDeleteWriter
from daemon.storage import FileIOStorage, Storage

READ_BYTES_MAX: Final = 16 << 20  # of DVs held at a time; a data file with larger ones is taken alone
READ_ROWS_MAX: Final = 1024
OUTPUT_ROWS_MAX: Final = 1024

_DV: Final = pa.struct(
    [
        pa.field("storage_type", pa.string()),
        pa.field("path_or_inline_dv", pa.string()),
        pa.field("offset", pa.int32()),
        pa.field("size_in_bytes", pa.int32()),
        pa.field("cardinality", pa.int64()),
    ]
)

# One row a data file. `record_count` is the data file's rows, when known; `before` is null for a file's first DV.
DESCRIPTORS: Final = pa.schema(
    [
        pa.field("output_path", pa.string(), nullable=False),
        pa.field("data_file", pa.string(), nullable=False),
        pa.field("record_count", pa.int64()),
        pa.field("before", _DV),
        pa.field("after", _DV, nullable=False),
    ]
)

# One row an output path. Without positions there is no file, and sizes, bounds and offsets are null.
DELETE_FILES: Final = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64()),
        pa.field("positions", pa.int64(), nullable=False),
        pa.field("lower_path", pa.string()),
        pa.field("upper_path", pa.string()),
        pa.field("lower_pos", pa.int64()),
        pa.field("upper_pos", pa.int64()),
        pa.field("split_offsets", pa.list_(pa.int64())),
        pa.field(
            "rows",
            pa.list_(
                pa.struct(
                    [
                        pa.field("data_file", pa.string()),
                        pa.field("positions", pa.int64()),
                        pa.field("restored", pa.bool_()),
                    ]
                )
            ),
            nullable=False,
        ),
    ]
)


def translate(
    batches: Iterable[pa.RecordBatch],
    *,
    table_location: str,
    storage_properties: Mapping[str, str],
    target_properties: Mapping[str, str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Write the delete files that `batches` (DESCRIPTORS) ask for, and tell of each (DELETE_FILES).

    The rows come sorted by output path and data file. Of each the positions `after - before` are written, or all of
    `after` when rows of `before` are back: the row is then `restored`, and its data file must be registered anew.
    They are written with `target_properties`, where these differ. Running it again replaces the files by the same.
    Raises SyncError; the file in work is then removed if it can be, those already told of stay.
    """
    target = PyArrowFileIO(dict(storage_properties if target_properties is None else target_properties))
    with _Outputs(FileIOStorage(storage_properties), target, table_location) as outputs:
        for rows in _bounded(batches):
            outputs.add(rows)
            if len(outputs.finished) >= OUTPUT_ROWS_MAX:
                yield outputs.take_finished()
        outputs.finish()
        if outputs.finished:
            yield outputs.take_finished()


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of DESCRIPTORS."""

    output_path: str
    data_file: str
    record_count: int | None
    before: DeletionVectorDescriptor | None
    after: DeletionVectorDescriptor


def _bounded(batches: Iterable[pa.RecordBatch]) -> Iterator[list[_Row]]:
    """The rows in lists whose DVs are read and held together."""
    rows: list[_Row] = []
    size_bytes = 0
    for batch in batches:
        for columns in batch.to_pylist():
            before = DeletionVectorDescriptor(**columns["before"]) if columns["before"] else None
            after = DeletionVectorDescriptor(**columns["after"])
            row_bytes = after.size_in_bytes + (before.size_in_bytes if before else 0)
            if rows and (len(rows) == READ_ROWS_MAX or size_bytes + row_bytes > READ_BYTES_MAX):
                yield rows
                rows, size_bytes = [], 0
            rows.append(_Row(columns["output_path"], columns["data_file"], columns["record_count"], before, after))
            size_bytes += row_bytes
    if rows:
        yield rows


class _Outputs:
    """The delete file in work, and what is told of those before it (rows of DELETE_FILES)."""

    def __init__(self, storage: Storage, io: FileIO, table_location: str) -> None:
        self.finished: list[dict[str, Any]] = []
        self._storage = storage
        self._io = io
        self._table_location = table_location
        self._path: str | None = None
        self._writer: PositionDeleteWriter | None = None
        self._restored: dict[str, bool] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer:
            self._writer.abort()

    def add(self, rows: Sequence[_Row]) -> None:
        descriptors = [dv for row in rows for dv in (row.before, row.after) if dv]
        sets = iter(read_position_sets(self._storage, self._table_location, descriptors))
        for row in rows:
            if row.output_path != self._path:
                self.finish()
                assert self._path is None or row.output_path > self._path, "rows are sorted by output path"
                self._path = row.output_path
            self._write(row, next(sets) if row.before else None, next(sets))

    def _write(self, row: _Row, before: PositionSet | None, after: PositionSet) -> None:
        restored = before is not None and is_restored(before, after)
        self._restored[row.data_file] = restored
        _check_below(row, after.cardinality, "deleted positions")
        for chunk in new_positions(after, None if restored else before):
            _check_below(row, chunk[-1].as_py() + 1, "rows up to its last deleted position")
            if self._writer is None:
                self._writer = PositionDeleteWriter(self._io, row.output_path)
            self._writer.write(row.data_file, chunk)

    def finish(self) -> None:
        """Finish the delete file in work, if any."""
        if self._path is None:
            return
        file = self._writer.finish() if self._writer else None
        self._writer = None
        counts = dict(file.data_files) if file else {}
        self.finished.append(
            {
                **_file_columns(self._path, file),
                "rows": [
                    {"data_file": data_file, "positions": counts.get(data_file, 0), "restored": restored}
                    for data_file, restored in self._restored.items()
                    if restored or data_file in counts
                ],
            }
        )
        self._restored = {}

    def take_finished(self) -> pa.RecordBatch:
        """Also forces the files to the disk: only who is on the machine that wrote them can."""
        taken, self.finished = self.finished, []
        force_to_disk([row["path"] for row in taken if row["positions"]])
        return pa.RecordBatch.from_pylist(taken, schema=DELETE_FILES)


def _check_below(row: _Row, rows_needed: int, what: str) -> None:
    # A writer that counts live rows in numRecords (trino#30343) shows here, before the count reaches Iceberg.
    if row.record_count is not None and rows_needed > row.record_count:
        raise CorruptInput(
            f"the deletion vector has {rows_needed} {what}, the data file {row.record_count} rows",
            path=row.data_file,
            hint="The Delta log's numRecords or the deletion vector is wrong: rewrite the data file with REORG.",
        )


def _file_columns(path: str, file: PositionDeleteFile | None) -> dict[str, Any]:
    if file is None:
        return {"path": path, "positions": 0}
    return {name: getattr(file, name) for name in DELETE_FILES.names if name != "rows"}
