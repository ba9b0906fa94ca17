# SPDX-License-Identifier: Apache-2.0
"""The linker for SGLang with pools on a GPU, which SGLang's own classes describe; run by test_vllm_cuda.py. The driver's report
names each copy and kernel that touch the same bytes and that nothing orders."""

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace as Thing

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "connector"))

import fake_cuda  # noqa: E402
from cuda_engine import gpu, quiet, until  # noqa: E402, F401
from test_sglang_linker import LAYERS, VALUES, Config, keys_of, linkers, load, sglang, store  # noqa: E402, F401

PAGES, TOKENS, ROW = 8, 16, 32  # bytes of a token in a buffer


class Event:
    """torch's, which any thread may wait for."""

    def __init__(self, gpu):  # noqa: F811
        self.gpu, self.event = gpu, fake_cuda.Event(gpu)
        self.event.record(gpu.stream)

    def synchronize(self):
        self.gpu.enter()
        until(self.event.query)


class LoadStream:
    def __init__(self, gpu):  # noqa: F811
        gpu.enter()
        self.gpu, self.cuda_stream = gpu, gpu.second.cuda_stream

    def synchronize(self):
        self.gpu.call("cuStreamSynchronize", self.gpu.second.handle)


class World:
    """Keys and values of each layer."""

    def __init__(self, gpu, linkers):  # noqa: F811
        self.gpu, self.linkers = gpu, linkers
        self.raw = [gpu.allocate(PAGES * TOKENS * ROW) for _ in range(2 * LAYERS)]
        names = linkers.storage.PoolName
        buffers = [fake_cuda.CudaTensor(raw.view(PAGES * TOKENS, ROW)) for raw in self.raw]
        kv = linkers.pools.DevicePoolEntry(
            name=names.KV, indices_from_pool=names.KV, device_pool=Thing(), components=[buffers],
            layer_mapping={layer: (layer, LAYERS + layer) for layer in range(LAYERS)}, page_size=TOKENS, rows_are_pages=False)
        self.group = linkers.pools.DevicePoolGroup([kv], LAYERS, TOKENS)

    def runs(self, page):
        return [(raw.data_ptr() + page * TOKENS * ROW, TOKENS * ROW) for raw in self.raw]

    def fill(self, page):
        data = os.urandom(2 * LAYERS * TOKENS * ROW)
        self.gpu.write(self.runs(page), data)
        return data

    def transfers(self, keys, pages):
        indices = torch.cat([torch.arange(page * TOKENS, (page + 1) * TOKENS) for page in pages])
        return [self.linkers.storage.PoolTransfer(name=self.linkers.storage.PoolName.KV, keys=list(keys), device_indices=indices)]


@pytest.fixture
def opened(gpu, linkers, monkeypatch):  # noqa: F811
    """A linker and its world."""
    if gpu.stream is None:
        gpu.start()
    world, config = World(gpu, linkers), Config()
    config.extra_config = VALUES
    ours = linkers.ours.Linker
    monkeypatch.setattr(ours, "make_indices", staticmethod(torch.arange))
    monkeypatch.setattr(ours, "events", lambda self: [Event(gpu)])
    monkeypatch.setattr(ours, "make_stream", lambda self: LoadStream(gpu))
    linker = ours(config, None, "0.5", world.group, linkers.unified.LayerWiseLoadCounter(LAYERS))
    yield linker, world
    linker.close()
    gpu.synchronize()
    gpu.free(world.raw)


def test_pages_come_back(opened):
    linker, world = opened
    keys, pages = keys_of(3), (0, 1, 2)
    data = [world.fill(page) for page in pages]
    assert store(linker, world.transfers(keys, pages))
    assert linker.lookup("r", world.transfers(keys, pages)) == [1, 2, 3]
    for page in (5, 6, 7):
        world.fill(page)  # by a request that has ended a moment ago
    assert load(linker, world.transfers(keys, (7, 5, 6)))
    assert [world.gpu.read(world.runs(page)) for page in (7, 5, 6)] == data


def test_a_page_by_page_load(opened):
    linker, world = opened
    data = world.fill(1)
    assert store(linker, world.transfers(keys_of(1), (1,)))
    linker.layer_wise_bytes = 0
    assert load(linker, world.transfers(keys_of(1), (4,))) and world.gpu.read(world.runs(4)) == data


def test_the_model_s_work_comes_first(opened):
    """A store waits for the step that computes its pages, and a load for the step that last used its slots."""
    linker, world = opened
    with world.gpu.held():
        data = world.fill(2)
        assert linker.offload(world.transfers(keys_of(1), (2,)))
        threading.Event().wait(0.05)
        assert linker.num_completed_offloads() == 0
    until(linker.num_completed_offloads)
    assert linker.pop_completed_offload()
    with world.gpu.held():
        world.fill(3)
        assert linker.load("r", world.transfers(keys_of(1), (3,)))
        index = linker.start_layer_wise_loading()
    assert linker.finish_layer_wise_loading(index) and world.gpu.read(world.runs(3)) == data


def test_missing_pages_fail(opened):
    linker, world = opened
    assert not load(linker, world.transfers(keys_of(2), (0, 1)))
