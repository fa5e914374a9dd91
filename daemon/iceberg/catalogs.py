"""The configured catalogs. Each is opened at its first use and shared by its tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NotInstalledError
from pyiceberg.io import PY_IO_IMPL

from daemon.config.value_types import SCOPES, is_rest, sqlite_file
from daemon.errors import CatalogAway, ConfigInvalid
from daemon.iceberg.pyiceberg_ext.clients import use_own_metastores
from daemon.iceberg.pyiceberg_ext.commits import complete_rest_requests, manage_metadata_files, writes_metadata_files
from daemon.iceberg.pyiceberg_ext.file_io import IMPLEMENTATION
from daemon.iceberg.pyiceberg_ext.format_v3 import allow_version_3
from daemon.iceberg.pyiceberg_ext.metadata_cache import remember_metadata
from daemon.iceberg.pyiceberg_ext.metadata_json import write_snapshots_fast
from daemon.iceberg.pyiceberg_ext.variant import know_variant
from daemon.texts import counted

# The class of a kind of `auth` gets its parameters as they are, and these are no texts.
AUTH_VALUES: Mapping[str, Callable[[str], Any]] = {
    "auth.oauth2.refresh_margin": int,
    "auth.oauth2.expires_in": int,
    **dict.fromkeys(SCOPES, str.split),
}
# What PyIceberg raises for properties that it cannot use: a class of `auth`, TypeError for an unknown parameter.
REFUSALS = (ValueError, NotInstalledError, TypeError, ImportError)


@dataclass(frozen=True)
class _Opened:
    """A catalog, and what it was opened with: its properties, and the file's identity if it is one of SQLite."""

    catalog: Catalog
    properties: Mapping[str, str]
    identity: tuple[int, int] | None


class Catalogs:
    """PyIceberg catalogs by their name in `config.yaml`. `count_synced` counts the tables that were synced into some.

    `open` raises ConfigInvalid for invalid properties, and as `check_file`. Other exceptions of PyIceberg pass through.
    """

    def __init__(
        self, properties: Mapping[str, Mapping[str, str]], count_synced: Callable[[Collection[str]], int] = lambda _: 0
    ) -> None:
        self._properties = properties
        self._count_synced = count_synced
        self._opened: dict[str, _Opened] = {}
        # One that does not answer keeps no other waiting. Names of one database share a lock: it is made only once.
        self._locks: dict[str, Lock] = {}

    def open(self, name: str) -> Catalog:
        properties = self._properties[name]
        file = sqlite_file(properties.get("uri", ""))
        opened = self._find_opened(name, properties, file)
        if opened is None:
            with self._locks.setdefault(_place_of(name, properties), Lock()):
                opened = self._find_opened(name, properties, file)
                if opened is None:
                    self.check_file(name)
                    # The former one is not closed: a running sync may still use it.
                    identity = _identity_of(file)
                    catalog = _open(name, properties)
                    # Opening makes a missing file. One that was replaced meanwhile is seen at the next use.
                    opened = self._opened[name] = _Opened(catalog, properties, identity or _identity_of(file))
        return opened.catalog

    def _find_opened(self, name: str, properties: Mapping[str, str], file: Path | None) -> _Opened | None:
        opened = self._opened.get(name)
        # A file that is put in the place of ours is another catalog, which our connections would not see.
        is_current = opened and opened.properties == properties and opened.identity == _identity_of(file)
        return opened if is_current else None

    def check_file(self, name: str) -> None:
        """Raise CatalogAway if the SQLite file of synced tables is missing: in a new one, all seem dropped."""
        properties = self._properties
        file, place = sqlite_file(properties[name].get("uri", "")), _place_of(name, properties[name])
        if file is None or file.exists():
            return
        names = [other for other, of_other in properties.items() if _place_of(other, of_other) == place]
        if tables := self._count_synced(names):
            raise CatalogAway(
                f"the file of the catalog {name} is not there, and dvsync synced {counted(tables, 'table')} into it",
                path=str(file),
                hint="Bring it back: is the volume mounted? If it is lost, or for a new catalog, create an empty "
                "file in its place, and dvsync creates the Iceberg tables again after a minute.",
            )

    def change(self, properties: Mapping[str, Mapping[str, str]]) -> None:
        """Use these from now on. A catalog with unchanged properties stays open."""
        self._properties = properties

    def close(self) -> None:
        for opened in self._opened.values():
            opened.catalog.close()
        self._opened.clear()


def catalog_away(name: str, error: Exception) -> CatalogAway:
    """Return the error for a catalog that failed with an exception of its library."""
    return CatalogAway(
        f"the catalog {name} does not answer: {cause_of(error)}",
        hint="Check the catalog's address, credentials and health. If the error names a file, check the store of the "
        "Iceberg table, too. dvsync tries again.",
    )


def cause_of(error: Exception) -> str:
    """Say what an exception of a catalog's library is. SQLAlchemy's own text repeats the statement."""
    cause = getattr(error, "orig", None) or error
    return f"{type(cause).__name__}: {cause}"


def _place_of(name: str, properties: Mapping[str, str]) -> str:
    """Return the database that a catalog is in, or its name if it is in none."""
    uri = properties.get("uri")
    if uri is None or is_rest(properties):
        return name
    file = sqlite_file(uri)
    return str(file.resolve()) if file else uri


def _identity_of(file: Path | None) -> tuple[int, int] | None:
    """Return what the file system knows a file by; None if there is none. Raises OSError."""
    try:
        found = file.stat() if file else None
    except FileNotFoundError:
        return None
    return (found.st_dev, found.st_ino) if found else None


def _open(name: str, properties: Mapping[str, str]) -> Catalog:
    remember_metadata()
    write_snapshots_fast()
    allow_version_3()
    know_variant()
    use_own_metastores()
    if is_rest(properties):
        # Only for them: with the HTTP client, its import is a tenth of all imports of `dvsync sync`.
        from daemon.iceberg.pyiceberg_ext.rest_sessions import limit_waiting  # noqa: PLC0415

        limit_waiting()
    try:
        catalog = load_catalog(name, **{PY_IO_IMPL: IMPLEMENTATION, **with_auth(properties)})
    except REFUSALS as error:
        # An error from the server can be a subclass of ValueError. That is no fault of the configuration.
        if type(error) not in REFUSALS:
            raise
        hint = "Correct the catalog's properties. PyIceberg's documentation describes them."
        raise ConfigInvalid(f"catalogs.{name}: PyIceberg cannot open it: {error}", hint=hint) from error
    manage_metadata_files(catalog)
    if not writes_metadata_files(catalog):
        complete_rest_requests()
    return catalog


def with_auth(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties with a section `auth`, as PyIceberg wants it: `auth.basic.username` is a key of `basic`."""
    found: dict[str, Any] = {}
    for key, value in properties.items():
        *outer, name = key.split(".", 2) if key.startswith("auth.") else (key,)
        section = found
        for each in outer:
            section = section.setdefault(each, {})
        section[name] = AUTH_VALUES.get(key, str)(value)
    return found
