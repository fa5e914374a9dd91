"""A table's last syncs and its last day, in memory: what the status page and `/api/tables/{name}` show."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from threading import Lock

import msgspec

from state import SyncRun

RUNS_MAX = 50
SAMPLE_INTERVAL_S = 60.0
SAMPLES_MAX = round(86_400 / SAMPLE_INTERVAL_S)


class Sample(msgspec.Struct, frozen=True):
    """A table at a moment, epoch milliseconds, UTC; what was not known is null."""

    at_ms: int
    lag_seconds: float | None
    deleted_positions: int | None


class Timeline:
    """One table's. Safe to use from any thread; it forgets what is older than a day or beyond RUNS_MAX runs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._runs: deque[SyncRun] = deque(maxlen=RUNS_MAX)
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def add_runs(self, runs: Iterable[SyncRun]) -> None:
        """The oldest first."""
        with self._lock:
            self._runs.extend(runs)

    def add_sample(self, sample: Sample) -> None:
        with self._lock:
            self._samples.append(sample)

    def runs(self) -> list[SyncRun]:
        """The newest first."""
        with self._lock:
            return list(reversed(self._runs))

    def samples(self) -> list[Sample]:
        """The oldest first."""
        with self._lock:
            return list(self._samples)
