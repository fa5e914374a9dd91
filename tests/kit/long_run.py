"""A long life of one table, from a seed: commits, VACUUM, syncs and maintenance, with failures and kills in between.

Run as `python -m tests.kit.long_run FOLDER SEED CYCLES FORMAT_VERSION`; the last line is `end all well`. Each cycle is
a process of its own, and some do not survive.
"""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Event

import pytest

from daemon.config.settings import MaintenanceSettings
from daemon.errors import CommitOutcomeUnknown, Retryable
from daemon.maintenance import cleanup, compaction
from daemon.maintenance.maintainer import Maintainer
from daemon.translate import definition
from state import FileStatus
from tests.kit.checks import check_memory, duckdb_rows, metadata_files, read_entries, rows_of, table_id
from tests.kit.faults import TARGETS, Faults
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.handmade_histories import History
from tests.kit.handmade_mirrored import Mirrored
from tests.kit.kill_server import Trace, in_a_process

CYCLE_S = 60
GRACE_S = 10 * CYCLE_S
# VACUUM takes what left the table so many cycles ago.
VACUUM_AFTER = 6
CHECK_EVERY = 20


@dataclass
class LaterClock:
    """The system's clock, and as many minutes later as there were cycles."""

    cycles: int

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.cycles * CYCLE_S * 1000

    def monotonic_s(self) -> float:
        return time.monotonic() + self.cycles * CYCLE_S


@dataclass
class World:
    """The Delta table and what must be known of it from one cycle to the next."""

    folder: Path
    seed: str
    granularity: str
    format_version: int
    history: History
    dead_since: dict[Path, int] = field(default_factory=dict)
    # The metadata file of somebody else's commit, which no state store knows.
    foreign: str | None = None

    @classmethod
    def make(cls, folder: Path, seed: str, format_version: int) -> World:
        random = Random(seed)
        table = random.choice((HandmadeTable, Mirrored))(folder / "delta", partitioned=True)
        table.create()
        granularity = random.choice(("file", "partition"))
        world = cls(folder, seed, granularity, format_version, History(table, random))
        for _ in range(3):
            world.history.play()
        world.save()
        return world

    @classmethod
    def load(cls, folder: Path) -> World:
        world: World = pickle.loads((folder / "world").read_bytes())
        return world

    def save(self) -> None:
        (self.folder / "world").write_bytes(pickle.dumps(self))

    @property
    def table(self) -> HandmadeTable:
        return self.history.table

    def bench(self, cycle: int) -> Bench:
        compaction.DELETE_FILES_MAX, compaction.DELETED_SHARE = 2, 0.5
        compaction.PARTITION_DELETE_FILES_MAX, compaction.DEAD_SHARE = 3, 0.2
        cleanup.HISTORY_MS = 3 * GRACE_S * 1000
        definition.DELETE_GRANULARITY_DEFAULT = self.granularity
        maintenance = MaintenanceSettings(snapshots_max=6, orphan_grace=f"{GRACE_S} s")
        return Bench(
            self.folder / "dvsync",
            self.table.location,
            clock=LaterClock(cycle),
            table_options={"format_version": self.format_version, "maintenance": maintenance, "mirrors": "copy"},
        )

    def change(self, random: Random, cycle: int) -> None:
        """Up to three commits, and VACUUM now and then."""
        for _ in range(random.choice((0, 1, 1, 1, 3))):
            self.history.play()
        live = {self.table.folder / path for path in self.table.live}
        live |= {self._dv_file(action) for action in self.table.live.values()}
        there = set(self.table.folder.rglob("*.parquet")) | set(self.table.folder.rglob("*.bin"))
        self.dead_since = {path: self.dead_since.get(path, cycle) for path in there - live}
        if random.random() < 0.15:
            for path, since in self.dead_since.items():
                if cycle - since >= VACUUM_AFTER:
                    path.unlink()
        self.save()

    def _dv_file(self, action: dict[str, object]) -> Path:
        descriptor = action.get("deletionVector")
        assert descriptor is None or isinstance(descriptor, dict)
        return self.table.dv_files[descriptor["pathOrInlineDv"]] if descriptor else self.table.folder


def works(bench: Bench, random: Random) -> tuple[str, Callable[[], object]]:
    """What dvsync does in a cycle."""
    maintainer, stop = Maintainer(bench.context), Event()
    choices: dict[str, tuple[int, Callable[[], object]]] = {
        "sync": (8, bench.follower.sync),
        "compact": (2, lambda: maintainer.compact(stop)),
        "expire": (2, maintainer.expire),
        "cleanup": (2, lambda: maintainer.clean_up(stop)),
        "round": (2, lambda: maintainer.run(stop)),
        "beside": (3, lambda: beside(bench.follower.sync, lambda: maintainer.run(stop))),
    }
    (name,) = random.choices(list(choices), [weight for weight, _ in choices.values()])
    return name, choices[name][1]


def beside(one: Callable[[], object], other: Callable[[], object]) -> None:
    """Both at the same time; what either raises is raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            other()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        one()
    finally:
        thread.join()
    if raised:
        raise raised[0]


def live(folder: Path, cycle: int) -> str:
    """One cycle; what it did, and how it ended if it was not killed."""
    world = World.load(folder)
    random = Random(f"{world.seed} {cycle}")
    world.change(random, cycle)
    bench = world.bench(cycle)
    name, work = works(bench, random)
    kill_at = random.randrange(40) if random.random() < 0.5 else None
    probability = random.choice((0, 0, 0.02, 0.05))
    faults = Faults(pytest.MonkeyPatch(), random, probability=probability, kinds=list(TARGETS))
    try:
        with faults.on():
            if kill_at is None:
                work()
            else:
                Trace(folder / "dvsync", kill_at).watch(work)
    except (Retryable, CommitOutcomeUnknown) as error:
        return f"{name}: {error.kind} {faults.told}"
    return f"{name}: done"


def check(folder: Path, cycle: int) -> str:
    """Nothing fails now: one sync and one cleanup, and everything is as it must be."""
    world = World.load(folder)
    bench = world.bench(cycle)
    while bench.follower.sync().more:
        pass
    if "commit.manifest.min-count-to-merge" not in bench.iceberg().properties:
        with bench.iceberg().transaction() as transaction:
            transaction.set_properties({"commit.manifest.min-count-to-merge": "4"})
        world.foreign = bench.iceberg().metadata_location
        world.save()
        bench.follower.sync()
    maintainer = Maintainer(bench.context)
    maintainer.expire()
    maintainer.clean_up(Event())
    if world.foreign and world.foreign not in metadata_files(bench.iceberg()):
        # PyIceberg deletes a metadata file that leaves the metadata log, but says nothing if the store fails then.
        Path(world.foreign.removeprefix("file://")).unlink(missing_ok=True)
    check_all(bench, world.table)
    return f"checked at version {world.table.version}: {len(bench.iceberg().snapshots())} snapshots"


def check_all(bench: Bench, table: HandmadeTable) -> None:
    """Rows equal, nothing referenced is missing, every other file is known and younger than the grace period."""
    iceberg = bench.iceberg()
    assert rows_of(iceberg.scan().to_arrow()) == table.live_rows()
    assert duckdb_rows(iceberg) == table.live_rows()
    entries = read_entries(iceberg)
    for snapshot in iceberg.snapshots():
        iceberg.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    check_memory(bench, iceberg, entries, table)
    referenced = metadata_files(iceberg) | {snapshot.manifest_list for snapshot in iceberg.snapshots()} | set(entries)
    referenced |= {entry.data_file.file_path for members in entries.values() for entry in members}
    gone = [path for path in referenced if not Path(path.removeprefix("file://")).is_file()]
    assert not gone, "referenced, but not there"
    folder = Path(iceberg.location().removeprefix("file://"))
    unreferenced = {f"file://{path}" for path in folder.rglob("*") if path.is_file()} - referenced
    orphans = {file.path: file.since_ms for file in bench.store.list_written(table_id(bench), (FileStatus.ORPHANED,))}
    assert sorted(unreferenced - orphans.keys()) == [], "on disk, but unknown"
    oldest_ms = bench.clock.now_ms() - GRACE_S * 1000 - 60_000
    assert [path for path in unreferenced if orphans[path] < oldest_ms] == [], "older than the grace period"


def end(folder: Path, cycle: int) -> str:
    """The table is left alone for long enough: only what the kept snapshots need is there."""
    check(folder, cycle)
    for later in (1, 2):
        bench = World.load(folder).bench(cycle + later * (GRACE_S // CYCLE_S + 1))
        Maintainer(bench.context).run(Event())
    scanned = Maintainer(bench.context).clean_up(Event(), scan=True)
    assert not scanned.found, scanned.found
    check_all(bench, World.load(folder).table)
    return "all well"


def main() -> None:
    folder, seed, cycles, format_version = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    warnings.simplefilter("error")
    gc.freeze()
    steps: list[tuple[str, Callable[[], object]]] = [
        ("make", lambda: World.make(folder, seed, format_version) and "made")
    ]
    for cycle in range(cycles):
        steps.append((f"cycle {cycle}", lambda cycle=cycle: live(folder, cycle)))  # type: ignore[misc]
        if cycle % CHECK_EVERY == CHECK_EVERY - 1:
            steps.append((f"check {cycle}", lambda cycle=cycle: check(folder, cycle)))  # type: ignore[misc]
    steps.append(("end", lambda: end(folder, cycles)))
    for name, work in steps:
        answer = in_a_process(work)
        assert isinstance(answer, dict)
        print(name, answer.get("result", answer), flush=True)
        if "error" in answer or ("signal" in answer and not name.startswith("cycle")):
            sys.exit(f"{name} failed with seed {seed}\n{answer.get('error', answer)}")


if __name__ == "__main__":
    main()
