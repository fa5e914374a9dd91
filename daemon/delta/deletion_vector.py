"""Delta's deletion vectors: bytes out of a `.bin` file or the log, checked, and sets of positions out of the bytes.

A set stays in its serialized form; only a bounded run of its containers is decoded at a time, so the memory that a
deletion vector (DV) needs is its own bytes and one chunk. What becomes of the positions is no matter of this module.
"""

from __future__ import annotations

import base64
import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import ge
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from daemon.delta.actions import DeletionVectorDescriptor, resolve_path
from daemon.errors import CorruptInput, Unsupported
from daemon.storage import Span, Storage

CHUNK_POSITIONS_MAX: Final = 1 << 20  # 8 MB of int64
CHUNK_CONTAINERS_MAX: Final = 1 << 10  # bounds what the other side of a difference decodes, 8 kB a container
MERGED_READ_BYTES_MAX: Final = 8 << 20
MERGED_GAP_BYTES_MAX: Final = 64 << 10

# Delta PROTOCOL.md, "Deletion Vector File Storage Format"
FILE_VERSION: Final = 1
FIRST_DV_OFFSET: Final = 1
SIZE_FIELD_BYTES: Final = 4
FRAME_BYTES: Final = 8  # the size field before and the CRC-32 after the bytes

# Delta PROTOCOL.md, "Deletion Vector Format", knows the portable form alone. The native one is in Delta's source
# (RoaringBitmapArray.scala, NativeRoaringBitmapArraySerializationFormat), which still reads it, little-endian. The
# protocol's inline example is the native form in big-endian: Delta refuses that, and so do we.
MAGIC_PORTABLE: Final = 1681511377
MAGIC_NATIVE: Final = 1681511376
UPPER_MAX: Final = (1 << 31) - 1  # "every key in the bitmap has a 0 as its most significant bit"

# RoaringFormatSpec, "General layout"
COOKIE_NO_RUNS: Final = 12346
COOKIE_RUNS: Final = 12347
NO_OFFSET_THRESHOLD: Final = 4
CONTAINERS_MAX: Final = 1 << 16
ARRAY_CARDINALITY_MAX: Final = 4096
BITSET_BYTES: Final = 8192

# ZeroMQ RFC 32 (Z85) has the arithmetic of base64.b85decode and another alphabet; '"' is in neither of the two.
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85_TO_B85: Final = bytes.maketrans(bytes(set(range(256)) - set(_Z85)) + _Z85, b'"' * (256 - 85) + _B85)
UUID_CHARACTERS: Final = 20
INLINE_PATH_CHARACTERS_MAX: Final = 60

# More than a data file of four thousand million rows needs of which every other one is deleted; and the number of
# bitmaps of 2^32 rows each, as a small header stands for much more in memory.
DV_BYTES_MAX: Final = 1 << 29
BITMAPS_MAX: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class DVPlace:
    """Where the frame of a DV (size field, bytes, CRC) begins. An inline DV has its unique id for a path, cut."""

    path: str
    offset: int | None

    def corrupt(self, message: str) -> CorruptInput:
        hint = "The deletion vector is damaged: restore its file from a copy, or restore the Delta table."
        return CorruptInput(message, path=self.path, offset=self.offset, hint=hint)


def find_place(table_location: str, descriptor: DeletionVectorDescriptor) -> DVPlace:
    """PROTOCOL.md, "Deletion Vector Descriptor Schema" and "Derived Fields".

    An absent `offset` is read as 1. The protocol says 0, but the file's version byte is there, so that such a read
    can only fail; delta-kernel-rs (`deletion_vector.rs`) reads at 1, and we follow it.
    """
    path = descriptor.path_or_inline_dv
    offset = FIRST_DV_OFFSET if descriptor.offset is None else descriptor.offset
    match descriptor.storage_type:
        case "u":
            prefix, encoded = path[:-UUID_CHARACTERS], path[-UUID_CHARACTERS:]
            uuid = _decode_z85(encoded, DVPlace(path, None))
            if len(uuid) != 16:
                raise DVPlace(path, None).corrupt(f"{len(uuid)} bytes are encoded in {encoded!r}, a UUID has 16")
            folder = f"{table_location}/{prefix}" if prefix else table_location
            place = DVPlace(f"{folder}/deletion_vector_{UUID(bytes=uuid)}.bin", offset)
        case "p":
            place = DVPlace(resolve_path(table_location, path), offset)
        case "i":
            place = DVPlace(descriptor.unique_id[:INLINE_PATH_CHARACTERS_MAX], None)
        case unknown:
            raise Unsupported(
                f"a deletion vector of storage type '{unknown}'; 'u', 'p' and 'i' are known",
                path=path,
                hint="Wait for a dvsync that knows this storage type, or purge the deletion vectors with REORG.",
            )
    if descriptor.size_in_bytes < 0 or offset < 0:
        raise place.corrupt(f"the log says offset {offset} and size {descriptor.size_in_bytes}")
    if descriptor.size_in_bytes > DV_BYTES_MAX:
        raise Unsupported(
            f"the deletion vector has {descriptor.size_in_bytes} bytes, at most {DV_BYTES_MAX} are read",
            path=place.path,
            hint="Have Delta write the data file anew, for example with REORG TABLE … APPLY (PURGE).",
        )
    return place


def read_dv_bytes(storage: Storage, table_location: str, descriptor: DeletionVectorDescriptor) -> memoryview:
    """The `size_in_bytes` bytes of magic and bitmap that `descriptor` names, their frame checked.

    Raises CorruptInput, Unsupported (a storage type that is not specified), and what `storage` raises.
    """
    return _read_blobs(storage, [find_place(table_location, descriptor)], [descriptor])[0]


def read_position_sets(
    storage: Storage, table_location: str, descriptors: Sequence[DeletionVectorDescriptor]
) -> list[PositionSet]:
    """The position set of each descriptor, in order. Raises as `read_dv_bytes` does.

    One ranged read a DV, and one for all where DVs of one file are neighbours: a `.bin` can hold thousands of them.
    """
    places = [find_place(table_location, descriptor) for descriptor in descriptors]
    blobs = _read_blobs(storage, places, descriptors)
    return [
        decode_positions(blob, cardinality=descriptor.cardinality, place=place)
        for blob, descriptor, place in zip(blobs, descriptors, places, strict=True)
    ]


def _read_blobs(
    storage: Storage, places: Sequence[DVPlace], descriptors: Sequence[DeletionVectorDescriptor]
) -> list[memoryview]:
    blobs = [memoryview(b"")] * len(places)
    frames: list[_Frame] = []
    for index, (place, descriptor) in enumerate(zip(places, descriptors, strict=True)):
        if place.offset is None:
            blobs[index] = _decode_inline(descriptor, place)
        else:
            frames.append(_Frame(place.path, place.offset, descriptor.size_in_bytes, index))
    frames.sort(key=lambda frame: (frame.path, frame.offset))
    for neighbours in _merge_neighbours(frames):
        path = neighbours[0].path
        # The read for a file's first DV starts with the version byte, where it costs nothing. For others it would be
        # a request of its own, and it proves less than size, CRC and magic do.
        start = 0 if neighbours[0].offset <= FIRST_DV_OFFSET else neighbours[0].offset
        data = memoryview(storage.read(path, Span(start, max(frame.end for frame in neighbours) - start)))
        if start == 0 and data[:1] != bytes([FILE_VERSION]):
            raise DVPlace(path, 0).corrupt(f"the file does not begin with the version byte {FILE_VERSION}")
        for frame in neighbours:
            blobs[frame.index] = _decode_frame(data[frame.offset - start :], frame.size_in_bytes, places[frame.index])
    return blobs


@dataclass(frozen=True, slots=True)
class _Frame:
    path: str
    offset: int
    size_in_bytes: int
    index: int

    @property
    def end(self) -> int:
        return self.offset + self.size_in_bytes + FRAME_BYTES


def _merge_neighbours(frames: Sequence[_Frame]) -> Iterator[list[_Frame]]:
    """Sorted frames in lists that one read serves: of one file, with small gaps, and together not too large."""
    group: list[_Frame] = []
    for frame in frames:
        if group:
            near = frame.offset - group[-1].end <= MERGED_GAP_BYTES_MAX
            small = frame.end - group[0].offset <= MERGED_READ_BYTES_MAX
            if not (frame.path == group[0].path and near and small):
                yield group
                group = []
        group.append(frame)
    if group:
        yield group


def _decode_frame(data: memoryview, size_in_bytes: int, place: DVPlace) -> memoryview:
    """The bytes in a frame of PROTOCOL.md, "Deletion Vector File Storage Format"; `data` may go on after it.

    4 B  dataSize, of the bytes alone     int32, big-endian
    n B  bitmapData: magic and bitmap     as written
    4 B  CRC-32 of bitmapData             big-endian

    No message tells what was found there: a log may name any file that dvsync can read for a DV.
    """
    if len(data) < (needed := size_in_bytes + FRAME_BYTES):
        raise place.corrupt(f"the file ends {len(data)} bytes after the offset, the DV needs {needed}")
    (size_in_file,) = struct.unpack_from(">i", data)
    if size_in_file != size_in_bytes:
        raise place.corrupt(f"the DV's size in its file is not the {size_in_bytes} of the log")
    blob = data[SIZE_FIELD_BYTES : SIZE_FIELD_BYTES + size_in_bytes]
    (crc_in_file,) = struct.unpack_from(">I", data, SIZE_FIELD_BYTES + size_in_bytes)
    if zlib.crc32(blob) != crc_in_file:
        raise place.corrupt("the DV's CRC-32 is not the one that its file says")
    return blob


def _decode_inline(descriptor: DeletionVectorDescriptor, place: DVPlace) -> memoryview:
    """Delta pads the bytes to a multiple of 4 before it encodes them (Base85Codec.encodeBytes): cut them again."""
    text, size = descriptor.path_or_inline_dv, descriptor.size_in_bytes
    padded = -(-len(text) // 5) * 4
    if not size <= padded < size + 4:
        raise place.corrupt(f"an inline DV has {padded} bytes with padding, the log says {size} without")
    return memoryview(_decode_z85(text, place))[:size]


def _decode_z85(text: str, place: DVPlace) -> bytes:
    try:
        if len(text) % 5:
            raise ValueError("the length is not a multiple of 5")
        return base64.b85decode(text.encode("ascii").translate(_Z85_TO_B85))
    except ValueError as error:
        raise place.corrupt(f"{text[:40]!r} ({len(text)} characters) is not Z85") from error


@dataclass(frozen=True, slots=True)
class PositionSet:
    """A set of positions: the serialized bytes, and an index of the Roaring containers in them.

    A container holds the positions that differ in their lowest 16 bits only; `keys` are the other bits, ascending.
    The headers are checked before such a set exists, the contents of a container when it is decoded.
    """

    data: memoryview
    place: DVPlace
    keys: array[int]  # Q
    cardinalities: array[int]  # I, 1 to 65536
    starts: array[int]  # Q, in `data`
    sizes: array[int]  # I, bytes
    are_runs: bytearray
    bitmaps: dict[int, tuple[int, int, int]]  # by the first container: number of containers, start and end in `data`

    @property
    def cardinality(self) -> int:
        return sum(self.cardinalities)

    def chunk_containers(self) -> Iterator[range]:
        """Ranges of containers that fit in one chunk and, as a 32-bit bitmap must, share their upper 32 bits."""
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
        """The containers that have one of `keys`, which ascend and are not empty."""
        wanted = set(keys)
        near = range(bisect_left(self.keys, keys[0]), bisect_right(self.keys, keys[-1]))
        return [index for index in near if self.keys[index] in wanted]

    def decode_containers(self, containers: Sequence[int]) -> BitMap:
        """The lower 32 bits of the positions in `containers`, which ascend and share their upper 32 bits."""
        count, start, end = self.bitmaps.get(containers[0], (0, 0, 0))
        whole = len(containers) == count
        serialized = bytes(self.data[start:end]) if whole else self._frame_containers(containers)
        span = f"containers {containers[0]} to {containers[-1]}"
        try:
            bitmap = BitMap.deserialize(serialized)
        except ValueError as error:
            raise self.place.corrupt(f"{span} do not decode: {error}") from error
        announced = sum(self.cardinalities[index] for index in containers)
        if len(bitmap) != announced:
            raise self.place.corrupt(f"{span} hold {len(bitmap)} positions, their header says {announced}")
        return bitmap

    def _frame_containers(self, containers: Sequence[int]) -> bytes:
        """A bitmap of its own of some of a bitmap's containers. RoaringFormatSpec, "General layout", little-endian.

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


def new_positions(after: PositionSet, before: PositionSet | None = None) -> Iterator[pa.Int64Array]:
    """`after - before` in chunks, ascending, none empty, of CHUNK_POSITIONS_MAX at most.

    {1, 2, 5} after {2} gives [1, 5]. Raises CorruptInput at the chunk that does not decode.
    """
    for containers in after.chunk_containers():
        bitmap = after.decode_containers(containers)
        if before is not None and (known := before.find_containers(after.keys[containers.start : containers.stop])):
            bitmap -= before.decode_containers(known)
        if bitmap:
            lower = bitmap.to_array()
            chunk = pa.Array.from_buffers(pa.uint32(), len(lower), [None, pa.py_buffer(lower)]).cast(pa.int64())
            upper = after.keys[containers.start] >> 16
            yield pc.add(chunk, upper << 32) if upper else chunk


def is_restored(before: PositionSet, after: PositionSet) -> bool:
    """Whether `before - after` holds anything, that is, rows are back. {1, 2} before {1, 5} is, {1} is not."""
    if before.cardinality > after.cardinality:
        return True
    for containers in before.chunk_containers():
        kept = after.find_containers(before.keys[containers.start : containers.stop])
        if len(kept) < len(containers):
            return True
        if not before.decode_containers(containers).issubset(after.decode_containers(kept)):
            return True
    return False


def decode_positions(data: memoryview, *, cardinality: int, place: DVPlace) -> PositionSet:
    """Index the bytes of a DV and check every header in them. PROTOCOL.md, "Deletion Vector Format".

    4 B  magic                                int32, little-endian
    n B  bitmap, in the form of that magic    little-endian

    No bytes with cardinality 0 are Delta's own empty DV (DeletionVectorDescriptor.EMPTY). Raises CorruptInput.
    """
    positions = PositionSet(data, place, array("Q"), array("I"), array("Q"), array("I"), bytearray(), {})
    if data or cardinality:
        try:
            end = _index_bitmaps(positions)
        except struct.error as error:
            raise place.corrupt(f"the bitmap ends inside a header, after {len(data)} bytes") from error
        if end != len(data):
            raise place.corrupt(f"the bitmap needs {end} bytes, the DV has {len(data)}")
    if positions.cardinality != cardinality:
        raise place.corrupt(f"the bitmap holds {positions.cardinality} positions, the log says {cardinality}")
    return positions


def _index_bitmaps(positions: PositionSet) -> int:
    (magic,) = struct.unpack_from("<i", positions.data)
    if magic == MAGIC_PORTABLE:
        return _index_portable(positions, 4)
    if magic == MAGIC_NATIVE:
        return _index_native(positions, 4)
    raise positions.place.corrupt(f"the magic is {magic}, {MAGIC_PORTABLE} and {MAGIC_NATIVE} are known")


def _index_portable(positions: PositionSet, at: int) -> int:
    """RoaringFormatSpec, "Extention for 64-bit implementations", all little-endian; returns where it ends.

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


def _index_native(positions: PositionSet, at: int) -> int:
    """Delta's RoaringBitmapArray.scala, NativeRoaringBitmapArraySerializationFormat, all little-endian.

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


def _check_bitmaps(positions: PositionSet, count: int) -> None:
    if count > BITMAPS_MAX:
        raise positions.place.corrupt(f"the DV has {count} bitmaps, at most {BITMAPS_MAX} are read")


def _index_bitmap(positions: PositionSet, start: int, upper: int) -> int:
    """RoaringFormatSpec, "General layout", of the bitmap at `start`; returns where it ends.

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
        flags = data[start + 4 : at]
        are_runs = bytearray(flags[index >> 3] >> (index & 7) & 1 for index in range(count))
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
