"""One table's maintenance: compact, expire, clean up, in this order, so that each leaves something for the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Event

from daemon.errors import SyncError
from daemon.maintenance.cleanup import Cleanup, clean_up, has_due_orphans
from daemon.maintenance.compaction import Compaction, Compactor
from daemon.maintenance.expiry import Expirer, Expiry
from daemon.sync.context import TableContext, told_as_sync_errors

# How often VACUUM is looked for where nothing else happens.
LOOK_INTERVAL_S = 3600.0


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
        self._settings = context.settings.maintenance
        self._compactor = Compactor(context)
        self._expirer = Expirer(context)
        self._look_after_s = 0.0
        # The metadata file for which the last round left nothing to do but to wait.
        self._settled: str | None = None

    def run(self, stop: Event) -> Round:
        """One round of what the configuration turns on. A table that is left alone costs next to nothing.

        A part that fails does not keep the others from their work; the first error is raised in the end.
        """
        settings, seen, now_s = self._settings, self._metadata_location(), self._context.clock.monotonic_s()
        is_news = seen != self._settled
        errors: list[SyncError] = []
        compaction, expiry, cleanup = Compaction(), Expiry(), Cleanup()
        if settings.compact and is_news:
            with _kept(errors):
                compaction = self.compact(stop)
        if settings.expire and not stop.is_set():
            # VACUUM is looked for with each news, and otherwise now and then: it costs a request for each file.
            look = is_news or now_s >= self._look_after_s
            with _kept(errors):
                expiry = self.expire(look=look)
                if look:
                    self._look_after_s = now_s + LOOK_INTERVAL_S
        if settings.cleanup and not stop.is_set():
            with _kept(errors):
                if is_news or expiry.expired or self._has_due_orphans():
                    cleanup = self.clean_up(stop)
        elif is_news:
            with _kept(errors):
                self._forget_history()
        if errors:
            raise errors[0]
        if not stop.is_set() and self._metadata_location() == seen:
            self._settled = seen
        return Round(compaction, expiry, cleanup)

    def _metadata_location(self) -> str | None:
        with self._told():
            record = self._context.find_record()
            return record.metadata_location if record else None

    def _has_due_orphans(self) -> bool:
        with self._told():
            return has_due_orphans(self._context)

    def _forget_history(self) -> None:
        """What cleanup does besides: where it is turned off, the rows of orphans have an end, too."""
        context = self._context
        with self._told():
            record = context.find_record()
            if record is not None:
                before_ms = context.clock.now_ms() - round(self._settings.history_s * 1000)
                context.store.forget_before(record.id, before_ms, orphans=True)

    def _told(self) -> AbstractContextManager[None]:
        return told_as_sync_errors(self._context.settings.name)

    def compact(self, stop: Event, *, dry_run: bool = False) -> Compaction:
        with self._told():
            return self._compactor.compact(stop, dry_run=dry_run)

    def expire(self, *, dry_run: bool = False, look: bool = True) -> Expiry:
        with self._told():
            return self._expirer.expire(dry_run=dry_run, look=look)

    def clean_up(
        self, stop: Event, *, dry_run: bool = False, scan: bool = False, remove_found: bool = False
    ) -> Cleanup:
        with self._told():
            return clean_up(self._context, stop, dry_run=dry_run, scan=scan, remove_found=remove_found)


@contextmanager
def _kept(errors: list[SyncError]) -> Iterator[None]:
    try:
        yield
    except SyncError as error:
        errors.append(error)
