"""Every operation and every table feature of Delta that changes files or the log: followed and shown in all readers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from daemon.errors import Unsupported
from daemon.iceberg.pyiceberg_ext.format_v3 import next_row_id
from tests.kit.follow import Followed
from tests.kit.handmade import FEATURES, HandmadeTable
from tests.kit.readers import assert_same_rows, read_iceberg, rows_of
from tests.kit.service import Served, Service
from tests.kit.writer import overwrite

MAPPED = "'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name'"
COLUMNS = "id BIGINT, name STRING, amount DECIMAL(12, 3), place STRUCT<city: STRING, floor: INT>, part STRING, day DATE"
PARTITIONED = "PARTITIONED BY (part, day)"
ROWS = """
    SELECT id, concat('name-', id) AS name, if(id % 9 = 0, NULL, CAST(id * 1.125 AS DECIMAL(12, 3))) AS amount,
        named_struct('city', concat('c', id % 2), 'floor', CAST(id AS INT)) AS place,
        element_at(array('a b/c=d%é#?', NULL), CAST(id % 2 AS INT) + 1) AS part,
        element_at(array(DATE'1960-02-29', NULL), CAST(id % 2 AS INT) + 1) AS day
    FROM range({start}, {end}, 1, {slices})
"""
MERGE = """
    MERGE INTO {t} t USING ({source}) s ON t.id = s.id
    WHEN MATCHED AND t.id % 2 = 0 THEN DELETE
    WHEN MATCHED THEN UPDATE SET name = concat(s.name, ' merged'), place.floor = -1, part = 'moved'
    WHEN NOT MATCHED THEN INSERT *
    WHEN NOT MATCHED BY SOURCE AND t.id % 13 = 5 THEN UPDATE SET name = 'lonely'
    WHEN NOT MATCHED BY SOURCE AND t.id % 13 = 6 THEN DELETE
"""


def rows(start: int, end: int, slices: int = 1) -> str:
    return ROWS.format(start=start, end=end, slices=slices)


LAYOUTS = (
    pytest.param(False, "file", id="whole-file", marks=pytest.mark.long),
    pytest.param(True, "partition", id="partitioned-partition"),
)
# Column mapping.
MODES = (pytest.param("none", marks=pytest.mark.long), "name")


@pytest.mark.parametrize(("partitioned", "granularity"), LAYOUTS)
@pytest.mark.long
def test_operations_with_column_mapping(service: Service, tmp_path: Path, partitioned: bool, granularity: str) -> None:
    """UPDATE, MERGE, ZORDER BY, RESTORE, REORG, TRUNCATE and a replaced table, with column mapping by name."""
    table = Followed(service, tmp_path, granularity)
    by = PARTITIONED if partitioned else ""
    table.sql(f"CREATE TABLE {{t}} ({COLUMNS}) USING delta {by} TBLPROPERTIES ({MAPPED})")
    table.step(f"INSERT INTO {{t}} {rows(0, 40, 2)}", operation="append")
    table.step("DELETE FROM {t} WHERE id % 7 = 0", operation="delete")
    table.step("UPDATE {t} SET name = 'updated', place.city = NULL WHERE id % 10 = 3", operation="overwrite")
    table.step(MERGE.format(t="{t}", source=rows(30, 50)), operation="overwrite")
    table.step("OPTIMIZE {t} ZORDER BY (id, name)", operation="replace")
    assert not table.image.delete_files
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")
    table.step("RESTORE TABLE {t} TO VERSION AS OF 4")  # before OPTIMIZE
    table.step("RESTORE TABLE {t} TO VERSION AS OF 1")  # before deletes
    assert not table.image.delete_files
    table.step("DELETE FROM {t} WHERE id % 7 = 2", operation="delete")
    table.step("REORG TABLE {t} APPLY (PURGE)", operation="replace")
    assert not table.image.delete_files
    table.step("ALTER TABLE {t} RENAME COLUMN name TO title", snapshots=0)
    table.step("DELETE FROM {t} WHERE id % 7 = 3 AND title LIKE 'name%'", operation="delete")
    table.step("TRUNCATE TABLE {t}", operation="delete")
    assert not table.image.data_files and not table.image.delete_files
    table.step(
        f"CREATE OR REPLACE TABLE {{t}} USING delta {'' if partitioned else 'PARTITIONED BY (id)'}"
        f" TBLPROPERTIES ({MAPPED}) AS SELECT concat('s', id % 2) AS id, id AS part FROM range(0, 20, 1, 1)"
    )
    table.step("DELETE FROM {t} WHERE part % 3 = 0", operation="delete")
    table.check_leftovers()


@pytest.mark.parametrize("mode", MODES)
def test_overwrites(service: Service, tmp_path: Path, mode: str) -> None:
    """INSERT OVERWRITE, replaceWhere and dynamic partition overwrite exchange just what Delta exchanges."""
    table = Followed(service, tmp_path, "partition")
    properties = f"'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = '{mode}'"
    made = f"CREATE TABLE {{t}} USING delta PARTITIONED BY (part) TBLPROPERTIES ({properties}) AS"
    select = "SELECT id, concat('n', id) AS name, concat('p', id % 3) AS part FROM range({}, {}, 1, {})"
    table.step(f"{made} {select.format(0, 30, 2)}", operation="append")
    table.step("DELETE FROM {t} WHERE id % 7 = 0", operation="delete")
    untouched = {path for path in table.image.data_files if "/part=p1/" not in path}
    table.writer.do(
        overwrite, "SELECT 1L AS id, 'r' AS name, 'p1' AS part", table.source, {"replaceWhere": "part = 'p1'"}
    )
    table.step(operation="overwrite")
    if mode == "none":
        assert untouched <= table.image.data_files.keys()
    table.writer.do(
        overwrite,
        "SELECT 5L AS id, 'r' AS name, 'p0' AS part",
        table.source,
        {"replaceWhere": "part = 'p0' AND id < 10"},
    )
    table.step(operation="overwrite")  # by rows: deletion vectors
    table.step("INSERT INTO {t} REPLACE WHERE id = 5 SELECT 5L, 'again', 'p2'", operation="overwrite")
    table.writer.do(
        overwrite, "SELECT 9L AS id, 'd' AS name, 'p2' AS part", table.source, {"partitionOverwriteMode": "dynamic"}
    )
    table.step(operation="overwrite")
    assert len(table.truth(table.bench.iceberg()).rows) > 1
    table.step(f"INSERT OVERWRITE {{t}} {select.format(40, 50, 1)}", operation="overwrite")
    assert not table.image.delete_files
    table.check_leftovers()


@pytest.mark.parametrize(("partitioned", "granularity"), LAYOUTS)
def test_deletes_until_a_file_is_empty(service: Service, tmp_path: Path, partitioned: bool, granularity: str) -> None:
    """One file is deleted from until nothing is left of it; the files beside it stay as they are."""
    table = Followed(service, tmp_path, granularity)
    by = "PARTITIONED BY (part)" if partitioned else ""
    table.sql(
        f"CREATE TABLE {{t}} USING delta {by} TBLPROPERTIES ({MAPPED})"
        " AS SELECT id, 'one' AS part FROM range(0, 24, 1, 2)"
    )
    table.step(operation="append")
    table.step("DELETE FROM {t} WHERE id IN (13, 20)", operation="delete")
    for remainder in range(3):
        table.step(f"DELETE FROM {{t}} WHERE id < 12 AND id % 4 = {remainder}", operation="delete")
    table.step("DELETE FROM {t} WHERE id < 12", operation="delete")
    assert len(table.image.data_files) == 1
    assert [len(positions) for positions in table.image.positions.values()] == [2]
    table.check_leftovers()


@pytest.mark.usefixtures("quick_vacuum")
def test_vacuum(service: Service, tmp_path: Path) -> None:
    """VACUUM without retention makes no snapshot, and deletions grow on where it took the deletion vector before."""
    table = Followed(service, tmp_path)
    table.sql(
        "CREATE TABLE {t} USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        " AS SELECT id FROM range(0, 40, 1, 2)"
    )
    table.step(operation="append")
    table.step("DELETE FROM {t} WHERE id % 7 = 0", operation="delete")
    table.step("UPDATE {t} SET id = id + 100 WHERE id % 10 = 3", operation="overwrite")
    table.step("VACUUM {t} RETAIN 0 HOURS", snapshots=0, versions=2)
    table.step("DELETE FROM {t} WHERE id < 40 AND id % 7 = 1", operation="delete")
    with table.held():
        vectors = deletion_vector_files(table)
        table.sql("DELETE FROM {t} WHERE id % 7 = 2")
        table.sql("VACUUM {t} RETAIN 0 HOURS")
        assert not vectors & deletion_vector_files(table)
    assert table.sync_and_check("DELETE and VACUUM").snapshots == 1
    table.step("OPTIMIZE {t}", operation="replace")
    table.step("VACUUM {t} RETAIN 0 HOURS", snapshots=0, versions=2)
    table.step("DELETE FROM {t} WHERE id % 7 = 3", operation="delete")
    table.check_leftovers()


def deletion_vector_files(table: Followed) -> set[str]:
    return {path.name for path in table.source.rglob("deletion_vector_*.bin")}


@pytest.mark.usefixtures("quick_vacuum")
def test_vacuum_before_the_sync(service: Service, tmp_path: Path) -> None:
    """Versions whose files VACUUM took before they were synced are passed over: Delta's newest rows are shown."""
    table = Followed(service, tmp_path)
    table.sql(
        "CREATE TABLE {t} USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        " AS SELECT id FROM range(0, 40, 1, 2)"
    )
    table.step(operation="append")
    with table.held():
        table.sql("DELETE FROM {t} WHERE id % 7 = 0")
        table.sql("DELETE FROM {t} WHERE id % 7 = 1")
        table.sql("VACUUM {t} RETAIN 0 HOURS")
    table.sync_and_check("a deletion vector that is gone")
    with table.held():
        table.sql("INSERT INTO {t} SELECT id FROM range(100, 110, 1, 1)")
        table.sql("OPTIMIZE {t}")
        table.sql("VACUUM {t} RETAIN 0 HOURS")
    table.sync_and_check("data files that are gone")
    table.step("DELETE FROM {t} WHERE id % 7 = 3", operation="delete")


@pytest.mark.parametrize("mode", MODES)
def test_deletion_vectors_on_and_off(service: Service, tmp_path: Path, mode: str) -> None:
    """Deletion vectors are switched on and off midway, and their feature dropped (checkpointProtection joins then)."""
    table = Followed(service, tmp_path)
    table.step(
        f"CREATE TABLE {{t}} USING delta TBLPROPERTIES ('delta.columnMapping.mode' = '{mode}',"
        " 'delta.enableDeletionVectors' = 'false') AS SELECT id, id % 3 AS n FROM range(0, 40, 1, 2)"
    )
    table.step("DELETE FROM {t} WHERE id = 0", operation="overwrite")
    table.step("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')", snapshots=0)
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")
    assert len(table.image.delete_files) == 2
    table.step("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')", snapshots=0)
    table.step("UPDATE {t} SET n = 9 WHERE id = 2")
    assert len(table.image.delete_files) == 1
    before = table.version
    table.sql("ALTER TABLE {t} DROP FEATURE deletionVectors")
    assert table.version > before + 1
    assert table.sync_and_check("DROP FEATURE").snapshots == 1
    assert not table.image.delete_files
    table.step("DELETE FROM {t} WHERE id % 7 = 2", operation="overwrite")


def test_metadata_only_commits(service: Service, tmp_path: Path) -> None:
    """Comments, table properties and empty commits make no snapshot; comments of columns are shown."""
    table = Followed(service, tmp_path)
    table.step(
        f"CREATE TABLE {{t}} USING delta TBLPROPERTIES ({MAPPED})"
        " AS SELECT id, named_struct('city', 'x') AS place FROM range(0, 10, 1, 1)"
    )
    table.step("DELETE FROM {t} WHERE id = 3", operation="delete")
    for statement in (
        "ALTER TABLE {t} SET TBLPROPERTIES ('team' = 'blue', 'delta.logRetentionDuration' = 'interval 9 days')",
        "ALTER TABLE {t} UNSET TBLPROPERTIES ('team')",
        "COMMENT ON TABLE {t} IS 'what it holds'",
        "ALTER TABLE {t} ALTER COLUMN id COMMENT 'the number'",
        "ALTER TABLE {t} ALTER COLUMN place.city COMMENT 'the town'",
        "ALTER TABLE {t} ALTER COLUMN place FIRST",
    ):
        table.step(statement, snapshots=0)
    schema = table.bench.iceberg().schema()
    assert (schema.find_field("id").doc, schema.find_field("place.city").doc) == ("the number", "the town")
    table.commit_by_hand()
    table.step(snapshots=0)
    table.step("DELETE FROM {t} WHERE id = 4", operation="delete")


def test_statistics_and_rewrites_without_data_change(service: Service, tmp_path: Path) -> None:
    """Statistics computed anew make no snapshot, by Delta or by hand; files rewritten by hand make one of `replace`."""
    table = Followed(service, tmp_path)
    table.step(
        "CREATE TABLE {t} USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"
        " AS SELECT id, concat('n', id) AS name FROM range(0, 30, 1, 3)"
    )
    table.writer.do(recompute_statistics, table.source)
    table.step(snapshots=0)
    table.step("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')", snapshots=0)
    table.step("DELETE FROM {t} WHERE id % 7 = 0", operation="delete")
    table.commit_by_hand(
        *(
            {
                "add": {
                    **add,
                    "dataChange": False,
                    "stats": json.dumps({"numRecords": records(add), "tightBounds": False}),
                }
            }
            for add in table.live_adds().values()
        )
    )
    table.step(snapshots=0)

    adds = table.live_adds()
    iceberg = table.bench.iceberg()
    path = "part-by-hand.parquet"
    pq.write_table(iceberg.scan().to_arrow().sort_by("id"), table.source / path)
    size = (table.source / path).stat().st_size
    left = sum(map(records, adds.values())) - sum(len(positions) for positions in table.image.positions.values())
    add = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": False}
    table.commit_by_hand(
        {"add": {**add, "stats": json.dumps({"numRecords": left})}}, *(removed(add) for add in adds.values())
    )
    table.step(operation="replace")
    assert len(table.image.data_files) == 1 and not table.image.delete_files
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")


def records(add: Mapping[str, Any]) -> int:
    return int(json.loads(add["stats"])["numRecords"])


def removed(add: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: add[key] for key in ("path", "deletionVector") if key in add}
    return {"remove": {**kept, "deletionTimestamp": 0, "dataChange": False}}


def recompute_statistics(session: SparkSession, folder: Path) -> None:
    """What ANALYZE TABLE … COMPUTE DELTA STATISTICS does elsewhere; Delta has it without the statement."""
    jvm: Any = session._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, str(folder))
    collection = getattr(getattr(jvm.org.apache.spark.sql.delta.stats, "StatisticsCollection$"), "MODULE$")
    nothing = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    predicates, files = getattr(collection, "recompute$default$4")(), getattr(collection, "recompute$default$5")()
    collection.recompute(session._jsparkSession, log, nothing, predicates, files)


def test_burst_of_commits(service: Service, tmp_path: Path) -> None:
    """Fifty commits that come at once are fifty snapshots after one sync, each with the rows of its version."""
    table = Followed(service, tmp_path)
    handmade = HandmadeTable(table.source)
    handmade.create()
    paths = [handmade.write_file([(50 * file + row, "a", f"v{row}") for row in range(50)]) for file in range(7)]
    handmade.commit([handmade.add(path) for path in paths])
    table.sync_and_check("the first versions")
    expected = {}
    with table.held():
        for number in range(50):
            if number % 10 == 9:
                actions = [handmade.add(handmade.write_file([(1000 + number, "b", "new")]))]
            elif number % 10 == 8:
                actions = [handmade.remove(paths.pop())]
            else:
                actions = handmade.delete({paths[0]: [number], paths[1]: [49 - number]})
            expected[handmade.commit(actions)] = handmade.live_rows()
    result = table.sync_and_check("the burst")
    assert (result.snapshots, result.from_version, result.to_version) == (len(expected), min(expected), max(expected))
    shown = rows_by_version(table.bench.iceberg())
    assert {version: shown[version] for version in expected} == expected
    table.step("DELETE FROM {t} WHERE id % 7 = 0")


def rows_by_version(table: Table) -> dict[int, list[tuple[Any, ...]]]:
    """The sorted rows of every snapshot, by PyIceberg, under the Delta version that its marker names."""
    shown = {}
    for snapshot in table.snapshots():
        assert snapshot.summary is not None
        version = int(snapshot.summary.additional_properties["dvsync.delta.version"])
        assert version not in shown, f"version {version} has two snapshots"
        shown[version] = sorted(rows_of(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow(), table.schema().fields))
    return shown


@pytest.mark.live
def test_concurrent_writers(service: Service, tmp_path: Path) -> None:
    """Two writers append and delete while dvsync syncs: each of their versions is one snapshot with Delta's rows."""
    table = Followed(service, tmp_path)
    table.sql(
        "CREATE TABLE {t} USING delta PARTITIONED BY (part) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        " AS SELECT id, 'old' AS part FROM range(0, 40, 1, 2)"
    )
    appends = [f"INSERT INTO {{t}} SELECT id, 'new' FROM range({start}, {start + 3})" for start in range(100, 120, 10)]
    deletes = [f"DELETE FROM {{t}} WHERE part = 'old' AND id % 7 = {remainder}" for remainder in range(2)]
    table.bench.sync()
    failures: list[Exception] = []
    writers = [Thread(target=write, args=(table, each, failures)) for each in (appends, deletes)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failures, failures
    table.sync_and_check("both writers")
    shown = rows_by_version(table.bench.iceberg())
    assert table.version == len(appends) + len(deletes)
    first = min(shown)
    assert shown.keys() == set(range(first, table.version + 1))
    for version, found in shown.items():
        expected = rows_of(table.writer.delta(table.source, version), table.bench.iceberg().schema().fields)
        assert_same_rows(found, expected, "PyIceberg", f"version {version}")


def write(table: Followed, statements: list[str], failures: list[Exception]) -> None:
    try:
        for statement in statements:
            table.sql(statement)
    except Exception as error:
        failures.append(error)


def test_delete_over_many_files(service: Service, tmp_path: Path) -> None:
    """One DELETE that touches 200 files is one snapshot with 200 delete files."""
    table = Followed(service, tmp_path)
    table.sql(
        "CREATE TABLE {t} USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        " AS SELECT id FROM range(0, 600, 1, 200)"
    )
    table.step(operation="append")
    assert len(table.image.data_files) == 200
    result = table.step("DELETE FROM {t} WHERE id % 3 = 1", operation="delete")
    assert (result.delete_files_added, result.positions_added) == (200, 200)


def test_columns_that_delta_fills(service: Service, tmp_path: Path) -> None:
    """Generated columns (one is the partition), identity columns, defaults, NOT NULL and CHECK constraints."""
    table = Followed(service, tmp_path, with_vectors=True)
    table.step(
        "CREATE TABLE {t} (id INT NOT NULL, seq BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 100 INCREMENT BY 5),"
        " twice INT GENERATED ALWAYS AS (id * 2), name STRING DEFAULT 'nobody', day DATE,"
        " year INT GENERATED ALWAYS AS (YEAR(day))) USING delta PARTITIONED BY (year) TBLPROPERTIES"
        " ('delta.enableDeletionVectors' = 'true', 'delta.feature.allowColumnDefaults' = 'supported')"
    )
    assert table.bench.iceberg().schema().find_field("id").required
    days = "SELECT CAST(id AS INT), date_add(DATE'2020-12-20', CAST(id AS INT)) FROM range({}, {}, 1, 1)"
    table.step(f"INSERT INTO {{t}} (id, day) {days.format(0, 20)}", operation="append")
    table.step("ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id >= 0)", snapshots=0)
    table.step("ALTER TABLE {t} ALTER COLUMN name SET DEFAULT 'somebody'", snapshots=0)
    table.step(f"INSERT INTO {{t}} (id, day) {days.format(20, 30)}", operation="append")
    table.step("UPDATE {t} SET id = id + 100 WHERE id % 5 = 0", operation="overwrite")
    table.step("DELETE FROM {t} WHERE year = 2020 AND id % 3 = 1", operation="delete")
    table.step("ALTER TABLE {t} DROP CONSTRAINT positive", snapshots=0)
    table.step("ALTER TABLE {t} ALTER COLUMN id DROP NOT NULL", snapshots=0)
    table.step("INSERT INTO {t} (id) VALUES (NULL)", operation="append")
    table.step("OPTIMIZE {t}", operation="replace")


@pytest.mark.parametrize("mode", MODES)
def test_row_tracking(service: Service, tmp_path: Path, mode: str) -> None:
    """Row tracking, which brings domain metadata: rewritten files carry its columns, and no reader shows them."""
    table = Followed(service, tmp_path)
    table.step(
        "CREATE TABLE {t} (id BIGINT, name STRING) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true',"
        f" 'delta.enableRowTracking' = 'true', 'delta.columnMapping.mode' = '{mode}')"
    )
    table.step("INSERT INTO {t} SELECT id, concat('n', id) FROM range(0, 30, 1, 2)", operation="append")
    table.step("UPDATE {t} SET name = 'updated' WHERE id % 5 = 0", operation="overwrite")
    assert any(len(pq.read_schema(path.removeprefix("file://")).names) > 2 for path in table.image.data_files), (
        "files carry row ids, or this test shows nothing"
    )
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")
    table.step("OPTIMIZE {t}", operation="replace")
    table.step("DELETE FROM {t} WHERE id % 7 = 2", operation="delete")
    table.step("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableRowTracking' = 'false')", snapshots=0)
    table.step("INSERT INTO {t} VALUES (100, 'last')", operation="append")


# What makes files need mirrors of each kind.
OLDER = {
    "refuse": {},
    "footer": {"spark.sql.parquet.writeLegacyFormat": "true"},
    "rewrite": {"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"},
}


@pytest.mark.long
@pytest.mark.parametrize("mirrors", OLDER)
def test_row_ids_are_deltas(service: Service, tmp_path: Path, mirrors: str) -> None:
    """In format version 3, through UPDATE, OPTIMIZE and RESTORE, and after a resync; in mirrors, too."""
    table = Followed(service, tmp_path, options={"mirrors": mirrors})
    vectors = table.new_bench("vectors", format_version=3)

    def check() -> None:
        location = vectors.iceberg().metadata_location
        shown = table.writer.spark(read_iceberg, location, ("id", "name", "_row_id AS row_id"))
        expected = table.writer.rows("SELECT id, name, _metadata.row_id FROM {t}", table.source)
        assert shown.sort_by("id").to_pylist() == expected.sort_by("id").to_pylist()
        record = vectors.store.open_table(vectors.name, vectors.source, vectors.target)
        assert bool(vectors.store.list_live_mirrors(record.id)) == (mirrors != "refuse")

    def step(statement: str) -> None:
        table.step(statement)
        vectors.sync()
        check()

    with table.writer.confs(OLDER[mirrors]):
        table.sql(
            "CREATE TABLE {t} USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true',"
            " 'delta.enableRowTracking' = 'true') AS SELECT id, concat('n', id) AS name, array(id, NULL) AS l,"
            " DATE'1400-01-01' AS day FROM range(0, 30, 1, 2)"
        )
        table.step()
        vectors.sync()
        step("UPDATE {t} SET name = 'updated' WHERE id % 5 = 0")
        step("DELETE FROM {t} WHERE id % 7 = 1")
        step("OPTIMIZE {t}")
        step("RESTORE TABLE {t} TO VERSION AS OF 1")
    # Row ids that Iceberg assigns from now on belong to no row of Delta's.
    highest = table.writer.rows("SELECT max(_metadata.row_id) AS row_id FROM {t}", table.source)
    assert next_row_id(vectors.iceberg().metadata) > highest["row_id"][0].as_py()
    vectors.sync(full=True)
    check()


def test_liquid_clustering(service: Service, tmp_path: Path) -> None:
    """Liquid clustering by columns that change, or by none any more."""
    table = Followed(service, tmp_path)
    table.step(
        "CREATE TABLE {t} (id BIGINT, name STRING) USING delta CLUSTER BY (id)"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    table.step("INSERT INTO {t} SELECT id, concat('n', id % 3) FROM range(0, 30, 1, 2)", operation="append")
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")
    table.step("OPTIMIZE {t}", operation="replace")
    table.step("ALTER TABLE {t} CLUSTER BY (name)", snapshots=0)
    table.step("INSERT INTO {t} SELECT id, concat('m', id % 3) FROM range(30, 40, 1, 1)", operation="append")
    table.step("OPTIMIZE {t} FULL", operation="replace")
    table.step("ALTER TABLE {t} CLUSTER BY NONE", snapshots=0)
    table.step("DELETE FROM {t} WHERE id % 7 = 2", operation="delete")


def test_change_data_feed(service: Service, tmp_path: Path) -> None:
    """Files of the change data feed are not data: only the table's own rows are shown."""
    table = Followed(service, tmp_path)
    table.sql(
        "CREATE TABLE {t} USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true',"
        " 'delta.enableChangeDataFeed' = 'true') AS SELECT id, concat('n', id) AS name FROM range(0, 30, 1, 2)"
    )
    table.step(operation="append")
    table.step("UPDATE {t} SET name = 'updated' WHERE id % 5 = 0", operation="overwrite")
    table.step(
        "MERGE INTO {t} t USING (SELECT id FROM range(25, 35)) s ON t.id = s.id"
        " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, 'new')"
    )
    assert list((table.source / "_change_data").iterdir()), "there are change files, or this test shows nothing"
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")
    table.step("OPTIMIZE {t}", operation="replace")


def test_in_commit_timestamps(service: Service, tmp_path: Path) -> None:
    """The snapshot's timestamp is the in-commit one, whatever time the commit file has."""
    table = Followed(service, tmp_path)
    table.sql("CREATE TABLE {t} USING delta AS SELECT id FROM range(0, 30, 1, 1)")
    table.step(operation="append")
    table.step("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')", snapshots=0)
    table.step("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')", snapshots=0)
    for statement in ("DELETE FROM {t} WHERE id % 7 = 1", "UPDATE {t} SET id = -id WHERE id > 20", "OPTIMIZE {t}"):
        table.sql(statement)
        os.utime(table.log_folder / f"{table.version:020d}.json", (1, 1))
        table.step()
        deltas_ms = table.writer.do(committed_ms, table.source)
        assert table.image.summary["dvsync.delta.timestamp-ms"] == str(deltas_ms) != "1000"


def committed_ms(session: SparkSession, folder: Path) -> int:
    """When Delta says that the newest version was committed."""
    history = session.sql(f"DESCRIBE HISTORY delta.`{folder}` LIMIT 1")
    (newest,) = history.selectExpr("unix_millis(timestamp) AS ms").collect()
    return int(newest.ms)


def test_protocol_features(service: Service, tmp_path: Path) -> None:
    """vacuumProtocolCheck, v2Checkpoint, checkpointProtection, domainMetadata and appendOnly change no rows."""
    table = Followed(service, tmp_path)
    features = ("vacuumProtocolCheck", "checkpointProtection", "domainMetadata", "v2Checkpoint")
    supported = ", ".join(f"'delta.feature.{feature}' = 'supported'" for feature in features)
    table.step(
        "CREATE TABLE {t} (id BIGINT) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true',"
        f" 'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '3', {supported})"
    )
    table.step("INSERT INTO {t} SELECT id FROM range(0, 30, 1, 2)", operation="append")
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")
    table.step("ALTER TABLE {t} SET TBLPROPERTIES ('delta.appendOnly' = 'true')", snapshots=0)
    assert list(table.log_folder.glob("*.checkpoint.*.json")) + list(table.log_folder.glob("*.checkpoint.*.parquet"))
    table.step("INSERT INTO {t} SELECT id FROM range(30, 40, 1, 1)", operation="append")
    table.step("OPTIMIZE {t}", operation="replace")
    table.commit_by_hand(
        {"domainMetadata": {"domain": "user.notes", "configuration": '{"a": 1}', "removed": False}},
        {"txn": {"appId": "stream", "version": 7, "lastUpdated": 0}},
    )
    table.step(snapshots=0)
    second = table.new_bench("second")
    assert second.sync().operation == "first sync"  # which reads the V2 checkpoint
    assert_same_rows(
        rows_of(second.iceberg().scan().to_arrow(), second.iceberg().schema().fields),
        table.truth(table.bench.iceberg()).rows,
        "a first sync",
    )
    second.close()


@pytest.mark.parametrize("mode", MODES)
def test_type_widening_of_a_partition_column(service: Service, tmp_path: Path, mode: str) -> None:
    """A partition column that is widened (type widening) shows old values and new ones."""
    table = Followed(service, tmp_path, "partition")
    table.step(
        "CREATE TABLE {t} (id BIGINT, part SMALLINT) USING delta PARTITIONED BY (part) TBLPROPERTIES"
        " ('delta.enableDeletionVectors' = 'true', 'delta.enableTypeWidening' = 'true',"
        f" 'delta.columnMapping.mode' = '{mode}')"
    )
    table.step("INSERT INTO {t} SELECT id, CAST(id % 3 AS SMALLINT) FROM range(0, 20, 1, 1)", operation="append")
    table.step("ALTER TABLE {t} ALTER COLUMN part TYPE INT", snapshots=0)
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")
    table.step("ALTER TABLE {t} ALTER COLUMN part TYPE BIGINT", snapshots=0)
    table.step("INSERT INTO {t} SELECT id, if(id = 20, 3000000000, 1) FROM range(20, 24, 1, 1)", operation="append")
    table.step("DELETE FROM {t} WHERE id % 7 = 2", operation="delete")
    table.step("OPTIMIZE {t}", operation="replace")


def test_collations(service: Service, tmp_path: Path) -> None:
    """Columns with a collation are shown as strings, with the rows that Delta deletes by that collation gone."""
    table = Followed(service, tmp_path)
    with table.writer.confs({"spark.databricks.delta.schema.typeCheck.enabled": "false"}):
        table.step(
            "CREATE TABLE {t} (id BIGINT, name STRING COLLATE UTF8_LCASE) USING delta"
            " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        )
        table.step("INSERT INTO {t} VALUES (1, 'a'), (2, 'B'), (3, 'b'), (4, 'ä')", operation="append")
        table.step("DELETE FROM {t} WHERE name = 'b'", operation="delete")
    assert sum(map(len, table.image.positions.values())) == 2


@pytest.mark.parametrize(
    "properties",
    ["'delta.feature.materializePartitionColumns' = 'supported'", f"{MAPPED}, 'delta.enableIcebergCompatV2' = 'true'"],
    ids=["materializePartitionColumns", "icebergCompatV2"],
)
def test_partition_columns_in_the_files(service: Service, tmp_path: Path, properties: str) -> None:
    """Files that carry their partition columns (materializePartitionColumns, icebergCompatV2) show their values."""
    table = Followed(service, tmp_path)
    properties = properties.replace("'delta.enableDeletionVectors' = 'true'", "'delta.enableDeletionVectors' = 'false'")
    table.step(
        f"CREATE TABLE {{t}} (id BIGINT, part STRING) USING delta PARTITIONED BY (part) TBLPROPERTIES ({properties})"
    )
    table.step("INSERT INTO {t} SELECT id, concat('p', id % 2) FROM range(0, 20, 1, 1)", operation="append")
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="overwrite")
    table.step("INSERT INTO {t} VALUES (100, 'p1')", operation="append")
    table.step("OPTIMIZE {t}", operation="replace")


REFUSED_FEATURES = (
    *("catalogManaged", "readerFeatureOfTomorrow"),
    pytest.param("catalogOwned-preview", marks=pytest.mark.long),
)


def commit_feature(handmade: HandmadeTable, feature: str) -> None:
    """A version with rows that asks for `feature`, and for what Delta wants where a catalog manages the commits."""
    protocol = handmade.protocol([*FEATURES, feature, "vacuumProtocolCheck"])
    protocol["writerFeatures"].append("inCommitTimestamp")
    handmade.commit([{"protocol": protocol}, handmade.add(handmade.write_file([(2, "a", "second")]))])


@pytest.mark.parametrize("feature", REFUSED_FEATURES)
def test_refused_features(service: Service, tmp_path: Path, feature: str) -> None:
    """A table that becomes catalog-managed, or needs an unknown reader feature, is refused by name, and stays put."""
    handmade = HandmadeTable(tmp_path / "lake" / "t")
    handmade.create()
    bench = service.serve(tmp_path / "bench", handmade.location)
    bench.sync()
    handmade.commit([handmade.add(handmade.write_file([(1, "a", "first")]))])
    bench.sync()
    location = bench.iceberg().metadata_location
    commit_feature(handmade, feature)
    assert_refused(bench, f"reader feature {feature} is not supported")
    assert bench.iceberg().metadata_location == location


@pytest.mark.parametrize("feature", REFUSED_FEATURES)
def test_features_refused_at_first(service: Service, tmp_path: Path, feature: str) -> None:
    """A first sync refuses catalog-managed tables and unknown reader features by name, and makes no Iceberg table."""
    handmade = HandmadeTable(tmp_path / "lake" / "t")
    handmade.create()
    commit_feature(handmade, feature)
    bench = service.serve(tmp_path / "bench", handmade.location)
    assert_refused(bench, feature)
    assert not bench.exists()


def assert_refused(bench: Served, message: str) -> None:
    for _ in range(2):
        with pytest.raises(Unsupported, match=message) as raised:
            bench.sync()
        assert raised.value.hint


def test_unknown_writer_feature(service: Service, tmp_path: Path) -> None:
    """A feature that only writers must know does not stop a reader: the table is followed."""
    table = Followed(service, tmp_path)
    handmade = HandmadeTable(table.source)
    handmade.create()
    protocol = handmade.protocol()
    path = handmade.write_file([(number, "a", "first") for number in range(10)])
    handmade.commit(
        [{"protocol": {**protocol, "writerFeatures": [*FEATURES, "writerFeatureOfTomorrow"]}}, handmade.add(path)]
    )
    table.sync_and_check("a first sync")
    handmade.commit(handmade.delete({path: [1, 2]}))
    table.step(operation="delete")


def test_variant_columns(service: Service, tmp_path: Path) -> None:
    """A variant column is refused by its name, whether it is there at first or joins later."""
    table = Followed(service, tmp_path)
    table.step("CREATE TABLE {t} USING delta AS SELECT id FROM range(0, 10, 1, 1)", operation="append")
    location = table.bench.iceberg().metadata_location
    table.sql("ALTER TABLE {t} ADD COLUMN odd VARIANT")
    assert_refused(table.bench, "column odd has the type variant")
    assert table.bench.iceberg().metadata_location == location
    second = table.new_bench("second")
    assert_refused(second, "column odd has the type variant")
    assert not second.exists()
