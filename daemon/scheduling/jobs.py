"""What runs for one table beside its polls, in threads of its own: its maintenance and its verification."""

from __future__ import annotations

from threading import Event

import structlog

from daemon.clock import Clock
from daemon.errors import ProofFailed
from daemon.maintenance.maintainer import Maintainer, Round
from daemon.observe import log as events
from daemon.observe.tracing import Span
from daemon.scheduling.cycle import TableCycle
from daemon.scheduling.failures import described, warn_of
from daemon.status.board import Board
from daemon.status.wording import differences_text
from daemon.sync.context import TableContext, as_sync_errors
from daemon.verify.findings import Level, Scope, add_part, due_ms, hint_for, next_part
from daemon.verify.verifier import Verifier
from state import TableError

# How often a table is asked whether a part of it is due. A part that failed is tried again then.
CHECKS_A_PERIOD = 10
CHECK_INTERVAL_MAX_S = 600.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class MaintenanceJob:
    """A round at each interval, logged and counted. One that fails does not affect the syncs; the next tries again."""

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
                self.cycle.observer.recount()
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
                self.cycle.observer.recount()
            self._board.activity.count(self.name, maintenance_rounds=1, **amounts)


class VerifyJob:
    """A part of the table's files each time that one is due.

    What is found is recorded, logged and shown. By setting, it also parks the table; it never repairs one.
    """

    def __init__(self, cycle: TableCycle, context: TableContext) -> None:
        self.name = cycle.name
        self.settings = cycle.table.verify
        self.interval_s = min(self.settings.period_s / CHECKS_A_PERIOD, CHECK_INTERVAL_MAX_S)
        self.cycle = cycle
        self._context = context
        self._error: TableError | None = None

    def run(self, stop: Event) -> None:
        """Compare the next part, if one is due and the table is in order. Nothing is recorded once `stop` is set."""
        if self.settings.level == "off" or not self.cycle.is_followed:
            return
        with self.cycle.work("verify") as span:
            try:
                with as_sync_errors(self.name):
                    self._verify_next(stop, span)
            except Exception as error:
                if stop.is_set():
                    return  # The daemon ends, and with it Spark; or the table has other settings now.
                known = warn_of(events.VERIFY_FAILED, error, span)
                self._show_error(described(known, now_ms=self._context.clock.now_ms(), last=self._error))
                # If the Iceberg table is gone or not ours any more, the next poll says so.
                self.cycle.doubt()
            else:
                self._show_error(None)

    def _show_error(self, error: TableError | None) -> None:
        if error != self._error:
            self._error = error
            self.cycle.observer.show_verify_error(error)

    def _verify_next(self, stop: Event, span: Span) -> None:
        context, settings = self._context, self.settings
        record = context.find_record()
        if record is None or record.error is not None or record.resync_wanted:
            return
        last, now_ms = record.proof, context.clock.now_ms()
        files = last.files_total if last else context.store.count(record.id).live_data_files
        if now_ms < due_ms(last, settings, files, now_ms=now_ms):
            return
        part = next_part(last, settings, files, now_ms=now_ms)
        verifier = Verifier(context)
        proof = verifier.verify(Scope(Level(settings.level), part), stop)
        if proof is None or stop.is_set() or (not proof.is_right and verifier.is_outdated(proof)):
            return
        ended = add_part(last, proof, part, at_ms=now_ms)
        figures = {name: getattr(proof, name) for name in ("level", "version", "snapshot_id", "files")}
        span.report({**figures, "differences": sum(proof.findings.counts.values())})
        write = _log.info if proof.is_right else _log.error
        write(
            events.VERIFY_RIGHT if proof.is_right else events.VERIFY_WRONG,
            **figures,
            files_total=proof.files_total,
            covered=f"{ended.covered / 100:.0f} %",
            differences=dict(proof.findings.counts),
            first=[f"{each.fault}: {each.path}: {each.detail}" for each in proof.findings.named],
            duration_ms=round(1000 * sum(proof.seconds.values())),
            hint=None if proof.is_right else hint_for(self.name, proof.findings.counts),
        )
        if not proof.is_right:
            # A replaced log is one reason. The next poll finds and mends it, unless the table is parked below.
            self.cycle.doubt()
        after = context.find_record()
        # A person may have verified the table, or a resync have rewritten it.
        if after is None or after.resync_wanted or after.proof != last:
            return
        if not proof.is_right and settings.on_difference == "park":
            found = proof.findings
            failure = ProofFailed(
                f"the Iceberg table differs from the Delta table: {differences_text(found.counts)}",
                path=found.named[0].path,
                version=proof.version,
                hint=hint_for(self.name, found.counts),
            )
            # Before the proof, which is found again if this process ends here.
            context.store.record_failure(record.id, described(failure, now_ms=now_ms))
            self.cycle.fail(failure)
        context.store.record_proof(record.id, ended)
        self.cycle.show_proof(ended)


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
