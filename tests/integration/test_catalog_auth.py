"""A REST catalog behind a gate that wants a password, or a token of its token server."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from pyiceberg.catalog import load_catalog
from pytest import MonkeyPatch

from tests.kit.daemons import command, daemon, until, write_config
from tests.kit.handmade import HandmadeTable
from tests.kit.servers import iceberg_servlet

TOKEN_S = 2
BASIC = f"Basic {b64encode(b'me:hunter2').decode()}"


class Gate(ThreadingHTTPServer):
    """Hands requests on to the catalog at `port` if they have the password or a token that is not too old."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.catalog = f"http://127.0.0.1:{port}"
        self.ends_s: dict[str, float] = {}
        # While it is not set, the token server does not answer.
        self.gives = Event()
        self.gives.set()
        self.token_s = TOKEN_S
        # What the token server says instead of giving a token.
        self.says: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def lets_in(self, authorization: str | None) -> bool:
        return authorization == BASIC or monotonic() < self.ends_s.get(str(authorization), 0)


class _Handler(BaseHTTPRequestHandler):
    server: Gate

    def _hand_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        authorization = self.headers.get("authorization")
        if self.path == "/token":
            self.server.gives.wait(60)
            token = uuid4().hex
            self.server.ends_s[f"Bearer {token}"] = monotonic() + self.server.token_s
            # PyIceberg asks again a minute before the end. Some servers write the seconds as a text.
            text = self.server.says or f'{{"access_token": "{token}", "expires_in": "{59 + self.server.token_s}"}}'
            self._answer(200 if authorization == BASIC and b"scope=a+b" in body else 401, text.encode())
        elif not self.server.lets_in(authorization):
            self._answer(401, b'{"error": {"message": "who?", "type": "NotAuthorizedException", "code": 401}}')
        else:
            headers = {"content-type": "application/json"} if body else {}
            request = Request(self.server.catalog + self.path, body or None, headers, method=self.command)
            try:
                with urlopen(request, timeout=30) as answer:
                    self._answer(answer.status, answer.read())
            except HTTPError as error:
                self._answer(error.code, error.read())

    do_GET = do_POST = do_DELETE = do_HEAD = _hand_on

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with iceberg_servlet(tmp_path_factory.mktemp("servlet")) as servlet, Gate(servlet.port) as made:
        Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        yield made
        made.shutdown()


def configured(folder: Path, gate: Gate, kind: str, secret: str = "hunter2") -> Path:
    (folder / "secret").write_text(secret)
    reference = {"file": "secret"}
    own = {"username": "me", "password": reference}
    if kind == "oauth2":
        own = {"client_id": "me", "client_secret": reference, "token_url": f"{gate.url}/token", "scope": "a b"}
    catalogs = {"c": {"type": "rest", "uri": gate.url, "auth": {"type": kind, kind: own}}}
    tables = [{"name": "t", "source": "lake/t", "target": f"a.{folder.name}"}]
    write_config(
        folder / "config.yaml", defaults={"poll_interval": "100ms", "engine": "local"}, catalogs=catalogs, tables=tables
    )
    return folder / "config.yaml"


@pytest.fixture
def table(tmp_path: Path) -> HandmadeTable:
    made = HandmadeTable(tmp_path / "lake" / "t")
    made.create()
    made.commit([made.add(made.write_file([(number, "a", "x") for number in range(9)]))])
    return made


@pytest.mark.parametrize("kind", ["basic", "oauth2"])
def test_a_catalog_that_wants_to_know_who_asks(tmp_path: Path, gate: Gate, table: HandmadeTable, kind: str) -> None:
    """Tokens end while the daemon runs, and it gets new ones."""
    config = configured(tmp_path, gate, kind)
    checked = command(config, "config", "check", "--connect")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with daemon(config) as running:
        running.synced_to("t", table.version)
        for _ in range(2):
            if kind == "oauth2":
                Event().wait(TOKEN_S)
            table.commit(table.delete({path: [len(table.deleted[path])] for path in table.live}))
            running.synced_to("t", table.version)
        assert "hunter2" not in str(running.lines)
    assert kind == "basic" or len(gate.ends_s) > 2
    shown = load_catalog("c", type="rest", uri=gate.catalog).load_table(f"a.{tmp_path.name}")
    assert sorted(row["id"] for row in shown.scan().to_arrow().to_pylist()) == list(range(2, 9))


@pytest.mark.parametrize("kind", ["basic", "oauth2"])
def test_a_wrong_password(tmp_path: Path, gate: Gate, table: HandmadeTable, kind: str) -> None:
    done = command(configured(tmp_path, gate, kind, "hunter3"), "sync", "t")
    said = done.stdout + done.stderr
    assert (done.returncode, "CatalogAway" in said, "401" in said or "who?" in said) == (1, True, True), said
    assert "hunter3" not in said


def test_a_token_server_that_never_answers(tmp_path: Path, gate: Gate, table: HandmadeTable) -> None:
    """The request ends, and so does the error when the server is back."""
    gate.gives.clear()
    with daemon(configured(tmp_path, gate, "oauth2")) as running:
        error = until(lambda: running.tables().get("t", {}).get("error"), "the error")
        assert error["kind"] == "CatalogAway"
        gate.gives.set()
        running.synced_to("t", table.version)


@pytest.mark.parametrize("says", ["null", "<html>busy</html>"])
def test_a_token_server_that_says_something_else(tmp_path: Path, gate: Gate, table: HandmadeTable, says: str) -> None:
    """It is an outage, which ends by itself."""
    gate.says = says
    try:
        with daemon(configured(tmp_path, gate, "oauth2")) as running:
            error = until(lambda: running.tables().get("t", {}).get("error"), "the error")
            assert (error["kind"], "gave no token" in error["message"]) == ("CatalogAway", True)
            gate.says = None
            running.synced_to("t", table.version)
    finally:
        gate.says = None


def test_tokens_that_are_revoked(tmp_path: Path, gate: Gate, table: HandmadeTable, monkeypatch: MonkeyPatch) -> None:
    """As by a catalog that starts with new keys: the client gets another one at once."""
    monkeypatch.setattr(gate, "token_s", 3600)
    with daemon(configured(tmp_path, gate, "oauth2")) as running:
        running.synced_to("t", table.version)
        gate.ends_s.clear()
        table.commit(table.delete({path: [0] for path in table.live}))
        running.synced_to("t", table.version)
        assert len(gate.ends_s) == 1
        assert not [line for line in running.lines if line["event"] == "sync.failed"]


def test_a_parameter_that_pyiceberg_does_not_have(tmp_path: Path, gate: Gate, table: HandmadeTable) -> None:
    config = configured(tmp_path, gate, "basic")
    config.write_text(config.read_text().replace('"username"', '"realm": "r", "username"'))
    done = command(config, "config", "check", "--connect")
    said = done.stdout + done.stderr
    assert (done.returncode, "unexpected keyword argument 'realm'" in said) == (1, True), said
