"""Avro object container files, decoded by Avro's specification, "Object Container Files" and "Binary Encoding".

A record is a dict by its fields' Iceberg ids; an array of the logical type `map` is a dict, too.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
Read = Callable[["_Input"], Any]


def read_avro(path: Path) -> list[dict[int, Any]]:
    """The records of a file. AssertionError when it is not whole."""
    source = _Input(path.read_bytes())
    assert source.take(4) == MAGIC, f"{path} is no Avro file"
    header = dict(source.items(lambda key: (key.take(key.long()).decode(), key.take(key.long()))))
    sync = source.take(SYNC_BYTES)
    read = _reader(json.loads(header["avro.schema"]))
    is_deflated = header.get("avro.codec", b"null") == b"deflate"
    records: list[dict[int, Any]] = []
    while source.left:
        count, data = source.long(), source.take(source.long())
        block = _Input(zlib.decompress(data, -15) if is_deflated else data)
        records += [read(block) for _ in range(count)]
        assert not block.left, f"{path} has a block with {block.left} bytes too many"
        assert source.take(SYNC_BYTES) == sync, f"{path} has a block without the file's sync marker"
    return records


class _Input:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        assert 0 <= count <= self.left, "the file ends too early"
        self._at += count
        return self._data[self._at - count : self._at]

    def long(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)

    def items(self, read: Read) -> list[Any]:
        """The items of an array or map, which comes in blocks; a negative count is followed by a size in bytes."""
        items: list[Any] = []
        while count := self.long():
            if count < 0:
                self.long()
            items += [read(self) for _ in range(abs(count))]
        return items


_PRIMITIVES: dict[str, Read] = {
    "null": lambda source: None,
    "boolean": lambda source: source.take(1) == b"\x01",
    "int": _Input.long,
    "long": _Input.long,
    "float": lambda source: struct.unpack("<f", source.take(4))[0],
    "double": lambda source: struct.unpack("<d", source.take(8))[0],
    "bytes": lambda source: source.take(source.long()),
    "string": lambda source: source.take(source.long()).decode(),
}


def _reader(schema: Any) -> Read:
    if isinstance(schema, list):
        branches = [_reader(branch) for branch in schema]
        return lambda source: branches[source.long()](source)
    if isinstance(schema, str):
        return _PRIMITIVES[schema]
    kind = schema["type"]
    if kind == "record":
        fields = [(field["field-id"], _reader(field["type"])) for field in schema["fields"]]
        return lambda source: {field_id: read(source) for field_id, read in fields}
    if kind == "array":
        items, make = _reader(schema["items"]), _as_dict if schema.get("logicalType") == "map" else list
        return lambda source: make(source.items(items))
    return (lambda source: source.take(schema["size"])) if kind == "fixed" else _reader(kind)


def _as_dict(pairs: Iterable[Mapping[int, Any]]) -> dict[Any, Any]:
    return dict(tuple(pair.values()) for pair in pairs)
