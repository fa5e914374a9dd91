"""Delta schema -> Iceberg schema with stable field ids, partition spec and name mapping. Pure.

With column mapping, the ids are Delta's (PROTOCOL.md, "Column Mapping"). Without it, the Parquet files have no ids:
dvsync assigns an id once and keeps it for the column's name. Readers map names to ids with the name mapping (Iceberg
spec, "Column Projection"). The mapping has physical names, because these are the names in the files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from pyiceberg.exceptions import ValidationError
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import ListType, MapType, NestedField, StructType, UnknownType

from daemon.config.settings import TESTED_READERS, Reader
from daemon.delta.actions import Metadata
from daemon.errors import CorruptInput, Unsupported
from daemon.iceberg.pyiceberg_ext.variant import VariantType
from daemon.translate.columns import Translation, column_id, mapped_inside
from daemon.translate.delta_types import (
    EXISTS_DEFAULT,
    HINT_METADATA,
    check_names,
    metadata_of,
    parse_struct,
    physical_name,
)
from daemon.translate.name_mapping import HIDDEN_ID_START, Path, find_renumbered, mapped_ids, with_former
from daemon.translate.readers import Fault, Faults

# What a schema raises that is not one of Delta's.
FAULTS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, ValidationError)


@dataclass(frozen=True)
class TableSchema:
    """The Iceberg side of one Delta metadata.

    `replaced` columns have another type or id, and are new ones in Iceberg: no older file may stay live. `time_zone`
    applies to timestamp partition values without one. `readers` are the programs that read the table; `faults` are what
    others would misread in it. If `has_row_ids`, the rows' ids are those of Delta's row tracking. `filled` are the
    physical names of columns that Delta on Spark fills with a default in files without them. `hidden_ids` has the
    columns that only files have, with the ids there. If `needs_ids`, Delta finds columns by the ids in the files.
    `collated` columns get no metrics: Delta's statistics may have another order than Iceberg's.
    """

    schema: Schema
    specs: Mapping[int, PartitionSpec]
    spec_id: int
    name_mapping: NameMapping
    replaced: tuple[str, ...] = ()
    time_zone: str = "UTC"
    readers: Collection[Reader] = TESTED_READERS
    faults: frozenset[Fault] = frozenset()
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
    def has_variants(self) -> bool:
        return any(isinstance(field.field_type, VariantType) for field in index_by_id(self.schema).values())

    @cached_property
    def leaves(self) -> Mapping[Path, NestedField]:
        """Physical path -> field of each column that has metrics: those with values, outside lists and maps."""
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
    numbers_contents: bool = False,
    readers: Collection[Reader] = TESTED_READERS,
    format_version: int = 2,
) -> TableSchema:
    """Translate the schema of a Delta `metadata`.

    `previous` and `mapping` are the Iceberg table's current schema and name mapping; `schemas` and `specs` are all that
    it has of former times. Existing columns keep their ids. A new column gets the id that files give to it already, or
    one that no file gives to another column. With `numbers_contents`, elements, keys and values to which column mapping
    gives none get ids, which no file has; so they do if all `readers` find them. Raises `Unsupported` naming the column
    and its type, or `CorruptInput` when this is not a Delta schema.
    """
    struct = parse_struct(metadata.schema_string)
    mapped = metadata.column_mapping_mode != "none"
    used = {field_id for field_id in mapped_ids(mapping or ()) if field_id < HIDDEN_ID_START}
    used = used.union(previous.field_ids if previous else (), *(schema.field_ids for schema in schemas.values()))
    faults = Faults(readers)
    try:
        check_names(struct, faults)
        if mapped:
            used.add(column_id(metadata.configuration.get("delta.columnMapping.maxColumnId", "0")))
        translation = Translation(
            metadata.partition_columns,
            mapped=mapped,
            used=used,
            hidden_ids=hidden_ids,
            format_version=format_version,
            numbers_contents=numbers_contents,
            faults=faults,
        )
        fields = translation.struct_fields(struct, previous.as_struct() if previous else None, ())
        new_mapping = mapped_inside(struct | {"type": "struct"}, StructType(*fields))
    except FAULTS as error:
        fault = f"{error} is missing" if isinstance(error, KeyError) else error
        raise CorruptInput(f"the schema is not one of Delta's: {fault}", hint=HINT_METADATA) from error
    # An equal schema that the table already has keeps its id.
    same = (each for each in schemas.values() if each.as_struct() == StructType(*fields))
    known = next((each.schema_id for each in same if not each.identifier_field_ids), None)
    try:
        schema = Schema(*fields, schema_id=max(schemas, default=-1) + 1 if known is None else known)
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
            if EXISTS_DEFAULT in metadata_of(field) and field["name"] not in metadata.partition_columns
        ),
        hidden_ids=hidden_ids,
        needs_ids=metadata.column_mapping_mode == "id",
        collated=frozenset(translation.collated),
        readers=readers,
        faults=frozenset(fault for fault, _ in faults.found),
    )


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
    fields: Iterable[NestedField], mapping: Iterable[MappedField], parent: Path
) -> Iterator[tuple[Path, NestedField]]:
    mapped_by_id = {mapped.field_id: mapped for mapped in mapping}
    for field in fields:
        mapped = mapped_by_id[field.field_id]
        path = (*parent, mapped.names[0])
        if isinstance(field.field_type, StructType):
            yield from _leaves(field.field_type.fields, mapped.fields, path)
        elif not isinstance(field.field_type, ListType | MapType | UnknownType):
            yield path, field
