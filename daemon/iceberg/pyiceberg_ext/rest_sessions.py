"""HTTP sessions of REST catalogs that do not wait for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

from requests import ConnectionError, Response, Session, Timeout

CONNECT_MAX_S: Final = 10.0
# Between two pieces of an answer.
ANSWER_MAX_S: Final = 30.0
SILENT_S: Final = 30.0


class _Server:
    """While a server is silent, one request at a time asks whether it is back, and all others fail at once.

    Otherwise its tables would take all threads in turns, and tables of other catalogs would wait for them.
    """

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._lock = Lock()
        self._silent_until_s: float | None = None
        self._is_asked = False

    @contextmanager
    def asked(self) -> Iterator[None]:
        with self._lock:
            was_silent = self._silent_until_s is not None
            if self._silent_until_s is not None:
                if self._is_asked or monotonic() < self._silent_until_s:
                    raise ConnectionError(f"{self._origin} has not answered another request, and is asked again later")
                self._is_asked = True
        try:
            yield
            self._silent_until_s = None
        except Timeout:
            self._silent_until_s = monotonic() + SILENT_S
            raise
        finally:
            if was_silent:
                self._is_asked = False


class PatientSession(Session):
    """A session whose requests end, with an error, if the server does not answer."""

    _servers: Final[dict[str, _Server]] = {}

    def request(self, method: str, url: str | bytes, *args: Any, **options: Any) -> Response:
        options.setdefault("timeout", (CONNECT_MAX_S, ANSWER_MAX_S))
        address = urlsplit(str(url))
        origin = f"{address.scheme}://{address.hostname}:{address.port}"
        with self._servers.setdefault(origin, _Server(origin)).asked():
            return super().request(method, url, *args, **options)


def limit_waiting() -> None:
    """Make clients of REST catalogs that are opened from now on use PatientSession. Patches PyIceberg."""
    # Imported only here: see `complete_rest_requests`.
    from pyiceberg.catalog import rest  # noqa: PLC0415

    rest.Session = PatientSession  # type: ignore[attr-defined]
