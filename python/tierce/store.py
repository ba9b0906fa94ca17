# SPDX-License-Identifier: Apache-2.0
"""A store of KV for Python programs, without an inference engine's connector (docs/using/python.md).

    with tierce.open({"memory.size": "8GiB", "disk.path": "/var/lib/tierce"}) as store:
        cache = store.cache(layers, model="my-model", weights=tierce.fingerprint(FOLDER), layout="kv, token, head, dim",
                            block_tokens=16)
        cache.store(tokens, blocks)      # what the model computed for `tokens` lies in these blocks of each layer
        loaded = cache.load(tokens, blocks)
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import secrets
import threading
import weakref
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tierce import _core
from tierce.arrays import Layer, describe, int32s
from tierce.lookup_flags import LOOKUP_PIN
from tierce.prefetch import Prefetch, Waiter

log = logging.getLogger("tierce")
NODE_CLIENT_STATS = re.compile(r"lookups|lookup_(tokens|hit_tokens|blocks|hit_blocks|memory_blocks)|(chunks|bytes)_stored|"
                               r"(chunks|blocks|bytes|tokens)_loaded_.*|blocks_failed|node_.*")

ORIGINS = ("failed", "memory", "disk", "remote")  # of a loaded block, by the numbers of the library


def begin_sessions() -> None:
    """Requests have numbers that no other process of the same node has, except by chance (1 to 2^60)."""
    global sessions
    sessions = itertools.count(secrets.randbits(62) + 1)


begin_sessions()
os.register_at_fork(after_in_child=begin_sessions)


@dataclass(frozen=True)
class Found:
    """The leading tokens of a prompt that could be loaded, in whole blocks."""

    tokens: int
    memory_tokens: int  # of these, those in memory
    pending: bool = False  # a remote store is still being asked for more; look again


@dataclass(frozen=True)
class Loaded:
    """The leading `tokens` were loaded. Compute the KV of all tokens after them, also where `origins` names a tier."""

    tokens: int
    origins: tuple[str, ...]  # of each block, from `first` on: memory, disk, remote or failed


def open(values: Mapping[str, object] | None = None, *, config: str | None = None) -> Store:
    """Opens a store, or joins one of this process that has an equal configuration.

    `config`: a YAML file; `values`: parameters by name, which win over the file and over TIERCE_* of the environment
    (docs/using/ref/config.md lists them). With `node.socket` the store is a client of a `tierce node`. Raises `Error`, whose
    text names the parameter and what is accepted. A child process of fork opens its own store.
    """
    if missing := [name for name, value in (values or {}).items() if value is None]:
        raise ValueError(f"{missing[0]} is None; leave it out, or set it to an empty text")
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in (values or {}).items()}
    store = Store(_core.Engine.open(None if config is None else str(config), texts))
    for name, unset in (("codec.lossy", "none"), ("blend.enabled", "false")):
        if (value := store.parameter(name)) != unset:
            log.warning('setting_without_effect setting=%s value=%s reason="only the connector for vLLM uses it"', name, value)
    return store


class Store:
    """An open store, made by `open`. A context manager. Thread: any."""

    def __init__(self, engine):
        self._engine, self._waiter = engine, Waiter(bool(engine.param("node.socket")))
        self._caches: weakref.WeakSet[Cache] = weakref.WeakSet()

    def cache(self, layers: Iterable, *, model: str, weights: str, layout: str, block_tokens: int, chunk_tokens: int | None = None,
              dtype: str | None = None, quantization: str = "", lora: bytes = b"", salt: bytes = b"") -> Cache:
        """The KV of one model in these arrays.

        `layers`: for each layer a numpy array, or a torch tensor of the CPU, whose first dimension counts blocks of
        `block_tokens` tokens; a block's bytes must be contiguous. The arrays stay the caller's; the cache refers to
        them until it is closed.

        Two caches share KV only if all of this is equal: `model` and `weights` (a hex digest; `tierce.fingerprint(FOLDER)`
        computes it), `layout` (what the dimensions behind the first one mean, for instance "kv, token, head, dim"), their
        sizes, `dtype` (of the arrays, unless they hold bytes), `quantization`, `lora` and `salt` (of a tenant, perhaps), and
        both numbers of tokens. `chunk_tokens` is the parameter `chunk.tokens` unless it is given. Raises ValueError or `Error`.
        """
        if chunk_tokens is None:
            chunk_tokens = int(self.parameter("chunk.tokens"))
        arrays = list(layers)
        described = [describe(layer) for layer in arrays]
        if not described:
            raise ValueError("layers is empty; one array a layer is required")
        if len({layer.blocks for layer in described}) > 1:
            raise ValueError(f"the layers have {sorted({layer.blocks for layer in described})} blocks; all must have as many")
        if block_tokens < 1 or chunk_tokens < 1:
            raise ValueError(f"block_tokens {block_tokens} and chunk_tokens {chunk_tokens} must be positive")
        if not isinstance(lora, bytes) or not isinstance(salt, bytes):
            raise TypeError("lora and salt must be bytes")
        if chunk_tokens % block_tokens:
            raise ValueError(f"chunk_tokens {chunk_tokens} is no multiple of block_tokens {block_tokens}")
        if not layout.strip():
            raise ValueError('layout is empty; say what the dimensions of a block mean, for instance "kv, token, head, dim"')
        if not re.fullmatch(r"[0-9a-f]+", weights):
            raise ValueError(f"weights {weights!r} is no hex digest in lower case; tierce.fingerprint(FOLDER) computes one")
        shapes, dtypes = [layer.shape for layer in described], [layer.dtype for layer in described]
        view = self._engine.view({
            "weights": weights, "model": model, "kv_dtype": dtype or str(one_or_all(dtypes)),
            "quantization": quantization, "layout": f"python: {layout}; {one_or_all(shapes)}",
            "layer_count": len(described), "cell_bytes": [layer.cell_bytes for layer in described],
            "block_tokens": block_tokens, "chunk_blocks": chunk_tokens // block_tokens, "algo": "sha256"})
        cache = Cache(self, view, described, arrays, block_tokens, lora, salt)
        self._caches.add(cache)
        return cache

    def durable(self, timeout: float = 30.0) -> bool:
        """Waits until all that was stored before survives a crash of the machine. False: not within `timeout` seconds, or a tier
        reported an error, or chunks wait for a disk or remote store that is out of service or has no room, or memory has evicted
        chunks that the disk's queue (`disk.queue`) could not take (one call reports them), or there is no disk and no remote
        store.
        Not counted are chunks without a key to encrypt them, chunks that a full `remote.queue` dropped, and chunks that can no
        longer be sent to a remote store (`remote_lost_chunks` in `stats`). The log names such a tier, and `tierce why` names
        their tokens."""
        return self._engine.flush(round(timeout * 1000)) and self.tiers()[-1] not in ("memory", "compressed memory")

    def stats(self) -> dict[str, int]:
        """Counters since the store was opened, and levels (`..._now`); include/tierce/stats.def explains each.

        With a node, only those of the calls of this process: the node has the others, reasons of misses among them. `tierce top`
        and the node's `/metrics` show them."""
        stats = self._engine.stats()
        if self.parameter("node.socket"):
            return {name: value for name, value in stats.items() if NODE_CLIENT_STATS.fullmatch(name)}
        return stats

    def tiers(self) -> list[str]:
        """Where KV is kept, the fastest first. With a node: `node SOCKET`."""
        parameter = self.parameter
        if parameter("node.socket"):
            return [f"node {parameter('node.socket')}"]
        coded = ["compressed memory"] if parameter("memory.coded_size") != "0" else []
        disk = ["disk"] if parameter("disk.path") and not self._engine.stats()["disk_open_status"] else []
        return ["memory", *coded, *disk, *("remote" for _ in parameter("remote.urls").split())]

    def parameter(self, name: str) -> str:
        """The value in effect. Raises KeyError."""
        return self._engine.param(name)

    def close(self) -> None:
        """Waits for calls in progress, ends prefetches and caches, and writes what is not durable yet, for `timeout.close` at
        most."""
        self._waiter.close()
        for cache in list(self._caches):
            cache.close()
        self._engine.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class Cache:
    """The KV of one model in the caller's arrays, made by `Store.cache`. Thread: any; two calls at the same time must not use
    the same block. After `close`, each call raises ValueError."""

    def __init__(self, store: Store, view, described: list[Layer], arrays: list, block_tokens: int, lora: bytes, salt: bytes):
        self.block_tokens = block_tokens
        self._store, self._view, self._arrays = store, view, arrays
        self._layers, self._blocks = len(described), described[0].blocks
        self._identity = {"lora": lora, "salt": salt}
        self._keeps_tail = store.parameter("chunk.tail") == "true"
        self._changed, self._calls = threading.Condition(), 0
        self._held: set[int] = set()  # sessions of prefetches
        view.set_paged([layer.address for layer in described], [layer.stride for layer in described], self._blocks)

    def lookup(self, tokens) -> Found:
        """How much of the prompt could be loaded. `tokens`: integers in a sequence, numpy array or tensor. Waits for remote
        stores, for `timeout.lookup` at most."""
        with self._call() as view:
            chain, count = self._chain(view, tokens)
            found, memory, pending = view.lookup(chain, 0, count, 0, 0)
        return Found(found * self.block_tokens, min(found, memory) * self.block_tokens, pending)

    def store(self, tokens, blocks) -> int:
        """Stores the KV of the prompt's whole blocks; `blocks[i]` holds tokens [i * block_tokens, (i + 1) * block_tokens).
        Copies them, and returns the number of tokens that it has stored: not those that the store had already, or for which
        memory had no room within `timeout.store`. Slower tiers are written in the background (`Store.durable`)."""
        with self._call() as view:
            chain, count = self._chain(view, tokens)
            store = view.store_begin(chain, count, ids_of(blocks, count), self._keeps_tail, next(sessions))
            if store is None:
                return 0
            return self._move(store) * self.block_tokens

    def load(self, tokens, blocks, *, first: int = 0, prefetch: Prefetch | None = None) -> Loaded:
        """Loads what the store has of the prompt into `blocks`, as in `store`. Blocks before `first` hold the caller's own KV
        and are not written. Waits for `timeout.lookup` and `timeout.load` at most. `Loaded.tokens` ends before a block that
        cannot be read or whose bytes are wrong; that block and later ones hold anything. `prefetch`: of this prompt; it is
        ended, with its hold on memory."""
        if prefetch is not None:
            if prefetch._cache is not self:
                raise ValueError("the prefetch belongs to another cache")
            prefetch.cancel()
        session = next(sessions) if prefetch is None else prefetch._session
        with self._call() as view:
            chain, count = self._chain(view, tokens)
            ids = ids_of(blocks, count)
            try:
                found = view.lookup(chain, first, count, LOOKUP_PIN, session)[0]
                ends = self._move(view.load_begin(chain, first, found, ids, session)) if found > first else b""
            finally:
                view.unpin(session)
                self._held.discard(session)
        leading = ends.find(0) if 0 in ends else len(ends)
        return Loaded((first + leading) * self.block_tokens, tuple(ORIGINS[end] for end in ends))

    def prefetch(self, tokens, *, timeout: float | None = None) -> Prefetch:
        """Begins to bring the prompt's KV from slower tiers to memory, and returns at once. `timeout`: seconds, in place of
        `timeout.prefetch`; then the result is what memory has by that time."""
        session = next(sessions)
        prefetch = Prefetch(self, session, lambda blocks: Found(blocks * self.block_tokens, blocks * self.block_tokens))
        wait_ms = 0 if timeout is None else max(1, round(timeout * 1000))
        with self._call() as view:
            chain, count = self._chain(view, tokens)
            self._store._waiter.begin(
                prefetch, lambda event: view.prefetch_begin(chain, 0, count, session, wait_ms, False, event))
            self._held.add(session)
        return prefetch

    def computed(self, tokens: int, seconds: float) -> None:
        """Reports that the model computed the KV of `tokens` tokens in so many seconds. With these reports, lookups do not count
        KV that takes longer to load than to compute (`cost.check`)."""
        with self._call() as view:
            view.computed(tokens, round(seconds * 1e9))

    def clear(self) -> int:
        """Removes the model's KV, with every `lora` and `salt`, from memory and disk, and returns the number of chunks. Remote
        stores keep theirs. Raises ValueError if the cache has a `lora` or `salt`: it would remove the KV of others."""
        if any(self._identity.values()):
            raise ValueError("this cache has a lora or salt, and clear would remove the KV of others; clear a cache without them")
        with self._call() as view:
            return view.clear()

    def close(self) -> None:
        """Waits for calls in progress. The arrays are not used any more."""
        with self._changed:
            view, self._view = self._view, None
            while self._calls > 0:
                self._changed.wait()
            if view is not None:
                for session in self._held:
                    view.unpin(session)
                self._held.clear()
            self._arrays = None

    # ---- helpers

    @contextlib.contextmanager
    def _call(self):
        """The view, which is not closed before the end."""
        with self._changed:
            view = self._view
            if view is None:
                raise ValueError("the cache is closed")
            self._calls += 1
        try:
            yield view
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def _move(self, transfer):
        """All layers of a store or load, and its end. An exception, such as Ctrl-C, leaves no transfer open."""
        try:
            for layer in range(self._layers):
                transfer.layer(layer)
        except BaseException:
            transfer.abort()
            raise
        return transfer.end()

    def _chain(self, view, tokens):
        chain = view.chain(**self._identity)
        return chain, chain.append(int32s(tokens))

    def _unpin(self, session: int) -> None:
        with contextlib.suppress(ValueError), self._call() as view:
            view.unpin(session)
            self._held.discard(session)


def ids_of(blocks, count: int) -> array:
    ids = int32s(blocks)
    if len(ids) < count:
        raise ValueError(f"{len(ids)} blocks are given, and the tokens fill {count}")
    return ids


def one_or_all(items: list):
    """The only value of a list whose items are equal, or the list."""
    return items[0] if all(item == items[0] for item in items) else items
