"""How a table's place is written. Apart from `storage`, so that a configuration is read without PyIceberg's weight."""

from __future__ import annotations

from pathlib import Path


def normalize_location(location: str) -> str:
    """Absolute URI without a trailing slash: `/data/t/` -> `file:///data/t`; other schemes stay as they are."""
    if "://" not in location:
        location = "file://" + str(Path(location.removeprefix("file:")).absolute())
    return location.rstrip("/")
