"""What an Iceberg table shows at its current snapshot, read by DuckDB: our manifests are written by PyIceberg's code,
and no library shall check itself.

Paths are as in the manifests. Positions are sets, so tables must be small.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap64

from tests.kit.readers import duckdb_connection

EXISTING, ADDED, DELETED = 0, 1, 2
DATA, POSITION_DELETES = 0, 1
# Iceberg spec, "Reserved Field IDs".
FILE_PATH_ID = 2147483546


@dataclass(frozen=True)
class Entry:
    """One manifest entry. `sequence_number` is inherited where it is null; `served` of a delete file from its rows."""

    manifest: str
    status: int
    snapshot_id: int
    sequence_number: int
    spec_id: int
    content: int
    path: str
    records: int
    size: int
    partition: tuple[Any, ...]
    referenced: str | None
    lower_path: bytes | None
    upper_path: bytes | None


@dataclass(frozen=True)
class Image:
    """One snapshot. `positions` are those that apply: live data file -> deleted positions by live delete files."""

    snapshot_id: int
    operation: str
    summary: Mapping[str, str]
    manifests: tuple[str, ...]
    entries: tuple[Entry, ...]
    data_files: Mapping[str, Entry]
    delete_files: Mapping[str, Entry]
    positions: Mapping[str, frozenset[int]]
    written: Mapping[str, Sequence[tuple[str, int]]] = field(repr=False)

    def changed(self, content: int, status: int) -> dict[str, Entry]:
        """The entries that this very snapshot added or deleted."""
        return {
            entry.path: entry
            for entry in self.entries
            if (entry.content, entry.status, entry.snapshot_id) == (content, status, self.snapshot_id)
        }

    def positions_in(self, delete_files: Iterable[str]) -> Counter[tuple[str, int]]:
        return Counter(row for path in delete_files for row in self.written[path])


NOTHING = Image(0, "", {}, (), (), {}, {}, {}, {})


def image_of(table: Table) -> Image:
    """The current snapshot, every file of it read. AssertionError where manifests and files contradict each other."""
    snapshot = table.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    manifests = _records(snapshot.manifest_list)
    entries = tuple(entry for manifest in manifests for entry in _entries(manifest))
    live = [entry for entry in entries if entry.status != DELETED]
    data_files = {entry.path: entry for entry in live if entry.content == DATA}
    delete_files = {entry.path: entry for entry in live if entry.content == POSITION_DELETES}
    assert len(data_files) + len(delete_files) == len(live), "a file is live in two entries"
    written = {path: _rows_of(path) for path in delete_files}
    for path, entry in delete_files.items():
        _check_delete_file(entry, written[path])
    return Image(
        snapshot_id=snapshot.snapshot_id,
        operation=snapshot.summary.operation.value,
        summary=snapshot.summary.additional_properties,
        manifests=tuple(manifest["manifest_path"] for manifest in manifests),
        entries=entries,
        data_files=data_files,
        delete_files=delete_files,
        positions=_applied(data_files, delete_files, written),
        written=written,
    )


def _records(path: str) -> list[dict[str, Any]]:
    cursor = duckdb_connection().execute("SELECT * FROM read_avro(?)", [_local(path)])
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _local(path: str) -> str:
    return path.removeprefix("file://")


def _entries(manifest: Mapping[str, Any]) -> list[Entry]:
    path = manifest["manifest_path"]
    assert Path(_local(path)).stat().st_size == manifest["manifest_length"], f"length of {path}"
    entries = []
    for record in _records(path):
        file = record["data_file"]
        assert (file["content"] != DATA) == (manifest["content"] != DATA), f"{path} mixes data and deletes"
        inherits = record["sequence_number"] is None
        assert not inherits or record["status"] == ADDED, f"only an added entry inherits its sequence number: {path}"
        entries.append(
            Entry(
                manifest=path,
                status=record["status"],
                snapshot_id=record["snapshot_id"],
                sequence_number=manifest["sequence_number"] if inherits else record["sequence_number"],
                spec_id=manifest["partition_spec_id"],
                content=file["content"],
                path=file["file_path"],
                records=file["record_count"],
                size=file["file_size_in_bytes"],
                # NaN does not equal itself.
                partition=tuple(
                    "NaN" if value != value else value  # noqa: PLR0124
                    for value in (file.get("partition") or {}).values()
                ),
                referenced=file["referenced_data_file"],
                lower_path=(file["lower_bounds"] or {}).get(FILE_PATH_ID),
                upper_path=(file["upper_bounds"] or {}).get(FILE_PATH_ID),
            )
        )
    for status, kind in ((ADDED, "added"), (EXISTING, "existing"), (DELETED, "deleted")):
        of_kind = [entry for entry in entries if entry.status == status]
        assert manifest[f"{kind}_files_count"] == len(of_kind), f"{kind} files of {path}"
        assert manifest[f"{kind}_rows_count"] == sum(entry.records for entry in of_kind), f"{kind} rows of {path}"
    sequences = [entry.sequence_number for entry in entries if entry.status != DELETED]
    assert not sequences or manifest["min_sequence_number"] <= min(sequences), f"minimal sequence number of {path}"
    return entries


def _rows_of(delete_file: str) -> list[tuple[str, int]]:
    cursor = duckdb_connection().execute("SELECT file_path, pos FROM read_parquet(?)", [_local(delete_file)])
    return cursor.fetchall()


def _check_delete_file(entry: Entry, rows: Sequence[tuple[str, int]]) -> None:
    """Iceberg spec, "Position Delete Files": sorted, counted, and its one data file named when there is only one."""
    assert Path(_local(entry.path)).stat().st_size == entry.size, f"size of {entry.path}"
    assert len(rows) == entry.records > 0, f"positions of {entry.path}"
    assert [(path.encode(), pos) for path, pos in rows] == sorted({(path.encode(), pos) for path, pos in rows}), (
        f"{entry.path} is not in order or has doubles"
    )
    paths = {path for path, _ in rows}
    single = paths.pop() if len(paths) == 1 else None
    assert entry.referenced == single, f"referenced data file of {entry.path}"
    assert entry.lower_path == entry.upper_path == (single.encode() if single else None), f"bounds of {entry.path}"


def _applied(
    data_files: Mapping[str, Entry], delete_files: Mapping[str, Entry], written: Mapping[str, Sequence[tuple[str, int]]]
) -> dict[str, frozenset[int]]:
    """Iceberg spec, "Scan Planning". AssertionError for a position that serves no live file, and for doubled ones.

    PyIceberg, Polars and DuckDB apply all that a delete file holds: stale positions would delete from returning files.
    """
    applied: dict[str, list[int]] = defaultdict(list)
    for path, rows in written.items():
        delete_file = delete_files[path]
        for data_path, position in rows:
            data_file = data_files.get(data_path)
            assert data_file is not None, f"{path} dangles: {data_path} is not live"
            assert data_file.sequence_number <= delete_file.sequence_number, f"{path} is older than {data_path}"
            assert (data_file.spec_id, data_file.partition) == (delete_file.spec_id, delete_file.partition), (
                f"{path} is of another partition than {data_path}"
            )
            applied[data_path].append(position)
    for data_path, positions in applied.items():
        doubled = [position for position, count in Counter(positions).items() if count > 1]
        assert not doubled, f"positions {doubled} of {data_path} are deleted twice"
    return {path: frozenset(applied.get(path, ())) for path in data_files}


def vectors_of(table: Table) -> dict[str, frozenset[int]]:
    """What the current snapshot's deletion vectors delete, by data file, as a reader of format version 3 finds them.

    AssertionError where they contradict the specification, or where PyIceberg would apply more than they say.
    """
    snapshot = table.current_snapshot()
    assert snapshot is not None and table.metadata.format_version == 3
    found: dict[str, frozenset[int]] = {}
    puffins: dict[str, bytes] = {}
    places: dict[str, tuple[int, object, int]] = {}
    for manifest in _records(snapshot.manifest_list):
        is_data = manifest["content"] == DATA
        assert (manifest["first_row_id"] is not None) == is_data, "only data manifests have row ids"
        for record in _records(manifest["manifest_path"]):
            file = record["data_file"]
            if record["status"] == DELETED:
                continue
            place = (manifest["partition_spec_id"], repr(file.get("partition")), manifest["content"])
            if is_data:
                places[file["file_path"]] = place
                continue
            path, data_file = file["file_path"], file["referenced_data_file"]
            assert file["file_format"] == "PUFFIN" and data_file not in found, f"{data_file} has one vector"
            places[f"vector of {data_file}"] = (*place[:2], DATA)
            data = puffins.setdefault(path, Path(_local(path)).read_bytes())
            assert len(data) == file["file_size_in_bytes"], f"size of {path}"
            blob = data[file["content_offset"] :][: file["content_size_in_bytes"]]
            assert struct.unpack(">i", blob[:4])[0] == len(blob) - 8 and blob[4:8] == b"\xd1\xd3\x39\x64"
            assert struct.unpack(">I", blob[-4:])[0] == zlib.crc32(blob[4:-4])
            found[data_file] = frozenset(BitMap64.deserialize(blob[8:-4]))
            assert len(found[data_file]) == file["record_count"] > 0
    for name, place in places.items():
        data_file = name.removeprefix("vector of ")
        assert places.get(data_file) == place, f"the vector of {data_file} dangles, or is of another partition"
    for path, data in puffins.items():
        for vector in deletion_vectors_from_puffin_file(PuffinFile(data)):
            applied = frozenset(vector.to_vector().to_pylist())
            known = found.get(vector.referenced_data_file, frozenset())
            is_live = vector.referenced_data_file in places
            assert not is_live or applied <= known, (
                f"a dead blob in {path} deletes more from {vector.referenced_data_file}"
            )
    return found
