"""Puffin files with deletion vectors: how Iceberg v3 stores deleted positions.

Puffin spec, "File structure" and "Blob types", deletion-vector-v1. Iceberg spec, "Deletion Vectors".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import msgspec
from pyiceberg.io import FileIO

from daemon.iceberg.delete_file_writer import DeleteFileWriter, damaged_deletes
from daemon.store.locations import Span, canonical
from daemon.store.storage import FileIOStorage

SUFFIX: Final = ".puffin"
MAGIC: Final = b"PFA1"
DELETION_VECTOR: Final = "deletion-vector-v1"
DATA_FILE: Final = "referenced-data-file"
CARDINALITY: Final = "cardinality"
# Iceberg spec, "Reserved Field IDs": `_pos`, to which the vector applies.
POSITION_FIELD_ID: Final = 2147483645
UNKNOWN: Final = -1  # the snapshot and its sequence number, when the file is written; a retry changes them
# Payload size, flags and magic at the end of the footer.
FOOTER_END: Final = struct.Struct("<i4s4s")
FOOTER_READ_BYTES: Final = 64 << 10


class _BlobMetadata(msgspec.Struct, frozen=True, rename="kebab"):
    """One blob in the footer's JSON. Puffin spec, "BlobMetadata"."""

    type: str
    fields: list[int]
    snapshot_id: int
    sequence_number: int
    offset: int
    length: int
    properties: dict[str, str] = {}


class _Footer(msgspec.Struct, frozen=True):
    blobs: list[_BlobMetadata]
    properties: dict[str, str] = {}


_decode_footer = msgspec.json.Decoder(_Footer).decode


class Blob(msgspec.Struct, frozen=True):
    """A deletion vector in a Puffin file: `size_bytes` from `offset`, with `cardinality` positions of `data_file`."""

    data_file: str
    offset: int
    size_bytes: int
    cardinality: int


@dataclass(frozen=True, slots=True)
class PuffinFile:
    """A finished Puffin file. Each of its blobs gets a manifest entry of its own."""

    path: str
    size_bytes: int
    blobs: tuple[Blob, ...]

    @property
    def positions(self) -> int:
        return sum(blob.cardinality for blob in self.blobs)

    @property
    def data_files(self) -> tuple[tuple[str, int], ...]:
        """The data files, each with the number of its deleted positions."""
        return tuple((blob.data_file, blob.cardinality) for blob in self.blobs)


class PuffinWriter(DeleteFileWriter):
    """Writes one Puffin file. `finish` writes the footer, closes the file and describes it.

    with PuffinWriter(io, "file:///warehouse/t/data/d.puffin") as writer:
        writer.write("file:///lake/t/a.parquet", frame, cardinality=2)
        puffin_file = writer.finish()
    """

    what = "Puffin file"

    def __init__(self, io: FileIO, path: str, *, at_once: bool = False) -> None:
        super().__init__(io, path, at_once=at_once)
        self._blobs: list[Blob] = []
        self._size_bytes = 0
        self._put(MAGIC)

    def write(self, data_file: str, frame: memoryview, cardinality: int) -> None:
        """Add a deletion vector: its length, magic, bitmap and CRC-32, the same bytes as in a `.bin` file of Delta."""
        self._blobs.append(Blob(data_file, self._size_bytes, len(frame), cardinality))
        self.positions += cardinality
        self._put(frame)

    def _put(self, data: bytes | memoryview) -> None:
        with self._storing():
            self._stream.write(data)  # type: ignore[arg-type]  # PyArrow's streams and ours take any buffer
        self._size_bytes += len(data)

    def finish(self) -> PuffinFile:
        blobs = [
            _BlobMetadata(
                type=DELETION_VECTOR,
                fields=[POSITION_FIELD_ID],
                snapshot_id=UNKNOWN,
                sequence_number=UNKNOWN,
                offset=blob.offset,
                length=blob.size_bytes,
                properties={DATA_FILE: blob.data_file, CARDINALITY: str(blob.cardinality)},
            )
            for blob in self._blobs
        ]
        payload = msgspec.json.encode(_Footer(blobs, {"created-by": "dvsync"}))
        self._put(b"".join((MAGIC, payload, FOOTER_END.pack(len(payload), bytes(4), MAGIC))))
        with self._storing():
            self._finish()
        return PuffinFile(self.path, self._size_bytes, tuple(self._blobs))


def read_blobs(storage: FileIOStorage, path: str, size_bytes: int) -> list[Blob]:
    """Read which deletion vectors a Puffin file of this size has. Raises CorruptInput, and what `storage` raises."""
    start, place = max(0, size_bytes - FOOTER_READ_BYTES), canonical(path)
    data = storage.read(place, Span(start, size_bytes - start))
    try:
        payload_bytes, flags, magic = FOOTER_END.unpack_from(data, len(data) - FOOTER_END.size)
        needed = payload_bytes + len(MAGIC) + FOOTER_END.size
        if len(data) < needed <= size_bytes:
            data = storage.read(place, Span(size_bytes - needed, needed))
        footer = data[len(data) - needed :]
        if magic != MAGIC or any(flags) or footer[: len(MAGIC)] != MAGIC:
            raise ValueError("its magic or flags are wrong")
        return [
            Blob(blob.properties[DATA_FILE], blob.offset, blob.length, int(blob.properties[CARDINALITY]))
            for blob in _decode_footer(footer[len(MAGIC) : len(MAGIC) + payload_bytes]).blobs
            if blob.type == DELETION_VECTOR
        ]
    except (KeyError, ValueError, struct.error, msgspec.MsgspecError) as error:
        raise damaged_deletes(f"the footer of a Puffin file cannot be read: {error}", path) from error
