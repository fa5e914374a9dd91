"""Makes foreign text (from a Delta log, a library, a file name) safe to show: short and without control characters."""

from __future__ import annotations

from collections.abc import Sequence

# Enough for Java's message about a failed Spark job, with its causes.
TEXT_CHARACTERS_MAX = 8_000
# A line about many tables names so many of them.
NAMED_MAX = 3


def printable(text: str, *, keep: str = "") -> str:
    """Replace invisible characters in `text` by Python's escapes, except those in `keep`.

    A terminal executes control characters, and some others reverse the direction of a line. Unpaired UTF-16
    surrogates, which JSON can contain, cannot be written at all.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keep else character.encode("unicode_escape").decode()
        for character in text
    )


def excerpt(text: str, characters_max: int, *, keep: str = "") -> str:
    """Make `text` printable, and cut it to `characters_max` characters. A cut text ends with its original length."""
    shown = printable(text[:characters_max], keep=keep)
    if len(text) <= characters_max >= len(shown):
        return shown
    ending = f"… ({len(text)} characters)"
    return shown[: characters_max - len(ending)] + ending


def counted(number: int, noun: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def some_of(names: Sequence[str]) -> str:
    """`a, b, c, …`: the first names, and whether there are more."""
    return ", ".join([*names[:NAMED_MAX], *(["…"] if len(names) > NAMED_MAX else [])])
