"""The steps of the verbs on the rows of files. Each function runs inside the caller's transaction.

The verbs in `store.py` put the steps in order. Lists may be of any length.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Table,
    Text,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from state.records import (
    DeleteFileRecord,
    DeletionVectorDescriptor,
    FileKind,
    FileStatus,
    LiveFile,
    OrphanReason,
    WrittenCount,
    WrittenFile,
)
from state.sql.bulk import batched, find_by_path, update_rows, write_rows
from state.sql.models import DATA_FILES, DEAD_VECTORS, DELETE_FILES, DV_MAPPINGS, METADATA_FILES

WRITTEN_ROWS = (DELETE_FILES, METADATA_FILES)


def live(at_ms: int) -> dict[str, Any]:
    return {"status": FileStatus.LIVE, "reason": None, "since_ms": at_ms}


def orphaned(reason: OrphanReason, at_ms: int) -> dict[str, Any]:
    return {"status": FileStatus.ORPHANED, "reason": reason, "since_ms": at_ms}


def write_live_manifests(
    connection: Connection, table_id: int, paths: Collection[str], *, at_ms: int
) -> dict[str, int]:
    """Make these manifests live, known or not. Returns the id of each."""
    statuses = find_by_path(connection, METADATA_FILES.c.status, table_id, paths)
    columns = {
        path: {"kind": FileKind.MANIFEST, **live(at_ms)} for path in paths if statuses.get(path) is not FileStatus.LIVE
    }
    write_rows(connection, METADATA_FILES, table_id, columns, known=statuses)
    return find_by_path(connection, METADATA_FILES.c.id, table_id, paths)


def move_manifest(connection: Connection, table_id: int, old: str, new_id: int) -> None:
    """Move the files of manifest `old` to the manifest with the id `new_id`."""
    old_id = (
        select(METADATA_FILES.c.id)
        .where(METADATA_FILES.c.table_id == table_id, METADATA_FILES.c.path == old)
        .scalar_subquery()
    )
    connection.execute(update(DATA_FILES).where(DATA_FILES.c.manifest_id == old_id).values(manifest_id=new_id))
    connection.execute(update(DELETE_FILES).where(DELETE_FILES.c.manifest_id == old_id).values(manifest_id=new_id))


def write_live_files(
    connection: Connection, table_id: int, files: Iterable[LiveFile], manifest_ids: Mapping[str, int]
) -> None:
    """Insert these data files, or replace those whose path is known; their delete files stay."""
    columns = {
        file.path: {
            "record_count": file.record_count,
            "size_bytes": file.size_bytes,
            "spec_id": file.spec_id,
            "manifest_id": manifest_ids[file.manifest_path],
            "partition": msgspec.json.encode(file.partition).decode(),
            "uri": file.uri,
            **_deletion_vector_columns(file.deletion_vector),
        }
        for file in files
    }
    known = find_by_path(connection, DATA_FILES.c.id, table_id, columns)
    write_rows(connection, DATA_FILES, table_id, columns, known=known)


def write_deletion_vectors(
    connection: Connection, table_id: int, changed_dvs: Iterable[tuple[str, DeletionVectorDescriptor | None]]
) -> None:
    """Give live files another deletion vector, or none. A path that is not live is ignored."""
    columns = {path: _deletion_vector_columns(deletion_vector) for path, deletion_vector in changed_dvs}
    update_rows(connection, DATA_FILES, table_id, columns)


def write_uris(connection: Connection, table_id: int, changed_uris: Iterable[tuple[str, str | None]]) -> None:
    """Give live files another URI, or none. A path that is not live is ignored."""
    update_rows(connection, DATA_FILES, table_id, {path: {"uri": uri} for path, uri in changed_uris})


def remove_live_files(connection: Connection, table_id: int, paths: Iterable[str]) -> None:
    """Forget these data files and their mappings; the delete files stay."""
    for batch in batched(paths):
        connection.execute(delete(DATA_FILES).where(DATA_FILES.c.table_id == table_id, DATA_FILES.c.path.in_(batch)))


def write_live_delete_files(
    connection: Connection,
    table_id: int,
    files: Iterable[DeleteFileRecord],
    manifest_ids: Mapping[str, int],
    *,
    at_ms: int,
) -> None:
    """Make these delete files live, known or not, with exactly their mappings to data files that are live.

    The same for their dead blobs.
    """
    by_path = {file.path: file for file in files}
    columns: dict[str, dict[str, Any]] = {
        path: {
            "size_bytes": file.size_bytes,
            "positions": file.positions,
            "spec_id": file.spec_id,
            "manifest_id": manifest_ids[file.manifest_path],
        }
        for path, file in by_path.items()
    }
    statuses = find_by_path(connection, DELETE_FILES.c.status, table_id, columns)
    live_before = {path for path, status in statuses.items() if status is FileStatus.LIVE}
    made_live = {path: {**row, **live(at_ms)} for path, row in columns.items() if path not in live_before}
    write_rows(connection, DELETE_FILES, table_id, made_live, known=statuses)
    update_rows(connection, DELETE_FILES, table_id, {path: columns[path] for path in live_before})
    _remove_mappings(connection, table_id, statuses)
    mappings = [
        {
            "of_table": table_id,
            "of_delete_file": path,
            "of_data_file": mapping.data_file,
            "unique_id": mapping.dv_unique_id,
            "positions_held": mapping.positions,
        }
        for path, file in by_path.items()
        for mapping in file.mappings
    ]
    if mappings:
        connection.execute(_INSERT_MAPPING, mappings)
    write_dead_vectors(
        connection, table_id, [(path, data_file) for path, file in by_path.items() for data_file in file.dead]
    )


def write_dead_vectors(connection: Connection, table_id: int, dead: Iterable[tuple[str, str]]) -> None:
    """Record of each pair that its delete file serves its data file no longer, although it has a blob of it."""
    pairs = [{"of_table": table_id, "of_delete_file": path, "of_data_file": data_file} for path, data_file in dead]
    if pairs:
        connection.execute(_DELETE_MAPPING, pairs)
        connection.execute(_INSERT_DEAD, pairs)


def orphan_delete_files(
    connection: Connection, table_id: int, removed: Iterable[tuple[str, OrphanReason]], *, at_ms: int
) -> None:
    """Make these delete files orphaned, known or not, and remove their mappings. Orphaned ones stay as they are."""
    reasons = dict(removed)
    statuses = find_by_path(connection, DELETE_FILES.c.status, table_id, reasons)
    columns = {
        path: {**orphaned(reason, at_ms), "manifest_id": None}
        for path, reason in reasons.items()
        if statuses.get(path) not in (FileStatus.ORPHANED, FileStatus.DELETED)
    }
    write_rows(connection, DELETE_FILES, table_id, columns, known=statuses)
    _remove_mappings(connection, table_id, statuses)


def orphan_unreferenced(
    connection: Connection, table_id: int, paths: Collection[str], reason: OrphanReason, *, at_ms: int
) -> None:
    """Make those of `paths` orphaned from now on that are orphaned, or live and no delete files.

    A manifest that live files are in stays as it is: their rows point at it.
    """
    columns = dict.fromkeys(paths, orphaned(reason, at_ms))
    update_written(connection, table_id, columns, statuses=(FileStatus.ORPHANED,), rows=(DELETE_FILES,))
    in_manifest = or_(
        exists().where(DATA_FILES.c.manifest_id == METADATA_FILES.c.id),
        exists().where(DELETE_FILES.c.manifest_id == METADATA_FILES.c.id),
    )
    holding = select(METADATA_FILES.c.path).where(METADATA_FILES.c.table_id == table_id, in_manifest)
    for batch in batched(paths):
        for manifest in connection.scalars(holding.where(METADATA_FILES.c.path.in_(batch))):
            columns.pop(manifest, None)
    live_or_orphaned = (FileStatus.LIVE, FileStatus.ORPHANED)
    update_written(connection, table_id, columns, statuses=live_or_orphaned, rows=(METADATA_FILES,))


def orphan_written(connection: Connection, table_id: int, reason: OrphanReason, *, at_ms: int) -> None:
    """Make every file orphaned that a snapshot may use. No manifest may have live data files any more."""
    older = [each for each in OrphanReason if each.shown_by_older]
    for rows in WRITTEN_ROWS:
        used = rows.c.status.in_((FileStatus.PENDING, FileStatus.LIVE)) | rows.c.reason.in_(older)
        kept = update(rows).where(rows.c.table_id == table_id, rows.c.status != FileStatus.DELETED, used)
        connection.execute(kept.values(**orphaned(reason, at_ms)))


def insert_orphans(
    connection: Connection, table_id: int, kind: FileKind, paths: Sequence[str], reason: OrphanReason, *, at_ms: int
) -> None:
    """Insert an orphaned row for each file that has no row yet."""
    rows = _rows_of(kind)
    known = find_by_path(connection, rows.c.status, table_id, paths)
    columns = {path: {**orphaned(reason, at_ms), **_kind_column(kind)} for path in paths if path not in known}
    write_rows(connection, rows, table_id, columns, known=known)


def update_written(
    connection: Connection,
    table_id: int,
    columns: Mapping[str, dict[str, Any]],
    *,
    statuses: Collection[FileStatus],
    rows: Collection[Table] = WRITTEN_ROWS,
) -> None:
    """Update the row of each path that is in one of `statuses`, in one or both of the tables of written files."""
    for each in rows:
        found = find_by_path(connection, each.c.status, table_id, columns)
        update_rows(
            connection, each, table_id, {path: columns[path] for path, status in found.items() if status in statuses}
        )


def count_written(connection: Connection, table_id: int) -> tuple[WrittenCount, ...]:
    counted = [
        select(_kind_of(rows), rows.c.status, func.count(), func.sum(rows.c.size_bytes), func.min(rows.c.since_ms))
        .where(rows.c.table_id == table_id)
        .group_by(rows.c.status, *([rows.c.kind] if rows is METADATA_FILES else []))
        for rows in WRITTEN_ROWS
    ]
    return tuple(
        # Some databases add integers up to a decimal.
        WrittenCount(FileKind(kind), status, files, None if size_bytes is None else int(size_bytes), since_ms)
        for statement in counted
        for kind, status, files, size_bytes, since_ms in sorted(connection.execute(statement))
    )


def has_orphans(connection: Connection, table_id: int, *, before_ms: int, reasons: Collection[OrphanReason]) -> bool:
    """Whether a file of any kind was orphaned, for one of `reasons`, at `before_ms` or earlier."""
    orphans = (
        exists().where(
            rows.c.table_id == table_id,
            rows.c.status == FileStatus.ORPHANED,
            rows.c.since_ms <= before_ms,
            rows.c.reason.in_(reasons),
        )
        for rows in WRITTEN_ROWS
    )
    return bool(connection.scalar(select(or_(*orphans))))


def read_written(
    connection: Connection, table_id: int, condition: Callable[[Table], ColumnElement[bool]]
) -> list[WrittenFile]:
    """Read the written files for which `condition` holds, the oldest first."""
    files = [
        WrittenFile(path, FileKind(kind), *rest)
        for rows in WRITTEN_ROWS
        for path, kind, *rest in connection.execute(
            select(rows.c.path, _kind_of(rows), rows.c.status, rows.c.since_ms, rows.c.reason, rows.c.size_bytes).where(
                rows.c.table_id == table_id, condition(rows)
            )
        )
    ]
    return sorted(files, key=lambda file: (file.since_ms, file.path))


def read_for_cleanup(
    connection: Connection, table_id: int, *, due_ms: int, now_ms: int
) -> tuple[list[WrittenFile], int]:
    """Read live files and orphans, and count the orphans that only wait: those are not read."""

    def is_judged(rows: Table) -> ColumnElement[bool]:
        is_waiting = (
            (rows.c.reason == OrphanReason.SNAPSHOT_EXPIRED) & (rows.c.since_ms > due_ms) & (rows.c.since_ms <= now_ms)
        )
        return (rows.c.status == FileStatus.LIVE) | ((rows.c.status == FileStatus.ORPHANED) & ~is_waiting)

    judged = read_written(connection, table_id, is_judged)
    orphans = sum(
        connection.scalar(select(func.count()).where(rows.c.table_id == table_id, rows.c.status == FileStatus.ORPHANED))
        or 0
        for rows in WRITTEN_ROWS
    )
    return judged, orphans - sum(file.status is FileStatus.ORPHANED for file in judged)


def restart_grace(connection: Connection, table_id: int, paths: Iterable[str], *, at_ms: int) -> None:
    """Let the grace period of these orphans begin at `at_ms`, except of those that older snapshots show."""
    older = [each for each in OrphanReason if each.shown_by_older]
    for batch in batched(paths):
        for rows in WRITTEN_ROWS:
            waiting = update(rows).where(rows.c.table_id == table_id, rows.c.path.in_(batch))
            waiting = waiting.where(rows.c.status == FileStatus.ORPHANED, rows.c.reason.not_in(older))
            connection.execute(waiting.values(since_ms=at_ms))


def _kind_of(rows: Table) -> Any:
    return rows.c.kind if rows is METADATA_FILES else literal(FileKind.DELETE_FILE.value)


def write_pending(
    connection: Connection, table_id: int, kind: FileKind, paths: Sequence[str], *, intent_id: int, at_ms: int
) -> None:
    """Write a pending row for each file that is not live. A row that an earlier intent left goes to this intent."""
    rows = _rows_of(kind)
    statuses = find_by_path(connection, rows.c.status, table_id, paths)
    pending = {"status": FileStatus.PENDING, "reason": None, "since_ms": at_ms, "intent_id": intent_id}
    columns = {path: {**pending, **_kind_column(kind)} for path in paths if statuses.get(path) is not FileStatus.LIVE}
    write_rows(connection, rows, table_id, columns, known=statuses)


def take_back_pending(connection: Connection, intent_id: int, paths: Iterable[str], *, at_ms: int) -> None:
    """Make those of `paths` that are pending for this intent live."""
    for batch in batched(paths):
        for rows in WRITTEN_ROWS:
            pending = update(rows).filter_by(intent_id=intent_id, status=FileStatus.PENDING)
            connection.execute(pending.where(rows.c.path.in_(batch)).values(**live(at_ms)))


def end_pending(connection: Connection, of: dict[str, Any], values: dict[str, Any]) -> None:
    """Write `values` into every pending row that `of` selects by column."""
    for rows in WRITTEN_ROWS:
        connection.execute(update(rows).filter_by(status=FileStatus.PENDING, **of).values(**values))


def take_back_metadata(connection: Connection, of: dict[str, Any], *, at_ms: int) -> None:
    """Make the manifests, lists and metadata files that `of` selects live if they are pending or orphaned."""
    taken_back = update(METADATA_FILES).filter_by(**of)
    not_in_use = METADATA_FILES.c.status.in_((FileStatus.PENDING, FileStatus.ORPHANED))
    connection.execute(taken_back.where(not_in_use).values(**live(at_ms)))


def remove_pending(connection: Connection, of: dict[str, Any], paths: Iterable[str]) -> None:
    """Forget those of `paths` that are pending and that `of` selects by column."""
    for batch in batched(paths):
        for rows in WRITTEN_ROWS:
            pending = delete(rows).filter_by(status=FileStatus.PENDING, **of)
            connection.execute(pending.where(rows.c.path.in_(batch)))


def remove_some_live_files(connection: Connection, table_id: int, files_max: int) -> bool:
    """Forget this many live data files of a table, and their mappings. False when none are left."""
    some = select(DATA_FILES.c.id).where(DATA_FILES.c.table_id == table_id).limit(files_max)
    return connection.execute(delete(DATA_FILES).where(DATA_FILES.c.id.in_(some))).rowcount == files_max


def take_out_delete_files(connection: Connection, table_id: int) -> None:
    """Take the live delete files of a table out of their manifests."""
    live_before = update(DELETE_FILES).filter_by(table_id=table_id, status=FileStatus.LIVE)
    connection.execute(live_before.values(manifest_id=None))


def orphan_not_read_again(connection: Connection, table_id: int, *, at_ms: int) -> None:
    """Make the live delete files that are in no manifest orphaned."""
    not_read = update(DELETE_FILES).filter_by(table_id=table_id, status=FileStatus.LIVE, manifest_id=None)
    connection.execute(not_read.values(**orphaned(OrphanReason.DATA_FILES_GONE, at_ms)))


def _rows_of(kind: FileKind) -> Table:
    return DELETE_FILES if kind is FileKind.DELETE_FILE else METADATA_FILES


def _kind_column(kind: FileKind) -> dict[str, FileKind]:
    return {} if kind is FileKind.DELETE_FILE else {"kind": kind}


def _remove_mappings(connection: Connection, table_id: int, delete_files: Iterable[str]) -> None:
    for batch in batched(delete_files):
        delete_file_ids = select(DELETE_FILES.c.id).where(
            DELETE_FILES.c.table_id == table_id, DELETE_FILES.c.path.in_(batch)
        )
        for rows in (DV_MAPPINGS, DEAD_VECTORS):
            connection.execute(delete(rows).where(rows.c.delete_file_id.in_(delete_file_ids)))


def _deletion_vector_columns(deletion_vector: DeletionVectorDescriptor | None) -> dict[str, Any]:
    return {
        f"dv_{field}": None if deletion_vector is None else getattr(deletion_vector, field)
        for field in DeletionVectorDescriptor.__struct_fields__
    }


_DELETE_FILE_ID = (
    select(DELETE_FILES.c.id)
    .where(DELETE_FILES.c.table_id == bindparam("of_table"), DELETE_FILES.c.path == bindparam("of_delete_file"))
    .scalar_subquery()
)
_DATA_FILE_ID = (
    select(DATA_FILES.c.id)
    .where(DATA_FILES.c.table_id == bindparam("of_table"), DATA_FILES.c.path == bindparam("of_data_file"))
    .scalar_subquery()
)
_DELETE_MAPPING = delete(DV_MAPPINGS).where(
    DV_MAPPINGS.c.delete_file_id == _DELETE_FILE_ID, DV_MAPPINGS.c.data_file_id == _DATA_FILE_ID
)
_OF_DATA_FILE = bindparam("of_data_file", type_=Text())
# An outcome may be applied twice.
_INSERT_DEAD = insert(DEAD_VECTORS).from_select(
    ["delete_file_id", "data_file"],
    select(DELETE_FILES.c.id, _OF_DATA_FILE).where(
        DELETE_FILES.c.table_id == bindparam("of_table"),
        DELETE_FILES.c.path == bindparam("of_delete_file"),
        DELETE_FILES.c.status == FileStatus.LIVE,
        ~exists().where(DEAD_VECTORS.c.delete_file_id == DELETE_FILES.c.id, DEAD_VECTORS.c.data_file == _OF_DATA_FILE),
    ),
)
# Joined by path, which leaves out mappings to data files that are not live.
_INSERT_MAPPING = insert(DV_MAPPINGS).from_select(
    ["delete_file_id", "data_file_id", "dv_unique_id", "positions"],
    select(
        DELETE_FILES.c.id,
        DATA_FILES.c.id,
        bindparam("unique_id", type_=Text()),
        bindparam("positions_held", type_=BigInteger()),
    )
    .join_from(DELETE_FILES, DATA_FILES, DATA_FILES.c.table_id == DELETE_FILES.c.table_id)
    .where(
        DELETE_FILES.c.table_id == bindparam("of_table"),
        DELETE_FILES.c.path == bindparam("of_delete_file"),
        DATA_FILES.c.path == bindparam("of_data_file"),
    ),
)
