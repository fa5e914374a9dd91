"""Commands on the configured tables: select them, read their status, forget them. Imports no PyIceberg."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from daemon import log as events
from daemon.clock import SystemClock
from daemon.config.settings import Settings, TableSettings
from daemon.delta.log import DeltaLog
from daemon.errors import ConfigInvalid, ObjectStoreAway, SyncError
from daemon.service.discovery import discover, owners_among
from daemon.status.table_status import Observation, TableStatus, gone_status, table_status
from daemon.storage import FileIOStorage
from daemon.sync.memory import find_record, open_store

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def find_tables(settings: Settings, names: Sequence[str]) -> list[TableSettings]:
    """Return the tables with these names, or all tables of our share if `names` is empty.

    Raises ConfigInvalid for unknown names, and for tables of other shares.
    """
    known = {table.name: table for table in settings.tables}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigInvalid(
            "\n".join(f"{name}: no such table" for name in unknown),
            hint=f"The configuration names {', '.join(known) or 'no tables'}.",
        )
    share = settings.share
    if not names:
        return [table for table in settings.tables if share.owns(table.target)]
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


def with_found_tables(settings: Settings) -> tuple[Settings, list[SyncError]]:
    """Return the settings with the tables of all shares that the patterns match now, and an error for each failed one.

    If a pattern's folders cannot be listed, its tables come from the state database. A folder that cannot be followed
    is logged. Raises StateStoreAway.
    """
    patterns = {table.source for table in settings.tables if table.is_pattern}
    if not patterns:
        return settings, []
    with open_store(settings) as store:
        owners = owners_among(store.list_tables(), settings.share)
    found = discover(settings, SystemClock(), owners)
    hint = "Check the folder and the store, or remove the pattern from the configuration."
    troubles: list[SyncError] = []
    for about, reason in found.troubles.items():
        if about in patterns:
            troubles.append(ObjectStoreAway(reason, hint=hint))
        else:
            _log.warning(events.PATTERN_REFUSED, source=about, reason=reason)
    return settings.model_copy(update={"tables": (*found.tables, *found.others)}), troubles


def read_statuses(settings: Settings) -> list[TableStatus]:
    """Return each table's status from the state store and its Delta log. Works beside a running daemon.

    If a Delta log cannot be read, the fields that come from it are null. Raises ConfigInvalid, StateStoreAway.
    """
    clock = SystemClock()
    with open_store(settings) as store:
        records = store.list_tables()
        statuses = []
        for table in find_tables(settings, ()):
            record = find_record(records, table)
            seen = Observation(record=record, counts=store.count(record.id) if record else None)
            log = DeltaLog(FileIOStorage(settings.file_properties(table.catalog)), table.source, clock)
            synced = record.synced_version if record else None
            try:
                source_version = log.find_newest(synced)
                behind_since_ms = None if synced is None else log.find_written_ms(synced + 1)
                seen = Observation(seen.record, seen.counts, source_version, behind_since_ms)
            except SyncError as error:
                _log.warning(events.SOURCE_UNSEEN, table=table.name, reason=str(error))
            statuses.append(table_status(table, seen, clock.now_ms()))
        followed = {table.name for table in settings.tables}
        gone = (record for record in records if record.name not in followed and settings.share.owns(record.target))
        statuses += (gone_status(record, store.count(record.id), clock.now_ms()) for record in gone)
        return statuses


def forget_table(settings: Settings, name: str) -> None:
    """Remove a table that is gone from the state database. No file is touched.

    Raises StateStoreAway, and ConfigInvalid for a table that is still followed or unknown.
    """
    if any(table.name == name for table in settings.tables):
        find_tables(settings, [name])  # Raises if another share follows it.
        hint = "First remove it from the configuration, or move its folder so that no pattern matches it."
        raise ConfigInvalid(f"{name}: the table is still followed", hint=hint)
    with open_store(settings) as store:
        record = next((record for record in store.list_tables() if record.name == name), None)
        if record is None:
            raise ConfigInvalid(f"{name}: no such table", hint="`dvsync status` lists the tables that are gone.")
        store.forget_table(record.id)
