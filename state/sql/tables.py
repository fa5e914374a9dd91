"""The verbs about tables: their cursors, errors and runs, and what people ask for and see."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import asdict, replace
from sqlalchemy import Float, bindparam, cast, delete, func, insert, select

from state.records import FileKind, FileStatus, Pause, ProofRecord, SourceEntry, SyncRun, TableError, TableRecord, Wait
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
from state.sql.files import WRITTEN_ROWS, decode_partition, forget_vectors, kind_of, live_file, select_live_files
from state.sql.models import DATA_FILES, DELETE_FILES, DV_MAPPINGS, METADATA_FILES, MIRRORS, SYNC_RUNS, TABLES
from state.sql.rows import TABLE_RECORDS, Transactions, change_table, load_table, table_record, write_table

_TABLE_AT = TABLE_RECORDS.where(*(TABLES.c[key] == bindparam(key) for key in ("name", "source", "target")))
_SUMS = select(
    func.count(),
    func.sum(DATA_FILES.c.record_count),
    func.sum(DATA_FILES.c.dv_cardinality),
    func.sum(DATA_FILES.c.size_bytes),
).where(DATA_FILES.c.table_id == bindparam("table_id"))
_BY_STATUS = [
    select(kind_of(rows), rows.c.status, func.count(), func.sum(rows.c.size_bytes), func.min(rows.c.since_ms))
    .where(rows.c.table_id == bindparam("table_id"))
    .group_by(rows.c.status, *([rows.c.kind] if rows is METADATA_FILES else []))
    for rows in WRITTEN_ROWS
]
_MIRRORS_BY_REASON = (
    select(MIRRORS.c.kind, MIRRORS.c.why, func.count(), func.sum(MIRRORS.c.size_bytes))
    .where(MIRRORS.c.table_id == bindparam("table_id"), MIRRORS.c.status == FileStatus.LIVE)
    .group_by(MIRRORS.c.kind, MIRRORS.c.why)
)
_TABLES_COUNT = select(func.count()).select_from(TABLES)


class TableStore(Transactions):
    """For the scheduling and the commands."""

    def open_table(self, name: str, source: str, target: str) -> TableRecord:
        """The table's row, created if it is new. If the source or target of a known name changed, it starts empty."""
        # The row nearly always exists, and reading it does not queue behind the writers.
        known = self.find_table(name, source, target)
        if known is not None:
            return known
        place = {"name": name, "source": source, "target": target}
        with self._database.write() as connection:
            if connection.execute(_TABLE_AT, place).one_or_none() is None:
                # The foreign keys remove all that belongs to the old row. Its files do not become orphans, because
                # readers of the old target still need them.
                connection.execute(delete(TABLES).where(TABLES.c.name == name))
                connection.execute(insert(TABLES).values(**place, must_compare=False, resync_wanted=False))
            return table_record(connection.execute(_TABLE_AT, place).one())

    def find_table(self, name: str, source: str, target: str) -> TableRecord | None:
        """The table's row; None if no row has this name, or if the source or target is another."""
        with self._database.read() as connection:
            found = connection.execute(_TABLE_AT, {"name": name, "source": source, "target": target}).one_or_none()
        return None if found is None else table_record(found)

    def count_tables(self) -> int:
        with self._database.read() as connection:
            return connection.execute(_TABLES_COUNT).scalar_one()

    def list_tables(self) -> list[TableRecord]:
        with self._database.read() as connection:
            return [table_record(row) for row in connection.execute(TABLE_RECORDS.order_by(TABLES.c.name))]

    def forget_table(self, table_id: int) -> None:
        """Remove the table and all its rows from the store. No file is touched."""
        with self._database.write() as connection:
            # If this ends half-way and the table comes back, its memory is rebuilt.
            change_table(connection, table_id, snapshot_id=None)
        self._remove_live_files(table_id)
        with self._database.write() as connection:
            # The foreign keys remove all else that belongs to the row.
            connection.execute(delete(TABLES).where(TABLES.c.id == table_id))

    def rename_table(self, table_id: int, name: str) -> None:
        """Give the table another name, which no other table has. Nothing else changes."""
        self._change(table_id, name=name)

    def record_failure(self, table_id: int, error: TableError | None) -> None:
        """Replace the table's error. None also ends its parking: the next poll tries again."""
        self._change(table_id, error=error)

    def record_wait(self, table_id: int, wait: Wait | None) -> None:
        self._change(table_id, wait=wait)

    def record_entry(self, table_id: int, entry: SourceEntry | None) -> None:
        self._change(table_id, entry=entry)

    def record_proof(self, table_id: int, proof: ProofRecord | None) -> None:
        self._change(table_id, proof=proof)

    def record_run(self, run: SyncRun, *, committed: Collection[str] = ()) -> None:
        """Record the run, and forget the files of deletion vectors that it has `committed` to Delta."""
        with self._write(run.table_id) as connection:
            forget_vectors(connection, run.table_id, committed)
            connection.execute(insert(SYNC_RUNS).values(**asdict(run)))

    def record_pause(self, table_id: int, pause: Pause | None) -> None:
        """Pause the table, or end its pause."""
        self._change(table_id, pause=pause)

    def end_pause(self, table_id: int, *, at_ms: int) -> None:
        """End the table's pause if its time is over at `at_ms`."""
        with self._database.write() as connection:
            table = load_table(connection, table_id)
            write_table(connection, replace(table, pause=table.pause_at(at_ms)))

    def record_resync_wanted(self, table_id: int, wanted: bool) -> None:
        """Record that the next sync must rewrite the table, or that it has done so."""
        self._change(table_id, resync_wanted=wanted)

    def count(self, table_id: int) -> TableCounts:
        of_table = {"table_id": table_id}
        with self._read(table_id) as connection:
            data_files, rows, deleted, size_bytes = connection.execute(_SUMS, of_table).one()
            written = [row for statement in _BY_STATUS for row in sorted(connection.execute(statement, of_table))]
            has_mirrors = any((kind, status) == (FileKind.MIRROR, FileStatus.LIVE) for kind, status, *_ in written)
            mirrors = connection.execute(_MIRRORS_BY_REASON, of_table).all() if has_mirrors else ()
        # A sum over no rows is None, and some databases add integers up to a decimal.
        return TableCounts(
            live_data_files=data_files,
            live_rows=int(rows or 0) - int(deleted or 0),
            deleted_positions=int(deleted or 0),
            live_bytes=int(size_bytes or 0),
            written=tuple(
                WrittenCount(FileKind(kind), status, count, None if size is None else int(size), since_ms)
                for kind, status, count, size, since_ms in written
            ),
            mirrors=most_frequent(MirrorCount(kind, why, count, int(size or 0)) for kind, why, count, size in mirrors),
        )

    def find_deletions(self, table_id: int, *, rows_max: int) -> Deletions:
        """Sum up what is deleted, with at most `rows_max` files, partitions and delete files: the worst ones."""
        # The database sorts and cuts, so memory does not grow with the table.
        files, serving = DATA_FILES.c, DELETE_FILES.c
        of_table = files.table_id == table_id
        vectors = (
            select(
                files.dv_storage_type, func.count(), func.sum(files.dv_size_in_bytes), func.sum(files.dv_cardinality)
            )
            .where(of_table, files.dv_storage_type.is_not(None))
            .group_by(files.dv_storage_type)
            .order_by(files.dv_storage_type)
        )
        share = cast(files.dv_cardinality, Float) / files.record_count
        worst = select_live_files().where(files.dv_cardinality > 0).order_by(share.desc(), files.path).limit(rows_max)
        rows, deleted = func.sum(files.record_count), func.sum(files.dv_cardinality)
        partitions = (
            select(files.spec_id, files.partition, func.count(), rows, deleted)
            .where(of_table)
            .group_by(files.spec_id, files.partition)
            .having(deleted > 0)
            .order_by((cast(deleted, Float) / rows).desc(), files.spec_id, files.partition)
            .limit(rows_max)
        )
        largest = (
            select(serving.path, serving.size_bytes, serving.positions, serving.since_ms, serving.id)
            # One that an abandoned commit left in use has no positions until the memory is rebuilt.
            .where(serving.table_id == table_id, serving.status == FileStatus.LIVE, serving.positions.is_not(None))
            .order_by(serving.positions.desc(), serving.path)
            .limit(rows_max)
            .subquery()
        )
        served = (
            select(*largest.c["path", "size_bytes", "positions", "since_ms"], func.count(DV_MAPPINGS.c.data_file_id))
            .join(DV_MAPPINGS, DV_MAPPINGS.c.delete_file_id == largest.c.id, isouter=True)
            .group_by(*largest.c)
            .order_by(largest.c.positions.desc(), largest.c.path)
        )
        with self._read(table_id) as connection:
            # Some databases add integers up to a decimal.
            return Deletions(
                vectors=tuple(VectorCount(kind, *map(int, sums)) for kind, *sums in connection.execute(vectors)),
                files=tuple(live_file(row) for row in connection.execute(worst, {"table_id": table_id})),
                partitions=tuple(
                    PartitionCount(spec_id, decode_partition(partition), *map(int, sums))
                    for spec_id, partition, *sums in connection.execute(partitions)
                ),
                delete_files=tuple(ServingFile(*row) for row in map(tuple, connection.execute(served))),
            )

    def list_runs(self, table_id: int, *, runs_max: int) -> list[SyncRun]:
        """List the newest runs, the newest first."""
        newest = (
            select(*SYNC_RUNS.c[SyncRun.__struct_fields__])
            .where(SYNC_RUNS.c.table_id == table_id)
            .order_by(SYNC_RUNS.c.started_at_ms.desc(), SYNC_RUNS.c.id.desc())
            .limit(runs_max)
        )
        with self._read(table_id) as connection:
            return [SyncRun(*row) for row in connection.execute(newest)]
