"""Types and column mapping as Spark writes them: shown as Delta shows them by every reader, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from daemon.errors import Unsupported
from daemon.spark.scan import read_delta as read_delta_scan
from tests.kit.follow import Followed
from tests.kit.handmade import COLUMNS, Bench, HandmadeTable
from tests.kit.readers import READERS, assert_readers_agree, read_delta, rows_of
from tests.kit.service import Service
from tests.kit.writer import Writer

NESTED = """
    CREATE TABLE {t} (id INT, lists ARRAY<ARRAY<STRUCT<x: INT, m: MAP<STRING, ARRAY<DATE>>>>>,
        dict MAP<STRUCT<k: INT, d: DATE>, STRUCT<v: ARRAY<MAP<INT, TIMESTAMP>>>>,
        deep STRUCT<a: STRUCT<b: STRUCT<tiny: DECIMAL(38, 38), big: DECIMAL(38, 0), one: DECIMAL(1, 0)>>>,
        dicts MAP<INT, MAP<INT, BINARY>>)
    USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')
"""
NESTED_ROWS = """
    INSERT INTO {t} SELECT CAST(id AS INT),
        array(array(named_struct('x', CAST(id AS INT), 'm', map('k', array(DATE'1500-02-28', NULL))), NULL), NULL),
        map(named_struct('k', CAST(id AS INT), 'd', DATE'0001-01-01'),
            named_struct('v', array(map(1, TIMESTAMP'1969-12-31 23:59:59.999999'), NULL))),
        if(id % 3 = 0, named_struct('a', NULL), named_struct('a', named_struct('b', named_struct(
            'tiny', 0.5, 'big', CAST('12345678901234567890123456789012345678' AS DECIMAL(38, 0)), 'one', 7)))),
        map(1, map(2, unhex('00ff')), 2, NULL)
    FROM range({start}, {end}, 1, 1)
"""


def nested_rows(start: int, end: int) -> str:
    return NESTED_ROWS.format(t="{t}", start=start, end=end)


def assert_refused(table: Followed, message: str) -> None:
    """Twice the same refusal; what Iceberg shows stays what it was."""
    before = table.bench.iceberg().metadata_location
    for _ in range(2):
        with pytest.raises(Unsupported, match=message):
            table.bench.sync()
    assert table.bench.iceberg().metadata_location == before


def test_nested_types(service: Service, tmp_path: Path) -> None:
    """Lists, maps and structs in each other, decimals of every size, days before 1582."""
    table = Followed(service, tmp_path)
    table.step(NESTED)
    table.step(nested_rows(0, 10))
    table.step("DELETE FROM {t} WHERE id % 4 = 1", operation="delete")
    table.step("ALTER TABLE {t} ADD COLUMNS (lists.element.element.y STRING, deep.a.c INT)", snapshots=0)
    table.step("UPDATE {t} SET deep.a.c = id WHERE id = 4", operation="overwrite")


@pytest.mark.parametrize("mode", [pytest.param("name", marks=pytest.mark.long), "id"])
def test_column_mapping_from_the_start(service: Service, tmp_path: Path, mode: str) -> None:
    """Columns renamed, dropped, added again under an old name and moved, at the top and inside of a struct."""
    table = Followed(service, tmp_path)
    table.step(
        "CREATE TABLE {t} (id INT, `a b,c` STRING, s STRUCT<x: INT, y: STRING>, part STRING) USING delta"
        " PARTITIONED BY (part) TBLPROPERTIES"
        f" ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = '{mode}')"
    )
    rows = "CAST(id AS INT), concat('n', id), named_struct('x', CAST(id AS INT), 'y', 'why'), concat('p é=', id % 2)"
    table.step(f"INSERT INTO {{t}} SELECT {rows} FROM range(0, 12, 1, 1)", operation="append")
    table.step("DELETE FROM {t} WHERE id % 4 = 0", operation="delete")
    table.step("ALTER TABLE {t} RENAME COLUMN part TO `kind of`", snapshots=0)
    table.step("ALTER TABLE {t} RENAME COLUMN s.x TO z", snapshots=0)
    table.step("ALTER TABLE {t} DROP COLUMNS (`a b,c`, s.y)", snapshots=0)
    table.step("ALTER TABLE {t} ADD COLUMNS (`a b,c` INT FIRST, s.x STRING)", snapshots=0)
    table.step("UPDATE {t} SET `a b,c` = id, s.x = 'new' WHERE id % 3 = 0", operation="overwrite")
    table.step("ALTER TABLE {t} ALTER COLUMN id COMMENT 'the key'", snapshots=0)
    table.step("DELETE FROM {t} WHERE `kind of` = 'p é=1' AND id > 6", operation="delete")
    table.step("RESTORE TABLE {t} TO VERSION AS OF 2")
    table.step("DELETE FROM {t} WHERE id % 4 = 1", operation="delete")


def test_schema_and_rows_in_one_commit(service: Service, tmp_path: Path) -> None:
    """A column that comes with the rows that have it is one Iceberg snapshot; so is a nullability that is relaxed."""
    table = Followed(service, tmp_path)
    table.step(
        "CREATE TABLE {t} (id INT NOT NULL, name STRING) USING delta"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    table.step("INSERT INTO {t} SELECT CAST(id AS INT), 'x' FROM range(0, 10, 1, 1)", operation="append")
    with table.writer.confs({"spark.databricks.delta.schema.autoMerge.enabled": "true"}):
        table.step(
            "MERGE INTO {t} t USING (SELECT 3 AS id, 'y' AS name, 1.5D AS score) s ON t.id = s.id"
            " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            operation="overwrite",
        )
    table.step("ALTER TABLE {t} ALTER COLUMN id DROP NOT NULL", snapshots=0)
    table.step("INSERT INTO {t} VALUES (NULL, 'z', NULL)", operation="append")
    table.step("COMMENT ON TABLE {t} IS 'about it'", snapshots=0)


COMPAT = """
    CREATE TABLE {t} (id INT, list ARRAY<STRUCT<x: INT, inner: ARRAY<STRING>>>,
        dict MAP<STRING, DATE>, lists ARRAY<ARRAY<MAP<INT, INT>>>,
        deep STRUCT<a: ARRAY<STRUCT<b: TIMESTAMP>>>)
    USING delta
    TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableIcebergCompatV2' = 'true')
"""
COMPAT_ROWS = """
    INSERT INTO {t} SELECT CAST(id AS INT), array(named_struct('x', CAST(id AS INT), 'inner', array('a', NULL)), NULL),
        map('k', DATE'1500-02-28', 'l', NULL),
        array(array(map(1, 2), NULL), NULL),
        named_struct('a', array(named_struct('b', TIMESTAMP'1969-12-31 23:59:59.999999')))
    FROM range({start}, {end}, 1, 1)
"""


def test_lists_under_column_mapping_need_ids(service: Service, tmp_path: Path) -> None:
    """Without ids of elements readers see nulls: refused by name. With IcebergCompat's ids they are followed."""
    table = Followed(service, tmp_path / "without")
    table.step(NESTED)
    table.step(nested_rows(0, 6))
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    assert_refused(table, "column lists is an array or map, and column mapping gives no id")

    table = Followed(service, tmp_path / "with")
    table.step(COMPAT)
    table.step(COMPAT_ROWS.format(t="{t}", start=0, end=6), operation="append")
    table.step("DELETE FROM {t} WHERE id = 2", operation="overwrite")
    table.step("ALTER TABLE {t} RENAME COLUMN list TO listing", snapshots=0)
    table.step("ALTER TABLE {t} RENAME COLUMN deep.a TO z", snapshots=0)
    table.step(COMPAT_ROWS.format(t="{t}", start=6, end=9), operation="append")
    table.sql("ALTER TABLE {t} ADD COLUMN odd ARRAY<ARRAY<STRUCT<x: INT>>>")
    assert_refused(table, "column odd is a list or map with nested structs whose fields .* which PyIceberg and")


def test_lists_in_the_older_layout_are_refused(service: Service, tmp_path: Path) -> None:
    """With Spark's legacy format DuckDB would show nulls for the elements of lists."""
    table = Followed(service, tmp_path)
    table.step("CREATE TABLE {t} (id INT, l ARRAY<INT>) USING delta")
    with table.writer.confs({"spark.sql.parquet.writeLegacyFormat": "true"}):
        table.sql("INSERT INTO {t} VALUES (1, array(1, 2))")
    assert_refused(table, r"column l\..* of the file has the layout of lists or maps in older Parquet files")


def test_column_mapping_on_a_partitioned_table(service: Service, tmp_path: Path) -> None:
    """Switched on midway and renamed, with files of either kind; doubles and nulls among the partition values."""
    table = Followed(service, tmp_path)
    table.step(
        "CREATE TABLE {t} (id INT, p STRING, q DOUBLE) USING delta PARTITIONED BY (p, q)"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    table.step("INSERT INTO {t} SELECT id, if(id % 2 = 0, NULL, 'x y'), id % 3 / 10.0D FROM range(0, 12, 1, 1)")
    table.step("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')", snapshots=0)
    table.step("ALTER TABLE {t} RENAME COLUMN p TO part", snapshots=0)
    table.step("DELETE FROM {t} WHERE id % 4 = 1", operation="delete")
    table.step("INSERT INTO {t} SELECT id, if(id % 2 = 0, NULL, 'x y'), id % 3 / 10.0D FROM range(12, 20, 1, 1)")
    table.step("DELETE FROM {t} WHERE part IS NULL AND id % 3 = 0")


def test_files_with_foreign_ids_are_refused(service: Service, tmp_path: Path) -> None:
    """Parquet files that another system gave field ids: Delta goes by names, Iceberg's readers would go by the ids."""
    table = Followed(service, tmp_path)
    table.writer.do(write_with_ids, table.source)
    table.sql(f"CONVERT TO DELTA parquet.`{table.source}`")
    with pytest.raises(Unsupported, match="column a of the file carries the field id 2, but the column's is 1"):
        table.bench.sync()


def write_with_ids(session: SparkSession, folder: Path) -> None:
    frame = session.range(3).selectExpr("id AS a", "id + 10 AS b")
    schema = frame.schema
    for field, number in zip(schema.fields, (2, 1), strict=True):
        field.metadata = {"parquet.field.id": number}
    session.createDataFrame(frame.toArrow(), schema).write.parquet(str(folder))


def test_widenings(service: Service, tmp_path: Path) -> None:
    """Widenings that Iceberg has are followed in place; another one is refused with both types."""
    table = Followed(service, tmp_path)
    table.step(
        "CREATE TABLE {t} (a TINYINT, b SMALLINT, c INT, d FLOAT, e DECIMAL(5, 2), f INT, s STRUCT<x: INT>) USING delta"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.enableTypeWidening' = 'true')"
    )
    table.step("INSERT INTO {t} SELECT id, id, id, id / 3, id / 7, id, named_struct('x', id) FROM range(0, 9, 1, 1)")
    for column, kind in (("a", "INT"), ("b", "BIGINT"), ("c", "BIGINT"), ("d", "DOUBLE"), ("e", "DECIMAL(38, 2)")):
        table.step(f"ALTER TABLE {{t}} ALTER COLUMN {column} TYPE {kind}", snapshots=0)
    table.step("ALTER TABLE {t} ALTER COLUMN s.x TYPE BIGINT", snapshots=0)
    table.step(
        "INSERT INTO {t} SELECT id, 5000000000 + id, 5000000000 + id, id / 3.0D, 123456789 + id, id,"
        " named_struct('x', 5000000000 + id) FROM range(20, 25, 1, 1)"
    )
    table.step("DELETE FROM {t} WHERE c % 3 = 0", operation="delete")
    table.sql("ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE")
    assert_refused(table, r"column f \(from int to double\) changed while 2 older data files stay")
    again = table.new_bench("again")
    with pytest.raises(Unsupported, match="column f of the file is stored as int32, but the column's type is double"):
        again.sync()
    again.close()
    # Once no file of the old type is left, nothing stands in the way.
    table.sql("INSERT OVERWRITE {t} SELECT * FROM {t}")
    table.bench.sync(full=True)
    table.sync_and_check("rewritten with the new type")


@pytest.mark.parametrize("kind", ["TIMESTAMP_MILLIS", "TIMESTAMP_MICROS", "INT96"])
def test_timestamp_encodings(service: Service, tmp_path: Path, kind: str) -> None:
    """Each encoding of timestamps is shown as it is, nested ones too, before 1970 and at the ends of INT96's range."""
    table = Followed(service, tmp_path)
    table.step("CREATE TABLE {t} (id INT, moment TIMESTAMP, moments ARRAY<TIMESTAMP>, local TIMESTAMP_NTZ) USING delta")
    moments = ("1677-09-22 00:00:00.001", "1899-12-31 23:59:59.999", "1969-12-31 23:59:59.999", "2262-04-10 00:00:00")
    with table.writer.confs({"spark.sql.parquet.outputTimestampType": kind}):
        for number, moment in enumerate(moments):
            table.sql(
                f"INSERT INTO {{t}} SELECT {number}, TIMESTAMP'{moment}', array(TIMESTAMP'{moment}', NULL),"
                f" TIMESTAMP_NTZ'{moment}'"
            )
    table.sync_and_check(kind)


@pytest.mark.parametrize("mode", [pytest.param("none", marks=pytest.mark.long), "name"])
def test_milliseconds_with_a_dictionary(service: Service, tmp_path: Path, mode: str) -> None:
    """Spark's vectorized reader of Iceberg tables shows them in 1970, and its filters find none of them."""
    table = Followed(service, tmp_path, with_vectors=True)
    table.step(
        "CREATE TABLE {t} (id INT, moment TIMESTAMP, local TIMESTAMP_NTZ) USING delta TBLPROPERTIES"
        f" ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = '{mode}')"
    )
    moments = "SELECT id, timestamp_millis(1700000000123 + id % 5), timestamp_millis(id % 3)::timestamp_ntz FROM range"
    table.step(f"INSERT INTO {{t}} {moments}(0, 100, 1, 1)")
    with table.writer.confs({"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"}):
        table.step(f"INSERT INTO {{t}} {moments}(100, 2000, 1, 1)", spark=True)
    table.step("DELETE FROM {t} WHERE id % 7 = 0")


def test_nanoseconds_are_refused_as_by_delta(writer: Writer, tmp_path: Path) -> None:
    """Delta's timestamps have microseconds, and Spark cannot read a file of another writer that has nanoseconds."""
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    table.commit([{"metaData": table.metadata((*COLUMNS, ("moment", "timestamp")))}])
    path = table.write_file([(1, "x", "v")])
    rows = pq.read_table(table.folder / path)
    moments = pa.array([1_600_000_000_000_000_123], pa.timestamp("ns", "UTC"))
    pq.write_table(rows.append_column("moment", moments), table.folder / path)
    table.commit([table.add(path)])
    with pytest.raises(Exception, match="moment"):
        writer.delta(table.folder)
    for version in (2, 3):
        bench = Bench(tmp_path / f"v{version}", table.location, table_options={"format_version": version})
        with pytest.raises(Unsupported, match="column moment of the file is stored as timestamp\\[ns") as refused:
            bench.sync()
        assert str(refused.value.path).endswith(path)
        bench.close()


@pytest.mark.parametrize("format_version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_defaults_that_delta_fills_in_when_it_reads(spark: SparkSession, tmp_path: Path, format_version: int) -> None:
    """EXISTS_DEFAULT, as Delta before 4 wrote it: a file without such a column is refused, at once and later."""
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    first = table.write_file([(1, "x", "v")])
    table.commit([table.add(first)])
    followed = Bench(tmp_path / "followed", table.location, table_options={"format_version": format_version})
    followed.sync()
    metadata = table.metadata((*COLUMNS, ("more", "long")))
    schema = json.loads(metadata["schemaString"])
    schema["fields"][-1]["metadata"] = {"CURRENT_DEFAULT": "7", "EXISTS_DEFAULT": "5"}
    metadata["schemaString"] = json.dumps(schema)
    listed = table.protocol()
    listed["writerFeatures"] = [*listed["writerFeatures"], "allowColumnDefaults"]
    table.commit([{"protocol": listed}, {"metaData": metadata}])
    assert [row.more for row in spark.read.format("delta").load(table.location).collect()] == [5]
    assert [row.more for row in read_delta_scan(spark, table.location).collect()] == [5]
    fresh = Bench(tmp_path / "fresh", table.location, table_options={"format_version": format_version})
    for bench in (followed, fresh):
        with pytest.raises(Unsupported, match="column more is missing in the file, and Delta fills it"):
            bench.sync()

    whole = table.write_file([(2, "x", "w")])
    rows = pq.read_table(table.folder / whole)
    pq.write_table(rows.append_column("more", pa.array([9], pa.int64())), table.folder / whole)
    table.commit([table.remove(first), table.add(whole)])
    for bench in (followed, fresh):
        bench.sync(full=True)
        iceberg = bench.iceberg()
        assert_readers_agree(iceberg, spark, read_delta(spark, table.location, iceberg))
        assert [row[-1] for row in read_delta(spark, table.location, iceberg)] == [9]
    table.commit([table.add(table.write_file([(3, "x", "u")]))])
    for bench in (followed, fresh):
        with pytest.raises(Unsupported, match="column more is missing in the file, and Delta fills it"):
            bench.sync()
        bench.close()


def test_int96_beyond_its_range(service: Service, tmp_path: Path) -> None:
    """Years that PyIceberg and Polars show wrong from INT96 are refused by column, or followed when asked to."""
    table = Followed(service, tmp_path)
    table.step("CREATE TABLE {t} (id INT, moment TIMESTAMP) USING delta")
    insert = "INSERT INTO {t} VALUES (1, TIMESTAMP'9999-12-31 23:59:59.999999'), (2, TIMESTAMP'1600-01-01 00:00:00')"
    with table.writer.confs({"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}):
        table.step(insert)
    with table.writer.confs({"spark.sql.parquet.outputTimestampType": "INT96"}):
        table.sql(insert)
    assert_refused(table, "column moment of the file has INT96 timestamps before 1677 or after 2262")
    again = Followed(service, tmp_path / "five digits")
    again.step("CREATE TABLE {t} (id INT, moment TIMESTAMP) USING delta")
    with table.writer.confs({"spark.sql.parquet.outputTimestampType": "INT96"}):
        again.sql("INSERT INTO {t} VALUES (1, timestamp_micros(300000000000000000))")
    assert_refused(again, "column moment of the file has INT96 timestamps before 1677 or after 2262")
    nested = Followed(service, tmp_path / "nested")
    nested.step("CREATE TABLE {t} (id INT, moments MAP<STRING, ARRAY<STRUCT<at: TIMESTAMP>>>) USING delta")
    with table.writer.confs({"spark.sql.parquet.outputTimestampType": "INT96"}):
        nested.step("INSERT INTO {t} VALUES (1, map('k', array(named_struct('at', TIMESTAMP'2020-01-01'), NULL)))")
        nested.sql("INSERT INTO {t} VALUES (1, map('k', array(named_struct('at', TIMESTAMP'1600-01-01'), NULL)))")
    assert_refused(nested, "column moments of the file has INT96 timestamps before 1677 or after 2262")

    willing = table.new_bench("willing", readers=["spark", "duckdb"])
    willing.sync()
    iceberg = willing.iceberg()
    expected = sorted(rows_of(table.writer.delta(table.source), iceberg.schema().fields))
    shown = {name for name, read in READERS.items() if sorted(read(iceberg, table.writer.spark)) == expected}
    # The day this fails, the refusal has had its time.
    assert shown == {"Spark", "DuckDB"}
    willing.close()


@pytest.mark.parametrize(
    ("key", "encoding", "column"),
    [("datetimeRebaseModeInWrite", "TIMESTAMP_MICROS", "day"), ("int96RebaseModeInWrite", "INT96", "moment")],
)
def test_the_old_calendar_is_refused(service: Service, tmp_path: Path, key: str, encoding: str, column: str) -> None:
    """Days that Spark stored by the Julian calendar would be shown some days off; recent ones are the same in both."""
    table = Followed(service, tmp_path)
    table.step("CREATE TABLE {t} (id INT, day DATE, moment TIMESTAMP) USING delta")
    with table.writer.confs({f"spark.sql.parquet.{key}": "LEGACY", "spark.sql.parquet.outputTimestampType": encoding}):
        table.step("INSERT INTO {t} VALUES (1, DATE'1582-10-15', TIMESTAMP'1900-01-01 00:00:00'), (2, NULL, NULL)")
        table.sql("INSERT INTO {t} VALUES (3, DATE'1400-01-01', TIMESTAMP'1800-01-01 00:00:00')")
    assert_refused(
        table, f"column {column} of the file has or may have values before .*, stored in the Julian calendar"
    )


def test_char_values_are_shown_as_stored(service: Service, tmp_path: Path) -> None:
    """Spark pads CHAR with spaces when it reads Delta; Delta's protocol has strings, and all readers show these."""
    table = Followed(service, tmp_path)
    table.sql("CREATE TABLE {t} (id INT, c CHAR(4), v VARCHAR(4)) USING delta")
    table.sql("INSERT INTO {t} VALUES (1, 'ab', 'cd'), (2, 'abcd', NULL)")
    with table.writer.confs({"spark.sql.readSideCharPadding": "false"}):
        table.sync_and_check("strings as they are stored")
        table.step("DELETE FROM {t} WHERE id = 1")


def test_other_names_of_strings(service: Service, spark: SparkSession, tmp_path: Path) -> None:
    """As Delta reads them. No filter is misled by statistics in the order of a collation."""
    table = HandmadeTable(tmp_path / "lake" / "t")
    table.create()
    add = table.add(table.write_file([(1, "xy", "a"), (2, "xy", "B"), (3, "xy", "c")]))
    stats = json.loads(add["add"]["stats"])
    stats["minValues"]["value"], stats["maxValues"]["value"] = "a", "c"
    add["add"]["stats"] = json.dumps(stats)
    columns = [("id", "long"), ("part", "varchar(2)"), ("value", "string")]
    table.commit([{"metaData": table.metadata(columns)}, add])
    assert sorted(map(tuple, read_delta_scan(spark, table.location).collect())) == table.live_rows()
    table.commit([{"metaData": table.metadata([*columns[:2], ("value", "string collate UTF8_LCASE")])}])
    with pytest.raises(Unsupported, match="column value has a collation"):
        read_delta_scan(spark, table.location)
    bench = service.serve(tmp_path / "bench", table.location)
    bench.sync()
    iceberg = bench.iceberg()
    assert sorted(read_delta(spark, table.location, iceberg)) == table.live_rows()
    assert_readers_agree(iceberg, spark, table.live_rows())
    assert iceberg.scan("value = 'B'").to_arrow().num_rows == 1
