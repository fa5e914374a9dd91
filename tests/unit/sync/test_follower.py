"""What following costs: requests to the Delta log, each of which takes tens of milliseconds on an object store."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import daemon
from daemon.errors import ObjectStoreAway
from daemon.store.storage import FileIOStorage
from daemon.sync.news import UNFINISHED_COMMIT_MAX_S
from daemon.sync.outcomes import SyncOutcome
from tests.kit.handmade import Bench, HandmadeTable, in_step

OURS = str(Path(daemon.__file__).parent)


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    """Version 1: one file of six rows."""
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    path = table.write_file([(number, "x", f"v{number}") for number in range(6)])
    table.commit([table.add(path)])
    written_s = time.time() - 2 * UNFINISHED_COMMIT_MAX_S
    os.utime(table.commit_path(1), (written_s, written_s))
    return table


@pytest.fixture
def bench(tmp_path: Path, table: HandmadeTable) -> Iterator[Bench]:
    """A warm daemon, in step with version 1."""
    with in_step(tmp_path, table) as bench:
        yield bench


@pytest.fixture
def asked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(verb, file) of each request to the log from now on."""
    requests: list[tuple[str, str]] = []

    def counted(verb: str) -> Callable[..., Any]:
        original = getattr(FileIOStorage, verb)

        def call(storage: FileIOStorage, path: str, *others: Any, **options: Any) -> Any:
            if "/_delta_log" in path:
                requests.append((verb, path.partition("/_delta_log")[2].strip("/").lstrip("0") or "0"))
            return original(storage, path, *others, **options)

        return call

    for verb in ("exists", "stat", "read", "open_input", "list_from"):
        monkeypatch.setattr(FileIOStorage, verb, counted(verb))
    return requests


def delete(table: HandmadeTable, row: int) -> None:
    (path,) = table.live
    table.commit(table.delete({path: [row]}))


def test_a_quiet_table_costs_one_request(bench: Bench, asked: list[tuple[str, str]]) -> None:
    """The next commit is asked for, and nothing else."""
    assert not bench.follower.has_news()
    assert asked == [("exists", "2.json")]


def test_a_doubt_during_a_sync_outlasts_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody asks for a check from another thread: the sync that is running may have made its own already."""
    monkeypatch.setattr(bench.follower._other_writer, "give_way", lambda *_: bench.follower.doubt())
    bench.sync()
    assert bench.follower.has_news()
    monkeypatch.undo()
    bench.sync()
    assert not bench.follower.has_news()


def test_a_young_commit_is_checked_at_each_poll(table: HandmadeTable, bench: Bench) -> None:
    """One that is copied to a local disk may end at a line's end for a moment: the rest is shown at once."""
    paths = [table.write_file([(number, "x", "late")]) for number in (7, 8)]
    table.commit([table.add(path) for path in paths])
    commit = table.commit_path(2)
    whole = commit.read_bytes()
    commit.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    bench.sync()
    assert len(bench.iceberg().scan().to_arrow()) == 7
    assert not bench.follower.has_news()
    with commit.open("ab") as rest:
        rest.write(whole.splitlines(keepends=True)[-1])
    assert bench.follower.has_news()
    bench.sync()
    assert len(bench.iceberg().scan().to_arrow()) == 8


def test_a_commit_asks_for_each_thing_once(table: HandmadeTable, bench: Bench, asked: list[tuple[str, str]]) -> None:
    """The commit is found, the one before it is the one that was synced, it is read, and nothing follows yet."""
    delete(table, 1)
    assert bench.follower.has_news()
    assert bench.follower.sync().to_version == 2
    assert asked == [
        ("exists", "2.json"),
        ("stat", "1.json"),
        ("stat", "2.json"),
        ("open_input", "2.json"),
        ("exists", "3.json"),
        ("read", "2.crc"),
    ]


def test_each_further_commit_costs_a_read_and_a_look_for_its_successor(
    table: HandmadeTable, bench: Bench, asked: list[tuple[str, str]]
) -> None:
    """Whether many follow is asked for once."""
    for row in range(3):
        delete(table, row)
    result = bench.follower.sync()
    assert (result.to_version, result.snapshots, result.more) == (4, 3, False)
    assert [asked.count(("exists", f"{version}.json")) for version in (3, 4, 5)] == [1, 1, 1]
    assert [name for verb, name in asked if verb == "open_input"] == ["2.json", "3.json", "4.json"]
    far = [name for verb, name in asked if verb == "exists" and int(name.removesuffix(".json")) > 5]
    assert len(far) == 1


def test_the_way_to_a_commit_is_short(table: HandmadeTable, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the follower to the catalog, a reader passes six functions of ours."""
    ways: list[list[str]] = []
    original = SqlCatalog.commit_table

    def commit_table(*arguments: Any) -> Any:
        ours = [frame.name for frame in traceback.extract_stack() if frame.filename.startswith(OURS)]
        ways.append(ours[ours.index("sync") :])
        return original(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    delete(table, 1)
    bench.sync()
    assert ways == [["sync", "_follow", "advance", "show", "commit", "commit_updates"]]


def test_a_commit_that_was_not_recorded_is_recorded_without_reading_it(
    table: HandmadeTable, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was killed between the catalog's commit and the state store: the outcome was stored before."""
    delete(table, 1)
    with monkeypatch.context() as broken, pytest.raises(ObjectStoreAway, match="killed here"):
        broken.setattr(bench.store, "record_synced", Mock(side_effect=OSError("killed here")))
        bench.follower.sync()
    bench.reopen()
    monkeypatch.setattr("daemon.sync.recovery.rebuild", Mock(side_effect=AssertionError("it is rebuilt")))
    assert bench.sync().outcome is SyncOutcome.UNCHANGED
    record = bench.context.find_record()
    assert record is not None
    assert record.synced_version == table.version
