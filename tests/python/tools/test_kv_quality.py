# SPDX-License-Identifier: Apache-2.0
"""tools/kv_quality.py: the lossless codec changes nothing, the lossy ones little, on the KV of a trained model; and
tools/kv_transform.py, an experiment: with small steps its errors are small.
Without the model the test fails: random weights say nothing of quality."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run_tool(tool, *args):
    return subprocess.run([sys.executable, ROOT / "tools" / tool, *map(str, args)], capture_output=True, text=True)


def rows_of(done):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]


@pytest.mark.parametrize("tool, args, message", [
    ("kv_quality.py", ("--tokens", "300"), "--tokens is 300; it must be a multiple of 256"),
    ("kv_quality.py", ("--restore", "/nonexistent/codec_restore"),
     "/nonexistent/codec_restore does not exist; build the target codec_restore (cmake --preset dev"),
    ("kv_quality.py", ("int8", "int9"), "there is no codec int9; there are lossless, int8, fp8, int4, cachegen"),
    ("kv_quality.py", ("--quality", "/tmp/none.json"), "--quality requires --prompt"),
    ("kv_quality.py", ("--prompt", __file__, "--quality", "/nonexistent/q.json"),
     "--quality /nonexistent/q.json cannot be written; create the folder /nonexistent"),
    ("kv_blend.py", ("--quality", "/nonexistent/q.json"),
     "--quality /nonexistent/q.json cannot be written; create the folder /nonexistent"),
    ("kv_quality.py", ("--prompt", "/nonexistent/text"), "--prompt /nonexistent/text is not a file"),
    ("kv_transform.py", ("0.5", "0"), "a step is 0.0; it must be above 0")])
def test_what_is_rejected(tool, args, message):
    done = run_tool(tool, "--model", "/nonexistent/model", *args)
    assert done.returncode == 2 and message in done.stderr, done.stderr


def opens_the_gate(folder):
    """A measurement of two texts, as an operator makes it, and the gate of the connector."""
    from tierce import _core
    from tierce.vllm.identity import Unsupported
    from tierce.vllm.lossy import read_lossy_gate

    file, texts = folder / "quality.json", [ROOT / "docs" / "using" / name for name in ("operation.md", "vllm.md")]
    options = [word for text in texts for word in ("--prompt", text)]
    done = run_tool("kv_quality.py", "--model", folder / "model", "--tokens", "512", "--next", "128", *options,
                    "--quality", file, "int8", "int4")
    assert done.returncode == 0, done.stderr
    rows = rows_of(done)
    assert [row[:2] for row in rows] == [[text.name, codec] for text in texts for codec in ("int8", "int4")]
    weights = _core.fingerprint(str(folder / "model"))
    gate = read_lossy_gate(str(file), weights, "bfloat16", "int8", 90)
    worst = min(float(row[5].rstrip(" %")) for row in rows if row[1] == "int8")
    assert abs(gate.agreement - worst) < 0.1 and gate.kl < 0.02
    for weights, codec, bound in ((weights, "fp8", 0), (weights, "int8", 100.1), ("aa", "int8", 0)):
        with pytest.raises(Unsupported):
            read_lossy_gate(str(file), weights, "bfloat16", codec, bound)


@pytest.mark.long
def test_quality_of_a_trained_model(tmp_path):
    done = run_tool("kv_quality.py", "--model", tmp_path / "model", "--tokens", "512", "--next", "128")
    assert done.returncode == 0, done.stderr
    rows = rows_of(done)
    assert len(rows) == 15, done.stdout
    for text, codec, ratio, distance, kl, agreement, _, _ in rows:
        agreement = float(agreement.rstrip(" %"))
        if codec == "lossless":
            assert (float(distance), float(kl), agreement) == (0, 0, 100), (text, codec)
        elif codec in ("int8", "fp8"):
            assert float(ratio) > 1.9 and float(kl) < 0.02 and agreement > 90, (text, codec, kl, agreement)
        else:
            assert float(ratio) > 3.5, (text, codec, ratio)
    opens_the_gate(tmp_path)
    done = run_tool("kv_transform.py", "--model", tmp_path / "model", "--tokens", "512", "--next", "128", "0.02")
    assert done.returncode == 0 and len(rows_of(done)) == 3, done.stderr
    for text, _, ratio, of_model, bound, distance, kl, _, _, _ in rows_of(done):
        assert float(distance) < 0.02 and float(kl) < 0.02, (text, distance, kl)
        assert 0 < float(ratio) < float(bound) and 0 < float(of_model) < float(bound), (text, ratio, of_model, bound)
