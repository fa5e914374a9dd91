"""`dvsync verify` in a shell, beside a daemon that follows busy tables and maintains them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from tests.kit.daemons import command, daemon, until
from tests.kit.load import Load

CONFIG = """
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
health: {port: 0}
log: {format: json}
maintenance: {interval: 10s}
defaults: {poll_interval: 100ms}
tables: [{source: lake/*/, target: "lake.{name}", name: "{name}"}]
"""
ROUNDS = 4


def test_tables_are_right_while_they_change(tmp_path: Path) -> None:
    """A verification compares one snapshot with one version, whatever the daemon does meanwhile."""
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    load = Load(tmp_path / "lake", Random(1), count=4, busy=3, interval_s=0.5)
    versions: dict[str, set[int]] = {name: set() for name in load.tables}
    with daemon(config) as running:
        until(lambda: {status["state"] for status in running.tables().values()} == {"synced"}, "the first syncs")
        load.start()
        try:
            for _ in range(ROUNDS):
                ended = command(config, "verify", "--metadata", "--json")
                assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
                for proof in json.loads(ended.stdout):
                    assert proof["is_right"], proof
                    versions[proof["table"]].add(proof["delta_version"])
        finally:
            load.stop()
    assert versions.keys() == set(load.tables)
    assert all(len(versions[name]) > 1 for name in load.busy), "the tables did not change between the rounds"
