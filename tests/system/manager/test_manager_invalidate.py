# SPDX-License-Identifier: Apache-2.0
"""InvalidateNamespace after a weight update: real engines over a real manager never load a chunk that was stored before
it, from whatever tier, and share those that are stored after it."""

import ctypes
import itertools
import json
import signal
import subprocess
from array import array

import pytest

from fleet_world import STORAGES, Fleet, code
from manager_process import executable, wait_until

from tierce import _core as core

BLOCKS, CELL = 32, 512
IDS = array("i", range(BLOCKS))
NAMESPACE = {"weights": "aa", "model": "m", "kv_dtype": "f", "quantization": "", "layout": "l",
             "layer_count": 1, "cell_bytes": [CELL], "block_tokens": 4, "chunk_blocks": 4, "algo": "sha256"}
OLD, NEW = b"\x11", b"\x22"
SEEDS = itertools.count(1)  # of prompts that nobody has stored


class Member:
    """An engine with tiers of its own above the fleet. Engines of one process differ in a setting."""

    made = 0

    def __init__(self, fleet, **more):
        Member.made += 1
        self.engine = core.Engine.open(None, {
            "memory.size": f"{16 + Member.made}MiB", "disk.path": "", "remote.urls": fleet.url, "cost.check": "false",
            "timeout.lookup": "10s", "chunk.tokens": "16", "breaker.errors": "1000",
            **more})
        self.view = self.engine.view(NAMESPACE)
        self.memory = ctypes.create_string_buffer(CELL * BLOCKS)
        self.view.set_paged([ctypes.addressof(self.memory)], [CELL], BLOCKS)

    def chain(self, seed=0):
        chain = self.view.chain()
        chain.append(array("i", [seed] * 4 * BLOCKS))
        return chain

    def store(self, content, seed=0):
        """What a model computes for one prompt."""
        ctypes.memset(self.memory, content[0], len(self.memory))
        store = self.view.store_begin(self.chain(seed), BLOCKS, IDS)
        store.layer(0)
        assert store.end() == BLOCKS
        assert self.engine.flush(30000)

    def found(self, seed=0):
        return self.view.lookup(self.chain(seed), 0, BLOCKS, 0, 0)[0]

    def load(self, seed=0):
        """The contents of all blocks that can be loaded."""
        found = self.found(seed)
        ctypes.memset(self.memory, 0, len(self.memory))
        if found == 0:
            return set()
        load = self.view.load_begin(self.chain(seed), 0, found, IDS)
        load.layer(0)
        origins = load.end()
        return {self.memory.raw[CELL * i:CELL * i + 1] for i in range(found) if origins[i] != 0}

    def close(self):
        self.view = None
        self.engine.close()


@pytest.fixture
def fleet(tmp_path, request):
    fleet = Fleet(tmp_path, [STORAGES["file"](tmp_path)], **getattr(request, "param", {}))
    yield fleet
    fleet.stop()


@pytest.fixture
def member(fleet):
    members = []

    def make(**more):
        members.append(Member(fleet, **more))
        return members[-1]

    yield make
    for one in members:
        one.close()


def invalidate(fleet):
    reply = fleet.api.call("meta", "InvalidateNamespace", trace_id="t", instance_group="default")
    assert code(reply) == "OK", reply
    return [int(one["generation"]) for one in reply["instances"]]


def share(writer, reader):
    """Blocks of the new weights pass from one engine to another. An engine that has just dropped its old ones may store
    and find nothing for a moment."""
    def is_shared():
        seed = next(SEEDS)
        writer.store(NEW, seed)
        return reader.load(seed) == {NEW}

    wait_until(is_shared)


def command(fleet, *words):
    url = f"http://127.0.0.1:{fleet.managers[0].ports['http']}"
    return subprocess.run([str(executable()), *words, "--meta-url", url, "--json"], capture_output=True, text=True,
                          timeout=60, check=False)


def test_engines_drop_what_they_have(fleet, member):
    writer, reader = member(), member()
    writer.store(OLD)
    assert reader.load() == {OLD}
    assert invalidate(fleet) == [2]
    assert member().found() == 0  # a new engine has only the manager
    # Both find everything in their own memory, and so ask the manager nothing.
    wait_until(lambda: writer.found() == 0 and reader.found() == 0)
    assert writer.load() == reader.load() == set()
    share(writer, reader)
    share(reader, writer)
    writer.store(NEW)
    assert writer.load() == {NEW}
    assert reader.load() <= {NEW}


def test_a_disk_from_before(fleet, member, tmp_path):
    disk = {"disk.path": str(tmp_path / "disk"), "disk.size": "64MiB"}
    first = Member(fleet, **disk)
    first.store(OLD)
    first.close()
    invalidate(fleet)
    again = member(**disk)
    wait_until(lambda: again.found() == 0)
    assert again.load() == set()
    share(again, member())


@pytest.mark.parametrize("fleet", [{"fixed": True}], indirect=True)
def test_a_registry_that_is_lost(fleet, member):
    """It counts from 1 again, and might have invalidated what the engine has."""
    writer = member()
    writer.store(OLD)
    assert writer.load() == {OLD}
    fleet.managers[0].stop()
    fleet.managers[0].start()
    wait_until(lambda: writer.found(next(SEEDS)) == 0 and writer.found() == 0)


@pytest.mark.parametrize("fleet", [{"managers": 2}], indirect=True)
def test_another_leader_keeps_it(fleet, member):
    writer = member()
    writer.store(OLD)
    assert member().load() == {OLD}
    assert invalidate(fleet) == [2]
    fleet.fail_over(signal.SIGKILL)
    assert member().found() == 0
    wait_until(lambda: writer.found() == 0)
    assert invalidate(fleet) == [3]
    share(writer, member())


def test_the_command(fleet, member):
    member().store(OLD)
    group = fleet.api.call("admin", "ListInstanceInfo", trace_id="t", instance_group_name="default")
    (instance,) = [one["instance_id"] for one in group["instance_info"]]
    for generation, words in ((2, ["instance", "invalidate", instance]), (3, ["group", "invalidate", "default"])):
        shown = json.loads(command(fleet, *words).stdout)
        assert shown["instances"] == [{"instance_id": instance, "generation": str(generation)}]
    refused = command(fleet, "group", "invalidate", "default", "--family", "other")
    assert refused.returncode != 0
    assert "there is no instance in group default of family other" in refused.stdout + refused.stderr
    assert command(fleet, "instance", "show", instance, "--family", "other").returncode == 2
    assert member().found() == 0
