"""Finds the files that a table's metadata references, which must stay, and those that later snapshots removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from daemon.errors import TargetUnreadable
from daemon.iceberg.manifests import EntryKey, entry_key, read_entries, read_manifest_list, schema_with_sources

# If two snapshots are not parent and child, about so many of the manifests in which they differ are opened.
MANIFESTS_OPENED = 20


def metadata_files(table: Table) -> set[str]:
    """Return the current metadata file and the older ones in its metadata log."""
    return {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}


def referenced_files(table: Table, *, delete_files: bool, is_wanted: Callable[[str], object] | None = None) -> set[str]:
    """Return the metadata files, statistics files, manifest lists and manifests that any snapshot or the log refers to;
    with `delete_files` also the delete files, for which each delete manifest is read; with `is_wanted` also the data
    files with such paths, for which each data manifest is read.
    """
    metadata = table.metadata
    found = metadata_files(table)
    found |= {statistics.statistics_path for statistics in (*metadata.statistics, *metadata.partition_statistics)}
    manifests: dict[str, ManifestFile] = {}
    for snapshot in metadata.snapshots:
        found.add(snapshot.manifest_list)
        listed = read_manifest_list(table.io, snapshot.manifest_list)
        manifests |= {manifest.manifest_path: manifest for manifest in listed}
    found |= manifests.keys()
    for manifest in manifests.values():
        if delete_files and manifest.content is ManifestContent.DELETES:
            found |= {entry.data_file.file_path for entry in entries_of(table, manifest)}
        if is_wanted and manifest.content is ManifestContent.DATA:
            found |= {path for each in entries_of(table, manifest) if is_wanted(path := each.data_file.file_path)}
    return found


def data_files_of_all(table: Table) -> Iterator[DataFile]:
    """Yield the data files of all snapshots, some of them more than once. What is damaged or gone is left out."""
    left_out = FileNotFoundError, TargetUnreadable
    manifests: dict[str, ManifestFile] = {}
    for snapshot in table.metadata.snapshots:
        with suppress(*left_out):
            manifests |= {each.manifest_path: each for each in _manifests(table, snapshot, ManifestContent.DATA)}
    for manifest in manifests.values():
        with suppress(*left_out):
            yield from (entry.data_file for entry in entries_of(table, manifest))


def live_delete_files(table: Table) -> dict[str, tuple[str, int]]:
    """Return the delete files of the current snapshot, each with a name for its partition and its size in bytes."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return {}
    found = (entry.data_file for entry, _ in live_entries(table, snapshot, ManifestContent.DELETES))
    return {file.file_path: (f"{file.spec_id} {file.partition!r}", file.file_size_in_bytes) for file in found}


def data_files_let_go(table: Table, snapshot: Snapshot, following: Snapshot) -> list[tuple[str, int]]:
    """Return data files of `snapshot` that `following` removed, each with the sequence number at which it was added. If
    snapshots between the two were expired, some of them may be missing, and others still be live.
    """
    manifests = _manifests(table, following, ManifestContent.DATA)
    if following.parent_snapshot_id == snapshot.snapshot_id and following.summary:
        new = [each for each in manifests if each.added_snapshot_id == following.snapshot_id]
        with_deleted = [each for each in new if each.deleted_files_count]
        # A snapshot that replaced the whole table has no entries of deleted files; compare manifests for it below.
        if with_deleted or not following.summary["deleted-data-files"]:
            return _paths(table, with_deleted, live=False)
    shared = {manifest.manifest_path for manifest in manifests}
    before = _manifests(table, snapshot, ManifestContent.DATA)
    differing = [each for each in before if each.manifest_path not in shared]
    return _paths(table, differing[:: max(1, len(differing) // MANIFESTS_OPENED)], live=True)


def _paths(table: Table, manifests: Iterable[ManifestFile], *, live: bool) -> list[tuple[str, int]]:
    return [
        (entry.data_file.file_path, entry.file_sequence_number or 0)
        for manifest in manifests
        for entry in entries_of(table, manifest, live=live)
    ]


def _manifests(table: Table, snapshot: Snapshot, content: ManifestContent) -> list[ManifestFile]:
    return [each for each in read_manifest_list(table.io, snapshot.manifest_list) if each.content is content]


def live_entries(table: Table, snapshot: Snapshot, content: ManifestContent) -> Iterator[tuple[ManifestEntry, str]]:
    """Yield the live entries of a snapshot, each with the path of its manifest."""
    for manifest in _manifests(table, snapshot, content):
        for entry in entries_of(table, manifest):
            yield entry, manifest.manifest_path


def entries_only_of(
    table: Table, snapshot: Snapshot, other: Snapshot, content: ManifestContent
) -> dict[EntryKey, ManifestEntry]:
    """Return the live entries of those manifests of a snapshot that `other` has not, by what they are known by."""
    shared = {manifest.manifest_path for manifest in _manifests(table, other, content)}
    own = (each for each in _manifests(table, snapshot, content) if each.manifest_path not in shared)
    return {entry_key(entry.data_file): entry for manifest in own for entry in entries_of(table, manifest)}


def entries_of(table: Table, manifest: ManifestFile, *, live: bool = True) -> list[ManifestEntry]:
    """Return the live or the deleted entries of a manifest, with the spec and schema that it was written for."""
    spec = table.specs()[manifest.partition_spec_id]
    schema = schema_with_sources(spec, (table.schema(), *table.schemas().values()))
    return read_entries(table.io, manifest, spec=spec, schema=schema, live=live)
