"""The board: the newest status of every table, and what makes the daemon unready. In memory: a probe costs nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from threading import Lock
from types import MappingProxyType

import msgspec

from daemon.clock import Clock
from daemon.config.settings import TableSettings
from daemon.config.share import ALL, Share
from daemon.errors import SourceCatalogAway, StateStoreAway, Unauthorized
from daemon.masking import scrub
from daemon.status.activity import Activity
from daemon.status.reading import read_lines
from daemon.status.table_status import ErrorStatus, Observation, SyncState, TableStatus, table_status, worst_first
from daemon.status.wording import count_states, differing_text
from daemon.texts import excerpt, some_of, span
from state import SyncRun


class Topic(Enum):
    """What a reason for not being ready is about, when it is not the status of one table."""

    LEASE = auto()
    STATE = auto()
    CONFIGURATION = auto()
    SOURCES = auto()
    TABLES = auto()
    GONE = auto()


# The kinds of errors that concern all tables of a catalog.
SOURCE_AWAY = (SourceCatalogAway.__name__, Unauthorized.__name__)
# So much of an error's message is in a reason of `/readyz`, which may have one for each table.
MESSAGE_CHARACTERS_MAX = 300
# So many syncs of each table are on its page.
RUNS_MAX = 50


class Unready(msgspec.Struct, frozen=True):
    """A reason why `/readyz` says no. `table` is null when the reason concerns the whole daemon."""

    table: str | None
    reason: str


@dataclass
class _Row:
    """What is shown of a table. `address` is where its files are, if that is not Amazon's own S3."""

    table: TableSettings
    address: Mapping[str, str]
    seen: Observation = field(default_factory=Observation)
    runs: deque[SyncRun] = field(default_factory=lambda: deque(maxlen=RUNS_MAX))


class Board:
    """The latest observation of each table, and the scheduler's heartbeat. Safe to use from any thread."""

    def __init__(self, clock: Clock, *, lag_budget_s: float, share: Share = ALL) -> None:
        self._clock = clock
        self._lag_budget_s = lag_budget_s
        self._lock = Lock()
        self._rows: dict[str, _Row] = {}
        self.activity = Activity()
        self._troubles: dict[Topic, list[Unready]] = {}
        # Tables that are no longer followed and were not forgotten, by name.
        self.gone: Mapping[str, TableStatus] = {}
        self.share = share
        # Which share follows each of the tables that we do not follow, by name.
        self.others: Mapping[str, Share] = {}
        # That the logs of these tables are gone is not reported: their pattern already has a reason.
        self.excused: Set[str] = set()
        self._beaten_at_s = clock.monotonic_s()
        self.started_at_ms = clock.now_ms()

    def add(self, table: TableSettings, *, address: Mapping[str, str] = MappingProxyType({})) -> None:
        self.activity.expect(table.name)
        with self._lock:
            self._rows[table.name] = _Row(table, address)

    @property
    def names(self) -> set[str]:
        with self._lock:
            return {*self._rows}

    def remove(self, name: str) -> None:
        with self._lock:
            del self._rows[name]
        self.activity.forget(name)

    def arrange(self, names: Sequence[str]) -> None:
        """Show the tables in the order of `names`; tables that are not named come last."""
        places = {name: place for place, name in enumerate(names)}
        with self._lock:
            self._rows = dict(sorted(self._rows.items(), key=lambda named: places.get(named[0], len(places))))

    def set_unready(self, topic: Topic, reasons: Sequence[Unready]) -> None:
        """The reasons replace those of the same topic."""
        with self._lock:
            self._troubles[topic] = list(reasons)

    def add_runs(self, name: str, runs: Iterable[SyncRun]) -> None:
        """Show these syncs, too, the oldest first, unless the table was removed in the meantime."""
        with self._lock:
            if row := self._rows.get(name):
                row.runs.extend(runs)

    def runs(self, name: str) -> list[SyncRun]:
        with self._lock:
            return list(reversed(self._rows[name].runs)) if name in self._rows else []

    def show(self, name: str, seen: Observation) -> None:
        """Show the newest observation, unless the table was removed in the meantime."""
        with self._lock:
            if row := self._rows.get(name):
                row.seen = seen

    def beat(self) -> None:
        self._beaten_at_s = self._clock.monotonic_s()

    def read_lines(self, name: str) -> dict[str, str]:
        """A line for each reader that reads the Iceberg table; empty before the first sync, and once it is gone."""
        with self._lock:
            row = self._rows.get(name)
            record = row.seen.record if row else None
        if row is None or record is None or record.metadata_location is None:
            return {}
        target = row.table.target.split(".")
        lines = read_lines(row.table.catalog, target, record.metadata_location, address=row.address)
        return {reader: scrub(line) for reader, line in lines.items()}

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def silent_s(self) -> float:
        return self._clock.monotonic_s() - self._beaten_at_s

    def statuses(self) -> list[TableStatus]:
        """All tables, in the order of the configuration; those that are gone come last."""
        followed = [self._status(table, seen) for table, seen in self._observed()]
        shown = {status.name for status in followed}
        with self._lock:
            return [*followed, *(status for name, status in self.gone.items() if name not in shown)]

    def find_status(self, name: str) -> TableStatus | None:
        with self._lock:
            row = self._rows.get(name)
            if row is None:
                return self.gone.get(name)
        return self._status(row.table, row.seen)

    def _status(self, table: TableSettings, seen: Observation) -> TableStatus:
        return table_status(table, seen, self._clock.now_ms(), now_s=self._clock.monotonic_s())

    def summary(self) -> str:
        """One line on all tables: how many in which state, the worst of them with its error, or why none."""
        statuses = self.statuses()
        line = count_states(statuses)
        if not statuses:
            with self._lock:
                return "; ".join([line, *(each.reason for reasons in self._troubles.values() for each in reasons)])
        worst = worst_first(statuses)[0]
        return f"{line}; {worst.name}: {worst.error.kind}: {worst.error.message}" if worst.error else line

    @property
    def why_standing_by(self) -> str | None:
        """Why the lease is not ours: another process holds it, or the state database cannot be written."""
        with self._lock:
            reasons = self._troubles.get(Topic.LEASE)
        return reasons[0].reason if reasons else None

    def find_unready(self) -> list[Unready]:
        """All reasons for not being ready. A paused table, and one whose source is not there yet, are no reasons."""
        with self._lock:
            troubles = [unready for topic in Topic for unready in self._troubles.get(topic, ())]
            knows_state = bool(self._troubles.get(Topic.STATE))
        if not knows_state:
            # A table meets it before the lease is renewed the next time.
            errors = (seen.record.error for _, seen in self._observed() if seen.record)
            away = next((error for error in errors if error and error.kind == StateStoreAway.__name__), None)
            troubles += [Unready(None, f"the state database cannot be used: {away.message}")] if away else []
        troubles += self._source_troubles(troubles)
        # A share may have no table when there are few.
        if not self._rows and not troubles and not self.others:
            return [Unready(None, "no tables are configured")]
        now_s = self._clock.monotonic_s()
        reasons, differing = [], []
        for table, seen in self._observed():
            status = self._status(table, seen)
            if reason := self._unready(table, seen, status, now_s):
                reasons.append(Unready(table.name, reason))
            if status.proof and not status.proof.is_right:
                differing.append(Unready(table.name, f"it {differing_text(status.proof)}"))
        return troubles + reasons + differing

    def _source_troubles(self, known: Sequence[Unready]) -> Iterator[Unready]:
        """Yield why catalogs of `sources` cannot be asked, each reason once: no listing may have met it yet."""
        tables: dict[str, list[str]] = {}
        for table, seen in self._observed():
            record = seen.record
            error = record.error if record and not record.pause_at(self._clock.now_ms()) else None
            # The next try may end a single failure.
            if error and error.kind in SOURCE_AWAY and error.consecutive > 1:
                tables.setdefault(f"{error.message} ({error.hint})", []).append(table.shown_source)
        for reason, names in tables.items():
            if not any(reason in each.reason for each in known):
                yield Unready(None, f"{some_of(names)}: {reason}")

    def _observed(self) -> list[tuple[TableSettings, Observation]]:
        with self._lock:
            return [(row.table, row.seen) for row in self._rows.values()]

    def _unready(self, table: TableSettings, seen: Observation, status: TableStatus, now_s: float) -> str | None:
        is_excused = status.state is SyncState.GONE and table.name in self.excused
        if status.state is SyncState.PAUSED or is_excused:
            return None
        if status.state is SyncState.PARKED:
            return f"parked: {_brief(status.error)}" if status.error else "parked"
        if status.state is SyncState.GONE:
            return "its Delta log is gone: bring it back, or remove its entry and `dvsync forget` the table"
        failing = f"retrying since {status.error.since}: {_brief(status.error)}" if status.error else None
        silent_s = seen.silent_s(now_s)
        if silent_s is None:
            return failing if status.state is SyncState.RETRYING else _untried(status)
        # While the source does not answer, the lag is unknown.
        is_silent = not seen.syncing and silent_s > table.poll_interval_s + self._lag_budget_s
        if status.lag_seconds is not None and status.lag_seconds > self._lag_budget_s:
            late = f"behind for {span(status.lag_seconds)}, more than the budget of {span(self._lag_budget_s)}"
            return f"{late}; {failing}" if failing else late
        return (failing or f"its source could not be checked for {span(silent_s)}") if is_silent else None


def _brief(error: ErrorStatus) -> str:
    return f"{error.kind}: {excerpt(error.message, MESSAGE_CHARACTERS_MAX)}"


def _untried(status: TableStatus) -> str:
    """Why a table that this process has neither synced nor failed yet is not ready."""
    error = status.error
    begun = "its first sync since the start is running" if status.state is SyncState.SYNCING else "not checked yet"
    return f"{begun}; the last error was {error.kind}, since {error.since}" if error else begun
