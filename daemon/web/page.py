"""The status page: HTML from the board, without a script and without anything from other hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.filesize import decimal
from starlette.datastructures import QueryParams

from daemon.status.board import Unready
from daemon.status.reading import read_lines
from daemon.status.table_status import (
    SyncState,
    TableStatus,
    count_states,
    differences_text,
    iso_time,
    span,
    worst_first,
)
from daemon.verify.findings import hint_for
from daemon.web.answers import DaemonInfo, DayPoint, TableDetail
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
WIDTH, HEIGHT = 600, 120
# The orders in which the tables can be listed, by the word in the address.
ORDERS: Mapping[str, tuple[str, Callable[[TableStatus], object]]] = {
    "worst": ("the worst first", worst_first),
    "name": ("by name", lambda status: status.name),
    "lag": ("the furthest behind first", lambda status: -(status.lag_seconds or 0)),
    "synced": ("the longest without a sync first", lambda status: status.last_synced_at or ""),
    "deleted": ("the most deleted rows first", lambda status: -(status.deleted_positions or 0)),
}


@dataclass(frozen=True)
class Selection:
    """Which tables the page lists, by its address: those whose name or source has `text`, in the states, ordered."""

    text: str = ""
    states: frozenset[str] = frozenset()
    order: str = "worst"

    @classmethod
    def of(cls, parameters: QueryParams) -> Self:
        """What is unknown in the address is passed over."""
        order = parameters.get("order", "worst")
        states = {*parameters.getlist("state")} & {*SyncState}
        return cls(parameters.get("q", "").strip(), frozenset(states), order if order in ORDERS else "worst")

    def apply(self, statuses: Sequence[TableStatus]) -> list[TableStatus]:
        text = self.text.casefold()
        found = (
            status
            for status in statuses
            if (not self.states or status.state in self.states)
            and (text in status.name.casefold() or text in status.source.casefold())
        )
        _, key = ORDERS[self.order]
        return sorted(found, key=key)  # type: ignore[arg-type]  # Each key has one type for all tables.


def _bytes(value: int | None) -> str:
    return "?" if value is None else decimal(value).replace("bytes", "B")


def _span(seconds: float | None) -> str:
    return "?" if seconds is None else span(seconds)


def _time(iso: str | None) -> str:
    """A time of the API in the one form of the page, to a second; UTC."""
    return "never" if iso is None else f"{iso[:10]} {iso[11:19]}"


def _ago(iso: str | None, now: str) -> str:
    if iso is None:
        return "never"
    return f"{span(max(0.0, (datetime.fromisoformat(now) - datetime.fromisoformat(iso)).total_seconds()))} ago"


def _duration(milliseconds: int) -> str:
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 60_000 else span(milliseconds / 1000)


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
    ago=_ago,
    duration=_duration,
    count=_count,
    place=_place,
    style=STYLES.__getitem__,
    differences=lambda proof: differences_text(proof.differences),
    remedy=lambda proof, table: hint_for(table, proof.differences),
)


def render_tables(
    statuses: Sequence[TableStatus],
    unready: Sequence[Unready],
    outline_of: Callable[[str], Sequence[Sample]],
    selection: Selection,
    daemon: DaemonInfo,
) -> str:
    """The tables of the selection with state, lag, error and hint, and their lag over the day by `outline_of`."""
    chosen = selection.apply(statuses)
    return _templates.get_template("tables.html").render(
        rows=[(status, _chart([*map(_lag_point, outline_of(status.name))], _span)) for status in chosen],
        total=len(statuses),
        unready=unready,
        summary=count_states(statuses),
        selection=selection,
        states=[state for state in SyncState if any(status.state is state for status in statuses)],
        orders={word: name for word, (name, _) in ORDERS.items()},
        daemon=daemon,
    )


def render_table(detail: TableDetail, daemon: DaemonInfo) -> str:
    """One table: how to read it, charts of its day, its worst data files, its last syncs, its files by kind."""
    status, day = detail.status, detail.day
    charts = {
        "Behind": _chart(_points(day, lambda point: point.lag_seconds), _span),
        "Deleted rows": _chart(_points(day, lambda point: point.deleted_positions), _whole),
        "Delete files": _chart(_points(day, lambda point: point.delete_files), _whole),
        "Orphans that wait for cleanup": _chart(_points(day, lambda point: point.orphans), _whole),
    }
    read = {}
    if status.catalog and status.metadata_location:
        read = read_lines(status.catalog, status.target, status.metadata_location)
    return _templates.get_template("table.html").render(
        status=status,
        runs=detail.runs,
        charts=charts,
        worst_files=detail.worst_files,
        read=read,
        daemon=daemon,
    )


def render_missing(name: str, reason: str, daemon: DaemonInfo) -> str:
    return _templates.get_template("missing.html").render(name=name, reason=reason, daemon=daemon)


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _lag_point(sample: Sample) -> tuple[int, float | None]:
    return sample.at_ms, sample.lag_seconds


def _points(day: Sequence[DayPoint], read: Callable[[DayPoint], float | None]) -> list[tuple[int, float | None]]:
    return [(round(datetime.fromisoformat(point.at).timestamp() * 1000), read(point)) for point in day]


def _chart(points: Sequence[tuple[int, float | None]], label: Callable[[float], str]) -> dict[str, object] | None:
    """A line over the points, of a time and a value that may be unknown; None if fewer than two are known."""
    known = [(at_ms, value) for at_ms, value in points if value is not None]
    if len(known) < 2:
        return None
    first_ms, last_ms = known[0][0], known[-1][0]
    top = max(value for _, value in known) or 1.0
    line = " ".join(
        f"{(at_ms - first_ms) / max(1, last_ms - first_ms) * WIDTH:.1f},{HEIGHT - value / top * HEIGHT:.1f}"
        for at_ms, value in known
    )
    return {
        "line": line,
        "top": label(max(value for _, value in known)),
        "now": label(known[-1][1]),
        "from": _time(iso_time(first_ms)),
        "to": _time(iso_time(last_ms)),
        "width": WIDTH,
        "height": HEIGHT,
    }
