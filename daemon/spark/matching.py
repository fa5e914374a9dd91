"""Finds the rows that fulfil a predicate of Spark SQL, as a bitmap of positions for each data file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from daemon.delta.snapshot import ReplayedState
from daemon.errors import ConfigInvalid
from daemon.spark.answers import collect
from daemon.spark.bitmaps import aggregate_positions
from daemon.spark.failures import known_errors
from daemon.spark.scan import MARKER, read_delta

HINT = "Correct the predicate. Nothing was deleted."


def find_matches(
    spark: SparkSession, state: ReplayedState, predicate: str, properties: Mapping[str, str], time_zone: str
) -> Iterator[dict[str, Any]]:
    """Yield a row of `aggregate_positions` for each file with live rows that fulfil the predicate.

    `time_zone` is that of timestamp partition values without one.

    Raises `ConfigInvalid` if Spark does not know the predicate's meaning, or if it does not depend on the row alone;
    else as `read_delta` and `known_errors`.
    """
    frame = read_delta(
        spark, state.location, version=state.version, properties=properties, keep_deleted=True, time_zone=time_zone
    )
    with known_errors():
        live = frame.where(F.col(MARKER) == 0)
        try:
            matched = live.where(predicate)
        except (AnalysisException, ParseException) as error:
            raise ConfigInvalid(f"the predicate cannot be used: {error}", hint=HINT) from error
        _check(matched._jdf.queryExecution().analyzed())
        places = matched.select(
            F.col("_metadata.file_path").alias("file"), F.col("_metadata.row_index").alias("position")
        )
        found = collect(aggregate_positions(places, file="file", position="position"))
    for batch in found.to_batches(max_chunksize=1):
        yield from batch.to_pylist()


def _check(plan: Any) -> None:
    """Raise `ConfigInvalid` unless the condition of the filter on top is one of the row alone."""
    condition = plan.condition()
    if not condition.deterministic() or plan.subqueriesAll().nonEmpty():
        what = "the predicate depends on more than the row: on a subquery, or on chance"
        raise ConfigInvalid(f"{what}: {condition.sql()}", hint="Write the values into the predicate.")
