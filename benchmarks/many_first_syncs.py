"""The first syncs of many small tables by one daemon, from an empty state database.

Delta on Spark writes one table with deletion vectors and a checkpoint; its commits before the checkpoint and every
checksum file are removed, as delta-rs and older Delta leave a log, so that Delta has to replay its state. `--tables`
copies of it lie in one folder, which one source pattern of one `dvsync run` finds. The clock runs from the start of
the process until `/api/tables` says that all are synced. Spark's jobs and tasks are counted in its own event log. In
the end DuckDB reads every table, and its rows must be Delta's.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.report import conditions, parser, print_report
from daemon.config.settings import SparkSettings
from daemon.spark.session import SparkPipeline
from tests.kit.checks import duckdb_rows
from tests.kit.daemons import Daemon, until
from tests.kit.handmade import Bench

FIRST_SYNCS_MAX_S = 1_800.0
VERSIONS = 4
CHECKPOINT = 3
FAILURES = ("sync.failed", "table.parked")
CONFIG = """
state: {{url: "sqlite:///state.db"}}
catalogs: {{local: {{type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}}}
spark: {{conf: {{spark.eventLog.enabled: true, spark.eventLog.compress: false, spark.eventLog.dir: "{events}"}}}}
health: {{port: 0}}
log: {{format: json}}
tables: [{{source: lake/*/, target: "lake.{{name}}", name: "{{name}}"}}]
"""


def make_table(folder: Path) -> list[tuple[object, ...]]:
    """A table at version 4 whose log begins at the checkpoint of version 3; its rows, sorted."""
    pipeline = SparkPipeline(SparkSettings())
    try:
        with pipeline.session() as spark:
            spark.sql(
                f"CREATE TABLE delta.`{folder}` USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true',"
                f" 'delta.checkpointInterval' = '{CHECKPOINT}') AS"
                " SELECT id, concat('p', id % 3) AS part, concat('v', id) AS value FROM range(0, 400, 1, 4)"
            )
            for number in range(VERSIONS):
                spark.sql(f"DELETE FROM delta.`{folder}` WHERE id % 7 = {number}")
            found = spark.read.format("delta").load(str(folder)).toArrow().to_pylist()
    finally:
        pipeline.close()
    for path in (folder / "_delta_log").iterdir():
        is_old = path.suffix == ".json" and path.stem.isdigit() and int(path.stem) < CHECKPOINT
        if is_old or path.suffix == ".crc":
            path.unlink()
    return sorted(tuple(row.values()) for row in found)


def count_events(folder: Path) -> Counter[str]:
    """The kinds of events in Spark's own log."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(("appstatus", "."))]
    return Counter(json.loads(line)["Event"] for path in files for line in path.read_text().splitlines())


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--tables", type=int, default=200)
    chosen = options.parse_args()
    before = conditions(chosen.folder)
    with TemporaryDirectory(dir=chosen.folder) as temporary:
        folder = Path(temporary)
        names = [f"t{number:03d}" for number in range(chosen.tables)]
        expected = make_table(folder / "first")
        for name in names:
            shutil.copytree(folder / "first", folder / "lake" / name)
        (folder / "events").mkdir()
        (folder / "config.yaml").write_text(CONFIG.format(events=folder / "events"))
        daemon = Daemon(folder / "config.yaml", module="daemon")
        started_s = time.monotonic()
        daemon.launch()
        try:
            daemon.started()
            until(
                lambda: [status["synced_version"] for status in daemon.tables().values()] == [VERSIONS] * len(names),
                "the first syncs",
                wait_s=FIRST_SYNCS_MAX_S,
            )
            wall_s = time.monotonic() - started_s
        finally:
            daemon.kill()
        events = count_events(folder / "events")
        wrong = [name for name in names if read_rows(folder, name) != expected]
    failures = Counter(line["kind"] for line in daemon.lines if line["event"] in FAILURES)
    report = {
        "tables": chosen.tables,
        "wall_s": round(wall_s, 1),
        "failures": dict(failures),
        "spark_jobs": events["SparkListenerJobStart"],
        "spark_tasks": events["SparkListenerTaskEnd"],
        "wrong": wrong,
    }
    print_report(chosen, before, report, [f"{key}: {json.dumps(value)}" for key, value in report.items()])
    return 1 if wrong or failures else 0


def read_rows(folder: Path, name: str) -> list[tuple[object, ...]]:
    bench = Bench(
        folder / "reader",
        f"file://{folder}/lake/{name}",
        target=f"lake.{name}",
        catalog_uri=f"sqlite:///{folder}/catalog.db",
    )
    try:
        return list(duckdb_rows(bench.iceberg()))
    finally:
        bench.close()


if __name__ == "__main__":
    sys.exit(main())
