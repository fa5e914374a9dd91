"""`dvsync inspect`: what is deleted in a table and in a file, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.filesize import decimal

from state import FileKind, OrphanReason
from tests.kit.handmade import GRANULARITY, Bench, HandmadeTable
from tests.kit.handmade_mirrored import Mirrored
from tests.kit.invoke import invoke

CONFIG = """
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
tables:
- {source: data/t, target: lake.t, name: t}
"""


class World:
    """Partition x has files a (positions 0 to 4 and 90 of 100 deleted) and b (all of 4); y has c (1 of 2) and d."""

    def __init__(self, folder: Path) -> None:
        self.table = table = HandmadeTable(folder / "data" / "t", partitioned=True)
        table.create()
        sizes = {"a": ("x", 100), "b": ("x", 4), "c": ("y", 2), "d": ("y", 10)}
        self.paths = {
            name: table.write_file([(number, part, "v") for number in range(rows)], name=name)
            for name, (part, rows) in sizes.items()
        }
        table.commit([table.add(path) for path in self.paths.values()])
        a, b, c, _ = self.paths.values()
        table.commit(table.delete({a: [90], b: [0, 1, 2, 3]}))
        table.commit([*table.delete({a: range(5)}, storage="p"), *table.delete({c: [1]}, storage="i")])
        self.bench = Bench(folder, table.location)
        self.bench.follower.sync()
        table.commit(table.delete({a: [91]}))
        self.bench.follower.sync()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(GRANULARITY, "partition")
    (tmp_path / "config.yaml").write_text(CONFIG)
    made = World(tmp_path)
    yield made
    made.bench.close()


def inspect(*arguments: str) -> Result:
    return invoke(["inspect", "t", *arguments], env={"COLUMNS": "80"})


def answer(*arguments: str) -> Any:
    done = inspect("--json", *arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_table(world: World) -> None:
    """Deletion vectors by storage type, the worst files and partitions first, and what each delete file serves."""
    found = answer()
    assert (found["version"], found["data_files"], found["rows"], found["deleted"]) == (4, 4, 116, 12)
    assert [(each["storage_type"], each["vectors"], each["positions"]) for each in found["vectors"]] == [
        ("i", 1, 1),
        ("u", 2, 11),
    ]
    assert sum(each["size_bytes"] for each in found["vectors"]) == sum(
        add["deletionVector"]["sizeInBytes"] for add in world.table.live.values() if "deletionVector" in add
    )
    worst = [(Path(each["path"]).stem, each["deleted"], each["rows"]) for each in found["files"]]
    assert worst == [("b", 4, 4), ("c", 1, 2), ("a", 7, 100)]
    assert found["files"][0]["strip"] == [1, 1, 1, 1]
    assert found["files"][1]["strip"] == [0, 1]
    shares = [(each["partition"], each["data_files"], each["rows"], each["deleted"]) for each in found["partitions"]]
    assert shares == [({"part": "x"}, 2, 104, 11), ({"part": "y"}, 2, 12, 1)]
    iceberg = world.bench.iceberg()
    live = {file["file_path"]: file["record_count"] for file in iceberg.inspect.delete_files().to_pylist()}
    assert {each["path"]: each["positions"] for each in found["delete_files"]} == live
    assert found["delete_files"][0]["data_files"] == 2
    assert [each["version"] for each in found["snapshots"]] == [4, 3]
    assert found["snapshots"][0]["delete_files"] == len(live) == found["live_delete_files"]
    assert found["snapshots"][0]["deleted_positions"] == 12
    assert len(answer("--limit", "1")["files"]) == 1


def test_a_table_for_people(world: World) -> None:
    """On 80 columns, except for paths, none of which is cut."""
    (record,) = world.bench.store.list_tables()
    world.bench.store.record_orphans(record.id, FileKind.MANIFEST, ["m"], OrphanReason.FOUND, at_ms=1)
    done = inspect()
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert [line for line in lines if len(line) > 80 and "file://" not in line] == []
    for path in ("a", "b", "c"):
        assert f"  {world.table.location}/{world.paths[path]}" in lines
    assert "    4 of 4 rows (100.0%)" in lines
    assert "    ████" in lines
    assert "    ·█" in lines
    assert "  part=x: 11 of 104 rows (10.6%) in 2 data files" in lines
    assert any(line.startswith("  manifest: ") and ", the oldest for " in line for line in lines)
    assert any(line.startswith("  u  2 vectors, ") and line.endswith("in files named by a UUID") for line in lines)


@pytest.mark.parametrize("spelling", ["{path}", "{location}/{path}", "{folder}/{path}"])
def test_a_file(world: World, spelling: str) -> None:
    """Its deletion vector, its delete files and the deleted positions, however its path is spelled."""
    path = world.paths["a"]
    asked = spelling.format(path=path, location=world.table.location, folder=world.table.folder)
    found = answer("--file", asked)
    assert found["ranges"] == [[0, 4], [90, 91]]
    assert not found["has_more_ranges"]
    assert Path(found["vector_path"].removeprefix("file://")).exists()
    assert sum(each["of_this_file"] for each in found["delete_files"]) == found["file"]["deleted"] == 7
    assert any(each["positions"] > each["of_this_file"] for each in found["delete_files"]), "one serves b as well"
    strip = found["file"]["strip"]
    assert len(strip) == 72
    assert [number for number, share in enumerate(strip) if share] == [0, 1, 2, 3, 65, 66]
    text = inspect("--file", asked).output
    assert "\n    0-4, 90-91\n" in text
    assert f"\n    {found['vector_path']}\n" in text


def test_files_without_deletions_and_unknown_ones(world: World) -> None:
    """One without a deletion vector says so; one that the table does not show is an error with a hint."""
    assert "no row is deleted" in inspect("--file", world.paths["d"]).output
    done = inspect("--file", "nothing.parquet")
    assert done.exit_code == 1
    assert "no such data file" in done.stderr and "dvsync inspect" in done.stderr
    world.table.commit(world.table.delete({world.paths["d"]: [0]}, storage="i"))
    world.bench.follower.sync()
    assert answer("--file", world.paths["d"])["vector_path"] is None


def test_ranges_are_bounded(world: World) -> None:
    """The list of ranges is cut where it was asked to be, and says so."""
    path = world.paths["a"]
    world.table.commit(world.table.delete({path: range(10, 90, 2)}))
    world.bench.follower.sync()
    found = answer("--file", path, "--limit", "1")
    assert (len(found["ranges"]), found["has_more_ranges"], found["ranges"][:2]) == (10, True, [[0, 4], [10, 10]])
    assert ", 26, and more\n" in inspect("--file", path, "--limit", "1").output


def test_a_table_that_was_never_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, and what to do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(GRANULARITY, "partition")
    (tmp_path / "config.yaml").write_text(CONFIG)
    HandmadeTable(tmp_path / "data" / "t").create()
    for command in ("inspect", "snapshots"):
        done = invoke([command, "t"])
        assert (done.exit_code, "dvsync sync t" in done.stderr) == (1, True)


def test_mirrors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many data files have mirrors, of how many bytes, of which kind and why; in one line of the status, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    table = Mirrored(tmp_path / "data" / "t", partitioned=True)
    table.create()
    files = [table.write_file([(number, "x", "v")]) for number in range(7)]
    table.commit([table.add(path) for path in files])
    with closing(Bench(tmp_path, table.location, table_options={"mirrors": "copy"})) as bench:
        bench.sync()
        mirrors = bench.store.list_live_mirrors(1)
    sizes = {kind: sum(each.size_bytes or 0 for each in mirrors if each.kind == kind) for kind in ("footer", "copy")}
    found = json.loads(run("show", "--json"))["mirrors"]
    assert found == answer()["mirrors"]
    assert [(each["kind"], each["files"], each["size_bytes"]) for each in found] == [
        ("footer", 3, sizes["footer"]),
        ("copy", 2, sizes["copy"]),
    ]
    assert f" files=7 mirrors=5 ({decimal(sum(sizes.values()))}) " in run("status")
    for command in ("show", "inspect"):
        shown = run(command)
        assert "  footer: 3 data files, " in shown and "column id of the file" in shown
        assert "  copy: 2 data files, " in shown and "the path contains '#' or '?'" in shown


def run(command: str, *arguments: str) -> str:
    done = invoke([command, "t", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout
