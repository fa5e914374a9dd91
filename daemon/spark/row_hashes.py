"""Hashes of all values by data file and column, by which two readers' rows are compared in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from daemon.delta.log import DeltaLog
from daemon.spark.answers import collect
from daemon.spark.failures import known_errors
from daemon.spark.snapshot import open_snapshot, read_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

# The columns that the readers below add to those of the table.
FILE, POSITION = "__dvsync_file", "__dvsync_position"
ROWS = "__dvsync_rows"


def read_iceberg(spark: SparkSession, metadata_location: str, snapshot_id: int) -> DataFrame:
    """The rows of a snapshot by Spark's Iceberg reader, with FILE and POSITION. Spark knows nothing of the catalog."""
    with known_errors(metadata_location):
        frame = spark.read.format("iceberg").option("versionAsOf", snapshot_id).load(metadata_location)
        return frame.selectExpr("*", f"_file AS {FILE}", f"_pos AS {POSITION}")


def read_delta(spark: SparkSession, log: DeltaLog, version: int) -> DataFrame:
    """The rows of a version by Delta's own reader, with FILE, which is URL-encoded, and POSITION.

    POSITION is null if the table cannot have deletion vectors: Delta does not give positions then.
    """
    with known_errors(log.location):
        frame = read_rows(spark, open_snapshot(spark, log, version))
        position = "_metadata.row_index" if "row_index" in frame.select("_metadata.*").columns else "NULL"
        return frame.selectExpr("*", f"_metadata.file_path AS {FILE}", f"{position} AS {POSITION}")


def has_positions(frame: DataFrame) -> bool:
    return frame.schema[POSITION].dataType.typeName() != "void"


def without_positions(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415

    return frame.withColumn(POSITION, f.lit(None))


def hash_rows(frame: DataFrame, columns: Sequence[str]) -> pa.Table:
    """Return for each data file its number of rows, and of each column a hash that does not depend on their order.

    The hash of a value has the value's position in it, so that values that change places change the hash. Without
    positions equal values have equal hashes, and those are added up: two of them would cancel each other by XOR.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    values = [hash_value(frame, name) for name in columns]
    joined = map(f.bit_xor, values) if has_positions(frame) else (f.sum(each.cast("decimal(20)")) for each in values)
    hashes = [each.alias(f"h{number}") for number, each in enumerate(joined)]
    return collect(frame.groupBy(FILE).agg(f.count("*").alias(ROWS), *hashes))


def differing_positions(ours: DataFrame, theirs: DataFrame, column: str, limit: int) -> list[int]:
    """Return the first positions at which `column` differs between two readers' frames of one data file."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    pairs = [frame.select(POSITION, hash_value(frame, column).alias("h")) for frame in (ours, theirs)]
    joined = pairs[0].withColumnRenamed("h", "ours").join(pairs[1], POSITION, "full_outer")
    differing = joined.where(~f.col("ours").eqNullSafe(f.col("h"))).orderBy(POSITION).limit(limit)
    return [int(position) for position in collect(differing.select(POSITION)).column(0).to_pylist()]


def hash_value(frame: DataFrame, column: str) -> Column:
    """Hash the values of a column together with their positions."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    value, data_type = frame[f"`{column.replace('`', '``')}`"], frame.schema[column].dataType
    if data_type.typeName() not in ("struct", "array", "map", "variant"):
        return f.xxhash64(frame[POSITION], value)
    # Spark's hash passes over nulls, and does not see where an array ends. JSON shows both, but cuts some values.
    shape = f.to_json(f.struct(value.alias("value")), {"ignoreNullFields": "false"})
    return f.xxhash64(frame[POSITION], _hashable(value, data_type), shape)


def _hashable(value: Column, data_type: DataType) -> Column:
    """Replace what Spark does not hash: maps by arrays of their entries, in the order of the file, and variants by
    their types. Two readers may give the same variant as other bytes.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType  # noqa: PLC0415

    if not any(kind in data_type.simpleString() for kind in ("map<", "variant")):
        return value
    match data_type:
        case VariantType():
            return f.schema_of_variant(value)
        case MapType():
            entry = StructType().add("key", data_type.keyType).add("value", data_type.valueType)
            return _hashable(f.map_entries(value), ArrayType(entry))
        case ArrayType():
            return f.transform(value, lambda item: _hashable(item, data_type.elementType))
        case StructType():
            fields = [_hashable(value[field.name], field.dataType).alias(field.name) for field in data_type.fields]
            return f.when(value.isNotNull(), f.struct(*fields))
    return value
