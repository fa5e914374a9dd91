"""A daemon whose tables change while it runs: SIGHUP with another configuration, and folders that come and go."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from tests.kit.daemons import Daemon, command, daemon, until, write_config
from tests.kit.handmade import HandmadeTable
from tests.kit.invoke import invoke

HEAD = """
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
health: {port: 0}
log: {format: json}
defaults: {poll_interval: 200ms, engine: local}
tables:
"""


def make_table(folder: Path) -> HandmadeTable:
    table = HandmadeTable(folder)
    table.create()
    return table


def append(table: HandmadeTable) -> int:
    return table.commit([table.add(table.write_file([(table.version, "x", "v")]))])


def port_of(running: Daemon) -> dict[str, str]:
    """The environment of a command that asks this daemon: its port is known only now."""
    return {**os.environ, "DVSYNC_HEALTH__PORT": running.url.rpartition(":")[2]}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def test_a_new_configuration_is_followed_and_a_faulty_one_refused(tmp_path, config):
    """Tables are added, changed and removed without a restart; what needs one is named; a fault changes nothing."""
    tables = {name: make_table(tmp_path / name) for name in ("a", "b", "c")}
    config.write_text(f"{HEAD}- {{source: a, target: lake.a}}\n- {{source: b, target: lake.b}}\n")
    with daemon(config) as running:
        for name in ("a", "b"):
            running.synced_to(f"lake.{name}", append(tables[name]))

        config.write_text(f"{HEAD}- {{source: a, target: lake.a}}\n- {{source: c, target: oops}}\n")
        running.signal(signal.SIGHUP)
        refused = running.told("config.refused")
        assert "tables[1].target: 'oops' is not an Iceberg identifier" in refused["reason"]
        assert "the changed configuration is refused" in running.reasons()
        asked = command(config, "status", environment=port_of(running))
        assert re.findall(r"^lake\.\w+ synced", asked.stdout, re.MULTILINE) == ["lake.a synced", "lake.b synced"]
        assert "has faults, which `dvsync config check` lists" in asked.stderr
        assert "version 1" in command(config, "history", "lake.b").stdout
        running.synced_to("lake.b", append(tables["b"]))

        config.write_text(f"{HEAD}- {{source: a, target: lake.a}}\n- {{source: c, target: lake.c}}\n")
        asked = command(config, "status", environment=port_of(running))
        assert "lake.c: the daemon does not follow it yet; SIGHUP makes it read" in asked.stderr
        asked = command(config, "status", environment={**port_of(running), "DVSYNC_SHARE": "1/2"})
        assert "follows share 1/1, not 1/2" in asked.stderr
        config.write_text(f"{HEAD}- {{source: a, target: lake.a, name: 2026-13-45}}\n")
        running.signal(signal.SIGHUP)
        until(lambda: sum(line["event"] == "config.refused" for line in running.lines) == 2)

        changed = HEAD.replace("state.db", "other.db").replace("8080", "8081")
        config.write_text(
            f"{changed}- {{source: c, target: lake.c}}\n- {{source: a, target: lake.a, poll_interval: 100ms}}\n"
        )
        running.signal(signal.SIGHUP)
        assert running.told("config.reloaded")["need_a_restart"] == ["state"]
        until(lambda: list(running.tables()) == ["lake.c", "lake.a", "lake.b"])
        until(lambda: running.tables()["lake.b"]["state"] == "gone", "the removed table, after its last sync")
        for name in ("a", "c"):
            running.synced_to(f"lake.{name}", append(tables[name]))
        until(lambda: running.reasons() == "")
        assert not (tmp_path / "other.db").exists()
        removed = [line["table"] for line in running.lines if line["event"] == "table.removed"]
        assert sorted(removed) == ["lake.a", "lake.b"]
        running.signal(signal.SIGTERM)
        assert running.end() == 0
    assert not [line for line in running.lines if line["level"] == "error" and line["event"] != "config.refused"]


def test_tables_of_a_pattern_are_picked_up_while_it_runs_and_stay_when_they_vanish(tmp_path, config):
    """A new folder is followed by itself; one that is moved away is shown as failing, not forgotten."""
    (tmp_path / "lake").mkdir()
    first = make_table(tmp_path / "lake" / "first")
    config.write_text(f"{HEAD}- {{source: lake/*/, target: 'lake.{{name}}'}}\n")
    with daemon(config) as running:
        running.synced_to("lake.first", append(first))
        second = make_table(tmp_path / "lake" / "second")
        running.synced_to("lake.second", append(second))
        make_table(tmp_path / "lake" / "dotted.name")
        until(lambda: "'dotted.name' cannot be part of" in running.reasons())

        shutil.move(tmp_path / "lake" / "first", tmp_path / "first")
        running.synced_to("lake.second", append(second))
        assert set(running.tables()) == {"lake.first", "lake.second"}
        running.signal(signal.SIGHUP)
        until(lambda: running.tables()["lake.first"]["state"] == "gone")

        shutil.move(tmp_path / "first", tmp_path / "lake" / "first")
        running.synced_to("lake.first", append(first))
        shutil.move(tmp_path / "lake", tmp_path / "unmounted")
        until(lambda: "the folder is not there" in running.reasons())
        assert set(running.tables()) == {"lake.first", "lake.second"}
        until(lambda: {table["state"] for table in running.tables().values()} == {"gone"})
        until(lambda: "; it found 2 tables before" in running.reasons())
        assert "its Delta log is gone" not in running.reasons()


def test_a_table_that_moves_to_another_catalog_says_where_its_former_one_stays(tmp_path, config):
    """Nobody drops it, because somebody may still read it."""
    table = make_table(tmp_path / "a")
    config.write_text(f"{HEAD}- {{source: a, target: lake.a, catalog: local}}\n")
    with daemon(config) as running:
        running.synced_to("lake.a", append(table))
        version = table.version
        second = '{second: {type: sql, uri: "sqlite:///second.db", warehouse: second},'
        moved = HEAD.replace("catalogs: {", f"catalogs: {second} ", 1)
        assert moved != HEAD
        config.write_text(f"{moved}- {{source: a, target: lake.a, catalog: second}}\n")
        running.signal(signal.SIGHUP)
        reason = running.told("target.overwritten")["reason"]
        assert reason.startswith(
            f"lake.a moved from the catalog local to second, where dvsync created it; the table in local stays at "
            f"version {version}: drop it when nobody reads it any more; the former table's metadata file was "
        )
        running.synced_to("lake.a", append(table))


def test_reloads_in_the_middle_of_work_lose_nothing(tmp_path, config):
    """Each changes the table in work; every version is shown in the end, and nothing failed."""
    table = make_table(tmp_path / "a")
    config.write_text(f"{HEAD}- {{source: a, target: lake.a}}\n")
    with daemon(config) as running:
        running.synced_to("lake.a", append(table))
        for interval in ("100ms", "300ms", "150ms"):
            for _ in range(3):
                append(table)
            config.write_text(f"{HEAD}- {{source: a, target: lake.a, poll_interval: {interval}}}\n")
            running.signal(signal.SIGHUP)
        running.synced_to("lake.a", table.version)
        assert not [line for line in running.lines if line["event"] in ("sync.failed", "table.parked")]


def test_a_table_that_gets_another_name_is_the_same_table(tmp_path, config):
    """What is remembered of it stays, by a reload and by a command: nobody else would clean up after the old name."""
    table = make_table(tmp_path / "a")
    config.write_text(f"{HEAD}- {{source: a, target: lake.a}}\n")
    with daemon(config) as running:
        running.synced_to("lake.a", append(table))
        config.write_text(f"{HEAD}- {{source: a, target: lake.a, name: orders}}\n")
        running.signal(signal.SIGHUP)
        running.synced_to("orders", append(table))
        assert list(running.tables()) == ["orders"]
        assert not [line for line in running.lines if line["event"] == "sync.rebuilt"]
    config.write_text(f"{HEAD}- {{source: a, target: lake.a, name: sales}}\n")
    append(table)
    assert command(config, "sync", "sales").stdout.startswith("sales: advanced, version")
    with closing(sqlite3.connect(tmp_path / "state.db")) as database:
        assert database.execute("select id, name from tables").fetchall() == [(1, "sales")]


def test_a_table_whose_folder_vanished_is_in_sight_until_it_is_forgotten(tmp_path, config):
    """Over a restart, too: in the log, the list, the page, the metrics and /readyz, and the hint can be followed."""
    (tmp_path / "lake").mkdir()
    table = make_table(tmp_path / "lake" / "orders")
    config.write_text(f"{HEAD}- {{source: lake/*/, target: 'lake.{{name}}'}}\n")
    with daemon(config) as running:
        running.synced_to("lake.orders", append(table))
    shutil.move(tmp_path / "lake" / "orders", tmp_path / "orders")
    with daemon(config) as running:
        assert running.told("table.gone")["level"] == "warning"
        status = until(lambda: running.tables().get("lake.orders"))
        assert (status["state"], status["synced_version"]) == ("gone", 1)
        assert "dvsync forget lake.orders" in status["error"]["hint"]
        assert "lake.orders: its folder is gone" in running.reasons()
        assert 'dvsync_table_state{state="gone",table="lake.orders"} 1.0' in running.fetch("/metrics")
        assert "gone" in running.fetch("/tables/lake.orders")
        listed = command(config, "status")
        assert (listed.returncode, listed.stdout.split()[:2]) == (1, ["lake.orders", "gone"])
        asked = command(config, "status", environment=port_of(running))
        assert asked.stderr.startswith(f"daemon: process {running.process.pid} ")
        assert asked.stdout == listed.stdout
        # The ages of files grow every two seconds.
        until(
            lambda: json.loads(command(config, "status", "--json").stdout) == list(running.tables().values()),
            "the same from both",
        )

        shutil.move(tmp_path / "orders", tmp_path / "lake" / "orders")
        running.synced_to("lake.orders", append(table))
        until(lambda: running.reasons() == "")
        assert "the table is still followed" in command(config, "forget", "lake.orders").stderr

    shutil.move(tmp_path / "lake" / "orders", tmp_path / "orders")
    with daemon(config) as running:
        until(lambda: running.tables().get("lake.orders"))
        assert command(config, "forget", "lake.orders").returncode == 0
        until(lambda: running.tables() == {})
        assert "lake.orders" not in running.reasons()


def test_tables_whose_folders_vanish_beside_the_daemon_are_gone_until_they_are_back(tmp_path, config):
    """Listed or found by a pattern: said everywhere, and followed on as soon as the folder is back."""
    listed, found = make_table(tmp_path / "listed"), make_table(tmp_path / "lake" / "orders")
    config.write_text(
        f"{HEAD}- {{source: listed, target: lake.listed}}\n- {{source: lake/*/, target: 'lake.{{name}}'}}\n"
    )
    names = ("lake.listed", "lake.orders")
    with daemon(config) as running:
        for name, table in zip(names, (listed, found), strict=True):
            running.synced_to(name, append(table))

        def states() -> set[str]:
            shown = running.tables()
            return {shown[name]["state"] if name in shown else "removed" for name in names}

        for folder in ("listed", "lake/orders"):
            shutil.move(tmp_path / folder, tmp_path / f"away-{folder.replace('/', '-')}")
        until(lambda: states() == {"gone"}, "both gone", wait_s=120)
        assert {status["lag_versions"] for status in running.tables().values()} == {None}, "nobody knows the source now"
        running.told("table.gone", table="lake.orders", wait_s=60)
        for name in names:
            assert f"{name}: its " in running.reasons()
            assert f'dvsync_table_state{{state="gone",table="{name}"}} 1.0' in running.fetch("/metrics")
        assert "the table is still followed" in command(config, "forget", "lake.listed").stderr
        waited = command(config, "sync", "lake.listed", "--wait", "--timeout", "5s")
        assert (waited.returncode, waited.stdout.startswith("lake.listed: gone: ")) == (1, True), waited

        for folder in ("listed", "lake/orders"):
            shutil.move(tmp_path / f"away-{folder.replace('/', '-')}", tmp_path / folder)
        versions = [append(table) for table in (listed, found)]
        for name, version in zip(names, versions, strict=True):
            running.synced_to(name, version)
        until(lambda: states() == {"synced"} and running.reasons() == "")

        shutil.move(tmp_path / "lake" / "orders", tmp_path / "orders")
        until(lambda: command(config, "forget", "lake.orders").returncode == 0, "forgotten", wait_s=120)
        until(lambda: set(running.tables()) == {"lake.listed"})

        shutil.move(tmp_path / "listed", tmp_path / "away-listed")
        until(lambda: states() == {"gone", "removed"}, "gone again", wait_s=120)
        hint = running.tables()["lake.listed"]["error"]["hint"]
        assert "exclude it from its pattern, and run `dvsync forget` with its name" in hint
        config.write_text(f"{HEAD}- {{source: lake/*/, target: 'lake.{{name}}'}}\n")
        running.signal(signal.SIGHUP)
        until(lambda: command(config, "forget", "lake.listed").returncode == 0, "forgotten")
        until(lambda: running.tables() == {})


def test_a_pattern_with_another_target_makes_other_tables(tmp_path, config):
    """The former ones are gone by the configuration's will: their folder is there, and nobody waits for it."""
    orders = make_table(tmp_path / "lake" / "orders")
    config.write_text(f"{HEAD}- {{source: lake/*/, target: 'lake.{{name}}'}}\n")
    with daemon(config) as running:
        running.synced_to("lake.orders", append(orders))
        config.write_text(config.read_text().replace("lake.{name}", "other.{name}"))
        running.signal(signal.SIGHUP)
        running.synced_to("other.orders", append(orders))
        gone = until(lambda: (shown := running.tables()["lake.orders"])["state"] == "gone" and shown)
        says = "no entry and no pattern of the configuration has a table of this name, source and target"
        assert gone["error"]["message"].startswith(says)
        assert running.get("/readyz")[0] == 200
    assert says in command(config, "status").stdout
    assert command(config, "forget", "lake.orders", "--drop").returncode == 0


def test_a_table_that_is_excluded_can_be_dropped(tmp_path, config):
    """It is gone, which keeps nobody from ready; `forget --drop` removes what dvsync wrote, and nothing of Delta's."""
    orders, voidy = (make_table(tmp_path / "lake" / name) for name in ("orders", "voidy"))
    path = voidy.write_file([(row, "x", "v") for row in range(9)])
    voidy.commit([voidy.add(path)])
    pattern = f"{HEAD}- {{source: lake/*/, target: 'lake.{{name}}', version_hint: true%s}}\n"
    config.write_text(pattern % "")
    written = tmp_path / "warehouse" / "lake" / "voidy"
    with daemon(config) as running:
        running.synced_to("lake.orders", append(orders))
        running.synced_to("lake.voidy", voidy.commit(voidy.delete({path: [1, 2]})))
        deltas = {each: each.read_bytes() for each in (tmp_path / "lake").rglob("*") if each.is_file()}
        config.write_text(pattern % ", exclude: [void*]")
        # The configuration does not say at which port the daemon answers.
        refused = command(config, "forget", "lake.voidy")
        assert (refused.returncode, "the running daemon still follows it" in refused.stderr) == (2, True)
        running.signal(signal.SIGHUP)
        until(lambda: running.tables()["lake.voidy"]["state"] == "gone")
        assert running.reasons() == ""
        kinds = {each.name.rpartition(".")[2] for each in written.rglob("*") if each.is_file()}
        assert kinds == {"parquet", "avro", "json", "text"}

        dropped = command(config, "forget", "lake.v*", "--drop")
        assert (dropped.returncode, dropped.stderr) == (0, "")
        assert dropped.stdout.startswith("lake.voidy: lake.voidy dropped from local; ")
        assert re.search(r"; \d+ files removed, [1-9][\d.]* kB; ", dropped.stdout), dropped.stdout
        until(lambda: list(running.tables()) == ["lake.orders"])
        running.synced_to("lake.orders", append(orders))
    assert [each for each in written.rglob("*") if each.is_file()] == []
    assert (
        deltas.items() <= {each: each.read_bytes() for each in (tmp_path / "lake").rglob("*") if each.is_file()}.items()
    )
    catalog = load_catalog("local", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    assert catalog.list_tables("lake") == [("lake", "orders")]
    again = command(config, "forget", "lake.voidy", "--drop")
    assert (again.returncode, "lake.voidy: no such table" in again.stderr) == (2, True)


def test_delete_files_in_a_folder_of_their_own_are_dropped_too(tmp_path):
    """The configuration does not name the folder any more; what somebody else has in it stays."""
    table, config, deletes = make_table(tmp_path / "t"), tmp_path / "config.yaml", tmp_path / "deletes"
    path = table.write_file([(row, "x", "v") for row in range(9)])
    table.commit([table.add(path)])

    def dvsync(*words: str, entries: Sequence[object] = ()) -> str:
        write_config(config, defaults={"engine": "local"}, tables=entries)
        done = invoke([*words, "--config", str(config)])
        assert done.exit_code == 0, done.output
        return done.output

    entry = {"source": table.location, "target": "lake.t", "delete_files_location": f"{deletes}/t"}
    dvsync("sync", entries=[entry])
    table.commit(table.delete({path: [1, 2]}))
    dvsync("sync", entries=[entry])
    (written,) = (deletes / "t").iterdir()
    other = written.rename(written.with_name(f"1{written.name}"))
    shutil.copy(other, written)
    assert "left" not in dvsync("forget", "lake.t", "--drop")
    assert list((deletes / "t").iterdir()) == [other]
    assert not (tmp_path / "warehouse" / "lake" / "t").exists(), "its own folders are empty now"


def test_tables_of_a_volume_that_is_not_mounted_cannot_be_dropped(tmp_path, config):
    """The mount point is an empty folder, so the pattern finds nothing: one reason, and no Iceberg table is dropped."""
    volume, away = tmp_path / "volume", tmp_path / "away"
    tables = [make_table(volume / name) for name in ("a", "b")]
    entry = f"{HEAD}- {{source: volume/*/, target: 'lake.{{name}}'%s}}\n"
    config.write_text(entry % "")
    catalog = load_catalog("local", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    with daemon(config) as running:
        for name, table in zip(("lake.a", "lake.b"), tables, strict=True):
            running.synced_to(name, append(table))
    volume.rename(away)
    volume.mkdir()
    with daemon(config) as running:
        until(lambda: {each["state"] for each in running.tables().values()} == {"gone"})
        (reason,) = running.get("/readyz")[1]["reasons"]
        assert (reason["table"], "finds no table, and 2 are gone" in reason["reason"]) == (None, True)
        for names in (["--all"], ["lake.a"]):
            refused = command(config, "forget", *names, "--drop", environment=port_of(running))
            assert (refused.returncode, refused.stdout) == (2, "")
            assert f"lake.a: the pattern file://{volume}/* finds no table any more" in refused.stderr, refused.stderr
        assert sorted(catalog.list_tables("lake")) == [("lake", "a"), ("lake", "b")]
        # The hint leads out: for a table that is really gone, and for one that is not.
        config.write_text(entry % ", exclude: [b]")
        running.signal(signal.SIGHUP)
        until(lambda: "lake.b" not in running.reasons() and "lake.a: its folder is gone" in running.reasons())
        dropped = command(config, "forget", "lake.b", "--drop", environment=port_of(running))
        assert (dropped.returncode, dropped.stderr) == (0, "")
        volume.rmdir()
        away.rename(volume)
        running.synced_to("lake.a", append(tables[0]))
        until(lambda: running.reasons() == "")
    assert catalog.list_tables("lake") == [("lake", "a")]


def test_a_parked_table_keeps_it_from_ready_and_not_from_living(tmp_path, config):
    """So does what is wrong with the daemon itself. A rollout asks /livez."""
    table = make_table(tmp_path / "a")
    table.commit([{"protocol": table.protocol(["unheardOf"])}])
    config.write_text(f"{HEAD}- {{source: a, target: lake.a}}\n")
    with daemon(config) as running:
        until(lambda: running.tables().get("lake.a", {}).get("state") == "parked")
        assert [running.get(path)[0] for path in ("/readyz", "/livez")] == [503, 200]
        config.write_text("nonsense")
        running.signal(signal.SIGHUP)
        until(lambda: "the changed configuration is refused" in running.reasons())
        assert [running.get(path)[0] for path in ("/readyz", "/livez")] == [503, 200]


def test_a_pattern_that_cannot_be_listed_stops_no_other_table(tmp_path, config):
    """`sync` and `status` tell it and go on with the rest; what is asked of a table by name does not fail for it."""
    (tmp_path / "lake").mkdir()
    tables = {name: make_table(tmp_path / name) for name in ("lake/a", "b")}
    patterns = "- {source: lake/*/, target: 'lake.{name}'}\n- {source: nowhere/*/, target: 'no.{name}'}\n"
    config.write_text(f"{HEAD}{patterns}- {{source: b, target: lake.b}}\n")
    synced = command(config, "sync")
    assert synced.returncode == 1
    assert "lake.a: advanced" in synced.stdout and "lake.b: advanced" in synced.stdout
    assert "the folder is not there" in synced.stderr and "nowhere" in synced.stderr
    append(tables["b"])
    by_name = command(config, "sync", "lake.b")
    assert (by_name.returncode, by_name.stdout.split()[:2]) == (0, ["lake.b:", "advanced,"])
    # What a pattern found before is still followed although the pattern cannot be listed now, but has no log.
    shutil.move(tmp_path / "lake", tmp_path / "unmounted")
    listed = command(config, "status")
    assert listed.returncode == 1
    assert [line.split()[:2] for line in listed.stdout.splitlines()] == [["lake.b", "synced"], ["lake.a", "gone"]]
    assert "error=LogMissing: " in listed.stdout
    for wanted in ("lake.a", "lake.*"):
        refused = command(config, "forget", wanted, "--drop").stderr
        assert "lake.a: the table is still followed" in refused and "is the volume mounted?" in refused


def test_commands_without_a_daemon_name_what_is_gone(tmp_path, config):
    """Listed, found by a pattern, or taken out of the configuration: each says what it is, and what is left."""
    tables = {name: make_table(tmp_path / name) for name in ("listed", "lake/a", "lake/b", "lake/c")}
    entries = "- {source: lake/*/, target: 'lake.{name}'%s}\n- {source: listed, target: lake.listed}\n"
    told = f"hooks: [{{command: [sh, -c, 'cat >> {tmp_path}/told.jsonl; echo >> {tmp_path}/told.jsonl']}}]\n"
    config.write_text(f"{told}{HEAD}{entries}" % "")
    for table in tables.values():
        append(table)
    assert command(config, "sync").returncode == 0
    for name in ("listed", "lake/a"):
        tables[name].folder.rename(tmp_path / f"away-{name[-1]}")
    shown = command(config, "status", "lake.listed")
    assert (shown.returncode, shown.stdout.split()[:2]) == (1, ["lake.listed", "gone"])
    assert json.loads(command(config, "status", "lake.listed", "--json").stdout)[0]["error"]["kind"] == "LogMissing"
    assert "lake.listed: the Delta log is gone" in command(config, "config", "check", "--connect").stdout
    assert "the Delta log is gone" in command(config, "verify", "lake.listed", "--metadata").stdout
    for words in ([], ["lake.*"], ["lake.a"]):
        synced = command(config, "sync", *words)
        assert (synced.returncode, "lake.a: gone: its folder is gone" in synced.stdout) == (1, True), synced.stdout
    lines = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines() if '"gone"' in line]
    gone = [notice for line in lines for notice in line.get("notices", [line])]
    assert sorted(notice["table"] for notice in gone) == ["lake.a", "lake.listed"]
    # What still can be said of it, and how to have it back, is said by the commands on tables.
    refused = command(config, "show", "lake.a")
    assert (refused.returncode, "lake.a: the table is gone" in refused.stderr) == (2, True)
    assert f"its Iceberg table lake.a is left as file://{tmp_path}/warehouse/" in refused.stderr
    several = command(config, "show", "lake.*")
    assert (several.returncode, "stands for 3 tables" in several.stderr) == (2, True)
    assert command(config, "show", "*.b").stdout.startswith("lake.b: lake.b in the catalog")
    config.write_text(f"{told}{HEAD}{entries}" % ", exclude: [c]")
    excluded = command(config, "status", "lake.c").stdout
    assert "has a table of this name, source and target" in excluded
    assert "lake.c" not in command(config, "sync").stdout


def test_forgetting_goes_on_after_a_table_that_cannot_be_dropped(tmp_path, config):
    """And a table that never was in Iceberg has nothing to drop."""
    tables = {name: make_table(tmp_path / name) for name in ("a", "b")}
    entries = "".join(f"- {{source: {name}, target: lake.{name}}}\n" for name in ("a", "b", "never"))
    config.write_text(HEAD + entries)
    for table in tables.values():
        append(table)
    assert command(config, "sync").returncode == 0
    catalog = load_catalog("local", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    catalog.drop_table("lake.a")
    config.write_text(HEAD.replace("tables:\n", "tables: []\n"))
    done = command(config, "forget", "--all", "--drop")
    assert done.returncode == 1
    assert "lake.a: no configured catalog has its Iceberg table lake.a" in done.stderr
    assert sorted(line.split(":")[0] for line in done.stdout.splitlines()) == ["lake.b", "lake.never"]
    assert catalog.list_tables("lake") == []


def test_a_catalog_that_pyiceberg_cannot_open_is_no_outage(tmp_path, config):
    """What passes the check of the configuration and is wrong all the same parks the table; nothing is tried again."""
    append(make_table(tmp_path / "a"))
    config.write_text(HEAD.replace("type: sql, ", "") + "- {source: a, target: lake.a}\n")
    config.write_text(config.read_text().replace("sqlite:///catalog.db", "oracle://h/catalog"))
    with daemon(config) as running:
        until(lambda: running.tables().get("lake.a", {}).get("state") == "parked")
        error = running.tables()["lake.a"]["error"]
        assert error["kind"] == "ConfigInvalid"
        assert error["message"].startswith("catalogs.local: PyIceberg cannot open it: ")
