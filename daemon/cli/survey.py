"""Finds the Delta tables in the places that a person names, and proposes names for their Iceberg tables."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

from daemon.clock import Clock, SystemClock
from daemon.config.checks import fault_of_name
from daemon.config.settings import Settings, SourceName, TableSettings
from daemon.delta.log import DeltaLog
from daemon.errors import ConfigInvalid, ObjectMissing, SyncError
from daemon.service.discovery import OUT_OF_PATTERN, discover
from daemon.sources.finder import find_entries
from daemon.store.locations import normalize_location
from daemon.store.storage import FileIOStorage

# The search for tables goes this many levels below a folder, and stops after this many folders.
LEVELS_MAX = 4
FOLDERS_MAX = 2_000
SOURCE_HINT = (
    "Name tables such as prod:main.sales.*, and say what `prod` is by DVSYNC_SOURCES__PROD__TYPE (unity, hive or "
    "glue), DVSYNC_SOURCES__PROD__URI and DVSYNC_SOURCES__PROD__TOKEN."
)


@dataclass
class Item:
    """One item under `tables`: a table or a pattern, its target, and comments for the configuration file."""

    source: str
    target: str
    remarks: list[str] = field(default_factory=list)
    is_refused: bool = False

    @property
    def is_pattern(self) -> bool:
        return "*" in self.source


def survey(settings: Settings, catalog: str, places: Iterable[str], report: Callable[[str], None]) -> list[Item]:
    """Return an item for each pattern and each name in a catalog in `places`, and for each Delta table in the others.

    No two items have the same target. `settings` configure the access to the stores; `report` gets a line for each
    folder that was skipped. Raises ConfigInvalid naming each place without a table, ObjectMissing, ObjectStoreAway,
    SourceCatalogAway.
    """
    clock, storage = SystemClock(), FileIOStorage(settings.file_properties(catalog))
    locations = list(dict.fromkeys(location_of(place) for place in places))
    named = {place: wanted for place in locations if (wanted := SourceName.parse(place))}
    faults = [f"{place}: {fault}" for place, each in named.items() if (fault := fault_of_name(settings.sources, each))]
    if faults:
        raise ConfigInvalid("\n".join(faults), hint=SOURCE_HINT)
    patterns = []
    for place in locations:
        if "*" in place:
            above, _ = _last_names(place)
            outer, name = ("{schema}", "{table}") if place in named else ("{parent}", "{name}")
            patterns.append(Item(place, f"{outer if '*' in above else _word(above)}.{name}"))
    single = [place for place in locations if "*" not in place]
    tables = _find_tables(storage, clock, [place for place in single if place not in named], report)
    for place in named.keys() & single:
        find_entries(settings, named[place])
        tables.add(place)
    placed = tuple(TableSettings(source=item.source, target=item.target, catalog=catalog) for item in patterns)
    found = discover(settings.model_copy(update={"tables": placed}), clock)
    nameless: dict[str, str] = {}
    for about, error in found.troubles.items():
        if any(item.source == about for item in patterns):
            raise error
        # A table whose folder name does not fit the pattern gets an item of its own.
        is_table = False
        if wanted := SourceName.parse(about):
            can_have_entry = "*" not in about and not fault_of_name(settings.sources, wanted)
            is_table = can_have_entry and error.hint == OUT_OF_PATTERN
        else:
            with suppress(SyncError):
                is_table = DeltaLog(storage, about, clock).is_there()
        if is_table:
            nameless[about] = f"The pattern leaves this table out: {error.message}."
        else:
            report(f"{about}: skipped: {error.message}")
    taken = {table.target.casefold() for table in found.tables}
    listed = []
    for source in sorted({*tables, *nameless} - {*found.patterns, *(table.shown_source for table in found.tables)}):
        # The folder or schema above the table and the table, with a number if that is taken.
        target = ".".join(map(_word, _last_names(source)))
        numbered = (f"{target}_{number}" for number in count(2))
        target = next(name for name in chain([target], numbered) if name.casefold() not in taken)
        taken.add(target.casefold())
        listed.append(Item(source, target, [nameless[source]] if source in nameless else []))
    return [*listed, *patterns]


def location_of(place: str) -> str:
    """Return the location that a person means by a path or URI; a name in a catalog as it is."""
    if SourceName.parse(place):
        return place
    if "://" in place and not place.startswith("file://"):
        return place.rstrip("/")
    return normalize_location(os.path.abspath(Path(place.removeprefix("file:").removeprefix("//")).expanduser()))


def _find_tables(
    storage: FileIOStorage, clock: Clock, places: Iterable[str], report: Callable[[str], None]
) -> set[str]:
    """Find the Delta tables at and below `places`. Raises ConfigInvalid, naming each place without a table."""
    tables: set[str] = set()
    faults = []
    for place in places:
        try:
            found = set(_walk(storage, clock, place, report))
        except ObjectMissing:
            faults.append(f"{place}: no such folder")
            continue
        if not found:
            faults.append(f"{place}: no Delta table here or in the {LEVELS_MAX} levels of folders below")
        tables |= found
    if faults:
        hint = "Name the folder of a Delta table, a folder above Delta tables, or a pattern such as 'lake/*/'."
        raise ConfigInvalid("\n".join(faults), hint=hint)
    return tables


def _walk(storage: FileIOStorage, clock: Clock, place: str, report: Callable[[str], None]) -> Iterator[str]:
    """Yield the Delta tables at and below `place`, level by level. Tables and hidden folders are not entered."""
    level, folders = [place], 0
    for _ in range(LEVELS_MAX + 1):
        below: list[str] = []
        for folder in level:
            if folders == FOLDERS_MAX:
                report(f"{place}: the search stopped after {FOLDERS_MAX} folders; name deeper folders explicitly")
                return
            folders += 1
            try:
                names = storage.list_folders(folder)
                is_table = "_delta_log" in names and DeltaLog(storage, folder, clock).is_there()
            except SyncError as error:
                if folder == place:
                    raise
                report(f"{folder}: skipped: {error.message}")
                continue
            if is_table:
                yield folder
            else:
                # Leave out a folder with `*` in its name: as a source it would be a pattern.
                below += (f"{folder}/{name}" for name in names if not name.startswith(("_", ".")) and "*" not in name)
        level = below


def _last_names(location: str) -> tuple[str, str]:
    """Return the folder above the table (or the bucket, or `default` if there is neither) and the table's folder.

    Of a name in a catalog: schema and table.
    """
    if wanted := SourceName.parse(location):
        above, name = wanted.pattern.split(".")[-2:]
        return above, name
    *_, above, name = ("default", *filter(None, location.partition("://")[2].split("/")))
    return above, name


def _word(folder: str) -> str:
    """Make an identifier part of a folder's name: letters, digits and `_`, beginning with a letter."""
    word = re.sub(r"\W+", "_", folder).strip("_")
    return word if word[:1].isalpha() else f"t_{word}".rstrip("_")
