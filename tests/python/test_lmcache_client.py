# SPDX-License-Identifier: Apache-2.0
"""The native client for LMCache, without LMCache. tests/system/lmcache/test_lmcache_native.py has LMCache's own adapter."""

import os
import select
import struct

import pytest

from tierce.lmcache import TierceClient
from tierce.vllm.identity import ConfigError

VALUES = {"memory.size": "16MiB", "disk.path": ""}
KEYS = [f"org/model@00010000@0@{i:064x}" for i in range(12)]
SECONDS = 30


class Client:
    """Waits for each call."""

    def __init__(self, **values):
        self.client = TierceClient(**{**VALUES, **values})
        self.ended = {}

    def call(self, number):
        while number not in self.ended:
            assert select.select([self.client.event_fd()], [], [], SECONDS)[0], "no completion"
            self.ended.update({one[0]: one[1:] for one in self.client.drain_completions()})
        is_whole, error, results = self.ended.pop(number)
        assert is_whole == (not error)
        return is_whole, results

    def store(self, keys, values):
        return self.call(self.client.submit_batch_set(keys, [memoryview(value) for value in values]))[0]

    def load(self, keys, size):
        buffers = [memoryview(bytearray(size)) for _ in keys]
        _, loaded = self.call(self.client.submit_batch_get(keys, buffers))
        return [bytes(buffer) if is_loaded else None for buffer, is_loaded in zip(buffers, loaded)]

    def held(self, keys):
        return self.call(self.client.submit_batch_exists(keys))[1]


@pytest.fixture
def open_client():
    opened = []

    def make(**values):
        opened.append(Client(**values))
        return opened[-1]

    yield make
    for client in opened:
        client.client.close()


def random_values(count, size):
    return [os.urandom(size) for _ in range(count)]


def test_objects_are_stored_found_and_loaded(open_client):
    client, values = open_client(), random_values(len(KEYS), 70_001)
    assert client.held(KEYS) == [False] * len(KEYS)
    assert client.store(KEYS, values)
    assert client.held([KEYS[3], "another@00010000@0@00", KEYS[0]]) == [True, False, True]
    assert client.load(KEYS, 70_001) == values
    assert client.load([KEYS[0], KEYS[0].replace("@0@", "@1@")], 70_001) == [values[0], None]


def test_calls_without_keys_and_with_too_few_buffers(open_client):
    client = open_client()
    assert client.store([], []) and client.held([]) == []
    with pytest.raises(ValueError, match="2 keys and 1 buffers"):
        client.client.submit_batch_get(KEYS[:2], [memoryview(bytearray(8))])


def test_an_object_of_another_size_is_not_loaded(open_client):
    client = open_client()
    assert client.store(KEYS[:1], [b"x" * 4096])
    assert client.load(KEYS[:1], 4095) == [None] and client.load(KEYS[:1], 4097) == [None]
    assert client.store(KEYS[1:2], [b"y" * 8192])  # of the same kind
    assert client.held(KEYS[:3]) == [True, True, False]


def test_another_process_finds_what_is_on_disk(open_client, tmp_path):
    disk = {"disk.path": str(tmp_path / "store"), "disk.size": "64MiB"}
    first, values = open_client(**disk), random_values(3, 100_000)
    assert first.store(KEYS[:2], values[:2]) and first.store(KEYS[2:3], [values[2][:50_000]])
    first.client.close()
    second = open_client(**disk)
    assert second.held(KEYS[:4]) == [True, True, True, False]
    assert second.load(KEYS[:2], 100_000) == values[:2] and second.load(KEYS[2:3], 50_000) == [values[2][:50_000]]


def test_another_identity_finds_nothing(open_client):
    first, second = open_client(identity="weights of May"), open_client(identity="weights of June")
    assert first.store(KEYS[:2], random_values(2, 4096))
    assert first.held(KEYS[:2]) == [True, True] and second.held(KEYS[:2]) == [False, False]
    assert second.load(KEYS[:1], 4096) == [None]


def test_a_store_without_room_is_not_complete(open_client):
    client = open_client(**{"timeout.store": "1ms"})
    assert not client.store(KEYS[:1], [bytes(32 << 20)])
    assert client.held(KEYS[:1]) == [False]
    assert client.store(KEYS[1:2], [bytes(4096)])


def test_a_damaged_object_is_not_loaded(open_client, tmp_path):
    disk = {"disk.path": str(tmp_path / "store"), "disk.size": "64MiB"}
    first, value = open_client(**disk), os.urandom(200_000)
    assert first.store(KEYS[:1], [value])
    first.client.close()
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file() and (at := path.read_bytes().find(value[1000:1064])) >= 0:
            with open(path, "r+b") as file:
                file.seek(at)
                file.write(struct.pack("<Q", 1))
            break
    else:
        pytest.fail("the object is in no file")
    assert open_client(**disk).load(KEYS[:1], 200_000) == [None]


def test_invalid_parameters(open_client):
    for values, text in (({"memory.sise": "1GiB"}, "memory.sise"), ({"identity": 7}, "identity 7 is invalid"),
                         ({"node.start": "shared"}, "node.start 'shared'")):
        with pytest.raises(ConfigError, match=text):
            open_client(**values)


def test_a_closed_client(open_client):
    client = open_client()
    client.client.close()
    client.client.close()
    with pytest.raises(ValueError, match="closed"):
        client.client.submit_batch_exists(KEYS)
