"""What a mirror shows is what Spark reads in its source: it is asked for the table's types in both files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from daemon.errors import MirrorKind, Unsupported
from daemon.mirror.parquet import load_footer, parse_schema
from daemon.mirror.rewriting import RewriteTask, rewrite_file
from daemon.store.storage import FileIOStorage
from daemon.translate.schema import TableSchema
from tests.kit.mirror_files import column, list_of, map_of, mirrored, planned, struct_of, table_of

# The instants around which a calendar or the offset of some zone changes, in Spark's seconds.
INSTANTS = "SELECT timestamp_seconds(id * 86413 * 217 - 62135500000) AS at FROM range(3400)"

# Each zone and each encoding once; all pairs of them are long.
LEGACY_PAIRS = (("UTC", "TIMESTAMP_MILLIS"), ("America/Los_Angeles", "INT96"), ("-05:30", "TIMESTAMP_MICROS"))


@contextmanager
def confs(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in values:
            spark.conf.unset(key)


def mirror_of(path: Path, table: TableSchema, kind: str) -> Path:
    """The mirror that is planned, of whatever kind values need."""
    mirror = path.with_name(f"mirror-of-{path.name}")
    plan = planned(path, table)
    if plan and plan.footer:
        assert kind == "footer"
        return mirrored(path, plan.footer)
    assert kind == "rewrite"
    rewrite_file(RewriteTask(str(path), str(mirror), table, {}, {}), FileIOStorage(), {})
    return mirror


def agree(spark: SparkSession, path: Path, mirror: Path, schema: str, columns: int = 1) -> list[tuple[str | None, ...]]:
    """The rows of both, in Spark's own words, because Python has no other years than 1 to 9999."""
    texts = [f"string(col{number})" for number in range(columns)]
    rows = []
    for file in (path, mirror):
        frame = spark.read.schema(schema).parquet(str(file)).toDF(*(f"col{number}" for number in range(columns)))
        rows.append([tuple(row) for row in frame.selectExpr(*texts).collect()])
    assert rows[0] == rows[1]
    assert any(value is not None for row in rows[0] for value in row)
    return rows[0]


@pytest.mark.parametrize(
    ("zone", "encoding"),
    [
        pytest.param(zone, encoding, marks=() if (zone, encoding) in LEGACY_PAIRS else pytest.mark.long)
        for zone in ("UTC", "America/Los_Angeles", "-05:30")
        for encoding in ("TIMESTAMP_MICROS", "TIMESTAMP_MILLIS", "INT96")
    ],
)
def test_the_julian_calendar(spark: SparkSession, zone: str, encoding: str, tmp_path: Path) -> None:
    """Days and instants from the year 1 on, as LEGACY modes write them in different zones."""
    legacy = {
        "spark.sql.session.timeZone": zone,
        "spark.sql.parquet.outputTimestampType": encoding,
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    }
    with confs(spark, legacy):
        frame = spark.sql(INSTANTS).selectExpr(
            "at", "date(at) AS day", "array(named_struct('at', at, 'day', date(at))) l"
        )
        frame.coalesce(1).write.parquet(str(tmp_path / "written"))
    (path,) = (tmp_path / "written").glob("*.parquet")
    inner = struct_of(column("at", "timestamp"), column("day", "date"))
    table = table_of(column("at", "timestamp"), column("day", "date"), column("l", list_of(inner)))
    mirror = mirror_of(path, table, "rewrite")
    assert [each.physical_type for each in map(pq.ParquetFile(mirror).schema.column, range(4))] == [
        "INT64",
        "INT32",
        "INT64",
        "INT32",
    ]
    with confs(spark, {"spark.sql.session.timeZone": zone}):
        agree(spark, path, mirror, "at TIMESTAMP, day DATE, l ARRAY<STRUCT<at: TIMESTAMP, day: DATE>>", columns=3)


def test_lists_of_two_levels(spark: SparkSession, tmp_path: Path) -> None:
    """As Spark's legacy format writes lists without nulls."""
    with confs(spark, {"spark.sql.parquet.writeLegacyFormat": "true"}):
        spark.sql(
            "SELECT array(1, int(id)) AS l, array(named_struct('x', id, 'y', array(string(id)))) AS s, "
            "map(string(id), array(id)) AS m, array(id, nullif(id, 3)) n, "
            "array(array(id), array()) AS a FROM range(100)"
        ).coalesce(1).write.parquet(str(tmp_path / "written"))
    (path,) = (tmp_path / "written").glob("*.parquet")
    leaves = parse_schema(load_footer(FileIOStorage(), str(path)).metadata).leaves()
    assert [b".".join(leaf).decode() for leaf in leaves] == [
        "l.array",
        "s.array.x",
        "s.array.y.array",
        "m.key_value.key",
        "m.key_value.value.array",
        "n.bag.array",
        "a.array.array",
    ]
    inner = struct_of(column("x", "long"), column("y", list_of("string")))
    columns = [
        column("l", list_of("integer")),
        column("s", list_of(inner)),
        column("m", map_of("string", list_of("long"))),
    ]
    mirror = mirror_of(
        path, table_of(*columns, column("n", list_of("long")), column("a", list_of(list_of("long")))), "footer"
    )
    schema = "l ARRAY<INT>, s ARRAY<STRUCT<x: BIGINT, y: ARRAY<STRING>>>, m MAP<STRING, ARRAY<BIGINT>>, n ARRAY<BIGINT>"
    agree(spark, path, mirror, f"{schema}, a ARRAY<ARRAY<BIGINT>>", columns=5)


CASES: list[tuple[str, str, pa.DataType, Any, MirrorKind]] = [
    ("timestamp", "TIMESTAMP", pa.timestamp("us"), [0, 10**15], "footer"),
    ("timestamp", "TIMESTAMP", pa.timestamp("ms"), [0, 10**12], "footer"),
    ("timestamp_ntz", "TIMESTAMP_NTZ", pa.timestamp("us", "UTC"), [0, 10**15], "footer"),
    ("date", "DATE", pa.int32(), [0, -800_000], "footer"),
    ("string", "STRING", pa.binary(), ["a", "é"], "footer"),
    ("binary", "BINARY", pa.string(), ["a", "é"], "footer"),
    ("integer", "INT", pa.uint8(), [0, 255], "footer"),
    ("integer", "INT", pa.uint16(), [0, 65535], "footer"),
    ("long", "BIGINT", pa.uint8(), [0, 255], "footer"),
    ("long", "BIGINT", pa.duration("us"), [0, 5], "footer"),
    ("long", "BIGINT", pa.uint32(), [0, 2**32 - 1], "rewrite"),
    ("double", "DOUBLE", pa.int32(), [0, 2**31 - 1], "rewrite"),
    ("decimal(12,2)", "DECIMAL(12,2)", pa.int32(), [0, 2**31 - 1], "rewrite"),
    ("decimal(22,2)", "DECIMAL(22,2)", pa.int64(), [0, 2**63 - 1], "rewrite"),
    ("decimal(20,4)", "DECIMAL(20,4)", pa.decimal128(9, 2), [Decimal("-1.23"), Decimal("9999999.99")], "rewrite"),
    ("timestamp_ntz", "TIMESTAMP_NTZ", pa.date32(), [date(1500, 1, 1), date(2020, 1, 1)], "rewrite"),
    ("binary", "BINARY", pa.binary(2), [b"ab", b"cd"], "rewrite"),
]


@pytest.mark.parametrize("kind", ["footer", "rewrite"])
def test_other_types(spark: SparkSession, kind: MirrorKind, tmp_path: Path) -> None:
    """Whatever annotation or type a file has: Spark reads it as the mirror, and shows what pyarrow shows in that."""
    path, stored, columns, schema = tmp_path / "f.parquet", dict[str, pa.Array](), list[dict[str, Any]](), []
    for number, (delta, spark_type, arrow_type, values, _) in enumerate(each for each in CASES if each[-1] == kind):
        names = f"c{number}", f"l{number}"
        nested = pa.array([[each] for each in values], pa.list_(arrow_type))
        its_own = dict(zip(names, (pa.array(values, arrow_type), nested), strict=True))
        pq.write_table(pa.table(its_own), path, store_decimal_as_integer=True)
        its_columns = [column(names[0], delta), column(names[1], list_of(delta))]
        plan = planned(path, table_of(*its_columns))
        assert plan and plan.kind == kind, delta
        stored |= its_own
        columns += its_columns
        schema += [f"{names[0]} {spark_type}", f"{names[1]} ARRAY<{spark_type}>"]
    pq.write_table(pa.table(stored), path, store_decimal_as_integer=True)
    rows = agree(spark, path, mirror_of(path, table_of(*columns), kind), ", ".join(schema), columns=len(columns))
    assert all(value is not None for row in rows for value in row)


def test_nulls_of_no_type(spark: SparkSession, tmp_path: Path) -> None:
    """Columns without a type are null, whatever the table's type is."""
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"c": pa.nulls(2), "i": [1, 2]}), path)
    for delta, kind in (("integer", "footer"), ("double", "rewrite")):
        mirror = mirror_of(path, table_of(column("c", delta), column("i", "long")), kind)
        agree(spark, path, mirror, f"c {delta}, i BIGINT", columns=2)
    with pytest.raises(Unsupported):
        mirror_of(path, table_of(column("c", "string"), column("i", "long")), "")
    with pytest.raises(Exception, match="SchemaColumnConvertNotSupportedException"):
        spark.read.schema("c STRING").parquet(str(path)).collect()
