"""Imports Arrow without pandas and NumPy, before PyIceberg imports it. Only PySpark needs them."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


class _WithoutNumPy(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname in ("numpy", "pandas"):
            raise ModuleNotFoundError("hidden by dvsync while Arrow is imported", name=fullname)


def import_arrow() -> None:
    """Import `pyarrow.dataset`, which PyIceberg uses, without pandas and NumPy.

    Arrow imports both if they are installed, and an idle daemon would hold their 60 MB for ever. In this process, Arrow
    then cannot convert to or from NumPy arrays and data frames, which dvsync does not need.
    """
    finder = _WithoutNumPy()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow.dataset  # noqa: F401, PLC0415
    finally:
        sys.meta_path.remove(finder)
