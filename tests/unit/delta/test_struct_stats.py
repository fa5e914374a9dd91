"""Statistics as a struct become the JSON that a commit would have."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa

from daemon.delta.checkpoint import encode_stats

VALUES = pa.struct(
    [
        ("i", pa.int32()),
        ("x", pa.float64()),
        ("d", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("zoned", pa.timestamp("ns", "Europe/Berlin")),
        ("plain", pa.timestamp("us")),
        ("inner", pa.struct([("s", pa.string()), ("day", pa.date32())])),
    ]
)
STATS = pa.struct([("numRecords", pa.int64()), ("minValues", VALUES), ("tightBounds", pa.bool_())])


def test_each_type() -> None:
    """Numbers stay numbers, moments are spelled with their zone, nulls are left out."""
    values = {
        "i": 1,
        "x": 0.5,
        "d": Decimal("1.20"),
        "day": date(1969, 1, 2),
        "zoned": datetime(2020, 1, 2, 3, 4, 5, 678_000, UTC),
        "plain": datetime(1, 1, 2, 3, 4, 5, 678_000),
        "inner": {"s": 'é"', "day": date(9999, 12, 31)},
    }
    rows = [{"numRecords": 3, "minValues": values}, None, {"minValues": {"inner": {}}, "tightBounds": False}]
    found = encode_stats(pa.array(rows, STATS)).to_pylist()
    assert json.loads(found[0], parse_float=Decimal) == {
        "numRecords": 3,
        "minValues": {
            **values,
            "x": Decimal("0.5"),
            "day": "1969-01-02",
            "zoned": "2020-01-02 03:04:05.678000Z",
            "plain": "0001-01-02 03:04:05.678000",
            "inner": {"s": 'é"', "day": "9999-12-31"},
        },
    }
    assert found[1] is None
    assert json.loads(found[2]) == {"minValues": {"inner": {}}, "tightBounds": False}


def test_what_python_has_not() -> None:
    """Other years are no dates to any reader, whatever Arrow would spell; NaN and infinities are texts."""
    days = pa.array([10**7, -(10**7), 24_000_000, None], pa.int32()).cast(pa.date32())
    moments = pa.array([10**18, -(10**18), 2_200_000_000_000_000_000, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
    numbers = pa.array([float("nan"), float("inf"), float("-inf"), None])
    stats = pa.StructArray.from_arrays([days, moments, numbers], ["day", "at", "x"])
    found = [json.loads(text) for text in encode_stats(stats).to_pylist()]
    assert [row.get("x") for row in found] == ["NaN", "Infinity", "-Infinity", None]
    assert {row.get("day") for row in found} == {row.get("at") for row in found} == {"+10000-01-01", None}
