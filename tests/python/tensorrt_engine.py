# SPDX-License-Identifier: Apache-2.0
"""A stand-in of TensorRT-LLM, whose packages require a GPU: its abstract classes as published, and the steps of an engine of
one or several ranks whose KV is a function of the prompt."""

import hashlib
import itertools
import pickle
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import ModuleType
from types import SimpleNamespace as Thing

import torch

BLOCK, LAYERS, BLOCKS, VALUES = 8, 3, 64, 64  # tokens of a block, blocks of a pool, values of a block in a half of a layer
MODULE = "tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector"


class KvCacheConnectorWorker(ABC):
    def __init__(self, llm_args):
        self._llm_args = llm_args
        self._metadata = None
        super().__init__()

    def bind_connector_meta(self, metadata):
        self._metadata = metadata

    def get_connector_meta(self):
        return self._metadata

    def _clear_connector_meta(self):
        self._metadata = None

    def register_forward_pass_callable(self):
        pass

    @abstractmethod
    def register_kv_caches(self, kv_cache_tensor): ...

    @abstractmethod
    def start_load_kv(self, stream): ...

    @abstractmethod
    def wait_for_layer_load(self, layer_idx, stream): ...

    @abstractmethod
    def save_kv_layer(self, layer_idx, stream): ...

    @abstractmethod
    def wait_for_save(self, stream): ...

    @abstractmethod
    def get_finished(self, finished_gen_req_ids, started_loading_req_ids): ...


class KvCacheConnectorScheduler(ABC):
    def __init__(self, llm_args):
        self._llm_args = llm_args
        super().__init__()

    @abstractmethod
    def build_connector_meta(self, scheduler_output): ...

    @abstractmethod
    def get_num_new_matched_tokens(self, request, num_computed_tokens): ...

    @abstractmethod
    def request_finished(self, request, cache_block_ids): ...

    @abstractmethod
    def update_state_after_alloc(self, request, block_ids): ...


MPI = Thing(rank=0, world=1, local=1)  # of the next worker


def install():
    """The modules of TensorRT-LLM that the connector imports."""
    path = MODULE.split(".")
    modules = {".".join(path[:end]): ModuleType(".".join(path[:end])) for end in range(1, len(path) + 1)}
    modules["tensorrt_llm._utils"] = Thing(mpi_rank=lambda: MPI.rank, mpi_world_size=lambda: MPI.world,
                                           local_mpi_size=lambda: MPI.local)
    modules["tensorrt_llm"].__version__ = "1.3.0"
    modules["tensorrt_llm"].__path__ = []
    modules[MODULE].KvCacheConnectorScheduler = KvCacheConnectorScheduler
    modules[MODULE].KvCacheConnectorWorker = KvCacheConnectorWorker
    sys.modules.update(modules)


@dataclass
class RequestData:
    request_id: int
    new_tokens: list
    new_block_ids: list
    computed_position: int
    num_scheduled_tokens: int
    cache_salt: str | None = None


@dataclass
class SchedulerOutput:
    new_requests: list = field(default_factory=list)
    cached_requests: list = field(default_factory=list)


def arguments(model, **changes):
    """TorchLlmArgs; a change of kv_cache_config is `kv_NAME`."""
    cache = {"tokens_per_block": BLOCK, "enable_partial_reuse": False, "host_cache_size": None, "max_attention_window": None,
             "sink_token_length": None, "use_kv_cache_manager_v2": False}
    cache.update({name[3:]: value for name, value in changes.items() if name.startswith("kv_")})
    own = {"model": str(model), "revision": None, "dtype": "float16", "quant_config": None, "attn_backend": "TRTLLM",
           "load_format": Thing(name="AUTO"), "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "context_parallel_size": 1,
           "enable_attention_dp": False, "speculative_config": None, "enable_lora": False, "lora_config": None}
    own.update({name: value for name, value in changes.items() if not name.startswith("kv_")})
    return Thing(kv_cache_config=Thing(**cache), **own)


@dataclass
class Request:
    """The properties of LlmRequest that the connector reads."""

    tokens: list
    cache_salt: str | None = None
    lora_task_id: int | None = None
    multimodal_hashes: list | None = None
    request_id: int = field(default_factory=itertools.count(1).__next__)

    def get_tokens(self, beam):
        assert beam == 0
        return list(self.tokens)


def kv_of(tokens, block, rank, salt=None):
    """What the model computes for a block."""
    text = repr((tokens[:(block + 1) * BLOCK], rank, salt)).encode()
    seed = int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
    return torch.randn(LAYERS, 2, VALUES, generator=torch.Generator().manual_seed(seed)).to(torch.float16)


class HostPool:
    """KV in host memory, as get_unique_primary_pool returns it."""

    def __init__(self):
        self.tensor = torch.zeros(BLOCKS, LAYERS, 2, VALUES, dtype=torch.float16)

    def write(self, block, values):
        self.tensor[block] = values

    def read(self, block):
        return self.tensor[block].clone()


class Engine:
    """Blocks are given out in order, and never again."""

    def __init__(self, classes, make_args, ranks=1, pools=None):
        self.pools = pools or [HostPool() for _ in range(ranks)]
        self.workers, arguments = [], [make_args() for _ in range(ranks)]
        self.scheduler = classes.TierceScheduler(arguments[0])  # TensorRT-LLM makes both at the same time
        for rank in range(ranks):
            MPI.rank, MPI.world, MPI.local = rank, ranks, ranks
            self.workers.append(classes.TierceWorker(arguments[rank]))
        MPI.rank, MPI.world, MPI.local = 0, 1, 1
        for worker, pool in zip(self.workers, self.pools):
            worker.register_kv_caches(pool.tensor)
        self.ids, self.between = itertools.count(), lambda: None

    def close(self):
        for worker in self.workers:
            worker.shutdown()

    def step(self, new=(), cached=(), compute=()):
        """`between` runs between the promise and the load. `compute`: (request, its blocks, the tokens [start, end))."""
        meta = self.scheduler.build_connector_meta(SchedulerOutput(list(new), list(cached)))
        self.between()
        for rank, worker in enumerate(self.workers):
            worker.bind_connector_meta(pickle.loads(pickle.dumps(meta)))
            worker.start_load_kv(None)
            for request, ids, start, end in compute:
                for block in range(start // BLOCK, -(-end // BLOCK)):
                    self.pools[rank].write(ids[block], kv_of(request.tokens[:end], block, rank, request.cache_salt))
        for worker in self.workers:
            for layer in range(LAYERS):
                worker.wait_for_layer_load(layer, None)
                worker.save_kv_layer(layer, None)
            worker.wait_for_save(None)
            assert worker.get_finished([], []) == ([], [])

    def prefill(self, request, local=0, chunk=None, counts_matched=False):
        """Computes the prompt. `local`: tokens that the engine's own cache has; `chunk`: the most tokens of a step;
        counts_matched: computed_position includes the promised tokens. Returns the promised tokens, and the blocks."""
        tokens, ids = request.tokens, [next(self.ids) for _ in range(-(-len(request.tokens) // BLOCK))]
        for rank, pool in enumerate(self.pools):
            for block in range(local // BLOCK):
                pool.write(ids[block], kv_of(tokens, block, rank, request.cache_salt))
        matched, is_async = self.scheduler.get_num_new_matched_tokens(request, local)
        assert is_async is False
        self.scheduler.update_state_after_alloc(request, ids)
        start, steps = local + matched, 0
        while start < len(tokens):
            end = min(len(tokens), start + (chunk or len(tokens)))
            data = RequestData(request.request_id, tokens if steps == 0 else [], ids if steps == 0 else [],
                               start if steps or counts_matched else local, end - start, request.cache_salt)
            self.step([data] if steps == 0 else [], [data] if steps else [], [(request, ids, start, end)])
            start, steps = end, steps + 1
        return matched, ids

    def decode(self, request, ids, count):
        """Generates tokens, whose KV each next step computes."""
        for token in range(count):
            request.tokens.append(7000 + token)
            new = [next(self.ids)] if len(request.tokens) > len(ids) * BLOCK else []
            ids.extend(new)
            end = len(request.tokens)
            self.step((), [RequestData(request.request_id, [7000 + token], new, end - 1, 1, request.cache_salt)],
                      [(request, ids, end - 1, end)])

    def finish(self, request, ids):
        assert self.scheduler.request_finished(request, ids) is False

    def is_right(self, request, ids):
        """The KV of all whole blocks of the prompt, on all ranks."""
        return all((pool.read(ids[block]) == kv_of(request.tokens, block, rank, request.cache_salt)).all()
                   for rank, pool in enumerate(self.pools) for block in range(len(request.tokens) // BLOCK))
