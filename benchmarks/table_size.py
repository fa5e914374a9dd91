"""What a commit that touches one data file costs in a small and in a large table, in turns in one run.

Both tables had their first sync on Spark, so that their manifests are as in production; after that there is no JVM.
Each round is three commits of each table: the first deletion vector of a file (`DV change`), the same vector with fewer
positions, as after RESTORE (`DV shrinks`), and a file removed whole (`file removed`). Each is timed from its commit
file being present to the snapshot being recorded. The ratio is that of the medians; the CPU time is the process's own.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.large_table import LargeTable, make_large_table, shown_rows
from benchmarks.report import conditions, parser, percentile, print_report
from daemon.config.settings import SparkSettings
from daemon.spark.session import SparkPipeline
from tests.kit.handmade import Bench

TARGET_RATIO = 1.5
CASES = ("DV change", "DV shrinks", "file removed")


@dataclass(frozen=True)
class Result:
    """Medians in milliseconds."""

    case: str
    commits: int
    small_ms: float
    large_ms: float
    small_cpu_ms: float
    large_cpu_ms: float

    @property
    def ratio(self) -> float:
        return self.large_ms / self.small_ms


@dataclass
class Followed:
    table: LargeTable
    bench: Bench
    removed: int = 0

    def timed(self) -> tuple[float, float]:
        """Wall and CPU milliseconds of one sync."""
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        assert self.bench.follower.has_news()
        result = self.bench.follower.sync()
        times = (time.perf_counter() - start_s) * 1000, (time.process_time() - start_cpu_s) * 1000
        assert result.snapshots == 1
        return times

    def check(self) -> None:
        assert shown_rows(self.bench.iceberg()) == self.table.live_rows(len(self.table.paths) - self.removed)

    def apply(self, case: str, number: int) -> None:
        """Make the commit of this round: files far apart, so that the rounds touch many manifests."""
        paths = self.table.paths
        changed = paths[number * len(paths) // 1000]
        match case:
            case "DV change":
                self.table.commit_deleted(changed, range(0, 40, 2))
            case "DV shrinks":
                self.table.commit_deleted(changed, range(0, 20, 2), "RESTORE")
            case _:
                self.table.commit_removed(paths[-1 - number * len(paths) // 1000])
                self.removed += 1


def follow(folder: Path, files: int, spark: SparkPipeline) -> Followed:
    table = make_large_table(folder / "lake", files=files)
    bench = Bench(folder / "iceberg", table.delta.location, engine="auto")
    # The session ends with `spark`, which both tables share for their first sync.
    with spark.session():
        bench.follower.sync()
    bench.reopen()
    # The first cycle of a process reads more, as after a start of the daemon.
    bench.follower.sync()
    return Followed(table, bench)


def measure(folder: Path, small: int, large: int, rounds: int, warm_up: int) -> list[Result]:
    with TemporaryDirectory(dir=folder) as name:
        spark = SparkPipeline(SparkSettings())
        tables = {files: follow(Path(name) / str(files), files, spark) for files in (small, large)}
        spark.close()
        times: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        for number in range(warm_up + rounds):
            for case in CASES:
                # Turns change: what the one leaves in caches must not always serve the other.
                for files in (small, large) if number % 2 else (large, small):
                    tables[files].apply(case, number)
                    spent = tables[files].timed()
                    if number >= warm_up:
                        times[case, files].append(spent)
        for followed in tables.values():
            followed.check()
            followed.bench.close()

    def median(case: str, files: int, which: int) -> float:
        return percentile([spent[which] for spent in times[case, files]], 50)

    return [
        Result(
            case,
            rounds,
            small_ms=median(case, small, 0),
            large_ms=median(case, large, 0),
            small_cpu_ms=median(case, small, 1),
            large_cpu_ms=median(case, large, 1),
        )
        for case in CASES
    ]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--small", type=int, default=1_000, help="live files of the small table (%(default)s)")
    options.add_argument("--large", type=int, default=100_000, help="live files of the large table (%(default)s)")
    options.add_argument("--rounds", type=int, default=30)
    options.add_argument("--warm-up", type=int, default=3)
    arguments = options.parse_args()
    before = conditions(arguments.folder)
    results = measure(arguments.folder, arguments.small, arguments.large, arguments.rounds, arguments.warm_up)
    rows = [{**asdict(result), "ratio": result.ratio} for result in results]
    lines = [f"{'commit':14}{'commits':>8}{'files':>18}{'ms':>9}{'ms':>9}{'ratio':>8}{'cpu ms':>10}{'cpu ms':>9}"]
    for r in results:
        sizes = f"{arguments.small:,} / {arguments.large:,}"
        times = f"{r.small_ms:9.1f}{r.large_ms:9.1f}{r.ratio:8.2f}{r.small_cpu_ms:10.1f}{r.large_cpu_ms:9.1f}"
        lines.append(f"{r.case:14}{r.commits:8}{sizes:>18}{times}")
    lines.append(f"target: ratio below {TARGET_RATIO}")
    print_report(arguments, before, {"results": rows, "target_ratio": TARGET_RATIO}, lines)


if __name__ == "__main__":
    main()
