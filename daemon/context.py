"""What the main path works with for one table: its source, its target, its memory and its pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from daemon.clock import Clock
from daemon.delta.log import DeltaLog
from daemon.iceberg.target import Target
from daemon.pipeline.progress import Progress
from daemon.pipeline.runner import Runner
from daemon.pipeline.session import SparkPipeline
from daemon.settings import LimitsSettings, TableSettings
from daemon.storage import FileIOStorage
from state import StateStore, TableRecord


def find_record(records: Iterable[TableRecord], table: TableSettings) -> TableRecord | None:
    """What is remembered of a table, without making a row for it as `StateStore.load_table` does."""
    key = (table.name, table.source, table.target)
    return next((record for record in records if (record.name, record.source, record.target) == key), None)


@dataclass(frozen=True)
class TableContext:
    """One table's parts. `properties` are PyIceberg FileIO properties that reach both sides of the table."""

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
    progress: Progress | None = None

    @property
    def location(self) -> str:
        """The Delta table's location."""
        return self.log.location
