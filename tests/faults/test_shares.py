"""Several daemons that divide the tables of one configuration, each a process with a state database of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from daemon.config.share import Share
from state import FileStatus
from tests.kit.checks import check_files, check_memory, duckdb_rows, metadata_files, read_entries, rows_of, table_id
from tests.kit.daemons import Daemon, command, daemon, until
from tests.kit.handmade import Bench, HandmadeTable

CONFIG = """
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
health: {port: 0}
log: {format: json}
defaults: {poll_interval: 200ms}
maintenance: {steps: [], snapshots_max: 1, orphan_grace: 1m}
tables:
- {source: lake/*/, target: "lake.{name}"}
- {source: a, target: lake.a}
- {source: b, target: lake.b}
"""
FOLDERS = ("lake/t0", "lake/t1", "lake/t6", "a", "b")
# Which tables each share has: tests/unit/config/test_share.py tests the split itself.
OF_TWO = {"1/2": {"lake.t0", "lake.t6", "lake.b"}, "2/2": {"lake.t1", "lake.a"}}
OF_THREE = {"1/3": {"lake.t6", "lake.b"}, "2/3": {"lake.t1"}, "3/3": {"lake.t0", "lake.a"}}
HOUR_S = 3_600


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.yaml"
        self.config.write_text(CONFIG)
        self.tables = {f"lake.{path.rpartition('/')[2]}": HandmadeTable(folder / path) for path in FOLDERS}
        for table in self.tables.values():
            table.create()

    def environment(self, share: str, **more: str) -> Mapping[str, str]:
        """Each share's database keeps its number while the count changes."""
        url = f"sqlite:///{self.folder}/state-{share[0]}.db"
        return {**os.environ, "DVSYNC_SHARE": share, "DVSYNC_STATE__URL": url, **more}

    def daemon(self, share: str) -> Daemon:
        running = Daemon(self.config, self.environment(share))
        running.launch()
        return running

    def command(self, share: str, *words: str, ahead_s: int = 0) -> tuple[int, str]:
        clock = self.folder / "clock"
        clock.write_text(str(ahead_s))
        done = command(self.config, *words, environment=self.environment(share, CLOCK_FILE=str(clock)))
        return done.returncode, done.stdout + done.stderr

    def change(self) -> None:
        """Two versions of each table: a file more, and deletions in it and in the oldest."""
        for table in self.tables.values():
            first = 10 * len(table.rows)
            table.commit([table.add(table.write_file([(first + n, "x", f"v{n}") for n in range(6)]))])
            free = {path: min(set(range(6)) - gone) for path, gone in table.deleted.items() if len(gone) < 6}
            table.commit(table.delete({path: [position] for path, position in free.items()}))

    def bench(self, name: str, share: str) -> Bench:
        return Bench(
            self.folder,
            self.tables[name].location,
            target=name,
            name=name,
            state_name=f"state-{share[0]}.db",
            catalog_uri=f"sqlite:///{self.folder}/catalog.db",
        )

    def check(self, owned: Mapping[str, set[str]], running: Mapping[str, Daemon]) -> None:
        """Each daemon follows its tables and no others to the end, and every reader finds Delta's rows."""
        for share, names in owned.items():
            for name in names:
                running[share].synced_to(name, self.tables[name].version)
            assert set(running[share].tables()) == names, "and none of the others is gone"
            assert running[share].get("/readyz") == (200, {"ready": True, "share": share, "reasons": []})
            assert not [line for line in running[share].lines if line["event"] in ("sync.failed", "table.gone")]
            for name in names:
                with closing(self.bench(name, share)) as bench:
                    iceberg = bench.iceberg()
                    assert rows_of(iceberg.scan().to_arrow()) == self.tables[name].live_rows()
                    assert duckdb_rows(iceberg) == self.tables[name].live_rows()
                    check_memory(bench, iceberg, read_entries(iceberg), self.tables[name])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def stop(running: Mapping[str, Daemon]) -> None:
    for each in running.values():
        each.signal(signal.SIGTERM)
    for each in running.values():
        assert each.end() == 0


def start(world: World, owned: Mapping[str, set[str]], opened: ExitStack) -> dict[str, Daemon]:
    running = {}
    for share in owned:
        running[share] = world.daemon(share)
        opened.callback(running[share].kill)
        running[share].started()
    return running


def test_each_table_has_one_daemon_and_every_surface_says_which(world):
    """Listed tables and those of a pattern; what concerns another share's table names that share."""
    world.change()
    with ExitStack() as opened:
        running = start(world, OF_TWO, opened)
        world.check(OF_TWO, running)
        world.change()
        world.check(OF_TWO, running)
        for share, names in OF_TWO.items():
            for name in names:
                with closing(world.bench(name, share)) as bench:
                    assert {snapshot.summary["dvsync.share"] for snapshot in bench.iceberg().snapshots()} == {share}

        belongs = "the table belongs to share 2/2, and this daemon is 1/2"
        assert running["1/2"].get("/api/tables/lake.a") == (404, {"error": belongs})
        assert 'dvsync_share{share="1/2"} 1.0' in running["1/2"].fetch("/metrics")
        assert "share 1/2" in running["1/2"].fetch("/")
        for word in ("pause", "forget"):
            code, text = world.command("1/2", word, "lake.a")
            assert code == 2
            assert "lake.a: belongs to share 2/2, and `share` is 1/2; its state is in that share's database" in text
        code, text = world.command("1/2", "status")
        lines = text.splitlines()
        assert (code, {line.split()[0] for line in lines if " synced=" in line}) == (0, OF_TWO["1/2"])
        assert any(line.startswith("daemon: ") and line.endswith(", share 1/2") for line in lines)
        assert world.command("1/2", "doctor", "lake.a")[0] == 0
        code, text = world.command("1/2", "config", "check")
        assert "share: 1/2" in text and "lake.a, every 0.2 s, share 2/2" in text
    assert "share 1/2; tables of other shares: 2" in world.command("1/2", "status")[1].splitlines()


def test_one_state_database_for_two_shares_is_refused(world):
    """Otherwise the second daemon would stand by, and nobody would follow its tables."""
    with daemon(world.config, world.environment("1/2")) as first:
        first.synced_to("lake.b", 0)
        confused = {**world.environment("2/2"), "DVSYNC_STATE__URL": world.environment("1/2")["DVSYNC_STATE__URL"]}
        for word in ("run", "status"):
            refused = command(world.config, word, environment=confused)
            assert refused.returncode == 2
            assert "state-1.db belongs to share 1, but `share` is 2/2" in refused.stderr + refused.stdout
        # The same share, also of another count, stands by.
        with daemon(world.config, world.environment("1/3")) as second:
            until(lambda: "standing by: the lease is held by" in second.reasons())


def test_tables_that_move_are_followed_at_once_and_keep_nothing_for_ever(world):
    """Two shares, then three, then two again: no version is missing, no file is lost, and quiet tables do not wait."""
    with ExitStack() as opened:
        running = start(world, OF_TWO, opened)
        world.change()
        world.check(OF_TWO, running)
        stop(running)

    with ExitStack() as opened:
        running = start(world, OF_THREE, opened)
        # Nothing has changed in Delta meanwhile.
        world.check(OF_THREE, running)
        moved = [line["table"] for line in running["3/3"].lines if line["event"] == "target.moved"]
        assert set(moved) == OF_THREE["3/3"]
        world.change()
        world.check(OF_THREE, running)
        stop(running)

    code, text = world.command("3/3", "cleanup", "--scan", "--remove")
    assert code == 0, text
    for name in OF_THREE["3/3"]:
        with closing(world.bench(name, "3/3")) as bench:
            iceberg = bench.iceberg()
            check_files([bench], iceberg, read_entries(iceberg))
    assert "expired" in world.command("3/3", "expire")[1]
    for hours in (2, 4):
        assert world.command("3/3", "cleanup", ahead_s=hours * HOUR_S)[0] == 0
    for name in OF_THREE["3/3"]:
        with closing(world.bench(name, "3/3")) as bench:
            iceberg = bench.iceberg()
            left = bench.store.list_written(table_id(bench), (FileStatus.ORPHANED,))
            assert {file.path for file in left} <= metadata_files(iceberg), "the catalog's commits remove these"
            check_files([bench], iceberg, read_entries(iceberg))
            assert duckdb_rows(iceberg) == world.tables[name].live_rows()

    with ExitStack() as opened:
        running = start(world, OF_TWO, opened)
        world.check(OF_TWO, running)
        world.change()
        world.check(OF_TWO, running)
        stop(running)
    # What the first owner remembered of before the move does no harm now.
    for share in OF_TWO:
        assert world.command(share, "cleanup", "--scan", "--remove", ahead_s=6 * HOUR_S)[0] == 0
    for share, names in OF_TWO.items():
        for name in names:
            with closing(world.bench(name, share)) as bench:
                iceberg = bench.iceberg()
                check_files([bench], iceberg, read_entries(iceberg))
                assert duckdb_rows(iceberg) == world.tables[name].live_rows()


def test_a_table_whose_new_target_belongs_to_another_share_can_be_forgotten(world):
    """It is gone for its former share, and the Iceberg table of the former target stays; for the other it is new."""
    named = CONFIG.replace("{source: a, target: lake.a}", "{source: a, target: lake.a, name: a}")
    world.config.write_text(named)
    newest = world.tables["lake.a"].version
    with ExitStack() as opened:
        running = start(world, {"2/2": set()}, opened)
        running["2/2"].synced_to("a", newest)
        stop(running)
    target = next(name for number in range(99) if Share(1, 2).owns(name := f"lake.a{number}"))
    world.config.write_text(named.replace("target: lake.a,", f"target: {target},"))
    with ExitStack() as opened:
        running = start(world, OF_TWO, opened)
        running["1/2"].synced_to("a", newest)
        until(lambda: running["2/2"].tables().get("a", {}).get("state") == "gone", "the table that left")
        assert world.command("2/2", "forget", "a") == (0, "a: forgotten\n")
        until(lambda: "a" not in running["2/2"].tables(), "the table that was forgotten")
        assert running["1/2"].tables()["a"]["state"] == "synced"
