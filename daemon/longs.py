"""Numbers of 64 bits, the largest that both formats, their readers and databases have. Python's have no end.

Numbers of a log or a footer are added here.
"""

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
