"""What each address answers, from the board alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from daemon.status.board import Board, Unready
from daemon.status.table_status import TableStatus
from daemon.status.timeline import FileDeletions, Sample
from daemon.web.metrics import make_metrics
from daemon.web.page import render_missing, render_table, render_tables
from state import SyncRun

# Three of the scheduler's heartbeats.
SILENT_MAX_S = 15.0

# The page loads nothing. Its empty icon keeps browsers from asking for one.
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Liveness(msgspec.Struct, frozen=True):
    alive: bool
    silent_s: float


class Readiness(msgspec.Struct, frozen=True):
    ready: bool
    share: str
    reasons: list[Unready]


class TableDetail(msgspec.Struct, frozen=True):
    """One table with its last syncs, the newest first, its last day, the oldest first, and its worst files now."""

    status: TableStatus
    runs: list[SyncRun]
    day: list[Sample]
    worst_files: Sequence[FileDeletions]


def make_app(board: Board, *, is_spark_up: Callable[[], bool] = lambda: False) -> Starlette:
    """`/livez`, `/readyz`, `/api/tables`, `/api/tables/{name}`, `/metrics`, and the page for people."""
    read_metrics = make_metrics(board, is_spark_up)

    async def livez(_: Request) -> Response:
        silent_s = board.silent_s()
        alive = silent_s <= SILENT_MAX_S
        return _json(Liveness(alive, round(silent_s, 1)), ok=alive)

    async def readyz(_: Request) -> Response:
        reasons = board.find_unready()
        return _json(Readiness(not reasons, str(board.share), reasons), ok=not reasons)

    async def tables(_: Request) -> Response:
        return _json(board.statuses(), ok=True)

    async def table(request: Request) -> Response:
        detail = _find_table(board, request)
        if detail is None:
            return _json({"error": _why_missing(board, request)}, ok=False, status_code=404)
        return _json(detail, ok=True)

    async def page(_: Request) -> Response:
        statuses = board.statuses()
        days = {status.name: board.timeline(status.name).outline() for status in statuses}
        return _html(render_tables(statuses, board.find_unready(), days, board.share))

    async def table_page(request: Request) -> Response:
        detail = _find_table(board, request)
        if detail is None:
            return _html(render_missing(request.path_params["name"], _why_missing(board, request)), status_code=404)
        return _html(render_table(detail.status, detail.runs, detail.day, detail.worst_files))

    async def metrics(_: Request) -> Response:
        return Response(read_metrics(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/api/tables", tables),
            Route("/api/tables/{name}", table),
            Route("/", page),
            Route("/tables/{name}", table_page),
            Route("/metrics", metrics),
        ]
    )


def _find_table(board: Board, request: Request) -> TableDetail | None:
    name = request.path_params["name"]
    status = board.find_status(name)
    if status is None:
        return None
    timeline = board.timeline(name)
    return TableDetail(status, timeline.runs(), timeline.samples(), timeline.worst_files())


def _why_missing(board: Board, request: Request) -> str:
    owner = board.find_owner(request.path_params["name"])
    return "no such table" if owner is None else f"the table belongs to share {owner}, and this daemon is {board.share}"


def _html(text: str, *, status_code: int = 200) -> Response:
    headers = {"cache-control": "no-store", "content-security-policy": PAGE_POLICY}
    return Response(text, status_code=status_code, media_type="text/html", headers=headers)


def _json(body: object, *, ok: bool, status_code: int | None = None) -> Response:
    return Response(
        msgspec.json.encode(body),
        status_code=status_code or (200 if ok else 503),
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )
