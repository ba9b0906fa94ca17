#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to the first token of a prompt whose KV is held: by vLLM's own prefix cache, by Tierce, by
LMCache's multi-process connector.

    tools/bench/vllm_hit.py [--tokens N] [--prompts N] [--node EXECUTABLE] [--lmcache-python PYTHON]

With --node the same hits go through a `tierce node` of that executable; its rows compare it with
Tierce in vLLM's own process.

Each engine is a process of its own; they take turns with the same prompts after each request, so
that other load affects all of them alike. With Tierce and LMCache, vLLM's prefix cache is emptied
before each repeated prompt, so that all hits are theirs. LMCache runs only if an interpreter that
has vllm and lmcache 0.5.6 is named.
"""

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rows import HEADER, row

ROOT = Path(__file__).resolve().parents[2]
BLOCK_TOKENS = 32
CHUNK_TOKENS = 256
REPEATS = 9  # of each prompt, after the one that computes it
PAUSE_S = 0.5  # the threads of one engine go to sleep before the next one runs
STORE_BYTES = "2GiB"
COPY_GOAL = 1.2  # copies of the KV that a hit may cost beyond vLLM's own
WAIT_S = 120
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "PYTHONHASHSEED": "0",
}


# ---- the process of an engine ----------------------------------------------------------------


def spare_llvmlite():
    """vLLM's CPU dispatcher reads the attribute `get` of every module global through vars();
    llvmlite's wrapper of library functions returns an object that has no such attribute."""
    try:
        from llvmlite.binding import ffi
    except ImportError:
        return
    wrapper = getattr(ffi, "_lib_fn_wrapper", None)
    if wrapper is not None and not hasattr(wrapper, "get"):
        wrapper.get = lambda self, name, default=None: default


def transfer_config(job):
    from vllm.config import KVTransferConfig

    if job["engine"] in ("tierce", "node"):
        place = job.get("config", {"memory.size": STORE_BYTES}) if job["engine"] == "tierce" else {
            "node.socket": job["socket"]}
        return KVTransferConfig(
            kv_connector="TierceConnector", kv_connector_module_path="tierce.vllm",
            kv_role="kv_both", kv_load_failure_policy="recompute",
            kv_connector_extra_config={**place, "chunk.tokens": CHUNK_TOKENS})
    if job["engine"] == "lmcache":
        return KVTransferConfig(
            kv_connector="LMCacheMPConnector", kv_role="kv_both",
            kv_connector_extra_config={"lmcache.mp.host": "tcp://127.0.0.1",
                                       "lmcache.mp.port": job["port"]})
    return None


def make_engine(job):
    from vllm import LLM

    options = dict(
        model=job["model"], dtype="float32", seed=0, enforce_eager=True,
        skip_tokenizer_init=True, enable_prefix_caching=True, block_size=BLOCK_TOKENS,
        max_model_len=job["tokens"] + 64, max_num_batched_tokens=job["tokens"] + 64,
        max_num_seqs=2, prefix_caching_hash_algo="sha256_cbor")
    config = transfer_config(job)
    if config is not None:
        options["kv_transfer_config"] = config
    return LLM(**options).llm_engine


def ask(engine, name, prompt):
    """Seconds to the first token, and the tokens."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, detokenize=False)
    first = None
    start = time.perf_counter()
    engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
    while True:
        for output in engine.step():
            if first is None and output.outputs[0].token_ids:
                first = time.perf_counter() - start
            if output.finished:
                return first, list(output.outputs[0].token_ids), output.num_cached_tokens or 0


def settle(engine, job):
    """Steps until the background work of the requests has ended, then empties vLLM's prefix
    cache."""
    if job["engine"] == "vllm":
        return
    end = time.perf_counter() + WAIT_S
    while not engine.reset_prefix_cache():
        engine.step()
        if time.perf_counter() > end:
            raise RuntimeError("vLLM keeps its prefix cache")


def plain_copy(size):
    """Seconds of a plain copy of so many bytes between buffers that are in memory already."""
    import numpy

    source = numpy.full(size, 1, dtype=numpy.uint8)
    target = numpy.zeros(size, dtype=numpy.uint8)
    target[:] = source
    start = time.perf_counter()
    target[:] = source
    return time.perf_counter() - start


def play():
    """The first line of the standard input is the job; each that follows is a request, or asks for
    a plain copy."""
    job = json.loads(sys.stdin.readline())
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    spare_llvmlite()
    engine = make_engine(job)
    ask(engine, "warm-up", [1] * (BLOCK_TOKENS * 4))
    reports.write(json.dumps({"ready": True}) + "\n")
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        if "copy" in request:
            reports.write(json.dumps({"copy": plain_copy(request["copy"])}) + "\n")
            continue
        if request["hit"]:
            settle(engine, job)
        ttft, answer, cached = ask(engine, str(number), request["prompt"])
        reports.write(json.dumps({"hit": request["hit"], "ttft": ttft, "answer": answer,
                                  "cached": cached}) + "\n")
    reports.close()
    os._exit(0)  # nothing of what follows is measured


# ---- the bench -------------------------------------------------------------------------------


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class LMCacheServer:
    def __init__(self, python, log, options=("--l1-size-gb", "2")):
        self.port = free_port()
        environment = {**os.environ, **ENVIRONMENT}
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                [str(Path(python).with_name("lmcache")), "server", "--host", "127.0.0.1",
                 "--port", str(self.port), "--http-port", str(free_port()), *options,
                 "--eviction-policy", "LRU", "--chunk-size", str(CHUNK_TOKENS),
                 "--supported-transfer-mode", "engine_driven",
                 "--shm-name", f"tierce-bench-{os.getpid()}"],
                env=environment, stdout=out, stderr=out, start_new_session=True)
        self.wait(log)

    def wait(self, log):
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        self.stop()
        raise RuntimeError(f"LMCache's server did not start (log: {log})")

    def stop(self):
        if self.process.poll() is not None:
            return
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Node:
    def __init__(self, executable, folder):
        self.socket = str(folder / "node")
        with open(folder / "node.log", "wb") as out:
            self.process = subprocess.Popen(
                [executable, "node", "--listen.resp_port=0", "--listen.lm_port=0",
                 "--listen.http_port=0", "--control.socket=", f"--memory.size={STORE_BYTES}",
                 f"--listen.native={self.socket}"], stdout=out, stderr=out)
        end = time.monotonic() + WAIT_S
        while not os.path.exists(self.socket):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the node does not start (log: {folder}/node.log)")
            time.sleep(0.05)

    def stop(self):
        self.process.kill()
        self.process.wait()


class Engine:
    def __init__(self, job, python):
        environment = {**os.environ, **ENVIRONMENT}
        path = [str(ROOT / "python"), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in path if p)
        self.job = job
        self.process = subprocess.Popen([python, __file__, "--play"], env=environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.send(job)

    def send(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.job['engine']} failed (log: {self.job['log']})")
        return json.loads(line)

    def stop(self):
        self.process.kill()
        self.process.wait()


def kv_bytes(model, tokens):
    config = json.loads((Path(model) / "config.json").read_text())
    float32 = 4
    return (2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
            * float32 * tokens)


def measure(args, folder):
    """engine -> reports of all requests, and the seconds of plain copies of a prompt's KV, one
    before each round of hits."""
    rng = random.Random(1)
    names = ["vllm", "tierce"] + (["node"] if args.node else []) + (
        ["lmcache"] if args.lmcache_python else [])
    results, copies = {name: [] for name in names}, []
    engines, server, node = {}, None, None
    try:
        if args.node:
            node = Node(args.node, folder)
        if args.lmcache_python:
            server = LMCacheServer(args.lmcache_python, str(folder / "lmcache-server.log"))
        for name in names:
            print(f"starting {name}", file=sys.stderr)
            job = {"engine": name, "model": args.model, "tokens": args.tokens,
                   "log": str(folder / f"{name}.log"), "port": server.port if server else 0,
                   "socket": node.socket if node else ""}
            python = args.lmcache_python if name == "lmcache" else sys.executable
            engines[name] = Engine(job, python)
        for number in range(args.prompts):
            prompt = [rng.randrange(256) for _ in range(args.tokens)]
            print(f"prompt {number + 1} of {args.prompts}", file=sys.stderr)
            for repeat in range(1 + REPEATS):
                size = kv_bytes(args.model, args.tokens)
                copies.append(engines["vllm"].send({"copy": size})["copy"])
                for name, engine in engines.items():
                    time.sleep(PAUSE_S)
                    request = {"prompt": prompt, "hit": repeat > 0}
                    results[name].append(engine.send(request))
    finally:
        for engine in engines.values():
            engine.stop()
        for other in (server, node):
            if other is not None:
                other.stop()
    return results, copies


def check(results, tokens):
    """A repeated prompt counts as a hit only if most of it was not computed again."""
    for engine, reports in results.items():
        for r in reports:
            if r["hit"] and r["cached"] < tokens - 2 * CHUNK_TOKENS:
                raise RuntimeError(f"{engine}: only {r['cached']} tokens of a repeated prompt were "
                                   "held")


def report(results, copies, tokens):
    """The median and the fastest; the fastest is closest to a run without other load. The goal of
    a hit is vLLM's own hit and COPY_GOAL plain copies of the KV."""
    def pick(engine, hit, choose):
        times = [r["ttft"] * 1e3 for r in results[engine] if r["hit"] == hit]
        return choose(times) if times else None

    peer = "LMCache 0.5.6" if "lmcache" in results else ""
    print(HEADER)
    for name, choose in (("median", statistics.median), ("fastest", min)):
        allowed = pick("vllm", True, choose) + COPY_GOAL * choose(copies) * 1e3
        print(row("vllm", f"hit, of vLLM's own hit and {COPY_GOAL} copies; {name}; {tokens} tokens",
                  "ms TTFT", pick("tierce", True, choose), allowed, goal=1))
    for hit, name, choose in ((True, "hit; median", statistics.median),
                              (True, "hit; fastest", min),
                              (False, "computed and stored; median", statistics.median)):
        print(row("vllm", f"{name}; {tokens} tokens", "ms TTFT", pick("tierce", hit, choose),
                  pick("vllm", hit, choose), None, peer,
                  pick("lmcache", hit, choose) if peer else None))
        if "node" in results:
            print(row("vllm", f"through a node, of embedded: {name}; {tokens} tokens", "ms TTFT",
                      pick("node", hit, choose), pick("tierce", hit, choose), None, "", None))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--model", default=str(ROOT / "build" / "bench-model"))
    parser.add_argument("--node", metavar="EXECUTABLE")
    parser.add_argument("--lmcache-python")
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.play:
        play()
    sys.path.insert(0, str(ROOT / "tools" / "demo"))
    from make_model import make_model

    make_model(args.model)
    folder = Path(tempfile.mkdtemp(prefix="tierce-bench-", dir=ROOT / "build"))
    print(f"logs: {folder}", file=sys.stderr)
    results, copies = measure(args, folder)
    check(results, args.tokens)
    report(results, copies, args.tokens)


if __name__ == "__main__":
    main()
