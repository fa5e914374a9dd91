"""What systemd, containers and people who install dvsync meet: notifications, the probe, Java."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from daemon.cli.probe import ask
from daemon.config.load import load_settings
from daemon.config.settings import HealthSettings, TableSettings
from daemon.errors import PipelineAway
from daemon.service import systemd
from daemon.spark.jars import check_java
from daemon.status.board import Topic, Unready
from daemon.status.table_status import Observation
from daemon.web.endpoints import Api
from daemon.web.server import WebServer
from state import TableError, TableRecord
from tests.kit.boards import board_of
from tests.kit.tools import find_tool
from tests.unit.web.test_endpoints import FakeClock, table

DEPLOY = Path(__file__).parents[3] / "deploy"
UNIT = DEPLOY / "dvsync.service"


# --- systemd ---


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket as systemd listens on, and how it names it."""
    address = str(tmp_path / "notify") if request.param == "path" else f"\0dvsync-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        listener.settimeout(5)
        yield listener, address.replace("\0", "@")


def test_systemd_is_told_of_start_life_and_end(manager: tuple[socket.socket, str]) -> None:
    """READY, STATUS with WATCHDOG, STOPPING: one datagram each, as sd_notify(3) has them."""
    listener, address = manager
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}
    systemd.notify("READY=1", environment=environment)
    systemd.beat(lambda: "2 tables: 2 synced", environment)
    systemd.notify("STOPPING=1", environment=environment)
    told = [listener.recv(4096).decode() for _ in range(3)]
    assert told == ["READY=1", "STATUS=2 tables: 2 synced\nWATCHDOG=1", "STOPPING=1"]


def test_a_watchdog_for_another_process_is_not_fed(manager: tuple[socket.socket, str]) -> None:
    """WATCHDOG_PID names who is watched; a child that inherits the environment is not."""
    listener, address = manager
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}
    systemd.beat(lambda: "fine", environment)
    assert listener.recv(4096) == b"STATUS=fine"


def test_without_systemd_nothing_is_told(tmp_path: Path) -> None:
    """No socket, or one that nobody listens on: no error."""
    systemd.notify("READY=1", environment={})
    systemd.notify("READY=1", environment={"NOTIFY_SOCKET": str(tmp_path / "nobody")})


def test_the_unit_is_valid_and_hardened(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds no fault, and `security` calls the exposure low."""
    analyze = find_tool("systemd-analyze", package="systemd")
    program = tmp_path / "dvsync"
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    unit = tmp_path / "dvsync.service"
    unit.write_text(UNIT.read_text().replace("/opt/dvsync/bin/dvsync", str(program)))
    verified = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    limit = ["--offline=true", "--threshold=20"]
    judged = subprocess.run([analyze, "security", *limit, unit], capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout


def test_the_status_line_names_the_worst_table() -> None:
    """How many in which state, and the error of the one that needs a person first."""
    tables: list[TableSettings] = [table(name) for name in ("a", "b", "c")]
    board = board_of(tables, FakeClock(), lag_budget_s=60)
    assert board.summary() == "3 tables: 3 waiting"
    error = TableError("CorruptInput", "bad CRC", "Restore it.", None, 1, 1, parked=True)
    board.show("b", Observation(TableRecord(1, "b", "s", "t", synced_version=3, error=error)))
    assert board.summary() == "3 tables: 1 parked, 2 waiting; b: CorruptInput: bad CRC"
    empty = board_of([], FakeClock(), lag_budget_s=60)
    assert empty.summary() == "no tables"
    empty.set_unready(Topic.LEASE, [Unready(None, "standing by: the lease is held by process 7")])
    assert empty.summary() == "no tables; standing by: the lease is held by process 7"


# --- containers ---


def test_the_example_configuration_is_accepted() -> None:
    """What the compose file mounts passes `dvsync config check`."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["dvsync"]
    assert any(volume.startswith("./config.example.yaml:") for volume in compose["volumes"])
    assert load_settings(DEPLOY / "config.example.yaml").tables[0].target == "sales.orders"


# --- the probe ---


def test_the_probe_asks_the_running_daemon() -> None:
    """Alive, not ready, and gone: an answer each."""
    board = board_of([table("orders")], FakeClock(), lag_budget_s=60)
    web = WebServer.start(HealthSettings(port=0), Api(board).app)
    port = int(web.url.rsplit(":", 1)[1])
    try:
        for host in ("127.0.0.1", "0.0.0.0"):
            assert ask(HealthSettings(host=host, port=port), "livez").is_well
        unready = ask(HealthSettings(port=port), "readyz")
        assert not unready.is_well and "not checked yet" in unready.text
    finally:
        web.stop()
    gone = ask(HealthSettings(port=port), "livez")
    assert not gone.is_well and f"http://127.0.0.1:{port}/livez does not answer" in gone.text


def test_the_probe_is_light() -> None:
    """A container runs it every few seconds: nothing of what the daemon works with is imported for it."""
    script = (
        "import sys\n"
        "from daemon.cli.commands import app\n"
        f"code = app(['healthcheck', '--config', {str(DEPLOY / 'config.example.yaml')!r}], standalone_mode=False)\n"
        "print(code, sorted({'pyarrow', 'pyiceberg', 'pyspark', 'pandas', 'sqlalchemy'} & set(sys.modules)))\n"
    )
    environment = {**os.environ, "DVSYNC_HEALTH__PORT": "1"}
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True, timeout=60
    )
    assert result.stdout.splitlines()[-1] == "1 []"


# --- Java ---


def java_that_says(folder: Path, text: str) -> None:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(("version", "major"), [('openjdk version "17.0.9" 2023-10-17', 17), ('java version "21"', 21)])
def test_a_java_that_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: int) -> None:
    """JAVA_HOME goes before PATH, as Spark's launcher has it."""
    java_that_says(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert check_java() == major


@pytest.mark.parametrize("version", ['openjdk version "1.8.0_392"', 'openjdk version "11.0.2"', "no version at all"])
def test_an_older_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """With its path and what is needed instead."""
    java_that_says(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineAway, match="and Spark needs 17 or newer") as raised:
        check_java()
    assert "Install Java 17" in raised.value.hint


def test_no_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on PATH nor where JAVA_HOME says."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineAway, match="there is no Java on PATH, and Spark needs one"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(PipelineAway, match="there is no Java on JAVA_HOME"):
        check_java()
