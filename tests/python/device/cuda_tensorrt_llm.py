# SPDX-License-Identifier: Apache-2.0
"""The connector for TensorRT-LLM with KV on a GPU, with the stand-in of its interface; run by test_vllm_cuda.py. The driver's
report names each copy and kernel that touch the same bytes and that nothing orders."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))

import fake_cuda  # noqa: E402
from cuda_engine import gpu, quiet, until  # noqa: E402, F401
from tensorrt_engine import BLOCKS, LAYERS, VALUES, Request  # noqa: E402
from test_tensorrt_llm import BLOCK, PROMPT, classes, engine, model, settings, stored  # noqa: E402, F401

SIZE = LAYERS * 2 * VALUES * 2  # of a block


class DeviceTensor(fake_cuda.CudaTensor):
    def __getitem__(self, index):
        return DeviceTensor(self.tensor[index])


class DevicePool:
    """The model runs on a stream of its own. No call tells the connector which one."""

    def __init__(self, gpu):  # noqa: F811
        self.gpu, self.stream = gpu, fake_cuda.Stream(gpu)
        self.raw = gpu.allocate(BLOCKS * SIZE)
        self.tensor = DeviceTensor(self.raw.view(torch.float16).view(BLOCKS, LAYERS, 2, VALUES))

    def on_its_stream(self, call, *arguments):
        others, self.gpu.stream = self.gpu.stream, self.stream
        try:
            return call(*arguments)
        finally:
            self.gpu.stream = others

    def write(self, block, values):
        self.on_its_stream(self.gpu.write, [(self.raw.data_ptr() + block * SIZE, SIZE)], values.contiguous().numpy().tobytes())

    def read(self, block):
        data = self.on_its_stream(self.gpu.read, [(self.raw.data_ptr() + block * SIZE, SIZE)])
        return torch.frombuffer(bytearray(data), dtype=torch.float16).view(LAYERS, 2, VALUES)


@pytest.fixture
def start(gpu, engine):  # noqa: F811
    """Starts an engine whose GPU is prepared."""
    if gpu.stream is None:
        gpu.start()
    pools = []

    def make():
        pools.append(DevicePool(gpu))
        out = engine(pools=pools[-1:])
        until(out.workers[0].can_transfer)
        return out

    yield make
    gpu.synchronize()
    for pool in pools:
        gpu.free([pool.raw])


def test_a_prompt_comes_back(start):
    it = start()
    assert stored(it) == 0
    request = Request(list(PROMPT))
    matched, ids = it.prefill(request)
    assert matched == 6 * BLOCK and it.is_right(request, ids)
    it.finish(request, ids)


def test_steps_of_one_chunk_each(start):
    it = start()
    for prompt, found in (PROMPT[:2 * BLOCK + 1], 0), (PROMPT, 2 * BLOCK), ([*PROMPT, 1], 6 * BLOCK):
        request = Request(list(prompt))
        matched, ids = it.prefill(request, chunk=BLOCK)
        assert matched == found and it.is_right(request, ids)
        it.finish(request, ids)


def test_nothing_is_promised_while_the_gpu_is_being_prepared(start, monkeypatch):
    it = start()
    stored(it)
    monkeypatch.setattr(it.workers[0].memory, "prepare", lambda views: False)
    assert it.scheduler.get_num_new_matched_tokens(Request(list(PROMPT)), 0) == (0, False)
    assert stored(it, [1, *PROMPT]) == 0
    monkeypatch.undo()
    assert stored(it, [1, *PROMPT]) == 0
    assert stored(it, [1, *PROMPT]) == 6 * BLOCK


def test_kv_that_is_gone_ends_the_engine(start):
    it = start()
    stored(it)

    def lose():
        it.workers[0].view.unpin(it.scheduler.live[request.request_id][0].session)
        it.workers[0].view.view.clear()

    request = Request(list(PROMPT))
    it.between = lose
    with pytest.raises(RuntimeError, match="could not load KV that it had promised"):
        it.prefill(request)
