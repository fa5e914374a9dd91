"""Sums of numbers from a log end where 64 bits end."""

from __future__ import annotations

import pytest

from daemon.delta.actions import AddFile
from daemon.errors import CorruptInput
from daemon.iceberg.account import Account
from daemon.longs import LONG_MAX, add_longs
from daemon.texts import iso_time


def test_sums_up_to_the_largest_number() -> None:
    """On both sides of zero; one more is refused, with the numbers."""
    assert add_longs(LONG_MAX - 5, 5) == LONG_MAX == 2**63 - 1
    assert add_longs(-LONG_MAX, 0) == -LONG_MAX
    for numbers in ((LONG_MAX, 1), (LONG_MAX - 2, 1, 2), (-LONG_MAX, -1)):
        with pytest.raises(CorruptInput, match="does not fit into 64 bits") as caught:
            add_longs(*numbers)
        assert " + ".join(map(str, numbers)) in caught.value.message


@pytest.mark.parametrize("place", range(4))
def test_an_account_holds_what_a_summary_can(place: int) -> None:
    """Every total of it; a difference may be negative."""
    most = Account(*(LONG_MAX if number == place else 0 for number in range(4)))
    one = Account(1, 1, 1, 1)
    assert most - one + one == most
    with pytest.raises(CorruptInput, match="64 bits"):
        most + one


@pytest.mark.parametrize(
    ("base", "taken"), [(None, None), (-1, None), (0, 0), (2**62 - 1, 2**62 - 1), (2**62, None), (LONG_MAX, None)]
)
def test_row_ids_leave_room_for_icebergs_own(base: int | None, taken: int | None) -> None:
    """No reader loads a table whose next row id exceeds 64 bits."""
    assert AddFile("f", True, partition_values={}, size=1, base_row_id=base).first_row_id == taken


@pytest.mark.parametrize(
    ("epoch_ms", "shown"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-(2**63), "0001-01-01T00:00:00.000Z"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
        (253_402_300_800_000, "9999-12-31T23:59:59.000Z"),
        (2**63 - 1, "9999-12-31T23:59:59.000Z"),
    ],
)
def test_times_of_any_log_are_shown(epoch_ms: int, shown: str) -> None:
    """An in-commit timestamp may be any number of 64 bits."""
    assert iso_time(epoch_ms) == shown
