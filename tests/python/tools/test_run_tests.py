# SPDX-License-Identifier: Apache-2.0
"""tools/run_tests: which failures run again, and what is counted."""

import importlib.machinery
import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def runner():
    loader = importlib.machinery.SourceFileLoader("run_tests", str(ROOT / "tools" / "run_tests"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_tests", loader))
    loader.exec_module(module)
    return module


def case(runner, name, output=None, group="tests.python.test_core"):
    element = ElementTree.Element("testcase", name=name, classname=group, time="1")
    if output is not None:
        ElementTree.SubElement(element, "failure").text = output
    return runner.Case("python", element)


def count(runner, cases, passes_alone=()):
    """Counts cases; returns the tally and the names that ran alone."""
    tally, alone = runner.Tally(), []

    def run_alone(failed):
        alone.extend(c.test for c in failed)
        return [case(runner, c.test, None if c.test in passes_alone else "E   again")
                for c in failed]

    tally.count(cases, run_alone)
    return tally, alone


def test_a_failure_counts_only_if_it_fails_alone_too(runner, capsys):
    cases = [case(runner, "good"), case(runner, "busy", "E   late"), case(runner, "bad", "E   no")]
    tally, alone = count(runner, cases, passes_alone=["busy"])
    assert alone == ["busy", "bad"]
    assert (tally.passed, tally.failed) == (2, 1)
    assert tally.unstable == ["python: tests.python.test_core.busy"]
    told = capsys.readouterr().out
    assert "UNSTABLE (passed alone) python: tests.python.test_core.busy" in told and "late" in told
    assert "FAILED python: tests.python.test_core.bad" in told


@pytest.mark.parametrize("report", [
    "WARNING: ThreadSanitizer: data race (pid=1)", "==1==ERROR: AddressSanitizer: heap-use-after-free",
    "a.c:1:2: runtime error: shift exponent 64 is too large"])
def test_a_sanitizer_report_is_final(runner, report):
    tally, alone = count(runner, [case(runner, "racy", report)], passes_alone=["racy"])
    assert alone == [] and (tally.passed, tally.failed) == (0, 1)


def test_many_failures_are_no_matter_of_load(runner):
    names = [f"bad{i}" for i in range(runner.AGAIN_MAX + 1)]
    tally, alone = count(runner, [case(runner, n, "E   no") for n in names], passes_alone=names)
    assert alone == [] and tally.failed == len(names)


def test_a_case_that_the_second_run_lacks_has_failed(runner):
    tally = runner.Tally()
    tally.count([case(runner, "seeded", "E   no")], lambda failed: [])
    assert (tally.passed, tally.failed) == (0, 1)


@pytest.mark.parametrize("group,test,expected", [
    ("tests.system.test_vllm", "test_hits[a-1]", "system/test_vllm.py::test_hits[a-1]"),
    ("python.test_core.TestBuffers", "test_x", "python/test_core.py::TestBuffers::test_x"),
    ("python.test_unknown", "test_x", None)])
def test_the_name_of_a_case_for_pytest(runner, group, test, expected):
    files = {"system/test_vllm.py", "python/test_core.py"}
    assert runner.node_id(case(runner, test, group=group), files) == expected
