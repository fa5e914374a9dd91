"""The configured catalogs. Each is opened at its first use and shared by its tables."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NotInstalledError
from pyiceberg.io import PY_IO_IMPL

from daemon.errors import CatalogAway, ConfigInvalid
from daemon.iceberg.pyiceberg_ext.commits import complete_rest_requests, manage_metadata_files, writes_metadata_files
from daemon.iceberg.pyiceberg_ext.file_io import IMPLEMENTATION
from daemon.iceberg.pyiceberg_ext.format_v3 import allow_version_3
from daemon.iceberg.pyiceberg_ext.metadata_cache import remember_metadata


class Catalogs:
    """PyIceberg catalogs by their name in `config.yaml`.

    Opening a catalog raises ConfigInvalid for invalid properties. Other exceptions of PyIceberg pass through.
    """

    def __init__(self, properties: Mapping[str, Mapping[str, str]]) -> None:
        self._properties = properties
        self._catalogs: dict[str, Catalog] = {}
        self._lock = threading.Lock()

    def open(self, name: str) -> Catalog:
        with self._lock:
            if name not in self._catalogs:
                remember_metadata()
                allow_version_3()
                catalog = _load(name, self._properties[name])
                manage_metadata_files(catalog)
                if not writes_metadata_files(catalog):
                    complete_rest_requests()
                self._catalogs[name] = catalog
            return self._catalogs[name]

    def change(self, properties: Mapping[str, Mapping[str, str]]) -> None:
        """Use these properties from now on. A catalog with unchanged properties stays open."""
        with self._lock:
            for name in [name for name in self._catalogs if properties.get(name) != self._properties[name]]:
                # Do not close the catalog: a running sync may still use it.
                del self._catalogs[name]
            self._properties = properties

    def close(self) -> None:
        with self._lock:
            for catalog in self._catalogs.values():
                catalog.close()
            self._catalogs.clear()


def catalog_away(name: str, error: Exception) -> CatalogAway:
    """Return the error for a catalog that failed with an exception of its library."""
    return CatalogAway(
        f"the catalog {name} does not answer: {cause_of(error)}",
        hint="Check the catalog's address, credentials and health. dvsync tries again.",
    )


def cause_of(error: Exception) -> str:
    """Say what an exception of a catalog's library is. SQLAlchemy's own text repeats the statement."""
    cause = getattr(error, "orig", None) or error
    return f"{type(cause).__name__}: {cause}"


def _load(name: str, properties: Mapping[str, str]) -> Catalog:
    try:
        return load_catalog(name, **{PY_IO_IMPL: IMPLEMENTATION, **properties})
    except (ValueError, NotInstalledError) as error:
        # An error from the server can be a subclass of ValueError. That is no fault of the configuration.
        if type(error) not in (ValueError, NotInstalledError):
            raise
        hint = "Correct the catalog's properties. PyIceberg's documentation describes them."
        raise ConfigInvalid(f"catalogs.{name}: PyIceberg cannot open it: {error}", hint=hint) from error
