"""The Roaring bitmap format of a deletion vector (DV): its constants, and the reader of every form, by an index.

Only a bounded run of containers is decoded at a time, so a DV needs memory for its own bytes and one chunk.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import ge
from typing import Final

import msgspec
from pyroaring import BitMap64

from daemon.errors import CorruptInput

CHUNK_POSITIONS_MAX: Final = 1 << 20  # 8 MB of int64
CHUNK_CONTAINERS_MAX: Final = 1 << 10  # bounds what the other side of a difference decodes, 8 kB a container

# Delta PROTOCOL.md, "Deletion Vector Format", has only the portable form. The native form is in Delta's source
# (RoaringBitmapArray.scala, NativeRoaringBitmapArraySerializationFormat), which still reads it, little-endian. The
# protocol's inline example is the native form in big-endian: Delta refuses that, and so do we.
MAGIC_PORTABLE: Final = 1681511377
MAGIC_PORTABLE_BYTES: Final = MAGIC_PORTABLE.to_bytes(4, "little")
MAGIC_NATIVE: Final = 1681511376

# RoaringFormatSpec, "General layout"
COOKIE_NO_RUNS: Final = 12346
COOKIE_RUNS: Final = 12347
NO_OFFSET_THRESHOLD: Final = 4
CONTAINERS_MAX: Final = 1 << 16
ARRAY_CARDINALITY_MAX: Final = 4096
BITSET_BYTES: Final = 8192
# A bitmap stands for 2^32 rows. A small header could announce many bitmaps, which need far more memory; so could one
# with a large key, because Java's readers have an array of all bitmaps up to it.
BITMAPS_MAX: Final = 1 << 10
UPPER_MAX: Final = BITMAPS_MAX - 1


class DVPlace(msgspec.Struct, frozen=True):
    """Where the frame of a DV (size field, bytes, CRC) begins. The path of an inline DV is its shortened unique id."""

    path: str
    offset: int | None

    def corrupt(self, message: str) -> CorruptInput:
        hint = (
            "The deletion vector is damaged: restore its file from a copy, or RESTORE the Delta table; then `dvsync "
            "resume` the table."
        )
        return CorruptInput(message, path=self.path, offset=self.offset, hint=hint)


@dataclass(frozen=True, slots=True)
class IndexedSet:
    """A set of positions: the serialized bytes, and an index of the Roaring containers in them.

    A container holds the positions that differ in their lowest 16 bits only; `keys` are the other bits, ascending.
    The headers are checked when the set is made, the contents of a container when it is decoded.
    """

    data: memoryview
    place: DVPlace
    keys: array[int]  # Q
    cardinalities: array[int]  # I, 1 to 65536
    starts: array[int]  # Q, in `data`
    sizes: array[int]  # I, bytes
    are_runs: bytearray
    bitmaps: dict[int, tuple[int, int, int]]  # by the first container: number of containers, start and end in `data`

    @classmethod
    def index(cls, data: memoryview, place: DVPlace) -> IndexedSet:
        """Index the bytes of a DV. Raises CorruptInput for a header that is not right."""
        positions = cls(data, place, array("Q"), array("I"), array("Q"), array("I"), bytearray(), {})
        try:
            end = _index_bitmaps(positions)
        except struct.error as error:
            raise place.corrupt(f"the bitmap ends inside a header, after {len(data)} bytes") from error
        if end != len(data):
            raise place.corrupt(f"the bitmap needs {end} bytes, the DV has {len(data)}")
        return positions

    def __len__(self) -> int:
        return sum(self.cardinalities)

    def chunk_containers(self) -> Iterator[range]:
        """Yield ranges of containers that fit in one chunk and share their upper 32 bits, as a 32-bit bitmap must."""
        first, positions = 0, 0
        for index, (key, cardinality) in enumerate(zip(self.keys, self.cardinalities, strict=True)):
            full = positions + cardinality > CHUNK_POSITIONS_MAX or index - first == CHUNK_CONTAINERS_MAX
            if index > first and (full or key >> 16 != self.keys[first] >> 16):
                yield range(first, index)
                first, positions = index, 0
            positions += cardinality
        if first < len(self.keys):
            yield range(first, len(self.keys))

    def find_containers(self, keys: Sequence[int]) -> list[int]:
        """Return the containers that have one of `keys`, which ascend and are not empty."""
        wanted = set(keys)
        near = range(bisect_left(self.keys, keys[0]), bisect_right(self.keys, keys[-1]))
        return [index for index in near if self.keys[index] in wanted]

    def decode_containers(self, containers: Sequence[int]) -> BitMap64:
        """Decode the positions in `containers`, which ascend and share their upper 32 bits."""
        count, start, end = self.bitmaps.get(containers[0], (0, 0, 0))
        whole = len(containers) == count
        serialized = self.data[start:end] if whole else self._frame_containers(containers)
        header = struct.pack("<QI", 1, self.keys[containers[0]] >> 16)  # as `_index_bitmaps` reads it
        span = f"containers {containers[0]} to {containers[-1]}"
        try:
            bitmap = BitMap64.deserialize(header + serialized)
        except ValueError as error:
            raise self.place.corrupt(f"{span} do not decode: {error}") from error
        announced = sum(self.cardinalities[index] for index in containers)
        if len(bitmap) != announced:
            raise self.place.corrupt(f"{span} hold {len(bitmap)} positions, their header says {announced}")
        return bitmap

    def _frame_containers(self, containers: Sequence[int]) -> bytes:
        """Serialize some of a bitmap's containers as a bitmap with the cookie 12347, as `_index_bitmap` reads it."""
        count = len(containers)
        flags = sum(self.are_runs[index] << bit for bit, index in enumerate(containers))
        pairs = chain.from_iterable((self.keys[index] & 0xFFFF, self.cardinalities[index] - 1) for index in containers)
        header = struct.pack("<HH", COOKIE_RUNS, count - 1) + flags.to_bytes((count + 7) // 8, "little")
        header += struct.pack(f"<{2 * count}H", *pairs)
        if count >= NO_OFFSET_THRESHOLD:
            ends = accumulate((self.sizes[index] for index in containers), initial=len(header) + 4 * count)
            header += struct.pack(f"<{count}I", *list(ends)[:-1])
        bodies = (self.data[self.starts[index] : self.starts[index] + self.sizes[index]] for index in containers)
        return b"".join((header, *bodies))


def _index_bitmaps(positions: IndexedSet) -> int:
    """Index the bitmaps of a DV; return their end. Numbers are little-endian.

    4 B  magic

    The portable form: RoaringFormatSpec, "Extention for 64-bit implementations".
    8 B  number of bitmaps, then for each, by ascending upper bits:
    4 B  upper 32 bits
    n B  32-bit bitmap

    The native form: Delta's RoaringBitmapArray.scala, NativeRoaringBitmapArraySerializationFormat.
    4 B  number of bitmaps, which stand for the upper bits 0, 1, 2, ...; then for each:
    4 B  size of the bitmap
    n B  32-bit bitmap
    """
    data, place = positions.data, positions.place
    (magic,) = struct.unpack_from("<i", data)
    if magic not in (MAGIC_PORTABLE, MAGIC_NATIVE):
        raise place.corrupt(f"the magic is {magic}, {MAGIC_PORTABLE} and {MAGIC_NATIVE} are known")
    is_native = magic == MAGIC_NATIVE
    (count,) = struct.unpack_from("<I" if is_native else "<Q", data, 4)
    if count > BITMAPS_MAX:
        raise place.corrupt(f"the DV has {count} bitmaps, at most {BITMAPS_MAX} are read")
    at, above = 8 if is_native else 12, -1
    for number in range(count):
        (field,) = struct.unpack_from("<I", data, at)
        upper = number if is_native else field
        if not above < upper <= UPPER_MAX:
            raise place.corrupt(f"a bitmap's upper bits are {upper} after {above}, at most {UPPER_MAX}")
        end = _index_bitmap(positions, at + 4, upper)
        if is_native and end != at + 4 + field:
            raise place.corrupt(f"bitmap {number} needs {end - at - 4} bytes, its header says {field}")
        at, above = end, upper
    return at


def _read_run_flags(positions: IndexedSet, start: int, count: int) -> bytearray:
    are_runs = bytearray(positions.data[start + (index >> 3)] >> (index & 7) & 1 for index in range(count))
    if not any(are_runs):
        # The specification has this cookie for bitmaps with run containers, and Java's readers rely on it.
        raise positions.place.corrupt("a bitmap's cookie says that it has run containers, and it has none")
    return are_runs


def _index_bitmap(positions: IndexedSet, start: int, upper: int) -> int:
    """Index the 32-bit bitmap at `start`; return its end. RoaringFormatSpec, "General layout".

    4 B      cookie: 12346, or 12347 in the low and the number n of containers less 1 in the high 2 B
    4 B      number n of containers; only with 12346
    (n+7)/8  a bit for each container, lowest first: it is a run container; only with 12347
    4 B * n  key and cardinality less 1, 2 B each
    4 B * n  offset of each container from the cookie; not with 12347 and n < 4
    n times  run: 2 B number of runs, 4 B each; array: 2 B each, up to 4096; else a bitset of 8192 B
    """
    data, place = positions.data, positions.place
    (cookie,) = struct.unpack_from("<I", data, start)
    if cookie == COOKIE_NO_RUNS:
        (count,) = struct.unpack_from("<I", data, start + 4)
        at = start + 8
    elif cookie & 0xFFFF == COOKIE_RUNS:
        count = (cookie >> 16) + 1
        at = start + 4 + (count + 7) // 8
    else:
        raise place.corrupt(f"a bitmap's cookie is {cookie}, {COOKIE_NO_RUNS} and {COOKIE_RUNS} are known")
    if count > CONTAINERS_MAX:
        raise place.corrupt(f"a bitmap has {count} containers, at most {CONTAINERS_MAX} fit")
    pairs = struct.unpack_from(f"<{2 * count}H", data, at)
    are_runs = bytearray(count)
    if cookie != COOKIE_NO_RUNS:
        are_runs = _read_run_flags(positions, start + 4, count)
    at += 4 * count
    keys, cardinalities = pairs[0::2], [less_one + 1 for less_one in pairs[1::2]]
    if any(map(ge, keys, keys[1:])):
        raise place.corrupt("the keys of a bitmap's containers do not ascend")
    offsets = None
    if cookie == COOKIE_NO_RUNS or count >= NO_OFFSET_THRESHOLD:
        offsets = struct.unpack_from(f"<{count}I", data, at)
        at += 4 * count
    starts, sizes = [], []
    for is_run, cardinality in zip(are_runs, cardinalities, strict=True):
        if is_run:
            (runs,) = struct.unpack_from("<H", data, at)
            size = 2 + 4 * runs
        else:
            size = 2 * cardinality if cardinality <= ARRAY_CARDINALITY_MAX else BITSET_BYTES
        starts.append(at)
        sizes.append(size)
        at += size
    if at > len(data):
        raise place.corrupt(f"a bitmap's containers end at byte {at}, the DV has {len(data)}")
    if offsets is not None and list(offsets) != [begin - start for begin in starts]:
        raise place.corrupt("a bitmap's offset header does not point at its containers")
    positions.bitmaps[len(positions.keys)] = (count, start, at)
    positions.keys.extend(upper << 16 | key for key in keys)
    positions.cardinalities.extend(cardinalities)
    positions.starts.extend(starts)
    positions.sizes.extend(sizes)
    positions.are_runs.extend(are_runs)
    return int(at)
