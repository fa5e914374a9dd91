"""What we change of PyIceberg: the metadata that is remembered is what any other client reads from its file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import SetPropertiesUpdate
from pyiceberg.typedef import IcebergBaseModel
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from daemon.iceberg.pyiceberg_ext import metadata_cache
from daemon.iceberg.pyiceberg_ext.commits import commit_updates, manage_metadata_files
from daemon.iceberg.pyiceberg_ext.metadata_cache import METADATA_BYTES
from daemon.iceberg.pyiceberg_ext.metadata_json import to_json
from daemon.store.recent import Recent
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.handmade_histories import History


def on_disk(location: str) -> TableMetadata:
    return TableMetadataUtil.parse_raw(Path(location.removeprefix("file://")).read_text())


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The metadata files that are read, from now on."""
    seen: list[str] = []
    read = metadata_cache._read_metadata

    def watched(input_file, *arguments):
        seen.append(input_file.location)
        return read(input_file, *arguments)

    monkeypatch.setattr(metadata_cache, "_read_metadata", watched)
    return seen


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "bench", f"file://{tmp_path}/lake")


def follow(folder: Path, bench: Bench, *, seed: int, commits: int) -> Iterator[Table]:
    """Yield the Iceberg table of a new Delta table after each of its commits."""
    table = HandmadeTable(folder)
    table.create()
    bench.first_sync_empty(table)
    history = History(table, Random(seed))
    for _ in range(commits):
        history.play()
        bench.follower.sync()
        yield bench.iceberg()


def test_remembered_metadata_is_what_the_file_says(tmp_path: Path, bench: Bench, reads: list[str]) -> None:
    """After each of many commits, new columns and properties among them, and none of them reads its own file."""
    for iceberg in follow(tmp_path / "lake", bench, seed=3, commits=25):
        assert iceberg.metadata == on_disk(iceberg.metadata_location)
    assert len(iceberg.metadata.snapshots) > 10 and len(iceberg.metadata.schemas) > 1
    assert reads == []


def test_what_others_commit_is_seen(tmp_path: Path, bench: Bench, reads: list[str]) -> None:
    """A client that shares nothing with us: its metadata is read from its file, and goes on from ours."""
    table = HandmadeTable(tmp_path / "lake")
    table.create()
    bench.first_sync_empty(table)
    other = SqlCatalog("local", **bench.catalogs.open("local").properties)
    theirs = other.load_table(bench.target)
    theirs.append(pa.table({"id": [1], "part": ["x"], "value": ["theirs"]}))
    seen = bench.iceberg()
    assert seen.metadata_location == theirs.metadata_location
    assert seen.metadata == on_disk(theirs.metadata_location) == theirs.metadata
    assert reads.count(theirs.metadata_location) == 1
    other.close()


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    manage_metadata_files(catalog)
    metadata_cache.remember_metadata()
    catalog.create_namespace("n")
    yield catalog
    catalog.close()


def set_property(table: Table, value: str) -> None:
    commit_updates(table, (SetPropertiesUpdate(updates={"p": value}),), (), lambda _: None)


# The sizes of three tables, of two, and of less than one.
@pytest.mark.parametrize(("tables_max", "read"), [(3.5, 0), (2.5, 1), (0.5, 3)])
def test_a_bounded_size_is_remembered(
    catalog: SqlCatalog, reads: list[str], monkeypatch, tables_max: float, read: int
) -> None:
    """The tables that were committed to longest ago are read from their files again."""
    monkeypatch.setattr(
        metadata_cache, "known_metadata", Recent(round(tables_max * METADATA_BYTES), lambda entry: entry.size_bytes)
    )
    tables = [catalog.create_table(("n", name), pa.schema([("id", pa.int64())])) for name in ("a", "b", "c")]
    for table in tables:
        for value in ("1", "2", "3"):
            set_property(table, value)
    reads.clear()
    for table in reversed(tables):
        again = catalog.load_table(table.name())
        assert again.metadata == on_disk(again.metadata_location)
        assert again.properties["p"] == "3"
    assert reads == [table.metadata_location for table in reversed(tables[:read])]


def test_what_was_not_committed_is_not_remembered(catalog: SqlCatalog, reads: list[str]) -> None:
    """However often a commit fails after its file was written; what is current is not read again for it."""
    table = catalog.create_table("n.t", pa.schema([("id", pa.int64())]))
    set_property(table, "1")
    forbid = "CREATE TRIGGER away BEFORE UPDATE ON iceberg_tables BEGIN SELECT RAISE(ABORT, 'away'); END"
    with catalog.engine.begin() as connection:
        connection.execute(text(forbid))
    reads.clear()
    for value in ("2", "3"):
        with pytest.raises(IntegrityError, match="away"):
            set_property(catalog.load_table("n.t"), value)
    assert len(list(Path(table.location().removeprefix("file://")).glob("metadata/*.json"))) == 4
    assert catalog.load_table("n.t").properties["p"] == "1"
    assert reads == []


def test_a_schema_may_be_looked_at_while_it_is_committed(catalog: SqlCatalog) -> None:
    """Metadata is shared by threads now, and a schema fills its indexes when it is asked."""
    table = catalog.create_table("n.t", pa.schema([("id", pa.int64())]))
    set_property(table, "1")
    schema = table.schema()
    set_property(table, "2")
    assert table.schema() is schema


def test_metadata_is_written_as_pyiceberg_writes_it(catalog: SqlCatalog) -> None:
    """Whatever its snapshots have: the order of the fields aside."""
    base = catalog.create_table("n.t", pa.schema([("id", pa.int64())])).metadata
    summary = Summary(Operation.DELETE, **{"total-records": "1", "note": 'ä "quoted" \\ text'})
    snapshots = [
        Snapshot(snapshot_id=1, timestamp_ms=2, manifest_list="m", sequence_number=None),
        Snapshot(
            snapshot_id=2**62, parent_snapshot_id=1, timestamp_ms=3, manifest_list="n", summary=summary, schema_id=0
        ),
        Snapshot(snapshot_id=3, timestamp_ms=4, manifest_list="o", first_row_id=0, added_rows=5),
    ]
    for metadata in (base, base.model_copy(update={"snapshots": snapshots})):
        assert json.loads(to_json(metadata)) == json.loads(IcebergBaseModel.model_dump_json(metadata))
