"""How metrics become OTLP, and what is said of a receiver that does not work."""

from __future__ import annotations

import logging
import sys

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from structlog.testing import capture_logs

from daemon.clock import SystemClock
from daemon.telemetry import open_telemetry, switched_on
from daemon.telemetry.telemetry import OUTAGE_EACH_S, Outages, as_otlp


def test_metrics_keep_their_names_labels_and_values() -> None:
    """Counts of buckets are no longer sums up to a bound; a family without a series is left out."""
    registry = CollectorRegistry()
    Gauge("lag", "Behind.", ["table"], registry=registry).labels("a").set(2)
    Gauge("unknown", "No series.", ["table"], registry=registry)
    Counter("syncs", "Syncs.", registry=registry).inc(3)
    steps = Histogram("seconds", "Steps.", ["step"], buckets=(0.1, 1), registry=registry)
    for seconds in (0.05, 0.5, 0.7, 30):
        steps.labels("read").observe(seconds)
    data = as_otlp(registry.collect(), Resource({}), InstrumentationScope("x"), started_ns=5, now_ns=9)
    metrics = encode_metrics(data).resource_metrics[0].scope_metrics[0].metrics
    found = {each.name: each for each in metrics}
    assert found.keys() == {"lag", "syncs_total", "seconds"}
    (gauge,) = found["lag"].gauge.data_points
    assert (gauge.as_double, gauge.attributes[0].value.string_value, gauge.time_unix_nano) == (2, "a", 9)
    (total,) = found["syncs_total"].sum.data_points
    assert (total.as_double, total.start_time_unix_nano, found["syncs_total"].sum.is_monotonic) == (3, 5, True)
    (point,) = found["seconds"].histogram.data_points
    assert list(point.bucket_counts) == [1, 2, 1]
    assert (list(point.explicit_bounds), point.count, point.sum) == ([0.1, 1], 4, 31.25)
    assert not point.HasField("min") and not point.HasField("max")


class FakeClock(SystemClock):
    time_s = 0.0

    def monotonic_s(self) -> float:
        return self.time_s


def test_an_outage_is_told_once_an_hour_with_its_first_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the SDK says of it reaches no log of ours otherwise."""
    sdk, clock = logging.getLogger("opentelemetry"), FakeClock()
    monkeypatch.setattr(sdk, "handlers", [Outages(clock)])

    def told(module: str, text: str) -> list[tuple[str, str]]:
        with capture_logs() as lines:
            sdk.getChild(module).warning("connection %s", text)
        return [(line["signal"], line["reason"]) for line in lines]

    assert told("trace_exporter", "refused") == [("traces", "connection refused")]
    assert told("trace_exporter", "given up") == []
    # Another signal has an outage of its own.
    assert told("metric_exporter", "reset") == [("metrics", "connection reset")]
    clock.time_s += OUTAGE_EACH_S
    assert told("trace_exporter", "refused") == [("traces", "connection refused")]


@pytest.mark.parametrize(
    ("variables", "signals"),
    [
        ({}, {}),
        ({"ENDPOINT": "http://h"}, {"traces": "ENDPOINT", "metrics": "ENDPOINT"}),
        ({"METRICS_ENDPOINT": "http://h", "ENDPOINT": ""}, {"metrics": "METRICS_ENDPOINT"}),
    ],
)
def test_the_variables_of_the_sdk_switch_it_on(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], signals: dict[str, str]
) -> None:
    """And off again: one signal, or all of it."""
    prefix = "OTEL_EXPORTER_OTLP_"
    for name, value in variables.items():
        monkeypatch.setenv(f"{prefix}{name}", value)
    assert switched_on() == {signal: f"{prefix}{name}" for signal, name in signals.items()}
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert switched_on().keys() == signals.keys() - {"metrics"}
    monkeypatch.setenv("OTEL_SDK_DISABLED", "True")
    assert switched_on() == {}


def test_a_missing_extra_and_a_variable_that_cannot_be_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon starts without telemetry: who sets the variables of a cluster need not know of dvsync."""

    def told() -> tuple[str, str]:
        with capture_logs() as lines:
            assert open_telemetry(SystemClock(), place="x") is None
        (line,) = lines
        return line["reason"], line["hint"]

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    monkeypatch.setattr(logging.getLogger("opentelemetry"), "handlers", [])
    assert "max_queue_size" in told()[0]
    monkeypatch.setitem(sys.modules, "daemon.telemetry.telemetry", None)
    reason, hint = told()
    assert "daemon.telemetry.telemetry" in reason
    assert "extra `telemetry`" in hint and "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" in hint
