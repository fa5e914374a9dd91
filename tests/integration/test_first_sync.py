"""The first sync of real Delta tables at a later version: every type, deletion vectors, checkpoints, many files."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, LessThanOrEqual
from pyspark.sql import DataFrame, SparkSession

from daemon.errors import Unsupported
from daemon.iceberg.manifests import MANIFEST_ENTRIES_MAX
from daemon.pipeline.runner import DVS_PER_TASK
from daemon.spark.answers import run_on_spark
from tests.kit.follow import Followed
from tests.kit.handmade import HandmadeTable
from tests.kit.images import DATA, Image, image_of
from tests.kit.readers import assert_same_rows, duckdb_connection, read_duckdb, read_polars_native, read_spark
from tests.kit.service import InProcess, Service
from tests.kit.writer import Writer


def logging_fsync(function: Callable[[Any], Any], log: Path, batches: Any) -> Iterator[Any]:
    """`function` in a task of Spark's, with a line in `log` for each path that is forced to the disk."""
    fsync = os.fsync

    def logged(descriptor: int) -> None:
        fsync(descriptor)
        with log.open("a") as lines:
            lines.write(os.readlink(f"/proc/self/fd/{descriptor}") + "\n")

    os.fsync = logged  # type: ignore[assignment]
    try:
        yield from function(batches)
    finally:
        os.fsync = fsync  # The process goes on to other tasks.


TYPES = """
    CREATE TABLE {t} (id BIGINT, yes BOOLEAN, tiny TINYINT, small SMALLINT, num INT, f FLOAT, d DOUBLE,
        money DECIMAL(5, 2), wide DECIMAL(18, 6), huge DECIMAL(38, 10), s STRING, vc VARCHAR(20), raw BINARY, day DATE,
        moment TIMESTAMP, local TIMESTAMP_NTZ,
        place STRUCT<city: STRING, inner: STRUCT<x: INT, at: TIMESTAMP>>, list ARRAY<INT>,
        structs ARRAY<STRUCT<a: INT, b: STRING>>, dict MAP<STRING, STRUCT<v: DOUBLE>>, lists MAP<INT, ARRAY<STRING>>)
    USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.checkpointInterval' = '2')
"""
# Each sixth row is null but for its id.
VALUES = """
    SELECT id, if(n, NULL, id % 2 = 0), if(n, NULL, CAST(id % 100 - 50 AS TINYINT)),
        if(n, NULL, CAST(id - 30000 AS SMALLINT)), if(n, NULL, CAST(id * 1000003 - 2000000000 AS INT)),
        if(n, NULL, CASE id % 7 WHEN 1 THEN FLOAT('NaN') WHEN 2 THEN FLOAT('-Infinity') ELSE FLOAT(id / 3) END),
        if(n, NULL, CASE id % 7 WHEN 3 THEN -0.0D WHEN 4 THEN DOUBLE('Infinity') ELSE -id / 7.0D END),
        if(n, NULL, CAST(id - 20.25 AS DECIMAL(5, 2))), if(n, NULL, CAST(id * -123456.654321 AS DECIMAL(18, 6))),
        if(n, NULL, CAST(concat('-1234567890123456789012345678.0000000', id + 100) AS DECIMAL(38, 10))),
        if(n, NULL, concat('é\U0001f600 a very long string that statistics cut, number ', id)),
        if(n, NULL, concat('v', id)), if(n, NULL, unhex(concat('00ff', id + 10))),
        if(n, NULL, date_add(DATE'1950-06-01', CAST(id * 700 AS INT))),
        if(n, NULL, timestamp_micros(id * 86400000000 * 1000 - 2000000000000000 + 999999 - id)),
        if(n, NULL, CAST(timestamp_micros(id * 86400000000 * 1000 - 2000000000000001) AS TIMESTAMP_NTZ)),
        if(n, NULL, named_struct('city', concat('c', id), 'inner',
            if(id % 5 = 0, NULL, named_struct('x', CAST(id AS INT), 'at', timestamp_micros(id * 1001))))),
        if(n, NULL, if(id % 4 = 0, array(), array(CAST(id AS INT), NULL))),
        if(n, NULL, array(named_struct('a', CAST(id AS INT), 'b', NULL), NULL)),
        if(n, NULL, map('k', named_struct('v', id / 2.0D), concat('l', id), NULL)),
        if(n, NULL, map(CAST(id AS INT), array('x', NULL), -1, NULL))
    FROM (SELECT *, id % 6 = 5 AS n FROM range({start}, {end}, 1, 2))
"""
FILTERED = ("num", "d", "s", "day", "moment", "local", "wide", "money")
SPARK_TYPES = ("TIMESTAMP", "TIMESTAMP_NTZ")
DUCKDB_TYPES = ("TIMESTAMPTZ", "TIMESTAMP")
SIGNS = {"=": operator.eq, ">=": operator.ge, "<=": operator.le}
PYICEBERG_SIGNS = {"=": EqualTo, ">=": GreaterThanOrEqual, "<=": LessThanOrEqual}
AGGREGATED = ("num", "d", "s", "day", "moment", "local", "wide", "money", "yes")


def values(start: int, end: int) -> str:
    return VALUES.format(start=start, end=end)


def contents(image: Image) -> dict[str, Any]:
    """What two syncs of one table must have in common: all but names and ids."""
    return {
        "data": {path: (entry.records, entry.size, entry.partition) for path, entry in image.data_files.items()},
        "deletes": sorted(tuple(rows) for rows in image.written.values()),
        "sizes": sorted(entry.size for entry in image.delete_files.values()),
        "operation": image.operation,
    }


def test_all_types_engines_and_filters(service: Service, tmp_path: Path) -> None:
    """A first sync at a later version shows every type's values and deletions, whichever engine wrote the deletes."""
    table = Followed(service, tmp_path)
    table.sql(TYPES)
    with table.writer.confs({"spark.sql.parquet.outputTimestampType": "INT96"}):
        table.sql(f"INSERT INTO {{t}} {values(0, 30)}")
    with table.writer.confs({"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}):
        table.sql(f"INSERT INTO {{t}} {values(30, 60)}")
    check_aggregates(table, name="undeleted")
    table.sql("DELETE FROM {t} WHERE id % 7 = 0")
    table.sql("DELETE FROM {t} WHERE id % 7 = 1 AND id > 20")
    assert list(table.log_folder.glob("*.checkpoint*.parquet")), "the table has checkpoints"
    result = table.step(operation="overwrite")
    assert (result.operation, result.positions_added) == ("first sync", sum(map(len, table.image.positions.values())))
    check_filters(table)

    on_spark = table.new_bench("on_spark", engine="spark")
    on_spark.sync()
    assert contents(image_of(on_spark.iceberg())) == contents(table.image)
    table.step("DELETE FROM {t} WHERE id % 7 = 2", operation="delete")
    on_spark.sync()
    assert contents(image_of(on_spark.iceberg())) == contents(table.image)
    # The footers of new files are read on Spark, too, and what they are refused for comes back from there.
    table.step(f"INSERT INTO {{t}} {values(60, 66)}", operation="append")
    on_spark.sync()
    assert contents(image_of(on_spark.iceberg())) == contents(table.image)
    with table.writer.confs({"spark.sql.parquet.writeLegacyFormat": "true"}):
        table.sql(f"INSERT INTO {{t}} {values(66, 70)}")
    with pytest.raises(Unsupported, match="has the layout of lists or maps in older Parquet files"):
        on_spark.sync()
    on_spark.close()


def check_aggregates(table: Followed, *, name: str) -> None:
    """Counts, minima and maxima by Spark's Iceberg reader are Delta's, taken from metadata or not."""
    bench = table.new_bench(name)
    bench.sync()
    aggregates = [f"{function}({column})" for column in AGGREGATED for function in ("min", "max", "count")]
    everything = ", ".join([*aggregates, "count(*)"])
    (delta,) = table.writer.rows(f"SELECT {everything} FROM {{t}}", table.source).to_pylist()
    location = bench.iceberg().metadata_location
    # One column that metadata cannot answer for makes Spark read the files for all of them: so each by itself, too.
    singly = [", ".join(aggregates[start : start + 3]) for start in range(0, len(aggregates), 3)]
    for asked in (everything, *singly, f"{', '.join(aggregates[2::3])}, count(*)"):
        (found,) = table.writer.spark(query_iceberg, location, f"SELECT {asked} FROM {{i}}").to_pylist()
        assert found == {name: delta[name] for name in found}, asked
    plan = table.writer.spark(plan_of_query, location, "SELECT min(num), max(num), count(*) FROM {i}")
    assert "LocalTableScan" in plan, "Spark answers from Iceberg's metadata here, or this test shows nothing"
    bench.close()


def on_iceberg(session: SparkSession, location: str, query: str) -> DataFrame:
    """A query in which `{i}` is the Iceberg table."""
    session.read.format("iceberg").load(location).createOrReplaceTempView("asked")
    return session.sql(query.replace("{i}", "asked"))


def query_iceberg(session: SparkSession, location: str, query: str) -> pa.Table:
    return on_iceberg(session, location, query).toArrow()


def plan_of_query(session: SparkSession, location: str, query: str) -> str:
    return str(on_iceberg(session, location, query)._jdf.queryExecution().toString())


def check_filters(table: Followed) -> None:
    """A filter at the least and the greatest value finds their rows: no bound prunes a file that holds them."""
    iceberg = table.bench.iceberg()
    names = [field.name for field in iceberg.schema().fields]
    rows = [dict(zip(names, row, strict=True)) for row in table.truth(iceberg).rows]
    expected = {}
    for column in FILTERED:
        found = sorted({row[column] for row in rows if row[column] is not None})
        for sign, value in (("=", found[0]), ("<=", found[0]), ("=", found[-1]), (">=", found[-1])):
            holds = SIGNS[sign]
            expected[column, sign, value] = sum(row[column] is not None and holds(row[column], value) for row in rows)
    location = iceberg.metadata_location

    def by_spark(query: str) -> list[tuple[int, int]]:
        return list(zip(*table.writer.spark(query_iceberg, location, query).to_pydict().values(), strict=True))

    counted = {
        "Spark": counts_by_sql(expected, "{i}", SPARK_TYPES, by_spark),
        "DuckDB": counts_by_sql(
            expected,
            f"iceberg_scan('{location}')",
            DUCKDB_TYPES,
            lambda query: duckdb_connection().execute(query).fetchall(),
        ),
        "Polars native": [
            polars.scan_iceberg(iceberg, reader_override="native")
            .filter(SIGNS[sign](polars.col(column), value))
            .select(polars.len())
            .collect()
            .item()
            for column, sign, value in expected
        ],
        "PyIceberg": [
            len(iceberg.scan(row_filter=PYICEBERG_SIGNS[sign](column, pyiceberg_value(value))).to_arrow())
            for column, sign, value in expected
        ],
    }
    for reader, counts in counted.items():
        assert dict(zip(expected, counts, strict=True)) == expected, reader


def counts_by_sql(
    conditions: Iterable[tuple[str, str, Any]],
    source: str,
    types: tuple[str, str],
    run: Callable[[str], Iterable[tuple[int, int]]],
) -> list[int]:
    scans = [
        f"SELECT {number} AS n, count(*) AS found FROM {source} WHERE {column} {sign} {literal(value, *types)}"
        for number, (column, sign, value) in enumerate(conditions)
    ]
    return [count for _, count in sorted(run(" UNION ALL ".join(scans)))]


def literal(value: Any, zoned_type: str, plain_type: str) -> str:
    match value:
        case datetime():
            return f"CAST('{value.isoformat(sep=' ')}' AS {zoned_type if value.tzinfo else plain_type})"
        case date():
            return f"DATE '{value}'"
        case Decimal() | int():
            return str(value)
        case float():
            return f"CAST('{value}' AS DOUBLE)"
        case _:
            return f"'{value}'"


def pyiceberg_value(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value


def test_emptied_table(service: Service, tmp_path: Path) -> None:
    """A table that has versions but no rows is shown with its columns and no rows, and then followed."""
    table = Followed(service, tmp_path)
    table.sql(TYPES)
    table.sql(f"INSERT INTO {{t}} {values(0, 6)}")
    table.sql("DELETE FROM {t}")
    table.step(operation="append")
    assert not table.image.data_files
    table.step(f"INSERT INTO {{t}} {values(0, 6)}", operation="append")


@pytest.mark.long
@pytest.mark.live
def test_many_files_and_deletion_vectors(service: Service, tmp_path: Path) -> None:
    """Thousands of files come in several manifests, their deletes by Spark, and one more delete rewrites nothing."""
    files = MANIFEST_ENTRIES_MAX * 2 + 300
    deleted = DVS_PER_TASK + 100
    table = Followed(service, tmp_path, options={"engine": "spark"})
    handmade = HandmadeTable(table.source)
    handmade.create()
    seed = handmade.write_file([(number, "a", f"value {number}") for number in range(3)])
    paths = [f"part-{number:05d}.parquet" for number in range(files)]
    for path in paths:
        os.link(table.source / seed, table.source / path)
        handmade.rows[path] = handmade.rows[seed]
    positions = {path: {number % 3} for number, path in enumerate(paths[:deleted])}
    descriptors = handmade.write_dvs(positions)
    adds = [handmade.add(path) for path in paths]
    for path, descriptor in descriptors.items():
        handmade.live[path]["deletionVector"] = descriptor
        handmade.deleted[path] = positions[path]
    handmade.commit(adds)

    table.bench.sync()
    check_many(table, handmade)
    assert sum(len(rows) for rows in table.image.written.values()) == deleted
    before = data_manifests(table.image)
    assert len(before) >= files / MANIFEST_ENTRIES_MAX
    handmade.commit(handmade.delete({paths[-1]: [0]}))
    result = table.bench.sync()
    check_many(table, handmade)
    assert (result.snapshots, result.delete_files_added, result.positions_added) == (1, 1, 1)
    assert data_manifests(table.image) == before


def data_manifests(image: Image) -> set[str]:
    return {entry.manifest for entry in image.entries if entry.content == DATA}


def check_many(table: Followed, handmade: HandmadeTable) -> None:
    """As `Followed.check`, without PyIceberg, which opens one file after the other."""
    iceberg = table.bench.iceberg()
    table.image = image_of(iceberg)
    truth = table.truth(iceberg)
    assert sorted(truth.rows) == handmade.live_rows()
    assert table.image.positions == truth.deleted
    for name, read in (("Spark", read_spark), ("DuckDB", read_duckdb), ("Polars native", read_polars_native)):
        assert_same_rows(read(iceberg, table.writer.spark), truth.rows, name)


def test_spark_tasks_force_what_they_write_to_the_disk(
    spark: SparkSession, writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only they can: the manifests and delete files of a first sync are on the disk of the worker that wrote them."""
    log = tmp_path / "forced"
    for module in ("answers", "table_state"):
        monkeypatch.setattr(
            f"daemon.spark.{module}.run_on_spark",
            lambda frame, function: run_on_spark(frame, partial(logging_fsync, function, log)),
        )
    table = Followed(InProcess(writer, engine="spark"), tmp_path)
    table.sql(
        "CREATE TABLE {t} USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true') AS SELECT id FROM range(9)"
    )
    table.sql("DELETE FROM {t} WHERE id = 3")
    table.sync_and_check("the first sync")
    iceberg = table.bench.iceberg()
    (data_manifest, *_) = iceberg.inspect.manifests().filter(pc.field("content") == 0)["path"].to_pylist()
    (delete_file,) = set(iceberg.inspect.delete_files()["file_path"].to_pylist())
    written = {path.removeprefix("file://") for path in (data_manifest, delete_file)}
    assert written | {os.path.dirname(path) for path in written} <= set(log.read_text().splitlines())
