# SPDX-License-Identifier: Apache-2.0
"""KV events of Tierce's memory and disk, for vLLM's own publisher (`--kv-events-config`).

The engine of the store reports which chunks its tiers admit and evict, by hash. The scheduler half sends the blocks of
each request that loads or saves: vLLM's hashes and the tokens, which an event must have. The worker half joins both,
and vLLM takes the events after each step: BlockStored and BlockRemoved with vLLM's hashes, one for each of vLLM's blocks.

A chunk is announced only if its blocks are remembered, and a removal names the same hashes, so that a router never holds a
block that was not announced. Chunks of an earlier process on disk are announced when a request loads or saves them.

Each KV cache group of vLLM has its own events, as in vLLM's block pool: the same hashes, with the group's index and block size.

vLLM's step waits for `take`, so it does a bounded part of the work: the contents of the store are read on a thread, and taken
over in pieces, in the order of the changes.
"""

from __future__ import annotations

import hashlib
import logging
import struct
import threading
from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import islice

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent, KVConnectorKVEvents
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys, maybe_convert_block_hash, to_event_extra_keys)
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window

log = logging.getLogger("tierce")

CHANGE = struct.Struct("<QBBHI32s32s")
MEMORY, DISK = 0, 1
MEDIA = {MEMORY: "CPU", DISK: "DISK"}
CHUNKS_MAX = 1 << 17  # in memory or on disk; further ones are not announced
OFFERED_MAX = 1 << 13  # chunks whose blocks are known, before the store has them
WORK_MAX = 4096  # chunks that one step of vLLM looks at
TAG_BYTES = 2  # of a group's index
SLICE = 256  # chunks between two looks at this bound
BACKLOG_MAX = 1 << 20  # changes that were not looked at yet; with more, the contents are read again


def are_wanted(vllm_config) -> bool:
    config = vllm_config.kv_events_config
    return config is not None and config.enable_kv_cache_events


def open_events(half, kv_cache_config) -> "TierEvents | None":
    """The events of a worker half whose store is open; None if vLLM wants none, or this store has none."""
    config = half.vllm_config
    if not are_wanted(config):
        return None
    if not config.cache_config.enable_prefix_caching:
        reason = "they require vLLM's prefix caching"
    elif half.ranks.count > 1 or half.engine.param("node.socket"):
        reason = "a node holds the chunks; it publishes them itself, see kv_events.endpoint"
    else:
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        parts = [EventPart(index, chunk_blocks, block_tokens, get_kv_cache_spec_kind(specs[index]).value,
                           get_kv_cache_spec_sliding_window(specs[index]))
                 for index, chunk_blocks, block_tokens in half.event_groups()]
        return TierEvents(half.engine.events(), half.event_namespaces, parts)
    log.warning("vLLM's KV events do not contain Tierce's memory and disk: %s", reason)
    return None


@dataclass(frozen=True)
class EventPart:
    """A KV cache group of vLLM, whose chunks have their own namespace in the store."""

    index: int  # in vLLM's list
    chunk_blocks: int
    block_tokens: int
    kind: str | None
    window: int | None = None

    @property
    def tag(self) -> bytes:
        """Groups have chunks with equal hashes."""
        return self.index.to_bytes(TAG_BYTES, "little")


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
    size: int  # tokens of a block
    parent: bytes | None
    hashes: tuple[bytes, ...]
    tokens: bytes  # int32
    extra_keys: list | None  # as in events: one entry per block
    lora_id: int | None
    lora_name: str | None

    def part(self, start: int, end: int) -> "Blocks":
        begin, to = start - self.start, end - self.start
        size = len(self.tokens) // len(self.hashes)
        return Blocks(start, self.size, self.hashes[begin - 1] if begin else self.parent, self.hashes[begin:to],
                      self.tokens[begin * size:to * size],
                      self.extra_keys and self.extra_keys[begin:to], self.lora_id, self.lora_name)


def blocks_of(request, start: int, end: int, size: int, hashes_per_block: int = 1) -> Blocks | None:
    """None if vLLM has not hashed all of these blocks. The hash at the end of a block covers all tokens before it."""
    step = hashes_per_block
    hashes = tuple(request.block_hashes[(start + 1) * step - 1:end * step:step])
    if end <= start or len(hashes) != end - start:
        return None
    lora, extra = request.lora_request, None
    if lora is not None or request.mm_features or request.cache_salt:
        extra = to_event_extra_keys([
            generate_block_hash_extra_keys(request, block * size, (block + 1) * size, 0)[0]
            for block in range(start, end)])
    return Blocks(start, size, request.block_hashes[start * step - 1] if start else None, hashes,
                  array("i", request.all_token_ids[start * size:end * size]).tobytes(), extra,
                  lora and lora.adapter_id, lora and lora.name)


class Reading:
    """The contents of the store, read on a thread: a million chunks take a second."""

    def __init__(self, changes):
        self.changes, self.found, self.error = changes, None, None
        self.thread = threading.Thread(target=self.run, name="tierce-kv-events", daemon=True)
        self.thread.start()

    def run(self) -> None:
        try:
            self.found = self.changes.snapshot()
        except Exception as error:
            self.error = error

    def is_done(self) -> bool:
        return not self.thread.is_alive()


class Chunk:
    """A chunk that a tier holds."""

    __slots__ = ("part", "blocks", "tiers", "announced")

    def __init__(self, part: EventPart):
        self.part = part
        self.blocks: Blocks | None = None
        self.tiers = self.announced = 0  # a bit for each of MEDIA

    @property
    def first(self) -> bytes:
        """Its first block, in its group."""
        return self.part.tag + self.blocks.hashes[0]


class TierEvents:
    """Joins the changes of the tiers with the blocks of requests. Any thread.

    changes: an object with the methods of `tierce._core.Events`. namespaces: returns the text of the present namespace of
    each part, or None; after a reset of the store these are others, whose chunks alone count.
    """

    def __init__(self, changes, namespaces, parts: list[EventPart], chunks_max: int = CHUNKS_MAX,
                 offered_max: int = OFFERED_MAX):
        self.changes, self.namespaces, self.parts = changes, namespaces, parts
        self.chunks_max, self.offered_max = chunks_max, offered_max
        self.by_tag = {part.tag: part for part in parts}
        self.lock = threading.Lock()
        self.texts: list[str] | None = None  # of the namespaces that `chunks` belong to
        self.by_digest: dict[bytes, EventPart] = {}
        self.covered = 0  # number of the last change that the contents contained
        self.backlog: deque = deque()  # changes that were not looked at yet
        self.backlog_count = 0
        self.reading: Reading | None = None
        self.catching = self.telling = None  # generators: the contents are taken over; all is announced again
        self.was_full = self.has_failed = False
        self.chunks: dict[bytes, Chunk] = {}  # by the part's tag and the store's hash
        self.offered: OrderedDict[bytes, Blocks] = OrderedDict()  # by the same, of any namespace
        self.sharing: dict[bytes, list[Chunk]] = {}  # announced chunks by their first block
        self.out: list[KVCacheEvent] = []

    def close(self) -> None:
        if self.reading is not None:
            self.reading.thread.join()
        self.changes.end()

    # ---- blocks of requests

    def offer(self, chain_of, offers: tuple[Blocks, ...]) -> None:
        """The blocks of a request, for each size of blocks. chain_of: returns its chain of such blocks, which has them too."""
        with self.lock:
            for blocks in offers:
                chain = chain_of(blocks.size)
                for part in self.parts:
                    if part.block_tokens == blocks.size and chain is not None:
                        self.offer_part(part, chain, blocks)

    def offer_part(self, part: EventPart, chain, blocks: Blocks) -> None:
        size, end = part.chunk_blocks, min(blocks.start + len(blocks.hashes), chain.blocks)
        for start in range(blocks.start, end, size):
            to = min(start + size, end)
            self.offer_chunk(part.tag + chain.hash(to - 1), blocks, start, to)

    def offer_chunk(self, key: bytes, blocks: Blocks, start: int, to: int) -> None:
        chunk = self.chunks.get(key)
        if chunk is None:
            if key not in self.offered:
                self.keep(key, blocks.part(start, to))
            self.offered.move_to_end(key)
        elif chunk.blocks is None:
            chunk.blocks = blocks.part(start, to)
            self.announce(chunk)

    def keep(self, key: bytes, blocks: Blocks) -> None:
        self.offered[key] = blocks
        if len(self.offered) > self.offered_max:
            self.offered.popitem(last=False)

    # ---- changes of the tiers

    def take(self) -> list[KVCacheEvent]:
        """The events since the last call."""
        with self.lock:
            lost, changes = self.changes.take()
            if changes:
                self.backlog.append(memoryview(changes))
                self.backlog_count += len(changes) // CHANGE.size
            if self.follow_namespaces() or lost or self.backlog_count > BACKLOG_MAX:
                self.backlog.clear()
                self.backlog_count = 0
                self.catching = self.catch_up()
            self.work(WORK_MAX)
            out, self.out = self.out, []
        return out

    def work(self, chunks: int) -> None:
        """Looks at at most `chunks` chunks. Changes wait for the contents that come before them."""
        while chunks > 0:
            if self.telling is not None:
                done = next(self.telling, None)
                self.telling = self.telling if done is not None else None
            elif self.catching is not None:
                done = next(self.catching, None)
                self.catching = self.catching if done is not None else None
            elif self.backlog:
                done = self.apply_some()
            else:
                return
            chunks -= done or 0

    def apply_some(self) -> int:
        changes = self.backlog.popleft()
        some, rest = changes[:SLICE * CHANGE.size], changes[SLICE * CHANGE.size:]
        if rest:
            self.backlog.appendleft(rest)
        for change in CHANGE.iter_unpack(some):
            self.apply(*change)
        count = len(some) // CHANGE.size
        self.backlog_count -= count
        return count

    def announce_again(self) -> None:
        """All blocks, to readers that hold none."""
        with self.lock:
            self.out, self.sharing = [], {}
            for chunk in self.chunks.values():
                chunk.announced = 0
            self.telling = self.tell_all()

    def tell_all(self):
        """Yields the number of chunks that it has looked at, as `catch_up` does."""
        for keys in slices(list(self.chunks)):
            for key in keys:
                chunk = self.chunks.get(key)
                if chunk is not None and chunk.blocks is not None:
                    self.announce(chunk)
            yield len(keys)

    def follow_namespaces(self) -> bool:
        """Whether the namespaces have changed."""
        texts = self.namespaces()
        if texts == self.texts:
            return False
        self.texts = texts
        digests = [hashlib.sha256(text.encode()).digest() for text in texts or ()]
        self.by_digest = dict(zip(digests, self.parts))
        return True

    def catch_up(self):
        """Makes `chunks` equal to the contents of the store at a change, from which on changes are applied."""
        while self.reading is not None and not self.reading.is_done():  # from before changes were lost
            yield WORK_MAX
        self.reading = None
        present: dict[bytes, int] = {}
        if self.by_digest:
            while self.reading is None or not self.reading.is_done():
                self.reading = self.reading or Reading(self.changes)
                yield WORK_MAX
                if self.reading.is_done() and self.reading.error is not None:
                    self.note_failure(self.reading.error)
                    self.reading = None
            (self.covered, found), self.reading = self.reading.found, None
            found = memoryview(found)
            for start in range(0, len(found), SLICE * CHANGE.size):
                some = found[start:start + SLICE * CHANGE.size]
                self.see_present(present, CHANGE.iter_unpack(some))
                yield SLICE
        for keys in slices([key for key in self.chunks if key not in present]):
            for key in keys:
                self.set_tiers(key, 0)
            yield len(keys)
        items = iter(present.items())
        while some := list(islice(items, SLICE)):
            for key, tiers in some:
                self.set_tiers(key, tiers)
            yield len(some)

    def see_present(self, present: dict[bytes, int], chunks) -> None:
        """present: the tiers of the chunks that are or can be announced."""
        for _, _, is_disk, _, _, digest, key in chunks:
            part = self.by_digest.get(digest)
            if part is None:
                continue
            key = part.tag + key
            tiers = present.get(key)
            if tiers is None and key not in self.chunks and len(present) >= len(self.chunks) + self.chunks_max:
                self.note_full()
            else:
                present[key] = (tiers or 0) | 1 << is_disk

    def apply(self, number, is_stored, is_disk, _, blocks, digest, key) -> None:
        part = self.by_digest.get(digest)
        if number <= self.covered or part is None:
            return
        key = part.tag + key
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
            chunk = self.chunks[key] = Chunk(self.by_tag[key[:TAG_BYTES]])
            chunk.blocks = self.offered.pop(key, None)
        chunk.tiers = tiers
        for tier in MEDIA:
            if chunk.announced & ~tiers & 1 << tier:
                self.retract(chunk, tier)
        if not tiers:
            del self.chunks[key]
            if chunk.blocks is not None:  # it may be stored again
                self.keep(key, chunk.blocks)
        elif chunk.blocks is not None:
            self.announce(chunk)

    def note_full(self) -> None:
        if not self.was_full:
            self.was_full = True
            log.warning("vLLM's KV events contain %d chunks of Tierce; further chunks are not announced "
                        "until some of these are evicted", self.chunks_max)

    def note_failure(self, error: Exception) -> None:
        if not self.has_failed:
            self.has_failed = True
            log.warning("vLLM's KV events lack chunks of Tierce: the contents of the store could not be read, which is "
                        "tried again in each step: %r", error)

    # ---- events

    def others(self, chunk: Chunk, tier: int) -> list[Blocks]:
        """Chunks that were announced for the tier and have the same first block: a tail and the whole chunk."""
        return [other.blocks for other in self.sharing.get(chunk.first, ())
                if other is not chunk and other.announced & 1 << tier]

    def announce(self, chunk: Chunk) -> None:
        """For each tier that holds it. Blocks that another chunk has announced are not announced twice."""
        blocks, part = chunk.blocks, chunk.part
        for tier in MEDIA:
            if not chunk.tiers & ~chunk.announced & 1 << tier:
                continue
            known = max((common(blocks.hashes, other.hashes) for other in self.others(chunk, tier)), default=0)
            if not chunk.announced:
                self.sharing.setdefault(chunk.first, []).append(chunk)
            chunk.announced |= 1 << tier
            if known == len(blocks.hashes):
                continue
            new = blocks.part(blocks.start + known, blocks.start + len(blocks.hashes))
            self.out.append(BlockStored(
                block_hashes=[maybe_convert_block_hash(h) for h in new.hashes],
                parent_block_hash=maybe_convert_block_hash(new.parent) if new.parent is not None else None,
                token_ids=array("i", new.tokens).tolist(), block_size=part.block_tokens, lora_id=new.lora_id,
                medium=MEDIA[tier], lora_name=new.lora_name, extra_keys=new.extra_keys, group_idx=part.index,
                kv_cache_spec_kind=part.kind, kv_cache_spec_sliding_window=part.window))

    def retract(self, chunk: Chunk, tier: int) -> None:
        blocks = chunk.blocks
        chunk.announced &= ~(1 << tier)
        kept = max((common(blocks.hashes, other.hashes) for other in self.others(chunk, tier)), default=0)
        if not chunk.announced:
            sharing = self.sharing[chunk.first]
            sharing.remove(chunk)
            if not sharing:
                del self.sharing[chunk.first]
        if kept < len(blocks.hashes):
            self.out.append(BlockRemoved(
                block_hashes=[maybe_convert_block_hash(h) for h in blocks.hashes[kept:]],
                medium=MEDIA[tier], group_idx=chunk.part.index))


def slices(items: list):
    for start in range(0, len(items), SLICE):
        yield items[start:start + SLICE]


def common(a: tuple, b: tuple) -> int:
    """The length of the common beginning. Hashes contain all before them, so nothing behind it is common."""
    count = 0
    for x, y in zip(a, b):
        if x != y:
            break
        count += 1
    return count
