"""Which client and credentials the properties choose, as a server on loopback sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import create_server
from threading import Thread
from typing import ClassVar

import pytest
from obstore.store import AzureStore
from pyiceberg.io.pyarrow import PyArrowFileIO

from daemon.errors import ObjectStoreAway
from daemon.iceberg.pyiceberg_ext.file_io import StoreFileIO
from daemon.store import object_store
from daemon.store.locations import Span
from daemon.store.object_store import StoredObject
from daemon.store.storage import FileIOStorage

KEYS = {"s3.access-key-id": "configured", "s3.secret-access-key": "secret"}
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "of-environment", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token"}


class Server(HTTPServer):
    """Answers "not found", and keeps the path and the headers of the last request."""

    path: str
    headers: dict[str, str]

    @property
    def properties(self) -> dict[str, str]:
        return {"s3.endpoint": f"http://127.0.0.1:{self.server_port}"}


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self.server.path = self.path
        self.server.headers = {name.lower(): value for name, value in self.headers.items()}
        self.send_response(404)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


class _WithoutDeleteObjects(_Handler):
    """Has every file, and removes them one by one only."""

    removed: ClassVar[list[str]] = []

    def _answer(self, code: int, length: int = 0) -> None:
        self.send_response(code)
        self.send_header("content-length", str(length))
        self.send_header("last-modified", "Wed, 25 Nov 2026 14:00:00 GMT")
        self.end_headers()

    def do_HEAD(self) -> None:
        self._answer(200, 3)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(501)

    def do_DELETE(self) -> None:
        self.removed.append(self.path)
        self._answer(204)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), _Handler) as made:
        Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ENVIRONMENT, "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    object_store._opened.cache_clear()


def test_configured_keys_are_used_alone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session token of the environment belongs to the environment's own keys."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert not FileIOStorage({**server.properties, **KEYS}).exists("s3://bucket/a b+%41")
    assert "Credential=configured/" in server.headers["authorization"]
    assert "/us-east-1/" in server.headers["authorization"]
    assert "x-amz-security-token" not in server.headers
    assert not FileIOStorage({**server.properties, **KEYS, "s3.session-token": "mine"}).exists("s3a://bucket/a")
    assert server.headers["x-amz-security-token"] == "mine"


def test_keys_and_region_of_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**ENVIRONMENT, "AWS_REGION": "eu-north-1"}.items():
        monkeypatch.setenv(name, value)
    assert not FileIOStorage(server.properties).exists("s3://bucket/a")
    assert "Credential=of-environment/" in server.headers["authorization"]
    assert "/eu-north-1/" in server.headers["authorization"]
    assert server.headers["x-amz-security-token"] == "token"


def test_anonymous_requests_have_no_signature(server: Server) -> None:
    assert not FileIOStorage({**server.properties, "s3.anonymous": "true"}).exists("s3://bucket/a")
    assert "authorization" not in server.headers


AZURE = "abfss://lake@account.dfs.core.windows.net/t/a b+%41"


@pytest.mark.parametrize(
    ("properties", "header", "query"),
    [
        ({"adls.account-key": "a2V5"}, "SharedKey account:", ""),
        ({"adls.sas-token": "?sv=1&sig=a%2Bb"}, "", "?sv=1&sig=a%2Bb"),
        ({"adls.sas-token.account.dfs.core.windows.net": "sv=1&sig=c"}, "", "?sv=1&sig=c"),
        ({"adls.sas-token.account": "sv=1&sig=d"}, "", "?sv=1&sig=d"),
        ({"adls.sas-token.account": "sv=1&sig=d", "adls.account-key": "b3RoZXI="}, "", "?sv=1&sig=d"),
        ({"adls.sas-token": "sv=1&sig=e", "adls.account-key": "a2V5"}, "SharedKey account:", ""),
        ({"adls.token": "bearer"}, "Bearer bearer", ""),
    ],
)
def test_credentials_for_adls(
    server: Server, properties: dict[str, str], header: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the properties are used alone."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "other")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "b3RoZXI=")
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", "other")
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    host = f"127.0.0.1:{server.server_port}"
    place = {"adls.blob-storage-authority": host, "adls.blob-storage-scheme": "http"}
    assert not FileIOStorage({**place, **properties}).exists(AZURE)
    assert server.path == f"/account/lake/t/a%20b+%2541{query}"
    said = server.headers.get("authorization", "")
    assert said.startswith(header) and bool(said) == bool(header)


def test_a_key_that_obstore_refuses() -> None:
    with pytest.raises(OSError, match="illegal character"):
        StoreFileIO({"adls.account-key": "a2V5"}).new_output(f"{AZURE}/../a").create()


@pytest.mark.parametrize(
    ("location", "properties", "endpoint"),
    [
        (AZURE, {}, "https://account.blob.core.windows.net"),
        ("wasbs://lake@account.blob.core.windows.net/t", {}, "https://account.blob.core.windows.net"),
        ("abfss://lake@account.dfs.core.chinacloudapi.cn/t", {}, "https://account.blob.core.chinacloudapi.cn"),
        ("abfss://lake@onelake.dfs.fabric.microsoft.com/t", {}, "https://onelake.blob.fabric.microsoft.com"),
        (AZURE, {"adls.blob-storage-authority": ".blob.local"}, "https://account.blob.local"),
        ("abfss://lake@Account.DFS.core.windows.net/t", {}, "https://account.blob.core.windows.net"),
        ("abfss://lake/t", {"adls.account-name": "named"}, None),
    ],
)
def test_hosts_of_adls(location: str, properties: dict[str, str], endpoint: str | None) -> None:
    found = find_object({"adls.account-key": "a2V5", **properties}, location)
    assert found and isinstance(found.store, AzureStore)
    assert found.store.config.get("endpoint") == endpoint
    account = "named" if endpoint is None else endpoint.removeprefix("https://").partition(".")[0]
    assert found.store.config["account_name"] == account


@pytest.mark.parametrize("properties", [{}, {"adls.account-name": "a", "adls.tenant-id": "t", "adls.client-id": "c"}])
def test_wrong_properties_of_adls(properties: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ObjectStoreAway, match=r"adls\.account-name|adls\.client-secret"):
        FileIOStorage(properties).exists("abfss://lake/t")


def find_object(properties: dict[str, str], location: str) -> StoredObject | None:
    return object_store.find_object(properties, location, lambda: PyArrowFileIO(properties))


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({"s3.role-arn": "arn:aws:iam::1:role/r"}, id="role"),
        pytest.param({"s3.retry-strategy-impl": "m.C"}, id="retries"),
        pytest.param({"s3.force-virtual-addressing": "true"}, id="virtual hosts"),
    ],
)
def test_what_needs_arrow(server: Server, properties: dict[str, str]) -> None:
    assert find_object({**server.properties, **KEYS}, "s3://bucket/a")
    assert find_object({**server.properties, **KEYS, **properties}, "s3://bucket/a") is None


@pytest.mark.parametrize("file", ["credentials", "config"])
def test_a_profile_needs_arrow(server: Server, tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("[default]\n")
    assert find_object(server.properties, "s3://bucket/a") is None


@pytest.mark.parametrize("key", ["a//b", "a/./b", "../b", "a\tb", ""])
def test_keys_that_need_arrow(server: Server, key: str) -> None:
    assert find_object({**server.properties, **KEYS}, f"s3://bucket/{key}") is None


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        pytest.param({"s3.secret-access-key": ""}, "only one is set", id="half of the keys"),
        pytest.param({"s3.endpoint": "bad host:1"}, "", id="no address"),
        pytest.param({"s3.endpoint": "127.0.0.1:1"}, "GET https://127.0.0.1:1/", id="no scheme"),
        pytest.param({"s3.proxy-uri": "http://["}, "", id="no proxy"),
        pytest.param({"s3.connect-timeout": "5s"}, "could not convert string to float: '5s'", id="no number"),
    ],
)
def test_wrong_properties_are_an_error_of_the_table(server: Server, properties: dict[str, str], says: str) -> None:
    storage = FileIOStorage({**server.properties, **KEYS, **properties})
    with pytest.raises(ObjectStoreAway) as raised:
        storage.read("s3://bucket/a")
    assert says in str(raised.value)


@pytest.mark.parametrize(("region", "is_own"), [("eu-west-1", True), ("cn-north-1", False)])
def test_regions_of_other_partitions_need_arrow(region: str, is_own: bool) -> None:
    assert (find_object({**KEYS, "s3.region": region}, "s3://bucket/a") is not None) is is_own


def test_a_store_that_never_answers() -> None:
    """It accepts connections, and that is all."""
    with create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        storage = FileIOStorage({"s3.endpoint": endpoint, "s3.request-timeout": "0.2", **KEYS})
        with pytest.raises(ObjectStoreAway, match="error sending request") as raised:
            storage.read("s3://bucket/a")
    assert "Debug" not in str(raised.value)


def test_a_store_without_delete_objects() -> None:
    """Some stores refuse the request that removes many files: the caller hears of it, and one by one they leave."""
    with Server(("127.0.0.1", 0), _WithoutDeleteObjects) as refusing:
        Thread(target=refusing.serve_forever, args=(0.02,), daemon=True).start()
        # Without a region, PyIceberg would ask AWS.
        io = StoreFileIO({**KEYS, **refusing.properties, "s3.region": "us-east-1"})
        assert not io.delete_together(["s3://lake/a", "s3://lake/b"])
        assert _WithoutDeleteObjects.removed == []
        for path in ("s3://lake/a", "s3://lake/b"):
            io.delete(path)
        refusing.shutdown()
    assert _WithoutDeleteObjects.removed == ["/lake/a", "/lake/b"]


DATA = bytes(range(256)) * 40
SPANS = [Span(100, 50), Span(len(DATA) - 10, 50), Span(len(DATA) + 10, 50)]


class _Answering(_Handler):
    """Has one file, and answers a request for a part of it in a way of its own."""

    how = ""

    def do_HEAD(self) -> None:
        self._send(200, b"", len(DATA) + (self.how == "another size"))

    def do_GET(self) -> None:
        first, _, last = self.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
        start = int(first) if first else max(len(DATA) - int(last), 0)
        stop = min(int(last) + 1, len(DATA)) if first and last else len(DATA)
        if self.how == "whole" or "range" not in self.headers:
            self._send(200, DATA, len(DATA))
        elif self.how == "refused" or start >= len(DATA):
            self._send(416, b"", 0)
        else:
            shift = int(self.how == "another range")
            part = DATA[start + shift : stop + shift]
            body = {"short": part[:-3], "long": part + b"abc"}.get(self.how, part)
            said = "" if self.how == "no range" else f"bytes {start + shift}-{stop + shift - 1}/{len(DATA)}"
            self._send(206, body, len(body), said)

    def _send(self, code: int, body: bytes, length: int, content_range: str = "") -> None:
        self.send_response(code)
        self.send_header("content-length", str(length))
        self.send_header("last-modified", "Wed, 25 Nov 2026 14:00:00 GMT")
        if content_range:
            self.send_header("content-range", content_range)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def answering() -> Iterator[FileIOStorage]:
    with Server(("127.0.0.1", 0), _Answering) as made:
        Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        yield FileIOStorage({**made.properties, **KEYS})
        made.shutdown()


@pytest.mark.parametrize("how", ["", "whole"])
def test_a_part_of_a_file_is_that_part(answering: FileIOStorage, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Also if the store sends the whole file, as HTTP allows, in more than one block."""
    monkeypatch.setattr(_Answering, "how", how)
    monkeypatch.setattr(object_store, "BLOCK_BYTES", 64)
    for span in SPANS:
        assert answering.read("s3://b/f", span) == DATA[span.offset :][: span.size]
    for size in (20, len(DATA), len(DATA) + 1):
        meta, tail = answering.read_tail("s3://b/f", size)
        assert (meta.size, tail) == (len(DATA), DATA[-size:])
    with answering.open_input("s3://b/f") as file:
        file.seek(-20, os.SEEK_END)
        assert file.read(10) + file.read() == DATA[-20:]


@pytest.mark.parametrize("how", ["refused", "another range", "no range", "short", "long"])
def test_a_store_that_sends_something_else(answering: FileIOStorage, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """It is away: what it sends is neither the end of the file nor a part of it."""
    monkeypatch.setattr(_Answering, "how", how)
    for read in (
        lambda: answering.read("s3://b/f", SPANS[0]),
        lambda: answering.read_tail("s3://b/f", 20),
        lambda: answering.open_input("s3://b/f").read(20),
    ):
        with pytest.raises(ObjectStoreAway, match="the store does not answer: "):
            read()


def test_a_file_that_another_replaces_while_it_is_read(
    answering: FileIOStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Answering, "how", "another size")
    with answering.open_input("s3://b/f") as file, pytest.raises(ObjectStoreAway, match="had 10241 bytes when it was"):
        file.read(20)
