"""The two state stores side by side, after any sequence of verbs."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from state.records import (
    CommitIdentity,
    DeleteFileRecord,
    DvMapping,
    FileKind,
    FileStatus,
    Intent,
    LiveFile,
    OrphanReason,
    Outcome,
    SyncRun,
    TableError,
)
from state.sql.store import StateStore
from tests.kit.examples import examples
from tests.kit.memory_store import MemoryStateStore
from tests.kit.states import deletion_vector, lay_database, observe

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
        lay_database(Path(self.folder.name) / "dvsync.db")
        self.sql = StateStore.open(f"sqlite:///{self.folder.name}/dvsync.db")
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
            store.record_failure(self.table_id, None)

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
            max_examples=examples(24),
            stateful_step_count=12,
            database=None,
            # Twelve steps can be read as they are, and making them fewer takes minutes.
            phases=[Phase.generate],
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
