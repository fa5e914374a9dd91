"""`dvsync verify` finds each wrong that is planted, names it, and finds it at the level that can see it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.typedef import Record
from pyspark.sql import SparkSession

from daemon.iceberg.manifests import ManifestHeader, read_manifest_list, write_manifest
from daemon.iceberg.references import entries_of
from daemon.spark.row_hashes import FILE, POSITION, hash_rows
from daemon.verify.findings import Fault, Level
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.invoke import invoke

CONFIG = """
state: {{url: "sqlite:///{folder}/dvsync/state.db"}}
catalogs: {{local: {{type: sql, uri: "sqlite:///{folder}/dvsync/catalog.db", warehouse: "file://{folder}/warehouse"}}}}
tables: [{{name: t, source: "{source}", target: lake.t, catalog: local}}]
"""


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    """Two partitions with two files of ten rows each; two files have deletion vectors. dvsync has followed it."""
    return followed(tmp_path, ("a0", "a1", "b2", "b3"), {"a0": {2, 3}, "b2": {5}})


def followed(folder: Path, names: Sequence[str], deleted: Mapping[str, set[int]]) -> HandmadeTable:
    """A table that dvsync has followed. A file's name is its partition and its number, and tells its ids."""
    made = HandmadeTable(folder / "lake" / "t", partitioned=True)
    made.create()
    paths = {
        name: made.write_file([(10 * int(name[1]) + row, name[0], f"value {row}") for row in range(10)], name=name)
        for name in names
    }
    made.commit([made.add(path) for path in paths.values()])
    made.commit(made.delete({paths[name]: positions for name, positions in deleted.items()}), operation="DELETE")
    bench = Bench(folder / "dvsync", made.location)
    bench.sync()
    bench.close()
    (folder / "config.yaml").write_text(CONFIG.format(folder=folder, source=made.location))
    return made


@pytest.fixture
def verify(tmp_path: Path, spark: SparkSession) -> Callable[..., tuple[int, dict[str, Any]]]:
    """`dvsync verify --json` in this process, on the session of the tests."""

    def run(*options: str) -> tuple[int, dict[str, Any]]:
        result = invoke(["verify", "t", "--json", *options, "--config", f"{tmp_path}/config.yaml"])
        assert result.stdout, repr(result.exception)
        (proof,) = json.loads(result.stdout)
        assert "error" not in proof, proof["error"]["message"]
        return result.exit_code, proof

    return run


def edit_commit(table: HandmadeTable, version: int, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Change each action of a commit, or take it out: Delta then has what Iceberg should have shown."""
    path = table.commit_path(version)
    actions = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(action) + "\n" for action in actions if action))


def edit_entries(folder: Path, content: ManifestContent, change: Callable[[ManifestEntry], None]) -> None:
    """Change the entries of the current snapshot's manifests of this kind, in place."""
    bench = Bench(folder / "dvsync", "unused")
    iceberg = bench.iceberg()
    snapshot = iceberg.current_snapshot()
    assert snapshot is not None
    for manifest in read_manifest_list(iceberg.io, snapshot.manifest_list):
        if manifest.content is content:
            entries = entries_of(iceberg, manifest)
            for entry in entries:
                change(entry)
            os.remove(manifest.manifest_path.removeprefix("file://"))
            write_manifest(
                iceberg.io,
                manifest.manifest_path,
                ManifestHeader(content, iceberg.schema(), iceberg.spec()),
                entries,
                snapshot_id=snapshot.snapshot_id,
            )
    bench.close()


def with_vector(table: HandmadeTable, name: str, positions: set[int]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Give the data file another deletion vector in Delta's log."""
    path = next(path for path in table.live if path.endswith(f"{name}.parquet"))
    descriptor = table.write_dvs({path: positions})[path]

    def change(action: dict[str, Any]) -> dict[str, Any]:
        if action.get("add", {}).get("path", "").endswith(f"{name}.parquet"):
            action["add"]["deletionVector"] = descriptor
        return action

    return change


def plant_vector(table: HandmadeTable, name: str, positions: set[int]) -> None:
    edit_commit(table, 2, with_vector(table, name, positions))


def plant_other_partition(table: HandmadeTable, folder: Path) -> None:
    def change(entry: ManifestEntry) -> None:
        if entry.data_file.partition[0] == "a":
            entry.data_file[_place("partition")] = Record("b")

    edit_entries(folder, ManifestContent.DELETES, change)


def plant_wrong_bound(folder: Path, name: str) -> None:
    def change(entry: ManifestEntry) -> None:
        if entry.data_file.file_path.endswith(f"{name}.parquet"):
            bounds = dict(entry.data_file.lower_bounds)
            entry.data_file[_place("lower_bounds")] = bounds | {1: (10 * int(name[1]) + 2).to_bytes(8, "little")}

    edit_entries(folder, ManifestContent.DATA, change)


def plant_file_too_many(table: HandmadeTable, name: str) -> None:
    def change(action: dict[str, Any]) -> dict[str, Any] | None:
        return None if action.get("add", {}).get("path", "").endswith(f"{name}.parquet") else action

    edit_commit(table, 1, change)


def plant_dropped_column(table: HandmadeTable, folder: Path) -> None:
    bench = Bench(folder / "dvsync", "unused")
    with bench.iceberg().update_schema() as update:
        update.delete_column("value")
    bench.close()


def plant_value(folder: Path, name: str) -> None:
    """Readers take the values of a partition column from the entry."""

    def change(entry: ManifestEntry) -> None:
        if entry.data_file.file_path.endswith(f"{name}.parquet"):
            entry.data_file[_place("partition")] = Record("b")

    edit_entries(folder, ManifestContent.DATA, change)


def _place(field: str) -> int:
    return {"partition": 3, "lower_bounds": 10}[field]


# What is wrong with a file, by its name.
PLANTED: dict[str, dict[Level, set[Fault]]] = {
    # A position is missing.
    "a0": {
        Level.METADATA: {Fault.DELETED_COUNT},
        Level.BITMAPS: {Fault.ROWS_SURPLUS},
        Level.ROWS: {Fault.ROWS_SURPLUS},
    },
    # There is one too many.
    "a1": {
        Level.METADATA: {Fault.DELETED_COUNT},
        Level.BITMAPS: {Fault.ROWS_MISSING},
        Level.ROWS: {Fault.ROWS_MISSING},
    },
    # One is in the place of another.
    "a2": {Level.BITMAPS: {Fault.ROWS_MISSING, Fault.ROWS_SURPLUS}, Level.ROWS: {Fault.VALUES}},
    # A bound is wrong.
    "a3": {Level.METADATA: {Fault.BOUNDS}},
    # So is the partition.
    "a4": {Level.METADATA: {Fault.PARTITION}, Level.ROWS: {Fault.VALUES}},
    # Delta does not have the file.
    "b5": {Level.METADATA: {Fault.FILE_SURPLUS}, Level.BITMAPS: {Fault.FILE_SURPLUS}, Level.ROWS: {Fault.ROWS_SURPLUS}},
    "b6": {},
}
OF_ALL_FILES: list[tuple[Callable[[HandmadeTable, Path], None], dict[Level, set[Fault]]]] = [
    (
        # Spark's reader refuses such a table.
        plant_other_partition,
        {Level.METADATA: {Fault.DELETE_FILE, Fault.DELETED_COUNT}, Level.BITMAPS: {Fault.UNREADABLE}},
    ),
    (plant_dropped_column, {Level.METADATA: {Fault.SCHEMA}}),
]


def test_a_table_that_is_right(table: HandmadeTable, verify: Any) -> None:
    code, proof = verify("--rows")
    assert (code, proof["is_right"], proof["differences"]) == (0, True, {})
    assert (proof["files"], proof["rows"], proof["delta_version"]) == (4, len(table.live_rows()), 2)


def test_a_table_that_cannot_have_deletion_vectors(tmp_path: Path, verify: Any) -> None:
    """Delta gives no positions of its rows, so values are compared without; equal ones do not cancel each other."""
    made = HandmadeTable(tmp_path / "lake" / "t", partitioned=True)
    (made.folder / "_delta_log").mkdir(parents=True)
    metadata = {**made.metadata(), "configuration": {}}
    made.commit([{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}])
    paths = [made.write_file([(row // 2, "a", "twice") for row in range(10)], name=f"a{number}") for number in range(2)]
    made.commit([made.add(path) for path in paths])
    with closing(Bench(tmp_path / "dvsync", made.location)) as bench:
        bench.sync()
    (tmp_path / "config.yaml").write_text(CONFIG.format(folder=tmp_path, source=made.location))
    assert verify("--rows")[1]["is_right"]
    plant_value(tmp_path, "a1")
    code, proof = verify("--rows")
    assert (code, set(proof["differences"])) == (1, {Fault.PARTITION, Fault.VALUES})
    (found,) = [each for each in proof["first_differences"] if each["fault"] == Fault.VALUES]
    assert (found["path"], found["column"], found["positions"]) == (f"{made.location}/{paths[1]}", "part", [])


def test_planted_in_files(verify: Any, tmp_path: Path) -> None:
    """Every level that can see the wrong of a file names it, and no level that cannot; so are positions and columns."""
    table = followed(tmp_path, [*PLANTED], {"a0": {2, 3}, "a1": {2, 3}, "a2": {2, 3}, "b6": {5}})
    for name, positions in (("a0", {2, 3, 7}), ("a1", {2}), ("a2", {2, 4})):
        plant_vector(table, name, positions)
    plant_wrong_bound(tmp_path, "a3")
    plant_value(tmp_path, "a4")
    plant_file_too_many(table, "b5")
    code, proof = verify("--rows")
    assert (code, proof["is_right"]) == (1, False)
    told = proof["first_differences"]
    assert {(Path(found["path"]).stem, Level(found["level"]), Fault(found["fault"])) for found in told} == {
        (name, level, fault)
        for name, expected in PLANTED.items()
        for level, faults in expected.items()
        for fault in faults
    }
    swapped = [found for found in told if Path(found["path"]).stem == "a2"]
    named = {(found["fault"], tuple(found["positions"])) for found in swapped}
    assert {(Fault.ROWS_MISSING, (3,)), (Fault.ROWS_SURPLUS, (4,))} <= named
    columns = {found["column"]: found["positions"] for found in swapped if found["column"]}
    assert columns == {"id": [3, 4], "part": [3, 4], "value": [3, 4]}


@pytest.mark.parametrize(("plant", "expected"), OF_ALL_FILES)
def test_planted_in_all_files(
    plant: Callable[[HandmadeTable, Path], None],
    expected: dict[Level, set[Fault]],
    table: HandmadeTable,
    verify: Any,
    tmp_path: Path,
) -> None:
    plant(table, tmp_path)
    code, proof = verify("--rows")
    assert (code, proof["is_right"]) == (1, False)
    named = {(Level(found["level"]), Fault(found["fault"])) for found in proof["first_differences"]}
    assert named == {(level, fault) for level, faults in expected.items() for fault in faults}


def test_a_level_sees_what_it_compares(table: HandmadeTable, verify: Any) -> None:
    plant_vector(table, "a0", {2, 4})
    assert verify("--metadata")[0] == 0
    assert verify()[0] == 1


@pytest.mark.parametrize("options", [("--metadata",), ()], ids=["in process", "on Spark"])
def test_a_file_that_is_twice_in_delta(
    options: tuple[str, ...], table: HandmadeTable, verify: Any, tmp_path: Path
) -> None:
    """As a dvsync left it that did not know of it: nothing that Iceberg shows is Delta's rows."""
    path, log = next(iter(table.live)), table.commit_path(1)
    other = {**table.add(path)["add"], "path": path.replace(".", "%2E")}
    log.write_text(log.read_text() + json.dumps({"add": other}) + "\n")
    code, proof = verify(*options)
    assert (code, proof["is_right"], proof["differences"]) == (1, False, {Fault.LIVE_TWICE: 1})
    (found,) = proof["first_differences"]
    assert found["path"] == f"{table.location}/{path}"
    assert "2 live adds for the one path" in found["detail"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("CAST(NULL AS STRUCT<a: INT, b: INT>)", "named_struct('a', CAST(NULL AS INT), 'b', CAST(NULL AS INT))"),
        ("named_struct('a', 1, 'b', CAST(NULL AS INT))", "named_struct('a', CAST(NULL AS INT), 'b', 1)"),
        ("CAST(NULL AS ARRAY<INT>)", "CAST(array() AS ARRAY<INT>)"),
        ("array(1, CAST(NULL AS INT))", "array(1)"),
        ("CAST(NULL AS MAP<INT, ARRAY<INT>>)", "CAST(map() AS MAP<INT, ARRAY<INT>>)"),
        ("map(1, array(CAST(NULL AS INT)))", "map(1, CAST(array() AS ARRAY<INT>))"),
        ("parse_json('null')", "CAST(NULL AS VARIANT)"),
        ("array(parse_json('1.0'))", "array(parse_json('1e0'))"),
        ("map(1, named_struct('v', parse_json('{\"a\": 1}')))", "map(1, named_struct('v', parse_json('{\"a\": 2}')))"),
    ],
)
def test_hashes_tell_nulls_apart(spark: SparkSession, one: str, other: str) -> None:
    frames = [spark.sql(f"SELECT 'f' AS {FILE}, 0L AS {POSITION}, {value} AS v") for value in (one, one, other)]
    first, again, differing = (hash_rows(frame, ["v"])["h0"][0].as_py() for frame in frames)
    assert first == again != differing
