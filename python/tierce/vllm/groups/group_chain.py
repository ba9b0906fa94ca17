# SPDX-License-Identifier: Apache-2.0
"""The chains of a request for a model with several KV cache groups."""

from __future__ import annotations

from array import array

from ..identity import joined_extras
from ..transfer import HASH_BYTES
from .group_table import Group, GroupTable


class GroupChain:
    """The chains of a request, one for each block size. They grow together, by units. If blocks are larger than units,
    a chain has the blocks that are whole so far, and `rest` the tokens after them."""

    def __init__(self, chains: dict, table: GroupTable):
        self.chains = chains
        self.table = table
        self.units = 0
        self.rest = {size: array("i") for size in chains}
        self.extras: dict[int, bytes] = {}  # unit -> its text, for the blocks of several units

    def of(self, group: Group):
        return self.chains[group.block_tokens]

    @property
    def of_units(self):
        """The chain whose blocks are units; None if all blocks are smaller."""
        return self.chains.get(self.table.unit_tokens)

    @property
    def blocks(self) -> int:
        """Like a chain of one block size: here, of units."""
        return self.units

    def append(self, tokens, extras=None) -> None:
        """Extras of a unit apply from the unit's first block on."""
        self.extras.update(extras or ())
        for size, chain in self.chains.items():
            ratio, rest = self.table.unit_tokens // size, self.rest[size]
            if ratio:
                chain.append(tokens, [(unit * ratio, text) for unit, text in extras] if extras else None)
                continue
            rest.frombytes(memoryview(tokens).tobytes())
            whole = len(rest) // size * size
            if whole:
                chain.append(rest[:whole], self.block_extras(size, chain.blocks, chain.blocks + whole // size))
                del rest[:whole]
        self.units += len(tokens) // self.table.unit_tokens

    def block_extras(self, size: int, from_block: int, to_block: int):
        """The texts of blocks that are larger than units."""
        ratio, out = size // self.table.unit_tokens, []
        for block in range(from_block, to_block) if self.extras else ():
            units = range(block * ratio, (block + 1) * ratio)
            text = joined_extras([self.extras.get(unit, b"") for unit in units], self.table.unit_tokens)
            if text:
                out.append((block, text))
        return out or None

    def append_hashes(self, hashes) -> None:
        """The hash at the end of a block covers all tokens before it."""
        before = self.units * self.table.hashes_per_unit
        count = len(hashes) // HASH_BYTES
        for size, chain in self.chains.items():
            step = size // self.table.hash_tokens
            ends = range(before // step * step + step, before + count + 1, step)
            at = [(end - before) * HASH_BYTES for end in ends]
            if at:
                chain.append_hashes(b"".join(hashes[end - HASH_BYTES:end] for end in at))
        self.units += count // self.table.hashes_per_unit
