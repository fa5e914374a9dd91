"""Runs functions over Arrow batches in Spark's tasks, and raises their errors with their own types."""

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


# Spark reports a worker's exception only as text, so our errors come back in an extra column.
ERROR_FIELD = pa.field("error", pa.binary())
ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def run_on_spark(frame: DataFrame, function: ArrowFunction, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Apply `function` to the frame's batches in Spark's tasks. A `SyncError` raised there is raised here again.

    Also raises the errors of reading the frame itself (`failures.py`).
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
    """Forget the archives that Python has imported from, which saves the next task 0.2 s.

    Before each task PySpark calls `importlib.invalidate_caches`, which reads each known archive again, Spark's own jar
    among them. Python finds an archive again if it is needed.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]
