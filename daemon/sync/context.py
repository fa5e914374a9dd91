"""The parts of one table that the main path uses: its source, target, state store and pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Protocol

from pyiceberg.table import Table

from daemon.clock import Clock
from daemon.config.settings import LimitsSettings, TableSettings
from daemon.config.share import ALL, Share
from daemon.delta.log import DeltaLog
from daemon.delta.table_state import TableState
from daemon.errors import ObjectMissing, ObjectStoreAway, SyncError
from daemon.iceberg.marker import SHARE, WRITER
from daemon.iceberg.target import Target
from daemon.mirror.reading import DataFileStorage
from daemon.mirror.substitution import MirroredState, Mirrors
from daemon.notices.notice import Notice, Run
from daemon.observe import tracing
from daemon.pipeline.runner import Runner
from daemon.store.storage import FileIOStorage
from daemon.sync.memory import as_sync_error
from state import StateUnavailable, TableRecord
from state.sql.store import StateStore

# If a sync holds the lock for longer than this, maintenance gives up until the next round.
COMMIT_WAIT_S = 30.0


@contextmanager
def as_sync_errors(table: str) -> Iterator[None]:
    """Raise errors of a table's stores as a `SyncError` that names the table."""
    try:
        yield
    except StateUnavailable as error:
        raise as_sync_error(error).located(table=table) from error
    except FileNotFoundError as error:
        raise ObjectMissing(
            f"a file of the Iceberg table is missing: {error}",
            table=table,
            hint="Restore the file, or expire the snapshots that need it (`dvsync expire`). If the newest snapshot "
            "needs it, `dvsync resync` writes a new snapshot from Delta's state.",
        ) from error
    except OSError as error:
        raise ObjectStoreAway(
            f"the store of the Iceberg table does not answer: {error}",
            table=table,
            hint="Check the store, its free space and the credentials. dvsync will try again.",
        ) from error
    except SyncError as error:
        raise error.located(table=table) from error.__cause__


class Progress(Protocol):
    """Receives the progress of a long step now and then, from any thread."""

    def advanced(self, done: int, total: int, what: str) -> None: ...


@dataclass(frozen=True)
class Writer:
    """Our name and share for other dvsyncs that write to the same Iceberg table; `signature` is in each commit."""

    name: str
    share: Share = ALL

    @property
    def signature(self) -> dict[str, str]:
        return {WRITER: self.name, SHARE: str(self.share)}


@dataclass(frozen=True)
class TableContext:
    """One table's parts. `properties` are PyIceberg FileIO properties that reach both sides of the table.

    Without a `writer`, other dvsyncs are ignored. A thread holds `committing` while it commits to the Iceberg table.
    `in_step` is set once this process has seen that the state store has all files that Iceberg shows.
    `in_work` has the intents on which this process still works without holding `committing`; `end_intents` skips them.
    `observe_step` gets a step's name and seconds, `notify` the table's notices, `publish` each commit of a version.
    """

    settings: TableSettings
    log: DeltaLog
    target: Target
    store: StateStore
    runner: Runner
    properties: Mapping[str, str]
    clock: Clock
    limits: LimitsSettings
    writer: Writer | None = None
    progress: Progress | None = None
    committing: Lock = field(default_factory=Lock)
    in_step: Event = field(default_factory=Event)
    in_work: set[int] = field(default_factory=set)
    observe_step: Callable[[str, float], None] = lambda _step, _seconds: None
    notify: Callable[[Notice], None] = lambda _notice: None
    publish: Callable[[Run], None] = lambda _run: None

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time and trace a step of a sync, whether it succeeds or not."""
        started_s = self.clock.monotonic_s()
        try:
            with tracing.step(name):
                yield
        finally:
            self.observe_step(name, self.clock.monotonic_s() - started_s)

    @contextmanager
    def hold_committing(self) -> Iterator[bool]:
        """Hold `committing` in the block; yields False if a sync holds it for too long."""
        is_held = self.committing.acquire(timeout=COMMIT_WAIT_S)
        try:
            yield is_held
        finally:
            if is_held:
                self.committing.release()

    @contextmanager
    def open_delta_state(self, version: int | None = None) -> Iterator[TableState]:
        """Open the Delta table's state at `version`, or the newest; see `Runner.open_state`."""
        with ExitStack() as opened:
            with tracing.step("state"):
                state = opened.enter_context(self.runner.open_state(self.log, version))
            yield state

    @contextmanager
    def open_state(self, version: int | None = None) -> Iterator[TableState]:
        """Open that state with the mirrors that Iceberg shows, as the state store knows them."""
        record = self.find_record()
        mirrors = self.store.list_live_mirrors(record.id) if record else ()
        with self.open_delta_state(version) as state:
            # Another table at this place may have files of the same names.
            is_same = record is not None and record.delta_table_id == state.metadata.id
            yield MirroredState.over(state, Mirrors.of(self.location, mirrors if is_same else ()))

    def data_files_of(self, table: Table) -> FileIOStorage:
        """Return a storage that reads the table's data files, be they Delta's or mirrors."""
        return DataFileStorage(self.storage, self.target_properties(table))

    @property
    def storage(self) -> FileIOStorage:  # of the Delta table's files
        return self.log.storage

    def target_properties(self, table: Table) -> dict[str, str]:
        """Return FileIO properties for the Iceberg table's files, with the catalog's properties for this table."""
        # Values that are not texts, such as a REST catalog's client, cannot be sent to Spark's workers.
        own = {key: value for key, value in table.io.properties.items() if isinstance(value, str)}
        return {**self.properties, **own}

    def load_table(self) -> Table:
        """Load the Iceberg table. Raises ObjectMissing before the first sync, and as `Target.find_table`."""
        table = self.target.find_table()
        if table is not None:
            return table
        name, target, record = self.settings.name, self.settings.target, self.find_record()
        what = f"the Iceberg table {target} does not exist yet"
        hint = f"The first sync makes it: `dvsync sync {name}`, or with --wait beside a daemon."
        if record and record.synced_version is not None:
            what = f"the Iceberg table {target} is gone from its catalog; it showed version {record.synced_version}"
            hint = f"`dvsync resync {name}` creates it again from Delta."
        elif record and record.error:
            hint = f"`dvsync status {name}` says why, and what to do."
        else:
            # A store that is away is another trouble than this one.
            with suppress(SyncError):
                if not self.log.is_there():
                    hint = f"There is no Delta table at {self.settings.source} yet; check the path, or wait for it."
        raise ObjectMissing(what, hint=hint)

    def find_record(self) -> TableRecord | None:
        """Return the table's row of the state store; None before its first sync. Raises StateUnavailable."""
        return self.store.find_table(self.settings.name, self.settings.source, self.settings.target)

    @property
    def location(self) -> str:  # of the Delta table
        return self.log.location
