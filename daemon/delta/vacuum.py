"""What Delta's VACUUM removes, and when: files in its folder that Delta does not know, but for hidden folders."""

from __future__ import annotations

from pytimeparse2 import parse as parse_timespan

from daemon.delta.actions import Metadata
from daemon.locations import canonical, parts_below, real

# Delta, DeltaTableUtils.isHiddenDirectory: `_…` and `.…` are left alone, but not these.
NOT_HIDDEN = ("_delta_index", "_change_data", "_delta_log")

# How long Delta keeps its log, and the files of older versions, with the defaults that it has when nothing is set.
RETENTIONS_S = {"delta.logRetentionDuration": 30 * 86_400.0, "delta.deletedFileRetentionDuration": 7 * 86_400.0}


def retention_s(metadata: Metadata) -> float:
    """How long the files of a replaced version are kept for sure. A value that is no time span counts as unset."""
    spans_s = []
    for key, default_s in RETENTIONS_S.items():
        span_s = parse_timespan(metadata.configuration.get(key, "").lower().removeprefix("interval").strip())
        spans_s.append(span_s if isinstance(span_s, int | float) and span_s >= 0 else default_s)
    return float(min(spans_s))


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
