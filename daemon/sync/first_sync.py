"""The first sync: a Delta table's whole state into one snapshot, its data manifests written in Spark tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import uuid4

from msgspec.structs import replace as with_fields
from pyiceberg.table import Table

from daemon.delta.actions import AddFile, resolve_path
from daemon.delta.protocol import check_protocol
from daemon.delta.replay import TableChange
from daemon.errors import SyncError
from daemon.iceberg.account import Account, account_of, check_account
from daemon.iceberg.row_delta import prepare_snapshot
from daemon.iceberg.target import view_of
from daemon.pipeline.data_manifests import ManifestTask, WrittenManifest, manifests_needed, write_data_manifests
from daemon.spark.table_state import TableState, collect_adds, read_table_state
from daemon.sync.advance import abandon, announce_files, delete_file_namer, new_intent
from daemon.sync.context import TableContext
from daemon.sync.outcomes import Shown, SyncResult, delete_file_records, marker_of, placed, remembered
from daemon.translate.definition import check_places, check_references, remembering, shape_for
from daemon.translate.delete_files import record_of
from daemon.translate.plan import complete_plan, plan_sync
from state import DeletionVectorRecord, FileKind, LiveFile, Outcome, TableRecord

# What a snapshot says that writes the table anew from Delta's state.
RESTORED = "restore"


def first_sync(context: TableContext, record: TableRecord, existing: Table | None = None) -> tuple[Shown, SyncResult]:
    """Show Delta's newest version in one snapshot, which creates the Iceberg table or replaces what `existing` shows.

    Nothing of it exists for readers before that one commit; what a failure leaves behind is known to the state store.
    """
    with context.spark.session() as spark:
        state = read_table_state(spark, context.log)
        # Each sync asks the log for it, which may tell another time than Delta does.
        state = replace(state, timestamp_ms=context.log.commit_time_ms(state.version, state.timestamp_ms))
        try:
            return show_state(context, record, state, existing)
        except SyncError as error:
            raise error.located(version=state.version) from error.__cause__


def show_state(
    context: TableContext, record: TableRecord, state: TableState, existing: Table | None = None
) -> tuple[Shown, SyncResult]:
    """Create the Iceberg table with one snapshot that shows `state`, or replace all that an `existing` one shows."""
    store = context.store
    check_protocol(state.protocol)
    shape = shape_for(state.metadata, existing, context.settings)
    shape = remembering(shape, existing, state.protocol, state.metadata)
    table = existing or context.target.stage(shape.definition, context.settings.format_version)
    check_places(table.metadata.location, table.properties, context.location)
    check_references(shape, context.settings)
    view = view_of(table, shape.definition)
    intent = new_intent(context, record, None, state.version)
    announce = partial(announce_files, context, intent)
    if existing is None and record.metadata_location is not None:
        # The table before this one may live on, under another name or in another catalog.
        store.record_table_replaced(record.id, at_ms=context.clock.now_ms())
    manifest_paths = tuple(
        view.locations.new_metadata_location(f"{uuid4()}-{intent.id}-m{number}.avro")
        for number in range(manifests_needed(state.files))
    )
    store.record_intent(intent, {FileKind.MANIFEST: manifest_paths})
    try:
        task = ManifestTask(
            paths=manifest_paths,
            table=shape.table,
            table_location=context.location,
            snapshot_id=intent.id,
            format_version=context.settings.format_version,
            properties=dict(context.properties),
            target_properties=context.target_properties(table),
            may_overflow=context.settings.may_overflow,
        )
        written = write_data_manifests(context.spark, state, task, context.progress)
        shape = shape.with_hidden(frozenset().union(*(manifest.hidden for manifest in written)))
        found = collect_adds(state.adds.where("dv_storage_type IS NOT NULL")) if state.files else ()
        with_dv = {resolve_path(context.location, add.path): add for add in found}
        dvs = {path: record_of(add.deletion_vector) for path, add in with_dv.items() if add.deletion_vector}
        files_with_dv = {file.path: file for file in _live_files(written, {}) if file.path in dvs}
        change = _change(state, with_dv)
        plan = plan_sync(
            change,
            files_with_dv,
            shape.table,
            {},
            granularity=shape.granularity,
            name_delete_file=delete_file_namer(context, view, intent),
        )
        store.record_pending(intent.id, {FileKind.DELETE_FILE: [task.output_path for task in plan.tasks]})
        results = context.runner.write_delete_files(
            plan.tasks,
            table_location=context.location,
            storage_properties=context.properties,
            target_properties=context.target_properties(table),
        )
        completed = complete_plan(plan, results, snapshot_id=intent.id, serving=(), still_serving={})
        delta = replace(
            completed.delta,
            written_manifests=[manifest.manifest for manifest in written],
            written_size_bytes=sum(manifest.size_bytes for manifest in written),
            replaces_all=existing is not None,
        )
        prepared = prepare_snapshot(view, delta, announce)
        account = Account(
            data_files=state.files,
            physical_rows=sum(manifest.physical_rows for manifest in written),
            deleted_rows=sum(dv.cardinality for dv in dvs.values()),
            size_bytes=delta.written_size_bytes,
        )
        check_account(account, account_of(prepared.manifests, account.size_bytes))
        outcome = placed(
            Outcome(
                table_id=record.id,
                delta_table_id=state.metadata.id,
                from_version=None,
                to_version=state.version,
                source_timestamp_ms=state.timestamp_ms,
                added_delete_files=delete_file_records(completed),
            ),
            prepared,
        )
    except (SyncError, OSError) as error:
        abandon(context, table, intent, error)
        raise
    # As in `advance`, the intent of a commit that fails stays open.
    operation = None if existing is None else RESTORED
    summary = {**marker_of(outcome).to_summary(operation=operation), **account.to_summary()}
    table = context.target.commit(table, shape.definition, prepared, summary, announce)
    outcome = with_fields(outcome, metadata_location=table.metadata_location)
    store.record_rebuilt(
        with_fields(outcome, added_delete_files=()),
        _live_files(written, dvs),
        outcome.added_delete_files,
        at_ms=context.clock.now_ms(),
    )
    result = SyncResult(
        outcome="advanced",
        from_version=None,
        to_version=state.version,
        snapshot_id=outcome.snapshot_id,
        metadata_location=outcome.metadata_location,
        source_timestamp_ms=state.timestamp_ms,
        operation="first sync" if existing is None else RESTORED,
        snapshots=1,
        data_files_added=sum(manifest.files for manifest in written),
        data_files_removed=int(prepared.summary.get("deleted-data-files", 0)),
        delete_files_added=len(completed.written),
        delete_files_removed=int(prepared.summary.get("removed-delete-files", 0)),
        positions_added=sum(result.positions for _, result in completed.written),
    )
    return Shown(remembered(record, outcome), table), result


def _change(state: TableState, with_dv: Mapping[str, AddFile]) -> TableChange:
    """The deletions of the state; its data files are in the manifests already."""
    return TableChange(
        from_version=state.version,
        to_version=state.version,
        timestamp_ms=state.timestamp_ms,
        added={},
        removed=frozenset(),
        dv_changed=with_dv,
        metadata=state.metadata,
        protocol=state.protocol,
    )


def _live_files(written: Sequence[WrittenManifest], dvs: Mapping[str, DeletionVectorRecord]) -> Iterator[LiveFile]:
    for manifest in written:
        for file in manifest.read_files():
            yield with_fields(file, deletion_vector=dvs.get(file.path))
