"""Inspects each data file before it is registered: its size and footer, and whether readers will agree with Delta.

Spark can store days before 1582-10-15 in the Julian calendar, and converts them when it reads. No Iceberg reader does.
Arrow converts INT96 timestamps into 64-bit nanoseconds, which overflow silently before 1677 and after 2262.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import attrgetter, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.types import DateType, DoubleType, FloatType

from daemon.delta.actions import AddFile
from daemon.errors import CorruptInput, SyncError, Unsupported, errors_at
from daemon.mirror.calendar import DATETIME_SINCE, INT96_SINCE, LEGACY_DATETIME, LEGACY_INT96, is_legacy
from daemon.mirror.decision import NOT_OPENED
from daemon.mirror.footer import annotated_variants, mend_footer
from daemon.mirror.parquet import as_arrow, from_arrow, parse_footer, read_end
from daemon.mirror.substitution import find_mirror_name
from daemon.store.storage import FileIOStorage, check_path, map_files
from daemon.translate.file_schema import FileSchema, FileTraits, check_file_schema
from daemon.translate.metrics import Metrics, metrics_of
from daemon.translate.partition_values import internal_form, partition_of
from daemon.translate.readers import Fault, Faults, misreaders
from daemon.translate.schema import TableSchema

# Most footers are smaller: of a column some 200 bytes in each row group, and as many in what Spark adds.
FOOTER_READ_BYTES_MIN, FOOTER_READ_BYTES_MAX = 16 << 10, 64 << 10
COLUMN_BYTES = 512
ARROW_SCHEMA = b"ARROW:schema"
# In a schema as text.
VARIANT = "(Variant("
# No writer cuts the statistics of strings up to this many bytes.
STATISTICS_STRING_MAX = 16
# A number can have two spellings (0.0 and -0.0). With more distinct values, there is another number.
SPELLINGS_MAX = 2
# 1582-10-15 in days, and 1900-01-01 in microseconds: before 1900, old time zone offsets differ too.
FIRST_DAY = -141_427
FIRST_MICROS = -2_208_988_800_000_000
# 64-bit nanoseconds can hold this many microseconds before and after 1970.
INT96_MICROS_MAX = (1 << 63) // 1000


@dataclass
class Inspector:
    """Inspects data files of one table."""

    storage: FileIOStorage
    table: TableSchema
    # Files often share a schema, so each schema is checked once; with the paths of its leaves.
    _checked: dict[tuple[object, ...], tuple[FileSchema, tuple[str, ...]]] = field(default_factory=dict)

    def inspect(self, adds: Sequence[AddFile]) -> Inspection:
        """Inspect every file, and return their metrics and traits.

        Raises `ObjectMissing`; `CorruptInput` for a file that differs from the one that was added; `Unsupported` for a
        file that some reader would not show as Delta does.
        """
        inspected = map_files(self.inspect_file, adds, attrgetter("path"))
        with_mirrors = FileTraits(has_mirrors=any(find_mirror_name(add.path) for add in adds))
        return Inspection(
            metrics={add.path: metrics for add, (metrics, _) in zip(adds, inspected, strict=True)},
            traits=reduce(or_, (file.traits for _, file in inspected), with_mirrors),
        )

    def inspect_file(self, add: AddFile, end: bytes | None = None) -> tuple[Metrics, FileSchema]:
        """Inspect one file, of which `end` may be read already; see `read_end`. Raises as `inspect`.

        Returns its metrics, and its schema's properties.
        """
        try:
            check_path(add.path)
            return self.check_file(add, self._parse_footer(add, self.read_end(add) if end is None else end))
        except Unsupported as error:
            raise error.lift_by(error.lifted_by) from error.__cause__

    def read_end(self, add: AddFile) -> bytes:
        """Read a file's last bytes, with its footer.

        Raises `ObjectMissing`, and `CorruptInput` for another size, or a path that no file can have.
        """
        with suppress(Unsupported):
            check_path(add.path)
        expected = COLUMN_BYTES * len(self.table.schema.field_ids)
        return _read_end(
            self.storage,
            add.path,
            add.size,
            tail_bytes=min(max(expected, FOOTER_READ_BYTES_MIN), FOOTER_READ_BYTES_MAX),
            said_by="the Delta log",
        )

    def _parse_footer(self, add: AddFile, end: bytes) -> pq.FileMetaData:
        try:
            return parse_arrow_footer(end, add.path)
        except CorruptInput as error:
            if not self._is_mended(add, end):
                raise
            raise Unsupported(
                NOT_OPENED,
                path=add.path,
                hint="Rewrite the file with Spark, and set spark.sql.parquet.writeLegacyFormat to false.",
                lifted_by="footer",
            ) from error

    def _is_mended(self, add: AddFile, end: bytes) -> bool:
        """Return whether Arrow opens the file by a new footer. Then nothing is damaged, and Spark reads the file."""
        try:
            as_arrow(mend_footer(parse_footer(end, add.size).metadata, self.table))
        except SyncError:
            return False
        return True

    def check_file(self, add: AddFile, footer: pq.FileMetaData) -> tuple[Metrics, FileSchema]:
        """Check a file with its footer, or another one for the same pages. Returns and raises as `inspect_file`."""
        path = add.path
        metrics = metrics_of(add, self.table, footer.num_rows)
        with errors_at(path=path):
            found, leaf_paths = self.check_schema(footer)
            faults = Faults(self.table.readers, set(found.faults))
            self._check_partition(footer, leaf_paths, add, faults)
            check_calendar(footer.metadata or {}, found, metrics, self.table)
            self._check_int96(path, footer, found, metrics, faults)
        return metrics, replace(found, faults=faults.found)

    def check_schema(self, footer: pq.FileMetaData) -> tuple[FileSchema, tuple[str, ...]]:
        """Check the file's schema. Returns its properties, and the paths of its leaves in their order."""
        # The schema as text has all of its properties, and is several times faster to get than Arrow's. Its first line
        # is an address in memory. Arrow's types also depend on the schema that a writer with Arrow leaves.
        text = repr(footer.schema).partition("\n")[2]
        key = (text, footer.num_columns, (footer.metadata or {}).get(ARROW_SCHEMA))
        if key not in self._checked:
            schema = footer.schema.to_arrow_schema().remove_metadata()
            leaf_paths = tuple(footer.schema.column(number).path for number in range(footer.num_columns))
            variants = annotated_variants(from_arrow(footer)) if VARIANT in text else ()
            self._checked[key] = check_file_schema(schema, self.table, leaf_paths, variants), leaf_paths
        return self._checked[key]

    def _check_int96(
        self, path: str, footer: pq.FileMetaData, file: FileSchema, metrics: Metrics, faults: Faults
    ) -> None:
        for top_level in sorted(check_int96(file, metrics, self.table, faults)):
            named = str(self.table.schema.find_column_name(self.table.field_ids[top_level.lower()]))
            if misreaders(Fault.INT96_RANGE, faults.readers):
                self._check_moments(path, footer, top_level, named, faults)
            else:
                # Nobody minds what is in it, so it is not read.
                check_int96_micros(-math.inf, math.inf, named, faults)

    def _check_moments(self, path: str, footer: pq.FileMetaData, column: str, named: str, faults: Faults) -> None:
        """Check the timestamps of a column without statistics: inside lists and maps, or not indexed by Delta."""
        for values in self._read_column(path, footer, column):
            for moments in _timestamps(values):
                ends = pc.min_max(moments.cast(pa.int64())).as_py()
                if ends["min"] is not None:
                    check_int96_micros(ends["min"], ends["max"], named, faults)

    def _read_column(self, path: str, footer: pq.FileMetaData, column: str) -> Iterator[pa.Array]:
        try:
            with self.storage.open_input(path) as file:
                parquet = pq.ParquetFile(file, metadata=footer, coerce_int96_timestamp_unit="us")
                for batch in parquet.iter_batches(columns=[column]):
                    yield batch.column(0)
        except (pa.ArrowException, OSError) as error:
            hint = "Restore the file in the Delta table."
            raise CorruptInput(f"column {column} of the file cannot be read: {error}", path=path, hint=hint) from error

    def _differs(self, footer: pq.FileMetaData, place: int, path: str, value: Any) -> bool:
        """Return whether a column of the file has other values than `value`. Reads it if statistics are not enough."""
        chunks = [footer.row_group(number).column(place) for number in range(footer.num_row_groups)]
        singles = [_single_value(chunk) for chunk in chunks if chunk.num_values]
        if None not in singles:
            return any(each != (value,) for each in singles)
        name = footer.schema.column(place).path
        return not all(_holds_only(values, value) for values in self._read_column(path, footer, name))

    def _check_partition(
        self, footer: pq.FileMetaData, leaf_paths: Sequence[str], add: AddFile, faults: Faults
    ) -> None:
        """Check the partition columns in the file: some readers use their values, Delta uses the log's."""
        if not self.table.spec.fields:
            return
        values = partition_of(add, self.table, self.table.spec_id)
        # Delta ignores case in names.
        places = {leaf_path.lower(): number for number, leaf_path in enumerate(leaf_paths)}
        for partition, value in zip(self.table.spec.fields, values, strict=True):
            name = self.table.physical_names[partition.source_id]
            place = places.get(name.lower())
            column = str(self.table.schema.find_column_name(partition.source_id))
            kind = self.table.schema.find_type(partition.source_id)
            if place is None:
                is_number = value is not None and not (isinstance(value, float) and math.isnan(value))
                if isinstance(kind, DoubleType) and is_number and _as_float(value) != value:
                    faults.add(
                        Fault.PARTITION_DOUBLE,
                        column,
                        f"partition column {column}, which the file lacks, is {value} and no float",
                        hint="Set 'delta.feature.materializePartitionColumns' = 'supported' in the Delta table, and "
                        "rewrite the file in Delta, for example with an UPDATE of its rows. Or partition the "
                        "table by another column.",
                        lifted_by="rewrite",
                    )
                continue
            is_int96 = footer.schema.column(place).physical_type == "INT96"
            if is_int96 and value is not None:
                check_int96_micros(value, value, column, faults)
            if self._differs(footer, place, add.path, _as_float(value) if isinstance(kind, FloatType) else value):
                said, null = repr(add.partition_values.get(name)), ""
                if value is None:
                    said, null = "null", ", or null where they have an empty string or __HIVE_DEFAULT_PARTITION__"
                faults.add(
                    Fault.PARTITION_VALUE,
                    column,
                    f"partition column {column} is {said} in the Delta log and something else in the file",
                    hint=f"Rewrite the file with Delta. Its rows must have the log's value{null}.",
                    lifted_by="rewrite",
                )


def read_footer(storage: FileIOStorage, path: str, size: int, *, said_by: str = "the Delta log") -> pq.FileMetaData:
    """Read the footer of a file that has `size` bytes, as `said_by` says, with one request if it is small.

    Raises `ObjectMissing`, and `CorruptInput` if the file has another size or no footer.
    """
    end = _read_end(storage, path, size, tail_bytes=FOOTER_READ_BYTES_MAX, said_by=said_by)
    return parse_arrow_footer(end, path)


def _read_end(storage: FileIOStorage, path: str, size: int, *, tail_bytes: int, said_by: str) -> bytes:
    size_there, end = read_end(storage, path, tail_bytes)
    if size_there != size:
        raise CorruptInput(
            f"the file has {size_there} bytes, but {said_by} says {size}",
            path=path,
            hint="If the file was cut or replaced, restore it, and `dvsync resume` the table. If the log is wrong, "
            "Delta itself may show too few rows: take the file out of the Delta table with RESTORE or an overwrite, "
            "and append its rows from the file; dvsync then continues by itself.",
        )
    return end


def parse_arrow_footer(end: bytes, path: str) -> pq.FileMetaData:
    """Parse the footer in the last bytes of a file. Raises `CorruptInput`."""
    try:
        return pq.ParquetFile(pa.BufferReader(end)).metadata
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        # Arrow raises OSError, too, for a broken footer.
        what, hint = "the file has no Parquet footer that can be read", "Restore the file in the Delta table."
        raise CorruptInput(f"{what}: {error}", path=path, hint=hint) from error


def _single_value(chunk: pq.ColumnChunkMetaData) -> tuple[Any] | None:
    """Return the single value of a chunk, `(None,)` for null; None if statistics do not prove that it is single."""
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        return None
    if statistics.null_count == chunk.num_values:
        return (None,)
    if statistics.null_count or not statistics.has_min_max:
        return None
    try:
        low, high = internal_form(statistics.min), internal_form(statistics.max)
    except (ValueError, OverflowError):
        return None
    # Some writers cut the statistics of long strings and bytes, and statistics ignore NaN.
    stored = low.encode() if isinstance(low, str) else low
    is_exact = len(stored) <= STATISTICS_STRING_MAX if isinstance(stored, bytes) else not isinstance(low, float)
    return (low,) if is_exact and low == high else None


def _holds_only(values: pa.Array, value: Any) -> bool:
    """Return whether each of `values`, nulls included, is `value`."""
    try:
        # Zeros and NaN have several spellings.
        found = [internal_form(each) for each in values.unique()[: SPELLINGS_MAX + 1].to_pylist()]
    except (ValueError, OverflowError):
        return False  # Python cannot express this date or text, so no partition tuple has it.
    return len(found) <= SPELLINGS_MAX and all(
        each == value or (each != each and value != value)  # noqa: PLR0124
        for each in found
    )


def _as_float(value: float | None) -> float | None:
    return None if value is None else float(pa.scalar(value, pa.float32()).as_py())


def _timestamps(array: pa.Array) -> Iterator[pa.Array]:
    kind = array.type
    if pa.types.is_timestamp(kind):
        yield array
    elif pa.types.is_struct(kind):
        for part in array.flatten():
            yield from _timestamps(part)
    elif pa.types.is_map(kind):
        yield from _timestamps(array.keys)
        yield from _timestamps(array.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _timestamps(array.flatten())


@dataclass(frozen=True)
class Inspection:
    """The result of inspecting files."""

    metrics: Mapping[str, Metrics]
    traits: FileTraits


def inspect(storage: FileIOStorage, table: TableSchema, adds: Iterable[AddFile]) -> Iterator[Inspection]:
    """Inspect the files that one Spark task is given."""
    yield Inspector(storage, table).inspect(list(adds))


def check_calendar(footer: Mapping[bytes, bytes], file: FileSchema, metrics: Metrics, table: TableSchema) -> None:
    """Raise `Unsupported` naming a column that has, or may have, days of the Julian calendar."""
    legacy: set[int] = set()
    if is_legacy(footer, LEGACY_DATETIME, DATETIME_SINCE):
        legacy |= file.days
    if is_legacy(footer, LEGACY_INT96, INT96_SINCE):
        legacy |= file.int96.keys()
    if not legacy:
        return
    leaves = {field.field_id for field in table.leaves.values()}
    partitions = {field.source_id for field in table.spec.fields}
    for field_id in sorted(legacy - partitions):
        field = table.schema.find_field(field_id)
        lower, is_date = metrics.lower_bounds.get(field_id), isinstance(field.field_type, DateType)
        is_null = metrics.null_value_counts.get(field_id) == metrics.record_count
        is_modern = is_null or (lower is not None and _number(lower) >= (FIRST_DAY if is_date else FIRST_MICROS))
        if not (field_id in leaves and is_modern):
            raise Unsupported(
                f"column {table.schema.find_column_name(field_id)} of the file has or may have values before "
                f"{'1582-10-15' if is_date else '1900'}, stored in the Julian calendar: "
                "Iceberg readers would show wrong days",
                hint="Rewrite the file with Spark, and set spark.sql.parquet.datetimeRebaseModeInWrite and "
                "spark.sql.parquet.int96RebaseModeInWrite to CORRECTED.",
                lifted_by="rewrite",
            )


def check_int96(file: FileSchema, metrics: Metrics, table: TableSchema, faults: Faults) -> set[str]:
    """Check the INT96 columns by their statistics. Raises as `check_int96_micros`.

    Returns the top-level columns, by their names in the file, whose statistics do not show the range of their values.
    """
    partitions = {field.source_id for field in table.spec.fields}
    unproven = set()
    for field_id, top_level in file.int96.items():
        column = str(table.schema.find_column_name(field_id))
        if field_id in metrics.lower_bounds:
            lower, upper = _number(metrics.lower_bounds[field_id]), _number(metrics.upper_bounds[field_id])
            check_int96_micros(lower, upper, column, faults)
        elif field_id in metrics.beyond:
            check_int96_micros(-math.inf, math.inf, column, faults)
        elif field_id not in partitions and metrics.null_value_counts.get(field_id) != metrics.record_count:
            unproven.add(top_level)
    return unproven


def check_int96_micros(lower: float, upper: float, column: str, faults: Faults) -> None:
    """Check that INT96 timestamps of `column` fit into 64-bit nanoseconds. Raises as `Faults.add`."""
    if lower < -INT96_MICROS_MAX or upper > INT96_MICROS_MAX:
        faults.add(
            Fault.INT96_RANGE,
            column,
            f"column {column} of the file has INT96 timestamps before 1677 or after 2262",
            hint="Write them with spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS.",
            lifted_by="rewrite",
        )


def _number(bound: bytes) -> int:
    """Decode a bound in days or microseconds. Iceberg spec, "Binary Single-Value Serialization": little-endian."""
    return int.from_bytes(bound, "little", signed=True)
