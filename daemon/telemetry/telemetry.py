"""Sends traces and metrics over OTLP, from threads of their own. What cannot be sent is dropped."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from threading import Event, Thread

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Status, StatusCode
from prometheus_client.core import Metric

from daemon.clock import Clock
from daemon.config.settings import TelemetrySettings
from daemon.masking import scrub
from daemon.telemetry.metrics import as_otlp
from daemon.telemetry.outages import Outages
from daemon.tracing import Span

# Spans that wait to be sent, a few kilobytes each. Of more, the oldest are dropped.
SPANS_MAX = 4_096
SPANS_A_REQUEST = 512
SPANS_DELAY_S = 2.0

SCOPE = "dvsync"


class Telemetry:
    """Sends spans as they come, and metrics at an interval. Safe to use from any thread; nothing waits or raises."""

    def __init__(self, settings: TelemetrySettings, clock: Clock, *, place: str) -> None:
        """`place` tells apart the daemons of one machine."""
        assert settings.endpoint is not None, "without an endpoint nothing is sent"
        self._settings = settings
        self._clock = clock
        self._started_ns = self._now_ns()
        self._endpoint = settings.endpoint.rstrip("/")
        self._outages = Outages(self._endpoint)
        self._resource = Resource.create(
            {
                "service.name": "dvsync",
                "service.version": version("dvsync"),
                "service.instance.id": f"{socket.gethostname()} {place}",
                "host.name": socket.gethostname(),
            }
        )
        self._closing = Event()
        self._threads: list[Thread] = []
        exporter = OTLPSpanExporter(f"{self._endpoint}/v1/traces", headers=settings.headers, timeout=settings.timeout_s)
        # Closed by `end`, with a limit: the provider's own end waits half a minute.
        self._provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                _Spans(exporter, self._outages),
                max_queue_size=SPANS_MAX,
                schedule_delay_millis=SPANS_DELAY_S * 1000,
                max_export_batch_size=SPANS_A_REQUEST,
            )
        )
        self._tracer = self._provider.get_tracer(SCOPE, version("dvsync"))

    def send(self, span: Span) -> None:
        """Send a piece of work with its steps soon."""

        def begin() -> bool:
            self._start(span, Context())
            return True

        self._outages.attempt("spans", begin)

    def report(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """From now on, send what `collect` returns at each interval, and at the end."""
        exporter = OTLPMetricExporter(
            f"{self._endpoint}/v1/metrics", headers=self._settings.headers, timeout=self._settings.timeout_s
        )

        def export() -> bool:
            families = collect()
            scope = InstrumentationScope(SCOPE, version("dvsync"))
            data = as_otlp(families, self._resource, scope, started_ns=self._started_ns, now_ns=self._now_ns())
            return exporter.export(data) is MetricExportResult.SUCCESS

        def work() -> None:
            while not self._closing.wait(self._settings.interval_s):
                self._outages.attempt("metrics", export)
            self._outages.attempt("metrics", export)

        self._run("metrics", work)

    def begin_to_close(self) -> None:
        """Send what waits, and the metrics once more."""
        self._closing.set()
        self._run("traces", self._provider.shutdown)

    def end(self, wait_s: float) -> None:
        """Wait for the end of `begin_to_close`, for at most `wait_s`. What is not sent by then is dropped."""
        end_s = self._clock.monotonic_s() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - self._clock.monotonic_s()))

    def _start(self, span: Span, context: Context) -> None:
        made = self._tracer.start_span(
            span.name,
            context,
            start_time=span.started_ns,
            attributes={f"dvsync.{key}": _shown(value) for key, value in span.attributes.items()},
        )
        if span.error:
            kind, message = span.error[0], scrub(span.error[1])
            made.set_attribute("error.type", kind)
            made.add_event("exception", {"exception.type": kind, "exception.message": message}, span.ended_ns)
            made.set_status(Status(StatusCode.ERROR, message))
        inner = trace.set_span_in_context(made, context)
        for each in span.steps:
            self._start(each, inner)
        made.end(span.ended_ns)

    def _run(self, name: str, work: Callable[[], None]) -> None:
        thread = Thread(target=work, name=f"telemetry-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _now_ns(self) -> int:
        return self._clock.now_ms() * 1_000_000


class _Spans(SpanExporter):
    """Tells an outage from a lost batch, for the thread of the batch processor."""

    def __init__(self, exporter: SpanExporter, outages: Outages) -> None:
        self._exporter = exporter
        self._outages = outages

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        is_sent = self._outages.attempt("traces", lambda: self._exporter.export(spans) is SpanExportResult.SUCCESS)
        return SpanExportResult.SUCCESS if is_sent else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _shown(value: str | int | bool) -> str | int | bool:
    return scrub(value) if isinstance(value, str) else value
