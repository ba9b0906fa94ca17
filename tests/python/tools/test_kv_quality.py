# SPDX-License-Identifier: Apache-2.0
"""tools/kv_quality.py: the lossless codec changes nothing, the lossy ones little, on the KV of a trained model.
Without the model the test fails: random weights say nothing of quality."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOL = ROOT / "tools" / "kv_quality.py"


def run_tool(*args):
    return subprocess.run([sys.executable, TOOL, *map(str, args)], capture_output=True, text=True)


@pytest.mark.parametrize("args, message", [
    (("--tokens", "300"), "--tokens is 300; it must be a multiple of 256"),
    (("--restore", "/nonexistent/codec_restore"), "/nonexistent/codec_restore does not exist; build the target")])
def test_what_is_rejected(args, message):
    done = run_tool("--model", "/nonexistent/model", *args)
    assert done.returncode == 2 and message in done.stderr, done.stderr


@pytest.mark.long
def test_quality_of_a_trained_model(tmp_path):
    done = run_tool("--model", tmp_path / "model", "--tokens", "512", "--next", "128")
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    assert len(rows) == 15, done.stdout
    for text, codec, ratio, distance, kl, agreement, _, _ in rows:
        agreement = float(agreement.rstrip(" %"))
        if codec == "lossless":
            assert (float(distance), float(kl), agreement) == (0, 0, 100), (text, codec)
        elif codec in ("int8", "fp8"):
            assert float(ratio) > 1.9 and float(kl) < 0.02 and agreement > 90, (text, codec, kl, agreement)
        else:
            assert float(ratio) > 3.5, (text, codec, ratio)
