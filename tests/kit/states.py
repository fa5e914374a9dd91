"""Records of a state database for tests, what a store tells of them, and databases of the newest schema at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import Connection, create_engine

from state.records import (
    DeleteFileRecord,
    DeletionVectorDescriptor,
    DvMapping,
    FileKind,
    FileStatus,
    Intent,
    LiveFile,
    OrphanReason,
    Outcome,
    Pause,
    SyncRun,
    TableError,
    VectorFile,
    Wait,
    WrittenFile,
)
from state.sql.store import StateStore

MANIFEST = "s3://iceberg/metadata/m0.avro"
DELETE_MANIFEST = "s3://iceberg/metadata/d0.avro"
PAUSE = Pause(1_000, "ada on lake-1")
UNKNOWN = 404


@cache
def migrated() -> bytes:
    """An SQLite file of the newest schema."""
    with TemporaryDirectory() as folder:
        StateStore.open(f"sqlite:///{folder}/state.db").close()
        return (Path(folder) / "state.db").read_bytes()


def lay_database(file: Path) -> None:
    """Make the SQLite file that opening a store would make in sixty milliseconds of migrations."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(migrated())


@contextmanager
def admin(url: str, **options: Any) -> Iterator[Connection]:
    engine = create_engine(url, **options)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


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
        "former": store.find_delete_files(table_id, [*paths, "gone"], dead=True),
        "serving": store.find_served(table_id, paths),
        "intents": store.find_open_intents(table_id),
        "counts": store.count(table_id),
        "written": store.list_written(table_id, FileStatus),
        "crowded": store.find_crowded(table_id, delete_files_max=2, deleted_share=0.3),
        "mostly dead": store.find_mostly_dead(table_id, dead_share=0.4),
        "deletions": store.find_deletions(table_id, rows_max=100),
        "runs": store.list_runs(table_id, runs_max=100),
        "vectors": store.list_vectors(table_id),
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
        lambda: store.record_vectors(table_id, [VectorFile("v", 1, 1)]),
        lambda: store.forget_vectors(table_id, ["v"]),
        lambda: store.record_failure(table_id, TableError("k", "m", "h", None, 1, 1, True)),
        lambda: store.record_wait(table_id, Wait("the catalog", 1)),
        lambda: store.record_run(SyncRun(table_id, 1, 1, "advanced")),
        lambda: store.record_failure(table_id, None),
        lambda: store.record_table_replaced(table_id, at_ms=5),
    ]


def fill(store: StateStore) -> int:
    table_id = store.open_table("orders", "s3://delta/orders", "sales.orders").id
    files = outcome(table_id, 1, added_files=(live_file("a"),), added_delete_files=(delete_file("d", "a"),))
    store.record_synced(None, files, at_ms=1)
    store.record_orphans(table_id, FileKind.MANIFEST, ["orphaned"], OrphanReason.FOUND, at_ms=1)
    open_intent(store, table_id, 1)
    return table_id
