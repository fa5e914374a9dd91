"""A receiver on loopback, of webhooks and of OTLP: keeps what it is sent, and answers as a test wants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

OTLP = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


class Receiver(ThreadingHTTPServer):
    """`taken` is what was answered with 200, by path; `refusals` are the codes of the next answers.

    `refusals_at` are those of the next answers at a path. `sent` has the path and the headers of each request.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.taken: dict[str, list[Any]] = {}
        self.refusals: list[int] = []
        self.refusals_at: dict[str, list[int]] = {}
        # The paths of requests that are not answered yet.
        self.waiting: set[str] = set()
        self.sent: list[tuple[str, dict[str, str]]] = []
        # While it is not set, nothing is answered.
        self.answers = Event()
        self.answers.set()

    def refuses(self, body: Any) -> bool:
        return False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["content-length"]))
        body: Any = OTLP[self.path].FromString(sent) if self.path in OTLP else json.loads(sent)
        self.server.waiting.add(self.path)
        self.server.answers.wait(60)
        self.server.waiting.discard(self.path)
        self.server.sent.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        refusals = self.server.refusals_at.get(self.path) or self.server.refusals
        code = refusals.pop(0) if refusals else 400 if self.server.refuses(body) else 200
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
def receiver(kind: type[Receiver] = Receiver) -> Iterator[Receiver]:
    with kind() as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.answers.set()
        server.shutdown()
