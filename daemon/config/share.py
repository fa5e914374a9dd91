"""The share of the tables that one daemon follows, when several daemons divide a configuration's tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

COUNT_MAX = 100


@dataclass(frozen=True)
class Share:
    """One of `count` shares, numbered from 1; `1/2` is the first of two. Each table belongs to exactly one share."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, value: object) -> Self:
        """Raises ValueError."""
        if isinstance(value, cls):
            return value  # the default
        match = re.fullmatch(r"(\d{1,3})/(\d{1,3})", value) if isinstance(value, str) else None
        share = cls(int(match[1]), int(match[2])) if match else None
        if share is None or not 1 <= share.number <= share.count <= COUNT_MAX:
            raise ValueError(
                f"{value!r} is not a share: write its number and how many there are, such as 1/2; at most {COUNT_MAX}"
            )
        return share

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def owns(self, target: str) -> bool:
        return self.owner_of(target) == self

    def owner_of(self, target: str) -> Share:
        """Return the share that the table with this target belongs to.

        Each share draws a number from the target, and the highest wins. So a new last share takes tables from the
        others, but none moves between those; if it is dropped, only its tables move. The target decides, because an
        Iceberg table needs one owner, under whatever name and from whatever source it is followed.
        """
        numbers = range(1, self.count + 1)
        return Share(max(numbers, key=lambda number: sha256(f"{number} {target}".encode()).digest()), self.count)


# The share of a daemon that is alone.
ALL = Share()
