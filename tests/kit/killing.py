"""The other end of `kill_server.py`: orders to it, its answers, and a choice of moments to be killed at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[2]


@dataclass
class KillServer:
    """A process that forks the ones to be killed."""

    flavour: str
    orders: TextIO
    answers: TextIO
    traces: dict[str, list[str]] = field(default_factory=dict)

    def order(self, *words: object) -> None:
        self.orders.write(json.dumps(words) + "\n")
        self.orders.flush()

    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.answers.readline())
        return answer


@contextmanager
def kill_servers(folder: Path, flavours: Iterable[str]) -> Iterator[dict[str, KillServer]]:
    """A server for each flavour, all of them forked from one process, and the histories that they have played."""
    with ExitStack() as ours:
        servers, theirs, told = {}, [], []
        for flavour in flavours:
            (reading, ordering), (answering, writing) = os.pipe(), os.pipe()
            orders, answers = ours.enter_context(open(ordering, "w")), ours.enter_context(open(answering))
            servers[flavour] = KillServer(flavour, orders, answers)
            theirs += [reading, writing]
            told.append(f"{flavour}:{reading}:{writing}")
        command = [sys.executable, "-m", "tests.kit.kill_server", str(folder), *told]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=theirs)
        for descriptor in theirs:
            os.close(descriptor)
        for server in servers.values():
            server.order("build")
        for server in servers.values():
            answer = server.answer()
            assert "error" not in answer, answer["error"]
            server.traces = answer["result"]
        yield servers
    assert process.wait() == 0


def picked_events(trace: list[str], case: str, share: str) -> list[tuple[int, str]]:
    """The events of a case to be killed at, with their numbers: all, the last of each name, or a third of these."""
    events = [(number, event) for number, event in enumerate(trace) if event]
    if only := os.environ.get("FAULT_KILL"):
        return [(number, event) for number, event in events if only == f"{case}:{number}"]
    if share == "all":
        return events
    picked = sorted({event: number for number, event in events}.values())
    if share == "a third":
        picked = picked[::-3]
    return [(number, event) for number, event in events if number in picked]
