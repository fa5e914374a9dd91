"""Checks that every reader finds Delta's columns in a Parquet file: compares its fields with the Iceberg schema. Pure.

Readers find a column by the field id in the file, or by the name mapping if the file has no ids (Iceberg spec, "Column
Projection"). Delta finds it by its physical name. If the two find different columns, a reader would show nulls or wrong
values: such a file is refused, with column and reason.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.types import (
    DateType,
    DecimalType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StructType,
    TimestamptzType,
)

from daemon.errors import MirrorKind, Unsupported
from daemon.iceberg.pyiceberg_ext.variant import VariantType
from daemon.translate.name_mapping import Path, column_finder, first_names, takes_name, with_unmapped
from daemon.translate.readers import Fault, Faults, misreaders
from daemon.translate.schema import TableSchema

FIELD_ID = b"PARQUET:field_id"

# The Parquet types from which an Iceberg type can be read (Iceberg spec, "Parquet", and "Schema Evolution").
STORED_AS: Mapping[str, frozenset[pa.DataType]] = {
    "boolean": frozenset({pa.bool_()}),
    "int": frozenset({pa.int8(), pa.int16(), pa.int32()}),
    "long": frozenset({pa.int8(), pa.int16(), pa.int32(), pa.int64()}),
    "float": frozenset({pa.float32()}),
    "double": frozenset({pa.float32(), pa.float64()}),
    "date": frozenset({pa.date32()}),
    "string": frozenset({pa.string()}),
    "binary": frozenset({pa.binary()}),
    "unknown": frozenset({pa.null()}),
    "timestamp": frozenset({pa.timestamp("us"), pa.timestamp("ms")}),
    # Arrow shows INT96 as nanoseconds without a zone.
    "timestamptz": frozenset({pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"), pa.timestamp("ns")}),
}
INT96 = pa.timestamp("ns")
INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
MILLIS = (pa.timestamp("ms"), pa.timestamp("ms", "UTC"))

# PyIceberg or Polars fails on other names of UTC, such as "Z".
UTC_NAMES = ("UTC", "Etc/UTC", "+00:00")
REWRITE = "Rewrite the file in Delta, for example with REORG TABLE or an UPDATE of its rows."
REWRITE_INNER = (
    "Let Delta rewrite the files with ids of elements, keys and values: REORG TABLE … APPLY (UPGRADE UNIFORM "
    "(ICEBERG_COMPAT_VERSION = 2)), which turns the table's deletion vectors off and UniForm on."
)
LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)


@dataclasses.dataclass
class FileSchema:
    """The properties of a checked file, in which all readers find all columns.

    `hidden` are the paths of columns that Delta's schema does not have, such as those of row tracking; `hidden_ids` has
    those to which the file gives field ids. `respelled` are the paths of columns that the table spells otherwise.
    `int96` maps the field ids of timestamps stored as INT96 to their top-level columns in the file. `views` are the
    field ids of texts and bytes that Arrow reads as views, `days` those of dates, and of timestamps with a zone that
    are not INT96. `millis` are the file's top-level columns of timestamps in milliseconds. `has_inner_variants`: it has
    variants inside of other types. `faults` are what programs that are not among the table's readers would misread,
    with the columns.
    """

    hidden: set[Path] = dataclasses.field(default_factory=set)
    hidden_ids: set[tuple[int, Path]] = dataclasses.field(default_factory=set)
    respelled: set[Path] = dataclasses.field(default_factory=set)
    int96: dict[int, str] = dataclasses.field(default_factory=dict)
    views: set[int] = dataclasses.field(default_factory=set)
    days: set[int] = dataclasses.field(default_factory=set)
    millis: set[str] = dataclasses.field(default_factory=set)
    has_inner_variants: bool = False
    faults: set[tuple[Fault, str]] = dataclasses.field(default_factory=set)

    @property
    def traits(self) -> FileTraits:
        return FileTraits(
            frozenset(self.hidden | self.respelled),
            bool(self.millis) or self.has_inner_variants,
            frozenset(self.hidden_ids),
            faults=frozenset(fault for fault, _ in self.faults),
        )


@dataclasses.dataclass(frozen=True)
class FileTraits:
    """The properties of data files that define the Iceberg table: columns and ids that the table does not have yet.

    `has_mirrors`: some of them are mirrors of Delta's. `faults`: what programs that are not among the table's readers
    would misread. If they are `is_unvectorized`, Spark has to read row by row.
    """

    unmapped: frozenset[Path] = frozenset()
    is_unvectorized: bool = False
    hidden_ids: frozenset[tuple[int, Path]] = frozenset()
    has_mirrors: bool = False
    faults: frozenset[Fault] = frozenset()

    def __or__(self, other: FileTraits) -> FileTraits:
        return FileTraits(
            self.unmapped | other.unmapped,
            self.is_unvectorized or other.is_unvectorized,
            self.hidden_ids | other.hidden_ids,
            self.has_mirrors or other.has_mirrors,
            self.faults | other.faults,
        )


def may_reach_files(before: TableSchema, after: TableSchema) -> bool:
    """Return whether readers may find other columns by the schema `after` in files that were checked against `before`.

    Such files must be checked again. Example: a file has the columns a and b, the table only a. If the table gets a
    column b or B, Delta shows the file's b in it. If a is spelled A from then on, Delta still finds it. So they must be
    if a reader came back that would misread them.
    """
    new_ids = after.schema.field_ids - before.schema.field_ids
    names = {number: name for number, name in first_names(before.name_mapping) if number in before.schema.field_ids}
    return bool(
        not new_ids.isdisjoint(field_id for field_id, _ in before.hidden_ids)
        or takes_name(after.name_mapping, new_ids, before.name_mapping.root, before.schema.field_ids)
        or any(names.get(field_id, name) != name for field_id, name in first_names(after.name_mapping))
        or after.filled - before.filled
        or after.needs_ids > before.needs_ids
        or any(misreaders(fault, after.readers) for fault in before.faults)
        # A value such as 0.1 of a float partition is another one as a double.
        or any(
            field.source_id not in new_ids
            and after.schema.find_type(field.source_id) != before.schema.find_type(field.source_id)
            for field in after.spec.fields
        )
    )


def check_file_schema(
    schema: pa.Schema, table: TableSchema, leaf_paths: Sequence[str], variants: Collection[Path] = ()
) -> FileSchema:
    """Compare a file's Arrow `schema` with the table's. `leaf_paths` are the file's columns, spelled as in Parquet.

    `variants` are the paths of the groups that Parquet annotates as variants, with Iceberg's names of elements, keys
    and values; Arrow does not show that.

    Raises `Unsupported` naming a column that one of the table's readers would not find, confuse with another, or read
    as another type.
    """
    has_ids = any(_id(field) is not None for column in schema for _, field in _paths(column, ()))
    if table.needs_ids and not has_ids:
        raise Unsupported(
            "the file has no field ids, but the table's column mapping is by id: Delta on Spark does not read it",
            hint="Rewrite the file, with field ids, with the program that wrote it.",
        )
    faults = Faults(table.readers)
    walk = _Walk(has_ids=has_ids, table=table, faults=faults, variants=variants)
    walk.struct(schema, table.schema.as_struct(), table.name_mapping.root, (), ())
    found = walk.seen
    found.faults = faults.found
    found.has_inner_variants = any(len(path) > 1 for path in variants)
    found.hidden_ids -= table.hidden_ids
    # Hidden columns as well: a later version may name them.
    found.millis |= {field.name for field in schema if _in_parquet(field.type) in MILLIS}
    # Imported when there is a file: see daemon/iceberg/pyiceberg_ext/file_io.py.
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, pyarrow_to_schema  # noqa: PLC0415

    mapping = with_unmapped(table.name_mapping, found.traits.unmapped, table.schema.field_ids)
    try:
        # One unknown Arrow type in any column is enough for PyIceberg to refuse the file. It reads no variants.
        if not table.has_variants:
            pyarrow_to_schema(schema, mapping, downcast_ns_timestamp_to_us=True)
    except (ValueError, TypeError, UnsupportedPyArrowTypeException) as error:
        what = f"the file has an Arrow schema that Iceberg cannot have ({error})"
        faults.add(Fault.ARROW_TYPE, "", what, hint=REWRITE, lifted_by="footer")
    # Parquet's LogicalTypes.md, "Nested Types": DuckDB reads older layouts of lists and maps as null.
    patterns = (pattern for field in schema for pattern in _leaf_patterns(field, re.escape(field.name)))
    for pattern, path in zip(patterns, leaf_paths, strict=True):
        if not re.fullmatch(pattern, path):
            faults.add(
                Fault.LAYOUT,
                path,
                f"column {path} of the file has the layout of lists or maps in older Parquet files",
                hint="Rewrite the file with Spark, and set spark.sql.parquet.writeLegacyFormat=false. delta-rs writes "
                "maps in the older layout, too.",
                lifted_by="footer",
            )
    names = {name.lower() for name in schema.names}
    unfilled = sorted(name for name in table.filled if name.lower() not in names)
    if unfilled:
        raise Unsupported(
            f"column {', '.join(unfilled)} is missing in the file, and Delta fills it with a default (EXISTS_DEFAULT): "
            "Iceberg readers would show nulls",
            hint="Rewrite the file in Delta, for example with an UPDATE of its rows.",
            lifted_by="rewrite",
        )
    return found


def _leaf_patterns(field: pa.Field, parent: str) -> Iterator[str]:
    kind, inner = _stored(field.type), _inner(field.type)
    if not inner and not pa.types.is_struct(kind):
        yield parent
    for each, name in inner:
        step = rf"key_value\.{name}" if pa.types.is_map(kind) else r"list\.[^.]+"
        yield from _leaf_patterns(each, rf"{parent}\.{re.escape(name) if pa.types.is_struct(kind) else step}")


def _stored(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _inner(kind: pa.DataType) -> list[tuple[pa.Field, str]]:
    """Return the fields directly inside a type, each with its name. Elements, keys and values have Iceberg's names."""
    kind = _stored(kind)
    if pa.types.is_struct(kind):
        return [(field, field.name) for field in kind]
    if pa.types.is_map(kind):
        return [(kind.key_field, "key"), (kind.item_field, "value")]
    return [(kind.value_field, "element")] if any(is_list(kind) for is_list in LISTS) else []


def _paths(field: pa.Field, path: Path) -> Iterator[tuple[Path, pa.Field]]:
    """Yield a field and everything in it, each after its path."""
    yield path, field
    for each, name in _inner(field.type):
        yield from _paths(each, (*path, name))


def _unmapped(field: pa.Field, mapped: MappedField, path: Path) -> Iterator[Path]:
    """Yield the paths inside a mapped field that are not mapped themselves."""
    for each, name in _inner(field.type):
        known = next((inner for inner in mapped.fields if name in inner.names), None)
        if known is None:
            yield from (inner for inner, _ in _paths(each, (*path, name)))
        else:
            yield from _unmapped(each, known, (*path, name))


def _id(field: pa.Field) -> int | None:
    try:
        number = int((field.metadata or {}).get(FIELD_ID, b"-1"))
    except ValueError:
        return None  # PyIceberg parses the id too, fails, and so `check_file_schema` refuses the file.
    return number if number >= 0 else None


class _Walk:
    """Walks over a file's fields and the name mapping in parallel."""

    def __init__(self, *, has_ids: bool, table: TableSchema, faults: Faults, variants: Collection[Path]) -> None:
        self.seen = FileSchema()
        self._faults = faults
        self._variants = variants
        self._spelled_otherwise: set[Path] = set()
        self._has_ids = has_ids
        self._table = table

    def struct(
        self, fields: Iterable[pa.Field], struct: StructType, mapping: Sequence[MappedField], parent: Path, named: Path
    ) -> None:
        """Check the fields of a struct. `parent` is its path by the names in the file, `named` by the table's names."""
        columns = {field.field_id: field for field in struct.fields}
        find = column_finder(mapping, columns, exact=self._table.needs_ids)
        names = {mapped.names[0].lower() for mapped in mapping if mapped.field_id in columns}
        self._check_spellings(fields, names, named)
        for field in fields:
            path = (*parent, field.name)
            mapped = find(field.name)
            if mapped is not None and field.name not in mapped.names:
                self.seen.respelled.add(path)
            if mapped is not None and (column := columns.get(mapped.field_id or 0)):
                if field.name != mapped.names[0]:
                    self._spelled_otherwise.add(path)
                self._found(field, column, mapped.fields, path, (*named, column.name))
            else:
                for inner, each in _paths(field, path):
                    if (field_id := _id(each)) in self._table.schema.field_ids:
                        other = (*named, field.name)
                        lifted_by: MirrorKind | None = None if self._table.needs_ids else "footer"
                        raise _unreadable(other, f"carries the field id {field_id} of another column", lifted_by)
                    if field_id is not None:
                        self.seen.hidden_ids.add((field_id, inner))
                self.seen.hidden.update(
                    (inner for inner, _ in _paths(field, path)) if mapped is None else _unmapped(field, mapped, path)
                )

    def _check_spellings(self, fields: Iterable[pa.Field], columns: Container[str], named: Path) -> None:
        """Refuse fields that differ only in case. `columns` are the names of the table's columns in lower case."""
        first: dict[str, str] = {}
        for field in fields:
            name = field.name.lower()
            other = first.setdefault(name, field.name)
            if other != field.name and not (self._has_ids and (self._table.needs_ids or name not in columns)):
                raise Unsupported(
                    f"columns {'.'.join((*named, other))} and {field.name} of the file differ only in upper and lower "
                    "case: Delta on Spark does not read such a column, and DuckDB not the columns after it",
                    hint="Rewrite the file in Delta or, if Delta cannot read it, with the program that wrote it.",
                )

    def _found(
        self,
        field: pa.Field,
        column: NestedField,
        mapping: Sequence[MappedField],
        path: Path,
        named: Path,
        *,
        is_inside: bool = False,
    ) -> None:
        if self._has_ids and _id(field) != column.field_id:
            self._other_id(field, column, named, is_inside=is_inside)
        kind, wanted = _in_parquet(field.type), column.field_type
        inner = [each for each, _ in _inner(kind)]
        if isinstance(wanted, StructType) and pa.types.is_struct(kind):
            self.struct(inner, wanted, mapping, path, named)
        elif isinstance(wanted, ListType) and any(is_list(kind) for is_list in LISTS):
            if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
                self._other_type(kind, column, named, Fault.ARROW_TYPE, "footer")
            self._inside(inner, [wanted.element_field], mapping, path, named)
        elif isinstance(wanted, MapType) and pa.types.is_map(kind):
            self._inside(inner, [wanted.key_field, wanted.value_field], mapping, path, named)
        elif isinstance(wanted, VariantType) and is_variant(kind):
            if path not in self._variants:
                raise _unreadable(named, "lacks Parquet's annotation of variants", "footer")
        elif kind == INT96 and is_stored_as(kind, wanted):
            self.seen.int96[column.field_id] = path[0]
        else:
            if pa.types.is_string_view(field.type) or pa.types.is_binary_view(field.type):
                self.seen.views.add(column.field_id)
            if not is_stored_as(kind, wanted):
                # Delta takes partition values from the log, whatever the file has.
                is_partition = any(column.field_id == each.source_id for each in self._table.spec.fields)
                of_type = Fault.PARTITION_VALUE if is_partition else find_type_fault(field.type, wanted)
                lifted_by = "rewrite" if is_partition else lifts_type(field.type, wanted)
                self._other_type(kind, column, named, of_type, lifted_by)
            if isinstance(wanted, DateType | TimestamptzType):
                self.seen.days.add(column.field_id)

    def _other_id(self, field: pa.Field, column: NestedField, named: Path, *, is_inside: bool) -> None:
        carried = "no field id" if _id(field) is None else f"the field id {_id(field)}"
        hint = REWRITE if len(named) == 1 else REWRITE_INNER
        # By id, Delta finds columns and the fields of structs, but not what lists and maps have inside.
        lifted_by: MirrorKind | None = None if self._table.needs_ids and not is_inside else "footer"
        why = f"carries {carried}, but the column's is {column.field_id}"
        if not is_inside or _id(field) is not None:
            raise _unreadable(named, why, lifted_by, hint)
        what = f"column {'.'.join(named)} of the file {why}"
        fault = Fault.ELEMENT_IDS if named[-1] == "element" else Fault.MAP_IDS
        self._faults.add(fault, ".".join(named), what, hint=hint, lifted_by=lifted_by)

    def _other_type(
        self, kind: pa.DataType, column: NestedField, named: Path, fault: Fault | None, lifted_by: MirrorKind | None
    ) -> None:
        why = f"is stored as {kind}, but the column's type is {column.field_type}"
        if fault is None:
            raise _unreadable(named, why, lifted_by)
        name = ".".join(named)
        self._faults.add(fault, name, f"column {name} of the file {why}", hint=REWRITE, lifted_by=lifted_by)

    def _inside(
        self,
        inner: Sequence[pa.Field],
        parts: Sequence[NestedField],
        mapping: Sequence[MappedField],
        path: Path,
        named: Path,
    ) -> None:
        """Check elements, or keys and values. Their paths have Iceberg's names, whatever the file calls them."""
        # Behind these, the mapping may have former fields of a struct.
        for field, part, mapped in zip(inner, parts, mapping, strict=False):
            self._found(field, part, mapped.fields, (*path, part.name), (*named, part.name), is_inside=True)
        # Where PyIceberg finds fields by the table's names, there may be no others: see `hides_renamed`.
        spelled = sorted(each for each in self._spelled_otherwise if each[: len(path)] == path != each)
        if spelled and not isinstance(parts[-1].field_type, StructType):
            raise _unreadable(
                named, f"has the field {'.'.join(spelled[0])}, which the table spells otherwise", "footer"
            )


def _in_parquet(kind: pa.DataType) -> pa.DataType:
    """Return the type as stored in Parquet. Arrow's writers also store the original Arrow type; ignore it."""
    if pa.types.is_dictionary(kind):
        return _in_parquet(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ms" if kind.unit == "s" else kind.unit, "UTC" if kind.tz in UTC_NAMES else kind.tz)
    return kind


def is_variant(kind: pa.DataType) -> bool:
    """Return whether readers can take a Parquet type for a variant, perhaps a shredded one (VariantEncoding.md)."""
    if not pa.types.is_struct(kind):
        return False
    inside = {field.name: field.type for field in kind}
    return inside.keys() <= {"metadata", "value", "typed_value"} and all(
        name in inside and _in_parquet(inside[name]) == pa.binary() for name in ("metadata", "value")
    )


def is_stored_as(kind: pa.DataType, wanted: IcebergType) -> bool:
    """Return whether readers read an Iceberg type from a Parquet type, which is given as Arrow's."""
    if isinstance(wanted, DecimalType):
        return bool(pa.types.is_decimal(kind) and kind.scale == wanted.scale and kind.precision <= wanted.precision)
    return kind in STORED_AS.get(str(wanted), ())


def lifts_type(stored: pa.DataType, wanted: IcebergType) -> MirrorKind | None:
    """Return the kind of mirror by which readers see a value of another Parquet type as Delta on Spark does.

    Spark's ParquetVectorUpdaterFactory says which types it reads as which; for others it fails.
    """
    kind, name = _in_parquet(_stored(stored)), str(wanted)
    if kind == pa.null():
        kind = pa.int32()  # Without a type, Arrow's writers store nulls as numbers.
    in_micros = pa.types.is_timestamp(kind) and kind.unit in ("ms", "us")
    by_footer = {
        # Arrow's writers also store the original Arrow type, which a new footer leaves out.
        "list": any(is_list(kind) for is_list in LISTS),
        # Older writers leave out the flag of UTC, or an annotation.
        "timestamp": in_micros,
        "timestamptz": in_micros,
        "string": kind in (pa.string(), pa.binary()),
        "binary": kind in (pa.string(), pa.binary()),
        "date": kind == pa.int32(),
        "int": kind in (pa.uint8(), pa.uint16(), pa.int32()),
        "long": kind in (pa.uint8(), pa.uint16(), pa.int32()) or pa.types.is_duration(kind),
    }
    if by_footer.get("list" if isinstance(wanted, ListType) else name, False):
        return "footer"
    by_rewrite = {
        "timestamp": kind in (pa.date32(), INT96),
        "double": kind in INTEGERS[:3],
        "long": kind == pa.uint32(),
        "binary": pa.types.is_fixed_size_binary(kind),
    }
    is_widened = isinstance(wanted, DecimalType) and _widens(kind, wanted)
    return "rewrite" if is_widened or by_rewrite.get(name, False) else None


def find_type_fault(stored: pa.DataType, wanted: IcebergType) -> Fault | None:
    """Return the fault of a value of another Parquet type that Delta on Spark reads.

    None if all readers misread it, in filters at least: DuckDB finds no string that is stored as bytes.
    """
    kind, name = _in_parquet(_stored(stored)), str(wanted)
    if name in ("timestamp", "timestamptz") and pa.types.is_timestamp(kind) and kind.unit in ("ms", "us"):
        # What Parquet has is the flag of UTC. Only Arrow knows names of zones.
        return Fault.ARROW_TYPE if kind.tz and name == "timestamptz" else Fault.ZONE_FLAG
    return Fault.UNSIGNED if name in ("int", "long") and kind in (pa.uint8(), pa.uint16()) else None


def _widens(kind: pa.DataType, wanted: DecimalType) -> bool:
    """Return whether each value of the stored type is one of the decimal type, as Delta widens types."""
    if pa.types.is_decimal(kind):
        return bool(kind.scale <= wanted.scale and kind.precision - kind.scale <= wanted.precision - wanted.scale)
    # Delta PROTOCOL.md, "Type Widening": integers of 32 bits need 10 digits, whatever their values are.
    return kind in INTEGERS and wanted.precision - wanted.scale >= (20 if kind == pa.int64() else 10)


def _unreadable(path: Path, why: str, lifted_by: MirrorKind | None, hint: str = REWRITE) -> Unsupported:
    return Unsupported(
        f"column {'.'.join(path)} of the file {why}: readers of the Iceberg table would not show what Delta shows",
        hint=hint,
        lifted_by=lifted_by,
    )
