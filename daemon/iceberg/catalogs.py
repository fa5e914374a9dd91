"""The configured catalogs, each opened when it is first asked for and shared by its tables."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NotInstalledError

from daemon.errors import ConfigInvalid
from daemon.iceberg.pyiceberg_ext.commits import announce_metadata_files, complete_rest_requests, writes_metadata_files
from daemon.iceberg.pyiceberg_ext.metadata_cache import remember_metadata


class Catalogs:
    """PyIceberg catalogs by their name in `config.yaml`.

    Opening one raises ConfigInvalid for properties that PyIceberg makes nothing of, and else whatever it raises.
    """

    def __init__(self, properties: Mapping[str, Mapping[str, str]]) -> None:
        self._properties = properties
        self._catalogs: dict[str, Catalog] = {}
        self._lock = threading.Lock()

    def open(self, name: str) -> Catalog:
        with self._lock:
            if name not in self._catalogs:
                remember_metadata()
                catalog = _load(name, self._properties[name])
                announce_metadata_files(catalog)
                if not writes_metadata_files(catalog):
                    complete_rest_requests()
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


def _load(name: str, properties: Mapping[str, str]) -> Catalog:
    try:
        return load_catalog(name, **properties)
    except (ValueError, NotInstalledError) as error:
        # What a server answers may be a kind of ValueError, too: that is no fault of the configuration.
        if type(error) not in (ValueError, NotInstalledError):
            raise
        hint = "Correct the catalog's properties; they are PyIceberg's."
        raise ConfigInvalid(f"catalogs.{name}: PyIceberg cannot open it: {error}", hint=hint) from error
