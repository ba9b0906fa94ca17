# SPDX-License-Identifier: Apache-2.0
"""docs/using/scenarios.md: every command of the page runs, and tools/demo/scenario.py notices what is wrong."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "using" / "scenarios.md"

sys.path.insert(0, str(ROOT / "tools" / "demo"))
import scenario  # noqa: E402

TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = re.findall(r"^```\n(tools/.*)\n```$", TEXT, re.M)
WITH_VLLM = re.findall(r"^\| `(make .*?)` \|", TEXT, re.M)
LACKS = re.compile(r"is not installed|does not exist: run")
SIMULATED = "The GPU and cuFile are simulated here"


def run(command):
    return subprocess.run(command, cwd=ROOT, text=True, stdin=subprocess.DEVNULL, capture_output=True, check=False,
                          timeout=120, env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})


def test_every_scenario_has_a_section_with_a_configuration():
    assert COMMANDS == [f"tools/demo/scenario.py {name}" for name in scenario.SCENARIOS]
    assert len(re.findall(r"^```(?:yaml|json)$", TEXT, re.M)) >= len(COMMANDS)
    assert {"make run", "make run PEERS=1", "make run PD=1", "make fleet"} == set(WITH_VLLM)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page(command):
    done = run(command.split())
    if done.returncode != 0 and LACKS.search(done.stderr) and os.environ.get("CI") != "true":
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all bytes are equal") >= 1
    assert (SIMULATED in done.stdout) == command.endswith("gpu-direct")


@pytest.mark.long
@pytest.mark.parametrize("command", WITH_VLLM)
def test_a_command_of_the_page_with_vllm(command):
    done = subprocess.run(command.split(), cwd=ROOT, text=True, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]


@pytest.fixture(name="memory_run")
def run_of_memory(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text("memory:\n  size: 16MiB\n")
    made = scenario.Run(tmp_path, [config])
    yield made
    made.end()


def test_another_place_than_the_expected_one_fails(memory_run):
    engine = memory_run.engine("engine", {})
    engine.store()
    with pytest.raises(scenario.Failed, match="engine: 1,024 tokens have not come from disk"):
        engine.load("disk")
    engine.load("memory")


def test_an_engine_that_does_not_open_says_why(memory_run):
    with pytest.raises(scenario.Failed, match="engine: .*memory.sizes"):
        memory_run.engine("engine", {"memory.sizes": "1GiB"})


def test_only_values_of_the_page_are_replaced(memory_run):
    with pytest.raises(scenario.Failed, match="configuration 1 has no .*path"):
        memory_run.say(0, {"memory.size": "1MiB", "disk.path": "/tmp"})
    with pytest.raises(scenario.Failed, match="configuration 1 has no .*urls"):
        memory_run.urls(0)


def test_bytes_that_differ_are_noticed(tmp_path):
    """In this process: the steps of the other one, with another memory."""
    engine = scenario.EngineProcess(None, {"memory.size": "16MiB", "control.socket": ""}, False)
    engine.store()
    assert engine.load() == {"memory": 1024, "disk": 0, "remote": 0}
    engine.kv[1] = engine.kv[0]
    with pytest.raises(scenario.Failed, match="differ"):
        engine.load()
