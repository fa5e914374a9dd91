"""Delta tables that are found in a Hive Metastore (Spark's own) and in AWS Glue (moto)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from daemon.config.load import load_settings
from daemon.config.settings import SourceName
from daemon.sources.finder import find_entries, open_catalog
from tests.kit.checks import duckdb_rows
from tests.kit.daemons import Daemon, command, set_constants, until, write_config
from tests.kit.handmade import HandmadeTable, sql_catalog
from tests.kit.installed import ROOT
from tests.kit.metastores import Entry, Glue, Hive

LINKS = "org.apache.hadoop.hive.ql.io.SymlinkTextInputFormat"


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
    settings = load_settings(tmp_path / "config.yaml")
    open_catalog(settings, "prod").check()
    _, passed_over = find_entries(settings, SourceName("prod", f"{schema}.*"))
    kinds = {"csv": "csv table", "ice": "ICEBERG table", "view": "view"}
    assert passed_over == {f"prod:{schema}.{name}": kind for name, kind in kinds.items()}
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
    arguments = [sys.executable, "-c", SPARK, hive.uri, "by_spark", str(tmp_path)]
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
