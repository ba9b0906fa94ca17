# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV cache groups, as far as the store holds them.

vLLM divides the layers of a hybrid model into groups. A request has a list of block ids for each
group. Block 0 means that vLLM no longer keeps the block.
docs/inside/design/011-groups-and-devices.md describes the requirements of each kind of group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vllm.v1 import kv_cache_interface as kv

from ..identity import ConfigError, Unsupported

FULL, WINDOW, CHUNKED, STATE = "full", "window", "chunked", "state"
CHUNK_TOKENS = 256  # the default of chunk.tokens


def next_multiple(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@dataclass(frozen=True)
class Group:
    index: int  # in vLLM's lists
    kind: str
    block_tokens: int
    layer_names: tuple[str, ...]
    window: int = 0  # tokens, of the kinds window and chunked
    content: str = ""  # of a state: the meaning of its bytes

    @property
    def text(self) -> str:
        return f"{self.kind} {self.window}" if self.window else self.kind

    def chunk_blocks(self, chunk_tokens: int) -> int:
        """Blocks of a chunk. vLLM may release the blocks before the window after each step. A
        chunk that fits into the window is complete before its first block is released, no matter
        where the steps end."""
        if self.kind == STATE:
            return 1
        most = chunk_tokens // self.block_tokens
        if self.kind == WINDOW:
            most = max(1, min(most, self.window // self.block_tokens))
        return next(n for n in range(most, 0, -1) if n == 1 or self.may_have(n, chunk_tokens))

    def may_have(self, blocks: int, chunk_tokens: int) -> bool:
        """Whether a chunk of `blocks` blocks ends wherever a chunk of `chunk_tokens` ends, and never
        crosses a boundary of chunked attention."""
        tokens = blocks * self.block_tokens
        return chunk_tokens % tokens == 0 and (self.kind != CHUNKED or self.window % tokens == 0)


@dataclass(frozen=True)
class GroupTable:
    groups: tuple[Group, ...]
    # A hit is a multiple of it. It is a multiple of each group's block size, or if hits may end inside blocks, each
    # block size is a multiple of it.
    unit_tokens: int
    hash_tokens: int  # tokens per block hash of vLLM

    @property
    def hashes_per_unit(self) -> int:
        return self.unit_tokens // self.hash_tokens

    @property
    def common_tokens(self) -> int:
        return math.lcm(self.unit_tokens, *(g.block_tokens for g in self.groups))

    def may_end_inside(self, group: Group) -> bool:
        """Whether a hit may end inside a block of the group."""
        return group.block_tokens > self.unit_tokens

    def whole_blocks(self, group: Group, units: int) -> int:
        """Blocks that end at or before the end of so many units."""
        return units * self.unit_tokens // group.block_tokens

    def all_blocks(self, group: Group, units: int) -> int:
        """Blocks that so many units need, the last perhaps in part."""
        return -(-units * self.unit_tokens // group.block_tokens)

    def chunk_tokens(self, wanted: int) -> int:
        """Tokens of a chunk of full attention. Raises ConfigError."""
        common = self.common_tokens
        if wanted % common == 0:
            return wanted
        if wanted == CHUNK_TOKENS:
            return next_multiple(wanted, common)
        raise ConfigError(f"chunk.tokens {wanted} is not a multiple of {common} tokens, "
                          "the least common multiple of the block sizes of vLLM's KV cache groups; set "
                          f"{next_multiple(wanted, common)}, for example, or do not set chunk.tokens")

    def save_units(self, chunk_tokens: int) -> int:
        """Units of the smallest chunk: the interval of saves."""
        return max(1, min(g.chunk_blocks(chunk_tokens) * g.block_tokens for g in self.groups)
                   // self.unit_tokens)


def is_plain(group) -> bool:
    """Whether all layers are one group of full attention, which needs no table."""
    return type(group.kv_cache_spec) in (kv.FullAttentionSpec, kv.MLAAttentionSpec)


def table_of(vllm_config, kv_cache_config) -> GroupTable | None:
    """None if there is one group of full attention. Raises Unsupported."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) == 1 and is_plain(groups[0]):
        require_plain(groups[0].kv_cache_spec, vllm_config, kv_cache_config)
        return None
    kept = [group_of(i, groups[i]) for i in kv_cache_config.prefix_cacheable_group_ids]
    if not kept:
        raise Unsupported("no KV cache group that can be stored")
    require_engine(vllm_config, kept)
    # vLLM computes and loads in multiples of all groups' block sizes, also of the groups not kept here.
    unit = math.lcm(*(g.kv_cache_spec.block_size for g in groups))
    hash_tokens = kv_cache_config.hash_block_size or math.gcd(*(g.block_tokens for g in kept))
    if any(g.block_tokens % hash_tokens for g in kept):
        raise Unsupported(f"block hashes of {hash_tokens} tokens, of which the block sizes are not multiples")
    return GroupTable(tuple(kept), finer_unit(kv_cache_config, kept, hash_tokens) or unit, hash_tokens)


def finer_unit(kv_cache_config, groups, hash_tokens: int) -> int | None:
    """The tokens of a hash if vLLM's own hits end inside blocks (its "partial hash hits"), else None. Then it keeps and
    offers recurrent states there. vLLM permits this only if all other groups of larger blocks are full attention."""
    larger = {g.kind for g in groups if g.block_tokens > hash_tokens}
    permitted = (kv_cache_config.cache_hit_alignment_tokens == hash_tokens
                 and len(groups) == len(kv_cache_config.kv_cache_groups))
    return hash_tokens if permitted and STATE in larger and larger <= {FULL, STATE} else None


def require_engine(vllm_config, groups) -> None:
    if not vllm_config.cache_config.enable_prefix_caching:
        raise Unsupported("several KV cache groups without vLLM's prefix cache: start vLLM with "
                          "--enable-prefix-caching")
    if vllm_config.speculative_config is not None and any(g.kind == STATE for g in groups):
        raise Unsupported("speculative decoding of a model with recurrent states")


def require_plain(spec, vllm_config, kv_cache_config) -> None:
    require_full(spec)
    if spec.block_size != vllm_config.cache_config.block_size:
        raise Unsupported("two different block sizes")
    if kv_cache_config.hash_block_size not in (None, spec.block_size):
        raise Unsupported("block hashes that cover other numbers of tokens than the blocks")


def require_full(spec) -> None:
    if type(spec) is kv.MLAAttentionSpec and (
            spec.is_index_group_leader or spec.model_version or spec.tokens_per_state != 1
            or spec.cache_role != kv.SparseCacheRole.SPARSE):
        raise Unsupported("sparse or compressed latent attention")
    if spec.sliding_window is not None or spec.attention_chunk_size is not None:
        raise Unsupported("sliding window or chunked attention in a cache of full attention: start "
                          "vLLM without --disable-hybrid-kv-cache-manager")
    if spec.non_causal:
        raise Unsupported("non-causal attention")


def group_of(index: int, group) -> Group:
    """Raises Unsupported, which names the kind."""
    if group.host_resident:
        raise Unsupported("a KV cache group in vLLM's host pool")
    kinds = {kind_of(spec) for spec in kv.iter_layer_specs(group.kv_cache_spec)}
    if len(kinds) != 1:
        raise Unsupported("a KV cache group with layers of several kinds")
    kind, window, content = kinds.pop()
    return Group(index, kind, group.kv_cache_spec.block_size, tuple(group.layer_names), window,
                 content)


def kind_of(spec) -> tuple[str, int, str]:
    """Kind, window and content. Subclasses of these types are not supported, because their blocks
    may have another meaning."""
    if type(spec) in (kv.FullAttentionSpec, kv.MLAAttentionSpec):
        require_full(spec)
        return FULL, 0, ""
    if type(spec) in (kv.SlidingWindowSpec, kv.SlidingWindowMLASpec):
        if spec.extra_retained_tokens:
            raise Unsupported("a sliding window that is kept longer for a draft model")
        if getattr(spec, "model_version", None) or spec.tokens_per_state != 1:
            raise Unsupported("sparse or compressed latent attention")
        return WINDOW, spec.sliding_window, ""
    if type(spec) is kv.ChunkedLocalAttentionSpec:
        return CHUNKED, spec.attention_chunk_size, ""
    if type(spec) is kv.MambaSpec:
        return STATE, 0, state_content(spec)
    raise Unsupported(f"a KV cache of kind {type(spec).__name__}")


def state_content(spec) -> str:
    if spec.mamba_cache_mode != "align":
        raise Unsupported(f"recurrent states with mamba_cache_mode {spec.mamba_cache_mode!r}: "
                          "start vLLM with --enable-prefix-caching --mamba-cache-mode align")
    if spec.num_speculative_blocks:
        raise Unsupported("recurrent states of drafted tokens")
    dtypes = [str(dtype).removeprefix("torch.") for dtype in spec.dtypes]
    return f"{spec.mamba_type.name} {[list(shape) for shape in spec.shapes]} {dtypes}"
