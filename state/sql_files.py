"""What a verb does to the rows of files: each function is one step inside the caller's transaction.

The verbs in `sql_store.py` put the steps in order. Lists may be of any length.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, Text, bindparam, delete, insert, select, update

from state.models import DataFileRow, DeleteFileRow, DvMappingRow, FileStatus, MetadataFileRow
from state.records import DeleteFileRecord, DeletionVectorRecord, FileKind, LiveFile, OrphanReason
from state.sql_bulk import batched, find_by_path, update_rows, write_rows

WrittenRow = type[DeleteFileRow] | type[MetadataFileRow]
WRITTEN_ROWS: tuple[WrittenRow, ...] = (DeleteFileRow, MetadataFileRow)

LIVE: dict[str, Any] = {"status": FileStatus.LIVE, "reason": None, "orphaned_at_ms": None}


def orphaned(reason: OrphanReason, at_ms: int) -> dict[str, Any]:
    return {"status": FileStatus.ORPHANED, "reason": reason, "orphaned_at_ms": at_ms}


def write_live_manifests(connection: Connection, table_id: int, paths: Collection[str]) -> dict[str, int]:
    """Make these manifests live, known or not; gives the id of each."""
    statuses = find_by_path(connection, MetadataFileRow.status, table_id, paths)
    columns = {path: {"kind": FileKind.MANIFEST, **LIVE} for path in paths if statuses.get(path) is not FileStatus.LIVE}
    write_rows(connection, MetadataFileRow, table_id, columns, known=statuses)
    return find_by_path(connection, MetadataFileRow.id, table_id, paths)


def move_manifest(connection: Connection, table_id: int, old: str, new_id: int) -> None:
    """The files in manifest `old` are in the one with `new_id` from now on."""
    old_id = (
        select(MetadataFileRow.id)
        .where(MetadataFileRow.table_id == table_id, MetadataFileRow.path == old)
        .scalar_subquery()
    )
    connection.execute(update(DataFileRow).where(DataFileRow.manifest_id == old_id).values(manifest_id=new_id))
    connection.execute(update(DeleteFileRow).where(DeleteFileRow.manifest_id == old_id).values(manifest_id=new_id))


def write_live_files(
    connection: Connection, table_id: int, files: Iterable[LiveFile], manifest_ids: Mapping[str, int]
) -> None:
    """Insert these data files. One whose path is known is replaced; the delete files that serve it stay."""
    columns = {
        file.path: {
            "record_count": file.record_count,
            "size_bytes": file.size_bytes,
            "spec_id": file.spec_id,
            "manifest_id": manifest_ids[file.manifest_path],
            **_deletion_vector_columns(file.deletion_vector),
        }
        for file in files
    }
    known = find_by_path(connection, DataFileRow.id, table_id, columns)
    write_rows(connection, DataFileRow, table_id, columns, known=known)


def write_deletion_vectors(
    connection: Connection, table_id: int, changed_dvs: Iterable[tuple[str, DeletionVectorRecord | None]]
) -> None:
    """Give live files another deletion vector, or none. A path that is not live is passed over."""
    columns = {path: _deletion_vector_columns(deletion_vector) for path, deletion_vector in changed_dvs}
    update_rows(connection, DataFileRow, table_id, columns)


def remove_live_files(connection: Connection, table_id: int, paths: Iterable[str]) -> None:
    """Forget these data files and their mappings; the delete files stay."""
    for batch in batched(paths):
        connection.execute(delete(DataFileRow).where(DataFileRow.table_id == table_id, DataFileRow.path.in_(batch)))


def write_live_delete_files(
    connection: Connection, table_id: int, files: Iterable[DeleteFileRecord], manifest_ids: Mapping[str, int]
) -> None:
    """Make these delete files live, known or not, with exactly their mappings to data files that are live."""
    by_path = {file.path: file for file in files}
    columns = {
        path: {
            **LIVE,
            "size_bytes": file.size_bytes,
            "positions": file.positions,
            "spec_id": file.spec_id,
            "manifest_id": manifest_ids[file.manifest_path],
        }
        for path, file in by_path.items()
    }
    known = find_by_path(connection, DeleteFileRow.status, table_id, columns)
    write_rows(connection, DeleteFileRow, table_id, columns, known=known)
    _remove_mappings(connection, table_id, known)
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


def orphan_delete_files(
    connection: Connection, table_id: int, removed: Iterable[tuple[str, OrphanReason]], *, at_ms: int
) -> None:
    """Make these delete files orphaned, known or not; their mappings go. An orphaned one stays as it is."""
    reasons = dict(removed)
    statuses = find_by_path(connection, DeleteFileRow.status, table_id, reasons)
    columns = {
        path: {**orphaned(reason, at_ms), "manifest_id": None}
        for path, reason in reasons.items()
        if statuses.get(path) not in (FileStatus.ORPHANED, FileStatus.DELETED)
    }
    write_rows(connection, DeleteFileRow, table_id, columns, known=statuses)
    _remove_mappings(connection, table_id, statuses)


def insert_orphans(
    connection: Connection, table_id: int, kind: FileKind, paths: Sequence[str], reason: OrphanReason, *, at_ms: int
) -> None:
    """An orphaned row for each file that has no row yet."""
    rows = _rows_of(kind)
    known = find_by_path(connection, rows.status, table_id, paths)
    columns = {path: {**orphaned(reason, at_ms), **_kind_column(kind)} for path in paths if path not in known}
    write_rows(connection, rows, table_id, columns, known=known)


def write_pending(
    connection: Connection, table_id: int, kind: FileKind, paths: Sequence[str], *, intent_id: int
) -> None:
    """A pending row for each file that is not live. A row that an earlier intent left becomes this one's."""
    rows = _rows_of(kind)
    statuses = find_by_path(connection, rows.status, table_id, paths)
    pending = {"status": FileStatus.PENDING, "reason": None, "orphaned_at_ms": None, "intent_id": intent_id}
    columns = {path: {**pending, **_kind_column(kind)} for path in paths if statuses.get(path) is not FileStatus.LIVE}
    write_rows(connection, rows, table_id, columns, known=statuses)


def end_pending(connection: Connection, of: dict[str, Any], values: dict[str, Any]) -> None:
    """Write `values` into every pending row that `of` selects by column."""
    for rows in WRITTEN_ROWS:
        connection.execute(update(rows).filter_by(status=FileStatus.PENDING, **of).values(**values))


def take_back_metadata(connection: Connection, of: dict[str, Any]) -> None:
    """Make the manifests, lists and metadata files that `of` selects live, pending or taken for orphans until now."""
    taken_back = update(MetadataFileRow).filter_by(**of).where(MetadataFileRow.status != FileStatus.DELETED)
    connection.execute(taken_back.values(**LIVE))


def remove_pending(connection: Connection, table_id: int, paths: Iterable[str]) -> None:
    """Forget those of `paths` that are pending."""
    for batch in batched(paths):
        for rows in WRITTEN_ROWS:
            connection.execute(
                delete(rows).where(rows.table_id == table_id, rows.path.in_(batch), rows.status == FileStatus.PENDING)
            )


def remove_live(connection: Connection, table_id: int) -> None:
    """Forget all that is live in a table, mappings too. Pending and orphaned files stay."""
    connection.execute(delete(DataFileRow).where(DataFileRow.table_id == table_id))
    for rows in WRITTEN_ROWS:
        connection.execute(delete(rows).where(rows.table_id == table_id, rows.status == FileStatus.LIVE))


def _rows_of(kind: FileKind) -> WrittenRow:
    return DeleteFileRow if kind is FileKind.DELETE_FILE else MetadataFileRow


def _kind_column(kind: FileKind) -> dict[str, FileKind]:
    return {} if kind is FileKind.DELETE_FILE else {"kind": kind}


def _remove_mappings(connection: Connection, table_id: int, delete_files: Iterable[str]) -> None:
    for batch in batched(delete_files):
        delete_file_ids = select(DeleteFileRow.id).where(
            DeleteFileRow.table_id == table_id, DeleteFileRow.path.in_(batch)
        )
        connection.execute(delete(DvMappingRow).where(DvMappingRow.delete_file_id.in_(delete_file_ids)))


def _deletion_vector_columns(deletion_vector: DeletionVectorRecord | None) -> dict[str, Any]:
    return {
        f"dv_{field}": None if deletion_vector is None else getattr(deletion_vector, field)
        for field in DeletionVectorRecord.__struct_fields__
    }


# Joined by path, so that a mapping to a data file that is not live falls away by itself.
_INSERT_MAPPING = insert(DvMappingRow).from_select(
    ["delete_file_id", "data_file_id", "dv_unique_id", "positions"],
    select(
        DeleteFileRow.id,
        DataFileRow.id,
        bindparam("unique_id", type_=Text()),
        bindparam("positions_held", type_=BigInteger()),
    )
    .join_from(DeleteFileRow, DataFileRow, DataFileRow.table_id == DeleteFileRow.table_id)
    .where(
        DeleteFileRow.table_id == bindparam("of_table"),
        DeleteFileRow.path == bindparam("of_delete_file"),
        DataFileRow.path == bindparam("of_data_file"),
    ),
)
