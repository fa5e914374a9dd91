"""`dvsync config check --connect`: tries everything that a configuration leads to."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from shutil import which

from pyiceberg.catalog import Catalog
from pyiceberg.typedef import Identifier

from daemon.cli.tables import with_found_tables
from daemon.config.settings import Settings, TableSettings
from daemon.config.value_types import sqlite_file
from daemon.delta.log import log_gone
from daemon.errors import ConfigInvalid, SyncError, TargetUnreadable
from daemon.iceberg.catalogs import catalog_away
from daemon.iceberg.marker import shown_by
from daemon.service.assembly import Parts, open_parts
from daemon.sources.finder import open_catalog
from daemon.spark.jars import check_jars, check_pipeline
from daemon.sync.memory import as_sync_error
from daemon.texts import counted, some_of
from daemon.translate.existing_table import check_format_version

# At most so many tables of a catalog are read to find out whether dvsync made them.
STRANGERS_MAX = 100


# What was tried, and what was found or went wrong.
Attempt = tuple[str, str | SyncError]


def try_connections(settings: Settings) -> Iterator[Attempt]:
    """Try whatever the settings lead to. Writes nothing but a missing state database. Raises StateStoreAway."""
    with open_parts(settings) as parts:
        yield _attempt("state database", partial(_try_state, parts))
        expanded, found = with_found_tables(settings)
        targets = {table.target.lower() for table in expanded.tables}
        targets |= {record.target.lower() for record in parts.store.list_tables()}
        for name in settings.catalogs:
            yield _attempt(f"catalog {name}", partial(_try_catalog, parts, name, targets))
        told = set()
        for name in settings.sources:
            what, outcome = _attempt(f"source {name}", partial(_try_source_catalog, expanded, name))
            told.add(str(outcome))
            yield what, outcome
        by_name = [table for table in expanded.tables if "*" not in found.patterns.get(table.source, "")]
        for table in by_name:
            what, outcome = _attempt(f"table {table.name}", partial(_try_source, parts, table))
            if str(outcome) not in told:
                yield what, outcome
        if any("*" in table.source for table in settings.tables):
            yield "patterns", f"{counted(len(expanded.tables) - len(by_name), 'table')} found"
        yield from ((some_of(about), error) for about, error in found.joined_troubles() if str(error) not in told)
        for number, hook in enumerate(settings.hooks):
            if hook.command:
                yield _attempt(f"hooks[{number}].command", partial(_try_program, hook.command[0]))
        if settings.may_need_spark:
            yield _attempt("Spark", partial(_try_spark, parts))


def _attempt(what: str, work: Callable[[], str]) -> Attempt:
    try:
        return what, work()
    except Exception as error:
        return what, as_sync_error(error)


def _try_state(parts: Parts) -> str:
    parts.store.check_writable()
    lease = parts.store.read_lease()
    return f"can be written; {'in use by ' + lease.holder if lease.holder else 'no process uses it'}"


def _try_catalog(parts: Parts, name: str, targets: Container[str]) -> str:
    parts.catalogs.check_file(name)
    file = sqlite_file(parts.settings.catalogs[name].get("uri", ""))
    if file and not file.exists():
        return f"{file} is not there yet; dvsync will make it"
    try:
        catalog = parts.catalogs.open(name)
        namespaces = catalog.list_namespaces()
    except SyncError:
        raise
    except Exception as error:
        raise catalog_away(name, error) from error
    found = f"answers; {counted(len(namespaces), 'namespace')}"
    for stray in _find_strays(parts, catalog, namespaces, targets):
        found += (
            f"\n  dvsync made {stray}, and nothing leads to it now. To remove it with its files: add an entry with its "
            "source, its target and a new name, sync it, remove the entry, and run `dvsync forget NAME --drop`."
        )
    return found


def _find_strays(
    parts: Parts, catalog: Catalog, namespaces: Iterable[Identifier], targets: Container[str]
) -> Iterator[str]:
    """Yield the tables that this dvsync made and that are no table's target, as after a lost state database.

    What another dvsync wrote last may be in use. Of two names of one Iceberg table, the other one may lead to it.
    """
    uuids = {record.table_uuid for record in parts.store.list_tables()}
    # What is wrong with somebody's table or namespace is not our concern.
    with suppress(Exception):
        identifiers = map(".".join, chain.from_iterable(catalog.list_tables(each) for each in namespaces))
        for identifier in islice((each for each in identifiers if each.lower() not in targets), STRANGERS_MAX):
            with suppress(Exception):
                table = catalog.load_table(identifier)
                marker = shown_by(table)
                is_own = marker is not None and marker.writer == parts.settings.state.place
                if is_own and str(table.metadata.table_uuid) not in uuids:
                    yield identifier


def _try_source_catalog(settings: Settings, name: str) -> str:
    open_catalog(settings, name).check()
    tables = sum(table.entry is not None and table.entry.source == name for table in settings.tables)
    return f"answers; {counted(tables, 'table')} found"


def _try_source(parts: Parts, table: TableSettings) -> str:
    context = parts.context(table)
    is_there, record = context.log.is_there(), context.find_record()
    if record and record.synced_version is not None:
        if not is_there:
            raise log_gone(table.source)
        shown = context.target.find_table()
        if shown is None:
            raise TargetUnreadable(
                f"the catalog {table.catalog} has no table {table.target}, which dvsync made",
                hint="Check the catalog's address. If the table was dropped, dvsync creates it again after a minute; "
                f"after `dvsync resync {table.name}`, without the wait.",
            )
        check_format_version(table, shown)
    return f"{table.shown_source} {'is a Delta table' if is_there else 'is not there yet; dvsync waits for it'}"


def _try_program(name: str) -> str:
    found = which(name)
    if found is None:
        raise ConfigInvalid(f"there is no program {name}", hint="Give its path, or add its folder to PATH.")
    return found


def _try_spark(parts: Parts) -> str:
    check_pipeline(parts.settings.spark)
    check_jars(parts.settings.spark)
    with parts.spark.session() as session:
        return f"starts; version {session.version}, master {session.sparkContext.master}"
