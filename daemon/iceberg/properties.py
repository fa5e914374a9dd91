"""Table properties, which anybody may set to anything: a value that makes no sense counts as unset."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from daemon import log as events

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def int_property(properties: Mapping[str, str], name: str, default: int) -> int:
    """A whole number, zero or more; else `default`."""
    value = properties.get(name)
    if value is None:
        return default
    if value.strip().isdecimal():
        return int(value)
    _log.warning(events.PROPERTY_IGNORED, property=name, value=value, used=default)
    return default


def bool_property(properties: Mapping[str, str], name: str, *, default: bool) -> bool:
    """`true` or `false`; else `default`."""
    return {"true": True, "false": False}.get(properties.get(name, "").strip().lower(), default)
