"""dvsync on a Spark cluster: Spark's tasks run on workers that have dvsync's dependencies, but not dvsync itself."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from daemon.iceberg.catalogs import Catalogs
from daemon.maintenance.own_places import BESIDE_DATA_NAME
from tests.kit.cluster import HOST, Cluster, cluster
from tests.kit.daemons import Daemon, until
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.installed import ROOT, build_wheel, clean_environment, install, make_environment
from tests.kit.readers import read_duckdb, read_pyiceberg
from tests.kit.service import FOR_SMALL_TABLES, NO_MAINTENANCE

# Six JVMs start for it.
pytestmark = [pytest.mark.spark, pytest.mark.long]

# More than two Spark tasks take each: 500 deletion vectors, 1,000 footers (`daemon/pipeline/runner.py`).
FILES = 1_200
MORE_FILES = 1_100
SYNC_MAX_S = 150.0


@dataclass
class World:
    """A cluster of two workers, a table in a folder that all see, and the installed daemon that follows it."""

    folder: Path
    cluster: Cluster
    daemon: Daemon
    table: HandmadeTable
    configuration: dict[str, Any]

    def configure(self, **changes: Any) -> None:
        self.configuration |= changes
        self.daemon.config.write_text(json.dumps(self.configuration))

    def add_files(self, count: int) -> None:
        """Commit new files of three rows each."""
        first = len(self.table.rows)
        names = [f"{number:05d}" for number in range(first, first + count)]
        paths = [self.table.write_file([(int(name), "a", each) for each in "xyz"], name=name) for name in names]
        self.table.commit([self.table.add(path) for path in paths])

    def delete_row(self, position: int) -> None:
        """Commit the deletion of this row of every file."""
        self.table.commit(self.table.delete({path: {position} for path in list(self.table.live)}))

    def shown(self) -> Table:
        """The Iceberg table, once the daemon has synced Delta's newest version."""
        self.daemon.told("sync.advanced", to_version=self.table.version, wait_s=SYNC_MAX_S)
        return self.iceberg()

    def iceberg(self, name: str = "lake.t") -> Table:
        catalogs = Catalogs(self.configuration["catalogs"])
        try:
            return catalogs.open("local").load_table(name)
        finally:
            catalogs.close()

    def check_rows(self, table: Table) -> None:
        for read in (read_pyiceberg, read_duckdb):
            assert sorted(read(table, None)) == self.table.live_rows(), read.__name__

    def delete_files(self) -> set[Path]:
        return set((self.folder / "warehouse").rglob("*-deletes.parquet"))

    def run(self, *arguments: str, program: str = "dvsync") -> subprocess.CompletedProcess[str]:
        """A program of the environment in which dvsync is installed, with an application of its own."""
        assert self.daemon.installed
        return subprocess.run(
            [self.daemon.installed.with_name(program), *arguments],
            cwd=self.folder,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=SYNC_MAX_S,
            check=False,
        )

    def give_java(self) -> None:
        """From now on, executors can start."""
        java, home = shutil.which("java"), self.folder / "java"
        assert java
        if not home.exists():
            home.symlink_to(Path(java).resolve().parents[1])

    def task_ends(self) -> list[dict[str, Any]]:
        """The ended tasks of all applications so far, by Spark's own event logs."""
        logs = (log for log in (self.folder / "events").iterdir() if log.is_file())
        events = (json.loads(line) for log in logs for line in log.read_text().splitlines() if line.endswith("}"))
        return [event for event in events if event["Event"] == "SparkListenerTaskEnd"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("cluster")
    table = HandmadeTable(folder / "lake" / "t")
    table.create()
    (folder / "events").mkdir()
    python = make_environment(folder / "packages")
    dvsync = install(build_wheel(folder / "dist"), folder / "venv")
    with cluster(folder, workers=2) as running:
        daemon = Daemon(folder / "config.yaml", clean_environment(), installed=dvsync)
        made = World(folder, running, daemon, table, {})
        made.configure(
            spark={"master": running.master, "conf": spark_conf(folder, python)},
            maintenance=NO_MAINTENANCE,
            health={"port": 0},
            log={"format": "json"},
            state={"url": "sqlite:///state.db"},
            defaults={"poll_interval": "100ms", "engine": "spark"},
            catalogs={
                "local": {
                    "type": "sql",
                    "uri": f"sqlite:///{folder}/catalog.db",
                    "warehouse": f"file://{folder}/warehouse",
                }
            },
            tables=[{"name": "t", "source": table.location, "target": "lake.t"}],
        )
        made.add_files(FILES)
        made.delete_row(0)
        daemon.launch()
        try:
            daemon.started()
            yield made
        finally:
            daemon.kill()


def spark_conf(folder: Path, python: Path) -> dict[str, str]:
    return {
        **FOR_SMALL_TABLES,
        "spark.pyspark.python": str(python),
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.executorEnv.JAVA_HOME": str(folder / "java"),
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": FOR_SMALL_TABLES["spark.driver.extraJavaOptions"],
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


def test_nodes_without_java_are_named(world: World):
    """Executors that cannot start are Spark's trouble, each time; once they can, the next try works."""
    for times in (1, 2):
        failed = world.daemon.told("sync.failed", consecutive_errors=times, wait_s=SYNC_MAX_S)
        assert failed["kind"] == "PipelineAway", failed
    world.give_java()
    world.shown()


def test_the_first_sync_runs_on_both_workers(world: World):
    """Reading the log, inspecting files and translating deletions: no task runs in the driver."""
    world.give_java()
    world.check_rows(world.shown())
    executors = Counter(end["Task Info"]["Executor ID"] for end in world.task_ends())
    assert set(executors) == {"0", "1"}, executors
    # The executors got dvsync from the daemon: their own environment has none.
    assert len(list(world.folder.glob("worker-*/app-*/*/dvsync.zip"))) == 2
    lacking = [world.folder / "packages" / "bin" / "python", "-c", "import pyarrow, daemon"]
    tried = subprocess.run(lacking, env=clean_environment(), cwd=world.folder, capture_output=True, check=False)
    assert b"No module named 'daemon'" in tried.stderr


def test_a_large_commit_runs_on_the_workers(world: World):
    """Its added files are inspected and its deletion vectors are translated by several tasks."""
    before = len(world.task_ends())
    world.add_files(MORE_FILES)
    world.shown()
    world.delete_row(1)
    table = world.shown()
    world.check_rows(table)
    assert table.current_snapshot().summary["added-delete-files"] == str(FILES + MORE_FILES)
    ends = world.task_ends()[before:]
    assert {end["Task Info"]["Executor ID"] for end in ends} == {"0", "1"}


def test_a_killed_worker_costs_only_time(world: World):
    """Its tasks run again on the other worker. No delete file is missing, none of a killed attempt is registered."""
    before = world.delete_files()
    world.delete_row(2)
    until(lambda: world.delete_files() - before, "a delete file", wait_s=SYNC_MAX_S)
    world.cluster.kill_worker()
    table = world.shown()
    world.check_rows(table)
    lost = [end for end in world.task_ends() if end["Task End Reason"]["Reason"] == "ExecutorLostFailure"]
    assert lost, "the worker was killed when it had no task"
    shown = {Path(path).name for path in table.inspect.delete_files()["file_path"].to_pylist()}
    there = {path.name for path in world.delete_files()}
    assert shown <= there
    # The killed attempt was in the middle of one file at most, which `dvsync cleanup --scan` knows by its name.
    assert len(there - shown) <= 1
    assert all(BESIDE_DATA_NAME.fullmatch(name) for name in there), there - shown


def test_doctor_reads_the_table_on_the_cluster(world: World):
    """In an application of its own."""
    world.daemon.kill()
    answer = world.run("doctor", "t", "--config", str(world.daemon.config))
    assert answer.returncode == 0, answer.stderr
    assert f"data files: {FILES + MORE_FILES} of {FILES + MORE_FILES}" in answer.stdout


@pytest.fixture(scope="module")
def small(world: World) -> HandmadeTable:
    """A table of a few files, followed in this process and not by the daemon: programs read it on the cluster."""
    world.daemon.kill()
    world.give_java()
    table = HandmadeTable(world.folder / "lake" / "small")
    table.create()
    paths = [table.write_file([(10 * number + row, "a", "v") for row in range(10)]) for number in range(8)]
    table.commit([table.add(path) for path in paths])
    settings = {"name": "small", "source": table.location, "target": "lake.small"}
    bench = Bench(world.folder, **settings, catalog=world.configuration["catalogs"]["local"])
    bench.sync()
    for position in (1, 2):
        table.commit(table.delete({path: {position} for path in paths[:6]}))
        bench.sync()
    bench.close()
    world.configure(tables=[*world.configuration["tables"], settings])
    return table


def verify(world: World) -> tuple[int, dict[str, Any]]:
    answer = world.run("verify", "small", "--rows", "--json", "--config", str(world.daemon.config))
    assert answer.stdout, answer.stderr
    (proof,) = json.loads(answer.stdout)
    return answer.returncode, proof


def test_verify_on_the_cluster(world: World, small: HandmadeTable):
    """It proves the table right, and names the row that a wrong delete file lets through."""
    code, proof = verify(world)
    assert (code, proof["is_right"], proof.get("differences")) == (0, True, {}), proof
    assert (proof["files"], proof["rows"]) == (len(small.live), len(small.live_rows()))
    (task,) = world.iceberg("lake.small").scan(row_filter="id = 13").plan_files()
    delete_files = [Path(each.file_path.removeprefix("file://")) for each in task.delete_files]
    one, two = sorted(delete_files, key=lambda path: pq.read_table(path)["pos"].to_pylist())
    kept = two.read_bytes()
    # Row 1 is deleted twice, and row 2 is not.
    shutil.copy(one, two)
    code, proof = verify(world)
    two.write_bytes(kept)
    assert (code, proof["is_right"]) == (1, False), proof
    found = {(each["level"], each["fault"], each["path"]) for each in proof["first_differences"]}
    assert found == {(level, "deleted rows shown", task.file.file_path) for level in ("bitmaps", "rows")}
    assert [each["positions"] for each in proof["first_differences"] if each["level"] == "bitmaps"] == [[2]]


SCAN = """
import json, sys
from pathlib import Path

from daemon.config.load import load_settings
from daemon.spark.scan import read_delta
from daemon.spark.session import SparkPipeline

settings = load_settings(Path(sys.argv[1]))
pipeline = SparkPipeline(settings.spark)
with pipeline.session() as spark:
    print(json.dumps(read_delta(spark, settings.tables[-1].source).collect()))
pipeline.close()
"""


def test_programs_of_users_on_the_cluster(world: World, small: HandmadeTable):
    """Executors get the scan's Java classes, and write deletion vectors that the next scan reads."""
    before = len(world.task_ends())
    example, config = str(ROOT / "examples" / "write_deletion_vectors.py"), str(world.daemon.config)
    written = world.run(example, config, "small", "id % 3 = 0 OR id BETWEEN 20 AND 29", program="python")
    assert written.returncode == 0, written.stderr
    actions = []
    for vector in (json.loads(line) for line in written.stdout.splitlines() if line.startswith("{")):
        path = Path(vector["file"]).name
        ids = [row[0] for row in small.rows[path]]
        deleted = small.deleted[path] | {row for row, id in enumerate(ids) if id % 3 == 0 or 20 <= id < 30}
        actions.append(small.remove(path))
        assert vector["cardinality"] == len(deleted)
        if vector["descriptor"]:
            actions.append(small.add(path, deleted=deleted, descriptor=vector["descriptor"]))
    small.commit(actions)
    assert len(small.live) == 7, "one file has lost all of its rows"
    scanned = world.run("-c", SCAN, config, program="python")
    assert scanned.returncode == 0, scanned.stderr
    assert sorted(map(tuple, json.loads(scanned.stdout.splitlines()[-1]))) == small.live_rows()
    assert {end["Task Info"]["Executor ID"] for end in world.task_ends()[before:]} <= {"0", "1"}
