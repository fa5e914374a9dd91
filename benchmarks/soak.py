"""Weeks of a table's life: thousands of Delta commits followed with maintenance and without, side by side.

Two followers show one Delta table, each in an Iceberg table, catalog and state database of its own, in turns in one
process; no Spark, all on one local disk. Most commits delete a few rows of one to three files, some rewrite files as
OPTIMIZE does or append one, so that the table stays as large as it was. Every setting of the maintenance is the
default; the clock goes on by ten minutes with each commit, so that ages and grace periods end.

A window is `WINDOW` commits. `sync` is the median of the window's syncs, each from the commit file being present to the
snapshot being recorded; the other figures are medians of samples every `SAMPLE_EVERY` commits, those before a round of
maintenance included. `scan` loads the table and reads the whole of it, before the last round of a window; DuckDB's
cache of files is turned off. The ratio is that of the last window to the `settled` one, by which the grace periods have
ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import psutil

from benchmarks.report import conditions, parser, percentile, print_report
from daemon.clock import SystemClock
from daemon.maintenance.maintainer import Maintainer
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.readers import assert_same_rows, duckdb_connection, read_duckdb, read_pyiceberg

TARGET_RATIO = 1.5
DATA_FILES = 20
ROWS = 5_000
# Of a deleting commit.
FILES_MAX = 3
ROWS_MAX = 8
COMMIT_EVERY_S = 600
# Within a hundred commits one appends a file and one rewrites three.
APPEND_AT, OPTIMIZE_AT, CYCLE = 50, 0, 100

WINDOW = 100
SAMPLE_EVERY = 25
SCANS = 3
# A scan that takes longer is not repeated.
SCAN_REPEATED_MAX_MS = 5_000

FIGURES = {
    "sync_ms": "sync, ms",
    "sync_cpu_ms": "sync, CPU ms",
    "metadata_kb": "metadata.json, kB",
    "delete_files": "live delete files",
    "files": "files on disk",
    "files_mb": "files on disk, MB",
    "state_mb": "state database, MB",
    "pyiceberg_ms": "scan, PyIceberg, ms",
    "duckdb_ms": "scan, DuckDB, ms",
    "round_ms": "maintenance, ms a round",
}
SIDES = ("with maintenance", "without")


class MovedClock(SystemClock):
    """The system's clock, and the time that was let pass."""

    def __init__(self) -> None:
        self.passed_s = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.passed_s * 1000

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.passed_s


class Life:
    """The commits of the Delta table, from a seed."""

    def __init__(self, table: HandmadeTable, random: Random) -> None:
        self._table = table
        self._random = random
        self._next_id = 0

    def begin(self) -> None:
        self._table.commit([self._table.add(self._write_new(ROWS)) for _ in range(DATA_FILES)])

    def go_on(self, number: int) -> None:
        match number % CYCLE:
            case at if at == APPEND_AT:
                self._append()
            case at if at == OPTIMIZE_AT:
                self._optimize()
            case _:
                self._delete()

    def _write_new(self, rows: int) -> str:
        first, self._next_id = self._next_id, self._next_id + rows
        return self._table.write_file([(row, "a", f"value {row}") for row in range(first, first + rows)])

    def _live_rows_of(self, path: str) -> list[tuple[int, str, str]]:
        deleted = self._table.deleted[path]
        return [row for position, row in enumerate(self._table.rows[path]) if position not in deleted]

    def _delete(self) -> None:
        table = self._table
        deleted: dict[str, set[int]] = {}
        for path in self._random.sample(list(table.live), self._random.randint(1, FILES_MAX)):
            live = sorted(set(range(len(table.rows[path]))) - table.deleted[path])
            deleted[path] = set(self._random.sample(live, self._random.randint(1, ROWS_MAX)))
        table.commit(table.delete(deleted), operation="DELETE")

    def _append(self) -> None:
        """As many rows as were deleted since the last time."""
        live = sum(len(self._table.rows[path]) - len(self._table.deleted[path]) for path in self._table.live)
        self._table.commit([self._table.add(self._write_new(DATA_FILES * ROWS - live))])

    def _optimize(self) -> None:
        """The smallest file and the two with most deleted rows become two."""
        table = self._table
        smallest, *others = sorted(table.live, key=lambda path: len(table.rows[path]))
        old = [smallest, *sorted(others, key=lambda path: len(table.deleted[path]))[-2:]]
        rows = [row for path in old for row in self._live_rows_of(path)]
        actions = [table.remove(path, data_change=False) for path in old]
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            actions.append(table.add(table.write_file(part), data_change=False))
        table.commit(actions, operation="OPTIMIZE")
        for path in old:
            del table.rows[path]


@dataclass(frozen=True)
class Look:
    """The table after `commit` commits."""

    commit: int
    metadata_kb: float
    delete_files: int
    files: int
    files_mb: float
    state_mb: float
    pyiceberg_ms: float | None
    duckdb_ms: float | None


@dataclass
class Side:
    """One of the two followers, and what was measured of it, by commit."""

    name: str
    bench: Bench
    maintainer: Maintainer | None
    sync_ms: dict[int, float] = field(default_factory=dict)
    sync_cpu_ms: dict[int, float] = field(default_factory=dict)
    round_ms: dict[int, float] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)

    def sync(self, commit: int) -> None:
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        assert self.bench.follower.has_news()
        result = self.bench.follower.sync()
        self.sync_ms[commit] = (time.perf_counter() - start_s) * 1000
        self.sync_cpu_ms[commit] = (time.process_time() - start_cpu_s) * 1000
        assert result.snapshots == 1

    def maintain(self, commit: int) -> None:
        if self.maintainer:
            start_s = time.perf_counter()
            done = self.maintainer.run(Event())
            self.round_ms[commit] = (time.perf_counter() - start_s) * 1000
            assert not done.cleanup.failed and not done.expiry.unreadable

    def look(self, commit: int, *, scan: bool) -> None:
        table = self.bench.iceberg()
        snapshot = table.current_snapshot()
        assert snapshot is not None and snapshot.summary is not None
        sizes_bytes = [path.stat().st_size for path in (self.bench.folder / "warehouse").rglob("*") if path.is_file()]
        state = self.bench.state_file
        self.looks.append(
            Look(
                commit,
                metadata_kb=Path(table.metadata_location.removeprefix("file://")).stat().st_size / 1e3,
                delete_files=int(snapshot.summary["total-delete-files"] or 0),
                files=len(sizes_bytes),
                files_mb=sum(sizes_bytes) / 1e6,
                state_mb=sum(path.stat().st_size for path in state.parent.glob(f"{state.name}*")) / 1e6,
                pyiceberg_ms=_scan_ms(lambda: self.bench.iceberg().scan().to_arrow()) if scan else None,
                duckdb_ms=_scan_ms(self._scan_with_duckdb) if scan else None,
            )
        )

    def _scan_with_duckdb(self) -> None:
        location = self.bench.iceberg().metadata_location
        duckdb_connection().execute("SELECT count(*), sum(id), max(value) FROM iceberg_scan(?)", [location]).fetchall()

    def check(self, table: HandmadeTable) -> None:
        for reader, read in {"PyIceberg": read_pyiceberg, "DuckDB": read_duckdb}.items():
            assert_same_rows(read(self.bench.iceberg()), table.live_rows(), f"{reader}, {self.name}")

    def points(self, name: str) -> Iterator[tuple[int, float]]:
        """Commit and value of each measurement of a figure; those of every commit as medians of the looks' steps."""
        if name == "round_ms":
            yield from self.round_ms.items()
        elif name in ("sync_ms", "sync_cpu_ms"):
            values: dict[int, float] = getattr(self, name)
            for end in range(SAMPLE_EVERY, max(values) + 1, SAMPLE_EVERY):
                yield end, percentile([values[commit] for commit in range(end - SAMPLE_EVERY + 1, end + 1)], 50)
        else:
            for look in self.looks:
                value = getattr(look, name)
                if value is not None:
                    yield look.commit, value

    def median(self, name: str, end: int) -> float | None:
        """Of the window that ends with commit `end`; None when nothing was measured in it."""
        points = getattr(self, name).items() if name in ("sync_ms", "sync_cpu_ms") else self.points(name)
        values = [value for commit, value in points if end - WINDOW < commit <= end]
        return percentile(values, 50) if values else None


def _scan_ms(scan: Callable[[], object]) -> float:
    times_ms: list[float] = []
    while len(times_ms) < SCANS and (not times_ms or times_ms[0] <= SCAN_REPEATED_MAX_MS):
        start_s = time.perf_counter()
        scan()
        times_ms.append((time.perf_counter() - start_s) * 1000)
    return percentile(times_ms, 50)


@dataclass(frozen=True)
class Machine:
    """This process, and everything that runs beside it, at the end of a window."""

    memory_mb: float
    load_1min: float


@dataclass(frozen=True)
class Figures:
    """Medians of one figure over the first, the settled and the last window."""

    figure: str
    side: str
    first: float | None
    settled: float | None
    last: float | None

    @property
    def ratio(self) -> float | None:
        return self.last / self.settled if self.last and self.settled else None


def measure(
    folder: Path, *, commits: int, round_every: int, seed: int, format_version: int
) -> tuple[list[Side], dict[int, Machine]]:
    """Both sides after `commits` commits, and the machine at the end of each window."""
    machine: dict[int, Machine] = {}
    duckdb_connection().execute("SET enable_external_file_cache = false")
    with TemporaryDirectory(dir=folder) as name:
        table = HandmadeTable(Path(name) / "lake")
        table.create()
        clock = MovedClock()
        options = {"format_version": format_version}
        benches = {side: Bench(Path(name) / side, table.location, clock=clock, table_options=options) for side in SIDES}
        sides = [
            Side(side, bench, Maintainer(bench.context) if side == "with maintenance" else None)
            for side, bench in benches.items()
        ]
        life = Life(table, Random(seed))
        for side in sides:
            side.bench.first_sync_empty(table)
        life.begin()
        for side in sides:
            side.bench.follower.sync()
        for commit in range(1, commits + 1):
            clock.passed_s += COMMIT_EVERY_S
            life.go_on(commit)
            # Turns change: what the one leaves in caches must not always serve the other.
            for side in sides if commit % 2 else reversed(sides):
                side.sync(commit)
                if commit % SAMPLE_EVERY == 0:
                    side.look(commit, scan=commit % WINDOW == 0)
                if commit % round_every == 0:
                    side.maintain(commit)
            if commit % WINDOW == 0:
                machine[commit] = Machine(psutil.Process().memory_info().rss / 1e6, os.getloadavg()[0])
        for side in sides:
            side.check(table)
            side.bench.close()
    return sides, machine


def figures_of(sides: list[Side], windows: tuple[int, int, int]) -> list[Figures]:
    """The figures of the windows that end with these commits."""
    found = [
        Figures(name, side.name, *(side.median(name, end) for end in windows)) for name in FIGURES for side in sides
    ]
    return [figures for figures in found if figures.last is not None]


def table_lines(figures: list[Figures], windows: tuple[int, int, int], machine: dict[int, Machine]) -> list[str]:
    spans = "".join(f"{f'{end - WINDOW + 1:,}-{end:,}':>13}" for end in windows)
    lines = [f"{'':24}{'':18}{'first':>13}{'settled':>13}{'last':>13}", f"{'commits':24}{'':18}{spans}{'ratio':>8}"]
    for f in figures:
        values = "".join(f"{'-' if value is None else f'{value:,.1f}':>13}" for value in (f.first, f.settled, f.last))
        lines.append(f"{FIGURES[f.figure]:24}{f.side:18}{values}{'-' if f.ratio is None else f'{f.ratio:.2f}':>8}")
    lines.append(
        f"{'RSS of this process, MB':24}{'':18}" + "".join(f"{machine[end].memory_mb:13,.1f}" for end in windows)
    )
    lines.append(f"{'load, 1 min':24}{'':18}" + "".join(f"{machine[end].load_1min:13.1f}" for end in windows))
    lines += ["", "without / with maintenance, last window"]
    last = {(f.figure, f.side): f.last or 0.0 for f in figures}
    for name, title in FIGURES.items():
        if (name, "without") in last:
            lines.append(f"{title:24}{last[name, 'without'] / last[name, 'with maintenance']:8.1f}")
    return [
        *lines,
        "both tables have the rows of the Delta table, read by PyIceberg and DuckDB",
        f"target: no ratio with maintenance above {TARGET_RATIO}",
    ]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--commits", type=int, default=2_000, help="a multiple of the window (%(default)s)")
    options.add_argument("--round-every", type=int, default=50, help="commits between two rounds (%(default)s)")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--format-version", type=int, choices=(2, 3), default=2, help="of the Iceberg tables")
    arguments = options.parse_args()
    if arguments.commits < WINDOW or arguments.commits % WINDOW:
        options.error(f"--commits must be a multiple of {WINDOW}")
    before = conditions(arguments.folder)
    sides, machine = measure(
        arguments.folder,
        commits=arguments.commits,
        round_every=arguments.round_every,
        seed=arguments.seed,
        format_version=arguments.format_version,
    )
    windows = (WINDOW, -(-arguments.commits // (4 * WINDOW)) * WINDOW, arguments.commits)
    figures = figures_of(sides, windows)
    report: dict[str, Any] = {
        "windows": windows,
        "results": [{**asdict(f), "ratio": f.ratio} for f in figures],
        "curves": {side.name: {name: list(side.points(name)) for name in FIGURES} for side in sides},
        "machine": {commit: asdict(at) for commit, at in machine.items()},
        "target_ratio": TARGET_RATIO,
    }
    print_report(arguments, before, report, table_lines(figures, windows, machine))


if __name__ == "__main__":
    main()
