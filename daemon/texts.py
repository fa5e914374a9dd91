"""Texts for people: foreign ones made safe to print, counts, times and durations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

# Enough for Java's message about a failed Spark job, with its causes.
TEXT_CHARACTERS_MAX = 8_000
# A line about many tables names so many of them.
NAMED_MAX = 3
# The years 1 to 9999 in epoch milliseconds, to a second.
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_000


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


def iso_time(epoch_ms: int) -> str:
    """ISO 8601, UTC, to a millisecond. A log may have a time that Python does not have."""
    shown_ms = min(max(epoch_ms, FIRST_MS), LAST_MS)
    return datetime.fromtimestamp(shown_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span(seconds: float) -> str:
    """A duration for people: `40 ms`, `1.2 s`, `12 s`, `1 min 5 s`, `2 h`, `3 d 4 h`."""
    if 0 < seconds < 0.9995:
        return f"{max(1, round(seconds * 1000))} ms"
    if seconds < 9.95:
        return f"{round(seconds, 1):g} s"
    left = round(seconds)
    parts = []
    for length_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        parts.append((left // length_s, unit))
        left %= length_s
    first = next(place for place, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)
