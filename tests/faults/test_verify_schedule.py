"""The daemon verifies its tables by itself: in parts, over restarts, and a wrong one is shown wherever one looks."""

from __future__ import annotations

import json
import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from daemon.iceberg.position_deletes import PositionDeleteWriter
from tests.kit.daemons import Daemon, command, daemon, set_constants, until
from tests.kit.handmade import HandmadeTable
from tests.kit.servers import free_port

CONFIG: dict[str, Any] = {
    "catalogs": {"local": {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "warehouse"}},
    "log": {"format": "json"},
    "maintenance": {"interval": "1d"},
    "verify": {"period": "1s"},
}
NAMES = ("wrong", "right")
FILES = 4
SPARK_MAX_S = 120.0
# Many checks whether a verification is due, at a period of a second.
CHECKS_S = 2.0


@dataclass
class World:
    """Two tables of four files, of which two have deletion vectors."""

    folder: Path
    tables: dict[str, HandmadeTable]

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    def configure(self, *, poll_interval: str = "100ms", port: int = 0, **verify: object) -> None:
        tables = [
            {"name": name, "source": table.location, "target": f"lake.{name}"} for name, table in self.tables.items()
        ]
        settings = {**CONFIG, "state": {"url": "sqlite:///state.db"}, "tables": tables}
        settings |= {"defaults": {"poll_interval": poll_interval}, "health": {"port": port}}
        self.config.write_text(json.dumps({**settings, "verify": {**CONFIG["verify"], **verify}}))

    def cut_delete_file(self) -> str:
        """Take a position out of a delete file of the table `wrong`, behind everyone's back. Returns its name."""
        path = self._delete_file()
        pq.write_table(pq.read_table(path).slice(1), path)
        return path.name

    def move_position(self) -> None:
        """Let a delete file of the table `wrong` delete another row: its metadata stays right."""
        path = self._delete_file()
        size, deletes = path.stat().st_size, pq.read_table(path)
        with PositionDeleteWriter(PyArrowFileIO(), f"file://{path}") as writer:
            moved = array("q", [position + 1 for position in deletes["pos"].to_pylist()])
            writer.write(deletes["file_path"][0].as_py(), moved)
            writer.finish()
        assert path.stat().st_size == size

    def _delete_file(self) -> Path:
        return min((self.folder / "warehouse" / "lake" / "wrong").rglob("*-deletes.parquet"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    tables = {name: HandmadeTable(tmp_path / "lake" / name, partitioned=True) for name in NAMES}
    for table in tables.values():
        table.create()
        paths = [table.write_file([(row, "a", "x") for row in range(10)], name=f"f{n}") for n in range(FILES)]
        table.commit([table.add(path) for path in paths])
        table.commit(table.delete({paths[0]: [2, 3], paths[1]: [5, 6]}), operation="DELETE")
    made = World(tmp_path, tables)
    made.configure()
    return made


def proof(running: Daemon, name: str) -> dict[str, Any]:
    return running.tables().get(name, {}).get("proof") or {}


def verified_since(running: Daemon, name: str, lines: int) -> list[dict[str, Any]]:
    """The verifications of a table after the first `lines` lines of the log."""
    return [
        line
        for line in running.lines[lines:]
        if line["event"] in ("verify.right", "verify.wrong") and line["table"] == name
    ]


def test_a_difference_is_shown_everywhere_until_the_table_is_written_anew(world: World) -> None:
    with daemon(world.config) as running:
        for name in NAMES:
            until(lambda name=name: proof(running, name).get("complete_at"), f"the verification of {name}")
            assert proof(running, name)["is_right"]
        assert running.get("/readyz")[0] == 200
        cut = world.cut_delete_file()
        line = running.told("verify.wrong", table="wrong")
        assert (line["level"], line["differences"]) == (
            "error",
            {"delete file damaged": 1, "wrong number of deleted rows": 1},
        )
        assert any(cut in first for first in line["first"])
        until(lambda: proof(running, "wrong").get("is_right") is False, "the difference on the board")
        assert proof(running, "right")["is_right"]
        assert "wrong: it differs from Delta" in running.reasons()
        metrics = running.fetch("/metrics")
        assert 'dvsync_proof_differences{table="wrong"} 2.0' in metrics
        assert 'dvsync_proof_differences{table="right"} 0.0' in metrics
        assert 'dvsync_proof_coverage{table="right"} 1.0' in metrics
        page = running.fetch("/tables/wrong")
        assert "differs from Delta" in page
        assert cut in page
        assert "dvsync resync wrong" in running.fetch("/")
        shown = command(world.config, "status")
        assert "delete file damaged (1)" in shown.stdout, shown.stderr
        # The table is followed all the same.
        table = world.tables["wrong"]
        table.commit([table.add(table.write_file([(1, "a", "y")], name="more"))])
        running.synced_to("wrong", table.version)
        assert command(world.config, "resync", "wrong").returncode == 0
        until(lambda: proof(running, "wrong").get("is_right"), "the verification after the resync")
        until(lambda: running.get("/readyz")[0] == 200, "readiness")
        assert "dvsync_proof_differences" in running.fetch("/metrics")


def test_by_setting_a_difference_parks_the_table_until_a_person_acts(world: World) -> None:
    """Also over a restart, which tries again what the syncs meet: this they do not meet."""
    world.configure(on_difference="park")
    table = world.tables["wrong"]
    with daemon(world.config) as running:
        running.synced_to("wrong", table.version)
        world.cut_delete_file()
        parked = running.told("table.parked", table="wrong")
        assert parked["kind"] == "ProofFailed"
        assert "dvsync resync wrong" in parked["hint"]
        until(lambda: running.tables()["wrong"]["state"] == "parked", "the parking")
        assert running.tables()["right"]["state"] == "synced"
    synced = table.version
    table.commit([table.add(table.write_file([(1, "a", "y")], name="more"))])
    with daemon(world.config) as running:
        until(lambda: proof(running, "right").get("is_right"), "the other table")
        assert running.tables()["wrong"]["state"] == "parked"
        assert running.tables()["wrong"]["synced_version"] == synced
        assert command(world.config, "resync", "wrong").returncode == 0
        running.synced_to("wrong", table.version)
        until(lambda: proof(running, "wrong").get("is_right"), "the verification after the resync")


def test_a_parked_table_stays_parked_though_its_next_poll_is_far_away(world: World) -> None:
    """Killed between the verification and the poll: the finding is shown at once, and the parking is not lost."""
    world.configure(on_difference="park")
    with daemon(world.config) as running:
        running.synced_to("wrong", world.tables["wrong"].version)
    world.configure(on_difference="park", poll_interval="1h")
    world.cut_delete_file()
    with daemon(world.config) as running:
        running.told("verify.wrong", table="wrong")
        until(lambda: proof(running, "wrong").get("is_right") is False, "the difference")
        assert running.get("/readyz")[0] == 503
        running.kill()
    world.configure(on_difference="park")
    with daemon(world.config) as running:
        until(lambda: proof(running, "right").get("is_right"), "the other table")
        assert running.tables()["wrong"]["state"] == "parked"


def test_files_that_delta_removed_before_the_next_poll_are_no_difference(world: World) -> None:
    """As after a VACUUM: the sync that is due shows the table without them."""
    with daemon(world.config) as running:
        running.synced_to("wrong", world.tables["wrong"].version)
    world.configure(on_difference="park", poll_interval="1h")
    table = world.tables["wrong"]
    with daemon(world.config) as running:
        # The proof may be the first daemon's: what comes before this one's first poll would be synced by it.
        until(lambda: running.get("/readyz")[0] == 200, "the first polls")
        path = list(table.live)[2]
        table.commit([table.remove(path)])
        (table.folder / path).unlink()
        known = len(running.lines)
        until(lambda: verified_since(running, "right", known), "a round after what was under way before")
        known = len(running.lines)
        until(lambda: len(verified_since(running, "right", known)) > 1, "two rounds of the other table")
        assert verified_since(running, "wrong", known) == []
        assert running.tables()["wrong"]["state"] == "synced"


def test_a_large_table_is_covered_in_parts_over_restarts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is other files. A pass that a kill cut short goes on where it was."""
    set_constants(monkeypatch, {"daemon.verify.findings.FILES_AT_ONCE": 1})
    world.configure(period="3s")
    with daemon(world.config) as running:
        until(lambda: 0 < proof(running, "wrong").get("coverage", 0) < 1, "the first part")
        assert proof(running, "wrong")["complete_at"] is None
    with daemon(world.config) as running:
        until(lambda: proof(running, "wrong").get("complete_at"), "a whole pass")
        lines = verified_since(running, "wrong", 0)
        assert lines[0]["covered"] != "25 %", "the second process began again"
        assert proof(running, "wrong")["is_right"]
        world.cut_delete_file()
        running.told("verify.wrong", table="wrong")
        until(lambda: proof(running, "wrong").get("is_right") is False, "the difference")
        # Parts without a difference do not clear it.
        known = len(running.lines)
        until(
            lambda: any(line["event"] == "verify.right" for line in verified_since(running, "wrong", known)), "a part"
        )
        assert proof(running, "wrong").get("is_right") is False


def test_a_verification_by_hand_is_shown_by_the_daemon(world: World) -> None:
    world.configure(level="off")
    with daemon(world.config) as running:
        running.synced_to("wrong", world.tables["wrong"].version)
        assert command(world.config, "verify", "wrong", "--metadata", "--sample", "50").returncode == 0
        assert running.tables()["wrong"]["proof"] is None, "a sample says nothing of the table"
        assert command(world.config, "verify", "wrong", "--metadata").returncode == 0
        until(lambda: proof(running, "wrong").get("is_right"), "the verification")
        world.cut_delete_file()
        assert command(world.config, "verify", "wrong", "--metadata").returncode == 1
        until(lambda: proof(running, "wrong").get("is_right") is False, "the difference")
        assert proof(running, "wrong")["first_differences"]
    assert "differs from Delta" in command(world.config, "status").stdout


@pytest.mark.spark
@pytest.mark.long
def test_a_deeper_level_in_the_daemon(world: World) -> None:
    """It starts Spark with the Iceberg jar by itself. What it finds is not cleared by a lighter verification."""
    world.configure(level="bitmaps", period="10s")
    with daemon(world.config) as running:
        for name in NAMES:
            running.told("verify.right", table=name, wait_s=SPARK_MAX_S)
        world.move_position()
        wrong = running.told("verify.wrong", table="wrong", wait_s=SPARK_MAX_S)
        assert wrong["differences"] == {"rows missing": 1, "deleted rows shown": 1}
        assert command(world.config, "verify", "wrong", "--metadata").returncode == 0
        assert "differs from Delta" in command(world.config, "status").stdout
    world.configure(level="metadata", period="1s")
    with daemon(world.config) as running:
        known = len(running.lines)
        until(lambda: verified_since(running, "right", known), "a verification of the other table")
        time.sleep(CHECKS_S)
        assert not verified_since(running, "wrong", 0)
        assert "differs from Delta" in running.reasons()


def test_a_verification_that_cannot_run_is_shown_until_one_ends(world: World) -> None:
    """No poll comes that could say what is wrong: only the verification meets it."""
    world.configure(poll_interval="1h", port=free_port())
    log = world.folder / "lake" / "wrong" / "_delta_log"
    with daemon(world.config) as running:
        for name in NAMES:
            until(lambda name=name: proof(running, name), f"the verification of {name}")
        log.rename(log.with_name("away"))
        until(lambda: running.tables()["wrong"]["verify_error"], "the failed verification")
        failed = running.tables()
        assert failed["right"]["verify_error"] is None
        assert failed["wrong"]["verify_error"]["consecutive"] >= 1
        assert running.told("verify.failed", table="wrong")["kind"] == failed["wrong"]["verify_error"]["kind"]
        assert failed["wrong"]["error"] is None
        shown = command(world.config, "status", "wrong").stdout
        assert "cannot be verified since 20" in shown
        assert failed["wrong"]["verify_error"]["hint"].split()[0] in shown
        for page in ("/", "/tables/wrong"):
            assert "cannot be verified" in running.fetch(page)
        assert "cannot be verified" not in running.fetch("/tables/right")
        log.with_name("away").rename(log)
        until(lambda: running.tables()["wrong"]["verify_error"] is None, "the next verification")
        assert proof(running, "wrong")["is_right"]
