"""Sends traces and metrics over OTLP, from threads of their own. What cannot be sent is dropped."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from importlib.metadata import version
from threading import Event, Thread

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_METRIC_EXPORT_INTERVAL
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Status, StatusCode
from prometheus_client.core import Metric as Family
from prometheus_client.core import Sample

from daemon.clock import Clock
from daemon.masking import scrub
from daemon.observe import log as events
from daemon.observe.tracing import Span
from daemon.texts import TEXT_CHARACTERS_MAX, excerpt

SCOPE = "dvsync"
# The SDK logs each attempt.
OUTAGE_EACH_S = 3600.0
CUMULATIVE = AggregationTemporality.CUMULATIVE

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_sdk_log = logging.getLogger("opentelemetry")


class Telemetry:
    """Sends spans as they come, and metrics at an interval. Safe to use from any thread; nothing waits or raises."""

    def __init__(self, signals: Container[str], clock: Clock, *, place: str) -> None:
        """`place` tells apart the daemons of one machine."""
        self._clock = clock
        self._started_ns = self._now_ns()
        _sdk_log.handlers[:], _sdk_log.propagate = [Outages(clock)], False
        own = Resource(
            {
                "service.name": "dvsync",
                "service.version": version("dvsync"),
                "service.instance.id": f"{socket.gethostname()} {place}",
                "host.name": socket.gethostname(),
            }
        )
        # The variables of the SDK come first.
        self._resource = Resource.create(own.merge(OTELResourceDetector().detect()).attributes)
        self._metrics = OTLPMetricExporter() if "metrics" in signals else None
        self._closing = Event()
        self._threads: list[Thread] = []
        # Closed by `end`, with a limit: the provider's own end waits half a minute.
        self._provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        if "traces" in signals:
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer(SCOPE, version("dvsync"))

    def report(self, collect: Callable[[], Iterable[Family]]) -> None:
        """From now on, send what `collect` returns at each interval, and at the end."""
        exporter, interval_s = self._metrics, 60.0  # the SDK's default
        if exporter is None:
            return
        with suppress(ValueError):
            interval_s = float(os.environ.get(OTEL_METRIC_EXPORT_INTERVAL, "60000")) / 1000
        scope = InstrumentationScope(SCOPE, version("dvsync"))

        def work() -> None:
            is_last = False
            while not is_last:
                is_last = self._closing.wait(interval_s)
                times = {"started_ns": self._started_ns, "now_ns": self._now_ns()}
                try:
                    exporter.export(as_otlp(collect(), self._resource, scope, **times))
                except Exception as error:
                    # The thread goes on.
                    _sdk_log.getChild("metrics").warning("%s: %s", type(error).__name__, error)

        self._run("metrics", work)

    def begin_to_close(self) -> None:
        self._closing.set()
        self._run("traces", self._provider.shutdown)

    def end(self, wait_s: float) -> None:
        """Wait for the end of `begin_to_close`, for at most `wait_s`. What is not sent by then is dropped."""
        end_s = self._clock.monotonic_s() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - self._clock.monotonic_s()))

    def send(self, span: Span, context: Context | None = None) -> None:
        made = self._tracer.start_span(span.name, context or Context(), start_time=span.started_ns)
        for key, value in span.attributes.items():
            made.set_attribute(f"dvsync.{key}", scrub(value) if isinstance(value, str) else value)
        if span.error:
            kind, message = span.error[0], scrub(span.error[1])
            made.set_attribute("error.type", kind)
            made.add_event("exception", {"exception.type": kind, "exception.message": message}, span.ended_ns)
            made.set_status(Status(StatusCode.ERROR, message))
        inner = trace.set_span_in_context(made, context)
        for each in span.steps:
            self.send(each, inner)
        made.end(span.ended_ns)

    def _run(self, name: str, work: Callable[[], None]) -> None:
        thread = Thread(target=work, name=f"telemetry-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _now_ns(self) -> int:
        return self._clock.now_ms() * 1_000_000


class Outages(logging.Handler):
    """Logs the first of what the SDK says of a signal's receiver, and no more for an hour."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._silent_until_s: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        signal = "metrics" if "metric" in record.name else "traces"
        now_s = self._clock.monotonic_s()
        if now_s < self._silent_until_s.get(signal, now_s):
            return
        self._silent_until_s[signal] = now_s + OUTAGE_EACH_S
        _log.warning(
            events.TELEMETRY_FAILED,
            signal=signal,
            reason=excerpt(scrub(record.getMessage()), TEXT_CHARACTERS_MAX),
            hint="Check the OTEL_EXPORTER_OTLP_… variables and the receiver. Syncs are not affected; what is not sent "
            "is lost.",
        )


def as_otlp(
    families: Iterable[Family], resource: Resource, scope: InstrumentationScope, *, started_ns: int, now_ns: int
) -> MetricsData:
    """Convert what `/metrics` answers, with its names, labels and values. Times are epoch nanoseconds."""
    metrics = [metric for family in families for metric in _convert(family, started_ns, now_ns)]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _convert(family: Family, started_ns: int, now_ns: int) -> Iterator[Metric]:
    if not family.samples:
        return
    if family.type == "histogram":
        histogram = Histogram(list(_distributions(family.samples, started_ns, now_ns)), CUMULATIVE)
        yield Metric(family.name, family.documentation, "", histogram)
        return
    is_counter = family.type == "counter"
    # The name that `/metrics` has.
    name = f"{family.name}_total" if is_counter else family.name
    points = [
        NumberDataPoint(sample.labels, started_ns if is_counter else 0, now_ns, float(sample.value))
        for sample in family.samples
        if sample.name == name
    ]
    data = Sum(points, CUMULATIVE, is_monotonic=True) if is_counter else Gauge(points)
    yield Metric(name, family.documentation, "", data)


def _distributions(samples: Iterable[Sample], started_ns: int, now_ns: int) -> Iterator[HistogramDataPoint]:
    """One data point for each set of labels. Prometheus counts all values up to a bound, OTLP those of a bucket."""
    buckets: dict[tuple[tuple[str, str], ...], dict[float, int]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        if sample.name.endswith("_bucket"):
            buckets.setdefault(labels, {})[float(sample.labels["le"])] = int(sample.value)
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    for labels, up_to in buckets.items():
        bounds = sorted(up_to)
        totals = [up_to[bound] for bound in bounds]
        yield HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=started_ns,
            time_unix_nano=now_ns,
            count=totals[-1],
            sum=sums[labels],
            bucket_counts=[total - before for total, before in zip(totals, [0, *totals], strict=False)],
            explicit_bounds=bounds[:-1],  # without +Inf
            # Prometheus does not keep them.
            min=None,  # type: ignore[arg-type]
            max=None,  # type: ignore[arg-type]
        )
