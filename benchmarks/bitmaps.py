"""Positions of rows into one bitmap a data file, on Spark, beside Spark's own count of the same rows by file.

`--positions` rows of (file, position) in `--files` files, once in the order in which a scan of a table yields them, and
once in random order with a part of the positions only. Both answers are collected. The ratio is of the medians. Memory
is the peak of the resident set of the JVM, and of all Python workers together.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.memory import Memory
from benchmarks.report import conditions, parser, print_report
from daemon.config.settings import SparkSettings
from daemon.spark.answers import collect
from daemon.spark.bitmaps import aggregate_positions
from daemon.spark.session import SparkPipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATH = "'file:///data/lake/orders/day=2026-01-01/part-', lpad(cast({} as string), 6, '0'), '-c000.snappy.parquet'"
ORDERS = {
    "as scanned": ("id div {rows}", "id % {rows}"),
    "random": ("pmod(hash(id), {files})", "pmod(xxhash64(id), 4 * {rows})"),
}


@dataclass(frozen=True)
class Result:
    order: str
    positions: int
    files: int
    count_s: float
    bitmaps_s: float
    ratio: float
    jvm_mb: float
    workers_mb: float


def timed(function: Callable[[], pa.Table]) -> tuple[float, pa.Table]:
    start_s = time.perf_counter()
    answer = function()
    return time.perf_counter() - start_s, answer


def measure(spark: SparkSession, order: str, positions: int, files: int, repeats: int) -> Result:
    file, position = (each.format(rows=positions // files, files=files) for each in ORDERS[order])
    frame = spark.range(0, positions, 1, 8).selectExpr(
        f"concat({PATH.format(file)}) AS file", f"{position} AS position"
    )
    expected = frame.groupBy("file").agg({"position": "count"})
    counts, times = [], []
    memory = Memory()
    with memory.watched():
        for _ in range(repeats):
            count_s, counted = timed(lambda: collect(expected))
            bitmaps_s, found = timed(lambda: collect(aggregate_positions(frame, file="file", position="position")))
            assert found.num_rows == counted.num_rows == files
            counts.append(count_s)
            times.append(bitmaps_s)
    if order == "as scanned":
        assert sum(found["cardinality"].to_pylist()) == positions
    count_s, bitmaps_s = statistics.median(counts), statistics.median(times)
    ratio = bitmaps_s / count_s
    return Result(order, positions, files, count_s, bitmaps_s, ratio, memory.jvm_peak / 1e6, memory.workers_peak / 1e6)


def table_lines(results: list[Result]) -> list[str]:
    heads = f"{'count s':>9}{'bitmaps s':>11}{'ratio':>7}{'JVM MB':>8}{'workers MB':>12}"
    lines = [f"{'order':12}{'positions':>13}{'files':>7}{heads}"]
    for r in results:
        times = f"{r.count_s:9.1f}{r.bitmaps_s:11.1f}{r.ratio:7.2f}"
        lines.append(f"{r.order:12}{r.positions:13,}{r.files:7,}{times}{r.jvm_mb:8.0f}{r.workers_mb:12.0f}")
    return lines


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--positions", type=int, default=100_000_000)
    options.add_argument("--files", type=int, default=1_000)
    options.add_argument("--repeats", type=int, default=3)
    arguments = options.parse_args()
    before = conditions(arguments.folder)
    pipeline = SparkPipeline(SparkSettings(master="local[2]"))
    with pipeline.session() as spark:
        results = [
            measure(spark, order, arguments.positions // part, arguments.files, arguments.repeats)
            for order, part in zip(ORDERS, (1, 10), strict=True)
        ]
    pipeline.close()
    print_report(arguments, before, {"results": [asdict(result) for result in results]}, table_lines(results))


if __name__ == "__main__":
    main()
