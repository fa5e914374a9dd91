"""What a person may ask for a table, by a command or the API. The state store keeps it; a running daemon reads it."""

from __future__ import annotations

from enum import StrEnum

from daemon.config.settings import TableSettings
from daemon.errors import ConfigInvalid
from daemon.sync.memory import find_record
from state import TableRecord, TableStore


class Verb(StrEnum):
    """The verbs of the API."""

    SYNC = "sync"
    PAUSE = "pause"
    RESUME = "resume"
    RESYNC = "resync"


def pause(store: TableStore, table: TableSettings) -> None:
    """Pause a table until someone resumes it, also across restarts. Raises ConfigInvalid, StateUnavailable."""
    store.record_paused(_known_or_new(store, table).id, True)


def resume(store: TableStore, table: TableSettings) -> bool:
    """Clear a table's error, and end its parking or pause. Raises StateUnavailable.

    Returns False if the table had no error and was not paused.
    """
    record = store.find_table(table.name, table.source, table.target)
    if record is None or (record.error is None and not record.paused):
        return False
    store.record_paused(record.id, False)
    store.record_resumed(record.id)
    return True


def want_resync(store: TableStore, table: TableSettings) -> None:
    """Make the next sync write the table anew from Delta's state, even if it is parked.

    Raises ConfigInvalid, StateUnavailable.
    """
    record = _known_or_new(store, table)
    store.record_resync_wanted(record.id, True)
    store.record_resumed(record.id)


def _known_or_new(store: TableStore, table: TableSettings) -> TableRecord:
    """Return the table's row, creating it if needed.

    Raises ConfigInvalid if the state database has this name with another source or target.
    """
    records = store.list_tables()
    other = next((record for record in records if record.name == table.name), None)
    if other and find_record(records, table) is None:
        raise ConfigInvalid(
            f"{table.name}: the state database has this name for {other.source} -> {other.target}",
            hint="Start dvsync with the new configuration first, so that it forgets the old table; or undo the change.",
        )
    return store.open_table(table.name, table.source, table.target)
