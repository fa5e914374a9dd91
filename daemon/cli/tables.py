"""Commands on the configured tables: select them, and read their status and history. Imports no PyIceberg."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

import msgspec
import structlog

from daemon.clock import SystemClock
from daemon.config.settings import Settings, TableSettings
from daemon.delta.log import DeltaLog, log_gone
from daemon.errors import ConfigInvalid, SyncError
from daemon.observe import log as events
from daemon.scheduling.failures import described
from daemon.service.discovery import Found, discover, gone_among, vanished_by_pattern
from daemon.sources.finder import open_storage
from daemon.status.table_status import Observation, TableStatus, gone_status, has_lost_log, table_status
from daemon.store.durable import is_local
from daemon.store.storage import check_path
from daemon.sync.memory import find_record, open_store
from daemon.texts import counted, some_of
from state import SyncRun, TableRecord
from state.sql.tables import TableStore

# An unknown name without a similar one is answered with all names if there are at most so many.
LISTED_MAX = 10
# Properties of a catalog that only say how to reach files.
FILE_PREFIXES = ("s3.", "hdfs.", "adls.", "gcs.", "hf.", "py-io-impl")
# How the types, or without one the addresses, of catalogs begin whose name selects their tables.
NAMED_CATALOGS = ("sql", "postgresql", "in-memory")

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True)
class GoneTable:
    """A table of the state database that nothing in the configuration leads to; `is_vanished` as in `gone_status`."""

    record: TableRecord
    status: TableStatus
    is_vanished: bool


def find_gone(configured: Settings, settings: Settings, wanted: Sequence[str]) -> list[GoneTable]:
    """Return the gone tables that `wanted` names, and by default or by `*` those that have vanished."""
    with open_store(settings, reads_only=True) as store:
        return [
            each
            for each in _gone_tables(configured, settings, store, store.list_tables())
            if each.record.name in wanted
            or (each.is_vanished and (not wanted or any(_stands_for(name, each.record.name) for name in wanted)))
        ]


def _gone_tables(
    configured: Settings, settings: Settings, store: TableStore, records: Sequence[TableRecord]
) -> Iterator[GoneTable]:
    gone, now_ms = _gone_among(settings, records), SystemClock().now_ms()
    by_pattern = vanished_by_pattern(configured, gone, {table.source for table in settings.tables})
    vanished = {record.id for group in by_pattern.values() for record in group}
    for record in gone:
        is_vanished = record.id in vanished
        status = gone_status(record, store.count(record.id), now_ms, is_vanished=is_vanished)
        yield GoneTable(record, status, is_vanished)


def _gone_among(settings: Settings, records: Iterable[TableRecord]) -> list[TableRecord]:
    """The tables that are gone. One that went to another share by its new target is gone here."""
    own = {table.name for table in settings.tables if settings.share.owns(table.target)}
    return gone_among(records, own, settings.share)


def find_tables(settings: Settings, wanted: Sequence[str], *, one: bool = False) -> list[TableSettings]:
    """Return the tables that `wanted` names, or all of our share. Raises ConfigInvalid for others; `one` as below."""
    known, share = {table.name: table for table in settings.tables}, settings.share
    _check_gone(settings, [name for name in wanted if name not in known and "*" not in name])
    own = [name for name, table in known.items() if share.owns(table.target)]
    names = select_names(wanted, own, known, one=one) if wanted else own
    others = {name: owner for name in names if (owner := share.owner_of(known[name].target)) != share}
    if others:
        raise ConfigInvalid(
            "\n".join(
                f"{name}: belongs to share {owner}, and `share` is {share}; its state is in that share's database"
                for name, owner in others.items()
            ),
            hint="Run the command with the share's own DVSYNC_SHARE and DVSYNC_STATE__URL.",
        )
    return [known[name] for name in names]


def _check_gone(settings: Settings, names: Sequence[str]) -> None:
    """Raise ConfigInvalid for those among these names, which nothing leads to, that the state database knows."""
    if not names:
        return
    with open_store(settings, reads_only=True) as store:
        gone = {record.name: record for record in gone_among(store.list_tables(), (), settings.share)}
    lines = []
    for record in (gone[name] for name in names if name in gone):
        why = "its Delta table has vanished, or the configuration no longer leads to it"
        left = f"; its Iceberg table {record.target} is left as {record.metadata_location}"
        lines.append(f"{record.name}: the table is gone: {why}{left if record.metadata_location else ''}")
    if lines:
        hint = "`dvsync status` says why. Bring it back, and dvsync continues; or `dvsync forget` the table."
        raise ConfigInvalid("\n".join(lines), hint=hint)


def select_names(
    wanted: Sequence[str],
    listed: Collection[str],
    known: Collection[str] = (),
    *,
    what: str = "tables",
    one: bool = False,
) -> list[str]:
    """Return the `wanted` names, each once, or what `*` matches of the `listed`. Raises ConfigInvalid otherwise.

    With `one`, it is raised as well if the one that is wanted stands for several.
    """
    selected: dict[str, None] = {}
    unknown = []
    for name in wanted:
        if name in known or name in listed:
            selected[name] = None
            continue
        matching = [each for each in listed if _stands_for(name, each)]
        selected |= dict.fromkeys(matching)
        if not matching:
            unknown.append(name)
    if unknown:
        names = sorted({*listed, *known})
        close = [near for name in unknown for near in get_close_matches(name, names)]
        if close:
            hint = f"Did you mean {' or '.join(dict.fromkeys(close))}? `dvsync status` lists all tables."
        elif len(names) <= LISTED_MAX:
            hint = f"The {what} are {', '.join(names)}." if names else f"There are no {what}."
        else:
            hint = f"`dvsync status` lists the {len(names)} {what}."
        raise ConfigInvalid("\n".join(f"{name}: no such table" for name in unknown), hint=hint)
    if one and len(selected) > 1:
        hint = f"Name one of them: {', '.join([*selected][:LISTED_MAX])}."
        raise ConfigInvalid(f"{wanted[0]} stands for {len(selected)} tables", hint=hint)
    return list(selected)


def _stands_for(wanted: str, name: str) -> bool:
    return wanted == name or ("*" in wanted and fnmatchcase(name, wanted))


def refused_tables(settings: Settings) -> Iterator[str]:
    """Yield why single listed tables will be parked, with their places. The others are followed all the same."""
    for number, table in enumerate(settings.tables):
        for key in ("source", "location", "delete_files_location"):
            try:
                check_path(getattr(table, key) or "")
            except SyncError as error:
                yield f"tables[{number}].{key}: {error.message}"


def tables_in_two_places(settings: Settings) -> Iterator[str]:
    """Yield a line for each place of Iceberg's metadata with the entries whose data files are not local as it is."""
    split: dict[str, list[str]] = {}
    for table in settings.tables:
        place = table.location or settings.catalogs.get(table.catalog, {}).get("warehouse", "")
        # The warehouse of a REST catalog may be a name.
        if "://" in place and not table.source_name and is_local(table.source) != is_local(place):
            split.setdefault(place, []).append(table.name)
    for place, names in split.items():
        where = "in an object store" if is_local(place) else "local"
        data = f"{some_of(names)}: the data files are {where}"
        yield f"{data}, the metadata at {place}: readers need both"


def targets_that_may_be_one(settings: Settings) -> Iterator[str]:
    """Yield a line for each listed table whose target may be another one's Iceberg table. Only the syncs find out."""
    seen: dict[Hashable, TableSettings] = {}
    for table in settings.tables:
        if table.is_pattern:
            continue
        # What differs between two catalogs. The tables of an SQL catalog are those of its name.
        properties = settings.catalogs.get(table.catalog, {})
        kind = (properties.get("type") or properties.get("uri", "")).lower()
        catalog: Hashable = table.catalog
        if not kind.startswith(NAMED_CATALOGS):
            own = {key: value for key, value in properties.items() if not key.startswith(FILE_PREFIXES)}
            catalog = frozenset((key, _address(value)) for key, value in own.items())
        # Whether the catalog ignores case is unknown.
        other = seen.setdefault((catalog, table.target.lower()), table)
        if other is not table:
            yield (
                f"{table.name}: {table.target} in the catalog {table.catalog} may be the same Iceberg table as "
                f"{other.target} in the catalog {other.catalog}, the target of {other.name}; if so, the second one to "
                "commit is parked"
            )


def _address(text: str) -> str:
    """One spelling of an address, whose scheme and host ignore case."""
    match = re.match(r"([^:/]+)://([^/]*)(.*)", text)
    if match is None:
        return text
    scheme, host = match[1].lower(), match[2].lower()
    port = {"http": ":80", "https": ":443"}.get(scheme, "")
    return f"{scheme}://{host.removesuffix(port)}{match[3].rstrip('/')}"


def with_found_tables(settings: Settings) -> tuple[Settings, Found]:
    """Return the settings with the tables of all shares that the patterns match now, and what else was found.

    If a pattern's folders cannot be listed, its tables come from the state database. Raises StateStoreAway.
    """
    if not any(table.is_pattern for table in settings.tables):
        return settings, Found()
    with open_store(settings, reads_only=True) as store:
        records = store.list_tables()
    found = discover(settings, SystemClock(), records)
    return settings.model_copy(update={"tables": (*found.tables, *found.others)}), found


def read_statuses(configured: Settings, settings: Settings) -> tuple[list[TableStatus], list[str]]:
    """Return each table's status from the state store and its Delta log. Works beside a running daemon.

    `settings` is `configured` with the tables that patterns find. If a Delta log cannot be read, the fields that come
    from it are null. The second list describes the tables whose names the state store has for other places.
    """
    clock = SystemClock()
    with open_store(settings, reads_only=True) as store:
        records = store.list_tables()
        statuses = []
        for table in find_tables(settings, ()):
            record = find_record(records, table)
            seen = Observation(record=record, counts=store.count(record.id) if record else None)
            storage = open_storage(settings, table, settings.file_properties(table.catalog), clock)
            log = DeltaLog(storage, table.source, clock)
            synced = record.synced_version if record else None
            try:
                if record and synced is not None and not log.is_there():
                    last = record.error if has_lost_log(record) else None
                    lost = described(log_gone(table.source), now_ms=clock.now_ms(), last=last)
                    seen = Observation(msgspec.structs.replace(record, error=lost), seen.counts)
                else:
                    source_version = log.find_newest(synced)
                    behind_since_ms = None if synced is None else log.find_written_ms(synced + 1)
                    seen = Observation(record, seen.counts, source_version, behind_since_ms)
            except Exception as error:
                # Whatever it is: the other tables are shown.
                _log.debug(events.SOURCE_UNSEEN, table=table.name, reason=str(error))
            statuses.append(table_status(table, seen, clock.now_ms()))
        statuses += [each.status for each in _gone_tables(configured, settings, store, records)]
    known = {record.name: record for record in records}
    return statuses, [
        f"{table.name}: the state database has this name for {known[table.name].source} -> {known[table.name].target};"
        f" {table.source} -> {table.target} counts as a new table"
        for table in settings.tables
        if table.name in known and find_record([known[table.name]], table) is None
    ]


def select_gone(settings: Settings, store: TableStore, wanted: Sequence[str]) -> list[TableRecord]:
    """Return the gone tables, all or those `wanted`. Raises ConfigInvalid for one that is followed or unknown."""
    gone = {record.name: record for record in _gone_among(settings, store.list_tables())}
    unmatched = [each for each in wanted if not any(_stands_for(each, name) for name in gone)]
    configured = (table.name for table in settings.tables if table.name not in gone)
    followed = [name for name in configured if any(_stands_for(each, name) for each in unmatched)]
    if followed:
        find_tables(settings, followed)  # Raises if another share follows it.
        lines = [f"{name}: the table is still followed" for name in followed[:LISTED_MAX]]
        lines += [f"and {counted(len(followed) - LISTED_MAX, 'table')} more"] if len(followed) > LISTED_MAX else []
        hint = (
            "First remove it from the configuration, or exclude it, and reload a running daemon (SIGHUP). Tables of a "
            "pattern stay followed while the pattern's folder is not there: is the volume mounted?"
        )
        raise ConfigInvalid("\n".join(lines), hint=hint)
    return [gone[name] for name in (select_names(wanted, gone, what="tables that are gone") if wanted else gone)]


def read_runs(settings: Settings, name: str, runs_max: int) -> list[SyncRun]:
    """Return the last syncs of one table, the newest first. Raises ConfigInvalid if `name` stands for several."""
    configured = [table.name for table in settings.tables if not table.is_pattern]
    with open_store(settings, reads_only=True) as store:
        ids = {record.name: record.id for record in store.list_tables()}
        (found,) = select_names([name], {**dict.fromkeys(configured), **ids}, one=True)
        return store.list_runs(ids[found], runs_max=runs_max) if found in ids else []
