"""The tables that the daemon follows: kept in step with the configuration and its patterns while it runs."""

from __future__ import annotations

from collections import deque
from time import thread_time
from typing import NamedTuple

import structlog

from daemon.clock import Clock
from daemon.config.settings import LimitsSettings, Settings, TableSettings
from daemon.errors import ConfigInvalid, Unsupported
from daemon.maintenance.maintainer import Maintainer
from daemon.observe import log as events
from daemon.scheduling.cycle import TableCycle, is_held
from daemon.scheduling.failures import logged_if_away
from daemon.scheduling.jobs import MaintenanceJob, VerifyJob
from daemon.scheduling.scheduler import Scheduler
from daemon.service.assembly import Parts
from daemon.service.discovery import Found, discover, gone_among, remember_vanished, vanished_by_pattern
from daemon.sources.finder import SourceCatalog, open_catalog
from daemon.status.board import Board, Topic, Unready
from daemon.status.reading import address_of
from daemon.status.table_status import gone_status
from daemon.status.watch import Watch
from daemon.status.wording import paused_text
from daemon.sync.memory import keep_rows
from daemon.sync.verbs import Verb, pause, resume, want_resync
from daemon.texts import counted, some_of
from state import Pause, StateUnavailable

REQUESTS_JOB = "/requests"
# How soon a `dvsync pause`, `resume` or `resync` in another terminal is seen; later if looking for it would take more
# than this share of a core, as with thousands of tables.
REQUESTS_INTERVAL_S = 2.0
REQUESTS_SHARE_MAX = 0.005
REQUESTS_WAIT_MAX_S = 30.0
# How often the folders of source patterns are listed.
DISCOVERY_INTERVAL_S = 30.0
PROGRESS_INTERVAL_S = 10.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _Definition(NamedTuple):
    """All settings that concern one table: when one of them changes, the table is set up again."""

    table: TableSettings
    properties: dict[str, str]
    limits: LimitsSettings
    source_catalog: SourceCatalog | None

    @property
    def target(self) -> tuple[str, str]:
        return self.table.catalog, self.table.target


class LogProgress:
    """A `Progress` that logs a line at each PROGRESS_INTERVAL_S, and nothing for shorter work. One for each table."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0, ""
        self._logged_at_s = clock.monotonic_s()

    def advanced(self, done: int, total: int, what: str) -> None:
        now_s = self._clock.monotonic_s()
        if what != self._last[1] or done < self._last[0]:
            self._logged_at_s = now_s  # Another piece of work has begun.
        self._last = (done, what) if done < total else (0, "")
        if now_s - self._logged_at_s >= PROGRESS_INTERVAL_S:
            self._logged_at_s = now_s
            _log.info(events.SYNC_PROGRESSED, done=done, total=total, what=what)


class Fleet:
    """Adds and removes the scheduler's tables. A table that is being synced is changed after its sync has ended."""

    def __init__(self, parts: Parts, board: Board, scheduler: Scheduler) -> None:
        self._parts = parts
        self._board = board
        self._scheduler = scheduler
        # What is followed, by name. Leaving tables are not polled any more; their running jobs have to end.
        self._running: dict[str, _Definition] = {}
        self._cycles: dict[str, TableCycle] = {}
        self._leaving: set[str] = set()
        self._gone: set[str] = set()
        # Tables that were never synced and seem to be gone: shown if the next listing does not find them either.
        self._unsynced: set[str] = set()
        self._found = Found()
        # What `_apply` has nothing to do for any more.
        self._applied: Found | None = None
        # Whether all is shown of it, and no table is gone.
        self._is_settled = False
        self._discovery_due_s = parts.clock.monotonic_s()
        # Handed over from another thread.
        self._changed: deque[Settings] = deque(maxlen=1)
        self._watch: Watch | None = None

    def change(self, settings: Settings) -> None:
        """Follow other settings from the next `update` on. `run.py` decides which keys can change."""
        self._changed.append(settings)

    def update(self) -> None:
        """Apply changed settings, list the folders of patterns if that is due, and add and remove tables.

        For one thread at a time.
        """
        if self._changed:
            settings, self._applied = self._changed.pop(), None
            self._parts = self._parts.with_settings(settings)
            self._scheduler.resize(settings.limits.tables_at_once)
            self._discovery_due_s = self._parts.clock.monotonic_s()
        with logged_if_away(events.STATE_UNREAD):
            if self._watch is None:
                # Before the first table is followed: people are notified of what changes from now on.
                records = self._parts.store.list_tables()
                self._watch = Watch(self._parts.notifier(self._board), self._parts.clock, records, repeats_synced=True)
            if self._parts.clock.monotonic_s() >= self._discovery_due_s:
                self._discover()
            if self._applied is not self._found:
                self._is_settled = False
                self._apply()
            # Each table that runs has a row: mostly there are no others, and nothing is new.
            if self._is_settled and self._parts.store.count_tables() == len(self._running):
                return
            self._show_gone()
            self._is_settled = self._applied is self._found and not self._gone
        share = self._parts.settings.share
        self._board.others = {table.name: share.owner_of(table.target) for table in self._found.others}
        missing = [table.name for table in self._found.tables if table.name not in self._running]
        self._board.set_unready(Topic.TABLES, [Unready(name, "it is not followed yet") for name in missing])

    def read_requests(self) -> float | None:
        """Wake the tables whose rows a person changed in the state store, and send notices of what else changed.

        May run beside `update`. Returns how long to wait, if the rows of thousands of tables take their time.
        """
        began_s = thread_time()
        with logged_if_away(events.STATE_UNREAD):
            records = self._parts.store.list_tables()
            for read in records:
                cycle = self._cycles.get(read.name)
                if cycle and cycle.notice(read):
                    self._scheduler.wake(cycle.name)
            if self._watch:
                self._watch.compare(records, self._board.find_status, self._board.gone)
        wait_s = (thread_time() - began_s) / REQUESTS_SHARE_MAX
        return min(wait_s, REQUESTS_WAIT_MAX_S) if wait_s > REQUESTS_INTERVAL_S else None

    def ask(self, name: str, verb: Verb, wanted: Pause | None = None) -> str:
        """Do what a person asks of a table through the API, as the commands do. Returns what happens now.

        `wanted` is the pause that PAUSE asks for.

        From any thread. Raises ConfigInvalid, Unsupported, StateUnavailable.
        """
        definition, cycle = self._running.get(name), self._cycles.get(name)
        if definition is None or cycle is None or name in self._leaving:
            raise ConfigInvalid(f"{name}: the daemon does not follow it now", hint=f"GET /api/tables/{name} says why.")
        store, table = self._parts.store, definition.table
        match verb:
            case Verb.SYNC:
                record = store.open_table(table.name, table.source, table.target)
                if is_held(record):
                    hint = f"First resume it: `dvsync resume {name}`, or POST /api/tables/{name}/resume."
                    held = paused_text(record.pause) if record.pause else "parked"
                    raise Unsupported(f"{name} is {held}", hint=hint)
                cycle.doubt()
                self._scheduler.wake(name)
                return "is polled now"
            case Verb.PAUSE:
                assert wanted is not None
                pause(store, table, wanted)
                said = "paused"
            case Verb.RESUME:
                said = "resumed" if resume(store, table) else "was neither parked, paused nor retrying; nothing to do"
            case Verb.RESYNC:
                said = want_resync(store, table, self._parts.clock.now_ms())
        self._scheduler.wake(REQUESTS_JOB)
        return said

    def _discover(self) -> None:
        parts, before = self._parts, self._found
        found = discover(parts.settings, parts.clock, parts.store.list_tables(), before)
        # Mostly nothing is new, and thousands of tables need not be compared one by one.
        self._found = before if found == before else found
        troubles = self._found.troubles
        for about, error in troubles.items():
            if str(before.troubles.get(about)) != str(error):
                _log.warning(events.PATTERN_REFUSED, source=about, reason=error.message, hint=error.hint)
        kept = self._found.kept()
        reasons = []
        for places, error in self._found.joined_troubles():
            number = sum(len(kept.get(place, ())) for place in places)
            they = "it" if len(places) == 1 else "they"
            before_it = f"; {they} found {counted(number, 'table')} before" if number else ""
            reasons.append(Unready(None, f"{some_of(places)}: {error.message} ({error.hint}){before_it}"))
        self._board.set_unready(Topic.SOURCES, reasons)
        self._board.excused = {name for names in kept.values() for name in names}
        self._discovery_due_s = self._parts.clock.monotonic_s() + DISCOVERY_INTERVAL_S

    def _apply(self) -> None:
        settings = self._parts.settings
        # A changed number of slots must not set every table up again.
        limits = settings.limits.model_copy(update={"tables_at_once": 1})
        sources = {table.entry.source for table in self._found.tables if table.entry}
        clients = {source: open_catalog(settings, source) for source in sources}
        wanted = {
            table.name: _Definition(
                table,
                settings.file_properties(table.catalog),
                limits,
                clients[table.entry.source] if table.entry else None,
            )
            for table in self._found.tables
        }
        changed = {name for name, definition in self._running.items() if wanted.get(name) != definition}
        for name in changed - self._leaving:
            self._scheduler.remove(name)
            del self._cycles[name]
            self._leaving.add(name)
        for name in [name for name in self._leaving if not self._scheduler.is_busy(name)]:
            self._leaving.remove(name)
            del self._running[name]
            if name in wanted:
                self._board.remove(name)
            _log.info(events.TABLE_REMOVED, table=name)
        # A new table with the same target waits until the leaving one has ended.
        taken = {self._running[name].target for name in self._leaving}
        added = [each for name, each in wanted.items() if name not in self._running and each.target not in taken]
        if added:
            keep_rows(self._parts.store, [definition.table for definition in added], {*wanted, *self._running})
        for definition in added:
            self._add(definition)
        self._board.arrange(list(wanted))
        if self._running.keys() == wanted.keys() and not self._leaving:
            self._applied = self._found

    def _show_gone(self) -> None:
        """Show the tables that are no longer followed, until they come back or are forgotten."""
        parts, now_ms = self._parts, self._parts.clock.now_ms()
        followed = {*self._running, *(table.name for table in self._found.tables)}
        gone = gone_among(parts.store.list_tables(), followed, parts.settings.share)
        unsynced = {record.name for record in gone if record.synced_version is None} - self._gone
        if unsynced - self._unsynced:
            # A command made the row, perhaps of a folder that no listing has found yet.
            self._discovery_due_s = parts.clock.monotonic_s()
            gone = [record for record in gone if record.name not in unsynced]
        self._unsynced = unsynced
        for record in gone:
            if record.name not in self._gone:
                _log.warning(events.TABLE_GONE, table=record.name, source=record.source, target=record.target)
        self._gone = {record.name for record in gone}
        there = {table.source for table in (*self._found.tables, *self._found.others)}
        vanished = vanished_by_pattern(parts.settings, gone, there)
        ids = {record.id for records in vanished.values() for record in records}
        gone = [remember_vanished(parts.store, record, now_ms) if record.id in ids else record for record in gone]
        self._board.gone = {
            record.name: gone_status(record, parts.store.count(record.id), now_ms, is_vanished=record.id in ids)
            for record in gone
        }
        # Only now, so that a table that is gone is shown at every moment.
        for name in self._board.names - {*self._running}:
            self._board.remove(name)
        # Only a vanished folder makes the daemon unready: whoever removed an entry knows about it.
        reasons, finding = list[Unready](), {*self._found.patterns.values()}
        for pattern, records in vanished.items():
            if pattern in finding or len(records) == 1:
                reason = "its folder is gone: bring it back, or `dvsync forget` the table"
                reasons += [Unready(record.name, reason) for record in records]
            else:
                reason = f"{pattern}: finds no table, and {len(records)} are gone. Is the volume mounted?"
                reasons.append(Unready(None, reason))
        self._board.set_unready(Topic.GONE, reasons)

    def _add(self, definition: _Definition) -> None:
        parts, board, table = self._parts, self._board, definition.table
        board.add(table, address=address_of(definition.properties))
        try:
            context = parts.context(table, LogProgress(parts.clock), board)
            cycle = parts.cycle(context, board)
        except StateUnavailable:
            board.remove(table.name)
            raise
        job = MaintenanceJob(cycle, Maintainer(context), board=board, clock=parts.clock)
        self._scheduler.add(cycle, job, VerifyJob(cycle, context))
        self._cycles[table.name] = cycle
        self._running[table.name] = definition
        _log.info(events.TABLE_ADDED, table=table.name, source=table.source, target=table.target)
