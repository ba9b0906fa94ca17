# SPDX-License-Identifier: Apache-2.0
"""SGLang's storage on small host pools, without SGLang. test_sglang_classes.py has SGLang's own classes."""

import hashlib
import logging
import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace as Thing

import numpy
import pytest

from tierce import _core as core, page_view
from tierce.sglang import engine_identity, storage_calls
from tierce.sglang.pool_pages import Geometry, name_of
from tierce.sglang.storage_calls import Calls
from tierce.vllm.identity import ConfigError

TOKENS, PAGES, LAYERS, ROW = 16, 8, 3, 32  # of a page, of a pool, of a model; bytes of a token in a layer, keys alone
PLACES = {"page_first": 2, "page_first_direct": 2, "layer_first": 2 * LAYERS}
VALUES = {"interface_v1": 1, "identity": "a model", "memory.size": "16MiB", "disk.path": ""}


@dataclass
class Config:
    """As HiCacheStorageConfig."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    dp_rank: int = 0
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    should_split_heads: bool = False
    dcp_size: int = 1
    extra_config: dict = field(default_factory=dict)


class Flat:
    """The methods of a tensor that a page without addresses needs."""

    def __init__(self, memory):
        self.memory = memory

    def data_ptr(self):
        return self.memory.ctypes.data

    def numel(self):
        return self.memory.size

    def element_size(self):
        return self.memory.itemsize

    def is_contiguous(self):
        return self.memory.flags.c_contiguous

    def contiguous(self):
        return Flat(numpy.ascontiguousarray(self.memory))


class Pool:
    """A host pool of keys and values, in one of SGLang's layouts."""

    device, dtype, layer_num, head_num = "cpu", "bfloat16", LAYERS, 2

    def __init__(self, layout="page_first", pages=PAGES, tokens=TOKENS):
        self.layout, self.page_size, self.size = layout, tokens, pages * tokens
        by_layer = layout == "layer_first"
        self.memory = numpy.zeros((2, LAYERS, self.size, ROW) if by_layer else (2, self.size, LAYERS, ROW), numpy.uint8)

    def page(self, number):
        """Keys and values of a page."""
        first, end = number * self.page_size, (number + 1) * self.page_size
        return self.memory[:, :, first:end] if self.layout == "layer_first" else self.memory[:, first:end]

    def fill(self, number, seed):
        page = self.page(number)
        page[...] = numpy.random.default_rng(seed).integers(0, 256, page.shape, numpy.uint8)
        return page.copy()

    def get_page_buffer_meta(self, indices):
        starts = []
        for first in indices.tolist()[::self.page_size]:
            layers = range(LAYERS) if self.layout == "layer_first" else [None]
            for layer in layers:
                for half in self.memory:
                    place = half[first] if layer is None else half[layer, first]
                    starts.append(place.ctypes.data)
        size = self.page(0).nbytes // PLACES[self.layout]
        return starts, [size] * len(starts)

    def get_dummy_flat_data_page(self):
        return Flat(numpy.zeros(self.page(0).nbytes, numpy.uint8))

    def get_data_page(self, first):
        return Flat(self.page(first // self.page_size).flatten())

    def set_from_flat_data_page(self, first, data):
        page = self.page(first // self.page_size)
        page[...] = data.memory.reshape(page.shape)


class PoolWithoutAddresses(Pool):
    def get_page_buffer_meta(self, indices):
        raise ValueError("Unsupported layout: layer_first")


class PoolOfPlaces(Pool):
    """Only numbers of pages: the KV itself is in other pools, as of DeepSeek-V4."""

    def get_page_buffer_meta(self, indices):
        return None

    def get_dummy_flat_data_page(self):
        return Flat(numpy.zeros(0, numpy.uint8))

    def get_data_page(self, first):
        return self.get_dummy_flat_data_page()


class PoolThatOnlyRaises(PoolWithoutAddresses):
    def get_data_page(self, first):
        raise NotImplementedError("no flat pages")


@pytest.fixture
def open_calls(monkeypatch):
    """Opens storages of SGLang, with one pool."""
    opened = []
    monkeypatch.setattr(storage_calls, "ERAS", [])  # those of a process

    def make(pool=None, config=None, args=None, **values):
        config = config or Config()
        config.extra_config = {**VALUES, **values}
        calls = Calls(config, args, "0.5")
        opened.append(calls)
        if pool is not None:
            calls.register_mem_pool_host(pool)
        return calls

    yield make
    for calls in opened:
        calls.close()


def keys_of(count, seed="prompt"):
    out, parent = [], seed
    for _ in range(count):
        parent = hashlib.sha256(parent.encode()).hexdigest()
        out.append(parent)
    return out


def indices_of(pool, *pages):
    return numpy.concatenate([numpy.arange(p * pool.page_size, (p + 1) * pool.page_size) for p in pages])


@pytest.mark.parametrize("layout", PLACES)
def test_pages_come_back_in_other_places(open_calls, layout):
    pool, keys = Pool(layout), keys_of(3)
    calls = open_calls(pool)
    contents = [pool.fill(number, number) for number in (5, 0, 2)]
    assert calls.batch_exists(keys) == 0
    assert calls.batch_set_v1(keys, indices_of(pool, 5, 0, 2)) == [True] * 3
    assert calls.batch_exists(keys) == 3 and calls.exists(keys[2])
    others = pool.fill(1, 9), pool.fill(5, 10)
    assert calls.batch_get_v1(keys, indices_of(pool, 7, 3, 4)) == [True] * 3
    for content, number in zip([*contents, *others], (7, 3, 4, 1, 5)):
        assert (pool.page(number) == content).all()
    moved = calls.take_moved()
    assert moved["load pages"] == moved["store pages"] == 3
    assert moved["load bytes"] == 3 * pool.page(0).nbytes


def test_a_page_that_is_missing_ends_a_call(open_calls):
    pool, keys = Pool(), keys_of(4)
    calls = open_calls(pool)
    pool.fill(0, 0)
    for key in (keys[0], keys[1], keys[3]):
        assert calls.batch_set_v1([key], indices_of(pool, 0)) == [True]
    assert calls.batch_exists(keys) == 2
    loaded = calls.batch_get_v1(keys, indices_of(pool, 4, 5, 6, 7))
    assert loaded[:3] == [True, True, False]


def test_a_page_is_stored_once_and_outlives_the_process(open_calls, tmp_path):
    pool, keys = Pool(), keys_of(2)
    calls = open_calls(pool, **{"disk.path": str(tmp_path), "disk.size": "64MiB"})
    content = pool.fill(0, 3)
    for _ in range(2):
        assert calls.batch_set_v1(keys, indices_of(pool, 0, 0)) == [True, True]
    assert calls.engine.stats()["chunks_stored"] == 2
    assert calls.engine.flush(60_000)
    calls.close()
    calls = open_calls(pool, **{"disk.path": str(tmp_path), "disk.size": "64MiB"})
    assert calls.batch_exists(keys) == 2
    assert calls.batch_get_v1(keys, indices_of(pool, 6, 7)) == [True, True]
    assert (pool.page(6) == content).all() and (pool.page(7) == content).all()


def test_more_pages_than_memory_holds(open_calls, tmp_path):
    pool, keys = Pool(tokens=512, pages=48), keys_of(24)
    calls = open_calls(pool, **{"memory.size": "1MiB", "disk.path": str(tmp_path), "disk.size": "64MiB", "timeout.store": "20s"})
    contents = [pool.fill(number, number) for number in range(24)]
    assert all(calls.batch_set_v1(keys, indices_of(pool, *range(24))))
    assert calls.engine.flush(60_000)
    assert calls.engine.stats()["memory_chunks_now"] < 12 and calls.batch_exists(keys) == 24
    assert all(calls.batch_get_v1(keys, indices_of(pool, *range(24, 48))))
    assert all((pool.page(24 + number) == content).all() for number, content in enumerate(contents))


def test_pages_of_a_remote_store(open_calls, tmp_path):
    pool, keys = Pool(), keys_of(5)
    remote = {"remote.urls": f"file://{tmp_path}", "timeout.lookup": "20s"}
    calls = open_calls(pool, **remote)
    content = pool.fill(0, 3)
    assert calls.batch_set_v1(keys[:4], indices_of(pool, 0, 0, 0, 0)) == [True] * 4
    assert calls.engine.flush(60_000)
    calls.close()
    calls = open_calls(pool, **remote)
    assert calls.batch_exists(keys) == 4
    assert calls.batch_get_v1(keys, indices_of(pool, 3, 4, 5, 6, 7)) == [True] * 4 + [False]
    assert all((pool.page(number) == content).all() for number in range(3, 7))


def test_sglangs_threads_call_at_the_same_time(open_calls):
    pool, failures = Pool(pages=64), []
    calls = open_calls(pool)
    contents = [pool.fill(number, number) for number in range(4)]

    def work(number):
        keys, target = keys_of(3, f"thread {number}"), 8 + number * 8
        for _ in range(10):
            calls.batch_set_v1(keys, indices_of(pool, number, number, number))
            found, loaded = calls.batch_exists(keys), calls.batch_get_v1(keys, indices_of(pool, target, target + 1, target + 2))
            if found != 3 or not all(loaded) or not (pool.page(target + 2) == contents[number]).all():
                failures.append((number, found, loaded))

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_ranks_versions_models_and_layouts_are_apart(open_calls):
    key, pool = keys_of(1), Pool()
    calls = open_calls(pool)
    assert calls.batch_set_v1(key, indices_of(pool, 0)) == [True]
    group = Thing(anchor_entry=Thing(host_pool=Pool()))  # as SGLang's group of pools
    assert open_calls(group).batch_exists(key) == 1
    first, second, halves = Pool(), Pool(), Pool()
    first.start_layer, second.start_layer, halves.conv_dtype = 3, 4, "float16"
    by_head = Pool()
    by_head._buffer_infos = [Thing(buffers=Thing(layout="hnd"))]
    assert open_calls(first, Config(pp_rank=1, pp_size=3)).batch_set_v1(key, indices_of(first, 0)) == [True]
    assert open_calls(first, Config(pp_rank=1, pp_size=3)).batch_exists(key) == 1
    others = [open_calls(second, Config(pp_rank=1, pp_size=3)), open_calls(halves), open_calls(by_head),
              open_calls(Pool(), Config(tp_rank=1, tp_size=2)), open_calls(Pool(), Config(pp_rank=1, pp_size=2)),
              open_calls(Pool(), Config(attn_cp_rank=1, attn_cp_size=2)), open_calls(Pool(), identity="another"),
              open_calls(Pool("layer_first")), open_calls(Pool("page_first_direct"))]
    assert [each.batch_exists(key) for each in others] == [0] * len(others)


def test_ranks_of_latent_attention_share_pages(open_calls, tmp_path):
    key, pool = keys_of(1), Pool()
    pool.head_num = None
    remote = {"remote.urls": f"file://{tmp_path}"}
    calls = open_calls(pool, Config(is_mla_model=True, tp_size=2), **remote)
    assert calls.batch_set_v1(key, indices_of(pool, 0)) == [True]
    second = open_calls(pool, Config(is_mla_model=True, tp_rank=1, tp_size=2), **remote)
    assert second.batch_exists(key) == 1
    states = Pool()
    for each in (calls, second):
        each.register_mem_host_pool_v2(states, "mamba")
    assert calls.batch_set_v2([Thing(name="mamba", keys=key, host_indices=indices_of(states, 0))]) == {"mamba": [True]}
    want = [Thing(name="mamba", keys=key, hit_policy="trailing_pages")]
    assert calls.batch_exists_v2(key, want).kv_hit_pages == 1
    assert second.batch_exists_v2(key, want).kv_hit_pages == 0
    with pytest.raises(ConfigError, match="'draft' .* has heads"):
        calls.register_mem_host_pool_v2(Pool(), "draft")
    with pytest.raises(RuntimeError, match="clear is not supported with latent attention"):
        calls.clear()
    assert calls.batch_exists(key) == 0 and calls.batch_set_v1(key, indices_of(pool, 0)) == [False]
    with pytest.raises(ConfigError, match="was cleared in this process"):
        open_calls(pool, Config(is_mla_model=True, tp_size=2), **remote)


@pytest.mark.parametrize("hosts, is_mla, count", [(2, True, 1), (1, True, 0), (2, False, 0)])
def test_ranks_on_several_hosts_need_a_remote_store(open_calls, caplog, tmp_path, hosts, is_mla, count):
    config = Config(is_mla_model=is_mla, tp_size=2)
    open_calls(config=config, args=Thing(nnodes=hosts), **{"remote.urls": f"file://{tmp_path}"})
    assert len(lines(caplog)) == count


def in_a_thread(call, *args):
    results = []
    thread = threading.Thread(target=lambda: results.append(call(*args)))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("interface", [0, 1])
def test_nothing_is_found_after_a_clear(open_calls, interface):
    """SGLang clears in another thread than it stores in."""
    pool, keys = Pool(), keys_of(2)
    calls = open_calls(pool, interface_v1=interface)
    pool.fill(0, 1)
    assert in_a_thread(calls.batch_set_v1, keys, indices_of(pool, 0, 1)) == [True, True]
    assert calls.engine.stats()["memory_chunks_now"] == 2
    assert calls.clear()
    assert calls.engine.stats()["memory_chunks_now"] == 0
    assert calls.batch_exists(keys) == 0
    assert calls.batch_get_v1(keys, indices_of(pool, 0, 1)) == [False, False]
    assert calls.batch_set_v1(keys, indices_of(pool, 0, 1)) == [True, True]
    assert calls.batch_exists(keys) == 2


def test_a_view_that_is_opened_after_a_clear_has_the_weights_of_its_pool(open_calls):
    """A backup that has begun before a clear goes on with the old pages."""
    pool, keys = Pool(), keys_of(1)
    calls = open_calls(pool, interface_v1=0)
    before = calls.flat()
    calls.clear()
    assert in_a_thread(before.set, name_of(keys[0]), pool.get_data_page(0))
    assert calls.batch_exists(keys) == 0


def test_a_clear_that_fails_leaves_nothing_to_find(open_calls, monkeypatch):
    pool, keys = Pool(), keys_of(1)
    calls = open_calls(pool)
    assert calls.batch_set_v1(keys, indices_of(pool, 0)) == [True]
    monkeypatch.setattr(calls, "open_pool", lambda name, pool: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        calls.clear()
    assert calls.batch_exists(keys) == 0


def test_a_storage_that_is_attached_again_finds_nothing_from_before_a_clear(open_calls, tmp_path):
    pool, keys, remote = Pool(), keys_of(2), {"remote.urls": f"file://{tmp_path}", "timeout.lookup": "20s"}
    calls = open_calls(pool, **remote)
    assert calls.batch_set_v1(keys[:1], indices_of(pool, 0)) == [True]
    assert calls.engine.flush(60_000)
    calls.clear()
    assert calls.batch_set_v1(keys[1:], indices_of(pool, 0)) == [True]
    assert calls.engine.flush(60_000)
    calls.close()
    calls = open_calls(pool, **remote)
    assert [calls.exists(key) for key in keys] == [False, True]


# ---- the interface without zero copy ------------------------------------------------------------


def test_flat_pages(open_calls):
    pool, keys = Pool(), keys_of(3)
    calls = open_calls(pool, interface_v1=0)
    contents = [pool.fill(number, number) for number in range(2)]
    assert calls.batch_set(keys[:2], [pool.get_data_page(number * TOKENS) for number in range(2)])
    assert calls.batch_exists(keys) == 2
    pages = calls.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])
    for page, content in zip(pages, contents):
        assert (page.memory == content.flatten()).all()
    assert pages[2] is None
    assert calls.get(keys[0]) is None and not calls.batch_set(keys, None)


def test_a_pool_without_addresses_is_copied(open_calls):
    pool, keys = PoolWithoutAddresses(), keys_of(2)
    calls = open_calls(pool)
    contents = [pool.fill(number, number) for number in (1, 2)]
    assert calls.batch_set_v1(keys, indices_of(pool, 1, 2)) == [True, True]
    assert calls.batch_exists(keys) == 2
    assert calls.batch_get_v1(keys, indices_of(pool, 6, 4)) == [True, True]
    assert (pool.page(6) == contents[0]).all() and (pool.page(4) == contents[1]).all()


# ---- hybrid pools ----------------------------------------------------------------------------------


class Hybrid:
    """A storage with a pool of KV and a pool of states."""

    def __init__(self, open_calls):
        self.kv, self.states = Pool(), Pool(tokens=1, pages=16)
        self.calls = open_calls(self.kv)
        self.calls.register_mem_host_pool_v2(self.kv, "kv")
        self.calls.register_mem_host_pool_v2(self.states, "mamba")
        self.calls.on_host_pools_registered()

    def store(self, keys, kv, states):
        """Pages of these numbers."""
        for number in kv:
            assert self.calls.batch_set_v1([keys[number]], indices_of(self.kv, 0)) == [True]
        for number in states:
            transfer = Thing(name="mamba", keys=[keys[number]], host_indices=indices_of(self.states, number))
            assert self.calls.batch_set_v2([transfer]) == {"mamba": [True]}

    def find(self, prompt, **fields):
        return self.calls.batch_exists_v2(prompt, [Thing(name="mamba", **fields)])


@pytest.mark.parametrize("policy, trailing, states, restorable", [
    ("trailing_pages", 1, (1, 4), [2, 5]), ("trailing_pages", 1, (), []), ("trailing_pages", 2, (0, 2, 3, 5), [1, 4]),
    ("trailing_pages", 1, (5,), []), ("all_pages", 1, (0, 1, 3), [1, 2]), ("all_pages", 1, range(6), [1, 2, 3, 4, 5])])
def test_every_prefix_that_all_pools_allow(open_calls, policy, trailing, states, restorable):
    hybrid, keys = Hybrid(open_calls), keys_of(6)
    hybrid.store(keys, kv=range(5), states=states)
    found = hybrid.find(keys, keys=keys[-trailing:], hit_policy=policy)
    assert found.restorable_prefix_pages == restorable
    assert found.kv_hit_pages == max(restorable, default=0)
    assert found.extra_pool_hit_pages == {"kv": 5, **({"mamba": max(restorable)} if restorable else {})}


def test_groups_of_blocks_do_not_limit_a_prefix(open_calls):
    hybrid, keys = Hybrid(open_calls), keys_of(6)
    hybrid.store(keys, kv=range(5), states=(0, 1, 2, 3, 4))
    found = hybrid.find(keys, keys=keys, hit_policy="block_groups", block_pages=3, group_pages=2)
    assert found.kv_hit_pages == 5 and found.extra_pool_hit_pages == {"kv": 5, "mamba": 6}


def test_each_pool_has_its_own_time(open_calls):
    hybrid, keys, left = Hybrid(open_calls), keys_of(2), []
    calls = hybrid.calls
    hybrid.store(keys, kv=(0, 1), states=(1,))
    calls.opened.lookup_s = 0.05
    ask_kv, ask_states = calls.pools["kv"].ask, calls.pools["mamba"].ask

    def slow(*args):
        time.sleep(2 * calls.opened.lookup_s)
        return ask_kv(*args)

    def noted(names, until, stops):
        left.append(until - time.monotonic())
        return ask_states(names, until, stops)

    calls.pools = {"kv": Thing(ask=slow), "mamba": Thing(ask=noted)}
    for policy in ({"hit_policy": "trailing_pages"}, {"hit_policy": "block_groups", "block_pages": 1, "group_pages": 1}):
        assert hybrid.find(keys, keys=keys[-1:], **policy).kv_hit_pages == 2
    assert len(left) == 2 and min(left) > 0


def test_states_come_back(open_calls):
    hybrid, keys = Hybrid(open_calls), keys_of(2)
    content = hybrid.states.fill(3, 1)
    hybrid.calls.batch_set_v2([Thing(name="mamba", keys=keys[1:], host_indices=indices_of(hybrid.states, 3))])
    transfers = [Thing(name="mamba", keys=keys[1:], host_indices=indices_of(hybrid.states, 9))]
    assert hybrid.calls.batch_get_v2(transfers) == {"mamba": [True]}
    assert (hybrid.states.page(9) == content).all()


# ---- failures --------------------------------------------------------------------------------------


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture(autouse=True)
def log_reaches_caplog(monkeypatch):
    monkeypatch.setattr(logging.getLogger("tierce"), "propagate", True)


@pytest.mark.parametrize("indices", [
    numpy.arange(TOKENS - 1), numpy.arange(1, TOKENS + 1), numpy.arange(PAGES * TOKENS, (PAGES + 1) * TOKENS), None])
def test_indices_that_are_no_pages_move_nothing(open_calls, caplog, indices):
    pool = Pool()
    calls = open_calls(pool)
    assert calls.batch_set_v1(keys_of(1), indices) == [False]
    before = pool.memory.copy()
    assert calls.batch_get_v1(keys_of(1), indices) == [False]
    assert (pool.memory == before).all()
    assert len(lines(caplog)) == 2


def test_pages_at_other_addresses_are_not_moved(open_calls, caplog):
    """SGLang's address of a page counts, and is compared with the description."""
    pool, keys = Pool(), keys_of(1)
    calls = open_calls(pool)
    assert calls.batch_set_v1(keys, indices_of(pool, 0)) == [True]
    pool.memory = pool.memory.copy()  # elsewhere
    assert calls.batch_get_v1(keys, indices_of(pool, 0)) == [False]
    assert calls.batch_get_v1(keys, indices_of(pool, 0)) == [False]
    assert lines(caplog) == ["Tierce's storage for SGLang failed in batch_get_v1; this is a miss, and is logged once"]


def test_pages_of_an_unknown_pool_are_not_moved(open_calls):
    """The answer has a value for each key, as if the store had none of them."""
    calls = open_calls(Pool())
    unknown = Thing(name="unknown", keys=keys_of(2), host_indices=numpy.arange(2 * TOKENS))
    assert calls.batch_set_v2([unknown]) == calls.batch_get_v2([unknown]) == {"unknown": [False, False]}


def test_a_storage_without_pools_or_after_close_is_empty(open_calls):
    calls = open_calls()
    assert calls.batch_exists(keys_of(2)) == 0 and not calls.set(keys_of(1)[0], Flat(numpy.zeros(8, numpy.uint8)))
    calls.register_mem_pool_host(Pool())
    calls.close()
    assert calls.batch_get_v1(keys_of(2), numpy.arange(2 * TOKENS)) == [False, False]
    assert calls.batch_exists_v2(keys_of(2)).kv_hit_pages == 0


def test_pages_without_room_are_not_stored(open_calls):
    pool, keys = Pool(tokens=512, pages=4), keys_of(60)
    calls = open_calls(pool, **{"memory.size": "1MiB", "timeout.store": "0ms"})
    pool.fill(0, 0)
    stored = [calls.batch_set_v1([key], indices_of(pool, 0)) for key in keys]
    assert stored[-1] == [True]  # older pages were evicted
    assert calls.batch_exists(keys) == 0 and calls.exists(keys[-1])


# ---- identity and rejected set-ups ---------------------------------------------------------------


@pytest.mark.parametrize("config, values, text", [
    (Config(tp_size=2), {"disk.path": "/nonexistent"}, "several ranks and disk.path"),
    (Config(dp_rank=1), {"disk.path": "/nonexistent"}, "several ranks and disk.path"),
    (Config(is_mla_model=True, tp_size=2), {}, "latent attention on several ranks"),
    (Config(should_split_heads=True), {}, "tp_lcm_size"), (Config(dcp_size=2), {}, "decode context parallelism"),
    (Config(), {"node.start": "shared"}, "node.start 'shared'"), (Config(), {"identity": 5}, "identity 5 is invalid"),
    (Config(), {"memory.sise": "1GiB"}, "hicache-storage-backend-extra-config: .*memory.sise"),
    (Config(), {"identity": ""}, "does not show its arguments")])
def test_what_cannot_work_is_rejected(open_calls, config, values, text):
    with pytest.raises(ConfigError, match=text):
        open_calls(config=config, **values)


@pytest.mark.parametrize("args, text", [
    (Thing(enable_lora=True), "LoRA adapters are not supported"),
    (Thing(trust_mm_content_hashes=True), "trust-mm-content-hashes is not supported"),
    (Thing(model_path="m", custom_weight_loader=["l"]), "custom_weight_loader cannot be fingerprinted"),
    (Thing(model_path="m", modelopt_checkpoint_restore_path="c"), "modelopt_checkpoint_restore_path cannot be fingerprinted"),
    (Thing(model_path="m", quantization_param_path="q.json"), "quantization_param_path cannot be fingerprinted"),
    (Thing(model_path="m", speculative_draft_load_format="dummy"), "load format 'dummy' cannot be fingerprinted"),
    (Thing(model_path="m", weight_cache_mode="client"), "of a weight cache's daemon cannot be fingerprinted"),
    (Thing(model_path="/nonexistent", load_format="dummy"), "load format 'dummy' cannot be fingerprinted"),
    (Thing(model_path="/nonexistent"), "no local folder to fingerprint; set identity")])
def test_a_model_without_identity_is_rejected(args, text):
    with pytest.raises(ConfigError, match=text):
        engine_identity.model_identity(core, args, "")


def test_the_weights_and_arguments_of_a_model(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folders = [tmp_path / name for name in ("model", "drafter")]
    for folder in folders:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text(folder.name)
    model, drafter = map(str, folders)
    of = [engine_identity.model_identity(core, args, "") for args in (
        Thing(model_path=model, dtype="auto"), Thing(model_path=model, dtype="half"), Thing(model_path=drafter, dtype="auto"),
        Thing(model_path=model, dtype="auto", speculative_draft_model_path=drafter))]
    assert len({each["weights"] for each in of}) == 3 and of[0]["weights"] == of[1]["weights"]
    assert [each["model"] for each in of[:2]] == ['{"dtype":"auto"}', '{"dtype":"half"}']
    named = engine_identity.model_identity(core, Thing(model_path="/nonexistent", dtype="half"), "a text")
    assert named["model"] == '{"dtype":"half"}' and named["weights"] not in {each["weights"] for each in of}


def test_variables_of_the_environment_that_change_kv(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_LOG_MS", "1")
    assert engine_identity.model_identity(core, None, "a text")["model"] == ""
    monkeypatch.setenv("SGLANG_USE_HND_KVCACHE", "1")
    by_head = engine_identity.model_identity(core, Thing(dtype="half"), "a text")["model"]
    assert by_head == '{"SGLANG_USE_HND_KVCACHE":"1","dtype":"half"}'
    file, of_contents = tmp_path / "quant.json", set()
    monkeypatch.setenv("SGLANG_HUMMING_ONLINE_QUANT_CONFIG", str(file))
    for content in ("{}", '{"bits": 4}'):
        file.write_text(content)
        of_contents.add(engine_identity.model_identity(core, None, "a text")["model"])
    assert len(of_contents) == 2
    monkeypatch.setenv("SGLANG_EXTERNAL_MODEL_PACKAGE", "my_models")
    with pytest.raises(ConfigError, match="the code of the models .* cannot be fingerprinted"):
        engine_identity.model_identity(core, Thing(model_path="m"), "")


@pytest.mark.parametrize("kind, device, text", [
    (Pool, "npu", "in the memory of 'npu'"), (PoolOfPlaces, "cpu", "has no memory that a storage can read .a page of 0 bytes"),
    (PoolThatOnlyRaises, "cpu", "has no memory that a storage can read .no flat pages")])
def test_a_pool_that_cannot_be_read_is_rejected(open_calls, kind, device, text):
    pool = kind()
    pool.device = device
    with pytest.raises(ConfigError, match=text):
        open_calls(pool)


def test_small_pages_are_logged(open_calls, caplog):
    open_calls(Pool(tokens=1))
    assert [line.split(",")[0] for line in lines(caplog)] == ["each page of 1 tokens is stored as an object of its own"]


@pytest.mark.parametrize("interface", [0, 1])
def test_a_page_must_fit_into_memory(open_calls, interface):
    with pytest.raises(ConfigError, match="raise memory.size or lower SGLang's page size"):
        open_calls(Pool(tokens=65536, pages=2), interface_v1=interface, **{"memory.size": "1MiB"})


def test_names():
    name = "ab" * 32
    assert name_of(name) == bytes.fromhex(name)
    others = ["ab" * 31, "zz" * 32, name + "_L0-3", ""]
    assert len({name_of(other) for other in others}) == 4 and all(len(name_of(other)) == 32 for other in others)


def test_the_geometry_of_a_pool_of_one_page():
    geometry = Geometry.of(Pool(pages=1), numpy.arange)
    assert (geometry.strides == geometry.sizes).all() and geometry.pages == 1


def test_a_waiting_store_is_the_default(open_calls):
    assert open_calls().engine.param("timeout.store") == page_view.STORE_WAIT
    assert open_calls(**{"timeout.store": "0ms"}).engine.param("timeout.store") == "0ms"


def test_single_pages_are_not_weighed_against_prefill(open_calls):
    assert open_calls().engine.param("cost.check") == "false"
    assert open_calls(**{"cost.check": True}).engine.param("cost.check") == "true"
