"""Checks that every reader finds Delta's columns in a Parquet file: compares its fields with the Iceberg schema. Pure.

Readers find a column by the field id in the file, or by the name mapping if the file has no ids (Iceberg spec, "Column
Projection"). Delta finds it by its physical name. If the two find different columns, a reader would show nulls or wrong
values: such a file is refused, with column and reason.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.table.name_mapping import MappedField, NameMapping
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
)

from daemon.errors import Unsupported
from daemon.translate.hidden_columns import with_unmapped
from daemon.translate.name_mapping import Path, first_names, takes_name
from daemon.translate.schema import TableSchema

FIELD_ID = b"PARQUET:field_id"

# For each Iceberg type, the Parquet types from which it can be read (Iceberg spec, "Parquet", and the promotions of
# "Schema Evolution").
STORED_AS: Mapping[type[IcebergType], frozenset[pa.DataType]] = {
    BooleanType: frozenset({pa.bool_()}),
    IntegerType: frozenset({pa.int8(), pa.int16(), pa.int32()}),
    LongType: frozenset({pa.int8(), pa.int16(), pa.int32(), pa.int64()}),
    FloatType: frozenset({pa.float32()}),
    DoubleType: frozenset({pa.float32(), pa.float64()}),
    DateType: frozenset({pa.date32()}),
    StringType: frozenset({pa.string()}),
    BinaryType: frozenset({pa.binary()}),
    TimestampType: frozenset({pa.timestamp("us"), pa.timestamp("ms")}),
    # Arrow shows INT96 as nanoseconds without a zone.
    TimestamptzType: frozenset({pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"), pa.timestamp("ns")}),
}
INT96 = pa.timestamp("ns")
MILLIS = (pa.timestamp("ms"), pa.timestamp("ms", "UTC"))

# PyIceberg or Polars fails on other names of UTC, such as "Z".
UTC_NAMES = ("UTC", "Etc/UTC", "+00:00")
REWRITE = "Rewrite the file in Delta, for example with REORG TABLE or an UPDATE of its rows."
REWRITE_INNER = (
    "Let Delta rewrite the files with ids of elements, keys and values: REORG TABLE … APPLY (UPGRADE UNIFORM "
    "(ICEBERG_COMPAT_VERSION = 2)), which turns the table's deletion vectors off and UniForm on."
)
LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)


@dataclass(frozen=True)
class FileSchema:
    """The properties of a checked file, in which all readers find all columns.

    `hidden` are the paths of columns that Delta's schema does not have, such as those of row tracking; `hidden_ids` has
    those to which the file gives field ids. `respelled` are the paths of columns that the table spells otherwise.
    `int96` maps the field ids of timestamps stored as INT96 to the top-level columns of the file that contain them.
    `views` are the field ids of texts and bytes that Arrow reads as views, `days` those of dates, and of timestamps
    with a zone that are not INT96. `millis` are the names in the file of top-level columns of timestamps in
    milliseconds.
    """

    hidden: frozenset[Path]
    int96: Mapping[int, str]
    days: frozenset[int]
    views: frozenset[int] = frozenset()
    millis: frozenset[str] = frozenset()
    hidden_ids: frozenset[tuple[int, Path]] = frozenset()
    respelled: frozenset[Path] = frozenset()

    @property
    def traits(self) -> FileTraits:
        return FileTraits(self.hidden | self.respelled, bool(self.millis), self.hidden_ids)


@dataclass(frozen=True)
class FileTraits:
    """The properties of data files by which the Iceberg table is defined.

    `unmapped` are columns of the files whose names the name mapping does not have. `hidden_ids` are new ones, too.
    """

    unmapped: frozenset[Path] = frozenset()
    has_millis: bool = False
    hidden_ids: frozenset[tuple[int, Path]] = frozenset()

    def __or__(self, other: FileTraits) -> FileTraits:
        return FileTraits(
            self.unmapped | other.unmapped, self.has_millis or other.has_millis, self.hidden_ids | other.hidden_ids
        )


def may_reach_files(before: TableSchema, after: TableSchema) -> bool:
    """Return whether readers may find other columns by the schema `after` in files that were checked against `before`.

    Such files must be checked against `after`, as files that are added later. Example: a file has the columns a and b,
    the table only a. If the table gets a column b or B, Delta shows the file's b in it. If a is spelled A from then on,
    Delta still finds it.
    """
    new_ids = after.schema.field_ids - before.schema.field_ids
    names = {number: name for number, name in first_names(before.name_mapping) if number in before.schema.field_ids}
    return bool(
        not new_ids.isdisjoint(field_id for field_id, _ in before.hidden_ids)
        or takes_name(after.name_mapping, new_ids, before.name_mapping.root, before.schema.field_ids)
        or any(names.get(field_id, name) != name for field_id, name in first_names(after.name_mapping))
        or after.filled - before.filled
        or after.needs_ids > before.needs_ids
        # A value such as 0.1 of a float partition is another one as a double.
        or any(
            field.source_id not in new_ids
            and after.schema.find_type(field.source_id) != before.schema.find_type(field.source_id)
            for field in after.spec.fields
        )
    )


def check_file_schema(schema: pa.Schema, table: TableSchema, leaf_paths: Sequence[str]) -> FileSchema:
    """Compare a file's Arrow `schema` with the table's. `leaf_paths` are the file's columns, spelled as in Parquet.

    Raises `Unsupported` naming a column that some reader would not find, confuse with another, or read as another type.
    """
    has_ids = any(_id(field) is not None for field in _flat(schema))
    if table.needs_ids and not has_ids:
        raise Unsupported(
            "the file has no field ids, but the table's column mapping is by id: Delta on Spark does not read it",
            hint="Rewrite the file, with field ids, with the program that wrote it.",
        )
    walk = _Walk(has_ids=has_ids, table=table)
    walk.struct(schema, table.schema.as_struct(), table.name_mapping.root, (), ())
    found = FileSchema(
        hidden=frozenset(walk.hidden),
        int96=walk.int96,
        days=frozenset(walk.days),
        views=frozenset(walk.views),
        # Hidden columns as well: a later version may name them.
        millis=frozenset(field.name for field in schema if _in_parquet(field.type) in MILLIS),
        hidden_ids=frozenset(walk.hidden_ids) - table.hidden_ids,
        respelled=frozenset(walk.respelled),
    )
    _check_pyiceberg(schema, with_unmapped(table.name_mapping, found.traits.unmapped, table.schema.field_ids))
    _check_lists(schema, leaf_paths)
    names = {name.lower() for name in schema.names}
    unfilled = sorted(name for name in table.filled if name.lower() not in names)
    if unfilled:
        raise Unsupported(
            f"column {', '.join(unfilled)} is missing in the file, and Delta fills it with a default (EXISTS_DEFAULT): "
            "Iceberg readers would show nulls",
            hint="Rewrite the file in Delta, for example with an UPDATE of its rows.",
        )
    return found


def _check_lists(schema: pa.Schema, leaf_paths: Sequence[str]) -> None:
    """Refuse older layouts of lists and maps: DuckDB reads them as null. Parquet's LogicalTypes.md, "Nested Types"."""
    patterns = [pattern for field in schema for pattern in _leaf_patterns(field, re.escape(field.name))]
    for pattern, path in zip(patterns, leaf_paths, strict=True):
        if not re.fullmatch(pattern, path):
            raise Unsupported(
                f"column {path} of the file has the layout of lists or maps in older Parquet files: some readers "
                "show nulls",
                hint="Rewrite the file with Spark, and set spark.sql.parquet.writeLegacyFormat=false. delta-rs writes "
                "maps in the older layout, too.",
            )


def _leaf_patterns(field: pa.Field, parent: str) -> Iterator[str]:
    kind, inner = _stored(field.type), _inner(field.type)
    if pa.types.is_struct(kind):
        for each in inner:
            yield from _leaf_patterns(each, rf"{parent}\.{re.escape(each.name)}")
    elif pa.types.is_map(kind):
        for each, name in zip(inner, ("key", "value"), strict=True):
            yield from _leaf_patterns(each, rf"{parent}\.key_value\.{name}")
    elif inner:
        yield from _leaf_patterns(inner[0], rf"{parent}\.list\.[^.]+")
    else:
        yield parent


def _check_pyiceberg(schema: pa.Schema, mapping: NameMapping) -> None:
    """Refuse a file that PyIceberg refuses: one unknown Arrow type in any column is enough."""
    # Imported when there is a file: see daemon/iceberg/pyiceberg_ext/file_io.py.
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, pyarrow_to_schema  # noqa: PLC0415

    try:
        pyarrow_to_schema(schema, mapping, downcast_ns_timestamp_to_us=True)
    except (ValueError, TypeError, UnsupportedPyArrowTypeException) as error:
        raise Unsupported(f"PyIceberg and Polars cannot read the file: {error}", hint=REWRITE) from error


def _flat(fields: Iterable[pa.Field]) -> Iterator[pa.Field]:
    for field in fields:
        yield field
        yield from _flat(_inner(field.type))


def _stored(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _inner(kind: pa.DataType) -> Sequence[pa.Field]:
    kind = _stored(kind)
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if any(is_list(kind) for is_list in LISTS) else []


def _paths(field: pa.Field, path: Path) -> Iterator[tuple[Path, pa.Field]]:
    """Yield a field and everything in it, each after its path."""
    yield path, field
    for each, name in _named_inner(field.type):
        yield from _paths(each, (*path, name))


def _unmapped(field: pa.Field, mapped: MappedField, path: Path) -> Iterator[Path]:
    """Yield the paths inside a mapped field that are not mapped themselves."""
    for each, name in _named_inner(field.type):
        known = next((inner for inner in mapped.fields if name in inner.names), None)
        if known is None:
            yield from (inner for inner, _ in _paths(each, (*path, name)))
        else:
            yield from _unmapped(each, known, (*path, name))


def _named_inner(kind: pa.DataType) -> Iterator[tuple[pa.Field, str]]:
    """Yield the fields directly inside a type. Elements, keys and values have Iceberg's names."""
    kind, inner = _stored(kind), _inner(kind)
    if pa.types.is_struct(kind):
        names = [each.name for each in inner]
    else:
        names = ["key", "value"] if pa.types.is_map(kind) else ["element"] * len(inner)
    return zip(inner, names, strict=True)


def _id(field: pa.Field) -> int | None:
    try:
        number = int((field.metadata or {}).get(FIELD_ID, b"-1"))
    except ValueError:
        return None  # PyIceberg parses the id too, fails, and so `_check_pyiceberg` refuses the file.
    return number if number >= 0 else None


class _Walk:
    """Walks over a file's fields and the name mapping in parallel, and collects the parts of `FileSchema`."""

    def __init__(self, *, has_ids: bool, table: TableSchema) -> None:
        self.hidden: set[Path] = set()
        self.hidden_ids: set[tuple[int, Path]] = set()
        self.respelled: set[Path] = set()
        self.int96: dict[int, str] = {}
        self.views: set[int] = set()
        self.days: set[int] = set()
        self._spelled_otherwise: set[Path] = set()
        self._has_ids = has_ids
        self._ids = table.schema.field_ids
        self._by_id = table.needs_ids

    def struct(
        self, fields: Iterable[pa.Field], struct: StructType, mapping: Sequence[MappedField], parent: Path, named: Path
    ) -> None:
        """Check the fields of a struct. `parent` is its path by the names in the file, `named` by the table's names."""
        by_name = {name: mapped for mapped in mapping for name in mapped.names}
        columns = {field.field_id: field for field in struct.fields}
        # Delta ignores case in names, but a name mapping does not. Java's toLowerCase is Python's lower.
        spellings = {mapped.names[0].lower(): mapped for mapped in mapping if mapped.field_id in columns}
        self._check_spellings(fields, spellings, named)
        for field in fields:
            path, name = (*parent, field.name), field.name.lower()
            mapped = by_name.get(field.name)
            if (mapped is None or mapped.field_id not in columns) and not self._by_id and name in spellings:
                mapped = spellings[name]
                self.respelled.add(path)
            column = None if mapped is None else columns.get(mapped.field_id or 0)
            if mapped is not None and column is not None:
                if field.name != mapped.names[0]:
                    self._spelled_otherwise.add(path)
                self._found(field, column, mapped.fields, path, (*named, column.name))
            else:
                for inner, each in _paths(field, path):
                    self._hide(inner, _id(each), (*named, field.name))
                self.hidden.update(
                    (inner for inner, _ in _paths(field, path)) if mapped is None else _unmapped(field, mapped, path)
                )

    def _check_spellings(self, fields: Iterable[pa.Field], columns: Container[str], named: Path) -> None:
        """Refuse fields that differ only in case. `columns` are the names of the table's columns in lower case."""
        first: dict[str, str] = {}
        for field in fields:
            name = field.name.lower()
            other = first.setdefault(name, field.name)
            if other != field.name and not (self._has_ids and (self._by_id or name not in columns)):
                raise Unsupported(
                    f"columns {'.'.join((*named, other))} and {field.name} of the file differ only in upper and lower "
                    "case: Delta on Spark does not read such a column, and DuckDB not the columns after it",
                    hint="Rewrite the file in Delta or, if Delta cannot read it, with the program that wrote it.",
                )

    def _hide(self, path: Path, field_id: int | None, named: Path) -> None:
        """Take note of a field that only the file has, in the column `named`."""
        if field_id in self._ids:
            raise _unreadable(named, f"carries the field id {field_id} of another column")
        if field_id is not None:
            self.hidden_ids.add((field_id, path))

    def _found(
        self, field: pa.Field, column: NestedField, mapping: Sequence[MappedField], path: Path, named: Path
    ) -> None:
        if self._has_ids and _id(field) != column.field_id:
            carried = "no field id" if _id(field) is None else f"the field id {_id(field)}"
            hint = REWRITE if len(path) == 1 else REWRITE_INNER
            raise _unreadable(named, f"carries {carried}, but the column's is {column.field_id}", hint)
        kind, wanted = _in_parquet(field.type), column.field_type
        inner = _inner(kind)
        if isinstance(wanted, StructType) and pa.types.is_struct(kind):
            self.struct(inner, wanted, mapping, path, named)
        elif isinstance(wanted, ListType) and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            self._inside(inner[0], wanted.element_field, mapping[0], path, named)
            self._check_cast(wanted.element_type, path, named)
        elif isinstance(wanted, MapType) and pa.types.is_map(kind):
            self._inside(inner[0], wanted.key_field, mapping[0], path, named)
            self._inside(inner[1], wanted.value_field, mapping[1], path, named)
            self._check_cast(wanted.value_type, path, named)
        elif not _is_stored_as(kind, wanted):
            raise _unreadable(named, f"is stored as {kind}, but the column's type is {wanted}")
        elif kind == INT96:
            self.int96[column.field_id] = path[0]
        elif pa.types.is_string_view(field.type) or pa.types.is_binary_view(field.type):
            self.views.add(column.field_id)
        elif isinstance(wanted, DateType | TimestamptzType):
            self.days.add(column.field_id)

    def _inside(self, field: pa.Field, part: NestedField, mapped: MappedField, path: Path, named: Path) -> None:
        """Check an element, key or value. The path has Iceberg's name for it, whatever its name in the file is."""
        self._found(field, part, mapped.fields, (*path, part.name), (*named, part.name))

    def _check_cast(self, inner: IcebergType, path: Path, named: Path) -> None:
        """Refuse other spellings where PyIceberg finds fields by the table's names: see `schema._hides_renamed`."""
        spelled = sorted(
            each for each in self._spelled_otherwise if len(each) > len(path) and each[: len(path)] == path
        )
        if spelled and not isinstance(inner, StructType):
            raise _unreadable(named, f"has the field {'.'.join(spelled[0])}, which the table spells otherwise")


def _in_parquet(kind: pa.DataType) -> pa.DataType:
    """Return the type as stored in Parquet. Arrow's writers also store the original Arrow type; ignore it."""
    plain = kind
    if pa.types.is_dictionary(kind):
        plain = _in_parquet(kind.value_type)
    elif pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        plain = pa.string()
    elif pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        plain = pa.binary()
    elif pa.types.is_timestamp(kind):
        plain = pa.timestamp("ms" if kind.unit == "s" else kind.unit, "UTC" if kind.tz in UTC_NAMES else kind.tz)
    return plain


def _is_stored_as(kind: pa.DataType, wanted: IcebergType) -> bool:
    if isinstance(wanted, DecimalType):
        return bool(pa.types.is_decimal(kind) and kind.scale == wanted.scale and kind.precision <= wanted.precision)
    return kind in STORED_AS.get(type(wanted), ())


def _unreadable(path: Path, why: str, hint: str = REWRITE) -> Unsupported:
    return Unsupported(
        f"column {'.'.join(path)} of the file {why}: readers of the Iceberg table would not show what Delta shows",
        hint=hint,
    )
