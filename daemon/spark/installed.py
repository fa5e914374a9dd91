"""Whether what is installed goes together: packages, Java, Spark, and the jar that Delta on Spark is."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from pwd import getpwuid
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from daemon.config.settings import SparkSettings
from daemon.errors import ConfigInvalid, PipelineAway
from daemon.spark.jars import DELTA_JAR
from daemon.spark.java import check_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_GROUP, DELTA_ARTIFACT, DELTA_VERSION = DELTA_JAR.split(":")
# The artifact is named for the line of Spark that it was built for, and for Scala's.
DELTA_NAME, SPARK_LINE, _ = DELTA_ARTIFACT.split("_")
# Spark keeps its packages there unless spark.jars.ivy says otherwise; Java takes the home from the user's entry.
IVY_FOLDER = ".ivy2.5.2"


def check_packages() -> None:
    """Raises ConfigInvalid, naming each installed package that is not of a version which dvsync is built on."""
    wrong = []
    for line in requires("dvsync") or ():
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            wrong.append(f"{wanted.name} is not installed, and dvsync needs {wanted.name}{wanted.specifier}")
            continue
        if not wanted.specifier.contains(found, prereleases=True):
            wrong.append(f"{wanted.name} {found} is installed, and dvsync needs {wanted.name}{wanted.specifier}")
    if wrong:
        raise ConfigInvalid(
            "\n".join(wrong),
            hint="Install dvsync into an environment of its own.",
        )


def check_pipeline(settings: SparkSettings) -> int:
    """Java's major version, when Spark can be started as it is configured.

    Raises PipelineAway for no Java, one that is too old, and a Spark or a Delta of another version. Starts no Spark.
    """
    java = check_java()
    home = os.environ.get("SPARK_HOME")
    if home and not any(Path(home, "jars").glob(f"spark-core_*-{SPARK_LINE}.*.jar")):
        raise PipelineAway(
            f"SPARK_HOME ({home}) is not Spark {SPARK_LINE}, which dvsync is built on",
            hint="Unset SPARK_HOME: PySpark brings the Spark that fits.",
        )
    for package in settings.conf.get("spark.jars.packages", "").split(","):
        group, _, rest = package.strip().partition(":")
        if group == DELTA_GROUP and rest.startswith(f"{DELTA_NAME}_") and package.strip() != DELTA_JAR:
            raise PipelineAway(
                f"spark.jars.packages names {package.strip()}, and dvsync is built on {DELTA_JAR}",
                hint="Leave it out of spark.conf: dvsync adds its own.",
            )
    return java


def check_jars(settings: SparkSettings) -> None:
    """Raises PipelineAway when Delta's jar is not on this machine yet; Spark would fetch it when it is first needed."""
    conf = settings.conf
    if "spark.jars.ivySettings" in conf or "delta-spark" in conf.get("spark.jars", ""):
        return
    folder = Path(conf.get("spark.jars.ivy", Path(getpwuid(os.getuid()).pw_dir, IVY_FOLDER))) / "jars"
    if not (folder / f"{DELTA_GROUP}_{DELTA_ARTIFACT}-{DELTA_VERSION}.jar").is_file():
        raise PipelineAway(
            f"{DELTA_JAR} is not in {folder}; Spark will look for it when it is first needed",
            hint="Run `dvsync setup` once with a network, as the same user.",
        )


def check_session(spark: SparkSession) -> None:
    """Raises PipelineAway when the session that was started runs another Spark or has loaded another Delta."""
    jvm: Any = spark._jvm
    # Scala's package object is a class of that name.
    delta = str(jvm.io.delta.package.VERSION())
    if not spark.version.startswith(f"{SPARK_LINE}.") or delta != DELTA_VERSION:
        raise PipelineAway(
            f"Spark {spark.version} with Delta {delta} was started, dvsync needs {SPARK_LINE} and {DELTA_VERSION}",
            hint="Remove the other delta-spark from spark.jars, or from Spark's own jars.",
        )
