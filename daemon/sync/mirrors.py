"""The mirrors of a table's files: which ones Iceberg shows, and how a sync makes those that it needs.

A mirror's row is in the state store before the mirror is made; its size comes once the file is whole and on the disk.
Such a file is used again: after a crash, or if its data file comes back (RESTORE).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from msgspec.structs import replace as with_fields
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from daemon.delta.replay import TableChange
from daemon.delta.table_state import TableState
from daemon.errors import ObjectMissing, Unsupported
from daemon.iceberg.references import live_entries
from daemon.mirror.substitution import MirroredState, Mirrors, find_mirror_name, hash_path
from daemon.pipeline.data_manifests import manifests_needed
from daemon.pipeline.inspection import Inspection
from daemon.pipeline.mirrors import KINDS, MirrorPlanner, MirrorTask, WantedMirror
from daemon.store.storage import FileIOStorage, map_files
from daemon.sync.context import TableContext
from daemon.sync.outcomes import Shown
from daemon.sync.transaction import Transaction
from daemon.translate.definition import has_mirrors
from daemon.translate.schema import TableSchema
from state import FileKind, FileStatus, MirrorRecord, OrphanReason


def find_shown_mirrors(context: TableContext, shown: Shown, data_files: Collection[str]) -> Mirrors:
    """Find the mirrors that Iceberg shows in the place of these files of Delta."""
    found = context.store.find_mirrors(shown.record.id, data_files) if has_mirrors(shown.table) else ()
    return Mirrors.of(context.location, (mirror for mirror in found if mirror.status is FileStatus.LIVE))


def find_mirrors_in(table: Table, snapshot: Snapshot | None, state: TableState) -> list[MirrorRecord]:
    """Find the mirrors that a snapshot shows in the place of files of Delta's `state`, by their names alone."""
    if snapshot is None or not has_mirrors(table):
        return []
    entries = (entry.data_file for entry, _ in live_entries(table, snapshot, ManifestContent.DATA))
    named = {name.data_file: (file, name) for file in entries if (name := find_mirror_name(file.file_path))}
    return [
        MirrorRecord(file.file_path, add.path, add.size, name.kind, file.file_size_in_bytes)
        for add in (state.read_adds() if named else ())
        if (found := named.get(hash_path(add.path)))
        for file, name in [found]
    ]


@dataclass(frozen=True)
class MirrorMaker:
    """Makes mirrors for the commit of `transaction`, whose table `table` has then. `storage` reads Delta's files."""

    context: TableContext
    transaction: Transaction
    table_id: int
    planner: MirrorPlanner

    def make(self, wanted: Sequence[WantedMirror]) -> Mirrors:
        """Make those of the wanted mirrors that are not there yet. All of them are whole and on the disk afterwards.

        Begins the transaction. Raises `Unsupported` if they would take more than `mirror_bytes_max`.
        """
        context, transaction = self.context, self.transaction
        known = self._find_usable(wanted)
        new = [each for each in wanted if each.data_file not in known]
        self._check_room(new)
        transaction.begin({})
        records = {
            each.data_file: MirrorRecord(
                path=transaction.name_mirror(each.data_file, each.made, each.kind),
                data_file=each.data_file,
                data_file_bytes=each.data_file_bytes,
                kind=each.kind,
                why=each.why,
            )
            for each in new
        }
        # Those of `known` that are orphans are in use from now on.
        context.store.record_mirrors(transaction.id, [*known.values(), *records.values()])
        tasks, done = [MirrorTask(each, records[each.data_file].path) for each in new], 0
        for made in context.runner.make_mirrors(tasks, self.planner, transaction.target_properties):
            context.store.record_sizes(self.table_id, {task.path: task.wanted.size_bytes for task in made})
            done += len(made)
            if context.progress:
                context.progress.advanced(done, len(tasks), "mirrors")
        whole = [with_fields(records[each.data_file], size_bytes=each.size_bytes) for each in new]
        return Mirrors.of(context.location, (*known.values(), *whole))

    def _find_usable(self, wanted: Sequence[WantedMirror]) -> dict[str, MirrorRecord]:
        """Find the wanted mirrors that are there already, by their data files."""
        by_data_file = {each.data_file: each for each in wanted}
        found = [
            mirror
            for mirror in self.context.store.find_mirrors(self.table_id, by_data_file)
            if self._is_usable(mirror, by_data_file[mirror.data_file])
        ]
        storage = FileIOStorage(self.transaction.target_properties)
        there = map_files(lambda mirror: _is_whole(storage, mirror), found, lambda mirror: mirror.path)
        return {mirror.data_file: mirror for mirror, is_there in zip(found, there, strict=True) if is_there}

    def _is_usable(self, mirror: MirrorRecord, wanted: WantedMirror) -> bool:
        name = find_mirror_name(mirror.path)
        if name is None or (name.made, mirror.size_bytes) != (wanted.made, wanted.size_bytes):
            return False
        if mirror.status is not FileStatus.ORPHANED:
            return mirror.status is FileStatus.LIVE
        if mirror.reason is None or mirror.reason is OrphanReason.TABLE_REPLACED:
            return False
        # A cleanup that removes it now began when its grace period was over.
        half_grace_ms = round(self.context.settings.maintenance.orphan_grace_s * 500)
        return mirror.reason.shown_by_older or mirror.since_ms > self.context.clock.now_ms() - half_grace_ms

    def _check_room(self, new: Sequence[WantedMirror]) -> None:
        needed, limit = sum(each.size_bytes for each in new), self.context.settings.mirror_bytes_max
        written = self.context.store.count(self.table_id).written if new else ()
        there = sum(
            each.size_bytes or 0
            for each in written
            if each.kind is FileKind.MIRROR and each.status is not FileStatus.DELETED
        )
        if new and there + needed > limit:
            raise Unsupported(
                f"{len(new)} data files need mirrors of {needed:,} bytes, beside the table's mirrors of {there:,} "
                f"bytes: mirror_bytes_max is {int(limit):,}",
                path=new[0].data_file,
                hint=f"Give this table a mirror_bytes_max above {there + needed:,}, if its store has the room. "
                "Or rewrite the files in Delta.",
            )


def _is_whole(storage: FileIOStorage, mirror: MirrorRecord) -> bool:
    with suppress(ObjectMissing):
        return storage.stat(mirror.path).size == mirror.size_bytes
    return False


def maker_for(
    context: TableContext, transaction: Transaction, shown: Shown, table: TableSchema, delta_table_id: str
) -> MirrorMaker:
    """Return what makes the mirrors of a commit, of the kinds that the settings allow."""
    kinds = KINDS[context.settings.mirrors]
    planner = MirrorPlanner(context.data_files_of(shown.table), table, kinds, delta_table_id)
    return MirrorMaker(context, transaction, shown.record.id, planner)


def mirror_state(maker: MirrorMaker, state: TableState) -> TableState:
    """Return `state` with mirrors of all files that readers would misread, and make those that are missing.

    Without mirrors in the settings, return it as it is, and read no file.
    """
    if not (maker.planner.kinds and state.files):
        return state
    progress = maker.context.progress
    on_progress = partial(progress.advanced, what="inspected data files") if progress else None
    parts = state.map_adds(maker.planner.plan_part, manifests_needed(state.files), on_progress)
    wanted = [mirror for part in parts for mirror in part.mirrors]
    return MirroredState.over(state, maker.make(wanted)) if wanted else state


def inspect_added(maker: MirrorMaker, change: TableChange, mirrors: Mirrors) -> tuple[TableChange, Inspection, Mirrors]:
    """Inspect the files that `change` adds. Those that readers would misread get mirrors, if the settings allow it.

    `mirrors` are those that `change` names already. Returns the change of what Iceberg will show, the inspection of it,
    and the mirrors that are in it now. Raises as `Inspector.inspect` and `MirrorMaker.make` do.
    """
    runner, planner = maker.context.runner, maker.planner
    added = list(change.added.values())
    try:
        inspection = runner.inspect_data_files(added, planner.table, planner.storage)
    except Unsupported as refused:
        if refused.lifted_by not in planner.kinds:
            raise
    else:
        return change, inspection, Mirrors(mirrors.location, {})
    in_delta = [mirrors.undone(add) for add in added]
    made = maker.make(runner.plan_mirrors(in_delta, planner))
    added = list(made.applied_to_all(in_delta))
    inspection = runner.inspect_data_files(added, planner.table, planner.storage)
    return replace(change, added={add.path: add for add in added}), inspection, made


def surplus_bytes(context: TableContext, shown: Shown, change: TableChange, made: Mirrors) -> int:
    """Return by how much the table's mirrors are larger after `change` than their data files, which Delta counts."""
    if not (made.by_data_file or has_mirrors(shown.table)):
        return 0
    counted = {mirror.path for mirror in made.by_data_file.values()}
    others = context.store.sum_mirror_surplus(shown.record.id, without=change.removed - change.added.keys() | counted)
    return others + made.surplus_bytes
