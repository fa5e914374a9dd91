"""The types of the API's answers. `openapi.py` makes their schemas."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from daemon.status.board import Unready
from daemon.status.table_status import TableStatus, iso_time
from daemon.status.timeline import FileDeletions
from daemon.sync.verbs import Verb
from state import Sample, SyncRun


class Liveness(msgspec.Struct, frozen=True):
    alive: bool
    silent_s: float


class Readiness(msgspec.Struct, frozen=True):
    ready: bool
    share: str
    reasons: list[Unready]


class DaemonInfo(msgspec.Struct, frozen=True):
    """The process that answers, `at` a time. `state` is where its state database is.

    It stands by while another process has the lease.
    """

    at: str
    version: str
    process: str
    state: str
    share: str
    stands_by: bool


class RunStatus(msgspec.Struct, frozen=True):
    """One sync or error. `outcome` is `advanced`, `rebuilt` or the error's kind; `operation` is Delta's."""

    at: str
    duration_ms: int
    outcome: str
    operation: str | None
    from_version: int | None
    to_version: int | None
    snapshot_id: int | None
    data_files_added: int
    data_files_removed: int
    delete_files_added: int
    positions_added: int
    message: str | None


class DayPoint(msgspec.Struct, frozen=True):
    """A table's numbers at one time."""

    at: str
    lag_seconds: float | None
    deleted_positions: int | None
    delete_files: int | None
    orphans: int | None


class TableDetail(msgspec.Struct, frozen=True):
    """One table with its last syncs, the newest first, its last day, the oldest first, and its worst files now."""

    status: TableStatus
    runs: list[RunStatus]
    day: list[DayPoint]
    worst_files: Sequence[FileDeletions]


def run_status(run: SyncRun) -> RunStatus:
    return RunStatus(at=iso_time(run.started_at_ms), **{name: getattr(run, name) for name in _RUN_FIELDS})


def day_point(sample: Sample) -> DayPoint:
    return DayPoint(at=iso_time(sample.at_ms), **{name: getattr(sample, name) for name in _DAY_FIELDS})


_RUN_FIELDS = RunStatus.__struct_fields__[1:]
_DAY_FIELDS = DayPoint.__struct_fields__[1:]


class Accepted(msgspec.Struct, frozen=True):
    """The daemon does what was asked within seconds; `text` says what that is."""

    table: str
    verb: Verb
    text: str


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was refused, and what to do."""

    error: str
    hint: str | None = None
