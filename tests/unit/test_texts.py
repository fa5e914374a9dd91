"""Texts that others wrote: what of them reaches a terminal, the log and the board."""

from __future__ import annotations

import pickle
import time
from random import Random

import pytest

from daemon.clock import SystemClock
from daemon.errors import ConfigInvalid, CorruptInput, ObjectMissing
from daemon.scheduling.failures import Failures
from daemon.texts import TEXT_CHARACTERS_MAX, excerpt, printable


def test_short_texts_stay() -> None:
    """What fits and can be seen is as it was, in any language."""
    for text in ("", "a b", "é 表 \U0001f600", "x" * 20):
        assert excerpt(text, 20) == printable(text) == text


def test_long_texts_are_cut() -> None:
    """The beginning is kept, and the length told; whatever was made of it stays as it is."""
    for text, begins in (("x" * 1_000_000, "x" * 28), ("\x1b" * 40, "\\x1b" * 8)):
        found = excerpt(text, 50)
        assert len(found) == 50
        assert found.startswith(begins)
        assert found.endswith(f"… ({len(text)} characters)")
        assert excerpt(found, 50) == found


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\x07\x9bb", "a\\x07\\x9bb"),
        ("a\r\nb\tc", "a\\r\nb\\tc"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
        ("a\u2028b\x85c", "a\\u2028b\\x85c"),
    ],
)
def test_control_characters_are_spelled(text: str, shown: str) -> None:
    """Nothing that a terminal would obey, and nothing that cannot be written, but the line breaks that are kept."""
    assert printable(text, keep="\n") == shown
    assert printable(text) == shown.replace("\n", "\\n")
    shown.encode()


def test_errors_tell_nothing_that_a_terminal_obeys() -> None:
    """Message, hint and places are fit to be shown, also after a journey between processes."""
    error = CorruptInput(
        "a\x1b[2J" + "b" * 100_000, hint="do\x07", path="file:///\x1b]0;x" + "c" * 100_000, table="t\x1b"
    )
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert len(each.message) == TEXT_CHARACTERS_MAX
        assert each.message.startswith("a\\x1b[2Jbb")
        assert each.hint == "do\\x07"
        assert str(each).isprintable()
        assert len(str(each)) < 2 * TEXT_CHARACTERS_MAX + 20
        assert each.path == error.path


def test_every_fault_of_a_configuration_is_told() -> None:
    """They are the operator's own, a line each."""
    faults = [f"tables.{number}.source: is missing" for number in range(1_000)]
    assert ConfigInvalid("\n".join(faults), hint="-").message.splitlines() == faults


def test_the_error_of_a_table_has_one_line() -> None:
    """However long its path is, and whatever stands in it, in a moment."""
    failures = Failures("t", poll_interval_s=1, last=None, clock=SystemClock(), random=Random(1))
    path = "file:///lake/t/" + " " * 200_000 + "x\n"
    started_s = time.process_time()
    error = failures.add(ObjectMissing("gone\n\n  for ever \n", hint="-", path=path), synced_version=1).error
    assert time.process_time() - started_s < 1
    assert error.message.startswith("gone for ever [file file:///lake/t/")
    assert len(error.message) <= TEXT_CHARACTERS_MAX
    assert failures.add(ValueError("a\x1b\n" + "b" * 9_000), synced_version=1).error.message.startswith(
        "ValueError: a\\x1b b"
    )
