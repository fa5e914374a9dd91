"""Resident memory of this process, and of the JVM and Spark's Python workers that it has started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import psutil

SAMPLE_INTERVAL_S = 0.1


class Memory:
    """The most bytes in the samples of a thread. `children_peak` is of the JVM and the workers together."""

    def __init__(self) -> None:
        self.own_peak = self.jvm_peak = self.workers_peak = self.children_peak = 0
        self._me = psutil.Process()

    @contextmanager
    def watched(self) -> Iterator[None]:
        finished = Event()

        def look() -> None:
            while not finished.wait(SAMPLE_INTERVAL_S):
                self._sample()

        watcher = Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            finished.set()
            watcher.join()

    def _sample(self) -> None:
        jvm = workers = 0
        for process in self._me.children(recursive=True):
            try:
                name, size = process.name(), process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            jvm, workers = (jvm + size, workers) if name == "java" else (jvm, workers + size)
        self.own_peak = max(self.own_peak, self._me.memory_info().rss)
        self.jvm_peak, self.workers_peak = max(self.jvm_peak, jvm), max(self.workers_peak, workers)
        self.children_peak = max(self.children_peak, jvm + workers)
