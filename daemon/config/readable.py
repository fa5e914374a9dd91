"""The valid part of a configuration: its references read, its tables with the defaults, its paths absolute."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from daemon.config.references import References, named_place
from daemon.config.settings import DefaultsSettings, Settings, StateSettings, TableSettings
from daemon.config.value_types import SQLITE_FILE, URL
from daemon.store.locations import normalize_location

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
    for field in ("source", "location", "delete_files_location"):
        if location := getattr(table, field):
            update[field] = _anchored(location, folder)
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
