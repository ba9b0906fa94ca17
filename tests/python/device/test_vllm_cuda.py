# SPDX-License-Identifier: Apache-2.0
"""The connectors with KV in the memory of a GPU: on the driver of tests/support/cuda, which takes the place of a real
one. So the tests of each of the files below run in a process of their own."""

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Each worker of pytest reads this file, and the import of vLLM takes 20 seconds of a processor.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")

HERE = Path(__file__).resolve().parent
DRIVER = HERE.parents[2] / "build" / "dev" / "tests" / "cuda" / "libcuda.so.1"
FILES = ["cuda_steps.py", "cuda_groups.py", "cuda_ranks.py", "cuda_blend.py", "cuda_failure.py", "cuda_tensorrt_llm.py",
         "cuda_sglang_linker.py"]
SECONDS = 540  # for a file, and for the start before the first one


class Programs:
    """The process of cuda_programs.py, which is started with the first of its programs."""

    def __init__(self):
        self.process = None

    def run(self, file, log):
        """Returns the exit code of the tests of a file; None if they have not ended in time."""
        if self.process is None:
            path = os.pathsep.join([str(HERE.parents[2] / "python"), *sys.path])
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "cuda_programs.py")], env={**os.environ, "PYTHONPATH": path}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self.process.stdin.write(json.dumps([str(file), str(log)]) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        answer = self.process.stdout.readline() if ready else ""
        if not answer:
            self.end()
        return int(answer) if answer else None

    def end(self):
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            self.process = None


@pytest.fixture(scope="module")
def programs():
    out = Programs()
    yield out
    out.end()


@pytest.mark.parametrize("file", FILES)
def test_connector(programs, tmp_path, file):
    if not DRIVER.exists():
        pytest.skip(f"{DRIVER} is not built: make build")
    log = tmp_path / "log"
    code = programs.run(HERE / file, log)
    assert code == 0, log.read_text(errors="replace")[-24_000:] if log.exists() else "no tests ran"
