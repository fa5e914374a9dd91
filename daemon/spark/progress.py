"""Reports the progress of a long Spark job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_INTERVAL_S = 0.5


@contextmanager
def watched(spark: SparkSession, tasks: int, on_progress: Callable[[int, int], None] | None) -> Iterator[None]:
    """Call `on_progress` with the number of finished tasks while the block runs; the last stage has `tasks` tasks."""
    if on_progress is None:
        yield
        return
    finished = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def poll() -> None:
        while not finished.wait(POLL_INTERVAL_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            done = [stage.numCompletedTasks for stage in stages if stage and stage.numTasks == tasks]
            if done:
                on_progress(max(done), tasks)

    watcher = threading.Thread(target=poll, name="spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
        on_progress(tasks, tasks)
