# SPDX-License-Identifier: Apache-2.0
"""The views of several groups with the interface of one view, in units of the group table.

A hit is a number of units that all groups can restore.
The layers of a load are numbered across the groups: first the layers with attention, in the order of
the model, then the layers with states. A store has only the layers with attention. A layer whose blocks
are several runs of bytes is several layers of its group's chunk, which are moved together.

A pipeline stage may have no layer of a group. It looks up the chunks of such a group, but neither
loads nor stores any.
"""

from __future__ import annotations

from ...lookup_flags import LOOKUP_MEMORY_ONLY, LOOKUP_PIN
from ..geometry import layer_order
from ..tracker import StateSave
from ..transfer import ORIGIN_FAILED, ORIGIN_MEMORY
from .group_chain import GroupChain
from .group_part import GroupPart, Piece
from .group_table import FULL, STATE, GroupTable

ROUNDS_MAX = 64  # rounds of a lookup; each round queries every group that has not agreed yet


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
    """Transfers of the library, of each group that has something to move."""

    def __init__(self, order: list[tuple[int, int]], parts: list[GroupPart]):
        self.order = order  # layer -> the group's place in the table, its first cell there
        self.parts = parts
        self.pieces: dict[int, list[Piece]] = {}  # by the group's place

    def add(self, at: int, piece: Piece) -> None:
        self.pieces.setdefault(at, []).append(piece)

    def layer(self, index: int) -> None:
        at, first = self.order[index]
        for piece in self.pieces.get(at, ()):
            for cell in range(first, first + self.parts[at].geometry.runs):
                piece.handle.layer(cell)

    def take(self) -> list[Piece]:
        pieces, self.pieces = self.pieces, {}
        return [piece for each in pieces.values() for piece in each]

    def abort(self) -> None:
        """Aborts all handles, also if one raises."""
        errors = []
        for piece in self.take():
            try:
                piece.handle.abort()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


class GroupLoad(GroupTransfer):
    def __init__(self, order, parts: list[GroupPart], from_unit: int, to_unit: int, firsts):
        super().__init__(order, parts)
        self.firsts = firsts
        self.from_unit, self.to_unit = from_unit, to_unit

    def end(self) -> bytes:
        """The slowest origin of each unit. If a group is incomplete, all units have failed."""
        units = bytearray(self.to_unit - self.from_unit)
        ended = [(piece, piece.handle.end()) for piece in self.take()]
        if self.is_empty() or any(ORIGIN_FAILED in origins for _, origins in ended):
            return bytes(units)
        for piece, origins in ended:
            for index, origin in enumerate(origins):
                for unit in self.units_of(piece, index):
                    units[unit] = max(units[unit], origin)
        # If all groups have windows or states, no group requires the first units. If the groups of a stage require
        # nothing, the other stages give the verdict.
        slowest = max(units) or ORIGIN_MEMORY
        return bytes(origin or slowest for origin in units)

    def units_of(self, piece: Piece, index: int) -> range:
        """The units of the load that a block of a piece covers, perhaps in part."""
        size = self.parts[0].table.unit_tokens
        first, end = piece.tokens_of(index)
        return range(max(first // size - self.from_unit, 0), min(-(-end // size), self.to_unit) - self.from_unit)

    def is_empty(self) -> bool:
        """Whether no group requires any block, here or in another worker."""
        return not any(first < part.all_blocks(self.to_unit) for first, part in zip(self.firsts, self.parts))


class GroupStore(GroupTransfer):
    def tell_layers(self) -> None:
        for pieces in self.pieces.values():
            for piece in pieces:
                piece.handle.tell_layers()

    def end(self) -> int:
        """The stored units of the first group in the table that had units to store."""
        at = next(iter(self.pieces), None)
        stored = [piece.handle.end() for piece in self.take()]
        return self.parts[at].units(stored[0]) if stored else 0


class GroupPush:
    """A push of the chunks of all groups, over one connection. Chunks of windows and states that were stored before are not
    pushed: the decoder reads them from the offer."""

    def __init__(self, push, parts: list[GroupPart]):
        self.push, self.parts = push, parts
        self.end, self.poll, self.close = push.end, push.poll, push.close

    def held(self, chain: GroupChain, to_unit: int) -> int:
        return sum(part.view.push_held(self.push, chain.of(part.group), part.whole_blocks(to_unit))
                   for part in self.parts if part.group.kind == FULL and part.whole_blocks(to_unit) > 0)

    def watch(self, store: GroupStore) -> None:
        for pieces in store.pieces.values():
            for piece in pieces:
                self.push.watch(piece.handle)

    def watch_state(self, handle) -> None:
        self.push.watch(handle)


class GroupViews:
    def __init__(self, table: GroupTable, parts: list[GroupPart]):
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
        return "\n".join(view.namespace for part in self.parts for view in part.views)

    def chain(self, lora=b"", salt=b"", other=b"") -> GroupChain:
        chains = {}
        for part in self.parts:
            for size, view in zip((part.group.block_tokens, self.table.unit_tokens), part.views):
                if size not in chains:
                    chains[size] = view.chain(lora, salt, other)
        return GroupChain(chains, self.table)

    def computed(self, tokens: int, ns: int) -> None:
        for part in self.parts:
            part.view.computed(tokens, ns)

    def hint(self, session: int, hint: int, returns_ms: int = 0) -> bool:
        return all([view.hint(session, hint, returns_ms) for part in self.parts for view in part.views])

    def unpin(self, session: int) -> None:
        for part in self.parts:
            for view in part.views:
                view.unpin(session)

    # ---- lookup

    def lookup(self, chain: GroupChain, from_unit: int, to_unit: int, flags: int, session: int,
               tag: str = "") -> tuple[int, int, bool]:
        """The largest number of units at which all groups can be restored; how many of them memory
        can restore; whether a query to a remote store is in progress. Each group is looked up with the number that the other groups have found, until all have found the same number. The number only decreases."""
        total, pending, ask = to_unit, False, (flags, session, tag)
        # Full attention first: where it has nothing, the others are not asked. Only its lookups know cost.wait.
        parts = sorted(enumerate(self.parts), key=lambda each: each[1].group.kind != FULL)
        agreed, memory = [-1] * len(self.parts), [to_unit] * len(self.parts)
        for _ in range(ROUNDS_MAX):
            for at, part in parts:
                if total <= from_unit or part.agrees(agreed[at], total):
                    continue
                found = part.lookup(chain, from_unit, total, ask)
                total = found.units
                agreed[at] = total if found.restores else -1
                memory[at], pending = found.memory, pending or found.pending
            if total <= from_unit or all(part.agrees(each, total) for part, each in zip(self.parts, agreed)):
                break
        else:
            total = from_unit
        if total <= from_unit and flags & LOOKUP_PIN:
            self.unpin(session)
        return total, min([total, *memory]), pending

    def prefetch_begin(self, chain: GroupChain, from_unit: int, to_unit: int,
                       session: int, timeout_ms: int = 0, verify: bool = False) -> GroupPrefetch:
        out = GroupPrefetch()
        try:
            for part in self.parts:
                for each in part.prefetches(chain, from_unit, to_unit, session, timeout_ms, verify):
                    out.parts.append(each)
        except BaseException:
            out.end()
            raise
        return out

    # ---- prefill and decode

    def handover_pin(self, chain: GroupChain, to_unit: int, token: str) -> int:
        """Pins for an offer what all groups require at the last point at which memory can restore them. Returns this
        point."""
        point, memory, _ = self.lookup(chain, 0, to_unit, LOOKUP_MEMORY_ONLY, 0)
        for part in self.parts:
            for view, of_view, _, end in part.required(chain, 0, min(point, memory)):
                view.handover_pin(of_view, end, token)
        return min(point, memory)

    def push_begin(self, *to) -> GroupPush:
        return GroupPush(self.parts[0].view.push_begin(*to), self.parts)

    def handover_source(self, *offer):
        return self.parts[0].view.handover_source(*offer)

    def handover_read(self, source, chain: GroupChain, from_unit: int, to_unit: int) -> tuple[int, int, str]:
        """Reads what all groups require where the prefiller can restore them. If a chunk of one group does not come, no
        group has been read: none can continue without the others."""
        tokens, why = source.meet()
        end, size = min(to_unit, tokens // self.table.unit_tokens), 0
        for part in self.parts if end > from_unit else ():
            for view, of_view, first, last in part.required(chain, from_unit, end):
                _, count, why = view.handover_read(source, of_view, first, last)
                size += count
                if why:
                    return from_unit, size, f"group {part.group.text}: {why}"
        if end < to_unit and not why:
            unit = self.table.unit_tokens
            why = (f"the prefiller can restore {end * unit} of {to_unit * unit} tokens: a group's chunk or state is not "
                   "in its memory")
        return max(end, from_unit), size, why

    def handover_note(self, session: int, host: str, port: int, why: str, units: int = 0, *how_much) -> None:
        """The note has tokens, which are blocks of the first group's view."""
        part = self.parts[0]
        part.view.handover_note(session, host, port, why, part.whole_blocks(units), *how_much)

    # ---- transfers

    def load_begin(self, chain: GroupChain, from_unit: int, to_unit: int, tables, firsts,
                   session: int) -> GroupLoad:
        """tables: the block ids of each group; firsts: each group's first block to load."""
        out = GroupLoad(self.order, self.parts, from_unit, to_unit, firsts)
        try:
            for at, part in enumerate(self.parts):
                if part.geometry is None:
                    continue
                for piece in part.loads(chain, firsts[at], to_unit, tables[at], session):
                    out.add(at, piece)
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
                end, size = part.whole_blocks(to_unit), part.group.block_tokens
                if part.group.kind == STATE or part.geometry is None:
                    continue
                first = first_resident(tables[at], end)
                if first == end or (part.group.kind == FULL and first):
                    continue
                handle = part.view.store_begin(chain.of(part.group), end, tables[at][:end], tail,
                                               session, tag, write, first)
                if handle is not None:
                    out.add(at, Piece(handle, first * size, size))
        except BaseException:
            out.abort()
            raise
        return out if out.pieces else None

    def store_state(self, chain: GroupChain, state: StateSave, session: int, tag=None, watch=None) -> int:
        """Stores a block of a group that is valid after so many units: a state, or keys and values up to there. watch: is
        called with the store of the library, before its first layer."""
        part = self.parts[state.group]
        handle = part.store_block(chain, state, session, tag) if part.geometry is not None else None
        if handle is None:
            return 0
        try:
            if watch is not None:
                watch(handle)
            for cell in range(len(part.geometry.bases)):
                handle.layer(cell)
        except BaseException:
            handle.abort()
            raise
        return handle.end()


def first_resident(ids, end: int) -> int:
    """The first block such that vLLM keeps all blocks from it to `end`; `end` if there is none."""
    return next((at + 1 for at in range(min(end, len(ids)) - 1, -1, -1) if ids[at] == 0), 0)
