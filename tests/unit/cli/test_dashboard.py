# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboards and alert rules ask for metrics that a process really has."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.request

KEEPER = os.path.abspath(sys.argv.pop())
EXECUTABLE = os.path.abspath(sys.argv.pop())
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
BOARDS = os.path.join(ROOT, "web", "grafana")


def read_samples(page):
    """The names of all samples, and the labels that they have."""
    samples = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            name, labels = re.match(r"(\w+)(\{[^}]*\})?", line).groups()
            samples.setdefault(name, set()).update(re.findall(r"(\w+)=", labels or ""))
    return samples


def metrics_of_an_engine():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "s")
        keeper = subprocess.Popen(
            [KEEPER, "memory.size=8MiB", f"disk.path={folder}/store", f"control.socket={path}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        keeper.stdout.readline()
        page = subprocess.run(["curl", "-sf", "--unix-socket", path, "http://localhost/metrics"],
                              check=True, capture_output=True, text=True, timeout=30).stdout
        keeper.stdin.close()
        keeper.stdout.close()
        keeper.wait(30)
    return read_samples(page)


def ask(port, path, body=None):
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, 30) as reply:
        return reply.read().decode()


def register(port):
    """Until the manager leads: it listens before."""
    reply = "SERVICE_NOT_READY"
    while "SERVICE_NOT_READY" in reply or "SERVER_NOT_LEADER" in reply:
        reply = ask(port, "/api/registerInstance", {
            "instance_group": "default", "instance_id": "i", "block_size": 4,
            "model_deployment": {"model_name": "m", "dtype": "bf16"},
            "location_spec_infos": [{"name": "tp0", "size": 1}]})
    assert '"OK"' in reply, reply


def metrics_of_the_connector():
    """vLLM exports them; their labels are vLLM's."""
    with open(os.path.join(ROOT, "python", "tierce", "vllm", "stats.py"), encoding="utf-8") as file:
        return {f"vllm:{name}": set() for name in re.findall(r'\("(tierce_\w+)",', file.read())}


def metrics_of_a_manager():
    with tempfile.TemporaryDirectory() as folder:
        manager = subprocess.Popen(
            [EXECUTABLE, "manager", "--listen.grpc_port=0", "--listen.http_port=0",
             "--listen.admin_grpc_port=0", "--listen.admin_http_port=0", "--log.folder=",
             "--quota.groups=default_quota_group=1GiB"],
            stderr=subprocess.PIPE, text=True, cwd=folder,
            env={**os.environ, "STATE_DIRECTORY": folder})
        try:
            line = ""
            while "listening on" not in line:
                line = manager.stderr.readline()
                assert line, "the manager ended"
            _, http, _, admin = (int(n) for n in re.findall(r" (\d+)(?:,|$)", line.strip())[-4:])
            register(http)
            page = ask(admin, "/metrics")
        finally:
            manager.terminate()
            manager.wait(30)
            manager.stderr.close()
    return read_samples(page)


class Boards:
    """Properties of each dashboard."""

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(BOARDS, cls.file), encoding="utf-8") as file:
            cls.board = json.load(file)
        cls.samples = cls.read()

    def test_every_metric_exists(self):
        asked = 0
        for panel in self.board["panels"]:
            for target in panel["targets"]:
                for name in re.findall(r"\btierce_\w+", target["expr"].replace("tierce_misses_", "")):
                    self.assertIn(name, self.samples, panel["title"])
                    asked += 1
                pattern = re.search(r'__name__=~"([^"]+)"', target["expr"])
                if pattern:
                    self.assertTrue(any(re.fullmatch(pattern[1], s) for s in self.samples))
        self.assertGreater(asked, 20)

    def test_every_label_exists(self):
        for panel in self.board["panels"]:
            for target in panel["targets"]:
                for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                    if label not in ("instance", "__name__"):  # Prometheus' own
                        names = re.findall(r"\btierce_\w+", target["expr"])
                        self.assertTrue(any(label in self.samples[n] for n in names),
                                        panel["title"])

    def test_panels_do_not_overlap(self):
        taken = set()
        for panel in self.board["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                     for y in range(at["y"], at["y"] + at["h"])}
            self.assertLessEqual(at["x"] + at["w"], 24)
            self.assertFalse(taken & cells, panel["title"])
            taken |= cells
        ids = [panel["id"] for panel in self.board["panels"]]
        self.assertEqual(len(ids), len(set(ids)))


    def test_every_variable_asks_for_a_metric_that_exists(self):
        for variable in self.board["templating"]["list"]:
            if variable["type"] == "query":
                name, label = re.match(r"label_values\((\w+), (\w+)\)",
                                       variable["query"]["query"]).groups()
                self.assertIn(name, self.samples)
                self.assertTrue(label == "instance" or label in self.samples[name], label)


class Rules(unittest.TestCase):
    """Prometheus' alert rules ask for metrics and labels that a process really has, and each is documented."""

    def test_every_metric_and_label_exists(self):
        with open(os.path.join(ROOT, "web", "prometheus", "tierce.rules.yaml"), encoding="utf-8") as file:
            rules = re.findall(r"- alert: (\w+)\n +expr: (.+)\n(?:.+\n){4} +summary: (.+)", file.read())
        with open(os.path.join(ROOT, "docs", "using", "alerts.md"), encoding="utf-8") as file:
            documented = re.findall(r"^\| `(\w+)` \|", file.read(), re.M)
        self.assertEqual([name for name, _, _ in rules], documented)
        samples = {**metrics_of_an_engine(), **metrics_of_a_manager(), **metrics_of_the_connector()}
        for name, expression, summary in rules:
            asked = re.findall(r"\b(?:vllm:)?tierce_\w+", expression)
            self.assertTrue(asked, name)
            for metric in asked:
                self.assertIn(metric, samples, name)
            for label in re.findall(r"\$labels\.(\w+)", summary):
                if label != "instance":
                    self.assertIn(label, samples[asked[0]], name)


class EngineBoard(Boards, unittest.TestCase):
    file = "tierce.json"
    read = staticmethod(metrics_of_an_engine)


class ManagerBoard(Boards, unittest.TestCase):
    file = "tierce-manager.json"
    read = staticmethod(metrics_of_a_manager)

    def test_every_board_is_tested(self):
        files = {board.file for board in Boards.__subclasses__()}
        self.assertEqual(set(os.listdir(BOARDS)), files)


if __name__ == "__main__":
    unittest.main()
