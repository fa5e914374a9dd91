"""Sets of positions from the bytes of a deletion vector (DV), and the difference of two sets.

A small set is decoded at once, a large one by a bounded chunk at a time. How positions are used is not known here.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Final, TypeVar

from pyroaring import BitMap, BitMap64

from daemon.delta.bitmap_format import CHUNK_POSITIONS_MAX, COOKIE_NO_RUNS, MAGIC_PORTABLE_BYTES, DVPlace, IndexedSet

SMALL_BYTES_MAX: Final = 1 << 16
CHECKED_BYTES_MAX: Final = 1 << 23  # decoding a DV to check it needs about twice its size
LARGE_CONTAINER_BYTES: Final = 2048  # on average

# The magic, and the header of the one bitmap of a DV whose positions are below 2^32, as `_index_bitmaps` reads it.
_ONE_BITMAP: Final = MAGIC_PORTABLE_BYTES + struct.pack("<QI", 1, 0)

# What `decode_positions` returns.
PositionSet = BitMap64 | IndexedSet
_Bitmap = TypeVar("_Bitmap", BitMap, BitMap64)


def encode_positions(positions: BitMap64) -> bytes:
    """Serialize a set in the portable form, with the magic number. Delta PROTOCOL.md, "Deletion Vector Format"."""
    positions.run_optimize()
    return MAGIC_PORTABLE_BYTES + positions.serialize()


def new_positions(after: PositionSet, before: PositionSet | None = None) -> Iterator[array[int]]:
    """Yield `after - before` in ascending, non-empty chunks of at most CHUNK_POSITIONS_MAX positions (typecode Q).

    `after` {1, 2, 5} and `before` {2} give [1, 5]. Raises CorruptInput at the first chunk that does not decode.
    """
    return (bitmap.to_array() for bitmap in _differences(after, before) if bitmap)


def _differences(after: PositionSet, before: PositionSet | None) -> Iterator[BitMap64]:
    if isinstance(after, BitMap64) and not isinstance(before, IndexedSet):
        yield after - before if before else after
        return
    after, before = _index_small(after), _index_small(before or BitMap64())
    for containers in after.chunk_containers():
        bitmap = after.decode_containers(containers)
        if known := before.find_containers(after.keys[containers.start : containers.stop]):
            bitmap -= before.decode_containers(known)
        yield bitmap


def as_bitmap(positions: PositionSet) -> BitMap64:
    """Decode all positions of a set at once. Raises CorruptInput as `new_positions`."""
    if isinstance(positions, BitMap64):
        return positions
    return BitMap64.union(BitMap64(), *map(BitMap64, new_positions(positions)))


def is_restored(before: PositionSet, after: PositionSet) -> bool:
    """Return whether `before - after` is not empty: rows came back. {1, 2} and {1, 5}: yes; {1} and {1, 5}: no."""
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
        # One bitmap. What is empty, has another form, or a fault, is the index's, which names the fault.
        is_one = data[: len(_ONE_BITMAP)] == _ONE_BITMAP
        small = _deserialize_exactly(BitMap64, bytes(data[len(MAGIC_PORTABLE_BYTES) :])) if is_one else None
        if small and len(small) == cardinality:
            return small
    positions = IndexedSet.index(data, place) if data or cardinality else BitMap64()
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
    # All containers are decoded, a bounded run of them at a time.
    decoded = _differences(decode_positions(data, cardinality=cardinality, place=place), None)
    return max((int(bitmap.max()) for bitmap in decoded if bitmap), default=-1)


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


def _deserialize(kind: type[_Bitmap], serialized: bytes) -> _Bitmap | None:
    """Deserialize a bitmap; None if it has a fault."""
    # pyroaring checks that keys and positions ascend, and that a bitset has as many positions as its header says.
    try:
        return kind.deserialize(serialized)
    except (ValueError, IndexError):  # IndexError: no bytes
        return None


def _deserialize_exactly(kind: type[_Bitmap], serialized: bytes) -> _Bitmap | None:
    """Deserialize a bitmap; None if it has a fault. That it serializes to the same bytes proves the headers."""
    bitmap = _deserialize(kind, serialized)
    return bitmap if bitmap is not None and bitmap.serialize() == serialized else None


def _index_small(positions: PositionSet) -> IndexedSet:
    if isinstance(positions, IndexedSet):
        return positions
    return IndexedSet.index(memoryview(MAGIC_PORTABLE_BYTES + positions.serialize()), DVPlace("", None))
