# SPDX-License-Identifier: Apache-2.0
"""The memory of vLLM's KV, and the order in which vLLM and the store use it.

Copies to and from memory of the host happen inside the calls of the library. Copies to and from the
memory of a GPU are enqueued, and the library orders them by the stream that a transfer names:

    vLLM's stream        ... layer, layer ...        a step that may write to these blocks
                              └─► copies of a store ─► the store ends, on a thread ─┘ waits
    stream of the loads after vLLM's stream ─► copies ─► the load ends, on a thread ─► vLLM

CUDA is first used when vLLM registers its KV, in the worker's process.
"""

from __future__ import annotations

import logging
import time

from .identity import Unsupported

log = logging.getLogger(__name__)

HOST, CUDA = "host", "cuda"
KINDS = {"cpu": HOST, "cuda": CUDA}  # by the type of torch's device


class HostMemory:
    """`stores_behind`: stores end after their step. `loads_async`: all loads are asynchronous."""

    kind = HOST
    stores_behind = loads_async = False

    def view(self, view):
        """The view, whose transfers follow this memory's order."""
        return view

    def prepare(self, views) -> bool:
        """Whether transfers are possible now."""
        return True

    def leaves_out_layers(self) -> bool:
        """Whether vLLM's call for a layer does not mean that the layer has been computed."""
        return False

    def order_loads(self) -> None:
        """Loads that begin from now on run after the work that vLLM has enqueued."""

    def order_behind_loads(self) -> None:
        """Work that vLLM enqueues from now on runs after the loads that have begun."""

    def step_begins(self):
        """The beginning of a step, for `speeds`."""
        return time.monotonic_ns()

    def speeds(self, began, tokens: int) -> list[tuple[int, int]]:
        """Tokens and nanoseconds of the steps that have been measured since the last call. The step that ends now is
        measured if `tokens` is not 0."""
        return [(tokens, time.monotonic_ns() - began)] if tokens else []


class CudaMemory:
    """The memory of a GPU. All loads are asynchronous: after the failure of a synchronous load, vLLM
    0.32 computes wrong tokens on GPUs (vllm#49250). An asynchronous load is verified before its request
    is computed. It does not need vLLM's calls for single layers, which a full CUDA graph omits."""

    kind = CUDA
    loads_async = True

    def __init__(self, device, stores_behind: bool, splits_batches: bool = False):
        import torch

        self.cuda, self.device = torch.cuda, device
        self.stores_behind, self.splits_batches = stores_behind, splits_batches
        self.loads = self.cuda.Stream(device)
        self.timed: list = []  # of steps in progress: tokens, event of the beginning, of the end
        self.is_ready = self.told = False

    def stream(self):
        return self.cuda.current_stream(self.device)

    def view(self, view):
        return OrderedView(view, self)

    def prepare(self, views) -> bool:
        """Called again with the same views until transfers are possible, and then to check whether they still are: a
        node that starts again has other memory. Exceptions of the library are passed on."""
        ready = all([view.prepare() for view in views])
        if ready and not self.is_ready and self.told:
            log.info("Tierce: the GPU is prepared; chunks are stored and loaded from now on")
        if not ready and not self.told:
            self.told = True
            log.info("Tierce: the GPU is being prepared; until then nothing is stored or loaded")
        self.is_ready = ready
        return ready

    def leaves_out_layers(self) -> bool:
        """While a graph is being recorded, nothing is computed. The parts of a split batch have their own calls."""
        return self.splits_batches or self.cuda.is_current_stream_capturing()

    def order_loads(self) -> None:
        self.loads.wait_stream(self.stream())

    def order_behind_loads(self) -> None:
        self.stream().wait_stream(self.loads)

    def event(self):
        event = self.cuda.Event(enable_timing=True)
        event.record(self.stream())
        return event

    def step_begins(self):
        return self.event()

    def speeds(self, began, tokens: int) -> list[tuple[int, int]]:
        """The kernels of a step run after its calls, so their time is known a step later."""
        if tokens:
            self.timed.append((tokens, began, self.event()))
        over, going = [], []
        for step in self.timed:
            (over if step[2].query() else going).append(step)
        self.timed = going
        return [(tokens, int(begin.elapsed_time(end) * 1e6)) for tokens, begin, end in over]


class OrderedView:
    """A view of KV in the memory of a GPU. Stores run after vLLM's work on its current stream, and loads after the
    work that order_loads names."""

    def __init__(self, view, memory: CudaMemory):
        self.view, self.memory = view, memory

    def store_begin(self, *args):
        return self.view.store_begin(*args, stream=self.memory.stream().cuda_stream)

    def load_begin(self, *args):
        return self.view.load_begin(*args, stream=self.memory.loads.cuda_stream)

    def __getattr__(self, name):
        return getattr(self.view, name)


def memory_of(kv_caches: dict, vllm_config, kv_cache_config) -> HostMemory | CudaMemory:
    """Where vLLM keeps its KV. Raises Unsupported."""
    devices = {tensor.device for tensor in kv_caches.values() if hasattr(tensor, "data_ptr")}
    if not devices or any(KINDS.get(device.type) != CUDA for device in devices):
        return HostMemory()  # or memory of no known kind, which Geometry rejects
    if len(devices) > 1:
        raise Unsupported("KV in the memory of several GPUs in one worker")
    require_gpu(vllm_config)
    # vLLM overwrites new blocks with zeros before it calls the connector in a step. So the copies out
    # of a block must have ended before it is released.
    zeroes = kv_cache_config.needs_kv_cache_zeroing
    return CudaMemory(devices.pop(), stores_behind=not zeroes,
                      splits_batches=vllm_config.parallel_config.use_ubatching)


def require_gpu(vllm_config) -> None:
    """Raises Unsupported if KV in the memory of a GPU is not served with this configuration."""
    import torch
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
    from vllm.v1.kv_cache_interface import KVQuantMode, get_kv_quant_mode

    if torch.version.hip is not None:
        raise Unsupported("KV in the memory of an AMD GPU")
    dtype = str(vllm_config.cache_config.cache_dtype)
    mode = get_kv_quant_mode(dtype)
    if mode.is_per_token_head or getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        raise Unsupported(f"KV of type {dtype} with dynamic scales")
    if mode not in (KVQuantMode.NONE, KVQuantMode.FP8_PER_TENSOR):
        raise Unsupported(f"KV of type {dtype}")
    if vllm_config.model_config.enable_sleep_mode and not hasattr(
            KVConnectorBase_V1, "unregister_kv_caches"):
        raise Unsupported("sleep mode: this vLLM does not notify connectors when it releases its KV; start "
                          "vLLM without --enable-sleep-mode")
