"""Refuses dates and timestamps that Iceberg readers would show wrongly. Pure.

Spark can store days before 1582-10-15 in the Julian calendar, and converts them when it reads. No Iceberg reader does.
Arrow converts INT96 timestamps into 64-bit nanoseconds, which overflow silently before 1677 and after 2262.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyiceberg.types import DateType

from daemon.errors import Unsupported
from daemon.translate.file_schema import FileSchema
from daemon.translate.metrics import Metrics
from daemon.translate.schema import TableSchema

# Spark's keys in a footer's metadata (DataSourceUtils.scala): its version, and that the file uses the Julian calendar.
SPARK_VERSION = b"org.apache.spark.version"
LEGACY_DATETIME = b"org.apache.spark.legacyDateTime"
LEGACY_INT96 = b"org.apache.spark.legacyINT96"
SPARK_VERSION_NUMBERS = re.compile(rb"(\d{1,9})\.(\d{1,9})")
# Since these versions, Spark writes today's calendar unless a LEGACY key is set.
DATETIME_SINCE, INT96_SINCE = (3, 0), (3, 1)
# 1582-10-15 in days, and 1900-01-01 in microseconds: before 1900, old time zone offsets differ too.
FIRST_DAY = -141_427
FIRST_MICROS = -2_208_988_800_000_000
# 64-bit nanoseconds can hold this many microseconds before and after 1970.
INT96_MICROS_MAX = (1 << 63) // 1000


def check_calendar(footer: Mapping[bytes, bytes], file: FileSchema, metrics: Metrics, table: TableSchema) -> None:
    """Raise `Unsupported` naming a column that has, or may have, days of the Julian calendar."""
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
        lower, is_date = metrics.lower_bounds.get(field_id), isinstance(field.field_type, DateType)
        is_null = metrics.null_value_counts.get(field_id) == metrics.record_count
        is_modern = is_null or (lower is not None and _number(lower) >= (FIRST_DAY if is_date else FIRST_MICROS))
        if not (field_id in leaves and is_modern):
            raise Unsupported(
                f"column {table.schema.find_column_name(field_id)} of the file has or may have values before "
                f"{'1582-10-15' if is_date else '1900'}, stored in the Julian calendar: "
                "Iceberg readers would show wrong days",
                hint="Rewrite the file with Spark, and set spark.sql.parquet.datetimeRebaseModeInWrite and "
                "spark.sql.parquet.int96RebaseModeInWrite to CORRECTED.",
            )


def _is_legacy(footer: Mapping[bytes, bytes], key: bytes, since: tuple[int, int]) -> bool:
    version = SPARK_VERSION_NUMBERS.match(footer.get(SPARK_VERSION, b""))
    return version is not None and (key in footer or (int(version[1]), int(version[2])) < since)


def check_int96(file: FileSchema, metrics: Metrics, table: TableSchema) -> set[str]:
    """Raise `Unsupported` naming an INT96 column whose statistics exceed what PyIceberg and Polars can show.

    Returns the top-level columns, by their names in the file, whose statistics do not show the range of their values.
    """
    partitions = {field.source_id for field in table.spec.fields}
    unproven = set()
    for field_id, top_level in file.int96.items():
        column = str(table.schema.find_column_name(field_id))
        if field_id in metrics.lower_bounds:
            lower, upper = _number(metrics.lower_bounds[field_id]), _number(metrics.upper_bounds[field_id])
            check_int96_micros(lower, upper, column)
        elif field_id in metrics.beyond:
            raise _beyond_int96(column)
        elif field_id not in partitions and metrics.null_value_counts.get(field_id) != metrics.record_count:
            unproven.add(top_level)
    return unproven


def check_int96_micros(lower: int, upper: int, column: str) -> None:
    """Raise `Unsupported` when INT96 timestamps of `column` do not fit into 64-bit nanoseconds."""
    if lower < -INT96_MICROS_MAX or upper > INT96_MICROS_MAX:
        raise _beyond_int96(column)


def _beyond_int96(column: str) -> Unsupported:
    return Unsupported(
        f"column {column} of the file has INT96 timestamps before 1677 or after 2262, which PyIceberg and Polars would "
        "show as other times, without an error",
        hint="Write them with spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS, or set int96_overflow: follow "
        "for this table if neither PyIceberg nor Polars reads it.",
    )


def _number(bound: bytes) -> int:
    """Decode a bound in days or microseconds. Iceberg spec, "Binary Single-Value Serialization": little-endian."""
    return int.from_bytes(bound, "little", signed=True)
