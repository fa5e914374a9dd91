"""What is gathered of a piece of work: steps within steps, their times and errors, within bounds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from daemon.config.settings import TableSettings
from daemon.errors import CatalogAway
from daemon.observe import tracing
from daemon.observe.tracing import Span, Tracer, step

TABLE = TableSettings(source="/lake/orders", target="lake.orders")


@dataclass
class JumpyClock:
    """A day that jumps back an hour at each look, and a monotonic second at each."""

    day_ms: int = 1_800_000_000_000
    second: float = 5.0

    def now_ms(self) -> int:
        self.day_ms -= 3_600_000
        return self.day_ms

    def monotonic_s(self) -> float:
        self.second += 1
        return self.second


@pytest.fixture
def sent() -> list[Span]:
    return []


@pytest.fixture
def tracer(sent: list[Span]) -> Tracer:
    return Tracer(JumpyClock(), sent.append)


def test_steps_are_within_steps_and_the_clock_may_jump(tracer: Tracer, sent: list[Span]) -> None:
    with tracer.work("sync", TABLE, "c1") as span:
        with step("read"):
            pass
        with step("snapshot") as snapshot:
            with step("commit"):
                pass
            snapshot.report({"snapshot_id": 7, "operation": None})
        span.report({"to_version": 3})
    (root,) = sent
    assert root is span
    read, snapshot = root.steps
    assert [each.name for each in snapshot.steps] == ["commit"]
    assert snapshot.attributes == {"snapshot_id": 7}
    assert root.attributes == {
        "table": "lake.orders",
        "source": "/lake/orders",
        "target": "lake.orders",
        "cycle_id": "c1",
        "to_version": 3,
    }
    times = [root.started_ns, read.started_ns, read.ended_ns, snapshot.started_ns, snapshot.ended_ns, root.ended_ns]
    assert times == sorted(times)
    assert root.ended_ns - root.started_ns == 7_000_000_000


def test_work_without_news_is_not_told(tracer: Tracer, sent: list[Span]) -> None:
    with tracer.work("maintenance", TABLE, "c1"), step("compact"):
        pass
    assert sent == []


def test_an_error_is_kept_with_its_step_and_raised(tracer: Tracer, sent: list[Span]) -> None:
    """The step after it is the outer work's again."""
    with tracer.work("sync", TABLE, "c1") as span:
        with pytest.raises(CatalogAway), step("commit"):
            raise CatalogAway("no answer\x1b", hint="wait")
        with step("record"):
            pass
        span.fail("CatalogAway", "no answer")
    (root,) = sent
    assert [(each.name, each.error) for each in root.steps] == [
        ("commit", ("CatalogAway", "no answer\\x1b")),
        ("record", None),
    ]


def test_steps_are_bounded(tracer: Tracer, sent: list[Span], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "STEPS_MAX", 3)
    with tracer.work("sync", TABLE, "c1") as span:
        for _ in range(5):
            with step("snapshot"), step("commit"):
                pass
        span.report({})
    assert [(each.name, len(each.steps)) for each in sent[0].steps] == [("snapshot", 1), ("snapshot", 0)]


def test_steps_outside_of_traced_work_are_no_ones(sent: list[Span]) -> None:
    """Without a receiver, nothing is gathered, and after traced work nothing more."""
    with Tracer(JumpyClock()).work("sync", TABLE, "c1") as span:
        with step("read"):
            pass
        span.report({})
    assert span.steps == []
    with Tracer(JumpyClock(), sent.append).work("sync", TABLE, "c1") as span:
        span.report({})
    with step("read"):
        pass
    assert sent[0].steps == []
