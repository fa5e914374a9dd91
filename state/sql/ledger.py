"""The verbs for the syncs: the live files of a table, and the intents to commit them. The steps are in `files.py`.

A verb that touches every file of a table is several short transactions, any other is one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict, replace
from sqlalchemy import Connection, Row, bindparam, func, insert, select

from state.cursor import advance_cursor
from state.records import (
    CommitIdentity,
    DeleteFileRecord,
    FileKind,
    FileStatus,
    Intent,
    LiveFile,
    MirrorRecord,
    OrphanReason,
    Outcome,
)
from state.sql import files as sql_files
from state.sql.bulk import batched, change_rows, find_rows
from state.sql.files import SHOWN_BY_OLDER, change_written, live, live_file, orphaned, select_live_files
from state.sql.models import (
    DATA_FILES,
    DEAD_VECTORS,
    DELETE_FILES,
    DV_MAPPINGS,
    INTENTS,
    METADATA_FILES,
    MIRRORS,
    TABLES,
    IntentStatus,
)
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
# When the module is imported: msgspec crashes if two threads decode a type for the first time.
_decode_outcome = msgspec.json.Decoder(Outcome).decode
_PENDING, _LIVE, _ORPHANED = (FileStatus.PENDING,), (FileStatus.LIVE,), (FileStatus.ORPHANED,)

# Statements of every sync are built once: building one takes longer than executing it.
_RECENT_COMMITS = select(TABLES.c.recent_commits).where(TABLES.c.id == bindparam("table_id"))
_INTENT_BY_ID = select(INTENTS.c.id, INTENTS.c.table_id, INTENTS.c.created_at_ms).where(
    INTENTS.c.id == bindparam("intent_id")
)
_INSERT_INTENT = insert(INTENTS)
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
    .where(DATA_FILES.c.table_id == bindparam("table_id"), DATA_FILES.c.path.in_(bindparam("paths", expanding=True)))
)
_FORMER = (
    select(DEAD_VECTORS.c.delete_file_id)
    .distinct()
    .join(DELETE_FILES, DELETE_FILES.c.id == DEAD_VECTORS.c.delete_file_id)
    .where(
        DELETE_FILES.c.table_id == bindparam("table_id"),
        DEAD_VECTORS.c.data_file.in_(bindparam("paths", expanding=True)),
    )
)
_SERVED = (
    select(DELETE_FILES.c.path, DATA_FILES.c.path)
    .join(DV_MAPPINGS, DV_MAPPINGS.c.delete_file_id == DELETE_FILES.c.id)
    .join(DATA_FILES, DATA_FILES.c.id == DV_MAPPINGS.c.data_file_id)
    .where(
        DELETE_FILES.c.table_id == bindparam("table_id"), DELETE_FILES.c.path.in_(bindparam("paths", expanding=True))
    )
)

_MIRROR_COLUMNS = MIRRORS.c[MirrorRecord.__struct_fields__]
_MIRRORS_OF = select(*_MIRROR_COLUMNS).where(
    MIRRORS.c.table_id == bindparam("table_id"), MIRRORS.c.data_file.in_(bindparam("paths", expanding=True))
)


class FileLedger(Transactions):
    """For the syncs."""

    def find_live_files(self, table_id: int, paths: Collection[str]) -> dict[str, LiveFile]:
        """Find the live files among `paths`, by path. The cost grows with `paths`, not with the table."""
        with self._read(table_id) as connection:
            return {row.path: live_file(row) for row in find_rows(connection, _LIVE_FILES_BY_PATH, table_id, paths)}

    def read_live_files(self, table_id: int) -> Iterator[LiveFile]:
        """Read every live file, sorted by path, in batches from the database. For resynchronising."""
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
        """Find each live delete file with positions of any of `data_files`, with all its mappings.

        With `dead`, each with a dead blob of any of `data_files`, which need not be live.
        """
        statement = _FORMER if dead else _SERVING
        with self._read(table_id) as connection:
            found = {row.delete_file_id for row in find_rows(connection, statement, table_id, data_files)}
            return sql_files.read_delete_files(connection, found)

    def find_served(self, table_id: int, delete_files: Collection[str]) -> dict[str, set[str]]:
        """Find, for each of these delete files, the *live* data files whose positions it holds."""
        serving: dict[str, set[str]] = {path: set() for path in delete_files}
        with self._read(table_id) as connection:
            for delete_file, data_file in find_rows(connection, _SERVED, table_id, delete_files):
                serving[delete_file].add(data_file)
        return serving

    def find_mirrors(self, table_id: int, data_files: Collection[str]) -> list[MirrorRecord]:
        """Find the mirrors of these files of Delta, whatever their status is. At most one of each is live."""
        with self._read(table_id) as connection:
            return [MirrorRecord(*row) for row in find_rows(connection, _MIRRORS_OF, table_id, data_files)]

    def list_live_mirrors(self, table_id: int) -> list[MirrorRecord]:
        """List the mirrors that the newest snapshot shows."""
        shown = select(*_MIRROR_COLUMNS).where(MIRRORS.c.table_id == table_id, MIRRORS.c.status == FileStatus.LIVE)
        with self._read(table_id) as connection:
            return [MirrorRecord(*row) for row in connection.execute(shown)]

    def sum_mirror_surplus(self, table_id: int, *, without: Collection[str]) -> int:
        """Add up by how many bytes live mirrors are larger than their data files; not those at the paths `without`."""
        surplus = func.sum(MIRRORS.c.size_bytes - MIRRORS.c.data_file_bytes)
        of_live = select(surplus).where(MIRRORS.c.table_id == table_id, MIRRORS.c.status == FileStatus.LIVE)
        with self._read(table_id) as connection:
            total = connection.scalar(of_live)
            left_out = [connection.scalar(of_live.where(MIRRORS.c.path.in_(batch))) for batch in batched(without)]
        # A sum over no rows is None, and some databases add integers up to a decimal.
        return int(total or 0) - sum(int(each or 0) for each in left_out)

    def find_recent_commits(self, table_id: int) -> tuple[CommitIdentity, ...]:
        """Find the last commits of the Delta table as they were when they were shown, at most RECENT_COMMITS_MAX."""
        with self._read(table_id) as connection:
            return decode_commits(connection.scalar(_RECENT_COMMITS, {"table_id": table_id}) or b"[]")

    def record_intent(self, intent: Intent, pending: Mapping[FileKind, Sequence[str]]) -> None:
        """Open the intent, and record its first files as `record_pending` does. A known intent does not change."""
        with self._write(intent.table_id) as connection:
            if connection.scalar(_INTENT_BY_ID, {"intent_id": intent.id}) is None:
                connection.execute(_INSERT_INTENT, {**asdict(intent), "status": IntentStatus.OPEN})
            _write_pending(connection, intent, pending)

    def record_pending(self, intent_id: int, paths: Mapping[FileKind, Sequence[str]]) -> None:
        """Write a row with status pending for each file, before the file is written.

        A known path is no error: a live file stays live, and a file that an earlier intent left behind belongs to this
        intent from now on.
        """
        with self._database.write() as connection:
            _write_pending(connection, _load_intent(connection, intent_id), paths)

    def record_mirrors(self, intent_id: int, mirrors: Collection[MirrorRecord]) -> None:
        """As `record_pending` does, before mirrors are made. Once the intent is synced, each must be a live data file.

        Orphans keep their reason: if the intent is abandoned, those that older snapshots show are known to be such.
        """
        with self._database.write() as connection:
            intent = _load_intent(connection, intent_id)
            pending = _pending(intent)
            del pending["reason"]
            sql_files.write_mirrors(connection, intent.table_id, mirrors, pending)

    def record_found_mirrors(self, table_id: int, mirrors: Collection[MirrorRecord], *, at_ms: int) -> None:
        """Record mirrors that a snapshot of the Iceberg table shows, as such orphans. Known paths stay as they are."""
        with self._write(table_id) as connection:
            found = orphaned(OrphanReason.FOUND_IN_USE, at_ms)
            sql_files.write_mirrors(connection, table_id, mirrors, found, keep=tuple(FileStatus))

    def record_prepared(self, intent_id: int, outcome: Outcome) -> None:
        """Store what `record_synced` will apply, before the Iceberg commit is tried."""
        with self._database.write() as connection:
            if not change_rows(connection, INTENTS, {"id": intent_id}, {"payload": msgspec.json.encode(outcome)}):
                raise LookupError(f"no intent has the id {intent_id}")

    def find_open_intents(self, table_id: int) -> list[tuple[Intent, Outcome | None]]:
        """Intents neither synced nor abandoned, oldest first, with what was prepared for them."""
        with self._read(table_id) as connection:
            return [
                (
                    Intent(row.id, row.table_id, row.from_version, row.to_version, row.created_at_ms),
                    None if row.payload is None else _decode_outcome(row.payload),
                )
                for row in connection.execute(_OPEN_INTENTS, {"table_id": table_id})
            ]

    def record_synced(self, intent_id: int | None, outcome: Outcome, *, at_ms: int) -> None:
        """Apply `outcome`: cursor, live files, delete files, mappings; the intent ends.

        Pending files of the intent become live, `unwritten_files` are forgotten, removed delete files and mirrors are
        orphaned.
        The table's error is cleared if a version was synced or rows were changed. The second time nothing changes.
        """
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
            if outcome.removed_mirrors:
                gone, of_table = orphaned(OrphanReason.DATA_FILES_GONE, at_ms), {"table_id": table_id}
                change_written(connection, of_table, _LIVE, gone, kinds=(MIRRORS,), paths=outcome.removed_mirrors)
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
        mirrors: Collection[MirrorRecord] = (),
    ) -> None:
        """Replace all that is remembered as live for the table by what was read from Iceberg and Delta.

        `synced_at_ms` is when Iceberg began to show it, if that was before `at_ms`.

        For example, delete files {d0, d1} are live, d2 and d3 are pending, and `delete_files` has {d1, d2}. Afterwards
        {d1, d2} are live. d0 is an orphan for DATA_FILES_GONE, unless the outcome gives the reason; d3 is an orphan for
        COMMIT_FAILED. Live manifests, lists and metadata files stay live. If the intent with the outcome's snapshot id
        has pending files, they become live, because its commit landed. All open intents end as synced.

        `mirrors` are the live data files that were found to be mirrors; others are live if they are live data files.

        Only the cursor, `removed_delete_files` and `unwritten_files` of `outcome` are used. The iterables must not read
        this table's live files from the store, because they are forgotten first.

        Uses many transactions, so that other tables can be written meanwhile. Until the last one, and after a crash in
        between, the table has the outcome's version but no snapshot, and must be rebuilt.
        """
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
            sql_files.orphan_pending(connection, of_table, OrphanReason.COMMIT_FAILED, at_ms=at_ms)
            sql_files.write_mirrors(connection, table_id, mirrors, in_use)
            sql_files.orphan_mirrors_not_shown(connection, table_id, at_ms=at_ms)
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
        """End an intent that did not land. Its pending files become orphaned.

        Exceptions are files `in_use`, which become live, and files `unwritten`, which are forgotten.
        """
        with self._database.write() as connection:
            of_intent = {"intent_id": intent_id}
            sql_files.remove_pending(connection, of_intent, unwritten)
            change_written(connection, of_intent, _PENDING, live(at_ms), paths=in_use)
            sql_files.orphan_pending(connection, of_intent, reason, at_ms=at_ms)
            _end_intents(connection, {"id": intent_id}, IntentStatus.ABANDONED)

    def record_table_replaced(self, table_id: int, *, at_ms: int) -> None:
        """The Iceberg table is recreated: set aside what was written for its predecessor.

        Every file that is pending, live or used by older snapshots is an orphan of the replaced table from `at_ms` on;
        orphans of failed commits do not change. The live data files, their mappings and the snapshot are forgotten: if
        the earlier table comes back, it must be rebuilt. Open intents and the version stay. If this fails half-way, the
        metadata location stays too, and the verb can be repeated.
        """
        with self._database.write() as connection:
            # If this ends half-way, the metadata location is still there, and the next first sync does it again.
            change_table(connection, table_id, snapshot_id=None)
            _take_out_delete_files(connection, table_id)
        self._remove_live_files(table_id)
        with self._database.write() as connection:
            # Every file that a snapshot may use; no manifest has live data files any more.
            of_table, replaced = {"table_id": table_id}, orphaned(OrphanReason.TABLE_REPLACED, at_ms)
            shown_by_older = {**of_table, "reason": tuple(SHOWN_BY_OLDER)}
            change_written(connection, shown_by_older, _ORPHANED, replaced)
            change_written(connection, of_table, _PENDING + _LIVE, replaced)
            change_table(connection, table_id, metadata_location=None, format_version=None)


def _load_intent(connection: Connection, intent_id: int) -> Row[int, int, int]:
    intent = connection.execute(_INTENT_BY_ID, {"intent_id": intent_id}).one_or_none()
    if intent is None:
        raise LookupError(f"no intent has the id {intent_id}")
    return intent


def _pending(intent: Intent | Row[int, int, int]) -> dict[str, Any]:
    # A row that an earlier intent left goes to this intent.
    return {"status": FileStatus.PENDING, "reason": None, "since_ms": intent.created_at_ms, "intent_id": intent.id}


def _write_pending(
    connection: Connection, intent: Intent | Row[int, int, int], paths: Mapping[FileKind, Sequence[str]]
) -> None:
    for kind, members in paths.items():
        columns = dict.fromkeys(members, _pending(intent))
        sql_files.write_written(connection, intent.table_id, kind, columns, keep=_LIVE)


def _take_out_delete_files(connection: Connection, table_id: int) -> None:
    """Take the live delete files of a table out of their manifests."""
    change_written(connection, {"table_id": table_id}, _LIVE, {"manifest_id": None}, kinds=(DELETE_FILES,))


def _end_intents(connection: Connection, of: dict[str, int], status: IntentStatus) -> None:
    change_rows(connection, INTENTS, {**of, "status": IntentStatus.OPEN}, {"status": status, "payload": None})
