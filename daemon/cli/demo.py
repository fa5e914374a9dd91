"""`dvsync demo`: Spark changes a Delta table, and dvsync follows it into an Iceberg table of each format version.

Three Iceberg readers are compared with Delta.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from daemon.spark.session import SparkPipeline
from daemon.sync.follower import Follower
from daemon.sync.outcomes import SyncResult

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


@dataclass(frozen=True)
class Shown:
    """One Iceberg table after a sync. `seconds` is the sync alone, from commit file to snapshot."""

    rows: dict[str, pa.Table]
    positions: int
    delete_files: int
    seconds: float


@dataclass(frozen=True)
class Step:
    """One Delta version, and what the Iceberg tables of format versions 2 and 3 show of it."""

    version: int
    operation: str
    rows: pa.Table
    of_two: Shown
    of_three: Shown

    @property
    def differing(self) -> list[str]:
        """The readers that do not show what Delta shows."""
        shown = {" of version 2": self.of_two, " of version 3": self.of_three}
        return [
            reader + which
            for which, table in shown.items()
            for reader, rows in table.rows.items()
            if not rows.equals(self.rows)
        ]


def run_demo(folder: Path) -> int:
    """Create the tables in `folder` (replacing those of an earlier demo) and print a line for each version.

    Returns 0 if all readers agree with Delta, else 1. Raises `ConfigInvalid` if the folder holds something else, or if
    Polars is not installed.
    """
    _clear(folder)
    console = Console()
    # Without this, Polars warns about the planner that it uses anyway.
    os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")
    (folder / "config.yaml").write_text(CONFIG)
    settings = load_settings(folder / "config.yaml")
    source = settings.tables[0].source.removeprefix("file://")
    with _spark() as spark, open_parts(settings) as parts:
        steps = []
        console.print(f"{GROUP.format(*GROUPS)}\n{ROW.format(*HEADER)}", highlight=False, soft_wrap=True)
        for step in _play(spark, parts, source):
            steps.append(step)
            console.print(_line(step), style="red" if step.differing else "", highlight=False, soft_wrap=True)
        tables = [parts.catalogs.open("local").load_table(table.target) for table in settings.tables]
        files = {task.file.file_path for table in tables for task in table.scan().plan_files()}
        copied = sorted(file for file in files if source not in file)
        _print_next_steps(console, folder, tables, copied)
    return 1 if copied or any(step.differing for step in steps) else 0


def _clear(folder: Path) -> None:
    # Remove only what an earlier demo created. Its configuration file identifies it.
    if folder.exists() and any(folder.iterdir()):
        config = folder / "config.yaml"
        if not config.exists() or not config.read_text().startswith(CONFIG.splitlines()[0]):
            raise ConfigInvalid(
                f"{folder} is not empty and not from an earlier demo", hint="Choose another folder with --folder."
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def _spark() -> Iterator[SparkSession]:
    """Start a session that writes Delta tables and reads Iceberg tables. dvsync's own pipeline shares it."""
    conf = {
        "spark.jars.packages": ICEBERG_JAR,
        "spark.sql.shuffle.partitions": "2",
        # By default PyIceberg 0.12 reads no INT96 timestamps in a table of format version 3.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }
    pipeline = SparkPipeline(SparkSettings(conf=conf))
    try:
        with pipeline.session() as spark:
            yield spark
    finally:
        pipeline.close()


def _play(spark: SparkSession, parts: Parts, source: str) -> Iterator[Step]:
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
        results = []
        for follower in followers:
            started = time.perf_counter()
            results.append((follower.sync(), time.perf_counter() - started))
        of_two, of_three = (
            _shown(spark, parts.catalogs.open("local").load_table(table.target), rows.schema, result, seconds)
            for table, (result, seconds) in zip(parts.settings.tables, results, strict=True)
        )
        result = results[0][0]
        yield Step(result.to_version or 0, (result.operation or "").lower(), rows, of_two, of_three)


def _shown(spark: SparkSession, table: IcebergTable, schema: pa.Schema, result: SyncResult, seconds: float) -> Shown:
    snapshot = table.current_snapshot()
    delete_files = snapshot.summary["total-delete-files"] if snapshot and snapshot.summary else None
    found = {reader: _sorted(rows.cast(schema)) for reader, rows in _read_all(spark, table).items()}
    return Shown(found, result.positions_added, int(delete_files or 0), seconds)


def _read_all(spark: SparkSession, table: IcebergTable) -> dict[str, pa.Table]:
    """All rows as each reader returns them."""
    try:
        import polars  # noqa: PLC0415 - only the demo and the tests need it
    except ImportError as error:
        raise ConfigInvalid("the demo needs Polars, which is not installed", hint="pip install polars") from error
    return {
        "PyIceberg": table.scan().to_arrow(),
        "Polars": polars.scan_iceberg(table).collect().to_arrow(),
        "Spark": spark.read.format("iceberg").load(table.metadata_location).toArrow(),
    }


def _sorted(rows: pa.Table) -> pa.Table:
    """In one order, with one kind of types, so that the rows of two readers can be equal."""
    schema = pa.schema([field.with_nullable(True).remove_metadata() for field in rows.schema])
    return rows.cast(schema).sort_by("order_id").combine_chunks()


def _line(step: Step) -> str:
    # A number stands for both tables unless they differ.
    counts = (
        "/".join(map(str, dict.fromkeys((rows.num_rows, step.of_three.rows[reader].num_rows))))
        for reader, rows in step.of_two.rows.items()
    )
    values: Sequence[object] = (
        step.version,
        step.operation,
        step.rows.num_rows,
        *counts,
        step.of_two.positions,
        step.of_two.delete_files,
        f"{step.of_two.seconds:.2f}",
        step.of_three.delete_files,
        f"{step.of_three.seconds:.2f}",
    )
    line = ROW.format(*values)
    return f"{line}   DIFFERS: {', '.join(step.differing)}" if step.differing else line


def _print_next_steps(console: Console, folder: Path, tables: Sequence[IcebergTable], copied: list[str]) -> None:
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
