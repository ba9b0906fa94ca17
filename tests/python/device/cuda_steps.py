# SPDX-License-Identifier: Apache-2.0
"""Steps of vLLM on a GPU with one KV cache group; run by test_vllm_cuda.py.

While the driver is held, no copy and no kernel runs, but the order in which they will run is fixed: the driver's
report names each pair that no event orders."""

import dataclasses
import logging
import threading
from types import SimpleNamespace as Thing

import pytest
import torch
from vllm.v1 import kv_cache_interface as kv

from tierce.vllm import device, identity
from tierce.vllm.identity import Unsupported
from tierce.vllm.tracker import LIMIT_NOT_READY

from cuda_engine import (  # noqa: F401
    Allocated, Background, Engine, base_config, gpu, quiet, request_of, settings, step_of, until)
from fake_cuda import CudaTensor, Pool
from test_connector import changed, config, lines  # noqa: F401

BLOCK, BLOCKS, LAYERS = 32, 64, 3
SPEC = kv.FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=16, dtype=torch.float32)
TOKENS = 8 * BLOCK + 3  # a chunk, and a token to compute
FIRST = list(range(1, 10))


def cache_of(spec=SPEC):
    names = [f"model.layers.{i}.attn" for i in range(LAYERS)]
    return kv.KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[],
                            kv_cache_groups=[kv.KVCacheGroupSpec(names, spec)], hash_block_size=spec.block_size)


@pytest.fixture
def engine(gpu, config):  # noqa: F811
    out = Engine(gpu, settings(config), cache_of())
    yield out
    gpu.release()
    out.close()


def prefill(engine, name="a", ids=FIRST, first=0, **how):
    """A prompt of the tokens from `first` on."""
    request = request_of(TOKENS, name, prompt_token_ids=list(range(first, first + TOKENS)))
    engine.admit(request, (ids,))
    engine.step(step_of((request, (ids,), 0, TOKENS)), ids, **how)
    return request


def load(engine, name="b", ids=tuple(range(20, 29))):
    request = request_of(TOKENS, name)
    engine.begin_load(request, (list(ids),), 8 * BLOCK)
    results = engine.received(request)
    assert results.errors == set() and results.failed_recving == set()
    return request


def assert_loaded(engine, data, ids=range(20, 28)):
    """data: the computed KV of the first blocks of the prompt."""
    for name in engine.names():
        assert [engine.pool.read(name, i) for i in ids] == [data[name, i] for i in FIRST[:8]]


# ---- geometry


@pytest.mark.parametrize("layout", kv.KVCacheLayout)
@pytest.mark.parametrize("kernel_tokens", [None, 16])
def test_layouts_of_vllm(gpu, config, layout, kernel_tokens):  # noqa: F811
    if kernel_tokens and not (layout.is_block_compact and layout.is_layer_compact):
        with pytest.raises(ValueError):  # vLLM has none either
            Pool(gpu, cache_of(), layout, kernel_tokens)
        return
    engine = Engine(gpu, settings(config), cache_of(), layout=layout, kernel_tokens=kernel_tokens)
    runs = 1 if layout.is_block_compact else 2  # one for each head
    assert engine.half.geometry.runs == runs and len(engine.half.geometry.bases) == runs * LAYERS
    for name in engine.names():
        for block in range(BLOCKS):
            engine.pool.write(name, block, bytes([block]) * engine.pool.bytes_of(name))
    prefill(engine)
    engine.stored()
    load(engine)
    assert_loaded(engine, engine.data)
    for name in engine.names():
        for block in {*range(BLOCKS)} - {*FIRST} - {*range(20, 28)}:
            assert engine.pool.read(name, block) == bytes([block]) * engine.pool.bytes_of(name)
    engine.close()


@pytest.mark.parametrize("size, layout, kernel_tokens", [
    (16, kv.KVCacheLayout.LBHNC, None), (64, kv.KVCacheLayout.BLNHC, None), (128, kv.KVCacheLayout.LBNHC, 16)])
def test_other_block_sizes(gpu, config, size, layout, kernel_tokens):  # noqa: F811
    """A chunk of 256 tokens, and 128 of the next one."""
    engine = Engine(gpu, changed(settings(config), "cache_config", block_size=size),
                    cache_of(dataclasses.replace(SPEC, block_size=size)), layout=layout, kernel_tokens=kernel_tokens)
    tokens, count = 384, 384 // size
    source, target = [*range(1, count + 2)], [*range(BLOCKS - count - 1, BLOCKS)]
    for name in engine.names():
        for block in range(BLOCKS):
            engine.pool.write(name, block, bytes([block]) * engine.pool.bytes_of(name))
    stored, loaded = request_of(tokens + 3, "a"), request_of(tokens + 3, "b")
    engine.admit(stored, (source,))
    engine.step(step_of((stored, (source,), 0, tokens + 3)), source)
    engine.stored()
    engine.begin_load(loaded, (target,), tokens)
    results = engine.received(loaded)
    assert results.errors == set() and results.failed_recving == set()
    for name in engine.names():
        assert [engine.pool.read(name, block) for block in target[:-1]] == [
            engine.data[name, block] for block in source[:-1]]
        for block in {*range(BLOCKS)} - {*source} - {*target[:-1]}:
            assert engine.pool.read(name, block) == bytes([block]) * engine.pool.bytes_of(name)
    engine.close()


class Halves(Pool):
    """All keys of a layer before all values, as older engines and some plug-ins have them."""

    def __init__(self, gpu, cache):
        self.gpu, self.count, self.views, self.raw = gpu, cache.num_blocks, {}, []
        for name in cache.kv_cache_groups[0].layer_names:
            self.raw.append(gpu.allocate(2 * BLOCKS * BLOCK * 2 * 16 * 4))
            self.views[name] = self.raw[-1].view(torch.float32).view(2, BLOCKS, BLOCK, 2, 16)

    def runs(self, name, number):
        return [(self.views[name][half, number].data_ptr(), BLOCK * 2 * 16 * 4) for half in (0, 1)]


def test_keys_and_values_apart(gpu, config):  # noqa: F811
    engine = Engine(gpu, settings(config), cache_of(), Halves(gpu, cache_of()))
    assert engine.half.geometry.runs == 2
    prefill(engine)
    engine.stored()
    load(engine)
    assert_loaded(engine, engine.data)
    engine.close()


def test_the_layout_belongs_to_the_identity(gpu, config):  # noqa: F811
    names = set()
    for layout in (kv.KVCacheLayout.LBNHC, kv.KVCacheLayout.LBHNC, kv.KVCacheLayout.BHLNC):
        engine = Engine(gpu, settings(config), cache_of(), layout=layout)
        names.add(engine.half.view.namespace)
        engine.close()
    assert len(names) == 3 and all('platform\\":\\"cuda' in name or '"platform":"cuda"' in name for name in names)
    assert "isa" not in identity.layout("1", "b", (2,), (1,), "f", 16, memory="cuda")


@pytest.mark.parametrize("part, values, reason", [
    ("cache_config", {"cache_dtype": "fp8_per_token_head"}, "KV of type fp8_per_token_head with dynamic scales"),
    ("cache_config", {"cache_dtype": "int8_per_token_head"}, "KV of type int8_per_token_head with dynamic scales"),
    ("cache_config", {"cache_dtype": "fp8", "calculate_kv_scales": True}, "KV of type fp8 with dynamic scales"),
    ("cache_config", {"cache_dtype": "nvfp4"}, "KV of type nvfp4"),
    ("model_config", {"enable_sleep_mode": True}, "sleep mode"), (None, {}, "KV in the memory of an AMD GPU")])
def test_what_is_not_served_has_a_name(gpu, config, monkeypatch, part, values, reason):  # noqa: F811
    if part is None:
        monkeypatch.setattr(torch.version, "hip", "6.4")
    other = changed(config, part, **values) if part else config
    with pytest.raises(Unsupported, match=reason):
        device.memory_of({"x": CudaTensor(torch.zeros(1))}, other, cache_of())


def test_fp8_with_static_scales_is_served(gpu, config):  # noqa: F811
    spec = kv.FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=16, dtype=torch.float8_e4m3fn,
                                kv_quant_mode=kv.KVQuantMode.FP8_PER_TENSOR)
    engine = Engine(gpu, changed(settings(config), "cache_config", cache_dtype="fp8_e4m3"), cache_of(spec))
    assert "fp8_e4m3" in engine.half.view.namespace
    prefill(engine)
    engine.stored()
    load(engine)
    assert_loaded(engine, engine.data)
    engine.close()


# ---- stores


@pytest.mark.parametrize("layerwise", [True, False], ids=["piecewise", "full graph"])
def test_stores_do_not_delay_the_next_step(gpu, engine, layerwise):
    """vLLM omits its calls for single layers if the step is one graph."""
    with gpu.held():
        request = prefill(engine, layerwise=layerwise)
        # The request continues in a new block, while its old blocks are still being copied.
        engine.step(step_of(cached=[(request, ([10],), TOKENS, 1)]), [10])
        engine.step(step_of(), [])
        assert engine.half.behind.readers.keys() == {*FIRST[:8]}
        assert engine.half.take_counters().get("saved_tokens", 0) == 0
    engine.stored()
    assert engine.half.take_counters()["saved_tokens"] == 8 * BLOCK
    load(engine)
    assert_loaded(engine, engine.data)


def ends(request, engine):
    engine.scheduler.request_finished_all_groups(request, (FIRST,))


@pytest.mark.parametrize("how", ["another request", "a longer request", "a resumed request", "a load"])
def test_a_step_waits_for_the_stores_whose_blocks_it_gets(gpu, engine, how):
    engine.stored()
    if how == "a load":
        prefill(engine, "x", list(range(40, 49)), 5000)
        engine.stored()
    before = {}
    with gpu.held():
        request = prefill(engine)
        before.update(engine.data)
        ends(request, engine)
        new = request_of(40, "n", prompt_token_ids=list(range(9000, 9040)))
        if how == "a load":
            new = request_of(TOKENS, "n", prompt_token_ids=list(range(5000, 5000 + TOKENS)))
            engine.begin_load(new, ([7, *range(50, 58)],), 8 * BLOCK)
            output, written = step_of(), []
        else:
            assert engine.ask(new)[0] == 0
            engine.scheduler.update_state_after_alloc(new, Allocated(([7, 50],)), 0)
            first = 0 if how == "another request" else 32
            cached = {"a longer request": [(new, ([7],), 33, 1)],
                      "a resumed request": [(new, ([60, 7],), 32, 1, True)]}.get(how, [])
            output = step_of(*([(new, ([7, 50],), 0, 40)] if not first else []), cached=cached)
            written = [7]
        waiting = Background(engine, lambda: engine.step(output, written))
        assert waiting.is_alive() and 7 in engine.half.behind.readers
        gpu.release()
        waiting.ended()
    engine.stored()
    if how == "a load":
        engine.received(new)
    load(engine)
    assert_loaded(engine, before)


def test_blocks_that_the_step_only_reads_do_not_wait(gpu, engine):
    """A request whose prompt begins like the prompt of another request, which is in vLLM's own cache."""
    with gpu.held():
        prefill(engine)
        shares = request_of(TOKENS + 40, "s")
        engine.ask(shares, 8 * BLOCK)
        engine.scheduler.update_state_after_alloc(shares, Allocated(([*FIRST[:8], 30, 31],)), 0)
        engine.step(step_of((shares, ([*FIRST[:8], 30, 31],), 8 * BLOCK, 43)), [30, 31])
        assert engine.half.behind.readers
    engine.stored()


def test_an_unknown_step_waits_for_all_stores(gpu, engine, monkeypatch):
    with gpu.held():
        prefill(engine)
        meta = engine.scheduler.build_connector_meta(Thing())  # the step has no work
        assert meta.written is None and engine.scheduler.failed_methods
        engine.scheduler.failed_methods.clear()
        waiting = Background(engine, lambda: engine.begin(meta))
        gpu.release()
        waiting.ended()
        assert not engine.half.behind.readers


def test_a_graph_that_is_being_captured_is_left_alone(gpu, engine):
    request = request_of(TOKENS, "a")
    engine.admit(request, (FIRST,))
    engine.begin(engine.scheduler.build_connector_meta(step_of((request, (FIRST,), 0, TOKENS))))
    for at, name in enumerate(engine.names()):
        gpu.capturing = at == 1
        gpu.driver.cuda_fake_capture(gpu.stream.handle, gpu.capturing)
        engine.worker.wait_for_layer_load(name)
        gpu.driver.cuda_fake_capture(gpu.stream.handle, False)
        engine.compute(name, FIRST)
        gpu.driver.cuda_fake_capture(gpu.stream.handle, gpu.capturing)
        engine.worker.save_kv_layer(name, None, None)
        gpu.driver.cuda_fake_capture(gpu.stream.handle, False)
    gpu.capturing = False
    engine.finish()
    engine.stored()
    load(engine)
    assert_loaded(engine, engine.data)


def test_a_layer_of_a_part_of_a_batch_is_not_stored(gpu, config):  # noqa: F811
    """With ubatches, vLLM calls the connector for each part, before the other parts are computed."""
    engine = Engine(gpu, changed(settings(config), "parallel_config", enable_dbo=True), cache_of())
    request = request_of(TOKENS, "a")
    engine.admit(request, (FIRST,))
    engine.begin(engine.scheduler.build_connector_meta(step_of((request, (FIRST,), 0, TOKENS))))
    for part in (FIRST[:4], FIRST[4:]):
        for name in engine.names():
            engine.compute(name, part)
            engine.worker.save_kv_layer(name, None, None)
    engine.finish()
    engine.stored()
    load(engine)
    assert_loaded(engine, engine.data)
    engine.close()


def test_a_store_of_before_a_reset_is_not_found_after_it(gpu, engine):
    with gpu.held():
        prefill(engine)
        assert engine.scheduler.reset_cache()
    engine.stored()
    assert engine.ask(request_of(TOKENS, "b")) == (0, False)
    prefill(engine, "c", list(range(30, 39)))
    engine.stored()
    assert engine.ask(request_of(TOKENS, "d")) == (8 * BLOCK, True)


def test_a_shutdown_waits_for_stores(gpu, config):  # noqa: F811
    engine = Engine(gpu, settings(config), cache_of())
    with gpu.held():
        prefill(engine)
        thread = threading.Thread(target=lambda: (gpu.enter(), engine.close()), daemon=True)
        thread.start()
        until(lambda: not any(loader.is_alive() for loader in engine.half.loaders))
        assert thread.is_alive() and engine.half.behind.readers
    thread.join(60)
    assert not thread.is_alive() and not engine.half.behind.readers


# ---- loads


def test_a_load_comes_behind_the_work_of_vllm(gpu, engine):
    """A kernel is still reading or writing the destination blocks of the load."""
    prefill(engine)
    engine.stored()
    before = dict(engine.data)
    request = request_of(TOKENS, "b")
    with gpu.held():
        engine.begin_load(request, ([*range(20, 29)],), 8 * BLOCK)
        engine.step(step_of(), range(20, 29))
    engine.received(request)
    assert_loaded(engine, before)


def test_a_load_does_not_delay_the_steps_of_others(gpu, engine):
    prefill(engine)
    engine.stored()
    request = request_of(TOKENS, "b")
    engine.begin_load(request, ([*range(20, 29)],), 8 * BLOCK)
    with gpu.held():
        for block in (40, 41):
            assert engine.step(step_of(), [block]).finished_recving == set()
    engine.received(request)
    assert_loaded(engine, engine.data)


def test_late_copies_of_a_load_come_before_what_vllm_computes_instead(gpu, config):  # noqa: F811
    engine = Engine(gpu, settings(config, **{"timeout.load": "200ms"}), cache_of())
    prefill(engine)
    engine.stored()
    with gpu.held():
        request = request_of(TOKENS, "c")
        engine.begin_load(request, ([*range(30, 39)],), 8 * BLOCK)
        results = engine.received(request)
        assert results.errors == set(range(30, 38))
        for name in engine.names():
            engine.compute(name, range(30, 39))
    for name in engine.names():
        assert all(engine.pool.read(name, i) == engine.data[name, i] for i in range(30, 38))
    assert engine.ask(request) == (0, False)  # not again for this request
    engine.close()


def test_with_policy_fail_nothing_is_promised_that_is_not_pinned(gpu, config):  # noqa: F811
    strict = settings(config)
    strict.kv_transfer_config.kv_load_failure_policy = "fail"
    engine = Engine(gpu, strict, cache_of())
    prefill(engine)
    engine.stored()
    engine.half.memory.prepare = lambda views: False
    request = request_of(TOKENS, "b")
    assert engine.ask(request) == (0, False) and engine.limit(request) == LIMIT_NOT_READY
    del engine.half.memory.prepare
    assert engine.ask(request_of(TOKENS, "c")) == (8 * BLOCK, True)
    engine.close()


# ---- pinning, sleep, speed


def test_preparing_is_two_lines(gpu, lines, caplog):  # noqa: F811
    memory, answers = device.CudaMemory(CudaTensor.device, True), [False, False, True, True]
    caplog.set_level(logging.INFO, logger="tierce")
    for expected in (False, False, True, True):
        assert memory.prepare([Thing(prepare=lambda: answers.pop(0))]) == expected
    told = [r.getMessage() for r in caplog.records if "prepared" in r.getMessage()]
    assert len(told) == 2 and "until then nothing is stored or loaded" in told[0]


def test_a_sleeping_engine_has_no_transfers(gpu, engine):
    prefill(engine)
    engine.stored()
    with gpu.held():
        prefill(engine, "x", list(range(40, 49)), 5000)
        request = request_of(TOKENS, "b")
        engine.begin_load(request, ([*range(20, 29)],), 8 * BLOCK)
        engine.step(step_of(), [])
        waiting = Background(engine, engine.worker.unregister_kv_caches)
        gpu.release()
        waiting.ended()
    assert not engine.half.busy and not engine.half.behind.readers
    copies = gpu.driver.cuda_fake_calls().copies
    asleep = request_of(TOKENS, "c")
    assert engine.ask(asleep) == (0, False) and engine.limit(asleep) == LIMIT_NOT_READY
    engine.received(request)
    assert gpu.driver.cuda_fake_calls().copies == copies
    engine.worker.restore_kv_caches()
    load(engine, "d")


def test_speeds_are_those_of_the_gpu(gpu, engine, monkeypatch):
    told = []
    monkeypatch.setattr(engine.half.memory, "speeds", lambda *arguments, original=engine.half.memory.speeds:
                        told.append(original(*arguments)) or [])
    with gpu.held():
        prefill(engine)
        assert told == [[]]  # it still computes
    gpu.call("cuStreamSynchronize", gpu.stream.handle)
    engine.step(step_of(), [])
    ((tokens, took_ns),) = told[1]
    assert tokens >= 8 * BLOCK and took_ns > 0 and not engine.half.memory.timed
