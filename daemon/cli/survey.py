"""Which Delta tables there are in the places that a person names, and what their Iceberg tables may be called."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

from daemon.clock import Clock, SystemClock
from daemon.config.settings import Settings, TableSettings
from daemon.delta.log import DeltaLog
from daemon.errors import ConfigInvalid, ObjectMissing, ObjectStoreAway, SyncError
from daemon.locations import normalize_location
from daemon.service.discovery import discover
from daemon.storage import FileIOStorage

# How far below a folder tables are looked for, and in how many folders in all.
LEVELS_MAX = 4
FOLDERS_MAX = 2_000


@dataclass
class Item:
    """One item under `tables`: a table or a pattern, its target, and what is to be said of it."""

    source: str
    target: str
    remarks: list[str] = field(default_factory=list)
    is_refused: bool = False

    @property
    def is_pattern(self) -> bool:
        return "*" in self.source


def survey(settings: Settings, catalog: str, places: Iterable[str], tell: Callable[[str], None]) -> list[Item]:
    """An item for each pattern in `places`, and one for each Delta table at or below the others; no target twice.

    `settings` say how the stores are reached, `tell` gets what was passed over. Raises ConfigInvalid, naming each place
    without a table, and ObjectStoreAway.
    """
    clock, storage = SystemClock(), FileIOStorage(settings.file_properties(catalog))
    locations = list(dict.fromkeys(_location(place) for place in places))
    patterns = [Item(place, _pattern_target(place)) for place in locations if "*" in place]
    tables = _find_tables(storage, clock, [place for place in locations if "*" not in place], tell)
    found = discover(
        settings.model_copy(
            update={
                "tables": tuple(
                    TableSettings(source=item.source, target=item.target, catalog=catalog) for item in patterns
                )
            }
        ),
        clock,
        {},
    )
    nameless: dict[str, str] = {}
    for about, reason in found.troubles.items():
        if any(item.source == about for item in patterns):
            raise ObjectStoreAway(reason, hint="Check the folder and the store.")
        # What its pattern cannot name can be listed by itself.
        if _is_table(storage, clock, about):
            nameless[about] = f"Not named by its pattern: {reason}."
        else:
            tell(f"{about}: passed over: {reason}")
    taken = {table.target.casefold() for table in found.tables}
    listed = []
    for source in sorted({*tables, *nameless} - found.patterns.keys()):
        target = _table_target(source, taken)
        taken.add(target.casefold())
        listed.append(Item(source, target, [nameless[source]] if source in nameless else []))
    return [*listed, *patterns]


def _location(place: str) -> str:
    return place.rstrip("/") if "://" in place else normalize_location(os.path.normpath(Path(place).expanduser()))


def _find_tables(storage: FileIOStorage, clock: Clock, places: Iterable[str], tell: Callable[[str], None]) -> set[str]:
    """The Delta tables at and below `places`. Raises ConfigInvalid, naming each place where there is none."""
    tables: set[str] = set()
    faults = []
    for place in places:
        try:
            found = set(_walk(storage, clock, place, tell))
        except ObjectMissing:
            faults.append(f"{place}: there is no such folder")
            continue
        if not found:
            faults.append(f"{place}: there is no Delta table, and none in the {LEVELS_MAX} levels of folders below it")
        tables |= found
    if faults:
        hint = "Name the folder of a Delta table, one above it, or a pattern such as 'lake/*/'."
        raise ConfigInvalid("\n".join(faults), hint=hint)
    return tables


def _walk(storage: FileIOStorage, clock: Clock, place: str, tell: Callable[[str], None]) -> Iterator[str]:
    """The Delta tables at and below `place`, level by level; nothing inside of a table or of a hidden folder."""
    level, folders = [place], 0
    for _ in range(LEVELS_MAX + 1):
        below: list[str] = []
        for folder in level:
            if folders == FOLDERS_MAX:
                tell(f"{place}: only {FOLDERS_MAX} folders were looked into; name what is further down by itself")
                return
            folders += 1
            try:
                names = storage.list_folders(folder)
                is_table = "_delta_log" in names and DeltaLog(storage, folder, clock).is_there()
            except SyncError as error:
                if folder == place:
                    raise
                tell(f"{folder}: passed over: {error.message}")
                continue
            if is_table:
                yield folder
            else:
                # A `*` in a source stands for other names.
                below += (f"{folder}/{name}" for name in names if not name.startswith(("_", ".")) and "*" not in name)
        level = below


def _is_table(storage: FileIOStorage, clock: Clock, location: str) -> bool:
    try:
        return DeltaLog(storage, location, clock).is_there()
    except SyncError:
        return False


def _pattern_target(pattern: str) -> str:
    above, _ = _last_folders(pattern)
    return "{parent}.{name}" if "*" in above else f"{_word(above)}.{{name}}"


def _table_target(source: str, taken: Collection[str]) -> str:
    """The folder above and the table's own, with a number where that is `taken`."""
    target = ".".join(map(_word, _last_folders(source)))
    numbered = (f"{target}_{number}" for number in count(2))
    return next(name for name in chain([target], numbered) if name.casefold() not in taken)


def _last_folders(location: str) -> tuple[str, str]:
    """The table's own folder and the one above it, which may be the bucket, or nothing at all."""
    *_, above, name = ("default", *filter(None, location.partition("://")[2].split("/")))
    return above, name


def _word(folder: str) -> str:
    """A folder's name as part of an identifier: letters, digits and `_`, a letter first."""
    word = re.sub(r"\W+", "_", folder).strip("_")
    return word if word[:1].isalpha() else f"t_{word}".rstrip("_")
