# SPDX-License-Identifier: Apache-2.0
"""tools/kv_samples.py, and how short the lossless codec makes the KV of a trained model. Without the model the
test fails: random weights are no substitute, because the ratio is a property of trained ones."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOL = ROOT / "tools" / "kv_samples.py"
EXECUTABLE = ROOT / "build" / os.environ.get("TIERCE_TEST_BUILD", "rel") / "bin" / "tierce"
RATIO = 1.45  # of bf16, the goal of docs/inside/design/015-fewer-bytes.md


def run_tool(*args):
    return subprocess.run([sys.executable, TOOL, *map(str, args)], capture_output=True, text=True)


@pytest.mark.parametrize("args, message", [
    ((ROOT / "build" / "samples",), "is in the source tree; choose a folder outside of it"),
    (("--tokens", "40", "/nonexistent/samples"), "--tokens is 40; it must be a multiple of 16")])
def test_what_is_rejected(args, message):
    done = run_tool(*args)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert not (ROOT / "build" / "samples").exists()


@pytest.mark.long
def test_ratio_of_a_trained_model(tmp_path):
    done = run_tool("--tokens", "512", tmp_path)
    assert done.returncode == 0, done.stderr
    for text in "english", "code", "chat":
        path = tmp_path / f"{text}.bf16"
        assert path.stat().st_size == 512 * 30 * 2 * 3 * 64 * 2
        rows = subprocess.run([EXECUTABLE, "bench", "codec", "--csv", "--seconds", "0.01", "--kv", path],
                              capture_output=True, text=True, check=True, cwd=tmp_path).stdout
        sizes = [float(row["value"]) for row in csv.DictReader(rows.splitlines())
                 if row["case"].startswith("size of bf16")]
        assert sizes and all(100 / size >= RATIO for size in sizes), (text, sizes)
