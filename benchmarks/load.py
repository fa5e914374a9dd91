"""Many tables in one daemon: how long after a Delta commit Iceberg shows it, and what that costs.

`dvsync run`, the whole product as a process of its own, follows `--tables` tables that one source pattern finds, each
polled every second; all else is as it comes, maintenance included. When the first syncs have ended, `--busy` of the
tables get a commit each second for `--seconds`: one in three appends a file, the others delete a row of two files by
deletion vectors. A table with more than 200 files loses half of them in one commit.

Freshness of a commit is the time from its commit file being there to the line of the log that says that its snapshot is
committed and recorded. CPU is that of the daemon's process in shares of one core, memory its resident set, both looked
at each second. In the end DuckDB reads every busy table, and its rows must be Delta's.

With `--large FILES`, a table of so many data files, one in a hundred with a deletion vector, appears under the pattern
ten seconds after the first commit, and the load goes on until its first sync has ended, in the place of `--seconds`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from statistics import mean
from tempfile import TemporaryDirectory
from threading import Event, Thread

import psutil

from benchmarks.large_table import make_large_table
from benchmarks.report import conditions, parser, percentile, print_report
from tests.kit.checks import duckdb_rows
from tests.kit.daemons import Daemon, until
from tests.kit.handmade import Bench
from tests.kit.handmade_histories import History
from tests.kit.load import Load

TARGET_P99_S = 3.0
WINDOW_S = 30
FILES_MAX = 200
FIRST_SYNCS_MAX_S = 900.0
CAUGHT_UP_MAX_S = 120.0
BEFORE_LARGE_S = 10.0
CONFIG = """
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
health: {port: 0}
log: {format: json}
defaults: {poll_interval: 1s}
tables: [{source: lake/*/, target: "lake.{name}", name: "{name}"}]
"""


class Churn(History):
    """Appends and deletions, as a table sees them all day. It keeps its size, so that memory does not grow with it."""

    def play(self) -> None:
        if len(self.table.live) > FILES_MAX:
            self._commit([self.table.remove(path) for path in sorted(self.table.live)[: FILES_MAX // 2]])
            return
        self.random.choice([self._append, self._delete, self._delete] if self.table.live else [self._append])()


@dataclass
class Usage:
    """The daemon's process, looked at each second: shares of one core, bytes."""

    process: psutil.Process
    cpu: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = Event()
        self._thread = Thread(target=self._look)
        self.process.cpu_percent()
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(1.0):
            self.cpu.append(self.process.cpu_percent() / 100)
            self.memory.append(self.process.memory_info().rss)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def in_step(daemons: Sequence[Daemon], load: Load) -> bool:
    wanted = {name: table.version for name, table in load.tables.items()}
    synced = {name: status["synced_version"] for each in daemons for name, status in each.tables().items()}
    return synced.items() >= wanted.items()


def first_sync_s(daemon: Daemon, made: Path, lake: Path) -> float:
    """Put the large table under the pattern. Returns the time between the daemon's first and last log line about it."""
    time.sleep(BEFORE_LARGE_S)
    made.rename(lake / made.name)
    until(lambda: daemon.tables().get(made.name, {}).get("state") == "synced", made.name, wait_s=FIRST_SYNCS_MAX_S)
    at_s = [
        datetime.fromisoformat(line["timestamp"]).timestamp()
        for line in list(daemon.lines)
        if line.get("table") == made.name
    ]
    return at_s[-1] - at_s[0]


def freshness_s(daemons: Sequence[Daemon], load: Load) -> dict[tuple[str, int], float]:
    """By table and version, for every commit of the load; a version that was never shown raises KeyError."""
    shown: dict[tuple[str, int], float] = {}
    for line in (line for each in daemons for line in list(each.lines)):
        if line["event"] == "sync.advanced" and line["from_version"] is not None:
            at_s = datetime.fromisoformat(line["timestamp"]).timestamp()
            for version in range(line["from_version"], line["to_version"] + 1):
                shown[line["table"], version] = at_s
    return {key: shown[key] - committed_s for key, committed_s in load.committed_s.items()}


def over_time(load: Load, fresh: dict[tuple[str, int], float], usage: Usage) -> list[dict[str, float]]:
    """By half minute since the first commit: the freshness of its commits, mean share of a core, most memory."""
    began_s = min(load.committed_s.values())
    starts = range(0, len(usage.cpu), WINDOW_S)
    ages: dict[int, list[float]] = {start: [] for start in starts}
    for key, committed_s in load.committed_s.items():
        ages[min(int(committed_s - began_s) // WINDOW_S * WINDOW_S, starts[-1])].append(fresh[key])
    return [
        {
            "from_s": start,
            "p50_s": round(percentile(ages[start], 50), 2),
            "p99_s": round(percentile(ages[start], 99), 2),
            "cpu": round(mean(usage.cpu[start : start + WINDOW_S]), 2),
            "memory_mib": max(usage.memory[start : start + WINDOW_S]) >> 20,
        }
        for start in starts
    ]


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--tables", type=int, default=200)
    options.add_argument("--busy", type=int, default=20)
    options.add_argument("--seconds", type=float, default=300.0)
    options.add_argument("--large", type=int, default=0, metavar="FILES")
    chosen = options.parse_args()
    before = conditions(chosen.folder)
    with TemporaryDirectory(dir=chosen.folder) as temporary:
        folder = Path(temporary)
        (folder / "config.yaml").write_text(CONFIG)
        if chosen.large:
            make_large_table(folder / "large", files=chosen.large, with_dv=chosen.large // 100)
        load = Load(folder / "lake", Random(1), count=chosen.tables, busy=chosen.busy, history=Churn)
        daemon = Daemon(folder / "config.yaml", module="daemon")
        started_s = time.monotonic()
        daemon.launch()
        try:
            daemon.started()
            until(lambda: in_step([daemon], load), "the first syncs", wait_s=FIRST_SYNCS_MAX_S)
            first_syncs_s = time.monotonic() - started_s
            large_s = 0.0
            usage = Usage(psutil.Process(daemon.process.pid))
            load.start()
            if chosen.large:
                large_s = first_sync_s(daemon, folder / "large", folder / "lake")
            else:
                time.sleep(chosen.seconds)
            load.stop()
            usage.stop()
            until(lambda: in_step([daemon], load), "the last commits", wait_s=CAUGHT_UP_MAX_S)
            fresh = freshness_s([daemon], load)
            unready = daemon.reasons()
        finally:
            daemon.kill()
        wrong = [name for name in load.busy if rows(folder, load, name) != load.tables[name].live_rows()]
    failed = sum(line["level"] in ("warning", "error") for line in daemon.lines)
    ages = sorted(fresh.values())
    report = {
        "tables": chosen.tables,
        "busy": chosen.busy,
        "seconds": chosen.seconds,
        "commits": len(ages),
        "late_max_s": round(load.late_s, 2),
        "first_syncs_s": round(first_syncs_s, 1),
        **({"large_files": chosen.large, "large_s": round(large_s, 1)} if chosen.large else {}),
        "freshness_s": {name: round(percentile(ages, share), 3) for name, share in SHARES.items()},
        "cpu": {name: round(percentile(usage.cpu, share), 2) for name, share in SHARES.items()},
        "memory_mib": {"first": usage.memory[0] >> 20, "last": usage.memory[-1] >> 20, "most": max(usage.memory) >> 20},
        "over_time": over_time(load, fresh, usage),
        "warnings": failed,
        "unready": unready,
        "wrong": wrong,
        "target_p99_s": TARGET_P99_S,
    }
    lines = [
        f"{key}: {json.dumps(value)}"
        for key, values in report.items()
        for value in (values if key == "over_time" else [values])
    ]
    print_report(chosen, before, report, lines)
    return 1 if wrong or unready or percentile(ages, 99) > TARGET_P99_S else 0


SHARES = {"p50": 50, "p90": 90, "p99": 99, "max": 100}


def rows(folder: Path, load: Load, name: str) -> list[tuple[int, str, str]]:
    bench = Bench(
        folder / "reader",
        load.tables[name].location,
        target=f"lake.{name}",
        catalog_uri=f"sqlite:///{folder}/catalog.db",
    )
    try:
        return duckdb_rows(bench.iceberg())
    finally:
        bench.close()


if __name__ == "__main__":
    sys.exit(main())
