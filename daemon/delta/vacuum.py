"""How long what Delta does not show any more is kept from VACUUM and from the log's clean-up."""

from __future__ import annotations

from pytimeparse2 import parse as parse_timespan

from daemon.delta.actions import Metadata

# How long Delta keeps its log, and the files of older versions, with the defaults that it has when nothing is set.
RETENTIONS_S = {"delta.logRetentionDuration": 30 * 86_400.0, "delta.deletedFileRetentionDuration": 7 * 86_400.0}


def retention_s(metadata: Metadata) -> float:
    """How long the files of a replaced version are kept for sure. A value that is no time span counts as unset."""
    spans_s = []
    for key, default_s in RETENTIONS_S.items():
        span_s = parse_timespan(metadata.configuration.get(key, "").lower().removeprefix("interval").strip())
        spans_s.append(span_s if isinstance(span_s, int | float) and span_s >= 0 else default_s)
    return float(min(spans_s))
