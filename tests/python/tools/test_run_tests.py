# SPDX-License-Identifier: Apache-2.0
"""tools/run_tests: which failures run again, and what is counted."""

import importlib.machinery
import importlib.util
import os
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


def test_threads_that_a_failed_check_leaves_are_no_report(runner):
    output = ("a.c:1:F: late\nWARNING: ThreadSanitizer: thread leak (pid=1)\nSUMMARY: ThreadSanitizer: thread leak a.c:1 in f\n"
              "ThreadSanitizer: reported 1 warnings")
    tally, alone = count(runner, [case(runner, "late", output)], passes_alone=["late"])
    assert alone == ["late"] and (tally.passed, tally.failed) == (1, 0)


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


# ---- builds

# Writes a line with its priority and its last argument; fails if that is "bad".
CMAKE = """#!/bin/sh
eval last=\\${$#}
echo "$(nice) $last" >>"$BUILDS"
test "$last" != bad || { echo "bad.c: no"; exit 3; }
"""


@pytest.fixture
def builds(runner, monkeypatch, tmp_path):
    (tmp_path / "cmake").write_text(CMAKE)
    (tmp_path / "cmake").chmod(0o755)
    monkeypatch.setattr(runner, "REPORTS", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("BUILDS", str(tmp_path / "builds"))
    return tmp_path / "builds"


def test_later_builds_have_the_lowest_priority(runner, builds):
    builder, tally = runner.Builder([("rel", "all")], [("rel", "all"), ("asan", "bad"), ("tsan", "some")], "1"), runner.Tally()
    builder.start()
    assert builder.is_built(tally, "rel", "all") and tally.failed == 0
    assert builder.is_built(tally, "tsan", "some") and not builder.is_built(tally, "asan", "bad") and tally.failed == 1
    builder.stop()
    usual = os.nice(0)
    assert builds.read_text().split("\n")[:-1] == [
        f"{usual} -DTIERCE_TIMEOUT_FACTOR=1", f"{usual} all", "19 -DTIERCE_TIMEOUT_FACTOR=1", "19 bad",
        "19 -DTIERCE_TIMEOUT_FACTOR=1", "19 some"]


def test_a_failed_build_says_why(runner, builds, monkeypatch, capsys):
    tally = runner.Tally()
    assert not runner.build(tally, "rel", "bad")
    assert "FAILED rel: cmake --build --preset rel" in (out := capsys.readouterr().out) and "exit code 3" in out and "bad.c: no" in out
    builds.with_name("cmake").unlink()
    monkeypatch.setenv("PATH", str(builds.parent))
    assert not runner.build(tally, "dev", "all") and "No such file" in capsys.readouterr().out
    monkeypatch.setattr(runner, "REPORTS", builds.parent / "missing")
    assert not runner.build(tally, "dev", "all") and "missing" in capsys.readouterr().out


# ---- --device

FAKE = ROOT / "build" / "dev" / "tests" / "cuda"


@pytest.fixture
def device(runner, monkeypatch, tmp_path):
    """stage_device with stand-ins: for a GPU, for ctest's list, and for programs in an otherwise empty PATH."""
    def add(name, text):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def run(*programs):
        monkeypatch.setattr(runner, "device_programs", lambda: [(Path(p).name, p) for p in programs])
        tally = runner.Tally()
        assert runner.stage_device(tally)
        return tally.passed, tally.failed

    monkeypatch.setattr(runner, "REPORTS", tmp_path)
    monkeypatch.setattr(runner, "PYTHON", tmp_path / "missing")
    monkeypatch.setattr(runner, "find_gpu", lambda: (True, "a stand-in"))
    monkeypatch.setattr(runner, "build", lambda *arguments, **more: True)
    monkeypatch.setattr(runner, "run_gpu_demo", lambda tally: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    run.add = add
    return run


def test_without_a_gpu_nothing_counts(runner, monkeypatch, capsys):
    monkeypatch.setattr(runner, "find_gpu", lambda: (False, "no libcuda.so.1"))
    monkeypatch.setattr(runner.sys, "argv", ["run_tests", "--device", "--no-setup"])
    monkeypatch.setattr(runner.os, "environ", dict(runner.os.environ))  # main changes it
    assert runner.main() == runner.NO_GPU
    out = capsys.readouterr().out
    assert "skipped: there is no Nvidia GPU (no libcuda.so.1); nothing was tested" in out and "passed" not in out


def test_the_driver_of_the_tests_is_no_gpu(runner, monkeypatch):
    if not (FAKE / "libcuda.so.1").exists():
        pytest.skip(f"{FAKE}/libcuda.so.1 is not built")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKE))
    assert runner.find_gpu() == (True, "the SIMULATED driver of tests/support/cuda, which is no GPU; driver of CUDA 13.0")


def test_programs_on_a_gpu_are_counted(device, capsys):
    good = device.add("good", 'test "$TIERCE_TEST_GPU" = required')
    bad, skips = device.add("bad", "echo E   wrong byte; exit 1"), device.add("skips", "exit 77")
    assert device(good, bad, skips) == (1, 2)
    out = capsys.readouterr().out
    assert "wrong byte" in out and "device: skips: exit code 77" in out
    assert "skipped: compute-sanitizer is not in PATH" in out


@pytest.mark.parametrize("memcheck,racecheck,expected", [
    ("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed", (3, 0)),
    ("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 2 hazards displayed", (2, 1)),
    ("ERROR SUMMARY: 0 errors", "no attachable process", (2, 1)),
    ("ERROR SUMMARY: 1 error", "RACECHECK SUMMARY: 0 hazards displayed", (2, 1))])
def test_a_sanitizer_must_have_checked(device, memcheck, racecheck, expected):
    device.add("compute-sanitizer", f'case "$2" in memcheck) echo "========= {memcheck}";; *) echo "{racecheck}";; esac')
    assert device(device.add("good", "exit 0")) == expected


def test_a_program_of_device_tests_on_the_driver_of_the_tests(device, monkeypatch):
    """As `tools/run_tests --device` runs it, with the driver that LD_LIBRARY_PATH names."""
    program = ROOT / "build" / "dev" / "bin" / "test_device_order"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(FAKE))
    assert device(str(program)) == (1, 0)
    monkeypatch.delenv("LD_LIBRARY_PATH")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # not even a real one
    assert device(str(program)) == (0, 1)
