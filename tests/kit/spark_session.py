"""The Spark session of the tests: it writes Delta tables, and reads Delta and Iceberg tables."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from daemon.config.settings import SparkSettings
from daemon.spark.jars import ICEBERG_JAR, S3_EXCLUDES, s3_jars
from daemon.spark.session import session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
# Tables of tests are tiny: starting up costs more than running, for Spark's jobs and for the JVM's compiler alike.
FOR_SMALL_TABLES = {
    "spark.driver.memory": "1g",
    # One compiler alone has room for 48 MB of code. Spark makes more: the JVM would drop methods and compile them anew.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.snapshotPartitions": "2",
}
# With it Spark's Iceberg catalog and PyIceberg's share one SQLite file: somebody else commits to our table.
SQLITE_JAR = "org.xerial:sqlite-jdbc:3.54.1.0"
CONF = {
    **FOR_SMALL_TABLES,
    "spark.jars.excludes": ",".join(S3_EXCLUDES),
    # For branches and tags in SQL.
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.driver.memory": "2g",
    # Delta computes a table's state after each commit: each task of it costs more than all actions of a test's log.
    "spark.databricks.delta.snapshotPartitions": "1",
    # RESTORE must find files that no test would call old, and VACUUM must not.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}


def conf() -> dict[str, str]:
    """CONF with the packages, of which Spark's tasks, which may import this module, know nothing."""
    return {**CONF, "spark.jars.packages": ",".join((ICEBERG_JAR, SQLITE_JAR, *s3_jars()))}


@contextmanager
def spark_session(warehouse: Path, run_folder: Path) -> Iterator[SparkSession]:
    """Spark with Delta and the Iceberg runtime; ended with its JVM."""
    from pyspark import SparkContext  # noqa: PLC0415 - replayed tests do without it
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = SparkSettings(master="local[2]", conf={**conf(), "spark.sql.warehouse.dir": str(warehouse)})
    builder = SparkSession.builder.master(settings.master)
    for key, value in session_conf(settings).items():
        builder = builder.config(key, value)
    # The processes of one run share Ivy's folder, which two resolvers at once leave with jars cut short.
    with FileLock(run_folder / "jars.lock"):
        session = builder.getOrCreate()
    yield session
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        session.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None
        gc.collect()
