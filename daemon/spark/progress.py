"""Reports the progress of a long Spark job."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from daemon.delta.table_state import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_INTERVAL_S = 0.5


@contextmanager
def watched(spark: SparkSession, tasks: int, progress: Progress | None, what: str) -> Iterator[None]:
    """Report to `progress` how many tasks are done, while the block runs a job whose last stage has `tasks` tasks."""
    if progress is None:
        yield
        return
    finished = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def poll() -> None:
        while not finished.wait(POLL_INTERVAL_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            done = [stage.numCompletedTasks for stage in stages if stage and stage.numTasks == tasks]
            if done:
                progress.advanced(max(done), tasks, what)

    watcher = threading.Thread(target=poll, name="spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
        progress.advanced(tasks, tasks, what)
