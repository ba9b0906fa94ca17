# SPDX-License-Identifier: Apache-2.0
"""A real vLLM over a real store: the answers equal those of a vLLM without a store, whatever the origin of the KV.
test_faults.py tests faults."""

import os

import pytest

from conftest import answers, loaded, why

CHUNK, BLOCK = 256, 32


def memory_store(**more):
    return {"memory.size": "256MiB", "disk.path": "", **more}


def disk_store(folder, **more):
    return {"memory.size": "256MiB", "disk.path": str(folder), "disk.size": "512MiB",
            "disk.lock_wait": "0", "cost.check": "false", **more}


def whole_chunks(prompts):
    return [len(p) // CHUNK * CHUNK for p in prompts]


def whole_blocks(prompts, block=BLOCK):
    """The loadable tokens: vLLM computes the last token itself."""
    return [(len(p) - 1) // block * block for p in prompts]


def held_and_loaded(outputs, tier="memory"):
    """Tokens of each prompt that were not computed."""
    return [a + b for a, b in zip(loaded(outputs, "local"), loaded(outputs, tier))]


@pytest.fixture(scope="module")
def shared(module_engine):
    """One engine for all tests that change nothing in it; salts keep their prompts apart."""
    return module_engine(memory_store(**{"load.min_tokens": "0"}))


def test_memory_hits(shared, prompts, expected):
    outputs = shared.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert loaded(outputs, "memory") == [0] * 5
    said = why(shared.process.pid, outputs[0])
    assert said["reason"] in ("never_stored", "namespace")  # an earlier test may have reset this engine
    assert (said["token"], said["found_tokens"]) == (0, 0)
    assert (said["tokens"], said["stored_tokens"]) == (
        len(prompts[0]), len(prompts[0]) // BLOCK * BLOCK)
    assert shared.forget()
    outputs = shared.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert held_and_loaded(outputs) == whole_blocks(prompts)
    assert loaded(outputs, "memory")[0] == whole_blocks(prompts)[0]
    assert loaded(outputs, "failed") == [0] * 5
    said = why(shared.process.pid, outputs[0])
    assert (said["reason"], said["loaded_tokens"]) == ("none", whole_blocks(prompts)[0])


def test_many_at_once(shared, prompts, expected):
    asked = dict(prompts=prompts, salts=["many"] * 5, together=True)
    assert answers(shared.generate(**asked)) == expected()
    assert shared.forget()
    outputs = shared.generate(**asked)
    assert answers(outputs) == expected()
    assert sum(loaded(outputs, "memory")) > 0 and loaded(outputs, "failed") == [0] * 5


def test_what_vllm_holds_is_not_loaded(shared, prompts, expected):
    short, long = prompts[0], prompts[0] + prompts[4]
    salted = dict(salts=["held"])
    shared.generate(prompts=[short], **salted)
    assert answers(shared.generate(prompts=[long], **salted)) == expected([long])
    outputs = shared.generate(prompts=[long], **salted)
    assert loaded(outputs, "local") == [len(long) // BLOCK * BLOCK]
    assert loaded(outputs, "memory") == [0]
    # The beginning comes from vLLM's own cache, the rest from the store.
    assert shared.forget()
    shared.generate(prompts=[short], **salted)
    outputs = shared.generate(prompts=[long], **salted)
    assert answers(outputs) == expected([long])
    assert loaded(outputs, "local") == [len(short) // BLOCK * BLOCK]
    assert held_and_loaded(outputs) == whole_blocks([long])


def part_at(prompts, tokens):
    """A prompt, and another prompt that is equal up to a position."""
    return prompts[3], prompts[3][:tokens] + prompts[4][tokens:]


def test_prompts_that_part_inside_a_chunk(shared, prompts, expected):
    salted = dict(salts=["inside"])
    first, second = part_at(prompts, 650)
    shared.generate(prompts=[first], **salted)
    assert shared.forget()
    outputs = shared.generate(prompts=[second], **salted)
    assert answers(outputs) == expected([second])
    assert loaded(outputs, "memory") == [650 // BLOCK * BLOCK]  # 512 in whole chunks
    assert loaded(outputs, "failed") == [0]
    # The chunk of which a part was loaded has been stored whole.
    assert shared.forget()
    outputs = shared.generate(prompts=[second], **salted)
    assert answers(outputs) == expected([second])
    assert loaded(outputs, "memory") == whole_blocks([second])
    # The blocks that vLLM holds itself end inside the chunk, too.
    third = second[:600] + prompts[2][600:]
    assert shared.forget()
    shared.generate(prompts=[third[:560]], **salted)
    outputs = shared.generate(prompts=[third], **salted)
    assert answers(outputs) == expected([third])
    assert held_and_loaded(outputs) == [600 // BLOCK * BLOCK]
    assert loaded(outputs, "memory") == [600 // BLOCK * BLOCK - 560 // BLOCK * BLOCK]


@pytest.mark.parametrize("prefetch", ["false", "true"])
def test_prompts_that_part_inside_a_chunk_on_disk(engine, prompts, expected, tmp_path, prefetch):
    store = disk_store(tmp_path / "store", **{"load.prefetch": prefetch, "timeout.lookup": "5s"})
    first, second = part_at(prompts, 650)
    host = engine(store)
    host.generate(prompts=[first])
    assert host.flush()
    host.kill()
    outputs = engine(store).generate(prompts=[second])
    assert answers(outputs) == expected([second])
    assert sum(loaded(outputs, tier)[0] for tier in ("memory", "disk")) == 650 // BLOCK * BLOCK
    assert loaded(outputs, "failed") == [0]


def test_salts_separate(shared, prompts, expected):
    for salt in ("tenant-a", "tenant-b"):
        outputs = shared.generate(prompts=prompts[:1], salts=[salt])
        assert answers(outputs) == expected(prompts[:1])
        assert loaded(outputs, "memory") == [0]
    assert shared.forget()
    for salt in ("tenant-a", "tenant-b"):
        outputs = shared.generate(prompts=prompts[:1], salts=[salt])
        assert answers(outputs) == expected(prompts[:1])
        assert loaded(outputs, "memory") == whole_blocks(prompts[:1])


def test_requests_may_opt_out(shared, prompts, expected):
    asked = dict(prompts=prompts[:1], salts=["opt-out"])
    whole = whole_blocks(prompts[:1])
    for wishes, found in (({"tierce.skip_save": True}, [0]), ({}, [0]),
                          ({"tierce.skip_load": True}, [0]), ({}, whole)):
        outputs = shared.generate(**asked, wishes=wishes)
        assert answers(outputs) == expected(prompts[:1])
        assert loaded(outputs, "memory") == found, wishes
        assert shared.forget()
    outputs = shared.generate(**asked, wishes={"tierce.report": False})
    assert answers(outputs) == expected(prompts[:1])
    assert outputs[0]["report"] is None


def test_nothing_is_found_after_the_connector_was_reset(shared, prompts, expected):
    asked = dict(prompts=prompts[:1], salts=["reset"])
    shared.generate(**asked)
    assert shared.reset_connector()
    outputs = shared.generate(**asked)
    assert answers(outputs) == expected(prompts[:1])
    assert loaded(outputs, "local") == [0] and loaded(outputs, "memory") == [0]
    assert shared.forget()
    outputs = shared.generate(**asked)
    assert answers(outputs) == expected(prompts[:1])
    assert loaded(outputs, "memory") == whole_blocks(prompts[:1])


HASHES = {"sha256": {}, "vllm-sha256-cbor": {"prefix_caching_hash_algo": "sha256_cbor"}}


@pytest.fixture(scope="module")
def killed(module_engine, prompts, expected, tmp_path_factory):
    """Stores of a process that was killed, one for each kind of hashes."""
    stores = {name: disk_store(tmp_path_factory.mktemp("killed") / "store", **{"chunk.hash": name})
              for name in HASHES}
    for name, settings in HASHES.items():
        host = module_engine(stores[name], **settings)
        assert answers(host.generate(prompts=prompts)) == expected()
        assert host.flush()
        if name != list(HASHES)[-1]:
            host.stop()
    host.kill()
    return stores


@pytest.mark.parametrize("hashes", HASHES)
def test_disk_hits_after_a_kill(engine, killed, prompts, expected, hashes):
    """vLLM's own hashes are the keys if every process computes the same hashes."""
    host = engine(killed[hashes], **HASHES[hashes])
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert held_and_loaded(outputs, "disk") == whole_blocks(prompts)
    assert loaded(outputs, "failed") == [0] * 5
    assert host.forget()
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected()
    assert held_and_loaded(outputs) == whole_blocks(prompts)
    # A salt is folded into vLLM's hashes, too.
    for salt, found in ((None, whole_blocks(prompts[:1])), ("salt", [0])):
        assert host.forget()
        outputs = host.generate(prompts=prompts[:1], salts=[salt])
        assert answers(outputs) == expected(prompts[:1])
        assert loaded(outputs, "memory") == found


def test_models_that_differ_in_their_seed_never_share(engine, models, prompts, expected, tmp_path):
    store = disk_store(tmp_path / "store")
    assert expected() != expected(seed=8)
    for seed in (7, 8):
        host = engine(store, model=models(seed))
        outputs = host.generate(prompts=prompts)
        assert answers(outputs) == expected(seed=seed)
        assert loaded(outputs, "disk") == [0] * 5
        assert host.flush()
        host.stop()


def test_chunked_prefill(engine, prompts, expected):
    """320 tokens a step: prefills are cut inside chunks, and several share a step."""
    host = engine(memory_store(), max_num_batched_tokens=320)
    for _ in range(2):
        outputs = host.generate(prompts=prompts, together=True)
        assert answers(outputs) == expected()
        assert host.forget()
    assert sum(loaded(outputs, "memory")) > 0


def test_preemption(engine, prompts, expected):
    """Four requests grow from 5 blocks to 6, and vLLM has 22 blocks, so not all can continue."""
    asked = dict(prompts=[p[300:440 + 3 * i] for i, p in enumerate(prompts)], tokens=40)
    host = engine(memory_store(**{"save.decode": "true", "chunk.tokens": "64"}),
                  num_gpu_blocks_override=23, max_model_len=512, max_num_batched_tokens=512)
    for _ in range(2):
        before = host.metric(name="vllm:num_preemptions")
        outputs = host.generate(**asked, together=True)
        assert answers(outputs) == expected(asked["prompts"], tokens=40)
        assert host.metric(name="vllm:num_preemptions") > before
        assert loaded(outputs, "failed") == [0] * 5
    assert sum(loaded(outputs, "memory")) > 0


def make_adapter(folder, model, seed):
    import json

    import torch
    from safetensors.torch import save_file

    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    generator = torch.Generator().manual_seed(seed)
    hidden, head, rank = config["hidden_size"], config["head_dim"], 8
    rows = {"q_proj": config["num_attention_heads"] * head,
            "k_proj": config["num_key_value_heads"] * head,
            "v_proj": config["num_key_value_heads"] * head}
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, count in rows.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}."
            for part, shape in (("A", (rank, hidden)), ("B", (count, rank))):
                tensors[f"{prefix}lora_{part}.weight"] = torch.randn(
                    shape, generator=generator) * 0.2
    folder.mkdir()
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none",
         "target_modules": list(rows), "task_type": "CAUSAL_LM", "base_model_name_or_path": None}))
    return str(folder)


def test_adapters_never_share(engine, models, prompts, expected, tmp_path):
    one, two = (make_adapter(tmp_path / f"adapter{i}", models(), i) for i in (1, 2))
    host = engine(memory_store(), enable_lora=True, max_loras=2, max_lora_rank=8, max_cpu_loras=4)
    asked = dict(prompts=prompts[:1] * 3, adapters=[None, ("one", 1, one), ("two", 2, two)])
    outputs = host.generate(**asked)
    first = answers(outputs)
    assert loaded(outputs, "memory") == [0] * 3
    assert first[0] == expected(prompts[:1])[0] and len({tuple(a) for a in first}) == 3
    for _ in range(2):
        assert host.forget()
        outputs = host.generate(**asked)
        assert answers(outputs) == first
        assert loaded(outputs, "memory") == whole_blocks(prompts[:1]) * 3
    # The content counts, not the name.
    outputs = host.generate(prompts=prompts[:1], adapters=[("three", 3, one)])
    assert answers(outputs) == first[1:2]
    assert loaded(outputs, "memory") == whole_blocks(prompts[:1])
