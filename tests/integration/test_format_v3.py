"""Iceberg tables of format version 3 on handmade Delta tables: upgrades, row ids, and the life of Puffin files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.table import StaticTable
from pyiceberg.table.update import UpgradeFormatVersionUpdate
from pyiceberg.types import UnknownType
from pyspark.sql import SparkSession

from daemon.delta.bitmap_format import DVPlace
from daemon.delta.deletion_vector import frame_bytes
from daemon.delta.position_set import as_bitmap, decode_positions, encode_positions
from daemon.errors import CorruptInput, SchemaChanged, Unsupported
from daemon.iceberg.manifests import (
    ManifestHeader,
    content_span,
    first_row_id,
    read_manifest_list,
    referenced_data_file,
    write_manifest,
)
from daemon.iceberg.puffin import Blob, read_blobs
from daemon.iceberg.references import entries_of, live_entries
from daemon.maintenance.compaction import Compaction, Compactor
from daemon.pipeline.runner import Runner
from daemon.store.locations import Span, normalize_location
from daemon.store.storage import FileIOStorage
from daemon.translate.definition import DELETE_GRANULARITY
from daemon.verify.findings import Fault, Level, Scope
from daemon.verify.verifier import Verifier
from tests.kit.handmade import COLUMNS, GRANULARITY, Bench, HandmadeTable
from tests.kit.images import vectors_of
from tests.kit.readers import READERS
from tests.kit.spark_process import SparkProcess

SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"


class Pair:
    """A Delta table of four files in two partitions, and its follower."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.table = HandmadeTable(folder / "delta", partitioned=True)
        self.table.create()
        files = [[(10 * n + row, "ab"[n % 2], f"v{row}") for row in range(8)] for n in range(4)]
        self.paths = [self.table.write_file(rows, name=f"f{n}") for n, rows in enumerate(files)]
        self.table.commit([self.table.add(path) for path in self.paths])
        self.bench = self.open(**options)

    def open(self, **options: Any) -> Bench:
        return Bench(self.folder / "dvsync", self.table.location, table_options=options)

    def reopen(self, **options: Any) -> None:
        """As after a restart with another configuration."""
        self.bench.close()
        self.bench = self.open(**options)

    def delete(self, positions: Mapping[int, list[int]]) -> None:
        self.table.commit(self.table.delete({self.paths[n]: rows for n, rows in positions.items()}), operation="DELETE")
        self.bench.sync()

    def restore(self, deleted: Mapping[int, list[int]]) -> None:
        """Files have only these deletions, or are back."""
        removes = [self.table.remove(self.paths[n]) for n in deleted if self.paths[n] in self.table.live]
        adds = [self.table.add(self.paths[n], deleted=rows) for n, rows in deleted.items()]
        self.table.commit([*removes, *adds], operation="RESTORE")
        self.bench.sync()

    def remove(self, *numbers: int) -> None:
        self.table.commit([self.table.remove(self.paths[n]) for n in numbers], operation="DELETE")
        self.bench.sync()

    def check(self, *, vectors_only: bool = True, without: str = "") -> None:
        """Every reader but Spark shows Delta's rows, and dvsync finds no difference."""
        iceberg = self.bench.iceberg()
        for name, read in READERS.items():
            if name not in ("Spark", without):
                assert sorted(read(iceberg, None)) == self.table.live_rows(), name
        if vectors_only:
            deleted = {f"{self.table.location}/{path}": rows for path, rows in self.table.deleted.items() if rows}
            assert vectors_of(iceberg) == deleted
        proof = Verifier(self.bench.context).verify(Scope(Level.METADATA), Event())
        assert proof and proof.is_right, proof.findings.counts

    def puffins(self) -> dict[str, tuple[list[str], list[str]]]:
        """The delete files by their suffix and number: the data files that they serve, and those of dead blobs."""
        (record,) = self.bench.store.list_tables()
        live = [file.path for file in self.bench.store.read_live_files(record.id)]
        names = {f"{self.table.location}/{path}": path.rpartition("/")[2][:2] for path in self.paths}
        return {
            file.path: ([names[each.data_file] for each in file.mappings], [names[each] for each in file.dead])
            for file in self.bench.store.find_delete_files(record.id, live)
        }


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, format_version=3)
    made.bench.sync()
    yield made
    made.bench.close()


def test_puffin_files_live_as_long_as_they_serve(pair: Pair) -> None:
    pair.delete({0: [1, 2], 1: [3], 2: [0]})
    assert list(pair.puffins().values()) == [(["f0", "f2", "f1"], [])]
    pair.delete({0: [5]})
    assert sorted(pair.puffins().values()) == [(["f0"], []), (["f2", "f1"], ["f0"])]
    pair.check()
    pair.remove(2)
    assert sorted(pair.puffins().values()) == [(["f0"], []), (["f1"], ["f0", "f2"])]
    pair.check()
    pair.restore({0: [1]})
    assert sorted(pair.puffins().values()) == [(["f0"], []), (["f1"], [])], "the file with the dead blob of f0 is gone"
    pair.check()
    pair.delete({1: [5, 6], 3: [0]})
    pair.remove(1)
    pair.restore({1: []})
    assert sorted(pair.puffins().values()) == [(["f0"], []), (["f3"], [])], "nor is there a dead blob of f1"
    pair.check()


def test_a_rebuilt_memory_knows_dead_blobs(pair: Pair, tmp_path: Path) -> None:
    """Without the state database: the Puffin files' footers say what they hold."""
    pair.delete({0: [1, 2], 1: [3], 2: [0]})
    pair.delete({0: [5]})
    known = pair.puffins()
    pair.bench.close()
    pair.bench.state_file.unlink()
    pair.bench = pair.open(format_version=3)
    pair.bench.sync()
    assert pair.puffins() == known and len(pair.bench.iceberg().snapshots()) == 3
    pair.restore({0: []})
    pair.check()


def test_compaction_replaces_puffin_files_that_are_mostly_dead(pair: Pair) -> None:
    pair.delete({0: [1, 2], 1: [3], 2: [0]})
    compactor = Compactor(pair.bench.context)
    pair.delete({1: [4]})
    assert compactor.compact(Event()).snapshots == 0, "a quarter is dead"
    pair.delete({0: [3]})
    assert compactor.compact(Event(), dry_run=True).delete_files_before == 1
    done = compactor.compact(Event())
    assert (done.data_files, done.delete_files_before, done.delete_files_after, done.snapshots) == (1, 1, 1, 1)
    assert all(not dead for _, dead in pair.puffins().values())
    pair.check()
    assert compactor.compact(Event()).snapshots == 0


def test_an_unreadable_vector_keeps_no_other_from_compaction(pair: Pair) -> None:
    """Vectors of several Puffin files share a new one, unless one of them cannot be read."""
    pair.delete({0: [1], 2: [1, 2, 3]})
    damaged = pair.table.dv_files[pair.table.live[pair.paths[0]]["deletionVector"]["pathOrInlineDv"]]
    pair.delete({1: [1], 3: [1, 2, 3]})
    pair.delete({2: [4], 3: [4]})
    compactor = Compactor(pair.bench.context)
    assert compactor.compact(Event(), dry_run=True) == Compaction(2, 2, 1)
    contents = damaged.read_bytes()
    damaged.write_bytes(contents[:-3])
    with pytest.raises(CorruptInput):
        compactor.compact(Event())
    assert sorted(pair.puffins().values()) == [(["f0"], ["f2"]), (["f1"], []), (["f2", "f3"], [])]
    assert compactor.compact(Event()) == Compaction(), "it is not tried again"
    damaged.write_bytes(contents)
    pair.check()


def test_a_compaction_goes_back_to_no_older_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with new settings upgrades the table between writing and committing: nothing is committed."""
    monkeypatch.setattr("daemon.maintenance.compaction.DELETE_FILES_MAX", 1)
    pair = Pair(tmp_path)
    pair.bench.sync()
    for position in range(3):
        pair.delete({0: [position]})
    old = pair.bench
    inner = Runner.write_delete_files

    def write(runner: Runner, tasks: Any, **options: Any) -> Any:
        results = inner(runner, tasks, **options)
        pair.bench = pair.open(format_version=3)
        pair.bench.sync()
        return results

    monkeypatch.setattr(Runner, "write_delete_files", write)
    assert Compactor(old.context).compact(Event()) == Compaction()
    assert pair.bench is not old and pair.bench.iceberg().metadata.format_version == 3
    old.close()
    pair.bench.close()


def test_verify_finds_a_second_delete_file(pair: Pair) -> None:
    """Both readings are wrong somewhere: some readers apply one of them, some both."""
    pair.delete({0: [1]})
    first = delete_entries(pair.bench)
    pair.delete({0: [2], 1: [1]})
    iceberg = pair.bench.iceberg()
    snapshot = iceberg.current_snapshot()
    assert snapshot is not None
    (manifest,) = [
        each
        for each in read_manifest_list(iceberg.io, snapshot.manifest_list)
        if each.content is ManifestContent.DELETES
    ]
    # The former entry, which is marked as deleted there, is live again.
    entries = [*entries_of(iceberg, manifest), *first]
    Path(manifest.manifest_path.removeprefix("file://")).unlink()
    write_manifest(
        iceberg.io,
        manifest.manifest_path,
        ManifestHeader(ManifestContent.DELETES, iceberg.schema(), iceberg.spec(), 3),
        entries,
        snapshot_id=snapshot.snapshot_id,
    )
    proof = Verifier(pair.bench.context).verify(Scope(Level.METADATA), Event())
    assert proof and proof.findings.counts[Fault.VECTOR_NOT_ALONE] == 1
    (found,) = [each for each in proof.findings.named if each.fault is Fault.VECTOR_NOT_ALONE]
    assert found.path == f"{pair.table.location}/{pair.paths[0]}"


def delete_entries(bench: Bench) -> list[ManifestEntry]:
    iceberg = bench.iceberg()
    snapshot = iceberg.current_snapshot()
    assert snapshot is not None
    return [entry for entry, _ in live_entries(iceberg, snapshot, ManifestContent.DELETES)]


@pytest.mark.parametrize("granularity", ["file", "partition"])
def test_a_table_is_upgraded_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, granularity: str) -> None:
    """The metadata at once, each data file with its first vector, the rest by maintenance; older snapshots stay."""
    unfit = "Polars native" if granularity == "partition" else ""
    monkeypatch.setattr(GRANULARITY, granularity)
    pair = Pair(tmp_path)
    pair.bench.sync()
    pair.delete({0: [1], 1: [2], 2: [3], 3: [4]})
    pair.delete({0: [5], 2: [5]})
    before = pair.bench.iceberg().current_snapshot()
    assert before is not None
    rows = pair.table.live_rows()
    pair.reopen(format_version=3)
    pair.bench.sync()
    upgraded = pair.bench.iceberg()
    assert (upgraded.metadata.format_version, upgraded.current_snapshot()) == (3, before)
    pair.check(vectors_only=False, without=unfit)
    pair.delete({0: [6]})
    pair.check(vectors_only=False, without=unfit)
    # Of two files that share a position-delete file, both have vectors now.
    served = sorted(file for path, (files, _) in pair.puffins().items() if path.endswith(".puffin") for file in files)
    assert served == (["f0", "f2"] if granularity == "partition" else ["f0"])
    pair.restore({2: [3]})
    pair.check(vectors_only=False, without=unfit)
    Compactor(pair.bench.context).compact(Event())
    assert all(path.endswith(".puffin") for path in pair.puffins())
    pair.check()
    shown = pair.bench.iceberg().scan(snapshot_id=before.snapshot_id).to_arrow().to_pylist()
    assert sorted((row["id"], row["part"], row["value"]) for row in shown) == rows
    pair.bench.close()


def test_there_is_no_way_down(pair: Pair) -> None:
    pair.delete({0: [1]})
    pair.reopen(format_version=2)
    with pytest.raises(Unsupported, match="has format version 3, and cannot go back to 2") as raised:
        pair.bench.sync()
    assert "format_version: 3" in raised.value.hint
    pair.reopen(format_version=3)
    pair.delete({0: [2]})
    pair.check()


def row_ids(bench: Bench) -> dict[str, int | None]:
    iceberg = bench.iceberg()
    snapshot = iceberg.current_snapshot()
    assert snapshot is not None
    entries = [entry.data_file for entry, _ in live_entries(iceberg, snapshot, ManifestContent.DATA)]
    return {file.file_path.rpartition("/")[2]: first_row_id(file) for file in entries}


def test_row_ids_stay_with_their_files(pair: Pair) -> None:
    """Without row tracking: assigned once, kept when manifests are rewritten, and never given away again."""
    first = row_ids(pair.bench)
    assert sorted(each for each in first.values() if each is not None) == [0, 8, 16, 24]
    pair.delete({0: [1]})
    for vector in pair.table.folder.glob("deletion_vector_*.bin"):
        vector.unlink()  # as by VACUUM: it cannot be known which rows come back
    pair.delete({0: [2]})
    pair.check()
    pair.remove(3)
    assert row_ids(pair.bench) == {name: row for name, row in first.items() if name != "f3.parquet"}
    pair.restore({3: []})
    again = row_ids(pair.bench)
    returned = again.pop("f3.parquet")
    assert returned is not None and returned >= 32 and again == row_ids_of(first, "f0", "f1", "f2")
    pair.bench.sync(full=True)
    assert len(set(row_ids(pair.bench).values())) == 4


def test_rows_that_come_back_have_the_row_ids_of_their_file(pair: Pair, spark: SparkSession) -> None:
    """Spark finds them by the new bounds of an entry that keeps its row ids and sequence number."""
    remove, add = pair.table.delete({pair.paths[0]: [0, 1, 2]})
    stats = {"numRecords": 8, "minValues": {"id": 3}, "maxValues": {"id": 7}, "nullCount": {"id": 0}}
    add["add"]["stats"] = json.dumps(stats)
    pair.table.commit([remove, add], operation="DELETE")
    pair.bench.sync(full=True)
    first = row_ids(pair.bench)["f0.parquet"]
    assert first is not None
    ((*_, sequence_number),) = spark_row_ids(pair.bench, spark, "id = 5")
    pair.restore({0: [2]})
    assert spark_row_ids(pair.bench, spark, "id < 3") == [(n, first + n, sequence_number) for n in (0, 1)]


def spark_row_ids(bench: Bench, spark: SparkSession, condition: str) -> list[tuple[int, int, int]]:
    rows = spark.read.format("iceberg").load(bench.iceberg().metadata_location).where(condition)
    return sorted(map(tuple, rows.select("id", "_row_id", "_last_updated_sequence_number").collect()))


def row_ids_of(known: Mapping[str, int | None], *names: str) -> dict[str, int | None]:
    return {f"{name}.parquet": known[f"{name}.parquet"] for name in names}


TRACKED = {
    "delta.enableDeletionVectors": "true",
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row-id-col-1",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-commit-version-col-1",
}
TRACKING = ["deletionVectors", "domainMetadata", "rowTracking"]


def track(pair: Pair, base_row_ids: Mapping[str, int], *, column: str = "_row-id-col-1", synced: bool = True) -> None:
    """Delta tracks row ids from the next version on, as after its backfill."""
    protocol = {**pair.table.protocol(TRACKING), "readerFeatures": ["deletionVectors"]}
    for path, add in pair.table.live.items():
        pair.table.live[path] = {**add, "dataChange": False, "baseRowId": base_row_ids[path]}
    adds = [{"add": add} for add in pair.table.live.values()]
    configuration = {**TRACKED, "delta.rowTracking.materializedRowIdColumnName": column}
    metadata = {**pair.table.metadata(), "configuration": configuration}
    pair.table.commit([{"protocol": protocol}, {"metaData": metadata}, *adds], operation="SET TBLPROPERTIES")
    if synced:
        pair.bench.sync()


def untrack(pair: Pair) -> None:
    """Delta no longer tracks row ids from the next version on."""
    off = {**TRACKED, "delta.enableRowTracking": "false"}
    pair.table.commit([{"metaData": {**pair.table.metadata(), "configuration": off}}])


@pytest.mark.parametrize("version", [2, 3], ids=["then upgraded", "in version 3"])
def test_a_table_gets_deltas_row_ids_when_delta_tracks_them(tmp_path: Path, version: int) -> None:
    """The whole table is written anew, because older entries have other row ids."""
    pair = Pair(tmp_path, format_version=version)
    pair.bench.sync()
    pair.delete({0: [1]})
    track(pair, {path: 1000 + 100 * n for n, path in enumerate(pair.paths)})
    if version == 2:
        pair.reopen(format_version=3)
        pair.bench.sync()
    assert row_ids(pair.bench) == {f"f{n}.parquet": 1000 + 100 * n for n in range(4)}
    metadata = pair.bench.iceberg().metadata
    assert metadata.format_version == 3 and (metadata.next_row_id or 0) >= 1308, "above all ids of Delta"
    pair.delete({1: [1]})
    pair.check()
    pair.bench.close()


def test_row_ids_after_a_pause_of_row_tracking(pair: Pair) -> None:
    """Files of the pause have row ids that Delta gave to nobody, or to other rows: the table is written anew."""
    track(pair, {path: 1000 + 100 * n for n, path in enumerate(pair.paths)})
    untrack(pair)
    pair.paths.append(pair.table.write_file([(90, "a", "v")], name="f4"))
    pair.table.commit([pair.table.add(pair.paths[4])])
    pair.bench.sync()
    assert (row_ids(pair.bench)["f4.parquet"] or 0) >= 1308
    track(pair, {path: 5000 + 100 * n for n, path in enumerate(pair.paths)})
    assert row_ids(pair.bench) == {f"f{n}.parquet": 5000 + 100 * n for n in range(5)}
    pair.check()


def base_ids(pair: Pair, start: int) -> dict[str, int]:
    return {path: start + 100 * n for n, path in enumerate(pair.paths)}


def has_base_ids(pair: Pair, start: int) -> bool:
    return row_ids(pair.bench) == {f"f{n}.parquet": start + 100 * n for n in range(4)}


@pytest.mark.parametrize("compared", [False, True], ids=["folded", "compared"])
def test_row_ids_after_a_pause_that_nobody_followed(pair: Pair, compared: bool) -> None:
    """Off and on again in one group of commits, or behind a gap of the log: Delta gave the files other row ids."""
    track(pair, base_ids(pair, 1000))
    untrack(pair)
    track(pair, base_ids(pair, 5000), synced=False)
    if compared:
        pair.bench.follower.compare("for this test")
    pair.bench.follower.sync(others_wait=lambda: True)
    assert has_base_ids(pair, 5000)
    pair.delete({1: [1]})
    assert has_base_ids(pair, 5000)
    pair.check()


def test_a_comparison_leaves_files_with_their_row_ids(pair: Pair) -> None:
    """Nothing is written anew if Delta's row ids are as they were."""
    track(pair, base_ids(pair, 1000))
    pair.table.commit(pair.table.delete({pair.paths[0]: [1]}), operation="DELETE")
    pair.bench.follower.compare("for this test")
    assert pair.bench.follower.sync().operation == "compare"
    assert has_base_ids(pair, 1000)
    pair.check()


def test_a_new_column_of_row_ids_hides_the_former_one(pair: Pair, spark_process: SparkProcess) -> None:
    """Delta names a new one after the feature was dropped, and Spark cannot read a table with two of them."""
    track(pair, base_ids(pair, 1000))
    untrack(pair)
    track(pair, base_ids(pair, 5000), column="_row-id-col-2")
    pair.delete({1: [1]})
    assert has_base_ids(pair, 5000)
    pair.check()
    assert sorted(READERS["Spark"](pair.bench.iceberg(), spark_process)) == pair.table.live_rows()


def test_verify_finds_wrong_row_ids(pair: Pair) -> None:
    track(pair, base_ids(pair, 1000))
    version = pair.table.commit_path(pair.table.version)
    version.write_text(version.read_text().replace('"baseRowId": 1100', '"baseRowId": 9100'))
    proof = Verifier(pair.bench.context).verify(Scope(Level.METADATA), Event())
    assert proof and proof.findings.counts == {Fault.ROW_ID: 1}
    (found,) = proof.findings.named
    assert (found.path, found.detail) == (f"{pair.table.location}/{pair.paths[1]}", "1100 in Iceberg, 9100 in Delta")


def test_someone_else_upgrades_a_table_of_a_tracked_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint is followed: the table gets Delta's row ids, as if dvsync had upgraded it."""
    pair = Pair(tmp_path)
    pair.bench.sync()
    pair.delete({0: [1]})
    pair.delete({0: [2]})
    track(pair, base_ids(pair, 1000))
    upgrade = pair.bench.iceberg().transaction()
    upgrade._apply((UpgradeFormatVersionUpdate(format_version=3),), ())
    upgrade.commit_transaction()
    with pytest.raises(Unsupported, match="cannot go back to 2") as raised:
        pair.bench.sync()
    assert "Set format_version: 3" in raised.value.hint
    monkeypatch.setattr("daemon.maintenance.compaction.DELETE_FILES_MAX", 1)
    pair.reopen(format_version=3)
    assert Compactor(pair.bench.context).compact(Event()) == Compaction(), "a compaction would hide what is missing"
    pair.bench.sync()
    assert has_base_ids(pair, 1000)
    before = Verifier(pair.bench.context).verify(Scope(Level.METADATA, at=3), Event())
    assert before and before.is_right, "snapshots of version 2 have no row ids"
    pair.delete({1: [1]})
    pair.check()
    pair.bench.close()


@pytest.mark.parametrize("granularity", ["file", "partition"])
@pytest.mark.parametrize("removes", [False, True], ids=["deletes", "removes"])
def test_an_upgraded_table_with_delete_files_that_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, granularity: str, removes: bool
) -> None:
    """f0 and f2 share a delete file, f2 and f4 another one: a change of f0 takes over the deletions of all three."""
    monkeypatch.setattr(GRANULARITY, "partition")
    pair = Pair(tmp_path)
    pair.paths.append(pair.table.write_file([(40 + row, "a", f"v{row}") for row in range(8)], name="f4"))
    pair.table.commit([pair.table.add(pair.paths[4])])
    pair.bench.sync()
    pair.delete({0: [1], 2: [3]})
    pair.delete({2: [5], 4: [5]})
    pair.delete({1: [5]})
    with pair.bench.iceberg().transaction() as transaction:
        transaction.set_properties({DELETE_GRANULARITY: granularity})
    pair.reopen(format_version=3)
    if removes:
        pair.remove(0)
    else:
        pair.delete({0: [6]})
    served = {file for path, (files, _) in pair.puffins().items() if path.endswith(".puffin") for file in files}
    assert served == {"f2", "f4"} | (set() if removes else {"f0"})
    pair.check(vectors_only=False)
    pair.bench.close()


@pytest.mark.parametrize("version", [2, 3], ids=["by an upgrade", "by row tracking"])
def test_a_table_written_anew_gets_no_schema_that_nobody_accepted(tmp_path: Path, version: int) -> None:
    """With `on_schema_change: park`, whatever the reason why dvsync writes the table anew; a resync accepts it."""
    pair = Pair(tmp_path, format_version=version, on_schema_change="park")
    pair.bench.sync()
    if version == 2:
        track(pair, base_ids(pair, 1000))
    columns = (*COLUMNS, ("extra", "string"))
    tracked = {**pair.table.metadata(columns), "configuration": TRACKED}
    if version == 2:
        pair.table.commit([{"metaData": tracked}])
        pair.reopen(format_version=3, on_schema_change="park")
    else:
        track(pair, base_ids(pair, 1000), synced=False)
        pair.table.commit([{"metaData": tracked}])
    for _ in range(2):
        with pytest.raises(SchemaChanged, match="new column extra: string"):
            pair.bench.follower.sync()
        assert len(pair.bench.iceberg().schema().fields) == len(COLUMNS)
    pair.bench.sync(full=True)
    assert "extra" in pair.bench.iceberg().schema().column_names
    assert has_base_ids(pair, 1000)
    pair.bench.close()


def test_void_columns(pair: Pair, spark_process: SparkProcess) -> None:
    """Nulls for all readers but DuckDB. If that fails, it has learned the type: see `NEW_TYPES`."""
    pair.reopen(format_version=3, readers=["spark", "pyiceberg", "polars"])
    pair.table.commit([{"metaData": pair.table.metadata((*COLUMNS, ("nothing", "void")))}])
    pair.delete({0: [1]})
    iceberg = pair.bench.iceberg()
    assert isinstance(iceberg.schema().find_type("nothing"), UnknownType)
    expected = [(*row, None) for row in pair.table.live_rows()]
    for name in READERS.keys() - {"DuckDB"}:
        assert sorted(READERS[name](iceberg, spark_process)) == expected, name
    with pytest.raises(duckdb.Error, match="type: unknown"):
        READERS["DuckDB"](iceberg, None)


def is_deleted(row: int) -> bool:
    return 10 <= row <= 70000 or (row > 130000 and row % 2 == 0) or row in (80000, 80001)


def write_vectors(session: SparkSession, folder: Path) -> int:
    """The number of rows that the table has lost: a run, every second row, a few; in containers of all three kinds."""
    for key, value in {"": SPARK_CATALOG, ".type": "hadoop", ".warehouse": f"file://{folder}"}.items():
        session.conf.set(f"spark.sql.catalog.v3{key}", value)
    session.sql(
        "CREATE TABLE v3.db.t (id BIGINT, part STRING) USING iceberg PARTITIONED BY (part)"
        " TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')"
    )
    session.range(0, 200_000, 1, 1).selectExpr("id", "if(id < 150000, 'x', 'y') AS part").writeTo("v3.db.t").append()
    deleted = "id BETWEEN 10 AND 70000 OR id > 130000 AND id % 2 = 0 OR id IN (80000, 80001)"
    session.sql(f"DELETE FROM v3.db.t WHERE {deleted}")
    return int(session.sql("SELECT 200000 - count(*) AS n FROM v3.db.t").collect()[0].n)


def test_vectors_that_spark_writes_are_ours_byte_for_byte(spark_process: SparkProcess, tmp_path: Path) -> None:
    """Iceberg's Java library writes deletion vectors: our codecs read them, and would write the same bytes."""
    lost = spark_process(write_vectors, tmp_path)
    metadata = max((tmp_path / "db" / "t" / "metadata").glob("v*.metadata.json"), key=lambda path: path.stat().st_mtime)
    table = StaticTable.from_metadata(f"file://{metadata}")
    snapshot, storage = table.current_snapshot(), FileIOStorage()
    assert snapshot is not None
    found = 0
    for entry, _ in live_entries(table, snapshot, ManifestContent.DELETES):
        file, span = entry.data_file, content_span(entry.data_file)
        assert span is not None
        path = normalize_location(file.file_path)
        data_file = referenced_data_file(file) or ""
        assert Blob(data_file, *span, file.record_count) in read_blobs(storage, path, file.file_size_in_bytes)
        frame = storage.read(path, Span(*span))
        positions = decode_positions(
            memoryview(frame)[4:-4], cardinality=file.record_count, place=DVPlace(path, span[0])
        )
        bitmap = as_bitmap(positions)
        assert bytes(frame_bytes(encode_positions(bitmap))) == frame
        ids = pq.read_table(normalize_location(data_file).removeprefix("file://"))["id"].to_pylist()
        deleted = [position for position, row in enumerate(ids) if is_deleted(row)]
        assert list(bitmap) == deleted
        found += len(deleted)
    assert found == lost > 100_000
