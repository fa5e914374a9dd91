"""Commands as processes of their own, what they print and their exit codes. None of these needs a JVM."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table.update import UpgradeFormatVersionUpdate
from typer.main import get_command
from typer.testing import Result

from daemon.cli.commands import app
from daemon.clock import SystemClock
from daemon.service.lease import LeaseKeeper, hold_lease
from daemon.service.signals import SAME_REQUEST_S
from daemon.sync.context import Writer
from state import TableError
from state.sql.store import StateStore
from tests.kit.daemons import set_constants, write_config
from tests.kit.forking import Forked, run_forked
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.invoke import invoke

CATALOGS = 'catalogs: {local: {type: sql, uri: "sqlite:///var/catalog.db", warehouse: var/warehouse}}\n'
EMPTY = CATALOGS + "health: {port: 0}\nlog: {format: json}\n"
TWO_TABLES = EMPTY + "tables:\n- {source: data/a, target: db.a}\n- {source: data/b, target: db.b}\n"


@dataclass(frozen=True)
class Ended:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


@pytest.fixture
def dvsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a command in `tmp_path`, as from a shell, after `config` was written."""
    monkeypatch.delenv("DVSYNC_CONFIG", raising=False)
    set_constants(monkeypatch, {"daemon.maintenance.compaction.DELETE_FILES_MAX": 3})

    def run(*arguments: str, config: str | None = None) -> Ended:
        if config is not None:
            (tmp_path / "config.yaml").write_text(config, encoding="utf-8")
        ended = run_forked([*arguments], folder=tmp_path)
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    return run


@contextmanager
def state_held(sqlite_file: Path) -> Iterator[None]:
    """As a `dvsync run` holds it; here, by the tests' own process."""
    with (
        closing(StateStore.open(f"sqlite:///{sqlite_file}")) as store,
        hold_lease(LeaseKeeper(store, SystemClock(), sqlite_file=sqlite_file, lease_s=30), Event()),
    ):
        yield


def test_version_needs_no_configuration(dvsync):
    """It prints the name and the version of the package."""
    result = dvsync("--version")
    assert (result.exit_code, result.stdout.split()[0]) == (0, "dvsync")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--min-version", "5"), "needs --wait"),
        (("--wait", "--full"), "cannot be combined with --full"),
        (("--wait", "--timeout", "5"), "is not a duration"),
    ],
)
def test_options_of_a_wait_that_make_no_sense_are_refused(dvsync, words, said):
    result = dvsync("sync", *words, config=EMPTY)
    assert (result.exit_code, said in result.stderr) == (2, True)


def test_a_sync_of_no_tables_says_so(dvsync) -> None:
    assert dvsync("sync", config=EMPTY).output == "there are no tables in config.yaml\n"


def groups(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Each command that has others below it, by what people type for it, with these."""
    if hasattr(command, "commands"):
        yield names, command.commands
        for name, inner in command.commands.items():
            yield from groups(inner, *names, name)


@pytest.mark.parametrize(
    ("names", "commands"), [pytest.param(*each, id=" ".join(each[0])) for each in groups(get_command(app))]
)
def test_help_shows_whole_sentences(names: tuple[str, ...], commands: dict[str, Any]):
    """At 80 columns each command's line is the first sentence of its help, and nothing is cut."""
    output = invoke([*names, "--help"], env={"COLUMNS": "80"}).output
    shown = dict(line.split(maxsplit=1) for line in output.partition("Commands:\n")[2].splitlines())
    assert "..." not in output.partition("Options:")[2]
    assert shown
    assert shown == {name: re.split(r"(?<=\.)\s", command.help)[0] for name, command in commands.items()}


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Bench]:
    """A handmade Delta table with five deletions, followed into the places that `config.yaml` names."""
    table = HandmadeTable(tmp_path / "data" / "t")
    table.create()
    bench = Bench(tmp_path, table.location, writer=Writer(f"{socket.gethostname()}:{tmp_path}/state.db"))
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
maintenance: {snapshots_max: 2, orphan_grace: 1min}
tables:
- {source: data/t, target: lake.t, name: t}
"""


def test_maintenance_by_hand(dvsync, followed: Bench):
    """Each command says what it would do, does it, and then has nothing left to do."""
    for arguments, said in (
        (["compact", "--dry-run"], "t: would compact the delete files of 1 data file: 5 into 1"),
        (["compact"], "t: compacted the delete files of 1 data file: 5 into 1"),
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
        assert "  left 5: used by a snapshot\n" in result.output
    assert dvsync("cleanup").output.startswith("t: removed 0 files, 0 bytes\n")
    lost = Path(followed.iceberg().location().removeprefix("file://")) / "data" / "7-000000-deletes.parquet"
    lost.write_bytes(b"x")
    os.utime(lost, (0, 0))
    assert f"  unknown to the state database: file://{lost}\n" in dvsync("cleanup", "--scan").output
    assert "removed 1 file, 1 byte (delete-file 1)" in dvsync("cleanup", "--scan", "--remove").output
    assert dvsync("cleanup", "--remove").exit_code == 2
    assert len(followed.iceberg().scan().to_arrow()) == 4


def test_a_table_that_goes_to_another_catalog_and_comes_back(dvsync, followed: Bench, tmp_path: Path):
    """Both tables keep their files, whatever is cleaned up. The one that comes back is brought up to date."""
    there = FOLLOWED.replace("catalog.db", "there.db") + "defaults: {engine: local}\n"
    assert "create an empty file in its place" in dvsync("sync", config=there).output
    (tmp_path / "there.db").touch()
    assert "after `dvsync resync t`, without the wait" in dvsync("sync", config=there).output
    assert dvsync("resync", "t", config=there).exit_code == 0
    assert "version 6" in dvsync("sync", config=there).stdout
    # Nothing was ever synced into a catalog of this name, so a missing file is a new one.
    new = FOLLOWED.replace("catalog.db", "new.db").replace("{local:", "{new:") + "defaults: {engine: local}\n"
    assert "advanced, version 6" in dvsync("sync", config=new).stdout
    uris = {"catalog": "local", "there": "local", "new": "new"}
    catalogs = [load_catalog(name, type="sql", uri=f"sqlite:///{tmp_path}/{file}.db") for file, name in uris.items()]
    back = dvsync("sync", config=FOLLOWED)
    assert back.exit_code == 0, back.output
    for _ in range(2):
        with closing(sqlite3.connect(followed.state_file)) as database, database:
            for rows in ("metadata_files", "delete_files"):
                database.execute(f"update {rows} set since_ms = 0 where status = 'orphaned'")
        assert dvsync("cleanup").exit_code == 0
    for catalog in catalogs:
        assert len(catalog.load_table("lake.t").scan().to_arrow()) == 4
        catalog.close()


def test_a_catalog_that_is_not_there_is_not_made_anew(dvsync, followed: Bench, tmp_path: Path):
    """Whichever name the tables have it by, and whichever dvsync synced them. Once it is back, the syncs know it."""
    config = FOLLOWED + "defaults: {engine: local}\n"
    two_names = config.replace(
        "{local:", '{other: {type: sql, uri: "sqlite:///./catalog.db", warehouse: w}, local:'
    ).replace("name: t}", "name: t, catalog: local}\n- {source: data/t, target: lake.u, name: u, catalog: other}")
    catalog, away = tmp_path / "catalog.db", tmp_path / "away.db"

    def recorded() -> str | None:
        with closing(sqlite3.connect(followed.state_file)) as database:
            return database.execute("select catalog from tables").fetchone()[0]

    def forget_catalog() -> None:
        """As a dvsync before schema 0013 left it."""
        with closing(sqlite3.connect(followed.state_file)) as database, database:
            database.execute("update tables set catalog = null")

    assert dvsync("sync", config=config).exit_code == 0
    for forget, names in ((lambda: None, ["t"]), (lambda: None, ["u"]), (forget_catalog, ["t"])):
        forget()
        catalog.rename(away)
        refused = dvsync("sync", *names, config=two_names)
        assert (refused.exit_code, "dvsync synced 1 table into it" in refused.output) == (1, True), refused.output
        assert not catalog.exists()
        away.rename(catalog)
    assert dvsync("sync", "t", config=two_names).exit_code == 0
    assert recorded() == "local"
    # The same metadata file in another catalog: no commit is needed.
    with closing(load_catalog("new", type="sql", uri=f"sqlite:///{tmp_path}/new.db")) as new:
        new.create_namespace("lake")
        new.register_table("lake.t", followed.iceberg().metadata_location)
    config = config.replace("catalog.db", "new.db").replace("{local:", "{new:")
    assert "up to date" in dvsync("sync", config=config).output
    assert recorded() == "new"


def test_names_move_no_cursor(dvsync, followed: Bench):
    """Names of tables and files may hold what a terminal obeys: it is spelled out."""
    folder = Path(followed.iceberg().location().removeprefix("file://")) / "data" / "\x1b[2J"
    folder.mkdir()
    (folder / "7-000000-deletes.parquet").write_bytes(b"x")
    os.utime(folder / "7-000000-deletes.parquet", (0, 0))
    assert "/data/\\x1b[2J/7-000000-deletes.parquet\n" in dvsync("cleanup", "--scan", config=FOLLOWED).output
    named = TWO_TABLES.replace("target: db.a", 'target: db.a, name: "a\\e[2J"')
    for command in ("sync", "status"):
        result = dvsync(command, config=named)
        assert "a\\x1b[2J" in result.output
        assert all(line.isprintable() for line in result.output.splitlines())


def test_pause_resync_and_resume(dvsync, followed: Bench, tmp_path: Path):
    """A paused table is skipped and says so; a resync writes the table anew at the next sync, once."""
    assert dvsync("pause", "t", config=FOLLOWED).output == "t: paused\n"
    result = dvsync("sync")
    assert (result.exit_code, result.output.startswith("t: paused since 20")) == (0, True)
    assert result.output.endswith("; `dvsync resume t` resumes it\n")
    assert json.loads(dvsync("status", "--json").output)[0]["state"] == "paused"
    assert dvsync("resume", "t").output == "t: resumed; its next sync tries it again\n"
    assert dvsync("resume", "t").output == "t: was neither parked, paused nor retrying; nothing to do\n"
    assert dvsync("sync").output.startswith("t: up to date at version 6")
    assert dvsync("resync", "t").output == "t: its next sync rewrites the whole table\n"
    assert "its next sync rewrites the whole table" in dvsync("status").output
    for command in ("pause", "resync"):
        assert dvsync(command, "nobody").exit_code == 2
        assert dvsync(command, "t", "--all").exit_code == 2
    dvsync("pause", "t")
    assert "its next sync rewrites the whole table, after `dvsync resume t`" in dvsync("status").output
    for command in ("compact", "expire"):
        result = dvsync(command)
        assert (result.exit_code, "it is paused since 20" in result.output) == (1, True)


def test_a_pause_for_a_time(dvsync, followed: Bench):
    """Afterwards, all commands take the table as one that is not paused; a second pause does not begin it anew."""
    said = dvsync("pause", "t", "--for", "1h", "--reason", "a drill\033[2J", config=FOLLOWED).output
    assert said.startswith("t: paused until 20")
    first = json.loads(dvsync("status", "--json").output)[0]["pause"]
    line = dvsync("status").output
    assert f"paused since {first['since']} by {first['by']}, until {first['until']}: a drill\\x1b[2J" in line
    dvsync("pause", "t", "--for", "1h")
    second = json.loads(dvsync("status", "--json").stdout)[0]["pause"]
    assert (second["since"], second["reason"]) == (first["since"], None)
    dvsync("pause", "t", "--for", "200ms")
    time.sleep(0.2)
    assert json.loads(dvsync("status", "--json").stdout)[0]["pause"] is None
    assert dvsync("compact", "--dry-run").exit_code == 0
    assert dvsync("sync").output.startswith("t: up to date at version 6")
    for wrong in ("0s", "10", "400d"):
        assert dvsync("pause", "t", "--for", wrong).exit_code == 2
    assert followed.store.list_tables()[0].pause is None


def test_doctor_counts_what_a_pattern_finds_and_leaves_out(dvsync, tmp_path: Path):
    """With and without other tables; a place that a person names is examined alone."""
    for name in ("orders", "v1.2"):
        HandmadeTable(tmp_path / "data" / name).create()
    pattern = EMPTY + 'tables:\n- {source: "data/*", target: "db.{name}"}\n'
    lake = json.loads(dvsync("doctor", "--json", config=pattern).stdout)
    assert [each["source"] for each in lake["tables"]] == [f"file://{tmp_path}/data/orders"]
    assert [each["source"] for each in lake["unexamined"]] == [f"file://{tmp_path}/data/v1.2"]
    shown = dvsync("doctor")
    assert (shown.exit_code, "1 of 2" in shown.stdout, "cannot be part of" in shown.stdout) == (1, True, True)
    assert json.loads(dvsync("doctor", "db.orders", "--json").stdout)["unexamined"] == []
    alone = dvsync("doctor", config=pattern.replace("data/*", "data/v*"))
    assert (alone.exit_code, "cannot be part of" in alone.stderr) == (1, True)
    never = dvsync("doctor", config=EMPTY + "tables:\n- {source: data/none, target: db.none}\n").output
    assert f"there is no Delta table [file file://{tmp_path}/data/none" in never
    assert "Check the path: a Delta table is a folder with a folder `_delta_log`." in never


def test_one_command_for_several_tables(dvsync):
    """By names, by a pattern, and all of them; none is touched if one name is wrong."""
    assert dvsync("pause", "db.a", "db.b", config=TWO_TABLES).output == "db.a: paused\ndb.b: paused\n"
    assert dvsync("resume", "*.b").output == "db.b: resumed; its next sync tries it again\n"
    assert dvsync("resume", "db.b", "db.c").exit_code == 2
    assert dvsync("resume", "--all").output == (
        "db.a: resumed; its next sync tries it again\ndb.b: was neither parked, paused nor retrying; nothing to do\n"
    )
    assert dvsync("resume", "--all").output == "2 tables were neither parked, paused nor retrying; nothing to do\n"
    assert dvsync("resync", "db.*", "db.a").output.count("rewrites the whole table") == 2


def test_all_tables_beside_a_folder_that_cannot_be_followed(dvsync, tmp_path: Path):
    """The folder is named, and the command is done: there was nothing to ask of the folder."""
    for name in ("orders", "v1.2"):
        HandmadeTable(tmp_path / "data" / name).create()
    pattern = EMPTY + 'tables:\n- {source: "data/*", target: "db.{name}"}\n'
    for verb, says in (("pause", "paused"), ("resume", "resumed; its next sync tries it again")):
        asked = dvsync(verb, "--all", config=pattern)
        assert (asked.exit_code, asked.stdout) == (0, f"db.orders: {says}\n")
        assert f"file://{tmp_path}/data/v1.2 is not followed: " in asked.stderr
        assert "rename it, or exclude it" in asked.stderr
        asked = dvsync(verb, "db.orders")
        assert (asked.exit_code, asked.stderr) == (0, ""), "the folder is none of this table's business"
    asked = dvsync("status")
    assert (asked.exit_code, "v1.2 is not followed: " in asked.stderr) == (0, True)
    (tmp_path / "data" / "v1.2").rename(tmp_path / "data" / "v#1")
    assert "Rename the folder, or exclude it from the pattern." in dvsync("status").stderr


def test_a_fault_of_the_configuration_stops_only_what_needs_that_part(dvsync, followed: Bench, monkeypatch):
    """A fault elsewhere keeps no command from the daemon, or from the state database; a fault there does."""
    faulty = FOLLOWED + "- {source: x, target: oops}\n"
    assert "tables[1].target: 'oops' is not an Iceberg identifier" in dvsync("status", config=faulty).stderr
    assert dvsync("history", "t").stdout == "no sync is recorded yet\n"
    assert "is not an Iceberg identifier" in dvsync("history", "oops").stderr, "it may be the faulty entry's"
    for wrong in ("state: {url: nonsense}\n", "stat: {}\n"):
        result = dvsync("history", "t", config=re.sub(r"state: .*\n", wrong, faulty))
        assert (result.exit_code, "oops" in result.stderr) == (2, True), result.stderr
    twice = FOLLOWED + "log: {level: info, level: debug}\n"
    assert "log.level: appears twice, the second time in line 7" in dvsync("config", "check", config=twice).stderr
    assert dvsync("history", "t").exit_code == 0
    for variable, value, is_elsewhere in (
        ("DVSYNC_LOG__LEVEL", "loud", True),
        ("DVSYNC_STATE__ULR", "sqlite:///other.db", False),
        ("DVSYNC_STAT__URL", "sqlite:///other.db", False),
    ):
        monkeypatch.setenv(variable, value)
        assert dvsync("history", "t", config=FOLLOWED).exit_code == (0 if is_elsewhere else 2), variable


def test_a_resync_of_a_parked_table_that_fails_again(dvsync, followed: Bench):
    dvsync("resync", "t", config=FOLLOWED)
    record = followed.store.list_tables()[0]
    followed.store.record_failure(record.id, TableError("Unsupported", "a list", HINT, 12, 1_700_000_000_000, 3, True))
    assert "rewrites the whole table, after `dvsync resume t`" in dvsync("status").output


def test_a_copy_of_the_state_database_is_refused_while_the_original_is_there(dvsync, followed: Bench, tmp_path: Path):
    """Both would remove files of one Iceberg table. A moved database is none, nor is a new one at the former place."""
    assert dvsync("status", config=FOLLOWED).exit_code == 0
    followed.store.close()
    original, copy = tmp_path / "state.db", tmp_path / "copy" / "state.db"
    copy.parent.mkdir()
    shutil.copy(original, copy)
    moved = FOLLOWED.replace("sqlite:///state.db", "sqlite:///copy/state.db")
    for arguments in (["status"], ["sync"], ["cleanup", "--scan", "--remove"], ["forget", "t", "--drop"], ["run"]):
        refused = dvsync(*arguments, config=moved)
        assert (refused.exit_code, f"{copy} is a copy of {original}, which is still there" in refused.stderr) == (
            2,
            True,
        )
        assert f"remove {original}" in refused.stderr
    original.unlink()
    assert dvsync("status").stdout.startswith("t synced ")
    # Another database takes the former place.
    assert dvsync("pause", "t", config=FOLLOWED.replace("lake.t", "lake.u")).exit_code == 0
    assert original.exists() and dvsync("status", config=moved).exit_code == 0


def test_a_first_sync_that_fails_leaves_no_files(dvsync, tmp_path: Path):
    """However often it is tried: what it wrote before it failed is removed, and is no orphan."""
    table = HandmadeTable(tmp_path / "data" / "a")
    table.create()
    table.commit([table.add(table.write_file([(row, "x", "v") for row in range(9)]), deleted=[1])])
    (vectors,) = table.folder.glob("deletion_vector_*.bin")
    saved = vectors.rename(tmp_path / "saved")
    config = EMPTY + "defaults: {engine: local}\ntables: [{source: data/a, target: db.a}]\n"
    for _ in range(3):
        assert "ObjectMissing" in dvsync("sync", config=config).stdout
    assert "orphans=0" in dvsync("status").stdout
    assert [path for path in (tmp_path / "var").rglob("*") if path.suffix in (".avro", ".parquet")] == []
    saved.rename(vectors)
    assert dvsync("sync").exit_code == 0


def test_history_of_a_table_that_was_never_synced(dvsync, tmp_path: Path):
    assert dvsync("history", "db.a", config=TWO_TABLES).output == "no sync is recorded yet\n"
    assert dvsync("history", "*.b").output == "no sync is recorded yet\n"
    assert "db.* stands for 2 tables" in dvsync("history", "db.*").stderr
    assert dvsync("history", "db.c").exit_code == 2
    assert dvsync("status").exit_code == 0
    # A database that these commands make would belong to their user, and not to the daemon's.
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_doctor_of_good_and_bad_places(dvsync, tmp_path: Path):
    """What is there is examined, and what is not is named."""
    HandmadeTable(tmp_path / "good").create()
    result = dvsync("doctor", "nope/*", "good", "none", config=EMPTY)
    assert (result.exit_code, "1 of 2 tables can be followed." in result.stdout) == (1, True), result.output
    assert "patterns that could not be listed: nope/*" in result.stdout
    for above in ("x", "y"):
        HandmadeTable(tmp_path / above / "a" / "orders").create()
    assert "2 of 2 tables can be followed." in dvsync("doctor", "x/a/*", "y/a/*").stdout
    assert "none: could not be examined: ConfigInvalid: " in result.stdout


def test_doctor_without_a_configuration(dvsync, tmp_path: Path, monkeypatch):
    """It needs none, and heeds the environment."""
    HandmadeTable(tmp_path / "good").create()
    assert dvsync("doctor", "good").exit_code == 0
    monkeypatch.setenv("DVSYNC_LOG__LEVEL", "loud")
    assert "log.level: " in dvsync("doctor", "good").stderr


def test_doctor_of_what_is_no_folder(dvsync, tmp_path: Path):
    (tmp_path / "note.txt").write_text("")
    result = dvsync("doctor", "note.txt", config=EMPTY)
    assert (result.exit_code, f"file://{tmp_path}/note.txt: no such folder" in result.stderr) == (2, True)


def test_a_changed_configuration_forgets_nothing_by_a_pause(dvsync, followed: Bench):
    """The name stands for another table in the state database: told, and the old one's memory stays."""
    before = followed.store.list_tables()
    for command in ("pause", "resync"):
        result = dvsync(command, "t", config=FOLLOWED.replace("lake.t", "lake.t_v2"))
        assert result.exit_code == 2
        assert f"the state database has this name for {followed.source} -> lake.t" in result.output
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
        assert result.output.startswith("t: ObjectMissing: the metadata file that the catalog names is not there")


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


def test_a_source_that_nobody_can_read_hides_no_other_table(tmp_path):
    """`config check` names what no client can read; the other tables are followed and shown."""
    table = HandmadeTable(tmp_path / "good")
    table.create()

    def run(*words: str, **sources: str) -> Result:
        entries = {"good": table.location, "empty": "s3://b//t", **sources}
        write_config(
            tmp_path / "config.yaml",
            defaults={"engine": "local"},
            tables=[{"name": name, "source": source, "target": f"l.{name}"} for name, source in entries.items()],
        )
        return invoke([*words, "--config", str(tmp_path / "config.yaml")])

    check = run("config", "check", none="s3:///t", cut="s3://b/a#b")
    assert (check.exit_code, check.output.count("empty part between two slashes")) == (2, 2)
    assert "tables[1].source" in check.output and "tables[3].source: the path contains '#'" in check.output
    for words in (["sync"], ["doctor"], ["cleanup"], ["verify", "--metadata"]):
        done = run(*words)
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.output)
        assert "empty" in done.output, (words, done.output)
    states = {each["name"]: each["state"] for each in json.loads(run("status", "--json").stdout)}
    assert states == {"good": "synced", "empty": "parked"}
    assert run("doctor", "s3://b//t").exit_code == 2


def test_config_check_tries_what_it_leads_to(dvsync, followed: Bench, tmp_path: Path):
    """Each place has its line, and a fault its hint; what is well does not hide what is not."""
    config = FOLLOWED + "defaults: {engine: local}\n"
    well = dvsync("config", "check", "--connect", config=config)
    assert well.exit_code == 0
    for line in ("state database: can be written", "catalog local: answers; 1 namespace\n", "table t: file://"):
        assert f"\n{line}" in well.stdout, well.stdout
    lost = dvsync("config", "check", "--connect", config=config.replace("catalog.db", "typo/none.db"))
    missing = (
        f"the file of the catalog local is not there, and dvsync synced 1 table into it [file {tmp_path}/typo/none.db]"
    )
    assert (lost.exit_code, f"catalog local: {missing}" in lost.stdout) == (1, True), lost.stdout
    (tmp_path / "new.db").touch()
    empty = dvsync("config", "check", "--connect", config=config.replace("catalog.db", "new.db"))
    assert (empty.exit_code, "table t: the catalog local has no table lake.t, which dvsync made" in empty.stdout) == (
        1,
        True,
    )
    (tmp_path / "lake" / "no name").mkdir(parents=True)
    HandmadeTable(tmp_path / "lake" / "no name").create()
    (tmp_path / "lake" / "loop").symlink_to(tmp_path / "lake" / "loop")
    rest = 'catalogs: {away: {type: rest, uri: "http://127.0.0.1:1"}, '
    patterns = "".join(
        f"- {{source: '{folder}/*/', target: '{folder}.{{name}}', catalog: local}}\n" for folder in ("lake", "lakee")
    )
    faulty = config.replace("catalogs: {", rest).replace("target: lake.t,", "target: lake.t, catalog: local,")
    tried = dvsync("config", "check", "--connect", config=faulty.replace("defaults:", f"{patterns}defaults:"))
    assert tried.exit_code == 1
    for line in (
        "catalog away: the catalog away does not answer: ",
        "catalog local: answers",
        f"file://{tmp_path}/lakee/*: the folder is not there",
    ):
        assert f"\n{line}" in tried.stdout, tried.stdout
    assert "lake/no name: the name 'no name' cannot be part of lake.{name}" in tried.stdout
    assert "Check the catalog's address, credentials and health." in tried.stdout
    hooks = "hooks: [{command: [no-such-program]}, {command: [sh, -c, 'true']}]\n"
    tried = dvsync("config", "check", "--connect", config=config + hooks)
    assert (tried.exit_code, "hooks[0].command: there is no program no-such-program" in tried.stdout) == (1, True)
    assert re.search(r"\nhooks\[1\].command: /\S+/sh\n", tried.stdout), tried.stdout
    iceberg = followed.iceberg()
    iceberg.catalog.commit_table(iceberg, (), (UpgradeFormatVersionUpdate(format_version=3),))
    tried = dvsync("config", "check", "--connect", config=config)
    assert (tried.exit_code, "has format version 3, and cannot go back to 2" in tried.stdout) == (1, True)
    with state_held(followed.state_file):
        assert f"in use by process {os.getpid()} " in dvsync("config", "check", "--connect", config=config).stdout


@pytest.fixture
def here(tmp_path: Path):
    """Run a command in this process, after `config` was written, and return what it said. It ends with `code`."""

    def run(config: str, *words: str, code: int = 0) -> str:
        (tmp_path / "config.yaml").write_text(config + "defaults: {engine: local}\n")
        done = invoke([*words, "--config", str(tmp_path / "config.yaml")])
        assert done.exit_code == code, done.output
        return done.output

    return run


def test_config_check_knows_an_iceberg_table_that_nothing_leads_to(followed: Bench, here):
    """The target was renamed and the state database lost: the former table is named, and the way out works."""
    followed.close()
    followed.state_file.unlink()
    renamed = FOLLOWED.replace("lake.t", "lake.new")
    assert "dvsync made lake.t, and nothing leads to it now" in here(renamed, "config", "check", "--connect")
    here(f"{renamed}- {{source: data/t, target: lake.t, name: old}}\n", "sync")
    assert "old: lake.t dropped" in here(renamed, "forget", "old", "--drop")
    assert "dvsync made" not in here(renamed, "config", "check", "--connect")


def test_config_check_takes_no_table_for_forgotten_that_may_be_in_use(followed: Bench, here):
    """Another dvsync's, a second name of one that is followed, and one whose name only the catalog spells otherwise."""
    other = FOLLOWED.replace("state.db", "other.db")
    renamed = other.replace("lake.t", "lake.new")
    assert "dvsync made" not in here(renamed, "config", "check", "--connect")
    assert "TargetHeld" in here(other, "sync", code=1)
    assert here(renamed.replace("name: t", "name: new"), "forget", "t", "--drop") == (
        "t: nothing dropped, since no sync of it is recorded; forgotten\n"
    )
    catalog = followed.catalogs.open("local")
    catalog.register_table("lake.again", followed.iceberg().metadata_location)
    assert "dvsync made" not in here(FOLLOWED, "config", "check", "--connect")
    catalog.drop_table("lake.again")
    followed.close()
    followed.state_file.unlink()
    assert "dvsync made" not in here(FOLLOWED.replace("lake.t", "lake.T"), "config", "check", "--connect")


@pytest.mark.parametrize(
    ("source", "warehouse", "where"),
    [
        ("/data/a", "s3://b/w", "local, the metadata at s3://b/w"),
        ("s3://b/a", "/w", "in an object store, the metadata at file:///w"),
        ("s3://b/a", "s3://b/w", None),
        ("/data/a", "w", None),
    ],
)
def test_config_check_says_that_data_and_metadata_are_in_two_places(tmp_path: Path, source, warehouse, where):
    """Who reads the one may not reach the other. Many tables have one line."""
    catalogs = CATALOGS.replace("var/warehouse", warehouse)
    entries = ", ".join(f"{{source: '{source}{name}', target: db.{name}}}" for name in "abcdef")
    (tmp_path / "config.yaml").write_text(f"{catalogs}tables: [{entries}]\n")
    done = invoke(["config", "check", "--config", str(tmp_path / "config.yaml")])
    told = [line for line in done.output.splitlines() if "readers need both" in line]
    line = f"db.a, db.b, db.c, …: the data files are {where}: readers need both"
    assert (done.exit_code, told) == (0, [line] if where else [])


@pytest.mark.parametrize(
    ("first", "second", "targets", "is_one"),
    [
        ("uri: 'http://Host:80/a', warehouse: w", "uri: 'http://host/a/', warehouse: w", "l.t l.t", True),
        ("uri: 'http://h'", "uri: 'http://h', s3.region: r, py-io-impl: x", "l.t l.T", True),
        ("type: glue, glue.region: x", "type: glue, glue.region: x", "l.t L.t", True),
        ("type: dynamodb", "type: dynamodb", "l.t l.t", True),
        ("uri: 'http://h', warehouse: w", "uri: 'http://h', warehouse: v", "l.t l.t", False),
        ("uri: 'http://h', token: x", "uri: 'http://h', token: y", "l.t l.t", False),
        ("uri: 'http://h', header.x-tenant: x", "uri: 'http://h', header.x-tenant: y", "l.t l.t", False),
        ("type: hive, uri: 'thrift://h:1'", "type: hive, uri: 'thrift://h:1', hive.catalog-name: x", "l.t l.t", False),
        ("type: glue, client.role-arn: x", "type: glue, client.role-arn: y", "l.t l.t", False),
        ("type: sql, uri: 'sqlite:///c', warehouse: w", "uri: 'sqlite:///c', warehouse: w", "l.t l.t", False),
        ("uri: 'sqlite:///c', warehouse: w", "uri: 'sqlite:///c', warehouse: w", "l.t l.t", False),
        ("type: in-memory, warehouse: w", "type: in-memory, warehouse: w", "l.t l.t", False),
    ],
)
def test_config_check_says_which_targets_may_be_one(here, first, second, targets, is_one):
    """Those of catalogs that nothing tells apart, in any spelling. It is no fault, for only the catalog knows."""
    one, other = targets.split()
    tables = "".join(
        f"- {{source: {name}, name: {name}, catalog: {catalog}, target: {target}}}\n"
        for name, catalog, target in (("a", "c", one), ("b", "d", other))
    )
    said = here(f"catalogs:\n  c: {{{first}}}\n  d: {{{second}}}\ntables:\n{tables}", "config", "check")
    line = (
        f"b: {other} in the catalog d may be the same Iceberg table as {one} in the catalog c, the target of a; if so,"
    )
    assert (line in said, "may be" in said) == (is_one, is_one), said


def test_config_check_says_what_it_found(dvsync):
    """The tables with source, target and interval."""
    result = dvsync("config", "check", config=TWO_TABLES)
    assert result.exit_code == 0
    assert "tables: 2" in result.stdout
    assert "/data/a -> local db.a, every 10 s" in result.stdout


def test_config_check_counts_patterns_apart(dvsync):
    """What a pattern finds is not known yet."""
    config = EMPTY + "tables:\n- {source: data/a, target: db.a}\n- {source: 'data/*/', target: 'db.{name}'}\n"
    assert "\ntables: 1, patterns: 1\n" in dvsync("config", "check", config=config).stdout


def test_a_sync_logs_as_the_configuration_says(dvsync, tmp_path: Path):
    """Warnings and above are JSON lines on standard error if it asks for JSON, and lines for people otherwise."""
    HandmadeTable(tmp_path / "data" / "a").create()
    config = EMPTY + "defaults: {engine: local}\ntables: [{source: data/a, target: db.a}]\n"
    assert dvsync("sync", config=config).stderr == ""
    assert json.loads(dvsync("sync", "--full").stderr.splitlines()[-1])["event"] == "target.overwritten"
    plain = dvsync("sync", "--full", config=config.replace("format: json", "format: auto")).stderr.splitlines()[-1]
    assert "target.overwritten" in plain and not plain.startswith("{")


def test_a_sync_says_an_error_once(dvsync, tmp_path: Path):
    """A table's verdict has the error and its hint; only the traceback of a bug is logged beside it."""
    HandmadeTable(tmp_path / "data" / "a").create()
    (commit,) = (tmp_path / "data" / "a" / "_delta_log").glob("*.json")
    written = commit.read_text()
    commit.write_text(written.replace('"minReaderVersion": 3', '"minReaderVersion": 9'))
    config = EMPTY + "defaults: {engine: local}\ntables: [{source: data/a, target: db.a}]\n"
    parked = dvsync("sync", config=config)
    assert (parked.exit_code, parked.stderr, "db.a: Unsupported: " in parked.stdout) == (1, "", True), parked.output

    waited = dvsync("sync", "--wait")
    assert (waited.exit_code, waited.stdout.count("Unsupported: ")) == (1, 1)

    commit.write_text(written)
    bug = (
        "from daemon.sync.follower import Follower\n"
        "from daemon.cli.commands import main\n"
        "Follower.sync = lambda *_, **__: 1 / 0\n"
        "main()\n"
    )
    told = subprocess.run([sys.executable, "-c", bug, "sync"], cwd=tmp_path, stderr=subprocess.PIPE, check=False).stderr
    logged = json.loads(told.splitlines()[-1])
    assert "ZeroDivisionError: division by zero" in logged["exception"]


def test_config_may_stand_before_or_after_the_command_or_in_the_environment(dvsync, tmp_path, monkeypatch):
    """The nearer to the command wins over the environment."""
    (tmp_path / "mine.yaml").write_text(EMPTY, encoding="utf-8")
    assert "mine.yaml: the configuration is valid" in dvsync("--config", "mine.yaml", "config", "check").stdout
    assert "mine.yaml: the configuration is valid" in dvsync("config", "check", "--config", "mine.yaml").stdout
    assert "no such file" in dvsync("config", "check").stderr
    monkeypatch.setenv("DVSYNC_CONFIG", "mine.yaml")
    assert "mine.yaml: the configuration is valid" in dvsync("config", "check").stdout
    assert dvsync("config", "check", "--config", "absent.yaml").exit_code == 2


def test_a_folder_that_cannot_be_made_is_a_fault_of_the_configuration(dvsync, tmp_path):
    """Named with its key, as any other."""
    (tmp_path / "file").touch()
    result = dvsync("sync", config=TWO_TABLES.replace("var/catalog.db", "file/x/catalog.db"))
    assert result.exit_code == 2
    assert f"catalogs.local.uri: the folder {tmp_path}/file/x cannot be created: Not a directory" in result.stderr


def test_sync_status_and_resume_of_tables_that_cannot_sync(dvsync, tmp_path):
    """A missing source is no failure; an unknown feature parks its table: exit code 1 until someone resumes it."""
    refused = HandmadeTable(tmp_path / "data" / "b")
    (refused.folder / "_delta_log").mkdir(parents=True)
    refused.commit([{"protocol": refused.protocol(["unheardOf"])}, {"metaData": refused.metadata()}])
    result = dvsync("sync", config=TWO_TABLES)
    assert result.exit_code == 1
    missing = f"no Delta table has been seen at file://{tmp_path}/data/a yet; check the path, or wait for the table"
    assert f"db.a: {missing}\n" in result.stdout
    assert "db.b: Unsupported: " in result.stdout
    assert dvsync("sync", "db.a").exit_code == 0

    result = dvsync("status")
    assert result.exit_code == 1
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [["db.a", "waiting"], ["db.b", "parked"]]
    assert "unheardOf" in result.stdout

    statuses = json.loads(dvsync("status", "--json").stdout)
    assert [status["state"] for status in statuses] == ["waiting", "parked"]
    assert statuses[1]["error"]["kind"] == "Unsupported"

    assert "db.b: resumed" in dvsync("resume", "db.b").stdout
    assert "nothing to do" in dvsync("resume", "db.b").stdout
    assert dvsync("status").exit_code == 0


def test_unknown_tables_are_told_all_at_once(dvsync):
    """With the names that are like them, or all that there are; exit code 2."""
    result = dvsync("sync", "db.a", "db.x", "orders", config=TWO_TABLES)
    assert result.exit_code == 2
    assert "db.x: no such table\norders: no such table\nDid you mean db.b or db.a?" in result.stderr
    assert "The tables are db.a, db.b." in dvsync("sync", "orders").stderr


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


# --- status, on a terminal and elsewhere ---

LONG = "sales.a_table_whose_name_is_longer_than_most_names_and_leaves_no_room_for_numbers_where_they_are_wanted_most"
STATUSES = (
    FOLLOWED
    + f"""- {{source: data/later, target: lake.later}}
- {{source: data/away, target: {LONG}}}
- {{source: data/bad, target: lake.bad}}
"""
)
PATH = "file:///data/lake/a_folder_with_a_long_name/and_one_more_of_that_kind/_delta_log/00000000000000000012.json"
HINT = "The commit is invalid, and none of it is shown in Iceberg. Fix the program that wrote it."


@pytest.fixture
def four_states(followed: Bench, tmp_path: Path) -> Path:
    """A folder with a configuration of four tables: synced, waiting, retrying and parked."""
    (tmp_path / "config.yaml").write_text(STATUSES, encoding="utf-8")
    for name, folder, parked in ((LONG, "away", False), ("lake.bad", "bad", True)):
        record = followed.store.open_table(name, f"file://{tmp_path}/data/{folder}", name)
        error = TableError("CorruptInput", f"line 1 is not JSON [file {PATH}]", HINT, 12, 1_700_000_000_000, 3, parked)
        followed.store.record_failure(record.id, error)
    return tmp_path


def on_terminal(folder: Path, columns: int, *arguments: str, until: bytes | None = None) -> str:
    """What a command writes to a terminal of that width, with what colours it. Ctrl-C ends it once it wrote `until`."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    with open(end, "w") as output_end, open(os.devnull, "w") as unseen:
        environment = {**plain, "TERM": "xterm-256color"}
        process = Forked([*arguments], environment=environment, stdout=output_end, stderr=unseen, folder=folder)
    output = b""
    # When the last writer has gone, reading a terminal fails.
    with open(terminal, "rb", buffering=0) as reader, suppress(OSError):
        while piece := reader.read(4096):
            output += piece
            if until is not None and until in output:
                process.send_signal(signal.SIGINT)
                until = None
    assert process.wait(timeout=60) in {0, 1}
    return output.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(("columns", "wide"), [(80, False), (80, True), (120, True)])
def test_status_on_a_terminal(four_states: Path, columns: int, wide: bool):
    """A summary, then the worst table first, its error under it; nothing is cut, and states have their colours."""
    output = on_terminal(four_states, columns, "status", *(["--wide"] if wide else []))
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", output).splitlines()]
    summary = next(number for number, line in enumerate(lines) if line.startswith("4 tables"))
    assert lines[0].startswith("no daemon")
    assert lines[summary - 1] == "what follows is from the state database and the Delta logs"
    lines = lines[summary:]
    assert lines[0] == "4 tables: 1 parked, 1 retrying, 1 waiting, 1 synced"
    assert max(map(len, lines)) <= columns
    assert "…" not in output and "..." not in output
    more = ["files", "deleted", "orphans", "fmt"] if wide else []
    assert lines[1].split() == ["table", "state", "version", "lag", "synced", *more]
    state = lines[1].index("state")
    rows = [line for line in lines[2:] if line[state - 1 :].startswith((" parked", " retrying", " waiting", " synced"))]
    assert [re.sub(r"\d+ s ago", "now", row[state:]).split() for row in rows] == [
        ["parked", "-", "-", "-", *(["-", "-", "0", "-"] if wide else [])],
        ["retrying", "-", "-", "-", *(["-", "-", "0", "-"] if wide else [])],
        ["waiting", "-", "-", "-", *(["-", "-", "-", "-"] if wide else [])],
        ["synced", "6", "0", "now", *(["1", "5", "0", "v2"] if wide else [])],
    ]
    of_bad, of_long = (lines.index(row) for row in rows[:2])
    bad, long = lines[of_bad + 1 : of_long], lines[of_long : lines.index(rows[2])]
    # A path goes on in the next line where it has to, and words stay whole.
    assert "".join(line.strip() for line in bad).startswith(f"CorruptInput: line 1 is not JSON [file{PATH}]")
    assert " ".join(line.strip() for line in bad).endswith(f"{PATH[-9:]}] {HINT}")
    assert all(line.startswith("  ") for line in bad)
    assert "".join(line[:state].strip() for line in long).startswith(LONG)
    assert len(of := [line for line in long if line.startswith("  CorruptInput")]) == 1, of
    for coloured in ("\x1b[1;31mparked", "\x1b[31mretrying", "\x1b[33mwaiting", "\x1b[32msynced"):
        assert coloured in output


def test_status_watched(four_states: Path):
    """On a terminal, each list replaces the one before; elsewhere it follows, with its time. Ctrl-C is exit code 0."""
    clear = "\x1b[2J"
    output = on_terminal(four_states, 120, "status", "--watch", until=b"lake.later")
    assert (output.count(clear), output.count("4 tables: ")) == (1, 1)
    command = [sys.executable, "-m", "daemon", "status", "--watch", "--state", "parked"]
    with subprocess.Popen(command, cwd=four_states, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(4)]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:.]+Z\n", line) for line in lines[::2]), lines
    assert lines[1] == lines[3]
    assert lines[1].startswith("lake.bad parked ")


def test_status_is_watched_over_a_fault(four_states: Path):
    """The fault is in the place of the list, and the list is back once it is over."""
    config = four_states / "config.yaml"
    command = [sys.executable, "-m", "daemon", "status", "--watch", "--state", "parked"]
    with subprocess.Popen(
        command, cwd=four_states, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:

        def comes(start: str) -> str:
            return next(line for line in process.stdout if line.startswith(start))

        comes("lake.bad parked ")
        config.write_text("state: 1\n")
        assert "state: is not a section of keys" in comes("state: ")
        config.write_text(STATUSES)
        comes("lake.bad parked ")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


def test_status_on_a_narrow_terminal(four_states: Path):
    """Where the columns have no room, the tables have lines."""
    output = on_terminal(four_states, 40, "status")
    line = (
        "lake.bad parked synced=- source=- lag=- at=- files=- mirrors=- deleted=- orphans=0 format=- error=CorruptInput"
    )
    assert f"{line}: " in output


def test_status_elsewhere(four_states: Path, dvsync):
    """Each table is one line, in the order of the configuration."""
    counts = "at=- files=- mirrors=- deleted=- orphans=0 format=-"
    error = f"{counts} error=CorruptInput: line 1 is not JSON [file {PATH}] ({HINT})"
    result = dvsync("status")
    assert re.sub(r"at=20\S+Z", "at=now", result.stdout).splitlines() == [
        "t synced synced=6 source=6 lag=0 at=now files=1 mirrors=0 deleted=5 orphans=0 format=2",
        "lake.later waiting synced=- source=- lag=- at=- files=- mirrors=- deleted=- orphans=- format=-"
        f" no Delta table has been seen at file://{four_states}/data/later yet; check the path, or wait for the table",
        f"{LONG} retrying synced=- source=- lag=- {error}",
        f"lake.bad parked synced=- source=- lag=- {error}",
    ]
    assert result.stderr.startswith("no daemon")


def test_status_of_some_tables(four_states: Path, dvsync):
    """By name, by a pattern, and by state; what is not there is an error."""

    def shown(*arguments: str) -> list[str]:
        return [line.split()[0] for line in dvsync("status", *arguments).stdout.splitlines()]

    assert shown("t") == ["t"]
    assert shown("lake.*") == ["lake.later", "lake.bad"]
    assert shown("--state", "synced", "--state", "parked") == ["t", "lake.bad"]
    assert shown("lake.*", "--state", "parked") == ["lake.bad"]
    assert dvsync("status", "t").exit_code == 0
    assert dvsync("status", "lake.bda").exit_code == 2
    assert "Did you mean lake.bad or " in dvsync("status", "lake.bda").stderr
    assert dvsync("status", "--state", "well").exit_code == 2


def test_a_state_of_another_place_is_told(followed: Bench, dvsync):
    """As after a folder with state and tables was copied: nothing is lost, and the line says what it counts as."""
    status = dvsync("status", config=FOLLOWED.replace("data/t", "data/moved"))
    assert f"t: the state database has this name for {followed.source} -> lake.t" in status.stderr
    assert "counts as a new table" in status.stderr
    assert "counts as" not in dvsync("status", config=FOLLOWED).stderr


def test_an_iceberg_table_that_is_still_written_is_not_dropped(followed: Bench, dvsync):
    """A table that is gone may have had the target of one that is followed now."""
    config = FOLLOWED.replace("name: t", "name: again")
    refused = dvsync("forget", "t", "--drop", config=config)
    assert (refused.exit_code, "t: its Iceberg table lake.t is the target of again" in refused.stderr) == (2, True)
    assert followed.iceberg().metadata_location
    assert dvsync("forget", "t").output == "t: forgotten\n"
    said = "nothing to forget: the configuration leads to every table; remove an entry, or exclude a folder\n"
    assert dvsync("forget", "--all").output == said


def test_history(tmp_path: Path, dvsync):
    """A table's last syncs, the newest first, and its errors."""
    table = HandmadeTable(tmp_path / "data" / "a")
    table.create()
    for value in ("x", "y"):
        table.commit([table.add(table.write_file([(1, value, "v")]))])
        assert dvsync("sync", "db.a", config=TWO_TABLES).exit_code == 0
    newest, first = dvsync("history", "db.a").stdout.splitlines()
    assert "advanced, version 2" in newest and "data files +1 -0" in newest
    assert "advanced, version 1" in first
    (run,) = json.loads(dvsync("history", "db.a", "--limit", "1", "--json").stdout)
    assert (run["outcome"], run["to_version"]) == ("advanced", 2)
    assert f"({run['operation']})" in newest and run["started_at"] in newest
    assert "table_id" not in run
    result = dvsync("history", "x")
    assert (result.exit_code, "x: no such table" in result.stderr) == (2, True)


# --- what a command imports ---

# Each takes a tenth of a second or more to import, together with what it imports itself.
HEAVY = {
    "alembic",
    "apscheduler",
    "numpy",
    "openlineage",
    "opentelemetry",
    "pandas",
    "pyarrow",
    "pyiceberg",
    "pyspark",
    "sqlalchemy.orm",
    "starlette",
    "uvicorn",
}
PATTERN = FOLLOWED.replace("data/t, target: lake.t, name: t", "'data/*/', target: 'lake.{name}', name: '{name}'")


def imported_by(folder: Path, *arguments: str) -> set[str]:
    """The modules in the process of a command that succeeds, as it ends."""
    script = (
        "import atexit, sys\n"
        "from daemon.cli.commands import main\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    return set(ended.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("sync", "--help"), ("status",), ("pause", "t"), ("resume", "t"), ("resync", "t")],
    ids=" ".join,
)
@pytest.mark.parametrize("config", [FOLLOWED, PATTERN], ids=["listed", "found"])
def test_what_a_light_command_leaves_alone(followed: Bench, tmp_path: Path, arguments: tuple[str, ...], config: str):
    """It asks the state and the sources' logs, with no library for tables, pipelines, schemas or the daemon."""
    (tmp_path / "config.yaml").write_text(config, encoding="utf-8")
    assert imported_by(tmp_path, *arguments) & HEAVY == set()


def test_what_config_check_leaves_alone(followed: Bench, tmp_path: Path):
    """It asks PyIceberg for the types of catalogs and the names of properties."""
    (tmp_path / "config.yaml").write_text(FOLLOWED, encoding="utf-8")
    assert imported_by(tmp_path, "config", "check") & HEAVY == {"pyiceberg"}


def test_what_a_sync_leaves_alone(followed: Bench, tmp_path: Path):
    """Nothing of Spark, of the daemon, of pandas, which PyArrow's datasets take, and of catalogs that are not the
    configuration's. PyIceberg's takes the ORM, PyArrow takes NumPy.
    """
    (tmp_path / "config.yaml").write_text(FOLLOWED, encoding="utf-8")
    modules = imported_by(tmp_path, "sync")
    assert "pyiceberg.catalog.sql" in modules
    assert modules & HEAVY == {"numpy", "pyarrow", "pyiceberg", "sqlalchemy.orm"}
    assert "pyiceberg.catalog.rest" not in modules


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
        assert dvsync("healthcheck").exit_code == 0, "the port is 0, and the state database knows the address"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=15)
        assert process.returncode == 0
    events = [json.loads(line)["event"] for line in output.splitlines()]
    assert events == ["daemon.stopping", "daemon.stopped"]
    ended = dvsync("healthcheck")
    assert (ended.exit_code, ended.stdout) == (1, "no daemon is known: health.port is 0, which takes any free port\n")


def test_a_faulty_configuration_hides_no_daemon(dvsync, tmp_path: Path, monkeypatch):
    """The daemon keeps its former one: its container stays healthy, and `status` shows its tables. If YAML ends at the
    fault, nobody knows where the daemon is.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = EMPTY.replace("port: 0", f"port: {port}") + "tables: [{source: data/a, target: db.a}]\n"
    (tmp_path / "config.yaml").write_text(config)
    with running_daemon(tmp_path) as (process, _):
        for faulty in ("limits: {tables_at_once: x}\n", "foo: 1\n"):
            assert dvsync("healthcheck", config=config + faulty).exit_code == 0, faulty
            shown = dvsync("status")
            assert (shown.exit_code, shown.stdout.split()[:2]) == (0, ["db.a", "waiting"]), shown.output
            assert shown.stderr.startswith(f"daemon: process {process.pid} ")
            assert "has faults, which `dvsync config check` lists" in shown.stderr
        for words in (("healthcheck",), ("status",), ("history", "db.a")):
            asked = dvsync(*words, config=config + "limits:\n\ttables_at_once: 1\n")
            assert (asked.exit_code, asked.stdout) == (2, "")
            assert asked.stderr.startswith("line 6, column 1: a tab where YAML wants spaces"), asked.stderr
            assert "[file config.yaml]" in asked.stderr
            assert "A running daemon keeps its former configuration." in asked.stderr
        # `storage` is spelled like `state`, and is another section.
        assert dvsync("status", config=config + "storage: {s3.endpont: x}\n").exit_code == 0
        (tmp_path / "config.yaml").write_text(config)
        monkeypatch.setenv("DVSYNC_LIMITS", "{")
        assert dvsync("healthcheck", config=config).exit_code == 0
        faulty = dvsync("config", "check")
        assert "limits: the value of DVSYNC_LIMITS (environment) is not JSON" in faulty.stderr
        assert "or the DVSYNC_… variables" in faulty.stderr


def test_another_program_at_the_port(dvsync):
    """Its page is not printed, whatever it answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        config = EMPTY.replace("port: 0", f"port: {server.server_port}")
        asked = dvsync("healthcheck", config=config)
        what = f"what answers at http://127.0.0.1:{server.server_port}"
        assert (asked.exit_code, asked.stdout) == (1, f"{what}/livez is not dvsync\n")
        assert dvsync("status").stderr.startswith(f"no daemon: {what}/api/daemon is not dvsync\n")
        server.shutdown()


def test_the_second_signal_ends_the_process_at_once():
    """The first only asks; a later one does not wait for anything."""
    script = (
        "from daemon.service.signals import StopSignals\n"
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


@pytest.mark.parametrize("options", ["", "grace_s=5"])
def test_a_signal_that_another_thread_receives_wakes_the_main_one(options):
    """The kernel chooses among the threads; the main one sleeps on in its system call when it is not chosen."""
    script = (
        "import signal, threading\n"
        "from daemon.service.signals import StopSignals\n"
        "def receive():\n"
        "    while signals.asleep.wait():\n"
        "        signal.pthread_kill(threading.get_ident(), signal.SIGHUP)\n"
        "        signals.asleep.clear()\n"
        f"with StopSignals(reloads=True, {options}) as signals:\n"
        "    signals.asleep = threading.Event()\n"
        "    threading.Thread(target=receive, daemon=True).start()\n"
        "    for _ in range(100):\n"
        "        threading.Timer(0.002, signals.asleep.set).start()\n"
        "        assert signals.wait(10) == 'SIGHUP'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


@pytest.mark.parametrize("work", ["while True: pass", "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"])
def test_work_that_does_not_stop_is_cut_off_after_the_grace(work):
    """Also where it hangs in native code, so that no handler of Python's runs."""
    script = (
        "import hashlib\n"
        "from daemon.service.signals import StopSignals\n"
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
        soon = {**os.environ, "CONSTANTS": '{"daemon.cli.operations.STOP_GRACE_S": 0.5}'}
        with (tmp_path / "told").open("w") as told:
            process = Forked(["sync"], environment=soon, stdout=told, stderr=told, folder=tmp_path)
        try:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=10) == 1
            assert (tmp_path / "told").read_text().startswith("cut off")
        finally:
            process.kill()
