"""The disk of the state database is full, for real: a small file system with nothing left on it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.kit.checks import duckdb_rows, shown_versions
from tests.kit.daemons import daemon, set_constants, until
from tests.kit.handmade import Bench, HandmadeTable

SIZE = "2m"
CONFIG = """
state: {url: "sqlite:///small/state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
health: {port: 0}
log: {format: json}
defaults: {poll_interval: 200ms}
tables: [{source: delta, target: lake.t, name: t}]
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root mounts file systems")
    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Take every free byte."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 1):
            while True:
                try:
                    if not file.write(b"x" * size):
                        break
                except OSError:
                    break
    return ballast


def test_a_full_disk_stops_syncing_and_nothing_else(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is retrying with what to look at, nothing is committed that cannot be remembered, and it goes on."""
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    path = table.write_file([(number, "x", "v") for number in range(50)])
    table.commit([table.add(path)])
    (tmp_path / "config.yaml").write_text(CONFIG)
    set_constants(monkeypatch, {"daemon.sync.other_writer.LEASE_S": 5.0})
    with daemon(tmp_path / "config.yaml") as running:
        running.synced_to("t", table.version)
        ballast = fill(small_disk)
        for position in range(3):
            table.commit(table.delete({path: [position]}))
        # What the write-ahead log has room for already may still be written.
        until(lambda: (running.tables()["t"]["error"] or {}).get("kind") == "StateStoreAway")
        error = running.tables()["t"]["error"]
        assert "full" in error["message"]
        assert "disk" in error["hint"]
        assert running.get("/livez")[0] == 200
        # Whether there is a table with news or not: the lease cannot be renewed.
        unrenewed = running.told("lease.unrenewed")
        assert (unrenewed["level"], "disk" in unrenewed["hint"]) == ("error", True)
        until(lambda: "the state database cannot be written" in running.reasons())
        ballast.unlink()
        running.told("lease.renewed")
        until(lambda: "the state database" not in running.reasons())
        running.synced_to("t", table.version)
        until(lambda: running.tables()["t"]["error"] is None)
    bench = Bench(tmp_path / "reader", table.location, catalog_uri=f"sqlite:///{tmp_path}/catalog.db")
    with closing(bench):
        iceberg = bench.iceberg()
        assert duckdb_rows(iceberg) == table.live_rows()
        versions = shown_versions(iceberg)
        assert versions == sorted(set(versions))


def test_a_daemon_that_cannot_write_its_state_is_no_stand_by(tmp_path: Path, small_disk: Path) -> None:
    """Started with a full disk it says what is wrong as an error, is not ready, and begins once there is room."""
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    (tmp_path / "config.yaml").write_text(CONFIG)
    with daemon(tmp_path / "config.yaml") as running:
        running.synced_to("t", 0)
    ballast = fill(small_disk)
    with daemon(tmp_path / "config.yaml") as running:
        told = running.told("daemon.standing_by", level="error")
        assert "the state database cannot be written" in told["reason"]
        assert "disk" in told["hint"]
        assert "the state database cannot be written" in running.reasons()
        ballast.unlink()
        running.synced_to("t", table.commit([table.add(table.write_file([(1, "x", "v")]))]))
