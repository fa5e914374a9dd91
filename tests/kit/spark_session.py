"""The Spark session of the tests: it writes Delta tables, and reads Delta and Iceberg tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from filelock import FileLock

from daemon.config.settings import SparkSettings
from daemon.spark.jars import ICEBERG_JAR, S3_EXCLUDES, s3_jars
from daemon.spark.resolved_jars import remember_resolved_jars, with_resolved_jars
from daemon.spark.session import FOR_TINY_TABLES, session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
# Of `make test`, by `class_archive.py`.
CLASSES = ROOT / ".venv" / "stamps" / "spark.jsa"
SHORT_LIVED = FOR_TINY_TABLES["spark.driver.extraJavaOptions"]
if CLASSES.exists():
    SHORT_LIVED += f" -XX:SharedArchiveFile={CLASSES}"
FOR_SMALL_TABLES = {
    **FOR_TINY_TABLES,
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.sql.adaptive.enabled": "false",
}
# Unless histories are recorded, in which a table would have other files.
ONE_TASK = dict.fromkeys(
    ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism", "spark.sql.shuffle.partitions"), "1"
)
# With it Spark's Iceberg catalog and PyIceberg's share one SQLite file: somebody else commits to our table.
SQLITE_JAR = "org.xerial:sqlite-jdbc:3.54.1.0"
CONF = {
    **FOR_SMALL_TABLES,
    "spark.jars.excludes": ",".join(S3_EXCLUDES),
    # For branches and tags in SQL.
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.driver.memory": "3g",
    # Delta computes a table's state after each commit: each task of it costs more than all actions of a test's log.
    "spark.databricks.delta.snapshotPartitions": "1",
    # RESTORE must find files that no test would call old, and VACUUM must not.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}


def conf() -> dict[str, str]:
    """CONF with the packages, of which Spark's tasks, which may import this module, know nothing."""
    return {**CONF, "spark.jars.packages": ",".join((ICEBERG_JAR, SQLITE_JAR, *s3_jars()))}


def start(warehouse: Path, run_folder: Path, more: Mapping[str, str]) -> SparkSession:
    """Spark with Delta and the Iceberg runtime, in a new JVM. `more` goes before CONF."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - replayed tests do without it

    with_our_modules()
    settings = SparkSettings(master="local[2]", conf={**conf(), **more, "spark.sql.warehouse.dir": str(warehouse)})
    builder = SparkSession.builder.master(settings.master)
    # The processes of one run share Ivy's folder, which two resolvers at once leave with jars cut short.
    with FileLock(run_folder / "jars.lock"):
        chosen = with_resolved_jars(session_conf(settings))
        for key, value in chosen.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        remember_resolved_jars(chosen, session)
        return session


def connect(gateway: Mapping[str, str]) -> SparkSession:
    """A session in this process, of the JVM of another one, to which PySpark's variables in `gateway` lead."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415

    with_our_modules()
    with patch.dict(os.environ, gateway):
        SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    theirs = jvm.org.apache.spark.sql.SparkSession.getDefaultSession().get()
    java_context = jvm.org.apache.spark.api.java.JavaSparkContext(theirs.sparkContext())
    context = SparkContext(
        gateway=SparkContext._gateway, jsc=java_context, conf=SparkConf(_jconf=java_context.getConf())
    )
    return SparkSession(context, theirs.newSession())


def on_catalog(session: SparkSession, folder: Path, properties: Mapping[str, str] | None = None) -> SparkSession:
    """Spark's Iceberg catalog `local` on the SQL catalog of dvsync in `folder`, or with these properties: somebody
    else's session.
    """
    # A session of its own: catalogs are known to Spark by their names, which every test uses anew.
    own = session.newSession()
    sql = {"type": "jdbc", "uri": f"jdbc:sqlite:{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    own.conf.set("spark.sql.catalog.local", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in {"cache-enabled": "false", **(properties or sql)}.items():
        own.conf.set(f"spark.sql.catalog.local.{key}", value)
    # Iceberg's own statements look into the active session for the catalog.
    jvm: Any = session._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(own._jsparkSession)
    return own


def with_our_modules() -> None:
    """Python processes of Spark's tasks import what this one does."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
