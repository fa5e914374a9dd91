"""`dvsync setup`: lets Spark download its jars before they are needed.

`python -m daemon.spark.setup` does the same for the demo and the tests.
"""

from __future__ import annotations

import sys

from daemon.config.settings import LogSettings, SparkSettings
from daemon.errors import PipelineAway
from daemon.observe.log import configure_logging
from daemon.spark.jars import ICEBERG_JAR, check_pipeline, with_s3_jars
from daemon.spark.session import SparkPipeline, session_conf


def fetch_jars(settings: SparkSettings) -> str:
    """Start Spark once, so that it stores its packages in the user's Ivy cache. Returns a message with the versions.

    Only the settings about packages and repositories are used; Spark runs locally. Raises PipelineAway.
    """
    java = check_pipeline(settings)
    conf = {key: value for key, value in settings.conf.items() if key.startswith("spark.jars")}
    pipeline = SparkPipeline(SparkSettings(master="local[1]", conf=conf))
    try:
        with pipeline.session() as spark:
            jars = session_conf(settings).get("spark.jars.packages", "the jars in spark.jars").replace(",", ", ")
            return f"Java {java} and Spark {spark.version} are ready: {jars}"
    finally:
        pipeline.close()


def main() -> int:
    configure_logging(LogSettings(level="warning"), sys.stderr)
    try:
        jars = fetch_jars(with_s3_jars(SparkSettings(conf={"spark.jars.packages": ICEBERG_JAR})))
        sys.stdout.write(f"{jars}\n")
    except PipelineAway as error:
        sys.stderr.write(f"{error}\n{error.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
