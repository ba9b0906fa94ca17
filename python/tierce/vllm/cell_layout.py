# SPDX-License-Identifier: Apache-2.0
"""Where vLLM's attention kernels put the keys and values of a block: the engine's own kernels show it."""

from __future__ import annotations

from math import prod

import torch

from .identity import Unsupported

DIGIT = 128  # numbers below it are exact in every type
ROW_MAX, CHANNELS_MAX, TEXT_MAX = 8192, 1024, 48  # src/core/codec/cell_order.h, beyond which C stores exact KV


class CellLayout:
    """Where vLLM's attention kernels for this processor put each element of a block's keys and values: they are
    written as numbers, digit by digit, and then searched for. Raises Unsupported if some are not there."""

    def __init__(self, attention, block_shape, dtype, block_strides=None, device="cpu"):
        """block_strides: of the axes of a block in memory, if they have another order than block_shape."""
        heads, tokens, both = block_shape
        self.shape = tokens, heads, both // 2
        self.head_stride = block_strides[0] if block_strides else tokens * both
        self.count = tokens * heads * both // 2  # of keys, and of values
        memory = torch.zeros(2 * self.count, dtype=dtype, device=device)
        block = memory.as_strided((1, *block_shape), (2 * self.count, *block_strides)) if block_strides else memory.view(
            1, *block_shape)
        numbers, found = torch.arange(2 * self.count), torch.zeros(2 * self.count, dtype=torch.int64)
        slots = torch.arange(tokens, device=device)
        digit = 1
        while digit < 2 * self.count:
            written = (numbers // digit % DIGIT).to(device, dtype).view(2, *self.shape)
            attention.impl.do_kv_cache_update(attention, written[0], written[1], block, slots)
            found += memory.cpu().to(torch.int64) * digit
            digit *= DIGIT
        if not torch.equal(found.sort()[0], numbers):
            raise Unsupported("vLLM's attention kernels do not keep keys and values as they are")
        self.where = torch.empty_like(found)
        self.where[found] = numbers
        self.views = [self.strides_of(half) for half in self.where.view(2, *self.shape)]

    def strides_of(self, where):
        """(first element, strides) if the elements of a block have constant strides, else None."""
        def stride(axis):
            return int(where.select(axis, 1).flatten()[0] - where.flatten()[0]) if where.shape[axis] > 1 else 0

        first, strides = int(where.flatten()[0]), [stride(axis) for axis in range(3)]
        sums = first + sum(torch.arange(size).view([-1 if a == axis else 1 for a in range(3)]) * strides[axis]
                           for axis, size in enumerate(self.shape))
        return (first, strides) if torch.equal(sums, where) else None

    def read(self, blocks, half: int):
        """Keys (half 0) or values (1) of blocks [block][...]: [token][head][channel]."""
        cells = blocks.reshape(len(blocks), 2 * self.count)
        if self.views[half] is None:
            where = self.where[half * self.count:(half + 1) * self.count].to(cells.device)
            return cells.index_select(1, where).view(-1, *self.shape[1:])
        first, strides = self.views[half]
        view = cells.as_strided((len(blocks), *self.shape), (2 * self.count, *strides), cells.storage_offset() + first)
        return view.reshape(-1, *self.shape[1:])

    def order(self, kernel_blocks: int = 1) -> str:
        """The order of the values of a cell of so many of these blocks, as src/core/codec/cell_order.h reads it. Raises
        Unsupported if there is none."""
        keys, values = (axes_of(half, self.head_stride) for half in self.where.view(2, *self.shape))
        step = int(self.where[self.count] - self.where[0])  # from the keys to the values
        if self.where[0] != 0 or step <= 0:
            raise no_order()
        outer = [[axis for axis in axes if axis[2] >= step] for axes in (keys, values)]
        inner = [[axis for axis in axes if axis[2] < step] for axes in (keys, values)]
        if outer[0] != outer[1] or any(not is_dense([*outer[0], ("k", 2, step), *axes]) for axes in inner):
            raise no_order()
        outer = [*([("t", kernel_blocks, 0)] if kernel_blocks > 1 else []), *outer[0], ("k", 2, step)]
        if inner[0] == inner[1]:
            return text_of(outer + inner[0])
        common = text_of(outer)
        return ".".join([common, *(text_of(axes, has_tokens="t" in common) for axes in inner)])


def order_of(attentions: dict, kv_caches: dict, geometry) -> str:
    """CellLayout.order of the cells of a Geometry. attentions: vLLM's modules by name. Raises Unsupported."""
    name, cache = next(iter(kv_caches.items()))
    shape, strides = geometry.block_shape, geometry.block_strides
    kernel_blocks = shape[0] if len(shape) == 4 else 1
    size = getattr(attentions.get(name), "head_size", None)
    if len(shape) not in (3, 4) or size is None or shape[-1] != 2 * size:
        raise Unsupported("the blocks of a layer do not consist of the keys and values of heads")
    if kernel_blocks > 1 and strides[0] != prod(shape[1:]):
        raise no_order()
    heads, tokens = shape[-3], kernel_blocks * shape[-2]
    if heads * size > ROW_MAX or size > CHANNELS_MAX or tokens < 2:
        raise Unsupported(f"blocks of {tokens} tokens, each with {heads} heads of {size} channels; cachegen accepts at most "
                          f"{ROW_MAX} channels of a token, {CHANNELS_MAX} of a head, and blocks of 2 tokens or more")
    try:
        layout = CellLayout(attentions[name], shape[-3:], cache.dtype, strides[-3:], cache.device)
    except Unsupported:
        raise
    except Exception as error:
        raise Unsupported(f"the attention kernels of {type(attentions[name].impl).__name__} cannot be called alone: "
                          f"{error!r}") from None
    order = layout.order(kernel_blocks)
    if len(order) > TEXT_MAX:
        raise no_order()
    return order


def no_order() -> Unsupported:
    return Unsupported("the attention kernels put keys and values in an order that cachegen cannot express")


def digits_of(places: list[int]) -> list[tuple[int, int]]:
    """Sizes and strides of the digits of an index whose places these are, the outermost digit first."""
    if len(places) == 1:
        return []
    step, size = places[1] - places[0], 2
    while size < len(places) and places[size] == places[0] + size * step:
        size += 1
    if len(places) % size:
        raise no_order()
    return digits_of(places[::size]) + [(size, step)]


def axes_of(where, head_stride: int) -> list[tuple[str, int, int]]:
    """Name, size and stride of each digit of the axes of [token][head][channel], the outermost first in memory. A single
    head is an axis too, so that ranks with one head and ranks with several state the same order. `where` does not show
    its stride, so it has the stride of the block's axis."""
    out, sums = [], where[0, 0, 0]
    for axis, name in enumerate("thc"):
        places = where.movedim(axis, 0)[:, 0, 0]
        sums = sums + (places - places[0]).view([-1 if a == axis else 1 for a in range(3)])
        digits = digits_of(places.tolist()) or ([(1, head_stride)] if name == "h" else [])
        if sorted(digits, key=lambda digit: -digit[1]) != digits or (name == "h" and len(digits) > 1):
            raise no_order()
        out += [(name, *digit) for digit in digits]
    if not torch.equal(sums, where):
        raise no_order()
    return sorted(out, key=lambda axis: (-axis[2], axis[1] == 1))  # as memory_order of heads.py


def is_dense(axes) -> bool:
    return all(stride == prod(size for _, size, _ in axes[at + 1:]) for at, (_, _, stride) in enumerate(axes))


def text_of(axes, has_tokens: bool = False) -> str:
    """The first digit of the tokens, and heads, have the size that a cell leaves them."""
    out = ""
    for name, size, _ in axes:
        has_size = name == "c" or (name == "t" and (has_tokens or "t" in out))
        out += f"{name}{size}" if has_size else name
    return out
