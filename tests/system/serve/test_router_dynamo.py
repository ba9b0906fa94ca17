# SPDX-License-Identifier: Apache-2.0
"""The router index beside Dynamo's: the same events, the same answers. TIERCE_DYNAMO_PYTHON names a Python
with ai-dynamo-runtime 1.6.1, pydantic and uvloop."""

import json
import os
import random
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

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
