#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a setting of docs/using/scenarios.md on this machine, in some seconds and some megabytes:

    tools/demo/scenario.py NAME          --list prints the names

Starts engines with the configuration of the page. Only sizes, folders and addresses are replaced, and each replacement is printed;
for prefill and decode, whose settings are those of vLLM, only its addresses are used.
An engine stores the KV of a prompt; then this or another engine loads it. All loaded bytes are compared. The exit code is 0 only if
they are equal and have come from the expected place. Requires `make build`; vLLM and a GPU are not required.
"""

import argparse
import ctypes
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from daemon import Failed, Service, die_with_the_parent  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "using" / "scenarios.md"
FAKES = ROOT / "build" / "dev" / "tests" / "cuda"
BLOCK_TOKENS, BLOCKS, LAYERS, CELL = 16, 64, 2, 16 << 10
TOKENS, BYTES = BLOCKS * BLOCK_TOKENS, BLOCKS * LAYERS * CELL
IDS = array("i", range(BLOCKS))
PLACES = ("memory", "disk", "remote")  # as TIERCE_ORIGIN_ in tierce/engine.h
STEP_S = 60
SECRET = "someone", "something"  # of the server of S3 here


# ---- an engine, in a process of its own ---------------------------------------------------------

class HostMemory:
    """KV of an engine on CPUs."""

    stream = 0

    def __init__(self, view):
        self.layers = [ctypes.create_string_buffer(BLOCKS * CELL) for _ in range(LAYERS)]
        view.set_paged([ctypes.addressof(layer) for layer in self.layers], [CELL] * LAYERS, BLOCKS)

    def write(self, layer, data):
        self.layers[layer].raw = data

    def read(self, layer):
        return self.layers[layer].raw


class GpuMemory:
    """KV on the simulated GPU of the tests. The libraries are found by their names once they are loaded."""

    def __init__(self):
        self.driver, self.files = (ctypes.CDLL(str(FAKES / name), mode=ctypes.RTLD_GLOBAL)
                                   for name in ("libcuda.so.1", "libcufile.so.0"))
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        self.stream = stream.value
        self.layers = [self.allocate() for _ in range(LAYERS)]

    def attach(self, view):
        view.set_paged(self.layers, [CELL] * LAYERS, BLOCKS, device="cuda")
        wait_for(view.prepare, "the device was not ready")

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        if code != 0:
            raise Failed(f"{name} returned {code}")

    def allocate(self):
        address = ctypes.c_ulonglong()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(BLOCKS * CELL))
        return address.value

    def write(self, layer, data):
        self.driver.cuda_fake_kernel_write(ctypes.c_void_p(self.stream), ctypes.c_ulonglong(self.layers[layer]), data,
                                           ctypes.c_size_t(len(data)), b"the engine computes")

    def read(self, layer):
        data = ctypes.create_string_buffer(BLOCKS * CELL)
        self.driver.cuda_fake_kernel_read(ctypes.c_void_p(self.stream), data, ctypes.c_ulonglong(self.layers[layer]),
                                          ctypes.c_size_t(BLOCKS * CELL), b"the engine attends")
        self.call("cuStreamSynchronize", ctypes.c_void_p(self.stream))
        return data.raw


def wait_for(condition, what):
    until = time.monotonic() + STEP_S
    while not (answer := condition()):
        if time.monotonic() > until:
            raise Failed(f"{what} within {STEP_S} s")
        time.sleep(0.01)
    return answer


class EngineProcess:
    """Carries out the steps that main's process sends as lines of JSON."""

    def __init__(self, config, values, on_gpu):
        sys.path.insert(0, str(ROOT / "python"))
        from tierce import _core
        gpu = GpuMemory() if on_gpu else None
        self.engine = _core.Engine.open(config, values)
        self.view = self.engine.view({
            "weights": "00", "model": "demonstration", "kv_dtype": "bfloat16", "quantization": "", "layout": "blocks",
            "layer_count": LAYERS, "cell_bytes": [CELL] * LAYERS, "block_tokens": BLOCK_TOKENS, "chunk_blocks": 16,
            "algo": "sha256"})
        if gpu:
            gpu.attach(self.view)
        self.memory = gpu or HostMemory(self.view)
        self.chain = self.view.chain()
        self.chain.append(array("i", range(TOKENS)))
        self.kv = [random.Random(layer).randbytes(BLOCKS * CELL) for layer in range(LAYERS)]

    def store(self):
        store = self.view.store_begin(self.chain, BLOCKS, IDS, stream=self.memory.stream)
        for layer in range(LAYERS):
            self.memory.write(layer, self.kv[layer])
            store.layer(layer)
        if store.end() != BLOCKS or not self.engine.flush(STEP_S * 1000):
            raise Failed("not all blocks were stored")

    def load(self):
        """Tokens by the place that they have come from."""
        for layer in range(LAYERS):
            self.memory.write(layer, bytes(BLOCKS * CELL))
        wait_for(lambda: self.view.lookup(self.chain, 0, BLOCKS, 0, 0)[0] == BLOCKS, "not all blocks were found")
        load = self.view.load_begin(self.chain, 0, BLOCKS, IDS, stream=self.memory.stream)
        for layer in range(LAYERS):
            load.layer(layer)
        origins = load.end()
        if len(origins) != BLOCKS or 0 in origins:
            raise Failed("not all blocks were loaded")
        if [self.memory.read(layer) for layer in range(LAYERS)] != self.kv:
            raise Failed("loaded bytes differ from those that were stored")
        return {place: BLOCK_TOKENS * origins.count(number) for number, place in enumerate(PLACES, 1)}

    def direct_reads(self):
        """Chunks that the library for GPUDirect Storage has read, and chunks that are in the host's memory."""
        class Counts(ctypes.Structure):
            _fields_ = [(name, ctypes.c_uint64) for name in ("calls", "reads", "bytes")] + [
                (name, ctypes.c_uint) for name in ("buffers", "files", "reading")]
        self.memory.files.cufile_fake_counts.restype = Counts
        return self.memory.files.cufile_fake_counts().reads, self.engine.stats()["memory_chunks_now"]

    def offer(self, listen, token):
        """As a prefiller whose vLLM has computed the prompt. Returns the port."""
        host, _, port = listen.partition(":")
        port = self.engine.handover_start(host, int(port or 0))
        self.engine.handover_expect(token, STEP_S * 1000)
        self.engine.handover_open(token, BLOCK_TOKENS * self.view.handover_pin(self.chain, BLOCKS, token))
        return port

    def take(self, host, port, token):
        """As a decoder. Returns the bytes that it has read."""
        source = self.view.handover_source(host, port, token, 1, 0, STEP_S * 1000, None, False)
        blocks, count, why = self.view.handover_read(source, self.chain, 0, BLOCKS)
        source.end()
        if blocks != BLOCKS:
            raise Failed(f"the decoder read {blocks} of {BLOCKS} blocks: {why}")
        return count


def serve_steps(config, values, on_gpu):
    try:
        engine = EngineProcess(config, values, on_gpu)
        print(json.dumps({"value": "ready"}), flush=True)
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            print(json.dumps({"value": getattr(engine, name)(*arguments)}), flush=True)
    except Exception as error:  # whatever it is, the other process must print it
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)


class Engine:
    """A process of EngineProcess."""

    def __init__(self, run, name, config, values, on_gpu=False, **environment):
        self.name, self.log = name, run.folder / f"{name}.log".replace(" ", "-")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TIERCE_")}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--engine", json.dumps([str(config) if config else None, values, on_gpu])],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=die_with_the_parent,
                env={**clean, "XDG_RUNTIME_DIR": str(run.folder), **environment})
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": "the process has ended"}
        if "error" in answer:
            raise Failed(f"{self.name}: {answer['error']}\n{self.log.read_text()[-2000:]}")
        return answer["value"]

    def step(self, *step):
        print(json.dumps(step), file=self.process.stdin, flush=True)
        return self.answer()

    def store(self):
        self.step("store")
        print(f"{self.name}: stored {TOKENS:,} tokens, {BYTES >> 20} MiB")

    def load(self, place):
        """All tokens must come from this place."""
        came = self.step("load")
        print(f"{self.name}: loaded {TOKENS:,} tokens: " + ", ".join(
            f"{came[p]:,} from {'a remote store' if p == 'remote' else p}" for p in PLACES) + "; all bytes are equal")
        if came[place] != TOKENS:
            raise Failed(f"{self.name}: {TOKENS - came[place]:,} tokens have not come from {place}")

    def kill(self):
        self.process.kill()
        print(f"{self.name}: killed")
        self.end()

    def end(self):
        """The engine closes its store first, unless it was killed."""
        if not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


# ---- services beside the engines ----------------------------------------------------------------

class Server:
    """A program of others that listens on a port of loopback."""

    def __init__(self, run, port, command, **environment):
        self.log = run.folder / f"{command[0].rpartition('/')[2]}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            preexec_fn=die_with_the_parent, env={**os.environ, **environment})

        def answers():
            if self.process.poll() is not None:
                raise Failed(f"{command[0]} has ended:\n{self.log.read_text()[-2000:]}")
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", port)) == 0
        try:
            wait_for(answers, f"{command[0]} did not answer")
        except Failed:
            self.end()
            raise

    def end(self):
        self.process.kill()
        self.process.wait()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def python_of_tests():
    """The environment of tools/setup, with the packages of other projects."""
    venv = Path(os.environ.get("TIERCE_VENV", ROOT / ".venv"))
    if not (venv / "bin" / "python").exists():
        raise Failed(f"{venv} does not exist: run `tools/setup python`")
    return venv


def nixl_library():
    found = list(python_of_tests().glob("lib/python3*/site-packages/.nixl_cu12.mesonpy.libs/libnixl_capi.so"))
    if not found:
        raise Failed(f"NIXL is not installed in {python_of_tests()}")
    return str(found[0])


class Run:
    """The folder of a scenario, the configurations of the page, and the processes to end."""

    def __init__(self, folder, configs):
        self.folder, self.configs, self.started = folder, configs, []

    def keep(self, started):
        self.started.append(started)
        return started

    def end(self):
        for started in reversed(self.started):
            started.end()

    def text(self, number):
        return self.configs[number].read_text(encoding="utf-8")

    def found(self, number, pattern):
        """A value of the page. It is a mistake of the page if it lacks it."""
        match = re.search(pattern, self.text(number), re.M)
        if match is None:
            raise Failed(f"{PAGE}: configuration {number + 1} has no {pattern}")
        return match[1]

    def urls(self, number, **parts):
        """remote.urls of the page with other addresses: pattern -> replacement."""
        urls = self.found(number, r"^  urls: +(.*)$").strip('"')
        for old, new in parts.values():
            if old not in urls:
                raise Failed(f"{PAGE}: {urls} has no {old}")
            urls = urls.replace(old, new)
        return urls

    def say(self, number, values):
        """Every replaced value must be one of the page."""
        for name, value in values.items():
            section, _, key = name.rpartition(".")
            self.found(number, rf"^{section}:\n(?: .*\n)*? +({key}): ")
            print(f"configuration {number + 1}: {name} is {value} here")

    def engine(self, name, values, number=0, **more):
        return self.keep(Engine(self, name, self.configs[number], values, **more))

    def redis(self):
        if shutil.which("redis-server") is None:
            raise Failed("redis-server is not installed (Debian: redis-server)")
        port = free_port()
        self.keep(Server(self, port, ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir",
                                      str(self.folder)]))
        return f"127.0.0.1:{port}"

    def s3(self):
        """nanio, a small server of S3. Returns its address; the bucket is kv-cache."""
        (self.folder / "s3" / "kv-cache").mkdir(parents=True)
        port = free_port()
        self.keep(Server(self, port, [
            str(python_of_tests() / "bin" / "python"), "-m", "nanio", "serve", "--data-dir", str(self.folder / "s3"), "--host",
            "127.0.0.1", "--port", str(port), "--no-access-log", "--log-level", "warning"],
            NANIO_ACCESS_KEY=SECRET[0], NANIO_SECRET_KEY=SECRET[1]))
        return f"http://127.0.0.1:{port}"

    def service(self, name, *arguments, **environment):
        log = self.folder / f"{name}-{len(self.started)}.log"
        try:
            return self.keep(Service(ROOT, name, log, arguments, environment))
        except Failed as error:
            raise Failed(f"{error}\n{log.read_text()[-2000:] if log.exists() else ''}") from None

    def manager(self):
        """Its address for engines."""
        ports = (f"--listen.{kind}_port=0" for kind in ("grpc", "http", "admin_grpc", "admin_http"))
        return f"127.0.0.1:{self.service('manager', *ports, '--log.folder=').ports['gRPC']}"


S3_ENVIRONMENT = {"AWS_ACCESS_KEY_ID": SECRET[0], "AWS_SECRET_ACCESS_KEY": SECRET[1], "AWS_EC2_METADATA_DISABLED": "true",
                  "AWS_RETRY_MODE": "standard", "AWS_MAX_ATTEMPTS": "2", "NIXL_LOG_LEVEL": "FATAL"}


# ---- the scenarios ------------------------------------------------------------------------------

def memory(run):
    values = {"memory.size": "64MiB"}
    run.say(0, values)
    engine = run.engine("engine", values)
    engine.store()
    engine.load("memory")


def disk(run):
    values = {"memory.size": "64MiB", "disk.path": str(run.folder / "store"), "disk.size": "256MiB"}
    run.say(0, values)
    first = run.engine("engine 1", values)
    first.store()
    first.kill()
    run.engine("engine 2, on the same disk", values).load("disk")


def gpu_direct(run):
    for name in ("libcuda.so.1", "libcufile.so.0"):
        if not (FAKES / name).exists():
            raise Failed(f"{FAKES / name} does not exist: run\n"
                         "tools/setup packages test && cmake --preset dev && cmake --build --preset dev --target cufile_fake")
    print("The GPU and cuFile are simulated here: these are the libraries of the tests, in the host's memory.")
    values = {"memory.size": "64MiB", "disk.path": str(run.folder / "store"), "disk.size": "256MiB", "disk.gpu_direct": "16MiB"}
    run.say(0, values)
    first = run.engine("engine 1", values, on_gpu=True)
    first.store()
    first.end()
    second = run.engine("engine 2, on the same disk", values, on_gpu=True)
    second.load("disk")
    reads, chunks = second.step("direct_reads")
    print(f"{second.name}: cuFile has read {reads} chunks into the memory of the GPU; {chunks} are in memory of the host")
    if reads == 0 or chunks != 0:
        raise Failed("chunks have passed through the host's memory")


def two_engines(run, values, **environment):
    run.say(0, values)
    first = run.engine("engine 1", values, **environment)
    first.store()
    first.end()
    run.engine("engine 2", values, **environment).load("remote")


def redis(run):
    two_engines(run, {"memory.size": "64MiB", "remote.urls": run.urls(0, host=("cache.example:6379", run.redis()))})


def nixl(run):
    folder = run.folder / "shared"
    folder.mkdir()
    two_engines(run, {"memory.size": "64MiB", "remote.urls": run.urls(
        0, folder=("/mnt/shared/tierce", str(folder)), library=("/opt/nixl/libnixl_capi.so", nixl_library()))},
        **S3_ENVIRONMENT)


def s3_nixl(run):
    two_engines(run, {"memory.size": "64MiB", "remote.urls": run.urls(
        0, endpoint=("https://s3.example", run.s3()), library=("/opt/nixl/libnixl_capi.so", nixl_library()))},
        **S3_ENVIRONMENT)


def s3(run):
    two_engines(run, {"memory.size": "64MiB", "remote.urls": run.urls(0, endpoint=("https://s3.example", run.s3()))},
                **S3_ENVIRONMENT)


def peers(run):
    values = {"memory.size": "64MiB", "remote.urls": run.urls(0, manager=("10.0.0.1:6381", run.manager()))}
    run.say(0, values)
    first = run.engine("engine 1", values)
    first.store()
    run.engine("engine 2, while engine 1 runs", values).load("remote")


def prefill_decode(run):
    prefiller, decoder = (json.loads(run.text(number)) for number in range(2))
    token = random.randbytes(16).hex()
    for number in range(2):
        print(f"configuration {number + 1}: memory.size is 64MiB, and 10.0.0.5 is 127.0.0.1 here")
    first, second = (run.keep(Engine(run, name, None, {"memory.size": "64MiB"}))
                     for name in ("prefiller", "decoder"))
    first.store()
    port = first.step("offer", prefiller["handover.listen"].replace("10.0.0.5", "127.0.0.1"), token)
    host = decoder["handover.allow"].replace("10.0.0.5", "127.0.0.1")
    print(f"decoder: read {second.step('take', host, port, token) >> 20} MiB from the memory of the prefiller")
    second.load("memory")


def disk_and_redis(run):
    values = {"memory.size": "64MiB", "disk.path": str(run.folder / "store"), "disk.size": "256MiB",
              "remote.urls": run.urls(0, host=("cache.example:6379", run.redis()))}
    run.say(0, values)
    first = run.engine("engine 1", values)
    first.store()
    first.kill()
    run.engine("engine 2, on the same disk", values).load("disk")
    run.engine("engine 3, on an empty disk", {**values, "disk.path": str(run.folder / "other")}).load("remote")


def node_and_s3(run):
    urls = run.urls(0, endpoint=("https://s3.example", run.s3()))

    def node(name):
        folder = run.folder / name.replace(" ", "-")
        folder.mkdir(mode=0o700)
        values = {"memory.size": "64MiB", "disk.path": f"{folder}/store", "disk.size": "256MiB", "remote.urls": urls,
                  "listen.native": f"{folder}/native.sock"}
        run.say(0, values)
        print("configuration 1: the node has no ports for HTTP, RESP and lm:// that others know, and no control socket here")
        service = run.service("node", "--config", str(run.configs[0]), *(f"--{k}={v}" for k, v in values.items()),
                              "--listen.resp_port=0", "--listen.lm_port=0", "--listen.http_port=0", "--control.socket=",
                              **S3_ENVIRONMENT)
        return service, {"node.socket": values["listen.native"]}

    service, socket_of = node("node 1")
    run.say(1, socket_of)
    first = run.engine("engine 1 of node 1", socket_of, number=1)
    first.store()
    run.engine("engine 2 of node 1", socket_of, number=1).load("memory")
    run.started.remove(service)
    service.end()
    print("node 1: ended")
    run.engine("engine 3, of node 2 with an empty disk", node("node 2")[1], number=1).load("remote")


def peers_and_s3(run):
    values = {"memory.size": "64MiB", "remote.urls": run.urls(0, manager=("10.0.0.1:6381", run.manager()),
                                                              endpoint=("https://s3.example", run.s3()))}
    run.say(0, values)
    first = run.engine("engine 1", values, **S3_ENVIRONMENT)
    first.store()
    run.engine("engine 2, while engine 1 runs", values, **S3_ENVIRONMENT).load("remote")
    for engine in run.started[-2:]:
        engine.end()
        print(f"{engine.name}: ended")
    run.engine("engine 3, alone", values, **S3_ENVIRONMENT).load("remote")


SCENARIOS = {"memory": memory, "disk": disk, "gpu-direct": gpu_direct, "redis": redis, "s3": s3, "nixl": nixl,
             "s3-nixl": s3_nixl, "peers": peers, "prefill-decode": prefill_decode, "disk-and-redis": disk_and_redis,
             "node-and-s3": node_and_s3, "peers-and-s3": peers_and_s3}


def configurations(name, folder):
    """The YAML and JSON of the section that has this command, as files."""
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M):
        if re.search(rf"^tools/demo/scenario.py {name}$", section, re.M):
            files = []
            for number, (kind, text) in enumerate(re.findall(r"^```(yaml|json)\n(.*?)^```$", section, re.M | re.S), 1):
                files.append(folder / f"configuration-{number}.{kind}")
                files[-1].write_text(text, encoding="utf-8")
            return files
    raise Failed(f"{PAGE} has no scenario {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=SCENARIOS, metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--engine", help=argparse.SUPPRESS)  # in a process that a scenario starts
    options = parser.parse_args()
    if options.engine:
        serve_steps(*json.loads(options.engine))
        return
    if options.list or options.name is None:
        print(*SCENARIOS, sep="\n")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.stdout.reconfigure(line_buffering=True)
    with tempfile.TemporaryDirectory(prefix="tierce-scenario-") as folder:
        run = None
        try:
            run = Run(Path(folder), configurations(options.name, Path(folder)))
            SCENARIOS[options.name](run)
        except Failed as error:
            sys.exit(f"failed: {error}")
        finally:
            if run:
                run.end()


if __name__ == "__main__":
    main()
