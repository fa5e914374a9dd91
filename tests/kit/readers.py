"""Every reader that the README names, each giving an Iceberg table's rows in one spelling, to be held against Delta's.

A row is a tuple in the order of the table's columns; structs, lists and maps are tuples too (maps sorted by key), zoned
timestamps are in UTC, NaN is a word because it does not equal itself.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import UTC
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import duckdb_extension_avro
import duckdb_extension_httpfs
import duckdb_extension_iceberg
import polars
import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StructType,
    TimestamptzType,
)

from daemon.iceberg.pyiceberg_ext.variant import VariantType
from tests.kit.writer import with_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[Any, ...]
# What runs a function of a session: `Writer.reader`.
Spark = Callable[..., pa.Table]
Reader = Callable[[Table, "SparkSession | Spark | None"], list[Row]]

DIFFERING_ROWS_SHOWN = 5
EXTENSION = ".duckdb_extension"
# Polars warns where its own planner is not installed; planning is PyIceberg's then anyway.
os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")
# Without it PyIceberg 0.12 reads no INT96 timestamps of a table of format version 3.
os.environ.setdefault("PYICEBERG_DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE", "true")


@lru_cache(maxsize=1)
def duckdb_connection() -> duckdb.DuckDBPyConnection:
    """DuckDB with the extensions that are shipped as Python packages: nothing is installed from the network."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for package in (duckdb_extension_avro, duckdb_extension_httpfs, duckdb_extension_iceberg):
        (extension,) = Path(package.__file__ or "").parent.rglob(f"*{EXTENSION}")
        connection.execute(f"LOAD '{extension}'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def read_pyiceberg(table: Table, spark: SparkSession | Spark | None = None) -> list[Row]:
    return rows_of(table.scan().to_arrow(), table.schema().fields)


def read_spark(table: Table, spark: SparkSession | Spark | None) -> list[Row]:
    assert spark is not None, "Spark's Iceberg reader needs a session"
    location = table.metadata_location
    found = spark(read_iceberg, location) if callable(spark) else read_iceberg(spark, location)
    return rows_of(found, table.schema().fields)


def read_iceberg(
    session: SparkSession, location: str, columns: Sequence[str] = ("*",), snapshot_id: int | None = None
) -> pa.Table:
    """What Spark's Iceberg reader gives of the table with this metadata file."""
    reader = session.read.format("iceberg")
    frame = (reader if snapshot_id is None else reader.option("versionAsOf", snapshot_id)).load(location)
    frame = frame.selectExpr(*columns)
    return (with_json(frame) if "variant" in frame.schema.simpleString() else frame).toArrow()


def read_polars_native(table: Table, spark: SparkSession | Spark | None = None) -> list[Row]:
    return _read_polars(table, "native")


def read_polars_pyiceberg(table: Table, spark: SparkSession | Spark | None = None) -> list[Row]:
    return _read_polars(table, "pyiceberg")


def _read_polars(table: Table, reader: Any) -> list[Row]:
    told = table.io.properties
    names = {"endpoint_url": "s3.endpoint", "region": "s3.region", "access_key_id": "s3.access-key-id"}
    names |= {"secret_access_key": "s3.secret-access-key", "session_token": "s3.session-token"}
    options = {f"aws_{option}": str(told[name]) for option, name in names.items() if name in told}
    if options.get("aws_endpoint_url", "").startswith("http://"):
        options["aws_allow_http"] = "true"
    # PyIceberg's planner gives Polars' own reader paths, and no way to the store.
    storage = {"storage_options": options} if options and reader == "native" else {}
    frame = polars.scan_iceberg(table, reader_override=reader, **storage).collect()
    return rows_of(frame.to_arrow(), table.schema().fields)


def read_duckdb(table: Table, spark: SparkSession | Spark | None = None) -> list[Row]:
    if endpoint := table.io.properties.get("s3.endpoint"):
        _tell_duckdb(table.io.properties, endpoint)
    relation = duckdb_connection().execute("SELECT * FROM iceberg_scan(?)", [table.metadata_location])
    fields = table.schema().fields
    if "variant" not in str(table.schema()):
        return rows_of(relation.to_arrow_table(), fields)
    # It turns no variant into Arrow.
    rows = [zip(row, fields, strict=True) for row in relation.fetchall()]
    return [
        tuple(_normal(_with_json(value, field.field_type), field.field_type) for value, field in row) for row in rows
    ]


def _with_json(value: Any, field_type: IcebergType) -> Any:
    """A value as DuckDB gives it to Python, with JSON in the place of variants."""
    match field_type:
        case _ if value is None:
            return None
        case VariantType():
            return json.dumps(value, default=lambda each: float(each) if isinstance(each, Decimal) else str(each))
        case StructType():
            return {field.name: _with_json(value[field.name], field.field_type) for field in field_type.fields}
        case ListType():
            return [_with_json(each, field_type.element_type) for each in value]
        case MapType():
            return [(key, _with_json(each, field_type.value_type)) for key, each in value.items()]
    return value


def _tell_duckdb(properties: Mapping[str, Any], endpoint: str) -> None:
    names = {"KEY_ID": "s3.access-key-id", "SECRET": "s3.secret-access-key", "SESSION_TOKEN": "s3.session-token"}
    options = {
        "ENDPOINT": endpoint.partition("://")[2].rstrip("/"),
        "USE_SSL": str(endpoint.startswith("https")).lower(),
        "URL_STYLE": "path",
        "REGION": properties.get("s3.region", "us-east-1"),
        **{option: properties[name] for option, name in names.items() if name in properties},
    }
    told = ", ".join(f"{option} '{value}'" for option, value in options.items())
    duckdb_connection().execute(f"CREATE OR REPLACE SECRET store (TYPE s3, {told})")


def ask_clickhouse(query: str) -> list[list[Any]]:
    """The rows of a query, by ClickHouse in a process of its own: it reads only files below its working directory."""
    command = [sys.executable, "-m", "chdb", query, "JSONCompactEachRow"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


READERS: Mapping[str, Reader] = {
    "PyIceberg": read_pyiceberg,
    "Spark": read_spark,
    "Polars native": read_polars_native,
    "Polars pyiceberg": read_polars_pyiceberg,
    "DuckDB": read_duckdb,
}
# How often each reader's rows were held against Delta's, for the report of a test run.
READS: Counter[str] = Counter()
# PyIceberg 0.12 gives an empty list or map for some null ones, whoever wrote the table (iceberg-python#3833).
EMPTY_FOR_NULL = {"PyIceberg", "Polars pyiceberg"}


def read_delta(spark: SparkSession, location: str, table: Table) -> list[Row]:
    """The rows of the Delta table at `location`, by Delta on Spark, in the types of the Iceberg `table`."""
    frame = spark.read.format("delta").load(location)
    return rows_of((with_json(frame) if "variant" in str(table.schema()) else frame).toArrow(), table.schema().fields)


def rows_of(found: pa.Table, fields: Sequence[NestedField]) -> list[Row]:
    """The rows of an Arrow table that has just these columns. AssertionError when it has others."""
    names = [field.name for field in fields]
    assert found.column_names == names, f"columns are {found.column_names}, not {names}"
    columns = [[_normal(value, field.field_type) for value in found.column(field.name).to_pylist()] for field in fields]
    return list(zip(*columns, strict=True))


def _normal(value: Any, field_type: IcebergType) -> Any:
    if value is None:
        return None
    normal: Any = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
    match field_type:
        case StructType():
            normal = tuple(_normal(value[field.name], field.field_type) for field in field_type.fields)
        case ListType():
            normal = tuple(_normal(item, field_type.element_type) for item in value)
        case MapType():
            # Polars has maps as lists of structs.
            pairs = ((pair["key"], pair["value"]) if isinstance(pair, dict) else pair for pair in value)
            items = ((_normal(key, field_type.key_type), _normal(item, field_type.value_type)) for key, item in pairs)
            normal = tuple(sorted(items, key=repr))
        case VariantType():
            # DuckDB takes the null of JSON for one of SQL.
            normal = None if value == "null" else json.dumps(json.loads(value), sort_keys=True)
        case TimestamptzType():
            assert normal.tzinfo is not None, f"{normal} has no zone"
            normal = normal.astimezone(UTC)
        case FloatType() | DoubleType():
            normal = _float(value, field_type)
    return normal


def _float(value: float, field_type: IcebergType) -> float | str:
    if math.isnan(value):
        return "NaN"
    # Some readers widen a float; the nearest float is one value again.
    return pa.scalar(value, pa.float32()).as_py() if isinstance(field_type, FloatType) else value


def assert_same_rows(found: Iterable[Row], expected: Iterable[Row], reader: str, where: str = "") -> None:
    """AssertionError with the reader's name and the first rows that only one side has."""
    found_rows, expected_rows = Counter(found), Counter(expected)
    if found_rows == expected_rows:
        return
    missing = _some(expected_rows - found_rows)
    surplus = _some(found_rows - expected_rows)
    raise AssertionError(
        f"{reader} differs from Delta{f' at {where}' if where else ''}: "
        f"{found_rows.total()} rows, Delta has {expected_rows.total()}\n"
        f"only in Delta:\n{missing}\nonly in {reader}:\n{surplus}"
    )


def _some(rows: Counter[Row]) -> str:
    first = sorted(rows.elements(), key=repr)[:DIFFERING_ROWS_SHOWN]
    more = rows.total() - len(first)
    return "\n".join([*(f"  {row!r}" for row in first), *([f"  … and {more} more"] if more else [])]) or "  none"


def assert_readers_agree(
    table: Table,
    spark: SparkSession | Spark | None,
    expected: Iterable[Row],
    where: str = "",
    *,
    without: Container[str] = (),
) -> None:
    """Every reader gives the `expected` rows; Spark's is left out without a session, and those of `without`."""
    rows = list(expected)
    as_pyiceberg = [_empty_for_null(row, table.schema().fields) for row in rows]
    for name, read in READERS.items():
        if name not in without and (name != "Spark" or spark is not None):
            assert_same_rows(read(table, spark), as_pyiceberg if name in EMPTY_FOR_NULL else rows, name, where)
            READS[name] += 1


def _empty_for_null(row: Row, fields: Sequence[NestedField]) -> Row:
    return tuple(as_pyiceberg(value, field.field_type) for value, field in zip(row, fields, strict=True))


def as_pyiceberg(value: Any, field_type: IcebergType) -> Any:
    """A value as PyIceberg shows it: it rebuilds lists and maps of structs without their nulls, and what is in them.

    Other lists and maps are cast as a whole, with all that is in them, and keep theirs.
    """
    match field_type:
        case StructType() if value is not None:
            pairs = zip(value, field_type.fields, strict=True)
            return tuple(as_pyiceberg(each, field.field_type) for each, field in pairs)
        case ListType(element_type=StructType() as element):
            return tuple(as_pyiceberg(each, element) for each in value or ())
        case MapType(key_type=key_type, value_type=StructType() as value_type):
            shown = ((as_pyiceberg(key, key_type), as_pyiceberg(each, value_type)) for key, each in value or ())
            return tuple(sorted(shown, key=repr))
    return value
