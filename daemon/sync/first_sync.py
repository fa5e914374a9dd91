"""The first sync: shows a Delta table's whole state in one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial, reduce
from operator import or_

import pyarrow.compute as pc
from pyiceberg.table import Table

from daemon.delta.actions import AddFile
from daemon.delta.replay import TableChange
from daemon.delta.table_state import TableState, check_unique
from daemon.errors import errors_at
from daemon.iceberg.account import Account
from daemon.observe import tracing
from daemon.pipeline.data_manifests import ManifestAnswer, ManifestTask, manifests_needed
from daemon.sync.comparison import int64s
from daemon.sync.context import TableContext
from daemon.sync.mirrors import MirrorMaker, mirror_state, planner_for, remember_mirrors
from daemon.sync.outcomes import Shown, SyncOutcome, SyncResult, delete_file_records
from daemon.sync.recovery import leave_other_table
from daemon.sync.transaction import Transaction
from daemon.translate.definition import Shape, next_shape
from daemon.translate.existing_table import check_places
from daemon.translate.file_schema import FileTraits
from daemon.translate.plan import CommitPlan, SyncPlan
from state import DeletionVectorDescriptor, FileKind, Outcome, TableRecord

RESYNCED = "resync"  # the operation in the summary of a snapshot that replaces the whole table


def first_sync(
    context: TableContext, record: TableRecord, existing: Table | None = None, *, is_wanted: bool = True
) -> tuple[Shown, SyncResult]:
    """Show Delta's newest version in one snapshot, which creates the Iceberg table or replaces what `existing` shows.

    Readers see nothing before. The state store knows the files that a failure leaves behind. Unless it `is_wanted` by a
    person, a change of columns may have to be accepted first: then `SchemaChanged` is raised.

    Example: Delta's state is the files `a`, `b` and `c`, and `b` has the deletion vector {1, 4}. One manifest gets the
    entries of `a`, `b` and `c`; one delete file gets the positions 1 and 4 of `b`. The account is three files, with two
    deleted rows. If `existing` shows `x`, the same snapshot removes `x`.
    """
    with context.open_delta_state() as state:
        # The later syncs take this time from the log, and Delta may report another one.
        timed = replace(state, timestamp_ms=context.log.commit_time_ms(state.version, state.timestamp_ms))
        with errors_at(version=state.version):
            return show_state(context, record, timed, existing, is_wanted=is_wanted)


def show_state(
    context: TableContext,
    record: TableRecord,
    state: TableState,
    existing: Table | None = None,
    *,
    is_wanted: bool = True,
) -> tuple[Shown, SyncResult]:
    """Create the Iceberg table with one snapshot that shows `state`, or replace all contents of `existing`."""
    shape = next_shape(existing, context.settings, _change(state, {}), is_wanted=is_wanted)
    table = existing or context.target.stage(shape.definition)
    check_places(table.metadata.location, table.properties, context.location)
    if existing is not None:
        record = leave_other_table(context, record, existing, is_wanted=is_wanted)
        remember_mirrors(context, record.id, existing)
    elif record.metadata_location is not None:
        # The former Iceberg table may still exist under another name or in another catalog, so its files stay.
        context.store.record_table_replaced(record.id, at_ms=context.clock.now_ms())
    operation = RESYNCED if existing else None
    with Transaction(context, Shown(record, table), shape.definition, to_version=state.version) as transaction:
        planner = planner_for(context, Shown(record, table), shape.table, state.metadata)
        state = mirror_state(MirrorMaker(context, transaction, record.id, planner), state)
        with tracing.step("manifests"):
            answers = _write_manifests(context, transaction, state, shape, table)
        written = [answer.written for answer in answers]
        # A path that is spelled in two ways may be in two parts.
        paths = int64s(hash(path) for answer in answers for path in answer.paths)
        if pc.count_distinct(paths).as_py() < len(paths):
            check_unique([add.logical_file for add in state.read_adds()])
        traits = reduce(or_, (manifest.traits for manifest in written), FileTraits())
        shape = shape.with_files(traits, are_all=True)
        with tracing.step("translate"):
            dvs, completed = _write_deletions(transaction, state, shape, answers)
        delta = replace(
            completed.delta,
            written_manifests=[manifest.manifest for manifest in written],
            written_size_bytes=sum(manifest.size_bytes for manifest in written),
            written_row_ids_end=max((manifest.row_ids_end for manifest in written), default=0),
            replaces_all=existing is not None,
        )
        account = Account(
            data_files=state.files,
            physical_rows=sum(manifest.physical_rows for manifest in written),
            deleted_rows=sum(dv.cardinality for dv in dvs.values()),
            size_bytes=delta.written_size_bytes,
        )
        # What was found in the files is part of the definition.
        transaction.move_to(Shown(record, table), shape.definition)
        outcome = Outcome(
            table_id=record.id,
            delta_table_id=state.metadata.id,
            from_version=None,
            to_version=state.version,
            source_timestamp_ms=state.timestamp_ms,
            added_delete_files=delete_file_records(completed),
            recent_commits=context.log.identify(state.recent_commits, context.store.find_recent_commits(record.id)),
        )
        live_files = (file for answer in answers for file in answer.live_files(dvs))
        shown = transaction.show(delta, account, outcome, live_files=live_files, operation=operation)
    if record.proof:
        # It was one of the table as it was before.
        context.store.record_proof(record.id, None)
    snapshot = shown.table.current_snapshot()
    assert snapshot and snapshot.summary, "it was just committed"
    result = SyncResult(
        outcome=SyncOutcome.ADVANCED,
        from_version=None,
        to_version=state.version,
        snapshot_id=transaction.id,
        operation=operation or "first sync",
        snapshots=1,
        data_files_added=sum(manifest.files for manifest in written),
        data_files_removed=int(snapshot.summary["deleted-data-files"] or 0),
        delete_files_added=len(completed.written),
        delete_files_removed=int(snapshot.summary["removed-delete-files"] or 0),
        positions_added=completed.new_positions,
    )
    return shown, result


def _write_manifests(
    context: TableContext, transaction: Transaction, state: TableState, shape: Shape, table: Table
) -> Iterable[ManifestAnswer]:
    """Begin the transaction with the data manifests of all live files."""
    paths = transaction.name_manifests(manifests_needed(state.files))
    transaction.begin({FileKind.MANIFEST: paths})
    task = ManifestTask(
        paths=paths,
        table=shape.table,
        snapshot_id=transaction.id,
        format_version=context.settings.format_version,
        storage=context.data_files_of(table),
        target_properties=context.target_properties(table),
        at_once=context.runner.spark.is_on_cluster,
    )
    on_progress = partial(context.progress.advanced, what="data manifests") if context.progress else None
    return state.map_adds(task, len(paths), on_progress) if paths else ()


def _write_deletions(
    transaction: Transaction, state: TableState, shape: Shape, answers: Iterable[ManifestAnswer]
) -> tuple[dict[str, DeletionVectorDescriptor], CommitPlan]:
    """Write the delete files of all deletion vectors. Returns the vectors by data file path, and the completed plan."""
    with_dv = {add.path: add for add in (state.read_adds(with_dv_only=True) if state.files else ())}
    dvs = {path: add.deletion_vector for path, add in with_dv.items() if add.deletion_vector}
    live = {file.path: file for answer in answers for file in answer.live_files() if file.path in dvs}
    plan = SyncPlan(_change(state, with_dv), live, shape.table, {})
    names = transaction.delete_file_names(shape.deletes.suffix)
    plan = replace(plan, tasks=shape.deletes.tasks(plan.dv_changes(), names))
    transaction.announce([task.output_path for task in plan.tasks])
    plan = replace(plan, results=transaction.write_delete_files(plan.tasks))
    return dvs, shape.deletes.complete(plan, snapshot_id=transaction.id)


def _change(state: TableState, with_dv: Mapping[str, AddFile]) -> TableChange:
    """Make a change of the state's deletions only, because its data files are in the manifests already."""
    return TableChange(
        from_version=state.version,
        to_version=state.version,
        timestamp_ms=state.timestamp_ms,
        added={},
        removed=frozenset(),
        dv_changed=with_dv,
        metadatas=(state.metadata,),
        protocol=state.protocol,
    )
