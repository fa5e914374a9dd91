"""One table's maintenance in the daemon: a round at each interval, logged and counted on the board.

A round that fails has no effect on the syncs; the next round tries again.
"""

from __future__ import annotations

from threading import Event

import structlog

from daemon.clock import Clock
from daemon.maintenance.maintainer import Maintainer, Round
from daemon.observe import log as events
from daemon.scheduling.cycle import TableCycle
from daemon.scheduling.failures import warn_of
from daemon.status.board import Board

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class MaintenanceJob:
    """Maintains the table of `cycle`, in a thread of its own."""

    def __init__(self, cycle: TableCycle, maintainer: Maintainer, *, board: Board, clock: Clock) -> None:
        self.name = cycle.name
        self.interval_s = cycle.table.maintenance.interval_s
        self.cycle = cycle
        self._maintainer = maintainer
        self._board = board
        self._clock = clock

    def run(self, stop: Event) -> None:
        """One round, unless the table was never synced or waits for a person."""
        self.cycle.snapshots_unmaintained = 0
        if not self.cycle.is_followed:
            return
        with self.cycle.work("maintenance") as span:
            started_s = self._clock.monotonic_s()
            try:
                done = self._maintainer.run(stop)
            except Exception as error:
                warn_of(events.MAINTENANCE_FAILED, error, span)
                self._board.activity.count(self.name, maintenance_rounds=1, maintenance_failures=1)
                return
            _log_round(done, round((self._clock.monotonic_s() - started_s) * 1000))
            amounts = {
                "compacted_delete_files": done.compaction.delete_files_before,
                "expired_snapshots": len(done.expiry.expired),
                "removed_files": len(done.cleanup.removed),
                "removed_bytes": done.cleanup.removed_bytes,
            }
            if any(amounts.values()):
                span.report({"rounds": 1, "failures": 0, **amounts})
            self._board.activity.count(self.name, maintenance_rounds=1, **amounts)
            self.cycle.observer.recount()


def _log_round(done: Round, duration_ms: int) -> None:
    """A line for each part that did something; a round without any has none."""
    compaction, expiry, cleanup = done.compaction, done.expiry, done.cleanup
    if compaction.data_files:
        _log.info(
            events.MAINTENANCE_COMPACTED,
            data_files=compaction.data_files,
            delete_files_before=compaction.delete_files_before,
            delete_files_after=compaction.delete_files_after,
            snapshots=compaction.snapshots,
            round_ms=duration_ms,
        )
    if expiry.expired or expiry.tags:
        write = _log.warning if expiry.unreadable or expiry.held else _log.info
        write(
            events.MAINTENANCE_EXPIRED,
            snapshots=len(expiry.expired),
            tags=list(expiry.tags),
            unreadable=list(expiry.unreadable),
            unreadable_but_kept=[f"{why}: {snapshot_id}" for snapshot_id, why in expiry.held],
            round_ms=duration_ms,
        )
    if cleanup.removed or cleanup.failed:
        write = _log.warning if cleanup.failed else _log.info
        write(
            events.MAINTENANCE_CLEANED,
            files=len(cleanup.removed),
            size_bytes=cleanup.removed_bytes,
            failed=len(cleanup.failed),
            first_failure=next(iter(cleanup.failed), None),
            round_ms=duration_ms,
        )
