"""`dvsync sync --wait`: waits until Iceberg tables show a Delta version that a daemon syncs. Imports no PyIceberg."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from daemon.cli.probe import ask_to_sync
from daemon.clock import SystemClock
from daemon.config.settings import Settings, TableSettings
from daemon.delta.log import DeltaLog
from daemon.status.table_status import gone_status, has_lost_log, paused_text
from daemon.storage import FileIOStorage
from daemon.sync.memory import find_record, open_store
from state import TableRecord

POLL_INTERVAL_S = 0.2
SHOWN, FAILED, TIMED_OUT = 0, 1, 3


@dataclass(frozen=True)
class Verdict:
    """How the wait for a table ended. `code` is one of the exit codes SHOWN, FAILED and TIMED_OUT."""

    code: int
    text: str


def find_gone(settings: Settings, names: Sequence[str]) -> dict[str, Verdict]:
    """Return a verdict for each name whose table is gone. Raises StateStoreAway."""
    followed, now_ms = {table.name for table in settings.tables}, SystemClock().now_ms()
    gone = {}
    with open_store(settings) as store:
        for record in store.list_tables():
            error = gone_status(record, None, now_ms).error
            if record.name in names and record.name not in followed and error:
                gone[record.name] = Verdict(FAILED, f"{record.name}: gone: {error.message}\n  {error.hint}")
    return gone


def wait_for_version(
    settings: Settings, tables: Sequence[TableSettings], min_version: int | None, *, deadline_s: float
) -> Iterator[Verdict]:
    """Yield a verdict for each table, as soon as it shows `min_version`, is held up, or the deadline has passed.

    Without `min_version`, it is the newest version that the Delta table has now. With a token, the daemon is asked to
    sync at once. `deadline_s` is on the monotonic clock. Raises ObjectStoreAway, StateStoreAway.
    """
    clock = SystemClock()
    with open_store(settings) as store:
        records = store.list_tables()
        waiting = {
            table.name: (table, min_version if min_version is not None else _find_newest(settings, table, records))
            for table in tables
        }
        if settings.health.token:
            for table in tables:
                # Without an answer, the daemon syncs at its next poll.
                ask_to_sync(settings.health, table.name)
        while waiting:
            is_late, records = clock.monotonic_s() >= deadline_s, store.list_tables()
            for table, wanted in list(waiting.values()):
                verdict = _judge(table.name, find_record(records, table), wanted, clock.now_ms(), is_late=is_late)
                if verdict:
                    del waiting[table.name]
                    yield verdict
            if waiting:
                time.sleep(POLL_INTERVAL_S)


def _find_newest(settings: Settings, table: TableSettings, records: Sequence[TableRecord]) -> int:
    """Find Delta's newest version. 0 if it is not there yet, or if only a listing would tell: any version will do."""
    log = DeltaLog(FileIOStorage(settings.file_properties(table.catalog)), table.source, SystemClock())
    record = find_record(records, table)
    return log.find_newest(record.synced_version if record else None) or 0


def _judge(name: str, record: TableRecord | None, wanted: int, now_ms: int, *, is_late: bool) -> Verdict | None:
    synced, error = (record.synced_version, record.error) if record else (None, None)
    if record and error and has_lost_log(record):
        return Verdict(FAILED, f"{name}: gone: {error.message}\n  {error.hint}")
    if synced is not None and synced >= wanted:
        return Verdict(SHOWN, f"{name}: shows version {synced}")
    shown = "shows nothing yet" if synced is None else f"shows version {synced}"
    if pause := record.pause_at(now_ms) if record else None:
        held = f"{paused_text(pause)}; `dvsync resume {name}` resumes it"
        return Verdict(FAILED, f"{name}: {shown}, not {wanted}; {held}")
    because = f": {error.kind}: {error.message}\n  {error.hint}" if error else ""
    if error and error.parked:
        return Verdict(FAILED, f"{name}: parked, and {shown}, not {wanted}{because}")
    return Verdict(TIMED_OUT, f"{name}: time is over: {shown}, not {wanted}{because}") if is_late else None
