"""What each address answers: questions from the board alone, and what a POST asks from the fleet."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version

import msgspec
from msgspec.structs import asdict
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from daemon.config.value_types import duration_s
from daemon.errors import ConfigInvalid, SyncError
from daemon.status.board import Board
from daemon.status.table_status import run_status
from daemon.sync.verbs import Verb, make_pause
from daemon.texts import iso_time
from daemon.web import answers
from daemon.web.metrics import make_registry
from state import Pause, StateUnavailable

# Three of the scheduler's heartbeats.
SILENT_MAX_S = 15.0

PAUSE_HINT = 'Send no body, or JSON such as {"for": "2h", "reason": "the files are moved"}.'

# The page loads nothing. Its empty icon keeps browsers from asking for one.
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


@dataclass
class Api:
    """`/livez`, `/readyz`, the API below `/api`, `/metrics`, and the page for people.

    `ask` does what a POST wants and returns what happens now; without a `token`, nobody may POST. `process` and `state`
    describe this process and its state database.
    """

    board: Board
    registry: CollectorRegistry | None = None
    ask: Callable[[str, Verb, Pause | None], str] = lambda _name, _verb, _pause: ""
    token: str | None = None
    process: str = ""
    state: str = ""
    host: str = field(default_factory=socket.gethostname)

    def __post_init__(self) -> None:
        self._registry = self.registry or make_registry(self.board)
        self._document = answers.make_document()
        self.app = Starlette(
            routes=[
                Route("/livez", self._livez),
                Route("/readyz", self._readyz),
                Route("/api/daemon", self._daemon),
                Route("/api/tables", self._tables),
                Route("/api/tables/{name}", self._table),
                *(
                    Route(f"/api/tables/{{name}}/{each}", partial(self._verb, wanted=each), methods=["POST"])
                    for each in Verb
                ),
                Route("/api/openapi.json", self._openapi),
                Route("/", self._page),
                Route("/tables/{name}", self._table_page),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={HTTPException: self._refused},
        )

    async def _livez(self, _: Request) -> Response:
        silent_s = self.board.silent_s()
        alive = silent_s <= SILENT_MAX_S
        return _json(answers.Liveness(alive, round(silent_s, 1)), 200 if alive else 503)

    async def _readyz(self, _: Request) -> Response:
        reasons = self.board.find_unready()
        return _json(answers.Readiness(not reasons, str(self.board.share), reasons), 503 if reasons else 200)

    def _describe(self) -> answers.DaemonInfo:
        return answers.DaemonInfo(
            version=version("dvsync"),
            process=self.process,
            host=self.host,
            started_at=iso_time(self.board.started_at_ms),
            state=self.state,
            share=str(self.board.share),
            stands_by=self.board.why_standing_by is not None,
        )

    async def _daemon(self, _: Request) -> Response:
        return _json(self._describe())

    async def _tables(self, _: Request) -> Response:
        return _json(self.board.statuses())

    async def _table(self, request: Request) -> Response:
        name = request.path_params["name"]
        detail = self._find_detail(name)
        return _json(detail) if detail else _problem(404, _why_missing(self.board, name))

    def _find_detail(self, name: str) -> answers.TableDetail | None:
        status = self.board.find_status(name)
        if status is None:
            return None
        runs = [run_status(run) for run in self.board.runs(name)]
        return answers.TableDetail(status, self.board.read_lines(name), runs)

    async def _verb(self, request: Request, wanted: Verb) -> Response:
        name = request.path_params["name"]
        refusal = _refuse(request, self.token) or _refuse_for(self.board, name)
        if refusal:
            return refusal
        pause = None
        if wanted is Verb.PAUSE:
            body, by = await request.body(), f"the API, from {request.client.host}" if request.client else "the API"
            try:
                asked = answers.decode_pause(body) if body else answers.PauseRequest()
                for_s = None if asked.for_ is None else duration_s(asked.for_)
                pause = make_pause(by, self.board.now_ms(), for_s=for_s, reason=asked.reason)
            except (ValueError, ConfigInvalid) as error:
                return _problem(400, str(error), PAUSE_HINT)
        try:
            # Not here: the state database may be slow, and this thread answers the probes.
            text = await run_in_threadpool(self.ask, name, wanted, pause)
        except SyncError as error:
            return _problem(409, error.message, error.hint)
        except StateUnavailable as error:
            return _problem(503, f"the state database cannot be written now: {error}", "Try again.")
        return _json(answers.Accepted(name, wanted, text), 202)

    async def _openapi(self, _: Request) -> Response:
        return _json(self._document)

    async def _refused(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _problem(error.status_code, error.detail.lower(), headers=error.headers)

    async def _page(self, request: Request) -> Response:
        from daemon.web.page import render_tables  # noqa: PLC0415 - most daemons are watched by their metrics only

        statuses, unready, now_ms = self.board.statuses(), self.board.find_unready(), self.board.now_ms()
        return _html(render_tables(request.query_params, statuses, unready, daemon=self._describe(), now_ms=now_ms))

    async def _table_page(self, request: Request) -> Response:
        from daemon.web.page import Query, render  # noqa: PLC0415

        name, query = request.path_params["name"], Query(stays=request.query_params.get("refresh") == "off")
        frame = {"query": query, "daemon": self._describe(), "now_ms": self.board.now_ms()}
        detail = self._find_detail(name)
        if detail is None:
            return _html(render("missing.html", **frame, name=name, reason=_why_missing(self.board, name)), 404)
        return _html(render("table.html", **frame, **asdict(detail), error_max=None))

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _refuse(request: Request, token: str | None) -> Response | None:
    if token is None:
        hint = "Set health.token and send it as `Authorization: Bearer …`, or use the command line."
        return _problem(403, "POST is disabled: no token is configured", hint)
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), token.encode()):
        return None
    headers = {"www-authenticate": "Bearer"}
    return _problem(401, "the token is missing or wrong", "Send health.token as `Authorization: Bearer …`.", headers)


def _refuse_for(board: Board, name: str) -> Response | None:
    """Return the answer to a POST about a table that this daemon does not follow."""
    if reason := board.why_standing_by:
        hint = "Ask the daemon that holds the lease. If none does, this one begins by itself once it gets the lease."
        return _problem(409, reason, hint)
    return None if board.find_status(name) else _problem(404, _why_missing(board, name))


def _why_missing(board: Board, name: str) -> str:
    owner = board.others.get(name)
    return "no such table" if owner is None else f"the table belongs to share {owner}, and this daemon is {board.share}"


def _html(text: str, status_code: int = 200) -> Response:
    headers = {"cache-control": "no-store", "content-security-policy": PAGE_POLICY}
    return Response(text, status_code, headers, "text/html")


def _problem(
    status_code: int, error: str, hint: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    return _json(answers.Problem(error, hint), status_code, headers)


def _json(body: object, status_code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    headers = {"cache-control": "no-store", **(headers or {})}
    return Response(msgspec.json.encode(body), status_code, headers, "application/json")
