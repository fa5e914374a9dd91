"""What Spark needs: jars as Maven coordinates, Java, PySpark; and whether it is there in the right version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from pwd import getpwuid
from typing import TYPE_CHECKING, Any

from daemon.config.settings import Settings, SparkSettings
from daemon.errors import PipelineAway

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_JAR = "io.delta:delta-spark_4.1_2.13:4.4.0"
DELTA_GROUP, DELTA_ARTIFACT, DELTA_VERSION = DELTA_JAR.split(":")
# The artifact's name contains the minor version of Spark and the version of Scala that it was built for.
DELTA_NAME, SPARK_LINE, _ = DELTA_ARTIFACT.split("_")

# The demo, `dvsync verify` and the tests read the Iceberg tables with this jar. Following needs no such reader.
ICEBERG_JAR = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"

# hadoop-aws depends on `bundle`, which has all AWS clients in 600 MB. S3A needs only three modules, 14 MB in all: `s3`,
# the transfer manager for copies, and `sts` for assumed roles and web identities.
AWS_SDK = "2.29.52"  # the version that hadoop-aws 3.4.2 names
AWS_MODULES = ("s3", "s3-transfer-manager", "sts")

# `bundle`: see above. Netty: Spark contains a newer version.
S3_EXCLUDES = ("software.amazon.awssdk:bundle", "io.netty:*")

JAR_LISTS = ("spark.jars", "spark.jars.packages")
# Spark stores its packages in this folder of the home, unless spark.jars.ivy is set. Java reads the home from passwd.
IVY_FOLDER = ".ivy2.5.2"
JAVA_MIN = 17
JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
JAVA_ANSWER_MAX_S = 20.0


def s3_jars() -> tuple[str, ...]:
    """Return the packages that Spark needs for S3 in addition to its own jars."""
    return (
        f"org.apache.hadoop:hadoop-aws:{hadoop_version()}",
        *(f"software.amazon.awssdk:{module}:{AWS_SDK}" for module in AWS_MODULES),
    )


def hadoop_version() -> str:
    """Return the version of the Hadoop that PySpark contains. All Hadoop modules must have the same version."""
    package = find_spec("pyspark")
    assert package is not None and package.origin is not None, "the caller has looked"
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
    if find_spec("pyspark") is None:
        return settings  # It would say which version they must have, and no session starts without it.
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


def check_pipeline(settings: SparkSettings) -> int:
    """Check, without starting Spark, that it can be started as configured. Returns Java's major version.

    Raises PipelineAway if PySpark or Java is missing or too old, or if Spark or Delta have another version.
    """
    try:
        pyspark = version("pyspark")
    except PackageNotFoundError:
        raise PipelineAway(
            "PySpark is not installed, and Spark is needed",
            hint="Install dvsync with its extra `spark` and Java 17, or take the image dvsync, not dvsync-slim. "
            "Without Spark, large tables are followed with `engine: local`, and `dvsync verify --metadata` works.",
        ) from None
    if not pyspark.startswith(f"{SPARK_LINE}."):
        raise PipelineAway(
            f"dvsync needs pyspark {SPARK_LINE}, and this is installed: {pyspark}",
            hint="Install dvsync into a virtual environment of its own.",
        )
    java = check_java()
    home = os.environ.get("SPARK_HOME")
    if home and not any(Path(home, "jars").glob(f"spark-core_*-{SPARK_LINE}.*.jar")):
        raise PipelineAway(
            f"SPARK_HOME ({home}) is not Spark {SPARK_LINE}, which dvsync needs",
            hint="Unset SPARK_HOME. PySpark contains the right Spark.",
        )
    for package in settings.conf.get("spark.jars.packages", "").split(","):
        group, _, rest = package.strip().partition(":")
        if group == DELTA_GROUP and rest.startswith(f"{DELTA_NAME}_") and package.strip() != DELTA_JAR:
            raise PipelineAway(
                f"spark.jars.packages names {package.strip()}, but dvsync needs {DELTA_JAR}",
                hint="Remove it from spark.conf. dvsync adds the right jar by itself.",
            )
    return java


def check_java() -> int:
    """Return the major version of the Java that Spark would start. Raises PipelineAway if it is missing or too old.

    Spark's own messages about a wrong Java name classes, not the cause.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    place = f"JAVA_HOME ({home})" if home else "PATH"
    if java is None or not os.access(java, os.X_OK):
        raise PipelineAway(
            f"there is no Java on {place}, and Spark needs one",
            hint=f"Install Java {JAVA_MIN} (Debian: openjdk-17-jre-headless), or set JAVA_HOME.",
        )
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWER_MAX_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PipelineAway(
            f"{java} does not run: {error}", hint=f"Install Java {JAVA_MIN}, or set JAVA_HOME."
        ) from error
    found = JAVA_VERSION.search(answer.stderr + answer.stdout)
    major = int(found[1]) if found else 0
    if major < JAVA_MIN:
        raise PipelineAway(
            f"{java} is Java {major or 'of an unknown version'}, and Spark needs {JAVA_MIN} or newer",
            hint=f"Install Java {JAVA_MIN} and set JAVA_HOME to it.",
        )
    return major


def check_jars(settings: SparkSettings) -> None:
    """Raises PipelineAway if Delta's jar is not on this machine yet. Spark would download it at its first start."""
    conf = settings.conf
    if "spark.jars.ivySettings" in conf or "delta-spark" in conf.get("spark.jars", ""):
        return
    folder = ivy_folder(conf) / "jars"
    if not (folder / f"{DELTA_GROUP}_{DELTA_ARTIFACT}-{DELTA_VERSION}.jar").is_file():
        raise PipelineAway(
            f"{DELTA_JAR} is not in {folder}; Spark will try to download it at its first start",
            hint="Run `dvsync setup` once with network access, as the same user.",
        )


def ivy_folder(conf: Mapping[str, str]) -> Path:
    return Path(conf.get("spark.jars.ivy", Path(getpwuid(os.getuid()).pw_dir, IVY_FOLDER)))


def check_session(spark: SparkSession) -> None:
    """Raises PipelineAway if the started session has another version of Spark or Delta."""
    jvm: Any = spark._jvm
    # Scala compiles a package object to a class named `package`.
    delta = str(jvm.io.delta.package.VERSION())
    if not spark.version.startswith(f"{SPARK_LINE}.") or delta != DELTA_VERSION:
        raise PipelineAway(
            f"Spark {spark.version} with Delta {delta} was started, but dvsync needs {SPARK_LINE} and {DELTA_VERSION}",
            hint="Remove the other delta-spark jar from spark.jars or from Spark's own jars.",
        )
