"""The metrics of `/metrics` in OTLP's form: the same names, labels and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family
from prometheus_client.core import Sample

CUMULATIVE = AggregationTemporality.CUMULATIVE


def as_otlp(
    families: Iterable[Family], resource: Resource, scope: InstrumentationScope, *, started_ns: int, now_ns: int
) -> MetricsData:
    """Convert what Prometheus collects. Counters count from `started_ns` on; times are epoch nanoseconds."""
    metrics = [metric for family in families for metric in _convert(family, started_ns, now_ns)]
    scopes = [ScopeMetrics(scope, metrics, "")]
    return MetricsData([ResourceMetrics(resource, scopes, "")])


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
