"""What an Iceberg table must be to show a Delta table: schema, partition spec and properties, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from pyiceberg.table import Table
from pyiceberg.table.name_mapping import parse_mapping_from_json

from daemon.delta.actions import Metadata
from daemon.delta.protocol import check_metadata
from daemon.delta.vacuum import retention_s, vacuum_cleans
from daemon.errors import TargetChanged, Unsupported
from daemon.iceberg.marker import shown_by
from daemon.iceberg.retention import RETENTION_MS
from daemon.iceberg.target import Definition
from daemon.settings import TableSettings
from daemon.storage import check_path
from daemon.translate.file_schema import with_hidden
from daemon.translate.metrics import metrics_properties
from daemon.translate.schema import TableSchema, translate_schema

NAME_MAPPING = "schema.name-mapping.default"
DELETE_GRANULARITY = "write.delete.granularity"
# A version writes one metadata file; without these two a table followed for a year leaves a million of them.
METADATA_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


@dataclass(frozen=True)
class Shape:
    """A Delta schema on the Iceberg side, twice: for translating files and for defining the table."""

    table: TableSchema
    definition: Definition
    granularity: str

    def with_hidden(self, hidden: Set[tuple[str, ...]]) -> Shape:
        """The shape for files that have these columns, too; the same one when there are none, as nearly always."""
        if not hidden:
            return self
        mapping = with_hidden(self.table.name_mapping, hidden)
        return replace(
            self,
            table=replace(self.table, name_mapping=mapping),
            definition=replace(
                self.definition, properties={**self.definition.properties, NAME_MAPPING: mapping.model_dump_json()}
            ),
        )


def shape_of(table: Table, settings: TableSettings) -> Shape:
    """The shape that an existing table has. Raises `TargetChanged` when its name mapping is gone."""
    mapping = table.properties.get(NAME_MAPPING)
    if mapping is None:
        raise TargetChanged(
            f"the table property {NAME_MAPPING} was removed: no reader can find the columns",
            hint="Set it back from an older metadata file, or drop the Iceberg table to have it made anew.",
        )
    schema = TableSchema(
        schema=table.schema(),
        specs=table.specs(),
        spec_id=table.metadata.default_spec_id,
        name_mapping=parse_mapping_from_json(mapping),
    )
    return _shape(schema, settings, table.properties, table.properties.get(RETENTION_MS))


def shape_for(metadata: Metadata, table: Table | None, settings: TableSettings) -> Shape:
    """The shape that a Delta metadata asks for; field and spec ids of `table` are kept. Raises `Unsupported`."""
    check_metadata(metadata)
    retention_ms = str(round(retention_s(metadata) * 1000))
    if table is None:
        return _shape(translate_schema(metadata), settings, {}, retention_ms)
    mapping = table.properties.get(NAME_MAPPING)
    schema = translate_schema(
        metadata,
        None if _counts_anew(metadata, table) else table.schema(),
        mapping=parse_mapping_from_json(mapping) if mapping else None,
        schemas=table.schemas(),
        specs=table.specs(),
    )
    return _shape(schema, settings, table.properties, retention_ms)


def _counts_anew(metadata: Metadata, table: Table) -> bool:
    """Whether Delta's column ids began at 1 again, in a table made anew: they say nothing about the older columns."""
    marker = shown_by(table)
    mapped = metadata.column_mapping_mode != "none"
    return mapped and marker is not None and marker.delta_table_id != metadata.id


def _shape(
    schema: TableSchema, settings: TableSettings, properties: Mapping[str, str], retention_ms: str | None
) -> Shape:
    schema = replace(schema, time_zone=settings.partition_time_zone)
    granularity = settings.delete_granularity or properties.get(DELETE_GRANULARITY, "file")
    defaults = {} if properties else METADATA_PROPERTIES
    definition = Definition(
        schema=schema.schema,
        spec=schema.spec,
        properties={
            **defaults,
            # The data files are Delta's: no Iceberg maintenance may remove them.
            "gc.enabled": "false",
            DELETE_GRANULARITY: granularity,
            NAME_MAPPING: schema.name_mapping.model_dump_json(),
            **metrics_properties(schema),
            **({RETENTION_MS: retention_ms} if retention_ms else {}),
        },
    )
    return Shape(schema, definition, granularity)


def check_format_version(settings: TableSettings, table: Table | None) -> None:
    """Raise `Unsupported` for format version 3, asked for or found."""
    found = table.metadata.format_version if table else settings.format_version
    if settings.format_version != 2 or found != 2:
        raise Unsupported(
            f"Iceberg format version {max(settings.format_version, found)} is not supported yet: only version 2 is",
            hint="Set format_version: 2; a table that is version 3 already cannot go back and must be made anew.",
        )


def check_location(location: str, source: str) -> None:
    """Raise `Unsupported` when PyIceberg would cut a path, or Delta's VACUUM would remove the Iceberg table's files."""
    check_path(source)
    check_path(location)
    if vacuum_cleans(location, source):
        raise Unsupported(
            f"{location} lies inside the Delta table, where VACUUM removes every file that Delta does not know",
            hint="Choose a location outside of the Delta table, or one whose folder begins with '_' or '.'.",
        )
