"""Which data files may have rows that fulfil a predicate, by what the log says of them. Pure.

Delta PROTOCOL.md, "Per-file Statistics". A file is skipped only if the predicate is true for none of its rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyiceberg.types import DateType, DecimalType, IntegerType, LongType, StringType, TimestampType, TimestamptzType

from daemon.delta.actions import AddFile
from daemon.errors import errors_at
from daemon.predicate.tree import (
    EXCHANGED,
    NEGATED,
    Always,
    Among,
    And,
    Comparison,
    Field,
    IsNull,
    IsTrue,
    Like,
    Not,
    Or,
    Predicate,
    Value,
    fields_in,
)
from daemon.translate.metrics import find_bounds
from daemon.translate.partition_values import parse_partition_value

# Types whose least and greatest value hold for all rows. Some writers leave NaN out of those of floats.
ORDERED = (IntegerType, LongType, DecimalType, StringType, DateType, TimestampType, TimestamptzType)


@dataclass(frozen=True)
class Facts:
    """What is known of a field's values in a file; None is unknown."""

    bounds: tuple[Any, Any] | None = None  # both inclusive
    has_null: bool | None = None
    is_all_null: bool | None = None


UNKNOWN = Facts()


def partition_values(predicate: Predicate, add: AddFile, time_zone: str) -> dict[Field, Value | None]:
    """Return a file's values of the partition columns in a predicate. Raises as `parse_partition_value`."""
    with errors_at(path=add.path):
        return {
            field: parse_partition_value(add.partition_values.get(field.path[0]), field.kind, field.name, time_zone)
            if field.kind
            else add.partition_values.get(field.path[0])
            for field in fields_in(predicate)
            if field.is_partition
        }


def may_match(predicate: Predicate, add: AddFile, partition: Mapping[Field, Value | None]) -> bool:
    """Return whether a file may have a row for which the predicate is true."""
    stats = read_stats(add)
    facts = {
        field: _of_partition(field, partition[field]) if field.is_partition else _of_stats(field, stats, add)
        for field in fields_in(predicate)
    }
    return _may_be(predicate, facts, negated=False)


def read_stats(add: AddFile) -> dict[str, Any]:
    """Return a file's statistics, with fractions as they are written. What is no JSON object counts as none."""
    try:
        found = json.loads(add.stats, parse_float=Decimal) if add.stats else {}
        if add.stats and "\\ud" in add.stats.lower():
            # Half of a pair in UTF-16 is no text. Its error is a ValueError.
            json.dumps(found, ensure_ascii=False, default=str).encode()
    except (ValueError, ArithmeticError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _of_partition(field: Field, value: Value | None) -> Facts:
    # NaN is equal to itself for Spark, and greater than other numbers.
    is_bounded = value is not None and isinstance(field.kind, ORDERED)
    return Facts((value, value) if is_bounded else None, value is None, value is None)


def _of_stats(field: Field, stats: Mapping[str, Any], add: AddFile) -> Facts:
    rows, nulls = stats.get("numRecords"), _at(stats.get("nullCount"), field)
    is_counted = type(rows) is int and type(nulls) is int and rows > 0
    least, most = (_at(stats.get(name), field) for name in ("minValues", "maxValues"))
    is_bounded = isinstance(field.kind, ORDERED) and least is not None and most is not None
    return Facts(
        find_bounds(least, most, field.kind) if field.kind and is_bounded else None,
        # With wide bounds, other counts carry no information.
        has_null=nulls != 0 if is_counted else None,
        # Beside a vector, some writers count live rows, and nulls of all (trinodb/trino#30343).
        is_all_null=True if is_counted and nulls == rows and not add.deletion_vector else None,
    )


def _at(values: Any, field: Field) -> Any:
    for name in field.path:
        values = values.get(name) if isinstance(values, dict) else None
    return None if isinstance(values, dict) else values


def _may_be(predicate: Predicate, facts: Mapping[Field, Facts], *, negated: bool) -> bool:
    """Return whether a predicate, or with `negated` its negation, may be true for a row."""
    match predicate:
        case And(items) | Or(items):
            each = (_may_be(item, facts, negated=negated) for item in items)
            found = all(each) if isinstance(predicate, And) != negated else any(each)
        case Not(item):
            found = _may_be(item, facts, negated=not negated)
        case Always(value):
            found = value != negated
        case IsNull(field):
            found = not facts[field].is_all_null if negated else facts[field].has_null is not False
        case Comparison(sign, field, other):
            found = _may_compare(NEGATED[sign] if negated else sign, facts[field], other, facts)
        case Among(field, values) if not negated:
            found = any(_may_compare("=", facts[field], value, facts) for value in values)
        case Among(field) | Like(field) | IsTrue(field):
            found = not facts[field].is_all_null
    return found


def _may_compare(sign: str, left: Facts, other: Field | Value, facts: Mapping[Field, Facts]) -> bool:
    right = facts[other] if isinstance(other, Field) else Facts((other, other))
    if left.is_all_null or right.is_all_null:
        return False
    if left.bounds is None or right.bounds is None:
        return True
    if sign in (">", ">="):
        left, right, sign = right, left, EXCHANGED[sign]
    assert left.bounds is not None and right.bounds is not None, "they are only exchanged"
    (least, most), (right_least, right_most) = left.bounds, right.bounds
    match sign:
        case "=":
            return bool(least <= right_most and right_least <= most)
        case "<>":
            return not (least == most == right_least == right_most)
        case "<":
            return bool(least < right_most)
    return bool(least <= right_most)
