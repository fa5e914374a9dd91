"""What the documents promise by name is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_that_are_named_exist() -> None:
    """docs/compatibility.md gives a test for each feature."""
    named = set(re.findall(r"\btest_\w+", (ROOT / "docs" / "compatibility.md").read_text()))
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 40
    assert named == {name for name in named if f"def {name}(" in code}
