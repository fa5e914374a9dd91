"""The verbs of `FileLedger` on an SQL database.

A verb that touches every file of a table is several short transactions, any other is one. The steps are in `files.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict, replace
from sqlalchemy import Connection, Row, Select, bindparam, delete, insert, select, update

from state.cursor import advance_cursor
from state.records import (
    CommitIdentity,
    DeleteFileRecord,
    FileKind,
    FileStatus,
    Intent,
    LiveFile,
    OrphanReason,
    Outcome,
    WrittenFile,
)
from state.sql import files as sql_files
from state.sql.bulk import batched
from state.sql.models import (
    DATA_FILES,
    DEAD_VECTORS,
    DELETE_FILES,
    DV_MAPPINGS,
    INTENTS,
    SYNC_RUNS,
    TABLES,
    IntentStatus,
)
from state.sql.reads import live_file, read_crowded, read_delete_files, read_mostly_dead, select_live_files
from state.sql.rows import (
    WRITE_BATCH_MAX,
    Transactions,
    change_table,
    decode_commits,
    load_for_outcome,
    load_table,
    write_table,
)

READ_BATCH_MAX = 5_000

# Statements of every sync are built once: building one takes longer than executing it.
_RECENT_COMMITS = select(TABLES.c.recent_commits).where(TABLES.c.id == bindparam("table_id"))
_INTENT_BY_ID = select(INTENTS.c.id, INTENTS.c.table_id, INTENTS.c.created_at_ms).where(
    INTENTS.c.id == bindparam("intent_id")
)
_OPEN_INTENTS = (
    select(INTENTS)
    .where(INTENTS.c.table_id == bindparam("table_id"), INTENTS.c.status == IntentStatus.OPEN)
    .order_by(INTENTS.c.created_at_ms, INTENTS.c.id)
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


class SqlFileLedger(Transactions):
    """The files of a table, and the intents to commit them."""

    def find_live_files(self, table_id: int, paths: Collection[str]) -> dict[str, LiveFile]:
        with self._read(table_id) as connection:
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
            with self._read(table_id) as connection:
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
        with self._read(table_id) as connection:
            delete_file_ids = {
                delete_file_id
                for batch in batched(data_files)
                for delete_file_id in connection.scalars(statement, {"table_id": table_id, "data_files": batch})
            }
            return read_delete_files(connection, delete_file_ids)

    def find_served(self, table_id: int, delete_files: Collection[str]) -> dict[str, set[str]]:
        serving: dict[str, set[str]] = {path: set() for path in delete_files}
        with self._read(table_id) as connection:
            for batch in batched(delete_files):
                for delete_file, data_file in connection.execute(
                    _SERVED, {"table_id": table_id, "delete_files": batch}
                ):
                    serving[delete_file].add(data_file)
        return serving

    def find_recent_commits(self, table_id: int) -> tuple[CommitIdentity, ...]:
        with self._read(table_id) as connection:
            return decode_commits(connection.scalar(_RECENT_COMMITS, {"table_id": table_id}) or b"[]")

    def record_intent(self, intent: Intent, pending: Mapping[FileKind, Sequence[str]]) -> None:
        with self._write(intent.table_id) as connection:
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
        with self._read(table_id) as connection:
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
            table, commits = load_for_outcome(connection, outcome)
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
            write_table(connection, advance_cursor(table, outcome, at_ms=at_ms), **commits)

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
            table, commits = load_for_outcome(connection, outcome)
            advanced = advance_cursor(table, outcome, at_ms=at_ms)
            begun = replace(advanced, snapshot_id=None, last_synced_at_ms=synced_at_ms or at_ms)
            write_table(connection, begun, **commits)
            sql_files.take_out_delete_files(connection, table_id)
            sql_files.orphan_delete_files(connection, table_id, outcome.removed_delete_files, at_ms=at_ms)
        # A transaction for each batch, as in `_remove_live_files`.
        self._remove_live_files(table_id)
        for file_batch in self._database.paced(batched(live_files, WRITE_BATCH_MAX)):
            with self._write(table_id) as connection:
                manifests = {file.manifest_path for file in file_batch}
                manifest_ids = sql_files.write_live_manifests(connection, table_id, manifests, at_ms=at_ms)
                sql_files.write_live_files(connection, table_id, file_batch, manifest_ids)
        for delete_file_batch in self._database.paced(batched(delete_files, WRITE_BATCH_MAX)):
            with self._write(table_id) as connection:
                manifests = {file.manifest_path for file in delete_file_batch}
                manifest_ids = sql_files.write_live_manifests(connection, table_id, manifests, at_ms=at_ms)
                sql_files.write_live_delete_files(connection, table_id, delete_file_batch, manifest_ids, at_ms=at_ms)
        with self._database.write() as connection:
            table = load_table(connection, table_id)
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
            write_table(connection, replace(table, snapshot_id=outcome.snapshot_id))

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
        with self._write(table_id) as connection:
            sql_files.insert_orphans(connection, table_id, kind, paths, reason, at_ms=at_ms)

    def record_unreferenced(self, table_id: int, paths: Collection[str], reason: OrphanReason, *, at_ms: int) -> None:
        with self._write(table_id) as connection:
            sql_files.orphan_unreferenced(connection, table_id, paths, reason, at_ms=at_ms)

    def record_still_used(self, table_id: int, paths: Collection[str], *, at_ms: int) -> None:
        with self._write(table_id) as connection:
            sql_files.restart_grace(connection, table_id, paths, at_ms=at_ms)

    def record_table_replaced(self, table_id: int, *, at_ms: int) -> None:
        with self._database.write() as connection:
            # If this ends half-way, the metadata location is still there, and the next first sync does it again.
            change_table(connection, table_id, snapshot_id=None)
            sql_files.take_out_delete_files(connection, table_id)
        self._remove_live_files(table_id)
        with self._database.write() as connection:
            sql_files.orphan_written(connection, table_id, OrphanReason.TABLE_REPLACED, at_ms=at_ms)
            change_table(connection, table_id, metadata_location=None, format_version=None)

    def record_sizes(self, table_id: int, sizes_bytes: Mapping[str, int]) -> None:
        columns = {path: {"size_bytes": size_bytes} for path, size_bytes in sizes_bytes.items()}
        with self._write(table_id) as connection:
            sql_files.update_written(connection, table_id, columns, statuses=tuple(FileStatus))

    def record_deleted(self, table_id: int, paths: Collection[str], *, at_ms: int) -> None:
        columns = {path: {"status": FileStatus.DELETED, "since_ms": at_ms} for path in paths}
        with self._write(table_id) as connection:
            sql_files.update_written(connection, table_id, columns, statuses=(FileStatus.ORPHANED,))

    def forget_before(self, table_id: int, before_ms: int, *, orphans: bool = False) -> None:
        with self._write(table_id) as connection:
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

    def list_written(self, table_id: int, statuses: Collection[FileStatus]) -> list[WrittenFile]:
        with self._read(table_id) as connection:
            return sql_files.read_written(connection, table_id, lambda rows: rows.c.status.in_(statuses))

    def list_for_cleanup(self, table_id: int, *, due_ms: int, now_ms: int) -> tuple[list[WrittenFile], int]:
        with self._read(table_id) as connection:
            return sql_files.read_for_cleanup(connection, table_id, due_ms=due_ms, now_ms=now_ms)

    def has_orphans(self, table_id: int, *, before_ms: int, reasons: Collection[OrphanReason]) -> bool:
        with self._read(table_id) as connection:
            return sql_files.has_orphans(connection, table_id, before_ms=before_ms, reasons=reasons)

    def find_crowded(self, table_id: int, *, delete_files_max: int, deleted_share: float) -> list[str]:
        with self._read(table_id) as connection:
            return read_crowded(connection, table_id, delete_files_max=delete_files_max, deleted_share=deleted_share)

    def find_mostly_dead(self, table_id: int, *, dead_share: float) -> list[str]:
        with self._read(table_id) as connection:
            return read_mostly_dead(connection, table_id, dead_share=dead_share)


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
