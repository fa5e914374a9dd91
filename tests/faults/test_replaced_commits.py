"""Commits that are replaced below the newest synced one, as by a backup that is put over the log: noticed, compared."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from structlog.testing import capture_logs

from daemon.clock import SystemClock
from daemon.sync.follower import CONTINUITY_INTERVAL_S
from state import RECENT_COMMITS_MAX
from tests.kit.checks import check, rows_of
from tests.kit.daemons import command, write_config
from tests.kit.handmade import Bench, HandmadeTable, sql_catalog


class Clock(SystemClock):
    """Time that the test moves."""

    later_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.later_s


class Restored(HandmadeTable):
    """A table of a file in each commit, some of which are replaced."""

    def append(self) -> None:
        self.commit([self.add(self.write_file([(10 * self.version + 10, "x", "v")], name=f"f{self.version + 1}"))])

    def text_of(self, version: int) -> str:
        return self.commit_path(version).read_text()

    def put(self, version: int, text: str, *, later_s: float = 0.0) -> None:
        """Put a commit with this text over that of `version`, which is `later_s` older."""
        path = self.commit_path(version)
        time_s = path.stat().st_mtime + later_s
        path.write_text(text)
        os.utime(path, (time_s, time_s))

    def replace(self, version: int, *, later_s: float = 1.0) -> None:
        """Put a commit with another file, and a text of the same length, over that of `version`."""
        text = self.text_of(version)
        first, line = text.splitlines()
        path = json.loads(line)["add"]["path"]
        del self.live[path], self.deleted[path]
        rows = [(row[0] + 5, "y", "w") for row in self.rows[path]]
        other = self.write_file(rows, name=path.replace("f", "g").removesuffix(".parquet"))
        new = f"{first}\n{json.dumps(self.add(other))}\n"
        assert len(new) == len(text)
        self.put(version, new, later_s=later_s)


@pytest.fixture
def table(tmp_path: Path) -> Restored:
    """Version 5: a file in each of five commits."""
    table = Restored(tmp_path / "delta")
    table.create()
    for _ in range(5):
        table.append()
    return table


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bench(tmp_path: Path, table: Restored, clock: Clock) -> Iterator[Bench]:
    """dvsync, which showed versions 0 to 3 by a first sync, and 4 and 5 by their commits."""
    away = {version: table.commit_path(version).rename(tmp_path / str(version)) for version in (4, 5)}
    bench = Bench(tmp_path / "dvsync", table.location, clock=clock)
    bench.sync()
    for version, path in away.items():
        path.rename(table.commit_path(version))
    bench.sync()
    yield bench
    bench.close()


def later(bench: Bench, clock: Clock) -> None:
    clock.later_s += CONTINUITY_INTERVAL_S


def restarted(bench: Bench, clock: Clock) -> None:
    bench.reopen()


def reasons(bench: Bench) -> list[str]:
    """Sync as long as there is news, and return why states were compared."""
    with capture_logs() as lines:
        while bench.follower.has_news():
            bench.sync()
    return [line["reason"] for line in lines if line["event"] == "states.compared"]


@pytest.mark.parametrize("case", list(product((later, restarted), (2, 4), (False, True))))
def test_an_older_commit_that_is_replaced(
    bench: Bench, table: Restored, clock: Clock, case: tuple[Callable[[Bench, Clock], None], int, bool]
) -> None:
    """Noticed when the log is listed next, also if there is always a newer commit; shown in one snapshot, once."""
    moment, version, is_busy = case
    assert reasons(bench) == []
    table.replace(version)
    if is_busy:
        table.append()
    moment(bench, clock)
    (reason,) = reasons(bench)
    told = ("may have been", "time") if version == 2 else ("was", "content")
    assert reason.startswith("commit {} {} replaced after it was synced: its {} differs".format(version, *told))
    check(bench, table, [3, 4, 5, 6 if is_busy else 5])
    for again in (later, restarted, later):
        again(bench, clock)
        assert reasons(bench) == []
    table.append()
    assert reasons(bench) == []
    check(bench, table, [3, 4, 5, 6 if is_busy else 5, table.version])


def test_a_busy_table_is_listed_once_in_an_interval(
    bench: Bench, table: Restored, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two listings a commit costs none."""
    listings = 0
    check_continuity = bench.context.log.check_continuity

    def counted(*arguments: object) -> object:
        nonlocal listings
        listings += 1
        return check_continuity(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.context.log, "check_continuity", counted)
    for expected in (0, 0, 0, 1, 1):
        table.append()
        assert bench.follower.has_news()
        bench.sync()
        assert listings == expected
        clock.later_s += CONTINUITY_INTERVAL_S / 2.5


def test_a_commit_that_is_replaced_twice_is_compared_twice(bench: Bench, table: Restored, clock: Clock) -> None:
    """And the first one, put back, too: what is remembered is what was compared last."""
    first = table.text_of(4)
    table.replace(4)
    later(bench, clock)
    assert len(reasons(bench)) == 1
    second = table.text_of(4)
    for count, text in enumerate((first, second), start=2):
        table.put(4, text, later_s=count)
        later(bench, clock)
        assert len(reasons(bench)) == 1
    check(bench, table, [3, 4, 5, 5, 5, 5])


def test_a_commit_with_the_same_rows_is_compared_once(bench: Bench, table: Restored, clock: Clock) -> None:
    """Only its commitInfo differs: nothing is committed, and nothing is compared again."""
    table.put(4, table.text_of(4).replace("WRITE", "OPTIMIZED"), later_s=1)
    later(bench, clock)
    assert len(reasons(bench)) == 1
    for again in (later, restarted):
        again(bench, clock)
        assert reasons(bench) == []
    check(bench, table, [3, 4, 5])


def test_other_times_of_the_same_commits_are_compared_at_most_once(bench: Bench, table: Restored, clock: Clock) -> None:
    """Each file is as it was, as after a copy of the lake: only what was never read may be another commit."""
    for count in (1, 2):
        for version in range(6):
            table.put(version, table.text_of(version), later_s=count)
        restarted(bench, clock)
        assert len(reasons(bench)) == (1 if count == 1 else 0)
    check(bench, table, [3, 4, 5])


def test_the_newest_commit_is_known_by_its_content_after_a_restart(bench: Bench, table: Restored) -> None:
    """Neither another time alone nor, with the in-commit timestamp of the former commit, another content deceives."""
    table.put(5, table.text_of(5), later_s=5)
    bench.reopen()
    assert reasons(bench) == []
    table.append()
    in_commit = '"inCommitTimestamp": 1790000000000, "operation"'
    table.put(6, table.text_of(6).replace('"operation"', in_commit))
    assert reasons(bench) == []
    table.replace(6)
    bench.reopen()
    (reason,) = reasons(bench)
    assert reason.startswith("commit 6 was replaced after it was synced: its content differs")
    check(bench, table, [3, 4, 5, 6, 6])


def test_log_cleanup_is_no_replacement(bench: Bench, table: Restored, clock: Clock) -> None:
    """Older commits go; one that comes back is still known."""
    away = table.commit_path(4).rename(table.folder / "away")
    for version in (0, 1, 2, 3):
        table.commit_path(version).unlink()
    for again in (later, restarted):
        again(bench, clock)
        assert reasons(bench) == []
    away.rename(table.commit_path(4))
    later(bench, clock)
    assert reasons(bench) == []
    check(bench, table, [3, 4, 5])


def test_a_comparison_that_fails_is_not_forgotten(bench: Bench, table: Restored, clock: Clock) -> None:
    """Another commit is remembered once its state is shown, and not before."""
    table.replace(4)
    file = table.folder / "g4.parquet"
    away = file.rename(file.with_suffix(".away"))
    later(bench, clock)
    for again in (later, restarted, restarted):
        with pytest.raises(Exception, match="not there"):
            bench.sync()
        again(bench, clock)
    away.rename(file)
    assert len(reasons(bench)) == 1
    check(bench, table, [3, 4, 5, 5])


def test_what_an_older_dvsync_synced_is_learned_from_the_log(bench: Bench, table: Restored, clock: Clock) -> None:
    """A state database without identities has them after the first listing, no more than are remembered."""
    with bench.store._database.write() as connection:
        connection.exec_driver_sql("UPDATE tables SET recent_commits = NULL")
    bench.reopen()
    assert reasons(bench) == []
    (record,) = bench.store.list_tables()
    assert [each.version for each in bench.store.find_recent_commits(record.id)] == [0, 1, 2, 3, 4]
    for _ in range(RECENT_COMMITS_MAX):
        table.commit([])
    assert reasons(bench) == []
    table.replace(4)
    later(bench, clock)
    assert reasons(bench) == []
    assert len(bench.store.find_recent_commits(record.id)) == RECENT_COMMITS_MAX


def test_an_older_commit_is_replaced_between_two_runs_of_cron(tmp_path: Path, table: Restored) -> None:
    """Each `dvsync sync` is a process of its own, and finds a new commit, too."""
    config = tmp_path / "config.yaml"
    write_config(config, tables=[{"source": str(table.folder), "target": "lake.t", "name": "t"}])
    assert command(config, "sync").returncode == 0
    table.replace(3)
    table.append()
    assert command(config, "sync").returncode == 0
    iceberg = SqlCatalog("local", **sql_catalog(tmp_path)).load_table("lake.t")
    assert rows_of(iceberg.scan().to_arrow()) == table.live_rows()
