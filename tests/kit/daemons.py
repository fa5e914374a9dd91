"""Daemons as processes of their own, on handmade tables: started, watched through log and probes, and done harm to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from tests.kit.forking import Forked, run_forked
from tests.kit.handmade import sql_catalog

ROOT = Path(__file__).parents[2]
WAIT_S = 300.0


def write_config(path: Path, **sections: object) -> None:
    """Write a configuration with a catalog, a state database and a log that tests read; nothing runs but syncs.

    `sections` replace these, or are added.
    """
    settings = {
        "catalogs": {"local": sql_catalog(path.parent)},
        "state": {"url": "sqlite:///state.db"},
        "health": {"port": 0},
        "log": {"format": "json"},
        "maintenance": {"steps": []},
        "verify": {"level": "off"},
        "defaults": {"poll_interval": "100ms"},
        **sections,
    }
    path.write_text(json.dumps(settings))


def pause_s(waited_s: float) -> float:
    """How long to wait for the next look, which costs the daemon a page."""
    return min(0.1, 0.01 + waited_s / 20)


def until(condition: Callable[[], Any], what: str = "the condition", *, wait_s: float = WAIT_S) -> Any:
    """What `condition` gives as soon as it is true."""
    began_s = time.monotonic()
    while (waited_s := time.monotonic() - began_s) < wait_s:
        if found := condition():
            return found
        time.sleep(pause_s(waited_s))
    raise AssertionError(f"{what} did not come true within {wait_s:.0f} s")


@dataclass
class Daemon:
    """`dvsync run --config` as a process; `lines` are its log so far.

    It is forked from a process that has imported dvsync. Where the start matters, it is `module` of this checkout in a
    Python of its own or, if `installed` is given, that command, in the configuration's folder.
    """

    config: Path
    environment: Mapping[str, str] | None = None
    module: str | None = None
    installed: Path | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)
    process: Forked | subprocess.Popen[bytes] = field(init=False)

    def launch(self) -> None:
        reading, writing = os.pipe()
        words = ["run", "--config", str(self.config)]
        with open(writing, "w") as output:
            if self.module is None and self.installed is None:
                self.process = Forked(words, environment=self.environment, stdout=output, stderr=output)
            else:
                program = [str(self.installed)] if self.installed else [sys.executable, "-m", str(self.module)]
                self.process = subprocess.Popen(
                    [*program, *words],
                    cwd=self.config.parent if self.installed else ROOT,
                    env=self.environment,
                    stdout=output,
                    stderr=output,
                )
        self._reader = Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()

    def started(self) -> None:
        """Wait until it answers."""
        self.url = self.told("daemon.started")["health"]

    def _read(self, descriptor: int) -> None:
        with open(descriptor) as output:
            for line in output:
                self.lines.append(json.loads(line) if line.startswith("{") else {"event": "output", "line": line})

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def told(self, event: str, *, wait_s: float = WAIT_S, **values: object) -> dict[str, Any]:
        """The first line of this event with these values, which may be still to come."""

        def found() -> dict[str, Any] | None:
            matching = (line for line in self.lines if line["event"] == event and values.items() <= line.items())
            return next(matching, None)

        try:
            return until(found, wait_s=wait_s)
        except AssertionError:
            raise AssertionError(f"no {event} {values} among {self.lines[-20:]}") from None

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with urlopen(f"{self.url}{path}", timeout=30) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)
        except URLError as error:
            raise AssertionError(
                f"no answer ({error}), exit code {self.process.poll()}: {self.lines[-200:]}"
            ) from error

    def fetch(self, path: str) -> str:
        """The text of a page."""
        with urlopen(f"{self.url}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def reasons(self) -> str:
        """Why it is not ready."""
        return "; ".join(f"{each['table']}: {each['reason']}" for each in self.get("/readyz")[1]["reasons"])

    def tables(self) -> dict[str, dict[str, Any]]:
        return {status["name"]: status for status in self.get("/api/tables")[1]}

    def synced_to(self, name: str, version: int) -> None:
        """Wait until the table is in step with this version."""
        until(lambda: self.tables().get(name, {}).get("synced_version") == version, f"{name} at version {version}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """The exit code."""
        return self.process.wait(WAIT_S)


def set_constants(patch: pytest.MonkeyPatch, constants: Mapping[str, object]) -> None:
    """Daemons and commands that start from now on have these values: see `daemon_process.py`."""
    patch.setenv("CONSTANTS", json.dumps(constants))


def command(
    config: Path, *words: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command of `dvsync` as a process of its own, on handmade tables."""
    return run_forked([*words, "--config", str(config)], environment=environment)


@contextmanager
def daemon(config: Path, environment: Mapping[str, str] | None = None, module: str | None = None) -> Iterator[Daemon]:
    """A daemon that has told that it started, killed at the end."""
    running = Daemon(config, environment, module)
    try:
        running.launch()
        running.started()
        yield running
    finally:
        running.kill()
