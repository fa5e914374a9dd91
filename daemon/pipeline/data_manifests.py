"""The data manifests of a first sync: one manifest for each part of Delta's live files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pyiceberg.manifest import ManifestContent, ManifestEntryStatus, ManifestFile

from daemon.delta.actions import AddFile
from daemon.iceberg.manifests import MANIFEST_ENTRIES_MAX, ManifestHeader, end_of_row_ids, write_manifest
from daemon.iceberg.pyiceberg_ext.file_io import StoreFileIO
from daemon.iceberg.pyiceberg_ext.records import entry_record
from daemon.pipeline.inspection import Inspector
from daemon.store.durable import force_to_disk
from daemon.store.storage import FileIOStorage
from daemon.translate.file_schema import FileTraits
from daemon.translate.metrics import data_file_of
from daemon.translate.partition_values import encode_partition, partition_of
from daemon.translate.schema import TableSchema
from state import DeletionVectorDescriptor, LiveFile


@dataclass(frozen=True)
class WrittenManifest:
    """A manifest, the totals of its data files, their traits, and `row_ids_end` as in `PreparedSnapshot`."""

    manifest: ManifestFile
    files: int
    physical_rows: int
    size_bytes: int
    traits: FileTraits
    row_ids_end: int


@dataclass(frozen=True)
class ManifestAnswer:
    """The result of a task: the manifest and its data files, in columns, which need less memory than objects."""

    written: WrittenManifest
    paths: Sequence[str]
    record_counts: Sequence[int]
    sizes_bytes: Sequence[int]
    partitions: Sequence[tuple[str | None, ...]]
    uris: Sequence[str | None]

    def live_files(self, dvs: Mapping[str, DeletionVectorDescriptor] = MappingProxyType({})) -> Iterator[LiveFile]:
        """Yield the data files, with those of `dvs` that are theirs."""
        manifest = self.written.manifest
        for path, record_count, size_bytes, partition, uri in zip(
            self.paths, self.record_counts, self.sizes_bytes, self.partitions, self.uris, strict=True
        ):
            yield LiveFile(
                path=path,
                record_count=record_count,
                size_bytes=size_bytes,
                spec_id=manifest.partition_spec_id,
                manifest_path=manifest.manifest_path,
                deletion_vector=dvs.get(path),
                partition=partition,
                uri=uri,
            )


@dataclass(frozen=True)
class ManifestTask:
    """Writes the manifest `paths[n]` for part n of a table's live files. Inspects each file first."""

    paths: tuple[str, ...]
    table: TableSchema
    snapshot_id: int
    format_version: int
    storage: FileIOStorage
    target_properties: Mapping[str, str]
    at_once: bool

    def __call__(self, part: int, adds: Iterable[AddFile]) -> Iterator[ManifestAnswer]:
        adds, manifest_path = list(adds), self.paths[part]
        inspection = Inspector(self.storage, self.table).inspect(adds)
        entries = []
        for add in adds:
            partition = partition_of(add, self.table, self.table.spec_id)
            data_file = data_file_of(add, inspection.metrics[add.path], self.table, self.table.spec_id, partition)
            entries.append(entry_record(ManifestEntryStatus.ADDED, data_file, snapshot_id=self.snapshot_id))
        manifest = write_manifest(
            StoreFileIO(dict(self.target_properties)),
            manifest_path,
            ManifestHeader(ManifestContent.DATA, self.table.schema, self.table.spec, self.format_version),
            entries,
            snapshot_id=self.snapshot_id,
            at_once=self.at_once,
        )
        force_to_disk([manifest_path])
        row_ids_end = max((end_of_row_ids(entry.data_file) for entry in entries), default=0)
        record_counts = [inspection.metrics[add.path].record_count for add in adds]
        sizes_bytes = [add.size for add in adds]
        yield ManifestAnswer(
            WrittenManifest(manifest, len(adds), sum(record_counts), sum(sizes_bytes), inspection.traits, row_ids_end),
            [add.path for add in adds],
            record_counts,
            sizes_bytes,
            [encode_partition(entry.data_file.partition) for entry in entries],
            [add.uri for add in adds],
        )


def manifests_needed(files: int) -> int:
    """Return how many parts, and so at most how many manifests, this many live files need."""
    return math.ceil(files / MANIFEST_ENTRIES_MAX)
