"""`dvsync add` and `dvsync remove`: change `tables` in the configuration file, and let the running daemon read it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from daemon.cli.init import examine_items
from daemon.cli.survey import Item, survey
from daemon.clock import SystemClock
from daemon.config.edit import add_entries, remove_entry
from daemon.config.load import load_settings
from daemon.config.settings import Settings
from daemon.config.share import ALL
from daemon.errors import ConfigInvalid
from daemon.masking import hide
from daemon.service.discovery import discover
from daemon.sync.memory import open_store
from daemon.texts import counted

UNCHANGED = "The file was not changed."


def add_tables(
    path: Path, places: Sequence[str], report: Callable[[str], None], *, target: str | None, catalog: str | None
) -> bool:
    """Add an entry for each table, pattern and name in a catalog in `places`, and reload. False if one was refused.

    Raises ConfigInvalid, and as `survey` does; the file is as it was then.
    """
    text = _read(path)
    settings = _load(path, text)
    items = survey(settings, _catalog_of(settings, catalog), places, report)
    if target is not None:
        if len(items) > 1:
            raise ConfigInvalid(
                f"{counted(len(items), 'table')} cannot have the one target {target}",
                hint="Add them one by one, or without --target.",
            )
        items[0].target = target
    hint = f"{UNCHANGED} --target and --catalog choose others."
    added = _load(path, add_entries(text, [_entry(item, catalog) for item in items]), hint)
    of_items = added.model_copy(update={"tables": added.tables[len(settings.tables) :]})
    examine_items(of_items, discover(of_items, SystemClock()), items, report)
    accepted = [item for item in items if not item.is_refused]
    if accepted:
        _replace(path, text, add_entries(text, [_entry(item, catalog) for item in accepted]))
        for item in accepted:
            report(f"Added to {path}: {item.source} -> {item.target}")
        report(_ask_for_reload(added))
    for item in items:
        if item.is_refused:
            report(f"Not added: {item.source}. dvsync would park it, for the reasons above.")
    return len(accepted) == len(items)


def remove_table(path: Path, wanted: str, report: Callable[[str], None]) -> None:
    """Take out the entry of the table with this name or source, and reload. Raises ConfigInvalid."""
    text = _read(path)
    settings = _load(path, text)
    numbers = [number for number, table in enumerate(settings.tables) if wanted in (table.name, table.source)]
    if not numbers:
        raise ConfigInvalid(
            f"{path} has no entry {wanted}",
            hint="`dvsync config check` lists the entries. A pattern leaves a table out by `exclude`.",
        )
    table = settings.tables[numbers[0]]
    edited = remove_entry(text, numbers[0])
    _load(path, edited, UNCHANGED)
    _replace(path, text, edited)
    report(f"Removed from {path}: {table.source} -> {table.target}")
    report(_ask_for_reload(settings))
    if not table.is_pattern:
        report(
            f"Its Iceberg table stays as it is. `dvsync forget {table.name}` also forgets what dvsync knows of it, and "
            "with --drop removes the Iceberg table."
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigInvalid(f"{path} does not exist", hint="`dvsync init` writes a first configuration.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path} cannot be read: {error}", hint="Correct the file or its rights.") from error


def _load(path: Path, text: str, hint: str | None = None) -> Settings:
    try:
        # Tables of all shares are in one file.
        settings = load_settings(path, text).model_copy(update={"share": ALL})
    except ConfigInvalid as error:
        raise ConfigInvalid(error.message, hint=hint or error.hint) from None
    hide(settings.secrets())
    return settings


def _catalog_of(settings: Settings, chosen: str | None) -> str:
    if catalog := chosen or settings.defaults.catalog:
        return catalog
    if len(settings.catalogs) == 1:
        return next(iter(settings.catalogs))
    raise ConfigInvalid("there are several catalogs, and no default", hint="Choose one of them with --catalog.")


def _entry(item: Item, catalog: str | None) -> dict[str, str]:
    source = item.source.removeprefix("file://")
    return {"source": source, "target": item.target} | ({} if catalog is None else {"catalog": catalog})


def _replace(path: Path, before: str, text: str) -> None:
    """Write the file atomically, with its rights, unless somebody else has changed it. Raises ConfigInvalid."""
    place = Path(os.path.realpath(path))
    staged = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        with staged.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(place, staged)
        if _read(path) != before:
            raise ConfigInvalid(f"{path} was changed meanwhile. {UNCHANGED}", hint="Run the command again.")
        staged.replace(place)
    except OSError as error:
        raise ConfigInvalid(
            f"{path} cannot be replaced: {(error.strerror or str(error)).lower()}. {UNCHANGED}",
            hint="Run the command where the file and its folder can be written, or change the file by hand and reload "
            "the daemon (SIGHUP). In a container, mount the file's folder.",
        ) from error
    finally:
        with suppress(OSError):
            staged.unlink()


def _ask_for_reload(settings: Settings) -> str:
    """Let the daemon of this state database read its configuration. Returns what happens, for people."""
    with open_store(settings) as store:
        holder = store.read_lease().holder
        if holder is None:
            return "No daemon runs: `dvsync sync` syncs the tables once, `dvsync run` keeps them in step."
        store.ask_for_reload()
    return f"A daemon reads it within 10 seconds: {holder}."
