# SPDX-License-Identifier: Apache-2.0
"""The worker half: moves KV between vLLM's paged memory and the store, layer by layer.

One step of vLLM is: begin_step, start_loads, then wait_layer and save_layer for each layer, then
end_step. All of it runs on the worker's main thread. Lookups may come from another thread, and
asynchronous loads run on threads of their own. One lock guards the shared state, and no call blocks
while it holds this lock. Each chain has its own lock, so that a blocked call delays only its own
request.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ..lookup_flags import LOOKUP_AGAIN, LOOKUP_NO_WAIT
from . import identity, lossy, own_node
from .async_loads import LoadsAsync
from .behind import StoresBehind
from .blend_worker import BlendsPrompts, ORIGIN_BLENDED
from .device import HostMemory
from .geometry import Geometry, Measures, Numbering
from .groups.group_table import next_multiple
from .handover import IDLE_WAIT_S, HandsOver
from .hints import log_no_hints
from .identity import ConfigError, Unsupported
from .link import (
    IDLE, PREFETCH, RESET_NUMBER_BYTES, VERIFY, Facts, FromStart, Later, LinkError,
    NotReady, Pending)
from .push import PushesChunks
from .ranks import SEVERAL_HOSTS, Part, Ranks, part_of
from .reuse import blocks_to_load, blocks_to_read
from .settings import Settings, open_view
from .stats import NODE
from .texts import describe_store, milliseconds, version
from .tracker import ChainPart, ChainRoot, LoadResult, ReqMeta, Served, Taint, int32
from .transfer import HASH_BYTES, ORIGIN_DISK, ORIGIN_FAILED, ORIGIN_MEMORY, SharedView, Transfer

log = logging.getLogger(__name__)

TOKEN_BYTES = 4
PUT_OFF_LOOKUPS = 3  # times timeout.lookup: the first lookup may have to connect, which takes some round trips
PUT_OFF_MAX = 10_000  # repeated lookups per request; an idle vLLM repeats without a pause
ORIGINS = {ORIGIN_FAILED: "failed", ORIGIN_MEMORY: "memory", ORIGIN_DISK: "disk", ORIGIN_BLENDED: "blended"}  # else remote
TELLING_TOKENS = 256  # a step that computes fewer tokens is not used to measure the engine's speed

# The worker halves of this process by vLLM's engine id, for a scheduler half in the same process.
_here: dict[str, "WorkerHalf"] = {}


def find(engine_id: str) -> "WorkerHalf | None":
    return _here.get(engine_id)


@dataclass
class SessionChain:
    """The chain of a request; used by one thread at a time, which holds the lock."""

    root: ChainRoot | None = None
    chain: object = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class PutOff:
    """The limit for repeated lookups of a request."""

    until: float  # time.monotonic
    times: int = 0


def require_one_host(measures: list["Measures"]) -> None:
    """Raises Unsupported."""
    if any(m.place != measures[0].place for m in measures):
        raise Unsupported(SEVERAL_HOSTS)


def without_store(request: ReqMeta) -> ReqMeta:
    """The same request; its load fails, and nothing of it is stored."""
    load = replace(request.load, allowed=False) if request.load is not None else None
    return replace(request, load=load, save=None, states=())


class WorkerHalf(HandsOver, PushesChunks, LoadsAsync, BlendsPrompts):
    hashes_per_block = 1  # of vLLM, if they are used
    memory = HostMemory()  # of vLLM's KV
    behind: StoresBehind | None = None  # None: stores end in their step
    tier_events = None  # of kv_events.py; None: vLLM publishes none
    suspended = False  # vLLM's KV has no memory now
    lossy_gate: lossy.LossyGate | None = None  # None: KV is exact

    def __init__(self, vllm_config, settings: Settings, engine_version: str):
        self.vllm_config = vllm_config
        self.settings = settings
        self.engine_version = engine_version
        self.off: str | None = "the KV caches are not registered yet"
        self.engine = self.view = None
        self.own_node: own_node.OwnNode | None = None
        self.geometry: Geometry | None = None
        self.numbering = Numbering({}, 0)
        self.ranks, self.part = Ranks(), Part(0, 0, [])
        self.namespace: dict | None = None
        self.weights = self.era = b""  # weights: the model's; era: of the last reset
        self.hashed = False
        self.lock = threading.Lock()
        self.init_loads()
        self.chains: dict[int, SessionChain] = {}  # by session; its second chain by the negative number
        self.prefetches: dict[int, object] = {}  # session -> the prefetch in progress
        self.init_handover(settings.handover)
        self.init_pushes(settings.handover)
        self.put_off: dict[int, PutOff] = {}  # session -> the limit for its repeated lookups
        self.lookup_s = 0.0
        # The layers of a drafter run after vLLM has read the results of the loads.
        self.layerwise = not identity.has_drafter(vllm_config)
        self.taint = Taint()
        self.requests: list[ReqMeta] = []
        self.step_began = None
        self.resetting = threading.Lock()
        self.loads: list[Transfer] = []
        self.stores: list[Transfer] | None = None  # None: not begun in this step
        self.step_view = None  # the view at the beginning of the step; a reset opens another one
        self.error_blocks: set[int] = set()
        self.results: dict[str, LoadResult] = {}
        self.counters: dict[str, int] = {}
        self.reported_connected: int | None = None  # whether a node was, as last counted
        _here[vllm_config.kv_transfer_config.engine_id] = self

    # ---- opening and closing

    def measure(self, kv_caches: dict, block_count: int, backend: str,
                replicas: int = 1) -> "Measures":
        """Registers vLLM's paged memory, and returns the facts that all workers must exchange.
        Raises Unsupported.
        """
        self.geometry = g = Geometry.of(kv_caches, block_count)
        self.kv_caches = kv_caches
        self.numbering = g.numbering()
        place = own_node.place(self.settings, self.vllm_config.parallel_config.world_size)
        return Measures(g.cell_bytes, backend, g.block_shape, g.block_strides, g.dtype, replicas,
                        place, g.kind)

    def register(self, ranks: Ranks, measures: list["Measures"]) -> None:
        """Opens the store for this worker. Raises Unsupported or ConfigError."""
        self.ranks, self.measures = ranks, measures
        mine = measures[ranks.index]
        if any(m.like != mine.like for m in measures):
            raise Unsupported("workers with KV of different shapes")
        require_one_host(measures)
        self.part = part_of(ranks, [m.cell_bytes for m in measures], mine.replicas)
        self.open_engine()
        self.begin(self.make_namespace(mine))
        self.serve_offers()
        self.prepare_blend()

    def open_engine(self) -> None:
        from tierce import _core

        values, self.own_node = own_node.client_values(
            self.settings, self.ranks.count, str(self.vllm_config.kv_transfer_config.engine_id), version())
        try:
            self.engine = _core.Engine.open(self.settings.config_path, values)
        except _core.Error as error:
            raise ConfigError(str(error)) from None
        self.engine.set_role("vllm")
        self.lookup_s = milliseconds(self.engine.param("timeout.lookup")) / 1000

    def begin(self, namespace: dict) -> None:
        self.namespace, self.weights = namespace, namespace["weights"]
        self.lossy_gate = lossy.choose(self.engine.param, self.vllm_config, namespace, self.has_states(), self.cells)
        if self.lossy_gate is not None:
            namespace["quantization"] = self.lossy_gate.quantization
        self.open_view()
        self.prepare()
        if self.loads_are_async():
            self.start_loaders()
        if self.memory.stores_behind:
            self.behind = StoresBehind(self.finish_store)
        self.off = None

    def has_states(self) -> bool:
        """Whether a group of layers has recurrent states."""
        return False

    def cells(self) -> str:
        """For a lossy codec: how many layers the model has, and the order of the values of a cell. Raises Unsupported."""
        from .cell_layout import order_of

        if self.ranks.pp_size > 1:
            raise Unsupported("pipeline parallelism: a worker does not have all layers")
        if self.geometry.runs > 1:
            raise Unsupported("a block of a layer is several runs of bytes")
        return f"{len(self.geometry.bases)}-" + order_of(
            self.vllm_config.compilation_config.static_forward_context, self.kv_caches, self.geometry)

    def loads_are_async(self) -> bool:
        return self.memory.loads_async or self.engine.param("load.async") == "true"

    def prepare(self) -> None:
        """Begins to make transfers possible. Raises Unsupported if transfers are impossible."""
        from tierce import _core

        try:
            self.memory.prepare(self.views())
        except _core.Error as error:
            raise Unsupported(f"KV in {self.memory.kind} memory: {error}") from None

    def views(self) -> list:
        """The library's views."""
        return [self.view.view, self.view.share] if isinstance(self.view, SharedView) else [self.view]

    def can_transfer(self) -> bool:
        try:
            return not self.suspended and self.memory.prepare(self.views())
        except Exception as error:
            log.debug("nothing can be transferred: %r", error)
            return False

    def describe(self) -> str:
        """One line for the log: version, tiers, sizes, namespace."""
        parts = describe_store(self.engine)
        chunk_tokens = self.namespace["chunk_blocks"] * self.namespace["block_tokens"]
        parts.append(f"chunks of {chunk_tokens} tokens")
        if self.lossy_gate is not None:
            parts.append(self.lossy_gate.words)
        parts.append(f"namespace {hashlib.sha256(self.view.namespace.encode()).hexdigest()[:12]}")
        return ", ".join(parts)

    def make_namespace(self, mine: "Measures") -> dict:
        block_tokens = self.vllm_config.cache_config.block_size
        chunk_tokens = int(self.engine.param("chunk.tokens"))
        if chunk_tokens % block_tokens:
            raise ConfigError(f"chunk.tokens {chunk_tokens} is not a multiple of vLLM's block of "
                              f"{block_tokens} tokens; set {next_multiple(chunk_tokens, block_tokens)}, for example")
        return {
            **self.common_namespace(),
            "layout": identity.layout(self.engine_version, mine.backend, mine.block_shape,
                                      mine.block_strides, mine.dtype, block_tokens, self.ranks,
                                      mine.replicas, mine.kind),
            "layer_count": len(self.part.cell_bytes),
            "cell_bytes": self.part.cell_bytes,
            "block_tokens": block_tokens,
            "chunk_blocks": chunk_tokens // block_tokens,
        }

    def common_namespace(self) -> dict:
        """The fields that do not depend on the layers. Also decides whether vLLM's hashes are used."""
        from tierce import _core

        config = self.vllm_config
        wanted = self.engine.param("chunk.hash")
        constant = identity.engine_hashes_are_constant(
            config.cache_config.prefix_caching_hash_algo)
        self.hashed = (wanted in ("auto", "vllm-sha256-cbor") and constant
                       and config.cache_config.enable_prefix_caching)
        if wanted == "vllm-sha256-cbor" and not self.hashed:
            raise ConfigError("chunk.hash vllm-sha256-cbor requires vLLM's prefix cache with "
                              "--prefix-caching-hash-algo sha256_cbor, and PYTHONHASHSEED must not be set")
        return {
            "weights": identity.weights_of_engine(_core, config),
            "model": identity.effective_model(config),
            "kv_dtype": identity.kv_dtype(config),
            "quantization": "",
            "algo": "vllm-sha256-cbor" if self.hashed
                    else "xxh3-128" if wanted == "xxh3-128" else "sha256",
        }

    def open_view(self) -> None:
        every, share = range(self.part.layer_count), self.part.store
        view = self.view_of(every)
        if share != every:
            view = SharedView(view, self.view_of(share))
        self.use_view(view)

    def use_view(self, view) -> None:
        """From now on, instead of the view before: its chains and prefetches end. None: nothing is
        found or stored."""
        with self.lock:
            self.end_prefetches()
            self.view = view
            self.others.clear()
            self.chains.clear()

    def view_of(self, layers: range):
        """Opens the view of some layers of this worker."""
        geometry, part = self.geometry, self.part
        view = open_view(self.engine, self.namespace, (0, 1, 0, 1), (
            part.first_layer + layers.start, len(layers), part.index, part.count), lower="chunk.tokens")
        view.set_paged(geometry.bases[layers.start:layers.stop],
                       geometry.strides[layers.start:layers.stop], geometry.block_count,
                       self.memory.kind)
        return self.memory.view(view)

    def end_prefetches(self) -> None:
        """Under the lock."""
        for prefetch in self.prefetches.values():
            prefetch.end()
        self.prefetches.clear()

    def facts(self) -> Facts:
        if self.off is not None:
            return Facts(off=self.off)

        def flag(name):
            return self.engine.param(name) == "true"

        return Facts(None, self.namespace["chunk_blocks"], self.hashed, flag("save.decode"),
                     flag("chunk.tail"), self.loads_are_async(),
                     int(self.engine.param("load.min_tokens")), flag("load.prefetch"),
                     milliseconds(self.engine.param("timeout.lookup")),
                     blocks_to_write=self.memory.stores_behind,
                     ranks=[self.ranks.tp_size, self.ranks.pp_size],
                     serves=self.serves, uses_tls=self.serves_tls, accepts=self.accepts,
                     allows=list(self.handover.allow), kv_events=self.tier_events is not None,
                     blend=self.blend_facts(), unblended=self.unblended)

    def reset(self, era: bytes) -> bool:
        """The engine's weights may have changed: from now on this engine finds nothing that was
        stored before, and other engines find nothing that it stores. `era` has a random number that
        only the workers of this engine know. False: off, or there was a later reset."""
        if self.off is not None:
            return False
        with self.resetting:
            if era[:RESET_NUMBER_BYTES] < self.era[:RESET_NUMBER_BYTES]:
                return False
            if era != self.era:
                self.use_view(None)  # also if none can be opened
                self.namespace["weights"] = identity.weights_after_reset(self.weights, era)
                self.namespace["quantization"] = ""  # the measurement is of the weights before
                self.open_view()
                self.era = era
        return True

    def suspend(self) -> None:
        """Before vLLM releases the memory of its KV: ends all transfers. None begins until resume."""
        self.suspended = True
        if self.behind is not None:
            self.behind.wait_for_all()
        self.wait_for_loads()

    def resume(self) -> None:
        """The memory is back, at its addresses."""
        self.suspended = False

    def close(self) -> None:
        engine_id = self.vllm_config.kv_transfer_config.engine_id
        if _here.get(engine_id) is self:
            del _here[engine_id]
        self.stop_loaders()
        self.close_handover()
        for transfer in [*self.loads, *(self.stores or ())]:
            transfer.abort()
        if self.behind is not None:
            self.behind.close()
        self.pushes.close()
        self.off = "the engine was shut down"
        self.close_engine()

    def close_engine(self) -> None:
        self.use_view(None)
        self.step_view = self.blend_view = None
        if self.tier_events is not None:
            self.tier_events.close()
            self.tier_events = None
        if self.engine is not None:
            self.engine.close()
            self.engine = None
        if self.own_node is not None:
            self.own_node.leave()
            self.own_node = None

    # ---- questions of the scheduler half

    def lookup(self, session: int, part: ChainPart, from_block: int, to_block: int,
               flags: int) -> tuple[int, int]:
        """Raises FromStart if the chain's beginning is missing here, NotReady if nothing can be loaded
        now, Later while a prefetch is under way for the session, and Pending while a query to a
        remote store is in progress. This call does not wait for it. After the limit of put_off, it
        returns the prefix that is certain."""
        if self.pulls.is_under_way(session, IDLE_WAIT_S if flags & IDLE else 0):
            raise Later
        with self.using_chain(session, part) as (view, chain):
            if to_block > chain.blocks:
                raise FromStart
            if not self.can_transfer():
                raise NotReady
            late = self.end_prefetch(session)
            again = LOOKUP_AGAIN if self.may_put_off(session) else 0
            total, memory, pending = view.lookup(
                chain, from_block, to_block, flags & ~(PREFETCH | VERIFY | IDLE) | LOOKUP_NO_WAIT | again, session,
                part.tag)
            if pending and again:
                self.note_put_off(session)
                raise Pending
            if late:  # the time limit of the slower tiers has passed
                total = memory = self.held_by_memory(view, chain, from_block, total, memory, session)
            if flags & PREFETCH and memory < total:
                self.begin_prefetch(view, chain, from_block, total, session, bool(flags & VERIFY))
                raise Later
        return total, memory

    def held_by_memory(self, view, chain, from_block: int, total: int, memory: int,
                       session: int) -> int:
        """How many of the `total` blocks that were found memory alone can restore."""
        return memory

    def may_put_off(self, session: int) -> bool:
        with self.lock:
            known = self.put_off.get(session)
        return known is None or (known.times < PUT_OFF_MAX and time.monotonic() < known.until)

    def note_put_off(self, session: int) -> None:
        """Counts a repeated lookup; one limit applies to all lookups of the request."""
        until = time.monotonic() + PUT_OFF_LOOKUPS * self.lookup_s
        with self.lock:
            known = self.put_off.setdefault(session, PutOff(until))
            known.times += 1

    def begin_prefetch(self, view, chain, from_block: int, to_block: int, session: int, verify: bool) -> None:
        prefetch = view.prefetch_begin(chain, from_block, to_block, session, 0, verify)
        with self.lock:
            if view is self.view:
                self.prefetches[session] = prefetch
            else:  # a reset has occurred in between, so nothing of the old view may be found
                prefetch.end()

    def end_prefetch(self, session: int) -> bool:
        """Ends the session's prefetch if its result is final, else raises Later. Returns whether
        its deadline ended it."""
        with self.lock:
            prefetch = self.prefetches.get(session)
            if prefetch is None:
                return False
            final, _, _, late = prefetch.poll()
            if not final:
                raise Later
            self.prefetches.pop(session).end()
        return late

    @contextmanager
    def using_chain(self, session: int, part: ChainPart | None, ended: bool = False):
        """The view, and a chain of the session extended by `part`: the second one, see prompt_end.py, if `ended` or if
        the part is of it. Other users of this chain wait until the end."""
        number = -session if ended or (part is not None and part.ended) else session
        with self.lock:
            view, known = self.view, self.chains.get(number)
            if view is None:
                raise LinkError("the store could not be opened again after a reset")
            if known is None:
                if part is None or part.from_block != 0:
                    raise FromStart
                known = self.chains[number] = SessionChain()
        with known.lock:
            yield view, self.extend_chain(view, known, part)

    def extend_chain(self, view, known: SessionChain, part: ChainPart | None):
        """Under the chain's lock."""
        if part is None:
            if known.chain is None:
                raise FromStart
            return known.chain
        if known.chain is None or known.root != part.root:
            if part.from_block != 0:
                raise FromStart
            known.chain = view.chain(part.root.lora, part.root.salt, part.root.other)
            known.root = part.root
        chain = known.chain
        have = chain.blocks
        if part.from_block > have:
            raise FromStart
        block_bytes = HASH_BYTES * self.hashes_per_block if part.hashed else (
            TOKEN_BYTES * self.namespace["block_tokens"])
        news = memoryview(part.data)[(have - part.from_block) * block_bytes:]
        if len(news) % block_bytes:
            raise ValueError("the length of a chain's part is not a multiple of the block size")
        try:
            if len(news) and part.hashed:
                chain.append_hashes(news)
            elif len(news):
                chain.append(int32(news), part.extras)
        except BaseException:
            known.chain = None  # the worker may have a part of the chain
            raise
        return chain

    def release(self, session: int, keep_chain: bool) -> None:
        """Ends the session's pins, and without `keep_chain` the request."""
        if not keep_chain:
            self.pulls.release(session)
            self.pushes.end(session)
        with self.lock:
            prefetch = self.prefetches.pop(session, None)
            if prefetch is not None:
                prefetch.end()
            if session in self.busy:
                if not keep_chain:
                    self.released.add(session)
                return
            if not keep_chain:
                self.chains.pop(session, None)
                self.chains.pop(-session, None)
                self.put_off.pop(session, None)
            if self.view is not None and self.ranks.first:
                self.view.unpin(session)

    def note(self, served: Served) -> None:
        """A request has ended. A note that fails must not end the connection of the lookups."""
        if self.off is None:
            try:
                self.engine.note_request(*served)
            except Exception as error:
                log.debug("the note of request %s failed: %r", served.name, error)

    # ---- a step of the engine

    def begin_step(self, requests: list[ReqMeta], over=(), era: bytes = b"",
                   written: bytes | None = b"") -> None:
        if not self.ranks.first:
            for session in over:
                self.release(session, keep_chain=False)
        if self.loads or self.stores:
            self.fail_step(self.requests)  # of a step that vLLM has not ended
        if not self.reset(era):
            # vLLM planned this step before a reset that the first worker has received already.
            requests = [without_store(request) for request in requests]
        self.requests, self.step_view = requests, self.view
        self.submitted = set()
        self.loads = []
        self.stores = None
        self.wait_for_stores(requests, written)
        self.step_began = self.memory.step_begins()

    def wait_for_stores(self, requests: list[ReqMeta], written: bytes | None) -> None:
        """Before a step that may write to these blocks and loads these requests: waits for the stores
        of earlier steps that read the same blocks. If the blocks are not known, waits for all."""
        if self.behind is None:
            return
        if written is None:
            self.behind.wait_for_all()
        else:
            self.behind.wait_for(set(int32(written)).union(*map(blocks_to_load, requests)))

    def start_loads(self) -> None:
        if any(request.load is not None for request in self.requests):
            self.memory.order_loads()
        for request in self.requests:
            if request.load is None:
                continue
            if request.load.asynchronous:
                self.submit_load(request)
                continue
            if request.load.blend is not None:
                continue
            transfer = self.begin_load(request)
            if transfer is None:
                self.count_load(request, b"")
            else:
                self.loads.append(transfer)
                # vLLM writes the KV of the step before it calls wait_layer, so a block of which the load lacks tokens
                # must be there before the step.
                if not self.layerwise or request.load.lacks:
                    transfer.advance(self.numbering.count)
        self.blend_prompts()

    def begin_load(self, request: ReqMeta) -> Transfer | None:
        """None if it could not begin."""
        load = request.load
        if not load.allowed or self.suspended:
            return None
        try:
            with self.using_chain(request.session, request.chain, load.ended) as (view, chain):
                self.offer_blocks(chain, request)
                self.tell_hint(view, request)
                return Transfer(request, self.load_handle(view, chain, request))
        except Exception as error:
            log.warning("a load for request %s could not begin: %r; with kv_load_failure_policy recompute, vLLM computes its blocks",
                        request.req_id, error)
            return None

    def load_handle(self, view, chain, request: ReqMeta):
        load = request.load
        return view.load_begin(chain, load.from_block, load.to_block,
                               int32(request.block_ids)[:load.to_block], request.session, 0)

    def wait_layer(self, name: str) -> None:
        cells = self.numbering.of(name)
        for transfer in self.loads if cells else ():
            transfer.advance(cells.stop)

    def save_layer(self, name: str) -> None:
        cells, share = self.numbering.of(name), self.part.store
        if not cells or self.memory.leaves_out_layers():  # end_step stores them
            return
        if self.stores is None:
            self.begin_stores()
        first, end = max(cells.start, share.start), min(cells.stop, share.stop)
        for transfer in self.stores if first < end else ():
            if transfer.next_layer == first - share.start:
                transfer.advance(end - share.start)

    def begin_stores(self) -> None:
        self.stores = []
        for request in self.requests:
            if request.save is None or self.suspended:
                continue
            try:
                with self.using_chain(request.session, request.chain) as (view, chain):
                    self.offer_blocks(chain, request)
                    self.tell_hint(view, request)
                    if view is not self.step_view:  # a reset in this step
                        continue
                    handle = self.store_handle(view, chain, request)
                    self.push_store(view, chain, request, handle)
                if handle is not None:
                    self.stores.append(Transfer(request, handle))
            except Exception as error:
                log.warning("a store for request %s could not begin: %r", request.req_id, error)

    def store_handle(self, view, chain, request: ReqMeta):
        save = request.save
        return view.store_begin(chain, save.to_block, int32(request.block_ids)[:save.to_block],
                                save.tail, request.session, request.tag, request.write)

    def tell_hint(self, view, request: ReqMeta) -> None:
        """Before a load or store of the request."""
        if request.hint[0] and not view.hint(request.session, *request.hint):
            log_no_hints()

    def offer_blocks(self, chain, request: ReqMeta) -> None:
        if request.blocks and self.tier_events is not None:
            self.tier_events.offer(self.chain_of(chain), request.blocks)

    def chain_of(self, chain):
        """chain_of(chain)(tokens of a block) -> the chain of such blocks"""
        return lambda size: chain

    def event_groups(self) -> list[tuple[int, int, int]]:
        """The KV cache groups whose chunks the store has: their index, blocks of a chunk, tokens of a block."""
        return [(0, self.namespace["chunk_blocks"], self.namespace["block_tokens"])]

    def event_namespaces(self) -> list[str] | None:
        """The texts of their present namespaces."""
        return [self.view.namespace] if self.view is not None else None

    def announce_again(self) -> None:
        if self.tier_events is not None:
            self.tier_events.announce_again()

    def take_kv_events(self) -> list:
        return self.tier_events.take() if self.tier_events is not None else []

    def tell_speed(self) -> None:
        """A step that computed many prompt tokens and loaded nothing measures the speed of the
        engine, from which the store derives what is worth loading."""
        blocks = sum(r.computed_to - r.computed_from for r in self.requests)
        tokens = blocks * self.namespace["block_tokens"]
        tells = (self.view is not None and self.ranks.first and tokens >= TELLING_TOKENS
                 and all(r.load is None for r in self.requests))
        for told, took_ns in self.memory.speeds(self.step_began, tokens if tells else 0):
            # The other stages take the same time for their layers.
            self.view.computed(told, took_ns * self.ranks.pp_size)

    def end_loads(self) -> None:
        """After the forward pass. With speculative decoding, vLLM reads the failed blocks before it ends the step,
        and would otherwise receive them one token too late."""
        loads, self.loads = self.loads, []
        for transfer in loads:
            self.end_load(transfer, self.numbering.count)

    def end_step(self) -> None:
        computed_ns = time.monotonic_ns()
        self.tell_speed()
        self.end_loads()
        invalid = self.taint.settle([r for r in self.requests if r.computed_to > r.computed_from])
        if self.stores is None:
            self.begin_stores()
        self.pushes.computed([r.session for r in self.requests if r.save is not None or r.states], computed_ns)
        for transfer in self.stores:
            valid = transfer.request.req_id not in invalid and self.view is self.step_view
            self.end_store(transfer, valid)
        self.stores = None
        self.requests = []
        self.submitted = set()

    def end_load(self, transfer: Transfer, layers: int) -> None:
        origins = b""
        if not transfer.failed and transfer.next_layer < layers:
            # The forward pass did not wait for each layer, so it used memory that was not loaded. vLLM computes the
            # step again, and the next load is complete before the pass.
            self.layerwise = False
            transfer.abort("vLLM did not wait for single layers; from now on, loads are complete before the forward pass")
        if not transfer.failed:
            try:
                origins = transfer.handle.end()
            except Exception as error:
                log.warning("a load for request %s failed: %s; with kv_load_failure_policy recompute, vLLM computes its blocks",
                            transfer.request.req_id, error)
        self.count_load(transfer.request, origins)

    def end_store(self, transfer: Transfer, is_valid: bool) -> None:
        if is_valid:
            transfer.advance(len(self.part.store))
        else:
            transfer.abort()
        if self.behind is not None and not transfer.failed:
            self.behind.add(transfer, blocks_to_read(transfer.request))
        else:
            self.count("saved_tokens", self.finish_store(transfer) * self.namespace["block_tokens"])

    def finish_store(self, transfer: Transfer) -> int:
        """Blocks that were stored. On any thread."""
        try:
            return 0 if transfer.failed else transfer.handle.end()
        except Exception as error:
            log.warning("a store of request %s failed: %s", transfer.request.req_id, error)
            return 0

    def fail_step(self, requests: list[ReqMeta]) -> None:
        """After an unexpected exception in a step with these requests: none of its loads counts,
        and nothing of it is stored."""
        for transfer in [*self.loads, *(self.stores or ())]:
            transfer.abort()
        self.requests, self.loads, self.stores = [], [], None
        for request in requests:
            if request.load is None:
                continue
            if not request.load.asynchronous:
                if request.req_id not in self.results:
                    self.count_load(request, b"")
            elif request.req_id not in self.submitted:
                self.submitted.add(request.req_id)
                with self.lock:
                    self.finished.append((request, b""))

    # ---- what became of loads

    def count_load(self, request: ReqMeta, origins: bytes) -> None:
        """Takes one byte per block of the load; no bytes if all of it failed."""
        load, result = request.load, LoadResult()
        ids = int32(request.block_ids)
        for index, block in enumerate(range(load.from_block, load.to_block)):
            origin = origins[index] if index < len(origins) else ORIGIN_FAILED
            if origin == ORIGIN_FAILED:
                self.error_blocks.add(ids[block])
            result.add(ORIGINS.get(origin, "remote"))
        result.lacks = load.lacks
        loaded_ids = [ids[b] for b in range(load.from_block, load.to_block)
                      if ids[b] not in self.error_blocks]
        self.taint.load_failed(self.error_blocks)
        self.taint.loaded(loaded_ids)
        self.results[request.req_id] = result

    def count(self, name: str, by: int) -> None:
        if by:
            self.counters[name] = self.counters.get(name, 0) + by

    def take_errors(self) -> set[int]:
        errors, self.error_blocks = self.error_blocks, set()
        return errors

    def take_failed(self) -> set[str]:
        """Requests whose load failed, if failures are reported by request instead of by block."""
        return set()

    def take_results(self) -> dict[str, LoadResult]:
        results, self.results = self.results, {}
        return results

    def take_counters(self) -> dict[str, int]:
        if self.behind is not None:
            self.count("saved_tokens", self.behind.take_stored() * self.namespace["block_tokens"])
        counters, self.counters = self.counters, {}
        counters.update(self.pulls.take_counters() | self.pushes.take_counters())
        if self.engine is not None and self.engine.param("node.socket"):
            connected = int(self.engine.stats()["node_connected_now"])
            if counters or not connected or connected != self.reported_connected:
                counters[NODE] = self.reported_connected = connected
        return counters
