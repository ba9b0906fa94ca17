#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to the first token with an S3 store behind a slow network, against vLLM without Tierce: of prompts that
the store holds, and of prompts that it does not hold.

    tools/bench/vllm_s3.py DELAY_PROXY [--tokens N,N,..] [--prompts N] [--round-trip-ms N] [--mbit N]

DELAY_PROXY is the program build/dev/bin/delay_proxy. One engine stores the prompts; then an engine without Tierce and
one with an empty memory over the store take turns with the same prompts. Each engine is a process of its own, and
sees each prompt once, with the defaults of Tierce.
"""

import argparse
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rows import HEADER, row
from vllm_hit import CHUNK_TOKENS, PAUSE_S, ROOT, WAIT_S, Engine, free_port

GOAL = 1 / 1.05
STABLE_S = 2  # objects of a prompt are stored if none was added for so long


class S3:
    """nanio, and a proxy that delays its bytes."""

    def __init__(self, folder, args):
        self.objects = folder / "s3" / "kv-cache"
        self.objects.mkdir(parents=True)
        port = free_port()
        self.server = subprocess.Popen(
            [sys.executable, "-m", "nanio", "serve", "--data-dir", str(folder / "s3"), "--host", "127.0.0.1",
             "--port", str(port), "--no-access-log", "--log-level", "warning"],
            env={**os.environ, "NANIO_ACCESS_KEY": "someone", "NANIO_SECRET_KEY": "something"})
        end = time.monotonic() + WAIT_S
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            if time.monotonic() > end or self.server.poll() is not None:
                raise RuntimeError("nanio does not start")
            time.sleep(0.1)
        round_trip_us, bytes_per_s = args.round_trip_ms * 1000, args.mbit * 125000
        self.proxy = subprocess.Popen(
            [args.delay_proxy, str(port), str(round_trip_us), str(round_trip_us // 20), str(bytes_per_s)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        port = int(self.proxy.stdout.readline().split()[0])
        self.uri = f"s3://someone:something@kv-cache/bench?endpoint=http://127.0.0.1:{port}"

    def wait(self, least):
        """Until no object was added for a while."""
        count, since, end = -1, time.monotonic(), time.monotonic() + WAIT_S
        while count < least or time.monotonic() - since < STABLE_S:
            if time.monotonic() > end:
                raise RuntimeError(f"the store has {count} objects, not {least}")
            now = sum(p.is_file() for p in self.objects.rglob("*"))
            if now != count:
                count, since = now, time.monotonic()
            time.sleep(0.2)

    def stop(self):
        for process in (self.proxy, self.server):
            process.kill()
            process.wait()


def measure(args, lengths, folder):
    """(length, held) -> TTFT of each prompt without Tierce, and with it."""
    rng = random.Random(3)
    prompts = [(n, held, [rng.randrange(256) for _ in range(n)])
               for n in lengths for held in (True, False) for _ in range(args.prompts)]
    rng.shuffle(prompts)
    times, engines, store = {}, {}, S3(folder, args)
    job = {"model": args.model, "tokens": max(lengths), "port": 0, "socket": "",
           "config": {"remote.urls": store.uri, "memory.size": "2GiB", "cost.wait": args.wait}}

    def start(name, engine):
        print(f"starting {name}", file=sys.stderr)
        engines[name] = Engine({**job, "engine": engine, "log": str(folder / f"{name}.log")}, sys.executable)

    try:
        start("writer", "tierce")
        for n, held, prompt in prompts:
            if held:
                engines["writer"].send({"prompt": prompt, "hit": False})
        store.wait(sum(n // CHUNK_TOKENS for n, held, _ in prompts if held))
        engines.pop("writer").stop()
        start("vllm", "vllm")
        start("tierce", "tierce")
        for engine in engines.values():  # a long prompt, from which Tierce knows how fast the engine computes
            engine.send({"prompt": [rng.randrange(256) for _ in range(max(lengths))], "hit": False})
        store.wait(0)
        for n, held, prompt in prompts:
            reports = {}
            for name in rng.sample(["vllm", "tierce"], 2):
                time.sleep(PAUSE_S)
                reports[name] = engines[name].send({"prompt": prompt, "hit": False})
            if reports["vllm"]["answer"] != reports["tierce"]["answer"]:
                raise RuntimeError(f"another answer to a prompt of {n} tokens")
            times.setdefault((n, held), []).append(
                (reports["vllm"]["ttft"], reports["tierce"]["ttft"], reports["tierce"]["cached"]))
    finally:
        for engine in engines.values():
            engine.stop()
        store.stop()
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("delay_proxy", metavar="DELAY_PROXY")
    parser.add_argument("--model", default=str(ROOT / "build" / "bench-model"))
    parser.add_argument("--tokens", default="100,300,1000,4000")
    parser.add_argument("--prompts", type=int, default=5, help="of each length and kind")
    parser.add_argument("--round-trip-ms", type=int, default=30)
    parser.add_argument("--wait", default="5", help="cost.wait of Tierce, in percent")
    parser.add_argument("--mbit", type=int, default=1000, help="of the network, per second")
    args = parser.parse_args()
    lengths = [int(n) for n in args.tokens.split(",")]
    sys.path.insert(0, str(ROOT / "tools" / "demo"))
    from make_model import make_model

    make_model(args.model)
    with tempfile.TemporaryDirectory() as folder:
        times = measure(args, lengths, Path(folder))
    print(HEADER)
    for (n, held), all_of in sorted(times.items()):
        plain, tierce, cached = (statistics.median(column) for column in zip(*all_of))
        what = "held by the store" if held else "not held"
        print(row("vllm", f"S3 at {args.round_trip_ms} ms; {n} tokens; {what}; {int(cached)} loaded", "ms TTFT",
                  tierce * 1e3, plain * 1e3, goal=GOAL))


if __name__ == "__main__":
    main()
