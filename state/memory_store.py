"""The state store in plain dictionaries, for fast tests. It passes the same contract as the SQL one."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from msgspec.structs import replace

from state.cursor import advance_cursor
from state.records import (
    DeleteFileRecord,
    FileKind,
    Intent,
    LiveFile,
    OrphanReason,
    Outcome,
    SyncRun,
    TableCounts,
    TableError,
    TableRecord,
)


@dataclass
class _Intent:
    intent: Intent
    outcome: Outcome | None = None
    is_open: bool = True


@dataclass(frozen=True)
class _Orphan:
    at_ms: int
    path: str
    reason: OrphanReason
    kind: FileKind
    intent_id: int | None = None


@dataclass
class _WrittenFiles:
    """The files that dvsync writes, of one sort; a path is in one of the three at most."""

    pending: dict[str, tuple[FileKind, int]] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    orphans: dict[str, _Orphan] = field(default_factory=dict)

    def make_live(self, path: str) -> None:
        self.pending.pop(path, None)
        self.orphans.pop(path, None)
        self.live.add(path)

    def make_orphan(self, path: str, kind: FileKind, reason: OrphanReason, at_ms: int) -> None:
        _, intent_id = self.pending.pop(path, (kind, None))
        self.live.discard(path)
        self.orphans.setdefault(path, _Orphan(at_ms, path, reason, kind, intent_id))

    def knows(self, path: str) -> bool:
        return path in self.pending or path in self.live or path in self.orphans


@dataclass
class _Table:
    record: TableRecord
    data_files: dict[str, LiveFile] = field(default_factory=dict)
    delete_files: dict[str, DeleteFileRecord] = field(default_factory=dict)
    written_delete_files: _WrittenFiles = field(default_factory=_WrittenFiles)
    written_metadata: _WrittenFiles = field(default_factory=_WrittenFiles)
    runs: list[SyncRun] = field(default_factory=list)

    def written(self) -> tuple[_WrittenFiles, _WrittenFiles]:
        return self.written_delete_files, self.written_metadata

    def written_of(self, kind: FileKind) -> _WrittenFiles:
        return self.written_delete_files if kind is FileKind.DELETE_FILE else self.written_metadata

    def add_file(self, file: LiveFile) -> None:
        self.data_files[file.path] = file
        self.written_metadata.make_live(file.manifest_path)

    def remove_file(self, path: str) -> None:
        self.data_files.pop(path, None)
        for name, delete_file in self.delete_files.items():
            kept = tuple(mapping for mapping in delete_file.mappings if mapping.data_file != path)
            self.delete_files[name] = replace(delete_file, mappings=kept)

    def add_delete_file(self, delete_file: DeleteFileRecord) -> None:
        live = sorted(
            (mapping for mapping in delete_file.mappings if mapping.data_file in self.data_files),
            key=lambda mapping: mapping.data_file,
        )
        self.delete_files[delete_file.path] = replace(delete_file, mappings=tuple(live))
        self.written_delete_files.make_live(delete_file.path)
        self.written_metadata.make_live(delete_file.manifest_path)

    def remove_delete_file(self, path: str, reason: OrphanReason, at_ms: int) -> None:
        self.delete_files.pop(path, None)
        self.written_delete_files.make_orphan(path, FileKind.DELETE_FILE, reason, at_ms)

    def move_manifest(self, old: str, new: str) -> None:
        self.written_metadata.make_live(new)
        for path, file in self.data_files.items():
            if file.manifest_path == old:
                self.data_files[path] = replace(file, manifest_path=new)
        for path, delete_file in self.delete_files.items():
            if delete_file.manifest_path == old:
                self.delete_files[path] = replace(delete_file, manifest_path=new)

    def forget_pending(self, paths: Iterable[str]) -> None:
        for path in paths:
            for written in self.written():
                written.pending.pop(path, None)

    def land_pending(self, intent_id: int | None) -> None:
        for written in self.written():
            for path, (_, owner) in list(written.pending.items()):
                if owner == intent_id:
                    written.make_live(path)

    def take_back_metadata(self, intent_id: int | None, metadata_location: str | None) -> None:
        written = self.written_metadata
        for orphan in list(written.orphans.values()):
            if orphan.intent_id == intent_id is not None or orphan.path == metadata_location:
                written.make_live(orphan.path)

    def orphan_pending(self, reason: OrphanReason, at_ms: int, *, intent_id: int | None = None) -> None:
        for written in self.written():
            for path, (kind, owner) in list(written.pending.items()):
                if intent_id in (None, owner):
                    written.make_orphan(path, kind, reason, at_ms)


class MemoryStateStore:
    """A `StateStore` that forgets everything when it goes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids = count(1)
        self._tables: dict[int, _Table] = {}
        self._intents: dict[int, _Intent] = {}

    def close(self) -> None:
        """Nothing to close."""

    def load_table(self, name: str, source: str, target: str) -> TableRecord:
        with self._lock:
            for table in self._tables.values():
                if table.record.name == name:
                    if (table.record.source, table.record.target) == (source, target):
                        return table.record
                    del self._tables[table.record.id]
                    for intent in [known.intent for known in self._intents.values()]:
                        if intent.table_id == table.record.id:
                            del self._intents[intent.id]
                    break
            record = TableRecord(next(self._ids), name, source, target)
            self._tables[record.id] = _Table(record)
            return record

    def list_tables(self) -> list[TableRecord]:
        with self._lock:
            return sorted((table.record for table in self._tables.values()), key=lambda record: record.name)

    def find_live_files(self, table_id: int, paths: Collection[str]) -> dict[str, LiveFile]:
        with self._lock:
            data_files = self._tables[table_id].data_files
            return {path: data_files[path] for path in paths if path in data_files}

    def read_live_files(self, table_id: int) -> Iterator[LiveFile]:
        with self._lock:
            data_files = sorted(self._tables[table_id].data_files.values(), key=lambda file: file.path)
        yield from data_files

    def find_delete_files(self, table_id: int, data_files: Collection[str]) -> list[DeleteFileRecord]:
        wanted = set(data_files)
        with self._lock:
            found = [
                delete_file
                for delete_file in self._tables[table_id].delete_files.values()
                if any(mapping.data_file in wanted for mapping in delete_file.mappings)
            ]
        return sorted(found, key=lambda delete_file: delete_file.path)

    def find_serving(self, table_id: int, delete_files: Collection[str]) -> dict[str, set[str]]:
        with self._lock:
            known = self._tables[table_id].delete_files
            return {
                path: {mapping.data_file for mapping in known[path].mappings} if path in known else set()
                for path in delete_files
            }

    def record_intent(self, intent: Intent) -> None:
        with self._lock:
            if intent.table_id not in self._tables:
                raise LookupError(f"no table has the id {intent.table_id}")
            self._intents.setdefault(intent.id, _Intent(intent))

    def record_pending(self, intent_id: int, kind: FileKind, paths: Sequence[str]) -> None:
        with self._lock:
            written = self._tables[self._intents[intent_id].intent.table_id].written_of(kind)
            for path in paths:
                if path not in written.live:
                    written.orphans.pop(path, None)
                    written.pending[path] = (kind, intent_id)

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
                table.move_manifest(old, new)
            for path in outcome.removed_files:
                table.remove_file(path)
            for file in outcome.added_files:
                table.add_file(file)
            for path, deletion_vector in outcome.changed_dvs:
                if path in table.data_files:
                    table.data_files[path] = replace(table.data_files[path], deletion_vector=deletion_vector)
            for path, reason in outcome.removed_delete_files:
                table.remove_delete_file(path, reason, at_ms)
            for delete_file in outcome.added_delete_files:
                table.add_delete_file(delete_file)
            table.land_pending(intent_id)
            if intent_id in self._intents:
                self._intents[intent_id].is_open = False
            table.record = advance_cursor(table.record, outcome, at_ms=at_ms)

    def record_rebuilt(
        self,
        outcome: Outcome,
        live_files: Iterable[LiveFile],
        delete_files: Iterable[DeleteFileRecord],
        *,
        at_ms: int,
    ) -> None:
        # Read before the lock is taken: an iterable may read from this very store, and may fail half way.
        read_files, read_delete_files = list(live_files), list(delete_files)
        with self._lock:
            table = self._tables[outcome.table_id]
            table.data_files.clear()
            table.delete_files.clear()
            for written in table.written():
                written.live.clear()
            for file in read_files:
                table.add_file(file)
            for path, reason in outcome.removed_delete_files:
                table.remove_delete_file(path, reason, at_ms)
            for delete_file in read_delete_files:
                table.add_delete_file(delete_file)
            table.forget_pending(outcome.unwritten_files)
            table.land_pending(outcome.snapshot_id)
            table.take_back_metadata(outcome.snapshot_id, outcome.metadata_location)
            if outcome.metadata_location in table.written_metadata.pending:
                table.written_metadata.make_live(outcome.metadata_location)
            table.orphan_pending(OrphanReason.COMMIT_FAILED, at_ms)
            for known in self._intents.values():
                known.is_open = known.is_open and known.intent.table_id != outcome.table_id
            advanced = advance_cursor(table.record, outcome, at_ms=at_ms)
            table.record = replace(advanced, last_synced_at_ms=at_ms)

    def record_abandoned(self, intent_id: int, reason: OrphanReason, *, at_ms: int) -> None:
        with self._lock:
            if intent_id in self._intents:
                known = self._intents[intent_id]
                known.is_open = False
                self._tables[known.intent.table_id].orphan_pending(reason, at_ms, intent_id=intent_id)

    def record_orphans(
        self, table_id: int, kind: FileKind, paths: Sequence[str], reason: OrphanReason, *, at_ms: int
    ) -> None:
        with self._lock:
            written = self._tables[table_id].written_of(kind)
            for path in paths:
                if not written.knows(path):
                    written.make_orphan(path, kind, reason, at_ms)

    def record_failure(self, table_id: int, error: TableError) -> None:
        with self._lock:
            table = self._tables[table_id]
            table.record = replace(table.record, error=error)

    def record_run(self, run: SyncRun) -> None:
        with self._lock:
            self._tables[run.table_id].runs.append(run)

    def record_resumed(self, table_id: int) -> None:
        with self._lock:
            table = self._tables[table_id]
            table.record = replace(table.record, error=None)

    def count(self, table_id: int) -> TableCounts:
        with self._lock:
            table = self._tables[table_id]
            vectors = [file.deletion_vector for file in table.data_files.values() if file.deletion_vector]
            deleted_positions = sum(vector.cardinality for vector in vectors)
            return TableCounts(
                live_data_files=len(table.data_files),
                live_rows=sum(file.record_count for file in table.data_files.values()) - deleted_positions,
                live_delete_files=len(table.written_delete_files.live),
                deleted_positions=deleted_positions,
                orphans_waiting=sum(len(written.orphans) for written in table.written()),
            )

    def list_orphans(self, table_id: int) -> list[tuple[str, FileKind, OrphanReason]]:
        with self._lock:
            orphans = [orphan for written in self._tables[table_id].written() for orphan in written.orphans.values()]
        orphans.sort(key=lambda orphan: (orphan.at_ms, orphan.path))
        return [(orphan.path, orphan.kind, orphan.reason) for orphan in orphans]

    def list_runs(self, table_id: int, *, runs_max: int) -> list[SyncRun]:
        with self._lock:
            newest_last = sorted(self._tables[table_id].runs, key=lambda run: run.started_at_ms)
        return newest_last[::-1][:runs_max]
