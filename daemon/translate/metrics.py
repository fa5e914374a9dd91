"""Delta's per-file statistics -> Iceberg metrics. Delta PROTOCOL.md, "Per-file Statistics"; Iceberg spec, "Manifests".

Bounds must be safe for pruning: no value may be below its lower or above its upper bound. Delta's statistics cut
timestamps to milliseconds, so the upper bound is moved up to the end of its millisecond. Columns with inexact bounds
have the metrics mode `counts` (see `metrics_properties`), so that engines do not answer MIN or MAX from them.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from typing import Any

from pyiceberg.conversions import to_bytes
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

from daemon.errors import CorruptInput
from daemon.translate.partition_values import EPOCH_DAY, exact_decimal, in_range, timestamp_micros
from daemon.translate.schema import TableSchema

# The largest part of a timestamp that Delta's statistics cut off.
MILLISECOND_REST_US = 999
# A double keeps any decimal of 15 digits, and never needs more than 17 digits to be written.
DOUBLE_DIGITS = 15
AS_DOUBLE = Context(prec=17)
# A 64-bit integer has at most this many digits.
WHOLE_DIGITS_MAX = 19
# The limit for a line of the log. Statistics in checkpoints have the same limit.
STATS_CHARACTERS_MAX = 16 << 20
_STATS = json.JSONDecoder(parse_float=Decimal)


@dataclass(frozen=True)
class Metrics:
    """A data file's metrics by Iceberg field id. `record_count` counts physical rows, deleted ones too.

    `beyond` are columns whose statistics have values that bounds cannot express, such as years of five digits.
    """

    record_count: int
    value_counts: dict[int, int]
    null_value_counts: dict[int, int]
    lower_bounds: dict[int, bytes]
    upper_bounds: dict[int, bytes]
    beyond: frozenset[int] = frozenset()


def parse_stats(
    stats: str | None, leaves: Mapping[tuple[str, ...], NestedField], record_count: int, *, has_dv: bool
) -> Metrics:
    """Translate an add's `stats` JSON. A column's metrics are left out if they cannot be trusted.

    `record_count` is the footer's. If `numRecords` differs, the null counts are not trusted: some writers store the
    number of live rows there (trinodb/trino#30343). Raises `CorruptInput` when the statistics are not JSON of the
    protocol's shape.
    """
    if not stats:
        return Metrics(record_count, {}, {}, {}, {})
    if len(stats) > STATS_CHARACTERS_MAX:
        what = f"the statistics have {len(stats)} characters, but dvsync reads at most {STATS_CHARACTERS_MAX}"
        raise CorruptInput(what, hint="Have Delta compute the statistics of this file again.")
    try:
        parsed = _STATS.decode(stats)
        if parsed is None:  # JSON's null, which Delta on Spark takes for no statistics.
            return parse_stats(None, leaves, record_count, has_dv=has_dv)
        counted = parsed.get("numRecords") == record_count
        tight = parsed.get("tightBounds", True)
        minima, maxima = parsed.get("minValues") or {}, parsed.get("maxValues") or {}
        nulls = parsed.get("nullCount") or {}
    except (ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        # ArithmeticError: a number has more digits or a larger exponent than Python accepts.
        raise CorruptInput(
            f"the statistics are not JSON: {error}", hint="Have Delta compute the statistics of this file again."
        ) from error
    null_counts = {
        leaves[path].field_id: count
        for path, count in _walk(nulls, leaves)
        if counted and type(count) is int and (0 <= count <= record_count if tight else count in (0, record_count))
    }
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    beyond: set[int] = set()
    upper_values = dict(_walk(maxima, leaves))
    # Some engines answer MIN and MAX from metadata, and would take wide bounds for exact ones. If the file has
    # deletions, these engines read the file, so wide bounds do no harm.
    for path, minimum in _walk(minima, leaves) if tight or has_dv else ():
        field, maximum = leaves[path], upper_values.get(path)
        if maximum is None or minimum is None:
            continue
        bounds = _encoded_bounds(minimum, maximum, field.field_type)
        if bounds is None:
            beyond.add(field.field_id)
        else:
            lower[field.field_id], upper[field.field_id] = bounds
    return Metrics(
        record_count=record_count,
        value_counts={field_id: record_count for field_id in null_counts},
        null_value_counts=null_counts,
        lower_bounds=lower,
        upper_bounds=upper,
        beyond=frozenset(beyond),
    )


def _walk(tree: Any, leaves: Mapping[tuple[str, ...], NestedField]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values of `tree` at the leaves. Nested structs are nested objects.

    Walks over the statistics, not over the table's columns: usually only the first 32 columns have statistics.
    """
    objects: list[tuple[tuple[str, ...], Any]] = [((), tree)] if isinstance(tree, dict) else []
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
    try:
        bounds = _bounds(minimum, maximum, field_type)
        if bounds is None or bounds[0] > bounds[1]:
            return None
        low, high = (to_bytes(field_type, bound) for bound in bounds)  # type: ignore[arg-type]
    except (ValueError, ArithmeticError, TypeError, struct.error):
        # A year after 9999, or a number of another type or too large: the column gets no bounds.
        return None
    return low, high


def _bounds(minimum: Any, maximum: Any, field_type: IcebergType) -> tuple[Any, Any] | None:
    """Return lower and upper bound in Iceberg's internal form. Exceptions of the conversions pass through."""
    bounds: tuple[Any, Any] | None = None
    match field_type:
        case IntegerType() | LongType():
            whole = _whole(minimum, math.floor), _whole(maximum, math.ceil)
            bounds = in_range(whole[0], field_type), in_range(whole[1], field_type)
        case FloatType():
            bounds = _float_bounds(float(minimum), float(maximum))
        case DoubleType():
            low, high = float(minimum), float(maximum)
            bounds = _float_bounds(min(low, _as_float32(low)), max(high, _as_float32(high)))
        case DecimalType():
            bounds = (
                _decimal_bound(minimum, field_type, ROUND_FLOOR),
                _decimal_bound(maximum, field_type, ROUND_CEILING),
            )
        case DateType():
            bounds = _days(minimum), _days(maximum)
        case TimestampType() | TimestamptzType():
            bounds = timestamp_micros(minimum), timestamp_micros(maximum) + MILLISECOND_REST_US
        case StringType() if isinstance(minimum, str) and isinstance(maximum, str):
            bounds = minimum, maximum
    return bounds


def _whole(number: Any, rounded: Callable[[Any], int]) -> int:
    """Round `number`. Raises ValueError for numbers such as 1e1000000, whose rounding would make a million digits."""
    if isinstance(number, Decimal) and number.is_finite() and number.adjusted() >= WHOLE_DIGITS_MAX:
        raise ValueError("more digits than 64 bits hold")
    return rounded(number)


def _float_bounds(low: float, high: float) -> tuple[float, float] | None:
    """Return the bounds by the rules of the Iceberg spec, "Manifests": no NaN, -0.0 as lower and 0.0 as upper bound."""
    if math.isnan(low) or math.isnan(high):
        return None
    return (-0.0 if low == 0 else low), (0.0 if high == 0 else high)


def _as_float32(number: float) -> float:
    """Return the value in a file that was written when the column was a float.

    For example, Delta's statistics have 0.7, but the file has 0.699999988079071.
    """
    try:
        (found,) = struct.unpack("<f", struct.pack("<f", number))
    except OverflowError:
        return number
    return float(found)


def _decimal_bound(stated: Any, field_type: DecimalType, rounding: str) -> Decimal:
    """Return a safe bound. delta-rs writes decimals as doubles, so `stated` can be off by a double's rounding.

    The bound is then moved outwards by that much. A value with more digits than a double has is exact, and so is one
    of at most 15 digits. Raises ArithmeticError or ValueError when the type cannot hold the bound.
    """
    number = Decimal(stated)
    if field_type.precision <= DOUBLE_DIGITS or AS_DOUBLE.plus(number) != number:
        return exact_decimal(number, field_type)
    beyond = math.nextafter(float(number), math.inf if rounding == ROUND_CEILING else -math.inf)
    context = Context(prec=field_type.precision, rounding=rounding, traps=[InvalidOperation])
    return Decimal(beyond).quantize(Decimal((0, (1,), -field_type.scale)), context=context)


def _days(text: str) -> int:
    return (date.fromisoformat(text) - EPOCH_DAY).days


def metrics_properties(table: TableSchema) -> dict[str, str]:
    """Iceberg table properties that keep engines from computing MIN and MAX from inexact bounds.

    Bounds are inexact for strings and timestamps, which Delta cuts; for floats, because of signed zeros and of NaN,
    which bounds ignore; and for decimals, which some writers store as doubles.
    """
    return {
        f"write.metadata.metrics.column.{table.schema.find_column_name(field.field_id)}": "counts"
        for field in table.leaves.values()
        if isinstance(field.field_type, StringType | TimestampType | TimestamptzType | FloatType | DoubleType)
        or (isinstance(field.field_type, DecimalType) and field.field_type.precision > DOUBLE_DIGITS)
    }
