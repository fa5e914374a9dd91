"""Commits that are replaced below the newest synced one, as by a backup that is put over the log: noticed, compared."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from structlog.testing import capture_logs

from daemon.clock import SystemClock
from daemon.sync.news import CONTINUITY_INTERVAL_S
from state import RECENT_COMMITS_MAX
from tests.kit.checks import check, rows_of
from tests.kit.daemons import Daemon, daemon, write_config
from tests.kit.handmade import Bench, HandmadeTable, sql_catalog

# Why states are compared when a commit is replaced that was only listed, and when one is that was read.
LISTED = "commit 2 may have been replaced after it was synced: its time differs"
READ = "commit 4 was replaced after it was synced: its content differs"


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
    """Sync as long as there is news, and return why states were compared; the log has the probable cause, too."""
    with capture_logs() as lines:
        while bench.follower.has_news():
            bench.sync()
    compared = [line for line in lines if line["event"] == "states.compared"]
    assert all(line["hint"] for line in compared)
    return [line["reason"] for line in compared]


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_an_older_commit_that_is_replaced(
    bench: Bench, table: Restored, clock: Clock, version: int, *, is_busy: bool
) -> None:
    """Noticed when the log is listed next, also if there is always a newer commit; shown in one snapshot, once."""
    assert reasons(bench) == []
    table.replace(version)
    if is_busy:
        table.append()
    later(bench, clock)
    (reason,) = reasons(bench)
    assert reason.startswith(LISTED if version == 2 else READ)
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


# What is done to a log while dvsync is away, and why states are compared then.
WHILE_AWAY: dict[str, tuple[Callable[[Restored], object], str | None]] = {
    "untouched": (lambda table: None, None),
    "listed": (lambda table: table.replace(2), LISTED),
    "read": (lambda table: table.replace(4), READ),
    "listed_and_news": (lambda table: (table.replace(2), table.append()), LISTED),
    "read_and_news": (lambda table: (table.replace(4), table.append()), READ),
    "newest": (lambda table: table.replace(5), "commit 5 was replaced after it was synced: its content differs"),
    "same_rows": (lambda table: table.put(4, table.text_of(4).replace("WRITE", "OPTIMIZED"), later_s=1), READ),
    "other_time": (lambda table: table.put(4, table.text_of(4), later_s=1), None),
    "newest_of_another_time": (lambda table: table.put(5, table.text_of(5), later_s=1), None),
    "cleaned_up": (lambda table: [table.commit_path(version).unlink() for version in range(4)], None),
}


def test_commits_are_replaced_between_two_processes(tmp_path: Path) -> None:
    """Each `dvsync run` of a fleet compares what was replaced while none ran, once and nothing else."""
    tables = {name: Restored(tmp_path / "lake" / name) for name in WHILE_AWAY}
    config = tmp_path / "config.yaml"
    entries = [{"source": str(table.folder), "target": f"lake.{name}", "name": name} for name, table in tables.items()]
    write_config(config, tables=entries)

    def all_synced(running: Daemon) -> None:
        for name, table in tables.items():
            running.synced_to(name, table.version)

    def append(times: int) -> None:
        for table in tables.values():
            for _ in range(times):
                table.append()

    for table in tables.values():
        table.create()
    append(3)
    with daemon(config) as first:
        all_synced(first)
        append(2)
        all_synced(first)
        assert not [line for line in first.lines if line["event"] == "states.compared"]
    for name, (change, _) in WHILE_AWAY.items():
        change(tables[name])
    with daemon(config) as second:
        for name, (_, reason) in WHILE_AWAY.items():
            if reason:
                second.told("states.compared", table=name)
        all_synced(second)
        append(1)
        all_synced(second)
        compared = [(line["table"], line["reason"]) for line in second.lines if line["event"] == "states.compared"]
    catalog = SqlCatalog("local", **sql_catalog(tmp_path))
    for name, table in tables.items():
        told, expected = [reason for compared_name, reason in compared if compared_name == name], WHILE_AWAY[name][1]
        assert len(told) == bool(expected), (name, told)
        assert all(reason.startswith(str(expected)) for reason in told), (name, told)
        assert rows_of(catalog.load_table(f"lake.{name}").scan().to_arrow()) == table.live_rows(), name
