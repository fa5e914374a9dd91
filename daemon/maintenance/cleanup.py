"""Cleanup: files that dvsync wrote and that nothing refers to any more are removed, after a grace period.

The proof is the Iceberg table's own metadata, read anew each time: what one of its snapshots leads to stays. Safe to be
killed at any point, and to run beside a sync in this or another process.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Container, Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
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
from daemon.locations import canonical, parts_below, real
from daemon.storage import FileIOStorage, FileMeta
from daemon.sync.context import TableContext
from daemon.sync.transaction import kind_of
from state import FileKind, FileStatus, OrphanReason, TableRecord, WrittenFile

# Requests that remove files wait on the store, not on the processor.
REMOVALS_AT_ONCE = 16
BATCH = 500
_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# What dvsync and its catalogs call the files that they write.
DELETE_FILE_NAME = re.compile(r"\d+-\d{6}-deletes\.parquet")
METADATA_NAME = re.compile(rf"{_UUID}-\d+-m\d+\.avro|snap-\d+-{_UUID}\.avro|\d{{5,}}-{_UUID}(\.gz)?\.metadata\.json")


# Of any catalog, Hadoop's `v1.metadata.json` as well.
METADATA_SUFFIXES = (".metadata.json", ".metadata.json.gz")
GZIP = b"\x1f\x8b"


@dataclass
class Cleanup:
    """What was removed, or would be: files and bytes, as far as these are known. `left` counts orphans by why they
    stay, `found` are files that a scan found and that no row tells of, `failed` says what could not be removed."""

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
    """Remove the orphans whose time has come; `scan` looks for files that the state store does not know.

    What a scan finds is removed only with `remove_found`. `stop` ends it between two batches. Raises SyncError.
    """
    store, settings = context.store, context.settings.maintenance
    done = Cleanup()
    record = context.find_record()
    table = _find_own_table(context, record) if record else None
    if record is None or table is None:
        orphans = store.list_written(record.id, (FileStatus.ORPHANED,)) if record else []
        done.left["the Iceberg table is not there, or another one, so nothing tells what is in use"] += len(orphans)
        return done
    own = _OwnPlaces(context, table)
    # Listed first: whatever is written from here on has a row before it exists.
    listed = own.scan() if scan else []
    survey = release_files(context, record, dry_run=dry_run, delete_files=scan)
    if not survey.in_use:
        return done  # The table was dropped in this very moment.
    waiting = list(survey.orphans)
    if scan:
        there = (FileStatus.PENDING, FileStatus.LIVE, FileStatus.ORPHANED)
        known = set(survey.in_use)
        for each in store.list_tables():
            known |= {name_of(file.path) for file in store.list_written(each.id, there)}
        unknown = [meta for meta in listed if name_of(meta.path) not in known]
        done.found = own.written_among(unknown)
        other = own.find_other_table(unknown)
        if other is not None:
            done.left[f"another Iceberg table has files in the same folder, such as {other}; move one of the two"] += (
                len(done.found)
            )
            done.found = []
    if remove_found and not dry_run:
        for kind in FileKind:
            paths = [file.path for file in done.found if file.kind is kind]
            store.record_orphans(record.id, kind, paths, OrphanReason.FOUND, at_ms=survey.at_ms)
    if remove_found:
        waiting += done.found
    before_ms = survey.at_ms - round(settings.orphan_grace_s * 1000)
    judged = [(file, _why_left(file, in_use=survey.in_use, own=own, before_ms=before_ms)) for file in waiting]
    done.left += Counter(reason for _, reason in judged if reason)
    due = [file for file, reason in judged if reason is None]
    if dry_run:
        done.removed = due
        return done
    for start in range(0, len(due), BATCH):
        if stop.is_set():
            return done
        _remove(context, own.storage, record.id, due[start : start + BATCH], done)
    store.forget_before(record.id, survey.at_ms - round(settings.history_s * 1000))
    return done


def has_due_orphans(context: TableContext) -> bool:
    """Whether the grace period of a file is over that no snapshot needs, as far as the state store tells."""
    record = context.find_record()
    before_ms = context.clock.now_ms() - round(context.settings.maintenance.orphan_grace_s * 1000)
    reasons = [
        reason for reason in OrphanReason if not reason.shown_by_older and reason is not OrphanReason.TABLE_REPLACED
    ]
    return record is not None and context.store.has_orphans(record.id, before_ms=before_ms, reasons=reasons)


@dataclass(frozen=True)
class Survey:
    """What the table's metadata and the state store say of the files that dvsync wrote, at `at_ms`.

    `in_use` are file names: they hold an id of their own, and the same file may be spelled in several ways.
    """

    in_use: Set[str]
    orphans: Sequence[WrittenFile]
    at_ms: int


def release_files(context: TableContext, record: TableRecord, *, dry_run: bool, delete_files: bool = False) -> Survey:
    """Find what no snapshot leads to any more: orphaned from now on, which begins the grace period.

    With `delete_files` each delete file in use is told, even if none of them is in question.
    """
    store = context.store
    # Before the table is looked at: what is live here was committed before, so the metadata has it or has let it go.
    known = store.list_written(record.id, (FileStatus.LIVE, FileStatus.ORPHANED))
    table = _find_own_table(context, record)
    at_ms = context.clock.now_ms()
    orphans = {file.path: file for file in known if file.status is FileStatus.ORPHANED}
    if table is None:
        return Survey(frozenset(), [], at_ms)
    delete_files = delete_files or any(file.kind is FileKind.DELETE_FILE for file in orphans.values())
    in_use = {name_of(path) for path in referenced_files(table, delete_files=delete_files)}
    released = {
        file.path: with_fields(file, status=FileStatus.ORPHANED, reason=OrphanReason.SNAPSHOT_EXPIRED, since_ms=at_ms)
        for file in known
        if _was_in_use(file) and name_of(file.path) not in in_use
    }
    if not dry_run:
        store.record_unreferenced(record.id, released, OrphanReason.SNAPSHOT_EXPIRED, at_ms=at_ms)
        # A commit that landed late, metadata that was not the newest, a clock that was ahead: the grace period has not
        # begun.
        late = [
            path
            for path, file in orphans.items()
            if (name_of(path) in in_use and not _was_in_use(file)) or file.since_ms > at_ms
        ]
        store.record_still_used(record.id, late, at_ms=at_ms)
        _look_up_sizes(context, table, record.id, known)
    return Survey(in_use, list((orphans | released).values()), at_ms)


def _find_own_table(context: TableContext, record: TableRecord) -> Table | None:
    """The Iceberg table, if it has the snapshot that was recorded last: ours may have been renamed, this be another."""
    table = context.target.find_table()
    if table is None or record.snapshot_id is None or table.snapshot_by_id(record.snapshot_id) is None:
        return None
    return table


def name_of(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _was_in_use(file: WrittenFile) -> bool:
    """Whether the state store still says that a snapshot, or an older one at least, leads to the file."""
    if file.status is FileStatus.LIVE:
        # The newest snapshot's delete files are the syncs' business, down to the last position.
        return file.kind is not FileKind.DELETE_FILE
    return file.reason is not None and file.reason.shown_by_older


def _why_left(file: WrittenFile, *, in_use: Container[str], own: _OwnPlaces, before_ms: int) -> str | None:
    if file.reason is OrphanReason.TABLE_REPLACED:
        return "written for a table that was dropped, renamed or left for another catalog"
    if name_of(file.path) in in_use:
        return "a snapshot still uses it"
    if file.since_ms > before_ms:
        return "its grace period is not over"
    return None if own.has(file.path) else "it lies outside of the table's own places"


def _look_up_sizes(context: TableContext, table: Table, table_id: int, files: Sequence[WrittenFile]) -> None:
    """Learn the bytes of files that are not known yet, by one listing of each folder."""
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
    """Remove first, record then: whoever is killed in between finds the files gone, which is no error."""

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
    """The folders of the Iceberg table, in which alone dvsync removes anything."""

    def __init__(self, context: TableContext, table: Table) -> None:
        self._source = canonical(context.location)
        self._has_metadata_files = writes_metadata_files(table.catalog)
        self.storage = FileIOStorage(context.target_properties(table))
        configured = (context.settings.delete_files_location, table.properties.get("write.data.path"))
        places = {table.metadata.location, table.properties.get("write.metadata.path"), *configured}
        self._places = sorted(canonical(place).rstrip("/") for place in places if place)
        self._uuid = table.metadata.table_uuid
        # Below a table's location others may have theirs: a scan keeps to what the location provider names.
        locations = load_location_provider(table.metadata.location, table.properties)
        named = (locations.metadata_path, locations.data_path, context.settings.delete_files_location)
        self._folders = sorted({canonical(folder).rstrip("/") for folder in named if folder})

    def has(self, path: str) -> bool:
        """Whether `path` lies in one of the places, links and `..` followed, and is not the Delta table's."""
        path, source = canonical(path), self._source
        return any(
            _is_inside(path, place) and (not _is_inside(path, source) or _is_inside(place, source))
            for place in self._places
        )

    def scan(self) -> list[FileMeta]:
        """The files in the folders that dvsync writes to, each once."""
        found = {meta.path: meta for folder in self._folders for meta in self.storage.list_below(folder)}
        return [meta for meta in found.values() if self.has(meta.path)]

    def written_among(self, metas: Iterable[FileMeta]) -> list[WrittenFile]:
        """Those that have a name as dvsync gives it, or its catalog where the client names metadata files."""
        kinds = ((meta, _kind_by_name(meta)) for meta in metas)
        return [
            WrittenFile(meta.path, kind, FileStatus.ORPHANED, meta.modified_ms, OrphanReason.FOUND, meta.size)
            for meta, kind in kinds
            if kind is not None and (kind is not FileKind.METADATA or self._has_metadata_files)
        ]

    def find_other_table(self, metas: Iterable[FileMeta]) -> str | None:
        """One of these that is the metadata file of another Iceberg table: names alone do not tell whose a file is."""
        metadata_files = [meta for meta in metas if meta.path.endswith(METADATA_SUFFIXES)]
        for meta in sorted(metadata_files, key=lambda meta: meta.modified_ms, reverse=True):
            uuid = _table_uuid(self.storage.read(meta.path))
            if uuid not in (None, self._uuid):
                return meta.path
        return None


class _Metadata(msgspec.Struct):
    table_uuid: UUID = msgspec.field(name="table-uuid")


def _table_uuid(data: bytes) -> UUID | None:
    """The table's uuid by the bytes of a metadata file; None for what no reader takes for one."""
    try:
        return msgspec.json.decode(gzip.decompress(data) if data.startswith(GZIP) else data, type=_Metadata).table_uuid
    except (msgspec.DecodeError, OSError, EOFError, zlib.error):
        return None


def _kind_by_name(meta: FileMeta) -> FileKind | None:
    name = name_of(meta.path)
    return kind_of(name) if DELETE_FILE_NAME.fullmatch(name) or METADATA_NAME.fullmatch(name) else None


def _is_inside(path: str, place: str) -> bool:
    """As it is spelled, and with links followed: what only looks to be there is not removed."""
    folder = path.rpartition("/")[0]
    return (
        ".." not in path.split("/")
        and parts_below(folder, place) is not None
        and parts_below(real(folder), real(place)) is not None
    )
