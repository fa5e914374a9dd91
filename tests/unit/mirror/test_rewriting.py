"""Rows written again: other types, calendars, partition values and columns; all else as it was, in the same order."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daemon.delta.actions import Metadata
from daemon.errors import AccountMismatch, CorruptInput, ObjectMissing, Unsupported
from daemon.mirror import copying, rewriting
from daemon.mirror.column_hashes import column_hashes
from daemon.mirror.defaults import defaults_of, parse_default
from daemon.mirror.footer import mend_footer
from daemon.mirror.making import make_mirrors
from daemon.mirror.parquet import encode_footer, load_footer
from daemon.mirror.rewriting import RewriteTask, check_rewrite, rewrite_file
from daemon.store.storage import FileIOStorage
from daemon.translate.schema import TableSchema
from tests.kit.mirror_files import column, field, ids_of, list_of, map_of, planned, rows_by_readers, struct_of, table_of
from tests.unit.mirror.test_footer import BY, VARIANT, spark_files

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rewritten(path: Path, table: TableSchema, partition: Any = None, defaults: Any = None) -> Path:
    mirror = path.with_name(f"mirror-of-{path.name}")
    task = RewriteTask(str(path), str(mirror), table, partition or {}, defaults or {})
    check_rewrite(load_footer(FileIOStorage(), str(path)).metadata, task)
    (written,) = make_mirrors(FileIOStorage(), {}, [task])
    assert written == {str(mirror): mirror.stat().st_size}
    assert pq.read_metadata(mirror).num_rows == pq.read_metadata(path).num_rows
    assert planned(mirror, table) is None
    return mirror


def agree(mirror: Path, rows: Sequence[dict[str, Any]]) -> None:
    for reader, found in rows_by_readers(mirror).items():
        assert found == rows, reader


@pytest.mark.parametrize(
    ("delta", "stored", "values", "expected"),
    [
        ("double", pa.int32(), [1, -(2**31), None], [1.0, -(2.0**31), None]),
        ("double", pa.int8(), [1, None], [1.0, None]),
        ("decimal(12,2)", pa.int32(), [2**31 - 1, None], [Decimal("2147483647.00"), None]),
        ("decimal(38,18)", pa.int64(), [-(2**63), None], [Decimal(-(2**63)), None]),
        ("decimal(20,4)", pa.decimal128(9, 2), [Decimal("-1234567.89")], [Decimal("-1234567.8900")]),
        ("timestamp_ntz", pa.date32(), [date(1, 1, 1), None], [datetime(1, 1, 1), None]),
        ("long", pa.uint32(), [2**32 - 1, None], [2**32 - 1, None]),
        ("binary", pa.binary(2), [b"ab", None], [b"ab", None]),
        ("double", pa.null(), [None], [None]),
    ],
)
def test_other_types(delta: str, stored: pa.DataType, values: Any, expected: Any, tmp_path: Path) -> None:
    """Each value is what Spark reads by the table's type, in columns and inside structs, lists and maps."""
    array = pa.array(values, stored)
    nested = pa.array([[("k", value)] for value in values], pa.map_(pa.string(), stored))
    lists = pa.array([{"x": [value, None]} for value in values], pa.struct([("x", pa.list_(stored))]))
    pq.write_table(pa.table({"c": array, "m": nested, "s": lists}), tmp_path / "f.parquet")
    columns = [
        column("c", delta),
        column("m", map_of("string", delta)),
        column("s", struct_of(column("x", list_of(delta)))),
    ]
    mirror = rewritten(tmp_path / "f.parquet", table_of(*columns))
    agree(mirror, [{"c": each, "m": [("k", each)], "s": {"x": [each, None]}} for each in expected])


@pytest.mark.parametrize("is_annotated", [True, False])
def test_variants_stay_what_they_are(is_annotated: bool, tmp_path: Path) -> None:
    """Shredded or not, at the top and inside others, also where the file says nothing of variants."""
    one, shredded = {"metadata": b"\1\0\0", "value": b"\x0c\x07"}, pa.struct([*VARIANT, ("typed_value", pa.int64())])
    rows = {
        "v": pa.array([one, None], VARIANT),
        "n": pa.array([1, None], pa.int32()),
        "w": pa.array([{"metadata": b"\1\0\0", "typed_value": 8}, one], shredded),
        "l": pa.array([[one, None], []], pa.list_(VARIANT)),
        "d": pa.array([2, 3], pa.int32()),
    }
    pq.write_table(pa.table(rows), path := tmp_path / "f.parquet")
    kinds = {"v": "variant", "n": "double", "w": "variant", "l": list_of("variant"), "d": "double"}
    table = table_of(*(column(name, kind) for name, kind in kinds.items()), readers=BY)
    if is_annotated:
        footer = load_footer(FileIOStorage(), str(path))
        path.write_bytes(path.read_bytes()[: footer.start] + encode_footer(mend_footer(footer.metadata, table)))
    mirror = rewritten(path, table)
    with duckdb.connect() as connection:
        found = connection.sql(f"SELECT v, n, w, l, d FROM read_parquet('{mirror}')").fetchall()
    assert found == [(7, 1.0, 8, [7, None], 2.0), (None, None, 7, [], 3.0)]


def test_what_stays_and_in_which_row_groups(tmp_path: Path) -> None:
    """Row groups keep their sizes, columns their codec, their ids, and dictionaries if they had some."""
    rows = pa.table(
        {
            "n": pa.array(range(10), pa.int32()),
            "text": [str(number % 3) for number in range(10)],
            "l": [[number, None] if number % 3 else None for number in range(10)],
            "hidden": pa.array([date(2020, 1, 1)] * 10, pa.date32()),
        },
        schema=pa.schema(
            [
                field("n", pa.int32(), 1),
                field("text", pa.string(), 2),
                field("l", pa.list_(pa.int64()), 3),
                field("hidden", pa.date32()),
            ]
        ),
    )
    codecs = {"n": "gzip", "text": "zstd", "l.list.element": "none", "hidden": "lz4"}
    path = tmp_path / "f.parquet"
    pq.write_table(rows, path, row_group_size=4, compression=codecs, use_dictionary=["text"])
    table = table_of(
        column("n", "double", 1), column("text", "string", 2), column("l", list_of("long"), 3, {"l.element": 4})
    )
    mirror = rewritten(path, table)
    agree(mirror, rows.to_pylist())
    found = pq.read_metadata(mirror)
    assert [found.row_group(number).num_rows for number in range(3)] == [4, 4, 2]
    chunks = [found.row_group(0).column(number) for number in range(4)]
    assert [chunk.compression for chunk in chunks] == ["GZIP", "ZSTD", "UNCOMPRESSED", "LZ4"]
    assert [chunk.has_dictionary_page for chunk in chunks] == [False, True, False, False]
    assert ids_of(pq.read_schema(mirror)) == {"n": 1, "text": 2, "l": 3, "l.element": 4, "hidden": None}
    assert found.metadata is None


def test_large_row_groups_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order stays, whatever the parts begin with."""
    monkeypatch.setattr(rewriting, "ROW_GROUP_BYTES_MAX", 1000)
    lists = pa.array([[number] * (number % 4) for number in range(1000)], pa.list_(pa.int32()))
    rows = pa.table({"n": pa.array(range(1000), pa.int32()), "l": lists})
    pq.write_table(rows, tmp_path / "f.parquet", use_dictionary=False)
    mirror = rewritten(tmp_path / "f.parquet", table_of(column("n", "double"), column("l", list_of("double"))))
    assert pq.read_metadata(mirror).num_row_groups > 4
    agree(mirror, rows.to_pylist())


def test_a_file_without_rows(tmp_path: Path) -> None:
    """With and without a row group."""
    for number, rows in enumerate(
        [pa.table({"n": pa.array([], pa.int32())}), pa.table({"n": pa.array([1], pa.int32())})]
    ):
        path = tmp_path / f"{number}.parquet"
        with pq.ParquetWriter(path, rows.schema) as writer:
            writer.write_table(rows.slice(0, 0))
            if number:
                writer.write_table(rows)
        agree(rewritten(path, table_of(column("n", "double"))), [{"n": 1.0}] * number)


DAYS = [date(1, 1, 1), date(1500, 3, 1), date(1582, 10, 4), date(1582, 10, 15), date(2020, 2, 3)]
# The days of these labels up to 1582-10-04 in the Julian calendar, as Spark's LEGACY mode stores them: in today's, the
# first is 0000-12-30, and the others are 1500-03-11 and 1582-10-14.
JULIAN_DAYS = [-719164, *((day - date(1970, 1, 1)).days for day in (date(1500, 3, 11), date(1582, 10, 14), *DAYS[3:]))]


def julian(path: Path, rows: pa.Table, keys: dict[str, str]) -> Path:
    pq.write_table(rows.replace_schema_metadata(keys), path, use_deprecated_int96_timestamps=False)
    return path


@pytest.mark.parametrize("keys", [{"version": "2.4.8"}, {"version": "3.5.0", "legacyDateTime": "", "timeZone": "UTC"}])
def test_days_of_the_julian_calendar(keys: dict[str, str], tmp_path: Path) -> None:
    """A label stays the same label; hidden columns change, too, because the table may get them later."""
    keys = {f"org.apache.spark.{key}": value for key, value in keys.items()}
    days = pa.array([*JULIAN_DAYS, None], pa.int32()).cast(pa.date32())
    local = pa.array([0, -1, None] * 2, pa.timestamp("us"))
    instants = pa.array([*(day * 86_400_000_000 + 1 for day in JULIAN_DAYS), None], pa.int64())
    rows = pa.table(
        {
            "d": days,
            "t": instants.cast(pa.timestamp("us", "UTC")),
            "l": pa.ListArray.from_arrays(pa.array(range(7), pa.int32()), days),
            "ntz": local,
            "h": days,
        }
    )
    table = table_of(
        column("d", "date"), column("t", "timestamp"), column("l", list_of("date")), column("ntz", "timestamp_ntz")
    )
    mirror = rewritten(julian(tmp_path / "f.parquet", rows, keys), table)
    at = timedelta(microseconds=1)
    for reader, found in rows_by_readers(mirror).items():
        assert [row["d"] for row in found] == [*DAYS, None], reader
        assert [row["h"] for row in found] == [*DAYS, None], reader
        assert [row["l"] for row in found] == [*([day] for day in DAYS), [None]], reader
        assert [row["t"] for row in found] == [
            *(datetime(day.year, day.month, day.day, tzinfo=UTC) + at for day in DAYS),
            None,
        ], reader
    assert pq.read_table(mirror)["ntz"].to_pylist() == local.to_pylist()
    assert pq.read_metadata(mirror).metadata is None


def test_days_before_the_year_1_and_zones_that_spark_does_not_know(tmp_path: Path) -> None:
    """Neither has an entry in Spark's table."""
    keys = {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}
    rows = pa.table({"d": pa.array([-719165], pa.int32()).cast(pa.date32())})
    path = julian(tmp_path / "f.parquet", rows, keys)
    with pytest.raises(Unsupported, match="the file has values before the year 1"):
        rewritten(path, table_of(column("d", "date")))
    rows = pa.table({"t": pa.array([0], pa.timestamp("us", "UTC"))})
    path = julian(tmp_path / "g.parquet", rows, {**keys, "org.apache.spark.timeZone": "Mars/Olympus"})
    with pytest.raises(Unsupported, match="the time zone 'Mars/Olympus'"):
        rewritten(path, table_of(column("t", "timestamp")))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["f.parquet", "g.parquet"]


@pytest.mark.parametrize("test", ["test_the_old_calendar_is_refused_date", "test_the_old_calendar_is_refused_int96"])
def test_the_old_calendar_as_spark_wrote_it(test: str, tmp_path: Path) -> None:
    """The rows that Spark wrote with LEGACY modes come back, whatever the day."""
    table = table_of(column("id", "integer"), column("day", "date"), column("moment", "timestamp"))
    found = []
    for number, data in enumerate(spark_files(test).values()):
        path = tmp_path / f"{number}.parquet"
        path.write_bytes(data)
        found += pq.read_table(rewritten(path, table)).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [
        {"id": 1, "day": date(1582, 10, 15), "moment": datetime(1900, 1, 1, tzinfo=UTC)},
        {"id": 2, "day": None, "moment": None},
        {"id": 3, "day": date(1400, 1, 1), "moment": datetime(1800, 1, 1, tzinfo=UTC)},
    ]


def test_int96_beyond_its_range(tmp_path: Path) -> None:
    """64-bit nanoseconds overflow; microseconds have room."""
    for number, data in enumerate(spark_files("test_int96_beyond_its_range").values()):
        path = tmp_path / f"{number}.parquet"
        path.write_bytes(data)
        stored = pq.read_schema(path)
        if "moments" in stored.names:
            kind: Any = map_of("string", list_of(struct_of(column("at", "timestamp"))))
            table = table_of(column("id", "integer"), column("moments", kind))
        else:
            table = table_of(column("id", "integer"), column("moment", "timestamp"))
        mirror = rewritten(path, table)
        footer = pq.ParquetFile(mirror).schema
        assert "INT96" not in [footer.column(place).physical_type for place in range(len(footer.names))]
        before = pq.ParquetFile(path, coerce_int96_timestamp_unit="us").read()
        found = pq.read_table(mirror)
        assert before.column(1).cast(found.schema.field(1).type).equals(found.column(1))


def test_partition_values_are_the_logs(tmp_path: Path) -> None:
    """Where the file contradicts them, and where it lacks them."""
    rows = pa.table({"a": [1, 2], "P": ["x", None], "d": [1, 2]})
    pq.write_table(rows, tmp_path / "f.parquet")
    columns = [column("a", "long"), column("p", "string"), column("d", "date"), column("q", "double")]
    columns += [column("t", "timestamp"), column("n", "decimal(5,2)"), column("z", "string")]
    table = table_of(*columns, partitions=["p", "d", "q", "t", "n", "z"])
    partition = {2: "log", 3: 18295, 4: 0.1, 5: 1_000_000, 6: Decimal("1.5"), 7: None}
    mirror = rewritten(tmp_path / "f.parquet", table, partition)
    same = {
        "p": "log",
        "d": date(2020, 2, 3),
        "q": 0.1,
        "t": EPOCH + timedelta(seconds=1),
        "n": Decimal("1.50"),
        "z": None,
    }
    agree(mirror, [{"a": 1, **same}, {"a": 2, **same}])


def test_columns_that_delta_fills(tmp_path: Path) -> None:
    """A column with EXISTS_DEFAULT has its value in all rows, and its id if the others have theirs."""
    rows = pa.table({"a": [1, 2]}, schema=pa.schema([field("a", pa.int64(), 1)]))
    pq.write_table(rows, tmp_path / "f.parquet")
    added = column("b", "string", 2)
    added["metadata"]["EXISTS_DEFAULT"] = "'it\\'s'"
    table = table_of(column("a", "long", 1), added)
    assert table.filled == {"b"}
    metadata = Metadata("t", json.dumps(struct_of(column("a", "long", 1), added)), [], {})
    defaults = {
        table.field_ids[name]: parse_default(sql, table.schema.find_type(2), name, "UTC")
        for name, sql in defaults_of(metadata).items()
    }
    mirror = rewritten(tmp_path / "f.parquet", table, defaults=defaults)
    agree(mirror, [{"a": 1, "b": "it's"}, {"a": 2, "b": "it's"}])
    assert ids_of(pq.read_schema(mirror)) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("sql", "delta", "value"),
    [
        ("NULL", "long", None),
        ("42", "long", 42),
        ("-42L", "long", -42),
        ("5S", "short", 5),
        ("1.5D", "double", 1.5),
        ("1e3", "double", 1000.0),
        ("1.50BD", "decimal(5,2)", Decimal("1.50")),
        ("CAST('2020-02-03' AS DATE)", "date", 18295),
        ("DATE '2020-02-03'", "date", 18295),
        ("TIMESTAMP '1970-01-01 00:00:01'", "timestamp", 1_000_000),
        ("cast(cast('1' as STRING) as BIGINT)", "long", 1),
        ("true", "boolean", True),
        ("'a''b'", "string", Unsupported),
        ("'a\\n'", "string", Unsupported),
        ("'a\\\\n'", "string", "a\\n"),
        ("''", "string", ""),
        ("X'00ff'", "binary", b"\0\xff"),
        ("'ab'", "binary", b"ab"),
        ("current_date()", "date", Unsupported),
        ("1 + 1", "long", Unsupported),
        ("2147483648", "integer", Unsupported),
        ("1.234", "decimal(5,2)", Unsupported),
        ("1", "string", Unsupported),
        ("array(1)", "string", Unsupported),
        ("NULL", "variant", Unsupported),
    ],
)
def test_literals_of_defaults(sql: str, delta: str, value: Any) -> None:
    """Spark's literals are read, everything else is refused."""
    kind = table_of(column("c", delta), readers=BY).schema.find_type("c")
    if value is Unsupported:
        with pytest.raises(Unsupported, match="with which Delta fills files that lack it, is no literal") as raised:
            parse_default(sql, kind, "c", "UTC")
        assert raised.value.lifted_by is None
    else:
        assert parse_default(sql, kind, "c", "UTC") == value


def test_what_cannot_be_written_is_refused_before(tmp_path: Path) -> None:
    """And says that no mirror helps."""
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "f.parquet")
    for table in (table_of(column("a", "long")), table_of(column("a", list_of("long")))):
        with pytest.raises(Unsupported, match="cannot be written as") as raised:
            rewritten(tmp_path / "f.parquet", table)
        assert raised.value.lifted_by is None
    missing = column("b", "long")
    missing["metadata"]["EXISTS_DEFAULT"] = "1"
    with pytest.raises(Unsupported, match="column b is missing in the file") as raised:
        rewritten(tmp_path / "f.parquet", table_of(column("a", "string"), missing))
    assert raised.value.lifted_by is None


def test_a_mirror_with_other_values_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the disk changes a byte."""
    pq.write_table(pa.table({"a": pa.array([7], pa.int32()), "b": ["x"]}), tmp_path / "f.parquet")
    real = copying.MirrorWriter.finish

    def finish(self: copying.MirrorWriter) -> None:
        real(self)
        path = Path(self.path)
        found = io.BytesIO()
        pq.write_table(pq.read_table(path).set_column(1, "b", pa.array(["y"])), found)
        path.write_bytes(found.getvalue())

    monkeypatch.setattr(copying.MirrorWriter, "finish", finish)
    with pytest.raises(AccountMismatch, match="the mirror has other rows than the file: 1 of 1, and other values in b"):
        rewritten(tmp_path / "f.parquet", table_of(column("a", "double"), column("b", "string")))
    assert [each.name for each in tmp_path.iterdir()] == ["f.parquet"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Damaged pages leave no mirror, and a missing file is missing."""
    path = tmp_path / "f.parquet"
    table = table_of(column("a", "double"))
    with pytest.raises(ObjectMissing):
        rewrite_file(RewriteTask(str(path), f"{tmp_path}/m", table, {}, {}), FileIOStorage(), {})
    pq.write_table(pa.table({"a": pa.array(range(1000), pa.int32())}), path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)
    with pytest.raises(CorruptInput, match="the file cannot be read"):
        rewrite_file(RewriteTask(str(path), f"{tmp_path}/m", table, {}, {}), FileIOStorage(), {})
    assert [each.name for each in tmp_path.iterdir()] == ["f.parquet"]


KINDS = {
    pa.int8(): [1, None, 3],
    pa.bool_(): [True, None, False],
    pa.float64(): [1.5, None, float("nan")],
    pa.string(): ["a", None, ""],
    pa.binary(): [b"a", None, b""],
    pa.binary(3): [b"abc", None, b"abd"],
    pa.decimal128(20, 2): [Decimal("1.5"), None, Decimal("-1.5")],
    pa.timestamp("us", "UTC"): [EPOCH, None, EPOCH],
    pa.date32(): [date(2020, 1, 1), None, date(1, 1, 1)],
    pa.list_(pa.list_(pa.string())): [[["a"], None], None, [[]]],
    pa.map_(pa.string(), pa.int32()): [[("a", 1)], None, []],
    pa.struct([("x", pa.int32()), ("y", pa.string())]): [{"x": 1, "y": None}, None, {"x": None, "y": "b"}],
    pa.null(): [None, None, None],
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_hashes_are_those_of_the_values(kind: pa.DataType) -> None:
    """Neither chunks nor slices matter; each value does, each null, and the order."""
    values = KINDS[kind]

    def hashed(*chunks: list[Any]) -> int:
        return column_hashes(pa.table({"c": pa.chunked_array([pa.array(chunk, kind) for chunk in chunks], kind)}))["c"]

    whole = hashed(values)
    assert hashed(values[:1], values[1:]) == whole
    sliced = pa.array([values[0], *values, values[0]], kind).slice(1, 3)
    assert column_hashes(pa.table({"c": sliced}))["c"] == whole
    if kind != pa.null():
        others = [values[::-1], [values[0], values[0], values[2]], [None, *values[1:]]]
        assert whole not in [hashed(each) for each in others if each != values]
    assert hashed() == 0
