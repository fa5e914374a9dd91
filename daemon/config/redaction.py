"""Finds the secrets in the settings, and masks them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from daemon.config.value_types import USERINFO, Secret

SECRET_KEY = re.compile(r"secret|password|token(?![_-]url$)|key|credential|authorization", re.IGNORECASE)
_SECRET_PARAMETER = re.compile(
    r"([?&;][^=&;\s]*(?:secret|password|token|key|credential)[^=&;\s]*=)([^&;\s]+)", re.IGNORECASE
)


def masked(text: str) -> str:
    """Return a text of the settings without its secrets: safe to print."""
    return "***" if isinstance(text, Secret) else _SECRET_PARAMETER.sub(r"\1***", USERINFO.sub("***@", text))


def find_secrets(key: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from find_secrets(str(name), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from find_secrets(key, inner)
    elif isinstance(value, str):
        # A setting that only sounds like a secret, such as a switch, has the value true or false.
        if isinstance(value, Secret) or (SECRET_KEY.search(key) and value not in ("true", "false")):
            yield value
        for found in USERINFO.findall(value):
            yield from (found.removesuffix("@"), found.removesuffix("@").partition(":")[2])
        yield from (found[2] for found in _SECRET_PARAMETER.finditer(value))
