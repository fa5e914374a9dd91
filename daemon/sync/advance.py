"""One snapshot's work: `advance` folds commits, plans, translates and shows them in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import pyarrow.compute as pc
from msgspec.structs import replace as with_fields
from pyiceberg.manifest import ManifestContent

from daemon.delta.actions import Commit, Totals
from daemon.delta.replay import TableChange, fold_commits, touched_paths
from daemon.errors import CorruptInput, ObjectMissing, ResyncNeeded, StateMismatch, SyncError, Unsupported
from daemon.iceberg.account import check_account, find_account
from daemon.iceberg.marker import shown_by
from daemon.iceberg.references import live_entries
from daemon.iceberg.schema_changes import layout_of
from daemon.observe import tracing
from daemon.sync.comparison import int64s
from daemon.sync.context import TableContext
from daemon.sync.deletions import write_deletions
from daemon.sync.mirrors import (
    MirrorMaker,
    check_live_files,
    find_shown_mirrors,
    inspect_added,
    planner_for,
    surplus_bytes,
)
from daemon.sync.notices import notify_schema_change, publish
from daemon.sync.outcomes import Shown, SyncOutcome, SyncResult, outcome_of_change, remembered_account
from daemon.sync.proof import Checksums, check_state
from daemon.sync.transaction import Transaction
from daemon.translate.definition import Shape, next_shape, shape_of
from daemon.translate.file_schema import FileTraits, may_reach_files
from daemon.translate.plan import SyncPlan, account_change
from daemon.translate.schema import TableSchema


def advance(
    context: TableContext,
    checksums: Checksums,
    shown: Shown,
    commits: Sequence[Commit],
    state_totals: Totals | None = None,
) -> tuple[Shown, SyncResult]:
    """Show `commits` (consecutive, read and validated) in one Iceberg snapshot, or none if they change no rows.

    They are from the log, or made by a comparison with a Delta state of these totals. Before anything is written, the
    account after them is checked against the totals or the version's checksum file. Raises `StateMismatch` if the state
    store's live files cannot be Delta's. After a failure the Iceberg table is unchanged, or the error is
    `CommitOutcomeUnknown`; the state store knows the files that were written, as orphans or by an open intent.
    """
    record, layout, started_ms = shown.record, layout_of(shown.table), context.clock.now_ms()
    before = find_account(shown.table.current_snapshot()) if state_totals is None else None
    before = before or remembered_account(context, record)
    with _placed_errors(context, commits, from_log=state_totals is None), tracing.step("snapshot") as span:
        # Those of a comparison name mirrors already.
        in_log = touched_paths(commits) if state_totals is None else ()
        mirrors = find_shown_mirrors(context, shown, in_log)
        commits = mirrors.applied_to_commits(commits, record.delta_table_id)
        live = context.store.find_live_files(record.id, touched_paths(commits))
        change = fold_commits(commits, {path: (file.uri, file.dv_unique_id) for path, file in live.items()})
        _check_in_step(context, shown, commits, live)
        shape, change = _shape_after(context, shown, change)
        if others := change.removed - live.keys():
            live |= context.store.find_live_files(record.id, others)
        first, last = change.from_version, change.to_version
        with Transaction(
            context, shown, shape.definition, from_version=first, to_version=last, step=context.step
        ) as transaction:
            planner = planner_for(context, shown, shape.table, change.metadata)
            maker = MirrorMaker(context, transaction, record.id, planner)
            with context.step("inspect"):
                change, inspection, made = inspect_added(maker, change, mirrors)
            account = before + account_change(change, live, inspection.metrics)
            in_delta = replace(account, size_bytes=account.size_bytes - surplus_bytes(context, shown, change, made))
            if state_totals is None:
                checksums.check(change.to_version, in_delta)
            else:
                check_state(state_totals, in_delta)
            shape = shape.with_files(inspection.traits)
            # What was found in the files is part of the definition.
            transaction.move_to(shown, shape.definition)
            plan = SyncPlan(change, live, shape.table, inspection.metrics)
            completed = write_deletions(context, transaction, record, shape.deletes, plan)
            recent_commits = tuple(each for commit in commits for each in commit.recent_commits)
            outcome = with_fields(outcome_of_change(record, change, completed), recent_commits=recent_commits)
            # If readers would misread the newest snapshot with the new name mapping, it needs a successor. So does one
            # of somebody else, which names no version.
            is_misread = record.snapshot_id in shape.definition.misread.snapshot_ids
            makes_snapshot = not completed.is_empty or is_misread or shown_by(shown.table) is None
            if makes_snapshot:
                shown = transaction.show(completed.delta, account, outcome, operation=change.operation)
            else:
                check_account(account, before)
                shown = transaction.define(outcome)
        result = SyncResult(
            outcome=SyncOutcome.ADVANCED,
            from_version=first,
            to_version=last,
            snapshot_id=shown.record.snapshot_id,
            operation=change.operation,
            snapshots=int(makes_snapshot),
            data_files_added=len(change.added),
            data_files_removed=len(change.removed),
            delete_files_added=len(completed.written),
            delete_files_removed=len(completed.removed_delete_files),
            positions_added=completed.new_positions,
        )
        span.report(result.figures())
    publish(context, shown, result, started_ms)
    if change.metadata:
        notify_schema_change(context, layout, shown)
    return shown, result


@contextmanager
def _placed_errors(context: TableContext, commits: Sequence[Commit], *, from_log: bool) -> Iterator[None]:
    """Name the version in errors; a file of a commit of the log that is gone is `ResyncNeeded` if others follow."""
    version = commits[-1].version
    try:
        yield
    except SyncError as error:
        is_gone = isinstance(error, ObjectMissing) and from_log and len(commits) == 1
        if is_gone and context.log.has_version(version + 1):
            raise ResyncNeeded(
                f"version {version} can no longer be read ({error.message}), and newer versions exist",
                version=version,
                path=error.path,
                hint="VACUUM removed files before dvsync read them.",
            ) from error
        # If the error names no file, the refused contents are in the commit file itself.
        path = context.log.commit_path(version) if isinstance(error, Unsupported | CorruptInput) else None
        raise error.located(version=version, path=path) from error.__cause__


def _check_in_step(context: TableContext, shown: Shown, commits: Sequence[Commit], live: Iterable[str]) -> None:
    """Raise `StateMismatch` if a file is removed that is not `live`, and Iceberg shows files that are not in the store.

    Such a remove is without effect, as in Delta, unless the state store is wrong. So all data manifests are read, once
    in a process: each of its commits changes the state store, too.
    """
    snapshot, version, present = shown.table.current_snapshot(), commits[-1].version, set(live)
    removes_unknown = False
    for commit in commits:
        removes_unknown |= not present.issuperset(remove.path for remove in commit.removes)
        present.update(add.path for add in commit.adds)
    if not removes_unknown or context.in_step.is_set() or snapshot is None:
        return
    entries = live_entries(shown.table, snapshot, ManifestContent.DATA)
    in_iceberg = int64s(hash(entry.data_file.file_path) for entry, _ in entries)
    known = int64s(hash(file.path) for file in context.store.read_live_files(shown.record.id))
    if pc.any(pc.invert(pc.is_in(in_iceberg, value_set=known))).as_py():
        raise StateMismatch(
            f"version {version} removes files that the state store does not know, and Iceberg shows such files",
            version=version,
            hint="dvsync rebuilds its state from the Iceberg table and compares it with Delta's newest state.",
        )
    context.in_step.set()


def _shape_after(context: TableContext, shown: Shown, change: TableChange) -> tuple[Shape, TableChange]:
    """Return the table's shape after `change`. If it may read live files otherwise, these are checked, and those that
    need other mirrors for it are in the change.
    """

    @cache  # It reads every live file's row.
    def count_staying() -> int:
        return context.store.count(shown.record.id).live_data_files - len(change.removed)

    shape = next_shape(shown.table, context.settings, change, count_staying=count_staying)
    if change.metadata:
        before = shape_of(shown.table, context.settings).table
        if may_reach_files(before, shape.table):
            traits = FileTraits()
            if count_staying():
                traits, change = _check_live_files(context, shown, shape.table, change)
            shape = shape.with_files(traits, are_all=True)
    return shape, change


def _check_live_files(
    context: TableContext, shown: Shown, table: TableSchema, change: TableChange
) -> tuple[FileTraits, TableChange]:
    """Check the live files as a first sync does: the schema has changed since they were added.

    The state store has no statistics and only parsed partition values, so Delta's log is asked. The file that the
    table's last error names is checked first: while it is live, a table that was refused opens no other file again.
    """
    last_error, last_refused = shown.record.error, None
    if last_error and last_error.kind == Unsupported.__name__ and "[file " in last_error.message:
        last_refused = last_error.message.rpartition("[file ")[2].removesuffix("]")
    planner = planner_for(context, shown, table, change.metadata)
    with context.step("inspect"):
        return check_live_files(context, shown, planner, change, last_refused)
