"""`dvsync add` and `dvsync remove`: change `tables` in the configuration file, and let the running daemon read it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp

import yaml

from daemon.cli.init import examine_items
from daemon.cli.survey import Item, location_of, survey
from daemon.clock import SystemClock
from daemon.config.edit import KEY, add_entries, remove_entry
from daemon.config.load import load_settings
from daemon.config.settings import Settings, SourceName
from daemon.config.share import ALL
from daemon.config.value_types import ENV_PREFIX
from daemon.errors import ConfigInvalid, SyncError
from daemon.masking import hide
from daemon.service.discovery import discover
from daemon.sync.memory import open_store
from daemon.texts import counted, some_of

UNCHANGED = "The file was not changed."


def add_tables(
    path: Path, places: Sequence[str], report: Callable[[str], None], *, target: str | None, catalog: str | None
) -> bool:
    """Add an entry for each table, pattern and name in a catalog in `places`, and reload.

    Returns False if one was refused, or if the daemon could not be asked to reload. Raises ConfigInvalid, and as
    `survey` does; the file is as it was then.
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
    # Tables of all shares are in one file.
    of_items = added.model_copy(update={"tables": added.tables[len(settings.tables) :], "share": ALL})
    examine_items(of_items, discover(of_items, SystemClock()), items, report)
    accepted = [item for item in items if not item.is_refused]
    for item in items:
        if item.is_refused:
            report(f"Not added: {item.source}. dvsync would park it, for the reasons above.")
    if not accepted:
        return False
    _replace(path, text, add_entries(text, [_entry(item, catalog) for item in accepted]))
    for item in accepted:
        report(f"Added to {path}: {item.source} -> {item.target}")
    if variables := _variables_of(text, accepted):
        report(f"These variables are not in the file, and dvsync needs them whenever it runs: {some_of(variables)}.")
    return _ask_for_reload(added, report) and len(accepted) == len(items)


def remove_table(path: Path, wanted: str, report: Callable[[str], None]) -> bool:
    """Take out the entry of the table with this name or source, and reload. False if that could not be asked for.

    Raises ConfigInvalid.
    """
    text = _read(path)
    settings = _load(path, text)
    entries = zip(settings.tables, yaml.safe_load(text).get(KEY) or (), strict=True)
    fitting = [
        number
        for number, (table, entry) in enumerate(entries)
        if wanted in (table.name, table.source, entry["source"]) or location_of(wanted) == table.source
    ]
    if len(fitting) != 1:
        names = [settings.tables[number].name for number in fitting]
        raise ConfigInvalid(
            f"{path} has {'several entries' if names else 'no entry'} of {wanted}",
            hint=f"Name one of {some_of(names)}."
            if names
            else "`dvsync config check` lists the entries. A pattern leaves a table out by `exclude`.",
        )
    table = settings.tables[fitting[0]]
    edited = remove_entry(text, fitting[0])
    _load(path, edited, UNCHANGED)
    _replace(path, text, edited)
    report(f"Removed from {path}: {table.source} -> {table.target}")
    if not table.is_pattern:
        report(
            f"Its Iceberg table stays as it is. `dvsync forget {table.name}` also forgets what dvsync knows of it, and "
            "with --drop removes the Iceberg table."
        )
    return _ask_for_reload(settings, report)


def _read(path: Path) -> str:
    """Return the text of the file, with the line ends of this system."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigInvalid(f"{path} does not exist", hint="`dvsync init` writes a first configuration.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path} cannot be read: {error}", hint="Correct the file or its rights.") from error


def _load(path: Path, text: str, hint: str | None = None) -> Settings:
    prefix = f"{ENV_PREFIX}{KEY}".upper()
    if name := next((name for name in os.environ if name == prefix or name.startswith(f"{prefix}__")), None):
        raise ConfigInvalid(f"the variable {name} overrides `{KEY}` in {path}", hint="Change the tables there.")
    try:
        settings = load_settings(path, text)
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


def _variables_of(text: str, items: Iterable[Item]) -> list[str]:
    """The variables that describe catalogs of these items which the file does not describe."""
    known = (yaml.safe_load(text) or {}).get("sources") or {}
    used = {wanted.source for item in items if (wanted := SourceName.parse(item.source))} - {*known}
    prefixes = tuple(f"{ENV_PREFIX}SOURCES__{name}__".upper() for name in used)
    return sorted(name for name in os.environ if prefixes and name.upper().startswith(prefixes))


def _replace(path: Path, before: str, text: str) -> None:
    """Write the file atomically, with its owner, rights and line ends, unless somebody else has changed it.

    Raises ConfigInvalid.
    """
    place = Path(os.path.realpath(path))
    staged: Path | None = None
    try:
        raw, known = place.read_bytes(), place.stat()
        descriptor, name = mkstemp(dir=place.parent, prefix=f".{place.name}.")
        staged = Path(name)
        with open(descriptor, "w", encoding="utf-8", newline="\r\n" if b"\r\n" in raw else "\n") as file:
            if (known.st_uid, known.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, known.st_uid, known.st_gid)
            os.fchmod(descriptor, known.st_mode & 0o7777)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        if _read(place) != before:
            raise ConfigInvalid(f"{path} was changed meanwhile. {UNCHANGED}", hint="Run the command again.")
        staged.replace(place)
    except OSError as error:
        raise ConfigInvalid(
            f"{path} cannot be replaced: {(error.strerror or str(error)).lower()}. {UNCHANGED}",
            hint="Run the command as the file's owner, where its folder can be written, or change the file by hand "
            "and reload the daemon (SIGHUP). In a container, mount the file's folder.",
        ) from error
    finally:
        if staged:
            with suppress(FileNotFoundError):
                staged.unlink()


def _ask_for_reload(settings: Settings, report: Callable[[str], None]) -> bool:
    """Let the daemon of this state database read its configuration. Says what happens; False if it cannot be asked."""
    try:
        with open_store(settings, reads_only=True) as store:
            lease = store.read_lease()
        # Only a daemon has an address.
        if lease.address is None:
            report("No daemon runs: `dvsync sync` syncs the tables once, `dvsync run` keeps them in step.")
            return True
        with open_store(settings) as store:
            store.ask_for_reload()
    except SyncError as error:
        report(f"The file is changed, but a daemon cannot be asked to read it: {error.message}. Reload it (SIGHUP).")
        return False
    report(f"A daemon reads it within 10 seconds, if it still runs: {lease.holder}.")
    return True
