"""Who reads a table's whole state: this process, or Spark where that is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.config.settings import SparkSettings
from daemon.errors import CorruptInput, FileLiveTwice, PipelineAway
from daemon.pipeline.runner import Runner
from daemon.spark.session import SparkPipeline
from tests.kit.logs import METADATA, PROTOCOL, HandmadeLog, add, remove


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
