"""A Delta table's whole state, read where that is cheapest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from daemon.delta.log import DeltaLog
from daemon.delta.table_state import TableState
from daemon.spark.session import SparkPipeline
from daemon.spark.table_state import read_table_state


@contextmanager
def open_state(pipeline: SparkPipeline, log: DeltaLog, version: int | None = None) -> Iterator[TableState]:
    """The state at `version`, or the newest, for as long as the block lasts.

    Raises as `read_table_state` does, and `PipelineAway`.
    """
    with pipeline.session() as spark:
        yield read_table_state(spark, log, version)
