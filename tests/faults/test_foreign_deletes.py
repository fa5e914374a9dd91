"""Deletes that others made in the Iceberg table come to Delta once, and no deleted row comes back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent
from pyiceberg.types import StringType

from daemon.config.settings import NoticeKind
from daemon.delta.commit_info import read_commit_info
from daemon.delta_writer import vectors
from daemon.doctor.diagnosis import diagnose
from daemon.errors import CorruptInput, ObjectMissing, StateStoreAway, TargetChanged, Unsupported
from daemon.iceberg.manifests import entry_key
from daemon.iceberg.marker import shown_by
from daemon.iceberg.pyiceberg_ext.records import data_file_record
from daemon.iceberg.references import live_entries
from daemon.iceberg.row_delta import RowDelta
from daemon.maintenance.maintainer import Maintainer
from daemon.notices.notice import Notice, Run
from daemon.sync import follower, foreign_deletes
from daemon.sync.follower import Follower
from state import LeaseLost
from tests.kit.checks import rows_of, table_id
from tests.kit.daemons import daemon, set_constants, write_config
from tests.kit.foreign import add_in_iceberg, commit, delete_in_iceberg, expect, remove_in_iceberg
from tests.kit.handmade import Bench, HandmadeTable, new_uuid
from tests.kit.handmade_managed import Managed
from tests.kit.handmade_mirrored import Mirrored

TRACKED = {
    "delta.enableDeletionVectors": "true",
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row_id",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row_version",
}


class Both:
    """A Delta table of three files of six rows, in two partitions, and the Iceberg table, which is in step."""

    def __init__(self, folder: Path, made: type[HandmadeTable] = HandmadeTable, **options: Any) -> None:
        self.delta = made(folder / "delta", partitioned=True)
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
        mirrors = {each.data_file: each.path for each in self.bench.store.list_live_mirrors(table_id(self.bench))}
        paths = {name: f"{self.delta.location}/{name}" for name in rows}
        return delete_in_iceberg(
            self.bench, {mirrors.get(paths[name], paths[name]): each for name, each in rows.items()}, **how
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
    assert both.bench.store.list_vectors(table_id(both.bench)) == []
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


def test_a_partition_deleted_by_pyiceberg(tmp_path: Path) -> None:
    """It leaves the deletions of a file that goes: the table is rewritten, and somebody is told what Delta lost."""
    both = Both(tmp_path, deletes="80%")
    notices: list[Notice] = []
    both.bench.context = replace(both.bench.context, notify=notices.append)
    both.bench.follower = Follower(both.bench.context)
    both.bench.iceberg().delete(EqualTo("part", "x"))
    both.bench.sync()
    expect(both.delta, {both.a: range(6), both.b: range(5)})
    both.check()
    assert [notice.event for notice in notices] == [NoticeKind.ROWS_DELETED]


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
    assert notice.event is NoticeKind.TARGET_CHANGED
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
    delta.commit(delta.delete({both.a: [0]}), operation="DELETE")
    both.bench.sync()
    expect(delta, {both.a: [0, 3]})
    both.check()
    both.delete({both.a: [2, 4]})
    changed = delta.write_file([(2, "x", "changed")])
    delta.commit([*delta.delete({both.a: [2]}), delta.add(changed)], operation="MERGE")
    both.bench.sync()
    both.check()
    # What a DELETE has deleted before, OPTIMIZE does not move.
    both.delete({both.c: [4]})
    delta.commit(delta.delete({both.c: [4]}), operation="DELETE")
    joined = delta.write_file([row for row in delta.rows[both.c] if row[0] != 24])
    delta.commit([delta.remove(both.c), delta.add(joined)], operation="OPTIMIZE")
    both.bench.sync()
    both.check()
    record = both.bench.context.find_record()
    assert record is not None
    outcomes = [run.outcome for run in both.bench.store.list_runs(record.id, runs_max=9)]
    assert outcomes.count("rejected") == 1, "that of rows 2 and 4"


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
    # As many rows as are deleted in Iceberg, and other ones.
    delta.commit([delta.remove(both.a), delta.add(both.a, deleted=[3, 4])], operation="RESTORE")
    both.delete({both.a: [5]})
    both.bench.sync()
    expect(delta, {both.a: [5]})
    both.check()


def test_told_once(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after that, a sync does not tell it again, and its lineage is the same."""
    published: list[Run] = []
    notices: list[Notice] = []

    def listen() -> None:
        context = replace(both.bench.context, publish=published.append, notify=notices.append)
        both.bench.follower = Follower(context)

    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    both.delta.commit(both.delta.delete({both.a: [1]}), operation="DELETE")
    both.delete({both.a: [0, 1]})
    listen()
    with monkeypatch.context() as patch:
        patch.setattr(follower, "rebuild", killed)
        with pytest.raises(KeyboardInterrupt):
            both.bench.sync()
    both.bench.reopen()
    listen()
    both.bench.sync()
    expect(both.delta, {both.a: [0, 1]})
    both.check()
    record = both.bench.context.find_record()
    assert record is not None
    assert [run.outcome for run in both.bench.store.list_runs(record.id, runs_max=9)] == ["deleted"]
    (notice,) = notices
    assert notice.event is NoticeKind.ROWS_DELETED and "in Delta by version 3: " in notice.text
    first, again = (run for run in published if run.deleted)
    assert first == again and first.deleted and first.deleted.rows == 1, "the other one had Delta deleted already"


def test_what_is_refused(both: Both) -> None:
    """Too many rows, other changes than deletes, a table that is not configured: parked, and Delta is as it was."""

    def refused(text: str, hint: str = "brings back Delta's state") -> None:
        for _ in range(2):
            with pytest.raises(TargetChanged, match=text) as raised:
                both.bench.sync()
            assert "handmade 1" in raised.value.message
            assert hint in (raised.value.hint or "")
        assert both.newest() == both.delta.version

    both.delete({both.a: range(5), both.c: range(4)})
    larger = "set a larger share for the table, then `dvsync resume t`. Else `dvsync resync t` brings back"
    refused(r"9 rows of 17 deleted, and the setting `deletes` is 50%", larger)
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


def test_a_commit_that_deletes_no_row(tmp_path: Path) -> None:
    """Such as what joins delete files: dvsync goes on, and says so."""
    both = Both(tmp_path)
    notices: list[Notice] = []
    both.bench.context = replace(both.bench.context, notify=notices.append)
    both.bench.follower = Follower(both.bench.context)
    with both.bench.iceberg().transaction() as transaction, transaction.update_snapshot().fast_append():
        pass
    both.bench.sync()
    both.check()
    (notice,) = notices
    assert notice.event is NoticeKind.TARGET_CHANGED
    assert "no row was deleted in Iceberg, where others committed: snapshot" in notice.text


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


@pytest.mark.parametrize(("made", "mirrors"), [(HandmadeTable, "refuse"), (Mirrored, "copy")])
def test_a_lost_memory_and_an_upgrade(made: type[HandmadeTable], mirrors: str, tmp_path: Path) -> None:
    """Neither a lost state database nor an upgrade that is due loses a delete, be it of a mirror's rows."""
    both = Both(tmp_path, made, format_version=2, mirrors=mirrors)
    both.delete({both.a: [0, 3]})
    both.bench.close()
    both.bench.state_file.unlink()
    both.bench.table_options["format_version"] = 3
    both.bench.open()
    both.bench.sync()
    expect(both.delta, {both.a: [0, 3]})
    both.check()
    assert both.bench.iceberg().metadata.format_version == 3


@pytest.mark.parametrize("preserved", [True, False])
def test_rows_that_have_ids(tmp_path: Path, preserved: bool) -> None:
    """OPTIMIZE moves them: they are deleted where they are now, if it says that it has kept their ids."""
    delta = HandmadeTable(tmp_path / "delta")
    (delta.folder / "_delta_log").mkdir(parents=True)
    protocol = {**delta.protocol(["deletionVectors", "domainMetadata", "rowTracking"])}
    protocol["readerFeatures"] = ["deletionVectors"]
    metadata = {**delta.metadata(), "configuration": TRACKED}
    delta.commit([{"protocol": protocol}, {"metaData": metadata}])
    first, second = (delta.write_file([(10 * n + row, "x", "v") for row in range(6)]) for n in range(2))

    def add(path: str, base: int, **more: Any) -> dict[str, Any]:
        action = delta.add(path, **more)
        action["add"] |= {"baseRowId": base, "defaultRowCommitVersion": 1}
        return action

    delta.commit([add(first, 0), add(second, 6)])
    bench = Bench(tmp_path / "dvsync", delta.location, table_options={"deletes": "50%"})
    with closing(bench):
        bench.sync()
        delete_in_iceberg(bench, {f"{delta.location}/{first}": [0, 3], f"{delta.location}/{second}": [1]})
        # The last row is new: it has no id of its own, and that of its place is not one of those.
        rows = [*reversed(delta.rows[second]), *delta.rows[first], (100, "x", "new")]
        joined = delta.write_file(rows)
        stored = pq.read_table(delta.folder / joined)
        ids = pa.array([*range(11, 5, -1), *range(6), None], pa.int64())
        pq.write_table(stored.append_column("_row_id", ids), delta.folder / joined)
        delta.commit_info = lambda: {"tags": {"delta.rowTracking.preserved": str(preserved).lower()}}  # type: ignore[method-assign]
        delta.commit([delta.remove(first), delta.remove(second), add(joined, 12)], operation="OPTIMIZE")
        bench.sync()
        if preserved:
            expect(delta, {joined: [4, 6, 9]})
        else:
            (record,) = bench.store.list_tables()
            (run, *_) = bench.store.list_runs(record.id, runs_max=9)
            assert "version 2 did not keep the row ids" in (run.message or "")
        assert rows_of(bench.iceberg().scan().to_arrow()) == delta.live_rows()
        assert not delta.commit_path(delta.version + 1).exists()


def test_a_row_that_is_deleted_twice(both: Both) -> None:
    """By two delete files: Delta's vector has it once, and so has dvsync's memory."""
    both.delete({both.a: [0]})
    both.delete({both.a: [0, 1]})
    both.bench.sync()
    expect(both.delta, {both.a: [0, 1]})
    both.check()
    record = both.bench.context.find_record()
    assert record is not None
    assert both.bench.store.count(record.id).deleted_positions == 3
    both.delta.commit(both.delta.delete({both.a: [2]}), operation="DELETE")
    both.bench.sync()
    both.check()


def test_a_row_that_is_deleted_again(both: Both) -> None:
    """Delta has brought it back in between."""
    both.delete({both.a: [3], both.b: [1]}, together=True)
    both.bench.sync()
    expect(both.delta, {both.a: [3], both.b: [1]})
    both.delta.commit([both.delta.remove(both.a), both.delta.add(both.a)], operation="RESTORE")
    both.bench.sync()
    both.check()
    both.delete({both.a: [3]})
    both.bench.sync()
    expect(both.delta, {both.a: [3]})
    both.check()


def test_other_changes_of_deletes_and_files(both: Both) -> None:
    """Rows that are not there, equality deletes, a file with a new sequence number, rows that come back: refused."""
    bench, path = both.bench, f"{both.delta.location}/{both.b}"
    both.delete({both.a: [6]})
    with pytest.raises(TargetChanged, match=f"deletes rows that {both.delta.location}/{both.a} does not have"):
        bench.sync()
    bench.sync(full=True)
    for change, text in (
        ("equality", "has equality deletes"),
        ("again", f"the data file {path} was removed and added again"),
        ("back", f"deleted rows of {path} are back"),
    ):
        table = bench.iceberg()
        snapshot = table.current_snapshot()
        assert snapshot is not None
        (file, manifest) = next(
            (entry.data_file, manifest)
            for entry, manifest in live_entries(table, snapshot, ManifestContent.DATA)
            if entry.data_file.file_path == path
        )
        new_id = new_uuid().int >> 65
        if change == "equality":
            fields = {"file_path": f"{path}-deletes", "record_count": 1, "file_size_in_bytes": 1, "equality_ids": [1]}
            deletes = data_file_record(
                list(file.partition),
                spec_id=file.spec_id,
                content=DataFileContent.EQUALITY_DELETES,
                file_format=FileFormat.PARQUET,
                **fields,
            )
            delta = RowDelta(new_id, added_delete_files=[deletes])
        elif change == "again":
            delta = RowDelta(new_id, added_data_files=[file], removed_data_files={manifest: {path}})
        else:
            removed = {
                manifest: {entry_key(entry.data_file)}
                for entry, manifest in live_entries(table, snapshot, ManifestContent.DELETES)
            }
            delta = RowDelta(new_id, removed_delete_files=removed)
        commit(bench, table, delta)
        with pytest.raises(TargetChanged, match=text):
            bench.sync()
        assert both.newest() == both.delta.version
        bench.sync(full=True)


def test_a_damaged_vector_of_theirs(tmp_path: Path) -> None:
    """Nothing of it comes to Delta."""
    both = Both(tmp_path, format_version=3)
    both.delete({both.a: [0]})
    (puffin,) = tmp_path.rglob("00000-7-*.puffin")
    data = bytearray(puffin.read_bytes())
    place = data.index(b"\xd1\xd3\x39\x64")
    # The row 0 becomes the row 1: only the checksum tells.
    row = data.index(b"\x00\x00", place + 30)
    data[row] = 1
    puffin.write_bytes(data)
    with pytest.raises(CorruptInput, match="checksum of a deletion vector"):
        both.bench.sync()
    assert both.newest() == both.delta.version


def test_an_older_delta(both: Both) -> None:
    """Its log is being restored, or a listing lags: no version is written that it had already."""
    delta = both.delta
    delta.commit(delta.delete({both.a: [1]}), operation="DELETE")
    both.bench.sync()
    both.delete({both.a: [0]})
    path = delta.commit_path(delta.version)
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(ObjectMissing, match="ends at version 1, but version 2 was synced already"):
        both.bench.sync()
    assert not path.exists()
    path.write_bytes(data)
    both.bench.sync()
    expect(delta, {both.a: [0]})
    both.check()


def test_without_the_lease_nothing_is_written(both: Both) -> None:
    """Another process may do the same."""

    def lost() -> None:
        raise LeaseLost("another process holds the lease")

    both.delete({both.a: [0]})
    context = both.bench.context
    both.bench.follower = Follower(replace(context, target=replace(context.target, check_lease=lost)))
    with pytest.raises(StateStoreAway):
        both.bench.sync()
    assert both.newest() == both.delta.version


def test_commits_that_say_much_of_themselves(tmp_path: Path) -> None:
    """Nothing is read without end: neither what others say of their commit, nor a file of a terabyte."""
    both = Both(tmp_path)
    delta, bench = both.delta, both.bench
    delta.commit_info = lambda: {"operationParameters": {"predicate": "x" * (2 << 20)}}  # type: ignore[method-assign]
    delta.commit([delta.add(delta.write_file([(100, "x", "v")]))])
    bench.sync()
    both.delete({both.a: [0]})
    delta.commit([delta.add(delta.write_file([(101, "x", "v")]))])
    bench.sync()
    expect(delta, {both.a: [0]})
    both.check()
    delta.commit_info = lambda: {"operationParameters": {"predicate": "x" * (17 << 20)}}  # type: ignore[method-assign]
    both.delete({both.a: [1]})
    delta.commit([delta.add(delta.write_file([(102, "x", "v")]))])
    with pytest.raises(Unsupported, match="line 1 of the commit file has more than 16777216 bytes") as raised:
        bench.sync()
    assert "dvsync resync" in (raised.value.hint or "")
    assert both.newest() == delta.version
    with delta.commit_path(delta.version).open("wb") as file:
        file.write(b'{"commitInfo": {"tags": {"a": "b"}}}\n')
        file.truncate(1 << 40)
    assert read_commit_info(bench.context.log, delta.version).tag("a") == "b"


def test_a_table_whose_catalog_manages_the_commits(tmp_path: Path) -> None:
    """Parked, and told why its deletes stay in Iceberg; the resync brings back the rows."""
    table = Managed(tmp_path / "delta")
    table.create()
    table.stage(6)
    options = {"deletes": "50%"}
    bench = Bench(
        tmp_path / "dvsync", table.location, table_options=options, entry=table.entry, storage=table.storage()
    )
    with closing(bench):
        bench.sync()
        (path,) = table.live
        delete_in_iceberg(bench, {f"{table.location}/{path}": [0]})
        files = {*table.folder.rglob("*")}
        with pytest.raises(TargetChanged, match="is 50%, but the Delta table's commits must go through its") as raised:
            bench.sync()
        assert (raised.value.hint or "").startswith(
            "If rows were deleted, delete them with Delta first. Then `dvsync resync t`"
        )
        bench.sync(full=True)
        assert {*table.folder.rglob("*")} == files
        assert rows_of(bench.iceberg().scan().to_arrow()) == table.live_rows()


def test_many_tables_of_one_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each, Delta gets what was deleted in its Iceberg table, and of the others nothing."""
    set_constants(monkeypatch, {"daemon.sync.news.CONTINUITY_INTERVAL_S": 0.2})
    tables = {f"t{number:02d}": HandmadeTable(tmp_path / "lake" / f"t{number:02d}") for number in range(20)}
    for number, table in enumerate(tables.values()):
        table.create()
        table.commit([table.add(table.write_file([(100 * number + row, "x", "v") for row in range(10)]))])
    deleted = {
        name: {path: [number % 7, 8]}
        for number, (name, table) in enumerate(tables.items())
        if number % 3 == 0
        for path in table.live
    }
    configured = [
        {
            "name": name,
            "source": table.location,
            "target": f"lake.{name}",
            "deletes": "20%",
            "format_version": 2 + number % 2,
        }
        for number, (name, table) in enumerate(tables.items())
    ]
    write_config(tmp_path / "config.yaml", tables=configured)
    logs = {}
    with daemon(tmp_path / "config.yaml") as running, ExitStack() as opened:
        for name, table in tables.items():
            running.synced_to(name, 1)
            logs[name] = {path: path.read_bytes() for path in table.folder.rglob("*") if path.is_file()}
        benches = {
            name: opened.enter_context(
                closing(Bench(tmp_path, table.location, target=f"lake.{name}", name=name, state_name="another.db"))
            )
            for name, table in tables.items()
        }
        snapshots = {
            name: delete_in_iceberg(
                benches[name], {f"{tables[name].location}/{path}": each for path, each in rows.items()}
            )
            for name, rows in deleted.items()
        }
        for name in deleted:
            running.synced_to(name, 2)
        for name, bench in benches.items():
            table = tables[name]
            if name in deleted:
                expect(table, deleted[name])
                info = json.loads(table.commit_path(2).read_text().splitlines()[0])["commitInfo"]
                assert info["operationParameters"]["icebergTable"] == f"lake.{name}"
                assert info["operationParameters"]["icebergSnapshotId"] == str(snapshots[name])
            files = {path: path.read_bytes() for path in table.folder.rglob("*") if path.is_file()}
            assert files.items() >= logs[name].items()
            # A vector, and a commit.
            assert len(files) - len(logs[name]) == (2 if name in deleted else 0)
            assert rows_of(bench.iceberg().scan().to_arrow()) == table.live_rows()
        assert not [line for line in running.lines if line["event"] in ("table.parked", "sync.failed")]


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
