# SPDX-License-Identifier: Apache-2.0
"""tools/codec_ttft.py: a vLLM loads the KV of a trained model over a link and from disk, uncompressed and compressed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run_tool(*args):
    return subprocess.run([sys.executable, ROOT / "tools" / "codec_ttft.py", *map(str, args)], capture_output=True, text=True)


def test_what_is_rejected():
    """In one run of the interpreter for each, as argparse ends it."""
    for args, message in ((("--tokens", "300"), "--tokens is 300; it must be a multiple of 256"),
                          (("--rounds", "0"), "--rounds is 0; it must be at least 1"),
                          (("--gbit", "0"), "--gbit must be above 0"),
                          (("--tierce", "/nonexistent"), "--tierce /nonexistent does not exist; run make build")):
        done = run_tool("--model", "/nonexistent/model", *args)
        assert done.returncode == 2 and message in done.stderr, done.stderr


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")
def test_hits(tmp_path):
    tierce = next((ROOT / "build").glob("*/bin/tierce"))
    done = run_tool("--model", tmp_path / "model", "--tierce", tierce, "--tokens", "512", "--rounds", "1", "--text", "english",
                    "--gbit", "10")
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    assert [row[:2] for row in rows] == [["computed", ""]] + [
        [place, codec] for place in ("10 Gbit/s", "no limit", "disk") for codec in ("none", "lossless")]
    moved = [float(row[5]) for row in rows]
    for raw, coded in zip(moved[1::2], moved[2::2]):
        assert 11.2 < raw < 13 and 0.6 < coded / raw < 0.75, done.stdout  # 512 tokens of 22.5 KiB
    assert all(row[6] == "not known" for row in rows[2::2]), done.stdout  # too little was decompressed
