"""A table verified in parts: every file once in a pass, and what was found holds until a pass says otherwise."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from daemon.config.settings import VerifySettings
from daemon.verify.findings import FILES_AT_ONCE, Fault, Findings, Level, Proof, Sample, add_part, due_ms, next_part
from state import SHARES, Difference


def proof(wrong: int = 0, level: Level = Level.METADATA, path: str = "f") -> Proof:
    findings = Findings()
    for number in range(wrong):
        findings.add(Difference(level, Fault.SIZE, f"{path}{number}", "detail"))
    return Proof(level, 1, 2, files=10, files_total=100, rows=5, findings=findings, seconds={})


@given(files=st.integers(0, 1000 * FILES_AT_ONCE))
def test_the_parts_of_a_pass_cover_every_share_once(files: int) -> None:
    covered, parts, last = 0, 0, None
    while covered < SHARES:
        part = next_part(last, VerifySettings(), files, now_ms=parts)
        assert part.first == covered < part.end
        last = add_part(last, proof(), part, at_ms=parts)
        covered, parts = part.end, parts + 1
    assert last
    assert (last.complete_at_ms, last.files) == (parts - 1, 10 * parts)
    assert parts <= max(1, math.ceil(files / FILES_AT_ONCE))
    assert next_part(last, VerifySettings(), files, now_ms=parts).first == 0


def test_a_difference_holds_until_a_pass_is_without_it() -> None:
    halves = Sample().split(2)
    first = add_part(None, proof(), halves[0], at_ms=1)
    assert (first.complete_at_ms, first.differences.counts) == (None, {})
    wrong = add_part(first, proof(wrong=7), halves[1], at_ms=2)
    assert (wrong.complete_at_ms, wrong.differences.counts) == (2, {Fault.SIZE: 7})
    assert len(wrong.differences.first) == 5
    again = add_part(wrong, proof(), halves[0], at_ms=3)
    assert (again.found.counts, again.differences, again.complete_at_ms) == ({}, wrong.differences, 2)
    assert add_part(again, proof(), halves[1], at_ms=4).differences.counts == {}
    # A pass that finds other differences shows these at once.
    other = add_part(again, proof(wrong=1, path="other"), halves[1], at_ms=4)
    assert [each.path for each in other.differences.first] == ["other0"]


def test_both_halves_of_a_pass_count() -> None:
    halves = Sample().split(2)
    first = add_part(None, proof(wrong=3, path="a"), halves[0], at_ms=1)
    both = add_part(first, proof(wrong=4, path="b"), halves[1], at_ms=2)
    assert both.differences.counts == {Fault.SIZE: 7}
    assert [each.path for each in both.differences.first] == ["a0", "a1", "a2", "b0", "b1"]


def test_a_part_that_does_not_follow_the_last_one_begins_a_pass() -> None:
    """After other settings there may be a gap: such a pass is not complete at its end."""
    first = add_part(None, proof(), Sample(0, 10), at_ms=1)
    assert add_part(first, proof(), Sample(20, SHARES), at_ms=2).complete_at_ms is None
    deeper = VerifySettings(level="rows")
    assert next_part(first, deeper, 1, now_ms=1).first == 0
    assert due_ms(first, deeper, 1, now_ms=1) == 0


def test_parts_are_spread_over_the_period() -> None:
    of_table = VerifySettings(period="100s")
    last = add_part(None, proof(), Sample(0, 10), at_ms=1_000)
    assert due_ms(None, of_table, 100 * FILES_AT_ONCE, now_ms=2_000) == 0
    assert due_ms(last, of_table, FILES_AT_ONCE // 2, now_ms=2_000) == 1_000 + 100_000
    assert due_ms(last, of_table, 4 * FILES_AT_ONCE, now_ms=2_000) == 1_000 + 25_000


def test_a_clock_that_was_ahead_delays_nothing() -> None:
    last = add_part(None, proof(), Sample(), at_ms=5_000)
    assert due_ms(last, VerifySettings(), 1, now_ms=4_000) == 0


@given(files=st.integers(1, 1000 * FILES_AT_ONCE), late_ms=st.lists(st.integers(0, 5_000), min_size=1, max_size=5))
def test_a_pass_takes_a_period_however_late_its_parts_are(files: int, late_ms: list[int]) -> None:
    """Each part begins late by one of `late_ms`, as when the process looks only now and then."""
    of_table = VerifySettings(period="100s")
    last, now_ms, number = None, 1_000_000, 0
    while last is None or last.complete_at_ms is None:
        now_ms = max(now_ms, math.ceil(due_ms(last, of_table, files, now_ms=now_ms))) + late_ms[number % len(late_ms)]
        number += 1
        last = add_part(last, proof(), next_part(last, of_table, files, now_ms=now_ms), at_ms=now_ms)
    assert now_ms - 1_000_000 <= 100_000 + 2 * max(late_ms) + 1


def test_a_deeper_verification_counts_for_a_lighter_one() -> None:
    right = add_part(None, proof(level=Level.ROWS), Sample(), at_ms=1_000)
    assert due_ms(right, VerifySettings(level="metadata", period="100s"), 1, now_ms=2_000) == 101_000
    lighter = add_part(right, proof(), Sample(0, 10), at_ms=2_000)
    assert lighter.complete_at_ms == 1_000
    deeper = add_part(add_part(None, proof(), Sample(), at_ms=1_000), proof(level=Level.ROWS), Sample(0, 10), at_ms=2)
    assert deeper.complete_at_ms is None, "no pass has compared the rows of all files"


def test_what_concerns_the_whole_table_is_counted_once() -> None:
    def wrong_schema() -> Proof:
        found = proof()
        found.findings.add(Difference(Level.METADATA, Fault.SCHEMA, "v1.json", "detail"))
        return found

    halves = Sample().split(2)
    first = add_part(None, wrong_schema(), halves[0], at_ms=1)
    assert add_part(first, wrong_schema(), halves[1], at_ms=2).differences.counts == {Fault.SCHEMA: 1}


def test_what_a_deeper_verification_found_is_not_cleared_by_a_lighter_one() -> None:
    deep = add_part(None, proof(wrong=1, level=Level.ROWS), Sample(), at_ms=1)
    assert due_ms(deep, VerifySettings(level="metadata"), 1, now_ms=2) == math.inf
    assert due_ms(deep, VerifySettings(level="rows"), 1, now_ms=2) < math.inf
