# SPDX-License-Identifier: Apache-2.0
"""The connector with KV in the memory of a GPU: on the driver of tests/support/cuda, which takes the place of a real
one. So the tests of the files below run in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")

HERE = Path(__file__).resolve().parent
DRIVER = HERE.parents[2] / "build" / "dev" / "tests" / "cuda" / "libcuda.so.1"


FILES = ["cuda_steps.py", "cuda_groups.py", "cuda_ranks.py", "cuda_failure.py"]  # the GPU has failed after the last file


def test_connector():
    if not DRIVER.exists():
        pytest.skip(f"{DRIVER} is not built: make build")
    files = [str(HERE / name) for name in FILES]
    path = os.pathsep.join([str(HERE.parents[2] / "python"), *sys.path])
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
                          env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4_000:]
