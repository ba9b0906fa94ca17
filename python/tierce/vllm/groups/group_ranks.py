# SPDX-License-Identifier: Apache-2.0
"""The layers of a KV cache group in all workers of an engine.

A chunk of a group holds the group's layers of all ranks, ordered like a chunk of all layers
(ranks.py). Tensor ranks hold shares of the same layers. Pipeline stages hold different layers, and
perhaps none of some group.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..geometry import Geometry
from ..identity import Unsupported
from ..ranks import Part, Ranks, part_of


@dataclass(frozen=True)
class GroupMeasures:
    """The description of a worker's layers of a group for the other workers."""

    numbers: tuple[int, ...] = ()  # in the model, of each cell's layer
    cell_bytes: tuple[int, ...] = ()
    backend: str = ""
    block_shape: tuple = ()
    block_strides: tuple = ()
    dtype: str = ""
    kind: str = ""  # of the memory

    @classmethod
    def of(cls, geometry: Geometry, backend: str) -> "GroupMeasures":
        """Raises Unsupported."""
        return cls(tuple(layer_numbers(geometry)), tuple(geometry.cell_bytes), backend,
                   geometry.block_shape, geometry.block_strides, geometry.dtype, geometry.kind)

    @property
    def like(self) -> tuple:
        """The values that must be equal in all workers that have layers of the group."""
        return self.backend, self.block_shape, self.block_strides, self.dtype, self.kind


@dataclass(frozen=True)
class GroupLayers:
    """The layers of a group's chunk, and the part of this worker."""

    numbers: list[int]
    part: Part | None  # None: this worker has no layer of the group
    cell_bytes: list[int]
    sample: GroupMeasures  # of one worker that has layers

    @classmethod
    def join(cls, ranks: Ranks, measures: list[GroupMeasures]) -> "GroupLayers":
        """measures: of each worker by index. Raises Unsupported."""
        holders = [m for m in measures if m.numbers]
        if not holders:
            raise Unsupported("a KV cache group without layers")
        if any(m.like != holders[0].like for m in holders):
            raise Unsupported("workers with KV of different shapes")
        cells = [list(m.cell_bytes) for m in measures]
        part = part_of(ranks, cells) if cells[ranks.index] else None
        return cls([n for m in measures for n in m.numbers], part,
                   [size for layers in cells for size in layers], holders[0])


def layer_numbers(geometry: Geometry) -> list[int]:
    """The number of the layer in the model, for each cell of a block. Raises Unsupported if two layers
    have the same number."""
    numbers: dict[int, int] = {}
    for name, first in geometry.layer_of.items():
        number = re.search(r"\.(\d+)\.", name)
        if number is None:
            raise Unsupported(f"a layer without a number: {name}")
        numbers[first] = min(numbers.get(first, 65535), int(number.group(1)))
    out = [numbers[first] for first in range(0, len(geometry.bases), geometry.runs)]
    if sorted(set(out)) != out:
        raise Unsupported("layers with the same number in one KV cache group")
    return [number for number in out for _ in range(geometry.runs)]
