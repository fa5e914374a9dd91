"""Finds Delta tables by name, and opens their files: those of a managed table as its catalog has ratified them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path

from daemon.clock import Clock, SystemClock
from daemon.config.settings import Settings, SourceName, TableSettings
from daemon.errors import LogMissing, SourceCatalogAway
from daemon.sources.credentials import Credentials, VendedStorage
from daemon.sources.metastores import GlueMetastore, HiveMetastore
from daemon.sources.ratified import Ratified, RatifiedStorage
from daemon.sources.table_info import TableInfo
from daemon.sources.unity import UnityCatalog
from daemon.store.locations import normalize_location
from daemon.store.storage import FileIOStorage
from state import SourceEntry

SourceCatalog = UnityCatalog | HiveMetastore | GlueMetastore


# One client for each catalog and configuration: it remembers tokens, and connections stay open. A secret's file counts,
# too: it is read again.
@lru_cache(maxsize=64)
def _opened(name: str, given: frozenset[tuple[str, str, Path | None]]) -> SourceCatalog:
    properties = {key: value for key, value, _ in given}
    match properties.pop("type"):
        case "hive":
            return HiveMetastore(name, properties)
        case "glue":
            return GlueMetastore(name, properties)
    return UnityCatalog(name, properties, SystemClock())


def open_catalog(settings: Settings, name: str) -> SourceCatalog:
    properties = settings.sources[name].items()
    return _opened(name, frozenset((key, value, getattr(value, "file", None)) for key, value in properties))


def find_entries(settings: Settings, wanted: SourceName) -> list[SourceEntry]:
    """Return the Delta tables that `wanted` names; views and tables of other formats are passed over.

    Requests: one for a name; else one for each page of the schemas, and of the tables of each schema that fits.

    Raises `SourceCatalogAway`, and `LogMissing` if a name, or the place of a pattern, is not there.
    """
    catalog = open_catalog(settings, wanted.source)
    if "*" not in wanted.pattern:
        info = catalog.find_table(wanted.pattern)
        if info is None:
            raise LogMissing(
                f"the catalog {wanted.source} has no table {wanted.pattern}",
                hint="Create it, correct `source`, or give dvsync's user the right to read it.",
            )
        infos: Iterable[TableInfo] = [info]
    else:
        # A metastore has no catalogs above its schemas.
        of_catalog, schemas, tables = ("", *wanted.pattern.split("."))[-3:]
        names = catalog.list_schemas(of_catalog) if "*" in schemas else [schemas]
        infos = (
            info
            for name in names
            if fnmatchcase(name, schemas)
            for info in catalog.list_tables(of_catalog, name)
            if fnmatchcase(info.name, tables)
        )
    return [entry for info in infos if (entry := _entry_of(wanted.source, info))]


def fits_entry(wanted: SourceName, entry: SourceEntry) -> bool:
    """Whether `wanted` names the table of `entry`, by name or by a pattern."""
    names = (entry.catalog, entry.schema, entry.table)
    patterns = ("", *wanted.pattern.split("."))[-3:]
    return wanted.source == entry.source and all(map(fnmatchcase, names, patterns))


def _entry_of(source: str, info: TableInfo) -> SourceEntry | None:
    is_delta = info.data_source_format == "DELTA" and info.table_type in ("MANAGED", "EXTERNAL")
    if not is_delta or not info.storage_location:
        return None
    return SourceEntry(
        source,
        info.catalog_name,
        info.schema_name,
        info.name,
        id=info.table_id,
        location=normalize_location(info.storage_location),
        is_managed=info.table_type == "MANAGED",
    )


def open_storage(
    settings: Settings, table: TableSettings, properties: Mapping[str, str], clock: Clock
) -> FileIOStorage:
    """Open the files of a Delta table. Those of a table of a catalog raise `SourceCatalogAway` as well."""
    if table.entry is None:
        return FileIOStorage(properties)
    entry, catalog = table.entry, open_catalog(settings, table.entry.source)
    if not isinstance(catalog, UnityCatalog):
        return FileIOStorage(properties)
    info = TableInfo(entry.table, entry.catalog, entry.schema, entry.id, storage_location=entry.location)
    credentials = Credentials(partial(catalog.read_credentials, info), entry.location, properties, clock)
    if not table.is_managed:
        return VendedStorage(credentials)

    def ask() -> Ratified:
        ratified = catalog.load_ratified(info)
        if ratified is None:
            raise SourceCatalogAway(
                f"the catalog {catalog.name} does not say any more what is ratified of {info.full_name}",
                hint="If it is no longer managed, the next listing of the catalog finds that.",
            )
        return ratified

    return RatifiedStorage(credentials, f"{table.source}/_delta_log", clock, ask, source=info.full_name)
