# SPDX-License-Identifier: Apache-2.0
"""The rules of the vLLM connector's scheduler half, without vLLM."""

from array import array

import pytest

from tierce.vllm.tracker import (ChainRoot, LoadResult, LoadSpec, ReqMeta, RequestTracker, Rules, SaveSpec,
                                 Taint)

BLOCK, CHUNK = 32, 8  # tokens of a block, blocks of a chunk
CHUNK_TOKENS = BLOCK * CHUNK


def rules(**changes):
    return Rules(**{"block_tokens": BLOCK, "chunk_blocks": CHUNK, **changes})


def tracker(prompt_tokens, **changes):
    t = RequestTracker("r", 1, ChainRoot(), prompt_tokens, **changes)
    t.set_blocks(range(1, prompt_tokens // BLOCK + 2))
    return t


@pytest.mark.parametrize("tokens, blocks", [(1, 0), (32, 0), (33, 1), (64, 1), (65, 2)])
def test_the_last_token_is_always_computed(tokens, blocks):
    assert tracker(tokens).load_limit(rules(), tokens) == blocks


def test_a_hit_beyond_what_vllm_holds_is_promised():
    t = tracker(1000)
    assert t.plan_load(rules(), 3 * BLOCK, found=24, in_memory=16) == 21 * BLOCK
    assert t.load == LoadSpec(3, 24, 16, False)
    assert t.load_sources() == (13, 8)


@pytest.mark.parametrize("found", [0, 3, 5])
def test_no_hit_beyond_what_vllm_holds_is_no_load(found):
    t = tracker(1000)
    assert t.plan_load(rules(), 5 * BLOCK, found, found) == 0
    assert t.load is None


def test_where_failed_loads_end_requests_only_memory_is_promised():
    t = tracker(1000)
    assert t.plan_load(rules(memory_only=True), 0, found=24, in_memory=8) == 8 * BLOCK


def test_small_hits_can_be_left_alone():
    t = tracker(1000)
    assert t.plan_load(rules(load_min_tokens=300), 0, found=8, in_memory=8) == 0
    assert t.plan_load(rules(load_min_tokens=256), 0, found=8, in_memory=8) == 256


def test_vllm_may_take_less_than_was_promised():
    t = tracker(1000)
    t.plan_load(rules(), 0, found=24, in_memory=24)
    assert t.allow_load(rules(), 8 * BLOCK, range(100, 131))
    assert (t.load.from_block, t.load.to_block, t.load.memory_blocks) == (0, 8, 8)
    assert t.block_ids[0] == 100


def test_a_load_that_vllm_does_not_want_is_not_allowed():
    t = tracker(1000)
    t.plan_load(rules(), 0, found=24, in_memory=24)
    assert not t.allow_load(rules(), 0, [])
    assert not t.load.allowed


def test_a_hit_that_ends_inside_a_chunk_saves_the_chunk_whole():
    t = tracker(1000)
    assert t.plan_load(rules(), 0, found=18, in_memory=18) == 18 * BLOCK
    assert t.allow_load(rules(), 18 * BLOCK, range(31))
    assert t.load == LoadSpec(0, 18, 18, False, True)
    assert t.plan_save(rules(), 18 * BLOCK, 1000) == SaveSpec(31, tail=True)
    # After the blocks that vLLM holds itself, which may end inside the same chunk.
    t = tracker(1000)
    assert t.plan_load(rules(), 17 * BLOCK + 5, found=18, in_memory=18) == BLOCK
    assert t.load == LoadSpec(17, 18, 18, False)


def test_without_tails_only_whole_chunks_are_saved():
    t = tracker(1000)
    assert t.plan_save(rules(save_tail=False), 0, 1000) == SaveSpec(24)
    assert t.plan_save(rules(save_tail=False), 1000, 1001) is None
    assert tracker(255).plan_save(rules(save_tail=False), 0, 255) is None


def test_the_tail_is_saved_once():
    t = tracker(1000)
    assert t.plan_save(rules(), 0, 600) == SaveSpec(16)
    assert t.plan_save(rules(), 600, 1000) == SaveSpec(31, tail=True)
    assert t.plan_save(rules(), 1000, 1001) is None
    assert tracker(255).plan_save(rules(), 0, 255) == SaveSpec(7, tail=True)
    assert tracker(256).plan_save(rules(), 0, 256) == SaveSpec(8)


def test_a_tail_whose_blocks_the_store_holds_is_not_saved():
    # The tail is stored as a tail or as the beginning of a longer chunk; the lookup does not report which.
    t = tracker(1000)
    t.plan_load(rules(), 0, found=31, in_memory=31)
    assert t.plan_save(rules(), 31 * BLOCK, 1000) is None
    # vLLM holds the earlier blocks: they are offered, and the tail is not.
    t = tracker(1000)
    t.plan_load(rules(), 16 * BLOCK, found=31, in_memory=31)
    assert t.plan_save(rules(), 31 * BLOCK, 1000) == SaveSpec(24)
    # It could not be loaded.
    t = tracker(1000)
    t.plan_load(rules(), 0, found=31, in_memory=31)
    t.count_loaded(LoadResult(memory=24, failed=7))
    assert t.skip_load
    assert t.plan_save(rules(), 24 * BLOCK, 1000) == SaveSpec(31, tail=True)


def test_chunked_prefill_saves_each_chunk_in_the_step_that_completes_it():
    t = tracker(1000)
    saves = [t.plan_save(rules(), start, start + 200) for start in range(0, 1000, 200)]
    assert saves == [None, SaveSpec(8), SaveSpec(16), SaveSpec(24), SaveSpec(31, tail=True)]


def test_decode_tokens_are_saved_only_if_asked_for():
    plain, wanted = tracker(500), tracker(500)
    for t in (plain, wanted):
        t.set_blocks(range(1, 20))
    plain.plan_save(rules(), 0, 500)
    wanted.plan_save(rules(save_decode=True), 0, 500)
    assert plain.plan_save(rules(), 511, 512) is None
    assert wanted.plan_save(rules(save_decode=True), 511, 512) == SaveSpec(16)


def test_what_the_store_holds_is_not_saved_again():
    t = tracker(1000)
    t.plan_load(rules(), 0, found=20, in_memory=20)
    assert t.plan_save(rules(), 640, 760) is None
    assert t.plan_save(rules(), 760, 1000) == SaveSpec(31, tail=True)


def test_what_vllm_holds_itself_is_offered_to_the_store():
    # The lookup does not request the blocks that vLLM holds, so the store may lack them.
    t = tracker(1000)
    t.plan_load(rules(), 16 * BLOCK, found=24, in_memory=24)
    assert t.plan_save(rules(), 24 * BLOCK, 1000) == SaveSpec(31, tail=True)


@pytest.mark.parametrize("why", [dict(skip_save=True), dict()])
def test_saving_can_be_forbidden(why):
    t = tracker(1000, **why)
    assert t.plan_save(rules(can_save=bool(why)), 0, 1000) is None


def test_groups_with_chunks_of_two_sizes_save_the_smaller_ones_and_the_tail_once():
    several = rules(chunk_blocks=2, longest_chunk=8)
    t = tracker(850)  # 26 blocks: whole chunks of the smaller size, a tail of the longer one
    assert t.plan_save(several, 0, 500, held_blocks=15) == SaveSpec(14)
    assert t.plan_save(several, 500, 840, held_blocks=26) == SaveSpec(26)
    assert t.plan_save(several, 840, 850, held_blocks=26) == SaveSpec(26, tail=True)
    assert t.plan_save(several, 850, 851, held_blocks=26) is None
    t = tracker(768)  # whole in both
    assert t.plan_save(several, 0, 768, held_blocks=24) == SaveSpec(24)


def test_after_a_preemption_saving_begins_again():
    t = tracker(1000)
    t.plan_save(rules(), 0, 1000)
    t.set_blocks(range(50, 82))
    assert t.plan_save(rules(), 0, 512) == SaveSpec(16)
    assert t.block_ids[0] == 50


def test_after_a_failed_load_saving_goes_back_to_the_hole():
    t = tracker(1000)
    t.plan_load(rules(), 0, found=24, in_memory=24)
    assert t.plan_save(rules(save_tail=False), 24 * BLOCK, 1000) is None
    assert t.plan_save(rules(save_tail=False), 10 * BLOCK, 1000) == SaveSpec(24)
    assert t.plan_save(rules(), 10 * BLOCK, 1000) == SaveSpec(31, tail=True)


def test_blocks_are_never_saved_beyond_their_allocation():
    t = tracker(1000)
    t.set_blocks(range(1, 18))
    assert t.plan_save(rules(save_tail=False), 0, 1000) == SaveSpec(16)
    t = tracker(1000)
    t.set_blocks(range(1, 18))
    assert t.plan_save(rules(), 0, 1000) == SaveSpec(17, tail=True)


# ---- blocks that hold no valid KV


def step(name, ids, start, end):
    return ReqMeta(name, 1, None, array("i", ids).tobytes(), start, end)


def test_without_a_failure_everything_is_valid():
    assert Taint().settle([step("a", [1, 2], 0, 2)]) == set()


def test_a_failed_load_spoils_what_was_computed_on_it():
    taint = Taint()
    taint.load_failed([2])
    assert taint.settle([step("a", [1, 2, 3, 4], 2, 4), step("b", [1, 9], 1, 2)]) == {"a"}
    assert taint.blocks == {2, 3, 4}


def test_spoiled_blocks_spoil_the_requests_that_share_them_in_any_order():
    taint = Taint()
    taint.load_failed([2])
    both = [step("b", [1, 2, 3, 7], 3, 4), step("a", [1, 2, 3], 2, 3)]
    assert taint.settle(both) == {"a", "b"}
    assert taint.blocks == {2, 3, 7}


def test_computing_again_heals():
    taint = Taint()
    taint.load_failed([2])
    taint.settle([step("a", [1, 2, 3], 2, 3)])
    assert taint.settle([step("a", [1, 2, 3], 1, 3)]) == set()
    assert not taint


def test_loading_again_heals():
    taint = Taint()
    taint.load_failed([2, 3])
    taint.loaded([2, 3])
    assert not taint
