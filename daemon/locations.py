"""How places are written, and which lies in which. Apart from `storage`, so that a configuration is read without
PyIceberg's weight."""

from __future__ import annotations

import os
from pathlib import Path

# Delta, DeltaTableUtils.isHiddenDirectory: `_…` and `.…` are left alone, but not these.
NOT_HIDDEN = ("_delta_index", "_change_data", "_delta_log")


def normalize_location(location: str) -> str:
    """Absolute URI without a trailing slash: `/data/t/` -> `file:///data/t`; other schemes stay as they are."""
    if "://" not in location:
        location = "file://" + str(Path(location.removeprefix("file:")).absolute())
    return location.rstrip("/")


def canonical(path: str) -> str:
    """One spelling for what engines spell differently: `/a`, `file:/a` and `file:///a`; `s3://b`, `s3a://b`, `s3n://b`."""
    scheme, _, rest = path.partition(":")
    if path.startswith("/") or (scheme == "file" and rest.startswith("/") and not rest.startswith("//")):
        return f"file://{path.removeprefix('file:')}"
    return f"s3:{rest}" if scheme in ("s3a", "s3n") else path


def real(path: str) -> str:
    """The canonical spelling with all links of the local file system followed; other stores have none."""
    path = canonical(path)
    return f"file://{os.path.realpath(path.removeprefix('file://'))}" if path.startswith("file://") else path


def parts_below(path: str, place: str) -> list[str] | None:
    """The names that lead from `place` to `path`, both spelled in one way; None where it is not below."""
    path, place = path.rstrip("/"), place.rstrip("/")
    if path == place:
        return []
    return path.removeprefix(f"{place}/").split("/") if path.startswith(f"{place}/") else None


def vacuum_cleans(location: str, source: str) -> bool:
    """Whether VACUUM, or the log's clean-up, of the Delta table at `source` would remove files at `location`, however
    the two are spelled and whatever links lead there.
    """
    below = (parts_below(inner, outer) for inner in _spellings(location) for outer in _spellings(source))
    return any(parts is not None and not _is_hidden(parts) for parts in below)


def _spellings(place: str) -> set[str]:
    return {canonical(place), real(place)}


def _is_hidden(parts: list[str]) -> bool:
    return any(part.startswith(("_", ".")) and not part.startswith(NOT_HIDDEN) and "=" not in part for part in parts)
