"""A daemon whose tables change while it runs: SIGHUP with another configuration, and folders that come and go."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.faults.daemons import daemon, until
from tests.handmade import HandmadeTable

HEAD = """
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
health: {port: 0}
log: {format: json}
defaults: {poll_interval: 200ms}
tables:
"""


def make_table(folder: Path) -> HandmadeTable:
    table = HandmadeTable(folder)
    table.create()
    return table


def append(table: HandmadeTable) -> int:
    return table.commit([table.add(table.write_file([(table.version, "x", "v")]))])


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
        running.synced_to("lake.b", append(tables["b"]))

        config.write_text(f"{HEAD}- {{source: a, target: lake.a, name: 2026-13-45}}\n")
        running.signal(signal.SIGHUP)
        until(lambda: sum(line["event"] == "config.refused" for line in running.lines) == 2)

        changed = HEAD.replace("state.db", "other.db").replace("8080", "8081")
        config.write_text(
            f"{changed}- {{source: c, target: lake.c}}\n- {{source: a, target: lake.a, poll_interval: 100ms}}\n"
        )
        running.signal(signal.SIGHUP)
        assert running.told("config.reloaded")["need_a_restart"] == ["state"]
        until(lambda: list(running.tables()) == ["lake.c", "lake.a"])
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
        until(lambda: set(running.tables()) == {"lake.second"})

        shutil.move(tmp_path / "first", tmp_path / "lake" / "first")
        running.synced_to("lake.first", append(first))
        shutil.move(tmp_path / "lake", tmp_path / "unmounted")
        until(lambda: "the folder is not there" in running.reasons())
        assert set(running.tables()) == {"lake.first", "lake.second"}


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
