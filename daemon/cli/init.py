"""`dvsync init`: a first configuration for the Delta tables that are there, and what the doctor says of each."""

from __future__ import annotations

import math
import os
import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import yaml

from daemon.cli.operations import examine_tables
from daemon.cli.survey import Item, survey
from daemon.clock import SystemClock
from daemon.config.load import load_settings
from daemon.config.settings import Settings
from daemon.doctor.diagnosis import Diagnosis, Verdict, as_lines
from daemon.errors import ConfigInvalid, SyncError
from daemon.masking import hide
from daemon.service.discovery import Found, discover

CATALOG = "local"
WIDTH = 118
HEAD = """\
# Written by `dvsync init`. docs/configuration.md explains every key, and so does `dvsync config keys`.
#
# `dvsync config check` reads this file, `dvsync sync` brings its tables up to date once, `dvsync run` keeps them so.
# Relative paths are relative to this file. Environment variables override it: DVSYNC_HEALTH__PORT=9000.

# What dvsync remembers of the tables.
state:
  url: sqlite:///var/dvsync.db        # or postgresql+psycopg://…; three slashes are relative, four are absolute

# Where the Iceberg tables are: PyIceberg's properties of a catalog, by a name of your choice. This one is a file, which
# will do for one machine; docs/stores.md has others, such as {type: rest, uri: https://…}.
catalogs:
  local:
    type: sql
    uri: sqlite:///var/catalog.db
    warehouse: var/warehouse          # metadata and delete files; the data files stay where Delta has them

# The object store, where tables are on one: dvsync and Spark read and write with these properties. Without keys the
# store's own defaults are asked, such as AWS_ACCESS_KEY_ID. The warehouse belongs there, too: s3://bucket/warehouse.
# storage:
#   s3.endpoint: https://…            # for S3 other than Amazon's
#   s3.region: eu-central-1
#   s3.access-key-id: …
#   s3.secret-access-key: {file: /run/secrets/s3}     # or {env: NAME}

# What holds for each table that does not say otherwise.
defaults:
  catalog: local
  poll_interval: 10s                  # how often a table is asked for its next commit: one request to the store

# The Delta tables (source: a path or URI) and their Iceberg tables (target: namespace and name). A source with `*` in
# it stands for every Delta table that it fits, new ones as they come.
"""


def write_configuration(path: Path, places: Iterable[str], tell: Callable[[str], None]) -> None:
    """Examine the Delta tables in `places` and write a configuration for them to `path`; `tell` gets lines for people.

    Raises ConfigInvalid when `path` is there already or cannot be written, or a place has no table, and
    ObjectStoreAway: nothing has been written then.
    """
    if os.path.lexists(path):
        raise _there_already(path)
    if not path.absolute().parent.is_dir():
        raise ConfigInvalid(f"{path}: there is no such folder", hint="Make the folder, or name another place.")
    bare = _load(path, [])
    hide(bare.secrets())
    items = survey(bare, CATALOG, places, tell)
    settings = _load(path, items)
    found = discover(settings, SystemClock(), {})
    if found.tables:
        tell(f"Delta tables found: {len(found.tables)}. Spark is started to examine them.")
    verdicts = _examine(settings, found, items, tell)
    _load(path, items)
    _write_new(path, _text(items))
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()) or "none yet"
    option = f" --config {shlex.quote(str(path))}"
    tell(
        f"{path} is written. Tables: {counts}.\n"
        f"`dvsync sync{option}` brings them up to date once, `dvsync run{option}` keeps them so."
    )


def _examine(settings: Settings, found: Found, items: Sequence[Item], tell: Callable[[str], None]) -> Counter[str]:
    """Say what the doctor says of each table, here and in the items; gives how many tables got which verdict."""
    for item in items:
        if item.is_pattern:
            item.remarks.append(f"Tables that it finds now: {list(found.patterns.values()).count(item.source)}.")
    by_source = {item.source: item for item in items}
    verdicts: Counter[str] = Counter()
    before = None
    for table, examined in examine_tables(settings, found.tables):
        tell("\n".join(_lines_on(table.source, examined, is_same=examined is before)))
        before = examined
        if isinstance(examined, SyncError):
            verdicts["could not be examined"] += 1
            continue
        verdicts["can be followed" if examined.is_followed else "refused"] += 1
        if not examined.is_followed:
            _remark(by_source[found.patterns.get(table.source, table.source)], examined)
    return verdicts


def _remark(item: Item, refused: Diagnosis) -> None:
    """A table is commented out with the reasons; in a pattern, they are all that can be said."""
    verdict = f"{refused.source} will be parked" if item.is_pattern else "Refused"
    item.is_refused = not item.is_pattern
    item.remarks += (
        f"{verdict}: {finding.subject}: {finding.text}. {finding.hint or ''}"
        for finding in refused.findings
        if finding.verdict is Verdict.REFUSED
    )


def _lines_on(source: str, examined: Diagnosis | SyncError, *, is_same: bool) -> Sequence[str]:
    """What the doctor says, without what goes well and without the readers; an error that `is_same` is said once."""
    if isinstance(examined, Diagnosis):
        findings = tuple(finding for finding in examined.findings if finding.verdict is not Verdict.FOLLOWED)
        return as_lines(msgspec.structs.replace(examined, findings=findings, readers=()))
    if is_same:
        return [f"{source}: could not be examined, for the same reason"]
    return [f"{source}: could not be examined: {examined.kind}: {examined}", f"  {examined.hint}"]


def _load(path: Path, items: Sequence[Item]) -> Settings:
    """What is going to be written, as it will be read. Raises ConfigInvalid."""
    try:
        return load_settings(path, _text(items))
    except ConfigInvalid as error:
        hint = "Nothing was written. Relative places begin at the file's folder: --config PATH takes them elsewhere."
        raise ConfigInvalid(error.message, hint=hint) from None


def _text(items: Iterable[Item]) -> str:
    lines = [line for item in items for line in _lines_of(item)]
    key = "tables:" if any(not item.is_refused for item in items) else "tables: []"
    return "\n".join([f"{HEAD}{key}", *lines, ""])


def _lines_of(item: Item) -> Iterator[str]:
    """One that is refused is a comment."""
    for remark in item.remarks:
        printable = "".join(sign if sign.isprintable() else " " for sign in remark)
        yield from textwrap.wrap(
            printable,
            WIDTH,
            initial_indent="  # ",
            subsequent_indent="  #   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    mark = "# " if item.is_refused else ""
    local = item.source.removeprefix("file://")
    yield f"  {mark}- source: {_scalar(item.source if '://' in local else local)}"
    yield f"  {mark}  target: {_scalar(item.target)}"


def _scalar(text: str) -> str:
    """In YAML, on one line, with quotes where it needs them."""
    style = None if text.isprintable() else '"'
    written: str = yaml.safe_dump(text, default_style=style, allow_unicode=True, width=math.inf)
    return written.removesuffix("...\n").rstrip("\n")


def _there_already(path: Path) -> ConfigInvalid:
    return ConfigInvalid(f"{path} is there already", hint="Move it away, or name another file with --config PATH.")


def _write_new(path: Path, text: str) -> None:
    """All at once, and never over a file that has come in the meantime. Raises ConfigInvalid."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with staged.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(staged)
    except FileExistsError:
        raise _there_already(path) from None
    except OSError as error:
        raise ConfigInvalid(
            f"{path}: cannot be written: {(error.strerror or str(error)).lower()}",
            hint="Name a file in a folder that dvsync may write to, with --config PATH.",
        ) from error
    finally:
        with suppress(OSError):
            staged.unlink()
