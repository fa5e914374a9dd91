"""`dvsync init`: finds Delta tables, examines them as `dvsync doctor` does, and writes a first configuration."""

from __future__ import annotations

import math
import os
import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from daemon.cli.invocation import default_config_path
from daemon.cli.operations import examine_tables
from daemon.cli.survey import Item, survey
from daemon.cli.tables import tables_in_two_places
from daemon.clock import SystemClock
from daemon.config.edit import scalar
from daemon.config.load import load_settings, read_source
from daemon.config.settings import Settings, SourceName
from daemon.config.share import ALL
from daemon.config.value_types import ENV_PREFIX
from daemon.doctor.diagnosis import Diagnosis, Verdict
from daemon.doctor.lake import lines_on, passed_over_lines, reader_lines, summarize
from daemon.errors import ConfigInvalid, SyncError
from daemon.masking import hide
from daemon.service.discovery import Found, discover
from daemon.translate.readers import TITLES

CATALOG = "local"
WRAPPER = textwrap.TextWrapper(
    118, initial_indent="  # ", subsequent_indent="  #   ", break_long_words=False, break_on_hyphens=False
)
HEAD = """\
# Written by `dvsync init`. docs/configuration.md explains every key.
#
# `dvsync config check` checks this file, `dvsync sync` syncs its tables once, `dvsync run` keeps them in step.
# Relative paths are relative to this file. Environment variables override it: DVSYNC_HEALTH__PORT=9000.

# The state database, where dvsync records what it has synced.
state:
  url: sqlite:///var/dvsync.db        # or postgresql+psycopg://…; three slashes are relative, four are absolute

# The catalogs of the Iceberg tables: PyIceberg's catalog properties under a name of your choice. This catalog is a
# file, which is enough for one machine; docs/stores.md shows others, such as {type: rest, uri: https://…}.
catalogs:
  local:
    type: sql
    uri: sqlite:///var/catalog.db
    warehouse: var/warehouse          # metadata and delete files; the data files stay where Delta wrote them

# The object store, if tables are in one: dvsync and Spark read and write with these properties. Without keys, the
# store's own defaults apply, such as AWS_ACCESS_KEY_ID. Put the warehouse there as well: s3://bucket/warehouse.
# storage:
#   s3.endpoint: https://…            # for S3 other than Amazon's
#   s3.region: eu-central-1
#   s3.access-key-id: …
#   s3.secret-access-key: {file: /run/secrets/s3}     # or {env: NAME}

# Settings of every table that does not set them itself.
defaults:
  catalog: local
  poll_interval: 10s                  # how often dvsync checks a table for its next commit: one request to the store
"""
SOURCES = """
# The catalogs in which Delta tables are found by name; docs/sources.md has all properties.
sources:
"""
TABLES = """
# The Delta tables (source: a path or URI, or a name in a catalog) and their Iceberg tables (target: namespace and
# name). A source that contains `*` is a pattern: it stands for every Delta table that matches it, also for new ones.
"""


def write_configuration(path: Path, places: Iterable[str], report: Callable[[str], None]) -> None:
    """Examine the tables in `places` and write a configuration, or nothing. Raises ConfigInvalid, ObjectStoreAway."""
    if os.path.lexists(path):
        raise _already_exists(path)
    if not path.absolute().parent.is_dir():
        raise ConfigInvalid(f"{path}: its folder does not exist", hint="Create the folder, or choose another path.")
    bare = _load(path, [])
    hide(bare.secrets())
    items = survey(bare, CATALOG, places, report)
    settings = _load(path, items)
    found = discover(settings, SystemClock())
    if found.tables:
        report(f"Delta tables found: {len(found.tables)}. Examining them.")
    for line in passed_over_lines(found.passed_over):
        report(line)
    verdicts = examine_items(settings, found, items, report)
    written = _load(path, items)
    _write_new(path, _text(items))
    for line in tables_in_two_places(written):
        report(line)
    variables = {name for name in os.environ if name.startswith(f"{ENV_PREFIX}STORAGE__")}
    given = (each for properties in _sources(items).values() for each in properties.values())
    variables |= {each["env"] for each in given if isinstance(each, dict) and "env" in each}
    if names := ", ".join(sorted(variables)):
        report(f"These variables are not in the file, and dvsync needs them whenever it runs: {names}.")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()) or "none yet"
    option = "" if path == default_config_path() else f" --config {shlex.quote(str(path))}"
    report(
        f"Wrote {path}. Tables: {counts}.\n"
        f"`dvsync sync{option}` syncs them once, `dvsync run{option}` keeps them in step."
    )


def examine_items(
    settings: Settings, found: Found, items: Sequence[Item], report: Callable[[str], None]
) -> Counter[str]:
    """Examine each table, report the findings, and add refusals to the items. Returns the verdicts."""
    for item in items:
        if item.is_pattern:
            item.remarks.append(f"Matching tables now: {list(found.patterns.values()).count(item.source)}.")
    by_source = {item.source: item for item in items}
    verdicts: Counter[str] = Counter()
    every = list[tuple[str, Diagnosis | SyncError]]()
    before = None
    for table, examined in examine_tables(settings, found.tables):
        if examined is before:
            report(f"{table.source}: could not be examined, for the same reason")
        else:
            lines = lines_on(table.source, examined, Verdict.NOTE, Verdict.REFUSED)
            report("\n".join([*lines, f"  table     {table.target}"]))
        before = examined
        every.append((table.source, examined))
        if isinstance(examined, SyncError):
            verdicts["could not be examined"] += 1
            continue
        verdicts["can be followed" if examined.is_followed else "refused"] += 1
        if not examined.is_followed:
            # A single table is also commented out; a pattern stays active.
            item = by_source[found.patterns.get(table.source, table.source)]
            verdict = f"{table.source} will be parked" if item.is_pattern else "Refused"
            item.is_refused = not item.is_pattern
            refusals = (each for each in examined.findings if each.verdict is Verdict.REFUSED)
            item.remarks += (f"{verdict}: {each.subject}: {each.text}. {each.hint or ''}" for each in refusals)
    # `dvsync doctor` also names the programs that `readers` leaves out.
    readers = tuple(TITLES[reader] for reader in settings.defaults.readers)
    troubles = [each for each in summarize(every).readers if any(name.startswith(readers) for name in each.readers)]
    for line in reader_lines(troubles):
        report(line)
    return verdicts


def _load(path: Path, items: Sequence[Item]) -> Settings:
    """Load the settings from the text that will be written, before it is written. Raises ConfigInvalid."""
    try:
        # A share in the environment is that of a daemon.
        return load_settings(path, _text(items)).model_copy(update={"share": ALL})
    except ConfigInvalid as error:
        hint = "Nothing was written. Relative paths begin at the file's folder; --config PATH changes that folder."
        raise ConfigInvalid(error.message, hint=hint) from None


def _text(items: Iterable[Item]) -> str:
    lines: list[str] = []
    for item in items:
        for remark in item.remarks:
            lines += WRAPPER.wrap("".join(sign if sign.isprintable() else " " for sign in remark))
        mark = "# " if item.is_refused else ""
        local = item.source.removeprefix("file://")
        lines.append(f"  {mark}- source: {scalar(item.source if '://' in local else local)}")
        lines.append(f"  {mark}  target: {scalar(item.target)}")
    key = "tables:" if any(not item.is_refused for item in items) else "tables: []"
    head = HEAD
    if sources := _sources(items):
        written = yaml.safe_dump(sources, allow_unicode=True, default_flow_style=None, sort_keys=False, width=math.inf)
        head += SOURCES + textwrap.indent(written, "  ")
    return "\n".join([f"{head}{TABLES}{key}", *lines, ""])


def _sources(items: Iterable[Item]) -> dict[str, dict[str, Any]]:
    """The catalogs of the items, as variables describe them."""
    used = {wanted.source for item in items if (wanted := SourceName.parse(item.source))}
    return {name: read_source(name) for name in sorted(used)}


def _already_exists(path: Path) -> ConfigInvalid:
    return ConfigInvalid(f"{path} already exists", hint="Move it away, or name another file with --config PATH.")


def _write_new(path: Path, text: str) -> None:
    """Write the file atomically, and never over a file that appeared in the meantime. Raises ConfigInvalid."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with staged.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(staged)
    except FileExistsError:
        raise _already_exists(path) from None
    except OSError as error:
        raise ConfigInvalid(
            f"{path}: cannot be written: {(error.strerror or str(error)).lower()}",
            hint="Name a file in a writable folder with --config PATH.",
        ) from error
    finally:
        with suppress(OSError):
            staged.unlink()
