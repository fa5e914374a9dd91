"""Finds the secrets of the configuration, and masks them in every text that leaves the process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

# Shorter secrets are not masked: they would match parts of harmless words.
SECRET_MIN = 5
MASK = "***"
SECRET_KEY = re.compile(r"secret|password|token(?![_-]url$)|key|credential|authorization", re.IGNORECASE)
# In abfss://container@account the part before the @ is a container; in other URLs it is a user and perhaps a password.
USERINFO = re.compile(r"(?<=://)(?<!abfss://)(?<!abfs://)(?<!wasbs://)(?<!wasb://)(?:[^/@\s]*:\S*|[^/@\s]*)@")
_SECRET_PARAMETER = re.compile(
    r"([?&;][^=&;\s]*(?:secret|password|token|key|credential)[^=&;\s]*=)([^&;\s]+)", re.IGNORECASE
)

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


class Secret(str):
    """A text that was read through a reference, perhaps from a `file`. It is never shown."""

    file: Path | None = None

    @classmethod
    def read(cls, file: Path) -> Secret:
        """Raises OSError, ValueError."""
        secret = cls(file.read_text("utf-8").rstrip("\r\n"))
        secret.file = file
        return secret

    def read_again(self) -> Secret:
        """What its file has now; itself without a file, or while that has no text."""
        with suppress(OSError, ValueError):
            if self.file and (secret := Secret.read(self.file)) and secret != self:
                hide([secret])
                return secret
        return self


def masked(text: str) -> str:
    """Return a text of the settings without its secrets: safe to print."""
    return MASK if isinstance(text, Secret) else _SECRET_PARAMETER.sub(r"\1***", USERINFO.sub("***@", text))


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
