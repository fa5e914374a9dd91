"""Masks the secrets of the configuration in every text that leaves the process."""

from __future__ import annotations

import json
from collections.abc import Iterable
from urllib.parse import quote, unquote

# Shorter secrets are not masked: they would match parts of harmless words.
SECRET_MIN = 5
MASK = "***"

_hidden: tuple[str, ...] = ()


def hide(secrets: Iterable[str]) -> None:
    """Mask these secrets from now on, in addition to earlier ones."""
    global _hidden  # noqa: PLW0603 - one process has one log
    maskable = (secret for secret in secrets if len(secret) >= SECRET_MIN and secret.lower() not in ("true", "false"))
    found = set[str]()
    for secret in maskable:
        # As it is, as URLs encode it, and as Python and JSON print it.
        found |= {secret, quote(secret, safe=""), unquote(secret), repr(secret)[1:-1], json.dumps(secret)[1:-1]}
    # The longest first: a secret may be a part of another, whose rest would stay readable.
    _hidden = tuple(sorted(found.union(_hidden), key=len, reverse=True))


def scrub(text: str) -> str:
    for secret in _hidden:
        if secret in text:
            text = text.replace(secret, MASK)
    return text
