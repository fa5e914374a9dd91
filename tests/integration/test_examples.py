"""The programs in examples/ run as they are, on what `dvsync demo` leaves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from daemon.cli import demo
from daemon.delta.deletion_vector import read_position_sets
from daemon.delta.position_set import as_bitmap
from daemon.store.storage import FileIOStorage
from state import DeletionVectorDescriptor
from tests.kit.installed import ROOT, clean_environment
from tests.kit.invoke import invoke
from tests.kit.spark_process import conf_values
from tests.kit.spark_session import SHORT_LIVED

pytestmark = pytest.mark.spark

RUN_MAX_S = 400
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "POLARS_ICEBERG_PLANNER": "pyiceberg",
    # In a program this short, the second compiler costs more than it gains.
    "JAVA_TOOL_OPTIONS": SHORT_LIVED,
}


def run(folder: Path, *arguments: str | Path) -> str:
    """What a Python program prints that works in `folder`."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=clean_environment(ENVIRONMENT),
        capture_output=True,
        text=True,
        timeout=RUN_MAX_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `demo/` in it. The demo itself fails if a reader differs from Delta."""
    made = tmp_path_factory.mktemp("examples")
    run(made, "-m", "daemon", "demo")
    return made


def test_the_first_versions_of_the_demo(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logging_as_it_was: None
) -> None:
    """The command in this process and on its session; the whole demo, on one of its own, is a long test."""
    monkeypatch.setattr(demo, "HISTORY", demo.HISTORY[:3])
    monkeypatch.setattr(demo, "_spark", lambda: nullcontext(spark))
    monkeypatch.chdir(tmp_path)
    with conf_values(spark, {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}):
        result = invoke(["demo"])
    assert result.exit_code == 0, result.output
    assert "Every data file of the Iceberg tables is Delta's own: yes." in result.output
    lines = re.findall(r"^ +(\d)  (\w+)", result.output, re.MULTILINE)
    assert lines == [("1", "first"), ("2", "delete"), ("3", "update")]


@pytest.mark.long
def test_demo(folder: Path) -> None:
    assert (folder / "demo" / "catalog.db").exists()


@pytest.mark.long
def test_read_iceberg(folder: Path) -> None:
    told = run(folder, ROOT / "examples" / "read_iceberg.py")
    assert "orders in the north" in told
    assert "Delta version 9: append" in told


@pytest.mark.long
def test_scan_delta(folder: Path) -> None:
    told = run(folder, ROOT / "examples" / "scan_delta.py")
    assert "FileScan parquet" in told
    assert "rows; in the files:" in told


# The function that it shows is tested in test_bitmaps.py.
@pytest.mark.long
def test_write_deletion_vectors(folder: Path) -> None:
    """Each vector that it prints has the small orders of its data file, and the table stays as it is."""
    table = folder / "demo" / "lake" / "orders"
    log = sorted((table / "_delta_log").iterdir())
    told = run(folder, ROOT / "examples" / "write_deletion_vectors.py").splitlines()
    vectors = [json.loads(line) for line in told if line.startswith("{")]
    assert vectors and f"{len(vectors)} of the " in told[-2]
    for vector in vectors:
        path = Path(unquote(vector["file"]).removeprefix("file:").replace("///", "/"))
        amounts = pq.ParquetFile(path).read(["amount"]).column(0).to_pylist()
        descriptor = msgspec.convert(vector["descriptor"], DeletionVectorDescriptor)
        (found,) = read_position_sets(FileIOStorage(), f"file://{table}", [descriptor])
        small = {position for position, amount in enumerate(amounts) if amount < 100}
        assert small and small <= set(as_bitmap(found)) != set(range(len(amounts)))
    assert sorted((table / "_delta_log").iterdir()) == log
