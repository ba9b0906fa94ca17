# SPDX-License-Identifier: Apache-2.0
"""Tensor and pipeline parallelism: which part of a chunk a worker of vLLM holds.

A chunk holds the layers of all ranks, ordered by pipeline stage, and within a stage by tensor
rank. If vLLM declares that tensor ranks hold the same KV (MLA), their layers are in the chunk
once: each rank loads all of these layers and stores a share of them. So each rank can abort every
store, and a chunk that one of them computed after a failed load is not published.
"""

from __future__ import annotations

from dataclasses import dataclass

from .identity import Unsupported

SEVERAL_HOSTS = ("workers on several hosts, or in containers without a common folder for sockets: run all workers of an "
                 "engine on one host, and share $XDG_RUNTIME_DIR or /tmp between its containers")


@dataclass(frozen=True)
class Ranks:
    """The position of a worker among the workers of its engine."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1

    @classmethod
    def here(cls, vllm_config) -> "Ranks":
        """The rank of this process, which is a worker of vLLM."""
        parallel = vllm_config.parallel_config
        if parallel.world_size == 1:
            return cls()
        from vllm.distributed import parallel_state as state

        tensor, stages = state.get_tp_group(), state.get_pp_group()
        return cls(tensor.rank_in_group, tensor.world_size,
                   stages.rank_in_group, stages.world_size)

    @property
    def count(self) -> int:
        return self.tp_size * self.pp_size

    @property
    def index(self) -> int:
        return self.pp_rank * self.tp_size + self.tp_rank

    @property
    def first(self) -> bool:
        """The worker that the scheduler half queries."""
        return self.index == 0

    def gather(self, value) -> list:
        """The values of all workers, by index. Every worker calls it, and waits for the others."""
        if self.count == 1:
            return [value]
        import torch.distributed
        from vllm.distributed import parallel_state as state

        def gather_in(group, mine):
            out = [None] * group.world_size
            torch.distributed.all_gather_object(out, mine, group=group.cpu_group)
            return out

        stages = gather_in(state.get_pp_group(), gather_in(state.get_tp_group(), value))
        return [row for stage in stages for row in stage]


@dataclass(frozen=True)
class Part:
    """The layers of a chunk that a worker reads, the layers that it writes, and the number of all
    layers."""

    first_layer: int
    layer_count: int
    cell_bytes: list[int]
    store: range = range(0)  # of the layers that it reads, counted from 0 there
    index: int = 0  # among the workers that have layers of the chunk
    count: int = 1  # of these workers


def part_of(ranks: Ranks, cells: list[list[int]], replicas: int = 1) -> Part:
    """[in] cells: the bytes of each layer's cells, for each worker by index; replicas: the number
    of consecutive tensor ranks that have the same KV. Raises Unsupported."""
    mine, copy = cells[ranks.index], ranks.tp_rank % replicas
    kept = [layers if index % replicas == 0 else [] for index, layers in enumerate(cells)]
    holders = [index for index, layers in enumerate(cells) if layers]
    store = range(copy * len(mine) // replicas, (copy + 1) * len(mine) // replicas)
    if len(mine) < replicas:
        raise Unsupported(f"{replicas} workers that have the same KV, of {len(mine)} layers")
    return Part(sum(len(c) for c in kept[:ranks.index - copy]), len(mine),
                [size for c in kept for size in c], store, holders.index(ranks.index), len(holders))


def require_supported(vllm_config) -> None:
    """Raises Unsupported if chunks do not support this division of the model among the workers."""
    parallel = vllm_config.parallel_config
    parts = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    if (getattr(parallel, "prefill_context_parallel_size", 1) > 1
            or getattr(parallel, "decode_context_parallel_size", 1) > 1):
        raise Unsupported("context parallelism")
    if parts > 1 and parallel.distributed_executor_backend == "external_launcher":
        # Each worker has its own scheduler and engine id.
        raise Unsupported("tensor or pipeline parallelism with the executor external_launcher")
    if parallel.world_size != parts:
        raise Unsupported(f"{parallel.world_size} workers, but tensor and pipeline parallelism require {parts}")
    if parts > 1 and getattr(parallel, "nnodes", 1) > 1:
        raise Unsupported(SEVERAL_HOSTS)
