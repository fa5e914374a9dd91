"""What we change of PyIceberg: the metadata that is remembered is what any other client reads from its file."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from daemon.iceberg import pyiceberg_ext
from daemon.iceberg.pyiceberg_ext import announce_metadata_files
from tests.faults.histories import History
from tests.handmade import Bench, HandmadeTable


def on_disk(location: str) -> TableMetadata:
    return TableMetadataUtil.parse_raw(Path(location.removeprefix("file://")).read_text())


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The metadata files that are read, from now on."""
    seen: list[str] = []
    read = pyiceberg_ext._read_metadata

    def watched(input_file, *arguments):
        seen.append(input_file.location)
        return read(input_file, *arguments)

    monkeypatch.setattr(pyiceberg_ext, "_read_metadata", watched)
    return seen


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "bench", f"file://{tmp_path}/lake")


def test_remembered_metadata_is_what_the_file_says(tmp_path: Path, bench: Bench, reads: list[str]) -> None:
    """After each of many commits, new columns and properties among them, and none of them reads its own file."""
    table = HandmadeTable(tmp_path / "lake")
    table.create()
    bench.first_sync_empty(table)
    history = History(table, Random(3))
    for _ in range(25):
        history.play()
        bench.follower.sync()
        iceberg = bench.iceberg()
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


def test_a_bounded_number_of_snapshots_is_remembered(tmp_path: Path, reads: list[str], monkeypatch) -> None:
    """The tables that were committed to longest ago are read from their files again."""
    monkeypatch.setattr(pyiceberg_ext._written_metadata, "_snapshots_max", 10)
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    announce_metadata_files(catalog)
    catalog.create_namespace("n")
    rows = pa.table({"id": [1]})
    tables = [catalog.create_table(("n", name), rows.schema) for name in ("a", "b", "c")]
    for table in tables:
        for _ in range(4):
            table.append(rows)
    reads.clear()
    for table in tables:
        again = catalog.load_table(table.name())
        assert again.metadata == on_disk(again.metadata_location)
        assert len(again.metadata.snapshots) == 4
    assert reads == [tables[0].metadata_location]
    catalog.close()
