"""Broken tables are parked at once with Delta's reason, at the first sync and while followed, by a real daemon.

Also: `dvsync sync` and `dvsync doctor` say the same, a mended table goes on, and what dvsync tells by itself while it
follows is held against Delta and Java.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from py4j.protocol import Py4JJavaError, get_return_value
from pyspark.sql import SparkSession

from daemon.cli.operations import examine_tables
from daemon.clock import SystemClock
from daemon.config.load import load_settings
from daemon.delta.actions import Metadata, Protocol
from daemon.delta.features import (
    FEATURES,
    SWITCHES,
    Decision,
    check_features,
    check_protocol,
    is_readable,
    used_features,
)
from daemon.delta.log import DeltaLog
from daemon.delta.uri import find_uri_fault
from daemon.doctor.diagnosis import Diagnosis
from daemon.errors import CommitIncomplete, CorruptInput, ObjectMissing, SyncError, Unsupported
from daemon.spark.failures import HINT_OF, KINDS
from daemon.spark.table_state import read_table_state
from daemon.store.storage import FileIOStorage
from tests.kit.broken_logs import FAULTS, append, checkpoint, healthy
from tests.kit.daemons import Daemon, until
from tests.kit.handmade import COLUMNS, HandmadeTable
from tests.kit.invoke import invoke
from tests.kit.spark_session import FOR_SMALL_TABLES

pytestmark = pytest.mark.spark
# One JVM starts, and all the tables below take their turns on a small machine.
WAIT_S = 600.0
# At its first sync, each is read by dvsync with the help of Delta on Spark, and by dvsync alone.
AT_FIRST = {
    f"{stage}.{name}": fault for stage in ("first", "local") for name, fault in FAULTS.items() if fault.at_first
}
FOLLOWED = {f"followed.{name}": fault for name, fault in FAULTS.items() if fault.while_following}
HEALTHY = ("healthy.one", "healthy.cut")
# Of each way to be found, one that is mended.
MENDED = (
    *("first.cut", "first.no-protocol", "first.colon-in-path", "first.catalog-managed"),
    *("local.checkpoint-cut", "local.checkpoint-gone", "local.space-in-path"),
    *("followed.gap", "followed.empty", "followed.checkpoint-without-metadata", "followed.property-without-feature"),
)
# Delta on Spark takes its second for each, and mostly names them in one way.
FEW = {*MENDED, "first.checkpoint-gone", *(name for number, name in enumerate(AT_FIRST) if number % 4 == 0)}
LONG = [name for name in AT_FIRST if name.startswith("first.") and name not in FEW]
CONFIG = """
state: {{url: "sqlite:///{folder}/state.db"}}
catalogs: {{local: {{type: sql, uri: "sqlite:///{folder}/catalog.db", warehouse: "{folder}/warehouse"}}}}
health: {{port: 0}}
log: {{format: json}}
defaults: {{poll_interval: 1s}}
spark: {{master: "local[2]", conf: {conf}}}
tables:
"""


@dataclass
class World:
    """The daemon, its tables by name, and a copy of each log from before it was broken."""

    folder: Path
    daemon: Daemon
    tables: dict[str, HandmadeTable]
    errors: dict[str, dict[str, Any]]

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    def break_table(self, name: str) -> None:
        table, fault = self.tables[name], (AT_FIRST | FOLLOWED)[name]
        shutil.copytree(table.folder, self.copy_of(name))
        fault.breaks(table)

    def copy_of(self, name: str) -> Path:
        return self.folder / "copies" / name

    def mend(self, name: str) -> int:
        """The log as it was, and one more commit in place of what was broken."""
        table, log = self.tables[name], self.copy_of(name) / "_delta_log"
        shutil.rmtree(table.folder / "_delta_log")
        shutil.copytree(log, table.folder / "_delta_log")
        table.version = max(int(path.stem) for path in log.glob("*.json"))
        return append(table)

    def statuses(self) -> dict[str, dict[str, Any]]:
        return self.daemon.tables()

    def until_state(self, names: set[str], state: str) -> None:
        def others() -> dict[str, Any]:
            seen = self.statuses()
            told = {name: (seen.get(name, {}).get("state"), seen.get(name, {}).get("error")) for name in names}
            return {name: each for name, each in told.items() if each[0] != state}

        try:
            until(lambda: not others(), f"{len(names)} tables {state}", wait_s=WAIT_S)
        except AssertionError:
            raise AssertionError(f"not {state}: {others()}") from None
        self.errors |= {name: status["error"] for name, status in self.statuses().items() if status["error"]}


def write_config(folder: Path, tables: dict[str, HandmadeTable]) -> Path:
    listed = [
        f"- {{source: {json.dumps(str(table.folder))}, target: {name.replace('-', '_')}, name: {name},"
        f" engine: {'local' if name.startswith('local.') else 'auto'}}}\n"
        for name, table in tables.items()
    ]
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(folder=folder, conf=json.dumps(FOR_SMALL_TABLES)) + "".join(listed))
    return config


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[World]:
    """Faults at the first sync; then, once all else is in step, every fault while it is followed."""
    folder = tmp_path_factory.mktemp("broken")
    has_long = any(item.get_closest_marker("long") for item in request.session.items)
    at_first = [name for name in AT_FIRST if has_long or name not in LONG]
    tables = {name: healthy(folder / "lake" / name) for name in (*at_first, *FOLLOWED, *HEALTHY)}
    made = World(folder, Daemon(write_config(folder, tables)), tables, {})
    for name in at_first:
        made.break_table(name)
    # A handmade checkpoint that lacks nothing is no fault.
    checkpoint([], tables["healthy.cut"])
    try:
        made.daemon.launch()
        made.daemon.started()
        made.until_state(set(at_first), "parked")
        made.until_state({*FOLLOWED, *HEALTHY}, "synced")
        # Each fault is there at once: a commit that goes away while it is read is another fault than the one meant.
        made.daemon.signal(signal.SIGSTOP)
        for name in FOLLOWED:
            made.break_table(name)
        made.daemon.signal(signal.SIGCONT)
        made.until_state(set(FOLLOWED), "parked")
        yield made
    finally:
        made.daemon.kill()


def assert_told(error: dict[str, Any], kind: str, says: str) -> None:
    """The kind, the reason and what to do; in a line, without a stack or a class of an exception's package."""
    assert error["kind"] == kind, error
    assert re.search(says, error["message"]), error
    assert len(error["message"]) < 800, error
    assert not re.search(r"\n|\tat |org\.apache\.spark\.sql\.delta|java\.lang", error["message"]), error
    assert error["hint"].endswith("."), error
    # A second try is for a newer version than the one at fault: after a gap, there is one at once.
    assert error["consecutive"] <= 2, error


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in AT_FIRST]
)
def test_broken_at_its_first_sync(world: World, name: str) -> None:
    """Parked, without an Iceberg table, with the reason and what to do."""
    fault, status = AT_FIRST[name], world.statuses()[name]
    alone = name.startswith("local.")
    assert_told(world.errors[name], fault.kind, (alone and (fault.local_says or fault.follows_says)) or fault.says)
    if name not in MENDED:
        assert (status["state"], status["synced_version"], status["snapshot_id"]) == ("parked", None, None)


@pytest.mark.parametrize("name", FOLLOWED)
def test_broken_while_it_is_followed(world: World, name: str) -> None:
    """Parked; the Iceberg table stays at the last version that could be read."""
    fault, status = FOLLOWED[name], world.statuses()[name]
    assert_told(world.errors[name], fault.kind, fault.follows_says or fault.says)
    if name not in MENDED:
        assert (status["state"], status["synced_version"]) == ("parked", 3)


def test_the_same_commit_is_named_at_first_and_later(world: World) -> None:
    """The version at fault is the same, but where Delta and the listing meet different ends of what is missing."""
    names = [name for name, fault in FAULTS.items() if fault.at_first and fault.while_following]
    stages = ("first", "local", "followed")
    known = [name for name in names if f"first.{name}" in world.errors]
    versions = {name: [world.errors[f"{stage}.{name}"]["version"] for stage in stages] for name in known}
    assert {name: found for name, found in versions.items() if len(set(found)) > 1} == {"checkpoint-gone": [4, 3, 4]}


def test_nothing_else_is_touched(world: World) -> None:
    """The other tables go on, no broken one is tried again, and dvsync takes none of it for a bug of its own."""
    for name in HEALTHY:
        world.daemon.synced_to(name, append(world.tables[name]))
    assert [name for name, status in world.statuses().items() if status["state"] == "retrying"] == []
    failed = [line for line in world.daemon.lines if line["event"] in ("sync.failed", "table.parked")]
    assert {line["kind"] for line in failed} == {"CorruptInput", "Unsupported"}
    assert {line["table"] for line in failed if line["event"] == "sync.failed"} == set()
    assert {line["table"] for line in failed} == world.tables.keys() - {*HEALTHY}


def test_mended_tables_go_on_once_they_are_resumed(world: World) -> None:
    """The log is put right, `dvsync resume` is said to the running daemon, and the table is in step again.

    Or before it: a mended log that has a newer version than the one at fault is tried at once.
    """
    newest = {name: world.mend(name) for name in MENDED}
    for name in MENDED:
        result = invoke(["resume", name, "--config", str(world.config)])
        assert result.exit_code == 0, result.output

    def others() -> dict[str, Any]:
        seen = world.statuses()
        told = {name: (seen[name]["synced_version"], seen[name]["state"]) for name in MENDED}
        return {name: each for name, each in told.items() if each != (newest[name], "synced")}

    until(lambda: not others(), f"{len(MENDED)} tables synced", wait_s=WAIT_S)


@pytest.mark.parametrize("share", [5, pytest.param(1, id="all", marks=pytest.mark.long)])
def test_sync_and_doctor_say_the_same(spark: SparkSession, world: World, tmp_path: Path, share: int) -> None:
    """What the daemon has parked, `dvsync sync` refuses for the same reason, and `dvsync doctor` before either."""
    names = [name for name in AT_FIRST if name in world.tables and name not in MENDED][::share]
    broken = {name: world.tables[name] for name in names}
    config = write_config(tmp_path, broken)
    synced = invoke(["sync", "--config", str(config)])
    assert synced.exit_code == 1
    settings = load_settings(config)
    for table, diagnosis in examine_tables(settings, settings.tables):
        name, error = table.name, world.errors[table.name]
        assert f"{name}: {error['kind']}: {error['message']}" in synced.output, synced.output
        assert isinstance(diagnosis, Diagnosis) and not diagnosis.is_followed
        refused = [finding for finding in diagnosis.findings if finding.hint]
        told = error["message"].partition(" [")[0]
        assert any(" ".join(finding.text.split()).startswith(told) for finding in refused), (told, refused)
        # The doctor's table may be in no configuration, so its commands have no name.
        hints = {CorruptInput("", hint=finding.hint or "").located(table=name).hint for finding in refused}
        assert error["hint"] in hints


# --- what dvsync tells by itself, held against Delta and Java ---


def state_error(spark: SparkSession, table: HandmadeTable) -> SyncError | None:
    try:
        read_table_state(spark, DeltaLog(FileIOStorage(), table.location, SystemClock()))
    except SyncError as error:
        return error
    return None


@pytest.mark.parametrize("change", [lambda data: data[:-20], lambda data: b""], ids=["cut", "empty"])
def test_a_first_sync_waits_for_a_commit_that_is_being_written(
    spark: SparkSession, tmp_path: Path, change: Any
) -> None:
    """A fresh commit file that is cut or empty is waited for, as while following; Delta would fail, or pass over it."""
    table = healthy(tmp_path / "t")
    file = table.commit_path(table.version)
    file.write_bytes(change(file.read_bytes()))
    error = state_error(spark, table)
    assert isinstance(error, CommitIncomplete), error
    assert (error.version, error.path) == (3, f"{table.location}/_delta_log/{file.name}")


def test_a_missing_sidecar_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    """A file that a checkpoint names is missing like a data file: it may come back, and is named."""
    folder = tmp_path / "t"
    spark.sql(f"CREATE TABLE delta.`{folder}` (id INT) USING delta TBLPROPERTIES ('delta.checkpointPolicy' = 'v2')")
    spark.sql(f"INSERT INTO delta.`{folder}` VALUES (1)")
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(folder)).checkpoint()
    for file in (folder / "_delta_log" / "_sidecars").glob("*.parquet"):
        file.unlink()
    log = DeltaLog(FileIOStorage(), f"file://{folder}", SystemClock())
    with pytest.raises(ObjectMissing, match="does not exist") as raised:
        read_table_state(spark, log)
    assert raised.value.path
    assert raised.value.path.startswith(f"{log.folder}/_sidecars/")


def test_paths_are_refused_as_by_java(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """`java.net.URI` and Hadoop's `Path`, as Delta calls them, refuse the very paths that are refused here."""
    jvm: Any = spark._jvm
    # Py4J asks the JVM for each part of a class's name, and the JVM looks for a class of that name in all jars. PySpark
    # does so ten times for each error.
    hadoop_path, uri = jvm.org.apache.hadoop.fs.Path, jvm.java.net.URI
    monkeypatch.setattr("py4j.java_gateway.get_return_value", get_return_value)
    signs = [*"ab1:/?#%[]{} .@é+-&;~|\\^\"<>`$,=!*'()_", "\u00a0", "\u2028", "\x85", "\x7f", "\t", "\u200b", "日"]
    words = [
        "%20",
        "%3A",
        "%2",
        "time=10:00",
        "//",
        "../",
        "./",
        "file:///",
        "file:/",
        "s3://b/",
        "s3:",
        "http://u@h:80/",
    ]
    choose = random.Random(20_04)
    differing = []
    for _ in range(4_000):
        path = "".join(choose.choice(signs + words) for _ in range(choose.randint(0, 6)))
        try:
            place = hadoop_path(uri(path))
            place.isAbsoluteAndSchemeAuthorityNull()
            is_read = place.toUri().toString() != ""
        except Py4JJavaError:
            is_read = False
        if is_read != (find_uri_fault(path) is None):
            differing.append((path, is_read))
    assert differing == []


# Not of Delta on Spark: of its tests, of its kernels and of its earlier versions.
NOT_OF_DELTA_ON_SPARK = {
    *("catalogOwned-preview", "collations", "collations-preview", "icebergWriterCompatV1", "icebergWriterCompatV3"),
    *("redirectReaderWriter-preview", "redirectWriterOnly-preview", "timestampWithoutTimezone"),
}


def test_the_features_are_those_of_delta(spark: SparkSession, tmp_path: Path) -> None:
    """Each feature that Delta knows has a decision, which compatibility.md tells; Delta reads what may be listed.

    A name that is missing here is a feature of a new Delta: read in PROTOCOL.md what it asks of readers.
    """
    jvm: Any = spark._jvm
    companion = getattr(getattr(jvm.org.apache.spark.sql.delta, "TableFeature$"), "MODULE$")
    known = jvm.scala.jdk.javaapi.CollectionConverters.asJava(companion.allSupportedFeaturesMap()).values()
    # Depends on the session that is active.
    of_delta = {"adaptiveMetadata-preview": True}
    of_delta |= {feature.name(): feature.isReaderWriterFeature() for feature in known}
    ours = {name: feature.of_readers for name, feature in FEATURES.items() if name not in NOT_OF_DELTA_ON_SPARK}
    assert of_delta == ours
    table = HandmadeTable(tmp_path / "t")
    table.create()
    names = [name for name in ours if FEATURES[name].decision not in (Decision.REFUSED, Decision.BY_CATALOG)]
    readers = [name for name in names if is_readable(name)]
    table.commit([{"protocol": {**table.protocol(readers), "writerFeatures": names}}])
    assert state_error(spark, table) is None
    table.commit([{"protocol": table.protocol(["deletionVectors", "timestampWithoutTimezone"])}])
    refused = state_error(spark, table)
    assert isinstance(refused, Unsupported)
    assert "`engine: local`" in refused.hint


LONG = {"name": "x", "type": "long", "nullable": True, "metadata": {}}
MARKS: dict[str, dict[str, Any]] = {
    "ntz": {**LONG, "type": "timestamp_ntz"},
    "variant": {**LONG, "type": "variant"},
    "generated": {**LONG, "metadata": {"delta.generationExpression": "id + 1"}},
    "not-null": {**LONG, "nullable": False},
    "invariant": {**LONG, "metadata": {"delta.invariants": '{"expression":{"expression":"x > 3"}}'}},
    "default": {**LONG, "metadata": {"CURRENT_DEFAULT": "7", "EXISTS_DEFAULT": "7"}},
}
LISTS: dict[str, tuple[list[str], list[str]]] = {
    "nothing": ([], []),
    "all": (
        ["deletionVectors", "columnMapping", "v2Checkpoint", "typeWidening", "timestampNtz", "variantType"],
        [
            *("deletionVectors", "columnMapping", "v2Checkpoint", "typeWidening", "timestampNtz", "appendOnly"),
            "variantType",
            *("changeDataFeed", "inCommitTimestamp", "rowTracking", "domainMetadata", "checkConstraints", "invariants"),
            *("generatedColumns", "icebergCompatV1", "icebergCompatV2", "icebergCompatV3", "variantShredding-preview"),
        ],
    ),
}


# Nothing is refused where all is listed.
@pytest.mark.parametrize("listed", ["nothing", pytest.param("all", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("properties", "marks"),
    [
        *(({key: "true"}, []) for key in SWITCHES),
        (dict.fromkeys(SWITCHES, "false"), []),
        ({"delta.enableDeletionVectors": "yes"}, []),
        ({"delta.checkpointPolicy": "v2"}, []),
        ({"delta.checkpointPolicy": "V2"}, []),
        ({"delta.constraints.positive": "id > 0"}, []),
        *(({}, [mark]) for mark in MARKS),
    ],
)
def test_features_fit_as_they_do_for_delta(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str], marks: list[str], listed: str
) -> None:
    """Each use of a feature, with and without its name in the protocol, gives the verdict that Delta gives."""
    table = HandmadeTable(tmp_path / "t")
    readers, writers = LISTS[listed]
    protocol = {**table.protocol(), "readerFeatures": readers, "writerFeatures": writers}
    schema = json.loads(table.metadata(COLUMNS)["schemaString"])
    schema["fields"] += [MARKS[mark] for mark in marks]
    metadata = {**table.metadata(), "schemaString": json.dumps(schema), "configuration": properties}
    (table.folder / "_delta_log").mkdir(parents=True)
    info = {"operation": "CREATE TABLE", "timestamp": 1, "inCommitTimestamp": 1}
    lines = [{"commitInfo": info}, {"protocol": protocol}, {"metaData": metadata}]
    table.commit_path(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        check_protocol(msgspec.convert(protocol, Protocol))
        check_features(msgspec.convert(protocol, Protocol), used_features(msgspec.convert(metadata, Metadata)))
        ours = None
    except CorruptInput as error:
        ours = error
    deltas = state_error(spark, table)
    assert (ours is None) == (deltas is None), (ours, deltas)
    if ours is not None:
        assert isinstance(deltas, CorruptInput)
        assert deltas.message.startswith(ours.message)


def test_the_classes_are_deltas_own(spark: SparkSession) -> None:
    """Each error class of the table is one that the Delta in use knows."""
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    stream = loader.getResourceAsStream("error/delta-error-classes.json")
    known = json.loads(bytes(stream.readAllBytes()))
    stream.close()
    assert {*KINDS, *HINT_OF} - known.keys() == set()
