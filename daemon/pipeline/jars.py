"""Spark's jars by Maven coordinates, and `python -m daemon.pipeline.jars` for the demo and the tests."""

from __future__ import annotations

import sys

from daemon.errors import PipelineAway
from daemon.log import configure_logging
from daemon.settings import LogSettings, SparkSettings

DELTA_JAR = "io.delta:delta-spark_4.1_2.13:4.4.0"
# Not needed by the daemon: the demo and the tests read the Iceberg tables with it.
ICEBERG_JAR = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def fetch_jars(settings: SparkSettings) -> str:
    """Start Spark once, which keeps its packages in the user's Ivy cache; says what is there. Raises PipelineAway."""
    from daemon.pipeline.installed import check_pipeline  # noqa: PLC0415 - it imports DELTA_JAR from here
    from daemon.pipeline.session import SparkPipeline, session_conf  # noqa: PLC0415 - so does it

    java = check_pipeline(settings)
    pipeline = SparkPipeline(SparkSettings(master="local[1]", conf=settings.conf))
    try:
        with pipeline.session() as spark:
            jars = session_conf(settings).get("spark.jars.packages", "those of spark.jars")
            return f"Java {java} and Spark {spark.version} are ready: {jars}"
    finally:
        pipeline.close()


def main() -> int:
    configure_logging(LogSettings(level="warning"), sys.stderr)
    try:
        jars = fetch_jars(SparkSettings(conf={"spark.jars.packages": ICEBERG_JAR}))
        sys.stdout.write(f"{jars}\n")
    except PipelineAway as error:
        sys.stderr.write(f"{error}\n{error.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
