# SPDX-License-Identifier: Apache-2.0
"""vLLM's paged memory as the store sees it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from .device import HOST, KINDS
from .identity import Unsupported

RUNS_MAX = 256  # of a block of one layer


@dataclass
class Numbering:
    """The numbers of the layers in a transfer. A layer may have several, one after the other."""

    first_of: dict[str, int]
    count: int  # of a load; a store may have fewer
    each: int = 1  # numbers of each layer

    def of(self, name: str) -> range:
        """Empty if the KV of the layer is not moved."""
        first = self.first_of.get(name)
        return range(0) if first is None else range(first, first + self.each)


@dataclass
class Geometry:
    """vLLM's paged memory as the store sees it: cells, each with a base address and a stride. A layer
    whose blocks are several runs of bytes is one cell for each run."""

    layer_of: dict[str, int]  # the first cell of a layer
    bases: list[int]
    strides: list[int]
    cell_bytes: list[int]
    block_count: int
    block_shape: tuple
    block_strides: tuple
    dtype: str
    runs: int = 1  # cells of each layer
    kind: str = HOST  # of the memory

    @classmethod
    def of(cls, kv_caches: dict, block_count: int) -> "Geometry":
        """Raises Unsupported unless all layers have blocks of the same form, in memory of the same
        known kind."""
        out = cls({}, [], [], [], block_count, (), (), "")
        seen: dict[int, int] = {}
        for name in sorted(kv_caches, key=layer_order):
            tensor = kv_caches[name]
            if not hasattr(tensor, "data_ptr"):
                raise Unsupported(f"layer {name} keeps its KV in an object that is not a tensor")
            if tensor.device.type not in KINDS:
                raise Unsupported(f"KV in {tensor.device.type} memory")
            if tensor.data_ptr() in seen:  # layers that share their KV
                out.layer_of[name] = seen[tensor.data_ptr()]
                continue
            out.add_layer(name, tensor)
            seen[tensor.data_ptr()] = out.layer_of[name]
        if not out.bases:
            raise Unsupported("no layer keeps KV")
        return out

    def add_layer(self, name, tensor):
        form = block_form(tensor, self.block_count)
        runs = form and block_runs(*form[:2])
        if not runs or len(runs[0]) > RUNS_MAX:
            raise Unsupported(f"layer {name} does not keep each block as one run of bytes, or as at most "
                              f"{RUNS_MAX} equal runs")
        shape, strides, block_stride = form
        like = shape, strides, str(tensor.dtype), KINDS[tensor.device.type]
        if self.bases and like != (self.block_shape, self.block_strides, self.dtype, self.kind):
            raise Unsupported("layers of different KV shapes")
        self.block_shape, self.block_strides, self.dtype, self.kind = like
        offsets, length = runs
        size, self.runs = tensor.element_size(), len(offsets)
        self.layer_of[name] = len(self.bases)
        self.bases += [tensor.data_ptr() + offset * size for offset in offsets]
        self.strides += [block_stride * size] * self.runs
        self.cell_bytes += [length * size] * self.runs

    def numbering(self) -> Numbering:
        return Numbering(self.layer_of, len(self.bases), self.runs)


@dataclass
class Measures:
    """The description of a worker's KV for the other workers."""

    cell_bytes: list[int]
    backend: str
    block_shape: tuple
    block_strides: tuple
    dtype: str
    replicas: int = 1  # the number of consecutive tensor ranks that have the same KV
    place: str = ""  # the host, see own_node.place
    kind: str = HOST
    groups: tuple = ()  # with a table of groups, in its order: GroupMeasures instead of the other fields

    @property
    def like(self) -> tuple:
        """The values that must be equal in all workers."""
        return (self.backend, self.block_shape, self.block_strides, self.dtype, self.replicas, self.kind)


def block_form(tensor, block_count: int) -> tuple[tuple, tuple, int] | None:
    """Shape and strides of a block, and the stride between blocks, in elements. The blocks of vLLM's
    kernels may be smaller than those of its tables. None if the tensor does not consist of blocks."""
    shape, strides = list(tensor.shape), list(tensor.stride())
    halves = len(shape) > 1 and shape[0] == 2 and shape[0] != block_count  # all K before all V
    at = 1 if halves else 0
    ratio, rest = divmod(shape[at], block_count)
    if rest or not ratio:
        return None
    block_stride = strides[at] * ratio
    if ratio > 1:
        shape[at] = ratio
    else:
        del shape[at], strides[at]
    return tuple(shape), tuple(strides), block_stride


def block_runs(shape, strides) -> tuple[list[int], int] | None:
    """Where the runs of a block begin, and their length, in elements. The axes may have any order. None if elements
    overlap."""
    length, offsets = 1, [0]
    for stride, size in sorted(zip(strides, shape)):
        if size == 1:
            continue
        if len(offsets) == 1 and stride == length:
            length *= size
        elif stride < length:
            return None
        else:
            offsets = [offset + step * stride for step in range(size) for offset in offsets]
    gaps = [after - before for before, after in zip(sorted(offsets), sorted(offsets)[1:])]
    assert length * len(offsets) == prod(shape)
    return (sorted(offsets), length) if all(gap >= length for gap in gaps) else None


def layer_order(name: str):
    number = re.search(r"\.(\d+)\.", name)
    return (int(number.group(1)) if number else -1, name)
