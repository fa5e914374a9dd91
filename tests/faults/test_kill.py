"""SIGKILL, for real, at every moment of the main path that leaves something new on disk; then a new process.

`kill_server.py` plays the cases and is killed in them. A failure names the case and the event; `FAULT_KILL` set to such
an event (`dv growth:12`) makes these tests play that one alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CASES = (
    "empty first sync",
    "append",
    "dv growth",
    "shrunk dv",
    "schema only",
    "removal",
    "first sync",
    "several pending",
    "several folded",
)
# These cases are made of the others: of their events, every so many-th is played.
EVERY = {"several pending": 5, "several folded": 2}
WITH_DELETIONS = ("dv growth", "shrunk dv", "removal", "first sync")


@dataclass
class KillServer:
    """A process that forks the ones to be killed."""

    folder: Path
    granularity: str
    traces: dict[str, list[str]] = field(default_factory=dict)

    def __enter__(self) -> KillServer:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.kill_server", str(self.folder), self.granularity],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.order("build")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()
        assert self._process.returncode == 0

    def order(self, *words: object) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, KillServer]]:
    """Both servers at once: each has a processor, and this process waits."""
    folders = {granularity: tmp_path_factory.mktemp(granularity) for granularity in ("file", "partition")}
    with KillServer(folders["file"], "file") as file, KillServer(folders["partition"], "partition") as partition:
        servers = {"file": file, "partition": partition}
        for server in servers.values():
            answer = server.answer()
            assert "error" not in answer, answer["error"]
            server.traces = answer["result"]
        yield servers


@pytest.mark.parametrize("case", CASES)
def test_whatever_was_killed_the_next_start_ends_at_the_same(servers: dict[str, KillServer], case: str) -> None:
    """Killed at any event: no row lost or doubled, one snapshot a version, every file that is left behind is known."""
    players = [servers["file"], *([servers["partition"]] if case in WITH_DELETIONS else [])]
    orders = []
    for server in players:
        events = [(number, event) for number, event in enumerate(server.traces[case]) if event]
        for number, event in events[:: EVERY.get(case, 1)]:
            if os.environ.get("FAULT_KILL", f"{case}:{number}") == f"{case}:{number}":
                server.order("kill", case, number)
                server.order("follow", case)
                orders.append((server, number, event))
    failures = []
    for server, number, event in orders:
        killed, followed = server.answer(), server.answer()
        assert killed == {"signal": 9}, killed
        if "error" in followed:
            failures.append(f"{case}:{number}, {event}, granularity {server.granularity}:\n{followed['error']}")
    assert not failures, f"{len(failures)} of {len(orders)}: " + "\n".join(failures)
