"""A table's last syncs and last day, in memory: what the status page and `/api/tables/{name}` show.

Of the day, the state store keeps a coarser one for the next process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from threading import Lock

from msgspec.structs import replace

from state import Sample, SyncRun

RUNS_MAX = 50
SAMPLE_INTERVAL_S = 60.0
DAY_MS = 86_400_000
SAMPLES_MAX = round(DAY_MS / 1000 / SAMPLE_INTERVAL_S)
# While nothing changes, a sample in so long is enough for a line without gaps: most of hundreds of tables are idle.
UNCHANGED_INTERVAL_MS = 600_000
# A coarser day for the page with all tables, which draws a small line for each of hundreds of tables.
OUTLINE_INTERVAL_MS = 1_800_000
OUTLINE_MAX = DAY_MS // OUTLINE_INTERVAL_MS + 1


class Timeline:
    """One table's timeline: a day of samples and RUNS_MAX runs. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._runs: deque[SyncRun] = deque(maxlen=RUNS_MAX)
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._outline: deque[Sample] = deque(maxlen=OUTLINE_MAX)
        self._unrecorded: Sample | None = None

    def add_runs(self, runs: Iterable[SyncRun]) -> None:
        """The oldest first."""
        with self._lock:
            self._runs.extend(runs)

    def restore(self, samples: Iterable[Sample]) -> None:
        """Show what an earlier process sampled, the oldest first. To be called before the first `add_sample`."""
        with self._lock:
            for sample in samples:
                self._add(sample)

    def add_sample(self, sample: Sample) -> None:
        with self._lock:
            self._add(sample)
            self._unrecorded = _merge(self._unrecorded, sample)

    def take_unrecorded(self) -> Sample | None:
        """One sample for all that were added since the last call: the last of them, with their longest lag."""
        with self._lock:
            taken, self._unrecorded = self._unrecorded, None
            return taken

    def _add(self, sample: Sample) -> None:
        last = self._outline[-1] if self._outline else None
        if last is not None and last.at_ms // OUTLINE_INTERVAL_MS == sample.at_ms // OUTLINE_INTERVAL_MS:
            self._outline.pop()
        else:
            last = None
        if len(self._samples) > 1 and _is_between_equals(self._samples[-2], self._samples[-1], sample):
            self._samples.pop()
        for kept, newest in ((self._samples, sample), (self._outline, _merge(last, sample))):
            while kept and kept[0].at_ms <= sample.at_ms - DAY_MS:
                kept.popleft()
            # From a clock that was ahead.
            while kept and kept[-1].at_ms >= sample.at_ms:
                kept.pop()
            kept.append(newest)

    def runs(self) -> list[SyncRun]:
        """The newest first."""
        with self._lock:
            return list(reversed(self._runs))

    def outline(self) -> list[Sample]:
        """The day in one sample for each half hour, the oldest first: its last sample, with its longest lag."""
        with self._lock:
            return list(self._outline)

    def samples(self) -> list[Sample]:
        """The oldest first."""
        with self._lock:
            return list(self._samples)


def _is_between_equals(earlier: Sample, middle: Sample, later: Sample) -> bool:
    """Return whether a line from the earlier sample to the later one shows the same without the middle one."""
    is_close = later.at_ms - earlier.at_ms <= UNCHANGED_INTERVAL_MS
    return is_close and replace(earlier, at_ms=later.at_ms) == replace(middle, at_ms=later.at_ms) == later


def _merge(earlier: Sample | None, later: Sample) -> Sample:
    """The later sample, with the longer lag of the two; an unknown lag is ignored."""
    lags = [each.lag_seconds for each in (earlier, later) if each and each.lag_seconds is not None]
    return replace(later, lag_seconds=max(lags, default=None))
