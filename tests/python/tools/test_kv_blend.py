# SPDX-License-Identifier: Apache-2.0
"""tools/kv_blend.py: with all tokens recomputed, a blended prompt of a trained model is as the full one; with a share of them,
it is nearer to it the greater the share is. Without the model the test fails: random weights say nothing of quality."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run_tool(*args):
    return subprocess.run([sys.executable, ROOT / "tools" / "kv_blend.py", *map(str, args)], capture_output=True, text=True)


def test_what_is_rejected():
    """In one run of the interpreter for each, as argparse ends it."""
    for args, message in ((("--tokens", "100"), "--tokens is 100; it must be at least 128"),
                          (("--share", "101"), "--share is 101; it must be 0 to 100"),
                          (("--keys", "/nonexistent/blend_keys"), "/nonexistent/blend_keys does not exist; build the target")):
        done = run_tool("--model", "/nonexistent/model", *args)
        assert done.returncode == 2 and message in done.stderr, done.stderr


@pytest.mark.long
def test_quality_of_a_trained_model(tmp_path):
    done = run_tool("--model", tmp_path / "model", "--text", "english", "--tokens", "128", "--next", "32",
                    "--share", "0", "--share", "15", "--share", "100")
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    kl = {(source, share): float(kl) for _, source, share, _, kl, *_ in rows}
    assert len(kl) == 8, done.stdout
    assert kl["full", ""] == 0
    for source in ("alone", "lead"):
        assert kl[source, "100 %"] < 0.001, done.stdout
        assert kl[source, "15 %"] < kl[source, "0 %"] < kl["no documents", ""] / 2, done.stdout
