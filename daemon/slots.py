"""How many tables may sync at once, and who is next. Nobody waits in here: a thread that gets no slot goes away."""

from __future__ import annotations

from threading import Lock


class Slots:
    """A number of slots and the queue for them, first come first served."""

    def __init__(self, count: int) -> None:
        self._count = self._free = count
        self._waiting: dict[str, None] = {}
        self._lock = Lock()

    def resize(self, count: int) -> None:
        """Have another number of slots; those that are taken stay taken."""
        with self._lock:
            self._free += count - self._count
            self._count = count

    def are_wanted(self) -> bool:
        """Whether somebody waits for a slot."""
        with self._lock:
            return bool(self._waiting)

    def try_take(self, name: str) -> bool:
        """False puts `name` in the queue; it does not wait."""
        with self._lock:
            if self._free <= 0:
                self._waiting[name] = None
                return False
            self._waiting.pop(name, None)
            self._free -= 1
            return True

    def give_back(self) -> str | None:
        """Free a slot, and name the table that waited longest: it should try again now."""
        with self._lock:
            self._free += 1
            first = next(iter(self._waiting), None)
            if first is not None:
                del self._waiting[first]
            return first
