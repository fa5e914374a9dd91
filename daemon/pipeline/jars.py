"""Spark's jars by Maven coordinates, and `python -m daemon.pipeline.jars` to fetch them before they are needed."""

from __future__ import annotations

import sys

from daemon.errors import PipelineAway
from daemon.log import configure_logging
from daemon.pipeline.java import check_java
from daemon.settings import LogSettings, SparkSettings

DELTA_JAR = "io.delta:delta-spark_4.1_2.13:4.4.0"
# Not needed by the daemon: the demo and the tests read the Iceberg tables with it.
ICEBERG_JAR = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def fetch_jars() -> str:
    """Start Spark once, which keeps its packages in the user's Ivy cache; says what is there. Raises PipelineAway."""
    from daemon.pipeline.session import SparkPipeline  # noqa: PLC0415 - it imports DELTA_JAR from here

    java = check_java()
    pipeline = SparkPipeline(SparkSettings(master="local[1]", conf={"spark.jars.packages": ICEBERG_JAR}))
    try:
        with pipeline.session() as spark:
            return f"Java {java} and Spark {spark.version} are ready: {DELTA_JAR}, {ICEBERG_JAR}"
    finally:
        pipeline.close()


def main() -> int:
    configure_logging(LogSettings(level="warning"), sys.stderr)
    try:
        sys.stdout.write(f"{fetch_jars()}\n")
    except PipelineAway as error:
        sys.stderr.write(f"{error}\n{error.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
