"""A new footer, by which readers find in a file's pages what Delta finds there. Pure.

The pages stay, and so their values, physical types, and levels. What changes is in the schema: field ids, the case of
names, the names inside lists and maps, and annotations. Where the order of values depends on an annotation, it stays,
because statistics do too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pyiceberg.table.name_mapping import MappedField
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from daemon.iceberg.pyiceberg_ext.variant import VariantType
from daemon.mirror.compact import BINARY, BYTE, FALSE, I32, STRUCT, TRUE, Struct
from daemon.mirror.parquet import (
    CHILDREN,
    CONVERTED,
    FIELD_ID,
    LOGICAL,
    NAME,
    PRECISION,
    REPEATED,
    REPETITION,
    REQUIRED,
    TYPE,
    Node,
    parse_schema,
    with_schema,
    without_key,
)
from daemon.translate.name_mapping import Path, column_finder
from daemon.translate.schema import TableSchema

# The Arrow schema that Arrow's writers leave: Arrow prefers it to the columns' own types.
ARROW_SCHEMA: Final = b"ARROW:schema"
# Type: the physical ones.
INT32: Final = 1
INT64: Final = 2
BYTE_ARRAY: Final = 6
# ConvertedType, which older readers know; LogicalType, a union, has the same and more.
UTF8: Final = 0
C_MAP: Final = 1
C_MAP_KEY_VALUE: Final = 2
C_LIST: Final = 3
C_ENUM: Final = 4
C_DATE: Final = 6
C_TIMESTAMPS: Final = {9: 1, 10: 2}  # TIMESTAMP_MILLIS, TIMESTAMP_MICROS -> TimeUnit
C_UINT_8, C_UINT_16 = 11, 12
C_INTS: Final = (15, 16, 17, 18)  # INT_8 to INT_64
C_JSON, C_BSON = 19, 20
STRING: Final = 1
MAP: Final = 2
LIST: Final = 3
ENUM: Final = 4
DECIMAL: Final = 5
DATE: Final = 6
TIMESTAMP: Final = 8
INTEGER: Final = 10
UNKNOWN: Final = 11
JSON, BSON = 12, 13
VARIANT: Final = 16
# VariantType, and the version of VariantEncoding.md
SPECIFICATION_VERSION, VARIANT_VERSION = 1, 1
# TimestampType
ADJUSTED_TO_UTC: Final = 1
UNIT: Final = 2
NANOS: Final = 3
# IntType
BIT_WIDTH, IS_SIGNED = 1, 2
# What PyIceberg reads in columns that only files have. A file with another annotation anywhere is refused by it.
READ_ANYWHERE: Final = (STRING, LIST, MAP, DECIMAL, DATE, TIMESTAMP, INTEGER)
DECIMAL_PRECISION_MAX: Final = 38


def mend_footer(metadata: Struct, table: TableSchema) -> Struct:
    """Return a footer for the same pages, nearer to what readers need; `check_file_schema` says whether it is enough.

    A column gets its field id if the file has ids, and the name of the name mapping, by which readers find it otherwise
    and Delta by either. Example: Spark's column `L (LIST) { bag { array } }` of a column `l` with the id 3 and the
    element id 4 becomes `l (LIST, 3) { list { element (4) } }`.

    Raises `CorruptInput`, and `Unsupported` if columns are encrypted or in other files.
    """
    root = parse_schema(metadata)
    has_ids = any(FIELD_ID in each.element for each in _below(root))
    _Mender(has_ids=has_ids, table=table).struct(root.children, table.schema.as_struct(), table.name_mapping.root)
    return without_key(with_schema(metadata, root), ARROW_SCHEMA)


def _below(node: Node) -> Iterable[Node]:
    for each in node.children:
        yield each
        yield from _below(each)


def annotated_variants(metadata: Struct) -> frozenset[Path]:
    """Return the paths of the groups annotated as variants, with Iceberg's names of elements, keys and values."""
    return frozenset(_variants(parse_schema(metadata), ()))


def _variants(node: Node, path: Path) -> Iterator[Path]:
    if _logical(node) == VARIANT:
        yield path
        return
    inside, names = node.children, [each.name for each in node.children]
    if len(inside) == 1 and inside[0].value(REPETITION) == REPEATED:
        inside = inside[0].children
        names = ["element"] if len(inside) == 1 else ["key", "value"]
    for each, name in zip(inside, names, strict=False):
        yield from _variants(each, (*path, name))


class _Mender:
    """Walks over the file's schema and the name mapping in parallel, as `check_file_schema` does, and mends the schema.

    By id (`needs_ids`), Delta finds columns whatever they are called: neither names nor ids of columns and of the
    fields of structs change then. What lists and maps have inside has no ids for Delta.
    """

    def __init__(self, *, has_ids: bool, table: TableSchema) -> None:
        self._has_ids = has_ids
        self._table = table

    def struct(self, nodes: Sequence[Node], struct: StructType, mapping: Sequence[MappedField]) -> None:
        columns = {field.field_id: field for field in struct.fields}
        find = column_finder(mapping, columns, exact=self._table.needs_ids)
        for node in nodes:
            mapped = find(node.name)
            if mapped is None or (column := columns.get(mapped.field_id or 0)) is None:
                self._hidden(node)
                continue
            if not self._table.needs_ids:
                _rename(node, mapped.names[0])
                self._number(node, column)
            self._field(node, column.field_type, mapped.fields)

    def _number(self, node: Node, column: NestedField) -> None:
        if self._has_ids:
            node.put(FIELD_ID, I32, column.field_id)

    def _field(self, node: Node, wanted: IcebergType, mapping: Sequence[MappedField]) -> None:
        if isinstance(wanted, StructType):
            if node.children:
                self.struct(node.children, wanted, mapping)
            return
        if isinstance(wanted, ListType | MapType):
            parts = [wanted.element_field] if isinstance(wanted, ListType) else [wanted.key_field, wanted.value_field]
            # Behind these, the mapping may have former fields of a struct.
            for part, column, mapped in zip(
                _mend_layout(node, is_list=isinstance(wanted, ListType)), parts, mapping, strict=False
            ):
                self._number(part, column)
                self._field(part, column.field_type, mapped.fields)
            return
        if isinstance(wanted, VariantType):
            if {"metadata", "value"} <= {each.name for each in node.children}:
                _put_annotation(node, None, VARIANT, {SPECIFICATION_VERSION: (BYTE, VARIANT_VERSION)})
        elif not node.children:
            _annotate(node, str(wanted))

    def _hidden(self, node: Node) -> None:
        """Mend a column that the table does not have. It may get one later: what Delta finds there is not hidden."""
        if not self._table.needs_ids and node.value(FIELD_ID) in self._table.schema.field_ids:
            node.element.pop(FIELD_ID)
        _mend_layout(node)
        if not _is_read_anywhere(node):
            _put_annotation(node, None, None)
        for each in node.children:
            self._hidden(each)


def _rename(node: Node, name: str) -> None:
    node.put(NAME, BINARY, name.encode())


def _mend_layout(node: Node, *, is_list: bool = False) -> Sequence[Node]:
    """Give the parts of a list or map today's layout and names, and return the element, or the key and the value.

    Parquet's LogicalTypes.md, "Nested Types". Returns nothing if it is no list or map. In lists of two levels, the
    repeated field is the element (Spark's ParquetToSparkSchemaConverter.isElementType). With `is_list`, a repeated
    field outside of any list is a list, too.
    """
    if is_list and node.value(REPETITION) == REPEATED:
        _wrap_element(node)
        node.children = [Node({**node.element}, node.children)]
        node.children[0].element.pop(FIELD_ID, None)
        node.put(REPETITION, I32, REQUIRED)
        _put_annotation(node, C_LIST, LIST)
    logical, converted = _logical(node), node.value(CONVERTED)
    if len(node.children) != 1 or node.children[0].value(REPETITION) != REPEATED:
        return ()
    (repeated,) = node.children
    if logical == MAP or converted in (C_MAP, C_MAP_KEY_VALUE):
        if len(repeated.children) != 2:
            return ()
        _put_annotation(node, C_MAP, MAP)
        _put_annotation(repeated, None, None)
        names = ["key_value", "key", "value"]
    elif logical == LIST or converted == C_LIST:
        if len(repeated.children) != 1 or repeated.name in ("array", f"{node.file_name}_tuple"):
            _wrap_element(repeated)
        elif repeated.children[0].value(REPETITION) == REPEATED:
            return ()  # Arrow takes the group for the element, and Spark does not.
        _put_annotation(node, C_LIST, LIST)
        names = ["list", "element"]
    else:
        return ()
    for each, name in zip((repeated, *repeated.children), names, strict=True):
        _rename(each, name)
    return repeated.children


def _wrap_element(node: Node) -> None:
    """Put the element of a list of two levels below a group of its own.

    There it is required, so all values keep their definition and repetition levels: what adds to them is which fields
    above a value are optional, and which are repeated.
    """
    element = Node({**node.element, REPETITION: (I32, REQUIRED)}, node.children)
    element.element.pop(FIELD_ID, None)
    kept = {key: value for key, value in node.element.items() if key in (NAME, REPETITION, FIELD_ID)}
    node.element, node.children = {**kept, CHILDREN: (I32, 1)}, [element]


def _logical(node: Node) -> int | None:
    """Return which member of the union LogicalType a node has."""
    union = node.value(LOGICAL)
    return next(iter(union), None) if isinstance(union, dict) else None


def _annotation(node: Node) -> int | None:
    """Return the LogicalType that a node has, or that its ConvertedType stands for; None if it has none."""
    converted = node.value(CONVERTED)
    of_converted = {UTF8: STRING, C_ENUM: ENUM, C_DATE: DATE, C_JSON: JSON, C_BSON: BSON, C_UINT_8: INTEGER}
    of_converted |= dict.fromkeys(C_TIMESTAMPS, TIMESTAMP) | dict.fromkeys(C_INTS, INTEGER) | {C_UINT_16: INTEGER}
    # 0 stands for all others.
    return _logical(node) or (None if converted is None else of_converted.get(converted, 0))


def _annotate(node: Node, wanted: str) -> None:
    """Give a primitive column the annotation of an Iceberg type, if Spark reads the same values by either."""
    physical, found = node.value(TYPE), _annotation(node)
    if physical == BYTE_ARRAY and wanted in ("string", "binary") and found in (None, STRING, ENUM, JSON, BSON, UNKNOWN):
        _put_annotation(node, *((UTF8, STRING) if wanted == "string" else (None, None)))
    elif physical == INT32 and wanted == "date" and found in (None, DATE, INTEGER, UNKNOWN) and not _is_unsigned(node):
        _put_annotation(node, C_DATE, DATE)
    elif (
        physical in (INT32, INT64)
        and wanted in ("int", "long")
        and (found == UNKNOWN or (found == INTEGER and _is_unsigned(node) and _bits(node) in (8, 16)))
    ):
        # Such unsigned numbers have the order of signed ones.
        _put_annotation(node, None, None)
    elif physical == INT64 and wanted in ("timestamp", "timestamptz") and found == TIMESTAMP:
        unit = _unit(node)
        if unit != NANOS:
            converted = next(key for key, value in C_TIMESTAMPS.items() if value == unit)
            is_adjusted = wanted == "timestamptz"
            inside: Struct = {
                ADJUSTED_TO_UTC: (TRUE if is_adjusted else FALSE, is_adjusted),
                UNIT: (STRUCT, {unit: (STRUCT, {})}),
            }
            # LogicalTypes.md, "Deprecated timestamp ConvertedType": it stands for instants only.
            _put_annotation(node, converted if is_adjusted else None, TIMESTAMP, inside)


def _put_annotation(node: Node, converted: int | None, logical: int | None, inside: Struct | None = None) -> None:
    """Put both forms of an annotation, which must agree."""
    node.element.pop(CONVERTED, None)
    node.element.pop(LOGICAL, None)
    if converted is not None:
        node.put(CONVERTED, I32, converted)
    if logical is not None:
        node.put(LOGICAL, STRUCT, {logical: (STRUCT, inside or {})})


def _inside(node: Node) -> Struct:
    """Return the struct in the union LogicalType; empty if there is none."""
    logical = node.value(LOGICAL)
    found = next(iter(logical.values()), (0, None))[1] if isinstance(logical, dict) else None
    return found if isinstance(found, dict) else {}


def _unit(node: Node) -> int:
    """Return the TimeUnit of a timestamp: 1 to 3."""
    unit = _inside(node).get(UNIT, (0, None))[1]
    from_logical = next(iter(unit), NANOS) if isinstance(unit, dict) else NANOS
    unit_number = from_logical if _logical(node) else C_TIMESTAMPS.get(node.value(CONVERTED), NANOS)
    return unit_number if unit_number in C_TIMESTAMPS.values() else NANOS


def _is_unsigned(node: Node) -> bool:
    if _logical(node) == INTEGER:
        return not _inside(node).get(IS_SIGNED, (0, True))[1]
    return node.value(CONVERTED) in (C_UINT_8, C_UINT_16)


def _bits(node: Node) -> int | None:
    if _logical(node) == INTEGER:
        width: int | None = _inside(node).get(BIT_WIDTH, (0, None))[1]
        return width
    return {C_UINT_8: 8, C_UINT_16: 16}.get(node.value(CONVERTED))


def _is_read_anywhere(node: Node) -> bool:
    found = _annotation(node)
    is_wide = found == DECIMAL and (node.value(PRECISION) or 0) > DECIMAL_PRECISION_MAX
    return (found is None or found in READ_ANYWHERE) and not is_wide
