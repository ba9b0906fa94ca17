# SPDX-License-Identifier: Apache-2.0
"""The connector with KV in the memory of a GPU: on the driver of tests/support/cuda, which takes the place of a real
one. So the tests of each file below run in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")

HERE = Path(__file__).resolve().parent
DRIVER = HERE.parents[1] / "build" / "dev" / "tests" / "cuda" / "libcuda.so.1"


@pytest.mark.parametrize("file", ["cuda_steps.py", "cuda_failure.py", "cuda_groups.py", "cuda_ranks.py"])
def test_connector(file):
    if not DRIVER.exists():
        pytest.skip(f"{DRIVER} is not built: make build")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / file)],
                          env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1] / "python"), *sys.path])},
                          capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4_000:]
