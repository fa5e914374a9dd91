"""Prepares a snapshot that adds and removes data files and delete files, which PyIceberg 0.12 cannot do yet.

`prepare_snapshot` writes manifests, and rewrites only those in which something changes. `Target.commit` then makes them
the table's state. Iceberg spec, "Snapshots", "Manifests".
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, groupby
from operator import attrgetter
from uuid import uuid4

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import LocationProvider
from pyiceberg.table.snapshots import Operation, Snapshot

from daemon.errors import StateMismatch, TargetUnreadable
from daemon.iceberg.manifests import (
    MANIFEST_ENTRIES_MAX,
    EntryKey,
    ManifestHeader,
    content_span,
    end_of_row_ids,
    entry_key,
    read_entries,
    read_manifest_list,
    schema_with_sources,
    with_fields_of,
    write_manifest,
)
from daemon.iceberg.merging import live_files, plan_merges
from daemon.iceberg.pyiceberg_ext.records import entry_record
from daemon.store.storage import map_files

# Added delete files do not join a larger manifest: a data file whose deletions change often would rewrite it each time.
JOINED_ENTRIES_MAX = 100
# What a summary has totals of. Iceberg spec, appendix "Optional Snapshot Summary Fields".
TOTALS = ("data-files", "delete-files", "records", "files-size", "position-deletes", "equality-deletes")


@dataclass(frozen=True)
class TableView:
    """What is needed of an Iceberg table, which may not exist yet. The first of its `schemas` will be current."""

    io: FileIO
    locations: LocationProvider
    schemas: Sequence[Schema]
    specs: Mapping[int, PartitionSpec]
    format_version: int
    parent: Snapshot | None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RowDelta:
    """The file changes of one snapshot. Files to remove, or to renew, are grouped by the manifest that holds them.

    A file that is removed and added again gets a new data sequence number: older position deletes no longer apply to
    it. One that is renewed gets other metrics, because rows of it come back; sequence numbers and row ids stay. The
    entries of a Puffin file are next to each other in `added_delete_files`, and go into one manifest.
    `replacements` are pairs of a removed delete file and a new one that takes over its deletes and its partition; both
    may appear in several pairs. `replaces_all` removes everything that was in the table, whoever wrote it.
    `written_manifests` are data manifests that tasks wrote for this snapshot, of data files of `written_size_bytes`,
    whose rows have ids below `written_row_ids_end` from Delta. With `same_rows`, rows only move between files.
    """

    snapshot_id: int
    added_data_files: Sequence[DataFile] = ()
    removed_data_files: Mapping[str, Set[str]] = field(default_factory=dict)
    renewed_data_files: Mapping[str, Mapping[str, DataFile]] = field(default_factory=dict)
    added_delete_files: Sequence[DataFile] = ()
    removed_delete_files: Mapping[str, Set[EntryKey]] = field(default_factory=dict)
    replacements: Sequence[tuple[str, DataFile]] = ()
    replaces_all: bool = False
    written_manifests: Sequence[ManifestFile] = ()
    written_size_bytes: int = 0
    written_row_ids_end: int = 0
    same_rows: bool = False

    @property
    def operation(self) -> Operation:
        """The snapshot's operation. Iceberg spec, "Snapshots", `operation`."""
        adds = bool(self.added_data_files or self.written_manifests or self.renewed_data_files)
        writes_deletes = bool(self.added_delete_files or self.replacements)
        removes = bool(self.removed_data_files or self.removed_delete_files or self.replaces_all)
        if not (writes_deletes or removes):
            return Operation.APPEND
        if self.same_rows and (adds or writes_deletes):
            return Operation.REPLACE
        return Operation.OVERWRITE if adds or self.replaces_all else Operation.DELETE


@dataclass(frozen=True)
class PreparedSnapshot:
    """A snapshot whose manifests are written, but to which nothing refers yet. `placements` maps each added file to its
    manifest, `moved_manifests` each rewritten one to the new one. Delta gave the added rows ids below `row_ids_end`.
    """

    snapshot_id: int
    operation: Operation
    manifests: Sequence[ManifestFile]
    summary: Mapping[str, str]
    placements: Mapping[str, str]
    moved_manifests: Mapping[str, str]
    manifest_list_path: str
    row_ids_end: int = 0


@dataclass
class _Draft:  # of a manifest
    path: str
    content: ManifestContent
    spec_id: int
    entries: list[ManifestEntry]
    sources: list[str] = field(default_factory=list)  # the manifests that it replaces


# Manifests, each with all of its entries, some of them now marked as deleted.
_Changed = Sequence[tuple[ManifestFile, Sequence[ManifestEntry]]]


def prepare_snapshot(table: TableView, delta: RowDelta, announce: Callable[[Sequence[str]], None]) -> PreparedSnapshot:
    """Write the manifests of `delta`. `announce` gets their paths and that of the manifest list before any is written.

    Raises `StateMismatch` if a file to remove is not in the manifest that the state store names.
    """
    commit = uuid4()
    names = (table.locations.new_metadata_location(f"{commit}-{delta.snapshot_id}-m{n}.avro") for n in count())
    parent: Sequence[ManifestFile] = ()
    # If they cannot be read, a delta that replaces all goes on without.
    with suppress(*((FileNotFoundError, TargetUnreadable) if delta.replaces_all else ())):
        parent = read_manifest_list(table.io, table.parent.manifest_list) if table.parent else ()
    changed = _read_changed(table, delta, _find_changed(parent, delta))
    removed = {entry.data_file.file_path: entry.data_file for _, entry in _deleted(changed)}
    replacements = [with_fields_of(removed[path], new, "partition") for path, new in delta.replacements]
    touched = {manifest.manifest_path for manifest, _ in changed}
    untouched = () if delta.replaces_all else parent
    carried = [each for each in untouched if each.manifest_path not in touched and live_files(each)]
    merged = _read_changed(table, delta, [each for group in plan_merges(carried, table.properties) for each in group])
    kept = [(manifest, entries) for manifest, entries in changed if _may_stay(table, manifest, entries)]
    rewritten = list(_pack(names, [*kept, *merged]))
    moved = {source: draft.path for draft in rewritten for source in draft.sources}
    added = [
        *_draft_added(names, ManifestContent.DATA, delta.added_data_files, delta.snapshot_id),
        *_draft_added(names, ManifestContent.DELETES, [*delta.added_delete_files, *replacements], delta.snapshot_id),
    ]
    unmoved = [manifest for manifest in carried if manifest.manifest_path not in moved]
    drafts = _joined(added, rewritten)
    manifest_list_path = table.locations.new_metadata_location(f"snap-{delta.snapshot_id}-{uuid4()}.avro")
    announce([*(draft.path for draft in drafts), manifest_list_path])
    written = [
        write_manifest(
            table.io,
            draft.path,
            ManifestHeader(
                draft.content,
                schema_with_sources(table.specs[draft.spec_id], table.schemas),
                table.specs[draft.spec_id],
                table.format_version,
            ),
            draft.entries,
            snapshot_id=delta.snapshot_id,
        )
        for draft in drafts
    ]
    return PreparedSnapshot(
        snapshot_id=delta.snapshot_id,
        operation=delta.operation,
        manifests=[*delta.written_manifests, *written, *unmoved],
        summary=_summary(table, delta, added, changed, parent),
        placements={entry.data_file.file_path: draft.path for draft in added for entry in draft.entries},
        moved_manifests=moved,
        manifest_list_path=manifest_list_path,
        row_ids_end=max([delta.written_row_ids_end, *map(end_of_row_ids, delta.added_data_files)]),
    )


def _find_changed(parent: Sequence[ManifestFile], delta: RowDelta) -> list[ManifestFile]:
    changes = (delta.removed_data_files, delta.removed_delete_files, delta.renewed_data_files)
    changed = {path: files for by_manifest in changes for path, files in by_manifest.items()}
    found = [manifest for manifest in parent if manifest.manifest_path in changed]
    for path in changed.keys() - {manifest.manifest_path for manifest in found}:
        raise _misplaced(changed[path], path)
    return found


def _draft_added(
    names: Iterator[str], content: ManifestContent, files: Sequence[DataFile], snapshot_id: int
) -> Iterator[_Draft]:
    by_spec: dict[int, list[DataFile]] = defaultdict(list)
    for data_file in files:
        by_spec[data_file.spec_id].append(data_file)
    for spec_id, members in by_spec.items():
        draft = _Draft(next(names), content, spec_id, [])
        for _, of_file in groupby(members, lambda file: file.file_path):
            entries = [entry_record(ManifestEntryStatus.ADDED, file, snapshot_id=snapshot_id) for file in of_file]
            if draft.entries and len(draft.entries) + len(entries) > MANIFEST_ENTRIES_MAX:
                yield draft
                draft = _Draft(next(names), content, spec_id, [])
            draft.entries += entries
        yield draft


def _joined(added: Sequence[_Draft], rewritten: Sequence[_Draft]) -> list[_Draft]:
    """Return the manifests to write. Added delete files go into a small one that is rewritten anyway, if any is."""
    hosts = {draft.spec_id: draft for draft in rewritten if draft.content is ManifestContent.DELETES}
    drafts = []
    for draft in added:
        host = hosts.get(draft.spec_id) if draft.content is ManifestContent.DELETES else None
        if host and len(host.entries) + len(draft.entries) <= JOINED_ENTRIES_MAX:
            host.entries += draft.entries
            draft.path = host.path
        else:
            drafts.append(draft)
    return [*drafts, *rewritten]


def _read_changed(table: TableView, delta: RowDelta, manifests: Sequence[ManifestFile]) -> _Changed:
    """Return each manifest with its rewritten entries. Manifests on other machines are read at the same time."""
    entries = map_files(lambda each: _rewritten_entries(table, delta, each), manifests, attrgetter("manifest_path"))
    return list(zip(manifests, entries, strict=True))


def _rewritten_entries(table: TableView, delta: RowDelta, manifest: ManifestFile) -> list[ManifestEntry]:
    """Mark the entries of a manifest that leave as deleted by this snapshot, the others as existing. Renewed ones keep
    their sequence numbers and row ids: their rows are those that readers know.
    """
    path, spec = manifest.manifest_path, table.specs[manifest.partition_spec_id]
    gone = delta.removed_data_files.get(path) or delta.removed_delete_files.get(path) or frozenset[EntryKey]()
    renewed = delta.renewed_data_files.get(path, {})
    entries = []
    for entry in read_entries(table.io, manifest, spec=spec, schema=schema_with_sources(spec, table.schemas)):
        key = entry_key(entry.data_file)
        new = renewed.get(entry.data_file.file_path)
        entries.append(
            entry_record(
                ManifestEntryStatus.DELETED if key in gone else ManifestEntryStatus.EXISTING,
                with_fields_of(entry.data_file, new, "first_row_id") if new else entry.data_file,
                snapshot_id=delta.snapshot_id if key in gone else entry.snapshot_id,
                sequence_number=entry.sequence_number,
                file_sequence_number=entry.file_sequence_number,
            )
        )
    if missing := {*gone, *renewed} - {entry_key(entry.data_file) for entry in entries}:
        raise _misplaced(missing, path)
    return entries


def _may_stay(table: TableView, manifest: ManifestFile, entries: Iterable[ManifestEntry]) -> bool:
    """Return False for a manifest of deleted entries only whose partition column was dropped: DuckDB 1.5.5 crashes."""
    sources = {field.source_id for field in table.specs[manifest.partition_spec_id].fields}
    is_live = any(entry.status is not ManifestEntryStatus.DELETED for entry in entries)
    return is_live or sources <= table.schemas[0].field_ids


def _pack(names: Iterator[str], manifests: _Changed) -> Iterator[_Draft]:
    """Pack the manifests into as few new ones as possible, each of one content and spec. No source is split."""
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


def _misplaced(entries: Iterable[EntryKey], manifest_path: str) -> StateMismatch:
    first = min(" for ".join([each] if isinstance(each, str) else each) for each in entries)
    return StateMismatch(
        f"the state store says that a manifest holds {first}, but it does not",
        path=manifest_path,
        hint="dvsync rebuilds its state from Iceberg's manifests and the Delta log.",
    )


def _deleted(changed: _Changed) -> list[tuple[ManifestContent, ManifestEntry]]:
    deleted = ManifestEntryStatus.DELETED
    return [(manifest.content, each) for manifest, entries in changed for each in entries if each.status is deleted]


def _summary(
    table: TableView, delta: RowDelta, added: Sequence[_Draft], changed: _Changed, parent: Sequence[ManifestFile]
) -> dict[str, str]:
    counted = [(draft.content, entry) for draft in added for entry in draft.entries] + _deleted(changed)
    counts = Counter[str]()
    for content, entry in counted:
        file, is_new = entry.data_file, entry.status is ManifestEntryStatus.ADDED
        verb = "added" if is_new else "removed"
        # Of a Puffin file, which has many entries, each one counts its own part.
        span = content_span(file)
        counts[f"{verb}-files-size"] += span[1] if span else file.file_size_in_bytes
        if content is ManifestContent.DATA:
            counts["added-data-files" if is_new else "deleted-data-files"] += 1
            counts["added-records" if is_new else "deleted-records"] += file.record_count
        else:
            counts[f"{verb}-delete-files"] += 1
            counts[f"{verb}-dvs" if file.file_format is FileFormat.PUFFIN else f"{verb}-position-delete-files"] += 1
            counts[f"{verb}-position-deletes"] += file.record_count
    for manifest in delta.written_manifests:
        counts["added-data-files"] += manifest.added_files_count or 0
        counts["added-records"] += manifest.added_rows_count or 0
    counts["added-files-size"] += delta.written_size_bytes
    if not delta.written_manifests:
        # Of manifests that Spark tasks wrote only the sums are known, so partitions cannot be counted then.
        files = (entry.data_file for _, entry in counted)
        counts["changed-partition-count"] = len({(file.spec_id, repr(file.partition)) for file in files})
    for manifest in parent if delta.replaces_all else ():  # as far as the manifest list knows them
        is_data = manifest.content is ManifestContent.DATA
        counts["deleted-data-files" if is_data else "removed-delete-files"] += live_files(manifest)
        if is_data:
            counts["deleted-records"] += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
    summary = {name: str(number) for name, number in counts.items() if number}
    before = table.parent.summary if table.parent and not delta.replaces_all else None
    for each in TOTALS:
        left = counts[f"deleted-{each}"] + counts[f"removed-{each}"]
        kept = int(str(before[f"total-{each}"] or 0)) - left if before else 0
        summary[f"total-{each}"] = str(kept + counts[f"added-{each}"])
    return summary
