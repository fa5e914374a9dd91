"""Reads the texts behind `{file: PATH}` and `{env: NAME}`, and checks those that HTTP has to send."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from daemon.config.settings import HookSettings
from daemon.config.value_types import Reference, Secret

# Without a user and password, which Python's HTTP client takes for a part of the host.
WEBHOOK = re.compile(r"https?://[!-.0-?A-~]+(/[!-~]*)?")
HEADER = re.compile(r"[\w-]+", re.ASCII)
SENT_TEXT = re.compile(r"[ -~]*")


@dataclass(frozen=True)
class References:
    """Reads the text behind `{file: PATH}` and `{env: NAME}`. A reference without a text is added to `faults`."""

    folder: Path
    faults: list[str]
    unread: set[str] = field(default_factory=set)

    def properties(self, place: str, properties: Mapping[str, str]) -> dict[str, str]:
        found = {key: self.text(f"{place}.{key}", value) for key, value in properties.items()}
        return {key: value for key, value in found.items() if value is not None}

    def hook(self, place: str, hook: HookSettings) -> HookSettings:
        # Checked here, because the error of the HTTP client would show the texts in the log.
        url = hook.url and self.text(f"{place}.url", hook.url)
        if url is not None and not WEBHOOK.fullmatch(url):
            self.faults.append(f"{place}.url: is not an http or https address in ASCII, without user and password")
        headers = self.properties(f"{place}.headers", hook.headers)
        for name, value in headers.items():
            if not HEADER.fullmatch(name) or not SENT_TEXT.fullmatch(value):
                self.faults.append(f"{place}.headers.{name}: only printable ASCII characters can be sent")
        # Many services put a secret into the path of a webhook.
        return hook.model_copy(update={"url": url and Secret(url), "headers": headers})

    def text(self, place: str, value: str) -> str | None:
        if not isinstance(value, Reference):
            return value
        kind, _, name = value.partition(":")
        try:
            text = (self.folder / Path(name).expanduser()).read_text("utf-8") if kind == "file" else os.environ[name]
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            reason = "is not set" if isinstance(error, KeyError) else "is not a UTF-8 text file"
            if isinstance(error, OSError):
                reason = (error.strerror or str(error)).lower()
        else:
            text = text.rstrip("\r\n")
            if text:
                return Secret(text)
            reason = "is empty"
        self.faults.append(f"{place}: {named_place(value)}: {reason}")
        self.unread.add(place)
        return None


def named_place(reference: str) -> str:
    """`PATH (file)` or `NAME (environment)`."""
    kind, _, name = reference.partition(":")
    return f"{name} ({'file' if kind == 'file' else 'environment'})"
