"""What was done for a table, by step, with times and errors. Steps of work that is not traced cost next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from daemon.clock import Clock
from daemon.config.settings import TableSettings
from daemon.errors import as_shown

# A cycle may show a hundred versions, each with several steps. Of a longer one, the first steps are kept.
STEPS_MAX = 1_000


@dataclass
class Span:
    """A piece of work, or one of its steps. Times are epoch nanoseconds, UTC; `error` is a kind and a message."""

    name: str
    started_ns: int = 0
    ended_ns: int = 0
    attributes: dict[str, str | int | bool] = field(default_factory=dict)
    error: tuple[str, str] | None = None
    steps: list[Span] = field(default_factory=list)
    # Whether it is worth telling: most polls and rounds find nothing to do.
    is_news: bool = False

    def report(self, figures: Mapping[str, str | int | bool | None]) -> None:
        """Note what was done. Figures that are None are left out."""
        self.attributes |= {key: value for key, value in figures.items() if value is not None}
        self.is_news = True

    def fail(self, kind: str, message: str) -> None:
        self.error, self.is_news = (kind, message), True


class _Recorder:
    """Gathers the spans of one piece of work. Used by the thread that does the work."""

    def __init__(self, clock: Clock, root: Span) -> None:
        self._clock = clock
        self._epoch_ns = clock.now_ms() * 1_000_000 - self._monotonic_ns()
        self.innermost = root
        self._steps_left = STEPS_MAX

    def _monotonic_ns(self) -> int:
        return round(self._clock.monotonic_s() * 1_000_000_000)

    @contextmanager
    def open(self, span: Span) -> Iterator[Span]:
        outer, self.innermost = self.innermost, span
        if span is not outer and self._steps_left:
            outer.steps.append(span)
            self._steps_left -= 1
        # The time of day may jump while the work is done.
        span.started_ns = self._epoch_ns + self._monotonic_ns()
        try:
            yield span
        except Exception as error:
            span.fail(type(error).__name__, as_shown(str(error)))
            raise
        finally:
            span.ended_ns = self._epoch_ns + self._monotonic_ns()
            self.innermost = outer


_recorder: ContextVar[_Recorder | None] = ContextVar("recorder", default=None)


@contextmanager
def step(name: str) -> Iterator[Span]:
    """Do a step of this thread's work. An error inside is kept with the step, and raised."""
    recorder = _recorder.get()
    if recorder is None:
        yield Span(name)
        return
    with recorder.open(Span(name)) as span:
        yield span


@dataclass(frozen=True)
class Tracer:
    """Hands what was done to `send`, which must not wait. Without it, nothing is gathered."""

    clock: Clock
    send: Callable[[Span], None] | None = None

    @contextmanager
    def work(self, name: str, table: TableSettings, cycle_id: str) -> Iterator[Span]:
        """Gather a piece of work for a table. It is handed over if it failed, or if its `report` was called."""
        root = Span(name)
        if self.send is None:
            yield root
            return
        # The log's lines of this work have the same id.
        root.attributes = {"table": table.name, "source": table.source, "target": table.target, "cycle_id": cycle_id}
        recorder = _Recorder(self.clock, root)
        token = _recorder.set(recorder)
        try:
            with recorder.open(root):
                yield root
        finally:
            _recorder.reset(token)
            if root.is_news:
                self.send(root)
