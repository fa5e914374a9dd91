"""What the main path works with for one table: its source, its target, its memory and its pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Self

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from daemon.clock import Clock
from daemon.config.settings import LimitsSettings, TableSettings
from daemon.delta.log import DeltaLog
from daemon.delta.table_state import Progress, TableState
from daemon.errors import ObjectMissing, ObjectStoreAway, SyncError
from daemon.iceberg.target import Target
from daemon.pipeline.runner import Runner
from daemon.spark.session import SparkPipeline
from daemon.storage import FileIOStorage
from daemon.sync.memory import as_sync_error
from state import StateStore, StateUnavailable, TableRecord


@contextmanager
def told_as_sync_errors(table: str) -> Iterator[None]:
    """What a table's stores raise becomes a `SyncError` that names the table."""
    try:
        yield
    except StateUnavailable as error:
        raise as_sync_error(error).located(table=table) from error
    except FileNotFoundError as error:
        raise ObjectMissing(
            f"a file of the Iceberg table is not there: {error}",
            table=table,
            hint="Someone removed it: restore it, or expire the snapshots that need it (`dvsync expire`); if it is the "
            "newest one's, `dvsync resync` makes another from Delta's state.",
        ) from error
    except OSError as error:
        raise ObjectStoreAway(
            f"the store of the Iceberg table does not answer: {error}",
            table=table,
            hint="Check the store, its free space and the credentials; dvsync tries again.",
        ) from error
    except SyncError as error:
        raise error.located(table=table) from error.__cause__


@dataclass(frozen=True)
class Writer:
    """Who we are to other dvsyncs that follow into the same Iceberg table, and how long we give way to a silent one."""

    name: str
    lease_s: float


@dataclass(frozen=True)
class TableContext:
    """One table's parts. `properties` are PyIceberg FileIO properties that reach both sides of the table.

    Without a `writer` nobody is given way to.
    Who commits to the Iceberg table holds `committing`. `in_work` are the intents of this process that are not decided
    yet although nobody commits: `end_intents` leaves them alone. `observe_step` is told how many seconds a step took.
    """

    settings: TableSettings
    log: DeltaLog
    target: Target
    store: StateStore
    spark: SparkPipeline
    runner: Runner
    storage: FileIOStorage
    properties: Mapping[str, str]
    clock: Clock
    limits: LimitsSettings
    writer: Writer | None = None
    progress: Progress | None = None
    committing: Lock = field(default_factory=Lock)
    in_work: set[int] = field(default_factory=set)
    observe_step: Callable[[str, float], None] = lambda _step, _seconds: None

    @classmethod
    def make(
        cls,
        table: TableSettings,
        *,
        properties: Mapping[str, str],
        open_catalog: Callable[[], Catalog],
        store: StateStore,
        spark: SparkPipeline,
        clock: Clock,
        limits: LimitsSettings,
        writer: Writer | None = None,
        progress: Progress | None = None,
        observe_step: Callable[[str, float], None] = lambda _step, _seconds: None,
    ) -> Self:
        """The parts of one table around what all tables share."""
        storage = FileIOStorage(properties)
        return cls(
            settings=table,
            log=DeltaLog(storage, table.source, clock),
            target=Target(
                open_catalog,
                table.target,
                table.location,
                clock,
                writer=writer.name if writer else None,
                check_lease=store.check_lease,
            ),
            store=store,
            spark=spark,
            runner=Runner(spark, table.pipeline),
            storage=storage,
            properties=properties,
            clock=clock,
            limits=limits,
            writer=writer,
            progress=progress,
            observe_step=observe_step,
        )

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step of a sync, whether it succeeds or not."""
        started_s = self.clock.monotonic_s()
        try:
            yield
        finally:
            self.observe_step(name, self.clock.monotonic_s() - started_s)

    def open_state(self, version: int | None = None) -> AbstractContextManager[TableState]:
        """The state of the Delta table at `version`, or the newest; see `Runner.open_state`."""
        return self.runner.open_state(self.log, self.storage, version)

    def target_properties(self, table: Table) -> dict[str, str]:
        """FileIO properties for the Iceberg table's own files, with what its catalog gave for this table alone."""
        # Among them is a REST catalog's client, which is nothing for a file and cannot be sent to Spark's workers.
        own = {key: value for key, value in table.io.properties.items() if isinstance(value, str)}
        return {**self.properties, **own}

    def find_record(self) -> TableRecord | None:
        """What is remembered of the table; None before its first sync. Raises StateUnavailable."""
        return self.store.find_table(self.settings.name, self.settings.source, self.settings.target)

    @property
    def location(self) -> str:
        """The Delta table's location."""
        return self.log.location
