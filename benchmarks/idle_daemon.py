"""What the daemon costs while nothing happens: `dvsync run` with many tables, each polled every second.

The tables are synced before, without Spark, and each has a data file with a deletion vector. CPU is what the process
used of one core while it was watched, memory its resident set; a child process (a JVM) fails the run. It starts once
the newest commit is a minute old (until then, a poll asks for that file, too), and is watched before its first rounds
of maintenance. Afterwards one table gets a commit: `reaction` is the time until /api/tables shows it, the wait for the
next poll included.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import yaml

from benchmarks.report import conditions, parser, print_report
from daemon.sync.news import UNFINISHED_COMMIT_MAX_S
from tests.kit.handmade import Bench, HandmadeTable, sql_catalog

TARGET_CPU_PERCENT = 2
TARGET_MB = 200
START_MAX_S = 60
SETTLE_S = 10


@dataclass(frozen=True)
class Result:
    tables: int
    seconds: float
    cpu_percent: float
    rss_mb: float
    threads: int
    reaction_ms: float
    stop_s: float


def make_synced_tables(folder: Path, tables: int) -> tuple[Path, list[HandmadeTable]]:
    """Delta tables, each followed up to its newest version, and the configuration for them."""
    deltas = []
    for number in range(tables):
        delta = HandmadeTable(folder / "lake" / f"orders{number}")
        delta.create()
        target = f"sales.orders{number}"
        bench = Bench(folder, delta.location, target=target, name=target)
        bench.first_sync_empty(delta)
        path = delta.write_file([(row, "a", f"value {row}") for row in range(100)])
        delta.commit([delta.add(path)])
        delta.commit(delta.delete({path: [1, 2, 3]}), operation="DELETE")
        bench.follower.sync()
        bench.close()
        deltas.append(delta)
    config = folder / "config.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "state": {"url": f"sqlite:///{folder}/state.db"},
                "catalogs": {"local": sql_catalog(folder)},
                "defaults": {"poll_interval": "1s"},
                "tables": [
                    {"source": delta.location, "target": f"sales.orders{number}"} for number, delta in enumerate(deltas)
                ],
                "health": {"port": 0},
                "log": {"format": "json"},
            }
        )
    )
    return config, deltas


def wait_for(what: str, happened: Callable[[], Any], wait_max_s: float = START_MAX_S) -> Any:
    """The first true value of `happened`."""
    end_s = time.monotonic() + wait_max_s
    while time.monotonic() < end_s:
        value = happened()
        if value:
            return value
        time.sleep(0.005)
    raise TimeoutError(f"{what}: not within {wait_max_s} s")


def health_url(log: Path) -> str | None:
    for line in log.read_text().splitlines():
        if line.endswith("}") and "health" in (event := json.loads(line)):
            return str(event["health"])
    return None


def is_ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/readyz") as answer:
            return bool(answer.status == 200)
    except HTTPError:
        return False


def synced_version(url: str, target: str) -> int:
    with urlopen(f"{url}/api/tables") as answer:
        return next(int(table["synced_version"]) for table in json.load(answer) if table["target"] == target)


def measure(folder: Path, *, tables: int, seconds: float) -> Result:
    with TemporaryDirectory(dir=folder) as name:
        config, deltas = make_synced_tables(Path(name), tables)
        time.sleep(UNFINISHED_COMMIT_MAX_S)
        log = Path(name) / "daemon.log"
        with log.open("w") as output:
            command = [sys.executable, "-m", "daemon", "--config", str(config), "run"]
            daemon = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            url = wait_for("start", lambda: health_url(log))
            wait_for("ready", lambda: is_ready(url))
            time.sleep(SETTLE_S)
            process = psutil.Process(daemon.pid)
            used_s, start_s = _cpu_s(process), time.monotonic()
            time.sleep(seconds)
            cpu_percent = (_cpu_s(process) - used_s) / (time.monotonic() - start_s) * 100
            rss_mb, threads = process.memory_info().rss / 1e6, process.num_threads()
            assert not process.children(), "an idle daemon has no JVM"
            path = next(iter(deltas[-1].live))
            version = deltas[-1].commit(deltas[-1].delete({path: [7]}), operation="DELETE")
            start_s = time.monotonic()
            wait_for("reaction", lambda: synced_version(url, f"sales.orders{tables - 1}") == version)
            reaction_ms = (time.monotonic() - start_s) * 1000
            assert not process.children(), "a small commit needs no JVM"
            start_s = time.monotonic()
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(START_MAX_S) == 0
            stop_s = time.monotonic() - start_s
        finally:
            daemon.kill()
            daemon.wait()
    return Result(tables, seconds, cpu_percent, rss_mb, threads, reaction_ms, stop_s)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--tables", type=int, default=50)
    options.add_argument("--seconds", type=float, default=45, help="how long it is watched (%(default)s)")
    arguments = options.parse_args()
    before = conditions(arguments.folder)
    r = measure(arguments.folder, tables=arguments.tables, seconds=arguments.seconds)
    targets = {"target_cpu_percent": TARGET_CPU_PERCENT, "target_mb": TARGET_MB}
    lines = [
        f"{'tables':>7}{'seconds':>9}{'CPU %':>8}{'RSS MB':>8}{'threads':>9}{'reaction ms':>13}{'stop s':>8}",
        f"{r.tables:7}{r.seconds:9.0f}{r.cpu_percent:8.2f}{r.rss_mb:8.0f}{r.threads:9}{r.reaction_ms:13.0f}"
        f"{r.stop_s:8.2f}",
        f"target: CPU below {TARGET_CPU_PERCENT} % of a core, memory below {TARGET_MB} MB",
    ]
    print_report(arguments, before, {"result": asdict(r), **targets}, lines)


if __name__ == "__main__":
    main()
