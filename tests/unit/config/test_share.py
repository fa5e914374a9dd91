"""Which share has which table: every table has one owner, the same in every process and release."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.config.load import load_settings
from daemon.config.share import ALL, Share
from daemon.errors import ConfigInvalid

TARGETS = st.text(min_size=1)


@given(TARGETS, st.integers(1, 100))
def test_every_table_has_exactly_one_owner(target, count):
    assert [Share(number, count).owns(target) for number in range(1, count + 1)].count(True) == 1
    assert ALL.owns(target)


@given(TARGETS, st.integers(1, 99))
def test_a_further_share_only_takes(target, count):
    """A table stays with its owner or moves to the new share; without it, only its tables move."""
    before, after = Share(1, count).owner_of(target), Share(1, count + 1).owner_of(target)
    assert after.number in (before.number, count + 1)


def test_the_split_is_pinned_and_even():
    """Another split in another release would move tables between daemons that are upgraded one after the other."""
    names = ("lake.orders", "lake.items", "sales.orders", "lake.großhandel")
    assert [[str(Share(1, count).owner_of(name)) for name in names] for count in (2, 3)] == [
        ["2/2", "2/2", "2/2", "1/2"],
        ["3/3", "2/3", "2/3", "1/3"],
    ]
    counts = Counter(Share(1, 4).owner_of(f"lake.t{number}").number for number in range(4_000))
    assert all(900 < count < 1_100 for count in counts.values())


def test_what_is_no_share_is_refused(tmp_path: Path, monkeypatch):
    path = tmp_path / "config.yaml"
    path.write_text("tables: []\n")
    assert load_settings(path).share == ALL
    for text in ("0/2", "3/2", "1/0", "1", "a/b", "1/101", "-1/2", "1/2/3", ""):
        monkeypatch.setenv("DVSYNC_SHARE", text)
        with pytest.raises(ConfigInvalid, match=f"share: '{text}' is not a share: write its number"):
            load_settings(path)
    monkeypatch.setenv("DVSYNC_SHARE", "2/3")
    path.write_text("share: 1/2\ntables: []\n")
    assert load_settings(path).share == Share(2, 3)
    monkeypatch.delenv("DVSYNC_SHARE")
    assert load_settings(path).share == Share(1, 2)
    assert str(load_settings(path).share) == "1/2"
