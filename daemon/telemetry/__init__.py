"""Traces and metrics for an OpenTelemetry collector. Only this package imports the SDK, which is an extra.

The SDK's own variables, `OTEL_…`, say where to and what. This module must not import the SDK, which is slow.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import structlog

from daemon.clock import Clock
from daemon.observe import log as events

if TYPE_CHECKING:
    from daemon.telemetry.telemetry import Telemetry

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def switched_on() -> dict[str, str]:
    """Return the variable that switches on each of the signals `traces` and `metrics`."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return {}
    found = {}
    for signal in ("traces", "metrics"):
        own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
        name = next((each for each in (own, ENDPOINT) if os.environ.get(each)), None)
        if name and os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip() != "none":
            found[signal] = name
    return found


def open_telemetry(clock: Clock, *, place: str) -> Telemetry | None:
    """Return None if nothing is switched on or, which is logged, if the SDK is missing or refuses a variable."""
    signals = switched_on()
    if not signals:
        return None
    try:
        from daemon.telemetry.telemetry import Telemetry  # noqa: PLC0415 - an extra

        return Telemetry(signals, clock, place=place)
    except (ImportError, ValueError) as error:
        names = ", ".join(sorted(set(signals.values())))
        hint = f"Install the extra `telemetry` of dvsync's wheel and check its OTEL_… variables, or unset {names}."
        _log.warning(events.TELEMETRY_FAILED, signal=", ".join(signals), reason=f"not started: {error}", hint=hint)
        return None
