"""One Spark session that writes Delta and reads Iceberg, and one daemon that follows, for all integration tests."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from pyspark import SparkContext
from pyspark.sql import SparkSession

from daemon.config.settings import Settings, SparkSettings
from daemon.spark.hadoop import HADOOP, with_stores
from daemon.spark.jars import ICEBERG_JAR, S3_EXCLUDES, s3_jars
from daemon.spark.session import session_conf
from tests.kit.readers import READS
from tests.kit.servers import ObjectStore
from tests.kit.service import FOR_SMALL_TABLES, OUTCOMES, Service

ROOT = Path(__file__).parents[2]
# With it Spark's Iceberg catalog and PyIceberg's share one SQLite file: somebody else commits to our table.
SQLITE_JAR = "org.xerial:sqlite-jdbc:3.54.1.0"
CONF = {
    **FOR_SMALL_TABLES,
    "spark.jars.packages": ",".join((ICEBERG_JAR, SQLITE_JAR, *s3_jars())),
    "spark.jars.excludes": ",".join(S3_EXCLUDES),
    # For branches and tags in SQL.
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.driver.memory": "2g",
    # Delta computes a table's state after each commit: each task of it costs more than all actions of a test's log.
    "spark.databricks.delta.snapshotPartitions": "1",
    # RESTORE must find files that no test would call old, and VACUUM must not.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}
LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
# PySpark leaves the sockets of collected results to the garbage collector.
TOLERATED = r"ignore:unclosed <socket\.socket:ResourceWarning"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"spark", "s3_spark", "service"} & set(getattr(item, "fixturenames", ())):
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
    # The workers of one run share Ivy's folder, which two resolvers at once leave with jars cut short.
    with FileLock(tmp_path_factory.getbasetemp().parent / "jars.lock"):
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
def daemon_service(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One `dvsync run` for every test of this process, with a Spark session and a JVM of its own."""
    made = Service(spark, tmp_path_factory.mktemp("service"))
    yield made
    made.stop()


@pytest.fixture
def service(daemon_service: Service, record_property: Callable[[str, object], None]) -> Iterator[Service]:
    """The daemon, for the tables of one test. It fails the test that makes it meet a bug of its own."""
    if not daemon_service.is_running:
        daemon_service.start()  # The test before failed while it had ended it.
    daemon_service.daemon.lines.clear()
    read_before = Counter(READS)
    yield daemon_service
    lines = daemon_service.daemon.lines
    shown = {(line["table"], line["to_version"]) for line in lines if line["event"] in OUTCOMES}
    record_property("followed", [len(daemon_service.tables), len(shown), dict(READS - read_before)])
    daemon_service.forget()
    assert not [line for line in lines if line.get("kind") == "InternalError"]


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
    if {"spark", "service"} & set(request.fixturenames):
        gc.collect()
