"""The first level: compares the two metadata trees with each other, and with the footers of the files in them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from daemon.delta.actions import AddFile
from daemon.errors import CorruptInput, ObjectMissing, Unsupported
from daemon.iceberg.manifests import content_span, first_row_id, referenced_data_file
from daemon.iceberg.position_deletes import count_served
from daemon.iceberg.puffin import Blob, read_blobs
from daemon.iceberg.references import live_entries
from daemon.pipeline.inspection import STATISTICS_STRING_MAX, Inspector, read_footer
from daemon.store.storage import FileIOStorage, map_files
from daemon.translate.metrics import Metrics, parse_stats
from daemon.translate.partition_values import encode_partition, partition_of
from daemon.translate.schema import TableSchema
from daemon.verify.findings import Fault, Findings, Level, Sample
from daemon.verify.footer import ColumnRange, column_ranges
from state import Difference

# Footers that are read before the next check whether to stop.
FOOTERS_AT_ONCE = 256


class FilePair(NamedTuple):
    """A data file as Delta and as Iceberg have it. `deleted_rows` counts the rows that Iceberg's readers leave out."""

    add: AddFile
    entry: ManifestEntry
    deleted_rows: int


@dataclass
class MetadataCheck:
    """Compares a snapshot with Delta's live files. Only the files of one sample are in memory at a time.

    An `inspector` checks the columns of each file; None for an older snapshot, whose columns may have had other ids.
    Once `stop` is set, no more files are compared, and the result is of no use.
    """

    table: Table
    snapshot: Snapshot
    schema: TableSchema
    source: FileIOStorage  # of the data files
    storage: FileIOStorage
    inspector: Inspector | None
    findings: Findings
    stop: Event
    files: int = 0
    rows: int = 0
    _puffin: tuple[str, Sequence[Blob]] = ("", ())

    def compare(self, adds: Iterable[AddFile], sample: Sample) -> list[FilePair]:
        """Compare `adds`, which are all of `sample`, with all that Iceberg has in it. Returns the files in both."""
        in_delta = {add.path: add for add in adds}
        in_iceberg = self._read_entries(sample)
        deleted = self._count_deleted(in_iceberg, sample)
        for path in sorted(in_delta.keys() - in_iceberg.keys()):
            self._found(Fault.FILE_MISSING, path, "Delta has the file, and Iceberg does not")
        for path in sorted(in_iceberg.keys() - in_delta.keys()):
            self._found(Fault.FILE_SURPLUS, path, "Iceberg has the file, and Delta does not")
        pairs = [
            FilePair(in_delta[path], in_iceberg[path], deleted[path]) for path in sorted(in_delta.keys() & in_iceberg)
        ]
        for start in range(0, len(pairs), FOOTERS_AT_ONCE):
            if self.stop.is_set():
                return []
            some = pairs[start : start + FOOTERS_AT_ONCE]
            for differences in map_files(self._compare_file, some, lambda pair: pair.add.path):
                for difference in differences:
                    self.findings.add(difference)
        self.files += len(in_delta)
        self.rows += sum(pair.entry.data_file.record_count - pair.deleted_rows for pair in pairs)
        return pairs

    def _found(self, fault: Fault, path: str, detail: str) -> None:
        self.findings.add(Difference(Level.METADATA, fault, path, detail))

    def _read_entries(self, sample: Sample) -> dict[str, ManifestEntry]:
        entries: dict[str, ManifestEntry] = {}
        for entry, manifest in live_entries(self.table, self.snapshot, ManifestContent.DATA):
            path = entry.data_file.file_path
            if sample.has(path):
                if path in entries:
                    self._found(Fault.FILE_TWICE, path, f"readers return its rows twice; one entry is in {manifest}")
                entries[path] = entry
        return entries

    def _count_deleted(self, data_entries: Mapping[str, ManifestEntry], sample: Sample) -> Counter[str]:
        """Count by data file the positions of the delete files that apply to it. Iceberg spec, "Scan Planning"."""
        deleted: Counter[str] = Counter()
        serving: dict[str, list[DataFile]] = defaultdict(list)
        for entry, _ in live_entries(self.table, self.snapshot, ManifestContent.DELETES):
            delete_file = entry.data_file
            single = referenced_data_file(delete_file)
            if single is not None and not sample.has(single):
                continue
            try:
                # Every part reads a shared delete file, and one of them tells of it.
                self._check_delete_file(delete_file)
                served = {path: count for path, count in self._served(delete_file).items() if sample.has(path)}
            except (CorruptInput, ObjectMissing) as error:
                if single is not None or sample.has(delete_file.file_path):
                    self._found(Fault.DELETE_FILE_DAMAGED, delete_file.file_path, error.message)
                continue
            for path, count in served.items():
                why = _not_applied(entry, data_entries.get(path))
                if why:
                    self._found(Fault.DELETE_FILE, delete_file.file_path, f"{why}: {path}")
                else:
                    deleted[path] += count
                    serving[path].append(delete_file)
        for path, files in serving.items():
            # Iceberg spec, "Deletion Vectors": at most one a data file, and no position deletes beside it.
            if len(files) > 1 and any(file.file_format is FileFormat.PUFFIN for file in files):
                detail = f"its delete files are {', '.join(sorted(file.file_path for file in files))}"
                self._found(Fault.VECTOR_NOT_ALONE, path, detail)
        return deleted

    def _served(self, delete_file: DataFile) -> dict[str, int]:
        try:
            return count_served(self.storage, delete_file)
        except (ValueError, LookupError) as error:  # Arrow's, for bytes that are not Parquet, and for other columns
            raise CorruptInput(str(error), hint="") from error

    def _check_delete_file(self, delete_file: DataFile) -> None:
        if delete_file.file_format is FileFormat.PUFFIN:
            self._check_vector(delete_file)
            return
        path, size = delete_file.file_path, delete_file.file_size_in_bytes
        rows = read_footer(self.storage, path, size, said_by="its manifest").num_rows
        if rows != delete_file.record_count:
            raise CorruptInput(f"it has {rows} positions, but its entry says {delete_file.record_count}", hint="")

    def _check_vector(self, entry: DataFile) -> None:
        """Iceberg spec, "Deletion Vectors": the Puffin file's footer must have a blob where the entry says."""
        path, (offset, size) = entry.file_path, content_span(entry) or (0, 0)
        expected = Blob(referenced_data_file(entry) or "", offset, size, entry.record_count)
        if self._puffin[0] != path:
            # The entries of a Puffin file are next to each other.
            self._puffin = path, read_blobs(self.storage, path, entry.file_size_in_bytes)
        if expected not in self._puffin[1]:
            raise CorruptInput(
                f"its footer has no blob of {expected.cardinality} positions of {expected.data_file} at byte {offset}",
                hint="",
            )

    def _compare_file(self, pair: FilePair) -> list[Difference]:
        path, found = pair.add.path, self._differ(pair)
        return [Difference(Level.METADATA, fault, path, detail, column) for fault, detail, column in found]

    def _differ(self, pair: FilePair) -> Iterator[tuple[Fault, str, str | None]]:
        """Yield the kind of each difference, what it is, and its column."""
        add, data_file = pair.add, pair.entry.data_file
        if add.size != data_file.file_size_in_bytes:
            yield Fault.SIZE, f"{data_file.file_size_in_bytes} bytes in Iceberg, {add.size} in Delta", None
        # Snapshots from before an upgrade have none.
        has_row_id = self.schema.has_row_ids and self.snapshot.first_row_id is not None and add.first_row_id is not None
        if has_row_id and first_row_id(data_file) != add.first_row_id:
            yield Fault.ROW_ID, f"{first_row_id(data_file)} in Iceberg, {add.first_row_id} in Delta", None
        cardinality = add.deletion_vector.cardinality if add.deletion_vector else 0
        if cardinality != pair.deleted_rows:
            yield Fault.DELETED_COUNT, f"{pair.deleted_rows} in Iceberg, {cardinality} in Delta", None
        expected = encode_partition(Record(*partition_of(add, self.schema, data_file.spec_id)))
        if (partition := encode_partition(data_file.partition)) != expected:
            yield Fault.PARTITION, f"{partition} in Iceberg, {expected} in Delta", None
        try:
            footer = read_footer(self.source, add.path, add.size)
        except (CorruptInput, ObjectMissing) as error:
            yield Fault.FILE_DAMAGED, error.message, None
            return
        if footer.num_rows != data_file.record_count:
            yield Fault.ROW_COUNT, f"{data_file.record_count} in Iceberg, {footer.num_rows} in the file", None
        if self.inspector and (why := _misread(self.inspector, footer)):
            yield Fault.FILE_SCHEMA, why, None
        yield from self._compare_metrics(add, data_file, footer)

    def _compare_metrics(
        self, add: AddFile, data_file: DataFile, footer: pq.FileMetaData
    ) -> Iterator[tuple[Fault, str, str]]:
        """Compare with the footer; if rows are deleted, which metrics may leave out, with Delta's statistics."""
        leaves = self.schema.leaves
        ranges, where = column_ranges(footer, leaves), "in the file"
        if has_deleted_rows := bool(add.deletion_vector and add.deletion_vector.cardinality):
            metrics = parse_stats(add.stats, leaves, footer.num_rows, has_dv=True)
            ranges, where = ((column, _range_in(metrics, column)) for column in leaves.values()), "in Delta"
        for column, found in ranges:
            name = str(self.schema.schema.find_column_name(column.field_id))
            nulls = (data_file.null_value_counts or {}).get(column.field_id)
            # Nulls that were deleted later may still be counted.
            if (
                nulls is not None
                and found.null_count is not None
                and (nulls < found.null_count if has_deleted_rows else nulls != found.null_count)
            ):
                yield Fault.NULL_COUNT, f"{nulls} in Iceberg, {found.null_count} {where}", name
            lower, upper = data_file.lower_bounds or {}, data_file.upper_bounds or {}
            bounds, ends = _bounds(lower, upper, column), found.ends
            if bounds and ends and not _encloses(bounds, ends):
                detail = f"{bounds[0]!r} to {bounds[1]!r} in Iceberg, {ends[0]!r} to {ends[1]!r} {where}"
                yield Fault.BOUNDS, detail, name


def _misread(inspector: Inspector, footer: pq.FileMetaData) -> str | None:
    """Return why a reader does not find Delta's columns in a file; None if all readers do."""
    try:
        found, _ = inspector.check_schema(footer)
    except Unsupported as error:
        return error.message
    unmapped = sorted(".".join(path) for path in found.traits.unmapped)
    return f"the name mapping lacks {', '.join(unmapped)}" if unmapped else None


def _not_applied(delete: ManifestEntry, data: ManifestEntry | None) -> str | None:
    """Return why readers do not apply a delete file to a data file; None if they do."""
    if data is None:
        return "the table does not show its data file"
    place, data_place = _partition_of(delete.data_file), _partition_of(data.data_file)
    if place != data_place:
        return f"it is in {place}, and its data file in {data_place}"
    if (delete.sequence_number or 0) < (data.sequence_number or 0):
        return f"its sequence number {delete.sequence_number} is below that of its data file, {data.sequence_number}"
    return None


def _partition_of(data_file: DataFile) -> str:
    return f"partition {encode_partition(data_file.partition)} of spec {data_file.spec_id}"


def _range_in(metrics: Metrics, column: NestedField) -> ColumnRange:
    ends = _bounds(metrics.lower_bounds, metrics.upper_bounds, column)
    return ColumnRange(metrics.null_value_counts.get(column.field_id), ends)


def _bounds(lower: Mapping[int, bytes], upper: Mapping[int, bytes], column: NestedField) -> tuple[Any, Any] | None:
    ends = lower.get(column.field_id), upper.get(column.field_id)
    if None in ends:
        return None
    low, high = (from_bytes(column.field_type, each) for each in ends)  # type: ignore[arg-type]
    return low, high


def _encloses(bounds: tuple[Any, Any], ends: tuple[Any, Any]) -> bool:
    (lower, upper), (low, high) = bounds, ends
    if isinstance(low, str):
        # Writers may cut long strings in statistics, so a long one is only near the true end.
        low = low if len(low.encode()) <= STATISTICS_STRING_MAX else high
        high = high if len(ends[1].encode()) <= STATISTICS_STRING_MAX else ends[0]
    return bool(lower <= low and high <= upper)
