"""Delta's schemas as Spark's JSON: their types, the metadata of fields, and what Iceberg's readers cannot read. Pure.

Delta PROTOCOL.md, "Schema Serialization Format".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    UnknownType,
)

from daemon.delta.features import fields_of, inner_types
from daemon.errors import CorruptInput, Unsupported
from daemon.iceberg.pyiceberg_ext.variant import VariantType
from daemon.translate.readers import Fault, Faults, readers_of

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


# Those of Iceberg's format version 3.
NEW_TYPES: Mapping[str, tuple[PrimitiveType, Fault]] = {
    "variant": (VariantType(), Fault.VARIANT),
    "void": (UnknownType(), Fault.VOID),
}

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


def parse_struct(schema_string: str) -> dict[str, Any]:
    """Parse Spark's JSON of a schema, and check its size and nesting only. Raises `CorruptInput` and `Unsupported`."""
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
        types = [field["type"]] if isinstance(field, dict) and "type" in field else []
        for _ in range(NESTING_MAX + 1):
            types = [inner for kind in types for inner in inner_types(kind)]
        if types:
            raise Unsupported(
                f"column {field.get('name')} is nested in more than {NESTING_MAX} levels",
                hint="Drop the column, or store its deeply nested values as text.",
            )
    return struct


def check_names(struct: dict[str, Any], faults: Faults) -> None:
    """Check for columns whose names Iceberg reserves. Nested fields may have such names. Raises as `Faults.add`."""
    names = [str(field["name"]) for field in struct["fields"]]
    reserved = [name for name in names if name in RESERVED_NAMES or name.casefold() == POSITION_NAME]
    if reserved:
        faults.add(
            Fault.RESERVED_NAME,
            ", ".join(reserved),
            f"Iceberg reserves the name of column {', '.join(reserved)}",
            hint="Rename it in Delta: ALTER TABLE … RENAME COLUMN, with delta.columnMapping.mode = 'name', or CREATE "
            "OR REPLACE TABLE … AS SELECT if the table has arrays or maps.",
        )


def metadata_of(field: dict[str, Any]) -> dict[str, Any]:
    return field.get("metadata") or {}


def is_collated(field: dict[str, Any]) -> bool:
    """Return whether a field's values may have another order than that of their bytes."""
    kind = field["type"]
    return COLLATIONS in metadata_of(field) or (isinstance(kind, str) and COLLATED.fullmatch(kind) is not None)


def physical_name(field: dict[str, Any]) -> str:
    """Return the name of a Delta field in the files. PROTOCOL.md, "Column Mapping"."""
    return str(metadata_of(field).get(MAPPING_NAME, field["name"]))


def hides_renamed(kind: dict[str, Any]) -> bool:
    """Return whether PyIceberg would search struct fields in a list or map by names that the files do not have.

    If the element or the value is a struct, PyIceberg 0.12 finds its fields by id. It casts any other list or map as a
    whole, by the table's names (ArrowProjectionVisitor.list and .map). An example is a list of lists of structs.
    """
    inner = kind["elementType"] if kind["type"] == "array" else kind["valueType"]
    is_struct = isinstance(inner, dict) and inner["type"] == "struct"
    return not is_struct and _has_renamed(kind)


def _has_renamed(kind: Any) -> bool:
    is_renamed = any(physical_name(field) != field["name"] for field in fields_of(kind))
    return is_renamed or any(map(_has_renamed, inner_types(kind)))


def primitive_type(delta_type: str, column: str, format_version: int, faults: Faults) -> PrimitiveType:
    if match := DECIMAL.fullmatch(delta_type):
        precision, scale = int(match[1]), int(match[2])
        if scale not in range(precision + 1):
            raise ValueError(f"column {column} has the type {delta_type}, whose scale exceeds its precision")
        return DecimalType(precision, scale)
    kind = StringType() if STRING.fullmatch(delta_type) else PRIMITIVES.get(delta_type)
    if kind is None and format_version > 2 and delta_type in NEW_TYPES:
        kind, fault = NEW_TYPES[delta_type]
        faults.add(fault, column, f"column {column} has the type {delta_type}", hint=_hint_to_drop(delta_type))
    if kind is None:
        raise unsupported_type(delta_type, column)
    return kind


def unsupported_type(delta_type: str, column: str) -> Unsupported:
    what, hint = f"column {column} has the type {delta_type}", _hint_to_drop(delta_type)
    if delta_type not in NEW_TYPES:
        return Unsupported(f"{what}, which Iceberg does not have", hint=hint)
    readers = ", ".join(readers_of(NEW_TYPES[delta_type][1]))
    hint += f" Or set format_version: 3, which has no way back, and readers: [{readers}] if no other program reads the "
    hint += "table; it would misread it."
    return Unsupported(f"{what}, which Iceberg has in format version 3 only", hint=hint)


def _hint_to_drop(delta_type: str) -> str:
    hint = "Drop the column in the Delta table (Delta needs column mapping for that), or store it as another type."
    purge = " Then REORG TABLE … APPLY (PURGE): Polars cannot read files that still have the column."
    return hint + purge * (delta_type == "variant")
