# SPDX-License-Identifier: Apache-2.0
"""LMCache's own worker of a controller (LMCacheWorker, 0.5.6), with an engine that holds a list of keys. For
test_lmcache_controller.py, by a Python that has LMCache: PULL REPLY HTTP WORKER_PORT. Prints what it saw as JSON."""

import asyncio
import json
import os
import sys
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

sys.modules["vllm"] = None  # LMCache needs none of it here

from lmcache.v1.cache_controller.message import BatchedKVOperationMsg, BatchedP2PLookupMsg, KVOpEvent, OpType
from lmcache.v1.cache_controller.worker import LMCacheWorker
from lmcache.v1.config import LMCacheEngineConfig

PULL, REPLY, HTTP, PORT = (int(text) for text in sys.argv[1:5])
HASHES = [i * 7919 - 5000 for i in range(5000)]


class Backend:
    def get_keys(self):
        return [SimpleNamespace(chunk_hash=h) for h in HASHES]

    def __str__(self):
        return "LocalCPUBackend"


class Engine:
    storage_manager = SimpleNamespace(local_cpu_backend=Backend())

    def __init__(self):
        self.frozen = []

    def freeze(self, on):
        self.frozen.append(on)

    def clear(self, locations):
        return 512

    def lookup(self, tokens, search_range, lookup_id, pin):
        return len(tokens)

    def health(self):
        return 0


def call(path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{HTTP}{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return [answer.status, json.load(answer)]
    except urllib.error.HTTPError as error:
        return [error.code, json.load(error)]


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def main():
    engine = Engine()
    config = LMCacheEngineConfig.from_defaults(
        enable_controller=True, lmcache_instance_id="real", controller_pull_url=f"127.0.0.1:{PULL}",
        controller_reply_url=f"127.0.0.1:{REPLY}", lmcache_worker_ports=[PORT], lmcache_worker_heartbeat_time=1,
        lmcache_worker_heartbeat_delay_time=0,
        extra_config={"full_sync_startup_delay_s": 0.1, "full_sync_status_poll_interval_s": 0.2})
    config.enable_p2p, config.p2p_host, config.p2p_init_ports = True, "127.0.0.1", [7777]
    worker = LMCacheWorker(config, SimpleNamespace(worker_id=0, use_mla=False, world_size=1), engine)

    def registered():
        return call("/query_worker_info", {"instance_id": "real"})[1]["worker_infos"]

    def change(first, keys):
        worker.put_msg(BatchedKVOperationMsg("real", 0, "LocalCPUBackend",
                                             [KVOpEvent(OpType.ADMIT, key, first + i) for i, key in enumerate(keys)]))

    def look_up(hashes):
        message = BatchedP2PLookupMsg(hashes, "other", 0)
        return asyncio.run_coroutine_threadsafe(worker.async_put_and_wait_msg(message), worker.loop).result(30).layout_info
    wait_until(registered)
    change(0, [1, 2, 3])
    wait_until(lambda: look_up([1, 2, 3])[0][2] == 3)
    change(9, [4])  # numbers are missing
    wait_until(lambda: engine.frozen == [True, False])
    location = {"instance_id": "real", "location": "LocalCPUBackend"}
    print(json.dumps({"info": registered()[0], "found": look_up(HASHES[:300]), "old": look_up([1, 2, 3]),
                      "clear": call("/clear", location), "pin": call("/pin", {**location, "tokens": [1, 2, 3]}),
                      "compress": call("/compress", {**location, "method": "cachegen"}),
                      "health": call("/health", {"instance_id": "real"})}), flush=True)
    os._exit(0)


main()
