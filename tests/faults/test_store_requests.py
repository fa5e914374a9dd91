"""What a commit costs on an object store: the requests of a `dvsync run` process, counted by the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from daemon.iceberg.pyiceberg_ext.commits import REMOVED_TOGETHER
from daemon.iceberg.pyiceberg_ext.format_v3 import allow_version_3
from tests.kit.daemons import Daemon, daemon, until
from tests.kit.handmade import HandmadeTable
from tests.kit.servers import ObjectStore

LAKE, WAREHOUSE = "requests-lake", "requests-warehouse"


class Lake:
    """A handmade table that is copied into a bucket."""

    def __init__(self, folder: Path, store: ObjectStore, format_version: int) -> None:
        self._store, self._client = store, store.client("s3")
        for bucket in (LAKE, WAREHOUSE):
            self._client.create_bucket(Bucket=bucket)
        self.prefix = folder.name
        self.table = HandmadeTable(folder / "delta")
        self.table.create()
        self.paths = [self.write() for _ in range(4)]
        self.table.commit([self.table.add(path) for path in self.paths])
        self.send()
        self._catalog = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"s3://{WAREHOUSE}/{self.prefix}",
        }
        self.config = folder / "config.yaml"
        settings = {
            "state": {"url": f"sqlite:///{folder}/state.db"},
            "catalogs": {"local": self._catalog},
            "storage": store.properties,
            "health": {"port": 0},
            "log": {"format": "json"},
            "defaults": {"poll_interval": "300ms", "format_version": format_version},
            "tables": [{"source": f"s3://{LAKE}/{self.prefix}", "target": "lake.t", "name": "t"}],
        }
        self.config.write_text(yaml.safe_dump(settings))

    def write(self) -> str:
        return self.table.write_file([(row, "x", "v") for row in range(9)])

    def send(self) -> None:
        for path in self.table.take_new_files():
            self._client.upload_file(str(path), LAKE, f"{self.prefix}/{path.relative_to(self.table.folder)}")

    def requests_of_a_sync(self, running: Daemon) -> Counter[str]:
        """The requests from the poll that finds the new commit to the end of its sync."""
        running.told("sync.advanced", to_version=self.table.version - 1)
        self._store.requests.clear()
        self.send()
        running.told("sync.advanced", to_version=self.table.version)
        requests = [request for request in self._store.requests if not request.startswith(f"PUT /{LAKE}/")]
        # Polls may have come just before the commit, and after its sync.
        commit, following = (
            f"GET /{LAKE}/{self.prefix}/_delta_log/{version:020d}.json"
            for version in (self.table.version, self.table.version + 1)
        )
        while requests[-1] == following:
            requests.pop()
        while requests[:2] == [commit, commit]:
            requests.pop(0)
        return Counter(map(_kind, requests))

    def forget_requests(self) -> None:
        self._store.requests.clear()

    def files_read(self) -> Counter[tuple[str, str]]:
        """How often each file was read since then, those of the log aside, and listings."""
        read = ((_kind(request), request.split(" ")[1]) for request in self._store.requests)
        return Counter(
            (kind, path) for kind, path in read if kind.startswith("GET") and kind not in ("GET log", "GET other")
        )

    def log_listings(self) -> int:
        folder = f"{self.prefix}/_delta_log/"
        return sum("list-type=2" in request and folder in unquote(request) for request in self._store.requests)

    def idle_requests(self) -> set[str]:
        """The requests of some polls without a new commit."""
        self._store.requests.clear()
        until(lambda: len(self._store.requests) > 1)
        return set(self._store.requests)

    def keep_metadata_files(self, number: int) -> None:
        with self._load().transaction() as transaction:
            transaction.set_properties({"write.metadata.previous-versions-max": str(number)})

    def metadata_files(self) -> list[str]:
        """The former ones that the table still names are among them."""
        return [name for name in self._store.keys(WAREHOUSE, self.prefix) if name.endswith(".metadata.json")]

    @property
    def format_version(self) -> int:
        return self._load().metadata.format_version

    def rows(self) -> list[int]:
        return sorted(self._load().scan().to_arrow()["id"].to_pylist())

    def _load(self) -> Table:
        allow_version_3()
        catalog = SqlCatalog("local", **self._catalog, **self._store.properties)
        return catalog.load_table("lake.t")


def _kind(request: str) -> str:
    method, path = request.split(" ")[:2]
    name = path.partition("?")[0]
    kinds = {
        "log": "/_delta_log/" in name,
        "deletion vector": "deletion_vector" in name,
        "data file": name.startswith(f"/{LAKE}/"),
        "manifest list": "/snap-" in name,
        "metadata": name.endswith(".metadata.json"),
        "manifest": name.endswith(".avro"),
        "delete file": name.endswith((".parquet", ".puffin")),
    }
    return f"{method} {next((kind for kind, is_it in kinds.items() if is_it), 'other')}"


@pytest.fixture(params=[2, pytest.param(3, marks=pytest.mark.long)])
def lake(request: pytest.FixtureRequest, tmp_path: Path, store: ObjectStore) -> Lake:
    return Lake(tmp_path, store, request.param)


@pytest.fixture
def running(lake: Lake) -> Iterator[Daemon]:
    with daemon(lake.config) as process:
        process.synced_to("t", lake.table.version)
        yield process


def test_requests_of_a_commit_on_s3(lake: Lake, running: Daemon) -> None:
    """One request for each file that is read or written, one for each question to the log, and no other."""
    log = {"GET log": 3, "HEAD log": 1}  # this commit, the next one, the checksum file; the commit before
    snapshot = {"PUT manifest": 1, "PUT manifest list": 1, "PUT metadata": 1}
    table, with_vectors = lake.table, lake.format_version == 3
    assert lake.idle_requests() == {f"GET /{LAKE}/{lake.prefix}/_delta_log/{2:020d}.json"}
    table.commit(table.delete({lake.paths[0]: [1]}))
    first = lake.requests_of_a_sync(running)
    assert first == log | snapshot | {"GET deletion vector": 1, "PUT delete file": 1}

    table.commit(table.delete({lake.paths[0]: [2]}))
    again = lake.requests_of_a_sync(running)
    # The vector before it is known since the last commit.
    assert again == log | snapshot | {"GET deletion vector": 1, "PUT delete file": 1}
    assert again.total() == 9

    table.commit(table.delete({path: [5] for path in lake.paths[1:]}))
    three = lake.requests_of_a_sync(running)
    assert three == log | snapshot | {"GET deletion vector": 3, "PUT delete file": 1 if with_vectors else 3}

    table.commit(table.delete({lake.paths[1]: [6]}))
    shared = lake.requests_of_a_sync(running)
    # Also if the Puffin file with the earlier vector stays for others: whether it may is seen from that vector.
    assert shared == log | snapshot | {"GET deletion vector": 1, "PUT delete file": 1}

    paths = [lake.write() for _ in range(3)]
    table.commit([table.add(path) for path in paths])
    added = lake.requests_of_a_sync(running)
    assert added == log | snapshot | {"GET data file": 3}
    assert lake.rows() == sorted(row[0] for row in table.live_rows())

    # As after a hundred commits: each lets the oldest metadata file go, and one in twenty removes what has gathered.
    lake.keep_metadata_files(2)
    removals = 0
    for number in range(REMOVED_TOGETHER + 1):
        table.commit([table.add(lake.write())])
        old = lake.requests_of_a_sync(running)
        removals += old.pop("POST other", 0)
        # The first one reads what another client has changed.
        assert old == log | snapshot | {"GET data file": 1} or number == 0
    assert removals == 1
    assert len(lake.metadata_files()) < 3 + REMOVED_TOGETHER


def test_a_start_and_the_first_commit_read_each_file_once(lake: Lake) -> None:
    """What a new process does not know yet: metadata, manifest list, manifests, and the vector before."""
    lake.forget_requests()
    with daemon(lake.config) as first:
        first.synced_to("t", lake.table.version)
        assert lake.log_listings() == 1
        lake.table.commit(lake.table.delete({lake.paths[0]: [1]}))
        lake.requests_of_a_sync(first)
    lake.forget_requests()
    with daemon(lake.config) as second:
        second.synced_to("t", lake.table.version)
        lake.table.commit(lake.table.delete({lake.paths[0]: [2]}))
        lake.send()
        second.told("sync.advanced", to_version=lake.table.version)
        assert lake.log_listings() == 1
    read = lake.files_read()
    assert lake.rows() == sorted(row[0] for row in lake.table.live_rows())
    assert {kind for kind, _ in read} >= {"GET metadata", "GET manifest list", "GET deletion vector"}
    assert max(read.values()) == 1, read
