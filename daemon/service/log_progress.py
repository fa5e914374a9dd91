"""Progress of long steps, in the log."""

from __future__ import annotations

import structlog

from daemon.clock import Clock
from daemon.observe import log as events

LOG_INTERVAL_S = 10.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class LogProgress:
    """A `Progress` that logs a line every ten seconds, and nothing for shorter work. One for each table."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_at_s = clock.monotonic_s()
        self._called_at_s = clock.monotonic_s()

    def advanced(self, done: int, total: int, what: str) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._called_at_s > LOG_INTERVAL_S:
            self._logged_at_s = now_s  # Another piece of work has begun.
        self._called_at_s = now_s
        if now_s - self._logged_at_s >= LOG_INTERVAL_S:
            self._logged_at_s = now_s
            _log.info(events.SYNC_PROGRESSED, done=done, total=total, what=what)
