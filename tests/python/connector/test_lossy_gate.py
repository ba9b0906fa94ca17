# SPDX-License-Identifier: Apache-2.0
"""The gate of lossy codecs without a running vLLM: which measurements open it, and that an engine does not start without one."""

import json
from types import SimpleNamespace as Thing

import pytest

pytest.importorskip("vllm")

from tierce.vllm import lossy  # noqa: E402
from tierce.vllm.identity import ConfigError, Unsupported  # noqa: E402

NAMESPACE = {"weights": "aa", "kv_dtype": "bfloat16", "quantization": ""}


def quality(tmp_path, **changes):
    rows = [{"codec": "int8", "agreement": 99.6, "kl": 0.0002, "text": "contract.txt"},
            {"codec": "int8", "agreement": 99.2, "kl": 0.0001, "text": "dialogue.txt"},
            {"codec": "int4", "agreement": 92.6, "kl": 0.02}, {"codec": "cachegen", "agreement": 99.4, "kl": 0.001}]
    path = tmp_path / "quality.json"
    path.write_text(json.dumps({"tierce_codec_quality": 1, "weights": "aa", "kv_dtype": "bfloat16", "date": "2026-11-30",
                                "rows": rows, **changes}))
    return str(path)


def several_groups():
    raise Unsupported("several KV cache groups")


def chosen(path, codec="int8", namespace=NAMESPACE, has_states=False, lora=None, drafter=None, cells=several_groups, **values):
    values = {"codec.lossy": codec, "codec.quality": path, "codec.agreement": "99%", "blend.enabled": "false",
              **{name.replace("_", "."): value for name, value in values.items()}}
    return lossy.choose(values.__getitem__, Thing(lora_config=lora, speculative_config=drafter), namespace, has_states,
                        cells)


def test_the_worst_prompt_counts(tmp_path):
    gate = chosen(quality(tmp_path))
    assert (gate.codec, gate.quantization, gate.agreement, gate.kl) == ("int8", "tierce-int8", 99.2, 0.0002)
    assert "at least 99.20 %" in gate.words and "2026-11-30" in gate.words
    assert chosen(quality(tmp_path), codec_agreement="0.99") == gate
    assert chosen("/nonexistent", codec="none") is None


def test_a_value_just_below_the_bound_does_not_look_like_it(tmp_path):
    path = quality(tmp_path, rows=[{"codec": "int8", "agreement": 98.999, "kl": 0.00014}])
    with pytest.raises(ConfigError, match="the agreement is 98.99 % .*, below codec.agreement, 99 %"):
        chosen(path)
    assert "at least 98.99 %, divergence at most 0.0002" in chosen(path, codec_agreement="98.999%").words


def test_cachegen_states_the_cells(tmp_path):
    gate = chosen(quality(tmp_path), "cachegen", cells=lambda: "30-thkc64")
    assert gate.quantization == "tierce-cachegen-30-thkc64"


def test_without_a_measurement_within_the_bound_nothing_starts(tmp_path):
    path = quality(tmp_path)
    for reason, case in (
            ("codec.lossy int8: codec.quality is empty; measure the model with tools/kv_quality.py", {"path": ""}),
            ("agreement with dialogue.txt is 99.20 % .codec.quality .*, below codec.agreement, 99.5 %", {"codec_agreement": "99.5%"}),
            ("codec.lossy int4: the agreement is 92.60 % .codec.quality .*json'., below", {"codec": "int4"}),
            ("no measurement of fp8; it has cachegen, int4, int8", {"codec": "fp8"}),
            ("of other weights .aa, not bb.", {"namespace": {**NAMESPACE, "weights": "bb"}}),
            ("KV of bfloat16, not float16", {"namespace": {**NAMESPACE, "kv_dtype": "float16"}}),
            ("KV of float32; accepted are bfloat16 and float16", {"namespace": {**NAMESPACE, "kv_dtype": "float32"}}),
            ("codec.lossy cachegen: several KV cache groups", {"codec": "cachegen"}),
            ("recurrent states", {"has_states": True}), ("LoRA", {"lora": object()}),
            ("that of a drafter", {"drafter": Thing(method="eagle")}),
            ("blend.enabled is set", {"blend_enabled": "true"})):
        with pytest.raises(ConfigError, match=reason):
            chosen(**{"path": path, **case})


def test_a_file_that_is_no_measurement(tmp_path):
    for reason, changes in (("has format 2", {"tierce_codec_quality": 2}), ("is not a file of tools/kv_quality.py", {"rows": 1}),
                            ("is not a file of", {"rows": [{"codec": "int8"}]}),
                            ("is not a file of", {"rows": [{"codec": "int8", "agreement": float("nan"), "kl": 0.1}]})):
        with pytest.raises(ConfigError, match=reason):
            chosen(quality(tmp_path, **changes))
    with pytest.raises(ConfigError, match="No such file"):
        chosen(str(tmp_path / "missing"))
