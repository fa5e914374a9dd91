"""The life of tables of format version 3 in a daemon: readers show Delta's rows, and its row ids, after every commit.

Rounds of maintenance go on every second meanwhile, the daemon is killed now and then, and a table is upgraded half-way.
Seeded by `FAULT_SEED`; `LIFE_COMMITS` makes it longer. What Spark writes is drawn by a seed that is recorded, and by
others in long tests.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from shutil import rmtree
from threading import Event

import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from daemon.config.load import load_settings
from daemon.observe import log as events
from daemon.service.assembly import open_parts
from daemon.verify.findings import Level, Scope
from daemon.verify.verifier import Verifier
from tests.kit.faults import fault_seed
from tests.kit.handmade import HandmadeTable
from tests.kit.handmade_histories import History
from tests.kit.readers import assert_readers_agree, read_iceberg
from tests.kit.service import Served, Service, newest_version
from tests.kit.spark_process import SparkProcess
from tests.kit.writer import Writer

COMMITS = int(os.environ.get("LIFE_COMMITS", "6"))
# It draws each of the statements.
RECORDED_SEED = 32
KILLED_EVERY = 6
# Of the readers, Spark's is the slowest.
SPARK_EVERY = 3
MAINTENANCE = {"steps": ["compact", "expire", "cleanup"], "interval": "1s", "snapshots_max": 4, "orphan_grace": "1m"}


@pytest.mark.parametrize("held", [False, True], ids=["version by version", "all at once"])
@pytest.mark.long
def test_row_ids_after_row_tracking_began_again(service: Service, tmp_path: Path, held: bool) -> None:
    """Delta then names another column for row ids, and gives the files other ones; so does a table made anew."""
    delta = Tracked(service.writer, tmp_path / "delta", Random("again"), partitioned=False)
    delta.run("UPDATE {t} SET name = concat(name, '+') WHERE id % 2 = 0")
    table = service.serve(tmp_path / "iceberg", delta.location, format_version=3)
    service.take_up(table)
    wait_until_shown(service, [table])
    with table.held() if held else nullcontext():
        delta.run("ALTER TABLE {t} DROP FEATURE rowTracking")
        delta.run("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
        delta.run("DELETE FROM {t} WHERE id % 5 = 0")
    wait_until_shown(service, [table])
    delta.check(table.iceberg())
    with table.held() if held else nullcontext():
        rmtree(delta.location.removeprefix("file://"))
        delta.create()
        delta.run("UPDATE {t} SET name = concat(name, '-') WHERE id % 2 = 0")
        delta.run("DELETE FROM {t} WHERE id % 5 = 0")
    service.wait(lambda: table.status()["source_version"] == 3 == table.status()["synced_version"], "the new table")
    delta.check(table.iceberg())
    verify_rows(service, table)


@dataclass
class Life:
    """A table, and the row id of each row that was shown in format version 3, by the row's `id`."""

    history: History
    served: Served
    row_ids: dict[int, int] = field(default_factory=dict)

    def check_row_ids(self, spark: SparkProcess, iceberg: Table) -> None:
        """No two rows have had the same id, and no row has had two. Iceberg spec, "Row Lineage".

        In a snapshot from before the upgrade, rows have no ids yet.
        """
        shown = spark(read_iceberg, iceberg.metadata_location, ("id", "_row_id"))
        now = {row["id"]: row["_row_id"] for row in shown.to_pylist()}
        snapshot = iceberg.current_snapshot()
        assert snapshot is not None
        if snapshot.first_row_id is None:
            assert self.row_ids == {} and set(now.values()) <= {None}
            return
        assert None not in now.values()
        assert {row: self.row_ids.get(row, row_id) for row, row_id in now.items()} == now
        self.row_ids |= now
        assert len(set(self.row_ids.values())) == len(self.row_ids)


class Tracked:
    """A Delta table with row tracking, which Spark changes by statements drawn by `random`."""

    STATEMENTS = (
        *2 * ("INSERT INTO {t} SELECT id, concat('n', id), id % 3 FROM range({new}, {new} + 20, 1, 2)",),
        *2 * ("DELETE FROM {t} WHERE id % {mod} = {rest}",),
        *2 * ("UPDATE {t} SET name = concat(name, '+') WHERE id % {mod} = {rest}",),
        "DELETE FROM {t} WHERE part = {rest} % 3",
        "MERGE INTO {t} AS t USING (SELECT id, id % 3 AS part FROM range({new} - 50, {new} + 5)) AS s ON t.id = s.id"
        " WHEN MATCHED AND s.id % {mod} = {rest} THEN DELETE"
        " WHEN MATCHED AND s.id % 2 = 0 THEN UPDATE SET name = 'merged', part = (s.part + 1) % 3"
        " WHEN NOT MATCHED AND s.id >= {new} THEN INSERT (id, name, part) VALUES (s.id, 'new', s.part)",
        "OPTIMIZE {t}",
        "OPTIMIZE {t} ZORDER BY (id)",
        "REORG TABLE {t} APPLY (PURGE)",
        "RESTORE TABLE {t} TO VERSION AS OF {old}",
    )

    def __init__(self, writer: Writer, folder: Path, random: Random, *, partitioned: bool) -> None:
        self.location = f"file://{folder}"
        self._writer, self._folder, self._random, self._new_id, self._partitioned = (
            writer,
            folder,
            random,
            0,
            partitioned,
        )
        self.create()

    def create(self) -> None:
        partitions = "PARTITIONED BY (part)" if self._partitioned else ""
        self.run(
            "CREATE TABLE {t} (id BIGINT, name STRING, part INT) USING delta " + partitions + " TBLPROPERTIES"
            " ('delta.enableDeletionVectors' = 'true', 'delta.enableRowTracking' = 'true')"
        )
        self.run(self.STATEMENTS[0])

    def play(self) -> None:
        self.run(self._random.choice(self.STATEMENTS))

    def run(self, statement: str) -> None:
        mod = self._random.randint(3, 9)
        drawn = {"mod": mod, "rest": self._random.randrange(mod), "new": self._new_id}
        if "{old}" in statement:
            drawn["old"] = self._random.randint(1, newest_version(self.location))
        self._new_id += 20
        # Else Spark reads a table's files in two tasks, and random names decide which rows get into which new file.
        with self._writer.confs({"spark.sql.leafNodeDefaultParallelism": "1", "spark.sql.shuffle.partitions": "1"}):
            self._writer.sql(statement.format(t="{t}", **drawn), self._folder)

    def check(self, iceberg: Table, *, ids: bool = True) -> None:
        """Every row of Delta is in Iceberg, with its row id in format version 3, and no other row is.

        Of the readers only Spark's knows ids, and is slow: without `ids`, PyIceberg shows the rows.
        """
        columns, has_ids = ["id", "name", "part"], iceberg.metadata.format_version == 3
        row_id = ["_metadata.row_id AS row_id"] * has_ids
        expected = self._writer.rows(f"SELECT {', '.join([*columns, *row_id])} FROM {{t}}", self._folder)
        if ids:
            asked = [*columns, *["_row_id AS row_id"] * has_ids]
            shown = self._writer.spark(read_iceberg, iceberg.metadata_location, asked)
        else:
            shown, expected = iceberg.scan().to_arrow(), expected.select(columns)
        by_all = [(name, "ascending") for name in shown.column_names]
        assert shown.sort_by(by_all).to_pylist() == expected.sort_by(by_all).to_pylist()


def begin(service: Service, folder: Path, random: Random, *, format_version: int, partitioned: bool = False) -> Life:
    table = HandmadeTable(folder / "delta", partitioned=partitioned)
    table.create()
    options = {"format_version": format_version, "maintenance": MAINTENANCE, "verify": {"period": "5s"}}
    served = service.serve(folder / "iceberg", table.location, **options)
    # A file that comes back is new to Iceberg: its rows get new ids.
    return Life(History(table, random, brings_back=False), served)


def upgrade(service: Service, served: Served) -> Served:
    upgraded = replace(served, options={**served.options, "format_version": 3})
    service.take_up(upgraded)
    return upgraded


def restart_killed(service: Service) -> None:
    service.store.close()
    service.daemon.kill()
    service.start()


def verify_rows(service: Service, *tables: Served) -> None:
    """What `dvsync verify --rows` does, on the session of the tests."""
    service.writer.spark(are_right, service.folder / "config.yaml", [table.name for table in tables])


def are_right(session: SparkSession, config: Path, names: Sequence[str]) -> None:
    settings = load_settings(config)
    with open_parts(settings) as parts:
        for table in settings.tables:
            if table.name in names:
                proof = Verifier(parts.context(table)).verify(Scope(Level.ROWS), Event())
                assert proof and proof.is_right, proof


def wait_until_shown(service: Service, tables: Sequence[Served]) -> None:
    for table in tables:
        version = newest_version(table.source)

        def is_shown(table: Served = table, version: int = version) -> bool:
            status = table.status()
            assert status["state"] not in ("parked", "retrying"), status
            return status["synced_version"] == version

        service.wait(is_shown, f"{table.name} at version {version}")


@pytest.mark.parametrize("commits", [COMMITS, pytest.param(2 * COMMITS, marks=pytest.mark.long)])
def test_all_readers_after_every_commit(
    service: Service, spark_process: SparkProcess, tmp_path: Path, commits: int
) -> None:
    """Appends, deletes, RESTORE, removals and new columns, beside compaction, expiry, cleanup and verification."""
    seed = fault_seed()
    plain = begin(service, tmp_path / "plain", Random(f"{seed} plain"), format_version=3)
    partitioned = begin(
        service, tmp_path / "partitioned", Random(f"{seed} partitioned"), format_version=3, partitioned=True
    )
    upgraded = begin(service, tmp_path / "upgraded", Random(f"{seed} upgraded"), format_version=2)
    lives = [plain, partitioned, upgraded]
    service.take_up(*(life.served for life in lives))
    happened: set[str] = set()
    for commit in range(1, commits + 1):
        for life in lives:
            life.history.play()
        happened |= {line["event"] for line in service.daemon.lines}
        if commit % KILLED_EVERY == 0:
            restart_killed(service)
        if commit == commits // 2:
            upgraded.served = upgrade(service, upgraded.served)
        wait_until_shown(service, [life.served for life in lives])
        for life in lives:
            where = f"{life.served.source} at version {life.history.table.version}"
            iceberg = life.served.iceberg()
            spark = spark_process if commit % SPARK_EVERY == 0 else None
            assert_readers_agree(iceberg, spark, life.history.table.live_rows_in(iceberg.schema()), where)
            if spark and iceberg.metadata.format_version == 3:
                life.check_row_ids(spark, iceberg)
    assert [life.served.iceberg().metadata.format_version for life in lives] == [3, 3, 3]

    def has_happened(*wanted: str) -> bool:
        return {*wanted} <= happened | {line["event"] for line in service.daemon.lines}

    service.wait(lambda: has_happened(events.MAINTENANCE_EXPIRED, events.VERIFY_RIGHT), "an expiry and a verification")
    happened |= {line["event"] for line in service.daemon.lines}
    # A short life may end before there is something to compact.
    assert events.MAINTENANCE_COMPACTED in happened or commits < 100
    assert {events.MAINTENANCE_FAILED, events.VERIFY_WRONG, events.VERIFY_FAILED}.isdisjoint(happened)
    verify_rows(service, *(life.served for life in lives))


@pytest.mark.parametrize(
    ("seed", "commits"),
    [pytest.param(RECORDED_SEED, 6, id="recorded"), pytest.param(None, COMMITS, id="drawn", marks=pytest.mark.long)],
)
def test_row_ids_are_deltas_for_life(service: Service, tmp_path: Path, seed: int | None, commits: int) -> None:
    """MERGE, UPDATE, REORG, OPTIMIZE and RESTORE, beside maintenance and kills, and from version 2 on."""
    seed = seed or fault_seed()
    names = ("plain", "partitioned", "upgraded")
    deltas = [
        Tracked(service.writer, tmp_path / name / "delta", Random(f"{seed} {name}"), partitioned=name == "partitioned")
        for name in names
    ]
    tables = []
    for name, delta in zip(names, deltas, strict=True):
        options = {"format_version": 2 if name == "upgraded" else 3, "maintenance": MAINTENANCE}
        tables.append(service.serve(tmp_path / name / "iceberg", delta.location, **options))
    service.take_up(*tables)
    for commit in range(1, commits + 1):
        for delta in deltas:
            delta.play()
        if commit % KILLED_EVERY == 0:
            restart_killed(service)
        if commit == commits // 2:
            tables[-1] = upgrade(service, tables[-1])
        wait_until_shown(service, tables)
        for delta, table in zip(deltas, tables, strict=True):
            delta.check(table.iceberg(), ids=commit in (commits // 2, commits))
    assert [table.iceberg().metadata.format_version for table in tables] == [3, 3, 3]
    verify_rows(service, tables[-1])
