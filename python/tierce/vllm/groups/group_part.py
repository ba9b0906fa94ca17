# SPDX-License-Identifier: Apache-2.0
"""The part of one KV cache group in the views of several: where it can be restored, and its transfers.

If hits may end inside the group's blocks, it has a second view, `inside`. The token blocks of this view are units, and it has
a chunk for each stored point that is not the end of a block: the whole block of vLLM in which the point lies, valid up to
this point only. For a recurrent layer, this is the state there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..geometry import Geometry
from .group_table import FULL, STATE, Group, GroupTable

SEARCHED_MAX = 256  # points inside blocks that a search for a state tries


class Found(NamedTuple):
    """The answer of a lookup, in units."""

    units: int
    memory: int  # units that memory can restore
    pending: bool  # a query to a remote store is in progress
    restores: bool = True  # the group can be restored there


class Piece(NamedTuple):
    """A transfer of some blocks of a group. A block of the transfer holds the KV of `tokens` tokens."""

    handle: object
    first_token: int
    tokens: int

    def tokens_of(self, index: int) -> tuple[int, int]:
        """Of a block of the transfer, counted from 0."""
        first = self.first_token + index * self.tokens
        return first, first + self.tokens


def only(block_id: int, end: int) -> memoryview:
    """The blocks of a transfer of the last of `end` blocks."""
    return memoryview(bytes(4 * (end - 1)) + block_id.to_bytes(4, "little")).cast("i")


@dataclass
class GroupPart:
    """`geometry` None: this worker has no layer of the group. `inside` None: hits do not end inside blocks."""

    group: Group
    geometry: Geometry | None
    view: object
    table: GroupTable
    inside: object = None

    @property
    def layer_of(self) -> dict[str, int]:
        return self.geometry.layer_of if self.geometry is not None else {}

    @property
    def views(self) -> list:
        return [self.view] if self.inside is None else [self.view, self.inside]

    def whole_blocks(self, units: int) -> int:
        return self.table.whole_blocks(self.group, units)

    def all_blocks(self, units: int) -> int:
        return self.table.all_blocks(self.group, units)

    def units(self, blocks: int) -> int:
        """Whole units in so many blocks."""
        return blocks * self.group.block_tokens // self.table.unit_tokens

    def whole_units(self, units: int) -> int:
        """The last end of a block that is not after so many units."""
        return self.units(self.whole_blocks(units))

    # ---- lookup

    def agrees(self, agreed: int, total: int) -> bool:
        """If a group of full attention can be restored at a point, it can be restored at each end of a block before."""
        return agreed == total or (self.group.kind == FULL and agreed > total
                                   and (self.inside is None or self.whole_units(total) == total))

    def lookup(self, chain, from_unit: int, to_unit: int, ask: tuple) -> Found:
        """The largest number of units up to to_unit at which the group can be restored; from_unit if there is none. ask:
        flags, session and tag."""
        if self.inside is None:
            return self.lookup_blocks(chain, from_unit, to_unit, ask)
        point = self.lookup_points(chain, max(self.whole_units(to_unit), from_unit), to_unit, ask)
        if self.group.kind == FULL:
            return self.lookup_full(chain, from_unit, to_unit, ask, point)
        return self.lookup_states(chain, from_unit, to_unit, ask, point)

    def lookup_blocks(self, chain, from_unit: int, to_unit: int, ask: tuple) -> Found:
        """At the ends of blocks."""
        blocks, memory, pending = self.view.lookup(
            chain.of(self.group), self.whole_blocks(from_unit), self.whole_blocks(to_unit), *ask)
        units = max(self.units(blocks), from_unit)
        return Found(units, self.units(memory), pending,
                     self.whole_blocks(units) == blocks or self.group.kind == FULL)

    def lookup_points(self, chain, from_unit: int, to_unit: int, ask: tuple) -> Found:
        """At points inside blocks. `restores` is false if there is none after from_unit."""
        if from_unit >= to_unit:
            return Found(from_unit, from_unit, False, False)
        units, memory, pending = self.inside.lookup(chain.of_units, from_unit, to_unit, *ask)
        return Found(units, memory, pending, units > from_unit)

    def lookup_full(self, chain, from_unit: int, to_unit: int, ask: tuple, point: Found) -> Found:
        """Full attention also needs the blocks before the point. `point` is in the block in which to_unit lies. If a
        block before is missing, a point in this block may do."""
        blocks = self.lookup_blocks(chain, from_unit, to_unit, ask)
        if blocks.units < self.whole_units(to_unit):
            end = min(blocks.units + self.units(1) - 1, to_unit)
            point = self.lookup_points(chain, blocks.units, end, ask)
        pending = blocks.pending or point.pending
        if not point.restores:
            return blocks._replace(pending=pending)
        in_memory = blocks.memory == blocks.units and point.memory == point.units
        return Found(point.units, point.units if in_memory else blocks.memory, pending)

    def lookup_states(self, chain, from_unit: int, to_unit: int, ask: tuple, point: Found) -> Found:
        """`point` is in the block in which to_unit lies. Else the last state at the end of a block, or a later one inside a
        block before it."""
        pending, end, best = point.pending, self.whole_units(to_unit), point
        if not point.restores:
            best = self.lookup_blocks(chain, from_unit, to_unit, ask)
            pending |= best.pending
            if best.units < end:
                point = self.lookup_points(chain, max(best.units, end - SEARCHED_MAX), end - 1, ask)
                pending |= point.pending
                best = point if point.restores else best
        return Found(best.units, best.memory if best.memory == best.units else from_unit, pending)

    # ---- transfers

    def required(self, chain, from_unit: int, to_unit: int):
        """The ranges that must be in memory before [from_unit, to_unit) is loaded: (view, chain, first block, end)."""
        whole, every = self.whole_blocks(to_unit), self.all_blocks(to_unit)
        first = max(self.view.needs(whole), self.whole_blocks(from_unit))
        if first < whole and not (whole < every and self.group.kind == STATE):
            yield self.view, chain.of(self.group), first, whole
        if whole < every:
            yield self.inside, chain.of_units, to_unit - 1, to_unit

    def prefetches(self, chain, from_unit: int, to_unit: int, *how):
        """Begins them. how: session, timeout_ms, verify."""
        for view, of_view, first, end in self.required(chain, from_unit, to_unit):
            yield view.prefetch_begin(of_view, first, end, *how)

    def loads(self, chain, first: int, to_unit: int, ids, session: int):
        """Begins the loads of blocks [first, all_blocks(to_unit)), which are those of `ids`."""
        whole, size = self.whole_blocks(to_unit), self.group.block_tokens
        if first < whole:
            yield Piece(self.view.load_begin(chain.of(self.group), first, whole, ids[:whole], session, 0), first * size, size)
        else:
            self.view.unpin(session)
        if max(first, whole) < self.all_blocks(to_unit):
            yield Piece(self.inside.load_begin(chain.of_units, to_unit - 1, to_unit, only(ids[whole], to_unit), session, 0),
                        whole * size, size)
        elif self.inside is not None:
            self.inside.unpin(session)

    def store_block(self, chain, state, session: int, tag):
        """Begins to store a block that is valid after state.to_block units. None if there is nothing to store."""
        view, of_view, end = self.inside, chain.of_units, state.to_block
        if self.whole_units(end) == end:
            view, of_view, end = self.view, chain.of(self.group), self.whole_blocks(end)
        return view.store_begin(of_view, end, only(state.block_id, end), False, session, tag, state.write, end - 1)
