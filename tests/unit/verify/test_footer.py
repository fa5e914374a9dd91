"""What footers say of columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import NestedField

from daemon.delta.actions import Metadata
from daemon.translate.schema import TableSchema, translate_schema
from daemon.verify.footer import ColumnRange, column_ranges

MOMENTS = [datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2024, 1, 1)]
MICROS = (-1, 1_704_067_200_000_000)
Ranges = Sequence[tuple[NestedField, ColumnRange]]
VALUES: dict[str, tuple[pa.DataType, list[Any], tuple[Any, Any] | None]] = {
    "integer": (pa.int32(), [-5, 7], (-5, 7)),
    "short": (pa.int16(), [-5, 7], (-5, 7)),
    "long": (pa.int64(), [-(1 << 63), (1 << 63) - 1], (-(1 << 63), (1 << 63) - 1)),
    "float": (pa.float32(), [float("nan"), -0.5, 2.0], (-0.5, 2.0)),
    "double": (pa.float64(), [-0.1, 1e300], (-0.1, 1e300)),
    "decimal(9,2)": (pa.decimal128(9, 2), [Decimal("-1.25"), Decimal("3.00")], (Decimal("-1.25"), Decimal("3.00"))),
    "decimal(38,0)": (pa.decimal128(38, 0), [Decimal(-1), Decimal(10**37)], (Decimal(-1), Decimal(10**37))),
    "date": (pa.date32(), [date(1969, 12, 31), date(2024, 1, 1)], (-1, 19723)),
    "timestamp_ntz": (pa.timestamp("us"), MOMENTS, MICROS),
    "timestamp": (pa.timestamp("us", "UTC"), [each.replace(tzinfo=UTC) for each in MOMENTS], MICROS),
    "string": (pa.string(), ["b", "a\U0001f600"], ("a\U0001f600", "b")),
    "boolean": (pa.bool_(), [False, True], None),
    "binary": (pa.binary(), [b"a", b"b"], None),
}


def schema_of(*kinds: Any) -> TableSchema:
    fields = [{"name": f"c{n}", "type": kind, "nullable": True, "metadata": {}} for n, kind in enumerate(kinds)]
    return translate_schema(Metadata("t", json.dumps({"type": "struct", "fields": fields}), [], {}))


def ranges(table: TableSchema, *columns: pa.Array, row_group_size: int = 10, **options: Any) -> Ranges:
    sink = pa.BufferOutputStream()
    names = [f"c{number}" for number in range(len(columns))]
    pq.write_table(pa.table(list(columns), names), sink, row_group_size=row_group_size, **options)
    footer = pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata
    return list(column_ranges(footer, table.leaves))


def named(found: Ranges) -> dict[str, ColumnRange]:
    return {field.name: each for field, each in found}


@pytest.mark.parametrize("kind", VALUES)
def test_the_ends_of_a_column(kind: str) -> None:
    """In Iceberg's internal form, over row groups, of which one may have nulls only."""
    stored, values, ends = VALUES[kind]
    found = ranges(schema_of(kind), pa.array([*values, None, None], stored), row_group_size=len(values))
    assert named(found) == {"c0": ColumnRange(2, ends)}


def test_what_a_footer_does_not_say() -> None:
    """INT96 has no ends; nulls in a struct may be its own; statistics may be missing, as for NaN alone."""
    moments = ranges(schema_of("timestamp"), pa.array(MOMENTS), use_deprecated_int96_timestamps=True)
    assert named(moments)["c0"] == ColumnRange(None, None)
    struct = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]}
    found = ranges(schema_of(struct), pa.array([{"x": 1}, None, {"x": None}]))
    assert named(found)["x"] == ColumnRange(None, (1, 1))
    numbers = pa.array([1.0, float("nan")])
    assert named(ranges(schema_of("double"), numbers, row_group_size=1))["c0"] == ColumnRange(0, (1.0, 1.0))
    bare = ranges(schema_of("long"), pa.array([1]), write_statistics=False)
    assert named(bare)["c0"] == ColumnRange(None, None)
