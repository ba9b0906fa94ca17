# SPDX-License-Identifier: Apache-2.0
"""A storage of the manager in a real Mooncake: probed, written to and read by an engine, deleted in, and lost."""

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import urllib.request
from array import array

import pytest

from fleet_world import GROUP, Fleet
from manager_process import free_port, wait_until

CHUNKS, CHUNK_BYTES, TOKENS = 6, 1 << 16, 64
OWNER = """
import os, sys, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup('127.0.0.1', 'P2PHANDSHAKE', 64 << 20, 16 << 20, 'tcp', '', sys.argv[1]) == 0
os.write(1, b'r')
time.sleep(100000)
"""


class Mooncake:
    """A master, and a process that gives it memory."""

    name = "moon"

    def __init__(self):
        if importlib.util.find_spec("mooncake") is None:
            if os.environ.get("CI"):
                raise RuntimeError("mooncake is missing: see tools/requirements-test.txt")
            pytest.skip("needs mooncake")
        folder = os.path.dirname(importlib.util.find_spec("mooncake").origin)
        self.port, self.metrics_port = free_port(), free_port()
        self.master = subprocess.Popen(
            [os.path.join(folder, "mooncake_master"), "-rpc_port", str(self.port), "-metrics_port", str(self.metrics_port),
             "-client_ttl", "30"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: self.objects() == 0)
        self.owner = subprocess.Popen([sys.executable, "-c", OWNER, f"127.0.0.1:{self.port}"],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.owner.stdout.read(1) == b"r"

    def spec(self):
        return {"global_unique_name": self.name, "mooncake": {
            "metadata_connstring": "P2PHANDSHAKE", "protocol": "tcp", "master_service_entry": f"127.0.0.1:{self.port}"}}

    def objects(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
                return int(re.search(r"^master_key_count (\d+)$", answer.read().decode(), re.M)[1])
        except OSError:
            return None

    def kill_master(self):
        self.master.kill()
        self.master.wait()

    def stop(self):
        self.owner.kill()
        self.owner.wait()
        self.owner.stdout.close()
        self.kill_master()


class Engine:
    """Chunks of a prompt of equal tokens, over a pool behind managers."""

    def __init__(self, url):
        from tierce import _core as core

        self.engine = core.Engine.open(None, {"memory.size": "16MiB", "disk.path": "", "remote.urls": url,
                                              "timeout.lookup": "30s", "timeout.load": "30s"})
        self.view = self.engine.view({
            "weights": "aa", "model": "m", "kv_dtype": "float32", "quantization": "", "layout": "l", "layer_count": 1,
            "cell_bytes": [CHUNK_BYTES], "block_tokens": TOKENS, "chunk_blocks": 1, "algo": "sha256"})
        self.chain = self.view.chain()
        self.chain.append(array("i", [5]) * (CHUNKS * TOKENS))
        self.memory = ctypes.create_string_buffer(CHUNKS * CHUNK_BYTES)
        self.view.set_paged([ctypes.addressof(self.memory)], [CHUNK_BYTES], CHUNKS)
        self.blocks = array("i", range(CHUNKS))

    def store(self, content):
        self.memory.raw = content
        store = self.view.store_begin(self.chain, CHUNKS, self.blocks)
        store.layer(0)
        assert store.end() == CHUNKS and self.engine.flush(60_000)

    def found(self):
        found, in_memory, _ = self.view.lookup(self.chain, 0, CHUNKS, 0, 0)
        assert in_memory == 0
        return found

    def load(self):
        ctypes.memset(self.memory, 0, CHUNKS * CHUNK_BYTES)
        load = self.view.load_begin(self.chain, 0, CHUNKS, self.blocks)
        load.layer(0)
        assert all(load.end())
        return self.memory.raw

    def close(self):
        del self.chain, self.view  # else the next engine has its memory
        self.engine.close()


@pytest.fixture
def world(tmp_path):
    storage = Mooncake()
    try:
        fleet = Fleet(tmp_path, [storage], flags=[f"--mooncake.python={sys.executable}"])
        yield storage, fleet
        fleet.stop()
    finally:
        storage.stop()


def listed(fleet, name):
    return next(s for s in fleet.api.call("admin", "ListStorage")["storage"] if s["global_unique_name"] == name)


def used_bytes(fleet):
    for line in fleet.leader().get("/metrics", "admin_http")[1].decode().splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("tierce_cache_manager_group_used_bytes{") and f'="{GROUP}"' in name and 'type="all"' in name:
            return int(float(value))
    raise AssertionError("no metric of the group")


def test_stored_found_deleted_and_lost(world):
    storage, fleet = world
    url = f"{fleet.url}?mooncake_python={sys.executable}"
    wait_until(lambda: listed(fleet, "moon")["status"] == "well" and storage.objects() == 0)
    content = os.urandom(CHUNKS * CHUNK_BYTES)
    engine = Engine(url)
    engine.store(content)
    engine.close()
    wait_until(lambda: storage.objects() >= CHUNKS)
    assert used_bytes(fleet) >= CHUNKS * CHUNK_BYTES
    engine = Engine(url)
    assert engine.found() == CHUNKS and engine.load() == content
    engine.close()

    names = [i["instance_id"] for i in fleet.api.call("admin", "ListInstanceInfo", instance_group_name=GROUP)["instance_info"]]
    for name in names:
        fleet.api.call("meta", "TrimCache", instance_id=name, strategy="TS_REMOVE_ALL_CACHE")
    wait_until(lambda: storage.objects() == 0)
    assert used_bytes(fleet) == 0

    engine = Engine(url)
    assert engine.found() == 0
    engine.store(content)
    engine.close()
    storage.kill_master()
    wait_until(lambda: listed(fleet, "moon")["status"] == "unwell")
    assert re.match(r"(write|read|delete): |it does not answer", listed(fleet, "moon")["reason"])
    engine = Engine(url)  # a miss, and no failure
    assert engine.found() == 0
    engine.close()

