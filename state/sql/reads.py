"""Reads rows of live files and delete files into records, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from sqlalchemy import Connection, Float, Row, Select, bindparam, cast, exists, func, select

from state.records import (
    DeleteFileRecord,
    Deletions,
    DeletionVectorDescriptor,
    DvMapping,
    FileStatus,
    LiveFile,
    PartitionCount,
    ServingFile,
    VectorCount,
)
from state.sql.bulk import batched
from state.sql.models import DATA_FILES, DEAD_VECTORS, DELETE_FILES, DV_MAPPINGS, METADATA_FILES

_decode_partition = msgspec.json.Decoder(tuple[str | None, ...]).decode


def select_live_files() -> Select[Any]:
    """Select the live files of the table whose id is the parameter `table_id`."""
    return (
        select(DATA_FILES, METADATA_FILES.c.path.label("manifest_path"))
        .join(METADATA_FILES, METADATA_FILES.c.id == DATA_FILES.c.manifest_id)
        .where(DATA_FILES.c.table_id == bindparam("table_id"))
    )


def live_file(row: Row[Any]) -> LiveFile:
    """Return the record of one row of `select_live_files`."""
    deletion_vector = None
    if row.dv_storage_type is not None:
        deletion_vector = DeletionVectorDescriptor(
            storage_type=row.dv_storage_type,
            path_or_inline_dv=row.dv_path_or_inline_dv,
            size_in_bytes=row.dv_size_in_bytes,
            cardinality=row.dv_cardinality,
            offset=row.dv_offset,
        )
    return LiveFile(
        path=row.path,
        record_count=row.record_count,
        size_bytes=row.size_bytes,
        spec_id=row.spec_id,
        manifest_path=row.manifest_path,
        deletion_vector=deletion_vector,
        partition=_decode_partition(row.partition),
        uri=row.uri,
    )


def read_delete_files(connection: Connection, delete_file_ids: Collection[int]) -> list[DeleteFileRecord]:
    """Read these live delete files with all their mappings and dead blobs, all sorted by path."""
    dead: dict[int, list[str]] = {delete_file_id: [] for delete_file_id in delete_file_ids}
    mappings: dict[int, list[DvMapping]] = {delete_file_id: [] for delete_file_id in delete_file_ids}
    delete_files = []
    for batch in batched(delete_file_ids):
        served = (
            select(DV_MAPPINGS, DATA_FILES.c.path)
            .join(DATA_FILES, DATA_FILES.c.id == DV_MAPPINGS.c.data_file_id)
            .where(DV_MAPPINGS.c.delete_file_id.in_(batch))
            .order_by(DATA_FILES.c.path)
        )
        for row in connection.execute(served):
            mappings[row.delete_file_id].append(DvMapping(row.path, row.dv_unique_id, row.positions))
        unused = select(DEAD_VECTORS).where(DEAD_VECTORS.c.delete_file_id.in_(batch)).order_by(DEAD_VECTORS.c.data_file)
        for row in connection.execute(unused):
            dead[row.delete_file_id].append(row.data_file)
        serving = (
            select(DELETE_FILES, METADATA_FILES.c.path.label("manifest_path"))
            .join(METADATA_FILES, METADATA_FILES.c.id == DELETE_FILES.c.manifest_id)
            .where(DELETE_FILES.c.id.in_(batch))
        )
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
            for row in connection.execute(serving)
        ]
    return sorted(delete_files, key=lambda delete_file: delete_file.path)


def read_deletions(connection: Connection, table_id: int, *, rows_max: int) -> Deletions:
    """Read the sums and the worst rows. The database sorts and cuts, so memory does not grow with the table."""
    files = DATA_FILES.c
    of_table = files.table_id == table_id
    vectors = (
        select(files.dv_storage_type, func.count(), func.sum(files.dv_size_in_bytes), func.sum(files.dv_cardinality))
        .where(of_table, files.dv_storage_type.is_not(None))
        .group_by(files.dv_storage_type)
        .order_by(files.dv_storage_type)
    )
    rows, deleted = func.sum(files.record_count), func.sum(files.dv_cardinality)
    partitions = (
        select(files.spec_id, files.partition, func.count(), rows, deleted)
        .where(of_table)
        .group_by(files.spec_id, files.partition)
        .having(deleted > 0)
        .order_by((cast(deleted, Float) / rows).desc(), files.spec_id, files.partition)
        .limit(rows_max)
    )
    serving = DELETE_FILES.c
    largest = (
        select(serving.path, serving.size_bytes, serving.positions, serving.since_ms, serving.id)
        # One that an abandoned commit left in use has no positions until the memory is rebuilt.
        .where(serving.table_id == table_id, serving.status == FileStatus.LIVE, serving.positions.is_not(None))
        .order_by(serving.positions.desc(), serving.path)
        .limit(rows_max)
        .subquery()
    )
    served = (
        select(
            *(largest.c[name] for name in ("path", "size_bytes", "positions", "since_ms")),
            func.count(DV_MAPPINGS.c.data_file_id),
        )
        .join(DV_MAPPINGS, DV_MAPPINGS.c.delete_file_id == largest.c.id, isouter=True)
        .group_by(*largest.c)
        .order_by(largest.c.positions.desc(), largest.c.path)
    )
    # Some databases add integers up to a decimal.
    return Deletions(
        vectors=tuple(VectorCount(kind, *map(int, sums)) for kind, *sums in connection.execute(vectors)),
        files=_read_worst_files(connection, table_id, files_max=rows_max),
        partitions=tuple(
            PartitionCount(spec_id, _decode_partition(partition), *map(int, sums))
            for spec_id, partition, *sums in connection.execute(partitions)
        ),
        delete_files=tuple(ServingFile(*columns) for columns in map(tuple, connection.execute(served))),
    )


def _read_worst_files(connection: Connection, table_id: int, *, files_max: int) -> tuple[LiveFile, ...]:
    """Read the live files with the largest share of deleted rows. The database sorts and cuts."""
    files = DATA_FILES.c
    share = cast(files.dv_cardinality, Float) / files.record_count
    worst = select_live_files().where(files.dv_cardinality > 0).order_by(share.desc(), files.path).limit(files_max)
    return tuple(live_file(row) for row in connection.execute(worst, {"table_id": table_id}))


def read_crowded(connection: Connection, table_id: int, *, delete_files_max: int, deleted_share: float) -> list[str]:
    """Read the data files with more than `delete_files_max` delete files, or two and this share of deleted rows."""
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
    return sorted(connection.scalars(crowded))


def read_mostly_dead(connection: Connection, table_id: int, *, dead_share: float) -> list[str]:
    """Read the delete files with dead blobs, which are more than `dead_share` of their positions."""
    live = func.sum(DV_MAPPINGS.c.positions)
    mostly_dead = (
        select(DELETE_FILES.c.path)
        .join(DV_MAPPINGS, DV_MAPPINGS.c.delete_file_id == DELETE_FILES.c.id)
        .where(DELETE_FILES.c.table_id == table_id, exists().where(DEAD_VECTORS.c.delete_file_id == DELETE_FILES.c.id))
        .group_by(DELETE_FILES.c.id, DELETE_FILES.c.path, DELETE_FILES.c.positions)
        .having(live < (1 - dead_share) * DELETE_FILES.c.positions)
    )
    return sorted(connection.scalars(mostly_dead))
