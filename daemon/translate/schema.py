"""Delta schema -> Iceberg schema with stable field ids, partition spec and name mapping. Pure.

With column mapping, the ids are Delta's (PROTOCOL.md, "Column Mapping"). Without it, the Parquet files have no ids:
dvsync assigns an id once and keeps it for the column's name. Readers map names to ids with the name mapping (Iceberg
spec, "Column Projection"). The mapping has physical names, because these are the names in the files.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import msgspec
from pyiceberg.exceptions import ValidationError
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
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from daemon.delta.actions import Metadata
from daemon.errors import CorruptInput, Unsupported
from daemon.translate.name_mapping import HIDDEN_ID_START, Path, find_renumbered, folded, mapped_ids, with_former

# As Spark's DataType.fromJson reads them.
PRIMITIVES: Mapping[str, PrimitiveType] = {
    "boolean": BooleanType(),
    "byte": IntegerType(),
    "short": IntegerType(),
    "integer": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "decimal": DecimalType(10, 0),
    "timestamp": TimestamptzType(),
    "timestamp_ltz": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
}

# Types of Iceberg's format version 3 that not every reader knows. A test says when they do.
REFUSED_TYPES = {"variant": "PyIceberg does not know", "void": "DuckDB cannot read as Iceberg's type unknown"}

# As Spark's DataType.fromJson reads them.
DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,2})\s*,\s*(-?[0-9]{1,2})\s*\)")
# Delta itself writes `string`, and the rest into the field's metadata.
COLLATED, COLLATIONS = re.compile(r"string\s+collate\s+\w+"), "__COLLATIONS"
STRING = re.compile(rf"(?:var)?char\(\s*[0-9]+\s*\)|{COLLATED.pattern}")

# PROTOCOL.md, "Column Mapping": the ids and names in a field's metadata.
MAPPING_ID = "delta.columnMapping.id"
MAPPING_NAME = "delta.columnMapping.physicalName"

# Spark's value of a column in files that do not have it, in a field's metadata (ResolveDefaultColumns.scala). Delta 4.4
# no longer writes it, but still reads it.
EXISTS_DEFAULT = "EXISTS_DEFAULT"

# PROTOCOL.md, "IcebergCompatV2": ids of list elements, map keys and map values, by the path of physical names.
NESTED_IDS = "delta.columnMapping.nested.ids"

# Partition field ids start here (Iceberg spec, "Partition Specs").
PARTITION_FIELD_ID_START = 1000

# About 40,000 plain columns. Bounded, because each metadata file repeats every schema that the table ever had.
SCHEMA_CHARACTERS_MAX = 4 << 20

# Levels of nested types. DuckDB 1.5.5 hangs on lists inside 28 lists, PyIceberg fails at 90 structs.
NESTING_MAX = 25

# Names of metadata columns that Iceberg's readers add (Iceberg spec, "Reserved Field IDs"; those that
# MetadataColumns of Iceberg 1.12 recognises by name). Spark refuses to read a table that has a column with such a name.
RESERVED_NAMES = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)

# Spark's reader adds this column where rows are deleted. Its filters ignore case, so `_POS` is reserved as well.
POSITION_NAME = "_pos"
HINT_METADATA = (
    "The metaData action is invalid, so dvsync applied nothing of this commit. Fix the program that wrote it."
)


@dataclass(frozen=True)
class TableSchema:
    """The Iceberg side of one Delta metadata.

    `replaced` are columns whose type or id changed, so that they are new columns in Iceberg. If there are any, no older
    file may stay live. `time_zone` applies to timestamp partition values without one. If `may_overflow`, INT96
    timestamps are accepted that some readers cannot show. If `has_row_ids`, the rows' ids are those of Delta's row
    tracking. `filled` are the physical names of columns that Delta on Spark fills with a default in files without them.
    `hidden_ids` has the columns that only files have, and the field ids that files give to them. If `needs_ids`, Delta
    finds columns by the field ids in the files. `collated` columns get no metrics: the least and the greatest value in
    Delta's statistics may be those of another order than Iceberg's.
    """

    schema: Schema
    specs: Mapping[int, PartitionSpec]
    spec_id: int
    name_mapping: NameMapping
    replaced: tuple[str, ...] = ()
    time_zone: str = "UTC"
    may_overflow: bool = False
    has_row_ids: bool = False
    filled: frozenset[str] = frozenset()
    hidden_ids: frozenset[tuple[int, Path]] = frozenset()
    needs_ids: bool = False
    collated: frozenset[int] = frozenset()

    @property
    def spec(self) -> PartitionSpec:
        """The spec for files that are added from now on."""
        return self.specs[self.spec_id]

    @cached_property
    def leaves(self) -> Mapping[tuple[str, ...], NestedField]:
        """Physical path -> field of each primitive column outside lists and maps: the columns that have metrics."""
        leaves = _leaves(self.schema.fields, self.name_mapping, ())
        return {path: field for path, field in leaves if field.field_id not in self.collated}

    @cached_property
    def physical_names(self) -> Mapping[int, str]:
        """Field id -> physical name of the top-level columns."""
        return {each.field_id: each.names[0] for each in self.name_mapping if each.names and each.field_id is not None}

    @cached_property
    def field_ids(self) -> Mapping[str, int]:
        """Physical name in lower case -> field id of the top-level columns."""
        return {name.lower(): field_id for field_id, name in self.physical_names.items()}


def translate_schema(
    metadata: Metadata,
    previous: Schema | None = None,
    *,
    mapping: NameMapping | None = None,
    schemas: Mapping[int, Schema] = MappingProxyType({}),
    specs: Mapping[int, PartitionSpec] = MappingProxyType({}),
    hidden_ids: frozenset[tuple[int, Path]] = frozenset(),
) -> TableSchema:
    """Translate the schema of a Delta `metadata`.

    `previous` and `mapping` are the Iceberg table's current schema and name mapping; `schemas` and `specs` are all that
    it has of former times. Existing columns keep their ids. A new column gets the id that files give to it already, or
    one that no file gives to another column. Raises `Unsupported` naming the column and its type, or `CorruptInput`
    when this is not a Delta schema.
    """
    struct = parse_struct(metadata.schema_string)
    mapped = metadata.column_mapping_mode != "none"
    used = {field_id for field_id in mapped_ids(mapping or ()) if field_id < HIDDEN_ID_START}
    for schema in (*([previous] if previous else []), *schemas.values()):
        used |= schema.field_ids
    try:
        _check_names(struct)
        if mapped:
            used.add(_column_id(metadata.configuration.get("delta.columnMapping.maxColumnId", "0")))
        translation = _Translation(metadata.partition_columns, mapped=mapped, used=used, hidden_ids=hidden_ids)
        fields = translation.struct_fields(struct, previous.as_struct() if previous else None, ())
        new_mapping = translation.mapped_fields(struct, fields)
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        ValidationError,
    ) as error:
        fault = f"{error} is missing" if isinstance(error, KeyError) else error
        raise CorruptInput(f"the schema is not one of Delta's: {fault}", hint=HINT_METADATA) from error
    try:
        schema = Schema(*fields, schema_id=_schema_id(StructType(*fields), schemas))
    except ValueError as error:
        # A column `a.b` beside a struct `a` with a field `b`.
        raise Unsupported(
            f"two columns have one full name in Iceberg: {error}", hint="Rename one of them in the Delta table."
        ) from error
    spec = _partition_spec(schema, metadata.partition_columns, specs)
    renumbered = find_renumbered(mapping, new_mapping) if mapped and mapping else ()
    return TableSchema(
        schema=schema,
        specs={**specs, spec.spec_id: spec},
        spec_id=spec.spec_id,
        name_mapping=NameMapping(with_former(new_mapping, list(mapping or ()), schema.field_ids)),
        replaced=(*translation.replaced, *renumbered),
        filled=frozenset(
            physical_name(field)
            for field in struct["fields"]
            if EXISTS_DEFAULT in _metadata(field) and field["name"] not in metadata.partition_columns
        ),
        hidden_ids=hidden_ids,
        needs_ids=metadata.column_mapping_mode == "id",
        collated=frozenset(translation.collated),
    )


def parse_struct(schema_string: str) -> dict[str, Any]:
    """Parse Spark's JSON of a schema: a struct with fields. Checks its size and nesting only.

    Raises `CorruptInput`, and `Unsupported` for a schema that is too large or nested too deeply.
    """
    if len(schema_string) > SCHEMA_CHARACTERS_MAX:
        raise Unsupported(
            f"the schema has {len(schema_string)} characters, but dvsync reads at most {SCHEMA_CHARACTERS_MAX}",
            hint="Drop columns, or shorten their comments, in the Delta table.",
        )
    try:
        # msgspec, unlike the `json` module, refuses halves of UTF-16 pairs, which could not be written out as UTF-8.
        struct = msgspec.json.decode(schema_string)
    except (ValueError, RecursionError) as error:
        raise CorruptInput(f"the schema is not JSON: {error}", hint=HINT_METADATA) from error
    if not isinstance(struct, dict) or not isinstance(struct.get("fields"), list):
        raise CorruptInput("the schema is not a struct with fields", hint=HINT_METADATA)
    for field in struct["fields"]:
        _check_nesting(field)
    return struct


def _column_id(value: Any) -> int:
    """Parse an id of column mapping. Raises ValueError or TypeError for values that Delta cannot have assigned."""
    number = int(value)
    if not 0 <= number < HIDDEN_ID_START:
        raise ValueError(f"{number} is not a column id")
    return number


def _check_nesting(field: Any) -> None:
    types = list(_types_of([field]))
    for _ in range(NESTING_MAX + 1):
        types = [inner for kind in types for inner in _inner_types(kind)]
    if types:
        raise Unsupported(
            f"column {field.get('name')} is nested in more than {NESTING_MAX} levels",
            hint="Drop the column, or store its deeply nested values as text.",
        )


def _inner_types(kind: Any) -> Iterator[Any]:
    """Yield the types directly inside a type. The JSON is not validated yet, so unexpected values are skipped."""
    if isinstance(kind, dict):
        yield from _types_of(kind.get("fields"))
        yield from (kind[name] for name in ("elementType", "keyType", "valueType") if name in kind)


def _types_of(fields: Any) -> Iterator[Any]:
    for field in fields if isinstance(fields, list) else ():
        if isinstance(field, dict):
            yield field.get("type")


def _check_names(struct: dict[str, Any]) -> None:
    """Raise `Unsupported` naming the columns whose names Iceberg reserves. Nested fields may have such names."""
    names = [str(field["name"]) for field in struct["fields"]]
    reserved = [name for name in names if name in RESERVED_NAMES or name.casefold() == POSITION_NAME]
    if reserved:
        raise Unsupported(
            f"Iceberg reserves the name of column {', '.join(reserved)}: Spark cannot read a table with such a column",
            hint="Rename it in Delta: ALTER TABLE … RENAME COLUMN, with delta.columnMapping.mode = 'name', or CREATE "
            "OR REPLACE TABLE … AS SELECT if the table has arrays or maps.",
        )


def _schema_id(struct: StructType, schemas: Mapping[int, Schema]) -> int:
    """Return the id of an equal schema that the table already has, or else the next free id."""
    for schema_id, schema in schemas.items():
        if schema.as_struct() == struct and not schema.identifier_field_ids:
            return schema_id
    return max(schemas, default=-1) + 1


def _metadata(field: dict[str, Any]) -> dict[str, Any]:
    return field.get("metadata") or {}


def is_collated(field: dict[str, Any]) -> bool:
    """Return whether a field's values may have another order than that of their bytes."""
    kind = field["type"]
    return COLLATIONS in _metadata(field) or (isinstance(kind, str) and COLLATED.fullmatch(kind) is not None)


def physical_name(field: dict[str, Any]) -> str:
    """Return the name of a Delta field in the files. PROTOCOL.md, "Column Mapping"."""
    return str(_metadata(field).get(MAPPING_NAME, field["name"]))


@dataclass(frozen=True)
class _NestedIds:
    """The ids in a field's metadata for elements, keys and values. `place` is the path of the current one."""

    ids: Mapping[str, int]
    place: str

    @classmethod
    def of(cls, field: dict[str, Any]) -> _NestedIds:
        return cls(_metadata(field).get(NESTED_IDS, {}), physical_name(field))

    @property
    def id(self) -> int | None:
        return self.ids.get(self.place)

    @property
    def of_element(self) -> _NestedIds:
        return _NestedIds(self.ids, f"{self.place}.element")

    @property
    def of_key(self) -> _NestedIds:
        return _NestedIds(self.ids, f"{self.place}.key")

    @property
    def of_value(self) -> _NestedIds:
        return _NestedIds(self.ids, f"{self.place}.value")


@dataclass(frozen=True)
class _Before:
    """The fields that a struct had before. `is_first` if the struct is new."""

    by_id: Mapping[int, NestedField]
    by_name: Mapping[str, NestedField]
    by_folded_name: Mapping[str, NestedField]
    is_first: bool

    @classmethod
    def of(cls, previous: StructType | None) -> _Before:
        fields = previous.fields if previous else ()
        return cls(
            by_id={field.field_id: field for field in fields},
            by_name={field.name: field for field in fields},
            by_folded_name={field.name.lower(): field for field in fields},
            is_first=previous is None,
        )


def _hides_renamed(kind: dict[str, Any]) -> bool:
    """Return whether PyIceberg would search struct fields in a list or map by names that the files do not have.

    If the element or the value is a struct, PyIceberg 0.12 finds its fields by id. It casts any other list or map as a
    whole, by the table's names (ArrowProjectionVisitor.list and .map). An example is a list of lists of structs.
    """
    inner = kind["elementType"] if kind["type"] == "array" else kind["valueType"]
    is_struct = isinstance(inner, dict) and inner["type"] == "struct"
    return not is_struct and _has_renamed(kind)


def _has_renamed(kind: Any) -> bool:
    if not isinstance(kind, dict):
        return False
    inner = [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    fields = kind.get("fields", [])
    return any(physical_name(field) != field["name"] or _has_renamed(field["type"]) for field in fields) or any(
        _has_renamed(each) for each in inner
    )


class _Translation:
    """Walks over a Spark schema once, and keeps the next free field id."""

    def __init__(
        self, partition_columns: Container[str], *, mapped: bool, used: set[int], hidden_ids: Iterable[tuple[int, Path]]
    ) -> None:
        self.partition_columns = partition_columns
        self.mapped = mapped
        self.replaced: list[str] = []
        self.collated: set[int] = set()
        self._next_id = max(used, default=0) + 1
        # Files may differ in the id of a column, or in the column of an id. Then some are refused.
        self._in_files = {number: folded(path) for number, path in sorted(hidden_ids)}
        self._by_path = {
            path: number for number, path in self._in_files.items() if number not in used and number < HIDDEN_ID_START
        }
        self._used: set[int] = set()

    def _new_id(self, path: Path) -> int:
        if (known := self._by_path.get(folded(path))) is not None:
            return known
        while self._next_id in self._in_files:
            self._next_id += 1
        self._next_id += 1
        return self._next_id - 1

    def _mapped_id(self, value: Any) -> int:
        number = _column_id(value)
        if number in self._used:
            raise ValueError(f"two columns have the id {number}")
        self._used.add(number)
        return number

    def struct_fields(
        self, struct: dict[str, Any], previous: StructType | None, path: tuple[str, ...]
    ) -> tuple[NestedField, ...]:
        first: dict[str, str] = {}
        for name in (field["name"] for field in struct["fields"]):
            if (other := first.get(name.lower())) is not None:
                columns = " and ".join(".".join((*path, each)) for each in (other, name))
                raise CorruptInput(
                    f"columns {columns} have one name, because Delta ignores case: Delta on Spark refuses the table",
                    hint="Rename or drop one of them with the program that wrote the metaData action; dvsync then "
                    "continues by itself.",
                )
            first[name.lower()] = name
        before = _Before.of(previous)
        return tuple(self._field(field, before, path) for field in struct["fields"])

    def _field(self, field: dict[str, Any], before: _Before, parent: tuple[str, ...]) -> NestedField:
        path = (*parent, field["name"])
        column = ".".join(path)
        old = before.by_id.get(_metadata(field)[MAPPING_ID]) if self.mapped else before.by_name.get(field["name"])
        spelled = before.by_folded_name.get(field["name"].lower())
        if old is None and spelled is not None and not self.mapped:
            # Delta on Spark ignores case in the names of files' columns, but not in those of partition values.
            if column in self.partition_columns:
                self.replaced.append(f"{column} (spelled {spelled.name} before)")
            else:
                old = spelled
        # A struct gets its id before its fields do, the order in which Delta assigns ids (DeltaColumnMapping.scala).
        kept_id = self._mapped_id(_metadata(field)[MAPPING_ID]) if self.mapped else old.field_id if old else None
        field_id = self._new_id(path) if kept_id is None else kept_id
        old_type = old.field_type if old else None
        field_type = self._type(field["type"], old_type, path, _NestedIds.of(field))
        if old_type is not None and not _may_become(old_type, field_type):
            if self.mapped:
                raise Unsupported(
                    f"column {column} changed from {old_type} to {field_type}, which Iceberg cannot express",
                    hint="Iceberg can only widen int to long, float to double, and the precision of decimals. After a "
                    "RESTORE, widen the column again in Delta (ALTER TABLE … ALTER COLUMN … TYPE …), which changes no "
                    "row; dvsync then continues by itself.",
                )
            self.replaced.append(f"{column} (from {old_type} to {field_type})")
            old, field_id = None, self._new_id(path)
            field_type = self._type(field["type"], None, path, _NestedIds.of(field))
        if is_collated(field):
            self.collated.add(field_id)
        # A column that was added later is missing in older files, so it must be nullable.
        required = not field["nullable"] and (old.required if old else before.is_first)
        return NestedField(
            field_id=field_id,
            name=field["name"],
            field_type=field_type,
            required=required,
            doc=_metadata(field).get("comment"),
        )

    def _type(self, delta_type: Any, old: IcebergType | None, path: tuple[str, ...], nested: _NestedIds) -> IcebergType:
        if isinstance(delta_type, str):
            return _primitive(delta_type, ".".join(path))
        if self.mapped and delta_type["type"] in ("array", "map") and _hides_renamed(delta_type):
            raise Unsupported(
                f"column {'.'.join(path)} is a list or map with nested structs whose fields have other names in "
                "the files (column mapping): PyIceberg shows them as null",
                hint="Drop the column. Tables without column mapping may have such columns.",
            )
        match delta_type["type"]:
            case "struct":
                return StructType(*self.struct_fields(delta_type, old if isinstance(old, StructType) else None, path))
            case "array":
                old_list = old if isinstance(old, ListType) else None
                return ListType(
                    element_id=self._inner_id(
                        old_list.element_id if old_list else None, (*path, "element"), nested.of_element
                    ),
                    element=self._type(
                        delta_type["elementType"],
                        old_list.element_type if old_list else None,
                        (*path, "element"),
                        nested.of_element,
                    ),
                    element_required=not delta_type["containsNull"],
                )
            case "map":
                old_map = old if isinstance(old, MapType) else None
                return MapType(
                    key_id=self._inner_id(old_map.key_id if old_map else None, (*path, "key"), nested.of_key),
                    key_type=self._type(
                        delta_type["keyType"], old_map.key_type if old_map else None, (*path, "key"), nested.of_key
                    ),
                    value_id=self._inner_id(old_map.value_id if old_map else None, (*path, "value"), nested.of_value),
                    value_type=self._type(
                        delta_type["valueType"],
                        old_map.value_type if old_map else None,
                        (*path, "value"),
                        nested.of_value,
                    ),
                    value_required=not delta_type["valueContainsNull"],
                )
            case other:
                raise _unsupported_type(str(other), ".".join(path))

    def _inner_id(self, kept_id: int | None, path: tuple[str, ...], nested: _NestedIds) -> int:
        """Return the id of an element, key or value.

        Raises `Unsupported` if column mapping gives ids to columns only: engines that read by id would then show nulls,
        or fail.
        """
        if self.mapped:
            if nested.id is None:
                raise Unsupported(
                    f"column {'.'.join(path[:-1])} is an array or map, and column mapping gives no id to its contents",
                    hint="Drop it, or rewrite the files with such ids (REORG TABLE … APPLY (UPGRADE UNIFORM "
                    "(ICEBERG_COMPAT_VERSION = 2))), which turns the table's deletion vectors off and "
                    "UniForm on. Tables without column mapping may have arrays and maps.",
                )
            return self._mapped_id(nested.id)
        return self._new_id(path) if kept_id is None else kept_id

    def mapped_fields(self, struct: dict[str, Any], fields: tuple[NestedField, ...]) -> list[MappedField]:
        return [
            MappedField(
                field_id=field.field_id,
                names=[physical_name(delta_field)],
                fields=self._mapped_type(delta_field["type"], field.field_type),
            )
            for delta_field, field in zip(struct["fields"], fields, strict=True)
        ]

    def _mapped_type(self, delta_type: Any, field_type: IcebergType) -> list[MappedField]:
        if isinstance(field_type, StructType):
            return self.mapped_fields(delta_type, field_type.fields)
        if isinstance(field_type, ListType):
            nested = self._mapped_type(delta_type["elementType"], field_type.element_type)
            return [MappedField(field_id=field_type.element_id, names=["element"], fields=nested)]
        if isinstance(field_type, MapType):
            keys = self._mapped_type(delta_type["keyType"], field_type.key_type)
            values = self._mapped_type(delta_type["valueType"], field_type.value_type)
            return [
                MappedField(field_id=field_type.key_id, names=["key"], fields=keys),
                MappedField(field_id=field_type.value_id, names=["value"], fields=values),
            ]
        return []


def _primitive(delta_type: str, column: str) -> PrimitiveType:
    if match := DECIMAL.fullmatch(delta_type):
        precision, scale = int(match[1]), int(match[2])
        if scale not in range(precision + 1):
            raise ValueError(f"column {column} has the type {delta_type}, whose scale exceeds its precision")
        return DecimalType(precision, scale)
    kind = StringType() if STRING.fullmatch(delta_type) else PRIMITIVES.get(delta_type)
    if kind is None:
        raise _unsupported_type(delta_type, column)
    return kind


def _unsupported_type(delta_type: str, column: str) -> Unsupported:
    hint = "Drop the column in the Delta table (Delta needs column mapping for that), or store it as another type."
    if delta_type == "variant":
        hint += " Then REORG TABLE … APPLY (PURGE): Polars cannot read files that still have the column."
    return Unsupported(
        f"column {column} has the type {delta_type}, which {REFUSED_TYPES.get(delta_type, 'Iceberg does not have')}",
        hint=hint,
    )


def _may_become(old: IcebergType, new: IcebergType) -> bool:
    """Return whether a field keeps its id. Iceberg spec, "Schema Evolution", lists these promotions."""
    match old, new:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return old.scale == new.scale and old.precision <= new.precision
        case PrimitiveType(), _:
            return old == new
        case ListType(), ListType():
            return _may_become(old.element_type, new.element_type)
        case MapType(), MapType():
            return _may_become(old.key_type, new.key_type) and _may_become(old.value_type, new.value_type)
        case _:
            return type(old) is type(new)


def _partition_spec(schema: Schema, columns: list[str], specs: Mapping[int, PartitionSpec]) -> PartitionSpec:
    """Return the spec that partitions by these columns: one that the table already has, or else a new one."""
    for column in columns:
        if column not in schema.column_names:
            raise CorruptInput(f"partition column {column} is not in the schema", hint=HINT_METADATA)
        if columns.count(column) > 1 or not schema.find_type(column).is_primitive:
            raise CorruptInput(
                f"Delta cannot partition by column {column}: its type is not primitive, or it is listed twice",
                hint=HINT_METADATA,
            )
        if isinstance(schema.find_type(column), BinaryType):
            raise Unsupported(
                f"partition column {column} is binary", hint="Partition the Delta table by another column."
            )
    sources = [schema.find_field(column).field_id for column in columns]
    for spec in specs.values():
        is_plain = all(isinstance(field.transform, IdentityTransform) for field in spec.fields)
        if is_plain and [field.source_id for field in spec.fields] == sources:
            return spec
    used = [field.field_id for spec in specs.values() for field in spec.fields]
    next_id = max(used, default=PARTITION_FIELD_ID_START - 1) + 1
    fields = [
        PartitionField(
            source_id=source,
            field_id=next_id + index,
            transform=IdentityTransform(),
            # DuckDB 1.5.5 cannot read manifests with non-ASCII partition names.
            name=column if column.isascii() else f"partition_{next_id + index}",
        )
        for index, (source, column) in enumerate(zip(sources, columns, strict=True))
    ]
    return PartitionSpec(*fields, spec_id=max(specs, default=-1) + 1)


def _leaves(
    fields: Iterable[NestedField], mapping: Iterable[MappedField], parent: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], NestedField]]:
    mapped_by_id = {mapped.field_id: mapped for mapped in mapping}
    for field in fields:
        mapped = mapped_by_id[field.field_id]
        path = (*parent, mapped.names[0])
        if isinstance(field.field_type, StructType):
            yield from _leaves(field.field_type.fields, mapped.fields, path)
        elif field.field_type.is_primitive:
            yield path, field
