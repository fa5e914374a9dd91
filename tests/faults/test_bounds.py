"""Metrics of data files with deleted rows: readers that filter find the rows that come back."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daemon.errors import Unsupported
from daemon.verify.findings import Fault, Level, Scope
from daemon.verify.verifier import Verifier
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.readers import duckdb_connection
from tests.kit.spec_reader import SpecTable

ROWS = [(number, "a", f"v{number}" if number < 5 else None) for number in range(10)]
DELETED = range(5, 10)


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    table = HandmadeTable(tmp_path / "t")
    table.create()
    return table


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def bench(table: HandmadeTable, request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(table.folder.parent / "dvsync", table.location, table_options={"format_version": request.param})
    yield bench
    bench.close()


def added(table: HandmadeTable, path: str, stats: dict[str, Any], **options: Any) -> dict[str, Any]:
    action = table.add(path, **options)
    action["add"]["stats"] = json.dumps(stats)
    return action


def stats_of(deleted: Collection[int], is_tight: bool = True) -> dict[str, Any]:
    """Statistics of the live rows alone."""
    ids = [number for number in range(10) if number not in deleted]
    nulls = {"id": 0, "value": len([number for number in ids if number > 4])}
    ends = {"minValues": {"id": ids[0]}, "maxValues": {"id": ids[-1]}}
    return {"numRecords": 10, **ends, "nullCount": nulls, "tightBounds": is_tight}


def row_ids(bench: Bench) -> list[tuple[int | None, int]]:
    """The row id and the sequence number of each file's first row, if the table has such."""
    table = SpecTable(bench.iceberg().metadata_location)
    table.check()
    is_v3 = table.metadata["format-version"] > 2
    return [(entry.first_row_id, entry.sequence_number) for entry in table.data if is_v3]


def find_ids(bench: Bench, condition: str) -> list[int]:
    """What the readers but Spark find, which skip files by their metrics."""
    table = bench.iceberg()
    found = sorted(table.scan(row_filter=condition).to_arrow()["id"].to_pylist())
    query = f"SELECT id FROM iceberg_scan('{table.metadata_location}') WHERE {condition} ORDER BY id"
    assert [number for (number,) in duckdb_connection().execute(query).fetchall()] == found
    for reader in ("native", "pyiceberg"):
        frame = polars.scan_iceberg(table, reader_override=reader).filter(polars.sql_expr(condition))  # type: ignore[arg-type]
        assert sorted(frame.collect()["id"]) == found, reader
    return found


def bounds(bench: Bench) -> set[tuple[int, int]]:
    files = bench.iceberg().inspect.files().to_pylist()
    ends = [file["readable_metrics"]["id"] for file in files if file["content"] == 0]
    return {(each["lower_bound"], each["upper_bound"]) for each in ends}


@pytest.mark.parametrize("is_tight", [True, False], ids=["tight", "wide"])
@pytest.mark.parametrize(("bench", "later"), [(2, 2), (3, 3), (2, 3)], indirect=["bench"], ids=["v2", "v3", "upgraded"])
def test_rows_that_come_back_are_found(bench: Bench, table: HandmadeTable, later: int, is_tight: bool) -> None:
    """Statistics of live rows, tight or, after another DELETE, wide, say nothing of rows that are shown again."""
    path = table.write_file(ROWS)
    table.commit([added(table, path, stats_of(DELETED, is_tight), deleted=DELETED)])
    bench.sync()
    assert (find_ids(bench, "id = 3"), find_ids(bench, "id = 7")) == ([3], [])
    bench.table_options = {"format_version": later}
    bench.reopen()
    ids = row_ids(bench)
    # The first of these vectors has as many positions as the one before, and is no RESTORE.
    for operation, deleted, back in [("UPDATE", {0, 6, 7, 8, 9}, 5), ("RESTORE", {7, 8, 9}, 0), ("RESTORE", set(), 7)]:
        stats = stats_of(deleted, is_tight or not deleted)
        table.commit([table.remove(path), added(table, path, stats, deleted=deleted)], operation=operation)
        bench.sync()
        assert find_ids(bench, f"id = {back}") == [back]
        assert find_ids(bench, "value IS NULL") == [number for number in range(5, 10) if number not in deleted]
        assert row_ids(bench) == ids or not ids
        ids = row_ids(bench)
    assert bounds(bench) == {(0, 9)}


def test_values_that_come_back_are_inspected(bench: Bench, table: HandmadeTable) -> None:
    """A deleted value that PyIceberg would show as another time is refused when it comes back, and not before."""
    table.commit([{"metaData": table.metadata([("id", "integer"), ("at", "timestamp")])}])
    moments = pa.array([datetime(2020, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    file = pa.table({"id": pa.array([1, 2], pa.int32()), "at": moments})
    pq.write_table(file, table.folder / "p.parquet", use_deprecated_int96_timestamps=True)
    table.rows["p.parquet"] = [(1, "", ""), (2, "", "")]
    ends = {"at": "2020-01-01T00:00:00.000Z"}
    is_live = {"numRecords": 2, "minValues": ends, "maxValues": ends, "nullCount": {"id": 0, "at": 0}}
    table.commit([added(table, "p.parquet", is_live, deleted=[1])])
    bench.sync()
    table.commit([table.remove("p.parquet"), table.add("p.parquet")], operation="RESTORE")
    with pytest.raises(Unsupported, match="column at of the file has INT96 timestamps before 1677 or after 2262"):
        bench.sync()
    assert find_ids(bench, "id > 0") == [1]
    table.commit([table.remove("p.parquet"), added(table, "p.parquet", is_live, deleted=[1])])
    bench.sync(full=True)
    assert find_ids(bench, "id > 0") == [1]


def test_wide_bounds_of_all_rows_are_kept(bench: Bench, table: HandmadeTable) -> None:
    """As Delta on Spark writes them: readers skip the file by them."""
    table.commit([added(table, table.write_file(ROWS), stats_of((), is_tight=False), deleted=DELETED)])
    bench.sync()
    assert bounds(bench) == {(0, 9)}


def test_collated_columns_never_have_bounds(
    bench: Bench, table: HandmadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a commit without a metaData. Where an older dvsync took some, verify tells, and a resync mends it."""
    columns = [("id", "long"), ("part", "string"), ("value", "string collate UTF8_LCASE")]
    table.commit([{"metaData": table.metadata(columns)}])
    bench.sync()
    ends = {"minValues": {"value": "a"}, "maxValues": {"value": "c"}}

    def append() -> None:
        path = table.write_file([(1, "", "a"), (2, "", "B"), (3, "", "c")])
        table.commit([added(table, path, {"numRecords": 3, **ends})])
        bench.sync()

    append()
    assert find_ids(bench, "value = 'B'") == [2]
    with monkeypatch.context() as patched:
        patched.setattr("daemon.translate.definition.COLLATED_IDS", "nowhere")
        append()
    assert faults(bench) == {Fault.BOUNDS: 1}
    bench.sync(full=True)
    assert (faults(bench), find_ids(bench, "value = 'B'")) == ({}, [2, 2])


def test_verify_sees_bounds_that_rows_exceed(bench: Bench, table: HandmadeTable) -> None:
    """Of deleted rows nothing is asked: when they come back, the file has other metrics."""
    path = table.write_file(ROWS)
    table.commit([added(table, path, stats_of(DELETED))])
    bench.sync()
    assert faults(bench) == {Fault.BOUNDS: 1, Fault.NULL_COUNT: 1}
    table.commit([table.remove(path), added(table, path, stats_of(DELETED), deleted=DELETED)])
    bench.sync()
    assert faults(bench) == {}
    # As if rows came back under a dvsync that left the metrics as they were.
    commit = table.commit_path(table.version)
    stated, of_more_rows = (json.dumps(json.dumps(stats_of(deleted))) for deleted in (DELETED, (9,)))
    commit.write_text(commit.read_text().replace(stated, of_more_rows))
    assert faults(bench) == {Fault.BOUNDS: 1, Fault.NULL_COUNT: 1}


def faults(bench: Bench) -> Mapping[Fault, int]:
    proof = Verifier(bench.context).verify(Scope(Level.METADATA), Event())
    assert proof
    return proof.findings.counts
