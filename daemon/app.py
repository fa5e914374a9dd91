"""What the commands do, but for `dvsync run`, which is `service.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from threading import Event
from typing import TypeVar

import structlog

from daemon import log as events
from daemon.clock import SystemClock
from daemon.context import find_record
from daemon.cycle import Verdict
from daemon.delta.log import DeltaLog
from daemon.discovery import discover
from daemon.doctor import Diagnosis, diagnose
from daemon.errors import ConfigInvalid, ObjectMissing, ObjectStoreAway, SyncError, Unsupported
from daemon.lease import hold_lease
from daemon.locations import normalize_location
from daemon.maintenance import Maintainer
from daemon.parts import commit_time_ms, open_parts
from daemon.pipeline.hadoop import with_stores
from daemon.pipeline.progress import Progress
from daemon.pipeline.session import SparkPipeline
from daemon.settings import Settings, TableSettings
from daemon.signals import STOP_GRACE_S, StopSignals
from daemon.status import Observation, TableStatus, table_status
from daemon.storage import FileIOStorage
from daemon.sync import Follower
from state import StateStore, TableRecord

T = TypeVar("T")

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def sync_tables(
    settings: Settings, tables: Sequence[TableSettings], progress_of: Callable[[str], Progress], *, full: bool
) -> Iterator[tuple[TableSettings, Verdict]]:
    """Bring each of `tables` up to date, one after the other, and tell each cycle's verdict.

    `full` compares whole states instead of following the log. A table's error ends that table's turn only; after a
    signal the rest is left. Raises StateStoreAway.
    """
    stop = Event()
    # A cycle only ever looks at the event, so setting it inside a signal handler cannot block.
    with (
        StopSignals(stop.set, grace_s=STOP_GRACE_S),
        open_parts(settings) as parts,
        hold_lease(parts.lease_keeper(), stop),
    ):
        board = parts.board()
        for table in tables:
            board.add(table)
            cycle = parts.cycle(parts.context(table, progress_of(table.name)), board)
            if cycle.is_paused:
                yield table, Verdict(paused=True)
                continue
            more = True
            while more and not stop.is_set():
                verdict = cycle.sync(stop, full=full)
                yield table, verdict
                more = verdict.result is not None and verdict.result.more


def read_statuses(settings: Settings) -> list[TableStatus]:
    """Each table's status from the state store and a look at its source. Works beside a running daemon.

    A source that cannot be looked at leaves its fields null. Raises StateStoreAway.
    """
    with open_parts(settings) as parts:
        records = parts.store.list_tables()
        statuses = []
        for table in settings.tables:
            record = find_record(records, table)
            seen = Observation(record=record, counts=parts.store.count(record.id) if record else None)
            try:
                context = parts.context(table)
                source_version = Follower(context).source_version()
                synced = record.synced_version if record else None
                behind_since_ms = None if synced is None else commit_time_ms(context, synced + 1)
                seen = Observation(seen.record, seen.counts, source_version, behind_since_ms)
            except SyncError as error:
                _log.warning(events.SOURCE_UNSEEN, table=table.name, reason=str(error))
            statuses.append(table_status(table, seen, parts.clock.now_ms()))
        return statuses


def examine_table(settings: Settings, name_or_path: str) -> Diagnosis:
    """What following a table would be like: one of the configuration by its name, or any Delta table by path or URI.

    Raises ObjectMissing where there is no table, PipelineAway, ObjectStoreAway.
    """
    known = {table.name: table for table in settings.tables}
    table = known.get(name_or_path) or TableSettings(
        source=normalize_location(name_or_path),
        target="doctor.table",
        **settings.defaults.model_dump(exclude={"poll_interval_s"}),
    )
    properties = settings.file_properties(table.catalog)
    clock = SystemClock()
    if not DeltaLog(FileIOStorage(properties), table.source, clock).is_there():
        hint = f"Give the path of a Delta table, or one of the names {', '.join(known) or 'of a configuration'}."
        raise ObjectMissing("there is no Delta table", path=table.source, hint=hint)
    spark = SparkPipeline(with_stores(settings, table.source), clock)
    try:
        return diagnose(table, spark, properties)
    finally:
        spark.close()


def maintain_tables(
    settings: Settings, tables: Sequence[TableSettings], verb: Callable[[Maintainer, Event], T], *, alone: bool
) -> Iterator[tuple[TableSettings, T | SyncError]]:
    """Do one part of the maintenance of each of `tables`, one after the other, and tell what it did or why it failed.

    `alone` is for what commits: no daemon may work on the same state. After a signal the rest is left. Raises
    StateStoreAway.
    """
    stop = Event()
    with ExitStack() as opened:
        opened.enter_context(StopSignals(stop.set, grace_s=STOP_GRACE_S))
        parts = opened.enter_context(open_parts(settings))
        if alone:
            opened.enter_context(hold_lease(parts.lease_keeper(), stop))
        for table in tables:
            if stop.is_set():
                return
            record = find_record(parts.store.list_tables(), table)
            if alone and record is not None and record.paused:
                yield table, Unsupported("it is paused", hint=f"`dvsync resume {table.name}` lets it go on.")
                continue
            try:
                yield table, verb(Maintainer(parts.context(table)), stop)
            except SyncError as error:
                yield table, error


def resume_table(settings: Settings, table: TableSettings) -> bool:
    """Clear a table's error and parking, and take back its pause; a running daemon sees it within seconds.

    False when there was neither. Raises StateStoreAway.
    """
    with open_parts(settings) as parts:
        record = find_record(parts.store.list_tables(), table)
        if record is None or (record.error is None and not record.paused):
            return False
        parts.store.record_paused(record.id, False)
        parts.store.record_resumed(record.id)
        return True


def pause_table(settings: Settings, table: TableSettings) -> None:
    """Hold a table until it is resumed, over restarts, too; a running daemon sees it within seconds.

    Raises StateStoreAway, ConfigInvalid.
    """
    with open_parts(settings) as parts:
        parts.store.record_paused(_known_or_new(parts.store, table).id, True)


def want_resync(settings: Settings, table: TableSettings) -> None:
    """Have the next sync of a table compare whole states, parked or not; a running daemon begins within seconds.

    Raises StateStoreAway, ConfigInvalid.
    """
    with open_parts(settings) as parts:
        record = _known_or_new(parts.store, table)
        parts.store.record_resync_wanted(record.id, True)
        parts.store.record_resumed(record.id)


def _known_or_new(store: StateStore, table: TableSettings) -> TableRecord:
    """The table's row. Raises ConfigInvalid when its name stands for another source or target in the state database."""
    records = store.list_tables()
    other = next((record for record in records if record.name == table.name), None)
    if other and find_record(records, table) is None:
        raise ConfigInvalid(
            f"{table.name}: the state database knows it as {other.source} -> {other.target}",
            hint="Start dvsync with the changed configuration first, which forgets the old table, or change it back.",
        )
    return store.load_table(table.name, table.source, table.target)


def with_found_tables(settings: Settings) -> Settings:
    """The settings with what their patterns find now. A folder that is no table for a reason is told in the log.

    Raises ObjectStoreAway when a pattern's folder cannot be listed, StateStoreAway.
    """
    if not any(table.is_pattern for table in settings.tables):
        return settings
    with open_parts(settings) as parts:
        owners = {record.name: record.source for record in parts.store.list_tables()}
    found = discover(settings, SystemClock(), owners)
    for about, reason in found.troubles.items():
        if any(table.source == about for table in settings.tables):
            raise ObjectStoreAway(
                reason, hint="Check the folder and the store, or take the pattern out of the configuration."
            )
        _log.warning(events.PATTERN_REFUSED, source=about, reason=reason)
    return settings.model_copy(update={"tables": tuple(found.tables)})


def find_tables(settings: Settings, names: Sequence[str]) -> list[TableSettings]:
    """The tables of these names, all when there are none. Raises ConfigInvalid, naming every unknown one."""
    known = {table.name: table for table in settings.tables}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigInvalid(
            "\n".join(f"{name}: no such table" for name in unknown),
            hint=f"The configuration names {', '.join(known) or 'no tables'}.",
        )
    return [known[name] for name in names] if names else list(settings.tables)
