"""Keeps the classes that Spark and Delta load, for the JVMs of the tests: each takes a third less of the processor.

`python -m tests.kit.class_archive FILE` makes it; a JVM that cannot use it does without.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.kit import spark_session


def main(archive: Path) -> None:
    """End a JVM that has done a little of everything: it writes the archive as it ends."""
    with tempfile.TemporaryDirectory() as folder:
        spark_session.CONF["spark.driver.extraJavaOptions"] += f" -XX:ArchiveClassesAtExit={archive} -Xlog:disable"
        spark = spark_session.start(Path(folder) / "warehouse", Path(folder), {})
        table = f"delta.`{folder}/t`"
        spark.sql(f"CREATE TABLE {table} (id INT) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
        spark.sql(f"INSERT INTO {table} SELECT id FROM range(0, 9, 1, 1)")
        spark.sql(f"DELETE FROM {table} WHERE id = 3")
        spark.sql(f"SELECT count(*) FROM {table}").toArrow()
        gateway: Any = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
