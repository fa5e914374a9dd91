"""Imports libraries without optional parts that dvsync does not need, and that a daemon would hold for ever."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType

# Of PyIceberg: reads its own configuration file, and filters that are written as text. Both need large parsers (6 MB).
SELDOM_USED = ("strictyaml", "pyiceberg.expressions.parser")


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


class _Deferred(ModuleType):
    """A module whose code runs when somebody first reads one of its attributes."""

    def __getattr__(self, name: str) -> object:
        if not name.startswith("__"):
            with _DEFERRED:
                loader = self.__dict__.pop("__deferred__", None)
                if loader is not None:
                    loader.exec_module(self)
            if name in self.__dict__:
                return self.__dict__[name]
        raise AttributeError(f"module {self.__name__} has no attribute {name}", name=name, obj=self)


_DEFERRED = RLock()


class _DeferringLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__deferred__"] = self._loader


class _Deferring(MetaPathFinder):
    """Unlike importlib's LazyLoader, this leaves a module alone that is only imported."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname in SELDOM_USED else None  # type: ignore[arg-type]
        if spec and spec.loader:
            spec.loader = _DeferringLoader(spec.loader)
        return spec


def import_arrow() -> None:
    """Import `pyarrow.dataset`, which PyIceberg uses, before PyIceberg does: without pandas and NumPy (60 MB).

    In this process, Arrow then cannot convert to or from NumPy arrays and data frames. Only PySpark needs that. Nor can
    it write encrypted Parquet data sets (4 MB), which nothing here does.
    """
    # For the few kilobytes that an idle daemon needs, Arrow's allocator would take huge pages, of 2 MB each.
    os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")
    with without("numpy", "pandas", "pyarrow._dataset_parquet_encryption"):
        import pyarrow.dataset  # noqa: F401, PLC0415


sys.meta_path.insert(0, _Deferring())

# If it found rich, it would format tracebacks with it and with pygments (8 MB). `daemon.cli` imports this module
# before any that uses structlog.
with without("rich"):
    import structlog  # noqa: F401
