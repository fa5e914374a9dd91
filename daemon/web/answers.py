"""The types of the API's answers. `openapi.py` makes their schemas."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from daemon.status.board import Unready
from daemon.status.table_status import TableStatus
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
    """The process that answers. `state` is where its state database is; it stands by while another has the lease."""

    version: str
    process: str
    state: str
    share: str
    stands_by: bool


class TableDetail(msgspec.Struct, frozen=True):
    """One table with its last syncs, the newest first, its last day, the oldest first, and its worst files now."""

    status: TableStatus
    runs: list[SyncRun]
    day: list[Sample]
    worst_files: Sequence[FileDeletions]


class Accepted(msgspec.Struct, frozen=True):
    """The daemon does what was asked within seconds; `text` says what that is."""

    table: str
    verb: Verb
    text: str


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was refused, and what to do."""

    error: str
    hint: str | None = None
