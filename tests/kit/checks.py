"""What holds after every fault once a sync succeeds: told from PyIceberg's readers, DuckDB and the files on disk."""

from __future__ import annotations

import glob
import itertools
import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntry
from pyiceberg.table import Table

from daemon.mirror.substitution import find_mirror_name
from state import FileStatus, OrphanReason
from tests.kit.handmade import Bench, HandmadeTable, z85
from tests.kit.images import FILE_PATH_ID

Row = tuple[int, str, str]
# The path of a data or delete file -> that of its manifest.
Live = dict[str, str]
# The path of a manifest -> its live entries.
Entries = dict[str, list[ManifestEntry]]


def check(bench: Bench, table: HandmadeTable, versions: Sequence[int], *others: Bench) -> None:
    """Iceberg shows the table's rows; each of `versions` has one snapshot; each file is known; the memory is right.

    `others` are followers of the same target with a state database of their own.
    """
    iceberg = bench.iceberg()
    assert rows_of(iceberg.scan().to_arrow()) == table.live_rows()
    assert shown_versions(iceberg) == list(versions), "each version that changes rows has one snapshot"
    entries = read_entries(iceberg)
    check_files([bench, *others], iceberg, entries)
    check_memory(bench, iceberg, entries, table)


def read_entries(iceberg: Table) -> Entries:
    """The entries of every manifest of every snapshot, each manifest read once."""
    entries: Entries = {}
    for snapshot in iceberg.snapshots():
        for manifest in snapshot.manifests(iceberg.io):
            if manifest.manifest_path not in entries:
                entries[manifest.manifest_path] = manifest.fetch_manifest_entry(iceberg.io, discard_deleted=True)
    return entries


def rows_of(found: pa.Table) -> list[Row]:
    return sorted(zip(*(found[name].to_pylist() for name in ("id", "part", "value")), strict=True))


def shown_versions(iceberg: Table) -> list[int]:
    """The Delta version of each snapshot of dvsync's, the oldest first; all are ancestors of the current one."""
    snapshots = sorted(iceberg.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
    for parent, child in itertools.pairwise(snapshots):
        assert child.parent_snapshot_id == parent.snapshot_id
    assert iceberg.current_snapshot() == snapshots[-1]
    summaries = [each.summary for each in snapshots if each.summary and each.summary["engine-name"] is None]
    return [int(str(summary["dvsync.delta.version"])) for summary in summaries]


def check_files(benches: Sequence[Bench], iceberg: Table, entries: Entries) -> None:
    """Every file on disk is referenced or an orphan in a state store; every referenced file is there."""
    referenced = metadata_files(iceberg) | {snapshot.manifest_list for snapshot in iceberg.snapshots()} | set(entries)
    referenced |= {entry.data_file.file_path for members in entries.values() for entry in members}
    gone = [path for path in referenced if not Path(path.removeprefix("file://")).is_file()]
    assert not gone, "referenced, but not there"
    orphans = [
        orphan for bench in benches for orphan in bench.store.list_written(table_id(bench), (FileStatus.ORPHANED,))
    ]
    folder = Path(iceberg.location().removeprefix("file://"))
    on_disk = {f"file://{path}" for path in folder.rglob("*") if path.is_file()}
    assert sorted(on_disk - referenced - {file.path for file in orphans}) == [], "on disk, but unknown"
    failed = {file.path for file in orphans if file.reason is OrphanReason.COMMIT_FAILED}
    assert sorted(failed & referenced) == [], "referenced, but taken for the rest of a failed commit"


def check_vectors(bench: Bench, table: HandmadeTable) -> None:
    """Every file of deletion vectors that no commit names is known: of none is it forgotten who wrote it."""
    log = "".join(path.read_text() for path in (table.folder / "_delta_log").glob("*.json"))
    files = table.folder.glob("deletion_vector_*.bin")
    left = {
        f"file://{path}" for path in files if z85(UUID(path.stem.removeprefix("deletion_vector_")).bytes) not in log
    }
    assert left <= {file.path for file in bench.store.list_vectors(table_id(bench))}


def metadata_files(iceberg: Table) -> set[str]:
    return {iceberg.metadata_location, *(entry.metadata_file for entry in iceberg.metadata.metadata_log)}


def table_id(bench: Bench) -> int:
    return bench.store.open_table(bench.name, bench.source, bench.target).id


def live_entries(iceberg: Table, entries: Entries) -> tuple[Live, Live]:
    """Data files and delete files of the current snapshot with the manifest that holds each."""
    found: dict[bool, Live] = {True: {}, False: {}}
    names: list[tuple[str, bytes | None]] = []
    snapshot = iceberg.current_snapshot()
    assert snapshot is not None
    for manifest in snapshot.manifests(iceberg.io):
        for entry in entries[manifest.manifest_path]:
            live, path = found[entry.data_file.content is DataFileContent.DATA], entry.data_file.file_path
            # A Puffin file has an entry for each of its vectors, all of them in one manifest.
            known = live.setdefault(path, manifest.manifest_path)
            assert known == manifest.manifest_path, "a file's entries are in one manifest"
            of_vector = entry.data_file.file_format is FileFormat.PUFFIN
            names.append((path, (entry.data_file.lower_bounds or {}).get(FILE_PATH_ID) if of_vector else None))
    assert len(set(names)) == len(names), "one live entry a file or a vector"
    return found[True], found[False]


def check_memory(bench: Bench, iceberg: Table, entries: Entries, table: HandmadeTable) -> None:
    """The state store's cursor, files, deletion vectors and manifests are Iceberg's and Delta's; no work is open."""
    record = bench.store.open_table(bench.name, bench.source, bench.target)
    snapshot = iceberg.current_snapshot()
    assert snapshot is not None
    assert (record.synced_version, record.snapshot_id) == (table.version, snapshot.snapshot_id)
    assert record.metadata_location == iceberg.metadata_location
    assert bench.store.find_open_intents(record.id) == []
    assert _pending(bench) == 0, "files that belong to no open intent are live or orphaned"
    data_files, delete_files = live_entries(iceberg, entries)
    files = {file.path: file for file in bench.store.read_live_files(record.id)}
    assert {path: file.manifest_path for path, file in files.items()} == data_files
    mirrors = {mirror.data_file: mirror for mirror in bench.store.list_live_mirrors(record.id)}
    assert {mirror.path for mirror in mirrors.values()} == {path for path in files if find_mirror_name(path)}
    shown = {path: f"{table.location}/{path}" for path in table.live}
    shown = {path: mirrors[place].path if place in mirrors else place for path, place in shown.items()}
    assert {path: _dv_id(file.deletion_vector) for path, file in files.items()} == {
        shown[path]: _descriptor_id(add.get("deletionVector")) for path, add in table.live.items()
    }
    serving = bench.store.find_delete_files(record.id, list(files))
    assert {file.path: file.manifest_path for file in serving} == delete_files
    positions: Counter[str] = Counter()
    for delete_file in serving:
        positions.update({mapping.data_file: mapping.positions for mapping in delete_file.mappings})
    assert positions == Counter({shown[path]: len(gone) for path, gone in table.deleted.items() if gone})


def _dv_id(record: Any) -> str | None:
    return record.unique_id if record else None


def _descriptor_id(descriptor: dict[str, Any] | None) -> str | None:
    if descriptor is None:
        return None
    place = descriptor["storageType"] + descriptor["pathOrInlineDv"]
    return f"{place}@{descriptor['offset']}" if "offset" in descriptor else place


def _pending(bench: Bench) -> int:
    with closing(sqlite3.connect(bench.state_file)) as database:
        counts = [
            database.execute(f"select count(*) from {name} where lower(status) = 'pending'").fetchone()[0]
            for name in ("delete_files", "metadata_files", "mirrors")
        ]
    return sum(counts)


@cache
def _duckdb() -> Any:
    """A connection with the extension files that the packages ship; installing one would need the network."""
    import duckdb_extension_avro  # noqa: PLC0415
    import duckdb_extension_iceberg  # noqa: PLC0415

    connection = duckdb.connect(config={"allow_unsigned_extensions": "true", "threads": "1"})
    for package in (duckdb_extension_avro, duckdb_extension_iceberg):
        (extension,) = glob.glob(f"{os.path.dirname(package.__file__)}/**/*.duckdb_extension", recursive=True)
        connection.execute(f"load '{extension}'")
    return connection


def duckdb_rows(iceberg: Table) -> list[Row]:
    query = f"select id, part, value from iceberg_scan('{iceberg.metadata_location}')"
    return sorted(_duckdb().execute(query).fetchall())
