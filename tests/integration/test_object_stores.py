"""Delta and Iceberg tables on S3: what Spark writes through S3A is followed, read by every engine, and cleaned up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from daemon.config.settings import MaintenanceSettings
from daemon.errors import ObjectStoreAway, SyncError
from daemon.iceberg.pyiceberg_ext.file_io import StoreFileIO
from daemon.iceberg.references import referenced_files
from daemon.maintenance.cleanup import clean_up
from daemon.maintenance.maintainer import Maintainer
from daemon.store.locations import Span
from daemon.store.storage import FileIOStorage
from daemon.sync import transaction
from daemon.sync.outcomes import SyncResult
from daemon.verify.findings import Level, Scope
from daemon.verify.verifier import Verifier
from tests.kit.handmade import Bench
from tests.kit.made import LaterClock
from tests.kit.readers import assert_readers_agree, read_delta
from tests.kit.servers import ObjectStore, wait_until
from tests.kit.spark_session import conf
from tests.kit.unity import UnityServer, UnityTable, unity_server

DAY_S = 86_400.0
DV_TABLE = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
CREATE = f"CREATE TABLE {{t}} (id INT, part STRING, value STRING) USING delta PARTITIONED BY (part) {DV_TABLE}"
ROWS = (
    "SELECT id, CASE id % 2 WHEN 0 THEN 'a b%/ü' ELSE 'x=1&+' END AS part, concat('v', id) AS value"
    " FROM range(0, 60, 1, 1)"
)


@dataclass
class OnS3:
    """A Delta table in the bucket `lake` and dvsync on it, its Iceberg table in `warehouse`. `{t}` is the table."""

    spark: SparkSession
    store: ObjectStore
    folder: Path
    key: str
    engine: str = "local"
    clock: LaterClock = field(default_factory=LaterClock)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source = f"s3://lake/{self.key}"
        self.bench = Bench(
            self.folder,
            self.source,
            clock=self.clock,
            engine=self.engine,
            catalog={"warehouse": f"s3://warehouse/{self.engine} %41"},
            properties=self.store.properties,
            table_options=self.options,
        )

    def sql(self, statement: str) -> None:
        self.spark.sql(statement.replace("{t}", f"delta.`s3a://lake/{self.key}`"))

    def step(self, statement: str) -> SyncResult:
        """Run `statement`, follow it, and hold what every engine reads against Delta on Spark."""
        self.sql(statement)
        result = self.bench.follower.sync()
        self.check(statement)
        return result

    def check(self, where: str) -> None:
        table = self.bench.iceberg()
        expected = read_delta(self.spark, f"s3a://lake/{self.key}", table)
        assert expected, "a table without rows shows nothing"
        assert_readers_agree(table, self.spark, expected, where)


# A first sync on Spark is shown with credentials from a file, below.
@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.long)])
def test_a_table_on_s3_is_followed(s3_spark, store, tmp_path, engine):
    """First sync, deletes and a restore, with paths that every engine spells differently."""
    lake = OnS3(s3_spark, store, tmp_path, f"{engine}/a b+c%20/t", engine)
    lake.sql(CREATE)
    lake.sql(f"INSERT INTO {{t}} {ROWS}")
    first = lake.step("DELETE FROM {t} WHERE id % 10 = 3")
    assert (first.operation, first.positions_added) == ("first sync", 6)
    assert lake.step("DELETE FROM {t} WHERE id IN (1, 2)").positions_added == 2
    proof = Verifier(lake.bench.context).verify(Scope(Level.ROWS), Event())
    assert proof
    assert (proof.findings.named, proof.rows) == ([], 52)
    if engine == "spark":
        return  # The rest is the kernel's, which is one for both.
    lake.step("RESTORE TABLE {t} TO VERSION AS OF 2")
    assert lake.bench.iceberg().location().startswith("s3://warehouse/")
    _check_cleanup(lake, store)


def _check_cleanup(lake: OnS3, store: ObjectStore) -> None:
    """Compaction, expiry and cleanup leave what the newest snapshot needs, and Delta's files as they are."""
    prefix = lake.bench.iceberg().location().removeprefix("s3://warehouse/") + "/"
    deltas = store.keys("lake", lake.key)
    before = store.keys("warehouse", prefix)
    settings = lake.bench.context.settings.model_copy(
        update={"maintenance": MaintenanceSettings(snapshots_max=1, orphan_grace="1h")}
    )
    object.__setattr__(lake.bench.context, "settings", settings)
    maintainer = Maintainer(lake.bench.context)
    assert maintainer.expire().expired
    lake.clock.late_s = DAY_S
    assert maintainer.clean_up(Event()).failed == []
    left = store.keys("warehouse", prefix)
    table = lake.bench.iceberg()
    used = referenced_files(table, delete_files=True)
    assert before - left, "nothing was removed"
    assert {f"s3://warehouse/{key}" for key in left} == used
    assert store.keys("lake", lake.key) == deltas
    lake.check("after cleanup")
    # A lost state database: what it knew is found by listing the bucket.
    stray = f"{prefix}data/1-000000-deletes.parquet"
    store.client("s3").put_object(Bucket="warehouse", Key=stray, Body=b"x")
    found = clean_up(lake.bench.context, Event(), scan=True, dry_run=True).found
    assert [file.path for file in found] == [f"s3://warehouse/{stray}"]


def test_what_a_poll_costs(s3_spark, store, tmp_path):
    """A quiet table is one request, and no listing; a commit is a few more of them."""
    lake = OnS3(s3_spark, store, tmp_path, "polled")
    lake.sql(f"CREATE TABLE {{t}} (id INT) USING delta {DV_TABLE}")
    lake.step("INSERT INTO {t} SELECT id FROM range(0, 10, 1, 1)")
    assert not lake.bench.follower.has_news()
    store.requests.clear()
    assert not lake.bench.follower.has_news()
    assert store.requests == ["GET /lake/polled/_delta_log/00000000000000000002.json"]
    lake.sql("DELETE FROM {t} WHERE id < 3")
    store.requests.clear()
    lake.bench.follower.sync()
    on_source = [request for request in store.requests if " /lake" in request]
    # The commit, the one before, the next one, the checksum file and the deletion vectors.
    assert len(on_source) == 5, on_source
    assert not [request for request in on_source if "list-type" in request]


def test_what_is_not_there_and_what_is_not_allowed(store):
    """A bucket that nobody made, a key that does not hold and a secret that is wrong are told as such."""
    storage = FileIOStorage(store.properties)
    assert not storage.exists("s3://lake/none")
    assert list(storage.list_from("s3://lake/none", "")) == []
    with pytest.raises(ObjectStoreAway, match="there is no bucket nobody") as raised:
        list(storage.list_from("s3://nobody/t/_delta_log", ""))
    assert raised.value.path == "s3://nobody/t/_delta_log"
    for changed in ({"s3.access-key-id": "AKIAOTHER"}, {"s3.secret-access-key": "made-up-secret"}):
        wrong = FileIOStorage({**store.properties, **changed})
        for verb in (
            lambda storage: storage.exists("s3://lake/none"),
            lambda storage: storage.read("s3://lake/none"),
            lambda storage: storage.list_from("s3://lake/t", ""),
            lambda storage: storage.delete("s3://lake/none"),
        ):
            with pytest.raises(ObjectStoreAway) as raised:
                verb(wrong)
            assert "credentials" in raised.value.hint
            assert "made-up-secret" not in str(raised.value)
            assert store.secret not in str(raised.value)


def test_a_bucket_that_is_not_there_cannot_be_written_to(store):
    """It is not a missing file of the table, for which the hint would be a resync."""
    output = StoreFileIO(store.properties).new_output("s3://nobody/t/metadata/m0.avro").create()
    output.write(b"x")
    with pytest.raises(OSError, match="there is no bucket for s3:") as raised:
        output.close()
    assert not isinstance(raised.value, FileNotFoundError)


def test_reading_past_the_end(store):
    """Ranged reads are as short as the file is, as on a disk."""
    store.client("s3").put_object(Bucket="lake", Key="ranges/x y%.bin", Body=bytes(range(100)))
    storage = FileIOStorage(store.properties)
    path = "s3://lake/ranges/x y%.bin"
    assert storage.read(path, Span(10, 3)) == bytes([10, 11, 12])
    assert [len(storage.read(path, Span(offset, 20))) for offset in (90, 100, 1000)] == [10, 0, 0]


def test_a_store_that_goes_away_midway(s3_spark, store, tmp_path, monkeypatch):
    """Nothing is committed and nothing lost: the next try goes on, and what the failed one wrote is an orphan."""
    lake = OnS3(s3_spark, store, tmp_path, "away")
    lake.sql(f"CREATE TABLE {{t}} (id INT) USING delta {DV_TABLE}")
    lake.step("INSERT INTO {t} SELECT id FROM range(0, 10, 1, 1)")
    before = lake.bench.iceberg().metadata.current_snapshot_id
    lake.sql("DELETE FROM {t} WHERE id < 3")
    inner = transaction.prepare_snapshot

    def prepare(*args: Any, **options: Any) -> Any:
        store.stop()
        return inner(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(transaction, "prepare_snapshot", prepare)
        try:
            with pytest.raises(SyncError) as raised:
                lake.bench.follower.sync()
            assert isinstance(raised.value, ObjectStoreAway)
            assert store.secret not in str(raised.value)
            with pytest.raises(ObjectStoreAway):
                lake.bench.context.log.has_version(3)
        finally:
            store.start()
    assert lake.bench.iceberg().metadata.current_snapshot_id == before
    assert lake.bench.follower.sync().positions_added == 3
    lake.check("after the store was back")


@pytest.fixture
def unity() -> Iterator[UnityServer]:
    with unity_server() as server:
        yield server


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.long)])
def test_credentials_from_a_file_the_environment_and_a_catalog(s3_spark, store, unity, tmp_path, engine):
    """First syncs of a daemon: a catalog's key comes from a file, where there is none the default chain is asked, by
    both sides, and by a Spark of the daemon's own; Unity Catalog gives one for its table. No secret is on a command
    line, or in a line of the log at debug.
    """
    key, secret = store.new_user(f"of-file-{engine}", "lake", "warehouse")
    chain_key, chain_secret = store.new_user(f"of-environment-{engine}", f"chain-{engine}")
    vended_key, vended_secret = store.new_user(f"of-unity-{engine}", f"vended-{engine}")
    for bucket in ("chain", "vended"):
        store.client("s3").create_bucket(Bucket=f"{bucket}-{engine}")
    places = {"own": f"lake/daemon/{engine}/a b+c%20", "chain": f"chain-{engine}/t", "vended": f"vended-{engine}/t"}
    for place in places.values():
        for statement in (CREATE, f"INSERT INTO {{t}} {ROWS}", "DELETE FROM {t} WHERE id % 10 = 3"):
            s3_spark.sql(statement.replace("{t}", f"delta.`s3a://{place}`"))
    (tmp_path / "secret").write_text(f"{secret}\n")
    own = {"s3.access-key-id": key, "s3.secret-access-key": {"file": "secret"}}
    catalog = {"type": "sql", "uri": "sqlite:///catalog.db"}
    configuration = {
        "state": {"url": "sqlite:///state.db"},
        "catalogs": {
            "own": {**catalog, "warehouse": f"s3://warehouse/daemon/{engine}", **own},
            "chain": {**catalog, "warehouse": f"s3://chain-{engine}/w"},
        },
        "storage": {"s3.endpoint": store.url},
        "log": {"level": "debug", "format": "json"},
        "health": {"port": 0},
        "defaults": {"engine": engine},
        "spark": {"master": "local[1]", "conf": {**conf(), "spark.driver.memory": "1g"}},
        "sources": {"unity": {"type": "unity", "uri": unity.url, "token": unity.token}},
        "tables": [
            {"source": f"s3://{places['own']}", "target": "sales.own", "catalog": "own"},
            {"source": f"s3a://{places['chain']}", "target": "sales.chain", "catalog": "chain"},
            {"source": "unity:main.sales.vended", "target": "sales.vended", "catalog": "chain"},
        ],
    }
    vended = {"s3.access-key-id": vended_key, "s3.secret-access-key": vended_secret}
    unity.tables["main", "sales", "vended"] = UnityTable(
        "id",
        f"s3://{places['vended']}",
        table_type="EXTERNAL",
        credentials=[{"prefix": f"s3://vended-{engine}/", "config": vended}],
    )
    (tmp_path / "config.yaml").write_text(json.dumps(configuration))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {"AWS_ACCESS_KEY_ID": chain_key, "AWS_SECRET_ACCESS_KEY": chain_secret}
    lines: set[str] = set()
    output = tmp_path / "output"
    command = [sys.executable, "-m", "daemon", "run", "--config", str(tmp_path / "config.yaml")]
    with output.open("wb") as stream:
        daemon = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment)

    def are_synced() -> bool:
        assert daemon.poll() is None, output.read_text()
        assert "sync.failed" not in output.read_text(), output.read_text()
        for child in psutil.Process(daemon.pid).children(recursive=True):
            with suppress(psutil.Error):
                lines.add(" ".join(child.cmdline()))
        return output.read_text().count('"sync.advanced"') == 3

    try:
        wait_until(are_synced, "three first syncs", 300)
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(30)
    assert any("org.apache.spark" in line for line in lines) == (engine == "spark")
    for name, place in places.items():
        found = {**catalog, "uri": f"sqlite:///{tmp_path}/catalog.db", **store.properties}
        with closing(load_catalog("own" if name == "own" else "chain", **found)) as opened:
            table = opened.load_table(f"sales.{name}")
            assert_readers_agree(table, None, read_delta(s3_spark, f"s3a://{place}", table), place)
    text = output.read_text()
    assert ("pipeline.said" in text) == (engine == "spark"), "Spark's own lines are in the log at debug level"
    for each in (secret, chain_secret, vended_secret):
        assert not [line for line in lines if each in line]
        assert each not in text
