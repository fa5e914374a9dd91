"""A cache of what was used last. What belongs to a key never changes: files have unique names."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

from cachetools import LRUCache

V = TypeVar("V")


class Recent(Generic[V]):
    """The values that were used last, of at most `size_max` together. Safe to use from any thread."""

    def __init__(self, size_max: int, size_of: Callable[[V], int] = lambda _: 1) -> None:
        self._values: LRUCache[Hashable, V] = LRUCache(size_max, getsizeof=size_of)
        self._size_of = size_of
        self._lock = Lock()

    def find(self, key: Hashable) -> V | None:
        with self._lock:
            found: V | None = self._values.get(key)
            return found

    def add(self, key: Hashable, value: V) -> None:
        with self._lock:
            self._values.pop(key, None)
            if self._size_of(value) <= self._values.maxsize:
                self._values[key] = value

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
