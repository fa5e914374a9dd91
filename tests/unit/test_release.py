"""What `make release` makes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from deploy import release
from tests.unit.test_dockerfile import steps_of

EPOCH_S = 1_800_000_000


def test_the_bill_of_materials_is_valid_and_whole(tmp_path: Path):
    """By CycloneDX's schema; each package in the locked version, and those of Spark are optional."""
    release.write_bill_of_materials(tmp_path, EPOCH_S)
    text = (tmp_path / f"dvsync-{release.VERSION}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    assert bill["metadata"]["timestamp"] == "2027-01-15T08:00:00+00:00"
    scopes = {part["purl"]: part["scope"] for part in bill["components"]}
    lock = (release.ROOT / "requirements.lock").read_text()
    locked = {f"pkg:pypi/{name}@{version}" for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", lock, re.MULTILINE)}
    assert {purl for purl in scopes if purl.startswith("pkg:pypi/")} <= locked
    by_name = {re.split("[/@]", purl)[-2]: scope for purl, scope in scopes.items()}
    needed = ("pyarrow", "pyiceberg", "starlette"), ("pyspark", "pandas", "numpy", "psycopg-binary", "hadoop-aws")
    assert [{by_name[name] for name in names} for names in needed] == [{"required"}, {"optional"}]
    assert "pytest" not in by_name
    edges = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    assert edges.keys() == {*scopes, f"pkg:pypi/dvsync@{release.VERSION}"}
    assert len(edges[f"pkg:pypi/dvsync@{release.VERSION}"]) > 25


def test_the_images_are_stages_of_the_dockerfile(tmp_path: Path):
    release.write_images(tmp_path, EPOCH_S)
    bake = json.loads((tmp_path / "docker-bake.json").read_text())
    assert {*bake["target"]} == {*bake["group"]["default"]["targets"]} == {"dvsync", "dvsync-slim"}
    for name, target in bake["target"].items():
        assert steps_of(target["target"])
        assert target["tags"] == [f"${{REGISTRY}}{name}:{release.VERSION}"]


def test_the_versions_agree(tmp_path: Path):
    """The chart's with the wheel's; the changelog has notes for it, and only for it."""
    chart = yaml.safe_load((release.CHART / "Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {release.VERSION}
    release.write_notes(tmp_path)
    notes = (tmp_path / "notes.md").read_text()
    assert "\n## " not in notes and f"[{release.VERSION}]" not in notes and len(notes) > 1000


@pytest.mark.long
def test_a_release_has_the_same_bytes_each_time(tmp_path: Path):
    """Of one commit in two places, by people with other rights; what is not committed is refused."""
    outputs = []
    for name, umask in (("one", 0o022), ("another", 0o077)):
        checkout = tmp_path / name
        subprocess.run(["git", "clone", "--quiet", release.ROOT, checkout], check=True, umask=umask)
        make = [sys.executable, "-m", "deploy.release", release.VERSION]
        made = subprocess.run(make, cwd=checkout, capture_output=True, text=True, check=False, umask=umask)
        assert made.returncode == 0, made.stderr
        outputs.append(made.stdout)
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == 6
    (checkout / "README.md").write_text("changed")
    refused = subprocess.run(make, cwd=checkout, capture_output=True, text=True, check=False)
    assert (refused.returncode, "not committed" in refused.stderr) == (1, True)
    other = subprocess.run([*make[:-1], "9.9.9"], cwd=checkout, capture_output=True, text=True, check=False)
    assert (other.returncode, "to release 9.9.9, write it into" in other.stderr) == (1, True)
    assert os.listdir(checkout / "dist") == [release.VERSION]
