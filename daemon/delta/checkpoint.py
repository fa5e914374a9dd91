"""What checkpoint files say: the live files, protocol and metadata of a version. Parquet and JSON, V1 and V2.

Delta PROTOCOL.md, "Checkpoints", "V2 Spec", "Sidecar Files". Which files make a checkpoint is `log_segment.py`'s to
find. Tombstones are there for VACUUM alone: none is read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daemon.delta.actions import AddFile, Metadata, Protocol, resolve_path
from daemon.delta.log import LINE_BYTES_MAX
from daemon.delta.struct_stats import encode_stats
from daemon.delta.table_state import ADDS, adds_batch
from daemon.errors import CorruptInput, SyncError, Unsupported
from daemon.storage import BLOCK_BYTES, FileIOStorage, FileMeta, store_away
from state.records import Long

# PROTOCOL.md, "Checkpoint Schema": where the columns of ADDS are in the struct `add`.
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
}
# No add is without these, and no deletion vector without those.
REQUIRED = ("path", "partition_values", "size")
REQUIRED_OF_DV = ("dv_storage_type", "dv_path", "dv_size", "dv_cardinality")
METADATA_FIELDS = ("id", "schemaString", "partitionColumns", "configuration", "name", "description")
SIDECAR = "sidecar"
STATS, STATS_PARSED = "add.stats", "add.stats_parsed"
# Whole structs where they are small: Arrow passes over the field of one that is none.
COLUMNS = (
    *dict.fromkeys(f"add.{names[0]}" for names in PLACES.values()),
    *(f"metaData.{name}" for name in METADATA_FIELDS),
    *("protocol", SIDECAR),
)
BATCH_ROWS = 4_096
HINT = (
    "Restore the file, or remove it if an older checkpoint and the commits after that are there, then `dvsync resume` "
    "the table."
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
    """The files that stand for all commits up to `version`; `sidecars_size_bytes` is that of the files they name."""

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
    """Some of the actions of the checkpoint file at `path`. `adds` has the schema ADDS."""

    path: str
    adds: pa.RecordBatch
    protocols: Sequence[Protocol] = ()
    metadata: Sequence[Metadata] = ()
    sidecars: Sequence[Sidecar] = ()


def read_checkpoint(storage: FileIOStorage, folder: str, checkpoint: Checkpoint) -> Iterator[Rows]:
    """All actions but tombstones, up to BATCH_ROWS at a time; `folder` is the log's.

    Raises `CorruptInput` naming the file, `ObjectMissing` for one that is not there, sidecars among them, and
    `Unsupported` for a line that is too long. Requests: a look, and a read of a file of up to BLOCK_BYTES; a larger one
    is read by its footer and the needed columns of each row group.
    """
    sidecars: list[Sidecar] = []
    for file in checkpoint.files:
        for rows in _read_file(storage, file.path, COLUMNS):
            sidecars += rows.sidecars
            yield rows
    for path in dict.fromkeys(resolve_path(f"{folder}/_sidecars", sidecar.path) for sidecar in sidecars):
        yield from _read_file(storage, path, COLUMNS)


def read_sidecars(storage: FileIOStorage, checkpoint: Checkpoint) -> list[Sidecar]:
    """The sidecars that the checkpoint names: the requests of its own files, as `read_checkpoint` makes them."""
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
    with storage.open_input(path) as file, io.BufferedReader(_Source(file, path), BLOCK_BYTES) as lines:
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
    with storage.open_input(path) as file:
        source = _Source(file, path)
        try:
            small = pa.BufferReader(source.read()) if source.size_bytes <= BLOCK_BYTES else source
            parquet = pq.ParquetFile(
                small, pre_buffer=True, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
            )
            schema = parquet.schema_arrow
            _check_schema(schema)
            has_stats = STATS in columns and _has_struct_stats_only(schema)
            wanted = [*columns, STATS_PARSED] if has_stats else list(columns)
            for batch in parquet.iter_batches(BATCH_ROWS, columns=wanted, use_threads=False):
                batch.validate(full=True)
                yield _decode_batch(batch, path)
        except (pa.ArrowException, OSError) as error:
            raise _corrupt(f"the checkpoint cannot be read: {error}") from error


def _check_schema(schema: pa.Schema) -> None:
    """Raise `CorruptInput` for structs that are none, and for one of adds that lacks what each of them has.

    PROTOCOL.md, "Checkpoints": "Any missing column should be treated as null".
    """
    for name in ("add", SIDECAR):
        if name in schema.names and not pa.types.is_struct(schema.field(name).type):
            raise _corrupt(f"the checkpoint's {name} is no struct, but {schema.field(name).type}")
    if "add" in schema.names:
        for column in REQUIRED:
            (name,) = PLACES[column]
            if schema.field("add").type.get_field_index(name) < 0:
                raise _corrupt(f"the checkpoint's add has no {name}")


def _has_struct_stats_only(schema: pa.Schema) -> bool:
    """PROTOCOL.md, "Checkpoints": `stats` is left out where `delta.checkpoint.writeStatsAsJson` is false."""
    names = {field.name for field in schema.field("add").type} if "add" in schema.names else set()
    return "stats" not in names and "stats_parsed" in names


class _Source(io.RawIOBase):
    """A file of a store, of `size_bytes`, that tells a store that does not answer from bytes that are broken: Arrow has
    one kind for both. Raises `ObjectStoreAway`, which Arrow passes on.
    """

    def __init__(self, file: pa.NativeFile, path: str) -> None:
        super().__init__()
        self._file = file
        self._path = path
        self._offset = 0
        self.size_bytes: int = self._ask(file.size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._offset = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self.size_bytes}[whence]
        return self._offset

    def read(self, size: int | None = -1) -> bytes:
        # Stores refuse to read from beyond the end, where broken footers point.
        left = max(self.size_bytes - self._offset, 0)
        size = left if size is None or size < 0 else min(size, left)
        data = self._ask(lambda: bytes(self._file.read_at(size, self._offset))) if size else b""
        self._offset += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except OSError as error:
            raise store_away(self._path, error) from error


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
            # Some writers have structs that are there with nothing in them.
            if not isinstance(row, dict) or any(value is not None for value in row.values()):
                yield msgspec.convert(row, kind)
    except (msgspec.ValidationError, KeyError, UnicodeDecodeError) as error:
        raise _corrupt(f"the checkpoint's {column} is not one of Delta's: {error}") from error


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
    for name in (*REQUIRED, *REQUIRED_OF_DV):
        column = columns[name] if name in REQUIRED else columns[name].filter(has_dv)
        if column.null_count:
            raise _corrupt(f"an add of the checkpoint has no {'.'.join(PLACES[name])}")
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=ADDS)


def _column(rows: pa.Array, name: str) -> pa.Array:
    """The column of ADDS; all null where the struct has no such field."""
    wanted = ADDS.field(name).type
    for step in PLACES[name]:
        if not pa.types.is_struct(rows.type):
            raise _corrupt(f"the checkpoint's add.{'.'.join(PLACES[name])} is in no struct, but {rows.type}")
        if rows.type.get_field_index(step) < 0:
            return pa.nulls(len(rows), wanted)
        rows = pc.struct_field(rows, step)
    if not _is_like(rows.type, wanted):
        raise _corrupt(f"the checkpoint's add.{'.'.join(PLACES[name])} is {rows.type}, and should be {wanted}")
    return rows.cast(wanted)


def _is_like(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast means the same; Arrow casts numbers to text, too."""
    if pa.types.is_map(wanted):
        return (
            pa.types.is_map(found)
            and _is_like(found.key_type, wanted.key_type)
            and _is_like(found.item_type, wanted.item_type)
        )
    if pa.types.is_string(wanted):
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_binary(found))
    return bool(pa.types.is_integer(found))


def _corrupt(what: str) -> CorruptInput:
    return CorruptInput(what, hint=HINT)
