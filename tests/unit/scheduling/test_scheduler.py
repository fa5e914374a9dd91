"""One table's cycle on a clock that the test moves, and the scheduler with real threads and short intervals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from threading import Event
from types import SimpleNamespace
from unittest import mock

import pytest
import structlog
from structlog.testing import capture_logs

from daemon.clock import SystemClock
from daemon.config.settings import MaintenanceSettings, TableSettings
from daemon.errors import (
    AccountMismatch,
    CommitOutcomeUnknown,
    ConfigInvalid,
    CorruptInput,
    ObjectMissing,
    ObjectStoreAway,
    ProofFailed,
    ResyncNeeded,
    SyncError,
    TargetChanged,
    Unsupported,
)
from daemon.maintenance.cleanup import Cleanup
from daemon.maintenance.compaction import Compaction
from daemon.maintenance.expiry import Expiry
from daemon.maintenance.maintainer import Round
from daemon.scheduling import poll_threads
from daemon.scheduling.cycle import TableCycle
from daemon.scheduling.failures import BACKOFF_MAX_S, described
from daemon.scheduling.jobs import MaintenanceJob, VerifyJob
from daemon.scheduling.observer import Observer
from daemon.scheduling.scheduler import Scheduler
from daemon.scheduling.slots import Slots
from daemon.service.fleet import Fleet
from daemon.status.board import Board
from daemon.status.table_status import SyncState, TableStatus
from daemon.sync.outcomes import SyncOutcome, SyncResult
from state import FileKind, FileStatus, Outcome, Pause, StateUnavailable, SyncRun, TableError, WrittenFile
from tests.kit.boards import board_of
from tests.kit.memory_store import MemoryStateStore

WAIT_S = 10.0
PAUSE = Pause(1_000, "ada on lake-1")


class FakeClock:
    def __init__(self) -> None:
        self.time_s = 1_000.0
        self.ahead_s = 0.0

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int((self.time_s + self.ahead_s) * 1000)

    def monotonic_s(self) -> float:
        return self.time_s


class FlakyStore(MemoryStateStore):
    """The store of the tests; `is_away` makes its writes fail."""

    is_away = False

    def record_failure(self, table_id: int, error: TableError) -> None:
        if self.is_away:
            raise StateUnavailable("disk full")
        super().record_failure(table_id, error)

    def end_pause(self, table_id: int, *, at_ms: int) -> None:
        if self.is_away:
            raise StateUnavailable("disk full")
        super().end_pause(table_id, at_ms=at_ms)

    def record_run(self, run: SyncRun) -> None:
        if self.is_away:
            raise StateUnavailable("disk full")
        super().record_run(run)


class FakeFollower:
    """Follows a source that is a number, `newest`, and is its log as well.

    Raises `fails` when set, and stops in `gate` when given one.
    """

    def __init__(self, table: TableSettings, store: MemoryStateStore) -> None:
        self.table = table
        self.store = store
        self.newest: int | None = 0
        self.fails: Exception | None = None
        self.poll_fails: Exception | None = None
        self.poll_gate: Event | None = None
        self.versions_per_sync = 1
        self.gate: Event | None = None
        self.entered = Event()
        self.polls = 0
        self.syncs = 0
        self.comparisons = 0
        self.in_doubt = False
        self.others_waited = False
        self.meanwhile: Callable[[], None] = lambda: None

    @property
    def synced(self) -> int | None:
        return self.store.open_table(self.table.name, self.table.source, self.table.target).synced_version

    def has_news(self) -> bool:
        self.polls += 1
        if self.poll_gate:
            self.poll_gate.wait(WAIT_S)
        if self.poll_fails:
            raise self.poll_fails
        behind = self.newest is None or self.synced is None or self.synced < self.newest
        return behind or self.fails is not None or self.in_doubt

    def doubt(self) -> None:
        self.in_doubt = True

    def compare(self, reason: str) -> None:
        self.in_doubt = True
        self.comparisons += 1

    def find_newest(self, known: int | None) -> int | None:
        return self.newest

    def find_written_ms(self, version: int) -> int | None:
        return 1_700_000_000_000 if self.newest is not None and version <= self.newest else None

    def sync(self, *, stop: Event, full: bool = False, others_wait: Callable[[], bool] = bool) -> SyncResult:
        self.others_waited = others_wait()
        self.meanwhile()
        self.syncs += 1
        self.entered.set()
        if self.gate:
            while not (self.gate.wait(0.01) or stop.is_set()):
                pass
        if self.fails:
            raise self.fails
        if self.in_doubt:
            self.in_doubt = False
            self.store.record_resync_wanted(1, False)
        record = self.store.open_table(self.table.name, self.table.source, self.table.target)
        start = -1 if record.synced_version is None else record.synced_version
        if self.newest is None:
            return SyncResult(SyncOutcome.WAITING, None, None)
        if start == self.newest:
            return SyncResult(SyncOutcome.UNCHANGED, None, start)
        end = min(self.newest, start + self.versions_per_sync)
        outcome = Outcome(record.id, "delta-id", record.synced_version, end, 1_700_000_000_000, snapshot_id=end + 100)
        self.store.record_synced(None, outcome, at_ms=1_700_000_000_000)
        return SyncResult(
            SyncOutcome.ADVANCED, start + 1, end, snapshot_id=end + 100, snapshots=1, more=end < self.newest
        )


def settings_of(name: str, poll_interval: str = "10s") -> TableSettings:
    return TableSettings(
        source=f"file:///data/{name}",
        target=f"db.{name}",
        name=name,
        poll_interval=poll_interval,
        maintenance=MaintenanceSettings(interval="1s"),
    )


class Bench:
    """One table on a clock of its own."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = FlakyStore()
        self.table = settings_of("orders")
        self.follower = FakeFollower(self.table, self.store)
        self.board = board_of([self.table], self.clock, lag_budget_s=300)
        self.scheduler = Scheduler(self.clock, tables_at_once=1)
        self.slots = self.scheduler._slots
        self.start()

    def start(self) -> None:
        """What a new process does."""
        self.cycle = TableCycle(
            self.follower,
            Observer(self.table, self.follower, store=self.store, board=self.board, clock=self.clock),
            store=self.store,
            clock=self.clock,
            random=Random(1),
        )

    def poll(self, after_s: float = 0.0):
        self.clock.time_s += after_s
        return self.scheduler._take_turn(self.cycle)

    @property
    def status(self) -> TableStatus:
        return self.board.statuses()[0]

    @property
    def runs(self) -> list[SyncRun]:
        return self.store.list_runs(1, runs_max=100)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def away() -> SyncError:
    return ObjectStoreAway("no answer", hint="Check the network.", path="s3://b/x")


# --- one cycle ---


def test_news_is_synced_once_and_shown(bench):
    """A sync moves the board and leaves one run; polls without news after it leave none."""
    assert bench.status.state is SyncState.WAITING
    assert [unready.reason for unready in bench.board.find_unready()] == ["not checked yet"]
    verdict = bench.poll()
    assert (verdict.result.to_version, verdict.delay_s) == (0, None)
    for _ in range(3):
        bench.poll(after_s=10)
    assert (bench.follower.syncs, bench.follower.polls) == (1, 4)
    assert [(run.outcome, run.to_version) for run in bench.runs] == [("advanced", 0)]
    status = bench.status
    assert (status.state, status.synced_version, status.lag_versions, status.lag_seconds) == ("synced", 0, 0, 0.0)
    assert (status.snapshot_id, status.live_data_files) == (100, 0)
    assert bench.board.find_unready() == []


def test_a_cycle_that_stopped_at_a_bound_comes_again_at_once(bench):
    """`more` asks for the next cycle without waiting for the poll interval, and the table is behind until then."""
    bench.follower.newest = 2
    assert bench.poll().delay_s == 0.0
    assert (bench.status.state, bench.status.lag_versions) == ("behind", 2), "not only the next version"
    assert bench.status.lag_seconds == pytest.approx(1_000)
    assert bench.poll().delay_s == 0.0
    assert bench.status.lag_versions == 1
    assert bench.poll().delay_s is None
    assert bench.status.state is SyncState.SYNCED


def test_a_source_that_is_not_there_yet_is_waited_for(bench):
    """No error, no run, ready; picked up when it appears."""
    bench.follower.newest = None
    bench.poll()
    assert bench.status.state is SyncState.WAITING
    assert (bench.runs, bench.board.find_unready()) == ([], [])
    bench.follower.newest = 0
    bench.poll(after_s=10)
    assert bench.status.state is SyncState.SYNCED


@pytest.mark.parametrize(
    "error",
    [
        away(),
        CommitOutcomeUnknown("perhaps landed", hint="dvsync looks for its marker."),
        ResyncNeeded("a gap", hint="States are compared."),
        StateUnavailable("locked"),
        ZeroDivisionError("a bug"),
    ],
)
def test_a_passing_error_is_retried_with_growing_waits(bench, error):
    """The wait doubles from seconds to the cap, with jitter; one run for the whole row of equal errors."""
    bench.follower.fails = error
    verdicts = [bench.poll() for _ in range(12)]
    waits = [verdict.delay_s for verdict in verdicts]
    assert 4 <= waits[0] <= 6
    assert waits[3] > 4 * waits[0]
    assert 0.8 * BACKOFF_MAX_S <= waits[-1] <= 1.2 * BACKOFF_MAX_S
    assert waits[-1] != waits[-2]
    assert bench.status.state is SyncState.RETRYING
    assert bench.status.error.consecutive == 12
    assert len(bench.runs) == 1
    assert bench.store.list_tables()[0].error.consecutive == 12


def test_kinds_are_told_by_their_name(bench):
    """A bug is an InternalError with its traceback in the log; the state store's absence has a kind of its own."""
    bench.follower.fails = ZeroDivisionError("oh")
    with capture_logs() as logs:
        bench.poll()
    assert bench.status.error.kind == "InternalError"
    assert "ZeroDivisionError: oh" in bench.status.error.message
    failed = next(line for line in logs if line["event"] == "sync.failed")
    assert (failed["log_level"], failed["exc_info"]) == ("error", bench.follower.fails)
    bench.follower.fails = StateUnavailable("locked")
    bench.poll()
    assert bench.status.error.kind == "StateStoreAway"
    assert [run.outcome for run in bench.runs] == ["StateStoreAway", "InternalError"]


def test_a_repeated_error_is_logged_at_growing_intervals_and_its_end_once(bench):
    """The 1st, 2nd, 4th, 8th, 16th time, then one line for the recovery; a restart does not begin anew."""
    bench.follower.fails = away()
    with capture_logs() as logs:
        for _ in range(16):
            bench.poll(after_s=10)
        bench.start()
        bench.follower.fails = None
        bench.poll(after_s=10)
    told = [line["consecutive_errors"] for line in logs if line["event"] == "sync.failed"]
    assert told == [1, 2, 4, 8, 16]
    first = next(line for line in logs if line["event"] == "sync.failed")
    assert (first["log_level"], first["kind"], first["hint"]) == ("warning", "ObjectStoreAway", "Check the network.")
    assert first["reason"] == "no answer [file s3://b/x]"
    recovered = [line for line in logs if line["event"] == "sync.recovered"]
    assert [(line["consecutive_errors"], line["failed_for_s"]) for line in recovered] == [(16, 160)]
    assert bench.status.error is None
    assert bench.store.list_tables()[0].error is None


def test_a_long_error_is_logged_at_least_every_hour(bench):
    """Powers of two grow too far apart for a table that is retried every five minutes."""
    bench.follower.fails = away()
    with capture_logs() as logs:
        for _ in range(80):
            bench.poll(after_s=300)
    told = [line["consecutive_errors"] for line in logs if line["event"] == "sync.failed"]
    assert told == [1, 2, 4, 8, 16, 28, 32, 44, 56, 64, 76]


def test_a_failed_poll_is_an_error_that_the_next_good_poll_ends(bench):
    """A source that does not answer is not synced; when it answers again without news the error is over."""
    bench.poll()
    bench.follower.poll_fails = away()
    assert bench.poll().delay_s is not None
    assert (bench.status.state, bench.follower.syncs) == ("retrying", 1)
    bench.clock.time_s += 311
    (unready,) = bench.board.find_unready()
    assert unready.reason == f"retrying since {bench.status.error.since}: ObjectStoreAway: no answer [file s3://b/x]"
    bench.follower.poll_fails = None
    bench.poll()
    assert (bench.status.state, bench.status.error, bench.follower.syncs) == ("synced", None, 1)
    assert bench.store.list_tables()[0].error is None


@pytest.mark.parametrize("kind", [AccountMismatch, Unsupported, CorruptInput, TargetChanged, ConfigInvalid])
def test_what_a_person_must_mend_parks_the_table(bench, kind):
    """Parked: not synced again, not ready, one line at error; set free by `resume` only."""
    bench.follower.fails = kind("cannot", hint="Mend it.", version=7)
    with capture_logs() as logs:
        for _ in range(5):
            assert bench.poll(after_s=10).delay_s is None
    assert bench.follower.syncs == 1
    assert [(line["event"], line["log_level"]) for line in logs if line["log_level"] == "error"] == [
        ("table.parked", "error")
    ]
    status = bench.status
    assert (status.state, status.error.kind, status.error.version) == ("parked", kind.__name__, 7)
    assert (status.source_version, status.lag_versions) == (0, 1)
    assert [unready.reason for unready in bench.board.find_unready()] == [
        f"parked: {kind.__name__}: {status.error.message}"
    ]
    assert not bench.cycle.is_overruled_by(bench.store.list_tables()[0])

    bench.follower.fails = None
    bench.store.record_failure(1, None)
    assert bench.cycle.is_overruled_by(bench.store.list_tables()[0])
    bench.cycle.take_up(bench.store.list_tables()[0])
    bench.poll()
    assert (bench.status.state, bench.status.error) == ("synced", None)


@pytest.mark.parametrize("kind", [Unsupported, CorruptInput, ObjectMissing])
def test_a_newer_version_is_tried_at_once_and_then_ever_less_often(bench, kind):
    """By comparing states, since the commits in between are still refused. It must not be tried each time."""
    bench.poll()
    bench.follower.newest, bench.follower.fails = 1, kind("cannot", hint="Mend it.", version=1)
    assert bench.poll(after_s=1).error.kind == kind.__name__
    tried_after_s, start_s = [], bench.clock.time_s
    for _ in range(40):
        bench.follower.newest += 1
        before = bench.follower.comparisons
        bench.poll(after_s=1)
        if bench.follower.comparisons > before:
            tried_after_s.append(bench.clock.time_s - start_s)
    first, second, third, *_ = tried_after_s
    assert first == 1
    assert second - first > 5
    assert third - second > second - first

    bench.follower.fails = None
    while bench.status.state != "synced":
        bench.poll(after_s=1)
        assert bench.clock.time_s - start_s < 150
    assert bench.store.list_tables()[0].error is None


def test_a_newer_version_is_tried_at_once_after_many_retries(bench):
    """A RESTORE may come an hour after the first error: none of the tries since then was for a newer version."""
    bench.poll()
    bench.follower.newest, bench.follower.fails = 1, ObjectMissing("gone", hint="Restore it.", version=1)
    for _ in range(60):
        bench.poll(after_s=1)
    assert bench.follower.comparisons == 0
    bench.follower.newest, bench.follower.fails = 2, None
    bench.poll(after_s=1)
    assert (bench.follower.comparisons, bench.status.error) == (1, None)


def test_a_newer_version_waits_for_a_slot(bench):
    """While other tables sync, the try is not lost."""
    bench.poll()
    bench.follower.newest, bench.follower.fails = 1, Unsupported("cannot", hint="Mend it.", version=1)
    bench.poll(after_s=1)
    bench.follower.newest, bench.follower.fails = 2, None
    assert bench.slots.try_take("another")
    for _ in range(3):
        bench.poll(after_s=1)
    assert (bench.status.state, bench.follower.comparisons) == ("parked", 1)
    bench.slots.give_back()
    bench.poll(after_s=1)
    bench.poll(after_s=1)
    assert bench.status.state == "synced"


def test_a_paused_table_tries_no_newer_version(bench):
    bench.poll()
    bench.follower.newest, bench.follower.fails = 1, Unsupported("cannot", hint="Mend it.", version=1)
    bench.poll(after_s=1)
    bench.store.record_pause(1, PAUSE)
    bench.cycle.take_up(bench.store.list_tables()[0])
    bench.follower.newest = 2
    for _ in range(5):
        bench.poll(after_s=100)
    assert bench.follower.comparisons == 0


def test_a_resume_begins_the_time_without_a_look_anew(bench):
    """While a table is paused nobody looks, and an error of a few seconds does not make that a reason. The status
    still names the last look.
    """
    bench.poll()
    checked_at = bench.status.checked_at
    bench.store.record_pause(1, PAUSE)
    bench.cycle.take_up(bench.store.list_tables()[0])
    bench.poll(after_s=400)
    bench.store.record_pause(1, None)
    bench.cycle.take_up(bench.store.list_tables()[0])
    bench.follower.poll_fails = away()
    bench.poll(after_s=17)
    assert bench.board.find_unready() == []
    assert bench.status.checked_at == checked_at
    bench.clock.time_s += 300
    (unready,) = bench.board.find_unready()
    assert unready.reason.startswith("retrying since ") and "ObjectStoreAway: no answer" in unready.reason


def test_a_person_may_have_a_failing_table_tried_at_once(bench):
    """`dvsync resume` on a table that is retrying: its error is answered, and its row of errors begins anew."""
    bench.follower.fails = ObjectStoreAway("no answer:\n  timed out", hint="Check the network.")
    for _ in range(9):
        bench.poll(after_s=300)
    assert (bench.status.state, bench.status.error.message) == (SyncState.RETRYING, "no answer: timed out")
    failing = f"retrying since {bench.status.error.since}: ObjectStoreAway: no answer: timed out"
    assert [unready.reason for unready in bench.board.find_unready()] == [failing]
    assert not bench.cycle.is_overruled_by(bench.store.list_tables()[0])
    bench.store.record_failure(1, None)
    assert bench.cycle.is_overruled_by(bench.store.list_tables()[0])
    with capture_logs() as logs:
        bench.cycle.take_up(bench.store.list_tables()[0])
        bench.poll()
    assert [line["event"] for line in logs if line["event"].startswith("table.")] == ["table.resumed"]
    assert bench.status.error.consecutive == 1


ROUNDS = ("maintenance_rounds", "maintenance_failures")


def counted(board: Board, name: str, table: str = "orders") -> float:
    """What `/metrics` answers for one counter of a table."""
    (found,) = (
        sample.value
        for family in board.activity.collect()
        for sample in family.samples
        if (sample.name, sample.labels.get("table")) == (f"dvsync_{name}_total", table)
    )
    return found


def test_accounts_and_mismatches_are_counted(bench):
    """Each snapshot is one check; one that did not add up is a mismatch, and was a check, too."""
    bench.poll()
    assert (counted(bench.board, "accounts_checked"), counted(bench.board, "account_mismatches")) == (1, 0)
    bench.follower.fails = AccountMismatch("3 is not 4", hint="Compare whole states.")
    bench.poll(after_s=10)
    assert (counted(bench.board, "accounts_checked"), counted(bench.board, "account_mismatches")) == (2, 1)


def test_a_difference_found_during_a_sync_is_logged_though_the_sync_reads_it_from_the_store(bench):
    """The verification records what it found; the sync that runs beside it ends with that row, and is held up."""
    bench.poll()
    error = ProofFailed("the Iceberg table differs from the Delta table", version=0, hint="")

    def verify() -> None:
        bench.store.record_failure(1, described(error, now_ms=bench.clock.now_ms()))
        bench.cycle.fail(error)

    bench.follower.in_doubt, bench.follower.meanwhile = True, verify
    bench.poll(after_s=10)
    with capture_logs() as logs:
        bench.poll(after_s=10)
    assert [line["event"] for line in logs] == ["table.parked"]
    assert (bench.status.state, bench.runs[0].outcome) == ("parked", "ProofFailed")


def test_a_restart_tries_a_parked_table_once_more(bench):
    """The error stays in sight until the new try has its own outcome, and its row of errors goes on."""
    bench.follower.fails = Unsupported("cannot", hint="Mend it.")
    bench.poll()
    since = bench.status.error.since
    bench.start()
    assert (bench.status.state, bench.status.error.kind) == ("retrying", "Unsupported")
    bench.poll(after_s=100)
    assert (bench.status.state, bench.status.error.consecutive, bench.status.error.since) == ("parked", 2, since)
    assert bench.follower.syncs == 2


def test_parking_that_could_not_be_recorded_is_not_taken_for_a_resume(bench):
    """While the store does not know of the parking, its silence means nothing; it is told as soon as it answers."""
    bench.follower.fails = CorruptInput("bad CRC", hint="Restore the file.")
    bench.store.is_away = True
    bench.poll()
    assert bench.store.list_tables()[0].error is None
    assert not bench.cycle.is_overruled_by(bench.store.list_tables()[0])
    bench.store.is_away = False
    bench.poll(after_s=10)
    assert bench.store.list_tables()[0].error.parked
    assert bench.follower.syncs == 1


def test_a_store_that_is_away_hides_no_error(bench):
    """The board and the log still tell what could not be written down."""
    bench.follower.fails = away()
    bench.store.is_away = True
    with capture_logs() as logs:
        bench.poll()
    assert bench.status.error.kind == "ObjectStoreAway"
    assert {"sync.failed", "state.unrecorded"} <= {line["event"] for line in logs}


def test_a_row_that_cannot_be_read_is_told_with_its_table(bench):
    """A poll reads it, outside of a sync, whose lines have the table's name anyway."""
    bench.poll()
    bench.store.record_pause(1, PAUSE)
    assert bench.cycle.notice(bench.store.list_tables()[0])
    away = StateUnavailable("disk full")
    with mock.patch.object(bench.store, "open_table", side_effect=away), capture_logs() as logs:
        bench.poll()
    assert [line["table"] for line in logs if line["event"] == "state.unread"] == ["orders"]


def test_the_lag_is_the_age_of_the_oldest_version_not_shown(bench):
    """It grows while the table fails, counts against the budget, and is zero again afterwards."""
    bench.poll()
    bench.follower.newest = 3
    bench.follower.fails = away()
    bench.poll()
    assert (bench.status.lag_versions, bench.status.lag_seconds) == (3, 1_000.0)
    (unready,) = bench.board.find_unready()
    late, _, failing = unready.reason.partition("; ")
    assert late == "behind for 16 min 40 s, more than the budget of 5 min"
    assert failing == f"retrying since {bench.status.error.since}: ObjectStoreAway: no answer [file s3://b/x]"
    bench.follower.fails = None
    bench.follower.versions_per_sync = 10
    bench.poll()
    assert (bench.status.lag_versions, bench.status.lag_seconds) == (0, 0.0)


def test_the_canonical_line_tells_the_cycle(bench):
    """Versions, counts and duration as values, with the table and the cycle bound; no line at info without progress."""
    bound: list[dict[str, object]] = []
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, lambda _1, _2, line: bound.append(line) or ""]
    )
    try:
        bench.poll()
    finally:
        structlog.reset_defaults()
    line = next(line for line in bound if line["event"] == "sync.advanced")
    assert (line["table"], line["from_version"], line["to_version"], line["snapshots"]) == ("orders", 0, 0, 1)
    assert len(line["cycle_id"]) == 8
    assert "duration_ms" in line


def test_without_a_free_slot_a_table_goes_away_and_is_called(bench):
    """The queue is first come first served, and a table in it twice is called once."""
    assert bench.slots.try_take("other")
    assert bench.poll().result is None
    assert bench.poll().result is None
    assert not bench.slots.try_take("third")
    assert bench.status.state is SyncState.BEHIND
    assert bench.slots.give_back() == "orders"
    assert bench.poll().result.to_version == 0
    assert bench.slots.give_back() is None


def test_a_table_is_told_whether_others_wait(bench):
    """Only while somebody stands in the queue for whom there is no slot."""
    assert bench.slots.try_take("other")
    assert not bench.slots.try_take("third")
    assert not bench.slots.try_take("fourth")
    assert bench.slots.resize(2) == ["third"]
    assert bench.poll().result.to_version == 0
    assert bench.follower.others_waited
    # The slot that "orders" gave back is the third table's, whether it has come for it or not.
    assert bench.slots.resize(3) == ["fourth"]
    bench.follower.newest = 1
    assert bench.poll().result.to_version == 1
    assert not bench.follower.others_waited
    assert bench.slots.try_take("third")


@pytest.mark.parametrize("why", ["paused", "without news", "its source is away"])
def test_a_slot_that_is_not_wanted_any_more_goes_to_the_next(bench, why):
    """A table that was called and has nothing to sync hands the call on."""
    bench.poll()
    bench.follower.newest = 1
    assert bench.slots.try_take("other")
    bench.poll()
    assert not bench.slots.try_take("third")
    assert bench.slots.give_back() == "orders"
    if why == "paused":
        bench.store.record_pause(1, PAUSE)
        bench.cycle.take_up(bench.store.list_tables()[0])
    elif why == "without news":
        bench.follower.newest = 0
    else:
        bench.follower.poll_fails = away()
    with mock.patch.object(bench.scheduler, "wake") as wake:
        bench.poll()
    wake.assert_called_once_with("third")
    assert bench.slots.try_take("third")


def test_two_free_slots_call_two_tables():
    """One who was called is not called again for the next slot, and keeps its place if someone was faster."""
    slots = Slots(2)
    assert slots.try_take("a") and slots.try_take("b")
    for name in ("c", "d", "e"):
        assert not slots.try_take(name)
    assert (slots.give_back(), slots.give_back()) == ("c", "d")
    assert slots.try_take("f")
    assert slots.try_take("c")
    assert not slots.try_take("d")
    assert slots.leave("e") is None
    assert slots.give_back() == "d"


def test_what_is_said_during_a_sync_is_logged(bench):
    """A pause and a resync that come while the table syncs are taken up at its end."""

    def meanwhile() -> None:
        bench.store.record_pause(1, PAUSE)
        bench.store.record_resync_wanted(1, True)

    bench.follower.meanwhile = meanwhile
    with structlog.testing.capture_logs() as lines:
        bench.poll()
    assert [line["event"] for line in lines] == ["sync.advanced", "table.paused", "table.resync_wanted"]
    assert bench.follower.in_doubt and bench.status.state is SyncState.PAUSED


# --- the scheduler, with its threads ---


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        threading.Event().wait(0.005)


class Running:
    """A scheduler over fake followers that polls every 100 ms."""

    def __init__(
        self, *names: str, tables_at_once: int = 4, poll_interval: str = "100ms", requests_interval_s: float = 2.0
    ) -> None:
        self.clock = clock = SystemClock()
        self.store = MemoryStateStore()
        tables = [settings_of(name, poll_interval) for name in names]
        self.followers = {table.name: FakeFollower(table, self.store) for table in tables}
        self.board = board_of(tables, clock, lag_budget_s=300)
        self.maintainers = {table.name: FakeMaintainer() for table in tables}
        self.maintainers[names[0]].gate = Event()
        self.scheduler = Scheduler(clock, tables_at_once=tables_at_once)
        self.fleet = Fleet(SimpleNamespace(store=self.store, clock=clock), self.board, self.scheduler)
        self.scheduler.every("/beat", 5.0, self.board.beat)
        self.scheduler.every("/requests", requests_interval_s, self.fleet.read_requests)
        for table in tables:
            self.add(table)

    def add(self, table: TableSettings) -> None:
        """Follow one of the tables, perhaps with other settings than before."""
        follower, store, clock = self.followers[table.name], self.store, self.clock
        observer = Observer(table, follower, store=store, board=self.board, clock=clock)
        cycle = TableCycle(follower, observer, store=store, clock=clock, random=Random(1))
        self.fleet._cycles[cycle.name] = cycle
        maintainer = self.maintainers[cycle.name]
        job = MaintenanceJob(cycle, maintainer, board=self.board, clock=clock)
        self.scheduler.add(cycle, job, VerifyJob(cycle, context=None))

    def __enter__(self) -> Running:
        self.scheduler.start()
        return self

    def __exit__(self, *_: object) -> None:
        for follower in self.followers.values():
            if follower.gate:
                follower.gate.set()
        assert self.scheduler.stop(grace_s=WAIT_S)

    def states(self) -> dict[str, SyncState]:
        return {status.name: status.state for status in self.board.statuses()}


def test_tables_are_polled_at_their_interval_and_synced():
    """Every table comes in step, and later versions are picked up."""
    with Running("a", "b", "c") as running:
        until(lambda: set(running.states().values()) == {SyncState.SYNCED})
        running.followers["b"].newest = 4
        until(lambda: running.followers["b"].synced == 4)
        until(lambda: running.followers["a"].polls >= 4)
        assert running.followers["a"].syncs == 1


def test_cycles_with_more_to_do_follow_each_other_without_waiting():
    """With a poll interval of an hour, fifty bounded cycles still run one after the other."""
    running = Running("a", poll_interval="1h")
    running.followers["a"].newest = 49
    with running:
        until(lambda: running.followers["a"].synced == 49)
    assert running.followers["a"].syncs == 50


def test_a_resume_ends_the_wait_for_the_next_try():
    """The table fails, and would be tried again in an hour or so."""
    running = Running("a", poll_interval="1h")
    follower = running.followers["a"]
    follower.fails = away()
    with running:
        until(lambda: running.states()["a"] is SyncState.RETRYING)
        follower.fails = None
        running.store.record_failure(running.store.list_tables()[0].id, None)
        until(lambda: running.states()["a"] is SyncState.SYNCED)


def test_a_stale_look_at_the_store_is_no_resume():
    """The table failed after its record was read: that the record knows of no error means nothing."""
    running = Running("a", poll_interval="1h")
    running.followers["a"].fails = away()
    before = running.store.list_tables()
    with running:
        until(lambda: running.states()["a"] is SyncState.RETRYING)
        with (
            mock.patch.object(running.store, "list_tables", lambda: before),
            mock.patch.object(running.scheduler, "wake") as wake,
        ):
            running.fleet.read_requests()
        assert not wake.called


def test_a_source_that_is_not_there_is_told_once(bench):
    """At info: a name that was spelled wrong looks the same as one that is still to come."""
    bench.follower.sync = lambda **_: SyncResult(SyncOutcome.WAITING, None, None)
    with capture_logs() as logs:
        bench.poll()
    assert [(line["event"], line["log_level"]) for line in logs] == [("sync.waiting", "info")]


def test_a_long_sync_holds_up_nobody_else():
    """While one table syncs for long it is not polled a second time, and the others go on."""
    running = Running("slow", "fast")
    running.followers["slow"].gate = Event()
    with running:
        assert running.followers["slow"].entered.wait(WAIT_S)
        running.followers["fast"].newest = 5
        until(lambda: running.followers["fast"].synced == 5)
        assert running.states()["slow"] is SyncState.SYNCING
        assert (running.followers["slow"].syncs, running.followers["slow"].polls) == (1, 1)


def test_polls_that_hang_hold_up_nobody_else():
    """Of a local disk, too, whose polls share a thread while they are quick."""
    running, over = Running("stuck1", "stuck2", "well"), Event()
    with running:
        until(lambda: set(running.states().values()) == {SyncState.SYNCED})
        stuck = [running.followers[name] for name in ("stuck1", "stuck2")]
        for follower in stuck:
            follower.poll_gate = over
        polls = [follower.polls for follower in stuck]
        until(lambda: all(follower.polls > before for follower, before in zip(stuck, polls, strict=True)))
        running.followers["well"].newest = 5
        until(lambda: running.followers["well"].synced == 5)
        assert [follower.polls for follower in stuck] == [before + 1 for before in polls]
        over.set()


def test_a_table_that_is_set_up_anew_while_its_poll_waits_is_polled_at_once(monkeypatch):
    """And only once: the former poll, whose turn comes first, does nothing."""
    monkeypatch.setattr(poll_threads, "WAIT_MAX_S", 3600.0)
    running, over = Running("stuck", "well"), Event()
    stuck, well = running.followers.values()
    with running:
        until(lambda: set(running.states().values()) == {SyncState.SYNCED})
        stuck.poll_gate, polls = over, stuck.polls
        until(lambda: stuck.polls > polls)
        until(lambda: len(running.scheduler._threads._queue) == 1)
        running.scheduler.remove("well")
        running.add(settings_of("well", "1h"))
        well.newest, polls = 5, well.polls
        until(lambda: len(running.scheduler._threads._queue) == 2)
        over.set()
        until(lambda: well.synced == 5)
        assert well.polls == polls + 5, "one for each version"


def test_no_more_than_so_many_tables_sync_at_once_and_each_gets_its_turn():
    """Those that found no slot are called when one is free, though their next poll is an hour away."""
    names = [f"t{number}" for number in range(6)]
    running = Running(*names, tables_at_once=2, poll_interval="1h")
    gate = Event()
    for follower in running.followers.values():
        follower.gate = gate
    with running:
        until(lambda: sum(follower.syncs for follower in running.followers.values()) == 2)
        until(lambda: sum(follower.polls for follower in running.followers.values()) == 6)
        assert sum(follower.syncs for follower in running.followers.values()) == 2
        gate.set()
        until(lambda: set(running.states().values()) == {SyncState.SYNCED})


def test_one_table_that_fails_stops_no_other():
    """The others are synced, the failing one is retried and recovers by itself."""
    running = Running("good", "bad")
    running.followers["bad"].fails = ZeroDivisionError("bug")
    with running:
        until(lambda: running.states() == {"good": SyncState.SYNCED, "bad": SyncState.RETRYING})
        running.followers["bad"].fails = None
        until(lambda: running.states()["bad"] is SyncState.SYNCED)


def test_a_resume_that_is_seen_during_a_good_try():
    """What was read of the table then is older than what the try has come to, and is not taken for it."""
    running = Running("a", poll_interval="1h")
    follower = running.followers["a"]
    follower.fails = away()

    def resume() -> None:
        running.store.record_failure(1, None)
        running.fleet.read_requests()

    with running:
        until(lambda: running.states()["a"] is SyncState.RETRYING)
        follower.fails, follower.meanwhile = None, resume
        tries, polls = follower.syncs, follower.polls
        running.scheduler.wake("a")
        until(lambda: follower.polls >= polls + 2)
        until(lambda: running.states()["a"] is SyncState.SYNCED)
        assert follower.syncs == tries + 1


def test_resume_in_another_terminal_sets_a_parked_table_free():
    """The store is looked at even if the table's own poll is an hour away."""
    running = Running("a", poll_interval="1h", requests_interval_s=0.05)
    running.followers["a"].fails = Unsupported("cannot", hint="Mend it.")
    with running:
        until(lambda: running.states()["a"] is SyncState.PARKED)
        running.followers["a"].fails = None
        running.store.record_failure(1, None)
        until(lambda: running.states()["a"] is SyncState.SYNCED)


def test_pause_and_resync_in_another_terminal_reach_the_daemon():
    """A paused table is not synced until it is resumed; a resync is one sync, news or not."""
    with Running("a", poll_interval="1h", requests_interval_s=0.05) as running:
        follower = running.followers["a"]
        until(lambda: running.states()["a"] is SyncState.SYNCED)
        running.store.record_resync_wanted(1, True)
        until(lambda: follower.syncs == 2)
        until(lambda: not running.store.list_tables()[0].resync_wanted)
        running.store.record_pause(1, PAUSE)
        until(lambda: running.states()["a"] is SyncState.PAUSED)
        follower.newest = 3
        running.store.record_pause(1, None)
        until(lambda: follower.synced == 3)
    assert follower.syncs == 5, "one for each version"


def paused_for(bench: Bench, seconds: int) -> Pause:
    now_ms = bench.clock.now_ms()
    pause = Pause(now_ms, "ada on lake-1", until_ms=now_ms + seconds * 1000)
    bench.store.record_pause(1, pause)
    return pause


def test_a_pause_ends_by_itself(bench):
    """At its time and not before, even between two polls."""
    bench.poll()
    paused_for(bench, 25)
    bench.cycle.take_up(bench.store.list_tables()[0])
    bench.follower.newest = 1
    delays_s = [bench.poll(after_s=after_s).delay_s for after_s in (0, 10, 14.5)]
    assert (delays_s, bench.follower.syncs) == ([None, None, pytest.approx(0.5)], 1)
    with capture_logs() as lines:
        bench.poll(after_s=0.5)
    assert [line["event"] for line in lines] == ["table.resumed", "sync.advanced"]
    assert (bench.status.state, bench.status.pause, bench.store.list_tables()[0].pause) == ("synced", None, None)


def test_a_pause_that_ends_while_no_daemon_runs(bench):
    """Who looks meanwhile sees no pause any more; a new start goes on."""
    bench.poll()
    pause = paused_for(bench, 25)
    bench.clock.time_s += 25
    record = bench.store.list_tables()[0]
    assert (record.pause, record.pause_at(bench.clock.now_ms())) == (pause, None)
    bench.start()
    assert (bench.cycle.pause, bench.store.list_tables()[0].pause) == (None, None)


@pytest.mark.parametrize("error", [away(), Unsupported("cannot", hint="Mend it."), ProofFailed("differs", hint="?")])
def test_the_end_of_a_pause_tries_a_failed_table_again(bench, error: SyncError):
    """As a restart does: what parked it may be mended. Differences from Delta are not forgotten by that."""
    bench.poll()
    bench.follower.newest, bench.follower.fails = 1, error
    bench.poll(after_s=1)
    paused_for(bench, 3_600)
    bench.cycle.take_up(bench.store.list_tables()[0])
    bench.follower.fails = None
    bench.poll(after_s=3_599)
    assert bench.status.state is SyncState.PAUSED
    bench.poll(after_s=1)
    assert bench.status.state is (SyncState.PARKED if isinstance(error, ProofFailed) else SyncState.SYNCED)


def test_a_prolonged_pause_does_not_end_at_its_first_time(bench):
    """Even if the daemon has not seen yet that it was prolonged."""
    bench.poll()
    paused_for(bench, 25)
    bench.cycle.take_up(bench.store.list_tables()[0])
    prolonged = paused_for(bench, 3_600)
    bench.poll(after_s=30)
    assert (bench.status.state, bench.cycle.pause) == (SyncState.PAUSED, prolonged)


def test_a_pause_that_cannot_be_ended_lasts(bench):
    """Until the state database can be written again."""
    bench.poll()
    paused_for(bench, 25)
    bench.cycle.take_up(bench.store.list_tables()[0])
    bench.follower.newest, bench.store.is_away = 5, True
    bench.poll(after_s=30)
    assert bench.follower.syncs == 1
    bench.store.is_away = False
    bench.poll(after_s=10)
    assert bench.follower.syncs == 2


def test_a_pause_outlives_the_process(bench):
    """A new start finds the table paused and leaves it alone; so does one round by hand."""
    bench.poll()
    bench.store.record_pause(1, PAUSE)
    bench.follower.newest = 5
    bench.start()
    bench.poll(after_s=100)
    assert (bench.status.state, bench.follower.syncs, bench.cycle.pause) == (SyncState.PAUSED, 1, PAUSE)


def test_stop_tells_running_cycles():
    """The running cycle sees the event, ends at its step, and what it did is shown."""
    running = Running("a", "b")
    running.followers["a"].gate = Event()  # never set: only `stop` ends that sync
    running.scheduler.start()
    assert running.followers["a"].entered.wait(WAIT_S)
    assert running.scheduler.stop(grace_s=WAIT_S)
    assert running.followers["a"].syncs == 1
    assert running.states()["a"] is SyncState.SYNCED


def test_stop_gives_up_on_a_cycle_that_hangs():
    """After the grace it says so, and leaves the end to the process."""
    running = Running("a")
    release = Event()
    running.followers["a"].find_written_ms = lambda _: None
    running.followers["a"].sync = lambda **_: release.wait(WAIT_S) and SyncResult(SyncOutcome.WAITING, None, None)  # type: ignore[assignment]
    running.scheduler.start()
    until(lambda: running.states()["a"] is SyncState.SYNCING)
    assert not running.scheduler.stop(grace_s=0.05)
    release.set()
    until(lambda: running.states()["a"] is not SyncState.SYNCING)


# --- maintenance ---


def test_a_table_leaves_without_waiting_for_its_verification() -> None:
    """What changes it is told to stop and is waited for; a verification, which only reads, is told to stop."""
    with Running("a", "b") as running:
        maintainer, scheduler = running.maintainers["a"], running.scheduler
        assert maintainer.entered.wait(WAIT_S)
        assert scheduler.is_busy("a")
        scheduler.remove("a")
        until(lambda: not scheduler.is_busy("a"))

        entered, ended = Event(), Event()

        def verify(stop: Event) -> None:
            entered.set()
            assert stop.wait(WAIT_S)
            ended.set()

        job = SimpleNamespace(name="b", run=verify)
        args = job, "verification", scheduler._leaving["b"]
        threading.Thread(target=scheduler._run_beside, args=args).start()
        assert entered.wait(WAIT_S)
        until(lambda: not scheduler.is_busy("b"))
        assert not ended.is_set()
        scheduler.remove("b")
        assert ended.wait(WAIT_S)


class FakeMaintainer:
    """Counts its rounds; raises `fails` when set, and stops in `gate` when given one."""

    def __init__(self) -> None:
        self.rounds = 0
        self.fails: Exception | None = None
        self.gate: Event | None = None
        self.entered = Event()

    def run(self, stop: Event) -> Round:
        self.rounds += 1
        self.entered.set()
        if self.gate:
            while not (self.gate.wait(0.01) or stop.is_set()):
                pass
        if self.fails:
            raise self.fails
        cleanup = Cleanup(removed=[WrittenFile("m", FileKind.MANIFEST, FileStatus.ORPHANED, 1, size_bytes=70)])
        return Round(Compaction(2, 9, 2, 1), Expiry(expired=(1, 2, 3)), cleanup)


def job_of(bench: Bench) -> tuple[MaintenanceJob, FakeMaintainer]:
    maintainer = FakeMaintainer()
    return MaintenanceJob(bench.cycle, maintainer, board=bench.board, clock=bench.clock), maintainer


def test_a_round_of_maintenance_is_counted_and_told(bench):
    """One line for each part that did something, and the sums on the board."""
    job, maintainer = job_of(bench)
    job.run(Event())
    assert maintainer.rounds == 0, "a table that was never synced has nothing to maintain"
    bench.poll()
    with capture_logs() as told:
        job.run(Event())
        job.run(Event())
    names = ("compacted_delete_files", "expired_snapshots", "removed_files", "removed_bytes")
    assert [counted(bench.board, name) for name in ROUNDS] == [2, 0]
    assert [counted(bench.board, name) for name in names] == [18, 6, 2, 140]
    parts = ["maintenance.compacted", "maintenance.expired", "maintenance.cleaned"]
    assert [line["event"] for line in told] == 2 * parts


@pytest.mark.parametrize(
    ("fails", "kind"), [(away(), "ObjectStoreAway"), (ValueError("a bug"), "InternalError")], ids=["known", "bug"]
)
def test_a_failed_round_leaves_the_table_in_step(bench, fails, kind):
    """It is told and counted; the table's state and error are the syncs' alone."""
    job, maintainer = job_of(bench)
    bench.poll()
    maintainer.fails = fails
    with capture_logs() as told:
        job.run(Event())
    assert [counted(bench.board, name) for name in ROUNDS] == [1, 1]
    assert (bench.status.state, bench.status.error) == (SyncState.SYNCED, None)
    (line,) = told
    assert (line["event"], line["kind"], bool(line["hint"])) == ("maintenance.failed", kind, True)


def test_a_parked_table_is_not_maintained(bench):
    """Its Iceberg side stays exactly as it is until a person has looked at it."""
    job, maintainer = job_of(bench)
    bench.poll()
    bench.follower.fails = CorruptInput("bad CRC", hint="Restore it.")
    bench.poll()
    job.run(Event())
    assert maintainer.rounds == 0


def test_tables_that_begin_together_are_not_maintained_together():
    """Their rounds are spread over the interval, here a second."""
    running = Running(*(f"t{number}" for number in range(20)))
    maintainers = running.maintainers.values()
    running.maintainers["t0"].gate = None
    with running:
        until(lambda: any(maintainer.rounds for maintainer in maintainers))
        first_s = time.monotonic()
        until(lambda: all(maintainer.rounds for maintainer in maintainers))
        assert time.monotonic() - first_s > 0.5


def test_the_first_round_comes_after_the_syncs_of_a_start_and_before_a_nightly_restart(bench):
    """Whatever the interval, of maintenance and of verification."""
    weekly = MaintenanceSettings(interval="7d")
    bench.cycle.table = bench.cycle.table.model_copy(update={"maintenance": weekly})
    for _ in range(20):
        scheduler, start = Scheduler(bench.clock, tables_at_once=1), datetime.now(UTC)
        scheduler.add(bench.cycle, job_of(bench)[0], VerifyJob(bench.cycle, context=None))
        beside = [job.next_run_time - start for job in scheduler._timer.get_jobs()]
        assert [timedelta(seconds=60) <= delay <= timedelta(seconds=601) for delay in beside] == [True, True]


def test_a_jump_of_the_clock_leaves_the_rounds_their_time(bench):
    """Forward and back. What has run since the jump waits no longer than its interval."""
    weekly = MaintenanceSettings(interval="7d")
    bench.cycle.table = bench.cycle.table.model_copy(update={"maintenance": weekly})
    scheduler = bench.scheduler
    scheduler.add(bench.cycle, job_of(bench)[0], VerifyJob(bench.cycle, context=None))

    def times() -> dict[str, datetime]:
        return {job.id: job.next_run_time for job in scheduler._timer.get_jobs()}

    before, monthly_s = times(), 30 * 86_400
    for jump_s in (10.0, -3_600.0, 3_590.0):
        bench.clock.ahead_s += jump_s
        with capture_logs() as logs:
            scheduler._check_clock()
        assert [(line["event"], line["seconds"]) for line in logs] == [("clock.jumped", jump_s)]
        moved = timedelta(seconds=bench.clock.ahead_s)
        for name, time_left in times().items():
            assert time_left - before[name] == pytest.approx(moved, abs=timedelta(milliseconds=1))
    bench.clock.ahead_s += monthly_s
    scheduler._check_clock()
    assert times()["orders/maintenance"] <= datetime.now(UTC) + timedelta(days=7)


@pytest.mark.parametrize("fault", [ZeroDivisionError, type("PanicException", (BaseException,), {})])
def test_work_that_fails_is_logged_and_runs_again(fault):
    """At its next interval; the polls go on. A panic of a library in Rust is no Exception."""
    running, runs = Running("a"), []

    def work() -> None:
        runs.append(time.monotonic())
        if len(runs) == 1:
            raise fault("a bug")

    running.scheduler.every("/failing", 0.05, work)
    with capture_logs() as logs, running:
        until(lambda: len(runs) >= 3)
        until(lambda: running.states()["a"] is SyncState.SYNCED)
    (line,) = (line for line in logs if line["event"] == "job.failed")
    assert (line["job"], type(line["exc_info"])) == ("/failing", fault)


def test_maintenance_runs_beside_the_polls_and_ends_with_them():
    """A round that takes long holds up no poll; the scheduler's stop tells it to end and waits for that."""
    with Running("a", "b", poll_interval="100ms") as running:
        until(lambda: set(running.states().values()) == {SyncState.SYNCED})
        maintainer = running.maintainers["a"]
        until(maintainer.entered.is_set)
        polls = running.followers["a"].polls
        until(lambda: running.followers["a"].polls > polls + 2)
        assert not counted(running.board, "maintenance_rounds", "a")
    assert counted(running.board, "maintenance_rounds", "a") == 1
