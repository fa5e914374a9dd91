"""Aggregates rows of (data file, position) into one bitmap for each data file, and writes the bitmaps as new DVs.

Spark's own hash aggregate joins the positions to words of 64 bits, first in each task, then of all tasks; what does not
fit into its memory goes to the disk. A Python task gets the words of a file sorted, and holds one bitmap at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from daemon.delta.bitmap_format import DVPlace
from daemon.delta.deletion_vector import FIRST_DV_OFFSET, FRAME_BYTES, DvFile, read_position_sets
from daemon.delta.position_set import as_bitmap, decode_positions, encode_positions
from daemon.errors import CorruptInput
from daemon.iceberg.pyiceberg_ext.file_io import StoreFileIO
from daemon.spark.answers import Answers, run_on_spark
from daemon.store.durable import force_to_disk
from daemon.store.locations import store_away
from daemon.store.storage import FileIOStorage
from state import DeletionVectorDescriptor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORD_BITS_LOG2 = 6
WORD_BITS = 1 << WORD_BITS_LOG2
BITMAPS = pa.schema(
    [pa.field("file", pa.string()), pa.field("bitmap", pa.binary()), pa.field("cardinality", pa.int64())]
)

FILE_BYTES_MAX = 2 << 20


@dataclass(frozen=True)
class DataFileRows:
    """A data file before the deletion: its physical rows, and the deletion vector that it has."""

    record_count: int
    deletion_vector: DeletionVectorDescriptor | None = None


@dataclass(frozen=True)
class NewVector:
    """What becomes of a data file. Without a `descriptor` all of its rows are deleted: it is to be removed.

    `cardinality` counts all deleted rows, those of the older deletion vector too.
    """

    file: str
    cardinality: int
    descriptor: DeletionVectorDescriptor | None


def aggregate_positions(frame: DataFrame, *, file: str, position: str) -> DataFrame:
    """Return a row for each data file in `frame`: `file`, `bitmap` and `cardinality`.

    The columns `file` and `position` of the frame are a string and a long; rows may repeat and come in any order. The
    bitmap has the bytes that a deletion vector stores (Delta PROTOCOL.md, "Deletion Vector Format", portable form).

    A null, or a position below zero, fails the query that reads the result; `collect` raises it as CorruptInput.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    bit = f.call_function("shiftleft", f.lit(1).cast("long"), f.col(position).bitwiseAND(WORD_BITS - 1).cast("int"))
    words = frame.groupBy(f.col(file).alias("file"), f.shiftright(position, WORD_BITS_LOG2).alias("word"))
    sorted_words = words.agg(f.bit_or(bit).alias("bits")).repartition("file").sortWithinPartitions("file", "word")
    return sorted_words.mapInArrow(join_words, from_arrow_schema(BITMAPS))


def decode_bitmap(file: str, bitmap: bytes | pa.Buffer, cardinality: int) -> BitMap64:
    """Decode the positions of one row of `aggregate_positions`. Raises CorruptInput if they are not such a row's."""
    return as_bitmap(decode_positions(memoryview(bitmap), cardinality=cardinality, place=DVPlace(file, None)))


def write_deletion_vectors(
    bitmaps: DataFrame,
    files: Mapping[str, DataFileRows],
    *,
    location: str,
    properties: Mapping[str, str],
    file_bytes_max: int = FILE_BYTES_MAX,
) -> Answers[NewVector]:
    """Write the rows of `aggregate_positions` into `.bin` files of a Delta table, each with its data file's older DV.

    Each task fills one file after the other, up to `file_bytes_max`; a larger DV has a file of its own. The table is at
    `location`, and `properties` are those of its FileIO. Nothing is committed: the descriptors are for the add actions.
    If Spark runs a task twice, it leaves a file that no descriptor names, and VACUUM removes it.

    Raises CorruptInput for a data file that is not in `files`, a position beyond its rows, or a damaged older DV.
    """
    task = _WriteTask(dict(files), location, dict(properties), file_bytes_max)
    return run_on_spark(bitmaps, task)


@dataclass(frozen=True)
class _WriteTask:
    files: dict[str, DataFileRows]
    location: str
    properties: dict[str, str]
    file_bytes_max: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[NewVector]:
        storage, output = FileIOStorage(self.properties), DvFile(self.location)
        # A batch has many bitmaps, which stay in Arrow's memory until their turn comes.
        for row in (batch.slice(number, 1).to_pylist()[0] for batch in batches for number in range(batch.num_rows)):
            file, positions = row["file"], self._with_older(storage, row)
            if len(positions) == self.files[file].record_count:
                yield NewVector(file, len(positions), None)
                continue
            blob = encode_positions(positions)
            if len(output.data) > FIRST_DV_OFFSET and len(output.data) + len(blob) + FRAME_BYTES > self.file_bytes_max:
                self._write(output)
                output = DvFile(self.location)
            yield NewVector(file, len(positions), output.add(blob, len(positions)))
        if len(output.data) > FIRST_DV_OFFSET:
            self._write(output)

    def _with_older(self, storage: FileIOStorage, row: Mapping[str, Any]) -> BitMap64:
        known = self.files.get(row["file"])
        if known is None:
            hint = "Give the number of rows of every data file that has positions."
            raise CorruptInput("there are positions of a data file that was not given", path=row["file"], hint=hint)
        positions = decode_bitmap(**row)
        if known.deletion_vector:
            (older,) = read_position_sets(storage, self.location, [known.deletion_vector])
            positions |= as_bitmap(older)
        if positions and positions[-1] >= known.record_count:
            hint = "The positions and the number of rows do not belong to the same file."
            what = f"position {positions[-1]} is beyond the {known.record_count} rows of the file"
            raise CorruptInput(what, path=row["file"], hint=hint)
        return positions

    def _write(self, output: DvFile) -> None:
        try:
            with StoreFileIO(self.properties).new_output(output.path).create() as stream:
                stream.write(bytes(output.data))
        except OSError as error:
            raise store_away(output.path, error) from error
        force_to_disk([output.path])


def join_words(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn rows of (file, word, bits), sorted by the first two, into rows of BITMAPS. Raises CorruptInput."""
    current: str | None = None
    bitmap = BitMap64()
    for batch in batches:
        _check(batch)
        runs = pc.run_end_encode(batch["file"])
        start = 0
        for file, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            if file != current:
                if current is not None:
                    yield _row_of(current, bitmap)
                current, bitmap = file, BitMap64()
            bitmap |= BitMap64(_positions_of(batch["word"][start:end], batch["bits"][start:end]))
            start = end
    if current is not None:
        yield _row_of(current, bitmap)


def _check(batch: pa.RecordBatch) -> None:
    hint = "Every row needs the path of a data file, and the position of a row in it, from 0 on."
    if batch["file"].null_count or batch["word"].null_count:
        raise CorruptInput("a row of the positions has a null", hint=hint)
    least = pc.min(batch["word"]).as_py()
    if least is not None and least < 0:
        file = batch["file"][pc.index(batch["word"], least).as_py()].as_py()
        raise CorruptInput("a position is below zero", path=file, hint=hint)


def _positions_of(words: pa.Array, bits: pa.Array) -> array[int]:
    """Return the positions of the bits that are set, 8 bytes each."""
    import numpy as np  # noqa: PLC0415 - PySpark has imported it in this process; the daemon does not

    flags = np.unpackbits(bits.to_numpy().view(np.uint8), bitorder="little").reshape(-1, WORD_BITS)
    rows, offsets = np.nonzero(flags)
    positions: Any = (words.to_numpy()[rows] << WORD_BITS_LOG2) | offsets
    return array("Q", positions.astype(np.uint64).tobytes())


def _row_of(file: str, bitmap: BitMap64) -> pa.RecordBatch:
    row = {"file": file, "bitmap": encode_positions(bitmap), "cardinality": len(bitmap)}
    return pa.RecordBatch.from_pylist([row], BITMAPS)
