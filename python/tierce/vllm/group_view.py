# SPDX-License-Identifier: Apache-2.0
"""The views of several groups with the interface of one view, in units of the group table.

A unit is a multiple of every group's block; a hit is a number of units that all groups can restore.
The layers of a load are numbered across the groups: first the layers with attention, in the order of
the model, then the layers with states. A store has only the layers with attention. A layer whose blocks
are several runs of bytes is several layers of its group's chunk, which are moved together.

A pipeline stage may have no layer of a group. It looks up the chunks of such a group, but neither
loads nor stores any.
"""

from __future__ import annotations

from dataclasses import dataclass

from .geometry import Geometry, layer_order
from .groups import FULL, STATE, Group, GroupTable
from .link import LOOKUP_PIN
from .tracker import StateSave
from .transfer import HASH_BYTES, ORIGIN_FAILED, ORIGIN_MEMORY

ROUNDS_MAX = 64  # rounds of a lookup; each round queries every group that has not agreed yet


@dataclass
class GroupView:
    """The view of one group. `ratio`: its blocks in a unit."""

    group: Group
    geometry: Geometry | None  # None: this worker has no layer of the group
    view: object
    ratio: int

    @property
    def layer_of(self) -> dict[str, int]:
        return self.geometry.layer_of if self.geometry is not None else {}

    def first_to_load(self, to_unit: int, from_unit: int) -> int:
        return max(self.view.needs(to_unit * self.ratio), from_unit * self.ratio)


class GroupChain:
    """The chains of a request, one for each block size. They grow together."""

    def __init__(self, chains: dict, table: GroupTable):
        self.chains = chains
        self.table = table

    def of(self, group: Group):
        return self.chains[group.block_tokens]

    @property
    def blocks(self) -> int:
        size, chain = next(iter(self.chains.items()))
        return chain.blocks * size // self.table.unit_tokens

    def append(self, tokens, extras=None) -> None:
        """Extras of a unit apply from the unit's first block on."""
        for size, chain in self.chains.items():
            ratio = self.table.unit_tokens // size
            chain.append(tokens, [(unit * ratio, text) for unit, text in extras] if extras else None)

    def append_hashes(self, hashes) -> None:
        """The hash at the end of a block covers all tokens before it."""
        for size, chain in self.chains.items():
            step = size // self.table.hash_tokens * HASH_BYTES
            ends = range(step, len(hashes) + 1, step)
            chain.append_hashes(b"".join(hashes[end - HASH_BYTES:end] for end in ends))


class GroupPrefetch:
    def __init__(self):
        self.parts = []

    def poll(self) -> tuple[bool, int, int, bool]:
        """final, 0, 0, late"""
        answers = [part.poll() for part in self.parts]
        return all(a[0] for a in answers), 0, 0, any(a[3] for a in answers)

    def end(self) -> None:
        for part in self.parts:
            part.end()


class GroupTransfer:
    """Handles of the library, one for each group that has something to move."""

    def __init__(self, order: list[tuple[int, int]], parts: list[GroupView]):
        self.order = order  # layer -> the group's place in the table, its first cell there
        self.parts = parts
        self.handles: dict[int, object] = {}

    def layer(self, index: int) -> None:
        at, first = self.order[index]
        if at in self.handles:
            for cell in range(first, first + self.parts[at].geometry.runs):
                self.handles[at].layer(cell)

    def abort(self) -> None:
        """Aborts all handles, also if one raises."""
        handles, self.handles = self.handles, {}
        errors = []
        for handle in handles.values():
            try:
                handle.abort()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


class GroupLoad(GroupTransfer):
    def __init__(self, order, parts: list[GroupView], from_unit: int, to_unit: int, firsts):
        super().__init__(order, parts)
        self.firsts = firsts
        self.from_unit, self.to_unit = from_unit, to_unit

    def end(self) -> bytes:
        """The slowest origin of each unit. If a group is incomplete, all units have failed."""
        handles, self.handles = self.handles, {}
        units = bytearray(self.to_unit - self.from_unit)
        ended = [(at, handle.end()) for at, handle in handles.items()]
        if self.is_empty() or any(ORIGIN_FAILED in origins for _, origins in ended):
            return bytes(units)
        for at, origins in ended:
            for block, origin in enumerate(origins, self.firsts[at]):
                unit = block // self.parts[at].ratio - self.from_unit
                units[unit] = max(units[unit], origin)
        # If all groups have windows or states, no group requires the first units. If the groups of a stage require
        # nothing, the other stages give the verdict.
        slowest = max(units) or ORIGIN_MEMORY
        return bytes(origin or slowest for origin in units)

    def is_empty(self) -> bool:
        """Whether no group requires any block, here or in another worker."""
        ends = (self.to_unit * part.ratio for part in self.parts)
        return not any(first < end for first, end in zip(self.firsts, ends))


class GroupStore(GroupTransfer):
    def end(self) -> int:
        """The stored units of the first group in the table that had units to store."""
        handles, self.handles = self.handles, {}
        stored = [handle.end() // self.parts[at].ratio for at, handle in handles.items()]
        return stored[0] if stored else 0


class GroupViews:
    def __init__(self, table: GroupTable, parts: list[GroupView]):
        self.table, self.parts = table, parts
        attention = [i for i, part in enumerate(parts) if part.group.kind != STATE]
        states = [i for i, part in enumerate(parts) if part.group.kind == STATE]
        self.saved_order = self.layers_of(attention)
        self.order = self.saved_order + self.layers_of(states)

    def layers_of(self, places) -> list[tuple[int, int]]:
        """The layers of these groups in the order of the model."""
        names = {}
        for at in places:
            for name, cell in self.parts[at].layer_of.items():
                first = min(names.get((at, cell), name), name, key=layer_order)
                names[at, cell] = first
        return sorted(names, key=lambda key: (layer_order(names[key]), key))

    @property
    def namespace(self) -> str:
        return "\n".join(part.view.namespace for part in self.parts)

    def chain(self, lora=b"", salt=b"", other=b"") -> GroupChain:
        chains = {}
        for part in self.parts:
            if part.group.block_tokens not in chains:
                chains[part.group.block_tokens] = part.view.chain(lora, salt, other)
        return GroupChain(chains, self.table)

    def computed(self, tokens: int, ns: int) -> None:
        for part in self.parts:
            part.view.computed(tokens, ns)

    def unpin(self, session: int) -> None:
        for part in self.parts:
            part.view.unpin(session)

    # ---- lookup

    def lookup(self, chain: GroupChain, from_unit: int, to_unit: int, flags: int, session: int,
               tag=None) -> tuple[int, int, bool]:
        """The largest number of units at which all groups can be restored; how many of them memory
        can restore; whether a query to a remote store is in progress. Each group is looked up with the number that the other groups have found, until all have found the same number. The number only decreases."""
        total, pending = to_unit, False
        agreed, memory = [-1] * len(self.parts), [to_unit] * len(self.parts)
        for _ in range(ROUNDS_MAX):
            for at, part in enumerate(self.parts):
                if total <= from_unit or self.agrees(part, agreed[at], total):
                    continue
                blocks, in_memory, waits = part.view.lookup(
                    chain.of(part.group), from_unit * part.ratio, total * part.ratio, flags,
                    session, tag)
                total = max(blocks // part.ratio, from_unit)
                whole = blocks == total * part.ratio or part.group.kind == FULL
                agreed[at] = total if whole else -1
                memory[at], pending = in_memory // part.ratio, pending or waits
            if total <= from_unit or all(map(self.agrees, self.parts, agreed, [total] * len(memory))):
                break
        else:
            total = from_unit
        if total <= from_unit and flags & LOOKUP_PIN:
            self.unpin(session)
        return total, min([total, *memory]), pending

    @staticmethod
    def agrees(part: GroupView, agreed: int, total: int) -> bool:
        """If a group of full attention can be restored at a point, it can be restored before it."""
        return agreed == total or (part.group.kind == FULL and agreed > total)

    def prefetch_begin(self, chain: GroupChain, from_unit: int, to_unit: int,
                       session: int, timeout_ms: int = 0, verify: bool = False) -> GroupPrefetch:
        out = GroupPrefetch()
        try:
            for part in self.parts:
                first, end = part.first_to_load(to_unit, from_unit), to_unit * part.ratio
                if first < end:
                    out.parts.append(part.view.prefetch_begin(
                        chain.of(part.group), first, end, session, timeout_ms, verify))
        except BaseException:
            out.end()
            raise
        return out

    # ---- transfers

    def load_begin(self, chain: GroupChain, from_unit: int, to_unit: int, tables, firsts,
                   session: int) -> GroupLoad:
        """tables: the block ids of each group; firsts: each group's first block to load."""
        out = GroupLoad(self.order, self.parts, from_unit, to_unit, firsts)
        try:
            for at, part in enumerate(self.parts):
                end = to_unit * part.ratio
                if part.geometry is None:
                    continue
                if firsts[at] < end:
                    out.handles[at] = part.view.load_begin(
                        chain.of(part.group), firsts[at], end, tables[at][:end], session, 0)
                else:
                    part.view.unpin(session)
        except BaseException:
            out.abort()
            raise
        return out

    def store_begin(self, chain: GroupChain, to_unit: int, tables, tail: bool, session: int,
                    tag=None, write: int = 0) -> GroupStore | None:
        """Attention only. None if no group has anything to store."""
        out = GroupStore(self.saved_order, self.parts)
        try:
            for at, part in enumerate(self.parts):
                end = to_unit * part.ratio
                if part.group.kind == STATE or part.geometry is None:
                    continue
                first = first_resident(tables[at], end)
                if first == end or (part.group.kind == FULL and first):
                    continue
                handle = part.view.store_begin(chain.of(part.group), end, tables[at][:end], tail,
                                               session, tag, write, first)
                if handle is not None:
                    out.handles[at] = handle
        except BaseException:
            out.abort()
            raise
        return out if out.handles else None

    def store_state(self, chain: GroupChain, state: StateSave, session: int, tag=None) -> int:
        """Stores the state of a group after `units` units, which is in one block."""
        part = self.parts[state.group]
        if part.geometry is None:
            return 0
        end = state.to_block * part.ratio
        ids = memoryview(bytes(4 * (end - 1)) + state.block_id.to_bytes(4, "little")).cast("i")
        handle = part.view.store_begin(chain.of(part.group), end, ids, False, session, tag,
                                       state.write, end - 1)
        if handle is None:
            return 0
        try:
            for cell in range(len(part.geometry.bases)):
                handle.layer(cell)
        except BaseException:
            handle.abort()
            raise
        return handle.end()


def first_resident(ids, end: int) -> int:
    """The first block such that vLLM keeps all blocks from it to `end`; `end` if there is none."""
    return next((at + 1 for at in range(min(end, len(ids)) - 1, -1, -1) if ids[at] == 0), 0)
