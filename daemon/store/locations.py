"""What is said of a file, wherever it is; the errors of its store; spellings of locations, and which is inside another.

This is apart from `storage`, so that reading a configuration does not import PyIceberg, which is slow.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from daemon.errors import ObjectMissing, ObjectStoreAway

# Delta, DeltaTableUtils.isHiddenDirectory: VACUUM skips folders named `_…` and `.…`, except these.
NOT_HIDDEN = ("_delta_index", "_change_data", "_delta_log")


def normalize_location(location: str) -> str:
    """Return an absolute URI without a trailing slash: `/data/t/` -> `file:///data/t`. Other schemes stay unchanged."""
    location = location.replace("file://localhost/", "file:///", 1)
    if "://" not in location:
        location = "file://" + str(Path(location.removeprefix("file:")).absolute())
    return location.rstrip("/")


def canonical(path: str) -> str:
    """Return one spelling for paths that engines spell differently: `/a`, `file:/a`, `file:///a`; `s3://b`, `s3a://b`."""
    scheme, _, rest = path.partition(":")
    if path.startswith("/") or (scheme == "file" and rest.startswith("/") and not rest.startswith("//")):
        return f"file://{path.removeprefix('file:')}"
    return f"s3:{rest}" if scheme in ("s3a", "s3n") else path


def real(path: str) -> str:
    """Return the canonical spelling after following all links of the local file system. Other stores have no links."""
    path = canonical(path)
    return f"file://{os.path.realpath(path.removeprefix('file://'))}" if path.startswith("file://") else path


def parts_below(path: str, place: str) -> list[str] | None:
    """Return the path components from `place` to `path`; None if `path` is not below. Both need the same spelling."""
    path, place = path.rstrip("/"), place.rstrip("/")
    if path == place:
        return []
    return path.removeprefix(f"{place}/").split("/") if path.startswith(f"{place}/") else None


def vacuum_cleans(location: str, source: str) -> bool:
    """Return whether VACUUM or log cleanup of the Delta table at `source` would remove files at `location`."""
    return bool(vacuum_cleaners(location, by_spelling([source])))


def vacuum_cleaners(location: str, sources: Mapping[str, str]) -> set[str]:
    """Return which Delta tables' VACUUM or log cleanup would remove files at `location`. `sources` is `by_spelling`."""
    found = set()
    for path in by_spelling([location]):
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            source = sources.get("/".join(parts[:depth]))
            if source is not None and not _is_hidden(parts[depth:]):
                found.add(source)
    return found


def by_spelling(locations: Iterable[str]) -> dict[str, str]:
    """Return the canonical and the real spelling of each location, and the location."""
    return {spell(each).rstrip("/"): each for each in locations for spell in (canonical, real)}


def _is_hidden(parts: list[str]) -> bool:
    return any(part.startswith(("_", ".")) and not part.startswith(NOT_HIDDEN) and "=" not in part for part in parts)


@dataclass(frozen=True)
class Span:
    """A half-open range of bytes: `size` bytes from `offset`."""

    offset: int
    size: int


@dataclass(frozen=True)
class FileMeta:
    """Metadata of one file, from a listing or `stat`. `modified_ms` is by the store's clock, epoch, UTC."""

    path: str
    size: int
    modified_ms: int

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[1]


def file_missing(path: str) -> ObjectMissing:
    return ObjectMissing(
        "the file is not there",
        path=path,
        hint="Restore it, or take it out of the Delta table with RESTORE or an overwrite: dvsync continues by itself.",
    )


def store_away(path: str, error: OSError) -> ObjectStoreAway:
    if isinstance(error, PermissionError):
        hint = "Give the user that runs dvsync the right to read the file and its folders, or to write there."
        return ObjectStoreAway(f"the store refuses: {error}", path=path, hint=hint)
    return ObjectStoreAway(
        f"the store does not answer: {error}", path=path, hint="Check the store, the network and the credentials."
    )
