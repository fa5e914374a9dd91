"""Maintenance of a followed table, ours and other people's: Spark works on the same catalog, as somebody else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyiceberg.table import Table
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession

from daemon.config.settings import MaintenanceSettings
from daemon.errors import TargetChanged
from daemon.maintenance.expiry import Expiry
from daemon.maintenance.maintainer import Maintainer
from daemon.status.snapshots import choose_by_time, choose_by_version
from daemon.sync import transaction
from daemon.translate.plan import CommitPlan
from daemon.translate.planner import PositionDeletes
from tests.kit.follow import Followed, check_change
from tests.kit.handmade import HandmadeTable
from tests.kit.images import DATA, NOTHING, POSITION_DELETES, image_of
from tests.kit.readers import READERS, Row, assert_same_rows, rows_of
from tests.kit.service import InProcess
from tests.kit.spark_process import SparkRefused
from tests.kit.spark_session import on_catalog
from tests.kit.writer import Writer, date_commits

CREATE = (
    "CREATE TABLE {t} USING delta {by} TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    " AS SELECT id, concat('p', id % 2) AS part FROM range(0, {end}, 1, {files})"
)
SECOND = "INSERT INTO {t} SELECT id, 'second' FROM range(100, 110, 1, 1)"
VACUUM = "VACUUM {t} RETAIN 0 HOURS"
LONG_AGO_S = 30 * 86_400
# Delta goes back no further than it keeps files.
LONG_RETENTION = {"spark.databricks.delta.properties.defaults.deletedFileRetentionDuration": "interval 5000 weeks"}


def create(end: int = 40, files: int = 2, by: str = "") -> str:
    return CREATE.format(t="{t}", end=end, files=files, by=by)


def followed(writer: Writer, folder: Path, *, on_foreign_commit: str = "park", **maintenance: Any) -> Followed:
    """With `maintenance` as people write it; nothing waits for a grace period."""
    # The configuration would not take less than a minute.
    settings = MaintenanceSettings(**maintenance).model_copy(update={"orphan_grace_s": 0.0})
    options = {"maintenance": settings, "on_foreign_commit": on_foreign_commit}
    return Followed(InProcess(writer), folder, "file", options=options)


class SomebodyElse:
    """Spark's Iceberg catalog on the SQL catalog of dvsync. `{i}` in statements stands for the Iceberg table."""

    def __init__(self, table: Followed) -> None:
        self.spark, self.folder = table.writer.spark, table.bench.folder

    def sql(self, statement: str) -> list[SparkRow]:
        return self.spark(run_on_catalog, self.folder, statement)  # type: ignore[no-any-return]

    @property
    def app_id(self) -> str:
        return str(self.spark(application_id))


def run_on_catalog(session: SparkSession, folder: Path, statement: str) -> list[SparkRow]:
    return on_catalog(session, folder).sql(statement.replace("{i}", "local.lake.t")).collect()


def application_id(session: SparkSession) -> str:
    return str(session.sparkContext.applicationId)


def follow(table: Followed, *statements: str) -> None:
    """A snapshot for each of the statements, unchecked."""
    for statement in statements:
        table.sql(statement)
    table.sync()


def files_of(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}


def data_files_of(table: Followed) -> set[str]:
    return {path for path in files_of(table.source) if path.endswith(".parquet") and "/_delta_log/" not in path}


def versions_shown(table: Table) -> dict[int, int]:
    """The Delta version of each snapshot of ours."""
    return {
        snapshot.snapshot_id: int(str(snapshot.summary["dvsync.delta.version"]))
        for snapshot in table.snapshots()
        if snapshot.summary and snapshot.summary["dvsync.delta.version"] is not None
    }


def read_snapshot(table: Table, snapshot_id: int) -> list[Row]:
    return rows_of(table.scan(snapshot_id=snapshot_id).to_arrow(), table.schema().fields)


def assert_time_travel(table: Followed, snapshot_ids: Iterable[int]) -> None:
    """PyIceberg shows at each of the snapshots what Delta shows at its version."""
    iceberg = table.bench.iceberg()
    shown = versions_shown(iceberg)
    for snapshot_id in snapshot_ids:
        expected = rows_of(table.writer.delta(table.source, shown[snapshot_id]), iceberg.schema().fields)
        assert_same_rows(read_snapshot(iceberg, snapshot_id), expected, "PyIceberg", f"snapshot {snapshot_id}")


def unreadable(table: Table) -> set[int]:
    """The snapshots that a full read cannot read, by trying."""
    failing = set()
    for snapshot in table.snapshots():
        try:
            read_snapshot(table, snapshot.snapshot_id)
        except FileNotFoundError:
            failing.add(snapshot.snapshot_id)
    return failing


def snapshot_ids(table: Followed) -> list[int]:
    """The oldest first: Iceberg's JVM library writes them in no order."""
    snapshots = sorted(table.bench.iceberg().snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
    return [snapshot.snapshot_id for snapshot in snapshots]


# --- compaction ---


@pytest.mark.parametrize(
    ("partitioned", "granularity", "engine", "before", "after"),
    [pytest.param(False, "file", "spark", 10, 2, marks=pytest.mark.long), (True, "partition", "local", 10, 2)],
    ids=["whole-file", "partitioned-partition"],
)
def test_compaction(
    request: pytest.FixtureRequest,
    writer: Writer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    partitioned: bool,
    granularity: str,
    engine: Any,
    before: int,
    after: int,
) -> None:
    """Many delete files become few in one `replace` snapshot; no row changes, history stays, following goes on."""
    if engine == "spark":
        request.getfixturevalue("spark")
    for constant, value in (("DELETE_FILES_MAX", 4), ("PARTITION_DELETE_FILES_MAX", 4), ("DELETED_SHARE", 1)):
        monkeypatch.setattr(f"daemon.maintenance.compaction.{constant}", value)
    here = InProcess(writer, engine=engine)
    table = Followed(here, tmp_path, granularity)
    follow(table, create(by="PARTITIONED BY (part)" if partitioned else ""))
    follow(table, *(f"DELETE FROM {{t}} WHERE id div 2 % 10 = {number}" for number in range(5)))
    table.sync_and_check("many deletes")
    crowded, ids = table.image, snapshot_ids(table)
    assert len(crowded.delete_files) == before

    maintainer = Maintainer(table.bench.context)
    would = maintainer.compact(Event(), dry_run=True)
    assert snapshot_ids(table) == ids
    done = maintainer.compact(Event())
    assert (done.delete_files_before, done.delete_files_after, done.data_files) == (
        before,
        after,
        len(crowded.positions),
    )
    assert replace(would, snapshots=1) == done
    iceberg = table.bench.iceberg()
    truth = table.truth(iceberg)
    image = table.check(iceberg, truth, "the compacted table")
    assert check_change(crowded, image, truth, "replace", set()) == 0
    assert (len(image.delete_files), image.positions) == (after, crowded.positions)
    assert [*ids, image.snapshot_id] == snapshot_ids(table)
    assert image.summary["dvsync.delta.operation"] == "compact"
    assert maintainer.compact(Event()).snapshots == 0
    table.image = image

    table.step("DELETE FROM {t} WHERE id IN (12, 13, 32)", operation="delete")
    table.step("RESTORE TABLE {t} TO VERSION AS OF 3")  # which shrinks every deletion vector
    assert_time_travel(table, (ids[0], ids[-2], ids[-1], image.snapshot_id))
    table.step("DELETE FROM {t} WHERE id IN (14, 15, 34)", operation="delete")
    table.step("OPTIMIZE {t}", operation="replace")
    assert not table.image.delete_files
    table.check_leftovers()


@pytest.mark.long
def test_compaction_after_a_restore(writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector that shrank below what was compacted is shown as it is, and crowds again, and is compacted again."""
    monkeypatch.setattr("daemon.maintenance.compaction.DELETE_FILES_MAX", 1)
    table = Followed(InProcess(writer), tmp_path, "partition")
    follow(table, create())
    for digits in ((1, 2, 3), (4, 5, 6)):
        follow(table, *(f"DELETE FROM {{t}} WHERE id % 10 = {digit}" for digit in digits))
        assert Maintainer(table.bench.context).compact(Event()).snapshots == 1
        table.sync_and_check("the compacted table")
        assert len(table.image.delete_files) == 1
        table.step("RESTORE TABLE {t} TO VERSION AS OF 1")


def test_a_delete_file_that_dangles_is_noticed(writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check behind each step names a delete file that outlives its data files."""
    complete = PositionDeletes.complete

    def complete_badly(*args: Any, **options: Any) -> CommitPlan:
        completed = complete(*args, **options)
        return replace(completed, delta=replace(completed.delta, removed_delete_files={}))

    table = followed(writer, tmp_path)
    table.step(create(), operation="append")
    table.step("DELETE FROM {t} WHERE id % 7 = 1", operation="delete")
    served = {entry.referenced: path for path, entry in table.image.delete_files.items()}
    monkeypatch.setattr(PositionDeletes, "complete", complete_badly)
    monkeypatch.setattr(transaction, "check_account", lambda *_: None)  # which would refuse it before
    table.sql("OPTIMIZE {t}")
    table.bench.sync()
    with pytest.raises(AssertionError, match="dangles") as raised:
        image_of(table.bench.iceberg())
    assert any(f"{path} dangles: {data_path} is not live" in str(raised.value) for data_path, path in served.items())


# --- expiry ---


def test_branches_and_tags_keep_snapshots(writer: Writer, tmp_path: Path) -> None:
    """Expiry takes what Iceberg's own expiry would take, with branches and tags of other people."""
    table = followed(writer, tmp_path, snapshot_age_max="0s")
    theirs, maintainer = SomebodyElse(table), Maintainer(table.bench.context)
    follow(table, create())
    theirs.sql("ALTER TABLE {i} SET TBLPROPERTIES ('history.expire.min-snapshots-to-keep' = '2')")
    follow(table, *(f"DELETE FROM {{t}} WHERE id % 7 = {number}" for number in range(6)))
    first, *_ = ids = snapshot_ids(table)
    assert len(ids) == 7
    theirs.sql(f"ALTER TABLE {{i}} CREATE TAG audit AS OF VERSION {ids[1]} RETAIN 365 DAYS")
    theirs.sql(f"ALTER TABLE {{i}} CREATE BRANCH short AS OF VERSION {ids[3]} WITH SNAPSHOT RETENTION 1 SNAPSHOTS")
    theirs.sql("INSERT INTO {i}.branch_short VALUES (1000, 'theirs')")
    on_branch = table.bench.iceberg().metadata.refs["short"].snapshot_id
    theirs.sql("ALTER TABLE {i} SET TBLPROPERTIES ('gc.enabled' = 'true')")

    expected = set(writer.spark(expired_by_iceberg, theirs.folder, 2))
    assert expected == {first, ids[2], ids[3], ids[4]}
    assert set(maintainer.expire(dry_run=True).expired) == expected
    assert maintainer.expire() == Expiry(expired=(first, *ids[2:5]))
    assert maintainer.expire() == Expiry()
    assert set(snapshot_ids(table)) == {ids[1], ids[5], ids[6], on_branch}

    maintainer.clean_up(Event())
    table.sync_and_check("the expired table")
    table.step("DELETE FROM {t} WHERE id = 13", operation="delete")
    assert_time_travel(table, (ids[1], ids[5], ids[6]))
    assert (1000, "theirs") in read_snapshot(table.bench.iceberg(), on_branch)
    assert {row.part for row in theirs.sql("SELECT * FROM {i} VERSION AS OF 'audit'")} == {"p0", "p1"}
    table.step("OPTIMIZE {t}", operation="replace")


def expired_by_iceberg(session: SparkSession, folder: Path, min_snapshots: int) -> list[int]:
    """What Iceberg's RemoveSnapshots would take now; it commits nothing."""
    own, jvm = on_catalog(session, folder), session._jvm
    assert jvm is not None
    iceberg = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(own._jsparkSession, "local.lake.t")
    expiring = iceberg.expireSnapshots().expireOlderThan(jvm.System.currentTimeMillis()).retainLast(min_snapshots)
    return [snapshot.snapshotId() for snapshot in expiring.apply()]


def vacuum(table: Followed) -> None:
    before = data_files_of(table)
    table.sql(VACUUM)
    assert data_files_of(table) < before, "VACUUM removed something, or this test shows nothing"


def check_expiry(table: Followed, maintainer: Maintainer, *, held: Mapping[int, str] | None = None) -> Expiry:
    """`expire` names what cannot be read, and leaves what can; Delta's files stay through it and `clean_up`."""
    iceberg = table.bench.iceberg()
    gone, tags = unreadable(iceberg), dict(held or {})
    assert gone, "something is unreadable, or this test shows nothing"
    would = maintainer.expire(dry_run=True)
    assert set(would.unreadable) == gone - tags.keys()
    assert dict(would.held) == tags
    files, ids = files_of(table.source), set(snapshot_ids(table))
    done = maintainer.expire()
    assert done == would
    maintainer.clean_up(Event())
    assert files_of(table.source) == files, "the Delta table's folder changed"
    assert set(snapshot_ids(table)) == ids - set(done.expired)
    assert unreadable(table.bench.iceberg()) == tags.keys()
    table.sync_and_check("the expired table")
    return done


@pytest.mark.usefixtures("quick_vacuum")
def test_snapshots_that_vacuum_made_unreadable(writer: Writer, tmp_path: Path) -> None:
    """Exactly the snapshots that cannot be read are expired; a tag holds one, which is told, until it is dropped."""
    table = followed(writer, tmp_path)
    theirs, maintainer = SomebodyElse(table), Maintainer(table.bench.context)
    follow(table, create())
    follow(table, SECOND, "DELETE FROM {t} WHERE id % 7 = 1", "OPTIMIZE {t}", "DELETE FROM {t} WHERE id % 7 = 2")
    ids = snapshot_ids(table)
    assert maintainer.expire() == Expiry()
    vacuum(table)
    table.bench.sync()
    theirs.sql(f"ALTER TABLE {{i}} CREATE TAG audit AS OF VERSION {ids[1]}")
    done = check_expiry(table, maintainer, held={ids[1]: "audit"})
    assert set(done.unreadable) == {ids[0], ids[2]}

    table.step("INSERT OVERWRITE {t} SELECT id, 'new' FROM range(0, 10, 1, 1)", operation="overwrite")
    table.step("DELETE FROM {t} WHERE id = 3", operation="delete")
    vacuum(table)
    table.bench.sync()
    theirs.sql("ALTER TABLE {i} DROP TAG audit")
    done = check_expiry(table, maintainer)
    assert set(done.unreadable) == {ids[1], ids[3], ids[4]}
    table.step("DELETE FROM {t} WHERE id = 4", operation="delete")
    table.check_leftovers()


@pytest.mark.usefixtures("quick_vacuum")
def test_unreadable_beside_files_that_came_back(writer: Writer, tmp_path: Path) -> None:
    """Files that RESTORE brought back are there; that does not hide a younger one that VACUUM took."""
    table = followed(writer, tmp_path)
    follow(table, create(files=4))
    follow(table, SECOND, "OPTIMIZE {t}", "RESTORE TABLE {t} TO VERSION AS OF 0")
    vacuum(table)
    table.bench.sync()
    ids = snapshot_ids(table)
    done = check_expiry(table, Maintainer(table.bench.context))
    assert set(done.unreadable) == {ids[1], ids[2]}


@pytest.mark.usefixtures("quick_vacuum")
def test_unreadable_before_a_restored_state(writer: Writer, tmp_path: Path) -> None:
    """What left the table by the snapshot that brought back Delta's state is looked for as well."""
    table = followed(writer, tmp_path)
    theirs = SomebodyElse(table)
    table.step(create(), operation="append")
    theirs.sql("INSERT INTO {i} VALUES (1000, 'theirs')")
    table.sql("OPTIMIZE {t}")
    table.sql("DELETE FROM {t} WHERE id % 7 = 2")
    table.bench.sync(full=True)
    vacuum(table)
    table.bench.sync()
    ours, foreign = snapshot_ids(table)[:2]
    done = check_expiry(table, Maintainer(table.bench.context), held={foreign: "not dvsync's"})
    assert done.unreadable == (ours,)


def test_files_of_others_are_found_by_their_paths(writer: Writer, tmp_path: Path) -> None:
    """A snapshot with files of other people is readable, however Hadoop spells their paths."""
    table = followed(writer, tmp_path)
    theirs, maintainer = SomebodyElse(table), Maintainer(table.bench.context)
    table.step(create(), operation="append")
    theirs.sql("INSERT INTO {i} VALUES (1000, 'theirs')")
    theirs.sql("DELETE FROM {i} WHERE id = 1000")
    assert table.bench.sync(full=True).snapshots == 1
    ids = snapshot_ids(table)
    assert not unreadable(table.bench.iceberg())
    # Hadoop writes file:/…, which Arrow refuses as it is.
    assert maintainer.expire() == Expiry()
    maintainer.clean_up(Event())
    assert snapshot_ids(table) == ids
    assert not unreadable(table.bench.iceberg())
    table.sync_and_check("the maintained table")


def test_metadata_of_others_is_no_stray_file(writer: Writer, tmp_path: Path) -> None:
    """A scan leaves what Spark committed, however Hadoop spells the paths of its metadata files."""
    table = followed(writer, tmp_path)
    theirs, maintainer = SomebodyElse(table), Maintainer(table.bench.context)
    table.step(create(), operation="append")
    theirs.sql("ALTER TABLE {i} CREATE TAG theirs")
    theirs.sql("ALTER TABLE {i} CREATE BRANCH side")
    theirs.sql("INSERT INTO {i}.branch_side VALUES (1000, 'theirs')")
    files = files_of(table.bench.folder / "warehouse")
    # They are listed as file:///… and referenced as file:/…: the newest metadata file must not pass for a stray one.
    assert [file.path for file in maintainer.clean_up(Event(), scan=True, dry_run=True).found] == []
    maintainer.clean_up(Event(), scan=True, remove_found=True)
    assert files_of(table.bench.folder / "warehouse") == files
    table.sync_and_check("the table after a scan")
    table.step("DELETE FROM {t} WHERE id % 7 = 2", operation="delete")


# --- other people's maintenance ---


def expire_by_spark(theirs: SomebodyElse) -> None:
    theirs.sql("CALL local.system.expire_snapshots(table => 'lake.t', older_than => TIMESTAMP '2100-01-01')")


def remove_orphans_by_spark(theirs: SomebodyElse) -> list[SparkRow]:
    return theirs.sql("CALL local.system.remove_orphan_files(table => 'lake.t', dry_run => false)")


@pytest.mark.usefixtures("quick_vacuum")
def test_maintenance_by_spark(writer: Writer, tmp_path: Path) -> None:
    """Iceberg's procedures refuse our table. Whoever turns `gc.enabled` on while it is in step with Delta loses Delta's
    history and no live file, and the next commit turns it off again."""
    table = followed(writer, tmp_path)
    theirs = SomebodyElse(table)
    follow(table, create())
    follow(table, "DELETE FROM {t} WHERE id % 7 = 1", "OPTIMIZE {t}", "DELETE FROM {t} WHERE id % 7 = 2")
    table.sync_and_check("the table before")
    delta_files, iceberg_files = files_of(table.source), files_of(table.bench.folder / "warehouse")
    for procedure in (expire_by_spark, remove_orphans_by_spark):
        with pytest.raises(SparkRefused, match="GC is disabled"):
            procedure(theirs)
    assert files_of(table.source) == delta_files
    assert files_of(table.bench.folder / "warehouse") == iceberg_files

    theirs.sql("ALTER TABLE {i} SET TBLPROPERTIES ('gc.enabled' = 'true')")
    long_ago = table.bench.clock.now_ms() / 1000 - LONG_AGO_S  # remove_orphan_files leaves what is of today
    for path in delta_files | iceberg_files:
        os.utime(path, (long_ago, long_ago))
    remove_orphans_by_spark(theirs)
    assert files_of(table.source) == delta_files
    expire_by_spark(theirs)
    history = delta_files - files_of(table.source)
    assert history and not history & {path.removeprefix("file://") for path in table.live_adds()}
    assert len(snapshot_ids(table)) == 1
    image = table.check(table.bench.iceberg(), table.truth(table.bench.iceberg()), "what Spark left")
    assert image.snapshot_id == table.image.snapshot_id

    table.step("DELETE FROM {t} WHERE id % 7 = 3", operation="delete")
    assert table.bench.iceberg().properties["gc.enabled"] == "false"
    Maintainer(table.bench.context).run(Event())
    table.sync_and_check("the maintained table")
    table.step("DELETE FROM {t} WHERE id % 7 = 4", operation="delete")
    table.check_leftovers()


# --- foreign commits ---

# What Spark commits, the `write.delete.mode` for it, and the operation that its snapshot has.
FOREIGN = (
    ("INSERT INTO {i} VALUES (1000, 'theirs')", "copy-on-write", "append"),
    ("DELETE FROM {i} WHERE id % 5 = 0", "copy-on-write", "overwrite"),
    ("DELETE FROM {i} WHERE id % 5 = 1", "merge-on-read", "delete"),
    ("CALL local.system.rewrite_manifests('lake.t')", "merge-on-read", "replace"),
    (
        "CALL local.system.rewrite_position_delete_files(table => 'lake.t', options => map('rewrite-all', 'true'))",
        "merge-on-read",
        "replace",
    ),
)


def assert_parked(table: Followed, words: Iterable[str]) -> None:
    """Each sync is refused with these words and changes nothing in the Iceberg table."""
    location = table.bench.iceberg().metadata_location
    files = files_of(table.bench.folder / "warehouse")
    for _ in range(2):
        with pytest.raises(TargetChanged) as raised:
            table.bench.sync()
        for word in words:
            assert word in str(raised.value)
        assert raised.value.hint
    assert table.bench.iceberg().metadata_location == location
    assert files_of(table.bench.folder / "warehouse") == files


def assert_restored(table: Followed, *, full: bool) -> None:
    """One snapshot on top of theirs shows Delta's rows."""
    before, ids = table.bench.iceberg(), snapshot_ids(table)
    result = table.bench.sync(full=full)
    assert (result.snapshots, result.operation, result.to_version) == (1, "resync", table.version)
    iceberg = table.bench.iceberg()
    assert snapshot_ids(table) == [*ids, result.snapshot_id]
    current = iceberg.current_snapshot()
    assert current is not None and current.parent_snapshot_id == before.metadata.current_snapshot_id
    table.image = table.check(iceberg, table.truth(iceberg), "the restored table")
    assert table.image.summary["dvsync.delta.operation"] == "resync"


def crowd(table: Followed) -> None:
    follow(table, create(by="PARTITIONED BY (part)"))
    follow(table, "DELETE FROM {t} WHERE id % 7 = 1", "DELETE FROM {t} WHERE id % 7 = 2")
    table.sync_and_check("the table before")


def test_foreign_commits_are_told_and_undone_when_asked(writer: Writer, tmp_path: Path) -> None:
    """Whatever Spark commits parks the table, with who and what; a full sync restores it, and following goes on."""
    table = followed(writer, tmp_path)
    theirs = SomebodyElse(table)
    crowd(table)
    for number, (statement, mode, operation) in enumerate(FOREIGN):
        follow(table, f"DELETE FROM {{t}} WHERE id % 11 = {number}")
        ours = snapshot_ids(table)[-1]
        theirs.sql(f"ALTER TABLE {{i}} SET TBLPROPERTIES ('write.delete.mode' = '{mode}')")
        theirs.sql(statement)
        current = table.bench.iceberg().current_snapshot()
        assert current is not None and current.parent_snapshot_id == ours
        assert current.summary is not None and current.summary.operation.value == operation
        assert_parked(table, (str(current.snapshot_id), f"{operation} by spark", theirs.app_id))
        assert_restored(table, full=True)
    table.step("DELETE FROM {t} WHERE id % 11 = 5", operation="delete")
    back_to = snapshot_ids(table)[1]
    theirs.sql(f"CALL local.system.rollback_to_snapshot('lake.t', {back_to})")
    assert_parked(table, (f"rolled back from snapshot {table.image.snapshot_id}", f"to {back_to} (Delta version 1)"))
    assert_restored(table, full=True)
    table.step("RESTORE TABLE {t} TO VERSION AS OF 1")
    table.step("OPTIMIZE {t}", operation="replace")


def test_foreign_commits_are_overwritten_when_configured(writer: Writer, tmp_path: Path) -> None:
    """With on_foreign_commit: overwrite the next sync restores Delta's rows by itself, and the one after follows."""
    table = followed(writer, tmp_path, on_foreign_commit="overwrite")
    theirs = SomebodyElse(table)
    crowd(table)
    theirs.sql("ALTER TABLE {i} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    first = snapshot_ids(table)[0]
    for number, statement in enumerate(
        ("INSERT OVERWRITE {i} VALUES (1000, 'theirs')", "DELETE FROM {i} WHERE id % 5 = 0")
    ):
        theirs.sql(statement)
        table.sql(f"DELETE FROM {{t}} WHERE id % 11 = {number}")
        assert_restored(table, full=False)
        table.step(f"DELETE FROM {{t}} WHERE id % 13 = {number}", operation="delete")
    theirs.sql(f"CALL local.system.rollback_to_snapshot('lake.t', {first})")
    assert_restored(table, full=False)
    table.step("RESTORE TABLE {t} TO VERSION AS OF 1")
    Maintainer(table.bench.context).run(Event())
    table.sync_and_check("the maintained table")
    table.step("OPTIMIZE {t}", operation="replace")


# --- manifests ---


@pytest.mark.long
def test_merged_manifests_of_a_long_history(writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 120 commits with a low `commit.manifest.min-count-to-merge` there are few manifests, and all rows."""
    merging_from = 6
    monkeypatch.setattr("daemon.sync.news.COMMITS_MAX", 20)
    table = Followed(InProcess(writer), tmp_path)
    handmade = HandmadeTable(table.source, partitioned=True)
    handmade.create()
    table.bench.first_sync_empty(handmade)
    SomebodyElse(table).sql(
        f"ALTER TABLE {{i}} SET TBLPROPERTIES ('commit.manifest.min-count-to-merge' = '{merging_from}')"
    )
    for number in range(120):
        actions = [
            handmade.add(handmade.write_file([(number * 10 + row, f"p{number % 2}", "value") for row in range(10)]))
        ]
        if number % 3:
            path = list(handmade.live)[number // 2]
            actions += handmade.delete({path: [number % 10]})
        if number % 10 == 9:
            actions.append(handmade.remove(next(iter(handmade.live))))
        handmade.commit(actions)
        if number % 20 == 19:
            assert table.bench.sync().snapshots == 20
            image = image_of(table.bench.iceberg())
            for content in (DATA, POSITION_DELETES):
                manifests = {entry.manifest for entry in image.entries if entry.content == content}
                # What a commit adds and what it writes anew is not merged at once.
                assert len(manifests) <= merging_from + 1
    assert len(image.manifests) < len(image.data_files) / 5
    table.sync_and_check("a long history")
    assert table.image != NOTHING and len(snapshot_ids(table)) == 121
    assert sorted(READERS["PyIceberg"](table.bench.iceberg(), None)) == handmade.live_rows()
    table.sql("DELETE FROM {t} WHERE id % 10 = 5")
    table.sync_and_check("a DELETE by Spark")


def test_tags_and_read_lines_in_spark(writer: Writer, tmp_path: Path) -> None:
    """The line that `dvsync snapshots` prints for Spark, and dvsync's tag, give Delta's rows at the version."""
    table = Followed(InProcess(writer), tmp_path, "file", options={"tag_every": 2})
    for statement in (create(end=20), "DELETE FROM {t} WHERE id % 5 = 0", "DELETE FROM {t} WHERE id = 1", SECOND):
        with writer.confs(LONG_RETENTION):
            table.sql(statement)
        date_commits(table.source)
        table.bench.sync()
    someone, iceberg = SomebodyElse(table), table.bench.iceberg()
    for version in range(4):
        choice = choose_by_version(iceberg, version)
        expected = rows_of(writer.delta(table.source, version), iceberg.schema().fields)
        assert sorted(someone.sql(choice.read["Spark"])) == sorted(expected), version
        if version % 2 == 0:
            assert sorted(someone.sql(f"SELECT * FROM {{i}} VERSION AS OF 'delta-v{version}'")) == sorted(expected)
    for row in writer.rows("DESCRIBE HISTORY {t}", table.source).to_pylist():
        at_ms = round(row["timestamp"].timestamp() * 1000)
        for before_ms in (0, 1):
            found = choose_by_time(iceberg, table.bench.context.log, at_ms - before_ms)
            assert found.version == (row["version"] - before_ms if row["version"] >= before_ms else None)
    assert {row["name"] for row in someone.sql("SELECT * FROM {i}.refs")} == {"main", "delta-v0", "delta-v2"}
