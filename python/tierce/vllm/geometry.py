# SPDX-License-Identifier: Apache-2.0
"""vLLM's paged memory as the store sees it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .identity import Unsupported


@dataclass
class Geometry:
    """vLLM's paged memory as the store sees it: per layer a base address and a stride."""

    layer_of: dict[str, int]
    bases: list[int]
    strides: list[int]
    cell_bytes: list[int]
    block_count: int
    block_shape: tuple
    block_strides: tuple
    dtype: str

    @classmethod
    def of(cls, kv_caches: dict, block_count: int) -> "Geometry":
        """Raises Unsupported unless every layer's block is one range of bytes in host memory."""
        out = cls({}, [], [], [], block_count, (), (), "")
        seen: dict[int, int] = {}
        for name in sorted(kv_caches, key=layer_order):
            tensor = kv_caches[name]
            if not hasattr(tensor, "data_ptr"):
                raise Unsupported(f"layer {name} keeps its KV in something that is not a tensor")
            if tensor.device.type != "cpu":
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
        block = tensor[0]
        if tensor.shape[0] != self.block_count or not is_one_run(block):
            raise Unsupported(f"layer {name} does not keep each block as one run of bytes")
        shape, strides = tuple(block.shape), tuple(block.stride())
        if self.bases and (shape, strides, str(tensor.dtype)) != (
                self.block_shape, self.block_strides, self.dtype):
            raise Unsupported("layers of different KV shapes")
        self.block_shape, self.block_strides, self.dtype = shape, strides, str(tensor.dtype)
        self.layer_of[name] = len(self.bases)
        self.bases.append(tensor.data_ptr())
        self.strides.append(tensor.stride(0) * tensor.element_size())
        self.cell_bytes.append(block.numel() * tensor.element_size())


@dataclass
class Measures:
    """The description of a worker's KV for the other workers."""

    cell_bytes: list[int]
    backend: str
    block_shape: tuple
    block_strides: tuple
    dtype: str
    replicas: int = 1  # so many tensor ranks in a row have the same KV
    place: str = ""  # the host, see own_node.place

    @property
    def like(self) -> tuple:
        """The values that must be equal in all workers."""
        return self.backend, self.block_shape, self.block_strides, self.dtype, self.replicas


def is_one_run(block) -> bool:
    """Whether the elements of a tensor fill one range of memory, in any order of axes."""
    run = 1
    for stride, size in sorted(zip(block.stride(), block.shape)):
        if size == 1:
            continue
        if stride != run:
            return False
        run *= size
    return True


def layer_order(name: str):
    number = re.search(r"\.(\d+)\.", name)
    return (int(number.group(1)) if number else -1, name)
