"""The Dockerfile by hadolint's rules, and what they do not ask for."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"


def steps_of(target: str) -> list[str]:
    """The instructions of a target, after those of the stages that it stands on."""
    text = re.sub(r"\s*\\\n\s*", " ", DOCKERFILE.read_text())
    stages = {
        name: (base, [step for step in steps.splitlines() if step and not step.startswith("#")])
        for base, name, steps in re.findall(r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL)
    }
    found: list[str] = []
    while target in stages:
        target, steps = stages[target]
        found = [*steps, *found]
    return found


def test_hadolint_finds_no_fault():
    """Not even one that is only for information."""
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    judged = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (judged.returncode, judged.stdout) == (0, "")


def test_the_base_is_of_one_version():
    """Hadolint does not look behind the argument."""
    assert re.search(r"^ARG BASE=python:3\.\d+-slim-\w+$", DOCKERFILE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("target", ["dvsync", "dvsync-slim"])
def test_the_image_keeps_nothing_of_how_it_was_built(target: str):
    """How the build reaches its registries is an argument of other stages. It does not run as root."""
    steps = steps_of(target)
    names = [step.partition(" ")[0] for step in steps]
    assert "ARG" not in names and not any("JAVA_TOOL_OPTIONS" in step for step in steps)
    assert {"ENTRYPOINT", "HEALTHCHECK", "STOPSIGNAL", "VOLUME"} <= {*names}
    assert steps[-1] == "USER 10001:10001"


def test_only_the_whole_image_has_java_and_spark():
    """It is the one that is built without --target, and the other one asks for neither."""
    assert DOCKERFILE.read_text().rpartition("\nFROM ")[2].startswith("java AS dvsync\n")
    assert any("openjdk" in step for step in steps_of("java"))
    slim = steps_of("dvsync-slim")
    assert not any("openjdk" in step for step in slim) and "ENV DVSYNC_DEFAULTS__ENGINE=local" in slim
    assert [step for step in slim if step.startswith("COPY")] == [
        "COPY --from=slim-packages /opt/dvsync /opt/dvsync",
        "COPY --from=wheel /opt/own /opt/dvsync",
    ]
    assert not any("spark.txt" in step.partition("--requirement")[2] for step in steps_of("slim-packages"))
