"""The status page: HTML from the board, without a script and without anything from other hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from daemon.status.board import Unready
from daemon.status.table_status import WORST_FIRST, SyncState, TableStatus, worst_first
from daemon.status.wording import UNKNOWN_REASON, count_states, differences_text, mirrors_text, resync_text, size_text
from daemon.texts import span
from daemon.verify.findings import hint_for
from daemon.web.answers import DaemonInfo

# The class of each state in the style sheet.
STYLES = {
    SyncState.SYNCED: "good",
    SyncState.SYNCING: "busy",
    SyncState.WAITING: "busy",
    SyncState.BEHIND: "late",
    SyncState.RETRYING: "late",
    SyncState.PARKED: "bad",
    SyncState.PAUSED: "held",
    SyncState.GONE: "late",
}
# The page with all tables shows so many reasons that are no table's, and the beginning of each error. /readyz and the
# table's own page have all.
REASONS_MAX, ERROR_MAX = 5, 400
# The page has at most so many tables at a time, however many there are.
ROWS_MAX = 100
# No name of a table is longer.
TEXT_MAX = 200
# In the place of a state: the tables for which `/readyz` gives a reason.
NOT_READY = "not-ready"
# The orders of the page's form: a title, and the key to sort by. What is not known comes last, and so does a table that
# was never synced when the oldest sync comes first.
WORST = "worst"
ORDERS: dict[str, tuple[str, Callable[[TableStatus], Any] | None]] = {
    WORST: ("worst first", None),
    "name": ("name", lambda each: each.name),
    "behind": ("longest behind", lambda each: -(each.lag_seconds if each.lag_seconds is not None else -1)),
    "last-synced": ("last synced, oldest first", lambda each: (each.last_synced_at is None, each.last_synced_at or "")),
    "deleted-rows": ("most deleted rows", lambda each: -(each.deleted_positions or 0)),
    "delete-files": ("most delete files", lambda each: -(each.live_delete_files or 0)),
    "orphans": ("most orphans", lambda each: -(each.orphans_waiting or 0)),
}


@dataclass(frozen=True)
class Query:
    """What the address asks for. `state` is a SyncState, NOT_READY or empty. A page that `stays` is not refreshed."""

    text: str = ""
    state: str = ""
    order: str = WORST
    page: int = 1
    stays: bool = False

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> Self:
        """Read the query of an address. A value that means nothing is taken as if it were not there."""
        state, order, page = (parameters.get(name, "") for name in ("state", "sort", "page"))
        return cls(
            text=parameters.get("q", "").strip()[:TEXT_MAX],
            state=state if state in (NOT_READY, *SyncState) else "",
            order=order if order in ORDERS else WORST,
            page=max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 7 else 1,
            stays=parameters.get("refresh") == "off",
        )

    def encode(self, **changes: Any) -> str:
        """Return the query of an address that asks for this with `changes`."""
        changed = replace(self, **changes)
        asked = {
            "q": changed.text,
            "state": changed.state,
            "sort": "" if changed.order == WORST else changed.order,
            "page": "" if changed.page == 1 else str(changed.page),
            "refresh": "off" if changed.stays else "",
        }
        return urlencode({name: value for name, value in asked.items() if value})


def _time(at: int | str) -> str:
    """The page's one format of times; `at` is in epoch milliseconds or ISO 8601."""
    moment = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _ago(at: str, now_ms: int) -> str:
    """How long ago that is, in whole minutes after the first."""
    seconds = max(0, round(now_ms / 1000 - datetime.fromisoformat(at).timestamp()))
    return f"{span(seconds if seconds < 60 else seconds // 60 * 60)} ago"


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _versions(status: TableStatus) -> str:
    """The version that Iceberg shows, and Delta's newest, as far as they are known."""
    if status.source_version is None:
        return "none yet" if status.synced_version is None else _count(status.synced_version)
    synced = "none" if status.synced_version is None else _count(status.synced_version)
    return f"{synced} of {_count(status.source_version)}"


_templates = Environment(
    loader=PackageLoader("daemon.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_templates.filters.update(
    size=size_text,
    mirrors=mirrors_text,
    reason=lambda why: why or UNKNOWN_REASON,
    span=lambda seconds: "?" if seconds is None else span(seconds),
    time=_time,
    ago=_ago,
    count=_count,
    place=lambda location: location.removeprefix("file://"),
    versions=_versions,
    style=STYLES.__getitem__,
    resync=resync_text,
    differences=lambda proof: differences_text(proof.differences),
    remedy=lambda proof, table: hint_for(table, proof.differences),
)


def render(template: str, **values: object) -> str:
    """Every template needs a `query`, the `daemon` and `now_ms`."""
    return _templates.get_template(template).render(values)


def render_tables(
    parameters: Mapping[str, str],
    statuses: Sequence[TableStatus],
    unready: Sequence[Unready],
    *,
    daemon: DaemonInfo,
    now_ms: int,
) -> str:
    """The tables that the `parameters` of the address ask for. `statuses` are all tables, which the headline counts."""
    query = Query.parse(parameters)
    names = {status.name for status in statuses}
    reasons = {each.table: each.reason for each in unready if each.table in names}
    found = _choose(statuses, reasons, query)
    pages = max(1, -(-len(found) // ROWS_MAX))
    query = replace(query, page=min(query.page, pages))
    states = Counter(status.state for status in statuses)
    return render(
        "tables.html",
        query=query,
        daemon=daemon,
        now_ms=now_ms,
        rows=found[(query.page - 1) * ROWS_MAX : query.page * ROWS_MAX],
        found=len(found),
        pages=pages,
        orders={order: title for order, (title, _) in ORDERS.items()},
        choices=[
            (f"all ({len(statuses)})", ""),
            (f"not ready ({len(reasons)})", NOT_READY),
            *((f"{state} ({states[state]})", state) for state in WORST_FIRST),
        ],
        is_ready=not unready,
        not_ready=Query(state=NOT_READY, stays=query.stays).encode(),
        reasons=reasons,
        troubles=[each for each in unready if each.table not in names],
        troubles_max=REASONS_MAX,
        error_max=ERROR_MAX,
        summary=count_states(statuses),
    )


def _choose(statuses: Sequence[TableStatus], not_ready: Collection[str | None], query: Query) -> list[TableStatus]:
    """Choose and order the tables. The text is searched in names, sources and targets, whatever the case."""
    text = query.text.casefold()
    found = [
        each
        for each in statuses
        if (not query.state or query.state == each.state or (query.state == NOT_READY and each.name in not_ready))
        and (
            not text
            or any(text in place.casefold() for place in (each.name, each.source, each.source_table or "", each.target))
        )
    ]
    ordered = worst_first(found)
    _, key = ORDERS[query.order]
    if key:
        ordered.sort(key=key)  # of equal tables, the worse comes first
    return ordered
