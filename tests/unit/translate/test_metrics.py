"""Metrics: bounds that hold every value, counts that are exact, and nothing from statistics that make no sense."""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.types import (
    BinaryType,
    BooleanType,
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

from daemon.delta.actions import AddFile, Metadata
from daemon.errors import CorruptInput
from daemon.translate.metrics import Metrics, data_file_of, metrics_of, metrics_properties, parse_stats
from daemon.translate.schema import translate_schema
from state import DeletionVectorDescriptor

ID = 7
ROWS = 3
# Delta, StatisticsCollection.scala: strings are cut to this length, and an upper one ends with a greatest character.
STRING_PREFIX = 32
GREATEST_CHARACTER = "\U0010ffff"


def metrics(field_type: IcebergType, minimum: Any, maximum: Any, **more: Any) -> Metrics:
    """What becomes of the statistics of one column."""
    stats = {"numRecords": 3, "minValues": {"c": minimum}, "maxValues": {"c": maximum}, **more}
    has_dv = more.get("tightBounds") is False
    return parse_stats(json.dumps(stats), {("c",): NestedField(ID, "c", field_type)}, ROWS, has_dv=has_dv)


def decoded(field_type: IcebergType, value: bytes) -> Any:
    """Iceberg spec, "Binary single-value serialization", written down once more."""
    match field_type:
        case StringType():
            return value.decode()
        case DecimalType():
            return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-field_type.scale, Context(prec=38))
        case FloatType():
            return struct.unpack("<f", value)[0]
        case DoubleType():
            return struct.unpack("<d", value)[0]
        case IntegerType() | DateType():
            return struct.unpack("<i", value)[0]
    return struct.unpack("<q", value)[0]


def bounds(field_type: IcebergType, minimum: Any, maximum: Any) -> tuple[Any, Any] | None:
    found = metrics(field_type, minimum, maximum)
    assert set(found.lower_bounds) == set(found.upper_bounds)
    if not found.lower_bounds:
        return None
    return decoded(field_type, found.lower_bounds[ID]), decoded(field_type, found.upper_bounds[ID])


# --- bounds hold every value, whatever Delta cut off ---

_some = {"min_size": 1, "max_size": 5}


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), **_some))
def test_bounds_of_whole_numbers(values: list[int]) -> None:
    """Exact: the least and the greatest value."""
    assert bounds(LongType(), min(values), max(values)) == (min(values), max(values))


@pytest.mark.parametrize(("field_type", "width"), [(FloatType(), 32), (DoubleType(), 64)], ids=str)
@given(data=st.data())
def test_bounds_of_floats(field_type: IcebergType, width: int, data: st.DataObject) -> None:
    """As wide as the values and hardly wider; zeros are signed outwards; NaN anywhere means no bounds.

    A double column may have been one of floats, whose statistics are told with a float's digits.
    """
    values = data.draw(st.lists(st.floats(width=width), **_some))
    # Spark takes NaN for the greatest value, and spells what JSON lacks as a string.
    has_nan = any(math.isnan(value) for value in values)
    least = min((value for value in values if not math.isnan(value)), default=math.nan)
    greatest = math.nan if has_nan else max(values)
    found = bounds(field_type, _spelled(least, width), _spelled(greatest, width))
    if has_nan:
        assert found is None
    else:
        assert found is not None
        floats = _float32(least), _float32(greatest)
        assert found == (
            min(least, floats[0] if math.isfinite(floats[0]) else least),
            max(greatest, floats[1] if math.isfinite(floats[1]) else greatest),
        )
        assert all(math.copysign(1, bound) == sign for bound, sign in zip(found, (-1, 1), strict=True) if bound == 0)


def _spelled(value: float, width: int) -> float | str:
    if math.isnan(value) or math.isinf(value):
        return str(value).replace("inf", "Infinity").replace("nan", "NaN")
    # The shortest number that reads back as this float.
    if width == 32:
        return next(short for digits in range(1, 18) if _float32(short := float(f"{value:.{digits}g}")) == value)
    return value


def _float32(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.inf


@given(st.lists(st.floats(width=32, allow_nan=False), **_some))
@example([0.699999988079071])
def test_bounds_of_floats_in_a_column_of_doubles(values: list[float]) -> None:
    """A file from before the column was widened holds floats: what 0.7 stands for is less than 0.7."""
    found = bounds(DoubleType(), _spelled(min(values), 32), _spelled(max(values), 32))
    assert found is not None
    assert found[0] <= min(values) <= max(values) <= found[1]


@pytest.mark.parametrize("as_double", [False, True], ids=["exact", "as doubles"])
@given(values=st.lists(st.decimals(-(10**19), 10**19, places=18), **_some))
@example(values=[Decimal("0.123456789012345678")])
@example(values=[Decimal("0.7") + Decimal("1e-18")])
def test_bounds_of_decimals(values: list[Decimal], as_double: bool) -> None:
    """Exact where all digits are told; where a double was told, still on the right side of every value."""
    least, greatest = (repr(float(end)) if as_double else f"{end:f}" for end in (min(values), max(values)))
    stats = f'{{"numRecords": 3, "minValues": {{"c": {least}}}, "maxValues": {{"c": {greatest}}}}}'
    field_type = DecimalType(38, 18)
    found = parse_stats(stats, {("c",): NestedField(ID, "c", field_type)}, ROWS, has_dv=False)
    low, high = (decoded(field_type, each[ID]) for each in (found.lower_bounds, found.upper_bounds))
    assert low <= min(values) <= max(values) <= high
    assert min(values) - low <= abs(min(values)) * Decimal("1e-15") + Decimal("2e-18")
    assert high - max(values) <= abs(max(values)) * Decimal("1e-15") + Decimal("2e-18")
    if not as_double and len(max(values).normalize().as_tuple().digits) > 17:
        assert found.upper_bounds[ID] == _decimal_bytes(max(values), 18)


def test_bounds_of_short_decimals_are_exact() -> None:
    """A double keeps 15 digits: engines may answer MIN and MAX with these."""
    ends = Decimal("-1.25"), Decimal("9999999999999.99")
    assert bounds(DecimalType(15, 2), -1.25, 9_999_999_999_999.99) == ends
    # As Trino writes them.
    assert bounds(DecimalType(15, 2), "-1.25", "9999999999999.99") == ends
    assert bounds(DecimalType(15, 2), "-1.250", "7") == (Decimal("-1.25"), Decimal("7.00"))


def _decimal_bytes(value: Decimal, scale: int) -> bytes:
    """Iceberg spec: the unscaled value in two's complement, big-endian, in as few bytes as hold it."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits))) * 10 ** (exponent + scale) * (-1 if sign else 1)
    size = next(size for size in range(1, 17) if -(1 << 8 * size - 1) <= unscaled < 1 << 8 * size - 1)
    return unscaled.to_bytes(size, "big", signed=True)


@given(st.lists(st.dates(), **_some))
def test_bounds_of_dates(values: list[date]) -> None:
    """Days since 1970, exact."""
    days = [(value - date(1970, 1, 1)).days for value in values]
    assert bounds(DateType(), min(values).isoformat(), max(values).isoformat()) == (min(days), max(days))


@pytest.mark.parametrize("zone", [UTC, None], ids=["timestamp", "timestamp_ntz"])
@given(values=st.lists(st.datetimes(), **_some))
@example(values=[datetime(1969, 12, 31, 23, 59, 59, 999_999)])
@example(values=[datetime(9999, 12, 31, 23, 59, 59, 999_999)])
def test_bounds_of_timestamps(zone: Any, values: list[datetime]) -> None:
    """Delta's statistics are cut to milliseconds: the upper bound is still not below any value, nor far above."""
    field_type = TimestamptzType() if zone else TimestampType()
    spelled = [value.isoformat(timespec="milliseconds") + ("Z" if zone else "") for value in (min(values), max(values))]
    found = bounds(field_type, *spelled)
    assert found is not None
    micros = [(value - datetime(1970, 1, 1)) // timedelta(microseconds=1) for value in values]
    assert min(micros) - 1000 < found[0] <= min(micros)
    assert max(micros) <= found[1] < max(micros) + 1000


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=40), **_some))
def test_bounds_of_strings(values: list[str]) -> None:
    """Cut as Delta cuts them, the bounds still hold every value in the order of UTF-8."""
    least, greatest = min(values, key=str.encode), max(values, key=str.encode)
    upper = greatest if len(greatest) <= STRING_PREFIX else greatest[:STRING_PREFIX] + GREATEST_CHARACTER
    found = bounds(StringType(), least[:STRING_PREFIX], upper)
    assert found is not None
    assert all(found[0].encode() <= value.encode() <= found[1].encode() for value in values)


def test_the_upper_bound_of_a_timestamp_in_bytes() -> None:
    """One millisecond as delta#7444 has it: the whole of it lies within the bounds."""
    found = metrics(TimestamptzType(), "1970-01-01T00:00:00.001Z", "1970-01-01T00:00:00.001Z")
    assert found.lower_bounds == {ID: (1000).to_bytes(8, "little")}
    assert found.upper_bounds == {ID: (1999).to_bytes(8, "little")}
    since = metrics(TimestamptzType(), "1980-01-01T00:00:00.001Z", "1980-01-01T00:00:00.001Z")
    with_offset = metrics(TimestamptzType(), "1980-01-01T01:00:00.001+01:00", "1979-12-31T19:00:00.001-05:00")
    assert with_offset == since


@given(
    st.datetimes(datetime(1800, 1, 1), datetime(1972, 6, 1)),
    st.sampled_from(["Europe/Berlin", "Europe/Amsterdam", "Africa/Monrovia", "America/New_York", "Asia/Kolkata"]),
)
@example(datetime(1800, 1, 1), "Europe/Berlin")
@example(datetime(1972, 1, 6, 23), "Africa/Monrovia")
def test_bounds_of_offsets_whose_seconds_delta_cuts(moment: datetime, zone: str) -> None:
    """Delta writes +00:53 for +00:53:28: the bounds hold the moment nevertheless (delta-io/delta#5249)."""
    local = moment.replace(tzinfo=ZoneInfo(zone))
    sign, offset = ("-", -local.utcoffset()) if local.utcoffset() < timedelta(0) else ("+", local.utcoffset())
    minutes = offset // timedelta(minutes=1)
    text = f"{moment.isoformat(timespec='milliseconds')}{sign}{minutes // 60:02d}:{minutes % 60:02d}"
    found = bounds(TimestamptzType(), text, text)
    assert found is not None
    assert found[0] <= (local - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) <= found[1]


def test_a_string_that_an_old_delta_cut_is_no_bound() -> None:
    """An emoji is above U+FFFD, with which older versions end a greatest string (delta-io/delta#3430)."""
    assert bounds(StringType(), "a" * 32, "a" * 32 + "\ufffd") is None
    assert bounds(StringType(), "\ufffd", "\ufffdb") == ("\ufffd", "\ufffdb")


# --- what cannot be trusted is left out ---


@pytest.mark.parametrize(
    ("field_type", "minimum", "maximum"),
    [
        (LongType(), "x", 3),
        (LongType(), 1, 1 << 63),
        (IntegerType(), -(1 << 31) - 1, 3),
        (LongType(), 3, 1),
        (LongType(), [1], [2]),
        (LongType(), None, 3),
        (LongType(), 3, None),
        (DoubleType(), "NaN", "NaN"),
        (DoubleType(), 1.5, "NaN"),
        (FloatType(), 1, 1e300),
        (FloatType(), "wide", 1),
        (DecimalType(3, 0), 1, 12345),
        (DecimalType(3, 1), 1, 1.25),
        (DecimalType(3, 0), "NaN", "NaN"),
        (DateType(), 5, 6),
        (DateType(), "2020-01-01", "+10000-01-01"),
        (TimestampType(), "2020-01-01T00:00:00", "+294247-01-10T04:00:54.775"),
        (TimestampType(), 1, 2),
        (StringType(), 1, 2),
        (StringType(), "b", "a"),
        (StringType(), "a\ud800", "b"),
        (BooleanType(), False, True),
        (BinaryType(), "a", "b"),
    ],
)
def test_bounds_that_make_no_sense_are_left_out(field_type: IcebergType, minimum: Any, maximum: Any) -> None:
    """A column without bounds is read in full; a wrong bound would hide rows. The counts are not touched by it."""
    found = metrics(field_type, minimum, maximum, nullCount={"c": 1})
    assert (found.lower_bounds, found.upper_bounds) == ({}, {})
    assert (found.record_count, found.null_value_counts) == (3, {ID: 1})


# As Spark's from_json reads them for the column's type, which is how Delta reads statistics: None is null.
IGNORED = {
    "long": ["5.0", "9.007199254740992E15", "1e3", '"5"', "true", "9223372036854775808", '""', "[1]", "{}"],
    "integer": ["5.0", '"5"', "2147483648", "true"],
    "float": ['"5.5"', "true", '"1e3"'],
    "double": ['"5.5"', "true", '" 1"'],
    "decimal(10,2)": ["true", "NaN", '"x"', "12345678901", '"1_0"', '"1.255"', '" 1"', '""'],
    "date": ["18262", '""', '"20200101"', '"2020-W01-1"', '"2020-13-01"'],
    "timestamp": ["1577836800.5", '"1577836800"', "true", '"20200101T000000"', '"2020-01-01x00:00:00"'],
    "timestamp_ntz": ["1577836800", '"2020-01-01T00:00:00.123Z"', '"2020-01-01T00:00:00+01:00"'],
    "string": ["null", '"\\ud83d"'],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in IGNORED.items() for text in texts])
def test_a_statistic_that_delta_ignores_is_no_bound(kind: str, text: str) -> None:
    """Nor is its column beyond what bounds can express; the bounds of another column stay."""
    leaves = translate_schema(_metadata(("c", kind), ("o", "long"))).leaves
    stats = f'{{"numRecords": 3, "minValues": {{"c": {text}, "o": 1}}, "maxValues": {{"c": {text}, "o": 2}}}}'
    found = parse_stats(stats, leaves, ROWS, has_dv=False)
    assert (set(found.lower_bounds), found.beyond) == ({2}, frozenset())


@pytest.mark.parametrize("number", ["1e19", "-1e19", "1e999999", "-1e999999999", "1e400", "1.5e30", "NaN", "Infinity"])
@pytest.mark.parametrize("field_type", [LongType(), IntegerType()], ids=str)
def test_numbers_of_any_size_cost_nothing(number: str, field_type: IcebergType) -> None:
    """A few characters must not make a number of a million digits: the process would stand still meanwhile."""
    stats = f'{{"numRecords": 3, "minValues": {{"c": {number}}}, "maxValues": {{"c": {number}}}}}'
    started_s = time.process_time()
    found = parse_stats(stats, {("c",): NestedField(ID, "c", field_type)}, ROWS, has_dv=False)
    assert time.process_time() - started_s < 1
    assert (found.lower_bounds, found.upper_bounds) == ({}, {})


def test_the_largest_numbers_have_bounds() -> None:
    """Of 64 bits."""
    assert bounds(LongType(), -(1 << 63), (1 << 63) - 1) == (-(1 << 63), (1 << 63) - 1)


@pytest.mark.parametrize(
    "stats",
    [
        '{"x": 1e99999999999999999999}',
        "[" * 100_000,
        '{"x":' * 100_000 + "1" + "}" * 100_000,
        '{"x": ' + "9" * 5000 + "}",
        "[]",
        "5",
        '"x"',
        "{",
        "{'a': 1}",
        '{"numRecords": 1',
        "\x00",
        '{"numRecords": 1} trailing',
    ],
)
def test_statistics_that_are_not_a_json_object_are_none(stats: str) -> None:
    """As for Delta on Spark."""
    assert parse_stats(stats, {}, ROWS, has_dv=False) == Metrics(ROWS)


def test_null_is_no_statistics() -> None:
    """As for Delta on Spark."""
    assert parse_stats("null", {}, ROWS, has_dv=False) == parse_stats(None, {}, ROWS, has_dv=False)


@pytest.mark.parametrize("count", [2, 4, "3", 3.5, None, -1, [3]])
def test_a_record_count_that_is_not_the_footers_is_not_believed(count: Any) -> None:
    """Some writers count live rows in numRecords (trino#30343): the footer's count stands, null counts go."""
    found = metrics(LongType(), 1, 2, numRecords=count, nullCount={"c": 1})
    assert (found.record_count, found.value_counts, found.null_value_counts) == (ROWS, {}, {})
    assert ID in found.lower_bounds


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["c", "s", "x"]), inner, max_size=3),
    max_leaves=6,
)


@given(minimum=_json, maximum=_json, nulls=_json, tight=_json, rows=st.none() | st.integers(0, 5))
def test_any_json_is_taken_or_left_out(minimum: Any, maximum: Any, nulls: Any, tight: Any, rows: int | None) -> None:
    """Whatever stands in the statistics, the outcome is metrics that say less, never an exception or nonsense."""
    types = [LongType(), StringType(), DoubleType(), DecimalType(5, 2), DateType(), TimestampType()]
    leaves = {("c",): NestedField(1, "c", types[0])} | {
        ("s", str(number)): NestedField(number, str(number), field_type) for number, field_type in enumerate(types, 2)
    }
    stats = {"numRecords": rows, "minValues": minimum, "maxValues": maximum, "nullCount": nulls, "tightBounds": tight}
    found = parse_stats(json.dumps(stats), leaves, ROWS, has_dv=True)
    assert found.record_count == ROWS
    assert all(0 <= count <= ROWS for count in found.null_value_counts.values())
    assert set(found.lower_bounds) == set(found.upper_bounds)


# --- counts ---


@pytest.mark.parametrize(
    ("tight", "nulls", "expected"),
    [
        (True, 0, 0),
        (True, 1, 1),
        (True, 3, 3),
        (None, 1, 1),
        (False, 0, 0),
        (False, 1, None),
        (False, 3, 3),
        (True, 4, None),
        (True, -1, None),
        (True, "1", None),
        (True, 1.0, None),
    ],
)
def test_null_counts_are_given_when_they_are_exact(tight: bool | None, nulls: Any, expected: int | None) -> None:
    """PROTOCOL.md: with wide bounds a null count is exact only at 0 and at numRecords."""
    more = {} if tight is None else {"tightBounds": tight}
    found = metrics(LongType(), 1, 2, nullCount={"c": nulls}, **more)
    assert found.null_value_counts == ({} if expected is None else {ID: expected})
    assert found.value_counts == ({} if expected is None else {ID: 3})
    # Wide bounds still hold every live value.
    assert found.lower_bounds


def test_statistics_that_are_missing() -> None:
    """Without statistics nothing is said but the footer's rows."""
    for stats in (None, "", "{}"):
        found = parse_stats(stats, {("c",): NestedField(ID, "c", LongType())}, ROWS, has_dv=False)
        assert found == Metrics(ROWS)


@pytest.mark.parametrize(
    ("tight", "has_dv", "given"), [(True, False, True), (False, True, True), (False, False, False)]
)
def test_wide_bounds_are_given_with_deletions_only(tight: bool, has_dv: bool, given: bool) -> None:
    """An engine that may answer MIN from metadata reads the file when it has deletions, and only then."""
    stats = {"numRecords": ROWS, "minValues": {"c": 1}, "maxValues": {"c": 2}, "tightBounds": tight}
    found = parse_stats(json.dumps(stats), {("c",): NestedField(ID, "c", LongType())}, ROWS, has_dv=has_dv)
    assert (ID in found.lower_bounds, ID in found.upper_bounds) == (given, given)


def test_nested_columns_by_physical_path() -> None:
    """Columns in structs have metrics under their path; a struct where a column is expected says nothing."""
    leaves = {
        ("s", "x"): NestedField(1, "x", LongType()),
        ("s", "t", "y"): NestedField(2, "y", LongType()),
        ("col.with.dots",): NestedField(3, "z", LongType()),
    }
    values = {"s": {"x": 1, "t": {"y": 2}, "other": 9}, "col.with.dots": 3, "unknown": 4}
    stats = {"numRecords": 5, "minValues": values, "maxValues": values, "nullCount": {"s": {"x": 1, "t": {"y": 0}}}}
    found = parse_stats(json.dumps(stats), leaves, 5, has_dv=False)
    assert found.null_value_counts == {1: 1, 2: 0}
    assert {number: int.from_bytes(bound, "little") for number, bound in found.upper_bounds.items()} == {
        1: 1,
        2: 2,
        3: 3,
    }
    stats = {"numRecords": 5, "minValues": {"s": 1, "col.with.dots": {}}}
    assert parse_stats(json.dumps(stats), leaves, 5, has_dv=False).lower_bounds == {}


def test_statistics_that_are_too_long_are_not_read() -> None:
    """The file then has no metrics."""
    stats = '{"numRecords": 3, "minValues": {"c": 1}, "maxValues": {"c": 2}}'
    leaves = {("c",): NestedField(ID, "c", LongType())}
    assert parse_stats(stats + " " * (1 << 24), leaves, ROWS, has_dv=False) == Metrics(ROWS)


class Wide(dict[tuple[str, ...], NestedField]):
    """The columns of a table that has too many of them to walk through for each file."""

    def __iter__(self) -> Any:
        raise AssertionError("walked through")


def test_statistics_of_few_columns_cost_little_in_a_wide_table() -> None:
    """A commit of many files in a table of many columns is read by what its statistics hold."""
    leaves = Wide({(f"c{number}",): NestedField(number, "c", LongType()) for number in range(1, 4)})
    stats = {"numRecords": ROWS, "minValues": {"c2": 1, "x": {}}, "maxValues": {"c2": 2}, "nullCount": {"c2": 0}}
    found = parse_stats(json.dumps(stats), leaves, ROWS, has_dv=False)
    assert (set(found.lower_bounds), found.null_value_counts) == ({2}, {2: 0})


def _metadata(*columns: tuple[str, Any]) -> Metadata:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns]
    return Metadata("t", json.dumps({"type": "struct", "fields": fields}), [], {})


def test_no_engine_computes_min_or_max_of_inexact_bounds() -> None:
    """Bounds of timestamps, strings and floats are not exact: their metrics mode is `counts`, in structs too."""
    nested = {"type": "struct", "fields": [{"name": "n", "type": "timestamp_ntz", "nullable": True, "metadata": {}}]}
    exact = (("b", "long"), ("d", "date"), ("m", "decimal(9,2)"), ("y", "boolean"), ("raw", "binary"))
    inexact = (("a", "timestamp"), ("t", "string"), ("f", "float"), ("g", "double"), ("n", "decimal(16,2)"))
    table = translate_schema(_metadata(*exact, *inexact, ("s", nested)))
    assert metrics_properties(table) == {
        f"write.metadata.metrics.column.{name}": "counts" for name in ("a", "t", "f", "g", "n", "s.n")
    }


# --- the data file's record ---


def _add(stats: dict[str, Any] | None, cardinality: int | None = None, path: str = "file:///f") -> AddFile:
    dv = None if cardinality is None else DeletionVectorDescriptor("u", "x" * 20, 40, cardinality, 1)
    return AddFile(path, True, dv, partition_values={}, size=99, stats=json.dumps(stats) if stats else None)


@pytest.mark.parametrize("cardinality", [0, 2, 3])
def test_a_cardinality_within_the_rows_passes(cardinality: int) -> None:
    """All rows of a file may be deleted."""
    table = translate_schema(_metadata(("c", "long")))
    assert metrics_of(_add({"numRecords": 3}, cardinality), table, 3).record_count == 3


def test_a_cardinality_above_the_rows_is_corrupt() -> None:
    """More deletions than the file has rows: one of the two is not what the log means."""
    table = translate_schema(_metadata(("c", "long")))
    with pytest.raises(CorruptInput, match="the deletion vector has 4 positions, the file only 3 rows") as caught:
        metrics_of(_add({"numRecords": 9}, 4), table, 3)
    assert caught.value.path == "file:///f"


def test_a_data_file_is_registered_in_place() -> None:
    """Path, sizes and metrics as they are; what is not known is null, not empty."""
    table = translate_schema(_metadata(("c", "long")))
    stats = {"numRecords": 3, "minValues": {"c": 1}, "maxValues": {"c": 2}, "nullCount": {"c": 0}}
    add = _add(stats, path="file:///t/a b%41")
    record = data_file_of(add, metrics_of(add, table, 3), table, 0, ())
    assert (record.file_path, record.record_count, record.file_size_in_bytes) == ("file:///t/a b%41", 3, 99)
    assert (record.value_counts, record.null_value_counts) == ({1: 3}, {1: 0})
    assert (record.lower_bounds, record.upper_bounds) == ({1: b"\1" + bytes(7)}, {1: b"\2" + bytes(7)})
    bare = _add(None)
    record = data_file_of(bare, metrics_of(bare, table, 8), table, 0, ())
    found: Sequence[Any] = (record.value_counts, record.null_value_counts, record.lower_bounds, record.upper_bounds)
    assert found == (None, None, None, None)
    assert record.record_count == 8
