"""Statistics that a DELETE computes from footers: never a bound that hides a row."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daemon.delta.actions import Metadata
from daemon.delta_writer.deletion import delete_rows
from daemon.delta_writer.footer_stats import LAST_ASCII, LAST_CHARACTER, indexing_of, load_stats, stats_of
from daemon.mirror import parquet as form
from daemon.mirror.compact import BINARY, FALSE, I32, I64, Struct
from daemon.mirror.parquet import encode_footer, from_arrow
from daemon.store.storage import FileIOStorage
from tests.kit.handmade import HandmadeTable

JAVA = b"parquet-mr version 1.16.0 (build 0)"
OTHER_WRITERS = (
    b"parquet-cpp-arrow version 26.0.1",
    b"parquet-mr compatible Photon version 0.2 (build 15.4)",
    b"parquet-mr-trino version 480 (build n/a)",
)
NAN = float("nan")
PADDED = {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}
COLLATED = {"__COLLATIONS": {"c": "icu.UNICODE_CI"}}


def field(name: str, kind: Any, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata or {}}


def metadata_of(*fields: dict[str, Any], **configuration: str) -> Metadata:
    properties = {f"delta.{name}": value for name, value in configuration.items()}
    return Metadata("t", json.dumps({"type": "struct", "fields": fields}), ["part"], properties)


def footer_of(column: pa.Array, row_group_size: int = 10, **options: Any) -> Struct:
    """Of a file with the column `c`, as if the Java writer had written it."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([column], ["c"]), sink, row_group_size=row_group_size, **options)
    footer = from_arrow(pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata)
    return {**footer, form.CREATED_BY: (BINARY, JAVA)}


def chunk_of(footer: Struct) -> Struct:
    """The metadata of the first column in the first row group."""
    chunks = footer[form.ROW_GROUPS][1].items[0][form.CHUNKS][1].items
    found: Struct = chunks[0][form.CHUNK_METADATA][1]
    return found


def bounds_in(footer: Struct, kind: Any, metadata: dict[str, Any] | None = None) -> tuple[Any, Any] | None:
    stats = stats_of(footer, 4, indexing_of(metadata_of(field("c", kind, metadata))))
    assert stats["numRecords"] == 4
    assert stats["tightBounds"] is False
    if "minValues" not in stats:
        return None
    return stats["minValues"]["c"], stats["maxValues"]["c"]


@pytest.mark.parametrize(
    ("kind", "stored", "values", "bounds"),
    [
        ("byte", pa.int8(), [-5, 7], (-5, 7)),
        ("short", pa.int16(), [-5, 7], (-5, 7)),
        ("integer", pa.int32(), [-5, 7], (-5, 7)),
        ("long", pa.int64(), [-(1 << 63), (1 << 63) - 1], (-(1 << 63), (1 << 63) - 1)),
        ("float", pa.float32(), [0.5, -2.25], (-2.25, 0.5)),
        ("double", pa.float64(), [-0.1, 1e300], (-0.1, 1e300)),
        ("double", pa.float64(), [0.0, -0.0], (-0.0, 0.0)),
        ("date", pa.date32(), [date(1582, 10, 15), date(9999, 12, 31)], ("1582-10-15", "9999-12-31")),
        ("string", pa.string(), ["\U0001f600", "b", "\ufffd"], ("b", "\U0001f600")),
        # Spark's own numbers have no annotation, and those that are signed are the same.
        ("integer", pa.int16(), [1], (1, 1)),
        # What Delta leaves out as well.
        ("timestamp_ntz", pa.timestamp("us"), [datetime(2024, 1, 1)], None),
        ("decimal(9,2)", pa.decimal128(9, 2), [Decimal("1.25")], None),
        ("boolean", pa.bool_(), [True], None),
        ("binary", pa.binary(), [b"a"], None),
        # Delta takes these.
        ("double", pa.float64(), [1.0, float("inf")], None),
        ("date", pa.date32(), [date(1582, 10, 14), date(2024, 1, 1)], None),
        # A type that was widened, or is another one.
        ("long", pa.int32(), [1], None),
        ("double", pa.float32(), [1.0], None),
        ("double", pa.int32(), [1], None),
        ("integer", pa.uint32(), [1], None),
        ("integer", pa.date32(), [date(2024, 1, 1)], None),
        ("date", pa.int32(), [1], None),
        ("string", pa.binary(), [b"a"], None),
    ],
)
def test_bounds(kind: str, stored: pa.DataType, values: list[Any], bounds: tuple[Any, Any] | None) -> None:
    """Over row groups, of which one has nulls only; null counts there are of each type."""
    footer = footer_of(pa.array([*values, *[None] * len(values)], stored), len(values))
    assert repr(bounds_in(footer, kind)) == repr(bounds)
    assert stats_of(footer, 4, indexing_of(metadata_of(field("c", kind))))["nullCount"] == {"c": len(values)}


def test_bounds_that_may_be_too_narrow() -> None:
    """Each is there until the one thing changes that makes it unsafe."""
    numbers, texts = pa.array([1.0, 2.0]), pa.array(["a", "b"])
    assert bounds_in(footer_of(numbers), "double") == (1.0, 2.0)
    assert bounds_in(footer_of(texts), "string") == ("a", "b")
    # The Java writer takes NaN for the greatest number, others ignore it, or the whole row group.
    for writer in OTHER_WRITERS:
        assert bounds_in({**footer_of(numbers), form.CREATED_BY: (BINARY, writer)}, "double") is None
    for count, bounds in ((0, (1.0, 2.0)), (1, None)):
        java = footer_of(numbers)
        chunk_of(java)[form.STATISTICS][1][form.NAN_COUNT] = I64, count
        assert bounds_in(java, "double") == bounds
    assert bounds_in(footer_of(pa.array([1.0, NAN]), 1), "double") is None
    java = footer_of(numbers)
    chunk_of(java)[form.STATISTICS][1][form.MAX_VALUE] = BINARY, b"\0\0\0\0\0\0\xf8\x7f"
    assert bounds_in(java, "double") is None
    # Without the order, or in another one, which older writers did not say.
    for_order = footer_of(texts)
    for_order.pop(form.COLUMN_ORDERS)
    assert bounds_in(for_order, "string") is None
    assert bounds_in(footer_of(texts), "string", PADDED) is None
    assert bounds_in(footer_of(texts), "string", COLLATED) is None
    # One row group without them, cut, not as long as its type, no text, or the wrong way round.
    assert bounds_in(footer_of(texts, write_statistics=False), "string") is None
    for what, value in (
        (form.MAX_IS_EXACT, (FALSE, False)),
        (form.MAX_VALUE, (BINARY, b"\xff")),
        (form.MIN_VALUE, (I32, 5)),
    ):
        cut = footer_of(texts, 1)
        chunk_of(cut)[form.STATISTICS][1][what] = value
        assert bounds_in(cut, "string") is None
    short = footer_of(pa.array([1, 2]))
    chunk_of(short)[form.STATISTICS][1][form.MAX_VALUE] = BINARY, b"\1"
    assert bounds_in(short, "long") is None
    wrong = footer_of(texts)
    chunk_of(wrong)[form.STATISTICS][1][form.MAX_VALUE] = BINARY, b"0"
    assert bounds_in(wrong, "string") is None


def test_null_counts() -> None:
    """Delta counts those of a struct for its fields, and empty lists as null: they have no counts here."""
    inside = {"type": "struct", "fields": [field("x", "long")]}
    items = {"type": "array", "elementType": "long", "containsNull": False}
    struct = footer_of(pa.array([{"x": 1}, None, {"x": None}]))
    table = indexing_of(metadata_of(field("c", inside)))
    assert stats_of(struct, 3, table)["nullCount"] == {"c": {"x": 2}}
    for writer in OTHER_WRITERS:
        assert "nullCount" not in stats_of({**struct, form.CREATED_BY: (BINARY, writer)}, 3, table)
    lists = footer_of(pa.array([[], [1]]))
    assert stats_of(lists, 2, indexing_of(metadata_of(field("c", items)))) == {"numRecords": 2, "tightBounds": False}
    repeated = footer_of(pa.array([1, None]))
    repeated[form.SCHEMA][1].items[1][form.REPETITION] = I32, form.REPEATED
    assert "nullCount" not in stats_of(repeated, 2, indexing_of(metadata_of(field("c", items))))
    # A file may lack the column, and it may have a default value there; or the footer does not say it.
    other = indexing_of(metadata_of(field("d", "long")))
    assert stats_of(struct, 3, other) == {"numRecords": 3, "tightBounds": False}
    silent = footer_of(pa.array([1, None]), write_statistics=False)
    assert stats_of(silent, 2, indexing_of(metadata_of(field("c", "long")))) == {"numRecords": 2, "tightBounds": False}


texts = st.text(st.sampled_from("az~\x7f\x80é\ud7ff\ue000\uffff\U0001f600" + LAST_CHARACTER), min_size=1, max_size=12)


@given(st.lists(texts, min_size=1, max_size=4), st.integers(1, 5))
@example([LAST_CHARACTER * 12], 5)
@example([LAST_CHARACTER * 12], 6)
def test_cut_texts(values: list[str], characters: int) -> None:
    """No value is outside of the bounds in the order of UTF-8's bytes, and these have no more than they need."""
    column = field("c", "string")
    indexing = indexing_of(metadata_of(column, dataSkippingStringPrefixLength=str(characters)))
    stats = stats_of(footer_of(pa.array(values)), len(values), indexing)
    if "maxValues" not in stats:
        assert max(values).count(LAST_CHARACTER) > characters
        return
    low, high = stats["minValues"]["c"], stats["maxValues"]["c"]
    assert low.encode() <= min(value.encode() for value in values)
    assert high.encode() >= max(value.encode() for value in values)
    assert len(low) <= characters
    assert len(high) <= 2 * characters + 1
    assert high in values or high[-1] in (LAST_ASCII, LAST_CHARACTER)


INSIDE = {"type": "struct", "fields": [field("x", "long"), field("Y.z", "string")]}
COLUMNS = (field("a", "long"), field("Part", "string"), field("s", INSIDE), field("b", "long"))


@pytest.mark.parametrize(
    ("configuration", "paths"),
    [
        ({}, ["a", "Part", "s/x", "s/Y.z", "b"]),
        ({"dataSkippingNumIndexedCols": "3"}, ["a", "Part", "s/x"]),
        ({"dataSkippingNumIndexedCols": "0"}, []),
        ({"dataSkippingNumIndexedCols": "-1"}, ["a", "Part", "s/x", "s/Y.z", "b"]),
        ({"dataSkippingNumIndexedCols": "many"}, []),
        ({"dataSkippingStatsColumns": "B , S", "dataSkippingNumIndexedCols": "0"}, ["s/x", "s/Y.z", "b"]),
        ({"dataSkippingStatsColumns": "s.`y.z`,`a`"}, ["a", "s/Y.z"]),
        ({"dataSkippingStatsColumns": "s.x.y"}, []),
        ({"dataSkippingStatsColumns": "a,,"}, []),
    ],
)
def test_columns_with_statistics(configuration: dict[str, str], paths: list[str]) -> None:
    """The table's properties say it; what partitions the table is not in its files."""
    indexing = indexing_of(metadata_of(*COLUMNS, field("part", "string"), **configuration))
    assert ["/".join(column.path) for column in indexing.columns] == paths


def test_column_mapping() -> None:
    """Physical names, and by ids those of a file's fields, whatever their names; one that is there twice is none."""
    mapped = {"delta.columnMapping.id": 5, "delta.columnMapping.physicalName": "col-5"}
    for mode, name, number, is_found in (
        ("name", "col-5", 9, True),
        ("name", "c", 5, False),
        ("id", "old", 5, True),
        ("id", "col-5", 9, False),
    ):
        indexing = indexing_of(metadata_of(field("c", "long", mapped), **{"columnMapping.mode": mode}))
        schema = pa.schema([pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(number)})])
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table([pa.array([3, 4])], schema=schema), sink)
        footer = from_arrow(pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata)
        stats = stats_of(footer, 2, indexing)
        assert stats.get("minValues") == ({"col-5": 3} if is_found else None)
    twice = pa.schema([pa.field(name, pa.int64(), metadata={"PARQUET:field_id": "5"}) for name in "ab"])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([pa.array([3]), pa.array([4])], schema=twice), sink)
    footer = from_arrow(pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata)
    assert "minValues" not in stats_of(footer, 1, indexing)


def test_only_files_without_statistics_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, if it gets a vector. A file whose statistics are of another number of rows has none.

    Of the first file, one row is deleted already, and 99 are null: as many as are live, and not all.
    """
    table = HandmadeTable(tmp_path / "t")
    table.create()
    paths = [
        table.write_file([(100 * file + row, f"p{file}", "v" if row == 7 else None) for row in range(100)])
        for file in range(5)
    ]
    adds = [table.add(path) for path in paths]
    for number, action in enumerate(adds):
        if number in (0, 3, 4):
            action["add"].pop("stats")
    adds[1]["add"]["stats"] = '{"numRecords": 99}'
    table.commit(adds)
    table.commit(table.delete({paths[0]: [50]}), operation="DELETE")
    older = json.loads(table.commit_path(2).read_text().splitlines()[-1])
    older["add"].pop("stats")
    table.commit([older])
    read = []

    def counted(storage: FileIOStorage, path: str, *arguments: Any) -> Any:
        read.append(path.rpartition("/")[2])
        return load_stats(storage, path, *arguments)

    monkeypatch.setattr("daemon.delta_writer.commit.load_stats", counted)
    delete_rows(str(table.folder), "id IN (5, 105, 205) OR id >= 400")
    assert sorted(read) == sorted(paths[:2])
    lines = map(json.loads, table.commit_path(4).read_text().splitlines())
    stats = {line["add"]["path"]: json.loads(line["add"]["stats"]) for line in lines if "add" in line}
    assert stats[paths[0]] == {
        "numRecords": 100,
        "minValues": {"id": 0, "part": "p0", "value": "v"},
        "maxValues": {"id": 99, "part": "p0", "value": "v"},
        "nullCount": {"id": 0, "part": 0, "value": 99},
        "tightBounds": False,
    }
    assert stats[paths[1]]["maxValues"]["id"] == 199
    assert stats[paths[2]]["maxValues"] == {"id": 299}


def test_one_request_and_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A footer is read by one request; what we cannot read, such as encrypted columns, is left to those who can."""
    path, indexing = tmp_path / "f.parquet", indexing_of(metadata_of(field("c", "long")))
    pq.write_table(pa.table([pa.array([3, 4])], ["c"]), path)
    storage, requests = FileIOStorage(), []
    tail = storage.read_tail
    monkeypatch.setattr(storage, "read_tail", lambda *arguments: requests.append(arguments) or tail(*arguments))
    assert load_stats(storage, f"file://{path}", 2, indexing)["minValues"] == {"c": 3}
    assert len(requests) == 1
    footer = from_arrow(pq.read_metadata(path))
    path.write_bytes(b"PAR1" + encode_footer({**footer, form.ENCRYPTION: (12, {})}))
    assert load_stats(storage, f"file://{path}", 2, indexing) == {}
