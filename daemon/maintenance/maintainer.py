"""One table's maintenance: compact, expire, clean up. In this order, each step frees files for the next one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Event

from daemon.errors import SyncError
from daemon.maintenance.cleanup import Cleanup, clean_up, forget_history, has_due_orphans
from daemon.maintenance.compaction import Compaction, Compactor
from daemon.maintenance.expiry import Expirer, Expiry
from daemon.observe import tracing
from daemon.sync.context import TableContext, as_sync_errors

# How often the data files of a quiet table are probed for VACUUM's traces.
PROBE_INTERVAL_S = 3600.0


@dataclass(frozen=True)
class Round:
    """The results of one round. A part that is turned off has an empty result."""

    compaction: Compaction
    expiry: Expiry
    cleanup: Cleanup


class Maintainer:
    """Maintains one Iceberg table beside its follower; both share a context. All methods raise SyncError."""

    def __init__(self, context: TableContext) -> None:
        self._context = context
        self._settings = context.settings.maintenance
        self._compactor = Compactor(context)
        self._expirer = Expirer(context)
        self._probe_after_s = 0.0
        # The metadata file after whose round only waiting was left. While it is current, there is nothing new to do.
        self._settled: str | None = None

    def run(self, stop: Event) -> Round:
        """Run one round of the parts that are turned on, all of them before the first error is raised."""
        settings, seen, now_s = self._settings, self._metadata_location(), self._context.clock.monotonic_s()
        is_news = seen != self._settled
        errors: list[SyncError] = []
        compaction, expiry, cleanup = Compaction(), Expiry(), Cleanup()
        if settings.compact and is_news:
            with self._kept(errors), tracing.step("compact"):
                compaction = self.compact(stop)
        if settings.expire and not stop.is_set():
            # Probe after each change, and otherwise only now and then: it costs a request for each file.
            probe = is_news or now_s >= self._probe_after_s
            with self._kept(errors), tracing.step("expire"):
                expiry = self.expire(probe=probe)
                if probe:
                    self._probe_after_s = now_s + PROBE_INTERVAL_S
        if settings.cleanup and not stop.is_set():
            with self._kept(errors), tracing.step("cleanup"), self._as_sync_errors():
                if is_news or expiry.expired or has_due_orphans(self._context):
                    cleanup = self.clean_up(stop)
        elif is_news:
            with self._kept(errors):
                forget_history(self._context, self._context.find_record(), orphans=True)
        if errors:
            raise errors[0]
        if not stop.is_set() and self._metadata_location() == seen:
            self._settled = seen
        return Round(compaction, expiry, cleanup)

    @contextmanager
    def _kept(self, errors: list[SyncError]) -> Iterator[None]:
        try:
            with self._as_sync_errors():
                yield
        except SyncError as error:
            errors.append(error)

    def _metadata_location(self) -> str | None:
        with self._as_sync_errors():
            record = self._context.find_record()
            return record.metadata_location if record else None

    def _as_sync_errors(self) -> AbstractContextManager[None]:
        return as_sync_errors(self._context.settings.name)

    def compact(self, stop: Event, *, dry_run: bool = False) -> Compaction:
        with self._as_sync_errors():
            return self._compactor.compact(stop, dry_run=dry_run)

    def expire(self, *, dry_run: bool = False, probe: bool = True) -> Expiry:
        with self._as_sync_errors():
            return self._expirer.expire(dry_run=dry_run, probe=probe)

    def clean_up(
        self, stop: Event, *, dry_run: bool = False, scan: bool = False, remove_found: bool = False
    ) -> Cleanup:
        with self._as_sync_errors():
            return clean_up(self._context, stop, dry_run=dry_run, scan=scan, remove_found=remove_found)
