"""SIGTERM and SIGINT: the first asks for a stop, the second ends the process. SIGHUP asks for a reload."""

from __future__ import annotations

import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from types import FrameType
from typing import Self

# timeout(1) and some init systems signal a process and then its whole group: two signals within this time are one.
SAME_REQUEST_S = 0.5

RELOAD = "SIGHUP"

# Work that has not stopped at a step by then is cut off, which is as safe as any kill.
STOP_GRACE_S = 8.0


class StopSignals:
    """Takes the two stop signals while the block lasts, and SIGHUP if `reloads`. For the main thread.

    With `grace_s` the process ends with exit code 1 when the block is still at work that long after the first stop.
    """

    def __init__(
        self, on_first: Callable[[], None] | None = None, *, grace_s: float | None = None, reloads: bool = False
    ) -> None:
        self._on_first = on_first
        self._grace_s = grace_s
        self._left = Event()
        self._numbers = (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if reloads else ()))
        self._words: deque[str] = deque()
        self._received_at_s: float | None = None
        self._previous: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        # Python runs a handler in the main thread, between two instructions. If a signal comes just before `wait`
        # sleeps, or if another thread receives it, only a byte in a pipe wakes `wait` so that the handler can run.
        self._reader, self._writer = _unblocking_pipe()
        self._wakeup = self._writer
        if self._grace_s is not None:
            # No handler runs before native code returns to the interpreter, so a thread ends the process.
            watched, self._wakeup = _unblocking_pipe()
            self._watch = Thread(target=self._forward, args=(watched, self._grace_s), name="stop-grace", daemon=True)
            self._watch.start()
        self._previous_wakeup = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        for number in self._numbers:
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        if self._grace_s is not None:
            os.close(self._wakeup)
            self._watch.join()
        os.close(self._reader)
        os.close(self._writer)

    def _receive(self, number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        if name != RELOAD:
            if self._received_at_s is not None:
                if time.monotonic() - self._received_at_s > SAME_REQUEST_S:
                    os._exit(1)
                return
            self._received_at_s = time.monotonic()
            if self._on_first is not None:
                self._on_first()
        self.say(name)

    def say(self, word: str) -> None:
        """Make `wait` return `word`, as if it were a signal. A reload comes last, and only once. From any thread."""
        if word != RELOAD:
            self._words.appendleft(word)
        elif RELOAD not in self._words:
            self._words.append(word)
        self._wake()

    def _wake(self) -> None:
        # If the pipe is full, `wait` wakes up anyway.
        with suppress(BlockingIOError):
            os.write(self._writer, b".")

    def _forward(self, watched: int, grace_s: float) -> None:
        with os.fdopen(watched, "rb", buffering=0) as received:
            while number := received.read(1):
                self._wake()
                if number[0] in (signal.SIGTERM, signal.SIGINT) and not self._left.wait(grace_s):
                    os.write(2, b"cut off in the middle of its work, which is safe: the next run continues it\n")
                    os._exit(1)

    def wait(self, timeout_s: float | None = None) -> str | None:
        """Sleep until a signal has come, and return its name; None after `timeout_s` without one."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._words:
            left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
            ready, _, _ = select.select([self._reader], [], [], left_s)
            if not ready:
                return None
            os.read(self._reader, select.PIPE_BUF)
        return self._words.popleft()


def _unblocking_pipe() -> tuple[int, int]:
    """A pipe whose writing end never blocks: a byte that does not fit is dropped."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    return reader, writer
