"""Two daemons under load, and everything that goes wrong with them: in the end, every table is right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.faults import fault_seed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seconds", [5, pytest.param(45, marks=pytest.mark.long)])
def test_every_table_is_right_after_load_and_faults(tmp_path: Path, seconds: int) -> None:
    """Seeded by `FAULT_SEED`; `FAULT_SECONDS` makes it longer."""
    wanted = os.environ.get("FAULT_SECONDS", str(seconds))
    ended = subprocess.run(
        [sys.executable, "-m", "tests.kit.load_run", str(tmp_path), str(fault_seed()), wanted],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
    assert ended.stdout.endswith("end all well\n")
