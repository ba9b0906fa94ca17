# SPDX-License-Identifier: Apache-2.0
"""A real vLLM with models whose checkpoint contains the drafter (MTP). The answers and the drafted tokens equal those of a
vLLM without a cache: the answers show the KV of the model, the drafted tokens that of the drafter."""

from functools import cache

import pytest

from conftest import answers, loaded, varied
from mtp_models import KINDS, make_mtp
from test_vllm import disk_store, held_and_loaded, memory_store, whole_blocks

BLOCKS = {"deepseek_v3": 16}  # vLLM's block size for latent attention on CPUs; 32 of the others
DRAFTED = {"mimo": 1, "glm4_moe": 2, "deepseek_v3": 2}  # vLLM drafts only one token with MiMo's layer
PARTED = 640  # tokens: the end of a block, not of a chunk
LONG = 32  # tokens of an answer, for many drafted tokens


def block_of(kind):
    return BLOCKS.get(kind, 32)


def but_one_block(prompts, kind):
    return [tokens - block_of(kind) for tokens in whole_blocks(prompts, block_of(kind))]


def drafting(kind):
    return {"speculative_config": {"method": "mtp", "num_speculative_tokens": DRAFTED[kind],
                                   "attention_backend": "CPU_MLA"}}  # as in engine.py


def ask(host, prompts, **more):
    """The outputs, and the drafted tokens of each step."""
    host.watch_drafts()
    outputs = host.generate(prompts=prompts, **more)
    return outputs, host.mend_call()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """model(kind) -> the folder of a checkpoint."""
    return cache(lambda kind: make_mtp(tmp_path_factory.mktemp("mtp") / kind, kind))


@pytest.fixture(scope="module")
def parted(prompts):
    """Each is equal to a prompt up to the end of a block, which is its last whole one."""
    return [prompt[:PARTED] + prompts[4][650:658] for prompt in prompts[1:3]]


@pytest.fixture(scope="module")
def plain(without_cache, model, prompts, parted):
    """plain(kind) -> the answers and the drafted tokens of a vLLM without a cache: to `prompts`, and to `parted`."""
    def answer(host):
        right = [ask(host, prompts), ask(host, parted, tokens=LONG)]
        for _, drafts in right:
            assert len({tuple(draft) for draft in drafts}) > len(drafts) / 2, drafts
        return [(varied(answers(outputs)), drafts) for outputs, drafts in right]

    return without_cache(lambda kind: {"model": model(kind), "enable_prefix_caching": False, **drafting(kind)}, answer)


@pytest.fixture
def start(engine, model):
    def begin(kind, store, **more):
        return engine(store, model=model(kind), **{**drafting(kind), **more})

    return begin


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.long) if kind == "glm4_moe" else kind
                                  for kind in KINDS])
def test_hits(start, prompts, parted, plain, kind):
    host, (right, right_parted) = start(kind, memory_store()), plain(kind)
    for found in (False, True):
        outputs, drafts = ask(host, prompts)
        assert (answers(outputs), drafts) == right
        assert not found or held_and_loaded(outputs) == but_one_block(prompts, kind)
        assert (loaded(outputs, "memory")[0] > 0) == found and loaded(outputs, "failed") == [0] * 5
        assert host.forget()
    # All of their whole blocks are found. The drafter's KV at the end of the last one is that of another prompt.
    outputs, drafts = ask(host, parted, tokens=LONG)
    assert (answers(outputs), drafts) == right_parted
    assert loaded(outputs, "memory")[0] == PARTED - block_of(kind) and loaded(outputs, "failed") == [0] * 2
    assert "Tierce is off" not in host.text(host.mark)


def test_the_last_block_would_be_noticed(start, prompts, parted, plain):
    """Checks that the drafted tokens change, and only they, if a hit includes the last block that was found."""
    kind = "glm4_moe"
    host, (_, right) = start(kind, memory_store()), plain(kind)
    host.generate(prompts=prompts[1:3])
    assert host.forget()
    host.load_last_blocks()
    outputs, drafts = ask(host, parted, tokens=LONG)
    assert loaded(outputs, "memory")[0] == PARTED
    assert answers(outputs) == right[0] and drafts != right[1]


def test_a_killed_engine(start, prompts, plain, tmp_path):
    """Its KV is found by an engine with the same drafter, and not without one."""
    kind, store = "mimo", disk_store(tmp_path / "store", **{"timeout.lookup": "5s"})
    host, (right, _) = start(kind, store), plain(kind)
    host.generate(prompts=prompts[:1])
    assert host.flush()
    host.kill()
    host = start(kind, store, speculative_config=None)
    outputs = host.generate(prompts=prompts[:1])
    assert answers(outputs) == right[0][:1] and loaded(outputs, "disk") == [0]
    host.stop()
    outputs, drafts = ask(start(kind, store), prompts[:1])
    assert (answers(outputs), drafts) == (right[0][:1], right[1][:len(drafts)])
    assert loaded(outputs, "disk") == but_one_block(prompts[:1], kind)
