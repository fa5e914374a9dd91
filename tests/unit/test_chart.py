"""The Helm chart, rendered by Helm itself: what a cluster gets is right by the rules of Kubernetes and by ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from lightkube.models.apps_v1 import StatefulSet
from lightkube.models.core_v1 import ConfigMap, Service

from daemon.config.load import load_settings
from daemon.config.share import Share
from deploy.release import CHART, ROOT, VERSION, write_chart

KINDS = {"ConfigMap": ConfigMap, "Service": Service, "StatefulSet": StatefulSet}
CONFIG = {
    "catalogs": {"lake": {"type": "rest", "uri": "http://catalog:8181", "credential": {"env": "CATALOG_CREDENTIAL"}}},
    "storage": {"s3.region": "eu-central-1"},
    # Helm's numbers are floats.
    "defaults": {"mirrors": "footer", "mirror_bytes_max": 107374182400},
    "tables": [{"source": "s3://lake/orders", "target": "sales.orders"}],
}
FULL = {
    "config": CONFIG,
    "image": {"name": "registry.example.org/dvsync", "tag": "mine"},
    "secret": "dvsync-credentials",
    "shares": 3,
    "storage": {"size": "20Gi", "class": "fast"},
    "resources": {"limits": {"memory": "8Gi"}},
    "volumes": [{"name": "lake", "persistentVolumeClaim": {"claimName": "lake", "readOnly": True}}],
    "volumeMounts": [{"name": "lake", "mountPath": "/lake"}],
    "pod": {"serviceAccountName": "dvsync", "nodeSelector": {"disk": "ssd"}},
    "prometheus": {"enabled": True, "labels": {"release": "prometheus"}},
}
DOCUMENTED = (ROOT / "docs" / "running.md").read_text().partition("## In Kubernetes")[2].split("```")[1]
VALUES: dict[str, dict[str, Any]] = {
    "least": {},
    "documented": yaml.safe_load(DOCUMENTED.removeprefix("yaml")),
    "full": FULL,
}
WRONG = {
    "a word that is spelled wrong": {"share": 2},
    "what the chart sets": {"config": {"state": {"url": "sqlite:///x.db"}}},
    "a part of the pod that the chart makes": {"pod": {"containers": []}},
    "more shares than there are": {"shares": 101},
}
# In a process of its own, which is not forked: the library brings Go's threads.
RENDER = """
import json, sys
import helm_python as helm

answers, (folder, archive, cases) = {}, json.load(sys.stdin)
with helm.Chart.load(archive) as chart:
    for name, values in cases.items():
        answers[name] = answer = {"linted": helm.lint(folder, values)}
        try:
            answer["rendered"] = chart.render(values, name="prod", namespace="lake")
        except helm.HelmError as error:
            answer["refused"] = str(error)
json.dump(answers, sys.stdout)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What Helm finds in the chart, and makes of it as it is released, for each of `VALUES` and `WRONG`."""
    if find_spec("helm_python") is None:
        assert "CI" not in os.environ, "helm-python-sdk is not installed"
        pytest.skip("helm-python-sdk is made for Linux on x86-64 only")
    packed = tmp_path_factory.mktemp("chart")
    write_chart(packed, 0)
    asked = json.dumps([str(CHART), str(packed / f"dvsync-{VERSION}.tgz"), VALUES | WRONG])
    rendered = subprocess.run([sys.executable, "-c", RENDER], input=asked, capture_output=True, text=True, check=True)
    answered: dict[str, dict[str, Any]] = json.loads(rendered.stdout)
    return answered


@pytest.fixture(scope="module")
def rendered(answers: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """The manifests for each of `VALUES`, by kind."""
    return {
        name: {
            document["kind"]: document
            for text in answers[name]["rendered"].values()
            for document in yaml.safe_load_all(text)
            if document
        }
        for name in VALUES
    }


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def test_helm_and_kubernetes_find_no_fault(answers, rendered):
    """Each manifest has the fields and types of Kubernetes' own schema, and no others."""
    for name, manifests in rendered.items():
        assert [each["error"] for each in answers[name]["linted"]["messages"] if each["severity"] > 1] == []
        core = {kind: manifest for kind, manifest in manifests.items() if kind in KINDS}
        assert core.keys() == KINDS.keys()
        for kind, manifest in core.items():
            assert without_nulls(msgspec.to_builtins(msgspec.convert(manifest, KINDS[kind]))) == manifest
            assert manifest["metadata"]["name"] == "prod"
    assert [name for name in VALUES if "PrometheusRule" in rendered[name]] == ["documented", "full"]


@pytest.mark.parametrize("what", WRONG)
def test_wrong_values_are_refused(answers, what: str):
    assert "values don't meet the specifications of the schema" in answers[what]["refused"]


def test_the_configuration_arrives(rendered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """dvsync accepts it, each pod with a share of its own, and finds the secrets by the names in it."""
    (tmp_path / "config.yaml").write_text(rendered["full"]["ConfigMap"]["data"]["config.yaml"])
    stateful = rendered["full"]["StatefulSet"]["spec"]
    (container,) = stateful["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "dvsync-credentials"}}]
    monkeypatch.setenv("CATALOG_CREDENTIAL", "secret")
    index, *others = container["env"]
    assert index["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['apps.kubernetes.io/pod-index']"
    shares = set()
    for ordinal in range(stateful["replicas"]):
        number = str(ordinal + stateful["ordinals"]["start"])
        for variable in others:
            monkeypatch.setenv(variable["name"], variable["value"].replace(f"$({index['name']})", number))
        settings = load_settings(tmp_path / "config.yaml")
        shares.add(settings.share)
    assert shares == {Share(number, 3) for number in (1, 2, 3)}
    assert settings.tables[0].mirror_bytes_max == 100 << 30
    assert settings.catalogs["lake"]["credential"] == "secret"


def test_values_say_which_image(rendered):
    pods = {name: manifests["StatefulSet"]["spec"]["template"]["spec"] for name, manifests in rendered.items()}
    images = {name: pod["containers"][0]["image"] for name, pod in pods.items()}
    assert images == {
        "least": f"dvsync:{VERSION}",
        "documented": f"registry.example.org/dvsync-slim:{VERSION}",
        "full": "registry.example.org/dvsync:mine",
    }
    assert pods["full"]["serviceAccountName"] == "dvsync"
    assert [volume["name"] for volume in pods["full"]["volumes"]] == ["config", "lake"]


def test_prometheus_finds_the_pods_and_has_the_alerts(rendered):
    """Those of alerts.yaml, which is a file of the chart by a link."""
    manifests = rendered["full"]
    assert manifests["PrometheusRule"]["spec"] == yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())
    monitor, service = manifests["ServiceMonitor"], manifests["Service"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == [
        each["name"] for each in service["spec"]["ports"]
    ]
    pod = manifests["StatefulSet"]["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    for kind in ("PrometheusRule", "ServiceMonitor"):
        assert manifests[kind]["metadata"]["labels"]["release"] == "prometheus"
