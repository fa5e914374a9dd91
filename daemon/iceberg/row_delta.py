"""One snapshot that adds and removes data files and delete files: what PyIceberg 0.12 cannot do yet.

`prepare_snapshot` writes manifests and touches only those in which something changes; `Target.commit` makes them the
table's state. Iceberg spec, "Snapshots", "Manifests".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from uuid import uuid4

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import LocationProvider
from pyiceberg.table.snapshots import Operation, Snapshot

from daemon.errors import StateMismatch, TargetUnreadable
from daemon.iceberg.manifests import (
    MANIFEST_ENTRIES_MAX,
    read_entries,
    read_manifest_list,
    schema_with_sources,
    write_manifest,
)
from daemon.iceberg.merging import live_files, plan_merges
from daemon.iceberg.pyiceberg_ext.records import entry_record

# The place of `partition` among the fields of a data file record.
PARTITION_FIELD = 3
TOTALS = (
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-records", "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
)


@dataclass(frozen=True)
class TableView:
    """What must be known of an Iceberg table to write a snapshot's files for it; of one not created yet, too.

    `schemas` are all that it ever had, the one to be in force first.
    """

    io: FileIO
    locations: LocationProvider
    schemas: Sequence[Schema]
    specs: Mapping[int, PartitionSpec]
    format_version: int
    parent: Snapshot | None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RowDelta:
    """The file changes of one snapshot. Files to remove are grouped by the path of the manifest that holds them.

    A file both removed and added gets a new data sequence number: older position deletes no longer reach it.
    `replacements` are removed delete files with those that take over what they hold, and their partitions: one of
    either may be there several times. `replaces_all` leaves nothing of what was there, whoever wrote it.
    `written_manifests` are data manifests that Spark tasks wrote for this very snapshot, `written_size_bytes` the sum
    of their files' sizes. `same_rows` says that rows were only moved between files.
    """

    snapshot_id: int
    added_data_files: Sequence[DataFile] = ()
    removed_data_files: Mapping[str, Set[str]] = field(default_factory=dict)
    added_delete_files: Sequence[DataFile] = ()
    removed_delete_files: Mapping[str, Set[str]] = field(default_factory=dict)
    replacements: Sequence[tuple[str, DataFile]] = ()
    replaces_all: bool = False
    written_manifests: Sequence[ManifestFile] = ()
    written_size_bytes: int = 0
    same_rows: bool = False

    @property
    def operation(self) -> Operation:
        """Iceberg spec, "Snapshots", `operation`."""
        adds = bool(self.added_data_files or self.written_manifests)
        deletes = bool(self.removed_data_files or self.added_delete_files or self.replacements or self.replaces_all)
        if not deletes:
            return Operation.APPEND
        if self.same_rows and (adds or self.replacements):
            return Operation.REPLACE
        return Operation.OVERWRITE if adds or self.replaces_all else Operation.DELETE


@dataclass(frozen=True)
class PreparedSnapshot:
    """Manifests are written; nothing refers to them yet.

    `placements` leads from each added file to its manifest, `moved_manifests` from each rewritten manifest to the one
    that took its place.
    """

    snapshot_id: int
    operation: Operation
    manifests: Sequence[ManifestFile]
    summary: Mapping[str, str]
    placements: Mapping[str, str]
    moved_manifests: Mapping[str, str]
    manifest_list_path: str

    @property
    def written_files(self) -> list[str]:
        """The files that this process writes for the snapshot, but for its delete files."""
        return [*{*self.placements.values(), *self.moved_manifests.values()}, self.manifest_list_path]


@dataclass
class _Draft:
    """A manifest to be written. `sources` are the manifests whose place it takes."""

    path: str
    content: ManifestContent
    spec_id: int
    entries: list[ManifestEntry]
    sources: list[str] = field(default_factory=list)


# Manifests, each with entries of theirs.
_Changed = Sequence[tuple[ManifestFile, Sequence[ManifestEntry]]]


def prepare_snapshot(table: TableView, delta: RowDelta, announce: Callable[[Sequence[str]], None]) -> PreparedSnapshot:
    """Write the manifests of `delta`; `announce` is told their paths, and the manifest list's, before they are written.

    Raises `StateMismatch` when a file to remove is not where the state store said.
    """
    names = _names(table.locations, delta.snapshot_id)
    parent = _read_parent(table, delta)
    changed = _without_removed(table, parent, delta)
    replacements = _take_over(delta.replacements, [entry for _, entries in changed for entry in entries])
    touched = {manifest.manifest_path for manifest, _ in changed}
    untouched = [each for each in parent if each.manifest_path not in touched and live_files(each)]
    carried = [] if delta.replaces_all else untouched
    merged = [
        (manifest, _entries_without(table, manifest, frozenset(), delta.snapshot_id))
        for group in plan_merges(carried, table.properties)
        for manifest in group
    ]
    kept = [(manifest, entries) for manifest, entries in changed if _may_stay(table, manifest, entries)]
    rewritten = list(_pack(names, [*kept, *merged]))
    moved = {source: draft.path for draft in rewritten for source in draft.sources}
    added = [
        *_draft_added(names, ManifestContent.DATA, delta.added_data_files, delta.snapshot_id),
        *_draft_added(names, ManifestContent.DELETES, [*delta.added_delete_files, *replacements], delta.snapshot_id),
    ]
    drafts = [*added, *rewritten]
    manifest_list_path = table.locations.new_metadata_location(f"snap-{delta.snapshot_id}-{uuid4()}.avro")
    announce([*(draft.path for draft in drafts), manifest_list_path])
    written = [
        write_manifest(
            table.io,
            draft.path,
            draft.content,
            draft.entries,
            spec=table.specs[draft.spec_id],
            schema=schema_with_sources(table.specs[draft.spec_id], table.schemas),
            snapshot_id=delta.snapshot_id,
            format_version=table.format_version,
        )
        for draft in drafts
    ]
    counts = _counts(added, changed, delta)
    if delta.replaces_all:
        for manifest in parent:
            _count_replaced(counts, manifest)
    return PreparedSnapshot(
        snapshot_id=delta.snapshot_id,
        operation=delta.operation,
        manifests=[
            *delta.written_manifests,
            *written,
            *(manifest for manifest in carried if manifest.manifest_path not in moved),
        ],
        summary=_summary(counts, None if delta.replaces_all else table.parent),
        placements={entry.data_file.file_path: draft.path for draft in added for entry in draft.entries},
        moved_manifests=moved,
        manifest_list_path=manifest_list_path,
    )


def _read_parent(table: TableView, delta: RowDelta) -> list[ManifestFile]:
    """The manifests of the snapshot before, if need be; what replaces all of them can do without."""
    if table.parent is None:
        return []
    try:
        return read_manifest_list(table.io, table.parent.manifest_list)
    except (FileNotFoundError, TargetUnreadable):
        if not delta.replaces_all:
            raise
        return []


def _without_removed(table: TableView, parent: Sequence[ManifestFile], delta: RowDelta) -> _Changed:
    """The manifests that lose entries to `delta`, with what is to be told of each of theirs."""
    removed = {ManifestContent.DATA: delta.removed_data_files, ManifestContent.DELETES: delta.removed_delete_files}
    changed = [
        (manifest, _entries_without(table, manifest, gone, delta.snapshot_id))
        for manifest in parent
        if (gone := removed[manifest.content].get(manifest.manifest_path))
    ]
    found = {manifest.manifest_path for manifest, _ in changed}
    for manifest_path, files in (item for by_manifest in removed.values() for item in by_manifest.items()):
        if manifest_path not in found:
            raise _misplaced(sorted(files)[0], manifest_path)
    return changed


def _names(locations: LocationProvider, snapshot_id: int) -> Iterator[str]:
    commit = uuid4()
    number = 0
    while True:
        yield locations.new_metadata_location(f"{commit}-{snapshot_id}-m{number}.avro")
        number += 1


def _draft_added(
    names: Iterator[str], content: ManifestContent, files: Sequence[DataFile], snapshot_id: int
) -> Iterator[_Draft]:
    by_spec: dict[int, list[DataFile]] = defaultdict(list)
    for data_file in files:
        by_spec[data_file.spec_id].append(data_file)
    for spec_id, members in by_spec.items():
        for start in range(0, len(members), MANIFEST_ENTRIES_MAX):
            chunk = members[start : start + MANIFEST_ENTRIES_MAX]
            entries = [entry_record(ManifestEntryStatus.ADDED, file, snapshot_id=snapshot_id) for file in chunk]
            yield _Draft(next(names), content, spec_id, entries)


def _take_over(replacements: Sequence[tuple[str, DataFile]], entries: Iterable[ManifestEntry]) -> list[DataFile]:
    """Each replacement with the partition of a delete file in whose place it comes."""
    removed = {
        entry.data_file.file_path: entry.data_file for entry in entries if entry.status is ManifestEntryStatus.DELETED
    }
    for path, new in replacements:
        new[PARTITION_FIELD] = removed[path].partition
        new.spec_id = removed[path].spec_id
    return [new for _, new in replacements]


def _entries_without(table: TableView, manifest: ManifestFile, gone: Set[str], snapshot_id: int) -> list[ManifestEntry]:
    """The entries of a manifest again: those of `gone` marked deleted by this snapshot, the others existing."""
    spec = table.specs[manifest.partition_spec_id]
    schema = schema_with_sources(spec, table.schemas)
    entries = []
    for entry in read_entries(table.io, manifest, spec=spec, schema=schema):
        leaves = entry.data_file.file_path in gone
        entries.append(
            entry_record(
                ManifestEntryStatus.DELETED if leaves else ManifestEntryStatus.EXISTING,
                entry.data_file,
                snapshot_id=snapshot_id if leaves else entry.snapshot_id,
                sequence_number=entry.sequence_number,
                file_sequence_number=entry.file_sequence_number,
            )
        )
    found = {entry.data_file.file_path for entry in entries if entry.status is ManifestEntryStatus.DELETED}
    if found != set(gone):
        raise _misplaced(sorted(set(gone) - found)[0], manifest.manifest_path)
    return entries


def _may_stay(table: TableView, manifest: ManifestFile, entries: Iterable[ManifestEntry]) -> bool:
    """Whether the manifest has anything to tell: not when all of it left along with a partition column.

    DuckDB 1.5.5 dies of a manifest whose partition field has no column in the current schema.
    """
    sources = {field.source_id for field in table.specs[manifest.partition_spec_id].fields}
    return sources <= table.schemas[0].field_ids or any(
        entry.status is not ManifestEntryStatus.DELETED for entry in entries
    )


def _pack(names: Iterator[str], manifests: _Changed) -> Iterator[_Draft]:
    """As few manifests as can hold these entries, of one content and spec each; none is taken apart."""
    filling: dict[tuple[ManifestContent, int], _Draft] = {}
    for manifest, entries in manifests:
        kind = (manifest.content, manifest.partition_spec_id)
        draft = filling.get(kind)
        if draft is None or len(draft.entries) + len(entries) > MANIFEST_ENTRIES_MAX:
            if draft:
                yield draft
            draft = filling[kind] = _Draft(next(names), *kind, [])
        draft.entries += entries
        draft.sources.append(manifest.manifest_path)
    yield from filling.values()


def _misplaced(file_path: str, manifest_path: str) -> StateMismatch:
    return StateMismatch(
        f"the state store places {file_path} in a manifest that does not hold it",
        path=manifest_path,
        hint="dvsync rebuilds its state from Iceberg's manifests and the Delta log.",
    )


def _count_replaced(counts: dict[str, int], manifest: ManifestFile) -> None:
    """As far as a manifest list tells what leaves with the whole manifest."""
    is_data = manifest.content is ManifestContent.DATA
    counts["deleted-data-files" if is_data else "removed-delete-files"] += live_files(manifest)
    if is_data:
        counts["deleted-records"] += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)


def _counts(added: Sequence[_Draft], changed: _Changed, delta: RowDelta) -> dict[str, int]:
    """Iceberg spec, appendix "Optional Snapshot Summary Fields"."""
    counts: dict[str, int] = defaultdict(int)
    told = [(draft.content, entry) for draft in added for entry in draft.entries]
    told += [
        (manifest.content, entry)
        for manifest, entries in changed
        for entry in entries
        if entry.status is ManifestEntryStatus.DELETED
    ]
    for content, entry in told:
        _count(counts, content, entry)
    for manifest in delta.written_manifests:
        counts["added-data-files"] += manifest.added_files_count or 0
        counts["added-records"] += manifest.added_rows_count or 0
    counts["added-files-size"] += delta.written_size_bytes
    if not delta.written_manifests:
        # What Spark's tasks wrote is known by its sums only.
        partitions = {(entry.data_file.spec_id, repr(entry.data_file.partition)) for _, entry in told}
        counts["changed-partition-count"] = len(partitions)
    return counts


def _count(counts: dict[str, int], content: ManifestContent, entry: ManifestEntry) -> None:
    added = entry.status is ManifestEntryStatus.ADDED
    counts["added-files-size" if added else "removed-files-size"] += entry.data_file.file_size_in_bytes
    if content is ManifestContent.DATA:
        counts["added-data-files" if added else "deleted-data-files"] += 1
        counts["added-records" if added else "deleted-records"] += entry.data_file.record_count
    else:
        verb = "added" if added else "removed"
        counts[f"{verb}-delete-files"] += 1
        counts[f"{verb}-position-delete-files"] += 1
        counts[f"{verb}-position-deletes"] += entry.data_file.record_count


def _summary(counts: Mapping[str, int], parent: Snapshot | None) -> dict[str, str]:
    summary = {name: str(count) for name, count in counts.items() if count}
    before = parent.summary if parent and parent.summary else None
    for total, added, removed in TOTALS:
        kept = int(str(before[total] or 0)) - counts.get(removed, 0) if before else 0
        summary[total] = str(kept + counts.get(added, 0))
    return summary
