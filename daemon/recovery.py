"""Bringing the state store back in step with the Iceberg table, which is the truth about what was committed."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pyarrow.parquet as pq
from msgspec.structs import replace as with_fields
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table

from daemon.commit import Shown, remembered
from daemon.context import TableContext
from daemon.delta.actions import Commit, RemoveFile, encode_path, resolve_path
from daemon.delta.protocol import check_protocol
from daemon.errors import CorruptInput, ObjectMissing, PipelineAway, TargetChanged
from daemon.iceberg.manifests import read_entries, read_manifest_list, referenced_data_file, schema_with_sources
from daemon.iceberg.marker import Marker, shown_by
from daemon.pipeline.table_state import collect_adds, read_table_state, select_paths
from daemon.storage import FileIOStorage
from daemon.translate.plan import UNKNOWN_DV, descriptor_of, record_of
from state import (
    DeleteFileRecord,
    DeletionVectorRecord,
    DvMapping,
    FileKind,
    LiveFile,
    OrphanReason,
    Outcome,
    TableRecord,
)


def end_intents(context: TableContext, record: TableRecord, table: Table | None) -> TableRecord:
    """Decide every open intent by the snapshots of the Iceberg table: landed, or its files become orphans."""
    store = context.store
    for intent, outcome in store.find_open_intents(record.id):
        landed = table is not None and table.snapshot_by_id(intent.id) is not None
        if landed and outcome is not None and table is not None:
            done = with_fields(outcome, metadata_location=table.metadata_location)
            store.record_synced(intent.id, done, at_ms=context.clock.now_ms())
            record = remembered(record, done)
        elif not landed:
            store.record_abandoned(intent.id, OrphanReason.COMMIT_FAILED, at_ms=context.clock.now_ms())
            _find_stray_metadata(context, record, table, since_ms=intent.created_at_ms)
        # A first sync that landed without being recorded is rebuilt from the table, which ends its intent.
    return record


def _find_stray_metadata(context: TableContext, record: TableRecord, table: Table | None, *, since_ms: int) -> None:
    """Metadata files are named by the catalog, so one that never became current is found by looking for it."""
    orphans = context.store.list_orphans(record.id)
    folders = {path.rsplit("/", 1)[0] for path, kind, _ in orphans if kind is FileKind.MANIFEST_LIST}
    if table:
        folders.add(table.metadata_location.rsplit("/", 1)[0])
    storage = FileIOStorage(context.properties)
    referenced = (
        {table.metadata_location, *(log.metadata_file for log in table.metadata.metadata_log)} if table else set()
    )
    for folder in folders:
        stray = [
            meta.path
            for meta in storage.list_from(folder, after="")
            if meta.path.endswith(".metadata.json") and meta.modified_ms >= since_ms and meta.path not in referenced
        ]
        context.store.record_orphans(
            record.id, FileKind.METADATA, stray, OrphanReason.COMMIT_FAILED, at_ms=context.clock.now_ms()
        )


def load_shown(context: TableContext, record: TableRecord, table: Table) -> tuple[Shown, bool]:
    """The table with a memory that agrees with it, rebuilt if need be.

    The flag says that Delta's state must be compared with it as well. Raises `TargetChanged` when someone else's
    snapshot is the current one.
    """
    current = table.current_snapshot()
    marker = shown_by(table)
    if current is None or marker is None:
        raise TargetChanged(
            f"the current snapshot of {context.settings.target} ({current.snapshot_id if current else 'none'}) was not "
            "committed by dvsync",
            path=table.metadata_location,
            hint="Roll the Iceberg table back to dvsync's last snapshot, or drop it, then `dvsync resume` the table.",
        )
    if record.snapshot_id == current.snapshot_id and record.synced_version is not None:
        return Shown(with_fields(record, metadata_location=table.metadata_location), table), record.must_compare
    return rebuild(context, record, table, marker)


def rebuild(context: TableContext, record: TableRecord, table: Table, marker: Marker) -> tuple[Shown, bool]:
    """Rebuild what is remembered from Iceberg's manifests and Delta's state at the version that they show.

    A deletion vector that cannot be told for sure is remembered as unknown, and the comparison that then follows writes
    that file's deletions anew: neither lost nor doubled.
    """
    current = table.current_snapshot()
    assert current is not None, "a table with a marker has a snapshot"
    data_files, delete_files = _read_live(table)
    positions: Counter[str] = Counter()
    served = {path: _served(context, delete_file) for path, (delete_file, _) in delete_files.items()}
    for counts in served.values():
        positions.update(counts)
    dvs = _find_dvs(context, marker)
    known = dvs is not None
    live: dict[str, LiveFile] = {}
    for path, (data_file, manifest_path) in data_files.items():
        dv = (dvs or {}).get(path)
        if positions[path] != (dv.cardinality if dv else 0):
            dv, known = UNKNOWN_DV, False
        live[path] = LiveFile(
            path=path,
            record_count=data_file.record_count,
            size_bytes=data_file.file_size_in_bytes,
            spec_id=data_file.spec_id,
            manifest_path=manifest_path,
            deletion_vector=dv,
        )
    deletes = [
        DeleteFileRecord(
            path=path,
            size_bytes=data_file.file_size_in_bytes,
            positions=data_file.record_count,
            spec_id=data_file.spec_id,
            manifest_path=manifest_path,
            mappings=tuple(DvMapping(file, _dv_id(live.get(file)), count) for file, count in served[path].items()),
        )
        for path, (data_file, manifest_path) in delete_files.items()
    ]
    outcome = Outcome(
        table_id=record.id,
        delta_table_id=marker.delta_table_id,
        from_version=None,
        to_version=marker.version,
        source_timestamp_ms=marker.timestamp_ms,
        snapshot_id=current.snapshot_id,
        metadata_location=table.metadata_location,
        must_compare=not known,
    )
    context.store.record_rebuilt(outcome, live.values(), deletes, at_ms=context.clock.now_ms())
    return Shown(remembered(record, outcome), table), not known


def _read_live(table: Table) -> tuple[dict[str, tuple[DataFile, str]], dict[str, tuple[DataFile, str]]]:
    """Data files and delete files of the current snapshot by path, each with the manifest that holds it."""
    snapshot = table.current_snapshot()
    found: dict[ManifestContent, dict[str, tuple[DataFile, str]]] = {content: {} for content in ManifestContent}
    for manifest in read_manifest_list(table.io, snapshot.manifest_list) if snapshot else ():
        spec = table.specs()[manifest.partition_spec_id]
        schema = schema_with_sources(spec, (table.schema(), *table.schemas().values()))
        for entry in read_entries(table.io, manifest, spec=spec, schema=schema):
            found[manifest.content][entry.data_file.file_path] = (entry.data_file, manifest.manifest_path)
    return found[ManifestContent.DATA], found[ManifestContent.DELETES]


def _served(context: TableContext, delete_file: DataFile) -> dict[str, int]:
    """Positions by data file: from the entry when it names its one data file, else from the delete file itself."""
    single = referenced_data_file(delete_file)
    if single is not None:
        return {single: delete_file.record_count}
    with FileIOStorage(context.properties).open_input(delete_file.file_path) as file:
        return dict(Counter(pq.read_table(file, columns=["file_path"]).column(0).to_pylist()))


def _find_dvs(context: TableContext, marker: Marker) -> dict[str, DeletionVectorRecord] | None:
    """The deletion vectors of the Delta version that Iceberg shows; None when Delta cannot go back to it."""
    # That Spark itself is away is raised by the session, outside of what is suppressed: it is no answer.
    with context.spark.session() as spark, suppress(CorruptInput, ObjectMissing, PipelineAway):
        state = read_table_state(spark, context.location, marker.version)
        if state.metadata.id == marker.delta_table_id:
            return {
                resolve_path(context.location, add.path): record_of(add.deletion_vector)
                for add in collect_adds(state.adds.where("dv_storage_type IS NOT NULL"))
                if add.deletion_vector
            }
    return None


def _dv_id(file: LiveFile | None) -> str:
    return file.deletion_vector.unique_id if file and file.deletion_vector else UNKNOWN_DV.unique_id


def commit_to_newest(context: TableContext, shown: Shown) -> Commit:
    """One commit that turns what is live in Iceberg into Delta's newest state, whatever happened in between.

    Raises `Unsupported` for what that state needs and we cannot show.
    """
    with context.spark.session() as spark:
        state = read_table_state(spark, context.location)
        check_protocol(state.protocol)
        live = {file.path: file.deletion_vector for file in context.store.read_live_files(shown.record.id)}
        newest: dict[str, tuple[str, str | None]] = {
            resolve_path(context.location, add.path): (add.path, add.dv_unique_id)
            for add in collect_adds(state.adds.drop("stats"))
        }
        differing = [path for path, (_, dv_id) in newest.items() if path not in live or _unique_id(live[path]) != dv_id]
        adds = collect_adds(select_paths(spark, state, [newest[path][0] for path in differing])) if differing else ()
        return Commit(
            version=state.version,
            timestamp_ms=state.timestamp_ms,
            adds=tuple(adds),
            removes=tuple(_tombstone(path, dv) for path, dv in live.items() if path not in newest),
            metadata=state.metadata,
            protocol=state.protocol,
            operation="resynchronise",
        )


def _unique_id(record: DeletionVectorRecord | None) -> str | None:
    return record.unique_id if record else None


def _tombstone(path: str, record: DeletionVectorRecord | None) -> RemoveFile:
    descriptor = descriptor_of(record) if record else None
    return RemoveFile(path=encode_path(path), data_change=True, deletion_vector=descriptor)
