# SPDX-License-Identifier: Apache-2.0
"""Tierce as encoder cache of a real vLLM with a model that sees images (LLaVA): the output of the image encoder is stored by
the content of the image, and loaded by another engine, whose encoder then does not run. The answers are those of a vLLM
without a cache, whatever happens to the store."""

import os
from functools import cache

import pytest

from conftest import answers
from image_models import make_llava
from test_faults import damage
from test_images import OPTIONS, Prompt, ask
from test_vllm import disk_store, memory_store
from manager_process import wait_until

OUTPUT_CHUNKS = 4  # 256 tokens of an image


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


def not_stored(host):
    return host.reasons(name="vllm:tierce_encoder_not_stored")


def stored(host):
    """vLLM takes the counters with each step; a store ends after its step."""
    host.step()
    return host.metric(name="vllm:tierce_encoder_stored")


def check(host, right, asked, *names):
    """Asks without anything that vLLM itself remembers; returns how often the encoder ran."""
    assert host.forget_images()
    assert answers(ask(host, *(asked[name] for name in names))) == [right[name] for name in names]
    return host.encodings()


def test_another_engine_loads_what_was_computed(start, asked, plain, tmp_path):
    store = disk_store(tmp_path / "store")
    host = start(store)
    assert check(host, plain, asked, "one", "other") == 2 and hits(host) == 0
    wait_until(lambda: stored(host) == 2)
    assert check(host, plain, asked, *asked) == 0 and hits(host) == 4  # from memory
    assert host.flush()
    host.kill()
    host = start(store)
    assert check(host, plain, asked, "both") == 0 and hits(host) == 2
    assert check(host, plain, asked, "one") == 0
    assert misses(host) == {}
    assert "encoder cache failed" not in host.text(host.mark) and "is off" not in host.text(host.mark)
