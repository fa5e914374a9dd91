"""`dvsync snapshots` and `dvsync show`: which snapshot shows which Delta version, and lines that read it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.kit.handmade import COLUMNS, Bench, HandmadeTable
from tests.kit.invoke import invoke
from tests.kit.readers import ask_clickhouse, duckdb_connection

CONFIG = """
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
tables:
- {source: data/t, target: lake.t, name: t}
"""
# Delta's version 0 is at this time, and each version a minute after the one before.
BEGIN_S = 1_700_000_000
Ask = Callable[..., tuple[int, Any]]


class World:
    def __init__(self, folder: Path) -> None:
        self.table = HandmadeTable(folder / "data" / "t")
        self.table.create()
        self.rows: dict[int, list[int]] = {}
        self.done()
        self.bench = Bench(folder, self.table.location, table_options={"tag_every": 4})

    def done(self) -> None:
        """The newest version's commit file gets its time, and its rows are noted."""
        os.utime(self.table.commit_path(self.table.version), (at_s(self.table.version),) * 2)
        self.rows[self.table.version] = [row[0] for row in self.table.live_rows()]

    def delete(self, position: int) -> None:
        path = next(iter(self.table.live))
        self.table.commit(self.table.delete({path: [position]}))
        self.done()

    def define(self) -> None:
        """A version that changes no rows."""
        self.table.commit([{"metaData": self.table.metadata((*COLUMNS, ("more", "string")))}])
        self.done()


def at_s(version: int) -> int:
    return BEGIN_S + 60 * version


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Versions 0 to 3 have a snapshot each, 4 to 6 share two (4 has a tag), 7 changes no rows, 8 deletes again."""
    world = World(tmp_path)
    world.bench.follower.sync()
    world.table.commit([world.table.add(world.table.write_file([(number, "x", "v") for number in range(9)]))])
    world.done()
    for position in range(2):
        world.delete(position)
    world.bench.follower.sync()
    for position in range(2, 5):
        world.delete(position)
    for _ in range(2):
        world.bench.follower.sync(others_wait=lambda: True)
    world.define()
    world.bench.follower.sync()
    yield world
    world.bench.close()


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)

    def asked(*arguments: str) -> tuple[int, Any]:
        command = arguments if arguments[:1] == ("show",) else ("snapshots", "t", *arguments)
        done = invoke([*command, "--json"])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, json.loads(done.stdout) if done.stdout else done.stderr

    return asked


def read(line: str, reader: str) -> list[int]:
    """Run a line that was printed for a reader."""
    if reader == "DuckDB":
        return sorted(row[0] for row in duckdb_connection().execute(line).fetchall())
    if reader == "ClickHouse":
        return sorted(row[0] for row in ask_clickhouse(line))
    *imports, call = line.split("; ")
    names: dict[str, Any] = {}
    exec("; ".join(imports), names)
    found = eval(call, names)
    return sorted(row["id"] for row in (found.to_dicts() if reader == "Polars" else found.to_pylist()))


def test_the_lines_read_what_delta_shows(world: World, ask: Ask) -> None:
    """For each version that a snapshot shows, every reader's line gives that version's rows."""
    for version in (0, 1, 2, 3, 4, 6, 7):
        code, choice = ask("--version", f"{version}")
        assert (code, choice["version"]) == (0, version), choice
        rows = {reader: read(choice["read"][reader], reader) for reader in ("PyIceberg", "DuckDB", "Polars")}
        assert rows == dict.fromkeys(rows, world.rows[version])
    snapshot_id = choice["snapshot"]["snapshot_id"]
    assert choice["snapshot"]["version"] == 6, "version 7 changed no rows"
    assert choice["read"]["Spark"] == f"SELECT * FROM local.lake.t VERSION AS OF {snapshot_id}"
    assert choice["read"]["Trino"] == f"SELECT * FROM local.lake.t FOR VERSION AS OF {snapshot_id}"
    older = ask("--version", "3")[1]
    for found in (older, choice):
        assert read(found["read"]["ClickHouse"], "ClickHouse") == world.rows[found["version"]]


def test_what_the_table_shows_now(world: World, ask: Ask) -> None:
    """Metadata file, snapshot and version are those of the catalog, and every line gives the newest rows."""
    world.delete(6)
    code, shown = ask("show", "t")
    iceberg = world.bench.iceberg()
    assert (code, shown["version"], shown["format_version"]) == (0, 7, 2), "version 8 is not synced yet"
    assert shown["metadata_location"] == iceberg.metadata_location
    assert shown["snapshot"]["snapshot_id"] == iceberg.metadata.current_snapshot_id
    for reader in ("PyIceberg", "DuckDB", "Polars", "ClickHouse"):
        assert read(shown["read"][reader], reader) == world.rows[7], reader
    assert (shown["read"]["Spark"], shown["read"]["Trino"]) == ("SELECT * FROM local.lake.t",) * 2
    text = invoke(["show", "t"], env={"COLUMNS": "40"}).output
    assert f"\n  metadata  {iceberg.metadata_location}\n" in text, "nothing is cut"
    assert "\n  shows     Delta version 7; the versions after 6 changed no rows\n" in text
    assert f"\nClickHouse:\n  {shown['read']['ClickHouse']}\n" in text
    assert text.splitlines()[-1].startswith("`dvsync doctor t` names the readers that have trouble")


def test_a_table_that_someone_else_changed(world: World, ask: Ask) -> None:
    """No Delta version is named for a snapshot that is not dvsync's."""
    iceberg = world.bench.iceberg()
    iceberg.append(iceberg.scan(limit=1).to_arrow())
    code, shown = ask("show", "t")
    assert (code, shown["version"], shown["snapshot"]["operation"]) == (0, None, "append")
    assert "no Delta version" in invoke(["show", "t"]).output


def test_a_table_that_is_not_there_yet(tmp_path: Path, ask: Ask) -> None:
    """The exit code is 1, and the hint says what makes it, or that there is nothing to make it of."""
    code, told = ask("show", "t")
    assert (code, "There is no Delta table at file://" in told) == (1, True)
    HandmadeTable(tmp_path / "data" / "t").create()
    code, told = ask("show", "t")
    assert (code, "The first sync makes it: `dvsync sync t`" in told) == (1, True)


def test_versions_that_no_snapshot_shows(world: World, ask: Ask) -> None:
    """A folded one names the snapshot that contains it; one to come and an expired one say so."""
    code, choice = ask("--version", "5")
    assert (code, choice["snapshot"], choice["contained_in"]["version"]) == (1, None, 6)
    assert str(choice["contained_in"]["snapshot_id"]) in choice["reason"]
    code, choice = ask("--version", "8")
    assert (code, choice["reason"]) == (1, "version 8 is not shown yet: the table shows version 7")
    gone = [each.snapshot_id for each in world.bench.iceberg().snapshots()][1:3]
    world.bench.iceberg().maintenance.expire_snapshots().by_ids(gone).commit()
    for version in ("1", "2"):
        code, choice = ask("--version", version)
        assert (code, choice["contained_in"]) == (1, None)
        assert "has expired" in choice["reason"] and "tag_every" in choice["hint"]
    assert ask("--version", "3")[0] == 0


def test_versions_between_two_snapshots(world: World, ask: Ask) -> None:
    """One without changed rows is shown by the snapshot before it; one that a resync passes over by none."""
    world.delete(6)
    world.bench.follower.sync()
    code, choice = ask("--version", "7")
    assert (code, choice["snapshot"]["version"], choice["snapshot"]["last_version"]) == (0, 6, 7)
    assert ask("--timestamp", iso(at_s(7)))[1]["version"] == 7
    for position in (7, 8):
        world.delete(position)
    world.bench.follower.sync(full=True)
    assert ask("--version", "8")[1]["snapshot"]["last_version"] == 8
    code, choice = ask("--version", "9")
    assert (code, choice["contained_in"]["version"]) == (1, 10)


def test_the_newest_version_at_a_time(world: World, ask: Ask) -> None:
    """As Delta's TIMESTAMP AS OF: a version begins with its commit, and lasts until the next one."""
    for version in (0, 3, 4, 6, 7):
        for later_s in (0, 59):
            code, choice = ask("--timestamp", iso(at_s(version) + later_s))
            assert (code, choice["version"]) == (0, version), choice
    code, choice = ask("--timestamp", iso(at_s(5) + 1))
    assert (code, choice["version"], choice["contained_in"]["version"]) == (1, 5, 6)
    code, choice = ask("--timestamp", iso(at_s(0) - 1))
    assert (code, choice["version"]) == (1, None)
    assert "the oldest shows version 0" in choice["reason"]
    world.delete(6)
    assert ask("--timestamp", iso(at_s(8)))[1]["reason"] == "version 8 is not shown yet: the table shows version 7"
    assert ask("--timestamp", iso(at_s(8) - 1))[1]["version"] == 7


def test_times_whose_commit_files_are_gone(world: World, ask: Ask) -> None:
    """Between two snapshots, only Delta's log knows the versions' times."""
    for version in (4, 5, 6):
        world.table.commit_path(version).unlink()
    assert ask("--timestamp", iso(at_s(4) - 1))[1]["version"] == 3
    code, choice = ask("--timestamp", iso(at_s(5)))
    assert (code, choice["version"]) == (1, None)
    assert "which of the versions 4 to 5" in choice["reason"]


def iso(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def test_the_list(world: World, ask: Ask) -> None:
    """The newest first, with what keeps a snapshot, on 80 columns; nothing of an id or a path is cut."""
    _, found = ask()
    assert [(each["from_version"], each["version"], each["last_version"]) for each in found] == [
        (5, 6, 7),
        (4, 4, 4),
        (3, 3, 3),
        (2, 2, 2),
        (1, 1, 1),
        (0, 0, 0),
    ]
    assert [each["references"] for each in found if each["references"]] == [["delta-v4"], ["delta-v0"]]
    assert [each["version"] for each in found if each["is_current"]] == [6]
    assert len(ask("--limit", "2")[1]) == 2
    text = invoke(["snapshots", "t", "--limit", "2"], env={"COLUMNS": "80"}).output.splitlines()
    ids = [each["snapshot_id"] for each in found]
    assert text[0].split()[:2] == ["snapshot", "shows"]
    assert [line.split()[:2] for line in text if line[0].isdigit()] == [[str(ids[0]), "5-6"], [str(ids[1]), "4"]]
    assert text[2].strip() == "current"
    assert text[4].strip() == "held by delta-v4"
    assert text[-1] == "and 4 older: --limit shows more"
    assert max(map(len, text)) <= 80
    asked = invoke(["snapshots", "t", "--version", "4"]).output
    assert f"\nDuckDB:\n  SELECT * FROM iceberg_scan('{world.bench.iceberg().metadata_location}', " in asked


def test_wrong_questions(world: World, ask: Ask) -> None:
    """Exit code 2, and what to write."""
    assert ask("--timestamp", "yesterday")[0] == 2
    assert ask("--timestamp", "2026-01-01", "--version", "1")[0] == 2
