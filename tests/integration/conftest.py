"""Spark's part in a test, recorded or live, and one daemon that follows, for all integration tests."""

from __future__ import annotations

import gc
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from daemon.config.settings import Settings
from daemon.spark.hadoop import HADOOP, with_stores
from tests.conftest import S3_MODULES
from tests.kit import archive
from tests.kit.archive import Checker, Recorder, Replayed
from tests.kit.handmade import RANDOM
from tests.kit.readers import READS
from tests.kit.service import OUTCOMES, Service
from tests.kit.spark_process import SparkProcess
from tests.kit.spark_session import ONE_TASK
from tests.kit.writer import Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kit.metastores import Glue, Hive
    from tests.kit.servers import ObjectStore

LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
# PySpark leaves the sockets of collected results to the garbage collector.
TOLERATED = r"ignore:unclosed <socket\.socket:ResourceWarning"
SPARK_FIXTURES = {"spark", "s3_spark"}
WRITERS = {"replay": Replayed, "record": Recorder, "check": Checker}

# For the few tables with maintenance: few delete files, and few that are dead, are too many.
COMPACT_SOON = {
    f"daemon.maintenance.compaction.{name}": value
    for name, value in {"DELETE_FILES_MAX": 1, "DELETED_SHARE": 0.2, "DEAD_SHARE": 0.2}.items()
}


def is_live(item: pytest.Item) -> bool:
    """Whether Spark writes while the test runs. Long tests have no archives: they would be the larger half."""
    marked = any(item.get_closest_marker(name) for name in ("live", "long"))
    return marked or bool(SPARK_FIXTURES & set(getattr(item, "fixturenames", ())))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    archives = set()
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if {"service", "spark_process", *SPARK_FIXTURES} & fixtures or item.get_closest_marker("live"):
            item.add_marker("spark")
            item.add_marker(pytest.mark.filterwarnings(TOLERATED))
            if is_live(item):
                item.add_marker("live")
            elif {"service", "writer"} & fixtures:
                item.add_marker("recorded")
                archives.add(archive_of(item))
        assert "s3_spark" not in fixtures or item.path.stem in S3_MODULES, f"S3_MODULES lacks {item.path.stem}"
    if not any("::" in argument for argument in config.args):
        modules = {item.path.stem for item in items if item.path.parent == Path(__file__).parent}
        unused = [path for name in modules for path in (archive.FOLDER / name).glob("*") if path not in archives]
        if unused:
            raise pytest.UsageError(f"no test uses these archives, remove them: {', '.join(map(str, unused))}")


def archive_of(item: pytest.Item) -> Path:
    name = re.sub(r"[^-\w.,=]+", "_", item.name).strip("_")
    return archive.FOLDER / item.path.stem / f"{name}.tar.zst"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """What a writer still has to do belongs to the test."""
    yield
    if writer := getattr(item, "funcargs", {}).get("writer"):
        writer.finish()


def run_folder(config: pytest.Config, factory: pytest.TempPathFactory) -> Path:
    """One for all processes of a run."""
    return factory.getbasetemp().parent if hasattr(config, "workerinput") else factory.getbasetemp()


@pytest.fixture(scope="session")
def spark_process(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> SparkProcess:
    """Spark for all tests of a run. A test that reaches into the JVM has the fixture `spark`."""
    run = os.getppid() if hasattr(pytestconfig, "workerinput") else os.getpid()
    settings = ONE_TASK if pytestconfig.getoption("histories") == "replay" else {}
    return SparkProcess(run_folder(pytestconfig, tmp_path_factory), run, settings)


@pytest.fixture(scope="session")
def spark(spark_process: SparkProcess) -> SparkSession:
    return spark_process.session()


@pytest.fixture
def writer(request: pytest.FixtureRequest, spark_process: SparkProcess, tmp_path: Path) -> Writer:
    """Spark, which writes the Delta tables of a test: live, or as it was recorded."""
    if is_live(request.node):
        return Writer(spark_process)
    place, test = archive_of(request.node), f"{request.node.location[0]}::{request.node.name}"
    # Names that the test gives by chance are those that Spark met.
    RANDOM.seed(test)
    kind = WRITERS[request.config.getoption("histories")]
    return kind(spark_process, place, test, tmp_path)


@pytest.fixture(scope="session")
def daemon_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One `dvsync run` for every test of this process, with a Spark session and a JVM of its own."""
    made = Service(tmp_path_factory.mktemp("service"), constants=COMPACT_SOON)
    yield made
    made.stop()


@pytest.fixture
def service(
    daemon_service: Service, writer: Writer, record_property: Callable[[str, object], None]
) -> Iterator[Service]:
    """The daemon, for the tables of one test. It fails the test that makes it meet a bug of its own."""
    if not daemon_service.is_running:
        daemon_service.start()  # The test before failed while it had ended it.
    daemon_service.writer = writer
    daemon_service.daemon.lines.clear()
    read_before = Counter(READS)
    yield daemon_service
    lines = daemon_service.daemon.lines
    shown = {(line["table"], line["to_version"]) for line in lines if line["event"] in OUTCOMES}
    record_property("followed", [len(daemon_service.tables), len(shown), dict(READS - read_before)])
    daemon_service.forget()
    assert not [line for line in lines if line.get("kind") == "InternalError"]


@pytest.fixture(scope="session")
def s3_spark(spark: SparkSession, store: ObjectStore) -> SparkSession:
    """The session with what our own mapping makes of the store's properties."""
    hadoop = spark._jsc.hadoopConfiguration()
    for key, value in with_stores(Settings(storage=store.properties)).conf.items():
        if key.startswith(HADOOP):
            hadoop.set(key.removeprefix(HADOOP), value)
    # Iceberg's catalog keeps the settings that it found when a test first read a table by its path.
    spark._jsparkSession.sessionState().catalogManager().reset()
    return spark


@pytest.fixture(scope="session")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hive]:
    from tests.kit.metastores import Hive  # noqa: PLC0415 - it imports moto
    from tests.kit.servers import hive_metastore  # noqa: PLC0415

    with hive_metastore(tmp_path_factory.mktemp("hive")) as server:
        yield Hive(server.port)


@pytest.fixture(scope="session")
def hive4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hive]:
    from tests.kit.metastores import Hive  # noqa: PLC0415 - it imports moto
    from tests.kit.servers import hive_4_metastore  # noqa: PLC0415

    with hive_4_metastore(tmp_path_factory.mktemp("hive4")) as server:
        yield Hive(server.port)


@pytest.fixture(params=["hive", "glue", pytest.param("hive4", marks=pytest.mark.long)])
def metastore(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Hive | Glue:
    from tests.kit.metastores import Glue, update_table  # noqa: PLC0415 - it imports moto

    if request.param != "glue":
        found: Hive = request.getfixturevalue(request.param)
        return found
    monkeypatch.setattr("moto.glue.responses.GlueResponse.update_table", update_table)
    return Glue(request.getfixturevalue("store"))


@pytest.fixture
def quick_vacuum(writer: Writer) -> Iterator[None]:
    """VACUUM lists folders in as many tasks as it may."""
    with writer.confs({LISTING_TASKS: "1"}):
        yield


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """Commands in this process log to a stream that is closed after them."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def sockets_collected(request: pytest.FixtureRequest) -> Iterator[None]:
    """What PySpark left behind goes while its warnings are passed over, and not in a test of something else."""
    yield
    if SPARK_FIXTURES & set(request.fixturenames):
        gc.collect()
