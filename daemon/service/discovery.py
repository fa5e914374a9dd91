"""Which tables a configuration names: those listed one by one, and those that its source patterns find."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from msgspec.structs import replace

from daemon.clock import Clock
from daemon.config.checks import Claims, faults_of_found
from daemon.config.settings import Settings, TableSettings
from daemon.config.share import Share
from daemon.delta.log import DeltaLog, log_gone
from daemon.errors import ObjectMissing, SyncError, Unsupported
from daemon.scheduling.failures import described
from daemon.store.storage import FileIOStorage, check_path
from state import TableRecord
from state.sql.tables import TableStore

# The ways out for a folder of which a pattern makes no table.
OUT_OF_PATTERN = "Give the folder an entry of its own, rename it, or exclude it from the pattern."


@dataclass
class Found:
    """The tables of this daemon's share: first those that are listed, then those of each pattern, by source.

    `others` are the tables of other shares. `patterns` maps a source to the pattern that found it. `troubles` maps a
    pattern or source to the error because of which something that may be a table is not among the tables.
    """

    tables: list[TableSettings] = field(default_factory=list)
    others: list[TableSettings] = field(default_factory=list)
    patterns: dict[str, str] = field(default_factory=dict)
    troubles: dict[str, SyncError] = field(default_factory=dict)

    def kept(self) -> dict[str, list[str]]:
        """The names of the tables that stay only because a folder above them cannot be listed, by its trouble."""
        kept: dict[str, list[str]] = {}
        for table in self.tables:
            pattern = self.patterns.get(table.source)
            places = (place for place in self.troubles if place == pattern or _is_below(table.source, [place]))
            if pattern and (place := next(places, None)):
                kept.setdefault(place, []).append(table.name)
        return kept


def discover(settings: Settings, clock: Clock, owners: Mapping[str, str], before: Found | None = None) -> Found:
    """Expand the patterns of `settings`. Folders without a Delta table, and those that are listed, are passed over.

    `owners` maps a table's name to the source that it was followed from so far: a pattern never changes that source.
    A table that a pattern found `before` stays if a folder above it cannot be listed now. A table that was followed so
    far also stays if its own folder cannot be read.
    """
    known = before.patterns if before else {}
    followed = {*known, *owners.values()}
    found = Found([table for table in settings.tables if not table.is_pattern])
    sources = {table.source for table in found.tables}
    claims = Claims()
    for table in found.tables:
        claims.add(table.source, table)
    for pattern in (table for table in settings.tables if table.is_pattern):
        storage = FileIOStorage(settings.file_properties(pattern.catalog))
        followed_here = {source for source, by in known.items() if by == pattern.source}
        followed_here |= {source for source in owners.values() if _fits(source, pattern.source)}
        try:
            matched, unlisted = _match(storage, pattern.source)
        except SyncError as error:
            found.troubles[pattern.source] = error
            fitting = followed_here
        else:
            folders = set(matched)
            found.troubles |= unlisted
            kept = {source for source in followed_here if _is_below(source, unlisted)}
            fitting = kept | _tables_among(folders - kept, storage, clock, followed, found.troubles)
        for source in sorted(source for source in fitting - sources if not _is_excluded(source, pattern)):
            sources.add(source)
            try:
                table = _table_of(settings, pattern, source, claims, owners)
            except Unsupported as error:
                found.troubles[source] = error
                continue
            claims.add(source, table)
            found.tables.append(table)
            found.patterns[source] = pattern.source
    # Only now: a table of another share takes its name and target all the same.
    owns = settings.share.owns
    found.others = [table for table in found.tables if not owns(table.target)]
    found.tables = [table for table in found.tables if owns(table.target)]
    return found


def owners_among(records: Iterable[TableRecord], share: Share) -> dict[str, str]:
    """The `owners` for `discover`. A row of a table that has moved to another share says nothing about it any more."""
    return {record.name: record.source for record in records if share.owns(record.target)}


def gone_among(records: Iterable[TableRecord], followed: Container[str], share: Share) -> list[TableRecord]:
    """The tables of our share that no entry or pattern leads to any more. `followed` are the names of all others."""
    return [record for record in records if record.name not in followed and share.owns(record.target)]


def _tables_among(
    folders: set[str], storage: FileIOStorage, clock: Clock, followed: set[str], troubles: dict[str, SyncError]
) -> set[str]:
    """The folders that hold a Delta table. One that cannot be read counts if it was `followed`, and is a trouble."""
    tables = set()
    for folder in sorted(folders):
        try:
            is_there = DeltaLog(storage, folder, clock).is_there()
        except SyncError as error:
            troubles[folder] = error
            is_there = folder in followed
        if is_there:
            tables.add(folder)
    return tables


def _table_of(
    settings: Settings, pattern: TableSettings, source: str, claims: Claims, owners: Mapping[str, str]
) -> TableSettings:
    """The table that `pattern` makes of `source`. Raises Unsupported, saying why, when it makes none."""
    try:
        check_path(source)
    except Unsupported as error:
        # An entry of its own would not help.
        raise Unsupported(error.message, hint="Rename the folder, or exclude it from the pattern.") from error
    try:
        table = pattern.for_found(source)
    except ValueError as error:
        raise Unsupported(str(error), hint=OUT_OF_PATTERN) from error
    owner = owners.get(table.name, source)
    faults = [*faults_of_found(settings, table), *(clash for _, clash in claims.clashes(table))]
    if owner != source and not faults:
        faults = [f"{table.name} was followed from {owner} so far"]
    if faults:
        raise Unsupported("; ".join(faults), hint=OUT_OF_PATTERN)
    return table


def find_pattern(settings: Settings, source: str) -> str | None:
    """The pattern that would find a table at `source`."""
    patterns = (table for table in settings.tables if table.is_pattern and _fits(source, table.source))
    return next((table.source for table in patterns if not _is_excluded(source, table)), None)


def vanished_by_pattern(
    settings: Settings, gone: Iterable[TableRecord], found: Container[str]
) -> dict[str, list[TableRecord]]:
    """The `gone` tables that a pattern would find if their folders were there, by the pattern.

    The folders in `found` are there: their tables have other names or targets now.
    """
    vanished: dict[str, list[TableRecord]] = {}
    for record in gone:
        pattern = None if record.source in found else find_pattern(settings, record.source)
        if pattern:
            vanished.setdefault(pattern, []).append(record)
    return vanished


def remember_vanished(store: TableStore, record: TableRecord, now_ms: int) -> TableRecord:
    """Remember since when the folder of a table is gone, unless the table has another error. Returns its row."""
    if record.error is not None or record.synced_version is None:
        return record
    error = described(log_gone(record.source), now_ms=now_ms)
    store.record_failure(record.id, error)
    return replace(record, error=error)


def _is_excluded(source: str, pattern: TableSettings) -> bool:
    return any(_fits("/".join(source.split("/")[-1 - folders.count("/") :]), folders) for folders in pattern.exclude)


def _fits(source: str, pattern: str) -> bool:
    """Whether `pattern` would find a table at `source`."""
    parts, wanted = source.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(
        fnmatchcase(part, _plain(want)) for part, want in zip(parts, wanted, strict=True)
    )


def _plain(part: str) -> str:
    """A part of a pattern for `fnmatch`, with all wildcards escaped but `*`."""
    return part.replace("[", "[[]").replace("?", "[?]")


def _is_below(source: str, folders: Iterable[str]) -> bool:
    return any(source.startswith(f"{folder}/") for folder in folders)


def _match(storage: FileIOStorage, pattern: str) -> tuple[list[str], dict[str, SyncError]]:
    """The folders that fit `pattern`, in which `*` stands for any part of one folder's name; hidden ones are left out.

    Also returns the folders on the way that cannot be listed, with the errors; missing folders are passed over. Raises
    ObjectMissing, ObjectStoreAway when the folder above the first `*` cannot be listed.
    """
    base = pattern.partition("*")[0].rpartition("/")[0]
    places, unlisted = [base], dict[str, SyncError]()
    for part in pattern.removeprefix(f"{base}/").split("/"):
        if "*" not in part:
            places = [f"{place}/{part}" for place in places]
            continue
        wanted = _plain(part)
        fitting = []
        for place in places:
            try:
                names = storage.list_folders(place)
            except SyncError as error:
                if place == base:
                    raise
                if not isinstance(error, ObjectMissing):
                    unlisted[place] = error
                continue
            fitting += [
                f"{place}/{name}" for name in names if fnmatchcase(name, wanted) and not name.startswith(("_", "."))
            ]
        places = fitting
    return places, unlisted
