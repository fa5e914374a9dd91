"""Cleanup: removes files that dvsync wrote and that nothing references any more, after a grace period.

The Iceberg table's own metadata decides, and is read again each time: a file that any snapshot references stays.
Cleanup may be killed at any point, and may run beside a sync in this or another process.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Container, Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from threading import Event

from msgspec.structs import replace as with_fields
from pyiceberg.table import Table

from daemon.errors import ObjectStoreAway, SyncError
from daemon.iceberg.references import referenced_files
from daemon.iceberg.version_hint import NAME as HINT_NAME
from daemon.maintenance.left_vectors import find_due, find_unnamed, is_own
from daemon.maintenance.own_places import OwnPlaces, name_of
from daemon.mirror.substitution import find_mirror_name
from daemon.store.storage import FileIOStorage
from daemon.sync.context import TableContext
from state import FileKind, FileStatus, OrphanReason, TableRecord, WrittenFile

REMOVALS_AT_ONCE = 16  # more than cores: removals wait for the store and hardly use the processor
BATCH = 500
HISTORY_MS = 7 * 86_400_000  # how long the state store remembers removed files and past syncs
# The statuses of files that may still be in the store.
THERE = (FileStatus.PENDING, FileStatus.LIVE, FileStatus.ORPHANED)
IN_GRACE = "its grace period is not over"
OUTSIDE = "it lies outside of the table's own folders"


@dataclass
class Cleanup:
    """The result of a cleanup. `removed` are the removed files, or in a dry run those to remove. `left` counts the
    orphans that stay, by reason. `found` are those that a scan found and that the state store does not know. `failed`
    has a message for each file that could not be removed.
    """

    removed: list[WrittenFile] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    found: list[WrittenFile] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def removed_bytes(self) -> int:
        return sum(file.size_bytes or 0 for file in self.removed)


def clean_up(
    context: TableContext, stop: Event, *, dry_run: bool = False, scan: bool = False, remove_found: bool = False
) -> Cleanup:
    """Remove the orphans whose grace period is over. `scan` also lists files that the state store does not know.

    With `remove_found`, those become orphans, and files of ours that are in use are recorded as well. `stop` ends the
    work between two batches. Raises SyncError.
    """
    store, done = context.store, Cleanup()
    record = context.find_record()
    _remove_left_vectors(context, record, done, dry_run=dry_run)
    table = _find_own_table(context, record)
    if record is None or table is None:
        if orphans := store.list_written(record.id, (FileStatus.ORPHANED,)) if record else []:
            why = "the Iceberg table is missing or has been replaced, so its files in use are unknown"
            done.left[why] += len(orphans)
        return done
    own = OwnPlaces(context, table)
    # List first: a file that is written later has its row in the state store before it exists.
    listed = own.scan() if scan else []
    survey = release_files(context, record, dry_run=dry_run, all_kinds=scan)
    if not survey.in_use:
        return done  # Someone dropped the table at this very moment.
    waiting = list(survey.orphans)
    if scan:
        known = {name_of(file.path) for each in store.list_tables() for file in store.list_written(each.id, THERE)}
        unknown = [meta for meta in listed if name_of(meta.path) not in known]
        found_in_use = own.written_among(meta for meta in unknown if name_of(meta.path) in survey.in_use)
        unknown = [meta for meta in unknown if name_of(meta.path) not in survey.in_use]
        done.found = own.written_among(unknown)
        other = own.find_other_table(unknown)
        if other is not None:
            why = f"another Iceberg table has files in this folder, such as {other}; move one of the tables"
            done.left[why] += len(done.found)
            done.found = []
        if remove_found and not dry_run:
            # Files in use are recorded as well, so that cleanup removes them once their snapshots are expired.
            by_reason = {OrphanReason.FOUND: done.found, OrphanReason.FOUND_IN_USE: found_in_use}
            for reason, kind in product(by_reason, FileKind):
                paths = [file.path for file in by_reason[reason] if file.kind is kind]
                store.record_orphans(record.id, kind, paths, reason, at_ms=survey.at_ms)
    if remove_found:
        waiting += done.found
    due = _due_among(waiting, done, in_use=survey.in_use, own=own, due_ms=survey.due_ms)
    if survey.waiting:
        done.left[IN_GRACE] += survey.waiting
    if dry_run:
        done.removed += due
        return done
    for start in range(0, len(due), BATCH):
        if stop.is_set():
            return done
        _remove(context, own.storage, record.id, due[start : start + BATCH], done)
    forget_history(context, record)
    return done


def _remove_left_vectors(context: TableContext, record: TableRecord | None, done: Cleanup, *, dry_run: bool) -> None:
    """Remove the files of deletion vectors that a crash left in the Delta table; forget those that a commit names."""
    if record is None:
        return
    due, waiting = find_due(context, record)
    own = [file for file in due if is_own(context, file)]
    done.left += Counter({IN_GRACE: waiting, OUTSIDE: len(due) - len(own)})
    if not own:
        return
    try:
        unnamed, untold = find_unnamed(context, own)
    except SyncError as error:
        done.failed.append(str(error))  # of the Delta table, which the Iceberg table's files need not wait for
        return
    done.left += Counter({"Delta's log does not tell whether a commit names it, so VACUUM must remove it": untold})
    kept = set[str]()
    for file in unnamed:
        try:
            if not dry_run:
                context.storage.delete(file.path)
            why = OrphanReason.COMMIT_FAILED
            done.removed.append(WrittenFile(file.path, FileKind.VECTORS, FileStatus.ORPHANED, file.since_ms, why))
        except ObjectStoreAway as error:
            kept.add(file.path)
            done.failed.append(str(error))
    if not dry_run:
        # After a crash before this, the next run finds them gone, which is no error.
        context.store.forget_vectors(record.id, {file.path for file in own} - kept)


def forget_history(context: TableContext, record: TableRecord | None, *, orphans: bool = False) -> None:
    """Remove old rows from the state store; with `orphans` also those of files that cleanup has not removed."""
    if record is not None:
        context.store.forget_before(record.id, context.clock.now_ms() - HISTORY_MS, orphans=orphans)


def drop_table(context: TableContext) -> Cleanup | None:
    """Drop the Iceberg table from its catalog, then remove the files that dvsync wrote for it, without grace.

    Returns None if the catalog has no such table with the snapshot that was recorded last. If the store fails, files
    are left that nothing knows any more.
    """
    record = context.find_record()
    table = _find_own_table(context, record)
    if record is None or table is None:
        return None
    written = context.store.list_written(record.id, THERE)
    own = OwnPlaces(context, table, written)
    done, listed = Cleanup(), own.scan()
    sizes_bytes = {meta.path: meta.size for meta in listed}
    files = {file.path: with_fields(file, size_bytes=sizes_bytes.get(file.path, file.size_bytes)) for file in written}
    if own.find_other_table(listed) is None:
        files = {file.path: file for file in own.written_among(listed)} | files
    due = _due_among(files.values(), done, in_use=(), own=own, due_ms=sys.maxsize)
    context.target.drop()
    _remove(context, own.storage, record.id, due, done)
    own.storage.delete(f"{table.metadata.location.rstrip('/')}/metadata/{HINT_NAME}")
    own.remove_empty_folders(file.path for file in done.removed)
    return done


def has_due_orphans(context: TableContext) -> bool:
    """Return whether, according to the state store, the grace period of an unreferenced file is over."""
    record = context.find_record()
    before_ms = context.clock.now_ms() - round(context.settings.maintenance.orphan_grace_s * 1000)
    reasons = [each for each in OrphanReason if not each.shown_by_older and each is not OrphanReason.TABLE_REPLACED]
    return record is not None and (
        context.store.has_orphans(record.id, before_ms=before_ms, reasons=reasons) or bool(find_due(context, record)[0])
    )


@dataclass(frozen=True)
class Survey:
    """The files that dvsync wrote, by the table's metadata and the state store, at `at_ms`.

    `in_use` are file names without folders: each has a unique id, and paths have several spellings. The grace period is
    over for orphans since `due_ms`; `waiting` counts further ones.
    """

    in_use: Set[str]
    orphans: Sequence[WrittenFile]
    waiting: int
    at_ms: int
    due_ms: int


def release_files(context: TableContext, record: TableRecord, *, dry_run: bool, all_kinds: bool = False) -> Survey:
    """Mark files that no snapshot references any more as orphaned, which begins their grace period.

    Without `all_kinds`, `in_use` has delete files only if one of the orphans is one, and mirrors likewise: for them,
    every delete manifest or data manifest is read.
    """
    store = context.store
    # Read the state store before the table: what is live here was committed earlier, so the metadata that is loaded
    # next either references it or has dropped it.
    listed_ms = context.clock.now_ms()
    due_ms = listed_ms - round(context.settings.maintenance.orphan_grace_s * 1000)
    known, waiting = store.list_for_cleanup(record.id, due_ms=due_ms, now_ms=listed_ms)
    table = _find_own_table(context, record)
    at_ms = context.clock.now_ms()
    orphans = {file.path: file for file in known if file.status is FileStatus.ORPHANED}
    if table is None:
        return Survey(frozenset(), [], waiting, at_ms, due_ms)
    kinds = {file.kind for file in orphans.values() if file.reason is not OrphanReason.TABLE_REPLACED}
    referenced = referenced_files(
        table,
        delete_files=all_kinds or FileKind.DELETE_FILE in kinds,
        is_wanted=find_mirror_name if all_kinds or FileKind.MIRROR in kinds else None,
    )
    in_use = {name_of(path) for path in referenced}
    released = {
        file.path: with_fields(file, status=FileStatus.ORPHANED, reason=OrphanReason.SNAPSHOT_EXPIRED, since_ms=at_ms)
        for file in known
        if _was_in_use(file) and name_of(file.path) not in in_use
    }
    if not dry_run:
        store.record_unreferenced(record.id, released, OrphanReason.SNAPSHOT_EXPIRED, at_ms=at_ms)
        # These orphans are in use after all (a commit landed late, or the metadata was stale), or their time lies in
        # the future (a clock was ahead): let their grace period begin again. Those that only wait are judged later.
        late = [
            path
            for path, file in orphans.items()
            if (name_of(path) in in_use and not _was_in_use(file)) or file.since_ms > at_ms
        ]
        store.record_still_used(record.id, late, at_ms=at_ms)
        _record_missing_sizes(context, table, record.id, known)
    return Survey(in_use, list((orphans | released).values()), waiting, at_ms, due_ms)


def _find_own_table(context: TableContext, record: TableRecord | None) -> Table | None:
    """Load the Iceberg table. None if it lacks the snapshot that was recorded last, so that it may be another table."""
    if record is None or record.snapshot_id is None:
        return None
    table = context.target.find_table()
    return table if table and table.snapshot_by_id(record.snapshot_id) else None


def _was_in_use(file: WrittenFile) -> bool:
    """Return whether the state store says that a snapshot, perhaps only an older one, references the file."""
    if file.status is FileStatus.LIVE:
        # The syncs alone decide about these, by the newest snapshot.
        return file.kind not in (FileKind.DELETE_FILE, FileKind.MIRROR)
    return file.reason is not None and file.reason.shown_by_older


def _due_among(
    files: Iterable[WrittenFile], done: Cleanup, *, in_use: Container[str], own: OwnPlaces, due_ms: int
) -> list[WrittenFile]:
    """Return the files that may be removed, and count the others in `done`."""
    due = []
    for file in files:
        if file.reason is OrphanReason.TABLE_REPLACED:
            done.left["written for a table that was dropped, renamed or moved to another catalog"] += 1
        elif name_of(file.path) in in_use:
            done.left["used by a snapshot"] += 1
        elif file.since_ms > due_ms:
            done.left[IN_GRACE] += 1
        elif not own.has(file.path):
            done.left[OUTSIDE] += 1
        elif not own.may_have_written(file):
            done.left["another program wrote it"] += 1
        else:
            due.append(file)
    return due


def _record_missing_sizes(context: TableContext, table: Table, table_id: int, files: Sequence[WrittenFile]) -> None:
    """Record the sizes of files whose size is unknown, with one listing of each folder. That of a mirror says more."""
    unknown = {file.path for file in files if file.size_bytes is None and file.kind is not FileKind.MIRROR}
    storage = FileIOStorage(context.target_properties(table))
    sizes_bytes = {
        meta.path: meta.size
        for folder in sorted({path.rsplit("/", 1)[0] for path in unknown})
        for meta in storage.list_from(folder, after="")
        if meta.path in unknown
    }
    context.store.record_sizes(table_id, sizes_bytes)


def _remove(
    context: TableContext, storage: FileIOStorage, table_id: int, files: Sequence[WrittenFile], done: Cleanup
) -> None:
    """Delete the files, then record it. After a crash in between, the next run finds them gone, which is no error."""
    removed = []
    with ThreadPoolExecutor(REMOVALS_AT_ONCE, thread_name_prefix="cleanup") as pool:
        removals = [(file, pool.submit(storage.delete, file.path)) for file in files]
    for file, removal in removals:
        try:
            removal.result()
            removed.append(file)
        except ObjectStoreAway as error:
            done.failed.append(str(error))
    context.store.record_deleted(table_id, [file.path for file in removed], at_ms=context.clock.now_ms())
    done.removed += removed
