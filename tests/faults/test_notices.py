"""People and other catalogs are told: by the daemon and by `dvsync sync`, whatever their receivers do."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.kit.daemons import command, daemon, until, write_config
from tests.kit.handmade import COLUMNS, HandmadeTable, sql_catalog
from tests.kit.receiver import Receiver, receiver

WIDER = (*COLUMNS, ("city", "string"))
SECRET = "a-secret-of-the-receiver"


def notices(server: Receiver) -> list[dict[str, Any]]:
    """Those that came alone and those that came joined."""
    return [one for each in server.taken.get("/told", []) for one in each.get("notices", [each])]


@dataclass
class World:
    folder: Path
    receiver: Receiver

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    def configure(self) -> None:
        (self.folder / "address").write_text(f"{self.receiver.url}/told")
        (self.folder / "secret").write_text(f"Bearer {SECRET}")
        write_config(
            self.config,
            tables=[
                {"name": "free", "source": "lake/free", "target": "lake.free"},
                {"name": "strict", "source": "lake/strict", "target": "lake.strict", "on_schema_change": "park"},
                {"source": "found/*/", "target": "found.{name}"},
            ],
            hooks=[
                {"url": {"file": "address"}, "headers": {"Authorization": {"file": "secret"}}},
                {"url": "http://127.0.0.1:9/nobody", "events": ["parked"]},
                {"url": f"{self.receiver.url}/hook", "tables": ["free"], "events": ["synced"]},
            ],
        )

    def make_table(self, place: str) -> HandmadeTable:
        table = HandmadeTable(self.folder / place)
        table.create()
        table.commit([table.add(table.write_file([(1, "a", "x")]))])
        return table

    def told(self, name: str) -> list[dict[str, Any]]:
        return [each for each in notices(self.receiver) if each["table"] == name]

    def events(self, name: str) -> list[str]:
        return [each["event"] for each in self.told(name)]

    def hooked(self, version: int) -> dict[str, Any]:
        """The hook's call for this version, which names the metadata that the catalog has."""
        calls = self.receiver.taken.setdefault("/hook", [])
        return until(lambda: next((each for each in calls if each["version"] == version), None), f"version {version}")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with receiver() as running:
        made = World(tmp_path, running)
        made.configure()
        yield made


def test_another_table_at_the_source_is_told(world: World) -> None:
    """With the same columns and a shorter log: nothing else would say that the rows are another table's."""
    former = world.make_table("lake/free")
    world.make_table("lake/strict")
    former.commit([former.add(former.write_file([(2, "a", "y")]))])
    with daemon(world.config) as running:
        running.synced_to("free", former.version)
        shutil.rmtree(former.folder)
        other = world.make_table("lake/free")
        until(lambda: "source_replaced" in world.events("free"), "the other table", wait_s=150)
        told = next(each for each in world.told("free") if each["event"] == "source_replaced")
        assert f"(id {other.table_id} instead of {former.table_id})" in told["text"]
        running.synced_to("free", other.version)
        assert "free" in running.told("source.replaced")["table"]


def test_what_happens_to_tables_is_told(world: World) -> None:
    free, strict, _ = (world.make_table(place) for place in ("lake/free", "lake/strict", "found/c"))
    catalog = SqlCatalog("local", **sql_catalog(world.folder))
    world.receiver.refusals = [503]
    with daemon(world.config) as running:
        for name in ("free", "strict", "found.c"):
            running.synced_to(name, 1)
        iceberg, called = catalog.load_table("lake.free"), world.hooked(1)
        assert (called["metadata_location"], called["snapshot_id"]) == (
            iceberg.metadata_location,
            iceberg.metadata.current_snapshot_id,
        )
        # Columns change: one table follows, the other waits for a person.
        for table in (free, strict):
            table.overwrite(WIDER, {"id": 2, "part": "a", "value": "y", "city": "Rome"})
        running.synced_to("free", 2)
        assert running.told("schema.changed", table="free")["changes"] == ["new column city: string"]
        until(lambda: world.events("strict") == ["schema_changed", "parked"], "the parking")
        parked = world.told("strict")[1]
        assert "new column city: string" in parked["text"]
        assert (parked["version"], "dvsync resync strict" in parked["hint"]) == (1, True)
        assert "city" not in catalog.load_table("lake.strict").schema().column_names
        assert command(world.config, "resync", "strict").returncode == 0
        until(lambda: world.events("strict")[2:] == ["schema_changed", "recovered"], "the recovery")
        assert catalog.load_table("lake.strict").scan().to_arrow().to_pylist() == [
            {"id": 2, "part": "a", "value": "y", "city": "Rome"}
        ]
        # A folder vanishes.
        (world.folder / "found" / "c").rename(world.folder / "c")
        running.signal(signal.SIGHUP)
        until(lambda: world.events("found.c") == ["gone"], "the table that is gone")
        # Someone else writes to the Iceberg table.
        catalog.load_table("lake.free").append(pa.table({"id": [9]}))
        free.commit([free.add(free.write_file([(3, "a", "z")]))])
        until(lambda: world.events("free") == ["schema_changed", "target_changed", "parked"], "the other writer")
        # The receiver has the last one before the daemon has its answer.
        sent = 'dvsync_notices_total{hook="hooks[0]",outcome="sent"} 8.0'
        until(lambda: sent in running.fetch("/metrics"), "the count of what was sent")
        metrics = running.fetch("/metrics")
        assert 'dvsync_events_total{event="schema_changed",table="free"} 1.0' in metrics
        # The receiver that nobody is held neither the tables nor the other receiver up.
        assert 'dvsync_notices_waiting{hook="hooks[1]"} 2.0' in metrics
        assert running.told("notice.failed", hook="hooks[1]")["notice"] == "parked"
        assert {each.get("authorization") for _, each in world.receiver.sent} == {f"Bearer {SECRET}", None}
        shown = json.dumps(running.lines) + metrics + command(world.config, "config", "check").stdout
        assert SECRET not in shown
        assert f"{world.receiver.url}/told" not in shown
    # What was told is not told again by the next daemon, but the hook is called once, in case that it was not.
    world.receiver.taken.clear()
    with daemon(world.config):
        assert world.hooked(2)["table"] == "free"
        assert world.events("free") == world.events("strict") == world.events("found.c") == []


def test_a_single_sync_tells_as_well(world: World) -> None:
    """And waits for the hook before it ends."""
    free = world.make_table("lake/free")
    assert command(world.config, "sync", "free").returncode == 0
    assert [each["version"] for each in world.receiver.taken["/hook"]] == [1]
    free.commit([{"protocol": {"minReaderVersion": 9, "minWriterVersion": 9}}])
    assert command(world.config, "sync", "free").returncode == 1
    assert world.events("free") == ["parked"]
    assert len(world.receiver.taken["/hook"]) == 1


def test_a_volume_that_vanishes_sends_a_dozen_notices(tmp_path: Path) -> None:
    """Its tables notice at their own polls. In the end each has been gone and has recovered, in this order."""
    names = [f"t{number}" for number in range(30)]
    for name in names:
        table = HandmadeTable(tmp_path / "lake" / name)
        table.create()
        table.commit([table.add(table.write_file([(1, "a", "x")]))])
    with receiver() as server:
        write_config(
            tmp_path / "config.yaml",
            pipeline={"engine": "local"},
            defaults={"poll_interval": "1s"},
            tables=[{"source": "lake/*/", "target": "lake.{name}", "name": "{name}"}],
            hooks=[{"url": f"{server.url}/told"}],
        )

        def told() -> dict[str, list[str]]:
            events: dict[str, list[str]] = {name: [] for name in names}
            for each in notices(server):
                events[each["table"]].append(each["event"])
            return events

        with daemon(tmp_path / "config.yaml") as running:
            for name in names:
                running.synced_to(name, 1)
            (tmp_path / "lake").rename(tmp_path / "away")
            until(lambda: set(map(tuple, told().values())) == {("gone",)}, "the notices of all that are gone")
            (tmp_path / "away").rename(tmp_path / "lake")
            until(lambda: set(map(tuple, told().values())) == {("gone", "recovered")}, "the notices of all recovered")
        assert len(server.taken["/told"]) <= 2 * 14, [each["text"] for each in server.taken["/told"]]
