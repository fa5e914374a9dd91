"""The plan of one Iceberg snapshot, before and after `planner.py` decides its entries; sums of a change. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from msgspec.structs import replace as with_fields

from daemon.delta.actions import AddFile
from daemon.delta.replay import TableChange
from daemon.iceberg.account import NOTHING, Account
from daemon.iceberg.position_deletes import PositionDeleteFile
from daemon.iceberg.row_delta import RowDelta
from daemon.translate.delete_files import UNKNOWN_DV, DeleteFile, DeleteFileResult, DeleteFileTask, DvChange, Rewrite
from daemon.translate.metrics import Metrics
from daemon.translate.partition_values import decode_partition, partition_of
from daemon.translate.schema import TableSchema
from state import DeleteFileRecord, DeletionVectorDescriptor, LiveFile, OrphanReason

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class SyncPlan:
    """A change of the table, and the delete files to write for it.

    `live` holds the files of `change` that Iceberg shows now, `metrics` the metrics of the files that it adds. Later
    come the `results` of `tasks`, and `older`: the live delete files that hold positions of the change's data files.
    """

    change: TableChange
    live: Mapping[str, LiveFile]
    table: TableSchema
    metrics: Mapping[str, Metrics]
    tasks: Sequence[DeleteFileTask] = ()
    results: Sequence[DeleteFileResult] = ()
    older: Sequence[DeleteFileRecord] = ()

    @property
    def restored(self) -> set[str]:
        """The live data files of which deleted rows came back, or may have: the former vector may be unknown."""
        changed = self.change.dv_changed
        without_dv = {path for path, add in changed.items() if add.deletion_vector is None}
        unknown = {path for path in changed if is_unknown(self.live[path])}
        return without_dv | unknown | {path for result in self.results for path in result.restored}

    def place_of(self, add: AddFile) -> tuple[int, tuple[Any, ...]]:
        """Return spec id and partition of a data file: those of its live entry, or for a new file those of its add."""
        # A delete file must have the spec and partition of its data files (Iceberg spec, "Scan Planning").
        known = self._known(add.path)
        if known is None:
            return self.table.spec_id, partition_of(add, self.table, self.table.spec_id)
        return known.spec_id, decode_partition(known.partition, self.table, known.spec_id)

    def dv_changes(self) -> Iterator[tuple[int, DvChange]]:
        """Yield each data file that has a deletion vector after the change, with its spec id, sorted by path."""
        for path, add in sorted({**self.change.added, **self.change.dv_changed}.items()):
            if add.deletion_vector is None:
                continue
            known = self._known(path)
            spec_id, partition = self.place_of(add)
            record_count = known.record_count if known else self.metrics[path].record_count
            before = known.deletion_vector if known and not is_unknown(known) else None
            yield spec_id, DvChange(path, record_count, before, add.deletion_vector, partition)

    def _known(self, path: str) -> LiveFile | None:
        return None if path in self.change.added else self.live.get(path)

    def without_before(self, data_files: Set[str]) -> SyncPlan:
        """Return the plan without the lost older deletion vectors of these files: all deletions are written."""
        known = data_files & self.live.keys()
        live = {path: with_fields(self.live[path], deletion_vector=UNKNOWN_DV) for path in known}
        tasks = []
        for task in self.tasks:
            changes = (replace(each, before=None) if each.data_file in data_files else each for each in task.changes)
            tasks.append(replace(task, changes=tuple(changes)))
        return replace(self, live={**self.live, **live}, tasks=tasks)


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


def is_unknown(file: LiveFile) -> bool:
    return file.deletion_vector == UNKNOWN_DV


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
