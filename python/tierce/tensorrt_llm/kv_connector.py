# SPDX-License-Identifier: Apache-2.0
"""The two classes that TensorRT-LLM loads. Never run with TensorRT-LLM.

TensorRT-LLM has no report for a load that fails after the scheduler has promised its tokens: the step would compute from
wrong KV. So the scheduler promises only chunks that memory holds, pinned; chunks of slower tiers are read into memory and
verified before the promise. A load that fails all the same raises, which ends TensorRT-LLM.

A step of TensorRT-LLM is: get_num_new_matched_tokens for each new request, build_connector_meta, start_load_kv, the forward
pass, wait_for_save. One thread makes these calls. Loads and stores end in the call that begins them, and with KV on a GPU both
wait for all of its work, so the order of its streams does not matter."""

from __future__ import annotations

import atexit
import itertools
import logging
import secrets
import time
import weakref
from array import array
from dataclasses import dataclass, field

import tensorrt_llm
from tensorrt_llm._utils import local_mpi_size, mpi_rank, mpi_world_size

from ..lookup_flags import LOOKUP_MEMORY_ONLY, LOOKUP_PIN
from ..page_view import require_no_start, setting
from ..vllm.async_loads import PREPARING_S
from ..vllm.device import CUDA, CudaMemory, HostMemory
from ..vllm.geometry import Geometry
from ..vllm.identity import ConfigError, Unsupported
from ..vllm.ranks import Ranks, part_of
from ..vllm.settings import Settings, open_view
from ..vllm.texts import describe_store, milliseconds
from ..vllm.tracker import ChainPart, ChainRoot, ReqMeta, RequestTracker, Rules, int32
from ..vllm.transfer import ORIGIN_FAILED, Transfer
from . import llm_arguments

try:
    from tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector import KvCacheConnectorScheduler, KvCacheConnectorWorker
except ModuleNotFoundError:  # before TensorRT-LLM moved it
    from tensorrt_llm._torch.pyexecutor.kv_cache_connector import KvCacheConnectorScheduler, KvCacheConnectorWorker

log = logging.getLogger("tierce")

POLL_S = 0.001  # of a prefetch
WHERE = "TIERCE_CONFIG, or the environment"

# The workers of this process by their arguments, which the scheduler of the same engine has too.
_here: "weakref.WeakValueDictionary[int, TierceWorker]" = weakref.WeakValueDictionary()


@dataclass
class StepMeta:
    """The message of the scheduler to all workers."""

    requests: list[ReqMeta] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)  # sessions


class TierceWorker(KvCacheConnectorWorker):
    view = None  # until TensorRT-LLM registers its KV

    def __init__(self, llm_args):
        """Raises ConfigError."""
        from tierce import _core

        super().__init__(llm_args)
        self.core, self.args = _core, llm_args
        self.ranks = Ranks(mpi_rank(), mpi_world_size())
        llm_arguments.require_supported(llm_args, self.ranks.count, local_mpi_size())
        llm_arguments.require_supported_model(llm_args)
        self.settings = Settings.from_extra_config({})
        self.settings.check(WHERE)
        self.require_node()
        self.chains: dict[int, object] = {}  # by session
        self.saves: list[ReqMeta] = []  # of the step
        self.warned: set[str] = set()
        _here[id(llm_args)] = self

    def require_node(self) -> None:
        """Raises ConfigError."""
        require_no_start(self.settings, WHERE)
        if self.ranks.count > 1 and not setting(self.settings, "node.socket"):
            raise ConfigError(f"{WHERE}: {self.ranks.count} ranks require node.socket: a chunk has the layers of all ranks; start "
                              "a `tierce node`, and set node.socket")

    def register_kv_cache_layout(self, layout) -> None:
        raise ConfigError("Tierce does not support KVCacheManagerV2 of TensorRT-LLM; set "
                          "kv_cache_config.use_kv_cache_manager_v2 to false")

    def register_kv_caches(self, kv_cache_tensor) -> None:
        """Opens the store. Raises ConfigError."""
        if self.view is not None:
            raise ConfigError("TensorRT-LLM has registered its KV twice; accepted: once")
        try:
            geometry = Geometry.of(llm_arguments.layers_of(kv_cache_tensor), kv_cache_tensor.shape[0])
            part = part_of(self.ranks, [geometry.cell_bytes] * self.ranks.count)
            names = llm_arguments.namespace(self.core, self.args, tensorrt_llm.__version__, geometry, part.cell_bytes, self.ranks)
            self.engine = self.core.Engine.open(self.settings.config_path, dict(self.settings.values))
        except (Unsupported, self.core.Error) as error:
            raise ConfigError(f"Tierce for TensorRT-LLM cannot start: {error}") from None
        self.engine.set_role("tensorrt_llm")
        self.rules = self.rules_of(names)
        names["chunk_blocks"] = self.rules.chunk_blocks
        view = open_view(self.engine, names, (0, 1, 0, 1), (part.first_layer, part.layer_count, part.index, part.count),
                         lower="chunk.tokens")
        view.set_paged(geometry.bases, geometry.strides, geometry.block_count, geometry.kind)
        self.memory = HostMemory() if geometry.kind != CUDA else CudaMemory(kv_cache_tensor.device, stores_behind=False)
        self.pool, self.layers, self.view = kv_cache_tensor, part.layer_count, self.memory.view(view)
        self.load_ms = milliseconds(self.engine.param("timeout.load"))
        atexit.register(shutdown, weakref.ref(self))
        self.can_transfer()
        log.info("Tierce for TensorRT-LLM: %s", ", ".join(describe_store(self.engine)))

    def shutdown(self) -> None:
        """Writes what is not durable yet, for timeout.close at most. From then on lookups are misses."""
        if self.view is not None:
            self.chains.clear()
            self.view = None
            self.engine.close()

    def rules_of(self, names: dict) -> Rules:
        """Also decides the hash of the chunks. Raises ConfigError."""
        param, block_tokens = self.engine.param, names["block_tokens"]
        chunk_tokens, wanted = int(param("chunk.tokens")), param("chunk.hash")
        if chunk_tokens % block_tokens:
            raise ConfigError(f"{WHERE}: chunk.tokens {chunk_tokens} is not a multiple of kv_cache_config.tokens_per_block "
                              f"{block_tokens}; set {-(-chunk_tokens // block_tokens) * block_tokens}, for example")
        if wanted == "vllm-sha256-cbor":
            raise ConfigError(f"{WHERE}: chunk.hash {wanted} is for vLLM only; accepted: auto, sha256, xxh3-128")
        names["algo"] = "xxh3-128" if wanted == "xxh3-128" else "sha256"
        return Rules(block_tokens, chunk_tokens // block_tokens, save_decode=param("save.decode") == "true",
                     save_tail=param("chunk.tail") == "true", load_min_tokens=int(param("load.min_tokens")), memory_only=True)

    def can_transfer(self) -> bool:
        try:
            return self.view is not None and self.memory.prepare([self.view])
        except self.core.Error as error:
            self.warn_once(f"nothing is loaded or stored: KV in {self.memory.kind} memory: {error}")
            return False

    def warn_once(self, text: str) -> None:
        if text not in self.warned:
            self.warned.add(text)
            log.warning("Tierce for TensorRT-LLM: %s", text)

    def wait_for_gpu(self) -> None:
        if self.memory.kind == CUDA:
            self.memory.cuda.synchronize(self.memory.device)

    # ---- questions of the scheduler, in the process of rank 0

    def hold(self, session: int, part: ChainPart, from_block: int, to_block: int) -> int:
        """How many leading blocks memory holds, pinned for the session. Blocks of slower tiers are read into memory and
        verified first, for timeout.load at most; then TensorRT-LLM waits."""
        if from_block >= to_block or not self.can_transfer():
            return 0
        try:
            chain = self.extend_chain(session, part)
            found, in_memory, _ = self.view.lookup(chain, from_block, to_block, LOOKUP_PIN, session)
            if in_memory < found:
                prefetch = self.view.prefetch_begin(chain, from_block, found, session, self.load_ms, True)
                try:
                    while not prefetch.poll()[0]:
                        time.sleep(POLL_S)
                finally:
                    prefetch.end()
                found, in_memory, _ = self.view.lookup(chain, from_block, to_block, LOOKUP_PIN | LOOKUP_MEMORY_ONLY, session)
            return min(found, in_memory)
        except self.core.Error as error:
            self.warn_once(f"a lookup is a miss: {error}")
            return 0

    def release(self, session: int) -> None:
        self.chains.pop(session, None)
        if self.ranks.first and self.view is not None:
            self.view.unpin(session)

    # ---- a step

    def extend_chain(self, session: int, part: ChainPart):
        chain = self.chains.get(session)
        if chain is None:
            chain = self.chains[session] = self.view.chain(part.root.lora, part.root.salt, part.root.other)
        news = int32(part.data)[(chain.blocks - part.from_block) * self.rules.block_tokens:]
        if len(news):
            chain.append(news)
        return chain

    def start_load_kv(self, stream) -> None:
        """Raises RuntimeError if a load fails."""
        # TensorRT-LLM binds no message in a step without requests, and the last one stays bound.
        meta, self.saves = self.get_connector_meta() or StepMeta(), []
        self._clear_connector_meta()
        for session in meta.ended:
            self.release(session)
        for request in meta.requests:
            self.extend_chain(request.session, request.chain)
        self.saves = [request for request in meta.requests if request.save is not None]
        loads = [request for request in meta.requests if request.load is not None]
        if loads:
            self.wait_for_gpu()
        for request in loads:
            self.load(request)

    def load(self, request: ReqMeta) -> None:
        load, until = request.load, time.monotonic() + PREPARING_S
        while not self.can_transfer() and time.monotonic() < until:  # the GPU of rank 0 may be ready before this one
            time.sleep(POLL_S)
        try:
            transfer = Transfer(request, self.view.load_begin(
                self.chains[request.session], load.from_block, load.to_block, int32(request.block_ids)[:load.to_block],
                request.session, 0))
            transfer.advance(self.layers)
            origins = b"" if transfer.failed else transfer.handle.end()
            if len(origins) == load.blocks and ORIGIN_FAILED not in origins:
                return
            reason = f"{origins.count(ORIGIN_FAILED) or load.blocks} of {load.blocks} blocks failed"
        except (self.core.Error, ValueError) as error:
            reason = str(error)
        raise RuntimeError(f"Tierce could not load KV that it had promised for the request {request.req_id}: {reason}. TensorRT-LLM "
                           "has no report for this, and would compute from wrong KV; start it again")

    def wait_for_layer_load(self, layer_idx: int, stream) -> None:
        """start_load_kv has loaded all layers."""

    def save_kv_layer(self, layer_idx: int, stream) -> None:
        """wait_for_save stores all layers."""

    def wait_for_save(self, stream) -> None:
        saves, self.saves = self.saves, []
        if not saves or not self.can_transfer():
            return
        self.wait_for_gpu()
        for request in saves:
            self.store(request)

    def store(self, request: ReqMeta) -> None:
        save = request.save
        try:
            handle = self.view.store_begin(self.chains[request.session], save.to_block,
                                           int32(request.block_ids)[:save.to_block], save.tail, request.session, "", request.write)
            if handle is None:
                return
            transfer = Transfer(request, handle)
            transfer.advance(self.layers)
            if not transfer.failed:
                handle.end()
        except (self.core.Error, ValueError) as error:
            log.warning("a store of request %s failed: %s", request.req_id, error)

    def get_finished(self, finished_gen_req_ids, started_loading_req_ids) -> tuple[list[int], list[int]]:
        return [], []  # nothing is asynchronous


def shutdown(reference) -> None:
    """At the end of the process: TensorRT-LLM does not call shutdown in every version."""
    worker = reference()
    if worker is not None:
        worker.shutdown()


class TierceScheduler(KvCacheConnectorScheduler):
    """Exists on rank 0 only."""

    def __init__(self, llm_args):
        super().__init__(llm_args)
        self.args = llm_args
        self.live: dict[int, tuple[RequestTracker, array]] = {}  # by request: with its tokens
        self.ended: list[int] = []  # sessions, since the last message
        self.sessions = itertools.count((secrets.randbits(31) << 32) + 1)
        self.writes = itertools.count(secrets.randbits(31) << 32 | 1)  # see tierce_store_begin

    @property
    def worker(self) -> TierceWorker | None:
        """None until TensorRT-LLM has registered its KV."""
        worker = _here.get(id(self.args))
        return worker if worker is not None and worker.view is not None else None

    def get_num_new_matched_tokens(self, request, num_computed_tokens: int) -> tuple[int, bool]:
        self.end(request.request_id)
        worker = self.worker
        if worker is None or getattr(request, "is_dummy_request", False):  # of a warm-up, or that pads a batch
            return 0, False
        salt = llm_arguments.salt_of(request)
        if salt is None:
            worker.warn_once("a request with a LoRA adapter or multimodal inputs, or of a TensorRT-LLM whose salts are unknown, "
                             "is neither looked up nor stored")
            return 0, False
        rules, tokens = worker.rules, array("i", request.get_tokens(0))
        tracker = RequestTracker(str(request.request_id), next(self.sessions), ChainRoot(salt=salt), len(tokens))
        self.live[request.request_id] = tracker, tokens
        if num_computed_tokens % rules.block_tokens:
            tracker.local_tokens = num_computed_tokens
            return 0, False
        part = self.part(tracker, tokens, rules.whole_blocks(len(tokens)))
        held = worker.hold(tracker.session, part, rules.whole_blocks(num_computed_tokens),
                           tracker.load_limit(rules, len(tokens)))
        return tracker.plan_load(rules, num_computed_tokens, held, held), False

    def part(self, tracker: RequestTracker, tokens: array, to_block: int) -> ChainPart:
        """Of the chain: the blocks that not all workers were sent."""
        size = self.worker.rules.block_tokens
        return ChainPart(tracker.root, tracker.told_blocks, tokens[tracker.told_blocks * size:to_block * size].tobytes(), False)

    def update_state_after_alloc(self, request, block_ids) -> None:
        """build_connector_meta receives the blocks."""

    def build_connector_meta(self, scheduler_output) -> StepMeta:
        meta, self.ended = StepMeta(ended=self.ended), []
        for data in scheduler_output.new_requests:
            if data.request_id in self.live:
                tracker, _ = self.live[data.request_id]
                tracker.set_blocks(data.new_block_ids)
                self.live[data.request_id] = tracker, array("i", data.new_tokens)
                # Some versions of TensorRT-LLM include the promised tokens here.
                computed = min(data.computed_position, tracker.local_tokens)
                self.add(meta, data, computed + (tracker.load.tokens(self.worker.rules.block_tokens) if tracker.load else 0))
        for data in scheduler_output.cached_requests:
            if data.request_id in self.live:
                tracker, tokens = self.live[data.request_id]
                tracker.append_blocks(data.new_block_ids)
                tokens.extend(data.new_tokens)
                self.add(meta, data, data.computed_position)
        return meta

    def add(self, meta: StepMeta, data, computed: int) -> None:
        """The step computes the tokens of the request from `computed` on."""
        tracker, tokens = self.live[data.request_id]
        rules, load, tracker.load = self.worker.rules, tracker.load, None
        end = min(computed + data.num_scheduled_tokens, len(tokens))
        save = tracker.plan_save(rules, computed, end)
        if load is None and save is None:
            return
        to_block = max(tracker.told_blocks, *(spec.to_block for spec in (load, save) if spec is not None))
        part, tracker.told_blocks = self.part(tracker, tokens, to_block), to_block
        meta.requests.append(ReqMeta(
            tracker.req_id, tracker.session, part, tracker.block_ids.tobytes(), rules.whole_blocks(computed),
            -(-end // rules.block_tokens), load, save,
            write=next(self.writes) if save is not None and self.worker.ranks.count > 1 else 0))

    def request_finished(self, request, cache_block_ids) -> bool:
        self.end(request.request_id)
        return False

    def end(self, request_id: int) -> None:
        known = self.live.pop(request_id, None)
        if known is not None:
            self.ended.append(known[0].session)
