"""uvicorn in a thread of the daemon, with bounds on slow clients. The daemon handles the signals, not uvicorn."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from ipaddress import ip_address
from threading import Thread
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from daemon.config.settings import HealthSettings
from daemon.errors import ConfigInvalid
from daemon.web.answers import Problem

# Every answer comes from memory, so only the client can be slow. Each connection takes a file descriptor, which syncs
# and databases need as well.
WAITING_MAX = 64
# So few are accepted at a time that a client's request is read before others can take its room; the rest queue.
BACKLOG = WAITING_MAX // 4
QUEUE_MAX = 1024
EXCHANGE_MAX_S = 15.0
STOP_MAX_S = 2.0
# What supervisors and Prometheus ask for, by any name.
OPEN_PATHS = ("/livez", "/readyz", "/metrics")
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class BoundedListener(socket.socket):
    """Ends the connections that send no whole request in time, and the oldest of them where a new one needs room.

    uvicorn itself waits for a slow client for ever, and answers 503 to all where `limit_concurrency` is reached.
    """

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(fileno=listener.detach())
        # By the client's address, the longest wait first.
        self._waiting: dict[Any, tuple[socket.socket, asyncio.TimerHandle]] = {}

    def listen(self, _: int = BACKLOG) -> None:
        # asyncio has one number for both.
        super().listen(QUEUE_MAX)

    def accept(self) -> tuple[socket.socket, Any]:
        connection, client = super().accept()
        self._wait(client[:2], connection)
        return connection, client

    def answering(self, app: ASGIApp) -> ASGIApp:
        """Return `app`, whose clients have sent a whole request: they do not wait until they are answered."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            waited = self._waiting.pop(scope["client"], None)
            try:
                await app(scope, receive, send)
            finally:
                if waited:
                    connection, deadline = waited
                    deadline.cancel()
                    self._wait(scope["client"], connection)

        return answer

    def _wait(self, client: Any, connection: socket.socket) -> None:
        for closed in [each for each, (held, _) in self._waiting.items() if held.fileno() < 0]:
            del self._waiting[closed]
        if len(self._waiting) == WAITING_MAX:
            oldest, _ = self._waiting.pop(next(iter(self._waiting)))
            _end(oldest)
        deadline = asyncio.get_running_loop().call_later(EXCHANGE_MAX_S, _end, connection)
        self._waiting[client] = connection, deadline


def _end(connection: socket.socket) -> None:
    # The client may have ended it.
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def guard(app: ASGIApp, host: str, address: str) -> ASGIApp:
    """Refuse requests that two programs may read differently and, on a loopback `address`, those to foreign names."""
    # On a loopback address, a page whose own name leads there (DNS rebinding) must not read it.
    names = {*LOCAL_NAMES, host.lower(), address} if ip_address(address).is_loopback else None

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        answer = app
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy before the daemon may take another part of it for the next request (RFC 9112, 6.3).
            answer = _refusal(400, "the request has both a Content-Length and a Transfer-Encoding", "Send one of them.")
        elif names is not None and scope["path"] not in OPEN_PATHS and _name(headers) not in names:
            answer = _refusal(
                421,
                "the daemon listens on this machine alone, and has no such name",
                "Ask by 127.0.0.1 or localhost, or set health.host to the name. A proxy on this machine must send one "
                "of these as Host.",
            )
        await answer(scope, receive, send)

    return guarded


def _name(headers: Headers) -> str | None:
    """Return the name by which the client asks, without the port. Clients that are no browsers may send none."""
    try:
        return urlsplit(f"//{headers.get('host', LOCAL_NAMES[0])}").hostname
    except ValueError:
        return None


def _refusal(status_code: int, error: str, hint: str) -> Response:
    body = msgspec.json.encode(Problem(error, hint))
    return Response(body, status_code, {"connection": "close"}, "application/json")


class WebServer:
    """Listens from `start` to `stop`."""

    def __init__(self, listener: socket.socket, settings: HealthSettings, app: Starlette) -> None:
        self._listener = BoundedListener(listener)
        config = uvicorn.Config(
            self._listener.answering(guard(app, settings.host, self._listener.getsockname()[0])),
            log_config=None,
            access_log=False,
            lifespan="off",
            # The listener knows its clients by their addresses.
            proxy_headers=False,
            http="h11",
            ws="none",
            backlog=BACKLOG,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, args=([self._listener],), name="web", daemon=True)

    @classmethod
    def start(cls, settings: HealthSettings, app: Starlette) -> Self:
        """Raises ConfigInvalid when the address is not available."""
        try:
            family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
            listener = socket.create_server((settings.host, settings.port), family=family)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            hint = "Set health.host to an address of this machine, such as 127.0.0.1, and health.port to a free port."
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                hint = "Another dvsync or another program uses the port: stop it, or set health.port."
            raise ConfigInvalid(
                f"health: cannot listen on {settings.host}:{settings.port}: {reason.lower()}", hint=hint
            ) from error
        server = cls(listener, settings, app)
        server._thread.start()
        return server

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_MAX_S)
        self._listener.close()
