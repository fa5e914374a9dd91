"""The verbs of `FileLedger` for the syncs, on an SQL database. The steps are in `files.py`.

A verb that touches every file of a table is several short transactions, any other is one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import asdict, replace
from sqlalchemy import Connection, Row, bindparam, insert, select, update

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
)
from state.sql import files as sql_files
from state.sql.bulk import batched
from state.sql.files import SHOWN_BY_OLDER, change_written, live, orphaned
from state.sql.models import (
    DATA_FILES,
    DEAD_VECTORS,
    DELETE_FILES,
    DV_MAPPINGS,
    INTENTS,
    METADATA_FILES,
    TABLES,
    IntentStatus,
)
from state.sql.reads import live_file, read_delete_files, select_live_files
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
_PENDING, _LIVE, _ORPHANED = (FileStatus.PENDING,), (FileStatus.LIVE,), (FileStatus.ORPHANED,)

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
    """The live files of a table, and the intents to commit them."""

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

    def find_delete_files(
        self, table_id: int, data_files: Collection[str], *, dead: bool = False
    ) -> list[DeleteFileRecord]:
        statement = _FORMER if dead else _SERVING
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
                pairs = connection.execute(_SERVED, {"table_id": table_id, "delete_files": batch})
                for delete_file, data_file in pairs:
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
            intent = connection.execute(_INTENT_BY_ID, {"intent_id": intent_id}).one_or_none()
            if intent is None:
                raise LookupError(f"no intent has the id {intent_id}")
            _write_pending(connection, intent, paths)

    def record_prepared(self, intent_id: int, outcome: Outcome) -> None:
        with self._database.write() as connection:
            prepared = update(INTENTS).where(INTENTS.c.id == intent_id).values(payload=msgspec.json.encode(outcome))
            if not connection.execute(prepared).rowcount:
                raise LookupError(f"no intent has the id {intent_id}")

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
            sql_files.change_live_files(connection, outcome)
            sql_files.orphan_delete_files(connection, table_id, outcome.removed_delete_files, at_ms=at_ms)
            sql_files.write_live_delete_files(
                connection, table_id, outcome.added_delete_files, manifest_ids, at_ms=at_ms
            )
            if intent_id is not None:
                change_written(connection, {"intent_id": intent_id}, _PENDING, live(at_ms))
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
            _take_out_delete_files(connection, table_id)
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
            # What was not read again is in no manifest.
            of_table, not_read = {"table_id": table_id}, {"table_id": table_id, "manifest_id": None}
            gone = orphaned(OrphanReason.DATA_FILES_GONE, at_ms)
            change_written(connection, not_read, _LIVE, gone, kinds=(DELETE_FILES,))
            sql_files.remove_pending(connection, of_table, outcome.unwritten_files)
            # The current snapshot's intent landed, perhaps after it was abandoned, so its manifests, their list and the
            # metadata file are in use.
            landed, in_use = {**of_table, "intent_id": outcome.snapshot_id}, live(at_ms)
            current = {**of_table, "path": outcome.metadata_location}
            if outcome.snapshot_id is not None:
                change_written(connection, landed, _PENDING, in_use)
                change_written(connection, landed, _PENDING + _ORPHANED, in_use, kinds=(METADATA_FILES,))
            change_written(connection, current, _PENDING + _ORPHANED, in_use, kinds=(METADATA_FILES,))
            change_written(connection, of_table, _PENDING, orphaned(OrphanReason.COMMIT_FAILED, at_ms))
            _end_intents(connection, of_table, IntentStatus.SYNCED)
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
            of_intent = {"intent_id": intent_id}
            sql_files.remove_pending(connection, of_intent, unwritten)
            change_written(connection, of_intent, _PENDING, live(at_ms), paths=in_use)
            change_written(connection, of_intent, _PENDING, orphaned(reason, at_ms))
            _end_intents(connection, {"id": intent_id}, IntentStatus.ABANDONED)

    def record_table_replaced(self, table_id: int, *, at_ms: int) -> None:
        with self._database.write() as connection:
            # If this ends half-way, the metadata location is still there, and the next first sync does it again.
            change_table(connection, table_id, snapshot_id=None)
            _take_out_delete_files(connection, table_id)
        self._remove_live_files(table_id)
        with self._database.write() as connection:
            # Every file that a snapshot may use; no manifest has live data files any more.
            of_table, replaced = {"table_id": table_id}, orphaned(OrphanReason.TABLE_REPLACED, at_ms)
            change_written(connection, of_table, _ORPHANED, replaced, reasons=SHOWN_BY_OLDER)
            change_written(connection, of_table, _PENDING + _LIVE, replaced)
            change_table(connection, table_id, metadata_location=None, format_version=None)


def _write_pending(
    connection: Connection, intent: Intent | Row[int, int, int], paths: Mapping[FileKind, Sequence[str]]
) -> None:
    # A row that an earlier intent left goes to this intent.
    pending = {"status": FileStatus.PENDING, "reason": None, "since_ms": intent.created_at_ms, "intent_id": intent.id}
    for kind, members in paths.items():
        columns = dict.fromkeys(members, pending)
        sql_files.write_written(connection, intent.table_id, kind, columns, keep=_LIVE)


def _take_out_delete_files(connection: Connection, table_id: int) -> None:
    """Take the live delete files of a table out of their manifests."""
    change_written(connection, {"table_id": table_id}, _LIVE, {"manifest_id": None}, kinds=(DELETE_FILES,))


def _end_intents(connection: Connection, of: dict[str, int], status: IntentStatus) -> None:
    opened = update(INTENTS).filter_by(status=IntentStatus.OPEN, **of)
    connection.execute(opened.values(status=status, payload=None))
