"""A table's last syncs, last day and worst files, in memory: what the status page and `/api/tables/{name}` show."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from threading import Lock

import msgspec
from msgspec.structs import replace

from state import Sample, SyncRun

RUNS_MAX = 50
SAMPLE_INTERVAL_S = 60.0
SAMPLES_MAX = round(86_400 / SAMPLE_INTERVAL_S)
# A coarser day for the page with all tables, which draws a small line for each of hundreds of tables.
OUTLINE_INTERVAL_MS = 1_800_000
OUTLINE_MAX = 86_400_000 // OUTLINE_INTERVAL_MS


class FileDeletions(msgspec.Struct, frozen=True):
    """A data file's physical rows, and how many of them are deleted.

    `strip` is the share of deleted rows, 0 to 1, in each of some equal parts of the file, in the order of rows. It is
    empty if the deletion vector is not known until the next comparison of states.
    """

    path: str
    rows: int
    deleted: int
    strip: tuple[float, ...]


class Timeline:
    """One table's timeline: a day of samples, RUNS_MAX runs, the worst files now. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._runs: deque[SyncRun] = deque(maxlen=RUNS_MAX)
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._outline: deque[Sample] = deque(maxlen=OUTLINE_MAX)
        self._worst_files: Sequence[FileDeletions] = ()

    def add_runs(self, runs: Iterable[SyncRun]) -> None:
        """The oldest first."""
        with self._lock:
            self._runs.extend(runs)

    def add_sample(self, sample: Sample) -> None:
        with self._lock:
            self._samples.append(sample)
            last = self._outline[-1] if self._outline else None
            if last is not None and last.at_ms // OUTLINE_INTERVAL_MS == sample.at_ms // OUTLINE_INTERVAL_MS:
                self._outline.pop()
                sample = replace(sample, lag_seconds=_worse(last.lag_seconds, sample.lag_seconds))
            self._outline.append(sample)

    def runs(self) -> list[SyncRun]:
        """The newest first."""
        with self._lock:
            return list(reversed(self._runs))

    def outline(self) -> list[Sample]:
        """The day in one sample for each half hour, the oldest first: its last sample, with its longest lag."""
        with self._lock:
            return list(self._outline)

    def show_worst_files(self, files: Sequence[FileDeletions]) -> None:
        """Show these in the place of earlier ones."""
        with self._lock:
            self._worst_files = files

    def worst_files(self) -> Sequence[FileDeletions]:
        """The data files with the largest share of deleted rows; empty before the first round of maintenance."""
        with self._lock:
            return self._worst_files

    def samples(self) -> list[Sample]:
        """The oldest first."""
        with self._lock:
            return list(self._samples)


def _worse(one: float | None, other: float | None) -> float | None:
    """The longer lag; an unknown one is ignored."""
    return max((lag for lag in (one, other) if lag is not None), default=None)
