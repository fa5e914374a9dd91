"""Manifests and manifest lists, read back by PyIceberg's own reader and by DuckDB's."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.manifest import read_manifest_list as read_manifest_list_by_pyiceberg
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from daemon.errors import TargetUnreadable
from daemon.iceberg.manifests import (
    LONG_LIST_MIN,
    MANIFEST_ENTRIES_MAX,
    ManifestHeader,
    forget_metadata,
    read_entries,
    read_manifest_list,
    referenced_data_file,
    schema_with_sources,
    write_manifest,
    write_manifest_list,
)
from daemon.iceberg.pyiceberg_ext.records import data_file_record, entry_record, manifest_record, values_of
from tests.kit.made import BY_PART, SCHEMA, UNPARTITIONED, data_file, delete_file, read_avro

IO = PyArrowFileIO()
SNAPSHOT = 1 << 62


def write(path: Path, content: ManifestContent, entries: list[ManifestEntry], **options: Any) -> ManifestFile:
    options = {"spec": UNPARTITIONED, "schema": SCHEMA, "snapshot_id": SNAPSHOT} | options
    snapshot_id = options.pop("snapshot_id")
    return write_manifest(IO, f"file://{path}", ManifestHeader(content, **options), entries, snapshot_id=snapshot_id)


def snapshot_of(path: str, number: int, **fields: Any) -> Snapshot:
    return Snapshot(snapshot_id=SNAPSHOT, sequence_number=number, manifest_list=path, **fields)


def added(*files: Any) -> list[ManifestEntry]:
    return [entry_record(ManifestEntryStatus.ADDED, file, snapshot_id=SNAPSHOT) for file in files]


def sequenced(tmp_path: Path, *manifests: ManifestFile, number: int = 5) -> list[ManifestFile]:
    """The manifests as they stand in a manifest list of this sequence number."""
    path = f"file://{tmp_path}/list-{number}.avro"
    write_manifest_list(IO, manifests, snapshot_of(path, number))
    return read_manifest_list(IO, path)


def test_a_delete_manifest_comes_back_whole(tmp_path: Path) -> None:
    """Every field of a position-delete file survives, as PyIceberg reads it and as DuckDB does, field 143 included."""
    record = data_file_record(
        ["x"],
        content=DataFileContent.POSITION_DELETES,
        file_path="file:///d#1?%41.parquet",
        file_format="PARQUET",
        record_count=3,
        file_size_in_bytes=1 << 40,
        value_counts={2147483546: 3, 2147483545: 3},
        null_value_counts={2147483546: 0, 2147483545: 0},
        lower_bounds={2147483546: "file:///é".encode(), 2147483545: bytes(8)},
        upper_bounds={2147483546: "file:///é".encode(), 2147483545: b"\xff" * 7 + b"\0"},
        split_offsets=[4, 1 << 33],
        referenced_data_file="file:///é",
    )
    manifest = write(tmp_path / "m.avro", ManifestContent.DELETES, added(record), spec=BY_PART)

    (row,) = read_avro(manifest.manifest_path)
    found = row["data_file"]
    assert (row["status"], row["snapshot_id"], row["sequence_number"], row["file_sequence_number"]) == (
        1,
        SNAPSHOT,
        None,
        None,
    )
    assert (found["content"], found["file_path"], found["file_format"]) == (1, "file:///d#1?%41.parquet", "PARQUET")
    assert found["partition"] == {"part": "x"}
    assert found["referenced_data_file"] == "file:///é"
    assert (found["split_offsets"], found["sort_order_id"], found["equality_ids"]) == ([4, 1 << 33], None, None)
    for name in ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds"):
        assert found[name] == getattr(record, name)

    (manifest,) = sequenced(tmp_path, manifest)
    (by_pyiceberg,) = manifest.fetch_manifest_entry(IO)
    (by_us,) = read_entries(IO, manifest, spec=BY_PART, schema=SCHEMA)
    assert referenced_data_file(by_us.data_file) == "file:///é"
    for entry in (by_pyiceberg, by_us):
        assert (entry.status, entry.snapshot_id) == (ManifestEntryStatus.ADDED, SNAPSHOT)
        # Null in the file: inherited from the manifest list.
        assert (entry.sequence_number, entry.file_sequence_number) == (5, 5)
        assert entry.data_file.content is DataFileContent.POSITION_DELETES
        assert entry.data_file.partition[0] == "x"
        for name in (
            "file_path",
            "record_count",
            "file_size_in_bytes",
            "lower_bounds",
            "upper_bounds",
            "split_offsets",
        ):
            assert getattr(entry.data_file, name) == getattr(record, name)


def test_a_rewrite_loses_nothing(tmp_path: Path) -> None:
    """Read and written again as existing, an entry has the same bytes in each field, and keeps ids and numbers."""
    files = [delete_file("d1", serves="a"), delete_file("d2", serves=None)]
    (manifest,) = sequenced(tmp_path, write(tmp_path / "1.avro", ManifestContent.DELETES, added(*files)))
    kept = [
        entry_record(
            ManifestEntryStatus.EXISTING,
            entry.data_file,
            snapshot_id=entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
        )
        for entry in read_entries(IO, manifest, spec=UNPARTITIONED, schema=SCHEMA)
    ]
    rewritten = write(tmp_path / "2.avro", ManifestContent.DELETES, kept, snapshot_id=SNAPSHOT + 1)
    first, second = read_avro(manifest.manifest_path), read_avro(rewritten.manifest_path)
    assert [row["data_file"] for row in first] == [row["data_file"] for row in second]
    assert [row["data_file"]["referenced_data_file"] for row in second] == ["a", None]
    assert {
        (row["status"], row["snapshot_id"], row["sequence_number"], row["file_sequence_number"]) for row in second
    } == {(0, SNAPSHOT, 5, 5)}
    (rewritten,) = sequenced(tmp_path, rewritten, number=9)
    assert (rewritten.sequence_number, rewritten.min_sequence_number) == (9, 5)
    again = read_entries(IO, rewritten, spec=UNPARTITIONED, schema=SCHEMA)
    assert [(entry.snapshot_id, entry.sequence_number) for entry in again] == [(SNAPSHOT, 5), (SNAPSHOT, 5)]


def test_deleted_entries_are_not_live(tmp_path: Path) -> None:
    """Entries marked deleted are counted apart, and not read as live, by us and by PyIceberg."""
    numbers = {"sequence_number": 3, "file_sequence_number": 2}
    entries = [
        *added(data_file("a", 1)),
        entry_record(ManifestEntryStatus.EXISTING, data_file("b", 20), snapshot_id=7, **numbers),
        entry_record(ManifestEntryStatus.DELETED, data_file("c", 300), snapshot_id=SNAPSHOT, **numbers),
    ]
    (manifest,) = sequenced(tmp_path, write(tmp_path / "m.avro", ManifestContent.DATA, entries))
    assert (manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count) == (1, 1, 1)
    assert (manifest.added_rows_count, manifest.existing_rows_count, manifest.deleted_rows_count) == (1, 20, 300)
    assert manifest.min_sequence_number == 3
    live = {"a": (SNAPSHOT, 5, 5), "b": (7, 3, 2)}
    for found in (read_entries(IO, manifest, spec=UNPARTITIONED, schema=SCHEMA), manifest.fetch_manifest_entry(IO)):
        assert {
            entry.data_file.file_path: (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number)
            for entry in found
        } == live


PARTITION_VALUES: list[tuple[IcebergType, Any, Any]] = [
    (BooleanType(), True, True),
    (IntegerType(), -(1 << 31), -(1 << 31)),
    (LongType(), (1 << 63) - 1, (1 << 63) - 1),
    (FloatType(), 0.5, 0.5),
    (DoubleType(), float("-inf"), float("-inf")),
    (DecimalType(38, 18), Decimal("12345678901234567890.123456789012345678"), None),
    (DecimalType(9, 2), Decimal("-0.01"), None),
    (StringType(), "a b/c=d%é😀", "a b/c=d%é😀"),
    (DateType(), -719162, None),
    (TimestampType(), -1, None),
    (TimestamptzType(), 253402300799999999, None),
]


@pytest.mark.parametrize(
    ("field_type", "value", "in_duckdb"), PARTITION_VALUES, ids=[str(row[0]) for row in PARTITION_VALUES]
)
def test_a_partition_value_of_each_type(tmp_path: Path, field_type: IcebergType, value: Any, in_duckdb: Any) -> None:
    """Values come back exactly, and so do nulls; the summary bounds of the manifest list tell of both."""
    schema = Schema(NestedField(1, "p", field_type))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
    files = [
        data_file_record(
            [part],
            content=DataFileContent.DATA,
            file_path=name,
            file_format="PARQUET",
            record_count=1,
            file_size_in_bytes=1,
        )
        for name, part in (("value", value), ("null", None))
    ]
    (manifest,) = sequenced(
        tmp_path, write(tmp_path / "m.avro", ManifestContent.DATA, added(*files), spec=spec, schema=schema)
    )
    entries = read_entries(IO, manifest, spec=spec, schema=schema)
    assert [entry.data_file.partition[0] for entry in entries] == [value, None]
    (summary,) = manifest.partitions or []
    assert summary.contains_null
    assert summary.lower_bound == summary.upper_bound is not None
    if in_duckdb is not None:
        assert [row["data_file"]["partition"] for row in read_avro(manifest.manifest_path)] == [
            {"p": in_duckdb},
            {"p": None},
        ]


def test_the_header_tells_what_readers_need(tmp_path: Path) -> None:
    """Iceberg spec, "Manifests": schema, partition spec, format version and content are in the file's metadata."""
    for content, word in ((ManifestContent.DATA, "data"), (ManifestContent.DELETES, "deletes")):
        manifest = write(
            tmp_path / f"{word}.avro", content, added(data_file("a", part="x", spec=BY_PART)), spec=BY_PART
        )
        with AvroFile[ManifestEntry](IO.new_input(manifest.manifest_path)) as reader:
            header = reader.header.meta
        assert (header["content"], header["format-version"], header["partition-spec-id"]) == (word, "2", "0")
        assert Schema.model_validate_json(header["schema"]) == SCHEMA
        (field,) = json.loads(header["partition-spec"])
        assert (field["source-id"], field["field-id"], field["transform"], field["name"]) == (
            2,
            1000,
            "identity",
            "part",
        )
        assert manifest.manifest_length == (tmp_path / f"{word}.avro").stat().st_size


def test_a_manifest_of_format_version_3_has_its_fields(tmp_path: Path) -> None:
    """Nothing stands in the way of v3: the same records, written with the fields that it adds."""
    record = data_file_record(
        [],
        content=DataFileContent.POSITION_DELETES,
        file_path="d.puffin",
        file_format="PUFFIN",
        record_count=3,
        file_size_in_bytes=90,
        referenced_data_file="a",
        content_offset=4,
        content_size_in_bytes=40,
    )
    for version, extra in ((2, set()), (3, {"first_row_id", "content_offset", "content_size_in_bytes"})):
        path = tmp_path / f"{version}.avro"
        manifest = write(path, ManifestContent.DELETES, added(record), format_version=version)
        found = read_avro(manifest.manifest_path)[0]["data_file"]
        assert found["referenced_data_file"] == "a"
        assert {"first_row_id", "content_offset", "content_size_in_bytes"} & set(found) == extra
        (entry,) = read_entries(IO, sequenced(tmp_path, manifest)[0], spec=UNPARTITIONED, schema=SCHEMA)
        assert referenced_data_file(entry.data_file) == "a"
    assert (found["content_offset"], found["content_size_in_bytes"]) == (4, 40)


# --- manifest lists ---


def test_new_manifests_get_the_sequence_number_of_the_snapshot(tmp_path: Path) -> None:
    """Those that are carried keep theirs; and the records stay as they were, for a retry with another number."""
    old, new = (
        write(tmp_path / f"{name}.avro", ManifestContent.DATA, added(data_file(name))) for name in ("old", "new")
    )
    (carried,) = sequenced(tmp_path, old, number=3)
    for number in (5, 6):
        found = sequenced(tmp_path, new, carried, number=number)
        assert [(manifest.sequence_number, manifest.min_sequence_number) for manifest in found] == [
            (number, number),
            (3, 3),
        ]
        assert [manifest.manifest_path for manifest in found] == [new.manifest_path, old.manifest_path]
    assert (new.sequence_number, new.min_sequence_number) == (None, None)


def test_a_carried_manifest_stays_as_it_is(tmp_path: Path) -> None:
    """From list to list, every field of a manifest's record is the same, partition summaries too."""
    files = [data_file(name, part=part, spec=BY_PART) for name, part in (("a", "x"), ("b", None), ("c", "z"))]
    (first,) = sequenced(
        tmp_path, write(tmp_path / "m.avro", ManifestContent.DATA, added(*files), spec=BY_PART), number=1
    )
    (second,) = sequenced(tmp_path, first, number=2)
    rows = [read_avro(f"{tmp_path}/list-{number}.avro") for number in (1, 2)]
    assert rows[0] == rows[1]
    assert rows[0][0]["partitions"] == [
        {"contains_null": True, "contains_nan": False, "lower_bound": b"x", "upper_bound": b"z"}
    ]
    assert [second[position] for position in range(len(second))] == [first[position] for position in range(len(first))]


def end_of_header(data: bytes) -> int:
    """Where the blocks of an Avro file begin: behind the first of its sync markers, with the last of which it ends."""
    return data.index(data[-16:]) + 16


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "without its last bytes": lambda data: data[:-20],
    "cut in the header": lambda data: data[:200],
    "without a schema": lambda data: data.replace(b"avro.schema", b"avro.schemb"),
    "with another schema": lambda data: data.replace(b'"long"', b'"lung"'),
    "with another marker": lambda data: data[:-16] + bytes(16) + data[:40],
}


@pytest.mark.parametrize("damage", [*DAMAGES.values(), lambda data: data[: end_of_header(data)]], ids=[*DAMAGES, "cut"])
@pytest.mark.parametrize("field_type", [StringType(), DoubleType()], ids=["compiled", "precise"])
def test_a_damaged_manifest_is_told_by_its_name(tmp_path: Path, damage, field_type: IcebergType) -> None:
    """And one that was cut between two blocks, which looks whole, by its number of entries. The next one reads well."""
    schema = Schema(NestedField(1, "part", field_type, required=False))
    value = "x" if isinstance(field_type, StringType) else 1.5
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))
    files = added(data_file("file:///a", part=value, spec=spec))
    (manifest,) = sequenced(tmp_path, write(tmp_path / "m.avro", ManifestContent.DATA, files, spec=spec, schema=schema))
    whole = (tmp_path / "m.avro").read_bytes()
    (tmp_path / "m.avro").write_bytes(damage(whole))
    with pytest.raises(TargetUnreadable, match=r"metadata file of the Iceberg table is damaged: .*m\.avro") as raised:
        read_entries(IO, manifest, spec=spec, schema=schema)
    assert raised.value.path == f"file://{tmp_path}/m.avro"
    (tmp_path / "m.avro").write_bytes(whole)
    assert len(read_entries(IO, manifest, spec=spec, schema=schema)) == 1


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_manifest_list_is_told_by_its_name(tmp_path: Path, damage) -> None:
    sequenced(tmp_path, write(tmp_path / "m.avro", ManifestContent.DATA, added(data_file("file:///a"))))
    path = tmp_path / "list-5.avro"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TargetUnreadable, match=r"metadata file of the Iceberg table is damaged: .*list-5\.avro"):
        read_manifest_list(IO, f"file://{path}")
    with pytest.raises(FileNotFoundError):
        read_manifest_list(IO, f"file://{tmp_path}/none.avro")


def test_a_manifest_list_as_pyiceberg_reads_it(tmp_path: Path) -> None:
    """PyIceberg's own reader sees content, counts and numbers; the header names the snapshot and its parent."""
    manifests = [
        write(tmp_path / "a.avro", ManifestContent.DATA, added(data_file("a"), data_file("b"))),
        write(tmp_path / "d.avro", ManifestContent.DELETES, added(delete_file("d"))),
    ]
    path = f"file://{tmp_path}/list.avro"
    write_manifest_list(IO, manifests, snapshot_of(path, 4, parent_snapshot_id=8))
    found = list(read_manifest_list_by_pyiceberg(IO.new_input(path)))
    assert [manifest.content for manifest in found] == [ManifestContent.DATA, ManifestContent.DELETES]
    assert [manifest.added_files_count for manifest in found] == [2, 1]
    assert {(manifest.sequence_number, manifest.added_snapshot_id) for manifest in found} == {(4, SNAPSHOT)}
    with AvroFile[ManifestFile](IO.new_input(path)) as reader:
        header = reader.header.meta
    names = ("snapshot-id", "parent-snapshot-id", "sequence-number", "format-version")
    assert [header[name] for name in names] == [str(SNAPSHOT), "8", "4", "2"]


def plain(manifest: ManifestFile) -> list[Any]:
    """All values of a record; two records are equal for PyIceberg if their paths are."""
    return [[*map(values_of, each)] if isinstance(each, list) else each for each in values_of(manifest)]


@pytest.mark.parametrize("format_version", [2, 3])
def test_records_of_a_list_that_differ_in_one_field_stay_apart(tmp_path: Path, format_version: int) -> None:
    """Encoded records are remembered by their fields: each comes back with its own, also when written again."""
    first = {
        "manifest_path": "a.avro",
        "manifest_length": 7,
        "partition_spec_id": 0,
        "content": ManifestContent.DATA,
        "sequence_number": 1,
        "min_sequence_number": 1,
        "added_snapshot_id": 8,
        "added_files_count": 1,
        "existing_files_count": 1,
        "deleted_files_count": 1,
        "added_rows_count": 1,
        "existing_rows_count": 1,
        "deleted_rows_count": 1,
        "partitions": None,
        "first_row_id": 0 if format_version == 3 else None,
    }
    changed = {
        **{name: value + 1 for name, value in first.items() if type(value) is int},
        "manifest_path": "b.avro",
        "content": ManifestContent.DELETES,
    }
    summaries = [
        [PartitionFieldSummary(*fields)]
        for fields in ((False, None, None, None), (True, None, None, None), (False, None, b"1", b"2"))
    ]
    fields = [first, *({**first, name: value} for name, value in changed.items())]
    fields += [{**first, "partitions": partitions} for partitions in ([], *summaries)]
    path = f"file://{tmp_path}/list.avro"
    for _ in range(2):
        write_manifest_list(IO, [manifest_record(**each) for each in fields], snapshot_of(path, 4), format_version)
        found = read_manifest_list(IO, path)
        for record, wanted in zip(found, fields, strict=True):
            assert plain(record) == plain(manifest_record(**wanted))


def test_rows_of_manifests_without_row_ids_get_the_next_ones(tmp_path: Path) -> None:
    """Each data manifest as many as it has live rows, be they added or of before; the others none. Iceberg spec, "First
    Row ID Assignment".
    """
    numbers = dict.fromkeys(("added_files_count", "existing_files_count", "deleted_files_count"), 1)
    numbers |= {"manifest_length": 7, "partition_spec_id": 0, "added_snapshot_id": 8, "deleted_rows_count": 100}
    data, deletes = ManifestContent.DATA, ManifestContent.DELETES
    manifests = [
        manifest_record(
            **numbers,
            manifest_path=path,
            content=content,
            added_rows_count=added_rows,
            existing_rows_count=existing_rows,
            first_row_id=first_row_id,
        )
        for path, content, added_rows, existing_rows, first_row_id in (
            *(("a", data, 3, 20, None), ("b", deletes, 5, 0, None), ("c", data, 0, 4, None)),
            *(("d", data, 9, 9, 1), ("e", data, 1, 0, None)),
        )
    ]
    path = f"file://{tmp_path}/list.avro"
    assert write_manifest_list(IO, manifests, snapshot_of(path, 4, first_row_id=50), format_version=3) == 78
    given = {row["manifest_path"]: row["first_row_id"] for row in read_avro(path)}
    assert given == {"a": 50, "b": None, "c": 73, "d": 1, "e": 77}


def test_a_long_list_is_remembered_until_a_verification(tmp_path: Path) -> None:
    """As it was written, with the numbers that it gave; what is on the disk counts again afterwards."""
    path, made = f"file://{tmp_path}/list.avro", write(tmp_path / "a.avro", ManifestContent.DATA, added(data_file("a")))
    many = [made] * LONG_LIST_MIN

    def write_list() -> None:
        write_manifest_list(IO, many, snapshot_of(path, 4))

    write_list()
    remembered = [*map(plain, read_manifest_list(IO, path))]
    forget_metadata()
    assert [*map(plain, read_manifest_list(IO, path))] == remembered
    assert {manifest.sequence_number for manifest in read_manifest_list(IO, path)} == {4}
    write_list()
    Path(path.removeprefix("file://")).write_bytes(b"damaged")
    assert [*map(plain, read_manifest_list(IO, path))] == remembered
    forget_metadata()
    with pytest.raises(TargetUnreadable):
        read_manifest_list(IO, path)


def test_a_manifest_of_many_entries(tmp_path: Path) -> None:
    """A full manifest comes back in order, entry by entry."""
    names = [f"file:///lake/t/part-{number:05d}.parquet" for number in range(MANIFEST_ENTRIES_MAX)]
    (manifest,) = sequenced(tmp_path, write(tmp_path / "m.avro", ManifestContent.DATA, added(*map(data_file, names))))
    assert [
        entry.data_file.file_path for entry in read_entries(IO, manifest, spec=UNPARTITIONED, schema=SCHEMA)
    ] == names
    assert [row["data_file"]["file_path"] for row in read_avro(manifest.manifest_path)] == names


def test_the_schema_that_has_the_columns_of_a_spec() -> None:
    """The current one if it can, else an older one: a column may go once no live file is partitioned by it."""
    without = Schema(NestedField(1, "id", LongType()), schema_id=1)
    assert schema_with_sources(BY_PART, [without, SCHEMA]) is SCHEMA
    assert schema_with_sources(UNPARTITIONED, [without, SCHEMA]) is without
