"""Deletes that others made in the Iceberg table come to Delta once, and no deleted row comes back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from daemon.errors import TargetChanged
from daemon.iceberg.manifests import referenced_data_file
from daemon.iceberg.marker import shown_by
from tests.kit.checks import rows_of
from tests.kit.foreign import delete_in_iceberg, expect
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.readers import assert_readers_agree


class Both:
    """A Delta table of three files of six rows, in two partitions, and the Iceberg table, which is in step."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.delta = HandmadeTable(folder / "delta", partitioned=True)
        self.delta.create()
        self.a, self.b = (self._file(n, "x") for n in range(2))
        self.c = self._file(2, "y")
        self.delta.commit([self.delta.add(self.a), self.delta.add(self.b, deleted=[5]), self.delta.add(self.c)])
        options = {"foreign_deletes_max": "50%", **options}
        self.bench = Bench(folder / "dvsync", self.delta.location, table_options=options)
        self.bench.sync()

    def _file(self, number: int, part: str) -> str:
        return self.delta.write_file([(10 * number + row, part, f"v{row}") for row in range(6)])

    def delete(self, rows: Mapping[str, Iterable[int]], **how: bool) -> int:
        """Somebody deletes these rows in Iceberg, of files by their names in Delta."""
        return delete_in_iceberg(
            self.bench, {f"{self.delta.location}/{name}": each for name, each in rows.items()}, **how
        )

    def committed(self, version: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.delta.commit_path(version).read_text().splitlines()]

    def newest(self) -> int:
        return max(int(path.stem) for path in (self.delta.folder / "_delta_log").glob("*.json"))

    def delete_files(self) -> dict[str, int]:
        iceberg = self.bench.iceberg()
        return {task.file_path: 0 for task in iceberg.inspect.delete_files().to_pylist()} if iceberg else {}

    def check(self) -> None:
        """Delta's log has what the model has, and Iceberg shows it; another sync has nothing to do."""
        assert self.newest() == self.delta.version
        iceberg = self.bench.iceberg()
        marker = shown_by(iceberg)
        assert marker is not None and marker.version == self.delta.version
        assert rows_of(iceberg.scan().to_arrow()) == self.delta.live_rows()
        location = iceberg.metadata_location
        self.bench.reopen()
        assert self.bench.sync().outcome == "unchanged"
        assert self.bench.iceberg().metadata_location == location
        with self.bench.context.open_delta_state() as state:
            held = {add.path: add.deletion_vector.cardinality for add in state.read_adds() if add.deletion_vector}
        assert held == {
            f"{self.delta.location}/{name}": len(deleted) for name, deleted in self.delta.deleted.items() if deleted
        }


@pytest.fixture(params=[2, 3])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Both:
    return Both(tmp_path, format_version=request.param)


def test_deletes_come_to_delta(both: Both) -> None:
    """One commit to Delta, one snapshot that names it, and the delete files stay as they are."""
    rows = {both.a: [0, 3], both.b: [1]}
    snapshot_id = both.delete(rows)
    before = both.bench.iceberg().inspect.delete_files().to_pylist()
    result = both.bench.sync()
    expect(both.delta, rows)
    assert (result.snapshots, result.delete_files_added, result.to_version) == (1, 0, 2)
    both.check()
    assert both.bench.iceberg().inspect.delete_files().to_pylist() == before
    info = both.committed(2)[0]["commitInfo"]
    assert info["operation"] == "DELETE"
    assert info["operationParameters"]["icebergSnapshotId"] == str(snapshot_id)
    assert info["operationMetrics"]["numDeletedRows"] == "3"
