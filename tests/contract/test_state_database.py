"""What only a database has to show: SQLite and PostgreSQL with threads, crashes, migrations and leases."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from state.errors import LeaseLost, StateUnavailable
from state.records import FileKind, FileStatus, Intent, Lease, OrphanReason, SyncRun, TableError
from state.sql.database import REVISION
from state.sql.models import METADATA
from state.sql.rows import WRITE_BATCH_MAX
from state.sql.store import StateStore
from tests.kit.servers import Server
from tests.kit.states import (
    PAUSE,
    delete_file,
    deletion_vector,
    fill,
    lay_database,
    live_file,
    observe,
    open_intent,
    orphan_paths,
    outcome,
    write_verbs,
)

REPOSITORY = Path(__file__).parents[2]


# --- many threads ---


def test_threads_do_not_lose_each_others_work(store: StateStore, table_id: int) -> None:
    """Verbs of many threads, on one table and on many, all take effect, and readers see whole verbs only."""
    threads, rounds = 6, 8

    def work(number: int) -> list[int]:
        own = store.open_table(f"t{number % 2}", "s3://delta/t", "t").id
        seen = []
        for turn in range(rounds):
            pair = (live_file(f"{number}-{turn}-x"), live_file(f"{number}-{turn}-y"))
            store.record_synced(None, outcome(table_id, 1, added_files=pair), at_ms=1)
            open_intent(store, own, 1 + number * rounds + turn)
            seen.append(store.count(table_id).live_data_files)
        return seen

    with ThreadPoolExecutor(threads) as pool:
        counts = [count for seen in pool.map(work, range(threads)) for count in seen]

    assert store.count(table_id).live_data_files == 2 * threads * rounds
    assert [count % 2 for count in counts] == [0] * len(counts)
    tables = {table.name: table.id for table in store.list_tables()}
    assert sorted(tables) == ["orders", "t0", "t1"]
    opened = [store.find_open_intents(tables[name]) for name in ("t0", "t1")]
    assert [len(intents) for intents in opened] == [threads // 2 * rounds] * 2


def test_long_write_is_waited_for(database_path: Path) -> None:
    """While one verb writes, other writers queue however short the busy timeout is, and readers go on."""
    with closing(StateStore.open(f"sqlite:///{database_path}?timeout=0.01")) as store, ThreadPoolExecutor(1) as pool:
        table_id = fill(store)
        with store._database.write() as connection:
            connection.exec_driver_sql("DELETE FROM data_files")
            queued = pool.submit(store.record_run, SyncRun(table_id, 1, 1, "advanced"))
            assert wait([queued], timeout=0.1).done == set()
            assert list(store.find_live_files(table_id, ["a"])) == ["a"]
        queued.result(timeout=5)
        assert list(store.find_live_files(table_id, ["a"])) == []
        assert len(store.list_runs(table_id, runs_max=9)) == 1


# --- the database file ---


def test_reopened_database_remembers(database_path: Path) -> None:
    """What was recorded is there when the file is opened again, and the folder of the file is made."""
    paths = ["a", "b", "d1", "d2"]
    with closing(StateStore.open(f"sqlite:///{database_path}")) as store:
        table_id = store.open_table("orders", "s3://delta/orders", "sales.orders").id
        files = (live_file("a", dv=deletion_vector("x")), live_file("b"))
        store.record_synced(
            None, outcome(table_id, 1, added_files=files, added_delete_files=(delete_file("d1", "a"),)), at_ms=1
        )
        open_intent(store, table_id, 2**62)
        store.record_pending(2**62, {FileKind.DELETE_FILE: ["d2"]})
        store.record_prepared(2**62, outcome(table_id, 2, removed_files=("b",)))
        store.record_failure(table_id, TableError("Retryable", "away", "Wait.", 1, 2, 3, False))
        store.record_run(SyncRun(table_id, 1, 2, "advanced"))
        before = observe(store, table_id, paths)
    with closing(StateStore.open(f"sqlite:///{database_path}")) as store:
        assert observe(store, table_id, paths) == before


def test_sqlite_is_durable_and_checks_references(sql_store: StateStore) -> None:
    """Every connection has the write-ahead log, full synchronisation, foreign keys and a bounded wait."""
    with sql_store._database.read() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5_000}


def test_models_and_migrations_agree(sql_store: StateStore) -> None:
    """The migrated schema is the schema of the models."""
    with sql_store._database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_the_newest_migration_is_the_one_that_is_looked_for(sql_store: StateStore) -> None:
    """Alembic leaves a database at the revision that opening one takes for the newest."""
    with sql_store._database.read() as connection:
        assert MigrationContext.configure(connection).get_current_heads() == (REVISION,)


def test_a_database_of_an_unknown_schema_is_refused(database_path: Path) -> None:
    """One that another dvsync has migrated is left as it is."""
    StateStore.open(f"sqlite:///{database_path}").close()
    with closing(sqlite3.connect(database_path)) as raw, raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StateUnavailable, match=r"dvsync\.db has the schema revision 9999, .* 0001, does not know"):
        StateStore.open(f"sqlite:///{database_path}")
    with closing(sqlite3.connect(database_path)) as raw:
        assert raw.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]


def test_file_that_is_no_database(tmp_path: Path) -> None:
    """A file that is not a database, and a folder that cannot be made, are told as such."""
    (tmp_path / "notes.db").write_text("these are notes, and more of them than a header takes\n" * 40)
    with pytest.raises(StateUnavailable, match=r"notes\.db is not usable: file is not a database"):
        StateStore.open(f"sqlite:///{tmp_path / 'notes.db'}")
    with pytest.raises(StateUnavailable, match="cannot be opened"):
        StateStore.open(f"sqlite:///{tmp_path / 'notes.db' / 'dvsync.db'}")


@pytest.mark.parametrize(
    "url",
    [
        "hunter2",
        "postgresql://me:hunter2@host:hunter2/db",
        "nosuchdb://me:hunter2@host/db",
        "sqlite://me:hunter2@/db",
        "sqlite:////proc/hunter2/x.db?password=hunter2",
    ],
)
def test_no_password_in_messages(url: str) -> None:
    """A URL that cannot be used is StateUnavailable, and no password in it is shown."""
    with pytest.raises(StateUnavailable) as raised:
        StateStore.open(url)
    assert "hunter2@" not in str(raised.value) and "password" not in str(raised.value)


# --- PostgreSQL ---


def test_postgresql_has_the_schema_of_the_models(postgresql_url: str) -> None:
    """Migrated from nothing, it has what the models say: 64-bit numbers, bytes, and no type by accident."""
    with closing(StateStore.open(postgresql_url)) as store, store._database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
        types: dict[str, str] = dict(
            connection.exec_driver_sql(
                "SELECT column_name, data_type FROM information_schema.columns"
                " WHERE table_schema = current_schema() AND table_name IN ('intents', 'data_files')"
            ).all()
        )
    assert (types["id"], types["payload"], types["dv_offset"], types["path"]) == ("bigint", "bytea", "bigint", "text")


def test_readers_see_one_state_and_writers_queue(postgresql_url: str) -> None:
    """As SQLite has it: a reader's transaction is of one moment, and two processes never write at the same time."""
    with closing(StateStore.open(postgresql_url)) as store, closing(StateStore.open(postgresql_url)) as other:
        table_id = fill(store)
        count = "SELECT count(*) FROM sync_runs"
        with store._database.read() as reading, ThreadPoolExecutor(1) as pool:
            assert reading.exec_driver_sql(count).scalar_one() == 0
            with store._database.write():
                queued = pool.submit(other.record_run, SyncRun(table_id, 1, 1, "advanced"))
                assert wait([queued], timeout=0.2).done == set()
            queued.result(timeout=5)
            assert reading.exec_driver_sql(count).scalar_one() == 0
        assert len(store.list_runs(table_id, runs_max=9)) == 1


def test_a_killed_server_is_told_and_found_again(server: Server, postgresql_url: str) -> None:
    """While it is away each verb is StateUnavailable, without the password; then all goes on as it was."""
    with closing(StateStore.open(postgresql_url)) as store:
        table_id = fill(store)
        before = observe(store, table_id, ["a", "d"])
        server.kill()
        try:
            for verb in (*write_verbs(store, table_id), lambda: observe(store, table_id, ["a", "d"])):
                with pytest.raises(StateUnavailable, match=r"the state database postgresql.* is not usable") as raised:
                    verb()
                assert "hunter2" not in str(raised.value)
            with pytest.raises(StateUnavailable):
                StateStore.open(postgresql_url)
        finally:
            server.start()
        assert observe(store, table_id, ["a", "d"]) == before
        for verb in write_verbs(store, table_id)[1:]:
            verb()


def test_locked_database(database_path: Path) -> None:
    """While another process holds the write lock, every write is StateUnavailable and reads go on."""
    with closing(StateStore.open(f"sqlite:///{database_path}?timeout=0.01")) as store:
        table_id = fill(store)
        before = observe(store, table_id, ["a", "d"])
        with closing(sqlite3.connect(database_path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for verb in write_verbs(store, table_id):
                with pytest.raises(StateUnavailable, match=r"dvsync\.db is not usable: database is locked"):
                    verb()
            assert observe(store, table_id, ["a", "d"]) == before
        assert observe(store, table_id, ["a", "d"]) == before
        for verb in write_verbs(store, table_id)[1:]:
            verb()


REPLACED = """
import gc, sys
from contextlib import suppress
from pathlib import Path
from state import DatabaseReplaced
from state.sql.store import StateStore

path, is_noticed = Path(sys.argv[1]), sys.argv[2] == "True"
older = path.read_bytes()
store = StateStore.open(f"sqlite:///{path}")
store.open_table("orders", "s3://delta/orders", "sales.orders")
path.write_bytes(older)
for suffix in ("-wal", "-shm"):
    path.with_name(f"{path.name}{suffix}").unlink()
if is_noticed:
    with suppress(DatabaseReplaced):
        store.open_table("items", "s3://delta/items", "sales.items")
        raise SystemExit("it was not noticed")
store.close()
del store
gc.collect()
"""


@pytest.mark.parametrize("is_noticed", [True, False])
def test_nothing_is_written_into_a_copy_in_the_place_of_the_database(database_path: Path, *, is_noticed: bool) -> None:
    """SQLite writes its log into the file when the last connection is closed: by garbage collection, too, and by the
    interpreter's end.
    """
    lay_database(database_path)
    older = database_path.read_bytes()
    subprocess.run([sys.executable, "-c", REPLACED, database_path, str(is_noticed)], cwd=REPOSITORY, check=True)
    assert database_path.read_bytes() == older


def test_readonly_database(database_path: Path) -> None:
    """A database that may only be read is read, and every write is StateUnavailable."""
    with closing(StateStore.open(f"sqlite:///{database_path}")) as store:
        table_id = fill(store)
        before = observe(store, table_id, ["a", "d"])
    with closing(StateStore.open(f"sqlite:///file:{database_path}?mode=ro&uri=true")) as store:
        for verb in write_verbs(store, table_id):
            with pytest.raises(StateUnavailable, match="readonly database"):
                verb()
        assert observe(store, table_id, ["a", "d"]) == before


FAILING: list[tuple[str, Callable[[StateStore, int], None]]] = [
    ("UPDATE ON tables", lambda store, id: store.record_synced(1, outcome(id, 2, removed_files=("a",)), at_ms=9)),
    ("UPDATE ON tables", lambda store, id: store.record_rebuilt(outcome(id, 2), [live_file("b")], [], at_ms=9)),
    ("UPDATE ON intents", lambda store, _: store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=9)),
    (
        "UPDATE ON metadata_files",
        lambda store, id: store.record_unreferenced(id, ["lost", "orphaned"], OrphanReason.SNAPSHOT_EXPIRED, at_ms=9),
    ),
    ("UPDATE ON metadata_files", lambda store, id: store.record_still_used(id, ["lost", "orphaned"], at_ms=9)),
    ("UPDATE ON metadata_files", lambda store, id: store.record_sizes(id, {"d": 1, "orphaned": 1})),
    ("UPDATE ON metadata_files", lambda store, id: store.record_deleted(id, ["lost", "orphaned"], at_ms=9)),
    ("DELETE ON sync_runs", lambda store, id: store.forget_before(id, 9)),
]


@pytest.mark.parametrize(("statement", "verb"), FAILING)
def test_damaged_table_fails_without_a_trace(
    sql_store: StateStore, statement: str, verb: Callable[[StateStore, int], None]
) -> None:
    """A verb whose last statement fails leaves nothing of the statements before it."""
    table_id = fill(sql_store)
    sql_store.record_pending(1, {FileKind.DELETE_FILE: ["pending"]})
    sql_store.record_orphans(table_id, FileKind.DELETE_FILE, ["lost", "deleted"], OrphanReason.FOUND, at_ms=2)
    sql_store.record_deleted(table_id, ["deleted"], at_ms=3)
    sql_store.record_run(SyncRun(table_id, 3, 1, "advanced"))
    with sql_store._database.write() as connection:
        connection.exec_driver_sql(
            f"CREATE TRIGGER broken BEFORE {statement} BEGIN SELECT RAISE(ABORT, 'no space'); END"
        )
    before = observe(sql_store, table_id, ["a", "d"])
    with pytest.raises(StateUnavailable, match="no space"):
        verb(sql_store, table_id)
    assert observe(sql_store, table_id, ["a", "d"]) == before


def test_a_replacement_that_fails_half_way_is_repeated(sql_store: StateStore) -> None:
    table_id = fill(sql_store)
    before = sql_store.list_tables()[0]
    with sql_store._database.write() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER broken BEFORE UPDATE ON metadata_files BEGIN SELECT RAISE(ABORT, 'no space'); END"
        )
    with pytest.raises(StateUnavailable, match="no space"):
        sql_store.record_table_replaced(table_id, at_ms=9)
    half = sql_store.list_tables()[0]
    assert (half.snapshot_id, half.metadata_location) == (None, before.metadata_location)
    with sql_store._database.write() as connection:
        connection.exec_driver_sql("DROP TRIGGER broken")
    sql_store.record_table_replaced(table_id, at_ms=9)
    assert sql_store.list_tables()[0].metadata_location is None
    assert not list(sql_store.read_live_files(table_id))
    assert not sql_store.list_written(table_id, (FileStatus.PENDING, FileStatus.LIVE))


CRASHING = """
import os, sys
from state.records import FileKind, Intent, LiveFile, Outcome
from state.sql.rows import WRITE_BATCH_MAX
from state.sql.store import StateStore

def outcome(version, **changes):
    return Outcome(1, "delta-id", None, version, 1, 9, "v.json", **changes)

def endless():
    yield from (LiveFile(f"f{number}", 1, 1, 0, "m") for number in range(WRITE_BATCH_MAX + 1))
    os._exit(9)

store = StateStore.open(sys.argv[1])
steps = [
    lambda: store.open_table("orders", "source", "target"),
    lambda: store.record_intent(Intent(9, 1, None, 1, 1), {}),
    lambda: store.record_pending(9, {FileKind.DELETE_FILE: ["d"]}),
    lambda: store.record_prepared(9, outcome(1)),
    lambda: store.record_synced(9, outcome(1, added_files=(LiveFile("a", 1, 1, 0, "m"),)), at_ms=1),
    lambda: store.record_rebuilt(outcome(2), endless(), [], at_ms=2),
]
for step in steps[: int(sys.argv[2])]:
    step()
os._exit(9)
"""


@pytest.mark.parametrize(
    ("steps", "open_intents", "synced_version", "live_files"),
    [(4, 1, None, 0), (5, 0, 1, 1), (6, 0, 2, WRITE_BATCH_MAX)],
    ids=["outcome prepared", "synced", "half rebuilt"],
)
def test_killed_process_leaves_a_consistent_file(
    database_path: Path, steps: int, open_intents: int, synced_version: int | None, live_files: int
) -> None:
    """A process that dies leaves the verbs that returned, whole, and nothing of the one it was in.

    But for a rebuild: its table has no snapshot then, and is rebuilt again.
    """
    url = f"sqlite:///{database_path}"
    killed = subprocess.run([sys.executable, "-c", CRASHING, url, str(steps)], cwd=REPOSITORY, check=False)
    assert killed.returncode == 9
    with closing(sqlite3.connect(database_path)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    with closing(StateStore.open(url)) as store:
        assert len(store.find_open_intents(1)) == open_intents
        assert store.list_tables()[0].synced_version == synced_version
        assert store.list_tables()[0].snapshot_id == (9 if steps == 5 else None)
        assert store.count(1).live_data_files == live_files
        for intent, _ in store.find_open_intents(1):
            store.record_abandoned(intent.id, OrphanReason.COMMIT_FAILED, at_ms=3)
        assert orphan_paths(store, 1) == (["d"] if steps == 4 else [])


# --- the lease, and the share ---


def test_the_first_share_that_opens_a_database_keeps_it(store: StateStore) -> None:
    assert store.claim_share(2) == 2
    assert store.claim_share(1) == 2


def test_a_lease_is_taken_as_it_was_seen_renewed_and_given_back(store: StateStore) -> None:
    """Each holder has a token of its own, each sign of life another number; what has changed since cannot be taken."""
    free = store.read_lease()
    assert free == Lease(token=0, holder=None)
    assert store.take_lease(free, "one", has_lock=True)
    assert store.read_lease() == Lease(token=1, holder="one", has_lock=True)
    assert not store.take_lease(free, "two", has_lock=False)
    assert store.renew_lease(has_lock=False) == 0
    store.check_lease()
    assert store.read_lease() == Lease(token=1, holder="one", renewals=1)
    assert not store.take_lease(Lease(token=1, holder="one", has_lock=True), "two", has_lock=False), "it was renewed"
    store.give_back_lease()
    before = store.read_lease()
    assert before == Lease(token=1, holder=None, renewals=2)
    store.ask_for_reload()
    assert store.take_lease(before, "two", has_lock=True), "a command is no holder"
    assert store.renew_lease(has_lock=True) == 1


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_who_has_lost_the_lease_writes_nothing_any_more(
    request: pytest.FixtureRequest, database_path: Path, database: str
) -> None:
    """Every verb that writes is refused; reading goes on, and a store that never had the lease writes as a person."""
    url = request.getfixturevalue("postgresql_url") if database == "postgresql" else f"sqlite:///{database_path}"
    with closing(StateStore.open(url)) as sql_store:
        lose_the_lease(sql_store, url)


def lose_the_lease(sql_store: StateStore, url: str) -> None:
    record = sql_store.open_table("t", "file:///d/t", "lake.t")
    assert sql_store.take_lease(sql_store.read_lease(), "one", has_lock=False)
    intent = Intent(id=7, table_id=record.id, from_version=None, to_version=0, created_at_ms=1)
    sql_store.record_intent(intent, {})
    with closing(StateStore.open(url)) as other:
        assert other.take_lease(other.read_lease(), "two", has_lock=False)
        writes: list[Callable[[], object]] = [
            lambda: sql_store.record_pending(7, {FileKind.DELETE_FILE: ["s3://x/d"]}),
            lambda: sql_store.record_abandoned(7, OrphanReason.COMMIT_FAILED, at_ms=1),
            lambda: sql_store.record_pause(record.id, PAUSE),
            lambda: sql_store.open_table("t", "file:///d/other", "lake.t"),
            sql_store.check_lease,
            sql_store.give_back_lease,
            lambda: sql_store.renew_lease(has_lock=False),
        ]
        for write in writes:
            with pytest.raises(LeaseLost, match="taken over by two"):
                write()
        assert sql_store.find_open_intents(record.id) == [(intent, None)]
        other.give_back_lease()
        with closing(StateStore.open(url)) as person:
            person.record_pause(record.id, PAUSE)
        assert sql_store.list_tables()[0].pause
