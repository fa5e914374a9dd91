"""Sums within 64 bits, the largest numbers of both formats, their readers and databases. Python has no such limit."""

from __future__ import annotations

from daemon.errors import CorruptInput

LONG_MAX = (1 << 63) - 1


def add_longs(*numbers: int) -> int:
    """Return the sum. Raises `CorruptInput` if 64 bits do not hold it."""
    total = sum(numbers)
    if abs(total) > LONG_MAX:
        raise CorruptInput(
            f"{' + '.join(map(str, numbers))} does not fit into 64 bits",
            hint="A size or a number of rows in the Delta log, or in a file's footer, is wrong: take the file out of "
            "the Delta table with RESTORE or an overwrite; dvsync then continues by itself.",
        )
    return total
