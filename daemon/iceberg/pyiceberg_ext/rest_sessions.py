"""HTTP sessions of REST catalogs that do not wait for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, local
from time import monotonic
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlsplit

from requests import ConnectionError, RequestException, Response, Session

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
        self._of_thread = local()
        self._is_silent = False
        self._asked_again_s = 0.0

    @contextmanager
    def asked(self) -> Iterator[None]:
        if getattr(self._of_thread, "is_asking", False):
            # For a token, without which the thread's own request cannot be sent.
            yield
            return
        began_s = monotonic()
        with self._lock:
            if self._is_silent:
                if began_s < self._asked_again_s:
                    raise ConnectionError(f"{self._origin} has not answered another request, and is asked again later")
                # Nobody else until this request has ended, or has taken too long.
                self._asked_again_s = began_s + ANSWER_MAX_S + SILENT_S
        self._of_thread.is_asking = True
        try:
            yield
        except RequestException:
            # However it failed: a timeout inside of the answer, for example, is a ConnectionError.
            if monotonic() - began_s >= min(CONNECT_MAX_S, ANSWER_MAX_S):
                self._is_silent, self._asked_again_s = True, monotonic() + SILENT_S
            raise
        finally:
            self._of_thread.is_asking = False
        self._is_silent = False


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
    from pyiceberg.catalog.rest import auth  # noqa: PLC0415

    rest.Session = PatientSession  # type: ignore[attr-defined]
    # Its only use is to fetch tokens.
    auth.requests = SimpleNamespace(post=_post)  # type: ignore[attr-defined,assignment]


def _post(url: str, **options: Any) -> Response:
    with PatientSession() as session:
        return session.post(url, **options)
