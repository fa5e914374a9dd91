"""Deletes with merge-on-read in an Iceberg table as another engine makes them, without Spark: delete files and a
snapshot that is not dvsync's. The delete files are PyArrow's, or have the frame of a deletion vector made by hand.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.table import Table

from daemon.iceberg.manifests import entry_key, referenced_data_file
from daemon.iceberg.puffin import PuffinWriter
from daemon.iceberg.pyiceberg_ext.records import data_file_record
from daemon.iceberg.references import live_entries
from daemon.iceberg.row_delta import RowDelta, prepare_snapshot
from daemon.iceberg.target import Definition, view_of
from tests.kit.handmade import Bench, HandmadeTable, dv_payload, new_uuid
from tests.kit.images import vectors_of

WHO = {"engine-name": "handmade", "engine-version": "1"}


def delete_in_iceberg(bench: Bench, rows: Mapping[str, Iterable[int]], *, together: bool = False) -> int:
    """Delete these positions of data files, by their paths in Iceberg; returns the snapshot's id.

    In format version 2, each data file gets a delete file, or those of a partition share one (`together`).
    """
    table = bench.iceberg()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    data = {
        entry.data_file.file_path: entry.data_file for entry, _ in live_entries(table, snapshot, ManifestContent.DATA)
    }
    if table.metadata.format_version > 2:
        delta = _vectors(table, data, {path: {*positions} for path, positions in rows.items()})
    else:
        groups: dict[str, dict[str, list[int]]] = {}
        for path, positions in rows.items():
            key = repr(data[path].partition) if together else path
            groups.setdefault(key, {})[path] = sorted(positions)
        files = [_position_deletes(table, data, group) for group in groups.values()]
        delta = RowDelta(new_uuid().int >> 65, added_delete_files=files)
    return commit(bench, table, delta)


def remove_in_iceberg(bench: Bench, paths: Iterable[str]) -> int:
    """Remove these data files, as a DELETE of all of their rows does; their delete files leave, too, as in Spark."""
    table, gone = bench.iceberg(), {*paths}
    snapshot = table.current_snapshot()
    assert snapshot is not None
    removed: dict[ManifestContent, dict[str, set[Any]]] = {content: {} for content in ManifestContent}
    for content in ManifestContent:
        for entry, manifest in live_entries(table, snapshot, content):
            if gone & {entry.data_file.file_path, referenced_data_file(entry.data_file)}:
                removed[content].setdefault(manifest, set()).add(entry_key(entry.data_file))
    delta = RowDelta(
        new_uuid().int >> 65,
        removed_data_files=removed[ManifestContent.DATA],
        removed_delete_files=removed[ManifestContent.DELETES],
    )
    return commit(bench, table, delta)


def add_in_iceberg(bench: Bench, like: str) -> int:
    """Add a data file as INSERT does; nothing is at its path, and all else is as of the data file `like`."""
    table = bench.iceberg()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    entries = live_entries(table, snapshot, ManifestContent.DATA)
    old = next(entry.data_file for entry, _ in entries if entry.data_file.file_path == like)
    fields = {"file_path": f"{like}-more", "record_count": 1, "file_size_in_bytes": 1}
    new = data_file_record(
        list(old.partition), spec_id=old.spec_id, content=old.content, file_format=old.file_format, **fields
    )
    return commit(bench, table, RowDelta(new_uuid().int >> 65, added_data_files=[new]))


def commit(bench: Bench, table: Table, delta: RowDelta) -> int:
    """Commit a snapshot that says nothing of dvsync."""
    definition = Definition(table.schema(), table.spec(), format_version=table.metadata.format_version)
    prepared = prepare_snapshot(view_of(table, definition), delta, lambda _: None)
    bench.context.target.commit(table, definition, prepared, WHO, lambda _: None)
    return delta.snapshot_id


def _position_deletes(table: Table, data: Mapping[str, DataFile], rows: Mapping[str, list[int]]) -> DataFile:
    path = f"{table.location()}/data/00000-7-{uuid4()}-00001-deletes.parquet"
    deletes = [(each, position) for each, positions in sorted(rows.items()) for position in positions]
    columns = {"file_path": [each for each, _ in deletes], "pos": [position for _, position in deletes]}
    local = Path(path.removeprefix("file://"))
    local.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), local)
    first = next(iter(rows))
    return _record(
        data[first],
        file_path=path,
        record_count=len(deletes),
        file_size_in_bytes=local.stat().st_size,
        file_format=FileFormat.PARQUET,
        referenced_data_file=first if len(rows) == 1 else None,
    )


def _vectors(table: Table, data: Mapping[str, DataFile], rows: Mapping[str, set[int]]) -> RowDelta:
    """One vector for each data file, with the rows of the one before, whose entry leaves."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    removed: dict[str, set[Any]] = {}
    for entry, manifest in live_entries(table, snapshot, ManifestContent.DELETES):
        if referenced_data_file(entry.data_file) in rows:
            removed.setdefault(manifest, set()).add(entry_key(entry.data_file))
    before = vectors_of(table)
    with PuffinWriter(table.io, f"{table.location()}/data/00000-7-{uuid4()}-00001-deletes.puffin") as writer:
        for path, positions in sorted(rows.items()):
            every = positions | before.get(path, frozenset())
            payload = dv_payload(every)
            frame = struct.pack(">i", len(payload)) + payload + struct.pack(">I", zlib.crc32(payload))
            writer.write(path, memoryview(frame), len(every))
        puffin = writer.finish()
    entries = [
        _record(
            data[blob.data_file],
            file_path=puffin.path,
            record_count=blob.cardinality,
            content_offset=blob.offset,
            file_size_in_bytes=puffin.size_bytes,
            file_format=FileFormat.PUFFIN,
            referenced_data_file=blob.data_file,
            content_size_in_bytes=blob.size_bytes,
        )
        for blob in puffin.blobs
    ]
    return RowDelta(new_uuid().int >> 65, added_delete_files=entries, removed_delete_files=removed)


def _record(data_file: DataFile, **fields: Any) -> DataFile:
    return data_file_record(
        list(data_file.partition), spec_id=data_file.spec_id, content=DataFileContent.POSITION_DELETES, **fields
    )


def expect(table: HandmadeTable, rows: Mapping[str, Iterable[int]]) -> None:
    """Let the table's model have the next version, by which dvsync has deleted these rows, by names of files."""
    table.version += 1
    for path, positions in rows.items():
        table.deleted[path] = table.deleted[path] | {*positions}
        if len(table.deleted[path]) == len(table.rows[path]):
            del table.live[path], table.deleted[path]
    for line in table.commit_path(table.version).read_text().splitlines():
        if add := json.loads(line).get("add"):
            table.live[unquote(add["path"])] = add
