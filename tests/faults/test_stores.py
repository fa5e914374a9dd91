"""Stores that fail by a seed, and two followers of one table: rows are right in the end and nothing is left unknown.

Each test prints its seed; `FAULT_SEED` takes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy.exc import OperationalError

from daemon.errors import CommitConflict, CommitOutcomeUnknown, Retryable, SyncError, TargetChanged
from tests.kit.checks import check, duckdb_rows, shown_versions
from tests.kit.faults import TARGETS, Faults, fault_seed
from tests.kit.handmade import COLUMNS, Bench, HandmadeTable
from tests.kit.handmade_histories import History

CYCLES = 12
TRIES_MAX = 4


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    table = HandmadeTable(tmp_path / "delta", partitioned=True)
    table.create()
    return table


@pytest.fixture
def open_bench(tmp_path: Path, table: HandmadeTable) -> Iterator[Callable[..., Bench]]:
    """Benches in one folder, closed at the end."""
    benches = []

    def opened(state_name: str = "state.db") -> Bench:
        benches.append(Bench(tmp_path / "dvsync", table.location, state_name=state_name))
        return benches[-1]

    yield opened
    for bench in benches:
        bench.close()


@pytest.mark.parametrize("kinds", [[kind] for kind in TARGETS] + [list(TARGETS)], ids="-".join)
def test_failing_stores_only_delay(
    table: HandmadeTable, open_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, kinds: list[str]
) -> None:
    """With faults in every cycle each failure may be tried again; without them rows, snapshots and files are right."""
    random = Random(fault_seed())
    faults = Faults(monkeypatch, random, probability=0.03 if len(kinds) > 1 else 0.1, kinds=kinds)
    history = History(table, random)
    bench = open_bench()
    for cycle in range(CYCLES):
        for _ in range(random.randint(0, 2)):
            history.play()
        for _ in range(TRIES_MAX):
            try:
                with faults.on():
                    bench.follower.sync()
                break
            except SyncError as error:
                assert isinstance(error, Retryable | CommitOutcomeUnknown), faults.told
                assert (error.table, bool(error.hint)) == ("t", True)
                print(cycle, table.version, faults.told, repr(error))
        if random.random() < 0.2:
            bench.reopen()
    if table.version == 0:
        history.play()
    bench.follower.sync()
    check(bench, table, shown_versions_of(history, bench))
    assert duckdb_rows(bench.iceberg()) == table.live_rows()


def shown_versions_of(history: History, bench: Bench) -> list[int]:
    """The versions from the one of the first sync on, and that one whether it changed rows or not."""
    first = shown_versions(bench.iceberg())[0]
    return [first, *(version for version in history.versions if version > first)]


@pytest.fixture
def at_commit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let something else happen right before or after the next `commit_table` of the catalog's database."""

    def arrange(*, before: Callable[[], None] | None = None, after: Callable[[], None] | None = None) -> None:
        inner = SqlCatalog.commit_table

        def outer(catalog: SqlCatalog, *arguments: object) -> object:
            monkeypatch.setattr(SqlCatalog, "commit_table", inner)
            if before:
                before()
            response = inner(catalog, *arguments)  # type: ignore[arg-type]
            if after:
                after()
            return response

        monkeypatch.setattr(SqlCatalog, "commit_table", outer)

    return arrange


def fail(error: Exception) -> Callable[[], None]:
    def raising() -> None:
        raise error

    return raising


def test_a_commit_whose_answer_is_lost_is_found(
    table: HandmadeTable, open_bench: Callable[..., Bench], at_commit: Callable[..., None]
) -> None:
    """The commit landed, its answer did not: the next sync finds the marker, and commits nothing again."""
    bench = open_bench()
    bench.follower.sync()
    append(table)
    at_commit(after=fail(OperationalError("commit", {}, Exception("connection lost"))))
    with pytest.raises(CommitOutcomeUnknown) as caught:
        bench.follower.sync()
    assert (caught.value.table, caught.value.version) == ("t", 1)
    assert bench.follower.sync().outcome == "unchanged"
    check(bench, table, [0, 1])


def test_a_commit_that_certainly_failed_leaves_orphans(
    table: HandmadeTable, open_bench: Callable[..., Bench], at_commit: Callable[..., None]
) -> None:
    """The request never arrived: the next sync commits once, and the first try's files are orphans."""
    bench = open_bench()
    bench.follower.sync()
    append(table)
    at_commit(before=fail(OperationalError("commit", {}, Exception("no route"))))
    with pytest.raises(CommitOutcomeUnknown):
        bench.follower.sync()
    assert bench.follower.sync().snapshots == 1
    check(bench, table, [0, 1])


def test_a_commit_that_loses_to_a_change_of_properties_is_tried_again(
    table: HandmadeTable, open_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone sets a property in the very moment of our commit: it is tried again, and what it left is an orphan."""
    bench = open_bench()
    bench.follower.sync()
    append(table)
    lose_the_next_race(monkeypatch, lambda: set_property(bench, "owner", "someone"))
    sync_through_conflicts(bench)
    assert bench.iceberg().properties["owner"] == "someone"
    check(bench, table, [0, 1])


def test_a_lost_race_for_the_schema_leaves_orphans(
    table: HandmadeTable, open_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone sets a property in the very moment of our change of the schema: the same."""
    bench = open_bench()
    bench.follower.sync()
    table.commit([{"metaData": table.metadata((*COLUMNS, ("extra", "long")))}])
    lose_the_next_race(monkeypatch, lambda: set_property(bench, "owner", "someone"))
    sync_through_conflicts(bench)
    assert bench.iceberg().schema().find_field("extra")
    check(bench, table, [0])


def test_a_change_of_schema_whose_answer_is_lost_is_found(
    table: HandmadeTable, open_bench: Callable[..., Bench], at_commit: Callable[..., None]
) -> None:
    """The schema landed, its answer did not: the next sync sees it, and every metadata file is known."""
    bench = open_bench()
    bench.follower.sync()
    table.commit([{"metaData": table.metadata((*COLUMNS, ("extra", "long")))}])
    at_commit(after=fail(OperationalError("commit", {}, Exception("connection lost"))))
    with pytest.raises(SyncError):
        bench.follower.sync()
    bench.follower.sync()
    check(bench, table, [0])


def test_a_commit_that_lands_after_it_was_given_up_is_taken_over(
    table: HandmadeTable, open_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was on its way lands when its intent is abandoned already: shown once, its files not orphans."""
    bench = open_bench()
    bench.follower.sync()
    append(table)
    inner = SqlCatalog.commit_table
    held: list[tuple[object, ...]] = []

    def hold(*arguments: object) -> None:
        held.append(arguments)
        raise OperationalError("commit", {}, Exception("timed out"))

    def land_the_held_one_first(*arguments: object) -> object:
        monkeypatch.setattr(SqlCatalog, "commit_table", inner)
        inner(*held[0])  # type: ignore[arg-type]
        return inner(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SqlCatalog, "commit_table", hold)
    with pytest.raises(CommitOutcomeUnknown):
        bench.follower.sync()
    monkeypatch.setattr(SqlCatalog, "commit_table", land_the_held_one_first)
    with pytest.raises(CommitConflict):
        bench.follower.sync()
    bench.follower.sync()
    check(bench, table, [0, 1])
    table.commit(table.delete({next(iter(table.live)): [3]}))
    bench.follower.sync()
    check(bench, table, [0, 1, 2])


def append(table: HandmadeTable) -> None:
    first = 10 * len(table.rows)
    path = table.write_file([(first + n, "x", f"v{n}") for n in range(6)])
    table.commit([table.add(path, deleted=[1])])


def set_property(bench: Bench, key: str, value: str) -> None:
    with bench.iceberg().transaction() as transaction:
        transaction.set_properties({key: value})


def lose_the_next_race(patch: pytest.MonkeyPatch, winner: Callable[[], None]) -> None:
    """`winner` plays after the next commit has written its metadata file, before its row in the catalog changes."""
    inner = SqlCatalog._write_metadata

    def outer(*arguments: Any) -> None:
        patch.setattr(SqlCatalog, "_write_metadata", staticmethod(inner))
        inner(*arguments)
        winner()

    patch.setattr(SqlCatalog, "_write_metadata", staticmethod(outer))


def sync_through_conflicts(bench: Bench) -> None:
    for _ in range(TRIES_MAX):
        try:
            bench.follower.sync()
            return
        except CommitConflict as error:
            assert isinstance(error.__cause__, CommitFailedException)
    raise AssertionError(f"{TRIES_MAX} conflicts")


def test_two_followers_of_one_target_never_double_rows(table: HandmadeTable, open_bench: Callable[..., Bench]) -> None:
    """Two daemons with states of their own, turn by turn at random: each version is shown once, by one of them."""
    random = Random(fault_seed())
    history = History(table, random)
    followers = [open_bench("one.db"), open_bench("two.db")]
    for _ in range(CYCLES):
        history.play()
        bench = random.choice(followers)
        bench.follower.sync()
        assert len(bench.iceberg().scan().to_arrow()) == len(table.live_rows())
    for bench, other in (followers, reversed(followers)):
        bench.follower.sync()
        check(bench, table, shown_versions_of(history, bench), other)


def test_the_slower_of_two_followers_loses_the_race(
    table: HandmadeTable, open_bench: Callable[..., Bench], at_commit: Callable[..., None]
) -> None:
    """One commits while the other is about to: the other has a conflict, then learns from the table and goes on."""
    one, two = open_bench("one.db"), open_bench("two.db")
    one.follower.sync()
    two.follower.sync()
    append(table)
    at_commit(before=lambda: check_advanced(two))
    with pytest.raises(CommitConflict) as caught:
        one.follower.sync()
    assert (caught.value.table, caught.value.version) == ("t", 1)
    assert one.follower.sync().outcome == "rebuilt"
    check(one, table, [0, 1], two)
    append(table)
    check_advanced(one)
    two.follower.sync()
    check(two, table, [0, 1, 2], one)


def test_two_followers_race_for_the_first_sync(
    table: HandmadeTable, open_bench: Callable[..., Bench], at_commit: Callable[..., None]
) -> None:
    """One creates the table while the other is about to: the other has a conflict, then follows that table."""
    append(table)
    one, two = open_bench("one.db"), open_bench("two.db")
    at_commit(before=lambda: check_advanced(two))
    with pytest.raises(CommitConflict):
        one.follower.sync()
    one.follower.sync()
    check(one, table, [1], two)


def test_a_foreign_snapshot_parks_the_table_until_it_is_rolled_back(
    table: HandmadeTable, open_bench: Callable[..., Bench]
) -> None:
    """Someone else's commit is `TargetChanged`, and nothing is written; after a roll back the sync goes on."""
    bench = open_bench()
    bench.follower.sync()
    append(table)
    bench.follower.sync()
    iceberg = bench.iceberg()
    ours = iceberg.current_snapshot()
    assert ours is not None
    iceberg.delete("id = 0")
    append(table)
    foreign = bench.iceberg().metadata_location
    with pytest.raises(TargetChanged) as caught:
        bench.follower.sync()
    assert (caught.value.table, caught.value.path, bench.iceberg().metadata_location) == ("t", foreign, foreign)
    bench.iceberg().manage_snapshots().rollback_to_snapshot(ours.snapshot_id).commit()
    bench.follower.sync()
    assert sorted(bench.iceberg().scan().to_arrow()["id"].to_pylist()) == [row[0] for row in table.live_rows()]


def check_advanced(bench: Bench) -> None:
    assert bench.follower.sync().outcome == "advanced"
