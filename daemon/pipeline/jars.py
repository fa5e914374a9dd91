"""Spark's jars by Maven coordinates, and `python -m daemon.pipeline.jars` to fetch them before they are needed."""

from __future__ import annotations

import sys

from daemon.log import configure_logging
from daemon.settings import LogSettings, SparkSettings

DELTA_JAR = "io.delta:delta-spark_4.1_2.13:4.4.0"
# Not needed by the daemon: the demo and the tests read the Iceberg tables with it.
ICEBERG_JAR = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def main() -> int:
    # Spark resolves its packages while a session starts and keeps them in the Ivy cache of the user.
    from daemon.pipeline.session import SparkPipeline  # noqa: PLC0415 - it imports DELTA_JAR from here

    configure_logging(LogSettings(level="warning"), sys.stderr)
    pipeline = SparkPipeline(SparkSettings(master="local[1]", conf={"spark.jars.packages": ICEBERG_JAR}))
    try:
        with pipeline.session() as spark:
            sys.stdout.write(f"Spark {spark.version} is ready: {DELTA_JAR}, {ICEBERG_JAR}\n")
    finally:
        pipeline.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
