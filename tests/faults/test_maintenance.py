"""Maintenance in a `dvsync run` process: when a round begins."""

from __future__ import annotations

from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog

from tests.kit.checks import duckdb_rows
from tests.kit.daemons import daemon
from tests.kit.handmade import HandmadeTable

CONFIG = """
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
health: {port: 0}
log: {format: json}
defaults: {poll_interval: 200ms}
maintenance: {interval: 30d, snapshots_max: 2, steps: [expire, cleanup]}
tables: [{source: "lake/t", target: "lake.t", name: t}]
"""


def test_many_snapshots_bring_a_round_forward(tmp_path: Path) -> None:
    """A busy table does not gather snapshots until its next round, which may be far away."""
    table = HandmadeTable(tmp_path / "lake" / "t")
    table.create()
    path = table.write_file([(row, "x", "v") for row in range(20)])
    table.commit([table.add(path)])
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    with daemon(config) as running:
        for row in range(3):
            running.synced_to("t", table.version)
            table.commit(table.delete({path: [row]}))
        assert running.told("maintenance.expired", table="t")["snapshots"] == 2
    catalog = SqlCatalog("local", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    iceberg = catalog.load_table("lake.t")
    assert len(iceberg.snapshots()) == 2
    assert duckdb_rows(iceberg) == table.live_rows()
