# SPDX-License-Identifier: Apache-2.0
"""The Helm chart deploy/helm/tierce: rendered by Helm, valid for Kubernetes, with a configuration that
the programs accept."""

import json
import re
import subprocess
import sys

import pytest

yaml = pytest.importorskip("yaml")

from test_kubernetes import LIMIT_S, ROOT, validate  # noqa: E402

sys.path.append(str(ROOT / "tools"))

import helm_chart  # noqa: E402
from helm_chart import CHART, HelmError, rendered  # noqa: E402
from manager_process import executable  # noqa: E402
from tierce import _core as core  # noqa: E402

GIB = 1 << 30
# Every value, as none is by default.
ALL_VALUES = {
    "image": {"repository": "registry.example/tierce", "tag": "1", "pullPolicy": "Always"},
    "imagePullSecrets": ["registry"],
    "node": {
        "config": {"memory": {"size": "32GiB"}, "disk": {"path": ""}, "auth": {"token_file": "/etc/tierce-secrets/tokens/tokens"},
                   "listen": {"resp": True, "http_port": 7493}, "strict": True},
        "secrets": ["tokens"],
        "storeFolder": "/mnt/ssd",
        "hugePages": False,
        "resources": {"requests": {"cpu": 4}, "limits": {"cpu": "8", "memory": "100Gi"}},
        "seccompProfile": {"type": "Localhost", "localhostProfile": "tierce.json"},
        "nodeSelector": {"gpu": "yes"},
        "tolerations": [],
    },
    "manager": {
        "enabled": True,
        "replicas": 3,
        "config": {"registry": {"uri": "redis://redis:6379"}, "elector": {"uri": "redis://redis:6379"}},
        "tlsSecret": "certificate",
        "tokensSecret": "people",
        "storage": {"size": "100Gi", "className": "fast"},
        "resources": {"limits": {"memory": "8Gi"}},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
    },
}


def run_tool(*arguments):
    return subprocess.run([sys.executable, str(ROOT / "tools" / "helm_chart.py"), *arguments], capture_output=True, text=True,
                          timeout=LIMIT_S, check=False)


def objects(text):
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def pod_of(text):
    found = objects(text)
    return (found.get("DaemonSet") or found.get("StatefulSet"))["spec"]["template"]["spec"]


def effective(tmp_path, name, text):
    """The parameters that a program reads from a rendered configuration."""
    file = tmp_path / f"{name}.yaml"
    file.write_text(objects(text)["ConfigMap"]["data"][f"{name}.yaml"])
    said = subprocess.run([executable(), name, "--config", str(file), "--print-config"], capture_output=True, text=True,
                          timeout=LIMIT_S, check=False)
    assert said.returncode == 0, said.stderr
    return yaml.safe_load(said.stdout)


def test_chart_and_manifests_were_changed_together():
    assert helm_chart.SUMS.read_text(encoding="utf-8") == helm_chart.sums(), "run tools/helm_chart.py manifests"


def test_the_schema_has_the_parameters_of_the_programs():
    said = run_tool("schema", "--check", executable())
    assert said.returncode == 0, said.stderr


def test_values_and_schema_name_the_same():
    def names(values, rule, path=""):
        if "properties" not in rule or not isinstance(values, dict) or path.endswith((".config", ".resources", ".seccompProfile")):
            return
        assert rule["additionalProperties"] is False
        assert set(values) == set(rule["properties"]) - {"global"}, path
        for name, value in values.items():
            names(value, rule["properties"][name], f"{path}.{name}")

    names(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")), json.loads(helm_chart.SCHEMA.read_text(encoding="utf-8")))


def test_the_versions():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == core.version()


def test_helm_renders_the_manifests():
    said = run_tool("manifests", "--check")
    assert said.returncode == 0, said.stderr


def test_all_values_together(tmp_path):
    texts = rendered(ALL_VALUES, release="other")
    for name, text in texts.items():
        (tmp_path / f"{name}-manifest.yaml").write_text(text)
    said = validate(*(tmp_path / f"{name}-manifest.yaml" for name in texts))
    assert said.returncode == 0, said.stdout + said.stderr
    node, manager = pod_of(texts["node"]), pod_of(texts["manager"])
    config = effective(tmp_path, "node", texts["node"])
    assert config["memory"]["size"] == "32GiB" and config["strict"] is True and config["listen"]["native"] == "/run/tierce/node.sock"
    assert effective(tmp_path, "manager", texts["manager"])["elector"]["uri"] == "redis://redis:6379"
    for pod in node, manager:
        container, = pod["containers"]
        assert container["image"] == "registry.example/tierce:1" and container["imagePullPolicy"] == "Always"
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert {mount["name"] for mount in container["volumeMounts"]} - {"state"} == {volume["name"] for volume in pod["volumes"]}
    container, = node["containers"]
    assert container["livenessProbe"]["httpGet"]["port"] == config["listen"]["http_port"] == 7493
    assert config["auth"]["token_file"] in [f"{mount['mountPath']}/tokens" for mount in container["volumeMounts"]]
    assert container["resources"] == {"requests": {"cpu": 4, "memory": "34Gi"}, "limits": {"cpu": "8", "memory": "100Gi"}}
    assert container["securityContext"]["seccompProfile"]["localhostProfile"] == "tierce.json"
    assert "initContainers" not in node and "tolerations" not in node and node["nodeSelector"] == {"gpu": "yes"}
    assert not any(volume.get("hostPath", {}).get("path") == "/mnt/ssd" for volume in node["volumes"])  # without a disk
    found = objects(texts["manager"])
    assert found["StatefulSet"]["metadata"]["name"] == "other-manager" and found["StatefulSet"]["spec"]["replicas"] == 3
    assert found["StatefulSet"]["spec"]["volumeClaimTemplates"][0]["spec"] == {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "100Gi"}}}
    assert {volume["secret"]["secretName"] for volume in manager["volumes"] if "secret" in volume} == {"certificate", "people"}
    assert manager["nodeSelector"] == {"disk": "ssd"} and manager["tolerations"][0]["key"] == "infra"
    assert not rendered({"node": {"enabled": False}})


def test_the_folder_of_the_store():
    volumes = pod_of(rendered({"node": {"storeFolder": "/mnt/ssd"}})["node"])["volumes"]
    assert {"name": "store", "hostPath": {"path": "/mnt/ssd", "type": "Directory"}} in volumes


def bytes_of(size):
    number, unit = re.fullmatch(r"([0-9.]+) *([A-Za-z]*)", str(size)).groups()
    scale = {"": 1, "B": 1, "Mi": 1 << 20, "Gi": GIB, "MiB": 1 << 20, "GiB": GIB, "TiB": 1 << 40, "MB": 10**6, "GB": 10**9}[unit]
    return round(float(number) * scale)


@pytest.mark.parametrize("config", [
    {"memory": {"size": "1.5GiB"}},
    {"memory": {"size": "3000 MB"}},
    {"memory": {"size": 1073741824}},
    {"memory": {"size": None}},
    {"memory": {"size": "1TiB", "coded_size": "512GiB"}},
    {"pool": {"memory": "64GiB", "manager": "fleet://m:6381/mem"}},
    {"pool": {"disk": "/var/lib/tierce/pool", "disk_size": "1TB", "manager": "fleet://m:6381/mem"}, "mover": {"manager": "none"}},
    {"mover": {"manager": "fleet://m:6381", "memory": "1GiB"}},
])
def test_the_memory_of_a_pod(tmp_path, config):
    text = rendered({"node": {"config": config}})["node"]
    # What holds without a parameter is what the program says.
    found = effective(tmp_path, "node", text)
    other = bytes_of(found["memory"]["coded_size"]) + bytes_of(found["pool"]["memory"]) + 2 * GIB
    if found["pool"]["disk"]:
        other += bytes_of(found["pool"]["disk_buffer"])
    if (found["mover"]["manager"] or found["pool"]["manager"]) not in ("", "none"):
        other += bytes_of(found["mover"]["memory"])
    size, resources = bytes_of(found["memory"]["size"]), pod_of(text)["containers"][0]["resources"]
    for part, times in ("requests", 1), ("limits", 2):
        needed = times * size + other
        assert needed <= bytes_of(resources[part]["memory"]) < needed + (1 << 20), part


@pytest.mark.parametrize(("values", "message"), [
    ({"nodes": {}}, "'nodes' not allowed"),
    ({"image": {"name": "x"}}, "'/image': .*'name' not allowed"),
    ({"node": {"hugePage": True}}, "'/node': .*'hugePage' not allowed"),
    ({"node": {"hugePages": "yes"}}, "'/node/hugePages': got string, want boolean"),
    ({"node": {"storeFolder": "store"}}, "'/node/storeFolder': 'store' does not match"),
    ({"node": {"config": {"memory": {"sise": "8GiB"}}}}, "'/node/config/memory': .*'sise' not allowed"),
    ({"node": {"config": {"memory.size": "8GiB"}}}, "'/node/config': .*'memory.size' not allowed"),
    ({"node": {"config": {"memory": {"size": "8Gi"}}}}, '"8Gi" is not a size'),
    ({"node": {"resources": {"limit": {}}}}, "'/node/resources': .*'limit' not allowed"),
    ({"manager": {"storage": {"size": "20GiB"}}}, "'/manager/storage/size': '20GiB' does not match"),
    ({"manager": {"tolerations": [{"effect": "No"}]}}, "'/manager/tolerations/0/effect'"),
    ({"manager": {"enabled": True, "replicas": 2}}, "manager.replicas is 2, and manager.config.registry.uri is \"local:"),
])
def test_what_is_wrong_is_named(values, message):
    with pytest.raises(HelmError, match=message):
        rendered(values)
