# SPDX-License-Identifier: Apache-2.0
"""Hits that end inside blocks of several KV cache groups: when vLLM permits them, where all groups can be restored, the
chains of several block sizes, and a store and a load between both halves of the connector, without a running vLLM."""

import itertools
import math
import random
from array import array
from types import SimpleNamespace as Thing

import pytest

pytest.importorskip("vllm")
from vllm.v1.core.kv_cache_utils import resolve_cache_hit_alignment_tokens  # noqa: E402

from tierce import _core as core  # noqa: E402
from tierce.vllm import identity  # noqa: E402
from tierce.vllm.groups.group_chain import GroupChain  # noqa: E402
from tierce.vllm.groups.group_part import GroupPart  # noqa: E402
from tierce.vllm.groups.group_scheduler import GroupSchedulerHalf  # noqa: E402
from tierce.vllm.groups.group_table import FULL, STATE, WINDOW, Group, GroupTable, table_of  # noqa: E402
from tierce.vllm.groups.group_view import GroupViews  # noqa: E402
from tierce.vllm.tracker import StateSave  # noqa: E402

from test_connector import changed, config, request_of  # noqa: E402, F401
from test_groups import Allocated, Engine, View, cache_of, check_loaded, group_blocks, output_of, specs  # noqa: E402

UNIT = 16


def finer_cache(kinds=(0, 1, 2)):
    """Full attention in blocks of 32 tokens, a window in blocks of 16, and states in blocks of 64."""
    cache = cache_of([specs()[kind] for kind in kinds])
    cache.cache_hit_alignment_tokens = UNIT
    return cache


# ---- the table


@pytest.mark.parametrize("kinds, unit", [((0, 1, 2), 16), ((0, 2), 16), ((0, 1, 2, 3), 64), ((0, 1), 32), ((1, 2), 16)])
def test_the_unit_is_vllms(config, kinds, unit):  # noqa: F811
    """3: chunked attention in blocks of 32 tokens, inside which vLLM's hits cannot end."""
    cache = finer_cache(kinds)
    common = math.lcm(*(group.kv_cache_spec.block_size for group in cache.kv_cache_groups))
    assert config.cache_config.enable_prefix_caching
    cache.cache_hit_alignment_tokens = resolve_cache_hit_alignment_tokens(cache, config, common, UNIT)
    table = table_of(config, cache)
    assert table.unit_tokens == cache.cache_hit_alignment_tokens == unit
    assert table.common_tokens == common and table.hashes_per_unit == unit // UNIT
    assert [table.may_end_inside(g) for g in table.groups] == [g.block_tokens > unit for g in table.groups]


def test_other_groups_keep_hits_at_the_ends_of_blocks(config):  # noqa: F811
    cache = finer_cache()
    cache.cache_hit_alignment_tokens = None
    assert table_of(config, cache).unit_tokens == 64
    cache = finer_cache((0, 1, 2, 2))
    cache.kv_cache_groups[3].enable_kv_transfer = False
    assert table_of(config, cache).unit_tokens == 64


def test_blocks_and_units(config):  # noqa: F811
    table = table_of(config, finer_cache())
    full, window, state = table.groups
    assert [table.whole_blocks(group, 11) for group in table.groups] == [5, 11, 2]
    assert [table.all_blocks(group, 11) for group in table.groups] == [6, 11, 3]
    part = GroupPart(state, None, None, table)
    assert (part.units(2), part.whole_units(11), part.whole_units(8)) == (8, 8, 8)
    assert table.chunk_tokens(256) == 256 and table.save_units(256) == 2  # of the window, whose chunk has 32 tokens


# ---- where all groups can be restored


class Blocks(View):
    """Full attention: the first `count` blocks are found."""

    def __init__(self, count):
        super().__init__([])
        self.count = count

    def lookup(self, chain, from_block, to_block, *_):
        best = min(max(self.count, from_block), to_block)
        return best, best, False


CHAIN = Thing(of=lambda group: None, of_units=None)


def part_of(kind, size, view, points=None):
    """A unit is a token. points: of which those inside blocks are stored."""
    inside = None if points is None else View([at for at in points if at % size])
    return GroupPart(Group(0, kind, size, ()), None, view, GroupTable((), 1, 1), inside)


def restores(part, at, held):
    """Whether a group can be restored after `at` tokens, of which vLLM holds `held`."""
    size = part.group.block_tokens
    if at % size and (part.inside is None or at not in part.inside.at):
        return False
    if part.group.kind == FULL:
        return max(part.view.count, held // size) >= at // size
    return at % size > 0 or at // size in part.view.at


@pytest.mark.parametrize("seed", range(300))
def test_the_last_point_that_restores_all_groups(seed):
    """Compared with a search through all points."""
    dice = random.Random(seed)

    def some(count, end=60):
        return sorted(dice.sample(range(1, end), dice.randrange(count)))

    shared = some(20)
    parts = [part_of(FULL, 6, Blocks(dice.randrange(11)), {*shared, *some(9)}),
             part_of(WINDOW, 1, View({*shared, *some(40)})),
             *(part_of(STATE, size, View(some(6, 60 // size + 1)), {*shared, *some(9)}) for size in (12, 6))]
    views = object.__new__(GroupViews)
    views.parts = dice.sample(parts, dice.randrange(1, 5))
    held, end = 12 * dice.randrange(3), dice.randrange(40, 61)
    right = max((at for at in range(held + 1, end + 1) if all(restores(part, at, held) for part in views.parts)), default=held)
    assert views.lookup(CHAIN, held, end, 1, 7) == (right, right, False)


def test_a_hit_is_in_memory_if_all_parts_are():
    far = View([9], memory=False)
    for view, points, memory in ((Blocks(1), View([9]), 9), (Blocks(1), far, 6)):
        part = part_of(FULL, 6, view)
        part.inside = points
        assert part.lookup(CHAIN, 0, 9, (1, 7, None))[:3] == (9, memory, False)
    state = part_of(STATE, 6, View([1]))
    state.inside = far
    assert state.lookup(CHAIN, 0, 9, (1, 7, None))[:3] == (9, 0, False)
    state.inside = View([], pending=True)
    assert state.lookup(CHAIN, 0, 9, (1, 7, None))[:3] == (6, 6, True)


def test_a_search_for_states_is_limited():
    state = part_of(STATE, 100, View([]), [1, 950])
    assert state.lookup(CHAIN, 0, 1000, (1, 7, None)).units == 950
    state.inside.at = [1]
    assert state.lookup(CHAIN, 0, 1000, (1, 7, None)).units == 0


# ---- chains


IMAGES = [(first, first + length, content)
          for first, length, content in ((5, 20, b"a"), (25, 3, b"b"), (60, 70, b"c"), (250, 5, b"a"))]


@pytest.mark.parametrize("images", [[], IMAGES])
@pytest.mark.parametrize("algo", ["sha256", "vllm-sha256-cbor"])
def test_chains_grow_by_units(algo, images):
    """Each has the hashes of a chain that is made at once, however the tokens are divided."""
    engine, dice = core.Engine.open(None, {"memory.size": "4MiB", "disk.path": ""}), random.Random(7)

    def chain_of(size):
        return engine.view({"weights": "aa", "model": "m", "kv_dtype": "f", "quantization": "", "layout": "l",
                            "layer_count": 1, "cell_bytes": [64], "block_tokens": size, "chunk_blocks": 1,
                            "algo": algo}).chain()

    tokens = array("i", (dice.randrange(1 << 17) for _ in range(20 * UNIT)))
    for _ in range(20):
        chain = GroupChain({size: chain_of(size) for size in (16, 32, 96)}, GroupTable((), UNIT, UNIT))
        assert chain.of_units is chain.chains[16]
        at = 0
        while at < 20:
            end = dice.randrange(at, 20) + 1
            chain.append(memoryview(tokens)[at * UNIT:end * UNIT], identity.block_extras(images, UNIT, at, end))
            at = end
            assert chain.blocks == at
        for size, each in chain.chains.items():
            whole, count = chain_of(size), len(tokens) // size
            whole.append(tokens[:count * size], identity.block_extras(images, size, 0, count))
            assert each.blocks == count and [each.hash(i) for i in range(count)] == [whole.hash(i) for i in range(count)]
    engine.close()


def test_chains_of_hashes_grow_by_units():
    engine, dice = core.Engine.open(None, {"memory.size": "4MiB", "disk.path": ""}), random.Random(7)
    hashes = [bytes([i]) * 32 for i in range(20)]
    for _ in range(20):
        chains = {size: engine.view({
            "weights": "aa", "model": "m", "kv_dtype": "f", "quantization": "", "layout": "l", "layer_count": 1,
            "cell_bytes": [64], "block_tokens": size, "chunk_blocks": 1, "algo": "vllm-sha256-cbor"}).chain()
            for size in (16, 32, 96)}
        chain, at = GroupChain(chains, GroupTable((), UNIT, UNIT)), 0
        while at < 20:
            end = dice.randrange(at, 20) + 1
            chain.append_hashes(memoryview(b"".join(hashes[at:end])))
            at = end
        for size, each in chains.items():
            step = size // UNIT
            assert [each.hash(i) for i in range(each.blocks)] == hashes[step - 1::step]
    engine.close()


# ---- what is saved


def test_a_state_inside_a_block_is_saved_with_the_blocks_of_full_attention():
    half = GroupSchedulerHalf.__new__(GroupSchedulerHalf)
    half.table = GroupTable((Group(0, FULL, 32, ()), Group(1, WINDOW, 16, ()), Group(2, STATE, 64, ()),
                             Group(3, STATE, 64, ()), Group(4, FULL, 128, ())), 16, 16)
    half.place, half.block_tokens, half.can_save = {g.index: g.index for g in half.table.groups}, 16, True
    half.next_write = itertools.count(1).__next__  # all of a step differ, because ranks join the parts of one number
    half.rules, tracker = Thing(save_decode=False, save_tail=True), Thing(skip_save=False, prompt_tokens=200)
    offers = [(2, 50, 176), (3, 51, 176), (2, 52, 64), (3, 53, 40), (2, 54, 208)]
    tables = [[*range(1, 7)], [0] * 12, [0] * 3, [0] * 3, [7, 8]]
    state = Thing(boundary_state_offloads={"r": offers}, get_block_ids=lambda _: tables)
    assert half.states_to_save(tracker, state, "r") == (
        StateSave(2, 50, 11, 1), StateSave(3, 51, 11, 2), StateSave(2, 52, 4, 3), StateSave(4, 7, 4, 4),
        StateSave(0, 6, 11, 5), StateSave(4, 8, 11, 6))
    tables[0][5] = 0  # vLLM no longer has the block
    del tables[4][1:]
    assert [s.group for s in half.states_to_save(tracker, state, "r") if s.to_block == 11] == [2, 3]
    half.rules.save_tail = False
    assert [(s.group, s.to_block) for s in half.states_to_save(tracker, state, "r")] == [(2, 4)]


# ---- both halves, without a running vLLM


TOKENS, POINT = 190, 176  # a prompt, and its last hash that leaves a token
STORED = ([*range(1, 7)], [*range(10, 22)], [0, 0, 30])
# After 176 tokens: half of the last block of full attention, the last 47 tokens, the state.
WANTED = ([*range(51, 57)], [0] * 8 + [7, 8, 9], [0, 0, 32])


@pytest.fixture
def engine(config):  # noqa: F811
    out = Engine(config, finer_cache())
    yield out
    out.close()


def compute(engine, request, tables=STORED, offered=30, more=()):
    """A step that ends at the last hash of the prompt, and one in which vLLM offers the state there."""
    point = (request.num_tokens - 1) // UNIT * UNIT
    engine.scheduler.get_num_new_matched_tokens(request, 0)
    engine.scheduler.update_state_after_alloc(request, Allocated(tables), 0)
    engine.step(output_of(request, tables, 0, point))
    engine.step(output_of(request, tables, point, request.num_tokens - point, [(2, offered, point), *more]))
    engine.scheduler.request_finished_all_groups(request, tables)


def found(engine, request):
    return engine.scheduler.get_num_new_matched_tokens(request, 0)


def prompt(name, same, tokens=TOKENS):
    """A prompt that begins like request_of(...) and parts from it after so many tokens."""
    return request_of(tokens, name, prompt_token_ids=[*range(same), *range(5000, 5000 + tokens - same)])


def test_what_one_request_computed_another_one_loads(engine):
    compute(engine, request_of(TOKENS, "a"))
    before = {name: tensor.clone() for name, tensor in engine.pool.tensors.items()}
    request = prompt("b", POINT)
    assert found(engine, request) == (POINT, True)
    engine.scheduler.update_state_after_alloc(request, Allocated(WANTED), POINT)
    assert engine.scheduler.hit_sources(request, POINT)
    results = engine.received(request)
    assert results.finished_recving == {"b"} and results.failed_recving == set()
    check_loaded(engine, before, STORED, WANTED)
    assert group_blocks(engine) == {"0 full": 6, "1 window 48": 3, "2 state": 1}
    notes = []
    engine.scheduler.half.link.note = notes.append
    engine.scheduler.request_finished_all_groups(request, WANTED)
    del engine.scheduler.half.link.note
    assert (notes[0].unit_tokens, notes[0].found_tokens, notes[0].loaded_tokens) == (UNIT, POINT, POINT)


def test_where_a_hit_ends(engine):
    compute(engine, request_of(TOKENS, "a"), more=[(2, 31, 128)])
    ends = {170: 128, 175: 128, 176: 176, 190: 176, 128: 128, 127: 0}
    for same, end in ends.items():
        assert found(engine, prompt(f"b{same}", same)) == (end, end > 0), same
    # A request of which vLLM holds the first 64 tokens; one that is too short for the last point.
    assert engine.scheduler.get_num_new_matched_tokens(prompt("c", POINT), 64) == (POINT - 64, True)
    assert found(engine, prompt("d", 176, tokens=176)) == (128, True)


@pytest.mark.parametrize("tokens, tables", [(30, ([1], [10, 11], [30])), (17, ([1], [10, 11], [30])),
                                            (60, ([1, 2], [10, 11, 12, 13], [30]))])
def test_prompts_that_are_shorter_than_a_block(engine, tokens, tables):
    compute(engine, request_of(tokens, "a"), tables)
    end = (tokens - 1) // UNIT * UNIT
    request = prompt("b", end, tokens)
    assert found(engine, request) == (end, True)
    wanted = [[ids[0] + 20 + at for at in range(-(-end // size))] for ids, size in zip(tables, (32, 16, 64))]
    engine.scheduler.update_state_after_alloc(request, Allocated(wanted), end)
    assert engine.received(request).failed_recving == set()
    for group, stored, targets in zip(engine.cache.kv_cache_groups, tables, wanted):
        for name, (source, target) in itertools.product(group.layer_names, zip(stored, targets)):
            assert engine.pool.block(engine.cache, name, target) == engine.pool.block(engine.cache, name, source)
    assert found(engine, prompt("c", UNIT, UNIT)) == (0, False)  # a token must be left


def test_engines_with_other_units_share_what_ends_with_blocks(config):  # noqa: F811
    coarse = Engine(config, cache_of(specs()[:3]))
    request = request_of(TOKENS, "a")
    coarse.scheduler.get_num_new_matched_tokens(request, 0)
    coarse.step(output_of(request, STORED, 0, TOKENS, [(2, 31, 128), (2, 30, POINT)]))
    finer = Engine(config, finer_cache())
    texts = [[part.view.namespace for part in each.worker.half.view.parts] for each in (coarse, finer)]
    assert texts[0] == texts[1]
    assert found(finer, request_of(TOKENS, "b")) == (128, True)
    compute(finer, request_of(TOKENS, "c"))
    assert found(finer, request_of(TOKENS, "d")) == (POINT, True)
    assert found(coarse, request_of(TOKENS, "e")) == (128, True)
    finer.close()
    coarse.close()


class Without:
    """A view that stores nothing."""

    def __init__(self, view):
        self.view = view

    def __getattr__(self, name):
        return getattr(self.view, name)

    def store_begin(self, *_):
        return None


@pytest.mark.parametrize("at", [0, 2])
def test_without_one_of_the_parts_there_is_no_hit(engine, at):
    part = engine.worker.half.view.parts[at]
    real, part.inside = part.inside, Without(part.inside)
    compute(engine, request_of(TOKENS, "a"))
    part.inside = real
    assert found(engine, request_of(TOKENS, "b")) == (0, False)
    compute(engine, request_of(TOKENS, "c"))
    assert found(engine, request_of(TOKENS, "d")) == (POINT, True)


def test_without_tails_hits_end_with_blocks(config):  # noqa: F811
    extra = {"memory.size": "4MiB", "disk.path": "", "chunk.tail": "false", "chunk.tokens": "64"}
    engine = Engine(changed(config, "kv_transfer_config", kv_connector_extra_config=extra), finer_cache())
    compute(engine, request_of(TOKENS, "a"), more=[(2, 31, 128)])
    assert found(engine, request_of(TOKENS, "b")) == (128, True)
    assert engine.worker.half.view.parts[2].inside.lookup(
        chain_of(engine).of_units, 0, 11, 0, 0)[0] == 0
    engine.close()


def chain_of(engine):
    chain = engine.worker.half.view.chain()
    chain.append(array("i", range(11 * UNIT)))
    return chain


def test_a_load_that_fails_inside_a_block_fails_by_request(engine):
    """The whole request is computed, and is not looked up again."""
    compute(engine, request_of(TOKENS, "a"))
    request, part = request_of(TOKENS, "b"), engine.worker.half.view.parts[0]
    assert found(engine, request) == (POINT, True)

    class Failing(Without):
        def load_begin(self, *_):
            raise RuntimeError("broken")

    real, part.inside = part.inside, Failing(part.inside)
    engine.scheduler.update_state_after_alloc(request, Allocated(WANTED), POINT)
    assert engine.received(request).failed_recving == {"b"}
    part.inside = real
    assert found(engine, request) == (0, False) and group_blocks(engine) == {}
    assert found(engine, request_of(TOKENS, "c")) == (POINT, True)


def test_what_memory_holds_after_a_late_prefetch(engine):
    compute(engine, request_of(TOKENS, "a"))
    half = engine.worker.half
    assert half.held_by_memory(half.view, chain_of(engine), 0, 11, 0, 7) == 11
    half.view.unpin(7)


def test_nothing_stays_pinned(engine):
    """Pins of a point that is not used end with the load, like those of its request."""
    compute(engine, request_of(TOKENS, "a"), more=[(2, 31, 128)])
    for name, same, end in (("b", TOKENS, POINT), ("c", 170, 128)):
        request = prompt(name, same)
        wanted = WANTED if end == POINT else ([*range(51, 55)], [0] * 5 + [7, 8, 9], [0, 32])
        assert found(engine, request) == (end, True)
        engine.scheduler.update_state_after_alloc(request, Allocated(wanted), end)
        assert engine.received(request).failed_recving == set()
        engine.scheduler.request_finished_all_groups(request, wanted)
    assert engine.worker.half.engine.stats()["sessions_now"] == 0


def test_views_of_points_are_of_their_group(engine):
    """Their text names the layers and the layout of the group, so that no other group's blocks can be found there."""
    full, window, state = engine.worker.half.view.parts
    assert window.inside is None
    for part in (full, state):
        fields, inside = (dict(line.split("=", 1) for line in view.namespace.splitlines()) for view in part.views)
        differ = {name: (fields[name], inside[name]) for name in fields if fields[name] != inside[name]}
        blocks = {"block_tokens": (str(part.group.block_tokens), "16")}
        assert differ == (blocks | {"chunk_blocks": ("8", "1"), "group": ("full", "state")} if part is full else blocks)
