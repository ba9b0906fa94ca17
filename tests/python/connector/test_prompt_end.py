# SPDX-License-Identifier: Apache-2.0
"""The last block of a prompt that is handed over: its identity, and the rules by which it is stored and loaded."""

from types import SimpleNamespace

import pytest

from tierce.vllm import prompt_end
from tierce.vllm.link import IDLE, Facts, Later
from tierce.vllm.tracker import ChainRoot, LoadResult, LoadSpec, RequestTracker, Rules, SaveSpec, int32

BLOCK, CHUNK = 32, 8  # tokens of a block, blocks of a chunk
RULES = Rules(BLOCK, CHUNK)


def tracker(prompt_tokens, **changes):
    t = RequestTracker("r", 1, ChainRoot(), prompt_tokens, hands_end=True, **changes)
    t.set_blocks(range(prompt_tokens // BLOCK + 1))
    return t


def test_a_padded_block_is_no_other_block():
    tokens = list(range(40))
    assert list(prompt_end.padded(tokens, 32)) == tokens + [-1] * 24
    assert list(prompt_end.padded(tokens[:32], 32)) == tokens[:32]
    assert [prompt_end.all_blocks(n, 32) for n in (1, 32, 33, 64)] == [1, 1, 2, 2]


def test_all_parts_of_its_hash_count():
    parts = [(b"", [1, 2], None), (b"p" * 32, [1, 2], None), (b"p" * 32, [1, 3], None), (b"p" * 32, [1], None),
             (b"p" * 32, [1, 2], [(3, b"x")]), (b"p" * 31, [1, 2], [(3, b"p")])]
    assert len({prompt_end.end_hash(*each) for each in parts}) == len(parts)
    assert prompt_end.end_hash(b"", [1, 2], None) == prompt_end.end_hash(b"", [1, 2], [])


@pytest.mark.parametrize("prompt", [33, 40, 64, 65, 1000, 5])
def test_all_but_the_last_token_is_promised(prompt):
    t = tracker(prompt, loads_end=True)
    blocks = -(-prompt // BLOCK)
    assert t.load_limit(RULES, prompt) == blocks
    assert t.plan_load(RULES, 0, blocks, blocks) == prompt - 1
    assert t.load == LoadSpec(0, blocks, blocks, False, ended=True, lacks=blocks * BLOCK - prompt + 1)
    assert t.load.tokens(BLOCK) == prompt - 1
    assert t.allow_load(RULES, prompt - 1, range(blocks)) and t.load.to_block == blocks


def test_no_more_than_was_found_is_promised():
    t = tracker(1000, loads_end=True)  # 31 whole blocks and 8 tokens
    assert t.plan_load(RULES, 2 * BLOCK, 31, 31) == 29 * BLOCK and t.load.lacks == 0
    assert t.plan_load(RULES, 31 * BLOCK, 32, 32) == 7
    assert t.plan_load(RULES, 31 * BLOCK, 31, 31) == 0 and t.load is None
    # vLLM allocates fewer blocks than were promised.
    t.plan_load(RULES, 0, 32, 32)
    assert t.allow_load(RULES, 64, range(32)) and (t.load.to_block, t.load.lacks) == (2, 0)


def test_a_prompt_of_one_token_loads_nothing():
    t = tracker(1, loads_end=True)
    assert t.plan_load(RULES, 0, 1, 1) == 0


def test_the_end_is_stored_by_the_step_that_completes_it():
    t = tracker(1000, offers=True)
    assert t.plan_save(RULES, 0, 512) == SaveSpec(16)
    assert t.plan_save(RULES, 512, 1000) == SaveSpec(32, tail=True, ended=True)
    assert t.plan_save(RULES, 1000, 1001) is None
    # vLLM computes a part again, after a load that failed.
    assert t.plan_save(RULES, 992, 1000) == SaveSpec(32, tail=True, ended=True)


def test_only_prefillers_store_it():
    assert tracker(1000).plan_save(RULES, 0, 1000) == SaveSpec(31, tail=True)
    assert tracker(1000, offers=True).plan_save(Rules(BLOCK, CHUNK, save_tail=False), 0, 1000) == SaveSpec(24)
    assert tracker(992, offers=True).plan_save(RULES, 0, 992) == SaveSpec(31, tail=True)
    t = tracker(1000, offers=True)
    t.set_blocks(range(31))  # the last block is not known
    assert t.plan_save(RULES, 0, 1000) == SaveSpec(31, tail=True)


def test_a_decoder_stores_no_tail_that_it_loaded():
    t = tracker(1000, loads_end=True)
    t.plan_load(RULES, 0, 32, 32)
    assert t.found_blocks == 31 and t.plan_save(RULES, 999, 1000) is None


def test_reports_count_its_tokens():
    result = LoadResult()
    for name in ("memory", "memory", "disk"):
        result.add(name)
    result.lacks = 25
    assert [result.tokens(name, BLOCK) for name in ("memory", "disk", "remote", "failed")] == [64, 7, 0, 0]
    t = tracker(103, loads_end=True)
    t.plan_load(RULES, 0, 4, 4)
    t.note_lookup(RULES, 0, 4, 4, 0)
    t.loaded = LoadResult(memory=4, last="memory", lacks=26)
    noted = t.note_end(RULES)
    assert (noted.tokens, noted.looked_tokens, noted.found_tokens, noted.loaded_tokens) == (103, 102, 102, 102)


@pytest.mark.parametrize("prompt", [20, 64, 70])
def test_the_second_chain_of_a_request(prompt):
    scheduler = pytest.importorskip("tierce.vllm.scheduler", exc_type=ImportError)
    half = scheduler.SchedulerHalf.__new__(scheduler.SchedulerHalf)
    half.block_tokens = BLOCK
    hashes = [bytes([i]) * 32 for i in range(prompt // BLOCK)]
    request = SimpleNamespace(num_prompt_tokens=prompt, all_token_ids=[*range(prompt), 7, 7], block_hashes=hashes,
                              mm_features=[])
    for hashed in (False, True):
        half.facts = Facts(hashed=hashed)
        t = tracker(prompt)
        part = half.end_part(request, t)
        assert (part.from_block, part.ended, part.hashed) == (0, True, hashed)
        if hashed:
            assert part.data.startswith(b"".join(hashes)) and len(part.data) == 32 * -(-prompt // BLOCK)
        else:
            assert list(int32(part.data)) == [*range(prompt)] + [prompt_end.PAD] * (-prompt % BLOCK)
        t.note_sent(ended=True, blocks=0)
        part = half.end_part(request, t)
        assert (part.from_block, part.data, part.ended) == (-(-prompt // BLOCK), b"", True)


class Link:
    """Notes the flags of lookups."""

    def __init__(self):
        self.flags = []

    def pull(self, *_):
        pass

    def lookup(self, session, part, from_block, to_block, flags):
        self.flags.append(flags)
        raise Later


def test_a_lookup_waits_for_a_read_only_if_nothing_runs():
    scheduler = pytest.importorskip("tierce.vllm.scheduler", exc_type=ImportError)
    half = scheduler.SchedulerHalf.__new__(scheduler.SchedulerHalf)
    half.facts, half.rules, half.block_tokens, half.memory_only = Facts(), RULES, BLOCK, False
    half.link, half.ignored, other = Link(), {}, tracker(40)
    asking = tracker(40, source={"tokens": 40})
    half.live = {"other": (None, other), "asking": (None, asking)}
    request = SimpleNamespace(num_prompt_tokens=40, num_tokens=40, all_token_ids=list(range(40)), mm_features=[])

    def flags():
        with pytest.raises(Later):
            half.lookup(request, asking, 0, 2)
        return half.link.flags[-1] & IDLE

    assert flags() == 0  # it reads no offer
    half.pull(request, asking, 0)
    assert flags() == IDLE
    other.runs = True
    assert flags() == 0
    other.runs, half.ignored = False, {"r": None}
    assert flags() == 0
