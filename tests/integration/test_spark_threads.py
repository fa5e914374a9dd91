"""Spark is used from the daemon's worker threads: many at once, after it idled out, and after its JVM died."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from daemon.errors import PipelineAway
from daemon.spark.jvm import NICENESS
from tests.integration.test_delta_log import EVERY_3, create, cut, rows, without_checksums
from tests.kit.broken_logs import healthy
from tests.kit.follow import Followed
from tests.kit.handmade import HandmadeTable
from tests.kit.readers import assert_readers_agree, assert_same_rows, read_duckdb
from tests.kit.service import FAILURES, SYNC_MAX_S, Served, Service
from tests.kit.spark_process import SparkProcess
from tests.kit.writer import Writer, checkpoint

TABLES = 6


@pytest.fixture(scope="module")
def checkpointed(spark_process: SparkProcess, tmp_path_factory: pytest.TempPathFactory) -> HandmadeTable:
    """A table at version 4 with deletion vectors, whose log begins at a checkpoint and has no checksum file."""
    table = healthy(tmp_path_factory.mktemp("checkpointed") / "t")
    spark_process(checkpoint, table.folder)
    for version in range(table.version):
        table.commit_path(version).unlink()
    table.commit(table.delete({path: [0] for path in table.live}))
    assert not list(table.folder.glob("_delta_log/0*.crc"))
    return table


def copied(checkpointed: HandmadeTable, folder: Path, number: int) -> Path:
    return Path(shutil.copytree(checkpointed.folder, folder / f"lake{number}" / "t"))


# The tables of test_broken_logs.py have their first syncs at once, too.
@pytest.mark.long
def test_many_first_syncs_at_once(service: Service, tmp_path: Path, checkpointed: HandmadeTable) -> None:
    """Tables with a checkpoint and without checksum files are synced at the first try, several at a time."""
    sources = [copied(checkpointed, tmp_path, number) for number in range(TABLES)]
    tables = [
        service.serve(tmp_path / f"bench{number}", f"file://{source}", engine="spark" if number % 2 else None)
        for number, source in enumerate(sources)
    ]
    service.take_up(*tables)
    for table in tables:
        assert table.sync().operation == "first sync"
    assert not failures(service)
    for table in tables:
        assert_shown(checkpointed, table)
    assert_readers_agree(tables[0].iceberg(), service.writer.spark, checkpointed.live_rows())


def test_every_use_of_spark(service: Service, tmp_path: Path) -> None:
    """First sync, footers, deletion vectors, a comparison and a gap in the log: all on Spark, all without checksums."""
    table = Followed(service, tmp_path, options={"engine": "spark"})
    table.sql(create(EVERY_3))
    table.sql("DELETE FROM {t} WHERE id % 7 = 0")
    without_checksums(table.source)
    table.step(operation="overwrite")
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")
    table.step(f"INSERT INTO {{t}} {rows(50, 60)}", operation="append")
    without_checksums(table.source)
    table.bench.sync(full=True)
    table.sync_and_check("a comparison")
    with table.held():
        for number in (2, 3):
            table.sql(f"DELETE FROM {{t}} WHERE id % 7 = {number}")
        table.sql("OPTIMIZE {t}")
        cut(table, before=6)
        without_checksums(table.source)
    assert table.sync_and_check("a gap").snapshots == 1
    table.step("DELETE FROM {t} WHERE id % 7 = 4", operation="delete")


@pytest.fixture
def own_service(writer: Writer, tmp_path: Path) -> Iterator[Service]:
    """A daemon of its own, whose Spark session ends soon."""
    made = Service(tmp_path, constants={"daemon.spark.session.IDLE_TIMEOUT_S": 1.0})
    made.writer = writer
    yield made
    made.stop()


@pytest.mark.long
def test_a_session_that_idled_out(own_service: Service, tmp_path: Path, checkpointed: HandmadeTable) -> None:
    """A session without work ends with its JVM; the next table that needs Spark gets a new one."""
    serve(own_service, tmp_path, checkpointed, 0).sync()
    own_service.daemon.told("pipeline.idled", wait_s=90)
    own_service.wait(lambda: not own_service.jvms(), "the end of the idle JVM")
    second = serve(own_service, tmp_path, checkpointed, 1)
    assert second.sync().snapshots == 1
    assert not failures(own_service)
    assert_shown(checkpointed, second)


@pytest.mark.long
def test_a_session_that_died_while_idle(service: Service, tmp_path: Path, checkpointed: HandmadeTable) -> None:
    """A JVM that was killed while idle is replaced unnoticed."""
    first = serve(service, tmp_path, checkpointed, 0)
    first.sync()
    (jvm,) = service.jvms()
    assert jvm.nice() == psutil.Process(service.daemon.process.pid).nice() + NICENESS, "Spark gives way to the syncs"
    jvm.kill()
    assert first.sync(full=True).snapshots == 1
    assert not failures(service)
    assert_shown(checkpointed, first)


@pytest.mark.long
def test_a_session_that_died_at_work(service: Service, tmp_path: Path, checkpointed: HandmadeTable) -> None:
    """A JVM that is killed in the middle of a first sync is named as Spark's trouble, and the sync is tried again."""
    table = serve(service, tmp_path, checkpointed, 0)
    hint = tmp_path / "lake0" / "t" / "_delta_log" / "_last_checkpoint"
    with read_for_ever(hint) as wait_for_reader:
        service.take_up(table)
        wait_for_reader()
        (jvm,) = service.jvms()
        jvm.kill()
        with pytest.raises(PipelineAway, match="the Spark session died"):
            table.sync()
    assert table.sync().operation == "first sync"
    assert_shown(checkpointed, table)


@contextmanager
def read_for_ever(path: Path) -> Iterator[Callable[[], None]]:
    """A pipe without an end in the place of a file: whoever reads it waits. Yields what waits for a reader."""
    kept = path.with_suffix(".kept")
    path.rename(kept)
    os.mkfifo(path)
    writers: list[int] = []

    def wait_for_reader() -> None:
        deadline_s = time.monotonic() + SYNC_MAX_S
        while not writers:
            assert time.monotonic() < deadline_s, f"nobody reads {path}"
            with suppress(OSError):  # Without a reader, a pipe cannot be opened for writing.
                writers.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            time.sleep(0.02)

    try:
        yield wait_for_reader
    finally:
        kept.rename(path)
        for writer in writers:
            os.close(writer)


def failures(service: Service) -> list[dict[str, Any]]:
    return [line for line in service.daemon.lines if line["event"] in FAILURES]


def assert_shown(checkpointed: HandmadeTable, table: Served) -> None:
    assert_same_rows(read_duckdb(table.iceberg()), checkpointed.live_rows(), "DuckDB", table.name)


def serve(service: Service, folder: Path, checkpointed: HandmadeTable, number: int) -> Served:
    source = f"file://{copied(checkpointed, folder, number)}"
    return service.serve(folder / f"bench{number}", source, engine="spark")
