"""The data manifests of a first sync, written in Spark tasks: one manifest a partition of Delta's live files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus, ManifestFile, PartitionFieldSummary

from daemon.delta.actions import AddFile, resolve_path
from daemon.errors import CorruptInput
from daemon.iceberg.manifests import MANIFEST_ENTRIES_MAX, write_manifest
from daemon.iceberg.pyiceberg_ext import entry_record, manifest_record
from daemon.pipeline.progress import Progress, watched
from daemon.pipeline.runner import run_on_spark
from daemon.pipeline.session import SparkPipeline
from daemon.pipeline.table_state import TableState, adds_from_batch
from daemon.storage import FileIOStorage
from daemon.translate.data_files import check_cardinality, data_file_of, metrics_of
from daemon.translate.schema import TableSchema

# Requests for file sizes wait on the store, not on the processor.
LOOKS_AT_ONCE = 16

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
    ]
)


@dataclass(frozen=True)
class WrittenManifest:
    """A manifest and the (path, physical rows, bytes) of each of its data files."""

    manifest: ManifestFile
    files: Sequence[tuple[str, int, int]]


@dataclass(frozen=True)
class ManifestTask:
    """What a Spark task must know; `paths[n]` is the manifest of partition n."""

    paths: tuple[str, ...]
    table: TableSchema
    table_location: str
    snapshot_id: int
    format_version: int
    properties: Mapping[str, str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        adds = [add for batch in batches for add in adds_from_batch(batch)]
        if adds and context is not None:
            yield self._write(self.paths[context.partitionId()], adds)

    def _write(self, manifest_path: str, adds: Sequence[AddFile]) -> pa.RecordBatch:
        paths = [resolve_path(self.table_location, add.path) for add in adds]
        storage = FileIOStorage(self.properties)
        check_data_files(storage, {path: add.size for path, add in zip(paths, adds, strict=True)})
        entries = []
        counts = []
        for path, add in zip(paths, adds, strict=True):
            metrics = metrics_of(add, path, self.table)
            count = read_record_count(storage, path) if metrics.record_count is None else metrics.record_count
            if add.deletion_vector:
                check_cardinality(path, count, add.deletion_vector.cardinality)
            counts.append(count)
            data_file = data_file_of(add, path, self.table, metrics, count)
            entries.append(entry_record(ManifestEntryStatus.ADDED, data_file, snapshot_id=self.snapshot_id))
        manifest = write_manifest(
            PyArrowFileIO(dict(self.properties)),
            manifest_path,
            ManifestContent.DATA,
            entries,
            spec=self.table.spec,
            schema=self.table.schema,
            snapshot_id=self.snapshot_id,
            format_version=self.format_version,
        )
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
            "record_counts": counts,
            "sizes_bytes": [add.size for add in adds],
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
    return [_written(row, task) for batch in batches for row in batch.to_pylist()]


def _written(row: Mapping[str, Any], task: ManifestTask) -> WrittenManifest:
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
    return WrittenManifest(manifest, list(zip(row["paths"], row["record_counts"], row["sizes_bytes"], strict=True)))


def check_data_files(storage: FileIOStorage, sizes: Mapping[str, int]) -> None:
    """Look at each data file: a missing or cut one must not be registered, every reader of the table would fail.

    Raises `ObjectMissing`, or `CorruptInput` with both sizes.
    """

    def look(path: str) -> None:
        found = storage.stat(path).size
        if found != sizes[path]:
            raise CorruptInput(
                f"the data file has {found} bytes, the Delta log says {sizes[path]}",
                path=path,
                hint="Restore the file, or remove it from the Delta table (FSCK REPAIR, or a delete that covers it).",
            )

    _at_once(look, sizes)


def _at_once(look: Callable[[str], None], paths: Iterable[str]) -> None:
    todo = list(paths)
    if len(todo) < LOOKS_AT_ONCE:
        for path in todo:
            look(path)
        return
    with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
        list(pool.map(look, todo))


def read_record_count(storage: FileIOStorage, path: str) -> int:
    """Physical rows by the Parquet footer. Raises `CorruptInput` when the file is not Parquet."""
    try:
        with storage.open_input(path) as file:
            return int(pq.read_metadata(file).num_rows)
    except pa.ArrowInvalid as error:
        raise CorruptInput(
            f"the file has no Parquet footer: {error}", path=path, hint="Restore the file on the Delta side."
        ) from error
