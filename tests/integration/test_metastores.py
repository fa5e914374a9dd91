"""Delta tables that are found in a Hive Metastore (Spark's own) and in AWS Glue (moto)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import Database, FieldSchema, SerDeInfo, StorageDescriptor, Table
from pyiceberg.catalog import load_catalog
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from tests.kit.checks import duckdb_rows
from tests.kit.daemons import Daemon, command, set_constants, until, write_config
from tests.kit.handmade import HandmadeTable, sql_catalog
from tests.kit.installed import ROOT
from tests.kit.servers import ObjectStore, hive_metastore

DELTA = MappingProxyType({"spark.sql.sources.provider": "delta"})
SEQUENCE_FILE = "org.apache.hadoop.mapred.SequenceFileInputFormat"
LINKS = "org.apache.hadoop.hive.ql.io.SymlinkTextInputFormat"


class Entry(NamedTuple):
    """What a metastore has of a table. `path` is of the serde."""

    name: str
    location: str
    path: str | None = None
    parameters: Mapping[str, str] = DELTA
    input_format: str = SEQUENCE_FILE
    kind: str = "EXTERNAL_TABLE"


class Hive:
    """A Hive Metastore, changed by its own protocol."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.source = {"type": "hive", "uri": f"thrift://127.0.0.1:{port}"}

    def _do(self, change: Callable[[Client], Any]) -> Any:
        with closing(TBufferedTransport(TSocket("127.0.0.1", self.port))) as transport:
            transport.open()
            return change(Client(TBinaryProtocol(transport)))

    def add_schema(self, name: str) -> None:
        self._do(lambda client: client.create_database(Database(name=name, locationUri=f"file:///tmp/{name}")))

    def add(self, schema: str, entry: Entry) -> None:
        serde = SerDeInfo(parameters={"path": entry.path} if entry.path else {}, serializationLib="lazy")
        columns = [FieldSchema("col", "array<string>", "from deserializer")]
        storage = StorageDescriptor(columns, entry.location, entry.input_format, serdeInfo=serde, parameters={})
        storage.sortCols = storage.bucketCols = []
        table = Table(entry.name, schema, "spark", sd=storage, partitionKeys=[], parameters={**entry.parameters})
        table.tableType = entry.kind
        self._do(lambda client: client.create_table(table))

    def rename(self, schema: str, name: str, new_name: str) -> None:
        table = self._do(lambda client: client.get_table(schema, name))
        table.tableName = new_name
        self._do(lambda client: client.alter_table(schema, name, table))

    def drop(self, schema: str, name: str) -> None:
        self._do(lambda client: client.drop_table(schema, name, False))


class Glue:
    """Glue by moto."""

    def __init__(self, store: ObjectStore) -> None:
        self.client = store.client("glue")
        self.source = {
            "type": "glue",
            "glue.endpoint": store.url,
            "glue.region": "us-east-1",
            "glue.access-key-id": store.access_key,
            "glue.secret-access-key": store.secret,
        }

    def add_schema(self, name: str) -> None:
        self.client.create_database(DatabaseInput={"Name": name})

    def add(self, schema: str, entry: Entry) -> None:
        serde = {"Parameters": {"path": entry.path}} if entry.path else {}
        storage = {"Location": entry.location, "InputFormat": entry.input_format, "SerdeInfo": serde}
        made = {"Name": entry.name, "TableType": entry.kind, "Parameters": {**entry.parameters}}
        self.client.create_table(DatabaseName=schema, TableInput={**made, "StorageDescriptor": storage})

    def rename(self, schema: str, name: str, new_name: str) -> None:
        table = self.client.get_table(DatabaseName=schema, Name=name)["Table"]
        kept = {key: table[key] for key in ("TableType", "Parameters", "StorageDescriptor")}
        self.drop(schema, name)
        self.client.create_table(DatabaseName=schema, TableInput={"Name": new_name, **kept})

    def drop(self, schema: str, name: str) -> None:
        self.client.delete_table(DatabaseName=schema, Name=name)


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hive]:
    with hive_metastore(tmp_path_factory.mktemp("hive")) as server:
        yield Hive(server.port)


@pytest.fixture(params=["hive", "glue"])
def metastore(request: pytest.FixtureRequest) -> Hive | Glue:
    if request.param == "hive":
        found: Hive = request.getfixturevalue("hive")
        return found
    return Glue(request.getfixturevalue("store"))


def made(folder: Path, number: int) -> HandmadeTable:
    """A Delta table of `number` rows, one of which is deleted."""
    table = HandmadeTable(folder)
    table.create()
    path = table.write_file([(row, "x", f"v{row}") for row in range(number)])
    table.commit([table.add(path, deleted=[0])])
    return table


@pytest.fixture
def tables(metastore: Hive | Glue, tmp_path: Path) -> Iterator[dict[str, HandmadeTable]]:
    """In the schema `sales`: four Delta tables, in each way that a metastore says where one is; and what is none."""
    schema = f"sales_{tmp_path.parent.name[-4:]}_{tmp_path.name[-4:]}".replace("-", "_").casefold()
    found = {name: made(tmp_path / "lake" / f"{name} é", 3 + n) for n, name in enumerate(("plain", "there", "links"))}
    place = {name: str(table.folder) for name, table in found.items()}
    metastore.add_schema(schema)
    metastore.add(schema, Entry("plain", f"file:{place['plain']}"))
    metastore.add(schema, Entry("there", f"file:{tmp_path}/there-__PLACEHOLDER__", f"file:{place['there']}"))
    links = f"file:{place['links']}/_symlink_format_manifest"
    metastore.add(schema, Entry("links", links, parameters={}, input_format=LINKS))
    for name, parameters in (("csv", {"spark.sql.sources.provider": "csv"}), ("ice", {"table_type": "ICEBERG"})):
        metastore.add(schema, Entry(name, f"file:{tmp_path}/{name}", parameters=parameters))
    metastore.add(schema, Entry("view", "", parameters={}, kind="VIRTUAL_VIEW"))
    found["schema"] = schema  # type: ignore[assignment]
    yield found


@contextmanager
def running(folder: Path) -> Iterator[Daemon]:
    daemon = Daemon(folder / "config.yaml")
    daemon.launch()
    daemon.started()
    try:
        yield daemon
    finally:
        daemon.kill()


def shown(folder: Path, name: str) -> list[tuple[Any, ...]]:
    with closing(load_catalog("local", **sql_catalog(folder))) as catalog:
        return sorted(duckdb_rows(catalog.load_table(name)))


def test_tables_of_a_metastore(
    metastore: Hive | Glue, tables: dict[str, HandmadeTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a pattern in their places, followed, renamed, dropped, and one by its name."""
    set_constants(monkeypatch, {"daemon.service.fleet.DISCOVERY_INTERVAL_S": 0.3})
    schema: Any = tables.pop("schema")
    pattern = {"source": f"prod:{schema}.*", "target": "lake.{table}", "exclude": ["tmp_*"]}
    write_config(tmp_path / "config.yaml", sources={"prod": metastore.source}, tables=[pattern])
    with running(tmp_path) as daemon:
        for name, table in tables.items():
            daemon.synced_to(f"lake.{name}", table.version)
            assert shown(tmp_path, f"lake.{name}") == table.live_rows()
        assert set(daemon.tables()) == {f"lake.{name}" for name in tables}
        new = made(tmp_path / "lake" / "new", 9)
        metastore.add(schema, Entry("new", new.location))
        daemon.synced_to("lake.new", new.version)
        metastore.drop(schema, "new")
        until(lambda: daemon.tables()["lake.new"]["state"] == "gone", "the dropped table is gone")
        metastore.rename(schema, "plain", "simple")
        until(lambda: daemon.tables().get("lake.simple", {}).get("state") == "synced", "the renamed table")
    one = {"source": f"prod:{schema}.there", "target": "one.there"}
    (tmp_path / "one").mkdir()
    write_config(tmp_path / "one" / "config.yaml", sources={"prod": metastore.source}, tables=[one])
    done = command(tmp_path / "one" / "config.yaml", "sync")
    assert done.returncode == 0, done.stderr
    assert shown(tmp_path / "one", "one.there") == tables["there"].live_rows()


SPARK = """
import sys
from pyspark.sql import SparkSession
from daemon.config.settings import SparkSettings
from daemon.spark.session import session_conf
from tests.kit.spark_session import conf, with_our_modules

uri, schema, folder = sys.argv[1:]
with_our_modules()
more = {"hive.metastore.uris": uri, "spark.sql.warehouse.dir": f"file:{folder}/warehouse"}
builder = SparkSession.builder.master("local[1]").enableHiveSupport()
for key, value in session_conf(SparkSettings(conf={**conf(), **more})).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
spark.sql(f"CREATE DATABASE {schema} LOCATION 'file:{folder}/db é'")
dv = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
spark.sql(f"CREATE TABLE {schema}.managed USING delta {dv} AS SELECT id FROM range(0, 9, 1, 1)")
spark.sql(f"DELETE FROM {schema}.managed WHERE id % 2 = 0")
spark.sql(f"CREATE TABLE {schema}.placed USING delta LOCATION 'file:{folder}/a b%20c/t' AS SELECT id FROM range(3)")
spark.sql(f"CREATE TABLE {schema}.taken USING delta LOCATION 'file:{folder}/a b%20c/t'")
spark.sql(f"CREATE TABLE {schema}.rows USING parquet AS SELECT 1 AS id")
spark.sql(f"CREATE VIEW {schema}.some AS SELECT * FROM {schema}.rows")
"""


@pytest.mark.long
@pytest.mark.spark
def test_what_spark_writes(hive: Hive, tmp_path: Path) -> None:
    """Managed and external tables of Spark's own Hive catalog, wherever it notes their places."""
    arguments = [sys.executable, "-c", SPARK, hive.source["uri"], "by_spark", str(tmp_path)]
    subprocess.run(arguments, cwd=ROOT, check=True, timeout=300)
    pattern = {"source": "prod:by_spark.*", "target": "lake.{table}"}
    write_config(tmp_path / "config.yaml", sources={"prod": hive.source}, tables=[pattern])
    done = command(tmp_path / "config.yaml", "sync")
    assert done.returncode == 0, done.stderr
    with closing(load_catalog("local", **sql_catalog(tmp_path))) as catalog:
        found = {name: catalog.load_table(("lake", name)).scan().to_arrow() for _, name in catalog.list_tables("lake")}
    # Two names of one place are one table.
    assert {name: sorted(rows["id"].to_pylist()) for name, rows in found.items()} == {
        "managed": [1, 3, 5, 7],
        "placed": [0, 1, 2],
    }


def test_what_is_not_there(metastore: Hive | Glue, tmp_path: Path) -> None:
    """A schema or table that is missing is named, and a server that is away."""
    missing = [{"source": f"prod:{name}", "target": f"lake.{name}"} for name in ("nowhere.t", "default.t")]
    write_config(tmp_path / "config.yaml", sources={"prod": metastore.source}, tables=missing)
    said = command(tmp_path / "config.yaml", "sync").stderr
    assert "nowhere.t" in said and "default.t" in said, said
    away = {**metastore.source, "uri": "thrift://127.0.0.1:1", "glue.endpoint": "http://127.0.0.1:1"}
    write_config(tmp_path / "config.yaml", sources={"prod": away}, tables=missing[:1])
    said = command(tmp_path / "config.yaml", "sync").stderr
    assert "SourceCatalogAway" in said or "does not answer" in said, said
    assert metastore.source.get("glue.secret-access-key", "no secret") not in json.dumps(said)
