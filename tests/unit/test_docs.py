"""What the documents promise by name is there."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from daemon import errors
from daemon.delta.features import FEATURES
from daemon.doctor.diagnosis import VECTOR_READERS
from daemon.observe import log
from daemon.spark.jars import ICEBERG_JAR
from daemon.status.activity import AMOUNTS, FROM_ZERO
from daemon.web.metrics import GAUGES, WRITTEN
from tests.kit.keys import render_keys

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "docs/decisions", "examples", "benchmarks")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
# A link to a place of this repository: the file, which may be this one, and the heading, which may be missing.
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)")


def test_the_tests_that_are_named_exist() -> None:
    """docs/compatibility.md gives a test for each feature."""
    named = set(re.findall(r"\btest_\w+", (ROOT / "docs" / "compatibility.md").read_text()))
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 40
    assert named == {name for name in named if f"def {name}(" in code}


def test_the_table_of_features_says_what_is_done() -> None:
    """docs/compatibility.md has each feature once, with the decision of the code."""
    table = (ROOT / "docs" / "compatibility.md").read_text().partition("## Table features")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[:2] for line in table.splitlines() if line.startswith("| `")]
    told = [(name, verdict) for names, verdict in rows for name in re.findall(r"`([^`]+)`", names)]
    assert sorted(told) == sorted((name, each.decision) for name, each in FEATURES.items())


def test_the_keys_are_those_of_the_settings() -> None:
    """docs/configuration.md has what `make docs` writes, and config.yaml shows or explains every key."""
    assert (ROOT / "docs" / "configuration.md").read_text().endswith(f"## Keys\n\n{render_keys()}")
    shipped = (ROOT / "config.yaml").read_text()
    keys = re.findall(r"^- `(\w+)` \(", render_keys(), re.MULTILINE)
    assert len(keys) > 40
    assert [key for key in keys if not re.search(rf"^ *(- |# )*(.*, )?{key}[:,]", shipped, re.MULTILINE)] == []


def test_the_versions_of_tested_readers_are_the_installed_ones() -> None:
    """docs/reading.md names what was tested: whoever changes a version looks at the page again."""
    told = (ROOT / "docs" / "reading.md").read_text()
    packages = {"Spark": "pyspark", "PyIceberg": "pyiceberg", "Polars": "polars", "DuckDB": "duckdb", "chdb": "chdb"}
    readers = [f"{reader} {version(package)}" for reader, package in packages.items()]
    assert [reader for reader in (*readers, f"Iceberg {ICEBERG_JAR.rpartition(':')[2]}") if reader not in told] == []


def test_doctor_names_the_versions_of_readers_that_are_tested() -> None:
    packages = {"Spark": "pyspark", "PyIceberg": "pyiceberg", "Polars": "polars"}
    readers = [f"{reader} {'.'.join(version(package).split('.')[:2])}" for reader, package in packages.items()]
    assert [each for each in (*readers, f"DuckDB {version('duckdb')}") if each not in VECTOR_READERS] == []


def test_links_lead_somewhere() -> None:
    """Each relative link to a file, and to a heading in it."""
    pages = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).glob("*.md"))]
    headings = {
        page: {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in HEADING.findall(page.read_text())}
        for page in pages
    }
    links = [(page, *link) for page in pages for link in LINK.findall(page.read_text())]
    assert len(links) > 80
    broken = [
        (page.name, path, anchor)
        for page, path, anchor in links
        for target in [(page.parent / path).resolve() if path else page]
        if not target.exists() or (anchor and anchor not in headings.get(target, ()))
    ]
    assert broken == []


def test_every_error_kind_and_metric_is_explained() -> None:
    """The operator's pages have a line for each, each log event and each remark of a library."""
    told = "".join((ROOT / "docs" / page).read_text() for page in ("operations.md", "monitoring.md"))
    kinds = [name for name, value in vars(errors).items() if isinstance(value, type) and value.__subclasses__() == []]
    assert [
        kind for kind in kinds if issubclass(getattr(errors, kind), errors.SyncError) and f"`{kind}`" not in told
    ] == []
    metrics = [*GAUGES, *WRITTEN, *(f"dvsync_{name}_total" for name in (*AMOUNTS, *FROM_ZERO))]
    assert [metric for metric in metrics if f"`{metric}`" not in told] == []
    words = [value for name, value in vars(log).items() if name.isupper() and isinstance(value, str)]
    assert [word for word in words if f"`{word}`" not in told] == []
    said = [start.replace("%s", "…") for _, start in log.REMARKS]
    assert [start for start in said if f"`{start}`" not in told] == []
