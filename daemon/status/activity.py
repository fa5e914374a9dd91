"""What was done since the process started, for `/metrics`: counts, and how long the steps of syncs took."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram
from prometheus_client.core import Metric

if TYPE_CHECKING:
    from daemon.sync.outcomes import SyncResult

# Upper bounds of the histogram's buckets, seconds: from a commit on a local disk to a first sync.
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
# The fields of a SyncResult that are added up.
AMOUNTS = {
    "snapshots": "Iceberg snapshots that syncs committed.",
    "data_files_added": "Data files that syncs registered.",
    "data_files_removed": "Data files that syncs removed.",
    "delete_files_added": "Delete files that syncs wrote.",
    "positions_added": "Deleted positions that syncs wrote.",
}
# What else is added up: from the first moment of a table on, it has a series.
FROM_ZERO = {
    "accounts_checked": "Snapshots whose files, rows and deletions were compared with Delta's before the commit.",
    "account_mismatches": "Snapshots that did not add up and were not committed.",
    "maintenance_rounds": "Rounds of maintenance.",
    "maintenance_failures": "Rounds of maintenance that failed.",
    "compacted_delete_files": "Delete files that compaction replaced.",
    "expired_snapshots": "Iceberg snapshots that were expired.",
    "removed_files": "Files that cleanup removed.",
    "removed_bytes": "Bytes that cleanup removed, as far as known.",
}


class Activity:
    """Counters for all tables. Safe to use from any thread. A table that is forgotten has no series."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._gone: set[str] = set()
        self._syncs = Counter("dvsync_syncs", "Syncs that did something.", ["table", "outcome"], registry=None)
        self._failures = Counter("dvsync_sync_failures", "Syncs that failed.", ["table", "kind"], registry=None)
        self._events = Counter("dvsync_events", "Notices by event.", ["table", "event"], registry=None)
        self._amounts = {
            name: Counter(f"dvsync_{name}", text, ["table"], registry=None)
            for name, text in (AMOUNTS | FROM_ZERO).items()
        }
        self._steps = Histogram(
            "dvsync_step_seconds", "Duration of a sync's steps.", ["step"], buckets=BUCKETS_S, registry=None
        )

    def count_sync(self, table: str, result: SyncResult) -> None:
        self._count(self._syncs, table, result.outcome)
        self.count(table, **{name: getattr(result, name) for name in AMOUNTS})

    def count_failure(self, table: str, kind: str) -> None:
        self._count(self._failures, table, kind)

    def count_event(self, table: str, event: str) -> None:
        self._count(self._events, table, event)

    def count(self, table: str, **amounts: int) -> None:
        for name, amount in amounts.items():
            self._count(self._amounts[name], table, amount=amount)

    def _count(self, counter: Counter, *labels: str, amount: int = 1) -> None:
        with self._lock:
            if labels[0] not in self._gone:
                counter.labels(*labels).inc(amount)

    def observe_step(self, step: str, seconds: float) -> None:
        self._steps.labels(step).observe(seconds)

    def expect(self, table: str) -> None:
        with self._lock:
            self._gone.discard(table)
            for name in FROM_ZERO:
                self._amounts[name].labels(table)

    def forget(self, table: str) -> None:
        """The table is no longer followed: its series end, and what its last cycle still counts is ignored."""
        with self._lock:
            self._gone.add(table)
            for counter in (self._syncs, self._failures, self._events, *self._amounts.values()):
                counter.remove_by_labels({"table": table})

    def collect(self) -> Iterator[Metric]:
        for each in (self._syncs, self._failures, self._events, self._steps, *self._amounts.values()):
            yield from each.collect()
