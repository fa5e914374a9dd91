"""How many tables may sync at once, and which is next.

Never blocks: a caller that gets no slot returns, and its table is called when a slot is free.
"""

from __future__ import annotations

from threading import Lock


class Slots:
    """A number of slots and the queue for them, first come first served."""

    def __init__(self, count: int) -> None:
        self._count = self._free = count
        self._waiting: dict[str, None] = {}
        # Waiting tables that were called and have not tried yet.
        self._called: set[str] = set()
        self._lock = Lock()

    def resize(self, count: int) -> list[str]:
        """Change the number of slots; taken ones stay taken. Returns the tables to call now."""
        with self._lock:
            self._free += count - self._count
            self._count = count
            return list(iter(self._call_next, None))

    def are_wanted(self) -> bool:
        """Whether more tables wait than there are slots for."""
        with self._lock:
            return len(self._waiting) > len(self._called)

    def try_take(self, name: str) -> bool:
        """Take a slot for `name`. If none is free, put it in the queue and return False."""
        with self._lock:
            self._called.discard(name)
            if self._free <= 0:
                self._waiting[name] = None
                return False
            self._waiting.pop(name, None)
            self._free -= 1
            return True

    def give_back(self) -> str | None:
        """Free a slot. Returns the table to call now, the one that waited longest."""
        with self._lock:
            self._free += 1
            return self._call_next()

    def leave(self, name: str) -> str | None:
        """Take `name` out of the queue. Returns the table to call in its place, if `name` was called."""
        with self._lock:
            self._waiting.pop(name, None)
            if name not in self._called:
                return None
            self._called.discard(name)
            return self._call_next()

    def _call_next(self) -> str | None:
        if self._free <= len(self._called):
            return None
        first = next((name for name in self._waiting if name not in self._called), None)
        if first is not None:
            self._called.add(first)
        return first
