"""Compaction: replaces the many delete files of a data file by one, and in format version 3 Puffin files that are
mostly dead, and the position-delete files from before. No row changes.

It runs beside the syncs: only the commit holds the table's lock, and leaves out data files that a sync has changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import add
from threading import Event

from msgspec.structs import replace as with_fields

from daemon.errors import AccountMismatch, CorruptInput, ObjectMissing, SyncError
from daemon.iceberg.account import find_account
from daemon.iceberg.delete_file_writer import damaged_deletes
from daemon.iceberg.marker import shown_by
from daemon.iceberg.references import live_delete_files
from daemon.iceberg.row_delta import RowDelta
from daemon.sync.context import TableContext
from daemon.sync.deletions import find_sharing
from daemon.sync.outcomes import Shown, remembered_account, unchanged_outcome
from daemon.sync.rebuild import rebuild
from daemon.sync.transaction import Transaction
from daemon.translate.definition import Shape, shape_of
from daemon.translate.delete_files import (
    UNKNOWN_DV,
    DeleteFile,
    DeleteFileTask,
    DvChange,
    delete_file_entries,
    delete_file_record,
)
from daemon.translate.existing_table import check_places, lacks_row_ids
from daemon.translate.plan import by_manifest
from daemon.translate.planner import Planner, copies, entries_of
from state import DeleteFileRecord, DeletionVectorDescriptor, FileKind, LiveFile, OrphanReason, TableRecord

# Compact a data file to which more delete files apply, or two and more once this share of its rows is deleted.
DELETE_FILES_MAX = 10
DELETED_SHARE = 0.3
# Compact a partition with more small delete files than this; a small one has at most so many bytes.
PARTITION_DELETE_FILES_MAX = 100
SMALL_DELETE_FILE_BYTES = 1 << 20
# Compact a Puffin file once more than this share of its positions is no longer used.
DEAD_SHARE = 0.5
# The data files that one snapshot compacts; a few more if they share delete files.
DATA_FILES_AT_ONCE = 1000
OPERATION = "compact"  # in the summary of a snapshot


@dataclass(frozen=True)
class Compaction:
    """The result of a compaction, or of a dry run: data files, and their delete files before and after."""

    data_files: int = 0
    delete_files_before: int = 0
    delete_files_after: int = 0
    snapshots: int = 0

    def __add__(self, other: Compaction) -> Compaction:
        return Compaction(*map(add, vars(self).values(), vars(other).values()))


@dataclass(frozen=True)
class Crowd:
    """Data files with all of their delete files, which apply to no other data file.

    `changes` has what is written instead: the contents of each delete file, with its spec id. A crowd that
    `is_outdated` is written again even if that saves no delete file. `vectors` are the deletion vectors by data file.
    """

    data_files: tuple[LiveFile, ...]
    delete_files: tuple[DeleteFileRecord, ...]
    changes: tuple[tuple[int, tuple[DvChange, ...]], ...]
    is_outdated: bool

    @property
    def vectors(self) -> dict[str, DeletionVectorDescriptor | None]:
        return {file.path: file.deletion_vector for file in self.data_files}


class Compactor:
    """Compacts one table's delete files. Remembers unreadable deletion vectors, and does not try them again."""

    def __init__(self, context: TableContext) -> None:
        self._context = context
        self._unreadable: dict[str, DeletionVectorDescriptor | None] = {}

    def compact(self, stop: Event, *, dry_run: bool = False) -> Compaction:
        """Compact the data files that exceed the limits above, in one or several snapshots; `stop` ends the work
        between two. Raises SyncError, also if only some data files failed; the snapshots that were committed stay.
        """
        context, done = self._context, Compaction()
        record, table = context.find_record(), context.target.find_table()
        if record is None or table is None or record.snapshot_id != table.metadata.current_snapshot_id:
            return done
        check_places(table.metadata.location, table.properties, context.location)
        shape = shape_of(table, context.settings)
        if table.metadata.format_version != shape.definition.format_version or lacks_row_ids(table, context.settings):
            return done  # A sync upgrades the table.
        deletes = shape.deletes
        # Reading the manifests of delete files is left out if it can find nothing.
        delete_files = live_delete_files(table) if deletes.shares_partitions or deletes.may_have_former else {}
        partitions = delete_files if deletes.shares_partitions else {}
        former = [path for path in delete_files if deletes.is_former(path)]
        seeds = _find_seeds(context, record, former, partitions)
        failed: SyncError | None = None
        while seeds and not stop.is_set():
            crowds = _gather(context, record, seeds[:DATA_FILES_AT_ONCE], partitions, shape)
            gathered = {file.path for crowd in crowds for file in crowd.data_files}
            seeds = [path for path in seeds[DATA_FILES_AT_ONCE:] if path not in gathered]
            useful = [each for each in crowds if each.is_outdated or len(each.changes) < len(each.delete_files)]
            # One that failed before is left out as long as it has the same deletion vectors.
            readable = [crowd for crowd in useful if not crowd.vectors.items() <= self._unreadable.items()]
            if dry_run:
                done += _sum(_joined(readable, deletes))
                continue
            # After a failure, split the part in halves until the unreadable crowd is alone.
            parts = [readable] if readable else []
            while parts and not stop.is_set():
                part = parts.pop()
                try:
                    rewritten = _rewrite(context, record, _joined(part, deletes))
                    if rewritten is None:
                        # A sync holds the lock: new delete files for the other parts would be wasted, too.
                        seeds, parts = [], []
                    else:
                        done += rewritten
                except (CorruptInput, ObjectMissing) as error:
                    failed = failed or error
                    if len(part) == 1:
                        self._unreadable |= part[0].vectors
                    else:
                        parts += [part[: len(part) // 2], part[len(part) // 2 :]]
        if failed:
            raise failed
        return done


def _sum(crowds: Iterable[Crowd], *, snapshots: int = 0) -> Compaction:
    each = (Compaction(len(crowd.data_files), len(crowd.delete_files), len(crowd.changes)) for crowd in crowds)
    return sum(each, Compaction(snapshots=snapshots))


def _find_seeds(
    context: TableContext, record: TableRecord, former: Sequence[str], partitions: Mapping[str, tuple[str, int]]
) -> list[str]:
    """Find the data files whose delete files should be rewritten: too many, mostly dead, or of a `former` version."""
    store = context.store
    crowded = store.find_crowded(record.id, delete_files_max=DELETE_FILES_MAX, deleted_share=DELETED_SHARE)
    dead = store.find_mostly_dead(record.id, dead_share=DEAD_SHARE)
    small: dict[str, list[str]] = defaultdict(list)
    for path, (partition, size_bytes) in partitions.items():
        if size_bytes <= SMALL_DELETE_FILE_BYTES:
            small[partition].append(path)
    many = [path for paths in small.values() if len(paths) > PARTITION_DELETE_FILES_MAX for path in paths]
    served = store.find_served(record.id, [*dead, *former, *many])
    return sorted({*crowded, *(data_file for data_files in served.values() for data_file in data_files)})


def _gather(
    context: TableContext,
    record: TableRecord,
    seeds: Sequence[str],
    partitions: Mapping[str, tuple[str, int]],
    shape: Shape,
) -> list[Crowd]:
    """Find the crowds of these data files: extend them until no delete file applies to another data file. If d1 applies
    to a and b, and d2 to b and c, then a, b, c form one crowd. One with an unknown deletion vector is left out.
    """
    delete_files = find_sharing(context.store, record.id, seeds, joins=lambda _: True)
    paths = {path for file in delete_files for path in file.served}
    groups = _Groups()
    for file in delete_files:
        place = {partitions[file.path][0]} if file.path in partitions else set()
        groups.join([*file.served, *place])
    live = context.store.find_live_files(record.id, paths)
    members: dict[str, list[LiveFile]] = defaultdict(list)
    for path, data_file in sorted(live.items()):
        members[groups.find(path)].append(data_file)
    serving: dict[str, list[DeleteFileRecord]] = defaultdict(list)
    for file in delete_files:
        serving[groups.find(file.mappings[0].data_file)].append(file)
    return [
        Crowd(
            tuple(data_files),
            tuple(serving[group]),
            tuple(shape.deletes.divide(copies({file.path: file for file in data_files}, shape.table))),
            is_outdated=any(file.dead or shape.deletes.is_former(file.path) for file in serving[group]),
        )
        for group, data_files in members.items()
        if all(file.deletion_vector not in (None, UNKNOWN_DV) for file in data_files)
    ]


def _joined(crowds: Sequence[Crowd], deletes: Planner) -> list[Crowd]:
    """Join crowds whose deletions can share delete files. A delete file has data files of one spec."""
    joined: dict[int, list[list[Crowd]]] = defaultdict(lambda: [[]])
    for crowd in crowds:
        members = joined[crowd.delete_files[0].spec_id]
        if sum(len(each.data_files) for each in members[-1]) >= deletes.joined_data_files:
            members.append([])
        members[-1].append(crowd)
    return [
        Crowd(
            tuple(file for crowd in members for file in crowd.data_files),
            tuple(file for crowd in members for file in crowd.delete_files),
            tuple(deletes.divide((spec, each) for crowd in members for spec, part in crowd.changes for each in part)),
            is_outdated=any(crowd.is_outdated for crowd in members),
        )
        for members in chain.from_iterable(joined.values())
    ]


class _Groups(dict[str, str]):
    """Disjoint sets of names that can be joined (union-find): each name with another one of its set, or itself."""

    def find(self, name: str) -> str:
        root = name
        while (parent := self.get(root, root)) != root:
            root = parent
        self[name] = root
        return root

    def join(self, names: Iterable[str]) -> None:
        first, *others = [self.find(name) for name in names]
        for root in others:
            self[self.find(root)] = self.find(first)


def _rewrite(context: TableContext, record: TableRecord, crowds: Sequence[Crowd]) -> Compaction | None:
    """Write the new delete files without the lock, then commit them. None if a sync held the lock for too long."""
    table = context.target.find_table()
    version = record.synced_version
    if table is None or version is None:
        return Compaction()
    shape = shape_of(table, context.settings)
    transaction = Transaction(context, Shown(record, table), shape.definition, to_version=version)
    names = transaction.delete_file_names(shape.deletes.suffix)
    tasks = [
        (crowd, [DeleteFileTask(next(names), spec_id, changes) for spec_id, changes in crowd.changes])
        for crowd in crowds
    ]
    context.in_work.add(transaction.id)
    try:
        with transaction:
            every = [task for _, of_crowd in tasks for task in of_crowd]
            transaction.begin({FileKind.DELETE_FILE: [task.output_path for task in every]})
            files = _write(transaction, every)
            with context.hold_committing() as is_held:
                if not is_held:
                    transaction.abandon()
                    return None
                done = _commit(context, transaction, tasks, files)
            if done is None:
                transaction.abandon()
            return done or Compaction()
    finally:
        # After a possible `abandon`: from here on the next sync may end this intent if it is still open.
        context.in_work.discard(transaction.id)


def _write(transaction: Transaction, tasks: Sequence[DeleteFileTask]) -> dict[str, DeleteFile]:
    """Write files, each of which holds all positions of its deletion vectors. Raises `CorruptInput`."""
    files = {}
    for task, result in zip(tasks, transaction.write_delete_files(tasks), strict=True):
        written = dict(result.file.data_files) if result.file else {}
        for change in task.changes:
            positions = written.get(change.data_file, 0)
            if positions != change.after.cardinality:
                what = f"{positions} positions were written for a deletion vector of {change.after.cardinality}"
                raise damaged_deletes(what, change.data_file)
        assert result.file, "a deletion vector has positions"
        files[task.output_path] = result.file
    return files


def _commit(
    context: TableContext,
    transaction: Transaction,
    tasks: Sequence[tuple[Crowd, Sequence[DeleteFileTask]]],
    files: Mapping[str, DeleteFile],
) -> Compaction | None:
    """Commit a `replace` snapshot for the crowds that no sync has changed, or return None if there is none of them. The
    others' files become orphans.
    """
    record, table = context.find_record(), context.target.find_table()
    if record is None or table is None or record.snapshot_id != table.metadata.current_snapshot_id:
        return None
    kept = [(now, crowd, of_crowd) for crowd, of_crowd in tasks if (now := _unchanged(context, record, crowd))]
    if not kept:
        return None
    snapshot, marker = table.current_snapshot(), shown_by(table)
    assert snapshot is not None and marker is not None, "what is recorded is ours"
    definition = shape_of(table, context.settings).definition
    if table.metadata.format_version != definition.format_version or lacks_row_ids(table, context.settings):
        return None  # Another process upgraded the table meanwhile.
    used = [(task, files[task.output_path]) for _, _, of_crowd in kept for task in of_crowd]
    transaction.move_to(Shown(record, table), definition)
    delta = RowDelta(
        snapshot_id=transaction.id,
        removed_delete_files=by_manifest(entry for now, _, _ in kept for file in now for entry in entries_of(file)),
        added_delete_files=[entry for task, file in used for entry in delete_file_entries(task, file)],
        same_rows=True,
    )
    account = find_account(snapshot) or remembered_account(context, record)
    unused = files.keys() - {task.output_path for task, _ in used}
    outcome = with_fields(
        unchanged_outcome(record),
        added_delete_files=tuple(delete_file_record(task, file) for task, file in used),
        removed_delete_files=(
            *((file.path, OrphanReason.COMPACTED) for now, _, _ in kept for file in now),
            *((path, OrphanReason.COMMIT_FAILED) for path in sorted(unused)),
        ),
    )
    try:
        transaction.show(delta, account, outcome, operation=OPERATION)
    except AccountMismatch:
        # The state store is wrong about the delete files. Rebuild it from the manifests for the next round.
        rebuild(context, record, table, marker)
        raise
    return _sum((crowd for _, crowd, _ in kept), snapshots=1)


def _unchanged(context: TableContext, record: TableRecord, crowd: Crowd) -> list[DeleteFileRecord]:
    """Return the crowd's delete files with their current manifests. Empty if a sync has changed the crowd."""
    live = context.store.find_live_files(record.id, list(crowd.vectors))
    if crowd.vectors != {path: file.deletion_vector for path, file in live.items()}:
        return []
    now = context.store.find_delete_files(record.id, list(crowd.vectors))
    return now if {file.path for file in now} == {file.path for file in crowd.delete_files} else []
