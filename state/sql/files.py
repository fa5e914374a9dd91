"""The steps of the verbs on the rows of files, each inside the caller's transaction. Lists may be of any length."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import astuple
from sqlalchemy import (
    BigInteger,
    BindParameter,
    Connection,
    Row,
    Select,
    Table,
    Text,
    bindparam,
    delete,
    exists,
    insert,
    literal,
    select,
    update,
)

from state.records import (
    DeleteFileRecord,
    DeletionVectorDescriptor,
    DvMapping,
    FileKind,
    FileStatus,
    LiveFile,
    MirrorRecord,
    OrphanReason,
    Outcome,
)
from state.sql.bulk import batched, change_rows, delete_rows, find_rows, update_rows, write_rows
from state.sql.models import DATA_FILES, DEAD_VECTORS, DELETE_FILES, DV_MAPPINGS, METADATA_FILES, MIRRORS, VECTOR_FILES

# The rows of the files that dvsync writes.
WRITTEN_ROWS = (DELETE_FILES, METADATA_FILES, MIRRORS)
_KINDS = {DELETE_FILES: FileKind.DELETE_FILE, MIRRORS: FileKind.MIRROR}
decode_partition = msgspec.json.Decoder(tuple[str | None, ...]).decode
_VECTOR_COLUMNS = tuple(f"dv_{field}" for field in DeletionVectorDescriptor.__struct_fields__)
_vector_of = attrgetter(*_VECTOR_COLUMNS)
SHOWN_BY_OLDER = tuple(reason for reason in OrphanReason if reason.shown_by_older)


def select_live_files() -> Select[Any]:
    """Select the live files of the table whose id is the parameter `table_id`."""
    return (
        select(DATA_FILES, METADATA_FILES.c.path.label("manifest_path"))
        .join(METADATA_FILES, METADATA_FILES.c.id == DATA_FILES.c.manifest_id)
        .where(DATA_FILES.c.table_id == bindparam("table_id"))
    )


def live_file(row: Row[Any]) -> LiveFile:
    """Return the record of one row of `select_live_files`."""
    has_vector = row.dv_storage_type is not None
    return LiveFile(
        path=row.path,
        record_count=row.record_count,
        size_bytes=row.size_bytes,
        spec_id=row.spec_id,
        manifest_path=row.manifest_path,
        deletion_vector=DeletionVectorDescriptor(*_vector_of(row)) if has_vector else None,
        partition=decode_partition(row.partition),
        uri=row.uri,
    )


def read_delete_files(connection: Connection, delete_file_ids: Collection[int]) -> list[DeleteFileRecord]:
    """Read these live delete files with all their mappings and dead blobs, all sorted by path."""
    dead: dict[int, list[str]] = {delete_file_id: [] for delete_file_id in delete_file_ids}
    mappings: dict[int, list[DvMapping]] = {delete_file_id: [] for delete_file_id in delete_file_ids}
    delete_files = []
    for batch in batched(delete_file_ids):
        of_batch = {"delete_file_ids": batch}
        for row in connection.execute(_MAPPINGS_OF, of_batch):
            mappings[row.delete_file_id].append(DvMapping(row.path, row.dv_unique_id, row.positions))
        for row in connection.execute(_DEAD_OF, of_batch):
            dead[row.delete_file_id].append(row.data_file)
        delete_files += [
            DeleteFileRecord(
                path=row.path,
                size_bytes=row.size_bytes,
                positions=row.positions,
                spec_id=row.spec_id,
                manifest_path=row.manifest_path,
                mappings=tuple(mappings[row.id]),
                dead=tuple(dead[row.id]),
            )
            for row in connection.execute(_DELETE_FILES_BY_ID, of_batch)
        ]
    return sorted(delete_files, key=lambda delete_file: delete_file.path)


def live(at_ms: int) -> dict[str, Any]:
    return {"status": FileStatus.LIVE, "reason": None, "since_ms": at_ms}


def orphaned(reason: OrphanReason, at_ms: int) -> dict[str, Any]:
    return {"status": FileStatus.ORPHANED, "reason": reason, "since_ms": at_ms}


def kind_of(rows: Table) -> Any:
    return METADATA_FILES.c.kind if rows is METADATA_FILES else literal(_KINDS[rows].value)


def write_written(
    connection: Connection,
    table_id: int,
    kind: FileKind,
    columns: Mapping[str, dict[str, Any]],
    *,
    keep: Collection[FileStatus],
) -> None:
    """Write the columns of each path, known or not. A file with a status of `keep` stays as it is."""
    rows = next((rows for rows, its_kind in _KINDS.items() if its_kind is kind), METADATA_FILES)
    kinds = {"kind": kind} if rows is METADATA_FILES else {}
    write_rows(connection, rows, table_id, {path: {**row, **kinds} for path, row in columns.items()}, keep=keep)


def change_written(
    connection: Connection,
    of: dict[str, Any],
    was: Collection[FileStatus],
    values: dict[str, Any],
    *,
    kinds: Collection[Table] = WRITTEN_ROWS,
    paths: Iterable[str] | None = None,
) -> None:
    """Write `values` into the rows with a status of `was` that `of` selects: by a column's value, or a tuple of them.

    Only those of `paths`, if these are given.
    """
    for batch in [None] if paths is None else batched(paths):
        for rows in kinds:
            wanted = {**of, "status": tuple(was), **({} if batch is None else {"path": tuple(batch)})}
            change_rows(connection, rows, wanted, values)


def write_live_manifests(
    connection: Connection, table_id: int, paths: Collection[str], *, at_ms: int
) -> dict[str, int]:
    """Make these manifests live, known or not. Returns the id of each."""
    columns = dict.fromkeys(paths, live(at_ms))
    write_written(connection, table_id, FileKind.MANIFEST, columns, keep=(FileStatus.LIVE,))
    return {path: row_id for path, row_id in find_rows(connection, _MANIFEST_IDS, table_id, paths)}


def move_manifest(connection: Connection, table_id: int, old: str, new_id: int) -> None:
    """Move the files of manifest `old` to the manifest with the id `new_id`."""
    for statement in _MOVE_MANIFEST:
        connection.execute(statement, {"of_table": table_id, "of_path": old, "manifest_id": new_id})


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
    write_rows(connection, DATA_FILES, table_id, columns)


def change_live_files(connection: Connection, outcome: Outcome) -> None:
    """Give live files other deletion vectors and URIs, or none. A path that is not live is ignored."""
    vectors = {path: _deletion_vector_columns(deletion_vector) for path, deletion_vector in outcome.changed_dvs}
    update_rows(connection, DATA_FILES, outcome.table_id, vectors)
    uris = {path: {"uri": uri} for path, uri in outcome.changed_uris}
    update_rows(connection, DATA_FILES, outcome.table_id, uris)


def remove_live_files(connection: Connection, table_id: int, paths: Iterable[str]) -> None:
    """Forget these data files and their mappings; the delete files stay."""
    for batch in batched(paths):
        delete_rows(connection, DATA_FILES, {"table_id": table_id, "path": tuple(batch)})


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
    # Those that are live already keep the time since when.
    write_rows(connection, DELETE_FILES, table_id, dict.fromkeys(columns, live(at_ms)), keep=(FileStatus.LIVE,))
    update_rows(connection, DELETE_FILES, table_id, columns)
    _remove_mappings(connection, table_id, columns)
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
    columns = {path: {**orphaned(reason, at_ms), "manifest_id": None} for path, reason in removed}
    not_in_use = (FileStatus.ORPHANED, FileStatus.DELETED)
    write_written(connection, table_id, FileKind.DELETE_FILE, columns, keep=not_in_use)
    _remove_mappings(connection, table_id, columns)


def write_mirrors(
    connection: Connection,
    table_id: int,
    mirrors: Iterable[MirrorRecord],
    status: Mapping[str, Any],
    *,
    keep: Collection[FileStatus] = (FileStatus.LIVE,),
) -> None:
    """Give these mirrors a status, known or not. Those with a status of `keep` stay as they are."""
    columns = {
        mirror.path: {
            "data_file": mirror.data_file,
            "data_file_bytes": mirror.data_file_bytes,
            "kind": mirror.kind,
            "size_bytes": mirror.size_bytes,
            "why": mirror.why,
            "reason": mirror.reason,
            **status,
        }
        for mirror in mirrors
    }
    write_written(connection, table_id, FileKind.MIRROR, columns, keep=keep)


def orphan_mirrors_not_shown(connection: Connection, table_id: int, *, at_ms: int) -> None:
    """Make the live mirrors orphans that are no live data files."""
    is_shown = exists().where(DATA_FILES.c.table_id == table_id, DATA_FILES.c.path == MIRRORS.c.path)
    live_ones = (MIRRORS.c.table_id == table_id, MIRRORS.c.status == FileStatus.LIVE)
    gone = orphaned(OrphanReason.DATA_FILES_GONE, at_ms)
    connection.execute(update(MIRRORS).where(*live_ones, ~is_shown).values(**gone))


def orphan_pending(connection: Connection, of: dict[str, Any], reason: OrphanReason, *, at_ms: int) -> None:
    """Make those orphans that are pending and that `of` selects. A mirror of older snapshots keeps its reason."""
    shown, again = {**of, "reason": SHOWN_BY_OLDER}, {"status": FileStatus.ORPHANED, "since_ms": at_ms}
    change_written(connection, shown, (FileStatus.PENDING,), again, kinds=(MIRRORS,))
    change_written(connection, of, (FileStatus.PENDING,), orphaned(reason, at_ms))


def remove_pending(connection: Connection, of: dict[str, Any], paths: Iterable[str]) -> None:
    """Forget those of `paths` that are pending and that `of` selects by column."""
    for batch in batched(paths):
        for rows in WRITTEN_ROWS:
            delete_rows(connection, rows, {**of, "status": FileStatus.PENDING, "path": tuple(batch)})


def forget_vectors(connection: Connection, table_id: int, paths: Iterable[str]) -> None:
    for batch in batched(paths):
        delete_rows(connection, VECTOR_FILES, {"table_id": table_id, "path": tuple(batch)})


def remove_some_live_files(connection: Connection, table_id: int, files_max: int) -> bool:
    """Forget this many live data files of a table, and their mappings. False when none are left."""
    some = select(DATA_FILES.c.id).where(DATA_FILES.c.table_id == table_id).limit(files_max)
    return connection.execute(delete(DATA_FILES).where(DATA_FILES.c.id.in_(some))).rowcount == files_max


def _remove_mappings(connection: Connection, table_id: int, delete_files: Iterable[str]) -> None:
    for batch in batched(delete_files):
        for statement in _DELETE_BY_DELETE_FILE:
            connection.execute(statement, {"table_id": table_id, "paths": batch})


def _deletion_vector_columns(deletion_vector: DeletionVectorDescriptor | None) -> dict[str, Any]:
    if deletion_vector is None:
        return dict.fromkeys(_VECTOR_COLUMNS)
    return dict(zip(_VECTOR_COLUMNS, astuple(deletion_vector), strict=True))


# Statements of every sync are built once: building one takes longer than executing it.
_IN_BATCH: BindParameter[Any] = bindparam("delete_file_ids", expanding=True)
_MAPPINGS_OF = (
    select(DV_MAPPINGS, DATA_FILES.c.path)
    .join(DATA_FILES, DATA_FILES.c.id == DV_MAPPINGS.c.data_file_id)
    .where(DV_MAPPINGS.c.delete_file_id.in_(_IN_BATCH))
    .order_by(DATA_FILES.c.path)
)
_DEAD_OF = select(DEAD_VECTORS).where(DEAD_VECTORS.c.delete_file_id.in_(_IN_BATCH)).order_by(DEAD_VECTORS.c.data_file)
_DELETE_FILES_BY_ID = (
    select(DELETE_FILES, METADATA_FILES.c.path.label("manifest_path"))
    .join(METADATA_FILES, METADATA_FILES.c.id == DELETE_FILES.c.manifest_id)
    .where(DELETE_FILES.c.id.in_(_IN_BATCH))
)
_MANIFEST_IDS = select(METADATA_FILES.c.path, METADATA_FILES.c.id).where(
    METADATA_FILES.c.table_id == bindparam("table_id"), METADATA_FILES.c.path.in_(bindparam("paths", expanding=True))
)
_MANIFEST_ID = (
    select(METADATA_FILES.c.id)
    .where(METADATA_FILES.c.table_id == bindparam("of_table"), METADATA_FILES.c.path == bindparam("of_path"))
    .scalar_subquery()
)
_MOVE_MANIFEST = [update(rows).where(rows.c.manifest_id == _MANIFEST_ID) for rows in (DATA_FILES, DELETE_FILES)]
_DELETE_FILE_IDS = select(DELETE_FILES.c.id).where(
    DELETE_FILES.c.table_id == bindparam("table_id"), DELETE_FILES.c.path.in_(bindparam("paths", expanding=True))
)
_DELETE_BY_DELETE_FILE = [
    delete(rows).where(rows.c.delete_file_id.in_(_DELETE_FILE_IDS)) for rows in (DV_MAPPINGS, DEAD_VECTORS)
]
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
