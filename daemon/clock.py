"""The clock. Callers receive it as an argument, so that tests can control the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall-clock time as epoch milliseconds, UTC. It may jump."""

    def monotonic_s(self) -> float:
        """Return seconds that never go backwards. Only differences have a meaning."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()
