"""Writes the delete files of a change: position-delete files in format version 2, Puffin files in version 3."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace

from daemon.delta.deletion_vector import read_position_sets
from daemon.delta.position_set import new_positions
from daemon.errors import CorruptInput, ObjectMissing
from daemon.pipeline.kernel import rewrite_delete_file
from daemon.store.durable import force_to_disk
from daemon.sync.context import TableContext
from daemon.sync.transaction import Transaction
from daemon.translate.plan import CommitPlan, SyncPlan
from daemon.translate.planner import Planner
from state import DeleteFileRecord, DeletionVectorDescriptor, FileKind, TableRecord
from state.sql.ledger import FileLedger


def write_deletions(
    context: TableContext, transaction: Transaction, record: TableRecord, deletes: Planner, plan: SyncPlan
) -> CommitPlan:
    """Begin `transaction` with the delete files of the new deletions, and complete the plan of the snapshot.

    If older delete files must not stay, the deletions of the other data files in them are written again.
    """
    store, names = context.store, transaction.delete_file_names(deletes.suffix)
    plan = _begin(context, transaction, replace(plan, tasks=deletes.tasks(plan.dv_changes(), names)))
    returning = deletes.returning(plan.change)
    older = (
        # A delete file of a former format version is replaced as a whole, and no other such file may stay beside.
        *find_sharing(store, record.id, deletes.leaving(plan), joins=lambda file: deletes.is_former(file.path)),
        *(store.find_delete_files(record.id, returning, dead=True) if returning else ()),
    )
    plan = replace(plan, older=list({file.path: file for file in older}.values()))
    to_copy = deletes.to_copy(plan)
    live = store.find_live_files(record.id, to_copy) if to_copy else {}
    repair = deletes.repair(plan, live, names)
    transaction.announce(repair.paths)
    with context.step("translate") if repair.paths else nullcontext():
        rewritten = [(each, rewrite_delete_file(each, transaction.target_properties)) for each in repair.rewrites]
        force_to_disk([file.path for _, file in rewritten])
        copied = list(zip(repair.copies, transaction.write_delete_files(repair.copies), strict=True))
    return deletes.complete(plan, snapshot_id=transaction.id, rewritten=rewritten, copied=copied)


def find_sharing(
    store: FileLedger, table_id: int, data_files: Iterable[str], *, joins: Callable[[DeleteFileRecord], bool]
) -> list[DeleteFileRecord]:
    """Find the delete files of `data_files`, and those of all data files that share one that `joins` with them.

    For example, if delete file d1 applies to a and b, and d2 to b and c, then both are found for a.
    """
    found: dict[str, DeleteFileRecord] = {}
    paths, asked = {*data_files}, set[str]()
    while more := paths - asked:
        asked |= more
        for file in store.find_delete_files(table_id, sorted(more)):
            found[file.path] = file
            if joins(file):
                paths |= file.served
    return list(found.values())


def _begin(context: TableContext, transaction: Transaction, plan: SyncPlan) -> SyncPlan:
    """Begin the transaction, write the delete files of `plan`, and inspect the data files of which rows come back:
    their former statistics say nothing of what was deleted when they came.
    """
    transaction.begin({FileKind.DELETE_FILE: [task.output_path for task in plan.tasks]})
    with context.step("translate"):
        try:
            results = transaction.write_delete_files(plan.tasks)
        except (ObjectMissing, CorruptInput):
            # An older deletion vector that VACUUM has removed: all deletions of its data file are rewritten.
            changes = [each for task in plan.tasks for each in task.changes]
            lost = {each.data_file for each in changes if each.before and not _is_readable(context, each.before)}
            if not lost:
                raise
            plan = plan.without_before(lost)
            results = transaction.write_delete_files(plan.tasks)
    plan = replace(plan, results=results)
    restored = [plan.change.dv_changed[path] for path in sorted(plan.restored)]
    if not restored:
        return plan
    with context.step("inspect"):
        inspection = context.runner.inspect_data_files(restored, plan.table, transaction.data_files)
    return replace(plan, metrics={**plan.metrics, **inspection.metrics})


def _is_readable(context: TableContext, descriptor: DeletionVectorDescriptor) -> bool:
    try:
        (positions,) = read_position_sets(context.storage, context.location, [descriptor])
        deque(new_positions(positions), maxlen=0)
    except (ObjectMissing, CorruptInput):
        return False
    return True
