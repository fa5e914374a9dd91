"""What a Delta log may look like: every kind of checkpoint; cut, compacted or littered; statistics partly there."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from daemon.spark.session import SparkPipeline
from tests.kit.follow import Followed
from tests.kit.readers import assert_readers_agree, rows_of
from tests.kit.service import InProcess, Served, Service
from tests.kit.writer import Writer, checkpoint, reread_log

DELTA = "spark.databricks.delta"
DV = "'delta.enableDeletionVectors' = 'true'"
EVERY_3 = f"{DV}, 'delta.checkpointInterval' = '3'"
V2 = ", 'delta.checkpointPolicy' = 'v2'"
TOP_LEVEL = f"{DELTA}.checkpointV2.topLevelFileFormat"
CLASSIC = r"\d{20}\.checkpoint\.parquet"
UUID_NAMED = r"\d{20}\.checkpoint\.[-0-9a-f]{36}"
ROWS = "SELECT id, concat('n', id) AS name, id / 4 AS score FROM range({start}, {end}, 1, {files})"


def create(properties: str = EVERY_3, end: int = 40, files: int = 4) -> str:
    return f"CREATE TABLE {{t}} USING delta TBLPROPERTIES ({properties}) AS {rows(0, end, files)}"


def rows(start: int, end: int, files: int = 1) -> str:
    return ROWS.format(start=start, end=end, files=files)


def delta_log(spark: SparkSession, source: Path) -> Any:
    """Delta's own view of the log, read anew."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(source))


def is_read_compacted(session: SparkSession, source: Path) -> bool:
    """Whether Delta reads a log compaction file."""
    return "compacted" in delta_log(session, source).unsafeVolatileSnapshot().logSegment().deltas().mkString(",")


def names(table: Followed, pattern: str) -> list[str]:
    return sorted(path.name for path in table.log_folder.iterdir() if re.fullmatch(pattern, path.name))


def cut(table: Followed, *, before: int) -> None:
    """Log cleanup: the commits below `before` go, with their checksums."""
    table.live_adds()
    for path in table.log_folder.iterdir():
        if (match := re.fullmatch(r"(\d{20})\.(json|crc)", path.name)) and int(match[1]) < before:
            path.unlink()
    table.writer.do(reread_log, table.source)


def without_checksums(source: Path) -> None:
    """As delta-rs, older Delta and other writers leave a log: Delta on Spark must replay the state then."""
    found = [path for path in (source / "_delta_log").iterdir() if path.suffix == ".crc"]
    assert found, "Delta on Spark writes checksum files, or this removes nothing"
    for path in found:
        path.unlink()


def from_footers(adds: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The adds with the row counts of the files themselves, whatever their statistics say."""
    return {
        path: {**add, "stats": json.dumps({"numRecords": pq.read_metadata(urlsplit(path).path).num_rows})}
        for path, add in adds.items()
    }


class WithoutStatistics(Followed):
    """A Delta table whose adds may lack statistics: what they must count is in the files."""

    def live_adds(self) -> dict[str, dict[str, Any]]:
        return from_footers(super().live_adds())


def bounds(bench: Served) -> list[tuple[str, int, dict[int, bytes], dict[int, bytes], dict[int, int]]]:
    """Path, rows, lower bounds, upper bounds and null counts of each live data file, sorted."""
    files = bench.iceberg().inspect.data_files().to_pylist()
    return sorted(
        (
            file["file_path"],
            file["record_count"],
            dict(file["lower_bounds"] or ()),
            dict(file["upper_bounds"] or ()),
            dict(file["null_value_counts"] or ()),
        )
        for file in files
    )


@pytest.mark.parametrize(
    ("properties", "conf", "checkpoint"),
    [
        ("", {}, CLASSIC),
        pytest.param(
            "",
            {f"{DELTA}.checkpoint.partSize": "2"},
            r"\d{20}\.checkpoint\.\d{10}\.\d{10}\.parquet",
            marks=pytest.mark.long,
        ),
        pytest.param(
            V2,
            {TOP_LEVEL: "parquet", f"{DELTA}.checkpoint.partSize": "2"},
            UUID_NAMED + r"\.parquet",
            marks=pytest.mark.long,
        ),
        (V2, {TOP_LEVEL: "json"}, UUID_NAMED + r"\.json"),
    ],
    ids=["classic", "multi-part", "v2-parquet", "v2-json"],
)
def test_checkpoints(service: Service, tmp_path: Path, properties: str, conf: dict[str, str], checkpoint: str) -> None:
    """Each kind of checkpoint is a source of the first sync, is passed over while following, and of a resync."""
    table = Followed(service, tmp_path)
    with table.writer.confs(conf):
        table.sql(create(EVERY_3 + properties))
        table.sql("DELETE FROM {t} WHERE id % 7 = 0")
        table.sql("UPDATE {t} SET name = 'new' WHERE id % 10 = 3")
        table.sql("DELETE FROM {t} WHERE id % 7 = 1")
        assert names(table, checkpoint) == names(table, r"\d{20}\.checkpoint\..*") != []
        assert any((table.log_folder / "_sidecars").glob("*.parquet")) == (properties == V2)
        cut(table, before=3)
        table.step(operation="overwrite")
        table.step("DELETE FROM {t} WHERE id % 7 = 2", operation="delete")
        with table.held():
            for statement in ("DELETE FROM {t} WHERE id % 7 = 3", f"INSERT INTO {{t}} {rows(50, 60)}"):
                table.sql(statement)
            assert len({name[:20] for name in names(table, checkpoint)}) == 2
            cut(table, before=6)
        assert table.sync_and_check("the cut log").snapshots == 1
        table.step("DELETE FROM {t} WHERE id % 7 = 4", operation="delete")


def test_vanished_commits(service: Service, tmp_path: Path) -> None:
    """Commits that vanish between two polls are one snapshot: DVs grown and shrunk, files come and gone, a column."""
    table = Followed(service, tmp_path)
    table.sql(create())
    table.sql("DELETE FROM {t} WHERE id IN (1, 11, 21)")
    table.sql("DELETE FROM {t} WHERE id IN (12, 22)")
    table.step(operation="overwrite")
    before = table.image
    with table.held():
        table.sql("RESTORE TABLE {t} TO VERSION AS OF 1")
        table.sql("DELETE FROM {t} WHERE id = 2 OR id >= 30")
        table.sql("ALTER TABLE {t} ADD COLUMN extra INT")
        table.sql(f"INSERT INTO {{t}} SELECT *, 5 FROM ({rows(50, 60)})")
        assert names(table, CLASSIC) == [f"{version:020d}.checkpoint.parquet" for version in (3, 6)]
        cut(table, before=6)

    result = table.sync_and_check("the cut log")
    assert (result.snapshots, result.to_version) == (1, 6)
    staying = before.positions.keys() & table.image.positions.keys()
    assert any(before.positions[path] < table.image.positions[path] for path in staying), "one deletion vector grew"
    assert any(before.positions[path] > table.image.positions[path] for path in staying), "another one shrank"
    assert (result.data_files_added, result.data_files_removed) == (1, 1)
    assert [field.name for field in table.bench.iceberg().schema().fields][-1] == "extra"
    table.step("DELETE FROM {t} WHERE id % 5 = 4 AND extra IS NULL", operation="delete")


def garbage(pointer: Path) -> None:
    pointer.write_bytes(b"\x00\xffgarbage{")


def emptied(pointer: Path) -> None:
    pointer.write_bytes(b"")


def dangling(pointer: Path) -> None:
    pointer.write_text(json.dumps({**json.loads(pointer.read_text()), "version": 2, "checksum": None}))


def older(pointer: Path) -> None:
    pointer.write_text('{"version":0,"size":1}')


@pytest.mark.parametrize(
    "change",
    [
        lambda pointer: None,
        garbage,
        pytest.param(emptied, marks=pytest.mark.long),
        dangling,
        pytest.param(older, marks=pytest.mark.long),
        pytest.param(Path.unlink, marks=pytest.mark.long),
    ],
    ids=["whole", "garbage", "empty", "dangling", "older", "missing"],
)
def test_last_checkpoint(service: Service, tmp_path: Path, change: Callable[[Path], None]) -> None:
    """A table without its first commits is found and followed, whatever `_last_checkpoint` says."""
    table = Followed(service, tmp_path)
    table.sql(create())
    for number in range(4):
        table.sql(f"DELETE FROM {{t}} WHERE id % 7 = {number}")
    cut(table, before=3)
    assert names(table, r"\d{20}\.json") == [f"{version:020d}.json" for version in (3, 4)]
    change(table.log_folder / "_last_checkpoint")
    table.writer.do(reread_log, table.source)
    assert_shown(table, table.bench)
    table.sql("DELETE FROM {t} WHERE id % 7 = 5")
    assert_shown(table, table.bench)


def assert_shown(table: Followed, bench: Served) -> None:
    """The next sync is one snapshot, at the newest version, with Delta's rows."""
    result = bench.sync()
    assert (result.outcome, result.snapshots, result.to_version) == ("advanced", 1, table.version)
    iceberg = bench.iceberg()
    expected = rows_of(table.writer.delta(table.source), iceberg.schema().fields)
    assert_readers_agree(iceberg, table.writer.spark, expected, f"version {table.version}")


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def test_checkpoint_without_a_version(writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint, checksums and strange files without a new version are no news: no Spark, no snapshot, no write."""
    table = Followed(InProcess(writer), tmp_path)
    table.sql(create(DV))
    table.step("DELETE FROM {t} WHERE id % 7 = 0")
    before = contents(table.bench.folder)
    with closing(sqlite3.connect(f"file:{table.bench.state_file}?mode=ro", uri=True)) as watcher:
        data_version = watcher.execute("PRAGMA data_version").fetchone()
        table.writer.do(checkpoint, table.source)
        litter(table)
        assert names(table, CLASSIC) == [f"{1:020d}.checkpoint.parquet"]
        with monkeypatch.context() as patch:
            patch.setattr(SparkPipeline, "session", lambda pipeline: pytest.fail("a Spark session was asked for"))
            assert not table.bench.follower.has_news()
            assert table.bench.sync().outcome == "unchanged"
            assert not table.bench.follower.has_news()
        assert watcher.execute("PRAGMA data_version").fetchone() == data_version
    assert contents(table.bench.folder) == before
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")


def litter(table: Followed) -> None:
    """Files that engines leave in the log, some of them named as if of a later version."""
    for folder in ("_staged_commits", "_sidecars", "_commits"):
        (table.log_folder / folder).mkdir(exist_ok=True)
        (table.log_folder / folder / f"{2:020d}.3f2b6c1e-8a52-4d5f-9d0c-0a1b2c3d4e5f.json").write_text("{}")
    for name in (
        f"{7:020d}.crc",
        f"{7:020d}.json.tmp",
        f".{2:020d}.json.4711.tmp",
        f".{1:020d}.json.crc",
        f"_{2:020d}.json",
        f"{2:020d}.json.bak",
        "notes.txt",
        "zzz.tmp",
    ):
        (table.log_folder / name).write_text("not a commit")


def test_littered_log(service: Service, tmp_path: Path) -> None:
    """Other files in the log, checksum files present and absent: the first sync, following and a resync pass them."""
    table = Followed(service, tmp_path)
    table.sql(create(EVERY_3))
    table.sql("DELETE FROM {t} WHERE id % 7 = 0")
    assert names(table, r"\d{20}\.crc")
    litter(table)
    table.step(operation="overwrite")
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")
    for name in names(table, r"\.?\d{20}.*\.crc"):
        (table.log_folder / name).unlink()
    table.writer.do(reread_log, table.source)
    table.step("DELETE FROM {t} WHERE id % 7 = 2", operation="delete")
    table.sql("DELETE FROM {t} WHERE id % 7 = 3")
    without_checksums = table.new_bench("without_checksums")
    assert_shown(table, without_checksums)
    without_checksums.close()
    table.step(operation="delete", snapshots=1)


def compact(table: Followed, first: int, last: int) -> None:
    """PROTOCOL.md, "Log Compaction Files": the actions of a range of commits, reconciled."""
    metadata: dict[str, dict[str, Any]] = {}
    files: dict[tuple[str, str], dict[str, Any]] = {}
    for version in range(first, last + 1):
        for line in (table.log_folder / f"{version:020d}.json").read_text().splitlines():
            ((kind, action),) = json.loads(line).items()
            if kind in ("add", "remove"):
                vector = action.get("deletionVector") or {}
                files[action["path"], vector.get("pathOrInlineDv", "") + str(vector.get("offset"))] = {kind: action}
            elif kind in ("metaData", "protocol"):
                metadata[kind] = action
    lines = [*({kind: action} for kind, action in metadata.items()), *files.values()]
    path = table.log_folder / f"{first:020d}.{last:020d}.compacted.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_log_compaction(service: Service, tmp_path: Path) -> None:
    """Log compaction files: Delta reads them in a first sync and a resync, following goes by the commits."""
    table = Followed(service, tmp_path)
    table.sql(create(DV))
    table.sql("DELETE FROM {t} WHERE id % 7 = 0")
    table.sql("UPDATE {t} SET name = 'new' WHERE id % 10 = 3")
    table.sql("DELETE FROM {t} WHERE id % 7 = 1")
    compact(table, 1, 3)
    assert table.writer.do(is_read_compacted, table.source)
    table.step(operation="overwrite")
    table.step("DELETE FROM {t} WHERE id % 7 = 2", operation="delete")
    table.sql("DELETE FROM {t} WHERE id % 7 = 3")
    table.sql("OPTIMIZE {t}")
    compact(table, 4, 6)
    table.bench.sync(full=True)
    table.sync_and_check("a comparison by the compacted log")
    table.step("DELETE FROM {t} WHERE id % 7 = 4", operation="delete")


@pytest.mark.parametrize(
    "as_struct", [pytest.param(True, id="struct-only"), pytest.param(False, id="none", marks=pytest.mark.long)]
)
def test_statistics_in_checkpoints(service: Service, tmp_path: Path, as_struct: bool) -> None:
    """A checkpoint with statistics as struct only, or without any, gives right rows and record counts."""
    table = Followed(service, tmp_path)
    table.sql(
        "CREATE TABLE {t} (id BIGINT, name STRING, day DATE, moment TIMESTAMP, amount DECIMAL(9, 2), ok BOOLEAN,"
        " place STRUCT<city: STRING, x: DOUBLE>) USING delta TBLPROPERTIES ('delta.checkpointInterval' = '2',"
        f" 'delta.checkpoint.writeStatsAsJson' = 'false', 'delta.checkpoint.writeStatsAsStruct' = '{as_struct}', {DV})"
    )
    values = (
        "id, if(id % 3 = 0, NULL, concat('näme', id)), date_add(DATE'1969-12-01', CAST(id AS INT)),"
        " timestamp_micros(id * 1000001 - 20000007), id / 3, id > 3,"
        " named_struct('city', concat('c', id), 'x', id / 7D)"
    )
    table.sql(f"INSERT INTO {{t}} SELECT {values} FROM range(0, 40, 1, 2)")
    from_json = table.new_bench("from_json")
    from_json.sync()
    table.sql("DELETE FROM {t} WHERE id % 7 = 0")
    cut(table, before=2)
    table.step(operation="overwrite")
    if as_struct:
        assert [file[:4] for file in bounds(table.bench)] == [file[:4] for file in bounds(from_json)]
    from_json.close()
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")
    table.step(f"INSERT INTO {{t}} SELECT {values} FROM range(40, 50, 1, 1)", operation="append")


@pytest.mark.parametrize("columns", [0, 1])
def test_indexed_columns(service: Service, tmp_path: Path, columns: int) -> None:
    """With `delta.dataSkippingNumIndexedCols` of 0 or 1 only these columns have bounds, and all rows are right."""
    table = Followed(service, tmp_path)
    table.step(create(f"{DV}, 'delta.dataSkippingNumIndexedCols' = '{columns}'"), operation="append")
    assert all(len(lower) == columns for _, _, lower, _, _ in bounds(table.bench))
    table.step("DELETE FROM {t} WHERE id % 7 = 0", operation="delete")
    table.step(f"INSERT INTO {{t}} {rows(50, 60)}", operation="append")


def drop_statistics(table: Followed, version: int) -> None:
    """Write the commit anew without the adds' statistics, as writers may that collect none."""
    path = table.log_folder / f"{version:020d}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))
    path.with_suffix(".crc").unlink()
    path.with_name(f".{path.name}.crc").unlink()
    table.writer.do(reread_log, table.source)


def test_missing_statistics(service: Service, tmp_path: Path) -> None:
    """Adds without statistics get their row counts from the files' footers, deletion vectors go on top."""
    table = WithoutStatistics(service, tmp_path)
    with table.writer.confs({f"{DELTA}.stats.collect": "false"}):
        table.step(create(DV), operation="append")
        table.step(f"INSERT INTO {{t}} {rows(50, 60)}", operation="append")
    assert all(not file[2] for file in bounds(table.bench)), "no statistics, no bounds"
    table.step("DELETE FROM {t} WHERE id % 7 = 0", operation="delete")
    with table.held():
        table.sql("DELETE FROM {t} WHERE id % 7 = 1")
        drop_statistics(table, table.version)
    table.step(operation="delete")
    first_sync = table.new_bench("first_sync")
    assert_shown(table, first_sync)
    first_sync.close()


def write_parquet(session: SparkSession, query: str, folder: Path, columns: Sequence[str]) -> None:
    session.sql(query).write.partitionBy(*columns).parquet(str(folder))


@pytest.mark.parametrize(
    ("partitioned", "statistics"),
    [
        pytest.param(False, "", id="whole-statistics", marks=pytest.mark.long),
        pytest.param(False, "NO STATISTICS", id="whole-no-statistics"),
        pytest.param(True, "", id="partitioned-statistics"),
        pytest.param(True, "NO STATISTICS", id="partitioned-no-statistics", marks=pytest.mark.long),
    ],
)
def test_converted_table(service: Service, tmp_path: Path, partitioned: bool, statistics: str) -> None:
    """CONVERT TO DELTA of Parquet files, with and without partitions and statistics, is shown with its deletions."""
    table = WithoutStatistics(service, tmp_path)
    table.writer.do(
        write_parquet,
        "SELECT id, concat('n', id) AS name, element_at(array('a b/c=d%é', NULL, 'x'), CAST(id % 3 AS INT) + 1) AS part"
        " FROM range(0, 30, 1, 1)",
        table.source,
        ["part"] if partitioned else [],
    )
    by = "PARTITIONED BY (part STRING)" if partitioned else ""
    table.sql(f"CONVERT TO DELTA parquet.`{table.source}` {statistics} {by}")
    table.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({DV})")
    assert all(bool(add.get("stats")) != bool(statistics) for add in Followed.live_adds(table).values())
    table.step(operation="append")
    table.step("DELETE FROM {t} WHERE id % 7 = 0", operation="delete")
    table.step("INSERT INTO {t} SELECT id, 'later', 'a b/c=d%é' FROM range(50, 60, 1, 1)", operation="append")
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")
