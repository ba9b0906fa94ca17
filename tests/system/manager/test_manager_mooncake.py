# SPDX-License-Identifier: Apache-2.0
"""A storage of the manager in a real Mooncake: probed, written to and read by an engine, deleted in, and lost."""

import importlib.util
import os
import re
import subprocess
import sys
import urllib.request

import pytest

from fleet_world import CHUNK_BYTES, CHUNKS, GROUP, Engine, Fleet
from manager_process import free_port, wait_until

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

