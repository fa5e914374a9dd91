"""The mirrors of a table's files: which ones Iceberg shows, and how a sync makes those that it needs.

A mirror's row is in the state store before the mirror is made; its size comes once the file is whole and on the disk.
Such a file is used again: after a crash, or if its data file comes back (RESTORE).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

import pyarrow as pa
from msgspec.structs import replace as with_fields
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from daemon.delta.actions import AddFile, Metadata
from daemon.delta.replay import TableChange
from daemon.delta.table_state import TableState
from daemon.errors import ObjectMissing, Unsupported
from daemon.iceberg.references import data_files_of_all, live_entries
from daemon.mirror.defaults import defaults_of
from daemon.mirror.substitution import MirroredState, Mirrors, find_mirror_name, hash_path
from daemon.observe import tracing
from daemon.pipeline.data_manifests import manifests_needed
from daemon.pipeline.inspection import Inspection
from daemon.pipeline.mirrors import KINDS, MirrorPlanner, MirrorTask, WantedMirror
from daemon.store.storage import FileIOStorage, map_files
from daemon.sync.context import TableContext
from daemon.sync.outcomes import Shown
from daemon.sync.transaction import Transaction
from daemon.texts import counted
from daemon.translate.definition import has_mirrors
from daemon.translate.file_schema import FileTraits
from daemon.translate.schema import TableSchema
from state import FileKind, FileStatus, MirrorRecord, OrphanReason

MIB = 1 << 20


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


def remember_mirrors(context: TableContext, table_id: int, table: Table) -> None:
    """Record the mirrors that any snapshot shows and the state store does not know, as orphans that are in use.

    The name of a mirror has only a hash of its data file's path, which stands for the path until the mirror is used
    again (`MirrorMaker`). Cleanup removes one that is not, once no snapshot shows it.
    """
    if not has_mirrors(table):
        return
    # By path: each commit may have written the entry of a mirror into another manifest.
    found = {
        file.file_path: MirrorRecord(file.file_path, name.data_file, 0, name.kind, file.file_size_in_bytes)
        for file in data_files_of_all(table)
        if (name := find_mirror_name(file.file_path))
    }
    context.store.record_found_mirrors(table_id, found.values(), at_ms=context.clock.now_ms())


@dataclass(frozen=True)
class MirrorMaker:
    """Makes mirrors for the commit of `transaction`, whose table `table` has then. `storage` reads Delta's files."""

    context: TableContext
    transaction: Transaction
    table_id: int
    planner: MirrorPlanner

    def make(self, wanted: Sequence[WantedMirror]) -> Mirrors:
        """Make those of the wanted mirrors that are not there yet. All of them are whole and on the disk afterwards.

        Begins the transaction. Raises `Unsupported` if they would take more than `mirror_bytes_max`, or do so when some
        are made: the size of one that is rewritten is a guess before. Those stay for the next try, or for cleanup.
        """
        context, transaction = self.context, self.transaction
        known = self._find_usable(wanted)
        new = [each for each in wanted if each.data_file not in known]
        # Those of an abandoned sync count with the new ones: it may have ended because they are too large.
        orphans = [each for each in known.values() if each.status is FileStatus.ORPHANED]
        failed = OrphanReason.COMMIT_FAILED
        needed = {each.data_file: each.size_bytes or 0 for each in orphans if each.reason is failed}
        in_use = sum(each.size_bytes or 0 for each in orphans if each.reason is not failed)
        others = self._count_others(in_use, sum(needed.values())) if needed or new else {}
        needed |= {each.data_file: each.size_bytes for each in new}
        self._check_room(needed, others)
        transaction.begin({})
        tasks = [MirrorTask(each, transaction.name_mirror(each.data_file, each.made, each.kind)) for each in new]
        records = {
            task.path: MirrorRecord(
                path=task.path,
                data_file=task.wanted.data_file,
                data_file_bytes=task.wanted.data_file_bytes,
                kind=task.wanted.kind,
                why=task.wanted.why,
            )
            for task in tasks
        }
        # Those of `known` that are orphans are in use from now on.
        context.store.record_mirrors(transaction.id, [*known.values(), *records.values()])
        done = 0
        for made in context.runner.make_mirrors(tasks, self.planner, transaction.target_properties):
            context.store.record_sizes(self.table_id, made)
            needed |= {records[path].data_file: size_bytes for path, size_bytes in made.items()}
            self._check_room(needed, others)
            done += len(made)
            if context.progress:
                context.progress.advanced(done, len(tasks), "mirrors")
        whole = [with_fields(each, size_bytes=needed[each.data_file]) for each in records.values()]
        return Mirrors.of(context.location, (*known.values(), *whole))

    def _find_usable(self, wanted: Sequence[WantedMirror]) -> dict[str, MirrorRecord]:
        """Find the wanted mirrors that are there already, by their data files."""
        # Of those that only the Iceberg table told of, the state store has the hash of the path.
        by_data_file = {key: each for each in wanted for key in (each.data_file, hash_path(each.data_file))}
        found = [
            with_fields(mirror, data_file=each.data_file, data_file_bytes=each.data_file_bytes, why=each.why)
            for mirror in self.context.store.find_mirrors(self.table_id, by_data_file)
            for each in [by_data_file[mirror.data_file]]
            if self._is_usable(mirror, each)
        ]
        storage = FileIOStorage(self.transaction.target_properties)
        # Of several with the same bytes, one that is live comes last.
        found.sort(key=lambda mirror: mirror.status is FileStatus.LIVE)
        there = map_files(lambda mirror: _is_whole(storage, mirror), found, lambda mirror: mirror.path)
        return {mirror.data_file: mirror for mirror, is_there in zip(found, there, strict=True) if is_there}

    def _is_usable(self, mirror: MirrorRecord, wanted: WantedMirror) -> bool:
        if _made(mirror) != wanted.made or mirror.size_bytes is None:
            return False
        if mirror.status is not FileStatus.ORPHANED:
            return mirror.status is FileStatus.LIVE
        if mirror.reason is None or mirror.reason is OrphanReason.TABLE_REPLACED:
            return False
        # A cleanup that removes it now began when its grace period was over.
        half_grace_ms = round(self.context.settings.maintenance.orphan_grace_s * 500)
        return mirror.reason.shown_by_older or mirror.since_ms > self.context.clock.now_ms() - half_grace_ms

    def _count_others(self, in_use: int, needed: int) -> dict[FileStatus, int]:
        """Add up the bytes of the table's mirrors by status: of orphans, so many are live now, or needed."""
        written = self.context.store.count(self.table_id).written
        there = Counter({each.status: each.size_bytes or 0 for each in written if each.kind is FileKind.MIRROR})
        del there[FileStatus.DELETED]
        there[FileStatus.LIVE] += in_use
        there[FileStatus.ORPHANED] -= in_use + needed
        return there

    def _check_room(self, needed: Mapping[str, int], others: Mapping[FileStatus, int]) -> None:
        """`needed` are the bytes of the mirrors by data file, `others` those of the table's other mirrors by status."""
        new, limit = sum(needed.values()), int(self.context.settings.mirror_bytes_max)
        total = new + sum(others.values())
        if needed and total > limit:
            unused = others[FileStatus.ORPHANED]
            cleanup = f" Cleanup will remove orphans of {unused:,} bytes, which are counted." if unused else ""
            raise Unsupported(
                f"{counted(len(needed), 'data file')} need mirrors of {new:,} bytes, beside the table's mirrors of "
                f"{total - new:,} bytes: {total - limit:,} bytes more than mirror_bytes_max, {limit:,}",
                path=next(iter(needed)),
                hint=f"If the store has the room, set mirror_bytes_max: {math.ceil(total / MIB)}MiB or more for it, "
                f"and `dvsync resume` the table. Or rewrite the files in Delta.{cleanup}",
            )


def _is_whole(storage: FileIOStorage, mirror: MirrorRecord) -> bool:
    with suppress(ObjectMissing):
        return storage.stat(mirror.path).size == mirror.size_bytes
    return False


def planner_for(context: TableContext, shown: Shown, table: TableSchema, metadata: Metadata | None) -> MirrorPlanner:
    """Return what plans mirrors of the kinds that the settings allow. `metadata` is Delta's, if it is at hand."""
    return MirrorPlanner(
        storage=context.data_files_of(shown.table),
        table=table,
        kinds=KINDS[context.settings.mirrors],
        table_id=metadata.id if metadata else str(shown.record.delta_table_id),
        defaults=defaults_of(metadata) if metadata and table.filled else {},
    )


def mirror_state(maker: MirrorMaker, state: TableState) -> TableState:
    """Return `state` with mirrors of all files that readers would misread, and make those that are missing.

    Without mirrors in the settings, return it as it is, and read no file.
    """
    if not (maker.planner.kinds and state.files):
        return state
    progress = maker.context.progress

    def on_progress(done: int, total: int) -> None:
        if progress:
            progress.advanced(state.files * done // total, state.files, "inspected data files")

    with tracing.step("mirrors"):
        parts = state.map_adds(maker.planner.plan_part, manifests_needed(state.files), on_progress)
        wanted = [mirror for part in parts for mirror in part.mirrors]
        return MirroredState.over(state, maker.make(wanted)) if wanted else state


def inspect_added(maker: MirrorMaker, change: TableChange, mirrors: Mirrors) -> tuple[TableChange, Inspection, Mirrors]:
    """Inspect the files that `change` adds. Those that readers would misread get mirrors, if the settings allow it.

    `mirrors` are those that `change` names already. Returns the change of what Iceberg will show, the inspection of it,
    and the mirrors that are in it now. Raises as `Inspector.inspect` and `MirrorMaker.make` do.
    """
    runner, planner, none = maker.context.runner, maker.planner, Mirrors(mirrors.location, {})
    added = list(change.added.values())
    if not planner.kinds:
        return change, runner.inspect_data_files(added, planner.table, planner.storage), none
    in_delta = [mirrors.undone(add) for add in added]
    try:
        planned = runner.plan_mirrors(in_delta, planner)
    except Unsupported:
        if planner.defaults or not planner.table.filled or "rewrite" not in planner.kinds:
            raise
        # The commits do not say what Delta fills in.
        with maker.context.open_delta_state(change.to_version) as state:
            maker = replace(maker, planner=replace(planner, defaults=defaults_of(state.metadata)))
        planned = runner.plan_mirrors(in_delta, maker.planner)
    made = maker.make(planned.mirrors) if planned.mirrors else none
    metrics = {made.place_of(path): each for path, each in planned.metrics.items()}
    added = list(made.applied_to_all(in_delta))
    return replace(change, added={add.path: add for add in added}), Inspection(metrics, planned.traits), made


def check_live_files(
    context: TableContext, shown: Shown, planner: MirrorPlanner, change: TableChange, last_refused: str | None
) -> tuple[FileTraits, TableChange]:
    """Check the files of Delta that are live after `change` by another schema, first one that was refused before.

    A file that needs another mirror for it, or none any more, is removed and added again. Returns the traits of all
    files, and the change with these. Raises as `MirrorPlanner.plan`.
    """
    live = context.store.list_live_mirrors(shown.record.id) if has_mirrors(shown.table) else ()
    shown_mirrors = Mirrors.of(context.location, live)
    made = {mirror.data_file: _made(mirror) for mirror in live}
    others: dict[str, AddFile] = {}
    with context.open_delta_state(change.to_version) as state:
        if last_refused:
            is_first = [add.path == last_refused for add in state.read_adds()]
            planner.plan(list(state.find_adds(pa.array(is_first, pa.bool_()))))
        parts = list(state.map_adds(planner.plan_part, manifests_needed(state.files)))
        wanted = {mirror.data_file: mirror.made for part in parts for mirror in part.mirrors}
        if wanted != made:
            is_other = [wanted.get(add.path) != made.get(add.path) for add in state.read_adds()]
            others = {shown_mirrors.applied(add).path: add for add in state.find_adds(pa.array(is_other, pa.bool_()))}
    # What the change adds is inspected with it.
    others = {path: add for path, add in others.items() if path not in change.added}
    traits = reduce(or_, (part.traits for part in parts), FileTraits())
    return traits, replace(
        change,
        added={**change.added, **{add.path: add for add in others.values()}},
        removed=change.removed | others.keys(),
        dv_changed={path: add for path, add in change.dv_changed.items() if path not in others},
        uris_changed={path: uri for path, uri in change.uris_changed.items() if path not in others},
    )


def _made(mirror: MirrorRecord) -> str | None:
    name = find_mirror_name(mirror.path)
    return name.made if name else None


def surplus_bytes(context: TableContext, shown: Shown, change: TableChange, made: Mirrors) -> int:
    """Return by how much the table's mirrors are larger after `change` than their data files, which Delta counts."""
    if not (made.by_data_file or has_mirrors(shown.table)):
        return 0
    counted = {mirror.path for mirror in made.by_data_file.values()}
    others = context.store.sum_mirror_surplus(shown.record.id, without=change.removed - change.added.keys() | counted)
    return others + made.surplus_bytes
