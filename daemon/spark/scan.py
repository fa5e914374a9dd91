"""Reads a Delta table as a DataFrame without Delta's reader: its log in this process, its files with Spark's reader.

Spark reads the Parquet files with their row index. A function in its tasks looks each row up in the deletion vector
(DV) of its file, and an ordinary filter drops the marked rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import pack
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from daemon.clock import SystemClock
from daemon.delta.deletion_vector import decode_inline, find_place
from daemon.delta.features import check_features, check_metadata, check_protocol, used_features
from daemon.delta.log import DeltaLog
from daemon.delta.log_segment import load_log_segment
from daemon.delta.snapshot import ReplayedState, replay
from daemon.errors import errors_at
from daemon.spark.failures import known_errors
from daemon.spark.java_classes import new_object
from daemon.spark.scan_schema import ScanColumn, as_struct, scan_columns
from daemon.store.locations import normalize_location
from daemon.store.storage import FileIOStorage
from daemon.translate.partition_values import ZONE
from state.records import DeletionVectorDescriptor

# Delta's own name for it.
MARKER = "__delta_internal_is_row_deleted"
# The descriptor of a file's deletion vector (DV), which is constant for its rows like a partition value.
VECTOR = "__dvsync_deletion_vector"
FIELD_IDS = "spark.sql.parquet.fieldId.read.enabled"


def read_delta(
    spark: SparkSession,
    location: str,
    *,
    version: int | None = None,
    properties: Mapping[str, str] | None = None,
    keep_deleted: bool = False,
    time_zone: str | None = None,
) -> DataFrame:
    """Return the rows of the Delta table at `location`, at `version` or the newest one.

    `properties` are PyIceberg's for the store of the log (`storage` in config.yaml); for data files and DVs, Spark uses
    its own Hadoop settings. With `keep_deleted`, deleted rows stay, and one more column is the marker
    `__delta_internal_is_row_deleted`: 1 for a deleted row, else 0. The version is fixed here, the rows are read later.
    Spark's filters skip files by partition values and statistics. `time_zone` is that of timestamp partition values
    without one, by default the session's.

    Raises `Unsupported` naming a feature that is not known, `CorruptInput`, `ObjectMissing` and `ObjectStoreAway`. What
    fails later raises Spark's exceptions; in a block of `known_errors` it raises these kinds.
    """
    storage = FileIOStorage(properties)
    log = DeltaLog(storage, normalize_location(location), SystemClock())
    state = replay(log, load_log_segment(log, version))
    assert state is not None, "a replay without bounds is whole"
    with errors_at(version=state.version, path=log.folder):
        check_protocol(state.protocol)
        check_metadata(state.metadata)
        columns = scan_columns(state.metadata)
        check_features(state.protocol, used_features(state.metadata))
        with known_errors():
            files = _open_files(spark, state, columns, time_zone)
            return _scan(spark, files, columns, keep_deleted=keep_deleted)


def _scan(spark: SparkSession, files: DataFrame, columns: list[ScanColumn], *, keep_deleted: bool) -> DataFrame:
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
    jvm: Any = spark._jvm
    hadoop_conf = jvm.org.apache.spark.util.SerializableConfiguration(
        spark._jsparkSession.sessionState().newHadoopConf()
    )
    marker = new_object(spark, "DeletionMarker", spark.sparkContext._jsc.broadcast(hadoop_conf))
    row_index = files.metadataColumn("_metadata")["row_index"]
    return Column(marker.column(MARKER, files[VECTOR]._jc, row_index._jc))


def _open_files(
    spark: SparkSession, state: ReplayedState, columns: Sequence[ScanColumn], time_zone: str | None
) -> DataFrame:
    """Return all rows of the files, deleted ones too, by the columns' names in the files.

    If a file has a DV, there is one more column VECTOR, for `DeletionMarker.java`.
    """
    data = as_struct([column.file_field for column in columns if not column.is_partition])
    partitions = as_struct([column.file_field for column in columns if column.is_partition])
    bounded = as_struct([column.file_field for column in columns if column.has_bounds])
    values = [_partition_value(field, time_zone) for field in partitions]
    adds = state.rows.select(["path", "size", "partition_values", "stats"])
    vectors = [_encode_vector(state.location, add.deletion_vector) for add in state.read_adds()]
    if any(vectors):
        adds = adds.append_column(VECTOR, pa.array(vectors, pa.binary()))
        partitions = partitions.add(VECTOR, "binary")
        values.append(F.col(VECTOR))
    bounds = _bounds(bounded)
    # PySpark fails on columns without a chunk.
    adds = pa.concat_tables([adds.schema.empty_table(), adds])
    rows = spark.createDataFrame(adds).select("path", "size", F.struct(*values), F.struct(*bounds))
    jvm: Any = spark._jvm
    found = rows._jdf.queryExecution().executedPlan().executeCollect()
    partition_schema = _in_java(spark, partitions)
    files = new_object(spark, "DeltaFiles", state.location, partition_schema, _in_java(spark, bounded), found)
    session = spark._jsparkSession
    if state.metadata.column_mapping_mode == "id":
        # The reader takes this setting from the session of the relation, and the user's session stays as it is.
        session = session.cloneSession()
        session.conf().set(FIELD_IDS, "true")
    sources = jvm.org.apache.spark.sql.execution.datasources
    relation = sources.HadoopFsRelation(
        files,
        partition_schema,
        _in_java(spark, data),
        jvm.scala.Option.empty(),
        sources.parquet.ParquetFileFormat(),
        jvm.PythonUtils.toScalaMap({}),
        session,
    )
    return DataFrame(spark._jsparkSession.baseRelationToDataFrame(relation), spark)


def _in_java(spark: SparkSession, schema: StructType) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())


def _encode_vector(location: str, descriptor: DeletionVectorDescriptor | None) -> bytes | None:
    """Encode a DV for `DeletionMarker.java`, big-endian.

    8 B  offset of its frame in the file; -1 if it is inline
    8 B  cardinality
    4 B  size of magic and bitmaps
    n B  path of the file; of an inline DV its shortened unique id
    n B  magic and bitmaps, if it is inline
    """
    if descriptor is None:
        return None
    place = find_place(location, descriptor)
    path, offset = place.path.encode(), -1 if place.offset is None else place.offset
    inline = bytes(decode_inline(descriptor, place)) if place.offset is None else b""
    return pack(">qqi", offset, descriptor.cardinality, descriptor.size_in_bytes) + path + inline


def _partition_value(field: StructField, time_zone: str | None) -> Column:
    """Return the value that the log has as text. PROTOCOL.md, "Partition Value Serialization": "" is null.

    For strings it is not, as for Delta on Spark.
    """
    text = F.try_element_at("partition_values", F.lit(field.name))
    if field.dataType.typeName() != "string":
        text = F.nullif(text, F.lit(""))
    if time_zone and field.dataType.typeName() == "timestamp":
        text = F.when(text.rlike(f"({ZONE})$"), text).otherwise(F.concat(text, F.lit(f" {time_zone}")))
    what = f" is no {field.dataType.simpleString()}, but the partition value of column {field.name}"
    return F.when(
        text.isNotNull(), F.coalesce(text.try_cast(field.dataType), F.raise_error(F.concat(text, F.lit(what))))
    ).alias(field.name)


def _bounds(fields: StructType) -> list[Column]:
    """Return what the statistics say: the number of rows, and of each field the nulls, the minimum and the maximum.

    PROTOCOL.md, "Per-file Statistics". They hold for files with a DV, too: those of all rows hold for some.
    """
    counts = StructType()
    for field in fields:
        counts.add(field.name, LongType())
    schema = StructType().add("numRecords", LongType()).add("nullCount", counts)
    stats = F.from_json("stats", schema.add("minValues", fields).add("maxValues", fields))
    bounds = [stats["numRecords"]]
    for field in fields:
        most = stats["maxValues"][field.name]
        if field.dataType.typeName().startswith("timestamp"):
            # Statistics have milliseconds, cut off.
            most = F.try_add(most, F.expr("INTERVAL 1 MILLISECOND"))
        bounds += [stats["nullCount"][field.name], stats["minValues"][field.name], most]
    return bounds
