"""Partition values of every type, names and paths with every character: rows and filters are Delta's in all readers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from datetime import date
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import BooleanExpression, EqualTo, IsNaN, IsNull
from pyiceberg.types import DoubleType, FloatType, NestedField, TimestamptzType
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from daemon.errors import ConfigInvalid, CorruptInput, Unsupported
from daemon.sync.outcomes import SyncResult
from tests.integration.test_delta_log import DELTA, DV
from tests.kit.follow import Followed, unfit_readers
from tests.kit.handmade import ARROW, HandmadeTable
from tests.kit.readers import assert_readers_agree, duckdb_connection, rows_of
from tests.kit.service import Service

NUMBERS = {
    "tiny TINYINT": ("-128", "127", "0", None),
    "small SMALLINT": ("-32768", "32767", "-1", None),
    "num INT": ("-2147483648", "2147483647", "0", None),
    "big BIGINT": ("-9223372036854775808", "9223372036854775807", "9007199254740993", None),
    "money DECIMAL(5, 2)": ("-999.99", "999.99", "0.00", None),
    "huge DECIMAL(38, 10)": (
        "-9999999999999999999999999999.9999999999",
        "1234567890123456789012345678.0123456789",
        "0.0000000001",
        "0",
        None,
    ),
    "yes BOOLEAN": ("true", "false", None),
}
FLOATS = {
    "f FLOAT": ("NaN", "0.0", "Infinity", "-Infinity", "1.4E-45", "3.4028235E38", "0.1", "-1.5", None),
    "d DOUBLE": ("NaN", "0.0", "Infinity", "-Infinity", "4.9E-324", "1.7976931348623157E308", "0.1", None),
}
# PyIceberg 0.12 takes an infinity for beyond a float's range, and reads double partition values of a manifest as floats
# where the spec has a float field, too; Polars plans with it. The day these filters find their rows, this goes.
FLOAT_FLAWS = {
    "PyIceberg": {("f", math.inf), ("f", -math.inf), ("d", 5e-324), ("d", 0.1), ("d", 1.7976931348623157e308)},
    "Polars native": {("d", 5e-324), ("d", 0.1), ("d", 1.7976931348623157e308)},
}
MOMENTS = (
    "1969-12-31 23:59:59.999999",
    "1582-10-04 00:00:00.000001",
    "0001-01-01 00:00:00",
    "9999-12-31 23:59:59.999999",
    "2024-02-29 12:34:56.789012",
    "2024-02-29 00:00:00",
    None,
)
TIMES = {
    "day DATE": ("1969-12-31", "1582-10-04", "1582-10-15", "0001-01-01", "9999-12-31", "2024-02-29", None),
    "at TIMESTAMP": MOMENTS,
    "local TIMESTAMP_NTZ": MOMENTS,
}
TEXTS = {
    "s STRING": (
        *(" lead", "trail ", "%", "a%20b", "=", "a=b", "/", "a/b", ":", "#", "?", "&", "+", "'", '"', "\\", "..", "*"),
        *("\n", "\t", "\r\n", "{}", "[x]", "é", "e\u0301", "\U0001f600", "日本", "null", "NaN", "x" * 200, None),
    ),
    "v VARCHAR(20)": ("ab ", "#?", None),
}
# What Delta's files hold of a partition column, where the log says null.
NULLS = {"s STRING": ("", "__HIVE_DEFAULT_PARTITION__", None, "null")}
CHARS = {"c CHAR(3)": ("ab", "a c", "é", None)}
# Hadoop's URIs escape less than Python's.
URI_SAFE = "/+&=;@:$,!~*'()"


class AnyPath(Followed):
    """A table whose adds may have absolute paths."""

    def _path(self, encoded: str) -> str:
        if encoded.startswith(("/", "file:")):
            return "file:///" + unquote(encoded).removeprefix("file:").lstrip("/")
        return super()._path(encoded)

    def _spelled(self, encoded: str) -> str:
        return self._path(encoded)  # Delta writes absolute paths anew.


def show_cases(session: SparkSession, columns: Mapping[str, Sequence[str | None]], repeat: int) -> None:
    """The view `cases`: each value of each column, in `repeat` rows with an id of its own."""
    count = max(len(values) for values in columns.values())
    texts = {column.split()[0]: [values[n % len(values)] for n in range(count)] for column, values in columns.items()}
    frame = session.createDataFrame(pa.table({"number": range(count), **texts}))
    casts = [f"CAST({column.split(maxsplit=1)[0]} AS {column.split(maxsplit=1)[1]})" for column in columns]
    session.createDataFrame(pa.table({"turn": range(repeat)})).crossJoin(frame).selectExpr(
        f"number * {repeat} + turn AS id", *casts
    ).createOrReplaceTempView("cases")


def is_nan(field: NestedField, value: Any) -> bool:
    return isinstance(field.field_type, FloatType | DoubleType) and value == "NaN"


def text_of(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def check_filters(
    table: Followed, *columns: str, flaws: Mapping[str, Set[tuple[str, Any]]] = MappingProxyType({})
) -> None:
    """A filter at each value of these columns, null and NaN too, finds in all readers as many rows as in Delta.

    `flaws` are a reader's own: filters that find something else.
    """
    iceberg = table.bench.iceberg()
    fields = iceberg.schema().fields
    names = [field.name for field in fields]
    rows = table.truth(iceberg).rows
    asked = [
        (fields[names.index(column)], value)
        for column in columns
        for value in sorted(dict.fromkeys(row[names.index(column)] for row in rows), key=repr)
    ]
    told = [(field.name, value if value is None else text_of(value), is_nan(field, value)) for field, value in asked]
    by_delta = table.writer.do(count_in_delta, table.source, told)
    expected = {(field.name, value): count for (field, value), count in zip(asked, by_delta["counts"], strict=True)}
    assert all(expected.values()), "every filter finds rows in Delta"

    readers = {
        "Spark": table.writer.spark(count_in_spark, iceberg.metadata_location, told, by_delta["types"]),
        "PyIceberg": [len(iceberg.scan(row_filter=pyiceberg_filter(*one)).to_arrow()) for one in asked],
        "DuckDB": [count_in_duckdb(iceberg.metadata_location, *one) for one in asked],
    }
    if not unfit_readers(table.image):
        lazy = polars.scan_iceberg(iceberg, reader_override="native")
        counted = [lazy.filter(polars_filter(*one)).select(polars.len()).collect().item() for one in asked]
        readers["Polars native"] = counted
    for reader, counts in readers.items():
        found = dict(zip(expected, counts, strict=True))
        wrong = {key: (count, expected[key]) for key, count in found.items() if count != expected[key]}
        assert wrong.keys() == flaws.get(reader, set()), f"{reader}: rows found, rows in Delta: {wrong}"


# A column, the value in words or None, and whether it is NaN.
Asked = tuple[str, str | None, bool]


def count_in_delta(session: SparkSession, folder: Path, asked: Sequence[Asked]) -> dict[str, Any]:
    """How many rows each filter finds, and the types of the columns."""
    delta = session.read.format("delta").load(str(folder))
    types = {field.name: field.dataType.simpleString() for field in delta.schema.fields}
    counts = [F.count_if(spark_filter(each, types)).alias(f"n{n}") for n, each in enumerate(asked)]
    (found,) = delta.select(*counts).toArrow().to_pylist()
    return {"counts": list(found.values()), "types": types}


def count_in_spark(session: SparkSession, location: str, asked: Sequence[Asked], types: Mapping[str, str]) -> list[int]:
    """The same by Spark's Iceberg reader."""
    frame = session.read.format("iceberg").load(location)
    hits = [frame.where(spark_filter(each, types)).select(F.lit(n).alias("n")) for n, each in enumerate(asked)]
    found = Counter(row.n for row in reduce(lambda one, other: one.unionAll(other), hits).collect())
    return [found[n] for n in range(len(asked))]


def spark_filter(asked: Asked, types: Mapping[str, str]) -> Column:
    name, value, nan = asked
    column = F.col(f"`{name}`")
    if value is None:
        return column.isNull()
    return F.isnan(column) if nan else column == F.lit(value).cast(types[name])


def pyiceberg_filter(field: NestedField, value: Any) -> BooleanExpression:
    if value is None:
        return IsNull(field.name)
    if is_nan(field, value):
        return IsNaN(field.name)
    return EqualTo(field.name, value.isoformat() if isinstance(value, date) else value)


def polars_filter(field: NestedField, value: Any) -> polars.Expr:
    column = polars.col(field.name)
    if value is None:
        return column.is_null()
    return column.is_nan() if is_nan(field, value) else column == value


def count_in_duckdb(location: str, field: NestedField, value: Any) -> int:
    name, text = field.name.replace('"', '""'), text_of(value).replace("'", "''")
    if isinstance(value, bytes):
        text = "".join(f"\\x{byte:02X}" for byte in value)
    kind = "TIMESTAMPTZ" if isinstance(field.field_type, TimestamptzType) else str(field.field_type).upper()
    if value is None:
        holds = f'"{name}" IS NULL'
    elif is_nan(field, value):
        holds = f'isnan("{name}")'
    else:
        holds = f"\"{name}\" = CAST('{text}' AS {'VARCHAR' if kind == 'STRING' else kind})"
    query = f"SELECT count(*) FROM iceberg_scan('{location}') WHERE {holds}"
    (row,) = duckdb_connection().execute(query).fetchall()
    return int(row[0])


def created(table: Followed, columns: Mapping[str, Sequence[str | None]]) -> list[str]:
    """Make the table, partitioned by all `columns` from the last to the first, and the view `cases`; their names."""
    names = [column.split()[0] for column in columns]
    table.sql(
        f"CREATE TABLE {{t}} (id BIGINT, {', '.join(columns)}) USING delta"
        f" PARTITIONED BY ({', '.join(reversed(names))}) TBLPROPERTIES ({DV})"
    )
    table.writer.do(show_cases, columns, 4)
    return names


INSERT = "INSERT INTO {t} SELECT /*+ COALESCE(1) */ * FROM cases"


@pytest.mark.parametrize(
    ("columns", "granularity"),
    [
        pytest.param(NUMBERS, "file", id="numbers-file"),
        pytest.param(TIMES, "partition", id="times-partition"),
        pytest.param(TEXTS, "file", id="texts-file"),
        pytest.param(TEXTS, "partition", id="texts-partition", marks=pytest.mark.long),
    ],
)
def test_partition_values(
    service: Service, tmp_path: Path, columns: dict[str, Sequence[str | None]], granularity: str
) -> None:
    """Special values of every partition type: the first sync, deletions, appends and filters are Delta's."""
    table = Followed(service, tmp_path, granularity)
    names = created(table, columns)
    with table.writer.confs({"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}):
        table.sql(INSERT)
        table.step(operation="append")
        table.step("DELETE FROM {t} WHERE id % 4 = 1", operation="delete")
        assert len(table.image.delete_files) == len(table.image.data_files)
        table.step(f"{INSERT} WHERE id % 4 = 0", operation="append")
    table.step("DELETE FROM {t} WHERE id % 4 = 2", operation="delete")
    check_filters(table, *names)


@pytest.mark.parametrize("granularity", ["file", pytest.param("partition", marks=pytest.mark.long)])
def test_float_partitions(service: Service, tmp_path: Path, granularity: str) -> None:
    """NaN, infinities, zero and the least and greatest numbers as partition values, with deletions."""
    table = Followed(service, tmp_path, granularity)
    names = created(table, FLOATS)
    files = len(FLOATS["f FLOAT"])
    table.sql(INSERT)
    assert synced(table).data_files_added == files
    table.sql("DELETE FROM {t} WHERE id % 4 = 1")
    result = synced(table)
    assert (result.delete_files_added, result.positions_added) == (files, files), "each partition has its own"
    table.sql(f"{INSERT} WHERE id % 4 = 0")
    assert synced(table).data_files_added == files
    table.sql("DELETE FROM {t} WHERE id % 4 = 2")
    assert synced(table).positions_added == files
    check_filters(table, *names, flaws=FLOAT_FLAWS)


def test_double_partitions_in_rewritten_manifests(service: Service, tmp_path: Path) -> None:
    """Double partition values stay exact when a file leaves and its manifest is written again for the others."""
    table = Followed(service, tmp_path)
    created(table, {"d DOUBLE": ("0.1", "0.2", "1E300")})
    table.sql(INSERT)
    table.step(operation="append")
    table.step("DELETE FROM {t} WHERE id % 4 = 1", operation="delete")
    table.step("DELETE FROM {t} WHERE d = 0.2D", operation="delete")
    assert {entry.partition for entry in table.image.data_files.values()} == {(0.1,), (1e300,)}
    assert {entry.partition for entry in table.image.delete_files.values()} == {(0.1,), (1e300,)}


def test_negative_zero_partition(service: Service, tmp_path: Path) -> None:
    """-0.0 as a partition value is found by a filter at 0.0, as in Delta."""
    table = Followed(service, tmp_path)
    names = created(table, {"f FLOAT": ("-0.0", "0.0"), "d DOUBLE": ("-0.0", "0.0")})
    table.sql(INSERT)
    table.step(operation="append")
    check_filters(table, *names)


def synced(table: Followed) -> SyncResult:
    """Sync one version and hold the readers against Delta; NaN does not equal itself, so images are of no use here."""
    result = table.bench.sync()
    assert (result.snapshots, result.to_version) == (1, table.version)
    iceberg = table.bench.iceberg()
    without = {"Polars native"} if table.granularity == "partition" else set()
    rows = rows_of(table.writer.delta(table.source), iceberg.schema().fields)
    table.check_readers(iceberg, rows, f"version {table.version}", without)
    return result


@pytest.mark.parametrize("mode", ["none", "name"])
@pytest.mark.parametrize("value", ["", "__HIVE_DEFAULT_PARTITION__"])
def test_partition_values_unlike_the_files(service: Service, tmp_path: Path, mode: str, value: str) -> None:
    """Empty strings and Hive's name for null are null in Delta; PyIceberg would show what the file says: refused."""
    table = Followed(service, tmp_path)
    table.step(
        "CREATE TABLE {t} (id BIGINT, s STRING) USING delta PARTITIONED BY (s)"
        f" TBLPROPERTIES ('delta.columnMapping.mode' = '{mode}')"
    )
    table.step("INSERT INTO {t} VALUES (1, NULL), (2, 'x')", operation="append")
    table.sql(f"INSERT INTO {{t}} VALUES (3, '{value}')")
    with pytest.raises(Unsupported, match="partition column s is null in the Delta log and something else"):
        table.bench.sync()


def test_char_partitions(service: Service, tmp_path: Path) -> None:
    """CHAR values are shown as they are stored; Spark pads them when it reads Delta."""
    table = Followed(service, tmp_path)
    with table.writer.confs({"spark.sql.readSideCharPadding": "false"}):
        created(table, CHARS)
        table.sql(INSERT)
        table.step(operation="append")


def test_far_timestamps_in_int96_partitions(service: Service, tmp_path: Path) -> None:
    """Years that INT96 readers get wrong are refused where the files hold the partition column."""
    table = Followed(service, tmp_path)
    created(table, {"at TIMESTAMP": MOMENTS})
    with table.writer.confs({"spark.sql.parquet.outputTimestampType": "INT96"}):
        table.sql(INSERT)
    with pytest.raises(Unsupported, match="column at of the file has INT96 timestamps before 1677 or after 2262"):
        table.bench.sync()


@pytest.mark.parametrize("mapped", [False, True], ids=["plain", "column-mapping"])
def test_names(service: Service, tmp_path: Path, mapped: bool) -> None:
    """Special characters and non-ASCII in names of partition and data columns, folders that look hidden."""
    parts = ["_hidden", ".dot", "a#b?c", "a%20b", "a/b:c&+"]
    data = ["näme", "日本\U0001f600", "x.y", "q\"'\\"]
    if mapped:
        parts, data = [*parts[:3], "p q,r", "s=;{}()"], [*data, "d e,f", "=;{}()", "tab\tnew\nline"]
    columns = [*data, *parts]
    table = Followed(service, tmp_path)
    mapping = ", 'delta.columnMapping.mode' = 'name'" if mapped else ""
    declared = ", ".join(f"`{name}` STRING" for name in columns)
    table.step(
        f"CREATE TABLE {{t}} (id BIGINT, {declared}) USING delta"
        f" PARTITIONED BY ({', '.join(f'`{name}`' for name in parts)}) TBLPROPERTIES ({DV}{mapping})",
        operation="append",
    )
    values = ", ".join(f"concat('v{n} ', id % {2 + n % 2})" for n in range(len(columns)))
    table.step(f"INSERT INTO {{t}} SELECT id, {values} FROM range(0, 24, 1, 1)", operation="append")
    table.step("DELETE FROM {t} WHERE id % 12 = 1", operation="delete")
    # PyIceberg 0.12 takes a dot in the name of a file's column for a path when it filters.
    check_filters(table, *(name for name in columns if mapped or "." not in name))


def test_non_ascii_partition_names(service: Service, tmp_path: Path) -> None:
    """Partition columns with letters beyond ASCII in their names."""
    table = Followed(service, tmp_path)
    table.step(
        f"CREATE TABLE {{t}} USING delta PARTITIONED BY (`größe`, `日本`) TBLPROPERTIES ({DV}) AS"
        " SELECT id, id % 2 AS `größe`, 'x' AS `日本` FROM range(0, 12, 1, 1)"
    )
    table.step("DELETE FROM {t} WHERE id < 4", operation="delete")
    check_filters(table, "größe", "日本")


def test_random_prefixes_and_long_values(service: Service, tmp_path: Path) -> None:
    """`delta.randomizeFilePrefixes`: files and deletion vectors in random folders, partition values of any length."""
    table = Followed(service, tmp_path)
    table.step(
        "CREATE TABLE {t} (id BIGINT, part STRING) USING delta PARTITIONED BY (part)"
        f" TBLPROPERTIES ({DV}, 'delta.randomizeFilePrefixes' = 'true')",
        operation="append",
    )
    values = "array(repeat('long é', 1000), concat(repeat('long é', 1000), '!'), 'short', NULL)"
    table.step(
        f"INSERT INTO {{t}} SELECT id, element_at({values}, CAST(id % 4 AS INT) + 1) FROM range(0, 24, 1, 1)",
        operation="append",
    )
    assert not any("=" in path.removeprefix(f"file://{table.source}") for path in table.image.data_files)
    table.step("DELETE FROM {t} WHERE id % 12 < 5", operation="delete")
    check_filters(table, "part")


@pytest.mark.parametrize("zoned", ["true", "false"], ids=["zoned", "plain"])
def test_timestamp_spellings(service: Service, tmp_path: Path, zoned: str) -> None:
    """Timestamps as partition values are right with a zone and without, from Delta and from other writers."""
    table = Followed(service, tmp_path)
    table.step(
        f"CREATE TABLE {{t}} (id BIGINT, at TIMESTAMP, local TIMESTAMP_NTZ) USING delta PARTITIONED BY (at, local)"
        f" TBLPROPERTIES ({DV})",
        operation="append",
    )
    with table.writer.confs({f"{DELTA}.write.utcTimestampPartitionValues": zoned}):
        table.step(
            "INSERT INTO {t} SELECT id, timestamp_micros(id % 2 * 1500000), CAST(timestamp_micros(-1) AS TIMESTAMP_NTZ)"
            " FROM range(0, 10, 1, 1)",
            operation="append",
        )
    spelled = {add["partitionValues"]["at"] for add in table.live_adds().values()}
    assert {value.endswith("Z") for value in spelled} == {zoned == "true"}, spelled
    adds = [
        copied(table, f"other{number}.parquet", partition_values={"at": at, "local": local})
        for number, (at, local) in enumerate(
            [
                ("2024-01-01 00:00:00", "2024-01-01 00:00:00"),
                ("2024-01-01 00:00:00.5", "1960-01-01 00:00:00.000001"),
                ("2024-01-01T00:00:00.000000Z", "2024-01-01 00:00:00.5"),
                ("1960-02-29T00:00:00.000001Z", None),
            ]
        )
    ]
    table.commit_by_hand(*adds)
    table.step(operation="append")
    table.step("DELETE FROM {t} WHERE id < 3", operation="delete")
    check_filters(table, "at", "local")


def copied(
    table: Followed,
    encoded: str,
    place: Path | None = None,
    *,
    partition_values: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """A copy of a data file at `place`, without partition columns, and the add action that calls it `encoded`."""
    path, add = min(table.live_adds().items())
    place = place or table.source / unquote(encoded)
    place.parent.mkdir(parents=True, exist_ok=True)
    values = add["partitionValues"] if partition_values is None else partition_values
    held = pq.ParquetFile(path.removeprefix("file://")).read()
    pq.write_table(held.drop_columns([name for name in values if name in held.column_names]), place)
    return {"add": {**add, "path": encoded, "partitionValues": values, "size": place.stat().st_size}}


def test_partition_columns_in_files(service: Service, tmp_path: Path) -> None:
    """Partition columns that are in the data files, as other writers leave them, beside files without them."""
    table = Followed(service, tmp_path)
    handmade = HandmadeTable(table.source, partitioned=True)
    handmade.create()
    table.step(operation="append")
    without = [handmade.write_file([(number, part, "without") for number in range(4)]) for part in ("a", "b")]
    within = [handmade.write_file([(number, part, "within") for number in range(4, 8)]) for part in ("a", "c")]
    for path in within:
        columns = {name: [row[index] for row in handmade.rows[path]] for index, name in enumerate(ARROW.names)}
        pq.write_table(pa.table(columns, schema=ARROW), table.source / path)
    handmade.commit([handmade.add(path) for path in (*without, *within)])
    table.step(operation="append")
    handmade.commit(handmade.delete({path: [1, 2] for path in (*without, *within)}))
    table.step(operation="delete")
    table.step("DELETE FROM {t} WHERE id = 0", operation="delete")
    check_filters(table, "part")


def test_materialized_partition_columns(service: Service, tmp_path: Path) -> None:
    """Partition columns that Delta itself writes into the files (feature materializePartitionColumns)."""
    table = Followed(service, tmp_path)
    table.step(
        "CREATE TABLE {t} (id BIGINT, part STRING, day DATE) USING delta PARTITIONED BY (day, part)"
        f" TBLPROPERTIES ({DV}, 'delta.feature.materializePartitionColumns' = 'supported')",
        operation="append",
    )
    table.step(
        "INSERT INTO {t} SELECT id, if(id % 2 = 0, 'a b', NULL), DATE'1960-02-29' FROM range(0, 10, 1, 1)",
        operation="append",
    )
    files = [path.removeprefix("file://") for path in table.image.data_files]
    assert all({"part", "day"} <= set(pq.read_schema(path).names) for path in files)
    table.step("DELETE FROM {t} WHERE id % 4 < 2", operation="delete")
    check_filters(table, "part", "day")


def overwrite_with_partitions(session: SparkSession, query: str, folder: Path, columns: Sequence[str]) -> None:
    writer = session.sql(query).write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writer.partitionBy(*columns).save(str(folder))


def test_changed_partitioning(service: Service, tmp_path: Path) -> None:
    """An overwrite with other partition columns is a new spec; deletions go on, RESTORE brings the old spec back."""
    table = Followed(service, tmp_path)
    values = "id, CAST(id % 3 AS INT) AS a, if(id % 2 = 0, 'x y', NULL) AS b"
    table.step(
        f"CREATE TABLE {{t}} USING delta PARTITIONED BY (a) TBLPROPERTIES ({DV}) AS"
        f" SELECT {values} FROM range(0, 24, 1, 1)"
    )
    table.step("DELETE FROM {t} WHERE id % 6 < 3", operation="delete")
    for columns, start in ((["b"], 100), ([], 200), (["b", "a"], 300)):
        query = f"SELECT {values} FROM range({start}, {start + 24}, 1, 1)"
        table.writer.do(overwrite_with_partitions, query, table.source, columns)
        table.step()
        table.step("DELETE FROM {t} WHERE id % 12 < 5", operation="delete")
        check_filters(table, "a", "b")
    assert len(table.bench.iceberg().specs()) == 4
    table.step("RESTORE TABLE {t} TO VERSION AS OF 1")
    assert len(table.bench.iceberg().specs()) == 4
    table.step("DELETE FROM {t} WHERE id = 10", operation="delete")
    check_filters(table, "a")


def test_binary_partitions(service: Service, tmp_path: Path) -> None:
    """Delta's log has them as texts, and Delta shows those: other bytes than the files have if these are no UTF-8."""
    table = Followed(service, tmp_path, options={"mirrors": "rewrite"})
    table.sql(f"CREATE TABLE {{t}} (id BIGINT, raw BINARY) USING delta PARTITIONED BY (raw) TBLPROPERTIES ({DV})")
    cases = " ".join(f"WHEN {n} THEN X'{each}'" for n, each in enumerate(("78", "C3A9", "FF", "", "612F62", "27")))
    rows = f"id, CASE id % 7 {cases} END"
    table.step(f"INSERT INTO {{t}} SELECT {rows} FROM range(0, 28, 1, 1)", operation="append")
    found = {row[1] for row in table.truth(table.bench.iceberg()).rows}
    assert found == {b"x", b"\xc3\xa9", b"\xef\xbf\xbd", b"a/b", b"'", None}
    record = table.bench.store.open_table(table.bench.name, table.bench.source, table.bench.target)
    assert len(table.bench.store.list_live_mirrors(record.id)) == 2, "of those that are none, and of null"
    table.step("DELETE FROM {t} WHERE id % 4 = 1", operation="delete")
    table.step(f"INSERT INTO {{t}} SELECT {rows} FROM range(28, 35, 1, 1)", operation="append")
    check_filters(table, "raw")


@pytest.mark.live  # its log has absolute paths
def test_absolute_and_unusual_paths(service: Service, tmp_path: Path) -> None:
    """Absolute paths in each spelling, names that look hidden or encoded: each decoded once, deletions included."""
    table = AnyPath(service, tmp_path)
    table.step(f"CREATE TABLE {{t}} USING delta TBLPROPERTIES ({DV}) AS SELECT id FROM range(0, 6, 1, 1)")
    outside = tmp_path / "out side" / "a%20b"
    adds = [
        copied(
            table, spelling + quote(f"{outside}/{number} a%20b.parquet", URI_SAFE), outside / f"{number} a%20b.parquet"
        )
        for number, spelling in enumerate(("file:", "file://", ""))
    ]
    names = (
        "a%20b.parquet",
        "a b.parquet",
        "_hidden.parquet",
        ".dot.parquet",
        "_under/x+y&z.parquet",
        "b=c;d@e.parquet",
    )
    adds += [copied(table, quote(name, URI_SAFE)) for name in names]
    table.commit_by_hand(*adds)
    table.step(operation="append")
    assert len(table.image.data_files) == 10
    delete_by_hand(table, {1})
    table.step(operation="delete")
    delete_by_hand(table, {1, 3})
    table.step(operation="delete")
    table.bench.sync(full=True)
    table.sync_and_check("a comparison")
    table.step("OPTIMIZE {t}", operation="replace")


def delete_by_hand(table: Followed, positions: set[int]) -> None:
    """These positions of every file: Delta's DELETE finds no file whose path it would have spelled another way."""
    adds = list(table.live_adds().values())
    vectors = HandmadeTable(table.source).write_dvs({add["path"]: positions for add in adds})
    removes = [
        {key: add[key] for key in ("path", "dataChange", "deletionVector") if key in add} | {"deletionTimestamp": 0}
        for add in adds
    ]
    table.commit_by_hand(
        *({"remove": remove} for remove in removes),
        *({"add": {**add, "deletionVector": vectors[add["path"]]}} for add in adds),
    )


@pytest.mark.long
@pytest.mark.live  # its log has absolute paths
def test_shallow_clone(service: Service, tmp_path: Path) -> None:
    """A shallow clone of a table with deletion vectors, and its original, are followed through deletions on both."""
    original = Followed(service, tmp_path / "original")
    original.step(
        "CREATE TABLE {t} USING delta PARTITIONED BY (part)"
        f" TBLPROPERTIES ({DV}) AS SELECT id, if(id % 2 = 0, 'a b', 'é') AS part FROM range(0, 20, 1, 1)"
    )
    original.step("DELETE FROM {t} WHERE id IN (0, 1)", operation="delete")
    clone = AnyPath(service, tmp_path / "clone")
    clone.step(f"CREATE TABLE {{t}} SHALLOW CLONE delta.`{original.source}`")
    clone.step("DELETE FROM {t} WHERE id IN (2, 3)", operation="delete")
    original.step("DELETE FROM {t} WHERE id IN (4, 5)", operation="delete")
    clone.step("INSERT INTO {t} SELECT id, 'é' FROM range(20, 30, 1, 1)", operation="append")
    clone.step("RESTORE TABLE {t} TO VERSION AS OF 0")
    clone.step("UPDATE {t} SET part = 'new' WHERE id = 7", operation="overwrite")
    check_filters(clone, "part")


@pytest.mark.parametrize("place", ["with space é \U0001f600", "a%20b+c&d=e", "_dot.and'quote"])
def test_table_folders(service: Service, tmp_path: Path, place: str) -> None:
    """A table in a folder with special characters in its name is followed, with partitions and deletions."""
    table = Followed(service, tmp_path)
    table.bench.close()
    table.source = tmp_path / "lake" / place
    table.bench = table.new_bench("placed")
    table.step(
        f"CREATE TABLE {{t}} USING delta PARTITIONED BY (part) TBLPROPERTIES ({DV}) AS"
        " SELECT id, if(id % 2 = 0, 'a b/c', NULL) AS part FROM range(0, 20, 1, 1)"
    )
    table.step("DELETE FROM {t} WHERE id < 4", operation="delete")
    table.sql("DELETE FROM {t} WHERE id = 10")
    second = table.new_bench("second")
    second.sync()
    assert len(second.iceberg().scan().to_arrow()) == 15
    second.close()
    table.step(operation="delete")
    check_filters(table, "part")


@pytest.mark.parametrize("mark", ["#", "?"])
def test_cut_paths_are_refused(service: Service, tmp_path: Path, mark: str) -> None:
    """PyIceberg cuts paths at `#` and `?`: a table or a data file there is refused by its path."""
    table = HandmadeTable(tmp_path / "lake" / "t")
    table.create()
    bench = service.serve(tmp_path / "bench", table.location)
    bench.sync()
    table.commit([table.add(table.write_file([(1, "a", "first")], name=f"x{mark}y"))])
    second = service.serve(tmp_path / "second", table.location)
    for each in (bench, second):
        with pytest.raises(Unsupported, match=f"x[{mark}]y"):
            each.sync()
    elsewhere = HandmadeTable(tmp_path / f"x{mark}y" / "t")
    elsewhere.create()
    third = service.serve(tmp_path / "third", elsewhere.location)
    with pytest.raises((Unsupported, ConfigInvalid), match=f"x[{mark}]y"):
        third.sync()


@pytest.mark.long
@pytest.mark.live  # its log has absolute paths
def test_two_names_of_one_file(service: Service, tmp_path: Path) -> None:
    """A remove by another name of a file removes nothing, as in Delta; a file that is live by two names is refused."""
    table = HandmadeTable(tmp_path / "lake" / "t")
    table.create()
    bench = service.serve(tmp_path / "bench", table.location)

    def check() -> None:
        service.wait(lambda: bench.status()["synced_version"] == table.version, f"version {table.version}")
        delta = service.writer.delta(table.folder)
        iceberg = bench.iceberg()
        assert_readers_agree(iceberg, service.writer.spark, rows_of(delta, iceberg.schema().fields), "two names")

    def by_its_absolute_path(action: dict[str, Any]) -> dict[str, Any]:
        return {kind: {**each, "path": f"{table.location}/{each['path']}"} for kind, each in action.items()}

    relative, absolute = (table.write_file([(number, "a", "x"), (number + 1, "a", "y")]) for number in (1, 3))
    table.commit([table.add(relative), by_its_absolute_path(table.add(absolute))])
    bench.sync()
    check()
    table.commit([by_its_absolute_path(action) for action in table.delete({absolute: [0]})])
    check()
    table.commit([by_its_absolute_path({"remove": {"path": relative, "deletionTimestamp": 0, "dataChange": True}})])
    check()
    assert len(bench.iceberg().scan().to_arrow()) == 3
    shown = bench.iceberg().metadata_location
    table.commit([by_its_absolute_path(table.add(relative))])
    for each in (bench, service.serve(tmp_path / "second", table.location)):
        with pytest.raises(CorruptInput, match=f"the log has 2 live adds for the one path .*{relative}"):
            each.sync()
    assert bench.iceberg().metadata_location == shown
    table.commit([by_its_absolute_path({"remove": {"path": relative, "deletionTimestamp": 0, "dataChange": True}})])
    check()
    # Delta's own way out of the same file with two deletion vectors.
    table.commit([table.add(table.write_file([(9, "a", "z")])), *table.delete({relative: [0]})])
    check()
    shown = bench.iceberg().metadata_location
    table.commit([table.add(relative, deleted=[1])])
    with pytest.raises(
        CorruptInput, match=f"the log has 2 live adds for the one path .*{relative}: .* vector .*; .* vector"
    ):
        bench.sync()
    assert bench.iceberg().metadata_location == shown
    with service.writer.confs({f"{DELTA}.duplicateActionCheck.enabled": "false"}):
        service.writer.sql("OPTIMIZE {t}", table.folder)
    table.version += 1
    check()
