"""Imports Arrow without pandas, before PyIceberg imports it. Only PySpark needs pandas."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("hidden by dvsync while Arrow is imported", name=fullname)


def import_arrow() -> None:
    """Import `pyarrow.dataset`, which PyIceberg uses, without pandas.

    Arrow imports pandas if it is installed, and an idle daemon would hold its 45 MB for ever. Arrow imports it later
    when a caller converts to a data frame.
    """
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow.dataset  # noqa: F401, PLC0415
    finally:
        sys.meta_path.remove(finder)
