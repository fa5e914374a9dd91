"""Older snapshots show what they showed when they were made, or are expired by the commit that would change it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from daemon.errors import Unsupported
from daemon.translate.existing_table import NAME_MAPPING
from tests.kit.handmade import COLUMNS, Bench, HandmadeTable, in_step
from tests.kit.readers import duckdb_connection

LONGS = (("id", "long"), ("part", "string"), ("value", "long"))


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    """Version 2: two files, one of them with a deletion vector."""
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    path = table.write_file([(row, "x", f"{row}") for row in range(6)])
    table.commit([table.add(path)])
    table.commit([*table.delete({path: [1, 2]}), table.add(table.write_file([(10, "y", "ten")]))])
    return table


@pytest.fixture
def bench(tmp_path: Path, table: HandmadeTable) -> Iterator[Bench]:
    with in_step(tmp_path, table) as bench:
        yield bench


def test_a_branch_that_others_went_on_with(table: HandmadeTable, bench: Bench) -> None:
    """Its head is not ours, and would be shown with nulls all the same: the version waits for a person."""
    snapshots = bench.iceberg().manage_snapshots()
    snapshots.create_branch(bench.iceberg().metadata.current_snapshot_id, "audit").commit()
    bench.iceberg().append(pa.table({"id": [99], "part": ["x"], "value": ["theirs"]}), branch="audit")
    head = bench.iceberg().metadata.refs["audit"].snapshot_id
    before = bench.iceberg().scan(snapshot_id=head).to_arrow().to_pylist()
    table.overwrite(LONGS, {"id": 7, "part": "q", "value": 70})
    with pytest.raises(Unsupported, match="branch audit"):
        bench.follower.sync()
    assert bench.iceberg().scan(snapshot_id=head).to_arrow().to_pylist() == before


def test_a_resync_after_somebody_changed_the_name_mapping(table: HandmadeTable, bench: Bench) -> None:
    """A dropped column is not known any more by then: the snapshots that show it are expired, with a word."""
    delete_one(table)
    bench.follower.sync()
    table.overwrite(COLUMNS[:2], {"id": 5, "part": "z"})
    bench.follower.sync()
    older = set(shown(bench))
    with bench.iceberg().transaction() as changes:
        changes.set_properties({NAME_MAPPING: bench.iceberg().properties[NAME_MAPPING] + " "})
    with capture_logs() as logs:
        bench.follower.sync(full=True)
    (told,) = (line for line in logs if line["event"] == "snapshots.expired")
    assert told["columns"] == ("value",)
    rows = [{"id": 5, "part": "z"}]
    assert shown(bench) == dict.fromkeys(older - set(told["snapshot_ids"]), rows) | {
        bench.iceberg().metadata.current_snapshot_id: rows
    }


def delete_one(table: HandmadeTable) -> None:
    path = next(iter(table.live))
    table.commit(table.delete({path: [max(table.deleted[path], default=-1) + 1]}))


def shown(bench: Bench) -> dict[int, list[dict[str, Any]]]:
    """The rows of each snapshot, as PyIceberg and DuckDB show them alike."""
    iceberg = bench.iceberg()
    found = {}
    for snapshot_id in (each.snapshot_id for each in iceberg.snapshots()):
        by_duckdb = duckdb_connection().execute(
            "SELECT * FROM iceberg_scan(?, snapshot_from_id => ?)", [iceberg.metadata_location, snapshot_id]
        )
        rows = sorted(iceberg.scan(snapshot_id=snapshot_id).to_arrow().to_pylist(), key=lambda row: row["id"])
        assert sorted(by_duckdb.to_arrow_table().to_pylist(), key=lambda row: row["id"]) == rows
        found[snapshot_id] = rows
    return found


def test_another_type_of_a_column(table: HandmadeTable, bench: Bench) -> None:
    """The commit that follows an overwrite of the schema takes the snapshots along that it would empty, and tells."""
    delete_one(table)
    bench.follower.sync()
    before, log = shown(bench), len(bench.iceberg().metadata.metadata_log)
    table.overwrite(LONGS, {"id": 7, "part": "q", "value": 70})
    with capture_logs() as logs:
        bench.follower.sync()
    iceberg = bench.iceberg()
    assert len(iceberg.metadata.metadata_log) == log + 1
    newest = iceberg.metadata.current_snapshot_id
    assert shown(bench) == {newest: [{"id": 7, "part": "q", "value": 70}]}
    (told,) = (line for line in logs if line["event"] == "snapshots.expired")
    assert (set(told["snapshot_ids"]), told["columns"]) == (set(before), ("value",))
    delete_one(table)
    bench.follower.sync()
    assert shown(bench)[newest] == [{"id": 7, "part": "q", "value": 70}]


def test_snapshots_that_do_not_have_the_column_stay(table: HandmadeTable, bench: Bench) -> None:
    """What was before a column joined shows the same after that column has changed."""
    before = shown(bench)
    wider = (*COLUMNS, ("note", "string"))
    table.overwrite(wider, {"id": 8, "part": "q", "value": "v", "note": "n"})
    bench.follower.sync()
    table.overwrite((*COLUMNS, ("note", "long")), {"id": 9, "part": "q", "value": "v", "note": 9})
    bench.follower.sync()
    after = shown(bench)
    assert {snapshot_id: after.pop(snapshot_id) for snapshot_id in before} == before
    assert list(after.values()) == [[{"id": 9, "part": "q", "value": "v", "note": 9}]]


def test_a_column_that_leaves_and_comes_back_without_rows(table: HandmadeTable, bench: Bench) -> None:
    """Another column by its name: the newest snapshot has a successor with the same files, and leaves as well."""
    table.commit([{"metaData": table.metadata(COLUMNS[:2])}])
    bench.follower.sync()
    before = set(shown(bench))
    table.commit([{"metaData": table.metadata(COLUMNS)}])
    result = bench.follower.sync()
    assert (result.snapshots, result.data_files_added, result.data_files_removed) == (1, 0, 0)
    expected = [dict(zip(("id", "part", "value"), row, strict=True)) for row in table.live_rows()]
    (newest,) = after = shown(bench)
    assert newest not in before
    assert after == {newest: expected}
    delete_one(table)
    bench.follower.sync()
    assert shown(bench)[newest] == expected


def test_a_type_that_changes_back(table: HandmadeTable, bench: Bench) -> None:
    """Each time the name has another id: no snapshot of either stays."""
    for columns, value in ((LONGS, 70), (COLUMNS, "seventy"), (LONGS, 71)):
        row = {"id": 7, "part": "q", "value": value}
        table.overwrite(columns, row)
        bench.follower.sync()
        assert list(shown(bench).values()) == [[row]]


def test_dvsyncs_own_tag_does_not_stop_the_table(table: HandmadeTable, tmp_path: Path) -> None:
    """A rule set it, not a person: it leaves with the snapshot that readers would misread, and the log names it."""
    bench = Bench(tmp_path / "dvsync", table.location, table_options={"tag_every": 2})
    bench.follower.sync()
    delete_one(table)
    bench.follower.sync()
    assert set(bench.iceberg().metadata.refs) == {"main", "delta-v2"}
    row = {"id": 7, "part": "q", "value": 70}
    table.overwrite(LONGS, row)
    with capture_logs() as logs:
        bench.follower.sync()
    (told,) = (line for line in logs if line["event"] == "snapshots.expired")
    assert told["tags"] == ("delta-v2",)
    assert list(shown(bench).values()) == [[row]]
    assert set(bench.iceberg().metadata.refs) == {"main", "delta-v4"}
    bench.close()


def test_a_resync_expires_them_too(table: HandmadeTable, bench: Bench) -> None:
    """It goes by Delta's whole state, with the same mapping of names."""
    row = {"id": 7, "part": "q", "value": 70}
    table.overwrite(LONGS, row)
    bench.follower.sync(full=True)
    assert list(shown(bench).values()) == [[row]]


def test_a_wider_type_costs_no_history(table: HandmadeTable, bench: Bench) -> None:
    """The column keeps its id; a column that joins, leaves or moves takes none from the others."""
    row = {"id": 7, "part": "q", "value": "v", "more": 1}
    for columns in (
        (*COLUMNS, ("more", "integer")),
        (*COLUMNS, ("more", "long")),
        COLUMNS[:2],
        (("part", "string"), ("id", "long")),
    ):
        before = shown(bench)
        table.overwrite(columns, {name: row[name] for name, _ in columns})
        bench.follower.sync()
        after = shown(bench)
        assert len(after) == len(before) + 1
        assert {snapshot_id: after[snapshot_id] for snapshot_id in before} == before


REFERENCES: Mapping[str, Callable[[Bench, int], None]] = {
    "tag": lambda bench, snapshot_id: bench.iceberg().manage_snapshots().create_tag(snapshot_id, "audit").commit(),
    "branch": lambda bench, snapshot_id: (
        bench.iceberg().manage_snapshots().create_branch(snapshot_id, "audit").commit()
    ),
}


@pytest.mark.parametrize("kind", REFERENCES)
@pytest.mark.parametrize("full", [False, True])
def test_a_reference_is_neither_emptied_nor_dropped(
    table: HandmadeTable, bench: Bench, kind: str, *, full: bool
) -> None:
    """The table is refused with the reference's name, and follows on once somebody has dropped it."""
    before = shown(bench)
    held = bench.iceberg().metadata.current_snapshot_id
    assert held is not None
    REFERENCES[kind](bench, held)
    table.overwrite(LONGS, {"id": 7, "part": "q", "value": 70})
    files = sorted(bench.folder.rglob("*"))
    with pytest.raises(Unsupported, match=rf"column value .* held by {kind} audit \(snapshot {held}\)") as caught:
        bench.follower.sync(full=full)
    assert "dvsync resume t" in caught.value.hint
    assert shown(bench) == before
    assert sorted(bench.folder.rglob("*")) == files, "nothing was written in vain"
    references = bench.iceberg().manage_snapshots()
    (references.remove_tag if kind == "tag" else references.remove_branch)("audit").commit()
    bench.follower.sync(full=full)
    assert list(shown(bench).values()) == [[{"id": 7, "part": "q", "value": 70}]]


def test_a_reference_to_another_snapshot_is_nobodys_business(table: HandmadeTable, bench: Bench) -> None:
    """What it holds does not have the column, and stays."""
    held = bench.iceberg().metadata.current_snapshot_id
    assert held is not None
    REFERENCES["tag"](bench, held)
    before = shown(bench)[held]
    for kind, value in (("string", "n"), ("long", 9)):
        table.overwrite((*COLUMNS, ("note", kind)), {"id": 8, "part": "q", "value": "v", "note": value})
        bench.follower.sync()
    assert shown(bench)[held] == before
    assert bench.iceberg().metadata.refs["audit"].snapshot_id == held


def test_somebody_elses_snapshots_stay(table: HandmadeTable, bench: Bench) -> None:
    """dvsync expires what it has made, and nothing else."""
    bench.iceberg().append(pa.table({"id": [99], "part": ["x"], "value": ["theirs"]}))
    foreign = bench.iceberg().metadata.current_snapshot_id
    bench.follower.sync(full=True)
    table.overwrite(LONGS, {"id": 7, "part": "q", "value": 70})
    bench.follower.sync()
    iceberg = bench.iceberg()
    assert {each.snapshot_id for each in iceberg.snapshots()} == {foreign, iceberg.metadata.current_snapshot_id}
