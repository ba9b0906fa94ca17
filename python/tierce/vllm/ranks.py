# SPDX-License-Identifier: Apache-2.0
"""Tensor and pipeline parallelism: which part of a chunk a worker of vLLM holds.

A chunk holds the layers of all ranks: stage by stage of the pipeline, in each those of the tensor
ranks one after the other. Tensor ranks that vLLM declares to hold the same KV (MLA) have their layers
there once: each of them loads all of these and stores its share. So each has its say in every
store, and a chunk that one of them computed on top of a failed load is not published.
"""

from __future__ import annotations

from dataclasses import dataclass

from .identity import Unsupported


@dataclass(frozen=True)
class Ranks:
    """The place of a worker among the workers of its engine."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1

    @classmethod
    def here(cls, vllm_config) -> "Ranks":
        """Of this process, which vLLM has made a worker."""
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
        """The one that the scheduler half asks."""
        return self.index == 0

    def gather(self, value) -> list:
        """What each worker gives, by index. Every worker calls it, and waits for the others."""
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
    """The layers of a chunk that a worker reads, those of them that it writes, and those of all."""

    first_layer: int
    layer_count: int
    cell_bytes: list[int]
    store: range = range(0)  # of the layers that it reads, counted from 0 there


def part_of(ranks: Ranks, cells: list[list[int]], replicas: int = 1) -> Part:
    """[in] cells: the bytes of each layer's cells, for each worker by index; replicas: so many tensor
    ranks in a row have the same KV. Raises Unsupported."""
    mine, copy = cells[ranks.index], ranks.tp_rank % replicas
    kept = [layers if index % replicas == 0 else [] for index, layers in enumerate(cells)]
    store = range(copy * len(mine) // replicas, (copy + 1) * len(mine) // replicas)
    if len(mine) < replicas:
        raise Unsupported(f"{replicas} workers that have the same KV, of {len(mine)} layers")
    return Part(sum(len(c) for c in kept[:ranks.index - copy]), len(mine),
                [size for c in kept for size in c], store)


def require_supported(vllm_config) -> None:
    """Raises Unsupported if the workers are split in a way that chunks cannot follow."""
    parallel = vllm_config.parallel_config
    parts = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    if (parallel.world_size != parts
            or getattr(parallel, "decode_context_parallel_size", 1) > 1):
        raise Unsupported("context parallelism")
    if parts > 1 and getattr(parallel, "nnodes", 1) > 1:
        raise Unsupported("workers on several hosts")
