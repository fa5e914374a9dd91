"""The plan of one snapshot: which positions go where, which entries leave and join, and what is remembered."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace
from pyiceberg.manifest import DataFileContent
from pyiceberg.table.snapshots import Operation

from daemon.delta.actions import AddFile, Metadata
from daemon.delta.replay import TableChange
from daemon.errors import CorruptInput
from daemon.iceberg.manifests import referenced_data_file
from daemon.iceberg.position_deletes import PositionDeleteFile
from daemon.translate import planner
from daemon.translate.delete_files import FILE_PATH_ID, POS_ID, UNKNOWN_DV, DeleteFileResult
from daemon.translate.metrics import metrics_of
from daemon.translate.plan import CommitPlan, SyncPlan
from daemon.translate.planner import PositionDeletes
from daemon.translate.schema import TableSchema, translate_schema
from state import DeleteFileRecord, DeletionVectorDescriptor, DvMapping, LiveFile, OrphanReason

ROWS = 10
SNAPSHOT = 99


def table_schema(*, partitioned: bool = False) -> TableSchema:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("c", "long"), ("p", "double"))
    ]
    return translate_schema(
        Metadata("t", json.dumps({"type": "struct", "fields": fields}), ["p"] if partitioned else [], {})
    )


def dv(name: str, cardinality: int = 2) -> DeletionVectorDescriptor:
    return DeletionVectorDescriptor("u", name, 40, cardinality, 1)


def add(
    path: str, deleted: DeletionVectorDescriptor | None = None, *, part: str | None = None, rows: int | None = ROWS
) -> AddFile:
    stats = None if rows is None else json.dumps({"numRecords": rows})
    return AddFile(path, True, deleted, partition_values={"p": part}, size=100, stats=stats)


def live_file(
    path: str, deleted: DeletionVectorDescriptor | None = None, *, manifest: str = "m1", spec_id: int = 0
) -> LiveFile:
    return LiveFile(path, ROWS, 100, spec_id, manifest, deleted)


def change(
    added: Iterable[AddFile] = (),
    removed: Iterable[str] = (),
    dv_changed: Iterable[AddFile] = (),
    *,
    data_change: bool = True,
) -> TableChange:
    return TableChange(
        from_version=1,
        to_version=1,
        timestamp_ms=0,
        added={file.path: file for file in added},
        removed=frozenset(removed),
        dv_changed={file.path: file for file in dv_changed},
        data_change=data_change,
    )


def planned(
    what: TableChange,
    live: Iterable[LiveFile] = (),
    *,
    granularity: str = "file",
    table: TableSchema | None = None,
    rows: Mapping[str, int] = MappingProxyType({}),
) -> SyncPlan:
    """`rows` are those of footers which say otherwise than ROWS."""
    table = table or table_schema()
    metrics = {
        path: metrics_of(add, table, rows.get(path, ROWS)) for path, add in {**what.dv_changed, **what.added}.items()
    }
    plan = SyncPlan(what, {file.path: file for file in live}, table, metrics)
    names = (f"d{number}" for number in count())
    return dataclasses.replace(plan, tasks=PositionDeletes(granularity == "partition").tasks(plan.dv_changes(), names))


def written(path: str, *data_files: tuple[str, int]) -> PositionDeleteFile:
    return PositionDeleteFile(path, 50, sum(positions for _, positions in data_files), 3, 8, (4,), data_files)


def result(path: str, *rows: tuple[str, int] | tuple[str, int, bool]) -> DeleteFileResult:
    """What the kernel would give: (data file, positions, whether it is restored) of each row."""
    data_files = [(row[0], row[1]) for row in rows if row[1]]
    return DeleteFileResult(
        written(path, *data_files) if data_files else None, tuple(row[0] for row in rows if len(row) > 2 and row[2])
    )


def completed(
    plan: SyncPlan, results: Sequence[DeleteFileResult] = (), serving: Sequence[DeleteFileRecord] = ()
) -> CommitPlan:
    deletes = PositionDeletes()
    plan = dataclasses.replace(plan, results=results, older=serving)
    repair = deletes.repair(plan, {}, (f"r{number}" for number in count()))
    return deletes.complete(
        plan,
        snapshot_id=SNAPSHOT,
        rewritten=[
            (rewrite, written(rewrite.output_path, *((path, 2) for path in sorted(rewrite.kept))))
            for rewrite in repair.rewrites
        ],
    )


def delete_file(path: str, *data_files: str, manifest: str = "m9") -> DeleteFileRecord:
    mappings = tuple(DvMapping(data_file, "u1@1", 2) for data_file in data_files)
    return DeleteFileRecord(path, 50, 2 * len(mappings), 0, manifest, mappings)


def works(plan: SyncPlan) -> list[tuple[str, tuple[Any, ...], list[str]]]:
    return [
        (task.output_path, task.changes[0].partition, [change.data_file for change in task.changes])
        for task in plan.tasks
    ]


# --- which delete files to write ---


def test_file_granularity_is_a_delete_file_for_each_data_file() -> None:
    """Added and changed files with a deletion vector, sorted by path; those without one need no delete file."""
    what = change([add("b", dv("1")), add("x")], ["y"], [add("c", dv("2")), add("a", dv("3")), add("z")])
    plan = planned(what, [live_file(path) for path in ("a", "c", "y")] + [live_file("z", dv("9"))])
    assert works(plan) == [("d0", (), ["a"]), ("d1", (), ["b"]), ("d2", (), ["c"])]


def test_partition_granularity_is_a_delete_file_for_each_partition() -> None:
    """Files of one partition share a delete file, sorted by path; NaN is one value, and so is zero."""
    parts = {"a": "1.0", "b": "2.0", "c": "1", "d": "NaN", "e": "NaN", "f": "", "g": None, "h": "0.0", "i": "-0.0"}
    what = change([add(path, dv(path), part=part) for path, part in reversed(parts.items())])
    plan = planned(what, granularity="partition", table=table_schema(partitioned=True))
    assert [paths for _, _, paths in works(plan)] == [["a", "c"], ["b"], ["d", "e"], ["f", "g"], ["h", "i"]]
    assert [task.changes[0].partition for task in plan.tasks][:2] == [(1.0,), (2.0,)]
    assert plan.tasks[3].changes[0].partition == (None,)
    assert len({task.output_path for task in plan.tasks}) == len(plan.tasks)


def test_an_unpartitioned_table_is_one_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without partition columns all files share a delete file, up to a bound."""
    monkeypatch.setattr(planner, "DATA_FILES_PER_DELETE_FILE_MAX", 2)
    plan = planned(change([add(path, dv(path)) for path in "edcba"]), granularity="partition")
    assert works(plan) == [("d0", (), ["a", "b"]), ("d1", (), ["c", "d"]), ("d2", (), ["e"])]


def test_files_of_two_specs_share_no_delete_file() -> None:
    """A delete file applies to data files of its own spec only: it has the one that the data file was added with."""
    old = table_schema()
    new = translate_schema(
        Metadata("t", json.dumps({"type": "struct", "fields": json.loads(_schema_of(old))}), ["p"], {}),
        old.schema,
        schemas={0: old.schema},
        specs=old.specs,
    )
    what = change([add("b", dv("1"), part="1")], dv_changed=[add("a", dv("2"), part="1")])
    plan = planned(what, [live_file("a", spec_id=0)], granularity="partition", table=new)
    assert [(task.spec_id, task.changes[0].partition) for task in plan.tasks] == [(0, ()), (1, (1.0,))]


def test_deletions_lie_where_the_entry_of_their_file_does() -> None:
    """The add's text may come to another value now, by another zone or spelling: the entry's own partition counts."""
    live = [replace(live_file(path, dv("1")), partition=("7.5",)) for path in "ab"]
    what = change(dv_changed=[add("a", dv("2"), part="1"), add("b", part="1")])
    plan = planned(what, live, table=table_schema(partitioned=True))
    assert [(task.spec_id, task.changes[0].partition) for task in plan.tasks] == [(0, (7.5,))]
    done = completed(plan, [result("d0", ("a", 2))])
    assert [(file.file_path, file.spec_id, file.partition[0]) for file in done.delta.added_data_files] == [
        ("b", 0, 7.5)
    ]
    assert [file.partition[0] for file in done.delta.added_delete_files] == [7.5]


def _schema_of(table: TableSchema) -> str:
    kinds = {"c": "long", "p": "double"}
    return json.dumps(
        [
            {"name": field.name, "type": kinds[field.name], "nullable": True, "metadata": {}}
            for field in table.schema.fields
        ]
    )


def test_the_kernel_is_told_both_deletion_vectors_and_the_rows() -> None:
    """What Iceberg shows now goes with what shall be shown; physical rows come from memory or from the footer."""
    before = dv("0", 1)
    what = change([add("new", dv("1")), add("bare", dv("2"), rows=None)], dv_changed=[add("old", dv("3"), rows=None)])
    plan = planned(what, [live_file("old", before)], rows={"bare": 4})
    changes = [each for task in plan.tasks for each in task.changes]
    found = {each.data_file: (each.record_count, each.before, each.after) for each in changes}
    assert found == {"new": (ROWS, None, dv("1")), "bare": (4, None, dv("2")), "old": (ROWS, before, dv("3"))}


def test_an_unknown_deletion_vector_has_no_before() -> None:
    """What a rebuild could not identify is written anew, whole."""
    plan = planned(change(dv_changed=[add("a", dv("3"))]), [live_file("a", UNKNOWN_DV)])
    assert plan.tasks[0].changes[0].before is None


def test_more_deleted_rows_than_rows_is_corrupt() -> None:
    """Checked before anything is written, with the file's path."""
    with pytest.raises(CorruptInput, match="11 positions, the file only 10 rows") as caught:
        planned(change([add("a", dv("1", 11))]))
    assert caught.value.path == "a"


# --- which entries leave and join ---


def summary(done: CommitPlan) -> dict[str, Any]:
    delta = done.delta
    return {
        "operation": delta.operation,
        "added": [file.file_path for file in delta.added_data_files],
        "removed": {manifest: set(paths) for manifest, paths in delta.removed_data_files.items()},
        "deletes added": [file.file_path for file in delta.added_delete_files],
        "deletes removed": {manifest: set(paths) for manifest, paths in delta.removed_delete_files.items()},
    }


def test_an_append() -> None:
    """New files join; their rows are remembered."""
    done = completed(planned(change([add("b"), add("a", rows=None)]), rows={"a": 7}))
    assert summary(done) == {
        "operation": Operation.APPEND,
        "added": ["a", "b"],
        "removed": {},
        "deletes added": [],
        "deletes removed": {},
    }
    assert [(file.file_path, file.record_count) for file in done.delta.added_data_files] == [("a", 7), ("b", ROWS)]
    assert [file.record_count for file in done.delta.added_data_files] == [7, ROWS]
    assert not done.is_empty


def test_a_grown_deletion_vector_leaves_the_data_file_alone() -> None:
    """Only a delete file joins; the new deletion vector is remembered."""
    plan = planned(change(dv_changed=[add("a", dv("2"))]), [live_file("a", dv("1", 1))])
    done = completed(plan, [result("d0", ("a", 1))])
    assert summary(done) == {
        "operation": Operation.DELETE,
        "added": [],
        "removed": {},
        "deletes added": ["d0"],
        "deletes removed": {},
    }
    assert done.changed_dvs == {"a": dv("2")}
    assert (done.removed_files, done.unwritten_files) == ((), ())


def test_a_rewritten_deletion_vector_of_the_same_positions_makes_no_snapshot() -> None:
    """Nothing to write and nothing restored: the plan is empty, yet the new deletion vector is remembered."""
    plan = planned(change(dv_changed=[add("a", dv("2"))]), [live_file("a", dv("1"))])
    done = completed(plan, [result("d0")])
    assert done.is_empty
    assert done.changed_dvs == {"a": dv("2")}
    assert done.unwritten_files == ("d0",)


def test_a_removed_file_takes_its_delete_files_along() -> None:
    """Delete files that only served removed files leave; of one that serves another file, its share is written anew."""
    live = [live_file(path, dv("1"), manifest=f"m-{path}") for path in "ab"]
    serving = [delete_file("only", "a"), delete_file("both", "a", "b"), delete_file("two", "a", manifest="m8")]
    done = completed(planned(change(removed=["a"]), live), serving=serving)
    assert summary(done) == {
        "operation": Operation.DELETE,
        "added": [],
        "removed": {"m-a": {"a"}},
        "deletes added": [],
        "deletes removed": {"m9": {"only", "both"}, "m8": {"two"}},
    }
    assert done.removed_files == ("a",)
    assert done.removed_delete_files == dict.fromkeys(["only", "both", "two"], OrphanReason.DATA_FILES_GONE)
    assert {old: new.record_count for old, new in done.delta.replacements} == {"both": 2}
    assert [(rewrite.old.path, rewrite.kept) for rewrite, _ in done.rewritten] == [("both", {"b"})]


def test_all_served_files_leaving_takes_the_shared_delete_file_along() -> None:
    """A delete file of a partition goes with the last of its data files."""
    live = [live_file(path, dv("1")) for path in "ab"]
    done = completed(planned(change(removed=["a", "b"]), live), serving=[delete_file("both", "a", "b")])
    assert done.removed_delete_files == {"both": OrphanReason.DATA_FILES_GONE}


def test_a_shrunk_deletion_vector_registers_the_file_anew() -> None:
    """Rows came back: the entry leaves and joins again with all of the new positions, the older delete file goes."""
    plan = planned(change(dv_changed=[add("a", dv("2"))]), [live_file("a", dv("1"), manifest="m5")])
    results = [result("d0", ("a", 2, True))]
    assert dataclasses.replace(plan, results=results).restored == {"a"}
    done = completed(plan, results, [delete_file("old", "a")])
    assert summary(done) == {
        "operation": Operation.OVERWRITE,
        "added": ["a"],
        "removed": {"m5": {"a"}},
        "deletes added": ["d0"],
        "deletes removed": {"m9": {"old"}},
    }
    assert (done.removed_files, list(done.added_files), done.changed_dvs) == (("a",), ["a"], {})
    assert done.removed_delete_files == {"old": OrphanReason.DV_SHRUNK}


def test_a_vanished_deletion_vector_registers_the_file_anew() -> None:
    """RESTORE to a version without deletions: no delete file is written, the older one goes."""
    plan = planned(change(dv_changed=[add("a", rows=None)]), [live_file("a", dv("1"))])
    assert plan.tasks == ()
    done = completed(plan, serving=[delete_file("old", "a")])
    assert summary(done)["added"] == ["a"]
    assert summary(done)["deletes removed"] == {"m9": {"old"}}
    # Its rows are known from before.
    assert [(file.file_path, file.record_count) for file in done.delta.added_data_files] == [("a", ROWS)]


def test_a_restored_file_leaves_a_shared_delete_file_to_the_others() -> None:
    """The older positions do not reach the new entry; its neighbour's share of their file is written anew."""
    live = [live_file(path, dv("1")) for path in "ab"]
    plan = planned(change(dv_changed=[add("a")]), live)
    done = completed(plan, serving=[delete_file("both", "a", "b")])
    assert done.removed_delete_files == {"both": OrphanReason.DV_SHRUNK}
    assert [(rewrite.old.path, rewrite.kept) for rewrite, _ in done.rewritten] == [("both", {"b"})]
    assert done.removed_files == ("a",)


def test_an_unknown_deletion_vector_registers_the_file_anew() -> None:
    """After a rebuild in doubt: whatever older deletes hold, they end, and all positions are written."""
    plan = planned(change(dv_changed=[add("a", dv("2"))]), [live_file("a", UNKNOWN_DV)])
    done = completed(plan, [result("d0", ("a", 2))], [delete_file("old", "a")])
    assert summary(done)["added"] == ["a"]
    assert summary(done)["deletes added"] == ["d0"]
    assert summary(done)["deletes removed"] == {"m9": {"old"}}


def test_planning_twice_gives_the_same() -> None:
    """The wanted state follows from the new deletion vectors alone."""
    live = [live_file("a", dv("1")), live_file("r")]
    what = change([add("n", dv("5"))], ["r"], [add("a", dv("2"))])
    results = [result("d0", ("a", 1)), result("d1", ("n", 2))]
    first, second = (completed(planned(what, live), results) for _ in range(2))
    assert summary(first) == summary(second)
    assert (first.changed_dvs, first.removed_files) == (second.changed_dvs, second.removed_files)


# --- replace ---


@pytest.mark.parametrize(
    ("added", "removed", "data_change", "expected"),
    [
        ([20], {"a": None, "b": None}, False, Operation.REPLACE),
        ([18], {"a": None, "b": "1"}, False, Operation.REPLACE),
        ([5, 13], {"a": None, "b": "1"}, False, Operation.REPLACE),
        # Deleted rows that were written out again, or rows that are missing: no mere move, whatever Delta says.
        ([20], {"a": None, "b": "1"}, False, Operation.OVERWRITE),
        ([17], {"a": None, "b": "1"}, False, Operation.OVERWRITE),
        ([20], {"a": None, "b": None}, True, Operation.OVERWRITE),
    ],
)
def test_rows_that_only_move_are_a_replace(
    added: list[int], removed: Mapping[str, str | None], data_change: bool, expected: Operation
) -> None:
    """OPTIMIZE: Delta says that no data changed, and as many rows are live in the new files as were in the old ones."""
    live = [live_file(path, dv(name) if name else None) for path, name in removed.items()]
    rows = {f"n{number}": count for number, count in enumerate(added)}
    files = [add(path, rows=count) for path, count in rows.items()]
    done = completed(planned(change(files, removed, data_change=data_change), live, rows=rows))
    assert done.delta.operation is expected


def test_deletions_are_never_a_replace() -> None:
    """A file rewritten next to new positions changes rows."""
    what = change([add("n", dv("1"))], ["a"], data_change=False)
    done = completed(planned(what, [live_file("a")]), [result("d0", ("n", 2))])
    assert done.delta.operation is Operation.OVERWRITE


# --- the delete file's record ---


def test_a_delete_file_of_one_data_file_names_it() -> None:
    """Field 143 and equal bounds of file_path, by which engines know it; counts and position bounds with it."""
    plan = planned(change([add("file:///a", dv("1"))]))
    (record,) = completed(plan, [result("d0", ("file:///a", 2))]).delta.added_delete_files
    assert record.content is DataFileContent.POSITION_DELETES
    assert (record.file_path, record.record_count, record.file_size_in_bytes) == ("d0", 2, 50)
    assert referenced_data_file(record) == "file:///a"
    assert record.lower_bounds == {FILE_PATH_ID: b"file:///a", POS_ID: b"\3" + bytes(7)}
    assert record.upper_bounds == {FILE_PATH_ID: b"file:///a", POS_ID: b"\x08" + bytes(7)}
    assert record.value_counts == {FILE_PATH_ID: 2, POS_ID: 2}
    assert record.null_value_counts == {FILE_PATH_ID: 0, POS_ID: 0}
    assert (record.split_offsets, record.sort_order_id) == ([4], None)


def test_a_delete_file_of_several_data_files_names_none() -> None:
    """Unequal bounds of file_path would be taken for truncated ones: none are given."""
    files = [add("a", dv("1")), add("b", dv("2")), add("c", dv("3", 0))]
    live = [live_file(file.path, dv("0")) for file in files]
    plan = planned(change(dv_changed=files), live, granularity="partition")
    (record,) = completed(plan, [result("d0", ("a", 1), ("b", 2), ("c", 0, True))]).delta.added_delete_files
    assert referenced_data_file(record) is None
    assert (record.lower_bounds, record.upper_bounds, record.value_counts) == (None, None, None)
    # One that ended up with the positions of a single file is as good as written for it.
    (record,) = completed(plan, [result("d0", ("b", 2), ("c", 0, True))]).delta.added_delete_files
    assert referenced_data_file(record) == "b"
