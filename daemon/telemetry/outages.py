"""Says once that a signal cannot be sent, and once that it can again. The SDK logs each attempt."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import get_ident

import structlog

from daemon import log as events
from daemon.masking import scrub
from daemon.texts import TEXT_CHARACTERS_MAX, excerpt

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Outages(logging.Handler):
    """Takes what the SDK logs out of our log, and keeps the first message of each attempt as its reason."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(logging.WARNING)
        self._endpoint = endpoint
        self._reasons: dict[int, str] = {}
        self._failing: set[str] = set()
        logger = logging.getLogger("opentelemetry")
        logger.handlers[:], logger.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        self._reasons.setdefault(record.thread or 0, record.getMessage())

    def attempt(self, signal: str, send: Callable[[], bool]) -> bool:
        """Send something of a signal, and return whether it was taken. Never raises an exception."""
        self._reasons.pop(get_ident(), None)
        try:
            is_sent, reason = send(), None
        except Exception as error:
            is_sent, reason = False, f"{type(error).__name__}: {error}"
        reason = self._reasons.pop(get_ident(), None) or reason
        if is_sent and signal in self._failing:
            self._failing.discard(signal)
            _log.info(events.TELEMETRY_RECOVERED, signal=signal)
        elif not is_sent and signal not in self._failing:
            self._failing.add(signal)
            _log.warning(
                events.TELEMETRY_FAILED,
                signal=signal,
                endpoint=self._endpoint,
                reason=excerpt(scrub(reason or "unknown"), TEXT_CHARACTERS_MAX),
                hint="Check telemetry.endpoint and its receiver. Syncs are not affected; what is not sent is lost.",
            )
        return is_sent
