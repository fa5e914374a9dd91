"""Compaction, expiry and cleanup of one table: what each does, and what it leaves alone."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.refs import SnapshotRefType

from daemon.config.settings import MaintenanceSettings
from daemon.errors import CatalogAway, CorruptInput, ObjectStoreAway, TargetChanged
from daemon.iceberg.marker import shown_by
from daemon.maintenance import cleanup, compaction
from daemon.maintenance.compaction import Compaction
from daemon.maintenance.maintainer import Maintainer
from daemon.pipeline.runner import Runner
from daemon.store.storage import FileIOStorage
from daemon.sync.outcomes import unchanged_outcome
from state import FileKind, FileStatus, Intent, OrphanReason
from tests.kit.checks import check_files, check_memory, read_entries, rows_of, table_id
from tests.kit.handmade import ARROW, GRANULARITY, Bench, HandmadeTable
from tests.kit.readers import duckdb_connection

# Names that dvsync gives.
REST, GONE = (f"0b6c2f0e-8f0d-4f0e-9d3c-2f1f0c8a7b6d-7-m{number}.avro" for number in range(2))
HOUR_S = 3600


class LaterClock:
    """Later than the machine's, and wrong by `ahead_s` in its time of day."""

    later_s = 0.0
    ahead_s = 0.0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + round((self.later_s + self.ahead_s) * 1000)

    def monotonic_s(self) -> float:
        return time.monotonic() + self.later_s


class World:
    """A handmade Delta table of two files in one partition, followed."""

    def __init__(self, folder: Path, tag_every: int | None = None, **maintenance: Any) -> None:
        self.folder = folder
        self.clock = LaterClock()
        self.table = HandmadeTable(folder / "delta", partitioned=True)
        self.table.create()
        settings = MaintenanceSettings(**{"orphan_grace": "1h", **maintenance})
        self.bench = Bench(
            folder / "dvsync",
            self.table.location,
            clock=self.clock,
            table_options={"tag_every": tag_every, "tag_retention": "10h", "maintenance": settings},
        )
        self.bench.first_sync_empty(self.table)
        self.paths = [self.table.write_file([(100 * n + i, "x", "v") for i in range(50)]) for n in range(2)]
        self.commit([self.table.add(path) for path in self.paths])
        self.maintainer = Maintainer(self.bench.context)

    def commit(self, actions: list[dict[str, Any]]) -> None:
        self.table.commit(actions)
        self.bench.follower.sync()

    def delete(self, commits: int, *, first: int = 0) -> None:
        """A commit for each, with a deletion in both files."""
        for number in range(first, first + commits):
            self.commit(self.table.delete({path: [number] for path in self.paths}))

    def keep_snapshots(self, count: int) -> None:
        with self.bench.iceberg().transaction() as transaction:
            transaction.set_properties({TableProperties.MIN_SNAPSHOTS_TO_KEEP: str(count)})

    def compact(self, *, dry_run: bool = False) -> Compaction:
        return self.maintainer.compact(Event(), dry_run=dry_run)

    def clean_up(self, **options: bool) -> Any:
        return self.maintainer.clean_up(Event(), **options)

    def check(self) -> Table:
        """Rows, memory and files are right."""
        iceberg = self.bench.iceberg()
        assert rows_of(iceberg.scan().to_arrow()) == self.table.live_rows()
        entries = read_entries(iceberg)
        check_memory(self.bench, iceberg, entries, self.table)
        check_files([self.bench], iceberg, entries)
        return iceberg

    def orphan(self, path: Path | str, kind: FileKind = FileKind.MANIFEST) -> None:
        """A file that the state store takes for the rest of a failed commit, long ago."""
        if isinstance(path, Path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"rest")
            path = f"file://{path}"
        self.bench.store.record_orphans(table_id(self.bench), kind, [path], OrphanReason.COMMIT_FAILED, at_ms=1)

    def written(self, *statuses: FileStatus) -> dict[str, Any]:
        return {file.path: file for file in self.bench.store.list_written(table_id(self.bench), statuses)}


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    worlds = []
    monkeypatch.setattr(compaction, "DELETE_FILES_MAX", 2)

    def made(*arguments: Any, **options: Any) -> World:
        worlds.append(World(tmp_path, *arguments, **options))
        return worlds[-1]

    yield made
    for world in worlds:
        world.bench.close()


# --- compaction ---


@pytest.mark.parametrize(("granularity", "before", "after"), [("file", 10, 2), ("partition", 5, 1)])
def test_crowded_data_files_get_one_delete_file(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch, granularity: str, before: int, after: int
) -> None:
    """One `replace` snapshot of the same Delta version and account; the old delete files are orphaned as compacted."""
    monkeypatch.setattr(GRANULARITY, granularity)
    world = make()
    world.delete(5)
    parent = world.bench.iceberg().current_snapshot()
    assert world.compact(dry_run=True) == Compaction(2, before, after)
    assert world.bench.iceberg().current_snapshot() == parent
    assert world.compact() == Compaction(2, before, after, snapshots=1)
    iceberg = world.check()
    snapshot = iceberg.current_snapshot()
    assert parent is not None and parent.summary and snapshot is not None and snapshot.summary
    assert snapshot.summary.operation.value == "replace"
    told = {key: value for key, value in snapshot.summary.additional_properties.items() if key.startswith("dvsync.")}
    was = {key: value for key, value in parent.summary.additional_properties.items() if key.startswith("dvsync.")}
    assert told == {**was, "dvsync.delta.operation": "compact"}
    assert snapshot.summary["total-delete-files"] == str(after)
    orphans = world.written(FileStatus.ORPHANED).values()
    assert {(file.kind, file.reason) for file in orphans} == {(FileKind.DELETE_FILE, OrphanReason.COMPACTED)}
    assert len(orphans) == before
    assert world.compact() == Compaction()
    world.delete(1, first=20)
    world.check()


def test_the_deleted_share_calls_for_compaction_too(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two delete files are few, but not where half of the rows are deleted."""
    world = make()
    monkeypatch.setattr(compaction, "DELETE_FILES_MAX", 100)
    monkeypatch.setattr(compaction, "DELETED_SHARE", 0.5)
    world.commit(world.table.delete({world.paths[0]: range(20), world.paths[1]: [0]}))
    world.commit(world.table.delete({world.paths[0]: range(20, 30), world.paths[1]: [1]}))
    assert world.compact() == Compaction(1, 2, 1, snapshots=1)
    world.check()


def test_many_small_delete_files_of_a_partition_become_one(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No data file has many of them, the partition has: each commit brought one for another data file."""
    monkeypatch.setattr(GRANULARITY, "partition")
    world = make()
    for constant, value in (("DELETE_FILES_MAX", 100), ("DELETED_SHARE", 1), ("PARTITION_DELETE_FILES_MAX", 3)):
        monkeypatch.setattr(compaction, constant, value)
    paths = [world.table.write_file([(1000 * n + i, "x", "v") for i in range(9)]) for n in range(1, 5)]
    other = world.table.write_file([(9000 + i, "y", "v") for i in range(9)])
    world.commit([world.table.add(path) for path in (*paths, other)])
    for path in (*paths, other):
        world.commit(world.table.delete({path: [1]}))
    assert world.compact() == Compaction(4, 4, 1, snapshots=1)
    world.check()
    assert world.compact() == Compaction()


def test_what_a_sync_changed_meanwhile_is_left_out(make: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync comes between writing and committing: the file that it touched keeps its delete files, the other not."""
    world = make()
    world.delete(4)
    inner = Runner.write_delete_files

    def write(runner: Runner, tasks: Any, **options: Any) -> Any:
        monkeypatch.setattr(Runner, "write_delete_files", inner)
        results = inner(runner, tasks, **options)
        world.commit(world.table.delete({world.paths[0]: [40]}))
        assert {task.output_path for task in tasks} <= world.written(FileStatus.PENDING).keys(), "not given up"
        return results

    monkeypatch.setattr(Runner, "write_delete_files", write)
    assert world.compact() == Compaction(1, 4, 1, snapshots=1)
    world.check()
    (useless,) = [file for file in world.written(FileStatus.ORPHANED).values() if file.reason != "compacted"]
    assert useless.reason is OrphanReason.COMMIT_FAILED


def test_a_table_that_is_forgotten_meanwhile(make: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    """`dvsync forget` comes between writing and committing: nothing is committed, and that is no error."""
    world = make()
    world.delete(4)
    inner = Runner.write_delete_files

    def write(runner: Runner, tasks: Any, **options: Any) -> Any:
        world.bench.store.forget_table(table_id(world.bench))
        return inner(runner, tasks, **options)

    shown = world.bench.iceberg().metadata_location
    monkeypatch.setattr(Runner, "write_delete_files", write)
    assert world.compact() == Compaction()
    assert world.bench.iceberg().metadata_location == shown


def test_a_compaction_names_the_version_that_is_shown(make: Callable[..., World]) -> None:
    """Also where the newest versions changed no row, and have no snapshot of their own."""
    world = make()
    world.delete(4)
    world.commit([{"txn": {"appId": "a", "version": 1}}])
    assert world.compact().snapshots == 1
    marker = shown_by(world.check())
    assert marker is not None
    assert marker.version == world.table.version


def test_a_failed_compaction_leaves_the_table_as_it_is(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong positions are not committed; what was written is removed, and syncs go on."""
    world = make()
    world.delete(4)
    shown, before = world.bench.iceberg().metadata_location, set(world.folder.rglob("*-deletes.parquet"))
    inner = Runner.write_delete_files

    def write(runner: Runner, tasks: Any, **options: Any) -> Any:
        return [replace(result, file=None) for result in inner(runner, tasks, **options)]

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "write_delete_files", write)
        with pytest.raises(CorruptInput, match="0 positions were written for a deletion vector of 4"):
            world.compact()
    assert world.bench.iceberg().metadata_location == shown
    world.check()
    assert set(world.folder.rglob("*-deletes.parquet")) == before
    assert not world.written(FileStatus.ORPHANED) and not world.written(FileStatus.PENDING)
    world.delete(1, first=9)
    world.check()


# --- expiry ---


def test_snapshots_beyond_the_count_are_expired_and_their_files_removed_after_the_grace(
    make: Callable[..., World],
) -> None:
    """Lists, manifests and delete files that only expired snapshots used go; Delta's files stay."""
    world = make(snapshots_max=2)
    world.delete(5)
    world.compact()
    delta = {path for path in world.table.folder.rglob("*") if path.is_file()}
    assert len(world.maintainer.expire(dry_run=True).expired) == 6
    assert len(world.bench.iceberg().snapshots()) == 8
    assert len(world.maintainer.expire().expired) == 6
    assert len(world.check().snapshots()) == 2
    first = world.clean_up()
    assert (first.removed, first.failed) == ([], [])
    assert first.left["its grace period is not over"] > 5
    world.check()
    world.clock.later_s = 2 * HOUR_S
    expected = world.clean_up(dry_run=True)
    done = world.clean_up()
    assert {file.path for file in done.removed} == {file.path for file in expected.removed}
    assert {file.kind for file in done.removed} == {FileKind.MANIFEST_LIST}, "manifests were carried over"
    assert done.removed_bytes > 0
    assert not any(Path(file.path.removeprefix("file://")).exists() for file in done.removed)
    assert done.left["used by a snapshot"] == 10, "the delete files before the compaction"
    world.check()
    world.delete(2, first=10)
    world.maintainer.expire()
    world.clean_up()
    world.clock.later_s = 4 * HOUR_S
    kinds = {FileKind.MANIFEST_LIST, FileKind.MANIFEST, FileKind.DELETE_FILE}
    assert {file.kind for file in world.clean_up().removed} == kinds
    world.check()
    assert {path for path in world.table.folder.rglob("*") if path.is_file()} >= delta


def read_both(table: Table, snapshot_id: int) -> list[int]:
    """The ids that PyIceberg and DuckDB show alike at a snapshot."""
    told = sorted(table.scan(snapshot_id=snapshot_id).to_arrow().column("id").to_pylist())
    scan = "SELECT id FROM iceberg_scan(?, snapshot_from_id => ?)"
    by_duckdb = duckdb_connection().execute(scan, [table.metadata_location, snapshot_id]).fetchall()
    assert sorted(row[0] for row in by_duckdb) == told
    return told


def test_a_tagged_version_stays_readable_until_its_tag_is_over(make: Callable[..., World]) -> None:
    """Expiry, compaction and cleanup leave it what it needs. Then the tag goes with its snapshot; others' tags stay."""
    world = make(snapshots_max=1, tag_every=4)
    world.delete(3)
    iceberg = world.bench.iceberg()
    tag = iceberg.metadata.refs["delta-v4"]
    assert (tag.snapshot_ref_type, tag.max_ref_age_ms) == (SnapshotRefType.TAG, 10 * HOUR_S * 1000)
    assert iceberg.snapshot_by_id(tag.snapshot_id) == iceberg.current_snapshot()
    shown = read_both(iceberg, tag.snapshot_id)
    assert shown == [row[0] for row in world.table.live_rows()]
    iceberg.manage_snapshots().create_tag(tag.snapshot_id, "audit").commit()
    world.delete(2, first=10)
    world.compact()
    for later_h in (1, 9):
        world.clock.later_s = later_h * HOUR_S
        world.maintainer.expire()
        world.clean_up()
    iceberg = world.check()
    assert {ref.snapshot_id for ref in iceberg.metadata.refs.values()} == {
        each.snapshot_id for each in iceberg.snapshots()
    }
    assert set(iceberg.metadata.refs) == {"main", "delta-v0", "delta-v4", "audit"}
    assert read_both(iceberg, tag.snapshot_id) == shown
    world.clock.later_s = 11 * HOUR_S
    assert world.maintainer.expire(dry_run=True).tags == ("delta-v0", "delta-v4")
    done = world.maintainer.expire()
    assert (len(done.expired), done.tags) == (1, ("delta-v0", "delta-v4"))
    assert set(world.bench.iceberg().metadata.refs) == {"main", "audit"}
    world.bench.iceberg().manage_snapshots().remove_tag("audit").commit()
    world.bench.follower.sync()
    assert world.maintainer.expire().expired == (tag.snapshot_id,)
    world.clean_up()
    world.clock.later_s = 13 * HOUR_S
    assert FileKind.DELETE_FILE in {file.kind for file in world.clean_up().removed}
    world.check()


def test_a_tag_of_somebody_else_keeps_its_name(make: Callable[..., World]) -> None:
    """It is neither moved nor removed, though it has the name that dvsync would give, and an age that is over."""
    world = make(snapshots_max=1, tag_every=3)
    first = world.bench.iceberg().metadata.current_snapshot_id
    assert first is not None
    world.bench.iceberg().manage_snapshots().create_tag(first, "delta-v3", max_ref_age_ms=1).commit()
    world.delete(2)
    world.clock.later_s = HOUR_S
    assert world.maintainer.expire().tags == ()
    assert world.bench.iceberg().metadata.refs["delta-v3"].snapshot_id == first
    world.delete(3, first=10)
    assert world.bench.iceberg().metadata.refs["delta-v6"].snapshot_id != first


def test_a_tagged_version_is_the_last_of_its_snapshot(make: Callable[..., World]) -> None:
    """A table that catches up with several versions for each snapshot shows the chosen ones exactly."""
    world = make(tag_every=4)
    for number in range(9):
        world.table.commit(world.table.delete({path: [number] for path in world.paths}))
    for _ in range(3):
        world.bench.follower.sync(others_wait=lambda: True)
    iceberg = world.check()
    summaries = [each.summary.additional_properties for each in iceberg.snapshots() if each.summary]
    shown = [(each.get("dvsync.delta.from-version"), each["dvsync.delta.version"]) for each in summaries]
    assert shown == [(None, "0"), (None, "1"), ("2", "4"), ("5", "8"), ("9", "10")]
    assert set(iceberg.metadata.refs) == {"main", "delta-v0", "delta-v4", "delta-v8"}


def test_age_is_capped_by_deltas_own_retention(make: Callable[..., World]) -> None:
    """The Delta table keeps removed files for two hours: no older snapshot stays, whatever the configuration says."""
    world = make(snapshot_age_max="90 days")
    metadata = world.table.metadata()
    metadata["configuration"]["delta.deletedFileRetentionDuration"] = "interval 2 hours"
    world.commit([{"metaData": metadata}])
    world.delete(2)
    assert world.bench.iceberg().properties["dvsync.delta.retention-ms"] == str(2 * HOUR_S * 1000)
    world.clock.later_s = HOUR_S
    assert world.maintainer.expire().expired == ()
    world.clock.later_s = 3 * HOUR_S
    assert len(world.maintainer.expire().expired) == 3
    assert len(world.check().snapshots()) == 1


def test_what_vacuum_made_unreadable_is_expired_and_named(make: Callable[..., World]) -> None:
    """Every snapshot that shows a file that is gone, and none that does not; a tag's one is named and kept."""
    world = make()
    world.keep_snapshots(100)
    world.delete(2)
    c = world.table.write_file([(900 + i, "x", "v") for i in range(9)])
    world.commit([world.table.add(c)])
    tagged = world.bench.iceberg().current_snapshot()
    assert tagged is not None
    world.bench.iceberg().manage_snapshots().create_tag(tagged.snapshot_id, "audit").commit()
    world.commit([world.table.remove(world.paths[0])])
    world.commit([world.table.remove(c)])
    gone = world.table.folder / world.paths[0]
    iceberg = world.bench.iceberg()
    planned = {
        each.snapshot_id: {task.file.file_path for task in iceberg.scan(snapshot_id=each.snapshot_id).plan_files()}
        for each in iceberg.snapshots()
    }
    showing = {snapshot_id for snapshot_id, files in planned.items() if f"file://{gone}" in files}
    assert world.maintainer.expire().expired == ()
    gone.unlink()
    done = world.maintainer.expire()
    assert set(done.unreadable) == set(done.expired) == showing - {tagged.snapshot_id}
    assert done.held == ((tagged.snapshot_id, "audit"),)
    assert len(world.bench.iceberg().snapshots()) == 4
    rows = rows_of(world.bench.iceberg().scan().to_arrow())
    assert rows == world.table.live_rows()


def test_a_snapshot_whose_followers_are_gone_is_still_watched(make: Callable[..., World]) -> None:
    """Those between were expired, and with them what they say they removed; it is compared with the next one left."""
    world = make(snapshots_max=3)
    world.delete(1)
    old = world.bench.iceberg().current_snapshot()
    assert old is not None
    world.bench.iceberg().manage_snapshots().create_tag(old.snapshot_id, "audit").commit()
    world.commit([world.table.remove(world.paths[0])])
    for number in range(4):
        world.commit(world.table.delete({world.paths[1]: [10 + number]}))
    assert world.maintainer.expire().held == ()
    assert len(world.bench.iceberg().snapshots()) == 4
    (world.table.folder / world.paths[0]).unlink()
    assert Maintainer(world.bench.context).expire().held == ((old.snapshot_id, "audit"),)
    world.bench.iceberg().manage_snapshots().remove_tag("audit").commit()
    assert Maintainer(world.bench.context).expire().unreadable == (old.snapshot_id,)
    assert len(world.check().snapshots()) == 3


def test_a_delta_table_that_is_away_is_no_vacuum(make: Callable[..., World]) -> None:
    """A folder that is not mounted has no files: nothing is expired, and it is told."""
    world = make()
    world.keep_snapshots(100)
    world.delete(2)
    world.commit([world.table.remove(world.paths[0])])
    away = world.table.folder.with_name("away")
    world.table.folder.rename(away)
    with pytest.raises(ObjectStoreAway, match="the Delta table is not at its location"):
        world.maintainer.expire()
    away.rename(world.table.folder)
    assert world.maintainer.expire().expired == ()


def test_a_snapshot_whose_own_list_is_gone_is_expired(make: Callable[..., World]) -> None:
    """Unreadable, whatever its data files say; maintenance goes on without it."""
    world = make()
    world.keep_snapshots(100)
    world.delete(3)
    old = sorted(world.bench.iceberg().snapshots(), key=lambda each: each.sequence_number or 0)[1]
    Path(old.manifest_list.removeprefix("file://")).unlink()
    assert world.maintainer.expire().unreadable == (old.snapshot_id,)
    world.clean_up()
    world.check()


def test_a_branch_does_not_hide_what_vacuum_took(make: Callable[..., World]) -> None:
    """A snapshot is compared with the one that was made from it, not with somebody's on a branch in between."""
    world = make()
    world.keep_snapshots(100)
    world.delete(1)
    iceberg = world.bench.iceberg()
    head = iceberg.current_snapshot()
    assert head is not None
    iceberg.manage_snapshots().create_branch(head.snapshot_id, "theirs").commit()
    theirs = pa.table({"id": [1], "part": ["x"], "value": ["v"]}, schema=ARROW)
    world.bench.iceberg().append(theirs, branch="theirs")
    on_branch = world.bench.iceberg().refs()["theirs"].snapshot_id
    world.commit([world.table.remove(world.paths[0])])
    (world.table.folder / world.paths[0]).unlink()
    world.bench.iceberg().manage_snapshots().remove_branch("theirs").commit()
    readable = set()
    for each in world.bench.iceberg().snapshots():
        with suppress(FileNotFoundError):
            world.bench.iceberg().scan(snapshot_id=each.snapshot_id).to_arrow()
            readable.add(each.snapshot_id)
    assert on_branch not in readable
    assert world.maintainer.expire().held == ((on_branch, "not dvsync's"),)
    assert {each.snapshot_id for each in world.bench.iceberg().snapshots()} <= readable | {on_branch}


def test_properties_that_make_no_sense_count_as_unset(make: Callable[..., World]) -> None:
    """Anybody may set them to anything: syncs and maintenance go on with the defaults."""
    world = make()
    world.delete(1)
    with world.bench.iceberg().transaction() as transaction:
        transaction.set_properties(
            {
                "commit.manifest.min-count-to-merge": "many",
                "commit.manifest.target-size-bytes": "8MB",
                "commit.manifest-merge.enabled": "perhaps",
                "history.expire.max-snapshot-age-ms": "5 days",
                "history.expire.min-snapshots-to-keep": "two",
                "dvsync.delta.retention-ms": "1 week",
            }
        )
    world.delete(3, first=5)
    world.maintainer.run(Event())
    world.check()


# --- cleanup ---


def test_only_orphans_in_the_tables_own_places_are_removed(make: Callable[..., World], tmp_path: Path) -> None:
    """Not behind a link or `..`, not beside the table or in the Delta table, not by others' names; gone is no error."""
    world = make()
    folder = Path(world.bench.iceberg().location().removeprefix("file://"))
    inside, outside = folder / "metadata" / REST, tmp_path / "elsewhere" / REST
    (tmp_path / "linked").mkdir()
    (folder / "link").symlink_to(tmp_path / "linked")
    behind_link = folder / "link" / REST
    deltas = world.table.folder / world.paths[0]
    beside = folder.with_name(folder.name + "2") / REST
    theirs = inside.with_name("0b6c2f0e-8f0d-4f0e-9d3c-2f1f0c8a7b6d-m0.avro")
    for path in (inside, outside, behind_link, beside, theirs):
        world.orphan(path)
    world.orphan(f"file://{folder}/metadata/../../../../elsewhere/{REST}")
    world.orphan(f"file://{deltas}", FileKind.DELETE_FILE)
    world.orphan(f"file://{folder}/metadata/{GONE}")
    done = world.clean_up()
    assert {os.path.basename(file.path) for file in done.removed} == {REST, GONE}
    assert done.left == {"it lies outside of the table's own folders": 5, "another program wrote it": 1}
    assert not inside.exists()
    assert all(path.exists() for path in (outside, behind_link, beside, deltas, theirs))
    assert world.clean_up().removed == []


def test_what_a_snapshot_uses_stays_whatever_the_state_store_says(make: Callable[..., World]) -> None:
    """A state store that takes every file for an orphan loses the table none of them."""
    world = make()
    world.delete(3)
    with closing(sqlite3.connect(world.bench.state_file)) as database, database:
        for files in ("delete_files", "metadata_files"):
            database.execute(f"update {files} set status = 'orphaned', reason = 'commit-failed', since_ms = 1")
    world.clock.later_s = 100 * HOUR_S
    done = world.clean_up()
    assert done.removed == []
    assert rows_of(world.bench.iceberg().scan().to_arrow()) == world.table.live_rows()


def test_without_the_iceberg_table_nothing_is_removed(make: Callable[..., World]) -> None:
    """Nothing tells what is in use then."""
    world = make()
    world.orphan(world.folder / "dvsync" / "warehouse" / "lake" / "t" / "rest.avro")
    world.bench.catalogs.open("local").drop_table("lake.t")
    done = world.clean_up()
    assert done.removed == []
    assert done.left == {"the Iceberg table is missing or has been replaced, so its files in use are unknown": 1}


def test_a_file_that_cannot_be_removed_is_told_and_tried_again(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are removed all the same."""
    world = make()
    folder = Path(world.bench.iceberg().location().removeprefix("file://"))
    a, b, c = (f"0b6c2f0e-8f0d-4f0e-9d3c-2f1f0c8a7b6d-7-m{number}.avro" for number in range(3))
    for name in (a, b, c):
        world.orphan(folder / name)
    inner = FileIOStorage.delete

    def delete(storage: FileIOStorage, path: str) -> None:
        if path.endswith(b):
            raise ObjectStoreAway("access denied", path=path, hint="None.")
        inner(storage, path)

    with monkeypatch.context() as patch:
        patch.setattr(FileIOStorage, "delete", delete)
        done = world.clean_up()
    assert sorted(os.path.basename(file.path) for file in done.removed) == [a, c]
    (failure,) = done.failed
    assert "access denied" in failure and b in failure
    assert [os.path.basename(file.path) for file in world.clean_up().removed] == [b]


def test_a_scan_finds_what_no_row_tells_of(make: Callable[..., World]) -> None:
    """After a lost database: found by name and place, told, and removed only when asked and old enough."""
    world = make()
    world.delete(5)
    world.compact()
    world.bench.close()
    world.bench.state_file.unlink()
    world.bench.open()
    world.maintainer = Maintainer(world.bench.context)
    world.bench.follower.sync()
    folder = Path(world.bench.iceberg().location().removeprefix("file://"))
    uuid = "01234567-89ab-cdef-0123-456789abcdef"
    lost = [folder / "data" / "7-000000-deletes.parquet", folder / "metadata" / f"{uuid}-7-m0.avro"]
    lost += [folder / "metadata" / f"snap-7-{uuid}.avro", folder / "metadata" / f"00007-{uuid}.metadata.json"]
    theirs = [folder / "data" / "part-0.parquet", folder / "metadata" / "notes.txt"]
    for path in (*lost, *theirs):
        path.write_bytes(b"x")
    assert world.clean_up().found == []
    done = world.clean_up(scan=True)
    assert {file.path for file in done.found} == {f"file://{path}" for path in lost}
    young = world.clean_up(scan=True, remove_found=True)
    assert (young.removed, young.left["its grace period is not over"]) == ([], 4)
    reasons = Counter(file.reason for file in world.written(FileStatus.ORPHANED).values())
    # Those that a snapshot uses stay, and are known from now on.
    assert reasons.keys() == {OrphanReason.FOUND, OrphanReason.FOUND_IN_USE} and reasons[OrphanReason.FOUND] == 4
    world.clock.later_s = 2 * HOUR_S
    done = world.clean_up()
    assert {file.path for file in done.removed} == {f"file://{path}" for path in lost}
    assert not any(path.exists() for path in lost) and all(path.exists() for path in theirs)
    assert rows_of(world.bench.iceberg().scan().to_arrow()) == world.table.live_rows()


def test_a_table_that_is_left_alone_is_not_looked_at_again(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round without news reads no manifest; orphans whose time has come and new commits are news."""
    world = make(snapshots_max=3)
    world.delete(5)
    for _ in range(3):
        world.maintainer.run(Event())
    opened: list[str] = []
    inner = PyArrowFile.open
    monkeypatch.setattr(
        PyArrowFile, "open", lambda file, *options: opened.append(file.location) or inner(file, *options)
    )
    world.maintainer.run(Event())
    assert [path for path in opened if path.endswith(".avro")] == []
    world.clock.later_s = 2 * HOUR_S
    assert world.maintainer.run(Event()).cleanup.removed
    world.delete(3, first=9)
    assert world.maintainer.run(Event()).compaction.data_files == 2
    world.check()


def test_a_rollback_to_a_tag_whose_followers_are_gone_is_noticed(make: Callable[..., World]) -> None:
    """The way back to it is cut in the metadata, and it is a rollback all the same."""
    world = make(snapshots_max=2)
    world.delete(2)
    old = world.bench.iceberg().current_snapshot()
    assert old is not None
    world.bench.iceberg().manage_snapshots().create_tag(old.snapshot_id, "audit").commit()
    world.delete(4, first=10)
    world.maintainer.expire()
    world.bench.iceberg().manage_snapshots().set_current_snapshot(old.snapshot_id).commit()
    world.table.commit(world.table.delete({world.paths[0]: [40]}))
    with pytest.raises(TargetChanged, match=f"rolled back from snapshot .* to {old.snapshot_id}"):
        world.bench.follower.sync()
    world.bench.follower.sync(full=True)
    world.check()


@pytest.mark.parametrize("interrupted", [False, True], ids=["in step", "half rebuilt"])
def test_a_table_that_was_renamed_keeps_its_files(make: Callable[..., World], interrupted: bool) -> None:
    """dvsync makes the table anew in the same folder; the old one loses nothing, whatever time passes."""
    world = make(snapshots_max=1)
    world.delete(3)
    if interrupted:
        store = world.bench.store
        (record,) = store.list_tables()
        with pytest.raises(ZeroDivisionError):
            store.record_rebuilt(unchanged_outcome(record), (1 // 0 for _ in "f"), [], at_ms=1)
    catalog = world.bench.catalogs.open("local")
    catalog.rename_table("lake.t", "lake.backup")
    before = rows_of(catalog.load_table("lake.backup").scan().to_arrow())
    world.table.commit(world.table.delete({world.paths[0]: [30]}))
    world.bench.sync(full=True)
    for hours in (1, 30, 300):
        world.clock.later_s = hours * HOUR_S
        world.maintainer.run(Event())
    world.check()
    assert rows_of(catalog.load_table("lake.backup").scan().to_arrow()) == before
    done = world.clean_up(scan=True)
    assert done.found == []
    assert done.left["written for a table that was dropped, renamed or moved to another catalog"] > 5


def test_another_table_by_the_same_name_proves_nothing(make: Callable[..., World]) -> None:
    """Somebody renamed ours and made another one: not one of our files is taken for unused."""
    world = make()
    world.delete(3)
    catalog = world.bench.catalogs.open("local")
    catalog.rename_table("lake.t", "lake.backup")
    catalog.create_table("lake.t", ARROW)
    for hours in (1, 100):
        world.clock.later_s = hours * HOUR_S
        assert world.clean_up(scan=True, remove_found=True).removed == []
    assert rows_of(catalog.load_table("lake.backup").scan().to_arrow()) == world.table.live_rows()
    assert world.written(FileStatus.ORPHANED) == {}


def test_a_scan_knows_the_files_of_other_tables(make: Callable[..., World], tmp_path: Path) -> None:
    """Tables that share a folder in spite of all: what belongs to any table of the state is not found."""
    world = make()
    world.delete(2)
    other = HandmadeTable(tmp_path / "delta2")
    other.create()
    location = f"{world.bench.iceberg().location()}/nested"
    bench = Bench(
        tmp_path / "dvsync",
        other.location,
        target="lake.u",
        name="u",
        clock=world.clock,
        table_options={"location": location},
    )
    bench.first_sync_empty(other)
    path = other.write_file([(number, "x", "v") for number in range(9)])
    other.commit([other.add(path, deleted=[1])])
    bench.follower.sync()
    world.clock.later_s = 5 * HOUR_S
    assert world.clean_up(scan=True, remove_found=True).found == []
    assert len(bench.iceberg().scan().to_arrow()) == 8
    bench.close()


def age(folder: Path) -> None:
    """Make every file older than any grace period."""
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))


def test_a_scan_leaves_a_table_below_the_location_alone(make: Callable[..., World]) -> None:
    """Another program's table in a folder below is not looked at: its metadata files have names like ours."""
    world = make()
    world.delete(2)
    catalog = world.bench.catalogs.open("local")
    location = world.bench.iceberg().location()
    catalog.create_table("lake.other", ARROW, location=f"{location}/other").append(ARROW.empty_table())
    age(Path(location.removeprefix("file://")))
    done = world.clean_up(scan=True, remove_found=True)
    assert (done.found, done.removed) == ([], [])
    assert len(catalog.load_table("lake.other").scan().to_arrow()) == 0


def test_a_scan_removes_nothing_where_two_tables_share_a_folder(make: Callable[..., World]) -> None:
    """The table that the configuration named before is still in the catalog, and the new one has its location."""
    world = make()
    world.delete(2)
    location = world.bench.iceberg().location()
    stray = Path(location.removeprefix("file://")) / "data" / "7-000000-deletes.parquet"
    stray.write_bytes(b"x")
    world.bench.close()
    world.bench.target = "lake.moved"
    world.bench.table_options["location"] = location
    world.bench.open()
    world.maintainer = Maintainer(world.bench.context)
    world.bench.follower.sync()
    age(Path(location.removeprefix("file://")))
    before = {path for path in Path(location.removeprefix("file://")).rglob("*")}
    done = world.clean_up(scan=True, remove_found=True)
    assert (done.found, done.removed) == ([], [])
    (reason,) = [reason for reason in done.left if "another Iceberg table has files in this folder" in reason]
    assert ".metadata.json" in reason
    assert {path for path in Path(location.removeprefix("file://")).rglob("*")} == before
    old = world.bench.catalogs.open("local").load_table("lake.t")
    assert rows_of(old.scan().to_arrow()) == world.table.live_rows()


def test_a_scan_beside_a_sync_finds_nothing_new(make: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written after the folders were listed has a row, or is not seen: here a sync comes in between."""
    world = make()
    world.delete(1)
    inner = FileIOStorage.list_below

    def listed(storage: FileIOStorage, directory: str) -> Any:
        world.delete(1, first=20)
        found = list(inner(storage, directory))
        monkeypatch.setattr(FileIOStorage, "list_below", inner)
        world.delete(1, first=21)
        return iter(found)

    monkeypatch.setattr(FileIOStorage, "list_below", listed)
    world.clock.later_s = 100 * HOUR_S
    assert world.clean_up(scan=True, remove_found=True).found == []
    world.check()


def test_a_deletion_vector_that_cannot_be_read_stops_nothing_else(make: Callable[..., World]) -> None:
    """Its data file is left alone from then on; the other one is compacted, snapshots are expired, and it is told."""
    world = make(snapshots_max=2)
    world.delete(4)
    record = world.bench.store.list_tables()[0]
    files = {file.path: file for file in world.bench.store.read_live_files(record.id)}
    bad = files[f"{world.table.location}/{world.paths[0]}"].deletion_vector
    assert bad is not None
    good = [world.table.delete({world.paths[1]: [40]})]
    world.commit(good[0])
    broken = world.table.dv_files[bad.path_or_inline_dv]
    broken.write_bytes(b"\x07" + broken.read_bytes()[1:])
    with pytest.raises(CorruptInput):
        world.maintainer.run(Event())
    assert len(world.bench.iceberg().snapshots()) == 2
    orphans = len(world.written(FileStatus.ORPHANED))
    world.maintainer.run(Event())
    assert len(world.written(FileStatus.ORPHANED)) <= orphans
    serving = world.bench.store.find_delete_files(record.id, [f"{world.table.location}/{world.paths[1]}"])
    assert len(serving) == 1


def test_a_long_sync_is_not_waited_for(make: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread maintains all tables: a table that is busy is left for the next round."""
    world = make(snapshots_max=1)
    world.delete(4)
    monkeypatch.setattr("daemon.sync.context.COMMIT_WAIT_S", 0.05)
    with world.bench.context.committing:
        assert world.compact() == Compaction()
        assert world.maintainer.expire().expired == ()
    assert world.compact().snapshots == 1
    assert world.maintainer.expire().expired


def test_a_round_in_vain_writes_no_more_than_it_waits_for(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a sync is always at work, the first part that has to wait for it in vain is the last one written."""
    world = make()
    world.delete(4)
    monkeypatch.setattr("daemon.sync.context.COMMIT_WAIT_S", 0.05)
    monkeypatch.setattr("daemon.maintenance.compaction.DATA_FILES_AT_ONCE", 1)
    before, inner, written = set(world.folder.rglob("*-deletes.parquet")), Runner.write_delete_files, 0

    def write(runner: Runner, tasks: Any, **options: Any) -> Any:
        nonlocal written
        written += len(tasks)
        return inner(runner, tasks, **options)

    with world.bench.context.committing, monkeypatch.context() as patch:
        patch.setattr(Runner, "write_delete_files", write)
        assert world.compact() == Compaction()
    assert (written, set(world.folder.rglob("*-deletes.parquet"))) == (1, before)
    assert world.compact().snapshots == 2


def test_an_intent_in_the_making_is_left_alone(make: Callable[..., World]) -> None:
    """Pending files are nobody's orphans, however old."""
    world = make()
    store, folder = world.bench.store, world.bench.iceberg().location()
    store.record_intent(Intent(77, table_id(world.bench), None, 1, 1), {})
    store.record_pending(77, {FileKind.MANIFEST: [f"{folder}/metadata/new.avro"]})
    world.clock.later_s = 100 * HOUR_S
    assert world.clean_up(scan=True, remove_found=True).removed == []
    assert f"{folder}/metadata/new.avro" in world.written(FileStatus.PENDING)


def test_a_catalog_that_is_away_is_told(make: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part raises what a sync would, with the table's name, and changes nothing."""
    world = make()
    world.delete(4)

    def away() -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(world.bench.context.target, "open_catalog", away)
    for work in (world.compact, world.maintainer.expire, world.clean_up):
        with pytest.raises(CatalogAway) as raised:
            work()
        assert raised.value.table == "t"


def test_history_ends_where_cleanup_is_turned_off(make: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    """Intents and the rows of files that someone else removes do not grow for ever; the files stay."""
    monkeypatch.setattr(cleanup, "HISTORY_MS", HOUR_S * 1000)
    world = make(snapshots_max=1, steps=["compact", "expire"])
    world.delete(5)
    world.maintainer.run(Event())
    assert len(world.written(FileStatus.ORPHANED)) > 10
    files = set(world.folder.rglob("*.avro"))
    world.clock.later_s = 2 * HOUR_S
    world.delete(1, first=20)
    world.maintainer.run(Event())
    record = world.bench.store.list_tables()[0]
    young_ms = world.clock.now_ms() - HOUR_S * 1000
    assert all(file.since_ms > young_ms for file in world.written(FileStatus.ORPHANED).values())
    with closing(sqlite3.connect(world.bench.state_file)) as database:
        ended = "select count(*) from intents where table_id = ? and status != 'open' and created_at_ms < ?"
        assert database.execute(ended, (record.id, young_ms)).fetchone() == (0,)
    assert files <= set(world.folder.rglob("*.avro"))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_wrong_clock_costs_no_history(make: Callable[..., World], *, restarted: bool) -> None:
    """Years ahead for a round, while it runs or at its start: nothing is expired for its age, and no orphan stays for
    years. After a day the clock is believed.
    """
    world = make(snapshot_age_max="2d")
    world.delete(6)
    world.compact()
    snapshots = len(world.bench.iceberg().snapshots())
    world.clock.ahead_s = 3650 * 24 * HOUR_S
    if restarted:
        world.maintainer = Maintainer(world.bench.context)
    world.maintainer.run(Event())
    assert len(world.bench.iceberg().snapshots()) == snapshots
    world.orphan(world.folder / "dvsync" / "warehouse" / "lake" / "t" / "metadata" / "rest.avro")
    world.bench.store.record_still_used(
        table_id(world.bench), list(world.written(FileStatus.ORPHANED)), at_ms=world.clock.now_ms()
    )
    world.clock.ahead_s = 0.0
    world.delete(1, first=20)
    world.maintainer.run(Event())
    now_ms = world.clock.now_ms()
    assert all(file.since_ms <= now_ms for file in world.written(FileStatus.ORPHANED).values())
    world.clock.later_s = 72 * HOUR_S
    world.maintainer.run(Event())
    assert len(world.bench.iceberg().snapshots()) == 1
    world.check()
