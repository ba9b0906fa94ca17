# SPDX-License-Identifier: Apache-2.0
"""Arrays of callers: numpy arrays and torch tensors, without importing numpy or torch."""

from __future__ import annotations

from array import array
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """The memory of one layer: `blocks` cells of `cell_bytes`, `stride` bytes from one to the next."""

    address: int
    stride: int
    blocks: int
    cell_bytes: int
    shape: tuple[int, ...]  # of a cell
    dtype: str


def describe(layer) -> Layer:
    """A numpy array, or a torch tensor of the CPU. Raises ValueError or TypeError."""
    if hasattr(layer, "data_ptr"):
        if layer.device.type != "cpu":
            raise ValueError(f"an array is in the memory of {layer.device}; only arrays of the CPU are supported")
        item = layer.element_size()
        address, shape, dtype = layer.data_ptr(), tuple(layer.shape), str(layer.dtype).removeprefix("torch.")
        strides = tuple(stride * item for stride in layer.stride())
    elif hasattr(layer, "__array_interface__") and hasattr(layer, "dtype"):
        facts = layer.__array_interface__
        address, is_read_only = facts["data"]
        if is_read_only:
            raise ValueError("an array is read-only; loads write into it")
        if layer.dtype.hasobject or layer.dtype.names or not layer.dtype.isnative:
            raise ValueError(f"an array has elements of {layer.dtype}; they must be plain numbers in the machine's byte order")
        item, shape, dtype = layer.dtype.itemsize, tuple(facts["shape"]), layer.dtype.name
        strides = facts.get("strides") or dense(shape, item)
    else:
        raise TypeError(f"{type(layer).__name__} is neither a numpy array nor a torch tensor")
    if len(shape) < 2 or 0 in shape:
        raise ValueError(f"an array has the shape {shape}; its first dimension must count blocks, and more must follow; none may be 0")
    cell = shape[1:]
    contiguous = all(size == 1 or stride == wanted for size, stride, wanted in zip(cell, strides[1:], dense(cell, item)))
    cell_bytes = item * count(cell)
    if not contiguous or (shape[0] > 1 and strides[0] < cell_bytes):
        raise ValueError(f"the bytes of a block are not contiguous in an array of shape {shape} with strides {strides} in "
                         "bytes; the first dimension must count blocks")
    return Layer(address, max(strides[0], cell_bytes), shape[0], cell_bytes, cell, dtype)


def count(shape: tuple[int, ...]) -> int:
    elements = 1
    for size in shape:
        elements *= size
    return elements


def dense(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """The strides of a C-contiguous array."""
    return tuple(item * count(shape[at + 1:]) for at in range(len(shape)))


def int32s(numbers) -> array:
    """Token ids or block numbers from a sequence, array or tensor. Raises OverflowError or TypeError."""
    if isinstance(numbers, array) and numbers.typecode == "i":
        return numbers
    if isinstance(numbers, (bytes, bytearray, memoryview, str)):
        raise TypeError(f"{type(numbers).__name__} are no token ids or block numbers; pass integers")
    return array("i", numbers.tolist() if hasattr(numbers, "tolist") else numbers)
