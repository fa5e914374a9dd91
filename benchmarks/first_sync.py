"""First sync of a Delta table of many data files, once the Spark session is up and has done nothing yet.

The data files are hard links of a few small ones: ten columns with statistics, partitioned by a date-like text, some of
them with deletion vectors. The log is JSON commits of 5,000 adds each, or with `--checkpoint` a classic checkpoint that
Delta wrote before the clock starts. `Python` is the process of dvsync itself, `children` the JVM and Spark's Python
workers; of both the peak of samples.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import psutil

import daemon.first_sync
from benchmarks.large_table import LargeTable, make_large_table
from benchmarks.report import conditions, parser, print_report
from benchmarks.stopwatch import REST, Steps, Stopwatch
from daemon.iceberg.target import Target
from daemon.pipeline.runner import Runner
from daemon.settings import PipelineSettings
from state.sql_store import SqlStateStore
from tests.handmade import Bench

TARGET_S = 60
SAMPLE_INTERVAL_S = 0.1

STEPS: Steps = {
    "state read": [(daemon.first_sync, ("read_table_state",))],
    "manifests": [(daemon.first_sync, ("write_data_manifests",))],
    "DVs read": [(daemon.first_sync, ("collect_adds",))],
    "plan": [(daemon.first_sync, ("plan_sync", "complete_plan"))],
    "DV kernel": [(Runner, ("write_delete_files",))],
    "commit": [(daemon.first_sync, ("prepare_snapshot",)), (Target, ("find_table", "stage", "commit"))],
    "state store": [
        (SqlStateStore, ("load_table", "find_open_intents", "record_intent", "record_pending", "record_rebuilt"))
    ],
}


@dataclass(frozen=True)
class Result:
    data_files: int
    with_dv: int
    checkpoint: bool
    make_table_s: float
    session_s: float
    sync_s: float
    python_before_mb: float
    python_peak_mb: float
    children_peak_mb: float
    steps: dict[str, float]


class Memory:
    """Resident memory of this process and of its children, sampled by a thread."""

    def __init__(self) -> None:
        self.own_peak = 0
        self.children_peak = 0
        self._me = psutil.Process()

    @contextmanager
    def watched(self) -> Iterator[None]:
        finished = Event()

        def look() -> None:
            while not finished.wait(SAMPLE_INTERVAL_S):
                self.own_peak = max(self.own_peak, self._me.memory_info().rss)
                self.children_peak = max(self.children_peak, sum(map(_rss, self._me.children(recursive=True))))

        watcher = Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            finished.set()
            watcher.join()


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def write_checkpoint(spark: Any, table: LargeTable) -> None:
    """A classic checkpoint of the newest version, by Delta itself."""
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table.delta.location)
    log.checkpoint()


def measure(folder: Path, *, data_files: int, with_dv: int, checkpoint: bool) -> Result:
    stopwatch, memory = Stopwatch(), Memory()
    with TemporaryDirectory(dir=folder) as name:
        start_s = time.perf_counter()
        table = make_large_table(Path(name) / "lake", files=data_files, with_dv=with_dv)
        make_table_s = time.perf_counter() - start_s
        bench = Bench(Path(name) / "iceberg", table.delta.location, pipeline=PipelineSettings())
        if checkpoint:
            with bench.spark.session() as spark:
                write_checkpoint(spark, table)
            bench.spark.close()
        start_s = time.perf_counter()
        with bench.spark.session():
            session_s = time.perf_counter() - start_s
        before = psutil.Process().memory_info().rss
        with memory.watched(), stopwatch.wrapped(STEPS):
            stopwatch.restart()
            start_s = time.perf_counter()
            result = bench.follower.sync()
            sync_s = time.perf_counter() - start_s
            steps = stopwatch.read()
        bench.spark.close()
        assert (result.data_files_added, result.delete_files_added) == (data_files, with_dv)
        summary = bench.iceberg().current_snapshot().summary
        rows = int(summary["total-records"]) - int(summary["total-position-deletes"])
        assert rows == table.live_rows(data_files)
        bench.close()
    return Result(
        data_files,
        with_dv,
        checkpoint,
        make_table_s,
        session_s,
        sync_s,
        python_before_mb=before / 1e6,
        python_peak_mb=memory.own_peak / 1e6,
        children_peak_mb=memory.children_peak / 1e6,
        steps={step: steps.get(step, 0.0) / 1000 for step in (*STEPS, REST)},
    )


def table_lines(r: Result) -> list[str]:
    return [
        f"{r.data_files:,} data files, {r.with_dv:,} with a DV, {'a checkpoint' if r.checkpoint else 'JSON commits only'}",
        f"first sync {r.sync_s:.1f} s (target: below {TARGET_S} s); session before it {r.session_s:.1f} s",
        "  " + ", ".join(f"{step} {spent:.1f}" for step, spent in r.steps.items()),
        f"Python {r.python_before_mb:.0f} MB before, {r.python_peak_mb:.0f} MB at its peak; "
        f"children {r.children_peak_mb:.0f} MB",
    ]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data-files", type=int, default=100_000)
    options.add_argument("--with-dv", type=int, default=1_000)
    options.add_argument("--checkpoint", action="store_true", help="let Delta write a checkpoint first")
    arguments = options.parse_args()
    before = conditions(arguments.folder)
    result = measure(
        arguments.folder,
        data_files=arguments.data_files,
        with_dv=arguments.with_dv,
        checkpoint=arguments.checkpoint,
    )
    print_report(arguments, before, {"result": asdict(result), "target_s": TARGET_S}, table_lines(result))


if __name__ == "__main__":
    main()
