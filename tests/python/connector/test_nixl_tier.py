# SPDX-License-Identifier: Apache-2.0
"""vLLM's own object tier over NIXL, with a node in place of an S3 server: its classes, without a running engine."""

import importlib
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace as Thing

import pytest

os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"})
numpy = pytest.importorskip("numpy")
pytest.importorskip("vllm")
nixl_cu12 = pytest.importorskip("nixl_cu12", reason="no NIXL: tools/setup python")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "system"))

from vllm.v1.kv_offload import config as kv  # noqa: E402
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key  # noqa: E402
from vllm.v1.kv_offload.tiering.base import TransferJob  # noqa: E402

from manager_process import executable  # noqa: E402
from node_process import Node  # noqa: E402

PLUGIN = executable().parent.parent / "lib" / "libplugin_TIERCE.so"
CHUNKS, ROW, SECONDS = 16, 64 << 10, 60
REQUEST = ReqContext(req_id="r")
CONFIG = kv.OffloadingConfig(
    groups=(kv.OffloadingGroupConfig(32, ("a", "b"), 0),), worker_kv_bytes_per_block=ROW, enable_kv_cache_events=False,
    extra_config={}, engine_id="e", model=kv.OffloadingModelConfig("m", "float32"), cache=kv.OffloadingCacheConfig(32, 1),
    parallel=kv.OffloadingParallelConfig(
        rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, data_parallel_index=0, data_parallel_size=1,
        data_parallel_rank_local=None, is_parallelism_agnostic=False))

pytestmark = pytest.mark.skipif(not PLUGIN.exists(), reason="built without a C++ compiler")


@pytest.fixture(name="tier")
def open_tier(tmp_path, monkeypatch):
    """The tier knows its back end by the name OBJ, and gives it parameters of S3."""
    node = Node(tmp_path)
    (tmp_path / "libplugin_OBJ.so").symlink_to(PLUGIN)
    monkeypatch.setenv("NIXL_PLUGIN_DIR", str(tmp_path))  # read when the process makes its first agent
    monkeypatch.setenv("NIXL_TELEMETRY_ENABLE", "y")  # the tier reads the time of each transfer
    monkeypatch.setenv("TIERCE_NIXL_URL", f"tierce://127.0.0.1:{node.resp}")
    # PyPI's package `nixl` is this one under another name.
    for part in ("", "._api", "._bindings"):
        monkeypatch.setitem(sys.modules, "nixl" + part, importlib.import_module("nixl_cu12" + part))
    from vllm.v1.kv_offload.tiering.obj.manager import ObjectStoreSecondaryTierManager
    rows = numpy.zeros((CHUNKS, ROW), dtype=numpy.int8)
    out = ObjectStoreSecondaryTierManager(Thing(config=CONFIG), memoryview(rows), "obj",
                                          {"bucket": "kv", "endpoint_override": "127.0.0.1:1"})
    out.rows = rows
    yield out
    out.shutdown()
    node.end()


def finish(tier, number):
    until = time.monotonic() + SECONDS
    while True:
        for result in tier.get_finished_jobs():
            assert result.job_id == number
            return result.success
        assert time.monotonic() < until
        time.sleep(0.001)


def found(tier, keys):
    """The tier asks in the background."""
    until, out = time.monotonic() + SECONDS, []
    for key in keys:
        while (answer := tier.lookup(key, REQUEST)) == LookupResult.RETRY:
            tier.on_schedule_end(None)
            assert time.monotonic() < until
            time.sleep(0.001)
        out.append(answer == LookupResult.HIT)
    return out


def job(number, keys, chunks):
    return TransferJob(job_id=number, keys=keys, chunk_ids=numpy.array(chunks, dtype=numpy.int32), is_promotion=False,
                       req_context=REQUEST)


def test_blocks_are_stored_and_loaded(tier):
    keys = [make_offload_key(bytes([i]) * 32, 0) for i in range(5)]
    assert found(tier, keys) == [False] * 5
    tier.on_request_finished(REQUEST)  # which forgets the answers
    for i in range(4):
        tier.rows[3 * i] = i + 1
    tier.submit_store(job(1, keys[:4], [0, 3, 6, 9]))
    assert finish(tier, 1)
    assert found(tier, keys) == [True] * 4 + [False]
    tier.rows[:] = 99
    tier.submit_load(job(2, keys[:4], [12, 1, 2, 15]))
    assert finish(tier, 2)
    for i, chunk in enumerate((12, 1, 2, 15)):
        assert (tier.rows[chunk] == i + 1).all()
    assert (tier.rows[[0, 3, 6, 9]] == 99).all()  # no other chunk was touched
    tier.submit_load(job(3, keys[3:], [4, 5]))  # one of them is missing
    assert not finish(tier, 3)
