"""Writes a file's rows again, in their order, where no new footer is enough. One row group is in memory at a time.

The file is read by a mended footer, so ids, names and layouts are right already. Only values change: other types, the
Julian calendar, INT96, partition values, and columns that the file lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.types import (
    DateType,
    DecimalType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StructType,
    TimestamptzType,
)

from daemon.errors import AccountMismatch, CorruptInput, Unsupported
from daemon.iceberg.pyiceberg_ext.variant import VariantType
from daemon.mirror.calendar import (
    DATETIME_SINCE,
    INT96_SINCE,
    LEGACY_DATETIME,
    LEGACY_INT96,
    SPARK_TIME_ZONE,
    is_legacy,
    rebase_days,
    rebase_instants,
)
from daemon.mirror.column_hashes import column_hashes
from daemon.mirror.compact import Struct
from daemon.mirror.copying import open_mirror
from daemon.mirror.footer import annotated_variants, mend_footer
from daemon.mirror.parquet import as_arrow, encode_footer, from_arrow, load_footer
from daemon.store.durable import is_local, local_path
from daemon.store.locations import file_missing
from daemon.store.storage import FileIOStorage
from daemon.translate.file_schema import FIELD_ID, FileSchema, check_file_schema, is_stored_as, lifts_type
from daemon.translate.name_mapping import Path, column_finder
from daemon.translate.schema import TableSchema

# A larger row group is read and written in parts of about this many bytes, before compression, each a row group.
ROW_GROUP_BYTES_MAX: Final = 512 << 20
HINT: Final = "Rewrite the file in Delta, for example with an UPDATE of its rows."
ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
INSTANT: Final = ARROW_TYPES["timestamptz"]

Change = Callable[[pa.Array], pa.Array]
# The type of a field of the table, and the name mapping of what is inside; of what only the file has, None and nothing.
Known = tuple[IcebergType | None, Sequence[MappedField]]
UNKNOWN: Final[Known] = (None, ())


@dataclass(frozen=True)
class RewriteTask:
    """The file to write at `mirror`, with the rows of the file at `path`.

    `partition` has the file's values in the log by field id, `defaults` those of columns that it may lack (see
    `parse_default`), in Iceberg's internal form: days, microseconds, Decimal.
    """

    path: str
    mirror: str
    table: TableSchema
    partition: Mapping[int, Any]
    defaults: Mapping[int, Any]


def rewrite_file(task: RewriteTask, source: FileIOStorage, target_properties: Mapping[str, str]) -> int:
    """Write the mirror, read it again, compare, and return its size in bytes.

    A local one is not forced to the disk yet: see `force_to_disk`.

    Raises `Unsupported` for values that no reader can show, `CorruptInput` for a file that cannot be read,
    `AccountMismatch` if the mirror has other rows, `ObjectMissing` and `ObjectStoreAway`. Then there is no mirror, and
    what a kill leaves behind is as for `copy_bytes`.
    """
    footer = as_arrow(mend_footer(load_footer(source, task.path).metadata, task.table))
    plan = RewritePlan.of(footer, task)
    hashes: list[Mapping[str, int]] = []
    footers: list[pq.FileMetaData] = []
    with (
        open_mirror(task.mirror, target_properties) as mirror,
        _opened(source, task.path, footer) as parquet,
        pq.ParquetWriter(mirror.stream, plan.schema, metadata_collector=footers, **plan.options(footer)) as writer,
    ):
        for rows in _row_groups(parquet):
            written = plan.apply(rows)
            hashes.append(column_hashes(written))
            with mirror.storing():
                writer.write_table(written, row_group_size=max(written.num_rows, 1))
            del rows, written
        with mirror.storing():
            writer.close()
            if task.table.has_variants:
                # Arrow writes no annotations of variants. Readers know only the last footer of a file.
                mirror.stream.write(encode_footer(mend_footer(from_arrow(footers[0]), task.table)))
        size_bytes = mirror.stream.tell()
        mirror.finish()
    try:
        _check(FileIOStorage(target_properties), task.mirror, hashes, footer.num_rows)
    except BaseException:
        FileIOStorage(target_properties).delete(task.mirror)
        raise
    return int(size_bytes)


def check_rewrite(footer: Struct, task: RewriteTask) -> tuple[RewritePlan, FileSchema, frozenset[Path]]:
    """Return the plan, the properties of the mirror, and its variants, of which Arrow's schema does not know.

    Reads no values.

    Raises `Unsupported` if the file cannot be written so that readers would find all columns.
    """
    mended = mend_footer(footer, task.table)
    plan = RewritePlan.of(as_arrow(mended), task)
    try:
        variants = annotated_variants(mended)
        return plan, check_file_schema(plan.schema, task.table, leaf_paths(plan.schema), variants), variants
    except Unsupported as error:
        raise error.lift_by(None) from error.__cause__


def _check(target: FileIOStorage, mirror: str, hashes: Sequence[Mapping[str, int]], record_count: int) -> None:
    with _opened(target, mirror, None) as parquet:
        found = [column_hashes(parquet.read_row_group(number)) for number in range(parquet.num_row_groups)]
        if found != list(hashes) or parquet.metadata.num_rows != record_count:
            pairs = [(name, old[name], new[name]) for old, new in zip(hashes, found, strict=False) for name in old]
            other = sorted({name for name, old, new in pairs if old != new})
            raise AccountMismatch(
                f"the mirror has other rows than the file: {parquet.metadata.num_rows} of {record_count}, and other "
                f"values in {', '.join(other) or 'no column'}",
                path=mirror,
                hint="Report this, with the file. Nothing was committed; `dvsync resume` tries again.",
            )


@contextmanager
def _opened(storage: FileIOStorage, path: str, footer: pq.FileMetaData | None) -> Iterator[pq.ParquetFile]:
    """Open a file by its own footer, or by another one for its pages. Arrow reads a local one itself, faster."""
    try:
        with ExitStack() as stack:
            file = str(local_path(path)) if is_local(path) else stack.enter_context(storage.open_input(path))
            # For other stores, the columns of a row group are one request.
            buffered = not is_local(path)
            yield stack.enter_context(
                pq.ParquetFile(file, metadata=footer, coerce_int96_timestamp_unit="us", pre_buffer=buffered)
            )
    except FileNotFoundError as error:
        raise file_missing(path) from error
    except (pa.ArrowException, OSError) as error:
        raise CorruptInput(f"the file cannot be read: {error}", path=path, hint=HINT) from error


def _row_groups(parquet: pq.ParquetFile) -> Iterator[pa.Table]:
    """Yield the rows of each row group, and a large one in parts."""
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        parts = -(-group.total_byte_size // ROW_GROUP_BYTES_MAX)
        if parts <= 1:
            yield parquet.read_row_group(number)
        else:
            rows = -(-group.num_rows // parts)
            yield from map(lambda batch: pa.Table.from_batches([batch]), parquet.iter_batches(rows, [number]))


@dataclass(frozen=True)
class RewritePlan:
    """The schema of the mirror, and how each of its columns is made from a row group."""

    schema: pa.Schema
    columns: Sequence[Callable[[pa.Table], pa.Array | pa.ChunkedArray]]
    # The ids of the columns that the file has not.
    lacking: Set[int]

    @classmethod
    def of(cls, footer: pq.FileMetaData, task: RewriteTask) -> RewritePlan:
        """Plan for a mended footer. Raises `Unsupported` naming a column that cannot be written."""
        return _Planner(footer, task).plan()

    def apply(self, rows: pa.Table) -> pa.Table:
        return pa.Table.from_arrays([make(rows) for make in self.columns], schema=self.schema)

    def options(self, footer: pq.FileMetaData) -> dict[str, Any]:
        """Return how to write: with the codecs of the file, and dictionaries for the columns that have some there."""
        chunks = []
        if footer.num_row_groups:
            group = footer.row_group(0)
            chunks = [group.column(number) for number in range(group.num_columns)]
        codecs = {chunk.path_in_schema: CODECS.get(chunk.compression, chunk.compression) for chunk in chunks}
        plain = {chunk.path_in_schema for chunk in chunks if not chunk.has_dictionary_page}
        paths = leaf_paths(self.schema)
        return {
            "compression": {path: codecs.get(path, "snappy") for path in paths},
            "use_dictionary": [path for path in paths if path not in plain] or False,
            # Arrow would prefer its own schema to the columns' types.
            "store_schema": False,
            # Iceberg spec, "Parquet": decimals of up to 18 digits are numbers of 32 and 64 bits.
            "store_decimal_as_integer": True,
            "version": "2.6",
        }


def leaf_paths(schema: pa.Schema) -> list[str]:
    """Return the paths of the columns as they will be in a file."""
    with pa.BufferOutputStream() as empty:
        pq.write_table(schema.empty_table(), empty, store_schema=False)
        written = pq.ParquetFile(pa.BufferReader(empty.getvalue())).schema
    return [written.column(number).path for number in range(len(written.names))]


# Names of codecs in footers that Arrow's writer does not take. It calls today's LZ4_RAW "LZ4".
CODECS: Final[Mapping[str, str]] = {"UNCOMPRESSED": "NONE", "LZ4_RAW": "LZ4", "LZO": "SNAPPY", "UNKNOWN": "SNAPPY"}


class _Planner:
    """Walks over the fields of a file and the name mapping in parallel."""

    def __init__(self, footer: pq.FileMetaData, task: RewriteTask) -> None:
        self._task = task
        self._table = task.table
        self._schema = footer.schema.to_arrow_schema().remove_metadata()
        self._has_ids = any(map(_has_id, self._schema))
        # Those of the leaves, in the order in which `plan` comes to them: Arrow does not show INT96.
        self._physical_types = iter(
            [footer.schema.column(number).physical_type for number in range(footer.num_columns)]
        )
        keys = footer.metadata or {}
        # Without the writer's zone, which Spark 2 does not store, Spark takes that of the reader.
        self._zone = keys.get(SPARK_TIME_ZONE, self._table.time_zone.encode()).decode()
        self._julian = is_legacy(keys, LEGACY_DATETIME, DATETIME_SINCE)
        self._julian_int96 = is_legacy(keys, LEGACY_INT96, INT96_SINCE)

    def plan(self) -> RewritePlan:
        table, task = self._table, self._task
        values = {field.source_id: task.partition.get(field.source_id) for field in table.spec.fields}
        columns = {field.field_id: field for field in table.schema.fields}
        find = column_finder(table.name_mapping.root, columns, exact=table.needs_ids)
        fields, makers, found = [], list[Callable[[pa.Table], Any]](), set[int]()
        for number, field in enumerate(self._schema):
            mapped = find(field.name)
            column = None if mapped is None else columns.get(mapped.field_id or 0)
            is_partition = column is not None and column.field_id in values
            known = UNKNOWN if is_partition else _known(column, mapped)
            kind, change = self._changed(field.type, known, (field.name,))
            if column and is_partition:
                fields.append(field.with_type(_arrow_type(column.field_type)).with_nullable(True))
                makers.append(partial(_constant, scalar_of(values[column.field_id], column.field_type)))
            else:
                fields.append(field.with_type(kind))
                makers.append(partial(_column, number, change))
            found.update([column.field_id] if column else ())
        for field_id, value in {**task.defaults, **values}.items():
            if field_id not in found and (added := columns.get(field_id)):
                fields.append(self._field_of(added))
                makers.append(partial(_constant, scalar_of(value, added.field_type)))
        return RewritePlan(pa.schema(fields), makers, columns.keys() - found)

    def _field_of(self, column: NestedField) -> pa.Field:
        metadata = {FIELD_ID: str(column.field_id)} if self._has_ids or self._table.needs_ids else None
        return pa.field(self._table.physical_names[column.field_id], _arrow_type(column.field_type), metadata=metadata)

    def _changed(self, kind: pa.DataType, known: Known, named: tuple[str, ...]) -> tuple[pa.DataType, Change | None]:
        """Return the type to write, and the change of values; None for values that stay.

        What only the file has changes its calendar, too: later, the table may have such a column.
        """
        wanted, mapping = known
        if isinstance(wanted, VariantType):
            # Whatever it is shredded into stays.
            for _ in leaf_paths(pa.schema([(named[-1], kind)])):
                next(self._physical_types)
            return kind, None
        if pa.types.is_struct(kind) and isinstance(wanted, StructType | None):
            return self._changed_struct(kind, wanted or StructType(), mapping, named)
        if pa.types.is_list(kind) and isinstance(wanted, ListType | None):
            element = (wanted.element_type, mapping[0].fields) if wanted else UNKNOWN
            inner, change = self._changed(kind.value_type, element, (*named, "element"))
            made = pa.list_(kind.value_field.with_type(inner))
            return made, change and partial(_in_list, made, change)
        if pa.types.is_map(kind) and isinstance(wanted, MapType | None):
            of_key = (wanted.key_type, mapping[0].fields) if wanted else UNKNOWN
            of_item = (wanted.value_type, mapping[1].fields) if wanted else UNKNOWN
            key, key_change = self._changed(kind.key_type, of_key, (*named, "key"))
            item, change = self._changed(kind.item_type, of_item, (*named, "value"))
            made = pa.map_(kind.key_field.with_type(key), kind.item_field.with_type(item))
            return made, partial(_in_map, made, key_change, change) if key_change or change else None
        return self._changed_values(kind, wanted, named)

    def _changed_struct(
        self, kind: pa.DataType, wanted: StructType, mapping: Sequence[MappedField], named: tuple[str, ...]
    ) -> tuple[pa.DataType, Change | None]:
        columns = {field.field_id: field for field in wanted.fields}
        find = column_finder(mapping, columns, exact=self._table.needs_ids)
        fields, changes = [], []
        for field in kind:
            mapped = find(field.name)
            column = None if mapped is None else columns.get(mapped.field_id or 0)
            inner, change = self._changed(field.type, _known(column, mapped), (*named, field.name))
            fields.append(field.with_type(inner))
            changes.append(change)
        return pa.struct(fields), partial(_in_struct, pa.struct(fields), changes) if any(changes) else None

    def _changed_values(
        self, kind: pa.DataType, wanted: IcebergType | None, named: tuple[str, ...]
    ) -> tuple[pa.DataType, Change | None]:
        in_zone = partial(rebase_instants, time_zone=self._zone)
        is_instant = pa.types.is_timestamp(kind) and kind.tz is not None
        if next(self._physical_types) == "INT96" and isinstance(wanted, TimestamptzType | None):
            return INSTANT, partial(_converted, in_zone if self._julian_int96 else None, INSTANT)
        if self._julian and kind == pa.date32():
            made = _arrow_type(wanted) if wanted else kind
            return made, partial(_converted, rebase_days, made)
        if self._julian and is_instant and isinstance(wanted, TimestamptzType | None):
            return INSTANT, partial(_rebased, in_zone, INSTANT)
        if wanted is None or is_stored_as(kind, wanted):
            return kind, None
        if not wanted.is_primitive or lifts_type(kind, wanted) is None:
            what = f"column {'.'.join(named)} of the file is stored as {kind}, and cannot be written as {wanted}"
            raise Unsupported(what, hint=HINT)
        return _arrow_type(wanted), partial(_converted, None, _arrow_type(wanted))


def _known(column: NestedField | None, mapped: MappedField | None) -> Known:
    # A mapped field with nothing inside is false.
    return UNKNOWN if column is None or mapped is None else (column.field_type, mapped.fields)


def _has_id(field: pa.Field) -> bool:
    inner = [field.type.field(number) for number in range(field.type.num_fields)]
    return FIELD_ID in (field.metadata or {}) or any(map(_has_id, inner))


def _arrow_type(wanted: IcebergType) -> pa.DataType:
    if isinstance(wanted, DecimalType):
        return pa.decimal128(wanted.precision, wanted.scale)
    return ARROW_TYPES[str(wanted)]


def scalar_of(value: Any, wanted: IcebergType) -> pa.Scalar:
    """Return a value in Iceberg's internal form as Arrow's."""
    kind = _arrow_type(wanted)
    if isinstance(wanted, DateType):
        return pa.scalar(value, pa.int32()).cast(kind)
    return pa.scalar(value, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.scalar(value, kind)


def _constant(value: pa.Scalar, rows: pa.Table) -> pa.Array:
    return pa.repeat(value, rows.num_rows) if value.is_valid else pa.nulls(rows.num_rows, value.type)


def _column(number: int, change: Change | None, rows: pa.Table) -> pa.ChunkedArray | pa.Array:
    column = rows.column(number)
    if not change or not column.num_chunks:
        return column
    # What is inside a list begins elsewhere if the list is a part of another one: then it is copied.
    chunks = [pa.concat_arrays([chunk]) if chunk.offset else chunk for chunk in column.chunks]
    return pa.chunked_array([change(chunk) for chunk in chunks])


def _converted(rebase: Change | None, kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Change the type, after the calendar. A cast that would lose something raises ArrowInvalid."""
    return (rebase(values) if rebase else values).cast(kind)


def _rebased(rebase: Change, kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Change the calendar after the type: milliseconds become microseconds."""
    return rebase(values.cast(kind))


def _in_struct(kind: pa.DataType, changes: Sequence[Change | None], values: pa.Array) -> pa.Array:
    parts = [values.field(number) for number in range(kind.num_fields)]
    changed = [change(part) if change else part for change, part in zip(changes, parts, strict=True)]
    return pa.StructArray.from_arrays(changed, fields=list(kind), mask=values.is_null() if values.null_count else None)


def _in_list(kind: pa.DataType, change: Change, values: pa.Array) -> pa.Array:
    mask = values.is_null() if values.null_count else None
    return pa.ListArray.from_arrays(values.offsets, change(values.values), kind, mask=mask)


def _in_map(kind: pa.DataType, key: Change | None, item: Change | None, values: pa.Array) -> pa.Array:
    keys = key(values.keys) if key else values.keys
    items = item(values.items) if item else values.items
    mask = values.is_null() if values.null_count else None
    return pa.MapArray.from_arrays(values.offsets, keys, items, kind, mask=mask)
