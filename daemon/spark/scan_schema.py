"""The columns of a Delta table as its Parquet files have them, and as its readers see them.

Delta PROTOCOL.md, "Column Mapping": in the files, columns and the fields of structs have physical names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from daemon.delta.actions import Metadata
from daemon.errors import CorruptInput, Unsupported
from daemon.translate.delta_types import (
    DECIMAL,
    EXISTS_DEFAULT,
    HINT_METADATA,
    MAPPING_ID,
    is_collated,
    parse_struct,
    physical_name,
)

# Spark's Parquet reader finds a column by this id in the metadata of its field.
PARQUET_ID = "parquet.field.id"
# Keys of a field's metadata that are not for readers: Delta's own, and defaults.
FOR_WRITERS = ("delta.", "CURRENT_DEFAULT", EXISTS_DEFAULT)
# Spark pads values of CHAR columns as it reads them.
CHARS = "__CHAR_VARCHAR_TYPE_STRING"
# Our own columns in the plan begin with this, so no column of the table may.
RESERVED = ("__delta_internal_", "__dvsync_")
# Types whose minimum and maximum surely hold for all rows. Some writers leave NaN out of those of floats.
ORDERED = frozenset({"byte", "short", "integer", "long", "string", "date", "timestamp", "timestamp_ntz"})

Field = dict[str, Any]


@dataclass(frozen=True)
class ScanColumn:
    """A top-level column. `type` and `file_type` are Spark's JSON; they differ in the names of the fields in structs.

    `file_field` is the column as Spark's Parquet reader has to find it.
    """

    name: str
    file_name: str
    type: Any
    file_type: Any
    file_field: Field
    metadata: Field
    is_partition: bool

    @property
    def has_bounds(self) -> bool:
        """Whether files can be skipped by the statistics of this column."""
        is_ordered = isinstance(self.type, str) and (self.type in ORDERED or DECIMAL.fullmatch(self.type) is not None)
        # The statistics of CHAR columns are of values without padding.
        return is_ordered and not self.is_partition and CHARS not in self.metadata


def scan_columns(metadata: Metadata) -> list[ScanColumn]:
    """Return the table's columns. Raises `CorruptInput` for an invalid schema, and `Unsupported` naming a column."""
    struct = parse_struct(metadata.schema_string)
    in_file = _in_file_by_id if metadata.column_mapping_mode == "id" else _in_file
    try:
        columns = [
            ScanColumn(
                name=field["name"],
                file_name=physical_name(field),
                type=_each_field(field["type"], _in_table),
                file_type=_each_field(field["type"], _in_file),
                file_field=in_file(field),
                metadata={key: value for key, value in _metadata(field).items() if not key.startswith(FOR_WRITERS)},
                is_partition=field["name"] in metadata.partition_columns,
            )
            for field in struct["fields"]
        ]
    except (LookupError, TypeError, AttributeError) as error:
        raise CorruptInput(f"the schema is not one of Delta's: {error!r}", hint=HINT_METADATA) from error
    for field, column in zip(struct["fields"], columns, strict=True):
        if is_collated(field):
            raise Unsupported(f"column {column.name} has a collation", hint="Read the table with Delta's own reader.")
        if column.name.startswith(RESERVED) or column.file_name.startswith(RESERVED):
            raise Unsupported(f"the name of column {column.name} is reserved", hint="Rename the column in Delta.")
    return columns


def as_struct(fields: Sequence[Field]) -> StructType:
    return StructType.fromJson({"fields": fields})


def _metadata(field: Field) -> Field:
    return field.get("metadata") or {}


def _in_table(field: Field) -> Field:
    return {"name": field["name"], "type": _each_field(field["type"], _in_table), "nullable": True, "metadata": {}}


def _in_file(field: Field) -> Field:
    kind = _each_field(field["type"], _in_file)
    kept = {key: value for key, value in _metadata(field).items() if key in (CHARS, EXISTS_DEFAULT)}
    return {"name": physical_name(field), "type": kind, "nullable": True, "metadata": kept}


def _in_file_by_id(field: Field) -> Field:
    found = _in_file(field)
    ids = {**found["metadata"], PARQUET_ID: _metadata(field)[MAPPING_ID]}
    return {**found, "type": _each_field(field["type"], _in_file_by_id), "metadata": ids}


def _each_field(kind: Any, change: Callable[[Field], Field]) -> Any:
    """Return the type with `change` applied to the fields of its structs; nulls may be everywhere in it."""
    match kind:
        case {"type": "struct", "fields": fields}:
            return {"type": "struct", "fields": [change(field) for field in fields]}
        case {"type": "array", "elementType": element}:
            return {"type": "array", "elementType": _each_field(element, change), "containsNull": True}
        case {"type": "map", "keyType": key, "valueType": value}:
            types = {"keyType": _each_field(key, change), "valueType": _each_field(value, change)}
            return {"type": "map", **types, "valueContainsNull": True}
    return kind
