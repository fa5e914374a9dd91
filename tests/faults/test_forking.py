"""A daemon that is forked for a test is as one that is started: what the system knows of both is the same."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.kit.daemons import command, daemon, until, write_config
from tests.kit.handmade import HandmadeTable

SIGNALS = ("SigBlk", "SigIgn", "SigCgt")


def known_of(pid: int) -> dict[str, object]:
    """Signals, groups, folder, environment, and what is open but for the standard input."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    opened = [re.sub(r"\d+", "", os.readlink(file)) for file in (process / "fd").iterdir() if file.name != "0"]
    return {
        **{name: status[name] for name in SIGNALS},
        "groups": (os.getpgid(pid), os.getsid(pid)),
        "folder": os.readlink(process / "cwd"),
        "files": {each for each in opened if each.startswith("/")},
        # How many connections a pool has is chance.
        "others": Counter(each for each in opened if not each.startswith("/")),
    }


def settled(pid: int) -> dict[str, object] | None:
    """What is known of the process, if that is the same a moment later: connections come and go."""
    before = known_of(pid)
    time.sleep(0.1)
    return before if known_of(pid) == before else None


@pytest.mark.long
def test_a_forked_daemon_is_as_a_started_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the process that forks is left in it: no socket, no handler; and it ends by the same signals."""
    for name in ("t", "other/t"):
        HandmadeTable(tmp_path / name).create()
    for folder in (tmp_path, tmp_path / "other"):
        write_config(folder / "config.yaml", tables=[{"name": "t", "source": "t", "target": "lake.t"}])
    # Without the environment that is given, it would not tell that it started.
    monkeypatch.setenv("DVSYNC_LOG__LEVEL", "error")
    environment = {**os.environ, "DVSYNC_LOG__LEVEL": "info"}
    known = []
    with daemon(tmp_path / "other" / "config.yaml", environment) as other:
        for module in ("tests.kit.daemon_process", None):
            with daemon(tmp_path / "config.yaml", environment, module) as running:
                running.synced_to("t", 0)
                known.append(until(partial(settled, running.process.pid)))
                running.kill()
                assert running.end() == -signal.SIGKILL
        other.signal(signal.SIGTERM)
        assert other.end() == 0
    assert known[0] == known[1]
    refused = command(tmp_path / "config.yaml", "status", environment={**environment, "DVSYNC_LIMITS": "{"})
    assert (refused.returncode, "DVSYNC_LIMITS" in refused.stderr) == (2, True), refused
    assert command(tmp_path / "config.yaml", "nothing").returncode == 2
