# SPDX-License-Identifier: Apache-2.0
"""`make run` (tools/demo) and what it leaves behind, with a stand-in for vLLM."""

import importlib.util
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINE = """
import json, sys, tempfile, time
json.load(sys.stdin)
left = tempfile.NamedTemporaryFile(prefix="vllm_dist_", delete=False)
for kind in "ready", "done":
    print(json.dumps({"kind": kind, "file": left.name}), flush=True)
time.sleep(60)
"""


def test_files_that_vllm_leaves_are_removed(tmp_path):
    demo = shutil.copytree(ROOT / "tools" / "demo", tmp_path / "demo")
    (demo / "play.py").write_text(ENGINE)
    spec = importlib.util.spec_from_file_location("demo_run", demo / "run.py")
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    engine = run.EngineProcess({"log": str(tmp_path / "log")}, ROOT)
    try:
        left = [Path(report["file"]) for report in engine.reports()]
        assert left[0].exists()
    finally:
        engine.kill()
    assert not left[0].exists() and not left[0].parent.exists()
