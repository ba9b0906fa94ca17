# SPDX-License-Identifier: Apache-2.0
"""A real vLLM with a drafter (EAGLE) whose KV is stored with that of the model. The answers equal those of a vLLM
without a cache. A hit ends before the last block, whose drafts depend on the token after it."""

import json
import math
from pathlib import Path

import pytest

from conftest import answers, loaded
from hybrid_models import make_hybrid
from test_vllm import BLOCK, disk_store, held_and_loaded, memory_store, whole_blocks


def make_drafter(folder, model, seed):
    """A Llama-like checkpoint with one layer, as the drafter of a model. Returns the folder."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((Path(model) / "config.json").read_text())
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]

    def matrix(rows, columns):
        return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

    layer = {"self_attn.q_proj": (heads * head, hidden), "self_attn.k_proj": (kv_heads * head, hidden),
             "self_attn.v_proj": (kv_heads * head, hidden), "self_attn.o_proj": (hidden, heads * head),
             "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
    tensors = {f"layers.0.{name}.weight": matrix(*shape) for name, shape in layer.items()}
    tensors["layers.0.post_attention_layernorm.weight"] = torch.ones(hidden)
    tensors["fc.weight"] = matrix(hidden, 2 * hidden)
    folder.mkdir()
    save_file(tensors, str(folder / "model.safetensors"))
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
            "max_position_embeddings", "bos_token_id", "eos_token_id", "tie_word_embeddings")
    (folder / "config.json").write_text(json.dumps({
        **{name: config[name] for name in kept}, "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "num_hidden_layers": 1, "hidden_act": "silu", "torch_dtype": "float32"}))
    return str(folder)


@pytest.fixture(scope="module")
def drafts(tmp_path_factory, models):
    """drafts(seed) -> vLLM's option for a drafter of that seed."""
    folder = tmp_path_factory.mktemp("drafters")
    made = {}

    def drafter(seed=1):
        if seed not in made:
            made[seed] = make_drafter(folder / str(seed), models(), seed)
        return {"speculative_config": {"method": "eagle", "model": made[seed], "num_speculative_tokens": 2}}

    return drafter


def but_one_block(prompts):
    return [tokens - BLOCK for tokens in whole_blocks(prompts)]


@pytest.mark.parametrize("load", ["sync", "async"])
def test_hits(engine, drafts, prompts, expected, load):
    host = engine(memory_store(**{"load.async": str(load == "async").lower()}), **drafts())
    outputs = host.generate(prompts=prompts)
    assert answers(outputs) == expected() and loaded(outputs, "memory") == [0] * 5
    assert "Tierce is off" not in host.text(host.mark)
    drafted = host.metric(name="vllm:spec_decode_num_drafts")
    assert drafted > 0
    for together in (False, True):
        assert host.forget()
        outputs = host.generate(prompts=prompts, together=together)
        assert answers(outputs) == expected()
        assert loaded(outputs, "failed") == [0] * 5
        if not together:
            assert loaded(outputs, "memory")[0] == but_one_block(prompts)[0]
            assert held_and_loaded(outputs) == but_one_block(prompts)
    assert host.metric(name="vllm:spec_decode_num_drafts") > drafted
    assert "loads are complete before" not in host.text(host.mark)


@pytest.mark.long
def test_windows_beside_full_attention(engine, prompts, tmp_path):
    """Three groups; the drafter's layer is in the group of full attention, or in its own group."""
    model = make_hybrid(tmp_path / "model", "gemma3")
    options = {"model": model, "speculative_config": {
        "method": "eagle", "model": make_drafter(tmp_path / "drafter", model, 1), "num_speculative_tokens": 2}}
    plain = engine(**options)
    right = answers(plain.generate(prompts=prompts))
    plain.stop()
    host = engine(memory_store(), **options)
    for found in (False, True):
        outputs = host.generate(prompts=prompts)
        assert answers(outputs) == right and loaded(outputs, "failed") == [0] * 5
        assert not found or held_and_loaded(outputs) == but_one_block(prompts)
        assert host.forget()
    assert answers(host.generate(prompts=prompts, together=True)) == right
    assert "Tierce is off" not in host.text(host.mark) and "groups: " in host.text(host.mark)


def test_drafters_never_share(engine, drafts, prompts, expected, tmp_path):
    store = disk_store(tmp_path / "store")
    for options, found in ((drafts(1), 0), (drafts(2), 0), ({}, 0), (drafts(1), but_one_block(prompts)[0])):
        host = engine(store, **options)
        outputs = host.generate(prompts=prompts[:2])
        assert answers(outputs) == expected(prompts[:2])
        assert loaded(outputs, "disk")[0] == found
        assert host.flush()
        host.stop()
