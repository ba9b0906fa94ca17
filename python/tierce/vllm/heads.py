# SPDX-License-Identifier: Apache-2.0
"""A prefiller with a different tensor-parallel size (TP): its memory layout, and how its chunks become those of this engine.

vLLM's block of a layer has the axes [..., heads, tokens, content], in any order in memory. A different TP
changes only the number of heads, so this engine derives the layout of the prefiller, and its namespace, from its own.
A wrong layout gives a namespace that no chunk has. The library verifies each chunk under it, and moves the heads
(src/core/chunk/heads.h)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod

from . import identity
from .geometry import Measures
from .identity import Unsupported
from .ranks import Ranks

HEAD_AXIS = -3
OTHERS_MAX = 8  # layouts of prefillers that an engine remembers: requests name them
LAYERS_MAX = 4096  # of a namespace: LAYERS_MAX of src/core/key/namespace.c


@dataclass(frozen=True)
class KVHeads:
    """The KV heads of a layer in all ranks together."""

    total: int
    shards: int | None = None  # above so many tensor ranks, vLLM says that ranks hold the same KV; None: it never says so

    @classmethod
    def of(cls, vllm_config, spec) -> "KVHeads":
        """spec: vLLM's, of the layers. Raises Unsupported if it is not known which rank has which heads."""
        own = getattr(spec, "num_kv_heads", None)
        if own is None:
            raise Unsupported("this engine's layers have no attention heads")
        if identity.has_drafter(vllm_config):
            raise Unsupported("this engine holds the KV of a drafter")
        if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
            raise Unsupported("each engine computes its own scales of the KV (calculate_kv_scales)")
        if getattr(spec, "num_head_slots", None) not in (None, own):
            raise Unsupported("this engine's KV heads are packed")
        shards = getattr(spec, "max_tp_shards", None)
        total = 1 if shards == 1 else vllm_config.model_config.get_total_num_kv_heads()
        if total < 1:
            raise Unsupported("vLLM does not know how many KV heads its model has")
        return cls(total, shards)

    def each(self, tp_size: int) -> int:
        """Heads of a rank. Raises Unsupported."""
        if self.total % tp_size and tp_size % self.total:
            raise Unsupported(f"{self.total} KV heads cannot be divided among {tp_size} ranks")
        return max(1, self.total // tp_size)

    def replicas(self, tp_size: int) -> int:
        """Ranks that vLLM declares to hold the same KV."""
        return gcd(tp_size, max(1, tp_size // self.shards)) if self.shards else 1


def heads_or_why(vllm_config, spec) -> KVHeads | str:
    """Or why they are not known. Only offers of engines with other ranks need them: no error here switches Tierce off."""
    try:
        return KVHeads.of(vllm_config, spec)
    except Unsupported as reason:
        return str(reason)
    except Exception as error:
        return f"the KV heads of its model are not known: {error!r}"


def memory_order(shape, strides) -> list[int]:
    """The axes from the outermost to the innermost. An axis of one element lies inside an axis of the same stride."""
    return sorted(range(len(shape)), key=lambda axis: (-strides[axis], shape[axis] == 1))


def dense_strides(shape, order) -> tuple:
    out, step = [0] * len(shape), 1
    for axis in reversed(order):
        out[axis], step = step, step * shape[axis]
    return tuple(out)


@dataclass(frozen=True)
class Other:
    """The layout of a prefiller."""

    measures: Measures  # of one of its ranks
    ranks: Ranks
    cell_bytes: list[int]  # of a chunk
    heads: str  # for the library

    @classmethod
    def of(cls, mine: Measures, ours: Ranks, stages: list[int], heads: KVHeads, theirs: tuple[int, int]) -> "Other":
        """stages: the layers of a rank in each pipeline stage; theirs: tensor and pipeline parallelism. Raises
        Unsupported."""
        tp_size, pp_size = theirs
        shape, strides = mine.block_shape, mine.block_strides
        if pp_size != ours.pp_size:
            raise Unsupported("both engines must have the same pipeline parallelism")
        if len(shape) < -HEAD_AXIS or mine.cell_bytes != [mine.cell_bytes[0]] * len(mine.cell_bytes):
            raise Unsupported("this engine's blocks have an unknown shape")
        order, axis = memory_order(shape, strides), len(shape) + HEAD_AXIS
        if shape[axis] != heads.each(ours.tp_size) or dense_strides(shape, order) != tuple(strides):
            raise Unsupported("this engine's blocks have an unknown shape")
        other = [*shape]
        other[axis] = heads.each(tp_size)
        pieces = prod(shape[outer] for outer in order[:order.index(axis)])
        copies = heads.replicas(tp_size)
        count = sum(stages) * tp_size // copies
        if count > LAYERS_MAX:
            raise Unsupported(f"a chunk has at most {LAYERS_MAX} layers, those of all ranks together")
        measures = replace(mine, block_shape=tuple(other), block_strides=dense_strides(other, order), replicas=copies,
                           cell_bytes=[mine.cell_bytes[0] // shape[axis] * other[axis]] * len(mine.cell_bytes))
        cells = "+".join(map(str, stages))
        text = (f"heads={heads.total} pieces={pieces} from={tp_size // copies}x{cells} "
                f"to={ours.tp_size // mine.replicas}x{cells}")
        return cls(measures, Ranks(tp_size=tp_size, pp_size=pp_size),
                   [measures.cell_bytes[0]] * count, text)

    def namespace(self, ours: dict, engine_version: str) -> dict:
        m = self.measures
        return {**ours, "layer_count": len(self.cell_bytes), "cell_bytes": self.cell_bytes,
                "layout": identity.layout(engine_version, m.backend, m.block_shape, m.block_strides, m.dtype,
                                          ours["block_tokens"], self.ranks, m.replicas, m.kind)}
