# SPDX-License-Identifier: Apache-2.0
"""KV events of Tierce's memory and disk, for vLLM's own publisher (`--kv-events-config`).

The engine of the store reports which chunks its tiers admit and evict, by hash. The scheduler half sends the blocks of
each request that loads or saves: vLLM's hashes and the tokens, which an event must have. The worker half joins both,
and vLLM takes the events after each step: BlockStored and BlockRemoved with vLLM's hashes, one for each of vLLM's blocks.

A chunk is announced only if its blocks are remembered, and a removal names the same hashes, so that a router never holds a
block that was not announced. Chunks of an earlier process on disk are announced when a request loads or saves them.
"""

from __future__ import annotations

import hashlib
import logging
import struct
import threading
from array import array
from collections import OrderedDict
from dataclasses import dataclass

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent, KVConnectorKVEvents
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys, maybe_convert_block_hash, to_event_extra_keys)
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind

log = logging.getLogger("tierce")

CHANGE = struct.Struct("<QBBHI32s32s")
MEMORY, DISK = 0, 1
MEDIA = {MEMORY: "CPU", DISK: "DISK"}
CHUNKS_MAX = 1 << 17  # in memory or on disk; further ones are not announced
OFFERED_MAX = 1 << 13  # chunks whose blocks are known, before the store has them


def are_wanted(vllm_config) -> bool:
    config = vllm_config.kv_events_config
    return config is not None and config.enable_kv_cache_events


def open_events(half, kv_cache_config, has_groups: bool) -> "TierEvents | None":
    """The events of a worker half whose store is open; None if vLLM wants none, or this store has none."""
    config = half.vllm_config
    if not are_wanted(config):
        return None
    if not config.cache_config.enable_prefix_caching:
        reason = "they require vLLM's prefix caching"
    elif has_groups:
        reason = "models with several KV cache groups are not supported"
    elif half.ranks.count > 1 or half.engine.param("node.socket"):
        reason = "a node holds the chunks; it publishes them itself, see kv_events.endpoint"
    else:
        spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
        return TierEvents(half.engine.events(), lambda: half.view and half.view.namespace,
                          half.namespace["chunk_blocks"], half.namespace["block_tokens"],
                          get_kv_cache_spec_kind(spec).value)
    log.warning("vLLM's KV events do not contain Tierce's memory and disk: %s", reason)
    return None


class TierceKVEvents(KVConnectorKVEvents):
    """The events of one step, in their order. Only one worker has any."""

    def __init__(self, events: list[KVCacheEvent]):
        self.events = events

    def add_events(self, events: list[KVCacheEvent]) -> None:
        self.events.extend(events)

    def aggregate(self) -> "TierceKVEvents":
        return self

    def increment_workers(self, count: int = 1) -> None:
        pass

    def get_all_events(self) -> list[KVCacheEvent]:
        return self.events

    def get_number_of_workers(self) -> int:
        return 1

    def clear_events(self) -> None:
        self.events = []


@dataclass(frozen=True)
class Blocks:
    """Consecutive blocks of a request as vLLM knows them, from the first block of a chunk on."""

    start: int
    parent: bytes | None
    hashes: tuple[bytes, ...]
    tokens: bytes  # int32
    extra_keys: list | None  # as in events: one entry per block
    lora_id: int | None
    lora_name: str | None

    def part(self, start: int, end: int) -> "Blocks":
        begin, to = start - self.start, end - self.start
        size = len(self.tokens) // len(self.hashes)
        return Blocks(start, self.hashes[begin - 1] if begin else self.parent, self.hashes[begin:to],
                      self.tokens[begin * size:to * size],
                      self.extra_keys and self.extra_keys[begin:to], self.lora_id, self.lora_name)


def blocks_of(request, start: int, end: int, size: int) -> Blocks | None:
    """None if vLLM has not hashed all of these blocks."""
    hashes = tuple(request.block_hashes[start:end])
    if end <= start or len(hashes) != end - start:
        return None
    lora, extra = request.lora_request, None
    if lora is not None or request.mm_features or request.cache_salt:
        extra = to_event_extra_keys([
            generate_block_hash_extra_keys(request, block * size, (block + 1) * size, 0)[0]
            for block in range(start, end)])
    return Blocks(start, request.block_hashes[start - 1] if start else None, hashes,
                  array("i", request.all_token_ids[start * size:end * size]).tobytes(), extra,
                  lora and lora.adapter_id, lora and lora.name)


class Chunk:
    """A chunk that a tier holds."""

    __slots__ = ("blocks", "tiers", "announced")

    def __init__(self):
        self.blocks: Blocks | None = None
        self.tiers = self.announced = 0  # a bit for each of MEDIA


class TierEvents:
    """Joins the changes of the tiers with the blocks of requests. Any thread.

    changes: an object with the methods of `tierce._core.Events`. namespace: returns the text of the present one, or
    None; after a reset of the store it is another one, whose chunks alone count.
    """

    def __init__(self, changes, namespace, chunk_blocks: int, block_tokens: int, kind: str | None,
                 chunks_max: int = CHUNKS_MAX, offered_max: int = OFFERED_MAX):
        self.changes, self.namespace = changes, namespace
        self.chunk_blocks, self.block_tokens, self.kind = chunk_blocks, block_tokens, kind
        self.chunks_max, self.offered_max = chunks_max, offered_max
        self.lock = threading.Lock()
        self.text: str | None = None  # of the namespace that `chunks` belong to
        self.digest = b""
        self.covered = 0  # number of the last change that a snapshot contained
        self.is_behind = True  # changes were lost, or the first snapshot is missing
        self.was_full = False
        self.chunks: dict[bytes, Chunk] = {}  # by the store's hash
        self.offered: OrderedDict[bytes, Blocks] = OrderedDict()  # by the same hash, of any namespace
        self.sharing: dict[bytes, list[Chunk]] = {}  # announced chunks by their first block
        self.out: list[KVCacheEvent] = []

    def close(self) -> None:
        self.changes.end()

    # ---- blocks of requests

    def offer(self, chain, blocks: Blocks) -> None:
        """The blocks of a request, whose chain has them too."""
        size, end = self.chunk_blocks, min(blocks.start + len(blocks.hashes), chain.blocks)
        with self.lock:
            for start in range(blocks.start, end, size):
                to = min(start + size, end)
                self.offer_chunk(chain.hash(to - 1), blocks, start, to)

    def offer_chunk(self, key: bytes, blocks: Blocks, start: int, to: int) -> None:
        chunk = self.chunks.get(key)
        if chunk is None:
            if key not in self.offered:
                self.offered[key] = blocks.part(start, to)
                if len(self.offered) > self.offered_max:
                    self.offered.popitem(last=False)
            self.offered.move_to_end(key)
        elif chunk.blocks is None:
            chunk.blocks = blocks.part(start, to)
            self.announce(chunk)

    # ---- changes of the tiers

    def take(self) -> list[KVCacheEvent]:
        """The events since the last call."""
        with self.lock:
            lost, changes = self.changes.take()
            self.is_behind |= lost
            self.follow_namespace()
            if not self.is_behind:
                for change in CHANGE.iter_unpack(changes):
                    self.apply(*change)
            elif self.text is not None:
                self.catch_up()
            out, self.out = self.out, []
        return out

    def announce_again(self) -> None:
        """All blocks, to readers that hold none."""
        with self.lock:
            self.out, self.sharing = [], {}
            for chunk in self.chunks.values():
                chunk.announced = 0
                if chunk.blocks is not None:
                    self.announce(chunk)

    def follow_namespace(self) -> None:
        text = self.namespace()
        if text == self.text:
            return
        for key in list(self.chunks):
            self.set_tiers(key, 0)
        self.text, self.is_behind = text, True
        self.digest = hashlib.sha256((text or "").encode()).digest()

    def catch_up(self) -> None:
        self.covered, found = self.changes.snapshot()
        present: dict[bytes, int] = {}
        for _, _, is_disk, _, _, digest, key in CHANGE.iter_unpack(found):
            if digest == self.digest:
                present[key] = present.get(key, 0) | 1 << is_disk
        for key in [key for key in self.chunks if key not in present]:
            self.set_tiers(key, 0)
        for key, tiers in present.items():
            self.set_tiers(key, tiers)
        self.is_behind = False

    def apply(self, number, is_stored, is_disk, _, blocks, digest, key) -> None:
        if number <= self.covered or digest != self.digest:
            return
        chunk = self.chunks.get(key)
        tiers = chunk.tiers if chunk is not None else 0
        self.set_tiers(key, tiers | 1 << is_disk if is_stored else tiers & ~(1 << is_disk))

    def set_tiers(self, key: bytes, tiers: int) -> None:
        chunk = self.chunks.get(key)
        if chunk is None:
            if not tiers:
                return
            if len(self.chunks) >= self.chunks_max:
                self.note_full()
                return
            chunk = self.chunks[key] = Chunk()
            chunk.blocks = self.offered.pop(key, None)
        chunk.tiers = tiers
        for tier in MEDIA:
            if chunk.announced & ~tiers & 1 << tier:
                self.retract(chunk, tier)
        if not tiers:
            del self.chunks[key]
            if chunk.blocks is not None:  # it may be stored again
                self.offered[key] = chunk.blocks
                if len(self.offered) > self.offered_max:
                    self.offered.popitem(last=False)
        elif chunk.blocks is not None:
            self.announce(chunk)

    def note_full(self) -> None:
        if not self.was_full:
            self.was_full = True
            log.warning("vLLM's KV events contain %d chunks of Tierce; further chunks are not announced "
                        "until some of these are evicted", self.chunks_max)

    # ---- events

    def others(self, chunk: Chunk, tier: int) -> list[Blocks]:
        """Chunks that were announced for the tier and have the same first block: a tail and the whole chunk."""
        return [other.blocks for other in self.sharing.get(chunk.blocks.hashes[0], ())
                if other is not chunk and other.announced & 1 << tier]

    def announce(self, chunk: Chunk) -> None:
        """For each tier that holds it. Blocks that another chunk has announced are not announced twice."""
        blocks, size = chunk.blocks, self.block_tokens
        for tier in MEDIA:
            if not chunk.tiers & ~chunk.announced & 1 << tier:
                continue
            known = max((common(blocks.hashes, other.hashes) for other in self.others(chunk, tier)), default=0)
            if not chunk.announced:
                self.sharing.setdefault(blocks.hashes[0], []).append(chunk)
            chunk.announced |= 1 << tier
            if known == len(blocks.hashes):
                continue
            new = blocks.part(blocks.start + known, blocks.start + len(blocks.hashes))
            self.out.append(BlockStored(
                block_hashes=[maybe_convert_block_hash(h) for h in new.hashes],
                parent_block_hash=maybe_convert_block_hash(new.parent) if new.parent is not None else None,
                token_ids=array("i", new.tokens).tolist(), block_size=size, lora_id=new.lora_id,
                medium=MEDIA[tier], lora_name=new.lora_name, extra_keys=new.extra_keys, group_idx=0,
                kv_cache_spec_kind=self.kind))

    def retract(self, chunk: Chunk, tier: int) -> None:
        blocks = chunk.blocks
        chunk.announced &= ~(1 << tier)
        kept = max((common(blocks.hashes, other.hashes) for other in self.others(chunk, tier)), default=0)
        if not chunk.announced:
            sharing = self.sharing[blocks.hashes[0]]
            sharing.remove(chunk)
            if not sharing:
                del self.sharing[blocks.hashes[0]]
        if kept < len(blocks.hashes):
            self.out.append(BlockRemoved(
                block_hashes=[maybe_convert_block_hash(h) for h in blocks.hashes[kept:]],
                medium=MEDIA[tier], group_idx=0))


def common(a: tuple, b: tuple) -> int:
    """The length of the common beginning. Hashes contain all before them, so nothing behind it is common."""
    count = 0
    for x, y in zip(a, b):
        if x != y:
            break
        count += 1
    return count
