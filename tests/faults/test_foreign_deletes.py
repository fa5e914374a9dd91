"""Deletes that others made in the Iceberg table come to Delta once, and no deleted row comes back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import unquote

import pytest
from pyiceberg.types import StringType

from daemon.delta_writer import vectors
from daemon.doctor.diagnosis import diagnose
from daemon.errors import TargetChanged, Unsupported
from daemon.iceberg.marker import shown_by
from daemon.maintenance.maintainer import Maintainer
from daemon.notices.notice import Notice
from daemon.sync import follower, foreign_deletes
from daemon.sync.follower import Follower
from tests.kit.checks import rows_of
from tests.kit.foreign import add_in_iceberg, delete_in_iceberg, expect, remove_in_iceberg
from tests.kit.handmade import Bench, HandmadeTable


class Both:
    """A Delta table of three files of six rows, in two partitions, and the Iceberg table, which is in step."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.delta = HandmadeTable(folder / "delta", partitioned=True)
        self.delta.create()
        self.a, self.b = (self._file(n, "x") for n in range(2))
        self.c = self._file(2, "y")
        self.delta.commit([self.delta.add(self.a), self.delta.add(self.b, deleted=[5]), self.delta.add(self.c)])
        options = {"deletes": "50%", **options}
        self.bench = Bench(folder / "dvsync", self.delta.location, table_options=options)
        self.bench.sync()

    def _file(self, number: int, part: str) -> str:
        return self.delta.write_file([(10 * number + row, part, f"v{row}") for row in range(6)])

    def delete(self, rows: Mapping[str, Iterable[int]], **how: bool) -> int:
        """Somebody deletes these rows in Iceberg, of files by their names in Delta."""
        return delete_in_iceberg(
            self.bench, {f"{self.delta.location}/{name}": each for name, each in rows.items()}, **how
        )

    def allow(self, share: str) -> None:
        self.bench.table_options["deletes"] = share
        self.bench.reopen()

    def doctor(self) -> tuple[str, str]:
        """What `dvsync doctor` says of writes to Delta."""
        found = diagnose(self.bench.settings, self.bench.context.log, self.bench.spark)
        (writes,) = (finding for finding in found.findings if finding.subject == "writes to Delta")
        return writes.verdict, writes.text

    def committed(self, version: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.delta.commit_path(version).read_text().splitlines()]

    def newest(self) -> int:
        return max(int(path.stem) for path in (self.delta.folder / "_delta_log").glob("*.json"))

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
    """One commit to Delta, one snapshot that names it, and the delete files stay; `doctor` says so before."""
    assert both.doctor() == (
        "followed",
        "deletes rows, by `dvsync delete` and what others delete in Iceberg, up to 50% of the rows at a time",
    )
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


def test_several_snapshots_and_both_sides(both: Both) -> None:
    """Snapshots come together, Delta deletes at the same time, the same rows and others, and is versions ahead."""
    both.delete({both.a: [0, 3], both.c: [0]}, together=True)
    both.delete({both.a: [1], both.c: [1]}, together=True)
    delta = both.delta
    delta.commit(delta.delete({both.a: [3, 4]}), operation="DELETE")
    more = delta.write_file([(100, "x", "v")])
    delta.commit([delta.add(more)])
    delta.commit(delta.delete({both.b: [0], both.c: [0, 1]}), operation="DELETE")
    result = both.bench.sync()
    expect(delta, {both.a: [0, 1]})
    assert (result.snapshots, result.to_version) == (1, 5)
    both.check()
    assert both.committed(5)[0]["commitInfo"]["operationMetrics"]["numDeletedRows"] == "2"
    # All that is deleted in Iceberg is deleted in Delta already: no commit.
    both.delete({both.b: [2]})
    delta.commit(delta.delete({both.b: [2, 3]}), operation="DELETE")
    both.bench.sync()
    both.check()
    # What follows goes on from there, also if rows come back.
    delta.commit([delta.remove(both.a), delta.add(both.a, deleted=[3])], operation="RESTORE")
    both.bench.sync()
    both.check()
    both.delete({both.a: [2]})
    both.bench.sync()
    expect(delta, {both.a: [2]})
    both.check()


def test_whole_files(both: Both) -> None:
    """All rows of a file by delete files, or the file itself: it is removed from Delta."""
    both.allow("80%")
    both.delete({both.a: range(6)})
    remove_in_iceberg(both.bench, [f"{both.delta.location}/{both.b}"])
    both.bench.sync()
    expect(both.delta, {both.a: range(6), both.b: range(5)})
    both.check()
    assert sorted(unquote(line["remove"]["path"]) for line in both.committed(2)[1:]) == sorted((both.a, both.b))


def test_files_that_delta_rewrote(both: Both) -> None:
    """The table does not track rows: without a commit to Delta its rows are back, and somebody is told."""
    notices: list[Notice] = []
    both.bench.context = replace(both.bench.context, notify=notices.append)
    both.bench.follower = Follower(both.bench.context)
    both.delete({both.a: [0, 3], both.c: [1]})
    delta = both.delta
    joined = delta.write_file([*delta.rows[both.a], *delta.rows[both.b][:5]])
    delta.commit([delta.remove(both.a), delta.remove(both.b), delta.add(joined)], operation="OPTIMIZE")
    both.bench.sync()
    both.check()
    (notice,) = notices
    assert "3 rows of 2 data files deleted in Iceberg are back" in notice.text
    assert "version 2 (OPTIMIZE), and the table does not track rows" in notice.text
    # RESTORE brings the file back before dvsync looks: the rows are where they were.
    both.delete({joined: [0, 10]})
    a = delta.add(both.a), delta.add(both.b, deleted=[5])
    delta.commit([delta.remove(joined), *a], operation="RESTORE")
    delta.commit([delta.remove(both.a), delta.remove(both.b), delta.add(joined)], operation="RESTORE")
    both.bench.sync()
    expect(delta, {joined: [0, 10]})
    both.check()


def test_rows_that_delta_deleted_or_moved_in_place(both: Both) -> None:
    """A MERGE that deletes other rows of the file does not matter; one that deletes the same may have moved them."""
    both.delete({both.a: [0, 3]})
    delta = both.delta
    changed = delta.write_file([(1, "x", "changed")])
    delta.commit([*delta.delete({both.a: [1]}), delta.add(changed)], operation="MERGE")
    both.bench.sync()
    expect(delta, {both.a: [0, 3]})
    both.check()
    both.delete({both.a: [2, 4]})
    changed = delta.write_file([(2, "x", "changed")])
    delta.commit([*delta.delete({both.a: [2]}), delta.add(changed)], operation="MERGE")
    both.bench.sync()
    both.check()


@pytest.mark.parametrize("after", ["delete_at", "rebuild"])
def test_killed_in_between(both: Both, monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    """Killed after Delta's commit, the next start makes none again, also if Delta has brought back the rows."""

    def killed(*arguments: Any, **options: Any) -> Any:
        done(*arguments, **options)
        raise KeyboardInterrupt

    module = foreign_deletes if after == "delete_at" else follower
    done = getattr(module, after)
    rows = {both.a: [0, 3], both.b: [1]}
    both.delete(rows)
    with monkeypatch.context() as patch:
        patch.setattr(module, after, killed)
        with pytest.raises(KeyboardInterrupt):
            both.bench.sync()
    both.bench.reopen()
    expect(both.delta, rows)
    delta = both.delta
    delta.commit([delta.remove(both.a), delta.add(both.a, deleted=[3])], operation="RESTORE")
    both.delete({both.a: [5]})
    both.bench.sync()
    expect(delta, {both.a: [5]})
    both.check()


def test_what_is_refused(both: Both) -> None:
    """Too many rows, other changes than deletes, a table that is not configured: parked, and Delta is as it was."""

    def refused(text: str) -> None:
        for _ in range(2):
            with pytest.raises(TargetChanged, match=text) as raised:
                both.bench.sync()
            assert "handmade 1" in raised.value.message
        assert both.newest() == both.delta.version

    both.delete({both.a: range(5), both.c: range(4)})
    refused(r"9 rows of 17 deleted, and the setting `deletes` is 50%")
    both.bench.sync(full=True)
    add_in_iceberg(both.bench, f"{both.delta.location}/{both.a}")
    refused("1 data file came, such as")
    both.bench.sync(full=True)
    both.delete({both.b: [0]})
    with both.bench.iceberg().update_schema() as update:
        update.add_column("more", StringType())
    with pytest.raises(TargetChanged, match="schema"):
        both.bench.sync()
    both.bench.sync(full=True)
    both.delete({both.b: [5]})
    shown = both.bench.sync()
    assert (shown.snapshots, both.newest()) == (1, both.delta.version)
    both.allow("command")
    both.delete({both.b: [0]})
    refused("was changed by someone else: not committed by dvsync: snapshot")
    both.delta.commit(
        [{"metaData": {**both.delta.metadata(), "configuration": {"delta.enableDeletionVectors": "false"}}}]
    )
    both.allow("50%")
    with pytest.raises(Unsupported):
        both.bench.sync()
    verdict, text = both.doctor()
    assert (verdict, "could not: the table does not allow new deletion vectors" in text) == ("note", True)
    assert both.newest() == both.delta.version


def test_optimized_on_the_way(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta joins files after dvsync has looked where the rows are: nothing is committed, and the rows are back."""
    put, delta = vectors.put_if_absent, both.delta

    def late(*arguments: Any) -> bool:
        joined = delta.write_file([*delta.rows[both.a], *delta.rows[both.b][:5]])
        delta.commit([delta.remove(both.a), delta.remove(both.b), delta.add(joined)], operation="OPTIMIZE")
        return put(*arguments)

    both.delete({both.a: [0]})
    with monkeypatch.context() as patch:
        patch.setattr(vectors, "put_if_absent", late)
        both.bench.sync()
    both.check()
    assert not list(delta.folder.glob("deletion_vector_*"))[1:], "the vector of the delete is removed"


def test_a_lost_memory_and_an_upgrade(tmp_path: Path) -> None:
    """Neither a lost state database nor an upgrade that is due loses a delete."""
    both = Both(tmp_path, format_version=2)
    both.delete({both.a: [0, 3]})
    both.bench.close()
    both.bench.state_file.unlink()
    both.bench.table_options["format_version"] = 3
    both.bench.open()
    both.bench.sync()
    expect(both.delta, {both.a: [0, 3]})
    both.check()
    assert both.bench.iceberg().metadata.format_version == 3


def test_the_target_of_another_table(tmp_path: Path) -> None:
    """A wrong target is refused although somebody has deleted rows there: no Delta table changes."""
    both = Both(tmp_path)
    other = HandmadeTable(tmp_path / "other")
    other.create()
    both.delete({both.a: [0]})
    bench = Bench(tmp_path / "dvsync", other.location, name="o", table_options={"deletes": "50%"})
    with pytest.raises(TargetChanged, match="is that of t"):
        bench.sync()
    bench.close()
    lost = Bench(tmp_path / "dvsync", other.location, state_name="o.db", table_options={"deletes": "50%"})
    with pytest.raises(TargetChanged, match="shows another Delta table"):
        lost.sync()
    lost.close()
    both.bench.sync()
    expect(both.delta, {both.a: [0]})
    both.check()


def test_overwritten_are_other_commits_only(both: Both) -> None:
    """With on_foreign_commit: overwrite, deletes still come to Delta, and rows that others add go."""
    both.bench.table_options["on_foreign_commit"] = "overwrite"
    both.bench.reopen()
    both.delete({both.a: [0]})
    both.bench.sync()
    expect(both.delta, {both.a: [0]})
    both.check()
    add_in_iceberg(both.bench, f"{both.delta.location}/{both.a}")
    both.bench.sync()
    both.check()


def test_maintenance_takes_over(both: Both) -> None:
    """Compaction replaces their delete files by dvsync's; cleanup never removes theirs."""
    for row in range(4):
        both.delete({both.a: [row]})
        both.bench.sync()
        expect(both.delta, {both.a: [row]})
    theirs = set(both.delta.folder.parent.rglob("00000-7-*"))
    assert theirs
    maintainer = Maintainer(both.bench.context)
    maintainer.compact(Event())
    both.check()
    shown = {each for each in both.bench.iceberg().inspect.delete_files()["file_path"].to_pylist()}
    assert len(shown) == 2
    if both.bench.iceberg().metadata.format_version == 2:
        assert not any("00000-7-" in path for path in shown)
    with both.bench.iceberg().transaction() as transaction:
        transaction.set_properties({"gc.enabled": "true"})
    maintenance = both.bench.iceberg().maintenance
    maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
    maintainer.clean_up(Event())
    maintainer.clean_up(Event(), scan=True, remove_found=True)
    assert set(both.delta.folder.parent.rglob("00000-7-*")) == theirs
    assert rows_of(both.bench.iceberg().scan().to_arrow()) == both.delta.live_rows()
