"""Minutes of load on two daemons of one state, one at work and one standing by, while everything goes wrong.

Run as `python -m tests.kit.load_run FOLDER SEED SECONDS`; it prints each fault, and `end all well` last. In the end
every table has to be right, by its readers and by the files on disk.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random

from tests.kit.checks import check_memory, duckdb_rows, read_entries, rows_of, shown_versions
from tests.kit.daemons import Daemon, until
from tests.kit.handmade import Bench
from tests.kit.load import Load

CONFIG = """
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
health: {port: 0}
log: {format: json}
limits: {tables_at_once: 4}
defaults: {poll_interval: 300ms}
maintenance: {interval: 3s, snapshots_max: 20, orphan_grace: 1m}
tables:
"""
# Every second table has format version 3.
TABLE = """- {{source: lake/*{digit}/, target: "lake.{{name}}", name: "{{name}}", format_version: {version}}}
"""
CONSTANTS = json.dumps({"daemon.sync.other_writer.LEASE_S": 2.0, "daemon.maintenance.compaction.DELETE_FILES_MAX": 3})
TABLES, BUSY = 12, 6
SETTLE_S = 600.0
# A run of this length has a minute for the catalog alone.
LONG_RUN_S = 300.0


class World:
    """The two daemons and what is done to them."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder = folder
        self.random = random
        self.config = folder / "config.yaml"
        tables = [TABLE.format(digit=digit, version=2 + digit % 2) for digit in range(10)]
        self.config.write_text(CONFIG + "".join(tables))
        self.clock_file = folder / "clock"
        self.clock_file.write_text("0")
        self.load = Load(folder / "lake", random, count=TABLES, busy=BUSY, interval_s=1.0)
        self.daemons = [self.start(), self.start()]

    def start(self, *, faulty: bool = False) -> Daemon:
        environment = {"FAULTS": str(self.random.random())} if faulty else {"CLOCK_FILE": str(self.clock_file)}
        daemon = Daemon(self.config, environment={**os.environ, **environment, "CONSTANTS": CONSTANTS})
        daemon.launch()
        return daemon

    def pick(self) -> int:
        return self.random.randrange(len(self.daemons))

    # --- faults ---

    def kill(self) -> None:
        number = self.pick()
        self.daemons[number].kill()
        self.daemons[number] = self.start()

    def terminate(self) -> None:
        number = self.pick()
        self.daemons[number].signal(signal.SIGTERM)
        self.daemons[number].end()
        self.daemons[number].kill()
        self.daemons[number] = self.start()

    def suspend(self) -> None:
        """For longer than the lease: it ends by itself when it was the holder."""
        number = self.pick()
        self.daemons[number].signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(3, 6))
        self.daemons[number].signal(signal.SIGCONT)
        time.sleep(2)
        if self.daemons[number].process.poll() is not None:
            self.daemons[number].kill()
            self.daemons[number] = self.start()

    def lock(self, name: str, least_s: float = 3.0) -> None:
        """Nobody can use this database for a while."""
        with closing(sqlite3.connect(self.folder / name, timeout=30, isolation_level=None)) as database:
            database.execute("begin exclusive")
            time.sleep(self.random.uniform(least_s, least_s + 6))
            database.execute("rollback")

    def catalog_away(self) -> None:
        self.lock("catalog.db")

    def catalog_away_for_a_minute(self) -> None:
        self.lock("catalog.db", least_s=60.0)

    def state_away(self) -> None:
        self.lock("state.db")

    def flaky(self) -> None:
        """Whatever dvsync stands on fails one time in five."""
        for number in range(len(self.daemons)):
            self.daemons[number].kill()
        failing = self.start(faulty=True)
        time.sleep(self.random.uniform(4, 8))
        failing.kill()
        self.daemons = [self.start(), self.start()]

    def jump(self) -> None:
        """The wall clock goes by up to a day, either way."""
        self.clock_file.write_text(str(self.random.choice((-86_400, -3_600, -30, 0, 5, 3_600))))

    def reload(self) -> None:
        for daemon in self.daemons:
            daemon.signal(signal.SIGHUP)

    def run(self, seconds: float) -> Counter[str]:
        faults = [
            *[self.kill] * 4, self.terminate, self.suspend, self.catalog_away, self.state_away, self.flaky, self.jump,
            self.reload,
        ]  # fmt: skip
        first = [self.catalog_away_for_a_minute] if seconds >= LONG_RUN_S else []
        done: Counter[str] = Counter()
        end_s = time.monotonic() + seconds
        self.load.start()
        try:
            while time.monotonic() < end_s:
                time.sleep(self.random.uniform(0.5, 3))
                fault = first.pop() if first else self.random.choice(faults)
                print(f"{end_s - time.monotonic():.0f} s left: {fault.__name__}", flush=True)
                fault()
                done[fault.__name__] += 1
        finally:
            self.load.stop()
        return done

    def settle(self) -> None:
        """Without faults, every table comes in step by itself."""
        self.clock_file.write_text("0")
        for daemon in self.daemons:
            daemon.kill()
        (last,) = self.daemons = [self.start()]
        last.started()
        wanted = {name: table.version for name, table in self.load.tables.items()}

        def in_step() -> bool:
            return {name: status["synced_version"] for name, status in last.tables().items()} == wanted

        try:
            until(in_step, "all tables in step", wait_s=SETTLE_S)
        except AssertionError:
            for status in last.tables().values():
                print(
                    status["name"], status["state"], status["synced_version"], wanted[status["name"]], status["error"]
                )
            raise
        last.signal(signal.SIGTERM)
        assert last.end() == 0

    def check(self) -> None:
        for name, table in self.load.tables.items():
            bench = Bench(self.folder, table.location, target=f"lake.{name}", name=name, catalog_uri=self.catalog_uri)
            with closing(bench):
                iceberg = bench.iceberg()
                assert iceberg.metadata.format_version == 2 + int(name[-1]) % 2, name
                assert rows_of(iceberg.scan().to_arrow()) == table.live_rows(), name
                assert duckdb_rows(iceberg) == table.live_rows(), name
                versions = shown_versions(iceberg)
                assert versions == sorted(versions), f"{name} went back: {versions}"
                check_memory(bench, iceberg, read_entries(iceberg), table)

    @property
    def catalog_uri(self) -> str:
        return f"sqlite:///{self.folder}/catalog.db"


def main(folder: Path, seed: str, seconds: float) -> None:
    world = World(folder, Random(seed))
    try:
        done = world.run(seconds)
        world.settle()
        world.check()
    finally:
        for daemon in world.daemons:
            daemon.kill()
    commits = len(world.load.committed_s)
    print(f"{commits} commits on {BUSY} of {TABLES} tables; {dict(done)}")
    print("end all well")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
