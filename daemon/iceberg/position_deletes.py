"""Position-delete files of Iceberg v2: Parquet, one row for each position. Iceberg spec, "Position Delete Files"."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from sys import byteorder
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile

from daemon.iceberg.delete_file_writer import DeleteFileWriter
from daemon.iceberg.manifests import referenced_data_file
from daemon.store.locations import canonical
from daemon.store.storage import FileIOStorage

ROW_GROUP_ROWS_MAX: Final = 1 << 20
# Bounds the paths of a row group: if its dictionary grows past 1 MB, Arrow writes the path of each row in full.
ROW_GROUP_CHUNKS_MAX: Final = 1 << 12
SMALL_ROWS_MAX: Final = 1 << 12
POSITION_MAX: Final = (1 << 63) - 1
_PATHS: Final = pa.dictionary(pa.int32(), pa.string())
# Iceberg spec, "Reserved Field IDs"; the Parquet fields carry them.
_SCHEMA: Final = pa.schema(
    [
        pa.field("file_path", _PATHS, nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


def count_served(storage: FileIOStorage, delete_file: DataFile) -> dict[str, int]:
    """Count the positions by data file: from the entry if it names its only data file, else from the delete file."""
    if (single := referenced_data_file(delete_file)) is not None:
        return {single: delete_file.record_count}
    counts = pc.value_counts(_read(storage, delete_file, "file_path")["file_path"].unify_dictionaries())
    return {row["values"]: row["counts"] for row in counts.to_pylist()}


def read_served(storage: FileIOStorage, delete_file: DataFile) -> dict[str, pa.Int64Array]:
    """Read the positions by data file, in any order, from a file of any writer."""
    rows = _read(storage, delete_file, "file_path", "pos")
    plain = rows.set_column(0, "file_path", rows["file_path"].cast(pa.string()))
    grouped = plain.group_by("file_path").aggregate([("pos", "list")])
    return {path.as_py(): each.values for path, each in zip(grouped["file_path"], grouped["pos_list"], strict=True)}


def _read(storage: FileIOStorage, delete_file: DataFile, *columns: str) -> pa.Table:
    # Hadoop writes file:/…. As a dictionary, a path is in memory once, and not for each position.
    with storage.open_input(canonical(delete_file.file_path)) as file:
        return pq.read_table(file, columns=list(columns), read_dictionary=["file_path"])


@dataclass(frozen=True, slots=True)
class PositionDeleteFile:
    """Values for the manifest entry of a finished file. Bounds are inclusive; `data_files` are (path, positions)."""

    path: str
    size_bytes: int
    positions: int
    lower_pos: int
    upper_pos: int
    split_offsets: tuple[int, ...]
    data_files: tuple[tuple[str, int], ...]


class PositionDeleteWriter(DeleteFileWriter):
    """Writes one delete file, holding one row group in memory.

    `write` takes positions sorted by data file and position. `finish` closes the file, after a check of its footer.

        with PositionDeleteWriter(io, "file:///warehouse/t/data/d.parquet") as writer:
            writer.write("file:///lake/t/a.parquet", array("q", [0, 7]))
            delete_file = writer.finish()
    """

    what = "position-delete file"

    def __init__(self, io: FileIO, path: str, *, at_once: bool = False) -> None:
        self._data_files: dict[str, int] = {}
        self._last_path, self._last_pos = "", -1
        self._lower_pos, self._upper_pos = POSITION_MAX, -1
        self._pending: list[tuple[str, memoryview[int]]] = []
        self._pending_rows = 0
        self._footers: list[pq.FileMetaData] = []
        self._parquet: pq.ParquetWriter | None = None
        super().__init__(io, path, at_once=at_once)

    def write(self, file_path: str, positions: array[int] | memoryview[int]) -> None:
        """Add positions of one data file, 8 bytes each. Raises ValueError if they are out of order, a bug of ours.

        Paths are compared by code point. This is the order of their UTF-8 bytes, which Parquet and Spark use.
        """
        if not len(positions):
            return
        first, last = positions[0], positions[-1]
        follows = first > self._last_pos if file_path == self._last_path else file_path > self._last_path
        if not (follows and 0 <= first <= last <= POSITION_MAX):
            raise ValueError(
                f"positions {first} to {last} of {file_path} do not follow {self._last_path}, {self._last_pos}"
            )
        self._last_path, self._last_pos = file_path, last
        self._lower_pos, self._upper_pos = min(self._lower_pos, first), max(self._upper_pos, last)
        self._data_files[file_path] = self._data_files.get(file_path, 0) + len(positions)
        self.positions += len(positions)
        rest = memoryview(positions)
        while rest:
            part = rest[: ROW_GROUP_ROWS_MAX - self._pending_rows]
            rest = rest[len(part) :]
            self._pending.append((file_path, part))
            self._pending_rows += len(part)
            if self._pending_rows == ROW_GROUP_ROWS_MAX or len(self._pending) == ROW_GROUP_CHUNKS_MAX:
                self._write_row_group()

    def _write_row_group(self) -> None:
        # Keep the paths as a dictionary: written out for each row, 1 M rows would take 100 MB.
        codes_of = {path: code for code, path in enumerate(dict(self._pending))}
        codes = self._column(pa.int32(), [codes_of[path].to_bytes(4, byteorder) * len(p) for path, p in self._pending])
        pos = self._column(pa.int64(), [part for _, part in self._pending])
        falls = pc.less_equal(pos[1:], pos[:-1])
        if falls.true_count and pc.and_(falls, pc.equal(codes[1:], codes[:-1])).true_count:
            raise ValueError(f"positions between {self._pending[0][0]} and {self._last_path} do not ascend")
        paths = pa.DictionaryArray.from_arrays(codes, pa.array(codes_of, pa.string()))
        table = pa.Table.from_arrays([paths, pos], schema=_SCHEMA)
        self._pending, self._pending_rows = [], 0
        with self._storing():
            if self._parquet is None:
                # The first row group is small only if it is all of the file.
                is_small = len(codes_of) == 1 and table.num_rows <= SMALL_ROWS_MAX
                # DELTA_BINARY_PACKED takes half the time of PLAIN and 2 to 70 % of its bytes
                # (benchmarks/kernel_throughput.py); pyarrow, Polars, DuckDB and Spark's Iceberg reader can read it.
                # `store_schema` would make readers return a dictionary column instead of strings. What is packed
                # hardly shrinks: to compress a small file takes longer than to write it.
                self._parquet = pq.ParquetWriter(
                    self._stream,
                    _SCHEMA,
                    compression="none" if is_small else "zstd",
                    use_dictionary=["file_path"],
                    column_encoding={"pos": "DELTA_BINARY_PACKED"},
                    store_schema=False,
                    metadata_collector=self._footers,
                )
                # Iceberg's Java library writes this key (Parquet.DeleteWriteBuilder); the specification does not ask.
                self._parquet.add_key_value_metadata({"delete-type": "position"})
            self._parquet.write_table(table, ROW_GROUP_ROWS_MAX)

    def _column(self, data_type: pa.DataType, values: Sequence[bytes | memoryview[int]]) -> pa.Array:
        # A single chunk is not copied.
        buffer = values[0] if len(values) == 1 else b"".join(values)
        return pa.Array.from_buffers(data_type, self._pending_rows, [None, pa.py_buffer(buffer)])

    def finish(self) -> PositionDeleteFile:
        """Close the file, and describe it. Raises ValueError if it has no position, or its footer is wrong."""
        if not self._data_files:
            raise ValueError(f"{self.path} has no position")
        if self._pending:
            self._write_row_group()
        assert self._parquet, "it has written a row group"
        with self._storing():
            self._parquet.close()
            (footer,) = self._footers
            size_bytes = self._stream.tell()
            if footer.num_rows != self.positions:
                raise ValueError(f"{self.path} has {footer.num_rows} rows instead of {self.positions}")
            self._finish()
        first_columns = [footer.row_group(index).column(0) for index in range(footer.num_row_groups)]
        return PositionDeleteFile(
            path=self.path,
            size_bytes=size_bytes,
            positions=self.positions,
            lower_pos=self._lower_pos,
            upper_pos=self._upper_pos,
            split_offsets=tuple(column.dictionary_page_offset for column in first_columns),
            data_files=tuple(self._data_files.items()),
        )

    def abort(self) -> None:
        # Close the Parquet writer first: otherwise the garbage collector closes it later, after its stream is closed.
        if self._parquet and not self._finished:
            with suppress(OSError, pa.ArrowException):
                self._parquet.close()
        super().abort()
