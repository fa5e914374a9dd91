"""The scan of a data file that many delete files serve, before their compaction and after it.

One data file; each Delta commit deletes some thousand rows more, which makes one delete file. The table without
deletions, with all delete files and compacted is scanned in turns in one process, each by the metadata file that shows
it, so that what one scan leaves in caches and compilers serves the others as well; Spark's and DuckDB's own caches of
files are turned off. A scan loads the table and asks for count(*) and the sum of a column. Medians; the ratio is before
to after. All files are on a local disk, where opening one costs next to nothing.
"""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyiceberg.table import StaticTable, Table

from benchmarks.report import conditions, parser, percentile, print_report
from daemon.config.settings import SparkSettings
from daemon.maintenance.maintainer import Maintainer
from daemon.spark.jars import ICEBERG_JAR
from daemon.spark.session import SparkPipeline
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.readers import duckdb_connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_CONF = {
    "spark.jars.packages": ICEBERG_JAR,
    # Delete files that one scan read would serve the next for ten minutes.
    "spark.sql.iceberg.executor-cache.enabled": "false",
}
# Rows, and the sum of their ids.
Answer = tuple[int, int]
Scan = Callable[[str], Answer]
# A metadata file, and what a scan by it must find.
State = tuple[str, Answer]


@dataclass(frozen=True)
class Result:
    """Median milliseconds; `none` is the table without deletions."""

    reader: str
    scans: int
    none_ms: float
    before_ms: float
    after_ms: float

    @property
    def ratio(self) -> float:
        return self.before_ms / self.after_ms


@dataclass(frozen=True)
class Compacted:
    rows: int
    positions: int
    delete_files_before: int
    delete_files_after: int
    bytes_before: int
    bytes_after: int
    compact_ms: float
    results: list[Result]


def scan_with_pyiceberg(location: str) -> Answer:
    ids = StaticTable.from_metadata(location).scan().to_arrow()["id"]
    return len(ids), pc.sum(ids).as_py()


def scan_with_duckdb(location: str) -> Answer:
    rows, total = duckdb_connection().execute("SELECT count(*), sum(id) FROM iceberg_scan(?)", [location]).fetchall()[0]
    return int(rows), int(total)


def scan_with(spark: SparkSession, location: str) -> Answer:
    rows, total = spark.read.format("iceberg").load(location).selectExpr("count(*)", "sum(id)").collect()[0]
    return int(rows), int(total)


def make_table(folder: Path, *, rows: int, commits: int, positions: int) -> tuple[HandmadeTable, Bench, str]:
    """A followed table of one data file, from which each of `commits` commits deleted `positions` rows.

    Also a metadata file that shows it before.
    """
    table = HandmadeTable(folder / "lake")
    table.create()
    bench = Bench(folder / "iceberg", table.location)
    bench.first_sync_empty(table)
    path = table.write_file([(row, "a", f"value {row}") for row in range(rows)])
    table.commit([table.add(path)])
    bench.follower.sync()
    # A copy: the table removes its own after a hundred commits.
    added = Path(bench.iceberg().metadata_location.removeprefix("file://"))
    none = shutil.copy(added, added.with_name(f"none-{added.name}"))
    order = Random(1).sample(range(rows), commits * positions)
    for start in range(0, len(order), positions):
        table.commit(table.delete({path: order[start : start + positions]}), operation="DELETE")
        bench.follower.sync()
    return table, bench, f"file://{none}"


def delete_files_of(table: Table) -> tuple[int, int]:
    """The live delete files, and their bytes."""
    sizes_bytes = [file["file_size_in_bytes"] for file in table.inspect.delete_files().to_pylist()]
    return len(sizes_bytes), sum(sizes_bytes)


def measure(folder: Path, *, rows: int, commits: int, positions: int, scans: int, warm_up: int) -> Compacted:
    pipeline = SparkPipeline(SparkSettings(conf=SPARK_CONF))
    with TemporaryDirectory(dir=folder) as name:
        table, bench, none = make_table(Path(name), rows=rows, commits=commits, positions=positions)
        before = bench.iceberg()
        start_s = time.perf_counter()
        done = Maintainer(bench.context).compact(Event())
        compact_ms = (time.perf_counter() - start_s) * 1000
        after = bench.iceberg()
        (files_before, bytes_before), (files_after, bytes_after) = delete_files_of(before), delete_files_of(after)
        assert (files_before, files_after) == (commits, 1) == (done.delete_files_before, done.delete_files_after)
        live = [row for row, _, _ in table.live_rows()]
        states: Mapping[str, State] = {
            "none": (none, (rows, sum(range(rows)))),
            "before": (before.metadata_location, (len(live), sum(live))),
            "after": (after.metadata_location, (len(live), sum(live))),
        }
        duckdb_connection().execute("SET enable_external_file_cache = false")
        with pipeline.session() as spark:
            readers: Mapping[str, Scan] = {
                "Spark": lambda location: scan_with(spark, location),
                "DuckDB": scan_with_duckdb,
                "PyIceberg": scan_with_pyiceberg,
            }
            results = [
                _measure_reader(reader, scan, states, scans=scans, warm_up=warm_up) for reader, scan in readers.items()
            ]
        pipeline.close()
        bench.close()
    return Compacted(
        rows, commits * positions, files_before, files_after, bytes_before, bytes_after, compact_ms, results
    )


def _measure_reader(reader: str, scan: Scan, states: Mapping[str, State], *, scans: int, warm_up: int) -> Result:
    times_ms: dict[str, list[float]] = defaultdict(list)
    for number in range(-warm_up, scans):
        for state, (location, expected) in sorted(states.items(), reverse=number % 2 == 0):
            start_s = time.perf_counter()
            found = scan(location)
            if number >= 0:
                times_ms[state].append((time.perf_counter() - start_s) * 1000)
            assert found == expected, f"{reader}, {state}: {found}, not {expected}"
    medians_ms = {f"{state}_ms": percentile(times_ms[state], 50) for state in states}
    return Result(reader, scans, **medians_ms)


def table_lines(compacted: Compacted) -> list[str]:
    c = compacted
    lines = [
        f"one data file of {c.rows:,} rows, {c.positions:,} of them deleted",
        f"compacted in {c.compact_ms:.0f} ms: {c.delete_files_before} delete files of {c.bytes_before / 1e3:,.0f} kB, "
        f"then {c.delete_files_after} of {c.bytes_after / 1e3:,.0f} kB",
        f"{'reader':10}{'scans':>6}{'none ms':>9}{'before ms':>11}{'after ms':>10}{'ratio':>7}",
    ]
    for r in c.results:
        lines.append(f"{r.reader:10}{r.scans:6}{r.none_ms:9.1f}{r.before_ms:11.1f}{r.after_ms:10.1f}{r.ratio:7.1f}")
    return lines


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--commits", type=int, default=200, help="delete files before (%(default)s)")
    options.add_argument("--positions", type=int, default=3_000, help="of each delete file (%(default)s)")
    options.add_argument("--scans", type=int, default=15, help="of each reader and state (%(default)s)")
    options.add_argument("--warm-up", type=int, default=4)
    arguments = options.parse_args()
    before = conditions(arguments.folder)
    compacted = measure(
        arguments.folder,
        rows=arguments.rows,
        commits=arguments.commits,
        positions=arguments.positions,
        scans=arguments.scans,
        warm_up=arguments.warm_up,
    )
    results = [{**asdict(result), "ratio": result.ratio} for result in compacted.results]
    report = {**asdict(compacted), "results": results}
    print_report(arguments, before, report, table_lines(compacted))


if __name__ == "__main__":
    main()
