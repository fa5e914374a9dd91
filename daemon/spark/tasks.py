"""Functions over Arrow batches in Spark's tasks, with errors that arrive as themselves."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING
from zipimport import zipimporter

import pyarrow as pa

from daemon.errors import SyncError
from daemon.spark.answers import collect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Spark reports an exception of a worker as text only: our errors travel in a column of their own.
ERROR_FIELD = pa.field("error", pa.binary())
ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def run_on_spark(frame: DataFrame, function: ArrowFunction, schema: pa.Schema) -> list[pa.RecordBatch]:
    """`function` over the frame's batches in Spark's tasks. A `SyncError` raised there is raised here again.

    Also raises what reading the frame comes to (`failures.py`).
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    with_error = pa.schema([*(field.with_nullable(True) for field in schema), ERROR_FIELD])
    result = collect(frame.mapInArrow(partial(_guarded, function, with_error), from_arrow_schema(with_error)))
    for pickled in result.column(ERROR_FIELD.name).drop_null():
        failure: SyncError = pickle.loads(pickled.as_py())
        raise failure
    batches: list[pa.RecordBatch] = result.drop_columns([ERROR_FIELD.name]).to_batches()
    return batches


def _guarded(function: ArrowFunction, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    _forget_archives()
    try:
        for batch in function(batches):
            columns = [*batch.columns, pa.nulls(batch.num_rows, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
    except SyncError as error:
        row = {field.name: None for field in schema} | {ERROR_FIELD.name: pickle.dumps(error)}
        yield pa.RecordBatch.from_pylist([row], schema=schema)


def _forget_archives() -> None:
    """Spare the next task 0.2 s: before each, PySpark's `importlib.invalidate_caches` reads each archive that something
    was imported from anew, Spark's own jar among them. What is needed again is found again."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]
