"""Metrics of data files with deleted rows: readers that filter find the rows that come back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from daemon.verify.findings import Fault, Level, Scope
from daemon.verify.verifier import Verifier
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.readers import duckdb_connection

ROWS = [(number, "a", f"v{number}" if number < 5 else None) for number in range(10)]
DELETED = range(5, 10)
OF_LIVE_ROWS = {"numRecords": 10, "minValues": {"id": 0}, "maxValues": {"id": 4}, "nullCount": {"id": 0, "value": 0}}
OF_ALL_ROWS = {"numRecords": 10, "minValues": {"id": 0}, "maxValues": {"id": 9}, "nullCount": {"id": 0, "value": 5}}


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


def find_ids(bench: Bench, condition: str) -> list[int]:
    """What PyIceberg and DuckDB find, which skip files by their metrics."""
    iceberg = bench.iceberg()
    found = sorted(iceberg.scan(row_filter=condition).to_arrow()["id"].to_pylist())
    query = f"SELECT id FROM iceberg_scan('{iceberg.metadata_location}') WHERE {condition} ORDER BY id"
    assert [number for (number,) in duckdb_connection().execute(query).fetchall()] == found
    return found


def bounds(bench: Bench) -> set[tuple[int, int]]:
    files = bench.iceberg().inspect.files().to_pylist()
    ends = [file["readable_metrics"]["id"] for file in files if file["content"] == 0]
    return {(each["lower_bound"], each["upper_bound"]) for each in ends}


@pytest.mark.parametrize("is_tight", [True, False], ids=["tight", "wide"])
def test_rows_that_come_back_are_found(bench: Bench, table: HandmadeTable, is_tight: bool) -> None:
    """Statistics of live rows, tight or, after another DELETE, wide, say nothing of rows that a RESTORE shows."""
    path = table.write_file(ROWS)
    table.commit([added(table, path, {**OF_LIVE_ROWS, "tightBounds": is_tight}, deleted=DELETED)])
    bench.sync()
    assert (find_ids(bench, "id = 3"), find_ids(bench, "id = 7")) == ([3], [])
    # One row comes back first: format version 2 registers the file anew, with the statistics of this commit.
    more = {**OF_ALL_ROWS, "maxValues": {"id": 5}, "nullCount": {"id": 0, "value": 1}, "tightBounds": is_tight}
    table.commit([table.remove(path), added(table, path, more, deleted=range(6, 10))], operation="RESTORE")
    bench.sync()
    assert find_ids(bench, "id = 5") == find_ids(bench, "value IS NULL") == [5]
    table.commit([table.remove(path), added(table, path, OF_ALL_ROWS)], operation="RESTORE")
    bench.sync()
    assert (find_ids(bench, "id = 7"), find_ids(bench, "value IS NULL")) == ([7], [5, 6, 7, 8, 9])


def test_wide_bounds_of_all_rows_are_kept(bench: Bench, table: HandmadeTable) -> None:
    """As Delta on Spark writes them: the footer proves them, and readers skip the file by them."""
    stats = {**OF_ALL_ROWS, "tightBounds": False}
    table.commit([added(table, table.write_file(ROWS), stats, deleted=DELETED)])
    bench.sync()
    assert bounds(bench) == {(0, 9)}


def test_verify_sees_bounds_that_deleted_rows_exceed(bench: Bench, table: HandmadeTable) -> None:
    """The rows are right until these come back; in version 2 they come with an entry of their own."""
    path = table.write_file(ROWS)
    table.commit([added(table, path, OF_LIVE_ROWS)])
    bench.sync()
    table.commit([table.remove(path), added(table, path, OF_LIVE_ROWS, deleted=DELETED)])
    bench.sync()
    proof = Verifier(bench.context).verify(Scope(Level.METADATA), Event())
    assert proof
    is_trap = bench.context.settings.format_version == 3
    assert proof.findings.counts == ({Fault.BOUNDS: 1, Fault.NULL_COUNT: 1} if is_trap else {})
