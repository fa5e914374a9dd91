"""SIGKILL, for real, at every moment of the main path that leaves something new on disk; then a new process.

`kill_server.py` plays the cases and is killed in them. A failure names the case and the event; `FAULT_KILL` set to such
an event (`dv growth:12`) plays that one alone, and `FAULT_KILL=all` each event, not just a fair choice.
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
# Each case, and the share of its events that is played: one of so many. The last two are made of the others.
CASES = {
    "empty first sync": 1,
    "append": 1,
    "dv growth": 1,
    "shrunk dv": 1,
    "schema only": 1,
    "removal": 1,
    "first sync": 1,
    "several pending": 3,
    "several folded": 2,
}
# Where it matters whether files share a delete file, and every other event does.
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
    orders = [(servers["file"], *event) for event in picked_events(servers["file"].traces[case], case, CASES[case])]
    if case in WITH_DELETIONS:
        events = picked_events(servers["partition"].traces[case], case, 2)
        orders += [(servers["partition"], *event) for event in events]
    for count, (server, number, _) in enumerate(orders):
        server.order("kill", case, number)
        server.order("follow", case, count % 8 == 0)
    failures = []
    for server, number, event in orders:
        killed, followed = server.answer(), server.answer()
        assert killed == {"signal": 9}, killed
        if "error" in followed:
            failures.append(f"{case}:{number}, {event}, granularity {server.granularity}:\n{followed['error']}")
    assert not failures, f"{len(failures)} of {len(orders)}: " + "\n".join(failures)


def picked_events(trace: list[str], case: str, share: int) -> list[tuple[int, str]]:
    """The events to be killed at, with their numbers: of those of one name the first and the last, or just a share."""
    events = [(number, event) for number, event in enumerate(trace) if event]
    if only := os.environ.get("FAULT_KILL"):
        return [(number, event) for number, event in events if only in ("all", f"{case}:{number}")]
    firsts = {event: number for number, event in reversed(events)}
    lasts = {event: number for number, event in events}
    return [(number, event) for number, event in events if number in (firsts[event], lasts[event])][::share]
