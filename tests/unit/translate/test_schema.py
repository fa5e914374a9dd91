"""Schemas: every type, ids that stay, and refusals that name the column."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UnknownType,
)

from daemon.config.settings import Reader
from daemon.delta.actions import Metadata
from daemon.errors import CorruptInput, Unsupported
from daemon.iceberg.pyiceberg_ext.variant import VariantType
from daemon.translate.delta_types import NESTED_IDS, NESTING_MAX, NEW_TYPES
from daemon.translate.file_schema import may_reach_files
from daemon.translate.metrics import parse_stats
from daemon.translate.name_mapping import HIDDEN_ID_START, find_lost, first_names
from daemon.translate.readers import Fault, readers_of
from daemon.translate.schema import TableSchema, translate_schema

Field = dict[str, Any]


def column(name: str, kind: Any, *, nullable: bool = True, **metadata: Any) -> Field:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def mapped(name: str, kind: Any, number: int, physical: str | None = None, **metadata: Any) -> Field:
    ids = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical or f"col-{number}"}
    return column(name, kind, **ids, **metadata)


def struct(*fields: Field) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def array(element: Any, *, nullable: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": nullable}


def mapping(key: Any, value: Any, *, nullable: bool = True) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": nullable}


def widened(before: str, after: str, **place: str) -> dict[str, Any]:
    return {"delta.typeChanges": [{"fromType": before, "toType": after, **place}]}


def metadata(*fields: Field, partition: tuple[str, ...] = (), mode: str = "none", highest: int = 0) -> Metadata:
    configuration = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": str(highest)}
    return Metadata("t", json.dumps(struct(*fields)), list(partition), configuration)


def evolve(before: TableSchema, after: Metadata, *older: TableSchema) -> TableSchema:
    """The schema that `after` makes of a table that has `before` now and had `older` once."""
    schemas = {table.schema.schema_id: table.schema for table in (*older, before)}
    return translate_schema(after, before.schema, mapping=before.name_mapping, schemas=schemas, specs=before.specs)


def ids(table: TableSchema) -> dict[str, int]:
    """Field ids by full name, elements, keys and values too."""
    schema = table.schema
    return {name: field.field_id for name in schema.column_names for field in [schema.find_field(name)]}


def mapped_names(name_mapping: Any) -> dict[int, Any]:
    """Names by id, nested ones inside."""
    return {field.field_id: (*field.names, mapped_names(field.fields)) for field in name_mapping}


@pytest.mark.parametrize(
    ("delta", "iceberg"),
    [
        ("boolean", BooleanType()),
        ("byte", IntegerType()),
        ("short", IntegerType()),
        ("integer", IntegerType()),
        ("long", LongType()),
        ("float", FloatType()),
        ("double", DoubleType()),
        ("decimal(38,18)", DecimalType(38, 18)),
        ("decimal(5, 0)", DecimalType(5, 0)),
        ("string", StringType()),
        ("binary", BinaryType()),
        ("date", DateType()),
        ("timestamp", TimestamptzType()),
        ("timestamp_ntz", TimestampType()),
        ("timestamp_ltz", TimestamptzType()),
        ("decimal", DecimalType(10, 0)),
        ("varchar(20)", StringType()),
        ("char( 4 )", StringType()),
        ("string collate UTF8_LCASE", StringType()),
    ],
)
def test_every_primitive_type(delta: str, iceberg: IcebergType) -> None:
    """Each of Delta's types has its counterpart, at the top and inside structs, lists and maps."""
    nested = struct(column("s", delta), column("a", array(delta)), column("m", mapping(delta, delta)))
    schema = translate_schema(metadata(column("c", delta), column("n", nested))).schema
    assert schema.find_type("c") == iceberg
    assert [schema.find_type(f"n.{name}") for name in ("s", "a.element", "m.key", "m.value")] == 4 * [iceberg]


def test_columns_with_a_collation_have_no_metrics() -> None:
    """Another writer's least and greatest values may be those of the collation."""
    collated = {"metadata": {"__COLLATIONS": {"c": "spark.UTF8_LCASE"}}}
    inner = struct(column("plain", "varchar(3)"), {**column("c", "string"), **collated})
    named = column("named", "string  collate UNICODE_CI")
    table = translate_schema(metadata(column("n", inner), named, column("id", "long")))
    assert table.leaves.keys() == {("n", "plain"), ("id",)}


@pytest.mark.parametrize(
    "delta", ["void", "interval day to second", "interval", "variant", "geometry(4326)", "time(6)"]
)
@pytest.mark.parametrize(
    ("wrap", "place"),
    [
        (lambda delta: delta, "c"),
        (lambda delta: struct(column("s", delta)), "c.s"),
        (array, "c.element"),
        (lambda delta: mapping("string", delta), "c.value"),
        (lambda delta: array(struct(column("s", array(delta)))), "c.element.s.element"),
    ],
)
def test_types_without_a_counterpart_are_refused_by_name(delta: str, wrap: Any, place: str) -> None:
    """The refusal names the column, however deep it is, and the type as Delta calls it."""
    with pytest.raises(Unsupported) as caught:
        translate_schema(metadata(column("ok", "long"), column("c", wrap(delta))))
    assert f"column {place} has the type {delta}, " in caught.value.message


PLACES = [
    column("c", "variant"),
    column("s", struct(column("v", "variant"))),
    column("l", array("variant")),
    column("m", mapping("string", "variant", nullable=False)),
]


def test_variants_for_readers_that_know_them() -> None:
    """In format version 3, anywhere but in partitions; Delta's null counts are theirs, and there are no bounds."""
    by: dict[str, Any] = {"readers": [Reader.SPARK, Reader.DUCKDB], "format_version": 3}
    table = translate_schema(metadata(*PLACES), **by)
    found = [table.schema.find_type(name) for name in ("c", "s.v", "l.element", "m.value")]
    assert found == 4 * [VariantType()]
    assert table.leaves.keys() == {("c",), ("s", "v")}
    metrics = parse_stats(
        '{"numRecords":2,"nullCount":{"c":1},"minValues":{"c":"a"},"maxValues":{"c":"b"}}',
        table.leaves,
        2,
        has_dv=False,
    )
    assert metrics.null_value_counts == {1: 1} and not metrics.lower_bounds
    again = translate_schema(metadata(*PLACES), table.schema, mapping=table.name_mapping, **by)
    assert again.schema == table.schema and not again.replaced
    with pytest.raises(CorruptInput, match="partition by column c"):
        translate_schema(metadata(*PLACES, partition=("c",)), **by)


@pytest.mark.parametrize(
    ("delta", "readers", "version"),
    [
        ("variant", ["spark", "duckdb"], 2),
        ("variant", ["spark", "pyiceberg"], 3),
        ("variant", ["duckdb", "trino"], 3),
        ("void", ["spark", "duckdb"], 3),
    ],
)
def test_a_new_type_is_refused_for_other_readers(delta: str, readers: list[Reader], version: int) -> None:
    """It says for which readers the type would be followed."""
    with pytest.raises(Unsupported, match=f"column c has the type {delta}") as refused:
        translate_schema(metadata(column("c", delta)), readers=readers, format_version=version)
    readers_told = f"readers: [{', '.join(readers_of(NEW_TYPES[delta][1]))}]"
    assert f"{readers_told} if no other program reads the table; it would misread it" in refused.value.hint
    assert ("format_version: 3" in refused.value.hint) == (version == 2)


def test_void_columns_for_readers_that_know_them() -> None:
    """A column of nulls, which no file has, and which keeps its id when it gets a type; never required."""
    by: dict[str, Any] = {"readers": [Reader.SPARK, Reader.POLARS, Reader.PYICEBERG], "format_version": 3}
    columns = column("id", "long"), column("n", "void", nullable=False), column("s", struct(column("n", "void")))
    table = translate_schema(metadata(*columns), **by)
    assert table.faults == {Fault.VOID}
    assert table.schema.find_field("n") == NestedField(2, "n", UnknownType(), required=False)
    assert table.leaves.keys() == {("id",)}
    typed = column("id", "long"), column("n", "date"), column("s", struct(column("n", "integer")))
    later = translate_schema(metadata(*typed), table.schema, mapping=table.name_mapping, **by)
    assert ids(later) == ids(table) and not later.replaced
    for kind in (array("void"), mapping("string", "void")):
        for version in (2, 3):
            with pytest.raises(Unsupported, match="has the type void") as refused:
                translate_schema(metadata(column("c", kind)), **{**by, "format_version": version})
            assert "readers" not in refused.value.hint, "no setting lifts it"


def test_an_unknown_complex_type_is_refused_by_name() -> None:
    """A type that is a JSON object of a kind that nobody knows."""
    with pytest.raises(Unsupported, match="column c has the type set"):
        translate_schema(metadata(column("c", {"type": "set", "elementType": "long"})))


def test_nullability_and_comments() -> None:
    """What may not be null in Delta is required, in lists and maps too; comments become docs."""
    schema = translate_schema(
        metadata(
            column("a", "long", nullable=False, comment="the key"),
            column("b", array("long", nullable=False)),
            column("c", mapping("string", "long", nullable=False)),
            column("d", struct(column("e", "long", nullable=False)), nullable=False),
        )
    ).schema
    assert schema.find_field("a") == NestedField(1, "a", LongType(), required=True, doc="the key")
    types = [schema.find_type(name) for name in "bc"]
    assert isinstance(types[0], ListType)
    assert types[0].element_required
    assert isinstance(types[1], MapType)
    assert types[1].value_required
    assert schema.find_field("d.e").required
    assert not schema.find_field("b").required


def test_ids_and_the_name_mapping_without_column_mapping() -> None:
    """Ids are unique, a struct's before its fields'; the mapping leads to every one of them, list elements too."""
    table = translate_schema(
        metadata(
            column("a", "long"),
            column("s", struct(column("x", "long"), column("y", array("string")))),
            column("m", mapping("string", struct(column("v", "long")))),
        )
    )
    assert ids(table) == {
        "a": 1,
        "s": 2,
        "s.x": 3,
        "s.y": 4,
        "s.y.element": 5,
        "m": 6,
        "m.key": 7,
        "m.value": 8,
        "m.value.v": 9,
    }
    assert mapped_names(table.name_mapping) == {
        1: ("a", {}),
        2: ("s", {3: ("x", {}), 4: ("y", {5: ("element", {})})}),
        6: ("m", {7: ("key", {}), 8: ("value", {9: ("v", {})})}),
    }
    assert NameMapping.model_validate_json(table.name_mapping.model_dump_json()) == table.name_mapping


def test_ids_stay_through_evolution() -> None:
    """Added, reordered, relaxed and commented columns: those that were there keep their ids, new ones get new ids."""
    first = translate_schema(
        metadata(
            column("a", "integer", nullable=False),
            column("s", struct(column("x", "float"), column("y", array("integer")))),
            column("d", "decimal(5,2)"),
        )
    )
    second = evolve(
        first,
        metadata(
            column("new", "string", nullable=False),
            column("s", struct(column("z", "long"), column("y", array("integer")), column("x", "double")), comment="!"),
            column("d", "decimal(9,2)"),
            column("a", "long"),
        ),
    )
    kept = {name: number for name, number in ids(second).items() if name in ids(first)}
    assert kept == ids(first)
    assert {name: number for name, number in ids(second).items() if name not in kept} == {"new": 7, "s.z": 8}
    assert second.replaced == ()
    assert (first.schema.schema_id, second.schema.schema_id) == (0, 1)
    # Older files lack it: a column that joins later may be null, whatever Delta says.
    assert not second.schema.find_field("new").required
    assert not second.schema.find_field("a").required


def test_a_nullable_column_does_not_become_required() -> None:
    """Required in Iceberg must hold for every file, so it is only ever relaxed."""
    first = translate_schema(metadata(column("a", "long")))
    assert not evolve(first, metadata(column("a", "long", nullable=False))).schema.find_field("a").required


def test_an_unchanged_schema_keeps_its_id() -> None:
    """A metaData action that touches no column makes no schema; going back to an older schema takes its id."""
    first = translate_schema(metadata(column("a", "long")))
    assert evolve(first, metadata(column("a", "long"))).schema.schema_id == 0
    second = evolve(first, metadata(column("a", "long"), column("b", "long")))
    back = evolve(second, metadata(column("a", "long")), first)
    assert (second.schema.schema_id, back.schema.schema_id) == (1, 0)


def test_ids_are_never_used_twice() -> None:
    """A dropped column's id stays spent: Iceberg's older snapshots still know it."""
    first = translate_schema(metadata(column("a", "long"), column("b", "long")))
    second = evolve(first, metadata(column("a", "long")))
    third = evolve(second, metadata(column("a", "long"), column("c", "string")), first)
    assert ids(third) == {"a": 1, "c": 3}


@pytest.mark.parametrize(
    ("before", "after", "replaced"),
    [
        ("long", "string", "c"),
        ("long", "integer", "c"),
        ("integer", "double", "c"),
        ("date", "timestamp_ntz", "c"),
        ("decimal(9,2)", "decimal(9,3)", "c"),
        ("decimal(9,2)", "decimal(8,2)", "c"),
        ("string", struct(column("x", "long")), "c"),
        (array("integer"), array("string"), "c"),
        (array(array("integer")), array(array("boolean")), "c"),
        (mapping("string", "long"), mapping("string", "date"), "c"),
        (mapping("string", "long"), mapping("date", "long"), "c"),
        (struct(column("x", "long")), struct(column("x", "string")), "c.x"),
        (array(struct(column("x", "long"))), array(struct(column("x", "string"))), "c.element.x"),
    ],
)
def test_a_type_that_cannot_be_promoted_is_a_new_column(before: Any, after: Any, replaced: str) -> None:
    """Overwritten with another type, a column is named as replaced, and no id of its old type leads to the new one."""
    first = translate_schema(metadata(column("a", "long"), column("c", before)))
    second = evolve(first, metadata(column("a", "long"), column("c", after)))
    assert [told.split(" ", 1)[0] for told in second.replaced] == [replaced]
    old = {field_id: first.schema.find_type(field_id) for field_id in ids(first).values()}
    for field_id in set(ids(second).values()) & set(old):
        new = second.schema.find_type(field_id)
        assert type(new) is type(old[field_id])
        assert new == old[field_id] or not new.is_primitive
    assert ids(second)["a"] == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [("integer", "long"), ("byte", "short"), ("short", "long"), ("float", "double"), ("decimal(5,2)", "decimal(38,2)")],
)
def test_widenings_that_iceberg_has(before: str, after: str) -> None:
    """Promotions keep the id, in lists and maps too, told by Delta's type changes or not."""
    for history in ({}, widened(before, after)):
        first = translate_schema(metadata(column("c", before), column("a", array(before))))
        second = evolve(first, metadata(column("c", after, **history), column("a", array(after))))
        assert second.replaced == ()
        assert ids(second) == ids(first)
        assert second.schema.find_type("a.element") == second.schema.find_type("c")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("integer", "double", "from int to double"),
        ("date", "timestamp_ntz", "from date to timestamp"),
        ("long", "decimal(20,0)", "from long to decimal(20, 0)"),
        ("decimal(5,2)", "decimal(9,4)", "from decimal(5, 2) to decimal(9, 4)"),
    ],
)
def test_widenings_that_iceberg_lacks_are_told(before: str, after: str, words: str) -> None:
    """Older files have the old type: column and both types are told, of nested columns too."""
    first = translate_schema(metadata(column("c", before), column("s", struct(column("c", before)))))
    fields = (column("c", after, **widened(before, after)), column("s", struct(column("c", after))))
    assert evolve(first, metadata(*fields)).replaced == (f"c ({words})", f"s.c ({words})")
    # Without older files a table has the types that it has.
    assert not translate_schema(metadata(*fields)).replaced


def test_column_mapping_gives_ids_and_physical_names() -> None:
    """With column mapping the ids are Delta's, and the name mapping has the names that the files carry."""
    table = translate_schema(
        metadata(
            mapped("a b", "long", 4),
            mapped("s", struct(mapped("x", "long", 9, "col-x")), 7, "phys"),
            partition=("a b",),
            mode="name",
            highest=9,
        )
    )
    assert ids(table) == {"a b": 4, "s": 7, "s.x": 9}
    assert mapped_names(table.name_mapping) == {4: ("col-4", {}), 7: ("phys", {9: ("col-x", {})})}
    assert table.physical_names == {4: "col-4", 7: "phys"}
    assert list(table.leaves) == [("col-4",), ("phys", "col-x")]
    assert table.spec.fields[0].source_id == 4


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1, "c": 3}, {}),
        ({"a": 1, "b": 2}, {"a": 3, "b": 2}, {1: "a"}),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}, {1: "a", 2: "b"}),
        ({"a": 1, "b": 2}, {"col-1": 1, "b": 2}, {1: "a"}),
        ({"a": (1, {"x": 2, "y": 3})}, {"a": (1, {"y": 2, "x": 4})}, {2: "a.x", 3: "a.y"}),
        (
            {"a": (1, {"element": (2, {"x": 3})})},
            {"a": (4, {"element": (5, {"x": 6})})},
            {1: "a", 2: "a.element", 3: "a.element.x"},
        ),
    ],
)
def test_ids_that_no_name_leads_to_any_more(before: Field, after: Field, lost: dict[int, str]) -> None:
    """By the whole path of a name: what is new or has moved within the table costs nothing."""
    assert find_lost(name_mapping(before), name_mapping(after)) == lost


def test_new_columns_get_no_id_that_files_give_to_others() -> None:
    """A column that files have already gets theirs, unless it is one of those that the name mapping counts with."""
    before = translate_schema(metadata(column("a", "long")))
    far = HIDDEN_ID_START + 7
    hidden = frozenset({(2, ("other",)), (3, ("X",)), (4, ("s", "x")), (far, ("z",)), (1, ("y",))})
    kind = struct(column("x", "long"))
    after = metadata(*(column(name, kind if name == "s" else "long") for name in ("a", "y", "x", "z", "s")))
    table = translate_schema(after, before.schema, mapping=before.name_mapping, hidden_ids=hidden)
    assert ids(table) == {"a": 1, "y": 5, "x": 3, "z": 6, "s": 7, "s.x": 4}


def test_ids_of_dropped_columns_stay_theirs() -> None:
    """Older files may have them, and a table whose older schemas were cleaned away still has its name mapping."""
    first = translate_schema(metadata(column("a", "long"), column("b", "long")))
    second = evolve(first, metadata(column("a", "long")))
    third = translate_schema(
        metadata(column("a", "long"), column("c", "long")), second.schema, mapping=second.name_mapping
    )
    assert ids(third) == {"a": 1, "c": 3}


def test_a_name_that_is_free_again_is_another_name_of_the_column() -> None:
    """But for upper and lower case, as in Delta; what is inside stays known, and no older name leaves the mapping."""
    former = name_mapping(
        {"a": 1, "Extra": (HIDDEN_ID_START + 1, {"Y": HIDDEN_ID_START + 2, "z": HIDDEN_ID_START + 3})}
    )
    extra = column("extra", struct(column("y", "long")))
    before = translate_schema(metadata(column("a", "long")))
    table = translate_schema(metadata(column("a", "long"), extra), before.schema, mapping=former)
    (found,) = (each for each in table.name_mapping if each.field_id == 2)
    assert (found.names, [each.names for each in found.fields]) == (["extra", "Extra"], [["y", "Y"], ["z"]])
    assert set(find_lost(former, table.name_mapping)) == {HIDDEN_ID_START + 1, HIDDEN_ID_START + 2}


def test_fields_without_names_are_passed_over() -> None:
    """Iceberg's Java library leaves them where a new column takes a name; dvsync may have kept some."""
    first = translate_schema(metadata(column("a", "long")))
    unnamed = MappedField(field_id=HIDDEN_ID_START + 2, names=[], fields=[])
    inside = MappedField(field_id=HIDDEN_ID_START + 1, names=["s"], fields=[unnamed])
    before = replace(first, name_mapping=NameMapping([unnamed, *first.name_mapping, inside]))
    names = {1: "a", HIDDEN_ID_START + 1: "s"}
    assert before.physical_names == dict(first_names(before.name_mapping)) == names
    after = evolve(before, metadata(mapped("a", "long", 1, "a"), mapped("b", "long", 2), mode="name", highest=2))
    assert after.replaced == ()
    assert mapped_names(after.name_mapping) == {1: ("a", {}), 2: ("col-2", {}), HIDDEN_ID_START + 1: ("s", {})}
    assert not may_reach_files(before, after)


def name_mapping(names: Field) -> NameMapping:
    return NameMapping(mapped_fields(names))


def mapped_fields(names: Field) -> list[MappedField]:
    told = ((name, found if isinstance(found, tuple) else (found, {})) for name, found in names.items())
    return [MappedField(field_id=number, names=[name], fields=mapped_fields(inner)) for name, (number, inner) in told]


@pytest.mark.parametrize("mode", ["name", "id"])
def test_renames_and_drops_keep_ids(mode: str) -> None:
    """A renamed column has its id and another name; a name that is free again may be another column's."""
    first = translate_schema(metadata(mapped("a", "long", 1), mapped("b", "string", 2), mode=mode, highest=2))
    second = evolve(first, metadata(mapped("b", "long", 1), mapped("a", "date", 3), mode=mode, highest=3))
    assert ids(second) == {"b": 1, "a": 3}
    assert second.replaced == ()
    # The dropped one too: older files still carry it.
    assert mapped_names(second.name_mapping) == {1: ("col-1", {}), 2: ("col-2", {}), 3: ("col-3", {})}


def test_a_mapped_column_of_another_type_is_refused() -> None:
    """One id cannot have two types, and with column mapping the ids are not ours to give."""
    first = translate_schema(metadata(mapped("a", "long", 1), mode="name"))
    with pytest.raises(Unsupported, match="column a changed from long to string"):
        evolve(first, metadata(mapped("a", "string", 1), mode="name"))


@pytest.mark.parametrize(
    ("kind", "place"),
    [(array("long"), "c"), (mapping("string", "long"), "c"), (struct(mapped("x", array("long"), 2)), "c.x")],
)
def test_elements_without_ids_are_refused(kind: Any, place: str) -> None:
    """With column mapping, files have ids for columns and none for elements: some readers would see nulls."""
    with pytest.raises(Unsupported, match=f"column {place} is an array or map, and column mapping gives no id"):
        translate_schema(metadata(mapped("c", kind, 1), mode="name"))


RENAMED, RENAMED_TOO = struct(mapped("x", "long", 8)), struct(mapped("x", "long", 9))
SAME, SAME_TOO = struct(mapped("x", "long", 8, "x")), struct(mapped("x", "long", 9, "x"))


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        (array(array(RENAMED)), True),
        (array(mapping("string", RENAMED)), True),
        (mapping("string", array(RENAMED)), True),
        (mapping("string", mapping("string", RENAMED)), True),
        (mapping(RENAMED, "long"), True),
        (mapping(array(RENAMED), array("long")), True),
        (array(array(SAME)), False),
        (mapping(SAME, array(SAME_TOO)), False),
        (array(RENAMED), False),
        (mapping("string", RENAMED), False),
        (mapping(RENAMED, RENAMED_TOO), False),
    ],
)
def test_fields_that_pyiceberg_looks_for_by_name_are_refused(kind: Any, refused: bool) -> None:
    """It goes by ids for the structs that are elements or values; what is in other lists and maps it casts by names."""
    nested = {f"c.{place}": 20 + number for number, place in enumerate(places(kind))}
    table = metadata(mapped("c", kind, 1, "c", **{NESTED_IDS: nested}), mode="name", highest=40)
    if refused:
        with pytest.raises(
            Unsupported, match=r"column c is a list or map with nested structs whose fields .* which PyIceberg and"
        ):
            translate_schema(table)
    else:
        assert translate_schema(table).schema.highest_field_id >= 8


def places(kind: Any) -> list[str]:
    """The paths of all elements, keys and values in a type, structs' own fields left out."""
    parts = {"array": {"element": "elementType"}, "map": {"key": "keyType", "value": "valueType"}}
    inner = parts.get(kind["type"], {}) if isinstance(kind, dict) else {}
    return [path for name, part in inner.items() for path in (name, *(f"{name}.{each}" for each in places(kind[part])))]


RESERVED = ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")


@pytest.mark.parametrize("name", [*RESERVED, "_POS", "_Pos"])
def test_names_that_iceberg_reserves_are_refused(name: str) -> None:
    """By the name that Iceberg would show, with and without column mapping, in an empty table and one that is there."""
    words = f"Iceberg reserves the name of column {name}, which Spark would misread"
    with pytest.raises(Unsupported, match=words) as refusal:
        translate_schema(metadata(column("id", "long"), column(name, "long")))
    assert "RENAME COLUMN" in (refusal.value.hint or "")
    first = translate_schema(metadata(mapped("id", "long", 1), mode="name", highest=1))
    with pytest.raises(Unsupported, match=words):
        evolve(first, metadata(mapped("id", "long", 1), mapped(name, "long", 2), mode="name", highest=2))


def test_all_reserved_names_are_told_at_once() -> None:
    """An operator renames them in one go."""
    with pytest.raises(Unsupported, match=f"column {', '.join(RESERVED)}, which Spark"):
        translate_schema(metadata(*(column(name, "long") for name in RESERVED)))


@pytest.mark.parametrize("name", [*RESERVED, "_POS"])
def test_reserved_names_may_stand_elsewhere(name: str) -> None:
    """As a field of a struct, and in the files, where column mapping gives the column another name."""
    assert ids(translate_schema(metadata(column("s", struct(column(name, "long")))))) == {"s": 1, f"s.{name}": 2}
    table = translate_schema(metadata(mapped("position", "long", 1, name), mode="name", highest=1))
    assert mapped_names(table.name_mapping) == {1: (name, {})}


OTHER_NAMES = ("file_path", "pos", "row", "_change_type", "_change_ordinal", "_commit_snapshot_id", "_FILE", "_Row_Id")


def test_names_that_no_reader_minds_are_taken() -> None:
    """Iceberg reserves ids for some of them, and goes by the ids alone."""
    assert list(ids(translate_schema(metadata(*(column(name, "long") for name in OTHER_NAMES))))) == list(OTHER_NAMES)


def test_another_spelling_is_one_column() -> None:
    """Delta ignores case in columns: older files have the older spelling, which the name mapping keeps."""
    first = translate_schema(metadata(column("id", "long"), column("s", struct(column("x", "long")))))
    second = evolve(first, metadata(column("ID", "long"), column("s", struct(column("X", "long")))))
    assert (second.replaced, ids(second)) == ((), {"ID": 1, "s": 2, "s.X": 3})
    assert [field.names for field in second.name_mapping] == [["ID", "id"], ["s"]]
    # But not in partition values.
    third = evolve(second, metadata(column("Id", "long"), column("s", struct(column("X", "long"))), partition=("Id",)))
    assert third.replaced == ("Id (spelled ID before)",)
    # DuckDB would take a dropped `ID` for the new `Id`, as Delta does.
    assert [field.names for field in third.name_mapping] == [["Id", "ID", "id"], ["s"]]


@pytest.mark.parametrize(
    "field",
    [
        {"name": "c", "metadata": {}},
        {"name": "c", "type": "long"},
        {"name": "c", "type": {"type": "array"}, "nullable": True, "metadata": {}},
        {"name": "c", "type": "decimal(39,2)", "nullable": True, "metadata": {}},
        {"name": "c", "type": "decimal(5,6)", "nullable": True, "metadata": {}},
        "c",
    ],
)
def test_a_schema_that_is_none_is_corrupt(field: Any) -> None:
    """Fields without what the protocol asks for: the table is parked with a word, not tried again for ever."""
    with pytest.raises(CorruptInput, match="the schema is not one of Delta's"):
        translate_schema(Metadata("t", json.dumps({"type": "struct", "fields": [field]}), [], {}))


def nested(kind: str, levels: int) -> Any:
    found: Any = "long"
    for _ in range(levels):
        found = {"struct": struct(column("x", found)), "array": array(found), "map": mapping("string", found)}[kind]
    return found


@pytest.mark.parametrize("kind", ["struct", "array", "map"])
def test_types_that_are_nested_too_deeply_are_refused(kind: str) -> None:
    """No more levels than every reader can take, by column; and no more than Python can, in a word."""
    table = translate_schema(metadata(column("c", nested(kind, NESTING_MAX))))
    assert pickle.loads(pickle.dumps(table)) == table
    assert Schema.model_validate_json(table.schema.model_dump_json()) == table.schema
    for levels in (NESTING_MAX + 1, 100):
        with pytest.raises(Unsupported, match="column c is nested in more than 25 levels"):
            translate_schema(metadata(column("a", "long"), column("c", nested(kind, levels))))


@pytest.mark.parametrize("mode", ["none", "name"])
@pytest.mark.parametrize(
    "schema_string",
    [
        "[" * 100_000,
        '{"fields":' * 100_000,
        '{"fields": [{"name": "c", "nullable": true, "type": ' + '{"type":' * 400 + "1" + "}" * 400 + "}]}",
        '{"fields": [{"name": "c", "nullable": true, "metadata": [1], "type": "long"}]}',
        '{"fields": [{"name": "c", "nullable": true, "metadata": {"delta.columnMapping.nested.ids": 1}, "type": '
        '{"type": "array", "elementType": "x", "containsNull": true}}]}',
        '{"fields": [{"name": "\\ud800", "nullable": true, "metadata": {"delta.columnMapping.id": 1}, "type": "int"}]}',
        '{"fields": [{"name": "c", "nullable": true, "metadata": {"delta.columnMapping.id": 1e999}, "type": "?"}]}',
    ],
)
def test_a_schema_of_another_shape_is_refused(schema_string: str, mode: str) -> None:
    """Whatever its depth and its numbers: a word about it, and no bug of dvsync."""
    with pytest.raises((CorruptInput, Unsupported)):
        translate_schema(Metadata("t", schema_string, [], {"delta.columnMapping.mode": mode}))


def test_a_schema_of_too_many_columns_is_refused() -> None:
    """Each of the table's metadata files holds it: the daemon would be busy with nothing else."""
    fields = [column(f"column_{number}", "long") for number in range(100_000)]
    with pytest.raises(Unsupported, match=r"the schema has \d+ characters, but dvsync reads at most 4194304"):
        translate_schema(metadata(*fields))


@pytest.mark.parametrize(
    ("fields", "highest", "says"),
    [
        ([mapped("a", "long", 1), mapped("b", "long", 1)], "1", "two columns have the id 1"),
        (
            [
                mapped("a", struct(mapped("b", "long", 2)), 1),
                mapped("c", array("long"), 3, **{NESTED_IDS: {"col-3.element": 2}}),
            ],
            "3",
            "two columns have the id 2",
        ),
        ([mapped("a", "long", 1 << 31)], "1", "2147483648 is not a column id"),
        ([mapped("a", "long", -1)], "1", "-1 is not a column id"),
        ([mapped("a", "long", 1)], "x", "invalid literal"),
        ([mapped("a", "long", 1)], "9" * 5000, "integer string conversion"),
        ([mapped("a", "long", 1)], str(1 << 31), "2147483648 is not a column id"),
    ],
)
def test_ids_of_column_mapping_are_checked(fields: list[Field], highest: str, says: str) -> None:
    """Iceberg would show one of two columns of one id only, and its manifests hold ids of 32 bits."""
    configuration = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": highest}
    with pytest.raises(CorruptInput, match=says):
        translate_schema(Metadata("t", json.dumps(struct(*fields)), [], configuration))


def test_two_columns_of_one_full_name_are_refused() -> None:
    """Iceberg tells columns by their full names: `a.b` and the field `b` of `a` are one."""
    with pytest.raises(Unsupported, match=r"two columns have one full name in Iceberg: .*a\.b"):
        translate_schema(metadata(column("a.b", "long"), column("a", struct(column("b", "long")))))


@pytest.mark.parametrize(
    ("wrap", "place"),
    [
        (lambda kind: kind, "s"),
        (lambda kind: struct(column("t", kind)), "s.t"),
        (array, "s.element"),
        (lambda kind: mapping(kind, "long"), "s.key"),
        (lambda kind: mapping("long", array(kind)), "s.value.element"),
    ],
)
@pytest.mark.parametrize("name", ["x", "X"])
def test_two_columns_of_one_name_are_refused(wrap: Any, place: str, name: str) -> None:
    """Delta ignores case, at every level: the second one is not the former column, and no new one either."""
    known = column("x", "long")
    first = translate_schema(metadata(known, column("s", wrap(struct(known)))))
    after = metadata(known, column("s", wrap(struct(known, column(name, "long")))))
    for translate in (translate_schema, partial(evolve, first)):
        with pytest.raises(CorruptInput, match=f"columns {place}.x and {place}.{name} have one name, because Delta"):
            translate(after)


@pytest.mark.parametrize("names", ["aA", "Ää"])
def test_logical_names_are_those_that_count(names: str) -> None:
    """Under column mapping the names in the files differ."""
    fields = [mapped(name, "long", number) for number, name in enumerate(names, 1)]
    with pytest.raises(CorruptInput, match=f"columns {names[0]} and {names[1]} have one name"):
        translate_schema(metadata(*fields, mode="name", highest=9))


def test_elements_with_ids_of_iceberg_compat_are_taken() -> None:
    """IcebergCompat tables give ids to elements, keys and values, which the files carry."""
    inner = struct(mapped("x", array("long"), 4, "x", **{NESTED_IDS: {"x.element": 9}}))
    nested = {"col-1.key": 5, "col-1.value": 6, "col-1.value.element": 7}
    field = mapped("c", mapping("string", array(inner)), 1, **{NESTED_IDS: nested})
    found = translate_schema(metadata(field, mode="name", highest=9)).schema
    assert {name: found.find_field(name).field_id for name in found.column_names} == {
        "c": 1,
        "c.key": 5,
        "c.value": 6,
        "c.value.element": 7,
        "c.value.element.x": 4,
        "c.value.element.x.element": 9,
    }


def test_switching_column_mapping_on_keeps_equal_ids() -> None:
    """Delta numbers the columns from 1 on, structs before their fields, as we do: nothing changes then."""
    nested = struct(column("x", "long"), column("y", "long"))
    first = translate_schema(metadata(column("a", "long"), column("s", nested), column("z", "long")))
    renamed = struct(mapped("x", "long", 3, "x"), mapped("y", "long", 4, "y"))
    fields = [mapped("a", "long", 1, "a"), mapped("s", renamed, 2, "s"), mapped("new name", "long", 5, "z")]
    second = evolve(first, metadata(*fields, mode="name", highest=5))
    assert second.replaced == ()
    assert list(ids(second).values()) == list(ids(first).values())


def test_switching_column_mapping_on_with_other_ids_is_told() -> None:
    """Ids that Delta gives to other columns than we did: metrics of what is live would belong to the wrong ones."""
    first = translate_schema(
        metadata(column("a", "long"), column("b", "long"), column("s", struct(column("x", "long"))))
    )
    nested = struct(mapped("x", "long", 5, "x"))
    fields = [mapped("b", "long", 1, "b"), mapped("a", "long", 2, "a"), mapped("s", nested, 3, "s")]
    assert evolve(first, metadata(*fields, mode="name", highest=5)).replaced == (
        "b (from id 2 to 1)",
        "a (from id 1 to 2)",
        "s.x (from id 4 to 5)",
    )


# --- partition specs ---


def test_a_partition_field_for_each_column() -> None:
    """Identity of each partition column, in Delta's order, named as the column; none makes the spec without fields."""
    table = translate_schema(metadata(column("a", "long"), column("b", "date"), partition=("b", "a")))
    identity = IdentityTransform()
    assert table.spec == PartitionSpec(
        PartitionField(source_id=2, field_id=1000, transform=identity, name="b"),
        PartitionField(source_id=1, field_id=1001, transform=identity, name="a"),
        spec_id=0,
    )
    assert translate_schema(metadata(column("a", "long"))).spec == PartitionSpec(spec_id=0)


def test_partition_specs_are_kept_and_reused() -> None:
    """Other partition columns make a new spec with new field ids; going back takes the old spec."""
    fields = (column("a", "long"), column("b", "date"))
    first = translate_schema(metadata(*fields, partition=("a",)))
    second = evolve(first, metadata(*fields, partition=("b",)))
    third = evolve(second, metadata(*fields, partition=("a",)))
    fourth = evolve(third, metadata(*fields))
    assert [table.spec_id for table in (first, second, third, fourth)] == [0, 1, 0, 2]
    assert second.spec.fields[0].field_id == 1001
    assert set(fourth.specs) == {0, 1, 2}
    assert fourth.spec.fields == ()


def test_a_renamed_partition_column_keeps_its_spec() -> None:
    """The spec goes by the id of the column, which a rename leaves alone."""
    first = translate_schema(metadata(mapped("a", "long", 1), partition=("a",), mode="name"))
    second = evolve(first, metadata(mapped("b", "long", 1), partition=("b",), mode="name"))
    assert second.spec_id == first.spec_id


@pytest.mark.parametrize("partition", [("a",), ("b", "b")])
def test_partition_columns_that_cannot_be_are_corrupt(partition: tuple[str, ...]) -> None:
    """A list, and a column that is named twice: Delta writes no such table."""
    elements = {"type": "array", "elementType": "long", "containsNull": True}
    with pytest.raises(CorruptInput, match=f"cannot partition by column {partition[0]}"):
        translate_schema(metadata(column("a", elements), column("b", "long"), partition=partition))


def test_leaves_are_the_columns_that_have_metrics() -> None:
    """Primitive columns by physical path, also in structs; nothing inside lists and maps."""
    nested = struct(column("x", "long"), column("t", struct(column("y", "date"))), column("l", array("long")))
    table = translate_schema(metadata(column("a", "long"), column("s", nested), column("m", mapping("long", "long"))))
    assert {path: field.name for path, field in table.leaves.items()} == {
        ("a",): "a",
        ("s", "x"): "x",
        ("s", "t", "y"): "y",
    }
    assert isinstance(table.schema.find_type("s"), StructType)
    assert isinstance(table.schema, Schema)
