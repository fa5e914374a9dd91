"""A first sync with a real Spark session: `python -m tests.kit.kill_first_sync FOLDER kill|follow`.

`kill` dies right after the Iceberg commit landed; `follow` is the new start, which must find what landed.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from daemon.config.settings import SparkSettings
from tests.kit.checks import check, duckdb_rows
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.spark_session import FOR_SMALL_TABLES

SPARK = SparkSettings(master="local[1]", conf=FOR_SMALL_TABLES)


def main() -> None:
    folder, verb = Path(sys.argv[1]), sys.argv[2]
    table: HandmadeTable = pickle.loads((folder / "table").read_bytes())
    bench = Bench(folder / "dvsync", table.location, spark_settings=SPARK)
    if verb == "kill":
        die_after_the_commit()
    assert bench.follower.sync().outcome == "rebuilt"
    check(bench, table, [table.version])
    assert duckdb_rows(bench.iceberg()) == table.live_rows()
    bench.close()
    bench.spark.close()


def die_after_the_commit() -> None:
    inner = SqlCatalog.commit_table

    def outer(*arguments: Any) -> None:
        inner(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    SqlCatalog.commit_table = outer  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    main()
