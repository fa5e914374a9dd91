"""`dvsync demo`: Spark changes a Delta table, dvsync follows it, and three Iceberg readers are compared with Delta."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.table import Table as IcebergTable
from rich.console import Console

from daemon.config.load import load_settings
from daemon.config.settings import SparkSettings
from daemon.errors import ConfigInvalid
from daemon.service.assembly import Parts, open_parts
from daemon.service.fleet import LogProgress
from daemon.spark.jars import ICEBERG_JAR
from daemon.spark.session import FOR_TINY_TABLES, SparkPipeline
from daemon.sync.follower import Follower

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = """\
# Written by `dvsync demo`.
state: {url: "sqlite:///dvsync.db"}
catalogs:
  local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}
tables:
  - {source: lake/orders, target: sales.orders, poll_interval: 1s}
  - {source: lake/orders, target: sales.orders_v3, format_version: 3, poll_interval: 1s}
"""
ORDERS = """
    SELECT id AS order_id, concat('customer-', id % 97) AS customer, CAST(id % 1000 AS DECIMAL(10, 2)) AS amount,
           'open' AS status, timestamp_micros(1767225600000000 + id * 61000001) AS placed_at,
           element_at(array('north', 'south', 'west'), CAST(id % 3 AS INT) + 1) AS region
    FROM range({start}, {end}, 1, {files})
"""
# Each statement is one Delta version; `{t}` is the table.
HISTORY = (
    "INSERT INTO {t}" + ORDERS.format(start=0, end=9000, files=2),
    "DELETE FROM {t} WHERE order_id % 10 = 3",
    "UPDATE {t} SET status = 'paid' WHERE order_id % 25 = 0",
    "MERGE INTO {t} t USING (" + ORDERS.format(start=8000, end=10000, files=1) + ") s ON t.order_id = s.order_id "
    "WHEN MATCHED AND t.order_id % 2 = 0 THEN DELETE "
    "WHEN MATCHED THEN UPDATE SET status = 'changed' "
    "WHEN NOT MATCHED THEN INSERT *",
    "DELETE FROM {t} WHERE region = 'west' AND order_id < 3000",
    "OPTIMIZE {t}",
    "DELETE FROM {t} WHERE amount > 990",
    "RESTORE TABLE {t} TO VERSION AS OF 3",
    "INSERT INTO {t}" + ORDERS.format(start=10000, end=10500, files=1),
)
GROUP = "{:>50}{:>27}{:>20}"
GROUPS = ("live rows, in both Iceberg tables", "version 2: delete files", "version 3: vectors")
ROW = "{:>7}  {:<10}{:>6}{:>11}{:>8}{:>7}{:>11}{:>7}{:>9}{:>11}{:>9}"
COLUMNS = ("version", "operation", "Delta", "PyIceberg", "Polars", "Spark")
HEADER = (*COLUMNS, "positions", "files", "seconds", "vectors", "seconds")


def run_demo(folder: Path) -> int:
    """Make the tables in `folder`, in place of an earlier demo's. Returns 1 if a reader differs."""
    # Remove only what an earlier demo created. Its configuration file identifies it.
    if folder.exists() and any(folder.iterdir()):
        config = folder / "config.yaml"
        if not config.exists() or not config.read_text().startswith(CONFIG.splitlines()[0]):
            hint = "Choose another folder with --folder."
            raise ConfigInvalid(f"{folder} is not empty and not from an earlier demo", hint=hint)
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    console = Console()
    # Without this, Polars warns about the planner that it uses anyway.
    os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")
    (folder / "config.yaml").write_text(CONFIG)
    settings = load_settings(folder / "config.yaml")
    source = settings.tables[0].source.removeprefix("file://")
    is_right = True
    with _spark() as spark, open_parts(settings) as parts:
        console.print(f"{GROUP.format(*GROUPS)}\n{ROW.format(*HEADER)}", highlight=False, soft_wrap=True)
        for line, differing in _play(spark, parts, source):
            is_right = is_right and not differing
            text = f"{line}   DIFFERS: {', '.join(differing)}" if differing else line
            console.print(text, style="red" if differing else "", highlight=False, soft_wrap=True)
        tables = [parts.catalogs.open("local").load_table(table.target) for table in settings.tables]
        files = {task.file.file_path for table in tables for task in table.scan().plan_files()}
        copied = sorted(file for file in files if source not in file)
        text = f"""
Every data file of the Iceberg tables is Delta's own: {"yes" if not copied else f"NO, copied: {copied}"}.
Files are in {folder}/: lake/orders (Delta), warehouse/ (Iceberg), catalog.db, dvsync.db, config.yaml.

Keep following it:  dvsync run --config {folder}/config.yaml
Show its status:    dvsync status --config {folder}/config.yaml
Read it in Python:  from pyiceberg.catalog import load_catalog
                    catalog = load_catalog("local", type="sql", uri="sqlite:///{folder}/catalog.db")
                    catalog.load_table("sales.orders").scan().to_arrow()
Or in any engine:   {tables[0].metadata_location}
Format version 3:   {tables[1].metadata_location}
"""
        console.print(text, highlight=False, soft_wrap=True, markup=False)
    return 0 if is_right and not copied else 1


@contextmanager
def _spark() -> Iterator[SparkSession]:
    """Start a session that writes Delta tables and reads Iceberg tables. dvsync's own pipeline shares it."""
    conf = {
        "spark.jars.packages": ICEBERG_JAR,
        **FOR_TINY_TABLES,
        # By default PyIceberg 0.12 reads no INT96 timestamps in a table of format version 3.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }
    with closing(SparkPipeline(SparkSettings(conf=conf))) as pipeline, pipeline.session() as spark:
        yield spark


def _play(spark: SparkSession, parts: Parts, source: str) -> Iterator[tuple[str, list[str]]]:
    """Make each version. Yield a line on what Iceberg shows of it, and the readers that do not show what Delta does."""
    delta = f"delta.`{source}`"
    spark.sql(
        f"CREATE TABLE {delta} (order_id BIGINT, customer STRING, amount DECIMAL(10, 2), status STRING,"
        " placed_at TIMESTAMP, region STRING) USING delta PARTITIONED BY (region)"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    followers = [Follower(parts.context(table, LogProgress(parts.clock))) for table in parts.settings.tables]
    for statement in HISTORY:
        spark.sql(statement.format(t=delta))
        rows = _sorted(spark.table(delta).toArrow())
        results, seconds = [], []
        for follower in followers:
            started = time.perf_counter()
            results.append(follower.sync())
            seconds.append(f"{time.perf_counter() - started:.2f}")
        tables = [parts.catalogs.open("local").load_table(table.target) for table in parts.settings.tables]
        snapshots = [table.current_snapshot() for table in tables]
        delete_files = [each.summary["total-delete-files"] or 0 if each and each.summary else 0 for each in snapshots]
        read = [_read_all(spark, table, rows.schema) for table in tables]
        differing = [
            f"{reader} of version {version}"
            for version, found in zip((2, 3), read, strict=True)
            for reader, each in found.items()
            if not each.equals(rows)
        ]
        # A number stands for both tables unless they differ.
        counts = ("/".join(dict.fromkeys(str(found[reader].num_rows) for found in read)) for reader in read[0])
        result = results[0]
        shown = (result.to_version or 0, (result.operation or "").lower(), rows.num_rows, *counts)
        figures = (result.positions_added, delete_files[0], seconds[0], delete_files[1], seconds[1])
        yield ROW.format(*shown, *figures), differing


def _read_all(spark: SparkSession, table: IcebergTable, schema: pa.Schema) -> dict[str, pa.Table]:
    try:
        import polars  # noqa: PLC0415 - only the demo and the tests need it
    except ImportError as error:
        raise ConfigInvalid("the demo needs Polars, which is not installed", hint="pip install polars") from error
    found = {
        "PyIceberg": table.scan().to_arrow(),
        "Polars": polars.scan_iceberg(table).collect().to_arrow(),
        "Spark": spark.read.format("iceberg").load(table.metadata_location).toArrow(),
    }
    return {reader: _sorted(rows.cast(schema)) for reader, rows in found.items()}


def _sorted(rows: pa.Table) -> pa.Table:
    """In one order, with one kind of types, so that the rows of two readers can be equal."""
    schema = pa.schema([field.with_nullable(True).remove_metadata() for field in rows.schema])
    return rows.cast(schema).sort_by("order_id").combine_chunks()
