# SPDX-License-Identifier: Apache-2.0
"""SGLang's own storage over NIXL, with a node in place of an S3 server: the classes of its wheel, without a running engine."""

import importlib
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("nixl_cu12", reason="no NIXL: tools/setup python")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "system"))

from manager_process import executable  # noqa: E402
from node_process import Node  # noqa: E402
from test_sglang_classes import HostPools, classes, sglang, tensor_of  # noqa: E402,F401

PLUGIN = executable().parent.parent / "lib" / "libplugin_TIERCE.so"

pytestmark = pytest.mark.skipif(not PLUGIN.exists(), reason="built without a C++ compiler")


@pytest.fixture(name="open_nixl")
def make_storages(tmp_path, monkeypatch, sglang, classes):  # noqa: F811
    """The storage knows its back end by the name OBJ."""
    node, opened = Node(tmp_path), []
    (tmp_path / "libplugin_OBJ.so").symlink_to(PLUGIN)
    monkeypatch.setenv("NIXL_PLUGIN_DIR", str(tmp_path))  # read when the process makes its first agent
    monkeypatch.setenv("TIERCE_NIXL_URL", f"tierce://127.0.0.1:{node.resp}")
    monkeypatch.setattr(sys.modules["sglang.srt.mem_cache.pool_host"], "HostKVCache", classes.base.HostKVCache, raising=False)
    for part in ("", "._api", "._bindings"):  # PyPI's package `nixl` is this one under another name
        monkeypatch.setitem(sys.modules, "nixl" + part, importlib.import_module("nixl_cu12" + part))

    def make(pool, **values):
        from sglang.srt.mem_cache.storage.nixl.hicache_nixl import HiCacheNixl

        config = sglang.HiCacheStorageConfig(
            tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, enable_storage_metrics=False,
            is_page_first_layout=True, model_name="a/model", extra_config={"plugin": {"obj": {"active": True, "bucket": "kv"}}},
            **{"is_mla_model": False, **values})
        storage = HiCacheNixl(config)
        opened.append(storage)
        storage.register_mem_pool_host(pool)
        return storage

    yield make
    for storage in opened:
        storage.close()
    node.end()


@pytest.mark.parametrize("kind, layout, is_mla_model", [
    ("heads", "page_first", False), ("heads", "layer_first", False), ("latent", "page_first", True)])
def test_pages_are_stored_and_loaded(classes, open_nixl, kind, layout, is_mla_model):  # noqa: F811
    pool = HostPools(classes).make(kind, layout)
    storage = open_nixl(pool, is_mla_model=is_mla_model)
    assert storage.is_zero_copy == (layout == "page_first")
    keys = [f"{page:064x}" for page in range(5)]
    pool.kv_buffer.copy_(torch.rand(pool.kv_buffer.shape))
    assert storage.batch_exists(keys) == 0
    assert storage.batch_set_v1(keys[:4], tensor_of(pool, 0, 1, 2, 3)) == [True] * 4
    assert storage.batch_exists(keys) == 4
    assert storage.batch_get_v1(keys[:4], tensor_of(pool, 7, 6, 5, 4)) == [True] * 4
    for stored, loaded in zip((0, 1, 2, 3), (7, 6, 5, 4)):
        first, second = (pool.get_data_page(page * pool.page_size, flat=True) for page in (stored, loaded))
        assert torch.equal(first, second)
    later = open_nixl(pool, is_mla_model=is_mla_model)  # another process of the same model
    assert later.batch_exists(keys) == 4
    assert not any(later.batch_get_v1(keys[4:], tensor_of(pool, 0)))
