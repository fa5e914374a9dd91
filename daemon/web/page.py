"""The status page: HTML from the board, without a script and without anything from other hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.filesize import decimal

from daemon.config.share import Share
from daemon.status.board import Unready
from daemon.status.table_status import SyncState, TableStatus, count_states, differences_text, span
from daemon.status.timeline import FileDeletions
from daemon.verify.findings import hint_for
from state import Sample, SyncRun

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
WIDTH, HEIGHT = 600, 120


def _bytes(value: int | None) -> str:
    return "?" if value is None else decimal(value).replace("bytes", "B")


def _span(seconds: float | None) -> str:
    return "?" if seconds is None else span(seconds)


def _time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _place(location: str) -> str:
    """A local path without its scheme."""
    return location.removeprefix("file://")


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


_templates = Environment(
    loader=PackageLoader("daemon.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters.update(
    bytes=_bytes,
    span=_span,
    time=_time,
    count=_count,
    place=_place,
    style=STYLES.__getitem__,
    differences=lambda proof: differences_text(proof.differences),
    remedy=lambda proof, table: hint_for(table, proof.differences),
)


def render_tables(
    statuses: Sequence[TableStatus], unready: Sequence[Unready], days: Mapping[str, Sequence[Sample]], share: Share
) -> str:
    """Every table with its state, lag, error and hint, and its lag over the day in `days`."""
    rows = [(status, _chart(days[status.name], _lag, _span)) for status in statuses]
    summary = count_states(statuses)
    return _templates.get_template("tables.html").render(rows=rows, unready=unready, summary=summary, share=share)


def render_table(
    status: TableStatus, runs: Sequence[SyncRun], day: Sequence[Sample], worst_files: Sequence[FileDeletions]
) -> str:
    """One table: charts of its day, its worst data files, its last syncs, its files by kind and status."""
    charts = {
        "Behind": _chart(day, _lag, _span),
        "Deleted rows": _chart(day, lambda sample: sample.deleted_positions, _whole),
        "Delete files": _chart(day, lambda sample: sample.delete_files, _whole),
        "Orphans that wait for cleanup": _chart(day, lambda sample: sample.orphans, _whole),
    }
    page = _templates.get_template("table.html")
    return page.render(status=status, runs=runs, charts=charts, worst_files=worst_files)


def render_missing(name: str, reason: str) -> str:
    return _templates.get_template("missing.html").render(name=name, reason=reason)


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _lag(sample: Sample) -> float | None:
    return sample.lag_seconds


def _chart(
    day: Sequence[Sample], read: Callable[[Sample], float | None], label: Callable[[float], str]
) -> dict[str, object] | None:
    """A line over the samples in which the value is known; None when there are fewer than two."""
    points = [(sample.at_ms, value) for sample in day if (value := read(sample)) is not None]
    if len(points) < 2:
        return None
    first_ms, last_ms = points[0][0], points[-1][0]
    top = max(value for _, value in points) or 1.0
    line = " ".join(
        f"{(at_ms - first_ms) / max(1, last_ms - first_ms) * WIDTH:.1f},{HEIGHT - value / top * HEIGHT:.1f}"
        for at_ms, value in points
    )
    return {
        "line": line,
        "top": label(max(value for _, value in points)),
        "now": label(points[-1][1]),
        "from": _time(first_ms),
        "to": _time(last_ms),
        "width": WIDTH,
        "height": HEIGHT,
    }
