# SPDX-License-Identifier: Apache-2.0
"""The state of each request in the scheduler half, and the messages to the worker half.

Plain data and arithmetic in units of the engine's token blocks; this file uses neither vLLM nor
the store, so that every rule can be tested alone. ARCHITECTURE.md defines the terms.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from .hints import NO_HINT
from .prompt_end import all_blocks


def int32(data) -> memoryview:
    """The numbers in the bytes."""
    return memoryview(data).cast("i")


@dataclass(frozen=True)
class ChainRoot:
    """The properties that separate this request's KV from that of other requests with equal
    tokens; empty parts do not count."""

    lora: bytes = b""
    salt: bytes = b""
    other: bytes = b""


@dataclass(frozen=True)
class Rules:
    """The constants of an engine that decide what is loaded and saved."""

    block_tokens: int
    chunk_blocks: int  # with several groups, of the smallest chunk
    can_load: bool = True
    can_save: bool = True
    save_decode: bool = False
    save_tail: bool = True
    load_async: bool = False
    load_min_tokens: int = 0
    load_prefetch: bool = False
    memory_only: bool = False  # a failed load would end the request, so promise only pinned hits
    longest_chunk: int = 0  # blocks, if groups have chunks of several sizes

    def whole_blocks(self, tokens: int) -> int:
        return tokens // self.block_tokens

    def whole_chunks(self, blocks: int) -> int:
        """`blocks` without the partial chunk at the end."""
        return blocks // self.chunk_blocks * self.chunk_blocks

    def longest_chunks(self, blocks: int) -> int:
        """`blocks` without the partial chunk at the end, in all groups."""
        size = self.longest_chunk or self.chunk_blocks
        return blocks // size * size

    def leave_tail(self, blocks: int) -> bool:
        """Whether `blocks` blocks end inside a chunk of some group."""
        return blocks % (self.longest_chunk or self.chunk_blocks) > 0


@dataclass
class ChainPart:
    """Blocks of a request's token chain that the worker half may not have yet.

    `data` holds 32 bytes a block if the engine hashed them, else int32 tokens.
    """

    root: ChainRoot
    from_block: int
    data: bytes
    hashed: bool
    extras: list[tuple[int, bytes]] | None = None
    tag: str = ""  # of the request, for the access log
    ended: bool = False  # of the request's second chain, see prompt_end.py


@dataclass
class BlendSpec:
    """The tokens of a load after its exact blocks: see blend.py."""

    exact_block: int  # the blocks from there on are blended
    tokens: bytes  # int32: the prompt up to the end of the last reused token
    reused: list[tuple[int, int, int, int]]  # tokens [start, end), the session of their chain, their position there
    early: bool = False  # its step computes blocks before it, so it fails

    def before(self, end: int) -> "BlendSpec | None":
        """The same of the first `end` tokens of the prompt."""
        reused = [(start, min(stop, end), *rest) for start, stop, *rest in self.reused if start < end]
        return BlendSpec(self.exact_block, self.tokens[:4 * end], reused) if reused else None


@dataclass
class LoadSpec:
    """Blocks [from_block, to_block) come from the store; vLLM itself holds the blocks before
    them."""

    from_block: int
    to_block: int
    memory_blocks: int  # leading blocks that lay in memory when they were looked up
    asynchronous: bool
    allowed: bool = False  # vLLM has allocated the blocks
    ended: bool = False  # its chain is the second one, see prompt_end.py
    lacks: int = 0  # tokens at the end of the last block that are not loaded: the step computes some of them
    blend: BlendSpec | None = None  # None: all of it is exact

    @property
    def blocks(self) -> int:
        return self.to_block - self.from_block

    def tokens(self, block_tokens: int) -> int:
        return self.blocks * block_tokens - self.lacks


@dataclass
class SaveSpec:
    """Blocks [0, to_block) are complete after this step; the store adds the blocks that it lacks."""

    to_block: int
    tail: bool = False
    ended: bool = False  # of the second chain, see prompt_end.py


@dataclass(frozen=True)
class StateSave:
    """A block of vLLM that holds the state of a group's layers after `to_block` blocks, or keys and values up to there."""

    group: int
    block_id: int
    to_block: int
    write: int = 0  # see ReqMeta.write


@dataclass
class ReqMeta:
    """One request in one step, as the worker half sees it."""

    req_id: str
    session: int
    chain: ChainPart | None
    block_ids: bytes  # int32, the paged block of each block of the request
    computed_from: int  # this step computes blocks [computed_from, computed_to)
    computed_to: int
    load: LoadSpec | None = None
    save: SaveSpec | None = None
    tag: str = ""
    write: int = 0  # with several workers: the number that their parts of this store share
    # With a table of groups, in its order: the blocks of each group instead of block_ids, and the
    # group's first block that the load writes.
    tables: tuple[bytes, ...] = ()
    firsts: tuple[int, ...] = ()
    states: tuple["StateSave", ...] = ()
    push: dict | None = None  # the inbox of a decoder, to which the saved chunks are pushed: see push.py
    blocks: tuple["Blocks", ...] = ()  # for KV events (kv_events.py): of each size that blocks have
    hint: tuple[int, int] = NO_HINT  # about the next request: see hints.py


# Why a request was not looked up, or loaded less than was found: enum tierce_request_limit.
(LIMIT_NONE, LIMIT_SHORT, LIMIT_LOCAL, LIMIT_OPTION, LIMIT_UNSUPPORTED, LIMIT_MINIMUM, LIMIT_ROOM,
 LIMIT_FAILED, LIMIT_ENDED, LIMIT_NOT_READY, LIMIT_BLENDED, LIMIT_UNBLENDED) = range(12)
NAME_BYTES_MAX = 128


class Served(NamedTuple):
    """A request that has ended, for `tierce why --request`: struct tierce_request."""

    name: str
    session: int = 0
    tokens: int = 0
    unit_tokens: int = 0
    local_tokens: int = 0
    looked_tokens: int = 0
    found_tokens: int = 0
    loaded_tokens: int = 0
    failed_tokens: int = 0
    limit: int = LIMIT_ENDED


def request_name(req_id: str) -> str:
    """A request id as the engine records it: without NUL, and cut."""
    name = req_id.replace("\0", "?").encode("utf-8", "replace")[:NAME_BYTES_MAX]
    return name.decode("utf-8", "ignore") or "?"


@dataclass
class LoadResult:
    """The outcome of a load, in blocks."""

    memory: int = 0
    disk: int = 0
    remote: int = 0
    blended: int = 0
    failed: int = 0
    last: str = ""  # which of them the last block is
    lacks: int = 0  # tokens that the last block lacks

    def add(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)
        self.last = name

    def tokens(self, name: str, block_tokens: int) -> int:
        return getattr(self, name) * block_tokens - (self.lacks if name == self.last else 0)

    def worse(self, other: "LoadResult") -> "LoadResult":
        """Merges the results of one load in two workers: vLLM computes a block that failed in either."""
        return other if other.failed > self.failed else self


@dataclass
class RequestTracker:
    """One request between its first lookup and its end."""

    req_id: str
    session: int
    root: ChainRoot
    prompt_tokens: int
    skip_load: bool = False
    skip_save: bool = False
    report: bool = False
    tag: str = ""
    hint: tuple[int, int] = NO_HINT
    offers: bool = False  # when it has ended, its prompt is offered to a decoder
    source: dict | None = None  # a prefiller's offer that was not yet asked for
    pulls: bool = False  # the worker half was asked for it
    push: dict | None = None  # where its prompt is pushed while it is computed
    is_pushed: bool = False  # a step with this was sent to the worker half
    tickets: tuple[int, str] | None = None  # it asks for so many, with this name, for prompts that will be pushed here
    hands_end: bool = False  # the last block of its prompt may be handed over: see prompt_end.py
    loads_end: bool = False  # it may be loaded
    sent_end: bool = False  # the worker half was given the second chain
    media: list | None = field(default_factory=list)  # spans of images and the like (media.py); None: unknown
    media_count: int = 0
    block_ids: array = field(default_factory=lambda: array("i"))
    sent_blocks: int = 0  # blocks of the chain that the worker half was given
    event_blocks: int = 0  # leading blocks that the worker half knows for KV events
    told_blocks: int = 0  # with several workers: blocks of the chain that all of them were sent
    saved_blocks: int = 0  # leading blocks that need no further save
    saved_tail: bool = False  # also in the groups whose chunk is longer
    load: LoadSpec | None = None
    asked_tokens: int = 0  # of the last lookup, not yet counted
    hit_tokens: int = 0
    local_tokens: int = 0  # blocks that vLLM held itself at the last lookup
    found_blocks: int = 0  # leading blocks that the store held at the last lookup
    loaded: LoadResult = field(default_factory=LoadResult)
    is_loading: bool = False  # a load was begun and has no result yet
    prefetched: bool = False  # a prefetch was begun for it, and none is begun again
    served: Served | None = None  # of the lookup before the request first ran
    runs: bool = False  # it has run: a later lookup, after a preemption, is not recorded
    blended: object = None  # of blend.py
    blend_refused: bool = False  # it has no segments, or a property that excludes blending
    exact_tokens: int | None = None  # once it was blended: only these tokens may be stored
    named_blocks: int | None = None  # leading blocks that have vLLM's own hashes; None: all

    def note_sent(self, ended: bool, blocks: int) -> None:
        """The worker half was given so many blocks of one of the two chains."""
        if ended:
            self.sent_end = True
        else:
            self.sent_blocks = max(self.sent_blocks, blocks)

    # ---- lookup and load

    def count_loaded(self, result: LoadResult) -> None:
        """Counts the result of one worker. Workers may report an asynchronous load in different steps."""
        self.loaded = result.worse(self.loaded)
        self.is_loading = False
        if result.failed > 0:
            # vLLM repeats the lookup at once after a failed asynchronous load. If the store kept
            # reporting chunks that it cannot load, this would never end. The chunks are stored again.
            self.skip_load, self.found_blocks = True, 0

    def note_lookup(self, rules: Rules, local_tokens: int, looked: int, found: int,
                    limit: int) -> None:
        """looked, found: leading blocks."""
        if not self.runs:
            size = rules.block_tokens
            self.served = Served(request_name(self.req_id), self.session, self.prompt_tokens, size,
                                 local_tokens, self.tokens_of(rules, looked),
                                 max(self.tokens_of(rules, found), local_tokens), limit=limit)

    def note_run(self, tokens: int) -> None:
        """vLLM runs the request, and loads `tokens` of the promised tokens; none if its own cache, with a part of a
        block that the lookup was not told, reaches as far."""
        if not self.runs and self.served is not None and tokens < self.hit_tokens:
            self.served = self.served._replace(limit=LIMIT_ROOM if tokens else LIMIT_LOCAL)
        self.runs = True

    def note_end(self, rules: Rules) -> Served:
        size, loaded = rules.block_tokens, self.loaded
        tokens = {name: loaded.tokens(name, size) for name in ("memory", "disk", "remote", "failed")}
        served = self.served or Served(request_name(self.req_id), self.session, self.prompt_tokens,
                                       size)
        return served._replace(
            loaded_tokens=tokens["memory"] + tokens["disk"] + tokens["remote"],
            failed_tokens=tokens["failed"],
            limit=LIMIT_FAILED if loaded.failed else LIMIT_BLENDED if loaded.blended else served.limit)

    def load_limit(self, rules: Rules, num_tokens: int) -> int:
        """Blocks that may be loaded at most: vLLM must compute the last token itself."""
        if self.loads_end:
            return all_blocks(num_tokens, rules.block_tokens)
        return rules.whole_blocks(num_tokens - 1)

    def tokens_of(self, rules: Rules, blocks: int) -> int:
        """Those of the first `blocks` blocks that may be loaded."""
        tokens = blocks * rules.block_tokens
        return min(tokens, self.prompt_tokens - 1) if self.loads_end else tokens

    def plan_load(self, rules: Rules, local_tokens: int, found: int, in_memory: int,
                  usable: int | None = None) -> int:
        """Records the answer of a lookup and returns the tokens to promise to vLLM. usable: of the
        found blocks those that may be loaded; None: all."""
        local = rules.whole_blocks(local_tokens)
        self.local_tokens = local_tokens
        self.load = None
        self.found_blocks = min(found, rules.whole_blocks(self.prompt_tokens)) if self.loads_end else found
        # Chunks that the store holds need no save. The lookup did not cover blocks that vLLM itself
        # holds, so the first save offers everything; only missing chunks are copied.
        self.saved_blocks = rules.whole_chunks(self.found_blocks) if local == 0 else 0
        found = found if usable is None else usable
        if rules.memory_only:
            found = min(found, in_memory)
        size = rules.block_tokens
        tokens = max(0, self.tokens_of(rules, found) - local * size)
        if tokens == 0 or tokens < rules.load_min_tokens:
            return 0
        self.load = LoadSpec(local, found, min(in_memory, found), rules.load_async, ended=self.loads_end,
                             lacks=(found - local) * size - tokens)
        return tokens

    def allow_load(self, rules: Rules, tokens: int, block_ids) -> bool:
        """vLLM has allocated blocks for a load of `tokens`, which may be fewer than promised. False if
        nothing is to be loaded."""
        if self.load is None or self.load.allowed or tokens <= 0:
            return False
        if self.load.blend is not None:
            self.cut_blend(rules, self.load.from_block * rules.block_tokens + tokens)
        elif tokens < self.load.tokens(rules.block_tokens):
            self.load.to_block = self.load.from_block + rules.whole_blocks(tokens)
            self.load.lacks = 0
        self.load.memory_blocks = min(self.load.memory_blocks, self.load.to_block)
        self.load.allowed = self.load.blocks > 0
        self.block_ids = array("i", block_ids)
        return self.load.allowed

    def cut_blend(self, rules: Rules, end: int) -> None:
        """vLLM takes the first `end` tokens of the prompt."""
        load, size = self.load, rules.block_tokens
        load.blend = load.blend.before(end) if end > load.blend.exact_block * size else None
        load.to_block = rules.whole_blocks(end) if load.blend is None else -(-end // size)
        load.lacks = 0 if load.blend is None else load.to_block * size - end
        if load.blend is not None:
            # After a preemption, vLLM's cache may have given the request its own blended blocks again.
            exact = load.blend.exact_block * size
            self.exact_tokens = exact if self.exact_tokens is None else min(self.exact_tokens, exact)

    def load_sources(self) -> tuple[int, int]:
        """Blocks of the planned load in memory and in slower tiers; none if a part of it is blended."""
        if self.load is None or self.load.blend is not None:
            return 0, 0
        memory = max(0, self.load.memory_blocks - self.load.from_block)
        return memory, self.load.blocks - memory

    # ---- blocks of the paged memory

    def set_blocks(self, block_ids) -> None:
        """The first allocation, or the one after a preemption."""
        self.block_ids = array("i", block_ids)

    def append_blocks(self, block_ids) -> None:
        self.block_ids.extend(block_ids)

    # ---- save

    def plan_save(self, rules: Rules, computed_tokens: int, end_tokens: int,
                  held_blocks: int | None = None) -> SaveSpec | None:
        """After this step the KV of the first `end_tokens` tokens is complete; before it, that of
        `computed_tokens`. After a preemption or a failed load vLLM computes earlier tokens again,
        and they are saved again. held_blocks: if the tracker does not know them."""
        self.saved_blocks = min(self.saved_blocks, rules.whole_blocks(computed_tokens))
        if self.skip_save or not rules.can_save:
            return None
        if self.exact_tokens is not None:
            end_tokens = min(end_tokens, self.exact_tokens)
        if not rules.save_decode:
            end_tokens = min(end_tokens, self.prompt_tokens)
        held = len(self.block_ids) if held_blocks is None else held_blocks
        blocks = min(rules.whole_blocks(end_tokens), held)
        if self.saves_end(rules, computed_tokens, end_tokens, held):
            self.saved_blocks, self.saved_tail = blocks, True
            return SaveSpec(blocks + 1, tail=True, ended=True)
        to_block = rules.whole_chunks(blocks)
        # A tail is stored only at the end of the prompt, because before that a later step of the prefill may complete
        # its chunk. If the store held all that can be loaded of the prompt, some chunk has those blocks already.
        tail = (rules.save_tail and end_tokens == self.prompt_tokens and rules.leave_tail(blocks)
                and (self.offers and self.hands_end or self.found_blocks < rules.whole_blocks(self.prompt_tokens - 1)))
        if tail:
            to_block = blocks
        only_tail = tail and not self.saved_tail and to_block == self.saved_blocks
        if to_block <= self.saved_blocks and not only_tail:
            return None
        self.saved_blocks, self.saved_tail = to_block, tail
        return SaveSpec(to_block, tail)

    def saves_end(self, rules: Rules, computed_tokens: int, end_tokens: int, held_blocks: int) -> bool:
        """Whether the step completes a prompt that is offered to a decoder, and that ends inside a block."""
        return (self.offers and self.hands_end and rules.save_tail and computed_tokens < self.prompt_tokens == end_tokens
                and self.prompt_tokens % rules.block_tokens > 0
                and held_blocks >= all_blocks(self.prompt_tokens, rules.block_tokens))


@dataclass
class Taint:
    """Paged blocks whose KV is invalid although vLLM considers it valid: a load failed, and all blocks that the same
    step computed from its blocks are wrong too. vLLM computes all of them again; until then none of them may be
    stored."""

    blocks: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.blocks)

    def load_failed(self, block_ids) -> None:
        self.blocks.update(block_ids)

    def loaded(self, block_ids) -> None:
        if self.blocks:
            self.blocks.difference_update(block_ids)

    def settle(self, requests: list[ReqMeta]) -> set[str]:
        """The requests whose KV is invalid after a step that computed `requests`. A request may
        use blocks that another request of the same step computed, so the search repeats until
        nothing changes."""
        if not self.blocks:
            return set()
        invalid: set[str] = set()
        ids = {r.req_id: array("i", r.block_ids) for r in requests}
        grown = True
        while grown:
            grown = False
            for r in requests:
                held = ids[r.req_id][: r.computed_from]
                if r.req_id not in invalid and not self.blocks.isdisjoint(held):
                    invalid.add(r.req_id)
                    self.blocks.update(ids[r.req_id][r.computed_from : r.computed_to])
                    grown = True
        for r in requests:
            if r.req_id not in invalid:
                self.blocks.difference_update(ids[r.req_id][r.computed_from : r.computed_to])
        return invalid
