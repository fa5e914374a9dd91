"""Sets of positions in the serialized bytes of a deletion vector (DV), and the difference of two sets.

A small set is decoded at once. A large one stays in its serialized form; only a bounded run of its containers is
decoded at a time, so a DV needs memory for its own bytes and one chunk. This module does not know how the positions
are used.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import ge
from typing import Final, TypeVar

import msgspec
from pyroaring import BitMap, BitMap64

from daemon.errors import CorruptInput

SMALL_BYTES_MAX: Final = 1 << 16
CHECKED_BYTES_MAX: Final = 1 << 23  # decoding a DV to check it needs about twice its size
LARGE_CONTAINER_BYTES: Final = 2048  # on average
CHUNK_POSITIONS_MAX: Final = 1 << 20  # 8 MB of int64
CHUNK_CONTAINERS_MAX: Final = 1 << 10  # bounds what the other side of a difference decodes, 8 kB a container

# Delta PROTOCOL.md, "Deletion Vector Format", has only the portable form. The native form is in Delta's source
# (RoaringBitmapArray.scala, NativeRoaringBitmapArraySerializationFormat), which still reads it, little-endian. The
# protocol's inline example is the native form in big-endian: Delta refuses that, and so do we.
MAGIC_PORTABLE: Final = 1681511377
MAGIC_PORTABLE_BYTES: Final = MAGIC_PORTABLE.to_bytes(4, "little")
MAGIC_NATIVE: Final = 1681511376

# The magic, and the header of the one bitmap of a DV whose positions are below 2^32, as `_index_portable` reads it.
_ONE_BITMAP: Final = MAGIC_PORTABLE_BYTES + struct.pack("<QI", 1, 0)

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
class LargeSet:
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
        header = struct.pack("<QI", 1, self.keys[containers[0]] >> 16)  # as `_index_portable` reads it
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
        """Serialize some of a bitmap's containers as a bitmap. RoaringFormatSpec, "General layout", little-endian.

        2 B      cookie 12347
        2 B      number n of containers, less 1
        (n+7)/8  a bit for each container, lowest first: it is a run container
        4 B * n  key and cardinality less 1, 2 B each
        4 B * n  offset of each container from the cookie; only when n >= 4
        n times  the container, as it was
        """
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


def encode_positions(positions: BitMap64) -> bytes:
    """Serialize a set in the portable form, with the magic number. Delta PROTOCOL.md, "Deletion Vector Format"."""
    positions.run_optimize()
    return MAGIC_PORTABLE_BYTES + positions.serialize()


# What `decode_positions` returns.
PositionSet = BitMap64 | LargeSet
_Bitmap = TypeVar("_Bitmap", BitMap, BitMap64)


def new_positions(after: PositionSet, before: PositionSet | None = None) -> Iterator[array[int]]:
    """Yield `after - before` in ascending, non-empty chunks of at most CHUNK_POSITIONS_MAX positions (typecode Q).

    `after` {1, 2, 5} and `before` {2} give [1, 5]. Raises CorruptInput at the first chunk that does not decode.
    """
    return (bitmap.to_array() for bitmap in _differences(after, before) if bitmap)


def _differences(after: PositionSet, before: PositionSet | None) -> Iterator[BitMap64]:
    if isinstance(after, BitMap64) and not isinstance(before, LargeSet):
        yield after - before if before else after
        return
    after, before = _index_small(after), _index_small(before or BitMap64())
    for containers in after.chunk_containers():
        bitmap = after.decode_containers(containers)
        if known := before.find_containers(after.keys[containers.start : containers.stop]):
            bitmap -= before.decode_containers(known)
        yield bitmap


def last_position(positions: PositionSet) -> int:
    """Return the largest position, -1 if there is none. All containers are decoded, a bounded run of them at a time.

    Raises CorruptInput as `new_positions`.
    """
    return max((int(bitmap.max()) for bitmap in _differences(positions, None) if bitmap), default=-1)


def as_bitmap(positions: PositionSet) -> BitMap64:
    """Decode all positions of a set at once. Raises CorruptInput as `new_positions`."""
    if isinstance(positions, BitMap64):
        return positions
    return BitMap64.union(BitMap64(), *map(BitMap64, new_positions(positions)))


def is_restored(before: PositionSet, after: PositionSet) -> bool:
    """Return whether `before - after` is not empty: rows came back. {1, 2} and {1, 5}: yes; {1} and {1, 5}: no."""
    if len(before) > len(after):
        return True
    if isinstance(before, BitMap64) and isinstance(after, BitMap64):
        return not before.issubset(after)
    before, after = _index_small(before), _index_small(after)
    for containers in before.chunk_containers():
        kept = after.find_containers(before.keys[containers.start : containers.stop])
        if len(kept) < len(containers):
            return True
        if not before.decode_containers(containers).issubset(after.decode_containers(kept)):
            return True
    return False


def decode_positions(data: memoryview, *, cardinality: int, place: DVPlace) -> PositionSet:
    """Decode a small DV, or index a large one, and check every header. PROTOCOL.md, "Deletion Vector Format".

    4 B  magic                                int32, little-endian
    n B  bitmap, in the form of that magic    little-endian

    No bytes with cardinality 0 are Delta's own empty DV (DeletionVectorDescriptor.EMPTY). Raises CorruptInput.
    """
    if len(data) <= SMALL_BYTES_MAX and cardinality <= CHUNK_POSITIONS_MAX:
        small = _decode_small(data)
        if small is not None and len(small) == cardinality:
            return small
    positions = LargeSet(data, place, array("Q"), array("I"), array("Q"), array("I"), bytearray(), {})
    if data or cardinality:
        try:
            end = _index_bitmaps(positions)
        except struct.error as error:
            raise place.corrupt(f"the bitmap ends inside a header, after {len(data)} bytes") from error
        if end != len(data):
            raise place.corrupt(f"the bitmap needs {end} bytes, the DV has {len(data)}")
    if len(positions) != cardinality:
        raise place.corrupt(f"the bitmap holds {len(positions)} positions, the log says {cardinality}")
    return positions


def check_positions(data: memoryview, *, cardinality: int, place: DVPlace) -> int:
    """Check every header and container of a DV, and return its largest position, -1 if there is none.

    One with positions below 2^32 takes half the time of the others. Raises CorruptInput.
    """
    if len(data) <= CHECKED_BYTES_MAX and data[: len(_ONE_BITMAP)] == _ONE_BITMAP:
        serialized = bytes(data[len(_ONE_BITMAP) :])
        if _has_large_containers(serialized):
            # Of few containers, the index proves the headers in less time than serializing them again.
            decode_positions(data, cardinality=cardinality, place=place)
            bitmap = _deserialize(BitMap, serialized)
        else:
            bitmap = _deserialize_exactly(BitMap, serialized)
        if bitmap and len(bitmap) == cardinality:
            return int(bitmap.max())
    return last_position(decode_positions(data, cardinality=cardinality, place=place))


def decode_at_once(data: memoryview, *, cardinality: int) -> BitMap | None:
    """Decode a DV of positions below 2^32 that is not too large; None if it has a fault, is empty or another one."""
    if len(data) > CHECKED_BYTES_MAX or data[: len(_ONE_BITMAP)] != _ONE_BITMAP:
        return None
    bitmap = _deserialize(BitMap, bytes(data[len(_ONE_BITMAP) :]))
    return bitmap if bitmap and len(bitmap) == cardinality else None


def _has_large_containers(serialized: bytes) -> bool:
    """Return whether a large bitmap has no run containers, whose headers need not be true, and few of the others."""
    if len(serialized) <= SMALL_BYTES_MAX:
        return False
    cookie, containers = struct.unpack_from("<II", serialized)
    return bool(cookie == COOKIE_NO_RUNS and containers * LARGE_CONTAINER_BYTES < len(serialized))


def _decode_small(data: memoryview) -> BitMap64 | None:
    """Decode a DV of one bitmap; None if it is empty, has another form, or a fault that the index names."""
    if data[: len(_ONE_BITMAP)] != _ONE_BITMAP:
        return None
    return _deserialize_exactly(BitMap64, bytes(data[len(MAGIC_PORTABLE_BYTES) :])) or None


def _deserialize(kind: type[_Bitmap], serialized: bytes) -> _Bitmap | None:
    """Deserialize a bitmap; None if it has a fault.

    pyroaring checks that keys and positions ascend, and that a bitset has as many positions as its header says.
    """
    try:
        return kind.deserialize(serialized)
    except (ValueError, IndexError):  # IndexError: no bytes
        return None


def _deserialize_exactly(kind: type[_Bitmap], serialized: bytes) -> _Bitmap | None:
    """Deserialize a bitmap; None if it has a fault. That it serializes to the same bytes proves the headers."""
    bitmap = _deserialize(kind, serialized)
    return bitmap if bitmap is not None and bitmap.serialize() == serialized else None


def _index_small(positions: PositionSet) -> LargeSet:
    if isinstance(positions, LargeSet):
        return positions
    data = memoryview(MAGIC_PORTABLE_BYTES + positions.serialize())
    large = LargeSet(data, DVPlace("", None), array("Q"), array("I"), array("Q"), array("I"), bytearray(), {})
    _index_bitmaps(large)
    return large


def _index_bitmaps(positions: LargeSet) -> int:
    (magic,) = struct.unpack_from("<i", positions.data)
    if magic == MAGIC_PORTABLE:
        return _index_portable(positions, 4)
    if magic == MAGIC_NATIVE:
        return _index_native(positions, 4)
    raise positions.place.corrupt(f"the magic is {magic}, {MAGIC_PORTABLE} and {MAGIC_NATIVE} are known")


def _index_portable(positions: LargeSet, at: int) -> int:
    """Index portable bitmaps; return their end.

    RoaringFormatSpec, "Extention for 64-bit implementations", all little-endian.

    8 B  number of bitmaps
    then for each, by ascending upper bits:
    4 B  upper 32 bits
    n B  32-bit bitmap
    """
    (count,) = struct.unpack_from("<Q", positions.data, at)
    _check_bitmaps(positions, count)
    at += 8
    above = -1
    for _ in range(count):
        (upper,) = struct.unpack_from("<I", positions.data, at)
        if not above < upper <= UPPER_MAX:
            raise positions.place.corrupt(f"a bitmap's upper bits are {upper} after {above}, at most {UPPER_MAX}")
        at = _index_bitmap(positions, at + 4, upper)
        above = upper
    return at


def _index_native(positions: LargeSet, at: int) -> int:
    """Index a native bitmap; return its end.

    Delta's RoaringBitmapArray.scala, NativeRoaringBitmapArraySerializationFormat, all little-endian.

    4 B  number of bitmaps, which stand for the upper bits 0, 1, 2, ...
    then for each:
    4 B  size of the bitmap
    n B  32-bit bitmap
    """
    (count,) = struct.unpack_from("<I", positions.data, at)
    _check_bitmaps(positions, count)
    at += 4
    for upper in range(count):
        (size,) = struct.unpack_from("<I", positions.data, at)
        end = _index_bitmap(positions, at + 4, upper)
        if end != at + 4 + size:
            raise positions.place.corrupt(f"bitmap {upper} needs {end - at - 4} bytes, its header says {size}")
        at = end
    return at


def _check_bitmaps(positions: LargeSet, count: int) -> None:
    if count > BITMAPS_MAX:
        raise positions.place.corrupt(f"the DV has {count} bitmaps, at most {BITMAPS_MAX} are read")


def _read_run_flags(positions: LargeSet, start: int, count: int) -> bytearray:
    flags = positions.data[start : start + (count + 7) // 8]
    are_runs = bytearray(flags[index >> 3] >> (index & 7) & 1 for index in range(count))
    if not any(are_runs):
        # The specification has this cookie for bitmaps with run containers, and Java's readers rely on it.
        raise positions.place.corrupt("a bitmap's cookie says that it has run containers, and it has none")
    return are_runs


def _index_bitmap(positions: LargeSet, start: int, upper: int) -> int:
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
