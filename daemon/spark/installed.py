"""Checks the versions of what is installed: PySpark, Java, Spark and Delta's jar."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pwd import getpwuid
from typing import TYPE_CHECKING, Any

from daemon.config.settings import SparkSettings
from daemon.errors import PipelineAway
from daemon.spark.jars import DELTA_JAR

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_GROUP, DELTA_ARTIFACT, DELTA_VERSION = DELTA_JAR.split(":")
# The artifact's name contains the minor version of Spark and the version of Scala that it was built for.
DELTA_NAME, SPARK_LINE, _ = DELTA_ARTIFACT.split("_")
# Spark stores its packages in this folder of the home, unless spark.jars.ivy is set. Java reads the home from passwd.
IVY_FOLDER = ".ivy2.5.2"
JAVA_MIN = 17
JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
JAVA_ANSWER_MAX_S = 20.0


def check_pipeline(settings: SparkSettings) -> int:
    """Check, without starting Spark, that it can be started as configured. Returns Java's major version.

    Raises PipelineAway if PySpark or Java is missing or too old, or if Spark or Delta have another version.
    """
    try:
        pyspark = version("pyspark")
    except PackageNotFoundError:
        pyspark = "none"
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
    folder = Path(conf.get("spark.jars.ivy", Path(getpwuid(os.getuid()).pw_dir, IVY_FOLDER))) / "jars"
    if not (folder / f"{DELTA_GROUP}_{DELTA_ARTIFACT}-{DELTA_VERSION}.jar").is_file():
        raise PipelineAway(
            f"{DELTA_JAR} is not in {folder}; Spark will try to download it at its first start",
            hint="Run `dvsync setup` once with network access, as the same user.",
        )


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
