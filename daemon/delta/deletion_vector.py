"""Delta's deletion vectors (DVs): from a descriptor to checked bytes, out of a `.bin` file or the log, and back."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID, uuid4

import msgspec
from isal.isal_zlib import crc32  # ten times as fast as zlib's

from daemon.delta.bitmap_format import MAGIC_PORTABLE_BYTES, DVPlace
from daemon.delta.position_set import (
    PositionSet,
    as_bitmap,
    check_positions,
    decode_at_once,
    decode_positions,
    encode_positions,
    is_restored,
)
from daemon.delta.uri import resolve_path
from daemon.errors import Unsupported
from daemon.store.locations import Span
from daemon.store.recent import Recent
from daemon.store.storage import FileIOStorage, map_files
from state.records import DeletionVectorDescriptor

MERGED_READ_BYTES_MAX: Final = 8 << 20
MERGED_GAP_BYTES_MAX: Final = 64 << 10
RECENT_FRAME_BYTES_MAX: Final = 64 << 10
# What a kept frame needs besides its bytes: measured with a path of 100 characters, 370.
RECENT_ENTRY_BYTES: Final = 400

# Delta PROTOCOL.md, "Deletion Vector File Storage Format"
FILE_VERSION: Final = 1
FIRST_DV_OFFSET: Final = 1
_SIZE_FIELD: Final = struct.Struct(">i")
_CRC_FIELD: Final = struct.Struct(">I")
SIZE_FIELD_BYTES: Final = _SIZE_FIELD.size
FRAME_BYTES: Final = SIZE_FIELD_BYTES + _CRC_FIELD.size  # before and after the bytes
_BLOB: Final = slice(SIZE_FIELD_BYTES, -_CRC_FIELD.size)  # of a frame

# A commit of ours that names a file is sent within this time after the name was recorded, or never. It comes at most as
# much later, unless its process was suspended meanwhile.
NAMED_WITHIN_S: Final = 1800.0

# Z85 (ZeroMQ RFC 32) is base64.b85decode with another alphabet. '"' is in neither, so it marks illegal characters.
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85_TO_B85: Final = bytes.maketrans(bytes(set(range(256)) - set(_Z85)) + _Z85, b'"' * (256 - 85) + _B85)
_B85_TO_Z85: Final = bytes.maketrans(_B85, _Z85)

# Enough for a data file of 2^32 rows with every second row deleted.
DV_BYTES_MAX: Final = 1 << 29


class DvFile:
    """The contents of a new `.bin` file. PROTOCOL.md, "Deletion Vector File Storage Format"."""

    def __init__(self, table_location: str) -> None:
        self._uuid = uuid4()
        self.path = f"{table_location}/deletion_vector_{self._uuid}.bin"
        self.data = bytearray([FILE_VERSION])

    def add(self, blob: bytes, cardinality: int) -> DeletionVectorDescriptor:
        """Append a DV: magic and bitmap. Returns its descriptor for the log."""
        offset = len(self.data)
        self.data += frame_bytes(blob)
        encoded = base64.b85encode(self._uuid.bytes).translate(_B85_TO_Z85).decode()
        return DeletionVectorDescriptor("u", encoded, len(blob), cardinality, offset)


def find_place(table_location: str, descriptor: DeletionVectorDescriptor) -> DVPlace:
    """Find the file and offset of a DV. PROTOCOL.md, "Deletion Vector Descriptor Schema" and "Derived Fields".

    An absent `offset` is read as 1, as delta-kernel-rs does. The protocol says 0, which is the file's version byte.
    """
    offset = FIRST_DV_OFFSET if descriptor.offset is None else descriptor.offset
    if descriptor.storage_type == "i":
        place = DVPlace(descriptor.unique_id[:60], None)  # an inline DV is long
    else:
        place = DVPlace(_find_file(table_location, descriptor.storage_type, descriptor.path_or_inline_dv), offset)
    if descriptor.size_in_bytes < 0 or offset < 0:
        raise place.corrupt(f"the log says offset {offset} and size {descriptor.size_in_bytes}")
    if descriptor.size_in_bytes > DV_BYTES_MAX:
        raise Unsupported(
            f"the deletion vector has {descriptor.size_in_bytes} bytes, at most {DV_BYTES_MAX} are read",
            path=place.path,
            hint="Rewrite the data file in Delta, for example with REORG TABLE … APPLY (PURGE).",
        )
    return place


# A `.bin` file can hold thousands of DVs, whose descriptors all name it.
@lru_cache(maxsize=256)
def _find_file(table_location: str, storage_type: str, path: str) -> str:
    if storage_type == "p":
        return resolve_path(table_location, path)
    if storage_type != "u":
        raise Unsupported(
            f"a deletion vector of storage type '{storage_type}'; 'u', 'p' and 'i' are known",
            path=path,
            hint="Wait for a dvsync that knows this storage type, or purge the deletion vectors with REORG.",
        )
    prefix, encoded = path[:-20], path[-20:]  # 16 bytes as Z85
    uuid = _decode_z85(encoded, DVPlace(path, None))
    if len(uuid) != 16:
        raise DVPlace(path, None).corrupt(f"{len(uuid)} bytes are encoded in {encoded!r}, a UUID has 16")
    folder = f"{table_location}/{prefix}" if prefix else table_location
    return f"{folder}/deletion_vector_{UUID(bytes=uuid)}.bin"


class Vector(msgspec.Struct, frozen=True):
    """A DV that was read: its frame, as it is in its file, whose size and CRC-32 are right."""

    frame: memoryview
    cardinality: int
    place: DVPlace

    def positions(self) -> PositionSet:
        """Decode the positions. Raises CorruptInput."""
        return decode_positions(self._blob, cardinality=self.cardinality, place=self.place)

    def last_position(self) -> int:
        """Check the positions, and return the largest one, -1 if there is none. Raises CorruptInput."""
        return check_positions(self._blob, cardinality=self.cardinality, place=self.place)

    def lacks_positions_of(self, before: Vector) -> bool:
        """Return whether positions of `before` are not in this DV: rows came back. Raises CorruptInput."""
        if before.cardinality > self.cardinality:
            return True
        former, present = (decode_at_once(each._blob, cardinality=each.cardinality) for each in (before, self))
        if former is None or present is None:
            return is_restored(before.positions(), self.positions())
        return not former.issubset(present)

    def portable_frame(self) -> memoryview:
        """The frame in the portable form, which Puffin files have too. Only the native form is rewritten."""
        if self._blob[: len(MAGIC_PORTABLE_BYTES)] == MAGIC_PORTABLE_BYTES:
            return self.frame
        return frame_bytes(encode_positions(as_bitmap(self.positions())))

    @property
    def _blob(self) -> memoryview:
        return self.frame[_BLOB]


def read_position_sets(
    storage: FileIOStorage, table_location: str, descriptors: Sequence[DeletionVectorDescriptor]
) -> list[PositionSet]:
    """Read the position set of each descriptor, in order. Raises as `read_vectors` does."""
    return [vector.positions() for vector in read_vectors(storage, table_location, descriptors)]


def read_vectors(
    storage: FileIOStorage,
    table_location: str,
    descriptors: Sequence[DeletionVectorDescriptor],
    recent: Recent[bytes] | None = None,
) -> list[Vector]:
    """Read the DV of each descriptor, in order. Those in `recent` are not read again, and the others come in there.

    Those that are near each other in one file share one ranged read, because a `.bin` file can hold thousands. Raises
    CorruptInput, Unsupported (an unknown storage type), and what `storage` raises.
    """
    places = [find_place(table_location, descriptor) for descriptor in descriptors]
    frames = [memoryview(b"")] * len(places)
    extents: list[_Extent] = []
    for index, (place, descriptor) in enumerate(zip(places, descriptors, strict=True)):
        if place.offset is None:
            frames[index] = frame_bytes(decode_inline(descriptor, place))
        elif recent and (known := recent.find((place, descriptor.size_in_bytes))):
            frames[index] = memoryview(known)
        else:
            end = place.offset + descriptor.size_in_bytes + FRAME_BYTES
            extents.append(_Extent(place.path, place.offset, end, index))

    def read(neighbours: list[_Extent]) -> tuple[int, memoryview]:
        # The read of a file's first DV includes the version byte at no cost. For other DVs the byte would need its own
        # request, and it proves less than size, CRC and magic.
        start = 0 if neighbours[0].offset <= FIRST_DV_OFFSET else neighbours[0].offset
        span = Span(start, max(frame.end for frame in neighbours) - start)
        return start, memoryview(storage.read(neighbours[0].path, span))

    groups = list(_merge_neighbours(sorted(extents)))
    for neighbours, (start, data) in zip(groups, map_files(read, groups, lambda each: each[0].path), strict=True):
        if start == 0 and data[:1] != bytes([FILE_VERSION]):
            place = DVPlace(neighbours[0].path, 0)
            raise place.corrupt(f"the file does not begin with the version byte {FILE_VERSION}")
        for _, offset, end, number in neighbours:
            frame = data[offset - start : end - start]
            _check_frame(frame, descriptors[number].size_in_bytes, places[number])
            frames[number] = frame
            if recent and len(frame) <= RECENT_FRAME_BYTES_MAX:
                # A copy: the frame is part of all that was read with it.
                recent.add((places[number], descriptors[number].size_in_bytes), bytes(frame))
    return [Vector(f, d.cardinality, p) for f, d, p in zip(frames, descriptors, places, strict=True)]


def frame_bytes(blob: bytes | memoryview) -> memoryview:
    """Put magic and bitmap into a frame: PROTOCOL.md, "Deletion Vector File Storage Format"."""
    return memoryview(b"".join((_SIZE_FIELD.pack(len(blob)), blob, _CRC_FIELD.pack(crc32(blob)))))


class _Extent(NamedTuple):
    path: str
    offset: int
    end: int
    number: int  # of its descriptor


def _merge_neighbours(frames: Sequence[_Extent]) -> Iterator[list[_Extent]]:
    """Group sorted frames that one read can fetch: in one file, with small gaps, and together not too large."""
    group: list[_Extent] = []
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


def _check_frame(frame: memoryview, size_in_bytes: int, place: DVPlace) -> None:
    """Check a frame of PROTOCOL.md, "Deletion Vector File Storage Format".

    4 B  dataSize, of the bytes alone     int32, big-endian
    n B  bitmapData: magic and bitmap     as written
    4 B  CRC-32 of bitmapData             big-endian

    No message contains bytes of the file: a malicious log may name any file that dvsync can read.
    """
    if len(frame) < (needed := size_in_bytes + FRAME_BYTES):
        raise place.corrupt(f"the file ends {len(frame)} bytes after the offset, the DV needs {needed}")
    (size_in_file,) = _SIZE_FIELD.unpack_from(frame)
    if size_in_file != size_in_bytes:
        raise place.corrupt(f"the DV's size in its file is not the {size_in_bytes} of the log")
    (crc_in_file,) = _CRC_FIELD.unpack_from(frame, SIZE_FIELD_BYTES + size_in_bytes)
    if crc32(frame[_BLOB]) != crc_in_file:
        raise place.corrupt("the DV's bytes do not match the CRC-32 in its file")


def decode_inline(descriptor: DeletionVectorDescriptor, place: DVPlace) -> memoryview:
    """Decode an inline DV without its padding. Delta pads the bytes to a multiple of 4 (Base85Codec.encodeBytes)."""
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
