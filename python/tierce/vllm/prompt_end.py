# SPDX-License-Identifier: Apache-2.0
"""The end of a prompt that is handed over: the block behind its last whole block.

The store has whole blocks only. The prefiller of a request stores the block in which its prompt ends as well, as the
last block of a second chain of the request, which begins with the whole blocks. In its identity, the tokens
that the prompt lacks for a whole block are PAD, which is no token of a model, so no other block has this identity. Its
slots behind the prompt have what vLLM's memory had there; vLLM writes each slot before it reads it.

vLLM computes the last token of a prompt in any case. A last block with this token only is stored all the same: the
partial chunk with it has a name that no longer prompt takes over (see engine/store/tails.h)."""

from __future__ import annotations

import hashlib
from array import array

PAD = -1
HASH_BYTES = 32
DOMAIN = b"tierce-prompt-end-1\0"  # no hash of vLLM's covers a message that begins with it


def all_blocks(prompt_tokens: int, block_tokens: int) -> int:
    """The blocks of a prompt, with the last one."""
    return -(-prompt_tokens // block_tokens)


def padded(tokens, block_tokens: int) -> array:
    """Tokens of a chain, filled up to whole blocks."""
    out = array("i", tokens)
    out.extend([PAD] * (-len(out) % block_tokens))
    return out


def end_hash(parent: bytes, tokens, extras) -> bytes:
    """For chains of vLLM's hashes: the hash of the last block. parent: of the block before; empty if there is none.
    extras: as of identity.block_extras, for this block."""
    text = b"".join(extra for _, extra in extras or ())
    lengths = b"".join(len(part).to_bytes(8, "little") for part in (parent, text))
    return hashlib.sha256(DOMAIN + lengths + parent + text + array("i", tokens).tobytes()).digest()
