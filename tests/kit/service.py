"""The daemon as users run it: one `dvsync run` process for all tables of a test session, driven from outside.

A table is added to its configuration with SIGHUP; what became of it is read from `/api/tables` and from the log; the
state database and the catalog are opened beside it, as any other program may.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from pyiceberg.table import Table
from typer.testing import Result

from daemon import errors
from daemon.config.settings import LimitsSettings
from daemon.delta.log import COMMIT_FILE
from daemon.errors import SyncError
from daemon.iceberg.catalogs import Catalogs
from daemon.sync.first_sync import RESYNCED
from daemon.sync.outcomes import SyncOutcome, SyncResult
from state.sql.store import StateStore
from tests.kit.daemons import Daemon, pause_s
from tests.kit.handmade import Bench, sql_catalog
from tests.kit.invoke import invoke
from tests.kit.spark_session import FOR_SMALL_TABLES
from tests.kit.writer import Writer

POLL_INTERVAL = "100ms"
# The first use of Spark starts a JVM, beside a busy session of the tests.
SYNC_MAX_S = 300.0
# Maintenance has tests of its own; a round of it in the middle of these would be one more snapshot.
NO_MAINTENANCE = {"steps": []}
OUTCOMES = {
    "sync.advanced": SyncOutcome.ADVANCED,
    "sync.rebuilt": SyncOutcome.REBUILT,
    "sync.unchanged": SyncOutcome.UNCHANGED,
}
FAILURES = ("sync.failed", "table.parked")
# The operations of a sync that writes the table whole: of the first one, and of a `dvsync resync`.
WHOLE = ("first sync", RESYNCED)
# A daemon that starts answers before it has taken up its tables.
BEFORE_THE_START: dict[str, Any] = {"state": "waiting", "synced_version": None, "error": None}
COUNTED = (
    *("snapshots", "data_files_added", "data_files_removed", "delete_files_added", "delete_files_removed"),
    "positions_added",
)


@dataclass
class Service:
    """`dvsync run` in `folder`, with a Spark session of its own. `tables` are those of its configuration.

    `constants` are as in `daemon_process.py`.
    `writer` is the running test's: Spark writes the Delta tables in another process, or did so when it was recorded.
    """

    folder: Path
    writer: Writer = field(init=False)
    storage: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    tables: dict[str, Served] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers = count(1)
        # What left the configuration with the last reload, and what leaves it with the next one.
        self._gone: list[str] = []
        self._left: list[str] = []
        self._config = self.folder / "config.yaml"
        self._write_config()
        self.daemon = Daemon(self._config, {**os.environ, "CONSTANTS": json.dumps(self.constants)})
        self.start()

    def start(self) -> None:
        """Start the daemon; again after `stop`, with the tables of its configuration."""
        self.daemon.lines.clear()
        self.daemon.launch()
        self.daemon.started()
        self.store = StateStore.open(f"sqlite:///{self.state_file}")
        for table in self.tables.values():
            table.begin()

    @property
    def is_running(self) -> bool:
        return self.daemon.process.poll() is None

    def stop(self) -> None:
        """End it as systemd does, with SIGTERM."""
        self.store.close()
        self.daemon.signal(signal.SIGTERM)
        try:
            self.daemon.end()
        finally:
            self.daemon.kill()

    @property
    def state_file(self) -> Path:
        return self.folder / "state.db"

    def forget(self) -> None:
        """The next reload takes all tables away."""
        for table in self.tables.values():
            table.close()
        self._left += self.tables
        self.tables.clear()

    def serve(self, folder: Path, source: str, **options: Any) -> Served:
        """A table of the configuration from its first `sync` on, with a catalog of its own in `folder`."""
        return Served(self, folder, source, f"t{next(self._numbers)}", options)

    def take_up(self, *tables: Served) -> None:
        """Put tables into the configuration, and wait until the daemon knows them."""
        # A test may have lost the state database.
        if gone := [record.name for record in self.store.list_tables() if record.name in self._gone]:
            # The daemon says a moment after a reload which tables it has: by now it has done so, and once is enough.
            self.wait(lambda: self._run("forget", *gone).exit_code == 0, "tables to be forgotten")
        self._gone, self._left = self._left, []
        for table in tables:
            table.begin()
        self.tables |= {table.name: table for table in tables}
        reloads = self._reloads()
        self._write_config()
        self.daemon.signal(signal.SIGHUP)

        def is_taken_up() -> bool:
            return self._reloads() > reloads and self._followed() == self.tables.keys()

        self.wait(is_taken_up, "the reload")

    def _followed(self) -> set[str]:
        return {name for name, status in self.daemon.tables().items() if status["state"] != "gone"}

    def _reloads(self) -> int:
        return sum(line["event"] == "config.reloaded" for line in self.daemon.lines)

    def _write_config(self) -> None:
        config = {
            "state": {"url": "sqlite:///state.db"},
            "health": {"port": 0},
            "log": {"format": "json", "level": "debug"},
            "spark": {"master": "local[2]", "conf": FOR_SMALL_TABLES},
            "storage": dict(self.storage),
            "maintenance": NO_MAINTENANCE,
            "defaults": {"poll_interval": POLL_INTERVAL},
            "catalogs": {table.name: table.catalog_properties for table in self.tables.values()},
            "tables": [table.configuration for table in self.tables.values()],
        }
        staged = self._config.with_suffix(".new")
        staged.write_text(json.dumps(config, ensure_ascii=False))
        staged.rename(self._config)

    def command(self, *arguments: str) -> str:
        """What a command of dvsync prints, beside the daemon. AssertionError when it fails."""
        result = self._run(*arguments)
        assert result.exit_code == 0, result.output
        return result.output

    def _run(self, *arguments: str) -> Result:
        return invoke([*arguments, "--config", str(self._config)])

    def lines_of(self, table: str, since: int) -> list[dict[str, Any]]:
        """What the log says of a table's syncs, from its line number `since` on."""
        return [line for line in self.daemon.lines[since:] if line.get("table") == table and line["event"] in OUTCOMES]

    def jvms(self) -> list[psutil.Process]:
        """The Java processes that the daemon has started and that live."""
        children = psutil.Process(self.daemon.process.pid).children()
        return [each for each in children if each.name() == "java" and each.status() != psutil.STATUS_ZOMBIE]

    def wait(self, condition: Any, what: str) -> Any:
        began_s = time.monotonic()
        while not (found := condition()):
            waited_s, last = time.monotonic() - began_s, self.daemon.lines[-20:]
            assert self.is_running, f"the daemon ended while waiting for {what}: {last}"
            assert waited_s < SYNC_MAX_S, f"{what} did not come within {SYNC_MAX_S:.0f} s: {last}"
            time.sleep(pause_s(waited_s))
        return found


@dataclass
class InProcess:
    """In the daemon's place where a step is stopped in the middle: followers in this process, on its own session."""

    writer: Writer
    limits: LimitsSettings = field(default_factory=LimitsSettings)
    engine: str = "local"

    def serve(self, folder: Path, source: str, **options: Any) -> Bench:
        return Bench(folder, source, limits=self.limits, engine=self.engine, table_options=options)


@dataclass
class Served:
    """One table that the daemon follows: what a test knows of it comes from the daemon's answers."""

    service: Service
    folder: Path
    source: str
    name: str
    options: Mapping[str, Any]
    target: str = "lake.t"

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.catalogs = Catalogs({self.name: {**self.catalog_properties, **self.service.storage}})
        # Lines of the log up to here are in results that were given; a sync must end after the other one.
        self._given_lines = self._due_line = 0
        self._raised_error: dict[str, Any] | None = None

    def begin(self) -> None:
        """From here on what the log says counts."""
        self._given_lines = self._due_line = len(self.service.daemon.lines)

    @property
    def store(self) -> StateStore:
        return self.service.store

    @property
    def catalog_properties(self) -> dict[str, str]:
        return sql_catalog(self.folder)

    @property
    def configuration(self) -> dict[str, Any]:
        given = {key: value for key, value in self.options.items() if value is not None}
        return {"name": self.name, "source": self.source, "target": self.target, "catalog": self.name, **given}

    def close(self) -> None:
        self.catalogs.close()

    def iceberg(self) -> Table:
        return self.catalogs.open(self.name).load_table(self.target)

    def exists(self) -> bool:
        return self.catalogs.open(self.name).table_exists(self.target)

    def status(self) -> dict[str, Any]:
        """What `/api/tables` says of it."""
        return self.service.daemon.tables().get(self.name, BEFORE_THE_START)

    def sync(self, *, full: bool = False) -> SyncResult:
        """Wait until the daemon shows the log's newest version, and sum up what it did since the last call.

        Raises the error that it reports instead, each once; an error that was raised before is answered with `dvsync
        resume` first. With `full` it is asked for a comparison by `dvsync resync`.
        """
        service = self.service
        if self.name not in service.tables:
            service.take_up(self)
        elif full:
            self._command("resync")
        elif self._raised_error is not None:
            self._command("resume")
        version = newest_version(self.source)

        def arrived() -> bool:
            status = self.status()
            if status["error"] is not None and self._is_news(status["error"]):
                raise self._as_raised(status["error"])
            if status["state"] != "synced" or status["synced_version"] != version:
                return False
            lines = service.lines_of(self.name, self._due_line)
            has_replaced = not full or any(line["operation"] in WHOLE for line in lines)
            return has_replaced and bool(lines) and lines[-1]["to_version"] == version

        service.wait(arrived, f"{self.name} at version {version}")
        lines = service.lines_of(self.name, self._given_lines)
        self._given_lines, self._raised_error = len(service.daemon.lines), None
        return summed(lines, version)

    def _command(self, verb: str) -> None:
        """Have a person's word done; what counts afterwards is what the daemon does then."""
        due = len(self.service.daemon.lines)
        output = self.service.command(verb, self.name)
        if "nothing to do" not in output:
            self._due_line = due

    def _is_news(self, error: dict[str, Any]) -> bool:
        """Whether this error has not been raised yet: it is another one, or came again after a command."""
        again = self.service.daemon.lines[self._due_line :]
        return error != self._raised_error or any(
            line["event"] in FAILURES and line.get("table") == self.name for line in again
        )

    def _as_raised(self, error: dict[str, Any]) -> SyncError:
        self._raised_error, self._given_lines = error, len(self.service.daemon.lines)
        kind: type[SyncError] = getattr(errors, error["kind"], Unexpected)
        return kind(error["message"], hint=error["hint"], table=self.name, version=error["version"])

    @contextmanager
    def held(self) -> Iterator[None]:
        """The daemon leaves the table alone for the length of the block: `dvsync pause`, `dvsync resume`."""
        self.service.command("pause", self.name)
        self.service.wait(lambda: self.status()["state"] == "paused", f"the pause of {self.name}")
        yield
        self._command("resume")


class Unexpected(SyncError):
    """A kind that `daemon/errors.py` does not have: the daemon met a bug of its own."""


def summed(lines: Sequence[Mapping[str, Any]], version: int) -> SyncResult:
    """The lines of one table's syncs as one result; nothing at all is "unchanged"."""
    total = SyncResult(SyncOutcome.UNCHANGED, None, version)
    for line in lines:
        counts = {key: line[key] for key in COUNTED}
        step = SyncResult(
            OUTCOMES[line["event"]],
            line["from_version"],
            line["to_version"],
            snapshot_id=line["snapshot_id"],
            operation=line["operation"],
            **counts,
        )
        total = total.then(step)
    return total


def newest_version(source: str) -> int:
    """The newest commit file of a local Delta table."""
    names = os.listdir(f"{source.removeprefix('file://')}/_delta_log")
    return max(int(found[1]) for name in names if (found := COMMIT_FILE.fullmatch(name)))
