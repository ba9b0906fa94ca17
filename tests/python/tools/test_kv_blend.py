# SPDX-License-Identifier: Apache-2.0
"""tools/kv_blend.py: with all tokens recomputed, a blended prompt of a trained model is as the full one; with a share of them,
it is nearer to it the greater the share is. Its measurement opens the gate of the connector. Without the model the test fails: random weights say nothing of quality."""

import subprocess
import sys
from pathlib import Path

import pytest

from tierce import _core
from tierce.vllm.blend import read_gate

ROOT = Path(__file__).resolve().parents[3]


def run_tool(*args, tool="kv_blend.py"):
    return subprocess.run([sys.executable, ROOT / "tools" / tool, *map(str, args)], capture_output=True, text=True)


def test_what_is_rejected():
    """In one run of the interpreter for each, as argparse ends it."""
    for args, message in ((("--tokens", "100"), "--tokens is 100; it must be at least 128"),
                          (("--share", "101"), "--share is 101; it must be 0 to 100"),
                          (("--share", "101%"), "--share is 101; it must be 0 to 100"),
                          (("--share", "many"), "invalid percent value: 'many'"),
                          (("--check-layer", "-1"), "--check-layer is -1; it must be at least 0")):
        done = run_tool("--model", "/nonexistent/model", *args)
        assert done.returncode == 2 and message in done.stderr, done.stderr
    done = run_tool("--model", "/nonexistent/model", "--quality", "/nonexistent", "--tokens", "63", tool="blend_ttft.py")
    assert done.returncode == 2 and "--tokens is 63; it must be at least 64" in done.stderr, done.stderr


@pytest.mark.long
def test_quality_of_a_trained_model(tmp_path):
    done = run_tool("--model", tmp_path / "model", "--text", "english", "--tokens", "128", "--next", "32",
                    "--share", "0", "--share", "15", "--share", "100", "--quality", tmp_path / "quality.json")
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    kl = {(source, share): float(kl) for _, source, share, _, kl, *_ in rows}
    assert len(kl) == 8, done.stdout
    assert kl["full", ""] == 0
    for source in ("alone", "lead"):
        assert kl[source, "100 %"] < 0.001, done.stdout
        assert kl[source, "15 %"] < kl[source, "0 %"] < kl["no documents", ""] / 2, done.stdout
    gate = read_gate(str(tmp_path / "quality.json"), _core.fingerprint(str(tmp_path / "model")), 0.15, 0)
    assert gate.check_layer == 1 and abs(gate.kl - kl["lead", "15 %"]) < 1e-4
