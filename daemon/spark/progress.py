"""How far a long Spark job has come, for whoever wants to be told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_INTERVAL_S = 0.5


class Progress(Protocol):
    """Told now and then, from another thread, how far a long step has come."""

    def advanced(self, done: int, total: int, what: str) -> None: ...


@contextmanager
def watched(spark: SparkSession, tasks: int, progress: Progress | None, what: str) -> Iterator[None]:
    """While the block runs a job whose last stage has `tasks` tasks, tell `progress` how many are done."""
    if progress is None:
        yield
        return
    finished = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def look() -> None:
        while not finished.wait(LOOK_INTERVAL_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            done = [stage.numCompletedTasks for stage in stages if stage and stage.numTasks == tasks]
            if done:
                progress.advanced(max(done), tasks, what)

    watcher = threading.Thread(target=look, name="spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
        progress.advanced(tasks, tasks, what)
