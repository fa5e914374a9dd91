"""A machine without Java, as an edge node may be: small tables are followed from their first version on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
from pyiceberg.catalog.sql import SqlCatalog

from tests.kit.checks import duckdb_rows
from tests.kit.daemons import Daemon, until
from tests.kit.handmade import HandmadeTable

CONFIG = """
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
health: {port: 0}
log: {format: json}
defaults: {poll_interval: 200ms}
tables: [{source: "lake/*", target: "lake.{name}", name: "{name}"}]
"""
MEMORY_MAX_BYTES = 250 << 20


def make_table(folder: Path) -> HandmadeTable:
    table = HandmadeTable(folder, partitioned=True)
    table.create()
    paths = [table.write_file([(10 * number + row, "x", "v") for row in range(9)]) for number in range(3)]
    table.commit([table.add(path) for path in paths])
    table.commit(table.delete({paths[0]: [1, 4], paths[1]: [0]}))
    return table


def pad_log(table: HandmadeTable) -> None:
    """Make the log too large to be read without Spark, by actions that Delta passes over."""
    commit = table.folder / "_delta_log" / f"{0:020d}.json"
    padding = json.dumps({"unknown": {"of": "x" * (9 << 20)}})
    commit.write_text(f"{commit.read_text()}{padding}\n{padding}\n")


def test_small_tables_are_followed_without_java(tmp_path: Path) -> None:
    """First syncs, deletions and a resync need no JVM; only a table with a large log waits for one, and says so."""
    tables = {name: make_table(tmp_path / "lake" / name) for name in ("a", "b", "c", "large")}
    pad_log(tables["large"])
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": "/nowhere"}
    running = Daemon(config, environment, module="daemon")
    try:
        running.launch()
        running.started()
        small = [tables[name] for name in "abc"]
        for table in small:
            running.synced_to(table.folder.name, 2)
            (path, *_) = sorted(table.live)
            table.commit(table.delete({path: [5]}))
        for table in small:
            running.synced_to(table.folder.name, 3)
        until(lambda: (running.tables()["large"]["error"] or {}).get("kind") == "PipelineAway")
        process = psutil.Process(running.process.pid)
        assert process.children(recursive=True) == []
        assert process.memory_info().rss < MEMORY_MAX_BYTES
    finally:
        running.kill()
    catalog = SqlCatalog("local", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    for table in small:
        assert duckdb_rows(catalog.load_table(f"lake.{table.folder.name}")) == table.live_rows()
