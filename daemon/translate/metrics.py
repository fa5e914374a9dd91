"""Delta's per-file statistics -> Iceberg's metrics and data file record.

Delta PROTOCOL.md, "Per-file Statistics"; Iceberg spec, "Manifests".

Bounds must be safe for pruning: no live value may be below its lower or above its upper bound. When deleted rows come
back, the plan takes the metrics of the new add. Delta's statistics cut timestamps to milliseconds, so the upper bound
is moved up to the end of its millisecond. Columns with inexact bounds have the metrics mode `counts` (see
`metrics_properties`), so that engines do not answer MIN or MAX from them.

Statistics that Delta on Spark ignores, such as 5.0 for a long, are not used: if they were wrong, nobody would know.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from typing import Any

from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from daemon.delta.actions import AddFile
from daemon.errors import CorruptInput
from daemon.iceberg.pyiceberg_ext.records import data_file_record
from daemon.translate.name_mapping import Path
from daemon.translate.partition_values import OTHER_YEAR, exact_decimal, in_range, parse_days, timestamp_micros, zone_of
from daemon.translate.schema import TableSchema

# The largest part of a timestamp that Delta's statistics cut off.
MILLISECOND_REST_US = 999
# A double keeps any decimal of 15 digits, and never needs more than 17 digits to be written.
DOUBLE_DIGITS = 15
AS_DOUBLE = Context(prec=17)
# A whole number, or a text: Trino writes decimals as texts, and Delta reads them.
DECIMAL = re.compile(r"-?[0-9]{1,38}(\.[0-9]{1,38})?")
# Texts for numbers that JSON lacks. Delta reads no other text as a float.
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# Delta cuts the seconds of a zone's offset. No zone has had any since January 1972 (IANA's time zone database).
OFFSETS_HAVE_SECONDS_UNTIL_US = 3 * 365 * 86_400_000_000
OFFSET_REST_US = 60_000_000
# Older versions of Delta end a greatest string that they cut with this, which emojis exceed (delta-io/delta#3430).
OLD_TIE_BREAKER = "\ufffd"
# The limit for a line of the log. Statistics in checkpoints have the same limit.
STATS_CHARACTERS_MAX = 16 << 20
_STATS = json.JSONDecoder(parse_float=Decimal)


@dataclass(frozen=True)
class Metrics:
    """A data file's metrics by Iceberg field id. `record_count` counts physical rows, deleted ones too."""

    record_count: int
    value_counts: dict[int, int] = field(default_factory=dict)
    null_value_counts: dict[int, int] = field(default_factory=dict)
    lower_bounds: dict[int, bytes] = field(default_factory=dict)
    upper_bounds: dict[int, bytes] = field(default_factory=dict)
    beyond: frozenset[int] = frozenset()  # columns of values that bounds cannot express, such as years of five digits


def parse_stats(stats: str | None, leaves: Mapping[Path, NestedField], record_count: int, *, has_dv: bool) -> Metrics:
    """Translate an add's `stats` JSON. A column's metrics are left out if they cannot be trusted.

    `record_count` is the footer's. If `numRecords` differs, the null counts are not trusted: some writers store the
    number of live rows there (trinodb/trino#30343). Delta ignores statistics that are not JSON objects.
    """
    try:
        parsed = _STATS.decode(stats) if stats and len(stats) <= STATS_CHARACTERS_MAX else {}
    except (ValueError, ArithmeticError, RecursionError):
        # ArithmeticError: a number has more digits or a larger exponent than Python accepts.
        parsed = {}
    parsed = parsed if isinstance(parsed, dict) else {}
    tight = parsed.get("tightBounds") in (None, True)
    counted = _is_whole(parsed.get("numRecords")) and parsed["numRecords"] == record_count
    null_counts = {
        leaves[path].field_id: count
        for path, count in _walk(parsed.get("nullCount"), leaves)
        if counted and _is_whole(count) and (0 <= count <= record_count if tight else count in (0, record_count))
    }
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    beyond: set[int] = set()
    upper_values = dict(_walk(parsed.get("maxValues"), leaves))
    # Some engines answer MIN and MAX from metadata, and would take wide bounds for exact ones. If the file has
    # deletions, these engines read the file, so wide bounds do no harm.
    for path, minimum in _walk(parsed.get("minValues"), leaves) if tight or has_dv else ():
        column, maximum = leaves[path], upper_values.get(path)
        if maximum is None:
            continue
        bounds = _encoded_bounds(minimum, maximum, column.field_type)
        if bounds:
            lower[column.field_id], upper[column.field_id] = bounds
        elif any(isinstance(each, str) and OTHER_YEAR.match(each) for each in (minimum, maximum)):
            beyond.add(column.field_id)
    return Metrics(
        record_count=record_count,
        value_counts={field_id: record_count for field_id in null_counts},
        null_value_counts=null_counts,
        lower_bounds=lower,
        upper_bounds=upper,
        beyond=frozenset(beyond),
    )


def _walk(tree: Any, leaves: Mapping[Path, NestedField]) -> Iterator[tuple[Path, Any]]:
    """Yield the values of `tree` at the leaves. Usually only the first 32 columns of a table have statistics."""
    objects: list[tuple[Path, Any]] = [((), tree)] if isinstance(tree, dict) else []
    while objects:
        parent, values = objects.pop()
        for name, value in values.items():
            path = (*parent, name)
            if isinstance(value, dict):
                objects.append((path, value))
            elif value is not None and path in leaves:
                yield path, value


def _encoded_bounds(minimum: Any, maximum: Any, field_type: IcebergType) -> tuple[bytes, bytes] | None:
    """Return the bounds in Iceberg's single-value form, or None if they cannot be expressed or trusted."""
    bounds = find_bounds(minimum, maximum, field_type)
    if bounds is None:
        return None
    try:
        low, high = (to_bytes(field_type, bound) for bound in bounds)  # type: ignore[arg-type]
    except (ValueError, ArithmeticError, struct.error):
        # Half of a UTF-16 pair: the column gets no bounds.
        return None
    return low, high


def find_bounds(minimum: Any, maximum: Any, field_type: IcebergType) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of a column's live rows, or values beyond, in Iceberg's internal form.

    `minimum` and `maximum` are those of Delta's statistics. None if these cannot be trusted.
    """
    try:
        bounds = _bounds(minimum, maximum, field_type)
    except (ValueError, ArithmeticError, struct.error):
        # A month 13, or a number that is too large.
        return None
    return None if bounds is None or bounds[0] > bounds[1] else bounds


def _bounds(minimum: Any, maximum: Any, field_type: IcebergType) -> tuple[Any, Any] | None:
    """Return lower and upper bound in Iceberg's internal form. Exceptions of the conversions pass through."""
    bounds: tuple[Any, Any] | None = None
    ends = minimum, maximum
    match field_type:
        case IntegerType() | LongType() if all(map(_is_whole, ends)):
            bounds = in_range(minimum, field_type), in_range(maximum, field_type)
        case FloatType() | DoubleType():
            low, high = map(_float, ends)
            if isinstance(field_type, DoubleType):
                low, high = min(low, as_float32(low)), max(high, as_float32(high))
            # Iceberg spec, "Manifests": no NaN, -0.0 as lower and 0.0 as upper bound.
            if not (math.isnan(low) or math.isnan(high)):
                bounds = (low or -0.0), (high or 0.0)
        case DecimalType() if all(isinstance(end, Decimal) or DECIMAL.fullmatch(str(end)) for end in ends):
            bounds = (
                _decimal_bound(minimum, field_type, ROUND_FLOOR),
                _decimal_bound(maximum, field_type, ROUND_CEILING),
            )
        case _ if not all(isinstance(end, str) for end in ends):
            pass
        case DateType():
            bounds = parse_days(minimum), parse_days(maximum)
        case TimestampType() | TimestamptzType():
            bounds = _moments(minimum, field_type)[0], _moments(maximum, field_type)[1]
        case StringType() if not maximum.endswith(OLD_TIE_BREAKER):
            bounds = minimum, maximum
    return bounds


def _is_whole(value: Any) -> bool:
    """Return whether a value is a whole number, as Delta reads one: without a fraction or an exponent."""
    return type(value) is int


def _float(value: Any) -> float:
    value = NOT_FINITE.get(value) if isinstance(value, str) else value
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError("Delta does not read this as a number")
    return float(value)


def as_float32(number: float) -> float:
    """Return what a file has from when the column was a float: 0.699999988079071, where the statistics have 0.7."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return number


def _decimal_bound(stated: Any, field_type: DecimalType, rounding: str) -> Decimal:
    """Return a bound, moved outwards if it can be off by a double's rounding: delta-rs writes decimals as doubles.

    A value of at most 15 digits is exact, or of more than a double has. Raises ArithmeticError or ValueError when the
    type cannot hold the bound.
    """
    number = Decimal(stated)
    if field_type.precision <= DOUBLE_DIGITS or AS_DOUBLE.plus(number) != number:
        return exact_decimal(number, field_type)
    beyond = math.nextafter(float(number), math.inf if rounding == ROUND_CEILING else -math.inf)
    context = Context(prec=field_type.precision, rounding=rounding, traps=[InvalidOperation])
    return Decimal(beyond).quantize(Decimal((0, (1,), -field_type.scale)), context=context)


def _moments(text: str, field_type: TimestampType | TimestamptzType) -> tuple[int, int]:
    """Return the first and the last moment that a statistic may stand for. Raises ValueError if Delta ignores it."""
    micros, zone = timestamp_micros(text), zone_of(text)
    if zone and isinstance(field_type, TimestampType):
        raise ValueError(f"{text!r} has a zone")
    rest = OFFSET_REST_US if zone not in ("", "Z") and micros < OFFSETS_HAVE_SECONDS_UNTIL_US else 0
    return micros - rest, micros + MILLISECOND_REST_US + rest


def metrics_of(add: AddFile, table: TableSchema, record_count: int) -> Metrics:
    """Translate the metrics of an add. Raises `CorruptInput` when more than `record_count` rows are deleted."""
    if add.deletion_vector and add.deletion_vector.cardinality > record_count:
        raise CorruptInput(
            f"the deletion vector has {add.deletion_vector.cardinality} positions, the file only {record_count} rows",
            path=add.path,
            hint="The log and this file do not belong together: restore the Delta table.",
        )
    return parse_stats(add.stats, table.leaves, record_count, has_dv=add.deletion_vector is not None)


def data_file_of(
    add: AddFile, metrics: Metrics, table: TableSchema, spec_id: int, partition: tuple[Any, ...]
) -> DataFile:
    """Make the record with which Iceberg registers the data file in place."""
    return data_file_record(
        partition,
        spec_id=spec_id,
        content=DataFileContent.DATA,
        file_path=add.path,
        file_format=FileFormat.PARQUET,
        record_count=metrics.record_count,
        file_size_in_bytes=add.size,
        value_counts=metrics.value_counts or None,
        null_value_counts=metrics.null_value_counts or None,
        lower_bounds=metrics.lower_bounds or None,
        upper_bounds=metrics.upper_bounds or None,
        first_row_id=add.first_row_id if table.has_row_ids else None,
    )


def metrics_properties(table: TableSchema) -> dict[str, str]:
    """Iceberg table properties that keep engines from computing MIN and MAX from inexact bounds.

    These are strings and timestamps, which Delta cuts; floats, because of signed zeros and NaN; and decimals, which
    some writers store as doubles.
    """
    return {
        f"write.metadata.metrics.column.{table.schema.find_column_name(field.field_id)}": "counts"
        for field in table.leaves.values()
        if isinstance(field.field_type, StringType | TimestampType | TimestamptzType | FloatType | DoubleType)
        or (isinstance(field.field_type, DecimalType) and field.field_type.precision > DOUBLE_DIGITS)
    }
