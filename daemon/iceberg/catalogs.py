"""The configured catalogs, each opened when it is first asked for and shared by its tables."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pyiceberg.catalog import Catalog, load_catalog

from daemon.iceberg.pyiceberg_ext import announce_metadata_files


class Catalogs:
    """PyIceberg catalogs by their name in `config.yaml`; opening one raises whatever PyIceberg raises."""

    def __init__(self, properties: Mapping[str, Mapping[str, str]]) -> None:
        self._properties = properties
        self._catalogs: dict[str, Catalog] = {}
        self._lock = threading.Lock()

    def open(self, name: str) -> Catalog:
        with self._lock:
            if name not in self._catalogs:
                catalog = load_catalog(name, **self._properties[name])
                announce_metadata_files(catalog)
                self._catalogs[name] = catalog
            return self._catalogs[name]

    def change(self, properties: Mapping[str, Mapping[str, str]]) -> None:
        """Use other properties from now on. A catalog whose properties stay is not opened anew."""
        with self._lock:
            for name in [name for name in self._catalogs if properties.get(name) != self._properties[name]]:
                # It may be in use: it is left to whoever uses it, not closed.
                del self._catalogs[name]
            self._properties = properties

    def close(self) -> None:
        with self._lock:
            for catalog in self._catalogs.values():
                catalog.close()
            self._catalogs.clear()
