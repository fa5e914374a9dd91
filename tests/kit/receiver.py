"""A webhook's receiver on loopback: keeps what it is sent, and answers with the status codes that a test wants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any


class Receiver(ThreadingHTTPServer):
    """`taken` are the notices that were answered with 200, by path; `refusals` are the codes of the next answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.taken: dict[str, list[dict[str, Any]]] = {}
        self.refusals: list[int] = []
        self.headers: list[dict[str, str]] = []
        # While it is not set, nothing is answered.
        self.answers = Event()
        self.answers.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.answers.wait(60)
        self.server.headers.append(dict(self.headers.items()))
        code = self.server.refusals.pop(0) if self.server.refusals else 200
        if code == 200:
            self.server.taken.setdefault(self.path, []).append(body)
        self.send_response(code)
        self.send_header("content-length", "0")
        if code == 302:
            self.send_header("location", f"{self.server.url}/elsewhere")
        self.end_headers()

    def do_GET(self) -> None:
        """As a page that a redirect leads to: it takes anything."""
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.answers.set()
        server.shutdown()
