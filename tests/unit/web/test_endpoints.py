"""The health server as a client sees it, over a real socket."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from daemon.config.settings import HealthSettings, TableSettings
from daemon.config.share import Share
from daemon.errors import ConfigInvalid
from daemon.status.board import Topic, Unready
from daemon.status.table_status import Observation
from daemon.sync.outcomes import SyncOutcome, SyncResult
from daemon.web.endpoints import SILENT_MAX_S, Api
from daemon.web.server import WAITING_MAX, WebServer, guard
from state import (
    Differences,
    FileKind,
    FileStatus,
    MirrorCount,
    Pause,
    ProofRecord,
    SourceEntry,
    SyncRun,
    TableCounts,
    TableError,
    TableRecord,
    WrittenCount,
)
from tests.kit.boards import board_of

NOW_MS = 1_700_000_000_000


class FakeClock:
    def __init__(self) -> None:
        self.time_s = 0.0

    def now_ms(self) -> int:
        return NOW_MS + int(self.time_s * 1000)

    def monotonic_s(self) -> float:
        return self.time_s


def table(name: str) -> TableSettings:
    return TableSettings(source=f"file:///data/{name}", target=f"db.{name}", name=name, catalog="local")


RECORD = TableRecord(
    id=1,
    name="orders",
    source="file:///data/orders",
    target="db.orders",
    synced_version=7,
    snapshot_id=123,
    metadata_location="file:///wh/m.json",
    format_version=2,
    last_synced_at_ms=NOW_MS,
)
COUNTS = TableCounts(
    live_data_files=3,
    live_rows=90,
    deleted_positions=10,
    live_bytes=9_000,
    written=(
        WrittenCount(FileKind.DELETE_FILE, FileStatus.LIVE, 2, 700, NOW_MS - 5_000),
        WrittenCount(FileKind.MANIFEST, FileStatus.ORPHANED, 1, 40, NOW_MS - 60_000),
    ),
    mirrors=(MirrorCount("footer", "no ids", 2, 900), MirrorCount("footer", None, 1, 80)),
)
IN_STEP = Observation(record=RECORD, counts=COUNTS, source_version=7, behind_since_ms=None, checked_at_s=0.0)
ERROR = TableError("CorruptInput", "bad CRC", "Restore it.", version=8, since_ms=NOW_MS, consecutive=2, parked=True)


class Server:
    def __init__(self, *names: str) -> None:
        self.clock = FakeClock()
        self.board = board_of([table(name) for name in names], self.clock, lag_budget_s=60)
        self.web = WebServer.start(HealthSettings(port=0), Api(self.board).app)

    def ask(self, path: str):
        try:
            with urlopen(self.web.url + path, timeout=10) as response:
                return response.status, json.load(response)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server("orders")
    yield server
    server.web.stop()


def reasons(server: Server) -> list[str]:
    status, body = server.ask("/readyz")
    assert (status == 200) == body["ready"] == (not body["reasons"])
    return [reason["reason"] for reason in body["reasons"]]


def test_tables_are_the_list_of_status_json(server):
    """Every key that design.md names, with times in ISO 8601 and what is unknown as null."""
    server.board.show("orders", IN_STEP)
    assert server.ask("/api/tables") == (
        200,
        [
            {
                "name": "orders",
                "source": "file:///data/orders",
                "source_table": None,
                "catalog": "local",
                "target": "db.orders",
                "state": "synced",
                "synced_version": 7,
                "source_version": 7,
                "lag_versions": 0,
                "lag_seconds": 0.0,
                "snapshot_id": 123,
                "metadata_location": "file:///wh/m.json",
                "format_version": 2,
                "checked_at": "2023-11-14T22:13:20.000Z",
                "last_synced_at": "2023-11-14T22:13:20.000Z",
                "resync_wanted": False,
                "pause": None,
                "error": None,
                "proof": None,
                "verify_error": None,
                "live_data_files": 3,
                "live_rows": 90,
                "live_delete_files": 2,
                "deleted_positions": 10,
                "mirrors": [
                    {"kind": "footer", "why": "no ids", "files": 2, "size_bytes": 900},
                    {"kind": "footer", "why": None, "files": 1, "size_bytes": 80},
                ],
                "orphans_waiting": 1,
                "orphan_bytes": 40,
                "written_files": [
                    {"kind": "delete-file", "status": "live", "files": 2, "size_bytes": 700, "oldest_seconds": 5.0},
                    {"kind": "manifest", "status": "orphaned", "files": 1, "size_bytes": 40, "oldest_seconds": 60.0},
                ],
            }
        ],
    )


def read_metrics(server):
    """The samples by name and labels, parsed by Prometheus' own library."""
    with urlopen(server.web.url + "/metrics", timeout=10) as response:
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = text_string_to_metric_families(response.read().decode())
        return {
            (sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples
        }


def test_metrics_are_the_boards(server):
    """What is not known has no series; accounts and their mismatches are counted from nought on."""
    samples = read_metrics(server)
    assert samples["dvsync_account_mismatches_total", "orders"] == 0
    assert ("dvsync_live_rows", "orders") not in samples
    server.board.show("orders", IN_STEP)
    server.board.activity.count("orders", accounts_checked=5, account_mismatches=1)
    samples = read_metrics(server)
    assert samples["dvsync_accounts_checked_total", "orders"] == 5
    assert samples["dvsync_account_mismatches_total", "orders"] == 1
    assert samples["dvsync_live_rows", "orders"] == 90
    assert samples["dvsync_lag_versions", "orders"] == 0
    assert (samples["dvsync_mirrors", "footer", "orders"], samples["dvsync_mirror_bytes", "footer", "orders"]) == (
        3,
        980,
    )
    assert samples["dvsync_table_state", "synced", "orders"] == 1
    assert samples["dvsync_table_state", "parked", "orders"] == 0


def test_a_table_in_step_is_ready(server):
    """Before the first look it is not."""
    assert reasons(server) == ["not checked yet"]
    server.board.show("orders", IN_STEP)
    assert reasons(server) == []


def test_a_table_beyond_its_lag_budget_is_not_ready(server):
    """Behind within the budget is ready; the lag grows by itself as time goes on."""
    behind = replace(IN_STEP, source_version=9, behind_since_ms=NOW_MS)
    server.board.show("orders", behind)
    assert reasons(server) == []
    server.clock.time_s = 61
    server.board.show("orders", replace(behind, checked_at_s=61.0))
    assert reasons(server) == ["behind for 1 min 1 s, more than the budget of 1 min"]
    body = server.ask("/api/tables")[1][0]
    assert (body["state"], body["lag_versions"], body["lag_seconds"]) == ("behind", 2, 61.0)


def test_a_parked_table_is_not_ready_and_says_why(server):
    """Kind, message, hint, version and since when."""
    server.board.show("orders", replace(IN_STEP, record=replace(RECORD, error=ERROR)))
    assert reasons(server) == [f"parked: CorruptInput: {ERROR.message}"]
    body = server.ask("/api/tables")[1][0]
    assert body["state"] == "parked"
    assert body["error"] == {
        "kind": "CorruptInput",
        "message": "bad CRC",
        "hint": "Restore it.",
        "version": 8,
        "since": "2023-11-14T22:13:20.000Z",
        "consecutive": 2,
    }


def test_a_table_whose_source_does_not_answer_is_not_ready_in_the_end(server):
    """Nobody knows how far behind it is; the budget counts from the last good look."""
    server.board.show("orders", IN_STEP)
    server.clock.time_s = 60 + 10
    assert reasons(server) == []
    server.clock.time_s = 60 + 11
    assert reasons(server) == ["its source could not be checked for 1 min 11 s"]


def test_a_paused_table_and_a_missing_source_are_no_reason(server):
    """Both are what somebody wants."""
    server.board.show("orders", replace(IN_STEP, record=replace(RECORD, pause=Pause(1_000, "ada"), error=ERROR)))
    assert (reasons(server), server.ask("/api/tables")[1][0]["state"]) == ([], "paused")
    server.board.show("orders", Observation(checked_at_s=0.0))
    assert (reasons(server), server.ask("/api/tables")[1][0]["state"]) == ([], "waiting")


def test_no_tables_is_not_ready():
    """A daemon that follows nothing is misconfigured."""
    server = Server()
    try:
        assert reasons(server) == ["no tables are configured"]
        assert server.ask("/api/tables") == (200, [])
        # A share without a table is not.
        server.board.others = {"orders": Share(2, 2)}
        assert reasons(server) == []
    finally:
        server.web.stop()


def test_livez_fails_when_the_scheduler_is_silent_for_three_intervals(server):
    """Measured on the monotonic clock; a beat makes it well again."""
    server.clock.time_s = SILENT_MAX_S
    assert server.ask("/livez") == (200, {"alive": True, "silent_s": 15.0})
    server.clock.time_s += 0.5
    assert server.ask("/livez") == (503, {"alive": False, "silent_s": 15.5})
    server.board.beat()
    assert server.ask("/livez")[0] == 200


def test_a_port_in_use_is_told_at_the_start(server):
    """As a fault of the configuration, with the address and the way out."""
    port = int(server.web.url.rpartition(":")[2])
    with pytest.raises(ConfigInvalid, match=rf"cannot listen on 127\.0\.0\.1:{port}: address already in use") as raised:
        WebServer.start(HealthSettings(port=port), Api(server.board).app)
    assert "health.port" in raised.value.hint


def test_after_stop_the_port_is_free_again(server):
    """A daemon that is started again at once gets its port."""
    port = int(server.web.url.rpartition(":")[2])
    server.web.stop()
    second = WebServer.start(HealthSettings(port=port), Api(server.board).app)
    second.stop()


# --- one table, and the page ---


def page_of(server: Server, path: str) -> tuple[int, str]:
    try:
        with urlopen(server.web.url + path, timeout=10) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_table_whose_store_is_silent_is_not_known_to_be_in_step(server):
    """Its lag is null after some polls without an answer, until one ends; `checked_at` says since when."""
    server.board.show("orders", IN_STEP)
    for silent_s, state, lag in ((24.0, "synced", 0), (26.0, "behind", None)):
        server.clock.time_s = silent_s
        (status,) = server.ask("/api/tables")[1]
        assert (status["state"], status["lag_versions"], status["lag_seconds"]) == (state, lag, lag)
        assert (status["synced_version"], status["source_version"]) == (7, None if lag is None else 7)
    server.board.show("orders", replace(IN_STEP, checked_at_s=26.0))
    assert server.ask("/api/tables")[1][0]["state"] == "synced"


def test_a_state_database_that_a_table_could_not_write_makes_the_daemon_unready(server):
    """At once, and whatever it judges: the lease is renewed only some seconds later."""
    error = replace(ERROR, kind="StateStoreAway", message="the disk is full", parked=False)
    server.board.show("orders", replace(IN_STEP, record=replace(RECORD, error=error)))
    assert reasons(server) == ["the state database cannot be used: the disk is full"]


def test_a_catalog_of_sources_that_refuses_makes_the_daemon_unready(server):
    """Within seconds, once for all its tables, with what to do; not for a failure that the next try may end."""
    error = replace(ERROR, kind="Unauthorized", message="no", hint="Check it.", parked=False)
    server.board.show("orders", IN_STEP)
    for number in range(5):
        entry = SourceEntry("prod", "main", "s", f"t{number}", "id", f"file:///data/{number}", is_managed=True)
        found = TableSettings(source="prod:main.s.*", target="s.{table}", name="{table}").for_entry(entry)
        server.board.add(found)
        record = replace(RECORD, name=found.name, error=replace(error, consecutive=min(2, number)), entry=entry)
        server.board.show(found.name, replace(IN_STEP, record=record))
    server.board.show("t4", replace(IN_STEP, record=replace(record, pause=Pause(NOW_MS, "me"))))
    known = "prod:main.s.t2, prod:main.s.t3: no (Check it.)"
    assert reasons(server) == [known]
    page = page_of(server, "/")[1]
    assert known in page and "prod:main.s.t2, at /data/2" in page
    assert "of prod:main.s.t2, at /data/2" in page_of(server, "/tables/t2")[1]
    assert page_of(server, "/?q=main.s.t2")[1].count("/data/") == 1
    server.board.set_unready(Topic.SOURCES, [Unready(None, "prod:main.s.*: no (Check it.); it found 5 tables before")])
    assert len(reasons(server)) == 1


def test_one_table_has_its_last_syncs(server):
    """The newest first, no more than fifty, and 404 for a table that nobody knows."""
    server.board.show("orders", IN_STEP)
    runs = (SyncRun(1, NOW_MS + number, 40, "advanced", to_version=number) for number in range(60))
    server.board.add_runs("orders", runs)
    status, body = server.ask("/api/tables/orders")
    assert (status, body["status"]["name"]) == (200, "orders")
    assert [run["to_version"] for run in body["runs"]] == list(range(59, 9, -1))
    assert (body["runs"][0]["started_at"], body["runs"][0]["duration_seconds"]) == ("2023-11-14T22:13:20.059Z", 0.04)
    assert not [key for run in body["runs"] for key in run if key == "table_id" or key.endswith("_ms")]
    assert body["read"]["DuckDB"] == "SELECT * FROM iceberg_scan('file:///wh/m.json')"
    assert "<code>dvsync doctor orders</code> names the readers" in page_of(server, "/tables/orders")[1]
    assert server.ask("/api/tables/nobody") == (404, {"error": "no such table"})


def test_the_page_tells_state_error_and_hint(server):
    """Without a script, with everything escaped, and with nothing from another host."""
    evil = replace(ERROR, message="<script>alert(1)</script>", kind="CorruptInput")
    server.board.show("orders", replace(IN_STEP, record=replace(RECORD, error=evil)))
    for path in ("/", "/tables/orders"):
        status, text = page_of(server, path)
        assert status == 200
        for told in ("orders", "parked", "CorruptInput", "Restore it.", "&lt;script&gt;"):
            assert told in text, (path, told)
        assert "<script" not in text
        assert not re.search(r"(src|href)=\"?(https?:)?//", text)
    assert "not ready" in page_of(server, "/")[1]
    assert page_of(server, "/tables/%3Cnobody%3E")[0] == 404


def test_a_tables_page_lists_its_syncs_and_files(server):
    """The syncs with their counts, files by kind with bytes and age."""
    server.clock.time_s = 180
    server.board.show("orders", replace(IN_STEP, checked_at_s=server.clock.time_s))
    server.board.add_runs(
        "orders",
        [
            SyncRun(
                1,
                NOW_MS,
                80_625,
                "advanced",
                6,
                7,
                data_files_added=2,
                delete_files_added=3,
                positions_added=4567,
                operation="MERGE",
            )
        ],
    )
    text = page_of(server, "/tables/orders")[1]
    for told in (
        "6 to 7",
        "1 min 21 s",
        "MERGE",
        "+4,567",
        "delete-file",
        "700 bytes",
        "manifest",
        "orphaned",
        "4 min",
    ):
        assert told in text, told


def test_a_size_that_is_not_known_is_null_and_no_zero(server):
    """In the API, on the page, and in the metrics, which leave it out."""
    unknown = WrittenCount(FileKind.MANIFEST, FileStatus.ORPHANED, 4, None, NOW_MS)
    server.board.show("orders", replace(IN_STEP, counts=replace(COUNTS, written=(unknown,))))
    body = server.ask("/api/tables")[1][0]
    assert (body["orphans_waiting"], body["orphan_bytes"], body["written_files"][0]["size_bytes"]) == (4, None, None)
    assert "unknown size" in page_of(server, "/tables/orders")[1]
    samples = read_metrics(server)
    assert samples["dvsync_written_files", "manifest", "orphaned", "orders"] == 4
    assert ("dvsync_written_bytes", "manifest", "orphaned", "orders") not in samples


def test_the_page_has_one_format_of_times(server):
    """Also the times of errors and verifications; ISO 8601 is for machines."""
    proof = ProofRecord("rows", NOW_MS, 7, 123, 3, 3, 10_000, NOW_MS, Differences(), Differences({"missing rows": 2}))
    server.board.show("orders", replace(IN_STEP, record=replace(RECORD, error=ERROR, proof=proof)))
    for path in ("/", "/tables/orders"):
        text = re.sub(r'datetime="[^"]*"', "", page_of(server, path)[1])
        assert "2023-11-14 22:13:20 UTC" in text
        assert not re.search(r"\d{4}-\d\d-\d\dT", text)


def test_a_sync_after_a_restart_shows_the_last_error_as_the_last(server):
    """State, reason, headline and row say the same: it syncs, and the error is of then."""
    tried = replace(RECORD, error=replace(ERROR, parked=False))
    server.board.show("orders", Observation(tried, source_version=8, syncing=True))
    since = "2023-11-14T22:13:20.000Z"
    begun = "its first sync since the start is running"
    assert reasons(server) == [f"{begun}; the last error was CorruptInput, since {since}"]
    text = page_of(server, "/")[1]
    assert "1 table: 1 syncing" in text and "7 of 8" in text
    assert re.search(r'class="notice held">last error, before this sync: <b>CorruptInput', text)
    assert "2 times since 2023-11-14 22:13:20 UTC" in text
    # Once the try has failed, the error is one of now.
    server.board.show("orders", Observation(tried, source_version=8))
    assert reasons(server) == [f"retrying since {since}: CorruptInput: bad CRC"]
    assert "last error" not in page_of(server, "/")[1]


# --- many tables ---


def show_many(server: Server, numbers: range) -> None:
    """Tables in step, each tenth behind, and table 77 parked."""
    for number in numbers:
        name = f"shop.t{number:03}"
        server.board.add(table(name))
        record = replace(RECORD, id=number, name=name, last_synced_at_ms=NOW_MS - number * 1000)
        if number == 77:
            record = replace(record, error=ERROR)
        behind_since_ms = NOW_MS - number * 100 if number % 10 == 0 else None
        seen = replace(IN_STEP, record=record, source_version=8 if number % 10 == 0 else 7)
        server.board.show(name, replace(seen, behind_since_ms=behind_since_ms))


def listed(server: Server, query: str = "") -> list[str]:
    return re.findall(r'<td class="name"><a href="/tables/([^"]*)"', page_of(server, f"/{query}")[1])


@pytest.fixture(scope="module")
def many() -> Iterator[Server]:
    server = Server()
    show_many(server, range(300))
    yield server
    server.web.stop()


def test_the_worst_tables_come_first(many):
    """Parked, then those behind, the longest first; a hundred tables a page, and all of them on the three."""
    first = listed(many)
    assert first[:3] == ["shop.t077", "shop.t290", "shop.t280"]
    pages = [first, listed(many, "?page=2"), listed(many, "?page=3")]
    assert [len(page) for page in pages] == [100, 100, 100]
    assert len({name for page in pages for name in page}) == 300


def test_the_list_is_filtered_searched_and_sorted_by_the_address(many):
    """State, name whatever the case, readiness and order; all at once, and links to other pages keep them."""
    assert listed(many, "?state=parked") == ["shop.t077"]
    assert listed(many, "?state=not-ready") == ["shop.t077"]
    assert listed(many, "?q=T07&sort=name") == [f"shop.t07{number}" for number in range(10)]
    assert listed(many, "?q=%2Fdata%2Fshop.t123") == ["shop.t123"]
    assert listed(many, "?sort=last-synced")[:2] == ["shop.t299", "shop.t298"]
    assert listed(many, "?state=behind&sort=behind&q=t2")[:2] == ["shop.t290", "shop.t280"]
    text = page_of(many, "/?q=shop&sort=name&state=synced&page=2")[1]
    assert '<a href="?q=shop&amp;state=synced&amp;sort=name&amp;page=3">' in text
    assert '<option value="name" selected>' in text and 'value="shop"' in text
    assert page_of(many, "/?q=nothing-like-it")[1].count("No table is like this.") == 1


@pytest.mark.parametrize(
    "query",
    ["?state=odd", "?sort=", "?page=x", "?page=-1", "?page=%C2%B2", "?page=0&colour=red", "?refresh=never", "?q=+"],
)
def test_what_the_address_says_wrongly_is_ignored(many, query):
    assert listed(many, query) == listed(many)


def test_a_page_that_is_not_there_is_the_last_one(many):
    assert listed(many, "?page=999999") == listed(many, "?page=3")
    assert len(listed(many, f"?page={'9' * 5000}")) == 100


def test_what_is_searched_is_shown_as_text(many):
    text = page_of(many, "/?q=%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E")[1]
    assert "<script" not in text and "&lt;script&gt;" in text
    assert len(re.findall('value="x+"', page_of(many, f"/?q={'x' * 900}")[1])[0]) == 208


def test_the_refreshing_can_be_stopped(many):
    """For reading and copying: the address says so, and the form and the links keep it."""
    assert '<meta http-equiv="refresh" content="10">' in page_of(many, "/?sort=name")[1]
    assert '<a href="?sort=name&amp;refresh=off">stop</a>' in page_of(many, "/?sort=name")[1]
    for path in ("/?refresh=off", "/tables/shop.t001?refresh=off"):
        assert "http-equiv" not in page_of(many, path)[1]
    text = page_of(many, "/?refresh=off")[1]
    assert '<input type="hidden" name="refresh" value="off">' in text and "?page=2&amp;refresh=off" in text


def test_three_hundred_tables_are_quick_and_short(many):
    """Far less than a second, and less than 200 kB, also if none of them is ready."""
    for path in ("/", "/tables/shop.t077"):
        page_of(many, path)
        took_s = []
        for _ in range(5):
            began_s = time.perf_counter()
            text = page_of(many, path)[1]
            took_s.append(time.perf_counter() - began_s)
        assert min(took_s) < 1, took_s
        assert len(text) < 200_000
    failing = Server()
    try:
        for number in range(300):
            name = f"t{number}"
            failing.board.add(table(name))
            error = replace(ERROR, message="no answer " * 5_000)
            failing.board.show(name, replace(IN_STEP, record=replace(RECORD, name=name, error=error)))
        sources = [Unready(None, f"s3://b/{number}/*: cannot be listed") for number in range(300)]
        failing.board.set_unready(Topic.SOURCES, sources)
        text = page_of(failing, "/")[1]
        assert len(text) < 300_000
        assert "300 tables</a>" in text and text.count("cannot be listed") == 5 and "295 more" in text
    finally:
        failing.web.stop()


def test_the_foot_says_which_process_since_when_and_as_of_when(server):
    server.clock.time_s = 65
    text = page_of(server, "/")[1]
    assert re.search(rf"dvsync {re.escape(version('dvsync'))} on {re.escape(socket.gethostname())},", text)
    assert "started at 2023-11-14 22:13:20 UTC" in text
    assert "refreshed\nat 2023-11-14 22:14:25 UTC" in text
    info = server.ask("/api/daemon")[1]
    assert (info["host"], info["started_at"]) == (socket.gethostname(), "2023-11-14T22:13:20.000Z")


def test_the_page_loads_nothing(server):
    """Its policy forbids what it does not need."""
    with urlopen(server.web.url + "/", timeout=10) as response:
        assert response.headers["content-security-policy"].startswith("default-src 'none'")


def test_metrics_tell_what_the_syncs_did(server):
    """Syncs by outcome, failures by kind, amounts by table, durations by step, and whether Spark is up."""
    activity = server.board.activity
    activity.count_sync("orders", SyncResult(SyncOutcome.ADVANCED, 1, 2, snapshots=2, positions_added=30))
    activity.count_sync("orders", SyncResult(SyncOutcome.REBUILT, 2, 2))
    activity.count_failure("orders", "CatalogAway")
    for seconds in (0.004, 0.03, 4000.0):
        activity.observe_step("commit", seconds)
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page_of(server, "/metrics")[1])
        for sample in family.samples
    }
    assert found["dvsync_syncs_total", "advanced", "orders"] == 1
    assert found["dvsync_syncs_total", "orders", "rebuilt"] == 1
    assert found["dvsync_sync_failures_total", "CatalogAway", "orders"] == 1
    assert (found["dvsync_snapshots_total", "orders"], found["dvsync_positions_added_total", "orders"]) == (2, 30)
    buckets = [
        found["dvsync_step_seconds_bucket", *sorted(("commit", bound))] for bound in ("0.005", "0.05", "1800.0", "+Inf")
    ]
    assert buckets == [1, 2, 2, 3]
    assert found["dvsync_step_seconds_sum", "commit"] == pytest.approx(4000.034)
    assert found["dvsync_spark_session_up",] == 0


def status_of(server: Server, path: str, host: str) -> int:
    """Ask by another name than the address that is connected to."""
    connection = HTTPConnection(server.web.url.removeprefix("http://"), timeout=10)
    with closing(connection):
        connection.request("GET", path, headers={"Host": host})
        return connection.getresponse().status


@pytest.mark.parametrize("path", ["/", "/tables/orders", "/api/tables", "/api/tables/orders", "/api/openapi.json"])
def test_a_daemon_for_this_machine_alone_has_no_other_name(server, path):
    """A page whose name leads to loopback (DNS rebinding) reads nothing; people, tunnels and programs do."""
    for name in ("evil.example", "evil.example:8080", "localhost.evil.example", "[::2]", "[", ""):
        assert status_of(server, path, name) == 421, name
    for name in ("localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:8080"):
        assert status_of(server, path, name) == 200, name


def test_probes_answer_by_any_name(server):
    assert [status_of(server, path, "lake-1.example") for path in ("/livez", "/readyz", "/metrics")] == [200, 503, 200]


@pytest.mark.parametrize(
    ("host", "address", "status"), [("lake-1", "127.0.1.1", 200), ("0.0.0.0", "0.0.0.0", 200), ("::1", "::1", 421)]
)
def test_the_names_of_a_daemon_are_those_of_its_address(server, host, address, status):
    """Its own name if that leads to loopback; any name if others may ask, too."""
    app = guard(Api(server.board).app, host, address)
    assert TestClient(app, base_url="http://lake-1").get("/api/daemon").status_code == status


def test_a_request_with_two_lengths_is_refused(server):
    """And what follows is not taken for a request: a proxy may have taken it for the body."""
    two = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with socket.create_connection(server.web._listener.getsockname()) as connection:
        connection.settimeout(10)
        connection.sendall(b"POST /livez HTTP/1.1\r\nHost: x\r\n" + two + b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(10_000), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert (answer.count(b"HTTP/1.1"), b"both a Content-Length and a Transfer-Encoding" in answer) == (1, True)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_cut(connection: socket.socket) -> bool:
    """Whether the other end closes it, within a while and after whatever it sends."""
    connection.settimeout(10)
    try:
        while connection.recv(10_000):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def test_a_request_that_does_not_end_is_cut(server, monkeypatch):
    """A client that says nothing, one that begins a request, and one that begins a second: each is given up."""
    monkeypatch.setattr("daemon.web.server.EXCHANGE_MAX_S", 0.5)
    place = server.web._listener.getsockname()
    for begun in (b"", b"GET /livez HTTP/1.1\r\nX: ", b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /livez HTTP/1.1\r\n"):
        with socket.create_connection(place) as connection:
            connection.sendall(begun)
            assert is_cut(connection)
    assert server.ask("/livez")[0] == 200


def test_connections_without_a_request_are_bounded(server):
    """The one that waits longest makes room; a client that asks in the meantime has not waited, and stays."""
    place, before = server.web._listener.getsockname(), open_files()
    with ExitStack() as opened:
        asking = opened.enter_context(closing(HTTPConnection(server.web.url.removeprefix("http://"), timeout=10)))
        half_open = []
        for _ in range(3 * WAITING_MAX):
            half_open.append(opened.enter_context(socket.create_connection(place)))
            half_open[-1].sendall(b"GET /livez HTTP/1.1\r\nX: ")
            asking.request("GET", "/livez")
            assert json.load(asking.getresponse())["alive"]
        assert all(is_cut(each) for each in half_open[: 2 * WAITING_MAX])
        # Both ends are this process's.
        assert open_files() - before <= 4 * WAITING_MAX + 20
        assert server.ask("/livez")[0] == 200


def test_without_a_token_the_verbs_are_off(server):
    with pytest.raises(HTTPError) as raised:
        urlopen(Request(f"{server.web.url}/api/tables/orders/pause", method="POST"), timeout=10)
    with raised.value as refusal:
        assert (refusal.code, "health.token" in json.load(refusal)["hint"]) == (403, True)
