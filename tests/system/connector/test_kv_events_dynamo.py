# SPDX-License-Identifier: Apache-2.0
"""Dynamo's indexer follows a vLLM with Tierce: it knows the blocks in GPU memory, in memory and on disk, prompt by prompt.
TIERCE_DYNAMO_PYTHON names a Python with ai-dynamo-runtime 1.6.1, pydantic and uvloop."""

import os
import random
import socket
import struct
import sys
import time
import urllib.request
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "serve"))
from test_router_dynamo import PYTHON, dynamo  # noqa: E402, F401

BLOCK, CHUNK = 32, 4  # tokens; blocks
SECONDS = 60
pytestmark = [pytest.mark.skipif(PYTHON is None, reason="TIERCE_DYNAMO_PYTHON is not set"), pytest.mark.long]


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def all_of(data):
    """The values of a stream of MessagePack, of the types that snapshots have."""

    def take(count):
        nonlocal at
        at += count
        return data[at - count:at]

    def number(count):
        return int.from_bytes(take(count), "big")

    def value():
        kind = number(1)
        if kind < 0x80:
            return kind
        if kind < 0x90:
            return {value(): value() for _ in range(kind & 15)}
        if kind < 0xa0:
            return [value() for _ in range(kind & 15)]
        if kind < 0xc0:
            return take(kind & 31).decode()
        simple = {0xc0: lambda: None, 0xcb: lambda: struct.unpack(">d", take(8))[0],
                  0xd9: lambda: take(number(1)).decode(), 0xda: lambda: take(number(2)).decode(),
                  0xdc: lambda: [value() for _ in range(number(2))], 0xdd: lambda: [value() for _ in range(number(4))],
                  **{0xcc + i: lambda i=i: number(1 << i) for i in range(4)}}
        return simple[kind]()

    at, out = 0, []
    while at < len(data):
        out.append(value())
    return out


class Truth:
    """Tierce's own snapshot, and vLLM's events of its own cache."""

    def __init__(self, endpoint, snapshot_port):
        import msgspec
        import zmq

        self.decode, self.port = msgspec.msgpack.Decoder().decode, snapshot_port
        self.sub = zmq.Context.instance().socket(zmq.SUB)
        self.sub.setsockopt(zmq.RCVHWM, 0)
        self.sub.subscribe(b"")
        self.sub.connect(endpoint)
        self.names, self.gpu, self.events = {}, set(), 0

    def follow(self):
        while self.sub.poll(50):
            _, events, *_ = self.decode(self.sub.recv_multipart()[2])
            for event in events:
                self.events += event.get("medium") in ("CPU", "DISK")
                if event["type"] == "AllBlocksCleared":
                    self.gpu.clear()
                elif event["type"] == "BlockRemoved" and event["medium"] == "GPU":
                    self.gpu.difference_update(event["block_hashes"])
                elif event["type"] == "BlockStored" and event["medium"] == "GPU":
                    parent, tokens = event["parent_block_hash"], event["token_ids"]
                    for i, name in enumerate(event["block_hashes"]):
                        self.names[parent, tuple(tokens[i * BLOCK:(i + 1) * BLOCK])] = parent = name
                        self.gpu.add(name)

    def chunks(self):
        """The hashes of the last blocks of all chunks."""
        url = f"http://127.0.0.1:{self.port}/kv_events/snapshot"
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            values = all_of(answer.read())
            out = {"CPU": set(), "DISK": set()}
            for value in values:
                if isinstance(value, list):
                    for event in value[1]:
                        out[event["medium"]].update(event["block_hashes"])
        assert "end" in value
        return out

    def lengths(self, prompt, chunks):
        """Leading tokens in GPU memory, there or in memory, and anywhere."""
        hashes, parent = [], None
        for at in range(0, len(prompt) - BLOCK + 1, BLOCK):
            parent = self.names.get((parent, tuple(prompt[at:at + BLOCK])))
            if parent is None:
                break
            hashes.append(parent)
        media = [{"GPU"} if h in self.gpu else set() for h in hashes]
        for end, name in enumerate(hashes):
            for medium, held in chunks.items():
                if name in held:
                    for i in range(end // CHUNK * CHUNK, end + 1):
                        media[i].add(medium)
        out = []
        for wanted in ({"GPU"}, {"GPU", "CPU"}, {"GPU", "CPU", "DISK"}):
            count = 0
            while count < len(media) and media[count] & wanted:
                count += 1
            out.append(count * BLOCK)
        return out


def test_dynamo_follows_vllm_and_tierce(engine, dynamo, tmp_path):  # noqa: F811
    rng = random.Random(int(os.environ.get("TIERCE_TEST_SEED", 5)))
    ports = free_ports(4)
    endpoint, replay = (f"tcp://127.0.0.1:{port}" for port in ports[:2])
    store = {"memory.size": "12MiB", "disk.path": str(tmp_path / "disk"), "disk.size": "32MiB", "disk.lock_wait": "0",
             "chunk.tokens": str(BLOCK * CHUNK), "cost.check": "false", "load.min_tokens": "0",
             "kv_events.endpoint": f"tcp://127.0.0.1:{ports[2]}", "kv_events.snapshot_port": str(ports[3])}
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{ports[0]}",  # else vLLM connects
              "replay_endpoint": replay}

    def start():
        return engine(store, events=events, block_size=BLOCK, num_gpu_blocks_override=48,
                      prefix_caching_hash_algo="sha256_cbor", max_model_len=512, max_num_batched_tokens=512)

    shared = [rng.randrange(256) for _ in range(150)]
    prompts = [shared + [rng.randrange(256) for _ in range(rng.randrange(330))] for _ in range(60)]

    def check(host, truth, asked):
        until = time.monotonic() + SECONDS
        while True:
            host.generate(prompts=[[1, 2, 3]], tokens=1)  # vLLM sends events after a step
            truth.follow()
            chunks = truth.chunks()
            ours = [truth.lengths(p, chunks) for p in asked]
            theirs = []
            for prompt in asked:
                found = dynamo("/query", {"model_name": "m", "token_ids": prompt})["instances"].get("1", {})
                theirs.append([found.get(k, 0) for k in ("gpu", "cpu", "disk")])
            if ours == theirs:
                return ours
            assert time.monotonic() < until, [(o, t) for o, t in zip(ours, theirs) if o != t][:5]

    def register():
        """After the start: Dynamo does not connect again to an address where nobody listened."""
        dynamo("/register", {"instance_id": 1, "endpoint": endpoint, "model_name": "m", "replay_endpoint": replay,
                             "block_size": BLOCK, "dp_rank": 0})

    def wait_for_readers(host, truth):
        """Dynamo does not ask for what was sent before it subscribed."""
        until = time.monotonic() + SECONDS
        truth.names = {}
        while True:
            prompt = [rng.randrange(256) for _ in range(2 * BLOCK)]
            host.generate(prompts=[prompt], tokens=1)
            truth.follow()
            theirs = dynamo("/query", {"model_name": "m", "token_ids": prompt})
            if truth.names and theirs["instances"]:
                return
            assert time.monotonic() < until, (len(truth.names), theirs)

    host = start()
    register()
    truth = Truth(endpoint, ports[3])
    wait_for_readers(host, truth)
    for first in range(0, 60, 20):
        host.generate(prompts=prompts[first:first + 20], tokens=1)
        lengths = check(host, truth, prompts[:first + 20])
        sums = [sum(each) for each in zip(*lengths)]
        print(first + 20, "prompts; tokens in GPU memory, there or in memory, anywhere:", sums)
    assert truth.events > 100 and sums[0] < sums[1] < sums[2]
    assert sums[2] < sum(len(p) // BLOCK * BLOCK for p in prompts), "nothing was evicted"
    assert host.forget()
    check(host, truth, prompts)
    host.generate(prompts=prompts[50:], tokens=1)  # loads
    check(host, truth, prompts)

    host.stop()
    dynamo("/unregister", {"instance_id": 1, "model_name": "m"})
    host = start()
    register()
    truth.gpu = set()
    wait_for_readers(host, truth)
    host.generate(prompts=prompts, tokens=1)
    check(host, truth, prompts)
    host.stop()
