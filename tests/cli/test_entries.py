"""`dvsync add` and `dvsync remove`: a table comes and goes without an editor, beside a running daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.daemons import command, daemon, set_constants, until
from tests.kit.handmade import FEATURES, HandmadeTable

CONFIG = """\
# Ours.
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
health: {port: 0}
log: {format: json}
defaults: {poll_interval: 200ms, engine: local}
tables:
  # The first.
  - {source: lake/one, target: lake.one}
# Behind.
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for name in ("one", "two", "three"):
        table = HandmadeTable(tmp_path / "lake" / name)
        table.create()
        table.commit([table.add(table.write_file([(1, "x", "v")]))])
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    path.chmod(0o640)
    return path


def test_a_table_comes_and_goes(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon takes both up by itself; what people wrote in the file, and its rights, stay."""
    set_constants(monkeypatch, {"daemon.sync.other_writer.LEASE_S": 2.0})
    with daemon(config) as running:
        running.synced_to("lake.one", 1)
        added = command(config, "add", str(tmp_path / "lake" / "two"), "--target", "other.two")
        assert added.returncode == 0, added.stdout + added.stderr
        assert "A daemon reads it within 10 seconds, if it still runs: process" in added.stdout
        running.synced_to("other.two", 1)
        entry = f"  - source: {tmp_path}/lake/two\n    target: other.two\n"
        assert config.read_text() == CONFIG.replace("# Behind.\n", f"{entry}# Behind.\n")
        assert config.stat().st_mode & 0o777 == 0o640
        removed = command(config, "remove", "other.two")
        assert removed.returncode == 0, removed.stderr
        assert "`dvsync forget other.two`" in removed.stdout
        until(lambda: running.tables()["other.two"]["state"] == "gone", "it is followed no more")
        assert config.read_text() == CONFIG


def test_of_a_share(config: Path, tmp_path: Path) -> None:
    """Which of them follows a table, the target decides: the file is one for all."""
    config.write_text(f"share: 2/2\n{CONFIG}")
    with daemon(config):
        added = command(config, "add", str(tmp_path / "lake" / "two"))
        assert (added.returncode, "A daemon reads it within 10 seconds" in added.stdout) == (0, True), added.stderr


def test_without_a_daemon(config: Path, tmp_path: Path) -> None:
    """A link stays one. A table that dvsync would park is not added."""
    link = tmp_path / "linked.yaml"
    link.symlink_to(config)
    refused = HandmadeTable(tmp_path / "lake" / "refused")
    refused.create()
    refused.commit([{"protocol": refused.protocol([*FEATURES, "unheardOf"])}])
    added = command(link, "add", str(tmp_path / "lake" / "three"), str(refused.folder))
    assert added.returncode == 1
    assert "No daemon runs" in added.stdout
    assert f"Not added: {refused.location}." in added.stdout
    assert link.is_symlink()
    assert not (tmp_path / "state.db").exists()
    written = config.read_text()
    assert written.count("source:") == 2
    config.write_bytes(written.replace("\n", "\r\n").encode())
    for wanted in ("lake/one", str(tmp_path / "lake" / "three")):
        assert command(link, "remove", wanted).returncode == 0
    assert config.read_bytes().endswith(b"tables: []\r\n  # The first.\r\n# Behind.\r\n")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["add", "lake/one"], "lake.one is already the target of tables[0]"),
        (["add", "lake/two", "--target", "lake.one"], "lake.one is already the target of tables[0]"),
        (["add", "lake/two", "lake/three", "--target", "lake.all"], "2 tables cannot have the one target lake.all"),
        (["add", "lake/two", "--catalog", "other"], "other"),
        (["add", "lake/none"], "no such folder"),
        (["remove", "lake.none"], "has no entry of lake.none"),
    ],
)
def test_a_change_that_is_refused(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], reason: str
) -> None:
    """It leaves the file as it was."""
    if "--target" not in words:
        monkeypatch.setenv("DVSYNC_TABLES", "[]")
        assert "DVSYNC_TABLES overrides `tables`" in command(config, *words).stderr
        monkeypatch.delenv("DVSYNC_TABLES")
    done = command(config, *(word.replace("lake/", f"{tmp_path}/lake/") for word in words))
    assert done.returncode == 2
    assert reason in done.stderr
    assert config.read_text() == CONFIG
