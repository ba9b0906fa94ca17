# SPDX-License-Identifier: Apache-2.0
"""TierceStorage: SGLang's classes on storage_calls.py."""

from __future__ import annotations

import sglang
import torch
from sglang.srt.mem_cache import hicache_storage
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig

from .storage_calls import Calls


def arguments_of_engine():
    """SGLang's arguments, or None if this SGLang does not show them."""
    try:
        from sglang.srt.runtime_context import get_server_args

        return get_server_args()
    except Exception:  # another version, or nothing is published yet
        return None


class TierceStorage(Calls, HiCacheStorage):
    make_found = getattr(hicache_storage, "PoolTransferResult", Calls.make_found)
    make_indices = staticmethod(torch.arange)

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict | None = None):
        super().__init__(storage_config, arguments_of_engine(), sglang.__version__)

    def get_stats(self):
        """For SGLang's metrics, if they are enabled."""
        if not self.config.enable_storage_metrics:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        moved, stats = self.take_moved(), StorageMetrics()
        for operation, pages, bandwidth in (("load", stats.prefetch_pgs, stats.prefetch_bandwidth),
                                            ("store", stats.backup_pgs, stats.backup_bandwidth)):
            if moved.get(f"{operation} pages"):
                pages.append(moved[f"{operation} pages"])
                bandwidth.append(moved[f"{operation} bytes"] / max(moved[f"{operation} seconds"], 1e-9) / 1e9)
        return stats
