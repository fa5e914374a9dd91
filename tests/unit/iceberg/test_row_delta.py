"""One snapshot's manifests: what is added, what leaves, and what is not touched at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

import pytest
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from daemon.errors import ResyncNeeded
from daemon.iceberg import merging, row_delta
from daemon.iceberg.merging import live_files
from daemon.iceberg.row_delta import JOINED_ENTRIES_MAX, RowDelta
from daemon.iceberg.target import Definition
from tests.kit.made import BY_PART, SCHEMA, UNPARTITIONED, MadeTable, data_file, delete_file, entries, read_avro
from tests.kit.readers import duckdb_connection


@pytest.fixture
def made(tmp_path: Path) -> Iterator[MadeTable]:
    made = MadeTable(tmp_path)
    yield made
    made.close()


@pytest.fixture
def partitioned(tmp_path: Path) -> Iterator[MadeTable]:
    made = MadeTable(tmp_path, BY_PART)
    yield made
    made.close()


def some(*paths: str) -> list[DataFile]:
    return [data_file(path) for path in paths]


# --- the operation ---

DATA, DELETES = [data_file("a")], [delete_file("d")]
GONE = {"m": {"x"}}


@pytest.mark.parametrize(
    ("added", "removed", "deletes", "deletes_removed", "same_rows", "expected"),
    [
        (DATA, {}, [], {}, False, Operation.APPEND),
        (DATA, {}, [], {}, True, Operation.APPEND),
        ([], GONE, [], {}, False, Operation.DELETE),
        ([], GONE, [], GONE, False, Operation.DELETE),
        ([], {}, DELETES, {}, False, Operation.DELETE),
        ([], GONE, DELETES, GONE, False, Operation.DELETE),
        (DATA, GONE, [], {}, False, Operation.OVERWRITE),
        (DATA, {}, DELETES, {}, False, Operation.OVERWRITE),
        (DATA, GONE, DELETES, GONE, False, Operation.OVERWRITE),
        (DATA, GONE, [], GONE, True, Operation.REPLACE),
    ],
)
def test_the_operation(
    *,
    added: Sequence[DataFile],
    removed: Mapping[str, Set[str]],
    deletes: Sequence[DataFile],
    deletes_removed: Mapping[str, Set[str]],
    same_rows: bool,
    expected: Operation,
) -> None:
    """Iceberg spec, "Snapshots": append adds rows, delete takes rows, replace moves them, overwrite is the rest."""
    delta = RowDelta(
        snapshot_id=1,
        added_data_files=added,
        removed_data_files=removed,
        added_delete_files=deletes,
        removed_delete_files=deletes_removed,
        same_rows=same_rows,
    )
    assert delta.operation is expected


def test_manifests_of_spark_tasks_are_data_files() -> None:
    """A first sync has its data files in manifests that are written already: an append, with deletes an overwrite."""
    written = [ManifestFile.from_args(manifest_path="m")]
    assert RowDelta(snapshot_id=1, written_manifests=written).operation is Operation.APPEND
    delta = RowDelta(snapshot_id=1, written_manifests=written, added_delete_files=DELETES)
    assert delta.operation is Operation.OVERWRITE


# --- what is added ---


def test_data_and_delete_files_have_manifests_of_their_own(made: MadeTable) -> None:
    """One manifest for each content; entries are added by this snapshot and inherit its sequence number."""
    prepared = made.commit(added_data_files=some("a", "b"), added_delete_files=[delete_file("d")])
    data, deletes = made.manifests()
    assert (data.content, deletes.content) == (ManifestContent.DATA, ManifestContent.DELETES)
    assert prepared.placements == {"a": data.manifest_path, "b": data.manifest_path, "d": deletes.manifest_path}
    assert prepared.moved_manifests == {}
    for manifest in (data, deletes):
        assert set(entries(manifest.manifest_path).values()) == {("added", 1, None, None)}
    assert {sequence for _, _, sequence in made.live().values()} == {1}


def test_manifests_are_bounded(made: MadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest is rewritten whole when one of its files leaves, so it holds no more than so many entries."""
    monkeypatch.setattr(row_delta, "MANIFEST_ENTRIES_MAX", 2)
    prepared = made.commit(added_data_files=some(*"abcde"))
    assert [len(entries(manifest.manifest_path)) for manifest in made.manifests()] == [2, 2, 1]
    assert len(set(prepared.placements.values())) == 3
    assert prepared.placements["a"] == prepared.placements["b"] != prepared.placements["c"]


def test_a_manifest_has_one_spec(made: MadeTable) -> None:
    """Files of two partition specs go to two manifests, each with the spec that its partition tuples are of."""
    made.commit(added_data_files=some("a"))
    other = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"), spec_id=1)
    made.definition = Definition(SCHEMA, other)
    files = [data_file("b", part="x", spec=other), data_file("c")]
    made.commit(added_data_files=files, added_delete_files=[delete_file("d")])
    assert [(manifest.partition_spec_id, manifest.content.value) for manifest in made.manifests()] == [
        (1, 0),
        (0, 0),
        (0, 1),
        (0, 0),
    ]
    (row,) = read_avro(made.manifests()[0].manifest_path)
    assert row["data_file"]["partition"] == {"part": "x"}


def test_names_are_announced_before_the_files_exist(made: MadeTable) -> None:
    """Whatever a kill leaves behind is known: manifests and the manifest list are announced, then written."""
    exists: list[bool] = []

    class Announced(list[str]):
        def extend(self, paths: Sequence[str]) -> None:  # type: ignore[override]
            exists.extend(Path(path.removeprefix("file://")).exists() for path in paths)
            super().extend(paths)

    made.announced = Announced()
    prepared = made.commit(added_data_files=some("a"), added_delete_files=[delete_file("d")])
    assert exists == [False, False, False]
    assert set(made.announced) == {*prepared.placements.values(), prepared.manifest_list_path}
    written = {f"file://{path}" for path in made.folder.glob("**/*.avro")}
    assert written == set(made.announced)
    assert len(set(made.announced)) == 3


# --- what is carried, what is rewritten ---


def test_manifests_without_a_change_are_carried_untouched(made: MadeTable) -> None:
    """A deletion writes one small manifest: the others keep path, bytes and their record in the manifest list."""
    made.commit(added_data_files=some("a", "b"), added_delete_files=[delete_file("d1")])
    before = made.manifests()
    first_list = _manifest_list(made)
    contents = [_bytes(manifest) for manifest in before]
    prepared = made.commit(added_delete_files=[delete_file("d2")])
    new, *carried = made.manifests()
    assert new.manifest_path == prepared.placements["d2"]
    assert [manifest.manifest_path for manifest in carried] == [manifest.manifest_path for manifest in before]
    assert [_bytes(manifest) for manifest in carried] == contents
    assert _manifest_list(made)[1:] == first_list
    assert {path: sequence for path, (_, _, sequence) in made.live().items()} == {"a": 1, "b": 1, "d1": 1, "d2": 2}


def _manifest_list(made: MadeTable) -> list[dict[str, object]]:
    snapshot = made.table().current_snapshot()
    assert snapshot is not None
    return read_avro(snapshot.manifest_list)


def _bytes(manifest: ManifestFile) -> bytes:
    return Path(manifest.manifest_path.removeprefix("file://")).read_bytes()


def test_only_the_manifest_of_a_removed_file_is_rewritten(made: MadeTable) -> None:
    """Its other entries are existing with their ids and numbers, the removed one is deleted by this snapshot."""
    made.commit(added_data_files=some("a", "b"))
    made.commit(added_data_files=some("c"))
    old, other = made.live()["a"][0], made.live()["c"][0]
    prepared = made.commit(removed_data_files={old: {"a"}})
    (new,) = prepared.moved_manifests.values()
    assert prepared.moved_manifests == {old: new}
    assert {manifest.manifest_path for manifest in made.manifests()} == {new, other}
    assert entries(new) == {"a": ("deleted", 3, 1, 1), "b": ("existing", 1, 1, 1)}
    assert made.live() == {"b": (new, 1, 1), "c": (other, 2, 2)}
    # The older snapshot still has the older manifest.
    assert Path(old.removeprefix("file://")).exists()


def test_delete_files_leave_with_their_data_file(made: MadeTable) -> None:
    """Data and delete manifests are rewritten in one snapshot, each by its own removals."""
    made.commit(added_data_files=some("a", "b"), added_delete_files=[delete_file("d1"), delete_file("d2", serves="b")])
    data, deletes = (manifest.manifest_path for manifest in made.manifests())
    made.commit(removed_data_files={data: {"a"}}, removed_delete_files={deletes: {"d1"}})
    assert set(made.live()) == {"b", "d2"}
    summary = made.summary()
    assert (summary["deleted-data-files"], summary["removed-delete-files"]) == ("1", "1")
    assert (summary["total-data-files"], summary["total-delete-files"], summary["total-position-deletes"]) == (
        "1",
        "1",
        "2",
    )


def test_a_file_that_is_removed_and_added_has_a_new_sequence_number(made: MadeTable) -> None:
    """A restored file: older deletes do not reach the new entry, those of the same snapshot do."""
    made.commit(added_data_files=some("a", "b"))
    made.commit(added_delete_files=[delete_file("d1")])
    data, deletes = made.live()["a"][0], made.live()["d1"][0]
    made.commit(
        added_data_files=some("a"),
        removed_data_files={data: {"a"}},
        added_delete_files=[delete_file("d2", 1)],
        removed_delete_files={deletes: {"d1"}},
    )
    assert {path: sequence for path, (_, _, sequence) in made.live().items()} == {"a": 3, "b": 1, "d2": 3}
    summary = made.summary()
    assert (summary["added-data-files"], summary["deleted-data-files"], summary["total-data-files"]) == ("1", "1", "2")
    assert (summary["added-position-deletes"], summary["removed-position-deletes"]) == ("1", "2")
    assert summary["total-position-deletes"] == "1"


def test_a_file_that_is_renewed_keeps_its_place(made: MadeTable) -> None:
    """Its entry has other bounds, and the numbers that it had; neither the file nor its rows are counted as new."""
    made.commit(added_data_files=some("a", "b"))
    place, snapshot_id, _ = made.live()["a"]
    (renewed,) = some("a")
    renewed.lower_bounds[1] = bytes([1] * 8)
    delta = {"removed_data_files": {place: {"b"}}, "renewed_data_files": {place: {"a": renewed}}}
    assert made.commit(added_delete_files=[delete_file("d")], **delta).operation is Operation.OVERWRITE
    place, *_ = made.live()["a"]
    assert entries(place)["a"] == ("existing", snapshot_id, 1, 1)
    bounds = {row["data_file"]["file_path"]: row["data_file"]["lower_bounds"] for row in read_avro(place)}
    assert bounds == {"a": {1: bytes([1] * 8)}, "b": {1: bytes(8)}}
    summary = made.summary()
    assert [summary.get(name) for name in ("added-data-files", "total-data-files", "total-records")] == [
        None,
        "1",
        "10",
    ]


def test_a_manifest_of_deleted_entries_goes_with_the_next_commit(made: MadeTable) -> None:
    """It tells what its own snapshot deleted, and nothing after that."""
    made.commit(added_data_files=some("a"), added_delete_files=[delete_file("d")])
    data, deletes = (manifest.manifest_path for manifest in made.manifests())
    made.commit(removed_data_files={data: {"a"}}, removed_delete_files={deletes: {"d"}})
    assert [
        (manifest.deleted_files_count, len(manifest.fetch_manifest_entry(made.table().io)))
        for manifest in made.manifests()
    ] == [(1, 0), (1, 0)]
    made.commit(added_data_files=some("b"))
    assert len(made.manifests()) == 1
    assert set(made.live()) == {"b"}


def test_a_shared_delete_file_is_replaced_in_its_partition(partitioned: MadeTable) -> None:
    """What is left of it goes into a new entry of the same partition, and is counted as removed and added."""
    files = [data_file(name, part=part, spec=BY_PART) for name, part in (("a", "x"), ("b", "x"), ("c", "y"))]
    shared = delete_file("both", 5, None, "x", spec=BY_PART)
    partitioned.commit(added_data_files=files, added_delete_files=[shared])
    data, deletes = (manifest.manifest_path for manifest in partitioned.manifests())
    prepared = partitioned.commit(
        removed_data_files={data: {"a"}},
        removed_delete_files={deletes: {"both"}},
        replacements=[("both", delete_file("rest", 2, "b"))],
    )
    assert set(partitioned.live()) == {"b", "c", "rest"}
    assert partitioned.live()["rest"] == (prepared.placements["rest"], 2, 2)
    # Both entries are in one manifest, which is written anew for the one that goes.
    gone, row = read_avro(prepared.placements["rest"])
    assert (gone["status"], row["status"], prepared.moved_manifests[deletes]) == (2, 1, prepared.placements["rest"])
    assert row["data_file"]["partition"] == {"part": "x"}
    assert row["data_file"]["referenced_data_file"] == "b"
    summary = partitioned.summary()
    assert (summary["added-position-deletes"], summary["removed-position-deletes"]) == ("2", "5")
    assert (summary["total-delete-files"], summary["total-position-deletes"]) == ("1", "2")


def test_several_delete_files_become_one_in_a_replace_snapshot(partitioned: MadeTable) -> None:
    """Compaction: rows stay, one entry comes in the place of several, and their manifests become one."""
    partitioned.commit(added_data_files=[data_file("a", part="x", spec=BY_PART)])
    for number in range(3):
        partitioned.commit(added_delete_files=[delete_file(f"d{number}", 2, "a", "x", spec=BY_PART)])
    live = partitioned.live()
    prepared = partitioned.commit(
        removed_delete_files={live[f"d{number}"][0]: {f"d{number}"} for number in range(3)},
        replacements=[("d1", delete_file("all", 6, "a"))],
        same_rows=True,
    )
    assert prepared.operation is Operation.REPLACE
    assert set(partitioned.live()) == {"a", "all"}
    deletes = [each for each in partitioned.manifests() if each.content is ManifestContent.DELETES]
    assert sorted((each.added_files_count, each.deleted_files_count) for each in deletes) == [(1, 3)]
    *gone, row = read_avro(prepared.placements["all"])
    assert ([each["status"] for each in gone], row["status"]) == ([2, 2, 2], 1)
    assert row["data_file"]["partition"] == {"part": "x"}
    assert set(prepared.moved_manifests) == {live[f"d{number}"][0] for number in range(3)}
    summary = partitioned.summary()
    assert (summary["total-delete-files"], summary["total-position-deletes"]) == ("1", "6")


def test_an_added_delete_file_joins_no_large_manifest(made: MadeTable) -> None:
    """Else each commit to one data file would write the entries of all others anew."""
    files = [data_file(f"f{number}") for number in range(JOINED_ENTRIES_MAX)]
    deletes = [delete_file(f"d{number}", 1, f"f{number}") for number in range(JOINED_ENTRIES_MAX)]
    made.commit(added_data_files=files, added_delete_files=deletes)
    live = made.live()
    (large,) = {live[f"d{number}"][0] for number in range(JOINED_ENTRIES_MAX)}
    for number in (1, 2):
        place = made.live()["d0" if number == 1 else "n1"][0]
        assert (place == large) is (number == 1)
        gone = "d0" if number == 1 else "n1"
        made.commit(removed_delete_files={place: {gone}}, added_delete_files=[delete_file(f"n{number}", 1, "f0")])
    live = made.live()
    in_small = [path for path, place in live.items() if place[0] == live["n2"][0]]
    assert in_small == ["n2"]


def test_small_manifests_are_merged_when_there_are_enough(made: MadeTable) -> None:
    """Entries keep their snapshot and sequence numbers, and the state store learns where each went."""
    made.definition = Definition(SCHEMA, UNPARTITIONED, {"commit.manifest.min-count-to-merge": "3"})
    for number in range(3):
        made.commit(added_data_files=some(f"f{number}"))
    before = made.live()
    assert len(made.manifests()) == 3
    prepared = made.commit(added_data_files=some("f3"))
    assert len(made.manifests()) == 2
    after = made.live()
    assert {path: after[path][1:] for path in before} == {path: place[1:] for path, place in before.items()}
    assert {prepared.moved_manifests[place[0]] for place in before.values()} == {after["f0"][0]}
    assert made.summary()["total-data-files"] == "4"
    assert "deleted-data-files" not in made.summary()


def test_a_full_manifest_takes_no_part_in_a_merge(made: MadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that holds more than half of what a manifest may hold is not written again for a small change."""
    monkeypatch.setattr(merging, "MANIFEST_ENTRIES_MAX", 4)
    made.definition = Definition(SCHEMA, UNPARTITIONED, {"commit.manifest.min-count-to-merge": "3"})
    made.commit(added_data_files=some("a", "b", "c"))
    big = made.manifests()[0].manifest_path
    for number in range(6):
        made.commit(added_data_files=some(f"f{number}"))
        assert big in {manifest.manifest_path for manifest in made.manifests()}
    assert [live_files(manifest) for manifest in made.manifests()] == [1, 1, 1, 3, 3]


def test_everything_is_replaced_whoever_wrote_it(made: MadeTable) -> None:
    """Nothing of the parent's manifests is carried over, and the totals are those of what is added."""
    made.commit(added_data_files=some("a", "b"), added_delete_files=[delete_file("d")])
    prepared = made.commit(replaces_all=True, added_data_files=some("a", "c"))
    assert prepared.operation is Operation.OVERWRITE
    assert set(made.live()) == {"a", "c"}
    assert made.live()["a"][2] == 2, "older deletes do not reach it"
    summary = made.summary()
    assert (summary["deleted-data-files"], summary["deleted-records"], summary["removed-delete-files"]) == (
        "2",
        "20",
        "1",
    )
    assert (summary["total-data-files"], summary["total-delete-files"], summary["total-records"]) == ("2", "0", "20")
    made.commit(replaces_all=True)
    assert made.live() == {}
    assert made.summary()["total-data-files"] == "0"


def test_an_emptied_table_has_zero_totals(made: MadeTable) -> None:
    """All rows deleted: totals are there, and zero."""
    made.commit(added_data_files=some("a"), added_delete_files=[delete_file("d")])
    data, deletes = (manifest.manifest_path for manifest in made.manifests())
    made.commit(removed_data_files={data: {"a"}}, removed_delete_files={deletes: {"d"}})
    assert {name: value for name, value in made.summary().items() if name.startswith("total-")} == {
        "total-data-files": "0",
        "total-delete-files": "0",
        "total-records": "0",
        "total-files-size": "0",
        "total-position-deletes": "0",
        "total-equality-deletes": "0",
    }


def test_the_summary_counts_what_the_snapshot_does(partitioned: MadeTable) -> None:
    """Added and removed files, records, bytes, positions and changed partitions; zeros are left out."""
    files = [
        data_file(name, rows, part, spec=BY_PART)
        for name, rows, part in (("a", 1, "x"), ("b", 20, "y"), ("c", 300, None))
    ]
    partitioned.commit(added_data_files=files)
    assert _counts(partitioned) == {
        "added-data-files": "3",
        "added-records": "321",
        "added-files-size": str(3 * 100 + 321),
        "changed-partition-count": "3",
    }
    manifest = partitioned.live()["a"][0]
    deletes = [delete_file("d1", 7, "b", "y", spec=BY_PART), delete_file("d2", 2, None, "x", spec=BY_PART)]
    partitioned.commit(removed_data_files={manifest: {"b"}}, added_delete_files=deletes)
    assert _counts(partitioned) == {
        "deleted-data-files": "1",
        "deleted-records": "20",
        "removed-files-size": "120",
        "added-delete-files": "2",
        "added-position-delete-files": "2",
        "added-position-deletes": "9",
        "added-files-size": "100",
        "changed-partition-count": "2",
    }
    summary = partitioned.summary()
    assert [
        summary[f"total-{name}"] for name in ("data-files", "records", "files-size", "delete-files", "position-deletes")
    ] == ["2", "301", str(101 + 400 + 100), "2", "9"]


def _counts(made: MadeTable) -> dict[str, str]:
    return {name: value for name, value in made.summary().items() if not name.startswith("total-") and name != "marker"}


def test_duckdb_sees_the_same_entries(made: MadeTable) -> None:
    """Another engine's view of the manifests after adds, removals and rewrites."""
    made.commit(added_data_files=some("a", "b"), added_delete_files=[delete_file("d1"), delete_file("d2", serves="b")])
    data, deletes = (manifest.manifest_path for manifest in made.manifests())
    made.commit(removed_data_files={data: {"a"}}, removed_delete_files={deletes: {"d1"}}, added_data_files=some("c"))
    rows = duckdb_connection().execute(
        "SELECT file_path, manifest_content, status FROM iceberg_metadata(?)", [made.table().metadata_location]
    )
    assert {row for row in rows.fetchall() if row[2] != "DELETED"} == {
        ("b", "DATA", "EXISTING"),
        ("c", "DATA", "ADDED"),
        ("d2", "DELETE", "EXISTING"),
    }


# --- the state store may be wrong ---


@pytest.mark.parametrize("kind", ["removed_data_files", "removed_delete_files", "renewed_data_files"])
@pytest.mark.parametrize("place", ["elsewhere", "data", "deletes"])
def test_a_file_that_is_not_where_it_should_be(made: MadeTable, kind: str, place: str) -> None:
    """A wrong memory is told with file and manifest, before anything is announced or written."""
    made.commit(added_data_files=some("a"), added_delete_files=[delete_file("d")])
    paths = dict(zip(("data", "deletes"), (manifest.manifest_path for manifest in made.manifests()), strict=True))
    manifest = paths.get(place, "file:///gone.avro")
    made.announced.clear()
    written = set(made.folder.glob("**/*"))
    with pytest.raises(ResyncNeeded, match="says that a manifest holds zzz, but it does not") as caught:
        made.prepare(made.table(), **{kind: {manifest: {"zzz": data_file("zzz")}}, "added_data_files": some("n")})
    assert caught.value.path == manifest
    assert made.announced == []
    assert set(made.folder.glob("**/*")) == written


def test_a_file_that_has_left_already_is_not_there(made: MadeTable) -> None:
    """A deleted entry is no live one: removing the file again is a wrong memory, not a second removal."""
    made.commit(added_data_files=some("a", "b"))
    made.commit(removed_data_files={made.live()["a"][0]: {"a"}})
    with pytest.raises(ResyncNeeded):
        made.prepare(made.table(), removed_data_files={made.live()["b"][0]: {"a"}})


def test_one_wrong_place_among_right_ones(made: MadeTable) -> None:
    """All removals must hold, whichever manifest they are in."""
    made.commit(added_data_files=some("a", "b"))
    manifest = made.live()["a"][0]
    with pytest.raises(ResyncNeeded, match="a manifest holds zzz, but it does not"):
        made.prepare(made.table(), removed_data_files={manifest: {"a", "zzz"}})


# --- a partition column that is dropped ---


def test_a_partition_column_leaves_with_its_files(partitioned: MadeTable) -> None:
    """REPLACE TABLE without the partition column: files and manifests of the older spec go, and readers can go on."""
    partitioned.commit(added_data_files=[data_file("a", part="x", spec=BY_PART)], added_delete_files=[])
    manifest = partitioned.live()["a"][0]
    spec = PartitionSpec(spec_id=1)
    partitioned.definition = Definition(Schema(NestedField(1, "id", LongType()), schema_id=1), spec)
    prepared = partitioned.commit(removed_data_files={manifest: {"a"}}, added_data_files=[data_file("b", spec=spec)])
    assert set(partitioned.live()) == {"b"}
    # A manifest that says of a column that is gone which files went with it would trip readers.
    assert [manifest.partition_spec_id for manifest in partitioned.manifests()] == [1]
    assert prepared.moved_manifests == {}
    summary = partitioned.summary()
    assert (summary["deleted-data-files"], summary["total-data-files"]) == ("1", "1")
    partitioned.commit(added_data_files=[data_file("c", spec=spec)])
    assert set(partitioned.live()) == {"b", "c"}


def test_unpartitioned_is_no_dropped_column(made: MadeTable) -> None:
    """A spec without fields asks for no column: its emptied manifest tells what left, as always."""
    made.commit(added_data_files=some("a"))
    made.definition = Definition(Schema(NestedField(3, "other", LongType()), schema_id=1), UNPARTITIONED)
    made.commit(removed_data_files={made.live()["a"][0]: {"a"}})
    assert [manifest.deleted_files_count for manifest in made.manifests()] == [1]
