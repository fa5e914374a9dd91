"""Functions in Spark's tasks, whose values and errors arrive as themselves."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar, overload
from zipimport import zipimporter

import pyarrow as pa

from daemon.errors import SyncError
from daemon.spark.answers import collect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


S = TypeVar("S")
T = TypeVar("T")

# Spark reports an exception of a worker as text only: what a task raises travels as its values do, pickled.
ANSWERS = pa.schema([pa.field("value", pa.binary()), pa.field("error", pa.binary())])


@dataclass(frozen=True)
class Answers(Sequence[T]):
    """What tasks gave, in order. A value is unpickled when it is asked for: until then it is on the disk."""

    pickled: pa.ChunkedArray

    def __len__(self) -> int:
        return len(self.pickled)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Answers[T]: ...
    def __getitem__(self, index: int | slice) -> T | Answers[T]:
        if isinstance(index, slice):
            return Answers(self.pickled[index])
        value: T = pickle.loads(self.pickled[index].as_buffer())
        return value


def run_on_spark(frame: DataFrame, function: Callable[[Iterable[pa.RecordBatch]], Iterator[T]]) -> Answers[T]:
    """The values that `function` gives for the frame's batches, one call a partition, in Spark's tasks.

    A `SyncError` raised there is raised here again. Also raises what reading the frame comes to (`failures.py`).
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    answers = collect(frame.mapInArrow(partial(_guarded, function), from_arrow_schema(ANSWERS)))
    for pickled in answers.column("error").drop_null():
        failure: SyncError = pickle.loads(pickled.as_buffer())
        raise failure
    return Answers(answers.column("value"))


def map_on_spark(
    spark: SparkSession, chunks: Sequence[Sequence[S]], function: Callable[[Iterable[S]], Iterator[T]]
) -> Answers[T]:
    """The values that `function` gives for each of `chunks`, each in a task of its own. Raises as `run_on_spark`."""
    pickled = [pickle.dumps(chunk) for chunk in chunks]
    rows = pa.table({"number": pa.array(range(len(chunks))), "chunk": pa.array(pickled, pa.binary())})
    frame = spark.createDataFrame(rows).repartitionByRange(len(chunks), "number").sortWithinPartitions("number")
    return run_on_spark(frame, partial(_map_chunks, function))


def _map_chunks(function: Callable[[Iterable[S]], Iterator[T]], batches: Iterable[pa.RecordBatch]) -> Iterator[T]:
    yield from function(
        each for batch in batches for chunk in batch.column("chunk") for each in pickle.loads(chunk.as_buffer())
    )


def _guarded(
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[T]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    _forget_archives()
    try:
        for value in function(batches):
            yield _answer(value=pickle.dumps(value))
    except SyncError as error:
        yield _answer(error=pickle.dumps(error))


def _answer(**columns: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([columns], schema=ANSWERS)


def _forget_archives() -> None:
    """Spare the next task 0.2 s: before each, PySpark's `importlib.invalidate_caches` reads each archive that something
    was imported from anew, Spark's own jar among them. What is needed again is found again."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]
