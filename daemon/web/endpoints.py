"""What each address answers, from the board alone."""

from __future__ import annotations

import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from daemon.status import Board, Unready
from daemon.web.metrics import make_metrics

# Three of the scheduler's heartbeats. A wall clock that jumps back stops APScheduler's timer: this shows it.
SILENT_MAX_S = 15.0


class Liveness(msgspec.Struct, frozen=True):
    alive: bool
    silent_s: float


class Readiness(msgspec.Struct, frozen=True):
    ready: bool
    reasons: list[Unready]


def make_app(board: Board) -> Starlette:
    """`/livez`, `/readyz`, `/api/tables` and `/metrics`."""
    read_metrics = make_metrics(board)

    async def livez(_: Request) -> Response:
        silent_s = board.silent_s()
        alive = silent_s <= SILENT_MAX_S
        return _json(Liveness(alive, round(silent_s, 1)), ok=alive)

    async def readyz(_: Request) -> Response:
        reasons = board.find_unready()
        return _json(Readiness(not reasons, reasons), ok=not reasons)

    async def tables(_: Request) -> Response:
        return _json(board.statuses(), ok=True)

    async def metrics(_: Request) -> Response:
        return Response(read_metrics(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/api/tables", tables),
            Route("/metrics", metrics),
        ]
    )


def _json(body: object, *, ok: bool) -> Response:
    return Response(
        msgspec.json.encode(body),
        status_code=200 if ok else 503,
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )
