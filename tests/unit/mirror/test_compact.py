"""The form of Parquet footers: what other writers write is kept byte for byte, and damaged bytes are refused."""

from __future__ import annotations

import io
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from daemon.errors import CorruptInput
from daemon.mirror import compact
from daemon.mirror.compact import (
    BINARY,
    BYTE,
    DOUBLE,
    FALSE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRUCT,
    TRUE,
    UUID,
    List,
    Map,
    decode_struct,
    encode_struct,
)
from tests.kit.archive import FOLDER, Archive

ROWS = pa.table(
    {
        "id": pa.array([1, 2, None], pa.int64()),
        "text": ["a", "ü" * 300, None],
        "tags": pa.array([["x"], [], None], pa.list_(pa.string())),
        "of": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
        "at": pa.array([0, 1, None], pa.timestamp("us", "UTC")),
    }
)


def footer_of(data: bytes) -> bytes:
    size = int.from_bytes(data[-8:-4], "little")
    return data[-8 - size : -8]


def by_pyarrow(folder: Path) -> bytes:
    file = io.BytesIO()
    pq.write_table(ROWS, file, row_group_size=1, write_page_index=True, version="1.0")
    return file.getvalue()


def by_duckdb(folder: Path) -> bytes:
    rows = ROWS
    duckdb.sql(f"COPY rows TO '{folder}/duckdb.parquet' (FORMAT parquet, FIELD_IDS 'auto')")
    assert rows.num_rows == 3
    return (folder / "duckdb.parquet").read_bytes()


def by_polars(folder: Path) -> bytes:
    pl.DataFrame(ROWS.drop_columns(["of"])).write_parquet(folder / "polars.parquet")
    return (folder / "polars.parquet").read_bytes()


def by_delta_rs(folder: Path) -> bytes:
    write_deltalake(folder / "table", ROWS)
    (file,) = (folder / "table").glob("*.parquet")
    return file.read_bytes()


@pytest.mark.parametrize("write", [by_pyarrow, by_duckdb, by_polars, by_delta_rs])
def test_footers_of_other_writers_stay(write: Callable[[Path], bytes], tmp_path: Path) -> None:
    """Each byte of a footer is kept, whoever wrote it."""
    footer = footer_of(write(tmp_path))
    found, size = decode_struct(footer)
    assert size == len(footer)
    assert encode_struct(found) == footer


def test_footers_of_spark_stay() -> None:
    """So is each footer of the files that Spark wrote in the tests of types."""
    archives = [Archive.read(path) for path in sorted((FOLDER / "test_types").iterdir())]
    files = [data for each in archives for data in each.contents.values() if data.endswith(b"PAR1")]
    assert len(files) > 50
    for data in files:
        found, _ = decode_struct(footer_of(data))
        assert encode_struct(found) == footer_of(data)


def numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


SIMPLE = {
    BYTE: st.integers(0, 255),
    I16: numbers(16),
    I32: numbers(32),
    I64: numbers(64),
    DOUBLE: st.binary(min_size=8, max_size=8),
    BINARY: st.binary(max_size=200),
    UUID: st.binary(min_size=16, max_size=16),
}


def structs(values: st.SearchStrategy[tuple[int, object]]) -> st.SearchStrategy[object]:
    fields = values | st.sampled_from([(TRUE, True), (FALSE, False)])
    return st.dictionaries(st.integers(-3, 40) | numbers(16).filter(lambda each: each > -32768), fields, max_size=5)


def nested(values: st.SearchStrategy[tuple[int, object]]) -> st.SearchStrategy[tuple[int, object]]:
    """Lists have up to 20 elements, because the size of 15 is written otherwise."""
    lists = st.tuples(st.sampled_from([LIST, SET]), values, st.integers(0, 20)).map(
        lambda drawn: (drawn[0], List(drawn[1][0], [drawn[1][1]] * drawn[2]))
    )
    maps = st.tuples(values, values).map(lambda pair: (MAP, Map(pair[0][0], pair[1][0], [(pair[0][1], pair[1][1])])))
    return lists | maps | st.just((MAP, Map(0, 0, []))) | st.tuples(st.just(STRUCT), structs(values))


VALUES = st.recursive(st.one_of(*(st.tuples(st.just(kind), each) for kind, each in SIMPLE.items())), nested)


@given(structs(VALUES))
def test_trees_come_back(tree: compact.Struct) -> None:
    """What is encoded is decoded as it was, with all of its bytes, and encodes to the same bytes again."""
    data = encode_struct(tree)
    assert decode_struct(data) == (tree, len(data))
    assert encode_struct(decode_struct(data)[0]) == data


@given(structs(VALUES), st.data())
def test_what_is_cut_is_refused(tree: compact.Struct, data: st.DataObject) -> None:
    """A footer that ends too early is no shorter footer."""
    whole = encode_struct(tree)
    with pytest.raises(CorruptInput, match="the Parquet footer is damaged: it ends too early"):
        decode_struct(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.binary(max_size=300))
def test_any_bytes_are_a_tree_or_refused(data: bytes) -> None:
    """Nothing but `CorruptInput` is raised, and what is read is written as it was read."""
    try:
        found, size = decode_struct(data)
    except CorruptInput:
        return
    again = encode_struct(found)
    assert decode_struct(again) == (found, len(again))
    assert size <= len(data)


def long_number(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x18" + long_number(1 << 62), "it ends too early"),
        (b"\x18" + b"\xff" * 12, "it has a number of more than 64 bits"),
        (b"\x15" + long_number(1 << 32) + b"\0", "it has a number of more than 32 bits"),
        (b"\x16" + long_number(1 << 64) + b"\0", "it has a number of more than 64 bits"),
        (b"\x19\xfc" + long_number(1 << 60), "it has more than 4000000 values"),
        (b"\x19\xfc" + long_number(3_000_000), "it ends too early"),
        (b"\x1b" + long_number(1 << 60) + b"\x88", "it has more than 4000000 values"),
        (b"\x1c" * 100, "it is nested in more than 32 levels"),
        (b"\x19" + b"\x19" * 100, "it is nested in more than 32 levels"),
        (b"\x1e\0", "it has the unknown type 14"),
        (b"\x19\x10\0", "it has the unknown type 0"),
        (b"\x11\x01\x02\0", "it has the field 1 twice, or cannot have it"),
        (b"\x11\x01" + long_number(2 * 32767) + b"\x11\0", "it has the field 32768 twice, or cannot have it"),
    ],
)
def test_hostile_bytes_are_refused(data: bytes, says: str) -> None:
    """A claimed size neither takes memory nor time."""
    tracemalloc.start()
    try:
        with pytest.raises(CorruptInput, match=says) as raised:
            decode_struct(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert raised.value.offset is not None


def test_lists_of_nothing_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many small structs takes more memory than bytes, so they are counted."""
    monkeypatch.setattr(compact, "VALUES_MAX", 1000)
    with pytest.raises(CorruptInput, match="it has more than 1000 values"):
        decode_struct(b"\x19\xfc" + long_number(1001) + b"\0" * 1002)
    with pytest.raises(CorruptInput, match="it has more than 1000 values"):
        decode_struct(b"\x19\xfc" + long_number(300) + b"\x11\x11\x11\0" * 300 + b"\0")


def test_doubles_keep_their_bits() -> None:
    """A NaN with a payload is not another NaN afterwards."""
    data = b"\x17" + struct.pack("<Q", 0x7FF80000DEADBEEF) + b"\0"
    assert encode_struct(decode_struct(data)[0]) == data
