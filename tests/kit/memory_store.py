"""The state store in plain dictionaries, for fast tests. It passes the same contract as the SQL one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec
from msgspec.structs import replace

from state.cursor import advance_cursor, join_commits
from state.records import (
    CommitIdentity,
    DeleteFileRecord,
    DeletionVectorDescriptor,
    FileKind,
    FileStatus,
    Intent,
    Lease,
    LiveFile,
    MirrorRecord,
    OrphanReason,
    Outcome,
    Pause,
    ProofRecord,
    SyncRun,
    TableError,
    TableRecord,
    VectorFile,
    Wait,
    WrittenFile,
)
from state.reports import (
    Deletions,
    MirrorCount,
    PartitionCount,
    ServingFile,
    TableCounts,
    VectorCount,
    WrittenCount,
    most_frequent,
)


@dataclass
class _Intent:
    intent: Intent
    outcome: Outcome | None = None
    is_open: bool = True


@dataclass
class _Table:
    record: TableRecord
    data_files: dict[str, LiveFile] = field(default_factory=dict)
    delete_files: dict[str, DeleteFileRecord] = field(default_factory=dict)
    # The files that dvsync wrote; a delete file and a file of another kind may have the same path.
    written: dict[tuple[bool, str], WrittenFile] = field(default_factory=dict)
    # As they were recorded: what becomes of them is in `written`.
    mirrors: dict[str, MirrorRecord] = field(default_factory=dict)
    intents: dict[tuple[bool, str], int] = field(default_factory=dict)
    runs: list[SyncRun] = field(default_factory=list)
    vectors: list[VectorFile] = field(default_factory=list)
    recent_commits: tuple[CommitIdentity, ...] = ()

    def find_written(self, kind: FileKind, path: str) -> WrittenFile | None:
        return self.written.get((kind is FileKind.DELETE_FILE, path))

    def write(self, file: WrittenFile) -> None:
        self.written[file.kind is FileKind.DELETE_FILE, file.path] = file

    def make_live(self, kind: FileKind, path: str, at_ms: int, *, size_bytes: int | None = None) -> None:
        known = self.find_written(kind, path) or WrittenFile(path, kind, FileStatus.PENDING, at_ms)
        if known.status is not FileStatus.LIVE:
            known = WrittenFile(path, kind, FileStatus.LIVE, at_ms, size_bytes=known.size_bytes)
        self.write(known if size_bytes is None else replace(known, size_bytes=size_bytes))

    def make_orphan(self, file: WrittenFile, reason: OrphanReason, at_ms: int) -> None:
        self.write(replace(file, status=FileStatus.ORPHANED, reason=reason, since_ms=at_ms))

    def pending(self, intent_id: int | None = None) -> list[WrittenFile]:
        """The pending files of an intent, or all."""
        return [
            file
            for key, file in self.written.items()
            if file.status is FileStatus.PENDING and intent_id in (None, self.intents.get(key))
        ]

    def add_file(self, file: LiveFile, at_ms: int) -> None:
        self.data_files[file.path] = file
        self.make_live(FileKind.MANIFEST, file.manifest_path, at_ms)

    def remove_file(self, path: str) -> None:
        self.data_files.pop(path, None)
        for name, delete_file in self.delete_files.items():
            kept = tuple(mapping for mapping in delete_file.mappings if mapping.data_file != path)
            self.delete_files[name] = replace(delete_file, mappings=kept)

    def end_vector(self, delete_file: str, data_file: str) -> None:
        if known := self.delete_files.get(delete_file):
            self.delete_files[delete_file] = replace(
                known,
                mappings=tuple(mapping for mapping in known.mappings if mapping.data_file != data_file),
                dead=tuple(sorted({*known.dead, data_file})),
            )

    def add_delete_file(self, delete_file: DeleteFileRecord, at_ms: int) -> None:
        live = sorted(
            (mapping for mapping in delete_file.mappings if mapping.data_file in self.data_files),
            key=lambda mapping: mapping.data_file,
        )
        self.delete_files[delete_file.path] = replace(delete_file, mappings=tuple(live))
        self.make_live(FileKind.DELETE_FILE, delete_file.path, at_ms, size_bytes=delete_file.size_bytes)
        self.make_live(FileKind.MANIFEST, delete_file.manifest_path, at_ms)

    def remove_delete_file(self, path: str, reason: OrphanReason, at_ms: int) -> None:
        self.delete_files.pop(path, None)
        known = self.find_written(FileKind.DELETE_FILE, path)
        if known is None or known.status in (FileStatus.PENDING, FileStatus.LIVE):
            self.make_orphan(known or WrittenFile(path, FileKind.DELETE_FILE, FileStatus.LIVE, at_ms), reason, at_ms)

    def move_manifest(self, old: str, new: str, at_ms: int) -> None:
        self.make_live(FileKind.MANIFEST, new, at_ms)
        for path, file in self.data_files.items():
            if file.manifest_path == old:
                self.data_files[path] = replace(file, manifest_path=new)
        for path, delete_file in self.delete_files.items():
            if delete_file.manifest_path == old:
                self.delete_files[path] = replace(delete_file, manifest_path=new)

    def find_mirrors(self) -> list[MirrorRecord]:
        found = []
        for path, mirror in self.mirrors.items():
            if file := self.find_written(FileKind.MIRROR, path):
                now = {name: getattr(file, name) for name in ("status", "since_ms", "size_bytes", "reason")}
                found.append(replace(mirror, **now))
        return found

    def orphan_mirrors(self, paths: Collection[str], at_ms: int) -> None:
        for file in [self.find_written(FileKind.MIRROR, path) for path in paths]:
            if file and file.status is FileStatus.LIVE:
                self.make_orphan(file, OrphanReason.DATA_FILES_GONE, at_ms)

    def write_mirror(self, mirror: MirrorRecord, status: FileStatus, at_ms: int, intent_id: int | None) -> None:
        known = self.find_written(FileKind.MIRROR, mirror.path)
        if known is not None and known.status is FileStatus.LIVE:
            return
        self.mirrors[mirror.path] = mirror
        reason = mirror.reason if status is FileStatus.PENDING else None
        self.write(WrittenFile(mirror.path, FileKind.MIRROR, status, at_ms, reason, mirror.size_bytes))
        if intent_id is not None:
            self.intents[False, mirror.path] = intent_id

    def forget_pending(self, paths: Iterable[str]) -> None:
        for path in paths:
            for key in ((False, path), (True, path)):
                if key in self.written and self.written[key].status is FileStatus.PENDING:
                    self.forget(key)

    def forget(self, key: tuple[bool, str]) -> None:
        del self.written[key]
        self.intents.pop(key, None)

    def land_pending(self, intent_id: int | None, at_ms: int) -> None:
        if intent_id is not None:
            for file in self.pending(intent_id):
                self.make_live(file.kind, file.path, at_ms)

    def take_back_metadata(self, intent_id: int | None, metadata_location: str | None, at_ms: int) -> None:
        for key, file in list(self.written.items()):
            owned = intent_id is not None and self.intents.get(key) == intent_id
            in_use = not key[0] and (owned or file.path == metadata_location)
            if in_use and file.status in (FileStatus.PENDING, FileStatus.ORPHANED):
                self.make_live(file.kind, file.path, at_ms)

    def orphan_pending(self, reason: OrphanReason, at_ms: int, *, intent_id: int | None = None) -> None:
        for file in self.pending(intent_id):
            shown = file.reason if file.reason and file.reason.shown_by_older else None
            self.make_orphan(file, shown or reason, at_ms)

    def update_written(self, paths: Collection[str], statuses: Collection[FileStatus], **columns: Any) -> None:
        for file in [file for file in self.written.values() if file.path in paths and file.status in statuses]:
            self.write(replace(file, **columns))

    def count_mirrors(self) -> tuple[MirrorCount, ...]:
        sizes_bytes: dict[tuple[str, str | None], list[int]] = {}
        for mirror in self.find_mirrors():
            if mirror.status is FileStatus.LIVE:
                sizes_bytes.setdefault((mirror.kind, mirror.why), []).append(mirror.size_bytes or 0)
        return most_frequent(MirrorCount(*of, len(sizes), sum(sizes)) for of, sizes in sizes_bytes.items())

    def count_written(self) -> tuple[WrittenCount, ...]:
        groups: dict[tuple[FileKind, FileStatus], list[WrittenFile]] = {}
        for file in self.written.values():
            groups.setdefault((file.kind, file.status), []).append(file)
        return tuple(
            WrittenCount(
                kind,
                status,
                len(files),
                sum(sizes) if (sizes := [file.size_bytes for file in files if file.size_bytes is not None]) else None,
                min(file.since_ms for file in files),
            )
            for (kind, status), files in sorted(
                groups.items(), key=lambda group: (group[0][0] is not FileKind.DELETE_FILE, *group[0])
            )
        )


class MemoryStateStore:
    """A `StateStore` that forgets everything when it goes. It is its process's own: nobody can take its lease away."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids = count(1)
        self._tables: dict[int, _Table] = {}
        self._intents: dict[int, _Intent] = {}
        self._lease = Lease()
        self._share: int | None = None

    def close(self) -> None:
        """Nothing to close."""

    def claim_share(self, number: int) -> int:
        with self._lock:
            self._share = self._share or number
            return self._share

    def check_writable(self) -> None:
        """Memory is."""

    def read_lease(self) -> Lease:
        return self._lease

    def take_lease(self, seen: Lease, holder: str, *, has_lock: bool, address: str | None = None) -> bool:
        with self._lock:
            now = self._lease
            if (now.token, now.renewals) != (seen.token, seen.renewals):
                return False
            self._lease = Lease(seen.token + 1, holder, has_lock=has_lock, address=address, reloads=now.reloads)
            return True

    def renew_lease(self, *, has_lock: bool) -> int:
        with self._lock:
            self._lease = replace(self._lease, renewals=self._lease.renewals + 1, has_lock=has_lock)
            return self._lease.reloads

    def ask_for_reload(self) -> None:
        with self._lock:
            self._lease = replace(self._lease, reloads=self._lease.reloads + 1)

    def check_lease(self) -> None:
        """Nobody else can have taken it."""

    def give_back_lease(self) -> None:
        with self._lock:
            self._lease = replace(self._lease, renewals=self._lease.renewals + 1, holder=None, address=None)

    def open_table(self, name: str, source: str, target: str) -> TableRecord:
        with self._lock:
            for table in self._tables.values():
                if table.record.name == name:
                    if (table.record.source, table.record.target) == (source, target):
                        return table.record
                    self._forget(table.record.id)
                    break
            record = TableRecord(next(self._ids), name, source, target)
            self._tables[record.id] = _Table(record)
            return record

    def find_table(self, name: str, source: str, target: str) -> TableRecord | None:
        with self._lock:
            found = [table.record for table in self._tables.values() if table.record.name == name]
            return next((record for record in found if (record.source, record.target) == (source, target)), None)

    def count_tables(self) -> int:
        return len(self._tables)

    def list_tables(self) -> list[TableRecord]:
        with self._lock:
            return sorted((table.record for table in self._tables.values()), key=lambda record: record.name)

    def forget_table(self, table_id: int) -> None:
        with self._lock:
            self._forget(table_id)

    def _forget(self, table_id: int) -> None:
        del self._tables[table_id]
        for intent in [known.intent for known in self._intents.values()]:
            if intent.table_id == table_id:
                del self._intents[intent.id]

    def rename_table(self, table_id: int, name: str) -> None:
        with self._lock:
            table = self._tables[table_id]
            table.record = replace(table.record, name=name)

    def find_live_files(self, table_id: int, paths: Collection[str]) -> dict[str, LiveFile]:
        with self._lock:
            data_files = self._tables[table_id].data_files
            return {path: data_files[path] for path in paths if path in data_files}

    def read_live_files(self, table_id: int) -> Iterator[LiveFile]:
        with self._lock:
            data_files = sorted(self._tables[table_id].data_files.values(), key=lambda file: file.path)
        yield from data_files

    def find_delete_files(
        self, table_id: int, data_files: Collection[str], *, dead: bool = False
    ) -> list[DeleteFileRecord]:
        with self._lock:
            known = self._tables[table_id].delete_files.values()
        wanted = set(data_files)
        return sorted(
            (file for file in known if not wanted.isdisjoint(file.dead if dead else file.served)),
            key=lambda file: file.path,
        )

    def find_served(self, table_id: int, delete_files: Collection[str]) -> dict[str, set[str]]:
        with self._lock:
            known = self._tables[table_id].delete_files
            return {
                path: {mapping.data_file for mapping in known[path].mappings} if path in known else set()
                for path in delete_files
            }

    def find_mirrors(self, table_id: int, data_files: Collection[str]) -> list[MirrorRecord]:
        with self._lock:
            return [each for each in self._tables[table_id].find_mirrors() if each.data_file in data_files]

    def list_live_mirrors(self, table_id: int) -> list[MirrorRecord]:
        with self._lock:
            return [each for each in self._tables[table_id].find_mirrors() if each.status is FileStatus.LIVE]

    def sum_mirror_surplus(self, table_id: int, *, without: Collection[str]) -> int:
        counted = [each for each in self.list_live_mirrors(table_id) if each.path not in without]
        return sum((each.size_bytes or 0) - each.data_file_bytes for each in counted)

    def record_mirrors(self, intent_id: int, mirrors: Collection[MirrorRecord]) -> None:
        with self._lock:
            intent = self._intents[intent_id].intent
            for mirror in mirrors:
                table = self._tables[intent.table_id]
                table.write_mirror(mirror, FileStatus.PENDING, intent.created_at_ms, intent_id)

    def record_found_mirrors(self, table_id: int, mirrors: Collection[MirrorRecord], *, at_ms: int) -> None:
        with self._lock:
            table = self._tables[table_id]
            for mirror in mirrors:
                if table.find_written(FileKind.MIRROR, mirror.path) is None:
                    table.write_mirror(mirror, FileStatus.PENDING, at_ms, None)
                    written = table.written[False, mirror.path]
                    table.make_orphan(written, OrphanReason.FOUND_IN_USE, at_ms)

    def find_recent_commits(self, table_id: int) -> tuple[CommitIdentity, ...]:
        with self._lock:
            return self._tables[table_id].recent_commits

    def record_intent(self, intent: Intent, pending: Mapping[FileKind, Sequence[str]]) -> None:
        with self._lock:
            if intent.table_id not in self._tables:
                raise LookupError(f"no table has the id {intent.table_id}")
            self._intents.setdefault(intent.id, _Intent(intent))
        self.record_pending(intent.id, pending)

    def record_pending(self, intent_id: int, paths: Mapping[FileKind, Sequence[str]]) -> None:
        with self._lock:
            intent = self._intents[intent_id].intent
            table = self._tables[intent.table_id]
            for kind, path in ((kind, path) for kind, members in paths.items() for path in members):
                known = table.find_written(kind, path)
                if known is None or known.status is not FileStatus.LIVE:
                    size_bytes = known.size_bytes if known else None
                    table.write(
                        WrittenFile(path, kind, FileStatus.PENDING, intent.created_at_ms, size_bytes=size_bytes)
                    )
                    table.intents[kind is FileKind.DELETE_FILE, path] = intent_id

    def record_prepared(self, intent_id: int, outcome: Outcome) -> None:
        with self._lock:
            self._intents[intent_id].outcome = outcome

    def find_open_intents(self, table_id: int) -> list[tuple[Intent, Outcome | None]]:
        with self._lock:
            if table_id not in self._tables:
                raise LookupError(f"no table has the id {table_id}")
            opened = [
                (known.intent, known.outcome)
                for known in self._intents.values()
                if known.is_open and known.intent.table_id == table_id
            ]
        return sorted(opened, key=lambda known: (known[0].created_at_ms, known[0].id))

    def record_synced(self, intent_id: int | None, outcome: Outcome, *, at_ms: int) -> None:
        with self._lock:
            table = self._tables[outcome.table_id]
            table.forget_pending(outcome.unwritten_files)
            for old, new in outcome.moved_manifests:
                table.move_manifest(old, new, at_ms)
            for delete_file, data_file in outcome.dead_vectors:
                table.end_vector(delete_file, data_file)
            for path in outcome.removed_files:
                table.remove_file(path)
            for file in outcome.added_files:
                table.add_file(file, at_ms)
            for path, deletion_vector in outcome.changed_dvs:
                if path in table.data_files:
                    table.data_files[path] = replace(table.data_files[path], deletion_vector=deletion_vector)
            for path, uri in outcome.changed_uris:
                if path in table.data_files:
                    table.data_files[path] = replace(table.data_files[path], uri=uri)
            for path, reason in outcome.removed_delete_files:
                table.remove_delete_file(path, reason, at_ms)
            for delete_file in outcome.added_delete_files:
                table.add_delete_file(delete_file, at_ms)
            table.orphan_mirrors(outcome.removed_mirrors, at_ms)
            table.land_pending(intent_id, at_ms)
            if intent_id in self._intents:
                self._intents[intent_id].is_open = False
            table.recent_commits = join_commits(table.record, table.recent_commits, outcome)
            table.record = advance_cursor(table.record, outcome, at_ms=at_ms)

    def record_rebuilt(
        self,
        outcome: Outcome,
        live_files: Iterable[LiveFile],
        delete_files: Iterable[DeleteFileRecord],
        *,
        at_ms: int,
        synced_at_ms: int | None = None,
        mirrors: Collection[MirrorRecord] = (),
    ) -> None:
        with self._lock:
            table = self._tables[outcome.table_id]
            table.recent_commits = join_commits(table.record, table.recent_commits, outcome)
            advanced = advance_cursor(table.record, outcome, at_ms=at_ms)
            table.record = replace(advanced, snapshot_id=None, last_synced_at_ms=synced_at_ms or at_ms)
            table.data_files.clear()
            table.delete_files.clear()
            for path, reason in outcome.removed_delete_files:
                table.remove_delete_file(path, reason, at_ms)
        # Read without the lock: an iterable may wait for a thread that writes here, and may fail half way.
        read_files, read_delete_files = list(live_files), list(delete_files)
        with self._lock:
            table = self._tables[outcome.table_id]
            for data_file in read_files:
                table.add_file(data_file, at_ms)
            for delete_file in read_delete_files:
                table.add_delete_file(delete_file, at_ms)
            for file in list(table.written.values()):
                is_live = (file.kind, file.status) == (FileKind.DELETE_FILE, FileStatus.LIVE)
                if is_live and file.path not in table.delete_files:
                    table.make_orphan(file, OrphanReason.DATA_FILES_GONE, at_ms)
            table.forget_pending(outcome.unwritten_files)
            table.land_pending(outcome.snapshot_id, at_ms)
            table.take_back_metadata(outcome.snapshot_id, outcome.metadata_location, at_ms)
            table.orphan_pending(OrphanReason.COMMIT_FAILED, at_ms)
            for mirror in mirrors:
                table.write_mirror(mirror, FileStatus.LIVE, at_ms, None)
            table.orphan_mirrors(table.mirrors.keys() - table.data_files.keys(), at_ms)
            for known in self._intents.values():
                known.is_open = known.is_open and known.intent.table_id != outcome.table_id
            table.record = replace(table.record, snapshot_id=outcome.snapshot_id)

    def record_abandoned(
        self,
        intent_id: int,
        reason: OrphanReason,
        *,
        at_ms: int,
        in_use: Collection[str] = (),
        unwritten: Collection[str] = (),
    ) -> None:
        with self._lock:
            if intent_id in self._intents:
                known = self._intents[intent_id]
                known.is_open = False
                table = self._tables[known.intent.table_id]
                pending = table.pending(intent_id)
                table.forget_pending([file.path for file in pending if file.path in unwritten])
                for file in pending:
                    if file.path in in_use:
                        table.make_live(file.kind, file.path, at_ms)
                table.orphan_pending(reason, at_ms, intent_id=intent_id)

    def record_orphans(
        self, table_id: int, kind: FileKind, paths: Sequence[str], reason: OrphanReason, *, at_ms: int
    ) -> None:
        with self._lock:
            table = self._tables[table_id]
            for path in paths:
                if table.find_written(kind, path) is None:
                    table.make_orphan(WrittenFile(path, kind, FileStatus.LIVE, at_ms), reason, at_ms)

    def record_unreferenced(self, table_id: int, paths: Collection[str], reason: OrphanReason, *, at_ms: int) -> None:
        with self._lock:
            table = self._tables[table_id]
            manifests = {file.manifest_path for file in table.data_files.values()}
            manifests |= {delete_file.manifest_path for delete_file in table.delete_files.values()}
            for file in [file for file in table.written.values() if file.path in paths]:
                is_metadata = file.kind not in (FileKind.DELETE_FILE, FileKind.MIRROR)
                is_unused = is_metadata and file.path not in manifests
                if file.status is FileStatus.ORPHANED or (file.status is FileStatus.LIVE and is_unused):
                    table.make_orphan(file, reason, at_ms)

    def record_still_used(self, table_id: int, paths: Collection[str], *, at_ms: int) -> None:
        with self._lock:
            table = self._tables[table_id]
            older = {file.path for file in table.written.values() if file.reason and file.reason.shown_by_older}
            table.update_written(set(paths) - older, (FileStatus.ORPHANED,), since_ms=at_ms)

    def record_table_replaced(self, table_id: int, *, at_ms: int) -> None:
        with self._lock:
            table = self._tables[table_id]
            table.data_files.clear()
            table.delete_files.clear()
            for file in list(table.written.values()):
                in_use = file.status in (FileStatus.PENDING, FileStatus.LIVE)
                if in_use or (file.status is FileStatus.ORPHANED and file.reason and file.reason.shown_by_older):
                    table.make_orphan(file, OrphanReason.TABLE_REPLACED, at_ms)
            table.record = replace(table.record, snapshot_id=None, metadata_location=None, format_version=None)

    def record_sizes(self, table_id: int, sizes_bytes: Mapping[str, int]) -> None:
        with self._lock:
            table = self._tables[table_id]
            for path, size_bytes in sizes_bytes.items():
                table.update_written((path,), tuple(FileStatus), size_bytes=size_bytes)
                if path in table.delete_files:
                    table.delete_files[path] = replace(table.delete_files[path], size_bytes=size_bytes)

    def record_deleted(self, table_id: int, paths: Collection[str], *, at_ms: int) -> None:
        with self._lock:
            self._tables[table_id].update_written(
                paths, (FileStatus.ORPHANED,), status=FileStatus.DELETED, since_ms=at_ms
            )

    def forget_before(self, table_id: int, before_ms: int, *, orphans: bool = False) -> None:
        with self._lock:
            table = self._tables[table_id]
            for key, file in list(table.written.items()):
                left = file.status is FileStatus.ORPHANED and file.reason is not OrphanReason.TABLE_REPLACED
                if (file.status is FileStatus.DELETED or (orphans and left)) and file.since_ms < before_ms:
                    table.forget(key)
            if orphans:
                table.vectors = [file for file in table.vectors if file.since_ms >= before_ms]
            table.runs = [run for run in table.runs if run.started_at_ms >= before_ms]
            self._intents = {
                intent_id: known
                for intent_id, known in self._intents.items()
                if known.is_open or known.intent.table_id != table_id or known.intent.created_at_ms >= before_ms
            }
            table.intents = {key: intent_id for key, intent_id in table.intents.items() if intent_id in self._intents}

    def record_failure(self, table_id: int, error: TableError | None) -> None:
        with self._lock:
            table = self._tables[table_id]
            table.record = replace(table.record, error=error)

    def record_wait(self, table_id: int, wait: Wait | None) -> None:
        with self._lock:
            table = self._tables[table_id]
            table.record = replace(table.record, wait=wait)

    def record_proof(self, table_id: int, proof: ProofRecord | None) -> None:
        with self._lock:
            table = self._tables[table_id]
            table.record = replace(table.record, proof=proof)

    def record_run(self, run: SyncRun, *, committed: Collection[str] = ()) -> None:
        with self._lock:
            self._tables[run.table_id].runs.append(run)
        self.forget_vectors(run.table_id, committed)

    def record_vectors(self, table_id: int, files: Sequence[VectorFile]) -> None:
        with self._lock:
            self._tables[table_id].vectors += files

    def list_vectors(self, table_id: int) -> list[VectorFile]:
        with self._lock:
            return sorted(self._tables[table_id].vectors, key=lambda file: (file.since_ms, file.path))

    def forget_vectors(self, table_id: int, paths: Collection[str]) -> None:
        with self._lock:
            table = self._tables[table_id]
            table.vectors = [file for file in table.vectors if file.path not in paths]

    def record_pause(self, table_id: int, pause: Pause | None) -> None:
        with self._lock:
            table = self._tables[table_id]
            table.record = replace(table.record, pause=pause)

    def end_pause(self, table_id: int, *, at_ms: int) -> None:
        with self._lock:
            table = self._tables[table_id]
            table.record = replace(table.record, pause=table.record.pause_at(at_ms))

    def record_resync_wanted(self, table_id: int, wanted: bool) -> None:
        with self._lock:
            table = self._tables[table_id]
            table.record = replace(table.record, resync_wanted=wanted)

    def count(self, table_id: int) -> TableCounts:
        with self._lock:
            table = self._tables[table_id]
            vectors = [file.deletion_vector for file in table.data_files.values() if file.deletion_vector]
            deleted_positions = sum(vector.cardinality for vector in vectors)
            return TableCounts(
                live_data_files=len(table.data_files),
                live_rows=sum(file.record_count for file in table.data_files.values()) - deleted_positions,
                deleted_positions=deleted_positions,
                live_bytes=sum(file.size_bytes for file in table.data_files.values()),
                written=table.count_written(),
                mirrors=table.count_mirrors(),
            )

    def find_deletions(self, table_id: int, *, rows_max: int) -> Deletions:
        with self._lock:
            table = self._tables[table_id]
            vectors: dict[str, list[DeletionVectorDescriptor]] = {}
            partitions: dict[tuple[int, tuple[str | None, ...]], list[LiveFile]] = {}
            for file in table.data_files.values():
                partitions.setdefault((file.spec_id, file.partition), []).append(file)
                if file.deletion_vector:
                    vectors.setdefault(file.deletion_vector.storage_type, []).append(file.deletion_vector)
            counted = [
                PartitionCount(*key, len(files), sum(file.record_count for file in files), sum(map(_deleted, files)))
                for key, files in partitions.items()
                if any(map(_deleted, files))
            ]
            deleted = sorted(
                filter(_deleted, table.data_files.values()),
                key=lambda file: (-_deleted(file) / file.record_count, file.path),
            )
            since_ms = {path: file.since_ms for (is_delete, path), file in table.written.items() if is_delete}
            serving = [
                ServingFile(each.path, each.size_bytes, each.positions, since_ms[each.path], len(each.mappings))
                for each in table.delete_files.values()
            ]
        return Deletions(
            vectors=tuple(
                VectorCount(kind, len(each), sum(dv.size_in_bytes for dv in each), sum(dv.cardinality for dv in each))
                for kind, each in sorted(vectors.items())
            ),
            files=tuple(deleted[:rows_max]),
            partitions=tuple(sorted(counted, key=_worst_partition_first)[:rows_max]),
            delete_files=tuple(sorted(serving, key=lambda each: (-each.positions, each.path))[:rows_max]),
        )

    def list_written(self, table_id: int, statuses: Collection[FileStatus]) -> list[WrittenFile]:
        with self._lock:
            files = [file for file in self._tables[table_id].written.values() if file.status in statuses]
        return sorted(files, key=lambda file: (file.since_ms, file.path))

    def list_for_cleanup(self, table_id: int, *, due_ms: int, now_ms: int) -> tuple[list[WrittenFile], int]:
        files = self.list_written(table_id, (FileStatus.LIVE, FileStatus.ORPHANED))
        waiting = {
            file.path
            for file in files
            if file.reason is OrphanReason.SNAPSHOT_EXPIRED and due_ms < file.since_ms <= now_ms
        }
        return [file for file in files if file.path not in waiting], len(waiting)

    def has_orphans(self, table_id: int, *, before_ms: int, reasons: Collection[OrphanReason]) -> bool:
        with self._lock:
            return any(
                file.status is FileStatus.ORPHANED and file.since_ms <= before_ms and file.reason in reasons
                for file in self._tables[table_id].written.values()
            )

    def find_mostly_dead(self, table_id: int, *, dead_share: float) -> list[str]:
        with self._lock:
            known = self._tables[table_id].delete_files.values()
        return sorted(
            file.path
            for file in known
            if file.dead
            and file.mappings
            and sum(mapping.positions for mapping in file.mappings) < (1 - dead_share) * file.positions
        )

    def find_crowded(self, table_id: int, *, delete_files_max: int, deleted_share: float) -> list[str]:
        with self._lock:
            table = self._tables[table_id]
            serving = Counter(
                mapping.data_file for delete_file in table.delete_files.values() for mapping in delete_file.mappings
            )
            return sorted(
                path
                for path, delete_files in serving.items()
                if delete_files > delete_files_max
                or (
                    delete_files > 1
                    and _deleted(table.data_files[path]) >= deleted_share * table.data_files[path].record_count
                )
            )

    def list_runs(self, table_id: int, *, runs_max: int) -> list[SyncRun]:
        with self._lock:
            newest_last = sorted(self._tables[table_id].runs, key=lambda run: run.started_at_ms)
        return newest_last[::-1][:runs_max]


def _deleted(file: LiveFile) -> int:
    return file.deletion_vector.cardinality if file.deletion_vector else 0


def _worst_partition_first(each: PartitionCount) -> tuple[float, int, bytes]:
    return -each.deleted_positions / each.rows, each.spec_id, msgspec.json.encode(each.partition)
