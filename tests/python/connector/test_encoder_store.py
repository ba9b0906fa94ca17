# SPDX-License-Identifier: Apache-2.0
"""The encoder cache without vLLM's engine: outputs in a real store, in files and in a pool, and the scheduler half with
requests of our own."""

import logging
import os
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace as Thing

import pytest

pytest.importorskip("vllm")
import torch  # noqa: E402

sys.path[:0] = [str(Path(__file__).resolve().parents[i] / folder) for i, folder in ((2, "system"), (3, "tools/demo"))]
from manager_process import wait_until  # noqa: E402
from media_items import feature, pixels  # noqa: E402
from tierce import _core as core  # noqa: E402
from tierce.vllm import encoder as ours  # noqa: E402
from tierce.vllm import TierceECConnector  # noqa: E402
from tierce.vllm.encoder import ECConnectorRole, EncoderScheduler, EncoderWorker, Widths, name_of  # noqa: E402
from tierce.vllm.identity import ConfigError  # noqa: E402
from tierce.vllm.media import content_of  # noqa: E402
from tierce.vllm.encoder_store import ROWS, EncoderStore, Shape  # noqa: E402

WIDTH = 32
MODEL = {"weights": "aa", "model": "m"}
ONE, OTHER, THIRD = (letter * 64 for letter in "abc")  # hashes of content


def open_store(model=MODEL, **values):
    return EncoderStore(core.Engine.open(None, {"memory.size": "16MiB", "disk.path": "", **values}), model)


@pytest.fixture(autouse=True)
def log_reaches_caplog(caplog, monkeypatch):
    caplog.set_level(logging.DEBUG, logger="tierce")  # a connector would give the log vLLM's handlers otherwise
    monkeypatch.setattr(logging.getLogger("tierce"), "propagate", True)


@pytest.fixture
def store():
    """store(...) -> an EncoderStore; all are closed."""
    made = []

    def make(*args, **values):
        made.append(open_store(*args, **values))
        return made[-1]

    yield make
    for each in made:
        each.close()


def output(rows=100, seed=0, dtype=torch.float32, width=WIDTH):
    return torch.randn((rows, width), generator=torch.Generator().manual_seed(seed)).to(dtype)


def save(store, name, what):
    """Returns the counters."""
    store.save(name, what)
    store.saver.submit(lambda: None).result(60)
    return store.take_counters()


def load(store, name, shape):
    return store.load(name, shape).result(60)


@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS, ROWS + 1, 3 * ROWS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_was_stored_is_loaded(store, rows, dtype):
    here, what = store(), output(rows, dtype=dtype)
    assert save(here, ONE, what)["stored"] == 1
    assert torch.equal(load(here, ONE, Shape.of(what)), what)
    assert save(here, ONE, what) == {"stored before": 1}


def test_another_identity_is_a_miss(store, tmp_path):
    """Model, weights, type, width and number of rows are compared; so is the content's hash."""
    there = {"disk.path": str(tmp_path / "store"), "disk.size": "64MiB", "disk.lock_wait": "0"}
    first = open_store(**there)
    what = output(ROWS + 5)
    save(first, ONE, what)
    first.close()
    same = Shape.of(what)
    for model, name, shape in ((MODEL, OTHER, same), ({**MODEL, "weights": "bb"}, ONE, same), ({**MODEL, "model": "n"}, ONE, same),
                               (MODEL, ONE, Shape(ROWS + 6, WIDTH, torch.float32)), (MODEL, ONE, Shape(ROWS + 5, WIDTH * 2, torch.float32)),
                               (MODEL, ONE, Shape(ROWS + 5, WIDTH, torch.int32))):
        here = open_store(model, **there)
        assert load(here, name, shape) is None
        assert here.take_counters() == {"miss: not stored": 1}
        here.close()
    here = store(**there)
    assert torch.equal(load(here, ONE, same), what)


def test_a_damaged_output_is_a_miss_and_is_stored_again(store, tmp_path, caplog):
    there = {"disk.path": str(tmp_path / "store"), "disk.size": "64MiB", "disk.lock_wait": "0"}
    first, what = open_store(**there), output(4 * ROWS, width=1024)
    save(first, ONE, what)
    first.close()
    file = os.open(tmp_path / "store" / "data", os.O_RDWR)
    at = os.pread(file, 8 << 20, 0).find(what[70].numpy().tobytes())  # in the second chunk
    assert at > 0
    os.pwrite(file, bytes([os.pread(file, 1, at)[0] ^ 1]), at)
    os.close(file)
    here = store(**there)
    assert load(here, ONE, Shape.of(what)) is None
    assert here.take_counters() == {"miss: damaged": 1} and "1 chunks are missing" in caplog.text
    assert save(here, ONE, what)["stored"] == 1
    assert torch.equal(load(here, ONE, Shape.of(what)), what)


def test_a_full_store(store, caplog):
    """Older outputs are evicted. An output that is larger than the store is not stored, and that is logged."""
    here = store(**{"memory.size": "4MiB"})
    for seed in range(8):
        assert save(here, f"{seed:064x}", output(ROWS, seed, width=4096))["stored"] == 1  # 1 MiB each
    found = [seed for seed in range(8) if load(here, f"{seed:064x}", Shape(ROWS, 4096, torch.float32)) is not None]
    assert found and 0 not in found and 7 in found
    here.take_counters()
    counters = save(here, ONE, output(16 * ROWS, width=4096))
    assert list(counters) == ["not stored: store full"] and "no room" in caplog.text
    assert load(here, ONE, Shape(16 * ROWS, 4096, torch.float32)) is None


def test_a_queue_that_is_full_drops(store, monkeypatch, caplog):
    here = store()
    held = threading.Event()
    here.saver.submit(held.wait, 60)
    monkeypatch.setattr("tierce.vllm.encoder_store.SAVING_BYTES", 1 << 20)
    for name in (ONE, OTHER, THIRD):
        here.save(name, output(ROWS, width=2048))  # 512 KiB
    held.set()
    here.saver.submit(lambda: None).result(60)
    assert here.take_counters() == {"stored": 2, "stored bytes": 1 << 20, "not stored: queue full": 1}
    assert "1 MiB" in caplog.text


def test_a_pool_behind_a_manager(store, tmp_path):
    """fleet:// keeps whole chunks only: an output has no others."""
    pytest.importorskip("grpc_tools")
    from fleet_world import STORAGES, Fleet

    fleet = Fleet(tmp_path, [STORAGES["file"](tmp_path)])
    try:
        there = {"remote.urls": fleet.url, "timeout.lookup": "20s", "timeout.load": "20s"}
        first, what = open_store(**there), output(ROWS + 5)
        assert save(first, ONE, what)["stored"] == 1
        assert first.engine.flush(60_000)
        assert fleet.storages[0].objects() > 0
        first.close()
        here = store(**there)
        assert torch.equal(load(here, ONE, Shape.of(what)), what)
        assert here.take_counters() == {}
        assert load(here, OTHER, Shape.of(what)) is None
    finally:
        fleet.stop()


# ---- the start of the connector ----------------------------------------------------------------


@pytest.fixture(scope="module")
def text_model(tmp_path_factory):
    """configuration(role, **extra) of an engine whose model has no images."""
    from make_model import make_model
    from vllm.config import ECTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    folder = make_model(str(tmp_path_factory.mktemp("model") / "m"), "test", 7)

    def configuration(role="ec_both", **extra):
        transfer = ECTransferConfig(ec_connector="TierceECConnector", ec_connector_module_path="tierce.vllm", ec_role=role,
                                    ec_connector_extra_config=extra)
        return EngineArgs(model=folder, dtype="float32", block_size=32, skip_tokenizer_init=True, enforce_eager=True,
                          ec_transfer_config=transfer).create_engine_config()

    return configuration


@pytest.mark.parametrize("extra, said", [
    ({"memory.sice": "1GiB"}, "memory.sice"), ({"memory.size": "many"}, "memory.size"), ({"node.start": "shared"}, "node.start"),
    ({"strict": True}, "a model without multimodal inputs")])
def test_what_is_wrong_ends_the_start(text_model, extra, said):
    with pytest.raises(ConfigError, match=said):
        TierceECConnector(text_model(**extra), ECConnectorRole.SCHEDULER)


def test_an_engine_that_is_not_supported_runs_without(text_model, caplog):
    config = text_model()
    half = TierceECConnector(config, ECConnectorRole.SCHEDULER)
    assert "encoder cache is off: a model without multimodal inputs" in caplog.text
    asks = request("r", ONE)
    assert half.ensure_cache_available(asks, 0) is True and half.has_cache_item(ONE) is False
    assert half.update_state_after_alloc(asks, 0) is None and half.request_finished(asks) == (False, None)
    worker = TierceECConnector(config, ECConnectorRole.WORKER)
    worker.bind_connector_metadata(half.build_connector_meta(None))
    worker.start_load_caches({})
    worker.save_caches({ONE: output()}, ONE)
    assert worker.build_connector_worker_meta() is None and half.get_ec_connector_stats() is None
    half.shutdown()


# ---- the scheduler half ------------------------------------------------------------------------


class SlowStore:
    """Answers when the test wants; counts as the real one."""

    def __init__(self, wait="100s"):
        self.engine = Thing(param=lambda name: wait)
        self.asked, self.counters, self.told, self.saved = {}, {}, [], {}

    def load(self, name, shape):
        assert name not in self.asked or self.asked[name].done()
        self.asked[name] = Future()
        return self.asked[name]

    def save(self, name, what):
        self.saved[name] = what

    def count(self, name, number=1):
        if number:
            self.counters[name] = self.counters.get(name, 0) + number

    def tell_once(self, text, *values):
        self.told.append(text)


def widths(**measured):
    return Widths(Thing(model_config=Thing(get_inputs_embeds_size=lambda: WIDTH, dtype=torch.float32),
                        ec_transfer_config=Thing(mm_encoder_output_widths=measured)))


def scheduler(slow=None, is_consumer=True, **measured):
    return EncoderScheduler(slow or SlowStore(), widths(**measured), is_consumer)


def key(name):
    """Of the output of an image that has this name, and data that belong to it alone."""
    return name_of(content_of(image(name, 0, 10)))


def image(name, first, rows, **more):
    """`name`: or a pair of a name and the seed of its data."""
    name, seed = name if isinstance(name, tuple) else (name, sum(map(ord, name)))
    return feature(name, pixels(seed), first, rows, **more)


def request(name, *images, rows=10, **more):
    """Each image has `rows` tokens behind 20 tokens of text."""
    return Thing(request_id=name, lora_request=None,
                 mm_features=[image(each, 20 + i * (20 + rows), rows, **more) for i, each in enumerate(images)])


def test_vllm_waits_for_an_output_and_gets_it_once():
    half = scheduler()
    asks = request("r", ONE, OTHER)
    assert not half.are_ready(asks, 0) and not half.is_there(ONE)
    half.store.asked[key(ONE)].set_result(what := output(10))
    assert not half.are_ready(asks, 0) and half.is_there(ONE)
    half.store.asked[key(OTHER)].set_result(None)
    assert half.are_ready(asks, 0) and not half.is_there(OTHER)
    half.promise(ONE)
    half.promise(OTHER)
    assert half.take_promised() == {ONE: what} and half.take_promised() == {}
    assert half.are_ready(asks, 0) and not half.is_there(ONE)
    half.forget(asks)
    assert not half.items and half.store.counters == {"lookups": 2, "hits": 1}


def test_what_the_prompt_has_behind_it_is_not_asked():
    half = scheduler()
    assert half.are_ready(request("r", ONE, OTHER), 1000) and not half.store.asked
    assert not half.are_ready(request("r", ONE, OTHER), 30) and list(half.store.asked) == [key(OTHER)]


def test_requests_share_an_output():
    half = scheduler()
    first, second = request("a", ONE), request("b", ONE)
    assert not half.are_ready(first, 0) and not half.are_ready(second, 0)
    half.forget(first)
    half.store.asked[key(ONE)].set_result(output(10))
    assert half.are_ready(second, 0) and half.is_there(ONE)
    half.forget(second)
    assert not half.items and half.store.counters == {"lookups": 1, "unused": 1}


def test_requests_whose_end_vllm_does_not_report():
    """Their outputs would be held, and leave no room for others."""
    half = scheduler()
    first, second, third = request("a", ONE), request("b", ONE), request("c", OTHER)
    for each, ended in (first, True), (second, False), (third, True):
        each.is_finished = lambda ended=ended: ended
        half.are_ready(each, 0)
    half.end_unreported({"a", "b", "c", "unknown"})
    assert list(half.items) == [ONE] and list(half.items[ONE].users) == ["b"]
    assert half.store.asked[key(OTHER)].cancelled() and not half.store.asked[key(ONE)].cancelled()
    half.forget(second)
    assert not half.items


def test_a_late_output_is_a_miss_for_good():
    half = scheduler(SlowStore("0ms"))
    asks = request("r", ONE)
    half.item(asks, asks.mm_features[0], key(ONE))
    half.store.asked[key(ONE)].set_running_or_notify_cancel()  # it has begun
    wait_until(lambda: half.are_ready(asks, 0))
    half.store.asked[key(ONE)].set_result(output(10))
    assert half.are_ready(asks, 0) and not half.is_there(ONE)
    assert half.store.counters == {"lookups": 1, "miss: late": 1}


def test_a_load_that_nobody_waits_for_does_not_begin():
    half = scheduler(SlowStore("0ms"))
    late, gone = request("late", ONE), request("gone", OTHER)
    half.item(late, late.mm_features[0], key(ONE))
    half.item(gone, gone.mm_features[0], key(OTHER))
    wait_until(lambda: half.are_ready(late, 0))
    half.forget(gone)
    assert half.store.asked[key(ONE)].cancelled() and half.store.asked[key(OTHER)].cancelled()


def test_names_do_not_count():
    """The data do: one output has several names."""
    half = scheduler()
    for name in ("my image", ONE[:-1], OTHER):
        asks = request(name, (name, 1))
        assert not half.are_ready(asks, 0)
        (key,) = half.store.asked
        half.store.asked[key].set_result(output(10))
        assert half.are_ready(asks, 0) and half.is_there(name)
        half.forget(asks)
    half.are_ready(request("r", ("my image", 1)), 0)
    half.save({"my image": output(10), "not seen": output(10)})
    assert list(half.store.saved) == [key]


@pytest.mark.parametrize("loaded", [False, True])
def test_a_name_with_two_contents_is_neither_loaded_nor_stored(loaded):
    half = scheduler()
    first, second = request("a", (ONE, 1)), request("b", (ONE, 2))
    assert not half.are_ready(first, 0)
    (future,) = half.store.asked.values()
    if loaded:
        future.set_result(output(10))
        assert half.are_ready(first, 0) and half.is_there(ONE)
    assert half.are_ready(second, 0) and not half.is_there(ONE)
    assert half.are_ready(first, 0) and not half.is_there(ONE) and future.cancelled() != loaded
    half.save({ONE: output(10)})
    half.forget(first)
    half.forget(second)
    assert half.are_ready(request("c", (ONE, 1)), 0) and not half.is_there(ONE)
    assert not half.store.saved and half.store.counters == {"lookups": 2, "miss: identity unknown": 2}
    assert len(set(half.store.told)) == 1 and "another content" in half.store.told[0]


def test_outputs_of_an_encoder_with_an_adapter_are_neither_loaded_nor_stored():
    half = scheduler()
    asks = request("r", f"style:{ONE}", mm_hash=ONE)
    asks.lora_request = Thing(lora_name="style", lora_path="/style")
    assert half.are_ready(asks, 0) and half.store.counters == {"lookups": 1, "miss: identity unknown": 1}
    half.save({f"style:{ONE}": output(10)})
    assert not half.store.asked and not half.store.saved and "adapter" in half.store.told[0]


def test_memory_is_bounded(monkeypatch):
    """An output that finds no room waits, and is asked when another has gone."""
    monkeypatch.setattr(ours, "HELD_BYTES", 2 * Shape(10, WIDTH, torch.float32).bytes)
    half = scheduler()
    asks = [request(name, name) for name in (ONE, OTHER, THIRD)]
    assert [half.are_ready(each, 0) for each in asks] == [False] * 3 and list(half.store.asked) == [key(ONE), key(OTHER)]
    half.store.asked[key(ONE)].set_result(output(10))
    assert half.are_ready(asks[0], 0) and not half.are_ready(asks[2], 0) and key(THIRD) not in half.store.asked
    half.promise(ONE)
    assert not half.are_ready(asks[2], 0) and key(THIRD) in half.store.asked


def test_widths_are_measured_or_seen():
    half = scheduler(image=64)
    assert not half.are_ready(request("r", ONE), 0)
    assert half.items[ONE].shape == Shape(10, 64, torch.float32)
    half.save({ONE: output(10, width=96, dtype=torch.bfloat16)})
    assert not half.are_ready(request("s", OTHER), 0)
    assert half.items[OTHER].shape == Shape(10, 96, torch.bfloat16) and list(half.store.saved) == [key(ONE)]
    assert scheduler().widths.shape("audio", 3) == Shape(3, WIDTH, torch.float32)


def test_a_producer_only_asks():
    half = scheduler(is_consumer=False)
    asks = request("r", ONE)
    assert not half.are_ready(asks, 0)
    half.store.asked[key(ONE)].set_result(output(10))
    assert half.are_ready(asks, 0) and half.is_there(ONE)
    half.promise(ONE)
    assert half.take_promised() == {}


def test_the_worker_returns_matrices():
    worker, what = EncoderWorker(), output(10)
    worker.returns = True
    worker.save(ONE, what)
    worker.save(OTHER, what[None])
    kept = what.clone()
    what.zero_()
    ((name, taken),) = worker.take().items()
    assert name == ONE and torch.equal(taken, kept) and worker.take() == {}
    worker.returns = False
    worker.save(ONE, what)
    assert worker.take() == {}
    cache = {ONE: kept}
    worker.load(cache, {ONE: what, OTHER: what})
    assert cache[ONE] is kept and torch.equal(cache[OTHER], what)
