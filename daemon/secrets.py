"""What must never be shown: the secrets of the configuration, taken out of every text that leaves the process."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

# Shorter ones would be found in words that give nothing away.
SECRET_MIN = 5
MASK = "***"

_hidden: tuple[str, ...] = ()


def hide(secrets: Iterable[str]) -> None:
    """Mask these from now on, beside those before, as they are and as URLs spell them."""
    global _hidden  # noqa: PLW0603 - one process has one log
    found = {
        spelling for secret in secrets if len(secret) >= SECRET_MIN for spelling in (secret, quote(secret, safe=""))
    }
    # A secret may be a part of another one.
    _hidden = tuple(sorted(found.union(_hidden), key=len, reverse=True))


def scrub(text: str) -> str:
    for secret in _hidden:
        if secret in text:
            text = text.replace(secret, MASK)
    return text
