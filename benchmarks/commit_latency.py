"""Latency of one small DV commit, from its commit file being present to the snapshot committed and recorded.

No Spark; all on one local disk: the Delta table, the Iceberg table, its SQLite catalog and the state database. Timed is
what the daemon does once a poll is due: `has_news` and `sync`. The wait for the poll itself is not in it. Each commit
deletes one more row of each touched file. `cpu ms` is the median of the process's CPU time: a busy machine adds to the
other figures, to this one little.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.report import conditions, parser, percentile, print_report
from benchmarks.stopwatch import REST, Steps, Stopwatch
from daemon.delta.log import DeltaLog
from daemon.iceberg.target import Target
from daemon.pipeline.runner import Runner
from daemon.sync import advance, transaction
from daemon.translate.planner import Planner
from state.sql.store import StateStore
from tests.kit.handmade import Bench, HandmadeTable

TARGET_MS = 100
DATA_FILES = 50
ROWS = 1000

# In the order of the main path.
STEPS: Steps = {
    "read": [(DeltaLog, ("is_there", "has_version", "read_commit", "check_continuity")), (Target, ("find_table",))],
    "plan": [
        (advance, ("fold_commits", "next_shape")),
        (Planner, ("tasks", "complete")),
        (transaction, ("view_of",)),
        (StateStore, ("open_table", "find_open_intents", "find_live_files", "find_delete_files")),
    ],
    "translate": [(Runner, ("write_delete_files",))],
    "prepare": [(transaction, ("prepare_snapshot",))],
    "commit": [(Target, ("commit",))],
    "record": [(StateStore, ("record_intent", "record_pending", "record_prepared", "record_synced"))],
}


@dataclass(frozen=True)
class Result:
    """Milliseconds; `steps` are means over the commits, `history` is the snapshots before the first of them."""

    touched_files: int
    history: int
    commits: int
    p50_ms: float
    p95_ms: float
    max_ms: float
    cpu_ms: float
    steps: dict[str, float]


def make_table(folder: Path, **options: object) -> tuple[HandmadeTable, Bench]:
    """A followed table of DATA_FILES files without deletions. `options` are the table's in the configuration."""
    table = HandmadeTable(folder / "lake")
    table.create()
    bench = Bench(folder / "iceberg", table.location, table_options=options)
    bench.first_sync_empty(table)
    paths = [table.write_file([(row, "a", f"value {row}") for row in range(ROWS)]) for _ in range(DATA_FILES)]
    table.commit([table.add(path) for path in paths])
    bench.follower.sync()
    return table, bench


def delete_one_row_each(table: HandmadeTable, paths: list[str], position: int) -> None:
    """A DELETE as Delta writes it: the new DVs of all touched files in one file."""
    deleted = {path: table.deleted[path] | {position} for path in paths}
    actions = [table.remove(path) for path in paths]
    descriptors = table.write_dvs(deleted)
    for path in paths:
        action = table.add(path)
        action["add"]["deletionVector"] = descriptors[path]
        table.deleted[path] = deleted[path]
        actions.append(action)
    table.commit(actions, operation="DELETE")


@dataclass(frozen=True)
class Sample:
    total_ms: float
    cpu_ms: float
    steps: dict[str, float]


def measure(touched_files: int, *, folder: Path, warm_up: int, windows: list[tuple[int, int]]) -> list[Result]:
    """One table followed through all `windows` of commits (first and end), after `warm_up` of them."""
    samples: dict[int, Sample] = {}
    stopwatch = Stopwatch()
    with TemporaryDirectory(dir=folder) as name:
        table, bench = make_table(Path(name))
        paths = list(table.live)
        for number in range(-warm_up, windows[-1][1]):
            chosen = [paths[(number * touched_files + index) % len(paths)] for index in range(touched_files)]
            delete_one_row_each(table, chosen, warm_up + number)
            with stopwatch.wrapped(STEPS):
                stopwatch.restart()
                start_s, start_cpu_s = time.perf_counter(), time.process_time()
                assert bench.follower.has_news()
                result = bench.follower.sync()
                total_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
                samples[number] = Sample(total_s * 1000, cpu_s * 1000, stopwatch.read())
            assert (result.snapshots, result.positions_added) == (1, touched_files)
        assert bench.iceberg().scan().to_arrow().num_rows == len(table.live_rows())
        bench.close()
    return [_result(touched_files, first, [samples[number] for number in range(first, end)]) for first, end in windows]


def _result(touched_files: int, first: int, samples: list[Sample]) -> Result:
    times = [sample.total_ms for sample in samples]
    return Result(
        touched_files,
        history=first,
        commits=len(samples),
        p50_ms=percentile(times, 50),
        p95_ms=percentile(times, 95),
        max_ms=max(times),
        cpu_ms=percentile([sample.cpu_ms for sample in samples], 50),
        steps={step: sum(s.steps.get(step, 0.0) for s in samples) / len(samples) for step in (*STEPS, REST)},
    )


def table_lines(results: list[Result]) -> list[str]:
    lines = [f"{'files':>6}{'history':>9}{'commits':>9}{'p50 ms':>8}{'p95 ms':>8}{'max ms':>8}{'cpu ms':>8}"]
    for r in results:
        times = f"{r.p50_ms:8.1f}{r.p95_ms:8.1f}{r.max_ms:8.1f}{r.cpu_ms:8.1f}"
        lines.append(f"{r.touched_files:6}{r.history:9}{r.commits:9}{times}")
    lines += ["", "mean ms of each step", f"{'files':>6}{'history':>9}" + "".join(f"{s:>11}" for s in (*STEPS, REST))]
    for r in results:
        lines.append(f"{r.touched_files:6}{r.history:9}" + "".join(f"{spent:11.1f}" for spent in r.steps.values()))
    return [*lines, f"target: p50 below {TARGET_MS} ms for a commit that touches one file"]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--commits", type=int, default=200, help="commits of each window (%(default)s)")
    options.add_argument("--history", type=int, default=500, help="commits before the second window (%(default)s)")
    options.add_argument("--warm-up", type=int, default=10)
    arguments = options.parse_args()
    before = conditions(arguments.folder)
    first, later = (0, arguments.commits), (arguments.history, arguments.history + arguments.commits)
    results = [
        *measure(1, folder=arguments.folder, warm_up=arguments.warm_up, windows=[first, later]),
        *measure(20, folder=arguments.folder, warm_up=arguments.warm_up, windows=[first]),
    ]
    report = {"results": [asdict(result) for result in results], "target_ms": TARGET_MS}
    print_report(arguments, before, report, table_lines(results))


if __name__ == "__main__":
    main()
