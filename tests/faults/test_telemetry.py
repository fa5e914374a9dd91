"""Traces, metrics and lineage, as receivers on loopback get them from daemons; and receivers that do not work."""

from __future__ import annotations

import getpass
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import facet_v2
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client.parser import text_string_to_metric_families
from pyiceberg.catalog.sql import SqlCatalog

from tests.kit.daemons import Daemon, command, daemon, set_constants, until, write_config
from tests.kit.foreign import delete_in_iceberg
from tests.kit.handmade import COLUMNS, Bench, HandmadeTable, sql_catalog
from tests.kit.receiver import Receiver, receiver

TOKEN = "a-secret-of-the-receiver"
BROKEN = {"protocol": {"minReaderVersion": 9, "minWriterVersion": 9}}
STEPS_OF_A_COMMIT = ["inspect", "translate", "prepare", "commit", "record"]
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass
class World:
    """A followed table in a folder, and what is configured beside it."""

    folder: Path

    def __post_init__(self) -> None:
        self.table = HandmadeTable(self.folder / "lake" / "orders")
        self.table.create()
        self.path = self.table.write_file([(1, "a", "x"), (2, "a", "y")])
        self.table.commit([self.table.add(self.path)])

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    def configure(self, **sections: Any) -> None:
        (self.folder / "token").write_text(f"Bearer {TOKEN}")
        tables = [{"name": "orders", "source": "lake/orders", "target": "lake.orders"}]
        write_config(self.config, **{"tables": tables, **sections})

    def delete(self, position: int) -> int:
        """Commit one more deleted row. Returns the version."""
        deleted = self.table.deleted[self.path] | {position}
        return self.table.commit(
            [self.table.remove(self.path), self.table.add(self.path, deleted=deleted)], operation="DELETE"
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


def otel(endpoint: str, **variables: object) -> dict[str, str]:
    """The environment of a daemon that sends telemetry to `endpoint`."""
    variables = {"EXPORTER_OTLP_ENDPOINT": endpoint, **variables}
    return {**os.environ, **{f"OTEL_{name}": str(value) for name, value in variables.items()}}


def values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@dataclass
class Trace:
    """The spans of one trace. `children` are in the order of their beginnings."""

    spans: list[Span]

    @property
    def root(self) -> Span:
        return next(span for span in self.spans if not span.parent_span_id)

    @property
    def attributes(self) -> dict[str, Any]:
        return values(self.root.attributes)

    def children(self, parent: Span) -> list[Span]:
        found = [span for span in self.spans if span.parent_span_id == parent.span_id]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def names(self, parent: Span) -> list[str]:
        return [span.name for span in self.children(parent)]


def traces(server: Receiver) -> list[Trace]:
    """All traces with a root, in the order of their beginnings."""
    by_id: dict[bytes, list[Span]] = {}
    for request in server.taken.get("/v1/traces", []):
        for span in request.resource_spans[0].scope_spans[0].spans:
            by_id.setdefault(span.trace_id, []).append(span)
    found = [Trace(spans) for spans in by_id.values() if any(not span.parent_span_id for span in spans)]
    return sorted(found, key=lambda each: each.root.start_time_unix_nano)


def trace_of(server: Receiver, name: str, **attributes: Any) -> Trace:
    wanted = {f"dvsync.{key}": value for key, value in attributes.items()}.items()
    return until(
        lambda: next(
            (each for each in traces(server) if each.root.name == name and wanted <= each.attributes.items()), 0
        ),
        f"the trace {name} {attributes}",
    )


def sent_series(request: Any) -> Series:
    """What one OTLP request has, as Prometheus writes it."""
    series: Series = {}

    def put(name: str, labels: Mapping[str, str], value: float) -> None:
        series[name, frozenset(labels.items())] = value

    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        for point in (*metric.gauge.data_points, *metric.sum.data_points):
            put(metric.name, values(point.attributes), point.as_double)
        assert metric.sum.is_monotonic == metric.name.endswith("_total")
        for point in metric.histogram.data_points:
            labels = values(point.attributes)
            put(f"{metric.name}_sum", labels, point.sum)
            put(f"{metric.name}_count", labels, point.count)
            bounds = [*map(repr, point.explicit_bounds), "+Inf"]
            for bound, count in zip(bounds, accumulate(point.bucket_counts), strict=True):
                put(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    return series


def scraped_series(running: Daemon) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(running.fetch("/metrics"))
        for sample in family.samples
    }


def ours(series: Series) -> Series:
    """Without the process's own and the ages, which change from one look to the next."""
    return {
        key: value
        for key, value in series.items()
        if key[0].startswith("dvsync_") and key[0] != "dvsync_written_oldest_seconds"
    }


def check_metrics(running: Daemon, server: Receiver) -> None:
    """What comes between two looks at a daemon at rest is what both see."""

    def has_the_same() -> bool:
        before, number = ours(scraped_series(running)), len(server.taken.get("/v1/metrics", []))
        request = until(lambda: server.taken.get("/v1/metrics", [])[number:], "the next metrics")[0]
        if before != ours(scraped_series(running)):
            return False
        sent = sent_series(request)
        assert ours(sent) == before
        assert {name for name, _ in sent} == {name for name, _ in scraped_series(running)}
        return True

    until(has_the_same, "a daemon at rest")


def events(server: Receiver) -> list[dict[str, Any]]:
    return server.taken.get("/lineage", [])


def checked(event: dict[str, Any]) -> RunEvent:
    """The event by OpenLineage's own classes, which refuse unknown keys, missing ones and wrong times and ids."""

    def facets_of(given: Mapping[str, Any]) -> dict[str, Any]:
        return {key: facet_of(facet) for key, facet in given.items()}

    def facet_of(facet: Mapping[str, Any]) -> Any:
        name = facet["_schemaURL"].rpartition("/")[2]
        modules = (getattr(facet_v2, each) for each in facet_v2.__all__ if each.islower())
        made = next(getattr(each, name) for each in modules if hasattr(each, name))(
            **{key.removeprefix("_"): value for key, value in facet.items() if key != "_schemaURL"}
        )
        assert made._schemaURL == facet["_schemaURL"]
        return made

    def dataset(kind: Any, given: Mapping[str, Any]) -> Any:
        return kind(
            **{key: facets_of(value) if key.lower().endswith("facets") else value for key, value in given.items()}
        )

    made = RunEvent(
        eventTime=event["eventTime"],
        eventType=event["eventType"],
        producer=event["producer"],
        run=Run(event["run"]["runId"], facets_of(event["run"]["facets"])),
        job=Job(event["job"]["namespace"], event["job"]["name"], facets_of(event["job"]["facets"])),
        inputs=[dataset(InputDataset, each) for each in event["inputs"]],
        outputs=[dataset(OutputDataset, each) for each in event["outputs"]],
    )
    assert made.schemaURL == event["schemaURL"]
    return made


def test_a_collector_gets_the_work_by_step(world: World, server: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of polls that find nothing. No secret is told anywhere."""
    constants = {"DELETE_FILES_MAX": 1, "DELETED_SHARE": 1}
    set_constants(monkeypatch, {f"daemon.maintenance.compaction.{name}": value for name, value in constants.items()})
    world.configure(maintenance={"interval": "1s"}, verify={"period": "2s"})
    environment = otel(
        f"{server.url}/",
        EXPORTER_OTLP_HEADERS=f"Authorization=Bearer%20{TOKEN}",
        SERVICE_NAME="lake-sync",
        METRIC_EXPORT_INTERVAL=1000,
    )
    with daemon(world.config, environment) as running:
        running.synced_to("orders", 1)
        for position in (0, 1):
            running.synced_to("orders", world.delete(position))
        shown = running.tables()["orders"]

        first = trace_of(server, "sync", to_version=1)
        (whole,) = first.children(first.root)
        assert whole.name == "first sync"
        assert first.names(whole) == ["state", "manifests", "translate", "prepare", "commit", "record"]

        last = trace_of(server, "sync", to_version=3)
        told = {
            "dvsync.table": "orders",
            "dvsync.source": world.table.location,
            "dvsync.target": "lake.orders",
            "dvsync.from_version": 3,
            "dvsync.snapshot_id": shown["snapshot_id"],
            "dvsync.operation": "DELETE",
            "dvsync.delete_files_added": 1,
            "dvsync.positions_added": 1,
        }
        assert told.items() <= last.attributes.items()
        assert running.told("sync.advanced", to_version=3)["cycle_id"] == last.attributes["dvsync.cycle_id"]
        assert last.names(last.root) == ["read", "snapshot"]
        snapshot = last.children(last.root)[1]
        assert values(snapshot.attributes)["dvsync.snapshot_id"] == shown["snapshot_id"]
        assert last.names(snapshot) == STEPS_OF_A_COMMIT
        for span in last.spans:
            parent = next((each for each in last.spans if each.span_id == span.parent_span_id), span)
            assert parent.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano
        assert abs(last.root.start_time_unix_nano / 1e9 - time.time()) < 60

        maintained = trace_of(server, "maintenance", compacted_delete_files=2)
        (compact,) = (span for span in maintained.children(maintained.root) if span.name == "compact")
        assert {"prepare", "commit", "record"} <= set(maintained.names(compact))
        verified = trace_of(server, "verify", differences=0)
        assert verified.names(verified.root) == ["state", "metadata"]

        resource = values(server.taken["/v1/traces"][0].resource_spans[0].resource.attributes)
        assert (resource["service.name"], resource["service.version"]) == ("lake-sync", version("dvsync"))
        assert resource["host.name"] == os.uname().nodename
        assert resource == values(server.taken["/v1/metrics"][0].resource_metrics[0].resource.attributes)

        world.table.commit([BROKEN])
        running.told("table.parked")
        running.signal(signal.SIGTERM)
        running.end()
    # What waited was sent at the end.
    failed = traces(server)[-1]
    assert failed.attributes["error.type"] == "Unsupported"
    assert failed.root.status.code == Status.STATUS_CODE_ERROR
    (event,) = failed.root.events
    assert values(event.attributes)["exception.type"] == "Unsupported"
    assert "reader version 9" in values(event.attributes)["exception.message"]
    assert Counter(each.root.name for each in traces(server))["sync"] == 4
    assert {each["authorization"] for _, each in server.sent} == {f"Bearer {TOKEN}"}
    checked_out = command(world.config, "config", "check", environment=environment).stdout
    assert "telemetry: traces by OTEL_EXPORTER_OTLP_ENDPOINT, metrics by OTEL_EXPORTER_OTLP_ENDPOINT\n" in checked_out
    assert TOKEN not in json.dumps(running.lines) + checked_out
    assert not [line for line in running.lines if line["event"] == "output"]


def test_receivers_that_do_not_work_hold_up_nobody(tmp_path: Path, server: Receiver) -> None:
    """One refuses, one hangs, one answers 500: syncs and the end of the daemon are as fast, and each is told once."""
    worlds = {name: World(tmp_path / name) for name in ("refuses", "hangs", "fails")}
    with receiver() as hanging, ExitStack() as opened:
        hanging.answers.clear()
        server.refusals = [500] * 1_000
        endpoints = {"refuses": "http://127.0.0.1:9", "hangs": hanging.url, "fails": server.url}
        for name, world in worlds.items():
            world.configure(hooks=[{"url": f"{endpoints[name]}/lineage", "format": "openlineage"}])
        running = {
            name: opened.enter_context(
                # Whoever waited for the one that hangs would wait until the end of the test.
                daemon(
                    world.config,
                    otel(
                        endpoints[name],
                        METRIC_EXPORT_INTERVAL=1000,
                        EXPORTER_OTLP_TIMEOUT=60 if name == "hangs" else 0.5,
                    ),
                )
            )
            for name, world in worlds.items()
        }
        for number in range(1, 3):
            for name, each in running.items():
                each.synced_to("orders", number)
                if number == 1:
                    worlds[name].delete(0)
        until(lambda: len(hanging.waiting) == 3, "traces, metrics and lineage that hang")
        for name in ("refuses", "fails"):
            for about in ("metrics", "traces"):
                assert "OTEL_EXPORTER_OTLP_" in running[name].told("telemetry.failed", signal=about)["hint"]
            running[name].told("notice.failed", hook="hooks[0]")
        assert "Internal Server Error" in running["fails"].told("telemetry.failed", signal="metrics")["reason"]
        until(lambda: len(server.sent) > 6, "further attempts")
        server.refusals = []
        until(lambda: "/v1/metrics" in server.taken, "the recovery")
        began_s = time.monotonic()
        for each in running.values():
            each.signal(signal.SIGTERM)
        assert [each.end() for each in running.values()] == [0, 0, 0]
        assert time.monotonic() - began_s < 20
        for name, each in running.items():
            syncs = [line for line in each.lines if line["event"] == "sync.advanced"]
            assert [line["to_version"] for line in syncs] == [1, 2]
            assert max(line["duration_ms"] for line in syncs) < 20_000, "the one that hangs does so for a minute"
            told = Counter(line["signal"] for line in each.lines if line["event"] == "telemetry.failed")
            assert told == ({} if name == "hangs" else {"metrics": 1, "traces": 1})
            # The SDK's own lines, and those of its HTTP client, are not in the log.
            assert not [line for line in each.lines if line["event"] == "output" or "logger" in line]


def test_metrics_and_the_lineage_of_each_commit(world: World, server: Receiver) -> None:
    """Also of a version without rows, and of a table that is parked. A refused event is sent again."""
    server.refusals_at["/lineage"] = [503]
    headers = {"Authorization": {"file": "token"}}
    world.configure(hooks=[{"url": f"{server.url}/lineage", "headers": headers, "format": "openlineage"}])
    catalog = SqlCatalog("local", **sql_catalog(world.folder))
    snapshots = {}
    environment = otel(server.url, METRIC_EXPORT_INTERVAL=1000, TRACES_EXPORTER="none")
    environment["OPENLINEAGE_NAMESPACE"] = "lake"
    with daemon(world.config, environment) as running:
        for number in (1, 2, 3):
            running.synced_to("orders", number)
            snapshots[number] = catalog.load_table("lake.orders").metadata.current_snapshot_id
            if number == 1:
                world.delete(0)
            if number == 2:
                world.table.commit([{"metaData": world.table.metadata((*COLUMNS, ("city", "string")))}])
        check_metrics(running, server)
        world.table.commit([BROKEN])
        running.told("table.parked")
        until(lambda: len(events(server)) == 8, "all events")
        running.told("notice.failed", hook="hooks[0]", notice="START")
    assert "/v1/traces" not in server.taken
    assert [each["eventType"] for each in events(server)] == ["START", "COMPLETE"] * 3 + ["START", "FAIL"]
    runs = [checked(each) for each in events(server)]
    assert {each["authorization"] for path, each in server.sent if path == "/lineage"} == {f"Bearer {TOKEN}"}
    assert [run.run.runId for run in runs[::2]] == [run.run.runId for run in runs[1::2]]
    assert len({run.run.runId for run in runs}) == 4
    assert {(run.job.namespace, run.job.name) for run in runs} == {("lake", "orders")}
    location = catalog.load_table("lake.orders").location().removeprefix("file://")
    for run in runs:
        (source,), (target,) = run.inputs, run.outputs
        assert (source.namespace, source.name) == ("file", str(world.table.folder))
        assert (target.namespace, target.name) == ("file", location)
    told = {
        run.inputs[0].facets["version"].datasetVersion: run.outputs[0].facets["version"].datasetVersion
        for run in runs[1:6:2]
    }
    assert told == {str(number): str(snapshot) for number, snapshot in snapshots.items()}
    statistics = [run.outputs[0].outputFacets.get("outputStatistics") for run in runs[1:6:2]]
    assert [each and (each.rowCount, each.fileCount) for each in statistics] == [(2, 1), (0, 0), None]
    columns = [field["name"] for field in runs[5].outputs[0].facets["schema"].fields]
    assert columns == ["id", "part", "value", "city"]
    (identifier,) = runs[5].outputs[0].facets["symlinks"].identifiers
    assert identifier == {"namespace": sql_catalog(world.folder)["warehouse"], "name": "lake.orders", "type": "TABLE"}
    assert "Unsupported: Delta reader version 9" in runs[7].run.facets["errorMessage"].message
    assert runs[7].outputs[0].facets["version"].datasetVersion == str(snapshots[3])


def test_a_single_sync_tells_as_well(world: World, server: Receiver) -> None:
    """It waits for what it has to send, and has no metrics. One that finds nothing tells nothing."""
    world.configure(hooks=[{"url": f"{server.url}/lineage", "format": "openlineage"}])
    for _ in range(2):
        assert command(world.config, "sync", environment=otel(server.url)).returncode == 0
    assert [each.root.name for each in traces(server)] == ["sync"]
    assert [each["eventType"] for each in events(server)] == ["START", "COMPLETE"]
    assert server.taken.keys() == {"/v1/traces", "/lineage"}


def test_the_lineage_of_commits_to_delta(world: World, server: Receiver) -> None:
    """By `dvsync delete`, and of what somebody has deleted in Iceberg: who, how many, and both versions."""
    tables = [{"name": "orders", "source": "lake/orders", "target": "lake.orders", "deletes": "50%"}]
    world.configure(hooks=[{"url": f"{server.url}/lineage", "format": "openlineage"}], tables=tables)
    more = world.table.write_file([(number, "a", "x") for number in range(3, 9)])
    world.table.commit([world.table.add(more)])
    assert command(world.config, "sync").returncode == 0
    bench = Bench(world.folder, world.table.location, target="lake.orders", name="orders", state_name="another.db")
    with closing(bench):
        snapshot_id = delete_in_iceberg(bench, {f"{world.table.location}/{more}": [0, 1]})
    assert command(world.config, "delete", "orders", "--where", "id = 8").returncode == 0
    assert command(world.config, "sync").returncode == 0
    runs = [(run.eventType, run.job.name) for run in map(checked, events(server))]
    names = ["orders", "orders.delete", "orders.delete", "orders"]
    assert runs == [(each, name) for name in names for each in ("START", "COMPLETE")]
    by_command, handed_over = (checked(each) for each in events(server)[3:6:2])
    for run, made, rows in ((by_command, "3", "1"), (handed_over, "4", "2")):
        (target,) = run.outputs
        assert (target.name, target.facets["version"].datasetVersion) == (str(world.table.folder), made)
        deleted, by = run.run.facets["tags"].tags
        assert (deleted["key"], deleted["value"], by["key"]) == ("deletedRows", rows, "deletedBy")
    assert (by_command.inputs, getpass.getuser() in by_command.run.facets["tags"].tags[1]["value"]) == ([], True)
    assert handed_over.inputs[0].facets["version"].datasetVersion == str(snapshot_id)
    assert handed_over.run.facets["tags"].tags[1]["value"].startswith(f"snapshot {snapshot_id}, delete by handmade 1")


def test_without_settings_nothing_of_it_is_imported(world: World) -> None:
    """So it costs neither memory nor time."""
    world.configure()

    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    with daemon(world.config, environment, module="tests.kit.daemon_process") as running:
        running.synced_to("orders", 1)
        text = "".join(line["line"] for line in running.lines if line["event"] == "output")
    assert "pyiceberg" in text
    assert [package for package in ("opentelemetry", "openlineage") if package in text] == []
