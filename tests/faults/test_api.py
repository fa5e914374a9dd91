"""Other programs act on tables over HTTP: only with the token, with the effects of the commands."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from getpass import getuser
from html import unescape
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from pyiceberg.catalog.sql import SqlCatalog

from daemon.web.server import WAITING_MAX
from tests.kit.daemons import Daemon, command, daemon, until, write_config
from tests.kit.handmade import HandmadeTable, sql_catalog

TOKEN = "0123456789-not-to-be-seen"
NAME = "lake.a"
# No poll comes by itself: what a test sees is what it asked for.
POLL_INTERVAL = "1h"


@dataclass
class World:
    folder: Path
    table: HandmadeTable

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    def configure(self, **health: object) -> None:
        write_config(
            self.config,
            health={"port": 0, **health},
            log={"format": "json", "level": "debug"},
            maintenance={},
            verify={},
            defaults={"poll_interval": POLL_INTERVAL, "engine": "local"},
            tables=[{"source": self.table.location, "target": NAME}],
        )


def make_world(folder: Path) -> World:
    table = HandmadeTable(folder / "lake" / "a")
    table.create()
    table.commit([table.add(table.write_file([(1, "a", "x")]))])
    return World(folder, table)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("api"))


@pytest.fixture(scope="module")
def running(world: World) -> Iterator[Daemon]:
    (world.folder / "token").write_text(f"{TOKEN}\n")
    world.configure(token={"file": "token"})
    with daemon(world.config) as started:
        started.synced_to(NAME, world.table.version)
        yield started


def ask(
    running: Daemon,
    path: str,
    *,
    method: str = "POST",
    token: str | None = TOKEN,
    scheme: str = "Bearer",
    body: object = None,
) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{running.url}{path}", method=method, data=data)
    if token is not None:
        request.add_header("Authorization", f"{scheme} {token}")
    try:
        with urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def state_of(running: Daemon) -> str:
    return str(running.tables()[NAME]["state"])


def test_a_post_does_what_the_command_does(world: World, running: Daemon) -> None:
    """And what a command did, a POST undoes. A table that is held up is not synced, and the answer says the way out."""
    table = world.table
    table.commit([table.add(table.write_file([(2, "a", "y")]))])
    assert ask(running, f"/api/tables/{NAME}/sync")[0] == 202
    running.synced_to(NAME, table.version)
    assert ask(running, f"/api/tables/{NAME}/pause") == (202, {"table": NAME, "verb": "pause", "text": "paused"})
    until(lambda: state_of(running) == "paused", "the pause")
    status, answer = ask(running, f"/api/tables/{NAME}/sync")
    assert (status, answer["error"].startswith(f"{NAME} is paused since 20")) == (409, True)
    assert "dvsync resume" in answer["hint"]
    assert command(world.config, "resume", NAME).stdout == f"{NAME}: resumed; its next sync tries it again\n"
    until(lambda: state_of(running) == "synced", "the resumption by the command")
    assert "nothing to do" in ask(running, f"/api/tables/{NAME}/resume")[1]["text"]
    assert command(world.config, "pause", NAME).returncode == 0
    until(lambda: state_of(running) == "paused", "the pause by the command")
    assert ask(running, f"/api/tables/{NAME}/resume")[1]["text"] == "resumed"
    until(lambda: state_of(running) == "synced", "the resumption")
    assert ask(running, f"/api/tables/{NAME}/resync")[0] == 202
    assert running.told("sync.advanced", operation="resync")["to_version"] == table.version


def test_an_iceberg_table_that_is_dropped_is_made_again(world: World, running: Daemon) -> None:
    """A POST checks both sides, although Delta has no news, and is told of a denial; a resync makes the table at once.

    `show` says what happened, and the log says it, too.
    """
    with closing(SqlCatalog("local", **sql_catalog(world.folder))) as catalog:
        catalog.drop_table(NAME)
        shown = command(world.config, "show", NAME)
        assert f"the Iceberg table {NAME} is gone from its catalog; it showed version" in shown.stderr
        assert f"`dvsync resync {NAME}` creates it again" in shown.stderr
        assert ask(running, f"/api/tables/{NAME}/sync")[0] == 202
        error = until(lambda: running.tables()[NAME]["error"], "the error")
        assert (error["kind"], f"after `dvsync resync {NAME}`, without the wait" in error["hint"]) == (
            "CatalogAway",
            True,
        )
        assert ask(running, f"/api/tables/{NAME}/resync")[0] == 202
        until(lambda: catalog.table_exists(NAME), "the new table")
        told = f"the catalog had no table {NAME} any more"
        until(lambda: any(told in line["reason"] for line in running.lines if line["event"] == "target.overwritten"))
        assert len(catalog.load_table(NAME).scan().to_arrow()) == len(world.table.live_rows())


def test_a_pause_for_a_time(world: World, running: Daemon) -> None:
    """Both surfaces say since when, until when, who and why; the table goes on by itself."""
    path = f"/api/tables/{NAME}/pause"
    assert ask(running, path, body={"for": "1h", "reason": "the files are moved"})[0] == 202
    until(lambda: state_of(running) == "paused", "the pause")
    pause = running.tables()[NAME]["pause"]
    assert (pause["by"], pause["reason"]) == ("the API, from 127.0.0.1", "the files are moved")
    assert datetime.fromisoformat(pause["until"]) - datetime.fromisoformat(pause["since"]) == timedelta(hours=1)
    for shown in (command(world.config, "status").stdout, running.fetch("/"), running.fetch(f"/tables/{NAME}")):
        assert "by the API, from 127.0.0.1, until 20" in shown
        assert "the files are moved" in shown
    assert ask(running, path, body={"for": "1s"})[0] == 202
    until(lambda: state_of(running) == "synced", "the end of the pause")
    assert running.tables()[NAME]["pause"] is None
    assert command(world.config, "pause", NAME, "--for", "2h", "--reason", "a drill").returncode == 0
    assert command(world.config, "pause", NAME, "--for", "1h").returncode == 0
    drilled = {"by": f"{getuser()} on {socket.gethostname()}", "reason": None}
    until(lambda: drilled.items() <= (running.tables()[NAME]["pause"] or {}).items(), "the second pause")
    assert ask(running, f"/api/tables/{NAME}/resume")[0] == 202
    until(lambda: state_of(running) == "synced", "the resumption")


def test_a_resync_that_waits_for_a_resume_is_shown(world: World, running: Daemon) -> None:
    """On every surface, from the moment it is asked for until it is done."""
    assert ask(running, f"/api/tables/{NAME}/pause")[0] == 202
    until(lambda: state_of(running) == "paused", "the pause")
    assert ask(running, f"/api/tables/{NAME}/resync")[0] == 202
    until(lambda: running.tables()[NAME]["resync_wanted"], "the wanted resync")
    waits = f"its next sync rewrites the whole table, after `dvsync resume {NAME}`"

    def surfaces() -> Iterator[str]:
        yield command(world.config, "status").stdout
        for path in ("/", f"/tables/{NAME}"):
            yield unescape(running.fetch(path))

    assert all(waits in shown for shown in surfaces())
    assert ask(running, f"/api/tables/{NAME}/resume")[0] == 202
    until(lambda: not running.tables()[NAME]["resync_wanted"], "the resync")
    until(lambda: state_of(running) == "synced", "the end of the resync")
    assert not any("rewrites the whole table" in shown for shown in surfaces())


@pytest.mark.parametrize(
    "body", [{"for": "soon"}, {"for": "0s"}, {"for": "400d"}, {"for": 3}, {"until": "2h"}, {"reason": "x" * 501}, []]
)
def test_a_pause_that_cannot_be_is_refused(running: Daemon, body: object) -> None:
    status, answer = ask(running, f"/api/tables/{NAME}/pause", body=body)
    assert (status, bool(answer["error"])) == (400, True)
    assert '"for": "2h"' in answer["hint"]
    assert state_of(running) == "synced"


def test_only_the_token_opens_the_verbs_and_nothing_shows_it(world: World, running: Daemon) -> None:
    path = f"/api/tables/{NAME}/pause"
    for wrong in (None, "", TOKEN[:-1], f"{TOKEN}x", "é"):
        status, answer = ask(running, path, token=wrong)
        assert (status, "token" in answer["error"]) == (401, True), wrong
    assert ask(running, path, scheme="Basic")[0] == 401
    assert ask(running, "/api/tables/lake.b/pause", scheme="bearer")[0] == 404, "the scheme has no case (RFC 9110)"
    assert ask(running, path, method="GET")[0] == 405
    assert ask(running, "/api/tables/lake.b/pause") == (404, {"error": "no such table"})
    assert ask(running, f"/api/tables/{NAME}/drop")[0] == 404
    assert state_of(running) == "synced"
    shown = command(world.config, "config", "check").stdout + running.fetch("/") + running.fetch("/api/openapi.json")
    assert TOKEN not in shown + json.dumps(running.lines) + running.fetch("/metrics")


def test_every_answer_is_as_the_document_says(world: World, running: Daemon) -> None:
    _, document = running.get("/api/openapi.json")
    validate(document)
    examined = [("get", path, path) for path in ("/livez", "/readyz", "/api/tables")]
    examined += [("get", "/api/tables/{name}", f"/api/tables/{name}") for name in (NAME, "lake.b")]
    for verb in ("sync", "resync", "pause", "sync", "resume"):
        examined += [
            ("post", f"/api/tables/{{name}}/{verb}", f"/api/tables/{name}/{verb}") for name in (NAME, "lake.b")
        ]
    for method, path, real in examined:
        status, answer = ask(running, real, method=method.upper())
        schema = document["paths"][path][method]["responses"][str(status)]["content"]["application/json"]["schema"]
        Draft202012Validator({**schema, "components": document["components"]}).validate(answer)
    _, refused = ask(running, f"/api/tables/{NAME}/sync", token=None)
    schema = document["components"]["schemas"]["Problem"]
    Draft202012Validator({**schema, "additionalProperties": False}).validate(refused)


def reach_while_half_open(url: str, count: int) -> int:
    """Ask for `/livez` while `count` clients send no whole request, and the answer stays out for a second at most.

    Each client that is dropped comes again. Returns how many were.
    """
    place, begun = (urlsplit(url).hostname, urlsplit(url).port), b"GET /livez HTTP/1.1\r\nX: "
    dropped, clients = 0, [socket.socket() for _ in range(count)]
    with ExitStack() as opened:
        for client in clients:
            opened.enter_context(client).setblocking(False)
            client.connect_ex(place)
        for _ in range(10):
            with urlopen(f"{url}/livez", timeout=1) as answer:
                assert json.load(answer)["alive"]
            for number, client in enumerate(clients):
                try:
                    client.sendall(begun)
                    lost = client.recv(1) == b""
                except OSError as error:
                    lost = not isinstance(error, BlockingIOError)
                if lost:
                    dropped += 1
                    clients[number] = opened.enter_context(socket.socket())
                    clients[number].setblocking(False)
                    clients[number].connect_ex(place)
    return dropped


@pytest.mark.parametrize("count", [70, 200])
def test_half_open_connections_do_not_silence_the_probes(running: Daemon, count: int) -> None:
    assert reach_while_half_open(running.url, count) >= count - WAITING_MAX
