"""Files of deletion vectors that a crash left in the Delta table: which of them cleanup removes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from daemon.clock import SystemClock
from daemon.config.settings import MaintenanceSettings
from daemon.delta.log import DeltaLog
from daemon.delta_writer import commit
from daemon.delta_writer.finder import PredicateFinder
from daemon.delta_writer.vectors import Tracking
from daemon.errors import ObjectStoreAway
from daemon.maintenance.maintainer import Maintainer
from daemon.store.locations import FileMeta
from daemon.store.storage import FileIOStorage
from daemon.sync.verbs import known_or_new
from state import FileKind, VectorFile
from tests.kit.broken_logs import checkpoint
from tests.kit.checks import rows_of, table_id
from tests.kit.handmade import Bench, HandmadeTable, new_uuid
from tests.unit.maintenance.test_maintenance import HOUR_S, LaterClock

IN_GRACE = "its grace period is not over"
UNTOLD = "Delta's log does not tell whether a commit names it, so VACUUM must remove it"


class World:
    """A Delta table of a file with 20 rows, at version 1, which is followed."""

    def __init__(self, folder: Path, *, is_synced: bool = True, **maintenance: Any) -> None:
        self.table = HandmadeTable(folder / "delta")
        self.table.create()
        self.path = self.table.write_file([(row, "x", "v") for row in range(20)])
        self.table.commit([self.table.add(self.path)])
        self.clock = LaterClock()
        options = {"maintenance": MaintenanceSettings(**{"orphan_grace": "1d", **maintenance})}
        self.bench = Bench(folder / "dvsync", self.table.location, clock=self.clock, table_options=options)
        known_or_new(self.bench.store, self.bench.settings)
        if is_synced:
            self.bench.sync()

    def left(self, *, read_version: int, path: Path | None = None) -> Path:
        """A file that is recorded now, as it would be after that version was read, and that no commit names."""
        path = path or self.table.folder / f"deletion_vector_{new_uuid()}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"rest")
        self.record(f"file://{path}", read_version)
        return path

    def record(self, path: str, read_version: int) -> None:
        self.bench.store.record_vectors(table_id(self.bench), [VectorFile(path, read_version, self.clock.now_ms())])

    def named(self, actions: list[dict[str, Any]], operation: str = "DELETE") -> Path:
        """The newest file of vectors, which a commit of these actions names; it is recorded, as after a kill."""
        self.table.commit(actions, operation=operation)
        path = list(self.table.dv_files.values())[-1]
        self.record(f"file://{path}", self.table.version - 1)
        return path

    def clean_up(self, **options: bool) -> Any:
        return Maintainer(self.bench.context).clean_up(Event(), **options)

    def recorded(self) -> list[str]:
        return [file.path.removeprefix("file://") for file in self.bench.store.list_vectors(table_id(self.bench))]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_no_commit_names_is_removed(world: World) -> None:
    """After the grace period; what a commit names stays, also if a later one has taken it back, by all names."""
    first = world.left(read_version=1)
    taken_back = world.named(world.table.delete({world.path: [1, 2]}))
    absolute = world.named(world.table.delete({world.path: [3]}, storage="p"))
    world.table.commit(world.table.delete({world.path: [4]}, storage="i"))
    last = world.left(read_version=world.table.version)
    world.bench.sync()
    world.clock.later_s = 23 * HOUR_S
    young = world.clean_up()
    assert (young.removed, young.left[IN_GRACE], len(world.recorded())) == ([], 4, 4)
    world.clock.later_s = 25 * HOUR_S
    dry = world.clean_up(dry_run=True)
    assert {(file.path, file.kind) for file in dry.removed} == {
        (f"file://{path}", FileKind.VECTORS) for path in (first, last)
    }
    assert first.exists() and last.exists() and len(world.recorded()) == 4
    done = Maintainer(world.bench.context).run(Event()).cleanup
    assert {file.path for file in done.removed} == {f"file://{path}" for path in (first, last)}
    assert (first.exists(), last.exists(), taken_back.exists(), absolute.exists()) == (False, False, True, True)
    assert (world.recorded(), done.failed) == ([], [])
    assert rows_of(world.bench.iceberg().scan().to_arrow()) == world.table.live_rows()


def test_a_short_grace_period(tmp_path: Path) -> None:
    """However short it is, a commit that was sent may still come for a while."""
    world = World(tmp_path, orphan_grace="1m")
    path = world.left(read_version=1)
    world.clock.later_s = 0.9 * HOUR_S
    assert world.clean_up().left == {IN_GRACE: 1}
    world.clock.later_s = 1.1 * HOUR_S
    world.clean_up()
    assert not path.exists()


def test_a_quiet_table(world: World) -> None:
    """A round without news finds what is due."""
    maintainer = Maintainer(world.bench.context)
    path = world.left(read_version=1)
    for hours, is_there in ((0, True), (25, False)):
        world.clock.later_s = hours * HOUR_S
        maintainer.run(Event())
        assert path.exists() == is_there


@pytest.mark.parametrize("is_synced", [True, False])
def test_without_an_iceberg_table(tmp_path: Path, is_synced: bool) -> None:
    """It was dropped, or there was no sync yet."""
    world = World(tmp_path, is_synced=is_synced)
    if is_synced:
        world.bench.catalogs.open("local").drop_table("lake.t")
    path = world.left(read_version=1)
    world.clock.later_s = 25 * HOUR_S
    Maintainer(world.bench.context).run(Event())
    assert (path.exists(), world.recorded()) == (False, [])


def test_a_commit_that_comes_after_cleanup(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was suspended at that moment, or its machine has another time: what it names is there again."""
    put = commit.put_if_absent

    def late(*arguments: Any) -> bool:
        world.clock.later_s = 25 * HOUR_S
        assert len(world.clean_up().removed) == 1
        return put(*arguments)

    monkeypatch.setattr(commit, "put_if_absent", late)
    log = DeltaLog(FileIOStorage(), world.table.location, SystemClock())
    finder = PredicateFinder("id < 2", log.storage, time_zone="UTC", engine="local", open_spark=None)
    tracking = Tracking(world.bench.store, table_id(world.bench))
    done = commit.commit_deletion(log, SystemClock(), finder, commit.Wanted({}), tracking)
    assert (done.version, done.deleted_rows) == (2, 2)
    world.bench.sync()
    assert [row[0] for row in rows_of(world.bench.iceberg().scan().to_arrow())] == list(range(2, 20))


def lose_commit(table: HandmadeTable) -> None:
    table.commit_path(2).unlink()


def cut_commit(table: HandmadeTable) -> None:
    table.commit_path(2).write_text('{"add":\n{}\n')


def have_other_vectors(table: HandmadeTable) -> None:
    vector = {"storageType": "x", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    file = {"path": "f", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
    table.commit_path(2).write_text(json.dumps({"add": {**file, "deletionVector": vector}}))


def be_put_back(table: HandmadeTable) -> None:
    for version in (2, 3):
        table.commit_path(version).unlink()
    table.commit_path(1).unlink()


@pytest.mark.parametrize("happened", [lose_commit, cut_commit, have_other_vectors, be_put_back])
def test_a_log_that_does_not_tell(world: World, happened: Callable[[HandmadeTable], None]) -> None:
    """The file stays, for a commit that is gone may have named it; it is not looked for again."""
    path = world.left(read_version=1)
    for _ in range(2):
        world.table.commit([world.table.add(world.table.write_file([(100, "x", "v")]))])
    happened(world.table)
    world.clock.later_s = 25 * HOUR_S
    done = world.clean_up()
    assert (done.removed, done.left) == ([], {UNTOLD: 1})
    assert (path.exists(), world.recorded()) == (True, [])


def test_an_old_listing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that it omits is asked for."""
    path, newest = world.named(world.table.delete({world.path: [1]})), world.table.commit_path(2).name
    list_from = FileIOStorage.list_from

    def old(storage: FileIOStorage, directory: str, after: str) -> Iterator[FileMeta]:
        return (file for file in list_from(storage, directory, after) if file.name != newest)

    monkeypatch.setattr(FileIOStorage, "list_from", old)
    world.clock.later_s = 25 * HOUR_S
    assert world.clean_up().removed == []
    assert (path.exists(), world.recorded()) == (True, [])


def test_a_log_that_was_cleaned_up(world: World) -> None:
    """The checkpoint has the adds only, not what came and went: what was read before it stays."""
    before = world.left(read_version=1)
    checkpoint((), world.table)
    after = world.left(read_version=world.table.version)
    world.table.commit(world.table.delete({world.path: [5]}))
    world.clock.later_s = 25 * HOUR_S
    assert world.clean_up().left == {UNTOLD: 1}
    assert (before.exists(), after.exists(), world.recorded()) == (True, False, [])


def test_only_files_of_ours_in_the_tables_folder(world: World, tmp_path: Path) -> None:
    """Not beside it, not in a folder below, not by another name, and not on the way out of it."""
    folder = world.table.folder
    name = f"deletion_vector_{new_uuid()}.bin"
    theirs = [tmp_path / name, folder / "ab" / name, folder / world.path, folder / f"{name}.parquet"]
    for path in theirs:
        world.left(read_version=1, path=path)
    world.record(f"file://{folder}/../{name}", 1)
    world.clock.later_s = 25 * HOUR_S
    done = world.clean_up()
    assert (done.removed, done.left) == ([], {"it lies outside of the table's own folders": 5})
    assert all(path.exists() for path in theirs)


def test_a_table_or_store_that_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and tried again."""
    path = world.left(read_version=1)
    world.clock.later_s = 25 * HOUR_S
    moved = world.table.folder.rename(world.table.folder.with_name("moved"))
    (failed,) = world.clean_up().failed
    assert "the Delta log is gone" in failed
    shutil.move(moved, world.table.folder)

    def away(_: FileIOStorage, path: str) -> None:
        raise ObjectStoreAway("no answer", path=path, hint="")

    with monkeypatch.context() as patch:
        patch.setattr(FileIOStorage, "delete", away)
        assert "no answer" in world.clean_up().failed[0]
    assert (path.exists(), len(world.recorded())) == (True, 1)
    world.clean_up()
    assert (path.exists(), world.recorded()) == (False, [])


def test_without_the_step(tmp_path: Path) -> None:
    """Files stay, and are forgotten after a week."""
    world = World(tmp_path, steps=["expire"])
    path = world.left(read_version=1)
    world.clock.later_s = 8 * 24 * HOUR_S
    Maintainer(world.bench.context).run(Event())
    assert (path.exists(), world.recorded()) == (True, [])
