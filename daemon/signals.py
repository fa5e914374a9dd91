"""SIGTERM and SIGINT: the first asks for a stop, the second ends the process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Self

# timeout(1) and some init systems signal a process and then its whole group: within this time that is one request.
SAME_REQUEST_S = 0.5


class StopSignals:
    """Takes both signals while the block lasts. For the main thread."""

    def __init__(self, on_first: Callable[[], None] | None = None) -> None:
        self._on_first = on_first
        self._received: str | None = None
        self._received_at_s = 0.0
        self._previous: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        # A pipe, since a lock taken by the handler could be the one that the interrupted code holds.
        self._reader, self._writer = os.pipe()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self._received is not None:
            if time.monotonic() - self._received_at_s > SAME_REQUEST_S:
                os._exit(1)
            return
        self._received = signal.Signals(number).name
        self._received_at_s = time.monotonic()
        os.write(self._writer, b".")
        if self._on_first is not None:
            self._on_first()

    def wait(self) -> str:
        """Sleep until a signal has come; its name."""
        os.read(self._reader, 1)
        assert self._received is not None
        return self._received
