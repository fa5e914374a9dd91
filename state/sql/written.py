"""The verbs for the maintenance: about the files that dvsync wrote."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import asdict
from sqlalchemy import ColumnElement, Connection, Select, Table, delete, exists, func, insert, or_, select

from state.records import FileKind, FileStatus, OrphanReason, VectorFile, WrittenFile
from state.sql.bulk import batched, update_rows
from state.sql.files import (
    SHOWN_BY_OLDER,
    WRITTEN_ROWS,
    change_written,
    forget_vectors,
    kind_of,
    orphaned,
    write_written,
)
from state.sql.models import (
    DATA_FILES,
    DEAD_VECTORS,
    DELETE_FILES,
    DV_MAPPINGS,
    INTENTS,
    METADATA_FILES,
    MIRRORS,
    SYNC_RUNS,
    VECTOR_FILES,
    IntentStatus,
)
from state.sql.rows import Transactions

_ORPHANED = (FileStatus.ORPHANED,)


class WrittenFiles(Transactions):
    """The files that dvsync wrote. A verb that names paths takes any number of them."""

    def record_orphans(
        self, table_id: int, kind: FileKind, paths: Sequence[str], reason: OrphanReason, *, at_ms: int
    ) -> None:
        """Record files that a scan found and that are not live. Known paths stay as they are."""
        columns = dict.fromkeys(paths, orphaned(reason, at_ms))
        with self._write(table_id) as connection:
            write_written(connection, table_id, kind, columns, keep=tuple(FileStatus))

    def record_unreferenced(self, table_id: int, paths: Collection[str], reason: OrphanReason, *, at_ms: int) -> None:
        """Record that no snapshot refers to these files any more. Those not in use now are orphaned from `at_ms` on.

        A delete file or mirror is taken if it is orphaned now, a manifest, a list or a metadata file if it is live or
        orphaned now. All others stay as they are, since a sync may have made them live in the meantime: live delete
        files with what they serve, manifests that live files are in, and whatever is pending or deleted.
        """
        of_table, unused, metadata = {"table_id": table_id}, orphaned(reason, at_ms), set(paths)
        in_manifest = or_(
            exists().where(DATA_FILES.c.manifest_id == METADATA_FILES.c.id),
            exists().where(DELETE_FILES.c.manifest_id == METADATA_FILES.c.id),
        )
        holding = select(METADATA_FILES.c.path).where(METADATA_FILES.c.table_id == table_id, in_manifest)
        with self._write(table_id) as connection:
            change_written(connection, of_table, _ORPHANED, unused, kinds=(DELETE_FILES, MIRRORS), paths=paths)
            for batch in batched(paths):
                metadata -= set(connection.scalars(holding.where(METADATA_FILES.c.path.in_(batch))))
            live_or_orphaned = (FileStatus.LIVE, FileStatus.ORPHANED)
            change_written(connection, of_table, live_or_orphaned, unused, kinds=(METADATA_FILES,), paths=metadata)

    def record_still_used(self, table_id: int, paths: Collection[str], *, at_ms: int) -> None:
        """Restart the grace period of orphans that are still in use, although they should not be.

        Their reason stays. Files that are not orphaned now are left alone, and orphans that older snapshots show: their
        grace period has not begun.
        """
        begun = tuple(reason for reason in OrphanReason if reason not in SHOWN_BY_OLDER)
        of_begun, restarted = {"table_id": table_id, "reason": begun}, {"since_ms": at_ms}
        with self._write(table_id) as connection:
            change_written(connection, of_begun, _ORPHANED, restarted, paths=paths)

    def record_sizes(self, table_id: int, sizes_bytes: Mapping[str, int]) -> None:
        """Store the sizes of files that dvsync wrote, by path; unknown paths are ignored."""
        columns = {path: {"size_bytes": size_bytes} for path, size_bytes in sizes_bytes.items()}
        with self._write(table_id) as connection:
            for rows in WRITTEN_ROWS:
                update_rows(connection, rows, table_id, columns)

    def record_deleted(self, table_id: int, paths: Collection[str], *, at_ms: int) -> None:
        """Mark orphans that no longer exist as deleted."""
        of_table, deleted = {"table_id": table_id}, {"status": FileStatus.DELETED, "since_ms": at_ms}
        with self._write(table_id) as connection:
            change_written(connection, of_table, _ORPHANED, deleted, paths=paths)

    def forget_before(self, table_id: int, before_ms: int, *, orphans: bool = False) -> None:
        """Forget deleted files, ended intents and runs from before `before_ms`.

        With `orphans`, also forget files that became orphans before then, except those of a replaced table, and files
        of deletion vectors.
        """
        with self._write(table_id) as connection:
            for rows in WRITTEN_ROWS:
                gone = rows.c.status == FileStatus.DELETED
                if orphans:
                    left = (rows.c.status == FileStatus.ORPHANED) & (rows.c.reason != OrphanReason.TABLE_REPLACED)
                    gone = gone | left
                connection.execute(delete(rows).where(rows.c.table_id == table_id, gone, rows.c.since_ms < before_ms))
            if orphans:
                vectors = delete(VECTOR_FILES).where(VECTOR_FILES.c.table_id == table_id)
                connection.execute(vectors.where(VECTOR_FILES.c.since_ms < before_ms))
            ended = delete(INTENTS).where(INTENTS.c.table_id == table_id, INTENTS.c.status != IntentStatus.OPEN)
            connection.execute(ended.where(INTENTS.c.created_at_ms < before_ms))
            runs = delete(SYNC_RUNS).where(SYNC_RUNS.c.table_id == table_id)
            connection.execute(runs.where(SYNC_RUNS.c.started_at_ms < before_ms))

    def record_vectors(self, table_id: int, files: Sequence[VectorFile]) -> None:
        """Record files of deletion vectors, before they exist."""
        with self._write(table_id) as connection:
            connection.execute(insert(VECTOR_FILES), [{"table_id": table_id, **asdict(file)} for file in files])

    def list_vectors(self, table_id: int) -> list[VectorFile]:
        """List the recorded files of deletion vectors, the oldest first."""
        columns = VECTOR_FILES.c[VectorFile.__struct_fields__]
        recorded = select(*columns).where(VECTOR_FILES.c.table_id == table_id)
        with self._read(table_id) as connection:
            rows = connection.execute(recorded.order_by(VECTOR_FILES.c.since_ms, VECTOR_FILES.c.path))
            return [VectorFile(*row) for row in rows]

    def forget_vectors(self, table_id: int, paths: Collection[str]) -> None:
        """Forget these files of deletion vectors: they are gone, or a commit names them, or nobody can tell."""
        with self._write(table_id) as connection:
            forget_vectors(connection, table_id, paths)

    def list_written(self, table_id: int, statuses: Collection[FileStatus]) -> list[WrittenFile]:
        """List the files that dvsync wrote with one of `statuses`, the oldest first."""
        with self._read(table_id) as connection:
            return _read_written(connection, table_id, lambda rows: rows.c.status.in_(statuses))

    def list_for_cleanup(self, table_id: int, *, due_ms: int, now_ms: int) -> tuple[list[WrittenFile], int]:
        """List what a cleanup judges: live files, and orphans. Also counts the orphans that it need not judge yet.

        Those, perhaps very many, became orphans after `due_ms` and not after `now_ms`, because their snapshot was
        expired: nothing but their grace period is left.
        """

        def is_judged(rows: Table) -> ColumnElement[bool]:
            since_ms, is_orphan = rows.c.since_ms, rows.c.status == FileStatus.ORPHANED
            is_expired = rows.c.reason == OrphanReason.SNAPSHOT_EXPIRED
            is_waiting = is_expired & (since_ms > due_ms) & (since_ms <= now_ms)
            return (rows.c.status == FileStatus.LIVE) | (is_orphan & ~is_waiting)

        with self._read(table_id) as connection:
            judged = _read_written(connection, table_id, is_judged)
            orphans = sum(
                connection.execute(
                    select(func.count()).where(rows.c.table_id == table_id, rows.c.status == FileStatus.ORPHANED)
                ).scalar_one()
                for rows in WRITTEN_ROWS
            )
        return judged, orphans - sum(file.status is FileStatus.ORPHANED for file in judged)

    def has_orphans(self, table_id: int, *, before_ms: int, reasons: Collection[OrphanReason]) -> bool:
        """Return whether any file became an orphan, for one of `reasons`, at `before_ms` or earlier."""
        orphans = (
            exists().where(
                rows.c.table_id == table_id,
                rows.c.status == FileStatus.ORPHANED,
                rows.c.since_ms <= before_ms,
                rows.c.reason.in_(reasons),
            )
            for rows in WRITTEN_ROWS
        )
        with self._read(table_id) as connection:
            return bool(connection.scalar(select(or_(*orphans))))

    def find_crowded(self, table_id: int, *, delete_files_max: int, deleted_share: float) -> list[str]:
        """Find live data files with more than `delete_files_max` delete files, sorted.

        Also those with more than one delete file of which at least `deleted_share` of the rows are deleted.
        """
        files, count = DATA_FILES.c, func.count()
        is_full_of_deletions = func.coalesce(files.dv_cardinality, 0) >= deleted_share * files.record_count
        crowded = (
            select(files.path)
            .join(DV_MAPPINGS, DV_MAPPINGS.c.data_file_id == files.id)
            .where(files.table_id == table_id)
            # In the order of the index by path, so that the database need not sort the whole table.
            .group_by(files.path, files.id)
            .having((count > delete_files_max) | ((count > 1) & is_full_of_deletions))
        )
        return self._sorted_paths(table_id, crowded)

    def find_mostly_dead(self, table_id: int, *, dead_share: float) -> list[str]:
        """Find live delete files with dead blobs, which are more than `dead_share` of their positions, sorted."""
        files, live = DELETE_FILES.c, func.sum(DV_MAPPINGS.c.positions)
        mostly_dead = (
            select(files.path)
            .join(DV_MAPPINGS, DV_MAPPINGS.c.delete_file_id == files.id)
            .where(files.table_id == table_id, exists().where(DEAD_VECTORS.c.delete_file_id == files.id))
            .group_by(files.id, files.path, files.positions)
            .having(live < (1 - dead_share) * files.positions)
        )
        return self._sorted_paths(table_id, mostly_dead)

    def _sorted_paths(self, table_id: int, statement: Select[str]) -> list[str]:
        with self._read(table_id) as connection:
            return sorted(connection.scalars(statement))


def _read_written(
    connection: Connection, table_id: int, condition: Callable[[Table], ColumnElement[bool]]
) -> list[WrittenFile]:
    """Read the written files for which `condition` holds, the oldest first."""
    files = [
        WrittenFile(path, FileKind(kind), *rest)
        for rows in WRITTEN_ROWS
        for path, kind, *rest in connection.execute(
            select(rows.c.path, kind_of(rows), rows.c.status, rows.c.since_ms, rows.c.reason, rows.c.size_bytes).where(
                rows.c.table_id == table_id, condition(rows)
            )
        )
    ]
    return sorted(files, key=lambda file: (file.since_ms, file.path))
