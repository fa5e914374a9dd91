"""How Arrow is imported, before PyIceberg imports it: without pandas, which only PySpark asks for."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("hidden by dvsync while Arrow is imported", name=fullname)


def import_arrow() -> None:
    """Import `pyarrow.dataset`, which PyIceberg uses, without pandas.

    Arrow takes pandas along when it finds it, for 45 MB that an idle daemon would hold for ever. It looks for it again
    when a caller really wants a data frame.
    """
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow.dataset  # noqa: F401, PLC0415
    finally:
        sys.meta_path.remove(finder)
