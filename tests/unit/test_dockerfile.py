"""The Dockerfile by hadolint's rules, and what they do not ask for."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"


def test_hadolint_finds_no_fault():
    """Not even one that is only for information."""
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    judged = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (judged.returncode, judged.stdout) == (0, "")


def test_the_base_is_of_one_version():
    """Hadolint does not look behind the argument."""
    assert re.search(r"^ARG BASE=python:3\.\d+-slim-\w+$", DOCKERFILE.read_text(), re.MULTILINE)


def test_the_image_keeps_nothing_of_how_it_was_built():
    """How the build reaches its registries is an argument of earlier stages: the last one has none."""
    *_, last = DOCKERFILE.read_text().split("\nFROM ")
    assert "ARG" not in last and "JAVA_TOOL_OPTIONS" not in last
    steps = [line.partition(" ")[0] for line in last.splitlines()]
    assert steps.index("USER") < steps.index("ENTRYPOINT")
    for step in ("HEALTHCHECK", "STOPSIGNAL", "VOLUME"):
        assert step in steps
