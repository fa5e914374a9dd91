"""A table's day in memory, and what of it the next process gets."""

from __future__ import annotations

import pytest

from daemon.status.table_status import span
from daemon.status.timeline import DAY_MS, Timeline
from state import Sample

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000


def sample(minute: int, lag_s: float | None = 1.0, deleted: int | None = 5) -> Sample:
    return Sample(NOW_MS + minute * MINUTE_MS, lag_s, deleted)


def test_what_is_recorded_is_the_last_sample_with_the_longest_lag():
    """Of all since the last time; nothing if there was none, and nothing of what was restored."""
    timeline = Timeline()
    timeline.restore([sample(-20), sample(-10)])
    assert timeline.take_unrecorded() is None
    for minute, lag_s in enumerate((1.0, 9.0, None, 2.0)):
        timeline.add_sample(sample(minute, lag_s, deleted=minute))
    assert timeline.take_unrecorded() == sample(3, 9.0, deleted=3)
    assert timeline.take_unrecorded() is None
    timeline.add_sample(sample(4, None))
    assert timeline.take_unrecorded() == sample(4, None)


def test_a_day_is_a_day():
    """What is older goes, whatever the distance of the samples: an earlier process left one for ten minutes."""
    timeline = Timeline()
    timeline.restore(sample(minute) for minute in range(-1500, 0, 10))
    for minute in range(300):
        timeline.add_sample(sample(minute))
    oldest_ms, newest_ms = timeline.samples()[0].at_ms, timeline.samples()[-1].at_ms
    assert (newest_ms, newest_ms - oldest_ms) == (sample(299).at_ms, DAY_MS - MINUTE_MS)
    assert 48 <= len(timeline.outline()) <= 49


def test_a_line_without_changes_needs_few_samples():
    """Its ends stay, and a gap of a stopped daemon stays a gap."""
    timeline = Timeline()
    for minute in range(25):
        timeline.add_sample(sample(minute))
    for minute in (80, 81):
        timeline.add_sample(sample(minute, deleted=6))
    minutes = [(each.at_ms - NOW_MS) // MINUTE_MS for each in timeline.samples()]
    assert minutes == [0, 10, 20, 24, 80, 81]


def test_samples_of_a_clock_that_was_ahead_go():
    timeline = Timeline()
    for minute in (0, 1, 90, 91, 2):
        timeline.add_sample(sample(minute))
    assert [each.at_ms for each in timeline.samples()] == [sample(minute).at_ms for minute in (0, 1, 2)]
    assert timeline.outline()[-1].at_ms == sample(2).at_ms


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0001, "1 ms"),
        (0.04, "40 ms"),
        (0.9996, "1 s"),
        (1.234, "1.2 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (80.625, "1 min 21 s"),
        (3600, "1 h"),
        (7_260, "2 h 1 min"),
        (86_399.7, "1 d"),
        (3 * 86_400 + 59, "3 d"),
        (400 * 86_400 + 3_600, "400 d 1 h"),
    ],
)
def test_a_duration_for_people(seconds: float, text: str):
    assert span(seconds) == text
