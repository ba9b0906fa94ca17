# SPDX-License-Identifier: Apache-2.0
"""README's table of what works: written from the record of tests that passed, and checked against it."""

import importlib.util
import json
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import SimpleNamespace as Thing

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "system"))

import works_with as recorder  # noqa: E402

TEST, OTHER = "tests/system/test_a.py::test_b", "tests/system/test_c.py::test_d"
PAGE = f"""# Page

<!-- works-with: begin, by tools/works_with -->
| vLLM with | today | test, or logged reason |
|---|---|---|
| one thing | works | `{TEST}` |
| another | **does not work** | `a reason` |
| a third | was never tried | `{OTHER}` |
<!-- works-with: end -->
End
"""


def load_tool():
    loader = SourceFileLoader("works_with_tool", str(ROOT / "tools" / "works_with"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


tool = load_tool()


@pytest.fixture
def page(tmp_path):
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "docs/inside").mkdir(parents=True)
    (tmp_path / "build").mkdir()
    return tmp_path


def run(page, *arguments):
    return tool.main(arguments, page)


def record_of(page):
    return json.loads((page / tool.RECORD).read_text())


def passed(page, *tests):
    entry = {"version": "1.2", "date": "2026-11-27", "cases": []}
    (page / tool.RUN).write_text(json.dumps({"vLLM": {test: entry for test in tests}}))


def test_the_table_of_this_tree_is_that_of_its_record():
    assert tool.main(["--check"]) == 0


def test_a_claim_requires_a_record(page, capsys):
    assert run(page, "--check") == 1
    assert f"no passed run of {TEST}: run it" in capsys.readouterr().err
    passed(page, OTHER)
    assert run(page, "--update") == 1 and run(page, "--check") == 1
    passed(page, TEST)
    assert run(page, "--update") == 0
    assert run(page, "--check") == 0
    assert set(record_of(page)["vLLM"]) == {TEST, OTHER}
    text = (page / "README.md").read_text()
    assert f"| one thing | works | vLLM 1.2, 2026-11-27 | `{TEST}` |" in text
    assert "| another | **does not work** |  | `a reason` |" in text
    assert text.startswith("# Page\n") and text.endswith("-->\nEnd\n")
    # A changed cell, and a claim without a test.
    (page / "README.md").write_text(text.replace("vLLM 1.2", "vLLM 9.9"))
    assert run(page, "--check") == 1 and run(page) == 0
    assert (page / "README.md").read_text() == text
    (page / "README.md").write_text(text.replace("**does not work**", "works"))
    assert run(page) == 1
    assert 'a test for "another"' in capsys.readouterr().err


def test_only_named_tests_stay_in_the_record(page):
    passed(page, TEST, OTHER, "tests/system/test_e.py::test_f")
    assert run(page, "--update") == 0
    assert set(record_of(page)["vLLM"]) == {TEST, OTHER}


def report(test, passed=True, when="call", component=("vLLM", "1.2"), skipped=False):
    return Thing(nodeid=test, passed=passed and not skipped, when=when, skipped=skipped,
                 user_properties=[("works_with", list(component))] if component else [])


def test_a_run_is_recorded(tmp_path):
    path = tmp_path / "build/works-with.json"
    made = recorder.Recorder(path)
    for each in (report(f"{TEST}[one]"), report(f"{TEST}[two]"), report(f"{TEST}[two]", when="teardown"),
                 report(OTHER), report("t::plain", component=None), report("t::left", skipped=True)):
        made.pytest_runtest_logreport(each)
    made.pytest_sessionfinish(Thing(config=Thing(workerinput={})))
    assert not path.exists()  # a worker of xdist
    made.pytest_sessionfinish(Thing(config=Thing()))
    record = json.loads(path.read_text())["vLLM"]
    assert {test: entry["cases"] for test, entry in record.items()} == {TEST: ["one", "two"], OTHER: []}
    assert record[TEST]["version"] == "1.2"
    # If one case fails, the record of the test is removed. Tests that did not run stay.
    again = recorder.Recorder(path)
    again.pytest_runtest_logreport(report(f"{TEST}[one]"))
    again.pytest_runtest_logreport(report(f"{TEST}[two]", passed=False))
    again.pytest_sessionfinish(Thing(config=Thing()))
    assert list(json.loads(path.read_text())["vLLM"]) == [OTHER]


def test_only_tests_with_a_component_are_marked():
    items = [Thing(fixturenames=["hosts"], user_properties=[]), Thing(fixturenames=["x"], user_properties=[])]
    recorder.Recorder().pytest_collection_modifyitems(items)
    version = recorder.version_of(recorder.COMPONENTS["hosts"][1])
    assert items[0].user_properties == ([("works_with", ["vLLM", version])] if version else [])
    assert items[1].user_properties == []
