"""Reads a Delta table as a DataFrame without Delta's reader: its log in this process, its files with Spark's reader.

Spark reads the Parquet files with their row index. A function in its tasks looks each row up in the deletion vector
(DV) of its file, and an ordinary filter drops the marked rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from daemon.clock import SystemClock
from daemon.delta.features import check_features, check_metadata, check_protocol, used_features
from daemon.delta.log import DeltaLog
from daemon.delta.log_segment import load_log_segment
from daemon.delta.snapshot import replay
from daemon.errors import SyncError
from daemon.spark.compiled import new_object
from daemon.spark.failures import known_errors
from daemon.spark.scan_files import VECTOR, open_files
from daemon.spark.scan_schema import ScanColumn, as_struct, scan_columns
from daemon.store.locations import normalize_location
from daemon.store.storage import FileIOStorage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Delta's own name for it.
MARKER = "__delta_internal_is_row_deleted"


def read_delta(
    spark: SparkSession,
    location: str,
    *,
    version: int | None = None,
    properties: Mapping[str, str] | None = None,
    keep_deleted: bool = False,
) -> DataFrame:
    """Return the rows of the Delta table at `location`, at `version` or the newest one.

    `properties` are PyIceberg's for the store of the log (`storage` in config.yaml); for data files and DVs, Spark uses
    its own Hadoop settings. With `keep_deleted`, deleted rows stay, and one more column is the marker
    `__delta_internal_is_row_deleted`: 1 for a deleted row, else 0. The version is fixed here, the rows are read later.
    Spark's filters skip files by partition values and statistics.

    Raises `Unsupported` naming a feature that is not known, `CorruptInput`, `ObjectMissing` and `ObjectStoreAway`. What
    fails later raises Spark's exceptions; in a block of `known_errors` it raises these kinds.
    """
    storage = FileIOStorage(properties)
    log = DeltaLog(storage, normalize_location(location), SystemClock())
    state = replay(storage, log, load_log_segment(storage, log, version))
    assert state is not None, "a replay without bounds is whole"
    try:
        check_protocol(state.protocol)
        check_metadata(state.metadata)
        columns = scan_columns(state.metadata)
        check_features(state.protocol, used_features(state.metadata))
        with known_errors():
            files = open_files(spark, state, columns)
            return _scan(spark, files, columns, keep_deleted=keep_deleted)
    except SyncError as error:
        raise error.located(version=state.version, path=log.folder) from error.__cause__


def _scan(spark: SparkSession, files: DataFrame, columns: list[ScanColumn], *, keep_deleted: bool) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: PLC0415

    shown = [_shown(files, column) for column in columns]
    if VECTOR not in files.columns:
        return files.select(*shown, *([F.lit(0).cast("tinyint").alias(MARKER)] if keep_deleted else []))
    marked = files.select(*shown, _marker(spark, files).alias(MARKER))
    return marked if keep_deleted else marked.where(F.col(MARKER) == 0).drop(MARKER)


def _shown(files: DataFrame, column: ScanColumn) -> Column:
    found = files["`{}`".format(column.file_name.replace("`", "``"))]
    if column.type != column.file_type:
        # Spark casts structs by the order of their fields, whatever their names.
        found = found.cast(as_struct([{**column.file_field, "type": column.type}]).fields[0].dataType)
    return found.alias(column.name, metadata=column.metadata)


def _marker(spark: SparkSession, files: DataFrame) -> Column:
    from pyspark.sql import Column  # noqa: PLC0415

    jvm: Any = spark._jvm
    hadoop_conf = jvm.org.apache.spark.util.SerializableConfiguration(
        spark._jsparkSession.sessionState().newHadoopConf()
    )
    marker = new_object(spark, "DeletionMarker", spark.sparkContext._jsc.broadcast(hadoop_conf))
    row_index = files.metadataColumn("_metadata")["row_index"]
    return Column(marker.column(MARKER, files[VECTOR]._jc, row_index._jc))
