"""What the footer of a Parquet file says of all rows of a column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
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

from daemon.translate.name_mapping import Path
from daemon.translate.partition_values import internal_form


@dataclass(frozen=True)
class ColumnRange:
    """The nulls of a column, and its smallest and largest value; None if the footer does not say it."""

    null_count: int | None
    ends: tuple[Any, Any] | None


def column_ranges(
    footer: pq.FileMetaData, leaves: Mapping[Path, NestedField]
) -> Iterator[tuple[NestedField, ColumnRange]]:
    """Yield those of `leaves` that the file has."""
    leaf_paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    # The column `a.b` and the field `b` of a struct `a` have the same path.
    found = Counter(leaf_paths)
    places = {path: number for number, path in enumerate(leaf_paths) if found[path] == 1}
    for leaf, column in leaves.items():
        place = places.get(".".join(leaf))
        if place is not None and footer.num_row_groups:
            groups = (footer.row_group(number) for number in range(footer.num_row_groups))
            statistics = [group.column(place).statistics for group in groups]
            # Inside a struct, the nulls of the struct count as well.
            counted = len(leaf) == 1 and all(each and each.has_null_count for each in statistics)
            null_count = sum(each.null_count for each in statistics) if counted else None
            with_ends = [each for each in statistics if each and each.has_min_max]
            yield column, ColumnRange(null_count, _ends(with_ends, column.field_type))


def _ends(statistics: Sequence[pq.Statistics], field_type: IcebergType) -> tuple[Any, Any] | None:
    try:
        lows = [_internal(each.min, field_type) for each in statistics]
        highs = [_internal(each.max, field_type) for each in statistics]
    except (ValueError, OverflowError, TypeError, ArithmeticError):
        return None
    return (min(lows), max(highs)) if lows and None not in (*lows, *highs) else None


def _internal(value: Any, field_type: IcebergType) -> Any:
    """Return a statistic in Iceberg's internal form. None if it is of a type that has no bounds, or NaN."""
    internal: Any = None
    match field_type:
        case DateType() if isinstance(value, date) and not isinstance(value, datetime):
            internal = internal_form(value)
        case TimestampType() | TimestamptzType() if isinstance(value, datetime):
            internal = internal_form(value)
        case FloatType() | DoubleType() if value == value:  # noqa: PLR0124
            internal = float(value)
        case IntegerType() | LongType():
            internal = int(value)
        case DecimalType():
            internal = Decimal(value)
        case StringType() if isinstance(value, str):
            internal = value
    return internal
