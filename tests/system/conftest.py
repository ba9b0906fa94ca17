# SPDX-License-Identifier: Apache-2.0
"""Shared by the system tests: a small model, prompts, and vLLM engines in child processes."""

import ctypes
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

import works_with

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "demo"))
from run import shared_memory_of  # noqa: E402

# Tests of other folders use functions of these: pytest itself adds only the folders of the files that it runs.
sys.path += [str(ROOT / "tests" / "system" / folder) for folder in ("connector", "engines", "models", "proxy")]

# What an engine of several worker processes is started with, by kind of parallelism.
WORKERS = {"tp": {"tensor_parallel_size": 2},
           "pp": {"pipeline_parallel_size": 2, "worker_extension_cls": "pp_on_cpu.Extension"}}

ANSWER_SECONDS = 400  # the start of an engine on a busy machine
SHARED_MEMORY, ALL = Path("/dev/shm"), ("",)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # One thread: with more, each layer would wait for whatever else keeps a core busy.
    "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The embedding of tensor ranks would be compiled, although `enforce_eager` is set.
    "TORCH_COMPILE_DISABLE": "1",
}


def pytest_configure(config):
    config.pluginmanager.register(works_with.Recorder(), "works-with")
    config.addinivalue_line("markers", "long: takes minutes; left out of `make test`")
    own_shared_memory()


def own_shared_memory():
    """Mounts a /dev/shm for this process and its children only, if that is permitted: what a killed vLLM leaves
    there ends with them."""
    unshare_mounts, recursive_private = 0x20000, 0x44000  # CLONE_NEWNS, MS_REC | MS_PRIVATE
    libc = ctypes.CDLL(None)
    if libc.unshare(unshare_mounts) == 0 and libc.mount(None, b"/", None, recursive_private, None) == 0:
        libc.mount(b"tmpfs", bytes(SHARED_MEMORY), b"tmpfs", 0, None)


def environment():
    out = {k: v for k, v in os.environ.items()
           if not k.startswith("TIERCE_") and k != "PYTHONHASHSEED"}
    path = [str(ROOT / "python"), out.get("PYTHONPATH", "")]
    return {**out, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(p for p in path if p)}


def kill_group(process, left=()):
    """SIGKILL for a process and its children: nothing is closed in an orderly way. Python's shared
    memory, which a killed vLLM leaves in /dev/shm, is removed, and the files `left`."""
    left = shared_memory_of(process.pid, ALL).union(left)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    for file in left:
        file.unlink(missing_ok=True)


class HostError(Exception):
    """A command failed in the host; the text is the traceback there."""


ENGINE = str(ROOT / "tests" / "system" / "engines" / "engine.py")


class Forked:
    """A process that another has forked for us, with as much of a Popen as we use."""

    def __init__(self, pid, commands):
        self.pid, self.handle = pid, os.pidfd_open(pid)
        self.stdin, self.stdout = commands.makefile("w"), commands.makefile("r")

    def poll(self):
        return 0 if select.select([self.handle], [], [], 0)[0] else None

    def wait(self, seconds=None):
        if not select.select([self.handle], [], [], seconds)[0]:
            raise TimeoutError(f"process {self.pid} still runs after {seconds} s")


class Forker:
    """The process that has imported vLLM and forks what runs it; it is started with the first of them."""

    def __init__(self):
        self.process = self.folder = None

    def fork(self, function, *arguments):
        """A process that calls this function of engine.py."""
        if self.process is None:
            self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # Sockets that killed processes of vLLM and multiprocessing leave there are removed with
            # the folder.
            self.folder = tempfile.mkdtemp(prefix="tierce-vllm-")
            self.process = subprocess.Popen(
                [sys.executable, ENGINE, "fork"], env={**environment(), "TMPDIR": self.folder}, stdin=theirs,
                stdout=subprocess.DEVNULL, start_new_session=True)
            theirs.close()
        ours, theirs = socket.socketpair()
        socket.send_fds(self.requests, [json.dumps([function, *arguments]).encode()], [theirs.fileno()])
        theirs.close()
        return Forked(int(self.requests.recv(32)), ours)

    def end(self):
        if self.process is not None:
            kill_group(self.process)
            shutil.rmtree(self.folder, ignore_errors=True)


forker = Forker()


def pytest_unconfigure():
    forker.end()


class Host:
    """A running engine.py. Methods of its Host are called by name."""

    def __init__(self, log, *core, python=None, env=None):
        """Forked, unless another `python` or more in its environment is wanted."""
        arguments = [str(log), *map(str, core)]
        self.log = log
        self.running = False  # an engine
        # Files of shared memory that engines have used. A worker that is killed does not remove its own, and then no
        # process may have them mapped.
        self.shared = set()
        if python is None and env is None:
            self.process = forker.fork("serve", *arguments)
            return
        self.process = subprocess.Popen(
            [python or sys.executable, ENGINE, *arguments], env={**environment(), **(env or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def __getattr__(self, name):
        return lambda **arguments: self.call(name, arguments)

    def call(self, name, arguments):
        self.process.stdin.write(json.dumps([name, arguments]) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        line = self.process.stdout.readline() if ready else ""
        if name == "start":
            self.shared |= shared_memory_of(self.process.pid, ALL)
        if not line:
            self.kill()
            raise HostError(f"{name}: no answer; end of the log:\n{self.text()[-4000:]}")
        answer = json.loads(line)
        if "error" in answer:
            if name == "start":  # vLLM keeps parts of the engine in the process, the connector among them
                self.kill()
            raise HostError(f"{name}: {answer['error']}\n{self.text()[-2000:]}")
        if name == "stop":  # vLLM's workers do not remove what their ranks share
            for file in self.shared - shared_memory_of(self.process.pid, ALL):
                file.unlink(missing_ok=True)
        self.running = self.running if name not in ("start", "stop") else name == "start"
        return answer["value"]

    def text(self, start=0):
        return self.log.read_text(errors="replace")[start:] if self.log.exists() else ""

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        self.running = False
        kill_group(self.process, self.shared)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """model(seed) -> folder of the small test model with weights of that seed."""
    from make_model import make_model

    made = {}

    def model(seed=7):
        if seed not in made:
            folder = tmp_path_factory.mktemp(f"model{seed}")
            make_model(str(folder), "test", seed)
            made[seed] = str(folder)
        return made[seed]

    return model


@pytest.fixture(scope="session")
def hosts(tmp_path_factory):
    """start() -> a host without an engine; a new process only if all others have one."""
    folder = tmp_path_factory.mktemp("hosts")
    made = []

    def start():
        for host in made:
            if host.alive() and not host.running:
                return host
        made.append(Host(folder / f"{len(made)}.log"))
        return made[-1]

    yield start
    for host in made:
        host.kill()


def engines(hosts, models):
    """start(store, ...) -> a host with an engine; ends all of them."""
    started = []

    def start(store=None, model=None, **options):
        host = hosts()
        host.mark = len(host.text())  # where this engine's part of the log begins
        host.start(model=model or models(), store=store, **options)
        started.append(host)
        return host

    yield start
    for host in started:
        if host.alive() and host.running:
            host.stop()


@pytest.fixture
def node(tmp_path):
    """A node of a test's own; node.store: the configuration of an engine that is its client."""
    from node_process import Node

    out = Node(tmp_path, f"--listen.native={tmp_path}/native", "--memory.size=256MiB",
               f"--control.socket={tmp_path}/control")
    out.store = {"node.socket": f"{tmp_path}/native", "timeout.lookup": "20s"}
    yield out
    out.kill()


engine = pytest.fixture(engines)
module_engine = pytest.fixture(engines, scope="module")
session_engine = pytest.fixture(engines, scope="session")


@pytest.fixture(scope="session")
def prompts():
    """Five prompts of 700 to 1,000 tokens that share their first 300."""
    source = random.Random(20261121)
    shared = [source.randrange(256) for _ in range(300)]
    return [shared + [source.randrange(256) for _ in range(400 + 75 * i)] for i in range(5)]


@pytest.fixture(scope="session")
def expected(session_engine, hosts, models, prompts):
    """expected(...) -> the answers of a vLLM without a connector, each computed once."""
    plain, known = [], {}

    def ask(asked=None, seed=7, **options):
        asked = prompts if asked is None else asked
        key = json.dumps([asked, seed, options])
        if key in known:
            return known[key]
        if seed == 7:
            if not plain:
                plain.append(session_engine())
            known[key] = answers(plain[0].generate(prompts=asked, **options))
        else:
            host = hosts()
            host.start(model=models(seed))
            known[key] = answers(host.generate(prompts=asked, **options))
            host.stop()
        assert len(asked) == 1 or len({tuple(a) for a in known[key]}) > 1, "all answers are alike"
        return known[key]

    return ask


@pytest.fixture(scope="session")
def without_cache(session_engine):
    """without_cache(options, ask) -> a function of a name, whose value is that of ask(host) for a vLLM without a cache
    that was started with options(name). Each value is computed once."""

    def make(options, ask):
        @cache
        def plain(name):
            host = session_engine(**options(name))
            try:
                return ask(host)
            finally:
                if host.alive():
                    host.stop()

        return plain

    return make


@pytest.fixture(scope="session")
def plain(without_cache, models, prompts):
    """plain(workers) -> the answers of a vLLM with workers of this kind and without a cache."""
    return without_cache(lambda name: {"model": models(), **WORKERS[name]},
                         lambda host: answers(host.generate(prompts=prompts)))


def answers(outputs):
    return [o["answer"] for o in outputs]


def varied(answered):
    """Answers that depend on the whole prompts; others would also be right with wrong KV."""
    assert all(len(set(answer)) > 2 for answer in answered), answered
    return answered


def loaded(outputs, what):
    """Tokens by their origin: local, memory, disk or failed; a list with one number an output."""
    return [(o["report"] or {}).get(f"tierce.{what}_tokens", 0) for o in outputs]


def why(process, output):
    """The answer of `tierce why` about a request that an engine has served. `process`: the id of it or of its node, or
    the path of a control socket."""
    from manager_process import executable

    said = subprocess.run([str(executable()), "why", str(process), "--request", output["id"], "--json"],
                          env=environment(), stdout=subprocess.PIPE, timeout=60, check=False)
    return json.loads(said.stdout)


@pytest.fixture
def small_disk(tmp_path):
    """small_disk(size) -> a folder on a file system of its own."""
    made = []

    def mount(size):
        folder = tmp_path / size
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("cannot mount a small file system here")
        made.append(folder)
        return folder

    yield mount
    for folder in made:
        subprocess.run(["umount", "-l", str(folder)], check=True)
