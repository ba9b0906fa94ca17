# SPDX-License-Identifier: Apache-2.0
"""SGLang's storage (HiCacheStorage, v1 and v2) over an engine of the library, without SGLang's classes: hicache.py adds them.

While SGLang starts, what cannot work raises ConfigError. Later no call raises, except clear: a failure is a miss, because an
exception would end the thread of SGLang that reads from its storage."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter
from dataclasses import dataclass

import numpy

from ..page_view import PageEngine, leading, setting, take_settings
from ..vllm.identity import ConfigError, weights_after_reset
from ..vllm.settings import open_view
from . import engine_identity
from .pool_pages import CopiedPool, DescribedPool, Geometry, NoAddresses, NoPages, name_of

log = logging.getLogger("tierce")

WHERE = "hicache-storage-backend-extra-config"
# Names of SGLang in the same dictionary.
SGLANG_NAMES = ("backend_name", "module_path", "class_name", "interface_v1", "prefetch_threshold", "prefetch_timeout_base",
                "prefetch_timeout_per_ki_token", "prefetch_timeout_max", "hicache_storage_pass_prefix_keys", "tp_lcm_size",
                "allocator")
KV = "kv"
RESTART = "stop SGLang, and start it with another identity"
FEW_TOKENS = 16  # in a page: each page is stored as an object, with its own header
ERA_BYTES = 16
# Random numbers of the clears in this process. SGLang can detach a storage and attach a new one, and the weights stay.
ERAS: list[bytes] = []


@dataclass
class Found:
    """As PoolTransferResult of SGLang."""

    kv_hit_pages: int
    extra_pool_hit_pages: dict
    restorable_prefix_pages: list | None = None


class Calls:
    where = WHERE  # the settings are, for messages
    make_found = Found
    make_indices = staticmethod(numpy.arange)  # of tokens, as SGLang passes them

    def __init__(self, config, args, version: str):
        """`config`: HiCacheStorageConfig; `args`: SGLang's arguments, or None. Raises ConfigError."""
        from tierce import _core

        self.core, self.config, self.version = _core, config, version
        self.pools: dict = {}  # by name
        self.host_pools: dict = {}
        self.lock = threading.Lock()
        self.failed_calls: set[str] = set()
        self.moved = Counter()
        self.engine = None
        own = {k: v for k, v in (config.extra_config or {}).items() if k not in SGLANG_NAMES}
        self.zero_copy = bool((config.extra_config or {}).get("interface_v1"))
        self.settings, text = take_settings(own, self.where)
        self.require_supported()
        self.warn_of_hosts(args)
        self.model = engine_identity.model_identity(_core, args, text)
        for era in ERAS:
            self.begin_era(era)
        self.open()

    # ---- opening and closing

    def setting(self, name: str) -> str:
        return setting(self.settings, name)

    def require_supported(self) -> None:
        """Raises ConfigError if a rank could not use the store, or would use it for nothing."""
        config = self.config
        if getattr(config, "should_split_heads", False):
            raise ConfigError(f"{self.where}: tp_lcm_size is not supported: ranks of different tensor-parallel sizes do not "
                              "share pages; remove it")
        if getattr(config, "dcp_size", 1) > 1:
            raise ConfigError("decode context parallelism is not supported; start SGLang without it")
        if ERAS and self.is_shared:
            raise ConfigError("the storage was cleared in this process, which is not supported with latent attention on several "
                              f"ranks; {RESTART}")
        if self.setting("node.socket"):
            return
        ranks = config.tp_size * config.pp_size * config.attn_cp_size
        if (ranks > 1 or config.dp_rank > 0) and self.setting("disk.path"):
            raise ConfigError(f"{self.where}: several ranks and disk.path: a folder belongs to one process; start a `tierce "
                              "node`, which all ranks of a host share, and set node.socket")
        if self.is_shared and not self.setting("remote.urls"):
            raise ConfigError(f"{self.where}: latent attention on several ranks: only rank 0 stores pages, and the other ranks "
                              "cannot find them in its process; start a `tierce node`, and set node.socket")

    def warn_of_hosts(self, args) -> None:
        hosts = getattr(args, "nnodes", None) or 1
        if self.is_shared and hosts > 1:
            log.warning("latent attention on %d hosts: tensor ranks on other hosts than rank 0 find its pages only in a remote "
                        "store that the nodes of all hosts use (remote.urls); without one, SGLang finds nothing", hosts)

    @property
    def is_shared(self) -> bool:
        """Whether ranks find pages that another rank has stored."""
        return self.config.is_mla_model and self.config.tp_size > 1

    def open(self) -> None:
        self.opened = PageEngine(self.settings, self.where, "sglang", "SGLang")
        self.engine, self.store_ms, self.until = self.opened.engine, self.opened.store_ms, self.opened.until

    def close(self) -> None:
        """SGLang's threads have ended."""
        self.pools, self.host_pools = {}, {}
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    # ---- pools

    def register_mem_pool_host(self, mem_pool_host) -> None:
        anchor = getattr(mem_pool_host, "anchor_entry", None)  # of a group of pools
        self.mem_pool_host = mem_pool_host
        pool = mem_pool_host if anchor is None else anchor.host_pool
        self.register(KV, pool)
        if pool.page_size < FEW_TOKENS:
            log.warning("each page of %d tokens is stored as an object of its own, which is slow and wastes space; start SGLang "
                        "with --page-size 64", pool.page_size)

    def register_mem_host_pool_v2(self, host_pool, host_pool_name) -> None:
        self.register(str(host_pool_name), host_pool)

    def on_host_pools_registered(self) -> None:
        log.info("Tierce for SGLang: pages of %s", ", ".join(
            f"{name} in {'one place, copied' if isinstance(pool, CopiedPool) else f'{pool.pages.places} places'}"
            for name, pool in self.pools.items()))

    def register(self, name: str, pool) -> None:
        """Raises ConfigError."""
        if self.host_pools.get(name) is pool:
            return
        self.require_memory(name, pool)
        self.pools[name] = self.open_pool(name, pool)
        self.host_pools[name] = pool

    def require_memory(self, name: str, pool) -> None:
        device = str(getattr(pool, "device", "cpu"))
        if device != "cpu":
            raise ConfigError(f"the pool {name!r} is in the memory of {device!r}; only pools in host memory are supported")

    def open_pool(self, name: str, pool):
        if name == KV and not self.zero_copy:
            return self.open_copied(name, pool)
        try:
            geometry = Geometry.of(pool, self.make_indices)
        except NoAddresses as reason:
            copied = self.open_copied(name, pool)
            log.warning("pages of the pool %r are copied through a buffer: %s", name, reason)
            return copied
        return DescribedPool(pool, geometry, self.opener(name, pool, copied=False), self.store_ms)

    def open_copied(self, name: str, pool) -> CopiedPool:
        """Raises ConfigError."""
        try:
            return CopiedPool(pool, self.opener(name, pool, copied=True), self.store_ms)
        except NoPages as reason:
            raise ConfigError(f"the pool {name!r} has no memory that a storage can read ({reason})") from None

    def opener(self, name: str, pool, copied: bool):
        """Opens views with the weights of now: a view that a thread opens after a clear belongs to the pool of before."""
        model = self.model
        return lambda cells: self.open_view(model, name, pool, cells, copied)

    def open_view(self, model: dict, name: str, pool, cells: list[int], copied: bool):
        namespace = {
            **model, "kv_dtype": str(getattr(pool, "dtype", "")).removeprefix("torch."), "quantization": "",
            "layout": engine_identity.layout(self.version, name, pool, self.host_pools.get(KV, pool), self.config, copied),
            "layer_count": len(cells), "cell_bytes": cells, "block_tokens": int(pool.page_size), "chunk_blocks": 1,
            "algo": "sha256"}
        return open_view(self.engine, namespace, engine_identity.shard(self.config, name, pool), lower="SGLang's page size")

    def flat(self) -> CopiedPool:
        """The KV pool for calls that pass tensors."""
        with self.lock:
            pool = self.pools[KV]
            if isinstance(pool, CopiedPool):
                return pool
            if "flat" not in self.pools:
                self.pools["flat"] = self.open_copied(KV, self.host_pools[KV])
            return self.pools["flat"]

    # ---- calls that never raise

    def guarded(self, where: str, failed, call, *args):
        try:
            return call(*args)
        except Exception:
            if where not in self.failed_calls:
                self.failed_calls.add(where)
                log.exception("Tierce's storage for SGLang failed in %s; this is a miss, and is logged once", where)
            return failed

    def batch_exists(self, keys, extra_info=None) -> int:
        return self.guarded("batch_exists", 0, self.count_leading, keys)

    def count_leading(self, keys) -> int:
        return leading(self.pools[KV].ask([name_of(key) for key in keys], self.until(), True))

    def exists(self, key) -> bool:
        return self.batch_exists([key]) == 1

    def batch_get_v1(self, keys, host_indices, extra_info=None) -> list[bool]:
        return self.guarded("batch_get_v1", [False] * len(keys), self.move, "load", KV, keys, host_indices)

    def batch_set_v1(self, keys, host_indices, extra_info=None) -> list[bool]:
        return self.guarded("batch_set_v1", [False] * len(keys), self.move, "store", KV, keys, host_indices)

    def move(self, operation: str, name: str, keys, host_indices) -> list[bool]:
        pool, began = self.pools[name], time.monotonic()
        tokens = int(self.host_pools[name].page_size)
        if host_indices is None or len(host_indices) != len(keys) * tokens:
            raise ValueError(f"{0 if host_indices is None else len(host_indices)} indices for {len(keys)} pages of {tokens} "
                             f"tokens of the pool {name!r}")
        moved = getattr(pool, operation)([name_of(key) for key in keys], host_indices)
        self.count(operation, sum(moved), pool.page_bytes, time.monotonic() - began)
        return moved

    def count(self, operation: str, pages: int, page_bytes: int, seconds: float) -> None:
        with self.lock:
            self.moved.update({f"{operation} pages": pages, f"{operation} bytes": pages * page_bytes,
                               f"{operation} seconds": seconds})

    def take_moved(self) -> dict[str, float]:
        """Pages, bytes and seconds of loads and stores since the last call."""
        with self.lock:
            moved, self.moved = self.moved, Counter()
        return dict(moved)

    # ---- SGLang's interface without zero copy

    def get(self, key, target_location=None, target_sizes=None):
        return self.guarded("get", None, self.get_page, key, target_location)

    def get_page(self, key, target):
        if target is None:
            raise ValueError("get without target_location")
        return target if self.flat().get(name_of(key), target) else None

    def set(self, key, value=None, target_location=None, target_sizes=None) -> bool:
        return self.guarded("set", False, lambda: self.flat().set(name_of(key), value))

    def batch_get(self, keys, target_locations=None, target_sizes=None) -> list:
        targets, pages = target_locations or [None] * len(keys), []
        for key, target in zip(keys, targets):
            pages.append(self.get(key, target))
            if pages[-1] is None:
                break
        return pages + [None] * (len(keys) - len(pages))

    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None) -> bool:
        values = values if values is not None else []
        return len(values) == len(keys) and all(self.set(key, value) for key, value in zip(keys, values))

    # ---- hybrid pools

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        return self.guarded("batch_exists_v2", self.make_found(0, {}), self.find, keys, pool_transfers or [])

    def find(self, keys, transfers):
        names = [name_of(key) for key in keys]
        pages = self.kv_pages(names)
        hits, allowed = ({KV: pages} if pages else {}), set(range(1, pages + 1))
        for transfer in transfers:
            if not allowed:
                break
            if str(transfer.name) == KV:
                continue
            pool, policy, until = self.pools[str(transfer.name)], transfer.hit_policy, self.until()
            if policy == "block_groups":
                reach = covered_pages(transfer, pool, until)
            else:
                fits = fitting_prefixes(transfer, pool, names[:pages], until)
                allowed &= fits
                reach = max(fits, default=0)
            if reach:
                hits[transfer.name] = reach
        restorable = sorted(allowed)
        return self.make_found(restorable[-1] if restorable else 0, hits, restorable)

    def kv_pages(self, names) -> int:
        return leading(self.pools[KV].ask(names, self.until(), True))

    def batch_get_v2(self, transfers, extra_info=None) -> dict:
        return {t.name: self.move_transfer("batch_get_v2", "load", t) for t in transfers}

    def batch_set_v2(self, transfers, extra_info=None) -> dict:
        return {t.name: self.move_transfer("batch_set_v2", "store", t) for t in transfers}

    def move_transfer(self, where: str, operation: str, transfer) -> list[bool]:
        keys = transfer.keys or []
        return self.guarded(where, [False] * len(keys), self.move, operation, str(transfer.name), keys,
                            transfer.host_indices)

    # ---- clearing

    def begin_era(self, era: bytes) -> None:
        self.model = {**self.model, "weights": weights_after_reset(self.model["weights"], era)}

    def clear(self) -> bool:
        """Nothing that was stored before is found any more, also if this raises: SGLang only logs that, and answers that the
        storage was cleared. Remote stores keep its chunks until they evict them."""
        era = secrets.token_bytes(ERA_BYTES)
        with self.lock:
            ERAS.append(era)
            self.begin_era(era)
            cleared, self.pools = self.pools, {}
            if self.is_shared:
                raise RuntimeError("clear is not supported with latent attention on several ranks, which would no longer find "
                                   f"each other's pages; nothing is stored or found from now on: {RESTART}")
            self.pools = {name: self.open_pool(name, pool) for name, pool in self.host_pools.items()}
        for name, pool in cleared.items():
            try:
                pool.clear()
            except self.core.Error as error:
                log.warning("cleared pages of the pool %r remain in the store until they are evicted: %s", name, error)
        return True


def fitting_prefixes(transfer, pool, names, until: float) -> set[int]:
    """The lengths of the prefixes of `names` for which the pool has what its policy requires."""
    if transfer.hit_policy == "all_pages":
        return set(range(1, leading(pool.ask(names, until, True)) + 1))
    if transfer.hit_policy != "trailing_pages":
        raise ValueError(f"hit policy {transfer.hit_policy!r}")
    trailing = max(1, len(transfer.keys or []))
    held = pool.ask(names, until, False)
    return {end for end in range(1, len(names) + 1) if all(held[max(0, end - trailing):end])}


def covered_pages(transfer, pool, until: float) -> int:
    """The KV pages that the leading complete groups of keys cover."""
    if transfer.group_pages <= 0 or transfer.block_pages <= 0:
        raise ValueError(f"groups of {transfer.group_pages} keys for {transfer.block_pages} pages")
    held = leading(pool.ask([name_of(key) for key in transfer.keys or []], until, True))
    return held // transfer.group_pages * transfer.block_pages
