# SPDX-License-Identifier: Apache-2.0
"""The layout of a prefiller with another tensor parallelism, derived from this engine's, is the one that it has."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from tierce.vllm.geometry import Geometry, Measures  # noqa: E402
from tierce.vllm.heads import KVHeads, Other, heads_or_why  # noqa: E402
from tierce.vllm.identity import Unsupported  # noqa: E402
from tierce.vllm.ranks import Ranks  # noqa: E402

BLOCKS, TOKENS, CONTENT, LAYERS = 5, 16, 8, 3


def measures(heads, order, dtype=torch.bfloat16, replicas=1):
    """Of a rank of a vLLM whose memory has these axes from the outermost to the innermost."""
    shape = (BLOCKS, heads, TOKENS, CONTENT)
    layers = {}
    for layer in range(LAYERS):
        memory = torch.zeros([shape[axis] for axis in order], dtype=dtype)
        layers[f"m.{layer}.a"] = memory.permute([order.index(axis) for axis in range(4)])
    g = Geometry.of(layers, BLOCKS)
    return Measures(g.cell_bytes, "CPU_ATTN", g.block_shape, g.block_strides, g.dtype, replicas, "", g.kind)


HND, NHD = (0, 1, 2, 3), (0, 2, 1, 3)


@pytest.mark.parametrize("order", [HND, NHD])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("theirs, ours", [(2, 1), (1, 2), (4, 2), (1, 8), (8, 1), (16, 2)])
def test_layouts(order, dtype, theirs, ours):
    heads = KVHeads(8)
    there, here = (measures(heads.each(size), order, dtype) for size in (theirs, ours))
    other = Other.of(here, Ranks(tp_size=ours), [LAYERS], heads, (theirs, 1))
    assert other.measures == there
    assert other.cell_bytes == there.cell_bytes * theirs
    pieces = 1 if order == HND else TOKENS
    assert other.heads == f"heads=8 pieces={pieces} from={theirs}x3 to={ours}x3"
    # and back
    assert Other.of(there, Ranks(tp_size=theirs), [LAYERS], heads, (ours, 1)).measures == here


def test_ranks_that_hold_the_same():
    """MLA: one head, which vLLM declares to be the same in all ranks; a chunk has it once."""
    heads = KVHeads(1, 1)
    there, here = measures(1, HND, replicas=4), measures(1, HND)
    other = Other.of(here, Ranks(), [LAYERS], heads, (4, 1))
    assert other.measures == there and other.cell_bytes == here.cell_bytes
    assert other.heads == "heads=1 pieces=1 from=1x3 to=1x3"


def test_stages():
    other = Other.of(measures(4, HND), Ranks(tp_size=2, pp_size=2), [2, 1], KVHeads(8), (4, 2))
    assert other.heads == "heads=8 pieces=1 from=4x2+1 to=2x2+1" and len(other.cell_bytes) == 12


@pytest.mark.parametrize("theirs, reason", [((3, 1), "8 KV heads cannot be divided among 3 ranks"),
                                            ((2, 2), "both engines must have the same pipeline parallelism")])
def test_sizes_that_do_not_fit(theirs, reason):
    with pytest.raises(Unsupported, match=reason):
        Other.of(measures(8, HND), Ranks(), [LAYERS], KVHeads(8), theirs)


def test_blocks_that_do_not_fit():
    with pytest.raises(Unsupported, match="unknown shape"):  # heads outside of blocks
        Other.of(measures(8, (1, 0, 2, 3)), Ranks(), [LAYERS], KVHeads(8), (2, 1))
    with pytest.raises(Unsupported, match="unknown shape"):
        Other.of(measures(4, HND), Ranks(), [LAYERS], KVHeads(8), (2, 1))


def test_models():
    config = SimpleNamespace(speculative_config=None, cache_config=SimpleNamespace(calculate_kv_scales=False),
                             model_config=SimpleNamespace(get_total_num_kv_heads=lambda: 8))
    spec = SimpleNamespace(num_kv_heads=4, num_head_slots=None, max_tp_shards=8)
    assert KVHeads.of(config, spec) == KVHeads(8, 8)
    assert KVHeads(8, 8).replicas(16) == 2 and KVHeads(8).replicas(16) == 1
    for change, reason in (({"num_head_slots": 2}, "packed"), ({"num_kv_heads": None}, "no attention heads")):
        with pytest.raises(Unsupported, match=reason):
            KVHeads.of(config, SimpleNamespace(**{**vars(spec), **change}))
    config.model_config.get_total_num_kv_heads = lambda: 0
    assert heads_or_why(config, spec) == "vLLM does not know how many KV heads its model has"
    del config.model_config.get_total_num_kv_heads  # of a vLLM without it: nothing is raised
    assert "are not known: AttributeError" in heads_or_why(config, spec)
    assert heads_or_why(config, SimpleNamespace(num_kv_heads=1, max_tp_shards=1)) == KVHeads(1, 1)
    config.cache_config.calculate_kv_scales = True
    with pytest.raises(Unsupported, match="scales"):
        KVHeads.of(config, spec)
