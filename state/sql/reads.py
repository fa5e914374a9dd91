"""Reads rows of live files and delete files into records, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Select, bindparam, select

from state.records import DeleteFileRecord, DeletionVectorDescriptor, DvMapping, LiveFile
from state.sql.bulk import batched
from state.sql.models import DATA_FILES, DEAD_VECTORS, DELETE_FILES, DV_MAPPINGS, METADATA_FILES

decode_partition = msgspec.json.Decoder(tuple[str | None, ...]).decode


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
        partition=decode_partition(row.partition),
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
