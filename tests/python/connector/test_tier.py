# SPDX-License-Identifier: Apache-2.0
"""Tierce's secondary tier on vLLM's own objects, without a running engine."""

import logging
import os
import secrets
import unittest.mock
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Thing

import pytest

os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
                   "VLLM_CPU_KVCACHE_SPACE": "1"})
numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
vllm = pytest.importorskip("vllm")

from vllm.config import LoRAConfig  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (  # noqa: E402
    OffloadingConnectorScheduler)
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.v1.kv_offload import config as kv  # noqa: E402
from vllm.v1.kv_offload.base import Locality, LookupResult, ReqContext, make_offload_key  # noqa: E402
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion  # noqa: E402
from vllm.v1.kv_offload.tiering.base import TransferJob  # noqa: E402
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: E402
from vllm.v1.kv_offload.tiering.manager import (  # noqa: E402
    CPUPrimaryTierOffloadingManager, TieringOffloadingManager)

from tierce.vllm import TierceTier, tier as ours, tier_inputs  # noqa: E402
from tierce.vllm.identity import ConfigError  # noqa: E402
from media_items import feature, pixels  # noqa: E402
from test_connector import changed, request_of  # noqa: E402

sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "tools" / folder) for folder in ("demo", "bench")]
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "system"))

CHUNKS, ROW = 24, 2 * 4096
REQUEST = ReqContext(req_id="r")
MISS, HIT, RETRY = LookupResult.MISS, LookupResult.HIT, LookupResult.RETRY
PARALLEL = kv.OffloadingParallelConfig(
    rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, data_parallel_index=0,
    data_parallel_size=1, data_parallel_rank_local=None, is_parallelism_agnostic=False)
CONFIG = kv.OffloadingConfig(
    groups=(kv.OffloadingGroupConfig(32, ("a", "b"), 0), kv.OffloadingGroupConfig(64, ("c",), 2)),
    worker_kv_bytes_per_block=ROW, enable_kv_cache_events=False, extra_config={}, engine_id="e",
    model=kv.OffloadingModelConfig("m", "float32"), cache=kv.OffloadingCacheConfig(32, 1), parallel=PARALLEL)


@pytest.fixture(scope="module")
def engine_config(tmp_path_factory):
    from make_model import make_model

    model = make_model(str(tmp_path_factory.mktemp("model") / "m"), "test", 7)
    return EngineArgs(model=model, dtype="float32", block_size=32, skip_tokenizer_init=True,
                      enforce_eager=True).create_engine_config()


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.DEBUG, logger="tierce")
    logging.getLogger("tierce").propagate = True
    return lambda: [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


class Memory:
    """A region of host memory, and tiers over it."""

    def __init__(self, engine_config, chunks=CHUNKS):
        self.rows = numpy.zeros((chunks, ROW), dtype=numpy.int8)
        self.engine_config, self.tiers, self.job = engine_config, [], 0

    def open(self, config=CONFIG, vllm_config=None, **own):
        vllm_config = vllm_config or self.engine_config  # the tier looks for it by this name
        out = TierceTier(Thing(config=config), memoryview(self.rows), "tierce", **{
            "memory.size": "4MiB", "disk.path": "", "cost.check": "false", "timeout.lookup": "5s", **own})
        self.tiers.append(out)
        assert vllm_config is not None
        return out

    def fill(self, number):
        self.rows[number] = numpy.arange(ROW, dtype=numpy.int64) * 7 + number
        return self.rows[number].copy()

    def submit(self, tier, keys, chunks, load=False, request=REQUEST):
        self.job += 1
        job = TransferJob(self.job, keys, numpy.array(chunks, dtype=numpy.int32), load, request)
        (tier.submit_load if load else tier.submit_store)(job)

    def end(self):
        for tier in self.tiers:
            tier.shutdown()


@pytest.fixture
def memory(engine_config):
    out = Memory(engine_config)
    yield out
    out.end()


def key(number, group=0):
    return make_offload_key(number.to_bytes(4, "big") * 8, group)


def wait(condition):
    until = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < until
    return found


def results(tier, count=1):
    out = []
    wait(lambda: out.extend(tier.get_finished_jobs()) or len(out) >= count)
    assert len(out) == count
    return out


def ask(tier, wanted, request=REQUEST):
    wait(lambda: tier.lookup(wanted, request) is not RETRY)
    return tier.lookup(wanted, request)


def put(memory, tier, numbers, group=0, request=REQUEST):
    for number in numbers:
        memory.fill(number)
    memory.submit(tier, [key(n, group) for n in numbers], numbers, request=request)
    (result,) = results(tier)
    assert result.success and result.transfer_bytes == ROW * len(numbers)
    assert result.transfer_time > 0 and result.successful_keys is None


def test_chunks_go_and_come_back(memory):
    tier = memory.open()
    assert ask(tier, key(1)) is MISS
    put(memory, tier, range(12))
    assert [ask(tier, key(n)) for n in (0, 11, 12)] == [HIT, HIT, MISS]
    kept = memory.rows[:12].copy()
    memory.rows[:] = 90
    memory.submit(tier, [key(n) for n in range(12)], range(12, 24), load=True)
    (result,) = results(tier)
    assert result.success and result.transfer_bytes == 12 * ROW
    assert (memory.rows[12:24] == kept).all() and (memory.rows[:12] == 90).all()


def test_a_group_has_chunks_of_its_own(memory):
    tier = memory.open()
    put(memory, tier, [1], group=0)
    put(memory, tier, [2], group=2)
    assert [ask(tier, key(1, g)) for g in (0, 2)] == [HIT, MISS]
    assert [ask(tier, key(2, g)) for g in (0, 2)] == [MISS, HIT]
    assert ask(tier, key(1, 1)) is MISS and ask(tier, key(1, 7)) is MISS  # no such group


def test_what_is_missing_fails_alone(memory):
    tier = memory.open()
    put(memory, tier, [3, 5])
    memory.submit(tier, [key(n) for n in (3, 4, 5)], [0, 1, 2], load=True)
    (result,) = results(tier)
    assert not result.success and result.successful_keys == [key(3), key(5)]
    assert tier.lookup(key(4), REQUEST) is MISS
    memory.submit(tier, [key(4)], [0], load=True)
    assert results(tier)[0].successful_keys is None


def test_a_damaged_chunk_fails_alone(memory, tmp_path):
    tier = memory.open(**{"disk.path": str(tmp_path / "s")})
    rows = [numpy.full(ROW, 50 + n, dtype=numpy.int8) for n in range(4)]
    for n in range(4):
        memory.rows[n] = rows[n]
    memory.submit(tier, [key(n) for n in range(4)], range(4))
    assert results(tier)[0].success
    tier.shutdown()
    (file,) = [f for f in (tmp_path / "s").rglob("*") if f.is_file() and rows[2].tobytes() in f.read_bytes()]
    data = bytearray(file.read_bytes())
    data[data.index(rows[2].tobytes()) + 100] ^= 1
    file.write_bytes(data)
    tier = memory.open(**{"disk.path": str(tmp_path / "s")})
    assert [ask(tier, key(n)) for n in range(4)] == [HIT] * 4
    memory.rows[:] = 0
    memory.submit(tier, [key(n) for n in range(4)], range(4), load=True)
    (result,) = results(tier)
    assert result.successful_keys == [key(0), key(1), key(3)]
    assert all((memory.rows[n] == rows[n]).all() for n in (0, 1, 3))
    assert tier.lookup(key(2), REQUEST) is MISS


def load(memory, tier, count):
    """Loads this many chunks into other rows. Returns the job's result."""
    memory.rows[:] = 90
    memory.submit(tier, [key(n) for n in range(count)], range(CHUNKS - count, CHUNKS), load=True)
    return results(tier)[0]


@pytest.mark.parametrize("place", ["redis", "file"])
def test_tiers_share_a_remote_store(memory, place, tmp_path):
    """Another tier loads the chunks that the first tier stored, until they are damaged, or the store has stopped."""
    from shared_stores import STORES

    remote, size = STORES[place](tmp_path / "remote"), iter(range(4, 0, -1))

    def start():
        # Another memory size, because an equal configuration in the same process would be the same store.
        return memory.open(**{"memory.size": f"{next(size)}MiB", "remote.urls": remote.uri, "timeout.lookup": "10s",
                              "timeout.load": "60s", "breaker.errors": "2", "breaker.retry": "1h"})

    try:
        tier = start()
        put(memory, tier, range(6))
        kept = memory.rows[:6].copy()
        assert tier.engine.flush(60_000)
        tier.shutdown()
        tier = start()
        assert [ask(tier, key(n)) for n in (0, 5, 6)] == [HIT, HIT, MISS]
        assert load(memory, tier, 6).success and (memory.rows[-6:] == kept).all()
        assert (memory.rows[:-6] == 90).all() and tier.engine.stats()["chunks_loaded_remote"] == 6
        tier.shutdown()
        assert remote.spoil() >= 6
        tier = start()
        result = load(memory, tier, 6)
        assert not result.success and result.successful_keys is None
        tier.shutdown()
    finally:
        remote.stop()
    tier = start()
    assert [ask(tier, key(n)) for n in range(6)] == [MISS] * 6
    assert not load(memory, tier, 6).success


def test_a_job_without_chunks(memory):
    tier = memory.open()
    memory.submit(tier, [], [])
    memory.submit(tier, [], [], load=True)
    assert [r.success for r in results(tier, 2)] == [True, True]


def test_jobs_with_one_id_get_one_result(memory, lines):
    """vLLM ends with an assertion at a second result."""
    tier = memory.open()
    put(memory, tier, range(4))
    for numbers in ([0, 1], [2], []):
        memory.job = 70
        memory.submit(tier, [key(n) for n in numbers], numbers, load=True)
    (result,) = results(tier)
    assert result.job_id == 71 and not result.success and result.successful_keys is None
    for numbers in ([], [2]):  # the first has a result at once
        memory.job = 80
        memory.submit(tier, [key(n) for n in numbers], numbers, load=True)
    (result,) = results(tier)
    assert result.job_id == 81 and not result.success
    assert tier.get_finished_jobs() == [] and len(lines()) == 3
    memory.job = 70  # its result was taken
    memory.submit(tier, [key(3)], [3], load=True)
    (result,) = results(tier)
    assert result.job_id == 71 and result.success


def test_calls_do_not_wait(memory):
    tier, took = memory.open(), []
    for n in range(2000):
        began = time.perf_counter()
        tier.lookup(key(n), REQUEST)
        took.append(time.perf_counter() - began)
    for _ in range(200):
        began = time.perf_counter()
        memory.submit(tier, [key(n) for n in range(CHUNKS)], range(CHUNKS))
        tier.get_finished_jobs()
        took.append(time.perf_counter() - began)
    tier.shutdown()
    assert statistics.median(took) < 0.001


@pytest.mark.parametrize("name, value, accepted", [
    ("threads", 0, "1 to 64"), ("threads", 65, "1 to 64"), ("threads", "4", "1 to 64"), ("threads", True, "1 to 64"),
    ("queue", 0, "1 to"), ("lookups", -1, "1 to"), ("keep_after_reset", "yes", "true or false"),
    ("locality", "local", "LOCAL or REMOTE"), ("identity", 5, "a text")])
def test_an_option_names_what_it_accepts(memory, name, value, accepted):
    with pytest.raises(ConfigError, match=f"^secondary_tiers: {name} .*invalid; accepted: .*{accepted}"):
        memory.open(**{name: value})


@pytest.mark.parametrize("name, value", [("disk.sise", "1GiB"), ("memory.size", "much"), ("thread", 4)])
def test_a_parameter_of_the_store_is_checked(memory, name, value):
    with pytest.raises(ConfigError, match=f"^secondary_tiers: .*{name}"):
        memory.open(**{name: value})


def test_a_tier_starts_no_node(memory):
    with pytest.raises(ConfigError, match="^secondary_tiers: node.start 'own' .*set node.socket"):
        memory.open(**{"node.start": "own"})


def test_a_chunk_that_memory_cannot_hold(engine_config):
    vllm_config = engine_config
    rows = memoryview(numpy.zeros((2, 4 << 20), dtype=numpy.int8))
    with pytest.raises(ConfigError, match="^secondary_tiers: .* 32 tokens requires more than 4,194,304 bytes of memory; "
                                          "raise memory.size$"):
        TierceTier(Thing(config=CONFIG), rows, "tierce", **{"memory.size": "1MiB", "disk.path": ""})
    assert vllm_config is not None


def test_without_the_configuration_of_vllm(memory):
    rows, own = memoryview(memory.rows), {"memory.size": "4MiB", "disk.path": ""}
    with pytest.raises(ConfigError, match="set identity to a text"):
        TierceTier(Thing(config=CONFIG), rows, "tierce", **own)
    tier = TierceTier(Thing(config=CONFIG), rows, "tierce", identity="model 7", **own)
    memory.tiers.append(tier)
    put(memory, tier, [1], request=announced(tier))
    assert ask(tier, key(1), announced(tier)) is HIT
    assert ask(tier, key(1)) is MISS  # the model may read images, and the request was not announced


def other(**changes):
    return {"config": replace(CONFIG, **changes)}


@pytest.mark.parametrize("change", [
    other(parallel=replace(PARALLEL, world_size=2, tp_size=2)), other(kv_cache_layout="NHD"),
    other(cache=kv.OffloadingCacheConfig(16, 1)), other(groups=CONFIG.groups[:1]), other(canonical_layout=True),
    other(replicated_layout=True), other(model=kv.OffloadingModelConfig("m", "bfloat16")), {"identity": "x"},
    {"hash": "sha256_cbor"}, {"dtype": "float16"}, {"hf": True}],
    ids=("ranks layout hash_tokens groups canonical replicated cache_dtype identity hash dtype hf").split())
def test_what_changes_the_kv_changes_the_namespace(memory, engine_config, change, tmp_path):
    store = {"disk.path": str(tmp_path / "s")}
    tier = memory.open(**store)
    put(memory, tier, [1])
    tier.shutdown()
    vllm_config, change = engine_config, dict(change)
    if "hash" in change:
        vllm_config = changed(vllm_config, "cache_config", prefix_caching_hash_algo=change.pop("hash"))
    if "dtype" in change:
        vllm_config = changed(vllm_config, "model_config", dtype=getattr(torch, change.pop("dtype")))
    if change.pop("hf", False):
        hf = type(vllm_config.model_config.hf_config)(rope_theta=5.0)
        vllm_config = changed(vllm_config, "model_config", hf_config=hf)
    another = memory.open(vllm_config=vllm_config, **store, **change)
    assert ask(another, key(1)) is MISS
    another.shutdown()
    assert ask(memory.open(**store), key(1)) is HIT


def test_a_reset_begins_anew(memory, tmp_path):
    store = {"disk.path": str(tmp_path / "s")}
    tier = memory.open(**store)
    put(memory, tier, [1])
    memory.submit(tier, [key(2)], [2])
    tier.drain_jobs()
    assert len(results(tier)) == 1  # of before the reset
    assert [ask(tier, key(n)) for n in (1, 2)] == [MISS, MISS]
    put(memory, tier, [1])
    assert ask(tier, key(1)) is HIT
    tier.drain_jobs()
    assert ask(tier, key(1)) is MISS
    tier.shutdown()
    tier = memory.open(**store)  # the weights of the start, and the chunks that were stored with them
    memory.rows[:] = 0
    memory.submit(tier, [key(1)], [1], load=True)
    assert results(tier)[0].success
    assert (memory.rows[1] == Memory(None).fill(1)).all()


def test_a_reset_may_keep_everything(memory):
    tier = memory.open(keep_after_reset=True)
    put(memory, tier, [1])
    tier.drain_jobs()
    assert ask(tier, key(1)) is HIT


@pytest.mark.parametrize("strict", [False, True])
def test_unknown_weights_switch_the_tier_off(memory, engine_config, lines, strict):
    dummy = changed(engine_config, "load_config", load_format="dummy")
    if strict:
        with pytest.raises(ConfigError, match="strict: weights of load format 'dummy'"):
            memory.open(vllm_config=dummy, strict=True)
        return
    tier = memory.open(vllm_config=dummy)
    assert lines() == ["Tierce's tier is off: weights of load format 'dummy'"]
    assert tier.lookup(key(1), REQUEST) is MISS
    memory.submit(tier, [key(1)], [1])
    memory.submit(tier, [key(1)], [1], load=True)
    assert [r.success for r in results(tier, 2)] == [False, False]
    tier.drain_jobs()


@pytest.mark.parametrize("change", ["lora", "media"])
def test_hashes_of_one_process(memory, engine_config, lines, change, tmp_path):
    bound = changed(engine_config, "cache_config", enable_prefix_caching=False)
    if change == "lora":
        bound.lora_config = LoRAConfig()
    else:
        bound = changed(bound, "model_config", multimodal_config=Thing(mm_processor_cache_gb=0))
    store = {"disk.path": str(tmp_path / "s"), "vllm_config": bound}
    tier = memory.open(**store)
    assert "only chunks that this process has stored" in lines()[0]
    put(memory, tier, [1], request=announced(tier))
    assert ask(tier, key(1), announced(tier)) is HIT
    tier.shutdown()
    tier = memory.open(**store)
    assert ask(tier, key(1), announced(tier)) is MISS


IMAGE_AT = 40


def announced(tier, *features, name="r"):
    """The context of a request that vLLM's connector has announced. Key n ends with token 32 (n + 1)."""
    request = request_of(name=name, mm_features=list(features))
    tiering = Thing(secondary_tiers=[tier], _req_state={}, _metrics=Thing(on_new_request=lambda context: None))
    manager = Thing(on_new_request=lambda context: TieringOffloadingManager.on_new_request(tiering, context))
    scheduler = Thing(manager=manager, config=Thing(kv_group_configs=()), _req_status={})
    OffloadingConnectorScheduler.on_new_request(scheduler, request)
    context = scheduler._req_status[name].req_context
    for number in range(CHUNKS):
        context.set_offload_key_position(key(number), 32 * (number + 1))
    return context


def image(name, seed):
    return feature(name, pixels(seed), IMAGE_AT)


@pytest.fixture
def open_images(memory, engine_config, tmp_path):
    with_images = changed(engine_config, "model_config", multimodal_config=Thing(mm_processor_cache_gb=4))
    return lambda: memory.open(**{"disk.path": str(tmp_path / "s"), "vllm_config": with_images})


def store_as(memory, tier, numbers, request):
    for number in numbers:
        memory.fill(number)
    memory.submit(tier, [key(n) for n in numbers], numbers, request=request)
    return results(tier)[0].success


def test_a_client_names_two_images_alike(memory, open_images, lines):
    """Clients of two engines call different images "logo": vLLM's hashes are equal, the chunks are not."""
    tier = open_images()
    first = announced(tier, image("logo", 1))
    assert store_as(memory, tier, [0, 1, 2], first) and ask(tier, key(1), first) is HIT
    tier.shutdown()
    tier = open_images()
    other = announced(tier, image("logo", 2))
    assert [ask(tier, key(n), other) for n in (0, 1, 2)] == [HIT, MISS, MISS]  # chunk 0 ends before the image
    memory.submit(tier, [key(1)], [1], load=True, request=other)
    assert not results(tier)[0].success
    tier.shutdown()
    tier = open_images()
    same = announced(tier, image("logo", 1))
    kept = memory.rows[1].copy()
    assert [ask(tier, key(n), same) for n in (0, 1, 2, 3)] == [HIT, HIT, HIT, MISS]
    memory.submit(tier, [key(1)], [9], load=True, request=same)
    assert results(tier)[0].success and (memory.rows[9] == kept).all() and lines() == []


def test_a_name_gets_a_second_image(memory, open_images, lines):
    """vLLM's own caches go by names, so that neither request is certain any more."""
    tier = open_images()
    first = announced(tier, image("logo", 1))
    assert ask(tier, key(1), first) is MISS
    second = announced(tier, image("logo", 2), name="s")
    assert [store_as(memory, tier, [1], each) for each in (first, second)] == [False, False]
    assert "had another content before" in lines()[0] and len(lines()) == 1
    text = announced(tier, name="t")
    assert store_as(memory, tier, [1], text) and ask(tier, key(1), text) is HIT


def test_a_session_gets_an_image(memory, open_images):
    tier = open_images()
    session = announced(tier)
    assert store_as(memory, tier, [0, 1], session)
    request = session.get_state(tier_inputs.Inputs).request
    request.mm_features.append(image("logo", 1))
    assert [ask(tier, key(n), session) for n in (0, 1)] == [HIT, MISS]
    request.mm_features.append(feature("late", None, 300))
    assert ask(tier, key(0), session) is MISS


def test_requests_that_the_tier_cannot_see(memory, open_images, lines):
    tier = open_images()
    unseen, early = ReqContext(req_id="unseen"), announced(tier, image("i", 1))
    tier.on_new_request(unseen)
    early._offload_key_positions.clear()
    for each in unseen, early, REQUEST:
        assert ask(tier, key(1), each) is MISS and not store_as(memory, tier, [1], each)
    assert lines() == ["Tierce's tier ignores a request: vLLM does not show the request to the tier"]


def test_a_full_queue_is_a_failed_job(memory):
    tier = memory.open(queue=1, threads=1)
    for _ in range(50):
        memory.submit(tier, [key(n) for n in range(CHUNKS)], range(CHUNKS))
    ended = results(tier, 50)
    assert len({r.job_id for r in ended}) == 50
    assert 0 < sum(r.success for r in ended) and tier.jobs.state()["blocks"] == 0


def test_the_tier_raises_nothing(memory, lines):
    tier = memory.open()
    for _ in range(2):
        assert tier.lookup(b"key", REQUEST) is MISS
        memory.submit(tier, [key(1)], [CHUNKS])  # no such chunk
        memory.submit(tier, [key(1, 1)], [1], load=True)  # no such group
        memory.submit(tier, [key(1), key(2)], [1])
    assert [r.success for r in results(tier, 6)] == [False] * 6
    assert len(lines()) == 3


def test_shutdown_lets_go_of_the_region(engine_config):
    memory = Memory(engine_config)
    view = memoryview(memory.rows)
    vllm_config = engine_config
    tier = TierceTier(Thing(config=CONFIG), view, "tierce", **{"memory.size": "4MiB", "disk.path": ""})
    memory.submit(tier, [key(1)], [1])
    tier.shutdown()
    view.release()
    assert tier.lookup(key(1), REQUEST) is MISS and vllm_config is not None
    tier.shutdown()


def test_vllms_manager_moves_chunks(memory, engine_config, tmp_path):
    """Stores chunks from the primary tier in Tierce, and loads them after vLLM has evicted them."""
    vllm_config = engine_config
    # Regions with one name are one memory, also of two runs of this test at once.
    name = f"tierce-test-{os.getpid()}-{secrets.token_hex(4)}"
    region = SharedOffloadRegion(name, CHUNKS, None, ROW, ROW)
    primary = CPUPrimaryTierOffloadingManager(CHUNKS, region)
    rows = numpy.asarray(primary.get_kv_memoryview())
    tier = SecondaryTierFactory.create_secondary_tier(
        {"type": "TierceTier", "module_path": "tierce.vllm", "memory.size": "4MiB", "disk.path": "",
         "keep_after_reset": True, "locality": "LOCAL"}, primary.get_kv_memoryview(), Thing(config=CONFIG))
    assert tier.locality is Locality.LOCAL and vllm_config is not None
    manager = TieringOffloadingManager(primary, [tier])
    keys = [key(n) for n in range(6)]
    manager.on_new_request(REQUEST)
    for number, chunk in enumerate(manager.prepare_store(keys, REQUEST).store_spec.chunk_ids):
        rows[chunk] = number + 1
    manager.complete_store(keys, REQUEST)
    step = Thing(new_req_ids=[], preempted_req_ids=[])

    def settled():
        manager.on_schedule_end(step)
        return not manager.has_pending_work()

    wait(settled)
    manager.reset_cache()
    rows[:] = 0

    def found():
        answers = [manager.lookup(k, REQUEST) for k in keys]
        manager.on_schedule_end(step)
        return all(a is HIT for a in answers)

    wait(found)
    for number, chunk in enumerate(manager.prepare_load(keys, REQUEST).chunk_ids):
        assert (rows[chunk] == number + 1).all()
    manager.complete_load(keys, REQUEST)
    del rows
    manager.shutdown()
    assert list(Path("/dev/shm").glob(f"*{name}*")) == []


def test_the_configuration_is_found_in_the_callers():
    class VllmConfig:
        pass

    vllm_config = Thing()  # another class
    assert ours.engine_config() is None and vllm_config is not None


def test_the_benchmark_s_region_has_no_name(tmp_path):
    """A benchmark that is killed leaves nothing in shared memory."""
    with unittest.mock.patch.dict(os.environ):  # it sets variables that every engine of later tests would have
        import tier_calls

    servers = tier_calls.Servers("no executable", str(tmp_path), "64MiB")
    run = tier_calls.Run("memory", tier_calls.options_of("memory", servers, str(tmp_path)),
                         Thing(blocks_per_chunk=1, tokens=64), {})
    try:
        assert list(Path("/dev/shm").glob(f"*tier-calls-{os.getpid()}-*")) == []
    finally:
        run.end()
