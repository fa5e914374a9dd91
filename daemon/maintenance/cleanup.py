"""Cleanup: removes files that dvsync wrote and that nothing references any more, after a grace period.

The Iceberg table's own metadata decides, and is read again each time: a file that any snapshot references stays.
Cleanup may be killed at any point, and may run beside a sync in this or another process.
"""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from collections import Counter
from collections.abc import Container, Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from uuid import UUID

import msgspec
from msgspec.structs import replace as with_fields
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider

from daemon.errors import ObjectStoreAway
from daemon.iceberg.pyiceberg_ext.commits import writes_metadata_files
from daemon.iceberg.references import referenced_files
from daemon.iceberg.version_hint import NAME as HINT_NAME
from daemon.store.durable import is_local, local_path
from daemon.store.files import FileMeta
from daemon.store.locations import canonical, parts_below, real
from daemon.store.storage import FileIOStorage
from daemon.sync.context import TableContext
from daemon.sync.transaction import kind_of
from state import FileKind, FileStatus, OrphanReason, TableRecord, WrittenFile

# More threads than cores: removals wait for the store and hardly use the processor.
REMOVALS_AT_ONCE = 16
BATCH = 500
# How long the state store remembers removed files and past syncs.
HISTORY_MS = 7 * 86_400_000
# The statuses of files that may still be in the store.
THERE = (FileStatus.PENDING, FileStatus.LIVE, FileStatus.ORPHANED)
IN_GRACE = "its grace period is not over"
_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# The file names that dvsync and its catalogs give. A file that a kill cut short has one more UUID in front.
DELETE_FILE_NAME = re.compile(rf"({_UUID}-)?\d+-\d{{6}}-deletes\.(parquet|puffin)")
METADATA_NAME = re.compile(
    rf"({_UUID}-)?{_UUID}-\d+-m\d+\.avro|snap-\d+-{_UUID}\.avro|\d{{5,}}-{_UUID}(\.gz)?\.metadata\.json"
)


# The suffixes of metadata files of any catalog, also of Hadoop's `v1.metadata.json`.
METADATA_SUFFIXES = (".metadata.json", ".metadata.json.gz")
GZIP = b"\x1f\x8b"


@dataclass
class Cleanup:
    """The result of a cleanup. `removed` are the removed files, or in a dry run those to remove.

    `left` counts the orphans that stay, by reason. `found` are files that a scan found and that the state store does
    not know. `failed` has a message for each file that could not be removed.
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
    store = context.store
    done = Cleanup()
    record = context.find_record()
    table = _find_own_table(context, record) if record else None
    if record is None or table is None:
        orphans = store.list_written(record.id, (FileStatus.ORPHANED,)) if record else []
        if orphans:
            why = "the Iceberg table is missing or has been replaced, so its files in use are unknown"
            done.left[why] += len(orphans)
        return done
    own = _OwnPlaces(context, table)
    # List first: a file that is written later has its row in the state store before it exists.
    listed = own.scan() if scan else []
    survey = release_files(context, record, dry_run=dry_run, delete_files=scan)
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
            done.left[f"another Iceberg table has files in this folder, such as {other}; move one of the tables"] += (
                len(done.found)
            )
            done.found = []
        if remove_found and not dry_run:
            # Files in use are recorded as well, so that cleanup removes them once their snapshots are expired.
            _record_found(context, record, done.found, OrphanReason.FOUND, at_ms=survey.at_ms)
            _record_found(context, record, found_in_use, OrphanReason.FOUND_IN_USE, at_ms=survey.at_ms)
    if remove_found:
        waiting += done.found
    due = _due_among(waiting, done, in_use=survey.in_use, own=own, due_ms=survey.due_ms)
    if survey.waiting:
        done.left[IN_GRACE] += survey.waiting
    if dry_run:
        done.removed = due
        return done
    for start in range(0, len(due), BATCH):
        if stop.is_set():
            return done
        _remove(context, own.storage, record.id, due[start : start + BATCH], done)
    forget_history(context, record, at_ms=survey.at_ms)
    return done


def forget_history(context: TableContext, record: TableRecord, *, at_ms: int, orphans: bool = False) -> None:
    """Remove old rows from the state store; with `orphans` also those of files that cleanup has not removed."""
    context.store.forget_before(record.id, at_ms - HISTORY_MS, orphans=orphans)


def drop_table(context: TableContext) -> Cleanup | None:
    """Drop the Iceberg table from its catalog, then remove the files that dvsync wrote for it, without grace.

    Returns None if the catalog has no such table with the snapshot that was recorded last. Raises SyncError; if the
    store fails, files are left that nothing knows any more.
    """
    record = context.find_record()
    table = _find_own_table(context, record) if record else None
    if record is None or table is None:
        return None
    written = context.store.list_written(record.id, THERE)
    own = _OwnPlaces(context, table, written)
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


def _record_found(
    context: TableContext, record: TableRecord, files: Sequence[WrittenFile], reason: OrphanReason, *, at_ms: int
) -> None:
    for kind in FileKind:
        paths = [file.path for file in files if file.kind is kind]
        context.store.record_orphans(record.id, kind, paths, reason, at_ms=at_ms)


def has_due_orphans(context: TableContext) -> bool:
    """Return whether, according to the state store, the grace period of an unreferenced file is over."""
    record = context.find_record()
    before_ms = context.clock.now_ms() - round(context.settings.maintenance.orphan_grace_s * 1000)
    reasons = [
        reason for reason in OrphanReason if not reason.shown_by_older and reason is not OrphanReason.TABLE_REPLACED
    ]
    return record is not None and context.store.has_orphans(record.id, before_ms=before_ms, reasons=reasons)


@dataclass(frozen=True)
class Survey:
    """The files that dvsync wrote, by the table's metadata and the state store, at `at_ms`.

    `in_use` are file names without folders: each name contains a unique id, and paths have several spellings. The grace
    period is over for orphans since `due_ms`. `waiting` counts further orphans whose grace period is not over.
    """

    in_use: Set[str]
    orphans: Sequence[WrittenFile]
    waiting: int
    at_ms: int
    due_ms: int


def release_files(context: TableContext, record: TableRecord, *, dry_run: bool, delete_files: bool = False) -> Survey:
    """Mark files that no snapshot references any more as orphaned, which begins their grace period.

    With `delete_files`, `in_use` has every delete file. Otherwise it has them only if one of the orphans is a delete
    file, because finding them means reading every delete manifest.
    """
    store = context.store
    # Read the state store before the table: a file that is live here was committed earlier, so the metadata that is
    # loaded next either references it or has dropped it.
    listed_ms = context.clock.now_ms()
    due_ms = listed_ms - round(context.settings.maintenance.orphan_grace_s * 1000)
    known, waiting = store.list_for_cleanup(record.id, due_ms=due_ms, now_ms=listed_ms)
    table = _find_own_table(context, record)
    at_ms = context.clock.now_ms()
    orphans = {file.path: file for file in known if file.status is FileStatus.ORPHANED}
    if table is None:
        return Survey(frozenset(), [], waiting, at_ms, due_ms)
    delete_files = delete_files or any(
        file.kind is FileKind.DELETE_FILE and file.reason is not OrphanReason.TABLE_REPLACED
        for file in orphans.values()
    )
    referenced = referenced_files(table, delete_files=delete_files)
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


def _find_own_table(context: TableContext, record: TableRecord) -> Table | None:
    """Load the Iceberg table. None if it lacks the snapshot that was recorded last, so that it may be another table."""
    table = context.target.find_table()
    if table is None or record.snapshot_id is None or table.snapshot_by_id(record.snapshot_id) is None:
        return None
    return table


def name_of(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _was_in_use(file: WrittenFile) -> bool:
    """Return whether the state store says that a snapshot, perhaps only an older one, references the file."""
    if file.status is FileStatus.LIVE:
        # The syncs alone decide about delete files of the newest snapshot.
        return file.kind is not FileKind.DELETE_FILE
    return file.reason is not None and file.reason.shown_by_older


def _due_among(
    files: Iterable[WrittenFile], done: Cleanup, *, in_use: Container[str], own: _OwnPlaces, due_ms: int
) -> list[WrittenFile]:
    """Return the files that may be removed, and count the others in `done`."""
    reasons = [(file, _why_left(file, in_use=in_use, own=own, due_ms=due_ms)) for file in files]
    done.left += Counter(reason for _, reason in reasons if reason)
    return [file for file, reason in reasons if reason is None]


def _why_left(file: WrittenFile, *, in_use: Container[str], own: _OwnPlaces, due_ms: int) -> str | None:
    if file.reason is OrphanReason.TABLE_REPLACED:
        return "written for a table that was dropped, renamed or moved to another catalog"
    if name_of(file.path) in in_use:
        return "used by a snapshot"
    if file.since_ms > due_ms:
        return IN_GRACE
    return None if own.has(file.path) else "it lies outside of the table's own folders"


def _record_missing_sizes(context: TableContext, table: Table, table_id: int, files: Sequence[WrittenFile]) -> None:
    """Record the sizes of files whose size is unknown, with one listing of each folder."""
    unknown = {file.path for file in files if file.size_bytes is None}
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

    def remove(file: WrittenFile) -> ObjectStoreAway | None:
        try:
            storage.delete(file.path)
        except ObjectStoreAway as error:
            return error
        return None

    with ThreadPoolExecutor(REMOVALS_AT_ONCE, thread_name_prefix="cleanup") as pool:
        errors = list(pool.map(remove, files))
    removed = [file for file, error in zip(files, errors, strict=True) if error is None]
    context.store.record_deleted(table_id, [file.path for file in removed], at_ms=context.clock.now_ms())
    done.removed += removed
    done.failed += [str(error) for error in errors if error is not None]


class _OwnPlaces:
    """The folders of the Iceberg table. dvsync removes files only inside of them."""

    def __init__(self, context: TableContext, table: Table, written: Iterable[WrittenFile] = ()) -> None:
        """`written` are files that the state store knows: the configuration may not name their folders any more."""
        self._source = canonical(context.location)
        self._has_metadata_files = writes_metadata_files(table.catalog)
        self.storage = FileIOStorage(context.target_properties(table))
        configured = (context.settings.delete_files_location, table.properties.get("write.data.path"))
        known = (file.path.rpartition("/")[0] for file in written if DELETE_FILE_NAME.fullmatch(name_of(file.path)))
        places = {table.metadata.location, table.properties.get("write.metadata.path"), *configured, *known}
        self._places = sorted(canonical(place).rstrip("/") for place in places if place)
        self._uuid = table.metadata.table_uuid
        # Scan only the folders that the location provider names: other tables may lie below this table's location.
        locations = load_location_provider(table.metadata.location, table.properties)
        named = (locations.metadata_path, locations.data_path, context.settings.delete_files_location)
        self._folders = sorted({canonical(folder).rstrip("/") for folder in named if folder})

    def has(self, path: str) -> bool:
        """Return whether `path` lies in one of the folders, with links followed, and not inside the Delta table."""
        path, source = canonical(path), self._source
        return any(
            _is_inside(path, place) and (not _is_inside(path, source) or _is_inside(place, source))
            for place in self._places
        )

    def remove_empty_folders(self, removed: Iterable[str]) -> None:
        """Remove the local folders of these files that are empty now, and those around them, up to the places."""
        folders = set()
        for path in removed:
            folder = canonical(path).rpartition("/")[0]
            while is_local(folder) and any(parts_below(folder, place) is not None for place in self._places):
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        for folder in sorted(folders, key=len, reverse=True):
            with suppress(OSError):
                local_path(folder).rmdir()

    def scan(self) -> list[FileMeta]:
        """List the files in the folders that dvsync writes to, each file once."""
        found = {meta.path: meta for folder in self._folders for meta in self.storage.list_below(folder)}
        return [meta for meta in found.values() if self.has(meta.path)]

    def written_among(self, metas: Iterable[FileMeta]) -> list[WrittenFile]:
        """Return the files whose names match those that dvsync gives, or its catalog's client for metadata files."""
        kinds = ((meta, _kind_by_name(meta)) for meta in metas)
        return [
            WrittenFile(meta.path, kind, FileStatus.ORPHANED, meta.modified_ms, OrphanReason.FOUND, meta.size)
            for meta, kind in kinds
            if kind is not None and (kind is not FileKind.METADATA or self._has_metadata_files)
        ]

    def find_other_table(self, metas: Iterable[FileMeta]) -> str | None:
        """Return a metadata file of another Iceberg table among `metas`, or None.

        If there is one, the other files may belong to that table, too: names do not show the owner.
        """
        metadata_files = [meta for meta in metas if meta.path.endswith(METADATA_SUFFIXES)]
        for meta in sorted(metadata_files, key=lambda meta: meta.modified_ms, reverse=True):
            uuid = _table_uuid(self.storage.read(meta.path))
            if uuid not in (None, self._uuid):
                return meta.path
        return None


class _Metadata(msgspec.Struct):
    table_uuid: UUID = msgspec.field(name="table-uuid")


def _table_uuid(data: bytes) -> UUID | None:
    """Return the table's uuid from the bytes of a metadata file. None if no reader could read the file."""
    try:
        return msgspec.json.decode(gzip.decompress(data) if data.startswith(GZIP) else data, type=_Metadata).table_uuid
    except (msgspec.DecodeError, OSError, EOFError, zlib.error):
        return None


def _kind_by_name(meta: FileMeta) -> FileKind | None:
    name = name_of(meta.path)
    return kind_of(name) if DELETE_FILE_NAME.fullmatch(name) or METADATA_NAME.fullmatch(name) else None


def _is_inside(path: str, place: str) -> bool:
    """Return whether `path` is inside `place`, both as spelled and after following links, to be safe."""
    folder = path.rpartition("/")[0]
    return (
        ".." not in path.split("/")
        and parts_below(folder, place) is not None
        and parts_below(real(folder), real(place)) is not None
    )
