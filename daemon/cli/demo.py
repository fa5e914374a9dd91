"""`dvsync demo`: Spark changes a Delta table, dvsync follows it, and three Iceberg readers are compared with Delta."""

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
from daemon.service.log_progress import LogProgress
from daemon.spark.jars import ICEBERG_JAR
from daemon.spark.session import SparkPipeline
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
ROW = "{:>7}  {:<10} {:>7} {:>10} {:>7} {:>7} {:>10} {:>13} {:>8}"
HEADER = ("version", "operation", "Delta", "PyIceberg", "Polars", "Spark", "positions", "delete files", "seconds")


@dataclass(frozen=True)
class Step:
    """One Delta version as each reader shows it. `seconds` is the sync alone, from commit file to snapshot."""

    version: int
    operation: str
    live_rows: dict[str, int]
    differing: tuple[str, ...]
    positions: int
    delete_files: int
    seconds: float


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
        console.print(ROW.format(*HEADER), highlight=False, soft_wrap=True)
        for step in _play(spark, parts, source):
            steps.append(step)
            console.print(_line(step), style="red" if step.differing else "", highlight=False, soft_wrap=True)
        table = parts.catalogs.open("local").load_table("sales.orders")
        copied = [task.file.file_path for task in table.scan().plan_files() if source not in task.file.file_path]
        _print_next_steps(console, folder, table, copied)
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
    conf = {"spark.jars.packages": ICEBERG_JAR, "spark.sql.shuffle.partitions": "2"}
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
    follower = Follower(parts.context(parts.settings.tables[0], LogProgress(parts.clock)))
    for statement in HISTORY:
        spark.sql(statement.format(t=delta))
        yield _step(spark, parts, follower, delta)


def _step(spark: SparkSession, parts: Parts, follower: Follower, delta: str) -> Step:
    started = time.perf_counter()
    result = follower.sync()
    seconds = time.perf_counter() - started
    table = parts.catalogs.open("local").load_table("sales.orders")
    rows = _read_all(spark, delta, table)
    summary = table.current_snapshot()
    delete_files = summary.summary["total-delete-files"] if summary and summary.summary else None
    return Step(
        version=result.to_version or 0,
        operation=(result.operation or "").lower(),
        live_rows={reader: found.num_rows for reader, found in rows.items()},
        differing=tuple(reader for reader, found in rows.items() if not found.equals(rows["Delta"])),
        positions=result.positions_added,
        delete_files=int(delete_files or 0),
        seconds=seconds,
    )


def _read_all(spark: SparkSession, delta: str, table: IcebergTable) -> dict[str, pa.Table]:
    """Read all rows with each reader. The results have the same order and the same types."""
    try:
        import polars  # noqa: PLC0415 - only the demo and the tests need it
    except ImportError as error:
        raise ConfigInvalid("the demo needs Polars, which is not installed", hint="pip install polars") from error
    found = {
        "Delta": spark.table(delta).toArrow(),
        "PyIceberg": table.scan().to_arrow(),
        "Polars": polars.scan_iceberg(table).collect().to_arrow(),
        "Spark": spark.read.format("iceberg").load(table.metadata_location).toArrow(),
    }
    schema = pa.schema([field.with_nullable(True).remove_metadata() for field in found["Delta"].schema])
    return {reader: rows.cast(schema).sort_by("order_id").combine_chunks() for reader, rows in found.items()}


def _line(step: Step) -> str:
    values: Sequence[object] = (
        step.version,
        step.operation,
        *step.live_rows.values(),
        step.positions,
        step.delete_files,
        f"{step.seconds:.2f}",
    )
    line = ROW.format(*values)
    return f"{line}   DIFFERS: {', '.join(step.differing)}" if step.differing else line


def _print_next_steps(console: Console, folder: Path, table: IcebergTable, copied: list[str]) -> None:
    text = f"""
Every data file of the Iceberg table is Delta's own: {"yes" if not copied else f"NO, copied: {copied}"}.
Files are in {folder}/: lake/orders (Delta), warehouse/ (Iceberg), catalog.db, dvsync.db, config.yaml.

Keep following it:  dvsync run --config {folder}/config.yaml
Show its status:    dvsync status --config {folder}/config.yaml
Read it in Python:  from pyiceberg.catalog import load_catalog
                    catalog = load_catalog("local", type="sql", uri="sqlite:///{folder}/catalog.db")
                    catalog.load_table("sales.orders").scan().to_arrow()
Or in any engine:   {table.metadata_location}
"""
    console.print(text, highlight=False, soft_wrap=True, markup=False)
