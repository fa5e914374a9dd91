"""Deletions of rows, beside other writers and killed at each step; delta-rs reads what is left."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder
from pyroaring import BitMap64

from daemon.clock import Clock, SystemClock
from daemon.delta.actions import AddFile, Metadata, Protocol
from daemon.delta.checkpoint import OTHER_YEARS
from daemon.delta.log import DeltaLog
from daemon.delta.snapshot import ReplayedState
from daemon.delta_writer import commit as module
from daemon.delta_writer import vectors
from daemon.delta_writer.actions import kept_stats, wide_stats, zones_of
from daemon.delta_writer.commit import Deletion, FoundRows, Wanted, commit_deletion
from daemon.delta_writer.deletion import delete_rows
from daemon.delta_writer.features import FORBIDDING, NOT_CONCERNED, RESPECTED, check_writable
from daemon.delta_writer.finder import PredicateFinder
from daemon.delta_writer.vectors import Tracking
from daemon.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    ConfigInvalid,
    CorruptInput,
    ObjectStoreAway,
    Unsupported,
)
from daemon.store.storage import FileIOStorage
from state.errors import StateUnavailable
from state.records import DeletionVectorDescriptor, VectorFile
from state.sql.store import StateStore
from tests.kit.handmade import HandmadeTable

ICT = {"delta.enableInCommitTimestamps": "true"}


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    return made(tmp_path / "t")


def made(folder: Path, *, partitioned: bool = False) -> HandmadeTable:
    """Five files of 100 rows, ids 0 to 499; rows 0, 1 and 50 are deleted already."""
    table = HandmadeTable(folder, partitioned=partitioned)
    table.create()
    paths = [table.write_file([(100 * file + row, f"p{file}", "v") for row in range(100)]) for file in range(5)]
    table.commit([table.add(path) for path in paths])
    table.commit(table.delete({paths[0]: [0, 1, 50]}), operation="DELETE")
    return table


def ids(folder: Path) -> list[int]:
    """The ids that delta-rs reads."""
    found = QueryBuilder().register("t", DeltaTable(str(folder))).execute("SELECT id FROM t").read_all()
    return sorted(found["id"].to_pylist())


def left(is_deleted: Callable[[int], bool]) -> list[int]:
    return [number for number in range(500) if number not in (0, 1, 50) and not is_deleted(number)]


def actions(folder: Path, version: int, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    return [action[kind] for action in map(json.loads, lines) if kind in action]


def test_rows(table: HandmadeTable) -> None:
    """Some rows of a file get a vector, with those of the older one; a file without a row left is removed."""
    done = delete_rows(str(table.folder), "id BETWEEN 40 AND 120 OR id >= 400")
    assert (done.read_version, done.version, done.deleted_rows) == (2, 3, 180)
    assert (done.files_removed, done.files_marked) == (1, 2)
    assert ids(table.folder) == left(lambda number: 40 <= number <= 120 or number >= 400)
    assert [each["deletionVector"]["cardinality"] for each in actions(table.folder, 3, "add")] == [62, 21]
    (binary,) = {each["deletionVector"]["pathOrInlineDv"] for each in actions(table.folder, 3, "add")}
    assert len(actions(table.folder, 3, "remove")) == 3
    (info,) = actions(table.folder, 3, "commitInfo")
    assert info["operationParameters"] == {"predicate": '["id BETWEEN 40 AND 120 OR id >= 400"]'}
    assert info["operationMetrics"]["numDeletedRows"] == "180"
    # Nothing is left to delete, so nothing is committed.
    again = delete_rows(str(table.folder), "id BETWEEN 40 AND 120 OR id >= 400")
    assert (again.version, again.deleted_rows) == (None, 0)
    assert not table.commit_path(4).exists()
    assert binary


@pytest.mark.parametrize("end", [None, -9, 0], ids=["whole", "cut", "empty"])
def test_compacted_files(table: HandmadeTable, end: int | None) -> None:
    """A damaged one is as good as none. The tag tells which file was read."""
    path = table.folder / "_delta_log" / f"{1:020d}.{2:020d}.compacted.json"
    adds = [{"add": {**add, "tags": {"from": "compacted"}}} for add in table.live.values()]
    text = "".join(json.dumps(each) + "\n" for each in adds)
    path.write_text(text[:end])
    assert delete_rows(str(table.folder), "id = 5").version == 3
    (add,) = actions(table.folder, 3, "add")
    assert add.get("tags") == ({"from": "compacted"} if end is None else None)
    path.unlink()
    assert ids(table.folder) == left(lambda number: number == 5)


def files_in(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_written(table: HandmadeTable) -> None:
    """By a dry run, which tells the same, above the wanted number of rows, and for what is refused."""
    before = files_in(table.folder)
    dry = delete_rows(str(table.folder), "id < 120", dry_run=True, at_most=5)
    assert (dry.version, dry.deleted_rows, dry.files_removed, dry.files_marked) == (None, 117, 1, 1)
    assert dry.bytes_written > 0
    with pytest.raises(ConfigInvalid, match="more than 116 rows would be deleted"):
        delete_rows(str(table.folder), "id < 120", at_most=116)
    with pytest.raises(ConfigInvalid, match="no column key"):
        delete_rows(str(table.folder), "key < 120")
    assert files_in(table.folder) == before
    assert delete_rows(str(table.folder), "id < 120", at_most=117).deleted_rows == 117


def test_above_the_limit_what_was_written_goes(table: HandmadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "FILE_BYTES_MAX", 1)
    before = files_in(table.folder)
    with pytest.raises(ConfigInvalid, match="more than 30 rows"):
        delete_rows(str(table.folder), "id IN (3, 103, 203) OR id > 440", at_most=30)
    assert files_in(table.folder) == before


def test_partitions_are_not_read(tmp_path: Path) -> None:
    """A predicate on partition columns removes whole files; those with a vector say how many rows they have."""
    table = made(tmp_path / "t", partitioned=True)
    (second,) = (path for path in table.live if table.rows[path][0][1] == "p1")
    (table.folder / second).unlink()
    done = delete_rows(str(table.folder), "part IN ('p0', 'p1')")
    assert (done.deleted_rows, done.files_removed, done.files_marked, done.bytes_written) == (197, 2, 0, 0)
    assert ids(table.folder) == list(range(200, 500))


def test_only_files_that_may_have_such_rows_are_read(table: HandmadeTable) -> None:
    """By their statistics."""
    for path in list(table.live):
        if table.rows[path][0][0] != 200:
            (table.folder / path).unlink()
    assert delete_rows(str(table.folder), "id = 250").deleted_rows == 1


def test_vectors_share_files_up_to_a_size(table: HandmadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(table.folder.glob("*.bin"))
    monkeypatch.setattr(vectors, "FILE_BYTES_MAX", 90)
    done = delete_rows(str(table.folder), "id IN (5, 105, 205, 305, 405)")
    written = set(table.folder.glob("*.bin")) - before
    assert len(written) > 1
    assert max(path.stat().st_size for path in written) <= 90
    assert sum(path.stat().st_size for path in written) == done.bytes_written
    assert ids(table.folder) == left(lambda number: number % 100 == 5)


class Others:
    """Puts commits of somebody else before ours: each of `commits`, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *commits: Callable[[], Any]) -> None:
        self.commits = list(commits)
        put = module.put_if_absent

        def delayed(path: str, *arguments: Any) -> bool:
            if self.commits:
                self.commits.pop(0)()
            return put(path, *arguments)

        monkeypatch.setattr(module, "put_if_absent", delayed)


def append(table: HandmadeTable, first: int, rows: int = 10) -> None:
    path = table.write_file([(first + row, "new", "v") for row in range(rows)])
    table.commit([table.add(path)])


def test_an_append_beside_it(table: HandmadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that the predicate cannot mean: the next version is taken, with the same vectors."""
    Others(monkeypatch, lambda: append(table, 1000), lambda: append(table, 2000))
    before = set(table.folder.glob("*.bin"))
    done = delete_rows(str(table.folder), "id < 120")
    assert (done.read_version, done.version, done.deleted_rows) == (2, 5, 117)
    assert len(set(table.folder.glob("*.bin")) - before) == 1
    assert ids(table.folder) == [*left(lambda number: number < 120), *range(1000, 1010), *range(2000, 2010)]


def test_an_append_of_such_rows(table: HandmadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are deleted, too, and the vectors of the first attempt are gone."""
    Others(monkeypatch, lambda: append(table, 115))
    before = set(table.folder.glob("*.bin"))
    done = delete_rows(str(table.folder), "id < 120")
    assert (done.read_version, done.version, done.deleted_rows) == (3, 4, 122)
    assert len(set(table.folder.glob("*.bin")) - before) == 1
    assert ids(table.folder) == sorted([*range(120, 125), *left(lambda number: number < 120)])


def test_a_deletion_in_the_same_file(table: HandmadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """No deleted row comes back, and none is counted twice."""
    first = next(path for path in table.live if table.deleted[path])
    Others(monkeypatch, lambda: table.commit(table.delete({first: [10, 20]}), operation="DELETE"))
    done = delete_rows(str(table.folder), "id IN (20, 30)")
    assert (done.read_version, done.version, done.deleted_rows) == (3, 4, 1)
    assert ids(table.folder) == left(lambda number: number in (10, 20, 30))


def test_a_file_that_is_rewritten(table: HandmadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPTIMIZE moves the rows: they are found at their new positions."""
    first, second = (path for path in table.live if table.rows[path][0][0] in (300, 400))

    def optimize() -> None:
        rows = [*table.rows[first], *table.rows[second]]
        removes = [table.remove(path, data_change=False) for path in (first, second)]
        table.commit([*removes, table.add(table.write_file(rows), data_change=False)], operation="OPTIMIZE")

    Others(monkeypatch, optimize)
    assert delete_rows(str(table.folder), "id IN (310, 410)").read_version == 3
    assert ids(table.folder) == left(lambda number: number in (310, 410))


def test_metadata_that_changes(table: HandmadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is checked anew: here, the table does not allow vectors any more."""
    off = {**table.metadata(), "configuration": {}}
    Others(monkeypatch, lambda: table.commit([{"metaData": off}]))
    before = set(table.folder.glob("*.bin"))
    with pytest.raises(Unsupported, match="does not allow new deletion vectors"):
        delete_rows(str(table.folder), "id < 120")
    assert set(table.folder.glob("*.bin")) == before
    assert len(ids(table.folder)) == 497


def test_writers_without_end(table: HandmadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    others = Others(monkeypatch, *(lambda: append(table, 0),) * 30)
    before = set(table.folder.glob("*.bin"))
    with pytest.raises(CommitConflict, match="10 times in a row"):
        delete_rows(str(table.folder), "id = 5")
    assert len(others.commits) == 20
    assert set(table.folder.glob("*.bin")) == before


def test_many_at_once(table: HandmadeTable) -> None:
    """Each deletes in every file, and nothing is lost."""
    with ThreadPoolExecutor(4) as pool:
        predicates = [f"id IN ({', '.join(str(100 * file + row) for file in range(5))})" for row in range(60, 66)]
        done = [pool.submit(delete_rows, str(table.folder), each) for each in predicates]
        assert sum(each.result().deleted_rows for each in done) == 30
    assert ids(table.folder) == left(lambda number: 60 <= number % 100 < 66)
    assert table.commit_path(8).exists() and not table.commit_path(9).exists()


def killed_at(call: int, *, after: bool, folder: Path) -> None:
    """Delete in another process, which ends at the given write, before or after it."""
    child = os.fork()
    if child == 0:
        calls = iter(range(100))

        def put(*arguments: Any) -> bool:
            is_it = next(calls) == call
            if is_it and not after:
                os._exit(9)
            done = put_if_absent(*arguments)
            if is_it:
                os._exit(9)
            return done

        put_if_absent = module.put_if_absent
        module.put_if_absent = vectors.put_if_absent = put  # type: ignore[assignment]
        vectors.FILE_BYTES_MAX = 1  # type: ignore[misc]
        delete_rows(str(folder), "id IN (5, 105)")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize("after", [False, True])
def test_killed(table: HandmadeTable, call: int, after: bool) -> None:
    """The commit is there, whole, or not at all; then the same deletion does what is left to do."""
    killed_at(call, after=after, folder=table.folder)
    is_done = call == 2 and after
    assert ids(table.folder) == left(lambda number: is_done and number in (5, 105))
    assert delete_rows(str(table.folder), "id IN (5, 105)").deleted_rows == (0 if is_done else 2)
    assert ids(table.folder) == left(lambda number: number in (5, 105))
    named = {path.name for path in table.folder.iterdir() if path.suffix not in (".parquet", ".bin")}
    assert named == {"_delta_log"}, "what is left is named as VACUUM removes it"


def test_in_commit_timestamps(table: HandmadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger than those of all versions before, also of one that comes in between; first in the commit."""
    future_ms = SystemClock().now_ms() + 3_600_000
    table.commit_info = lambda: {"inCommitTimestamp": future_ms + table.version}  # type: ignore[method-assign]
    protocol = table.protocol(["deletionVectors"])
    protocol["writerFeatures"] = ["deletionVectors", "inCommitTimestamp"]
    configuration = {**table.metadata()["configuration"], **ICT}
    table.commit([{"protocol": protocol}, {"metaData": {**table.metadata(), "configuration": configuration}}])
    delete_rows(str(table.folder), "id = 5")
    table.version += 1
    assert next(iter(actions(table.folder, 4, "commitInfo")[0].items())) == ("inCommitTimestamp", future_ms + 4)
    Others(monkeypatch, lambda: append(table, 1000))
    assert delete_rows(str(table.folder), "id = 105").version == 6
    assert [actions(table.folder, each, "commitInfo")[0]["inCommitTimestamp"] - future_ms for each in (5, 6)] == [5, 6]


class Fixed:
    """Rows that are known already, as those of a delete file are."""

    def __init__(self, positions: dict[str, set[int]], record_count: int = 100) -> None:
        self.positions, self.record_count = positions, record_count

    def find(self, state: ReplayedState) -> list[FoundRows]:
        adds = {add.path.rpartition("/")[2]: add for add in state.read_adds()}
        return [FoundRows(adds[path], self.record_count, BitMap64(each)) for path, each in self.positions.items()]

    def depends_on(self, path: str, add: AddFile | None) -> bool:
        return path.rpartition("/")[2] in self.positions


def commit(table: HandmadeTable, finder: Fixed) -> Deletion:
    log = DeltaLog(FileIOStorage(), table.location, SystemClock())
    return commit_deletion(log, SystemClock(), finder, Wanted({"predicate": "[]"}, by="somebody"))


def test_given_positions(table: HandmadeTable) -> None:
    first, second = list(table.live)[-2:]
    done = commit(table, Fixed({first: {0, 1}, second: {99}}))
    assert done.deleted_rows == 3
    firsts = [table.rows[path][0][0] for path in (first, second)]
    assert ids(table.folder) == left(lambda number: number in (firsts[0], firsts[0] + 1, firsts[1] + 99))
    assert actions(table.folder, 3, "commitInfo")[0]["userName"] == "somebody"
    (marked,) = (path for path in table.live if table.deleted[path])
    assert commit(table, Fixed({marked: set()})).version is None, "no row is back"
    with pytest.raises(CorruptInput, match="beyond the 100 rows"):
        commit(table, Fixed({first: {100}}))


def test_a_store_that_does_not_say(table: HandmadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the commit is there, it counts; if none can be read, its vectors stay, for it may still come."""
    put = module.put_if_absent
    unknown = CommitOutcomeUnknown("the store did not say", hint="")

    def landed(*arguments: Any) -> bool:
        assert put(*arguments)
        raise unknown

    def lost(*_: Any) -> bool:
        raise unknown

    monkeypatch.setattr(module, "put_if_absent", landed)
    assert delete_rows(str(table.folder), "id = 5").version == 3
    monkeypatch.setattr(module, "put_if_absent", lost)
    before = set(table.folder.glob("*.bin"))
    with pytest.raises(CommitOutcomeUnknown, match="the store did not say"):
        delete_rows(str(table.folder), "id = 6")
    assert len(set(table.folder.glob("*.bin")) - before) == 1


class Recorded:
    """A state store that has the names of files, and what was there when it got them."""

    def __init__(self, table: HandmadeTable) -> None:
        self.folder, self.store = table.folder, StateStore.open("sqlite://")
        self.table_id = self.store.open_table("t", table.location, "db.t").id
        self.calls: list[int] = []
        inner = self.store.record_vectors

        def record(table_id: int, files: Sequence[VectorFile]) -> None:
            self.calls.append(len(files))
            assert not any(Path(file.path.removeprefix("file://")).exists() for file in files), "before they exist"
            inner(table_id, files)

        self.store.record_vectors = record  # type: ignore[method-assign]

    def delete(self, predicate: str, clock: Clock | None = None) -> Deletion:
        log = DeltaLog(FileIOStorage(), f"file://{self.folder}", SystemClock())
        finder = PredicateFinder(predicate, log.storage, time_zone="UTC", engine="local", open_spark=None)
        return commit_deletion(log, clock or SystemClock(), finder, Wanted({}), Tracking(self.store, self.table_id))

    def names(self) -> set[str]:
        return {file.path for file in self.store.list_vectors(self.table_id)}


@pytest.fixture
def recorded(table: HandmadeTable) -> Iterator[Recorded]:
    found = Recorded(table)
    yield found
    found.store.close()


def test_names_are_recorded_first(table: HandmadeTable, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one transaction, with the version that was read; whoever calls forgets them."""
    monkeypatch.setattr(vectors, "FILE_BYTES_MAX", 1)
    before = {f"file://{path}" for path in table.folder.glob("*.bin")}
    done = recorded.delete("id IN (5, 105)")
    assert recorded.calls == [2]
    assert {file.read_version for file in recorded.store.list_vectors(recorded.table_id)} == {2}
    assert recorded.names() == {*done.vector_files}
    assert recorded.names() == {f"file://{path}" for path in table.folder.glob("*.bin")} - before
    assert recorded.delete("id < 0").vector_files == ()


def test_what_is_discarded_is_forgotten(
    table: HandmadeTable, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt has other names; not what a store has perhaps, or could not remove."""
    Others(monkeypatch, lambda: append(table, 115))
    done = recorded.delete("id < 120")
    assert (done.read_version, recorded.names(), recorded.calls) == (3, {*done.vector_files}, [1, 1])
    known, before = recorded.names(), set(table.folder.glob("*.bin"))

    def unknown(path: str, *_: Any) -> bool:
        raise CommitOutcomeUnknown("the store did not say", path=path, hint="")

    with monkeypatch.context() as patch:
        patch.setattr(vectors, "put_if_absent", unknown)
        with pytest.raises(ObjectStoreAway):
            recorded.delete("id = 130")
    (late,) = recorded.names() - known
    assert set(table.folder.glob("*.bin")) == before, late
    with monkeypatch.context() as patch:
        patch.setattr(module, "put_if_absent", unknown)
        with pytest.raises(CommitOutcomeUnknown):
            recorded.delete("id = 130")
    (kept,) = {f"file://{path}" for path in set(table.folder.glob("*.bin")) - before}
    assert recorded.names() == {*known, late, kept}


@pytest.mark.parametrize("statement", ["INSERT", "DELETE"])
def test_a_state_store_without_space(
    table: HandmadeTable, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """No file is written without its name; one that is discarded is not forgotten, and nothing else happens."""
    before = set(table.folder.glob("*.bin"))
    with recorded.store._database.write() as connection:
        connection.exec_driver_sql(
            f"CREATE TRIGGER full BEFORE {statement} ON vector_files BEGIN SELECT RAISE(ABORT, 'no space'); END"
        )
    if statement == "INSERT":
        with pytest.raises(StateUnavailable, match="no space"):
            recorded.delete("id = 5")
        assert (set(table.folder.glob("*.bin")), recorded.names()) == (before, set())
        return
    Others(monkeypatch, lambda: append(table, 115))
    done = recorded.delete("id < 120")
    assert (done.version, recorded.calls, len(recorded.names())) == (4, [1, 1], 2)
    assert {f"file://{path}" for path in set(table.folder.glob("*.bin")) - before} == {*done.vector_files}


@pytest.mark.parametrize("kind", ["now_ms", "monotonic_s"])
def test_what_is_too_old_is_written_anew(
    table: HandmadeTable, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """By either clock: cleanup may remove it by then."""
    clock = SystemClock()
    real, unit = getattr(clock, kind), 1000 if kind == "now_ms" else 1
    monkeypatch.setattr(clock, kind, lambda: real() + unit * (1801 if waited else 0))
    waited: list[bool] = []
    put = vectors.put_if_absent

    def slow(*arguments: Any) -> bool:
        done = put(*arguments)
        if not waited:
            waited.append(True)
        return done

    before = set(table.folder.glob("*.bin"))
    monkeypatch.setattr(vectors, "put_if_absent", slow)
    done = recorded.delete("id = 5", clock)
    assert (done.version, recorded.calls, recorded.names()) == (3, [1, 1], {*done.vector_files})
    assert len(set(table.folder.glob("*.bin")) - before) == 1


def test_a_full_disk(table: HandmadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written goes."""

    def full(path: str, *_: Any) -> bool:
        raise ObjectStoreAway("no space left on device", path=path, hint="")

    monkeypatch.setattr(module, "put_if_absent", full)
    before = files_in(table.folder)
    with pytest.raises(ObjectStoreAway):
        delete_rows(str(table.folder), "id = 6")
    assert files_in(table.folder) == before


def test_files_without_row_ids(table: HandmadeTable) -> None:
    """The table would need a new high water mark, which Delta gives it."""
    protocol = table.protocol(["deletionVectors"])
    protocol["writerFeatures"] = ["deletionVectors", "domainMetadata", "rowTracking"]
    table.commit([{"protocol": protocol}])
    with pytest.raises(Unsupported, match="has no row ids yet"):
        delete_rows(str(table.folder), "id = 5")


def test_what_an_add_has_stays(table: HandmadeTable) -> None:
    """As the log spells the path, and in the form of Delta."""
    path = table.write_file([(number, "p", "v") for number in (1000, 1001)], name="a b")
    more = {
        "tags": {"k": "v", "n": None},
        "baseRowId": 7,
        "defaultRowCommitVersion": 2,
        "clusteringProvider": "liquid",
        "modificationTime": 5,
    }
    added = {**table.add(path)["add"], **more, "path": "./a%20b.parquet"}
    table.commit([{"add": added}])
    delete_rows(str(table.folder), "id = 1000")
    (add,), (remove,) = (actions(table.folder, 4, kind) for kind in ("add", "remove"))
    vector, stats = add.pop("deletionVector"), json.loads(add.pop("stats"))
    assert vector["cardinality"] == 1
    assert stats == {**json.loads(added["stats"]), "tightBounds": False}
    assert add == {name: value for name, value in added.items() if name != "stats"}
    kept = {name: added[name] for name in ("path", "partitionValues", "size", "tags", "baseRowId")}
    assert remove.pop("deletionTimestamp") > 0
    kept |= {"defaultRowCommitVersion": 2, "dataChange": True, "extendedFileMetadata": True}
    assert remove == {**kept, "stats": '{"numRecords":2}'}


@pytest.mark.parametrize(
    ("stats", "cardinality", "expected"),
    [
        (None, 0, {"numRecords": 10, "tightBounds": False}),
        ("no JSON", 0, {"numRecords": 10, "tightBounds": False}),
        # Of another number of rows: some writers count live ones.
        ('{"numRecords": 8, "minValues": {"a": 1}}', 2, {"numRecords": 10, "tightBounds": False}),
        # All live rows are null: with wide bounds, all rows.
        (
            '{"numRecords": 10, "nullCount": {"a": 8, "b": 0, "c": {"d": 3}}, "tightBounds": true}',
            2,
            {"numRecords": 10, "nullCount": {"a": 10, "b": 0, "c": {"d": 3}}, "tightBounds": False},
        ),
        (
            '{"numRecords": 10, "nullCount": {"a": 8}, "tightBounds": false}',
            2,
            {"numRecords": 10, "nullCount": {"a": 8}, "tightBounds": False},
        ),
    ],
)
def test_statistics(stats: str | None, cardinality: int, expected: dict[str, Any]) -> None:
    vector = DeletionVectorDescriptor("u", "x" * 20, 1, cardinality, 1) if cardinality else None
    add = AddFile("f", True, vector, partition_values={}, size=1, stats=stats)
    assert json.loads(wide_stats(add, 10, {}, kept_stats(add, 10))) == expected


def test_statistics_keep_their_numbers() -> None:
    """To the last digit."""
    stats = '{"numRecords":10,"minValues":{"m":12345678901234567890.123456789012345678,"x":1.50}}'
    add = AddFile("f", True, partition_values={}, size=1, stats=stats)
    assert wide_stats(add, 10, {}, kept_stats(add, 10)) == stats[:-1] + ',"tightBounds":false}'


def test_statistics_of_a_checkpoint() -> None:
    """Timestamps get the form of commits: without a zone, Spark would read them in its own."""
    fields = [
        {"name": "a", "type": "timestamp", "nullable": True, "metadata": {}},
        {"name": "b", "type": {"type": "struct", "fields": [{"name": "c", "type": "timestamp_ntz"}]}},
        {"name": "d", "type": "string"},
    ]
    zones = zones_of(Metadata("id", json.dumps({"type": "struct", "fields": fields}), [], {}))
    before = {"a": "2020-01-13 12:00:00.123999", "b": {"c": "2020-01-13 12:00:00"}, "d": "2020-01-13 12:00:00"}
    after = {"a": "2020-01-13T12:00:00.123Z", "b": {"c": "2020-01-13T12:00:00.000"}, "d": "2020-01-13 12:00:00"}
    stats = {"numRecords": 10, "minValues": before, "maxValues": {**before, "a": OTHER_YEARS}}
    add = AddFile("f", True, partition_values={}, size=1, stats=json.dumps(stats))
    found = json.loads(wide_stats(add, 10, zones, kept_stats(add, 10)))
    assert found["minValues"] == after
    assert found["maxValues"] == {name: value for name, value in after.items() if name != "a"}


BASE = ["deletionVectors"]


def protocol(readers: Sequence[str], writers: Sequence[str]) -> Protocol:
    return Protocol(3, 7, [*BASE, *readers], [*BASE, *readers, *writers])


def metadata(**configuration: str) -> Metadata:
    schema = json.dumps({"type": "struct", "fields": []})
    told = {name.replace("_", "."): value for name, value in configuration.items()}
    return Metadata("id", schema, [], {"delta.enableDeletionVectors": "true", **told})


# Of the features of Delta 4.4, those for readers.
OF_READERS = {"columnMapping", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint"}
OF_READERS |= {"vacuumProtocolCheck"}


@pytest.mark.parametrize("name", sorted((NOT_CONCERNED | RESPECTED) - set(BASE)))
def test_features_that_are_known(name: str) -> None:
    """Each that dvsync lets pass, with those that it requires."""
    needed = ["domainMetadata", "rowTracking"]
    listed = ([name], []) if name in OF_READERS else ([], [name])
    check_writable(protocol(["columnMapping", *listed[0]], [*needed, *listed[1]]), metadata())


@pytest.mark.parametrize(
    ("readers", "writers", "message"),
    [
        ([], ["unknownFeature"], "does not write tables with the feature unknownFeature"),
        ([], ["redirectWriterOnly-preview"], "redirectWriterOnly-preview"),
        (["catalogManaged", "vacuumProtocolCheck"], ["inCommitTimestamp"], "catalogManaged"),
        (["variantType"], [], "does not write tables with the feature variantType"),
    ],
)
def test_features_that_are_refused(readers: list[str], writers: list[str], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        check_writable(protocol(readers, writers), metadata())


@pytest.mark.parametrize("name", FORBIDDING)
def test_properties_that_forbid_it(name: str) -> None:
    listed = ["appendOnly", "domainMetadata", "rowTracking", "icebergCompatV1", "icebergCompatV2", "icebergCompatV3"]
    found = protocol(["columnMapping"], listed)
    check_writable(found, metadata(**{name: "false"}) if "Formats" not in name else metadata())
    with pytest.raises(Unsupported, match=name):
        check_writable(found, metadata(**{name: "true"}))


@pytest.mark.parametrize(
    ("found", "configuration"),
    [(protocol([], []), {"delta_enableDeletionVectors": "false"}), (Protocol(3, 7, [], []), {}), (Protocol(1, 2), {})],
)
def test_tables_without_vectors(found: Protocol, configuration: dict[str, str]) -> None:
    """Refused with the statement that allows them."""
    allowed = metadata(**configuration)
    if "deletionVectors" not in (found.writer_features or ()):
        allowed = Metadata("id", allowed.schema_string, [], {})
    with pytest.raises(Unsupported, match="does not allow new deletion vectors") as refused:
        check_writable(found, allowed)
    assert "ALTER TABLE … SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')" in refused.value.hint
