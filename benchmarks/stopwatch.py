"""Where the time of the main path goes, measured from outside: functions are wrapped, the product is not changed.

A step's time is what its functions took without the functions of other steps that they called.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

# Of each step the owners, classes or modules, and the names of their functions.
Steps = Mapping[str, Sequence[tuple[Any, Sequence[str]]]]
REST = "other"


class Stopwatch:
    """Milliseconds by step since `restart`. For one thread."""

    def __init__(self) -> None:
        self._spent_ms: dict[str, float] = defaultdict(float)
        self._running = [REST]
        self._since_s = time.perf_counter()

    def restart(self) -> None:
        self._spent_ms.clear()
        self._since_s = time.perf_counter()

    def read(self) -> dict[str, float]:
        self._turn()
        return dict(self._spent_ms)

    @contextmanager
    def wrapped(self, steps: Steps) -> Iterator[None]:
        """While the block lasts, the functions of `steps` are timed."""
        patches = [
            patch.object(owner, name, self._timed(step, getattr(owner, name)))
            for step, places in steps.items()
            for owner, names in places
            for name in names
        ]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()

    def _turn(self) -> None:
        now_s = time.perf_counter()
        self._spent_ms[self._running[-1]] += (now_s - self._since_s) * 1000
        self._since_s = now_s

    def _timed(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            self._turn()
            self._running.append(step)
            try:
                return function(*arguments, **named)
            finally:
                self._turn()
                self._running.pop()

        return run
