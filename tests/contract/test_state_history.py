"""What `StateStore` promises of rebuilds, orphans, runs and the life of written files, shown by every store."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection

from state.records import (
    RECENT_COMMITS_MAX,
    SHARES,
    CommitIdentity,
    DeletionVectorDescriptor,
    Difference,
    Differences,
    FileKind,
    FileStatus,
    LiveFile,
    OrphanReason,
    Pause,
    ProofRecord,
    SyncRun,
    TableError,
    VectorFile,
    Wait,
    WrittenFile,
)
from state.reports import PartitionCount, ServingFile, VectorCount, WrittenCount
from state.sql import files as sql_files
from state.sql import rows as sql_rows
from state.sql.bulk import IN_LIST_MAX
from state.sql.rows import WRITE_BATCH_MAX
from state.sql.store import StateStore
from tests.kit.states import (
    DELETE_MANIFEST,
    MANIFEST,
    PAUSE,
    delete_file,
    deletion_vector,
    find_written,
    live_file,
    observe,
    open_intent,
    orphan_paths,
    orphans,
    outcome,
    totals,
)

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
        table_id, 1, removed_delete_files=(("d-replaced", OrphanReason.DV_SHRUNK),), unwritten_files=("d-unwritten",)
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


def test_a_rebuild_gives_way_to_others(sql_store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_table_half_forgotten(sql_store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others write between the batches. A process that ends there leaves a table whose memory is rebuilt."""
    table_id = sql_store.open_table("t", "s3://delta/t", "sales.t").id
    other = sql_store.open_table("t0", "s3://delta/t0", "sales.t0").id
    sql_store.record_synced(None, outcome(table_id, 1, added_files=[live_file(name) for name in "abc"]), at_ms=1)
    monkeypatch.setattr(sql_rows, "WRITE_BATCH_MAX", 2)
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
    store.record_failure(table_id, None)
    assert store.open_table("orders", "s3://delta/orders", "sales.orders").error is None


def test_what_a_table_waits_for(store: StateStore, table_id: int) -> None:
    """It outlasts errors and resumes, until the syncs end it."""
    wait = Wait("the catalog", 2**41)
    store.record_wait(table_id, wait)
    store.record_failure(table_id, TableError("CatalogAway", "older", "Wait.", None, 1, 1, False))
    store.record_failure(table_id, None)
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
    assert store.find_delete_files(table_id, ["a", "b", "c"], dead=True) == []
    dead = (("p", "a"), ("p", "b"))
    store.record_synced(None, outcome(table_id, 2, dead_vectors=dead, removed_files=("b",)), at_ms=2)
    (found,) = store.find_delete_files(table_id, ["b", "x"], dead=True)
    assert (found.path, found.dead, [each.data_file for each in found.mappings]) == ("p", ("a", "b"), ["c"])
    assert [file.path for file in store.find_delete_files(table_id, ["a"])] == ["q"]
    assert store.find_served(table_id, ["p"]) == {"p": {"c"}}
    # Four of six positions are dead.
    assert store.find_mostly_dead(table_id, dead_share=0.6) == ["p"]
    assert store.find_mostly_dead(table_id, dead_share=0.7) == []
    store.record_synced(None, outcome(table_id, 3, added_files=(live_file("b"),)), at_ms=3)
    assert [file.path for file in store.find_delete_files(table_id, ["b"], dead=True)] == ["p"]
    gone = (("p", OrphanReason.DV_REPLACED),)
    store.record_synced(None, outcome(table_id, 4, removed_delete_files=gone), at_ms=4)
    assert store.find_delete_files(table_id, ["a", "b"], dead=True) == []
    rebuilt = replace(delete_file("p", "a"), dead=("b", "z"))
    store.record_rebuilt(outcome(table_id, 5), [live_file("a")], [rebuilt], at_ms=5)
    assert [file.dead for file in store.find_delete_files(table_id, ["z"], dead=True)] == [("b", "z")]


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


def test_vector_files(store: StateStore, table_id: int) -> None:
    """They are remembered until a run has committed them, or they are forgotten; nothing else touches them."""
    other = store.open_table("other", "s3://delta/other", "sales.other").id
    files = [VectorFile("b", 4, 7), VectorFile("a", 4, 7), VectorFile("c", 3, 6)]
    store.record_vectors(table_id, files)
    store.record_vectors(other, files[:1])
    store.record_run(SyncRun(table_id, 7, 1, "deleted"), committed=["a", "unknown"])
    store.record_table_replaced(table_id, at_ms=8)
    store.record_rebuilt(outcome(table_id, 1), [], [], at_ms=9)
    store.forget_before(table_id, 99)
    assert store.list_vectors(table_id) == [files[2], files[0]]
    assert store.count(table_id).written == ()
    store.forget_before(table_id, 7, orphans=True)
    assert store.list_vectors(table_id) == [files[0]]
    store.forget_vectors(table_id, ["b", "unknown"])
    assert (store.list_vectors(table_id), store.list_vectors(other)) == ([], files[:1])
    store.forget_table(other)


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
