"""Asks a running daemon: for its health (`dvsync healthcheck`), its tables, or to sync a table."""

from __future__ import annotations

from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException

from daemon.config.settings import HealthSettings

TIMEOUT_S = 4.0
# A server can listen on a wildcard address, but a client cannot connect to one.
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Answer:
    is_well: bool
    text: str


def url_of(health: HealthSettings) -> str:
    host = ANY.get(health.host, health.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{health.port}"


def ask(health: HealthSettings, path: str, *, token: str | None = None) -> Answer:
    """GET `path` of the daemon, or POST to it with a token. If it does not answer, the result says so."""
    method, headers = ("POST", {"authorization": f"Bearer {token}"}) if token else ("GET", {})
    # Proxies of the environment do not count here: they cannot reach this machine's loopback address.
    connection = HTTPConnection(ANY.get(health.host, health.host), health.port, timeout=TIMEOUT_S)
    url = f"{url_of(health)}/{path}"
    try:
        connection.request(method, f"/{path}", headers=headers)
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        reason = "nothing listens there" if isinstance(error, ConnectionRefusedError) else error
        return Answer(False, f"{url} does not answer: {reason}")
    finally:
        connection.close()
    if response.headers.get_content_type() != "application/json":
        return Answer(False, f"what answers at {url} is not dvsync")
    return Answer(response.status < 300, text)
