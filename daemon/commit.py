"""One snapshot's work: `advance` folds commits, plans, translates, commits and records, in the order that makes every
crash repairable. `sync.py` decides what to advance by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from msgspec.structs import replace as with_fields
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from daemon.context import TableContext
from daemon.definition import Shape, check_references, remembering, shape_for, shape_of
from daemon.delta.actions import Commit
from daemon.delta.deletion_vector import new_positions, read_position_sets
from daemon.delta.protocol import check_protocol
from daemon.delta.replay import TableChange, fold_commits, join_operations, touched_paths
from daemon.durable import force_to_disk
from daemon.errors import CorruptInput, ObjectMissing, PipelineAway, SyncError, Unsupported
from daemon.iceberg.account import Account, account_of, check_account
from daemon.iceberg.marker import Marker
from daemon.iceberg.row_delta import PreparedSnapshot, TableView, prepare_snapshot
from daemon.iceberg.target import view_of
from daemon.pipeline.rewrite import rewrite_delete_file
from daemon.storage import FileIOStorage
from daemon.translate.partition_values import encode_partition
from daemon.translate.plan import (
    CommitPlan,
    DeleteFileResult,
    DeleteFileTask,
    Rewrite,
    SyncPlan,
    account_change,
    complete_plan,
    descriptor_of,
    files_to_leave,
    plan_rewrites,
    plan_sync,
    record_of,
)
from state import (
    DeleteFileRecord,
    DeletionVectorRecord,
    DvMapping,
    FileKind,
    FileStatus,
    Intent,
    LiveFile,
    OrphanReason,
    Outcome,
    TableRecord,
)

# Looks at whether a file is there wait on the store, not on the processor.
LOOKS_AT_ONCE = 16


@dataclass(frozen=True)
class SyncResult:
    """What one cycle did. `outcome`: waiting, unchanged, advanced, rebuilt. Versions are Delta's, inclusive.

    `more` says that the cycle stopped at a bound and the next one should start at once.
    """

    outcome: str
    from_version: int | None
    to_version: int | None
    snapshot_id: int | None = None
    metadata_location: str | None = None
    source_timestamp_ms: int | None = None
    operation: str | None = None
    snapshots: int = 0
    data_files_added: int = 0
    data_files_removed: int = 0
    delete_files_added: int = 0
    delete_files_removed: int = 0
    positions_added: int = 0
    more: bool = False

    def with_more(self, more: bool) -> SyncResult:
        return replace(self, more=more)

    def then(self, later: SyncResult) -> SyncResult:
        """Both results as one cycle's."""
        return replace(
            later,
            outcome=later.outcome if later.outcome != "unchanged" else self.outcome,
            from_version=self.from_version if self.from_version is not None else later.from_version,
            operation=join_operations((self.operation, later.operation)),
            snapshot_id=later.snapshot_id or self.snapshot_id,
            snapshots=self.snapshots + later.snapshots,
            data_files_added=self.data_files_added + later.data_files_added,
            data_files_removed=self.data_files_removed + later.data_files_removed,
            delete_files_added=self.delete_files_added + later.delete_files_added,
            delete_files_removed=self.delete_files_removed + later.delete_files_removed,
            positions_added=self.positions_added + later.positions_added,
        )


@dataclass(frozen=True)
class Shown:
    """The Iceberg table and what the state store remembers of it; the two agree."""

    record: TableRecord
    table: Table


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
        outcome = _outcome(record, change, completed)
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
    return Shown(remembered(record, outcome), table), _result(
        change, completed, outcome, snapshots=1 if prepared else 0
    )


def remembered_account(context: TableContext, record: TableRecord) -> Account:
    """What is remembered adds up to. Reads every live file's row."""
    counts = context.store.count(record.id)
    physical_rows = counts.live_rows + counts.deleted_positions
    return Account(counts.live_data_files, physical_rows, counts.deleted_positions, counts.live_bytes)


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


def marker_of(outcome: Outcome) -> Marker:
    return Marker(outcome.delta_table_id, outcome.to_version, outcome.source_timestamp_ms)


def _outcome(record: TableRecord, change: TableChange, completed: CommitPlan) -> Outcome:
    """What will be remembered; the manifests of added files are not known yet."""
    delta_table_id = change.metadata.id if change.metadata else record.delta_table_id
    assert delta_table_id is not None, "a table that is followed has been synced"
    return Outcome(
        table_id=record.id,
        delta_table_id=delta_table_id,
        from_version=record.synced_version,
        to_version=change.to_version,
        source_timestamp_ms=change.timestamp_ms,
        snapshot_id=record.snapshot_id,
        metadata_location=record.metadata_location,
        added_files=tuple(
            live_file(data_file, "", record_of(dv) if dv else None)
            for data_file in completed.delta.added_data_files
            for dv in (completed.added_files[data_file.file_path].deletion_vector,)
        ),
        changed_dvs=tuple(completed.changed_dvs.items()),
        removed_files=completed.removed_files,
        added_delete_files=delete_file_records(completed),
        removed_delete_files=tuple(completed.removed_delete_files.items()),
        unwritten_files=completed.unwritten_files,
    )


def live_file(data_file: DataFile, manifest_path: str, deletion_vector: DeletionVectorRecord | None) -> LiveFile:
    """What is remembered of an entry."""
    return LiveFile(
        path=data_file.file_path,
        record_count=data_file.record_count,
        size_bytes=data_file.file_size_in_bytes,
        spec_id=data_file.spec_id,
        manifest_path=manifest_path,
        deletion_vector=deletion_vector,
        partition=encode_partition(data_file.partition),
    )


def delete_file_records(completed: CommitPlan) -> tuple[DeleteFileRecord, ...]:
    """The written delete files with the deletion vectors that went into them."""
    records = [written_record(task, result) for task, result in completed.written]
    for rewrite, result in completed.rewritten:
        records.append(
            DeleteFileRecord(
                path=result.path,
                size_bytes=result.size_bytes or 0,
                positions=result.positions,
                spec_id=rewrite.old.spec_id,
                manifest_path="",
                mappings=tuple(mapping for mapping in rewrite.old.mappings if mapping.data_file in rewrite.kept),
            )
        )
    return tuple(records)


def written_record(task: DeleteFileTask, result: DeleteFileResult) -> DeleteFileRecord:
    """One written delete file; its manifest is not known yet."""
    dv_ids = {work.data_file: work.after.unique_id for work in task.works}
    return DeleteFileRecord(
        path=result.path,
        size_bytes=result.size_bytes or 0,
        positions=result.positions,
        spec_id=task.spec_id,
        manifest_path="",
        mappings=tuple(
            DvMapping(row.data_file, dv_ids[row.data_file], row.positions) for row in result.rows if row.positions
        ),
    )


def unchanged_outcome(record: TableRecord) -> Outcome:
    """What is remembered already: for a commit that shows no other version."""
    assert record.delta_table_id is not None, "a table that is followed has been synced"
    assert record.synced_version is not None and record.source_timestamp_ms is not None, "so has its version"
    return Outcome(
        table_id=record.id,
        delta_table_id=record.delta_table_id,
        from_version=record.synced_version,
        to_version=record.synced_version,
        source_timestamp_ms=record.source_timestamp_ms,
        snapshot_id=record.snapshot_id,
        metadata_location=record.metadata_location,
        must_compare=record.must_compare,
    )


def placed(outcome: Outcome, prepared: PreparedSnapshot) -> Outcome:
    """The outcome with the manifests that hold each added file."""
    place = prepared.placements
    return with_fields(
        outcome,
        snapshot_id=prepared.snapshot_id,
        added_files=tuple(with_fields(file, manifest_path=place[file.path]) for file in outcome.added_files),
        added_delete_files=tuple(
            with_fields(file, manifest_path=place[file.path]) for file in outcome.added_delete_files
        ),
        moved_manifests=tuple(prepared.moved_manifests.items()),
    )


def remembered(record: TableRecord, outcome: Outcome) -> TableRecord:
    """The table's row once `outcome` is recorded."""
    return with_fields(
        record,
        delta_table_id=outcome.delta_table_id,
        synced_version=outcome.to_version,
        source_timestamp_ms=outcome.source_timestamp_ms,
        snapshot_id=outcome.snapshot_id,
        metadata_location=outcome.metadata_location,
        must_compare=outcome.must_compare,
    )


def _result(change: TableChange, completed: CommitPlan, outcome: Outcome, *, snapshots: int) -> SyncResult:
    return SyncResult(
        outcome="advanced",
        from_version=change.from_version,
        to_version=change.to_version,
        snapshot_id=outcome.snapshot_id,
        metadata_location=outcome.metadata_location,
        source_timestamp_ms=outcome.source_timestamp_ms,
        operation=change.operation,
        snapshots=snapshots,
        data_files_added=len(change.added),
        data_files_removed=len(change.removed),
        delete_files_added=len(completed.written),
        delete_files_removed=len(completed.removed_delete_files),
        positions_added=sum(result.positions for _, result in completed.written),
    )
