"""A new footer: what Delta finds in the pages is what readers find there, and what no footer can mend stays refused."""

from __future__ import annotations

import io
import json
import pickle
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.config.settings import Reader
from daemon.errors import CorruptInput, MirrorKind, Unsupported
from daemon.mirror import parquet
from daemon.mirror.compact import BINARY, I32, LIST, STRUCT, List, Struct
from daemon.mirror.decision import plan_mirror
from daemon.mirror.footer import mend_footer
from daemon.mirror.parquet import as_arrow, encode_footer, load_footer, parse_footer, parse_schema, with_schema
from daemon.store.storage import FileIOStorage
from daemon.translate.schema import TableSchema
from tests.kit.archive import FOLDER, Archive
from tests.kit.mirror_files import (
    check_schema,
    column,
    field,
    ids_of,
    list_of,
    map_of,
    mirrored,
    planned,
    rows_by_readers,
    struct_of,
    table_of,
)

MOMENT = datetime(2020, 2, 3, 4, 5, 6, 7000, UTC)
ROWS: dict[str, list[Any]] = {
    "l": [[1, None], [], None],
    "m": [[("a", [1.5])], [], None],
    "s": [{"x": [[{"y": 1}]]}, {"x": None}, None],
}
INNER = struct_of(column("y", "long", 31))
NESTED = table_of(
    column("l", list_of("long"), 1, {"l.element": 11}),
    column("m", map_of("string", list_of("double")), 2, {"m.key": 12, "m.value": 13, "m.value.element": 14}),
    column("s", struct_of(column("x", list_of(list_of(INNER)), 4, {"x.element": 15, "x.element.element": 16})), 3),
)


def written(path: Path, rows: pa.Table, **options: Any) -> Path:
    pq.write_table(rows, path, row_group_size=2, **options)
    return path


def test_what_stays_refused_promises_no_mirror(tmp_path: Path) -> None:
    """A file that is refused by the new footer as by its own: the hint names no setting that would not help."""
    path = written(tmp_path / "f.parquet", pa.table({"a": [1]}))

    def refuse(_: pq.FileMetaData) -> None:
        raise Unsupported("it is odd", hint="Rewrite it.").lift_by("footer")

    with pytest.raises(Unsupported) as raised:
        plan_mirror(str(path), load_footer(FileIOStorage(), str(path)).metadata, table_of(column("a", "long")), refuse)
    assert (raised.value.hint, raised.value.lifted_by) == ("Rewrite it.", None)


def renamed(path: Path, names: dict[str, str]) -> Path:
    """The file with other names of the elements of its schema, as older writers have them."""
    footer = load_footer(FileIOStorage(), str(path))
    root = parse_schema(footer.metadata)

    def walk(node: parquet.Node) -> None:
        for each in node.children:
            walk(each)
            each.put(parquet.NAME, BINARY, names.get(each.name, each.name).encode())

    walk(root)
    path.write_bytes(path.read_bytes()[: footer.start] + encode_footer(with_schema(footer.metadata, root)))
    return path


def agree(path: Path, rows: pa.Table, table: TableSchema) -> Path:
    """Make the mirror that is planned, of a new footer, and ask all readers."""
    plan = planned(path, table)
    assert plan is not None and plan.kind == "footer" and plan.footer is not None
    mirror = mirrored(path, plan.footer)
    assert planned(mirror, table) is None
    for reader, found in rows_by_readers(mirror).items():
        assert found == rows.to_pylist(), reader
    return mirror


def test_elements_get_their_ids(tmp_path: Path) -> None:
    """Of lists and maps under column mapping, at any depth; columns have ids already."""
    kinds = {
        "l": pa.list_(pa.int64()),
        "m": pa.map_(pa.string(), pa.list_(pa.float64())),
        "s": pa.struct([field("x", pa.list_(pa.list_(pa.struct([field("y", pa.int64(), 31)]))), 4)]),
    }
    schema = pa.schema([field(name, kind, number) for number, (name, kind) in enumerate(kinds.items(), start=1)])
    rows = pa.table(ROWS, schema=schema)
    mirror = agree(written(tmp_path / "f.parquet", rows), rows, NESTED)
    assert ids_of(pq.read_schema(mirror)) == {
        "l": 1,
        "l.element": 11,
        "m": 2,
        "m.key": 12,
        "m.value": 13,
        "m.value.element": 14,
        "s": 3,
        "s.x": 4,
        "s.x.element": 15,
        "s.x.element.element": 16,
        "s.x.element.element.y": 31,
    }


BY = (Reader.SPARK, Reader.DUCKDB)
VARIANT = pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary())])


@pytest.mark.parametrize("ids", [False, True])
def test_variants_get_their_annotation(ids: bool, tmp_path: Path) -> None:
    """Spark before 4.1 writes none, and DuckDB takes them for structs: at the top, and in structs, lists and maps."""
    one = {"metadata": b"\1\0\0", "value": b"\x0c\x07"}
    kinds = {
        "v": VARIANT,
        "s": pa.struct([field("x", VARIANT, 3 if ids else None)]),
        **({} if ids else {"l": pa.list_(VARIANT), "m": pa.map_(pa.string(), VARIANT)}),
    }
    schema = pa.schema(
        [field(name, kind, number if ids else None) for number, (name, kind) in enumerate(kinds.items(), 1)]
    )
    rows = {"v": [one, None], "s": [{"x": one}, None], "l": [[one, None], []], "m": [[("k", one)], None]}
    path = written(tmp_path / "f.parquet", pa.table({name: rows[name] for name in kinds}, schema=schema))
    inner = struct_of(column("x", "variant", 3 if ids else None))
    delta = {"v": "variant", "s": inner, "l": list_of("variant"), "m": map_of("string", "variant")}
    table = table_of(
        *(column(name, delta[name], number if ids else None) for number, name in enumerate(kinds, 1)), readers=BY
    )
    plan = planned(path, table)
    assert plan is not None and plan.footer is not None and "annotation of variants" in plan.reason
    mirror = mirrored(path, plan.footer)
    assert planned(mirror, table) is None
    assert check_schema(pq.read_metadata(mirror), table).traits.is_unvectorized, "of those in a struct"
    with duckdb.connect() as connection:
        found = connection.sql(f"SELECT * FROM read_parquet('{mirror}')").fetchall()
    assert found == [(7, {"x": 7}, [7, None], {"k": 7})[: len(kinds)], (None, None, [], None)[: len(kinds)]]


@pytest.mark.parametrize(
    "stored", [pa.binary(), pa.struct([("value", pa.binary())]), pa.struct([*VARIANT, pa.field("more", pa.binary())])]
)
def test_what_is_no_variant_stays_refused(stored: pa.DataType, tmp_path: Path) -> None:
    path = written(tmp_path / "f.parquet", pa.table({"v": pa.nulls(1, stored)}))
    with pytest.raises(Unsupported, match="column v of the file is stored as") as refused:
        planned(path, table_of(column("v", "variant"), readers=BY))
    assert refused.value.lifted_by is None


@pytest.mark.parametrize("ids", [False, True])
def test_older_names_in_lists_and_maps(ids: bool, tmp_path: Path) -> None:
    """Spark's legacy lists of three levels, and maps of delta-rs, which DuckDB reads as null."""
    rows = pa.table({name: ROWS[name] for name in "lm"}, schema=pa.schema([
        field("l", pa.list_(pa.int64()), 1 if ids else None),
        field("m", pa.map_(pa.string(), pa.list_(pa.float64())), 2 if ids else None),
    ]))  # fmt: skip
    path = renamed(
        written(tmp_path / "f.parquet", rows),
        {"list": "bag", "element": "array_element", "key_value": "entries", "key": "keys", "value": "values"},
    )
    columns = [column("l", list_of("long")), column("m", map_of("string", list_of("double")))]
    mirror = agree(path, rows, TableSchema(*_without_s()) if ids else table_of(*columns))
    assert [pq.ParquetFile(mirror).schema.column(number).path for number in range(3)] == [
        "l.list.element",
        "m.key_value.key",
        "m.key_value.value.list.element",
    ]


def _without_s() -> tuple[Any, ...]:
    table = table_of(
        column("l", list_of("long"), 1, {"l.element": 11}),
        column("m", map_of("string", list_of("double")), 2, {"m.key": 12, "m.value": 13, "m.value.element": 14}),
    )
    return table.schema, table.specs, table.spec_id, table.name_mapping


@pytest.mark.parametrize("to_utc", [False, True])
@pytest.mark.parametrize("unit", ["ms", "us"])
def test_the_flag_of_utc(to_utc: bool, unit: str, tmp_path: Path) -> None:
    """Older delta-rs leaves it out; Spark reads a timestamp by the table's type."""
    stored = pa.table({"t": pa.array([MOMENT, None]).cast(pa.timestamp("us")).cast(pa.timestamp(unit))})
    if not to_utc:
        stored = stored.cast(pa.schema([field("t", pa.timestamp(unit, "UTC"))]))
    rows = [{"t": MOMENT if to_utc else MOMENT.replace(tzinfo=None)}, {"t": None}]
    table = table_of(column("t", "timestamp" if to_utc else "timestamp_ntz"))
    mirror = agree(written(tmp_path / "f.parquet", stored), pa.table({"t": [row["t"] for row in rows]}), table)
    (found,) = (pq.ParquetFile(mirror).schema.column(0),)
    assert json.loads(found.logical_type.to_json())["isAdjustedToUTC"] is to_utc
    assert found.converted_type == ({"ms": "TIMESTAMP_MILLIS", "us": "TIMESTAMP_MICROS"}[unit] if to_utc else "NONE")


@pytest.mark.parametrize(
    ("delta", "stored", "values"),
    [
        ("timestamp", pa.timestamp("us", "Europe/Paris"), [MOMENT, None]),
        ("timestamp", pa.timestamp("us", "Z"), [MOMENT, None]),
        ("date", pa.int32(), [18295, None]),
        ("string", pa.binary(), [b"a", None]),
        ("string", pa.json_(), ['{"a":1}', None]),
        ("binary", pa.string(), ["a", None]),
        ("integer", pa.uint16(), [65535, None]),
        ("long", pa.uint8(), [255, None]),
        ("long", pa.duration("us"), [5, None]),
        ("integer", pa.null(), [None, None]),
        ("long", pa.null(), [None, None]),
        (list_of("long"), pa.list_(pa.int64(), 2), [[1, 2], None]),
    ],
)
def test_annotations_that_readers_take_otherwise(delta: Any, stored: pa.DataType, values: Any, tmp_path: Path) -> None:
    """Spark reads the same values with another annotation, or without one; Arrow's own schema is left out."""
    array = pa.array(values, stored)
    plan_table = table_of(column("c", delta))
    path = written(tmp_path / "f.parquet", pa.table({"c": array}))
    plan = planned(path, plan_table)
    assert plan is not None and plan.kind == "footer" and plan.footer is not None
    if isinstance(delta, str) and stored in (pa.int32(), pa.binary(), pa.string()):
        values = [{"date": date(2020, 2, 3), "string": "a", "binary": b"a"}[delta], None]
    mirror = mirrored(path, plan.footer)
    for reader, rows in rows_by_readers(mirror).items():
        assert [row["c"] for row in rows] == values, reader
    assert not pq.ParquetFile(mirror).metadata.metadata


def test_columns_in_another_case(tmp_path: Path) -> None:
    """They get the name by which the name mapping knows them; in lists and maps, PyIceberg knows no other."""
    stored = pa.table({"L": pa.array([[[{"Y": 1}]]], pa.list_(pa.list_(pa.struct([("Y", pa.int64())])))), "Other": [1]})
    table = table_of(column("l", list_of(list_of(struct_of(column("y", "long"))))))
    path = written(tmp_path / "f.parquet", stored)
    rows = pa.table({"l": [[[{"y": 1}]]], "Other": [1]})
    agree(path, rows, table)


@pytest.mark.parametrize(
    "fields",
    [
        [field("a", pa.int64(), 1), field("b", pa.int64())],
        [field("a", pa.int64(), 2), field("b", pa.int64(), 1)],
        [field("a", pa.int64(), 1), field("b", pa.int64(), 7), field("h", pa.int64(), 2)],
    ],
)
def test_ids_that_lead_elsewhere(fields: list[pa.Field], tmp_path: Path) -> None:
    """By name, Delta does not look at them."""
    rows = pa.table([pa.array([number]) for number, _ in enumerate(fields)], schema=pa.schema(fields))
    table = table_of(column("a", "long", 1), column("b", "long", 2))
    mirror = agree(written(tmp_path / "f.parquet", rows), rows, table)
    found = ids_of(pq.read_schema(mirror))
    assert (found.pop("a"), found.pop("b"), *found.values()) == (1, 2, *[None] * (len(fields) - 2))


@pytest.mark.parametrize(
    "fields",
    [[field("a", pa.int64(), 2)], [field("a", pa.int64())], [field("a", pa.int64(), 1), field("h", pa.int64(), 2)]],
)
def test_by_id_other_ids_are_other_columns(fields: list[pa.Field], tmp_path: Path) -> None:
    """Delta on Spark looks at nothing else then, so nothing says what the file means."""
    rows = pa.table([pa.array([1]) for _ in fields], schema=pa.schema(fields))
    table = table_of(column("a", "long", 1), column("b", "long", 2), mode="id")
    with pytest.raises(Unsupported) as raised:
        planned(written(tmp_path / "f.parquet", rows), table)
    assert raised.value.lifted_by is None


def test_by_id_elements_get_their_ids(tmp_path: Path) -> None:
    """What lists have inside has no id for Delta, whatever the mode."""
    schema = pa.schema([field("l", pa.list_(pa.int64()), 1)])
    rows = pa.table({"l": ROWS["l"]}, schema=schema)
    table = table_of(column("l", list_of("long"), 1, {"l.element": 11}), mode="id")
    mirror = agree(written(tmp_path / "f.parquet", rows), rows, table)
    assert ids_of(pq.read_schema(mirror)) == {"l": 1, "l.element": 11}


@pytest.mark.parametrize(
    "stored", [pa.null(), pa.duration("ms"), pa.time32("ms"), pa.time64("ns"), pa.decimal256(60, 2)]
)
def test_what_pyiceberg_cannot_take_in_other_columns(stored: pa.DataType, tmp_path: Path) -> None:
    """A column that the table does not have keeps its values, and loses its annotation."""
    rows = pa.table({"a": [1, 2], "h": pa.array([None, None], stored)})
    agree(written(tmp_path / "f.parquet", rows), rows, table_of(column("a", "long")))


@pytest.mark.parametrize(
    ("delta", "stored", "kind"),
    [
        ("double", pa.int32(), "rewrite"),
        ("decimal(12,2)", pa.int32(), "rewrite"),
        ("decimal(22,2)", pa.int64(), "rewrite"),
        ("decimal(21,2)", pa.int64(), None),
        ("decimal(20,4)", pa.decimal128(9, 2), "rewrite"),
        ("decimal(10,4)", pa.decimal128(9, 2), None),
        ("timestamp_ntz", pa.date32(), "rewrite"),
        ("long", pa.uint32(), "rewrite"),
        ("binary", pa.binary(4), "rewrite"),
        ("double", pa.null(), "rewrite"),
        ("string", pa.null(), None),
        ("integer", pa.int64(), None),
        ("float", pa.float64(), None),
        ("timestamp", pa.timestamp("ns", "UTC"), None),
        ("string", pa.int32(), None),
    ],
)
def test_what_no_footer_mends(delta: str, stored: pa.DataType, kind: MirrorKind | None, tmp_path: Path) -> None:
    """Values that have to be written again, and values that Delta on Spark does not read itself."""
    path = written(tmp_path / "f.parquet", pa.table({"c": pa.array([None], stored)}))
    if kind:
        plan = planned(path, table_of(column("c", delta)))
        assert plan is not None and plan.kind == kind and plan.footer is None
        return
    with pytest.raises(Unsupported, match="column c of the file is stored as") as raised:
        planned(path, table_of(column("c", delta)))
    assert raised.value.lifted_by is None


def test_a_file_that_readers_read_needs_no_mirror(tmp_path: Path) -> None:
    """One with a path that they cut needs a copy."""
    rows = pa.table({"a": [1]})
    assert planned(written(tmp_path / "f.parquet", rows), table_of(column("a", "long"))) is None
    plan = planned(written(tmp_path / "a#b?.parquet", rows), table_of(column("a", "long")))
    assert plan is not None and plan.kind == "copy"


def spark_files(test: str) -> dict[str, bytes]:
    """The data files that Spark wrote in a test."""
    (archive,) = [Archive.read(path) for path in (FOLDER / "test_types").glob(f"{test}*")]
    return {
        path: archive.contents[digest]
        for call in archive.calls
        for path, digest in call.changes
        if digest and path.endswith(".parquet") and "_delta_log" not in path
    }


def test_a_list_in_the_older_layout_of_spark(tmp_path: Path) -> None:
    """Of three levels, `l.bag.array`, with Spark's pages."""
    (data,) = spark_files("test_lists_in_the_older_layout").values()
    (tmp_path / "f.parquet").write_bytes(data)
    rows = pq.ParquetFile(tmp_path / "f.parquet").read()
    assert rows.column_names == ["id", "l"]
    agree(tmp_path / "f.parquet", rows, table_of(column("id", "long"), column("l", list_of("integer"))))


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("is_annotated", [False, True])
@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.struct([pa.field("y", pa.int64())]), pa.struct({"y": pa.int64(), "z": pa.string()})]
)
def test_lists_of_two_levels(kind: pa.DataType, is_annotated: bool, ids: bool, tmp_path: Path) -> None:
    """A required element below a group of its own has the levels of a repeated one, so the pages stay as they are."""
    elements = (
        [1, 2, 3]
        if kind == pa.int64()
        else [{each.name: None for each in kind} | {"y": number} for number in (1, 2, 3)]
    )
    lists = [elements[:2], [], elements[2:], [] if not is_annotated else None]
    number = 1 if ids else None
    kept = field("l", pa.list_(pa.field("element", kind, nullable=False)), number).with_nullable(is_annotated)
    rows = pa.table(
        {"l": lists, "x": [1, 2, 3, 4]}, schema=pa.schema([kept, field("x", pa.int64(), 2 if ids else None)])
    )
    path = written(tmp_path / "f.parquet", rows)
    footer = load_footer(FileIOStorage(), str(path))
    root = parse_schema(footer.metadata)
    node = root.children[0]
    element = node.children[0].children[0]
    element.put(parquet.REPETITION, I32, parquet.REPEATED)
    element.put(parquet.NAME, BINARY, b"array" if is_annotated else b"l")
    if is_annotated:
        node.children[0] = element
    else:
        root.children[0] = element
        if ids:
            element.put(parquet.FIELD_ID, I32, 1)
    path.write_bytes(path.read_bytes()[: footer.start] + encode_footer(with_schema(footer.metadata, root)))
    assert pq.ParquetFile(path).schema.column(0).path in ("l.array", "l.array.y", "l", "l.y")
    assert pq.ParquetFile(path).read()["l"].to_pylist() == lists
    delta = (
        "long"
        if kind == pa.int64()
        else struct_of(column("y", "long", 12 if ids else None), column("z", "string", 13 if ids else None))
    )
    columns = [
        column("l", list_of(delta), number, {"l.element": 11} if ids else None),
        column("x", "long", 2 if ids else None),
    ]
    mirror = agree(path, rows, table_of(*columns))
    assert pq.ParquetFile(mirror).schema.column(0).path in ("l.list.element", "l.list.element.y")
    assert not ids or ids_of(pq.read_schema(mirror))["l.element"] == 11


def plain(tmp_path: Path) -> tuple[Path, Struct]:
    path = written(tmp_path / "f.parquet", pa.table({"a": [1], "b": [2]}))
    return path, load_footer(FileIOStorage(), str(path)).metadata


def changed(struct: Struct, path: tuple[int, ...], value: tuple[int, Any] | None) -> Struct:
    """A copy of the tree, with another value at the path of field ids; of lists, the first item is meant."""
    field_id, *rest = path
    if not rest:
        kept = {key: each for key, each in struct.items() if key != field_id}
        return kept if value is None else {**kept, field_id: value}
    kind, inner = struct[field_id]
    if isinstance(inner, List):
        return {
            **struct,
            field_id: (kind, List(inner.kind, [changed(inner.items[0], tuple(rest), value), *inner.items[1:]])),
        }
    return {**struct, field_id: (kind, changed(inner, tuple(rest), value))}


CHUNK = (parquet.ROW_GROUPS, parquet.CHUNKS)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ((*CHUNK, parquet.CRYPTO_METADATA), (STRUCT, {}), "the file has encrypted columns"),
        ((*CHUNK, parquet.FILE_PATH), (BINARY, b"other.parquet"), "the file has columns in other files"),
    ],
)
def test_columns_that_are_not_in_the_file_are_refused(path: Any, value: Any, says: str, tmp_path: Path) -> None:
    """No mirror helps: nobody has the keys, and Delta does not read such a file."""
    _, footer = plain(tmp_path)
    with pytest.raises(Unsupported, match=says) as raised:
        mend_footer(changed(footer, path, value), table_of(column("a", "long")))
    assert raised.value.lifted_by is None


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ((*CHUNK, parquet.CHUNK_METADATA), None, "a row group has another column in the place of a"),
        ((*CHUNK, parquet.CHUNK_METADATA, parquet.PATH_IN_SCHEMA), (LIST, List(BINARY, [b"x"])), "in the place of a"),
        ((*CHUNK, parquet.CHUNK_METADATA, parquet.PATH_IN_SCHEMA), (I32, 3), "its field 3 is no list"),
        (CHUNK, (LIST, List(STRUCT, [])), "a row group has 0 columns, but the schema 2"),
        ((parquet.SCHEMA,), None, "its schema is no tree"),
        ((parquet.SCHEMA, parquet.CHILDREN), (I32, 1), "its schema has elements beside the root"),
        ((parquet.SCHEMA, parquet.CHILDREN), (I32, 1 << 30), "its schema is no tree"),
        ((parquet.SCHEMA, parquet.CHILDREN), (BINARY, b"2"), "a column has a property of another type"),
        ((parquet.SCHEMA, parquet.CONVERTED), (LIST, List(I32, [1])), "a column has a property of another type"),
        ((parquet.SCHEMA, parquet.CHILDREN), (I32, -1), "its schema has elements beside the root"),
        ((parquet.SCHEMA, parquet.NAME), (BINARY, b"\xff"), "a column's name is not UTF-8"),
    ],
)
def test_footers_that_contradict_themselves_are_refused(path: Any, value: Any, says: str, tmp_path: Path) -> None:
    """Each is Thrift, and no footer."""
    _, footer = plain(tmp_path)
    with pytest.raises(CorruptInput, match=f"the Parquet footer is damaged: .*{says}"):
        mend_footer(changed(footer, path, value), table_of(column("a", "long")))


def test_groups_in_groups_are_bounded(tmp_path: Path) -> None:
    """A schema of many levels would end the process otherwise."""
    _, footer = plain(tmp_path)
    group = {parquet.NAME: (BINARY, b"g"), parquet.CHILDREN: (I32, 1)}
    with pytest.raises(CorruptInput, match="its schema is no tree"):
        parse_schema({**footer, parquet.SCHEMA: (LIST, List(STRUCT, [group] * 100_000))})


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        (b"", "the file ends without a whole Parquet footer"),
        (b"PAR1", "the file ends without a whole Parquet footer"),
        (b"\0\0\0\0PAR1", "the file ends without a whole Parquet footer"),
        (b"\x00\x02\0\0\0PAR1", "the file ends without a whole Parquet footer"),
        (b"\xff\xff\xff\xffPAR1", "the file ends without a whole Parquet footer"),
        (b"\x00\x00\x02\0\0\0PAR1", "it has 2 bytes, of which 1 are used"),
        (b"\x15\x01\0\0\0PAR1", "it ends too early"),
    ],
)
def test_ends_that_are_no_footer_are_refused(tail: bytes, says: str) -> None:
    """Whatever size they claim."""
    with pytest.raises(CorruptInput, match=says):
        parse_footer(tail, 1000)


def test_encrypted_files_are_refused(tmp_path: Path) -> None:
    """By name: with an encrypted footer, and with a plain one and encrypted columns."""
    _, footer = plain(tmp_path)
    with pytest.raises(Unsupported, match="the file's footer is encrypted"):
        parse_footer(b"\0\0\0\0PARE", 1000)
    with pytest.raises(Unsupported, match="the file has encrypted columns"):
        parse_footer(encode_footer({**footer, parquet.ENCRYPTION: (STRUCT, {})}), 1000)


def test_large_footers_are_read_by_two_requests(tmp_path: Path) -> None:
    """And what nobody knows in them stays, with what is found by its offset."""
    path = written(
        tmp_path / "f.parquet", pa.table({f"c{number}": [1] for number in range(1500)}), write_page_index=True
    )
    footer = load_footer(FileIOStorage(), str(path))
    assert path.stat().st_size - footer.start > parquet.TAIL_BYTES
    unknown = {**footer.metadata, 77: (STRUCT, {1: (BINARY, b"later")})}
    mended = mend_footer(unknown, table_of(column("C0", "long")))
    assert mended[77] == unknown[77] and mended[7] == unknown[7]
    path.write_bytes(path.read_bytes()[: footer.start] + encode_footer(mended))
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).has_column_index
    assert pq.ParquetFile(path).read().column_names[:2] == ["C0", "c1"]
    assert as_arrow(mended).num_columns == 1500


def test_a_footer_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the end, where it says so: many files are read at the same time."""
    path, size = tmp_path / "f.parquet", parquet.FOOTER_BYTES_MAX + 1
    with path.open("wb") as file:
        file.seek(size)
        file.write(size.to_bytes(4, "little") + parquet.MAGIC)
    read, asked = FileIOStorage.read_tail, list[int]()
    monkeypatch.setattr(FileIOStorage, "read_tail", lambda *args: asked.append(args[2]) or read(*args))
    with pytest.raises(Unsupported, match="has 67,108,865 bytes; dvsync changes footers of at most"):
        load_footer(FileIOStorage(), str(path))
    assert asked == [parquet.TAIL_BYTES]


def test_errors_keep_what_lifts_them_across_processes() -> None:
    """They come from Spark's tasks."""
    error = Unsupported("no", hint="do", path="p", lifted_by="rewrite")
    again = pickle.loads(pickle.dumps(error))
    assert (again.lifted_by, again.path, again.message) == ("rewrite", "p", "no")


LEAVES = {pa.int64(): "long", pa.string(): "string", pa.float64(): "double"}
Drawn = tuple[pa.DataType, Any]


def nested(inner: st.SearchStrategy[Drawn]) -> st.SearchStrategy[Drawn]:
    """Types as Arrow and as Delta have them. Lists of two levels have no nulls in them."""
    lists = inner.map(lambda each: (pa.list_(pa.field("element", each[0], nullable=False)), list_of(each[1])))
    maps = inner.map(lambda each: (pa.map_(pa.string(), each[0]), map_of("string", each[1])))
    structs = st.lists(inner, min_size=1, max_size=3).map(
        lambda parts: (
            pa.struct([(f"f{number}", kind) for number, (kind, _) in enumerate(parts)]),
            struct_of(*(column(f"f{number}", delta) for number, (_, delta) in enumerate(parts))),
        )
    )
    return lists | maps | structs


TYPES = st.recursive(st.sampled_from(list(LEAVES.items())), nested, max_leaves=4)


def values_of(kind: pa.DataType, *, nullable: bool = True) -> st.SearchStrategy[Any]:
    if pa.types.is_list(kind):
        found = st.lists(values_of(kind.value_type, nullable=False), max_size=2)
    elif pa.types.is_map(kind):
        keys = st.sampled_from(["k", "l"])
        pairs = st.dictionaries(keys, values_of(kind.item_type), max_size=2).map(lambda each: list(each.items()))
        found = pairs
    elif pa.types.is_struct(kind):
        found = st.fixed_dictionaries({each.name: values_of(each.type) for each in kind})
    else:
        found = {pa.int64(): st.integers(0, 9), pa.string(): st.just("x"), pa.float64(): st.just(0.5)}[kind]
    return st.none() | found if nullable else found


def as_older(root: parquet.Node, draw: st.DrawFn, names: dict[str, str]) -> None:
    """Write the schema as older writers would: lists of two levels, or other names."""
    for each in root.children:
        # What is called a tuple has its name from its list.
        if not each.name.startswith(("f", "c", "array")) and not each.name.endswith("_tuple"):
            each.put(parquet.NAME, BINARY, names.get(each.name, each.name).encode())
        (inner,) = each.children if each.value(parquet.CONVERTED) == 3 else (None,)
        if inner is not None and draw(st.booleans()):
            (element,) = inner.children
            element.put(parquet.REPETITION, I32, parquet.REPEATED)
            element.put(parquet.NAME, BINARY, draw(st.sampled_from(["array", f"{each.name}_tuple"])).encode())
            each.children = [element]
        as_older(each, draw, names)


OLDER = [
    {},
    {"list": "bag", "element": "array_element"},
    {"key_value": "map", "key": "keys", "value": "values"},
    {"list": "entries", "element": "item", "key_value": "entries"},
]


@given(st.data())
def test_any_schema_in_an_older_layout(data: st.DataObject) -> None:
    """Lists, maps and structs in one another, as older writers have them: all readers show the rows."""
    kinds = data.draw(st.lists(TYPES, min_size=1, max_size=2), label="types")
    schema = pa.schema([(f"c{number}", kind) for number, (kind, _) in enumerate(kinds)])
    rows = [{each.name: data.draw(values_of(each.type)) for each in schema} for _ in range(3)]
    with TemporaryDirectory() as folder:
        path = written(Path(folder) / "f.parquet", pa.Table.from_pylist(rows, schema=schema), store_schema=False)
        footer = load_footer(FileIOStorage(), str(path))
        root = parse_schema(footer.metadata)
        names = data.draw(st.sampled_from(OLDER), label="names")

        @st.composite
        def older(draw: st.DrawFn) -> None:
            as_older(root, draw, names)

        data.draw(older())
        path.write_bytes(path.read_bytes()[: footer.start] + encode_footer(with_schema(footer.metadata, root)))
        table = table_of(*(column(f"c{number}", delta) for number, (_, delta) in enumerate(kinds)))
        plan = planned(path, table)
        mirror = mirrored(path, plan.footer) if plan and plan.footer else path
        assert planned(mirror, table) is None
        assert pq.ParquetFile(mirror).read().to_pylist() == rows
        for reader, found in rows_by_readers(mirror).items():
            assert found == rows, reader


FOOTER = b""


@given(st.data())
def test_damaged_footers_are_refused_or_mended(data: st.DataObject) -> None:
    """Whatever bytes are changed: nothing but the kinds of errors, within bounded time and memory."""
    global FOOTER  # noqa: PLW0603
    if not FOOTER:
        schema = pa.schema([field("l", pa.list_(pa.int64())), field("m", pa.map_(pa.string(), pa.timestamp("us")))])
        file = io.BytesIO()
        pq.write_table(schema.empty_table(), file)
        FOOTER = file.getvalue()
    changed = bytearray(FOOTER)
    # The schema is at the beginning of the footer; what the Arrow schema has in text does not matter.
    start = len(FOOTER) - 8 - int.from_bytes(FOOTER[-8:-4], "little")
    for place in data.draw(st.lists(st.integers(start, start + 200), min_size=1, max_size=4)):
        changed[place] = data.draw(st.integers(0, 255))
    table = table_of(column("L", list_of("long")), column("m", map_of("string", "timestamp")))
    with suppress(CorruptInput, Unsupported):
        footer = parse_footer(bytes(changed), len(changed))
        plan_mirror("f", footer.metadata, table, lambda found: check_schema(found, table))
