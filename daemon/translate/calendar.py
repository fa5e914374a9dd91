"""Dates and timestamps that readers show otherwise than Delta: of the old calendar, or beyond INT96's range. Pure.

Spark can store days before 1582-10-15 by the Julian calendar and turns them back when it reads; no Iceberg reader does.
INT96 timestamps are turned into 64-bit nanoseconds by Arrow, which wrap around silently outside of 1677 to 2262.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyiceberg.types import DateType, NestedField

from daemon.errors import Unsupported
from daemon.translate.file_schema import FileSchema
from daemon.translate.metrics import Metrics
from daemon.translate.schema import TableSchema

# Spark's keys in a footer's metadata (DataSourceUtils.scala): who wrote the file, and that its calendar is the old one.
SPARK_VERSION = b"org.apache.spark.version"
LEGACY_DATETIME = b"org.apache.spark.legacyDateTime"
LEGACY_INT96 = b"org.apache.spark.legacyINT96"
SPARK_VERSION_NUMBERS = re.compile(rb"(\d{1,9})\.(\d{1,9})")
# Spark writes the calendar of today since these versions.
DATETIME_SINCE, INT96_SINCE = (3, 0), (3, 1)
# 1582-10-15 in days, and 1900-01-01 in microseconds: before it, old time zone offsets differ too.
FIRST_DAY = -141_427
FIRST_MICROS = -2_208_988_800_000_000
# The microseconds that 64-bit nanoseconds reach, both ways.
INT96_MICROS_MAX = (1 << 63) // 1000


def check_calendar(footer: Mapping[bytes, bytes], file: FileSchema, metrics: Metrics, table: TableSchema) -> None:
    """Raise `Unsupported` naming a column that holds days of the old calendar, or may hold such."""
    legacy: set[int] = set()
    if _is_legacy(footer, LEGACY_DATETIME, DATETIME_SINCE):
        legacy |= file.days
    if _is_legacy(footer, LEGACY_INT96, INT96_SINCE):
        legacy |= file.int96.keys()
    if not legacy:
        return
    leaves = {field.field_id for field in table.leaves.values()}
    partitions = {field.source_id for field in table.spec.fields}
    for field_id in sorted(legacy - partitions):
        field = table.schema.find_field(field_id)
        if not (field_id in leaves and _is_modern(field, metrics)):
            raise Unsupported(
                f"column {table.schema.find_column_name(field_id)} of the file has or may have values before "
                f"{'1582-10-15' if isinstance(field.field_type, DateType) else '1900'}, stored by the Julian calendar: "
                "Iceberg readers show them some days off",
                hint="Have Spark write the file anew with spark.sql.parquet.datetimeRebaseModeInWrite and "
                "spark.sql.parquet.int96RebaseModeInWrite at CORRECTED.",
            )


def _is_legacy(footer: Mapping[bytes, bytes], key: bytes, since: tuple[int, int]) -> bool:
    version = SPARK_VERSION_NUMBERS.match(footer.get(SPARK_VERSION, b""))
    return version is not None and (key in footer or (int(version[1]), int(version[2])) < since)


def _is_modern(field: NestedField, metrics: Metrics) -> bool:
    if metrics.null_value_counts.get(field.field_id) == metrics.record_count:
        return True
    lower = metrics.lower_bounds.get(field.field_id)
    first = FIRST_DAY if isinstance(field.field_type, DateType) else FIRST_MICROS
    return lower is not None and _number(lower) >= first


def check_int96(file: FileSchema, metrics: Metrics, table: TableSchema) -> set[str]:
    """Raise `Unsupported` naming an INT96 column whose statistics go beyond what PyIceberg and Polars can show.

    Returns the top-level columns, as the file names them, of which the statistics do not tell.
    """
    partitions = {field.source_id for field in table.spec.fields}
    untold = set()
    for field_id, top_level in file.int96.items():
        column = str(table.schema.find_column_name(field_id))
        if field_id in metrics.lower_bounds:
            lower, upper = _number(metrics.lower_bounds[field_id]), _number(metrics.upper_bounds[field_id])
            check_int96_micros(lower, upper, column)
        elif field_id in metrics.beyond:
            raise _beyond_int96(column)
        elif field_id not in partitions and metrics.null_value_counts.get(field_id) != metrics.record_count:
            untold.add(top_level)
    return untold


def check_int96_micros(lower: int, upper: int, column: str) -> None:
    """Raise `Unsupported` when INT96 timestamps of `column` go beyond 64-bit nanoseconds."""
    if lower < -INT96_MICROS_MAX or upper > INT96_MICROS_MAX:
        raise _beyond_int96(column)


def _beyond_int96(column: str) -> Unsupported:
    return Unsupported(
        f"column {column} of the file has INT96 timestamps before 1677 or after 2262, which PyIceberg and Polars show "
        "as other times without a word",
        hint="Write them with spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS, or set int96_overflow: follow "
        "for this table if only Spark, DuckDB and their like read it.",
    )


def _number(bound: bytes) -> int:
    """Days or microseconds. Iceberg spec, "Binary Single-Value Serialization": little-endian."""
    return int.from_bytes(bound, "little", signed=True)
