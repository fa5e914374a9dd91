"""`dvsync sync --wait`: waits until Iceberg tables show a Delta version that a daemon syncs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from daemon.cli.probe import ask
from daemon.config.settings import Settings, TableSettings
from daemon.errors import SyncError
from daemon.iceberg.marker import shown_by
from daemon.service.assembly import open_parts
from daemon.status.table_status import has_lost_log
from daemon.status.wording import paused_text
from daemon.sync.context import TableContext
from daemon.sync.memory import find_record
from state import TableRecord

POLL_INTERVAL_S = 0.2
# While the catalog does not show what the state database has.
CATALOG_INTERVAL_S = 1.0
SHOWN, FAILED, TIMED_OUT = 0, 1, 3


# How the wait for a table ended: one of these exit codes, and a text.
Verdict = tuple[int, str]


def wait_for_version(
    settings: Settings, tables: Sequence[TableSettings], min_version: int | None, *, deadline_s: float, is_named: bool
) -> Iterator[Verdict]:
    """Yield a verdict for each table, as soon as it shows `min_version`, is held up, or the deadline has passed.

    Without `min_version`, it is the newest version that the Delta table has now; unless the tables were named, those
    that wait for a Delta table are passed over. With a token, the daemon is asked to check both tables at once.
    `deadline_s` is on the monotonic clock. Raises ObjectStoreAway, StateStoreAway.
    """
    with open_parts(settings) as parts:
        store, clock = parts.store, parts.clock
        records = store.list_tables()
        waiting = {}
        for table in tables:
            wanted = min_version
            if wanted is None:
                log, record = parts.context(table).log, find_record(records, table)
                wanted = log.find_newest(record.synced_version if record else None)
                # Any version will do if only a listing would find the newest.
                wanted = 0 if wanted is None and (log.is_there() or is_named) else wanted
            if wanted is None:
                yield SHOWN, f"{table.name}: waits for a Delta table at {table.source}"
            else:
                waiting[table.name] = (table, wanted)
        if settings.health.token:
            for table in tables:
                # Without an answer, the daemon syncs at its next poll.
                ask(settings.health, f"api/tables/{quote(table.name)}/sync", token=settings.health.token)
        while waiting:
            is_late, records, interval_s = clock.monotonic_s() >= deadline_s, store.list_tables(), POLL_INTERVAL_S
            for table, wanted in list(waiting.values()):
                record, fault = find_record(records, table), None
                if record and record.synced_version is not None and record.synced_version >= wanted:
                    fault, interval_s = _find_fault(parts.context(table), record, wanted), CATALOG_INTERVAL_S
                verdict = _judge(table.name, record, wanted, fault, clock.now_ms(), is_late=is_late)
                if verdict:
                    del waiting[table.name]
                    yield verdict
            if waiting:
                time.sleep(interval_s)


def _find_fault(context: TableContext, record: TableRecord, wanted: int) -> str | None:
    """Return why the Iceberg table does not show `wanted`, although the state database has it; None if it does."""
    try:
        table = context.target.find_table()
    except SyncError as error:
        return f"the Iceberg table cannot be read: {error.kind}: {error.message}"
    if table and table.metadata.current_snapshot_id == record.snapshot_id:
        return None
    marker = shown_by(table) if table else None
    if marker and marker.version >= wanted:
        return None
    what = f"shows version {marker.version}" if marker else "was changed by somebody else" if table else "is gone"
    return f"dvsync synced version {record.synced_version}, but the Iceberg table {context.settings.target} {what}"


def _judge(
    name: str, record: TableRecord | None, wanted: int, fault: str | None, now_ms: int, *, is_late: bool
) -> Verdict | None:
    """Return the verdict by the record, and by the `fault` of the Iceberg table; None while waiting may help."""
    synced, error = (record.synced_version, record.error) if record else (None, None)
    if record and error and has_lost_log(record):
        return FAILED, f"{name}: gone: {error.message}\n  {error.hint}"
    if synced is not None and synced >= wanted and not fault:
        return SHOWN, f"{name}: shows version {synced}"
    shown = fault or f"{'shows nothing yet' if synced is None else f'shows version {synced}'}, not {wanted}"
    if pause := record.pause_at(now_ms) if record else None:
        held = f"{paused_text(pause)}; `dvsync resume {name}` resumes it"
        return FAILED, f"{name}: {shown}; {held}"
    because = f": {error.kind}: {error.message}\n  {error.hint}" if error else ""
    if error and error.parked:
        return FAILED, f"{name}: parked, and {shown}{because}"
    if fault and not error:
        because = (
            f"\n  The daemon checks the table within ten minutes; `dvsync resync {name}` repairs it without the wait."
        )
    return (TIMED_OUT, f"{name}: timed out: {shown}{because}") if is_late else None
