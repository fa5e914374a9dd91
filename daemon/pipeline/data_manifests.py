"""The data manifests of a first sync, written in Spark tasks: one manifest a partition of Delta's live files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus, ManifestFile, PartitionFieldSummary

from daemon.delta.actions import AddFile, resolve_path
from daemon.durable import force_to_disk
from daemon.iceberg.manifests import MANIFEST_ENTRIES_MAX, write_manifest
from daemon.iceberg.pyiceberg_ext.records import entry_record, manifest_record
from daemon.pipeline.inspection import Inspector
from daemon.spark.progress import Progress, watched
from daemon.spark.session import SparkPipeline
from daemon.spark.table_state import TableState, adds_from_batch
from daemon.spark.tasks import run_on_spark
from daemon.storage import FileIOStorage
from daemon.translate.data_files import data_file_of, partition_of
from daemon.translate.hidden_columns import Path
from daemon.translate.partition_values import encode_partition
from daemon.translate.schema import TableSchema
from state import LiveFile

MANIFESTS = pa.schema(
    [
        pa.field("manifest_path", pa.string()),
        pa.field("manifest_length", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field(
            "partitions",
            pa.list_(
                pa.struct(
                    [
                        pa.field("contains_null", pa.bool_()),
                        pa.field("contains_nan", pa.bool_()),
                        pa.field("lower_bound", pa.binary()),
                        pa.field("upper_bound", pa.binary()),
                    ]
                )
            ),
        ),
        pa.field("paths", pa.list_(pa.string())),
        pa.field("record_counts", pa.list_(pa.int64())),
        pa.field("sizes_bytes", pa.list_(pa.int64())),
        pa.field("file_partitions", pa.list_(pa.list_(pa.string()))),
        pa.field("hidden", pa.list_(pa.list_(pa.string()))),
    ]
)


@dataclass(frozen=True)
class WrittenManifest:
    """A manifest, what its data files come to, and their hidden columns.

    `row` is what its task answered. The files are read from it each time: as objects, those of a large table would take
    twice its memory besides.
    """

    manifest: ManifestFile
    files: int
    physical_rows: int
    size_bytes: int
    hidden: frozenset[Path]
    row: pa.RecordBatch

    def read_files(self) -> Iterator[LiveFile]:
        """Its data files, of which the deletion vectors are not told."""
        (row,) = self.row.to_pylist()
        for path, record_count, size_bytes, partition in zip(
            row["paths"], row["record_counts"], row["sizes_bytes"], row["file_partitions"], strict=True
        ):
            yield LiveFile(
                path=path,
                record_count=record_count,
                size_bytes=size_bytes,
                spec_id=self.manifest.partition_spec_id,
                manifest_path=self.manifest.manifest_path,
                partition=tuple(partition),
            )


@dataclass(frozen=True)
class ManifestTask:
    """What a Spark task must know; `paths[n]` is the manifest of partition n."""

    paths: tuple[str, ...]
    table: TableSchema
    table_location: str
    snapshot_id: int
    format_version: int
    properties: Mapping[str, str]
    target_properties: Mapping[str, str]
    may_overflow: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        adds = [add for batch in batches for add in adds_from_batch(batch)]
        if adds and context is not None:
            yield self._write(self.paths[context.partitionId()], adds)

    def _write(self, manifest_path: str, adds: Sequence[AddFile]) -> pa.RecordBatch:
        paths = [resolve_path(self.table_location, add.path) for add in adds]
        by_path = dict(zip(paths, adds, strict=True))
        inspector = Inspector(FileIOStorage(self.properties), self.table, may_overflow=self.may_overflow)
        inspection = inspector.inspect(by_path)
        entries = []
        for path, add in by_path.items():
            partition = partition_of(add, path, self.table, self.table.spec_id)
            data_file = data_file_of(add, path, inspection.metrics[path], self.table.spec_id, partition)
            entries.append(entry_record(ManifestEntryStatus.ADDED, data_file, snapshot_id=self.snapshot_id))
        manifest = write_manifest(
            PyArrowFileIO(dict(self.target_properties)),
            manifest_path,
            ManifestContent.DATA,
            entries,
            spec=self.table.spec,
            schema=self.table.schema,
            snapshot_id=self.snapshot_id,
            format_version=self.format_version,
        )
        force_to_disk([manifest_path])
        row = {
            "manifest_path": manifest_path,
            "manifest_length": manifest.manifest_length,
            "rows": manifest.added_rows_count,
            "partitions": [
                {
                    "contains_null": summary.contains_null,
                    "contains_nan": summary.contains_nan,
                    "lower_bound": summary.lower_bound,
                    "upper_bound": summary.upper_bound,
                }
                for summary in manifest.partitions or ()
            ],
            "paths": paths,
            "record_counts": [inspection.metrics[path].record_count for path in paths],
            "sizes_bytes": [add.size for add in adds],
            "file_partitions": [encode_partition(entry.data_file.partition) for entry in entries],
            "hidden": [list(column) for column in sorted(inspection.hidden)],
        }
        return pa.RecordBatch.from_pylist([row], schema=MANIFESTS)


def manifests_needed(files: int) -> int:
    """Spark partitions, and thereby manifests at most, for so many live files."""
    return -(-files // MANIFEST_ENTRIES_MAX)


def write_data_manifests(
    pipeline: SparkPipeline, state: TableState, task: ManifestTask, progress: Progress | None
) -> list[WrittenManifest]:
    """Write the manifests of every live file of `state`, each file looked at for existence and size."""
    if not task.paths:
        return []
    with pipeline.session() as spark, watched(spark, len(task.paths), progress, "data manifests"):
        # Sorted by path, files of one partition value come into one manifest, which readers can then pass over.
        frame = state.adds.repartitionByRange(len(task.paths), "path").sortWithinPartitions("path")
        batches = run_on_spark(frame, task, MANIFESTS)
    return [_written(batch.slice(number, 1), task) for batch in batches for number in range(batch.num_rows)]


def _written(answer: pa.RecordBatch, task: ManifestTask) -> WrittenManifest:
    (row,) = answer.to_pylist()
    manifest = manifest_record(
        manifest_path=row["manifest_path"],
        manifest_length=row["manifest_length"],
        partition_spec_id=task.table.spec_id,
        content=ManifestContent.DATA,
        sequence_number=None,
        min_sequence_number=None,
        added_snapshot_id=task.snapshot_id,
        added_files_count=len(row["paths"]),
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=row["rows"],
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=[PartitionFieldSummary.from_args(**summary) for summary in row["partitions"]],
    )
    return WrittenManifest(
        manifest,
        files=len(row["paths"]),
        physical_rows=sum(row["record_counts"]),
        size_bytes=sum(row["sizes_bytes"]),
        hidden=frozenset(tuple(column) for column in row["hidden"]),
        row=answer,
    )
