"""Catalogs of Delta tables as they may be: slow, away, wrong, hostile. The daemon follows handmade tables of one."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from tests.kit.checks import duckdb_rows, rows_of
from tests.kit.daemons import Daemon, command, set_constants, until, write_config
from tests.kit.handmade import new_uuid, sql_catalog
from tests.kit.handmade_managed import Managed
from tests.kit.servers import ObjectStore
from tests.kit.unity import Answer, StagedCommit, UnityServer, UnityTable, unity_server

ORDERS = "lake.orders"


@pytest.fixture
def unity() -> Iterator[UnityServer]:
    with unity_server() as server:
        yield server


@pytest.fixture
def table(unity: UnityServer, tmp_path: Path) -> Managed:
    table = Managed(tmp_path / "orders")
    table.create()
    unity.tables["main", "sales", "orders"] = table.told
    return table


class Followed:
    def __init__(self, folder: Path, unity: UnityServer, source: str = "prod:main.sales.orders", **more: Any) -> None:
        self.folder, self.unity = folder, unity
        self.source: dict[str, Any] = {"type": "unity", "uri": unity.url, "token": unity.token}
        self.tables = [{"source": source, "target": more.pop("target", ORDERS), **more}]
        self.daemon = Daemon(folder / "config.yaml")
        self.storage: dict[str, str] = {}

    def write(self) -> None:
        sections = {"sources": {"prod": self.source}, "tables": self.tables, "storage": self.storage}
        write_config(self.folder / "config.yaml", **sections)

    def start(self) -> Daemon:
        self.write()
        self.daemon.launch()
        self.daemon.started()
        return self.daemon

    def restart(self) -> Daemon:
        self.daemon.kill()
        self.daemon = Daemon(self.daemon.config)
        return self.start()

    def rows(self, name: str = ORDERS, **properties: str) -> list[Any]:
        with closing(load_catalog("local", **sql_catalog(self.folder), **properties)) as catalog:
            return rows_of(catalog.load_table(name).scan().to_arrow())


@pytest.fixture
def follow(unity: UnityServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Followed]]:
    made: list[Followed] = []

    def make(*arguments: str, **more: Any) -> Followed:
        made.append(Followed(tmp_path, unity, *arguments, **more))
        return made[-1]

    constants = {
        "daemon.service.fleet.DISCOVERY_INTERVAL_S": 0.3,
        "daemon.scheduling.failures.BACKOFF_MAX_S": 0.5,
        "daemon.sync.news.NEWEST_COMMIT_INTERVAL_S": 0.3,
    }
    set_constants(monkeypatch, constants)
    yield make
    for followed in made:
        if followed.daemon.lines:
            followed.daemon.kill()


@pytest.mark.parametrize("has_delta_api", [True, False], ids=["Delta API", "older API"])
def test_a_poll_is_one_request(
    table: Managed, unity: UnityServer, follow: Callable[..., Followed], has_delta_api: bool
) -> None:
    """And the tables of a pattern are one for each page."""
    unity.has_delta_api = has_delta_api
    followed = follow()
    followed.write()
    table.stage(3)
    assert "prod:main.sales.orders at version 1: can be followed" in command(followed.daemon.config, "doctor").stdout
    assert command(followed.daemon.config, "sync").returncode == 0
    assert followed.rows() == table.live_rows()
    poll = "/delta/v1/catalogs/main/schemas/sales/tables/orders" if has_delta_api else "/delta/preview/commits"
    daemon = followed.start()
    daemon.synced_to(ORDERS, 1)
    time.sleep(1.0)
    before = list(unity.requests)
    polled = daemon.tables()[ORDERS]
    until(lambda: len(unity.requests) > len(before) + 5, "polls")
    new = unity.requests[len(before) :]
    assert {request.partition(" ")[2].removeprefix("/api/2.1/unity-catalog") for request in new} == {
        poll,
        "/tables/main.sales.orders",
    }
    assert polled["synced_version"] == 1


def test_more_commits_than_one_answer_of_the_older_api_has(
    table: Managed, unity: UnityServer, follow: Callable[..., Followed]
) -> None:
    unity.has_delta_api = False
    for number in range(24):
        table.stage(1, first=number)
    followed = follow()
    followed.start().synced_to(ORDERS, 24)
    assert followed.rows() == table.live_rows()


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (Answer(503, b"", {"Retry-After": "1"}), "SourceCatalogAway", "status 503"),
        (Answer(429, b"", {"Retry-After": "1"}), "SourceCatalogAway", "status 429"),
        (Answer(500), "SourceCatalogAway", "status 500"),
        (Answer(200, b"<html>"), "SourceCatalogAway", "makes no sense"),
        (Answer(200, {"metadata": 5}), "SourceCatalogAway", "makes no sense"),
        (Answer(401), "Unauthorized", "refuses the token"),
        (Answer(403), "Unauthorized", "does not give the right to read"),
        (Answer(302, b"", {"Location": "http://127.0.0.1:1/"}), "SourceCatalogAway", "status 302"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Answer) else "",
)
def test_a_catalog_that_refuses_for_a_while(
    table: Managed, unity: UnityServer, follow: Callable[..., Followed], *, answer: Answer, kind: str, says: str
) -> None:
    """The table is retried, and shows what it showed; then it goes on."""
    table.stage(2)
    followed = follow()
    daemon = followed.start()
    daemon.synced_to(ORDERS, 1)
    unity.answer = lambda request: answer if "/tables/orders" in request.path else None
    table.stage(2, first=200)
    error = until(lambda: daemon.tables().get(ORDERS, {}).get("error"), "an error")
    assert (error["kind"], daemon.tables()[ORDERS]["state"]) == (kind, "retrying")
    assert says in error["message"]
    # Long before the lag budget ends.
    until(lambda: "prod:main.sales.orders: the catalog prod " in daemon.reasons(), "it says which source")
    assert "catalog-token" not in json.dumps(daemon.lines)
    assert len(followed.rows()) == 2
    unity.answer = None
    daemon.synced_to(ORDERS, 2)
    assert followed.rows() == table.live_rows()


def test_an_answer_of_100_mb(table: Managed, unity: UnityServer, follow: Callable[..., Followed]) -> None:
    followed = follow()
    daemon = followed.start()
    daemon.synced_to(ORDERS, 0)
    unity.answer = lambda request: Answer(200, iter([b"[" * 1_000_000] * 100))
    until(lambda: "more than 64 MiB" in (daemon.tables()[ORDERS]["error"] or {}).get("message", ""), "a refusal")
    unity.answer = None
    table.stage(1)
    daemon.synced_to(ORDERS, 1)


def newest_missing(table: Managed) -> None:
    table.told.commits = table.told.commits[:-1]


def with_gap(table: Managed) -> None:
    table.told.commits = [table.told.commits[0], table.told.commits[-1]]


def of_another_folder(table: Managed) -> None:
    *others, last = table.told.commits
    table.told.commits = [*others, StagedCommit(**{**vars(last), "file_name": f"../../{last.file_name}"})]


@pytest.mark.parametrize("spoil", [newest_missing, with_gap, of_another_folder])
def test_commits_that_make_no_sense(
    table: Managed, follow: Callable[..., Followed], spoil: Callable[[Managed], None]
) -> None:
    followed = follow()
    table.stage(1)
    daemon = followed.start()
    daemon.synced_to(ORDERS, 1)
    right = list(table.told.commits)
    for number in range(3):
        table.stage(1, first=200 + number)
        right.append(table.told.commits[-1])
        table.told.commits = list(right)
        spoil(table)
    error = until(lambda: daemon.tables().get(ORDERS, {}).get("error"), "an error")
    assert error["kind"] == "SourceCatalogAway"
    table.told.commits = right
    daemon.synced_to(ORDERS, 4)
    assert followed.rows() == table.live_rows()


def test_a_commit_that_is_published_later(table: Managed, follow: Callable[..., Followed]) -> None:
    """Is the same commit, also for a new process; with another content it is refused until a person accepts it."""
    followed = follow()
    for number in range(3):
        table.stage(1, first=number)
    daemon = followed.start()
    daemon.synced_to(ORDERS, 3)
    daemon.kill()
    table.publish()
    daemon = followed.restart()
    table.stage(1, first=3)
    daemon.synced_to(ORDERS, 4)
    assert not [line for line in daemon.lines if line["event"] == "states.compared"]
    before = followed.rows()
    assert before == table.live_rows()
    path = table.write_file([(9, "x", "of another writer")])
    table.publish()
    *lines, last = table.commit_path(4).read_text().splitlines()
    assert "add" in last
    table.commit_path(4).write_text("\n".join([*lines, json.dumps(table.add(path))]) + "\n")
    error = until(lambda: daemon.tables()[ORDERS]["error"], "a refusal")
    assert (error["kind"], daemon.tables()[ORDERS]["state"]) == ("CorruptInput", "parked")
    assert "commit 4 was published or is named with another content" in error["message"]
    assert followed.rows() == before
    assert command(daemon.config, "resync", ORDERS).returncode == 0
    until(lambda: (9, "x", "of another writer") in followed.rows(), "the resync")


def test_a_staged_file_that_is_missing(table: Managed, unity: UnityServer, follow: Callable[..., Followed]) -> None:
    followed = follow()
    daemon = followed.start()
    daemon.synced_to(ORDERS, 0)
    told = table.told
    unity.tables["main", "sales", "orders"] = replace(told)
    table.stage(2)
    staged = table.staged(told.commits[-1].file_name)
    staged.rename(table.folder / "elsewhere")
    unity.tables["main", "sales", "orders"] = told
    error = until(lambda: daemon.tables().get(ORDERS, {}).get("error"), "an error")
    assert (error["kind"], daemon.tables()[ORDERS]["state"]) == ("SourceCatalogAway", "retrying")
    (table.folder / "elsewhere").rename(staged)
    daemon.synced_to(ORDERS, 1)
    assert followed.rows() == table.live_rows()


def test_another_staged_file_than_before(table: Managed, follow: Callable[..., Followed]) -> None:
    followed = follow()
    table.stage(2)
    daemon = followed.start()
    daemon.synced_to(ORDERS, 1)
    (right,) = table.told.commits
    name = right.file_name.replace("-", "a")
    text = table.staged(right.file_name).read_text()
    table.staged(name).write_text(text.replace('"dataChange": true', '"dataChange": false'))
    table.told.tell(table.folder, 1, [name])
    error = until(lambda: daemon.tables()[ORDERS]["error"], "a refusal")
    assert (error["kind"], daemon.tables()[ORDERS]["state"]) == ("CorruptInput", "parked")
    table.told.commits = [right]
    table.stage(2, first=200)
    daemon.synced_to(ORDERS, 2)
    assert followed.rows() == table.live_rows()


def test_a_gap_between_the_log_and_what_is_named(table: Managed, follow: Callable[..., Followed]) -> None:
    """Without Spark, which would be started to judge such a log."""
    followed = follow(engine="local")
    daemon = followed.start()
    daemon.synced_to(ORDERS, 0)
    daemon.kill()
    for number in range(3):
        table.stage(1, first=number)
    first, *others = table.told.commits
    table.told.commits = others
    daemon = followed.restart()
    error = until(lambda: daemon.tables().get(ORDERS, {}).get("error"), "an error")
    assert "the log has a gap: commit 1 is missing" in error["message"]
    assert followed.rows() == []
    table.told.commits = [first, *others]
    table.stage(1, first=3)
    daemon.synced_to(ORDERS, 4)
    assert followed.rows() == table.live_rows()


@pytest.mark.parametrize("keeps_id", [True, False], ids=["moved", "another one"])
def test_a_name_that_leads_elsewhere(
    table: Managed, unity: UnityServer, tmp_path: Path, follow: Callable[..., Followed], *, keeps_id: bool
) -> None:
    """Not a row from there is shown as the former table's; when it leads back, all goes on. The hint accepts it."""
    followed = follow()
    table.stage(2)
    daemon = followed.start()
    daemon.synced_to(ORDERS, 1)
    other = Managed(tmp_path / "other")
    other.create()
    for number in range(2):
        other.stage(1, first=900 + number)
    if keeps_id:
        other.told.table_id = table.told.table_id
    unity.tables["main", "sales", "orders"] = other.told
    until(lambda: "was followed from" in daemon.reasons(), "it is said")
    assert followed.rows() == table.live_rows()
    unity.tables["main", "sales", "orders"] = table.told
    table.stage(2, first=200)
    daemon.synced_to(ORDERS, 2)
    assert followed.rows() == table.live_rows()
    unity.tables["main", "sales", "orders"] = other.told
    until(lambda: "`dvsync forget lake.orders`, and then `dvsync resync" in daemon.reasons(), "it is said again")
    until(lambda: command(daemon.config, "forget", ORDERS).returncode == 0, "it is forgotten")
    until(lambda: daemon.tables().get(ORDERS, {}).get("state") == "parked", "the other one is found")
    assert followed.rows() == table.live_rows()
    assert command(daemon.config, "resync", ORDERS).returncode == 0
    daemon.synced_to(ORDERS, 2)
    assert followed.rows() == other.live_rows()


def test_two_names_for_one_table(table: Managed, unity: UnityServer, follow: Callable[..., Followed]) -> None:
    """It is followed once: by the name with settings of its own, and what the other name lacks is said."""
    unity.tables["main", "sales", "again"] = table.told
    followed = follow("prod:main.sales.*", target="all.{table}")
    followed.tables += [{"source": "prod:main.sales.orders", "target": ORDERS}]
    followed.tables += [{"source": "prod:main.sales.again", "target": "lake.again"}]
    daemon = followed.start()
    daemon.synced_to(ORDERS, 0)
    assert set(daemon.tables()) == {ORDERS}
    assert f"prod:main.sales.again: {table.location} is followed already" in json.dumps(daemon.get("/readyz")[1])


def test_names_with_every_character(unity: UnityServer, tmp_path: Path, follow: Callable[..., Followed]) -> None:
    """A name that cannot be a part of the target needs one of its own."""
    names = ["é", "名前", "a%2Fb", "a?b#c&d=e+f", "a'b\"c`d", "a\\b", "a:b", "[a]", "-", "a b", "{a}"]
    tables = {name: Managed(tmp_path / f"t{number}") for number, name in enumerate(names)}
    for number, (name, table) in enumerate(tables.items()):
        table.create()
        table.stage(1, first=number)
        unity.tables["main", "sales", name] = table.told
    followed = follow("prod:main.sales.*", target="lake.{table}")
    targets = {"a b": "lake.space", "a?b#c&d=e+f": "lake.signs"}
    followed.tables += [{"source": f"prod:main.sales.{name}", "target": target} for name, target in targets.items()]
    followed.write()
    said = command(followed.daemon.config, "sync")
    assert "the name '{a}' cannot be part of lake.{table}" in said.stdout + said.stderr
    del tables["{a}"]
    for name, table in tables.items():
        assert followed.rows(targets.get(name, f"lake.{name}")) == table.live_rows(), name
        assert f"{targets.get(name, f'lake.{name}')}: advanced" in said.stdout


def test_an_older_answer_is_not_believed_by_a_new_process(
    table: Managed, unity: UnityServer, follow: Callable[..., Followed]
) -> None:
    """A replica of the catalog that is behind never takes Iceberg back; a person may."""
    for number in range(3):
        table.stage(1, first=number)
    followed = follow()
    followed.write()
    assert command(followed.daemon.config, "sync").returncode == 0
    newest, commits = table.told.latest_version, table.told.commits
    table.told.latest_version, table.told.commits = 2, commits[:2]
    behind = command(followed.daemon.config, "sync")
    assert behind.returncode != 0
    assert "names version 2 as the newest, but version 3 was synced already" in behind.stderr + behind.stdout
    assert len(followed.rows()) == 3
    table.told.latest_version, table.told.commits = newest, commits
    assert command(followed.daemon.config, "sync").returncode == 0


def test_a_token_is_not_sent_to_where_a_redirect_leads(
    table: Managed, unity: UnityServer, follow: Callable[..., Followed]
) -> None:
    sent: list[str | None] = []

    class Thief(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Thief) as thief:
        Thread(target=thief.serve_forever, daemon=True).start()
        place = f"http://127.0.0.1:{thief.server_port}/"
        unity.answer = lambda _: Answer(307, b"", {"Location": place})
        followed = follow()
        followed.write()
        assert command(followed.daemon.config, "sync").returncode != 0
        thief.shutdown()
    assert sent == []


def test_a_reload_with_another_token(table: Managed, unity: UnityServer, follow: Callable[..., Followed]) -> None:
    """Tables that are followed already use it."""
    followed = follow()
    daemon = followed.start()
    daemon.synced_to(ORDERS, 0)
    followed.source["token"] = unity.token = "another-token"
    until(lambda: daemon.tables()[ORDERS]["error"], "a refusal")
    followed.write()
    daemon.signal(signal.SIGHUP)
    table.stage(2)
    daemon.synced_to(ORDERS, 1)


@pytest.mark.parametrize("key", ["token", "credential"])
def test_a_secret_that_rotates(table: Managed, unity: UnityServer, follow: Callable[..., Followed], key: str) -> None:
    """Its file is read again after a refusal, without a reload; none of its texts is shown."""
    followed = follow()
    secrets: list[str] = []

    def replace_file() -> None:
        secrets.append(f"secret-{new_uuid()}")
        made = followed.folder / "new"
        made.write_text(f"client:{secrets[-1]}\n" if key == "credential" else f"{secrets[-1]}\n")
        made.rename(followed.folder / "secret")

    def accept_newest() -> None:
        if key == "credential":
            unity.client, unity.token = ("client", secrets[-1]), f"token-{secrets[-1]}"
        else:
            unity.token = secrets[-1]

    followed.source = {"type": "unity", "uri": unity.url, key: {"file": "secret"}}
    if key == "credential":
        followed.source["oauth2-server-uri"] = f"{unity.url}/oidc/v1/token"
    replace_file()
    accept_newest()
    daemon = followed.start()
    for version in range(1, 4):
        table.stage(1, first=version)
        daemon.synced_to(ORDERS, version)
        replace_file()
        accept_newest()
    assert not [line for line in daemon.lines if line["level"] in ("warning", "error")]
    # Its writer is late: the server knows it already.
    secrets.append("late-secret")
    accept_newest()
    error = until(lambda: daemon.tables()[ORDERS]["error"], "a refusal")
    assert (error["kind"], daemon.tables()[ORDERS]["state"]) == ("Unauthorized", "retrying")
    replace_file()
    accept_newest()
    table.stage(1, first=4)
    daemon.synced_to(ORDERS, 4)
    assert followed.rows() == table.live_rows()
    assert not [line for line in daemon.lines if line["event"] in ("table.parked", "config.reloaded")]
    assert not [secret for secret in secrets if secret in json.dumps(daemon.lines)]


@pytest.mark.parametrize("has_delta_api", [True, False], ids=["Delta API", "older API"])
def test_credentials_of_the_catalog(
    table: Managed, unity: UnityServer, follow: Callable[..., Followed], store: ObjectStore, *, has_delta_api: bool
) -> None:
    """Read with, asked for again before they end and after a refusal, and nowhere to be seen."""
    unity.has_delta_api = has_delta_api
    bucket = f"vended-{new_uuid()}"
    client = store.client("s3")
    client.create_bucket(Bucket=bucket)
    table.told.location = f"s3://{bucket}/orders"
    secrets = []

    def give(user: str, lasts_s: float = 3600) -> str:
        key, secret = store.new_user(f"{user}-{bucket}", bucket)
        secrets.append(secret)
        config = {"s3.access-key-id": key, "s3.secret-access-key": secret}
        until_ms = int((time.time() + lasts_s) * 1000)
        table.told.credentials = [{"prefix": table.told.location, "config": config, "expiration-time-ms": until_ms}]
        if has_delta_api:
            wrong = {"s3.access-key-id": "of-another", "s3.secret-access-key": "prefix"}
            table.told.credentials.append({"prefix": "s3://", "config": wrong})
        return key

    def stage(first: int) -> None:
        table.stage(2, first=first)
        for path in table.take_new_files():
            client.upload_file(str(path), bucket, f"orders/{path.relative_to(table.folder)}")

    followed = follow()
    followed.storage = {key: value for key, value in store.properties.items() if "key" not in key}
    former = give("first")
    stage(100)
    followed.write()
    assert "followed  data files: 1 of 1, 2 rows" in command(followed.daemon.config, "doctor").stdout
    daemon = followed.start()
    daemon.synced_to(ORDERS, 1)
    current = give("second", lasts_s=3)
    store.client("iam").delete_access_key(UserName=f"first-{bucket}", AccessKeyId=former)
    stage(200)
    daemon.synced_to(ORDERS, 2)
    give("third")
    time.sleep(3)
    store.client("iam").delete_access_key(UserName=f"second-{bucket}", AccessKeyId=current)
    errors = len([line for line in daemon.lines if line["event"] == "sync.failed"])
    stage(300)
    daemon.synced_to(ORDERS, 3)
    assert len([line for line in daemon.lines if line["event"] == "sync.failed"]) == errors
    assert followed.rows(**store.properties) == table.live_rows()
    seen = json.dumps(daemon.lines) + json.dumps(daemon.get("/api/tables")[1]) + daemon.fetch("/metrics")
    seen += (followed.folder / "state.db").read_bytes().decode("latin-1")
    assert not [secret for secret in secrets if secret in seen]


def test_tables_of_a_pattern(unity: UnityServer, tmp_path: Path, follow: Callable[..., Followed]) -> None:
    """Found, new, renamed, dropped, of the name of another one; views and other formats are passed over."""
    unity.page_max = 2
    tables = {}

    def add(schema: str, name: str) -> Managed:
        tables[name] = table = Managed(tmp_path / "data" / schema / name)
        table.create()
        table.stage(len(tables))
        unity.tables["main", schema, name] = table.told
        return table

    for schema, name in (("sales", "a"), ("sales", "b"), ("sales_eu", "c"), ("other", "d"), ("sales", "tmp_e")):
        add(schema, name)
    unity.tables["main", "sales", "view"] = UnityTable("v", "", table_type="VIEW", data_source_format=None)
    unity.tables["main", "sales", "csv"] = UnityTable(
        "f", "file:///csv", table_type="EXTERNAL", data_source_format="CSV"
    )
    followed = follow("prod:main.sales*.*", target="{schema}.{table}", exclude=["tmp_*"])
    daemon = followed.start()
    until(lambda: set(daemon.tables()) == {"sales.a", "sales.b", "sales_eu.c"}, "three tables")
    add("sales", "f")
    daemon.synced_to("sales.f", 1)
    for name in ("sales.a", "sales.b", "sales_eu.c"):
        daemon.synced_to(name, 1)
        assert followed.rows(name) == tables[name.partition(".")[2]].live_rows()
    # Another table of the same name, elsewhere: not a row of it is shown as the former one's.
    del unity.tables["main", "sales", "a"]
    again = Managed(tmp_path / "data" / "again" / "a")
    again.create()
    unity.tables["main", "sales", "a"] = again.told
    until(lambda: "sales.a" in daemon.reasons() or "was followed from" in json.dumps(daemon.lines), "it is said")
    assert followed.rows("sales.a") == tables["a"].live_rows()


def test_a_start_while_the_catalog_is_away(
    unity: UnityServer, table: Managed, tmp_path: Path, follow: Callable[..., Followed]
) -> None:
    """What it found before is still followed, neither gone nor dropped by `forget`; and goes on when it is back."""
    table.stage(3)
    followed = follow("prod:main.sales.*", target="lake.{table}")
    daemon = followed.start()
    daemon.synced_to(ORDERS, 1)
    daemon.kill()
    unity.answer = lambda request: Answer(503, {})
    dropped = command(daemon.config, "forget", "--all", "--drop")
    assert "nothing to forget" in dropped.stdout, dropped
    daemon = followed.restart()
    until(lambda: daemon.tables().get(ORDERS, {}).get("state") == "retrying", "the catalog is away")
    assert daemon.tables()[ORDERS]["error"]["kind"] == "SourceCatalogAway"
    table.stage(4, first=200)
    unity.answer = None
    daemon.synced_to(ORDERS, 2)
    assert followed.rows() == table.live_rows()


def test_config_check_names_faults(tmp_path: Path) -> None:
    write_config(
        tmp_path / "config.yaml",
        sources={"a": {"type": "unify", "uri": "http://h"}, "b": {"type": "unity"}},
        tables=[{"source": "c:main.sales.t", "target": "x.y"}, {"source": "b:sales.t", "target": "x.z"}],
    )
    said = command(tmp_path / "config.yaml", "config", "check")
    text = said.stdout + said.stderr
    assert said.returncode != 0
    for fault in (
        "sources.a.type: must be unity, hive, glue",
        "sources.b.uri: must be the address of the catalog's server: https://HOST",
        "tables[0].source: there is no 'c' under sources (a, b)",
        "tables[1].source: name catalog, schema and table",
    ):
        assert fault in text


def test_other_readers_agree(table: Managed, follow: Callable[..., Followed]) -> None:
    table.stage(5)
    followed = follow()
    followed.start().synced_to(ORDERS, 1)
    with closing(load_catalog("local", **sql_catalog(followed.folder))) as catalog:
        assert sorted(duckdb_rows(catalog.load_table(ORDERS))) == table.live_rows()
