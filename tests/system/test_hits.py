# SPDX-License-Identifier: Apache-2.0
"""Outputs with Tierce equal those without it, wherever the KV comes from."""

import pytest

from conftest import answers, loaded, prompt

PROMPTS = [prompt(i, 1024) for i in range(3)]
LOADABLE = 1024 - 32  # vLLM computes the last block of a whole prompt itself


def test_hits_from_memory_and_after_a_kill_from_disk(engine, expect, store):
    expected = expect(PROMPTS)
    host = engine(store)
    outputs = host.generate(prompts=PROMPTS)
    assert answers(outputs) == expected
    assert loaded(outputs, "memory") == [0, 0, 0]

    assert host.forget()
    outputs = host.generate(prompts=PROMPTS)
    assert answers(outputs) == expected
    assert loaded(outputs, "memory") == [LOADABLE] * 3

    assert host.flush(store=store)
    host.kill()
    host = engine(store)
    outputs = host.generate(prompts=PROMPTS)
    assert answers(outputs) == expected
    assert loaded(outputs, "disk") == [LOADABLE] * 3
    assert loaded(outputs, "failed") == [0, 0, 0]

    assert host.forget()
    outputs = host.generate(prompts=PROMPTS)
    assert answers(outputs) == expected
    assert loaded(outputs, "memory") == [LOADABLE] * 3


def test_what_vllm_holds_is_not_loaded(engine, expect, store):
    expected = expect(PROMPTS[:1])
    longer = [prompt(9, 1500, prefix=PROMPTS[0])]
    expected_longer = expect(longer)
    host = engine(store)
    assert answers(host.generate(prompts=PROMPTS[:1])) == expected
    assert answers(host.generate(prompts=longer)) == expected_longer
    outputs = host.generate(prompts=longer)
    assert answers(outputs) == expected_longer
    assert loaded(outputs, "local") == [1500 // 32 * 32]
    assert loaded(outputs, "memory") == [0]
    # The prefix is vLLM's again, the rest comes from the store.
    assert host.forget()
    host.generate(prompts=PROMPTS[:1])
    outputs = host.generate(prompts=longer)
    assert answers(outputs) == expected_longer
    assert loaded(outputs, "local") == [1024]
    assert loaded(outputs, "memory") == [1500 // 64 * 64 - 1024]


def test_chunked_prefill_of_concurrent_prompts(engine, expect, store):
    # 416 tokens a step: prefills are cut inside chunks, and several share a step.
    settings = {"max_num_batched_tokens": 416}
    common = prompt(20, 300)
    prompts = [prompt(30 + i, 900 + 37 * i, prefix=common) for i in range(5)]
    expected = expect(prompts, **settings)
    host = engine(store, **settings)
    assert answers(host.generate(prompts=prompts)) == expected
    assert host.forget()
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected
    assert sum(loaded(outputs, "memory")) > 0.7 * sum(len(p) // 64 * 64 for p in prompts)
    assert loaded(outputs, "failed") == [0] * 5


@pytest.mark.parametrize("source", ["memory", "disk"])
def test_asynchronous_loads(engine, expect, store, source):
    expected = expect(PROMPTS)
    settings = {**store, "load.async": True}
    host = engine(settings)
    host.generate(prompts=PROMPTS)
    if source == "disk":
        host.stop()
        host = engine(settings)
    else:
        assert host.forget()
    outputs = host.generate(prompts=PROMPTS)
    assert answers(outputs) == expected
    assert loaded(outputs, source) == [LOADABLE] * 3


def test_preempted_requests(engine, expect, store):
    # Six requests grow from 5 blocks to 7, and there are 32: not all can finish at once.
    settings = {"num_gpu_blocks_override": 32, "max_model_len": 512,
                "max_num_batched_tokens": 512}
    prompts = [prompt(40 + i, 140 + 3 * i) for i in range(6)]
    expected = expect(prompts, tokens=70)
    host = engine({**store, "save.decode": True}, **settings)
    before = host.preemptions()
    outputs = host.generate(prompts=prompts, tokens=70)
    assert answers(outputs) == expected
    assert host.preemptions() > before
    assert loaded(outputs, "failed") == [0] * 6
    assert answers(host.generate(prompts=prompts, tokens=70)) == expected


def test_the_engine_in_a_process_of_its_own(engine, expect, store):
    expected = expect(PROMPTS)
    host = engine(store, own_process=True)
    assert answers(host.generate(prompts=PROMPTS)) == expected
    assert host.forget()
    outputs = host.generate(prompts=PROMPTS)
    assert answers(outputs) == expected
    assert loaded(outputs, "memory") == [LOADABLE] * 3


def test_cache_salts_separate(engine, expect, store):
    expected = expect(PROMPTS[:1])
    host = engine(store)
    for salt in (None, "one", "two"):
        outputs = host.generate(prompts=PROMPTS[:1], salts=[salt])
        assert answers(outputs) == expected
        assert loaded(outputs, "memory") == [0], salt
    assert host.forget()
    for salt in (None, "one", "two"):
        outputs = host.generate(prompts=PROMPTS[:1], salts=[salt])
        assert answers(outputs) == expected
        assert loaded(outputs, "memory") == [LOADABLE], salt


def test_requests_may_opt_out(engine, expect, store):
    expected = expect(PROMPTS[:1])
    host = engine(store)
    host.generate(prompts=PROMPTS[:1], wishes={"tierce.skip_save": True})
    assert host.forget()
    outputs = host.generate(prompts=PROMPTS[:1])
    assert loaded(outputs, "memory") == [0]
    assert host.forget()
    outputs = host.generate(prompts=PROMPTS[:1], wishes={"tierce.skip_load": True})
    assert loaded(outputs, "memory") == [0]
    assert host.forget()
    outputs = host.generate(prompts=PROMPTS[:1])
    assert loaded(outputs, "memory") == [LOADABLE]
    assert answers(outputs) == expected


def test_hashes_of_vllm(engine, expect, store):
    """sha256_cbor means the same in every process, so vLLM's own hashes are the keys."""
    expected = expect(PROMPTS)
    settings = {**store, "chunk.hash": "vllm-sha256-cbor"}
    for source in ("none", "disk"):
        host = engine(settings, prefix_caching_hash_algo="sha256_cbor")
        outputs = host.generate(prompts=PROMPTS)
        assert answers(outputs) == expected
        assert loaded(outputs, "disk") == [LOADABLE * (source == "disk")] * 3
        host.stop()


def test_two_models_never_share(engine, expect, models, store):
    expected = [expect(PROMPTS, model=model) for model in models]
    assert expected[0] != expected[1]
    for round_number in range(2):
        for number, model in enumerate(models):
            host = engine(store, model=model)
            outputs = host.generate(prompts=PROMPTS)
            assert answers(outputs) == expected[number]
            assert loaded(outputs, "disk") == [LOADABLE * round_number] * 3
            host.stop()


def test_nothing_is_found_after_the_cache_was_reset(engine, expect, store):
    expected = expect(PROMPTS[:1])
    host = engine(store)
    host.generate(prompts=PROMPTS[:1])
    assert host.reset_connector()
    outputs = host.generate(prompts=PROMPTS[:1])
    assert answers(outputs) == expected
    assert loaded(outputs, "memory") == [0]
    assert host.forget()
    assert loaded(host.generate(prompts=PROMPTS[:1]), "memory") == [LOADABLE]
