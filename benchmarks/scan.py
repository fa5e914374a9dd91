"""dvsync's scan of a Delta table against Delta's own reader: the same queries, in turns, in one session.

Three tables of the same rows: without deletion vectors, with `--deleted` percent of the rows of every file deleted at
random, and with such deletions in one file only. A time is that of planning and running a query, from a frame that is
made again; the ratio is of the medians. Delta can answer `count(*)` from its log alone; that is turned off.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import conditions, parser, print_report
from daemon.config.settings import SparkSettings
from daemon.spark.scan import read_delta
from daemon.spark.session import SparkPipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TARGET, TARGET_WITHOUT = 1.3, 1.05
CONF = {
    "spark.driver.memory": "3g",
    # Delta answers a count from its log.
    "spark.databricks.delta.optimizeMetadataQuery.enabled": "false",
}
COLUMNS = "id", "CAST(hash(id) % 1000 AS INT) AS n", "id * 1.5D AS amount", "concat('name ', id % 10000) AS name"
FILES = 4
QUERIES = {
    "count(*)": ("true", "count(*)"),
    "one column": ("true", "sum(id)"),
    "all columns": ("true", "sum(id), sum(n), sum(amount), max(name)"),
    "filter, 0.1 %": ("n = 5", "sum(amount), max(name)"),
}


@dataclass(frozen=True)
class Result:
    table: str
    query: str
    delta_ms: float
    scan_ms: float
    ratio: float
    target: float


def make_tables(spark: SparkSession, folder: Path, rows: int, deleted: int) -> dict[str, tuple[Path, float]]:
    places = {
        "no DVs": folder / "without",
        f"{deleted} % deleted": folder / "all",
        "DV in 1 of 4 files": folder / "one",
    }
    for place, where in zip(places.values(), (None, "true", f"id < {rows // FILES}"), strict=True):
        frame = spark.range(0, rows, 1, FILES).selectExpr(*COLUMNS)
        frame.write.format("delta").option("delta.enableDeletionVectors", "true").save(str(place))
        if where:
            spark.sql(f"DELETE FROM delta.`{place}` WHERE {where} AND pmod(hash(id, 7), 100) < {deleted}")
    targets = (TARGET_WITHOUT, TARGET, TARGET)
    return {name: (place, target) for (name, place), target in zip(places.items(), targets, strict=True)}


def measure(spark: SparkSession, name: str, place: Path, target: float, repeats: int) -> list[Result]:
    readers: dict[str, Callable[[], DataFrame]] = {
        "delta": lambda: spark.read.format("delta").load(str(place)),
        "scan": lambda: read_delta(spark, str(place)),
    }
    results = []
    for query, (where, columns) in QUERIES.items():
        times, answers = defaultdict(list), set()
        # The first round is not counted: Spark compiles the query.
        for _ in range(repeats + 1):
            for reader, read in readers.items():
                frame = read().where(where).selectExpr(*columns.split(", "))
                start = time.perf_counter()
                answers.update(frame.collect())
                times[reader].append((time.perf_counter() - start) * 1000)
        assert len(answers) == 1, f"{query}: {answers}"
        delta_ms, scan_ms = (statistics.median(times[reader][1:]) for reader in readers)
        results.append(Result(name, query, delta_ms, scan_ms, scan_ms / delta_ms, target))
    return results


def table_lines(results: list[Result]) -> list[str]:
    lines = [f"{'table':20}{'query':16}{'Delta ms':>10}{'scan ms':>10}{'ratio':>7}{'target':>8}"]
    for r in results:
        times = f"{r.delta_ms:10.0f}{r.scan_ms:10.0f}{r.ratio:7.2f}{r.target:8.2f}"
        lines.append(f"{r.table:20}{r.query:16}{times}{'' if r.ratio <= r.target else '  above'}")
    return lines


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=20_000_000)
    options.add_argument("--deleted", type=int, default=30, help="percent (%(default)s)")
    options.add_argument("--repeats", type=int, default=5)
    arguments = options.parse_args()
    before = conditions(arguments.folder)
    pipeline = SparkPipeline(SparkSettings(master="local[2]", conf=CONF))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name, pipeline.session() as spark:
        tables = make_tables(spark, Path(name), arguments.rows, arguments.deleted)
        results = [
            result
            for table, (place, target) in tables.items()
            for result in measure(spark, table, place, target, arguments.repeats)
        ]
    pipeline.close()
    print_report(arguments, before, {"results": [asdict(result) for result in results]}, table_lines(results))


if __name__ == "__main__":
    main()
