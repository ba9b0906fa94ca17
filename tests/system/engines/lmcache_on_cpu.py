# SPDX-License-Identifier: Apache-2.0
"""Adds the parts that LMCache 0.5.6 lacks in a vLLM on a CPU. LMCacheConnectorV1 copies between
vLLM's pages and its chunks by what a GPU's driver and kernels offer, and rejects a CPU ("No
supported cpu connector found"): Pages copies them with torch. All else, the connection to the
remote store with it, is LMCache's own."""

import sys
from pathlib import Path

import torch
from lmcache.v1 import gpu_connector
from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface
from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector import LMCacheConnectorV1
from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_mp_connector import LMCacheMPConnector

sys.path.append(str(Path(__file__).resolve().parents[3] / "tools" / "bench"))
from vllm_hit import spare_llvmlite  # noqa: E402


class Pages(GPUConnectorInterface):
    """Chunks of whole blocks. What is in a block is vLLM's affair, whose CPU attention packs it in a way of its own."""

    def __init__(self, shape):
        self.shape = shape  # layers, 2, tokens, heads, head size

    def get_shape(self, num_tokens):
        layers, kinds, _, heads, size = self.shape
        return torch.Size([kinds, layers, num_tokens, heads * size])

    @staticmethod
    def blocks(start, end, kvcaches, slot_mapping):
        block_tokens = kvcaches[0].shape[2]
        assert start % block_tokens == end % block_tokens == 0
        return slot_mapping[start:end:block_tokens] // block_tokens

    def from_gpu(self, memory_obj, start, end, **kwargs):
        caches = kwargs["kvcaches"]
        at = self.blocks(start, end, caches, kwargs["slot_mapping"])
        memory_obj.tensor.view(-1).copy_(torch.stack([cache[at] for cache in caches]).view(-1))

    def to_gpu(self, memory_obj, start, end, **kwargs):
        caches = kwargs["kvcaches"]
        at = self.blocks(start, end, caches, kwargs["slot_mapping"])
        pages = memory_obj.tensor.view(len(caches), len(at), *caches[0].shape[1:])
        held = max(0, kwargs.get("vllm_cached_tokens", 0) - start) // caches[0].shape[2]
        for cache, layer in zip(caches, pages):
            cache[at[held:]] = layer[held:]

    def batched_from_gpu(self, memory_objs, starts, ends, **kwargs):
        for chunk in zip(memory_objs, starts, ends):
            self.from_gpu(*chunk, **kwargs)

    def batched_to_gpu(self, memory_objs, starts, ends, **kwargs):
        for chunk in zip(memory_objs, starts, ends):
            self.to_gpu(*chunk, **kwargs)


spare_llvmlite()
gpu_connector.CreateGPUConnector = lambda config, metadata, *_, **__: Pages(metadata.kv_shape)


class LMCacheOnCpu(LMCacheConnectorV1):
    """Named with this module, so that each worker imports it."""


class LMCacheServerOnCpu(LMCacheMPConnector):
    """The same."""
