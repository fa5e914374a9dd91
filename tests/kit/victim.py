"""A process that follows a handmade Delta table and is given commits to swallow, watched by the one that gives them.

A pattern or a number that never comes to an end may hold the interpreter's lock, so that nothing inside of the process
could notice: the watcher waits for the answer for a while, and ends the process.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import resource
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

from daemon.clock import SystemClock
from daemon.config.settings import LogSettings
from daemon.observe.log import configure_logging
from daemon.scheduling.cycle import TableCycle
from daemon.scheduling.observer import Observer
from tests.kit.boards import board_of
from tests.kit.handmade import Bench, HandmadeTable

# On a machine with work of its own; without a bound, the inputs that this is about take minutes or years.
LIMIT_S = 20.0
START_LIMIT_S = 120.0
# What one input may take beside what the process has already.
MEMORY_BYTES = 2 << 30
# The version that every input is.
VERSION = 2


@dataclass(frozen=True)
class Outcome:
    """`kind` is that of the error, or what the cycle did; `seconds` is how long it took."""

    kind: str
    message: str
    seconds: float


@dataclass(frozen=True)
class Lake:
    """What the inputs are made of: actions as the table's writer would spell them.

    `add` is that of a data file that is not in the table yet, `live` that of one which is, with a deletion vector.
    """

    add: dict[str, Any]
    live: dict[str, Any]
    metadata: dict[str, Any]
    protocol: dict[str, Any]


class _Victim:
    """The process's side: the table at version 1, and its followers, as they were before each input."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = io.StringIO()
        configure_logging(LogSettings(format="json", level="error"), self._log)
        table = HandmadeTable(folder / "case" / "delta")
        table.create()
        path = table.write_file([(number, "p", f"v{number}") for number in range(3)])
        live = table.add(path, deleted=[0])["add"]
        table.commit([{"add": live}])
        more = table.write_file([(number, "p", f"v{number}") for number in range(10, 13)])
        self.lake = Lake(table.add(more)["add"], live, table.metadata(), table.protocol())
        self._bench = Bench(folder / "case" / "dvsync", table.location)
        self._bench.follower.sync()
        self._bench.close()
        shutil.copytree(folder / "case", folder / "base")
        self._open()

    def _open(self) -> None:
        self._bench.open()
        board = board_of([self._bench.settings], SystemClock(), lag_budget_s=300)
        log = self._bench.context.log
        observer = Observer(self._bench.settings, log, store=self._bench.store, board=board, clock=SystemClock())
        self._cycle = TableCycle(
            self._bench.follower, observer, store=self._bench.store, clock=SystemClock(), random=Random(1)
        )

    def _as_before(self) -> None:
        self._bench.close()
        shutil.rmtree(self._folder / "case")
        shutil.copytree(self._folder / "base", self._folder / "case")
        self._open()

    def swallow(self, files: Mapping[str, bytes]) -> Outcome:
        """One cycle with these files in the table; after one that goes well, another one with an empty commit."""
        table = self._folder / "case" / "delta"
        for name, data in files.items():
            (table / name).write_bytes(data)
        outcome = self._sync()
        if outcome.kind == "advanced":
            (table / "_delta_log" / f"{VERSION + 1:020d}.json").write_text(json.dumps({"commitInfo": {}}) + "\n")
            after = self._sync()
            outcome = after if after.kind != "advanced" else outcome
            self._as_before()
        for name in files:
            (table / name).unlink(missing_ok=True)
        return outcome

    def _sync(self) -> Outcome:
        self._log.seek(0)
        self._log.truncate()
        started_s = time.monotonic()
        verdict = self._cycle.sync(Event())
        seconds = time.monotonic() - started_s
        if verdict.error:
            told = self._log.getvalue() if verdict.error.kind == "InternalError" else ""
            return Outcome(verdict.error.kind, f"{verdict.error.message}\n{told[-5000:]}", seconds)
        assert verdict.result is not None, "a cycle ends well or with an error"
        return Outcome(verdict.result.outcome, "", seconds)


def _run(connection: Connection, folder: Path) -> None:
    victim = _Victim(folder)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    connection.send(victim.lake)
    while True:
        connection.send(victim.swallow(connection.recv()))


@dataclass
class Watch:
    """The watcher's side. `folder` is for the tables of each process that it needs. Remembers each input's time."""

    folder: Path
    times: list[tuple[float, str]] = field(default_factory=list, repr=False)
    lake: Lake = field(init=False, repr=False)
    _started: int = 0

    def __post_init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._started += 1
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, self.folder / str(self._started)), daemon=True)
        self._process.start()
        theirs.close()
        assert self._connection.poll(START_LIMIT_S), "the process does not start"
        self.lake = self._connection.recv()

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()

    def give(self, files: Mapping[str, bytes], name: str) -> Outcome:
        """What becomes of these files of the Delta table, named relative to it.

        Fails when the process does not answer in time, or dies.
        """
        self._connection.send(files)
        try:
            assert self._connection.poll(LIMIT_S), f"{name}: no answer within {LIMIT_S:g} s"
            outcome = self._connection.recv()
        except (AssertionError, EOFError):
            self.stop()
            self._start()
            raise
        assert isinstance(outcome, Outcome)
        self.times.append((outcome.seconds, name))
        return outcome


def commit_of(*lines: bytes | str) -> dict[str, bytes]:
    """The commit file of VERSION with these lines."""
    data = b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines)
    return {f"_delta_log/{VERSION:020d}.json": data}
