# SPDX-License-Identifier: Apache-2.0
"""TierceLinker: SGLang's classes on linker_calls.py."""

from __future__ import annotations

import secrets

import sglang
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import resolve_hybrid_device_pool_group
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker

from .linker_calls import ERA_BYTES, Linker


class TierceLinker(Linker, UnifiedCacheLinker):
    make_indices = staticmethod(torch.arange)

    def __init__(self, server_args, params, *, components, extra_config=None, forward_stream=None):
        self.forward_stream = forward_stream
        kv_pool = params.token_to_kv_pool_allocator.get_kvcache()
        group = resolve_hybrid_device_pool_group(kvcache=kv_pool, page_size=params.page_size, params=params,
                                                 components=components)
        tp_group = params.attn_tp_cache_group or params.tp_cache_group
        is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        config = HiCacheStorageConfig(
            tp_rank=torch.distributed.get_rank(group=tp_group) if is_distributed else 0,
            tp_size=torch.distributed.get_world_size(group=tp_group) if is_distributed else server_args.tp_size,
            pp_rank=params.pp_rank, pp_size=params.pp_size, attn_cp_rank=params.attn_cp_rank, attn_cp_size=params.attn_cp_size,
            is_mla_model=group.rank_replicated, enable_storage_metrics=False, is_page_first_layout=False,
            model_name=server_args.model_path, extra_config=dict(extra_config or {}))
        counter = LayerWiseLoadCounter(group.num_layers)
        Linker.__init__(self, config, server_args, sglang.__version__, group, counter, kv_pool,
                        number_of_ranks(tp_group) if config.tp_size > 1 else b"")
        self.layer_done_counter = counter
        if "mamba" in self.pools:
            params.req_to_token_pool.register_layer_transfer_counter(counter)

    def events(self) -> list:
        return [] if self.device.type == "cpu" else self.record_offload_ready()

    def make_stream(self):
        return None if self.device.type == "cpu" else torch.cuda.Stream(self.device)


def number_of_ranks(group) -> bytes:
    """A random number that all ranks of the group have."""
    number = [secrets.token_bytes(ERA_BYTES)]
    torch.distributed.broadcast_object_list(number, src=torch.distributed.get_global_rank(group, 0), group=group)
    return number[0]
