# SPDX-License-Identifier: Apache-2.0
"""Steps of vLLM on a GPU with several KV cache groups; run by test_vllm_cuda.py."""

import pytest
import torch
from vllm.v1 import kv_cache_interface as kv

from cuda_engine import (  # noqa: F401
    Allocated, Background, Engine, base_config, gpu, quiet, request_of, settings, step_of)
from test_connector import config  # noqa: F401

HEADS = dict(num_kv_heads=2, head_size=16, dtype=torch.float32)
FULL = kv.FullAttentionSpec(block_size=32, **HEADS)
WINDOW = kv.SlidingWindowSpec(block_size=16, sliding_window=48, **HEADS)
CHUNKED = kv.ChunkedLocalAttentionSpec(block_size=32, attention_chunk_size=64, **HEADS)
STATE = kv.MambaSpec(block_size=64, shapes=((4, 6), (3,)), dtypes=(torch.bfloat16, torch.float32),
                     page_size_padded=128, mamba_cache_mode="align")
TOKENS = 200
# Blocks of 32, 16, 32 and 64 tokens. The second table has the blocks that are needed after 192 tokens.
TABLES = {FULL: [*range(1, 8)], WINDOW: [*range(10, 23)], CHUNKED: [*range(40, 47)], STATE: [0, 0, 30, 31]}
WANTED = {FULL: [*range(51, 57)], WINDOW: [0] * 9 + [7, 8, 9], CHUNKED: [0] * 6, STATE: [0, 0, 32]}


def cache_of(*specs):
    """Two layers for each group, in turn. vLLM does not call the connector for layers with states."""
    names = [f"model.layers.{i}.attn" for i in range(2 * len(specs))]
    made = [kv.KVCacheGroupSpec(names[at::len(specs)], spec) for at, spec in enumerate(specs)]
    return kv.KVCacheConfig(num_blocks=64, kv_cache_tensors=[], kv_cache_groups=made, hash_block_size=16)


RUNS = kv.KVCacheLayout.LHBNC  # a block of attention is a run for each head


def make_engine(gpu, config, specs, layout=None):  # noqa: F811
    how = {"kernel_tokens": 16} if layout is None else {"layout": layout}
    out = Engine(gpu, settings(config), cache_of(*specs), **how)
    out.specs = specs
    return out


@pytest.fixture(params=[((FULL, WINDOW), None), ((FULL, WINDOW, CHUNKED, STATE), None), ((WINDOW,), None),
                        ((FULL, WINDOW, CHUNKED, STATE), RUNS), ((FULL, WINDOW), RUNS)],
                ids=["window beside full", "all kinds", "windows alone", "all kinds, several runs",
                     "window beside full, several runs"])
def engine(request, gpu, config):  # noqa: F811
    out = make_engine(gpu, config, *request.param)
    yield out
    gpu.release()
    out.close()


def tables(engine, of=TABLES):
    return tuple(of[spec] for spec in engine.specs)


def written(engine, of):
    return {name: [block for block in of[group.kv_cache_spec] if block]
            for group in engine.cache.kv_cache_groups for name in group.layer_names}


def prefill(engine, name="a"):
    request = request_of(TOKENS, name)
    engine.admit(request, tables(engine))
    offers = [(request, [(at, 30, 192)]) for at, spec in enumerate(engine.specs) if spec is STATE]
    blocks = written(engine, TABLES)
    for group in engine.cache.kv_cache_groups:
        if group.kv_cache_spec is STATE:
            for layer in group.layer_names:
                engine.compute(layer, blocks[layer])
    engine.step(step_of((request, tables(engine), 0, TOKENS), offers=offers), blocks)
    return request


def assert_loaded(engine, data):
    for group in engine.cache.kv_cache_groups:
        for name in group.layer_names:
            for source, target in zip(TABLES[group.kv_cache_spec], WANTED[group.kv_cache_spec]):
                if target:
                    assert engine.pool.read(name, target) == data[name, source], (name, source, target)


def load(engine, name="b"):
    request = request_of(TOKENS, name)
    engine.begin_load(request, tables(engine, WANTED), 192)
    results = engine.received(request)
    assert results.failed_recving == set() and results.errors == set()


def test_what_one_request_computed_another_one_loads(engine):
    prefill(engine)
    engine.stored()
    load(engine)
    assert_loaded(engine, engine.data)


def test_states_are_stored_within_the_step(gpu, engine):
    """vLLM fills blocks of such a model with zeros before it calls the connector."""
    assert (engine.half.behind is None) == (STATE in engine.specs)
    assert engine.half.facts().blocks_to_write == (STATE not in engine.specs)


def test_a_block_that_left_the_window_is_not_reused_while_it_is_copied(gpu, engine):
    """vLLM releases it after the step, and gives it to another request, perhaps in another group."""
    if engine.half.behind is None:
        pytest.skip("such stores end in their step")
    with gpu.held():
        request = prefill(engine)
        before = dict(engine.data)
        left = TABLES[WINDOW][0]
        new = request_of(20, "n", prompt_token_ids=list(range(9000, 9020)))
        engine.admit(new, tuple([left if spec is engine.specs[0] else 60] for spec in engine.specs))
        output = step_of((new, tuple([left if spec is engine.specs[0] else 60] for spec in engine.specs), 0, 20),
                         cached=[(request, tuple([61] for _ in engine.specs), TOKENS, 1)])
        # In vLLM a block is the same memory for all groups; in this test each group has its own memory.
        again = {name: [left] for name in engine.names()}
        waiting = Background(engine, lambda: engine.step(output, again))
        assert waiting.is_alive() and left in engine.half.behind.readers
        gpu.release()
        waiting.ended()
    engine.stored()
    load(engine)
    assert_loaded(engine, before)


def test_a_load_that_fails_fails_by_request(gpu, engine):
    prefill(engine)
    engine.stored()
    request = request_of(TOKENS, "b")
    engine.begin_load(request, tables(engine, WANTED), 192)
    original = engine.half.load_handle

    def broken(*arguments):
        handle = original(*arguments)
        handle.layer(0)
        raise RuntimeError("broken")

    engine.half.load_handle = broken
    results = engine.received(request)
    del engine.half.load_handle
    assert results.failed_recving == {"b"} and results.errors == set()
    for name, blocks in written(engine, WANTED).items():
        engine.compute(name, blocks)
    load(engine, "c")
    assert_loaded(engine, engine.data)


@pytest.mark.parametrize("layout", kv.KVCacheLayout)
def test_each_group_may_have_several_runs(gpu, config, layout):  # noqa: F811
    """A state is always one run. Blocks that are neither stored nor loaded keep their bytes."""
    specs = (FULL, WINDOW, CHUNKED, STATE)
    engine = make_engine(gpu, config, specs, layout)
    runs = [1 if layout.is_block_compact or spec is STATE else 2 for spec in specs]
    assert [geometry.runs for geometry in engine.half.geometries] == runs
    assert [layers.numbers for layers in engine.half.layers] == [
        sorted([at, at + 4] * count) for at, count in enumerate(runs)]
    names = [name for group in engine.cache.kv_cache_groups for name in group.layer_names]
    for name in names:
        for block in range(engine.cache.num_blocks):
            engine.pool.write(name, block, bytes([block]) * engine.pool.bytes_of(name))
    prefill(engine)
    engine.stored()
    load(engine)
    assert_loaded(engine, engine.data)
    for group in engine.cache.kv_cache_groups:
        touched = {*TABLES[group.kv_cache_spec], *WANTED[group.kv_cache_spec]} - {0}
        for name in group.layer_names:
            for block in {*range(engine.cache.num_blocks)} - touched:
                assert engine.pool.read(name, block) == bytes([block]) * engine.pool.bytes_of(name)
    engine.close()


@pytest.mark.parametrize("how", [{"kernel_tokens": 16}, {"layout": RUNS}], ids=["kernel blocks", "several runs"])
def test_a_hit_inside_a_block(gpu, config, how):  # noqa: F811
    """After 176 of 190 tokens, inside the last block of full attention and of states. The stores end in their step, so the
    next one may write behind this point."""
    cache = cache_of(FULL, WINDOW, STATE)
    cache.cache_hit_alignment_tokens = 16
    engine = Engine(gpu, settings(config), cache, **how)
    stored, wanted = ([*range(1, 7)], [*range(10, 22)], [0, 0, 30]), ([*range(51, 57)], [0] * 8 + [7, 8, 9], [0, 0, 32])
    names = [group.layer_names for group in cache.kv_cache_groups]
    blocks = {name: [block for block in ids if block] for group, ids in zip(names, stored) for name in group}
    request = request_of(190, "a")
    engine.admit(request, stored)
    for name in names[2]:
        engine.compute(name, [30])
    engine.step(step_of((request, stored, 0, 176)), blocks)
    last = {name: [stored[0][-1]] for name in names[0]}
    engine.step(step_of((request, stored, 176, 14), offers=[(request, [(2, 30, 176)])]), last)
    data = dict(engine.data)
    engine.step(step_of(cached=[(request, stored, 190, 1)]), last)
    other = request_of(190, "b")
    engine.begin_load(other, wanted, 176)
    results = engine.received(other)
    assert results.failed_recving == set() and results.errors == set()
    for group, sources, targets in zip(names, stored, wanted):
        for name in group:
            for source, target in zip(sources, targets):
                assert not target or engine.pool.read(name, target) == data[name, source], (name, source, target)
    engine.close()


def test_layouts_of_several_runs_share_nothing_with_others(gpu, config):  # noqa: F811
    names = set()
    for layout in (kv.KVCacheLayout.LBNHC, RUNS):
        engine = make_engine(gpu, config, (FULL, WINDOW), layout)
        names.update(engine.half.view.namespace.splitlines())
        engine.close()
    assert sum(name.startswith("layers=0,0,2,2") for name in names) == 1
