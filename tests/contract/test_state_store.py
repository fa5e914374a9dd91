"""One suite over both state stores: what `StateStore` promises, then what only a database file has to show."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace
from sqlalchemy import Connection, create_engine

from state.migration import MIGRATIONS
from state.records import (
    HOUR_MS,
    ORPHANED_HOURS_MAX,
    RECENT_COMMITS_MAX,
    SHARES,
    CommitIdentity,
    DeleteFileRecord,
    DeletionVectorDescriptor,
    Difference,
    Differences,
    DvMapping,
    FileKind,
    FileStatus,
    Intent,
    Lease,
    LiveFile,
    OrphanedHour,
    OrphanReason,
    Outcome,
    PartitionCount,
    Pause,
    ProofRecord,
    Sample,
    ServingFile,
    SyncRun,
    TableError,
    VectorCount,
    Wait,
    WrittenCount,
    WrittenFile,
)
from state.sql import files as sql_files
from state.sql import store as store_module
from state.sql.bulk import IN_LIST_MAX
from state.sql.database import REVISION
from state.sql.models import METADATA
from state.sql.store import READ_BATCH_MAX, WRITE_BATCH_MAX, SqlStateStore
from state.store import LeaseLost, StateStore, StateUnavailable
from tests.kit.memory_store import MemoryStateStore
from tests.kit.servers import Server, postgresql

MANIFEST = "s3://iceberg/metadata/m0.avro"
DELETE_MANIFEST = "s3://iceberg/metadata/d0.avro"
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    return tmp_path / "var" / "dvsync.db"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with postgresql() as running:
        yield running


@pytest.fixture
def postgresql_url(server: Server) -> Iterator[str]:
    """A schema of its own in the one database of the server."""
    name = f"s{uuid4().hex}"
    database = f"postgresql+psycopg://dvsync:hunter2@127.0.0.1:{server.port}/postgres"
    with admin(database) as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
    yield f"{database}?options=-csearch_path%3D{name}"
    with admin(database) as connection:
        connection.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")


@contextmanager
def admin(url: str) -> Iterator[Connection]:
    engine = create_engine(url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


@pytest.fixture(params=["sql", "postgresql", "memory"])
def store(request: pytest.FixtureRequest, database_path: Path) -> Iterator[StateStore]:
    made: StateStore
    if request.param == "memory":
        made = MemoryStateStore()
    elif request.param == "sql":
        made = SqlStateStore.open(f"sqlite:///{database_path}")
    else:
        made = SqlStateStore.open(request.getfixturevalue("postgresql_url"))
    with closing(made):
        yield made


@pytest.fixture
def sql_store(database_path: Path) -> Iterator[SqlStateStore]:
    with closing(SqlStateStore.open(f"sqlite:///{database_path}")) as opened:
        yield opened


@pytest.fixture
def table_id(store: StateStore) -> int:
    return store.open_table("orders", "s3://delta/orders", "sales.orders").id


def deletion_vector(name: str, cardinality: int = 2) -> DeletionVectorDescriptor:
    return DeletionVectorDescriptor("u", name, 40, cardinality, 1)


def live_file(path: str, *, manifest: str = MANIFEST, dv: DeletionVectorDescriptor | None = None) -> LiveFile:
    return LiveFile(path, 100, 5_000, 0, manifest, dv, (f'"{path}"', None))


def delete_file(path: str, *data_files: str, manifest: str = DELETE_MANIFEST) -> DeleteFileRecord:
    mappings = tuple(DvMapping(data_file, f"u-of-{data_file}", 2) for data_file in data_files)
    return DeleteFileRecord(path, 900, 2 * len(data_files), 0, manifest, mappings)


def outcome(table_id: int, version: int, **changes: Any) -> Outcome:
    return Outcome(
        table_id=table_id,
        delta_table_id="delta-id",
        from_version=version - 1,
        to_version=version,
        source_timestamp_ms=1_000 * version,
        snapshot_id=7_000 + version,
        metadata_location=f"s3://iceberg/metadata/v{version}.json",
        catalog="local",
        table_uuid="uuid-of-the-table",
        **changes,
    )


def open_intent(
    store: StateStore,
    table_id: int,
    intent_id: int,
    *,
    created_at_ms: int = 5,
    pending: Mapping[FileKind, Sequence[str]] | None = None,
) -> Intent:
    intent = Intent(intent_id, table_id, 0, 1, created_at_ms)
    store.record_intent(intent, pending or {})
    return intent


def observe(store: StateStore, table_id: int, paths: list[str]) -> dict[str, Any]:
    """All that a store tells about a table."""
    return {
        "table": next(table for table in store.list_tables() if table.id == table_id),
        "live": list(store.read_live_files(table_id)),
        "found": store.find_live_files(table_id, paths),
        "delete files": store.find_delete_files(table_id, paths),
        "former": store.find_former(table_id, [*paths, "gone"]),
        "serving": store.find_served(table_id, paths),
        "intents": store.find_open_intents(table_id),
        "counts": store.count(table_id),
        "written": store.list_written(table_id, FileStatus),
        "crowded": store.find_crowded(table_id, delete_files_max=2, deleted_share=0.3),
        "mostly dead": store.find_mostly_dead(table_id, dead_share=0.4),
        "deletions": store.find_deletions(table_id, rows_max=100),
        "runs": store.list_runs(table_id, runs_max=100),
        "recent commits": store.find_recent_commits(table_id),
    }


def totals(store: StateStore, table_id: int) -> tuple[int, int, int, int, int]:
    """Live data files, live rows, live delete files, deleted positions, orphans of any kind."""
    counts = store.count(table_id)
    orphaned = sum(group.files for group in counts.orphans)
    return counts.live_data_files, counts.live_rows, counts.live_delete_files, counts.deleted_positions, orphaned


def orphans(store: StateStore, table_id: int) -> list[tuple[str, FileKind, OrphanReason | None]]:
    return [(file.path, file.kind, file.reason) for file in store.list_written(table_id, [FileStatus.ORPHANED])]


def orphan_paths(store: StateStore, table_id: int) -> list[str]:
    return [path for path, _, _ in orphans(store, table_id)]


def find_written(store: StateStore, table_id: int, path: str) -> WrittenFile | None:
    return next((file for file in store.list_written(table_id, FileStatus) if file.path == path), None)


# --- tables ---


def test_open_table_is_stable(store: StateStore) -> None:
    """A table is made once and found again under the same id, with an empty cursor."""
    made = store.open_table("orders", "s3://delta/orders", "sales.orders")
    assert (made.name, made.source, made.target) == ("orders", "s3://delta/orders", "sales.orders")
    assert (made.synced_version, made.snapshot_id, made.error, made.pause) == (None, None, None, None)
    assert store.open_table("orders", "s3://delta/orders", "sales.orders") == made


def test_find_table_makes_and_takes_nothing(store: StateStore) -> None:
    """Neither a row for a name that is not known, nor the one of another source or target away."""
    assert store.find_table("orders", "s3://delta/orders", "sales.orders") is None
    assert store.list_tables() == []
    made = store.open_table("orders", "s3://delta/orders", "sales.orders")
    assert store.find_table("orders", "s3://delta/orders", "sales.orders") == made
    assert store.find_table("orders", "s3://delta/other", "sales.orders") is None
    assert store.find_table("orders", "s3://delta/orders", "x.orders") is None
    assert store.list_tables() == [made]


def test_list_tables_by_name(store: StateStore) -> None:
    """Tables are listed by name."""
    made = [store.open_table(name, f"s3://delta/{name}", name) for name in ("b", "c", "a")]
    assert store.list_tables() == sorted(made, key=lambda table: table.name)


def test_a_renamed_table_keeps_all_that_is_known_of_it(store: StateStore, table_id: int) -> None:
    """Its id, its files and its cursor are found under the new name, and nothing under the old one."""
    store.record_orphans(table_id, FileKind.MANIFEST, ["m"], OrphanReason.FOUND, at_ms=1)
    before = store.list_tables()[0]
    store.rename_table(table_id, "other")
    assert store.list_tables() == [replace(before, name="other")]
    assert store.open_table("other", before.source, before.target).id == table_id
    assert [file.path for file in store.list_written(table_id, (FileStatus.ORPHANED,))] == ["m"]


def test_a_forgotten_table_leaves_nothing(store: StateStore, table_id: int) -> None:
    """Neither its row nor what belongs to it; under the same name it begins afresh."""
    open_intent(store, table_id, 11)
    store.record_orphans(table_id, FileKind.MANIFEST, ["m"], OrphanReason.FOUND, at_ms=1)
    before = store.list_tables()[0]
    store.forget_table(table_id)
    assert store.list_tables() == []
    afresh = store.open_table(before.name, before.source, before.target)
    assert afresh.id != table_id
    assert (store.list_written(afresh.id, FileStatus), store.find_open_intents(afresh.id)) == ([], [])


@pytest.mark.parametrize(
    ("source", "target"), [("s3://delta/other", "sales.orders"), ("s3://delta/orders", "x.orders")]
)
def test_changed_source_or_target_starts_afresh(store: StateStore, table_id: int, source: str, target: str) -> None:
    """A known name with another source or target gets a new id and no memory, and nothing becomes an orphan."""
    open_intent(store, table_id, 11)
    store.record_pending(11, {FileKind.DELETE_FILE: ["d1"]})
    store.record_orphans(table_id, FileKind.MANIFEST, ["m9"], OrphanReason.COMMIT_FAILED, at_ms=1)
    files = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d2", "a"),))
    store.record_synced(None, files, at_ms=1)
    store.record_run(SyncRun(table_id, 1, 1, "advanced"))

    afresh = store.open_table("orders", source, target)

    assert afresh.id != table_id
    assert (afresh.synced_version, afresh.last_synced_at_ms) == (None, None)
    assert store.list_tables() == [afresh]
    assert totals(store, afresh.id) == (0, 0, 0, 0, 0)
    assert store.list_runs(afresh.id, runs_max=9) == []
    with pytest.raises(LookupError):
        store.count(table_id)
    open_intent(store, afresh.id, 11)
    assert [intent.table_id for intent, _ in store.find_open_intents(afresh.id)] == [afresh.id]


def test_tables_do_not_share_files(store: StateStore, table_id: int) -> None:
    """The same path in two tables is two files, and a manifest moves in its own table only."""
    other = store.open_table("other", "s3://delta/other", "sales.other").id
    for each in (table_id, other):
        files = outcome(each, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d", "a"),))
        store.record_synced(None, files, at_ms=1)
    before = observe(store, other, ["a", "d"])
    store.record_synced(None, outcome(table_id, 2, moved_manifests=((MANIFEST, "m1"),)), at_ms=2)
    removed = (("d", OrphanReason.DATA_FILES_GONE),)
    store.record_synced(None, outcome(table_id, 3, removed_files=("a",), removed_delete_files=removed), at_ms=3)
    store.record_sizes(table_id, {"d": 7, "m1": 7})
    store.record_unreferenced(table_id, ["d", "m1"], OrphanReason.SNAPSHOT_EXPIRED, at_ms=4)
    assert not store.has_orphans(other, before_ms=9, reasons=OrphanReason)
    store.record_still_used(table_id, ["d", "m1"], at_ms=5)
    store.record_deleted(table_id, ["d", "m1"], at_ms=5)
    store.forget_before(table_id, 6)
    store.record_rebuilt(outcome(table_id, 4), [live_file("a")], [delete_file("d", "a")], at_ms=6)
    store.record_table_replaced(table_id, at_ms=7)
    assert observe(store, other, ["a", "d"]) == before


UNKNOWN = 404
PAUSE = Pause(1_000, "ada on lake-1")
ON_UNKNOWN: list[Callable[[StateStore], object]] = [
    lambda store: list(store.read_live_files(UNKNOWN)),
    lambda store: store.find_live_files(UNKNOWN, ["a"]),
    lambda store: store.find_delete_files(UNKNOWN, ["a"]),
    lambda store: store.find_former(UNKNOWN, ["a"]),
    lambda store: store.find_mostly_dead(UNKNOWN, dead_share=0.5),
    lambda store: store.find_served(UNKNOWN, ["d"]),
    lambda store: store.find_open_intents(UNKNOWN),
    lambda store: store.record_intent(Intent(1, UNKNOWN, None, 1, 1), {}),
    lambda store: store.record_pending(UNKNOWN, {FileKind.MANIFEST: ["m"]}),
    lambda store: store.record_prepared(UNKNOWN, outcome(1, 1)),
    lambda store: store.record_synced(None, outcome(UNKNOWN, 1), at_ms=1),
    lambda store: store.record_rebuilt(outcome(UNKNOWN, 1), [], [], at_ms=1),
    lambda store: store.record_orphans(UNKNOWN, FileKind.MANIFEST, ["m"], OrphanReason.COMMIT_FAILED, at_ms=1),
    lambda store: store.record_unreferenced(UNKNOWN, ["m"], OrphanReason.SNAPSHOT_EXPIRED, at_ms=1),
    lambda store: store.record_still_used(UNKNOWN, ["m"], at_ms=1),
    lambda store: store.record_table_replaced(UNKNOWN, at_ms=1),
    lambda store: store.record_sizes(UNKNOWN, {"m": 1}),
    lambda store: store.record_deleted(UNKNOWN, ["m"], at_ms=1),
    lambda store: store.forget_before(UNKNOWN, 1),
    lambda store: store.rename_table(UNKNOWN, "n"),
    lambda store: store.forget_table(UNKNOWN),
    lambda store: store.record_failure(UNKNOWN, TableError("k", "m", "h", None, 1, 1, False)),
    lambda store: store.record_wait(UNKNOWN, None),
    lambda store: store.find_recent_commits(UNKNOWN),
    lambda store: store.record_proof(UNKNOWN, None),
    lambda store: store.record_run(SyncRun(UNKNOWN, 1, 1, "advanced")),
    lambda store: store.record_resumed(UNKNOWN),
    lambda store: store.record_pause(UNKNOWN, PAUSE),
    lambda store: store.end_pause(UNKNOWN, at_ms=1),
    lambda store: store.record_resync_wanted(UNKNOWN, True),
    lambda store: store.count(UNKNOWN),
    lambda store: store.find_deletions(UNKNOWN, rows_max=1),
    lambda store: store.find_worst_files(UNKNOWN, files_max=1),
    lambda store: store.list_written(UNKNOWN, [FileStatus.LIVE]),
    lambda store: store.has_orphans(UNKNOWN, before_ms=1, reasons=OrphanReason),
    lambda store: store.list_for_cleanup(UNKNOWN, due_ms=1, now_ms=2),
    lambda store: store.find_crowded(UNKNOWN, delete_files_max=1, deleted_share=0.5),
    lambda store: store.list_runs(UNKNOWN, runs_max=1),
    lambda store: store.list_samples(UNKNOWN, after_ms=1),
]


@pytest.mark.parametrize("call", ON_UNKNOWN)
def test_unknown_ids_are_refused(store: StateStore, table_id: int, call: Callable[[StateStore], object]) -> None:
    """An id that the store never gave is our own bug: LookupError, in every verb."""
    with pytest.raises(LookupError):
        call(store)


# --- live files and delete files ---


def test_synced_files_are_found(store: StateStore, table_id: int) -> None:
    """Added files are found by path with all their fields; other paths are left out."""
    plain, with_dv = live_file("b"), live_file("a", dv=deletion_vector("x"))
    inline = live_file("c", dv=DeletionVectorDescriptor("i", "abc", 3, 1))
    store.record_synced(None, outcome(table_id, 1, added_files=(plain, with_dv, inline)), at_ms=1)
    assert store.find_live_files(table_id, ["a", "b", "zz"]) == {"a": with_dv, "b": plain}
    assert list(store.read_live_files(table_id)) == [with_dv, plain, inline]
    assert store.find_live_files(table_id, []) == {}


def test_added_file_replaces_its_row(store: StateStore, table_id: int) -> None:
    """A file that is added again replaces the row of that path, and keeps the delete files that serve it."""
    store.record_synced(
        None,
        outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d1", "a"),)),
        at_ms=1,
    )
    again = LiveFile("a", 7, 8, 1, "m1", deletion_vector("y", 3))
    store.record_synced(None, outcome(table_id, 2, added_files=(again,)), at_ms=2)
    assert store.find_live_files(table_id, ["a"]) == {"a": again}
    assert store.find_served(table_id, ["d1"]) == {"d1": {"a"}}
    assert totals(store, table_id) == (1, 4, 1, 3, 0)


def test_changed_dvs(store: StateStore, table_id: int) -> None:
    """A changed deletion vector replaces the file's, or takes it away; a file that is not live is passed over."""
    files = (live_file("a", dv=deletion_vector("x")), live_file("b", dv=deletion_vector("y")), live_file("c"))
    store.record_synced(None, outcome(table_id, 1, added_files=files), at_ms=1)
    changed = (("a", deletion_vector("z", 9)), ("b", None), ("gone", deletion_vector("z")))
    store.record_synced(None, outcome(table_id, 2, changed_dvs=changed), at_ms=2)
    assert list(store.read_live_files(table_id)) == [
        live_file("a", dv=deletion_vector("z", 9)),
        live_file("b"),
        files[2],
    ]
    assert totals(store, table_id) == (3, 291, 0, 9, 0)


def test_changed_uris(store: StateStore, table_id: int) -> None:
    """A live file gets another URI, or none, and keeps all else; a file that is not live is passed over."""
    files = (replace(live_file("a", dv=deletion_vector("x")), uri="%61"), live_file("b"))
    store.record_synced(None, outcome(table_id, 1, added_files=files), at_ms=1)
    assert store.find_live_files(table_id, ["a", "b"]) == {"a": files[0], "b": files[1]}
    changed = (("a", None), ("b", "./%62"), ("gone", "%67one"))
    store.record_synced(None, outcome(table_id, 2, changed_uris=changed), at_ms=2)
    expected = [live_file("a", dv=deletion_vector("x")), replace(live_file("b"), uri="./%62")]
    assert list(store.read_live_files(table_id)) == expected


def test_removed_file_takes_its_mappings(store: StateStore, table_id: int) -> None:
    """A removed data file takes its mappings along; the delete file stays live for the others, then for none."""
    store.record_synced(
        None,
        outcome(
            table_id,
            1,
            added_files=(live_file("a"), live_file("b")),
            added_delete_files=(delete_file("d1", "a", "b"),),
        ),
        at_ms=1,
    )
    store.record_synced(None, outcome(table_id, 2, removed_files=("a",)), at_ms=2)
    assert store.find_delete_files(table_id, ["a"]) == []
    assert store.find_served(table_id, ["d1", "unknown"]) == {"d1": {"b"}, "unknown": set()}
    assert totals(store, table_id) == (1, 100, 1, 0, 0)
    store.record_synced(None, outcome(table_id, 3, removed_files=("b",)), at_ms=3)
    assert store.find_served(table_id, ["d1"]) == {"d1": set()}
    assert (store.count(table_id).live_delete_files, orphans(store, table_id)) == (1, [])


def test_removed_and_added_again(store: StateStore, table_id: int) -> None:
    """A file in both `removed_files` and `added_files` is live afterwards, served by the new delete files alone."""
    store.record_synced(
        None,
        outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d1", "a"),)),
        at_ms=1,
    )
    shrunk = live_file("a", manifest="m1", dv=deletion_vector("small", 1))
    change = outcome(
        table_id,
        2,
        removed_files=("a",),
        added_files=(shrunk,),
        added_delete_files=(delete_file("d2", "a"),),
        removed_delete_files=(("d1", OrphanReason.DV_SHRUNK),),
    )
    store.record_synced(None, change, at_ms=2)
    assert store.find_live_files(table_id, ["a"]) == {"a": shrunk}
    assert store.find_delete_files(table_id, ["a"]) == [delete_file("d2", "a")]
    assert orphans(store, table_id) == [("d1", FileKind.DELETE_FILE, OrphanReason.DV_SHRUNK)]


def test_find_delete_files(store: StateStore, table_id: int) -> None:
    """Delete files come once each, by path, with all their mappings, those of other data files too."""
    both, one = delete_file("d1", "a", "b"), delete_file("d2", "b")
    files = tuple(live_file(path) for path in "abc")
    store.record_synced(None, outcome(table_id, 1, added_files=files, added_delete_files=(one, both)), at_ms=1)
    assert store.find_delete_files(table_id, ["a"]) == [both]
    assert store.find_delete_files(table_id, ["b", "a"]) == [both, one]
    assert store.find_delete_files(table_id, ["c", "zz"]) == []


def test_delete_file_added_again_replaces_its_mappings(store: StateStore, table_id: int) -> None:
    """A delete file that is added again serves what it names now; a data file that is not live is not among it."""
    files = (live_file("a"), live_file("b"))
    first = outcome(table_id, 1, added_files=files, added_delete_files=(delete_file("p", "a", "b"),))
    store.record_synced(None, first, at_ms=1)
    again = delete_file("p", "b", "not-live")
    store.record_synced(None, outcome(table_id, 2, added_delete_files=(again,)), at_ms=2)
    assert store.find_delete_files(table_id, ["a", "b"]) == [replace(again, mappings=again.mappings[:1])]
    assert store.count(table_id).live_delete_files == 1


def test_removed_delete_files_become_orphans(store: StateStore, table_id: int) -> None:
    """A removed delete file becomes an orphan with its reason and serves nothing; so does one never heard of."""
    first = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d1", "a"),))
    store.record_synced(None, first, at_ms=1)
    removed = (("d1", OrphanReason.DV_SHRUNK), ("d0", OrphanReason.DATA_FILES_GONE))
    store.record_synced(None, outcome(table_id, 2, removed_delete_files=removed), at_ms=2)
    assert orphans(store, table_id) == [
        ("d0", FileKind.DELETE_FILE, OrphanReason.DATA_FILES_GONE),
        ("d1", FileKind.DELETE_FILE, OrphanReason.DV_SHRUNK),
    ]
    assert store.find_delete_files(table_id, ["a"]) == []
    assert store.find_served(table_id, ["d1"]) == {"d1": set()}
    assert totals(store, table_id) == (1, 100, 0, 0, 2)


def test_orphans_outlive_a_rebuild(store: StateStore, table_id: int) -> None:
    """A rebuild replaces what is live, and still knows the orphans of before."""
    first = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d1", "a"),))
    store.record_synced(None, first, at_ms=1)
    removed = (("d1", OrphanReason.DV_SHRUNK),)
    store.record_synced(None, outcome(table_id, 2, removed_delete_files=removed), at_ms=2)
    store.record_rebuilt(outcome(table_id, 3), [live_file("b", manifest="m1")], [], at_ms=3)
    assert orphans(store, table_id) == [("d1", FileKind.DELETE_FILE, OrphanReason.DV_SHRUNK)]


def test_moved_manifests(store: StateStore, table_id: int) -> None:
    """Files of a rewritten manifest are in its successor, except those the outcome places elsewhere."""
    first = outcome(
        table_id,
        1,
        added_files=(live_file("a"), live_file("b"), live_file("c", manifest="other")),
        added_delete_files=(delete_file("d1", "a"), delete_file("d2", "b")),
    )
    store.record_synced(None, first, at_ms=1)
    second = outcome(
        table_id,
        2,
        moved_manifests=((MANIFEST, "m1"), (DELETE_MANIFEST, "dm1"), ("never-heard-of", "m2")),
        added_files=(live_file("b", manifest="m3"),),
        added_delete_files=(delete_file("d2", "b", manifest="dm3"),),
    )
    store.record_synced(None, second, at_ms=2)
    assert [file.manifest_path for file in store.read_live_files(table_id)] == ["m1", "m3", "other"]
    assert [file.manifest_path for file in store.find_delete_files(table_id, ["a", "b"])] == ["dm1", "dm3"]


def test_long_lists(store: StateStore, table_id: int) -> None:
    """Lists longer than a statement takes and tables longer than a batch are answered whole and in order."""
    paths = [f"f{number:05}" for number in range(READ_BATCH_MAX + 10)]
    many = paths[: 2 * IN_LIST_MAX + 1]
    store.record_rebuilt(
        outcome(table_id, 1), (live_file(path) for path in reversed(paths)), [delete_file("d", *many)], at_ms=1
    )
    assert [file.path for file in store.read_live_files(table_id)] == paths
    assert list(store.find_live_files(table_id, many)) == many
    assert store.find_delete_files(table_id, many) == [delete_file("d", *many)]
    assert store.find_served(table_id, ["d", *many])["d"] == set(many)
    store.record_synced(None, outcome(table_id, 2, removed_files=tuple(many)), at_ms=2)
    assert store.count(table_id).live_data_files == len(paths) - len(many)
    assert store.find_served(table_id, ["d"]) == {"d": set()}


# --- intents ---


def test_intents_are_open_until_they_end(store: StateStore, table_id: int) -> None:
    """Open intents come oldest first with what was prepared last; synced and abandoned ones are gone for good."""
    late = open_intent(store, table_id, 1, created_at_ms=9)
    early = open_intent(store, table_id, 2**62, created_at_ms=3)
    store.record_prepared(early.id, outcome(table_id, 1))
    prepared = outcome(
        table_id,
        1,
        added_files=(live_file("a", dv=deletion_vector("x")),),
        changed_dvs=(("b", None),),
        added_delete_files=(delete_file("d", "a"),),
        removed_delete_files=(("e", OrphanReason.DV_SHRUNK),),
        moved_manifests=(("m", "n"),),
        unwritten_files=("u",),
    )
    store.record_prepared(early.id, prepared)
    assert store.find_open_intents(table_id) == [(early, prepared), (late, None)]

    store.record_synced(early.id, prepared, at_ms=1)
    store.record_abandoned(late.id, OrphanReason.COMMIT_FAILED, at_ms=1)
    store.record_intent(late, {})
    assert store.find_open_intents(table_id) == []


def test_ending_an_intent_that_is_not_known(store: StateStore, table_id: int) -> None:
    """What landed is recorded even when its intent is not known; abandoning such an intent does nothing."""
    store.record_synced(UNKNOWN, outcome(table_id, 1, added_files=(live_file("a"),)), at_ms=1)
    store.record_abandoned(UNKNOWN, OrphanReason.COMMIT_FAILED, at_ms=1)
    assert totals(store, table_id) == (1, 100, 0, 0, 0)


def test_pending_files_of_a_synced_intent_become_live(store: StateStore, table_id: int) -> None:
    """Synced files are live and those never written are forgotten, so neither is an orphan later."""
    open_intent(store, table_id, 1, pending={FileKind.DELETE_FILE: ["d1", "d-unwritten", "d1"]})
    store.record_pending(1, {FileKind.DELETE_FILE: ["d1"]})
    store.record_pending(1, {FileKind.MANIFEST: ["m1", "m-unwritten"], FileKind.MANIFEST_LIST: ["snap-1"]})
    assert totals(store, table_id) == (0, 0, 0, 0, 0)
    synced = outcome(
        table_id,
        1,
        added_files=(live_file("a", manifest="m1"),),
        added_delete_files=(delete_file("d1", "a"),),
        unwritten_files=("d-unwritten", "m-unwritten"),
    )
    store.record_synced(1, synced, at_ms=1)
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=2)
    assert totals(store, table_id) == (1, 100, 1, 0, 0)
    store.record_orphans(table_id, FileKind.MANIFEST_LIST, ["snap-1"], OrphanReason.COMMIT_FAILED, at_ms=3)
    store.record_orphans(table_id, FileKind.MANIFEST, ["m-unwritten"], OrphanReason.COMMIT_FAILED, at_ms=3)
    assert orphan_paths(store, table_id) == ["m-unwritten"]


def test_abandoned_files_become_orphans(store: StateStore, table_id: int) -> None:
    """The pending files of an abandoned intent become orphans; those of another intent stay pending."""
    open_intent(store, table_id, 1)
    open_intent(store, table_id, 2)
    for number, kind in enumerate(FileKind):
        store.record_pending(1, {kind: [f"lost-{number}"]})
        store.record_pending(2, {kind: [f"kept-{number}"]})
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=4)
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=5)
    expected = [(f"lost-{number}", kind, OrphanReason.COMMIT_FAILED) for number, kind in enumerate(FileKind)]
    assert orphans(store, table_id) == expected
    assert [intent.id for intent, _ in store.find_open_intents(table_id)] == [2]


def test_files_that_were_not_written_are_forgotten(store: StateStore, table_id: int) -> None:
    """Those of the abandoned intent; another one's by the same name stays pending, and a live one live."""
    open_intent(store, table_id, 1)
    open_intent(store, table_id, 2)
    for kind in FileKind:
        store.record_pending(1, {kind: [f"{kind}-written", f"{kind}-unwritten"]})
    store.record_pending(2, {FileKind.MANIFEST: ["other"]})
    unwritten = [*(f"{kind}-unwritten" for kind in FileKind), "other"]
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=4, unwritten=unwritten)
    assert orphan_paths(store, table_id) == sorted(f"{kind}-written" for kind in FileKind)
    assert [file.path for file in store.list_written(table_id, (FileStatus.PENDING,))] == ["other"]


def test_abandoned_files_in_use_become_live(store: StateStore, table_id: int) -> None:
    """Of an abandoned intent, the pending files in use are live; a file in use of another intent stays pending."""
    open_intent(store, table_id, 1, created_at_ms=3)
    open_intent(store, table_id, 2, created_at_ms=4)
    store.record_pending(1, {FileKind.METADATA: ["v1.json", "v2.json"]})
    store.record_pending(1, {FileKind.DELETE_FILE: ["d1"]})
    store.record_pending(2, {FileKind.MANIFEST: ["m2"]})
    in_use = {"v1.json", "m2", "never-heard-of"}
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=5, in_use=in_use)
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=6, in_use={"v2.json"})
    assert store.list_written(table_id, FileStatus) == [
        WrittenFile("m2", FileKind.MANIFEST, FileStatus.PENDING, 4),
        WrittenFile("d1", FileKind.DELETE_FILE, FileStatus.ORPHANED, 5, OrphanReason.COMMIT_FAILED),
        WrittenFile("v1.json", FileKind.METADATA, FileStatus.LIVE, 5),
        WrittenFile("v2.json", FileKind.METADATA, FileStatus.ORPHANED, 5, OrphanReason.COMMIT_FAILED),
    ]


def test_pending_path_moves_to_the_newer_intent(store: StateStore, table_id: int) -> None:
    """A path that is written again belongs to the new intent: the old one's end does not orphan it."""
    open_intent(store, table_id, 1)
    store.record_pending(1, {FileKind.DELETE_FILE: ["orphaned", "pending"]})
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=1)
    open_intent(store, table_id, 2)
    store.record_pending(2, {FileKind.DELETE_FILE: ["orphaned"]})
    open_intent(store, table_id, 3)
    store.record_pending(3, {FileKind.DELETE_FILE: ["pending"]})
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=2)
    assert orphans(store, table_id) == []


def test_live_path_stays_live(store: StateStore, table_id: int) -> None:
    """Announcing a file that is live already changes nothing, and its intent's end does not orphan it."""
    first = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d", "a"),))
    store.record_synced(None, first, at_ms=1)
    open_intent(store, table_id, 1)
    store.record_pending(1, {FileKind.DELETE_FILE: ["d"]})
    store.record_pending(1, {FileKind.MANIFEST: [MANIFEST]})
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=2)
    assert orphans(store, table_id) == []
    assert store.find_delete_files(table_id, ["a"]) == [delete_file("d", "a")]


def test_abandoned_intent_that_landed_after_all(store: StateStore, table_id: int) -> None:
    """What a recorded outcome names is live again although its intent was given up."""
    open_intent(store, table_id, 1)
    store.record_pending(1, {FileKind.DELETE_FILE: ["d"]})
    store.record_pending(1, {FileKind.MANIFEST: [MANIFEST, DELETE_MANIFEST]})
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=1)
    landed = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d", "a"),))
    store.record_synced(1, landed, at_ms=2)
    assert (orphan_paths(store, table_id), store.count(table_id).live_delete_files) == ([], 1)


def test_synced_moves_the_cursor_and_clears_the_error(store: StateStore, table_id: int) -> None:
    """The cursor takes every field of the outcome, and the table's error is gone."""
    store.record_failure(table_id, TableError("CorruptInput", "bad CRC", "Look.", 3, 10, 2, True))
    store.record_synced(None, outcome(table_id, 4), at_ms=77)
    (table,) = store.list_tables()
    assert (table.delta_table_id, table.synced_version, table.source_timestamp_ms) == ("delta-id", 4, 4_000)
    assert (table.snapshot_id, table.metadata_location) == (7_004, "s3://iceberg/metadata/v4.json")
    assert (table.last_synced_at_ms, table.error) == (77, None)


def test_maintenance_leaves_the_error_and_the_time(store: StateStore, table_id: int) -> None:
    """An outcome of the same version that changes no rows moves the snapshot alone."""
    store.record_synced(None, outcome(table_id, 1, added_files=(live_file("a"),)), at_ms=1)
    error = TableError("Retryable", "away", "Wait.", None, 1, 1, False)
    store.record_failure(table_id, error)
    maintained = replace(outcome(table_id, 1, moved_manifests=((MANIFEST, "m1"),)), snapshot_id=99)
    store.record_synced(None, maintained, at_ms=2)
    (table,) = store.list_tables()
    assert (table.snapshot_id, table.last_synced_at_ms, table.error) == (99, 1, error)


def test_synced_twice_changes_nothing(store: StateStore, table_id: int) -> None:
    """Applying an outcome a second time, later, leaves everything as it was."""
    first = outcome(
        table_id,
        1,
        added_files=(live_file("a"), live_file("b"), live_file("c")),
        added_delete_files=(delete_file("d1", "a", "b"), delete_file("d2", "c")),
    )
    store.record_synced(None, first, at_ms=1)
    open_intent(store, table_id, 1)
    store.record_pending(1, {FileKind.DELETE_FILE: ["d3", "d-unwritten"]})
    second = outcome(
        table_id,
        2,
        added_files=(live_file("e", manifest="m2"), live_file("b", manifest="m2")),
        changed_dvs=(("a", deletion_vector("x")),),
        removed_files=("b", "c"),
        added_delete_files=(delete_file("d3", "a", "b"),),
        removed_delete_files=(("d2", OrphanReason.DATA_FILES_GONE),),
        moved_manifests=((MANIFEST, "m1"),),
        unwritten_files=("d-unwritten",),
    )
    store.record_synced(1, second, at_ms=2)
    once = observe(store, table_id, ["a", "b", "c", "e", "d1", "d2", "d3"])
    store.record_synced(1, second, at_ms=3)
    assert observe(store, table_id, ["a", "b", "c", "e", "d1", "d2", "d3"]) == once
    assert once["serving"]["d1"] == {"a"}


# --- rebuilding, orphans, errors, runs ---


def test_rebuilt_replaces_what_is_live(store: StateStore, table_id: int) -> None:
    """After a rebuild, exactly the files that were read are live, and the cursor is the outcome's."""
    old = outcome(
        table_id,
        1,
        added_files=(live_file("old"), live_file("both")),
        added_delete_files=(delete_file("d-old", "old"), delete_file("d-both", "both")),
    )
    store.record_synced(None, old, at_ms=1)
    files = [live_file("both", dv=deletion_vector("x")), live_file("new", manifest="m5")]
    deletes = [delete_file("d-both", "both"), delete_file("d-new", "both", "new", manifest="m6")]
    store.record_failure(table_id, TableError("ResyncNeeded", "a gap", "Nothing.", 1, 1, 1, False))
    store.record_rebuilt(outcome(table_id, 9), iter(files), iter(deletes), at_ms=90, synced_at_ms=80)
    assert list(store.read_live_files(table_id)) == files
    assert store.find_delete_files(table_id, ["old", "both", "new"]) == deletes
    assert totals(store, table_id) == (2, 198, 2, 2, 1)
    assert orphans(store, table_id) == [("d-old", FileKind.DELETE_FILE, OrphanReason.DATA_FILES_GONE)]
    (table,) = store.list_tables()
    assert (table.synced_version, table.last_synced_at_ms, table.error) == (9, 80, None)


def test_rebuilt_ends_intents(store: StateStore, table_id: int) -> None:
    """A rebuild ends every open intent; what was pending and is not live becomes an orphan, unless never written."""
    rebuilt = outcome(
        table_id,
        1,
        removed_delete_files=(("d-replaced", OrphanReason.DV_SHRUNK),),
        unwritten_files=("d-unwritten",),
    )
    landed = open_intent(store, table_id, rebuilt.snapshot_id or 0)
    lost = open_intent(store, table_id, 2)
    store.record_pending(landed.id, {FileKind.MANIFEST_LIST: ["snap-landed"]})
    store.record_pending(landed.id, {FileKind.DELETE_FILE: ["d-unwritten"]})
    store.record_pending(lost.id, {FileKind.DELETE_FILE: ["d-live", "d-lost"]})
    store.record_pending(lost.id, {FileKind.MANIFEST: [MANIFEST, "m-lost"]})
    store.record_pending(lost.id, {FileKind.METADATA: [rebuilt.metadata_location or ""]})
    store.record_rebuilt(rebuilt, [live_file("a")], [delete_file("d-live", "a")], at_ms=5)
    assert store.find_open_intents(table_id) == []
    assert orphans(store, table_id) == [
        ("d-lost", FileKind.DELETE_FILE, OrphanReason.COMMIT_FAILED),
        ("d-replaced", FileKind.DELETE_FILE, OrphanReason.DV_SHRUNK),
        ("m-lost", FileKind.MANIFEST, OrphanReason.COMMIT_FAILED),
    ]
    assert totals(store, table_id) == (1, 100, 1, 0, 3)


def test_rebuild_keeps_what_older_snapshots_use(store: StateStore, table_id: int) -> None:
    """After a rebuild, manifests, lists and metadata files are live as long as before."""
    open_intent(store, table_id, 1)
    store.record_pending(1, {FileKind.MANIFEST_LIST: ["snap-1"]})
    store.record_pending(1, {FileKind.METADATA: ["v1.json"]})
    store.record_synced(1, outcome(table_id, 1, added_files=(live_file("a"),)), at_ms=2)
    store.record_rebuilt(outcome(table_id, 2), [live_file("b", manifest="m1")], [], at_ms=3)
    assert store.list_written(table_id, FileStatus) == [
        WrittenFile(MANIFEST, FileKind.MANIFEST, FileStatus.LIVE, 2),
        WrittenFile("snap-1", FileKind.MANIFEST_LIST, FileStatus.LIVE, 2),
        WrittenFile("v1.json", FileKind.METADATA, FileStatus.LIVE, 2),
        WrittenFile("m1", FileKind.MANIFEST, FileStatus.LIVE, 3),
    ]


def test_rebuild_orphans_delete_files(store: StateStore, table_id: int) -> None:
    """A delete file that a rebuild does not read is an orphan, for the outcome's reason or for want of data files."""
    served = outcome(
        table_id,
        1,
        added_files=(live_file("a"),),
        added_delete_files=(delete_file("kept", "a"), delete_file("shrunk", "a"), delete_file("gone", "a")),
    )
    store.record_synced(None, served, at_ms=1)
    rebuilt = outcome(table_id, 2, removed_delete_files=(("shrunk", OrphanReason.DV_SHRUNK),))
    store.record_rebuilt(rebuilt, [live_file("a")], [delete_file("kept", "a")], at_ms=2)
    delete_files = [file for file in store.list_written(table_id, FileStatus) if file.kind is FileKind.DELETE_FILE]
    assert delete_files == [
        WrittenFile("kept", FileKind.DELETE_FILE, FileStatus.LIVE, 1, None, 900),
        WrittenFile("gone", FileKind.DELETE_FILE, FileStatus.ORPHANED, 2, OrphanReason.DATA_FILES_GONE, 900),
        WrittenFile("shrunk", FileKind.DELETE_FILE, FileStatus.ORPHANED, 2, OrphanReason.DV_SHRUNK, 900),
    ]


def test_rebuilt_without_a_snapshot(store: StateStore, table_id: int) -> None:
    """A rebuild that knows no snapshot takes back no orphans."""
    store.record_orphans(table_id, FileKind.MANIFEST, ["found"], OrphanReason.FOUND, at_ms=1)
    empty = replace(outcome(table_id, 1), snapshot_id=None, metadata_location=None)
    store.record_rebuilt(empty, [], [], at_ms=2)
    assert orphan_paths(store, table_id) == ["found"]


def test_rebuilt_in_batches(store: StateStore, table_id: int) -> None:
    """A second rebuild leaves nothing of the first, of however many files both are."""
    first, second = ([f"{name}{number:05}" for number in range(WRITE_BATCH_MAX + 2)] for name in "fs")
    store.record_rebuilt(outcome(table_id, 1), map(live_file, first), [], at_ms=1)
    store.record_rebuilt(outcome(table_id, 1), map(live_file, [*first[:1], *second]), [], at_ms=2)
    assert [file.path for file in store.read_live_files(table_id)] == [*first[:1], *second]
    (table,) = store.list_tables()
    assert (table.snapshot_id, table.last_synced_at_ms) == (7_001, 2)


def test_rebuild_that_fails_half_way(store: StateStore, table_id: int) -> None:
    """When an iterable of a rebuild raises, the table is left without a snapshot: the next rebuild makes it whole."""
    served = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d", "a"),))
    store.record_synced(None, served, at_ms=1)

    def failing() -> Iterator[LiveFile]:
        yield from (live_file(f"f{number}") for number in range(WRITE_BATCH_MAX + 1))
        raise OSError("the manifest is not readable")

    with pytest.raises(OSError, match="manifest is not readable"):
        store.record_rebuilt(outcome(table_id, 2), failing(), [], at_ms=2)
    (table,) = store.list_tables()
    assert (table.synced_version, table.snapshot_id, table.metadata_location) == (
        2,
        None,
        "s3://iceberg/metadata/v2.json",
    )
    assert orphans(store, table_id) == []
    store.record_rebuilt(outcome(table_id, 2), [live_file("a")], [delete_file("d", "a")], at_ms=3)
    assert store.list_tables()[0].snapshot_id == 7_002
    assert list(store.read_live_files(table_id)) == [live_file("a")]
    assert store.find_delete_files(table_id, ["a"]) == [delete_file("d", "a")]


def test_a_pause_ends_when_its_time_is_over_and_not_before(store: StateStore, table_id: int) -> None:
    pause = Pause(1_000, "ada on lake-1", until_ms=5_000, reason="the files are moved")
    for kept in (pause, replace(pause, until_ms=None)):
        store.record_pause(table_id, kept)
        store.end_pause(table_id, at_ms=4_999)
        assert store.list_tables()[0].pause == kept
    store.end_pause(table_id, at_ms=2**62)
    assert store.list_tables()[0].pause is not None, "only a person ends this one"
    store.record_pause(table_id, pause)
    store.end_pause(table_id, at_ms=5_000)
    assert store.list_tables()[0].pause is None


def test_others_write_during_a_rebuild(store: StateStore, table_id: int) -> None:
    """While files are read for a rebuild, all verbs of other tables go on, and what people say of this one is kept."""
    other = store.open_table("t0", "s3://delta/t0", "sales.t0").id

    def files() -> Iterator[LiveFile]:
        yield live_file("a")
        store.record_synced(None, outcome(other, 1, added_files=(live_file("b"),)), at_ms=1)
        store.record_pause(table_id, PAUSE)

    store.record_rebuilt(outcome(table_id, 2), files(), [], at_ms=2)
    tables = {table.id: table for table in store.list_tables()}
    assert tables[other].synced_version == 1
    assert (tables[table_id].pause, tables[table_id].snapshot_id) == (PAUSE, 7_002)


def test_a_rebuild_gives_way_to_others(sql_store: SqlStateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebuild sleeps as long as its batches take while others write, and not at all while nobody does."""
    slept_s: list[float] = []
    monkeypatch.setattr("state.sql.database.time.sleep", slept_s.append)
    table_id = sql_store.open_table("t", "s3://delta/t", "sales.t").id
    other = sql_store.open_table("t0", "s3://delta/t0", "sales.t0").id
    files = [live_file(f"f{number}") for number in range(3 * WRITE_BATCH_MAX)]
    sql_store.record_rebuilt(outcome(table_id, 1), files, [], at_ms=1)
    assert slept_s == []

    def watched() -> Iterator[LiveFile]:
        for number, file in enumerate(files):
            if number % WRITE_BATCH_MAX == 0:
                sql_store.record_pause(other, PAUSE)
            yield file

    began_s = time.monotonic()
    sql_store.record_rebuilt(outcome(table_id, 1), watched(), [], at_ms=1)
    assert len(slept_s) == 3
    assert 0 < sum(slept_s) < time.monotonic() - began_s


def test_forgotten_during_a_rebuild(store: StateStore, table_id: int) -> None:
    """A table that is forgotten meanwhile stays forgotten: the rebuild raises LookupError."""

    def files() -> Iterator[LiveFile]:
        yield live_file("a")
        store.forget_table(table_id)

    with pytest.raises(LookupError):
        store.record_rebuilt(outcome(table_id, 2), files(), [], at_ms=2)
    assert store.list_tables() == []


def test_a_table_half_forgotten(sql_store: SqlStateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others write between the batches. A process that ends there leaves a table whose memory is rebuilt."""
    table_id = sql_store.open_table("t", "s3://delta/t", "sales.t").id
    other = sql_store.open_table("t0", "s3://delta/t0", "sales.t0").id
    sql_store.record_synced(None, outcome(table_id, 1, added_files=[live_file(name) for name in "abc"]), at_ms=1)
    monkeypatch.setattr(store_module, "WRITE_BATCH_MAX", 2)
    remove = sql_files.remove_some_live_files

    def remove_once(connection: Connection, table_id: int, files_max: int) -> bool:
        monkeypatch.setattr(sql_files, "remove_some_live_files", ended)
        return remove(connection, table_id, files_max)

    def ended(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(sql_files, "remove_some_live_files", remove_once)
    with pytest.raises(KeyboardInterrupt):
        sql_store.forget_table(table_id)
    sql_store.record_synced(None, outcome(other, 1, added_files=(live_file("b"),)), at_ms=1)
    tables = {table.id: table for table in sql_store.list_tables()}
    assert (tables[table_id].snapshot_id, tables[other].synced_version) == (None, 1)
    assert sql_store.count(table_id).live_data_files == 1
    monkeypatch.setattr(sql_files, "remove_some_live_files", remove)
    sql_store.forget_table(table_id)
    assert [table.id for table in sql_store.list_tables()] == [other]


def test_record_orphans_leaves_known_paths(store: StateStore, table_id: int) -> None:
    """Found orphans are added once; a path that is live, pending or orphaned already is left as it is."""
    open_intent(store, table_id, 1)
    store.record_pending(1, {FileKind.DELETE_FILE: ["pending"]})
    files = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("live", "a"),))
    store.record_synced(None, files, at_ms=1)
    found = ["z-found", "pending", "live", "z-found"]
    store.record_orphans(table_id, FileKind.DELETE_FILE, found, OrphanReason.COMMIT_FAILED, at_ms=2)
    store.record_orphans(table_id, FileKind.DELETE_FILE, ["z-found"], OrphanReason.DATA_FILES_GONE, at_ms=3)
    store.record_orphans(table_id, FileKind.METADATA, ["a-later"], OrphanReason.COMMIT_FAILED, at_ms=4)
    store.record_orphans(table_id, FileKind.MANIFEST, [MANIFEST], OrphanReason.COMMIT_FAILED, at_ms=4)
    assert orphans(store, table_id) == [
        ("z-found", FileKind.DELETE_FILE, OrphanReason.COMMIT_FAILED),
        ("a-later", FileKind.METADATA, OrphanReason.COMMIT_FAILED),
    ]
    assert store.find_delete_files(table_id, ["a"]) == [delete_file("live", "a")]


def test_failure_and_resume(store: StateStore, table_id: int) -> None:
    """The last error is kept with all its fields and its parking, until the table is resumed."""
    store.record_failure(table_id, TableError("Retryable", "away", "Wait.", None, 1, 1, False))
    parked = TableError("Unsupported", "a feature we lack: é", "Ask.", 12, 5, 3, True)
    store.record_failure(table_id, parked)
    assert store.list_tables()[0].error == parked
    store.record_resumed(table_id)
    assert store.open_table("orders", "s3://delta/orders", "sales.orders").error is None


def test_what_a_table_waits_for(store: StateStore, table_id: int) -> None:
    """It outlasts errors and resumes, until the syncs end it."""
    wait = Wait("the catalog", 2**41)
    store.record_wait(table_id, wait)
    store.record_failure(table_id, TableError("CatalogAway", "older", "Wait.", None, 1, 1, False))
    store.record_resumed(table_id)
    assert store.list_tables()[0].wait == wait
    store.record_wait(table_id, None)
    assert store.open_table("orders", "s3://delta/orders", "sales.orders").wait is None


def test_recent_commits(store: StateStore, table_id: int) -> None:
    """Each synced version brings its commit; the oldest go, and those of another table or of versions that are gone."""
    older = [CommitIdentity(version, 100 + version, 2**41, version) for version in range(RECENT_COMMITS_MAX)]
    assert store.find_recent_commits(table_id) == ()
    newest = older[-1].version
    store.record_rebuilt(outcome(table_id, newest, recent_commits=tuple(reversed(older))), [], [], at_ms=1)
    assert store.find_recent_commits(table_id) == tuple(older)
    commit = CommitIdentity(newest + 1, 1, 2**41)
    store.record_synced(None, outcome(table_id, newest + 1, recent_commits=(commit,)), at_ms=2)
    assert store.find_recent_commits(table_id) == (*older[1:], commit)
    replaced = CommitIdentity(2, 7, 2**41, 2**32 - 1)
    store.record_synced(None, outcome(table_id, 3, recent_commits=(replaced, commit)), at_ms=3)
    assert store.find_recent_commits(table_id) == (older[1], replaced, older[3])
    # What a sync that landed unrecorded had read is known, too.
    open_intent(store, table_id, 1)
    store.record_prepared(1, outcome(table_id, 4, recent_commits=(older[4],)))
    ((_, prepared),) = store.find_open_intents(table_id)
    assert prepared
    store.record_synced(1, prepared, at_ms=4)
    assert store.find_recent_commits(table_id) == (older[1], replaced, *older[3:5])
    other = replace(outcome(table_id, 4, recent_commits=(older[0],)), delta_table_id="another")
    store.record_synced(None, other, at_ms=5)
    assert store.find_recent_commits(table_id) == (older[0],)


def test_runs_newest_first(store: StateStore, table_id: int) -> None:
    """Runs come back whole, the newest first, of equal times the last recorded, and no more than asked for."""
    runs = [SyncRun(table_id, at, 5, "advanced", 1, 2, 2**62, at, 2, 3, 4, "note", "MERGE") for at in (10, 30, 20)]
    runs.append(SyncRun(table_id, 30, 1, "unchanged"))
    for run in runs:
        store.record_run(run)
    assert store.list_runs(table_id, runs_max=3) == [runs[3], runs[1], runs[2]]
    assert store.list_runs(table_id, runs_max=9)[-1] == runs[0]


def test_the_day_is_kept_and_bounded(store: StateStore, table_id: int) -> None:
    """One sample a table comes back whole, the oldest first; older ones go, and those of a clock that was ahead."""
    other = store.open_table("other", "s3://delta/other", "sales.other").id
    for at_ms in (10, 20, 30):
        samples = {table_id: Sample(at_ms, 0.25, 2**40, at_ms, None), other: Sample(at_ms + 1, None, None)}
        store.record_samples({**samples, UNKNOWN: Sample(at_ms, 1.0, 1)}, before_ms=0)
    assert store.list_samples(table_id, after_ms=10) == [Sample(at, 0.25, 2**40, at, None) for at in (20, 30)]
    assert store.list_samples(other, after_ms=0) == [Sample(at, None, None) for at in (11, 21, 31)]
    store.record_samples({}, before_ms=100)
    store.record_samples({table_id: Sample(25, 1.5, 7)}, before_ms=20)
    assert [sample.at_ms for sample in store.list_samples(table_id, after_ms=0)] == [20, 25]
    assert [sample.at_ms for sample in store.list_samples(other, after_ms=0)] == [21]
    store.forget_table(other)
    with pytest.raises(LookupError):
        store.list_samples(other, after_ms=0)


# --- the life of written files ---


def write_files(store: StateStore, table_id: int) -> None:
    """A data file in a live manifest, a delete file for it, and a list that is pending, live, orphaned, deleted."""
    open_intent(store, table_id, 1, created_at_ms=1)
    store.record_pending(1, {FileKind.MANIFEST_LIST: ["live"]})
    files = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d", "a"),))
    store.record_synced(1, files, at_ms=2)
    open_intent(store, table_id, 2, created_at_ms=3)
    store.record_pending(2, {FileKind.MANIFEST_LIST: ["pending"]})
    store.record_orphans(table_id, FileKind.MANIFEST_LIST, ["orphaned"], OrphanReason.FOUND, at_ms=4)
    store.record_orphans(table_id, FileKind.MANIFEST_LIST, ["deleted"], OrphanReason.FOUND, at_ms=4)
    store.record_deleted(table_id, ["deleted"], at_ms=5)


def test_list_written(store: StateStore, table_id: int) -> None:
    """Files come in the statuses asked for, the longest in it first, of equal times by path."""
    write_files(store, table_id)
    live = [
        WrittenFile("d", FileKind.DELETE_FILE, FileStatus.LIVE, 2, None, 900),
        WrittenFile("live", FileKind.MANIFEST_LIST, FileStatus.LIVE, 2),
        WrittenFile(DELETE_MANIFEST, FileKind.MANIFEST, FileStatus.LIVE, 2),
        WrittenFile(MANIFEST, FileKind.MANIFEST, FileStatus.LIVE, 2),
    ]
    others = [
        WrittenFile("pending", FileKind.MANIFEST_LIST, FileStatus.PENDING, 3),
        WrittenFile("orphaned", FileKind.MANIFEST_LIST, FileStatus.ORPHANED, 4, OrphanReason.FOUND),
        WrittenFile("deleted", FileKind.MANIFEST_LIST, FileStatus.DELETED, 5, OrphanReason.FOUND),
    ]
    assert store.list_written(table_id, FileStatus) == live + others
    assert store.list_written(table_id, {FileStatus.LIVE}) == live
    assert store.list_written(table_id, [FileStatus.DELETED, FileStatus.PENDING]) == [others[0], others[2]]
    assert store.list_written(table_id, []) == []


def test_unreferenced_files_are_orphans_from_now_on(store: StateStore, table_id: int) -> None:
    """Live and orphaned files take the new time and reason; pending, deleted and unknown ones stay as they are."""
    write_files(store, table_id)
    paths = ["live", "orphaned", "pending", "deleted", "never-heard-of"]
    store.record_unreferenced(table_id, paths, OrphanReason.SNAPSHOT_EXPIRED, at_ms=9)
    expired = (FileKind.MANIFEST_LIST, FileStatus.ORPHANED, 9, OrphanReason.SNAPSHOT_EXPIRED)
    others = store.list_written(table_id, [FileStatus.PENDING, FileStatus.DELETED])
    assert store.list_written(table_id, [FileStatus.ORPHANED]) == [
        WrittenFile("live", *expired),
        WrittenFile("orphaned", *expired),
    ]
    assert [(file.path, file.since_ms) for file in others] == [("pending", 3), ("deleted", 5)]


def test_unreferenced_delete_files_were_orphans(store: StateStore, table_id: int) -> None:
    """Of delete files, orphaned ones alone take the new time and reason: a live one serves as before."""
    write_files(store, table_id)
    store.record_pending(2, {FileKind.DELETE_FILE: ["d-pending"]})
    store.record_orphans(table_id, FileKind.DELETE_FILE, ["d-deleted"], OrphanReason.FOUND, at_ms=4)
    store.record_deleted(table_id, ["d-deleted"], at_ms=5)
    before = observe(store, table_id, ["a", "d"])
    paths = ["d", "d-pending", "d-deleted"]
    store.record_unreferenced(table_id, paths, OrphanReason.SNAPSHOT_EXPIRED, at_ms=9)
    assert observe(store, table_id, ["a", "d"]) == before
    assert store.find_delete_files(table_id, ["a"]) == [delete_file("d", "a")]
    removed = (("d", OrphanReason.DV_SHRUNK),)
    store.record_synced(None, outcome(table_id, 2, removed_delete_files=removed), at_ms=10)
    store.record_unreferenced(table_id, paths, OrphanReason.SNAPSHOT_EXPIRED, at_ms=11)
    assert find_written(store, table_id, "d") == WrittenFile(
        "d", FileKind.DELETE_FILE, FileStatus.ORPHANED, 11, OrphanReason.SNAPSHOT_EXPIRED, 900
    )


def test_orphan_that_a_sync_took_back(store: StateStore, table_id: int) -> None:
    """A delete file that was an orphan when the caller looked, and is live since, is not unreferenced."""
    store.record_orphans(table_id, FileKind.DELETE_FILE, ["d"], OrphanReason.FOUND, at_ms=1)
    seen = orphan_paths(store, table_id)
    files = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d", "a"),))
    store.record_synced(None, files, at_ms=2)
    store.record_unreferenced(table_id, seen, OrphanReason.SNAPSHOT_EXPIRED, at_ms=3)
    store.record_unreferenced(table_id, [DELETE_MANIFEST], OrphanReason.SNAPSHOT_EXPIRED, at_ms=3)
    store.record_still_used(table_id, seen, at_ms=3)
    assert (seen, orphans(store, table_id)) == (["d"], [])
    assert store.find_delete_files(table_id, ["a"]) == [delete_file("d", "a")]
    assert find_written(store, table_id, "d") == WrittenFile("d", FileKind.DELETE_FILE, FileStatus.LIVE, 2, None, 900)


def test_manifest_of_live_files_stays_live(store: StateStore, table_id: int) -> None:
    """A manifest is not unreferenced while a live data file or delete file is in it, and is afterwards."""
    write_files(store, table_id)
    manifests = [MANIFEST, DELETE_MANIFEST]
    store.record_unreferenced(table_id, manifests, OrphanReason.SNAPSHOT_EXPIRED, at_ms=9)
    assert orphan_paths(store, table_id) == ["orphaned"]
    removed = (("d", OrphanReason.DV_SHRUNK),)
    store.record_synced(None, outcome(table_id, 2, removed_delete_files=removed), at_ms=10)
    store.record_unreferenced(table_id, manifests, OrphanReason.SNAPSHOT_EXPIRED, at_ms=11)
    assert orphan_paths(store, table_id) == ["orphaned", "d", DELETE_MANIFEST]
    store.record_synced(None, outcome(table_id, 3, moved_manifests=((MANIFEST, "m1"),)), at_ms=12)
    store.record_unreferenced(table_id, manifests, OrphanReason.SNAPSHOT_EXPIRED, at_ms=13)
    assert orphan_paths(store, table_id) == ["orphaned", "d", DELETE_MANIFEST, MANIFEST]


def test_still_used_orphans_begin_anew(store: StateStore, table_id: int) -> None:
    """Orphans that are still used take the new time and keep their reason; all other files stay as they are."""
    write_files(store, table_id)
    store.record_orphans(table_id, FileKind.DELETE_FILE, ["d-orphaned"], OrphanReason.COMMIT_FAILED, at_ms=4)
    store.record_sizes(table_id, {"d-orphaned": 7})
    before = {file.path: file for file in store.list_written(table_id, FileStatus)}
    store.record_still_used(table_id, [*before, "never-heard-of"], at_ms=9)
    assert {file.path: file for file in store.list_written(table_id, FileStatus)} == {
        **before,
        "orphaned": replace(before["orphaned"], since_ms=9),
        "d-orphaned": replace(before["d-orphaned"], since_ms=9),
    }


def test_orphans_that_older_snapshots_show_keep_their_time(store: StateStore, table_id: int) -> None:
    """Their grace period has not begun, so that it cannot begin anew."""
    store.record_orphans(table_id, FileKind.DELETE_FILE, ["d"], OrphanReason.FOUND_IN_USE, at_ms=4)
    store.record_still_used(table_id, ["d"], at_ms=9)
    assert [file.since_ms for file in store.list_written(table_id, [FileStatus.ORPHANED])] == [4]


def test_list_for_cleanup(store: StateStore, table_id: int) -> None:
    """Of files whose snapshot was expired, those between the two times are counted, and not listed."""
    write_files(store, table_id)
    expired = {"due": 10, "waiting": 11, "now": 20, "ahead": 21}
    for path, at_ms in expired.items():
        kind = FileKind.DELETE_FILE if path == "now" else FileKind.METADATA
        store.record_orphans(table_id, kind, [path], OrphanReason.SNAPSHOT_EXPIRED, at_ms=at_ms)
    store.record_orphans(table_id, FileKind.DELETE_FILE, ["d-older"], OrphanReason.DV_SHRUNK, at_ms=15)
    files, waiting = store.list_for_cleanup(table_id, due_ms=10, now_ms=20)
    kept = {file.path for file in store.list_written(table_id, (FileStatus.LIVE, FileStatus.ORPHANED))}
    assert {file.path for file in files} == kept - {"waiting", "now"}
    assert {"due", "ahead", "d-older", "live", "d"} <= {file.path for file in files}
    assert waiting == 2


def test_replaced_table_begins_from_nothing(store: StateStore, table_id: int) -> None:
    """What snapshots may use is set aside as the replaced table's, no data file is live, and open intents stay."""
    write_files(store, table_id)
    store.record_pending(2, {FileKind.DELETE_FILE: ["d-pending"]})
    before = {file.path: file for file in store.list_written(table_id, FileStatus)}
    opened, table = store.find_open_intents(table_id), store.list_tables()
    store.record_table_replaced(table_id, at_ms=9)
    aside = {"status": FileStatus.ORPHANED, "reason": OrphanReason.TABLE_REPLACED, "since_ms": 9}
    assert {file.path: file for file in store.list_written(table_id, FileStatus)} == {
        path: file if path in ("deleted", "orphaned") else replace(file, **aside) for path, file in before.items()
    }
    assert list(store.read_live_files(table_id)) == []
    assert store.find_delete_files(table_id, ["a"]) == []
    assert store.find_served(table_id, ["d"]) == {"d": set()}
    assert totals(store, table_id) == (0, 0, 0, 0, 7)
    assert store.find_open_intents(table_id) == opened
    (before_it,) = table
    assert store.list_tables() == [replace(before_it, snapshot_id=None, metadata_location=None)]
    assert before_it.snapshot_id is not None and before_it.synced_version is not None


def test_rebuilt_after_it_was_replaced(store: StateStore, table_id: int) -> None:
    """What a rebuild reads from the new table is live; what the one before left behind keeps its reason."""
    write_files(store, table_id)
    store.record_table_replaced(table_id, at_ms=9)
    files, deletes = [live_file("a", manifest="m1")], [delete_file("d1", "a", manifest="m1")]
    store.record_rebuilt(outcome(table_id, 2), files, deletes, at_ms=10)
    assert list(store.read_live_files(table_id)) == files
    assert store.find_delete_files(table_id, ["a"]) == deletes
    reasons = {path: reason for path, _, reason in orphans(store, table_id)}
    assert reasons.pop("orphaned") is OrphanReason.FOUND
    assert reasons == dict.fromkeys(["d", "live", "pending", DELETE_MANIFEST, MANIFEST], OrphanReason.TABLE_REPLACED)
    assert store.find_open_intents(table_id) == []


@pytest.mark.parametrize("kind", [FileKind.DELETE_FILE, FileKind.METADATA])
def test_has_orphans(store: StateStore, table_id: int, kind: FileKind) -> None:
    """Orphans are told of by reason and by age, the bound included; files that are not orphans are not."""
    store.record_orphans(table_id, kind, ["x"], OrphanReason.FOUND, at_ms=5)
    others = set(OrphanReason) - {OrphanReason.FOUND}
    assert store.has_orphans(table_id, before_ms=5, reasons={OrphanReason.FOUND})
    assert store.has_orphans(table_id, before_ms=6, reasons=OrphanReason)
    assert not store.has_orphans(table_id, before_ms=4, reasons=OrphanReason)
    assert not store.has_orphans(table_id, before_ms=9, reasons=others)
    assert not store.has_orphans(table_id, before_ms=9, reasons=[])
    store.record_deleted(table_id, ["x"], at_ms=5)
    assert not store.has_orphans(table_id, before_ms=9, reasons=OrphanReason)


def test_proof(store: StateStore, table_id: int) -> None:
    """A verification's record comes back as it was, is replaced as a whole, and outlives syncs and errors."""
    difference = Difference("metadata", "wrong size", "a", "detail", column="c", positions=(1, 2))
    found = Differences({"wrong size": 7}, (difference,))
    proof = ProofRecord("metadata", 1, 2, -3, 4, 5, SHARES, complete_at_ms=1, found=found, differences=found)
    store.record_proof(table_id, proof)
    store.record_failure(table_id, TableError("k", "m", "h", None, 1, 1, False))
    write_files(store, table_id)
    (record,) = store.list_tables()
    assert record.proof == proof
    store.record_proof(table_id, None)
    (record,) = store.list_tables()
    assert record.proof is None


def test_what_older_snapshots_show() -> None:
    """A file that the newest snapshot alone is without is shown by older ones; any other orphan by none we know of."""
    shown = {
        OrphanReason.DATA_FILES_GONE, OrphanReason.DV_SHRUNK, OrphanReason.DV_REPLACED, OrphanReason.COMPACTED,
        OrphanReason.FOUND_IN_USE,
    }  # fmt: skip
    assert {reason for reason in OrphanReason if reason.shown_by_older} == shown


def test_sizes_are_kept(store: StateStore, table_id: int) -> None:
    """A size is taken for a file in any status, keeps its time, and stays through what comes after."""
    write_files(store, table_id)
    sizes_bytes = {"d": 1, "live": 2, "pending": 3, "orphaned": 4, "deleted": 5, "never-heard-of": 6}
    before = {file.path: file for file in store.list_written(table_id, FileStatus)}
    store.record_sizes(table_id, sizes_bytes)
    store.record_sizes(table_id, {})
    assert {file.path: file for file in store.list_written(table_id, FileStatus)} == {
        path: replace(file, size_bytes=sizes_bytes.get(path, file.size_bytes)) for path, file in before.items()
    }
    assert [file.size_bytes for file in store.find_delete_files(table_id, ["a"])] == [1]
    store.record_unreferenced(table_id, ["live"], OrphanReason.SNAPSHOT_EXPIRED, at_ms=9)
    store.record_deleted(table_id, ["live"], at_ms=10)
    store.record_abandoned(2, OrphanReason.COMMIT_FAILED, at_ms=10)
    sized = {file.path: file.size_bytes for file in store.list_written(table_id, FileStatus)}
    assert (sized["live"], sized["pending"]) == (2, 3)


def test_only_orphans_are_deleted(store: StateStore, table_id: int) -> None:
    """A deleted orphan keeps its reason; pending, live, deleted and unknown files stay as they are."""
    write_files(store, table_id)
    before = {file.path: file for file in store.list_written(table_id, FileStatus)}
    store.record_deleted(table_id, [*before, "never-heard-of"], at_ms=9)
    after = {file.path: file for file in store.list_written(table_id, FileStatus)}
    deleted = replace(before["orphaned"], status=FileStatus.DELETED, since_ms=9)
    assert after == {**before, "orphaned": deleted}


def test_deleted_file_written_again(store: StateStore, table_id: int) -> None:
    """A deleted path that is written again is pending and then live, and one that is found again stays deleted."""
    write_files(store, table_id)
    store.record_orphans(table_id, FileKind.MANIFEST_LIST, ["deleted"], OrphanReason.FOUND, at_ms=8)
    assert find_written(store, table_id, "deleted") == WrittenFile(
        "deleted", FileKind.MANIFEST_LIST, FileStatus.DELETED, 5, OrphanReason.FOUND
    )
    store.record_pending(2, {FileKind.MANIFEST_LIST: ["deleted"]})
    store.record_synced(2, outcome(table_id, 2), at_ms=9)
    assert find_written(store, table_id, "deleted") == WrittenFile(
        "deleted", FileKind.MANIFEST_LIST, FileStatus.LIVE, 9
    )


def test_forget_before(store: StateStore, table_id: int) -> None:
    """Deleted files, ended intents and runs are forgotten when older, open intents and all other files never."""
    write_files(store, table_id)
    for started_at_ms in (4, 5):
        store.record_run(SyncRun(table_id, started_at_ms, 1, "advanced"))
    written = store.list_written(table_id, FileStatus)
    store.forget_before(table_id, 5)
    assert store.list_written(table_id, FileStatus) == written
    assert [run.started_at_ms for run in store.list_runs(table_id, runs_max=9)] == [5]
    store.forget_before(table_id, 6)
    assert store.list_written(table_id, FileStatus) == [file for file in written if file.path != "deleted"]
    assert store.list_runs(table_id, runs_max=9) == []
    assert [intent.id for intent, _ in store.find_open_intents(table_id)] == [2]
    with pytest.raises(LookupError):
        store.record_prepared(1, outcome(table_id, 1))
    store.record_abandoned(2, OrphanReason.COMMIT_FAILED, at_ms=7)
    assert orphan_paths(store, table_id) == ["orphaned", "pending"]


def test_orphans_that_nobody_removes_are_forgotten(store: StateStore, table_id: int) -> None:
    """When it is asked for, and older; what was written for a replaced table is not."""
    store.record_orphans(table_id, FileKind.MANIFEST, ["old"], OrphanReason.COMMIT_FAILED, at_ms=4)
    store.record_orphans(table_id, FileKind.DELETE_FILE, ["replaced"], OrphanReason.TABLE_REPLACED, at_ms=4)
    store.record_orphans(table_id, FileKind.DELETE_FILE, ["young"], OrphanReason.COMMIT_FAILED, at_ms=6)
    store.forget_before(table_id, 5)
    assert orphan_paths(store, table_id) == ["old", "replaced", "young"]
    store.forget_before(table_id, 5, orphans=True)
    assert orphan_paths(store, table_id) == ["replaced", "young"]


def test_forgotten_path_is_new(store: StateStore, table_id: int) -> None:
    """A path whose row was forgotten is found again as a new one, of no intent."""
    intent = open_intent(store, table_id, 7_002)
    store.record_pending(intent.id, {FileKind.MANIFEST: ["gone"]})
    store.record_abandoned(intent.id, OrphanReason.COMMIT_FAILED, at_ms=6)
    store.record_deleted(table_id, ["gone"], at_ms=7)
    store.forget_before(table_id, 8)
    store.record_orphans(table_id, FileKind.MANIFEST, ["gone"], OrphanReason.FOUND, at_ms=9)
    store.record_rebuilt(outcome(table_id, 2), [], [], at_ms=10)
    assert orphans(store, table_id) == [("gone", FileKind.MANIFEST, OrphanReason.FOUND)]


def test_count_groups_written_files(store: StateStore, table_id: int) -> None:
    """Written files are counted by kind and status, with the bytes that are known, if any, and the oldest time."""
    assert store.count(table_id).written == ()
    write_files(store, table_id)
    store.record_orphans(table_id, FileKind.MANIFEST_LIST, ["o2", "o3"], OrphanReason.FOUND, at_ms=9)
    store.record_orphans(table_id, FileKind.DELETE_FILE, ["o4"], OrphanReason.FOUND, at_ms=8)
    store.record_sizes(table_id, {"orphaned": 10, "o2": 2**40})
    counts = store.count(table_id)
    lost_list = WrittenCount(FileKind.MANIFEST_LIST, FileStatus.ORPHANED, 3, 2**40 + 10, 4)
    lost_delete_file = WrittenCount(FileKind.DELETE_FILE, FileStatus.ORPHANED, 1, None, 8)
    assert counts.written == (
        WrittenCount(FileKind.DELETE_FILE, FileStatus.LIVE, 1, 900, 2),
        lost_delete_file,
        WrittenCount(FileKind.MANIFEST, FileStatus.LIVE, 2, None, 2),
        WrittenCount(FileKind.MANIFEST_LIST, FileStatus.DELETED, 1, None, 5),
        WrittenCount(FileKind.MANIFEST_LIST, FileStatus.LIVE, 1, None, 2),
        lost_list,
        WrittenCount(FileKind.MANIFEST_LIST, FileStatus.PENDING, 1, None, 3),
    )
    assert counts.orphans == (lost_delete_file, lost_list)
    assert counts.live_delete_files == 1


def test_find_crowded(store: StateStore, table_id: int) -> None:
    """Crowded is a file that too many delete files serve, or several while enough of its rows are deleted."""
    rows = {"z-many": 0, "few-full": 50, "few-sparse": 49, "one-full": 100, "none": 0}
    files = tuple(
        live_file(path, dv=deletion_vector("x", deleted) if deleted else None) for path, deleted in rows.items()
    )
    served = (
        delete_file("d1", "z-many", "few-full", "few-sparse", "one-full"),
        delete_file("d2", "z-many", "few-full", "few-sparse"),
        delete_file("d3", "z-many"),
    )
    store.record_synced(None, outcome(table_id, 1, added_files=files, added_delete_files=served), at_ms=1)
    assert store.find_crowded(table_id, delete_files_max=2, deleted_share=0.5) == ["few-full", "z-many"]
    assert store.find_crowded(table_id, delete_files_max=3, deleted_share=0.5) == ["few-full"]
    assert store.find_crowded(table_id, delete_files_max=3, deleted_share=1.0) == []
    assert store.find_crowded(table_id, delete_files_max=3, deleted_share=0.0) == ["few-full", "few-sparse", "z-many"]
    assert store.find_crowded(table_id, delete_files_max=0, deleted_share=1.0) == sorted(rows.keys() - {"none"})
    removed = (("d2", OrphanReason.COMPACTED),)
    store.record_synced(None, outcome(table_id, 2, removed_delete_files=removed), at_ms=2)
    assert store.find_crowded(table_id, delete_files_max=2, deleted_share=0.5) == []


def test_dead_vectors_are_found_until_their_file_leaves(store: StateStore, table_id: int) -> None:
    """Also those of data files that left or come back; a delete file that leaves takes them along."""
    files = (live_file("a"), live_file("b"), live_file("c"))
    deletes = (delete_file("p", "a", "b", "c"), delete_file("q", "a"))
    store.record_synced(None, outcome(table_id, 1, added_files=files, added_delete_files=deletes), at_ms=1)
    assert store.find_former(table_id, ["a", "b", "c"]) == []
    dead = (("p", "a"), ("p", "b"))
    store.record_synced(None, outcome(table_id, 2, dead_vectors=dead, removed_files=("b",)), at_ms=2)
    (found,) = store.find_former(table_id, ["b", "x"])
    assert (found.path, found.dead, [each.data_file for each in found.mappings]) == ("p", ("a", "b"), ["c"])
    assert [file.path for file in store.find_delete_files(table_id, ["a"])] == ["q"]
    assert store.find_served(table_id, ["p"]) == {"p": {"c"}}
    # Four of six positions are dead.
    assert store.find_mostly_dead(table_id, dead_share=0.6) == ["p"]
    assert store.find_mostly_dead(table_id, dead_share=0.7) == []
    store.record_synced(None, outcome(table_id, 3, added_files=(live_file("b"),)), at_ms=3)
    assert [file.path for file in store.find_former(table_id, ["b"])] == ["p"]
    gone = (("p", OrphanReason.DV_REPLACED),)
    store.record_synced(None, outcome(table_id, 4, removed_delete_files=gone), at_ms=4)
    assert store.find_former(table_id, ["a", "b"]) == []
    rebuilt = replace(delete_file("p", "a"), dead=("b", "z"))
    store.record_rebuilt(outcome(table_id, 5), [live_file("a")], [rebuilt], at_ms=5)
    assert [file.dead for file in store.find_former(table_id, ["z"])] == [("b", "z")]


def test_find_deletions(store: StateStore, table_id: int) -> None:
    """Sums by storage type; the worst files, partitions and delete files first, and no more than asked for."""
    inline = DeletionVectorDescriptor("i", "x", 10, 60, None)
    files = (
        replace(live_file("a", dv=deletion_vector("x", 50)), partition=("1",)),
        replace(live_file("b", dv=inline), partition=("1",)),
        replace(live_file("c", dv=deletion_vector("y", 50)), partition=("2",)),
        replace(live_file("d"), partition=("2",)),
        replace(live_file("e"), partition=(None,)),
    )
    served = (delete_file("d1", "a"), delete_file("d2", "a", "b"), delete_file("d3", "c"))
    store.record_synced(None, outcome(table_id, 1, added_files=files, added_delete_files=served), at_ms=7)
    found = store.find_deletions(table_id, rows_max=10)
    assert found.vectors == (VectorCount("i", 1, 10, 60), VectorCount("u", 2, 80, 100))
    assert found.files == (files[1], files[0], files[2])
    assert found.partitions == (PartitionCount(0, ("1",), 2, 200, 110), PartitionCount(0, ("2",), 2, 200, 50))
    assert found.delete_files == (
        ServingFile("d2", 900, 4, 7, 2),
        ServingFile("d1", 900, 2, 7, 1),
        ServingFile("d3", 900, 2, 7, 1),
    )
    assert store.find_worst_files(table_id, files_max=2) == found.files[:2]
    cut = store.find_deletions(table_id, rows_max=1)
    assert cut == replace(
        found, files=found.files[:1], partitions=found.partitions[:1], delete_files=found.delete_files[:1]
    )
    store.record_synced(
        None,
        outcome(table_id, 2, removed_delete_files=(("d2", OrphanReason.COMPACTED),), removed_files=("b",)),
        at_ms=8,
    )
    assert [each.path for each in store.find_deletions(table_id, rows_max=10).delete_files] == ["d1", "d3"]


def test_a_delete_file_of_an_abandoned_commit_is_no_deletion(store: StateStore, table_id: int) -> None:
    """It is in use after all, but what it holds is not known."""
    open_intent(store, table_id, 1)
    store.record_pending(1, {FileKind.DELETE_FILE: ["d"]})
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=6, in_use=["d"])
    assert find_written(store, table_id, "d").status is FileStatus.LIVE
    assert store.find_deletions(table_id, rows_max=10).delete_files == ()


def test_orphans_by_the_hour(store: StateStore, table_id: int) -> None:
    """Delete files and metadata together, the newest hours if there are many; a file that is gone is no orphan."""
    kinds = (FileKind.DELETE_FILE, FileKind.METADATA, FileKind.MANIFEST)
    for number, kind in enumerate(kinds):
        at_ms = 5 * HOUR_MS + number
        store.record_orphans(table_id, kind, [f"f{number}"], OrphanReason.FOUND, at_ms=at_ms)
    store.record_orphans(table_id, FileKind.MANIFEST, ["later", "gone"], OrphanReason.FOUND, at_ms=7 * HOUR_MS - 1)
    store.record_deleted(table_id, ["gone"], at_ms=1)
    found = store.find_deletions(table_id, rows_max=1).orphaned
    assert found == (OrphanedHour(5 * HOUR_MS, 3), OrphanedHour(6 * HOUR_MS, 1))
    for hour in range(10, 10 + ORPHANED_HOURS_MAX):
        store.record_orphans(table_id, FileKind.MANIFEST, [f"m{hour}"], OrphanReason.FOUND, at_ms=hour * HOUR_MS)
    found = store.find_deletions(table_id, rows_max=1).orphaned
    assert [each.hour_ms // HOUR_MS for each in found] == list(range(10, 10 + ORPHANED_HOURS_MAX))


def test_long_lists_of_written_files(store: StateStore, table_id: int) -> None:
    """Verbs over written files take lists longer than a statement takes."""
    paths = [f"m{number:05}" for number in range(2 * IN_LIST_MAX + 1)]
    open_intent(store, table_id, 1)
    store.record_pending(1, {FileKind.MANIFEST: paths})
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=6, in_use=paths)
    store.record_unreferenced(table_id, paths, OrphanReason.SNAPSHOT_EXPIRED, at_ms=7)
    store.record_still_used(table_id, paths, at_ms=8)
    store.record_sizes(table_id, dict.fromkeys(paths, 10))
    expired = WrittenCount(FileKind.MANIFEST, FileStatus.ORPHANED, len(paths), 10 * len(paths), 8)
    assert store.count(table_id).written == (expired,)
    store.record_deleted(table_id, paths, at_ms=8)
    assert [file.path for file in store.list_written(table_id, [FileStatus.DELETED])] == paths
    store.forget_before(table_id, 9)
    assert store.count(table_id).written == ()


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
    with closing(SqlStateStore.open(f"sqlite:///{database_path}?timeout=0.01")) as store, ThreadPoolExecutor(1) as pool:
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
    with closing(SqlStateStore.open(f"sqlite:///{database_path}")) as store:
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
    with closing(SqlStateStore.open(f"sqlite:///{database_path}")) as store:
        assert observe(store, table_id, paths) == before


def test_sqlite_is_durable_and_checks_references(sql_store: SqlStateStore) -> None:
    """Every connection has the write-ahead log, full synchronisation, foreign keys and a bounded wait."""
    with sql_store._database.read() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5_000}


def test_models_and_migrations_agree(sql_store: SqlStateStore) -> None:
    """The migrated schema is the schema of the models."""
    with sql_store._database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_the_newest_migration_is_the_one_that_is_looked_for(sql_store: SqlStateStore) -> None:
    """Alembic leaves a database at the revision that opening one takes for the newest."""
    with sql_store._database.read() as connection:
        assert MigrationContext.configure(connection).get_current_heads() == (REVISION,)


FIRST_SCHEMA_ROWS = """
INSERT INTO tables (id, name, source, target, paused, must_compare, snapshot_id, synced_version) VALUES
    (1, 'orders', 'source', 'target', true, false, 11, 1), (2, 'stock', 'source2', 'target2', false, false, NULL, NULL);
INSERT INTO intents (id, table_id, to_version, created_at_ms, status) VALUES (11, 1, 1, 50, 'open');
INSERT INTO metadata_files (id, table_id, path, kind, status, reason, orphaned_at_ms, intent_id) VALUES
    (1, 1, 'm-live', 'manifest', 'live', NULL, NULL, NULL),
    (2, 1, 'm-orphaned', 'manifest', 'orphaned', 'commit-failed', 70, 11),
    (3, 1, 'snap-pending', 'manifest-list', 'pending', NULL, NULL, 11);
INSERT INTO data_files (id, table_id, path, record_count, size_bytes, spec_id, manifest_id) VALUES
    (1, 1, 'a', 100, 5000, 0, 1),
    (2, 1, 'b', 100, 5000, 0, 1);
INSERT INTO delete_files
    (id, table_id, path, status, reason, orphaned_at_ms, intent_id, size_bytes, positions, spec_id, manifest_id) VALUES
    (1, 1, 'd-live', 'live', NULL, NULL, 11, 900, 4, 0, 1),
    (2, 1, 'd-orphaned', 'orphaned', 'dv-shrunk', 60, NULL, 800, 4, 0, NULL);
INSERT INTO dv_mappings (delete_file_id, data_file_id, dv_unique_id, positions) VALUES
    (1, 1, 'u-of-a', 2),
    (1, 2, 'u-of-b', 2);
INSERT INTO sync_runs (table_id, started_at_ms, duration_ms, outcome, data_files_added, data_files_removed,
    delete_files_added, positions_added) VALUES (1, 40, 5, 'advanced', 2, 0, 1, 4);
"""


def test_first_schema_is_upgraded(tmp_path: Path) -> None:
    """Opening a database of the first schema loses no row, and files have their status since what was known of it."""
    url = f"sqlite:///{tmp_path / 'dvsync.db'}"
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    engine = create_engine(url)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    engine.dispose()
    with closing(sqlite3.connect(tmp_path / "dvsync.db")) as raw, raw:
        raw.executescript(FIRST_SCHEMA_ROWS)

    opened_at_ms = time.time_ns() // 1_000_000
    with closing(SqlStateStore.open(url)) as store:
        orders, stock = store.list_tables()
        assert (orders.must_compare, stock.must_compare) == (True, False), "the URIs of live files are unknown"
        assert stock.pause is None
        assert orders.pause is not None
        assert (orders.pause.since_ms >= opened_at_ms, orders.pause.until_ms) == (True, None)
        table_id = orders.id
        written = store.list_written(table_id, FileStatus)
        (live_manifest,) = (file for file in written if file.path == "m-live")
        assert written == [
            WrittenFile("d-live", FileKind.DELETE_FILE, FileStatus.LIVE, 50, None, 900),
            WrittenFile("snap-pending", FileKind.MANIFEST_LIST, FileStatus.PENDING, 50),
            WrittenFile("d-orphaned", FileKind.DELETE_FILE, FileStatus.ORPHANED, 60, OrphanReason.DV_SHRUNK, 800),
            WrittenFile("m-orphaned", FileKind.MANIFEST, FileStatus.ORPHANED, 70, OrphanReason.COMMIT_FAILED),
            WrittenFile("m-live", FileKind.MANIFEST, FileStatus.LIVE, live_manifest.since_ms),
        ]
        assert live_manifest.since_ms >= opened_at_ms
        assert store.claim_share(2) == 1, "the daemon that was alone becomes the first share"
        assert store.list_tables()[0].snapshot_id is None, "what is remembered is read anew"
        assert list(store.read_live_files(table_id)) == [
            replace(live_file(path, manifest="m-live"), partition=()) for path in "ab"
        ]
        assert store.find_delete_files(table_id, ["a"]) == [delete_file("d-live", "a", "b", manifest="m-live")]
        assert [intent.id for intent, _ in store.find_open_intents(table_id)] == [11]
        assert len(store.list_runs(table_id, runs_max=9)) == 1
        store.record_abandoned(11, OrphanReason.COMMIT_FAILED, at_ms=80)
        assert orphan_paths(store, table_id) == ["d-orphaned", "m-orphaned", "snap-pending"]
        with store._database.read() as connection:
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []


def test_newer_database_is_refused(database_path: Path) -> None:
    """A database that a newer dvsync has migrated is refused, and left as it is."""
    SqlStateStore.open(f"sqlite:///{database_path}").close()
    with closing(sqlite3.connect(database_path)) as raw, raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StateUnavailable, match=r"dvsync\.db was written by a newer dvsync.*9999"):
        SqlStateStore.open(f"sqlite:///{database_path}")
    with closing(sqlite3.connect(database_path)) as raw:
        assert raw.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]


def test_file_that_is_no_database(tmp_path: Path) -> None:
    """A file that is not a database, and a folder that cannot be made, are told as such."""
    (tmp_path / "notes.db").write_text("these are notes, and more of them than a header takes\n" * 40)
    with pytest.raises(StateUnavailable, match=r"notes\.db is not usable: file is not a database"):
        SqlStateStore.open(f"sqlite:///{tmp_path / 'notes.db'}")
    with pytest.raises(StateUnavailable, match="cannot be opened"):
        SqlStateStore.open(f"sqlite:///{tmp_path / 'notes.db' / 'dvsync.db'}")


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
        SqlStateStore.open(url)
    assert "hunter2@" not in str(raised.value) and "password" not in str(raised.value)


# --- PostgreSQL ---


def test_postgresql_has_the_schema_of_the_models(postgresql_url: str) -> None:
    """Migrated from nothing, it has what the models say: 64-bit numbers, bytes, and no type by accident."""
    with closing(SqlStateStore.open(postgresql_url)) as store, store._database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
        types: dict[str, str] = dict(
            connection.exec_driver_sql(
                "SELECT column_name, data_type FROM information_schema.columns"
                " WHERE table_schema = current_schema() AND table_name IN ('intents', 'data_files')"
            ).all()
        )
    assert (types["id"], types["payload"], types["dv_offset"], types["path"]) == ("bigint", "bytea", "bigint", "text")


def test_postgresql_is_upgraded_from_the_first_schema(postgresql_url: str) -> None:
    """The second migration finds rows there, as on SQLite."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with admin(postgresql_url) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        for statement in FIRST_SCHEMA_ROWS.split(";\n"):
            connection.exec_driver_sql(statement)
    with closing(SqlStateStore.open(postgresql_url)) as store:
        assert [record.pause is None for record in store.list_tables()] == [False, True]
        since = {file.path: file.since_ms for file in store.list_written(1, FileStatus) if file.path != "m-live"}
        assert since == {"m-orphaned": 70, "snap-pending": 50, "d-live": 50, "d-orphaned": 60}
        assert store.claim_share(2) == 1


def test_readers_see_one_state_and_writers_queue(postgresql_url: str) -> None:
    """As SQLite has it: a reader's transaction is of one moment, and two processes never write at the same time."""
    with closing(SqlStateStore.open(postgresql_url)) as store, closing(SqlStateStore.open(postgresql_url)) as other:
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
    with closing(SqlStateStore.open(postgresql_url)) as store:
        table_id = fill(store)
        before = observe(store, table_id, ["a", "d"])
        server.kill()
        try:
            for verb in (*write_verbs(store, table_id), lambda: observe(store, table_id, ["a", "d"])):
                with pytest.raises(StateUnavailable, match=r"the state database postgresql.* is not usable") as raised:
                    verb()
                assert "hunter2" not in str(raised.value)
            with pytest.raises(StateUnavailable):
                SqlStateStore.open(postgresql_url)
        finally:
            server.start()
        assert observe(store, table_id, ["a", "d"]) == before
        for verb in write_verbs(store, table_id)[1:]:
            verb()


def write_verbs(store: StateStore, table_id: int) -> list[Callable[[], object]]:
    """Every verb that writes; intent 1 of the table is open."""
    failed = OrphanReason.COMMIT_FAILED
    return [
        lambda: store.open_table("orders", "elsewhere", "sales.orders"),
        lambda: open_intent(store, table_id, 2),
        lambda: store.record_pending(1, {FileKind.MANIFEST: ["m9"]}),
        lambda: store.record_prepared(1, outcome(table_id, 2)),
        lambda: store.record_synced(1, outcome(table_id, 2, removed_files=("a",)), at_ms=2),
        lambda: store.record_rebuilt(outcome(table_id, 2), [], [], at_ms=2),
        lambda: store.record_abandoned(1, failed, at_ms=2),
        lambda: store.record_orphans(table_id, FileKind.MANIFEST, ["m9"], failed, at_ms=2),
        lambda: store.record_unreferenced(table_id, ["orphaned"], OrphanReason.SNAPSHOT_EXPIRED, at_ms=2),
        lambda: store.record_still_used(table_id, ["orphaned"], at_ms=2),
        lambda: store.record_sizes(table_id, {"d": 1}),
        lambda: store.record_deleted(table_id, ["orphaned"], at_ms=3),
        lambda: store.forget_before(table_id, 4),
        lambda: store.record_failure(table_id, TableError("k", "m", "h", None, 1, 1, True)),
        lambda: store.record_wait(table_id, Wait("the catalog", 1)),
        lambda: store.record_run(SyncRun(table_id, 1, 1, "advanced")),
        lambda: store.record_resumed(table_id),
        lambda: store.record_table_replaced(table_id, at_ms=5),
    ]


def fill(store: StateStore) -> int:
    table_id = store.open_table("orders", "s3://delta/orders", "sales.orders").id
    files = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d", "a"),))
    store.record_synced(None, files, at_ms=1)
    store.record_orphans(table_id, FileKind.MANIFEST, ["orphaned"], OrphanReason.FOUND, at_ms=1)
    open_intent(store, table_id, 1)
    return table_id


def test_locked_database(database_path: Path) -> None:
    """While another process holds the write lock, every write is StateUnavailable and reads go on."""
    with closing(SqlStateStore.open(f"sqlite:///{database_path}?timeout=0.01")) as store:
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


def test_readonly_database(database_path: Path) -> None:
    """A database that may only be read is read, and every write is StateUnavailable."""
    with closing(SqlStateStore.open(f"sqlite:///{database_path}")) as store:
        table_id = fill(store)
        before = observe(store, table_id, ["a", "d"])
    with closing(SqlStateStore.open(f"sqlite:///file:{database_path}?mode=ro&uri=true")) as store:
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
    sql_store: SqlStateStore, statement: str, verb: Callable[[StateStore, int], None]
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


def test_a_replacement_that_fails_half_way_is_repeated(sql_store: SqlStateStore) -> None:
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
from state.sql.store import WRITE_BATCH_MAX, SqlStateStore

def outcome(version, **changes):
    return Outcome(1, "delta-id", None, version, 1, 9, "v.json", **changes)

def endless():
    yield from (LiveFile(f"f{number}", 1, 1, 0, "m") for number in range(WRITE_BATCH_MAX + 1))
    os._exit(9)

store = SqlStateStore.open(sys.argv[1])
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
    with closing(SqlStateStore.open(url)) as store:
        assert len(store.find_open_intents(1)) == open_intents
        assert store.list_tables()[0].synced_version == synced_version
        assert store.list_tables()[0].snapshot_id == (9 if steps == 5 else None)
        assert store.count(1).live_data_files == live_files
        for intent, _ in store.find_open_intents(1):
            store.record_abandoned(intent.id, OrphanReason.COMMIT_FAILED, at_ms=3)
        assert orphan_paths(store, 1) == (["d"] if steps == 4 else [])


# --- the two stores side by side ---

DATA_FILES = [f"f{number}" for number in range(4)]
DELETE_FILES = [f"d{number}" for number in range(3)]
MANIFESTS = [f"m{number}" for number in range(3)]
OTHER_METADATA = ["snap-0", "snap-1", "v0.json", "v1.json"]
data_file_paths = st.sampled_from(DATA_FILES)


def _served(file: DeleteFileRecord) -> set[str]:
    return {mapping.data_file for mapping in file.mappings}


manifests = st.sampled_from(MANIFESTS)
reasons = st.sampled_from(OrphanReason)
vectors = st.none() | st.builds(deletion_vector, st.sampled_from("xyz"), st.integers(0, 9))
live_files = st.builds(
    LiveFile,
    data_file_paths,
    st.integers(10, 20),
    st.integers(0, 9),
    st.integers(0, 1),
    manifests,
    vectors,
    st.sampled_from([(), ("x", None)]),
)
mappings = st.lists(
    st.builds(DvMapping, data_file_paths, st.sampled_from("xyz"), st.integers(0, 9)),
    min_size=1,
    max_size=3,
    unique_by=lambda mapping: mapping.data_file,
).map(tuple)
delete_files = st.builds(
    DeleteFileRecord,
    st.sampled_from(DELETE_FILES),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 1),
    manifests,
    mappings,
    st.sampled_from([(), ("gone",), (DATA_FILES[0], "gone")]),
).map(lambda file: replace(file, dead=tuple(each for each in file.dead if each not in _served(file))))
pending_files = st.one_of(
    st.tuples(st.just(FileKind.DELETE_FILE), st.lists(st.sampled_from(DELETE_FILES), max_size=3)),
    st.tuples(st.just(FileKind.MANIFEST), st.lists(manifests, max_size=3)),
    st.tuples(
        st.sampled_from([FileKind.MANIFEST_LIST, FileKind.METADATA]),
        st.lists(st.sampled_from(OTHER_METADATA), max_size=2),
    ),
)
changes = st.fixed_dictionaries(
    {
        "metadata_location": st.sampled_from(OTHER_METADATA),
        "added_files": st.lists(live_files, min_size=1, max_size=4).map(tuple),
        "changed_dvs": st.lists(st.tuples(data_file_paths, vectors), max_size=2).map(tuple),
        "removed_files": st.lists(data_file_paths, max_size=1).map(tuple),
        "added_delete_files": st.lists(delete_files, max_size=2).map(tuple),
        "removed_delete_files": st.dictionaries(st.sampled_from(DELETE_FILES), reasons, max_size=2).map(
            lambda removed: tuple(removed.items())
        ),
        "dead_vectors": st.lists(st.tuples(st.sampled_from(DELETE_FILES), data_file_paths), max_size=2).map(tuple),
        "moved_manifests": st.lists(st.tuples(manifests, manifests), max_size=1).map(tuple),
        "unwritten_files": st.lists(st.sampled_from(DELETE_FILES + MANIFESTS), max_size=2).map(tuple),
        "recent_commits": st.lists(st.builds(CommitIdentity, *[st.integers(0, 9)] * 3), max_size=3).map(tuple),
    }
)
written_paths = st.sampled_from(DELETE_FILES + MANIFESTS + OTHER_METADATA)
some_written_paths = st.lists(written_paths, min_size=1, max_size=4)


def without_returning(changed: dict[str, Any]) -> dict[str, Any]:
    """The same changes, without the removal of delete files that they add: those would start anew each time."""
    added = {delete_file.path for delete_file in changed["added_delete_files"]}
    return {
        **changed,
        **{
            name: tuple(each for each in changed[name] if each[0] not in added)
            for name in ("removed_delete_files", "dead_vectors")
        },
    }


class BothStores(RuleBasedStateMachine):
    """The same verbs on both stores; after each, both tell the same about the table."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.sql = SqlStateStore.open(f"sqlite:///{self.folder.name}/dvsync.db")
        self.memory = MemoryStateStore()
        self.stores: tuple[StateStore, StateStore] = (self.sql, self.memory)
        self.sources = ["source"]
        self.intents = [0]
        self.now = 0
        self.open_table()

    def teardown(self) -> None:
        self.sql.close()
        self.folder.cleanup()

    def open_table(self) -> None:
        ids = {store.open_table("t", self.sources[-1], "target").id for store in self.stores}
        (self.table_id,) = ids

    def tick(self) -> int:
        self.now += 1
        return self.now

    def outcome(self, changed: dict[str, Any], snapshot_id: int | None) -> Outcome:
        now = self.tick()
        return Outcome(
            self.table_id, "id", None, to_version=now, source_timestamp_ms=now, snapshot_id=snapshot_id, **changed
        )

    @rule(first=pending_files, second=pending_files)
    def record_intent(self, first: tuple[FileKind, list[str]], second: tuple[FileKind, list[str]]) -> None:
        intent = Intent(self.tick(), self.table_id, None, 1, self.now)
        self.intents.append(intent.id)
        for store in self.stores:
            store.record_intent(intent, dict([first, second]))

    def open_intents(self) -> list[int]:
        return [intent.id for intent, _ in self.memory.find_open_intents(self.table_id)]

    @precondition(lambda self: self.open_intents())
    @rule(data=st.data(), files=pending_files)
    def record_pending(self, data: st.DataObject, files: tuple[FileKind, list[str]]) -> None:
        intent_id = data.draw(st.sampled_from(self.open_intents()))
        for store in self.stores:
            store.record_pending(intent_id, dict([files]))

    @precondition(lambda self: self.open_intents())
    @rule(changed=changes)
    def record_prepared(self, changed: dict[str, Any]) -> None:
        prepared, intent_id = self.outcome(changed, 1), self.open_intents()[-1]
        for store in self.stores:
            store.record_prepared(intent_id, prepared)

    @rule(data=st.data(), changed=changes.map(without_returning))
    def record_synced(self, data: st.DataObject, changed: dict[str, Any]) -> None:
        intent_id = data.draw(st.none() | st.sampled_from(self.intents))
        synced, now = self.outcome(changed, 1), self.tick()
        self.memory.record_synced(intent_id, synced, at_ms=now)
        # Once on the one side and twice on the other: the second time must not show.
        self.sql.record_synced(intent_id, synced, at_ms=now)
        self.sql.record_synced(intent_id, synced, at_ms=self.tick())

    @rule(
        data=st.data(),
        changed=changes,
        files=st.lists(live_files, min_size=1, max_size=4),
        deletes=st.lists(delete_files, max_size=3),
    )
    def record_rebuilt(
        self, data: st.DataObject, changed: dict[str, Any], files: list[LiveFile], deletes: list[DeleteFileRecord]
    ) -> None:
        snapshot_ids = st.none() | st.sampled_from(self.intents)
        rebuilt, now = self.outcome(changed, data.draw(snapshot_ids)), self.tick()
        for store in self.stores:
            store.record_rebuilt(rebuilt, iter(files), iter(deletes), at_ms=now)

    @rule(data=st.data(), reason=reasons, in_use=st.lists(written_paths, max_size=4))
    def record_abandoned(self, data: st.DataObject, reason: OrphanReason, in_use: list[str]) -> None:
        intent_id, now = data.draw(st.sampled_from(self.intents)), self.tick()
        for store in self.stores:
            store.record_abandoned(intent_id, reason, at_ms=now, in_use=in_use)

    @rule(files=pending_files, reason=reasons)
    def record_orphans(self, files: tuple[FileKind, list[str]], reason: OrphanReason) -> None:
        now = self.tick()
        for store in self.stores:
            store.record_orphans(self.table_id, *files, reason, at_ms=now)

    @rule(paths=some_written_paths, reason=reasons)
    def record_unreferenced(self, paths: list[str], reason: OrphanReason) -> None:
        now = self.tick()
        for store in self.stores:
            store.record_unreferenced(self.table_id, paths, reason, at_ms=now)

    @rule(paths=some_written_paths)
    def record_still_used(self, paths: list[str]) -> None:
        now = self.tick()
        for store in self.stores:
            store.record_still_used(self.table_id, paths, at_ms=now)

    @precondition(lambda self: self.memory.count(self.table_id).live_data_files)
    @rule()
    def record_table_replaced(self) -> None:
        now = self.tick()
        for store in self.stores:
            store.record_table_replaced(self.table_id, at_ms=now)

    @rule(sizes_bytes=st.dictionaries(written_paths, st.integers(0, 9), min_size=1, max_size=4))
    def record_sizes(self, sizes_bytes: dict[str, int]) -> None:
        for store in self.stores:
            store.record_sizes(self.table_id, sizes_bytes)

    @rule(paths=some_written_paths)
    def record_deleted(self, paths: list[str]) -> None:
        now = self.tick()
        for store in self.stores:
            store.record_deleted(self.table_id, paths, at_ms=now)

    @rule(age=st.integers(0, 3))
    def forget_before(self, age: int) -> None:
        for store in self.stores:
            store.forget_before(self.table_id, self.now - age)

    @rule(parked=st.booleans())
    def record_failure(self, parked: bool) -> None:
        error = TableError("k", "m", "h", None, self.tick(), 1, parked)
        run = SyncRun(self.table_id, self.now, 1, "k")
        for store in self.stores:
            store.record_failure(self.table_id, error)
            store.record_run(run)

    @rule()
    def record_resumed(self) -> None:
        for store in self.stores:
            store.record_resumed(self.table_id)

    @precondition(lambda self: self.now > 12)
    @rule()
    def start_afresh(self) -> None:
        self.sources.append(f"source-{self.now}")
        self.intents = self.intents[-1:]
        self.open_table()

    @invariant()
    def tell_the_same(self) -> None:
        paths = DATA_FILES + DELETE_FILES
        assert observe(self.sql, self.table_id, paths) == observe(self.memory, self.table_id, paths)

    @invariant()
    def list_for_cleanup(self) -> None:
        sql, memory = (
            store.list_for_cleanup(self.table_id, due_ms=self.now - 4, now_ms=self.now - 1) for store in self.stores
        )
        assert sql == memory

    @invariant()
    def tell_of_orphans(self) -> None:
        before_ms = self.now - 2
        listed = self.memory.list_written(self.table_id, [FileStatus.ORPHANED])
        expected = {file.reason for file in listed if file.since_ms <= before_ms}
        for store in self.stores:
            told = {
                reason
                for reason in OrphanReason
                if store.has_orphans(self.table_id, before_ms=before_ms, reasons=[reason])
            }
            assert told == expected

    @invariant()
    def references_hold(self) -> None:
        with self.sql._database.read() as connection:
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []

    @invariant()
    def only_live_delete_files_serve(self) -> None:
        # Nothing but a live delete file is in a manifest or has mappings, so what is orphaned holds nothing live.
        serving = (
            "SELECT path FROM delete_files AS d WHERE status <> 'live' AND "
            "(manifest_id IS NOT NULL OR EXISTS (SELECT 1 FROM dv_mappings WHERE delete_file_id = d.id))"
        )
        with self.sql._database.read() as connection:
            assert connection.exec_driver_sql(serving).all() == []


def test_both_stores_tell_the_same() -> None:
    """After any sequence of verbs both stores tell the same, and a repeated `record_synced` does not show."""
    run_state_machine_as_test(
        BothStores,
        settings=settings(
            max_examples=15,
            stateful_step_count=12,
            database=None,
            # Twelve steps can be read as they are, and making them fewer takes minutes.
            phases=[Phase.generate],
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


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
    store.renew_lease(has_lock=False)
    store.check_lease()
    assert store.read_lease() == Lease(token=1, holder="one", renewals=1)
    store.give_back_lease()
    assert store.read_lease() == Lease(token=1, holder=None, renewals=2)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_who_has_lost_the_lease_writes_nothing_any_more(
    request: pytest.FixtureRequest, database_path: Path, database: str
) -> None:
    """Every verb that writes is refused; reading goes on, and a store that never had the lease writes as a person."""
    url = request.getfixturevalue("postgresql_url") if database == "postgresql" else f"sqlite:///{database_path}"
    with closing(SqlStateStore.open(url)) as sql_store:
        lose_the_lease(sql_store, url)


def lose_the_lease(sql_store: SqlStateStore, url: str) -> None:
    record = sql_store.open_table("t", "file:///d/t", "lake.t")
    assert sql_store.take_lease(sql_store.read_lease(), "one", has_lock=False)
    intent = Intent(id=7, table_id=record.id, from_version=None, to_version=0, created_at_ms=1)
    sql_store.record_intent(intent, {})
    with closing(SqlStateStore.open(url)) as other:
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
        with closing(SqlStateStore.open(url)) as person:
            person.record_pause(record.id, PAUSE)
        assert sql_store.list_tables()[0].pause
