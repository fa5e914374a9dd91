"""An Iceberg table as it is: what dvsync left in its properties, and the checks before dvsync commits to it."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import msgspec
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import NameMapping, parse_mapping_from_json
from pyiceberg.types import TimestamptzType

from daemon.config.settings import TableSettings
from daemon.errors import TargetChanged, Unsupported
from daemon.iceberg.manifests import has_row_lineage
from daemon.store.locations import vacuum_cleans
from daemon.store.storage import check_path
from daemon.translate.name_mapping import ROW_ID, Path, only_ids
from daemon.translate.schema import TableSchema

NAME_MAPPING = "schema.name-mapping.default"
# What the last commit of dvsync left. If the table's shape differs from it, dvsync commits nothing.
SCHEMA_ID = "dvsync.schema-id"
SPEC_ID = "dvsync.partition-spec-id"
NAME_MAPPING_HASH = "dvsync.name-mapping-sha256"
# Set only if a timestamp with a zone partitions the table.
TIME_ZONE = "dvsync.partition-time-zone"
# The column in which Delta's data files have row ids; empty while Delta's row ids cannot be shown.
DELTA_ROW_IDS = "dvsync.delta.row-id-column"
# `TableSchema.hidden_ids`, as JSON. They are kept, as the columns' names in the name mapping: snapshots show the files.
HIDDEN_IDS = "dvsync.delta.hidden-field-ids"
# Properties that place files outside of the table's location.
PLACES = ("write.data.path", "write.metadata.path")


def check_shape(table: Table, settings: TableSettings) -> None:
    """Raise `TargetChanged` when schema, partition spec, name mapping or time zone are not what dvsync left."""
    properties, name = table.properties, settings.name
    now = {
        SCHEMA_ID: ("schema", str(table.metadata.current_schema_id)),
        SPEC_ID: ("partition spec", str(table.metadata.default_spec_id)),
        NAME_MAPPING_HASH: (f"property {NAME_MAPPING}", _hash(properties.get(NAME_MAPPING, ""))),
    }
    changed = [what for key, (what, value) in now.items() if properties.get(key) != value]
    if changed:
        undo = "Undo the change"
        if now[NAME_MAPPING_HASH][0] in changed:
            undo = f"Restore {NAME_MAPPING}, in which DROP COLUMN leaves a column's name,"
        raise TargetChanged(
            f"the Iceberg table {settings.target} was changed by someone else: its {' and its '.join(changed)}",
            path=table.metadata_location,
            hint=f"Run `dvsync resync {name}`, which rewrites the Iceberg table from Delta; with on_foreign_commit: "
            f"overwrite, dvsync does so by itself. Or: {undo} and run `dvsync resume {name}`.",
        )
    zone = properties.get(TIME_ZONE)
    if _has_zoned_partitions(table.schema(), table.spec()) and zone != settings.partition_time_zone:
        raise TargetChanged(
            f"partition_time_zone is {settings.partition_time_zone}, but the partition values in the Iceberg table "
            f"{settings.target} were computed with {zone}",
            path=table.metadata_location,
            hint=f"Set partition_time_zone to {zone} again, or run `dvsync resync {name}`, which registers every "
            "file again. With on_foreign_commit: overwrite, dvsync does so by itself.",
        )


def check_format_version(settings: TableSettings, table: Table) -> None:
    """Raise `Unsupported` if the table has a higher format version than the settings ask for."""
    found = table.metadata.format_version
    if found > settings.format_version:
        raise Unsupported(
            f"the Iceberg table has format version {found}, and cannot go back to {settings.format_version}",
            path=table.metadata_location,
            hint=f"Set format_version: {found}. Or drop {settings.target} from the catalog, then `dvsync resync "
            f"{settings.name}`, which makes a new table of version {settings.format_version}.",
        )


def check_places(location: str, properties: Mapping[str, str], source: str) -> None:
    """Raise `Unsupported` when PyIceberg would cut a path, or Delta's VACUUM would remove the Iceberg table's files."""
    check_path(source)
    for name, place in [("location", location), *((name, properties.get(name, "")) for name in PLACES)]:
        check_path(place)
        if place and vacuum_cleans(place, source):
            raise Unsupported(
                f"the Iceberg table's {name}, {place}, lies inside the Delta table, where VACUUM removes every file "
                "that is not in Delta's log",
                hint=f"Choose a {name} outside of the Delta table, or one whose folder begins with '_' or '.'.",
            )


def row_id_column_of(table: Table) -> str:
    """Return the column of Delta's row ids when dvsync last committed; an empty text if there was none."""
    return table.properties.get(DELTA_ROW_IDS, "")


def lacks_row_ids(table: Table, settings: TableSettings) -> bool:
    """Return whether the table must get Delta's row ids: it did not have format version 3 at dvsync's last commit."""
    column = row_id_column_of(table)
    if not has_row_lineage(settings.format_version) or not column:
        return False
    mapping = parse_mapping_from_json(table.properties[NAME_MAPPING])
    return not any(field.field_id == ROW_ID and column in field.names for field in mapping.root)


def own_schema(table: Table) -> Schema:
    """Return the schema that dvsync left, even if another is current now; the current one if none is recorded."""
    own = table.properties.get(SCHEMA_ID)
    return next((schema for schema_id, schema in table.schemas().items() if str(schema_id) == own), table.schema())


def own_mapping(table: Table) -> NameMapping | None:
    """Return the name mapping that dvsync left; None if somebody else changed it."""
    mapping = table.properties.get(NAME_MAPPING, "")
    return parse_mapping_from_json(mapping) if table.properties.get(NAME_MAPPING_HASH) == _hash(mapping) else None


def kept_mapping(table: Table) -> NameMapping | None:
    """Return what somebody else's name mapping has of our columns, and hidden names; None if it cannot be read."""
    try:
        mapping = parse_mapping_from_json(table.properties.get(NAME_MAPPING, ""))
    except ValueError:
        return None
    return NameMapping(only_ids(mapping, own_schema(table).field_ids))


def hidden_ids(table: Table) -> frozenset[tuple[int, Path]]:
    return frozenset(msgspec.json.decode(table.properties.get(HIDDEN_IDS, "[]"), type=list[tuple[int, Path]]))


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _has_zoned_partitions(schema: Schema, spec: PartitionSpec) -> bool:
    return any(isinstance(schema.find_type(field.source_id), TimestamptzType) for field in spec.fields)


def shape_properties(table: TableSchema) -> dict[str, str]:
    mapping = table.name_mapping.model_dump_json()
    return {
        NAME_MAPPING: mapping,
        NAME_MAPPING_HASH: _hash(mapping),
        SCHEMA_ID: str(table.schema.schema_id),
        SPEC_ID: str(table.spec_id),
        **({HIDDEN_IDS: msgspec.json.encode(sorted(table.hidden_ids)).decode()} if table.hidden_ids else {}),
        **({TIME_ZONE: table.time_zone} if _has_zoned_partitions(table.schema, table.spec) else {}),
    }
