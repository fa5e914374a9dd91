"""What looks as if somebody had put a table back is asked for again for a minute, whichever processes ask."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from daemon.clock import SystemClock
from daemon.errors import CatalogAway, ObjectMissing, TargetChanged, TargetHeld
from daemon.maintenance.maintainer import Maintainer
from daemon.sync.context import Writer
from state import TableRecord
from tests.kit.checks import check_memory, read_entries, rows_of
from tests.kit.daemons import daemon, until, write_config
from tests.kit.handmade import COLUMNS, Bench, HandmadeTable

OLDER = "the catalog local answers with older metadata of lake.t: it shows Delta version "
DENIED = "the catalog local has no table lake.t, but version 3 was synced already, with file:"


class Clock(SystemClock):
    """Time that the test moves."""

    later_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + round(self.later_s * 1000)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.later_s


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    """Version 3: a file of six rows, of which two commits deleted one each."""
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    path = table.write_file([(number, "x", f"v{number}") for number in range(6)])
    table.commit([table.add(path)])
    for row in (1, 2):
        table.commit(table.delete({path: [row]}))
    return table


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bench(tmp_path: Path, table: HandmadeTable, clock: Clock) -> Iterator[Bench]:
    """dvsync, in step with the table, commit by commit."""
    options = {"version_hint": True}
    bench = Bench(tmp_path / "dvsync", table.location, clock=clock, table_options=options)
    bench.first_sync_empty(table)
    bench.sync()
    yield bench
    bench.close()


class Cache:
    """What stands before the catalog's answers: it may show those of an earlier moment."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "catalog.db"
        self.now = self.kept = self._location()

    def keep(self) -> None:
        self.kept = self._location()

    def show_older(self) -> None:
        self.now = self._location()
        self._show(self.kept)

    def show_now(self) -> None:
        self._show(self.now)

    def _location(self) -> str:
        with closing(sqlite3.connect(self._file)) as connection:
            return str(connection.execute("SELECT metadata_location FROM iceberg_tables").fetchone()[0])

    def _show(self, location: str) -> None:
        with closing(sqlite3.connect(self._file)) as connection, connection:
            connection.execute("UPDATE iceberg_tables SET metadata_location = ?", (location,))


@pytest.fixture
def cache(bench: Bench) -> Cache:
    return Cache(bench.folder)


def commit(bench: Bench, table: HandmadeTable) -> None:
    table.commit(table.delete({min(table.live): [4]}))
    bench.sync()


def compact(bench: Bench, table: HandmadeTable) -> None:
    Maintainer(bench.context).compact(Event())


def add_a_column(bench: Bench, table: HandmadeTable) -> None:
    table.commit([{"metaData": table.metadata((*COLUMNS, ("more", "string")))}])
    bench.sync()


CHANGES = (commit, compact, add_a_column)


def record(bench: Bench) -> TableRecord:
    (found,) = bench.store.list_tables()
    return found


def hint(bench: Bench) -> str:
    return (bench.folder / "warehouse" / "lake" / "t" / "metadata" / "version-hint.text").read_text()


def check(bench: Bench, table: HandmadeTable) -> None:
    iceberg = bench.iceberg()
    assert rows_of(iceberg.scan().to_arrow()) == table.live_rows()
    check_memory(bench, iceberg, read_entries(iceberg), table)


@pytest.mark.parametrize("change", CHANGES)
def test_a_catalog_that_answers_with_older_metadata_for_a_moment(
    bench: Bench, table: HandmadeTable, cache: Cache, clock: Clock, change: Callable[[Bench, HandmadeTable], None]
) -> None:
    """Nothing is parked, rebuilt or committed, and the hint for readers by folder stays; then the table goes on."""
    change(bench, table)
    cache.show_older()
    assert cache.now != cache.kept
    before, hinted = record(bench), hint(bench)
    for _ in range(3):
        bench.reopen()
        with pytest.raises(CatalogAway, match=OLDER):
            bench.sync()
        assert (record(bench).snapshot_id, record(bench).metadata_location) == (before.snapshot_id, cache.now)
        assert hint(bench) == hinted
        clock.later_s += 19
    cache.show_now()
    assert bench.sync().outcome == "unchanged"
    check(bench, table)
    # The next time counts anew.
    clock.later_s += 3600
    cache.show_older()
    with pytest.raises(CatalogAway, match=OLDER):
        bench.sync()
    cache.show_now()
    table.commit(table.delete({min(table.live): [5]}))
    bench.sync()
    check(bench, table)


@pytest.mark.parametrize("change", CHANGES)
def test_a_catalog_that_stays_at_older_metadata(
    bench: Bench, table: HandmadeTable, cache: Cache, clock: Clock, change: Callable[[Bench, HandmadeTable], None]
) -> None:
    """After a minute, also of several processes, it was put back: an older snapshot parks, all else is mended."""
    change(bench, table)
    cache.show_older()
    for _ in range(2):
        with pytest.raises(CatalogAway, match=OLDER):
            bench.sync()
        clock.later_s += 31
        bench.reopen()
    if change is commit:
        for _ in range(2):
            with pytest.raises(TargetChanged, match="it was rolled back from snapshot"):
                bench.sync()
        bench.sync(full=True)
    else:
        assert bench.sync().outcome == ("rebuilt" if change is compact else "advanced")
    assert record(bench).wait is None
    check(bench, table)
    assert ("more" in bench.iceberg().schema().column_names) == (change is add_a_column)
    table.commit(table.delete({min(table.live): [5]}))
    bench.sync()
    check(bench, table)


def test_a_catalog_that_denies_a_table(bench: Bench, table: HandmadeTable, clock: Clock) -> None:
    """For a moment nothing is made, and the table goes on; after a minute, or at once by a resync, it is made anew."""
    catalog, snapshot_id = bench.catalogs.open("local"), bench.iceberg().metadata.current_snapshot_id
    for _ in range(2):
        catalog.rename_table(bench.target, "lake.hidden")
        for _ in range(3):
            with pytest.raises(CatalogAway, match=DENIED):
                bench.sync()
            clock.later_s += 19
        assert catalog.list_tables("lake") == [("lake", "hidden")]
        catalog.rename_table("lake.hidden", bench.target)
        assert bench.sync().outcome == "unchanged"
        clock.later_s += 3600
    for later_s, full in ((61, False), (0, True)):
        check(bench, table)
        catalog.drop_table(bench.target)
        with pytest.raises(CatalogAway, match=DENIED):
            bench.sync()
        clock.later_s += later_s
        bench.reopen()
        assert bench.sync(full=full).operation == "first sync"
        catalog = bench.catalogs.open("local")
    assert (record(bench).wait, bench.iceberg().metadata.current_snapshot_id != snapshot_id) == (None, True)
    check(bench, table)


def test_a_resync_asks_nobody(bench: Bench, table: HandmadeTable, cache: Cache) -> None:
    """A person who wants Delta's state at once gets it, or a conflict that is tried again."""
    commit(bench, table)
    cache.show_older()
    assert bench.sync(full=True).outcome == "advanced"
    check(bench, table)


def test_a_table_that_may_be_overwritten_is_not_for_a_moment(
    tmp_path: Path, table: HandmadeTable, clock: Clock
) -> None:
    """With `on_foreign_commit: overwrite`, only what lasts is overwritten."""
    bench = Bench(tmp_path / "d", table.location, clock=clock, table_options={"on_foreign_commit": "overwrite"})
    with closing(bench):
        bench.sync()
        cache = Cache(bench.folder)
        commit(bench, table)
        cache.show_older()
        with pytest.raises(CatalogAway, match=OLDER):
            bench.sync()
        clock.later_s += 61
        result = bench.sync()
        assert (result.outcome, result.operation) == ("advanced", "resync")
        check(bench, table)


def test_a_rewound_log_is_gone_back_to_by_the_runs_of_cron(bench: Bench, table: HandmadeTable, clock: Clock) -> None:
    """Each is a new process, and the minute is one; a log that is whole in between begins it anew."""
    newest = table.commit_path(3)
    away = newest.rename(newest.with_suffix(".away"))
    for _ in range(2):
        for _ in range(2):
            bench.reopen()
            with pytest.raises(ObjectMissing, match="ends at version 2, but version 3 was synced already"):
                bench.sync()
            clock.later_s += 29
        away.rename(newest)
        assert bench.sync().outcome == "unchanged"
        newest.rename(away)
    clock.later_s += 3600
    with pytest.raises(ObjectMissing):
        bench.sync()
    # A clock that was set back begins anew, too.
    clock.later_s -= 1800
    with pytest.raises(ObjectMissing):
        bench.sync()
    clock.later_s += 61
    bench.reopen()
    assert bench.sync().to_version == 2
    assert len(bench.iceberg().scan().to_arrow()) == 5
    assert record(bench).wait is None


def test_a_silent_dvsync_is_taken_over_from_by_the_runs_of_cron(
    tmp_path: Path, table: HandmadeTable, clock: Clock
) -> None:
    """Its lease is over although none of the processes that wait for it lives as long."""
    first, second = (
        Bench(tmp_path / "d", table.location, clock=clock, state_name=f"{name}.db", writer=Writer(name))
        for name in ("a", "b")
    )
    with closing(first), closing(second):
        first.sync()
        table.commit(table.delete({min(table.live): [4]}))
        for _ in range(2):
            with pytest.raises(TargetHeld):
                second.sync()
            clock.later_s += 16
            second.reopen()
        assert second.sync().to_version == table.version
        check(second, table)


def test_a_daemon_beside_a_catalog_that_is_behind(tmp_path: Path, table: HandmadeTable) -> None:
    """It tries again by itself: nobody has to resume the table."""
    config = tmp_path / "config.yaml"
    write_config(config, tables=[{"source": str(table.folder), "target": "lake.t", "name": "t"}])
    with daemon(config) as running:
        running.synced_to("t", 3)
        cache = Cache(tmp_path)
        table.commit(table.delete({min(table.live): [3]}))
        running.synced_to("t", 4)
        cache.show_older()
        table.commit(table.delete({min(table.live): [4]}))
        error = until(lambda: running.tables()["t"]["error"])
        assert (error["kind"], error["message"].startswith(OLDER)) == ("CatalogAway", True)
        cache.show_now()
        running.synced_to("t", 5)
        assert not [line for line in running.lines if line["event"] == "table.parked"]
