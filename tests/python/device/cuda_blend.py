# SPDX-License-Identifier: Apache-2.0
"""A blended prompt whose layers lie in the memory of a GPU: the same as in memory of the host. Run by test_vllm_cuda.py.

The operations of torch run on the processor, after all streams have ended: what is tested are the loads into the memory of
the GPU, the rotations there, and that the layers use nothing that is of the host."""

import ctypes
import time
from array import array
from types import SimpleNamespace as Thing

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from tierce import _core as core
from tierce.vllm.blend_layers import Layers, Reused
from tierce.vllm.transfer import ORIGIN_MEMORY

from cuda_engine import gpu, quiet  # noqa: F401

BLOCK, HEADS, DIM, LAYERS, WIDTH = 16, 2, 32, 3, 64
ROPE = '{"rope_type": "default", "rope_theta": 10000.0}'
CUDA = torch.device("cuda", 0)
BLOCKS = 24


# ---- tensors


class OnDevice(torch.Tensor):
    """A tensor in the memory of the GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    memory = None
    device = CUDA

    def data_ptr(self):
        return self.memory.address + torch.Tensor.data_ptr(self) - self.memory.host


class DeviceMemory(TorchFunctionMode):
    """While it is entered, results of operations on tensors of the GPU lie in its memory."""

    BYTES = 16 << 20

    def __init__(self, gpu):  # noqa: F811
        super().__init__()
        address = ctypes.c_ulonglong()
        gpu.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(self.BYTES))
        find = gpu.driver.cuda_fake_processor_address
        find.restype = ctypes.c_void_p
        self.gpu, self.address = gpu, address.value
        self.host = find(address, ctypes.c_size_t(self.BYTES))
        self.bytes = torch.frombuffer((ctypes.c_char * self.BYTES).from_address(self.host), dtype=torch.uint8)
        self.used, OnDevice.memory = 0, self

    def free(self):
        self.gpu.call("cuStreamSynchronize", self.gpu.stream.handle)
        self.gpu.call("cuMemFree_v2", ctypes.c_ulonglong(self.address))

    def put(self, tensor):
        """The same tensor in the memory of the GPU."""
        host = torch.Tensor.data_ptr(tensor)
        if tensor.numel() == 0 or self.host <= host < self.host + self.BYTES:
            return tensor.as_subclass(OnDevice)
        size = tensor.numel() * tensor.element_size()
        assert self.used + size <= self.BYTES
        out = self.bytes[self.used:self.used + size].view(tensor.dtype).view(tensor.shape)
        self.used += -(-size // 64) * 64
        out.copy_(tensor)
        return out.as_subclass(OnDevice)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        on_device = []

        def plain(value):
            if isinstance(value, OnDevice):
                on_device.append(value)
                return value.as_subclass(torch.Tensor)
            if isinstance(value, torch.device) and value == CUDA:
                on_device.append(value)
                return torch.device("cpu")
            return value

        self.gpu.call("cuStreamSynchronize", self.gpu.stream.handle)
        args, kwargs = tree_map(plain, (args, kwargs or {}))
        assert not on_device or function not in (torch.Tensor.numpy, torch.Tensor.tolist)  # of a GPU: copy them before
        if function is torch.Tensor.cpu:
            return args[0].clone()
        out = function(*args, **kwargs)
        return tree_map(lambda x: self.put(x) if isinstance(x, torch.Tensor) else x, out) if on_device else out


# ---- a model with the parts that the layers of vLLM's models have


class Norm:
    def __call__(self, hidden, residual=None):
        hidden = hidden if residual is None else hidden + residual
        out = hidden / hidden.square().mean(-1, keepdim=True).sqrt()
        return out if residual is None else (out, hidden)


class Rotary:
    is_neox_style = True

    def __call__(self, positions, queries, keys):
        angles = positions.float()[:, None] * self.frequencies
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]

        def turn(x):
            first, second = x.view(len(x), -1, 2, DIM // 2).unbind(2)
            return torch.stack((first * cos - second * sin, second * cos + first * sin), 2).reshape(x.shape)

        return turn(queries), turn(keys)


def write_cells(attention, keys, values, cache, slots):
    view = cache.transpose(1, 2)
    view[slots // BLOCK, slots % BLOCK, :, :DIM], view[slots // BLOCK, slots % BLOCK, :, DIM:] = keys, values


def layers_of(put):
    """The same numbers each time. put(tensor): the tensor in the memory of the layers."""
    generator = torch.Generator().manual_seed(3)

    def weights(*shape):
        return put(torch.randn(shape, generator=generator) / shape[0] ** 0.5)

    rotary = Rotary()
    rotary.frequencies = put(10000.0 ** -(torch.arange(0, DIM, 2) / DIM))
    out = Layers.__new__(Layers)
    out.layers = []
    for number in range(LAYERS):
        qkv, project, up, down = weights(WIDTH, 3 * HEADS * DIM), weights(HEADS * DIM, WIDTH), weights(WIDTH, 96), weights(96, WIDTH)
        attn = Thing(layer_name=str(number), impl=Thing(scale=DIM ** -0.5, do_kv_cache_update=write_cells))
        attention = Thing(qkv_proj=lambda x, w=qkv: (x @ w, None), o_proj=lambda x, w=project: (x @ w, None), rotary_emb=rotary,
                          q_size=HEADS * DIM, kv_size=HEADS * DIM, head_dim=DIM, attn=attn)
        out.layers.append(Thing(self_attn=attention, input_layernorm=Norm(), post_attention_layernorm=Norm(),
                                mlp=lambda x, u=up, d=down: (x @ u).relu() @ d))
    embeddings = weights(100, WIDTH)
    out.model = Thing(model=Thing(embed_tokens=lambda tokens: embeddings[tokens]))
    out.names = [str(number) for number in range(LAYERS)]
    out.caches = [weights(BLOCKS, HEADS, BLOCK, 2 * DIM) for _ in range(LAYERS)]
    out.dtype, out.device, out.type_name, out.rope, out.rows, out.cells = (
        torch.float32, out.caches[0].device, "float32", ROPE, 64, None)
    return out


# ---- a prompt


def blended(layers, kind, stream):
    """Stores a document behind a lead, and blends it into another prompt. Returns the KV of the prompt and the number of
    tokens that were recomputed."""
    cell = HEADS * BLOCK * 2 * DIM * 4
    engine = core.Engine.open(None, {"memory.size": "8MiB", "disk.path": "", "timeout.pin": "61s" if kind == "cuda" else "62s"})
    view = engine.view({"weights": "aa", "model": "m", "kv_dtype": "float32", "quantization": "", "layout": "l",
                        "layer_count": LAYERS, "cell_bytes": [cell] * LAYERS, "block_tokens": BLOCK, "chunk_blocks": 4,
                        "algo": "sha256"})
    view.set_paged([cache.data_ptr() for cache in layers.caches], [cell] * LAYERS, BLOCKS, kind)
    until = time.monotonic() + 60
    while not view.prepare():
        assert time.monotonic() < until
    chain = view.chain()
    chain.append(array("i", range(8 * BLOCK)))
    where = {"stream": stream} if stream else {}
    store = view.store_begin(chain, 8, array("i", range(8)), **where)
    for number in range(LAYERS):
        store.layer(number)
    assert store.end() == 8
    memory = layers.caches[0].new_empty((5, HEADS, BLOCK, 2 * DIM))
    view.set_paged([memory.data_ptr()] * LAYERS, [cell] * LAYERS, 5, kind)
    load = view.load_begin(chain, 2, 7, array("i", [0, 0, *range(5)]), **where)
    # Tokens 40 to 110 of the document are tokens 60 to 130 of the prompt, of which 32 are exact.
    reused = [Reused(60, 130, 40, load, memory, 2 * BLOCK)]
    tokens, ids = torch.arange(140) * 7 % 100, torch.arange(BLOCKS - 1, BLOCKS - 10, -1)
    kept = layers.blend(tokens, 32, ids, reused, 0.2, 1, int)
    assert load.end() == bytes([ORIGIN_MEMORY]) * 5
    out = [cache[ids.to(cache.device)] for cache in layers.caches]
    engine.close()
    return out, kept


def test_a_prompt_is_blended_as_on_the_host(gpu):  # noqa: F811
    if gpu.stream is None:
        gpu.start()
    expected, kept = blended(layers_of(lambda tensor: tensor), "host", None)
    assert kept == 14  # 20 % of 70
    memory = DeviceMemory(gpu)
    launches = gpu.driver.cuda_fake_calls().launches
    with memory:
        found, kept_there = blended(layers_of(memory.put), "cuda", gpu.stream.cuda_stream)
    # Each layer was rotated there, and the keys of one compared.
    assert gpu.driver.cuda_fake_calls().launches >= launches + LAYERS + 1
    assert kept_there == kept
    for mine, theirs in zip(found, expected):
        assert mine.device == CUDA and theirs.device.type == "cpu"
        torch.testing.assert_close(mine.as_subclass(torch.Tensor), theirs, rtol=1e-5, atol=1e-6)
    memory.free()


def test_what_is_of_the_host_is_noticed(gpu):  # noqa: F811
    """The operations above would reject what a GPU rejects: an address of the host."""
    if gpu.stream is None:
        gpu.start()
    memory = DeviceMemory(gpu)
    with memory:
        layers = layers_of(memory.put)
        layers.rotate = lambda load, keys, delta: load.rotate_keys(
            torch.Tensor.data_ptr(keys), keys.numel() // DIM, *layers.rotation(keys, delta))
        with pytest.raises(core.Error):
            blended(layers, "cuda", gpu.stream.cuda_stream)
    memory.free()
