"""Requests to the server of a catalog, on connections that stay open. Redirects are not followed: a token stays here.

By Python's own client: each idle poll is a request, and urllib3 takes three times the processor's time for one.
"""

from __future__ import annotations

import ssl
import time
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

TIMEOUT_S = 10.0  # of each part of an answer
ANSWER_MAX_S = 60.0
ANSWER_BYTES_MAX = 64 << 20


class Answer(NamedTuple):
    status: int
    retry_after: str
    data: bytes


class Connections:
    """To all servers of one catalog: never more than threads that ask at the same time. From any thread."""

    def __init__(self) -> None:
        self._idle: defaultdict[tuple[str, str], list[HTTPConnection]] = defaultdict(list)

    def __del__(self) -> None:
        for connection in (each for idle in self._idle.values() for each in idle):
            connection.close()

    def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> Answer:
        """Raises OSError, HTTPException if there is no answer, or one of more than ANSWER_BYTES_MAX."""
        place = urlsplit(url)
        idle = self._idle[place.scheme, place.netloc]
        target = url.removeprefix(f"{place.scheme}://{place.netloc}")
        while True:
            try:
                connection, is_used = idle.pop(), True
            except IndexError:
                connection, is_used = _connect(place), False
            try:
                connection.request(method, target, body, headers)
                response = connection.getresponse()
                data, until_s = b"", time.monotonic() + ANSWER_MAX_S
                while block := response.read1(ANSWER_BYTES_MAX):
                    data += block
                    if len(data) > ANSWER_BYTES_MAX:
                        raise HTTPException(f"it answers with more than {ANSWER_BYTES_MAX >> 20} MiB")
                    if time.monotonic() > until_s:
                        raise TimeoutError(f"its answer took more than {ANSWER_MAX_S:.0f} s")
                if response.length:
                    raise IncompleteRead(data, response.length)
                response.read()  # Makes the connection free again.
            except BaseException as error:
                connection.close()
                # The server may have ended a connection that was idle.
                if is_used and isinstance(error, OSError) and not isinstance(error, TimeoutError):
                    continue
                raise
            if response.will_close:
                connection.close()
            else:
                idle.append(connection)
            return Answer(response.status, response.headers.get("Retry-After", ""), data)


def _connect(place: SplitResult) -> HTTPConnection:
    assert place.hostname, "the configuration is checked"
    if place.scheme == "https":
        return HTTPSConnection(place.hostname, place.port, timeout=TIMEOUT_S, context=_context())
    return HTTPConnection(place.hostname, place.port, timeout=TIMEOUT_S)


@cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()
