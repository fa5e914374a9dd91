"""One writer: who holds the lease works, the next one stands by, and whoever comes back late does nothing any more."""

from __future__ import annotations

import signal
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event

import pytest
from filelock import FileLock
from pyiceberg.catalog import load_catalog

from daemon.clock import SystemClock
from daemon.errors import CommitConflict, CommitOutcomeUnknown, StateStoreAway, TargetChanged, TargetHeld
from daemon.iceberg import target
from daemon.pipeline.runner import Runner
from daemon.service.lease import LeaseKeeper, hold_lease
from daemon.sync.context import Writer
from daemon.sync.recovery import end_intents
from daemon.texts import iso_time
from state import LeaseLost, StateUnavailable
from state.sql.store import StateStore
from tests.kit.checks import duckdb_rows
from tests.kit.daemons import command, daemon, set_constants, until
from tests.kit.handmade import Bench, HandmadeTable, sql_catalog

CONFIG = """
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
health: {port: 0}
log: {format: json}
defaults: {poll_interval: 200ms, engine: local}
tables: [{source: delta, target: lake.t, name: t}]
"""


START_MS = SystemClock().now_ms()


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    set_constants(monkeypatch, {"daemon.sync.other_writer.LEASE_S": 2.0})


class Clock(SystemClock):
    """Time that the test moves."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def monotonic_s(self) -> float:
        return self.time_s

    def now_ms(self) -> int:
        return START_MS + round(self.time_s * 1000)


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    table.commit([table.add(table.write_file([(number, "x", "v") for number in range(20)]))])
    return table


def delete_next(table: HandmadeTable) -> int:
    """Delete one more row; the version."""
    path = next(iter(table.live))
    return table.commit(table.delete({path: [len(table.deleted.get(path, ()))]}))


@contextmanager
def read_only(file: Path) -> Iterator[None]:
    """Nobody may write the file, root neither; skips the test where that cannot be had."""
    if subprocess.run(["chattr", "+i", file], capture_output=True, check=False).returncode:
        pytest.skip("chattr cannot make a file immutable here")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", file], check=True)


def write_config(folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(CONFIG)
    return path


def shown_once(folder: Path, table: HandmadeTable) -> None:
    """The rows are Delta's, and every version from the second on has exactly one snapshot."""
    bench = Bench(folder / "reader", table.location, catalog_uri=f"sqlite:///{folder}/catalog.db")
    with closing(bench):
        iceberg = bench.iceberg()
        assert duckdb_rows(iceberg) == table.live_rows()
        versions = [int(snapshot.summary["dvsync.delta.version"]) for snapshot in iceberg.snapshots()]
        assert versions == list(range(versions[0], table.version + 1))


# --- the database's file ---


def test_a_daemon_ends_when_its_state_database_is_removed(tmp_path: Path, table: HandmadeTable) -> None:
    """What it wrote from then on would be lost. The next one begins with a new database, and needs no snapshot."""
    config = write_config(tmp_path)
    with daemon(config) as running:
        running.synced_to("t", table.version)
        for file in tmp_path.glob("state.db*"):
            file.unlink()
        lost = running.told("lease.lost")
        assert "was removed or replaced while dvsync was running" in lost["reason"]
        assert running.end() == 1
    with closing(load_catalog("local", **sql_catalog(tmp_path))) as catalog:
        shown = catalog.load_table("lake.t").current_snapshot()
    with daemon(config) as running:
        running.synced_to("t", table.version)
        assert running.tables()["t"]["last_synced_at"] == iso_time(shown.timestamp_ms), "the table did not sync anew"
        running.synced_to("t", delete_next(table))
    shown_once(tmp_path, table)


def test_a_daemon_ends_when_its_state_database_is_overwritten(tmp_path: Path, table: HandmadeTable) -> None:
    """By an older copy, at the same place: the daemon's connections would go on with the contents of before."""
    config, state = write_config(tmp_path), tmp_path / "state.db"
    with daemon(config) as running:
        running.synced_to("t", table.version)
    older = state.read_bytes()
    with daemon(config) as running:
        running.synced_to("t", delete_next(table))
        running.signal(signal.SIGSTOP)
        state.write_bytes(older)
        for suffix in ("-wal", "-shm"):
            state.with_name(f"{state.name}{suffix}").unlink()
        running.signal(signal.SIGCONT)
        assert "was removed or replaced while dvsync was running" in running.told("lease.lost")["reason"]
        assert running.end() == 1
    # Nothing of the former contents was written into the copy.
    assert state.read_bytes() == older
    with daemon(config) as running:
        running.synced_to("t", delete_next(table))
    shown_once(tmp_path, table)


def test_a_daemon_ends_when_its_state_database_is_restored(tmp_path: Path, table: HandmadeTable) -> None:
    """From a backup of its own time, by SQLite's own way, which leaves the file and the log where they are."""
    config = write_config(tmp_path)
    with closing(sqlite3.connect(tmp_path / "backup.db")) as backup, daemon(config) as running:
        running.synced_to("t", table.version)
        with closing(sqlite3.connect(tmp_path / "state.db")) as state:
            state.backup(backup)
        running.synced_to("t", delete_next(table))
        with closing(sqlite3.connect(tmp_path / "state.db")) as state:
            renewed = state.execute("SELECT renewals FROM lease").fetchone()[0] + 2
            until(lambda: state.execute("SELECT renewals FROM lease").fetchone()[0] >= renewed, "two renewals")
        with closing(sqlite3.connect(tmp_path / "state.db")) as state:
            backup.backup(state)
        assert "replaced by older ones" in running.told("lease.lost")["reason"]
        assert running.end() == 1
    with daemon(config) as running:
        running.synced_to("t", delete_next(table))
    shown_once(tmp_path, table)


def test_a_stand_by_ends_too_when_the_state_database_is_removed(tmp_path: Path, table: HandmadeTable) -> None:
    """It could never take the lease of the new database. Its supervisor starts it again, and it stands by there."""
    config = write_config(tmp_path)
    with daemon(config) as running:
        running.synced_to("t", table.version)
        with daemon(config) as standby:
            standby.told("daemon.standing_by")
            for file in tmp_path.glob("state.db*"):
                file.unlink()
            assert running.end() == 1
            assert "was removed or replaced" in standby.told("lease.lost")["reason"]
            assert standby.end() == 1


def test_a_database_whose_folder_is_away_is_unavailable(tmp_path: Path) -> None:
    """Until it is back: that is no reason to end."""
    (tmp_path / "state").mkdir()
    with closing(StateStore.open(f"sqlite:///{tmp_path}/state/state.db")) as store:
        (tmp_path / "state").rename(tmp_path / "away")
        (tmp_path / "state").write_text("a file")
        with pytest.raises(StateUnavailable, match="is not usable: Not a directory"):
            store.check_writable()
        (tmp_path / "state").unlink()
        (tmp_path / "away").rename(tmp_path / "state")
        store.check_writable()


def test_a_daemon_begins_when_its_state_database_can_be_written_again(tmp_path: Path, table: HandmadeTable) -> None:
    """SQLite opens such a file read-only. Until then the daemon says why nothing is followed, also `dvsync status`."""
    config = write_config(tmp_path)
    with daemon(config) as running:
        running.synced_to("t", table.version)
    delete_next(table)
    with read_only(tmp_path / "state.db"), daemon(config) as running:
        assert "cannot be written" in running.told("daemon.standing_by", level="error")["reason"]
        asked = command(config, "status", environment={"DVSYNC_HEALTH__PORT": running.url.rpartition(":")[2]})
        assert "the state database cannot be written, so nothing is followed" in asked.stderr
        assert "holds the lease" not in asked.stderr
        tried = command(config, "config", "check", "--connect")
        assert (tried.returncode, "attempt to write a readonly database" in tried.stdout) == (1, True), tried.stdout
        subprocess.run(["chattr", "-i", tmp_path / "state.db"], check=True)
        running.synced_to("t", table.version)


# --- two daemons, one state ---


def test_a_second_daemon_stands_by_and_takes_over_at_once_when_the_first_stops(tmp_path, table):
    """It says who holds the lease, is alive and not ready meanwhile, and goes on where the first one stopped."""
    config = write_config(tmp_path)
    with daemon(config) as first:
        first.synced_to("t", table.version)
        with daemon(config) as second:
            holder = second.told("daemon.standing_by")["holder"]
            assert f"process {first.process.pid} on " in holder
            assert f"the lease is held by {holder}" in second.reasons()
            assert second.get("/livez")[0] == 200
            assert "dvsync_standing_by 1.0" in second.fetch("/metrics")
            assert second.tables() == {}
            first.signal(signal.SIGTERM)
            assert first.end() == 0
            second.synced_to("t", delete_next(table))
            until(lambda: second.reasons() == "")
            assert "dvsync_standing_by 0.0" in second.fetch("/metrics")
    shown_once(tmp_path, table)


def test_a_second_daemon_with_the_same_port_names_the_first(tmp_path, table):
    """Most often its operator has forgotten that one runs. It ends with exit code 2, and the first goes on."""
    config = write_config(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config.write_text(config.read_text().replace("port: 0", f"port: {port}"))
    with daemon(config) as first:
        first.synced_to("t", table.version)
        second = command(config, "run")
        assert second.returncode == 2
        assert f"127.0.0.1:{port}" in second.stderr
        assert f"the state database is held by process {first.process.pid} on " in second.stderr
        first.synced_to("t", delete_next(table))
    with socket.create_server(("127.0.0.1", port)):
        alone = command(config, "run")
        assert (alone.returncode, "is held by" in alone.stderr) == (2, False)


def test_a_stand_by_follows_what_the_configuration_says_by_then(tmp_path, table):
    """SIGHUP while standing by is heard: what was removed meanwhile does not come back with the take-over."""
    config = write_config(tmp_path)
    with daemon(config) as first:
        first.synced_to("t", table.version)
        with daemon(config) as second:
            second.told("daemon.standing_by")
            config.write_text(config.read_text().replace("name: t}", "name: u}"))
            second.signal(signal.SIGHUP)
            second.told("config.reloaded")
            config.write_text(config.read_text() + "nonsense: 1\n")
            second.signal(signal.SIGHUP)
            assert "nonsense: unknown key" in second.told("config.refused")["reason"]
            first.signal(signal.SIGTERM)
            second.synced_to("u", delete_next(table))
            assert list(second.tables()) == ["u"]


def test_a_lock_without_a_lease_is_an_older_dvsync_at_work(tmp_path):
    """It knew no lease; whoever comes stands by for as long as it has the lock, by whatever path it is named."""
    (tmp_path / "link").symlink_to(tmp_path)
    with closing(StateStore.open(f"sqlite:///{tmp_path}/s.db")) as store, FileLock(tmp_path / "s.db.lock") as older:
        clock = Clock()
        keeper = LeaseKeeper(store, clock, sqlite_file=tmp_path / "link" / "s.db", lease_s=30.0)
        for _ in range(3):
            assert keeper.try_take() == "the process that has locked its file"
            clock.time_s += 3_600.0
        older.release()
        assert keeper.try_take() is None
        keeper.give_back()


def test_a_killed_holder_is_replaced_without_waiting_for_its_lease(tmp_path, table, monkeypatch):
    """The lock of the operating system tells; the first start after a crash need not wait either."""
    config = write_config(tmp_path)
    set_constants(monkeypatch, {"daemon.sync.other_writer.LEASE_S": 3600.0})
    with daemon(config) as first:
        first.synced_to("t", table.version)
        first.signal(signal.SIGKILL)
        first.end()
        with daemon(config) as second:
            second.synced_to("t", delete_next(table))
            assert second.told("lease.taken_over")["had_ended"]


def test_a_suspended_holder_that_comes_back_commits_nothing_and_ends(tmp_path, table):
    """kill -STOP for longer than the lease: the other one takes over and follows; the first ends with exit code 1."""
    config = write_config(tmp_path)
    with daemon(config) as first:
        first.synced_to("t", table.version)
        first.signal(signal.SIGSTOP)
        try:
            with daemon(config) as second:
                second.told("daemon.standing_by")
                second.synced_to("t", delete_next(table))
                assert not second.told("lease.taken_over")["had_ended"]
                first.signal(signal.SIGCONT)
                second.synced_to("t", delete_next(table))
                assert first.end() == 1
                lost = first.told("lease.lost")["reason"]
                assert f"taken over by process {second.process.pid} on " in lost
                second.synced_to("t", delete_next(table))
                # Whoever is started now stands by: the one without the lock of the first process holds the lease.
                with daemon(config) as third:
                    assert f"process {second.process.pid} " in third.told("daemon.standing_by")["holder"]
        finally:
            first.signal(signal.SIGCONT)
    shown_once(tmp_path, table)


# --- the moment of the commit ---


@pytest.fixture
def benches(tmp_path: Path, table: HandmadeTable, monkeypatch) -> Iterator[Callable[..., Bench]]:
    """Benches on one table and catalog, with a lease of their own database where that is asked for."""
    opened: list[Bench] = []

    def make(state_name: str = "state.db", writer: Writer | None = None, clock: Clock | None = None) -> Bench:
        bench = Bench(tmp_path, table.location, state_name=state_name, clock=clock or Clock(), writer=writer)
        opened.append(bench)
        return bench

    yield make
    for bench in opened:
        bench.close()


def take_lease(bench: Bench, *, has_lock: bool = False) -> None:
    assert bench.store.take_lease(bench.store.read_lease(), bench.name, has_lock=has_lock)


def test_a_holder_that_is_replaced_before_its_commit_does_not_commit(benches, table, monkeypatch):
    """Suspended between the last write to the store and the commit: the lease is asked for once more, and is gone."""
    old, new = benches(), benches()
    take_lease(old)
    old.follower.sync()
    before = old.iceberg().metadata_location
    delete_next(table)
    write = target.write_manifest_list

    def suspended(*arguments: object, **keywords: object) -> None:
        take_lease(new)
        write(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(target, "write_manifest_list", suspended)
        with pytest.raises(StateStoreAway, match="taken over"):
            old.follower.sync()
    assert old.iceberg().metadata_location == before
    new.follower.sync()
    assert duckdb_rows(new.iceberg()) == table.live_rows()
    delete_next(table)
    with pytest.raises(StateStoreAway, match="taken over"):
        old.follower.sync()


@pytest.mark.parametrize("new_one", ["has committed", "has only cleaned up"])
def test_a_commit_that_is_under_way_when_the_lease_goes_is_right_all_the_same(benches, table, monkeypatch, new_one):
    """After the last question nothing can stop a request: it loses to a newer commit, or is found and kept."""
    old, new = benches(), benches()
    take_lease(old)
    old.follower.sync()
    delete_next(table)
    commit = target.commit_updates

    def suspended(*arguments: object, **keywords: object) -> None:
        monkeypatch.setattr(target, "commit_updates", commit)
        take_lease(new)
        if new_one == "has committed":
            new.follower.sync()
        else:
            end_intents(new.context, new.store.list_tables()[0], new.iceberg())
        # A catalog that names its metadata files itself asks nobody while it commits.
        commit(*arguments[:3], lambda _paths: None, **keywords)

    monkeypatch.setattr(target, "commit_updates", suspended)
    with pytest.raises((CommitConflict, StateStoreAway, CommitOutcomeUnknown)):
        old.follower.sync()
    for _ in range(2):
        new.follower.sync()
        assert duckdb_rows(new.iceberg()) == table.live_rows()
        delete_next(table)
    versions = [snapshot.summary["dvsync.delta.version"] for snapshot in new.iceberg().snapshots()]
    assert versions == sorted(set(versions), key=int)


# --- two states, one table ---


def test_another_state_gives_way_while_the_first_keeps_the_table_in_step(benches, table):
    """It says who does, however long nothing happens; and it has written nothing."""
    clock = Clock()
    first, second = benches("a.db", Writer("host-a:/a.db")), benches("b.db", Writer("host-b:/b.db"), clock)
    first.follower.sync()
    for _ in range(5):
        with pytest.raises(TargetHeld, match=r"host-a:/a[.]db keeps"):
            second.follower.sync()
        clock.time_s += 29.0
        delete_next(table)
        first.follower.sync()
        clock.time_s += 3_600.0
    assert second.store.list_tables()[0].synced_version is None
    assert all(snapshot.summary["dvsync.writer"] == "host-a:/a.db" for snapshot in first.iceberg().snapshots())


def test_another_state_takes_over_from_one_that_is_silent_and_that_one_gives_way(benches, table):
    """A Delta version that nobody shows for a whole lease; then the roles have changed."""
    clock, late = Clock(), Clock()
    first = benches("a.db", Writer("host-a:/a.db"), late)
    second = benches("b.db", Writer("host-b:/b.db"), clock)
    first.follower.sync()
    with pytest.raises(TargetHeld):
        second.follower.sync()
    delete_next(table)
    for waited_s in (0.0, 29.0):
        clock.time_s += waited_s
        with pytest.raises(TargetHeld):
            second.follower.sync()
    clock.time_s += 1.5
    assert second.follower.sync().to_version == table.version
    assert duckdb_rows(second.iceberg()) == table.live_rows()
    delete_next(table)
    with pytest.raises(TargetHeld, match=r"host-b:/b[.]db keeps"):
        first.follower.sync()
    second.follower.sync()
    assert duckdb_rows(second.iceberg()) == table.live_rows()


def test_commits_without_rows_are_no_silence(benches, table):
    """They leave no trace in Iceberg: who waits does not take the other one's table in step for one left lying."""
    clock = Clock()
    first, second = benches("a.db", Writer("host-a:/a.db")), benches("b.db", Writer("host-b:/b.db"), clock)
    first.follower.sync()
    for _ in range(2):
        table.commit([], operation="VACUUM END")
        first.follower.sync()
        for _ in range(2):
            clock.time_s += 31.0
            with pytest.raises(TargetHeld):
                second.follower.sync()
    delete_next(table)
    with pytest.raises(TargetHeld):
        second.follower.sync()
    clock.time_s += 31.0
    assert second.follower.sync().outcome == "advanced"


def test_a_person_takes_over_at_once(benches, table):
    """`dvsync sync TABLE --full` asks nobody."""
    first, second = benches("a.db", Writer("host-a:/a.db")), benches("b.db", Writer("host-b:/b.db"))
    first.follower.sync()
    delete_next(table)
    assert second.follower.sync(full=True).to_version == table.version
    with pytest.raises(TargetHeld, match=r"host-b:/b[.]db keeps"):
        first.follower.sync()


def test_a_lost_state_database_at_the_same_place_is_no_other_one(benches, table, tmp_path):
    """The name is the place: what is rebuilt there goes on at once."""
    writer = Writer("host-a:/a.db")
    first = benches("a.db", writer)
    first.follower.sync()
    delete_next(table)
    again = benches("new.db", writer)
    assert again.follower.sync().to_version == table.version


def other_table(folder: Path) -> HandmadeTable:
    table = HandmadeTable(folder)
    table.create()
    for number in range(3):
        table.commit([table.add(table.write_file([(100 + number, "y", "v")]))])
    return table


@pytest.mark.parametrize("options", [{}, {"on_foreign_commit": "overwrite"}])
def test_two_delta_tables_with_one_target_do_not_take_turns(benches, table, tmp_path, options):
    """Neither takes the Iceberg table from the other, however long that one is silent; a person decides which it is."""
    clock, other = Clock(), other_table(tmp_path / "other")
    first = benches("a.db", Writer("host-a:/a.db"), clock)
    second = Bench(
        tmp_path, other.location, state_name="b.db", clock=clock, writer=Writer("host-b"), table_options=options
    )
    with closing(second):
        first.follower.sync()
        says = (
            rf"the Iceberg table lake\.t shows another Delta table \(id {table.table_id}, version 1\), which the "
            rf"dvsync with the state host-a:/a\.db follows; {other.location} has the id {other.table_id}"
        )
        for _ in range(2):
            with pytest.raises(TargetChanged, match=says) as caught:
                second.follower.sync()
            clock.time_s += 60.0
        assert "give one of them another target" in caught.value.hint
        assert duckdb_rows(second.iceberg()) == table.live_rows()
        assert second.follower.sync(full=True).outcome == "advanced"
        delete_next(table)
        for _ in range(2):
            with pytest.raises(TargetChanged, match=f"id {other.table_id}, version 3"):
                first.follower.sync()
            clock.time_s += 60.0
        assert duckdb_rows(second.iceberg()) == other.live_rows()


@pytest.mark.parametrize("cleaned", [False, True], ids=["the whole log", "log cleanup took version 0"])
def test_a_table_that_was_replaced_while_nobody_followed_is_taken_over(benches, table, monkeypatch, cleaned):
    """The one that is gone shows an earlier id of the very table: that is no other source."""
    clock = Clock()
    first = benches("a.db", Writer("host-a:/a.db"))
    second = benches("b.db", Writer("host-b:/b.db"), clock)
    first.follower.sync()
    if cleaned:
        monkeypatch.setattr(second.context.log, "find_first_table_id", lambda: None)
    table.table_id = "made-by-replace"
    (path,) = table.live
    new = table.write_file([(100, "x", "v")])
    table.commit([{"metaData": table.metadata()}, table.remove(path), table.add(new)])
    with pytest.raises(TargetHeld, match=r"host-a:/a[.]db keeps"):
        second.follower.sync()
    clock.time_s += 31.0
    assert second.follower.sync().to_version == table.version
    assert duckdb_rows(second.iceberg()) == table.live_rows()


def test_whose_table_it_is_is_asked_once(benches, table, monkeypatch):
    """One request the first time, none while the other one is given way to."""
    first, second = benches("a.db", Writer("host-a:/a.db")), benches("b.db", Writer("host-b:/b.db"))
    first.follower.sync()
    asked: list[int] = []
    find = second.context.log.find_first_table_id
    monkeypatch.setattr(second.context.log, "find_first_table_id", lambda: asked.append(0) or find())
    monkeypatch.setattr(Runner, "open_state", lambda *_: pytest.fail("no state is read"))
    for _ in range(3):
        with pytest.raises(TargetHeld):
            second.follower.sync()
        delete_next(table)
        first.follower.sync()
    assert asked == [0]


# --- the keeper ---


def test_silence_is_measured_by_the_one_who_waits(tmp_path):
    """A row that does not change for a whole lease is given up; any change begins the wait anew."""
    with closing(StateStore.open(f"sqlite:///{tmp_path}/s.db")) as holder_store:
        holder = LeaseKeeper(holder_store, Clock(), sqlite_file=None, lease_s=30.0)
        assert holder.try_take() is None
        with closing(StateStore.open(f"sqlite:///{tmp_path}/s.db")) as other_store:
            clock = Clock()
            other = LeaseKeeper(other_store, clock, sqlite_file=None, lease_s=30.0)
            for _ in range(3):
                assert other.try_take() is not None
                clock.time_s += 29.0
                assert other.try_take() is not None
                holder_store.renew_lease(has_lock=False)
            assert other.try_take() is not None
            assert other.is_holder_alive
            clock.time_s += 30.0
            assert other.try_take() is None
        with pytest.raises(LeaseLost):
            holder_store.renew_lease(has_lock=False)


def test_a_command_waits_for_a_sign_of_life_and_then_refuses(tmp_path):
    """Without a lock to look at: one renewal is enough to know that somebody works."""
    url = f"sqlite:///{tmp_path}/s.db"
    with closing(StateStore.open(url)) as holder_store, closing(StateStore.open(url)) as other_store:
        holder = LeaseKeeper(holder_store, SystemClock(), sqlite_file=None, lease_s=3.0)
        assert holder.try_take() is None
        holder.keep(lambda reason: None)
        other = LeaseKeeper(other_store, SystemClock(), sqlite_file=None, lease_s=3.0)
        with pytest.raises(StateStoreAway, match="in use by process"), hold_lease(other, Event()):
            pass
        holder.give_back()
        with hold_lease(other, Event()):
            assert other_store.read_lease().holder is not None
        assert other_store.read_lease().holder is None


def test_a_database_that_is_away_costs_nobody_the_lease(tmp_path, monkeypatch):
    """Renewing fails for a while, is told, and goes on; only somebody else's token ends it."""
    url = f"sqlite:///{tmp_path}/s.db"
    lost: list[str] = []
    with closing(StateStore.open(url)) as store:
        keeper = LeaseKeeper(store, SystemClock(), sqlite_file=tmp_path / "s.db", lease_s=0.3)
        assert keeper.try_take() is None
        renew, failures = store.renew_lease, []

        def renew_or_fail(*, has_lock: bool) -> None:
            if len(failures) < 5:
                failures.append(has_lock)
                raise StateUnavailable("the disk is full")
            renew(has_lock=has_lock)

        monkeypatch.setattr(store, "renew_lease", renew_or_fail)
        keeper.keep(lost.append)
        until(lambda: store.read_lease().renewals >= 2)
        assert (len(failures), lost) == (5, [])
        with closing(StateStore.open(url)) as other:
            # The holder may renew between the look and the taking.
            until(lambda: other.take_lease(other.read_lease(), "the other one", has_lock=False))
            until(lambda: lost)
        assert "taken over by the other one" in lost[0]
        keeper.give_back()
