"""The hint of a table that something other than its Delta table has stopped is followed, until it is synced again.

The catalog, the Iceberg table, the configuration or the Delta log is harmed beside a running `dvsync run`. What only
Delta's own statements mend is in `tests/integration/test_hints.py`.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.types import LongType

from tests.kit.daemons import Daemon, command, daemon, until, write_config
from tests.kit.handmade import COLUMNS, HandmadeTable, sql_catalog
from tests.kit.readers import assert_readers_agree

NAME, TARGET = "orders", "lake.orders"
WITHOUT_SPARK = {**os.environ, "DVSYNC_DEFAULTS__ENGINE": "local"}
# Kinds of errors with parts of their hints; what follows each is what the hint says.
Steps = Iterator[tuple[str, str]]


@dataclass
class World:
    """A followed table of two data files, and the daemon that follows it."""

    folder: Path
    table: HandmadeTable
    running: Daemon

    def configure(self, **options: Any) -> None:
        """With options of the table, it is followed anew: until then, a poll may still go by the older ones."""
        told = "table.added" if options.keys() - {"verify"} else "config.reloaded"

        def count() -> int:
            return sum(line["event"] == told for line in self.running.lines)

        configure(self.folder, **options)
        before = count()
        self.running.signal(signal.SIGHUP)
        until(lambda: count() > before, f"the reload: {told}")

    @property
    def iceberg(self) -> Table:
        return self.catalog.load_table(TARGET)

    @property
    def catalog(self) -> SqlCatalog:
        return SqlCatalog("local", **sql_catalog(self.folder))

    @property
    def status(self) -> dict[str, Any]:
        return self.running.tables().get(NAME, {"state": "waiting", "error": None})

    def delete(self) -> int:
        """Commit one more deleted row. Returns the version."""
        path = max(self.table.live)
        return self.table.commit(self.table.delete({path: [len(self.table.deleted[path])]}), operation="DELETE")

    def dvsync(self, *words: str) -> None:
        done = command(self.folder / "config.yaml", *words)
        assert done.returncode == 0, done.stderr

    def forget_all(self) -> None:
        """Nobody knows the Iceberg table any more."""
        self.catalog.drop_table(TARGET)
        for path in self.folder.glob("state.db*"):
            path.unlink()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The table is left alone for the length of the block."""
        self.dvsync("pause", NAME)
        until(lambda: self.status["state"] == "paused", "the pause")
        yield
        self.dvsync("resume", NAME)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """No daemon runs for the length of the block."""
        self.running.signal(signal.SIGTERM)
        self.running.end()
        self.running.kill()
        self.running.lines.clear()
        yield
        self.running.launch()
        self.running.started()


def configure(folder: Path, *, verify: object = None, **options: Any) -> None:
    write_config(
        folder / "config.yaml",
        tables=[{"name": NAME, "source": "lake/orders", "target": TARGET, **options}],
        verify=verify or {"level": "off"},
    )


def metadata_files(world: World) -> list[Path]:
    return sorted((world.folder / "warehouse").rglob("*.metadata.json"))


def a_foreign_commit_is_overwritten(world: World) -> Steps:
    world.iceberg.append(pa.table({"id": [99], "part": ["a"], "value": ["foreign"]}))
    world.delete()
    yield "TargetChanged", "`dvsync resync orders`"
    world.dvsync("resync", NAME)


def a_foreign_commit_is_undone(world: World) -> Steps:
    iceberg = world.iceberg
    ours = iceberg.metadata.current_snapshot_id
    assert ours is not None
    iceberg.append(pa.table({"id": [99], "part": ["a"], "value": ["foreign"]}))
    world.delete()
    yield "TargetChanged", f"set the table to dvsync's last snapshot {ours} (CALL catalog.system.set_current_snapshot("
    world.iceberg.manage_snapshots().set_current_snapshot(ours).commit()
    world.dvsync("resume", NAME)


def a_foreign_column_is_overwritten(world: World) -> Steps:
    with world.iceberg.update_schema() as update:
        update.add_column("foreign", LongType())
    world.delete()
    yield "TargetChanged", "`dvsync resync orders`"
    world.dvsync("resync", NAME)


def a_rollback_to_the_last_snapshot_that_is_left_is_overwritten(world: World) -> Steps:
    """The hint does not name the snapshot that is current already."""
    world.running.synced_to(NAME, world.delete())
    newest = world.iceberg.current_snapshot()
    assert newest and newest.parent_snapshot_id
    with world.paused():
        world.iceberg.manage_snapshots().set_current_snapshot(newest.parent_snapshot_id).commit()
        world.iceberg.maintenance.expire_snapshots().by_id(newest.snapshot_id).commit()
    world.delete()
    yield "TargetChanged", "overwrite does so automatically."
    assert "set_current_snapshot" not in world.status["error"]["hint"]
    world.dvsync("resync", NAME)


def an_older_table_under_the_name_is_brought_up_to_date(world: World) -> Steps:
    """No hint is needed: the state database was of a table that is gone."""
    with older_table_under_the_name(world):
        world.delete()
    yield from ()


def an_older_table_is_taken_for_a_rollback_without_the_newer_metadata(world: World) -> Steps:
    """The file that would show that there were two tables is gone."""
    with older_table_under_the_name(world) as newer, world.stopped():
        Path(newer.metadata_location.removeprefix("file://")).unlink()
        world.delete()
    yield "TargetChanged", "overwrite does so automatically."
    world.dvsync("resync", NAME)


def an_older_table_is_taken_over_without_the_newer_store(world: World) -> Steps:
    """As after a move to another catalog, when the store of the former warehouse is switched off."""
    with older_table_under_the_name(world), world.stopped():
        with closing(sqlite3.connect(world.folder / "state.db")) as state, state:
            state.execute("UPDATE tables SET metadata_location = 'gone://bucket/00001.metadata.json'")
        world.delete()
    yield "ObjectStoreAway", "If that store is gone for good, run `dvsync resync orders`."
    world.dvsync("resync", NAME)


@contextmanager
def older_table_under_the_name(world: World) -> Iterator[Table]:
    """Gives the newer one, which was dropped. The table is left alone for the length of the block."""
    with world.paused():
        world.catalog.rename_table(TARGET, "lake.older")
        world.delete()
        world.dvsync("resync", NAME)
    until(lambda: world.status["synced_version"] == world.table.version, "the table that is made again")
    with world.paused():
        newer = world.iceberg
        world.catalog.drop_table(TARGET)
        world.catalog.rename_table("lake.older", TARGET)
        yield newer


def a_foreign_property_is_undone(world: World) -> Steps:
    mapping = world.iceberg.properties["schema.name-mapping.default"]
    with world.iceberg.transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": "[]"})
    world.delete()
    yield (
        "TargetChanged",
        "Restore schema.name-mapping.default, in which DROP COLUMN leaves a column's name, and run `dvsync resume",
    )
    with world.iceberg.transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": mapping})
    world.dvsync("resume", NAME)


def a_table_of_others_is_renamed(world: World) -> Steps:
    with world.stopped():
        world.forget_all()
        world.catalog.create_table(TARGET, pa.schema([("id", pa.int64())]))
    yield "TargetChanged", "rename or drop that table, then `dvsync resume orders`"
    world.catalog.rename_table(TARGET, "lake.theirs")
    world.dvsync("resume", NAME)


def a_target_of_another_delta_table_is_taken(world: World) -> Steps:
    other = HandmadeTable(world.folder / "lake" / "other")
    other.create()
    with world.stopped():
        world.forget_all()
        state, tables = {"url": "sqlite:///other.db"}, [{"source": "lake/other", "target": TARGET}]
        write_config(world.folder / "other.yaml", state=state, tables=tables)
        assert command(world.folder / "other.yaml", "sync").returncode == 0
    yield "TargetChanged", "stop that dvsync and `dvsync resync orders`"
    world.dvsync("resync", NAME)


def unreadable_metadata_is_restored(world: World) -> Steps:
    saved = {path: path.read_bytes() for path in metadata_files(world)}
    with world.stopped():
        for path in saved:
            path.write_bytes(b"{")
        world.delete()
    yield "TargetUnreadable", "Restore the file"
    for path, data in saved.items():
        path.write_bytes(data)
    world.dvsync("resume", NAME)


def a_table_without_readable_metadata_is_made_anew(world: World) -> Steps:
    with world.stopped():
        for path in metadata_files(world):
            path.write_bytes(b"{")
        world.delete()
    yield "TargetUnreadable", "`dvsync resync orders`, which goes back to the newest readable metadata file"
    world.dvsync("resync", NAME)


def a_table_whose_volume_is_lost_is_dropped(world: World) -> Steps:
    with world.stopped():
        shutil.rmtree(world.folder / "warehouse")
        world.delete()
    yield "ObjectMissing", "`dvsync resync orders`, which goes back to the newest readable metadata file"
    world.dvsync("resync", NAME)
    yield "TargetUnreadable", "drop lake.orders from the catalog"
    world.catalog.drop_table(TARGET)
    world.dvsync("resync", NAME)


def a_damaged_manifest_list_is_replaced(world: World) -> Steps:
    with world.stopped():
        for path in (world.folder / "warehouse").rglob("snap-*.avro"):
            path.write_bytes(b"Obj")
        world.delete()
    yield "TargetUnreadable", "run `dvsync resync orders`"
    world.dvsync("resync", NAME)


def a_new_schema_is_accepted(world: World) -> Steps:
    world.configure(on_schema_change="park")
    world.table.commit([{"metaData": world.table.metadata((*COLUMNS, ("city", "string")))}])
    world.delete()
    yield "SchemaChanged", "`dvsync resync orders`"
    world.dvsync("resync", NAME)


def a_new_schema_is_followed(world: World) -> Steps:
    world.configure(on_schema_change="park")
    world.table.commit([{"metaData": world.table.metadata((*COLUMNS, ("city", "string")))}])
    yield "SchemaChanged", "on_schema_change: follow, and run `dvsync resume orders`"
    world.configure(on_schema_change="follow")
    world.dvsync("resume", NAME)


def a_column_of_another_type_is_written_anew(world: World) -> Steps:
    columns = [("id", "long"), ("part", "string"), ("value", "long")]
    with world.paused():
        world.table.commit([{"metaData": world.table.metadata(columns)}])
    yield "Unsupported", "overwrite it in Delta first"
    world.table.overwrite([("id", "long"), ("part", "string")], {"id": 7, "part": "a"})
    world.dvsync("resync", NAME)


def a_difference_is_written_anew(world: World) -> Steps:
    world.configure(verify={"level": "metadata", "period": "1s", "on_difference": "park"})
    (deletes,) = (world.folder / "warehouse").rglob("*-deletes.parquet")
    deletes.write_bytes(deletes.read_bytes()[:-1])
    yield "ProofFailed", "`dvsync resync orders`"
    world.dvsync("resync", NAME)


def a_lower_format_version_is_taken_back(world: World) -> Steps:
    world.configure(format_version=3)
    world.delete()
    until(lambda: world.iceberg.metadata.format_version == 3, "the upgrade")
    world.configure(format_version=2)
    world.delete()
    yield "Unsupported", "format_version: 3"
    world.configure(format_version=3)
    world.dvsync("resume", NAME)


def a_catalog_that_is_away_comes_back(world: World) -> Steps:
    with closing(sqlite3.connect(world.folder / "catalog.db", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        world.delete()
        yield "CatalogAway", "dvsync tries again"


def a_catalog_file_that_is_replaced_is_opened_anew(world: World) -> Steps:
    """As when a backup is put back beside the running daemon, whose connections still have the former file."""
    catalog = world.folder / "catalog.db"
    shutil.copy(catalog, world.folder / "backup.db")
    (world.folder / "backup.db").rename(catalog)
    world.delete()
    yield from ()


def a_catalog_file_that_is_missing_is_brought_back(world: World) -> Steps:
    """Not taken for a catalog whose tables were all dropped; no command makes an empty one."""
    catalog, away = world.folder / "catalog.db", world.folder / "away.db"
    with world.stopped():
        catalog.rename(away)
        for command_line in (["show", NAME], ["config", "check", "--connect"]):
            done = command(world.folder / "config.yaml", *command_line, environment=WITHOUT_SPARK)
            assert "is the volume mounted?" in done.stdout + done.stderr
        world.delete()
    yield "CatalogAway", "is the volume mounted?"
    assert not catalog.exists()
    away.rename(catalog)


def a_catalog_file_that_is_lost_is_made_anew(world: World) -> Steps:
    (world.folder / "catalog.db").unlink()
    world.delete()
    yield "CatalogAway", "create an empty file in its place, and dvsync creates the Iceberg tables again"
    (world.folder / "catalog.db").touch()
    yield "CatalogAway", "after `dvsync resync orders`, without the wait"
    world.dvsync("resync", NAME)


def a_commit_that_is_half_written_is_finished(world: World) -> Steps:
    with world.paused():
        path = world.table.commit_path(world.delete())
        whole = path.read_bytes()
        path.write_bytes(whole[:-20])
    yield "CommitIncomplete", "dvsync will read it again"
    path.write_bytes(whole)


def a_log_that_lost_commits_is_restored(world: World) -> Steps:
    world.delete()
    version = world.delete()
    world.running.synced_to(NAME, version)
    newest = world.table.commit_path(version)
    with world.stopped():
        newest.rename(world.folder / "saved")
    yield "ObjectMissing", "Restore the log"
    (world.folder / "saved").rename(newest)


def a_missing_manifest_is_replaced(world: World) -> Steps:
    with world.stopped():
        for path in (world.folder / "warehouse").rglob("*-m*.avro"):
            path.unlink()
        world.table.commit([world.table.remove(min(world.table.live))])
    yield "ObjectMissing", "`dvsync resync orders`"
    world.dvsync("resync", NAME)


CASES = [
    a_foreign_commit_is_overwritten,
    a_foreign_commit_is_undone,
    a_foreign_column_is_overwritten,
    a_foreign_property_is_undone,
    a_table_of_others_is_renamed,
    a_target_of_another_delta_table_is_taken,
    unreadable_metadata_is_restored,
    a_table_without_readable_metadata_is_made_anew,
    a_table_whose_volume_is_lost_is_dropped,
    a_damaged_manifest_list_is_replaced,
    a_rollback_to_the_last_snapshot_that_is_left_is_overwritten,
    an_older_table_under_the_name_is_brought_up_to_date,
    an_older_table_is_taken_for_a_rollback_without_the_newer_metadata,
    an_older_table_is_taken_over_without_the_newer_store,
    a_new_schema_is_accepted,
    a_new_schema_is_followed,
    a_column_of_another_type_is_written_anew,
    a_difference_is_written_anew,
    a_lower_format_version_is_taken_back,
    a_catalog_that_is_away_comes_back,
    a_catalog_file_that_is_replaced_is_opened_anew,
    a_catalog_file_that_is_missing_is_brought_back,
    a_catalog_file_that_is_lost_is_made_anew,
    a_commit_that_is_half_written_is_finished,
    a_log_that_lost_commits_is_restored,
    a_missing_manifest_is_replaced,
]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    table = HandmadeTable(tmp_path / "lake" / "orders")
    table.create()
    paths = [table.write_file([(row, "a", "x") for row in range(first, first + 20)]) for first in (0, 20)]
    table.commit([table.add(path) for path in paths])
    configure(tmp_path)
    with daemon(tmp_path / "config.yaml") as running:
        made = World(tmp_path, table, running)
        running.synced_to(NAME, made.delete())
        yield made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_hint_leads_out(world: World, case: Callable[[World], Steps]) -> None:
    for kind, hint in case(world):

        def is_said(kind: str = kind, hint: str = hint) -> bool:
            error = world.status["error"]
            return error is not None and error["kind"] == kind and hint in error["hint"]

        until(is_said, f"{kind}: {hint}")
    shown = {"state": "synced", "synced_version": world.table.version, "lag_versions": 0}
    until(lambda: shown.items() <= world.status.items(), f"{case.__name__}, synced")
    iceberg = world.iceberg
    assert_readers_agree(iceberg, None, world.table.live_rows_in(iceberg.schema()), case.__name__)
