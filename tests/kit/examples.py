"""How many random examples a property test tries."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """As many of `count` as Hypothesis's profile tries of a hundred: a quarter with `ci`, five times with `long`."""
    return max(1, count * settings.default.max_examples // 100)
