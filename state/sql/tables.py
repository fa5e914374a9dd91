"""The verbs of `TableStore` on an SQL database."""

from __future__ import annotations

from msgspec.structs import asdict, replace
from sqlalchemy import bindparam, delete, func, insert, select

from state.records import Deletions, Pause, ProofRecord, SyncRun, TableCounts, TableError, TableRecord, Wait
from state.sql import files as sql_files
from state.sql.models import DATA_FILES, SYNC_RUNS, TABLES
from state.sql.reads import read_deletions
from state.sql.rows import TABLE_RECORDS, Transactions, change_table, load_table, table_record, write_table

_TABLE_BY_NAME = TABLE_RECORDS.where(TABLES.c.name == bindparam("name"))


class SqlTableStore(Transactions):
    """The tables: their cursors, errors and runs, and people's requests."""

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
            return table_record(connection.execute(_TABLE_BY_NAME, {"name": name}).one())

    def find_table(self, name: str, source: str, target: str) -> TableRecord | None:
        with self._database.read() as connection:
            found = connection.execute(_TABLE_BY_NAME, {"name": name}).one_or_none()
        if found is None or (found.source, found.target) != (source, target):
            return None
        return table_record(found)

    def list_tables(self) -> list[TableRecord]:
        with self._database.read() as connection:
            return [table_record(row) for row in connection.execute(TABLE_RECORDS.order_by(TABLES.c.name))]

    def forget_table(self, table_id: int) -> None:
        with self._database.write() as connection:
            # If this ends half-way and the table comes back, its memory is rebuilt.
            change_table(connection, table_id, snapshot_id=None)
        self._remove_live_files(table_id)
        with self._database.write() as connection:
            # The foreign keys remove all else that belongs to the row.
            connection.execute(delete(TABLES).where(TABLES.c.id == table_id))

    def rename_table(self, table_id: int, name: str) -> None:
        self._change(table_id, name=name)

    def record_failure(self, table_id: int, error: TableError) -> None:
        self._change(table_id, error=error)

    def record_wait(self, table_id: int, wait: Wait | None) -> None:
        self._change(table_id, wait=wait)

    def record_proof(self, table_id: int, proof: ProofRecord | None) -> None:
        self._change(table_id, proof=proof)

    def record_run(self, run: SyncRun) -> None:
        with self._write(run.table_id) as connection:
            connection.execute(insert(SYNC_RUNS).values(**asdict(run)))

    def record_resumed(self, table_id: int) -> None:
        self._change(table_id, error=None)

    def record_pause(self, table_id: int, pause: Pause | None) -> None:
        self._change(table_id, pause=pause)

    def end_pause(self, table_id: int, *, at_ms: int) -> None:
        with self._database.write() as connection:
            table = load_table(connection, table_id)
            write_table(connection, replace(table, pause=table.pause_at(at_ms)))

    def record_resync_wanted(self, table_id: int, wanted: bool) -> None:
        self._change(table_id, resync_wanted=wanted)

    def count(self, table_id: int) -> TableCounts:
        files = DATA_FILES.c
        sums = select(
            func.count(), func.sum(files.record_count), func.sum(files.dv_cardinality), func.sum(files.size_bytes)
        )
        with self._read(table_id) as connection:
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

    def find_deletions(self, table_id: int, *, rows_max: int) -> Deletions:
        with self._read(table_id) as connection:
            return read_deletions(connection, table_id, rows_max=rows_max)

    def list_runs(self, table_id: int, *, runs_max: int) -> list[SyncRun]:
        newest = (
            select(*SYNC_RUNS.c[SyncRun.__struct_fields__])
            .where(SYNC_RUNS.c.table_id == table_id)
            .order_by(SYNC_RUNS.c.started_at_ms.desc(), SYNC_RUNS.c.id.desc())
            .limit(runs_max)
        )
        with self._read(table_id) as connection:
            return [SyncRun(*row) for row in connection.execute(newest)]
