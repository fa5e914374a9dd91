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
from daemon.config.settings import Settings, TableSettings
from daemon.delta.log import DeltaLog
from daemon.errors import ConfigInvalid, ObjectMissing, SyncError
from daemon.service.discovery import discover
from daemon.store.locations import normalize_location
from daemon.store.storage import FileIOStorage

# The search for tables goes this many levels below a folder, and stops after this many folders.
LEVELS_MAX = 4
FOLDERS_MAX = 2_000


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
    """Return an item for each pattern in `places`, and one for each Delta table at or below the other places.

    No two items have the same target. `settings` configure the access to the stores; `report` gets a line for each
    folder that was skipped. Raises ConfigInvalid naming each place without a table, ObjectMissing, ObjectStoreAway.
    """
    clock, storage = SystemClock(), FileIOStorage(settings.file_properties(catalog))
    locations = list(dict.fromkeys(_location(place) for place in places))
    patterns = []
    for place in locations:
        if "*" in place:
            above, _ = _last_folders(place)
            patterns.append(Item(place, "{parent}.{name}" if "*" in above else f"{_word(above)}.{{name}}"))
    tables = _find_tables(storage, clock, [place for place in locations if "*" not in place], report)
    placed = tuple(TableSettings(source=item.source, target=item.target, catalog=catalog) for item in patterns)
    found = discover(settings.model_copy(update={"tables": placed}), clock)
    nameless: dict[str, str] = {}
    for about, error in found.troubles.items():
        if any(item.source == about for item in patterns):
            raise error
        # A table whose folder name does not fit the pattern gets an item of its own.
        is_table = False
        with suppress(SyncError):
            is_table = DeltaLog(storage, about, clock).is_there()
        if is_table:
            nameless[about] = f"The pattern leaves this table out: {error.message}."
        else:
            report(f"{about}: skipped: {error.message}")
    taken = {table.target.casefold() for table in found.tables}
    listed = []
    for source in sorted({*tables, *nameless} - found.patterns.keys()):
        # The folder above and the table's folder, with a number if that is taken.
        target = ".".join(map(_word, _last_folders(source)))
        numbered = (f"{target}_{number}" for number in count(2))
        target = next(name for name in chain([target], numbered) if name.casefold() not in taken)
        taken.add(target.casefold())
        listed.append(Item(source, target, [nameless[source]] if source in nameless else []))
    return [*listed, *patterns]


def _location(place: str) -> str:
    if "://" in place:
        return place.rstrip("/")
    return normalize_location(os.path.abspath(Path(place.removeprefix("file:")).expanduser()))


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


def _last_folders(location: str) -> tuple[str, str]:
    """Return the folder above the table (or the bucket, or `default` if there is neither) and the table's folder."""
    *_, above, name = ("default", *filter(None, location.partition("://")[2].split("/")))
    return above, name


def _word(folder: str) -> str:
    """Make an identifier part of a folder's name: letters, digits and `_`, beginning with a letter."""
    word = re.sub(r"\W+", "_", folder).strip("_")
    return word if word[:1].isalpha() else f"t_{word}".rstrip("_")
