# SPDX-License-Identifier: Apache-2.0
"""TierceLinker with the classes of SGLang's wheel: its factory, its base class, its counter of layers, and its descriptions of
pools, here of memory of the host."""

import importlib
import sys
import time
import types
from types import SimpleNamespace as Thing

import pytest

torch = pytest.importorskip("torch")

from test_sglang_classes import OF_DEVICES, TOKENS, Config, DeviceModule, keys_of, sglang  # noqa: E402, F401
from tierce.vllm.identity import ConfigError  # noqa: E402

LAYERS, PAGES = 5, 8  # the last two layers have states
HEADS = (0, 1, 2)
VALUES = {"identity": "a model", "memory.size": "16MiB", "disk.path": ""}
SECONDS = 30


@pytest.fixture(scope="module")
def linkers(sglang):  # noqa: F811
    for name in (*OF_DEVICES, "mem_cache.base_prefix_cache", "mem_cache.radix_cache", "mem_cache.unified_cache.components",
                 "mem_cache.utils"):
        sys.modules[f"sglang.srt.{name}"] = DeviceModule(f"sglang.srt.{name}")
    from sglang.srt.mem_cache.hybrid_cache import linker_pool_assembler
    from sglang.srt.mem_cache.unified_cache import linker_factory, unified_cache_linker

    ours = importlib.import_module("tierce.sglang.linker")  # not the package's attribute, which outlives the module

    yield types.SimpleNamespace(pools=linker_pool_assembler, factory=linker_factory, unified=unified_cache_linker,
                                storage=sglang, ours=ours)
    del sys.modules["tierce.sglang.linker"]


class World:
    """A model with heads in three layers and states in two, and SGLang's description of its pools."""

    def __init__(self, linkers, device="cpu", replicated=False):
        self.linkers, names = linkers, linkers.storage.PoolName
        tokens = PAGES * TOKENS
        self.keys = [torch.zeros(tokens, 2, 8, dtype=torch.bfloat16, device=device) for _ in HEADS]
        self.values = [torch.zeros(tokens, 2, 8, dtype=torch.bfloat16, device=device) for _ in HEADS]
        self.states, self.convolutions = torch.zeros(2, PAGES, 4, 8), torch.zeros(2, PAGES, 6, dtype=torch.bfloat16)
        entry = linkers.pools.DevicePoolEntry
        kv = entry(name=names.KV, indices_from_pool=names.KV, device_pool=Thing(), components=[[*self.keys, *self.values]],
                   layer_mapping={layer: (layer, len(HEADS) + layer) for layer in HEADS}, page_size=TOKENS,
                   rows_are_pages=False)
        states = entry(name=names.MAMBA, indices_from_pool=names.MAMBA, device_pool=Thing(),
                       components=[list(self.states), list(self.convolutions)], layer_mapping={3: 0, 4: 1}, page_size=1,
                       rows_are_pages=True)
        self.group = linkers.pools.DevicePoolGroup([kv] if replicated else [kv, states], LAYERS, TOKENS,
                                                   rank_replicated=replicated)
        self.registered = []

    def params(self):
        return Thing(token_to_kv_pool_allocator=Thing(get_kvcache=lambda: Thing(start_layer=0, end_layer=LAYERS)),
                     page_size=TOKENS, attn_tp_cache_group=None, tp_cache_group=None, pp_rank=0, pp_size=1, attn_cp_rank=0,
                     attn_cp_size=1, req_to_token_pool=Thing(register_layer_transfer_counter=self.registered.append))

    def fill(self, pages, seed):
        torch.manual_seed(seed)
        for page in pages:
            for tensor in (*self.keys, *self.values):
                tensor[page * TOKENS:(page + 1) * TOKENS].normal_()
            for tensor in (self.states, self.convolutions):
                tensor[:, page].normal_()

    def layer(self, layer, page):
        """All that a page, and the state of the same number, has in a layer."""
        if layer in HEADS:
            rows = slice(page * TOKENS, (page + 1) * TOKENS)
            return torch.cat([self.keys[layer][rows].flatten(), self.values[layer][rows].flatten()]).clone()
        return torch.cat([self.states[layer - 3, page], self.convolutions[layer - 3, page].float().reshape(-1, 1)
                          .expand(-1, 8)]).clone()

    def transfers(self, keys, pages=None, states=None):
        """Of heads in `pages`, and of the state after the last key in the slots `states`."""
        storage = self.linkers.storage
        indices = None if pages is None else torch.cat([torch.arange(p * TOKENS, (p + 1) * TOKENS) for p in pages])
        return [storage.PoolTransfer(name=storage.PoolName.KV, keys=list(keys), device_indices=indices),
                storage.PoolTransfer(name=storage.PoolName.MAMBA, keys=list(keys[-1:]),
                                     device_indices=None if states is None else torch.tensor(states),
                                     hit_policy=storage.PoolHitPolicy.TRAILING_PAGES)]


@pytest.fixture
def open_linker(linkers, monkeypatch):
    opened = []

    def make(world, **values):
        monkeypatch.setattr(linkers.ours, "resolve_hybrid_device_pool_group", lambda **_: world.group)
        linker = linkers.factory.create_unified_cache_linker(
            Thing(tp_size=1, model_path="m"), world.params(), backend="dynamic", components=set(),
            config={"linker": "TierceLinker", "linker_module_path": "tierce.sglang",
                    "linker_extra_config": {**VALUES, **values}})
        opened.append(linker)
        return linker

    yield make
    for linker in opened:
        linker.close()


def wait_until(is_true):
    until = time.monotonic() + SECONDS
    while not is_true():
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.001)


def store(linker, transfers):
    assert linker.offload(transfers, session_id="s")
    wait_until(linker.num_completed_offloads)
    return linker.pop_completed_offload()


def load(linker, transfers, rid="r"):
    assert linker.load(rid, transfers)
    return linker.finish_layer_wise_loading(linker.start_layer_wise_loading())


def test_pages_and_states_come_back(linkers, open_linker):
    world, keys = World(linkers), keys_of(3)
    linker = open_linker(world)
    assert isinstance(linker, linkers.unified.UnifiedCacheLinker) and world.registered == [linker.layer_done_counter]
    world.fill((0, 1, 2), seed=1)
    assert linker.lookup("r", world.transfers(keys)) == []
    assert store(linker, world.transfers(keys, (0, 1, 2), [2]))
    assert linker.lookup("r", world.transfers(keys)) == [3]  # only there is a state
    assert store(linker, world.transfers(keys[:1], (0,), [0]))
    assert linker.lookup("r", world.transfers(keys)) == [1, 3]
    assert linker.lookup("r", world.transfers([*keys[:2], *keys_of(1, "other")])) == [1]
    assert load(linker, world.transfers(keys, (7, 4, 6), [5]))
    for layer in range(LAYERS):
        for to, page in ((7, 0), (4, 1), (6, 2)) if layer in HEADS else ((5, 2),):
            assert torch.equal(world.layer(layer, to), world.layer(layer, page)), (layer, to)


def test_a_layer_is_there_when_it_is_reported(linkers, open_linker, monkeypatch):
    world, keys, seen = World(linkers), keys_of(2), []
    linker = open_linker(world)
    world.fill((0, 1), seed=2)
    assert store(linker, world.transfers(keys, (0, 1), [1]))
    complete = linker.layer_done_counter.complete

    def noted(index, layer):
        seen.append([torch.equal(world.layer(each, 4), world.layer(each, 1)) for each in range(LAYERS)])
        complete(index, layer)

    monkeypatch.setattr(linker.layer_done_counter, "complete", noted)
    assert load(linker, world.transfers(keys, (3, 4), [4]))
    assert [row[layer] for layer, row in enumerate(seen)] == [True] * LAYERS
    assert seen[0] == [True] + [False] * (LAYERS - 1)  # and not all at once


def test_loads_larger_than_their_share_of_memory(linkers, open_linker):
    world, keys = World(linkers), keys_of(3)
    linker = open_linker(world)
    world.fill((0, 1, 2), seed=3)
    assert store(linker, world.transfers(keys, (0, 1, 2), [2]))
    linker.layer_wise_bytes = 0
    assert load(linker, world.transfers(keys, (3, 4, 5), [6]))
    assert torch.equal(world.layer(0, 5), world.layer(0, 2)) and torch.equal(world.layer(4, 6), world.layer(4, 2))
    assert not load(linker, world.transfers(keys_of(1, "other"), (3,), [6]))


@pytest.mark.parametrize("size, share", [("16MiB", 4 << 20), ("16MB", 4_000_000), ("16777217", (4 << 20))])
def test_memory_in_any_unit(linkers, open_linker, size, share):
    assert open_linker(World(linkers), **{"memory.size": size}).layer_wise_bytes == share


def test_a_load_that_fails_is_reported(linkers, open_linker):
    """SGLang aborts the requests of the batch. Layers before the last one may have been reported."""
    world, keys = World(linkers), keys_of(2)
    linker = open_linker(world)
    assert store(linker, world.transfers(keys[:1], (0,), [0]))
    assert not load(linker, world.transfers(keys, (3, 4), [4]))
    assert load(linker, world.transfers(keys[:1], (3,), [3]), "next")


def test_loads_that_are_not_started(linkers, open_linker):
    world, keys = World(linkers), keys_of(1)
    linker = open_linker(world)
    assert linker.start_layer_wise_loading() == -1 and linker.finish_layer_wise_loading(-1)
    assert not linker.load("r", world.transfers([]))
    assert linker.load("r", world.transfers(keys, (1,), [1]))
    with pytest.raises(RuntimeError, match="queued already"):
        linker.load("r", world.transfers(keys, (1,), [1]))
    assert linker.cancel_queued_load("r") and not linker.cancel_queued_load("r")
    assert linker.start_layer_wise_loading() == -1


def test_a_failed_lookup_is_a_miss(linkers, open_linker, monkeypatch, caplog):
    world = World(linkers)
    linker = open_linker(world)
    monkeypatch.setattr(linker, "find", lambda *_: 1 / 0)
    assert linker.lookup("r", world.transfers(keys_of(1))) == [] and "failed in lookup" in caplog.text
    monkeypatch.setattr(linker, "move", lambda *_: 1 / 0)
    assert not store(linker, world.transfers(keys_of(1), (0,), [0]))


def test_nothing_is_found_after_a_reset(linkers, open_linker):
    """SGLang resets a linker with its cache, after the weights were changed for example."""
    world, keys = World(linkers), keys_of(2)
    linker = open_linker(world)
    assert store(linker, world.transfers(keys, (0, 1), [1]))
    linker.offload(world.transfers(keys, (0, 1), [1]))
    linker.reset()
    assert linker.num_completed_offloads() == 0 and linker.lookup("r", world.transfers(keys)) == []
    assert store(linker, world.transfers(keys, (0, 1), [1])) and linker.lookup("r", world.transfers(keys)) == [2]
    first = linker.model
    linker.reset()
    assert linker.model != first and linker.lookup("r", world.transfers(keys)) == []


def test_another_process_finds_what_is_on_disk(linkers, open_linker, tmp_path):
    world, keys, disk = World(linkers), keys_of(2), {"disk.path": str(tmp_path / "store"), "disk.size": "64MiB"}
    world.fill((0, 1), seed=4)
    first = open_linker(world, **disk)
    assert store(first, world.transfers(keys, (0, 1), [1]))
    first.close()
    second = open_linker(world, **disk)
    assert second.lookup("r", world.transfers(keys)) == [2] and load(second, world.transfers(keys, (5, 6), [7]))
    assert torch.equal(world.layer(2, 6), world.layer(2, 1)) and torch.equal(world.layer(3, 7), world.layer(3, 1))


def test_a_model_whose_pages_differ_finds_nothing(linkers, open_linker, tmp_path):
    world, other, keys = World(linkers), World(linkers), keys_of(1)
    other.group.entry_map[linkers.storage.PoolName.KV].layer_mapping = {0: (1, 4), 1: (0, 3), 2: (2, 5)}
    assert store(open_linker(world), world.transfers(keys, (0,), [0]))
    assert open_linker(world).lookup("r", world.transfers(keys)) == [1]
    assert open_linker(other).lookup("r", other.transfers(keys)) == []


def test_only_one_rank_stores_what_all_have(linkers, monkeypatch, tmp_path):
    """All ranks must have their loads and stores in step, so the others report success."""
    world, keys, ranks = World(linkers, replicated=True), keys_of(1), []
    monkeypatch.setattr(linkers.ours.Linker, "make_indices", staticmethod(torch.arange))
    for rank in range(2):
        config = Config(tp_rank=rank, tp_size=2, is_mla_model=True)
        config.extra_config = {**VALUES, "remote.urls": f"file://{tmp_path}/shared"}
        (tmp_path / "shared").mkdir(exist_ok=True)
        ranks.append(linkers.ours.Linker(config, None, "0.5", world.group,
                                         linkers.unified.LayerWiseLoadCounter(LAYERS), run=b"a run"))
    try:
        kv = world.transfers(keys, (0,))[:1]
        assert store(ranks[1], kv) and ranks[1].lookup("r", kv) == []
        assert store(ranks[0], kv)
        assert ranks[0].lookup("r", kv) == [1] and ranks[1].lookup("r", kv) == [1]
        for rank in ranks:
            rank.reset()
        assert ranks[0].model == ranks[1].model
    finally:
        for rank in ranks:
            rank.close()


def test_memory_that_is_not_supported(linkers, open_linker):
    with pytest.raises(ConfigError, match="only CUDA is supported"):
        open_linker(World(linkers, device="meta"))
    with pytest.raises(ConfigError, match="linker_extra_config: .*memory.sise"):
        open_linker(World(linkers), **{"memory.sise": "1GiB"})
