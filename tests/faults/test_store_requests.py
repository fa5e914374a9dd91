"""What a commit costs on an object store: requests by file and method, counted by the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.servers import ObjectStore


class Lake:
    """A handmade table that is copied into a bucket, and dvsync beside it, in step with version 1."""

    def __init__(self, folder: Path, store: ObjectStore) -> None:
        self._store, self._client = store, store.client("s3")
        for bucket in ("lake", "warehouse"):
            self._client.create_bucket(Bucket=bucket)
        self.table = HandmadeTable(folder / "delta")
        self._sent: set[Path] = set()
        self.table.create()
        self.paths = [self.write() for _ in range(4)]
        self.table.commit([self.table.add(path) for path in self.paths])
        self._send()
        self.bench = Bench(
            folder / "dvsync", "s3://lake/t", catalog={"warehouse": "s3://warehouse/w"}, properties=store.properties
        )
        self.bench.follower.sync()

    def write(self) -> str:
        return self.table.write_file([(row, "x", "v") for row in range(9)])

    def _send(self) -> None:
        for path in sorted(self.table.folder.rglob("*")):
            if path.is_file() and path not in self._sent:
                self._client.upload_file(str(path), "lake", f"t/{path.relative_to(self.table.folder)}")
                self._sent.add(path)

    def follow(self) -> Counter[str]:
        """The requests of a poll and, where there is news, of the sync after it."""
        self._send()
        self._store.requests.clear()
        if self.bench.follower.has_news():
            assert self.bench.follower.sync().to_version == self.table.version
        return Counter(map(_kind, self._store.requests))


def _kind(request: str) -> str:
    method, path = request.split(" ")[:2]
    name = path.partition("?")[0]
    kinds = {
        "log": "/_delta_log/" in name,
        "deletion vector": "deletion_vector" in name,
        "data file": name.startswith("/lake/"),
        "manifest list": "/snap-" in name,
        "metadata": name.endswith(".metadata.json"),
        "manifest": name.endswith(".avro"),
        "delete file": name.endswith(".parquet"),
    }
    return f"{method} {next((kind for kind, is_it in kinds.items() if is_it), 'other')}"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    store = ObjectStore()
    made = Lake(tmp_path, store)
    yield made
    made.bench.close()
    store.close()


def test_requests_of_a_commit_on_s3(lake: Lake) -> None:
    """Each small file is one PUT, the log is asked for each thing once, and a quiet table costs one request."""
    assert lake.follow() == {"HEAD log": 1}
    for row in (1, 2):
        lake.table.commit(lake.table.delete({lake.paths[0]: [row]}))
        one = lake.follow()
    writes = {kind: count for kind, count in one.items() if not kind.startswith(("GET", "HEAD"))}
    assert writes == {f"PUT {kind}": 1 for kind in ("delete file", "manifest", "manifest list", "metadata")}
    assert one["HEAD log"] + one["GET log"] <= 7
    assert one.total() <= 24

    lake.table.commit(lake.table.delete({path: [5] for path in lake.paths[:3]}))
    three = lake.follow()
    assert three["PUT delete file"] == 3
    assert three.total() <= one.total() + 10

    paths = [lake.write() for _ in range(3)]
    lake.table.commit([lake.table.add(path) for path in paths])
    added = lake.follow()
    assert added["HEAD data file"] + added["GET data file"] == 6
    assert added.total() <= 23
