"""The error kinds: what they show."""

from __future__ import annotations

import pytest

from daemon.errors import CorruptInput


@pytest.mark.parametrize(
    ("hint", "table", "shown"),
    [
        ("Restore it, then `dvsync resume` the table.", "lake.t", "Restore it, then `dvsync resume lake.t`."),
        ("Run `dvsync resync`, or `dvsync expire`.", "my t", "Run `dvsync resync 'my t'`, or `dvsync expire 'my t'`."),
        ("Run `dvsync resync other`; see `dvsync status`.", "t", "Run `dvsync resync other`; see `dvsync status`."),
    ],
)
def test_commands_in_hints_can_be_typed_as_they_are(hint: str, table: str, shown: str) -> None:
    error = CorruptInput("it is broken", hint=hint)
    assert error.hint == hint
    assert error.located(table=table).located(table="later").hint == shown
