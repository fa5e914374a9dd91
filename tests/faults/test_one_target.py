"""Two names of one Iceberg table: catalogs that are one, and a catalog that ignores case.

The catalog is a real one of PyIceberg, on a database whose columns ignore case, as those of MySQL do.
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from typer.testing import Result

from daemon.errors import TargetChanged
from daemon.sync.context import Writer
from tests.kit.checks import rows_of
from tests.kit.daemons import daemon, until, write_config
from tests.kit.handmade import Bench, HandmadeTable, sql_catalog
from tests.kit.invoke import invoke

LOCAL = {"poll_interval": "100ms", "engine": "local"}
# How the second table's catalog and target are spelled, if the first one has `local` and `lake.orders`.
SPELLINGS = {"another catalog": ("LOCAL", "lake.orders"), "another case": ("local", "lake.Orders")}


def ignore_case(folder: Path) -> dict[str, str]:
    """Make the catalog's database, with columns that ignore case. Returns the catalog's properties."""
    properties = sql_catalog(folder)
    SqlCatalog("local", **properties).close()
    file = folder / "catalog.db"
    with closing(sqlite3.connect(file)) as database:
        made = [sql for (sql,) in database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
    file.unlink()
    with closing(sqlite3.connect(file)) as database:
        for sql in made:
            database.execute(sql.replace("VARCHAR(255)", "VARCHAR(255) COLLATE NOCASE"))
    return properties


def command(config: Path, *words: str) -> Result:
    return invoke([*words, "--config", str(config)])


def made(folder: Path, first_id: int) -> HandmadeTable:
    table = HandmadeTable(folder)
    table.create()
    table.commit([table.add(table.write_file([(first_id + n, "x", "v") for n in range(4)]))])
    return table


def delete_next(table: HandmadeTable) -> None:
    (path,) = table.live
    table.commit(table.delete({path: [len(table.deleted[path])]}))


def shown(folder: Path, target: str = "lake.orders") -> list[tuple[Any, ...]]:
    with closing(SqlCatalog("local", **sql_catalog(folder))) as catalog:
        return rows_of(catalog.load_table(target).scan().to_arrow())


@pytest.mark.parametrize(
    "spelling", [pytest.param("another catalog"), pytest.param("another case", marks=pytest.mark.long)]
)
def test_one_of_two_tables_keeps_the_target_and_the_other_is_parked(tmp_path, spelling):
    """Whichever came first, through syncs, full ones, a lost state database; another target, or a resync, leads out."""
    properties = ignore_case(tmp_path)
    tables = {"a": made(tmp_path / "a", 0), "b": made(tmp_path / "b", 100)}
    catalog, target = SPELLINGS[spelling]
    places = {"a": ("local", "lake.orders"), "b": (catalog, target)}

    def configure() -> Path:
        entries = [
            {"name": name, "source": table.location, "catalog": places[name][0], "target": places[name][1]}
            for name, table in tables.items()
        ]
        catalogs = {"local": properties, "LOCAL": properties}
        write_config(tmp_path / "config.yaml", defaults=LOCAL, catalogs=catalogs, tables=entries)
        return tmp_path / "config.yaml"

    config = configure()
    with daemon(config) as running:
        until(lambda: {"synced", "parked"} <= {each["state"] for each in running.tables().values()})
        first, second = sorted(tables, key=lambda name: running.tables()[name]["state"], reverse=True)
        for table in tables.values():
            delete_next(table)
        running.synced_to(first, 2)
        error = running.tables()[second]["error"]
        assert (error["kind"], running.tables()[second]["synced_version"]) == ("TargetChanged", None)
        assert f"is that of {first}, which shows {tables[first].location}" in error["message"]
        assert shown(tmp_path) == tables[first].live_rows()
        running.signal(signal.SIGTERM)
        assert running.end() == 0
    refused = command(config, "sync", second, "--full")
    assert (refused.exit_code, shown(tmp_path)) == (1, tables[first].live_rows())
    for path in tmp_path.glob("state.db*"):
        path.unlink()
    refused = command(config, "sync", second)
    assert f"{tables[second].location} has the id {tables[second].table_id}" in refused.output
    assert command(config, "sync").exit_code == 1
    assert shown(tmp_path) == tables[first].live_rows()
    # The hint is followed: the table goes to the second one, and the first one gets another target.
    places[first] = ("local", "lake.first")
    with daemon(configure()) as running:
        running.synced_to(first, 2)
        assert command(config, "resync", second).exit_code == 0
        running.synced_to(second, 2)
    assert shown(tmp_path) == tables[second].live_rows()
    assert shown(tmp_path, "lake.first") == tables[first].live_rows()


@pytest.fixture
def bench(tmp_path):
    """A function that makes the parts of one table of a daemon, whose catalog ignores case."""
    properties = ignore_case(tmp_path)
    opened: list[Bench] = []

    def make(name: str, table: HandmadeTable, target: str) -> Bench:
        opened.append(
            Bench(tmp_path, table.location, name=name, target=target, catalog=properties, writer=Writer("host"))
        )
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_a_copied_delta_table_is_another_one(tmp_path, bench):
    """It has the id of the first one, so the marker does not tell them apart; the Iceberg table's UUID does."""
    table = made(tmp_path / "a", 0)
    bench("a", table, "lake.t").sync()
    copy = HandmadeTable(Path(shutil.copytree(table.folder, tmp_path / "copy")), version=table.version)
    copy.commit([copy.add(copy.write_file([(100, "x", "v")]))])
    with pytest.raises(TargetChanged, match=r"lake\.T in the catalog local is that of a"):
        bench("copy", copy, "lake.T").sync()
    assert shown(tmp_path, "lake.t") == table.live_rows()


def test_a_commit_that_was_not_recorded_is_the_first_ones_all_the_same(tmp_path, bench, monkeypatch):
    """The process was killed between the commit and the record: the marker tells whose it is."""
    table, other = made(tmp_path / "a", 0), made(tmp_path / "b", 100)
    first, second = bench("a", table, "lake.t"), bench("b", other, "lake.T")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(
            first.store, "record_rebuilt", lambda *_args, **_options: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        first.sync()
    with pytest.raises(TargetChanged, match=f"id {table.table_id}, version 1"):
        second.sync()
    assert first.sync().to_version == 1
    assert shown(tmp_path, "lake.t") == table.live_rows()


def test_a_renamed_iceberg_table_is_followed_under_its_new_name(tmp_path, bench):
    """The former row stays until it is forgotten, and has the same UUID: the source is the same, so it is no other."""
    table = made(tmp_path / "a", 0)
    before = bench("lake.t", table, "lake.t")
    before.sync()
    uuid = before.iceberg().metadata.table_uuid
    before.catalogs.open("local").rename_table("lake.t", "lake.u")
    delete_next(table)
    after = bench("lake.u", table, "lake.u")
    assert after.sync().to_version == 2
    assert after.sync(full=True).to_version == 2
    assert (after.iceberg().metadata.table_uuid, shown(tmp_path, "lake.u")) == (uuid, table.live_rows())


def test_forgetting_the_former_spelling_does_not_drop_the_table(tmp_path):
    """`lake.T` became `lake.t` in the configuration, and the catalog takes them for one."""
    properties, table = ignore_case(tmp_path), made(tmp_path / "a", 0)
    for target in ("lake.T", "lake.t"):
        entry = {"source": table.location, "target": target}
        write_config(tmp_path / "config.yaml", defaults=LOCAL, catalogs={"local": properties}, tables=[entry])
        assert command(tmp_path / "config.yaml", "sync").exit_code == 0
    forgotten = command(tmp_path / "config.yaml", "forget", "lake.T", "--drop")
    assert "its Iceberg table lake.T is the target of lake.t" in forgotten.output
    assert shown(tmp_path, "lake.t") == table.live_rows()
    assert command(tmp_path / "config.yaml", "forget", "lake.T").exit_code == 0
