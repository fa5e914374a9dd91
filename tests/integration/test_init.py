"""`dvsync init` on real Delta tables: what it writes is followed at once, and its words on each table hold."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from daemon.config.load import load_settings
from tests.kit.handmade import HandmadeTable
from tests.kit.invoke import invoke
from tests.kit.readers import assert_readers_agree, read_delta
from tests.kit.servers import ObjectStore

DV_TABLE = "USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
ORDERS, CUSTOMERS, ODD, CLICKS, SHOWN = (
    'lake/it\'s "old" orders',
    "lake/deep/customers",
    "lake/odd",
    "raw/clicks",
    "raw/odd",
)

pytestmark = pytest.mark.usefixtures("logging_as_it_was")


def dvsync(*arguments: str) -> tuple[int, str]:
    result = invoke(arguments)
    return result.exit_code, result.stdout


def make(spark: SparkSession, folder: str, columns: str) -> str:
    """An empty Delta table; gives what it is called in SQL."""
    name = f"delta.`{Path(folder).absolute()}`"
    spark.sql(f"CREATE TABLE {name} ({columns}) {DV_TABLE}")
    return name


def test_from_delta_tables_to_iceberg_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """init, config check, sync: readers find Delta's rows in the tables that can be followed, and no other tables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVSYNC_CONFIG", raising=False)
    orders = make(spark, ORDERS, "id BIGINT, name STRING")
    spark.sql(f"INSERT INTO {orders} SELECT id, concat('n', id) FROM range(0, 40, 1, 2)")
    spark.sql(f"DELETE FROM {orders} WHERE id % 7 = 3")
    for folder in (CUSTOMERS, CLICKS):
        table = HandmadeTable(tmp_path / folder)
        table.create()
        path = table.write_file([(number, folder, "v") for number in range(9)])
        table.commit([table.add(path, deleted=[4])])
    make(spark, ODD, "id BIGINT, v VARIANT")

    code, output = dvsync("init", "lake", "raw/*/")
    assert code == 0, output
    for said in (
        f"file://{tmp_path}/{ORDERS} at version 2: can be followed\n",
        f"file://{tmp_path}/{CUSTOMERS} at version 1: can be followed\n",
        f"file://{tmp_path}/{ODD} at version 0: would be refused\n",
        "refused   column v: ",
        "Wrote config.yaml. Tables: 3 can be followed, 1 refused.",
    ):
        assert said in output, output
    assert code == 0
    written = Path("config.yaml").read_text()
    assert "\n  # Refused: column v: " in written and f"\n  # - source: {tmp_path}/{ODD}\n" in written

    code, output = dvsync("config", "check")
    assert (code, output.splitlines()[0]) == (0, "config.yaml: the configuration is valid"), output
    code, output = dvsync("sync")
    assert code == 0, output
    with closing(load_catalog("local", **load_settings(Path("config.yaml")).catalogs["local"])) as catalog:
        tables = {".".join(name) for (space,) in catalog.list_namespaces() for name in catalog.list_tables(space)}
        assert tables == {"lake.it_s_old_orders", "deep.customers", "raw.clicks"}
        for target, folder in zip(sorted(tables), (CUSTOMERS, ORDERS, CLICKS), strict=True):
            table = catalog.load_table(target)
            rows = read_delta(spark, str(tmp_path / folder), table)
            assert len(rows) == {ORDERS: 34}.get(folder, 8)
            assert_readers_agree(table, spark, rows, target)


def test_a_refused_table_of_a_pattern(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be left out of the pattern: the file says that it will be parked, and it is, by the same reason."""
    monkeypatch.chdir(tmp_path)
    make(spark, SHOWN, "id BIGINT, v VARIANT")
    make(spark, CLICKS, "id BIGINT")
    code, output = dvsync("init", "raw/*", "--config", "own.yaml")
    assert code == 0, output
    unwrapped = Path("own.yaml").read_text().replace("\n  #   ", " ")
    assert "  # Matching tables now: 2.\n" in unwrapped
    assert f"  # file://{tmp_path}/{SHOWN} will be parked: column v: " in unwrapped
    code, output = dvsync("sync", "--config", "own.yaml")
    assert code == 1
    assert "raw.odd: Unsupported: column v has the type variant" in output
    assert "raw.clicks: advanced" in output, output


@pytest.mark.long
def test_on_an_object_store(
    s3_spark: SparkSession, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment says how it is reached, for init and afterwards; no secret is written or shown."""
    monkeypatch.chdir(tmp_path)
    for name, value in store.properties.items():
        monkeypatch.setenv(f"DVSYNC_STORAGE__{name.replace('.', '__').replace('-', '_').upper()}", value)
    for name in ("one", "two"):
        s3_spark.sql(f"CREATE TABLE delta.`s3a://lake/init/deep/{name}` (id BIGINT) {DV_TABLE}")
        s3_spark.sql(f"INSERT INTO delta.`s3a://lake/init/deep/{name}` SELECT id FROM range(5)")
    code, output = dvsync("init", "s3://lake/init", "s3://lake/init/*/tw*/")
    assert code == 0, output
    assert "s3://lake/init/deep/one at version 1: can be followed\n" in output
    written = Path("config.yaml").read_text()
    assert "\n  - source: s3://lake/init/deep/one\n    target: deep.one\n" in written
    assert "\n  - source: s3://lake/init/*/tw*\n    target: '{parent}.{name}'\n" in written
    assert store.secret not in written + output
    code, output = dvsync("sync")
    assert code == 0, output
    assert {line.partition(":")[0] for line in output.splitlines()} == {"deep.one", "deep.two"}
    assert output.count("data files +") == 2
