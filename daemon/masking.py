"""What must never be shown: the secrets of the configuration, taken out of every text that leaves the process."""

from __future__ import annotations

import json
from collections.abc import Iterable
from urllib.parse import quote, unquote

# Shorter ones would be found in words that give nothing away.
SECRET_MIN = 5
MASK = "***"

_hidden: tuple[str, ...] = ()


def hide(secrets: Iterable[str]) -> None:
    """Mask these from now on, beside those before."""
    global _hidden  # noqa: PLW0603 - one process has one log
    telling = (secret for secret in secrets if len(secret) >= SECRET_MIN and secret.lower() not in ("true", "false"))
    found = {spelling for secret in telling for spelling in _spellings(secret)}
    # A secret may be a part of another one.
    _hidden = tuple(sorted(found.union(_hidden), key=len, reverse=True))


def _spellings(secret: str) -> tuple[str, ...]:
    """A secret as it is, as URLs have it, and as Python and JSON print it."""
    return secret, quote(secret, safe=""), unquote(secret), repr(secret)[1:-1], json.dumps(secret)[1:-1]


def scrub(text: str) -> str:
    for secret in _hidden:
        if secret in text:
            text = text.replace(secret, MASK)
    return text
