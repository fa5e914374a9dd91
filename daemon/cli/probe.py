"""Asks a running daemon: for its health (`dvsync healthcheck`), its tables, or to sync a table."""

from __future__ import annotations

from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener
from urllib.response import addinfourl

from daemon.config.settings import HealthSettings

TIMEOUT_S = 4.0
# A server can listen on a wildcard address, but a client cannot connect to one.
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Answer:
    is_well: bool
    text: str


def ask(health: HealthSettings, path: str) -> Answer:
    """GET `path` of the daemon. If the daemon does not answer, the result says so; nothing is raised."""
    return _exchange(health, Request(f"{url_of(health)}/{path}"))


def ask_to_sync(health: HealthSettings, table: str) -> Answer:
    """Ask the daemon to poll a table now, with `health.token`."""
    request = Request(f"{url_of(health)}/api/tables/{quote(table)}/sync", method="POST")
    request.add_header("authorization", f"Bearer {health.token}")
    return _exchange(health, request)


def url_of(health: HealthSettings) -> str:
    host = ANY.get(health.host, health.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{health.port}"


def _exchange(health: HealthSettings, request: Request) -> Answer:
    try:
        # Ignore the proxies of the environment: a proxy cannot reach this machine's loopback address.
        opener = build_opener(ProxyHandler({}))
        with opener.open(request, timeout=TIMEOUT_S) as response:
            return _answer(request, response, is_well=True)
    except HTTPError as error:
        with error:
            return _answer(request, error, is_well=False)
    except (OSError, HTTPException) as error:
        return Answer(False, f"{request.full_url} does not answer: {getattr(error, 'reason', error)}")


def _answer(request: Request, response: addinfourl, *, is_well: bool) -> Answer:
    if response.headers.get_content_type() != "application/json":
        return Answer(False, f"what answers at {request.full_url} is not dvsync")
    return Answer(is_well, response.read().decode(errors="replace"))
