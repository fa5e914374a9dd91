"""Another dvsync that commits to the same Iceberg table: this one gives way while the other keeps the table in step."""

from __future__ import annotations

from contextlib import suppress

import structlog
from pyiceberg.table import Table

from daemon.config.share import ALL
from daemon.errors import CommitIncomplete, CorruptInput, TargetHeld, Unsupported
from daemon.iceberg.marker import find_own, marker_at
from daemon.observe import log as events
from daemon.sync.context import TableContext
from daemon.sync.patience import forget_seen, seconds_seen
from daemon.sync.recovery import check_source
from state import TableRecord

# Who is silent for so long is presumed dead: the holder of a lease, and another dvsync behind a new Delta version.
LEASE_S = 30.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class OtherWriter:
    """What is known of another dvsync that commits to the table of `context`, which we follow since `_since_ms`."""

    def __init__(self, context: TableContext) -> None:
        self._context, self._since_ms = context, context.clock.now_ms()
        # The other dvsync's table is up to date to this version: the commits after its marker change nothing.
        self._version = -1
        # The table id in the other dvsync's marker, after a check that it is our source.
        self._table_id: str | None = None

    def give_way(self, record: TableRecord, table: Table) -> None:
        """Raise `TargetChanged` if the table shows another source, `TargetHeld` while another dvsync keeps it in step.

        Its newest snapshot of a dvsync says so, also if other programs have committed since.

        If Delta has new versions for a whole lease and the other dvsync shows none, it is presumed dead. If it comes
        back, its commit fails, because the commit needs the snapshot that it knew. Then it gives way itself. One that
        served another share, and last committed before we began, has left the table to us. Of two that still run, the
        one that began later takes over.
        """
        writer, own = self._context.writer, find_own(table)
        marker, current = marker_at(table, own), own.snapshot_id if own else None
        if marker is None or current == record.snapshot_id:
            return
        if any(intent.id == current for intent, _ in self._context.store.find_open_intents(record.id)):
            return
        if marker.delta_table_id not in (record.delta_table_id, self._table_id):
            check_source(self._context, table, marker)
            self._table_id = marker.delta_table_id
        if writer is None or marker.writer in (None, writer.name):
            return
        # An older dvsync names no share: it followed all tables.
        if (marker.share or str(ALL)) != str(writer.share) and table.metadata.last_updated_ms < self._since_ms:
            _log.info(events.TARGET_MOVED, holder=marker.writer, share=marker.share)
            return
        silence, silent_s = f"silent after {table.metadata_location}", 0.0
        if self._is_behind(marker.version):
            silent_s = seconds_seen(self._context, record, silence)
        else:
            forget_seen(self._context, record, silence)
        if silent_s >= LEASE_S:
            _log.warning(events.TARGET_TAKEN_OVER, holder=marker.writer, silent_s=round(silent_s))
            return
        raise TargetHeld(
            f"the dvsync with the state {marker.writer} keeps the Iceberg table in step (at version {marker.version})",
            hint=f"If that dvsync runs, stop one of the two. This process takes over {LEASE_S:g} s after a new "
            "Delta version that the other does not sync. If it no longer exists, perhaps because state.url changed, "
            f"run `dvsync resync {self._context.settings.name}`, which takes over without the wait.",
        )

    def _is_behind(self, version: int) -> bool:
        """Return whether a commit after `version` changes the Iceberg table. Other commits are never shown there."""
        log = self._context.log
        version = max(version, self._version)
        while log.has_version(version + 1):
            with suppress(CommitIncomplete, CorruptInput, Unsupported):
                commit = log.read_commit(version + 1, bytes_max=self._context.limits.commit_bytes_max)
                if not (any(commit.file_actions) or commit.metadata or commit.protocol):
                    version = self._version = version + 1
                    continue
            return True
        return False
