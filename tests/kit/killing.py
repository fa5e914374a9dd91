"""The other end of `kill_server.py`: orders to it, its answers, and a choice of moments to be killed at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass
class KillServer:
    """A process that forks the ones to be killed."""

    folder: Path
    flavour: str
    traces: dict[str, list[str]] = field(default_factory=dict)

    def __enter__(self) -> KillServer:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.kill_server", str(self.folder), self.flavour],
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
