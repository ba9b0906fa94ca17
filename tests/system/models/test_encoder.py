# SPDX-License-Identifier: Apache-2.0
"""Tierce as encoder cache of a real vLLM with a model that sees images (LLaVA): the output of the image encoder is stored by
the content of the image, and loaded by another engine, whose encoder then does not run. The answers are those of a vLLM
without a cache, whatever happens to the store."""

from functools import cache

import pytest

from conftest import WORKERS, answers, loaded
from image_models import make_llava
from test_faults import damage
from test_images import NAME, OPTIONS, Prompt, ask
from test_vllm import disk_store, memory_store
from manager_process import wait_until


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return cache(lambda kind: make_llava(tmp_path_factory.mktemp("encoder") / kind, kind))


@pytest.fixture(scope="module")
def asked(prompts):
    """Prompts of one image and of two, with text of their own: they share no KV behind their first blocks."""
    return {"one": Prompt(prompts[0], 1), "other": Prompt(prompts[1], 2), "both": Prompt(prompts[2], 1, 2)}


@pytest.fixture(scope="module")
def plain(without_cache, model, asked):
    def answer(host):
        right = dict(zip(asked, answers(ask(host, *asked.values()))))
        assert len(set(map(tuple, right.values()))) == len(right), right
        return right

    return without_cache(lambda kind: {"model": model(kind), **OPTIONS}, answer)("llama")


@pytest.fixture
def start(engine, model):
    return lambda store, **more: engine(model=model("llama"), encoder=store, **{**OPTIONS, **more})


def hits(host):
    return host.metric(name="vllm:tierce_encoder_hits")


def misses(host):
    return host.reasons(name="vllm:tierce_encoder_misses")


def stored(host):
    """vLLM takes the counters with each step; a store ends after its step."""
    host.step()
    return host.metric(name="vllm:tierce_encoder_stored")


def await_stored(host, number):
    """The number of outputs that were stored; if it fails, what came of the others."""
    def outcomes():
        return {"stored": stored(host), "stored before": host.metric(name="vllm:tierce_encoder_stored_before"),
                **host.reasons(name="vllm:tierce_encoder_not_stored")}

    wait_until(lambda: sum(outcomes().values()) >= number)
    assert outcomes() == {"stored": number, "stored before": 0}


def check(host, right, asked, *names):
    """Asks without anything that vLLM itself remembers; returns how often the encoder ran."""
    assert host.forget_images()
    assert answers(ask(host, *(asked[name] for name in names))) == [right[name] for name in names]
    return host.encodings()


def test_another_engine_loads_what_was_computed(start, asked, plain, tmp_path):
    store = disk_store(tmp_path / "store")
    host = start(store)
    assert check(host, plain, {**asked, "one": asked["one"].called(NAME)}, "one", "other") == 2 and hits(host) == 0
    await_stored(host, 2)
    assert check(host, plain, asked, *asked) == 0 and hits(host) == 2  # from memory; then vLLM has both itself
    assert host.flush()
    host.kill()
    host = start(store)  # a client gives the first image's name to the other
    assert check(host, plain, {"other": asked["other"].called(NAME)}, "other") == 0 and hits(host) == 1
    assert check(host, plain, asked, "both") == 0 and hits(host) == 3
    assert check(host, plain, asked, "one") == 0 and hits(host) == 4
    assert misses(host) == {} and host.reasons(name="vllm:tierce_encoder_not_stored") == {}
    host.stop()
    assert "encoder cache failed" not in host.text(host.mark) and "is off" not in host.text(host.mark)
    # Damaged outputs are computed and stored again.
    damage(tmp_path / "store", 4096)
    host = start(store)
    assert check(host, plain, asked, "both") > 0 and hits(host) == 0
    assert misses(host) == {"damaged": 2} and "bytes were damaged" in host.text(host.mark)
    await_stored(host, 2)
    assert check(host, plain, asked, "both") == 0 and hits(host) == 2


def test_another_type_is_another_output(start, asked, tmp_path):
    store = disk_store(tmp_path / "store")
    for dtype in ("float32", "bfloat16"):
        host = start(store, dtype=dtype)
        ask(host, asked["one"])
        assert misses(host) == {"not stored": 1} and hits(host) == 0
        assert host.flush()
        host.stop()


def test_a_name_that_is_given_to_two_images_in_one_process(start, asked, plain):
    """vLLM's own caches go by names, so that outputs under this name are not trusted any more."""
    host = start(memory_store(), mm_processor_cache_gb=0)
    for name, stores in (("one", 1), ("other", 1), ("one", 1)):
        assert check(host, plain, {name: asked[name].called("image")}, name) == 1
        wait_until(lambda: stored(host) == stores)
    assert misses(host) == {"not stored": 1, "identity unknown": 2} and hits(host) == 0
    assert check(host, plain, asked, "one") == 0 and hits(host) == 1


@pytest.mark.parametrize("workers", [pytest.param("tp", marks=pytest.mark.long)])
def test_workers_in_other_processes(start, asked, plain, tmp_path, workers):
    """Outputs pass between the scheduler and two tensor ranks."""
    store = disk_store(tmp_path / "store")
    for found in (0, 2):
        host = start(store, worker_extension_cls="llava_in_workers.Extension", **WORKERS[workers])
        for name in asked:
            assert answers(ask(host, asked[name])) == [plain[name]]
        assert hits(host) == found
        host.stop()


@pytest.mark.long
def test_roles(start, asked, plain, tmp_path):
    """A consumer computes what it does not find, and stores nothing. vLLM's runner of models on the CPU does not say what an
    engine that only encodes has computed."""
    store = disk_store(tmp_path / "store")
    host = start(store, encoder_role="ec_producer")
    ask(host, asked["one"])
    assert "encoder cache is off: an engine that only encodes" in host.text(host.mark)
    host.stop()
    host = start(store)
    ask(host, asked["one"])
    wait_until(lambda: stored(host) == 1)
    assert host.flush()
    host.stop()
    host = start(store, encoder_role="ec_consumer")
    assert check(host, plain, asked, "one") == 0 and hits(host) == 1
    assert check(host, plain, asked, "other") == 1
    assert check(host, plain, asked, "other") == 1 and misses(host) == {"not stored": 2}


@pytest.mark.long
def test_beside_the_connector_of_kv(engine, model, asked, plain, tmp_path):
    """Both use one store of the process."""
    store = disk_store(tmp_path / "store", **{"timeout.lookup": "5s"})
    for known in (False, True):
        host = engine(store, model=model("llama"), encoder=store, **OPTIONS)
        outputs = ask(host, asked["one"])
        assert answers(outputs) == [plain["one"]]
        assert (loaded(outputs, "disk")[0] > asked["one"].whole // 2) == known
        assert host.forget_images()
        assert host.flush()
        host.stop()
