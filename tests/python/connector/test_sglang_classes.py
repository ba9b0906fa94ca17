# SPDX-License-Identifier: Apache-2.0
"""TierceStorage with the classes of SGLang's wheel: those of storages, and its host pools. The wheel has no dependencies here,
so `import sglang` would fail; these classes need PyTorch only, and of SGLang's modules for devices no more than to be imported."""

import importlib.metadata
import importlib.util
import random
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
WHEEL = importlib.util.find_spec("sglang")
if WHEEL is None:
    pytest.skip("SGLang's wheel is not installed", allow_module_level=True)

sys.path.append(str(Path(__file__).resolve().parents[1]))

from tierce.sglang import engine_identity  # noqa: E402
from tierce.vllm.identity import ConfigError  # noqa: E402
from test_sglang_storage import LAYERS, TOKENS, Config, Pool, indices_of, keys_of  # noqa: E402

VALUES = {"backend_name": "tierce", "module_path": "tierce.sglang", "class_name": "TierceStorage", "interface_v1": 1,
          "identity": "a model", "memory.size": "16MiB", "disk.path": ""}


@pytest.fixture(scope="module")
def sglang():
    """The classes of SGLang's storages."""
    package = types.ModuleType("sglang")
    package.__path__ = list(WHEEL.submodule_search_locations)
    package.__version__ = importlib.metadata.version("sglang")
    before = set(sys.modules)
    sys.modules["sglang"] = package
    from sglang.srt.mem_cache import hicache_storage
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    hicache_storage.Factory = StorageBackendFactory
    yield hicache_storage
    for name in set(sys.modules) - before:
        if name == "sglang" or name.startswith("sglang.") or name == "tierce.sglang.hicache":
            del sys.modules[name]


class Off:
    """Each function and attribute of SGLang's modules for devices: there is no device."""

    def __call__(self, *args, **kwargs):
        return False

    def __getattr__(self, name):
        return self

    def __bool__(self):
        return False


class DeviceModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Off()


OF_DEVICES = ("utils", "platforms", "runtime_context", "layers.dcp.layout", "mem_cache.memory_pool")


@pytest.fixture(scope="module")
def classes(sglang):
    """SGLang's host pools. Their package itself imports the pools of GPUs, which require Triton."""
    for name in [f"sglang.srt.{name}" for name in OF_DEVICES] + ["sglang.kernels.ops.kvcache.hicache"]:
        sys.modules[name] = DeviceModule(name)
    package = types.ModuleType("sglang.srt.mem_cache.pool_host")
    package.__path__ = [str(Path(WHEEL.submodule_search_locations[0], "srt", "mem_cache", "pool_host"))]
    sys.modules[package.__name__] = package
    from sglang.srt.mem_cache import device_pool_info
    from sglang.srt.mem_cache.pool_host import base, mamba, mha, mla

    return types.SimpleNamespace(info=device_pool_info, base=base, mamba=mamba, mha=mha, mla=mla)


class HostPools:
    """Host pools of a small model, as SGLang makes them, for a device pool of no tokens."""

    def __init__(self, classes, order=None):
        self.order = order or classes.info.KVBufferLayout.NHD
        self.classes, self.device, self.pages = classes, torch.device("cpu"), 8

    def make(self, kind, layout):
        with self.classes.base.host_memory_budget_scope(1 << 28):
            return getattr(self, kind)(layout)

    def common(self, layout):
        return {"host_to_device_ratio": 0, "host_size": 0, "page_size": TOKENS, "layout": layout, "pin_memory": False,
                "device_capacity_tokens": 0, "start_layer": 0, "end_layer": LAYERS,
                "host_token_capacity": self.pages * TOKENS}

    def heads(self, layout):
        info, of_layers = self.classes.info, tuple(torch.zeros(0, 2, 8, dtype=torch.bfloat16) for _ in range(LAYERS))
        addresses = torch.zeros(LAYERS, dtype=torch.uint64)
        buffers = info.KVBuffers(k=of_layers, v=of_layers, k_data_ptrs=addresses, v_data_ptrs=addresses,
                                 layout=self.order)
        return self.classes.mha.MHATokenToKVPoolHost(
            info.MHABufferInfo(buffers=buffers, page_size=TOKENS, head_num=2, head_dim=8, v_head_dim=8, dtype=torch.bfloat16,
                               device=self.device), **self.common(layout))

    def latent(self, layout):
        of_layers = tuple(torch.zeros(0, 1, 24, dtype=torch.bfloat16) for _ in range(LAYERS))
        buffers = self.classes.info.MLABufferInfo(
            buffers=of_layers, data_ptrs=torch.zeros(LAYERS, dtype=torch.uint64), layer_indices=tuple(range(LAYERS)),
            device_layer_num=LAYERS, page_size=TOKENS, kv_lora_rank=16, qk_rope_head_dim=8, kv_cache_dim=24,
            dtype=torch.bfloat16, device=self.device)
        return self.classes.mla.MLATokenToKVPoolHost(buffers, target_layer_num=LAYERS, **self.common(layout))

    def states(self, layout, extra=()):
        buffers = self.classes.info.MambaStateBufferInfo(
            temporal=torch.zeros(LAYERS, self.pages, 4, 8), extra_checkpoint_buffers=extra,
            conv=(torch.zeros(LAYERS, self.pages, 6, 3, dtype=torch.bfloat16),))
        return self.classes.mamba.MambaPoolHost(buffers, host_to_device_ratio=1, host_size=0, device_capacity=self.pages,
                                                pin_memory=False, layout=layout)

    def states_and_more(self, layout):
        return self.states(layout, extra=(torch.zeros(self.pages, 5, dtype=torch.float32),))


@pytest.fixture
def open_storage(sglang):
    """Opens storages as SGLang does."""
    opened = []

    def make(pool, is_mla_model=False, **values):
        config = sglang.HiCacheStorageConfig(
            tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=is_mla_model,
            enable_storage_metrics=False, is_page_first_layout=True, model_name="m", extra_config={**VALUES, **values})
        storage = sglang.Factory.create_backend("dynamic", config, pool)
        opened.append(storage)
        storage.register_mem_pool_host(pool)
        storage.on_host_pools_registered()
        return storage

    yield make
    for storage in opened:
        storage.close()


def tensor_of(pool, *pages):
    return torch.from_numpy(indices_of(pool, *pages))


def test_the_factory_makes_a_storage(sglang, open_storage):
    pool, keys = Pool(), keys_of(3)
    storage = open_storage(pool)
    assert isinstance(storage, sglang.HiCacheStorage)
    content = pool.fill(0, 1)
    assert storage.batch_set_v1(keys[:2], tensor_of(pool, 0, 1), sglang.HiCacheStorageExtraInfo()) == [True, True]
    assert storage.batch_exists(keys, sglang.HiCacheStorageExtraInfo()) == 2
    assert storage.batch_get_v1(keys[:2], tensor_of(pool, 5, 6), sglang.HiCacheStorageExtraInfo()) == [True, True]
    assert (pool.page(5) == content).all()
    assert storage.get_stats() is None


def test_tensors(open_storage):
    storage = open_storage(Pool(), interface_v1=0)
    key, page = keys_of(1)[0], torch.arange(64, dtype=torch.bfloat16)
    assert storage.get(key, torch.zeros(64, dtype=torch.bfloat16)) is None
    assert storage.batch_set([key], [page])
    loaded = storage.batch_get([key], [torch.zeros(64, dtype=torch.bfloat16)])
    assert torch.equal(loaded[0], page)


def test_a_storage_that_fails_at_random_never_has_a_wrong_byte(open_storage, monkeypatch):
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", "0.3")
    pool, keys = Pool(pages=64), keys_of(32)
    storage = open_storage(pool)
    contents = [pool.fill(number, number) for number in range(32)]
    loaded = 0
    for _ in range(8):
        for number, key in enumerate(keys):
            storage.batch_set_v1([key], tensor_of(pool, number))
        pool.memory.reshape(2, -1, TOKENS, *pool.memory.shape[2:])[:, 32:] = 0
        flags = storage.batch_get_v1(keys, tensor_of(pool, *range(32, 64)))
        for number, is_loaded in enumerate(flags):
            assert not is_loaded or (pool.page(32 + number) == contents[number]).all()
        loaded += sum(flags)
    assert loaded > 0


# ---- SGLang's own host pools ----------------------------------------------------------------------


def fill(pool):
    """Different bytes everywhere."""
    chosen = torch.Generator().manual_seed(5)
    for buffer in pool.kv_buffer if isinstance(pool.kv_buffer, list) else [pool.kv_buffer]:
        buffer.view(torch.uint8).random_(0, 256, generator=chosen)


def page_of(pool, number):
    """Its bytes, as SGLang copies them."""
    return pool.get_data_page(number * pool.page_size).clone().view(torch.uint8)


@pytest.mark.parametrize("kind, layout, places", [
    ("heads", "layer_first", 2 * LAYERS), ("heads", "page_first", 2), ("heads", "page_first_direct", 2), ("heads", "page_head", 2),
    ("latent", "layer_first", LAYERS), ("latent", "page_first", 1), ("latent", "page_first_direct", 1),
    ("states", "page_first", 2), ("states", "page_first_direct", 2), ("states_and_more", "page_first", None)])
def test_pages_of_sglangs_own_pools(sglang, classes, open_storage, kind, layout, places):
    pools, keys = HostPools(classes), keys_of(3)
    pool = pools.make(kind, layout)
    is_kv = kind in ("heads", "latent")
    name = "kv" if is_kv else "mamba"
    storage = open_storage(pool if is_kv else pools.make("heads", "page_first"), is_mla_model=kind == "latent")
    if not is_kv:
        storage.register_mem_host_pool_v2(pool, sglang.PoolName.MAMBA)
    assert places is None or storage.pools[name].pages.places == places
    fill(pool)
    content = [page_of(pool, number) for number in range(pools.pages)]
    wanted = content[:3] + [content[5], content[4], content[0]] + content[6:]

    def moved(call, *numbers):
        transfer = sglang.PoolTransfer(sglang.PoolName(name), host_indices=tensor_of(pool, *numbers), keys=keys)
        return call([transfer]) == {name: [True] * 3}

    assert moved(storage.batch_set_v2, 5, 4, 0) and moved(storage.batch_get_v2, 3, 4, 5)
    assert all(torch.equal(page_of(pool, number), wanted[number]) for number in range(pools.pages))
    assert storage.batch_exists(keys) == (3 if is_kv else 0)


def test_a_pool_of_heads_without_zero_copy(classes, open_storage):
    pool, keys = HostPools(classes).make("heads", "layer_first"), keys_of(2)
    storage = open_storage(pool, interface_v1=0)
    fill(pool)
    content = [page_of(pool, number) for number in range(2)]
    assert storage.batch_set(keys, [pool.get_data_page(number * TOKENS) for number in range(2)])
    for number, page in enumerate(storage.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])):
        pool.set_from_flat_data_page((5 + number) * TOKENS, page)
    assert all(torch.equal(page_of(pool, 5 + number), content[number]) for number in range(2))


def test_pages_of_a_layout_that_storages_cannot_read(classes, open_storage):
    with pytest.raises(ConfigError, match="no memory that a storage can read .Unsupported layout: page_unified"):
        open_storage(HostPools(classes).make("heads", "page_unified"))


# ---- hybrid pools ---------------------------------------------------------------------------------


class Names:
    """What HiCacheFile's search needs of a HiCacheFile: the names of its files."""

    def __init__(self):
        self.files = set()

    def _get_component_key(self, key, name=None):
        return key if name in (None, "kv") else f"{key}.{name}"

    def _collect_existing_component_keys(self, keys, transfers):
        return self.files


def test_hits_of_hybrid_pools_are_those_of_sglangs_files(sglang, open_storage):
    chosen = random.Random(7)
    pool, states = Pool(), Pool(tokens=1)
    for trial in range(20):
        storage, names, keys = open_storage(pool, identity=f"trial {trial}"), Names(), keys_of(7)
        storage.register_mem_host_pool_v2(states, sglang.PoolName.MAMBA)
        for name, each, share in ((sglang.PoolName.KV, pool, 0.9), (sglang.PoolName.MAMBA, states, 0.6)):
            for key in (key for key in keys if chosen.random() < share):
                names.files.add(names._get_component_key(key, name) + ".bin")
                transfer = sglang.PoolTransfer(name, host_indices=tensor_of(each, 0), keys=[key])
                assert storage.batch_set_v2([transfer]) == {name: [True]}
        policy = chosen.choice([sglang.PoolHitPolicy.ALL_PAGES, sglang.PoolHitPolicy.TRAILING_PAGES])
        wanted = [sglang.PoolTransfer(sglang.PoolName.MAMBA, keys=keys[-chosen.randint(1, 3):], hit_policy=policy)]
        found = storage.batch_exists_v2(keys, wanted)
        assert found == sglang.HiCacheFile.batch_exists_v2(names, keys, wanted)
        storage.close()


def test_every_method_of_the_interface_has_an_answer(sglang, open_storage):
    """A method that SGLang adds would be its own, which may raise."""
    storage = type(open_storage(Pool()))
    own = {name for each in storage.__mro__ if each.__module__.startswith("tierce.") for name in vars(each)}
    theirs = {name for name, value in vars(sglang.HiCacheStorage).items() if callable(value) and not name.startswith("_")}
    assert theirs <= own, theirs - own


def test_the_arguments_that_change_kv_are_sglangs():
    """A renamed argument would no longer be part of the identity."""
    fields = Path(WHEEL.submodule_search_locations[0], "srt", "arg_groups", "field_order.py").read_text()
    rejected = [name for names, _ in engine_identity.REJECTED for name in names]
    used = [*engine_identity.ENGINE_FIELDS, *rejected, *engine_identity.UNKNOWN_WEIGHTS, *engine_identity.LOAD_FORMAT_FIELDS,
            "weight_cache_mode", "model_path", "revision", "speculative_draft_model_path", "speculative_draft_model_revision"]
    assert [name for name in used if f'"{name}",' not in fields] == []


def test_the_variables_that_change_kv_are_sglangs():
    known = Path(WHEEL.submodule_search_locations[0], "srt", "environ.py").read_text()
    assert [name for name in engine_identity.ENVIRONMENT if f" {name} = Env" not in known] == [
        "AITER_ENABLE_AOT_GLUON_PA_MQA_LOGITS"]  # of another package, and read by SGLang


def test_the_order_of_bytes_on_the_device_is_part_of_a_layout(classes):
    orders = classes.info.KVBufferLayout
    pools = [HostPools(classes, order).make("heads", "page_first") for order in (orders.NHD, orders.HND)]
    layouts = {engine_identity.layout("0.5", "kv", pool, pool, Config(), False) for pool in pools}
    assert len(layouts) == 2
