"""Delta's per-file statistics -> Iceberg metrics. Delta PROTOCOL.md, "Per-file Statistics"; Iceberg spec, "Manifests".

Bounds must be safe for pruning: lower ones never above, upper ones never below any value. Timestamps are cut to
milliseconds in Delta's statistics, so the upper bound is moved up to the end of its millisecond. Columns whose bounds
are not exact have the metrics mode `counts` (see `metrics_properties`), which keeps engines from answering MIN or MAX
with them.
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

# The part of a timestamp that Delta's statistics do not carry.
MILLISECOND_REST_US = 999
# Decimal digits that every double keeps, and a context of as many as one is ever told with.
DOUBLE_DIGITS = 15
AS_DOUBLE = Context(prec=17)
# Digits before the point that a number of 64 bits has at most.
WHOLE_DIGITS_MAX = 19
# As many as a line of the log may have; those of checkpoints are held to it, too.
STATS_CHARACTERS_MAX = 16 << 20


@dataclass(frozen=True)
class Metrics:
    """A data file's metrics by Iceberg field id. `record_count` counts physical rows, deleted ones too.

    `beyond` are columns whose statistics tell values that bounds cannot, such as years of five digits.
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
    """Translate an add's `stats` JSON; anything that cannot be trusted for a column is left out for that column.

    `record_count` is the footer's. Where `numRecords` says otherwise (live rows, as some writers put there,
    trinodb/trino#30343), the null counts are not trusted. Raises `CorruptInput` when the statistics are not JSON of the
    protocol's shape.
    """
    if not stats:
        return Metrics(record_count, {}, {}, {}, {})
    if len(stats) > STATS_CHARACTERS_MAX:
        what = f"the statistics have {len(stats)} characters, at most {STATS_CHARACTERS_MAX} are read"
        raise CorruptInput(what, hint="Have Delta compute the statistics of this file again.")
    try:
        parsed = json.loads(stats, parse_float=Decimal)
        counted = parsed.get("numRecords") == record_count
        tight = parsed.get("tightBounds", True)
        minima, maxima = parsed.get("minValues") or {}, parsed.get("maxValues") or {}
        nulls = parsed.get("nullCount") or {}
    except (ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        # A number may have more digits than Python takes, or a larger exponent.
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
    # Wide bounds without deletions would be taken for exact ones by engines that answer MIN and MAX from metadata; with
    # deletions they read the file.
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
    """The values of `tree` at the leaves, nested structs being nested objects.

    By what the statistics hold, which is the first 32 columns as a rule, and not by the table's columns.
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
    """Bounds in Iceberg's single-value form, or None where the pair is of no use or not to be trusted."""
    try:
        bounds = _bounds(minimum, maximum, field_type)
        if bounds is None or bounds[0] > bounds[1]:
            return None
        low, high = (to_bytes(field_type, bound) for bound in bounds)  # type: ignore[arg-type]
    except (ValueError, ArithmeticError, TypeError, struct.error):
        # A year beyond 9999, a number of another type or too large: such a column goes without bounds.
        return None
    return low, high


def _bounds(minimum: Any, maximum: Any, field_type: IcebergType) -> tuple[Any, Any] | None:
    """Values in Iceberg's internal form, the lower one first. Raises what conversions raise."""
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
    """`number`, rounded. Raises ValueError for one such as 1e1000000, of which every digit would be written out."""
    if isinstance(number, Decimal) and number.is_finite() and number.adjusted() >= WHOLE_DIGITS_MAX:
        raise ValueError("more digits than 64 bits hold")
    return rounded(number)


def _float_bounds(low: float, high: float) -> tuple[float, float] | None:
    """Iceberg spec, "Manifests": NaN is never a bound, and zeros are signed outwards."""
    if math.isnan(low) or math.isnan(high):
        return None
    return (-0.0 if low == 0 else low), (0.0 if high == 0 else high)


def _as_float32(number: float) -> float:
    """What a file holds that is older than its column's type: of 0.7, as Delta tells a float, 0.699999988079071."""
    try:
        (found,) = struct.unpack("<f", struct.pack("<f", number))
    except OverflowError:
        return number
    return float(found)


def _decimal_bound(told: Any, field_type: DecimalType, rounding: str) -> Decimal:
    """`told`, or what lies beyond it by what a double may be off: delta-rs tells decimals as doubles.

    One of more digits than a double has is exact. Raises ArithmeticError or ValueError when the type cannot hold it.
    """
    number = Decimal(told)
    if field_type.precision <= DOUBLE_DIGITS or AS_DOUBLE.plus(number) != number:
        return exact_decimal(number, field_type)
    beyond = math.nextafter(float(number), math.inf if rounding == ROUND_CEILING else -math.inf)
    context = Context(prec=field_type.precision, rounding=rounding, traps=[InvalidOperation])
    return Decimal(beyond).quantize(Decimal((0, (1,), -field_type.scale)), context=context)


def _days(text: str) -> int:
    return (date.fromisoformat(text) - EPOCH_DAY).days


def metrics_properties(table: TableSchema) -> dict[str, str]:
    """Iceberg table properties that keep engines from computing MIN and MAX from inexact bounds.

    Inexact are cut strings, timestamps cut to milliseconds, signed zeros, NaN, of which bounds say nothing, and
    decimals that some writers tell as doubles.
    """
    return {
        f"write.metadata.metrics.column.{table.schema.find_column_name(field.field_id)}": "counts"
        for field in table.leaves.values()
        if isinstance(field.field_type, StringType | TimestampType | TimestamptzType | FloatType | DoubleType)
        or (isinstance(field.field_type, DecimalType) and field.field_type.precision > DOUBLE_DIGITS)
    }
