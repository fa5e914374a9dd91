"""The status page: HTML from the board, without a script and without anything from other hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader, StrictUndefined

from daemon.status.board import Unready
from daemon.status.table_status import (
    WORST_FIRST,
    SyncState,
    TableStatus,
    count_states,
    differences_text,
    resync_text,
    run_status,
    size_text,
    span,
)
from daemon.status.timeline import OUTLINE_INTERVAL_MS, Timeline
from daemon.verify.findings import hint_for
from daemon.web.answers import DaemonInfo
from daemon.web.listing import NOT_READY, TITLES, Listing, Query
from state import Sample

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
# Whole numbers of these units are short to write and fine enough to draw.
WIDTH, HEIGHT = 1440, 240
SPARK_WIDTH, SPARK_HEIGHT = 96, 24
# The state store has a sample for ten minutes, so a longer time without one is a time without a daemon.
GAP_MS, SPARK_GAP_MS = 1_500_000, 2 * OUTLINE_INTERVAL_MS + 60_000


@dataclass(frozen=True)
class Chart:
    """A line with gaps where no daemon ran: the points of each piece, and the area under it, as SVG has them."""

    lines: Sequence[str]
    areas: Sequence[str]
    top: str
    now: str
    from_ms: int
    to_ms: int
    width: int
    height: int


def _span(seconds: float | None) -> str:
    return "?" if seconds is None else span(seconds)


def _time(at: int | str) -> str:
    """The page's one format of times; `at` is in epoch milliseconds or ISO 8601."""
    moment = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _ago(at: str, now_ms: int) -> str:
    """How long ago that is, in whole minutes after the first."""
    seconds = max(0, round(now_ms / 1000 - datetime.fromisoformat(at).timestamp()))
    return f"{span(seconds if seconds < 60 else seconds // 60 * 60)} ago"


def _place(location: str) -> str:
    """A local path without its scheme."""
    return location.removeprefix("file://")


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _versions(status: TableStatus) -> str:
    """The version that Iceberg shows, and Delta's newest, as far as they are known."""
    if status.source_version is None:
        return "none yet" if status.synced_version is None else _count(status.synced_version)
    synced = "none" if status.synced_version is None else _count(status.synced_version)
    return f"{synced} of {_count(status.source_version)}"


_templates = Environment(
    loader=PackageLoader("daemon.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters.update(
    size=size_text,
    span=_span,
    time=_time,
    ago=_ago,
    count=_count,
    place=_place,
    versions=_versions,
    style=STYLES.__getitem__,
    resync=resync_text,
    differences=lambda proof: differences_text(proof.differences),
    remedy=lambda proof, table: hint_for(table, proof.differences),
)


def render_tables(
    listing: Listing,
    statuses: Sequence[TableStatus],
    unready: Sequence[Unready],
    days: Mapping[str, Sequence[Sample]],
    *,
    daemon: DaemonInfo,
    now_ms: int,
) -> str:
    """The tables of the listing with state, lag, error and hint, and their lag over the day in `days`.

    `statuses` are all tables, which the headline counts.
    """
    names = {status.name for status in statuses}
    reasons = {each.table: each.reason for each in unready if each.table in names}
    states = Counter(status.state for status in statuses)
    return _templates.get_template("tables.html").render(
        rows=[(each, _chart(days[each.name], _lag, _span, outline=True)) for each in listing.rows],
        listing=listing,
        orders=TITLES,
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
    timeline: Timeline,
    read: Mapping[str, str],
    *,
    query: Query,
    daemon: DaemonInfo,
    now_ms: int,
) -> str:
    """One table: the lines to `read` it, charts of its day, its last syncs, and its files."""
    day = timeline.samples()
    charts = {
        "Behind": _chart(day, _lag, _span),
        "Deleted rows": _chart(day, lambda sample: sample.deleted_positions, _whole),
        "Delete files": _chart(day, lambda sample: sample.delete_files, _whole),
        "Orphans that wait for cleanup": _chart(day, lambda sample: sample.orphans, _whole),
    }
    page = _templates.get_template("table.html")
    return page.render(
        status=status,
        runs=[run_status(run) for run in timeline.runs()],
        charts=charts,
        read=read,
        error_max=None,
        **_frame(query, daemon, now_ms),
    )


def render_missing(name: str, reason: str, *, query: Query, daemon: DaemonInfo, now_ms: int) -> str:
    frame = _frame(query, daemon, now_ms)
    return _templates.get_template("missing.html").render(name=name, reason=reason, **frame)


def _frame(query: Query, daemon: DaemonInfo, now_ms: int) -> dict[str, object]:
    """What is around every page."""
    return {"stays": query.stays, "other_query": query.turned().encode(), "daemon": daemon, "now_ms": now_ms}


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _lag(sample: Sample) -> float | None:
    return sample.lag_seconds


def _chart(
    day: Sequence[Sample],
    read: Callable[[Sample], float | None],
    label: Callable[[float], str],
    *,
    outline: bool = False,
) -> Chart | None:
    """A line over the samples in which the value is known; None when there are fewer than two."""
    points = [(sample.at_ms, value) for sample in day if (value := read(sample)) is not None]
    if len(points) < 2:
        return None
    width, height, gap_ms = (SPARK_WIDTH, SPARK_HEIGHT, SPARK_GAP_MS) if outline else (WIDTH, HEIGHT, GAP_MS)
    first_ms, last_ms = points[0][0], points[-1][0]
    highest = max(value for _, value in points)
    scale_x, scale_y = width / max(1, last_ms - first_ms), height / (highest or 1.0)
    pieces: list[list[tuple[int, int]]] = []
    before_ms = None
    for at_ms, value in points:
        if before_ms is None or at_ms - before_ms > gap_ms:
            pieces.append([])
        pieces[-1].append((round((at_ms - first_ms) * scale_x), round(height - value * scale_y)))
        before_ms = at_ms
    lines = [" ".join(f"{x},{y}" for x, y in piece) for piece in pieces]
    areas = [
        f"{piece[0][0]},{height} {line} {piece[-1][0]},{height}" for piece, line in zip(pieces, lines, strict=True)
    ]
    return Chart(lines, areas, label(highest), label(points[-1][1]), first_ms, last_ms, width, height)
