"""Catalog-managed tables as Spark writes them: their log and what the catalog names hold exactly Delta's rows."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from daemon.cli.operations import examine_tables, sync_tables, verify_tables
from daemon.cli.tables import with_found_tables
from daemon.config.load import load_settings
from daemon.config.settings import Settings
from daemon.delta.deletion_vector import read_position_sets
from daemon.delta.log_segment import load_log_segment
from daemon.delta.position_set import as_bitmap
from daemon.delta.snapshot import replay
from daemon.doctor.diagnosis import Diagnosis
from daemon.service.assembly import open_parts
from daemon.spark.table_state import read_table_state
from daemon.store.storage import FileIOStorage
from daemon.verify.findings import Level, Proof, Scope
from state.records import DeletionVectorDescriptor
from tests.kit.catalog_managed import AUTO_COMPACT, ID_PROPERTY, ManagedTable
from tests.kit.daemons import Daemon, set_constants, write_config
from tests.kit.handmade import new_uuid, sql_catalog
from tests.kit.readers import assert_readers_agree, rows_of
from tests.kit.unity import BASE, TOKEN_PATH, StagedCommit, UnityServer, UnityTable, unity_server
from tests.kit.writer import Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "(id BIGINT, name STRING)"
WITH_VECTORS = "'delta.enableDeletionVectors' = 'true'"
MERGE = """
    MERGE INTO {t} t USING (SELECT id, concat('m', id) AS name FROM range(38, 44)) s ON t.id = s.id
    WHEN MATCHED AND t.id % 2 = 0 THEN DELETE
    WHEN MATCHED THEN UPDATE SET name = s.name
    WHEN NOT MATCHED THEN INSERT *
"""
# What a writer leaves that failed before it asked the catalog: of the next version, and of a file that is not there.
STRAY = '{"commitInfo":{"inCommitTimestamp":1}}\n{"add":{"path":"none.parquet","partitionValues":{}}}\n'


@pytest.fixture
def unity() -> Iterator[UnityServer]:
    with unity_server() as server:
        yield server


@pytest.fixture
def told_of(unity: UnityServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Told]]:
    made: list[Told] = []

    def make(table: ManagedTable) -> Told:
        made.append(Told(unity, table, tmp_path))
        return made[-1]

    set_constants(monkeypatch, {"daemon.service.fleet.DISCOVERY_INTERVAL_S": 0.5})
    yield make
    for told in made:
        told.daemon.kill()


class Told:
    """A reader that knows what the server says and the files of the table's folder; and dvsync, which follows it."""

    def __init__(self, unity: UnityServer, table: ManagedTable, folder: Path) -> None:
        self.unity, self.table = unity, table
        self.record = UnityTable(table.table_id, table.folder.as_uri())
        unity.tables["main", "sales", "orders"] = self.record
        # Up to this version all rows were Delta's.
        self.version = -1
        self.folder = folder
        write_config(
            folder / "config.yaml",
            sources={"prod": {"type": "unity", "uri": unity.url, "token": unity.token}},
            tables=[{"source": "prod:main.sales.orders", "target": "lake.orders", "format_version": 3}],
        )
        self.daemon = Daemon(folder / "config.yaml")

    def _check_followed(self) -> None:
        """Readers of the Iceberg table find Delta's rows of the newest version, which the daemon has followed."""
        if not self.daemon.lines:
            self.daemon.launch()
            self.daemon.started()
        self.daemon.synced_to("lake.orders", self.version)
        with closing(load_catalog("local", **sql_catalog(self.folder))) as catalog:
            table = catalog.load_table("lake.orders")
        assert_readers_agree(table, None, rows_of(self.rows, table.schema().fields), f"version {self.version}")

    def kill(self) -> None:
        """The next check starts the daemon again."""
        self.daemon.kill()
        self.daemon = Daemon(self.folder / "config.yaml")

    def check(self, latest: int, published: int) -> None:
        """Each new version holds Delta's rows, the last one is `latest`, and the log has those up to `published`."""
        self.table.tell(self.record)
        commits = self._commits()
        assert max(commits) == latest and max(published_commits(self.table.folder)) == published
        for version in range(self.version + 1, latest + 1):
            found = folded(self.table.folder, [commits[each] for each in range(version + 1)])
            self.rows = self.table.rows(version)
            assert found == Counter(rows_in(self.rows)), f"version {version}"
        self.version = latest
        self._check_followed()

    def _commits(self) -> dict[int, Path]:
        """PROTOCOL.md, "Reading Catalog-managed Tables": the catalog's file of a version goes before the log's."""
        path = f"{BASE}/delta/v1/catalogs/main/schemas/sales/tables/orders"
        request = urllib.request.Request(self.unity.url + path, headers={"Authorization": f"Bearer {self.unity.token}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            told = json.load(answer)
        log = published_commits(self.table.folder)
        if told["metadata"]["table-type"] == "EXTERNAL":
            assert "commits" not in told
            return log
        staged = self.table.folder / "_delta_log" / "_staged_commits"
        named = {commit["version"]: staged / commit["file-name"] for commit in told["commits"]}
        latest = told["latest-table-version"]
        contiguous = list(range(latest, latest - len(told["commits"]), -1))
        assert [commit["version"] for commit in told["commits"]] == contiguous, "all of them, the newest first"
        for version in named.keys() & log.keys():
            assert named[version].read_bytes() == log[version].read_bytes()
        # Of a table that has just been upgraded the catalog has no commit, and knows no version.
        return {version: path for version, path in log.items() if not named or version <= latest} | named


def published_commits(folder: Path) -> dict[int, Path]:
    return {int(path.stem): path for path in (folder / "_delta_log").glob(f"{'[0-9]' * 20}.json")}


def folded(folder: Path, commits: Sequence[Path]) -> Counter[tuple[Any, ...]]:
    """The rows of all commits from version 0 on, by PROTOCOL.md, "Action Reconciliation", alone."""
    live: dict[tuple[str, str | None], dict[str, Any]] = {}
    names: list[str] = []
    for commit in commits:
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if removed := action.get("remove"):
                del live[removed["path"], unique_id(removed)]
            if metadata := action.get("metaData"):
                names = [field["name"] for field in json.loads(metadata["schemaString"])["fields"]]
        live |= {(add["path"], unique_id(add)): add for action in actions if (add := action.get("add"))}
    rows: Counter[tuple[Any, ...]] = Counter()
    for (path, _), add in live.items():
        deleted = positions(folder, add)
        found = pq.read_table(folder / unquote(path)).to_pylist()
        rows.update(tuple(row.get(name) for name in names) for at, row in enumerate(found) if at not in deleted)
    return rows


def unique_id(action: dict[str, Any]) -> str | None:
    vector = action.get("deletionVector")
    return vector and f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"


def positions(folder: Path, add: dict[str, Any]) -> set[int]:
    if "deletionVector" not in add:
        return set()
    descriptor = msgspec.convert(add["deletionVector"], DeletionVectorDescriptor)
    (found,) = read_position_sets(FileIOStorage(), str(folder), [descriptor])
    return set(as_bitmap(found))


def rows_in(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def inserted(start: int, end: int, slices: int = 1) -> str:
    return f"INSERT INTO {{t}} SELECT id, concat('n', id) AS name FROM range({start}, {end}, 1, {slices})"


def test_history(writer: Writer, told_of: Callable[..., Told], tmp_path: Path) -> None:
    """Every version is the published log and what the catalog names, however late its commit is published."""
    table = ManagedTable(writer, tmp_path / "t")
    table.create(COLUMNS, "'delta.checkpointInterval' = '5'")
    told = told_of(table)
    told.check(0, published=0)
    table.sql(inserted(0, 40, 2))
    told.check(1, published=1)
    table.sql("DELETE FROM {t} WHERE id % 5 = 0", published_max=1)
    told.check(2, published=1)
    stray = table.folder / "_delta_log" / "_staged_commits" / f"{3:020d}.00000000-0000-4000-8000-000000000000.json"
    stray.write_text(STRAY)
    table.sql("UPDATE {t} SET name = 'updated' WHERE id IN (3, 21)", published_max=1)
    told.check(3, published=1)
    table.sql(inserted(100, 110), published_max=3)
    assert [int(name[:20]) for name in table.named] == [2, 3, 4], (
        "the catalog learns of what is published with a commit"
    )
    told.check(4, published=3)
    table.sql(MERGE)
    assert list((table.folder / "_delta_log").glob(f"{5:020d}.checkpoint.*")), "what is published has checkpoints"
    told.check(5, published=5)
    table.sql("DELETE FROM {t} WHERE id % 7 = 0", published_max=5)
    told.check(6, published=5)
    with writer.confs(AUTO_COMPACT):
        table.sql(inserted(200, 205, 2))
    told.check(8, published=8)
    told.kill()
    table.sql("RESTORE TABLE {t} TO VERSION AS OF 6")
    told.check(9, published=9)
    table.sql("ALTER TABLE {t} ADD COLUMN more INT", "INSERT INTO {t} VALUES (300, 'n300', 1)", published_max=9)
    told.check(11, published=9)
    told.kill()
    table.publish()
    assert (table.latest, len(table.named)) == (11, 2), "the catalog still names what is published"
    told.check(11, published=11)


def test_upgrade_and_downgrade(writer: Writer, told_of: Callable[..., Told], tmp_path: Path) -> None:
    """A table that its catalog managed for a time has all its versions in the log."""
    table = ManagedTable(writer, tmp_path / "t")
    table.create(COLUMNS, WITH_VECTORS, managed=False)
    told = told_of(table)
    table.sql(inserted(0, 20, 2), "DELETE FROM {t} WHERE id % 4 = 1", "OPTIMIZE {t}")
    told.check(3, published=3)
    table.upgrade()
    assert (table.latest, table.named) == (0, [])
    told.check(4, published=4)
    table.sql("DELETE FROM {t} WHERE id % 3 = 0", published_max=4)
    told.check(5, published=4)
    table.sql(inserted(20, 30), published_max=4)
    told.check(6, published=4)
    table.downgrade()
    assert (table.latest, len(table.named)) == (7, 3)
    told.check(7, published=7)
    table.sql("UPDATE {t} SET name = 'by path' WHERE id < 8")
    told.check(8, published=8)
    # Unity gives no id twice.
    table.table_id = str(new_uuid())
    table.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('{ID_PROPERTY}' = '{table.table_id}')")
    table.upgrade()
    told.check(10, published=10)
    table.sql("DELETE FROM {t} WHERE id > 20", published_max=10)
    assert (table.latest, len(table.named)) == (11, 1)
    told.check(11, published=10)


def test_spark_reads_what_is_ratified(spark: SparkSession, writer: Writer, unity: UnityServer, tmp_path: Path) -> None:
    """Delta on Spark, which refuses such a table by path, reads the state of each version, and `verify` its rows.

    Costs 15 s.
    """
    table = ManagedTable(writer, tmp_path / "t")
    table.create(COLUMNS, WITH_VECTORS, "'delta.checkpointInterval' = '2'")
    table.sql(inserted(0, 40, 2), "DELETE FROM {t} WHERE id % 5 = 0", published_max=2)
    table.sql(
        inserted(40, 60), "DELETE FROM {t} WHERE id % 5 = 1", "UPDATE {t} SET name = 'u' WHERE id = 42", published_max=2
    )
    record = UnityTable(table.table_id, table.folder.as_uri())
    unity.tables["main", "sales", "orders"] = record
    table.tell(record)
    stray = table.folder / "_delta_log" / "_staged_commits" / f"{6:020d}.00000000-0000-4000-8000-000000000000.json"
    stray.write_text(STRAY)
    write_config(
        tmp_path / "config.yaml",
        sources={"prod": {"type": "unity", "uri": unity.url, "token": unity.token}},
        tables=[{"source": "prod:main.sales.orders", "target": "lake.orders", "engine": "spark", "format_version": 3}],
    )
    settings, found = with_found_tables(load_settings(tmp_path / "config.yaml"))
    assert not found.troubles and settings.tables[0].engine == "spark"
    # One that is published, and one that is staged.
    for version in (2, table.latest):
        assert_states_agree(settings, spark, version)
    ((_, synced),) = sync_tables(settings, settings.tables, lambda _: Silent(), full=False)
    assert synced.result and synced.result.to_version == table.latest == 5
    ((_, proof),) = verify_tables(settings, settings.tables, lambda _: Silent(), Scope(Level.ROWS))
    assert isinstance(proof, Proof) and proof.is_right and proof.version == 5, proof
    ((_, diagnosis),) = examine_tables(settings, settings.tables)
    assert isinstance(diagnosis, Diagnosis) and diagnosis.is_followed, diagnosis
    with closing(load_catalog("local", **sql_catalog(tmp_path))) as catalog:
        iceberg = catalog.load_table("lake.orders")
    assert_readers_agree(iceberg, spark, rows_of(table.rows(), iceberg.schema().fields))


class Silent:
    def advanced(self, done: int, total: int, what: str) -> None:
        """Nobody is shown the progress."""


def assert_states_agree(settings: Settings, spark: SparkSession, version: int) -> None:
    """Delta's reading is the product's own."""
    with open_parts(settings) as parts:
        log = parts.context(settings.tables[0]).log
        replayed, state = replay(log, load_log_segment(log, version)), read_table_state(spark, log, version)
    assert replayed
    for name in ("version", "timestamp_ms", "protocol", "metadata", "files", "recent_commits"):
        assert getattr(replayed, name) == getattr(state, name), name
    for with_dv_only in (False, True):
        ours, deltas = (
            sorted(each.read_adds(with_dv_only=with_dv_only), key=attrgetter("path")) for each in (replayed, state)
        )
        assert ours == deltas


@pytest.mark.parametrize("has_delta_api", [True, False])
def test_clients_of_delta_and_unity(spark: SparkSession, unity: UnityServer, has_delta_api: bool) -> None:
    """Their own clients understand what the server says."""
    jvm: Any = spark._jvm
    table_id, location = str(uuid4()), "s3://bucket/orders"
    commits = [StagedCommit(at, 10 + at, f"{at:020d}.{uuid4()}.json", 20 + at, 30 + at) for at in (3, 4)]
    vended = {"prefix": location, "config": {"s3.access-key-id": "key"}, "expiration-time-ms": 5}
    table = UnityTable(table_id, location, 4, commits, credentials=[vended])
    unity.tables = {("main", "sales", name): table for name in ("orders", "others")}
    unity.has_delta_api = has_delta_api

    said = commits_by_delta(spark, unity, table)
    assert said == (4, [(each.version, each.file_name, each.file_size, each.timestamp) for each in commits])
    if has_delta_api:
        config = jvm.io.unitycatalog.client.delta.api.DeltaConfigurationApi(client_of(spark, unity))
        assert len(config.getConfig("main", "1.0").getEndpoints()) == 2
        credentials = jvm.io.unitycatalog.client.delta.api.DeltaTemporaryCredentialsApi(client_of(spark, unity))
        read = jvm.io.unitycatalog.client.delta.model.DeltaCredentialOperation.READ
        (given,) = credentials.getTableCredentials(read, "main", "sales", "orders").getStorageCredentials()
        assert (given.getPrefix(), given.getExpirationTimeMs(), given.getConfig().getS3AccessKeyId()) == (
            location,
            5,
            "key",
        )
    else:
        older = jvm.io.unitycatalog.client
        asked = older.model.GenerateTemporaryTableCredential().tableId(table_id)
        asked = asked.operation(older.model.TableOperation.READ)
        given = older.api.TemporaryCredentialsApi(client_of(spark, unity)).generateTemporaryTableCredentials(asked)
        assert (given.getUrl(), given.getAwsTempCredentials().getAccessKeyId()) == (location, "key")
    tables = jvm.io.unitycatalog.client.api.TablesApi(client_of(spark, unity))
    page = tables.listTables("main", "sales", 1, None)
    assert [each.getTableId() for each in page.getTables()] == [table_id]
    assert tables.listTables("main", "sales", 1, page.getNextPageToken()).getTables()[0].getName() == "others"


def commits_by_delta(spark: SparkSession, unity: UnityServer, table: UnityTable) -> tuple[int, list[tuple[Any, ...]]]:
    """The latest version and the commits of `main.sales.orders`, as Delta's client hands them to Delta."""
    jvm: Any = spark._jvm
    namespace = spark.sparkContext._gateway.new_array(jvm.java.lang.String, 2)  # type: ignore[union-attr]
    namespace[0], namespace[1] = "main", "sales"
    name = jvm.io.delta.storage.commit.TableIdentifier(namespace, "orders")
    options = {"uri": unity.url, "token": unity.token, "deltaRestApi.enabled": str(unity.has_delta_api).lower()}
    factory = jvm.org.apache.spark.sql.delta.coordinatedcommits.UCTokenBasedRestClientFactory
    client, place = factory.createUCClient(jvm.java.util.HashMap(options)), jvm.java.net.URI(table.location)
    said = client.getCommits(table.table_id, place, name, *[jvm.java.util.Optional.empty()] * 2)
    files = [(each.getVersion(), each.getFileStatus(), each.getCommitTimestamp()) for each in said.getCommits()]
    found = sorted((version, file.getPath().getName(), file.getLen(), at) for version, file, at in files)
    return said.getLatestTableVersion(), found


def client_of(spark: SparkSession, unity: UnityServer) -> Any:
    """Unity's own, which has its token for a client's secret."""
    jvm: Any = spark._jvm
    names = ("oauth.uri", "oauth.clientId", "oauth.clientSecret")
    options = {"type": "oauth", **dict(zip(names, (unity.url + TOKEN_PATH, *unity.client), strict=True))}
    token = jvm.io.unitycatalog.client.auth.TokenProvider.create(jvm.java.util.HashMap(options))
    return jvm.io.unitycatalog.client.ApiClientBuilder.create().uri(unity.url).tokenProvider(token).build()
