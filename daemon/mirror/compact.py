"""Thrift's compact protocol as a tree, and back: the form of a Parquet footer. Fields that nobody knows are kept.

Thrift, "Thrift Compact protocol encoding". Others would not do: fastparquet's codec reads on beyond the end of a
damaged footer, and loses maps and fields above 13; classes made for Apache's `thrift` lose fields of a newer Parquet.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from daemon.errors import CorruptInput

# FileMetaData of parquet.thrift needs 8 levels.
DEPTH_MAX = 32
# Of about 130 bytes in memory. A file of 1,000 columns and 100 row groups has nearly as many.
VALUES_MAX = 4_000_000
HINT = "Restore the file in the Delta table, or rewrite it with the program that wrote it."


# The types of fields and elements; a field that is true or false has no other value. No enum: its members are slow.
TRUE: Final = 1
FALSE: Final = 2
BYTE: Final = 3
I16: Final = 4
I32: Final = 5
I64: Final = 6
DOUBLE: Final = 7
BINARY: Final = 8
LIST: Final = 9
SET: Final = 10
MAP: Final = 11
STRUCT: Final = 12
UUID: Final = 13

# Field id -> type and value, in the order of the bytes. A value is an int, a bool, bytes (doubles and UUIDs, too), or
# one of the following. Booleans in lists and maps are bytes, as ints.
Struct = dict[int, tuple[int, Any]]


class List(NamedTuple):
    """A list or a set."""

    kind: int
    items: list[Any]


class Map(NamedTuple):
    key_kind: int
    value_kind: int
    items: list[tuple[Any, Any]]


_LARGE = (I32, I64)
# Signed, of so many bits.
_BITS = {I16: 16, I32: 32, I64: 64}
# As written.
_SIZES = {DOUBLE: 8, UUID: 16}
_VARINT_BYTES_MAX = 10
# A field's header has the distance from the field before if it is at most this, a list's header its size if it is less.
_SHORT_MAX = 15
_FIELD_ID_MAX = (1 << 15) - 1


def decode_struct(data: bytes) -> tuple[Struct, int]:
    """Decode the struct at the start of `data`, and return it with its size in bytes.

    Raises `CorruptInput` if the bytes end before the struct, are no struct, or hold more than VALUES_MAX values. Memory
    is bounded by the bytes that are there, whatever size they claim.
    """
    decoder = _Decoder(data)
    try:
        return decoder.struct(DEPTH_MAX), decoder.at
    except IndexError:
        raise _corrupt("it ends too early", len(data)) from None


def encode_struct(struct: Struct) -> bytes:
    """Encode what `decode_struct` returns: to the same bytes, if they were as short as can be, as all writers' are."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = data
        self._left = VALUES_MAX

    def struct(self, depth: int) -> Struct:
        found: Struct = {}
        field_id = 0
        # Nearly all time goes by here: the most frequent types, with values of one byte, call nothing.
        data = self._data
        while head := data[self.at]:
            self.at += 1
            kind = head & 15
            field_id = field_id + (head >> 4) if head > 15 else self._int(I16)
            if field_id in found or field_id > _FIELD_ID_MAX:
                raise _corrupt(f"it has the field {field_id} twice, or cannot have it", self.at)
            if kind <= FALSE:
                found[field_id] = kind, kind == TRUE
            elif kind in _LARGE and (byte := data[self.at]) < 128:
                self.at += 1
                found[field_id] = kind, (byte >> 1) ^ -(byte & 1)
            else:
                found[field_id] = kind, self._value(kind, depth)
        self.at += 1
        self._count(len(found))
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _BITS:
            return self._int(kind)
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind in _SIZES:
            return self._bytes(_SIZES[kind])
        if kind in (TRUE, FALSE, BYTE):
            self.at += 1
            return self._data[self.at - 1]
        if kind not in (LIST, SET, MAP, STRUCT):
            raise _corrupt(f"it has the unknown type {kind}", self.at)
        if not depth:
            raise _corrupt(f"it is nested in more than {DEPTH_MAX} levels", self.at)
        return self._container(kind, depth - 1)

    def _container(self, kind: int, depth: int) -> Struct | List | Map:
        if kind == STRUCT:
            return self.struct(depth)
        if kind == MAP:
            size = self._varint()
            head = self._bytes(1)[0] if size else 0
            key, value = head >> 4, head & 15
            self._count(size)
            return Map(key, value, [(self._value(key, depth), self._value(value, depth)) for _ in range(size)])
        head = self._bytes(1)[0]
        size = head >> 4 if head >> 4 < _SHORT_MAX else self._varint()
        self._count(size)
        return List(head & 15, [self._value(head & 15, depth) for _ in range(size)])

    def _count(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise _corrupt(f"it has more than {VALUES_MAX} values", self.at)

    def _bytes(self, size: int) -> bytes:
        start, self.at = self.at, self.at + size
        if self.at > len(self._data):
            raise IndexError
        return self._data[start : self.at]

    def _varint(self) -> int:
        data, at = self._data, self.at
        byte = data[at]
        value, shift = byte & 127, 7
        while byte > 127:
            at += 1
            byte = data[at]
            value |= (byte & 127) << shift
            shift += 7
            if shift > 7 * _VARINT_BYTES_MAX:
                raise _corrupt("it has a number of more than 64 bits", at)
        self.at = at + 1
        return value

    def _int(self, kind: int) -> int:
        zigzag = self._varint()
        if zigzag >> _BITS[kind]:
            raise _corrupt(f"it has a number of more than {_BITS[kind]} bits", self.at)
        return (zigzag >> 1) ^ -(zigzag & 1)


def _write_struct(out: bytearray, struct: Struct) -> None:
    before = 0
    for field_id, (kind, value) in struct.items():
        distance = field_id - before
        if 0 < distance <= _SHORT_MAX:
            out.append(distance << 4 | kind)
        else:
            out.append(kind)
            _write_varint(out, _zigzag(field_id))
        before = field_id
        if kind > FALSE:
            _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in (I64, I32, I16):
        _write_varint(out, _zigzag(value))
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind in (LIST, SET):
        size = len(value.items)
        out.append(min(size, _SHORT_MAX) << 4 | value.kind)
        if size >= _SHORT_MAX:
            _write_varint(out, size)
        for each in value.items:
            _write_value(out, value.kind, each)
    elif kind == MAP:
        _write_varint(out, len(value.items))
        if value.items:
            out.append(value.key_kind << 4 | value.value_kind)
        for key, each in value.items:
            _write_value(out, value.key_kind, key)
            _write_value(out, value.value_kind, each)
    elif kind in _SIZES:
        out += value
    else:
        out.append(value)


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _write_varint(out: bytearray, number: int) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _corrupt(what: str, offset: int) -> CorruptInput:
    return CorruptInput(f"the Parquet footer is damaged: {what}", offset=offset, hint=HINT)
