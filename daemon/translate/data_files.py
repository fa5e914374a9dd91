"""Makes an Iceberg data file record from a Delta AddFile. Pure; it runs in the daemon and in Spark tasks."""

from __future__ import annotations

from typing import Any

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

from daemon.delta.actions import AddFile
from daemon.errors import CorruptInput, SyncError
from daemon.iceberg.pyiceberg_ext.records import data_file_record
from daemon.translate.metrics import Metrics, parse_stats
from daemon.translate.partition_values import partition_tuple
from daemon.translate.schema import TableSchema


def metrics_of(add: AddFile, table: TableSchema, record_count: int) -> Metrics:
    """Translate the metrics of an add. Raises `CorruptInput` when more than `record_count` rows are deleted."""
    if add.deletion_vector and add.deletion_vector.cardinality > record_count:
        raise CorruptInput(
            f"the deletion vector has {add.deletion_vector.cardinality} positions, the file only {record_count} rows",
            path=add.path,
            hint="The log and this file do not belong together: restore the Delta table.",
        )
    return parse_stats(add.stats, table.leaves, record_count, has_dv=add.deletion_vector is not None)


def partition_of(add: AddFile, table: TableSchema, spec_id: int) -> tuple[Any, ...]:
    """Return the partition tuple of an add. Raises as `parse_partition_value`."""
    try:
        return partition_tuple(add.partition_values, table, spec_id)
    except SyncError as error:
        raise error.located(path=add.path) from error.__cause__


def data_file_of(
    add: AddFile, metrics: Metrics, table: TableSchema, spec_id: int, partition: tuple[Any, ...]
) -> DataFile:
    """Make the record with which Iceberg registers the data file in place."""
    data_file = data_file_record(
        partition,
        content=DataFileContent.DATA,
        file_path=add.path,
        file_format=FileFormat.PARQUET,
        record_count=metrics.record_count,
        file_size_in_bytes=add.size,
        value_counts=metrics.value_counts or None,
        null_value_counts=metrics.null_value_counts or None,
        lower_bounds=metrics.lower_bounds or None,
        upper_bounds=metrics.upper_bounds or None,
        first_row_id=add.first_row_id if table.has_row_ids else None,
    )
    data_file.spec_id = spec_id
    return data_file
