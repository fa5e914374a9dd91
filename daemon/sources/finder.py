"""Finds Delta tables by name, and opens their files: those of a managed table as its catalog has ratified them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
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
from daemon.sources.unity import LastAnswer, UnityCatalog
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


def find_entries(settings: Settings, wanted: SourceName) -> tuple[list[SourceEntry], dict[str, str]]:
    """Return the Delta tables that `wanted` names, and of what else a pattern fits, the kind of each by its name.

    Requests: one for a name; else one for each page of the schemas, and of the tables of each schema that fits.

    Raises `SourceCatalogAway`, and `LogMissing` if a name, or the place of a pattern, is not there.
    """
    try:
        infos = _find_infos(open_catalog(settings, wanted.source), wanted.pattern)
    except LogMissing as error:
        raise LogMissing(
            f"the catalog {wanted.source} has no {wanted.pattern}",
            hint="Create it, correct the name, or give dvsync's user the right to read it.",
        ) from error
    entries, others = [], dict[str, str]()
    for info in infos:
        entry = _entry_of(wanted.source, info)
        if kind := info.other_kind:
            others[entry.full_name] = kind
        else:
            entries.append(entry)
    if others and "*" not in wanted.pattern:
        (kind,) = others.values()
        raise LogMissing(
            f"{wanted.pattern} in the catalog {wanted.source} is no Delta table ({kind})",
            hint="Name a Delta table, or remove the entry.",
        )
    return entries, others


def _find_infos(catalog: SourceCatalog, pattern: str) -> list[TableInfo]:
    if "*" not in pattern:
        return [catalog.find_table(pattern)]
    # A metastore has no catalogs above its schemas.
    of_catalog, schemas, tables = ("", *pattern.split("."))[-3:]
    if "*" not in schemas:
        infos = [*catalog.list_tables(of_catalog, schemas)]
    else:
        infos = []
        for name in catalog.list_schemas(of_catalog):
            # A schema may be dropped after it was listed.
            with suppress(LogMissing):
                infos += catalog.list_tables(of_catalog, name) if _fits(name, schemas) else ()
    return [info for info in infos if _fits(info.name, tables)]


def fits_entry(wanted: SourceName, entry: SourceEntry) -> bool:
    """Whether `wanted` names the table of `entry`, by name or by a pattern. Catalogs ignore case."""
    return _fits(entry.full_name, f"{wanted.source}:{wanted.pattern}")


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name.casefold(), plain(pattern).casefold())


def plain(pattern: str) -> str:
    """A pattern for `fnmatch`, with all wildcards escaped but `*`."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


def _entry_of(source: str, info: TableInfo) -> SourceEntry:
    return SourceEntry(
        source,
        info.catalog_name,
        info.schema_name,
        info.name,
        id=info.table_id,
        location=normalize_location(info.storage_location or ""),
        is_managed=info.is_managed,
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
    ask = partial(_load_ratified, catalog, LastAnswer(info))
    return RatifiedStorage(credentials, f"{table.source}/_delta_log", clock, ask, source=info.full_name)


def _load_ratified(catalog: UnityCatalog, last: LastAnswer) -> Ratified:
    ratified = catalog.load_ratified(last)
    if ratified is None:
        raise SourceCatalogAway(
            f"the catalog {catalog.name} does not say any more what is ratified of {last.table.full_name}",
            hint="If it is no longer managed, the next listing of the catalog finds that.",
        )
    return ratified
