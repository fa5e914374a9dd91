"""One table's maintenance: compact, expire, clean up, in this order, so that each leaves something for the next."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event

from daemon.cleanup import Cleanup, clean_up, has_due_orphans
from daemon.compaction import Compaction, compact
from daemon.context import TableContext, find_record, told_as_sync_errors
from daemon.expiry import Expirer, Expiry


@dataclass(frozen=True)
class Round:
    """What one round did; a part that is turned off did nothing."""

    compaction: Compaction
    expiry: Expiry
    cleanup: Cleanup


class Maintainer:
    """Maintains one Iceberg table beside its follower, with which it shares the context. All verbs raise SyncError."""

    def __init__(self, context: TableContext) -> None:
        self._context = context
        self._expirer = Expirer(context)
        # The metadata file for which the last round left nothing to do but to wait.
        self._settled: str | None = None

    def run(self, stop: Event) -> Round:
        """One round of what the configuration turns on. A table that is left alone costs next to nothing."""
        settings, seen = self._context.settings.maintenance, self._metadata_location()
        compaction, expiry, cleanup = Compaction(), Expiry(), Cleanup()
        if settings.compact and seen != self._settled:
            compaction = self.compact(stop)
        if settings.expire and not stop.is_set():
            expiry = self.expire()
        is_news = seen != self._settled or bool(expiry.expired)
        if settings.cleanup and not stop.is_set() and (is_news or self._has_due_orphans()):
            cleanup = self.clean_up(stop)
        if not stop.is_set() and self._metadata_location() == seen:
            self._settled = seen
        return Round(compaction, expiry, cleanup)

    def _metadata_location(self) -> str | None:
        with told_as_sync_errors(self._context.settings.name):
            record = find_record(self._context.store.list_tables(), self._context.settings)
            return record.metadata_location if record else None

    def _has_due_orphans(self) -> bool:
        with told_as_sync_errors(self._context.settings.name):
            return has_due_orphans(self._context)

    def compact(self, stop: Event, *, dry_run: bool = False) -> Compaction:
        with told_as_sync_errors(self._context.settings.name):
            return compact(self._context, stop, dry_run=dry_run)

    def expire(self, *, dry_run: bool = False) -> Expiry:
        with told_as_sync_errors(self._context.settings.name):
            return self._expirer.expire(dry_run=dry_run)

    def clean_up(
        self, stop: Event, *, dry_run: bool = False, scan: bool = False, remove_found: bool = False
    ) -> Cleanup:
        with told_as_sync_errors(self._context.settings.name):
            return clean_up(self._context, stop, dry_run=dry_run, scan=scan, remove_found=remove_found)
