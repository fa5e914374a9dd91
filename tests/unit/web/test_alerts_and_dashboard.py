"""The alerts, the Grafana dashboard, and the metrics' form by Prometheus' rules; their values: `test_endpoints.py`."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from daemon.status.table_status import Observation
from daemon.sync.outcomes import SyncOutcome, SyncResult
from daemon.web.metrics import make_registry
from state import SHARES, FileKind, FileStatus, MirrorCount, ProofRecord, TableCounts, TableRecord, WrittenCount
from tests.kit.boards import board_of
from tests.kit.tools import find_tool
from tests.unit.web.test_endpoints import FakeClock, table

DEPLOY = Path(__file__).parents[3] / "deploy"
ALERTS = DEPLOY / "alerts.yaml"
ALERT_TESTS = sorted(Path(__file__).parent.glob("*.test.yaml"))
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana.json").read_text())
# A metric of ours in an expression, and the labels that it selects by.
METRIC = re.compile(r"\b((?:dvsync|process)_\w+)(?:\{([^}]*)\})?")
LABEL = re.compile(r"(\w+)=~?\"")
# What Grafana puts in before it asks.
VARIABLES = {"$__rate_interval": "5m", "$__range": "1h", "$table": ".*"}


@pytest.fixture
def metrics() -> str:
    """`/metrics` of a daemon to which everything has happened once."""
    board = board_of([table("orders")], FakeClock(), lag_budget_s=60)
    written = WrittenCount(FileKind.MANIFEST, FileStatus.ORPHANED, 1, 1, 1)
    counts = TableCounts(1, 1, 0, 1, (written,), (MirrorCount("footer", None, 1, 1),))
    proof = ProofRecord("metadata", 1, 1, 1, 1, 1, SHARES, complete_at_ms=1)
    record = TableRecord(1, "orders", "s", "t", synced_version=1, last_synced_at_ms=1, proof=proof)
    board.show("orders", Observation(record, counts, source_version=1))
    board.activity.count_sync("orders", SyncResult(SyncOutcome.ADVANCED, 1, 2, snapshots=1))
    board.activity.count_failure("orders", "CatalogAway")
    board.activity.observe_step("commit", 0.1)
    return generate_latest(make_registry(board)).decode()


@pytest.fixture
def series(metrics: str) -> dict[str, set[str]]:
    """The labels of each metric."""
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
    }


def panels() -> Iterator[dict[str, Any]]:
    return (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def expressions() -> list[tuple[str, str]]:
    """Each expression with who asks it."""
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    return [
        *((rule["alert"], rule["expr"]) for rule in rules),
        *((panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]),
    ]


@pytest.mark.parametrize(("who", "expression"), expressions())
def test_alerts_and_panels_ask_for_metrics_that_there_are(series: dict[str, set[str]], who: str, expression: str):
    """Every metric is one that `/metrics` has, with the labels that it is selected by."""
    asked = METRIC.findall(expression)
    assert asked, f"{who} asks for nothing"
    for name, selector in asked:
        assert name in series, f"{who} asks for {name}"
        assert set(LABEL.findall(selector)) <= series[name], f"{who} asks for {name} by {selector}"


def test_the_metrics_are_well_formed(metrics: str):
    """`promtool check metrics` finds no fault."""
    promtool = find_tool("promtool", package="prometheus")
    judged = subprocess.run([promtool, "check", "metrics"], input=metrics, capture_output=True, text=True, check=False)
    assert (judged.returncode, judged.stderr) == (0, "")


def test_each_alert_fires_when_it_should_and_only_then():
    """By `promtool test rules`; every alert has a case."""
    promtool = find_tool("promtool", package="prometheus")
    judged = subprocess.run([promtool, "test", "rules", *ALERT_TESTS], capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    tests = [test for file in ALERT_TESTS for test in yaml.safe_load(file.read_text())["tests"]]
    cases = [each for test in tests for each in test["alert_rule_test"]]
    for fires in (True, False):
        tested = {case["alertname"] for case in cases if bool(case["exp_alerts"]) is fires}
        assert tested == {rule["alert"] for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]}


def test_the_expressions_are_promql(tmp_path: Path):
    """Those of the dashboard as recording rules, which `promtool check rules` reads; those of the alerts too."""
    promtool = find_tool("promtool", package="prometheus")
    records = []
    for number, (_, expression) in enumerate(expressions()):
        filled = re.sub(r"\$\w+", lambda found: VARIABLES[found[0]], expression)
        records.append({"record": f"dashboard:{number}", "expr": filled})
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    for file in (rules, ALERTS):
        judged = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
        assert judged.returncode == 0, judged.stdout + judged.stderr


def test_the_dashboard_goes_into_any_grafana():
    """No data source by its id, every panel with a unit and a place of its own, and both variables."""
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "table"]
    found = set(re.findall(r'"uid": "([^"]*)"', json.dumps(DASHBOARD)))
    assert found == {"${datasource}"}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in panels():
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
    places = [(panel["title"], panel["gridPos"]) for panel in DASHBOARD["panels"]]
    for (title, one), (other_title, other) in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, f"{title} lies on {other_title}"
        assert one["x"] + one["w"] <= 24
