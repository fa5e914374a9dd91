"""dvsync as people install it: the wheel in an environment of its own, and what it says where something is missing."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from zipfile import ZipFile

import pytest

from daemon.config.settings import SparkSettings
from daemon.errors import PipelineAway
from daemon.spark import jars as spark_jars
from daemon.spark.jars import DELTA_JAR, check_jars, check_pipeline, check_session
from daemon.spark.resolved_jars import PACKAGES, remember_resolved_jars, with_resolved_jars
from tests.kit.daemons import daemon
from tests.kit.forking import run_forked
from tests.kit.handmade import HandmadeTable
from tests.kit.installed import ROOT, build_wheel, clean_environment, install
from tests.unit.service.test_systemd import java_that_says

# No repository answers there, and none refuses slowly.
NO_NETWORK = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={port}"
# From the start of the command to its message; Spark's JVM takes most of it.
SOON_S = 60


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def dvsync(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed command."""
    return install(wheel, tmp_path_factory.mktemp("venv"))


def ask(
    command: Path, *arguments: str | Path, folder: Path, environment: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    return subprocess.run(
        [command, *arguments],
        cwd=folder,
        env=clean_environment(environment),
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
    )


def test_the_wheel_holds_what_is_not_python(wheel: Path):
    """Every file of both packages but what an interpreter leaves behind."""
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    there = (path for package in ("daemon", "state") for path in (ROOT / package).rglob("*") if path.is_file())
    assert packed == {path.relative_to(ROOT).as_posix() for path in there if "__pycache__" not in path.parts}
    assert {"daemon/web/templates/base.html", "state/migrations/versions/0001_first_schema.py"} <= packed


def test_the_installed_command_works_anywhere(dvsync: Path, tmp_path: Path):
    """Its version, the example configuration, and a state database made by the migrations that are in the wheel."""
    assert ask(dvsync, "--version", folder=tmp_path).stdout.startswith("dvsync 0.")
    where = ask(dvsync.with_name("python"), "-c", "import daemon; print(daemon.__file__)", folder=tmp_path)
    assert where.stdout.startswith(str(dvsync.parents[1]))
    checked = ask(dvsync, "config", "check", "--config", ROOT / "config.yaml", folder=tmp_path)
    assert (checked.returncode, "the configuration is valid" in checked.stdout) == (0, True), checked.stderr
    (tmp_path / "config.yaml").write_text(CONFIG)
    status = ask(dvsync, "status", "--json", folder=tmp_path)
    assert [each["state"] for each in json.loads(status.stdout)] == ["waiting", "waiting"]
    paused = ask(dvsync, "pause", "db.new", folder=tmp_path)
    assert (paused.returncode, (tmp_path / "var" / "dvsync.db").exists()) == (0, True), paused.stderr


def test_beside_python_daemon_nothing_starts(wheel: Path, tmp_path: Path):
    """By this file of its `daemon`, which no order of installation overwrites."""
    command = install(wheel, tmp_path)
    (folder,) = tmp_path.glob("lib/python3.*/site-packages/daemon")
    (folder / "daemon.py").touch()
    refused = ask(command, "--version", folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"python-daemon is installed in {folder}, too")


CONFIG = """
catalogs: {local: {type: sql, uri: "sqlite:///var/catalog.db", warehouse: var/warehouse}}
spark: {conf: {spark.jars.ivy: ivy}}
health: {port: 0}
defaults: {engine: spark}
log: {format: json}
tables:
- {source: data/new, target: db.new, poll_interval: 1s}
- {source: data/away, target: db.away}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration, a Delta table that was never synced, and an Ivy home in which nothing is."""
    HandmadeTable(tmp_path / "data" / "new").create()
    (tmp_path / "config.yaml").write_text(CONFIG.replace("ivy: ivy", f"ivy: {tmp_path / 'ivy'}"))
    return tmp_path


@pytest.fixture
def no_network() -> Iterator[dict[str, str]]:
    """Java asks a proxy at a port of this machine where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield {"JAVA_TOOL_OPTIONS": NO_NETWORK.format(port=held.getsockname()[1])}


def test_setup_says_which_jar_it_could_not_get_from_where(dvsync: Path, folder: Path, no_network: dict[str, str]):
    """And what to do, within a minute; exit code 1."""
    result = ask(dvsync, "setup", folder=folder, environment=no_network)
    assert result.returncode == 1
    message, hint = result.stderr.splitlines()[-2:]
    for told in (DELTA_JAR, str(folder / "ivy" / "cache"), "https://repo1.maven.org", "Connection refused"):
        assert told in message, result.stderr
    assert "Run `dvsync setup` once with network access" in hint


@pytest.mark.long
def test_sync_fails_the_table_that_needs_the_jar(dvsync: Path, folder: Path, no_network: dict[str, str]):
    """The other one gets its turn; exit code 1."""
    result = ask(dvsync, "sync", folder=folder, environment=no_network)
    assert result.returncode == 1
    assert f"db.new: PipelineAway: jars for Spark are missing: {DELTA_JAR} not found in" in result.stdout
    missing = f"no Delta table has been seen at file://{folder}/data/away yet; check the path, or wait for the table"
    assert f"db.away: {missing}\n" in result.stdout


@contextmanager
def running(
    command: Path, folder: Path, environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], Iterator[dict[str, str]]]]:
    """`dvsync run` with the lines of its log, as they come."""
    process = subprocess.Popen(
        [command, "run"], cwd=folder, env=clean_environment(environment), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        yield process, map(json.loads, process.stdout)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
def test_run_goes_on_without_the_jar_and_says_so(dvsync: Path, folder: Path, no_network: dict[str, str]):
    """A warning at the start, the table's error when Spark is needed, and SIGTERM still ends it with exit code 0."""
    with running(dvsync, folder, no_network) as (process, lines):
        missing = next(line for line in lines if line["event"] == "pipeline.missing")
        assert missing["reason"].startswith(f"{DELTA_JAR} is not in {folder / 'ivy' / 'jars'}")
        failed = next(line for line in lines if line["event"] == "sync.failed")
        assert (failed["table"], failed["kind"]) == ("db.new", "PipelineAway")
        process.terminate()
        assert process.wait(15) == 0


def test_an_older_java_is_told(folder: Path):
    """Where JAVA_HOME leads to it, with what is needed instead."""
    java_that_says(folder / "java", 'openjdk version "11.0.2" 2019-01-15')
    result = run_forked(["setup"], folder=folder, environment=clean_environment({"JAVA_HOME": str(folder / "java")}))
    assert (result.returncode, "Install Java 17" in result.stderr) == (1, True)
    assert f"{folder}/java/bin/java is Java 11, and Spark needs 17 or newer" in result.stderr


def test_no_java_is_told(folder: Path):
    """By `setup`, for the table by `sync`, and as a warning by `run`, which goes on."""
    environment = clean_environment({"PATH": str(folder), "JAVA_HOME": ""})
    message = "there is no Java on PATH, and Spark needs one"
    setup = run_forked(["setup"], folder=folder, environment=environment)
    assert (setup.returncode, message in setup.stderr, "Install Java 17" in setup.stderr) == (1, True, True)
    sync = run_forked(["sync", "db.new"], folder=folder, environment=environment)
    assert (sync.returncode, f"db.new: PipelineAway: {message}" in sync.stdout) == (1, True)
    with daemon(folder / "config.yaml", environment) as running_daemon:
        assert running_daemon.told("pipeline.missing")["reason"] == message


# --- what does not go together ---


def test_another_pyspark_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another version of the package, or none, before anything starts."""
    metadata = tmp_path / "pyspark-4.0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark\nVersion: 4.0.1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(PipelineAway, match=r"needs pyspark 4\.1, and this is installed: 4\.0\.1"):
        check_pipeline(SparkSettings())
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(PipelineAway, match="PySpark is not installed"):
        check_pipeline(SparkSettings())


def test_another_spark_or_delta_is_refused_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By SPARK_HOME and by spark.jars.packages; the right one of each is accepted."""
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "spark-core_2.12-3.5.4.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(jars.parent))
    with pytest.raises(PipelineAway, match=r"SPARK_HOME \(.*\) is not Spark 4\.1"):
        check_pipeline(SparkSettings())
    (jars / "spark-core_2.13-4.1.1.jar").touch()
    assert check_pipeline(SparkSettings(conf={"spark.jars.packages": f"a:b:1,{DELTA_JAR}"})) >= 17
    other = "io.delta:delta-spark_4.0_2.13:4.0.0"
    with pytest.raises(PipelineAway, match=f"names {other}, but dvsync needs {DELTA_JAR}"):
        check_pipeline(SparkSettings(conf={"spark.jars.packages": f"a:b:1,{other}"}))


def test_jars_are_looked_for_where_spark_keeps_them(tmp_path: Path):
    """Nothing is asked of someone who brings jars or repositories of his own."""
    with pytest.raises(PipelineAway, match=f"{DELTA_JAR} is not in {tmp_path}/jars"):
        check_jars(SparkSettings(conf={"spark.jars.ivy": str(tmp_path)}))
    for conf in ({"spark.jars": "/opt/delta-spark.jar"}, {"spark.jars.ivySettings": "/etc/ivy.xml"}):
        check_jars(SparkSettings(conf={"spark.jars.ivy": str(tmp_path), **conf}))


def test_the_delta_that_spark_loaded_is_looked_at(spark, monkeypatch: pytest.MonkeyPatch):
    """It passes as it is, its jar is where it is looked for, and another one would be refused."""
    check_session(spark)
    check_jars(SparkSettings())
    monkeypatch.setattr(spark_jars, "DELTA_VERSION", "4.0.0")
    with pytest.raises(PipelineAway, match=r"with Delta 4\.4\.0 was started, but dvsync needs 4\.1 and 4\.0\.0"):
        check_session(spark)


def test_jars_that_are_known_are_not_resolved_again(spark, tmp_path: Path):
    """Those of the same packages, as long as each is there, and unless their versions may change."""
    conf = {"spark.jars": "/own.jar", "spark.jars.ivy": str(tmp_path), PACKAGES: f"{DELTA_JAR},a:b:1.0"}
    assert with_resolved_jars(conf) == conf
    remember_resolved_jars(conf, spark)
    own, *jars = with_resolved_jars(conf)["spark.jars"].split(",")
    assert with_resolved_jars(conf) == {"spark.jars": ",".join([own, *jars]), "spark.jars.ivy": str(tmp_path)}
    assert own == "/own.jar" and all(Path(jar.removeprefix("local:")).is_file() for jar in jars)
    assert any("io.delta_delta-spark" in jar for jar in jars)
    for others in ({PACKAGES: DELTA_JAR}, {"spark.jars.excludes": "c:d"}, {"spark.jars.repositories": "https://a"}):
        assert with_resolved_jars(conf | others) == conf | others
    (record,) = tmp_path.iterdir()
    record.write_text(f"{record.read_text()}{tmp_path / 'gone.jar'}\n")
    assert with_resolved_jars(conf) == conf
    record.unlink()
    for version in ("1.0-SNAPSHOT", "latest.release", "1.+", "[1.0,2.0)"):
        remember_resolved_jars({**conf, PACKAGES: f"{DELTA_JAR},a:b:{version}"}, spark)
    assert list(tmp_path.iterdir()) == []
