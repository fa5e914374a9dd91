"""Imports libraries without optional parts that dvsync does not need, and that a daemon would hold for ever."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder


class _Hiding(MetaPathFinder):
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname in self._names:
            raise ModuleNotFoundError("hidden by dvsync while another library is imported", name=fullname)


@contextmanager
def without(*names: str) -> Iterator[None]:
    """What is imported in the block does not find these modules, as if they were not installed."""
    finder = _Hiding(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def import_arrow() -> None:
    """Import `pyarrow.dataset`, which PyIceberg uses, before PyIceberg does: without pandas and NumPy (60 MB).

    In this process, Arrow then cannot convert to or from NumPy arrays and data frames. Only PySpark needs that. Nor can
    it write encrypted Parquet data sets (4 MB), which nothing here does.
    """
    with without("numpy", "pandas", "pyarrow._dataset_parquet_encryption"):
        import pyarrow.dataset  # noqa: F401, PLC0415


# If it found rich, it would format tracebacks with it and with pygments (8 MB). The command line imports this module
# before any that uses structlog.
with without("rich"):
    import structlog  # noqa: F401
