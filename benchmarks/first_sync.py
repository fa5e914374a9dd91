"""First sync of a Delta table of many data files, once the Spark session is up.

The session has done nothing before the first sync (`cold`). Then the same Delta table is synced once more into another
Iceberg table (`warm`), as when the daemon takes up several tables: the JVM has compiled its code by then. With
`--again`, that Iceberg table is then read back into an empty state database (`rebuild`), and rewritten (`resync`),
each in a new process, as after a start of dvsync.

The data files are hard links of a few small ones: ten columns with statistics, partitioned by a date-like text, some of
them with deletion vectors. The log is JSON commits of 5,000 adds each, or with `--checkpoint` a classic checkpoint that
Delta wrote before the clock starts. With `--managed`, a catalog manages the table, and its last commit is staged;
the catalog's own answer takes no time here. `Python` is the process of dvsync itself, `children` the JVM and Spark's
Python workers; of both the peak of samples. CPU seconds are those of all of them: divided by the cores they are the
least time that the sync can take, whatever else the machine does.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from benchmarks.large_table import LargeTable, make_large_table, shown_rows
from benchmarks.memory import Memory
from benchmarks.report import conditions, parser, print_report
from benchmarks.stopwatch import REST, Steps, Stopwatch
from daemon.config.settings import SparkSettings
from daemon.delta.log import DeltaLog
from daemon.iceberg.target import Target
from daemon.pipeline import runner
from daemon.pipeline.runner import Runner
from daemon.spark.session import SparkPipeline
from daemon.spark.table_state import SparkState
from daemon.sync import transaction
from daemon.sync.follower import Follower
from daemon.translate.planner import Planner
from state.sql.store import StateStore
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.handmade_managed import Managed

TARGET_S = 60

STEPS: Steps = {
    "state read": [(runner, ("read_table_state",))],
    "manifests": [(SparkState, ("map_adds",))],
    "plan": [(Planner, ("tasks", "complete"))],
    "DV kernel": [(Runner, ("write_delete_files",))],
    "commit": [(transaction, ("prepare_snapshot",)), (Target, ("find_table", "stage", "commit"))],
    "state store": [
        (StateStore, ("open_table", "find_open_intents", "record_intent", "record_pending", "record_rebuilt"))
    ],
}


@dataclass(frozen=True)
class Expected:
    """The Delta table, and what must be shown of it."""

    location: str
    data_files: int
    with_dv: int
    live_rows: int
    delta: HandmadeTable

    def open(self, folder: Path) -> Bench:
        bench = Bench(folder, self.location, engine="auto")
        if isinstance(self.delta, Managed):
            settings = bench.settings.for_entry(self.delta.entry)
            log = DeltaLog(self.delta.storage(), self.location, bench.clock)
            bench.follower = Follower(replace(bench.context, settings=settings, log=log))
        return bench


@dataclass(frozen=True)
class Result:
    kind: str
    data_files: int
    with_dv: int
    sync_s: float
    cpu_s: float
    python_before_mb: float
    python_peak_mb: float
    children_peak_mb: float
    steps: dict[str, float]
    checkpoint: bool = False
    make_table_s: float = 0.0
    session_s: float = 0.0


def cpu_s() -> float:
    """Of this process and its children, those that have ended included."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
            if process.pid != os.getpid():
                total += times.children_user + times.children_system
    return total


def write_checkpoint(spark: Any, table: LargeTable) -> None:
    """A classic checkpoint of the newest version, by Delta itself."""
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table.delta.location)
    log.checkpoint()


def measure(
    folder: Path, *, data_files: int, with_dv: int, checkpoint: bool, again: bool, managed: bool
) -> list[Result]:
    with TemporaryDirectory(dir=folder) as name:
        start_s = time.perf_counter()
        table = make_large_table(Path(name) / "lake", files=data_files, with_dv=with_dv, managed=managed)
        make_table_s = time.perf_counter() - start_s
        if checkpoint:
            pipeline = SparkPipeline(SparkSettings())
            with pipeline.session() as spark:
                write_checkpoint(spark, table)
            pipeline.close()
        pipeline = SparkPipeline(SparkSettings())
        start_s = time.perf_counter()
        with pipeline.session():
            session_s = time.perf_counter() - start_s
            expected = Expected(table.delta.location, data_files, with_dv, table.live_rows(data_files), table.delta)
            results = [measure_sync(Path(name) / kind, expected, kind) for kind in ("cold", "warm")]
        pipeline.close()
        if again:
            for file in (Path(name) / "warm").glob("state.db*"):
                file.unlink()
            for kind in ("rebuild", "resync"):
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                    results.append(process.submit(measure_alone, Path(name) / "warm", expected, kind).result())
    return [replace(r, checkpoint=checkpoint, make_table_s=make_table_s, session_s=session_s) for r in results]


def measure_alone(folder: Path, expected: Expected, kind: str) -> Result:
    """One sync with a session of its own."""
    pipeline = SparkPipeline(SparkSettings())
    with pipeline.session():
        result = measure_sync(folder, expected, kind)
    pipeline.close()
    return result


def measure_sync(folder: Path, expected: Expected, kind: str) -> Result:
    """One sync in the session that is up already."""
    stopwatch, memory = Stopwatch(), Memory()
    bench = expected.open(folder)
    before = psutil.Process().memory_info().rss
    with memory.watched(), stopwatch.wrapped(STEPS):
        stopwatch.restart()
        start_s, start_cpu_s = time.perf_counter(), cpu_s()
        result = bench.follower.sync(full=kind == "resync")
        sync_s, sync_cpu_s = time.perf_counter() - start_s, cpu_s() - start_cpu_s
        steps = stopwatch.read()
    added = (0, 0) if kind == "rebuild" else (expected.data_files, expected.with_dv)
    assert (result.data_files_added, result.delete_files_added) == added
    assert shown_rows(bench.iceberg()) == expected.live_rows
    bench.close()
    return Result(
        kind,
        expected.data_files,
        expected.with_dv,
        sync_s,
        sync_cpu_s,
        python_before_mb=before / 1e6,
        python_peak_mb=memory.own_peak / 1e6,
        children_peak_mb=memory.children_peak / 1e6,
        steps={step: steps.get(step, 0.0) / 1000 for step in (*STEPS, REST)},
    )


def table_lines(results: list[Result]) -> list[str]:
    first = results[0]
    log = "a checkpoint" if first.checkpoint else "JSON commits only"
    lines = [
        f"{first.data_files:,} data files, {first.with_dv:,} with a DV, {log}; session up in {first.session_s:.1f} s",
        f"{'JVM':8}{'seconds':>9}{'CPU s':>8}{'Python MB':>11}{'peak':>7}{'children MB':>13}",
    ]
    for r in results:
        memory = f"{r.python_before_mb:11.0f}{r.python_peak_mb:7.0f}{r.children_peak_mb:13.0f}"
        lines.append(f"{r.kind:8}{r.sync_s:9.1f}{r.cpu_s:8.1f}{memory}")
    lines += ["", "seconds of each step", f"{'JVM':8}" + "".join(f"{step:>12}" for step in (*STEPS, REST))]
    lines += [f"{r.kind:8}" + "".join(f"{spent:12.1f}" for spent in r.steps.values()) for r in results]
    return [*lines, f"target: below {TARGET_S} s"]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data-files", type=int, default=100_000)
    options.add_argument("--with-dv", type=int, default=1_000)
    options.add_argument("--checkpoint", action="store_true", help="let Delta write a checkpoint first")
    options.add_argument("--again", action="store_true", help="then rebuild the state database, and resync")
    options.add_argument("--managed", action="store_true", help="a catalog manages the table")
    arguments = options.parse_args()
    before = conditions(arguments.folder)
    results = measure(
        arguments.folder,
        data_files=arguments.data_files,
        with_dv=arguments.with_dv,
        checkpoint=arguments.checkpoint,
        again=arguments.again,
        managed=arguments.managed,
    )
    report = {"results": [asdict(result) for result in results], "target_s": TARGET_S}
    print_report(arguments, before, report, table_lines(results))


if __name__ == "__main__":
    main()
