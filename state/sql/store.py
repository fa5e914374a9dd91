"""The state store on any database that SQLAlchemy knows; SQLite is the default, PostgreSQL is tested as well.

A verb that touches every file of a table is several short transactions, any other is one. The steps are in `files.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Self

import msgspec
from msgspec.structs import asdict, replace
from sqlalchemy import Connection, Row, Select, bindparam, delete, exists, func, insert, select, update

from state.cursor import advance_cursor, join_commits
from state.records import (
    CommitIdentity,
    DeleteFileRecord,
    Deletions,
    FileKind,
    FileStatus,
    Intent,
    Lease,
    LiveFile,
    OrphanReason,
    Outcome,
    Pause,
    ProofRecord,
    Sample,
    SyncRun,
    TableCounts,
    TableError,
    TableRecord,
    Wait,
    WrittenFile,
)
from state.sql import files as sql_files
from state.sql import lease as sql_lease
from state.sql.bulk import batched
from state.sql.database import Database
from state.sql.lease import Home
from state.sql.models import (
    DATA_FILES,
    DEAD_VECTORS,
    DELETE_FILES,
    DV_MAPPINGS,
    INTENTS,
    SAMPLES,
    SYNC_RUNS,
    TABLES,
    IntentStatus,
)
from state.sql.reads import live_file, read_delete_files, read_deletions, read_worst_files, select_live_files
from state.store import LeaseLost

READ_BATCH_MAX = 5_000
WRITE_BATCH_MAX = 2_000

# The columns of a table that are JSON.
_DECODERS = {
    "pause": msgspec.json.Decoder(Pause).decode,
    "error": msgspec.json.Decoder(TableError).decode,
    "proof": msgspec.json.Decoder(ProofRecord).decode,
    "wait": msgspec.json.Decoder(Wait).decode,
}
_decode_commits = msgspec.json.Decoder(tuple[CommitIdentity, ...]).decode
# Statements of every sync are built once: building one takes longer than executing it.
_TABLE_RECORDS = select(*TABLES.c[TableRecord.__struct_fields__])
_TABLE_BY_NAME = _TABLE_RECORDS.where(TABLES.c.name == bindparam("name"))
_TABLE_BY_ID = _TABLE_RECORDS.where(TABLES.c.id == bindparam("table_id"))
_TABLE_AND_COMMITS = select(TABLES).where(TABLES.c.id == bindparam("table_id"))
_RECENT_COMMITS = select(TABLES.c.recent_commits).where(TABLES.c.id == bindparam("table_id"))
_TABLE_IS_THERE = select(TABLES.c.id).where(TABLES.c.id == bindparam("table_id"))
_INTENT_BY_ID = select(INTENTS.c.id, INTENTS.c.table_id, INTENTS.c.created_at_ms).where(
    INTENTS.c.id == bindparam("intent_id")
)
_OPEN_INTENTS = (
    select(INTENTS)
    .where(INTENTS.c.table_id == bindparam("table_id"), INTENTS.c.status == IntentStatus.OPEN)
    .order_by(INTENTS.c.created_at_ms, INTENTS.c.id)
)
_SAMPLES = (
    select(*SAMPLES.c[Sample.__struct_fields__])
    .where(SAMPLES.c.table_id == bindparam("table_id"), SAMPLES.c.at_ms > bindparam("after_ms"))
    .order_by(SAMPLES.c.at_ms)
)
_LIVE_FILES_BY_PATH = select_live_files().where(DATA_FILES.c.path.in_(bindparam("paths", expanding=True)))
_SERVING = (
    select(DV_MAPPINGS.c.delete_file_id)
    .distinct()
    .join(DATA_FILES, DATA_FILES.c.id == DV_MAPPINGS.c.data_file_id)
    .where(
        DATA_FILES.c.table_id == bindparam("table_id"), DATA_FILES.c.path.in_(bindparam("data_files", expanding=True))
    )
)
_FORMER = (
    select(DEAD_VECTORS.c.delete_file_id)
    .distinct()
    .join(DELETE_FILES, DELETE_FILES.c.id == DEAD_VECTORS.c.delete_file_id)
    .where(
        DELETE_FILES.c.table_id == bindparam("table_id"),
        DEAD_VECTORS.c.data_file.in_(bindparam("data_files", expanding=True)),
    )
)
_SERVED = (
    select(DELETE_FILES.c.path, DATA_FILES.c.path)
    .join(DV_MAPPINGS, DV_MAPPINGS.c.delete_file_id == DELETE_FILES.c.id)
    .join(DATA_FILES, DATA_FILES.c.id == DV_MAPPINGS.c.data_file_id)
    .where(
        DELETE_FILES.c.table_id == bindparam("table_id"),
        DELETE_FILES.c.path.in_(bindparam("delete_files", expanding=True)),
    )
)


class SqlStateStore:
    """A `StateStore` that may be used from many threads at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._token: int | None = None
        self._renewals = 0

    @classmethod
    def open(cls, url: str) -> Self:
        """Open the store at an SQLAlchemy URL; create or upgrade it as needed.

        Raises StateUnavailable when it cannot be opened, or was written by a newer dvsync.
        """
        return cls(Database.open(url))

    def close(self) -> None:
        self._database.close()

    def claim_share(self, number: int) -> int:
        with self._database.read() as connection:
            known = sql_lease.read_share(connection)
        if known is None:
            with self._database.write() as connection:
                sql_lease.claim_share(connection, number)
            with self._database.read() as connection:
                known = sql_lease.read_share(connection)
        assert known is not None, "it was just claimed, by this process or another one"
        return known

    def read_home(self) -> Home:
        with self._database.read() as connection:
            return sql_lease.read_home(connection)

    def record_home(self, home: Home) -> None:
        with self._database.write() as connection:
            sql_lease.write_home(connection, home)

    def check_writable(self) -> None:
        with self._database.write() as connection:
            sql_lease.touch(connection)

    def read_lease(self) -> Lease:
        with self._database.read() as connection:
            return sql_lease.read_lease(connection)

    def take_lease(self, seen: Lease, holder: str, *, has_lock: bool, address: str | None = None) -> bool:
        token = seen.token + 1
        with self._database.write() as connection:
            new = Lease(token, holder, has_lock=has_lock, address=address)
            if not sql_lease.replace_lease(connection, seen, new):
                return False
        self._token, self._renewals = token, new.renewals
        self._database.check_before_write(lambda connection: sql_lease.check_holder(connection, token))
        return True

    def renew_lease(self, *, has_lock: bool) -> None:
        with self._database.write() as connection:
            renewals = sql_lease.read_lease(connection).renewals
            if renewals < self._renewals:
                raise LeaseLost("the contents of the state database were replaced by older ones")
            sql_lease.update_lease(connection, has_lock=has_lock)
        # Only now: a transaction that failed may have been committed all the same.
        self._renewals = renewals + 1

    def check_lease(self) -> None:
        if self._token is not None:
            with self._database.read() as connection:
                sql_lease.check_holder(connection, self._token)

    def give_back_lease(self) -> None:
        with self._database.write() as connection:
            sql_lease.update_lease(connection, holder=None, address=None)

    def open_table(self, name: str, source: str, target: str) -> TableRecord:
        # The row nearly always exists, and reading it does not queue behind the writers.
        known = self.find_table(name, source, target)
        if known is not None:
            return known
        with self._database.write() as connection:
            found = connection.execute(_TABLE_BY_NAME, {"name": name}).one_or_none()
            if found is None or (found.source, found.target) != (source, target):
                # The foreign keys remove all that belongs to the old row. Its files do not become orphans, because
                # readers of the old target still need them.
                connection.execute(delete(TABLES).where(TABLES.c.name == name))
                new = insert(TABLES).values(
                    name=name, source=source, target=target, must_compare=False, resync_wanted=False
                )
                connection.execute(new)
            return _table_record(connection.execute(_TABLE_BY_NAME, {"name": name}).one())

    def find_table(self, name: str, source: str, target: str) -> TableRecord | None:
        with self._database.read() as connection:
            found = connection.execute(_TABLE_BY_NAME, {"name": name}).one_or_none()
        if found is None or (found.source, found.target) != (source, target):
            return None
        return _table_record(found)

    def list_tables(self) -> list[TableRecord]:
        with self._database.read() as connection:
            return [_table_record(row) for row in connection.execute(_TABLE_RECORDS.order_by(TABLES.c.name))]

    def forget_table(self, table_id: int) -> None:
        with self._database.write() as connection:
            # If this ends half-way and the table comes back, its memory is rebuilt.
            _write_table(connection, replace(_load_table(connection, table_id), snapshot_id=None))
        self._remove_live_files(table_id)
        with self._database.write() as connection:
            # The foreign keys remove all else that belongs to the row.
            connection.execute(delete(TABLES).where(TABLES.c.id == table_id))

    def _remove_live_files(self, table_id: int) -> None:
        # A transaction for each batch: the writes of all other tables would wait for a single long one.
        for _ in self._database.paced(repeat(None)):
            with self._database.write() as connection:
                if not sql_files.remove_some_live_files(connection, table_id, WRITE_BATCH_MAX):
                    return

    def rename_table(self, table_id: int, name: str) -> None:
        with self._database.write() as connection:
            _write_table(connection, replace(_load_table(connection, table_id), name=name))

    def find_live_files(self, table_id: int, paths: Collection[str]) -> dict[str, LiveFile]:
        with self._database.read() as connection:
            _check_table(connection, table_id)
            return {
                row.path: live_file(row)
                for batch in batched(paths)
                for row in connection.execute(_LIVE_FILES_BY_PATH, {"table_id": table_id, "paths": batch})
            }

    def read_live_files(self, table_id: int) -> Iterator[LiveFile]:
        # One short transaction for each batch: a slow reader must not delay SQLite's checkpoints.
        after_path = DATA_FILES.c.path > bindparam("after")
        live_files = select_live_files().where(after_path).order_by(DATA_FILES.c.path).limit(READ_BATCH_MAX)
        after = ""
        while True:
            with self._database.read() as connection:
                _check_table(connection, table_id)
                rows = connection.execute(live_files, {"table_id": table_id, "after": after})
                batch = [live_file(row) for row in rows]
            yield from batch
            if len(batch) < READ_BATCH_MAX:
                return
            after = batch[-1].path

    def find_delete_files(self, table_id: int, data_files: Collection[str]) -> list[DeleteFileRecord]:
        return self._find_delete_files(_SERVING, table_id, data_files)

    def find_former(self, table_id: int, data_files: Collection[str]) -> list[DeleteFileRecord]:
        return self._find_delete_files(_FORMER, table_id, data_files)

    def _find_delete_files(
        self, statement: Select[Any], table_id: int, data_files: Collection[str]
    ) -> list[DeleteFileRecord]:
        with self._database.read() as connection:
            _check_table(connection, table_id)
            delete_file_ids = {
                delete_file_id
                for batch in batched(data_files)
                for delete_file_id in connection.scalars(statement, {"table_id": table_id, "data_files": batch})
            }
            return read_delete_files(connection, delete_file_ids)

    def find_served(self, table_id: int, delete_files: Collection[str]) -> dict[str, set[str]]:
        serving: dict[str, set[str]] = {path: set() for path in delete_files}
        with self._database.read() as connection:
            _check_table(connection, table_id)
            for batch in batched(delete_files):
                for delete_file, data_file in connection.execute(
                    _SERVED, {"table_id": table_id, "delete_files": batch}
                ):
                    serving[delete_file].add(data_file)
        return serving

    def find_recent_commits(self, table_id: int) -> tuple[CommitIdentity, ...]:
        with self._database.read() as connection:
            _check_table(connection, table_id)
            return _decode_commits(connection.scalar(_RECENT_COMMITS, {"table_id": table_id}) or b"[]")

    def record_intent(self, intent: Intent, pending: Mapping[FileKind, Sequence[str]]) -> None:
        with self._database.write() as connection:
            _check_table(connection, intent.table_id)
            if connection.scalar(_INTENT_BY_ID, {"intent_id": intent.id}) is None:
                connection.execute(insert(INTENTS).values(**asdict(intent), status=IntentStatus.OPEN))
            _write_pending(connection, intent, pending)

    def record_pending(self, intent_id: int, paths: Mapping[FileKind, Sequence[str]]) -> None:
        with self._database.write() as connection:
            _write_pending(connection, _load_intent(connection, intent_id), paths)

    def record_prepared(self, intent_id: int, outcome: Outcome) -> None:
        with self._database.write() as connection:
            _load_intent(connection, intent_id)
            payload = msgspec.json.encode(outcome)
            connection.execute(update(INTENTS).where(INTENTS.c.id == intent_id).values(payload=payload))

    def find_open_intents(self, table_id: int) -> list[tuple[Intent, Outcome | None]]:
        with self._database.read() as connection:
            _check_table(connection, table_id)
            return [
                (
                    Intent(row.id, row.table_id, row.from_version, row.to_version, row.created_at_ms),
                    None if row.payload is None else msgspec.json.decode(row.payload, type=Outcome),
                )
                for row in connection.execute(_OPEN_INTENTS, {"table_id": table_id})
            ]

    def record_synced(self, intent_id: int | None, outcome: Outcome, *, at_ms: int) -> None:
        table_id = outcome.table_id
        with self._database.write() as connection:
            table, commits = _load_for_outcome(connection, outcome)
            sql_files.remove_pending(connection, {"table_id": table_id}, outcome.unwritten_files)
            manifests = {new for _, new in outcome.moved_manifests}
            manifests |= {file.manifest_path for file in outcome.added_files}
            manifests |= {file.manifest_path for file in outcome.added_delete_files}
            manifest_ids = sql_files.write_live_manifests(connection, table_id, manifests, at_ms=at_ms)
            for old, new in outcome.moved_manifests:
                sql_files.move_manifest(connection, table_id, old, manifest_ids[new])
            sql_files.write_dead_vectors(connection, table_id, outcome.dead_vectors)
            # Removed before added: a path in both is live afterwards, with only the delete files that are added here.
            sql_files.remove_live_files(connection, table_id, outcome.removed_files)
            sql_files.write_live_files(connection, table_id, outcome.added_files, manifest_ids)
            sql_files.write_deletion_vectors(connection, table_id, outcome.changed_dvs)
            sql_files.write_uris(connection, table_id, outcome.changed_uris)
            sql_files.orphan_delete_files(connection, table_id, outcome.removed_delete_files, at_ms=at_ms)
            sql_files.write_live_delete_files(
                connection, table_id, outcome.added_delete_files, manifest_ids, at_ms=at_ms
            )
            if intent_id is not None:
                sql_files.end_pending(connection, {"intent_id": intent_id}, sql_files.live(at_ms))
                _end_intents(connection, {"id": intent_id}, IntentStatus.SYNCED)
            _write_table(connection, advance_cursor(table, outcome, at_ms=at_ms), **commits)

    def record_rebuilt(
        self,
        outcome: Outcome,
        live_files: Iterable[LiveFile],
        delete_files: Iterable[DeleteFileRecord],
        *,
        at_ms: int,
        synced_at_ms: int | None = None,
    ) -> None:
        table_id = outcome.table_id
        with self._database.write() as connection:
            # Iceberg shows the version already. The snapshot id is stored last, since it means that all rows are right.
            table, commits = _load_for_outcome(connection, outcome)
            advanced = advance_cursor(table, outcome, at_ms=at_ms)
            begun = replace(advanced, snapshot_id=None, last_synced_at_ms=synced_at_ms or at_ms)
            _write_table(connection, begun, **commits)
            sql_files.take_out_delete_files(connection, table_id)
            sql_files.orphan_delete_files(connection, table_id, outcome.removed_delete_files, at_ms=at_ms)
        # A transaction for each batch, as in `_remove_live_files`.
        self._remove_live_files(table_id)
        for file_batch in self._database.paced(batched(live_files, WRITE_BATCH_MAX)):
            with self._database.write() as connection:
                _check_table(connection, table_id)
                manifests = {file.manifest_path for file in file_batch}
                manifest_ids = sql_files.write_live_manifests(connection, table_id, manifests, at_ms=at_ms)
                sql_files.write_live_files(connection, table_id, file_batch, manifest_ids)
        for delete_file_batch in self._database.paced(batched(delete_files, WRITE_BATCH_MAX)):
            with self._database.write() as connection:
                _check_table(connection, table_id)
                manifests = {file.manifest_path for file in delete_file_batch}
                manifest_ids = sql_files.write_live_manifests(connection, table_id, manifests, at_ms=at_ms)
                sql_files.write_live_delete_files(connection, table_id, delete_file_batch, manifest_ids, at_ms=at_ms)
        with self._database.write() as connection:
            table = _load_table(connection, table_id)
            sql_files.orphan_not_read_again(connection, table_id, at_ms=at_ms)
            sql_files.remove_pending(connection, {"table_id": table_id}, outcome.unwritten_files)
            # The current snapshot's intent landed, perhaps after it was abandoned, so its manifests, their list and the
            # metadata file are in use.
            landed = {"table_id": table_id, "intent_id": outcome.snapshot_id}
            current = {"table_id": table_id, "path": outcome.metadata_location}
            if outcome.snapshot_id is not None:
                sql_files.end_pending(connection, landed, sql_files.live(at_ms))
                sql_files.take_back_metadata(connection, landed, at_ms=at_ms)
            sql_files.take_back_metadata(connection, current, at_ms=at_ms)
            sql_files.end_pending(
                connection, {"table_id": table_id}, sql_files.orphaned(OrphanReason.COMMIT_FAILED, at_ms)
            )
            _end_intents(connection, {"table_id": table_id}, IntentStatus.SYNCED)
            _write_table(connection, replace(table, snapshot_id=outcome.snapshot_id))

    def record_abandoned(
        self,
        intent_id: int,
        reason: OrphanReason,
        *,
        at_ms: int,
        in_use: Collection[str] = (),
        unwritten: Collection[str] = (),
    ) -> None:
        with self._database.write() as connection:
            sql_files.remove_pending(connection, {"intent_id": intent_id}, unwritten)
            sql_files.take_back_pending(connection, intent_id, in_use, at_ms=at_ms)
            sql_files.end_pending(connection, {"intent_id": intent_id}, sql_files.orphaned(reason, at_ms))
            _end_intents(connection, {"id": intent_id}, IntentStatus.ABANDONED)

    def record_orphans(
        self, table_id: int, kind: FileKind, paths: Sequence[str], reason: OrphanReason, *, at_ms: int
    ) -> None:
        with self._database.write() as connection:
            _check_table(connection, table_id)
            sql_files.insert_orphans(connection, table_id, kind, paths, reason, at_ms=at_ms)

    def record_unreferenced(self, table_id: int, paths: Collection[str], reason: OrphanReason, *, at_ms: int) -> None:
        with self._database.write() as connection:
            _check_table(connection, table_id)
            sql_files.orphan_unreferenced(connection, table_id, paths, reason, at_ms=at_ms)

    def record_still_used(self, table_id: int, paths: Collection[str], *, at_ms: int) -> None:
        with self._database.write() as connection:
            _check_table(connection, table_id)
            sql_files.restart_grace(connection, table_id, paths, at_ms=at_ms)

    def record_table_replaced(self, table_id: int, *, at_ms: int) -> None:
        with self._database.write() as connection:
            # If this ends half-way, the metadata location is still there, and the next first sync does it again.
            _write_table(connection, replace(_load_table(connection, table_id), snapshot_id=None))
            sql_files.take_out_delete_files(connection, table_id)
        self._remove_live_files(table_id)
        with self._database.write() as connection:
            sql_files.orphan_written(connection, table_id, OrphanReason.TABLE_REPLACED, at_ms=at_ms)
            _write_table(
                connection, replace(_load_table(connection, table_id), metadata_location=None, format_version=None)
            )

    def record_sizes(self, table_id: int, sizes_bytes: Mapping[str, int]) -> None:
        columns = {path: {"size_bytes": size_bytes} for path, size_bytes in sizes_bytes.items()}
        with self._database.write() as connection:
            _check_table(connection, table_id)
            sql_files.update_written(connection, table_id, columns, statuses=tuple(FileStatus))

    def record_deleted(self, table_id: int, paths: Collection[str], *, at_ms: int) -> None:
        columns = {path: {"status": FileStatus.DELETED, "since_ms": at_ms} for path in paths}
        with self._database.write() as connection:
            _check_table(connection, table_id)
            sql_files.update_written(connection, table_id, columns, statuses=(FileStatus.ORPHANED,))

    def forget_before(self, table_id: int, before_ms: int, *, orphans: bool = False) -> None:
        with self._database.write() as connection:
            _check_table(connection, table_id)
            for rows in sql_files.WRITTEN_ROWS:
                gone = rows.c.status == FileStatus.DELETED
                if orphans:
                    left = (rows.c.status == FileStatus.ORPHANED) & (rows.c.reason != OrphanReason.TABLE_REPLACED)
                    gone = gone | left
                connection.execute(delete(rows).where(rows.c.table_id == table_id, gone, rows.c.since_ms < before_ms))
            ended = delete(INTENTS).where(INTENTS.c.table_id == table_id, INTENTS.c.status != IntentStatus.OPEN)
            connection.execute(ended.where(INTENTS.c.created_at_ms < before_ms))
            runs = delete(SYNC_RUNS).where(SYNC_RUNS.c.table_id == table_id)
            connection.execute(runs.where(SYNC_RUNS.c.started_at_ms < before_ms))

    def record_failure(self, table_id: int, error: TableError) -> None:
        with self._database.write() as connection:
            _write_table(connection, replace(_load_table(connection, table_id), error=error))

    def record_wait(self, table_id: int, wait: Wait | None) -> None:
        with self._database.write() as connection:
            _write_table(connection, replace(_load_table(connection, table_id), wait=wait))

    def record_proof(self, table_id: int, proof: ProofRecord | None) -> None:
        with self._database.write() as connection:
            _write_table(connection, replace(_load_table(connection, table_id), proof=proof))

    def record_run(self, run: SyncRun) -> None:
        with self._database.write() as connection:
            _check_table(connection, run.table_id)
            connection.execute(insert(SYNC_RUNS).values(**asdict(run)))

    def record_resumed(self, table_id: int) -> None:
        with self._database.write() as connection:
            _write_table(connection, replace(_load_table(connection, table_id), error=None))

    def record_pause(self, table_id: int, pause: Pause | None) -> None:
        with self._database.write() as connection:
            _write_table(connection, replace(_load_table(connection, table_id), pause=pause))

    def end_pause(self, table_id: int, *, at_ms: int) -> None:
        with self._database.write() as connection:
            table = _load_table(connection, table_id)
            _write_table(connection, replace(table, pause=table.pause_at(at_ms)))

    def record_resync_wanted(self, table_id: int, wanted: bool) -> None:
        with self._database.write() as connection:
            _write_table(connection, replace(_load_table(connection, table_id), resync_wanted=wanted))

    def count(self, table_id: int) -> TableCounts:
        files = DATA_FILES.c
        sums = select(
            func.count(), func.sum(files.record_count), func.sum(files.dv_cardinality), func.sum(files.size_bytes)
        )
        with self._database.read() as connection:
            _check_table(connection, table_id)
            data_files, rows, deleted, size_bytes = connection.execute(sums.where(files.table_id == table_id)).one()
            # A sum over no rows is None, and some databases add integers up to a decimal.
            deleted_positions = int(deleted or 0)
            return TableCounts(
                live_data_files=data_files,
                live_rows=int(rows or 0) - deleted_positions,
                deleted_positions=deleted_positions,
                live_bytes=int(size_bytes or 0),
                written=sql_files.count_written(connection, table_id),
            )

    def find_worst_files(self, table_id: int, *, files_max: int) -> tuple[LiveFile, ...]:
        with self._database.read() as connection:
            _check_table(connection, table_id)
            return read_worst_files(connection, table_id, files_max=files_max)

    def find_deletions(self, table_id: int, *, rows_max: int) -> Deletions:
        with self._database.read() as connection:
            _check_table(connection, table_id)
            return read_deletions(connection, table_id, rows_max=rows_max)

    def list_written(self, table_id: int, statuses: Collection[FileStatus]) -> list[WrittenFile]:
        with self._database.read() as connection:
            _check_table(connection, table_id)
            return sql_files.read_written(connection, table_id, lambda rows: rows.c.status.in_(statuses))

    def list_for_cleanup(self, table_id: int, *, due_ms: int, now_ms: int) -> tuple[list[WrittenFile], int]:
        with self._database.read() as connection:
            _check_table(connection, table_id)
            return sql_files.read_for_cleanup(connection, table_id, due_ms=due_ms, now_ms=now_ms)

    def has_orphans(self, table_id: int, *, before_ms: int, reasons: Collection[OrphanReason]) -> bool:
        with self._database.read() as connection:
            _check_table(connection, table_id)
            return sql_files.has_orphans(connection, table_id, before_ms=before_ms, reasons=reasons)

    def find_crowded(self, table_id: int, *, delete_files_max: int, deleted_share: float) -> list[str]:
        count = func.count()
        crowded = (
            select(DATA_FILES.c.path)
            .join(DV_MAPPINGS, DV_MAPPINGS.c.data_file_id == DATA_FILES.c.id)
            .where(DATA_FILES.c.table_id == table_id)
            # In the order of the index by path, so that the database need not sort the whole table.
            .group_by(DATA_FILES.c.path, DATA_FILES.c.id)
            .having(
                (count > delete_files_max)
                | (
                    (count > 1)
                    & (func.coalesce(DATA_FILES.c.dv_cardinality, 0) >= deleted_share * DATA_FILES.c.record_count)
                )
            )
        )
        with self._database.read() as connection:
            _check_table(connection, table_id)
            return sorted(connection.scalars(crowded))

    def find_mostly_dead(self, table_id: int, *, dead_share: float) -> list[str]:
        live = func.sum(DV_MAPPINGS.c.positions)
        mostly_dead = (
            select(DELETE_FILES.c.path)
            .join(DV_MAPPINGS, DV_MAPPINGS.c.delete_file_id == DELETE_FILES.c.id)
            .where(
                DELETE_FILES.c.table_id == table_id, exists().where(DEAD_VECTORS.c.delete_file_id == DELETE_FILES.c.id)
            )
            .group_by(DELETE_FILES.c.id, DELETE_FILES.c.path, DELETE_FILES.c.positions)
            .having(live < (1 - dead_share) * DELETE_FILES.c.positions)
        )
        with self._database.read() as connection:
            _check_table(connection, table_id)
            return sorted(connection.scalars(mostly_dead))

    def record_samples(self, samples: Mapping[int, Sample], *, before_ms: int) -> None:
        if not samples:
            return
        newest_ms = min(sample.at_ms for sample in samples.values())
        with self._database.write() as connection:
            connection.execute(delete(SAMPLES).where((SAMPLES.c.at_ms < before_ms) | (SAMPLES.c.at_ms >= newest_ms)))
            known = set(connection.scalars(select(TABLES.c.id)))
            rows = [{"table_id": each, **asdict(sample)} for each, sample in samples.items() if each in known]
            if rows:
                connection.execute(insert(SAMPLES), rows)

    def list_samples(self, table_id: int, *, after_ms: int) -> list[Sample]:
        with self._database.read() as connection:
            _check_table(connection, table_id)
            found = connection.execute(_SAMPLES, {"table_id": table_id, "after_ms": after_ms})
            return [Sample(*row) for row in found]

    def list_runs(self, table_id: int, *, runs_max: int) -> list[SyncRun]:
        newest = (
            select(*SYNC_RUNS.c[SyncRun.__struct_fields__])
            .where(SYNC_RUNS.c.table_id == table_id)
            .order_by(SYNC_RUNS.c.started_at_ms.desc(), SYNC_RUNS.c.id.desc())
            .limit(runs_max)
        )
        with self._database.read() as connection:
            _check_table(connection, table_id)
            return [SyncRun(*row) for row in connection.execute(newest)]


def _table_record(row: Row[Any]) -> TableRecord:
    columns = {name: row._mapping[name] for name in TableRecord.__struct_fields__}
    for name, decode in _DECODERS.items():
        if columns[name] is not None:
            columns[name] = decode(columns[name])
    return TableRecord(**columns)


def _load_table(connection: Connection, table_id: int) -> TableRecord:
    return _table_record(_load_row(connection, _TABLE_BY_ID, table_id))


def _load_for_outcome(connection: Connection, outcome: Outcome) -> tuple[TableRecord, dict[str, bytes]]:
    """Return the table's row, and the column with its last commits if `outcome` changes it.

    Each commit of a table does this: the row is read and written once.
    """
    row = _load_row(connection, _TABLE_AND_COMMITS, outcome.table_id)
    table, known = _table_record(row), _decode_commits(row.recent_commits or b"[]")
    joined = join_commits(table, known, outcome)
    return table, {} if joined == known else {"recent_commits": msgspec.json.encode(joined)}


def _load_row(connection: Connection, statement: Select[Any], table_id: int) -> Row[Any]:
    row = connection.execute(statement, {"table_id": table_id}).one_or_none()
    if row is None:
        raise LookupError(f"no table has the id {table_id}")
    return row


def _check_table(connection: Connection, table_id: int) -> None:
    if connection.scalar(_TABLE_IS_THERE, {"table_id": table_id}) is None:
        raise LookupError(f"no table has the id {table_id}")


def _write_table(connection: Connection, table: TableRecord, **more: bytes) -> None:
    columns = {**asdict(table), **more}
    # Setting the key, even to itself, makes SQLite check every row that refers to it.
    table_id = columns.pop("id")
    for name in _DECODERS:
        if columns[name] is not None:
            columns[name] = msgspec.json.encode(columns[name])
    connection.execute(update(TABLES).where(TABLES.c.id == table_id).values(columns))


def _load_intent(connection: Connection, intent_id: int) -> Row[int, int, int]:
    row = connection.execute(_INTENT_BY_ID, {"intent_id": intent_id}).one_or_none()
    if row is None:
        raise LookupError(f"no intent has the id {intent_id}")
    return row


def _write_pending(
    connection: Connection, intent: Intent | Row[int, int, int], paths: Mapping[FileKind, Sequence[str]]
) -> None:
    for kind, members in paths.items():
        sql_files.write_pending(
            connection, intent.table_id, kind, members, intent_id=intent.id, at_ms=intent.created_at_ms
        )


def _end_intents(connection: Connection, of: dict[str, int], status: IntentStatus) -> None:
    opened = update(INTENTS).filter_by(status=IntentStatus.OPEN, **of)
    connection.execute(opened.values(status=status, payload=None))
