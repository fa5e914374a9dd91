"""One snapshot's work: `advance` folds commits, plans, translates, commits and records, in the order that makes every
crash repairable. `sync.py` decides what to advance by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from uuid import uuid4

from msgspec.structs import replace as with_fields
from pyiceberg.table import Table

from daemon.delta.actions import Commit
from daemon.delta.deletion_vector import read_position_sets
from daemon.delta.position_set import new_positions
from daemon.delta.protocol import check_protocol
from daemon.delta.replay import TableChange, fold_commits, touched_paths
from daemon.durable import force_to_disk
from daemon.errors import CorruptInput, ObjectMissing, PipelineAway, SyncError, Unsupported
from daemon.iceberg.account import Account, account_of, check_account
from daemon.iceberg.row_delta import TableView, prepare_snapshot
from daemon.iceberg.target import view_of
from daemon.pipeline.rewrite import rewrite_delete_file
from daemon.storage import FileIOStorage
from daemon.sync.context import TableContext
from daemon.sync.outcomes import Shown, SyncResult, marker_of, outcome_of_change, placed, remembered, result_of_change
from daemon.translate.definition import Shape, check_references, remembering, shape_for, shape_of
from daemon.translate.delete_files import DeleteFileResult, Rewrite, descriptor_of
from daemon.translate.plan import SyncPlan, account_change, complete_plan, files_to_leave, plan_rewrites, plan_sync
from state import DeletionVectorRecord, FileKind, FileStatus, Intent, OrphanReason, TableRecord

# Looks at whether a file is there wait on the store, not on the processor.
LOOKS_AT_ONCE = 16


def advance(
    context: TableContext,
    shown: Shown,
    commits: Sequence[Commit],
    before: Account,
    check: Callable[[Account], None],
) -> tuple[Shown, SyncResult]:
    """Show `commits` (consecutive, read and validated) in one Iceberg snapshot, or none if they change no rows.

    `before` is the account of what is shown. What it comes to is given to `check`, which raises before anything is
    written. Raises `StateMismatch` when what is remembered cannot be what Delta has.

    After a failure the Iceberg table is as it was, or the error is `CommitOutcomeUnknown`; files written in vain are
    known to the state store, as orphans or by an open intent.
    """
    store, record = context.store, shown.record
    live = store.find_live_files(record.id, touched_paths(commits, context.location))
    dv_ids = {path: file.deletion_vector.unique_id if file.deletion_vector else None for path, file in live.items()}
    change = fold_commits(commits, dv_ids, context.location)

    shape = _shape_after(context, shown, change)
    with context.step("inspect"):
        inspection = context.runner.inspect_data_files(change.added, shape.table, context.storage, context.properties)
    account = before + account_change(change, live, inspection.metrics)
    check(account)
    shape = shape.with_hidden(inspection.hidden)
    view = view_of(shown.table, shape.definition)
    intent = new_intent(context, record, change.from_version, change.to_version)
    name = delete_file_namer(context, view, intent)
    plan = plan_sync(
        change,
        live,
        shape.table,
        inspection.metrics,
        granularity=shape.granularity,
        name_delete_file=name,
    )
    announce = partial(announce_files, context, intent)
    store.record_intent(intent, {FileKind.DELETE_FILE: [task.output_path for task in plan.tasks]})
    try:
        with context.step("translate"):
            plan, results = _translate(context, shown.table, plan)
        leaving = files_to_leave(plan, results)
        serving = store.find_delete_files(record.id, leaving)
        still_serving = store.find_serving(record.id, [file.path for file in serving])
        rewrites = plan_rewrites(serving, still_serving, leaving, lambda number: name(len(plan.tasks) + number))
        completed = complete_plan(
            plan,
            results,
            snapshot_id=intent.id,
            serving=serving,
            still_serving=still_serving,
            rewritten=_rewrite_shared(context, shown.table, intent, rewrites),
        )
        outcome = outcome_of_change(record, change, completed)
        prepared = None
        # A newest snapshot that the new name mapping makes wrong needs a successor.
        if completed.is_empty and record.snapshot_id not in shape.definition.misread.snapshot_ids:
            check_account(account, before)
        else:
            with context.step("prepare"):
                prepared = prepare_snapshot(view, completed.delta, announce)
            check_account(account, account_of(prepared.manifests, account.size_bytes))
            outcome = placed(outcome, prepared)
            store.record_prepared(intent.id, outcome)
    except (SyncError, OSError) as error:
        abandon(context, shown.table, intent, error)
        raise
    # The intent of a commit that fails stays open: `end_intents` tells from the table what became of it.
    if prepared is None:
        stamp = marker_of(outcome).to_properties(shown.table.metadata.current_snapshot_id)
        table = context.target.define(shown.table, shape.definition, announce, stamp)
    else:
        marker = marker_of(outcome).to_summary(from_version=change.from_version, operation=change.operation)
        summary = {**marker, **account.to_summary()}
        with context.step("commit"):
            table = context.target.commit(shown.table, shape.definition, prepared, summary, announce)
    outcome = with_fields(outcome, metadata_location=table.metadata_location)
    with context.step("record"):
        store.record_synced(intent.id, outcome, at_ms=context.clock.now_ms())
    return Shown(remembered(record, outcome), table), result_of_change(
        change, completed, outcome, snapshots=1 if prepared else 0
    )


def _shape_after(context: TableContext, shown: Shown, change: TableChange) -> Shape:
    """The table's shape once `change` is shown.

    Raises `Unsupported` for what Iceberg cannot express, `CorruptInput` for what is not Delta's.
    """
    if change.protocol:
        check_protocol(change.protocol)
    if change.metadata is None:
        shape = shape_of(shown.table, context.settings)
        return remembering(shape, shown.table, change.protocol, None) if change.protocol else shape
    shape = shape_for(change.metadata, shown.table, context.settings)
    shape = remembering(shape, shown.table, change.protocol, change.metadata)
    what = f"column {', '.join(shape.table.replaced)}" if shape.table.replaced else ""
    if shape.table.spec_id != shown.table.metadata.default_spec_id:
        what = what or "the partitioning"
    # Counting reads every live file's row: only where the answer matters.
    staying = context.store.count(shown.record.id).live_data_files - len(change.removed) if what else 0
    if staying:
        raise Unsupported(
            f"{what} changed while {staying} older data files stay",
            version=change.to_version,
            hint="Iceberg widens int to long, float to double and the precision of decimals only: overwrite the older "
            "files on the Delta side, then `dvsync resync` the table.",
        )
    check_references(shape, context.settings)
    return shape


def _translate(context: TableContext, table: Table, plan: SyncPlan) -> tuple[SyncPlan, list[DeleteFileResult]]:
    """Write the delete files. Where an older deletion vector is gone or damaged, its file's deletions are written anew:
    Delta needs it no more, and VACUUM takes it."""
    write = partial(
        context.runner.write_delete_files,
        table_location=context.location,
        storage_properties=context.properties,
        target_properties=context.target_properties(table),
    )
    try:
        return plan, write(plan.tasks)
    except (ObjectMissing, CorruptInput):
        works = [work for task in plan.tasks for work in task.works]
        lost = {work.data_file for work in works if work.before and not _is_readable(context, work.before)}
        if not lost:
            raise
        plan = plan.without_before(lost)
        return plan, write(plan.tasks)


def _rewrite_shared(
    context: TableContext, table: Table, intent: Intent, rewrites: Sequence[Rewrite]
) -> list[tuple[Rewrite, DeleteFileResult]]:
    if rewrites:
        context.store.record_pending(intent.id, {FileKind.DELETE_FILE: [rewrite.output_path for rewrite in rewrites]})
    properties = context.target_properties(table)
    rewritten = [(rewrite, rewrite_delete_file(rewrite, properties)) for rewrite in rewrites]
    force_to_disk([result.path for _, result in rewritten])
    return rewritten


def _is_readable(context: TableContext, record: DeletionVectorRecord) -> bool:
    try:
        (positions,) = read_position_sets(context.storage, context.location, [descriptor_of(record)])
        for _ in new_positions(positions):
            pass
    except (ObjectMissing, CorruptInput):
        return False
    return True


def new_intent(context: TableContext, record: TableRecord, from_version: int | None, to_version: int) -> Intent:
    """An intent with a fresh snapshot id: positive, 63 bits, as the Iceberg spec asks."""
    return Intent(
        id=uuid4().int >> 65,
        table_id=record.id,
        from_version=from_version,
        to_version=to_version,
        created_at_ms=context.clock.now_ms(),
    )


def abandon(context: TableContext, table: Table, intent: Intent, error: Exception) -> None:
    """The intent came to nothing by `error`: the files that it has written become orphans, those that it has not are
    forgotten. A table that cannot go on for days would fill the state database with them.
    """
    unwritten: list[str] = []
    # Tasks of a Spark job that failed may be at work still.
    if not isinstance(error, PipelineAway):
        storage = FileIOStorage(context.target_properties(table))
        pending = context.store.list_written(intent.table_id, (FileStatus.PENDING,))
        paths = [file.path for file in pending if str(intent.id) in file.path]
        with suppress(SyncError), ThreadPoolExecutor(LOOKS_AT_ONCE, thread_name_prefix="abandon") as pool:
            exist = list(pool.map(storage.exists, paths))
            unwritten = [path for path, exists in zip(paths, exist, strict=True) if not exists]
    at_ms = context.clock.now_ms()
    context.store.record_abandoned(intent.id, OrphanReason.COMMIT_FAILED, at_ms=at_ms, unwritten=unwritten)


def delete_file_namer(context: TableContext, view: TableView, intent: Intent) -> Callable[[int], str]:
    """Names for the intent's delete files: unique, sortable, and known before anything is written."""
    folder = context.settings.delete_files_location

    def name(number: int) -> str:
        file_name = f"{intent.id}-{number:06d}-deletes.parquet"
        return f"{folder}/{file_name}" if folder else view.locations.new_data_location(file_name)

    return name


def announce_files(context: TableContext, intent: Intent, paths: Sequence[str]) -> None:
    """Write down the names of manifests, manifest lists and metadata files before the files exist."""
    by_kind: dict[FileKind, list[str]] = defaultdict(list)
    for path in paths:
        by_kind[metadata_kind(path)].append(path)
    context.store.record_pending(intent.id, by_kind)


def metadata_kind(path: str) -> FileKind:
    """The kind of a file of the metadata folder, by its name."""
    name = path.rsplit("/", 1)[1]
    if name.endswith(".metadata.json"):
        return FileKind.METADATA
    return FileKind.MANIFEST_LIST if name.startswith("snap-") else FileKind.MANIFEST
