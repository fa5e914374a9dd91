"""The same Delta history followed with format version 2 and with 3, commit by commit in turns.

Each commit deletes one more row in each of `--touched` of 50 data files. After some numbers of commits: the median time
and CPU time of a commit since the last line, all bytes and files below the Iceberg table's folder for a commit, and the
time in which readers scan the table, the best of three. Without compaction, which version 2 needs more than version 3.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.commit_latency import delete_one_row_each, make_table
from benchmarks.report import conditions, parser, percentile, print_report
from daemon.config.settings import SparkSettings
from daemon.spark.jars import ICEBERG_JAR
from daemon.spark.session import SparkPipeline
from tests.kit.handmade import Bench
from tests.kit.readers import READERS

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import SparkSession

SCANS = ("Spark", "PyIceberg", "DuckDB", "Polars native")


@dataclass(frozen=True)
class Result:
    """After `commits`: medians in milliseconds, and means for a commit since the last result."""

    format_version: int
    commits: int
    p50_ms: float
    cpu_ms: float
    files: float
    size_bytes: float
    scan_ms: dict[str, float]


@dataclass
class Follower:
    """One of the two Iceberg tables."""

    bench: Bench
    times_ms: list[float]
    cpu_ms: list[float]
    written: tuple[int, int] = (0, 0)

    def follow(self) -> None:
        started_s, cpu_s = time.perf_counter(), time.process_time()
        self.bench.sync()
        self.times_ms.append((time.perf_counter() - started_s) * 1000)
        self.cpu_ms.append((time.process_time() - cpu_s) * 1000)

    def result(self, format_version: int, commits: int, spark: SparkSession) -> Result:
        iceberg = self.bench.iceberg()
        sizes = [file.stat().st_size for file in (self.bench.folder / "warehouse").rglob("*") if file.is_file()]
        before, self.written = self.written, (len(sizes), sum(sizes))
        since = len(self.times_ms)
        found = Result(
            format_version,
            commits,
            percentile(self.times_ms, 50),
            percentile(self.cpu_ms, 50),
            (self.written[0] - before[0]) / since,
            (self.written[1] - before[1]) / since,
            {name: min(_seconds(name, iceberg, spark) for _ in range(3)) * 1000 for name in SCANS},
        )
        self.times_ms, self.cpu_ms = [], []
        return found


def _seconds(reader: str, iceberg: IcebergTable, spark: SparkSession) -> float:
    started_s = time.perf_counter()
    READERS[reader](iceberg, spark)
    return time.perf_counter() - started_s


def measure(folder: Path, spark: SparkSession, *, touched: int, ends: list[int]) -> list[Result]:
    results = []
    with TemporaryDirectory(dir=folder) as name:
        table, of_two = make_table(Path(name))
        of_three = Bench(Path(name) / "iceberg-3", table.location, table_options={"format_version": 3})
        followers = {2: Follower(of_two, [], []), 3: Follower(of_three, [], [])}
        for follower in followers.values():
            follower.bench.sync()
        paths = list(table.live)
        for number in range(ends[-1]):
            chosen = [paths[(number * touched + index) % len(paths)] for index in range(touched)]
            delete_one_row_each(table, chosen, number)
            for version in (2, 3) if number % 2 else (3, 2):
                followers[version].follow()
            if number + 1 in ends:
                results += [follower.result(version, number + 1, spark) for version, follower in followers.items()]
        for follower in followers.values():
            assert follower.bench.iceberg().scan().to_arrow().num_rows == len(table.live_rows())
            follower.bench.close()
    return results


def table_lines(results: list[Result]) -> list[str]:
    lines = [f"{'commits':>8}{'version':>9}{'p50 ms':>8}{'cpu ms':>8}{'files':>7}{'kB':>8}"]
    lines[0] += "".join(f"{name:>15}" for name in SCANS)
    for r in results:
        scans = "".join(f"{r.scan_ms[name]:12.0f} ms" for name in SCANS)
        sizes = f"{r.files:7.1f}{r.size_bytes / 1000:8.1f}"
        lines.append(f"{r.commits:8}{r.format_version:9}{r.p50_ms:8.1f}{r.cpu_ms:8.1f}{sizes}{scans}")
    return lines


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--touched", type=int, default=5, help="data files of each commit (%(default)s)")
    options.add_argument("--ends", type=int, nargs="+", default=[1, 100, 1000], help="results after so many commits")
    arguments = options.parse_args()
    before = conditions(arguments.folder)
    pipeline = SparkPipeline(SparkSettings(conf={"spark.jars.packages": ICEBERG_JAR}))
    with pipeline.session() as spark:
        results = measure(arguments.folder, spark, touched=arguments.touched, ends=sorted(arguments.ends))
    pipeline.close()
    print_report(arguments, before, {"results": [asdict(result) for result in results]}, table_lines(results))


if __name__ == "__main__":
    main()
