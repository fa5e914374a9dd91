"""`dvsync sync --wait`: another program waits until the Iceberg tables show a Delta version."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.kit.daemons import command, daemon, sql_catalog, write_config
from tests.kit.forking import Forked
from tests.kit.handmade import HandmadeTable

TOKEN = "0123456789-not-to-be-seen"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Two tables that the daemon never polls by itself, and a pattern for others."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listed = [{"name": name, "source": f"lake/{name}", "target": f"lake.{name}"} for name in ("a", "b")]
    write_config(
        tmp_path / "config.yaml",
        health={"port": port, "token": TOKEN},
        maintenance={},
        verify={},
        defaults={"poll_interval": "1h"},
        tables=[*listed, {"source": "found/*/", "target": "found.{name}"}],
    )
    return tmp_path / "config.yaml"


def make_table(folder: Path) -> HandmadeTable:
    table = HandmadeTable(folder)
    table.create()
    return table


def append(table: HandmadeTable) -> None:
    table.commit([table.add(table.write_file([(1, "a", "x")]))])


def wait(config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return command(config, "sync", *words, "--wait")


def test_beside_a_daemon_it_ends_when_the_version_is_shown_or_cannot_be(tmp_path: Path, config: Path) -> None:
    tables = [make_table(tmp_path / "lake" / name) for name in ("a", "b")]
    found = make_table(tmp_path / "found" / "c")
    with daemon(config) as running:
        for name in ("a", "b", "found.c"):
            running.synced_to(name, 0)
        for table in tables:
            append(table)
        # Nobody polls for an hour: the daemon was asked.
        done = wait(config, "a", "b")
        assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["a: shows version 1", "b: shows version 1"])
        # It begins before the version is there.
        words = ["sync", "a", "--wait", "--min-version", "2", "--config", str(config)]
        with (tmp_path / "early").open("w") as output:
            early = Forked(words, stdout=output, stderr=output)
        append(tables[0])
        late = wait(config, "a", "b", "--min-version", "2", "--timeout", "1s")
        assert (late.returncode, late.stdout.splitlines()) == (
            3,
            ["a: shows version 2", "b: timed out: shows version 1, not 2"],
        )
        assert (early.wait(60), (tmp_path / "early").read_text()) == (0, "a: shows version 2\n")
        assert command(config, "pause", "b").returncode == 0
        tables[0].commit([{"protocol": {"minReaderVersion": 9, "minWriterVersion": 9}}])
        found.folder.rename(tmp_path / "c")
        held = wait(config, "a", "b", "found.c", "--min-version", "3")
        assert held.returncode == 1
        assert "a: parked, and shows version 2, not 3: Unsupported: " in held.stdout
        assert "b: shows version 1, not 3; paused since 20" in held.stdout
        assert "; `dvsync resume b`" in held.stdout
        assert "found.c: gone: " in held.stdout
        assert "dvsync forget found.c" in held.stdout


def test_a_dropped_iceberg_table_is_not_shown(tmp_path: Path, config: Path) -> None:
    """What the state database has is not enough: readers ask the catalog."""
    append(make_table(tmp_path / "lake" / "a"))
    settings, catalog = json.loads(config.read_text()), SqlCatalog("local", **sql_catalog(tmp_path))
    settings["health"].pop("token")
    without_token = tmp_path / "without-token.yaml"
    without_token.write_text(json.dumps(settings))
    with daemon(config) as running:
        running.synced_to("a", 1)
        catalog.drop_table("lake.a")
        late = wait(without_token, "a", "--timeout", "2s")
        assert late.returncode == 3
        assert "a: timed out: dvsync synced version 1, but the Iceberg table lake.a is gone\n" in late.stdout
        # The daemon writes the table anew, and does not wait for the catalog to find it.
        assert command(config, "resync", "a").returncode == 0
        done = wait(config, "a")
        assert (done.returncode, done.stdout) == (0, "a: shows version 1\n")
        assert catalog.load_table("lake.a").scan().to_arrow().num_rows == 1
        table = catalog.load_table("lake.a")
        table.append(table.scan().to_arrow())
        changed = wait(without_token, "a", "--timeout", "2s")
        assert "but the Iceberg table lake.a was changed by somebody else\n" in changed.stdout
        # Parked as soon as the daemon looks at the table.
        parked = wait(config, "a", "--timeout", "10s")
        assert (parked.returncode, parked.stdout.partition(":")[0]) == (1, "a"), parked.stdout
        assert parked.stdout.startswith("a: parked, and dvsync synced version 1, but ")
        assert ": TargetChanged: " in parked.stdout


def test_without_a_daemon_it_syncs_by_itself(tmp_path: Path, config: Path) -> None:
    append(make_table(tmp_path / "lake" / "a"))
    done = wait(config, "a", "--min-version", "5", "--timeout", "1h")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (3, "a: timed out: shows version 1, not 5")
