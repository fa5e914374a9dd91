"""What holds for an Iceberg table after every sync, told from the files that PyIceberg's own readers find."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from state import FileKind, FileStatus
from tests.kit.handmade import Bench
from tests.kit.histories import PARTS, History, State
from tests.kit.readers import Row, assert_same_rows, read_duckdb, read_polars_native, read_polars_pyiceberg, rows_of
from tests.kit.spec_reader import SpecTable

SEQUENCED = tuple[DataFile, int]


@dataclass
class Watch:
    """Checks a bench against a history, sync by sync."""

    bench: Bench
    history: History
    granularity: str
    seen: set[int] = field(init=False)
    synced: int = 0

    def __post_init__(self) -> None:
        self.seen = {snapshot.snapshot_id for snapshot in self.bench.iceberg().snapshots()}

    def check(self, *, folded: bool) -> None:
        """All of it, for the version that dvsync says is synced."""
        table = self.bench.iceberg()
        record = self.bench.store.open_table("t", self.bench.source, self.bench.target)
        assert record.synced_version is not None
        new = sorted(
            (snapshot for snapshot in table.snapshots() if snapshot.snapshot_id not in self.seen),
            key=lambda snapshot: snapshot.sequence_number or 0,
        )
        for snapshot in new:
            self._check_snapshot(table, snapshot)
            self.seen.add(snapshot.snapshot_id)
        if not folded:
            states = self.history.states[self.synced : record.synced_version + 1]
            changing = sum(a.deleted != b.deleted for a, b in pairwise(states))
            assert len(new) == changing, f"{len(new)} snapshots for {changing} versions that change rows"
        self.synced = record.synced_version
        self._check_current(table, record.id)

    def _check_snapshot(self, table: Table, snapshot: Snapshot) -> None:
        """Rows, operation and what the summary says was added and removed."""
        assert snapshot.summary is not None
        summary = {**snapshot.summary.additional_properties}
        to_version = int(summary["dvsync.delta.version"])
        from_version = int(summary.get("dvsync.delta.from-version", to_version))
        states = self.history.states[from_version - 1 : to_version + 1]
        before, after = states[0], states[-1]
        expected = _expected(states, {path: len(rows) for path, rows in self.history.table.rows.items()})
        found = {name: int(summary.get(name, 0)) for name in expected}
        where = f"summary of versions {from_version} to {to_version}"
        if self.granularity == "file":
            assert found == expected, where
        else:
            # What is left of a delete file that served a leaving data file too is written anew.
            positions = found.pop("added-position-deletes") - int(summary.get("removed-position-deletes", 0))
            assert found == {name: count for name, count in expected.items() if name in found}, where
            assert positions == _positions(after) - _positions(before), where
        only_moved = all(state.only_moved for state in self.history.states[from_version : to_version + 1])
        assert snapshot.summary.operation.value == _operation(expected, only_moved=only_moved), where
        rows = _scan(table, snapshot_id=snapshot.snapshot_id)
        assert_same_rows(rows, self.history.rows(to_version), "PyIceberg", f"version {to_version}")

    def _check_current(self, table: Table, table_id: int) -> None:
        state, location = self.history.states[self.synced], self.history.table.location
        deleted = {f"{location}/{path}": sorted(positions) for path, positions in state.deleted.items()}
        data, deletes = _live_entries(table, table.current_snapshot())
        assert set(data) == set(deleted), "live data files"
        for path, (data_file, _) in data.items():
            assert data_file.record_count == len(self.history.table.rows[path.removeprefix(f"{location}/")]), path

        effective: dict[str, list[int]] = defaultdict(list)
        for path, (delete_file, sequence_number) in deletes.items():
            positions = _read_positions(path)
            assert len(positions) == delete_file.record_count, path
            felt = [
                (data_path, position)
                for data_path, position in positions
                if data_path in data
                and data[data_path][1] <= sequence_number
                and _partition(data[data_path][0]) == _partition(delete_file)
            ]
            # PyIceberg, Polars and DuckDB would apply them to a file that is registered anew, whatever its number.
            assert felt == positions, f"delete file {path} holds positions that delete nothing"
            if self.granularity == "file":
                assert len({data_path for data_path, _ in positions}) == 1, "one data file a delete file"
            for data_path, position in felt:
                effective[data_path].append(position)
        assert {path: sorted(positions) for path, positions in effective.items()} == {
            path: positions for path, positions in deleted.items() if positions
        }, "each deleted position exactly once"

        self._check_totals(table, data, deletes)
        self._check_store(table_id, deleted, data, deletes)

    def _check_totals(self, table: Table, data: Mapping[str, SEQUENCED], deletes: Mapping[str, SEQUENCED]) -> None:
        snapshot = table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        files = [data_file for data_file, _ in (*data.values(), *deletes.values())]
        expected = {
            "total-data-files": len(data),
            "total-delete-files": len(deletes),
            "total-records": sum(data_file.record_count for data_file, _ in data.values()),
            "total-files-size": sum(data_file.file_size_in_bytes for data_file in files),
            "total-position-deletes": sum(delete_file.record_count for delete_file, _ in deletes.values()),
            "total-equality-deletes": 0,
        }
        assert {name: int(snapshot.summary[name] or 0) for name in expected} == expected, "totals of the summary"
        sizes = {path: os.stat(path.removeprefix("file://")).st_size for path in (*data, *deletes)}
        assert {data_file.file_path: data_file.file_size_in_bytes for data_file in files} == sizes

    def _check_store(
        self,
        table_id: int,
        deleted: Mapping[str, list[int]],
        data: Mapping[str, SEQUENCED],
        deletes: Mapping[str, SEQUENCED],
    ) -> None:
        store = self.bench.store
        counts = store.count(table_id)
        positions = sum(map(len, deleted.values()))
        rows = sum(data_file.record_count for data_file, _ in data.values()) - positions
        found = (counts.live_data_files, counts.live_rows, counts.live_delete_files, counts.deleted_positions)
        assert found == (len(data), rows, len(deletes), positions), "counts of the state store"
        assert not store.find_open_intents(table_id)
        known = store.list_written(table_id, (FileStatus.ORPHANED,))
        orphans = {file.path for file in known if file.kind is FileKind.DELETE_FILE}
        warehouse = Path(self.bench.folder) / "warehouse"
        written = {f"file://{path}" for path in warehouse.glob("**/*.parquet")}
        assert written == set(deletes) | orphans, "delete files on disk are live, or known as orphans"
        assert not orphans & set(deletes)

    def check_readers(self) -> None:
        """DuckDB, Polars and the specification's reader show the model's rows too, and filters find them."""
        table, rows = self.bench.iceberg(), self.history.rows(self.synced)
        by_spec = SpecTable(table.metadata_location)
        by_spec.check()
        assert_same_rows(by_spec.rows(), rows, "the specification's reader", f"version {self.synced}")
        # Polars' native reader refuses delete files that hold the positions of several data files.
        read_polars = read_polars_native if self.granularity == "file" else read_polars_pyiceberg
        for read in (read_duckdb, read_polars):
            assert_same_rows(read(table), rows, read.__name__, f"version {self.synced}")
        for part in PARTS:
            found = _scan(table, row_filter=EqualTo("part", part))
            assert_same_rows(found, (row for row in rows if row[1] == part), f"PyIceberg, part = {part}")
            found = by_spec.rows(("part", part))
            assert_same_rows(found, (row for row in rows if row[1] == part), f"specification, part = {part}")
        for number in {row[0] for row in (*rows[:1], *rows[-1:])}:
            found = _scan(table, row_filter=EqualTo("id", number))
            assert_same_rows(found, (row for row in rows if row[0] == number), f"PyIceberg, id = {number}")
            found = by_spec.rows(("id", number))
            assert_same_rows(found, (row for row in rows if row[0] == number), f"specification, id = {number}")


def _expected(states: Sequence[State], sizes: Mapping[str, int]) -> dict[str, int]:
    """Counts of a snapshot from the first of `states` to the last: files of which rows came back, or which were gone in
    between, leave and join, the others keep their entry.
    """
    before, after = states[0], states[-1]
    joined = {path for path in after.deleted if before.deleted.get(path, {-1}) - after.deleted[path]}
    joined |= {path for path in after.deleted if any(path not in state.deleted for state in states)}
    left = {path for path in before.deleted if path not in after.deleted or path in joined}
    grown = sum(len(after.deleted[path] - before.deleted[path]) for path in after.deleted if path not in joined)
    return {
        "added-data-files": len(joined),
        "deleted-data-files": len(left),
        "added-records": sum(sizes[path] for path in joined),
        "deleted-records": sum(sizes[path] for path in left),
        "added-position-deletes": sum(len(after.deleted[path]) for path in joined) + grown,
    }


def _positions(state: State) -> int:
    return sum(map(len, state.deleted.values()))


def _operation(expected: Mapping[str, int], *, only_moved: bool) -> str:
    if only_moved:
        return "replace"
    if not (expected["deleted-data-files"] or expected["added-position-deletes"]):
        return "append"
    return "overwrite" if expected["added-data-files"] else "delete"


def _live_entries(table: Table, snapshot: Snapshot | None) -> tuple[dict[str, SEQUENCED], dict[str, SEQUENCED]]:
    found: dict[bool, dict[str, SEQUENCED]] = {True: {}, False: {}}
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            is_data = entry.data_file.content is DataFileContent.DATA
            assert entry.data_file.file_path not in found[is_data], "one live entry a file"
            assert entry.sequence_number is not None
            found[is_data][entry.data_file.file_path] = (entry.data_file, entry.sequence_number)
    return found[True], found[False]


def _partition(data_file: DataFile) -> tuple[object, ...]:
    return tuple(data_file.partition[index] for index in range(len(data_file.partition)))


def _read_positions(path: str) -> list[tuple[str, int]]:
    found = pq.read_table(path.removeprefix("file://"))
    return list(zip(found["file_path"].to_pylist(), found["pos"].to_pylist(), strict=True))


def _scan(table: Table, **options: Any) -> list[Row]:
    return rows_of(table.scan(**options).to_arrow(), table.schema().fields)
