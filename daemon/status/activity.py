"""What the syncs did since the process started, for `/metrics`: counts, and how long their steps took."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daemon.sync.outcomes import SyncResult

# Upper bounds of the histogram's buckets, seconds: from a commit on a local disk to a first sync.
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
COUNTED = ("snapshots", "data_files_added", "data_files_removed", "delete_files_added", "positions_added")


class Histogram:
    """Durations by bucket; the last one has no bound."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, durations up to it), as Prometheus has them."""
        bounds = (*map(str, BUCKETS_S), "+Inf")
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


class Activity:
    """Counters for all tables. Safe to use from any thread; a reader must hold `lock()`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._gone: set[str] = set()
        self.syncs: Counter[tuple[str, str]] = Counter()
        self.failures: Counter[tuple[str, str]] = Counter()
        self.amounts: dict[str, Counter[str]] = {name: Counter() for name in COUNTED}
        self.steps: dict[str, Histogram] = defaultdict(Histogram)

    def count_sync(self, table: str, result: SyncResult) -> None:
        with self._lock:
            if table in self._gone:
                return
            self.syncs[table, result.outcome] += 1
            for name, counter in self.amounts.items():
                counter[table] += getattr(result, name)

    def count_failure(self, table: str, kind: str) -> None:
        with self._lock:
            if table not in self._gone:
                self.failures[table, kind] += 1

    def expect(self, table: str) -> None:
        """The table is followed from now on."""
        with self._lock:
            self._gone.discard(table)

    def forget(self, table: str) -> None:
        """The table is no longer followed: its series end, and what its last cycle still counts is ignored."""
        with self._lock:
            self._gone.add(table)
            for counter in (self.syncs, self.failures):
                for labels in [labels for labels in counter if labels[0] == table]:
                    del counter[labels]
            for amounts in self.amounts.values():
                del amounts[table]

    def observe_step(self, step: str, seconds: float) -> None:
        with self._lock:
            self.steps[step].add(seconds)

    def lock(self) -> Lock:
        """Held while the numbers are read."""
        return self._lock
