"""How many tables may sync at once, and who is next. Nobody waits in here: a thread that gets no slot goes away."""

from __future__ import annotations

from threading import Lock


class Slots:
    """A number of slots and the queue for them, first come first served."""

    def __init__(self, count: int) -> None:
        self._count = self._free = count
        self._waiting: dict[str, None] = {}
        # Those of the waiting who were told to try, and have not yet.
        self._called: set[str] = set()
        self._lock = Lock()

    def resize(self, count: int) -> list[str]:
        """Have another number of slots; those that are taken stay taken. Names the tables that should try again now."""
        with self._lock:
            self._free += count - self._count
            self._count = count
            return list(iter(self._call_next, None))

    def are_wanted(self) -> bool:
        """Whether somebody waits for whom there is no slot."""
        with self._lock:
            return len(self._waiting) > len(self._called)

    def try_take(self, name: str) -> bool:
        """False puts `name` in the queue; it does not wait."""
        with self._lock:
            self._called.discard(name)
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
            return self._call_next()

    def leave(self, name: str) -> str | None:
        """`name` wants no slot now. If one was meant for it, this names the table that should try in its place."""
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
