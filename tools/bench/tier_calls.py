#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times each call of vLLM's tiering manager to Tierce's tier, and to vLLM's file tier in the same run.

    PYTHONPATH=python .venv/bin/python tools/bench/tier_calls.py EXECUTABLE [--prompts 4] [--tokens 4096]
        [--blocks-per-chunk 1] [--rounds 2] [--only memory,disk,node,redis,vllm-fs] [--folder FOLDER]

vLLM's scheduler blocks during these calls, so none should take more than a millisecond. vLLM's own
TieringOffloadingManager drives the tier over a region of host memory, with the KV of an 8B model: 32
layers, 8 KV heads of 128 values of 2 bytes, blocks of 16 tokens. Each prompt is looked up, computed in
steps of 2,048 tokens and stored, then looked up and loaded again. The region does not hold two prompts,
so that each load comes from the tier. The bytes of the prompts are written, not computed.

    memory      memory of this process
    disk        a folder, with 512 MiB of memory above it
    node        `tierce node` of EXECUTABLE, over its Unix socket
    redis       redis-server behind a proxy that adds 5 ms to a round trip, with 512 MiB of memory above it
    vllm-fs     vLLM's file tier, in the same folder as disk

The tiers take turns in each round. Rows with `max` show the longest call, which other processes affect.
The standard error lists how many chunks each tier loaded of those that it was given before. The program
fails if a tier loaded less than 90 % of them.
"""

import argparse
import hashlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
                   "VLLM_LOGGING_LEVEL": "WARNING"})

import numpy  # noqa: E402
from vllm.v1.kv_offload import config as kv  # noqa: E402
from vllm.v1.kv_offload.base import (  # noqa: E402
    LookupResult, ReqContext, ScheduleEndContext, make_offload_key)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion  # noqa: E402
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: E402
from vllm.v1.kv_offload.tiering.manager import (  # noqa: E402
    CPUPrimaryTierOffloadingManager, TieringOffloadingManager)

from rows import HEADER, row  # noqa: E402

LAYERS, KV_HEADS, HEAD, VALUE_BYTES, BLOCK_TOKENS = 32, 8, 128, 2, 16
BLOCK_BYTES = LAYERS * 2 * KV_HEADS * HEAD * VALUE_BYTES * BLOCK_TOKENS
STEP_TOKENS = 2048
STEP_S = 0.005  # the rest of a step of vLLM
WAIT_S = 60
LOADED_MIN = 0.9  # of the chunks that were stored before
LIMIT_MS = 1.0
ROUND_TRIP_US = 5000
PROXY_BYTES_PER_S = 10**9
CALLS = ("on_new_request", "lookup", "submit_store", "submit_load", "get_finished_jobs", "touch",
         "on_schedule_end", "on_request_finished")
PEER = "vllm-fs"
CASES = ("memory", "disk", "node", "redis", PEER)


# ---- servers -----------------------------------------------------------------------------------


def wait_for(condition, what):
    until = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} was not ready after {WAIT_S} s")
        time.sleep(0.01)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def accepts(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


class Servers:
    def __init__(self, executable, folder, size):
        self.executable, self.folder, self.size, self.processes = Path(executable), folder, size, []

    def start(self, *command, **options):
        process = subprocess.Popen([*map(str, command)], **options)
        self.processes.append(process)
        return process

    def node(self):
        path = Path(self.folder) / "node.sock"
        self.start(self.executable, "node", f"--listen.native={path}", "--listen.resp=false", "--listen.lm=false",
                   "--listen.http_port=0", "--control.socket=", f"--memory.size={self.size}", "--cost.check=false",
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(path.exists, "the node")
        return str(path)

    def redis(self):
        port = free_port()
        self.start("redis-server", "--port", port, "--save", "", "--appendonly", "no", "--dir", self.folder,
                   stdout=subprocess.DEVNULL)
        wait_for(lambda: accepts(port), "redis-server")
        proxy = self.start(self.executable.with_name("delay_proxy"), port, ROUND_TRIP_US, ROUND_TRIP_US // 20,
                           PROXY_BYTES_PER_S, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return int(proxy.stdout.readline().split()[0])

    def end(self):
        for process in reversed(self.processes):
            process.terminate()
            process.wait(WAIT_S)
        self.processes.clear()


def options_of(case, servers, folder):
    """The tier's configuration, as in secondary_tiers."""
    if case == PEER:
        return {"type": "fs", "root_dir": folder}
    common = {"type": "TierceTier", "module_path": "tierce.vllm", "identity": "bench", "control.socket": ""}
    small = {**common, "cost.check": "false", "memory.size": "512MiB", "disk.path": "", "timeout.lookup": "5s"}
    if case == "memory":
        return {**small, "memory.size": servers.size}
    if case == "disk":
        return {**small, "disk.path": folder, "disk.size": servers.size}
    if case == "node":
        return {**common, "node.socket": servers.node()}
    return {**small, "remote.urls": f"redis://127.0.0.1:{servers.redis()}"}


# ---- the sequence of calls ---------------------------------------------------------------------


class Timed:
    """A tier whose calls are timed."""

    def __init__(self, tier, seconds):
        self.tier, self.seconds = tier, seconds

    def __getattr__(self, name):
        found = getattr(self.tier, name)
        if name not in CALLS:
            return found

        def call(*args):
            began = time.perf_counter()
            out = found(*args)
            self.seconds[name].append(time.perf_counter() - began)
            return out

        setattr(self, name, call)
        return call


class Run:
    """One tier under vLLM's manager."""

    def __init__(self, case, own, args, seconds):
        self.row, self.number = BLOCK_BYTES * args.blocks_per_chunk, 0
        self.chunk_tokens = BLOCK_TOKENS * args.blocks_per_chunk
        self.count = args.tokens // self.chunk_tokens
        chunks = self.count * 5 // 4
        name = f"tier-calls-{os.getpid()}-{case}"
        # vLLM removes the name of the region after the barrier: only this process maps it.
        region = SharedOffloadRegion(name, chunks, None, self.row, self.row, barrier=lambda: None)
        self.primary = CPUPrimaryTierOffloadingManager(chunks, region)
        self.rows = numpy.asarray(self.primary.get_kv_memoryview())
        self.manager = None
        try:
            spec = SimpleNamespace(config=self.config(args), blocks_per_chunk=args.blocks_per_chunk)
            tier = SecondaryTierFactory.create_secondary_tier(own, self.primary.get_kv_memoryview(), spec)
            if getattr(tier, "off", None) is not None:
                raise RuntimeError(f"{case}: the tier is off: {tier.off}")
        except BaseException:
            self.end()
            raise
        self.manager = TieringOffloadingManager(self.primary, [Timed(tier, seconds)])
        self.loaded = self.loadable = 0

    def config(self, args):
        parallel = kv.OffloadingParallelConfig(
            rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, data_parallel_index=0,
            data_parallel_size=1, data_parallel_rank_local=None, is_parallelism_agnostic=False)
        layers = tuple(f"layer{i}" for i in range(LAYERS))
        return kv.OffloadingConfig(
            groups=(kv.OffloadingGroupConfig(BLOCK_TOKENS, layers, 0),), worker_kv_bytes_per_block=BLOCK_BYTES,
            enable_kv_cache_events=False, extra_config={}, engine_id="bench",
            model=kv.OffloadingModelConfig("bench-8b", "bfloat16"),
            cache=kv.OffloadingCacheConfig(BLOCK_TOKENS, args.blocks_per_chunk), parallel=parallel)

    def keys(self, prompt):
        return [make_offload_key(hashlib.sha256(f"{prompt} {n}".encode()).digest(), 0) for n in range(self.count)]

    def step(self, new=()):
        self.manager.on_schedule_end(ScheduleEndContext(list(new), []))
        time.sleep(STEP_S)

    def begin(self):
        self.number += 1
        request = ReqContext(req_id=str(self.number))
        self.manager.on_new_request(request)
        return request

    def look_up(self, keys, request):
        """As vLLM's scheduler: all keys up to a miss, in each step, until no answer is open. Returns the
        number of chunks that can be loaded."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            found, is_open = 0, False
            for key in keys:
                answer = self.manager.lookup(key, request)
                if answer is LookupResult.MISS:
                    break
                found += answer is LookupResult.HIT
                is_open = is_open or answer is not LookupResult.HIT
            if not is_open:
                return found
            self.step([request.req_id])
        raise TimeoutError("a lookup without an answer")

    def store(self, keys, request):
        """Computes the chunks in steps. While the region is full, nothing is offloaded."""
        each = max(STEP_TOKENS // self.chunk_tokens, 1)
        for at in range(0, len(keys), each):
            until = time.monotonic() + WAIT_S
            while (out := self.manager.prepare_store(keys[at:at + each], request)) is None:
                if time.monotonic() > until:
                    raise TimeoutError("the host region stays full")
                self.step()
            if not out.keys_to_store:  # the host region has them already
                continue
            for chunk in out.store_spec.chunk_ids:
                self.rows[chunk, ::4096] = chunk % 100
            self.manager.complete_store(out.keys_to_store, request)
            self.step()

    def load(self, keys, request):
        self.manager.touch(keys, request)
        self.manager.prepare_load(keys, request)
        self.manager.complete_load(keys, request)
        self.loaded += len(keys)

    def ask(self, prompt):
        keys, request = self.keys(prompt), self.begin()
        found = self.look_up(keys, request)
        if found > 0:
            self.load(keys[:found], request)
        if found < len(keys):
            self.store(keys[found:], request)
        self.manager.on_request_finished(request)
        self.step()

    def settle(self):
        until = time.monotonic() + WAIT_S
        while self.manager.has_pending_work() and time.monotonic() < until:
            self.step()

    def run(self, prompts):
        for is_again in (False, True):
            for prompt in range(prompts):
                self.ask(prompt)
                self.settle()
                self.loadable += is_again * self.count

    def end(self):
        del self.rows
        (self.manager or self.primary).shutdown()


def measure(case, args, seconds):
    size = f"{args.prompts * args.tokens // BLOCK_TOKENS * BLOCK_BYTES * 5 // 4 >> 20}MiB"
    with tempfile.TemporaryDirectory(prefix="tierce-tier-calls-", dir=args.folder) as folder:
        servers = Servers(args.executable, folder, size)
        try:
            run = Run(case, options_of(case, servers, folder), args, seconds)
            try:
                run.run(args.prompts)
            finally:
                run.end()
        finally:
            servers.end()
    print(f"{case}: {run.loaded} of {run.loadable} chunks loaded", file=sys.stderr)
    if run.loaded < LOADED_MIN * run.loadable:
        raise RuntimeError(f"{case}: {run.loaded} of {run.loadable} chunks were loaded, less than "
                           f"{LOADED_MIN:.0%}: the tier lost chunks")


# ---- output ------------------------------------------------------------------------------------


def figures(seconds):
    """Milliseconds."""
    ordered = sorted(seconds)
    return {"median": statistics.median(ordered) * 1e3, "p99": ordered[(len(ordered) - 1) * 99 // 100] * 1e3,
            "max": ordered[-1] * 1e3}


def print_rows(calls, blocks_per_chunk):
    print(HEADER)
    for case in CASES:
        if case == PEER or case not in calls:
            continue
        for name in CALLS:
            if not (mine := calls[case].get(name)):
                continue
            peers = calls.get(PEER, {}).get(name)
            for which, value in figures(mine).items():
                print(row("tier", f"{case} {name} {which} of {len(mine)} (blocks_per_chunk {blocks_per_chunk})", "ms", value,
                          LIMIT_MS, 1 if which == "median" else None, "vLLM's file tier" if peers else "",
                          figures(peers)[which] if peers else None))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("executable")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--blocks-per-chunk", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--folder", default="/tmp", help="of the stores on disk")
    args = parser.parse_args()
    args.cases = args.only.split(",")
    if unknown := [case for case in args.cases if case not in CASES]:
        parser.error(f"unknown case {unknown[0]!r}; accepted: {', '.join(CASES)}")
    if args.tokens < 2 * BLOCK_TOKENS * args.blocks_per_chunk:
        parser.error(f"--tokens {args.tokens} is less than two chunks")
    if shutil.which("redis-server") is None and "redis" in args.cases:
        parser.error("the case redis requires redis-server")
    return args


def main():
    args = parse()
    calls = {case: defaultdict(list) for case in args.cases}
    for number in range(args.rounds):
        turn = number % len(args.cases)
        for case in args.cases[turn:] + args.cases[:turn]:
            measure(case, args, calls[case])
    print_rows(calls, args.blocks_per_chunk)


if __name__ == "__main__":
    main()
