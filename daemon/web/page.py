"""The status page: HTML from the board, without a script and without anything from other hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader, StrictUndefined

from daemon.status.board import Unready
from daemon.status.table_status import WORST_FIRST, SyncState, TableStatus, run_status
from daemon.status.wording import count_states, differences_text, resync_text, size_text
from daemon.texts import span
from daemon.verify.findings import hint_for
from daemon.web.answers import DaemonInfo
from daemon.web.listing import NOT_READY, ORDERS, Listing, Query
from state import SyncRun

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


def render_tables(
    listing: Listing, statuses: Sequence[TableStatus], unready: Sequence[Unready], *, daemon: DaemonInfo, now_ms: int
) -> str:
    """The tables of the listing. `statuses` are all tables, which the headline counts."""
    names = {status.name for status in statuses}
    reasons = {each.table: each.reason for each in unready if each.table in names}
    states = Counter(status.state for status in statuses)
    return _templates.get_template("tables.html").render(
        listing=listing,
        orders={order: title for order, (title, _) in ORDERS.items()},
        choices=[
            (f"all ({len(statuses)})", ""),
            (f"not ready ({len(reasons)})", NOT_READY),
            *((f"{state} ({states[state]})", state) for state in WORST_FIRST),
        ],
        is_ready=not unready,
        not_ready=Query(state=NOT_READY, stays=listing.query.stays).encode(),
        reasons=reasons,
        troubles=[each for each in unready if each.table not in names],
        troubles_max=REASONS_MAX,
        error_max=ERROR_MAX,
        summary=count_states(statuses),
        **_frame(listing.query, daemon, now_ms),
    )


def render_table(
    status: TableStatus,
    runs: Sequence[SyncRun],
    read: Mapping[str, str],
    *,
    query: Query,
    daemon: DaemonInfo,
    now_ms: int,
) -> str:
    """One table: the lines to `read` it, its last `runs`, and its files."""
    frame = _frame(query, daemon, now_ms)
    shown = [run_status(run) for run in runs]
    return _templates.get_template("table.html").render(status=status, runs=shown, read=read, error_max=None, **frame)


def render_missing(name: str, reason: str, *, query: Query, daemon: DaemonInfo, now_ms: int) -> str:
    frame = _frame(query, daemon, now_ms)
    return _templates.get_template("missing.html").render(name=name, reason=reason, **frame)


def _frame(query: Query, daemon: DaemonInfo, now_ms: int) -> dict[str, object]:
    return {
        "stays": query.stays,
        "other_query": replace(query, stays=not query.stays).encode(),
        "daemon": daemon,
        "now_ms": now_ms,
    }
