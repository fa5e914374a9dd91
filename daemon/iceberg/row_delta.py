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

from daemon.errors import StateMismatch
from daemon.iceberg.manifests import (
    MANIFEST_ENTRIES_MAX,
    read_entries,
    read_manifest_list,
    schema_with_sources,
    write_manifest,
)
from daemon.iceberg.pyiceberg_ext import entry_record

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


@dataclass(frozen=True)
class RowDelta:
    """The file changes of one snapshot. Files to remove are grouped by the path of the manifest that holds them.

    A file both removed and added gets a new data sequence number: older position deletes no longer reach it.
    `replacements` leads from removed delete files to those that take over what is left of them, and their partitions.
    `written_manifests` are data manifests that Spark tasks wrote for this very snapshot, `written_size_bytes` the sum
    of their files' sizes. `same_rows` says that rows were only moved between files.
    """

    snapshot_id: int
    added_data_files: Sequence[DataFile] = ()
    removed_data_files: Mapping[str, Set[str]] = field(default_factory=dict)
    added_delete_files: Sequence[DataFile] = ()
    removed_delete_files: Mapping[str, Set[str]] = field(default_factory=dict)
    replacements: Mapping[str, DataFile] = field(default_factory=dict)
    written_manifests: Sequence[ManifestFile] = ()
    written_size_bytes: int = 0
    same_rows: bool = False

    @property
    def operation(self) -> Operation:
        """Iceberg spec, "Snapshots", `operation`."""
        adds = bool(self.added_data_files or self.written_manifests)
        deletes = bool(self.removed_data_files or self.added_delete_files or self.replacements)
        if not deletes:
            return Operation.APPEND
        if adds:
            return Operation.REPLACE if self.same_rows else Operation.OVERWRITE
        return Operation.DELETE


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


@dataclass
class _Draft:
    """A manifest to be written."""

    path: str
    content: ManifestContent
    spec_id: int
    entries: list[ManifestEntry]


def prepare_snapshot(table: TableView, delta: RowDelta, announce: Callable[[Sequence[str]], None]) -> PreparedSnapshot:
    """Write the manifests of `delta`; `announce` is told their paths, and the manifest list's, before they are written.

    Raises `StateMismatch` when a file to remove is not where the state store said.
    """
    names = _names(table.locations, delta.snapshot_id)
    parent_manifests = read_manifest_list(table.io, table.parent.manifest_list) if table.parent else []
    counts: dict[str, int] = defaultdict(int)
    drafts: list[_Draft] = []
    moved: dict[str, str] = {}
    dropped: dict[str, _Draft] = {}
    carried: list[ManifestFile] = []
    removed = {ManifestContent.DATA: delta.removed_data_files, ManifestContent.DELETES: delta.removed_delete_files}
    for manifest in parent_manifests:
        gone = removed[manifest.content].get(manifest.manifest_path)
        if gone:
            draft = _draft_without(table, manifest, gone, next(names), delta.snapshot_id)
            if _may_stay(table, draft):
                moved[manifest.manifest_path] = draft.path
                drafts.append(draft)
            else:
                dropped[manifest.manifest_path] = draft
        elif manifest.has_added_files() or manifest.has_existing_files():
            carried.append(manifest)
    _check_all_found(removed.values(), {*moved, *dropped})
    replacements = list(_take_over(delta.replacements, [*drafts, *dropped.values()]))
    added = [
        *_draft_added(names, ManifestContent.DATA, delta.added_data_files, delta.snapshot_id),
        *_draft_added(names, ManifestContent.DELETES, [*delta.added_delete_files, *replacements], delta.snapshot_id),
    ]
    placements = {entry.data_file.file_path: draft.path for draft in added for entry in draft.entries}
    drafts = [*added, *drafts]
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
    changed = [*drafts, *dropped.values()]
    for draft in changed:
        _count(counts, draft)
    for manifest in delta.written_manifests:
        counts["added-data-files"] += manifest.added_files_count or 0
        counts["added-records"] += manifest.added_rows_count or 0
    counts["added-files-size"] += delta.written_size_bytes
    # What Spark's tasks wrote is known by its sums only.
    counts["changed-partition-count"] = (
        0
        if delta.written_manifests
        else len(
            {
                (draft.spec_id, repr(entry.data_file.partition))
                for draft in changed
                for entry in draft.entries
                if entry.status is not ManifestEntryStatus.EXISTING
            }
        )
    )
    return PreparedSnapshot(
        snapshot_id=delta.snapshot_id,
        operation=delta.operation,
        manifests=[*delta.written_manifests, *written, *carried],
        summary=_summary(counts, table.parent),
        placements=placements,
        moved_manifests=moved,
        manifest_list_path=manifest_list_path,
    )


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


def _take_over(replacements: Mapping[str, DataFile], drafts: Iterable[_Draft]) -> Iterator[DataFile]:
    """Each replacement with the partition of the delete file in whose place it comes."""
    for draft in drafts:
        for entry in draft.entries:
            old = entry.data_file
            if entry.status is ManifestEntryStatus.DELETED and old.file_path in replacements:
                new = replacements[old.file_path]
                new[PARTITION_FIELD] = old.partition
                new.spec_id = old.spec_id
                yield new


def _draft_without(table: TableView, manifest: ManifestFile, gone: Set[str], path: str, snapshot_id: int) -> _Draft:
    """The manifest again: entries of `gone` marked deleted by this snapshot, the others existing."""
    spec = table.specs[manifest.partition_spec_id]
    draft = _Draft(path, manifest.content, manifest.partition_spec_id, [])
    schema = schema_with_sources(spec, table.schemas)
    for entry in read_entries(table.io, manifest, spec=spec, schema=schema):
        leaves = entry.data_file.file_path in gone
        draft.entries.append(
            entry_record(
                ManifestEntryStatus.DELETED if leaves else ManifestEntryStatus.EXISTING,
                entry.data_file,
                snapshot_id=snapshot_id if leaves else entry.snapshot_id,
                sequence_number=entry.sequence_number,
                file_sequence_number=entry.file_sequence_number,
            )
        )
    found = {entry.data_file.file_path for entry in draft.entries if entry.status is ManifestEntryStatus.DELETED}
    if found != set(gone):
        raise _misplaced(sorted(set(gone) - found)[0], manifest.manifest_path)
    return draft


def _may_stay(table: TableView, draft: _Draft) -> bool:
    """Whether the manifest has anything to tell: not when all of it left along with a partition column.

    DuckDB 1.5.5 dies of a manifest whose partition field has no column in the current schema.
    """
    sources = {field.source_id for field in table.specs[draft.spec_id].fields}
    return sources <= table.schemas[0].field_ids or any(
        entry.status is not ManifestEntryStatus.DELETED for entry in draft.entries
    )


def _check_all_found(removed: Iterable[Mapping[str, Set[str]]], found: Set[str]) -> None:
    for by_manifest in removed:
        for manifest_path, files in by_manifest.items():
            if manifest_path not in found:
                raise _misplaced(sorted(files)[0], manifest_path)


def _misplaced(file_path: str, manifest_path: str) -> StateMismatch:
    return StateMismatch(
        f"the state store places {file_path} in a manifest that does not hold it",
        path=manifest_path,
        hint="The state is rebuilt from Iceberg's manifests and the Delta log.",
    )


def _count(counts: dict[str, int], draft: _Draft) -> None:
    """Iceberg spec, appendix "Optional Snapshot Summary Fields"."""
    is_data = draft.content is ManifestContent.DATA
    for entry in draft.entries:
        if entry.status is ManifestEntryStatus.EXISTING:
            continue
        added = entry.status is ManifestEntryStatus.ADDED
        counts["added-files-size" if added else "removed-files-size"] += entry.data_file.file_size_in_bytes
        if is_data:
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
        base = int(str(before[total] or 0)) if before else 0
        summary[total] = str(base + counts.get(added, 0) - counts.get(removed, 0))
    return summary
