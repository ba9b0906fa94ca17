# SPDX-License-Identifier: Apache-2.0
"""SGLang's linker (UnifiedCacheLinker) over an engine of the library, without SGLang's classes: linker.py adds them.

SGLang makes all calls on its scheduler's thread. One thread loads and one stores, each in the order of the calls."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass
from queue import SimpleQueue

from ..vllm.identity import ConfigError
from ..vllm.texts import size_bytes
from .device_pages import DevicePool, PageLoads
from .pool_pages import DescribedPool, Geometry, NoAddresses, name_of
from .storage_calls import ERA_BYTES, KV, Calls

log = logging.getLogger("tierce")

WAIT_S = 60  # for the device at the start: it is measured, and memory is pinned
POLL_S = 0.05


class LoadFailed(Exception):
    """The requests of the batch are aborted by SGLang."""


@dataclass
class Batch:
    """Loads that SGLang has started together."""

    index: int  # of the counter
    transfers: list
    ready: list  # events


class Linker(Calls):
    where = "linker_extra_config"

    def __init__(self, config, args, version: str, group, counter, kv_pool=None, run: bytes = b""):
        """`config`: HiCacheStorageConfig; `group`: DevicePoolGroup; `counter`: LayerWiseLoadCounter; `run`: a random number
        that the ranks have in common. Raises ConfigError."""
        super().__init__(config, args, version)
        self.group, self.counter, self.run = group, counter, run or secrets.token_bytes(ERA_BYTES)
        self.zero_copy, self.resets, self.first_model = True, 0, self.model
        self.offload_owner = not config.is_mla_model or config.tp_rank == 0
        try:
            for name, entry in group.entry_map.items():
                self.register(str(name), DevicePool(entry, group.num_layers, kv_pool))
            self.device = next(iter(self.host_pools.values())).device
            self.wait_for_device()
        except BaseException:
            self.close()
            raise
        # Loads hold chunks in memory until their last layer; beyond this share, pages are loaded one after the other.
        self.layer_wise_bytes = size_bytes(self.engine.param("memory.size")) // 4
        self.queued: dict[str, list] = {}
        self.loads, self.stores, self.results = Worker("load", self.load_batch), Worker("store", self.store_batch), deque()
        log.info("Tierce for SGLang: a linker of %d layers; places of a page: %s", group.num_layers,
                 {name: pool.pages.places for name, pool in self.pools.items()})

    # ---- pools

    def require_memory(self, name: str, pool) -> None:
        if pool.kind is None:
            raise ConfigError(f"the pool {name!r} is in the memory of {pool.device}; only CUDA is supported")

    def open_pool(self, name: str, pool):
        try:
            geometry = Geometry.of(pool, self.make_indices)
        except NoAddresses as reason:
            raise ConfigError(f"the pages of the pool {name!r} are not at equal distances: {reason}") from None
        return DescribedPool(pool, geometry, self.opener(name, pool, copied=False), self.store_ms)

    def wait_for_device(self) -> None:
        until = time.monotonic() + WAIT_S
        while not all([pool.pages.view.prepare() for pool in self.pools.values()]):
            if time.monotonic() > until:
                raise ConfigError(f"the device is not ready after {WAIT_S} s; see the log")
            time.sleep(POLL_S)

    # ---- lookup

    def lookup(self, rid: str, transfers) -> list[int]:
        return self.guarded("lookup", [], self.restorable, transfers)

    def restorable(self, transfers) -> list[int]:
        expanded = self.group.resolve_transfers(transfers)
        keys = next((list(t.keys) for t in transfers if str(t.name) == KV), [])
        return self.find(keys, expanded).restorable_prefix_pages or [] if expanded and keys else []

    def kv_pages(self, names) -> int:
        """The KV of some models is in several pools, which have other names."""
        return super().kv_pages(names) if KV in self.pools else len(names)

    # ---- loads

    def load(self, rid: str, transfers) -> bool:
        """The result depends on the transfers alone: all ranks must have the same."""
        expanded = self.group.resolve_transfers(transfers, allow_partial=True, allow_missing_kv=True)
        if not expanded:
            return False
        if rid in self.queued:
            raise RuntimeError(f"a load of the request {rid} is queued already")
        self.queued[rid] = expanded
        return True

    def cancel_queued_load(self, rid: str) -> bool:
        return self.queued.pop(rid, None) is not None

    def start_layer_wise_loading(self) -> int:
        if not self.queued:
            return -1
        queued, self.queued = self.queued, {}
        index = self.counter.update_producer()
        transfers = [transfer for one in queued.values() for transfer in one]
        self.loads.put(Batch(index, transfers, self.events()))
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        return self.counter.finish(counter_index)

    def load_batch(self, batch: Batch) -> None:
        try:
            wait_for(batch.ready)
            plans = [(self.pools[str(t.name)], [name_of(key) for key in t.keys], t.host_indices) for t in batch.transfers]
            plans = [(pool, names, pool.geometry.pages_of(pool.pool, indices)) for pool, names, indices in plans]
            size = sum(pool.page_bytes * len(names) for pool, names, _ in plans)
            (self.load_layers if size <= self.layer_wise_bytes else self.load_pages)(batch.index, plans)
        except BaseException as error:
            self.counter.fail(batch.index, error)
            log.error("a load of SGLang's linker failed, and SGLang aborts its requests: %s", error,
                      exc_info=not isinstance(error, LoadFailed))

    def load_layers(self, index: int, plans) -> None:
        """A layer is complete when it has been copied. The last one is complete when all have been verified: SGLang uses no
        output before."""
        stream = self.make_stream()
        loads = [PageLoads(pool.pages, pool.pool.ends, stream.cuda_stream if stream else 0) for pool, _, _ in plans]
        try:
            for one, (_, names, pages) in zip(loads, plans):
                one.begin(names, pages)
            for layer in range(self.group.num_layers):
                for one in loads:
                    one.layer(layer)
                if stream:
                    stream.synchronize()
                if layer + 1 < self.group.num_layers:
                    self.counter.complete(index, layer)
            if not all([one.end() for one in loads]):
                raise LoadFailed("pages are no longer in the store, or damaged")
        finally:
            for one in loads:
                one.abort()
        self.counter.complete(index, self.group.num_layers - 1)

    def load_pages(self, index: int, plans) -> None:
        for pool, names, pages in plans:
            if not all(pool.pages.load(names, pages)):
                raise LoadFailed("pages are no longer in the store, or damaged")
        for layer in range(self.group.num_layers):
            self.counter.complete(index, layer)

    # ---- stores

    def offload(self, transfers, session_id: str | None = None) -> bool:
        expanded = self.group.resolve_transfers(transfers, allow_partial=True)
        if not expanded:
            return False
        if self.offload_owner:
            self.stores.put((expanded, self.events()))
        else:  # rank 0 stores the same
            self.results.append(True)
        return True

    def store_batch(self, work) -> None:
        transfers, ready = work
        try:
            wait_for(ready)
            stored = [self.move("store", str(t.name), t.keys, t.host_indices) for t in transfers]
            self.results.append(all(all(pages) for pages in stored))
        except Exception:
            log.exception("a store of SGLang's linker failed")
            self.results.append(False)

    def num_completed_offloads(self) -> int:
        return len(self.results)

    def pop_completed_offload(self) -> bool:
        return self.results.popleft()

    # ---- end

    def quiesce(self) -> None:
        self.queued.clear()
        self.loads.join()
        self.stores.join()
        self.results.clear()
        self.counter.reset()

    def reset(self) -> None:
        """SGLang calls this to flush its cache, also after a change of the weights, of which a linker is not told. So nothing
        that was stored before is found any more by this process."""
        self.quiesce()
        self.resets += 1
        self.model = self.first_model
        self.begin_era(self.run + self.resets.to_bytes(4, "little"))
        self.pools = {name: self.open_pool(name, pool) for name, pool in self.host_pools.items()}

    def close(self) -> None:
        for worker in (getattr(self, "loads", None), getattr(self, "stores", None)):
            if worker is not None:
                worker.end()
        super().close()

    # ---- the device; linker.py has those of PyTorch

    def events(self) -> list:
        """After which the pages that SGLang names may be read and written."""
        return []

    def make_stream(self):
        """A stream for loads, or None for memory of the host."""
        return None


class Worker:
    """A thread that does one thing after the other."""

    def __init__(self, name: str, work):
        self.work, self.tasks, self.changed, self.left = work, SimpleQueue(), threading.Condition(), 0
        self.thread = threading.Thread(target=self.run, name=f"tierce-linker-{name}", daemon=True)
        self.thread.start()

    def put(self, task) -> None:
        with self.changed:
            self.left += 1
        self.tasks.put(task)

    def run(self) -> None:
        while (task := self.tasks.get()) is not None:
            self.work(task)
            with self.changed:
                self.left -= 1
                self.changed.notify_all()

    def join(self) -> None:
        """Waits until there is nothing left to do."""
        with self.changed:
            self.changed.wait_for(lambda: self.left == 0)

    def end(self) -> None:
        if self.thread.is_alive():
            self.join()
            self.tasks.put(None)
            self.thread.join()


def wait_for(events) -> None:
    for event in events:
        event.synchronize()
