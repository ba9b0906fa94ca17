# SPDX-License-Identifier: Apache-2.0
"""examples/transformers_prompt_cache.py with a small Llama of random weights."""

import importlib.util
from pathlib import Path

import pytest

import tierce

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
EXAMPLE = Path(__file__).parents[3] / "examples/transformers_prompt_cache.py"


def load_example():
    spec = importlib.util.spec_from_file_location("transformers_prompt_cache", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_model(kind="Llama", **values):
    torch.manual_seed(11)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 500, "max_position_embeddings": 2048}
    config = getattr(transformers, kind + "Config")(**sizes, **values)
    return getattr(transformers, kind + "ForCausalLM")(config).eval()


def test_answers_are_equal_with_loaded_prompts(tmp_path):
    example, model = load_example(), make_model()
    values = {"memory.size": "64MiB", "disk.path": str(tmp_path), "disk.size": "64MiB", "timeout.lookup": "30s"}
    prompt = torch.randint(0, 500, (1, 700), generator=torch.manual_seed(5))
    arguments = {"max_new_tokens": 40, "do_sample": False}
    plain = model.generate(prompt, **arguments)
    with tierce.open(values) as store:
        cache = example.PromptCache(store, model, "aa", tokens=1024)
        output, loaded = cache.generate(prompt, **arguments)
        assert loaded == 0 and torch.equal(output, plain)
        again, loaded = cache.generate(prompt, **arguments)
        assert loaded == 688 and torch.equal(again, plain)  # 43 blocks: the last token is computed
        assert store.durable()
    with tierce.open(values) as store:
        for layers in (cache := example.PromptCache(store, model, "aa", tokens=1024)).kv:
            layers.fill_(float("nan"))
        from_disk, loaded = cache.generate(prompt, **arguments)
        assert loaded == 688 and torch.equal(from_disk, plain)
        longer = torch.cat([plain, prompt[:, :50]], 1)  # the next turn: question, answer, question
        output, loaded = cache.generate(longer, **arguments)
        assert loaded == 736 and torch.equal(output, model.generate(longer, **arguments))
        _, loaded = example.PromptCache(store, model, "ab").generate(prompt, **arguments)
        assert loaded == 0
    assert len(EXAMPLE.read_text().splitlines()) < 100


@pytest.mark.parametrize("kind, values, text", [
    ("Mistral", {"sliding_window": 64}, "full attention"),
    ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}, "whole prompt")])
def test_a_model_whose_kv_depends_on_more_is_refused(kind, values, text):
    with tierce.open({"memory.size": "16MiB", "disk.path": ""}) as store, pytest.raises(ValueError, match=text):
        load_example().PromptCache(store, make_model(kind, **values), "aa")
