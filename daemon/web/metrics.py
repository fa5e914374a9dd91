"""The board for Prometheus: what `/metrics` answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from daemon.notices.outbox import Hook
from daemon.status.board import Board
from daemon.status.table_status import SyncState, TableStatus, WrittenStatus
from state import MirrorCount

Value = float | None


def _unix_time(iso: str | None) -> float | None:
    return datetime.fromisoformat(iso).timestamp() if iso else None


# Name -> help text, and where the value comes from. An unknown value has no series.
GAUGES: dict[str, tuple[str, Callable[[TableStatus], Value]]] = {
    "dvsync_lag_versions": ("Delta versions that Iceberg does not show yet.", lambda table: table.lag_versions),
    "dvsync_lag_seconds": ("Age of the oldest Delta version not shown yet.", lambda table: table.lag_seconds),
    "dvsync_synced_version": ("Newest Delta version that Iceberg shows.", lambda table: table.synced_version),
    "dvsync_last_synced_timestamp_seconds": (
        "When a sync last changed what Iceberg shows, Unix time.",
        lambda table: _unix_time(table.last_synced_at),
    ),
    "dvsync_live_data_files": ("Data files that are live in Iceberg.", lambda table: table.live_data_files),
    "dvsync_live_rows": ("Physical rows minus deleted ones.", lambda table: table.live_rows),
    "dvsync_live_delete_files": ("Delete files that are live in Iceberg.", lambda table: table.live_delete_files),
    "dvsync_deleted_positions": ("Positions that live delete files hold.", lambda table: table.deleted_positions),
    "dvsync_proof_timestamp_seconds": (
        "When data files of the table were last compared with Delta's, Unix time.",
        lambda table: _unix_time(table.proof.at) if table.proof else None,
    ),
    "dvsync_proof_complete_timestamp_seconds": (
        "When all data files had last been compared, Unix time.",
        lambda table: _unix_time(table.proof.complete_at) if table.proof else None,
    ),
    "dvsync_proof_coverage": (
        "Share of the data files that the current pass has compared.",
        lambda table: table.proof.coverage if table.proof else None,
    ),
    "dvsync_proof_differences": (
        "Differences that verification found.",
        lambda table: sum(table.proof.differences.values()) if table.proof else None,
    ),
    "dvsync_orphans_waiting": ("Files that dvsync wrote and nothing references.", lambda table: table.orphans_waiting),
}
WRITTEN: dict[str, tuple[str, Callable[[WrittenStatus], Value]]] = {
    "dvsync_written_files": ("Files that dvsync wrote, by kind and status.", lambda each: each.files),
    "dvsync_written_bytes": ("Their bytes, as far as known.", lambda each: each.size_bytes),
    "dvsync_written_oldest_seconds": ("How long the oldest has its status.", lambda each: each.oldest_seconds),
}

MIRRORS: dict[str, tuple[str, Callable[[MirrorCount], int]]] = {
    "dvsync_mirrors": ("Data files of which Iceberg shows a mirror, by kind.", lambda each: each.files),
    "dvsync_mirror_bytes": ("Bytes of these mirrors.", lambda each: each.size_bytes),
}


@dataclass(frozen=True)
class BoardCollector(Collector):
    """Reads the board and the outbox when Prometheus asks. It does no I/O."""

    board: Board
    is_spark_up: Callable[[], bool]
    find_hooks: Callable[[], Sequence[Hook]]

    def collect(self) -> Iterator[Metric]:
        board, statuses = self.board, self.board.statuses()
        for name, (text, read) in GAUGES.items():
            yield _gauge(name, text, ["table"], (([table.name], read(table)) for table in statuses))
        states = (([table.name, state], float(table.state is state)) for table in statuses for state in SyncState)
        yield _gauge("dvsync_table_state", "1 for the state that a table is in.", ["table", "state"], states)
        written = [(table.name, each) for table in statuses for each in table.written_files or ()]
        for name, (text, read_written) in WRITTEN.items():
            samples = (([table, each.kind, each.status], read_written(each)) for table, each in written)
            yield _gauge(name, text, ["table", "kind", "status"], samples)
        for name, (text, read_mirror) in MIRRORS.items():
            sums: dict[tuple[str, str], float] = {}
            for table in statuses:
                for count in table.mirrors or ():
                    of = table.name, count.kind
                    sums[of] = sums.get(of, 0.0) + read_mirror(count)
            yield _gauge(name, text, ["table", "kind"], ((list(of), value) for of, value in sums.items()))
        yield from board.activity.collect()
        is_standing_by = board.why_standing_by is not None
        for name, text, value in (
            ("dvsync_spark_session_up", "1 while there is a Spark session.", self.is_spark_up()),
            ("dvsync_standing_by", "1 while this process waits for the lease and follows nothing.", is_standing_by),
            ("dvsync_unready_reasons", "Reasons that /readyz gives.", len(board.find_unready())),
        ):
            yield _gauge(name, text, [], [([], float(value))])
        text = "The share of the tables that this daemon follows."
        yield _gauge("dvsync_share", text, ["share"], [([str(board.share)], 1.0)])
        hooks = self.find_hooks()
        outcomes = CounterMetricFamily("dvsync_notices", "Notices by outcome.", labels=["hook", "outcome"])
        for hook in hooks:
            outcomes.add_metric([hook.name, "sent"], hook.sent)
            outcomes.add_metric([hook.name, "dropped"], hook.dropped)
        yield outcomes
        waiting = (([hook.name], hook.waiting) for hook in hooks)
        yield _gauge("dvsync_notices_waiting", "Notices that wait to be sent.", ["hook"], waiting)


def _gauge(name: str, text: str, labels: list[str], samples: Iterable[tuple[list[str], Value]]) -> Metric:
    gauge = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            gauge.add_metric(values, value)
    return gauge


def make_registry(
    board: Board, is_spark_up: Callable[[], bool] = lambda: False, find_hooks: Callable[[], Sequence[Hook]] = lambda: []
) -> CollectorRegistry:
    """What collects the current metrics, for `/metrics` and for telemetry."""
    # When a counter began is of no use here, and would double the number of series.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    registry.register(BoardCollector(board, is_spark_up, find_hooks))
    # CPU, memory and open files of this process, from /proc; Spark's JVM is another.
    ProcessCollector(registry=registry)
    return registry
