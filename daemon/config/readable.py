"""The valid part of a configuration: `{file: PATH}` and `{env: NAME}` read, defaults applied, paths absolute."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from daemon.config.settings import DefaultsSettings, HookSettings, Settings, StateSettings, TableSettings
from daemon.config.value_types import SQLITE_FILE, URL, Reference
from daemon.masking import Secret
from daemon.store.locations import normalize_location

# Without a user and password, which Python's HTTP client takes for a part of the host.
WEBHOOK = re.compile(r"https?://[!-.0-?A-~]+(/[!-~]*)?")
HEADER = re.compile(r"[\w-]+", re.ASCII)
SENT_TEXT = re.compile(r"[ -~]*")
Section = TypeVar("Section", bound=BaseModel)


@dataclass(frozen=True)
class Readable:
    """The sections and tables that are valid by themselves. The checks across sections run on them."""

    settings: Settings
    places: Mapping[str, Sequence[str]]  # by list section, where each of its entries is in the file: `tables[2]`
    left_out: frozenset[str]  # invalid keys and unread references, such as `health.port`; `settings` has defaults
    other_catalogs: tuple[tuple[str, str], ...] = ()  # place and `catalog` of each table that is invalid by itself

    def tables(self) -> Iterator[tuple[str, TableSettings]]:
        return zip(self.places["tables"], self.settings.tables, strict=True)

    def dereferenced(self, folder: Path, faults: list[str]) -> Readable:
        """Replace each reference by its text. A key whose reference cannot be read is left out, and is a fault."""
        settings, references = self.settings, References(folder, faults)
        conf = references.properties("spark.conf", settings.spark.conf)
        token = settings.health.token and references.text("health.token", settings.health.token)
        update: dict[str, Any] = {
            "storage": references.properties("storage", settings.storage),
            "catalogs": {
                name: references.properties(f"catalogs.{name}", each) for name, each in settings.catalogs.items()
            },
            "sources": {
                name: references.properties(f"sources.{name}", each) for name, each in settings.sources.items()
            },
            "spark": settings.spark.model_copy(update={"conf": conf}),
            "state": StateSettings(),
            "health": settings.health.model_copy(update={"token": token}),
            "hooks": tuple(map(references.hook, self.places["hooks"], settings.hooks)),
        }
        url = references.text("state.url", settings.state.url)
        if url is not None and not URL.match(url):
            faults.append(f"state.url: the text in {named_place(settings.state.url)} is not an SQLAlchemy URL")
        elif url is not None:
            update["state"] = settings.state.model_copy(update={"url": url})
        left_out = self.left_out | references.unread
        return replace(self, settings=settings.model_copy(update=update), left_out=left_out)

    def resolved(self, folder: Path) -> Readable:
        """Apply the defaults to each table, and take relative paths from `folder`."""
        settings = self.settings
        catalogs = {name: _anchored_catalog(properties, folder) for name, properties in settings.catalogs.items()}
        state = settings.state.model_copy(update={"url": _anchored_sqlite(settings.state.url, folder)})
        tables = tuple(_resolved_table(table, settings, folder) for table in settings.tables)
        return replace(
            self, settings=settings.model_copy(update={"state": state, "catalogs": catalogs, "tables": tables})
        )


def _resolved_table(table: TableSettings, settings: Settings, folder: Path) -> TableSettings:
    inherited = DefaultsSettings.model_fields.keys() - table.model_fields_set
    update: dict[str, Any] = {field: getattr(settings.defaults, field) for field in inherited}
    update["maintenance"] = _overridden(settings.maintenance, table.maintenance)
    update["verify"] = _overridden(settings.verify, table.verify)
    for key in ("source", "location", "delete_files_location"):
        if (location := getattr(table, key)) and not (key == "source" and table.source_name):
            update[key] = _anchored(location, folder)
    resolved = table.model_copy(update=update)
    if not resolved.catalog and len(settings.catalogs) == 1:
        resolved = resolved.model_copy(update={"catalog": next(iter(settings.catalogs))})
    return resolved


def _overridden(shared: Section, own: Section) -> Section:
    return shared.model_copy(update={field: getattr(own, field) for field in own.model_fields_set})


def _anchored(location: str, folder: Path) -> str:
    if "://" not in location:
        location = os.path.normpath(folder / Path(location.removeprefix("file:")).expanduser())
    return normalize_location(location)


def _anchored_sqlite(url: str, folder: Path) -> str:
    match = SQLITE_FILE.match(url)
    if match is None:
        return url
    return type(url)(f"{match['scheme']}{os.path.normpath(folder / match['path'])}{match['query']}")


def _anchored_catalog(properties: dict[str, str], folder: Path) -> dict[str, str]:
    """Make the paths of an SQL catalog absolute. The warehouse of another catalog may be a name, not a path."""
    uri, warehouse = properties.get("uri", ""), properties.get("warehouse")
    anchored = {"uri": _anchored_sqlite(uri, folder)} if uri else {}
    if warehouse and (properties.get("type") == "sql" or SQLITE_FILE.match(uri)):
        anchored["warehouse"] = type(warehouse)(_anchored(warehouse, folder))
    return {**properties, **anchored}


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
            path = self.folder / Path(name).expanduser()
            secret = Secret.read(path) if kind == "file" else Secret(os.environ[name].rstrip("\r\n"))
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            reason = "is not set" if isinstance(error, KeyError) else "is not a UTF-8 text file"
            if isinstance(error, OSError):
                reason = (error.strerror or str(error)).lower()
        else:
            if secret:
                return secret
            reason = "is empty"
        self.faults.append(f"{place}: {named_place(value)}: {reason}")
        self.unread.add(place)
        return None


def named_place(reference: str) -> str:
    """`PATH (file)` or `NAME (environment)`."""
    kind, _, name = reference.partition(":")
    return f"{name} ({'file' if kind == 'file' else 'environment'})"
