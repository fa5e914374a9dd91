"""What a person may ask for a table, by a command or the API. The state store keeps it; a running daemon reads it."""

from __future__ import annotations

from enum import StrEnum

from msgspec.structs import replace

from daemon.config.settings import TableSettings
from daemon.errors import ConfigInvalid
from daemon.sync.memory import find_record
from state import Pause, TableRecord
from state.sql.tables import TableStore

PAUSE_MAX_S = 366 * 86_400.0
REASON_MAX = 500


class Verb(StrEnum):
    """The verbs of the API."""

    SYNC = "sync"
    PAUSE = "pause"
    RESUME = "resume"
    RESYNC = "resync"


def make_pause(by: str, now_ms: int, *, for_s: float | None, reason: str | None) -> Pause:
    """A pause that begins now, and ends by itself after `for_s` if that is given. Raises ConfigInvalid."""
    if for_s is not None and not 0 < for_s <= PAUSE_MAX_S:
        raise ConfigInvalid(
            "a pause must last longer than 0 seconds and at most 366 days",
            hint="Give another time. If you give none, only `dvsync resume` ends the pause.",
        )
    if reason is not None and len(reason) > REASON_MAX:
        raise ConfigInvalid(
            f"the reason has {len(reason):,} characters, and {REASON_MAX} is the limit", hint="Give a shorter reason."
        )
    until_ms = None if for_s is None else now_ms + round(for_s * 1000)
    return Pause(now_ms, by, until_ms=until_ms, reason=reason or None)


def pause(store: TableStore, table: TableSettings, wanted: Pause) -> None:
    """Pause a table; one that is paused keeps its start. As `want_resync`, raises ConfigInvalid, StateUnavailable."""
    record = known_or_new(store, table)
    before = record.pause_at(wanted.since_ms)
    store.record_pause(record.id, replace(wanted, since_ms=before.since_ms) if before else wanted)


def resume(store: TableStore, table: TableSettings) -> bool:
    """Clear a table's error, and end its parking or pause; False if it had none. Raises StateUnavailable."""
    record = store.find_table(table.name, table.source, table.target)
    if record is None or (record.error is None and record.pause is None):
        return False
    store.record_pause(record.id, None)
    store.record_failure(record.id, None)
    return True


def want_resync(store: TableStore, table: TableSettings, now_ms: int) -> str:
    """Make the next sync rewrite the table from Delta's state, even if it is parked. Returns what happens next."""
    record = known_or_new(store, table)
    store.record_resync_wanted(record.id, True)
    store.record_failure(record.id, None)
    is_paused = record.pause_at(now_ms) is not None
    return next_resync(table.name, is_held=is_paused) + (": it is paused" if is_paused else "")


def next_resync(name: str, *, is_held: bool) -> str:
    """What a wanted resync does, and what it waits for, as the end of a sentence about the table."""
    held = f", after `dvsync resume {name}`" if is_held else ""
    return f"its next sync rewrites the whole table{held}"


def known_or_new(store: TableStore, table: TableSettings) -> TableRecord:
    """Return the table's row, made if needed. Raises ConfigInvalid if its name has another source or target."""
    records = store.list_tables()
    other = next((record for record in records if record.name == table.name), None)
    if other and find_record(records, table) is None:
        raise ConfigInvalid(
            f"{table.name}: the state database has this name for {other.source} -> {other.target}",
            hint="Start dvsync with the new configuration first, so that it forgets the old table; or undo the change.",
        )
    return store.open_table(table.name, table.source, table.target)
