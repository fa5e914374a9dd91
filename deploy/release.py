"""`make release VERSION=0.1.0` makes dist/0.1.0: the same bytes each time that a commit is released.

There are the wheel and the source archive, a bill of materials (CycloneDX), the Helm chart, the notes from
CHANGELOG.md, what `docker buildx bake` needs to build and name both images, and the sums of all these files.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import distribution
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import yaml
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from daemon.spark.jars import DELTA_JAR, s3_jars

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: str = PROJECT["version"]
CHART = ROOT / "deploy" / "helm"
IMAGES = ("dvsync", "dvsync-slim")


def needed(extras: Iterable[str] = ()) -> dict[str, set[str]]:
    """Return the installed packages that dvsync needs with these extras, and for each those that it needs itself."""
    lines = [*PROJECT["dependencies"], *(line for each in extras for line in PROJECT["optional-dependencies"][each])]
    found: dict[str, set[str]] = {"dvsync": set()}
    seen: set[tuple[str, str]] = set()
    waiting = [("dvsync", Requirement(line)) for line in lines]
    while waiting:
        parent, requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        found[parent].add(name)
        found.setdefault(name, set())
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                needs = map(Requirement, distribution(name).requires or ())
                waiting += [(name, each) for each in needs if not each.marker or each.marker.evaluate({"extra": extra})]
    return found


def write_bill_of_materials(folder: Path, epoch_s: int) -> None:
    """Write which packages the wheel needs with all of its extras, and which of Spark's jars dvsync names.

    What neither an installation without extras nor the slim image has is optional.
    """
    packages, slim = needed(set(PROJECT["optional-dependencies"]) - {"dev"}), needed()
    components = {
        name: _component(PackageURL("pypi", None, name, distribution(name).version), is_optional=name not in slim)
        for name in packages.keys() - {"dvsync"}
    }
    for group, name, version in (jar.split(":") for jar in (DELTA_JAR, *s3_jars())):
        components[name] = _component(PackageURL("maven", group, name, version), is_optional=True)
        packages["dvsync"].add(name)
    own = PackageURL("pypi", None, "dvsync", VERSION)
    bom = Bom(components=components.values(), serial_number=uuid5(NAMESPACE_URL, str(own)))
    bom.metadata.timestamp = datetime.fromtimestamp(epoch_s, UTC)
    bom.metadata.component = components["dvsync"] = Component(
        name="dvsync", version=VERSION, type=ComponentType.APPLICATION, purl=own, bom_ref=str(own)
    )
    for name, needs in packages.items():
        bom.register_dependency(components[name], [components[each] for each in needs])
    (folder / f"dvsync-{VERSION}.cdx.json").write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n")


def _component(purl: PackageURL, *, is_optional: bool) -> Component:
    return Component(
        name=purl.name,
        group=purl.namespace,
        version=purl.version,
        purl=purl,
        bom_ref=str(purl),
        scope=ComponentScope.OPTIONAL if is_optional else ComponentScope.REQUIRED,
    )


def write_chart(folder: Path, epoch_s: int) -> None:
    """Write the chart as `helm package` does, but with the time of the commit."""
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
            content = path.read_bytes()
            member = tarfile.TarInfo(f"dvsync/{path.relative_to(CHART).as_posix()}")
            member.size, member.mtime = len(content), epoch_s
            archive.addfile(member, BytesIO(content))
    (folder / f"dvsync-{VERSION}.tgz").write_bytes(gzip.compress(packed.getvalue(), mtime=epoch_s))


def write_images(folder: Path, epoch_s: int) -> None:
    """Write the file for `docker buildx bake`, run in the checkout; $REGISTRY goes before the names."""
    labels = {
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.description": PROJECT["description"],
        "org.opencontainers.image.created": datetime.fromtimestamp(epoch_s, UTC).isoformat(),
    }
    targets = {
        image: {
            "context": ".",
            "target": image,
            "tags": [f"${{REGISTRY}}{image}:{VERSION}"],
            "labels": {"org.opencontainers.image.title": image, **labels},
            "args": {"SOURCE_DATE_EPOCH": str(epoch_s)},
            "attest": ["type=provenance,mode=max", "type=sbom"],
        }
        for image in IMAGES
    }
    document = {"variable": {"REGISTRY": {"default": ""}}, "group": {"default": {"targets": IMAGES}}, "target": targets}
    (folder / "docker-bake.json").write_text(json.dumps(document, indent=2) + "\n")


def write_notes(folder: Path) -> None:
    """Write the version's part of CHANGELOG.md."""
    changes = (ROOT / "CHANGELOG.md").read_text()
    found = re.search(rf"^## \[{re.escape(VERSION)}\].*?\n(.*?)(?=^## |\Z)", changes, re.MULTILINE | re.DOTALL)
    if found is None:
        sys.exit(f"CHANGELOG.md has no section [{VERSION}]: write what is new for operators")
    (folder / "notes.md").write_text(found[1].strip() + "\n")


def make(folder: Path, epoch_s: int) -> None:
    """Make the release in `folder`, which is removed first. SystemExit if CHANGELOG.md does not know the version."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_notes(folder)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch_s)}
    subprocess.run(build, env=environment, stdout=subprocess.DEVNULL, check=True)
    write_bill_of_materials(folder, epoch_s)
    write_chart(folder, epoch_s)
    write_images(folder, epoch_s)
    sums = [f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(sums))


def main() -> None:
    """Release what is committed, if it is the version that was asked for."""
    (asked,) = sys.argv[1:]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    if {VERSION, chart["version"], chart["appVersion"]} != {asked}:
        sys.exit(f"to release {asked}, write it into pyproject.toml ({VERSION}) and, twice, deploy/helm/Chart.yaml")
    if _git("status", "--porcelain"):
        sys.exit("the checkout has changes that are not committed: `git status` lists them")
    folder = ROOT / "dist" / asked
    make(folder, int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")))
    sys.stdout.write((folder / "SHA256SUMS").read_text())


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
