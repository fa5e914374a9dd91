"""Aggregates rows of (data file, position) into one bitmap for each data file, distributed.

Spark's own hash aggregate joins the positions to words of 64 bits, first in each task, then of all tasks; what does not
fit into its memory goes to the disk. A Python task gets the words of a file sorted, and holds one bitmap at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from daemon.delta.position_set import encode_positions
from daemon.errors import CorruptInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORD_BITS_LOG2 = 6
WORD_BITS = 1 << WORD_BITS_LOG2
BITMAPS = pa.schema(
    [
        pa.field("file", pa.string()),
        pa.field("bitmap", pa.binary()),
        pa.field("cardinality", pa.int64()),
    ]
)


def aggregate_positions(frame: DataFrame, *, file: str, position: str) -> DataFrame:
    """Return a row for each data file in `frame`: `file`, `bitmap` and `cardinality`.

    The columns `file` and `position` of the frame are a string and a long; rows may repeat and come in any order. The
    bitmap has the bytes that a deletion vector stores (Delta PROTOCOL.md, "Deletion Vector Format", portable form).

    A null, or a position below zero, is a `CorruptInput` in the task that meets it.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    bit = f.call_function("shiftleft", f.lit(1).cast("long"), f.col(position).bitwiseAND(WORD_BITS - 1).cast("int"))
    words = frame.groupBy(f.col(file).alias("file"), f.shiftright(position, WORD_BITS_LOG2).alias("word"))
    sorted_words = words.agg(f.bit_or(bit).alias("bits")).repartition("file").sortWithinPartitions("file", "word")
    return sorted_words.mapInArrow(_join_words, from_arrow_schema(BITMAPS))


def _join_words(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
