"""A Delta table's whole state at one version, from Delta on Spark: any kind of checkpoint, any number of files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from daemon.delta.actions import AddFile, DeletionVectorDescriptor, Metadata, Protocol
from daemon.delta.log import log_gone
from daemon.delta.protocol import HINT_CATALOG_MANAGED
from daemon.errors import CorruptInput, PipelineAway, SyncError, Unsupported

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The part of AddFile that is needed; the descriptor flat, as Arrow carries it best.
ADD_COLUMNS = (
    "path",
    "partitionValues AS partition_values",
    "size",
    "stats",
    "deletionVector.storageType AS dv_storage_type",
    "deletionVector.pathOrInlineDv AS dv_path",
    "deletionVector.offset AS dv_offset",
    "deletionVector.sizeInBytes AS dv_size",
    "deletionVector.cardinality AS dv_cardinality",
)


@dataclass(frozen=True)
class TableState:
    """A snapshot of the Delta table. `adds` has one row a live file; see `ADD_COLUMNS`."""

    version: int
    timestamp_ms: int
    protocol: Protocol
    metadata: Metadata
    files: int
    adds: DataFrame


class _ProtocolLine(msgspec.Struct):
    protocol: Protocol


class _MetadataLine(msgspec.Struct):
    metadata: Metadata = msgspec.field(name="metaData")


def read_table_state(spark: SparkSession, location: str, version: int | None = None) -> TableState:
    """The state at `version`, or the newest.

    Raises `Unsupported` when Delta itself refuses the table, `CorruptInput` when its log cannot be read, and
    `ObjectMissing` when it has none.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import DataFrame  # noqa: PLC0415

    try:
        snapshot = _snapshot(spark, location, version)
        if snapshot.version() < 0:
            raise log_gone(location)
        return TableState(
            version=snapshot.version(),
            timestamp_ms=snapshot.timestamp(),
            protocol=msgspec.json.decode(snapshot.protocol().json(), type=_ProtocolLine).protocol,
            metadata=msgspec.json.decode(snapshot.metadata().json(), type=_MetadataLine).metadata,
            files=snapshot.numOfFiles(),
            adds=DataFrame(snapshot.allFiles().toDF(), spark).selectExpr(*ADD_COLUMNS),
        )
    except (PySparkException, Py4JJavaError) as error:
        raise delta_error(error, location, version) from error


def _snapshot(spark: SparkSession, location: str, version: int | None) -> Any:
    jvm: Any = spark._jvm
    delta_log = jvm.org.apache.spark.sql.delta.DeltaLog
    # Delta keeps logs by path for an hour: a table made anew at the same place would be taken for the old one.
    delta_log.invalidateCache(spark._jsparkSession, jvm.org.apache.hadoop.fs.Path(location))
    log = delta_log.forTable(spark._jsparkSession, location)
    if version is None:
        return log.update(False, _default(log, "update", 2), _default(log, "update", 3))
    return log.getSnapshotAt(version, *(_default(log, "getSnapshotAt", number) for number in (2, 3, 4)))


def _default(owner: Any, method: str, parameter: int) -> Any:
    """Scala's default argument, as py4j can reach it."""
    return getattr(owner, f"{method}$default${parameter}")()


def delta_error(error: Exception, location: str, version: int | None) -> SyncError:
    """Delta's exception as one of our kinds; its own message names the feature or the file."""
    message = str(error).strip().split("\n\tat ")[0][:1000]
    place: dict[str, Any] = {"path": location, "version": version}
    if "CATALOG_MANAGED" in message:
        return Unsupported(
            f"reader feature catalogManaged is not supported: {message}",
            hint=HINT_CATALOG_MANAGED,
            **place,
        )
    if "UNSUPPORTED_FEATURES" in message or "INVALID_PROTOCOL_VERSION" in message:
        return Unsupported(
            f"Delta cannot read the table: {message}", hint="Use a newer dvsync, or drop the feature.", **place
        )
    if any(
        sign in message
        for sign in ("JsonParse", "JsonEOF", "JsonProcessing", "MALFORMED", "DELTA_LOG_FILE", "TRUNCATED")
    ):
        return CorruptInput(
            f"Delta cannot read the log: {message}", hint="Restore the log, then resume the table.", **place
        )
    return PipelineAway(f"Delta on Spark failed: {message}", hint="dvsync tries again; see Spark's own log.", **place)


def adds_from_batch(batch: pa.RecordBatch) -> Iterator[AddFile]:
    """The rows of `TableState.adds` as actions."""
    for row in batch.to_pylist(maps_as_pydicts="strict"):
        descriptor = None
        if row["dv_storage_type"] is not None:
            descriptor = DeletionVectorDescriptor(
                storage_type=row["dv_storage_type"],
                path_or_inline_dv=row["dv_path"],
                offset=row["dv_offset"],
                size_in_bytes=row["dv_size"],
                cardinality=row["dv_cardinality"],
            )
        yield AddFile(
            path=row["path"],
            partition_values=row["partition_values"] or {},
            size=row["size"],
            data_change=False,
            stats=row.get("stats"),
            deletion_vector=descriptor,
        )


def collect_adds(adds: DataFrame) -> Iterator[AddFile]:
    for batch in adds.toArrow().to_batches():
        yield from adds_from_batch(batch)


def select_paths(spark: SparkSession, state: TableState, paths: Iterable[str]) -> DataFrame:
    """The adds of these paths, spelled as in the log."""
    wanted = spark.createDataFrame(pa.table({"path": pa.array(sorted(paths), pa.string())}))
    return state.adds.join(wanted, "path", "left_semi")
