"""Predicates mean in this process what they mean in DuckDB, row by row, and no file that has such rows is skipped."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from daemon.delta.actions import AddFile, Metadata
from daemon.errors import ConfigInvalid, CorruptInput, Unsupported
from daemon.predicate.files import may_match, partition_values
from daemon.predicate.parser import parse_predicate
from daemon.predicate.rows import matching_positions
from daemon.store.storage import FileIOStorage
from state.records import DeletionVectorDescriptor
from tests.kit.examples import examples

Row = dict[str, Any]
SCHEMA = pa.schema(
    [
        ("i", pa.int32()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("m", pa.decimal128(12, 2)),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("day", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("u", pa.timestamp("us")),
        ("odd.Name `", pa.int64()),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int64())])),
    ]
)
DELTA_TYPES = {
    **{"i": "integer", "n": "long", "x": "double", "f": "float", "m": "decimal(12,2)", "s": "string", "b": "boolean"},
    **{
        "day": "date",
        "t": "timestamp",
        "u": "timestamp_ntz",
        "odd.Name `": "long",
        "part": "string",
        "year": "integer",
    },
}
PLACE = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("city", "string"), ("zip", "long"))
    ],
}
EPOCH, FOLLOWING = datetime(2020, 1, 1), datetime(2020, 1, 2)

small = st.integers(-3, 3)
halves = small.map(lambda number: number / 2)
texts = st.sampled_from(["", "a", "ab", "b", "é", "a%", "a'b", "a\nb", "😀", "Ab", "ab\ufffd"])
days = small.map(lambda number: date(2020, 1, 1) + timedelta(number))
moments = st.builds(
    lambda day, rest: EPOCH + timedelta(days=day, microseconds=rest), small, st.sampled_from([0, 1, 999])
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": small,
    "n": small,
    "x": st.sampled_from([-0.0, 0.0, 0.1, 0.5, math.inf, -math.inf, math.nan]),
    "f": st.sampled_from([-0.0, 0.0, 0.5, -1.5, math.nan]),
    "m": small.map(lambda number: Decimal(number) / 4),
    "s": texts,
    "b": st.booleans(),
    "day": days,
    "t": moments.map(lambda moment: moment.replace(tzinfo=UTC)),
    "u": moments,
    "odd.Name `": small,
}
rows = st.lists(
    st.fixed_dictionaries(
        {
            **{name: st.none() | values for name, values in VALUES.items()},
            "place": st.none() | st.fixed_dictionaries({"city": st.none() | texts, "zip": st.none() | small}),
        }
    ),
    min_size=1,
    max_size=8,
)
# A predicate in our words, and in DuckDB's.
Pair = tuple[str, str]
OURS = {"odd.Name `": "`ODD.name ```", "place.city": "place.City", "x": "X"}
DUCKDB = {"odd.Name `": '"odd.Name `"', "year": '"year"', "day": '"day"'}


def quoted(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))


def literals(name: str) -> st.SearchStrategy[Pair]:
    same: Callable[[Any], Pair] = lambda text: (str(text), str(text))  # noqa: E731
    numbers = small.map(same) | small.map(lambda number: (f"{number}.0", f"{number}.0"))
    choices: dict[str, st.SearchStrategy[Pair]] = {
        "x": numbers | st.sampled_from(["0.1", "5e-1", ".5"]).map(lambda text: (text, f"CAST({text} AS DOUBLE)")),
        "f": numbers | halves.map(lambda number: (str(number), f"CAST({number} AS FLOAT)")),
        "m": numbers | small.map(lambda number: same(Decimal(number) / 4)),
        "b": st.sampled_from([("TRUE", "TRUE"), ("false", "false")]),
        "day": days.map(lambda day: (f"date '{day}'", f"DATE '{day}'"))
        | days.map(lambda day: (f"'{day}'", f"'{day}'")),
        "t": moments.map(lambda each: (f"TIMESTAMP '{each}Z'", f"TIMESTAMPTZ '{each}+00'")),
        "u": moments.map(lambda each: (f"TIMESTAMP_NTZ '{each}'", f"TIMESTAMP '{each}'")),
    }
    if name in ("s", "part", "place.city"):
        return texts.map(lambda text: same(quoted(text)))
    return choices.get(name, numbers)


NAMES = [*VALUES, "place.city", "part", "year"]


@st.composite
def leaves(draw: st.DrawFn) -> Pair:  # noqa: PLR0911 - one for each kind of test
    name = draw(st.sampled_from(NAMES))
    ours, theirs = OURS.get(name, name), DUCKDB.get(name, name)
    kind = draw(
        st.sampled_from(["compare", "compare", "flipped", "in", "between", "null", "like", "column", "boolean"])
    )
    negation = draw(st.sampled_from(["", "NOT "]))
    if kind == "null":
        return f"{ours} IS {negation}NULL", f"{theirs} IS {negation}NULL"
    if kind == "in":
        values = draw(st.lists(literals(name), min_size=1, max_size=3))
        return tuple(  # type: ignore[return-value]
            f"{column} {negation}IN ({', '.join(each[side] for each in values)})"
            for side, column in enumerate((ours, theirs))
        )
    if kind == "between":
        low, high = draw(literals(name)), draw(literals(name))
        return (
            f"{ours} {negation}between {low[0]} and {high[0]}",
            f"{theirs} {negation}between {low[1]} and {high[1]}",
        )
    if kind == "like":
        name = draw(st.sampled_from(["s", "part", "place.city"]))
        pattern = quoted(draw(st.text("ab%_é'\n😀", max_size=4)))
        return f"{OURS.get(name, name)} {negation}LIKE {pattern}", f"{name} {negation}LIKE {pattern}"
    if kind == "column":
        left, right = draw(st.sampled_from([("i", "n"), ("n", "place.zip"), ("s", "part"), ("x", "x"), ("year", "i")]))
        sign = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
        return f"{left} {sign} {right}", f"{DUCKDB.get(left, left)} {sign} {right}"
    if kind == "boolean":
        return f"{negation}b", f"{negation}b"
    sign = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "!=", "=="]))
    value = draw(literals(name))
    sides = (ours, value[0]), (theirs, value[1])
    if kind == "flipped":
        return tuple(f"{each[1]} {sign} {each[0]}" for each in sides)  # type: ignore[return-value]
    return tuple(f"{each[0]} {sign} {each[1]}" for each in sides)  # type: ignore[return-value]


def joined(items: Sequence[Pair], word: str) -> Pair:
    return f" {word} ".join(each[0] for each in items), f" {word.upper()} ".join(each[1] for each in items)


predicates = st.recursive(
    leaves(),
    lambda inner: (
        st.tuples(st.lists(inner, min_size=2, max_size=3), st.sampled_from(["AND", "or"])).map(
            lambda each: joined(*each)
        )
        | inner.map(lambda each: (f"NOT ({each[0]})", f"NOT ({each[1]})"))
        | inner.map(lambda each: (f"({each[0]})", f"({each[1]})"))
    ),
    max_leaves=5,
)


def metadata(mode: str = "none", **more: Any) -> Metadata:
    fields: list[dict[str, Any]] = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in DELTA_TYPES.items()
    ]
    fields.append({"name": "place", "type": PLACE, "nullable": True, "metadata": {}})
    fields += [{"name": name, "nullable": True, "metadata": {}, **kind} for name, kind in more.items()]
    schema = json.dumps({"type": "struct", "fields": fields})
    return Metadata("id", schema, ["part", "year"], {"delta.columnMapping.mode": mode})


METADATA = metadata()


def stats_of(table: pa.Table) -> str:
    """Statistics as Delta on Spark writes them."""
    columns = {(name,): table[name].to_pylist() for name in SCHEMA.names if name != "place"}
    places = table["place"].to_pylist()
    for name in ("city", "zip"):
        columns["place", name] = [each and each[name] for each in places]
    stats: dict[str, Any] = {"numRecords": len(table), "minValues": {}, "maxValues": {}, "nullCount": {}}
    for path, values in columns.items():
        present = [each for each in values if each is not None]
        found = {"nullCount": len(values) - len(present)}
        if present and path not in (("b",), ("x",), ("f",)):
            found |= {"minValues": spelled(min(present)), "maxValues": spelled(max(present))}
        for kind, value in found.items():
            place = stats[kind]
            for name in path[:-1]:
                place = place.setdefault(name, {})
            place[path[-1]] = value
    return json.dumps(stats)


def spelled(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return str(value) if isinstance(value, date) else float(value) if isinstance(value, Decimal) else value


class InMemory(FileIOStorage):
    """One file."""

    def __init__(self, table: pa.Table, **options: Any) -> None:
        super().__init__()
        self.buffer = io.BytesIO()
        pq.write_table(table, self.buffer, **options)

    def open_input(self, path: str) -> Any:
        return io.BytesIO(self.buffer.getvalue())


@lru_cache(maxsize=1)
def duckdb_connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    # It would have Arrow filter its table, for which NaN is not the greatest number.
    connection.execute("SET disabled_optimizers = 'filter_pushdown'")
    return connection


@settings(max_examples=examples(1000))
@given(rows, predicates, st.none() | texts, st.none() | small)
def test_as_in_duckdb(made: list[Row], predicate: Pair, part: str | None, year: int | None) -> None:
    table = pa.Table.from_pylist(made, SCHEMA)
    shown = table.append_column("part", pa.repeat(pa.scalar(part, pa.string()), len(table)))
    shown = shown.append_column("year", pa.repeat(pa.scalar(year, pa.int32()), len(table)))
    shown = shown.append_column("pos", pa.array(range(len(table))))
    connection = duckdb_connection()
    connection.register("shown", shown)
    expected = {row[0] for row in connection.execute(f"SELECT pos FROM shown WHERE {predicate[1]}").fetchall()}
    values = {"part": part, "year": None if year is None else str(year)}
    add = AddFile("file:///f", True, partition_values=values, size=1, stats=stats_of(table))
    parsed = parse_predicate(predicate[0], METADATA)
    partition = partition_values(parsed, add, "UTC")
    record_count, positions = matching_positions(InMemory(table, row_group_size=3), add.path, parsed, partition)
    assert record_count == len(table)
    assert set(positions) == expected
    assert may_match(parsed, add, partition) or not expected


def test_files_that_say_little_are_searched() -> None:
    """Half of a pair in UTF-16 as a bound; nulls that were counted with rows that a vector deletes; NaN as a value."""
    vector = DeletionVectorDescriptor("i", "", 1, 5)
    stats = r'{"numRecords": 5, "nullCount": {"s": 5}, "minValues": {"n": 1, "s": ""}, "maxValues": {"n": 2, "s": "%"}}'
    known, half = (
        AddFile("file:///f", True, partition_values={}, size=1, stats=stats.replace("%", end), deletion_vector=vector)
        for end in ("y", r"\ud83d")
    )
    for predicate, add, may in (("n = 3", known, False), ("s = 'x'", known, True), ("n = 3", half, True)):
        assert may_match(parse_predicate(predicate, METADATA), add, {}) is may
    partitioned = replace(METADATA, partition_columns=("x",))
    add = AddFile("file:///f", True, partition_values={"x": "NaN"}, size=1)
    for predicate in ("x > 5", "NOT x < 5", "x = x"):
        parsed = parse_predicate(predicate, partitioned)
        assert may_match(parsed, add, partition_values(parsed, add, "UTC"))


@pytest.mark.parametrize(
    ("predicate", "message"),
    [
        ("", "at its end"),
        ("i = 1 i", "at 'i'"),
        ("i = 1; DROP TABLE x", "at '; DROP TABLE x'"),
        ("i = 1 -- no comment", "at '-- no comment'"),
        ("nothing = 1", "there is no column nothing"),
        ("t.i = 1", "there is no column t.i"),
        ("place.street = 'a'", "there is no column place.street"),
        ("i", "i is of the type int, and a condition is needed"),
        ("1", "1 is no condition"),
        ("1 = 1", "each comparison needs a column"),
        ("(i = 1) = TRUE", "each comparison needs a column"),
        ("i = NULL", "is never true; write IS NULL"),
        ("i IN (1, NULL)", "at 'NULL\\)'"),
        ("i IN ()", "at '\\)'"),
        ("i NOT 1", "at '1'"),
        ("i = 1.5", "not exactly such a value: it has a fraction"),
        ("i = 1e0", "1e0 is another type"),
        ("i = '1'", "'1' is another type"),
        ("n = 99999999999999999999", "not exactly such a value"),
        ("m = 0.001", "not exactly such a value"),
        ("f = 0.1", "a float cannot hold it"),
        ("x = 1e999", "it is too large"),
        ("s = 1", "1 is another type"),
        ('s = "a"', "at '\"a\"'"),
        ("s = 'a' 'b'", "at \"'b'\""),
        (r"s = 'a\nb'", "character 4"),
        ("s LIKE i", "at 'i'"),
        ("i LIKE 'a'", "LIKE compares texts"),
        ("day = '2020-1-1'", "not exactly such a value"),
        ("day = DATE '2020-02-30'", "not exactly such a value"),
        ("day = TIMESTAMP '2020-01-01 00:00:00Z'", "another type"),
        ("t = TIMESTAMP '2020-01-01 00:00:00'", "another type; write TIMESTAMP '2026"),
        ("t = TIMESTAMP '2020-01-01 00:00:00.0000001Z'", "more than microseconds"),
        ("u = TIMESTAMP '2020-01-01 00:00:00'", "another type; write TIMESTAMP_NTZ"),
        ("place = 'a'", "only compared with NULL"),
        ("i = s", "i is of the type int, and s is of the type string"),
        ("i = x", "i is of the type int, and x is of the type double"),
        ("twice = 1", "the name twice stands for Twice and TWICE"),
        ("padded = 'a'", "only compared with NULL"),
        ("around.c <> 'a'", "only compared with NULL"),
        ("filled = 1", "EXISTS_DEFAULT"),
        ("upper(s) = 'A'", "there is no column upper"),
        ("(" * 200 + "b" + ")" * 200, "nested in more than"),
        ("NOT " * 200 + "b", "nested in more than"),
        ("s = '" + "a" * (1 << 20) + "'", "characters, at most"),
    ],
)
def test_what_is_refused(predicate: str, message: str) -> None:
    more = {
        "Twice": {"type": "integer"},
        "TWICE": {"type": "integer"},
        "padded": {"type": "string", "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}},
        "around": {
            "type": {"type": "struct", "fields": [{"name": "c", "type": "string", "nullable": True, "metadata": {}}]},
            "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "struct<c:char(5)>"},
        },
        "filled": {"type": "integer", "metadata": {"EXISTS_DEFAULT": "1"}},
    }
    with pytest.raises(ConfigInvalid, match=message):
        parse_predicate(predicate, metadata(**more))


def positions(table: pa.Table, predicate: str, found: Metadata = METADATA, **options: Any) -> list[int]:
    parsed = parse_predicate(predicate, found)
    return list(matching_positions(InMemory(table, **options), "file:///f", parsed, {})[1])


def mapped(name: str, number: int, kind: Any, physical: str) -> dict[str, Any]:
    ids = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
    return {"name": name, "type": kind, "nullable": True, "metadata": ids}


@pytest.mark.parametrize("mode", ["name", "id"])
def test_column_mapping(mode: str) -> None:
    """By name, fields have their physical names in files; by id, whatever names they have."""
    inner = {"type": "struct", "fields": [mapped("y", 3, "long", "col-3")]}
    fields = [mapped("id", 1, "long", "col-1"), mapped("s", 2, inner, "col-2"), mapped("new", 4, "long", "col-4")]
    found = Metadata("id", json.dumps({"type": "struct", "fields": fields}), [], {"delta.columnMapping.mode": mode})
    names = {"name": ("col-1", "col-2", "col-3"), "id": ("a", "b", "id")}[mode]
    ids = [{b"PARQUET:field_id": str(number).encode()} for number in (1, 2, 3)]
    struct = pa.struct([pa.field(names[2], pa.int64(), metadata=ids[2])])
    schema = pa.schema([pa.field(names[0], pa.int64(), metadata=ids[0]), pa.field(names[1], struct, metadata=ids[1])])
    values = [[1, 2, 3, 4], [{names[2]: 10}, {names[2]: None}, None, {names[2]: 40}]]
    table = pa.table([pa.array(each, field.type) for each, field in zip(values, schema, strict=True)], schema)
    assert positions(table, "id >= 3", found) == [2, 3]
    assert positions(table, "s.y = 10", found) == [0]
    assert positions(table, "s.Y IS NULL", found) == [1, 2]
    assert positions(table, "s IS NULL", found) == [2]
    assert positions(table, "new IS NULL AND id <> 2", found) == [0, 2, 3]
    assert positions(table, "new = 1", found) == []


def test_files_without_ids() -> None:
    """By id, none of their columns is found: Delta on Spark does not read them, and no row of theirs is null."""
    schema = json.dumps({"type": "struct", "fields": [mapped("n", 1, "long", "n")]})
    with pytest.raises(Unsupported, match="the file has no field ids"):
        positions(pa.table({"n": [1, 2]}), "n IS NULL", Metadata("id", schema, [], {"delta.columnMapping.mode": "id"}))


@pytest.mark.parametrize(
    ("column", "stored", "values", "predicate", "expected"),
    [
        ("n", pa.int32(), [1, 2], "n = 2", [1]),
        ("n", pa.int8(), [1, 2], "n > 1", [1]),
        ("x", pa.float32(), [0.5, 1], "x = 0.5", [0]),
        ("x", pa.int32(), [1, 2], "x = 2.0", [1]),
        ("m", pa.decimal128(5, 1), [Decimal("1.5"), Decimal(2)], "m = 1.50", [0]),
        ("m", pa.int32(), [1, 2], "m = 2.00", [1]),
        ("u", pa.date32(), [date(2020, 1, 1), date(2020, 1, 2)], "u > TIMESTAMP_NTZ '2020-01-01 00:00:00'", [1]),
        ("s", pa.large_string(), ["a", "b"], "s = 'b'", [1]),
        ("s", pa.dictionary(pa.int32(), pa.string()), ["a", "b"], "s = 'b'", [1]),
        ("s", pa.string_view(), ["a", "b"], "s = 'b'", [1]),
        ("t", pa.timestamp("ms", "UTC"), [EPOCH, FOLLOWING], "t = TIMESTAMP '2020-01-01T01:00:00+01:00'", [0]),
        ("I", pa.int32(), [1, 2], "i = 2", [1]),
        ("s", pa.null(), [None, None], "s IS NULL", [0, 1]),
        ("s", pa.null(), [None, None], "s = 'a'", []),
    ],
)  # fmt: skip
def test_stored_otherwise(column: str, stored: Any, values: list[Any], predicate: str, expected: list[int]) -> None:
    """Types that were widened, other spellings of names, and what Arrow's writers make of texts."""
    assert positions(pa.table({column: pa.array(values, stored)}), predicate) == expected


@pytest.mark.parametrize(
    ("column", "stored", "value", "predicate"),
    [
        ("i", pa.int64(), 1, "i = 1"),
        ("i", pa.uint32(), 1, "i = 1"),
        ("s", pa.binary(), b"a", "s = 'a'"),
        ("m", pa.decimal128(12, 3), Decimal(1), "m = 1"),
        ("t", pa.timestamp("us"), EPOCH, "t > TIMESTAMP '2020-01-01 00:00:00Z'"),
        ("u", pa.timestamp("us", "UTC"), EPOCH, "u > TIMESTAMP_NTZ '2020-01-01 00:00:00'"),
        ("day", pa.string(), "2020-01-01", "day = '2020-01-01'"),
    ],
)
def test_stored_as_another_type(column: str, stored: Any, value: Any, predicate: str) -> None:
    with pytest.raises(Unsupported, match=f"column {column} of the file is stored as"):
        positions(pa.table({column: pa.array([value], stored)}), predicate)


def test_int96() -> None:
    """Spark's default for timestamps; another writer's years before 1900 may be those of the Julian calendar."""
    table = pa.table({"t": pa.array([EPOCH, EPOCH + timedelta(1)], pa.timestamp("us"))})
    predicate = "t >= TIMESTAMP '2020-01-02 00:00:00Z'"
    assert positions(table, predicate, use_deprecated_int96_timestamps=True) == [1]
    legacy = table.replace_schema_metadata({"org.apache.spark.version": "2.4.8"})
    with pytest.raises(Unsupported, match="days of the Julian calendar"):
        positions(legacy, predicate, use_deprecated_int96_timestamps=True)


def test_two_columns_that_differ_in_case() -> None:
    table = pa.table({"I": [1], "i": [2]})
    assert positions(table.cast(pa.schema([("I", pa.int32()), ("i", pa.int32())])), "i = 2") == [0]
    with pytest.raises(Unsupported, match="column s of the file is there more than once"):
        positions(pa.table([["a"], ["b"]], ["S", "S"]), "s = 'a'")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"nothing")
    with pytest.raises(CorruptInput, match="the file cannot be read"):
        matching_positions(FileIOStorage(), f"file://{tmp_path}/f", parse_predicate("i = 1", METADATA), {})
