"""Of many writers of one path, one wins, on a local disk and in object stores; a store that overwrites is refused."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar
from urllib.parse import unquote

import pytest

from daemon.errors import CommitOutcomeUnknown, ObjectStoreAway, Unsupported
from daemon.store import put_if_absent as module
from daemon.store.put_if_absent import put_if_absent

KEYS = {"s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.region": "us-east-1"}
PLACES = {"s3": "s3://b/t", "adls": "abfss://b@account.dfs.core.windows.net/t", "gcs": "gs://b/t"}


class _Store(BaseHTTPRequestHandler):
    """Keeps objects in memory. `conditional`: whether it knows conditions; `failing`: writes commits, and says no."""

    objects: ClassVar[dict[str, bytes]] = {}
    conditional = True
    failing = False

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        if self.failing and self.path.endswith(".json"):
            self.objects.setdefault(self.path, data)
            self._answer(400)
        elif self.conditional and self._may_not_exist() and self.path in self.objects:
            self._answer(412)
        else:
            self.objects[self.path] = data
            self._answer(200)

    def _may_not_exist(self) -> bool:
        """By S3's and Azure's header, or Google's."""
        return self.headers["if-none-match"] == "*" or self.headers["x-goog-if-generation-match"] == "0"

    def do_POST(self) -> None:
        """S3 and Azure remove files by this, Azure in batches that only Azurite is asked for."""
        if keys := re.findall(rb"<Key>(.+)</Key>", self.rfile.read(int(self.headers["content-length"]))):
            self.objects.pop(f"/b/{keys[0].decode()}")
            self._answer(200, b"<DeleteResult><Deleted><Key>%b</Key></Deleted></DeleteResult>" % keys[0])
        else:
            self._answer(400)

    def do_DELETE(self) -> None:
        self.objects.pop(self.path)
        self._answer(204)

    def _answer(self, code: int, body: bytes = b"") -> None:
        self.send_response(code)
        self.send_header("content-length", str(len(body)))
        self.send_header("etag", '"e"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def properties(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Of one server that is S3, ADLS and, by the environment, GCS."""
    handler = type("Handler", (_Store,), {"objects": {}, **getattr(request, "param", {})})
    module._is_conditional.cache_clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        google = {"gcs_base_url": f"http://{host}", "disable_oauth": True, "client_email": "", "private_key": ""}
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps({**google, "private_key_id": ""}))
        azure = {"adls.blob-storage-authority": host, "adls.blob-storage-scheme": "http", "adls.account-key": "a2V5"}
        yield {"s3.endpoint": f"http://{host}", **KEYS, **azure}
        server.shutdown()


def test_one_of_many_wins(tmp_path: Path) -> None:
    path = tmp_path / "_delta_log" / "1.json"
    path.parent.mkdir()
    with ThreadPoolExecutor(8) as pool:
        writes = [pool.submit(put_if_absent, str(path), b"%d" % each, str(tmp_path), {}) for each in range(8)]
    won = [number for number, each in enumerate(writes) if each.result()]
    assert len(won) == 1
    assert path.read_bytes() == b"%d" % won[0]
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [path], "nothing else is left"


def test_a_store_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(Unsupported, match="no hard link can be made"):
        put_if_absent(str(tmp_path / "1.json"), b"", str(tmp_path), {})
    assert not list(tmp_path.iterdir())


def test_a_disk_that_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the file has its name, but the folder may not be on the disk, nobody may take it for missing."""

    def fail(_: object) -> None:
        raise ObjectStoreAway("the disk is gone", hint="")

    monkeypatch.setattr(module, "force_to_disk", fail)
    with pytest.raises(CommitOutcomeUnknown, match="did not say whether"):
        put_if_absent(str(tmp_path / "1.json"), b"a", str(tmp_path), {})
    assert (tmp_path / "1.json").read_bytes() == b"a"


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ObjectStoreAway, match="No such file"):
        put_if_absent(str(tmp_path / "log" / "1.json"), b"", str(tmp_path), {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("store", PLACES)
@pytest.mark.parametrize("properties", [{"objects": (objects := dict[str, bytes]())}], indirect=True)
def test_object_stores(properties: dict[str, str], store: str) -> None:
    """What was written to find out whether the store can do this is gone."""
    objects.clear()
    table = PLACES[store]
    assert put_if_absent(f"{table}/_delta_log/1.json", b"a", table, properties)
    assert not put_if_absent(f"{table}/_delta_log/1.json", b"b", table, properties)
    found = {unquote(path): data for path, data in objects.items() if store != "adls" or path.endswith(".json")}
    assert found == {("/account" if store == "adls" else "") + "/b/t/_delta_log/1.json": b"a"}


@pytest.mark.parametrize("store", [*PLACES, "s3 by the environment"])
@pytest.mark.parametrize("properties", [{"conditional": False}], indirect=True)
def test_a_store_that_overwrites(properties: dict[str, str], store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if store not in PLACES:
        monkeypatch.setenv("AWS_ENDPOINT_URL", properties.pop("s3.endpoint"))
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    table = PLACES.get(store, PLACES["s3"])
    with pytest.raises(Unsupported, match="overwrites files in spite of the condition"):
        put_if_absent(f"{table}/_delta_log/1.json", b"a", table, properties)


@pytest.mark.parametrize("properties", [{"failing": True}], indirect=True)
def test_s3_that_does_not_say(properties: dict[str, str]) -> None:
    with pytest.raises(CommitOutcomeUnknown, match="did not say whether"):
        put_if_absent("s3://b/t/_delta_log/1.json", b"a", "s3://b/t", properties)


@pytest.mark.parametrize(
    ("table", "properties"), [("hdfs://host/t", {}), ("gs://b/t", {"gcs.service.host": "http://127.0.0.1:1"})]
)
def test_other_stores(table: str, properties: dict[str, str]) -> None:
    with pytest.raises(Unsupported, match="only knows how to do this on local disks, S3 with keys, ADLS and GCS"):
        put_if_absent(f"{table}/_delta_log/1.json", b"", table, properties)
