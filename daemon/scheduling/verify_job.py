"""One table's verification in the daemon: a part of its files each time that one is due.

What a verification finds is recorded, logged and shown. By setting, it also parks the table; it never repairs one.
"""

from __future__ import annotations

from threading import Event

import structlog

from daemon.errors import ProofFailed
from daemon.observe import log as events
from daemon.observe.tracing import Span
from daemon.scheduling.cycle import TableCycle
from daemon.scheduling.failures import described, warn_of
from daemon.status.wording import differences_text
from daemon.sync.context import TableContext, as_sync_errors
from daemon.verify.findings import Level, Proof, Scope, add_part, due_ms, hint_for, next_part
from daemon.verify.verifier import Verifier
from state import TableError

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# How often a table is asked whether a part of it is due. A part that failed is tried again then.
CHECKS_A_PERIOD = 10
CHECK_INTERVAL_MAX_S = 600.0


class VerifyJob:
    """Verifies the table of `cycle`, in a thread of its own."""

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
        failure = self._failure(proof)
        if failure:
            # Before the proof, which is found again if this process ends here.
            context.store.record_failure(record.id, described(failure, now_ms=now_ms))
            self.cycle.fail(failure)
        context.store.record_proof(record.id, ended)
        self.cycle.show_proof(ended)

    def _failure(self, proof: Proof) -> ProofFailed | None:
        if proof.is_right or self.settings.on_difference != "park":
            return None
        counts = proof.findings.counts
        message = f"the Iceberg table differs from the Delta table: {differences_text(counts)}"
        path, hint = proof.findings.named[0].path, hint_for(self.name, counts)
        return ProofFailed(message, path=path, version=proof.version, hint=hint)
