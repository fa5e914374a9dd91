"""Defines the Iceberg table for a Delta table: schema, partition spec and properties. Refuses what cannot be shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import parse_mapping_from_json
from pyiceberg.table.refs import MAIN_BRANCH
from pytimeparse2 import parse as parse_timespan

from daemon.config.settings import TableSettings
from daemon.delta.actions import Metadata, Protocol
from daemon.delta.features import check_features, check_metadata, check_protocol, used_features
from daemon.delta.replay import TableChange
from daemon.errors import ReplacementNeeded, SchemaChanged, Unsupported
from daemon.iceberg.manifests import has_row_lineage
from daemon.iceberg.marker import find_marker, shown_by
from daemon.iceberg.retention import RETENTION_MS, own_tags
from daemon.iceberg.schema_changes import Layout, describe_changes
from daemon.iceberg.target import Definition, Misread
from daemon.translate.existing_table import (
    DELTA_ROW_IDS,
    NAME_MAPPING,
    SPEC_ID,
    check_shape,
    hidden_ids,
    kept_mapping,
    own_mapping,
    own_schema,
    row_id_column_of,
    shape_properties,
)
from daemon.translate.file_schema import FileTraits
from daemon.translate.metrics import metrics_properties
from daemon.translate.name_mapping import find_lost, with_row_ids, with_unmapped
from daemon.translate.planner import DeletionVectors, Planner, PositionDeletes
from daemon.translate.readers import SCHEMA_FAULTS, Fault
from daemon.translate.schema import TableSchema, translate_schema

# A new table gets what all readers read. Somebody may set the property afterwards.
DELETE_GRANULARITY_DEFAULT = "file"
DELETE_GRANULARITY = "write.delete.granularity"
# Spark's vectorized reader takes milliseconds for microseconds where the values have a dictionary, and fails on files
# with variants inside of structs, lists and maps, whatever is selected (Iceberg 1.12).
VECTORIZED_READS = "read.parquet.vectorization.enabled"
# Delta's protocol and features must fit together, but a commit may change only one of them: see `_with_features`.
DELTA_PROTOCOL = "dvsync.delta.protocol"
DELTA_FEATURES = "dvsync.delta.features-used"
# The physical names of `TableSchema.filled`, as JSON.
DELTA_FILLED = "dvsync.delta.filled-columns"
# `TableSchema.collated`, as JSON.
COLLATED_IDS = "dvsync.delta.collated-field-ids"
# `TableSchema.needs_ids`, if it ever was true.
NEEDS_IDS = "dvsync.delta.needs-field-ids"
# Set once the table has, or has had, mirrors of Delta's files. Without it, nobody need ask which these are.
HAS_MIRRORS = "dvsync.delta.has-mirrors"
# What programs that are not among `readers` would misread, if there ever was such a thing: `Fault`s, joined by commas.
DELTA_FAULTS = "dvsync.delta.faults"
# Each version writes a metadata file. Without these properties, a million of them would pile up in a year.
METADATA_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}

# How long log cleanup and VACUUM keep the log and older versions' files: table properties, and Delta's defaults.
RETENTIONS_S = {"delta.logRetentionDuration": 30 * 86_400.0, "delta.deletedFileRetentionDuration": 7 * 86_400.0}
_decode_protocol = msgspec.json.Decoder(Protocol).decode


@dataclass(frozen=True)
class Shape:
    """A Delta schema on the Iceberg side: for translating files, for defining the table, for planning delete files."""

    table: TableSchema
    definition: Definition
    deletes: Planner

    def with_files(self, traits: FileTraits, *, are_all: bool = False) -> Shape:
        """Return the shape for files that also have these traits. Without any, it does not change.

        If they `are_all` files of the table, other faults of files are no more.
        """
        if traits == FileTraits() and not are_all:
            return self
        mapping = with_unmapped(self.table.name_mapping, traits.unmapped, self.table.schema.field_ids)
        table = replace(
            self.table,
            name_mapping=mapping,
            hidden_ids=self.table.hidden_ids | traits.hidden_ids,
            faults=(self.table.faults & SCHEMA_FAULTS if are_all else self.table.faults) | traits.faults,
        )
        properties = {**self.definition.properties, **shape_properties(table)}
        properties |= {VECTORIZED_READS: "false"} if traits.is_unvectorized else {}
        properties |= {HAS_MIRRORS: "true"} if traits.has_mirrors else {}
        properties |= (
            {DELTA_FAULTS: ",".join(sorted(table.faults))} if table.faults or DELTA_FAULTS in properties else {}
        )
        return replace(self, table=table, definition=replace(self.definition, properties=properties))


def has_mirrors(table: Table) -> bool:
    """Return whether some data files of the table are, or were, mirrors of Delta's."""
    return table.properties.get(HAS_MIRRORS) == "true"


def find_faults(table: Table) -> frozenset[Fault]:
    """Find what programs would misread in the table that were not among its readers when dvsync looked."""
    named = table.properties.get(DELTA_FAULTS, "").split(",")
    return frozenset(fault for fault in Fault if fault in named)


def shape_of(table: Table, settings: TableSettings) -> Shape:
    """Return the shape of an existing table. Raises `TargetChanged` when it is not what dvsync left."""
    check_shape(table, settings)
    schema = TableSchema(
        schema=table.schema(),
        specs=table.specs(),
        spec_id=table.metadata.default_spec_id,
        name_mapping=parse_mapping_from_json(table.properties[NAME_MAPPING]),
        filled=frozenset(msgspec.json.decode(table.properties.get(DELTA_FILLED, "[]"), type=list[str])),
        hidden_ids=hidden_ids(table),
        needs_ids=table.properties.get(NEEDS_IDS) == "true",
        collated=frozenset(msgspec.json.decode(table.properties.get(COLLATED_IDS, "[]"), type=list[int])),
        faults=find_faults(table),
    )
    return _shape(schema, settings, table.properties, table.properties.get(RETENTION_MS), row_id_column_of(table))


def shape_for(metadata: Metadata, table: Table | None, settings: TableSettings) -> Shape:
    """Return the shape for a Delta metadata. Field ids and spec ids that dvsync gave to `table` are kept.

    For example, `table` has the columns {a: 1, b: 2}, without column mapping, and Delta changes b from int to string:
    for Iceberg that is a new column, {a: 1, b: 3}. In files without field ids, the name b then leads to 3, so older
    snapshots would show nulls in b: 2. `definition.misread` names them. Raises `Unsupported`.
    """
    check_metadata(metadata)
    retention_ms = str(round(retention_s(metadata) * 1000))
    row_ids = row_id_column(metadata)
    if table is None:
        schema = translate_schema(
            metadata,
            numbers_contents=settings.has_mirrors,
            readers=settings.readers,
            format_version=settings.format_version,
        )
        return _shape(schema, settings, {}, retention_ms, row_ids)
    mapping, marker = own_mapping(table), shown_by(table)
    # If the Delta table was recreated, its column ids began at 1 again, for other columns.
    is_recreated = marker is not None and marker.delta_table_id != metadata.id
    schema = translate_schema(
        metadata,
        None if is_recreated and metadata.column_mapping_mode != "none" else own_schema(table),
        mapping=mapping or kept_mapping(table),
        schemas=table.schemas(),
        specs=table.specs(),
        hidden_ids=hidden_ids(table),
        numbers_contents=settings.has_mirrors,
        readers=settings.readers,
        format_version=settings.format_version,
    )
    schema = replace(schema, faults=schema.faults | find_faults(table) - SCHEMA_FAULTS)
    shape = _shape(schema, settings, table.properties, retention_ms, row_ids)
    # If somebody else changed the mapping, the schemas of our snapshots show which name belonged to which id.
    ours = {snapshot.schema_id for snapshot in table.metadata.snapshots if find_marker(snapshot) is not None}
    schemas = [each for schema_id, each in table.schemas().items() if schema_id in ours]
    before = [mapping] if mapping else [each.name_mapping for each in schemas]
    lost = {field_id: name for each in before for field_id, name in find_lost(each, shape.table.name_mapping).items()}
    misread = _misread(table, lost)
    return replace(shape, definition=replace(shape.definition, misread=misread))


def next_shape(
    table: Table | None,
    settings: TableSettings,
    change: TableChange,
    *,
    count_staying: Callable[[], int] | None = None,
    is_wanted: bool = False,
) -> Shape:
    """Return the shape of `table`, or of a new table, after `change`.

    `count_staying` counts the data files that stay, and is called only if that matters. Without it, the whole table is
    replaced. A person has accepted other columns if it `is_wanted`.

    Raises `Unsupported` if Iceberg cannot show the table, `CorruptInput` if Delta would refuse it, `SchemaChanged` if
    a person must accept it, and `ReplacementNeeded` if files that stay have other row ids in Delta.
    """
    if change.protocol:
        check_protocol(change.protocol, is_managed=settings.is_managed)
    if table and change.metadata is None:
        shape = shape_of(table, settings)
        return _with_features(shape, table, change) if change.protocol else shape
    assert change.metadata, "a new table has Delta's metadata"
    shape = _with_features(shape_for(change.metadata, table, settings), table, change)
    if table and count_staying:
        _check_row_ids(shape, table, change)
    if table and not is_wanted:
        _check_unchanged(shape, table, settings, change.to_version)
    if table and count_staying:
        _check_staying(shape, table, change.to_version, count_staying)
    _check_references(shape, settings)
    return shape


def row_id_column(metadata: Metadata) -> str:
    """Return the column in which Delta's data files have row ids; an empty text if Iceberg cannot show them.

    Under column mapping, files have field ids for all columns but this one, and readers then use no name mapping.
    """
    # Delta PROTOCOL.md, "Row Tracking".
    tracks = metadata.configuration.get("delta.enableRowTracking", "").lower() == "true"
    column = metadata.configuration.get("delta.rowTracking.materializedRowIdColumnName", "")
    return column if tracks and metadata.column_mapping_mode == "none" else ""


def retention_s(metadata: Metadata) -> float:
    """Return how long the files of a replaced version are surely kept. An invalid time span counts as unset."""
    spans_s = []
    for key, default_s in RETENTIONS_S.items():
        span_s = parse_timespan(metadata.configuration.get(key, "").lower().removeprefix("interval").strip())
        spans_s.append(span_s if isinstance(span_s, int | float) and span_s >= 0 else default_s)
    return float(min(spans_s))


def _misread(table: Table, lost: Mapping[int, str]) -> Misread:
    """Find the snapshots that show a column in `lost`, which maps field ids to names."""
    schemas = {schema_id: lost.keys() & schema.field_ids for schema_id, schema in table.schemas().items()}
    found = {
        snapshot.snapshot_id: schemas[snapshot.schema_id]
        for snapshot in table.metadata.snapshots
        if snapshot.schema_id is not None and schemas.get(snapshot.schema_id)
    }
    own = own_tags(table.metadata)
    marked = {snapshot.snapshot_id for snapshot in table.metadata.snapshots if find_marker(snapshot) is not None}
    return Misread(
        snapshot_ids=tuple(snapshot_id for snapshot_id in found if snapshot_id in marked),
        columns=tuple(sorted({lost[field_id] for ids in found.values() for field_id in ids})),
        references=tuple(
            f"{ref.snapshot_ref_type} {name} (snapshot {ref.snapshot_id})"
            for name, ref in sorted(table.metadata.refs.items())
            if name != MAIN_BRANCH and name not in own and ref.snapshot_id in found
        ),
        tags=tuple(name for name, snapshot_id in own.items() if snapshot_id in found),
    )


def _with_features(shape: Shape, table: Table | None, change: TableChange) -> Shape:
    """Return `shape` with Delta's protocol and used features as table properties, and check that they fit together.

    What `change` does not have is that of the properties. If there is no such property, as after an older dvsync, the
    check is skipped. Raises `CorruptInput` where Delta would refuse the table.
    """
    properties = table.properties if table else {}
    kept = {key: properties[key] for key in (DELTA_PROTOCOL, DELTA_FEATURES) if key in properties}
    if change.protocol is not None:
        kept[DELTA_PROTOCOL] = msgspec.json.encode(change.protocol).decode()
    if change.metadata is not None:
        kept[DELTA_FEATURES] = ",".join(sorted(used_features(change.metadata)))
    if len(kept) == 2:
        listing = _decode_protocol(kept[DELTA_PROTOCOL])
        check_features(listing, [feature for feature in kept[DELTA_FEATURES].split(",") if feature])
    return replace(shape, definition=replace(shape.definition, properties={**shape.definition.properties, **kept}))


def _check_unchanged(shape: Shape, table: Table, settings: TableSettings, version: int) -> None:
    """Raise `SchemaChanged` if a person must accept that the table gets other columns or another partitioning."""
    if settings.on_schema_change != "park":
        return
    own = table.properties.get(SPEC_ID)
    own_spec = next((spec for spec_id, spec in table.specs().items() if str(spec_id) == own), table.spec())
    changes = describe_changes(Layout(own_schema(table), own_spec), Layout(shape.table.schema, shape.table.spec))
    if changes:
        raise SchemaChanged(
            f"the Delta table has another schema: {'; '.join(changes)}",
            version=version,
            hint=f"Prepare the table's readers, then accept the change with `dvsync resync {settings.name}`; or set "
            f"on_schema_change: follow, and run `dvsync resume {settings.name}`.",
        )


def _check_row_ids(shape: Shape, table: Table, change: TableChange) -> None:
    """Raise `ReplacementNeeded` if Delta has given its files other row ids, by another column or after a pause."""
    columns = {row_id_column(metadata) for metadata in change.metadatas}
    if shape.table.has_row_ids and columns != {row_id_column_of(table)}:
        raise ReplacementNeeded(
            "Delta began to track row ids, and older data files have other row ids in Iceberg",
            version=change.to_version,
            hint="dvsync rewrites the Iceberg table from Delta, with Delta's row ids.",
        )


def _check_staying(shape: Shape, table: Table, version: int, count_staying: Callable[[], int]) -> None:
    """Raise `Unsupported` if a column or the partitioning becomes another one, and older data files stay."""
    what = f"column {', '.join(shape.table.replaced)}" if shape.table.replaced else ""
    if shape.table.spec_id != table.metadata.default_spec_id:
        what = what or "the partitioning"
    staying = count_staying() if what else 0
    if staying:
        raise Unsupported(
            f"{what} changed while {staying} older data files stay",
            version=version,
            hint="`dvsync resync` makes it a new column in Iceberg, or a new partitioning; older snapshots that would "
            "show it wrongly expire. If a file does not fit the new column, overwrite it in Delta first; or set "
            "mirrors: rewrite, which reads the rows of such files and writes them again.",
        )


def _check_references(shape: Shape, settings: TableSettings) -> None:
    """Raise `Unsupported` when a tag or a branch holds a snapshot that readers would misread after the next commit.

    The snapshot would show wrong nulls, and somebody created the tag or branch on purpose. dvsync's own tags are set by
    a rule, and must not stop the table.
    """
    misread = shape.definition.misread
    if misread.references:
        raise Unsupported(
            f"column {', '.join(misread.columns)} changed, and older snapshots would show it as null in Iceberg. They "
            f"must expire, but are held by {', '.join(misread.references)}",
            hint="Copy the rows that you need into another table, drop the tag or branch (ALTER TABLE … DROP TAG or "
            f"DROP BRANCH), then run `dvsync resume {settings.name}`.",
        )


def _shape(
    schema: TableSchema, settings: TableSettings, properties: Mapping[str, str], retention_ms: str | None, row_ids: str
) -> Shape:
    has_row_ids = bool(row_ids) and has_row_lineage(settings.format_version)
    schema = replace(
        schema,
        name_mapping=with_row_ids(schema.name_mapping, row_ids) if has_row_ids else schema.name_mapping,
        time_zone=settings.partition_time_zone,
        readers=settings.readers,
        has_row_ids=has_row_ids,
    )
    granularity = properties.get(DELETE_GRANULARITY)
    granularity = granularity if granularity in ("file", "partition") else DELETE_GRANULARITY_DEFAULT
    # What is empty is only written where an older value must go.
    remembered = {
        DELTA_ROW_IDS: (row_ids, row_ids),
        DELTA_FILLED: (schema.filled, msgspec.json.encode(sorted(schema.filled)).decode()),
        COLLATED_IDS: (schema.collated, msgspec.json.encode(sorted(schema.collated)).decode()),
        NEEDS_IDS: (schema.needs_ids, str(schema.needs_ids).lower()),
        DELTA_FAULTS: (schema.faults, ",".join(sorted(schema.faults))),
    }
    definition = Definition(
        schema=schema.schema,
        spec=schema.spec,
        format_version=settings.format_version,
        properties={
            **({} if properties else METADATA_PROPERTIES),
            # The data files belong to Delta: no Iceberg maintenance may remove them.
            "gc.enabled": "false",
            DELETE_GRANULARITY: granularity,
            **shape_properties(schema),
            **metrics_properties(schema),
            **({RETENTION_MS: retention_ms} if retention_ms else {}),
            **{key: text for key, (value, text) in remembered.items() if value or key in properties},
        },
    )
    deletes = PositionDeletes(granularity == "partition") if settings.format_version == 2 else DeletionVectors()
    return Shape(schema, definition, deletes)
