"""One table's maintenance: compact, expire, clean up. In this order, each step frees files for the next one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Event

from daemon.config.settings import MaintenanceStep
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
        self._compactor, self._expirer = Compactor(context), Expirer(context)
        self._probe_after_s = 0.0
        # The metadata file after whose round only waiting was left. While it is current, there is nothing new to do.
        self._settled: str | None = None

    def run(self, stop: Event) -> Round:
        """Run one round of the steps that are wanted, all of them before the first error is raised."""
        context, seen = self._context, self._metadata_location()
        settings, now_s, is_news = context.settings.maintenance, context.clock.monotonic_s(), seen != self._settled
        errors: list[SyncError] = []
        compaction, expiry, cleanup = Compaction(), Expiry(), Cleanup()
        if MaintenanceStep.COMPACT in settings.steps and is_news:
            with self._part("compact", errors):
                compaction = self._compactor.compact(stop)
        if MaintenanceStep.EXPIRE in settings.steps and not stop.is_set():
            # Probe after each change, and otherwise only now and then: it costs a request for each file.
            probe = is_news or now_s >= self._probe_after_s
            with self._part("expire", errors):
                expiry = self._expirer.expire(probe=probe)
                if probe:
                    self._probe_after_s = now_s + PROBE_INTERVAL_S
        if MaintenanceStep.CLEANUP in settings.steps and not stop.is_set():
            with self._part("cleanup", errors):
                if is_news or expiry.expired or has_due_orphans(context):
                    cleanup = clean_up(context, stop)
        elif is_news:
            with self._part("cleanup", errors):
                forget_history(context, context.find_record(), orphans=True)
        if errors:
            raise errors[0]
        if not stop.is_set() and self._metadata_location() == seen:
            self._settled = seen
        return Round(compaction, expiry, cleanup)

    @contextmanager
    def _part(self, name: str, errors: list[SyncError]) -> Iterator[None]:
        try:
            with tracing.step(name), self._as_sync_errors():
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
