# SPDX-License-Identifier: Apache-2.0
"""A real vLLM with models of several KV cache groups in further conditions: preemption, adapters, prompts of
embeddings, prefetches, remote stores. The answers are those of a vLLM without a cache."""

import pytest

from conftest import answers, loaded
from shared_stores import STORES
from test_hybrid import GROUPS, hybrid, options, plain, whole_units  # noqa: F401
from test_vllm import disk_store, held_and_loaded, make_adapter, memory_store

EVERY = [pytest.param(kind, marks=[] if kind == "gemma3" else pytest.mark.long) for kind in GROUPS]


@pytest.fixture
def start(engine, hybrid):  # noqa: F811
    def begin(kind, store=None, **more):
        return engine(store, model=hybrid(kind), **{**options(kind), **more})

    return begin


@pytest.mark.long
def test_preemption(start, prompts):
    """Requests that together require more than vLLM's memory. Models with bfloat16 states cannot be tested: vLLM
    computes a resumed request's tokens in another order, with or without a cache, and the rounding changes the answers."""
    kind = "gemma3"
    asked = dict(prompts=[p[300:440 + 3 * i] for i, p in enumerate(prompts)], tokens=120)
    small = dict(num_gpu_blocks_override=44, max_model_len=320, max_num_batched_tokens=256)
    host = start(kind)
    right = answers(host.generate(**asked))
    host.stop()
    host = start(kind, memory_store(**{"save.decode": "true"}), **small)
    for _ in range(2):
        before = host.metric(name="vllm:num_preemptions")
        outputs = host.generate(**asked, together=True)
        assert answers(outputs) == right
        assert host.metric(name="vllm:num_preemptions") > before
        assert loaded(outputs, "failed") == [0] * 5
        assert host.forget()
    assert sum(loaded(outputs, "memory")) > 0


@pytest.mark.long  # test_vllm.py has adapters with one group
def test_adapters_never_share(start, hybrid, prompts, plain, tmp_path):  # noqa: F811
    one, two = (make_adapter(tmp_path / f"adapter{i}", hybrid("gemma3"), i) for i in (1, 2))
    host = start("gemma3", memory_store(), enable_lora=True, max_loras=2, max_lora_rank=8, max_cpu_loras=4)
    asked = dict(prompts=prompts[:1] * 3, adapters=[None, ("one", 1, one), ("two", 2, two)])
    outputs = host.generate(**asked)
    first = answers(outputs)
    assert loaded(outputs, "memory") == [0] * 3
    assert first[0] == plain("gemma3")[0] and len({tuple(a) for a in first}) == 3
    for _ in range(2):
        assert host.forget()
        outputs = host.generate(**asked)
        assert answers(outputs) == first
        assert loaded(outputs, "memory") == whole_units(prompts[:1], "gemma3") * 3


def test_prompts_of_embeddings_are_neither_stored_nor_loaded(start, prompts, plain):  # noqa: F811
    host = start("gemma3", memory_store(), enable_prompt_embeds=True)
    given = [host.generate_from_embeddings(tokens=400, seed=1) for _ in range(2)]
    assert given[0]["answer"] == given[1]["answer"]
    assert host.stats()["chunks_stored"] == 0
    for found in (0, whole_units(prompts[:1], "gemma3")[0]):
        outputs = host.generate(prompts=prompts[:1])
        assert answers(outputs) == plain("gemma3")[:1] and loaded(outputs, "memory") == [found]
        assert host.forget()
        assert host.generate_from_embeddings(tokens=400, seed=1)["answer"] == given[0]["answer"]
        assert host.forget()


@pytest.mark.parametrize("kind", EVERY)
def test_prefetch(start, prompts, plain, tmp_path, kind):  # noqa: F811
    """A prefetch brings chunks from disk to memory before they are loaded."""
    store = disk_store(tmp_path / "store", **{"load.prefetch": "true", "timeout.lookup": "5s"})
    host = start(kind, store)
    host.generate(prompts=prompts)
    assert host.flush()
    host.stop()
    host = start(kind, store)
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == plain(kind)
    assert held_and_loaded(outputs) == whole_units(prompts, kind)
    assert loaded(outputs, "disk") == loaded(outputs, "failed") == [0] * 5
    stats = host.stats()
    assert stats["prefetches"] > 0 and stats["sessions_now"] == stats["prefetch_bytes_now"] == 0
    assert host.forget()
    assert answers(host.generate(prompts=prompts, together=True)) == plain(kind)


@pytest.mark.long
@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize("place", ["redis", "file"])
def test_a_remote_store(start, prompts, plain, tmp_path, kind, place):  # noqa: F811
    """An engine loads KV that another engine has computed. Without the store, it computes it."""
    remote = STORES[place](tmp_path / "store")
    store = {"memory.size": "256MiB", "disk.path": "", "remote.urls": remote.uri, "cost.check": "false",
             "breaker.errors": "2", "breaker.retry": "1h", "timeout.lookup": "10s"}
    host = start(kind, store)
    assert answers(host.generate(prompts=prompts)) == plain(kind)
    assert host.flush()
    host.stop()
    # Another memory size, because an equal configuration in the same process would be the same store.
    host = start(kind, {**store, "memory.size": "255MiB"})
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == plain(kind) and loaded(outputs, "failed") == [0] * 5
    origins = zip(*(loaded(outputs, what) for what in ("local", "memory", "remote")))
    assert [sum(tokens) for tokens in origins] == whole_units(prompts, kind)
    assert loaded(outputs, "remote")[0] == whole_units(prompts[:1], kind)[0]
    assert remote.spoil() > 0
    host.stop()
    host = start(kind, {**store, "memory.size": "254MiB"})
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == plain(kind) and sum(loaded(outputs, "failed")) > 0
    remote.stop()
    assert host.forget()
    assert answers(host.generate(prompts=prompts)) == plain(kind)
