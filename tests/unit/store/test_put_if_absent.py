"""Of many writers of one path, one wins, on a local disk and on S3; a store that overwrites is refused."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from daemon.errors import CommitOutcomeUnknown, ObjectStoreAway, Unsupported
from daemon.store import put_if_absent as module
from daemon.store.put_if_absent import put_if_absent

KEYS = {"s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.region": "us-east-1"}


class _Store(BaseHTTPRequestHandler):
    """Keeps objects in memory. `conditional`: whether it knows If-None-Match; `silent`: it does not answer writes."""

    objects: ClassVar[dict[str, bytes]] = {}
    conditional = True
    failing = False

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        if self.failing and self.path.endswith(".json"):
            self.objects.setdefault(self.path, data)
            self._answer(400)
        elif self.conditional and self.headers["if-none-match"] == "*" and self.path in self.objects:
            self._answer(412)
        else:
            self.objects[self.path] = data
            self._answer(200)

    def do_POST(self) -> None:
        (key,) = re.findall(rb"<Key>(.+)</Key>", self.rfile.read(int(self.headers["content-length"])))
        self.objects.pop(f"/b/{key.decode()}")
        self._answer(200, b"<DeleteResult><Deleted><Key>%b</Key></Deleted></DeleteResult>" % key)

    def _answer(self, code: int, body: bytes = b"") -> None:
        self.send_response(code)
        self.send_header("content-length", str(len(body)))
        self.send_header("etag", '"e"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def properties(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    handler = type("Handler", (_Store,), {"objects": {}, **getattr(request, "param", {})})
    module._is_conditional.cache_clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield {"s3.endpoint": f"http://127.0.0.1:{server.server_port}", **KEYS}
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


@pytest.mark.parametrize("properties", [{"objects": (objects := dict[str, bytes]())}], indirect=True)
def test_s3(properties: dict[str, str]) -> None:
    """What was written to find out whether the store can do this is gone."""
    assert put_if_absent("s3://b/t/_delta_log/1.json", b"a", "s3://b/t", properties)
    assert not put_if_absent("s3://b/t/_delta_log/1.json", b"b", "s3://b/t", properties)
    assert objects == {"/b/t/_delta_log/1.json": b"a"}


@pytest.mark.parametrize("by", ["properties", "environment"])
@pytest.mark.parametrize("properties", [{"conditional": False}], indirect=True)
def test_s3_that_overwrites(properties: dict[str, str], by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "environment":
        monkeypatch.setenv("AWS_ENDPOINT_URL", properties.pop("s3.endpoint"))
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with pytest.raises(Unsupported, match="overwrites files in spite of If-None-Match"):
        put_if_absent("s3://b/t/_delta_log/1.json", b"a", "s3://b/t", properties)


@pytest.mark.parametrize("properties", [{"failing": True}], indirect=True)
def test_s3_that_does_not_say(properties: dict[str, str]) -> None:
    with pytest.raises(CommitOutcomeUnknown, match="did not say whether"):
        put_if_absent("s3://b/t/_delta_log/1.json", b"a", "s3://b/t", properties)


def test_other_stores() -> None:
    with pytest.raises(Unsupported, match="only knows how to do this on local disks and S3"):
        put_if_absent("abfss://c@a.dfs.core.windows.net/t/_delta_log/1.json", b"", "abfss://c@a/t", {})
