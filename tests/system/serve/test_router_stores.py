# SPDX-License-Identifier: Apache-2.0
"""The router index beside real stores: engines in processes that are killed and restarted, behind relays that lose frames; the
index is killed too. At the end its answers are the stores', block by block."""

import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
import zmq

from manager_process import free_port
from store_worker import CHUNK_TOKENS, DEPTH, PROMPTS, prompt_tokens
from test_kv_events_dynamo import all_of
from test_router_dynamo import PYTHON, dynamo  # noqa: F401
from test_router_index import SECONDS, Router

LOST = 0.1  # of frames


class Relay:
    """Forwards the frames of a publisher, of all its lives, and loses some by a seed."""

    def __init__(self, context, endpoint, seed):
        self.rng, self.is_faulty, self.ended = random.Random(seed), True, threading.Event()
        self.lost = 0
        self.sub, self.pub = context.socket(zmq.SUB), context.socket(zmq.PUB)
        for socket in self.sub, self.pub:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.SNDHWM, 0)
        self.sub.setsockopt(zmq.RECONNECT_IVL, 10)
        self.sub.subscribe(b"")
        self.sub.connect(endpoint)
        self.pub.bind("tcp://127.0.0.1:*")
        self.endpoint = self.pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.thread = threading.Thread(target=self.forward)
        self.thread.start()

    def forward(self):
        while not self.ended.is_set():
            if not self.sub.poll(20):
                continue
            frames = self.sub.recv_multipart()
            if self.is_faulty and self.rng.random() < LOST:
                self.lost += 1
            else:
                self.pub.send_multipart(frames)

    def end(self):
        self.ended.set()
        self.thread.join()
        self.sub.close()
        self.pub.close()


class StoreProcess:
    """A store whose process may be killed, and its relay. Stores differ in size, only some have a disk, and only some have a
    replay socket. All serve snapshots."""

    def __init__(self, folder, context, number, seed):
        self.rng, self.number, self.has_disk = random.Random(seed), number, number % 4 == 3
        ports = [free_port() for _ in range(3)]
        self.parameters = {"memory.size": f"{2 + number % 3}MiB", "kv_events.endpoint": f"tcp://127.0.0.1:{ports[0]}"}
        self.replay_endpoint = None
        if number % 3 != 1:
            self.replay_endpoint = f"tcp://127.0.0.1:{ports[1]}"
            self.parameters |= {"kv_events.replay_endpoint": self.replay_endpoint, "kv_events.replay": "64KiB"}
        if self.has_disk:
            self.parameters |= {"disk.path": str(folder / f"disk-{number}"), "disk.size": "16MiB"}
        self.parameters["kv_events.snapshot_port"] = str(ports[2])
        self.http = True  # as test_router_index's publishers state it
        self.snapshot_url = f"http://127.0.0.1:{ports[2]}/kv_events/snapshot"
        self.log = folder / f"store-{number}.log"
        self.changes = self.kills = 0  # changes: of lives that have ended
        self.relay = Relay(context, self.parameters["kv_events.endpoint"], seed)
        self.endpoint = self.relay.endpoint
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([sys.executable, str(Path(__file__).parent / "store_worker.py"), json.dumps(self.parameters)],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1)

    def tell(self, *words):
        print(*words, file=self.process.stdin, flush=True)

    def hear(self):
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        return line.strip()

    def live(self, wanted, kills):
        """Until the store has had `wanted` changes in all lives, in the course of which it is killed `kills` times."""
        bounds = sorted(self.rng.randrange(wanted // 2) for _ in range(kills))
        assert self.hear() == "open"
        self.tell("run", wanted, self.rng.randrange(1 << 30))
        while True:
            word = self.hear().split()
            if word[0] == "done":
                self.changes += int(word[1])
                return
            if bounds and self.changes + int(word[0]) >= bounds[0]:
                bounds.pop(0)
                self.process.kill()
                self.process.wait()
                self.kills += 1
                self.changes += int(word[0])
                self.start()
                assert self.hear() == "open"
                self.tell("run", max(1, wanted - self.changes), self.rng.randrange(1 << 30))

    def held(self):
        """{hash: media}, as the tiers are read for a snapshot."""
        held = {}
        with urllib.request.urlopen(self.snapshot_url, timeout=SECONDS) as answer:
            head, *batches, end = all_of(answer.read())
        for batch in batches:
            for event in batch[1]:
                for number in event["block_hashes"]:
                    held.setdefault(number, set()).add(event["medium"])
        assert end == {"end": sum(map(len, held.values()))} and head["version"] == 1
        return held

    def end(self):
        self.process.kill()
        self.process.wait()
        self.relay.end()


class Asker:
    """Asks for one block at a time, over one connection."""

    def __init__(self, router):
        self.connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=SECONDS)

    def ask(self, path, **body):
        self.connection.request("POST", path, json.dumps({"model_name": "m", **body}), {"Content-Type": "application/json"})
        return json.loads(self.connection.getresponse().read())["instances"]

    def media(self, number):
        """{instance: media} of a block."""
        found = self.ask("/query_by_hash", block_hashes=[number])
        return {instance: {medium for medium in ("cpu", "disk") if answer["alone"][medium] > 0} for instance, answer in found.items()}

    def lengths(self, prompt):
        found = self.ask("/query", token_ids=prompt_tokens(prompt).tolist())
        return {instance: answer["longest_matched"] // CHUNK_TOKENS for instance, answer in found.items()}


def register(router, stores):
    for store in stores:
        router.register(store.number, store, block_size=CHUNK_TOKENS)


def compare(router, stores):
    """Each block of each store is found by its hash where it is, and nowhere else; and each prompt by its tokens."""
    asker, held = Asker(router), {str(store.number): store.held() for store in stores}
    everywhere = set().union(*held.values())
    for number in everywhere:
        expected = {instance: {m.lower() for m in blocks[number]} for instance, blocks in held.items() if number in blocks}
        assert asker.media(number) == expected, number
    for store in stores:
        assert router.blocks(store.number) == held[str(store.number)]
        store.tell("lengths")
        store.lengths = json.loads(store.hear())
    found = 0
    for prompt in range(PROMPTS):
        answer = asker.lengths(prompt)
        for store in stores:
            is_shown = answer.get(str(store.number), 0)
            assert is_shown <= store.lengths[prompt], (prompt, store.number)
            assert store.has_disk or is_shown == store.lengths[prompt], (prompt, store.number)
            found += is_shown
    return len(everywhere), found


def is_settled(router, store):
    """The index has the last change: one more shows what was lost at the end, without a replay socket."""
    if store.replay_endpoint is None:
        store.tell("store", random.randrange(PROMPTS), DEPTH)
        assert store.hear() == "stored"
    worker = router.worker(store.number)
    return worker["exact"] and worker["status"] == "active" and router.blocks(store.number) == store.held()


@pytest.mark.parametrize("count, wanted, kills, restarts", [
    (3, 15_000, 1, 1),
    pytest.param(6, 200_000, 6, 4, marks=pytest.mark.long)])
def test_answers_equal_the_stores(tmp_path, count, wanted, kills, restarts):
    seed = int(os.environ.get("TIERCE_TEST_SEED", time.time_ns()))
    print("TIERCE_TEST_SEED", seed)
    rng, context = random.Random(seed), zmq.Context()
    stores = [StoreProcess(tmp_path, context, number, rng.randrange(1 << 30)) for number in range(1, count + 1)]
    router = Router(tmp_path)
    register(router, stores)
    lives = [threading.Thread(target=store.live, args=(wanted, kills)) for store in stores]
    for life in lives:
        life.start()
    for restart in range(restarts):
        bound = wanted * count * (restart + 1) // (restarts + 2)
        router.wait(lambda: sum(store.changes for store in stores) >= bound or not any(life.is_alive() for life in lives))
        router.process.kill()
        router.process.wait()
        router = Router(tmp_path)
        register(router, stores)
    for life in lives:
        life.join(SECONDS * 10)
    for store in stores:
        store.relay.is_faulty = False
    for store in stores:
        router.wait(lambda: is_settled(router, store))
    blocks, by_tokens = compare(router, stores)
    workers = router.ask("/workers")[1]
    counted = {name: sum(w[name] for w in workers) for name in ("gaps", "restarts", "replays", "snapshots")}
    print(f"{sum(s.changes for s in stores)} changes of {count} stores, {sum(s.kills for s in stores)} kills, "
          f"{sum(s.relay.lost for s in stores)} lost frames, {restarts} restarts of the index, whose last life had {counted}; "
          f"{blocks} hashes, {by_tokens} blocks by tokens")
    assert sum(s.changes for s in stores) >= wanted * count and sum(s.kills for s in stores) == kills * count
    assert blocks > 100 and by_tokens > 0
    router.end()
    for store in stores:
        store.end()
    context.destroy(0)


@pytest.mark.skipif(PYTHON is None, reason="TIERCE_DYNAMO_PYTHON is not set")
def test_dynamo_follows_a_store(tmp_path, dynamo):  # noqa: F811
    """Dynamo's index knows of each prompt what the store has in memory, from the store's stream and its replay socket."""
    seed = int(os.environ.get("TIERCE_TEST_SEED", time.time_ns()))
    print("TIERCE_TEST_SEED", seed)
    context = zmq.Context()
    store = StoreProcess(tmp_path, context, 2, seed)
    store.relay.is_faulty = False

    def lengths():
        answers = (dynamo("/query", {"model_name": "m", "token_ids": prompt_tokens(prompt).tolist()})["instances"] for prompt in range(PROMPTS))
        return [answer.get("2", {"cpu": 0})["cpu"] // CHUNK_TOKENS for answer in answers]

    assert store.hear() == "open"
    dynamo("/register", {"instance_id": 2, "endpoint": store.parameters["kv_events.endpoint"], "model_name": "m",
                         "replay_endpoint": store.replay_endpoint, "block_size": CHUNK_TOKENS, "dp_rank": 0})
    until = time.monotonic() + SECONDS
    while not any(lengths()):  # Dynamo does not ask for what was sent before it had subscribed
        assert time.monotonic() < until
        store.tell("store", random.randrange(PROMPTS), DEPTH)
        assert store.hear() == "stored"
    store.tell("run", 20_000, seed % (1 << 30))
    while not store.hear().startswith("done"):
        pass
    store.tell("lengths")
    expected = json.loads(store.hear())
    assert sum(expected) > 100
    until = time.monotonic() + SECONDS
    while (found := lengths()) != expected:
        assert time.monotonic() < until, [both for both in zip(found, expected) if both[0] != both[1]]
    store.end()
    context.term()
