"""A file's own schema: what every reader finds in it, and what would be shown otherwise than Delta shows it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.table.name_mapping import MappedField, NameMapping

from daemon.delta.actions import Metadata
from daemon.errors import Unsupported
from daemon.translate import file_schema
from daemon.translate.file_schema import FileSchema
from daemon.translate.name_mapping import HIDDEN_ID_START, with_unmapped
from daemon.translate.schema import TableSchema, translate_schema

INNER = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]}
DICT = {"type": "map", "keyType": "string", "valueType": INNER, "valueContainsNull": True}


def table_of(*columns: tuple[str, Any], ids: bool = False) -> TableSchema:
    fields = []
    for number, (name, kind) in enumerate(columns, start=1):
        mapping = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name} if ids else {}
        fields.append({"name": name, "type": kind, "nullable": True, "metadata": mapping})
    configuration = {"delta.columnMapping.mode": "name"} if ids else {}
    return translate_schema(Metadata("t", json.dumps({"type": "struct", "fields": fields}), [], configuration))


def check_file_schema(schema: pa.Schema, table: TableSchema) -> FileSchema:
    """With the columns as Parquet spells them today."""
    return file_schema.check_file_schema(
        schema, table, [path for each in schema for path in leaves(each.type, each.name)]
    )


def leaves(kind: pa.DataType, parent: str) -> Iterator[str]:
    if pa.types.is_struct(kind):
        for each in kind:
            yield from leaves(each.type, f"{parent}.{each.name}")
    elif pa.types.is_map(kind):
        yield from leaves(kind.key_type, f"{parent}.key_value.key")
        yield from leaves(kind.item_type, f"{parent}.key_value.value")
    elif hasattr(kind, "value_type") and not pa.types.is_dictionary(kind):
        yield from leaves(kind.value_type, f"{parent}.list.{'item' if kind.value_field.name == 'item' else 'element'}")
    else:
        yield parent


def ids_of(mapping: Iterable[MappedField], parent: str = "") -> dict[str, int | None]:
    found = {}
    for mapped in mapping:
        found[parent + mapped.names[0]] = mapped.field_id
        found |= ids_of(mapped.fields, f"{parent}{mapped.names[0]}.")
    return found


def field(name: str, kind: pa.DataType, number: int | None = None) -> pa.Field:
    return pa.field(name, kind, metadata=None if number is None else {"PARQUET:field_id": str(number)})


@pytest.mark.parametrize(
    ("delta", "stored"),
    [
        ("integer", pa.int16()),
        ("long", pa.int32()),
        ("double", pa.float32()),
        ("decimal(20,2)", pa.decimal128(9, 2)),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("string", pa.dictionary(pa.int8(), pa.large_string())),
        ("timestamp_ntz", pa.timestamp("s")),
        ("timestamp", pa.timestamp("us", "+00:00")),
        (INNER, pa.struct([("x", pa.int64())])),
        (DICT, pa.map_(pa.string(), pa.struct([("x", pa.int64())]))),
        ({"type": "array", "elementType": "long", "containsNull": True}, pa.list_(pa.int32())),
        ({"type": "array", "elementType": "long", "containsNull": True}, pa.large_list(pa.int64())),
    ],
)
def test_types_that_readers_take(delta: Any, stored: pa.DataType) -> None:
    """A narrower type than the table's is what files from before a widening have."""
    found = check_file_schema(pa.schema([field("c", stored)]), table_of(("c", delta)))
    assert (found.hidden, found.int96) == (frozenset(), {})


def test_int96_is_told() -> None:
    """INT96 timestamps have their field ids told, nested ones too."""
    table = table_of(("a", "timestamp"), ("l", {"type": "array", "elementType": "timestamp", "containsNull": True}))
    stored = pa.schema([field("a", pa.timestamp("ns")), field("l", pa.list_(pa.timestamp("ns")))])
    assert check_file_schema(stored, table).int96 == {1: "a", 3: "l"}


@pytest.mark.parametrize(
    ("delta", "stored", "place"),
    [
        ("integer", pa.int64(), "c"),
        ("double", pa.int32(), "c"),
        ("timestamp", pa.timestamp("us"), "c"),
        ("timestamp", pa.timestamp("ns", "UTC"), "c"),
        ("timestamp", pa.timestamp("us", "Z"), "c"),
        ("timestamp", pa.timestamp("us", "Europe/Paris"), "c"),
        ("timestamp_ntz", pa.timestamp("us", "UTC"), "c"),
        ("timestamp_ntz", pa.timestamp("ns"), "c"),
        ("timestamp_ntz", pa.date32(), "c"),
        ("decimal(5,2)", pa.decimal128(6, 2), "c"),
        ("decimal(5,2)", pa.decimal128(5, 3), "c"),
        ("string", pa.int32(), "c"),
        ("string", pa.binary(), "c"),
        ("binary", pa.string(), "c"),
        ("binary", pa.binary(16), "c"),
        ("binary", pa.uuid(), "c"),
        ("date", pa.date64(), "c"),
        ({"type": "array", "elementType": "long", "containsNull": True}, pa.list_(pa.int64(), 3), "c"),
        ("boolean", pa.null(), "c"),
        (INNER, pa.struct([("x", pa.string())]), "c.x"),
        (INNER, pa.list_(pa.int64()), "c"),
        (DICT, pa.map_(pa.int32(), pa.struct([("x", pa.int64())])), "c.key"),
        (DICT, pa.map_(pa.string(), pa.struct([("x", pa.float64())])), "c.value.x"),
    ],
)
def test_types_that_no_promotion_reaches_are_refused(delta: Any, stored: pa.DataType, place: str) -> None:
    """The refusal names the column and both types."""
    with pytest.raises(
        Unsupported, match=rf"^column {place} of the file is stored as .+, but the column's type is .+[:,] "
    ):
        check_file_schema(pa.schema([field("c", stored)]), table_of(("c", delta)))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            [field("a", pa.int64(), 1), field("b", pa.int64())],
            "column b of the file carries no field id, but the column's is 2",
        ),
        ([field("a", pa.int64(), 2), field("b", pa.int64(), 1)], "column a of the file carries the field id 2, but"),
        ([field("a", pa.int64()), field("other", pa.int64(), 2)], "column a of the file carries no field id"),
        ([field("other", pa.int64(), 2)], "column other of the file carries the field id 2 of another column"),
    ],
)
@pytest.mark.parametrize("ids", [False, True])
def test_ids_that_lead_elsewhere_are_refused(fields: list[pa.Field], says: str, ids: bool) -> None:
    """Readers go by ids as soon as a file has some: nulls, or another column's values, would be shown."""
    with pytest.raises(Unsupported, match=says):
        check_file_schema(pa.schema(fields), table_of(("a", "long"), ("b", "long"), ids=ids))


def test_ids_of_elements_are_needed_with_others() -> None:
    """A list without an id for its elements reads as null where columns have ids."""
    kind = {"type": "array", "elementType": "long", "containsNull": True}
    table = table_of(("l", kind))
    assert not check_file_schema(pa.schema([field("l", pa.list_(pa.int64()))]), table).hidden
    with pytest.raises(Unsupported, match=r"column l\.element of the file carries no field id, but the column's is 2"):
        check_file_schema(pa.schema([field("l", pa.list_(pa.int64()), 1)]), table)
    check_file_schema(pa.schema([field("l", pa.list_(field("element", pa.int64(), 2)), 1)]), table)


def test_another_spelling_is_another_name() -> None:
    """Delta finds `ID` and `S.X` where it looks for `id` and `s.x`; a name mapping does so if it has both names."""
    table = table_of(("id", "long"), ("s", INNER))
    # An older dvsync may have hidden such a name.
    table = replace(table, name_mapping=with_unmapped(table.name_mapping, [("ID",)]))
    found = check_file_schema(pa.schema([field("ID", pa.int64()), field("S", pa.struct([("X", pa.int64())]))]), table)
    assert (found.hidden, found.respelled) == (set(), {("ID",), ("S",), ("S", "X")})
    mapping = with_unmapped(table.name_mapping, found.traits.unmapped, table.schema.field_ids)
    assert [field.names for field in mapping] == [["id", "ID"], ["s", "S"]]
    assert [field.names for field in mapping.root[1].fields] == [["x", "X"]]


@pytest.mark.parametrize(("first", "second"), [("id", "ID"), ("ID", "id"), ("Id", "ID"), ("x", "X")])
def test_two_spellings_in_one_file_are_refused(first: str, second: str) -> None:
    """Delta on Spark cannot tell them apart, and DuckDB loses the columns after them, unless it goes by ids."""
    with pytest.raises(Unsupported, match=f"columns {first} and {second} of the file differ only in upper and lower"):
        check_file_schema(pa.schema([field(first, pa.int64()), field(second, pa.int64())]), table_of(("id", "long")))


def test_letters_that_only_fold_to_others_are_others() -> None:
    """Delta takes `strasse` for another column than `straße`, so it is a hidden one."""
    found = check_file_schema(pa.schema([field("strasse", pa.int64())]), table_of(("straße", "long")))
    assert (found.hidden, found.respelled) == ({("strasse",)}, set())


def test_columns_that_only_files_have() -> None:
    """They are told, and mapped to ids that no column will ever have."""
    table = table_of(("a", "long"), ("s", INNER))
    stored = pa.schema(
        [
            field("a", pa.int64()),
            field("_row-id", pa.int64()),
            field("s", pa.struct([("x", pa.int64()), ("y", pa.int8())])),
        ]
    )
    hidden = check_file_schema(stored, table).hidden
    assert hidden == {("_row-id",), ("s", "y")}
    mapping = with_unmapped(table.name_mapping, hidden)
    assert ids_of(mapping) == {"a": 1, "s": 2, "s.x": 3, "_row-id": HIDDEN_ID_START + 1, "s.y": HIDDEN_ID_START + 2}
    assert ids_of(with_unmapped(mapping, {("more",)})) == ids_of(mapping) | {"more": HIDDEN_ID_START + 3}
    assert with_unmapped(mapping, ()) is mapping


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([("x", pa.list_(pa.struct([("y", pa.int32())])))]),
        pa.map_(pa.string(), pa.struct([("x", pa.int32())])),
        pa.list_(pa.field("item", pa.list_(pa.int32()))),
    ],
)
def test_what_is_in_hidden_columns_is_mapped_too(kind: pa.DataType) -> None:
    """PyIceberg refuses a file with any unmapped name in it."""
    table = table_of(("a", "long"))
    stored = pa.schema([field("a", pa.int64()), field("h", kind)])
    mapping = with_unmapped(table.name_mapping, check_file_schema(stored, table).hidden)
    assert pyarrow_to_schema(stored, mapping).find_field("h").field_id > HIDDEN_ID_START


def test_hidden_columns_may_grow() -> None:
    """A later file's hidden struct has more in it; a table may have no column of its own left."""
    table = table_of()
    for fields in ([("a", pa.int32())], [("a", pa.int32()), ("b", pa.list_(pa.int32()))]):
        stored = pa.schema([field("h", pa.struct(fields))])
        mapping = with_unmapped(table.name_mapping, check_file_schema(stored, table).hidden)
        assert pyarrow_to_schema(stored, mapping).find_field("h").field_id == HIDDEN_ID_START + 1
        table = TableSchema(table.schema, table.specs, 0, mapping)
    assert set(ids_of(mapping)) == {"h", "h.a", "h.b", "h.b.element"}


@pytest.mark.parametrize("kind", [pa.null(), pa.duration("us"), pa.time64("ns"), pa.timestamp("us", "Europe/Paris")])
def test_what_pyiceberg_cannot_take_is_refused(kind: pa.DataType) -> None:
    """It refuses a file for the Arrow type of any column, one that nobody asks for as well."""
    with pytest.raises(
        Unsupported, match=r"an Arrow schema that Iceberg cannot have .* which PyIceberg and Polars would misread"
    ):
        check_file_schema(pa.schema([field("a", pa.int64()), field("h", kind)]), table_of(("a", "long")))


@pytest.mark.parametrize("number", ["x", "9" * 5000, "1e5"])
def test_ids_that_are_no_numbers_are_refused(number: str) -> None:
    """What a writer put into the Arrow schema of a file is not trusted to be a number."""
    stored = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": number})])
    with pytest.raises(
        Unsupported, match=r"an Arrow schema that Iceberg cannot have .* which PyIceberg and Polars would misread"
    ):
        check_file_schema(stored, table_of(("id", "long")))


@pytest.mark.parametrize("path", ["l.bag.array", "l.array", "l", "l.list.element.x"])
def test_older_layouts_of_lists_are_refused(path: str) -> None:
    """Spark's and Hive's older ways are lists to Arrow all the same, and nulls to DuckDB."""
    kind = {"type": "array", "elementType": "integer", "containsNull": True}
    with pytest.raises(Unsupported, match=f"column {path} of the file has the layout of"):
        file_schema.check_file_schema(pa.schema([field("l", pa.list_(pa.int32()))]), table_of(("l", kind)), [path])


def test_columns_that_were_dropped_are_known() -> None:
    """A column that the mapping still has and the schema not is nobody's news."""
    table = table_of(("a", "long"))
    old = MappedField(field_id=9, names=["old"], fields=[])
    table = TableSchema(table.schema, table.specs, 0, NameMapping([*table.name_mapping, old]))
    assert not check_file_schema(pa.schema([field("a", pa.int64()), field("old", pa.string())]), table).hidden
    with pytest.raises(Unsupported, match="column old of the file carries the field id 1 of another column"):
        check_file_schema(pa.schema([field("old", pa.int64(), 1)]), table)
