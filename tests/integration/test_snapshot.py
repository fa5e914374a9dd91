"""A state that is replayed here is the one that Delta on Spark tells, whatever kind of log Spark wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from daemon.clock import SystemClock
from daemon.config.settings import SparkSettings
from daemon.delta.log import DeltaLog
from daemon.delta.log_segment import LogSegment, load_log_segment
from daemon.delta.snapshot import replay
from daemon.delta.table_state import TableState
from daemon.delta.uri import name_file
from daemon.errors import CorruptInput
from daemon.pipeline.runner import Runner
from daemon.spark.answers import collect
from daemon.spark.session import SparkPipeline
from daemon.spark.table_state import read_table_state
from daemon.store.storage import FileIOStorage
from tests.integration.test_delta_log import DELTA, DV, TOP_LEVEL, V2, compact, delta_log, is_read_compacted
from tests.kit.broken_logs import append, healthy
from tests.kit.writer import Writer, checkpoint, date_commits

EVERY_4 = f"{DV}, 'delta.checkpointInterval' = '4'"
ROWS = (
    "SELECT id, concat('n', id) AS name, id / 4 AS score, timestamp_micros(id * 1000001) AS moment,"
    " element_at(array('a b/c=d%é', '', NULL, '2020-01-01 10:00:00', 'plain#?'), CAST(id % 5 AS INT) + 1) AS part"
    " FROM range({start}, {end}, 1, 1)"
)
MAPPING = "'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"


def rows(start: int, end: int) -> str:
    return ROWS.format(start=start, end=end)


# With a checkpoint every four versions there is churn on both sides of each; metadata and protocol change at the end.
HISTORY = (
    "DELETE FROM {t} WHERE id % 7 = 0",
    "UPDATE {t} SET name = 'new' WHERE id % 10 = 3",
    f"INSERT INTO {{t}} {rows(50, 70)}",
    "DELETE FROM {t} WHERE id % 7 = 1",
    "DELETE FROM {t} WHERE part = 'plain#?'",
    "RESTORE TABLE {t} TO VERSION AS OF 2",
    "OPTIMIZE {t}",
    "DELETE FROM {t} WHERE id % 7 = 2",
    f"INSERT INTO {{t}} {rows(80, 90)}",
    "ALTER TABLE {t} ADD COLUMN extra INT",
    "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
)


def log_of(folder: Path) -> DeltaLog:
    return DeltaLog(FileIOStorage(), f"file://{folder}", SystemClock())


def told_of(state: TableState) -> Any:
    """All of a state but its files."""
    fields = {name: getattr(state, name) for name in ("version", "timestamp_ms", "protocol", "metadata", "files")}
    return json.loads(msgspec.json.encode(fields))


def read_state(session: SparkSession, folder: Path, version: int | None) -> Any:
    return told_of(read_table_state(session, log_of(folder), version))


def read_files(session: SparkSession, folder: Path, version: int | None) -> pa.Table:
    return collect(read_table_state(session, log_of(folder), version).frame)


@dataclass
class Written:
    """A Delta table that Spark writes."""

    writer: Writer
    source: Path

    @property
    def log_folder(self) -> Path:
        return self.source / "_delta_log"

    @property
    def log(self) -> DeltaLog:
        return log_of(self.source)

    def create(self, properties: str) -> None:
        self.sql(f"CREATE TABLE {{t}} USING delta PARTITIONED BY (part) TBLPROPERTIES ({properties}) AS {rows(0, 40)}")

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.writer.sql(statement, self.source)

    def names(self, pattern: str) -> list[str]:
        return sorted(path.name for path in self.log_folder.iterdir() if re.fullmatch(pattern, path.name))

    def assert_as_delta(self, version: int | None = None) -> LogSegment:
        """The state at `version`, or the newest, is the same; the files that it was replayed from."""
        date_commits(self.source)
        segment = load_log_segment(self.log, version)
        replayed = replay(self.log, segment)
        assert replayed
        assert told_of(replayed) == self.writer.do(read_state, self.source, version)
        files = self.writer.do(read_files, self.source, version)
        assert comparable(replayed.rows.to_pylist()) == comparable(files.to_pylist(), self.log.location)
        return segment


def comparable(found: Sequence[dict[str, Any]], location: str | None = None) -> list[dict[str, Any]]:
    """Sorted rows; Delta spells absolute paths anew, and the statistics that it makes of structs."""
    some = [
        {
            **row,
            **(dict(zip(("path", "uri"), name_file(location, row["path"]), strict=True)) if location else {}),
            "partition_values": dict(row["partition_values"]),
            "stats": json.loads(row["stats"], object_hook=_with_moments) if row["stats"] else None,
        }
        for row in found
    ]
    assert some
    return sorted(some, key=lambda row: str(row["path"]))


def _with_moments(values: dict[str, Any]) -> dict[str, Any]:
    """Spark spells timestamps in the session's time zone; those of INT96 have none in Arrow, and are in UTC."""
    text = values.get("moment")
    if not isinstance(text, str):
        return values
    moment = datetime.fromisoformat(text)
    return {**values, "moment": moment if moment.tzinfo else moment.replace(tzinfo=UTC)}


@pytest.mark.parametrize(
    ("properties", "conf", "checkpoint"),
    [
        (EVERY_4, {}, r"\d{20}\.checkpoint\.parquet"),
        (
            f"{EVERY_4}, {MAPPING}",
            {f"{DELTA}.checkpoint.partSize": "2"},
            r"\d{20}\.checkpoint\.\d{10}\.\d{10}\.parquet",
        ),
        (
            EVERY_4 + V2,
            {TOP_LEVEL: "parquet", f"{DELTA}.checkpoint.partSize": "2"},
            r"\d{20}\.checkpoint\.[-0-9a-f]{36}\.p.*",
        ),
        (
            f"{EVERY_4}{V2}, 'delta.enableInCommitTimestamps' = 'true'",
            {TOP_LEVEL: "json"},
            r"\d{20}\.checkpoint\..*\.json",
        ),
        (EVERY_4.replace("true", "false"), {}, r"\d{20}\.checkpoint\.parquet"),
    ],
    ids=["classic", "multi-part", "v2-parquet", "v2-json", "without-vectors"],
)
def test_every_kind_of_log(
    writer: Writer, tmp_path: Path, properties: str, conf: dict[str, str], checkpoint: str
) -> None:
    """At each version: on, before and after checkpoints, after RESTORE and OPTIMIZE, with odd partition values."""
    table = Written(writer, tmp_path / "t")
    with writer.confs(conf):
        table.create(properties)
        table.sql(*HISTORY)
    assert {int(name[:20]) for name in table.names(checkpoint)} >= {4, 8}
    newest = table.assert_as_delta()
    assert newest.checkpoint is not None
    assert newest.version > newest.checkpoint.version == 8
    for version in (3, 6):
        segment = table.assert_as_delta(version)
        assert (segment.checkpoint is None) == (version < 4)


def test_compacted_logs(writer: Writer, tmp_path: Path) -> None:
    """Log compaction files are read in place of commits, where Delta reads them."""
    table = Written(writer, tmp_path / "t")
    table.create(f"{DV}, 'delta.checkpointInterval' = '100'")
    # RESTORE writes a checkpoint of its own.
    table.sql(*HISTORY[:5], *HISTORY[6:])
    compact(table, 1, 3)  # type: ignore[arg-type]
    compact(table, 5, 8)  # type: ignore[arg-type]
    segment = table.assert_as_delta()
    assert [file.to_version for file in segment.commits if file.is_compacted] == [3, 8]
    assert writer.do(is_read_compacted, table.source)
    table.assert_as_delta(8)
    table.assert_as_delta(7)


@pytest.mark.parametrize("as_struct", ["true", "false"])
def test_statistics_that_are_no_json(writer: Writer, tmp_path: Path, as_struct: str) -> None:
    """Checkpoints with statistics as a struct only, or with none."""
    table = Written(writer, tmp_path / "t")
    table.create(
        f"{EVERY_4}, 'delta.checkpoint.writeStatsAsJson' = 'false',"
        f" 'delta.checkpoint.writeStatsAsStruct' = '{as_struct}'"
    )
    table.sql(*HISTORY[:6])
    table.assert_as_delta()


@pytest.mark.live  # their logs have absolute paths
# One is followed, too: tests/integration/test_partitions_and_paths.py.
@pytest.mark.long
def test_shallow_clones(writer: Writer, tmp_path: Path) -> None:
    """Their paths are absolute, in commits and in checkpoints."""
    source, clone = Written(writer, tmp_path / "source folder"), Written(writer, tmp_path / "clone")
    source.create(EVERY_4)
    clone.sql(f"CREATE TABLE {{t}} SHALLOW CLONE delta.`{source.source}`", *HISTORY[:1])
    clone.assert_as_delta()
    writer.do(checkpoint, clone.source)
    clone.sql(*HISTORY[1:4])
    segment = clone.assert_as_delta()
    assert segment.checkpoint is not None


def test_logs_that_were_cleaned_up(writer: Writer, tmp_path: Path) -> None:
    """The state comes from the checkpoint when older commits are gone."""
    table = Written(writer, tmp_path / "t")
    table.create(EVERY_4)
    table.sql(*HISTORY[:5])
    for version in range(4):
        (table.log_folder / f"{version:020d}.json").unlink()
    assert [file.from_version for file in table.assert_as_delta().commits] == [5]
    (table.log_folder / "_last_checkpoint").unlink()
    table.assert_as_delta()
    table.assert_as_delta(4)


def test_a_log_that_only_delta_can_read(spark: SparkSession, tmp_path: Path) -> None:
    """dvsync alone refuses a damaged checkpoint. With `auto`, Delta goes on from the older one, in any thread."""
    table = healthy(tmp_path / "t")
    delta_log(spark, table.folder).checkpoint()
    newest = append(table, deleted=[2])
    delta_log(spark, table.folder).checkpoint()
    file = table.folder / "_delta_log" / f"{newest:020d}.checkpoint.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    pipeline, log = SparkPipeline(SparkSettings()), log_of(table.folder)
    alone, helped = Runner(pipeline, "local"), Runner(pipeline, "auto")
    with pytest.raises(CorruptInput, match="the checkpoint cannot be read"):
        alone.open_state(log).__enter__()

    def read() -> tuple[int, int]:
        with helped.open_state(log) as state:
            dvs = [add.deletion_vector for add in state.read_adds() if add.deletion_vector]
            return state.version, sum(dv.cardinality for dv in dvs)

    # The session is known from this thread. The daemon uses it in those of its tables.
    with pipeline.session(), ThreadPoolExecutor(1) as thread:
        assert thread.submit(read).result() == (newest, 2)
