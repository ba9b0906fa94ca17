# SPDX-License-Identifier: Apache-2.0
"""The blocks of vLLM that a step may write, and the blocks that a store reads.

vLLM may release blocks at any time: when a request has ended, is preempted, or when the blocks are no longer in its
window. It allocates each block again before anything is written to it. So a store in progress is safe until a step or a load begins to which vLLM has allocated one of its blocks. Groups share one pool, so a block number identifies the same memory in all of them."""

from __future__ import annotations

from array import array

from .tracker import ReqMeta, int32


def blocks_to_write(output, sizes: list[int]) -> bytes:
    """The blocks that the step of this SchedulerOutput may write, as int32; the result may contain further blocks.
    sizes: tokens of each group's blocks; 0 if all blocks of a request may be written."""
    out = array("i")
    for new in output.scheduled_new_reqs:
        add_from(out, new.block_ids, new.num_computed_tokens, sizes)
    cached = output.scheduled_cached_reqs
    for at, req_id in enumerate(cached.req_ids):
        tables = cached.new_block_ids[at]
        if tables is None:
            continue
        if req_id in cached.resumed_req_ids:  # all of its blocks
            add_from(out, tables, cached.num_computed_tokens[at], sizes)
        else:
            add_from(out, tables, 0, sizes)
    return out.tobytes()


def add_from(out: array, tables, computed: int, sizes: list[int]) -> None:
    """The blocks of the computed tokens were written in earlier steps."""
    for ids, size in zip(tables, sizes, strict=True):
        out.extend(ids[computed // size:] if size else ids)


def blocks_to_load(request: ReqMeta) -> set[int]:
    load = request.load
    if load is None:
        return set()
    if not request.tables:
        return set(int32(request.block_ids)[load.from_block:load.to_block])
    return {block for ids, first in zip(request.tables, request.firsts)
            if first is not None for block in int32(ids)[first:]}


def blocks_to_read(request: ReqMeta) -> set[int]:
    """The blocks that the store of a request reads; the result may contain further blocks."""
    if request.save is None:
        return set()
    if not request.tables:
        return set(int32(request.block_ids)[:request.save.to_block])
    return {block for ids in request.tables for block in int32(ids) if block}
