"""The composition root: the one place that builds concrete things, and starts and stops them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event
from typing import TypeVar

import structlog

from daemon import log as events
from daemon.clock import Clock, SystemClock
from daemon.context import TableContext, find_record
from daemon.cycle import TableCycle, Verdict
from daemon.delta.log import DeltaLog
from daemon.doctor import Diagnosis, diagnose
from daemon.errors import ConfigInvalid, ObjectMissing, PipelineAway, StateStoreAway, SyncError, Unsupported
from daemon.iceberg.catalogs import Catalogs
from daemon.locations import normalize_location
from daemon.lock import hold_state
from daemon.maintenance import Maintainer
from daemon.notify import Notifier
from daemon.pipeline.installed import check_jars, check_pipeline
from daemon.pipeline.progress import Progress
from daemon.pipeline.session import SparkPipeline
from daemon.progress import LogProgress
from daemon.settings import SQLITE_FILE, Settings, TableSettings
from daemon.signals import StopSignals
from daemon.status import Board, Observation, TableStatus, table_status
from daemon.storage import FileIOStorage
from daemon.sync import Follower
from state import StateStore, StateUnavailable, TableRecord
from state.sql_store import SqlStateStore

# A cycle that has not come to a step by then is cut off, which is as safe as any kill.
STOP_GRACE_S = 8.0

T = TypeVar("T")

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Parts:
    """Everything concrete for one configuration."""

    settings: Settings
    store: StateStore
    storage: FileIOStorage
    spark: SparkPipeline
    catalogs: Catalogs
    clock: Clock

    def context(
        self, table: TableSettings, progress: Progress | None = None, board: Board | None = None
    ) -> TableContext:
        return TableContext.make(
            table,
            properties=self.settings.file_properties(table),
            open_catalog=lambda: self.catalogs.open(table.catalog),
            store=self.store,
            spark=self.spark,
            clock=self.clock,
            limits=self.settings.limits,
            progress=progress,
            **({"observe_step": board.activity.observe_step} if board else {}),
        )

    def cycle(self, context: TableContext, board: Board) -> TableCycle:
        """Raises StateUnavailable."""
        table = context.settings
        return TableCycle(
            table,
            Follower(context),
            store=self.store,
            board=board,
            clock=self.clock,
            random=Random(),
            commit_time_ms=lambda version: self.commit_time_ms(table, version),
        )

    def board(self) -> Board:
        return Board(self.settings.tables, self.clock, lag_budget_s=self.settings.health.lag_budget_s)

    def commit_time_ms(self, table: TableSettings, version: int) -> int | None:
        """When the store says that the commit file of `version` was written; None when there is none."""
        try:
            path = DeltaLog(self.storage, table.source, self.clock).commit_path(version)
            return self.storage.stat(path).modified_ms
        except ObjectMissing:
            return None


@contextmanager
def open_parts(settings: Settings) -> Iterator[Parts]:
    """Open the state store and build the rest; nothing is started. Raises StateStoreAway."""
    _make_local_folders(settings)
    clock = SystemClock()
    with _state_errors(), ExitStack() as opened:
        store = SqlStateStore.open(settings.state.url)
        opened.callback(store.close)
        spark = SparkPipeline(settings.spark, clock)
        opened.callback(spark.close)
        catalogs = Catalogs(settings.catalogs)
        opened.callback(catalogs.close)
        yield Parts(settings, store, FileIOStorage(settings.storage), spark, catalogs, clock)


@contextmanager
def _state_errors() -> Iterator[None]:
    try:
        yield
    except StateUnavailable as error:
        raise StateStoreAway(str(error), hint="Check state.url, and the database or the disk behind it.") from error


def _make_local_folders(settings: Settings) -> None:
    """SQLite makes the file of a catalog, but not its folder."""
    for properties in settings.catalogs.values():
        match = SQLITE_FILE.match(properties.get("uri", ""))
        if match:
            Path(match["path"]).parent.mkdir(parents=True, exist_ok=True)


# --- what the commands do ---


def run_daemon(settings: Settings, version: str) -> bool:
    """Follow every table until SIGTERM or SIGINT; a second signal ends the process at once.

    Returns False when a cycle was still at work after STOP_GRACE_S: the process must then be ended without more ado.
    Raises ConfigInvalid when the health address cannot be had, StateStoreAway.
    """
    # Starlette and APScheduler are this command's alone.
    from daemon.scheduler import Scheduler  # noqa: PLC0415
    from daemon.upkeep import TableUpkeep  # noqa: PLC0415
    from daemon.web.endpoints import make_app  # noqa: PLC0415
    from daemon.web.server import WebServer  # noqa: PLC0415

    with ExitStack() as opened:
        signals = opened.enter_context(StopSignals())
        opened.enter_context(hold_state(settings.state.sqlite_file))
        parts = opened.enter_context(open_parts(settings))
        board = parts.board()
        web = WebServer.start(settings.health, make_app(board, is_spark_up=lambda: parts.spark.is_running))
        opened.callback(web.stop)
        notifier = Notifier.from_environment()

        def beat() -> None:
            board.beat()
            notifier.beat(board.summary())

        contexts = [parts.context(table, LogProgress(parts.clock), board) for table in settings.tables]
        cycles = [parts.cycle(context, board) for context in contexts]
        scheduler = Scheduler(
            cycles,
            [
                TableUpkeep(cycle, Maintainer(context), board=board, clock=parts.clock, random=Random())
                for cycle, context in zip(cycles, contexts, strict=True)
            ],
            store=parts.store,
            beat=beat,
            clock=parts.clock,
            tables_at_once=settings.limits.tables_at_once,
            stop_if_idle=lambda: _stop_if_idle(parts.spark),
        )
        try:
            check_pipeline(settings.spark)
            check_jars(settings.spark)
        except PipelineAway as error:
            # Following goes on without Spark; first syncs and large changes will not.
            _log.warning(events.PIPELINE_MISSING, reason=error.message, hint=error.hint)
        scheduler.start()
        notifier.ready()
        _log.info(events.DAEMON_STARTED, version=version, tables=len(settings.tables), health=web.url, pid=os.getpid())
        received = signals.wait()
        notifier.stopping()
        _log.info(events.DAEMON_STOPPING, signal=received)
        finished = scheduler.stop(grace_s=STOP_GRACE_S)
        if not finished:
            # Closing the store and Spark under a running cycle would make it record an error that is none.
            opened.pop_all()
        _log.info(events.DAEMON_STOPPED, finished=finished)
        return finished


def _stop_if_idle(spark: SparkPipeline) -> None:
    if spark.stop_if_idle():
        _log.info(events.PIPELINE_IDLED)


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
        hold_state(settings.state.sqlite_file),
        open_parts(settings) as parts,
    ):
        board = parts.board()
        for table in tables:
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
                source_version = Follower(parts.context(table)).source_version()
                synced = record.synced_version if record else None
                behind_since_ms = None if synced is None else parts.commit_time_ms(table, synced + 1)
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
    properties = settings.file_properties(table)
    clock = SystemClock()
    if not DeltaLog(FileIOStorage(properties), table.source, clock).is_there():
        hint = f"Give the path of a Delta table, or one of the names {', '.join(known) or 'of a configuration'}."
        raise ObjectMissing("there is no Delta table", path=table.source, hint=hint)
    spark = SparkPipeline(settings.spark, clock)
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
        if alone:
            opened.enter_context(hold_state(settings.state.sqlite_file))
        parts = opened.enter_context(open_parts(settings))
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
