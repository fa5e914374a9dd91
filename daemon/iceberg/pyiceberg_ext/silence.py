"""How long a catalog's server may take to answer, and who asks it while it does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import monotonic

CONNECT_MAX_S = 10.0
# Between two pieces of an answer.
ANSWER_MAX_S = 30.0
SILENT_S = 30.0


class Server:
    """While a server is silent, one request at a time asks whether it is back, and all others fail at once.

    Otherwise its tables would take all threads in turns, and tables of other catalogs would wait for them. `failures`
    are the exceptions of the server's client with which a request without an answer ends.
    """

    def __init__(self, origin: str, *failures: type[Exception]) -> None:
        self._origin = origin
        self._failures = failures
        self._lock = Lock()
        self._is_silent = False
        self._reason = ""
        self._asked_again_s = 0.0

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Ask within the block. Raises ConnectionError instead while the server is silent."""
        began_s = monotonic()
        with self._lock:
            if self._is_silent:
                if began_s < self._asked_again_s:
                    raise ConnectionError(
                        f"{self._origin} is asked again later; the last request failed: {self._reason}"
                    )
                # Nobody else until this request has ended, or has taken too long.
                self._asked_again_s = began_s + ANSWER_MAX_S + SILENT_S
        try:
            yield
        except self._failures as error:
            # However it failed: a timeout inside of the answer, for example, can be any of them.
            if monotonic() - began_s >= min(CONNECT_MAX_S, ANSWER_MAX_S):
                self._reason = str(error)
                self._is_silent, self._asked_again_s = True, monotonic() + SILENT_S
            raise
        except Exception:
            # What the server has answered, for example that there is no such table.
            self._is_silent = False
            raise
        self._is_silent = False
