"""Two daemons that share a fleet, against one: commits a second, and how long after a Delta commit Iceberg shows it.

`--busy` tables get a commit each second for `--seconds`: more than one process can show. Each version gets a snapshot
of its own (`one_snapshot_per_version: true`). The same load comes to one daemon and to two by turns, `--rounds` times
in one run; each time with tables, catalog and state databases of its own. The load itself takes part of the cores.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from benchmarks.load import Churn, freshness_s, in_step, rows
from benchmarks.report import conditions, parser, percentile, print_report
from daemon.config.share import Share
from tests.kit.daemons import Daemon, until
from tests.kit.load import Load

FIRST_SYNCS_MAX_S = 300.0
CAUGHT_UP_MAX_S = 600.0
CONFIG = """
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
limits: {one_snapshot_per_version: true}
health: {port: 0}
log: {format: json}
defaults: {poll_interval: 1s, engine: local}
tables: [{source: lake/*/, target: "lake.{name}", name: "{name}"}]
"""


def measure(folder: Path, count: int, *, busy: int, seconds: float) -> dict[str, Any]:
    """The load on `count` daemons."""
    (folder / "config.yaml").write_text(CONFIG)
    load = Load(folder / "lake", Random(1), count=busy, busy=busy, history=Churn)
    with ExitStack() as opened:
        daemons = []
        for number in range(1, count + 1):
            state = {"DVSYNC_SHARE": str(Share(number, count)), "DVSYNC_STATE__URL": f"sqlite:///state-{number}.db"}
            daemons.append(Daemon(folder / "config.yaml", {**os.environ, **state}, module="daemon"))
            daemons[-1].launch()
            opened.callback(daemons[-1].kill)
        for each in daemons:
            each.started()
        until(lambda: in_step(daemons, load), "the first syncs", wait_s=FIRST_SYNCS_MAX_S)
        processes = [psutil.Process(each.process.pid) for each in daemons]
        used_s, others_s = -_cpu_s(processes), -_others_cpu_s(processes)
        began_s = time.time()
        load.start()
        time.sleep(seconds)
        load.stop()
        ended_s = time.time()
        used_s, others_s = used_s + _cpu_s(processes), others_s + _others_cpu_s(processes)
        until(lambda: in_step(daemons, load), "the last commits", wait_s=CAUGHT_UP_MAX_S)
        fresh = freshness_s(daemons, load)
    shown = sum(load.committed_s[key] + age_s <= ended_s for key, age_s in fresh.items())
    ages = sorted(fresh.values())
    return {
        "daemons": count,
        "tables": [sum(Share(n, count).owns(f"lake.{name}") for name in load.tables) for n in range(1, count + 1)],
        "committed_per_s": round(len(fresh) / (ended_s - began_s), 1),
        "shown_per_s": round(shown / (ended_s - began_s), 1),
        "freshness_p50_s": round(percentile(ages, 50), 2),
        "freshness_p99_s": round(percentile(ages, 99), 2),
        "shown_per_cpu_s": round(shown / used_s, 1),
        "cores": round(used_s / (ended_s - began_s), 2),
        "others_cores": round(others_s / (ended_s - began_s), 2),
        "wrong": [name for name in load.busy if rows(folder, load, name) != load.tables[name].live_rows()],
    }


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in processes)


def _others_cpu_s(processes: Sequence[psutil.Process]) -> float:
    """What all programs have used but the daemons and the load."""
    machine = psutil.cpu_times()
    return sum(machine) - machine.idle - machine.iowait - _cpu_s([*processes, psutil.Process()])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--busy", type=int, default=60)
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--rounds", type=int, default=2)
    chosen = options.parse_args()
    before = conditions(chosen.folder)
    runs = []
    for _ in range(chosen.rounds):
        for count in (1, 2):
            with TemporaryDirectory(dir=chosen.folder) as temporary:
                runs.append(measure(Path(temporary), count, busy=chosen.busy, seconds=chosen.seconds))
    ratios = {
        key: round(_middle(runs, 2, key) / _middle(runs, 1, key), 2) for key in ("shown_per_s", "shown_per_cpu_s")
    }
    report = {"busy": chosen.busy, "seconds": chosen.seconds, "runs": runs, "ratios": ratios}
    lines = [*map(json.dumps, runs), f"two daemons against one: {json.dumps(ratios)}"]
    print_report(chosen, before, report, lines)
    return 1 if any(run["wrong"] for run in runs) else 0


def _middle(runs: Sequence[Mapping[str, Any]], count: int, key: str) -> float:
    return median(float(run[key]) for run in runs if run["daemons"] == count)


if __name__ == "__main__":
    sys.exit(main())
