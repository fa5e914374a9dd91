"""Hundreds of random cycles: whatever happens in between, the table ends right and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.faults import fault_seed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("format_version", "cycles"), [(3, 20), *(pytest.param(each, 60, marks=pytest.mark.long) for each in (2, 3))]
)
def test_a_long_life_ends_well(tmp_path: Path, format_version: int, cycles: int) -> None:
    """Seeded by `FAULT_SEED`; `FAULT_CYCLES` makes it longer. Killed, failing and concurrent work of every kind."""
    seed, cycles = f"{fault_seed()}-{format_version}", int(os.environ.get("FAULT_CYCLES", cycles))
    ended = subprocess.run(
        [sys.executable, "-m", "tests.kit.long_run", str(tmp_path), seed, str(cycles), str(format_version)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr}"
    assert ended.stdout.endswith("end all well\n")
    killed = ended.stdout.count("'signal': 9")
    assert killed >= cycles // 20, "the run kills, too"
