"""The contents of checkpoint files: live files, protocol and metadata of a version. Parquet and JSON, V1 and V2.

Delta PROTOCOL.md, "Checkpoints", "V2 Spec", "Sidecar Files". `log_segment.py` finds the
files of a checkpoint. Tombstones are not read: only VACUUM needs them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daemon.delta.actions import AddFile, Metadata, Protocol
from daemon.delta.commit_file import LINE_BYTES_MAX
from daemon.delta.struct_stats import encode_stats
from daemon.delta.table_state import ADDS, adds_batch
from daemon.delta.uri import resolve_path
from daemon.errors import CorruptInput, SyncError, Unsupported
from daemon.store.files import FileMeta
from daemon.store.places import BLOCK_BYTES
from daemon.store.storage import FileIOStorage
from state.records import Long

# PROTOCOL.md, "Checkpoint Schema": the places of ADDS's columns in the struct `add`.
PLACES = {
    "path": ("path",),
    "partition_values": ("partitionValues",),
    "size": ("size",),
    "stats": ("stats",),
    "dv_storage_type": ("deletionVector", "storageType"),
    "dv_path": ("deletionVector", "pathOrInlineDv"),
    "dv_offset": ("deletionVector", "offset"),
    "dv_size": ("deletionVector", "sizeInBytes"),
    "dv_cardinality": ("deletionVector", "cardinality"),
    "base_row_id": ("baseRowId",),
}
# Columns that every checkpoint must have, and fields that every add and every deletion vector must have. Some writers
# have null for the partition values of a table without partitions.
REQUIRED = ("path", "partition_values", "size")
NEVER_NULL = ("path", "size")
REQUIRED_OF_DV = ("dv_storage_type", "dv_path", "dv_size", "dv_cardinality")
METADATA_FIELDS = ("id", "schemaString", "partitionColumns", "configuration", "name", "description")
SIDECAR = "sidecar"
STATS, STATS_PARSED = "add.stats", "add.stats_parsed"
# Small structs are read whole: if a column is not a struct, Arrow silently ignores `column.field`.
COLUMNS = (
    *dict.fromkeys(f"add.{names[0]}" for names in PLACES.values()),
    *(f"metaData.{name}" for name in METADATA_FIELDS),
    *("protocol", SIDECAR),
)
BATCH_ROWS = 512
# A dictionary stores equal texts once, and Arrow repeats them: 512 rows of a small file could take gigabytes.
BATCH_BYTES_MAX = 128 << 20
# No writer's row groups are larger than this and compressed a hundredfold.
PAGES_BYTES_MAX, COMPRESSION_MAX = 64 << 20, 100
# An entry of a map or list takes this in memory even if it is empty, and as good as nothing in a page.
ENTRY_BYTES = 32
# parquet.thrift, "PageHeader": type, sizes and checksum, then the "DictionaryPageHeader". Numbers are zigzag varints.
DICTIONARY_PAGE = re.compile(
    rb"\x15\x04\x15(V)\x15(V)(?:\x15V)?[\x3c\x4c]\x15V\x15V[\x11\x12]?\x00\x00".replace(b"V", rb"[\x80-\xff]*[\0-\x7f]")
)
HINT = (
    "Restore the file, or remove it if the log has an older checkpoint and all commits after it. Then `dvsync resume` "
    "the table."
)

# How writers of Parquet may declare a text to Arrow.
TEXTS = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
)

T = TypeVar("T")


class Sidecar(msgspec.Struct, frozen=True, rename="camel"):
    """PROTOCOL.md, "Sidecar File Information". `path` is URL-encoded, below `_sidecars` or absolute."""

    path: str
    size_in_bytes: Long


class _Line(msgspec.Struct, frozen=True, rename="camel"):
    add: AddFile | None = None
    meta_data: Metadata | None = None
    protocol: Protocol | None = None
    sidecar: Sidecar | None = None


_decoder = msgspec.json.Decoder(_Line)


@dataclass(frozen=True)
class Checkpoint:
    """The files that replace all commits up to `version`. `sidecars_size_bytes` is the size of their sidecars."""

    version: int
    files: tuple[FileMeta, ...]
    sidecars_size_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files) + self.sidecars_size_bytes

    @property
    def modified_ms(self) -> int:
        """Epoch, UTC, by the store's clock."""
        return max(file.modified_ms for file in self.files)


@dataclass(frozen=True)
class Rows:
    """Some of the actions of the checkpoint file at `path`. `adds` has the schema ADDS; its paths are as written."""

    path: str
    adds: pa.RecordBatch
    protocols: Sequence[Protocol] = ()
    metadata: Sequence[Metadata] = ()
    sidecars: Sequence[Sidecar] = ()


def read_checkpoint(storage: FileIOStorage, folder: str, checkpoint: Checkpoint) -> Iterator[Rows]:
    """Read all actions except tombstones, up to BATCH_ROWS at a time; `folder` is the log's.

    Raises `CorruptInput` naming the file, `ObjectMissing` if a file or sidecar does not exist, and `Unsupported` for a
    line that is too long or values that take too much memory. Requests for each file: its size, and one read if it has
    up to BLOCK_BYTES; of a larger Parquet file only the footer and the needed columns of each row group are read, large
    dictionaries twice.
    """
    sidecars: list[Sidecar] = []
    for file in checkpoint.files:
        for rows in _read_file(storage, file.path, COLUMNS):
            sidecars += rows.sidecars
            yield rows
    for path in dict.fromkeys(resolve_path(f"{folder}/_sidecars", sidecar.path) for sidecar in sidecars):
        yield from _read_file(storage, path, COLUMNS)


def read_sidecars(storage: FileIOStorage, checkpoint: Checkpoint) -> list[Sidecar]:
    """Read the names and sizes of the checkpoint's sidecars. Requests: as `read_checkpoint`, without sidecars."""
    files = (_read_file(storage, file.path, [SIDECAR]) for file in checkpoint.files)
    return [sidecar for rows in chain.from_iterable(files) for sidecar in rows.sidecars]


def _read_file(storage: FileIOStorage, path: str, columns: Sequence[str]) -> Iterator[Rows]:
    read: Callable[..., Iterator[Rows]] = _read_json if path.endswith(".json") else _read_parquet
    try:
        yield from read(storage, path, columns)
    except SyncError as error:
        raise error.located(path=path) from error.__cause__


def _read_json(storage: FileIOStorage, path: str, _columns: Sequence[str]) -> Iterator[Rows]:
    lines = _decode_lines(storage, path)
    while some := list(islice(lines, BATCH_ROWS)):
        yield Rows(
            path=path,
            adds=adds_batch(line.add for line in some if line.add),
            protocols=[line.protocol for line in some if line.protocol],
            metadata=[line.meta_data for line in some if line.meta_data],
            sidecars=[line.sidecar for line in some if line.sidecar],
        )


def _decode_lines(storage: FileIOStorage, path: str) -> Iterator[_Line]:
    with io.BufferedReader(storage.open_input(path), BLOCK_BYTES) as lines:
        number = 0
        while line := lines.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(line) > LINE_BYTES_MAX:
                what = f"line {number} of the checkpoint has more than {LINE_BYTES_MAX} bytes"
                raise Unsupported(what, hint="Have Delta write a checkpoint in Parquet.")
            if line.strip():
                yield _decode_line(line, number)


def _decode_line(line: bytes, number: int) -> _Line:
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _corrupt(f"line {number} of the checkpoint is not a Delta action: {error}") from error


def _read_parquet(storage: FileIOStorage, path: str, columns: Sequence[str]) -> Iterator[Rows]:
    with storage.open_input(path) as source:
        try:
            small = pa.BufferReader(source.read()) if source.size_bytes <= BLOCK_BYTES else source
            parquet = _open_parquet(small)
            schema = parquet.schema_arrow
            _check_schema(schema)
            has_stats = STATS in columns and _has_struct_stats_only(schema)
            wanted = [*columns, STATS_PARSED] if has_stats else list(columns)
            for number in range(parquet.num_row_groups):
                group = parquet
                if long := _long_texts(small, parquet, number, wanted):
                    group = _open_parquet(small, metadata=parquet.metadata, read_dictionary=long)
                for batch in group.iter_batches(BATCH_ROWS, row_groups=[number], columns=wanted, use_threads=False):
                    batch.validate(full=True)
                    for part in _parts(batch) if long else (batch,):
                        yield _decode_batch(part, path)
        except (pa.ArrowException, OSError) as error:
            raise _corrupt(f"the checkpoint cannot be read: {error}") from error


def _open_parquet(source: Any, **options: Any) -> pq.ParquetFile:
    # Arrow reads no extension type as a dictionary.
    options |= {"pre_buffer": True, "page_checksum_verification": True, "arrow_extensions_enabled": False}
    return pq.ParquetFile(source, coerce_int96_timestamp_unit="us", **options)


def _long_texts(source: Any, parquet: pq.ParquetFile, number: int, columns: Sequence[str]) -> list[str]:
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
    """Return the size of the longest text in the chunk's dictionary, or a larger number; 0 if it has no dictionary.

    Reads the dictionary only if so many values could take much memory.
    """
    size_bytes: int = chunk.total_uncompressed_size
    if values * size_bytes <= BATCH_BYTES_MAX // 4:
        return size_bytes
    start = max(chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset, 0)
    source.seek(start)
    page = source.read(max(chunk.data_page_offset - start, 0) or chunk.total_compressed_size)
    header = DICTIONARY_PAGE.match(page)
    if not header:
        return size_bytes if any("DICTIONARY" in encoding for encoding in chunk.encodings) else 0
    plain_bytes, stored_bytes = map(_number, header.groups())
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


def _number(varint: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(varint)) >> 1


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide a batch into parts whose texts take at most BATCH_BYTES_MAX once they are no dictionaries any more."""
    size_bytes, half = sum(map(_text_bytes, batch.columns)), batch.num_rows // 2
    if size_bytes <= BATCH_BYTES_MAX:
        yield batch
    elif half:
        yield from _parts(batch.slice(0, half))
        yield from _parts(batch.slice(half))
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


def _check_schema(schema: pa.Schema) -> None:
    """Raise `CorruptInput` if `add` or `sidecar` is not a struct, or if a field of `add` is missing or of a wrong type.

    PROTOCOL.md, "Checkpoints": "Any missing column should be treated as null".
    """
    for name in ("add", SIDECAR):
        if name in schema.names and not pa.types.is_struct(schema.field(name).type):
            raise _corrupt(f"the checkpoint's {name} is not a struct, but {schema.field(name).type}")
    if "add" in schema.names:
        for column in REQUIRED:
            (name,) = PLACES[column]
            if schema.field("add").type.get_field_index(name) < 0:
                raise _corrupt(f"the checkpoint's add has no {name}")
        for column in PLACES:
            _column(pa.nulls(0, schema.field("add").type), column)


def _has_struct_stats_only(schema: pa.Schema) -> bool:
    """Return whether statistics are a struct only: `delta.checkpoint.writeStatsAsJson` was false.

    PROTOCOL.md, "Checkpoints".
    """
    names = {field.name for field in schema.field("add").type} if "add" in schema.names else set()
    return "stats" not in names and "stats_parsed" in names


def _decode_batch(batch: pa.RecordBatch, path: str) -> Rows:
    return Rows(
        path=path,
        adds=_decode_adds(batch),
        protocols=list(_decode_rows(batch, "protocol", Protocol)),
        metadata=list(_decode_rows(batch, "metaData", Metadata)),
        sidecars=list(_decode_rows(batch, "sidecar", Sidecar)),
    )


def _decode_rows(batch: pa.RecordBatch, column: str, kind: type[T]) -> Iterator[T]:
    if column not in batch.schema.names:
        return
    values = batch.column(column)
    try:
        for row in values.drop_null().to_pylist(maps_as_pydicts="strict"):
            # Some writers write a struct with null fields instead of a null struct.
            if not isinstance(row, dict) or any(value is not None for value in row.values()):
                yield msgspec.convert(row, kind)
    except (msgspec.ValidationError, KeyError, UnicodeDecodeError) as error:
        raise _corrupt(f"the checkpoint's {column} is not a Delta action: {error}") from error


def _decode_adds(batch: pa.RecordBatch) -> pa.RecordBatch:
    if "add" not in batch.schema.names:
        return adds_batch(())
    rows = batch.column("add")
    paths = _column(rows, "path")
    rows = rows.filter(pc.is_valid(paths))
    columns = {name: _column(rows, name) for name in PLACES}
    if rows.type.get_field_index("stats_parsed") >= 0:
        columns["stats"] = encode_stats(pc.struct_field(rows, "stats_parsed"))
    has_dv = pc.is_valid(columns["dv_storage_type"])
    for name in (*NEVER_NULL, *REQUIRED_OF_DV):
        column = columns[name] if name in NEVER_NULL else columns[name].filter(has_dv)
        if column.null_count:
            raise _corrupt(f"an add of the checkpoint has no {'.'.join(PLACES[name])}")
    columns["uri"] = pa.nulls(len(rows), pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=ADDS)


def _column(rows: pa.Array, name: str) -> pa.Array:
    """Return one column of ADDS; all null if the struct has no such field."""
    wanted = ADDS.field(name).type
    for step in PLACES[name]:
        if not pa.types.is_struct(rows.type):
            raise _corrupt(f"the checkpoint's add.{'.'.join(PLACES[name])} is not in a struct, but {rows.type}")
        if rows.type.get_field_index(step) < 0:
            return pa.nulls(len(rows), wanted)
        rows = pc.struct_field(rows, step)
    if not _is_like(rows.type, wanted):
        raise _corrupt(f"the checkpoint's add.{'.'.join(PLACES[name])} is {rows.type}, and should be {wanted}")
    return rows.cast(wanted)


def _is_like(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a cast keeps the meaning. Arrow would also cast numbers to text, which is refused here."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_map(wanted):
        return (
            pa.types.is_map(found)
            and _is_like(found.key_type, wanted.key_type)
            and _is_like(found.item_type, wanted.item_type)
        )
    if pa.types.is_string(wanted):
        return any(is_kind(found) for is_kind in TEXTS)
    return bool(pa.types.is_integer(found))


def _corrupt(what: str) -> CorruptInput:
    return CorruptInput(what, hint=HINT)
