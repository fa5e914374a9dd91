"""The plan of one snapshot of format version 3, and many of them against a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pyiceberg.manifest import FileFormat
from pyiceberg.table.snapshots import Operation

from daemon.delta.replay import TableChange
from daemon.errors import ReplacementNeeded
from daemon.iceberg.manifests import content_span, entry_key, referenced_data_file
from daemon.iceberg.puffin import Blob, PuffinFile
from daemon.translate import planner
from daemon.translate.delete_files import UNKNOWN_DV, DeleteFileResult, DeleteFileTask, delete_file_record
from daemon.translate.plan import CommitPlan, SyncPlan
from daemon.translate.planner import DeletionVectors, copies
from state import DeleteFileRecord, DeletionVectorDescriptor, DvMapping, LiveFile, OrphanReason
from tests.kit.examples import examples
from tests.unit.translate.test_planner import ROWS, add, change, dv, live_file, metrics_of, table_schema

TABLE = table_schema()


def puffin(path: str, *data_files: str, dead: Sequence[str] = ()) -> DeleteFileRecord:
    mappings = tuple(DvMapping(data_file, "u1@1", 2) for data_file in data_files)
    return DeleteFileRecord(f"{path}.puffin", 50, 2 * len(mappings), 0, "m9", mappings, tuple(dead))


def kernel(tasks: Iterable[DeleteFileTask], restored: Iterable[str] = ()) -> list[DeleteFileResult]:
    """What the kernel would give for these tasks. Only a known vector can be found to be restored."""
    results = []
    for task in tasks:
        vectors = [each for each in task.changes if each.after.cardinality]
        blobs = [Blob(each.data_file, 4 + 40 * n, 40, each.after.cardinality) for n, each in enumerate(vectors)]
        back = tuple(each.data_file for each in task.changes if each.before and each.data_file in set(restored))
        results.append(DeleteFileResult(PuffinFile(task.output_path, 500, tuple(blobs)) if blobs else None, back))
    return results


def new_names() -> Iterator[str]:
    return (f"new{number}.puffin" for number in count())


@dataclass
class Plan:
    """A whole plan: `live` are the live files, `files` the live delete files."""

    live: Iterable[LiveFile] = ()
    files: Sequence[DeleteFileRecord] = ()
    names: Iterator[str] = field(default_factory=new_names)

    def complete(self, what: TableChange, restored: Iterable[str] = ()) -> CommitPlan:
        live = {file.path: file for file in self.live}
        metrics = {path: metrics_of(each, TABLE, ROWS) for path, each in {**what.dv_changed, **what.added}.items()}
        touched = {path: file for path, file in live.items() if path in {*what.removed, *what.dv_changed}}
        plan, deletes = SyncPlan(what, touched, TABLE, metrics), DeletionVectors()
        tasks = deletes.tasks(plan.dv_changes(), self.names)
        plan = dataclasses.replace(plan, tasks=tasks, results=kernel(tasks, restored))
        leaving, returning = deletes.leaving(plan), deletes.returning(what)
        plan = dataclasses.replace(
            plan,
            older=[
                file
                for file in self.files
                if not (file.served.isdisjoint(leaving) and set(file.dead).isdisjoint(returning))
            ],
        )
        repair = deletes.repair(plan, {path: live[path] for path in deletes.to_copy(plan)}, self.names)
        copied = list(zip(repair.copies, kernel(repair.copies), strict=True))
        return deletes.complete(plan, snapshot_id=1, copied=copied)


def entries(done: CommitPlan) -> dict[str, str]:
    """The data file and the Puffin file of each vector that the plan adds."""
    return {referenced_data_file(each) or "": each.file_path for each in done.delta.added_delete_files}


def test_a_first_vector_of_a_file() -> None:
    done = Plan([live_file("a")]).complete(change(dv_changed=[add("a", dv("1", 3))]))
    (entry,) = done.delta.added_delete_files
    assert (entry.file_format, entry.record_count, content_span(entry)) == (FileFormat.PUFFIN, 3, (4, 40))
    assert entry_key(entry) == ("new0.puffin", "a")
    assert (done.delta.removed_delete_files, done.dead_vectors, done.new_positions) == ({}, (), 3)
    assert done.delta.operation is Operation.DELETE


def test_a_grown_vector_leaves_a_dead_blob_behind() -> None:
    plan = Plan([live_file("a", dv("1")), live_file("b", dv("2"))], [puffin("p", "a", "b")])
    done = plan.complete(change(dv_changed=[add("a", dv("3", 5))]))
    assert entries(done) == {"a": "new0.puffin"}
    assert done.delta.removed_delete_files == {"m9": {("p.puffin", "a")}}
    assert (done.dead_vectors, done.removed_delete_files, done.new_positions) == ((("p.puffin", "a"),), {}, 3)


def test_a_grown_vector_alone_in_its_file_replaces_it() -> None:
    plan = Plan([live_file("a", dv("1"))], [puffin("p", "a")])
    done = plan.complete(change(dv_changed=[add("a", dv("3", 5))]))
    assert (done.removed_delete_files, done.dead_vectors) == ({"p.puffin": OrphanReason.DV_REPLACED}, ())


def test_a_removed_file_takes_its_vector_along() -> None:
    live = [live_file("a", dv("1")), live_file("b", dv("2"))]
    done = Plan(live, [puffin("p", "a", "b")]).complete(change(removed=["a"]))
    assert done.delta.removed_data_files == {"m1": {"a"}} and entries(done) == {}
    assert (done.delta.removed_delete_files, done.dead_vectors) == ({"m9": {("p.puffin", "a")}}, (("p.puffin", "a"),))
    both = Plan(live, [puffin("p", "a", "b")]).complete(change(removed=["a", "b"]))
    assert both.removed_delete_files == {"p.puffin": OrphanReason.DATA_FILES_GONE} and both.dead_vectors == ()


def test_restored_rows_replace_every_file_with_a_blob_of_theirs() -> None:
    """b's vector is copied, and so is c's, whose file has a dead blob of a."""
    live = [live_file("a", dv("1")), live_file("b", dv("2")), live_file("c", dv("3"))]
    plan = Plan(live, [puffin("p", "a", "b"), puffin("q", "c", dead=["a"])])
    done = plan.complete(change(dv_changed=[add("a", dv("4", 1))]), restored=["a"])
    assert entries(done) == {"a": "new0.puffin", "b": "new1.puffin", "c": "new1.puffin"}
    assert done.delta.removed_delete_files == {"m9": {("p.puffin", "a"), ("p.puffin", "b"), ("q.puffin", "c")}}
    assert set(done.removed_delete_files) == {"p.puffin", "q.puffin"} and done.dead_vectors == ()
    assert done.delta.removed_data_files == {} and done.delta.added_data_files == []
    ((manifest, renewed),) = done.delta.renewed_data_files.items()
    assert (manifest, list(renewed), renewed["a"].record_count) == ("m1", ["a"], ROWS)
    assert done.delta.operation is Operation.OVERWRITE


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(change(dv_changed=[add("a")]), id="its vector is gone"),
        pytest.param(change(removed=["a"], added=[add("a")]), id="another file of its name"),
        pytest.param(change(dv_changed=[add("a", dv("9", 1))]), id="its older vector is unknown"),
    ],
)
def test_what_cannot_be_compared_counts_as_restored(what: TableChange) -> None:
    live = [live_file("a", UNKNOWN_DV), live_file("b", dv("2"))]
    done = Plan(live, [puffin("p", "a", "b")]).complete(what)
    assert "b" in entries(done) and set(done.removed_delete_files) == {"p.puffin"}


def test_a_file_that_comes_back_replaces_those_with_its_dead_blob() -> None:
    plan = Plan([live_file("b", dv("2"))], [puffin("p", "b", dead=["a"]), puffin("q", "c", dead=["d"])])
    done = plan.complete(change(added=[add("a", dv("5", 1))]))
    assert entries(done) == {"a": "new0.puffin", "b": "new1.puffin"}
    assert set(done.removed_delete_files) == {"p.puffin"}


def test_position_deletes_from_version_2_go_as_a_whole() -> None:
    """a and b share a position-delete file, and a has another: the vector of b is copied, and both files leave."""
    shared = replace(puffin("x", "a", "b"), path="x.parquet")
    own = replace(puffin("y", "a"), path="y.parquet", manifest_path="m8")
    done = Plan([live_file("a", dv("1", 4)), live_file("b", dv("2"))], [shared, own]).complete(
        change(dv_changed=[add("a", dv("3", 5))])
    )
    assert entries(done) == {"a": "new0.puffin", "b": "new1.puffin"}
    assert done.delta.removed_delete_files == {"m9": {"x.parquet"}, "m8": {"y.parquet"}}
    assert set(done.removed_delete_files) == {"x.parquet", "y.parquet"} and done.dead_vectors == ()


def test_a_vector_that_nobody_knows_cannot_be_copied() -> None:
    plan = Plan([live_file("a", dv("1")), live_file("b", UNKNOWN_DV)], [puffin("p", "a", "b")])
    with pytest.raises(ReplacementNeeded) as raised:
        plan.complete(change(dv_changed=[add("a", dv("4", 1))]), restored=["a"])
    assert raised.value.path == "b"


def test_puffin_files_are_bounded_and_of_one_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "VECTORS_MAX", 2)
    monkeypatch.setattr(planner, "VECTOR_BYTES_MAX", 100)
    sizes = {"a": 10, "b": 10, "c": 10, "d": 95, "e": 10, "f": 500, "g": 1}
    live = {
        path: LiveFile(path, ROWS, 100, int(path == "g"), "m", DeletionVectorDescriptor("u", path, size, 2, 1))
        for path, size in sizes.items()
    }
    table = dataclasses.replace(TABLE, specs={0: TABLE.spec, 1: TABLE.spec})
    tasks = DeletionVectors().tasks(copies(live, table), (f"{number}.puffin" for number in count()))
    found = [(task.output_path, task.spec_id, "".join(each.data_file for each in task.changes)) for task in tasks]
    assert found == [
        ("0.puffin", 0, "ab"), ("1.puffin", 0, "c"), ("2.puffin", 0, "d"), ("3.puffin", 0, "e"), ("4.puffin", 0, "f"),
        ("5.puffin", 1, "g"),
    ]  # fmt: skip


# --- many snapshots ---

step = st.dictionaries(
    st.sampled_from("abcd"), st.none() | st.sets(st.integers(0, 4), max_size=5), min_size=1, max_size=3
)


@given(st.lists(step, max_size=12))
@settings(max_examples=examples(300))
def test_no_reader_deletes_too_much_or_too_little(steps: list[dict[str, set[int] | None]]) -> None:
    """Each step gives data files new deletions, or (None) removes or adds them.

    A strict reader applies what an entry names, PyIceberg every blob of every Puffin file in the snapshot.
    """
    live: dict[str, set[int]] = {}
    files: dict[str, DeleteFileRecord] = {}
    blobs: dict[str, dict[str, set[int]]] = {}  # of each Puffin file, dead ones too
    names = new_names()
    for wanted in steps:
        after = {path: set(rows) for path, rows in live.items()}
        for path, rows in wanted.items():
            if rows is not None:
                after[path] = rows
            elif path in after:
                del after[path]
            else:
                after[path] = set()
        descriptors = {path: dv("".join(map(str, sorted(rows))), len(rows)) for path, rows in after.items() if rows}
        actions = {path: add(path, descriptors.get(path)) for path in after}
        what = change(
            added=[actions[path] for path in after if path not in live],
            removed=[path for path in live if path not in after],
            dv_changed=[actions[path] for path in after if path in live and after[path] != live[path]],
        )
        known = [
            live_file(path, dv("".join(map(str, sorted(rows))), len(rows)) if rows else None)
            for path, rows in live.items()
        ]
        plan = Plan(known, list(files.values()), names)
        done = plan.complete(what, restored=[path for path in live if path in after and live[path] - after[path]])
        for path, data_file in done.dead_vectors:
            mappings = tuple(each for each in files[path].mappings if each.data_file != data_file)
            files[path] = replace(files[path], mappings=mappings, dead=(*files[path].dead, data_file))
        for path in done.removed_delete_files:
            del files[path]
        for task, file in done.written:
            files[file.path] = replace(delete_file_record(task, file), manifest_path="m9")
            blobs[file.path] = {data_file: set(after[data_file]) for data_file, _ in file.data_files}
        live = after
        served = [mapping.data_file for file in files.values() for mapping in file.mappings]
        assert sorted(served) == sorted(path for path, rows in live.items() if rows)
        assert all(file.mappings for file in files.values())
        for path, rows in live.items():
            applied = [blobs[file.path][path] for file in files.values() if path in blobs[file.path]]
            assert set().union(*applied) == rows
            assert all(path in file.dead or path not in blobs[file.path] for file in files.values()) or rows
