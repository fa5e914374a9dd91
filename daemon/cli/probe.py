"""Asking a running daemon how it is, as `dvsync healthcheck` does."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from daemon.config.settings import HealthSettings

TIMEOUT_S = 4.0
# An address that means "every one" is not one to ask.
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Answer:
    is_well: bool
    text: str


def ask(health: HealthSettings, probe: str) -> Answer:
    """What `/livez` or `/readyz` says; that nobody answers is an answer, too."""
    host = ANY.get(health.host, health.host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{health.port}/{probe}"
    # A proxy of the environment knows nothing of this machine's loopback.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as response:
            return Answer(True, response.read().decode())
    except HTTPError as error:
        with error:
            return Answer(False, error.read().decode())
    except (URLError, OSError) as error:
        return Answer(False, f"{url} does not answer: {getattr(error, 'reason', error)}")
