"""Reads table properties. Anybody can set them, so an invalid value counts as unset."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from daemon.observe import log as events

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def int_property(properties: Mapping[str, str], name: str, default: int) -> int:
    """Return a whole number, zero or more. Unset or invalid: `default`."""
    value = properties.get(name)
    if value is None:
        return default
    if value.strip().isdecimal():
        return int(value)
    _log.warning(events.PROPERTY_IGNORED, property=name, value=value, used=default)
    return default
