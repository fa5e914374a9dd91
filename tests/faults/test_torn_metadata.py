"""The metadata file that the catalog names is not what was written: empty, cut, or gone, as after a power cut."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.kit.checks import duckdb_rows
from tests.kit.daemons import Daemon, command, daemon, until
from tests.kit.handmade import Bench, HandmadeTable

CONFIG = """
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
health: {port: 0}
log: {format: json}
defaults: {poll_interval: 200ms}
tables: [{source: delta, target: lake.t, name: t}]
"""


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


class Scene:
    """A table that a daemon followed for a few versions, and its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.yaml"
        self.config.write_text(CONFIG)
        self.table = HandmadeTable(folder / "delta")
        self.table.create()
        self.path = self.table.write_file([(number, "x", "v") for number in range(50)])
        with daemon(self.config) as running:
            running.synced_to("t", 0)
            running.synced_to("t", self.table.commit([self.table.add(self.path)]))
            running.synced_to("t", self.table.commit(self.table.delete({self.path: [3]})))
            running.signal(signal.SIGTERM)
            assert running.end() == 0

    def reader(self) -> Bench:
        return Bench(self.folder / "reader", self.table.location, catalog_uri=f"sqlite:///{self.folder}/catalog.db")

    def metadata_file(self) -> Path:
        with closing(self.reader()) as bench:
            return Path(bench.iceberg().metadata_location.removeprefix("file://"))

    def check(self) -> None:
        """The rows are Delta's, and it is the table that it was, its history kept."""
        with closing(self.reader()) as bench:
            iceberg = bench.iceberg()
            assert duckdb_rows(iceberg) == self.table.live_rows()
            shown = [int(str(each.summary["dvsync.delta.version"])) for each in iceberg.snapshots() if each.summary]
            assert shown[:2] == [0, 1]


def state_of(running: Daemon) -> str | None:
    return running.tables().get("t", {}).get("state")


@pytest.mark.parametrize(
    ("harm", "state", "kind"),
    [
        (empty, "parked", "TargetUnreadable"),
        (cut, "parked", "TargetUnreadable"),
        (Path.unlink, "retrying", "ObjectMissing"),
    ],
)
def test_resync_goes_back_to_what_can_be_read(
    tmp_path: Path, harm: Callable[[Path], None], state: str, kind: str
) -> None:
    """The file is named, nothing is committed, and the hint helps: the table goes on with its history and its uuid."""
    scene = Scene(tmp_path)
    damaged = scene.metadata_file()
    harm(damaged)
    with daemon(scene.config) as running:
        until(lambda: state_of(running) == state)
        error = running.tables()["t"]["error"]
        assert error["kind"] == kind
        assert str(damaged) in error["message"]
        assert "dvsync resync" in error["hint"]
        assert command(scene.config, "resync", "t").returncode == 0
        until(lambda: state_of(running) == "synced")
        running.synced_to("t", scene.table.commit(scene.table.delete({scene.path: [4]})))
    scene.check()


def test_a_full_sync_goes_back_as_well(tmp_path: Path) -> None:
    """Where no daemon runs, with the state database lost into the bargain."""
    scene = Scene(tmp_path)
    empty(scene.metadata_file())
    for file in tmp_path.glob("state.db*"):
        file.unlink()
    refused = command(scene.config, "sync", "t")
    assert refused.returncode == 1
    assert "TargetUnreadable" in refused.stdout
    assert command(scene.config, "sync", "t", "--full").returncode == 0
    scene.check()


@pytest.mark.parametrize("whole_folder", [False, True], ids=["metadata files", "whole folder"])
def test_resync_makes_a_table_anew_whose_metadata_is_lost(tmp_path: Path, *, whole_folder: bool) -> None:
    """Unless the volume may be away: then nothing changes, and a person is asked."""
    scene = Scene(tmp_path)
    damaged = scene.metadata_file()
    folder = damaged.parent.parent
    if whole_folder:
        shutil.rmtree(folder)
        namespace = folder.parent.rename(tmp_path / "away")
        refused = command(scene.config, "sync", "t", "--full")
        assert refused.returncode == 1
        assert "Mount the volume" in refused.stdout and "drop lake.t from the catalog" in refused.stdout
        namespace.rename(folder.parent)
    for file in damaged.parent.glob("*.metadata.json"):
        empty(file)
    with daemon(scene.config) as running:
        until(lambda: state_of(running) in ("parked", "retrying"))
        assert command(scene.config, "resync", "t").returncode == 0
        until(lambda: state_of(running) == "synced")
        running.synced_to("t", scene.table.commit(scene.table.delete({scene.path: [4]})))
    with closing(scene.reader()) as bench:
        assert duckdb_rows(bench.iceberg()) == scene.table.live_rows()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(r"dvsync\.", id="not dvsync's"),
        pytest.param(r"table-uuid\W+.{8}", id="of another table", marks=pytest.mark.long),
    ],
)
def test_a_resync_drops_no_table_of_somebody_else(tmp_path: Path, changed: str) -> None:
    """The readable metadata beside the damaged file is not dvsync's, or another table of dvsync's has this folder."""
    scene = Scene(tmp_path)
    damaged = scene.metadata_file()
    foreign = re.sub(
        changed, lambda found: "other." if found[0] == "dvsync." else found[0][:-8] + "0" * 8, damaged.read_text()
    )
    for file in damaged.parent.glob("*.metadata.json"):
        file.write_text(foreign)
    empty(damaged)
    refused = command(scene.config, "sync", "t", "--full")
    assert (refused.returncode, "drop lake.t from the catalog" in refused.stdout) == (1, True)
    assert damaged.read_bytes() == b""
