"""Commands, what they print and their exit codes. None of these needs a JVM."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import structlog
from typer.testing import CliRunner

from daemon.app import STOP_GRACE_S
from daemon.cli import app
from daemon.clock import SystemClock
from daemon.lease import LeaseKeeper, hold_lease
from daemon.signals import SAME_REQUEST_S
from state.sql_store import SqlStateStore
from tests.handmade import Bench, HandmadeTable

CATALOGS = 'catalogs: {local: {type: sql, uri: "sqlite:///var/catalog.db", warehouse: var/warehouse}}\n'
EMPTY = CATALOGS + "health: {port: 0}\nlog: {format: json}\n"
TWO_TABLES = EMPTY + "tables:\n- {source: data/a, target: db.a}\n- {source: data/b, target: db.b, format_version: 3}\n"


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def dvsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVSYNC_CONFIG", raising=False)

    def run(*arguments: str, config: str | None = None):
        if config is not None:
            (tmp_path / "config.yaml").write_text(config, encoding="utf-8")
        return CliRunner().invoke(app, arguments)

    return run


@contextmanager
def state_held(sqlite_file: Path) -> Iterator[None]:
    """As a `dvsync run` holds it; here, by the tests' own process."""
    with (
        closing(SqlStateStore.open(f"sqlite:///{sqlite_file}")) as store,
        hold_lease(LeaseKeeper(store, SystemClock(), sqlite_file=sqlite_file, lease_s=30), Event()),
    ):
        yield


def test_version_needs_no_configuration(dvsync):
    """It prints the name and the version of the package."""
    result = dvsync("--version")
    assert (result.exit_code, result.stdout.split()[0]) == (0, "dvsync")


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Bench]:
    """A handmade Delta table with five deletions, followed into the places that `config.yaml` names."""
    table = HandmadeTable(tmp_path / "data" / "t")
    table.create()
    bench = Bench(tmp_path, table.location)
    bench.first_sync_empty(table)
    path = table.write_file([(number, "x", "v") for number in range(9)])
    table.commit([table.add(path)])
    for number in range(5):
        table.commit(table.delete({path: [number]}))
    bench.follower.sync()
    yield bench
    bench.close()


FOLLOWED = """
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
maintenance: {delete_files_max: 3, snapshots_max: 2, orphan_grace: 1min}
tables:
- {source: data/t, target: lake.t, name: t}
"""


def test_maintenance_by_hand(dvsync, followed: Bench):
    """Each command says what it would do, does it, and then has nothing left to do."""
    for arguments, said in (
        (["compact", "--dry-run"], "t: would compact the delete files of 1 data files: 5 into 1"),
        (["compact"], "t: compacted the delete files of 1 data files: 5 into 1"),
        (["compact", "t"], "t: nothing to compact"),
        (["expire", "--dry-run"], "t: would expire 6 snapshots"),
        (["expire"], "t: expired 6 snapshots"),
        (["expire"], "t: no snapshot to expire"),
    ):
        result = dvsync(*arguments, config=FOLLOWED)
        assert (result.exit_code, result.output) == (0, said + "\n"), result.output
    assert "  left 6: its grace period is not over\n" in dvsync("cleanup").output
    with closing(sqlite3.connect(followed.state_file)) as database, database:
        database.execute("update metadata_files set since_ms = 0 where status = 'orphaned'")
    for command in (["cleanup", "--dry-run"], ["cleanup"]):
        result = dvsync(*command)
        verb = "would remove" if "--dry-run" in command else "removed"
        assert result.output.startswith(f"t: {verb} 6 files, "), result.output
        assert "(manifest-list 6)" in result.output
        assert "  left 5: a snapshot still uses it\n" in result.output
    assert dvsync("cleanup").output.startswith("t: removed 0 files, 0 bytes\n")
    lost = Path(followed.iceberg().location().removeprefix("file://")) / "data" / "7-000000-deletes.parquet"
    lost.write_bytes(b"x")
    os.utime(lost, (0, 0))
    assert f"  found, unknown to the state database: file://{lost}\n" in dvsync("cleanup", "--scan").output
    assert "removed 1 files, 1 byte (delete-file 1)" in dvsync("cleanup", "--scan", "--remove").output
    assert dvsync("cleanup", "--remove").exit_code == 2
    assert len(followed.iceberg().scan().to_arrow()) == 4


def test_pause_resync_and_resume(dvsync, followed: Bench, tmp_path: Path):
    """A paused table is skipped and says so; a resync compares whole states at the next sync, once."""
    assert dvsync("pause", "t", config=FOLLOWED).output == "t: paused\n"
    result = dvsync("sync")
    assert (result.exit_code, result.output) == (0, "t: paused; `dvsync resume t` lets it go on\n")
    assert json.loads(dvsync("status", "--json").output)[0]["state"] == "paused"
    assert dvsync("resume", "t").output == "t: resumed\n"
    assert dvsync("resume", "t").output == "t: was neither parked nor paused; nothing to do\n"
    assert dvsync("sync").output.startswith("t: unchanged, version 6")
    assert dvsync("resync", "t").output == "t: is compared whole by its next sync\n"
    assert followed.store.list_tables()[0].resync_wanted
    for command in ("pause", "resync"):
        assert dvsync(command, "nobody").exit_code == 2
    dvsync("pause", "t")
    for command in ("compact", "expire"):
        result = dvsync(command)
        assert (result.exit_code, "it is paused" in result.output) == (1, True)


def test_a_changed_configuration_forgets_nothing_by_a_pause(dvsync, followed: Bench):
    """The name stands for another table in the state database: told, and the old one's memory stays."""
    before = followed.store.list_tables()
    for command in ("pause", "resync"):
        result = dvsync(command, "t", config=FOLLOWED.replace("lake.t", "lake.t_v2"))
        assert result.exit_code == 2
        assert f"the state database knows it as {followed.source} -> lake.t" in result.output
    assert followed.store.list_tables() == before


def test_what_commits_does_not_work_beside_a_daemon(dvsync, followed: Bench):
    """`compact` and `expire` are refused with who holds the state; `cleanup` and the dry runs are not."""
    with state_held(followed.state_file):
        for command in ("compact", "expire"):
            result = dvsync(command, config=FOLLOWED)
            assert result.exit_code == 1
            assert f"in use by process {os.getpid()}" in result.output
            assert dvsync(command, "--dry-run").exit_code == 0
        assert dvsync("cleanup").exit_code == 0


def test_a_table_that_cannot_be_maintained_fails_the_command(dvsync, followed: Bench):
    """The error is told with its hint, and the exit code is 1."""
    Path(followed.iceberg().metadata_location.removeprefix("file://")).unlink()
    for command in ("compact", "expire", "cleanup"):
        result = dvsync(command, config=FOLLOWED)
        assert result.exit_code == 1
        assert result.output.startswith("t: CatalogAway: the catalog of lake.t does not answer")


@pytest.mark.parametrize("arguments", [["nonsense"], ["sync", "--nonsense"], ["resume"]])
def test_wrong_usage_is_exit_code_2(dvsync, arguments):
    """As for every command line."""
    assert dvsync(*arguments, config=EMPTY).exit_code == 2


def test_config_check_tells_every_fault_on_its_own_line(dvsync):
    """On standard error, exit code 2."""
    result = dvsync("config", "check", config=CATALOGS + "health: {port: -1}\nlog: {level: loud}\nbogus: 1\n")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert [line.partition(":")[0] for line in result.stderr.splitlines()][:3] == ["health.port", "log.level", "bogus"]


def test_config_check_says_what_it_found(dvsync):
    """The tables with source, target and interval."""
    result = dvsync("config", "check", config=TWO_TABLES)
    assert result.exit_code == 0
    assert "tables: 2" in result.stdout
    assert "/data/a -> local db.a, every 10 s" in result.stdout


def test_config_may_stand_before_or_after_the_command_or_in_the_environment(dvsync, tmp_path, monkeypatch):
    """The nearer to the command wins over the environment."""
    (tmp_path / "mine.yaml").write_text(EMPTY, encoding="utf-8")
    assert "mine.yaml: all well" in dvsync("--config", "mine.yaml", "config", "check").stdout
    assert "mine.yaml: all well" in dvsync("config", "check", "--config", "mine.yaml").stdout
    assert "no such file" in dvsync("config", "check").stderr
    monkeypatch.setenv("DVSYNC_CONFIG", "mine.yaml")
    assert "mine.yaml: all well" in dvsync("config", "check").stdout
    assert dvsync("config", "check", "--config", "absent.yaml").exit_code == 2


def test_a_folder_that_cannot_be_made_is_a_fault_of_the_configuration(dvsync, tmp_path):
    """Named with its key, as any other."""
    (tmp_path / "file").touch()
    result = dvsync("status", config=TWO_TABLES.replace("var/catalog.db", "file/x/catalog.db"))
    assert result.exit_code == 2
    assert f"catalogs.local.uri: the folder {tmp_path}/file/x cannot be made: Not a directory" in result.stderr


def test_sync_status_and_resume_of_tables_that_cannot_sync(dvsync):
    """A missing source is no failure; format version 3 parks its table: exit code 1 until someone resumes it."""
    result = dvsync("sync", config=TWO_TABLES)
    assert result.exit_code == 1
    assert "db.a: the Delta table is not there yet" in result.stdout
    assert "db.b: Unsupported: " in result.stdout
    assert dvsync("sync", "db.a").exit_code == 0

    result = dvsync("status")
    assert result.exit_code == 1
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [["db.a", "waiting"], ["db.b", "parked"]]
    assert "format_version: 2" in result.stdout

    statuses = json.loads(dvsync("status", "--json").stdout)
    assert [status["state"] for status in statuses] == ["waiting", "parked"]
    assert statuses[1]["error"]["kind"] == "Unsupported"

    assert "db.b: resumed" in dvsync("resume", "db.b").stdout
    assert "nothing to do" in dvsync("resume", "db.b").stdout
    assert dvsync("status").exit_code == 0


def test_unknown_tables_are_told_all_at_once(dvsync):
    """With the names that there are; exit code 2."""
    result = dvsync("sync", "db.a", "db.x", "db.y", config=TWO_TABLES)
    assert result.exit_code == 2
    assert "db.x: no such table\ndb.y: no such table\n" in result.stderr
    assert "db.a, db.b" in result.stderr


def test_a_state_database_that_cannot_be_opened_is_exit_code_1(dvsync, tmp_path):
    """In words, without a traceback."""
    (tmp_path / "state.db").write_bytes(b"this is no database, as anyone can see" * 100)
    result = dvsync("status", config=EMPTY + "state: {url: 'sqlite:///state.db'}\n")
    assert result.exit_code == 1
    assert "state.db" in result.stderr
    assert "Traceback" not in result.stderr


def test_sync_is_refused_while_another_process_holds_the_state(dvsync, tmp_path):
    """It says who does; status works beside it."""
    (tmp_path / "config.yaml").write_text(TWO_TABLES, encoding="utf-8")
    with state_held(tmp_path / "var" / "dvsync.db"):
        result = dvsync("sync")
        assert result.exit_code == 1
        assert f"in use by process {os.getpid()} " in result.stderr
        assert dvsync("status").exit_code == 0
    assert dvsync("sync", "db.a").exit_code == 0


# --- the daemon, as a process of its own ---


@contextmanager
def running_daemon(folder: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """`dvsync run` in `folder`, once it has told that it started, with that line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "daemon", "run"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout
        for line in process.stdout:
            if line.startswith("{") and (told := json.loads(line))["event"] == "daemon.started":
                yield process, told
                return
        raise AssertionError("the daemon ended before it started")
    finally:
        process.kill()
        process.communicate()


def test_run_answers_probes_and_stops_on_sigterm(dvsync, tmp_path):
    """Alive, not ready without tables, a second one refused, and exit code 0 after one SIGTERM."""
    (tmp_path / "config.yaml").write_text(EMPTY, encoding="utf-8")
    with running_daemon(tmp_path) as (process, told):
        with urlopen(f"{told['health']}/livez", timeout=10) as response:
            assert json.load(response)["alive"]
        with pytest.raises(HTTPError) as unready:
            urlopen(f"{told['health']}/readyz", timeout=10)
        with unready.value as answer:
            assert json.load(answer)["reasons"] == [{"table": None, "reason": "no tables are configured"}]
        second = dvsync("sync")
        assert second.exit_code == 1
        assert f"process {process.pid} " in second.stderr
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=15)
        assert process.returncode == 0
    events = [json.loads(line)["event"] for line in output.splitlines()]
    assert events == ["daemon.stopping", "daemon.stopped"]


def test_the_second_signal_ends_the_process_at_once():
    """The first only asks; a later one does not wait for anything."""
    script = (
        "from daemon.signals import StopSignals\n"
        "with StopSignals() as signals:\n"
        "    print('ready', flush=True)\n"
        "    print(signals.wait(), flush=True)\n"
        "    while True: pass\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "SIGTERM\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2 * SAME_REQUEST_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 1
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("work", ["while True: pass", "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"])
def test_work_that_does_not_stop_is_cut_off_after_the_grace(work):
    """Also where it hangs in native code, so that no handler of Python's runs."""
    script = (
        "import hashlib\n"
        "from daemon.signals import StopSignals\n"
        "with StopSignals(grace_s=0.3):\n"
        "    print('ready', flush=True)\n"
        f"    {work}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=10)
        assert (process.returncode, told.splitlines()[0][:7]) == (1, "cut off")
    finally:
        process.kill()
        process.communicate()


def test_sync_is_cut_off_when_it_hangs(tmp_path):
    """A catalog that takes the connection and never answers: SIGTERM ends the command after the grace."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        catalog = f"{{type: rest, uri: 'http://127.0.0.1:{silent.getsockname()[1]}'}}"
        log = tmp_path / "data" / "a" / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020}.json").touch()
        config = f"catalogs: {{away: {catalog}}}\ntables: [{{source: data/a, target: db.a}}]\n"
        (tmp_path / "config.yaml").write_text(config, encoding="utf-8")
        process = subprocess.Popen([sys.executable, "-m", "daemon", "sync"], cwd=tmp_path, stderr=subprocess.PIPE)
        try:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGTERM)
                _, told = process.communicate(timeout=STOP_GRACE_S + 5)
            assert (process.returncode, told[:7]) == (1, b"cut off")
        finally:
            process.kill()
            process.communicate()
