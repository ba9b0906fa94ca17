# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard asks for metrics that a process really has."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

KEEPER = os.path.abspath(sys.argv.pop())
del sys.argv[1:]  # the executable, of which nothing is wanted here
DASHBOARD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "web",
                         "grafana", "tierce.json")


def metrics_of_a_process():
    """The names of all samples, and the labels that they have."""
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
    samples = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            name, labels = re.match(r"(\w+)(\{[^}]*\})?", line).groups()
            samples.setdefault(name, set()).update(re.findall(r"(\w+)=", labels or ""))
    return samples


class Dashboard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(DASHBOARD, encoding="utf-8") as file:
            cls.board = json.load(file)
        cls.samples = metrics_of_a_process()

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


if __name__ == "__main__":
    unittest.main()
