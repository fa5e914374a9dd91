"""Delta's columns as Iceberg's fields, with ids that stay. Pure.

With column mapping, the ids are Delta's (PROTOCOL.md, "Column Mapping"), else dvsync assigns them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from pyiceberg.table.name_mapping import MappedField
from pyiceberg.types import (
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
    StructType,
    UnknownType,
)

from daemon.errors import CorruptInput, Unsupported
from daemon.translate.delta_types import (
    MAPPING_ID,
    NESTED_IDS,
    hides_renamed,
    is_collated,
    metadata_of,
    physical_name,
    primitive_type,
    unsupported_type,
)
from daemon.translate.name_mapping import HIDDEN_ID_START, Path, folded
from daemon.translate.readers import Fault, Faults

# With column mapping, Delta gives ids to elements, keys and values only for IcebergCompat. Others begin here, far above
# any that Delta will give to a column.
CONTENT_ID_START = 1_000_000_000


def column_id(value: Any) -> int:
    """Parse an id of column mapping. Raises ValueError or TypeError for values that Delta cannot have assigned."""
    number = int(value)
    if not 0 <= number < HIDDEN_ID_START:
        raise ValueError(f"{number} is not a column id")
    return number


class _Before:
    """The fields that a struct had before. `is_first` if the struct is new."""

    def __init__(self, previous: StructType | None) -> None:
        fields = previous.fields if previous else ()
        self.by_id = {field.field_id: field for field in fields}
        self.by_name = {field.name: field for field in fields}
        self.by_folded_name = {field.name.lower(): field for field in fields}
        self.is_first = previous is None


class Translation:
    """Walks over a Spark schema once, and keeps the next free field id."""

    def __init__(
        self,
        partition_columns: Container[str],
        *,
        mapped: bool,
        used: set[int],
        hidden_ids: Iterable[tuple[int, Path]],
        format_version: int,
        numbers_contents: bool,
        faults: Faults,
    ) -> None:
        self.replaced: list[str] = []
        self.collated: set[int] = set()
        self._partition_columns = partition_columns
        self._mapped = mapped
        self._format_version = format_version
        self._next_id = max(used, default=0) + 1
        self._numbers_contents = numbers_contents
        self._faults = faults
        self._next_content_id = max(CONTENT_ID_START, self._next_id)
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
        number = column_id(value)
        if number in self._used:
            raise ValueError(f"two columns have the id {number}")
        self._used.add(number)
        return number

    def struct_fields(self, struct: dict[str, Any], previous: StructType | None, path: Path) -> tuple[NestedField, ...]:
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
        before = _Before(previous)
        return tuple(self._field(field, before, path) for field in struct["fields"])

    def _field(self, field: dict[str, Any], before: _Before, parent: Path) -> NestedField:
        name, metadata = field["name"], metadata_of(field)
        path = (*parent, name)
        column = ".".join(path)
        old = before.by_id.get(metadata[MAPPING_ID]) if self._mapped else before.by_name.get(name)
        spelled = before.by_folded_name.get(name.lower())
        if old is None and spelled is not None and not self._mapped:
            # Delta on Spark ignores case in the names of files' columns, but not in those of partition values.
            if column in self._partition_columns:
                self.replaced.append(f"{column} (spelled {spelled.name} before)")
            else:
                old = spelled
        # A struct gets its id before its fields do, the order in which Delta assigns ids (DeltaColumnMapping.scala).
        kept_id = self._mapped_id(metadata[MAPPING_ID]) if self._mapped else old.field_id if old else None
        field_id = self._new_id(path) if kept_id is None else kept_id
        # The ids of its elements, keys and values, by the path of physical names.
        ids, place = metadata.get(NESTED_IDS, {}), physical_name(field)
        old_type = old.field_type if old else None
        field_type = self._type(field["type"], old_type, path, ids, place)
        if old_type is not None and not _may_become(old_type, field_type):
            if self._mapped:
                raise Unsupported(
                    f"column {column} changed from {old_type} to {field_type}, which Iceberg cannot express",
                    hint="Iceberg can only widen int to long, float to double, and the precision of decimals. After a "
                    "RESTORE, widen the column again in Delta (ALTER TABLE … ALTER COLUMN … TYPE …), which changes no "
                    "row; dvsync then continues by itself. Or drop the Iceberg table from its catalog, and `dvsync "
                    "resync` makes a new one; while older data files stay, it needs mirrors: rewrite, which reads "
                    "their rows and writes them again.",
                )
            self.replaced.append(f"{column} (from {old_type} to {field_type})")
            old, field_id = None, self._new_id(path)
            field_type = self._type(field["type"], None, path, ids, place)
        if is_collated(field):
            self.collated.add(field_id)
        # A column that was added later is missing in older files, so it must be nullable.
        required = not field["nullable"] and (old.required if old else before.is_first)
        required = required and not isinstance(field_type, UnknownType)
        return NestedField(field_id, name, field_type, required=required, doc=metadata.get("comment"))

    def _type(
        self, delta_type: Any, old: IcebergType | None, path: Path, ids: Mapping[str, int], place: str
    ) -> IcebergType:
        if isinstance(delta_type, str):
            return primitive_type(delta_type, ".".join(path), self._format_version, self._faults)
        kind = delta_type["type"]
        if self._mapped and kind in ("array", "map") and hides_renamed(delta_type):
            self._faults.add(
                Fault.RENAMED_CONTENTS,
                ".".join(path),
                f"column {'.'.join(path)} is a list or map with nested structs whose fields have other names in "
                "the files (column mapping)",
                hint="Drop the column. Tables without column mapping may have such columns.",
            )
        if kind == "struct":
            return StructType(*self.struct_fields(delta_type, old if isinstance(old, StructType) else None, path))
        if kind == "array":
            element = old.element_field if isinstance(old, ListType) else None
            return ListType(
                *self._inner(delta_type["elementType"], element, (*path, "element"), ids, place),
                element_required=not delta_type["containsNull"],
            )
        if kind == "map":
            key, value = (old.key_field, old.value_field) if isinstance(old, MapType) else (None, None)
            return MapType(
                *self._inner(delta_type["keyType"], key, (*path, "key"), ids, place),
                *self._inner(delta_type["valueType"], value, (*path, "value"), ids, place),
                value_required=not delta_type["valueContainsNull"],
            )
        raise unsupported_type(str(kind), ".".join(path))

    def _inner(
        self, delta_type: Any, old: NestedField | None, path: Path, ids: Mapping[str, int], outer: str
    ) -> tuple[int, IcebergType]:
        if delta_type == "void":
            # Delta refuses it there, and readers would have to know how many nulls there are.
            raise unsupported_type("void, inside a list or map", ".".join(path))
        # If column mapping gives ids to columns only, engines that read by id would show nulls in it, or fail.
        place = f"{outer}.{path[-1]}"
        if not self._mapped:
            field_id = old.field_id if old else self._new_id(path)
        elif (given := ids.get(place)) is not None:
            field_id = self._mapped_id(given)
        elif old is not None and old.field_id >= CONTENT_ID_START:
            field_id = old.field_id
        else:
            if not self._numbers_contents:
                column = ".".join(path[:-1])
                self._faults.add(
                    Fault.ELEMENT_IDS if path[-1] == "element" else Fault.MAP_IDS,
                    column,
                    f"column {column} is an array or map, and column mapping gives no id to its contents",
                    hint="Drop it, or rewrite the files with such ids (REORG TABLE … APPLY (UPGRADE UNIFORM "
                    "(ICEBERG_COMPAT_VERSION = 2))), which turns the table's deletion vectors off and "
                    "UniForm on. Tables without column mapping may have arrays and maps.",
                    lifted_by="footer",
                )
            self._next_content_id += 1
            field_id = self._next_content_id - 1
        return field_id, self._type(delta_type, old.field_type if old else None, path, ids, place)


def mapped_inside(delta_type: Any, field_type: IcebergType) -> list[MappedField]:
    """Return the name mapping of what is directly inside a type, with the names in the files."""
    inside: list[tuple[Any, NestedField, str]] = []
    match field_type:
        case StructType(fields=fields):
            for each, field in zip(delta_type["fields"], fields, strict=True):
                inside.append((each["type"], field, physical_name(each)))
        case ListType():
            inside = [(delta_type["elementType"], field_type.element_field, "element")]
        case MapType():
            inside = [(delta_type["keyType"], field_type.key_field, "key")]
            inside.append((delta_type["valueType"], field_type.value_field, "value"))
    return [
        MappedField(field_id=field.field_id, names=[name], fields=mapped_inside(kind, field.field_type))
        for kind, field, name in inside
    ]


def _may_become(old: IcebergType, new: IcebergType) -> bool:
    """Return whether a field keeps its id. Iceberg spec, "Schema Evolution", lists these promotions."""
    match old, new:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()) | (UnknownType(), PrimitiveType()):
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
