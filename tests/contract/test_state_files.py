"""What `StateStore` promises of tables, live files and intents, shown by every store."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from state.records import (
    DeletionVectorDescriptor,
    FileKind,
    FileStatus,
    Intent,
    LiveFile,
    MirrorRecord,
    OrphanReason,
    SyncRun,
    TableError,
    VectorFile,
    WrittenFile,
)
from state.reports import MIRROR_REASONS_MAX, OTHER_REASONS, MirrorCount
from state.sql.bulk import IN_LIST_MAX
from state.sql.ledger import READ_BATCH_MAX
from state.sql.store import StateStore
from tests.kit.states import (
    DELETE_MANIFEST,
    MANIFEST,
    PAUSE,
    UNKNOWN,
    delete_file,
    deletion_vector,
    live_file,
    observe,
    open_intent,
    orphan_paths,
    orphans,
    outcome,
    totals,
)

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
    assert store.count_tables() == len(made)


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


ON_UNKNOWN: list[Callable[[StateStore], object]] = [
    lambda store: list(store.read_live_files(UNKNOWN)),
    lambda store: store.find_live_files(UNKNOWN, ["a"]),
    lambda store: store.find_delete_files(UNKNOWN, ["a"]),
    lambda store: store.find_delete_files(UNKNOWN, ["a"], dead=True),
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
    lambda store: store.record_failure(UNKNOWN, None),
    lambda store: store.record_pause(UNKNOWN, PAUSE),
    lambda store: store.end_pause(UNKNOWN, at_ms=1),
    lambda store: store.record_resync_wanted(UNKNOWN, True),
    lambda store: store.count(UNKNOWN),
    lambda store: store.find_deletions(UNKNOWN, rows_max=1),
    lambda store: store.list_written(UNKNOWN, [FileStatus.LIVE]),
    lambda store: store.record_vectors(UNKNOWN, [VectorFile("v", 1, 1)]),
    lambda store: store.list_vectors(UNKNOWN),
    lambda store: store.forget_vectors(UNKNOWN, ["v"]),
    lambda store: store.has_orphans(UNKNOWN, before_ms=1, reasons=OrphanReason),
    lambda store: store.list_for_cleanup(UNKNOWN, due_ms=1, now_ms=2),
    lambda store: store.find_crowded(UNKNOWN, delete_files_max=1, deleted_share=0.5),
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
    inline = live_file("c", dv=DeletionVectorDescriptor("i", "abc", 3, 1))
    store.record_synced(None, outcome(table_id, 1, added_files=(plain, with_dv, inline)), at_ms=1)
    assert store.find_live_files(table_id, ["a", "b", "zz"]) == {"a": with_dv, "b": plain}
    assert list(store.read_live_files(table_id)) == [with_dv, plain, inline]
    assert store.find_live_files(table_id, []) == {}


def test_added_file_replaces_its_row(store: StateStore, table_id: int) -> None:
    """A file that is added again replaces the row of that path, and keeps the delete files that serve it."""
    store.record_synced(
        None, outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d1", "a"),)), at_ms=1
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
            table_id, 1, added_files=(live_file("a"), live_file("b")), added_delete_files=(delete_file("d1", "a", "b"),)
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
        None, outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d1", "a"),)), at_ms=1
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
    assert sorted(store.find_live_files(table_id, many)) == many
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


# --- mirrors ---


def mirror(path: str, data_file: str, size_bytes: int | None = None, why: str = "why") -> MirrorRecord:
    return MirrorRecord(path, data_file, 100, "footer", size_bytes, why)


def mirrors_of(store: StateStore, table_id: int, *data_files: str) -> dict[str, tuple[FileStatus, OrphanReason | None]]:
    return {each.path: (each.status, each.reason) for each in store.find_mirrors(table_id, data_files)}


def test_a_mirror_lives_with_its_data_file(store: StateStore, table_id: int) -> None:
    """Pending before it exists, live with its snapshot, an orphan when it leaves, and live again."""
    open_intent(store, table_id, 1)
    store.record_mirrors(1, [mirror("m", "d"), mirror("n", "e")])
    assert mirrors_of(store, table_id, "d") == {"m": (FileStatus.PENDING, None)}
    store.record_sizes(table_id, {"m": 130, "n": 90})
    store.record_synced(1, outcome(table_id, 1, added_files=(live_file("m"), live_file("n"))), at_ms=2)
    assert {each.path: each.size_bytes for each in store.list_live_mirrors(table_id)} == {"m": 130, "n": 90}
    assert store.sum_mirror_surplus(table_id, without=()) == 20
    assert store.sum_mirror_surplus(table_id, without=["m"]) == -10
    gone = outcome(table_id, 2, removed_files=("m",), removed_mirrors=("m",))
    for _ in range(2):
        store.record_synced(None, gone, at_ms=3)
    shown_by_older = (FileStatus.ORPHANED, OrphanReason.DATA_FILES_GONE)
    assert mirrors_of(store, table_id, "d", "e") == {"m": shown_by_older, "n": (FileStatus.LIVE, None)}

    open_intent(store, table_id, 2)
    again = store.find_mirrors(table_id, ["d"])
    store.record_mirrors(2, again)
    store.record_abandoned(2, OrphanReason.COMMIT_FAILED, at_ms=4)
    assert mirrors_of(store, table_id, "d") == {"m": shown_by_older}, "older snapshots still show it"
    open_intent(store, table_id, 3)
    store.record_mirrors(3, again)
    store.record_synced(3, outcome(table_id, 3, added_files=(live_file("m"),)), at_ms=5)
    assert mirrors_of(store, table_id, "d") == {"m": (FileStatus.LIVE, None)}


def test_mirrors_are_counted_by_kind_and_reason(store: StateStore, table_id: int) -> None:
    """The most frequent reasons first, the rest together; only of those that the newest snapshot shows."""
    reasons = ["often", "often", *(f"value {number}" for number in range(MIRROR_REASONS_MAX + 2))]
    made = [mirror(f"m{number:02}", f"d{number}", 10, why) for number, why in enumerate(reasons)]
    open_intent(store, table_id, 1)
    store.record_mirrors(1, made)
    assert store.count(table_id).mirrors == ()
    store.record_synced(1, outcome(table_id, 1, added_files=tuple(live_file(each.path) for each in made)), at_ms=2)
    mirrors = store.count(table_id).mirrors
    assert mirrors[0] == MirrorCount("footer", "often", 2, 20)
    assert mirrors[-1] == MirrorCount("footer", OTHER_REASONS, 3, 30)
    assert (len(mirrors), sum(each.files for each in mirrors)) == (MIRROR_REASONS_MAX + 1, len(made))
    gone = outcome(table_id, 2, removed_files=("m00",), removed_mirrors=("m00",))
    store.record_synced(None, gone, at_ms=3)
    assert sum(each.files for each in store.count(table_id).mirrors) == len(made) - 1


def test_a_mirror_of_a_failed_commit_is_an_orphan(store: StateStore, table_id: int) -> None:
    """Like any other file; a live one stays live."""
    open_intent(store, table_id, 1)
    store.record_mirrors(1, [mirror("m", "d")])
    store.record_synced(1, outcome(table_id, 1, added_files=(live_file("m"),)), at_ms=2)
    open_intent(store, table_id, 2)
    store.record_mirrors(2, [mirror("m", "d", 130), mirror("n", "e")])
    store.record_abandoned(2, OrphanReason.COMMIT_FAILED, at_ms=3)
    assert mirrors_of(store, table_id, "d", "e") == {
        "m": (FileStatus.LIVE, None),
        "n": (FileStatus.ORPHANED, OrphanReason.COMMIT_FAILED),
    }


def test_found_mirrors_are_orphans_in_use(store: StateStore, table_id: int) -> None:
    """Known ones stay as they are, whatever their status; a found one may be used again."""
    open_intent(store, table_id, 1)
    store.record_mirrors(1, [mirror("m", "d", 130)])
    store.record_synced(1, outcome(table_id, 1, added_files=(live_file("m"),)), at_ms=2)
    open_intent(store, table_id, 2)
    store.record_mirrors(2, [mirror("n", "e")])
    found = [mirror(path, "hash", 120) for path in ("m", "n", "o")]
    store.record_found_mirrors(table_id, found, at_ms=3)
    store.record_found_mirrors(table_id, found, at_ms=4)
    assert mirrors_of(store, table_id, "d", "e", "hash") == {
        "m": (FileStatus.LIVE, None),
        "n": (FileStatus.PENDING, None),
        "o": (FileStatus.ORPHANED, OrphanReason.FOUND_IN_USE),
    }
    (known,) = store.find_mirrors(table_id, ["hash"])
    assert (known.since_ms, known.size_bytes) == (3, 120)
    store.record_mirrors(2, [mirror("o", "f", 120)])
    assert mirrors_of(store, table_id, "f", "hash") == {"o": (FileStatus.PENDING, None)}


def test_rebuilt_mirrors_are_those_that_are_shown(store: StateStore, table_id: int) -> None:
    """Found ones and known ones are live if they are live data files; all others are orphans."""
    open_intent(store, table_id, 1)
    store.record_mirrors(1, [mirror("m", "d"), mirror("n", "e")])
    store.record_synced(1, outcome(table_id, 1, added_files=(live_file("m"), live_file("n"))), at_ms=2)
    shown = [live_file("m"), live_file("o"), live_file("plain")]
    store.record_rebuilt(outcome(table_id, 2), shown, [], at_ms=3, mirrors=[mirror("o", "f", 120)])
    assert mirrors_of(store, table_id, "d", "e", "f") == {
        "m": (FileStatus.LIVE, None),
        "n": (FileStatus.ORPHANED, OrphanReason.DATA_FILES_GONE),
        "o": (FileStatus.LIVE, None),
    }
    store.record_unreferenced(table_id, ["m", "n"], OrphanReason.SNAPSHOT_EXPIRED, at_ms=4)
    assert mirrors_of(store, table_id, "d", "e") == {
        "m": (FileStatus.LIVE, None),
        "n": (FileStatus.ORPHANED, OrphanReason.SNAPSHOT_EXPIRED),
    }
    store.record_deleted(table_id, ["m", "n"], at_ms=5)
    assert mirrors_of(store, table_id, "e") == {"n": (FileStatus.DELETED, OrphanReason.SNAPSHOT_EXPIRED)}
