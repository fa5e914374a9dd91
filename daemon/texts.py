"""Texts that others wrote (a Delta log, a library, the name of a file), made fit to be shown: short and harmless."""

from __future__ import annotations

# Room for what Java says of a failed Spark job, with its causes.
TEXT_CHARACTERS_MAX = 8_000


def printable(text: str, *, keep: str = "") -> str:
    """`text` with Python's escapes for what is no visible character, but for those to `keep`.

    A terminal obeys control characters, and turns a line round at some others. Halves of UTF-16 pairs, which JSON can
    spell, cannot be written at all.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keep else character.encode("unicode_escape").decode()
        for character in text
    )


def excerpt(text: str, characters_max: int, *, keep: str = "") -> str:
    """`text`, printable, or the beginning of one that is too long, which then says how long it was."""
    shown = printable(text[:characters_max], keep=keep)
    if len(text) <= characters_max >= len(shown):
        return shown
    ending = f"… ({len(text)} characters)"
    return shown[: characters_max - len(ending)] + ending
