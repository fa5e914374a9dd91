"""What becomes of notices: sent in order, tried again, coalesced, bounded, and never waited for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.clock import SystemClock
from daemon.config.settings import HookSettings, NoticeKind, Settings
from daemon.notices import delivery, outbox
from daemon.notices.notice import Notice, Run, events_of, make_notice
from daemon.notices.outbox import Outbox
from state import TableRecord
from tests.kit.daemons import until
from tests.kit.receiver import Receiver, receiver


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(outbox, "RETRY_MAX_S", 0.02)
    monkeypatch.setattr(outbox, "JOINED_EACH_S", 0.02)


def outbox_of(*hooks: HookSettings) -> Outbox:
    return Outbox(Settings(hooks=hooks), SystemClock())


def notice(kind: NoticeKind, table: str = "a", text: str = "x", version: int = 1) -> Notice:
    record = TableRecord(id=1, name=table, source="file:///a", target="db.a", synced_version=version)
    return make_notice(kind, record, text, SystemClock())


def notices(server: Receiver, path: str = "/") -> list[dict[str, Any]]:
    """Those that came alone and those that came joined."""
    return [one for each in server.taken.get(path, []) for one in each.get("notices", [each])]


def texts(server: Receiver) -> list[str]:
    return [each["text"] for each in notices(server)]


def test_a_refused_notice_is_sent_again_before_later_ones_of_its_table(server: Receiver) -> None:
    """And other tables do not wait for it. A redirect is a refusal: following it would lose the body."""
    server.refusals = [503, 302, 500]
    box = outbox_of(HookSettings(url=f"{server.url}/", headers={"Authorization": "Bearer x"}))
    box.put(notice(NoticeKind.PARKED))
    box.put(notice(NoticeKind.RECOVERED))
    until(lambda: len(texts(server)) == 2, "both notices")
    assert [each["event"] for each in server.taken["/"]] == ["parked", "recovered"]
    assert {each["authorization"] for _, each in server.sent} == {"Bearer x"}
    until(lambda: box.hooks()[0].sent == 2, "the count")
    assert box.hooks()[0].waiting == 0
    box.close(5)


def test_a_receiver_that_hangs_holds_up_nobody_and_the_newest_metadata_wins(server: Receiver) -> None:
    server.answers.clear()
    box = outbox_of(HookSettings(url=f"{server.url}/hook", events=["parked", "synced"]))
    for version in range(50):
        box.put(notice(NoticeKind.SYNCED, version=version))
        if version == 20:
            box.put(notice(NoticeKind.PARKED))
    assert box.hooks()[0].waiting <= 3
    server.answers.set()
    until(lambda: server.taken.get("/hook", [{}])[-1].get("version") == 49, "the newest")
    assert [each["event"] for each in server.taken["/hook"]][-2:] == ["parked", "synced"]
    assert len(server.taken["/hook"]) <= 3
    box.close(5)


def test_what_waits_is_bounded_and_what_is_dropped_is_counted(
    server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "WAITING_MAX", 3)
    monkeypatch.setattr(outbox, "ATTEMPTS_MAX", 2)
    server.answers.clear()
    box = outbox_of(HookSettings(url=f"{server.url}/"))
    for number in range(5):
        box.put(notice(NoticeKind.PARKED, text=str(number)))
    assert (box.hooks()[0].dropped, box.hooks()[0].waiting) == (2, 3)
    server.refusals = [500, 500]
    server.answers.set()
    until(lambda: len(texts(server)) == 2, "those after the one that was given up")
    assert texts(server) == ["a: 1", "a: 2"]
    assert box.hooks()[0].dropped == 3
    box.close(5)


def test_a_hook_gets_the_events_and_tables_that_it_wants(server: Receiver) -> None:
    box = outbox_of(
        HookSettings(url=f"{server.url}/gone", events=["gone"]),
        HookSettings(url=f"{server.url}/sales", tables=["sales.*"]),
        HookSettings(url=f"{server.url}/synced", events=["synced"]),
        HookSettings(url=f"{server.url}/lineage", format="openlineage"),
    )
    for kind in (NoticeKind.PARKED, NoticeKind.GONE, NoticeKind.SYNCED):
        for table in ("sales.a", "hr.b"):
            box.put(notice(kind, table))
    for event in events_of(Run("sales.a", "file:///a", "db.a", 1_000, 2_000)):
        box.put(event)
    until(lambda: [each.sent for each in box.hooks()] == [2, 2, 2, 2], "the notices")
    assert [(each["event"], each["table"]) for each in notices(server, "/gone")] == [
        ("gone", "sales.a"),
        ("gone", "hr.b"),
    ]
    assert [(each["event"], each["table"]) for each in notices(server, "/sales")] == [
        ("parked", "sales.a"),
        ("gone", "sales.a"),
    ]
    assert {each["table"] for each in server.taken["/synced"]} == {"sales.a", "hr.b"}
    assert [each["eventType"] for each in server.taken["/lineage"]] == ["START", "COMPLETE"]
    box.close(5)


def test_a_command_reads_the_notice_and_its_failure_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    program = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"
    box = outbox_of(
        HookSettings(command=[sys.executable, "-c", program, str(tmp_path / "told")]),
        HookSettings(command=[sys.executable, "-c", "import sys; sys.exit('no such pager')"]),
        HookSettings(command=["/nowhere/program"]),
    )
    box.put(notice(NoticeKind.PARKED))
    until(lambda: box.hooks()[0].sent, "the command")
    assert '"event":"parked"' in (tmp_path / "told").read_text()
    said: list[str] = []

    def has_said(text: str) -> bool:
        # Where a log line goes depends on what was configured before in this process.
        said.append(capsys.readouterr().out)
        return text in "".join((*said, caplog.text))

    until(lambda: has_said("no such pager"), "the failure")
    until(lambda: has_said("No such file or directory"), "the other failure")
    box.close(5)


def test_a_command_may_leave_a_program_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has taken the notice when it ends itself, even if the other still holds its standard error."""
    monkeypatch.setattr(delivery, "TIMEOUT_S", 1.0)
    box = outbox_of(HookSettings(command=["sh", "-c", "sleep 5 & exit 0"]))
    box.put(notice(NoticeKind.PARKED))
    until(lambda: box.hooks()[0].sent, "the command", wait_s=5)
    box.close(5)


def test_a_command_that_hangs_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "TIMEOUT_S", 0.3)
    program = f"sleep 60 & echo $! >> {tmp_path}/started; wait"
    box = outbox_of(HookSettings(command=["sh", "-c", program]))
    box.put(notice(NoticeKind.PARKED))

    def started() -> list[int]:
        file = tmp_path / "started"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    until(lambda: len(started()) > 1, "another attempt")
    first = Path(f"/proc/{started()[0]}/stat")
    # A process that nobody waits for is a zombie for a moment.
    until(lambda: not first.exists() or ") Z " in first.read_text(), "the end of the first")
    box.close(5)


def test_the_newest_metadata_is_tried_at_the_end_although_an_older_one_failed(
    server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "RETRY_FIRST_S", 60)
    monkeypatch.setattr(outbox, "RETRY_MAX_S", 60)
    server.refusals = [500]
    box = outbox_of(HookSettings(url=f"{server.url}/hook", events=["synced"]))
    box.put(notice(NoticeKind.SYNCED, version=1))
    until(lambda: not server.refusals, "the first attempt")
    box.put(notice(NoticeKind.SYNCED, version=2))
    box.close(10)
    assert [each["version"] for each in server.taken["/hook"]] == [2]


def test_a_reload_that_moves_a_hook_keeps_what_waits(server: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "RETRY_FIRST_S", 60)
    monkeypatch.setattr(outbox, "RETRY_MAX_S", 60)
    server.refusals = [500]
    old = HookSettings(url=f"{server.url}/")
    box = outbox_of(old)
    box.put(notice(NoticeKind.PARKED))
    until(lambda: not server.refusals, "the first attempt")
    box.change(Settings(hooks=(HookSettings(url=f"{server.url}/new"), old)))
    assert [(each.name, each.waiting) for each in box.hooks()] == [("hooks[0]", 0), ("hooks[1]", 1)]
    box.close(5)


def test_commands_do_not_outlive_the_outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All hooks share the time that is left at the end."""
    monkeypatch.setattr(delivery, "TIMEOUT_S", 600)
    programs = [f"echo $$ > {tmp_path}/{number}; exec sleep 600" for number in range(3)]
    box = outbox_of(*(HookSettings(command=["sh", "-c", program]) for program in programs))
    box.put(notice(NoticeKind.PARKED))
    until(lambda: len([path for path in tmp_path.iterdir() if path.read_text()]) == 3, "the commands")
    box.close(0.2)
    running = [Path(f"/proc/{path.read_text().strip()}/stat") for path in tmp_path.iterdir()]
    until(lambda: all(not path.exists() or ") Z " in path.read_text() for path in running), "their end")
    assert [each.dropped for each in box.hooks()] == [1, 1, 1]


def test_what_happens_to_many_tables_is_joined(server: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each hook, those tables that it wants, also if they come one after the other; `synced` is never joined."""
    monkeypatch.setattr(outbox, "JOINED_EACH_S", 0.5)
    box = outbox_of(
        HookSettings(url=f"{server.url}/all"),
        HookSettings(url=f"{server.url}/few", tables=["sales.1?"]),
        HookSettings(url=f"{server.url}/hook", events=["synced"]),
    )
    names = [f"sales.{number}" for number in range(20)]
    for name in names:
        box.put(notice(NoticeKind.GONE, name, "the Delta log is gone"))
        box.put(notice(NoticeKind.SYNCED, name))
    box.put(notice(NoticeKind.PARKED, "hr.a"))
    until(lambda: [each.sent for each in box.hooks()] == [21, 10, 20], "all of them")
    told = {
        name: [len(each.get("notices", ["itself"])) for each in server.taken[f"/{name}"]] for name in ("all", "few")
    }
    assert sum(told["all"]) == 21 and len(told["all"]) <= 4, told
    assert sum(told["few"]) == 10
    joined = next(each for each in server.taken["/all"] if each["table"] is None)
    first, number = joined["notices"][0], len(joined["notices"])
    about = f"gone: {number} notices about {number} tables ({first['table']}, "
    assert joined["event"] == "gone" and joined["text"].startswith(about)
    assert joined["text"].endswith(f"The first: {first['table']}: the Delta log is gone")
    assert sorted(each["table"] for each in server.taken["/hook"]) == sorted(names)
    box.close(5)


def test_joined_notices_stay_in_the_order_of_each_table(server: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the receiver refuses them, too: what came later of a table is not sent before."""
    monkeypatch.setattr(outbox, "JOINED_EACH_S", 0.5)
    server.refusals = [500] * 6
    box = outbox_of(HookSettings(url=f"{server.url}/"))
    names = [f"a{number}" for number in range(30)]
    for kind in (NoticeKind.GONE, NoticeKind.RECOVERED, NoticeKind.PARKED):
        for name in names:
            box.put(notice(kind, name))
    until(lambda: box.hooks()[0].sent == 90, "all of them")
    events: dict[str, list[str]] = {name: [] for name in names}
    for one in notices(server):
        events[one["table"]].append(one["event"])
    assert all(of_table == ["gone", "recovered", "parked"] for of_table in events.values())
    box.close(5)


def test_one_table_that_has_an_event_again_and_again_holds_nothing_up(
    server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held of a table comes in one, and then what came later of it."""
    monkeypatch.setattr(outbox, "JOINED_EACH_S", 1.0)
    box = outbox_of(HookSettings(url=f"{server.url}/"))
    for number in range(60):
        box.put(notice(NoticeKind.TARGET_CHANGED, text=str(number)))
    box.put(notice(NoticeKind.PARKED))
    until(lambda: box.hooks()[0].sent == 61, "all of them", wait_s=5)
    assert texts(server) == [*(f"a: {number}" for number in range(60)), "a: x"]
    assert len(server.taken["/"]) <= 4
    box.close(5)


class Picky(Receiver):
    """Refuses whatever has `poison` in it."""

    def refuses(self, body: Any) -> bool:
        return "poison" in str(body)


def test_a_notice_that_is_always_refused_takes_no_others_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "JOINED_EACH_S", 0.05)
    with receiver(Picky) as server:
        box = outbox_of(HookSettings(url=f"{server.url}/"))
        for number in range(300):
            box.put(notice(NoticeKind.GONE, f"a{number}", "poison" if number == 77 else "x"))
        until(lambda: box.hooks()[0].sent + box.hooks()[0].dropped == 300, "the end")
        assert (box.hooks()[0].sent, box.hooks()[0].dropped) == (299, 1)
        box.close(5)
