"""The types of the API's answers. `openapi.py` makes their schemas."""

from __future__ import annotations

import msgspec

from daemon.status.board import Unready
from daemon.status.table_status import RunStatus, TableStatus
from daemon.sync.verbs import Verb


class Liveness(msgspec.Struct, frozen=True):
    alive: bool
    silent_s: float


class Readiness(msgspec.Struct, frozen=True):
    ready: bool
    share: str
    reasons: list[Unready]


class DaemonInfo(msgspec.Struct, frozen=True):
    """The process that answers. `state` is where its state database is; it stands by while another has the lease.

    `started_at` is ISO 8601, UTC.
    """

    version: str
    process: str
    host: str
    started_at: str
    state: str
    share: str
    stands_by: bool


class TableDetail(msgspec.Struct, frozen=True):
    """One table with its last syncs, the newest first.

    `read` has a line for each reader that reads the Iceberg table, as `dvsync show`; it is empty before the first sync.
    """

    status: TableStatus
    read: dict[str, str]
    runs: list[RunStatus]


class PauseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `pause`, which may be left out. Without `for`, a duration such as `2h`, the pause has no end."""

    for_: str | None = msgspec.field(name="for", default=None)
    reason: str | None = None


class Accepted(msgspec.Struct, frozen=True):
    """The daemon does what was asked within seconds; `text` says what that is."""

    table: str
    verb: Verb
    text: str


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was refused, and what to do."""

    error: str
    hint: str | None = None
