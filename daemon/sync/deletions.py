"""Writes the delete files of a change: position-delete files in format version 2, Puffin files in version 3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from daemon.delta.deletion_vector import read_position_sets
from daemon.delta.position_set import new_positions
from daemon.delta.replay import TableChange
from daemon.durable import force_to_disk
from daemon.errors import CorruptInput, ObjectMissing
from daemon.pipeline.rewrite import rewrite_delete_file
from daemon.sync.context import TableContext
from daemon.sync.transaction import Transaction
from daemon.translate.definition import Shape
from daemon.translate.delete_files import DeleteFileResult, is_puffin
from daemon.translate.metrics import Metrics
from daemon.translate.plan import (
    CommitPlan,
    SyncPlan,
    complete_plan,
    files_to_leave,
    plan_rewrites,
    plan_sync,
    restored_files,
)
from daemon.translate.vector_plan import (
    Holders,
    complete_vectors,
    copies,
    files_to_replace,
    leaving,
    plan_vectors,
    puffin_tasks,
)
from state import DeleteFileRecord, DeletionVectorDescriptor, FileKind, FileLedger, LiveFile, TableRecord


@dataclass(frozen=True)
class Change:
    """A change of the table, the live files that it touches, and the metrics of the files that it adds."""

    change: TableChange
    live: Mapping[str, LiveFile]
    metrics: Mapping[str, Metrics]


def write_positions(
    context: TableContext, transaction: Transaction, record: TableRecord, shape: Shape, of: Change
) -> CommitPlan:
    """Begin `transaction` with the position-delete files of the new deletions, and plan the snapshot.

    Older delete files that the change concerns only in part are rewritten.
    """
    plan = plan_sync(
        of.change,
        of.live,
        shape.table,
        of.metrics,
        granularity=shape.granularity,
        name_delete_file=transaction.name_delete_file,
    )
    plan, results = _begin(context, transaction, plan)
    store = context.store
    gone = files_to_leave(plan, results)
    serving = store.find_delete_files(record.id, gone)
    still_serving = store.find_served(record.id, [file.path for file in serving])
    rewrites = plan_rewrites(
        serving, still_serving, gone, lambda number: transaction.name_delete_file(len(plan.tasks) + number)
    )
    transaction.announce([rewrite.output_path for rewrite in rewrites])
    rewritten = [(rewrite, rewrite_delete_file(rewrite, transaction.target_properties)) for rewrite in rewrites]
    force_to_disk([file.path for _, file in rewritten])
    return complete_plan(
        plan,
        results,
        snapshot_id=transaction.id,
        serving=serving,
        still_serving=still_serving,
        rewritten=rewritten,
    )


def write_vectors(
    context: TableContext, transaction: Transaction, record: TableRecord, shape: Shape, of: Change
) -> CommitPlan:
    """Begin `transaction` with the Puffin files of the changed deletion vectors, and plan the snapshot.

    If older delete files must not stay, the vectors of the other data files in them are copied too.
    """
    store, change = context.store, of.change
    holders = Holders(
        # A position-delete file is replaced as a whole by vectors, which no other one may stay beside.
        find_sharing(store, record.id, leaving(change), joins=lambda file: not is_puffin(file.path)),
        store.find_former(record.id, {*change.added, *change.dv_changed}),
    )
    plan = plan_vectors(change, of.live, shape.table, of.metrics, name_delete_file=transaction.name_delete_file)
    plan, results = _begin(context, transaction, plan)
    replaced, others = files_to_replace(plan, results, holders)
    changes = copies(store.find_live_files(record.id, others), shape.table)
    tasks = list(puffin_tasks(changes, lambda number: transaction.name_delete_file(len(plan.tasks) + number)))
    transaction.announce([task.output_path for task in tasks])
    with context.step("translate"):
        copied = list(zip(tasks, transaction.write_delete_files(tasks), strict=True))
    return complete_vectors(
        plan, results, snapshot_id=transaction.id, holders=holders, replaced=replaced, copied=copied
    )


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
                paths |= {mapping.data_file for mapping in file.mappings}
    return list(found.values())


def _begin(context: TableContext, transaction: Transaction, plan: SyncPlan) -> tuple[SyncPlan, list[DeleteFileResult]]:
    """Begin the transaction, write the delete files of `plan`, and inspect the data files of which rows come back.

    An inspection is right for live rows only: their statistics say nothing of what was deleted when a file came.
    """
    transaction.begin({FileKind.DELETE_FILE: [task.output_path for task in plan.tasks]})
    with context.step("translate"):
        plan, results = _write(context, transaction, plan)
    restored = [plan.change.dv_changed[path] for path in sorted(restored_files(plan, results))]
    if not restored:
        return plan, results
    with context.step("inspect"):
        inspection = context.runner.inspect_data_files(restored, plan.table, context.storage, context.properties)
    return replace(plan, metrics={**plan.metrics, **inspection.metrics}), results


def _write(context: TableContext, transaction: Transaction, plan: SyncPlan) -> tuple[SyncPlan, list[DeleteFileResult]]:
    """Write the delete files of `plan`.

    If an older deletion vector is gone or damaged, all deletions of its data file are written anew. This is normal:
    Delta no longer needs the older vector, and VACUUM removes it.
    """
    try:
        return plan, transaction.write_delete_files(plan.tasks)
    except (ObjectMissing, CorruptInput):
        changes = [each for task in plan.tasks for each in task.changes]
        lost = {each.data_file for each in changes if each.before and not _is_readable(context, each.before)}
        if not lost:
            raise
        plan = plan.without_before(lost)
        return plan, transaction.write_delete_files(plan.tasks)


def _is_readable(context: TableContext, descriptor: DeletionVectorDescriptor) -> bool:
    try:
        (positions,) = read_position_sets(context.storage, context.location, [descriptor])
        for _ in new_positions(positions):
            pass
    except (ObjectMissing, CorruptInput):
        return False
    return True
