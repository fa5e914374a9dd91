"""A reader of Iceberg tables by the specification alone: it knows neither dvsync nor PyIceberg.

Tables of top-level columns on the local file system, formats 2 and 3. It believes every bound, count and sequence
number, as fast readers do: a table that lies loses rows here. `check` asserts what the specification demands.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.kit.avro_file import read_avro

Row = tuple[Any, ...]
# A column and the value that it must have; None: it is null.
Filter = tuple[str, Any]

# Iceberg spec, "Manifests", "Data File Fields".
STATUS, DATA_FILE, SEQUENCE_NUMBER = 0, 2, 3
EXISTING, ADDED, DELETED = range(3)
CONTENT, PATH, FORMAT, PARTITION, RECORDS, SIZE = 134, 100, 101, 102, 103, 104
VALUE_COUNTS, NULL_COUNTS, LOWER, UPPER = 109, 110, 125, 128
FIRST_ROW_ID, REFERENCED, OFFSET, LENGTH = 142, 143, 144, 145
# "Manifest Lists".
MANIFEST_PATH, MANIFEST_LENGTH, SPEC_ID, MANIFEST_CONTENT, MANIFEST_SEQUENCE, MIN_SEQUENCE = (
    500,
    501,
    502,
    517,
    515,
    516,
)
# Files and rows of each status.
COUNTS = {ADDED: (504, 512), EXISTING: (505, 513), DELETED: (506, 514)}
SUMMARIES, CONTAINS_NULL, SUMMARY_LOWER, SUMMARY_UPPER, MANIFEST_FIRST_ROW_ID = 507, 509, 510, 511, 520
# "Position Delete Files" and "Reserved Field IDs".
FILE_PATH_ID = 2147483546
# Puffin spec, "deletion-vector-v1 blob type"; Roaring's format specification.
PUFFIN_MAGIC, VECTOR_MAGIC = b"PFA1", b"\xd1\xd3\x39\x64"
NO_RUNS_COOKIE, RUNS_COOKIE, OFFSETS_MIN, ARRAY_MAX = 12346, 12347, 4, 4096

# "Parquet" and the promotions of "Schema Evolution": how a column of each type may be stored.
STORED_AS = {
    "int": {pa.int32()},
    "long": {pa.int32(), pa.int64()},
    "float": {pa.float32()},
    "double": {pa.float32(), pa.float64()},
    "string": {pa.string()},
}
ARROW = {"int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(), "string": pa.string()}
BOUNDS = {("int", 4): "<i", ("long", 4): "<i", ("long", 8): "<q"}
BOUNDS |= {("float", 4): "<f", ("double", 4): "<f", ("double", 8): "<d"}


@dataclass(frozen=True)
class Entry:
    """A live manifest entry with what it inherits; `file` is its data file record, by field ids."""

    file: Mapping[int, Any]
    spec_id: int
    sequence_number: int
    first_row_id: int | None

    @property
    def path(self) -> str:
        return str(self.file[PATH])

    @property
    def partition(self) -> tuple[int, tuple[Any, ...]]:
        return self.spec_id, tuple(self.file[PARTITION].values())

    @property
    def size(self) -> int:
        """The bytes that are read of the file: of a Puffin file, the vector alone."""
        return int(self.file[LENGTH] if self.file.get(LENGTH) is not None else self.file[SIZE])


class SpecTable:
    """One snapshot of a table, the current one if `snapshot_id` is None; the schema is the table's."""

    def __init__(self, metadata_location: str, snapshot_id: int | None = None) -> None:
        self.metadata = json.loads(local(metadata_location).read_text())
        wanted = self.metadata.get("current-snapshot-id") if snapshot_id is None else snapshot_id
        self.snapshot = next((each for each in self.metadata["snapshots"] if each["snapshot-id"] == wanted), None)
        schema = next(
            each for each in self.metadata["schemas"] if each["schema-id"] == self.metadata["current-schema-id"]
        )
        self.fields = schema["fields"]
        self.specs = {spec["spec-id"]: spec["fields"] for spec in self.metadata["partition-specs"]}
        mapping = json.loads(self.metadata["properties"].get("schema.name-mapping.default", "[]"))
        self.ids_by_name = {name: field["field-id"] for field in mapping for name in field["names"]}
        self.manifests = read_avro(local(self.snapshot["manifest-list"])) if self.snapshot else []
        self.data: list[Entry] = []
        self.deletes: list[Entry] = []
        self._live_rows: dict[str, list[Row]] = {}
        self._summaries: dict[str, tuple[dict[int, Any], ...]] = {}
        for manifest in self.manifests:
            entries = list(_live_entries(manifest))
            (self.deletes if manifest[MANIFEST_CONTENT] else self.data).extend(entries)
            self._summaries |= {entry.path: tuple(manifest[SUMMARIES] or ()) for entry in entries}

    def rows(self, where: Filter | None = None) -> list[Row]:
        """The rows, in the order of the schema's columns; only those that fit `where`, if files and bounds let it."""
        rows: list[Row] = []
        for entry in self.data:
            if where is None or self._may_have(entry, where):
                if entry.path not in self._live_rows:
                    deleted = self._deleted_positions(entry)
                    found = enumerate(self._read(entry))
                    self._live_rows[entry.path] = [row for position, row in found if position not in deleted]
                rows += self._live_rows[entry.path]
        if where is None:
            return rows
        place = next(at for at, field in enumerate(self.fields) if field["name"] == where[0])
        return [row for row in rows if row[place] == where[1]]

    def _deleted_positions(self, entry: Entry) -> set[int]:
        """Iceberg spec, "Scan Planning": the positions of a data file that are deleted, each by one delete file."""
        felt = [delete for delete in self.deletes if _applies(delete, entry)]
        vectors = [delete for delete in felt if delete.file[FORMAT].upper() == "PUFFIN"]
        assert len(vectors) < 2, f"{entry.path} has {len(vectors)} deletion vectors"
        positions = [at for delete in vectors or felt for path, at in _read_deletes(delete) if path == entry.path]
        assert len(set(positions)) == len(positions), f"a position of {entry.path} is deleted twice"
        assert max(positions, default=-1) < entry.file[RECORDS], f"a position of {entry.path} is beyond its rows"
        return set(positions)

    def check(self) -> None:
        """AssertionError for what the specification forbids, or what makes some readers show other rows than others."""
        paths = Counter(entry.path for entry in self.data)
        assert not (twice := [path for path, count in paths.items() if count > 1]), f"live twice: {twice}"
        for delete in self.deletes:
            found = list(_read_deletes(delete))
            assert len(found) == delete.file[RECORDS], f"{delete.path} has {len(found)} positions"
            assert found == sorted(found), f"{delete.path} is not sorted"
            # All that it names: a delete file that outlives its data file hits one that comes back.
            applied = {entry.path for entry in self.data if _applies(delete, entry)}
            assert {path for path, _ in found} <= applied, f"{delete.path} deletes from files that do not feel it"
        if self.metadata["format-version"] > 2:
            self._check_row_ids()
        if self.snapshot:
            self._check_totals(self.snapshot["summary"])
        for entry in (*self.data, *self.deletes):
            assert entry.sequence_number <= self.metadata["last-sequence-number"], f"{entry.path} is of the future"
            assert local(entry.path).stat().st_size == entry.file[SIZE], f"{entry.path} has another size"

    def _check_row_ids(self) -> None:
        spans = []
        for entry in self.data:
            assert entry.first_row_id is not None, f"{entry.path} has no first row id"
            spans.append((entry.first_row_id, entry.first_row_id + entry.file[RECORDS]))
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans)), f"row ids overlap: {spans}"
        assert not spans or spans[-1][1] <= self.metadata["next-row-id"], "row ids beyond next-row-id"

    def _check_totals(self, summary: Mapping[str, str]) -> None:
        expected = {
            "total-data-files": len(self.data),
            "total-delete-files": len(self.deletes),
            "total-records": sum(entry.file[RECORDS] for entry in self.data),
            "total-position-deletes": sum(entry.file[RECORDS] for entry in self.deletes),
            "total-equality-deletes": 0,
            "total-files-size": sum(entry.size for entry in (*self.data, *self.deletes)),
        }
        assert {name: int(summary[name]) for name in expected} == expected, "totals of the summary"

    def _may_have(self, entry: Entry, where: Filter) -> bool:
        """Iceberg spec, "Scan Planning": whether partitions, counts and bounds leave a chance for a row."""
        field = next(field for field in self.fields if field["name"] == where[0])
        field_id, kind, value = field["id"], field["type"], where[1]
        for place, part in enumerate(self.specs[entry.spec_id]):
            if part["source-id"] == field_id and part["transform"] == "identity":
                summary = self._summaries[entry.path][place]
                lower, upper = summary[SUMMARY_LOWER], summary[SUMMARY_UPPER]
                if value is None:
                    return summary[CONTAINS_NULL] and entry.file[PARTITION][part["field-id"]] is None
                in_manifest = lower is not None and _is_between(value, lower, upper, kind)
                return in_manifest and entry.file[PARTITION][part["field-id"]] == value
        counts, nulls = (_by_id(entry, counted).get(field_id) for counted in (VALUE_COUNTS, NULL_COUNTS))
        if value is None:
            return nulls != 0
        if nulls is not None and nulls == counts:
            return False
        return _is_between(value, _by_id(entry, LOWER).get(field_id), _by_id(entry, UPPER).get(field_id), kind)

    def _read(self, entry: Entry) -> list[Row]:
        found = pq.ParquetFile(local(entry.path)).read()
        assert found.num_rows == entry.file[RECORDS], f"{entry.path} has {found.num_rows} rows"
        columns = [self._column(entry, field, found) for field in self.fields]
        return list(zip(*columns, strict=True))

    def _column(self, entry: Entry, field: Mapping[str, Any], found: pa.Table) -> list[Any]:
        """Iceberg spec, "Column Projection": by id, from the partition, by the name mapping, or the default."""
        ids = [int((each.metadata or {}).get(b"PARQUET:field_id", -1)) for each in found.schema]
        if field["id"] not in ids:
            for part in self.specs[entry.spec_id]:
                if part["source-id"] == field["id"] and part["transform"] == "identity":
                    return [entry.file[PARTITION][part["field-id"]]] * found.num_rows
            if max(ids, default=-1) < 0:
                ids = [self.ids_by_name.get(name, -1) for name in found.column_names]
        if field["id"] not in ids:
            return [field.get("initial-default")] * found.num_rows
        assert ids.count(field["id"]) == 1, f"{entry.path} has column {field['name']} twice"
        column = found.column(ids.index(field["id"]))
        assert column.type in STORED_AS[field["type"]], f"{field['name']} of {entry.path} is {column.type}"
        return list(column.cast(ARROW[field["type"]]).to_pylist())


def local(location: str) -> Path:
    """The file that a location names as it is: Iceberg's locations are not escaped."""
    return Path(location.removeprefix("file://"))


def _by_id(entry: Entry, metric: int) -> Mapping[int, Any]:
    return entry.file.get(metric) or {}


def _is_between(value: Any, lower: bytes | None, upper: bytes | None, kind: str) -> bool:
    return (lower is None or _bound(lower, kind) <= value) and (upper is None or value <= _bound(upper, kind))


def _bound(data: bytes, kind: str) -> Any:
    """Iceberg spec, "Binary single-value serialization"; bounds from before a promotion are shorter."""
    return data.decode() if kind == "string" else struct.unpack(BOUNDS[kind, len(data)], data)[0]


def _live_entries(manifest: Mapping[int, Any]) -> Iterator[Entry]:
    """Iceberg spec, "Sequence Number Inheritance" and "First Row ID Inheritance"."""
    path = local(manifest[MANIFEST_PATH])
    assert path.stat().st_size == manifest[MANIFEST_LENGTH], f"{path} has another length"
    records = read_avro(path)
    for status, (files, rows) in COUNTS.items():
        counted = [record[DATA_FILE][RECORDS] for record in records if record[STATUS] == status]
        assert (manifest[files], manifest[rows]) == (len(counted), sum(counted)), f"{path} has other counts"
    next_row_id = manifest.get(MANIFEST_FIRST_ROW_ID)
    for record in records:
        if record[STATUS] == DELETED:
            continue
        file, sequence_number, first_row_id = record[DATA_FILE], record[SEQUENCE_NUMBER], None
        if sequence_number is None:
            assert record[STATUS] == ADDED, f"an existing entry of {path} has no sequence number"
            sequence_number = manifest[MANIFEST_SEQUENCE]
        assert sequence_number >= manifest[MIN_SEQUENCE], f"{path} has older entries than it says"
        if not manifest[MANIFEST_CONTENT]:
            first_row_id = file.get(FIRST_ROW_ID)
            if first_row_id is None and next_row_id is not None:
                first_row_id, next_row_id = next_row_id, next_row_id + file[RECORDS]
        yield Entry(file, manifest[SPEC_ID], sequence_number, first_row_id)


def _applies(delete: Entry, entry: Entry) -> bool:
    """Iceberg spec, "Scan Planning"; a path's bounds tell as much as `referenced_data_file`."""
    lower, upper = (_by_id(delete, bound).get(FILE_PATH_ID, entry.path.encode()) for bound in (LOWER, UPPER))
    return (
        delete.sequence_number >= entry.sequence_number
        and delete.partition == entry.partition
        and delete.file.get(REFERENCED) in (None, entry.path)
        and _bound(lower, "string") <= entry.path <= _bound(upper, "string")
    )


def _read_deletes(delete: Entry) -> Iterable[tuple[str, int]]:
    if delete.file[FORMAT].upper() == "PUFFIN":
        return [(delete.file[REFERENCED], position) for position in _read_vector(delete)]
    found = pq.ParquetFile(local(delete.path)).read()
    return list(zip(found["file_path"].to_pylist(), found["pos"].to_pylist(), strict=True))


def _read_vector(delete: Entry) -> list[int]:
    """The positions of a deletion vector, held against its Puffin file's footer. Puffin spec, "File structure"."""
    data, offset, length = local(delete.path).read_bytes(), delete.file[OFFSET], delete.file[LENGTH]
    size, flags = struct.unpack("<iI", data[-12:-4])
    footer, magics = data[-12 - size : -12], (data[:4], data[-16 - size : -12 - size], data[-4:])
    assert set(magics) == {PUFFIN_MAGIC} and not flags, f"{delete.path} is no plain Puffin file"
    (told,) = (blob for blob in json.loads(footer)["blobs"] if blob["offset"] == offset)
    properties = {"referenced-data-file": delete.file[REFERENCED], "cardinality": str(delete.file[RECORDS])}
    expected = {"type": "deletion-vector-v1", "offset": offset, "length": length, "properties": properties}
    assert {name: told.get(name) for name in expected} == expected, f"{delete.path} tells of another vector"
    assert "compression-codec" not in told, f"{delete.path} has a compressed vector"
    blob = data[offset : offset + length]
    counted, magic, crc = *struct.unpack(">I4s", blob[:8]), struct.unpack(">I", blob[-4:])[0]
    assert (counted, magic) == (length - 8, VECTOR_MAGIC), f"{delete.path} has no vector at {offset}"
    assert crc == zlib.crc32(blob[4:-4]), f"the vector at {offset} of {delete.path} is damaged"
    return _read_roaring64(blob[8:-4])


def _read_roaring64(data: bytes) -> list[int]:
    """Roaring's format specification, "Extension for 64-bit implementations" (portable)."""
    positions: list[int] = []
    (count,), at = struct.unpack_from("<Q", data), 8
    for _ in range(count):
        (high,) = struct.unpack_from("<I", data, at)
        lows, at = _read_roaring32(data, at + 4)
        positions += [high << 32 | low for low in lows]
    assert at == len(data), "bytes after the last bitmap"
    return positions


def _read_roaring32(data: bytes, at: int) -> tuple[list[int], int]:
    """The values of the bitmap at `at`, and where it ends."""
    (cookie,), at = struct.unpack_from("<I", data, at), at + 4
    if cookie & 0xFFFF == RUNS_COOKIE:
        count = (cookie >> 16) + 1
        flags, at = int.from_bytes(data[at : at + (count + 7) // 8], "little"), at + (count + 7) // 8
    else:
        assert cookie == NO_RUNS_COOKIE, f"{cookie} begins no bitmap"
        (count,), flags, at = struct.unpack_from("<I", data, at), 0, at + 4
    keys = [struct.unpack_from("<HH", data, at + 4 * number) for number in range(count)]
    has_offsets = cookie == NO_RUNS_COOKIE or count >= OFFSETS_MIN
    at += 8 * count if has_offsets else 4 * count
    values: list[int] = []
    for number, (key, less_one) in enumerate(keys):
        lows, at = _read_container(data, at, less_one + 1, has_runs=bool(flags >> number & 1))
        assert len(lows) == less_one + 1, "a container has another cardinality"
        values += [key << 16 | low for low in lows]
    return values, at


def _read_container(data: bytes, at: int, count: int, *, has_runs: bool) -> tuple[list[int], int]:
    if has_runs:
        (runs,) = struct.unpack_from("<H", data, at)
        pairs = struct.unpack_from(f"<{2 * runs}H", data, at + 2)
        spans = zip(pairs[::2], pairs[1::2], strict=True)
        return [low for first, more in spans for low in range(first, first + more + 1)], at + 2 + 4 * runs
    if count <= ARRAY_MAX:
        return list(struct.unpack_from(f"<{count}H", data, at)), at + 2 * count
    words = enumerate(data[at : at + 8192])
    return [8 * number + bit for number, word in words if word for bit in range(8) if word >> bit & 1], at + 8192
