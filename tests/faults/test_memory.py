"""What is remembered of a table, and the Iceberg table itself, wrong in every way: never built upon, and mended."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace as with_fields
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.transforms import BucketTransform, TruncateTransform
from pyiceberg.types import LongType, NestedField, StringType
from structlog.testing import capture_logs

from daemon.clock import SystemClock
from daemon.delta.snapshot import ReplayedState
from daemon.errors import AccountMismatch, CommitConflict, ObjectMissing, PipelineAway, TargetChanged, Unsupported
from daemon.iceberg import target
from daemon.iceberg.account import Account, find_account
from daemon.iceberg.manifests import read_manifest_list, referenced_data_file
from daemon.iceberg.pyiceberg_ext.records import data_file_record
from daemon.iceberg.references import entries_of
from daemon.iceberg.row_delta import RowDelta, prepare_snapshot
from daemon.iceberg.target import view_of
from daemon.maintenance.compaction import Compactor
from daemon.maintenance.expiry import Expirer
from daemon.sync import advance, comparison, first_sync
from daemon.sync.outcomes import unchanged_outcome
from daemon.translate.definition import shape_of
from daemon.translate.existing_table import NAME_MAPPING, SCHEMA_ID
from daemon.translate.plan import by_manifest
from tests.kit.checks import check, check_memory, duckdb_rows, read_entries, rows_of, table_id
from tests.kit.handmade import FEATURES, Bench, HandmadeTable, in_step


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    """Version 1: three files of six rows in two partitions, two of them with a deletion vector."""
    table = HandmadeTable(tmp_path / "delta", partitioned=True)
    table.create()
    paths = [table.write_file([(10 * n + row, part, f"v{row}") for row in range(6)]) for n, part in enumerate("xxy")]
    table.commit([table.add(path, deleted=deleted) for path, deleted in zip(paths, ([1, 2], [], [3]), strict=True)])
    return table


@pytest.fixture
def bench(tmp_path: Path, table: HandmadeTable) -> Iterator[Bench]:
    """dvsync, which shows the table at version 1."""
    with in_step(tmp_path, table) as bench:
        yield bench


def change_all(table: HandmadeTable) -> None:
    """Two versions that touch each file: a row more is deleted of two, the third one is removed."""
    first, second, third = table.live
    table.commit(table.delete({first: [0], second: [5]}))
    table.commit([table.remove(third)])


def test_a_table_that_was_away_while_a_first_sync_failed(
    table: HandmadeTable, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that a failed first sync has wiped is not trusted: the old table, once it is back, is read anew."""
    catalog, location = bench.catalogs.open("local"), bench.iceberg().metadata_location

    def fail(*_: object) -> None:
        raise PipelineAway("the job failed", hint="It is tried again.")

    catalog.drop_table(bench.target)
    with monkeypatch.context() as patch, pytest.raises(PipelineAway):
        patch.setattr(ReplayedState, "map_adds", fail)
        bench.follower.sync(full=True)
    catalog.register_table(bench.target, location)
    change_all(table)
    assert bench.follower.sync().outcome == "advanced"
    check(bench, table, [1, 2, 3])


@pytest.mark.parametrize("deleted", [(), (1,)], ids=["no deletion vector", "the same deletion vector"])
def test_a_table_made_anew_with_the_same_file_names(tmp_path: Path, deleted: Sequence[int]) -> None:
    """Nothing of the old table's files is kept for the new one's of the same names, sizes and deletion vectors."""
    old, new = (named_table(tmp_path / name, first=first, deleted=deleted) for name, first in (("t", 1), ("new", 41)))
    sizes = [(table.folder / "part=x" / "data.parquet").stat().st_size for table in (old, new)]
    assert sizes[0] == sizes[1]
    bench = Bench(tmp_path / "dvsync", old.location)
    bench.follower.sync()
    shutil.rmtree(old.folder)
    new.folder = new.folder.rename(old.folder)
    result = bench.follower.sync()
    assert (result.snapshots, result.data_files_added, result.data_files_removed) == (1, 1, 1)
    check_whole(bench, new)
    (path,) = new.live
    new.commit(new.delete({path: [2]}))
    bench.follower.sync()
    check_whole(bench, new)
    bench.close()


def named_table(folder: Path, *, first: int, deleted: Sequence[int]) -> HandmadeTable:
    """One file, called `data.parquet`, of four rows with the ids from `first` on."""
    table = HandmadeTable(folder, partitioned=True)
    table.create()
    path = table.write_file([(first + row, "x", "v") for row in range(4)], name="data")
    table.commit([table.add(path, deleted=deleted, storage="i")])
    return table


# --- wrong starts of a resync ---


def execute(bench: Bench, statement: str) -> None:
    """Change the state database behind dvsync's back."""
    with closing(sqlite3.connect(bench.state_file)) as database, database:
        assert database.execute(statement).rowcount


def plant(bench: Bench, marks: Mapping[str, str] = MappingProxyType({}), **changes: Any) -> None:
    """A snapshot with dvsync's own marks that shows other entries than it should, as a bug would make it."""
    iceberg = bench.iceberg()
    snapshot, shape = iceberg.current_snapshot(), shape_of(iceberg, bench.settings)
    assert snapshot is not None and snapshot.summary is not None
    prepared = prepare_snapshot(
        view_of(iceberg, shape.definition), RowDelta(snapshot_id=uuid4().int >> 65, **changes), lambda _: None
    )
    ours = {key: value for key, value in snapshot.summary.additional_properties.items() if key.startswith("dvsync.")}
    bench.context.target.commit(iceberg, shape.definition, prepared, {**ours, **marks}, lambda _: None)


def entries(bench: Bench, content: ManifestContent) -> list[tuple[DataFile, str]]:
    """The live entries of the newest snapshot, each with its manifest."""
    iceberg = bench.iceberg()
    snapshot = iceberg.current_snapshot()
    assert snapshot is not None
    return [
        (entry.data_file, manifest.manifest_path)
        for manifest in read_manifest_list(iceberg.io, snapshot.manifest_list)
        if manifest.content is content
        for entry in entries_of(iceberg, manifest)
    ]


def removed(found: Sequence[tuple[DataFile, str]]) -> dict[str, set[str]]:
    return by_manifest((manifest, data_file.file_path) for data_file, manifest in found)


def changed_entry(bench: Bench, **fields: Any) -> None:
    """The first data file, registered with other fields."""
    (data_file, manifest), *_ = entries(bench, ManifestContent.DATA)
    names = ("content", "file_path", "file_format", "record_count", "file_size_in_bytes")
    told = {name: getattr(data_file, name) for name in names}
    other = data_file_record(fields.pop("partition", ("x",)), **{**told, **fields})
    other.spec_id = 0
    plant(bench, removed_data_files={manifest: {data_file.file_path}}, added_data_files=[other])


def lose_the_memory(bench: Bench) -> None:
    bench.close()
    for path in bench.folder.glob("state.db*"):
        path.unlink()
    bench.open()


def show_each_file_twice(bench: Bench) -> None:
    plant(bench, added_data_files=[data_file for data_file, _ in entries(bench, ManifestContent.DATA)])


def show_a_file_less(bench: Bench) -> None:
    plant(bench, removed_data_files=removed(entries(bench, ManifestContent.DATA)[:1]))


def lose_a_delete_file(bench: Bench) -> None:
    plant(bench, removed_delete_files=removed(entries(bench, ManifestContent.DELETES)[:1]))


def delete_other_rows(bench: Bench) -> None:
    """As many as before."""
    path = Path(entries(bench, ManifestContent.DELETES)[0][0].file_path.removeprefix("file://"))
    found = pq.read_table(path)
    pq.write_table(found.set_column(1, found.schema.field(1), pc.add(found["pos"], 2)), path)


def roll_back(bench: Bench) -> None:
    (first, *_) = bench.iceberg().snapshots()
    bench.iceberg().manage_snapshots().set_current_snapshot(first.snapshot_id).commit()


def commit_rows(bench: Bench) -> None:
    bench.iceberg().append(pa.table({"id": [99], "part": ["x"], "value": ["theirs"]}))


def evolve(change: Callable[[UpdateSchema], object]) -> Callable[[Bench], None]:
    """A change of the schema; PyIceberg brings the name mapping along."""

    def apply(bench: Bench) -> None:
        with bench.iceberg().update_schema() as update:
            change(update)

    return apply


def partition_by(change: Callable[[UpdateSpec], object]) -> Callable[[Bench], None]:
    def apply(bench: Bench) -> None:
        with bench.iceberg().update_spec() as update:
            change(update)

    return apply


def map_names(change: Callable[[list[Any]], object]) -> Callable[[Bench], None]:
    """Another name mapping under the same schema."""

    def apply(bench: Bench) -> None:
        mapping = json.loads(bench.iceberg().properties[NAME_MAPPING])
        change(mapping)
        with bench.iceberg().transaction() as changes:
            changes.set_properties({NAME_MAPPING: json.dumps(mapping)})

    return apply


def remove_property(key: str) -> Callable[[Bench], None]:
    def apply(bench: Bench) -> None:
        with bench.iceberg().transaction() as changes:
            changes.remove_properties(key)

    return apply


def add_column_alone(bench: Bench) -> None:
    """As a tool does that knows nothing of name mappings."""
    iceberg = bench.iceberg()
    fields = (*iceberg.schema().fields, NestedField(9, "note", StringType(), required=False))
    updates = (AddSchemaUpdate(schema_=Schema(*fields, schema_id=1)), SetCurrentSchemaUpdate(schema_id=-1))
    iceberg.catalog.commit_table(iceberg, (), updates)


def rename_and_map_first(bench: Bench) -> None:
    """As Iceberg's Java library may, which keeps the names of a field in no order."""
    evolve(lambda update: update.rename_column("part", "region"))(bench)
    map_names(lambda mapping: mapping[1]["names"].sort(reverse=True))(bench)


SCHEMA, SPEC, MAPPING = "its schema", "its partition spec", f"its property {NAME_MAPPING}"
# What somebody does to the table without a snapshot, and what dvsync says of it.
SHAPES: Mapping[str, tuple[Callable[[Bench], None], str]] = {
    "no partition": (partition_by(lambda update: update.remove_field("part")), SPEC),
    "truncated too": (partition_by(lambda update: update.add_field("part", TruncateTransform(2), "short")), SPEC),
    "a bucket too": (partition_by(lambda update: update.add_field("id", BucketTransform(4), "bucket")), SPEC),
    "a column less": (evolve(lambda update: update.delete_column("value")), SCHEMA),
    "a column more": (evolve(lambda update: update.add_column("note", StringType())), f"{SCHEMA} and {MAPPING}"),
    "a column that is not mapped": (add_column_alone, SCHEMA),
    "a column's name": (evolve(lambda update: update.rename_column("part", "region")), f"{SCHEMA} and {MAPPING}"),
    "a name that comes first": (rename_and_map_first, f"{SCHEMA} and {MAPPING}"),
    "a comment": (evolve(lambda update: update.update_column("id", doc="key")), SCHEMA),
    "no mapping": (remove_property(NAME_MAPPING), MAPPING),
    "another mapping": (map_names(lambda mapping: mapping[2]["names"].append("part")), MAPPING),
    "exchanged names": (map_names(lambda mapping: mapping[0].update(mapping[2] | {"field-id": 1})), MAPPING),
    "no mark of ours": (remove_property(SCHEMA_ID), SCHEMA),
}
NOTHING_LIKE_IT = {1: to_bytes(LongType(), 1000)}
WRONG_STARTS: Mapping[str, Callable[[Bench], None]] = {
    "nothing is wrong": lambda bench: None,
    "memory: no database": lose_the_memory,
    "memory: no files": lambda bench: execute(bench, "DELETE FROM data_files"),
    "memory: a file less": lambda bench: execute(bench, "DELETE FROM data_files WHERE dv_storage_type IS NULL"),
    "memory: another path": lambda bench: execute(bench, "UPDATE data_files SET path = path || 'x'"),
    "memory: another vector": lambda bench: execute(bench, "UPDATE data_files SET dv_offset = 7"),
    "memory: another size": lambda bench: execute(bench, "UPDATE data_files SET size_bytes = size_bytes + 1"),
    "memory: another count": lambda bench: execute(bench, "UPDATE data_files SET record_count = record_count + 1"),
    "memory: no delete files": lambda bench: execute(bench, "DELETE FROM dv_mappings"),
    "files: twice": show_each_file_twice,
    "files: one less": show_a_file_less,
    "files: another partition": lambda bench: changed_entry(bench, partition=("nowhere",)),
    "files: other bounds": lambda bench: changed_entry(bench, lower_bounds=NOTHING_LIKE_IT),
    "files: other counts": lambda bench: changed_entry(bench, record_count=7),
    "deletions: one file less": lose_a_delete_file,
    "deletions: other rows": delete_other_rows,
    "snapshots: rolled back": roll_back,
    "snapshots: another's": commit_rows,
    "snapshots: all rows deleted": lambda bench: bench.iceberg().delete(),
    **{f"shape: {name}": change for name, (change, _) in SHAPES.items()},
}


def check_whole(bench: Bench, table: HandmadeTable) -> None:
    """Readers find exactly Delta's rows, with filters and without; deletions lie where their data files do."""
    iceberg, rows = bench.iceberg(), table.live_rows()
    assert rows_of(iceberg.scan().to_arrow()) == rows
    assert duckdb_rows(iceberg) == rows
    for path in table.live:
        # One row of each file: its entry's bounds are those of all.
        live = (row for position, row in enumerate(table.rows[path]) if position not in table.deleted[path])
        for row in islice(live, 1):
            assert rows_of(iceberg.scan(row_filter=f"id == {row[0]}").to_arrow()) == [row]
    for part in {row[1] for row in rows}:
        found = rows_of(iceberg.scan(row_filter=f"part == '{part}'").to_arrow())
        assert found == [row for row in rows if row[1] == part]
    places = {data_file.file_path: place_of(data_file) for data_file, _ in entries(bench, ManifestContent.DATA)}
    for delete_file, _ in entries(bench, ManifestContent.DELETES):
        assert place_of(delete_file) == places[str(referenced_data_file(delete_file))]
    remembered = {file.path: (file.spec_id, *file.partition) for file in bench.store.read_live_files(table_id(bench))}
    assert remembered == places
    check_memory(bench, iceberg, read_entries(iceberg), table)


def place_of(data_file: DataFile) -> tuple[object, ...]:
    return data_file.spec_id, *(data_file.partition[index] for index in range(len(data_file.partition)))


@pytest.mark.parametrize(
    ("newer", "start"),
    [
        *(pytest.param(False, start, id=f"in step-{start}") for start in WRONG_STARTS),
        # Of the same starts, a third.
        *(
            pytest.param(True, start, id=f"behind-{start}", marks=() if number % 3 == 0 else pytest.mark.long)
            for number, start in enumerate(WRONG_STARTS)
        ),
    ],
)
def test_a_resync_ends_with_deltas_rows(table: HandmadeTable, bench: Bench, start: str, *, newer: bool) -> None:
    """Whatever the Iceberg table and the memory of it were before; and what follows is right as well."""
    WRONG_STARTS[start](bench)
    if newer:
        table.commit(table.delete({next(iter(table.live)): [3]}))
    result = bench.follower.sync(full=True)
    assert (result.outcome, result.operation, result.snapshots) == ("advanced", "resync", 1)
    check_whole(bench, table)
    change_all(table)
    bench.follower.sync()
    check_whole(bench, table)


# --- wrong starts that are found without a resync ---

FOUND = [name for name in WRONG_STARTS if name.startswith("memory: ")]
FOUND += ["files: twice", "files: one less", "deletions: one file less"]


@pytest.mark.parametrize("start", FOUND)
@pytest.mark.parametrize("again", [False, True], ids=["beside the process", "before a start"])
def test_what_is_wrong_is_not_built_upon(table: HandmadeTable, bench: Bench, start: str, *, again: bool) -> None:
    """Following Delta ends with its rows all the same, whatever the Iceberg table and the memory of it were before."""
    WRONG_STARTS[start](bench)
    if again:
        bench.reopen()
    change_all(table)
    table.commit([table.add(table.write_file([(50, "y", "new")]))])
    bench.follower.sync()
    check_whole(bench, table)


def test_a_memory_that_does_not_add_up_is_rebuilt_before_a_commit_builds_on_it(
    table: HandmadeTable, bench: Bench
) -> None:
    WRONG_STARTS["memory: a file less"](bench)
    bench.reopen()
    bench.follower.sync()
    record = bench.context.find_record()
    assert record is not None
    assert bench.store.count(record.id).live_data_files == len(table.live)


def test_a_file_less_in_both_is_found_by_the_checksum(table: HandmadeTable, bench: Bench) -> None:
    """Memory and Iceberg agree with each other and not with Delta, as a bug would leave them: its checksum tells."""
    forget_a_file(bench)
    first, _, _ = table.live
    table.commit(table.delete({first: [0]}))
    bench.follower.sync()
    assert len(rows_of(bench.iceberg().scan().to_arrow())) < len(table.live_rows()), "without one it is not found"
    table.commit(table.delete({first: [5]}))
    write_checksum(table)
    assert bench.follower.sync().operation == "compare"
    check_whole(bench, table)


def test_a_file_less_in_both_is_found_when_the_memory_is_made_anew(table: HandmadeTable, bench: Bench) -> None:
    """What Iceberg shows is then compared with Delta's files, not only with its deletions: no checksum is needed."""
    forget_a_file(bench)
    lose_the_memory(bench)
    assert bench.follower.sync().operation == "compare"
    check_whole(bench, table)


def forget_a_file(bench: Bench) -> None:
    """Take a file without deletions out of the Iceberg table, of its account and of memory, without a trace."""
    iceberg = bench.iceberg()
    deleted = {referenced_data_file(delete_file) for delete_file, _ in entries(bench, ManifestContent.DELETES)}
    gone = [each for each in entries(bench, ManifestContent.DATA) if each[0].file_path not in deleted]
    (data_file, _), account = gone[0], find_account(iceberg.current_snapshot())
    assert account is not None
    less = account - Account(1, data_file.record_count, 0, data_file.file_size_in_bytes)
    plant(bench, less.to_summary(), removed_data_files=removed(gone[:1]))
    now = bench.iceberg()
    execute(bench, f"DELETE FROM data_files WHERE path = '{data_file.file_path}'")
    place = f"snapshot_id = {now.metadata.current_snapshot_id}, metadata_location = '{now.metadata_location}'"
    execute(bench, f"UPDATE tables SET {place}")


def write_checksum(table: HandmadeTable, **wrong: int) -> None:
    """The checksum file of the newest version, with what is `wrong` added to its numbers."""
    files = table.live.values()
    totals = {
        "numFiles": len(files),
        "tableSizeBytes": sum(file["size"] for file in files),
        "numDeletedRecordsOpt": sum((file.get("deletionVector") or {}).get("cardinality", 0) for file in files),
    }
    totals |= {key: totals[key] + more for key, more in wrong.items()}
    table.commit_path(table.version).with_suffix(".crc").write_text(json.dumps(totals))


@pytest.mark.parametrize("wrong", ["numFiles", "tableSizeBytes", "numDeletedRecordsOpt"])
def test_a_wrong_checksum_is_no_verdict(table: HandmadeTable, bench: Bench, wrong: str) -> None:
    """States are compared once; Delta carries the fault on, and only another one is looked into."""
    (first, *_), operations = table.live, []
    for row, fault in ((0, 0), (2, 1), (3, 1), (4, 2)):
        table.commit(table.delete({first: [row]}))
        write_checksum(table, **{wrong: fault})
        operations.append(bench.follower.sync().operation)
        check_whole(bench, table)
    assert operations == ["WRITE", "compare", "WRITE", "compare"]


def test_checksums_that_are_wrong_in_ever_other_ways(table: HandmadeTable, bench: Bench) -> None:
    """Three faults in a row are looked into, then no more: each look reads the whole state twice."""
    (first, *_), operations = table.live, []
    for row in (0, 2, 3, 4, 5):
        table.commit(table.delete({first: [row]}))
        write_checksum(table, numFiles=row + 1)
        operations.append(bench.follower.sync().operation)
    assert operations == ["compare"] * 3 + ["WRITE"] * 2
    check_whole(bench, table)


def test_wrong_checksums_of_one_of_two_writers(table: HandmadeTable, bench: Bench) -> None:
    """The other one leaves none, and its version is the newest whenever states are compared."""
    (_, first, _), compared = table.live, 0
    for row in range(5):
        table.commit(table.delete({first: [row]}))
        write_checksum(table, numFiles=1)
        table.commit([table.add(table.write_file([(60 + row, "y", "new")]))])
        compared += bench.follower.sync().operation == "compare"
    assert compared == 3
    check_whole(bench, table)


def want_comparison(bench: Bench) -> None:
    (record,) = bench.store.list_tables()
    bench.store.record_synced(None, with_fields(unchanged_outcome(record), must_compare=True), at_ms=1)
    bench.follower.doubt()


def test_too_much_to_compare_file_by_file(table: HandmadeTable, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """More files differ than are held in memory, as after OPTIMIZE and a log cleanup: all is written anew."""
    monkeypatch.setattr(comparison, "DIFFERENCES_MAX", 2)
    rows = table.live_rows()
    written = [table.write_file([row for row in rows if row[1] == part]) for part in "xy"]
    table.commit([*(table.remove(path) for path in list(table.live)), *(table.add(path) for path in written)])
    want_comparison(bench)
    with capture_logs() as told:
        assert bench.sync().operation == first_sync.RESYNCED
    (reason,) = (line["reason"] for line in told if line["event"] == "target.overwritten")
    assert "3 files of Iceberg and 2 files of Delta differ, more than" in reason
    check_whole(bench, table)


@pytest.mark.parametrize("differences_max", [0, 100])
def test_a_log_that_is_older_for_a_moment_is_not_followed_back(
    table: HandmadeTable, bench: Bench, monkeypatch: pytest.MonkeyPatch, differences_max: int
) -> None:
    """However much differs: a listing that lags says the same as a log that somebody took back."""
    change_all(table)
    bench.sync()
    monkeypatch.setattr(comparison, "DIFFERENCES_MAX", differences_max)
    table.commit_path(3).unlink()
    table.commit_path(2).unlink()
    before = bench.iceberg().metadata_location
    want_comparison(bench)
    with pytest.raises(ObjectMissing, match="the Delta table ends at version 1, but version 3 was synced already"):
        bench.sync()
    assert bench.iceberg().metadata_location == before


def test_versions_before_an_unsupported_one_are_shown(table: HandmadeTable, bench: Bench) -> None:
    """Where a comparison cannot go to the newest version, it goes to the one that asked for it."""
    (first, *_) = table.live
    table.commit(table.delete({first: [0]}))
    write_checksum(table, numFiles=1)
    table.commit([{"protocol": table.protocol([*FEATURES, "fancyNew"])}])
    assert bench.follower.sync().operation == "compare"
    assert rows_of(bench.iceberg().scan().to_arrow()) == table.live_rows()
    with pytest.raises(Unsupported, match="fancyNew") as caught:
        bench.follower.sync()
    assert caught.value.version == 3


def test_a_remove_that_is_written_twice(table: HandmadeTable, bench: Bench) -> None:
    """The same action once more in one commit says nothing new."""
    remove = table.remove(next(iter(table.live)))
    table.commit([remove, dict(remove)])
    assert bench.follower.sync().operation == "WRITE"
    check_whole(bench, table)


def test_compaction_of_delete_files_that_are_not_remembered(
    table: HandmadeTable, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account stops it, and what is remembered is read anew: the next round goes through."""
    monkeypatch.setattr("daemon.maintenance.compaction.DELETE_FILES_MAX", 1)
    (first, *_) = table.live
    for row in (0, 3, 4):
        table.commit(table.delete({first: [row]}))
        bench.follower.sync()
    execute(bench, "DELETE FROM dv_mappings WHERE delete_file_id = (SELECT min(delete_file_id) FROM dv_mappings)")
    with pytest.raises(AccountMismatch):
        Compactor(bench.context).compact(Event())
    assert Compactor(bench.context).compact(Event()).snapshots == 1
    check_whole(bench, table)


def test_a_table_that_was_away_after_a_version_without_rows(
    table: HandmadeTable, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version that was synced is newer than the one that its snapshot tells: that is no roll-back."""
    table.commit([], operation="VACUUM START")
    bench.follower.sync()
    catalog, location = bench.catalogs.open("local"), bench.iceberg().metadata_location

    def fail(*_: object) -> None:
        raise PipelineAway("the job failed", hint="It is tried again.")

    catalog.drop_table(bench.target)
    with monkeypatch.context() as patch, pytest.raises(PipelineAway):
        patch.setattr(ReplayedState, "map_adds", fail)
        bench.follower.sync(full=True)
    catalog.register_table(bench.target, location)
    change_all(table)
    bench.follower.sync()
    check_whole(bench, table)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"numFiles": "3"}', b'{"numFiles": 99}', b"\xff", b"[" * 99_999]
)
def test_a_checksum_that_cannot_be_read(table: HandmadeTable, bench: Bench, content: bytes) -> None:
    """It says nothing, as to Delta."""
    table.commit(table.delete({next(iter(table.live)): [0]}))
    table.commit_path(table.version).with_suffix(".crc").write_bytes(content)
    assert bench.follower.sync().operation == "WRITE"
    check_whole(bench, table)


def test_a_mere_tombstone_costs_no_comparison(
    table: HandmadeTable, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Delta leaves for files of deletion vectors when it drops their feature: nothing that Iceberg shows.

    What Iceberg shows is read once in a process, however many follow.
    """
    read = list[object]()
    live_entries = advance.live_entries
    monkeypatch.setattr(advance, "live_entries", lambda *asked: read.append(asked) or live_entries(*asked))
    for row in (50, 51, 52):
        tombstone = {"path": f"deletion_vector_{row}.bin", "dataChange": False, "deletionTimestamp": 1}
        table.commit([{"remove": tombstone}, table.add(table.write_file([(row, "y", "new")]))])
        assert bench.follower.sync().operation == "WRITE"
        assert len(read) == 1
    check_whole(bench, table)


def test_what_an_earlier_commit_of_a_fold_adds_is_known(
    tmp_path: Path, table: HandmadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.sync.news.FOLD_AFTER_VERSIONS", 1)
    bench = Bench(tmp_path / "dvsync", table.location)
    bench.sync()
    monkeypatch.setattr(advance, "live_entries", lambda *_: pytest.fail("the manifests were read"))
    path = table.write_file([(60, "y", "new"), (61, "y", "new")])
    table.commit([table.add(path)])
    table.commit(table.delete({path: [0]}))
    table.commit([table.remove(path)])
    bench.sync()
    check_whole(bench, table)


@pytest.mark.parametrize("format_version", [2, 3])
def test_how_the_log_spells_paths_is_remembered(tmp_path: Path, table: HandmadeTable, format_version: int) -> None:
    """A remove by another spelling changes nothing; lost or wrong, the memory comes back without a new snapshot."""
    bench = Bench(tmp_path / "dvsync", table.location, table_options={"format_version": format_version})
    bench.sync()

    def uris() -> set[str | None]:
        return {file.uri for file in bench.store.read_live_files(table_id(bench))}

    spelled = {action["path"] for action in table.live.values()}
    assert uris() == spelled == {path.replace("=", "%3D") for path in table.live}
    (first, *_), before = table.live, bench.iceberg().current_snapshot()
    stray = {
        "path": first,
        "dataChange": True,
        "deletionTimestamp": 1,
        "deletionVector": table.live[first]["deletionVector"],
    }
    table.commit([{"remove": stray}])
    result = bench.sync()
    assert (result.operation, result.snapshots) == ("WRITE", 0)
    lose_the_memory(bench)
    assert bench.sync().snapshots == 0
    assert uris() == spelled
    execute(bench, "UPDATE data_files SET uri = NULL")
    want_comparison(bench)
    assert bench.sync().snapshots == 0
    assert (uris(), bench.iceberg().current_snapshot()) == (spelled, before)
    table.commit([table.remove(first)])
    bench.sync()
    check_whole(bench, table)
    bench.close()


def test_an_equal_spelling_is_compared(table: HandmadeTable, bench: Bench) -> None:
    """A file that went, and came back by a path that `java.net.URI` finds equal, is a new file for the comparison."""
    path = next(path for path, add in table.live.items() if "deletionVector" not in add)
    table.commit([table.remove(path)])
    add = table.add(path)["add"]
    add["path"] = add["path"].replace("%3D", "%3d")
    table.commit([{"add": add}])
    want_comparison(bench)
    assert bench.sync().operation == "compare"
    assert rows_of(bench.iceberg().scan().to_arrow()) == table.live_rows()
    assert add["path"] in {file.uri for file in bench.store.read_live_files(table_id(bench))}


# --- a shape that is not ours ---


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_built_upon_another_shape(table: HandmadeTable, bench: Bench, shape: str) -> None:
    """A schema, partition spec or name mapping of somebody else parks the table at its next sync, news or not."""
    change, says = SHAPES[shape]
    change(bench)
    before = bench.iceberg().metadata_location
    for has_news in (False, True):
        if has_news:
            change_all(table)
        with pytest.raises(TargetChanged) as caught:
            bench.follower.sync()
        assert caught.value.message == f"the Iceberg table lake.t was changed by someone else: {says}"
        assert "dvsync resync t" in caught.value.hint
    with pytest.raises(TargetChanged):
        Compactor(bench.context).compact(Event())
    assert bench.iceberg().metadata_location == before


@pytest.mark.parametrize("shape", SHAPES)
def test_another_shape_is_replaced_where_foreign_commits_are(table: HandmadeTable, tmp_path: Path, shape: str) -> None:
    """With on_foreign_commit: overwrite the table has Delta's schema, partitions and rows again by itself."""
    bench = Bench(tmp_path / "dvsync", table.location, table_options={"on_foreign_commit": "overwrite"})
    bench.follower.sync()
    before = bench.iceberg()
    SHAPES[shape][0](bench)
    change_all(table)
    assert bench.follower.sync().operation == "resync"
    check_whole(bench, table)
    now = bench.iceberg()
    assert (now.schema(), now.spec(), now.name_mapping()) == (before.schema(), before.spec(), before.name_mapping())
    bench.close()


def test_a_shape_that_is_set_back_is_ours_again(table: HandmadeTable, bench: Bench) -> None:
    """Whoever undoes a change need not have the table written anew."""
    partition_by(lambda update: update.remove_field("part"))(bench)
    with pytest.raises(TargetChanged):
        bench.follower.sync()
    partition_by(lambda update: update.add_identity("part"))(bench)
    change_all(table)
    bench.follower.sync()
    check(bench, table, [1, 2, 3])


def test_another_shape_in_the_middle_of_a_commit(
    table: HandmadeTable, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes between the look at the table and the commit to it is a conflict, and told by the next sync."""
    change_all(table)
    write = target.write_manifest_list

    def interrupted(*arguments: Any, **options: Any) -> None:
        SHAPES["no partition"][0](bench)
        write(*arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(CommitConflict, match="default spec id has changed"):
        patch.setattr(target, "write_manifest_list", interrupted)
        bench.follower.sync()
    with pytest.raises(TargetChanged, match=SPEC):
        bench.follower.sync()
    bench.follower.sync(full=True)
    check_whole(bench, table)


BY_HOUR = (("id", "long"), ("part", "timestamp"), ("value", "string"))


def by_hour(folder: Path, zone: str, **options: Any) -> Bench:
    """dvsync on a table that is partitioned by a timestamp."""
    options |= {"partition_time_zone": zone}
    return Bench(folder / "dvsync", f"file://{folder}/hours", target="lake.hours", name="hours", table_options=options)


@pytest.mark.parametrize("overwrite", [False, True])
def test_another_time_zone_registers_every_file_anew(tmp_path: Path, *, overwrite: bool) -> None:
    """One Delta value is never two in Iceberg: a zone that is corrected later waits for a resync, or makes one."""
    table = HandmadeTable(tmp_path / "hours", partitioned=True)
    with_hours = partial(table.metadata, BY_HOUR)
    table.metadata = with_hours  # type: ignore[method-assign]
    table.create()
    first = table.write_file([(row, "2024-06-01 10:00:00", "v") for row in range(4)])
    table.commit([table.add(first)])
    bench = by_hour(tmp_path, "UTC")
    bench.follower.sync()
    bench.close()
    table.commit([table.add(table.write_file([(row, "2024-06-01 10:00:00", "v") for row in range(10, 12)]))])
    table.commit(table.delete({first: [0, 1]}))
    bench = by_hour(tmp_path, "Europe/Paris", on_foreign_commit="overwrite" if overwrite else "park")
    if not overwrite:
        with pytest.raises(TargetChanged, match=r"is Europe/Paris, but .* were computed with UTC") as caught:
            bench.follower.sync()
        assert "Set partition_time_zone to UTC again" in caught.value.hint
    bench.follower.sync(full=not overwrite)
    table.commit(table.delete({first: [2]}))
    bench.follower.sync()
    shown = bench.iceberg().scan().to_arrow().to_pylist()
    assert {row["part"] for row in shown} == {datetime(2024, 6, 1, 8, tzinfo=UTC)}
    assert sorted(row["id"] for row in shown) == [3, 10, 11]
    places = {place_of(file) for content in ManifestContent for file, _ in entries(bench, content)}
    assert len(places) == 1
    bench.close()


def test_a_time_zone_that_no_partition_needs(table: HandmadeTable, bench: Bench) -> None:
    """Another one in the defaults concerns the tables that are partitioned by timestamps, and no other."""
    bench.close()
    bench.table_options = {"partition_time_zone": "Europe/Paris"}
    bench.open()
    change_all(table)
    bench.follower.sync()
    check(bench, table, [1, 2, 3])


def test_partitions_that_change_under_files_are_refused(table: HandmadeTable, bench: Bench) -> None:
    """Delta writes all files anew for other partition columns; a writer that does not is not followed."""
    table.partitioned = False
    table.commit([{"metaData": table.metadata()}])
    with pytest.raises(Unsupported, match="the partitioning changed while 3 older data files stay"):
        bench.follower.sync()
    check_whole(bench, replace(table, version=1))


# --- whose table it is ---


class MovedClock(SystemClock):
    """Tells the time of day and the time since the start, both later by `late_s`."""

    late_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + round(self.late_s * 1000)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.late_s


def expirer_after_a_year(bench: Bench) -> Expirer:
    """A clock that is ahead when a process starts is not believed: the year passes while it runs."""
    clock = MovedClock()
    expirer = Expirer(replace(bench.context, clock=clock))
    clock.late_s = 365 * 86_400.0
    return expirer


@pytest.mark.parametrize("rows", [3, 0])
@pytest.mark.parametrize("full", [False, True])
def test_a_table_that_was_never_ours_is_left_alone(
    table: HandmadeTable, tmp_path: Path, rows: int, *, full: bool
) -> None:
    """A target that names somebody else's table by mistake: refused, also where foreign commits may be overwritten."""
    bench = Bench(tmp_path / "dvsync", table.location, table_options={"on_foreign_commit": "overwrite"})
    catalog = bench.catalogs.open("local")
    catalog.create_namespace("lake")
    theirs = pa.table({"amount": pa.array(range(rows), pa.int64())})
    made = catalog.create_table(bench.target, theirs.schema)
    if rows:
        made.append(theirs)
    location = bench.iceberg().metadata_location
    with pytest.raises(TargetChanged, match=r"lake\.t was never dvsync's") as caught:
        bench.follower.sync(full=full)
    assert "Choose another target" in caught.value.hint
    assert expirer_after_a_year(bench).expire().expired == ()
    assert bench.iceberg().metadata_location == location
    bench.close()


def test_what_somebody_else_committed_is_replaced_and_never_expired(table: HandmadeTable, bench: Bench) -> None:
    """The rows of a foreign snapshot are nowhere else: it leaves the newest snapshot when asked, and not the table."""
    bench.iceberg().append(pa.table({"id": [99], "part": ["x"], "value": ["theirs"]}))
    foreign = bench.iceberg().metadata.current_snapshot_id
    change_all(table)
    assert bench.follower.sync(full=True).operation == "resync"
    assert rows_of(bench.iceberg().scan().to_arrow()) == table.live_rows()
    expired = expirer_after_a_year(bench).expire().expired
    assert expired and foreign not in expired
    assert 99 in bench.iceberg().scan(snapshot_id=foreign).to_arrow()["id"].to_pylist()


def test_a_table_without_any_sign_is_ours_by_the_state_database(table: HandmadeTable, bench: Bench) -> None:
    """Our snapshots and properties are gone, the metadata files that we recorded are not: a resync brings all back."""
    with bench.iceberg().transaction() as changes:
        changes.remove_properties(*(key for key in bench.iceberg().properties if key.startswith("dvsync.")))
    ours = bench.iceberg().metadata.current_snapshot_id
    bench.iceberg().append(pa.table({"id": [99], "part": ["x"], "value": ["theirs"]}))
    bench.iceberg().maintenance.expire_snapshots().by_id(ours).commit()
    with pytest.raises(TargetChanged, match="was changed by someone else"):
        bench.follower.sync()
    bench.follower.sync(full=True)
    assert rows_of(bench.iceberg().scan().to_arrow()) == table.live_rows()
