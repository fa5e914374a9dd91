"""A hash of each column's values, which does not depend on how Arrow has them in memory.

What stands where a value is null does not matter, nor do chunks. It finds faults, not forgeries: CRC-32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib


def column_hashes(rows: pa.Table) -> Mapping[str, int]:
    """Return the hash of each column by its name."""
    return {name: _hash(column) for name, column in zip(rows.column_names, rows.columns, strict=True)}


def _hash(column: pa.ChunkedArray) -> int:
    found = 0
    for chunk in [column.combine_chunks()] if column.num_chunks != 1 else column.chunks:
        for array in chunk.chunks if isinstance(chunk, pa.ChunkedArray) else [chunk]:
            for part in _parts(array):
                found = isal_zlib.crc32(part, found)
    return found


def _parts(array: pa.Array) -> Iterator[memoryview]:
    """Yield the bytes that make up the values: which are null, how long the others are, and what they are."""
    if array.null_count:
        yield _bytes(array.is_null().cast(pa.uint8()))
        array = array.drop_null()
    kind = array.type
    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _parts(array.field(number))
    elif pa.types.is_map(kind) or pa.types.is_list(kind):
        lists = array.cast(pa.list_(kind.field(0))) if pa.types.is_map(kind) else array
        yield _bytes(pc.list_value_length(lists))
        yield from _parts(lists.flatten())
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        yield _bytes(pc.binary_length(array))
        _, offsets, data = array.buffers()
        if len(array) and data is not None:
            starts = memoryview(offsets).cast("i")
            yield memoryview(data)[starts[array.offset] : starts[array.offset + len(array)]]
    elif not pa.types.is_null(kind):
        yield _bytes(array.cast(pa.uint8()) if pa.types.is_boolean(kind) else array)


def _bytes(array: pa.Array) -> memoryview:
    """Return the bytes of an array of fixed width."""
    width, buffer = array.type.bit_width // 8, array.buffers()[1]
    return memoryview(buffer or b"")[array.offset * width : (array.offset + len(array)) * width]
