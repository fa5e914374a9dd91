"""Asks a running daemon for its health, for `dvsync healthcheck`."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from daemon.config.settings import HealthSettings

TIMEOUT_S = 4.0
# A server can listen on a wildcard address, but a client cannot connect to one.
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Answer:
    is_well: bool
    text: str


def ask(health: HealthSettings, probe: str) -> Answer:
    """Ask the daemon's `/livez` or `/readyz`. If the daemon does not answer, the result says so; nothing is raised."""
    host = ANY.get(health.host, health.host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{health.port}/{probe}"
    # Ignore the proxies of the environment: a proxy cannot reach this machine's loopback address.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as response:
            return Answer(True, response.read().decode())
    except HTTPError as error:
        with error:
            return Answer(False, error.read().decode())
    except (URLError, OSError) as error:
        return Answer(False, f"{url} does not answer: {getattr(error, 'reason', error)}")
