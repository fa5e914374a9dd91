"""`delete_rows` does to a Delta table what Delta's own DELETE with deletion vectors does; Delta is the judge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from daemon.delta_writer.deletion import delete_rows
from daemon.errors import ConfigInvalid
from tests.kit.spark_process import conf_values

# VACUUM lists folders in as many tasks as it may.
LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
COLUMNS = (
    "id LONG, name STRING, amount DECIMAL(10,2), ratio DOUBLE, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ,"
    " place STRUCT<city: STRING>, tags ARRAY<STRING>, flag BOOLEAN, part STRING"
)
# Four files of 100 rows.
ROWS = (
    "SELECT id, nullif(concat('name ', id % 10), 'name 3'), CAST(id / 4 AS DECIMAL(10,2)),"
    " IF(id = 5, DOUBLE('NaN'), id / 8D), DATE '2020-01-01' + CAST(id AS INT),"
    " timestamp_seconds(1577836800 + id * 3600), CAST(DATE '2020-01-01' + CAST(id AS INT) AS TIMESTAMP_NTZ),"
    " IF(id % 7 = 0, NULL, named_struct('city', concat('c', id % 3))), array('a'), id % 2 = 0,"
    " concat('p', id DIV 100) FROM range(0, 400, 1, 4)"
)
# Of a table: its clause in CREATE TABLE, and its properties. Together they have each feature that a writer must know.
KINDS = {
    "partitioned": (
        "PARTITIONED BY (part)",
        "'delta.columnMapping.mode' = 'name', 'delta.enableRowTracking' = 'true', 'delta.checkpointInterval' = '2',"
        " 'delta.enableInCommitTimestamps' = 'true', 'delta.enableChangeDataFeed' = 'true'",
    ),
    "clustered": (
        "CLUSTER BY (id)",
        "'delta.columnMapping.mode' = 'id', 'delta.checkpointPolicy' = 'v2', 'delta.enableTypeWidening' = 'true',"
        " 'delta.checkpoint.writeStatsAsJson' = 'false', 'delta.checkpoint.writeStatsAsStruct' = 'true',"
        " 'delta.checkpointInterval' = '2'",
    ),
}
# Some rows of each file, on top of these with files that go, none, and whole partitions.
PREDICATES = [
    "id IN (0, 100, 200, 300, 7)",
    "id BETWEEN 100 AND 199 OR name IS NULL AND place.city = 'c1'",
    "id < 0",
    "part = 'p3' AND NOT flag",
]
MEANINGS = [
    "ratio > 40",
    "ratio >= 12.375 AND ratio <> 20",
    "NOT ratio < 1e1",
    "amount <= 60.25",
    "day >= DATE '2020-06-01'",
    "day = '2020-06-01'",
    "at < TIMESTAMP '2020-01-05 00:00:00Z'",
    "at BETWEEN TIMESTAMP '2020-01-05T00:00:00+02:00' AND TIMESTAMP '2020-01-06 00:00:00.000001Z'",
    "local > TIMESTAMP_NTZ '2020-06-01 00:00:00'",
    "place.city <> 'c1'",
    "place IS NULL OR PLACE.City = 'c2'",
    "NOT (place.city = 'c1' OR flag)",
    "NOT (place.city = 'c1' AND id < 50)",
    "name NOT IN ('name 1', 'name 2')",
    "name LIKE '%e 1' OR name LIKE '_ame 2'",
    "name NOT LIKE 'name%'",
    "name > 'name 5' AND part <> 'p1'",
    "name < part",
    "flag = FALSE AND part IN ('p0', 'p2')",
    "tags IS NOT NULL AND 350 <= id",
    "TRUE",
]
# Of each type, and of what footers do not tell: columns of two files of 100 rows.
FOOTER_COLUMNS = {
    "id": ("LONG", "id"),
    "b": ("BYTE", "CAST(id % 100 AS BYTE)"),
    "s": ("SHORT", "CAST(-id AS SHORT)"),
    "i": ("INT", "CAST(id AS INT)"),
    "f": ("FLOAT", "CAST(id / 10 AS FLOAT)"),
    "d": ("DOUBLE", "IF(id % 9 = 0, NULL, id / 8D)"),
    "nan": ("DOUBLE", "IF(id % 100 = 5, DOUBLE('NaN'), id / 8D)"),
    "inf": ("DOUBLE", "IF(id % 100 = 1, DOUBLE('Infinity'), id / 8D)"),
    "zero": ("DOUBLE", "IF(id % 2 = 0, 0D, -0D)"),
    "m": ("DECIMAL(10,2)", "CAST(id / 4 AS DECIMAL(10,2))"),
    "name": ("STRING", "nullif(concat('name ', id % 10), 'name 3')"),
    "long": ("STRING", "repeat(concat(char(97 + id % 20), 'é'), 50)"),
    "smile": ("STRING", "repeat(decode(unhex('F09F9880'), 'UTF-8'), 40)"),
    "nothing": ("STRING", "CAST(NULL AS STRING)"),
    "vc": ("VARCHAR(9)", "concat('v', id % 3)"),
    "ch": ("CHAR(5)", "concat('c', id % 3)"),
    "raw": ("BINARY", "CAST('abc' AS BINARY)"),
    "flag": ("BOOLEAN", "id % 2 = 0"),
    "day": ("DATE", "DATE '2020-01-01' + CAST(id AS INT)"),
    "old": ("DATE", "DATE '1500-01-01' + CAST(id AS INT)"),
    "at": ("TIMESTAMP", "timestamp_seconds(1577836800 + id * 3600)"),
    "local": ("TIMESTAMP_NTZ", "CAST(DATE '2020-01-01' + CAST(id AS INT) AS TIMESTAMP_NTZ)"),
    "place": (
        "STRUCT<city: STRING, at: STRUCT<x: INT>>",
        "IF(id % 7 = 0, NULL, named_struct('city', concat('c', id % 3), 'at', named_struct('x', CAST(id AS INT))))",
    ),
    "tags": ("ARRAY<STRING>", "array('a')"),
    "empty": ("MAP<STRING, INT>", "CAST(map() AS MAP<STRING, INT>)"),
    "part": ("STRING", "concat('p', id DIV 100)"),
}
# What Delta has of a footer, and dvsync leaves out: CHAR is padded by readers, days may be of the Julian calendar, an
# end of all numbers tells nothing. Null counts of a map count empty ones.
LEFT_OUT = [
    *((ends, name) for ends in ("minValues", "maxValues") for name in ("ch", "old", "inf")),
    ("nullCount", "empty"),
]
CONDITIONS = (
    *("id < 5", "b = 99", "s < -150", "i > 150", "f >= 19.9F", "f = CAST(9.9 AS FLOAT)", "d IS NULL", "d > 24.8"),
    *("nan > 1000", "isnan(nan)", "inf > 1000", "zero = 0", "zero >= -0D", "m > 49", "name IS NULL", "name = 'name 9'"),
    *("long LIKE 'té%'", "long > 'té'", "smile > decode(unhex('F09F9880'), 'UTF-8')", "nothing IS NULL"),
    *("nothing IS NOT NULL", "vc = 'v2'", "ch = 'c2'", "ch = 'c2   '", "raw IS NOT NULL", "flag", "flag IS NULL"),
    *("day = DATE '2020-07-18'", "old < DATE '1500-02-01'", "at > TIMESTAMP '2020-01-09 00:00:00'", "place IS NULL"),
    *("local < TIMESTAMP_NTZ '2020-01-02 00:00:00'", "place.city = 'c1'", "place.city IS NULL", "place.at.x > 190"),
    *("tags IS NOT NULL", "size(empty) = 0", "part = 'p1'"),
)


def make(spark: SparkSession, folder: Path, kind: str) -> None:
    clause, properties = KINDS[kind]
    told = f"'delta.enableDeletionVectors' = 'true', {properties}"
    spark.sql(f"CREATE TABLE delta.`{folder}` ({COLUMNS}) USING delta {clause} TBLPROPERTIES ({told})")
    spark.sql(f"INSERT INTO delta.`{folder}` {ROWS}")


def ids_of(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.id for row in spark.read.format("delta").load(str(folder)).select("id").collect())


def actions_of(folder: Path, version: int) -> list[dict[str, Any]]:
    lines = (folder / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    return [json.loads(line) for line in lines]


def comparable(actions: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """The file actions, without what differs by chance: times, and where a vector is; JSON in them parsed."""
    found = {}
    for action in actions:
        for kind in ("add", "remove"):
            if fields := action.get(kind):
                fields = {name: value for name, value in fields.items() if name != "deletionTimestamp"}
                if "stats" in fields:
                    fields["stats"] = json.loads(fields["stats"])
                if vector := fields.get("deletionVector"):
                    fields["deletionVector"] = {"cardinality": vector["cardinality"], "type": vector["storageType"]}
                found[kind, fields["path"]] = fields
    return found


def newest(folder: Path) -> int:
    return max(int(path.stem) for path in (folder / "_delta_log").glob("*.json") if path.stem.isdigit())


# The other one takes two minutes.
@pytest.mark.parametrize("kind", [pytest.param("partitioned", marks=pytest.mark.long), "clustered"])
def test_as_delta(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """On two copies of a table, Delta and dvsync leave equal rows, and equal actions but for times and places."""
    theirs, ours = tmp_path / "delta", tmp_path / "dvsync"
    make(spark, theirs, kind)
    spark.sql(f"DELETE FROM delta.`{theirs}` WHERE id = 201")
    shutil.copytree(theirs, ours)
    for predicate in PREDICATES:
        spark.sql(f"DELETE FROM delta.`{theirs}` WHERE {predicate}")
        delete_rows(str(ours), predicate, by="somebody")
        assert ids_of(spark, ours) == ids_of(spark, theirs)
        version = newest(ours)
        assert version == newest(theirs)
        own, delta = actions_of(ours, version), actions_of(theirs, version)
        assert comparable(own) == comparable(delta)
        said, expected = own[0]["commitInfo"], delta[0]["commitInfo"]
        measured = {"executionTimeMs", "scanTimeMs", "rewriteTimeMs"}
        assert {name: each for name, each in said["operationMetrics"].items() if name not in measured} == {
            name: each for name, each in expected["operationMetrics"].items() if name not in measured
        }
        assert said.keys() - {"userName"} == expected.keys()
        same = ("operation", "readVersion", "isolationLevel", "isBlindAppend", "tags")
        assert [said.get(name) for name in same] == [expected.get(name) for name in same]
    history = spark.sql(f"DESCRIBE HISTORY delta.`{ours}` LIMIT 1").collect()[0]
    assert (history.operation, history.userName) == ("DELETE", "somebody")
    counts = spark.read.format("delta").load(str(ours)).selectExpr(*(f"count_if({each})" for each in MEANINGS))
    found = {each: delete_rows(str(ours), each, dry_run=True).deleted_rows for each in MEANINGS}
    assert found == dict(zip(MEANINGS, counts.collect()[0], strict=True))
    if kind == "partitioned":
        feeds = []
        for each in (ours, theirs):
            feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
            rows = feed.load(str(each)).select("_change_type", "_commit_version", "id").collect()
            feeds.append(sorted(map(tuple, rows)))
        assert feeds[0] == feeds[1]
        row_ids = [
            sorted(map(tuple, spark.read.format("delta").load(str(each)).select("id", "_metadata.row_id").collect()))
            for each in (ours, theirs)
        ]
        assert row_ids[0] == row_ids[1]
        go_on(spark, ours, version)


def go_on(spark: SparkSession, folder: Path, version: int) -> None:
    """Delta's own commands work on top of our commits, and ours on top of theirs."""
    table, model = f"delta.`{folder}`", set(ids_of(spark, folder))
    spark.sql(f"DELETE FROM {table} WHERE id IN (1, 2, 250)")
    spark.sql(f"UPDATE {table} SET name = 'changed' WHERE id IN (3, 251)")
    merge = "USING (SELECT explode(array(4L, 1000L)) AS key) ON id = key WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN"
    spark.sql(f"MERGE INTO {table} {merge} INSERT (id, part) VALUES (key, 'p0')")
    model = model - {1, 2, 250, 4} | {1000}
    delete_rows(str(folder), "id IN (6, 1000) OR name = 'changed' AND id < 100")
    model -= {6, 1000, 3}
    assert set(ids_of(spark, folder)) == model
    spark.sql(f"OPTIMIZE {table}")
    delete_rows(str(folder), "id IN (8, 9, 252)")
    model -= {8, 9, 252}
    assert set(ids_of(spark, folder)) == model
    spark.sql(f"REORG TABLE {table} APPLY (PURGE)")
    with conf_values(spark, {LISTING_TASKS: "1"}):
        spark.sql(f"VACUUM {table} RETAIN 0 HOURS")
    assert set(ids_of(spark, folder)) == model
    assert not list(folder.rglob("*.bin")), "VACUUM has removed our files, which nothing names any more"
    delete_rows(str(folder), "id = 10")
    restored = newest(folder) - 1
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {restored}")
    assert set(ids_of(spark, folder)) == model
    delete_rows(str(folder), "id = 11")
    assert set(ids_of(spark, folder)) == model - {11}


def test_statistics_from_footers(spark: SparkSession, tmp_path: Path) -> None:
    """Files without statistics get those that Delta takes from footers, but for LEFT_OUT, and no query loses rows."""
    theirs, ours = tmp_path / "delta", tmp_path / "dvsync"
    told = ", ".join(f"{name} {kind}" for name, (kind, _) in FOOTER_COLUMNS.items())
    properties = "'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name'"
    spark.sql(f"CREATE TABLE delta.`{theirs}` ({told}) USING delta PARTITIONED BY (part) TBLPROPERTIES ({properties})")
    rows = ", ".join(value for _, value in FOOTER_COLUMNS.values())
    with conf_values(spark, {"spark.databricks.delta.stats.collect": "false"}):
        spark.sql(f"INSERT INTO delta.`{theirs}` SELECT {rows} FROM range(0, 200, 1, 2)")
    assert not any("stats" in action["add"] for action in actions_of(theirs, 1) if "add" in action)
    shutil.copytree(theirs, ours)
    spark.sql(f"DELETE FROM delta.`{theirs}` WHERE id IN (3, 104)")
    delete_rows(str(ours), "id IN (3, 104)")
    (metadata,) = (action["metaData"] for action in actions_of(ours, 0) if "metaData" in action)
    fields = {field["name"]: field for field in json.loads(metadata["schemaString"])["fields"]}
    physical = {name: field["metadata"]["delta.columnMapping.physicalName"] for name, field in fields.items()}
    own, delta = (comparable(actions_of(folder, 2)) for folder in (ours, theirs))
    adds = [key for key in delta if key[0] == "add"]
    assert len(adds) == 2
    for key in adds:
        stats, expected = own[key]["stats"], delta[key]["stats"]
        for part, name in LEFT_OUT:
            assert physical[name] not in stats[part]
            del expected[part][physical[name]]
        for ends in ("minValues", "maxValues"):
            # A float with all its digits, and 32 smiles, of which Delta counts each as two characters.
            assert stats[ends].pop(physical["f"]) == pytest.approx(expected[ends].pop(physical["f"]))
            assert stats[ends].pop(physical["smile"])[:16] == expected[ends].pop(physical["smile"])[:16]
        assert own[key] == delta[key]
    table = spark.read.format("delta").load(str(ours))
    each = (f"SELECT {n} AS n, count(*) FROM delta.`{ours}` WHERE {c}" for n, c in enumerate(CONDITIONS))
    skipping = [count for _, count in sorted(map(tuple, spark.sql(" UNION ALL ".join(each)).collect()))]
    assert skipping == [*table.selectExpr(*(f"count_if({c})" for c in CONDITIONS)).collect()[0]]
    assert len(table.where("place.at.x > 190").inputFiles()) == 1


def test_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The predicate is Spark SQL's; what does not depend on the row alone, or is unknown, is refused."""
    folder = tmp_path / "a b%20é"
    make(spark, folder, "partitioned")
    before = newest(folder)
    for predicate in ("key = 1", "id =", "rand() < 0.5", f"id IN (SELECT id FROM delta.`{folder}`)"):
        with pytest.raises(ConfigInvalid):
            delete_rows(str(folder), predicate, spark=spark, engine="spark")
    with pytest.raises(ConfigInvalid, match="more than 40 rows"):
        delete_rows(str(folder), "id % 3 = 0", spark=spark, engine="spark", at_most=40)
    assert newest(folder) == before
    done = delete_rows(str(folder), "id % 100 = 7 OR year(day) = 2021", spark=spark, engine="spark")
    assert done.deleted_rows == sum(number % 100 == 7 or number >= 366 for number in range(400))
    delete_rows(str(folder), "id % 100 = 8", spark=spark, engine="spark")
    assert ids_of(spark, folder) == [n for n in range(400) if n % 100 not in (7, 8) and n < 366]


@pytest.mark.long
def test_beside_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Spark and two of ours delete at once, and Spark appends: nothing is lost, and no deleted row comes back."""
    folder = tmp_path / "t"
    make(spark, folder, "clustered")
    model = set(range(400))

    def append() -> None:
        for number in range(3):
            spark.sql(f"INSERT INTO delta.`{folder}` (id, part) VALUES ({1000 + number}, 'new')")

    def delete_by_spark() -> set[int]:
        gone = set[int]()
        for number in range(50, 53):
            try:
                spark.sql(f"DELETE FROM delta.`{folder}` WHERE id = {number}")
                gone.add(number)
            except Exception as error:
                # Delta gives up where we find the rows anew.
                assert "concurrent" in str(error).lower()
        return gone

    def delete(first: int) -> set[int]:
        for number in range(first, first + 6):
            delete_rows(str(folder), f"id IN ({number}, {number + 100})")
        return {*range(first, first + 6), *range(first + 100, first + 106)}

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(delete, 60), pool.submit(delete, 70), pool.submit(delete_by_spark)]
        appending = pool.submit(append)
        for each in running:
            model -= each.result()
        appending.result()
    assert set(ids_of(spark, folder)) == model | {1000, 1001, 1002}
