"""How metrics become OTLP, and what is said of a receiver that does not work."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from logging.handlers import MemoryHandler
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from structlog.testing import capture_logs

from daemon.telemetry.metrics import as_otlp
from daemon.telemetry.outages import Outages


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


@pytest.fixture
def outages() -> Iterator[Outages]:
    logger = logging.getLogger("opentelemetry")
    before = logger.handlers[:], logger.propagate
    yield Outages("http://127.0.0.1:9")
    logger.handlers[:], logger.propagate = before


def test_an_outage_is_told_once_with_its_first_reason(outages: Outages) -> None:
    """And its end. What the SDK says in between reaches no log of ours."""
    sdk, ours = logging.getLogger("opentelemetry.exporter"), MemoryHandler(100)
    logging.getLogger().addHandler(ours)

    def refused() -> bool:
        sdk.warning("connection %s", "refused")
        sdk.error("given up")
        return False

    def broken() -> bool:
        raise KeyError("le")

    def told(signal: str, send: Any) -> list[dict[str, Any]]:
        with capture_logs() as lines:
            outages.attempt(signal, send)
        return [{key: line[key] for key in ("event", "signal", "reason") if key in line} for line in lines]

    assert told("traces", lambda: True) == []
    assert told("traces", refused) == [
        {"event": "telemetry.failed", "signal": "traces", "reason": "connection refused"}
    ]
    assert told("traces", refused) == told("traces", broken) == []
    # Another signal has an outage of its own.
    assert told("metrics", broken) == [{"event": "telemetry.failed", "signal": "metrics", "reason": "KeyError: 'le'"}]
    assert told("traces", lambda: True) == [{"event": "telemetry.recovered", "signal": "traces"}]
    assert told("traces", refused) != []
    logging.getLogger().removeHandler(ours)
    assert ours.buffer == []
