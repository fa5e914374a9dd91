"""Runs functions in Spark's tasks, and returns their values and raises their errors with their own types."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from zipimport import zipimporter

import pyarrow as pa

from daemon.errors import SyncError
from daemon.spark.answers import collect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


S = TypeVar("S")
T = TypeVar("T")

# Spark reports a worker's exception only as text, so values and errors come back pickled.
ANSWERS = pa.schema([pa.field("value", pa.binary()), pa.field("error", pa.binary())])


@dataclass(frozen=True)
class Answers(Iterable[T]):
    """The values that tasks returned, in order. Each is on the disk until it is unpickled, again for each iteration."""

    pickled: pa.ChunkedArray

    def __iter__(self) -> Iterator[T]:
        for value in self.pickled:
            yield pickle.loads(value.as_buffer())


def run_on_spark(frame: DataFrame, function: Callable[[Iterable[pa.RecordBatch]], Iterator[T]]) -> Answers[T]:
    """Call `function` with the batches of each partition of the frame, in Spark's tasks; return all values.

    A `SyncError` raised there is raised here again. Also raises the errors of reading the frame itself (`failures.py`).
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
    """Call `function` with each of `chunks`, each in its own task; return all values. Raises as `run_on_spark`."""
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
    """Forget the archives that Python has imported from, which saves the next task 0.2 s.

    Before each task PySpark calls `importlib.invalidate_caches`, which reads each known archive again, Spark's own jar
    among them. Python finds an archive again if it is needed.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]
