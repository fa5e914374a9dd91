"""Turns statistics that a checkpoint has only as a struct into JSON, the form that commits have.

Delta PROTOCOL.md, "Checkpoints" (`stats_parsed`), "Per-file Statistics".
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

# Arrow formats years outside this range wrongly, and Python and Iceberg's bounds cannot hold them.
FIRST_DAY, LAST_DAY = date(1, 1, 1), date(9999, 12, 31)
# Written for any date outside the range, in Delta's form for such years. Readers of statistics ignore it.
OTHER_YEARS = "+10000-01-01"

_encoder = msgspec.json.Encoder(decimal_format="number")


def encode_stats(stats: pa.StructArray) -> pa.Array:
    """Encode each row as JSON; null statistics stay null. Null fields are omitted, as Delta does."""
    rows = _with_texts(stats).to_pylist()
    return pa.array([None if row is None else _encoder.encode(_as_json(row)).decode() for row in rows], pa.string())


def _with_texts(values: pa.Array) -> pa.Array:
    """Turn dates and timestamps at any depth into texts, because Python cannot represent all of them."""
    kind = values.type
    if pa.types.is_struct(kind):
        fields = [field.name for field in kind]
        arrays = [_with_texts(pc.struct_field(values, [number])) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(arrays, fields, mask=pc.is_null(values)) if arrays else values
    if pa.types.is_date32(kind):
        return _spelled(values, pa.scalar(FIRST_DAY), pa.scalar(LAST_DAY))
    if pa.types.is_timestamp(kind):
        zone = UTC if kind.tz else None
        first, last = datetime(1, 1, 1, tzinfo=zone), datetime(9999, 12, 31, 23, 59, 59, tzinfo=zone)
        micros = values.cast(pa.timestamp("us", zone and "UTC"), safe=False)
        return _spelled(micros, pa.scalar(first, micros.type), pa.scalar(last, micros.type))
    return values


def _spelled(values: pa.Array, first: pa.Scalar, last: pa.Scalar) -> pa.Array:
    known = pc.and_(pc.greater_equal(values, first), pc.less_equal(values, last))
    return pc.if_else(known, values.cast(pa.string()), OTHER_YEARS)


def _as_json(value: Any) -> Any:
    """Remove nulls, and turn numbers that JSON cannot express into texts."""
    if isinstance(value, dict):
        return {name: _as_json(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
