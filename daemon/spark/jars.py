"""The jars that Spark needs, as Maven coordinates."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from daemon.config.settings import Settings, SparkSettings

DELTA_JAR = "io.delta:delta-spark_4.1_2.13:4.4.0"

# The demo, `dvsync verify` and the tests read the Iceberg tables with this jar. Following needs no such reader.
ICEBERG_JAR = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"

# hadoop-aws depends on `bundle`, which has all AWS clients in 600 MB. S3A needs only three modules, 14 MB in all: `s3`,
# the transfer manager for copies, and `sts` for assumed roles and web identities.
AWS_SDK = "2.29.52"  # the version that hadoop-aws 3.4.2 names
AWS_MODULES = ("s3", "s3-transfer-manager", "sts")

# `bundle`: see above. Netty: Spark contains a newer version.
S3_EXCLUDES = ("software.amazon.awssdk:bundle", "io.netty:*")


JAR_LISTS = ("spark.jars", "spark.jars.packages")


def s3_jars() -> tuple[str, ...]:
    """Return the packages that Spark needs for S3 in addition to its own jars."""
    return (
        f"org.apache.hadoop:hadoop-aws:{hadoop_version()}",
        *(f"software.amazon.awssdk:{module}:{AWS_SDK}" for module in AWS_MODULES),
    )


def hadoop_version() -> str:
    """Return the version of the Hadoop that PySpark contains. All Hadoop modules must have the same version."""
    package = find_spec("pyspark")
    assert package is not None and package.origin is not None, "PySpark is one of our dependencies"
    names = [jar.name for jar in (Path(package.origin).parent / "jars").glob("hadoop-client-api-*.jar")]
    versions = [found[1] for name in names if (found := re.fullmatch(r"hadoop-client-api-([\d.]+)\.jar", name))]
    assert versions, "PySpark ships Hadoop's client"
    return versions[0]


def joined(given: str | None, *ours: str) -> str:
    """Add those of `ours` that are missing to a comma-separated list, which is Spark's form of lists."""
    there = [item for item in (given or "").split(",") if item]
    return ",".join([*there, *(item for item in ours if item not in there)])


def with_s3_jars(settings: SparkSettings) -> SparkSettings:
    """Add the packages for S3 to the settings, and exclude their dependencies that are not needed."""
    return _with(_with(settings, "spark.jars.packages", *s3_jars()), "spark.jars.excludes", *S3_EXCLUDES)


def with_iceberg_jar(settings: SparkSettings) -> SparkSettings:
    """Add Spark's Iceberg reader to the settings."""
    is_there = any("iceberg-spark-runtime" in settings.conf.get(key, "") for key in JAR_LISTS)
    return settings if is_there else _with(settings, "spark.jars.packages", ICEBERG_JAR)


def _with(settings: SparkSettings, key: str, *items: str) -> SparkSettings:
    conf = settings.conf
    return settings.model_copy(update={"conf": {**conf, key: joined(conf.get(key), *items)}})


def with_readers(settings: Settings) -> Settings:
    """Add Spark's Iceberg reader if the daemon verifies a table with it."""
    if not any(table.verify.needs_spark for table in settings.tables):
        return settings
    return settings.model_copy(update={"spark": with_iceberg_jar(settings.spark)})
