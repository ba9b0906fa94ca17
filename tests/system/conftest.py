# SPDX-License-Identifier: Apache-2.0
"""A real vLLM on the CPU with the smallest model; see engine_host.py."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "demo"))

ANSWER_SECONDS = 240
BLOCK, CHUNK = 32, 64  # tokens
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # One thread: with more, each layer would wait for whatever else keeps a core busy.
    "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def pytest_configure(config):
    config.addinivalue_line("markers", "long: takes minutes; left out of `make test`")


def environment():
    out = {k: v for k, v in os.environ.items()
           if not k.startswith("TIERCE_") and k != "PYTHONHASHSEED"}
    path = [str(ROOT / "python"), out.get("PYTHONPATH", "")]
    return {**out, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(p for p in path if p)}


class HostError(Exception):
    """A command failed in the host; its text is the traceback there."""


class Host:
    """A running engine_host.py. Methods of its Host are called by name."""

    def __init__(self, folder):
        self.log = folder / f"host-{time.monotonic_ns()}.log"
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("engine_host.py")), str(self.log)],
            env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True)

    def __getattr__(self, name):
        return lambda **arguments: self.call(name, arguments)

    def call(self, name, arguments):
        self.process.stdin.write(json.dumps([name, arguments]) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.kill()
            raise HostError(f"{name}: no answer; end of the log:\n{self.log_text()[-4000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise HostError(f"{name}: {answer['error']}\n{self.log_text()[-2000:]}")
        return answer["value"]

    def log_text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def kill(self):
        """SIGKILL for the process and all its children: nothing is closed in an orderly way."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("tierce")


@pytest.fixture(scope="session")
def models(work):
    """Two models that differ in nothing but the seed of their weights."""
    from make_model import make_model

    return [make_model(str(work / f"model-{seed}"), "test", seed) for seed in (7, 8)]


@pytest.fixture(scope="session")
def hosts(work):
    """start() -> the host; a new one if the last was killed."""
    running = []

    def start():
        if not running or running[-1].process.poll() is not None:
            running.append(Host(work))
        return running[-1]

    yield start
    for host in running:
        host.kill()


@pytest.fixture
def engine(hosts, models):
    """start(store, ...) -> a host with an engine, which is stopped when the test ends."""
    started = []

    def start(store=None, model=None, **options):
        h = hosts()
        h.start(model=model or models[0], store=store, **options)
        started.append(h)
        return h

    yield start
    for h in started:
        if h.process.poll() is None:
            h.stop()


@pytest.fixture(scope="session")
def expect(hosts, models):
    """expect(prompts, ...) -> the answers of an engine without a connector. Asked before the test
    starts its own engine, since both use one host; each is computed once."""
    known = {}

    def ask(prompts, model=None, **options):
        model = model or models[0]
        settings = {k: options.pop(k) for k in list(options) if k not in ("tokens", "together")}
        key = json.dumps([prompts, model, options, settings])
        if key not in known:
            host = hosts()
            host.start(model=model, **settings)
            known[key] = answers(host.generate(prompts=prompts, **options))
            host.stop()
        return known[key]

    return ask


@pytest.fixture
def store(tmp_path):
    """Settings of a store of its own for each test."""
    return {"disk.path": str(tmp_path / "store"), "disk.size": "256MiB", "memory.size": "64MiB",
            "chunk.tokens": CHUNK, "disk.flush_interval": "50ms", "disk.lock_wait": "2s"}


def prompt(seed, tokens, prefix=()):
    draw = random.Random(seed)
    return [*prefix, *(draw.randrange(256) for _ in range(tokens - len(prefix)))]


def answers(outputs):
    return [o["answer"] for o in outputs]


def loaded(outputs, tier):
    return [o["report"][f"tierce.{tier}_tokens"] for o in outputs]
