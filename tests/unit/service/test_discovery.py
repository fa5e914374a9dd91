"""Source patterns: which folders become tables, by which names, and what is said of those that do not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from daemon.clock import SystemClock
from daemon.config.load import load_settings
from daemon.errors import ConfigInvalid
from daemon.service.discovery import Found, discover
from daemon.store.locations import store_away
from daemon.store.storage import FileIOStorage
from state import TableRecord

CATALOGS = "catalogs: {local: {type: sql, uri: 'sqlite:///c.db', warehouse: warehouse}}\n"


def make_tables(folder: Path, *names: str) -> None:
    """As much of a Delta table as looking for one takes."""
    for name in names:
        log = folder / name / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020d}.json").write_text("")


def found(folder: Path, tables: str) -> Found:
    (folder / "config.yaml").write_text(f"{CATALOGS}tables:\n{tables}")
    return discover(load_settings(folder / "config.yaml"), SystemClock())


def test_a_table_never_gets_another_source_from_a_pattern(tmp_path):
    """A folder that comes to fit, or comes first, takes nobody's name; it is told, and an entry of its own moves it."""
    make_tables(tmp_path / "lake", "sales/orders")
    text = '- {source: lake/*/*/, target: "lake.{name}"}\n'
    before = found(tmp_path, text)
    owners = {table.name: table.source for table in before.tables}
    records = [TableRecord(1, table.name, table.source, table.target) for table in before.tables]
    make_tables(tmp_path / "lake", "a_backup/orders")
    settings = load_settings(tmp_path / "config.yaml")
    for earlier in (before, None):
        result = discover(settings, SystemClock(), records, earlier)
        assert {table.name: table.source for table in result.tables} == owners
        (reason,) = result.troubles.values()
        assert "lake.orders was followed from" in reason.message
    shutil.rmtree(tmp_path / "lake" / "sales")
    assert discover(settings, SystemClock(), records).tables == []


def named(result: Found) -> dict[str, str]:
    return {table.target: os.path.basename(table.source) for table in result.tables}


def test_every_delta_table_that_fits_is_found(tmp_path):
    """Folders without a log, hidden ones and files are passed over; each gets its own target, name and settings."""
    make_tables(tmp_path / "lake", "orders", "items", "_staging", ".trash")
    (tmp_path / "lake" / "notes").mkdir()
    (tmp_path / "lake" / "file").write_text("")
    result = found(tmp_path, '- {source: lake/*/, target: "lake.{name}", location: "out/{name}", poll_interval: 3s}\n')
    assert named(result) == {"lake.items": "items", "lake.orders": "orders"}
    assert result.troubles == {}
    items, orders = result.tables
    assert (orders.name, orders.catalog, orders.poll_interval_s) == ("lake.orders", "local", 3.0)
    assert orders.source == f"file://{tmp_path}/lake/orders"
    assert [table.location for table in (items, orders)] == [
        f"file://{tmp_path}/out/items",
        f"file://{tmp_path}/out/orders",
    ]


def test_a_pattern_may_have_stars_in_several_folders_and_parts_of_names(tmp_path):
    """`{parent}` is the folder above; other wildcards are plain characters."""
    make_tables(tmp_path / "lake", "eu/orders_1/delta", "us/orders_2/delta", "us/items/delta", "us/[x]/delta")
    result = found(tmp_path, '- {source: "lake/*/orders_*/delta", target: "{parent}.{name}"}\n')
    assert named(result) == {"orders_1.delta": "delta", "orders_2.delta": "delta"}
    result = found(tmp_path, '- {source: "lake/us/[*]/delta", target: "a.{parent}_{name}"}\n')
    assert named(result) == {"a.[x]_delta": "delta"}


def test_a_table_that_is_listed_by_itself_is_not_found_again(tmp_path):
    """Its own settings hold; the pattern has the rest."""
    make_tables(tmp_path / "lake", "orders", "items")
    result = found(
        tmp_path, '- {source: lake/*, target: "lake.{name}"}\n- {source: lake/orders, target: sales.orders}\n'
    )
    assert named(result) == {"sales.orders": "orders", "lake.items": "items"}


def test_a_pattern_leaves_out_what_it_excludes(tmp_path):
    """By the folder's name or by the last folders of its path; `*` fits parts of names, other wildcards are plain."""
    make_tables(tmp_path / "lake", "eu/orders", "eu/tmp_1", "us/orders", "us/voidy", "us/[x]")

    def left(*excluded: str) -> set[str]:
        pattern = f'- {{source: "lake/*/*", target: "{{parent}}.{{name}}", exclude: {list(excluded)}}}\n'
        return set(named(found(tmp_path, pattern)))

    assert left("tmp_*", "voidy") == {"eu.orders", "us.orders", "us.[x]"}
    assert left("us/*") == {"eu.orders", "eu.tmp_1"}
    assert left("eu/orders", "[x]", "lake/us/voidy") == {"eu.tmp_1", "us.orders"}
    assert len(left("orde", "us")) == 5


def test_what_cannot_be_followed_is_told_and_the_rest_goes_on(tmp_path):
    """A name that is no identifier, a target that is taken, a folder that is not there: each with its reason."""
    make_tables(tmp_path / "lake", "orders", "v1.2", "no 1", "no #1", "no#1")
    make_tables(tmp_path / "other", "orders")
    result = found(
        tmp_path,
        '- {source: lake/*, target: "lake.{name}"}\n'
        '- {source: other/*, target: "lake.{name}"}\n'
        '- {source: nowhere/*, target: "no.{name}"}\n',
    )
    assert named(result) == {"lake.orders": "orders"}
    told = {about.removeprefix(f"file://{tmp_path}/"): error.message for about, error in result.troubles.items()}
    assert "'v1.2' cannot be part of lake.{name}" in told["lake/v1.2"]
    assert "'no 1' cannot be part of lake.{name}" in told["lake/no 1"]
    for about in ("lake/no #1", "lake/no#1"):
        assert "contains '#' or '?'" in told[about], "another name would not help"
    assert told["other/orders"] == f"lake.orders is already the target of file://{tmp_path}/lake/orders"
    assert "the folder is not there" in told["nowhere/*"]


def test_a_place_that_vacuum_cleans_is_refused_when_its_table_is_found(tmp_path):
    """As it is for a table that is listed."""
    make_tables(tmp_path / "lake", "orders")
    result = found(tmp_path, '- {source: lake/*, target: "lake.{name}", location: "lake/{name}/iceberg"}\n')
    assert result.tables == []
    assert "where VACUUM removes every file" in str(result.troubles[f"file://{tmp_path}/lake/orders"])


def test_only_the_catalog_knows_whether_two_targets_are_one(tmp_path):
    """Two tenants at one address, or two spellings: nothing is refused. A common name is, whatever the catalog."""
    make_tables(tmp_path / "lake", "eu/orders", "us/Orders")
    make_tables(tmp_path / "other", "orders", "items")
    make_tables(tmp_path / "third", "items")
    (tmp_path / "config.yaml").write_text(
        "catalogs:\n  a: {uri: 'http://h', header.x-tenant: a}\n  b: {uri: 'http://h', header.x-tenant: b}\ntables:\n"
        '- {source: lake/*/*, target: "lake.{name}", catalog: a}\n'
        '- {source: other/*, target: "lake.{name}", catalog: b, name: "b-{name}"}\n'
        '- {source: third/*, target: "lake.{name}", catalog: a, name: "b-{name}"}\n'
    )
    result = discover(load_settings(tmp_path / "config.yaml"), SystemClock())
    targets = [f"{table.catalog} {table.target}" for table in result.tables]
    assert targets == ["a lake.orders", "a lake.Orders", "b lake.items", "b lake.orders"]
    (trouble,) = result.troubles.values()
    assert trouble.message.startswith(f"b-items is already the name of file://{tmp_path}/other/items; ")


@pytest.mark.parametrize("key", ["location", "delete_files_location"])
def test_two_found_tables_get_no_common_folder(tmp_path, key):
    """As it is for tables that are listed; nor one with a table that is listed."""
    make_tables(tmp_path / "lake", "eu/orders", "us/orders", "us/items")
    result = found(
        tmp_path,
        f'- {{source: lake/*/*, target: "{{parent}}.{{name}}", {key}: "out/{{name}}"}}\n'
        f"- {{source: listed, target: lake.listed, {key}: out/items/below}}\n",
    )
    assert {table.target for table in result.tables} == {"eu.orders", "lake.listed"}
    told = {about.removeprefix(f"file://{tmp_path}/lake/"): error.message for about, error in result.troubles.items()}
    overlap = "its files would overlap those of {} at file://" + f"{tmp_path}/out/"
    eu, listed = f"file://{tmp_path}/lake/eu/orders", f"file://{tmp_path}/listed"
    assert overlap.format(eu) + "orders; give each its own location" == told["us/orders"]
    assert overlap.format(listed) + "items/below; give each its own location" == told["us/items"]


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ("{source: lake/*, target: lake.orders}", "the target of a pattern must contain {name}"),
        ('{source: lake/*, target: "lake.{name}", name: all}', "the name of a pattern must contain {name}"),
        ('{source: lake/*, target: "lake.{name}", location: out}', "the location of a pattern must contain {name}"),
        ('{source: lake/orders, target: "lake.{name}"}', "need a source that contains `*`"),
        ("{source: lake/orders, target: lake.orders, exclude: [x]}", "exclude needs a source that contains `*`"),
        ('{source: lake/*, target: "lake.{name}", exclude: [/x]}', "is not a folder's name"),
    ],
)
def test_a_pattern_and_its_names_go_together(tmp_path, table, fault):
    """Told with its place, as every fault of the configuration."""
    with pytest.raises(ConfigInvalid) as raised:
        found(tmp_path, f"- {table}\n")
    assert str(raised.value).startswith("tables[0]")
    assert fault in str(raised.value)


def test_what_was_found_stays_while_its_folder_cannot_be_listed(tmp_path):
    """A lake that is not mounted has lost no table; one that was removed from it has, unless it is to be kept."""
    make_tables(tmp_path / "lake", "orders", "items")
    text = '- {source: lake/*, target: "lake.{name}"}\n'
    before, settings = found(tmp_path, text), load_settings(tmp_path / "config.yaml")
    shutil.rmtree(tmp_path / "lake" / "items")
    assert set(named(discover(settings, SystemClock(), (), before))) == {"lake.orders"}
    (tmp_path / "lake").rename(tmp_path / "elsewhere")
    unmounted = discover(settings, SystemClock(), (), before)
    assert set(named(unmounted)) == {"lake.items", "lake.orders"}
    assert list(unmounted.troubles) == [f"file://{tmp_path}/lake/*"]


def test_a_folder_that_cannot_be_looked_at_is_told_and_the_rest_goes_on(tmp_path):
    """Its own trouble and no other table's; what was followed from it before is followed on."""
    make_tables(tmp_path / "lake", "items", "orders")
    locked = tmp_path / "lake" / "locked"
    locked.mkdir()
    (locked / "_delta_log").symlink_to("_delta_log")  # a loop, which is no folder to anybody
    text = '- {source: lake/*, target: "lake.{name}"}\n'
    before = found(tmp_path, text)
    assert set(named(before)) == {"lake.items", "lake.orders"}
    assert list(before.troubles) == [f"file://{locked}"]
    settings = load_settings(tmp_path / "config.yaml")
    after_start = discover(settings, SystemClock(), [TableRecord(1, "lake.locked", f"file://{locked}", "lake.locked")])
    assert set(named(after_start)) == {"lake.items", "lake.locked", "lake.orders"}


def test_two_patterns_may_share_a_template(tmp_path):
    """Only what they find can clash."""
    make_tables(tmp_path / "a", "x")
    make_tables(tmp_path / "b", "y")
    result = found(tmp_path, '- {source: a/*, target: "lake.{name}"}\n- {source: b/*, target: "lake.{name}"}\n')
    assert named(result) == {"lake.x": "x", "lake.y": "y"}


def test_a_folder_below_a_star_stands_for_itself(tmp_path, monkeypatch):
    """One that lacks the rest of the pattern is passed over, one that cannot be listed is told: the others are found,
    and what was followed below it stays.
    """
    make_tables(tmp_path / "lake", "a/silver/orders", "b/silver/items")
    (tmp_path / "lake" / "lost+found").mkdir()
    text = '- {source: lake/*/silver/*/, target: "lake.{name}"}\n'
    before = found(tmp_path, text)
    assert (named(before), before.troubles) == ({"lake.orders": "orders", "lake.items": "items"}, {})
    inner = FileIOStorage.list_folders

    def denied(storage, directory):
        if directory.endswith("/b/silver"):
            raise store_away(directory, PermissionError(13, "Permission denied"))
        return inner(storage, directory)

    monkeypatch.setattr(FileIOStorage, "list_folders", denied)
    settings = load_settings(tmp_path / "config.yaml")
    alone = discover(settings, SystemClock())
    assert named(alone) == {"lake.orders": "orders"}
    assert list(alone.troubles) == [f"file://{tmp_path}/lake/b/silver"]
    assert "Permission denied" in str(alone.troubles)
    assert named(discover(settings, SystemClock(), (), before)) == named(before)
