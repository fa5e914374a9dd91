"""dvsync without any extra, on a machine without Java, as the slim image and an edge node have it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import psutil
from pyiceberg.catalog.sql import SqlCatalog

from tests.kit.checks import duckdb_rows
from tests.kit.daemons import Daemon, until
from tests.kit.handmade import HandmadeTable
from tests.kit.installed import install_slim

# With the properties of a store for which Spark would have more jars.
CONFIG = """
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
storage: {s3.region: eu-central-1}
health: {port: 0}
log: {format: json}
defaults: {poll_interval: 200ms}
tables:
- {source: "lake/*", target: "lake.{name}", name: "{name}"}
- {source: own, target: lake.own, name: own, engine: local, deletes: command}
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


def test_tables_are_followed_without_java_and_pyspark(tmp_path: Path) -> None:
    """First syncs, deletions and a resync need neither; only a table with a large log waits for them, and says so.

    With `engine: local`, such a table is followed, too, and rows of it are deleted.
    """
    dvsync = install_slim(tmp_path / "installed")
    tables = {name: make_table(tmp_path / "lake" / name) for name in ("a", "b", "c", "large")}
    own = make_table(tmp_path / "own")
    for each in (tables["large"], own):
        pad_log(each)
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    running = Daemon(config, {"PATH": "/nowhere"}, installed=dvsync)
    try:
        running.launch()
        running.started()
        assert running.told("pipeline.missing")["reason"] == "PySpark is not installed, and Spark is needed"
        small = [tables[name] for name in "abc"]
        for table in small:
            running.synced_to(table.folder.name, 2)
            (path, *_) = sorted(table.live)
            table.commit(table.delete({path: [5]}))
        for table in small:
            running.synced_to(table.folder.name, 3)
        error = until(lambda: running.tables()["large"]["error"])
        assert (error["kind"], "extra `spark`" in error["hint"]) == ("PipelineAway", True)
        running.synced_to("own", 2)
        delete = [dvsync, "delete", "own", "--where", "id BETWEEN 10 AND 13"]
        for engine, code, told in (("spark", 1, "PySpark is not installed"), ("local", 0, "deleted 3 rows")):
            words = [*delete, "--engine", engine]
            done = subprocess.run(
                words, cwd=tmp_path, env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False
            )
            assert (done.returncode, told in done.stdout + done.stderr) == (code, True), done.stderr
        running.synced_to("own", 3)
        process = psutil.Process(running.process.pid)
        assert process.children(recursive=True) == []
        assert process.memory_info().rss < MEMORY_MAX_BYTES
    finally:
        running.kill()
    catalog = SqlCatalog("local", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    for table in small:
        assert duckdb_rows(catalog.load_table(f"lake.{table.folder.name}")) == table.live_rows()
    left = [row for row in own.live_rows() if row[0] not in range(10, 14)]
    assert duckdb_rows(catalog.load_table("lake.own")) == left
