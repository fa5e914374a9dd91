"""How much memory the values of a checkpoint's row groups take, which may be far more than the file has bytes.

A dictionary stores equal texts once, and Arrow repeats them: 512 rows of a small file could take gigabytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daemon.errors import Unsupported

BATCH_ROWS = 512
BATCH_BYTES_MAX = 128 << 20
# No writer's row groups are larger than this and compressed a hundredfold.
PAGES_BYTES_MAX, COMPRESSION_MAX = 64 << 20, 100
# An entry of a map or list takes this in memory even if it is empty, and as good as nothing in a page.
ENTRY_BYTES = 32
# parquet.thrift, "PageHeader": type, sizes and checksum, then the "DictionaryPageHeader". Numbers are zigzag varints.
DICTIONARY_PAGE = re.compile(
    rb"\x15\x04\x15(V)\x15(V)(?:\x15V)?[\x3c\x4c]\x15V\x15V[\x11\x12]?\x00\x00".replace(b"V", rb"[\x80-\xff]*[\0-\x7f]")
)


def long_texts(source: Any, parquet: pq.ParquetFile, number: int, columns: Sequence[str]) -> list[str]:
    """Return the columns of a row group that Arrow must not expand, because a batch could exceed BATCH_BYTES_MAX.

    They are read as dictionaries, which is slow if most texts differ. One row may have all entries of a map or list.
    Raises `Unsupported` for what would take too much memory even then.
    """
    group, parents = parquet.metadata.row_group(number), tuple(f"{column}." for column in columns)
    chunks = [group.column(index) for index in range(group.num_columns)]
    wanted = [
        (chunk, column, chunk.num_values if column.max_repetition_level else min(chunk.num_values, BATCH_ROWS))
        for chunk, column in zip(chunks, parquet.schema, strict=True)
        if f"{chunk.path_in_schema}.".startswith(parents)
    ]
    pages_bytes = sum(chunk.total_uncompressed_size for chunk, _, _ in wanted)
    pages_bytes += sum(values * ENTRY_BYTES for _, column, values in wanted if column.max_repetition_level)
    if pages_bytes > max(PAGES_BYTES_MAX, COMPRESSION_MAX * sum(chunk.total_compressed_size for chunk in chunks)):
        raise too_large(f"row group {number} takes {pages_bytes} bytes")
    batch_bytes, texts = 0, list[tuple[int, str]]()
    for chunk, column, values in wanted:
        if chunk.physical_type == "FIXED_LEN_BYTE_ARRAY":
            batch_bytes += values * column.length
        elif chunk.physical_type == "BYTE_ARRAY":
            text_bytes = values * _longest_text(source, chunk, values)
            if column.logical_type.type == "DECIMAL":
                batch_bytes += text_bytes
            else:
                texts.append((text_bytes, chunk.path_in_schema))
    # Arrow reads nothing but texts as dictionaries.
    if batch_bytes > BATCH_BYTES_MAX:
        raise too_large(f"a batch of row group {number} takes {batch_bytes} bytes")
    long = list[str]()
    for text_bytes, name in sorted(texts):
        batch_bytes += text_bytes
        if batch_bytes > BATCH_BYTES_MAX:
            long.append(name)
    return long


def _longest_text(source: Any, chunk: pq.ColumnChunkMetaData, values: int) -> int:
    """Return the size of the longest text in the chunk's dictionary, or a larger number; 0 if it has no dictionary."""
    size_bytes: int = chunk.total_uncompressed_size
    if values * size_bytes <= BATCH_BYTES_MAX // 4:
        return size_bytes
    start = max(chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset, 0)
    source.seek(start)
    page = source.read(max(chunk.data_page_offset - start, 0) or chunk.total_compressed_size)
    header = DICTIONARY_PAGE.match(page)
    if not header:
        return size_bytes if any("DICTIONARY" in encoding for encoding in chunk.encodings) else 0
    plain_bytes, stored_bytes = (
        sum((byte & 0x7F) << 7 * place for place, byte in enumerate(varint)) >> 1 for varint in header.groups()
    )
    page = page[header.end() : header.end() + stored_bytes]
    if chunk.compression != "UNCOMPRESSED":
        try:
            codec = pa.Codec(chunk.compression.lower().replace("lz4", "lz4_raw"))
            page = codec.decompress(page, min(plain_bytes, size_bytes), asbytes=True)
        except (ValueError, OSError):
            # Hadoop's LZ4, or a broken page.
            return size_bytes
    # PLAIN: each text after its length, in 4 bytes.
    longest = at = 0
    while at < len(page):
        length = int.from_bytes(page[at : at + 4], "little")
        longest, at = max(longest, length), at + 4 + length
    return longest


def parts_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide a batch into parts whose texts take at most BATCH_BYTES_MAX once they are no dictionaries any more."""
    size_bytes, half = sum(map(_text_bytes, batch.columns)), batch.num_rows // 2
    if size_bytes <= BATCH_BYTES_MAX:
        yield batch
    elif half:
        yield from parts_of(batch.slice(0, half))
        yield from parts_of(batch.slice(half))
    else:
        raise too_large(f"a row takes {size_bytes} bytes")


def _text_bytes(values: pa.Array) -> int:
    kind = values.type
    if pa.types.is_dictionary(kind):
        return int(pc.sum(pc.take(pc.binary_length(values.dictionary), values.indices)).as_py() or 0)
    if pa.types.is_map(kind):
        first, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return _text_bytes(values.values.slice(first, end - first))
    if pa.types.is_nested(kind):
        inner = values.flatten()
        return sum(map(_text_bytes, inner)) if pa.types.is_struct(kind) else _text_bytes(inner)
    return int(values.nbytes)


def too_large(what: str) -> Unsupported:
    return Unsupported(
        f"the checkpoint is too large to read: {what}",
        hint="Let Delta write another checkpoint, or read it with Spark (engine: auto).",
    )
