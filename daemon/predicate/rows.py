"""Which rows of a data file fulfil a predicate: its columns read by Arrow, a batch at a time."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyroaring import BitMap64

from daemon.errors import CorruptInput, Unsupported
from daemon.mirror.calendar import DATETIME_SINCE, INT96_SINCE, LEGACY_DATETIME, LEGACY_INT96, is_legacy
from daemon.predicate.tree import (
    Always,
    Among,
    And,
    Comparison,
    Field,
    IsNull,
    IsTrue,
    Like,
    Not,
    Or,
    Predicate,
    Value,
    fields_in,
)
from daemon.store.storage import FileIOStorage
from daemon.translate.file_schema import FIELD_ID

BATCH_ROWS: Final = 1 << 16
SIGNED: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
HINT_ON_SPARK: Final = "Delete with --engine spark, which reads the file as Delta does."
# A field's values in a batch.
Column = Callable[[Field], pa.Array]


def matching_positions(
    storage: FileIOStorage, path: str, predicate: Predicate, partition: dict[Field, Value | None]
) -> tuple[int, BitMap64]:
    """Return the number of rows in a data file, deleted ones too, and the positions where the predicate is true.

    `partition` has the file's values of the partition columns. A column that the file lacks is null.

    Raises `Unsupported` for a column that is stored as another type, `CorruptInput`, `ObjectMissing` and
    `ObjectStoreAway`.
    """
    positions, offset = BitMap64(), 0
    with _opened(storage, path, pre_buffer=True, coerce_int96_timestamp_unit="us") as parquet:
        file = _File(parquet, path, predicate, partition)
        for batch in parquet.iter_batches(BATCH_ROWS, columns=file.columns, use_threads=False):
            mask = evaluate(predicate, file.reader(batch), batch.num_rows)
            found = pc.add(pc.indices_nonzero(mask).cast(pa.uint64()), pa.scalar(offset, pa.uint64()))
            # Not by NumPy, which comes with PySpark only.
            positions |= BitMap64(array("Q", found.buffers()[1].to_pybytes()[: found.nbytes]))
            offset += batch.num_rows
    return parquet.metadata.num_rows, positions


def rows_of(storage: FileIOStorage, path: str) -> int:
    """Return the number of rows in a data file, deleted ones too. Raises as `matching_positions`."""
    with _opened(storage, path) as parquet:
        return int(parquet.metadata.num_rows)


@contextmanager
def _opened(storage: FileIOStorage, path: str, **options: Any) -> Iterator[pq.ParquetFile]:
    with storage.open_input(path) as source:
        try:
            yield pq.ParquetFile(source, **options)
        except (pa.ArrowException, OSError) as error:
            hint = "Restore the file, or rewrite its rows in Delta."
            raise CorruptInput(f"the file cannot be read: {error}", path=path, hint=hint) from error


def holds_for(predicate: Predicate, partition: dict[Field, Value | None]) -> bool:
    """Return whether a predicate on nothing but partition columns is true for the rows of a file."""
    mask = evaluate(predicate, lambda field: _repeated(partition[field], field.kind, 1), 1)
    return mask[0].as_py() is True


class _File:
    """Where an open file has the fields of a predicate."""

    def __init__(
        self, parquet: pq.ParquetFile, path: str, predicate: Predicate, partition: dict[Field, Value | None]
    ) -> None:
        self._path, self._partition = path, partition
        keys = parquet.metadata.metadata or {}
        self._julian = is_legacy(keys, LEGACY_DATETIME, DATETIME_SINCE)
        self._julian_int96 = is_legacy(keys, LEGACY_INT96, INT96_SINCE)
        columns = [parquet.schema.column(number) for number in range(len(parquet.schema.names))]
        self._int96 = {column.path for column in columns if column.physical_type == "INT96"}
        self._places: dict[Field, tuple[str, ...] | None] = {}
        has_ids = any(FIELD_ID in (column.metadata or {}) for column in parquet.schema_arrow)
        for field in fields_in(predicate):
            if field.is_partition:
                continue
            if field.ids is not None and not has_ids:
                raise Unsupported(
                    "the file has no field ids, and the column mapping is by id: Delta on Spark does not read it",
                    path=path,
                    hint="Rewrite the file, with field ids, with the program that wrote it.",
                )
            self._places[field] = self._find(parquet.schema_arrow, field)
        self.columns = [".".join(place) for place in self._places.values() if place]

    def _find(self, schema: pa.Schema, field: Field) -> tuple[str, ...] | None:
        """Return the names by which the file has a field; None if it lacks it."""
        place, inside = list[str](), list(schema)
        for step, name in enumerate(field.path):
            if field.ids is not None:
                number = str(field.ids[step]).encode()
                found = [each for each in inside if (each.metadata or {}).get(FIELD_ID) == number]
            else:
                found = [each for each in inside if each.name == name]
                found = found or [each for each in inside if each.name.lower() == name.lower()]
            if len(found) > 1:
                raise self._unsupported(field, "is there more than once")
            if not found:
                return None
            place.append(found[0].name)
            inside = list(found[0].type) if pa.types.is_struct(found[0].type) else []
        return tuple(place)

    def reader(self, batch: pa.RecordBatch) -> Column:
        def read(field: Field) -> pa.Array:
            if field.is_partition:
                return _repeated(self._partition[field], field.kind, batch.num_rows)
            place = self._places[field]
            if place is None:
                return pa.nulls(batch.num_rows, pa.bool_() if field.kind is None else _arrow_type(field.kind))
            values = batch.column(place[0])
            # A field of a struct that is null is null.
            values = pc.struct_field(values, list(place[1:])) if len(place) > 1 else values
            return values if field.kind is None else self._as_values(values, field, ".".join(place))

        return read

    def _as_values(self, values: pa.Array, field: Field, place: str) -> pa.Array:
        """Return a column's values in the form of literals. Raises `Unsupported` for another type than the table's."""
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        stored, wanted = values.type, field.kind
        assert wanted is not None, "only fields of a known type are compared"
        is_int96 = place in self._int96
        if stored == pa.null():
            return pa.nulls(len(values), _arrow_type(wanted))
        if not _is_stored_as(stored, wanted, is_int96=is_int96):
            raise self._unsupported(field, f"is stored as {'INT96' if is_int96 else stored}")
        if pa.types.is_temporal(stored):
            if self._julian_int96 if is_int96 else self._julian:
                raise self._unsupported(field, "has days of the Julian calendar")
            if pa.types.is_date(stored) and isinstance(wanted, TimestampType):
                values = values.cast(pa.timestamp("us"))
            elif pa.types.is_timestamp(stored):
                values = values.cast(pa.timestamp("us", stored.tz))
            else:
                values = values.cast(pa.int32())
        return values.cast(_arrow_type(wanted))

    def _unsupported(self, field: Field, what: str) -> Unsupported:
        told = f"column {field.name} of the file {what}, and the table has {field.kind or 'another type'}"
        return Unsupported(told, path=self._path, hint=HINT_ON_SPARK)


def _is_stored_as(stored: pa.DataType, wanted: IcebergType, *, is_int96: bool) -> bool:
    """Return whether each value of a file's type is one of the table's type: the same, or one that was widened."""
    if isinstance(wanted, DecimalType) and pa.types.is_decimal(stored):
        whole = stored.precision - stored.scale
        return bool(stored.scale <= wanted.scale and whole <= wanted.precision - wanted.scale)
    if is_int96:
        return isinstance(wanted, TimestamptzType)
    return stored in STORED_AS[type(wanted)]


STORED_AS: Final[dict[type[IcebergType], tuple[pa.DataType, ...]]] = {
    BooleanType: (pa.bool_(),),
    IntegerType: SIGNED[:3],
    LongType: SIGNED,
    FloatType: (pa.float32(),),
    DoubleType: (pa.float32(), pa.float64(), *SIGNED[:3]),
    DecimalType: SIGNED,
    StringType: (pa.string(), pa.large_string(), pa.string_view()),
    DateType: (pa.date32(),),
    TimestampType: (pa.timestamp("us"), pa.timestamp("ms"), pa.date32()),
    TimestamptzType: (pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")),
}


def _arrow_type(kind: IcebergType) -> pa.DataType:
    """Return the type in which values of a kind are compared: numbers stand for days and microseconds."""
    match kind:
        case FloatType() | DoubleType():
            return pa.float64()
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case StringType():
            return pa.string()
        case BooleanType():
            return pa.bool_()
    return pa.int64()


def _repeated(value: Value | None, kind: IcebergType | None, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, _arrow_type(kind) if kind else pa.string()), rows)


def evaluate(predicate: Predicate, column: Column, rows: int) -> pa.Array:
    """Return what a predicate is for each of `rows` rows: true, false, or null where SQL does not know."""
    match predicate:
        case And(items):
            found = _joined(pc.and_kleene, items, column, rows)
        case Or(items):
            found = _joined(pc.or_kleene, items, column, rows)
        case Not(item):
            found = pc.invert(evaluate(item, column, rows))
        case Always(value):
            found = pa.repeat(value, rows)
        case IsTrue(field):
            found = column(field)
        case IsNull(field):
            found = pc.is_null(column(field))
        case Like(field, pattern):
            found = pc.match_like(column(field), pattern)
        case Among(field, values):
            found = _is_among(column(field), values)
        case Comparison(sign, field, Field() as other):
            found = _compared(sign, column(field), column(other))
        case Comparison(sign, field, value):
            values = column(field)
            found = _compared(sign, values, pa.scalar(value, values.type))
    return found


def _joined(join: Callable[..., pa.Array], items: tuple[Predicate, ...], column: Column, rows: int) -> pa.Array:
    first, *others = (evaluate(item, column, rows) for item in items)
    for each in others:
        first = join(first, each)
    return first


def _is_among(found: pa.Array, values: tuple[Value, ...]) -> pa.Array:
    if pa.types.is_floating(found.type):
        # -0.0 is 0.0 in SQL, and another value in a set of Arrow's.
        found = pc.add(found, 0.0)
        values = tuple(float(value) + 0.0 for value in values)
    is_among = pc.is_in(found, value_set=pa.array(values, found.type))
    return pc.if_else(pc.is_valid(found), is_among, pa.scalar(None, pa.bool_()))


def _compared(sign: str, left: pa.Array, right: Any) -> pa.Array:
    """Compare as Spark does: NaN equals itself, and is greater than all else."""
    if not pa.types.is_floating(left.type):
        return COMPARE[sign](left, right)
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    equal = pc.or_kleene(pc.equal(left, right), pc.and_kleene(left_nan, right_nan))
    less = pc.or_kleene(pc.less(left, right), pc.and_kleene(pc.invert(left_nan), right_nan))
    match sign:
        case "=" | "<>":
            found = equal
        case "<" | ">=":
            found = less
        case _:
            found = pc.or_kleene(less, equal)
    return pc.invert(found) if sign in ("<>", ">=", ">") else found


COMPARE: Final[dict[str, Callable[..., pa.Array]]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
