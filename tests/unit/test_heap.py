"""The daemon's heap, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

# After one large block was freed, malloc would take the next ones from a heap, where they leave holes.
LARGE_BLOCKS = """
import ctypes, sys
from daemon.heap import LARGE_BYTES_MIN, limit_heap

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks mapped mapped_bytes usmblks fsmblks used free keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
if sys.argv[1] == "limited":
    limit_heap()
size = 4 * LARGE_BYTES_MIN
block = bytearray(size)
del block
before = libc.mallinfo2().mapped_bytes
blocks = [bytearray(size // 2) for _ in range(4)]
print(libc.mallinfo2().mapped_bytes - before >= 2 * size)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallinfo2")
@pytest.mark.parametrize(("how", "are_apart"), [("limited", "True"), ("as it comes", "False")])
def test_large_blocks_stay_out_of_the_heap(how: str, are_apart: str) -> None:
    done = subprocess.run([sys.executable, "-c", LARGE_BLOCKS, how], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == are_apart
