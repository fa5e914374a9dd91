"""Programs of Debian packages that look at our results. CI has all of them; elsewhere their tests may be skipped."""

from __future__ import annotations

import os
import shutil

import pytest


def find_tool(name: str, *, package: str) -> str:
    """The program's path. Skips the test where it is missing, or fails it in CI, naming the package."""
    found = shutil.which(name)
    if found is None:
        told = f"{name} is not installed: apt-get install {package}"
        if "CI" in os.environ:
            pytest.fail(told)
        pytest.skip(told)
    return found
