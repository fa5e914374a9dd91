"""Decides the entries of a snapshot: of data files, and of position deletes (format version 2) or deletion vectors (3).

Pure. A table has one planner, which its format version chooses. It aims at the state that the new deletion vectors
describe, so planning a version twice gives the same table. `daemon/sync/deletions.py` has the order of the calls, and
reads and writes what is in between.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar

from pyiceberg.manifest import DataFile

from daemon.delta.actions import AddFile
from daemon.delta.replay import TableChange
from daemon.errors import ReplacementNeeded
from daemon.iceberg.manifests import EntryKey
from daemon.iceberg.position_deletes import PositionDeleteFile
from daemon.iceberg.puffin import SUFFIX
from daemon.iceberg.row_delta import RowDelta
from daemon.translate.delete_files import (
    DeleteFileResult,
    DeleteFileTask,
    DvChange,
    Rewrite,
    delete_file_entries,
    delete_file_entry,
    divided,
    is_puffin,
)
from daemon.translate.metrics import data_file_of
from daemon.translate.partition_values import decode_partition
from daemon.translate.plan import CommitPlan, SyncPlan, by_manifest, is_unknown, moves_rows_only
from daemon.translate.schema import TableSchema
from state import DeleteFileRecord, LiveFile, OrphanReason

# With `write.delete.granularity=partition`, at most this many data files share a delete file.
DATA_FILES_PER_DELETE_FILE_MAX = 1000
# Limits of one Puffin file. All its entries are in one manifest, and PyIceberg reads the whole file for each of them.
VECTORS_MAX = 1000
VECTOR_BYTES_MAX = 16 << 20

# Changes of deletion vectors, each with the spec id of its data file.
PlacedChanges = Iterable[tuple[int, DvChange]]


@dataclass(frozen=True)
class Repair:
    """Delete files that keep the deletions of other data files, when delete files leave that they share."""

    rewrites: Sequence[Rewrite] = ()
    copies: Sequence[DeleteFileTask] = ()

    @property
    def paths(self) -> list[str]:
        return [*(each.output_path for each in self.rewrites), *(each.output_path for each in self.copies)]


@dataclass(frozen=True)
class Planner(ABC):
    """Plans the delete files of a change, and decides all entries of its snapshot."""

    suffix: ClassVar[str]
    # A data file of which rows come back gets a new entry. Otherwise its entry gets the metrics of its new AddFile.
    renews_entries: ClassVar[bool]
    # Why a delete file leaves if none of its data files is removed.
    replaced: ClassVar[OrphanReason]
    # Compaction joins the deletions of so many data files, which do not share a delete file yet.
    joined_data_files: ClassVar[int]

    # Whether the table may have delete files of a former format version.
    may_have_former: ClassVar[bool]
    # Whether all data files of a partition share delete files.
    shares_partitions: bool = False

    @abstractmethod
    def divide(self, changes: PlacedChanges) -> Iterator[tuple[int, tuple[DvChange, ...]]]:
        """Yield the contents of each delete file, with its spec id."""

    @abstractmethod
    def leaving(self, plan: SyncPlan) -> Set[str]:
        """Return the live data files whose present deletions leave the table."""

    def returning(self, change: TableChange) -> Collection[str]:
        """Return the data files whose dead blobs matter: they come back, or rows of them may."""
        return ()

    def outdated(self, plan: SyncPlan) -> Sequence[DeleteFileRecord]:
        """Return those of `plan.older` that must not stay. The others stay for the data files that do not leave."""
        return plan.older

    def to_copy(self, plan: SyncPlan) -> Set[str]:
        """Return the data files whose present vectors are written again: their delete file does not stay."""
        return frozenset()

    @abstractmethod
    def repair(self, plan: SyncPlan, live: Mapping[str, LiveFile], names: Iterator[str]) -> Repair:
        """Plan what keeps the deletions of the data files that do not leave. `live` has the files `to_copy`."""

    @abstractmethod
    def new_positions(self, plan: SyncPlan) -> int:
        """Return how many positions the plan writes newly."""

    def is_former(self, path: str) -> bool:
        """Return whether a delete file is one of a former format version, by its name."""
        return not path.endswith(self.suffix)

    def tasks(self, changes: PlacedChanges, names: Iterator[str]) -> tuple[DeleteFileTask, ...]:
        """Plan the delete files of `changes`. `names` has their paths."""
        return tuple(DeleteFileTask(next(names), spec_id, part) for spec_id, part in self.divide(changes))

    def complete(
        self,
        plan: SyncPlan,
        *,
        snapshot_id: int,
        rewritten: Sequence[tuple[Rewrite, PositionDeleteFile]] = (),
        copied: Sequence[tuple[DeleteFileTask, DeleteFileResult]] = (),
    ) -> CommitPlan:
        """Decide every entry of the snapshot once the delete files are written. The planners have examples.

        `plan` has the results of its tasks and the metrics of its restored files. `rewritten` and `copied` are the
        written files of `repair`.
        """
        change, leaving, restored = plan.change, self.leaving(plan), plan.restored
        renewed = restored if self.renews_entries else set[str]()
        added = {**change.added, **{path: change.dv_changed[path] for path in renewed}}
        removed = change.removed | renewed
        files = [(task, result.file) for task, result in (*zip(plan.tasks, plan.results, strict=True), *copied)]
        written = tuple((task, file) for task, file in files if file)
        outdated = {file.path for file in self.outdated(plan)}
        entries: list[tuple[str, EntryKey]] = []
        gone: dict[str, OrphanReason] = {}
        dead: list[tuple[str, str]] = []
        for file in plan.older:
            served = file.served
            leaves = served if file.path in outdated else served & leaving
            entries += entries_of(file, leaves)
            if leaves == served:
                is_gone = not served.isdisjoint(change.removed)
                gone[file.path] = OrphanReason.DATA_FILES_GONE if is_gone else self.replaced
            else:
                dead += [(file.path, data_file) for data_file in sorted(leaves)]
        # The entries of these data files, by manifest, with the metrics of their new adds.
        renewed_entries: dict[str, dict[str, DataFile]] = defaultdict(dict)
        for path in restored - renewed:
            renewed_entries[plan.live[path].manifest_path][path] = _entry(plan, change.dv_changed[path])
        new_positions = self.new_positions(plan)
        delta = RowDelta(
            snapshot_id=snapshot_id,
            added_data_files=[_entry(plan, add) for _, add in sorted(added.items())],
            removed_data_files=by_manifest((plan.live[path].manifest_path, path) for path in removed),
            renewed_data_files=renewed_entries,
            added_delete_files=[entry for task, file in written for entry in delete_file_entries(task, file)],
            removed_delete_files=by_manifest(entries),
            replacements=[(each.old.path, delete_file_entry(file, each.old.spec_id)) for each, file in rewritten],
            same_rows=moves_rows_only(plan, positions=new_positions),
        )
        return CommitPlan(
            delta=delta,
            added_files=added,
            changed_dvs={path: add.deletion_vector for path, add in change.dv_changed.items() if path not in renewed},
            # A file with a new entry is also in `added_files`: the record of its old deletions goes, the file stays.
            removed_files=tuple(sorted(removed)),
            written=written,
            unwritten_files=tuple(task.output_path for task, file in files if not file),
            removed_delete_files=gone,
            new_positions=new_positions,
            rewritten=tuple(rewritten),
            dead_vectors=tuple(dead),
        )


@dataclass(frozen=True)
class PositionDeletes(Planner):
    """Position-delete files, of which each holds the new positions only.

    For example, delete file d1 holds {0, 1} of data file A and {5} of B.

    - The deletion vector of A grows to {0, 1, 2}: a new delete file with {2} is added, nothing else changes.
    - It shrinks to {0}: A is restored. The snapshot removes A and d1; it adds A again, a delete file with {0} of A, and
      a rewrite of d1 with {5} of B. Older delete files do not apply to the new data sequence number of A.
    - A is removed: the snapshot removes A and d1, and adds the rewrite of d1.
    """

    suffix = ".parquet"
    renews_entries = True
    replaced = OrphanReason.DV_SHRUNK
    joined_data_files = 1
    may_have_former = False

    def divide(self, changes: PlacedChanges) -> Iterator[tuple[int, tuple[DvChange, ...]]]:
        groups: dict[tuple[int, str], list[DvChange]] = defaultdict(list)
        for spec_id, change in changes:
            # Compare by repr, because NaN is not equal to itself. A group may be split, but must not mix partitions.
            group = repr(change.partition) if self.shares_partitions else change.data_file
            groups[spec_id, group].append(change)
        for (spec_id, _), members in groups.items():
            for start in range(0, len(members), DATA_FILES_PER_DELETE_FILE_MAX):
                yield spec_id, tuple(members[start : start + DATA_FILES_PER_DELETE_FILE_MAX])

    def leaving(self, plan: SyncPlan) -> Set[str]:
        return plan.change.removed | plan.restored

    def repair(self, plan: SyncPlan, live: Mapping[str, LiveFile], names: Iterator[str]) -> Repair:
        leaving = self.leaving(plan)
        shared = [(file, file.served - leaving) for file in plan.older]
        return Repair(rewrites=[Rewrite(file, next(names), kept) for file, kept in shared if kept])

    def new_positions(self, plan: SyncPlan) -> int:
        return sum(result.file.positions for result in plan.results if result.file)


@dataclass(frozen=True)
class DeletionVectors(Planner):
    """Deletion vectors: at most one for a data file, with all its deletions (Iceberg spec, "Deletion Vectors").

    The vectors that a commit changes share new Puffin files. A blob that is no longer used stays in its Puffin file as
    long as the file serves other data files: it is dead.

    PyIceberg 0.12 applies every blob of a Puffin file that a snapshot uses, dead ones too. That is harmless as long as
    the data file's vector has all of its positions. So a Puffin file is replaced as a whole when a data file comes
    back, or rows of it, of which it has a blob; the vectors of the other data files in it are copied. So are those of a
    position-delete file from version 2, which has one entry.

    For example, Puffin file p1 has blobs of the data files A and B.

    - The vector of A grows: its new blob is in p2. The entry of A in p1 leaves, p1 stays for B, its blob of A is dead.
    - Rows of A come back: the new blobs of A and, copied, of B are in p2. Both entries in p1 leave, and p1 with them.
      The entry of the data file A gets new metrics: the former ones may say nothing of these rows.
    - A is removed: its entry leaves, and p1 stays for B. If A comes back later, p1 is replaced as above.
    """

    suffix = SUFFIX
    renews_entries = False
    replaced = OrphanReason.DV_REPLACED
    # If a sync changes one of them meanwhile, the next round tries again with all of them.
    joined_data_files = 50
    may_have_former = True

    def divide(self, changes: PlacedChanges) -> Iterator[tuple[int, tuple[DvChange, ...]]]:
        by_spec = defaultdict[int, list[DvChange]](list)
        for spec_id, each in changes:
            by_spec[spec_id].append(each)
        for spec_id, members in by_spec.items():
            for part in divided(
                members, lambda each: each.after.size_in_bytes, size_max=VECTOR_BYTES_MAX, count_max=VECTORS_MAX
            ):
                yield spec_id, tuple(part)

    def leaving(self, plan: SyncPlan) -> Set[str]:
        return {*plan.change.removed, *plan.change.dv_changed}

    def returning(self, change: TableChange) -> Collection[str]:
        return {*change.added, *change.dv_changed}

    def outdated(self, plan: SyncPlan) -> Sequence[DeleteFileRecord]:
        returned = {*plan.change.added, *plan.restored}
        return [each for each in plan.older if self.is_former(each.path) or returned & {*each.served, *each.dead}]

    def to_copy(self, plan: SyncPlan) -> Set[str]:
        leaving = self.leaving(plan)
        return {path for file in self.outdated(plan) for path in file.served if path not in leaving}

    def repair(self, plan: SyncPlan, live: Mapping[str, LiveFile], names: Iterator[str]) -> Repair:
        return Repair(copies=self.tasks(copies(live, plan.table), names))

    def new_positions(self, plan: SyncPlan) -> int:
        return sum(_growth(plan.live.get(each.data_file), each) for task in plan.tasks for each in task.changes)


def copies(data_files: Mapping[str, LiveFile], table: TableSchema) -> list[tuple[int, DvChange]]:
    """Return changes that write the present vectors of `data_files` once more, each with its spec id."""
    copied = []
    for path, file in sorted(data_files.items()):
        if file.deletion_vector is None or is_unknown(file):
            raise ReplacementNeeded(
                "the state store does not know which deletion vector of Delta this data file has",
                path=path,
                hint="dvsync rewrites the Iceberg table from Delta.",
            )
        partition = decode_partition(file.partition, table, file.spec_id)
        change = DvChange(path, file.record_count, None, file.deletion_vector, partition)
        copied.append((file.spec_id, change))
    return copied


def entries_of(file: DeleteFileRecord, served: Set[str] | None = None) -> list[tuple[str, EntryKey]]:
    """Return the manifest entries of a delete file for the data files `served`, all by default, with their manifest."""
    served = file.served if served is None else served
    if is_puffin(file.path):
        return [(file.manifest_path, (file.path, data_file)) for data_file in served]
    return [(file.manifest_path, file.path)] if served else []


def _entry(plan: SyncPlan, add: AddFile) -> DataFile:
    return data_file_of(add, plan.metrics[add.path], plan.table, *plan.place_of(add))


def _growth(known: LiveFile | None, change: DvChange) -> int:
    before = known.deletion_vector.cardinality if known and known.deletion_vector else 0
    return max(0, change.after.cardinality - before)
