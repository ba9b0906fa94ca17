# SPDX-License-Identifier: Apache-2.0
"""The scheduler half for models with windows, states or several KV cache groups.

It counts in units of the group table. vLLM's block ids of each group are read again in each step,
because earlier entries change: a block before the window becomes block 0, and states move.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

from ..scheduler import SchedulerHalf
from ..stats import group_counter
from ..tracker import ReqMeta, SaveSpec, StateSave
from .group_table import FULL, STATE, GroupTable

NOT_RESIDENT = 0  # vLLM's null block


def first_to_load(blocks, to_block: int) -> int | None:
    """The first of a group's blocks that vLLM expects to be loaded; `to_block` if there is none. A
    block with a hash is already computed. None if the expected blocks are not the last blocks before to_block; the
    known versions of vLLM never allocate in this way."""
    wanted = [not block.is_null and block.block_hash is None for block in blocks[:to_block]]
    first = wanted.index(True) if True in wanted else len(wanted)
    return first if len(wanted) == to_block and all(wanted[first:]) else None


class GroupSchedulerHalf(SchedulerHalf):
    hands_ends = False  # an offer ends where all groups can be restored

    def __init__(self, vllm_config, find_link, table: GroupTable):
        super().__init__(vllm_config, find_link)
        self.table = table
        self.block_tokens = table.unit_tokens
        self.hashes_per_block = table.hashes_per_unit
        self.place = {group.index: at for at, group in enumerate(table.groups)}
        self.loads: dict[str, dict] = {}  # request -> tables and firsts of its load
        self.loading: dict[str, list[int]] = {}  # request -> blocks of each group in its load

    # ---- loads

    def before_end(self, request, tracker, local: int, found: int,
                   in_memory: int) -> tuple[int, int]:
        """Windows are restored at another point, so they are looked up there."""
        return self.lookup(request, tracker, local, found - 1)

    def allocated(self, request, blocks, tokens: int) -> None:
        super().allocated(request, blocks, tokens)
        known = self.live.get(request.request_id)
        load = known[1].load if known is not None else None
        if load is None or not load.allowed or tokens <= 0:
            return
        ends = [self.table.all_blocks(g, load.to_block) for g in self.table.groups]
        lists = [blocks.blocks[g.index] for g in self.table.groups]
        firsts = tuple(map(first_to_load, lists, ends))
        # After an unexpected allocation, the load fails.
        load.allowed = None not in firsts
        if not load.allowed:
            self.warn_once("vLLM allocated unexpected blocks for a load; such loads fail, and vLLM computes "
                           "these requests")
        ids = [array("i", (block.block_id for block in each)).tobytes() for each in lists]
        self.loads[request.request_id] = {"tables": tuple(ids), "firsts": firsts}

    def add_async_load(self, out, req_id: str) -> None:
        """In the first step after the allocation."""
        before, found = len(out), self.loads.pop(req_id, None)
        super().add_async_load(out, req_id)
        if len(out) > before and found is not None:
            out[-1] = replace(out[-1], **found)
            if out[-1].load.allowed:
                self.loading[req_id] = self.blocks_of(out[-1])

    def blocks_of(self, request: ReqMeta) -> list[int]:
        """The blocks of each group that a load writes."""
        ends = [self.table.all_blocks(g, request.load.to_block) for g in self.table.groups]
        return [end - first for first, end in zip(request.firsts, ends)]

    def stepped(self, results, tainted: bool) -> None:
        super().stepped(results, tainted)
        for req_id, result in results.items():
            blocks = self.loading.pop(req_id, [])
            for group, count in zip(self.table.groups, blocks if not result.failed else []):
                self.count(group_counter(group.index, group.text), count)

    def fail_step(self) -> None:
        super().fail_step()
        self.loads.clear()

    def finished(self, request) -> dict | None:
        self.loads.pop(request.request_id, None)
        return super().finished(request)

    # ---- saves

    def step(self, output) -> list[ReqMeta]:
        self.end_unreported(output.finished_req_ids)
        self.note_ended()
        if self.facts is None or self.facts.off is not None:
            return []
        self.see_sessions()
        out = self.waiting_loads()
        cached, state = output.scheduled_cached_reqs, output.kv_connector_block_state
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens))
        computed.update((new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs)
        offers = state.boundary_state_offloads
        # A request whose load has ended may offer the loaded state without being scheduled.
        for req_id in {**computed, **offers}:
            known = self.live.get(req_id)
            if known is not None:
                self.add_saves(out, *known, state, computed.get(req_id),
                               output.num_scheduled_tokens.get(req_id, 0))
        return out

    def add_saves(self, out, request, tracker, state, computed: int | None,
                  scheduled: int) -> None:
        save, size = None, self.block_tokens
        if computed is not None:
            end = min(computed + scheduled, request.num_tokens)
            save = tracker.plan_save(self.rules, computed, end, self.rules.whole_blocks(end))
        states = self.states_to_save(tracker, state, request.request_id)
        if save is None and not states:
            return
        end = max([s.to_block for s in states] + ([save.to_block] if save is not None else []))
        part = self.step_part(request, tracker, None, SaveSpec(end))
        computed = computed or 0
        out.append(ReqMeta(
            request.request_id, tracker.session, part, b"", computed // size,
            -(-(computed + scheduled) // size), None, save, tracker.tag,
            self.next_write() if save is not None else 0, tables=self.tables(state, request.request_id) if save is not None else (),
            states=states, blocks=self.event_blocks(request, tracker),
            push=self.place_of_push(tracker) if save is not None else None, hint=tracker.hint))

    def event_sizes(self) -> list[tuple[int, int]]:
        sizes = {group.block_tokens for group in self.table.groups}
        return [(size, size // self.table.hash_tokens) for size in sorted(sizes)]

    def tables(self, state, req_id: str) -> tuple[bytes, ...]:
        ids = state.get_block_ids(req_id)
        return tuple(array("i", ids[group.index]).tobytes() for group in self.table.groups)

    def states_to_save(self, tracker, state, req_id: str) -> tuple[StateSave, ...]:
        """The offered states whose tokens may be saved. With a state inside a block, full attention requires its block
        in which the same point lies."""
        if tracker.skip_save or not self.can_save:
            return ()
        out, points = [], set()
        for index, block_id, tokens in state.boundary_state_offloads.get(req_id, ()):
            at = self.place.get(index)
            wanted = self.rules.save_decode or tokens <= tracker.prompt_tokens
            if (at is not None and self.table.groups[at].kind == STATE and wanted
                    and tokens > 0 and tokens % self.block_tokens == 0
                    and block_id != NOT_RESIDENT and self.may_save(self.table.groups[at], tokens)):
                out.append(self.block_save(at, block_id, tokens))
                points.add(tokens)
        for tokens in sorted(points):
            out += self.full_blocks(state.get_block_ids(req_id), tokens)
        return tuple(out)

    def may_save(self, group, tokens: int) -> bool:
        """A point inside a block is the end of a tail."""
        return tokens % group.block_tokens == 0 or self.rules.save_tail

    def full_blocks(self, tables, tokens: int):
        """The blocks of full attention inside which the point lies. All tokens before it are computed after this step."""
        for at, group in enumerate(self.table.groups):
            if group.kind != FULL or tokens % group.block_tokens == 0 or not self.may_save(group, tokens):
                continue
            ids, block = tables[group.index], tokens // group.block_tokens
            if block < len(ids) and ids[block] != NOT_RESIDENT:
                yield self.block_save(at, ids[block], tokens)

    def block_save(self, at: int, block_id: int, tokens: int) -> StateSave:
        return StateSave(at, block_id, tokens // self.block_tokens, self.next_write())
