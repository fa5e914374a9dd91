"""The unbroken row of errors of one table: the kind of each, how long to wait, and when to log it again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import structlog

from daemon.clock import Clock
from daemon.errors import InternalError, SyncError, TargetHeld, as_shown
from daemon.observe import log as events
from daemon.observe.tracing import Span
from daemon.sync.memory import as_sync_error
from state import StateUnavailable, TableError

BACKOFF_FIRST_MAX_S = 5.0
BACKOFF_MAX_S = 300.0
# The wait while another dvsync follows into the table: how often to check whether the other is alive.
HELD_RETRY_S = 10.0
# A repeated error is logged the 1st, 2nd, 4th, 8th, … time, and at least this often.
QUIET_MAX_S = 3_600.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Failure:
    """One more error. A table that is not parked is tried again after `delay_s`.

    With `may_end_by_version`, also when the Delta table has a newer version. `is_news`: it repeats no error.
    """

    error: TableError
    delay_s: float
    may_end_by_version: bool
    is_news: bool


def warn_of(event: str, raised: Exception, span: Span) -> SyncError:
    """Log and trace that work beside the syncs failed, with the traceback if dvsync itself is wrong. Returns it."""
    known = as_sync_error(raised)
    span.fail(known.kind, str(known))
    _log.warning(
        event,
        kind=known.kind,
        reason=str(known),
        hint=known.hint,
        exc_info=raised if isinstance(known, InternalError) else None,
    )
    return known


@contextmanager
def logged_if_away(event: str, **about: str) -> Iterator[None]:
    """Log that the state database could not be read or written in the block, which ends there. The work goes on."""
    try:
        yield
    except StateUnavailable as error:
        _log.warning(event, reason=str(error), **about)


def described(known: SyncError, *, now_ms: int, last: TableError | None = None) -> TableError:
    """Return the error as the store remembers it. `last` is the one before, if the table has not worked since."""
    # Table and version have fields of their own.
    places = (("file", known.path), ("offset", known.offset))
    where = ", ".join(f"{word} {value}" for word, value in places if value is not None)
    message = f"{known.message} [{where}]" if where else known.message
    return TableError(
        kind=known.kind,
        # In one line: messages of Java and of databases have several.
        message=" ".join(filter(None, map(str.strip, as_shown(message).split("\n")))),
        hint=known.hint,
        version=known.version,
        since_ms=last.since_ms if last else now_ms,
        consecutive=last.consecutive + 1 if last else 1,
        parked=known.parks,
    )


class Failures:
    """Counts and logs the errors. `last` is the error that the store remembers from an earlier process."""

    def __init__(
        self, table: str, *, poll_interval_s: float, last: TableError | None, clock: Clock, random: Random
    ) -> None:
        self._table = table
        self._first_s = min(poll_interval_s, BACKOFF_FIRST_MAX_S)
        self._longest_s = max(poll_interval_s, BACKOFF_MAX_S)
        self._last = last
        self._clock = clock
        self._random = random
        self._logged_at_s: float | None = None

    def add(self, raised: Exception, *, synced_version: int | None) -> Failure:
        """Count `raised`, and log it if it is time to."""
        known = as_sync_error(raised).located(table=self._table)
        is_bug = isinstance(known, InternalError)
        if is_bug:
            known = known.located(version=synced_version)
        last, self._last = self._last, described(known, now_ms=self._clock.now_ms(), last=self._last)
        error = self._last
        # 30 doublings exceed any longest wait; more would overflow.
        doubled_s = self._first_s * 2.0 ** min(error.consecutive - 1, 30)
        delay_s = min(self._longest_s, doubled_s) * self._random.uniform(0.8, 1.2)
        if isinstance(known, TargetHeld):
            delay_s = max(self._first_s, HELD_RETRY_S)
        is_news = last is None or (last.kind, last.message) != (error.kind, error.message)
        is_power_of_two, last_s = error.consecutive & (error.consecutive - 1) == 0, self._logged_at_s
        if is_news or is_power_of_two or last_s is None or self._clock.monotonic_s() - last_s >= QUIET_MAX_S:
            self._logged_at_s = self._clock.monotonic_s()
            _log.log(
                logging.ERROR if is_bug or error.parked else logging.WARNING,
                events.TABLE_PARKED if error.parked else events.SYNC_FAILED,
                table=self._table,
                kind=error.kind,
                reason=error.message,
                version=error.version,
                hint=error.hint,
                consecutive_errors=error.consecutive,
                backoff_s=None if error.parked else round(delay_s, 1),
                exc_info=raised if is_bug else None,
            )
        return Failure(error, delay_s, known.may_end_by_version, is_news)

    def end(self) -> TableError | None:
        """The table works again: log that, and forget and return the error, if there was one."""
        error = self._last
        if error is None:
            return None
        self.forget()
        _log.info(
            events.SYNC_RECOVERED,
            table=self._table,
            kind=error.kind,
            consecutive_errors=error.consecutive,
            failed_for_s=(self._clock.now_ms() - error.since_ms) // 1000,
        )
        return error

    def forget(self) -> None:
        """A person resumed the table: the next error begins a new row."""
        self._last = None
        self._logged_at_s = None
