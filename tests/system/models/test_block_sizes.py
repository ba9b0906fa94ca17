# SPDX-License-Identifier: Apache-2.0
"""A real vLLM with models whose KV cache groups differ in more than their windows: groups with different block sizes, and
latent attention (MLA) beside recurrent states. Each load moves the blocks of each group that its kind requires. The answers
are those of a vLLM without a cache."""

import math
from functools import cache

import pytest

from conftest import HostError, answers, loaded, varied
from hybrid_models import make_hybrid, make_latent_hybrid
from test_faults import damage
from test_vllm import disk_store, held_and_loaded, memory_store, whole_blocks

# Like the large models of Gemma 4, full attention has half as much KV per token as windows; like the small ones, twice.
CHANGES = {"gemma4": {}, "gemma4_small": {"attention_k_eq_v": False, "num_key_value_heads": 2}}
GROUPS = {"gemma4": [["window", 64, 32], ["window", 64, 32], ["full", 0, 64]],
          "gemma4_small": [["window", 64, 64], ["window", 64, 64], ["full", 0, 32]],
          "latent": [["state", 0, 128]] * 3 + [["full", 0, 128]]}
OPTIONS = {"latent": {"patch": "latent_on_cpu", "mamba_cache_mode": "align", "dtype": "bfloat16"}}
# `make test` damages the model with the most different groups. test_hybrid.py and test_inside_blocks.py have evicted groups.
FAULTED = [pytest.param(kind, marks=[] if kind == "latent" else [pytest.mark.long]) for kind in GROUPS]

# Of each prompt: with bfloat16, a beginning that another prompt has computed may change how the rest is rounded.
SALTS = [f"prompt {at}" for at in range(5)]
# Tokens of an answer that are compared, if not all: with bfloat16 a prompt after a hit, or in a batch, is rounded
# differently from one that is computed whole, so a tie may end otherwise late in an answer.
COMPARED = {"latent": 4}


def unit_of(kind):
    return math.lcm(*(tokens for _, _, tokens in GROUPS[kind]))


def required_blocks(group, tokens):
    """Blocks of a group that a hit of so many tokens requires."""
    kind, window, size = group
    first = {"full": 0, "window": max(0, tokens - window + 1) // size, "state": tokens // size - 1}[kind]
    return tokens // size - first


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """model(kind) -> the folder of a model."""
    @cache
    def folder(kind):
        path = tmp_path_factory.mktemp("model") / kind
        return make_latent_hybrid(path) if kind == "latent" else make_hybrid(path, "gemma4", **CHANGES[kind])

    return folder


@pytest.fixture
def start(engine, model):
    return lambda kind, store=None, **more: engine(store, model=model(kind), **OPTIONS.get(kind, {}), **more)


@pytest.fixture(scope="module")
def plain(without_cache, model, prompts):
    """plain(kind) -> what is compared of the answers of a vLLM without a cache."""
    whole = without_cache(lambda kind: {"model": model(kind), **OPTIONS.get(kind, {})},
                          lambda host: varied(answers(host.generate(prompts=prompts, salts=SALTS))))
    return lambda kind: [answer[:COMPARED.get(kind)] for answer in whole(kind)]


def compared(kind, outputs):
    return [answer[:COMPARED.get(kind)] for answer in answers(outputs)]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.long) if kind == "gemma4_small" else kind
                                  for kind in GROUPS])
def test_hits_of_each_group(start, prompts, plain, tmp_path, kind):
    """From memory, and after a kill from disk."""
    store = disk_store(tmp_path / "store", **{"timeout.lookup": "5s"})
    host = start(kind, store)
    groups = host.groups()
    assert sorted(groups) == sorted(GROUPS[kind])
    whole = whole_blocks(prompts, unit_of(kind))
    assert compared(kind, host.generate(prompts=prompts, salts=SALTS)) == plain(kind)
    for at in range(len(prompts)):
        assert host.forget()
        host.count_loads()
        outputs = host.generate(prompts=prompts[at:at + 1], salts=SALTS[at:at + 1])
        assert compared(kind, outputs) == plain(kind)[at:at + 1] and loaded(outputs, "memory") == whole[at:at + 1]
        assert host.mend_call() == [[required_blocks(group, whole[at]) for group in groups]]
    assert host.flush()
    host.kill()
    host = start(kind, store)
    outputs = host.generate(prompts=prompts[:1], salts=SALTS[:1])
    assert compared(kind, outputs) == plain(kind)[:1] and loaded(outputs, "disk") == whole[:1]
    outputs = host.generate(prompts=prompts, salts=SALTS, together=True)
    assert compared(kind, outputs) == plain(kind)
    assert loaded(outputs, "failed") == [0] * 5 and sum(loaded(outputs, "disk")) > 0
    assert "Tierce is off" not in host.text(host.mark) and "Tierce failed in" not in host.text(host.mark)


@pytest.mark.long
@pytest.mark.parametrize("kind", GROUPS)
def test_a_group_that_was_evicted(start, prompts, plain, kind):
    """Nothing is loaded unless all groups have it; what is missing is stored again."""
    host, whole = start(kind, memory_store()), whole_blocks(prompts, unit_of(kind))
    for at in range(len(GROUPS[kind])):
        asked = dict(prompts=prompts[:2], salts=[f"{salt}, without group {at}" for salt in SALTS[:2]])
        host.forget_stores(at=at)
        assert compared(kind, host.generate(**asked)) == plain(kind)[:2]
        host.mend_call()
        for found in (False, True):
            assert host.forget()
            outputs = host.generate(**asked)
            assert compared(kind, outputs) == plain(kind)[:2] and loaded(outputs, "failed") == [0] * 2
            assert held_and_loaded(outputs) == whole[:2] if found else loaded(outputs, "memory")[0] == 0


@pytest.mark.parametrize("kind", FAULTED)
def test_damage_and_kills(start, prompts, plain, tmp_path, kind):
    store = disk_store(tmp_path / "store", **{"timeout.lookup": "5s"})
    host = start(kind, store)
    assert compared(kind, host.generate(prompts=prompts[:2], salts=SALTS[:2])) == plain(kind)[:2]
    assert host.flush()
    host.die_in_store(at=1)
    with pytest.raises(HostError):
        host.generate(prompts=prompts[2:], salts=SALTS[2:])
    damage(tmp_path / "store", 32 << 10)
    host = start(kind, store)
    outputs = host.generate(prompts=prompts, salts=SALTS)
    assert compared(kind, outputs) == plain(kind)
    assert {o["end"] for o in outputs} == {"length"} and sum(loaded(outputs, "failed")) > 0
    for _ in range(2):
        assert host.forget()
        outputs = host.generate(prompts=prompts, salts=SALTS)
        assert compared(kind, outputs) == plain(kind)
    assert held_and_loaded(outputs) == whole_blocks(prompts, unit_of(kind)) and loaded(outputs, "failed") == [0] * 5
