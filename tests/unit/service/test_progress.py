"""What is logged of a long step."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from daemon.service.fleet import LogProgress


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return round(self.now_s * 1000)


@pytest.mark.parametrize(
    ("calls", "logged"),
    [
        # Short work; the same a day later, as verifications are.
        ([(0, 1, 2), (5, 2, 2), (86_400, 1, 2), (86_405, 2, 2)], []),
        ([(0, 1, 1), (86_400, 1, 1)], []),
        # Pieces of a second, and some that each take longer than the interval.
        ([(number, number, 60) for number in range(1, 31)], [11, 21]),
        ([(60, 1, 4), (120, 2, 4), (180, 3, 4), (240, 4, 4)], [2, 3, 4]),
    ],
)
def test_long_work_has_a_line_now_and_then(calls: list[tuple[int, int, int]], logged: list[int]) -> None:
    """However long each piece of it takes."""
    clock = Clock()
    progress = LogProgress(clock)
    with capture_logs() as lines:
        for clock.now_s, done, total in calls:
            progress.advanced(done, total, "mirrors")
    assert [line["done"] for line in lines] == logged
