"""What an Iceberg table must be to show a Delta table: schema, partition spec and properties, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from hashlib import sha256

import msgspec
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import NameMapping, parse_mapping_from_json
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.types import TimestamptzType

from daemon.config.settings import TableSettings
from daemon.delta.actions import Metadata, Protocol
from daemon.delta.features import check_features, used_features
from daemon.delta.protocol import check_metadata
from daemon.delta.vacuum import retention_s
from daemon.errors import TargetChanged, Unsupported
from daemon.iceberg.marker import find_marker, shown_by
from daemon.iceberg.retention import RETENTION_MS
from daemon.iceberg.target import Definition, Misread
from daemon.locations import vacuum_cleans
from daemon.storage import check_path
from daemon.translate.hidden_columns import with_hidden
from daemon.translate.metrics import metrics_properties
from daemon.translate.name_mapping import find_lost
from daemon.translate.schema import TableSchema, translate_schema

NAME_MAPPING = "schema.name-mapping.default"
# What the last commit of dvsync left. Nothing is built upon a table whose shape is another one.
SCHEMA_ID = "dvsync.schema-id"
SPEC_ID = "dvsync.partition-spec-id"
NAME_MAPPING_HASH = "dvsync.name-mapping-sha256"
# Only where a timestamp with a zone partitions the table.
TIME_ZONE = "dvsync.partition-time-zone"
DELETE_GRANULARITY = "write.delete.granularity"
# Where files go that are not written below the table's location.
PLACES = ("write.data.path", "write.metadata.path")
# What of Delta's protocol and metadata must fit together although a commit may change one alone: see `remembering`.
DELTA_PROTOCOL = "dvsync.delta.protocol"
DELTA_FEATURES = "dvsync.delta.features-used"
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
        table = replace(self.table, name_mapping=with_hidden(self.table.name_mapping, hidden))
        properties = {**self.definition.properties, **_shape_properties(table)}
        return replace(self, table=table, definition=replace(self.definition, properties=properties))


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
        raise TargetChanged(
            f"the Iceberg table {settings.target} was changed by someone else: its {' and its '.join(changed)}",
            path=table.metadata_location,
            hint=f"Undo the change and `dvsync resume {name}`, or let `dvsync resync {name}` write the table anew as "
            "Delta has it; on_foreign_commit: overwrite does so by itself.",
        )
    zone = properties.get(TIME_ZONE)
    if _has_zoned_partitions(table.schema(), table.spec()) and zone != settings.partition_time_zone:
        raise TargetChanged(
            f"partition_time_zone is {settings.partition_time_zone}, and the partition values that the Iceberg table "
            f"{settings.target} shows were made with {zone}",
            path=table.metadata_location,
            hint=f"Set partition_time_zone to {zone} again, or let `dvsync resync {name}` register every file anew; "
            "on_foreign_commit: overwrite does so by itself.",
        )


def shape_of(table: Table, settings: TableSettings) -> Shape:
    """The shape that an existing table has. Raises `TargetChanged` when it is not what dvsync left."""
    check_shape(table, settings)
    schema = TableSchema(
        schema=table.schema(),
        specs=table.specs(),
        spec_id=table.metadata.default_spec_id,
        name_mapping=parse_mapping_from_json(table.properties[NAME_MAPPING]),
    )
    return _shape(schema, settings, table.properties, table.properties.get(RETENTION_MS))


def shape_for(metadata: Metadata, table: Table | None, settings: TableSettings) -> Shape:
    """The shape that a Delta metadata asks for; field and spec ids that dvsync gave to `table` are kept.

    Raises `Unsupported`.
    """
    check_metadata(metadata)
    retention_ms = str(round(retention_s(metadata) * 1000))
    if table is None:
        return _shape(translate_schema(metadata), settings, {}, retention_ms)
    mapping = _own_mapping(table)
    schema = translate_schema(
        metadata,
        None if _counts_anew(metadata, table) else _own_schema(table),
        mapping=mapping,
        schemas=table.schemas(),
        specs=table.specs(),
    )
    shape = _shape(schema, settings, table.properties, retention_ms)
    # Where somebody has changed the mapping, the schemas of our snapshots tell which names led to which columns.
    ours = {snapshot.schema_id for snapshot in table.metadata.snapshots if find_marker(snapshot) is not None}
    schemas = [each for schema_id, each in table.schemas().items() if schema_id in ours]
    before = [mapping] if mapping else [each.name_mapping for each in schemas]
    lost = {field_id: name for each in before for field_id, name in find_lost(each, schema.name_mapping).items()}
    misread = _misread(table, lost)
    return replace(shape, definition=replace(shape.definition, misread=misread))


def _misread(table: Table, lost: Mapping[int, str]) -> Misread:
    """The snapshots that show a column which is `lost`."""
    schemas = {schema_id: lost.keys() & schema.field_ids for schema_id, schema in table.schemas().items()}
    found = {
        snapshot.snapshot_id: schemas[snapshot.schema_id]
        for snapshot in table.metadata.snapshots
        if snapshot.schema_id is not None and schemas.get(snapshot.schema_id)
    }
    return Misread(
        snapshot_ids=tuple(
            snapshot.snapshot_id
            for snapshot in table.metadata.snapshots
            if snapshot.snapshot_id in found and find_marker(snapshot) is not None
        ),
        columns=tuple(sorted({lost[field_id] for ids in found.values() for field_id in ids})),
        references=tuple(
            f"{ref.snapshot_ref_type} {name} (snapshot {ref.snapshot_id})"
            for name, ref in sorted(table.metadata.refs.items())
            if name != MAIN_BRANCH and ref.snapshot_id in found
        ),
    )


def check_references(shape: Shape, settings: TableSettings) -> None:
    """Raise `Unsupported` when a tag or a branch holds a snapshot that would be misread from the next commit on.

    To show it with nulls would be wrong, and to drop what somebody set on purpose cannot be undone.
    """
    misread = shape.definition.misread
    if misread.references:
        raise Unsupported(
            f"Iceberg must take the changed column {', '.join(misread.columns)} for a new one, and would show nulls in "
            f"it in older snapshots: these have to be expired, and {', '.join(misread.references)} keeps one",
            hint="Copy its rows into another table where they are needed, drop it (ALTER TABLE … DROP TAG or DROP "
            f"BRANCH), then `dvsync resume {settings.name}`.",
        )


def remembering(shape: Shape, table: Table | None, protocol: Protocol | None, metadata: Metadata | None) -> Shape:
    """`shape` with a protocol and the features that a metadata uses as properties of the table, once they fit together.

    What is None did not change: `table` remembers it, unless an older dvsync or someone else left no word of it. Raises
    `CorruptInput` where Delta would refuse the table.
    """
    properties = dict(table.properties) if table else {}
    if protocol is not None:
        properties[DELTA_PROTOCOL] = msgspec.json.encode(protocol).decode()
    if metadata is not None:
        properties[DELTA_FEATURES] = ",".join(sorted(used_features(metadata)))
    kept = {key: properties[key] for key in (DELTA_PROTOCOL, DELTA_FEATURES) if key in properties}
    if len(kept) == 2:
        listing = msgspec.json.decode(kept[DELTA_PROTOCOL], type=Protocol)
        check_features(listing, [feature for feature in kept[DELTA_FEATURES].split(",") if feature])
    return replace(shape, definition=replace(shape.definition, properties={**shape.definition.properties, **kept}))


def _own_schema(table: Table) -> Schema:
    """The schema that dvsync left, whatever is current now; the current one where nothing tells."""
    own = table.properties.get(SCHEMA_ID)
    return next((schema for schema_id, schema in table.schemas().items() if str(schema_id) == own), table.schema())


def _own_mapping(table: Table) -> NameMapping | None:
    """The name mapping that dvsync left; None where it is another one now."""
    mapping = table.properties.get(NAME_MAPPING, "")
    return parse_mapping_from_json(mapping) if table.properties.get(NAME_MAPPING_HASH) == _hash(mapping) else None


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _has_zoned_partitions(schema: Schema, spec: PartitionSpec) -> bool:
    return any(isinstance(schema.find_type(field.source_id), TimestamptzType) for field in spec.fields)


def _shape_properties(table: TableSchema) -> dict[str, str]:
    mapping = table.name_mapping.model_dump_json()
    return {
        NAME_MAPPING: mapping,
        NAME_MAPPING_HASH: _hash(mapping),
        SCHEMA_ID: str(table.schema.schema_id),
        SPEC_ID: str(table.spec_id),
        **({TIME_ZONE: table.time_zone} if _has_zoned_partitions(table.schema, table.spec) else {}),
    }


def _counts_anew(metadata: Metadata, table: Table) -> bool:
    """Whether Delta's column ids began at 1 again, in a table made anew: they say nothing about the older columns."""
    marker = shown_by(table)
    mapped = metadata.column_mapping_mode != "none"
    return mapped and marker is not None and marker.delta_table_id != metadata.id


def _shape(
    schema: TableSchema, settings: TableSettings, properties: Mapping[str, str], retention_ms: str | None
) -> Shape:
    schema = replace(schema, time_zone=settings.partition_time_zone, may_overflow=settings.may_overflow)
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
            **_shape_properties(schema),
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


def check_places(location: str, properties: Mapping[str, str], source: str) -> None:
    """Raise `Unsupported` when PyIceberg would cut a path, or Delta's VACUUM would remove the Iceberg table's files, at
    its location or where its properties have them written.
    """
    check_path(source)
    for name, place in {"location": location, **{name: properties.get(name) for name in PLACES}}.items():
        if not place:
            continue
        check_path(place)
        if vacuum_cleans(place, source):
            raise Unsupported(
                f"the Iceberg table's {name}, {place}, lies inside the Delta table, where VACUUM removes every file "
                "that Delta does not know",
                hint=f"Choose a {name} outside of the Delta table, or one whose folder begins with '_' or '.'.",
            )
