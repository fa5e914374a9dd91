"""What is refused before the endpoints see it: requests that two programs may read differently, and foreign names."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from daemon.web.answers import Problem

# What supervisors and Prometheus ask for, by any name.
OPEN_PATHS = ("/livez", "/readyz", "/metrics")
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def guard(app: ASGIApp, host: str, address: str) -> ASGIApp:
    """Put `app` behind the checks of a daemon on `address`, which is configured as `host`."""
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
