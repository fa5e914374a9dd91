"""`dvsync` on handmade tables: `python -m tests.kit.daemon_process run --config PATH`.

`FAULTS=SEED` makes one call in five fail of what dvsync stands on; `CLOCK_FILE` names a file with the seconds that the
wall clock is ahead of the machine's, which may change while the daemon runs. `CONSTANTS` is JSON of values by the name
of a constant: `{"daemon.sync.other_writer.LEASE_S": 2.0}`.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from random import Random

import pytest
from apscheduler.schedulers import base

from daemon.cli.commands import main
from daemon.clock import SystemClock
from daemon.iceberg.pyiceberg_ext import silence
from daemon.notices import outbox
from daemon.scheduling import scheduler
from daemon.service import fleet, run
from tests.kit.faults import TARGETS, Faults

FAULT_SHARE = 0.2


def jump_with(clock_file: Path) -> None:
    """Have every part that asks for the time of day ask this clock."""
    true_ms = SystemClock.now_ms

    def ahead_s() -> float:
        return float(clock_file.read_text() or 0)

    class JumpingDatetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(seconds=ahead_s())

    patch = pytest.MonkeyPatch()
    patch.setattr(SystemClock, "now_ms", lambda self: true_ms(self) + round(ahead_s() * 1000))
    patch.setattr(base, "datetime", JumpingDatetime)
    patch.setattr(scheduler, "datetime", JumpingDatetime)


def run_dvsync() -> None:
    """The command in `sys.argv`."""
    # A test has no thirty seconds for a new folder to be seen or for an answer, no five for a beat, no two for
    # what a person asks for, and no ten for notices.
    fleet.DISCOVERY_INTERVAL_S = 0.5
    run.BEAT_INTERVAL_S = 0.5
    run.REQUESTS_INTERVAL_S = run.TABLES_INTERVAL_S = 0.2
    outbox.JOINED_EACH_S = 2.0
    silence.ANSWER_MAX_S = 3.0
    silence.SILENT_S = 3.0
    for name, value in json.loads(os.environ.get("CONSTANTS", "{}")).items():
        pytest.MonkeyPatch().setattr(name, value)
    if seed := os.environ.get("FAULTS"):
        faults = Faults(pytest.MonkeyPatch(), Random(seed), probability=FAULT_SHARE, kinds=list(TARGETS))
        with faults.on():
            main()
    if clock_file := os.environ.get("CLOCK_FILE"):
        jump_with(Path(clock_file))
    main()


if __name__ == "__main__":
    run_dvsync()
