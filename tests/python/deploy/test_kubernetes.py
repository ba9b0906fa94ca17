# SPDX-License-Identifier: Apache-2.0
"""The manifests of deploy/kubernetes: what they start accepts their configuration, listens where they say, and answers their
probes. PyPI's kubernetes-validate checks them with the schemas of Kubernetes."""

import ctypes
import hashlib
import http.client
import os
import re
import shutil
import ssl
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[3]
sys.path += [str(ROOT / "tools"), str(ROOT / "tests" / "system")]

from helm_chart import environment_python  # noqa: E402
from manager_process import Manager, executable  # noqa: E402
from node_process import Node  # noqa: E402
from tierce import _core as core  # noqa: E402

MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
VERSIONS = ("1.28", "1.32", "1.37")
LIMIT_S = 300


def documents(name):
    out = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / f"{name}.yaml").read_text(encoding="utf-8")))
    return {document["kind"]: document for document in out if not document["metadata"]["name"].endswith("-admin")}


def pod_of(name):
    found = documents(name)
    return (found.get("DaemonSet") or found.get("StatefulSet"))["spec"]["template"]["spec"]


def container_of(name):
    container, = pod_of(name)["containers"]
    return container


def config_of(name):
    return documents(name)["ConfigMap"]["data"][f"{name}.yaml"]


def effective(name, tmp_path):
    """The parameters as the program reads them from the configuration of the manifest."""
    file = tmp_path / f"{name}.yaml"
    file.write_text(config_of(name))
    arguments = [str(file) if part == f"/etc/tierce/{name}.yaml" else part for part in container_of(name)["args"]]
    assert str(file) in arguments
    env = {key: value for key, value in os.environ.items() if not key.startswith("TIERCE_")}
    said = subprocess.run([executable(), *arguments, "--print-config"], env=env, capture_output=True, text=True, timeout=LIMIT_S,
                          check=False)
    assert said.returncode == 0, said.stderr
    return yaml.safe_load(said.stdout)


def leaves(tree):
    return [leaf for value in tree.values() for leaf in (leaves(value) if isinstance(value, dict) else [value])]


def probes_of(name):
    return [container_of(name)[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]


@pytest.mark.parametrize("name", ["node", "manager"])
def test_the_parts_belong_together(name):
    found, pod, container = documents(name), pod_of(name), container_of(name)
    workload = found.get("DaemonSet") or found.get("StatefulSet")
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"] == labels
    claims = [claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]} | set(claims)
    # It reads and writes on volumes only: nothing else is writable.
    assert container["securityContext"]["readOnlyRootFilesystem"]
    paths = [path for leaf in leaves(yaml.safe_load(config_of(name))) for path in re.findall(r"/(?:etc|run|var)/.*", str(leaf))]
    assert paths
    for path in (*paths, *(variable["value"] for variable in container["env"])):
        assert any(path == mount or path.startswith(f"{mount}/") for mount in mounts.values()), path
    images = {each["image"] for each in (container, *pod.get("initContainers", []))}
    assert images == {"tierce:" + core.version()}


def test_the_nodes_ports_and_sizes(tmp_path):
    config = effective("node", tmp_path)
    assert pod_of("node")["hostNetwork"]
    for probe in probes_of("node"):
        assert (probe["host"], probe["port"]) == ("127.0.0.1", config["listen"]["http_port"])
    gigabytes = {key: int(re.fullmatch(r"(\d+)Gi?B?", value)[1]) for key, value in {
        "pool": str(config["memory"]["size"]), "limit": container_of("node")["resources"]["limits"]["memory"]}.items()}
    # The memory of a container that has ended counts in the pod as long as engines map it.
    assert 2 * gigabytes["pool"] < gigabytes["limit"]
    assert not config["listen"]["resp"] and not config["listen"]["lm"]


def test_the_managers_ports(tmp_path):
    listen = effective("manager", tmp_path)["listen"]
    ports = {port["name"]: port["containerPort"] for port in container_of("manager")["ports"]}
    assert ports == {name: listen[f"{name.replace('-', '_')}_port"] for name in ("grpc", "http", "admin-grpc", "admin-http")}
    all_documents = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "manager.yaml").read_text(encoding="utf-8"))
    services = {document["metadata"]["name"]: document["spec"] for document in all_documents if document["kind"] == "Service"}
    for name, service in services.items():
        served = {port["name"]: port["port"] for port in service["ports"]}
        assert served == {key: port for key, port in ports.items() if key.startswith("admin-") == name.endswith("-admin")}
        assert all(port["targetPort"] == port["name"] for port in service["ports"])
        assert service["selector"] == documents("manager")["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert len(services) == 2
    assert {probe["port"] for probe in probes_of("manager")} <= set(ports)


def run_huge_pages(path, *wrapper):
    init, = pod_of("node")["initContainers"]
    script = init["command"][-1]
    real = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
    assert script.count(real) == 1
    return subprocess.run([*wrapper, *init["command"][:-1], script.replace(real, str(path))], capture_output=True, text=True,
                          timeout=LIMIT_S, check=False).returncode


def test_huge_pages_are_set_only_where_the_host_has_none(tmp_path):
    choices, file = ("always", "advise", "never"), tmp_path / "shmem_enabled"
    assert run_huge_pages(file) == 0 and not file.exists()
    for chosen in choices:
        before = " ".join(f"[{choice}]" if choice == chosen else choice for choice in choices) + "\n"
        file.write_text(before)
        assert run_huge_pages(file) == 0
        assert file.read_text() == ("advise\n" if chosen == "never" else before)
    if can_unshare("--mount"):
        file.write_text("always [never]\n")
        assert run_huge_pages(file, *read_only(tmp_path)) == 0
        assert file.read_text() == "always [never]\n"


def can_unshare(what):
    return shutil.which("unshare") and subprocess.run(["unshare", what, "true"], capture_output=True, check=False).returncode == 0


def read_only(folder):
    """Before a command, which then cannot write into the folder."""
    return ["unshare", "--mount", "sh", "-ec", 'mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"; exec "$@"', str(folder)]


def test_the_node_serves_an_engine_of_another_ipc_namespace(tmp_path):
    """As it is configured, but smaller: the probes, and an engine whose pod shares nothing with it but the socket's folder."""
    config, runtime = tmp_path / "node.yaml", tmp_path / "run"
    runtime.mkdir(mode=0o700)
    (tmp_path / "lib").mkdir()
    config.write_text(config_of("node").replace("/run/tierce", str(runtime)).replace("/var/lib/tierce", str(tmp_path / "lib")))
    apart = can_unshare("--ipc")
    node = Node(tmp_path, "--config", str(config), "--disk.size=64MiB", env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
                wrapper=["unshare", "--ipc"] if apart else [])
    try:
        if apart:
            assert os.readlink(f"/proc/{node.process.pid}/ns/ipc") != os.readlink("/proc/self/ns/ipc")
        for probe in probes_of("node"):
            assert node.ask("GET", probe["path"])[0] == 200
        blocks, cell = 8, 512
        engine = core.Engine.open(None, {"node.socket": str(runtime / "node.sock"), "strict": "true", "timeout.lookup": "30s"})
        view = engine.view({"weights": "aa", "model": "m", "kv_dtype": "f", "quantization": "", "layout": "l", "layer_count": 1,
                            "cell_bytes": [cell], "block_tokens": 4, "chunk_blocks": 4, "algo": "sha256"})
        before = os.urandom(blocks * cell)
        memory = ctypes.create_string_buffer(before, len(before))
        view.set_paged([ctypes.addressof(memory)], [cell], blocks)
        chain = view.chain()
        chain.append(array("i", range(4 * blocks)))
        ids = array("i", range(blocks))
        assert view.store(chain, blocks, ids, 0) == (blocks, False)
        ctypes.memset(memory, 0, len(before))
        load = view.load_begin(chain, 0, blocks, ids)
        load.layer(0)
        assert load.end() == b"\1" * blocks and memory.raw == before
        engine.close()
        if can_unshare("--mount"):  # as the engine's pod of docs/using/kubernetes.md mounts the folder
            connects = ("import sys; from tierce import _core\n"
                        "_core.Engine.open(None, {'node.socket': sys.argv[1] + '/node.sock', 'strict': 'true', "
                        "'timeout.lookup': '30s'}).close()\n"
                        "try: open(sys.argv[1] + '/x', 'w')\nexcept OSError: print('connected')")
            said = subprocess.run([*read_only(runtime), sys.executable, "-c", connects, str(runtime)], capture_output=True, text=True,
                                  timeout=LIMIT_S, check=False)
            assert said.stdout == "connected\n", said.stderr
    finally:
        node.end()


def mount_secret(folder, **files):
    """As the kubelet does: links to a folder that it replaces, files of mode 0400."""
    (folder / "..data").mkdir(parents=True)
    for name, content in files.items():
        file = folder / "..data" / name.replace("_", ".")
        file.write_text(content)
        file.chmod(0o400)
        (folder / file.name).symlink_to(Path("..data") / file.name)


def test_the_manager_runs(tmp_path):
    certificate = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=tierce-manager",
         "-days", "2", "-keyout", "-", "-out", "-"], capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    blocks = {kind: block for block, kind in re.findall(r"(-----BEGIN ([A-Z ]+)-----.*?-----END [A-Z ]+-----\n)", certificate, re.DOTALL)}
    mount_secret(tmp_path / "tls", tls_crt=blocks["CERTIFICATE"], tls_key=blocks["PRIVATE KEY"])
    mount_secret(tmp_path / "tokens", tokens=f"admin ops {hashlib.sha256(b'secret').hexdigest()}\n")
    text = config_of("manager")
    for path, mine in {"/etc/tierce-tls": "tls", "/etc/tierce-tokens": "tokens", "/var/lib/tierce-manager": "state"}.items():
        assert path in text
        text = text.replace(path, str(tmp_path / mine))
    (tmp_path / "state").mkdir()
    config = tmp_path / "manager.yaml"
    config.write_text(text)
    manager = Manager(tmp_path / "manager", "--config", str(config), debug=False, ready=False)
    try:
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE  # as the kubelet

        def ask(path, **headers):
            connection = http.client.HTTPSConnection("127.0.0.1", manager.ports["admin_http"], timeout=LIMIT_S, context=trusting)
            connection.request("GET", path, headers=headers)
            return connection.getresponse().status

        for probe in probes_of("manager"):
            assert probe["scheme"] == "HTTPS"
            assert ask(probe["path"]) == 200
        assert ask("/metrics") == 401
        assert ask("/metrics", Authorization="Bearer secret") == 200
    finally:
        assert manager.stop() == 0
    assert (tmp_path / "state" / "registry").exists()


def validate(*files):
    """Validates files with the schemas of Kubernetes."""
    command = [environment_python("kubernetes").with_name("kubernetes-validate"), "--strict",
               *(f"--kubernetes-version={version}" for version in VERSIONS)]
    return subprocess.run([*command, *files], capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_the_schemas_of_kubernetes(tmp_path):
    good = validate(*MANIFESTS)
    assert good.returncode == 0, good.stdout + good.stderr
    bad = tmp_path / "bad.yaml"
    bad.write_text(MANIFESTS[0].read_text(encoding="utf-8").replace("terminationGracePeriodSeconds: 60", "terminationGracePeriod: 60"))
    assert validate(bad).returncode != 0
