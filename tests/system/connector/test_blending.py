# SPDX-License-Identifier: Apache-2.0
"""Blended prompts in a real vLLM: documents that were stored after a lead are reused at other positions. With all tokens
recomputed, the KV is that of the full computation; what was blended is never given to another request, and never stored."""

import json
import random
import subprocess

import pytest

from tierce import _core

from conftest import answers, environment, loaded, why
from hybrid_models import SIZES, save_random
from manager_process import executable

BLOCK, CHECK_LAYER = 32, 1
SOURCE = random.Random(20261129)
LEAD, SEPARATOR, QUESTION = ([SOURCE.randrange(256) for _ in range(count)] for count in (45, 5, 70))
DOCUMENTS = [[SOURCE.randrange(256) for _ in range(count)] for count in (300, 200, 330)]


def blended_prompt(order=(2, 0, 1)):
    tokens, segments = list(LEAD), []
    for at in order:
        tokens += SEPARATOR if segments else []
        segments.append([len(tokens), len(tokens) + len(DOCUMENTS[at])])
        tokens += DOCUMENTS[at]
    return tokens + QUESTION, segments


def whole(tokens):
    return (len(LEAD) + tokens) // BLOCK * BLOCK - len(LEAD)


@pytest.fixture(scope="module")
def blending_store(models, tmp_path_factory):
    """A configuration whose gate has a measurement of this share."""
    def store(share, model=None):
        path = tmp_path_factory.mktemp("quality") / "quality.json"
        path.write_text(json.dumps({
            "tierce_blend_quality": 1, "weights": _core.fingerprint(model or models()), "check_layer": CHECK_LAYER,
            "date": "2026-11-29", "rows": [{"share": share, "agreement": 90, "kl": 0.1}]}))
        return {"memory.size": "256MiB", "disk.path": "", "blend.enabled": "true", "blend.quality": str(path)}

    return store


@pytest.fixture(scope="module")
def blending(module_engine, blending_store):
    return module_engine(blending_store(15))


def store_documents(host, salt):
    """By requests that begin with the lead and a document."""
    host.generate(prompts=[LEAD + document for document in DOCUMENTS], tokens=1, salts=[salt] * len(DOCUMENTS))
    assert host.forget()


def clear_memory(process):
    subprocess.run([str(executable()), "ctl", str(process), "clear", "--tier", "memory"], env=environment(), timeout=60, check=True)


def check_distances(distances, rounding):
    """From the full computation, by the share that was recomputed. All of it is the full computation but for rounding, and the
    tokens that differ most bring the rest nearer to it."""
    assert distances[1.0] < rounding and distances[1.0] < distances[0.15] / 2, distances
    assert 1e-3 < distances[0.15] < 0.97 * distances[0.0] < 0.8, distances


def test_blended_prompts(blending, expected):
    prompt, segments = blended_prompt()
    store_documents(blending, "a")
    distances = {}
    for share in (1.0, 0.15, 0.0):
        out, distances[share] = blending.blend(prompt=prompt, segments=segments, share=share, salt="a")
        # The first document is exact: its chain is the beginning of the prompt.
        exact = (len(LEAD) + len(DOCUMENTS[2])) // BLOCK * BLOCK
        assert loaded([out], "memory") == [exact] and loaded([out], "failed") == [0]
        assert loaded([out], "blended") == [segments[2][0] + whole(len(DOCUMENTS[1])) - exact]
        said = why(blending.process.pid, out)
        assert (said["limit"], said["loaded_tokens"], said["stored_tokens"]) == ("blended", exact, 0)
        assert blending.forget()
    check_distances(distances, 1e-4)
    # Neither vLLM's cache nor the store has anything that was blended.
    out = blending.blend(prompt=prompt, segments=segments, share=0.15, salt="a")[0]
    (plain,) = blending.generate(prompts=[prompt], salts=["a"])
    assert loaded([plain], "local")[0] + loaded([plain], "memory")[0] == exact
    assert answers([plain]) == expected([prompt])


def blends_all(host, salt, tier):
    prompt, segments = blended_prompt()
    out, distance = host.blend(prompt=prompt, segments=segments, share=1.0, salt=salt)
    exact = (len(LEAD) + len(DOCUMENTS[2])) // BLOCK * BLOCK
    assert loaded([out], tier) == [exact] and loaded([out], "failed") == [0]
    assert loaded([out], "blended") == [segments[2][0] + whole(len(DOCUMENTS[1])) - exact]
    assert distance < 1e-4


def test_documents_on_disk(engine, blending_store, tmp_path):
    host = engine({**blending_store(15), "disk.path": str(tmp_path / "store"), "disk.size": "512MiB", "cost.check": "false"})
    store_documents(host, "d")
    assert host.flush()
    clear_memory(host.process.pid)
    blends_all(host, "d", "disk")


def test_documents_of_another_engine_of_a_node(engine, blending_store, node):
    quality = {name: value for name, value in blending_store(15).items() if name.startswith("blend.")}
    host = engine({**quality, **node.store})
    store_documents(host, "e")
    host.kill()
    blends_all(engine({**quality, **node.store}), "e", "memory")


def make_qwen(folder, kind):
    """Qwen2's queries, keys and values have a bias, and Qwen3's heads a norm; both are random."""
    import torch
    import transformers

    torch.manual_seed(7)
    config = getattr(transformers, f"{kind}Config")(**SIZES, num_hidden_layers=4, num_key_value_heads=2, head_dim=64)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "q_norm" in name or "k_norm" in name:
                parameter.add_(torch.randn(parameter.shape) / 2)
    save_random(folder, model)
    return str(folder)


@pytest.mark.long
@pytest.mark.parametrize("kind, dtype, rounding", [
    ("Qwen2", "float32", 1e-4), ("Qwen3", "float32", 1e-4), ("Llama", "bfloat16", 0.1), ("Qwen3", "bfloat16", 0.1)])
def test_other_models_and_types(engine, blending_store, models, tmp_path, kind, dtype, rounding):
    model = models() if kind == "Llama" else make_qwen(tmp_path / "model", kind)
    host = engine(blending_store(15, model), model=model, dtype=dtype)
    assert "Tierce blends prompts:" in host.text(host.mark)
    prompt, segments = blended_prompt()
    store_documents(host, "a")
    distances = {}
    for share in (1.0, 0.15, 0.0):
        out, distances[share] = host.blend(prompt=prompt, segments=segments, share=share, salt="a")
        assert loaded([out], "blended")[0] > 0 and loaded([out], "failed") == [0]
        assert host.forget()
    check_distances(distances, rounding)


def test_a_blend_that_fails_is_computed(blending, expected):
    prompt, segments = blended_prompt((1, 2, 0))
    store_documents(blending, "b")
    blending.break_call(part="worker", name="begin_segments")
    outputs = blending.generate(prompts=[prompt], salts=["b"], wishes={"tierce.segments": segments})
    assert blending.mend_call() == 1
    assert answers(outputs) == expected([prompt])
    assert loaded(outputs, "failed")[0] > 0 and loaded(outputs, "blended") == [0]


def test_without_a_measurement_nothing_is_blended(engine, blending_store, expected):
    host = engine(blending_store(30))
    prompt, segments = blended_prompt()
    store_documents(host, "c")
    outputs = host.generate(prompts=[prompt], salts=["c"], wishes={"tierce.segments": segments})
    assert answers(outputs) == expected([prompt]) and loaded(outputs, "blended") == [0]
    assert "Tierce does not blend prompts: blend.quality" in host.text()
    assert "has no measurement of blend.share 15%; it has 30%" in host.text()
    assert why(host.process.pid, outputs[0])["limit"] == "unblended"
