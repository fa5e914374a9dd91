"""Which tables a configuration names: those listed one by one, and those that its source patterns find."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from msgspec.structs import replace

from daemon.clock import Clock
from daemon.config.checks import Claims, faults_of_found
from daemon.config.settings import Settings, SourceName, TableSettings
from daemon.config.share import Share
from daemon.delta.log import DeltaLog, log_gone
from daemon.errors import LogMissing, ObjectMissing, SyncError, Unsupported
from daemon.scheduling.failures import described
from daemon.sources.finder import find_entries, fits_entry, plain
from daemon.store.storage import FileIOStorage, check_path
from daemon.sync.memory import as_sync_error
from state import SourceEntry, TableRecord
from state.sql.tables import TableStore

# The ways out for a folder, or a table of a catalog, of which a pattern makes no table.
OUT_OF_PATTERN = "Give it an entry of its own, rename it, or exclude it from the pattern."


@dataclass
class Found:
    """The tables of this daemon's share: first those that are listed, then those of each pattern, by source.

    `others` are the tables of other shares. `patterns` maps a source to the pattern that found it. `troubles` maps a
    pattern or source to the error because of which something that may be a table is not among the tables. `passed_over`
    maps the name of what is no Delta table in a catalog to its kind.
    """

    tables: list[TableSettings] = field(default_factory=list)
    others: list[TableSettings] = field(default_factory=list)
    patterns: dict[str, str] = field(default_factory=dict)
    troubles: dict[str, SyncError] = field(default_factory=dict)
    passed_over: dict[str, str] = field(default_factory=dict)
    settings: Settings | None = field(default=None, compare=False)

    def joined_troubles(self) -> Iterator[tuple[Sequence[str], SyncError]]:
        """Yield each error once, with what it is about: that a catalog is away concerns all that is asked of it."""
        by_text: dict[tuple[str, str], list[str]] = {}
        for about, error in self.troubles.items():
            by_text.setdefault((str(error), error.hint), []).append(about)
        yield from ((places, self.troubles[places[0]]) for places in by_text.values())

    def kept(self) -> dict[str, list[str]]:
        """The names of the tables that stay only because a folder above them cannot be listed, by its trouble."""
        kept: dict[str, list[str]] = {}
        for table in self.tables:
            pattern = self.patterns.get(table.source)
            places = (place for place in self.troubles if place == pattern or _is_below(table.source, [place]))
            if pattern and (place := next(places, None)):
                kept.setdefault(place, []).append(table.name)
        return kept


def discover(
    settings: Settings, clock: Clock, records: Sequence[TableRecord] = (), before: Found | None = None
) -> Found:
    """Expand the patterns of `settings`. Folders without a Delta table, and those that are listed, are passed over.

    `records` are the tables that were followed so far: a pattern never changes their sources. One that was followed, or
    that a pattern found `before`, stays if a folder above it cannot be listed now, or the catalog that it was found in
    cannot be asked. A table that was followed so far also stays if its own folder cannot be read.
    """
    search = _Search(settings, clock, records, before or Found())
    # Names first: their tables have settings of their own.
    patterns = [table for table in settings.tables if table.is_pattern]
    for pattern in sorted(patterns, key=lambda each: "*" in each.source):
        if wanted := pattern.source_name:
            search.ask_catalog(pattern, wanted)
        else:
            search.list_folders(pattern)
    found = search.found
    # Only now: a table of another share takes its name and target all the same.
    every, found.tables = found.tables, []
    for table in every:
        (found.tables if settings.share.owns(table.target) else found.others).append(table)
    return found


class _Search:
    """Adds what each pattern finds to `found`, in which the tables that are listed one by one are already."""

    def __init__(self, settings: Settings, clock: Clock, records: Sequence[TableRecord], before: Found) -> None:
        self._settings = settings
        self._clock = clock
        # A row of a table that has moved to another share says nothing about it any more.
        self._records = [record for record in records if settings.share.owns(record.target)]
        self._owners = {record.name: record.source for record in self._records}
        self._before = before
        self._claims = Claims(settings)
        self.found = Found([table for table in settings.tables if not table.is_pattern], settings=settings)
        # What these settings made before, they make again.
        made = (*before.tables, *before.others) if before.settings is settings else ()
        self._made = {table.source: table for table in made}
        self._sources = {table.source for table in self.found.tables}
        for table in self.found.tables:
            self._claims.add(table.source, table)

    def list_folders(self, pattern: TableSettings) -> None:
        """Find tables by listing folders."""
        storage = FileIOStorage(self._settings.file_properties(pattern.catalog))
        known, troubles = self._before.patterns, self.found.troubles
        followed_here = {source for source, by in known.items() if by == pattern.source}
        followed_here |= {source for source in self._owners.values() if _fits(source, pattern.source)}
        try:
            matched, unlisted = _match(storage, pattern.source)
        except SyncError as error:
            troubles[pattern.source] = error
            fitting = followed_here
        else:
            folders = set(matched)
            troubles |= unlisted
            kept = {source for source in followed_here if _is_below(source, unlisted)}
            followed = {*known, *self._owners.values()}
            fitting = kept | _tables_among(folders - kept, storage, self._clock, followed, troubles)
        for source in sorted(source for source in fitting if not _is_excluded(source, pattern)):
            self._add(pattern, source)

    def ask_catalog(self, pattern: TableSettings, wanted: SourceName) -> None:
        """Find tables by asking a catalog."""
        try:
            entries, passed_over = find_entries(self._settings, wanted)
            self.found.passed_over |= passed_over
        except Exception as raised:  # Of libraries, too: the other tables are followed.
            self.found.troubles[pattern.source] = error = as_sync_error(raised)
            known = [] if isinstance(error, LogMissing) else self._known_entries()
            entries = [entry for entry in known if fits_entry(wanted, entry)]
        for entry in sorted(entries, key=_name_of):
            if not _is_excluded(_name_of(entry), pattern):
                self._add(pattern, entry.location, entry)

    def _known_entries(self) -> Collection[SourceEntry]:
        """What catalogs said before of each place. The newest counts: a table may have had another name."""
        by_sync = sorted(self._records, key=lambda record: record.last_synced_at_ms or 0)
        entries = [record.entry for record in by_sync]
        entries += [table.entry for table in (*self._before.tables, *self._before.others)]
        return {entry.location: entry for entry in entries if entry}.values()

    def _add(self, pattern: TableSettings, source: str, entry: SourceEntry | None = None) -> None:
        """Add the table that `pattern` makes of `source`, or the trouble because of which it makes none."""
        if source in self._sources:
            if "*" not in pattern.source:
                hint = "Name the table once; or, if two tables should be there, correct the catalog."
                self.found.troubles[pattern.source] = Unsupported(f"{source} is followed already", hint=hint)
            return
        self._sources.add(source)
        try:
            table = self._table_of(pattern, source, entry)
        except Unsupported as error:
            self.found.troubles[entry.full_name if entry else source] = error
            return
        self._claims.add(source, table)
        self.found.tables.append(table)
        self.found.patterns[source] = pattern.source

    def _table_of(self, pattern: TableSettings, source: str, entry: SourceEntry | None) -> TableSettings:
        """Raises Unsupported, saying why, if the pattern makes no table of `source`."""
        table, faults = self._made.get(source), list[str]()
        if table is None or table.entry != entry or self._before.patterns.get(source) != pattern.source:
            try:
                check_path(source)
            except Unsupported as error:
                # An entry of its own would not help.
                raise Unsupported(error.message, hint="Rename the folder, or exclude it from the pattern.") from error
            try:
                table = pattern.for_entry(entry) if entry else pattern.for_found(source)
            except ValueError as error:
                raise Unsupported(str(error), hint=OUT_OF_PATTERN) from error
            faults = list(faults_of_found(self._settings, table))
        faults += (clash for _, clash in self._claims.clashes(table))
        owner = self._owners.get(table.name, source)
        if owner != source and not faults:
            raise Unsupported(
                f"{table.name} was followed from {owner} so far",
                hint=f"If that table is gone for good, run `dvsync forget {table.name}`, and then `dvsync resync "
                f"{table.name}` to show this one under its name.",
            )
        if faults:
            raise Unsupported("; ".join(faults), hint=OUT_OF_PATTERN)
        return table


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


def find_pattern(settings: Settings, source: str, entry: SourceEntry | None) -> str | None:
    """The pattern that would find a table at `source`, which was found in a catalog if it has an `entry`."""
    for table in settings.tables:
        if wanted := table.source_name:
            if entry and fits_entry(wanted, entry) and not _is_excluded(_name_of(entry), table):
                return table.source
        elif table.is_pattern and _fits(source, table.source) and not _is_excluded(source, table):
            return table.source
    return None


def vanished_by_pattern(
    settings: Settings, gone: Iterable[TableRecord], found: Container[str]
) -> dict[str, list[TableRecord]]:
    """The `gone` tables that a pattern would find if their folders were there, by the pattern.

    The folders in `found` are there: their tables have other names or targets now.
    """
    vanished: dict[str, list[TableRecord]] = {}
    for record in gone:
        pattern = None if record.source in found else find_pattern(settings, record.source, record.entry)
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


def _name_of(entry: SourceEntry) -> str:
    """As the words of `exclude` are compared with it."""
    return f"{entry.catalog}/{entry.schema}/{entry.table}"


def _is_excluded(source: str, pattern: TableSettings) -> bool:
    return any(_fits("/".join(source.split("/")[-1 - folders.count("/") :]), folders) for folders in pattern.exclude)


def _fits(source: str, pattern: str) -> bool:
    """Whether `pattern` would find a table at `source`."""
    parts, wanted = source.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(
        fnmatchcase(part, plain(want)) for part, want in zip(parts, wanted, strict=True)
    )


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
        wanted = plain(part)
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
