"""One suite over both state stores: what `StateStore` promises, then what only a database file has to show."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from state.memory_store import MemoryStateStore
from state.models import Base
from state.records import (
    DeleteFileRecord,
    DeletionVectorRecord,
    DvMapping,
    FileKind,
    Intent,
    LiveFile,
    OrphanReason,
    Outcome,
    SyncRun,
    TableCounts,
    TableError,
)
from state.sql_bulk import IN_LIST_MAX
from state.sql_store import READ_BATCH_MAX, SqlStateStore
from state.store import StateStore, StateUnavailable

MANIFEST = "s3://iceberg/metadata/m0.avro"
DELETE_MANIFEST = "s3://iceberg/metadata/d0.avro"
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    return tmp_path / "var" / "dvsync.db"


@pytest.fixture(params=["sql", "memory"])
def store(request: pytest.FixtureRequest, database_path: Path) -> Iterator[StateStore]:
    made: StateStore = (
        SqlStateStore.open(f"sqlite:///{database_path}") if request.param == "sql" else MemoryStateStore()
    )
    with closing(made):
        yield made


@pytest.fixture
def sql_store(database_path: Path) -> Iterator[SqlStateStore]:
    with closing(SqlStateStore.open(f"sqlite:///{database_path}")) as opened:
        yield opened


@pytest.fixture
def table_id(store: StateStore) -> int:
    return store.load_table("orders", "s3://delta/orders", "sales.orders").id


def deletion_vector(name: str, cardinality: int = 2) -> DeletionVectorRecord:
    return DeletionVectorRecord(f"u{name}@1", "u", name, 40, cardinality, 1)


def live_file(path: str, *, manifest: str = MANIFEST, dv: DeletionVectorRecord | None = None) -> LiveFile:
    return LiveFile(path, 100, 5_000, 0, manifest, dv)


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
        **changes,
    )


def open_intent(store: StateStore, table_id: int, intent_id: int, *, created_at_ms: int = 5) -> Intent:
    intent = Intent(intent_id, table_id, 0, 1, created_at_ms)
    store.record_intent(intent)
    return intent


def observe(store: StateStore, table_id: int, paths: list[str]) -> dict[str, Any]:
    """All that a store tells about a table."""
    return {
        "table": next(table for table in store.list_tables() if table.id == table_id),
        "live": list(store.read_live_files(table_id)),
        "found": store.find_live_files(table_id, paths),
        "delete files": store.find_delete_files(table_id, paths),
        "serving": store.find_serving(table_id, paths),
        "intents": store.find_open_intents(table_id),
        "counts": store.count(table_id),
        "orphans": store.list_orphans(table_id),
        "runs": store.list_runs(table_id, runs_max=100),
    }


def orphan_paths(store: StateStore, table_id: int) -> list[str]:
    return [path for path, _, _ in store.list_orphans(table_id)]


# --- tables ---


def test_load_table_is_stable(store: StateStore) -> None:
    """A table is made once and found again under the same id, with an empty cursor."""
    made = store.load_table("orders", "s3://delta/orders", "sales.orders")
    assert (made.name, made.source, made.target) == ("orders", "s3://delta/orders", "sales.orders")
    assert (made.synced_version, made.snapshot_id, made.error, made.paused) == (None, None, None, False)
    assert store.load_table("orders", "s3://delta/orders", "sales.orders") == made


def test_list_tables_by_name(store: StateStore) -> None:
    """Tables are listed by name."""
    made = [store.load_table(name, f"s3://delta/{name}", name) for name in ("b", "c", "a")]
    assert store.list_tables() == sorted(made, key=lambda table: table.name)


@pytest.mark.parametrize(
    ("source", "target"), [("s3://delta/other", "sales.orders"), ("s3://delta/orders", "x.orders")]
)
def test_changed_source_or_target_starts_afresh(store: StateStore, table_id: int, source: str, target: str) -> None:
    """A known name with another source or target gets a new id and no memory, and nothing becomes an orphan."""
    open_intent(store, table_id, 11)
    store.record_pending(11, FileKind.DELETE_FILE, ["d1"])
    store.record_orphans(table_id, FileKind.MANIFEST, ["m9"], OrphanReason.COMMIT_FAILED, at_ms=1)
    files = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d2", "a"),))
    store.record_synced(None, files, at_ms=1)
    store.record_run(SyncRun(table_id, 1, 1, "advanced"))

    afresh = store.load_table("orders", source, target)

    assert afresh.id != table_id
    assert (afresh.synced_version, afresh.last_synced_at_ms) == (None, None)
    assert store.list_tables() == [afresh]
    assert store.count(afresh.id) == TableCounts(0, 0, 0, 0, 0)
    assert store.list_runs(afresh.id, runs_max=9) == []
    with pytest.raises(LookupError):
        store.count(table_id)
    open_intent(store, afresh.id, 11)
    assert [intent.table_id for intent, _ in store.find_open_intents(afresh.id)] == [afresh.id]


def test_tables_do_not_share_files(store: StateStore, table_id: int) -> None:
    """The same path in two tables is two files, and a manifest moves in its own table only."""
    other = store.load_table("other", "s3://delta/other", "sales.other").id
    for each in (table_id, other):
        files = outcome(each, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d", "a"),))
        store.record_synced(None, files, at_ms=1)
    before = observe(store, other, ["a", "d"])
    store.record_synced(None, outcome(table_id, 2, moved_manifests=((MANIFEST, "m1"),)), at_ms=2)
    store.record_synced(None, outcome(table_id, 3, removed_files=("a",)), at_ms=3)
    store.record_rebuilt(outcome(table_id, 4), [], [], at_ms=4)
    assert observe(store, other, ["a", "d"]) == before


UNKNOWN = 404
ON_UNKNOWN: list[Callable[[StateStore], object]] = [
    lambda store: list(store.read_live_files(UNKNOWN)),
    lambda store: store.find_live_files(UNKNOWN, ["a"]),
    lambda store: store.find_delete_files(UNKNOWN, ["a"]),
    lambda store: store.find_serving(UNKNOWN, ["d"]),
    lambda store: store.find_open_intents(UNKNOWN),
    lambda store: store.record_intent(Intent(1, UNKNOWN, None, 1, 1)),
    lambda store: store.record_pending(UNKNOWN, FileKind.MANIFEST, ["m"]),
    lambda store: store.record_prepared(UNKNOWN, outcome(1, 1)),
    lambda store: store.record_synced(None, outcome(UNKNOWN, 1), at_ms=1),
    lambda store: store.record_rebuilt(outcome(UNKNOWN, 1), [], [], at_ms=1),
    lambda store: store.record_orphans(UNKNOWN, FileKind.MANIFEST, ["m"], OrphanReason.COMMIT_FAILED, at_ms=1),
    lambda store: store.record_failure(UNKNOWN, TableError("k", "m", "h", None, 1, 1, False)),
    lambda store: store.record_run(SyncRun(UNKNOWN, 1, 1, "advanced")),
    lambda store: store.record_resumed(UNKNOWN),
    lambda store: store.count(UNKNOWN),
    lambda store: store.list_orphans(UNKNOWN),
    lambda store: store.list_runs(UNKNOWN, runs_max=1),
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
    inline = live_file("c", dv=DeletionVectorRecord("iabc", "i", "abc", 3, 1))
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
    assert store.find_serving(table_id, ["d1"]) == {"d1": {"a"}}
    assert store.count(table_id) == TableCounts(1, 4, 1, 3, 0)


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
    assert store.count(table_id) == TableCounts(3, 291, 0, 9, 0)


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
    assert store.find_serving(table_id, ["d1", "unknown"]) == {"d1": {"b"}, "unknown": set()}
    assert store.count(table_id) == TableCounts(1, 100, 1, 0, 0)
    store.record_synced(None, outcome(table_id, 3, removed_files=("b",)), at_ms=3)
    assert store.find_serving(table_id, ["d1"]) == {"d1": set()}
    assert (store.count(table_id).live_delete_files, store.list_orphans(table_id)) == (1, [])


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
    assert store.list_orphans(table_id) == [("d1", FileKind.DELETE_FILE, OrphanReason.DV_SHRUNK)]


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
    assert store.list_orphans(table_id) == [
        ("d0", FileKind.DELETE_FILE, OrphanReason.DATA_FILES_GONE),
        ("d1", FileKind.DELETE_FILE, OrphanReason.DV_SHRUNK),
    ]
    assert store.find_delete_files(table_id, ["a"]) == []
    assert store.find_serving(table_id, ["d1"]) == {"d1": set()}
    assert store.count(table_id) == TableCounts(1, 100, 0, 0, 2)


def test_orphans_outlive_a_rebuild(store: StateStore, table_id: int) -> None:
    """A rebuild forgets manifests, and still knows the orphans that were in them."""
    first = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d1", "a"),))
    store.record_synced(None, first, at_ms=1)
    removed = (("d1", OrphanReason.DV_SHRUNK),)
    store.record_synced(None, outcome(table_id, 2, removed_delete_files=removed), at_ms=2)
    store.record_rebuilt(outcome(table_id, 3), [live_file("b", manifest="m1")], [], at_ms=3)
    assert store.list_orphans(table_id) == [("d1", FileKind.DELETE_FILE, OrphanReason.DV_SHRUNK)]


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
    assert store.find_serving(table_id, ["d", *many])["d"] == set(many)
    store.record_synced(None, outcome(table_id, 2, removed_files=tuple(many)), at_ms=2)
    assert store.count(table_id).live_data_files == len(paths) - len(many)
    assert store.find_serving(table_id, ["d"]) == {"d": set()}


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
    store.record_intent(late)
    assert store.find_open_intents(table_id) == []


def test_ending_an_intent_that_is_not_known(store: StateStore, table_id: int) -> None:
    """What landed is recorded even when its intent is not known; abandoning such an intent does nothing."""
    store.record_synced(UNKNOWN, outcome(table_id, 1, added_files=(live_file("a"),)), at_ms=1)
    store.record_abandoned(UNKNOWN, OrphanReason.COMMIT_FAILED, at_ms=1)
    assert store.count(table_id) == TableCounts(1, 100, 0, 0, 0)


def test_pending_files_of_a_synced_intent_become_live(store: StateStore, table_id: int) -> None:
    """Synced files are live and those never written are forgotten, so neither is an orphan later."""
    open_intent(store, table_id, 1)
    store.record_pending(1, FileKind.DELETE_FILE, ["d1", "d-unwritten", "d1"])
    store.record_pending(1, FileKind.DELETE_FILE, ["d1"])
    store.record_pending(1, FileKind.MANIFEST, ["m1", "m-unwritten"])
    store.record_pending(1, FileKind.MANIFEST_LIST, ["snap-1"])
    assert store.count(table_id) == TableCounts(0, 0, 0, 0, 0)
    synced = outcome(
        table_id,
        1,
        added_files=(live_file("a", manifest="m1"),),
        added_delete_files=(delete_file("d1", "a"),),
        unwritten_files=("d-unwritten", "m-unwritten"),
    )
    store.record_synced(1, synced, at_ms=1)
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=2)
    assert store.count(table_id) == TableCounts(1, 100, 1, 0, 0)
    store.record_orphans(table_id, FileKind.MANIFEST_LIST, ["snap-1"], OrphanReason.COMMIT_FAILED, at_ms=3)
    store.record_orphans(table_id, FileKind.MANIFEST, ["m-unwritten"], OrphanReason.COMMIT_FAILED, at_ms=3)
    assert orphan_paths(store, table_id) == ["m-unwritten"]


def test_abandoned_files_become_orphans(store: StateStore, table_id: int) -> None:
    """The pending files of an abandoned intent become orphans; those of another intent stay pending."""
    open_intent(store, table_id, 1)
    open_intent(store, table_id, 2)
    for number, kind in enumerate(FileKind):
        store.record_pending(1, kind, [f"lost-{number}"])
        store.record_pending(2, kind, [f"kept-{number}"])
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=4)
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=5)
    expected = [(f"lost-{number}", kind, OrphanReason.COMMIT_FAILED) for number, kind in enumerate(FileKind)]
    assert store.list_orphans(table_id) == expected
    assert [intent.id for intent, _ in store.find_open_intents(table_id)] == [2]


def test_pending_path_moves_to_the_newer_intent(store: StateStore, table_id: int) -> None:
    """A path that is written again belongs to the new intent: the old one's end does not orphan it."""
    open_intent(store, table_id, 1)
    store.record_pending(1, FileKind.DELETE_FILE, ["orphaned", "pending"])
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=1)
    open_intent(store, table_id, 2)
    store.record_pending(2, FileKind.DELETE_FILE, ["orphaned"])
    open_intent(store, table_id, 3)
    store.record_pending(3, FileKind.DELETE_FILE, ["pending"])
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=2)
    assert store.list_orphans(table_id) == []


def test_live_path_stays_live(store: StateStore, table_id: int) -> None:
    """Announcing a file that is live already changes nothing, and its intent's end does not orphan it."""
    first = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d", "a"),))
    store.record_synced(None, first, at_ms=1)
    open_intent(store, table_id, 1)
    store.record_pending(1, FileKind.DELETE_FILE, ["d"])
    store.record_pending(1, FileKind.MANIFEST, [MANIFEST])
    store.record_abandoned(1, OrphanReason.COMMIT_FAILED, at_ms=2)
    assert store.list_orphans(table_id) == []
    assert store.find_delete_files(table_id, ["a"]) == [delete_file("d", "a")]


def test_abandoned_intent_that_landed_after_all(store: StateStore, table_id: int) -> None:
    """What a recorded outcome names is live again although its intent was given up."""
    open_intent(store, table_id, 1)
    store.record_pending(1, FileKind.DELETE_FILE, ["d"])
    store.record_pending(1, FileKind.MANIFEST, [MANIFEST, DELETE_MANIFEST])
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
    store.record_pending(1, FileKind.DELETE_FILE, ["d3", "d-unwritten"])
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
    store.record_rebuilt(outcome(table_id, 9), iter(files), iter(deletes), at_ms=90)
    assert list(store.read_live_files(table_id)) == files
    assert store.find_delete_files(table_id, ["old", "both", "new"]) == deletes
    assert store.count(table_id) == TableCounts(2, 198, 2, 2, 0)
    (table,) = store.list_tables()
    assert (table.synced_version, table.last_synced_at_ms, table.error) == (9, 90, None)


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
    store.record_pending(landed.id, FileKind.MANIFEST_LIST, ["snap-landed"])
    store.record_pending(landed.id, FileKind.DELETE_FILE, ["d-unwritten"])
    store.record_pending(lost.id, FileKind.DELETE_FILE, ["d-live", "d-lost"])
    store.record_pending(lost.id, FileKind.MANIFEST, [MANIFEST, "m-lost"])
    store.record_pending(lost.id, FileKind.METADATA, [rebuilt.metadata_location or ""])
    store.record_rebuilt(rebuilt, [live_file("a")], [delete_file("d-live", "a")], at_ms=5)
    assert store.find_open_intents(table_id) == []
    assert store.list_orphans(table_id) == [
        ("d-lost", FileKind.DELETE_FILE, OrphanReason.COMMIT_FAILED),
        ("d-replaced", FileKind.DELETE_FILE, OrphanReason.DV_SHRUNK),
        ("m-lost", FileKind.MANIFEST, OrphanReason.COMMIT_FAILED),
    ]
    assert store.count(table_id) == TableCounts(1, 100, 1, 0, 3)


def test_rebuilt_from_itself(store: StateStore, table_id: int) -> None:
    """A rebuild may read the very table that it replaces, and then changes nothing but the time."""
    paths = [f"f{number:05}" for number in range(READ_BATCH_MAX + 2)]
    store.record_rebuilt(outcome(table_id, 1), map(live_file, paths), [], at_ms=1)
    store.record_rebuilt(outcome(table_id, 1), store.read_live_files(table_id), [], at_ms=2)
    assert [file.path for file in store.read_live_files(table_id)] == paths
    assert store.list_tables()[0].last_synced_at_ms == 2


def test_rebuild_that_fails_half_way(store: StateStore, table_id: int) -> None:
    """When an iterable of a rebuild raises, the error comes through and nothing has changed."""
    store.record_synced(None, outcome(table_id, 1, added_files=(live_file("a"),)), at_ms=1)
    before = observe(store, table_id, ["a"])

    def failing() -> Iterator[LiveFile]:
        yield from (live_file(f"f{number}") for number in range(READ_BATCH_MAX + 1))
        raise OSError("the manifest is not readable")

    with pytest.raises(OSError, match="manifest is not readable"):
        store.record_rebuilt(outcome(table_id, 2), failing(), [], at_ms=2)
    assert observe(store, table_id, ["a"]) == before


def test_record_orphans_leaves_known_paths(store: StateStore, table_id: int) -> None:
    """Found orphans are added once; a path that is live, pending or orphaned already is left as it is."""
    open_intent(store, table_id, 1)
    store.record_pending(1, FileKind.DELETE_FILE, ["pending"])
    files = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("live", "a"),))
    store.record_synced(None, files, at_ms=1)
    found = ["z-found", "pending", "live", "z-found"]
    store.record_orphans(table_id, FileKind.DELETE_FILE, found, OrphanReason.COMMIT_FAILED, at_ms=2)
    store.record_orphans(table_id, FileKind.DELETE_FILE, ["z-found"], OrphanReason.DATA_FILES_GONE, at_ms=3)
    store.record_orphans(table_id, FileKind.METADATA, ["a-later"], OrphanReason.COMMIT_FAILED, at_ms=4)
    store.record_orphans(table_id, FileKind.MANIFEST, [MANIFEST], OrphanReason.COMMIT_FAILED, at_ms=4)
    assert store.list_orphans(table_id) == [
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
    assert store.load_table("orders", "s3://delta/orders", "sales.orders").error is None


def test_runs_newest_first(store: StateStore, table_id: int) -> None:
    """Runs come back whole, the newest first, of equal times the last recorded, and no more than asked for."""
    runs = [SyncRun(table_id, at, 5, "advanced", 1, 2, 2**62, at, 2, 3, 4, "note") for at in (10, 30, 20)]
    runs.append(SyncRun(table_id, 30, 1, "unchanged"))
    for run in runs:
        store.record_run(run)
    assert store.list_runs(table_id, runs_max=3) == [runs[3], runs[1], runs[2]]
    assert store.list_runs(table_id, runs_max=9)[-1] == runs[0]


# --- many threads ---


def test_threads_do_not_lose_each_others_work(store: StateStore, table_id: int) -> None:
    """Verbs of many threads, on one table and on many, all take effect, and readers see whole verbs only."""
    threads, rounds = 6, 8

    def work(number: int) -> list[int]:
        own = store.load_table(f"t{number % 2}", "s3://delta/t", "t").id
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
    """While a rebuild is under way, other writers queue however short the busy timeout is, and readers go on."""
    with closing(SqlStateStore.open(f"sqlite:///{database_path}?timeout=0.01")) as store, ThreadPoolExecutor(1) as pool:
        table_id = fill(store)
        queued: list[Future[None]] = []

        def files() -> Iterator[LiveFile]:
            yield live_file("b")
            queued.append(pool.submit(store.record_run, SyncRun(table_id, 1, 1, "advanced")))
            assert wait(queued, timeout=0.1).done == set()
            assert list(store.find_live_files(table_id, ["a", "b"])) == ["a"]

        store.record_rebuilt(outcome(table_id, 2), files(), [], at_ms=2)
        queued[0].result(timeout=5)
        assert list(store.find_live_files(table_id, ["a", "b"])) == ["b"]
        assert len(store.list_runs(table_id, runs_max=9)) == 1


# --- the database file ---


def test_reopened_database_remembers(database_path: Path) -> None:
    """What was recorded is there when the file is opened again, and the folder of the file is made."""
    paths = ["a", "b", "d1", "d2"]
    with closing(SqlStateStore.open(f"sqlite:///{database_path}")) as store:
        table_id = store.load_table("orders", "s3://delta/orders", "sales.orders").id
        files = (live_file("a", dv=deletion_vector("x")), live_file("b"))
        store.record_synced(
            None, outcome(table_id, 1, added_files=files, added_delete_files=(delete_file("d1", "a"),)), at_ms=1
        )
        open_intent(store, table_id, 2**62)
        store.record_pending(2**62, FileKind.DELETE_FILE, ["d2"])
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
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


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


def write_verbs(store: StateStore, table_id: int) -> list[Callable[[], object]]:
    """Every verb that writes; intent 1 of the table is open."""
    failed = OrphanReason.COMMIT_FAILED
    return [
        lambda: store.load_table("orders", "elsewhere", "sales.orders"),
        lambda: open_intent(store, table_id, 2),
        lambda: store.record_pending(1, FileKind.MANIFEST, ["m9"]),
        lambda: store.record_prepared(1, outcome(table_id, 2)),
        lambda: store.record_synced(1, outcome(table_id, 2, removed_files=("a",)), at_ms=2),
        lambda: store.record_rebuilt(outcome(table_id, 2), [], [], at_ms=2),
        lambda: store.record_abandoned(1, failed, at_ms=2),
        lambda: store.record_orphans(table_id, FileKind.MANIFEST, ["m9"], failed, at_ms=2),
        lambda: store.record_failure(table_id, TableError("k", "m", "h", None, 1, 1, True)),
        lambda: store.record_run(SyncRun(table_id, 1, 1, "advanced")),
        lambda: store.record_resumed(table_id),
    ]


def fill(store: StateStore) -> int:
    table_id = store.load_table("orders", "s3://delta/orders", "sales.orders").id
    files = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d", "a"),))
    store.record_synced(None, files, at_ms=1)
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


def test_damaged_table_fails_without_a_trace(sql_store: SqlStateStore) -> None:
    """A verb whose last statement fails leaves nothing of the statements before it."""
    table_id = fill(sql_store)
    with sql_store._database.write() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER broken BEFORE UPDATE ON tables BEGIN SELECT RAISE(ABORT, 'no space'); END"
        )
    before = observe(sql_store, table_id, ["a", "d"])
    for verb in (
        lambda: sql_store.record_synced(1, outcome(table_id, 2, removed_files=("a",)), at_ms=2),
        lambda: sql_store.record_rebuilt(outcome(table_id, 2), [live_file("b")], [], at_ms=2),
    ):
        with pytest.raises(StateUnavailable, match="no space"):
            verb()
        assert observe(sql_store, table_id, ["a", "d"]) == before


CRASHING = """
import os, sys
from state.records import FileKind, Intent, LiveFile, Outcome
from state.sql_store import SqlStateStore

def outcome(version, **changes):
    return Outcome(1, "delta-id", None, version, 1, 9, "v.json", **changes)

def endless():
    yield from (LiveFile(f"f{number}", 1, 1, 0, "m") for number in range(6000))
    os._exit(9)

store = SqlStateStore.open(sys.argv[1])
steps = [
    lambda: store.load_table("orders", "source", "target"),
    lambda: store.record_intent(Intent(9, 1, None, 1, 1)),
    lambda: store.record_pending(9, FileKind.DELETE_FILE, ["d"]),
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
    [(4, 1, None, 0), (5, 0, 1, 1), (6, 0, 1, 1)],
    ids=["outcome prepared", "synced", "half rebuilt"],
)
def test_killed_process_leaves_a_consistent_file(
    database_path: Path, steps: int, open_intents: int, synced_version: int | None, live_files: int
) -> None:
    """A process that dies leaves the verbs that returned, whole, and nothing of the one it was in."""
    url = f"sqlite:///{database_path}"
    killed = subprocess.run([sys.executable, "-c", CRASHING, url, str(steps)], cwd=REPOSITORY, check=False)
    assert killed.returncode == 9
    with closing(sqlite3.connect(database_path)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    with closing(SqlStateStore.open(url)) as store:
        assert len(store.find_open_intents(1)) == open_intents
        assert store.list_tables()[0].synced_version == synced_version
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
manifests = st.sampled_from(MANIFESTS)
reasons = st.sampled_from(OrphanReason)
vectors = st.none() | st.builds(deletion_vector, st.sampled_from("xyz"), st.integers(0, 9))
live_files = st.builds(
    LiveFile, data_file_paths, st.integers(10, 20), st.integers(0, 9), st.integers(0, 1), manifests, vectors
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
)
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
        "moved_manifests": st.lists(st.tuples(manifests, manifests), max_size=1).map(tuple),
        "unwritten_files": st.lists(st.sampled_from(DELETE_FILES + MANIFESTS), max_size=2).map(tuple),
    }
)


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
        self.load_table()

    def teardown(self) -> None:
        self.sql.close()
        self.folder.cleanup()

    def load_table(self) -> None:
        ids = {store.load_table("t", self.sources[-1], "target").id for store in self.stores}
        (self.table_id,) = ids

    def tick(self) -> int:
        self.now += 1
        return self.now

    def outcome(self, changed: dict[str, Any], snapshot_id: int) -> Outcome:
        now = self.tick()
        return Outcome(
            self.table_id, "id", None, to_version=now, source_timestamp_ms=now, snapshot_id=snapshot_id, **changed
        )

    @rule()
    def record_intent(self) -> None:
        self.intents.append(self.intents[-1] + 1)
        intent = Intent(self.intents[-1], self.table_id, None, 1, self.tick())
        for store in self.stores:
            store.record_intent(intent)

    @precondition(lambda self: len(self.intents) > 1)
    @rule(data=st.data(), files=pending_files)
    def record_pending(self, data: st.DataObject, files: tuple[FileKind, list[str]]) -> None:
        intent_id = data.draw(st.sampled_from(self.intents[1:]))
        for store in self.stores:
            store.record_pending(intent_id, *files)

    @precondition(lambda self: len(self.intents) > 1)
    @rule(changed=changes)
    def record_prepared(self, changed: dict[str, Any]) -> None:
        prepared = self.outcome(changed, 1)
        for store in self.stores:
            store.record_prepared(self.intents[-1], prepared)

    @rule(data=st.data(), changed=changes)
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
        rebuilt, now = self.outcome(changed, data.draw(st.sampled_from(self.intents))), self.tick()
        for store in self.stores:
            store.record_rebuilt(rebuilt, iter(files), iter(deletes), at_ms=now)

    @rule(data=st.data(), reason=reasons)
    def record_abandoned(self, data: st.DataObject, reason: OrphanReason) -> None:
        intent_id, now = data.draw(st.sampled_from(self.intents)), self.tick()
        for store in self.stores:
            store.record_abandoned(intent_id, reason, at_ms=now)

    @rule(files=pending_files, reason=reasons)
    def record_orphans(self, files: tuple[FileKind, list[str]], reason: OrphanReason) -> None:
        now = self.tick()
        for store in self.stores:
            store.record_orphans(self.table_id, *files, reason, at_ms=now)

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
        self.load_table()

    @invariant()
    def tell_the_same(self) -> None:
        paths = DATA_FILES + DELETE_FILES
        assert observe(self.sql, self.table_id, paths) == observe(self.memory, self.table_id, paths)

    @invariant()
    def references_hold(self) -> None:
        with self.sql._database.read() as connection:
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []


def test_both_stores_tell_the_same() -> None:
    """After any sequence of verbs both stores tell the same, and a repeated `record_synced` does not show."""
    run_state_machine_as_test(
        BothStores,
        settings=settings(
            max_examples=15,
            stateful_step_count=12,
            deadline=None,
            database=None,
            # Twelve steps can be read as they are, and making them fewer takes minutes.
            phases=[Phase.generate],
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
