"""Delta on Spark is the judge of the model by which the hostile histories of `tests/property` are checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kit.histories import Sync
from tests.kit.hostile_histories import TOURS, HostileHistory, tour
from tests.kit.readers import assert_same_rows


@pytest.mark.long
@pytest.mark.parametrize("partitioned", [False, True], ids=["unpartitioned", "partitioned"])
@pytest.mark.parametrize("verb", TOURS)
def test_the_model_is_deltas(spark: SparkSession, tmp_path: Path, verb: str, *, partitioned: bool) -> None:
    """Every version that Delta can read has the model's rows, also those that Iceberg cannot show."""
    history = HostileHistory(tmp_path / "t", partitioned=partitioned)
    for step in tour([verb]):
        if not isinstance(step, Sync):
            history.play_any(step)
    for version in range(1, history.table.version + 1):
        if not history.is_unreadable(version):
            frame = spark.read.format("delta").option("versionAsOf", version).load(str(history.folder))
            rows = [tuple(row) for row in frame.collect()]
            assert_same_rows(rows, history.rows(version), "the model", f"version {version} of {verb}")
