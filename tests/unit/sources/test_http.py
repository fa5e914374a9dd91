"""Connections to a catalog's server: they stay open, and may end at any time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from threading import Thread

import pytest

from daemon.sources.http import Connections

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nye\r\n1\r\ns\r\n0\r\n\r\n"
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nyes"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nyes"


@contextmanager
def server(*connections: list[bytes]) -> Iterator[str]:
    """Each connection gives these answers, and then ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answers in connections:
                with listening.accept()[0] as connection:
                    for answer in answers:
                        assert connection.recv(65536).startswith(b"GET /a?b=c HTTP/1.1\r\n")
                        connection.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/a?b=c"
        thread.join()


def test_a_connection_is_used_again_until_it_ends() -> None:
    with server([WHOLE, CHUNKED], [WHOLE, LAST]) as url:
        connections = Connections()
        for _ in range(4):
            assert connections.request("GET", url, {}) == (200, "", b"yes")


@pytest.mark.parametrize("answer", [CUT, b"", b"no HTTP"])
def test_an_answer_that_is_cut(answer: bytes) -> None:
    """Is none. A new connection that ends is not tried again."""
    with server([answer]) as url, pytest.raises((OSError, HTTPException)):
        Connections().request("GET", url, {})
