"""Ways back: a lost or old state database, a cut log, a table made anew, a long lag, a foreign commit; and refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from daemon.config.settings import LimitsSettings
from daemon.errors import CommitIncomplete, ObjectMissing, SyncError, TargetChanged, TargetUnreadable, Unsupported
from tests.kit.follow import Followed
from tests.kit.handmade import FEATURES, Bench, HandmadeTable
from tests.kit.readers import assert_readers_agree
from tests.kit.service import InProcess, Served, Service
from tests.kit.writer import Writer, forget_logs

CREATE = (
    "CREATE TABLE {t} USING delta TBLPROPERTIES"
    " ('delta.enableDeletionVectors' = 'true', 'delta.checkpointInterval' = '3')"
    " AS SELECT id, concat('n', id) AS name, id / 4 AS score FROM range(0, {end}, 1, {files})"
)


def create(end: int = 40, files: int = 2) -> str:
    return CREATE.format(t="{t}", end=end, files=files)


def state_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("state.db*"))


def snapshot_ids(bench: Bench | Served) -> list[int]:
    return [snapshot.snapshot_id for snapshot in bench.iceberg().snapshots()]


@pytest.mark.parametrize("granularity", [pytest.param("file", marks=pytest.mark.long), "partition"])
def test_lost_state_database(service: Service, tmp_path: Path, granularity: str) -> None:
    """A daemon that starts without its state database remembers everything again, without a snapshot, and goes on."""
    table = Followed(service, tmp_path, granularity)
    table.sql(create())
    table.sync()
    table.sql("DELETE FROM {t} WHERE id % 7 = 0")
    table.sql("UPDATE {t} SET name = 'new' WHERE id % 10 = 3")
    table.sql("ALTER TABLE {t} ADD COLUMN extra INT")  # a version without a snapshot
    table.bench.sync()
    before = snapshot_ids(table.bench)

    service.stop()
    for path in state_files(service.folder):
        path.unlink()
    service.start()
    result = table.sync_and_check("the rebuilt state")
    assert (result.outcome, result.snapshots) == ("rebuilt", 0)
    assert snapshot_ids(table.bench) == before
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")
    table.step("RESTORE TABLE {t} TO VERSION AS OF 1")  # which takes the column away again


def test_old_state_database(service: Service, tmp_path: Path) -> None:
    """A state database from before the last snapshots is brought up from the table, without a snapshot."""
    table = Followed(service, tmp_path)
    table.sql(create())
    table.sql("DELETE FROM {t} WHERE id % 7 = 0")
    table.bench.sync()
    service.stop()
    saved = tmp_path / "saved.db"
    assert not list(service.folder.glob("state.db-*")), "all of the database is in its one file"
    shutil.copy(service.state_file, saved)

    service.start()
    table.sql("DELETE FROM {t} WHERE id % 7 = 1")
    table.sql("UPDATE {t} SET name = 'new' WHERE id % 10 = 3")
    table.bench.sync()
    before = snapshot_ids(table.bench)
    service.stop()
    shutil.copy(saved, service.state_file)
    service.start()

    result = table.sync_and_check("the old state")
    assert (result.outcome, result.snapshots) == ("rebuilt", 0)
    assert snapshot_ids(table.bench) == before
    table.step("DELETE FROM {t} WHERE id % 7 = 2", operation="delete")


def test_cut_log(service: Service, tmp_path: Path) -> None:
    """Commits that were cleaned up before they were synced are made up for in one snapshot with Delta's rows."""
    table = Followed(service, tmp_path)
    table.sql(create())
    table.sql("DELETE FROM {t} WHERE id % 7 = 0")
    table.bench.sync()
    before = snapshot_ids(table.bench)
    with table.held():
        table.sql("DELETE FROM {t} WHERE id % 7 = 1 OR id < 5")
        table.sql("INSERT INTO {t} SELECT id, 'later', 0 FROM range(100, 110, 1, 1)")
        table.sql("UPDATE {t} SET name = 'new' WHERE id % 10 = 3")
        table.live_adds()
        assert (table.log_folder / f"{3:020d}.checkpoint.parquet").exists()
        for version in range(3):
            (table.log_folder / f"{version:020d}.json").unlink()

    result = table.sync_and_check("the cut log")
    assert (result.snapshots, result.to_version) == (1, 4)
    assert snapshot_ids(table.bench)[:-1] == before
    table.step("DELETE FROM {t} WHERE id % 7 = 2", operation="delete")


def test_table_made_anew(service: Service, tmp_path: Path) -> None:
    """A table made anew at the same path, shorter or longer, replaces the old one's rows in one snapshot."""
    table = Followed(service, tmp_path)
    table.sql(create())
    table.sql("DELETE FROM {t} WHERE id % 7 = 0")
    table.bench.sync()

    with table.held():
        remake(table)
        table.sql(create(end=10, files=1))
    assert table.sync_and_check("the shorter table").snapshots == 1
    with table.held():
        remake(table)
        table.sql(create(end=30, files=1))
        table.sql("DELETE FROM {t} WHERE id % 3 = 0")
        table.sql("INSERT INTO {t} SELECT id, 'later', 0 FROM range(100, 110, 1, 1)")
    result = table.sync_and_check("the longer table")
    assert (result.snapshots, result.to_version) == (1, 2)
    with table.held():
        remake(table)
        table.sql(
            "CREATE TABLE {t} USING delta TBLPROPERTIES"
            " ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name')"
            " AS SELECT concat('s', id) AS word, id AS score FROM range(0, 20, 1, 1)"
        )
    assert table.sync_and_check("a table of other columns, with column mapping").snapshots == 1
    table.step("DELETE FROM {t} WHERE score % 3 = 1", operation="delete")


def remake(table: Followed) -> None:
    shutil.rmtree(table.source)
    table.writer.do(forget_logs)
    table.forget()


def test_folded_versions(writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table far behind is brought up in one snapshot, whose marker tells the versions that it shows."""
    monkeypatch.setattr("daemon.sync.news.FOLD_AFTER_VERSIONS", 3)
    table = Followed(InProcess(writer), tmp_path)
    table.sql(create())
    table.bench.sync()
    table.sql("DELETE FROM {t} WHERE id % 7 = 0")
    table.sql("DELETE FROM {t} WHERE id % 7 = 1")
    table.sql("OPTIMIZE {t}")
    table.sql("DELETE FROM {t} WHERE id % 7 = 2")
    result = table.sync_and_check("the folded versions")
    assert (result.snapshots, result.from_version, result.to_version) == (1, 1, 4)
    marker = {key: table.image.summary[f"dvsync.delta.{key}"] for key in ("from-version", "version")}
    assert marker == {"from-version": "1", "version": "4"}
    table.step("DELETE FROM {t} WHERE id % 7 = 3", operation="delete")


@pytest.fixture
def handmade(tmp_path: Path) -> HandmadeTable:
    """A table of two files, one with a deletion vector."""
    table = HandmadeTable(tmp_path / "lake" / "t")
    table.create()
    return table


@pytest.fixture
def bench(tmp_path: Path, handmade: HandmadeTable) -> Bench:
    """dvsync on the handmade table, which it shows at version 1."""
    bench = Bench(tmp_path / "bench", handmade.location)
    bench.first_sync_empty(handmade)
    first = handmade.write_file([(number, "a", "first") for number in range(10)])
    second = handmade.write_file([(number, "b", "second") for number in range(10, 20)])
    handmade.commit([handmade.add(first, deleted=[1, 2]), handmade.add(second)])
    bench.sync()
    return bench


def delete_one_each(table: HandmadeTable, *positions: int) -> None:
    """A version for each position, deleted from one file."""
    for position in positions:
        table.commit(table.delete({next(iter(table.live)): [position]}))


def markers(bench: Bench) -> list[tuple[str | None, str | None]]:
    """The Delta versions of each snapshot: first, where there are several, and last."""
    summaries = [snapshot.summary for snapshot in bench.iceberg().snapshots()]
    return [
        (found["dvsync.delta.from-version"], found["dvsync.delta.version"]) for found in summaries if found is not None
    ]


def test_versions_share_a_snapshot_while_others_wait(
    handmade: HandmadeTable, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is there when others wait becomes one snapshot; before and after it each version has its own."""
    delete_one_each(handmade, 3, 4, 5, 6, 7)
    others_wait = chain([False], repeat(True))
    first = bench.follower.sync(others_wait=lambda: next(others_wait))
    assert (first.snapshots, first.to_version, first.more) == (1, 2, True)  # its turn is over
    result = bench.follower.sync(others_wait=lambda: True)
    assert (result.snapshots, result.from_version, result.to_version, result.more) == (1, 3, 6, False)
    delete_one_each(handmade, 8, 9)
    assert bench.follower.sync(others_wait=lambda: False).snapshots == 2
    assert markers(bench)[-4:] == [(None, "2"), ("3", "6"), (None, "7"), (None, "8")]
    assert_readers_agree(bench.iceberg(), None, handmade.live_rows())

    bench.close()
    bench.limits = LimitsSettings(one_snapshot_per_version=True)
    bench.open()
    monkeypatch.setattr("daemon.sync.news.FOLD_AFTER_VERSIONS", 1)  # far behind, too
    delete_one_each(handmade, 0, 0, 1)  # in the other file each
    for _ in range(3):
        assert bench.follower.sync(others_wait=lambda: True).snapshots == 1


def test_a_sync_that_is_to_stop_reads_no_further(handmade: HandmadeTable, bench: Bench) -> None:
    """Not even the versions that would share its snapshot."""
    delete_one_each(handmade, 3, 4)
    stop = Event()

    def others_wait() -> bool:
        stop.set()
        return True

    result = bench.follower.sync(stop=stop, others_wait=others_wait)
    assert (result.snapshots, result.more) == (0, True)


@pytest.mark.parametrize("folded", [False, True])
def test_a_name_that_is_used_again(handmade: HandmadeTable, bench: Bench, folded: bool) -> None:
    """A file that is removed, and another by its name: whether in one snapshot or in two, its own rows and counts."""
    path = handmade.write_file([(number, "c", "before") for number in range(100, 106)], name="fixed")
    handmade.commit([handmade.add(path, deleted=[2])])
    bench.sync()
    handmade.commit([handmade.remove(path)])
    if not folded:
        bench.sync()
    handmade.write_file([(number, "c", f"after {number}") for number in range(500, 509)], name="fixed")
    handmade.commit([handmade.add(path, deleted=[0])])
    bench.follower.sync(others_wait=lambda: folded)
    iceberg = bench.iceberg()
    assert_readers_agree(iceberg, None, handmade.live_rows())
    assert iceberg.scan(row_filter="id >= 500").to_arrow().num_rows == 8
    files = {row["file_path"]: row["record_count"] for row in iceberg.inspect.data_files().to_pylist()}
    assert files[f"{handmade.location}/{path}"] == 9


def truncate(table: HandmadeTable) -> None:
    path = table.commit_path(table.version)
    path.write_text(path.read_text().replace('"add"', '"add', 1))


def refuse(table: HandmadeTable) -> None:
    path = table.commit_path(table.version)
    path.write_text(path.read_text() + json.dumps(unknown_feature(table)) + "\n")


@pytest.mark.parametrize(("spoil", "kind"), [(truncate, CommitIncomplete), (refuse, Unsupported)])
def test_what_is_refused_among_versions_that_share_a_snapshot(
    handmade: HandmadeTable, bench: Bench, spoil: Callable[[HandmadeTable], None], kind: type[SyncError]
) -> None:
    """The versions before it are shown, and the error names it: as if each had a snapshot of its own."""
    delete_one_each(handmade, 3, 4)
    rows = handmade.live_rows()
    delete_one_each(handmade, 5)
    spoil(handmade)
    delete_one_each(handmade, 6)
    with pytest.raises(kind) as raised:
        while True:
            bench.follower.sync(others_wait=lambda: True)
    assert (raised.value.version, synced_version(bench)) == (4, 3)
    assert (raised.value.path or "").endswith(f"{4:020d}.json")
    assert_readers_agree(bench.iceberg(), None, rows)


def test_a_missing_file_among_versions_that_share_a_snapshot(handmade: HandmadeTable, bench: Bench) -> None:
    """The versions before it are shown, and the next one once it is back."""
    delete_one_each(handmade, 3, 4)
    rows = handmade.live_rows()
    delete_one_each(handmade, 5)
    lost = list(handmade.dv_files.values())[-1]
    lost.rename(lost.with_suffix(".away"))
    with pytest.raises(ObjectMissing) as raised:
        bench.follower.sync(others_wait=lambda: True)
    assert (raised.value.version, synced_version(bench)) == (4, 3)
    assert_readers_agree(bench.iceberg(), None, rows)
    lost.with_suffix(".away").rename(lost)
    assert bench.follower.sync(others_wait=lambda: True).to_version == 4


def synced_version(bench: Bench) -> int | None:
    return bench.store.open_table("t", bench.source, bench.target).synced_version


def assert_refused(bench: Bench, kind: type[SyncError], message: str) -> None:
    """Each try is refused with the same word, and neither the cursor nor the Iceberg table moves."""
    before = (synced_version(bench), snapshot_ids(bench))
    for _ in range(2):
        with pytest.raises(kind, match=message) as raised:
            bench.sync()
        assert raised.value.table == "t" and raised.value.hint
    assert (synced_version(bench), snapshot_ids(bench)) == before


def test_foreign_commit(handmade: HandmadeTable, bench: Bench) -> None:
    """Someone else's snapshot stops the table where it is; once it is rolled back, the table goes on."""
    iceberg = bench.iceberg()
    ours = iceberg.current_snapshot()
    assert ours is not None
    iceberg.append(pa.table({"id": [99], "part": ["x"], "value": ["foreign"]}))
    handmade.commit(handmade.delete({next(iter(handmade.live)): [3]}))
    assert_refused(bench, TargetChanged, "not committed by dvsync")

    roll_back(bench.iceberg(), ours.snapshot_id)
    assert bench.sync().snapshots == 1
    assert_readers_agree(bench.iceberg(), None, handmade.live_rows())


@pytest.mark.parametrize("what", ["manifest list", "DATA", "DELETES"])
@pytest.mark.parametrize(("damage", "state"), [("gone", "kept"), ("cut", "kept"), ("cut", "lost")])
def test_metadata_files_that_somebody_damaged(
    handmade: HandmadeTable, bench: Bench, what: str, damage: str, state: str
) -> None:
    """They are told, and `--full` writes the newest snapshot anew; the next syncs go on from there."""
    handmade.commit(handmade.delete({next(iter(handmade.live)): [1]}))
    bench.sync()
    iceberg = bench.iceberg()
    snapshot = iceberg.current_snapshot()
    assert snapshot is not None
    paths = {manifest.content.name: manifest.manifest_path for manifest in snapshot.manifests(iceberg.io)}
    path = Path({**paths, "manifest list": snapshot.manifest_list}[what].removeprefix("file://"))
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20])
    if state == "lost":
        bench.close()
        for file in state_files(bench.folder):
            file.unlink()
        bench.open()
    handmade.commit(handmade.delete({path: [0] for path in handmade.live}))

    kind = ObjectMissing if damage == "gone" else TargetUnreadable
    # A commit that only adds delete files opens no manifest.
    if what == "manifest list" or state == "lost":
        assert_refused(bench, kind, path.name)
    result = bench.sync(full=True)
    assert (result.operation, result.snapshots) == ("resync", 1)
    assert_readers_agree(bench.iceberg(), None, handmade.live_rows())
    handmade.commit(handmade.delete({path: [7] for path in handmade.live}))
    assert bench.sync().positions_added == len(handmade.live)
    assert_readers_agree(bench.iceberg(), None, handmade.live_rows())


def test_a_comparison_with_a_table_that_is_gone(handmade: HandmadeTable, bench: Bench) -> None:
    """Named as what it is, and nothing is taken off the Iceberg table."""
    log = handmade.folder / "_delta_log"
    log.rename(log.with_name("away"))
    before = snapshot_ids(bench)
    with pytest.raises(ObjectMissing, match="the Delta log is gone"):
        bench.sync(full=True)
    assert snapshot_ids(bench) == before
    log.with_name("away").rename(log)
    assert bench.sync(full=True).outcome in ("advanced", "unchanged")
    assert_readers_agree(bench.iceberg(), None, handmade.live_rows())


def roll_back(table: Table, snapshot_id: int) -> None:
    with table.manage_snapshots() as snapshots:
        snapshots.rollback_to_snapshot(snapshot_id)


def unknown_feature(table: HandmadeTable) -> dict[str, Any]:
    return {"protocol": table.protocol([*FEATURES, "fancyFeature"])}


def unknown_reader_version(table: HandmadeTable) -> dict[str, Any]:
    return {"protocol": {"minReaderVersion": 4, "minWriterVersion": 7}}


def column_of(kind: str) -> Callable[[HandmadeTable], dict[str, Any]]:
    def action(table: HandmadeTable) -> dict[str, Any]:
        columns = [("id", "long"), ("part", "string"), ("value", "string"), ("odd", kind)]
        return {"metaData": table.metadata(columns)}

    return action


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (unknown_feature, "fancyFeature"),
        (unknown_reader_version, "reader version 4"),
        (column_of("void"), "column odd has the type void"),
        (column_of("variant"), "column odd has the type variant"),
        (column_of("interval day to second"), "column odd has the type interval day to second"),
    ],
    ids=["feature", "reader-version", "void", "variant", "interval"],
)
def test_refused_commits(
    handmade: HandmadeTable, bench: Bench, action: Callable[[HandmadeTable], dict[str, Any]], message: str
) -> None:
    """A version that needs what Iceberg or dvsync does not have is refused by name, with the rows of its commit."""
    path = handmade.write_file([(30, "c", "third")])
    handmade.commit([action(handmade), handmade.add(path)])
    assert_refused(bench, Unsupported, message)


def test_refused_first_syncs(service: Service, tmp_path: Path) -> None:
    """A first sync refuses unknown features and column types by name, and makes no Iceberg table."""
    for number, (change, message) in enumerate(
        [
            (unknown_feature, "fancyFeature"),
            (column_of("void"), "column odd has the type void"),
            (column_of("interval day to second"), "column odd has the type interval day to second"),
        ]
    ):
        table = HandmadeTable(tmp_path / f"lake{number}" / "t")
        table.create()
        table.commit([change(table), table.add(table.write_file([(1, "a", "first")]))])
        assert_first_sync_refused(service, tmp_path / f"bench{number}", table.location, message)
    source = tmp_path / "variants"
    service.writer.sql("CREATE TABLE {t} (id INT, odd VARIANT) USING delta", source)
    assert_first_sync_refused(
        service, tmp_path / "bench", f"file://{source}", "variantType|column odd has the type variant"
    )


def assert_first_sync_refused(service: Service, folder: Path, source: str, message: str) -> None:
    bench = service.serve(folder, source)
    with pytest.raises(Unsupported, match=message) as raised:
        bench.sync()
    assert raised.value.hint
    assert not bench.exists()
    assert bench.status()["synced_version"] is None
