"""What every benchmark prints: its conditions, one table, and JSON instead when that is asked for."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from daemon.config.settings import LogSettings
from daemon.observe.log import configure_logging

PACKAGES = ("pyiceberg", "pyarrow", "sqlalchemy", "pyspark", "delta-spark")
FSYNCS = 20


@dataclass(frozen=True)
class Conditions:
    """The machine at the start of a run. `fsync_ms` is the median of one 4 KiB write and fsync in the work folder."""

    cores: int
    memory_gib: float
    load_1min: float
    python: str
    packages: dict[str, str]
    filesystem: str
    fsync_ms: float


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has; also leaves dvsync's log to warnings."""
    configure_logging(LogSettings(format="console", level="warning"), sys.stderr)
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the tables are made (%(default)s)"
    )
    return options


def conditions(folder: Path) -> Conditions:
    return Conditions(
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        load_1min=round(os.getloadavg()[0], 2),
        python=platform.python_version(),
        packages={name: version(name) for name in PACKAGES},
        filesystem=_filesystem(folder),
        fsync_ms=round(_fsync_ms(folder), 2),
    )


def _filesystem(folder: Path) -> str:
    """The type of the mount that holds `folder`, from /proc/mounts."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [(place, kind) for place, kind in mounts if folder.resolve().is_relative_to(place)]
    return max(holding, key=lambda mount: len(mount[0]))[1]


def _fsync_ms(folder: Path) -> float:
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(FSYNCS):
            start = time.perf_counter()
            os.write(file.fileno(), bytes(4096))
            os.fsync(file.fileno())
            times.append((time.perf_counter() - start) * 1000)
    return percentile(times, 50)


def percentile(values: Sequence[float], share: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * share // 100)]


def print_report(options: argparse.Namespace, before: Conditions, report: dict[str, Any], lines: Sequence[str]) -> None:
    """`lines` for people, or `report` with the conditions as JSON."""
    if options.json:
        print(json.dumps({"conditions": asdict(before), **report}, indent=2))
        return
    packages = ", ".join(f"{name} {number}" for name, number in before.packages.items())
    print(
        f"{before.cores} cores, {before.memory_gib} GiB, load {before.load_1min}, {before.filesystem} with an fsync of "
        f"{before.fsync_ms} ms, Python {before.python}, {packages}"
    )
    for line in lines:
        print(line)
