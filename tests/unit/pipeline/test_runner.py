"""Who reads a table's whole state: this process, or Spark where that is away."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daemon.config.settings import SparkSettings
from daemon.delta.actions import AddFile
from daemon.errors import CorruptInput, FileLiveTwice, PipelineAway
from daemon.pipeline.mirrors import KINDS, MirrorPlanner, MirrorTask
from daemon.pipeline.runner import Runner
from daemon.spark.session import SparkPipeline
from daemon.store.storage import FileIOStorage
from tests.kit.logs import METADATA, PROTOCOL, HandmadeLog, add, remove
from tests.kit.mirror_files import column, table_of


@pytest.fixture
def log(tmp_path: Path) -> HandmadeLog:
    log = HandmadeLog(tmp_path / "t")
    log.create(*(add(f"f{number}") for number in range(3)))
    return log


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: SparkPipeline) -> None:
        raise PipelineAway("there is no Java", hint="Install it.")

    monkeypatch.setattr(SparkPipeline, "_start", away)


def files(log: HandmadeLog, engine: str = "auto") -> int:
    runner = Runner(SparkPipeline(SparkSettings()), engine)
    with runner.open_state(log.log) as state:
        return state.files


@pytest.mark.parametrize("limit", [{}, {"LOCAL_LOG_BYTES_MAX": 10}, {"LOCAL_DATA_FILES_MAX": 2}], ids=str)
def test_what_needs_spark(log: HandmadeLog, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]) -> None:
    """A table that is too large by its log or its files, or by setting."""
    assert files(log) == 3
    for name, value in limit.items():
        monkeypatch.setattr(f"daemon.pipeline.runner.{name}", value)
    assert files(log, "local") == 3
    with pytest.raises(PipelineAway):
        files(log, "auto" if limit else "spark")


def test_mirrors_that_need_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More files than one process plans and makes, or more bytes to rewrite."""
    adds = []
    for number in range(3):
        pq.write_table(pa.table({"c": pa.array([number], pa.int32())}), path := tmp_path / f"{number}.parquet")
        adds.append(AddFile(f"file://{path}", True, partition_values={}, size=path.stat().st_size))
    planner = MirrorPlanner(FileIOStorage(), table_of(column("c", "double")), KINDS["rewrite"], "t")
    runner = Runner(SparkPipeline(SparkSettings()), "auto")
    planned = runner.plan_mirrors(adds, planner)
    tasks = [MirrorTask(each, f"{each.data_file}-mirror") for each in planned.mirrors]
    paths = [path for made in runner.make_mirrors(tasks, planner, {}) for path in made]
    assert paths == [task.path for task in tasks]
    for limit in ("LOCAL_DATA_FILES_MAX", "LOCAL_REWRITTEN_BYTES_MAX"):
        with monkeypatch.context() as limited, pytest.raises(PipelineAway):
            limited.setattr(f"daemon.pipeline.runner.{limit}", 2)
            list(runner.make_mirrors(tasks, planner, {}))
    monkeypatch.setattr("daemon.pipeline.runner.LOCAL_DATA_FILES_MAX", 2)
    with pytest.raises(PipelineAway):
        runner.plan_mirrors(adds, planner)


def test_a_checksum_file_that_differs_needs_a_second_opinion(log: HandmadeLog) -> None:
    """One that agrees, or cannot be read, needs none; nor does dvsync alone."""
    checksum = log.name(0, "crc")
    checksum.write_text('{"numFiles": 3, "tableSizeBytes": 30, "numDeletedRecordsOpt": 0}')
    assert files(log) == 3
    checksum.write_text('{"numFiles": 4, "tableSizeBytes": 30}')
    assert files(log, engine="local") == 3
    with pytest.raises(PipelineAway):
        files(log)
    checksum.write_text("{")
    assert files(log) == 3


def test_a_refusal_stands_without_spark(log: HandmadeLog) -> None:
    """A broken log is not reported as a missing Java."""
    log.write_parquet(log.name(0, "checkpoint.parquet"), [PROTOCOL, METADATA]).write_bytes(b"cut")
    for engine in ("auto", "local"):
        with pytest.raises(CorruptInput, match="the checkpoint cannot be read"):
            files(log, engine=engine)


def test_a_file_that_is_live_twice_is_no_question_for_spark(log: HandmadeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would say the same, or something by chance; no JVM starts for it."""
    monkeypatch.setattr(SparkPipeline, "_start", lambda _: pytest.fail("Spark was asked"))
    log.commit(add("x"), add("%78"))
    with pytest.raises(FileLiveTwice, match="2 live adds for the one path"):
        files(log)
    log.commit(remove("%78"), add("y%c3"))
    log.commit(remove("y%C3"))
    with pytest.raises(FileLiveTwice, match="depends on the reader"):
        files(log)
