# SPDX-License-Identifier: Apache-2.0
"""The order of a cell's values, as attention kernels show it: those of vLLM on CPUs, and stand-ins for others."""

from types import SimpleNamespace as Thing

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from vllm import _custom_ops as ops  # noqa: E402

from tierce.vllm.cell_layout import CellLayout, order_of  # noqa: E402
from tierce.vllm.geometry import Geometry  # noqa: E402
from tierce.vllm.identity import Unsupported  # noqa: E402

HEADS, TOKENS, CHANNELS = 3, 32, 64


def attention(update):
    """`update`: writes keys and values [token][head][channel] to a view [block][head][token][key, then value]."""
    return Thing(head_size=CHANNELS, impl=Thing(do_kv_cache_update=lambda layer, *args: update(*args)))


def flash(keys, values, cache, slots):
    cache[0, :, :, :CHANNELS], cache[0, :, :, CHANNELS:] = keys.transpose(0, 1), values.transpose(0, 1)


def cpu(isa):
    def update(keys, values, cache, slots):
        heads = cache.view(1, cache.shape[1], 2 * TOKENS, CHANNELS).chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(keys, values, *heads, slots, isa)

    return update


def rounded(keys, values, cache, slots):
    flash(keys, values // 3, cache, slots)


def two_by_two(keys, values, cache, slots):
    """The lower digit of the tokens is the outer one."""
    flash(keys.unflatten(0, (TOKENS // 2, 2)).transpose(0, 1).flatten(0, 1), values, cache, slots)


def caches(order, blocks=8, kernel_blocks=1, heads=HEADS):
    """A layer's paged memory; `order`: of the axes [block][head][token][content], the outermost first."""
    shape = (blocks * kernel_blocks, heads, TOKENS, 2 * CHANNELS)
    memory = torch.zeros([shape[axis] for axis in order], dtype=torch.bfloat16)
    return {"layers.0.attn": memory.permute([order.index(axis) for axis in range(4)])}


def order(update, axes=(0, 1, 2, 3), kernel_blocks=1, heads=HEADS):
    layers = caches(axes, kernel_blocks=kernel_blocks, heads=heads)
    return order_of({"layers.0.attn": attention(update)}, layers, Geometry.of(layers, 8))


@pytest.mark.parametrize("heads", [HEADS, 1])  # a rank's, which tensor parallelism decides
def test_orders_of_kernels(heads):
    assert order(flash, heads=heads) == "htkc64"
    assert order(flash, (0, 2, 1, 3), heads=heads) == "thkc64"
    assert order(flash, kernel_blocks=2, heads=heads) == "tht32kc64"
    assert order(cpu("vec"), heads=heads) == "hk.c64t.tc64"
    assert order(cpu("vec"), kernel_blocks=2, heads=heads) == "thk.c64t32.t32c64"


def test_kernels_without_such_an_order():
    for update, reason in ((rounded, "do not keep keys and values"), (two_by_two, "in an order that cachegen cannot express")):
        with pytest.raises(Unsupported, match=reason):
            order(update)
    with pytest.raises(Unsupported, match="cannot be called alone: RuntimeError"):
        order(lambda *args: torch.zeros(2) + torch.zeros(3))
    layers = caches((0, 1, 2, 3))
    other = Thing(head_size=CHANNELS + 1)
    with pytest.raises(Unsupported, match="do not consist of the keys and values of heads"):
        order_of({"layers.0.attn": other}, layers, Geometry.of(layers, 8))


def test_the_limits_of_the_codec():
    assert order(flash, heads=8192 // CHANNELS) == "htkc64"
    for shape in ((8192 // CHANNELS + 1, TOKENS, 2 * CHANNELS), (1, TOKENS, 2 * 1025), (HEADS, 1, 2 * CHANNELS)):
        attentions = {"layers.0.attn": Thing(head_size=shape[-1] // 2)}
        geometry = Thing(block_shape=shape, block_strides=(shape[1] * shape[2], shape[2], 1))
        with pytest.raises(Unsupported, match="cachegen accepts at most 8192 channels of a token"):
            order_of(attentions, {"layers.0.attn": None}, geometry)


def test_a_layout_reads_what_was_written():
    keys, values = torch.randn(2, TOKENS, HEADS, CHANNELS).to(torch.bfloat16)
    block = torch.zeros(1, HEADS, TOKENS, 2 * CHANNELS, dtype=torch.bfloat16)
    for update in (flash, cpu("vec")):
        layout = CellLayout(attention(update), block.shape[1:], block.dtype)
        update(keys, values, block, torch.arange(TOKENS))
        assert torch.equal(layout.read(block, 0), keys) and torch.equal(layout.read(block, 1), values)
