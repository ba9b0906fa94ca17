# SPDX-License-Identifier: Apache-2.0
"""The router index beside Dynamo's: the same events, the same answers. TIERCE_DYNAMO_PYTHON names a Python
with ai-dynamo-runtime 1.6.1, pydantic and uvloop; TIERCE_DYNAMO_SPEED a number of batches for a measurement."""

import http.client
import json
import os
import pathlib
import random
import socket
import subprocess
import time
import urllib.error
import urllib.request

import msgspec
import pytest
import zmq

from kv_publisher import MEDIA, Publisher
from test_router_index import SECONDS, Router

PYTHON = os.environ.get("TIERCE_DYNAMO_PYTHON")
PROMPTS, DEPTH, STEPS = 12, 16, 400


@pytest.fixture
def dynamo(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with open(tmp_path / "dynamo.log", "wb") as out:
        process = subprocess.Popen([PYTHON, "-m", "dynamo.indexer", "--port", str(port)], stdout=out,
                                   stderr=out)

    def post(path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)

    until = time.monotonic() + SECONDS
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=SECONDS).close()
            break
        except urllib.error.URLError:
            assert process.poll() is None and time.monotonic() < until
    post.port, post.process = port, process
    yield post
    process.terminate()
    process.wait()


def wait_for(dynamo, instance, publisher):
    """Until Dynamo has subscribed: what it misses before, it does not ask for."""
    first = [7, 7, 7, instance]
    until = time.monotonic() + SECONDS
    while dynamo("/query", {"model_name": "m", "token_ids": first})["instances"] == {}:
        assert time.monotonic() < until
        publisher.send(publisher.store([instance], None, first))


@pytest.mark.skipif(PYTHON is None, reason="TIERCE_DYNAMO_PYTHON is not set")
def test_same_answers(tmp_path, dynamo):
    seed = int(os.environ.get("TIERCE_TEST_SEED", time.time_ns()))
    print("TIERCE_TEST_SEED", seed)
    rng = random.Random(seed)
    router = Router(tmp_path)
    publishers = {i: Publisher() for i in (1, 2, 3)}
    for instance, p in publishers.items():
        router.register(instance, p)
        dynamo("/register", {"instance_id": instance, "endpoint": p.endpoint, "model_name": "m",
                             "replay_endpoint": p.replay_endpoint, "block_size": 4, "dp_rank": 0})
        router.wait(lambda: router.worker(instance)["status"] == "active")
        wait_for(dynamo, instance, p)
    tokens = [[prompt * 1000 + i for i in range(4 * DEPTH)] for prompt in range(PROMPTS)]
    lengths = {}
    for _ in range(STEPS):
        instance, prompt = rng.choice(list(publishers)), rng.randrange(PROMPTS)
        medium, to = rng.choice(MEDIA), rng.randrange(DEPTH + 1)
        p = publishers[instance]
        held = lengths.get((instance, prompt, medium), 0)
        hashes = [10**6 + prompt * 1000 + d for d in range(DEPTH)]  # alike in all, as engines have it
        if to > held:
            p.send(p.store(hashes[held:to], hashes[held - 1] if held else None,
                           tokens[prompt][4 * held:4 * to], medium))
        elif to < held:
            p.send(p.remove(hashes[to:held], medium))
        lengths[instance, prompt, medium] = to
    for instance, p in publishers.items():
        router.equals(instance, p)

    def answer(ask, prompt):
        found = ask("/query", {"model_name": "m", "token_ids": tokens[prompt]})
        return {i: {k: a[k] for k in ("longest_matched", "gpu", "cpu", "disk")}
                for i, a in found["instances"].items() if a["longest_matched"] > 0}

    for prompt in range(PROMPTS):
        ours = answer(lambda path, body: router.ask(path, body)[1], prompt)
        until = time.monotonic() + 10
        while (theirs := answer(dynamo, prompt)) != ours:
            assert time.monotonic() < until, (prompt, ours, theirs)
    router.end()
    for p in publishers.values():
        p.close()


class Flood:
    """A publisher that has made all of its batches before it sends the first one."""

    BLOCK, CHAIN, EVENTS = 16, 64, 8  # tokens of a block, blocks of a prompt, prompts of a batch

    def __init__(self, batches):
        self.context = zmq.Context()
        self.pub = self.context.socket(zmq.PUB)
        self.pub.setsockopt(zmq.LINGER, 0)
        self.pub.setsockopt(zmq.SNDHWM, 0)  # a slow reader loses nothing
        self.pub.bind("tcp://127.0.0.1:*")
        self.endpoint = self.pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.batches = [msgspec.msgpack.encode([0.0, [self.event(batch * self.EVENTS + i) for i in range(self.EVENTS)], 0])
                        for batch in range(batches)]
        self.prompts = batches * self.EVENTS
        self.sequence = 0

    def tokens(self, prompt):
        rng = random.Random(prompt)
        return [rng.randrange(65536, 131072) for _ in range(self.BLOCK * self.CHAIN)]

    def event(self, prompt):
        return {"type": "BlockStored", "block_hashes": [(prompt * self.CHAIN + i + 1) * 0x9E3779B97F4A7C15 % 2**64 for i in range(self.CHAIN)],
                "parent_block_hash": None, "token_ids": self.tokens(prompt), "block_size": self.BLOCK, "lora_id": None, "medium": "GPU",
                "lora_name": None}

    def send(self, batch):
        self.pub.send_multipart([b"kv", self.sequence.to_bytes(8, "big"), batch])
        self.sequence += 1

    def first(self):
        """One prompt of its own, until the reader has subscribed."""
        self.send(msgspec.msgpack.encode([0.0, [self.event(10**7)], 0]))


class Asker:
    """Queries over one connection."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)

    def longest(self, tokens):
        self.connection.request("POST", "/query", json.dumps({"model_name": "m", "token_ids": tokens}), {"Content-Type": "application/json"})
        found = json.loads(self.connection.getresponse().read()).get("instances", {})
        return max((a["longest_matched"] for a in found.values()), default=0)


def processor_time(process):
    """Seconds of a process and its threads."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(flood, port, process):
    """Event blocks each second, microseconds of processor time for a block, and the median and 99th percentile of queries in ms."""
    asker, last, whole = Asker(port), flood.tokens(flood.prompts - 1), flood.BLOCK * flood.CHAIN
    until = time.monotonic() + SECONDS
    while asker.longest(flood.tokens(10**7)) < whole:
        assert time.monotonic() < until
        flood.first()
    start, used = time.monotonic(), processor_time(process)
    for batch in flood.batches:
        flood.send(batch)
    while asker.longest(last) < whole:
        assert time.monotonic() < start + 10 * SECONDS
        time.sleep(0.01)
    blocks = flood.prompts * flood.CHAIN
    rate, used = blocks / (time.monotonic() - start), (processor_time(process) - used) * 1e6 / blocks
    rng, times = random.Random(1), []
    for _ in range(1000):
        tokens = flood.tokens(rng.randrange(flood.prompts)) + flood.tokens(10**8)
        start = time.monotonic()
        assert asker.longest(tokens) == whole
        times.append((time.monotonic() - start) * 1e3)
    times.sort()
    return rate, used, times[500], times[990]


@pytest.mark.skipif(PYTHON is None or "TIERCE_DYNAMO_SPEED" not in os.environ, reason="TIERCE_DYNAMO_PYTHON or TIERCE_DYNAMO_SPEED is not set")
def test_speed(tmp_path, dynamo):
    """Prints how fast both take events, and answer over HTTP, in turns."""
    flood = Flood(int(os.environ["TIERCE_DYNAMO_SPEED"]))  # batches
    router = Router(tmp_path, "--interval.check=0")
    body = {"instance_id": 1, "endpoint": flood.endpoint, "model_name": "m", "block_size": flood.BLOCK, "dp_rank": 0}
    for name, ask, port, process in (("router-index", router.ask, router.port, router.process), ("Dynamo", dynamo, dynamo.port, dynamo.process)):
        ask("/register", body)
        rate, used, median, tail = measure(flood, port, process)
        print(f"{name}: {rate:,.0f} event blocks/s, {used:.2f} us of processor time a block; a query of 2,048 tokens: median {median:.2f} ms, p99 {tail:.2f} ms")
        ask("/unregister", {"instance_id": 1, "model_name": "m"})
    router.end()
    flood.context.destroy(0)
