"""Runs queries, and functions in Spark's tasks, and brings back what they answer; errors come with their own types.

Answers are collected batch by batch into a file, so that the state of a large table needs no memory.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from zipimport import zipimporter

import pyarrow as pa

from daemon.errors import PipelineAway, SyncError
from daemon.spark.failures import known_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

S = TypeVar("S")
T = TypeVar("T")

# Spark reports a worker's exception only as text, so values and errors come back pickled.
ANSWERS = pa.schema([pa.field("value", pa.binary()), pa.field("error", pa.binary())])


def collect(frame: DataFrame) -> pa.Table:
    """Return all rows of `frame`, in its order. They are in a deleted temporary file that is mapped into memory.

    The operating system can evict pages of the file when memory is short. The file vanishes with the last reference to
    the table. Raises what `known_errors` raises, and PipelineAway if the file cannot be written.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    schema = to_arrow_schema(frame.schema, error_on_duplicated_field_names_in_struct=True)
    with _disk_errors():
        file = tempfile.NamedTemporaryFile(prefix="dvsync-")  # noqa: SIM115 - closed by the next block
    with file:
        order = _write(frame, file.name)
        if not order:
            return schema.empty_table()
        batches = pa.ipc.open_file(pa.memory_map(file.name))
        return pa.Table.from_batches([batches.get_batch(number) for number in order]).cast(schema)


def _write(frame: DataFrame, path: str) -> list[int]:
    """Write the rows as an Arrow file. Returns the numbers of its batches in the order of the rows."""
    order: list[int] = []
    writer = None
    with _served(frame) as stream:
        for each in stream:
            if isinstance(each, list):
                order = each
                continue
            with _disk_errors():
                writer = writer or pa.ipc.new_file(path, each.schema)
                writer.write_batch(each)
    if writer is not None:
        with _disk_errors():
            writer.close()
    return order


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        folder = tempfile.gettempdir()
        raise PipelineAway(
            f"Spark's answer cannot be stored in {folder}: {error.strerror or error}",
            path=folder,
            hint="A first sync, a resync or a comparison needs about 0.3 kB there for each data file. Free disk space, "
            "or set the environment variable TMPDIR to another folder.",
        ) from error


@contextmanager
def _served(frame: DataFrame) -> Iterator[Iterator[pa.RecordBatch | list[int]]]:
    """Yield the batches as Spark's driver sends them, and at the end their order. `DataFrame.toArrow` does so, too."""
    from pyspark.sql.pandas.serializers import ArrowCollectSerializer  # noqa: PLC0415
    from pyspark.util import _load_from_socket  # noqa: PLC0415

    with known_errors():
        port, secret, server = frame._jdf.collectAsArrowToPython()
        stream: Any = _load_from_socket((port, secret), ArrowCollectSerializer())  # type: ignore[no-untyped-call]
        try:
            yield stream
        except PipelineAway:
            # Do not wait for the driver's thread: it blocks until somebody reads, as long as the connection is open.
            stream.close()
            raise
        except Exception:
            _wait_for(server)
            raise
        _wait_for(server)


def _wait_for(server: Any) -> None:
    """Wait for the driver's thread. Raises the query's error, if it failed."""
    from pyspark.errors.exceptions.captured import unwrap_spark_exception  # noqa: PLC0415

    with unwrap_spark_exception():
        server.getResult()


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
