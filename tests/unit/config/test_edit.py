"""Entries that are added to the text of a configuration, or taken out: the rest stays as people wrote it."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from daemon.config.edit import add_entries, remove_entry
from daemon.errors import ConfigInvalid

WRITTEN = """\
# What follows is ours.
defaults: {catalog: local,   poll_interval: 10s}   # two
tables:
    # The orders.
    - source: /lake/orders      # here
      target: sales.orders
    # The large one.
    -
      source: "/lake/events"
      exclude: ["a", "b"]  # not these

    - {source: /lake/users, target: people.users}
# The end.
health: {port: 0}
"""
NEW = {"source": "/lake/nächste: #1", "target": "sales.next"}
NEW_LINES = "    - source: '/lake/nächste: #1'\n      target: sales.next\n"


def test_an_entry_is_added_behind_the_others() -> None:
    end = "    - {source: /lake/users, target: people.users}\n"
    assert add_entries(WRITTEN, [NEW]) == WRITTEN.replace(end, end + NEW_LINES)


@pytest.mark.parametrize(
    ("number", "gone"),
    [
        (0, "    - source: /lake/orders      # here\n      target: sales.orders\n"),
        (1, '    -\n      source: "/lake/events"\n      exclude: ["a", "b"]  # not these\n'),
        (2, "    - {source: /lake/users, target: people.users}\n"),
    ],
)
def test_an_entry_is_removed(number: int, gone: str) -> None:
    assert remove_entry(WRITTEN, number) == WRITTEN.replace(gone, "")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "tables:\n  - source: /a\n    target: b.c\n"),
        ("log: {}", "log: {}\n\ntables:\n  - source: /a\n    target: b.c\n"),
        ("tables:\nlog: {}\n", "tables:\n  - source: /a\n    target: b.c\nlog: {}\n"),
        ("tables: []  # none\nlog: {}\n", "tables:  # none\n  - source: /a\n    target: b.c\nlog: {}\n"),
        ("tables: [{source: /x}]\n", "tables: [{source: /x}, {source: /a, target: b.c}]\n"),
        ("tables:\n- source: /x", "tables:\n- source: /x\n- source: /a\n  target: b.c\n"),
        (
            "tables: # some\n- source: >-\n    /x\n",
            "tables: # some\n- source: >-\n    /x\n- source: /a\n  target: b.c\n",
        ),
        ("tables: null\n", None),
        ("{tables: }", None),
    ],
)
def test_lists_of_all_kinds(before: str, after: str | None) -> None:
    """What is not understood is left to people, with the lines to write."""
    if after is None:
        with pytest.raises(ConfigInvalid) as refused:
            add_entries(before, [{"source": "/a", "target": "b.c"}])
        assert "  - source: /a\n    target: b.c" in refused.value.hint
    else:
        assert add_entries(before, [{"source": "/a", "target": "b.c"}]) == after


def test_a_sign_in_an_entry_is_no_comment() -> None:
    flow = "tables: [{source: /x, target: '#'}, {source: /y, target: '#'}]\n"
    assert remove_entry(flow, 1) == "tables: [{source: /x, target: '#'}]\n"
    assert remove_entry(flow, 0) == "tables: [{source: /y, target: '#'}]\n"
    with pytest.raises(ConfigInvalid):
        remove_entry("tables: [{source: /x}, # about y\n  {source: /y}]\n", 0)


names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=12)
entries = st.fixed_dictionaries({"source": names, "target": names})
documents = st.fixed_dictionaries(
    {},
    optional={
        "log": st.just({"level": "info"}),
        "tables": st.lists(entries, max_size=4),
        "health": st.just({"port": 0}),
    },
)


@given(documents, st.lists(entries, min_size=1, max_size=3), st.booleans(), st.integers(0, 8))
def test_other_entries_stay(document: dict[str, object], new: list[dict[str, str]], flow: bool, indent: int) -> None:
    text = yaml.safe_dump(document, default_flow_style=flow, allow_unicode=True, sort_keys=False, indent=indent)
    try:
        added = add_entries(text, new)
    except ConfigInvalid:
        return
    # YAML reads some line ends as others.
    document = yaml.safe_load(text)
    before = document.get("tables", [])
    assert isinstance(before, list)
    assert yaml.safe_load(added) == {**document, "tables": [*before, *new]}
    for _ in new:
        added = remove_entry(added, len(before))
    assert yaml.safe_load(added) == {**document, "tables": before}
