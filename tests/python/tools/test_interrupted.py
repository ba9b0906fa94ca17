# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in tools/setup and tools/run_tests: one line names it, and the exit code is 130."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"

# A program that says that it has begun, and then takes longer than the test.
SLOW = '#!/bin/sh\necho $$ >"$BEGUN.new" && mv "$BEGUN.new" "$BEGUN"\nexec sleep 300\n'
# A python3 whose environments have a pip that is such a program.
PYTHON = f"""#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3/bin" && cp "$SLOW" "$3/bin/python"
else
    exec {sys.executable} "$@"
fi
"""


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def tree(tmp_path):
    """A folder with tools/ and nothing to build."""
    (tmp_path / "tools").mkdir()
    for name in ("setup", "run_tests", "requirements-vllm.txt", "requirements-test.txt"):
        shutil.copy(TOOLS / name, tmp_path / "tools" / name)
    return tmp_path


def interrupt(tree, command, **env):
    """Ctrl-C after the slow program has begun. Returns the exit code and the output."""
    begun = tree / "begun"
    process = subprocess.Popen(
        command, cwd=tree, env={**os.environ, "BEGUN": str(begun), **env}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        # A program that was started with SIGINT ignored would ignore it too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    try:
        give_up = time.monotonic() + 60
        while not begun.exists() and process.poll() is None and time.monotonic() < give_up:
            time.sleep(0.01)
        assert begun.exists(), process.communicate(timeout=1)[0] if process.poll() is not None else "not begun"
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=60)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output, int(begun.read_text())


def test_setup(tree):
    if shutil.disk_usage(tree).free < 5 << 30:
        pytest.skip("tools/setup requires 4 GB")
    slow = program(tree / "slow", SLOW)
    code, output, _ = interrupt(tree, ["tools/setup", "python"], PYTHON=str(program(tree / "python3", PYTHON)),
                                SLOW=str(slow), TIERCE_VENV=str(tree / "venv"))
    assert code == 130 and output.endswith("setup: interrupted; run the same command again\n"), output
    assert "pip cannot install" not in output


def test_run_tests(tree):
    program(tree / "bin" / "cmake", SLOW)
    code, output, begun = interrupt(tree, [sys.executable, "tools/run_tests", "--no-setup", "--only", "asan"],
                                    PATH=f"{tree / 'bin'}:{os.environ['PATH']}")
    assert code == 130, output
    # The build begins a little before the stage says so.
    lines = [line for line in output.splitlines() if line != "asan: building and running"]
    assert lines[0].startswith("interrupted: "), output
    assert lines[-1] == "0 passed, 0 failed" and "Traceback" not in output
    with pytest.raises(ProcessLookupError):
        os.kill(begun, 0)
