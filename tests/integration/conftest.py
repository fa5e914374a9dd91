"""One Spark session for all integration tests: it writes Delta, reads Iceberg, and is dvsync's own."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from daemon.pipeline.hadoop import HADOOP, with_stores
from daemon.pipeline.jars import ICEBERG_JAR, S3_EXCLUDES, s3_jars
from daemon.pipeline.session import session_conf
from daemon.settings import Settings, SparkSettings
from tests.servers import ObjectStore

ROOT = Path(__file__).parents[2]
# With it Spark's Iceberg catalog and PyIceberg's share one SQLite file: somebody else commits to our table.
SQLITE_JAR = "org.xerial:sqlite-jdbc:3.54.1.0"
CONF = {
    "spark.jars.packages": ",".join((ICEBERG_JAR, SQLITE_JAR, *s3_jars())),
    "spark.jars.excludes": ",".join(S3_EXCLUDES),
    # For branches and tags in SQL.
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.driver.memory": "2g",
    # Tables here are tiny: starting up costs more than running, for Spark's jobs and for the JVM's compiler alike.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.snapshotPartitions": "2",
    # RESTORE must find files that no test would call old, and VACUUM must not.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}
LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
# PySpark leaves the sockets of collected results to the garbage collector.
TOLERATED = r"ignore:unclosed <socket\.socket:ResourceWarning"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"spark", "s3_spark"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("spark")
            item.add_marker(pytest.mark.filterwarnings(TOLERATED))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark with Delta and the Iceberg runtime; ended with its JVM."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = SparkSettings(
        master="local[2]",
        conf={**CONF, "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse"))},
    )
    builder = SparkSession.builder.master(settings.master)
    for key, value in session_conf(settings).items():
        builder = builder.config(key, value)
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


@pytest.fixture(scope="session")
def store() -> Iterator[ObjectStore]:
    made = ObjectStore()
    for bucket in ("lake", "warehouse", "nessie"):
        made.client("s3").create_bucket(Bucket=bucket)
    yield made
    made.close()


@pytest.fixture(scope="session")
def s3_spark(spark: SparkSession, store: ObjectStore) -> SparkSession:
    """The session with what our own mapping makes of the store's properties."""
    hadoop = spark._jsc.hadoopConfiguration()
    for key, value in with_stores(Settings(storage=store.properties)).conf.items():
        if key.startswith(HADOOP):
            hadoop.set(key.removeprefix(HADOOP), value)
    # Iceberg's catalog keeps the settings that it found when a test first read a table by its path.
    spark._jsparkSession.sessionState().catalogManager().reset()
    return spark


@pytest.fixture
def quick_vacuum(spark: SparkSession) -> Iterator[None]:
    """VACUUM lists folders in as many tasks as it may."""
    spark.conf.set(LISTING_TASKS, "1")
    yield
    spark.conf.unset(LISTING_TASKS)


@pytest.fixture(autouse=True)
def sockets_collected(request: pytest.FixtureRequest) -> Iterator[None]:
    """What PySpark left behind goes while its warnings are passed over, and not in a test of something else."""
    yield
    if "spark" in request.fixturenames:
        gc.collect()
