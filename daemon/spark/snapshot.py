"""Delta's own snapshot of a table; of a catalog-managed one, which Delta refuses by path, as its catalog ratified it.

Delta's classes are called by py4j. Their default arguments are there as methods.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from daemon.delta.log import DeltaLog
from daemon.sources.credentials import VendedStorage
from daemon.sources.ratified import STAGED_FOLDER, RatifiedStorage
from daemon.spark.hadoop import own_settings
from daemon.spark.java_classes import new_object

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark's catalog of this name has no tables. By it Delta finds what the tables' own catalogs have ratified.
RATIFIED = "dvsync"
_registering = threading.Lock()


def open_snapshot(spark: SparkSession, log: DeltaLog, version: int | None = None) -> Any:
    """Return Delta's `Snapshot` at `version`, or the newest one. Raises what py4j raises."""
    jvm: Any = spark._jvm
    path, nothing = jvm.org.apache.hadoop.fs.Path(log.location), jvm.scala.Option.empty()
    table = nothing
    if isinstance(log.storage, RatifiedStorage):
        _pass_on(spark, log, log.storage)
        table = jvm.scala.Option.apply(_table(spark))
    # Settings of the session would be for all tables.
    vended = own_settings(log.location, log.storage.properties) if isinstance(log.storage, VendedStorage) else {}
    delta_logs = getattr(getattr(jvm.org.apache.spark.sql.delta, "DeltaLog$"), "MODULE$")
    # Delta caches logs by path for an hour. Without this, it would return the old log of a recreated table.
    delta_logs.invalidateCache(spark._jsparkSession, path)
    delta_log = delta_logs.forTable(spark._jsparkSession, path, jvm.PythonUtils.toScalaMap(vended), table)
    if version is None:
        return delta_log.update(False, nothing, table)
    return delta_log.getSnapshotAt(version, nothing, table, _default(delta_log, "getSnapshotAt", 4))


def _pass_on(spark: SparkSession, log: DeltaLog, storage: RatifiedStorage) -> None:
    """Pass the catalog's answer on to Delta."""
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    builders = jvm.org.apache.spark.sql.delta.coordinatedcommits.CatalogOwnedCommitCoordinatorProvider
    with _registering:
        if builders.getBuilder(RATIFIED).isEmpty():
            builders.registerBuilder(RATIFIED, new_object(spark, "RatifiedCommits"))
        session = spark._jsparkSession
        # Spark looks for a catalog's class with the loader of the thread, and then keeps the catalog.
        jvm.java.lang.Thread.currentThread().setContextClassLoader(session.sharedState().jarClassLoader())
        spark.conf.set(f"spark.sql.catalog.{RATIFIED}", "dvsync.RatifiedCommits")
        session.sessionState().catalogManager().catalog(RATIFIED)
    hadoop, answer = jvm.org.apache.hadoop.fs, storage.ask()
    files = gateway.new_array(hadoop.FileStatus, len(answer.staged))
    # Delta takes them in the order of their versions.
    for number, (_, staged) in enumerate(sorted(answer.staged.items())):
        place = hadoop.Path(f"{log.folder}/{STAGED_FOLDER}/{staged.file_name}")
        files[number] = hadoop.FileStatus(staged.size_bytes, False, 1, 1, staged.modified_ms, place)
    newest = -1 if answer.newest is None else answer.newest
    builders.getBuilder(RATIFIED).get().answer(hadoop.Path(log.folder), newest, files)


def _table(spark: SparkSession) -> Any:
    """Return a `CatalogTable` of the catalog RATIFIED; what else it says does not matter."""
    jvm: Any = spark._jvm
    catalyst, some = jvm.org.apache.spark.sql.catalyst, jvm.scala.Option.apply
    tables = catalyst.catalog.CatalogTable
    return tables.apply(
        catalyst.TableIdentifier("table", some("schema"), some(RATIFIED)),
        catalyst.catalog.CatalogTableType.EXTERNAL(),
        catalyst.catalog.CatalogStorageFormat.empty(),
        jvm.org.apache.spark.sql.types.StructType(),
        *(_default(tables, "apply", number) for number in range(5, 22)),
    )


def read_rows(spark: SparkSession, snapshot: Any) -> DataFrame:
    """Return the rows of Delta's snapshot, as Delta's own reader reads them."""
    from pyspark.sql import DataFrame  # noqa: PLC0415

    jvm: Any = spark._jvm
    delta_log, nothing = snapshot.deltaLog(), jvm.scala.Option.empty()
    # As in a query of an older version: else Delta would look for a newer one.
    is_time_travel = True
    relation = delta_log.createRelation(
        _default(delta_log, "createRelation", 1), jvm.scala.Option.apply(snapshot), nothing, is_time_travel
    )
    return DataFrame(spark._jsparkSession.baseRelationToDataFrame(relation), spark)


def _default(owner: Any, method: str, parameter: int) -> Any:
    """Return the default value of a Scala parameter."""
    return getattr(owner, f"{method}$default${parameter}")()
