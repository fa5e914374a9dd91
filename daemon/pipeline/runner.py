"""Where the kernel runs: in this process for a small change, on Spark for a large one. One kernel, two runners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from daemon.config.settings import PipelineSettings
from daemon.delta.actions import AddFile
from daemon.pipeline.inspection import INSPECTED, Inspection, InspectionTask, Inspector, adds_table, gathered
from daemon.pipeline.kernel import DELETE_FILES, DESCRIPTORS, translate
from daemon.spark.session import SparkPipeline
from daemon.spark.tasks import run_on_spark
from daemon.storage import FileIOStorage
from daemon.translate.delete_files import DeleteFileResult, DeleteFileTask, WrittenPositions
from daemon.translate.schema import TableSchema
from state import DeletionVectorRecord

# Rows of descriptors that one Spark task takes; a task of this size runs for seconds, not minutes.
DESCRIPTORS_PER_TASK = 500

# Footers that one Spark task reads.
DATA_FILES_PER_TASK = 1_000


@dataclass(frozen=True)
class Runner:
    """Translates DV descriptors into delete files, and looks at data files, for tables that share one Spark session.

    `may_overflow` lets INT96 timestamps pass that some readers cannot show.
    """

    spark: SparkPipeline
    settings: PipelineSettings
    may_overflow: bool = False

    def write_delete_files(
        self,
        tasks: Sequence[DeleteFileTask],
        *,
        table_location: str,
        storage_properties: Mapping[str, str],
        target_properties: Mapping[str, str],
    ) -> list[DeleteFileResult]:
        """Run the kernel over `tasks`; every file of a result that has positions is complete and closed."""
        if not tasks:
            return []
        kernel = partial(
            translate,
            table_location=table_location,
            storage_properties=dict(storage_properties),
            target_properties=dict(target_properties),
        )
        table = _descriptor_table(tasks)
        if self._runs_here(fits=self._fits_here(tasks)):
            batches = kernel(table.to_batches(max_chunksize=DESCRIPTORS_PER_TASK))
        else:
            with self.spark.session() as spark:
                frame = spark.createDataFrame(table)
                partitions = max(1, -(-table.num_rows // DESCRIPTORS_PER_TASK))
                # Range partitioning keeps the rows of one delete file together.
                frame = frame.repartitionByRange(partitions, "output_path").sortWithinPartitions(
                    "output_path", "data_file"
                )
                batches = iter(run_on_spark(frame, kernel, DELETE_FILES))
        return [_result(row) for batch in batches for row in batch.to_pylist()]

    def inspect_data_files(
        self, adds: Mapping[str, AddFile], table: TableSchema, storage: FileIOStorage, properties: Mapping[str, str]
    ) -> Inspection:
        """Look at each data file of `adds`, which go by plain path; raises as `Inspector.inspect` does."""
        if not adds or self._runs_here(fits=len(adds) <= self.settings.local_data_files_max):
            return Inspector(storage, table, self.may_overflow).inspect(adds)
        with self.spark.session() as spark:
            frame = spark.createDataFrame(adds_table(adds)).repartition(-(-len(adds) // DATA_FILES_PER_TASK))
            task = InspectionTask(dict(properties), table, self.may_overflow)
            return gathered(run_on_spark(frame, task, INSPECTED), adds, table)

    def _runs_here(self, *, fits: bool) -> bool:
        return fits if self.settings.engine == "auto" else self.settings.engine == "local"

    def _fits_here(self, tasks: Sequence[DeleteFileTask]) -> bool:
        works = [work for task in tasks for work in task.works]
        size_bytes = sum(work.after.size_in_bytes + (work.before.size_in_bytes if work.before else 0) for work in works)
        return len(works) <= self.settings.local_deletion_vectors_max and size_bytes <= self.settings.local_bytes_max


def _descriptor_table(tasks: Sequence[DeleteFileTask]) -> pa.Table:
    rows = [
        {
            "output_path": task.output_path,
            "data_file": work.data_file,
            "record_count": work.record_count,
            "before": _descriptor_row(work.before) if work.before else None,
            "after": _descriptor_row(work.after),
        }
        for task in sorted(tasks, key=lambda task: task.output_path)
        for work in task.works
    ]
    return pa.Table.from_pylist(rows, schema=DESCRIPTORS)


def _descriptor_row(record: DeletionVectorRecord) -> dict[str, Any]:
    return {
        "storage_type": record.storage_type,
        "path_or_inline_dv": record.path_or_inline_dv,
        "offset": record.offset,
        "size_in_bytes": record.size_in_bytes,
        "cardinality": record.cardinality,
    }


def _result(row: Mapping[str, Any]) -> DeleteFileResult:
    return DeleteFileResult(
        path=row["path"],
        size_bytes=row["size_bytes"],
        positions=row["positions"],
        lower_pos=row["lower_pos"],
        upper_pos=row["upper_pos"],
        split_offsets=tuple(row["split_offsets"] or ()),
        rows=tuple(WrittenPositions(**written) for written in row["rows"]),
    )
