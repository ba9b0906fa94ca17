# SPDX-License-Identifier: Apache-2.0
"""Programs beside an engine: real processes."""

import fcntl
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tierce import _core, programs
from tierce.vllm.identity import ConfigError
from tierce.vllm.settings import Settings

SECONDS = 60
PYTHON = str(Path(programs.__file__).resolve().parents[1])


class Lines(logging.Handler):
    """Lines of the log, and waits for one."""

    def __init__(self):
        super().__init__()
        self.lines, self.changed = [], threading.Condition()

    def emit(self, record):
        with self.changed:
            self.lines.append((record.levelname, record.getMessage()))
            self.changed.notify_all()

    def wait(self, part, level="INFO"):
        with self.changed:
            assert self.changed.wait_for(lambda: any(part in line for _, line in self.lines), SECONDS), self.lines
            found = [line for at, line in self.lines if part in line]
            assert (level, found[0]) in self.lines
            return found


@pytest.fixture
def lines():
    handler, logger = Lines(), logging.getLogger("tierce")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def program(folder, name, text, mode=0o644):
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.fixture
def start(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    started = []

    def begin(*paths, settings=None):
        started.append(programs.start([programs.command_of(path) for path in paths], "worker", 0, 2, settings or {}))
        return started[-1]

    yield begin
    for running in started:
        if running.thread.is_alive():
            running.stop()


def await_death(pid):
    """Of a process that another one reaps."""
    until = time.monotonic() + SECONDS
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([fd], [], [], until - time.monotonic())[0], f"{pid} lives"
    os.close(fd)


def test_lines_environment_and_status(tmp_path, lines, start, monkeypatch):
    monkeypatch.setenv("TIERCE_REMOTE_URLS", "redis://u:sesame@h")
    text = ("import json, os, sys\nmine = {k: v for k, v in os.environ.items() if k.startswith('TIERCE_')}\n"
            "print(json.dumps(mine))\nprint('to the\\x1berror', file=sys.stderr)\nsys.stdout.write('no newline')\nsys.exit(%d)")
    running = start(program(tmp_path, "three.py", text % 3), program(tmp_path, "shell.sh", "echo from the shell"),
                    program(tmp_path, "by_itself", f"#!{sys.executable}\n" + text % 0, 0o755),
                    program(tmp_path, "broken", "#!/nowhere/interpreter\n", 0o755), settings={"memory.size": "1GiB"})
    lines.wait("three.py (process", "WARNING")
    told = json.loads(next(line for line in lines.wait("three.py: {")).partition(": ")[2])
    assert json.loads(told.pop("TIERCE_PLUGIN_CONFIG")) == {"memory.size": "1GiB"}
    assert told == {"TIERCE_PLUGIN_ROLE": "worker", "TIERCE_PLUGIN_WORKER": "0", "TIERCE_PLUGIN_WORKERS": "2"}
    assert lines.wait("three.py: to the") == ["three.py: to the error"]
    assert lines.wait("three.py: no newline")
    lines.wait("shell.sh: from the shell")
    lines.wait("by_itself (process")
    assert "exited with status 0" in lines.wait("by_itself (process")[0]
    lines.wait("broken (process", "WARNING")
    running.stop()
    assert not running.thread.is_alive()
    ended = [line for _, line in lines.lines if "three.py (process" in line]
    assert len(ended) == 1 and ended[0].endswith("exited with status 3; it is not started again")
    assert not any("sesame" in line for _, line in lines.lines)


def test_they_end_with_the_engine(tmp_path, lines, start):
    polite = program(tmp_path, "polite.sh", "sh -c 'trap \"\" TERM; echo left $$; while :; do sleep 0.05; done' &\n"
                     "trap 'echo goodbye; exit 0' TERM\necho ready\nwhile :; do sleep 0.05; done\n")
    deaf = program(tmp_path, "deaf.py", "import os, signal, subprocess, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                   "child = subprocess.Popen(['sleep', '1000'])\nprint('ready', child.pid)\ntime.sleep(1000)")
    running = start(polite, deaf)
    lines.wait("polite.sh: ready")
    child = int(lines.wait("deaf.py: ready")[0].split()[-1])
    left = int(lines.wait("polite.sh: left")[0].split()[-1])
    running.stop()
    assert not running.thread.is_alive()
    lines.wait("polite.sh: goodbye")
    assert "exited with status 0" in lines.wait("polite.sh (process")[0]
    assert "was ended by signal 9" in lines.wait("deaf.py (process")[0]
    await_death(child)
    await_death(left)


def test_a_program_that_writes_on_gives_way(lines):
    """Otherwise others would not be read while it writes, and it would not end with the engine."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(writing, b"y" * (1 << 20))
    loud = programs.Program.__new__(programs.Program)
    with open(reading, "rb", buffering=0) as stdout:
        loud.name, loud.rest, loud.process = "loud", b"", SimpleNamespace(stdout=stdout)
        os.set_blocking(reading, False)
        turns = 0
        while select.select([reading], [], [], 0)[0]:
            assert loud.read()
            turns += 1
    os.close(writing)
    assert turns > 1
    assert sum(line.count("y") for _, line in lines.lines) == 1 << 20


def test_they_end_when_the_engine_is_killed(tmp_path):
    path = program(tmp_path, "endless.py", "import os, time\nprint('pid', os.getpid())\ntime.sleep(1000)")
    engine = subprocess.Popen(
        [sys.executable, "-c", "import logging, sys, time\nfrom tierce import programs\n"
         "logging.basicConfig(level=logging.INFO, stream=sys.stdout)\n"
         "running = programs.start([programs.command_of(sys.argv[1])], 'worker', 0, 1, {})\ntime.sleep(1000)", path],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": PYTHON, "PYTHONUNBUFFERED": ""})
    ends = threading.Timer(SECONDS, engine.kill)  # a line that never comes ends the test
    ends.start()
    pid = next((int(line.split()[-1]) for line in engine.stdout if "endless.py: pid" in line), None)
    ends.cancel()
    assert pid is not None, "the program has told nothing"
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    engine.stdout.close()
    await_death(pid)


def test_settings(tmp_path):
    good = program(tmp_path, "good.py", "")
    settings = Settings(None, {"plugins.start": f"{good}  {good}", "remote.urls": "redis://u:sesame@h?password=sesame"})
    commands, values = settings.programs()
    assert commands == [[sys.executable, good]] * 2
    assert values["remote.urls"] == "redis://h?password=***" and values["memory.size"] and values["plugins.start"]
    assert Settings(None, {}).programs()[0] == []
    wrong = {"good.py": "must be absolute", "/nowhere/a.py": "No such file", str(tmp_path): "not a regular file",
             program(tmp_path, "others.py", "", 0o666): "writable for others",
             program(tmp_path, "text.txt", ""): "does not end in .py or .sh"}
    for path, part in wrong.items():
        with pytest.raises(ConfigError, match=part):
            Settings(None, {"plugins.start": path}).programs()
    with pytest.raises(_core.Error, match="there is no parameter"):
        _core.Engine.programs(None, {"plugins.stop": "x"})
