"""The contents of checkpoint files: live files, protocol and metadata of a version. Parquet and JSON, V1 and V2.

Delta PROTOCOL.md, "Checkpoints", "V2 Spec", "Sidecar Files". `log_segment.py` finds the
files of a checkpoint. Tombstones are not read: only VACUUM needs them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import chain, islice
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from daemon.delta.actions import AddFile, Metadata, Protocol
from daemon.delta.commit_file import LINE_BYTES_MAX
from daemon.delta.row_groups import BATCH_ROWS, long_texts, parts_of
from daemon.delta.table_state import ADDS, PLACES, adds_batch
from daemon.delta.uri import resolve_path
from daemon.errors import CorruptInput, Unsupported, errors_at
from daemon.store.locations import FileMeta
from daemon.store.places import BLOCK_BYTES
from daemon.store.storage import FileIOStorage
from state.records import Long

# What every add and every deletion vector must have. Some writers have null for the partition values of a table without
# partitions, but each has the column.
NEVER_NULL = ("path", "size")
REQUIRED_OF_DV = ("dv_storage_type", "dv_path", "dv_size", "dv_cardinality")
METADATA_FIELDS = ("id", "schemaString", "partitionColumns", "configuration", "name", "description")
SIDECAR = "sidecar"
# Small structs are read whole: if a column is not a struct, Arrow silently ignores `column.field`.
ADD_COLUMNS = dict.fromkeys(f"add.{place.partition('.')[0]}" for place in PLACES.values())
COLUMNS = (*ADD_COLUMNS, *(f"metaData.{name}" for name in METADATA_FIELDS), "protocol", SIDECAR)
# How writers of Parquet may declare a text to Arrow.
TEXTS = {pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()}
# Stands in statistics for a date outside of the years 1 to 9999, in Delta's form. Readers of statistics ignore it.
OTHER_YEARS = "+10000-01-01"

_encoder = msgspec.json.Encoder(decimal_format="number")

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
    line that is too long or values that take too much memory. Requests for each file: its size, and one read up to
    BLOCK_BYTES; of a larger Parquet file the footer and the needed columns are read, large dictionaries twice.
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
    with errors_at(path=path):
        yield from _read_json(storage, path) if path.endswith(".json") else _read_parquet(storage, path, columns)


def _read_json(storage: FileIOStorage, path: str) -> Iterator[Rows]:
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
        for number, line in enumerate(iter(lambda: lines.readline(LINE_BYTES_MAX + 1), b""), 1):
            if len(line) > LINE_BYTES_MAX:
                what = f"line {number} of the checkpoint has more than {LINE_BYTES_MAX} bytes"
                hint = "Let Delta write a checkpoint in Parquet, or read it with Spark (engine: auto)."
                raise Unsupported(what, hint=hint)
            try:
                if line.strip():
                    yield _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise _corrupt(f"line {number} of the checkpoint is not a Delta action: {error}") from error


def _read_parquet(storage: FileIOStorage, path: str, columns: Sequence[str]) -> Iterator[Rows]:
    with storage.open_input(path) as source:
        try:
            small = pa.BufferReader(source.read()) if source.size_bytes <= BLOCK_BYTES else source
            parquet = _open_parquet(small)
            schema = parquet.schema_arrow
            _check_schema(schema)
            wanted = list(columns)
            if "add.stats" in columns and "add" in schema.names:
                fields = {field.name for field in schema.field("add").type}
                # PROTOCOL.md, "Checkpoints": `delta.checkpoint.writeStatsAsJson` was false.
                wanted += ["add.stats_parsed"] if "stats_parsed" in fields and "stats" not in fields else []
            for number in range(parquet.num_row_groups):
                group = parquet
                if long := long_texts(small, parquet, number, wanted):
                    group = _open_parquet(small, metadata=parquet.metadata, read_dictionary=long)
                for batch in group.iter_batches(BATCH_ROWS, row_groups=[number], columns=wanted, use_threads=False):
                    batch.validate(full=True)
                    for part in parts_of(batch) if long else (batch,):
                        yield Rows(
                            path=path,
                            adds=_decode_adds(part),
                            protocols=list(_decode_rows(part, "protocol", Protocol)),
                            metadata=list(_decode_rows(part, "metaData", Metadata)),
                            sidecars=list(_decode_rows(part, SIDECAR, Sidecar)),
                        )
        except (pa.ArrowException, OSError) as error:
            raise _corrupt(f"the checkpoint cannot be read: {error}") from error


def _open_parquet(source: Any, **options: Any) -> pq.ParquetFile:
    # Arrow reads no extension type as a dictionary.
    options |= {"pre_buffer": True, "page_checksum_verification": True, "arrow_extensions_enabled": False}
    return pq.ParquetFile(source, coerce_int96_timestamp_unit="us", **options)


def _check_schema(schema: pa.Schema) -> None:
    """Raise `CorruptInput` if `add` or `sidecar` is not a struct, or a field of `add` is missing or of a wrong type."""
    for name in ("add", SIDECAR):
        if name in schema.names and not pa.types.is_struct(schema.field(name).type):
            raise _corrupt(f"the checkpoint's {name} is not a struct, but {schema.field(name).type}")
    if "add" in schema.names:
        for column in (*NEVER_NULL, "partition_values"):
            if schema.field("add").type.get_field_index(PLACES[column]) < 0:
                raise _corrupt(f"the checkpoint's add has no {PLACES[column]}")
        for column in PLACES:
            _column(pa.nulls(0, schema.field("add").type), column)


def _decode_rows(batch: pa.RecordBatch, column: str, kind: type[T]) -> Iterator[T]:
    if column not in batch.schema.names:
        return
    try:
        for row in batch.column(column).drop_null().to_pylist(maps_as_pydicts="strict"):
            # Some writers write a struct with null fields instead of a null struct.
            if not isinstance(row, dict) or any(value is not None for value in row.values()):
                yield msgspec.convert(row, kind)
    except (msgspec.ValidationError, KeyError, UnicodeDecodeError) as error:
        raise _corrupt(f"the checkpoint's {column} is not a Delta action: {error}") from error


def _decode_adds(batch: pa.RecordBatch) -> pa.RecordBatch:
    if "add" not in batch.schema.names:
        return adds_batch(())
    rows = batch.column("add")
    rows = rows.filter(pc.is_valid(_column(rows, "path")))
    columns = {name: _column(rows, name) for name in PLACES}
    if rows.type.get_field_index("stats_parsed") >= 0:
        columns["stats"] = encode_stats(pc.struct_field(rows, "stats_parsed"))
    has_dv = pc.is_valid(columns["dv_storage_type"])
    for name in (*NEVER_NULL, *REQUIRED_OF_DV):
        column = columns[name] if name in NEVER_NULL else columns[name].filter(has_dv)
        if column.null_count:
            raise _corrupt(f"an add of the checkpoint has no {PLACES[name]}")
    columns["uri"] = pa.nulls(len(rows), pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=ADDS)


def _column(rows: pa.Array, name: str) -> pa.Array:
    """Return one column of ADDS; all null if the struct has no such field."""
    wanted = ADDS.field(name).type
    for step in PLACES[name].split("."):
        if not pa.types.is_struct(rows.type):
            raise _corrupt(f"the checkpoint's add.{PLACES[name]} is not in a struct, but {rows.type}")
        if rows.type.get_field_index(step) < 0:
            return pa.nulls(len(rows), wanted)
        rows = pc.struct_field(rows, step)
    if not _is_like(rows.type, wanted):
        raise _corrupt(f"the checkpoint's add.{PLACES[name]} is {rows.type}, and should be {wanted}")
    return rows.cast(wanted)


def encode_stats(stats: pa.StructArray) -> pa.Array:
    """Encode statistics as JSON, the form in commits. Nulls stay null; null fields are omitted, as by Delta."""
    rows = _with_texts(stats).to_pylist()
    return pa.array([None if row is None else _encoder.encode(_as_json(row)).decode() for row in rows], pa.string())


def _with_texts(values: pa.Array) -> pa.Array:
    """Turn dates and timestamps at any depth into texts, because Python cannot represent all of them."""
    kind = values.type
    if pa.types.is_struct(kind):
        fields = [field.name for field in kind]
        arrays = [_with_texts(pc.struct_field(values, [number])) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(arrays, fields, mask=pc.is_null(values)) if arrays else values
    # Arrow formats years outside this range wrongly, and Python and Iceberg's bounds cannot hold them.
    ends = [date(1, 1, 1), date(9999, 12, 31)]
    if pa.types.is_timestamp(kind):
        zone = UTC if kind.tz else None
        values = values.cast(pa.timestamp("us", zone and "UTC"), safe=False)
        ends = [datetime(1, 1, 1, tzinfo=zone), datetime(9999, 12, 31, 23, 59, 59, tzinfo=zone)]
    elif not pa.types.is_date32(kind):
        return values
    first, last = (pa.scalar(end, values.type) for end in ends)
    known = pc.and_(pc.greater_equal(values, first), pc.less_equal(values, last))
    return pc.if_else(known, values.cast(pa.string()), OTHER_YEARS)


def _as_json(value: Any) -> Any:
    """Remove nulls, and turn numbers that JSON cannot express into texts."""
    if isinstance(value, dict):
        return {name: _as_json(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _is_like(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a cast keeps the meaning. Arrow would also cast numbers to text, which is refused here."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_map(wanted):
        return pa.types.is_map(found) and all(_is_like(kind, pa.string()) for kind in (found.key_type, found.item_type))
    return found in TEXTS if pa.types.is_string(wanted) else bool(pa.types.is_integer(found))


def _corrupt(what: str) -> CorruptInput:
    return CorruptInput(
        what,
        hint="Restore the file, or remove it if the log has an older checkpoint and all commits after it. Then "
        "`dvsync resume` the table.",
    )
