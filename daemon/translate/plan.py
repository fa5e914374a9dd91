"""Plans one Iceberg snapshot from a TableChange: the positions to write, then the entries to add and remove. Pure.

The plan aims at the state that the new deletion vectors describe. Planning a version twice gives the same table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from msgspec.structs import replace as with_fields

from daemon.delta.actions import AddFile
from daemon.delta.replay import TableChange
from daemon.iceberg.account import NOTHING, Account
from daemon.iceberg.position_deletes import PositionDeleteFile
from daemon.iceberg.row_delta import RowDelta
from daemon.translate.data_files import data_file_of, partition_of
from daemon.translate.delete_files import (
    UNKNOWN_DV,
    DeleteFile,
    DeleteFileResult,
    DeleteFileTask,
    DvChange,
    Rewrite,
    delete_file_entries,
    delete_file_entry,
)
from daemon.translate.metrics import Metrics
from daemon.translate.partition_values import decode_partition
from daemon.translate.schema import TableSchema
from state import DeleteFileRecord, DeletionVectorDescriptor, LiveFile, OrphanReason

Key = TypeVar("Key", bound=Hashable)

# With `write.delete.granularity=partition`, at most this many data files share a delete file.
DATA_FILES_PER_DELETE_FILE_MAX = 1000


@dataclass(frozen=True)
class SyncPlan:
    """A change with the live files that it touches, and the delete files to write for it."""

    change: TableChange
    live: Mapping[str, LiveFile]
    table: TableSchema
    tasks: tuple[DeleteFileTask, ...]
    metrics: Mapping[str, Metrics]

    def without_before(self, data_files: Set[str]) -> SyncPlan:
        """Return the plan without the lost older deletion vectors of these files: all deletions are written."""
        return replace(
            self,
            live={
                path: with_fields(file, deletion_vector=UNKNOWN_DV) if path in data_files else file
                for path, file in self.live.items()
            },
            tasks=tuple(
                replace(
                    task,
                    changes=tuple(
                        replace(each, before=None) if each.data_file in data_files else each for each in task.changes
                    ),
                )
                for task in self.tasks
            ),
        )


def plan_sync(
    change: TableChange,
    live: Mapping[str, LiveFile],
    table: TableSchema,
    metrics: Mapping[str, Metrics],
    *,
    granularity: str,
    name_delete_file: Callable[[int], str],
) -> SyncPlan:
    """Plan the delete files to write.

    `live` holds the files of `change` that Iceberg shows now, `metrics` the metrics of the files that it adds.
    `granularity` is `file` or `partition`; `name_delete_file` returns the path of the nth delete file.
    """
    return SyncPlan(
        change=change,
        live=live,
        table=table,
        tasks=tuple(
            DeleteFileTask(name_delete_file(number), spec_id, changes)
            for number, (spec_id, changes) in enumerate(_grouped(change, live, table, metrics, granularity))
        ),
        metrics=metrics,
    )


def _grouped(
    change: TableChange,
    live: Mapping[str, LiveFile],
    table: TableSchema,
    metrics: Mapping[str, Metrics],
    granularity: str,
) -> Iterator[tuple[int, tuple[DvChange, ...]]]:
    """Yield the changes of each delete file, with the spec that they share. They also share the partition."""
    groups: dict[tuple[int, str], list[DvChange]] = defaultdict(list)
    for spec_id, dv_change in dv_changes(change, live, table, metrics):
        # Compare by repr, because NaN is not equal to itself. A group may be split, but must not mix partitions.
        group = dv_change.data_file if granularity == "file" else repr(dv_change.partition)
        groups[spec_id, group].append(dv_change)
    for (spec_id, _), members in groups.items():
        for start in range(0, len(members), DATA_FILES_PER_DELETE_FILE_MAX):
            yield spec_id, tuple(members[start : start + DATA_FILES_PER_DELETE_FILE_MAX])


def dv_changes(
    change: TableChange, live: Mapping[str, LiveFile], table: TableSchema, metrics: Mapping[str, Metrics]
) -> Iterator[tuple[int, DvChange]]:
    """Yield each data file that has a deletion vector after `change`, with its spec id, sorted by path."""
    for path, add in sorted({**change.added, **change.dv_changed}.items()):
        if add.deletion_vector is None:
            continue
        known = live.get(path) if path not in change.added else None
        spec_id, partition = place_of(add, table, known)
        yield (
            spec_id,
            DvChange(
                data_file=path,
                record_count=known.record_count if known else metrics[path].record_count,
                before=known.deletion_vector if known and not is_unknown(known) else None,
                after=add.deletion_vector,
                partition=partition,
            ),
        )


def place_of(add: AddFile, table: TableSchema, known: LiveFile | None) -> tuple[int, tuple[Any, ...]]:
    """Return spec id and partition of a data file: those of its live entry, or for a new file those of its add.

    A delete file must have the spec and partition of its data files (Iceberg spec, "Scan Planning").
    """
    if known is None:
        return table.spec_id, partition_of(add, table, table.spec_id)
    return known.spec_id, decode_partition(known.partition, table, known.spec_id)


@dataclass(frozen=True)
class CommitPlan:
    """The snapshot to commit, and what to record of it. The manifest paths are not known yet."""

    delta: RowDelta
    added_files: Mapping[str, AddFile]
    changed_dvs: Mapping[str, DeletionVectorDescriptor | None]
    removed_files: tuple[str, ...]
    written: tuple[tuple[DeleteFileTask, DeleteFile], ...]
    unwritten_files: tuple[str, ...]
    removed_delete_files: Mapping[str, OrphanReason]
    new_positions: int
    rewritten: tuple[tuple[Rewrite, PositionDeleteFile], ...] = ()
    # Deletion vectors that leave a Puffin file which stays: the paths of the delete file and of the data file.
    dead_vectors: tuple[tuple[str, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the plan adds and removes no entry. Such a version makes no snapshot."""
        return not (self.added_files or self.removed_files or self.written or self.delta.removed_delete_files)


def plan_rewrites(
    serving: Sequence[DeleteFileRecord],
    still_serving: Mapping[str, set[str]],
    leaving: Set[str],
    name_delete_file: Callable[[int], str],
) -> tuple[Rewrite, ...]:
    """Plan to write shared delete files again, without the data files that leave (see `Rewrite`).

    `serving` are the delete files of the data files that leave, `still_serving` the live data files of each of them.
    For example, `leaving` is {A}, and delete file d1 serves {A, B}, d2 only {A}: d1 is rewritten for {B}, d2 is not.
    """
    shared = [(file, still_serving[file.path] - leaving) for file in serving]
    return tuple(
        Rewrite(file, name_delete_file(number), frozenset(kept))
        for number, (file, kept) in enumerate(entry for entry in shared if entry[1])
    )


def files_to_leave(plan: SyncPlan, results: Sequence[DeleteFileResult]) -> set[str]:
    """Return the live data files whose entries are removed: removed files, and restored ones.

    A restored file is one of which deleted rows came back. Its entry is removed and added again: older delete files do
    not apply to the new data sequence number.
    """
    return set(plan.change.removed) | restored_files(plan, results)


def restored_files(plan: SyncPlan, results: Sequence[DeleteFileResult]) -> set[str]:
    """Return the live data files of which deleted rows came back, or may have: the former vector may be unknown."""
    without_dv = {path for path, add in plan.change.dv_changed.items() if add.deletion_vector is None}
    unknown = {path for path in plan.change.dv_changed if is_unknown(plan.live[path])}
    return without_dv | unknown | {path for result in results for path in result.restored}


def is_unknown(file: LiveFile) -> bool:
    return file.deletion_vector == UNKNOWN_DV


def complete_plan(
    plan: SyncPlan,
    results: Sequence[DeleteFileResult],
    *,
    snapshot_id: int,
    serving: Sequence[DeleteFileRecord],
    still_serving: Mapping[str, set[str]],
    rewritten: Sequence[tuple[Rewrite, PositionDeleteFile]] = (),
) -> CommitPlan:
    """Decide every entry of the snapshot once the delete files are written. `results` belong to the plan's tasks.

    The plan has the metrics of `restored_files`, too. `serving` are the live delete files of `files_to_leave`,
    `still_serving` the live data files that each of them serves, `rewritten` the written files of `plan_rewrites`.

    For example, delete file d1 holds {0, 1} of data file A and {5} of B.

    - The deletion vector of A grows to {0, 1, 2}: a new delete file with {2} is added, nothing else changes.
    - It shrinks to {0}: A is restored. The snapshot removes A and d1; it adds A again, a delete file with {0} of A, and
      a rewrite of d1 with {5} of B.
    - A is removed: the snapshot removes A and d1, and adds the rewrite of d1.
    """
    leaving = files_to_leave(plan, results)
    restored = restored_files(plan, results)
    added = {**plan.change.added, **{path: plan.change.dv_changed[path] for path in restored}}
    files = [(task, result.file) for task, result in zip(plan.tasks, results, strict=True)]
    written = tuple((task, file) for task, file in files if file)
    new_positions = sum(file.positions for _, file in written)
    gone = {
        delete_file.path: (
            OrphanReason.DATA_FILES_GONE
            if still_serving[delete_file.path] & plan.change.removed
            else OrphanReason.DV_SHRUNK
        )
        for delete_file in serving
    }
    delta = RowDelta(
        snapshot_id=snapshot_id,
        added_data_files=[
            data_file_of(
                add,
                plan.metrics[path],
                plan.table,
                *place_of(add, plan.table, plan.live[path] if path in restored else None),
            )
            for path, add in sorted(added.items())
        ],
        removed_data_files=by_manifest((plan.live[path].manifest_path, path) for path in leaving),
        added_delete_files=[entry for task, file in written for entry in delete_file_entries(task, file)],
        removed_delete_files=by_manifest((file.manifest_path, file.path) for file in serving),
        replacements=[(rewrite.old.path, delete_file_entry(file, rewrite.old.spec_id)) for rewrite, file in rewritten],
        same_rows=moves_rows_only(plan, positions=new_positions),
    )
    return CommitPlan(
        delta=delta,
        added_files=added,
        changed_dvs={
            path: add.deletion_vector
            for path, add in plan.change.dv_changed.items()
            if path not in restored and add.deletion_vector
        },
        # A restored file is also in `added_files`: the record of its old deletions goes, the file itself stays live.
        removed_files=tuple(sorted(leaving)),
        written=written,
        unwritten_files=tuple(task.output_path for task, file in files if not file),
        removed_delete_files=gone,
        new_positions=new_positions,
        rewritten=tuple(rewritten),
    )


def by_manifest(placed: Iterable[tuple[str, Key]]) -> dict[str, set[Key]]:
    """Group entries by manifest. Each pair is a manifest's path and an entry in it."""
    groups: dict[str, set[Key]] = defaultdict(set)
    for manifest_path, key in placed:
        groups[manifest_path].add(key)
    return groups


def moves_rows_only(plan: SyncPlan, *, positions: int) -> bool:
    """Return whether Delta says that no data changed, and the numbers of rows agree (operation `replace`)."""
    change = plan.change
    if change.data_change or change.dv_changed or positions:
        return False
    added = sum(plan.metrics[path].record_count for path in change.added)
    removed = sum(_account_of(plan.live[path]).live_rows for path in change.removed)
    return added == removed


def account_change(change: TableChange, live: Mapping[str, LiveFile], metrics: Mapping[str, Metrics]) -> Account:
    """Return what `change` adds to the table's account, by Delta's actions alone."""
    account = NOTHING
    for path, add in {**change.added, **change.dv_changed}.items():
        rows = metrics[path].record_count if path in change.added else live[path].record_count
        account += Account(1, rows, add.deletion_vector.cardinality if add.deletion_vector else 0, add.size)
    for path in {*change.removed, *change.dv_changed}:
        account -= _account_of(live[path])
    return account


def _account_of(file: LiveFile) -> Account:
    deleted_rows = file.deletion_vector.cardinality if file.deletion_vector else 0
    return Account(1, file.record_count, deleted_rows, file.size_bytes)
