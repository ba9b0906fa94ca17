# SPDX-License-Identifier: Apache-2.0
"""A storage of the manager in a real Mooncake: probed, written to and read by an engine, deleted in, and lost."""

import os
import re

import pytest

from fleet_world import CHUNK_BYTES, CHUNKS, GROUP, Engine, Fleet, Mooncake
from manager_process import wait_until


@pytest.fixture
def world(tmp_path):
    storage = Mooncake(tmp_path)
    try:
        fleet = Fleet(tmp_path, [storage])
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
    wait_until(lambda: listed(fleet, "moon")["status"] == "well" and storage.objects() == 0)
    content = os.urandom(CHUNKS * CHUNK_BYTES)
    engine = Engine(fleet.url)
    engine.store(content)
    engine.close()
    wait_until(lambda: storage.objects() >= CHUNKS)
    assert used_bytes(fleet) >= CHUNKS * CHUNK_BYTES
    engine = Engine(fleet.url)
    assert engine.found() == CHUNKS and engine.load() == content
    engine.close()

    names = [i["instance_id"] for i in fleet.api.call("admin", "ListInstanceInfo", instance_group_name=GROUP)["instance_info"]]
    for name in names:
        fleet.api.call("meta", "TrimCache", instance_id=name, strategy="TS_REMOVE_ALL_CACHE")
    wait_until(lambda: storage.objects() == 0)
    assert used_bytes(fleet) == 0

    engine = Engine(fleet.url)
    assert engine.found() == 0
    engine.store(content)
    engine.close()
    storage.kill_master()
    wait_until(lambda: listed(fleet, "moon")["status"] == "unwell")
    assert re.match(r"(write|read|delete): |it does not answer", listed(fleet, "moon")["reason"])
    engine = Engine(fleet.url)  # a miss, and no failure
    assert engine.found() == 0
    engine.close()

