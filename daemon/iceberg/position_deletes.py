"""Position-delete files of Iceberg v2: Parquet, one row for each deleted position.

Iceberg spec, "Position Delete Files". Other modules decide which positions go into which file, and commit the files.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from shutil import copyfileobj
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from daemon.durable import written_whole
from daemon.errors import ObjectStoreAway

ROW_GROUP_ROWS_MAX: Final = 1 << 20
# Bounds the paths of a row group: if its dictionary grows past 1 MB, Arrow writes the path of each row in full.
ROW_GROUP_CHUNKS_MAX: Final = 1 << 12
# A larger file waits on the disk until it is complete.
SPOOL_BYTES_MAX: Final = 1 << 20

# Iceberg spec, "Reserved Field IDs"; the Parquet fields carry them.
_FILE_PATH_ID: Final = {"PARQUET:field_id": "2147483546"}
_POS_ID: Final = {"PARQUET:field_id": "2147483545"}
_SCHEMA: Final = pa.schema(
    [
        pa.field("file_path", pa.dictionary(pa.int32(), pa.string()), nullable=False, metadata=_FILE_PATH_ID),
        pa.field("pos", pa.int64(), nullable=False, metadata=_POS_ID),
    ]
)


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


class PositionDeleteWriter:
    """Writes one delete file, holding one row group in memory. An existing file is replaced.

    `write` takes positions sorted by data file and position. `finish` stores the file and reads its footer back. Until
    then a temporary file holds what was written, and leaving the context stores nothing. Failures of the store are
    raised as ObjectStoreAway.

        with PositionDeleteWriter(io, "file:///warehouse/t/data/d.parquet") as writer:
            writer.write("file:///lake/t/a.parquet", pa.array([0, 7], pa.int64()))
            delete_file = writer.finish()
    """

    def __init__(self, io: FileIO, path: str, *, at_once: bool = False) -> None:
        self.path = path
        self._io = io
        self._at_once = at_once
        self._data_files: dict[str, int] = {}
        self._last_path, self._last_pos = "", -1
        self._lower_pos, self._upper_pos = (1 << 63) - 1, -1
        self._pending: list[tuple[str, pa.Int64Array]] = []
        self._pending_rows = 0
        self._written = SpooledTemporaryFile(SPOOL_BYTES_MAX, prefix="dvsync-")  # noqa: SIM115 - closed by `abort`
        # DELTA_BINARY_PACKED takes half the time of PLAIN and 2 to 70 % of its bytes (benchmarks/kernel_throughput.py);
        # pyarrow, Polars, DuckDB and Spark's Iceberg reader can read it. `store_schema` would make readers return a
        # dictionary column instead of strings.
        self._parquet = pq.ParquetWriter(
            self._written,
            _SCHEMA,
            compression="zstd",
            use_dictionary=["file_path"],
            column_encoding={"pos": "DELTA_BINARY_PACKED"},
            store_schema=False,
        )
        # Iceberg's Java library writes this key (Parquet.DeleteWriteBuilder); the specification does not ask for it.
        self._parquet.add_key_value_metadata({"delete-type": "position"})

    def write(self, file_path: str, positions: pa.Int64Array) -> None:
        """Add positions of one data file. Raises ValueError if they are out of order, which is a bug of ours.

        Paths are compared by code point. This is the order of their UTF-8 bytes, which Parquet and Spark use.
        """
        if not len(positions):
            return
        first, last = positions[0].as_py(), positions[-1].as_py()
        follows = first > self._last_pos if file_path == self._last_path else file_path > self._last_path and first >= 0
        if not follows:
            raise ValueError(
                f"positions {first} to {last} of {file_path} do not follow {self._last_path}, {self._last_pos}"
            )
        self._last_path, self._last_pos = file_path, last
        self._lower_pos, self._upper_pos = min(self._lower_pos, first), max(self._upper_pos, last)
        self._data_files[file_path] = self._data_files.get(file_path, 0) + len(positions)
        while len(positions):
            part = positions[: ROW_GROUP_ROWS_MAX - self._pending_rows]
            positions = positions[len(part) :]
            self._pending.append((file_path, part))
            self._pending_rows += len(part)
            if self._pending_rows == ROW_GROUP_ROWS_MAX or len(self._pending) == ROW_GROUP_CHUNKS_MAX:
                self._write_row_group()

    def _write_row_group(self) -> None:
        # Keep the paths as a dictionary: written out for each row, 1 M rows would take 100 MB.
        paths = pa.array([path for path, _ in self._pending], pa.string()).dictionary_encode()
        run_ends = pa.array(accumulate(len(part) for _, part in self._pending), pa.int32())
        codes = pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(run_ends, paths.indices))
        pos = pa.concat_arrays([part for _, part in self._pending])
        falls = pc.and_(pc.less_equal(pos[1:], pos[:-1]), pc.equal(codes[1:], codes[:-1]))
        if pc.any(falls).as_py():
            raise ValueError(f"positions between {self._pending[0][0]} and {self._last_path} do not ascend")
        table = pa.Table.from_arrays([pa.DictionaryArray.from_arrays(codes, paths.dictionary), pos], schema=_SCHEMA)
        self._pending, self._pending_rows = [], 0
        try:
            self._parquet.write_table(table, ROW_GROUP_ROWS_MAX)
        except OSError as error:
            raise self._away(error) from error

    def finish(self) -> PositionDeleteFile:
        """Close the file, read its footer back, and describe the file. Raises ValueError if it has no position."""
        if not self._data_files:
            raise ValueError(f"{self.path} has no position")
        if self._pending:
            self._write_row_group()
        positions = sum(self._data_files.values())
        try:
            self._parquet.close()
            size_bytes = self._written.tell()
            self._written.seek(0)
            with written_whole(self.path, at_once=self._at_once) as place:
                with self._io.new_output(place).create(overwrite=True) as stream:
                    copyfileobj(self._written, stream)
                with self._io.new_input(place).open() as stored:
                    size_found = stored.seek(0, 2)
                    footer = pq.read_metadata(stored)
                if (footer.num_rows, size_found) != (positions, size_bytes):
                    found = f"{footer.num_rows} rows, {size_found} bytes read back"
                    raise self._away(f"{found}; {positions}, {size_bytes} written")
        except (OSError, pa.ArrowInvalid) as error:
            raise self._away(error) from error
        self._written.close()
        first_columns = [footer.row_group(index).column(0) for index in range(footer.num_row_groups)]
        return PositionDeleteFile(
            path=self.path,
            size_bytes=size_bytes,
            positions=positions,
            lower_pos=self._lower_pos,
            upper_pos=self._upper_pos,
            split_offsets=tuple(column.dictionary_page_offset for column in first_columns),
            data_files=tuple(self._data_files.items()),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def abort(self) -> None:
        """Forget what was written, if the file is not finished. A file that another attempt has stored stays."""
        # Close the Parquet writer first: otherwise the garbage collector closes it later, after its stream is closed.
        for step in (self._parquet.close, self._written.close):
            with suppress(OSError, ValueError, pa.ArrowException):
                step()

    def _away(self, reason: object) -> ObjectStoreAway:
        hint = "Check the store, its free space and the credentials. dvsync writes the file again at the next try."
        return ObjectStoreAway(f"a position-delete file was not written: {reason}", path=self.path, hint=hint)
