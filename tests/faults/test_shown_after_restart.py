"""What the status page knew stays known over a restart: the syncs with their operations, the last error."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.kit.daemons import command, daemon, until
from tests.kit.handmade import HandmadeTable

NAME = "lake.a"
CONFIG = """
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
state: {url: "sqlite:///state.db"}
health: {port: 0}
log: {format: json}
defaults: {poll_interval: 100ms}
tables:
- {source: a, target: lake.a}
"""


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    (tmp_path / "config.yaml").write_text(CONFIG)
    table = HandmadeTable(tmp_path / "a")
    table.create()
    table.commit([table.add(table.write_file([(1, "a", "x")]))])
    return table


def test_a_restart_keeps_the_syncs_and_their_operations(table: HandmadeTable, tmp_path: Path) -> None:
    """The next process shows the last one's syncs, which say what Delta did."""
    with daemon(tmp_path / "config.yaml") as running:
        running.synced_to(NAME, table.version)
        operation = running.get(f"/api/tables/{NAME}")[1]["runs"][0]["operation"]
        assert operation is not None
        running.signal(signal.SIGTERM)
        assert running.end() == 0
    with daemon(tmp_path / "config.yaml") as running:
        # A table is listed a moment before what is stored of it.
        path = f"/api/tables/{NAME}"
        detail = until(lambda: (found := running.get(path)[1]).get("runs") and found["read"] and found, "the syncs")
        assert [run["operation"] for run in detail["runs"]] == [operation]
        assert detail["status"]["catalog"] == "local"
        assert detail["read"]["DuckDB"] == f"SELECT * FROM iceberg_scan('{detail['status']['metadata_location']}')"
        page = running.fetch(f"/tables/{NAME}")
        assert operation in page
        assert detail["status"]["metadata_location"] in page


def test_the_history_says_that_an_error_is_over(table: HandmadeTable, tmp_path: Path) -> None:
    """Also if no sync ended it: the writer took back what nobody could read."""
    config = tmp_path / "config.yaml"
    with daemon(config) as running:
        running.synced_to(NAME, table.version)
        unfinished = table.folder / "_delta_log" / f"{table.version + 1:020}.json"
        unfinished.write_text("{")
        until(lambda: running.tables()[NAME]["state"] == "retrying", "the error")
        unfinished.unlink()
        until(lambda: running.tables()[NAME]["state"] == "synced", "its end")
        newest, error, *_ = command(config, "history", NAME).stdout.splitlines()
        assert f" recovered, version {table.version}, " in newest and newest.endswith(
            "s: CommitIncomplete is over, after 1 error"
        )
        assert " CommitIncomplete, " in error
        assert "CommitIncomplete is over" in running.fetch(f"/tables/{NAME}")


def test_a_restart_says_that_the_error_is_the_last_one(table: HandmadeTable, tmp_path: Path) -> None:
    """A table that was refused before its first sync is tried again; the version that was refused is known at once."""
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["odd"], "writerFeatures": ["odd"]}
    table.commit([{"protocol": protocol}])
    with daemon(tmp_path / "config.yaml") as running:
        until(lambda: running.tables().get(NAME, {}).get("state") == "parked", "the refusal")
        since = running.tables()[NAME]["error"]["since"]
        assert running.reasons().startswith(f"{NAME}: parked: Unsupported: reader feature odd is not supported")
    with daemon(tmp_path / "config.yaml") as running:
        # A table is listed a moment before what is stored of it.
        first = until(lambda: (shown := running.tables().get(NAME)) and shown["error"] and shown, "the last error")
        assert (first["source_version"], first["error"]["since"]) == (table.version, since)
        until(lambda: running.tables()[NAME]["state"] == "parked", "the second refusal")
        assert f"none of {table.version}" in running.fetch("/")
