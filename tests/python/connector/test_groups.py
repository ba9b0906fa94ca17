# SPDX-License-Identifier: Apache-2.0
"""Several KV cache groups: their table, where all of them can be restored, and a store and a load between both
halves of the connector with groups of every kind and of different block sizes, without a running vLLM."""

import os
import signal
import time
from array import array
from types import SimpleNamespace as Thing

import pytest

pytest.importorskip("vllm")
import torch  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402
from vllm.v1 import kv_cache_interface as kv  # noqa: E402

from tierce import _core as core  # noqa: E402
from tierce.vllm import connector as ours  # noqa: E402
from tierce.vllm.groups.group_chain import GroupChain  # noqa: E402
from tierce.vllm.groups.group_part import GroupPart, Piece  # noqa: E402
from tierce.vllm.groups.group_scheduler import GroupSchedulerHalf, first_to_load  # noqa: E402
from tierce.vllm.groups.group_table import CHUNKED, FULL, STATE, WINDOW, Group, GroupTable, table_of  # noqa: E402
from tierce.vllm.groups.group_view import GroupLoad, GroupStore, GroupViews, first_resident  # noqa: E402
from tierce.vllm.identity import ConfigError  # noqa: E402
from tierce.vllm.stats import GROUP_BLOCKS  # noqa: E402
from tierce.vllm.tracker import LoadSpec, ReqMeta, StateSave  # noqa: E402

from test_connector import changed, config, request_of  # noqa: E402, F401

HEADS = dict(num_kv_heads=2, head_size=16, dtype=torch.float32)


def specs():
    return [kv.FullAttentionSpec(block_size=32, **HEADS),
            kv.SlidingWindowSpec(block_size=16, sliding_window=48, **HEADS),
            kv.MambaSpec(block_size=64, shapes=((4, 6), (3,)), dtypes=(torch.bfloat16, torch.float32),
                         page_size_padded=128, mamba_cache_mode="align"),
            kv.ChunkedLocalAttentionSpec(block_size=32, attention_chunk_size=64, **HEADS)]


def cache_of(kinds, blocks=64):
    """Two layers for each group, in turn."""
    names = [f"model.layers.{i}.attn" for i in range(2 * len(kinds))]
    made = [kv.KVCacheGroupSpec(names[at::len(kinds)], spec) for at, spec in enumerate(kinds)]
    return kv.KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=made, hash_block_size=16)


# ---- the table


def test_the_table(config):  # noqa: F811
    table = table_of(config, cache_of(specs()))
    assert [(g.index, g.kind, g.block_tokens, g.window) for g in table.groups] == [
        (0, FULL, 32, 0), (1, WINDOW, 16, 48), (2, STATE, 64, 0), (3, CHUNKED, 32, 64)]
    assert (table.unit_tokens, table.hash_tokens, table.hashes_per_unit) == (64, 16, 4)
    assert table.groups[1].layer_names == ("model.layers.1.attn", "model.layers.5.attn")
    assert table.groups[2].content == "MAMBA2 [[4, 6], [3]] ['bfloat16', 'float32']"
    assert [g.chunk_blocks(256) for g in table.groups] == [8, 2, 1, 2]
    assert [table.whole_blocks(g, 3) for g in table.groups] == [6, 12, 3, 6]


def test_a_group_that_vllm_does_not_transfer_is_left_out(config):  # noqa: F811
    cache = cache_of(specs())
    cache.kv_cache_groups[3].enable_kv_transfer = False
    table = table_of(config, cache)
    assert [g.index for g in table.groups] == [0, 1, 2]


def test_one_group_of_full_attention_needs_no_table(config):  # noqa: F811
    cache = cache_of(specs()[:1])
    cache.hash_block_size = 32
    assert table_of(config, cache) is None


@pytest.mark.parametrize("kind, block, window, chunk, blocks", [
    (FULL, 16, 0, 256, 16), (STATE, 544, 0, 544, 1),
    (WINDOW, 16, 1024, 256, 16), (WINDOW, 16, 128, 256, 8), (WINDOW, 16, 100, 256, 4), (WINDOW, 32, 8, 256, 1),
    (CHUNKED, 16, 8192, 256, 16), (CHUNKED, 16, 96, 256, 2), (CHUNKED, 16, 100, 256, 1)])
def test_a_chunk_is_complete_before_its_beginning_is_released(kind, block, window, chunk, blocks):
    assert Group(0, kind, block, (), window).chunk_blocks(chunk) == blocks


@pytest.mark.parametrize("unit, wanted, chunk", [(32, 256, 256), (96, 256, 288), (544, 256, 544), (96, 192, 192)])
def test_the_default_chunk_is_rounded_up(unit, wanted, chunk):
    assert GroupTable((), unit, unit).chunk_tokens(wanted) == chunk


def test_a_chunk_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="chunk.tokens 100 is not a multiple of 96 tokens, .*; set 192, for example"):
        GroupTable((), 96, 96).chunk_tokens(100)


# ---- blocks


def blocks_of(text):
    """n: vLLM's null block; h: has a hash; other letters: fresh."""
    return [Thing(is_null=c == "n", block_hash=b"h" if c == "h" else None, block_id=i) for i, c in enumerate(text)]


@pytest.mark.parametrize("text, to_block, first", [
    ("ffff", 4, 0), ("hhff", 4, 2), ("nnff", 4, 2), ("nhhf", 4, 3), ("nnnn", 4, 4), ("nnhh", 4, 4), ("nnff", 3, 2),
    ("fhff", 4, None), ("nfnf", 4, None), ("ff", 4, None)])
def test_only_fresh_blocks_are_loaded(text, to_block, first):
    assert first_to_load(blocks_of(text), to_block) == first


def test_each_store_of_a_group_tells_its_layers():
    store, told = GroupStore([], []), []
    for at in (0, 0, 2):
        store.add(at, Piece(Thing(tell_layers=lambda at=at: told.append(at)), 0, 1))
    store.tell_layers()
    assert told == [0, 0, 2]


@pytest.mark.parametrize("ids, end, first", [
    ([1, 2, 3], 3, 0), ([0, 0, 3], 3, 2), ([1, 0, 3], 3, 2), ([0, 2, 0], 3, 3), ([0, 2, 0], 2, 1), ([], 0, 0)])
def test_a_store_begins_behind_the_last_block_that_is_gone(ids, end, first):
    assert first_resident(ids, end) == first


# ---- where all groups can be restored


class View:
    """Can be restored at these blocks; notes its lookups."""

    def __init__(self, at, memory=True, pending=False):
        self.at, self.memory, self.pending = at, memory, pending
        self.asked, self.unpinned = [], 0

    def lookup(self, chain, from_block, to_block, flags, session, tag):
        self.asked.append(to_block)
        best = max([b for b in self.at if from_block < b <= to_block], default=from_block)
        return best, best if self.memory else from_block, self.pending

    def unpin(self, session):
        self.unpinned += 1


def views_of(*parts):
    """parts: (kind, blocks of a unit, view)"""
    out = object.__new__(GroupViews)
    out.parts = [part_of(*part) for part in parts]
    return out


def part_of(kind, blocks, view=None):
    return GroupPart(Group(0, kind, 64 // blocks, ()), None, view, GroupTable((), 64, 16))


CHAIN = Thing(of=lambda group: None)


def test_only_states_at_the_ends_of_units_are_saved():
    """If hits end with units, no load would read a state between two ends."""
    half = GroupSchedulerHalf.__new__(GroupSchedulerHalf)
    half.table = Thing(groups=[Group(0, FULL, 32, ()), Group(3, STATE, 64, ())])
    half.place, half.block_tokens, half.can_save, half.next_write = {0: 0, 3: 1}, 64, True, lambda: 7
    half.rules, tracker = Thing(save_decode=False, save_tail=True), Thing(skip_save=False, prompt_tokens=200)
    offers = [(3, 5, 64), (3, 6, 100), (3, 7, 65), (3, 8, 63), (3, 9, 0), (3, 0, 128), (0, 10, 128), (2, 11, 128),
              (3, 12, 192), (3, 13, 256)]
    state = Thing(boundary_state_offloads={"r": offers}, get_block_ids=lambda _: [[1] * 9, [], [], [2] * 9])
    right = (StateSave(1, 5, 1, 7), StateSave(1, 12, 3, 7))
    assert half.states_to_save(tracker, state, "r") == right
    half.rules.save_decode = True
    assert half.states_to_save(tracker, state, "r") == (*right, StateSave(1, 13, 4, 7))
    tracker.skip_save = True
    assert half.states_to_save(tracker, state, "r") == half.states_to_save(tracker, state, "other") == ()


def test_all_groups_agree_at_one_point():
    full, window, state = View(range(99)), View([3, 6, 9, 12, 20]), View([2, 5, 6, 7])
    views = views_of((FULL, 1, full), (WINDOW, 2, window), (STATE, 1, state))
    # Units 10 (20 blocks), 7, 6 (12 blocks), 6: full attention is looked up once.
    assert views.lookup(CHAIN, 0, 10, 1, 7) == (6, 6, False)
    assert (full.asked, window.asked, state.asked) == ([10], [20, 14], [10, 6])
    assert full.unpinned == window.unpinned == state.unpinned == 0


def test_a_point_inside_a_unit_does_not_count():
    window = View([3, 5, 9])  # blocks; a unit has two
    assert views_of((WINDOW, 2, window)).lookup(CHAIN, 0, 5, 1, 7) == (0, 0, False)
    assert window.asked == [10, 8, 4, 2] and window.unpinned == 1


def test_without_a_common_point_nothing_stays_pinned():
    full, state = View(range(99)), View([])
    assert views_of((FULL, 1, full), (STATE, 1, state)).lookup(CHAIN, 2, 10, 1, 7) == (2, 2, False)
    assert (full.unpinned, state.unpinned) == (1, 1)


def test_groups_that_never_agree_are_a_miss_after_some_rounds():
    odd, even = View(range(1, 999, 2)), View(range(0, 999, 2))
    views = views_of((STATE, 1, odd), (STATE, 1, even))
    assert views.lookup(CHAIN, 0, 998, 1, 7)[0] == 0
    assert len(odd.asked) <= 64 and odd.unpinned == 1


def test_full_attention_is_asked_first():
    """vLLM may list its group last. A prompt of which it has nothing does not wait for the answers about states."""
    full, window, state = View([]), View([4], pending=True), View([4], pending=True)
    views = views_of((STATE, 1, state), (WINDOW, 2, window), (FULL, 1, full))
    assert views.lookup(CHAIN, 0, 10, 1, 7) == (0, 0, False)
    assert (full.asked, window.asked, state.asked) == ([10], [], [])
    full.at = [1, 2, 3, 4]
    assert views.lookup(CHAIN, 0, 10, 1, 7)[2] and state.asked[0] == 4


def test_a_hit_is_in_memory_if_all_groups_are():
    views = views_of((FULL, 1, View(range(99))), (STATE, 1, View([6], memory=False)))
    assert views.lookup(CHAIN, 2, 10, 1, 7) == (6, 2, False)
    pending = views_of((FULL, 1, View(range(9), pending=True)), (STATE, 1, View([6])))
    assert pending.lookup(CHAIN, 0, 10, 1, 7) == (6, 6, True)


@pytest.mark.parametrize("full, window, origins", [
    (b"\1\1\1\1", b"\1\1", b"\1\1\1\1"), (b"\1\2\1\1", b"\3\1", b"\1\2\1\3"), (b"\1\1\1\1", b"\1\0", b"\0\0\0\0"),
    (None, b"\2\1", b"\2\2\2\2"), (None, None, b"\1\1\1\1")])
def test_a_load_counts_if_all_groups_are_complete(full, window, origins):
    """Units 2 to 6; the window has two blocks a unit and needs the last unit. None: another worker has the layers."""
    load = GroupLoad([], [part_of(FULL, 1), part_of(WINDOW, 2)], 2, 6, (2, 10))
    for at, answer in enumerate((full, window)):
        if answer is not None:
            load.add(at, Piece(Thing(end=lambda answer=answer: answer), (128, 320)[at], (64, 32)[at]))
    assert load.end() == origins


def test_a_load_of_nothing_does_not_count():
    assert GroupLoad([], [part_of(FULL, 1), part_of(WINDOW, 2)], 2, 6, (6, 12)).end() == b"\0\0\0\0"


def test_chains_of_different_blocks_grow_together():
    engine = core.Engine.open(None, {"memory.size": "4MiB", "disk.path": ""})

    def view(size, algo):
        return engine.view({"weights": "aa", "model": "m", "kv_dtype": "f", "quantization": "", "layout": "l",
                            "layer_count": 1, "cell_bytes": [64], "block_tokens": size, "chunk_blocks": 1,
                            "algo": algo})

    table = GroupTable((), 32, 8)
    chain = GroupChain({size: view(size, "sha256").chain() for size in (16, 32)}, table)
    chain.append(array("i", range(64)), [(1, b"image")])
    alone = view(16, "sha256").chain()
    alone.append(array("i", range(64)), [(2, b"image")])
    assert chain.blocks == 2 and chain.chains[16].blocks == 4
    assert [chain.chains[16].hash(i) for i in range(4)] == [alone.hash(i) for i in range(4)]
    hashes = [bytes([i]) * 32 for i in range(8)]
    chain = GroupChain({size: view(size, "vllm-sha256-cbor").chain() for size in (16, 32)}, table)
    chain.append_hashes(memoryview(b"".join(hashes)))
    assert [chain.chains[16].hash(i) for i in range(4)] == hashes[1::2]
    assert [chain.chains[32].hash(i) for i in range(2)] == hashes[3::4]
    engine.close()


# ---- both halves, without a running vLLM


class Pool:
    """vLLM's memory: each group's blocks of random bytes, attention as kernel blocks of 16 tokens."""

    def __init__(self, cache, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tensors = {}
        for group in cache.kv_cache_groups:
            spec = group.kv_cache_spec
            for name in group.layer_names:
                if isinstance(spec, kv.MambaSpec):
                    raw = torch.randint(-128, 127, (cache.num_blocks, spec.page_size_bytes), generator=generator,
                                        dtype=torch.int8)
                    content = spec.state_content_size_bytes
                    self.tensors[name] = raw.as_strided((cache.num_blocks, 1, 1, content),
                                                        (spec.page_size_bytes, content, content, 1))
                else:
                    ratio = spec.block_size // 16
                    self.tensors[name] = torch.rand((cache.num_blocks * ratio, 2, 16, 32), generator=generator)

    def block(self, cache, name, number):
        tensor = self.tensors[name]
        ratio = tensor.shape[0] // cache.num_blocks
        return tensor[number * ratio:(number + 1) * ratio].contiguous().numpy().tobytes()


class Allocated:
    """vLLM's KVCacheBlocks. tables: lists of ids, of which 0 is null."""

    def __init__(self, tables):
        self.blocks = [[Thing(is_null=i == 0, block_hash=None, block_id=i) for i in ids] for ids in tables]
        self.tables = tables

    def get_block_ids(self):
        return self.tables


def huge_states():
    """A state of 1 MiB in each layer."""
    return [kv.MambaSpec(block_size=64, shapes=((1 << 20,),), dtypes=(torch.int8,), mamba_cache_mode="align")]


def small_memory(config):  # noqa: F811
    return changed(config, "kv_transfer_config", kv_connector_extra_config={
        "memory.size": "1MiB", "disk.path": "", "chunk.tokens": 8192})


@pytest.mark.parametrize("kinds, message", [
    (specs()[:1], "a chunk of 8,192 tokens requires more than 4,194,304 bytes of memory; raise memory.size or lower chunk.tokens$"),
    (specs()[:2], "a chunk of 8,192 tokens requires more than 4,194,304 bytes of memory; raise memory.size or lower chunk.tokens$"),
    (huge_states(), "a chunk of 64 tokens requires more than 2,097,152 bytes of memory; raise memory.size$")],
    ids=["attention", "window", "state"])
def test_a_chunk_that_memory_cannot_hold(config, kinds, message):  # noqa: F811
    """The message has the size, and the engine is closed."""
    cache = cache_of(kinds, 4)
    cache.hash_block_size = min(spec.block_size for spec in kinds)
    worker = ours.TierceConnector(small_memory(config), KVConnectorRole.WORKER, cache)
    with pytest.raises(ConfigError, match=message):
        worker.register_kv_caches(Pool(cache, 1).tensors)
    assert worker.half.engine is None and worker.half.view is None
    worker.shutdown()


def test_programs_run_with_the_first_worker(config, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    os.mkfifo(out)
    (tmp_path / "program.sh").write_text(f"echo $TIERCE_PLUGIN_ROLE $TIERCE_PLUGIN_WORKER $TIERCE_PLUGIN_WORKERS >{out}\nexec sleep 1000\n")
    wanted = changed(config, "kv_transfer_config", kv_connector_extra_config={
        "memory.size": "32MiB", "disk.path": "", "plugins.start": f"{tmp_path}/program.sh"})
    kinds = specs()[:1]
    cache = cache_of(kinds, 4)
    cache.hash_block_size = kinds[0].block_size
    for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER):
        connector = ours.TierceConnector(wanted, role, cache)
        assert connector.programs is None
    connector.register_kv_caches(Pool(cache, 1).tensors)
    assert connector.off is None
    assert out.read_text() == "worker 0 1\n"
    (program,) = connector.programs.running
    connector.shutdown()
    assert program.process.returncode == -signal.SIGTERM


def output_of(request, tables=None, computed=0, count=0, offers=()):
    new = [Thing(req_id=request.request_id, block_ids=tables, num_computed_tokens=computed)] if count else []
    none = Thing(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set())
    state = Thing(get_block_ids=lambda _: tables,
                  boundary_state_offloads={request.request_id: list(offers)} if offers else {})
    return Thing(scheduled_new_reqs=new, scheduled_cached_reqs=none, kv_connector_block_state=state,
                 num_scheduled_tokens={request.request_id: count} if count else {}, finished_req_ids=set())


class Engine:
    """Both halves of a connector, and the steps that vLLM makes with them."""

    def __init__(self, config, cache, seed=1):  # noqa: F811
        self.cache, self.pool = cache, Pool(cache, seed)
        self.worker = ours.TierceConnector(config, KVConnectorRole.WORKER, cache)
        self.worker.register_kv_caches(self.pool.tensors)
        assert self.worker.off is None
        self.scheduler = ours.TierceConnector(config, KVConnectorRole.SCHEDULER, cache)
        self.scheduler.half.find_link = lambda: self.worker.half

    def step(self, output):
        return self.carry_out(self.scheduler.build_connector_meta(output))

    def carry_out(self, meta, between=lambda: None):
        """between: called before anything is stored"""
        self.worker.bind_connector_metadata(meta)
        self.worker.start_load_kv(None)
        between()
        for name in sorted(self.pool.tensors):
            if "states" not in name:
                self.worker.save_kv_layer(name, None, None)
        self.worker.wait_for_save()
        results = self.worker.get_transfer_results(set())
        assert self.worker.get_block_ids_with_load_errors() == set()
        self.scheduler.update_connector_output(Thing(
            kv_connector_worker_meta=self.worker.build_connector_worker_meta()))
        self.worker.clear_connector_metadata()
        return results

    def received(self, request):
        """Steps without work until the load has ended."""
        give_up = time.monotonic() + 60
        results = self.step(output_of(request))
        while not results.finished_recving:
            assert time.monotonic() < give_up
            time.sleep(0.001)
            results = self.step(output_of(request))
        return results

    def close(self):
        self.worker.shutdown()
        assert not self.worker.failed_methods and not self.scheduler.failed_methods


TOKENS = 200
# Blocks of 32, 16, 64 and 32 tokens: the first blocks of the window and the states are released.
STORED = ([*range(1, 8)], [*range(10, 23)], [0, 0, 30, 31], [*range(40, 47)])
# After 192 tokens: all, the last 47 tokens, the state, and nothing of chunked attention.
WANTED = ([*range(51, 57)], [0] * 9 + [7, 8, 9], [0, 0, 32], [0] * 6)


@pytest.fixture
def engine(config):  # noqa: F811
    out = Engine(config, cache_of(specs()))
    yield out
    out.close()


def compute(engine, name="a"):
    request = request_of(TOKENS, name)
    assert engine.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    engine.scheduler.update_state_after_alloc(request, Allocated(STORED), 0)
    engine.step(output_of(request, STORED, 0, TOKENS, [(2, 30, 192), (2, 31, 200), (9, 1, 192)]))
    engine.scheduler.request_finished_all_groups(request, STORED)


def group_blocks(engine):
    """The blocks of each group that were loaded since the last call."""
    stats = engine.scheduler.get_kv_connector_stats()
    return {name.removeprefix(GROUP_BLOCKS): count for name, count in stats.data.items()
            if name.startswith(GROUP_BLOCKS)}


def check_loaded(engine, before, stored, wanted):
    """The wanted blocks of each group equal the stored ones. Nothing else was written, not even the null block."""
    for group, sources, targets in zip(engine.cache.kv_cache_groups, stored, wanted):
        for name in group.layer_names:
            for source, target in zip(sources, targets):
                if target:
                    assert engine.pool.block(engine.cache, name, target) == engine.pool.block(
                        engine.cache, name, source), (name, source, target)
            ratio = before[name].shape[0] // engine.cache.num_blocks
            others = [b * ratio + k for b in range(64) if b not in targets or b == 0 for k in range(ratio)]
            assert torch.equal(before[name][others], engine.pool.tensors[name][others]), name


def test_what_one_request_computed_another_one_loads(engine):
    compute(engine)
    before = {name: tensor.clone() for name, tensor in engine.pool.tensors.items()}
    request = request_of(TOKENS, "b")
    assert engine.scheduler.get_num_new_matched_tokens(request, 0) == (192, True)
    engine.scheduler.update_state_after_alloc(request, Allocated(WANTED), 192)
    results = engine.received(request)
    assert results.finished_recving == {"b"} and results.failed_recving == set()
    check_loaded(engine, before, STORED, WANTED)
    assert group_blocks(engine) == {"0 full": 6, "1 window 48": 3, "2 state": 1}
    # The second call of vLLM after the load changes nothing.
    engine.scheduler.update_state_after_alloc(request, Allocated(WANTED), 0)
    assert engine.step(output_of(request)).finished_recving == set()


def test_with_a_drafter_a_hit_ends_a_unit_before_the_found_one(engine):
    """The hit ends where the windows can be restored too."""
    compute(engine)
    request, half = request_of(TOKENS, "b"), engine.scheduler.half
    half.has_drafter, asked = True, []
    lookup = engine.worker.half.lookup
    half.link.lookup = lambda *question: asked.append(question[3]) or lookup(*question)
    # Only the state after 192 tokens was stored.
    assert engine.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    assert asked == [3, 2]
    engine.step(output_of(request, offers=[(2, 29, 128)]))
    assert engine.scheduler.get_num_new_matched_tokens(request_of(TOKENS, "d"), 0) == (128, True)
    del half.link.lookup


def test_a_load_that_vllm_has_not_made_room_for_fails_by_request(engine, caplog):
    compute(engine)
    request = request_of(TOKENS, "b")
    assert engine.scheduler.get_num_new_matched_tokens(request, 0) == (192, True)
    odd = ([51, 52, 0, 54, 55, 56], *WANTED[1:])
    engine.scheduler.update_state_after_alloc(request, Allocated(odd), 192)
    results = engine.received(request)
    assert results.finished_recving == results.failed_recving == {"b"}
    assert group_blocks(engine) == {} and not engine.scheduler.half.loading
    # The load is not repeated, and another request finds everything.
    assert engine.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    assert engine.scheduler.get_num_new_matched_tokens(request_of(TOKENS, "c"), 0) == (192, True)


@pytest.mark.parametrize("broken", ["allocated", "step"])
def test_a_promise_that_cannot_be_kept_fails_by_request(config, broken):  # noqa: F811
    engine = Engine(config, cache_of(specs()))
    compute(engine)
    request = request_of(TOKENS, "b")
    assert engine.scheduler.get_num_new_matched_tokens(request, 0) == (192, True)

    def fail(*_):
        raise RuntimeError("broken")

    setattr(engine.scheduler.half, broken, fail)
    engine.scheduler.update_state_after_alloc(request, Allocated(WANTED), 192)
    results = engine.received(request)
    assert results.finished_recving == results.failed_recving == {"b"}
    assert engine.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    engine.worker.shutdown()


def test_a_failed_load_counts_for_no_group(engine, monkeypatch):
    compute(engine)
    request = request_of(TOKENS, "b")
    assert engine.scheduler.get_num_new_matched_tokens(request, 0) == (192, True)
    monkeypatch.setattr(GroupLoad, "end", lambda load: load.abort() or b"\0\0\0")
    engine.scheduler.update_state_after_alloc(request, Allocated(WANTED), 192)
    assert engine.received(request).failed_recving == {"b"}
    assert group_blocks(engine) == {} and not engine.scheduler.half.loading


def test_an_unknown_result_of_a_load_is_a_failure_by_request(engine):
    request = ReqMeta("r", 1, None, b"", 3, 3, LoadSpec(0, 3, 0, True, True))
    engine.worker.half.finished.append((request, b"\1\0\1"))
    results = engine.worker.get_transfer_results(set())
    assert results.finished_recving == results.failed_recving == {"r"}
    assert engine.worker.half.take_results()["r"].failed == 3


def test_a_reset_forgets_all_groups(engine):
    compute(engine)
    assert engine.scheduler.reset_cache()
    assert engine.scheduler.get_num_new_matched_tokens(request_of(TOKENS, "b"), 0) == (0, False)
    compute(engine, "c")
    assert engine.scheduler.get_num_new_matched_tokens(request_of(TOKENS, "d"), 0) == (192, True)


@pytest.mark.parametrize("when", ["before the step", "in the step"])
def test_a_step_that_was_planned_before_a_reset_loads_and_stores_nothing(engine, when):
    """With asynchronous scheduling, the first worker receives a reset before such steps."""
    scheduler = engine.scheduler
    compute(engine)
    # The second is not looked up, so its whole chain is a part of the step.
    old, new = request_of(TOKENS, "b"), request_of(TOKENS, "c", prompt_token_ids=[7] * TOKENS)
    new.kv_transfer_params = {"tierce.skip_load": True}
    assert scheduler.get_num_new_matched_tokens(old, 0) == (192, True)
    assert scheduler.get_num_new_matched_tokens(new, 0) == (0, False)
    scheduler.update_state_after_alloc(old, Allocated(WANTED), 192)
    scheduler.update_state_after_alloc(new, Allocated(STORED), 0)
    meta = scheduler.build_connector_meta(output_of(new, STORED, 0, TOKENS, [(2, 30, 192)]))
    assert [r.load is not None for r in meta.requests] == [True, False] and meta.requests[1].states
    if when == "before the step":
        assert scheduler.reset_cache()
        results = engine.carry_out(meta)
    else:
        results = engine.carry_out(meta, between=scheduler.reset_cache)
    assert engine.worker.half.era == scheduler.half.era
    for token_ids in ([*range(TOKENS)], [7] * TOKENS):
        other = request_of(TOKENS, f"d{token_ids[1]}", prompt_token_ids=token_ids)
        assert scheduler.get_num_new_matched_tokens(other, 0) == (0, False)
    results = results if results.finished_recving else engine.received(old)
    assert results.finished_recving == {"b"}
    assert results.failed_recving == {"b"} or when == "in the step"
    compute(engine, "e")
    assert scheduler.get_num_new_matched_tokens(request_of(TOKENS, "f"), 0) == (192, True)


def test_without_the_state_there_is_no_hit(engine):
    request = request_of(TOKENS, "a")
    engine.scheduler.get_num_new_matched_tokens(request, 0)
    engine.step(output_of(request, STORED, 0, TOKENS))
    assert engine.scheduler.get_num_new_matched_tokens(request_of(TOKENS, "b"), 0) == (0, False)
    # Offered later, without a step of the request: as vLLM does after a load.
    engine.step(output_of(request, offers=[(2, 29, 128)]))
    assert engine.scheduler.get_num_new_matched_tokens(request_of(TOKENS, "c"), 0) == (128, True)


def found_in(engine, at, end=192):
    """The tokens at which the group at this place of the table can be restored, looked up alone."""
    views = engine.worker.half.view
    part, size = views.parts[at], views.parts[at].group.block_tokens
    return part.view.lookup(chain_of(views, range(TOKENS)).of(part.group), 0, end // size, 0, 0)[0] * size


def chain_of(views, tokens):
    chain = views.chain()
    chain.append(array("i", tokens))
    return chain


def use(engine, at):
    """Loads the group's chunks of the first prompt alone, into blocks that no request has."""
    part = engine.worker.half.view.parts[at]
    end = 192 // part.group.block_tokens
    first = part.view.needs(end)
    handle = part.view.load_begin(chain_of(engine.worker.half.view, range(TOKENS)).of(part.group), first, end,
                                  memoryview(array("i", range(50, 50 + end))), 0, 0)
    for layer in range(2):
        handle.layer(layer)
    assert all(handle.end())


def fill(engine, at, number):
    """Stores chunks of the group for another prompt."""
    views, part = engine.worker.half.view, engine.worker.half.view.parts[at]
    end = 192 // part.group.block_tokens
    chain = chain_of(views, [1000 + number] * TOKENS).of(part.group)
    handle = part.view.store_begin(chain, end, memoryview(array("i", range(1, end + 1))), True, 0, None, 0, 0)
    for layer in range(2):
        handle.layer(layer)
    assert handle.end() > 0


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_group_that_is_evicted_alone(engine, gone):
    """The other groups' chunks are used again and again, until memory evicts a chunk of this group. Then there is no
    hit, and the group is stored again."""
    compute(engine)
    kept = [at for at in range(3) if at != gone]
    assert [found_in(engine, at) for at in range(3)] == [192] * 3
    for number in range(1000):
        for at in kept:
            use(engine, at)
        fill(engine, 0, number)
        if found_in(engine, gone) < 192:
            break
    assert [found_in(engine, at) for at in kept] == [192] * 2 and found_in(engine, gone) < 192
    assert engine.worker.half.engine.stats()["memory_evictions"] > 0
    assert engine.scheduler.get_num_new_matched_tokens(request_of(TOKENS, "b"), 0) == (0, False)
    compute(engine, "c")
    assert found_in(engine, gone) == 192
    assert engine.scheduler.get_num_new_matched_tokens(request_of(TOKENS, "d"), 0) == (192, True)


def test_a_request_from_before_a_reset_stores_nothing_after_it(config):  # noqa: F811
    """vLLM resets the connector also while requests hold blocks, which keep KV of the old weights."""
    engine, tables = Engine(config, cache_of([specs()[0], specs()[3]])), ([*range(1, 17)], [*range(20, 36)])
    for reset in (True, False):
        request = request_of(512, f"a{reset}")
        assert engine.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
        engine.scheduler.update_state_after_alloc(request, Allocated(tables), 0)
        engine.step(output_of(request, tables, 0, 256))
        request.num_computed_tokens = 256
        assert not reset or engine.scheduler.reset_cache()
        engine.step(output_of(request, tables, 256, 256))
        engine.scheduler.request_finished_all_groups(request, tables)
        found, _ = engine.scheduler.get_num_new_matched_tokens(request_of(512, f"b{reset}"), 0)
        assert (found == 0) == reset
    engine.close()
