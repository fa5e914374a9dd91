"""The composition root: the one place that builds concrete things for a configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Self

from daemon.clock import Clock, SystemClock
from daemon.config.settings import LimitsSettings, NoticeKind, Settings, TableSettings
from daemon.delta.log import DeltaLog
from daemon.iceberg.catalogs import Catalogs
from daemon.iceberg.target import Target
from daemon.notices.notice import Notice, Run, events_of
from daemon.notices.outbox import Outbox
from daemon.observe.tracing import Tracer
from daemon.pipeline.runner import Runner
from daemon.scheduling.cycle import TableCycle
from daemon.scheduling.observer import Observer
from daemon.service.lease import LeaseKeeper
from daemon.sources.finder import open_storage
from daemon.spark.hadoop import with_stores
from daemon.spark.jars import with_readers
from daemon.spark.session import SparkPipeline
from daemon.status.board import Board
from daemon.store.storage import FileIOStorage
from daemon.sync import other_writer
from daemon.sync.context import Progress, TableContext, Writer
from daemon.sync.follower import Follower
from daemon.sync.memory import open_store
from daemon.telemetry import open_telemetry
from state.sql.store import StateStore

if TYPE_CHECKING:
    from daemon.telemetry.telemetry import Telemetry

# At its end, a process waits this long for notices that no hook has tried yet, and for telemetry.
NOTICES_END_MAX_S = 1.0


@dataclass(frozen=True)
class Shared:
    """What all tables share."""

    store: StateStore
    spark: SparkPipeline
    catalogs: Catalogs
    clock: Clock
    limits: LimitsSettings


def make_context(
    table: TableSettings,
    shared: Shared,
    properties: Mapping[str, str],
    storage: FileIOStorage,
    *,
    writer: Writer | None = None,
    progress: Progress | None = None,
) -> TableContext:
    """Build the parts of one table, whose files are in `storage`."""
    store, clock = shared.store, shared.clock
    return TableContext(
        settings=table,
        log=DeltaLog(storage, table.source, clock),
        target=Target(
            table.catalog,
            lambda: shared.catalogs.open(table.catalog),
            table.target,
            table.location,
            clock,
            signature=writer.signature if writer else {},
            check_lease=store.check_lease,
            version_hint=table.version_hint,
        ),
        store=store,
        runner=Runner(shared.spark, table.engine),
        properties=properties,
        clock=clock,
        limits=shared.limits,
        writer=writer,
        progress=progress,
    )


@dataclass(frozen=True)
class Parts:
    """Everything concrete for one configuration."""

    settings: Settings
    store: StateStore
    spark: SparkPipeline
    catalogs: Catalogs
    clock: Clock
    outbox: Outbox
    telemetry: Telemetry | None = None

    def context(
        self, table: TableSettings, progress: Progress | None = None, board: Board | None = None
    ) -> TableContext:
        """The parts of `table`. With a `board`, steps and notices are counted there, and hooks are notified."""
        properties = self.settings.file_properties(table.catalog)
        context = make_context(
            table,
            Shared(self.store, self.spark, self.catalogs, self.clock, self.settings.limits),
            properties,
            open_storage(self.settings, table, properties, self.clock),
            writer=Writer(self.settings.state.place, self.settings.share),
            progress=progress,
        )
        if board is None:
            return context
        return replace(
            context, observe_step=board.activity.observe_step, notify=self.notifier(board), publish=self.publish
        )

    def notifier(self, board: Board) -> Callable[[Notice], None]:
        """What counts notices on the board and sends them to the hooks."""

        def notify(notice: Notice) -> None:
            board.activity.count_event(notice.table, notice.event)
            self.outbox.put(notice)
            if notice.event is NoticeKind.PARKED:
                now_ms, metadata = self.clock.now_ms(), notice.metadata_location
                parking = Run(
                    table=notice.table,
                    source=notice.source,
                    target=notice.target,
                    started_ms=now_ms,
                    ended_ms=now_ms,
                    snapshot_id=notice.snapshot_id,
                    location=metadata and metadata.rpartition("/metadata/")[0],
                    error=notice.text,
                )
                self.publish(parking)

        return notify

    def publish(self, run: Run) -> None:
        """Send the OpenLineage events of a run to the hooks that want them."""
        for event in events_of(run):
            self.outbox.put(event)

    def cycle(self, context: TableContext, board: Board) -> TableCycle:
        """Raises StateUnavailable."""
        store, clock = self.store, self.clock
        observer = Observer(context.settings, context.log, store=store, board=board, clock=clock)
        tracer = Tracer(clock, self.telemetry.send if self.telemetry else None)
        return TableCycle(Follower(context), observer, store=store, clock=clock, random=Random(), tracer=tracer)

    def with_settings(self, settings: Settings) -> Self:
        """The same store, Spark and clock for a changed configuration."""
        self.catalogs.change(_catalog_properties(settings))
        self.outbox.change(settings)
        return replace(self, settings=settings)

    def board(self) -> Board:
        """An empty one."""
        return Board(self.clock, lag_budget_s=self.settings.health.lag_budget_s, share=self.settings.share)

    def lease_keeper(self, address: str | None = None) -> LeaseKeeper:
        """`address` is where this process answers."""
        state = self.settings.state
        return LeaseKeeper(
            self.store, self.clock, sqlite_file=state.sqlite_file, lease_s=other_writer.LEASE_S, address=address
        )


@contextmanager
def open_parts(settings: Settings, *, with_telemetry: bool = False) -> Iterator[Parts]:
    """Open the state store and build the rest; nothing is started but telemetry. Raises ConfigInvalid, StateStoreAway.

    Only work that is traced needs telemetry, whose packages take their time and memory.
    """
    clock = SystemClock()
    with open_store(settings) as store, ExitStack() as opened:
        spark = SparkPipeline(with_stores(with_readers(settings)), clock)
        opened.callback(spark.close)
        catalogs = Catalogs(_catalog_properties(settings), partial(_count_synced, store))
        opened.callback(catalogs.close)
        outbox = Outbox(settings, clock)
        telemetry = open_telemetry(clock, place=settings.state.place) if with_telemetry else None
        opened.callback(_close, outbox, telemetry, clock)
        yield Parts(settings, store, spark, catalogs, clock, outbox, telemetry)


def _close(outbox: Outbox, telemetry: Telemetry | None, clock: Clock) -> None:
    """Send what waits, both at the same time, for at most NOTICES_END_MAX_S."""
    end_s = clock.monotonic_s() + NOTICES_END_MAX_S
    if telemetry:
        telemetry.begin_to_close()
    outbox.close(NOTICES_END_MAX_S)
    if telemetry:
        telemetry.end(max(0.0, end_s - clock.monotonic_s()))


def _count_synced(store: StateStore, catalogs: Collection[str]) -> int:
    """How many tables were synced into these catalogs, or into one that an older dvsync did not record."""
    synced = (record for record in store.list_tables() if record.metadata_location is not None)
    return sum(record.catalog is None or record.catalog in catalogs for record in synced)


def _catalog_properties(settings: Settings) -> dict[str, dict[str, str]]:
    return {name: settings.file_properties(name) for name in settings.catalogs}
