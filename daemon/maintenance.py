"""One table's maintenance: compact, expire, clean up, in this order, so that each leaves something for the next."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event

from daemon.cleanup import Cleanup, clean_up
from daemon.compaction import Compaction, compact
from daemon.context import TableContext, told_as_sync_errors
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

    def run(self, stop: Event) -> Round:
        """One round of what the configuration turns on."""
        settings = self._context.settings.maintenance
        return Round(
            self.compact(stop) if settings.compact else Compaction(),
            self.expire() if settings.expire and not stop.is_set() else Expiry(),
            self.clean_up(stop) if settings.cleanup and not stop.is_set() else Cleanup(),
        )

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
