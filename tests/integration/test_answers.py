"""Spark's answers, taken into a file: the rows, order and schema of `DataFrame.toArrow`, and none of its memory."""

from __future__ import annotations

import os
import resource
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from daemon.errors import PipelineAway, SyncError
from daemon.spark.answers import collect

ROWS = 100_000
LONG_PATHS = "concat('part-', lpad(id, 8, '0'), repeat('-0123456789', 10), '.parquet') AS path"


def anonymous_bytes() -> int:
    """Memory of this process that no file stands behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def test_an_answer_is_in_a_file_that_goes_with_it(spark: SparkSession, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    columns = (LONG_PATHS, "map('part', cast(id AS string)) AS partition_values", "id")
    frame = spark.range(ROWS).selectExpr(*columns).repartitionByRange(5, "path").sortWithinPartitions("path")
    collect(frame.limit(1))
    before = anonymous_bytes()
    found = collect(frame)
    assert found.nbytes > 15_000_000
    assert anonymous_bytes() - before < found.nbytes / 4
    assert os.listdir(tmp_path) == []
    descriptors = [os.readlink(place.path) for place in os.scandir("/proc/self/map_files")]
    assert any(place.startswith(str(tmp_path)) for place in descriptors)
    assert found.equals(frame.toArrow())
    assert found["id"].to_pylist() == list(range(ROWS))


@pytest.mark.parametrize("rows", ["id > 5", "id > 100"])
def test_small_answers(spark: SparkSession, rows: str) -> None:
    frame = spark.range(10).selectExpr("id", "array(id) AS ids").where(rows)
    assert collect(frame).equals(frame.toArrow())


def test_no_room_for_an_answer(spark: SparkSession, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(PipelineAway, match=r"Spark's answer cannot be stored in .*gone: No such file") as raised:
        collect(spark.range(3))
    assert "TMPDIR" in (raised.value.hint or "")


def test_a_disk_that_is_full_in_the_middle_of_an_answer(spark: SparkSession) -> None:
    """It ends at once, though the driver has more to send; and the next query is answered."""
    frame = spark.range(3 * ROWS).selectExpr(LONG_PATHS)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    pool = ThreadPoolExecutor(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(PipelineAway, match=r"Spark's answer cannot be stored in .*: "):
            pool.submit(collect, frame).result(timeout=60)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        pool.shutdown(wait=False)
    assert collect(spark.range(3)).num_rows == 3


def test_a_query_that_fails(spark: SparkSession) -> None:
    with pytest.raises(SyncError, match="not today"):
        collect(spark.range(3).selectExpr("raise_error('not today')"))
