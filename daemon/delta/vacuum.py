"""How long VACUUM and log cleanup keep files that the Delta table no longer shows."""

from __future__ import annotations

from pytimeparse2 import parse as parse_timespan

from daemon.delta.actions import Metadata

# The table properties for the retention of the log and of older versions' files, and Delta's defaults.
RETENTIONS_S = {"delta.logRetentionDuration": 30 * 86_400.0, "delta.deletedFileRetentionDuration": 7 * 86_400.0}


def retention_s(metadata: Metadata) -> float:
    """Return how long the files of a replaced version are surely kept. An invalid time span counts as unset."""
    spans_s = []
    for key, default_s in RETENTIONS_S.items():
        span_s = parse_timespan(metadata.configuration.get(key, "").lower().removeprefix("interval").strip())
        spans_s.append(span_s if isinstance(span_s, int | float) and span_s >= 0 else default_s)
    return float(min(spans_s))
